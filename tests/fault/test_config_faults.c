/* provider.toml is saved under every fault: each allocation and system call fails, the power goes at each
 * system call and within each write, calls are interrupted and cut short. The file is the old one or the new
 * one each time, the error is an ordinary one, and the next save works.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/scratch_folder.h"
#include "base/base.h"
#include "faults.h"
#include "provider/config.h"

static const char old_text[] = "# mine\nconfig_version = 2\n[backend]\nmtp = true # why\nunknown = 1\n";
static const char new_text[] =
    "# mine\nconfig_version = 3\n[backend]\nmtp_mode = \"off\" # why\nunknown = 1\n";

static bl_code save(bl_err *err) {
    bl_config_edit *e = NULL;
    bool written = false;
    bl_code rc = bl_config_edit_begin(at("p.toml"), &e, err);
    if (rc == BL_OK) {
        rc = bl_config_edit_set(e, BL_CONFIG_MTP_MODE, NULL, "\"off\"", err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_commit(e, &written, err);
    }
    bl_config_edit_end(e);
    return rc;
}

/* 0 or 1: the old or the new text; anything else fails. */
static int which(void) {
    bl_buf b;
    assert_int_equal(bl_file_read(at("p.toml"), 1 << 20, &b, NULL), BL_OK);
    int is_new = strcmp(bl_buf_str(&b), new_text) == 0;
    if (!is_new) {
        assert_string_equal(bl_buf_str(&b), old_text);
    }
    bl_buf_done(&b);
    return is_new;
}

/* ---- each call fails ------------------------------------------------------------------------------------
 */

static void save_under(unsigned kinds, bool persistent, bl_code allowed) {
    unsigned n_new = 0;
    uint64_t n = 1;
    write_text("p.toml", old_text);
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_err err = {0};
        bl_code rc = save(&err);
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        faults_disarm();
        assert_int_equal(rc == BL_OK, !fired);
        if (rc != BL_OK && (rc != allowed || !strchr(err.msg, '\''))) {
            fail_msg("fault %llu gave '%s': %s", (unsigned long long)n, bl_code_name(rc), err.msg);
        }
        int is_new = which();
        assert_true(is_new || rc != BL_OK);
        n_new += is_new && rc != BL_OK ? 1 : 0;
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        if (is_new) {
            write_text("p.toml", old_text);
        }
        assert_int_equal(save(NULL), BL_OK); /* whatever was left behind */
        assert_int_equal(which(), 1);
        write_text("p.toml", old_text);
        assert_true(n < 1000);
    }
    assert_true(n > 6);
    /* A new file in spite of an error: the folder could not be opened, or not be synced. */
    assert_int_equal(n_new, kinds == FAULT_IO ? 2 : 0);
}

static void test_each_call_failing(void **state) {
    (void)state;
    save_under(FAULT_IO, false, BL_EIO);
    save_under(FAULT_IO, true, BL_EIO);
}

static void test_each_allocation_failing(void **state) {
    (void)state;
    uint64_t n = 1;
    write_text("p.toml", old_text);
    for (; faults_arm(n, FAULT_ALLOC, false); n++) {
        bl_err err = {0};
        bl_code rc = save(&err);
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        faults_disarm();
        assert_int_equal(rc, fired ? BL_ENOMEM : BL_OK);
        assert_int_equal(which(), !fired);
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        assert_true(n < 1000);
    }
    assert_true(n > 10);
}

/* Reading alone: never defaults, whatever fails. */
static void test_loading(void **state) {
    (void)state;
    uint64_t n = 1;
    write_text("p.toml", new_text);
    for (; faults_arm(n, FAULT_ALLOC | FAULT_IO, false); n++) {
        bl_config *c = NULL;
        bl_err err = {0};
        bl_code rc = bl_config_open(at("p.toml"), &c, &err);
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        assert_true(fired ? rc == BL_EIO || rc == BL_ENOMEM : rc == BL_OK);
        assert_true(fired || strcmp(bl_config_get(c, BL_CONFIG_MTP_MODE)->text, "off") == 0);
        bl_config_free(c);
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
    }
    assert_true(n > 5);
}

/* ---- the power goes --------------------------------------------------------------------------------------
 */

