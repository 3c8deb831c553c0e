/* Every Nth allocation and every Nth system call fails while a checkpoint is written: an ordinary error each
 * time, nothing leaked, and no file stays in the folder unless the writer said that all of them are there.
 */
#include "../unit/cmocka_all.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "faults.h"
#include "formats/safetensors_writer.h"

static char dir[64];

static uint32_t empty_folder(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            char path[512];
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            assert_int_equal(unlink(path), 0);
            n++;
        }
    }
    closedir(d);
    return n;
}

/* Three tensors in two shards and one of its own, two side files. */
static bl_code write_folder(bl_safetensors_writer *w, bl_err *err) {
    static const uint8_t bytes[64];
    uint64_t dims[2] = {4, 4};
    uint32_t id[3];
    BL_TRY(bl_safetensors_writer_plan(w, "a", BL_DTYPE_F32, 2, dims, NULL, &id[0], err));
    BL_TRY(bl_safetensors_writer_plan(w, "b", BL_DTYPE_F32, 2, dims, NULL, &id[1], err));
    BL_TRY(bl_safetensors_writer_plan(w, "c", BL_DTYPE_F32, 2, dims, "own.safetensors", &id[2], err));
    BL_TRY(bl_safetensors_writer_begin(w, err));
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 3; i++) {
            BL_TRY(bl_safetensors_writer_put(w, id[i], bytes, 32, err));
        }
    }
    BL_TRY(bl_safetensors_writer_side(w, "config.json", "{}", 2, err));
    BL_TRY(bl_safetensors_writer_side(w, "tokenizer.json", "{}", 2, err));
    return bl_safetensors_writer_finish(w, err);
}

static void write_under(unsigned kinds, bool persistent, bl_code allowed) {
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_safetensors_writer *w = NULL;
        bl_err err = {0};
        bl_code rc = bl_safetensors_writer_new(dir, 64, &w, &err);
        if (rc == BL_OK) {
            rc = write_folder(w, &err);
        }
        bool fired = atomic_load_explicit(&faults.fired, memory_order_relaxed);
        bl_safetensors_writer_free(w);
        assert_int_equal(empty_folder(), rc == BL_OK ? 6 : 0);
        assert_int_equal(rc == BL_OK, !fired);
        if (rc != BL_OK && rc != allowed) {
            fail_msg("fault %llu gave '%s': %s", (unsigned long long)n, bl_code_name(rc), err.msg);
        }
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        assert_true(n < 10000);
    }
    assert_true(n > 10);
}

static void test_each_allocation_failing(void **state) {
    (void)state;
    write_under(FAULT_ALLOC, false, BL_ENOMEM);
    write_under(FAULT_ALLOC, true, BL_ENOMEM);
}

static void test_each_call_failing(void **state) {
    (void)state;
    write_under(FAULT_IO, false, BL_EIO);
    write_under(FAULT_IO, true, BL_EIO);
}

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/bl-writer-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_failing),
        cmocka_unit_test(test_each_call_failing),
    };
    return cmocka_run_group_tests_name("writer_faults", tests, make_dir, remove_dir);
}
