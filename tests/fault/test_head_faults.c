/* A draft head that is missing, damaged or of another model never costs the model: for each fault the target
 * opens, answers as the model without any head does, and the outcome has its name and its reason.
 *
 * The checkpoint is tiny/qwen3_5-moe-tiny in the published form: an index, and the head in a shard of its
 * own.
 */
#include "../unit/cmocka_all.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit/engine_calls.h"
#include "../unit/scratch_folder.h"
#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "formats/checkpoint.h"
#include "formats/safetensors_writer.h"
#include "provider/mtp_load.h"

#define SOURCE     BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny"
#define HEAD_SHARD "mtp-00001.safetensors"
#define N_TOKENS   12

static bool is_of_head(const char *name) {
    return strncmp(name, "mtp.", 4) == 0;
}

/* ---- folders ---- */

typedef struct {
    const char *victim; /* a tensor that `change` is done to */
    enum { KEEP, AS_I32, TRANSPOSED, LEFT_AWAY } change;
    bool no_head, no_declaration;
    const char *model_type; /* of the head, in config.json */
} recipe;

/* The head alone, under names without the prefix. */
static void write_head(const char *dir, const char *model_type) {
    bl_checkpoint *c = NULL;
    bl_safetensors_writer *w = NULL;
    uint32_t ids[256];
    char config[128];
    make_dir(dir);
    assert_int_equal(bl_checkpoint_open(SOURCE, &c, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_new(at(dir), (uint64_t)1 << 30, &w, NULL), BL_OK);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
            const bl_tensor_view *t = bl_checkpoint_at(c, i);
            if (!is_of_head(t->name)) {
                continue;
            }
            assert_int_equal(pass == 0 ? bl_safetensors_writer_plan(w, t->name + 4, t->dtype, t->n_dims,
                                                                    t->dims, NULL, &ids[i], NULL)
                                       : bl_safetensors_writer_put(w, ids[i], t->data, t->size_bytes, NULL),
                             BL_OK);
        }
        assert_int_equal(pass == 0 ? bl_safetensors_writer_begin(w, NULL) : BL_OK, BL_OK);
    }
    snprintf(config, sizeof config, "{\"model_type\":\"%s\"}", model_type);
    assert_int_equal(bl_safetensors_writer_side(w, "config.json", config, strlen(config), NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_finish(w, NULL), BL_OK);
    bl_safetensors_writer_free(w);
    bl_checkpoint_free(c);
    char index[64];
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    assert_int_equal(remove(at(index)), 0);
}

static void plan_tensor(bl_safetensors_writer *w, const bl_tensor_view *t, const recipe *r, uint32_t *id) {
    uint64_t dims[BL_TENSOR_MAX_DIMS];
    bl_dtype dtype = t->dtype;
    bool hit = r->victim && strcmp(r->victim, t->name) == 0;
    memcpy(dims, t->dims, sizeof dims);
    if (hit && r->change == TRANSPOSED) {
        dims[0] = t->dims[1];
        dims[1] = t->dims[0];
    } else if (hit && r->change == AS_I32) {
        dtype = BL_DTYPE_I32;
        dims[t->n_dims - 1] /= 2;
    }
    assert_int_equal(bl_safetensors_writer_plan(w, t->name, dtype, t->n_dims, dims,
                                                is_of_head(t->name) ? HEAD_SHARD : NULL, id, NULL),
                     BL_OK);
}

static bool is_wanted(const bl_tensor_view *t, const recipe *r) {
    bool away = r->victim && r->change == LEFT_AWAY && strcmp(r->victim, t->name) == 0;
    return !away && !(r->no_head && is_of_head(t->name));
}

static void write_config(bl_safetensors_writer *w, const bl_checkpoint *c, const recipe *r) {
    json_t *config = json_deep_copy(bl_checkpoint_config(c));
    if (r->no_declaration) {
        (void)json_object_del(config, "mtplx_mtp");
        (void)json_object_del(config, "mtplx_mtp_quantization");
    } else if (r->model_type) {
        (void)json_object_set_new(json_object_get(config, "mtplx_mtp"), "model_type",
                                  json_string(r->model_type));
    }
    char *text = json_dumps(config, 0);
    assert_non_null(text);
    assert_int_equal(bl_safetensors_writer_side(w, "config.json", text, strlen(text), NULL), BL_OK);
    json_decref(config);
    free(text);
}

