/* Every Nth allocation and every Nth system call fails while a checkpoint is quantised, and it is interrupted
 * at every block: an ordinary error each time, nothing leaked, and no file stays in the new folder.
 */
#include "../unit/cmocka_all.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "faults.h"
#include "provider/quantize.h"
#include "stopper.h"

static const char tiny[] = BL_SOURCE_DIR "/tests/fixtures/tiny/llama-tiny";
static char parent[64], dst[80];

/* Files of the new folder, removed with it. 0 when there is no folder. */
static uint32_t remove_result(void) {
    DIR *d = opendir(dst);
    if (!d) {
        return 0;
    }
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            char path[512];
            snprintf(path, sizeof path, "%s/%s", dst, e->d_name);
            assert_int_equal(unlink(path), 0);
            n++;
        }
    }
    closedir(d);
    assert_int_equal(rmdir(dst), 0);
    return n;
}

static bl_quantize_options options(void) {
    return (bl_quantize_options){.src = tiny,
                                 .dst = dst,
                                 .format = {BL_MLX_QUANTIZE_AFFINE, 4, 64},
                                 .dtype = BL_DTYPE_BF16,
                                 .max_shard_bytes = 200000};
}

static void quantize_under(unsigned kinds, bool persistent, bl_code allowed) {
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_quantize_options o = options();
        bl_quantize_report report;
        bl_err err = {0};
        bl_code rc = bl_quantize_run(&o, &report, &err);
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        faults_disarm();
        assert_int_equal(remove_result(), rc == BL_OK ? 4 : 0);
        assert_true(rc != BL_OK || !(fired && persistent));
        if (rc != BL_OK && rc != allowed) {
            fail_msg("fault %llu gave '%s': %s", (unsigned long long)n, bl_code_name(rc), err.msg);
        }
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        assert_true(n < 10000);
    }
    assert_true(n > 50);
}

static void test_each_allocation_failing(void **state) {
    (void)state;
    quantize_under(FAULT_ALLOC, false, BL_ENOMEM);
    quantize_under(FAULT_ALLOC, true, BL_ENOMEM);
}

static void test_each_call_failing(void **state) {
    (void)state;
    quantize_under(FAULT_IO, false, BL_EIO);
    quantize_under(FAULT_IO, true, BL_EIO);
}

static void test_interrupted(void **state) {
    (void)state;
    uint32_t n_stopped = 0;
    for (uint32_t at = 1;; at++) {
        stopper s = {.stop_at = at};
        bl_quantize_options o = options();
        o.cancel = &s.cancel;
        o.progress = stop;
        o.user = &s;
        bl_quantize_report report;
        bl_err err = {0};
        bl_code rc = bl_quantize_run(&o, &report, &err);
        if (rc == BL_OK) {
            assert_true(s.n_blocks <= at);
            assert_int_equal(remove_result(), 4);
            break;
        }
        assert_int_equal(rc, BL_ECANCEL);
        assert_false(bl_file_exists(dst));
        n_stopped++;
    }
    assert_true(n_stopped > 30);
}

static int make_parent(void **state) {
    (void)state;
    snprintf(parent, sizeof parent, "/tmp/bl-quantize-XXXXXX");
    if (!mkdtemp(parent)) {
        return -1;
    }
    snprintf(dst, sizeof dst, "%s/out", parent);
    return 0;
}

static int remove_parent(void **state) {
    (void)state;
    return rmdir(parent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_failing),
        cmocka_unit_test(test_each_call_failing),
        cmocka_unit_test(test_interrupted),
    };
    return cmocka_run_group_tests_name("quantize_faults", tests, make_parent, remove_parent);
}
