/* provider/mtp_load: what a load asks the engine for, over modes, folders and the kill switch, and what its
 * outcome is called. Plans are made of the committed checkpoints, the engine's word is made up. */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "bl/bl.h"
#include "provider/mtp_load.h"

#define FIXTURE(name) BL_SOURCE_DIR "/tests/fixtures/tiny/" name
#define WITH_HEAD     FIXTURE("qwen3_5-moe-tiny")
#define GGUF_FOLDER   FIXTURE("qwen3_5-moe-tiny-gguf")

/* ---- before ---- */

typedef struct {
    const char *path;
    bl_mtp_mode mode;
    bool killed;
    uint32_t depth;
    const char *reason;
    bool configured;
    uint32_t want_depth;
} plan_case;

/* clang-format off */
static const plan_case plans[] = {
    {WITH_HEAD, BL_MTP_MODE_AUTO, false, 0, "ready", true, 2},
    {WITH_HEAD, BL_MTP_MODE_AUTO, false, 1, "ready", true, 1},
    {WITH_HEAD, BL_MTP_MODE_AUTO, false, 7, "ready", true, 7},
    {WITH_HEAD, BL_MTP_MODE_AUTO, false, 8, "ready", true, BL_MAX_DRAFT},
    {WITH_HEAD, BL_MTP_MODE_ON, false, 0, "ready", true, 2},
    {WITH_HEAD, BL_MTP_MODE_OFF, false, 2, "config_disabled", false, 0},
    {WITH_HEAD, BL_MTP_MODE_AUTO, true, 2, "kill_switch_disabled", true, 0},
    {WITH_HEAD, BL_MTP_MODE_ON, true, 2, "kill_switch_disabled", true, 0},
    {WITH_HEAD, BL_MTP_MODE_OFF, true, 2, "kill_switch_disabled", false, 0},
    {FIXTURE("llama-tiny"), BL_MTP_MODE_AUTO, false, 2, "config_disabled", false, 0},
    {FIXTURE("llama-tiny"), BL_MTP_MODE_ON, false, 2, "target_unsupported", true, 0},
    {FIXTURE("gemma4-moe-tiny"), BL_MTP_MODE_AUTO, false, 0, "config_disabled", false, 0},
    {FIXTURE("gemma4-moe-tiny"), BL_MTP_MODE_ON, false, 0, "catalog_disabled", true, 0},
    /* no config.json, so nothing that could declare a head, though the file has one */
    {GGUF_FOLDER, BL_MTP_MODE_AUTO, false, 0, "config_disabled", false, 0},
    {GGUF_FOLDER "/model.gguf", BL_MTP_MODE_AUTO, false, 0, "config_disabled", false, 0},
    {GGUF_FOLDER "/model.gguf", BL_MTP_MODE_ON, false, 0, "target_unsupported", true, 0},
    {"/nowhere/at/all", BL_MTP_MODE_AUTO, false, 0, "config_disabled", false, 0},
    {NULL, BL_MTP_MODE_AUTO, false, 0, "config_disabled", false, 0},
};
/* clang-format on */

static void test_plans(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(plans); i++) {
        const plan_case *c = &plans[i];
        bl_mtp_settings s = {.mode = c->mode, .killed = c->killed, .depth = c->depth};
        bl_mtp_plan p;
        memset(&p, 0x5a, sizeof p);
        bl_mtp_plan_make(&s, c->path, &p);
        const char *reason = bl_mtp_reason_get(p.decision.reason)->name;
        if (strcmp(reason, c->reason) != 0 || p.decision.configured != c->configured ||
            p.depth != c->want_depth || p.decision.loud || p.drafter_path[0]) {
            fail_msg("row %zu: %s, configured %d, depth %u, loud %d", i, reason, p.decision.configured,
                     p.depth, p.decision.loud);
        }
    }
}

/* ---- after ---- */

static const struct {
    const char *draft; /* what the engine says of the head */
    bool foreign;
    uint32_t draft_depth;
    const char *reason, *detail, *line;
} outcomes[] = {
    {"embedded", false, 2, "ready", "", "active, embedded, k=2"},
    {"embedded", false, 7, "ready", "", "active, embedded, k=7"},
    {"embedded", false, 0, "engine_inactive", "drafts nothing", "target-only (engine_inactive)"},
    {"none", false, 0, "inline_artifact_invalid", "none now", "target-only (inline_artifact_invalid)"},
    {"tensor 'mtp.norm.weight' is missing", false, 0, "assistant_load_failed", "'mtp.norm.weight' is missing",
     "target-only (assistant_load_failed)"},
    {"tensor 'mtp.fc.weight' has shape [8, 8], the config asks for [64, 128]", true, 0,
     "assistant_target_incompatible", "[64, 128]", "target-only (assistant_target_incompatible)"},
    {"tensor 'mtp.fc.weight' ends in 4, a weight of 64 rows of 128 4-bit needs 16", true, 0,
     "assistant_target_incompatible", "ends in 4", "target-only (assistant_target_incompatible)"},
    {"config.json: mtplx_mtp.model_type is 'qwen3_5_mtp', the model's is 'qwen3_5_moe_mtp'", true, 0,
     "assistant_target_incompatible", "model_type", "target-only (assistant_target_incompatible)"},
};