static struct {
    bl_os_calls real;
    unsigned n, cut_at; /* cut_at 0: never */
    bool within;        /* a write is half done before */
    int dirty;          /* written and not synced; -1: none */
    bool renamed, folder_synced;
} power;

enum { CUT = 77, UNSYNCED = 78 };

static bool goes_now(void) {
    return ++power.n == power.cut_at;
}

static int cut_open(const char *path, int flags, mode_t mode) {
    return goes_now() ? (_exit(CUT), -1) : power.real.open(path, flags, mode);
}

static int cut_close(int fd) {
    return goes_now() ? (_exit(CUT), -1) : power.real.close(fd);
}

static ssize_t cut_write(int fd, const void *buf, size_t n) {
    if (goes_now()) {
        if (power.within) {
            (void)!power.real.write(fd, buf, n / 2);
        }
        _exit(CUT);
    }
    power.dirty = fd;
    return power.real.write(fd, buf, n);
}

static int cut_fsync(int fd) {
    if (goes_now()) {
        _exit(CUT);
    }
    power.dirty = power.dirty == fd ? -1 : power.dirty;
    power.folder_synced = power.renamed;
    return power.real.fsync(fd);
}

static int cut_fchmod(int fd, mode_t mode) {
    return goes_now() ? (_exit(CUT), -1) : power.real.fchmod(fd, mode);
}

static int cut_flock(int fd, int operation) {
    return goes_now() ? (_exit(CUT), -1) : power.real.flock(fd, operation);
}

/* What was not synced when its name comes into force may be lost: a torn file after a power cut. */
static int cut_rename(const char *from, const char *to) {
    if (goes_now()) {
        _exit(CUT);
    }
    if (power.dirty >= 0) {
        _exit(UNSYNCED);
    }
    power.renamed = true;
    return power.real.rename(from, to);
}

static int save_until(unsigned cut_at, bool within) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        power.real = bl_os;
        power.cut_at = cut_at;
        power.within = within;
        power.dirty = -1;
        bl_os.open = cut_open;
        bl_os.close = cut_close;
        bl_os.write = cut_write;
        bl_os.fsync = cut_fsync;
        bl_os.fchmod = cut_fchmod;
        bl_os.flock = cut_flock;
        bl_os.rename = cut_rename;
        bl_code rc = save(NULL);
        _exit(rc == BL_OK && power.folder_synced ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_power_cuts(void **state) {
    (void)state;
    for (unsigned within = 0; within < 2; within++) {
        unsigned n = 1, n_old = 0, n_new = 0;
        int status = CUT;
        for (; status == CUT; n++) {
            write_text("p.toml", old_text);
            status = save_until(n, within == 1);
            assert_true(status == CUT || status == 0);
            *(which() ? &n_new : &n_old) += 1;
            assert_int_equal(save(NULL), BL_OK);
            assert_int_equal(which(), 1);
            assert_true(n < 100);
        }
        assert_true(n_old >= 8 && n_new >= 3); /* before the rename, behind it */
    }
}

/* ---- short and interrupted -------------------------------------------------------------------------------
 */

static unsigned n_turns;

static bool interrupted(void) {
    errno = EINTR;
    return ++n_turns % 2 == 1;
}

static ssize_t short_read(int fd, void *buf, size_t n) {
    return interrupted() ? -1 : power.real.read(fd, buf, BL_MIN(n, (size_t)3));
}

static ssize_t short_write(int fd, const void *buf, size_t n) {
    return interrupted() ? -1 : power.real.write(fd, buf, BL_MIN(n, (size_t)3));
}

static int interrupted_flock(int fd, int operation) {
    return interrupted() ? -1 : power.real.flock(fd, operation);
}

static void test_short_calls(void **state) {
    (void)state;
    write_text("p.toml", old_text);
    power.real = bl_os;
    bl_os.read = short_read;
    bl_os.write = short_write;
    bl_os.flock = interrupted_flock;
    bl_code rc = save(NULL);
    bl_os = power.real;
    assert_int_equal(rc, BL_OK);
    assert_int_equal(which(), 1);
    assert_true(n_turns > 40);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_power_cuts),        TEST(test_short_calls),
        TEST(test_each_call_failing), TEST(test_each_allocation_failing),
        TEST(test_loading),
    };
    return cmocka_run_group_tests_name("config_faults", tests, NULL, NULL);
}
