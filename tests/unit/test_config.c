/* provider.toml: what is refused and how, defaults, warnings, earlier versions, what is in force, and changes
 * that leave the rest of the file as it was. */
#include "cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "provider/config.h"
#include "scratch_folder.h"

static bl_config *parse(const char *text) {
    bl_config *c = NULL;
    bl_err err = {0};
    if (bl_config_parse("p.toml", text, strlen(text), true, &c, &err) != BL_OK) {
        fail_msg("refused: %s\n%s", err.msg, text);
    }
    return c;
}

static void assert_text(const char *file, const char *want) {
    bl_buf b;
    assert_int_equal(bl_file_read(at(file), 1 << 20, &b, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&b), want);
    bl_buf_done(&b);
}

static void assert_value(const bl_config *c, bl_config_id id, const char *want) {
    bl_buf b;
    bl_buf_init(&b, 65536);
    assert_int_equal(bl_config_write_value(c, id, &b, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&b), want);
    bl_buf_done(&b);
}

/* ---- strictness -----------------------------------------------------------------------------------------
 */

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *msg;
    } cases[] = {
        {"[gemma_optimizations]\nweighted_r1 = 0\n",
         "p.toml:2: gemma_optimizations.weighted_r1 is 0, allowed: true or false"},
        {"[gemma_optimizations]\nprefill_layer18 = \"false\"\n",
         "p.toml:2: gemma_optimizations.prefill_layer18 is \"false\", allowed: true or false"},
        {"[backend]\n\nmtp_mode = \"sometimes\"\n",
         "p.toml:3: backend.mtp_mode is \"sometimes\", allowed: \"auto\", \"on\" or \"off\""},
        {"[backend]\nmtp_mode = 'Off'\n",
         "p.toml:2: backend.mtp_mode is 'Off', allowed: \"auto\", \"on\" or \"off\""},
        {"backend.mtp_mode = ''", "p.toml:1: backend.mtp_mode is '', allowed: \"auto\", \"on\" or \"off\""},
        {"backend.mtp_mode = true",
         "p.toml:1: backend.mtp_mode is true, allowed: \"auto\", \"on\" or \"off\""},
        {"backend.mtp = 1", "p.toml:1: backend.mtp is 1, allowed: true or false"},
        {"backend.prefill_deadline_mode = 'never'",
         "p.toml:1: backend.prefill_deadline_mode is 'never', allowed: \"off\" or \"enforce\""},
        {"backend.port = 65536", "p.toml:1: backend.port is 65536, allowed: an integer from 0 to 65535"},
        {"backend.port = -1", "p.toml:1: backend.port is -1, allowed: an integer from 0 to 65535"},
        {"backend.port = 8100.0", "p.toml:1: backend.port is 8100.0, allowed: an integer from 0 to 65535"},
        {"backend.idle_timeout_mins = -5",
         "p.toml:1: backend.idle_timeout_mins is -5, allowed: an integer from 0"},
        {"backend.max_model_slots = 0",
         "p.toml:1: backend.max_model_slots is 0, allowed: an integer from 1 to 2147483647"},
        {"backend.enabled_models = 'one'",
         "p.toml:1: backend.enabled_models is 'one', allowed: an array of strings"},
        {"backend.enabled_models = [\n'one',\n2]",
         "p.toml:3: backend.enabled_models.element is 2, allowed: a string in quotes"},
        {"backend.engine_v2_kv_backend = 1",
         "p.toml:1: backend.engine_v2_kv_backend is 1, allowed: \"auto\", \"paged\" or \"contiguous\""},
        {"[backend.engine_v2_max_concurrent_by_model]\n\"a/b\" = 'x'",
         "p.toml:2: backend.engine_v2_max_concurrent_by_model.a/b is 'x', allowed: an integer from 0"},
        {"backend.engine_v2_kv_backend_by_model = []", "p.toml:1: backend.engine_v2_kv_backend_by_model is "
                                                       "an array, allowed: a table from models to values"},
        {"backend.model = \"a\\u0000b\"",
         "p.toml:1: backend.model is \"a\\u0000b\", allowed: a string in quotes, of at most 4096 bytes"},
        {"backend = 5", "p.toml:1: backend is 5, allowed: a table"},
        {"[[backend]]", "p.toml:1: backend is an array of tables, allowed: a table"},
        {"provider = []", "p.toml:1: provider is an array, allowed: a table"},
        {"schedule.windows = 1", "p.toml:1: schedule.windows is 1, allowed: an array of tables"},
        {"[[schedule.windows]]\nstart = 8", "p.toml:2: schedule.windows.start is 8, allowed: \"HH:MM\""},
        {"[[schedule.windows]]\ndays = 'mon'",
         "p.toml:2: schedule.windows.days is 'mon', allowed: an array of strings"},
        {"config_version = 'three'", "p.toml:1: config_version is 'three', allowed: an integer from 1"},
        {"config_version = 0", "p.toml:1: config_version is 0, allowed: an integer from 1"},
        {"[backend\nmtp_mode = 'off'", "p.toml:1:9: found the end of the line, allowed: ']'"},
        {"[backend]\nmtp_mode = off", "p.toml:2:12: key 'mtp_mode': found 'off', allowed: a value"},
        {"[backend]\nmtp_mode = 'on'\nmtp_mode = 'off'", "p.toml:3:1: key 'mtp_mode' is already there"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_config *c = NULL;
        bl_err err = {0};
        bl_code rc = bl_config_parse("p.toml", cases[i].text, strlen(cases[i].text), true, &c, &err);
        assert_int_equal(rc, BL_EFORMAT);
        assert_null(c);
        if (strncmp(err.msg, cases[i].msg, strlen(cases[i].msg)) != 0) {
            fail_msg("'%s' where '%s' is wanted", err.msg, cases[i].msg);
        }
    }
}

