/* Eight processes change different keys of one provider.toml two hundred times each: none of them loses a
 * change of another, no reader ever sees half a file, and what a person wrote into it stays. */
#include "../unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/scratch_folder.h"
#include "base/base.h"
#include "provider/config.h"

enum { N_WRITERS = 8, N_TURNS = 200 };

static const bl_config_id keys[N_WRITERS] = {
    BL_CONFIG_AUTO_UPDATE,     BL_CONFIG_AUTO_RESTART,
    BL_CONFIG_STARTUP_PRELOAD, BL_CONFIG_STARTUP_SELFTEST,
    BL_CONFIG_PRIVATE_ONLY,    BL_CONFIG_PREFILL_LAYER18,
    BL_CONFIG_WEIGHTED_R1,     BL_CONFIG_STARTUP_SELFTEST_FAIL_CLOSED,
};

static const char start_text[] = "# kept: one\nmine = { a = 1 } # kept: two\n\n[backend] # kept: three\n"
                                 "port = 8100\n\n[elsewhere] # kept: four\nx = [\n  1, # kept: five\n]\n";

static bool turn(bl_config_id id, bool value) {
    bl_config_edit *e = NULL;
    bool written = false;
    bl_code rc = bl_config_edit_begin(at("p.toml"), &e, NULL);
    if (rc == BL_OK) {
        rc = bl_config_edit_set(e, id, NULL, value ? "true" : "false", NULL);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_commit(e, &written, NULL);
    }
    bl_config_edit_end(e);
    return rc == BL_OK && written;
}

/* Each change is of a value that is not there yet, so each must be written; and it must be there right after,
 * when only the others have written in between. */
static int write_turns(unsigned w) {
    for (unsigned i = 0; i < N_TURNS; i++) {
        bool value = (i + w) % 2 == 0;
        bl_config *c = NULL;
        if (!turn(keys[w], value)) {
            return 1;
        }
        if (bl_config_load(at("p.toml"), &c, NULL) != BL_OK) {
            return 2;
        }
        const bl_config_value *v = bl_config_get(c, keys[w]);
        bool there = v->in_file && v->b == value;
        bl_config_free(c);
        if (!there) {
            return 3;
        }
    }
    return 0;
}

static void test_nothing_is_lost(void **state) {
    (void)state;
    pid_t children[N_WRITERS];
    write_text("p.toml", start_text);
    for (unsigned w = 0; w < N_WRITERS; w++) {
        children[w] = fork();
        assert_true(children[w] >= 0);
        if (children[w] == 0) {
            _exit(write_turns(w));
        }
    }
    for (unsigned w = 0; w < N_WRITERS; w++) {
        int status = -1;
        assert_int_equal(waitpid(children[w], &status, 0), children[w]);
        assert_int_equal(status, 0);
    }
    bl_config *c = NULL;
    bl_buf b;
    assert_int_equal(bl_config_load(at("p.toml"), &c, NULL), BL_OK);
    for (unsigned w = 0; w < N_WRITERS; w++) {
        const bl_config_value *v = bl_config_get(c, keys[w]);
        assert_true(v->in_file);
        assert_int_equal(v->b, (N_TURNS - 1 + w) % 2 == 0);
    }
    bl_config_free(c);
    /* The lines of the start, all of them, in their order. */
    assert_int_equal(bl_file_read(at("p.toml"), 1 << 20, &b, NULL), BL_OK);
    const char *from = bl_buf_str(&b);
    for (const char *line = start_text; *line;) {
        char want[64];
        size_t n = strcspn(line, "\n");
        snprintf(want, sizeof want, "%.*s\n", (int)n, line);
        const char *found = strstr(from, want);
        assert_non_null(found);
        from = found + n;
        line += n + 1;
    }
    bl_buf_done(&b);
    assert_false(bl_file_exists(at("p.toml.tmp")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_is_lost, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("config_race", tests, NULL, NULL);
}
