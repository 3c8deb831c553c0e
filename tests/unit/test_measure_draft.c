/* How often a draft head agrees with its model: against counts that the fixtures' logits give, on models made
 * so that the answer is known, and on the trained model of ../shared when it is there.
 */
#include "cmocka_all.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "bl/bl.h"
#include "formats/safetensors.h"
#include "scratch_folder.h"
#include "trained_model.h"

static const char moe[] = BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny";
static const char llama[] = BL_SOURCE_DIR "/tests/fixtures/tiny/llama-tiny";

static bl_engine_options options_of(const char *path) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    return o;
}

/* ---- against the reference's logits -------------------------------------------------------------------- */

static uint32_t best_of(const bl_tensor_view *logits, uint64_t row) {
    uint64_t n = logits->dims[1];
    uint32_t best = 0;
    float top = 0.0f, v;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&v, logits->data + (row * n + i) * sizeof v, sizeof v);
        if (i == 0 || v > top) {
            top = v;
            best = i;
        }
    }
    return best;
}

static void test_fixture(void **state) {
    (void)state;
    bl_safetensors *st = NULL;
    char path[512];
    snprintf(path, sizeof path, "%s/expected.safetensors", moe);
    assert_int_equal(bl_safetensors_open(path, true, &st, NULL), BL_OK);
    const bl_tensor_view *ids = bl_safetensors_find(st, "input_ids"),
                         *logits = bl_safetensors_find(st, "logits");
    int32_t tokens[256];
    assert_non_null(ids);
    assert_non_null(logits);
    assert_true(ids->size_bytes <= sizeof tokens);
    memcpy(tokens, ids->data, ids->size_bytes);
    bl_engine_options o = options_of(moe);
    o.activations_f32 = true;
    bl_draft_agreement got;
    bl_err err = {0};
    if (bl_model_measure_draft(&o, tokens, ids->dims[0], NULL, NULL, &got, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    for (uint32_t depth = 1; depth <= BL_DRAFT_MEASURED; depth++) {
        char name[32];
        snprintf(name, sizeof name, "mtp_logits_%u", depth);
        const bl_tensor_view *draft = bl_safetensors_find(st, name);
        assert_non_null(draft);
        uint64_t agreed = 0;
        for (uint64_t t = 0; t < draft->dims[0]; t++) {
            agreed += best_of(draft, t) == best_of(logits, t + depth);
        }
        assert_int_equal(got.n_rows[depth - 1], draft->dims[0]);
        assert_int_equal(got.n_agreed[depth - 1], agreed);
    }
    bl_safetensors_free(st);
}

/* ---- a model whose head cannot be wrong ---------------------------------------------------------------- */

/* The fixture with an output matrix of zeros: every logit is 0, the first token is everybody's choice. */
static void write_indifferent(void) {
    bl_buf b;
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", moe);
    assert_int_equal(bl_file_read(path, (size_t)64 << 20, &b, NULL), BL_OK);
    bl_safetensors *st = NULL;
    assert_int_equal(bl_safetensors_parse((const uint8_t *)b.data, b.len, "m", &st, NULL), BL_OK);
    const bl_tensor_view *head = bl_safetensors_find(st, "lm_head.weight");
    assert_non_null(head);
    memset(b.data + (head->data - (const uint8_t *)b.data), 0, head->size_bytes);
    bl_safetensors_free(st);
    write_bytes("m/model.safetensors", b.data, b.len);
    bl_buf_done(&b);
    snprintf(path, sizeof path, "%s/config.json", moe);
    assert_int_equal(bl_file_read(path, (size_t)1 << 20, &b, NULL), BL_OK);
    write_text("m/config.json", bl_buf_str(&b));
    bl_buf_done(&b);
}

typedef struct {
    uint32_t n_calls, stop_at; /* stop_at: a call */
    uint64_t last;
    uint32_t n_pieces; /* different numbers of tokens done */
} hearer;

static bool hear(void *user, uint64_t done, uint64_t total) {
    hearer *h = user;
    assert_true(done < total && done >= h->last);
    h->n_pieces += h->n_calls == 0 || done != h->last;
    h->last = done;
    return ++h->n_calls != h->stop_at;
}

/* Texts of one piece and of several, with a rest that is too short for the last depth. */
static void test_pieces(void **state) {
    (void)state;
    static const struct {
        size_t n;
        uint64_t rows[2];
        uint32_t n_pieces;
    } cases[] = {{3, {2, 1}, 1},       {17, {16, 15}, 1},    {512, {511, 510}, 1},
                 {514, {511, 510}, 1}, {515, {513, 511}, 2}, {1024, {1022, 1020}, 2}};
    int32_t tokens[1024];
    for (uint32_t i = 0; i < 1024; i++) {
        tokens[i] = (int32_t)(i * 7 % 512);
    }
    write_indifferent();
    bl_engine_options o = options_of(at("m"));
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        hearer h = {0};
        bl_draft_agreement got;
        assert_int_equal(bl_model_measure_draft(&o, tokens, cases[i].n, hear, &h, &got, NULL), BL_OK);
        for (uint32_t d = 0; d < BL_DRAFT_MEASURED; d++) {
            assert_int_equal(got.n_rows[d], cases[i].rows[d]);
            assert_int_equal(got.n_agreed[d], cases[i].rows[d]);
        }
        assert_int_equal(h.n_pieces, cases[i].n_pieces);
    }
    /* interrupted at every place where it asks */
    for (uint32_t stop_at = 1, stopped = 1; stopped; stop_at++) {
        hearer h = {.stop_at = stop_at};
        bl_draft_agreement got = {.n_rows = {5, 5}};
        bl_code rc = bl_model_measure_draft(&o, tokens, 40, hear, &h, &got, NULL);
        stopped = rc != BL_OK;
        assert_int_equal(rc, stopped ? BL_ECANCEL : BL_OK);
        assert_int_equal(got.n_rows[0], stopped ? 5 : 39); /* untouched */
        assert_true(stopped || stop_at > 8 + 3 * 5);       /* layers, and groups of rows of three heads */
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int32_t tokens[3];
        size_t n;
        bl_code code;
        const char *said;
    } cases[] = {
        {moe, {1, 2, 3}, 2, BL_EINVAL, "a text of 2 tokens says nothing about drafts, at least 3 are needed"},
        {moe, {1, 2, 512}, 3, BL_EINVAL, "token 2 is 512, allowed are 0 to 511"},
        {moe, {1, -1, 3}, 3, BL_EINVAL, "token 1 is -1, allowed are 0 to 511"},
        {llama, {1, 2, 3}, 3, BL_ENOTSUP, "'llama-tiny' has no draft head to measure"},
        {"/nonexistent", {1, 2, 3}, 3, BL_ENOTFOUND, "nonexistent"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_engine_options o = options_of(cases[i].path);
        bl_draft_agreement got;
        bl_err err = {0};
        assert_int_equal(bl_model_measure_draft(&o, cases[i].tokens, cases[i].n, NULL, NULL, &got, &err),
                         cases[i].code);
        if (!strstr(err.msg, cases[i].said)) {
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].said);
        }
    }
}

