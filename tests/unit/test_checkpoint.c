/* formats/checkpoint: which files belong to a model, links, shards, and the agreement of index and shards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "formats/checkpoint.h"
#include "formats/json.h"

static void test_opens_tiny_folders(void **state) {
    (void)state;
    static const struct {
        const char *name, *type;
    } models[] = {{"gemma3-tiny", "gemma3_text"}, {"llama-tiny", "llama"}};
    for (size_t i = 0; i < BL_COUNTOF(models); i++) {
        char path[512];
        bl_err err = {0};
        bl_checkpoint *c = NULL;
        snprintf(path, sizeof path, BL_SOURCE_DIR "/tests/fixtures/tiny/%s", models[i].name);
        assert_int_equal(bl_checkpoint_open(path, &c, &err), BL_OK);
        assert_int_equal(bl_checkpoint_kind_of(c), BL_CKPT_HF);
        assert_string_equal(bl_checkpoint_name(c), models[i].name);
        assert_string_equal(bl_checkpoint_path(c), path);
        assert_null(bl_checkpoint_gguf(c));
        const char *type = NULL;
        assert_int_equal(bl_json_get_str(bl_checkpoint_config(c), "model_type", "config.json", &type, &err),
                         BL_OK);
        assert_string_equal(type, models[i].type);
        const bl_tensor_view *t = bl_checkpoint_find(c, "model.embed_tokens.weight");
        assert_non_null(t);
        assert_int_equal(t->dtype, BL_DTYPE_BF16);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->size_bytes, 2 * t->dims[0] * t->dims[1]);
        assert_null(bl_checkpoint_find(c, "model.embed_tokens.weigh"));
        uint64_t sum = 0;
        for (size_t k = 0; k < bl_checkpoint_count(c); k++) {
            t = bl_checkpoint_at(c, k);
            sum += t->size_bytes;
            assert_ptr_equal(bl_checkpoint_find(c, t->name), t);
            assert_int_equal(bl_dtype_check_finite(t->dtype, t->data, t->size_bytes / 2, &err), BL_OK);
        }
        assert_int_equal(sum, bl_checkpoint_tensor_bytes(c));
        bl_checkpoint_free(c);
    }
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void touch_all(const bl_gguf *g) {
    for (size_t i = 0; i < bl_gguf_count(g); i++) {
        const bl_tensor_view *t = bl_gguf_at(g, i);
        const bl_dtype_info *info = bl_dtype_get(t->dtype);
        bl_err err = {0};
        assert_int_equal(bl_dtype_check_finite(t->dtype, t->data,
                                               t->size_bytes / info->block_bytes * info->block_elems, &err),
                         BL_OK);
    }
}

/* Real files, when this machine has them. */
static void test_opens_real_gguf(void **state) {
    (void)state;
    static const struct {
        const char *path, *name, *arch;
        size_t n_vocab;
    } models[] = {
        {"/tmp/models/gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m", "gemma3", 262144},
        {"/tmp/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1", "llama", 49152},
    };
    size_t n_done = 0;
    for (size_t i = 0; i < BL_COUNTOF(models); i++) {
        bl_err err = {0};
        bl_checkpoint *c = NULL;
        double begin = now_ms();
        bl_code rc = bl_checkpoint_open(models[i].path, &c, &err);
        if (rc == BL_ENOTFOUND) {
            continue;
        }
        assert_int_equal(rc, BL_OK);
        print_message("%s: opened in %.1f ms\n", models[i].name, now_ms() - begin);
        assert_int_equal(bl_checkpoint_kind_of(c), BL_CKPT_GGUF);
        assert_string_equal(bl_checkpoint_name(c), models[i].name);
        const bl_gguf *g = bl_checkpoint_gguf(c);
        const char *arch = NULL;
        size_t len = 0;
        bool found = false;
        assert_int_equal(bl_gguf_get_str(g, "general.architecture", &arch, &len, &found, &err), BL_OK);
        assert_true(found && len == strlen(models[i].arch) && memcmp(arch, models[i].arch, len) == 0);
        bl_gguf_strings tokens = {0};
        assert_int_equal(bl_gguf_get_strings(g, "tokenizer.ggml.tokens", &tokens, &found, &err), BL_OK);
        assert_int_equal(tokens.n, models[i].n_vocab);
        const bl_tensor_view *t = bl_checkpoint_find(c, "token_embd.weight");
        assert_int_equal(t->dims[0], models[i].n_vocab);
        touch_all(g);
        bl_checkpoint_release_pages(c, t);
        bl_checkpoint_free(c);
        n_done++;
    }
    if (n_done == 0) {
        print_message("skipped: no model in /tmp/models\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_tiny_folders),
        cmocka_unit_test(test_opens_real_gguf),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