static void fails_to_load(const char *file, bl_code code, const char *part) {
    bl_config *c = NULL;
    bl_err err = {0};
    assert_int_equal(bl_config_open(at(file), &c, &err), code);
    assert_null(c);
    assert_non_null(strstr(err.msg, part));
    assert_non_null(strstr(err.msg, file));
}

static void test_only_a_missing_file_is_defaults(void **state) {
    (void)state;
    bl_config *c = NULL;
    bl_err err = {0};
    assert_int_equal(bl_config_load(at("none.toml"), &c, &err), BL_ENOTFOUND);
    assert_int_equal(bl_config_open(at("none.toml"), &c, &err), BL_OK);
    assert_false(bl_config_exists(c));
    assert_value(c, BL_CONFIG_WEIGHTED_R1, "true");
    bl_config_free(c);
    c = NULL;
    make_dir("folder.toml");
    fails_to_load("folder.toml", BL_EIO, "a folder");
    write_text("plain", "");
    fails_to_load("plain/x.toml", BL_EIO, "Not a directory");
    assert_int_equal(symlink("nowhere", at("link.toml")), 0);
    fails_to_load("link.toml", BL_EIO, "a symbolic link to nothing");
    assert_int_equal(symlink("loop.toml", at("loop.toml")), 0);
    fails_to_load("loop.toml", BL_EIO, "symbolic links");
    assert_int_equal(mkfifo(at("pipe.toml"), 0600), 0);
    fails_to_load("pipe.toml", BL_EIO, "not a file");
    write_text("wrong.toml", "[backend]\nport = 'x'\n");
    fails_to_load("wrong.toml", BL_EFORMAT, "wrong.toml:2: backend.port");
    if (geteuid() != 0) {
        write_text("closed.toml", "");
        assert_int_equal(chmod(at("closed.toml"), 0), 0);
        fails_to_load("closed.toml", BL_EIO, "Permission denied");
    }
    bl_buf big;
    bl_buf_init(&big, 4u << 20);
    while (big.len <= 1u << 20) {
        assert_int_equal(bl_buf_append_str(&big, "# many a comment in a large file\n", NULL), BL_OK);
    }
    write_bytes("big.toml", big.data, big.len);
    fails_to_load("big.toml", BL_ELIMIT, "1048576 allowed");
    bl_buf_done(&big);
}

/* ---- values ---------------------------------------------------------------------------------------------
 */