static void test_outcomes(void **state) {
    (void)state;
    bl_mtp_settings s = {0};
    bl_mtp_plan p;
    bl_mtp_plan_make(&s, WITH_HEAD, &p);
    for (size_t i = 0; i < BL_COUNTOF(outcomes); i++) {
        bl_model_info info = {.draft_depth = outcomes[i].draft_depth, .draft_foreign = outcomes[i].foreign};
        bl_mtp_status st;
        char line[BL_MTP_LINE_BYTES];
        snprintf(info.draft, sizeof info.draft, "%s", outcomes[i].draft);
        bl_mtp_status_make(&p, &info, &st);
        assert_string_equal(bl_mtp_reason_get(st.reason)->name, outcomes[i].reason);
        assert_non_null(strstr(st.detail, outcomes[i].detail));
        bl_mtp_status_line(&st, line);
        assert_string_equal(line, outcomes[i].line);
        assert_true(st.enabled);
        assert_int_equal(st.active, outcomes[i].draft_depth > 0);
        assert_int_equal(st.loud, outcomes[i].draft_depth == 0);
        assert_int_equal(st.depth, outcomes[i].draft_depth);
    }
}

/* An engine that was not asked to draft does not make a plan active, whatever it says. */
static void test_plan_rules(void **state) {
    (void)state;
    bl_mtp_settings s = {.mode = BL_MTP_MODE_OFF};
    bl_model_info info = {.draft_depth = 2, .draft = "embedded"};
    bl_mtp_plan p;
    bl_mtp_status st;
    char line[BL_MTP_LINE_BYTES];
    bl_mtp_plan_make(&s, WITH_HEAD, &p);
    bl_mtp_status_make(&p, &info, &st);
    assert_false(st.active || st.enabled || st.loud);
    bl_mtp_status_line(&st, line);
    assert_string_equal(line, "target-only (config_disabled)");
}

static void test_expected(void **state) {
    (void)state;
    bl_mtp_settings s = {.depth = 1};
    bl_model_info info = {.draft = "embedded"};
    bl_model_info other = {.draft = "tensor 'mtp.x' has shape [1], no", .draft_foreign = true};
    bl_mtp_plan p;
    bl_mtp_status st;
    bl_mtp_plan_make(&s, WITH_HEAD, &p);
    bl_mtp_status_expect(&p, &info, &st);
    assert_true(st.active);
    assert_int_equal(st.depth, 1);
    bl_mtp_status_expect(&p, &other, &st);
    assert_false(st.active);
    assert_int_equal(st.reason, BL_MTP_ASSISTANT_TARGET_INCOMPATIBLE);
}

/* What the engine itself says: of headers of the real checkpoint, whose head the loader accepts, and of a
 * model without one. */
static void test_real_words(void **state) {
    (void)state;
    bl_engine_options o;
    bl_model_info info;
    bl_engine_options_init(&o);
    o.model_path = WITH_HEAD;
    assert_int_equal(bl_model_inspect(&o, &info, NULL), BL_OK);
    assert_string_equal(info.draft, "embedded");
    o.model_path = FIXTURE("llama-tiny");
    assert_int_equal(bl_model_inspect(&o, &info, NULL), BL_OK);
    assert_string_equal(info.draft, "none");
}

static void test_posture(void **state) {
    (void)state;
    static const struct {
        bool enabled, active;
        const char *reason, *want;
    } rows[] = {
        {false, false, "config_disabled", "disabled"},
        {false, false, "kill_switch_disabled", "disabled"},
        {true, true, "", "enabled, active"},
        {true, false, "kill_switch_disabled", "enabled but inactive (kill_switch_disabled)"},
        {true, false, "inert_kv_unsupported", "enabled but INERT (inert_kv_unsupported)"},
    };
    char line[BL_MTP_LINE_BYTES];
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_mtp_posture(rows[i].enabled, rows[i].active, rows[i].reason, line);
        assert_string_equal(line, rows[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),    cmocka_unit_test(test_outcomes),   cmocka_unit_test(test_plan_rules),
        cmocka_unit_test(test_expected), cmocka_unit_test(test_real_words), cmocka_unit_test(test_posture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
