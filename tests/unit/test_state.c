/* provider/state: what is written comes back, a file of another kind is refused, and a process that is gone,
 * or whose number another has now, is told from one that runs. */
#include "cmocka_all.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os.h"
#include "provider/state.h"
#include "scratch_folder.h"

static bl_state a, b;

static void fill(bl_state *s) {
    memset(s, 0, sizeof *s);
    s->pid = getpid();
    s->pid_start = bl_state_process_start(s->pid);
    s->started_at = 1700000000;
    s->port = 65535;
    snprintf(s->version, sizeof s->version, "1.2.3");
    snprintf(s->address, sizeof s->address, "::1");
    snprintf(s->model, sizeof s->model, "a/b \"c\"");
    s->n_slots = 2;
    bl_state_slot *t = &s->slots[0];
    snprintf(t->model, sizeof t->model, "a/b \"c\"");
    snprintf(t->kv_backend, sizeof t->kv_backend, "contiguous");
    snprintf(t->kv_requested, sizeof t->kv_requested, "paged");
    snprintf(t->kv_fallback, sizeof t->kv_fallback, "kill_switch");
    t->mtp_enabled = t->mtp_active = true;
    t->mtp_depth = 2;
    t = &s->slots[1];
    snprintf(t->model, sizeof t->model, "other");
    t->mtp_enabled = true;
    snprintf(t->mtp_inactive_reason, sizeof t->mtp_inactive_reason, "engine_inactive");
    snprintf(t->load_error, sizeof t->load_error, "no memory");
}

static void test_round_trip(void **state) {
    (void)state;
    struct stat st;
    fill(&a);
    const char *path = at("new/folder/state.json");
    assert_int_equal(bl_state_write(path, &a, NULL), BL_OK);
    assert_true(a.written_at > 1700000000 && a.schema == BL_STATE_SCHEMA);
    assert_int_equal(bl_state_read(path, &b, NULL), BL_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* the names that others read */
    json_t *j = bl_state_to_json(&b), *slot = json_array_get(json_object_get(j, "slots"), 0);
    assert_true(json_is_true(json_object_get(slot, "mtpEnabled")));
    assert_true(json_is_true(json_object_get(slot, "mtpActive")));
    assert_null(json_object_get(slot, "mtpInactiveReason"));
    assert_string_equal(json_string_value(json_object_get(j, "currentModel")), "a/b \"c\"");
    slot = json_array_get(json_object_get(j, "slots"), 1);
    assert_string_equal(json_string_value(json_object_get(slot, "mtpInactiveReason")), "engine_inactive");
    json_decref(j);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{}",
                                        "{\"schema\":2,\"pid\":1}",
                                        "{\"schema\":\"1\",\"pid\":1}",
                                        "{\"schema\":1}",
                                        "{\"schema\":1,\"pid\":0}",
                                        "{\"schema\":1,\"pid\":\"5\"}"};
    for (size_t i = 0; i < BL_COUNTOF(texts); i++) {
        bl_err err = {0};
        write_text("m/s", texts[i]);
        memset(&b, 0x5a, sizeof b);
        assert_int_equal(bl_state_read(at("m/s"), &b, &err), BL_EFORMAT);
        assert_true(err.msg[0] != '\0');
    }
    assert_int_equal(bl_state_read(at("none"), &b, NULL), BL_ENOTFOUND);
    /* a later version's keys, and absurd values of ours, are no reason to fail */
    write_text("m/s", "{\"schema\":1,\"pid\":7,\"future\":{\"x\":[1]},\"slots\":[{\"model\":5},7]}");
    assert_int_equal(bl_state_read(at("m/s"), &b, NULL), BL_OK);
    assert_int_equal(b.n_slots, 2);
    assert_string_equal(b.slots[0].model, "");
}

static void test_live(void **state) {
    (void)state;
    fill(&a);
    assert_true(a.pid_start > 0);
    assert_true(bl_state_is_live(&a));
    a.pid_start++; /* the number was given to another process */
    assert_false(bl_state_is_live(&a));
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    a.pid = child;
    a.pid_start = bl_state_process_start(child);
    assert_true(a.pid_start > 0);
    assert_true(bl_state_is_live(&a));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(bl_state_is_live(&a));
    assert_int_equal(bl_state_process_start(child), 0);
    a.pid = 0;
    assert_false(bl_state_is_live(&a));
    a.pid = (int64_t)1 << 40;
    assert_false(bl_state_is_live(&a));
}

static void test_remove(void **state) {
    (void)state;
    fill(&a);
    assert_int_equal(bl_state_write(at("m/s"), &a, NULL), BL_OK);
    bl_state_remove(at("m/s"), a.pid + 1);
    assert_true(bl_file_exists(at("m/s")));
    bl_state_remove(at("m/s"), a.pid);
    assert_false(bl_file_exists(at("m/s")));
    bl_state_remove(at("m/s"), a.pid);
}

static void test_paths(void **state) {
    (void)state;
    static const struct {
        const char *file, *state_home, *home, *want;
    } rows[] = {
        {"/f", "/s", "/h", "/f"},
        {"", "/s", "/h", "/s/darkbloom/daemon-state.json"},
        {NULL, "", "/h", "/h/.local/state/darkbloom/daemon-state.json"},
        {NULL, NULL, NULL, NULL},
    };
    char path[64];
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_code rc = bl_state_path(rows[i].file, rows[i].state_home, rows[i].home, path, sizeof path, NULL);
        assert_int_equal(rc, rows[i].want ? BL_OK : BL_EINVAL);
        if (rows[i].want) {
            assert_string_equal(path, rows[i].want);
        }
    }
    assert_int_equal(bl_state_path(NULL, NULL, "/home/somebody", path, 20, NULL), BL_ELIMIT);
}

/* Each system call of a write fails once: the file is the old one or the new one. */
static int fail_at, n_calls;

static int failing(void) {
    return ++n_calls == fail_at;
}

static bl_os_calls real;

static ssize_t failing_write(int fd, const void *p, size_t n) {
    return failing() ? -1 : real.write(fd, p, n);
}

static int failing_fsync(int fd) {
    return failing() ? -1 : real.fsync(fd);
}

static int failing_rename(const char *from, const char *to) {
    return failing() ? -1 : real.rename(from, to);
}

static void test_torn(void **state) {
    (void)state;
    fill(&a);
    assert_int_equal(bl_state_write(at("m/s"), &a, NULL), BL_OK);
    real = bl_os;
    bl_os.write = failing_write;
    bl_os.fsync = failing_fsync;
    bl_os.rename = failing_rename;
    for (fail_at = 1;; fail_at++) {
        n_calls = 0;
        a.port = (uint16_t)fail_at;
        bl_code rc = bl_state_write(at("m/s"), &a, NULL);
        assert_int_equal(bl_state_read(at("m/s"), &b, NULL), BL_OK);
        assert_int_equal(b.port, rc == BL_OK ? fail_at : 65535);
        if (rc == BL_OK) {
            break;
        }
    }
    bl_os_reset();
    assert_true(fail_at > 3);
}

#define IN_ROOT(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(test_round_trip), IN_ROOT(test_refused), IN_ROOT(test_live),
        IN_ROOT(test_remove),     IN_ROOT(test_torn),    cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
