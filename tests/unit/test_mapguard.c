/* base/mapguard: a file cut short under its map reads as zeros and is reported; other SIGBUS faults stay what
 * they were. */
#include "cmocka_all.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mapguard.h"

#define N_PAGES 4

static size_t page;
static char path[64];

static void make_file(bl_map *ret) {
    static char text[N_PAGES * 65536];
    page = (size_t)sysconf(_SC_PAGESIZE);
    memset(text, 'x', sizeof text);
    snprintf(path, sizeof path, "/tmp/bl_mapguard.%ld", (long)getpid());
    assert_true(N_PAGES * page <= sizeof text);
    assert_int_equal(bl_file_write_atomic(path, text, N_PAGES * page, NULL), BL_OK);
    assert_int_equal(bl_map_open(path, false, ret, NULL), BL_OK);
}

static void test_cut_file_reads_as_zeros(void **state) {
    (void)state;
    bl_map m, other;
    bl_err err = {0};
    make_file(&m);
    assert_int_equal(bl_mapguard_add(m.data, m.size_bytes, &err), BL_OK);
    make_file(&other);
    assert_int_equal(bl_mapguard_add(other.data, other.size_bytes, &err), BL_OK);
    assert_int_equal(bl_mapguard_check(m.data, "f", &err), BL_OK);
    assert_int_equal(truncate(path, (off_t)page), 0); /* `other`: m is the file before it */
    const volatile uint8_t *p = other.data;
    assert_int_equal(p[0], 'x');
    assert_int_equal(bl_mapguard_check(other.data, "f", &err), BL_OK);
    assert_int_equal(p[3 * page - 1], 0);
    assert_int_equal(p[1 * page], 0);
    assert_int_equal(bl_mapguard_check(other.data, "f", &err), BL_ECORRUPT);
    assert_string_equal(err.msg,
                        "file 'f' was cut short while it was read, allowed are files that keep their size");
    assert_int_equal(m.data[3 * page], 'x');
    assert_int_equal(bl_mapguard_check(m.data, "f", &err), BL_OK);
    bl_mapguard_remove(other.data);
    bl_mapguard_remove(m.data);
    bl_mapguard_remove(NULL);
    bl_map_close(&other);
    bl_map_close(&m);
    unlink(path);
}

/* In a child: a cut map that nobody guards still ends the process. */
static void test_unguarded_fault_is_fatal(void **state) {
    (void)state;
    bl_map m;
    make_file(&m);
    assert_int_equal(truncate(path, 0), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL); /* instead of cmocka's, which would go on with the tests */
        if (bl_mapguard_add(m.data, m.size_bytes, NULL) == BL_OK) {
            bl_mapguard_remove(m.data);
            volatile uint8_t v = m.data[page];
            (void)v;
        }
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    bl_map_close(&m);
    unlink(path);
}

static void test_limit(void **state) {
    (void)state;
    static uint8_t fake[BL_MAPGUARD_MAX + 1];
    bl_err err = {0};
    for (size_t i = 0; i < BL_MAPGUARD_MAX; i++) {
        assert_int_equal(bl_mapguard_add(&fake[i], 1, &err), BL_OK);
    }
    assert_int_equal(bl_mapguard_add(&fake[BL_MAPGUARD_MAX], 1, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "256 files are mapped already, allowed are 256");
    for (size_t i = 0; i < BL_MAPGUARD_MAX; i++) {
        bl_mapguard_remove(&fake[i]);
    }
    assert_int_equal(bl_mapguard_add(&fake[0], 1, &err), BL_OK);
    bl_mapguard_remove(&fake[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_file_reads_as_zeros),
        cmocka_unit_test(test_unguarded_fault_is_fatal),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests_name("mapguard", tests, NULL, NULL);
}