static void test_defaults(void **state) {
    (void)state;
    static const char *const texts[] = {"", "config_version = 3\n",
                                        "[backend]\n[gemma_optimizations]\n[other]\nx = 1\n"};
    for (size_t i = 0; i < BL_COUNTOF(texts); i++) {
        bl_config *c = parse(texts[i]);
        for (unsigned id = 1; id < BL_CONFIG__MAX; id++) {
            const bl_config_key *k = bl_config_key_of((bl_config_id)id);
            assert_value(c, (bl_config_id)id, k->def ? k->def : "");
            assert_false(bl_config_get(c, (bl_config_id)id)->in_file);
            assert_int_equal(bl_config_get(c, (bl_config_id)id)->has_value, k->def != NULL);
        }
        assert_int_equal(bl_config_get(c, BL_CONFIG_MAX_CONCURRENT)->u, 4);
        assert_string_equal(bl_config_get(c, BL_CONFIG_MTP_MODE)->text, "auto");
        bl_config_free(c);
    }
}

static const char whole[] = "# of the machine in the corner\n"
                            "config_version = 3\n"
                            "[provider]\n"
                            "name = 'corner' # its name\n"
                            "[backend]\n"
                            "port = 0x1fa4\n"
                            "enabled_models = ['a', \"b\"]\n"
                            "engine_v2_max_concurrent = 1_6\n"
                            "engine_v2_kv_backend = ' PAGED '\n"
                            "mtp_mode = 'on'\n"
                            "mtp_drafter_path = '~/heads/one'\n"
                            "unknown_key = [1, { x = 2 }]\n"
                            "[backend.engine_v2_max_concurrent_by_model]\n"
                            "'org/name' = 2\n"
                            "[backend.engine_v2_kv_backend_by_model]\n"
                            "'org/name' = 'Contiguous'\n"
                            "[gemma_optimizations]\n"
                            "weighted_r1 = false\n"
                            "[[schedule.windows]]\n"
                            "days = ['mon']\n"
                            "start = '22:00'\n"
                            "end = '06:00'\n"
                            "[elsewhere]\n"
                            "x = 1\n";

static void test_values(void **state) {
    (void)state;
    bl_config *c = parse(whole);
    uint64_t n = 0;
    uint32_t word = 9;
    assert_value(c, BL_CONFIG_NAME, "\"corner\"");
    assert_int_equal(bl_config_get(c, BL_CONFIG_PORT)->u, 8100);
    assert_value(c, BL_CONFIG_ENABLED_MODELS, "[\"a\", \"b\"]");
    assert_int_equal(bl_config_get(c, BL_CONFIG_MAX_CONCURRENT)->u, 16);
    assert_value(c, BL_CONFIG_KV_BACKEND, "\"paged\"");
    assert_int_equal(bl_config_get(c, BL_CONFIG_MTP_MODE)->u, 1);
    assert_string_equal(bl_config_get(c, BL_CONFIG_MTP_DRAFTER_PATH)->text, "~/heads/one");
    assert_true(bl_config_map_u64(c, BL_CONFIG_MAX_CONCURRENT_BY_MODEL, "org/name", &n));
    assert_int_equal(n, 2);
    assert_false(bl_config_map_u64(c, BL_CONFIG_MAX_CONCURRENT_BY_MODEL, "other", &n));
    assert_true(bl_config_map_word(c, BL_CONFIG_KV_BACKEND_BY_MODEL, "org/name", &word));
    assert_int_equal(word, 2);
    assert_value(c, BL_CONFIG_MAX_CONCURRENT_BY_MODEL, "{ \"org/name\" = 2 }");
    assert_false(bl_config_get(c, BL_CONFIG_WEIGHTED_R1)->b);
    assert_int_equal(bl_config_get(c, BL_CONFIG_WEIGHTED_R1)->line, 18);
    assert_value(c, BL_CONFIG_SCHEDULE_WINDOWS, "[{ days = [\"mon\"], start = \"22:00\", end = \"06:00\" }]");
    assert_int_equal(bl_config_n_warnings(c), 2);
    assert_string_equal(bl_config_warning(c, 0), "p.toml:12: unknown key 'backend.unknown_key' is ignored");
    assert_string_equal(bl_config_warning(c, 1), "p.toml:23: unknown section 'elsewhere' is ignored");
    bl_config_free(c);
}

