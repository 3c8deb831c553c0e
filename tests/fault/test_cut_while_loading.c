/* A checkpoint that another process cuts short or writes to while it is loaded: an ordinary error, no SIGBUS.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "bl/bl.h"

static const char tiny[] = BL_SOURCE_DIR "/tests/fixtures/tiny/llama-tiny";
static char dir[64], weights[128], config[128];

static void copy(const char *name, const char *to) {
    char from[512];
    bl_buf b;
    snprintf(from, sizeof from, "%s/%s", tiny, name);
    assert_int_equal(bl_file_read(from, 1 << 24, &b, NULL), BL_OK);
    assert_int_equal(bl_file_write_atomic(to, b.data, b.len, NULL), BL_OK);
    bl_buf_done(&b);
}

static int make_copy(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/bl_cut.%ld", (long)getpid());
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    if (bl_file_make_dirs(dir, NULL) != BL_OK) {
        return -1;
    }
    copy("config.json", config);
    copy("model.safetensors", weights);
    return 0;
}

static int remove_copy(void **state) {
    (void)state;
    unlink(weights);
    unlink(config);
    return rmdir(dir);
}

/* At the first call the first matrix has not been read yet. */
static void cut(void *user, uint64_t done, uint64_t total) {
    (void)user;
    (void)total;
    if (done == 0) {
        assert_int_equal(truncate(weights, 20000), 0);
    }
}

static void touch(void *user, uint64_t done, uint64_t total) {
    (void)user;
    if (done == total) {
        const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
        assert_int_equal(utimensat(0, weights, times, 0), 0);
    }
}

static void open_with(void (*progress)(void *, uint64_t, uint64_t), const char *want) {
    bl_engine_options o;
    bl_engine *e = NULL;
    bl_err err = {0};
    bl_engine_options_init(&o);
    o.model_path = dir;
    o.n_threads = 1;
    o.progress = progress;
    assert_int_equal(bl_engine_open(&o, &e, &err), BL_ECORRUPT);
    assert_null(e);
    assert_non_null(strstr(err.msg, want));
}

static void test_cut(void **state) {
    (void)state;
    open_with(cut, "file 'model.safetensors' was cut short while it was read");
}

static void test_written(void **state) {
    (void)state;
    open_with(touch, "file 'model.safetensors' was written to while it was read");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cut, make_copy, remove_copy),
        cmocka_unit_test_setup_teardown(test_written, make_copy, remove_copy),
    };
    return cmocka_run_group_tests_name("cut_while_loading", tests, NULL, NULL);
}