static void write_folder(const char *dir, const recipe *r) {
    bl_checkpoint *c = NULL;
    bl_safetensors_writer *w = NULL;
    uint32_t ids[256];
    make_dir(dir);
    assert_int_equal(bl_checkpoint_open(SOURCE, &c, NULL), BL_OK);
    assert_true(bl_checkpoint_count(c) <= BL_COUNTOF(ids));
    /* small shards, so that there is an index */
    assert_int_equal(bl_safetensors_writer_new(at(dir), (uint64_t)1 << 20, &w, NULL), BL_OK);
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        if (is_wanted(bl_checkpoint_at(c, i), r)) {
            plan_tensor(w, bl_checkpoint_at(c, i), r, &ids[i]);
        }
    }
    assert_int_equal(bl_safetensors_writer_begin(w, NULL), BL_OK);
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        const bl_tensor_view *t = bl_checkpoint_at(c, i);
        if (is_wanted(t, r)) {
            assert_int_equal(bl_safetensors_writer_put(w, ids[i], t->data, t->size_bytes, NULL), BL_OK);
        }
    }
    write_config(w, c, r);
    assert_int_equal(bl_safetensors_writer_finish(w, NULL), BL_OK);
    bl_safetensors_writer_free(w);
    bl_checkpoint_free(c);
}

/* ---- the load, as the commands do it ---- */

typedef struct {
    int32_t tokens[N_TOKENS];
    uint64_t hash;
    uint32_t n_drafted, n_accepted;
} answer;

static answer answer_of(bl_engine *e) {
    static const int32_t prompt[] = {5, 9, 2, 7, 11, 3};
    answer a = {0};
    bl_request r;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = BL_COUNTOF(prompt);
    r.max_tokens = N_TOKENS;
    r.sampling.temperature = 0;
    r.logit_hash = true;
    bl_session *s = submit(e, &r);
    for (size_t n = 0;; n++) {
        bl_event ev = next_event(s);
        if (ev.kind != BL_EVENT_TOKEN) {
            assert_int_equal(ev.kind, BL_EVENT_FINISHED);
            a.hash = ev.logit_hash;
            a.n_drafted = ev.n_drafted;
            a.n_accepted = ev.n_accepted;
            break;
        }
        assert_true(n < N_TOKENS);
        a.tokens[n] = ev.id;
    }
    bl_session_free(s);
    return a;
}

static uint64_t max_memory;    /* 0: no limit of the test's */
static uint64_t planned_bytes; /* of the last load */