static void test_warnings(void **state) {
    (void)state;
    static const struct {
        const char *text, *warning;
    } cases[] = {
        {"[backend]\nmtp_mod = 'off'",
         "p.toml:2: unknown key 'backend.mtp_mod' is ignored, did you mean 'mtp_mode'?"},
        {"[gemma_optimisations]\n",
         "p.toml:1: unknown section 'gemma_optimisations' is ignored, did you mean 'gemma_optimizations'?"},
        {"mtp_mode = 'off'", "p.toml:1: unknown key 'mtp_mode' is ignored"},
        {"backend.kv_quant = [{}]", "p.toml:1: 'backend.kv_quant' has no effect any more, the line can go"},
        {"backend.engine_v2.x = 1", "p.toml:1: 'backend.engine_v2' has no effect any more, the line can go"},
        {"backend.engine_v2_kv_backend = 'page'",
         "p.toml:1: backend.engine_v2_kv_backend is \"page\", which no KV storage is called: auto is taken"},
        {"backend.engine_v2_max_concurrent = 99",
         "p.toml:1: backend.engine_v2_max_concurrent is 99, taken as 64"},
        {"backend.mtp_drafter_path = 'x'",
         "p.toml:1: backend.mtp_drafter_path has no effect without mtp_mode = \"on\""},
        {"backend.mtp_mode = 'on'\nbackend.mtp = false",
         "p.toml:2: 'backend.mtp' has no effect beside mtp_mode, the line can go"},
        {"config_version = 4", "p.toml:1: config_version is 4, this program knows 3: newer keys are ignored"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_config *c = parse(cases[i].text);
        assert_int_equal(bl_config_n_warnings(c), 1);
        assert_string_equal(bl_config_warning(c, 0), cases[i].warning);
        bl_config_free(c);
    }
    bl_buf many;
    bl_buf_init(&many, 65536);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(bl_buf_printf(&many, NULL, "k%d = 1\n", i), BL_OK);
    }
    bl_config *c = parse(bl_buf_str(&many));
    assert_int_equal(bl_config_n_warnings(c), BL_CONFIG_MAX_WARNINGS);
    bl_config_free(c);
    bl_buf_done(&many);
}

/* ---- earlier versions -----------------------------------------------------------------------------------
 */

