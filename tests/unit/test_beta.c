/* Beta features: found by name, read from the configuration, pinned in the file and left alone where they
 * are. */
#include "cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "provider/beta.h"
#include "scratch_folder.h"

static const bl_beta_feature *feature(const char *id) {
    const bl_beta_feature *f = NULL;
    assert_int_equal(bl_beta_find(id, &f, NULL), BL_OK);
    return f;
}

static void test_registry(void **state) {
    (void)state;
    size_t n = 0;
    const bl_beta_feature *all = bl_beta_features(&n);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        const bl_config_key *k = bl_config_key_of(all[i].key);
        assert_ptr_equal(feature(all[i].id), &all[i]);
        assert_int_equal(k->kind, all[i].has_auto ? BL_CONFIG_CHOICE : BL_CONFIG_BOOL);
    }
    assert_ptr_equal(feature("MTP"), feature("mtp"));
    assert_ptr_equal(feature("Gemma-Weighted-R1"), feature("gemma-weighted-r1"));
    bl_err err = {0};
    const bl_beta_feature *f = NULL;
    assert_int_equal(bl_beta_find("kv-quant", &f, &err), BL_ENOTFOUND);
    assert_string_equal(err.msg,
                        "no beta feature 'kv-quant', allowed: gemma-prefill-layer18, gemma-weighted-r1, mtp");
}

static void test_requested(void **state) {
    (void)state;
    static const struct {
        const char *text, *id;
        bl_beta_state want;
        bool pinned_on, pinned_off;
    } cases[] = {
        {"", "mtp", BL_BETA_AUTO, false, false},
        {"backend.mtp_mode = 'auto'", "mtp", BL_BETA_AUTO, false, false},
        {"backend.mtp_mode = 'on'", "mtp", BL_BETA_ON, true, false},
        {"backend.mtp_mode = 'off'", "mtp", BL_BETA_OFF, false, true},
        {"backend.mtp = true", "mtp", BL_BETA_ON, false, false}, /* an earlier version's key pins nothing */
        {"", "gemma-weighted-r1", BL_BETA_ON, false, false},
        {"gemma_optimizations = {}", "gemma-weighted-r1", BL_BETA_ON, false, false},
        {"# weighted_r1 = false", "gemma-weighted-r1", BL_BETA_ON, false, false},
        {"gemma_optimizations.weighted_r1 = true", "gemma-weighted-r1", BL_BETA_ON, true, false},
        {"gemma_optimizations.weighted_r1 = false", "gemma-weighted-r1", BL_BETA_OFF, false, true},
        {"weighted_r1 = false", "gemma-weighted-r1", BL_BETA_ON, false, false},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_config *c = NULL;
        const bl_beta_feature *f = feature(cases[i].id);
        assert_int_equal(bl_config_parse("p", cases[i].text, strlen(cases[i].text), true, &c, NULL), BL_OK);
        assert_int_equal(bl_beta_requested(f, c), cases[i].want);
        assert_int_equal(bl_beta_is_pinned(f, c, true), cases[i].pinned_on);
        assert_int_equal(bl_beta_is_pinned(f, c, false), cases[i].pinned_off);
        bl_config_free(c);
    }
}

static void test_set(void **state) {
    (void)state;
    static const struct {
        const char *before, *id;
        bool on;
        const char *after; /* NULL: not touched */
    } cases[] = {
        /* a default is written down */
        {"", "gemma-weighted-r1", true, "config_version = 3\n\n[gemma_optimizations]\nweighted_r1 = true\n"},
        {"config_version = 3\n[gemma_optimizations]\n", "gemma-weighted-r1", true,
         "config_version = 3\n[gemma_optimizations]\nweighted_r1 = true\n"},
        {"config_version = 3\n[gemma_optimizations]\nweighted_r1 = true # c\n", "gemma-weighted-r1", true,
         NULL},
        {"config_version = 3\n[gemma_optimizations]\nweighted_r1 = true # c\n", "gemma-weighted-r1", false,
         "config_version = 3\n[gemma_optimizations]\nweighted_r1 = false # c\n"},
        {"gemma_optimizations = { prefill_layer18 = false }\n", "gemma-prefill-layer18", false, NULL},
        /* auto is neither */
        {"config_version = 3\n[backend]\nmtp_mode = 'auto'\n", "mtp", true,
         "config_version = 3\n[backend]\nmtp_mode = \"on\"\n"},
        {"config_version = 3\n[backend]\nmtp_mode = 'auto'\n", "mtp", false,
         "config_version = 3\n[backend]\nmtp_mode = \"off\"\n"},
        {"config_version = 3\n[backend]\nmtp_mode = 'on'\n", "mtp", true, NULL},
        {"config_version = 3\n[backend]\nmtp_mode = 'off'\n", "mtp", false, NULL},
        /* an earlier version's key becomes this one's */
        {"config_version = 2\n[backend]\nmtp = true\n", "mtp", true,
         "config_version = 3\n[backend]\nmtp_mode = \"on\"\n"},
        {"config_version = 2\n[backend]\nmtp = true\n", "mtp", false,
         "config_version = 3\n[backend]\nmtp_mode = \"off\"\n"},
        /* a newer file keeps its version */
        {"config_version = 9\n", "mtp", false, "config_version = 9\n\n[backend]\nmtp_mode = \"off\"\n"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        struct stat before, after;
        write_text("p.toml", cases[i].before);
        assert_int_equal(stat(at("p.toml"), &before), 0);
        for (unsigned again = 0; again < 2; again++) {
            bool written = false;
            bl_buf b;
            assert_int_equal(bl_beta_set(at("p.toml"), feature(cases[i].id), cases[i].on, &written, NULL),
                             BL_OK);
            assert_int_equal(written, cases[i].after && !again);
            assert_int_equal(bl_file_read(at("p.toml"), 1 << 20, &b, NULL), BL_OK);
            assert_string_equal(bl_buf_str(&b), cases[i].after ? cases[i].after : cases[i].before);
            bl_buf_done(&b);
        }
        assert_int_equal(stat(at("p.toml"), &after), 0);
        assert_int_equal(before.st_ino == after.st_ino, cases[i].after == NULL);
    }
    bool written = false;
    bl_err err = {0};
    write_text("p.toml", "[gemma_optimizations]\nweighted_r1 = 0\n");
    assert_int_equal(bl_beta_set(at("p.toml"), feature("mtp"), true, &written, &err), BL_EFORMAT);
    assert_non_null(
        strstr(err.msg, "p.toml:2: gemma_optimizations.weighted_r1 is 0, allowed: true or false"));
}

/* Two at one time, over and over: both are there. */
static void test_two_writers(void **state) {
    (void)state;
    for (unsigned i = 0; i < 25; i++) {
        (void)unlink(at("p.toml"));
        pid_t child = fork();
        bool written = false;
        if (child == 0) {
            _exit(bl_beta_set(at("p.toml"), feature("mtp"), true, &written, NULL) == BL_OK && written ? 0
                                                                                                      : 1);
        }
        assert_int_equal(bl_beta_set(at("p.toml"), feature("gemma-weighted-r1"), false, &written, NULL),
                         BL_OK);
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        bl_config *c = NULL;
        assert_int_equal(bl_config_load(at("p.toml"), &c, NULL), BL_OK);
        assert_true(bl_beta_is_pinned(feature("mtp"), c, true));
        assert_true(bl_beta_is_pinned(feature("gemma-weighted-r1"), c, false));
        bl_config_free(c);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_registry), TEST(test_requested), TEST(test_set),
                                       TEST(test_two_writers)};
    return cmocka_run_group_tests_name("beta", tests, NULL, NULL);
}