static answer load_and_answer(const char *dir, const bl_mtp_settings *settings, bl_mtp_status *ret) {
    bl_engine *e = NULL;
    bl_err err = {0};
    bl_mtp_plan plan;
    bl_engine_options o;
    char path[512];
    snprintf(path, sizeof path, "%s", at(dir));
    bl_mtp_plan_make(settings, path, &plan);
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1;
    o.n_context = 64;
    o.draft_depth = plan.depth;
    o.draft_fixed = true;
    o.draft_path = plan.drafter_path[0] != '\0' ? plan.drafter_path : NULL;
    o.max_memory_bytes = max_memory;
    if (bl_mtp_engine_open(&plan, &o, &e, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    planned_bytes = bl_engine_info(e)->total_bytes;
    bl_mtp_status_make(&plan, bl_engine_info(e), ret);
    answer a = answer_of(e);
    bl_engine_close(e);
    return a;
}

/* ---- faults ---- */

static void fault_none(void) {}

static void fault_missing(void) {
    assert_int_equal(remove(at("m/" HEAD_SHARD)), 0);
}

static void fault_cut(void) {
    struct stat st;
    assert_int_equal(stat(at("m/" HEAD_SHARD), &st), 0);
    assert_int_equal(truncate(at("m/" HEAD_SHARD), st.st_size / 2), 0);
}

static void fault_cut_header(void) {
    assert_int_equal(truncate(at("m/" HEAD_SHARD), 20), 0);
}

static void fault_link_out(void) {
    assert_int_equal(rename(at("m/" HEAD_SHARD), at(HEAD_SHARD)), 0);
    assert_int_equal(symlink(at(HEAD_SHARD), at("m/" HEAD_SHARD)), 0);
}

static void fault_link_to_nothing(void) {
    assert_int_equal(remove(at("m/" HEAD_SHARD)), 0);
    assert_int_equal(symlink("/nowhere/at/all", at("m/" HEAD_SHARD)), 0);
}

static void fault_folder(void) {
    assert_int_equal(remove(at("m/" HEAD_SHARD)), 0);
    assert_int_equal(mkdir(at("m/" HEAD_SHARD), 0700), 0);
}

/* Spaces behind config.json until it has n bytes. */
static void pad_config(size_t n) {
    bl_buf b;
    assert_int_equal(bl_file_read(at("m/config.json"), n, &b, NULL), BL_OK);
    char *text = bl_alloc(n);
    assert_non_null(text);
    memset(text, ' ', n);
    memcpy(text, b.data, b.len);
    write_bytes("m/config.json", text, n);
    bl_free(text);
    bl_buf_done(&b);
}

static void fault_large_config(void) {
    pad_config(BL_MTP_INSPECT_MAX_BYTES + 1);
}

/* The index forgets a tensor that is in the shard. */
static void fault_unlisted(void) {
    json_t *index = json_load_file(at("m/model.safetensors.index.json"), 0, NULL);
    assert_int_equal(json_object_del(json_object_get(index, "weight_map"), "mtp.norm.weight"), 0);
    assert_int_equal(json_dump_file(index, at("m/model.safetensors.index.json"), 0), 0);
    json_decref(index);
}

#define NORM "mtp.norm.weight"
#define JOIN "mtp.fc.weight"

static const struct {
    const char *name;
    recipe recipe;
    void (*fault)(void);
    const char *reason, *detail;
} cases[] = {
    {"missing", {0}, fault_missing, "inline_artifact_invalid", HEAD_SHARD},
    {"cut short", {0}, fault_cut, "inline_artifact_invalid", HEAD_SHARD},
    {"cut in its header", {0}, fault_cut_header, "inline_artifact_invalid", HEAD_SHARD},
    {"link out of the folder", {0}, fault_link_out, "inline_artifact_invalid", HEAD_SHARD},
    {"link to nothing", {0}, fault_link_to_nothing, "inline_artifact_invalid", HEAD_SHARD},
    {"a folder", {0}, fault_folder, "inline_artifact_invalid", HEAD_SHARD},
    {"wrong dtype", {.victim = JOIN, .change = AS_I32}, fault_none, "inline_artifact_invalid", JOIN},
    {"a config that is too large", {0}, fault_large_config, "inline_artifact_invalid", "1048577"},
    /* what the inspection cannot see, and the loader does */
    {"a tensor away", {.victim = NORM, .change = LEFT_AWAY}, fault_none, "assistant_load_failed", NORM},
    {"a tensor nobody lists", {0}, fault_unlisted, "assistant_load_failed", "not listed in the index"},
    {"another geometry",
     {.victim = JOIN, .change = TRANSPOSED},
     fault_none,
     "assistant_target_incompatible",
     JOIN},
    {"another family",
     {.model_type = "qwen3_5_mtp"},
     fault_none,
     "assistant_target_incompatible",
     "qwen3_5_moe_mtp"},
};

static void test_faults(void **state) {
    (void)state;
    const recipe plain = {.no_head = true, .no_declaration = true};
    static const bl_mtp_settings automatic, off = {.mode = BL_MTP_MODE_OFF};
    bl_mtp_status st;
    write_folder("plain", &plain);
    const answer want = load_and_answer("plain", &automatic, &st);
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "config_disabled");
    assert_false(st.enabled || st.loud);
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        assert_int_equal(remove_root(NULL), 0);
        assert_int_equal(make_root(NULL), 0);
        write_folder("m", &cases[i].recipe);
        cases[i].fault();
        answer got = load_and_answer("m", &automatic, &st);
        const char *reason = bl_mtp_reason_get(st.reason)->name;
        if (strcmp(reason, cases[i].reason) != 0 || !strstr(st.detail, cases[i].detail)) {
            fail_msg("%s: %s: %s", cases[i].name, reason, st.detail);
        }
        assert_true(st.enabled && st.loud && !st.active && st.depth == 0);
        assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
        assert_int_equal(got.hash, want.hash);
        /* and where no head is asked for, nothing is said of it */
        got = load_and_answer("m", &off, &st);
        assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
        assert_false(st.enabled || st.loud || st.active);
    }
}

/* A config that is too large for a head is fine without one, and nothing is said. */
static void test_large_config_without_head(void **state) {
    (void)state;
    const recipe plain = {.no_head = true, .no_declaration = true};
    static const bl_mtp_settings automatic;
    bl_mtp_status st;
    write_folder("m", &plain);
    const answer want = load_and_answer("m", &automatic, &st);
    pad_config(BL_MTP_INSPECT_MAX_BYTES + 1);
    const answer got = load_and_answer("m", &automatic, &st);
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "config_disabled");
    assert_false(st.enabled || st.loud);
}