/* ---- the trained model --------------------------------------------------------------------------------- */

/* On text it was not trained on; the fixture's README says 0.667 and 0.641. */
static void test_trained(void **state) {
    (void)state;
    static const double expected[BL_DRAFT_MEASURED] = {0.667, 0.641};
    char model[512];
    json_t *j = open_trained(model, sizeof model), *ids = json_object_get(j, "valid_ids");
    size_t n = json_array_size(ids);
    int32_t *tokens = bl_alloc_array(n, sizeof *tokens);
    assert_non_null(tokens);
    read_ids(ids, tokens, n);
    bl_engine_options o = options_of(model);
    bl_draft_agreement got;
    assert_int_equal(bl_model_measure_draft(&o, tokens, n, NULL, NULL, &got, NULL), BL_OK);
    for (uint32_t d = 0; d < BL_DRAFT_MEASURED; d++) {
        double rate = (double)got.n_agreed[d] / (double)got.n_rows[d];
        print_message("depth %u: %.3f of %llu rows, expected %.3f\n", d + 1, rate,
                      (unsigned long long)got.n_rows[d], expected[d]);
        assert_true(rate > expected[d] - 0.03 && rate < expected[d] + 0.03);
    }
    bl_free(tokens);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture),
        cmocka_unit_test_setup_teardown(test_pieces, make_root, remove_root),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_trained),
    };
    return cmocka_run_group_tests_name("measure_draft", tests, NULL, NULL);
}
