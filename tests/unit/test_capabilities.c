/* What a build needs of a machine (provider/capabilities.h, spec provider-contracts.md 6.9). */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "provider/capabilities.h"
#include "scratch_folder.h"

#define RULED     "EigenLabs/Qwen3.8-27B-4bit"
#define RULED_MTP "EigenLabs/Qwen3.8-27B-4bit-mtp"
#define GIB       ((uint64_t)1 << 30)

static const bl_machine full = {.cpu = "avx2+avx512", .cuda_sm = 90, .memory_bytes = 24 * GIB};
static const bl_machine bare = {0};

static void test_machine_has(void **state) {
    (void)state;
    static const struct {
        const char *capability;
        bool full, bare;
    } rows[] = {
        {"cpu:avx2", true, false},        {"cpu:avx512", true, false},
        {"cpu:avx512vnni", false, false}, /* no beginning of a feature's name is one */
        {"cpu:avx", false, false},        {"cpu:avx2+avx512", false, false},
        {"cpu:", false, false},           {"cpu:AVX2", false, false},
        {"CPU:avx2", false, false},       {" cpu:avx2", false, false},
        {"cpu:avx2 ", false, false},      {"avx2", false, false},
        {"cuda:sm_90", true, false},      {"cuda:sm_80", true, false},
        {"cuda:sm_100", false, false},    {"cuda:sm_0", false, false},
        {"cuda:sm_", false, false},       {"cuda:sm_9a", false, false},
        {"cuda:sm_-1", false, false},     {"cuda:", false, false},
        {"mem:24GiB", true, false},       {"mem:1GiB", true, false},
        {"mem:25GiB", false, false},      {"mem:024GiB", false, false},
        {"mem:0GiB", false, false},       {"mem:24GB", false, false},
        {"mem:24", false, false},         {"mem:GiB", false, false},
        {"mem:24GiB ", false, false},     {"mem:4294967297GiB", false, false}, /* 1 in 32 bits */
        {"apple_m5", false, false},       {"mlx_nax", false, false},
        {"anything", false, false},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        if (bl_machine_has(&full, rows[i].capability) != rows[i].full ||
            bl_machine_has(&bare, rows[i].capability) != rows[i].bare) {
            fail_msg("'%s'", rows[i].capability);
        }
    }
    bl_machine commas = {.cpu = "avx2,avx512"};
    assert_true(bl_machine_has(&commas, "cpu:avx2") && bl_machine_has(&commas, "cpu:avx512"));
}

static void test_rules_by_id(void **state) {
    (void)state;
    static const struct {
        const char *id;
        bool ruled;
    } rows[] = {
        {RULED, true},
        {RULED_MTP, true},
        {"eigenlabs/Qwen3.8-27B-4bit", false},
        {"EigenLabs/qwen3.8-27b-4bit", false},
        {"EigenLabs/Qwen3.8-27B-4bit-mtp2", false},
        {"EigenLabs/Qwen3.8-27B-4bi", false},
        {"EigenLabs/Qwen3.8-27B", false},
        {"Qwen3.8-27B-4bit", false},
        {" " RULED, false},
        {"", false},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_capabilities c = {0};
        bl_capabilities_add_rules(&c, rows[i].id);
        if ((c.n > 0) != rows[i].ruled) {
            fail_msg("'%s': %u capabilities", rows[i].id, c.n);
        }
    }
    bl_capabilities c = {0};
    bl_capabilities_add_rules(&c, RULED);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.names[0], "cpu:avx2");
    assert_string_equal(c.names[1], "mem:18GiB");
}