/* Between the plan and the load config.json is exchanged: what was decided is not decided again. */
static void test_exchanged_config(void **state) {
    (void)state;
    const recipe whole = {0}, undeclared = {.no_declaration = true};
    static const bl_mtp_settings automatic;
    bl_buf with, without;
    write_folder("with", &whole);
    write_folder("without", &undeclared);
    assert_int_equal(bl_file_read(at("with/config.json"), 1 << 20, &with, NULL), BL_OK);
    assert_int_equal(bl_file_read(at("without/config.json"), 1 << 20, &without, NULL), BL_OK);
    for (int vanishes = 0; vanishes < 2; vanishes++) {
        const char *dir = vanishes ? "with" : "without";
        const bl_buf *later = vanishes ? &without : &with;
        bl_mtp_plan plan;
        bl_mtp_status st;
        bl_engine_options o;
        bl_mtp_plan_make(&automatic, at(dir), &plan);
        char file[64];
        snprintf(file, sizeof file, "%s/config.json", dir);
        write_bytes(file, later->data, later->len);
        bl_engine_options_init(&o);
        o.model_path = at(dir);
        o.n_context = 64;
        o.draft_depth = plan.depth;
        bl_engine *e = open_engine(&o);
        bl_mtp_status_make(&plan, bl_engine_info(e), &st);
        bl_engine_close(e);
        assert_false(st.active);
        assert_int_equal(st.enabled, vanishes);
        assert_string_equal(bl_mtp_reason_get(st.reason)->name,
                            vanishes ? "inline_artifact_invalid" : "config_disabled");
    }
    bl_buf_done(&with);
    bl_buf_done(&without);
}

/* The same folder without a fault: the outcome is the engine's, and the answer is the same. */
static void test_no_fault(void **state) {
    (void)state;
    const recipe plain = {.no_head = true, .no_declaration = true}, whole = {0};
    static const bl_mtp_settings automatic;
    bl_mtp_status st;
    write_folder("plain", &plain);
    write_folder("m", &whole);
    const answer want = load_and_answer("plain", &automatic, &st);
    const answer got = load_and_answer("m", &automatic, &st);
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    assert_int_equal(got.hash, want.hash);
    assert_true(st.enabled);
    assert_int_equal(st.source, BL_MTP_SOURCE_INLINE);
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "ready");
    assert_int_equal(st.depth, 2);
}

/* ---- a head in a folder of its own ---- */

static void test_external(void **state) {
    (void)state;
    const recipe plain = {.no_head = true, .no_declaration = true}, whole = {0};
    static const bl_mtp_settings automatic, on = {.mode = BL_MTP_MODE_ON};
    bl_mtp_settings external = {.mode = BL_MTP_MODE_ON};
    bl_mtp_status st;
    char head[512], line[BL_MTP_LINE_BYTES];
    write_folder("plain", &plain);
    write_folder("m", &whole);
    write_head("head", "qwen3_5_moe_mtp");
    write_head("other", "qwen3_5_mtp");
    snprintf(head, sizeof head, "%s", at("head"));
    external.drafter_path = head;
    const answer want = load_and_answer("m", &on, &st);
    assert_true(st.active && want.n_drafted > 0);
    const uint64_t with_head = planned_bytes;
    answer got = load_and_answer("plain", &external, &st);
    if (!st.active) {
        fail_msg("%s: %s", bl_mtp_reason_get(st.reason)->name, st.detail);
    }
    bl_mtp_status_line(&st, line);
    assert_string_equal(line, "active, external, k=2");
    /* the same head, so the same drafts; and the same plan */
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    assert_int_equal(got.n_drafted, want.n_drafted);
    assert_int_equal(got.n_accepted, want.n_accepted);
    assert_int_equal(planned_bytes, with_head);
    got = load_and_answer("plain", &automatic, &st);
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    assert_false(st.enabled || st.active);
    assert_true(planned_bytes < with_head);
    /* the target fits, both do not: the head goes */
    max_memory = planned_bytes;
    got = load_and_answer("plain", &external, &st);
    max_memory = 0;
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "assistant_memory_unavailable");
    assert_true(st.loud && st.enabled && !st.active);
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    /* of another family, and no folder at all */
    snprintf(head, sizeof head, "%s", at("other"));
    got = load_and_answer("plain", &external, &st);
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "assistant_target_incompatible");
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    snprintf(head, sizeof head, "%s", at("nothing"));
    got = load_and_answer("plain", &external, &st);
    assert_string_equal(bl_mtp_reason_get(st.reason)->name, "local_artifact_invalid");
    assert_non_null(strstr(st.detail, "nothing"));
    assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    /* the checkpoint's own outranks it, whatever it is */
    got = load_and_answer("m", &external, &st);
    assert_true(st.active && st.source == BL_MTP_SOURCE_INLINE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_large_config_without_head, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_exchanged_config, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_external, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_no_fault, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
