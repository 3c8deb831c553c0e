/* Every Nth allocation and every Nth system call fails while a checkpoint is opened: an ordinary error each
 * time, nothing leaked, and the next opening succeeds.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "faults.h"
#include "formats/checkpoint.h"

static const char tiny[] = BL_SOURCE_DIR "/tests/fixtures/tiny/llama-tiny";

static void open_under(unsigned kinds, bool persistent, bl_code allowed) {
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_checkpoint *c = NULL;
        bl_err err = {0};
        bl_code rc = bl_checkpoint_open(tiny, &c, &err);
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        if (rc == BL_OK) {
            assert_false(fired && persistent);
            bl_checkpoint_free(c);
        } else {
            if (rc != allowed) {
                fail_msg("fault %llu gave '%s': %s", (unsigned long long)n, bl_code_name(rc), err.msg);
            }
            assert_null(c);
            assert_true(strlen(err.msg) > 0);
        }
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        assert_true(n < 100000);
    }
    assert_true(n > 3);
}

static void test_open_survives_each_allocation_failing(void **state) {
    (void)state;
    open_under(FAULT_ALLOC, false, BL_ENOMEM);
    open_under(FAULT_ALLOC, true, BL_ENOMEM);
}

static void test_open_survives_each_call_failing(void **state) {
    (void)state;
    open_under(FAULT_IO, false, BL_EIO);
    open_under(FAULT_IO, true, BL_EIO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_survives_each_allocation_failing),
        cmocka_unit_test(test_open_survives_each_call_failing),
    };
    return cmocka_run_group_tests_name("formats_faults", tests, NULL, NULL);
}
