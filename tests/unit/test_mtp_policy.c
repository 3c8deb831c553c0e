/* provider/mtp_policy: the whole matrix of mode, family, declaration and kill switch, one row a case, and the
 * words that operators and files may write. No file is read here. */
#include "cmocka_all.h"

#include <string.h>

#include "base/base.h"
#include "base/words.h"
#include "provider/mtp_policy.h"

/* ---- the matrix ---- */

#define AUTO           BL_MTP_MODE_AUTO
#define ON             BL_MTP_MODE_ON
#define OFF            BL_MTP_MODE_OFF
#define ABSENT         BL_MTP_ABSENT
#define DECLARED       BL_MTP_DECLARED
#define UNDETERMINABLE BL_MTP_UNDETERMINABLE
#define FOUND(f)       BL_MTP_FOUND_##f

typedef struct {
    bl_mtp_mode mode;
    const char *model_type;
    bl_mtp_declaration declaration;
    bl_mtp_finding finding; /* what an inspection would say */
    bool killed;
    bl_mtp_outcome outcome;
    const char *reason;
    bl_mtp_source source;
    bool configured, loud;
} matrix_case;

/* clang-format off */
static const matrix_case matrix[] = {
    /* mode auto */
    {AUTO, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "qwen3_5", DECLARED, FOUND(OK), false, BL_MTP_EMBEDDED, "ready", BL_MTP_SOURCE_INLINE, true, false},
    {AUTO, "qwen3_5", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "qwen3_5", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {AUTO, "qwen3_5", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {AUTO, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "qwen3_5_moe", DECLARED, FOUND(OK), false, BL_MTP_EMBEDDED, "ready", BL_MTP_SOURCE_INLINE, true, false},
    {AUTO, "qwen3_5_moe", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "qwen3_5_moe", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {AUTO, "qwen3_5_moe", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {AUTO, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {AUTO, "gemma4", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {AUTO, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    /* mode on */
    {ON, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5", DECLARED, FOUND(OK), false, BL_MTP_EMBEDDED, "ready", BL_MTP_SOURCE_INLINE, true, false},
    {ON, "qwen3_5", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {ON, "qwen3_5", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {ON, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5_moe", DECLARED, FOUND(OK), false, BL_MTP_EMBEDDED, "ready", BL_MTP_SOURCE_INLINE, true, false},
    {ON, "qwen3_5_moe", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5_moe", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {ON, "qwen3_5_moe", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "inline_artifact_invalid", BL_MTP_SOURCE_INLINE, true, true},
    {ON, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "gemma4", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "gemma4", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "gemma4", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "gemma4", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "gemma4", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "gemma4", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "catalog_disabled", BL_MTP_SOURCE_CATALOG, true, false},
    {ON, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "target_unsupported", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "target_unsupported", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "target_unsupported", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "target_unsupported", BL_MTP_SOURCE_NONE, true, false},
    {ON, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, true, false},
    /* mode off */
    {OFF, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "qwen3_5_moe", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "gemma4", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", ABSENT, FOUND(NOT_INSPECTED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", ABSENT, FOUND(NOT_INSPECTED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", DECLARED, FOUND(OK), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", DECLARED, FOUND(OK), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", DECLARED, FOUND(DTYPE), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", DECLARED, FOUND(DTYPE), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), false, BL_MTP_TARGET_ONLY, "config_disabled", BL_MTP_SOURCE_NONE, false, false},
    {OFF, "llama", UNDETERMINABLE, FOUND(CONFIG_MALFORMED), true, BL_MTP_TARGET_ONLY, "kill_switch_disabled", BL_MTP_SOURCE_NONE, false, false},
};
/* clang-format on */

static void check_row(const matrix_case *c, size_t row) {
    bl_mtp_probe probe = {.declaration = c->declaration};
    bl_mtp_inspection seen = {.finding = c->finding, .detail = "what is wrong"};
    bl_mtp_request r = {.mode = c->mode,
                        .killed = c->killed,
                        .model_type = c->model_type,
                        .dir = "/nowhere",
                        .probe = &probe};
    bl_mtp_decision d;
    /* an inspection is asked for where the head's own state decides, and nowhere else */
    bool asks = c->source == BL_MTP_SOURCE_INLINE;
    memset(&d, 0x5a, sizeof d);
    assert_int_equal(bl_mtp_asks(&r), asks);
    bl_mtp_decide(&r, asks ? &seen : NULL, &d);
    if (strcmp(bl_mtp_reason_get(d.reason)->name, c->reason) != 0) {
        fail_msg("row %zu: %s, not %s", row, bl_mtp_reason_get(d.reason)->name, c->reason);
    }
    if (d.outcome != c->outcome || d.source != c->source || d.configured != c->configured ||
        d.loud != c->loud || (d.outcome == BL_MTP_EMBEDDED) != (d.reason == BL_MTP_READY)) {
        fail_msg("row %zu (%s): outcome %d source %d configured %d loud %d", row, c->reason, d.outcome,
                 d.source, d.configured, d.loud);
    }
    assert_string_equal(d.detail, c->loud ? "what is wrong" : "");
}

static void test_matrix(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(matrix); i++) {
        check_row(&matrix[i], i);
    }
}

/* Every combination is in the table, so that none can be forgotten in it. */
static void test_matrix_is_whole(void **state) {
    (void)state;
    static const char *const types[] = {"qwen3_5", "qwen3_5_moe", "gemma4", "llama"};
    for (size_t i = 0; i < (size_t)BL_MTP_MODE__MAX * BL_COUNTOF(types) * BL_MTP_DECLARATION__MAX * 2; i++) {
        size_t n = 0, at = i;
        bool killed = at % 2 != 0;
        int declaration = (int)(at / 2 % BL_MTP_DECLARATION__MAX);
        const char *type = types[at / 2 / BL_MTP_DECLARATION__MAX % BL_COUNTOF(types)];
        int mode = (int)(at / 2 / BL_MTP_DECLARATION__MAX / BL_COUNTOF(types));
        for (size_t k = 0; k < BL_COUNTOF(matrix); k++) {
            n += (int)matrix[k].mode == mode && strcmp(matrix[k].model_type, type) == 0 &&
                 (int)matrix[k].declaration == declaration && matrix[k].killed == killed;
        }
        assert_int_equal(n, declaration == BL_MTP_DECLARED ? 2 : 1);
    }
}

/* ---- what is outside the matrix ---- */

static const char *reason_of(const bl_mtp_request *r, bl_mtp_decision *d) {
    static const bl_mtp_inspection ok = {.finding = BL_MTP_FOUND_OK};
    bl_mtp_decide(r, &ok, d);
    return bl_mtp_reason_get(d->reason)->name;
}

/* A head that was declared in a folder nobody names cannot be inspected; auto must not take that as leave to
 * look elsewhere. */
static void test_no_folder(void **state) {
    (void)state;
    bl_mtp_probe probe = {.declaration = BL_MTP_DECLARED};
    bl_mtp_decision d;
    bl_mtp_request r = {.model_type = "qwen3_5", .probe = &probe};
    assert_string_equal(reason_of(&r, &d), "config_disabled");
    assert_int_equal(d.source, BL_MTP_SOURCE_NONE);
    assert_false(d.configured);
    r.mode = BL_MTP_MODE_ON;
    assert_string_equal(reason_of(&r, &d), "catalog_disabled");
    r = (bl_mtp_request){.model_type = "qwen3_5", .dir = "/nowhere"};
    assert_string_equal(reason_of(&r, &d), "config_disabled");
}

static void test_drafter_path(void **state) {
    (void)state;
    bl_mtp_probe probe = {.declaration = BL_MTP_ABSENT};
    bl_mtp_decision d;
    bl_mtp_request r = {.mode = BL_MTP_MODE_ON,
                        .model_type = "gemma4",
                        .dir = "/nowhere",
                        .probe = &probe,
                        .drafter_path = "/heads/one"};
    assert_string_equal(reason_of(&r, &d), "assistant_target_incompatible"); /* not built for this family */
    assert_int_equal(d.source, BL_MTP_SOURCE_LOCAL);
    assert_int_equal(d.outcome, BL_MTP_TARGET_ONLY);
    assert_true(d.loud);
    assert_non_null(strstr(d.detail, "mtp_drafter_path"));
    assert_null(strstr(d.detail, "/heads"));
    assert_false(bl_mtp_asks_local(&r));
    r.drafter_path = " \t";
    assert_string_equal(reason_of(&r, &d), "catalog_disabled");
    r.drafter_path = "/heads/one";
    r.model_type = "llama";
    assert_string_equal(reason_of(&r, &d), "target_unsupported");
    r.mode = BL_MTP_MODE_AUTO; /* needs "on" */
    r.model_type = "gemma4";
    assert_string_equal(reason_of(&r, &d), "config_disabled");
    static const bl_mtp_inspection bad = {.finding = BL_MTP_FOUND_FILE_LINK, .detail = "a link"};
    r.mode = BL_MTP_MODE_ON;
    r.model_type = "qwen3_5_moe";
    assert_true(bl_mtp_asks_local(&r) && !bl_mtp_asks(&r));
    assert_string_equal(reason_of(&r, &d), "ready");
    assert_int_equal(d.outcome, BL_MTP_EXTERNAL);
    assert_int_equal(d.source, BL_MTP_SOURCE_LOCAL);
    bl_mtp_decide(&r, &bad, &d); /* and no other is looked for */
    assert_int_equal(d.reason, BL_MTP_LOCAL_ARTIFACT_INVALID);
    assert_true(d.loud && d.outcome == BL_MTP_TARGET_ONLY);
    assert_string_equal(d.detail, "a link");
    r.killed = true;
    assert_false(bl_mtp_asks_local(&r));
    assert_string_equal(reason_of(&r, &d), "kill_switch_disabled");
    r.killed = false;
    r.mode = BL_MTP_MODE_AUTO;
    assert_false(bl_mtp_asks_local(&r));
    assert_string_equal(reason_of(&r, &d), "config_disabled");
    r.mode = BL_MTP_MODE_ON; /* an embedded head outranks it */
    r.model_type = "qwen3_5";
    probe.declaration = BL_MTP_DECLARED;
    assert_string_equal(reason_of(&r, &d), "ready");
    assert_int_equal(d.source, BL_MTP_SOURCE_INLINE);
}

/* First of all reasons, before the kill switch. */
static void test_stopping(void **state) {
    (void)state;
    bl_mtp_probe probe = {.declaration = BL_MTP_DECLARED};
    bl_mtp_decision d;
    bl_mtp_request r = {
        .model_type = "qwen3_5", .dir = "/nowhere", .probe = &probe, .stopping = true, .killed = true};
    assert_false(bl_mtp_asks(&r));
    assert_string_equal(reason_of(&r, &d), "catalog_unavailable");
    assert_true(d.configured);
    r.mode = BL_MTP_MODE_OFF;
    assert_string_equal(reason_of(&r, &d), "catalog_unavailable");
    assert_false(d.configured);
}

/* What was not inspected is not accepted. */
static void test_zeroed_inspection(void **state) {
    (void)state;
    bl_mtp_probe probe = {.declaration = BL_MTP_DECLARED};
    bl_mtp_inspection none = {0};
    bl_mtp_decision d;
    bl_mtp_request r = {.model_type = "qwen3_5", .dir = "/nowhere", .probe = &probe};
    bl_mtp_decide(&r, &none, &d);
    assert_string_equal(bl_mtp_reason_get(d.reason)->name, "inline_artifact_invalid");
}

/* ---- words ---- */

static void test_kill_switch(void **state) {
    (void)state;
    static const char *const kills[] = {"0",  "false", "no",      "off",    "FALSE",
                                        "No", " off ", "\tOFF\n", "\v0\f\r"};
    static const char *const not [] = {"",       " ",  "1",   "true", "yes", "on",   "00", "0.0",
                                       "falsey", "of", "o f", "offf", "-0",  "null", "n",  "f"};
    for (size_t i = 0; i < BL_COUNTOF(kills); i++) {
        assert_true(bl_word_is_off(kills[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(not ); i++) {
        assert_false(bl_word_is_off(not [i]));
    }
    assert_false(bl_word_is_off(NULL));
}

static void test_families(void **state) {
    (void)state;
    static const struct {
        const char *type;
        bool embeds, assists;
    } rows[] = {
        {"qwen3_5", true, false},
        {"qwen3_5_moe", true, false},
        {" QWEN3_5_MOE ", true, false},
        {"\nQwen3_5\t", true, false},
        {"qwen3_5x", false, false},
        {"qwen3_5 moe", false, false},
        {"qwen3", false, false},
        {"qwen3_5_text", true, false},
        {"xqwen3_5", false, false},
        {"gemma4", false, true},
        {" Gemma4_Text", false, true},
        {"gemma3", false, false},
        {"qwen3_5_moe_text", true, false},
        {"qwen3_5_vision", false, false},
        {"", false, false},
        {"  ", false, false},
        {NULL, false, false},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        assert_int_equal(bl_mtp_family_embeds(rows[i].type), rows[i].embeds);
        assert_int_equal(bl_mtp_family_assists(rows[i].type), rows[i].assists);
    }
}

static void test_modes(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "Auto", "ON", " on", "off ", "true", "sometimes", "au"};
    for (int m = 0; m < BL_MTP_MODE__MAX; m++) {
        bl_mtp_mode got = BL_MTP_MODE__MAX;
        assert_int_equal(bl_mtp_mode_parse(bl_mtp_mode_name((bl_mtp_mode)m), &got, NULL), BL_OK);
        assert_int_equal(got, m);
    }
    for (size_t i = 0; i < BL_COUNTOF(wrong); i++) {
        bl_mtp_mode got = BL_MTP_MODE_ON;
        bl_err err = {0};
        assert_int_equal(bl_mtp_mode_parse(wrong[i], &got, &err), BL_EINVAL);
        assert_int_equal(got, BL_MTP_MODE_ON);
        assert_non_null(strstr(err.msg, "allowed are 'auto', 'on' and 'off'"));
    }
}

/* The names of the contract, in its order. */
static void test_reasons(void **state) {
    (void)state;
    static const char *const names[] = {
        "ready",
        "config_disabled",
        "kill_switch_disabled",
        "target_unsupported",
        "local_artifact_invalid",
        "inline_artifact_invalid",
        "catalog_disabled",
        "catalog_unavailable",
        "catalog_model_missing",
        "metadata_missing",
        "metadata_malformed",
        "artifact_not_cached",
        "manifest_fetch_failed",
        "manifest_malformed",
        "manifest_digest_mismatch",
        "manifest_binding_mismatch",
        "artifact_oversize",
        "file_count_invalid",
        "file_type_disallowed",
        "path_invalid",
        "file_download_failed",
        "file_digest_mismatch",
        "warm_artifact_corrupt",
        "publication_failed",
        "assistant_load_failed",
        "assistant_target_incompatible",
        "assistant_memory_unavailable",
        "assistant_reslice_floor",
        "assistant_post_build_headroom",
        "engine_inactive",
        "inert_kv_unsupported",
    };
    assert_int_equal(BL_COUNTOF(names), BL_MTP_REASON__MAX);
    for (int r = 0; r < BL_MTP_REASON__MAX; r++) {
        const bl_mtp_reason_info *info = bl_mtp_reason_get((bl_mtp_reason)r);
        assert_non_null(info->name);
        assert_string_equal(info->name, names[r]);
        assert_true(info->doc && strlen(info->doc) > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix),      cmocka_unit_test(test_matrix_is_whole),
        cmocka_unit_test(test_no_folder),   cmocka_unit_test(test_drafter_path),
        cmocka_unit_test(test_stopping),    cmocka_unit_test(test_zeroed_inspection),
        cmocka_unit_test(test_kill_switch), cmocka_unit_test(test_families),
        cmocka_unit_test(test_modes),       cmocka_unit_test(test_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