static void test_rules_by_path(void **state) {
    (void)state;
    static const struct {
        const char *path;
        bool ruled;
    } rows[] = {
        {"EigenLabs/Qwen3.8-27B-4bit", true},
        {"/m/EigenLabs/Qwen3.8-27B-4bit-mtp", true},
        {"/m/EigenLabs/Qwen3.8-27B-4bit/", true},
        {"/m/EigenLabs//Qwen3.8-27B-4bit/./", true},
        {"/m/EigenLabs/Qwen3.8-27B-4bit/q4.gguf", true},
        {"/m/EigenLabs--Qwen3.8-27B-4bit", true},
        {"EigenLabs--Qwen3.8-27B-4bit", true},
        {"EigenLabs--Qwen3.8-27B-4bit/q4.gguf", true},
        {"/hub/models--EigenLabs--Qwen3.8-27B-4bit/snapshots/0123", true},
        {"/hub/models--EigenLabs--Qwen3.8-27B-4bit/snapshots/0123/q4.gguf", true},
        {"/hub/models--EigenLabs--Qwen3.8-27B-4bit", true},
        {"/m/eigenlabs--Qwen3.8-27B-4bit", false},
        {"/m/EigenLabs/Qwen3.8-27B-4bit/other", false}, /* a model in that folder is another */
        {"/m/EigenLabs--Qwen3.8-27B-4bit--mtp", false},
        {"/m/Qwen3.8-27B-4bit", false},
        {"Qwen3.8-27B-4bit", false},
        {"/snapshots/x", false},
        {"models--", false},
        {"--", false},
        {"/", false},
        {".", false},
        {"", false},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_capabilities c = {0};
        bl_capabilities_add_path(&c, rows[i].path);
        if ((c.n > 0) != rows[i].ruled) {
            fail_msg("'%s': %u capabilities", rows[i].path, c.n);
        }
    }
    char huge[3000];
    memset(huge, 'x', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    bl_capabilities c = {0};
    bl_capabilities_add_path(&c, huge);
    assert_int_equal(c.n, 0);
}

/* A link under another name is the same model. */
static void test_links_are_followed(void **state) {
    (void)state;
    make_dir("EigenLabs--Qwen3.8-27B-4bit");
    write_text("EigenLabs--Qwen3.8-27B-4bit/config.json", "{}");
    assert_int_equal(symlink("EigenLabs--Qwen3.8-27B-4bit", at("mine")), 0);
    bl_capabilities c = {0};
    bl_capabilities_add_path(&c, at("mine"));
    assert_int_equal(c.n, 2);
    c = (bl_capabilities){0};
    bl_capabilities_add_path(&c, at("missing"));
    assert_int_equal(c.n, 0);
}

static void test_config(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint32_t n, n_unreadable;
    } rows[] = {
        {"{}", 0, 0},
        {"{\"darkbloom_requires\": []}", 0, 0},
        {"{\"darkbloom_requires\": [\"cpu:avx2\"]}", 1, 0},
        {"{\"darkbloom_requires\": [\"cpu:avx2\", \"cpu:avx2\", \"mlx_nax\"]}", 2, 0},
        {"{\"_name_or_path\": \"" RULED "\"}", 2, 0},
        {"{\"_name_or_path\": \"" RULED "\", \"darkbloom_requires\": [\"cpu:avx2\", \"x\"]}", 3, 0},
        {"{\"_name_or_path\": \"eigenlabs/qwen3.8-27b-4bit\"}", 0, 0},
        {"{\"_name_or_path\": 7}", 0, 0},
        /* What cannot be read cannot be met. */
        {"{\"darkbloom_requires\": \"cpu:avx2\"}", 0, 1},
        {"{\"darkbloom_requires\": null}", 0, 1},
        {"{\"darkbloom_requires\": {}}", 0, 1},
        {"{\"darkbloom_requires\": [\"\"]}", 0, 1},
        {"{\"darkbloom_requires\": [1, null, \"cpu:avx2\"]}", 1, 2},
        {"{\"darkbloom_requires\": [\"cpu:avx2\\u0000x\"]}", 0, 1},
        {"{\"darkbloom_requires\": [\"0123456789012345678901234567890123456789012345678901234567890123\"]}",
         0, 1},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        json_t *j = json_loads(rows[i].json, JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        bl_capabilities c = {0};
        bl_capabilities_add_config(&c, j);
        if (c.n != rows[i].n || c.n_unreadable != rows[i].n_unreadable) {
            fail_msg("%s: %u and %u", rows[i].json, c.n, c.n_unreadable);
        }
        bool met = bl_capabilities_check(&c, &full, "m", NULL) == BL_OK;
        assert_true(!met || rows[i].n_unreadable == 0);
        json_decref(j);
    }
    bl_capabilities c = {0};
    bl_capabilities_add_config(&c, NULL);
    assert_int_equal(c.n + c.n_unreadable, 0);
}

static void test_check(void **state) {
    (void)state;
    static const struct {
        const char *list[4];
        const char *id;
        const bl_machine *machine;
        const char *missing; /* NULL: eligible */
    } rows[] = {
        {{NULL}, "some/model", &bare, NULL},
        {{NULL}, RULED, &full, NULL},
        {{NULL}, RULED_MTP, &full, NULL},
        {{NULL}, RULED, &bare, "cpu:avx2, mem:18GiB"},
        {{"cuda:sm_90"}, RULED, &bare, "cuda:sm_90, cpu:avx2, mem:18GiB"},
        {{"cuda:sm_90", "cpu:avx2"}, RULED, &full, NULL},
        {{"apple_m5", "mlx_nax"}, RULED, &full, "apple_m5, mlx_nax"}, /* of a catalog: as it is, so missing */
        {{"apple_m5"}, "some/model", &full, "apple_m5"},
        {{"cpu:avx2", "cpu:avx9"}, "some/model", &full, "cpu:avx9"},
        {{"a\nb\tc"}, "some/model", &full, "a?b?c"},
        {{""}, "some/model", &full, "1 unreadable"},
        {{"", "apple_m5"}, "some/model", &full, "apple_m5 and 1 more"},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_capabilities c = {0};
        for (size_t k = 0; k < 4 && rows[i].list[k] != NULL; k++) {
            bl_capabilities_add(&c, rows[i].list[k]);
        }
        bl_capabilities_add_rules(&c, rows[i].id);
        bl_err err = {0};
        bl_code rc = bl_capabilities_check(&c, rows[i].machine, "tiny", &err);
        if (rows[i].missing == NULL) {
            assert_int_equal(rc, BL_OK);
            continue;
        }
        char want[256];
        snprintf(want, sizeof(want), "model 'tiny' needs what this machine lacks: %s", rows[i].missing);
        assert_int_equal(rc, BL_ENOTSUP);
        assert_string_equal(err.msg, want);
    }
}

static void test_limits(void **state) {
    (void)state;
    bl_capabilities c = {0};
    char name[BL_CAPABILITY_BYTES], text[BL_CAPABILITIES_TEXT];
    for (uint32_t i = 0; i < BL_CAPABILITIES_MAX + 3; i++) {
        snprintf(name, sizeof(name), "a capability with a rather long name, number %u", i);
        bl_capabilities_add(&c, name);
        bl_capabilities_add(&c, name);
    }
    /* Each of the three that were too many was turned away twice. */
    assert_int_equal(c.n, BL_CAPABILITIES_MAX);
    assert_int_equal(c.n_unreadable, 6);
    assert_string_equal(
        bl_capabilities_text(&c, text),
        "a capability with a rather long name, number 0, a capability with a rather long name, "
        "number 1 and 36 more");
    bl_err err;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(bl_capabilities_check(&c, &full, name, &err), BL_ENOTSUP);
    assert_true(strlen(err.msg) < 255); /* nothing was cut off */
    assert_non_null(strstr(err.msg, "36 more"));
    assert_int_equal(bl_capabilities_pass_on(&c, json_null(), &err), BL_ENOTSUP);
}

/* A build made from another asks for all that both ask for; made again, for nothing new. */
static void test_pass_on(void **state) {
    (void)state;
    json_t *config = json_loads("{\"darkbloom_requires\": [\"cpu:avx512\"], \"hidden_size\": 1}", 0, NULL);
    bl_capabilities c = {0};
    assert_int_equal(bl_capabilities_pass_on(&c, config, NULL), BL_OK);
    bl_capabilities_add_rules(&c, RULED);
    for (uint32_t round = 0; round < 2; round++) {
        assert_int_equal(bl_capabilities_pass_on(&c, config, NULL), BL_OK);
        bl_capabilities of = {0};
        bl_capabilities_add_config(&of, config);
        assert_int_equal(of.n, 3);
        assert_string_equal(of.names[0], "cpu:avx512");
        assert_string_equal(of.names[1], "cpu:avx2");
        assert_string_equal(of.names[2], "mem:18GiB");
    }
    json_decref(config);
    config = json_object();
    c = (bl_capabilities){0};
    assert_int_equal(bl_capabilities_pass_on(&c, config, NULL), BL_OK);
    assert_int_equal(json_object_size(config), 0); /* nothing is needed: nothing is written */
    json_decref(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine_has),
        cmocka_unit_test(test_rules_by_id),
        cmocka_unit_test(test_rules_by_path),
        cmocka_unit_test_setup_teardown(test_links_are_followed, make_root, remove_root),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_pass_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