static void test_migration(void **state) {
    (void)state;
    static const struct {
        const char *text, *mode;
        uint64_t concurrent;
        const char *after; /* on disk; NULL: as it was */
    } cases[] = {
        /* the stamp */
        {"", "auto", 4, "config_version = 3\n"},
        {"# c\n[backend]\r\n", "auto", 4, "config_version = 3\n# c\n[backend]\r\n"},
        {"# c\r\n", "auto", 4, "config_version = 3\r\n# c\r\n"},
        {"# config_version = 3\n", "auto", 4, "config_version = 3\n# config_version = 3\n"},
        {"x = 1\nconfig_version =  1 # c\n", "auto", 4, "x = 1\nconfig_version =  3 # c\n"},
        {"config_version = 3\n", "auto", 4, NULL},
        {"config_version = 9\n[backend]\nengine_v2_max_concurrent = 8\nmtp = false\n", "off", 8, NULL},
        /* 1 to 2: the generated 8 */
        {"config_version = 1\n[backend]\nengine_v2_max_concurrent = 8 # c\n", "auto", 4,
         "config_version = 3\n[backend]\nengine_v2_max_concurrent = 4 # c\n"},
        {"config_version = 1\nbackend.engine_v2_max_concurrent = +0_0", "auto", 4, NULL}, /* see below */
        {"config_version = 1\nbackend.engine_v2_max_concurrent = 0b1000", "auto", 4,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 4"},
        {"config_version = 1\nbackend.engine_v2_max_concurrent = 0o10", "auto", 4,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 4"},
        {"config_version = 1\nbackend.engine_v2_max_concurrent = +8", "auto", 4,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 4"},
        {"config_version = 1\nbackend.engine_v2_max_concurrent = 7", "auto", 7,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 7"},
        {"config_version = 1\n[backend]\nengine_v2_kv_backend = 'paged'\nengine_v2_max_concurrent = 8",
         "auto", 8,
         "config_version = 3\n[backend]\nengine_v2_kv_backend = 'paged'\nengine_v2_max_concurrent = 8"},
        {"config_version = 1\n[backend]\nengine_v2_kv_backend = 'auto'\nengine_v2_max_concurrent = 8", "auto",
         4, "config_version = 3\n[backend]\nengine_v2_kv_backend = 'auto'\nengine_v2_max_concurrent = 4"},
        {"config_version = 2\nbackend.engine_v2_max_concurrent = 8", "auto", 8,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 8"},
        {"backend.engine_v2_max_concurrent = 8", "auto", 8,
         "config_version = 3\nbackend.engine_v2_max_concurrent = 8"},
        /* 2 to 3: three modes */
        {"config_version = 2\n[backend]\nmtp = true # c\n", "on", 4,
         "config_version = 3\n[backend]\nmtp_mode = \"on\" # c\n"},
        {"config_version = 2\n[backend]\n'mtp'=false\n", "auto", 4,
         "config_version = 3\n[backend]\nmtp_mode=\"auto\"\n"},
        {"[backend]\nmtp = false\n", "auto", 4, "config_version = 3\n[backend]\nmtp_mode = \"auto\"\n"},
        {"backend = {mtp = true, port = 1}\n", "on", 4,
         "config_version = 3\nbackend = {mtp_mode = \"on\", port = 1}\n"},
        {"config_version = 3\n[backend]\nmtp = false\n", "off", 4, NULL},
        {"config_version = 3\n[backend]\nmtp = true\n", "on", 4, NULL},
        {"config_version = 2\n[backend]\nmtp_mode = 'off'\nmtp = true\n", "off", 4,
         "config_version = 3\n[backend]\nmtp_mode = 'off'\nmtp = true\n"},
        /* both, the stamp last */
        {"[other]\nx = 1\n[backend]\nengine_v2_max_concurrent = 8\nmtp = true\n", "on", 8,
         "config_version = 3\n[other]\nx = 1\n[backend]\nengine_v2_max_concurrent = 8\nmtp_mode = \"on\"\n"},
        {"config_version = 1\n[backend]\nmtp = true\nengine_v2_max_concurrent = 8\n", "on", 4,
         "config_version = 3\n[backend]\nmtp_mode = \"on\"\nengine_v2_max_concurrent = 4\n"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        if (strstr(cases[i].text, "+0_0")) {
            bl_config *none = NULL; /* no TOML integer at all */
            assert_int_equal(bl_config_parse("p", cases[i].text, strlen(cases[i].text), true, &none, NULL),
                             BL_EFORMAT);
            continue;
        }
        bool written = false;
        bl_config *c = parse(cases[i].text);
        assert_string_equal(bl_config_get(c, BL_CONFIG_MTP_MODE)->text, cases[i].mode);
        assert_int_equal(bl_config_get(c, BL_CONFIG_MAX_CONCURRENT)->u, cases[i].concurrent);
        assert_int_equal(bl_config_get(c, BL_CONFIG_CONFIG_VERSION)->u, 3);
        bl_config_free(c);
        write_text("m.toml", cases[i].text);
        for (unsigned again = 0; again < 2; again++) {
            bl_config_edit *e = NULL;
            assert_int_equal(bl_config_edit_begin(at("m.toml"), &e, NULL), BL_OK);
            assert_int_equal(bl_config_edit_migrate(e, NULL), BL_OK);
            assert_int_equal(bl_config_edit_commit(e, &written, NULL), BL_OK);
            bl_config_edit_end(e);
            assert_int_equal(written, !again && cases[i].after);
            assert_text("m.toml", cases[i].after ? cases[i].after : cases[i].text);
        }
        assert_int_equal(bl_config_open(at("m.toml"), &c, NULL), BL_OK);
        assert_string_equal(bl_config_get(c, BL_CONFIG_MTP_MODE)->text, cases[i].mode);
        assert_int_equal(bl_config_get(c, BL_CONFIG_MAX_CONCURRENT)->u, cases[i].concurrent);
        bl_config_free(c);
    }
}

/* ---- in force -------------------------------------------------------------------------------------------
 */

static void test_effective(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bl_config_id id;
        const char *env, *want;
        bl_config_origin origin;
    } cases[] = {
        {"", BL_CONFIG_MTP_MODE, NULL, "\"auto\"", BL_CONFIG_FROM_DEFAULT},
        {"backend.mtp_mode = 'on'", BL_CONFIG_MTP_MODE, "", "\"on\"", BL_CONFIG_FROM_FILE},
        {"backend.mtp_mode = 'on'", BL_CONFIG_MTP_MODE, " OFF ", "\"off\"", BL_CONFIG_FROM_ENV},
        {"backend.mtp_mode = 'off'", BL_CONFIG_MTP_MODE, "1", "\"off\"", BL_CONFIG_FROM_FILE},
        {"backend.engine_v2_kv_backend = 'paged'", BL_CONFIG_KV_BACKEND, "0", "\"contiguous\"",
         BL_CONFIG_FROM_ENV},
        {"", BL_CONFIG_KV_BACKEND, "true", "\"auto\"", BL_CONFIG_FROM_DEFAULT},
        {"provider.memory_reserve_gb = 2", BL_CONFIG_MEMORY_RESERVE_GB, "7", "7", BL_CONFIG_FROM_ENV},
        {"provider.auto_update = true", BL_CONFIG_AUTO_UPDATE, "0", "false", BL_CONFIG_FROM_ENV},
        {"", BL_CONFIG_PREFILL_DEADLINE_MODE, NULL, "", BL_CONFIG_FROM_DEFAULT},
        {"", BL_CONFIG_PREFILL_DEADLINE_MODE, "enforce", "\"enforce\"", BL_CONFIG_FROM_ENV},
        {"backend.prefill_deadline_mode = 'off'", BL_CONFIG_PREFILL_DEADLINE_MODE, "enforce", "\"off\"",
         BL_CONFIG_FROM_FILE},
        {"backend.model = 'a'", BL_CONFIG_MODEL, "b", "\"b\"", BL_CONFIG_FROM_ENV},
        {"gemma_optimizations.weighted_r1 = false", BL_CONFIG_WEIGHTED_R1, "1", "false", BL_CONFIG_FROM_FILE},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_config *c = parse(cases[i].text);
        bl_buf b;
        bl_config_origin origin = BL_CONFIG_FROM_DEFAULT;
        bl_buf_init(&b, 4096);
        assert_int_equal(bl_config_effective(c, cases[i].id, cases[i].env, &b, &origin, NULL), BL_OK);
        assert_string_equal(bl_buf_str(&b), cases[i].want);
        assert_int_equal(origin, cases[i].origin);
        bl_buf_done(&b);
        bl_config_free(c);
    }
    bl_config *c = parse("");
    bl_buf b;
    bl_err err = {0};
    bl_config_origin origin;
    bl_buf_init(&b, 4096);
    assert_int_equal(bl_config_effective(c, BL_CONFIG_MEMORY_RESERVE_GB, "much", &b, &origin, &err),
                     BL_EINVAL);
    assert_string_equal(err.msg,
                        "DARKBLOOM_MLX_MEMORY_RESERVE_GB is 'much', allowed: an integer from 0 to 1048576");
    bl_buf_done(&b);
    bl_config_free(c);
}

static void test_names(void **state) {
    (void)state;
    bl_config_id id = BL_CONFIG__MAX;
    const char *entry = NULL;
    bl_err err = {0};
    for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
        char name[96];
        assert_int_equal(bl_config_find(bl_config_key_name((bl_config_id)i, name), &id, &entry, &err), BL_OK);
        assert_int_equal(id, i);
        assert_null(entry);
    }
    assert_int_equal(bl_config_find("mtp_mode", &id, &entry, &err), BL_OK);
    assert_int_equal(id, BL_CONFIG_MTP_MODE);
    assert_int_equal(bl_config_find("backend.engine_v2_max_concurrent_by_model.org/a.b", &id, &entry, &err),
                     BL_OK);
    assert_int_equal(id, BL_CONFIG_MAX_CONCURRENT_BY_MODEL);
    assert_string_equal(entry, "org/a.b");
    assert_int_equal(bl_config_find("backend.mtp_mode.x", &id, &entry, &err), BL_ENOTFOUND);
    assert_int_equal(bl_config_find("backend.mtpmode", &id, &entry, &err), BL_ENOTFOUND);
    assert_string_equal(err.msg, "no key 'backend.mtpmode', did you mean 'backend.mtp_mode'?");
    assert_int_equal(bl_config_find("", &id, &entry, &err), BL_ENOTFOUND);
}

static void test_path(void **state) {
    (void)state;
    char path[BL_CONFIG_MAX_PATH];
    assert_int_equal(bl_config_path("~/x.toml", "/c", "/h", path, NULL), BL_OK);
    assert_string_equal(path, "/h/x.toml");
    assert_int_equal(bl_config_path(NULL, "/c", "/h", path, NULL), BL_OK);
    assert_string_equal(path, "/c/darkbloom/provider.toml");
    assert_int_equal(bl_config_path("", "relative", "/h", path, NULL), BL_OK);
    assert_string_equal(path, "/h/.config/darkbloom/provider.toml");
    assert_int_equal(bl_config_path(NULL, NULL, "", path, NULL), BL_EINVAL);
    char longer[BL_CONFIG_MAX_PATH + 1];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(bl_config_path(longer, NULL, NULL, path, NULL), BL_ELIMIT);
}

/* ---- changes --------------------------------------------------------------------------------------------
 */

static bl_code set(const char *file, const char *name, const char *typed, bool *ret_written, bl_err *err) {
    bl_config_edit *e = NULL;
    bl_config_id id;
    const char *entry = NULL;
    bl_buf value;
    bl_buf_init(&value, 65536);
    bl_code rc = bl_config_find(name, &id, &entry, err);
    if (rc == BL_OK) {
        rc = bl_config_typed(id, entry != NULL, name, typed, &value, err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_begin(at(file), &e, err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_set(e, id, entry, bl_buf_str(&value), err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_commit(e, ret_written, err);
    }
    bl_config_edit_end(e);
    bl_buf_done(&value);
    return rc;
}

static ino_t inode(const char *file) {
    struct stat st;
    assert_int_equal(stat(at(file), &st), 0);
    return st.st_ino;
}

static void test_set(void **state) {
    (void)state;
    bool written = false;
    assert_int_equal(set("new/folder/p.toml", "weighted_r1", "true", &written, NULL), BL_OK);
    assert_true(written);
    const char *first = "config_version = 3\n\n[gemma_optimizations]\nweighted_r1 = true\n";
    assert_text("new/folder/p.toml", first);
    ino_t before = inode("new/folder/p.toml");
    assert_int_equal(set("new/folder/p.toml", "weighted_r1", "true", &written, NULL), BL_OK);
    assert_false(written);
    assert_text("new/folder/p.toml", first);
    assert_int_equal(inode("new/folder/p.toml"), before);
    assert_int_equal(set("new/folder/p.toml", "prefill_layer18", "false", &written, NULL), BL_OK);
    assert_true(inode("new/folder/p.toml") != before);
    assert_int_equal(set("new/folder/p.toml", "backend.enabled_models", "a, b/c", &written, NULL), BL_OK);
    assert_int_equal(
        set("new/folder/p.toml", "backend.engine_v2_max_concurrent_by_model.b/c", "2", &written, NULL),
        BL_OK);
    assert_int_equal(set("new/folder/p.toml", "backend.mtp_drafter_path", "/a \"b\"", &written, NULL), BL_OK);
    assert_text("new/folder/p.toml",
                "config_version = 3\n\n[gemma_optimizations]\nweighted_r1 = true\n"
                "prefill_layer18 = false\n\n[backend]\nenabled_models = [\"a\", \"b/c\"]\n"
                "mtp_drafter_path = \"/a \\\"b\\\"\"\n"
                "\n[backend.engine_v2_max_concurrent_by_model]\n\"b/c\" = 2\n");
}

/* One value changes; everything else of a file that a person wrote is there, byte for byte. */
static void test_set_keeps_the_rest(void **state) {
    (void)state;
    bool written = false;
    write_text("p.toml", whole);
    assert_int_equal(chmod(at("p.toml"), 0640), 0);
    assert_int_equal(set("p.toml", "provider.name", "other", &written, NULL), BL_OK);
    bl_buf b;
    assert_int_equal(bl_file_read(at("p.toml"), 1 << 20, &b, NULL), BL_OK);
    const char *value = strstr(whole, "'corner'");
    size_t head = (size_t)(value - whole);
    assert_memory_equal(b.data, whole, head);
    assert_memory_equal(b.data + head, "\"other\"", 7);
    assert_string_equal(b.data + head + 7, value + 8);
    bl_buf_done(&b);
    struct stat st;
    assert_int_equal(stat(at("p.toml"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void test_set_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *typed, *msg;
    } cases[] = {
        {"backend.mtp_mode", "sometimes",
         "backend.mtp_mode is 'sometimes', allowed: \"auto\", \"on\" or \"off\""},
        {"weighted_r1", "yes", "weighted_r1 is 'yes', allowed: true or false"},
        {"backend.port", "70000", "backend.port is '70000', allowed: an integer from 0 to 65535"},
        {"backend.port", "99999999999999999999", "backend.port is '99999999999999999999', allowed"},
        {"backend.engine_v2_kv_backend", "page", "backend.engine_v2_kv_backend is 'page', allowed"},
        {"backend.enabled_models", "a,,b", "backend.enabled_models is 'a,,b', allowed"},
        {"backend.engine_v2_max_concurrent_by_model", "2",
         "backend.engine_v2_max_concurrent_by_model is a table"},
        {"schedule.windows", "x", "schedule.windows is a table: edit the file"},
        {"backend.model", "\xff", "provider.toml:"}, /* no UTF-8 */
    };
    write_text("m/provider.toml", whole);
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bool written = false;
        bl_err err = {0};
        assert_int_not_equal(set("m/provider.toml", cases[i].name, cases[i].typed, &written, &err), BL_OK);
        assert_non_null(strstr(err.msg, cases[i].msg));
        assert_text("m/provider.toml", whole);
    }
    const char *wrong = "[backend]\nport = 'x'\n";
    bl_err err = {0};
    bool written = false;
    write_text("m/provider.toml", wrong);
    assert_int_equal(set("m/provider.toml", "weighted_r1", "true", &written, &err), BL_EFORMAT);
    assert_non_null(strstr(err.msg, "provider.toml:2: backend.port is 'x'"));
    assert_text("m/provider.toml", wrong);
}

static void test_links_stay_links(void **state) {
    (void)state;
    bool written = false;
    make_dir("dotfiles");
    write_text("dotfiles/real.toml", "# mine\n");
    assert_int_equal(symlink("dotfiles/real.toml", at("p.toml")), 0);
    assert_int_equal(set("p.toml", "weighted_r1", "false", &written, NULL), BL_OK);
    assert_text("dotfiles/real.toml",
                "config_version = 3\n# mine\n\n[gemma_optimizations]\nweighted_r1 = false\n");
    struct stat st;
    assert_int_equal(lstat(at("p.toml"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_true(bl_file_exists(at("dotfiles/real.toml.lock")));
    assert_false(bl_file_exists(at("p.toml.lock")));
    assert_false(bl_file_exists(at("dotfiles/real.toml.tmp")));
}

/* A writer waits for whoever holds the lock, and then sees what that one wrote. */
static void test_lock(void **state) {
    (void)state;
    bl_config_edit *e = NULL;
    bool written = false;
    int go[2];
    char byte = 0;
    assert_int_equal(pipe(go), 0);
    pid_t child = fork(); /* before the lock is taken, or it would share it */
    if (child == 0) {
        _exit(read(go[0], &byte, 1) != 1                                       ? 2
              : set("p.toml", "weighted_r1", "false", &written, NULL) == BL_OK ? 0
                                                                               : 1);
    }
    assert_int_equal(bl_config_edit_begin(at("p.toml"), &e, NULL), BL_OK);
    assert_int_equal(write(go[1], &byte, 1), 1);
    usleep(200000);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    assert_false(bl_file_exists(at("p.toml")));
    assert_int_equal(bl_config_edit_set(e, BL_CONFIG_PORT, NULL, "1", NULL), BL_OK);
    assert_int_equal(bl_config_edit_commit(e, &written, NULL), BL_OK);
    bl_config_edit_end(e);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(go[0]);
    close(go[1]);
    assert_text("p.toml",
                "config_version = 3\n\n[backend]\nport = 1\n\n[gemma_optimizations]\nweighted_r1 = false\n");
    bl_err err = {0};
    assert_int_equal(unlink(at("p.toml.lock")), 0);
    make_dir("p.toml.lock");
    assert_int_equal(bl_config_edit_begin(at("p.toml"), &e, &err), BL_EIO);
    assert_non_null(strstr(err.msg, "p.toml.lock"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_refused),
        TEST(test_only_a_missing_file_is_defaults),
        TEST(test_defaults),
        TEST(test_values),
        TEST(test_warnings),
        TEST(test_migration),
        TEST(test_effective),
        TEST(test_names),
        TEST(test_path),
        TEST(test_set),
        TEST(test_set_keeps_the_rest),
        TEST(test_set_is_refused),
        TEST(test_links_stay_links),
        TEST(test_lock),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
