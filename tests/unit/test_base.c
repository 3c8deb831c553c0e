/* base/: errors, checked integers, arenas, buffers, files, UTF-8, Philox, log. */
#include "cmocka_all.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/os.h"
#include "base/rng.h"
#include "base/utf8.h"

static bl_code fail_with(bl_err *err, const char *text) {
    BL_FAIL(err, BL_EFORMAT, "%s", text);
}

static void test_err_message_is_one_clean_line(void **state) {
    (void)state;
    bl_err err = {0};
    assert_int_equal(fail_with(&err, "a\nb\x1b[31m"), BL_EFORMAT);
    assert_string_equal(err.msg, "a?b?[31m");
    assert_int_equal(fail_with(NULL, "x"), BL_EFORMAT);
    assert_int_equal(bl_err_wrap(&err, BL_EFORMAT, "while loading '%s'", "m"), BL_EFORMAT);
    assert_string_equal(err.msg, "while loading 'm': a?b?[31m");
    assert_string_equal(bl_code_name(BL_ENOTSUP), "not_supported");
    assert_string_equal(bl_code_name((bl_code)999), "unknown");
}

static void test_err_is_cut_between_characters(void **state) {
    (void)state;
    char text[400];
    for (size_t i = 0; i + 2 < sizeof text; i += 3) {
        memcpy(text + i, "\xe2\x82\xac", 3); /* the euro sign */
    }
    text[399] = '\0';
    for (size_t shift = 0; shift < 3; shift++) {
        char shifted[450];
        snprintf(shifted, sizeof shifted, "%.*s%s", (int)shift, "xx", text);
        bl_err err = {0};
        fail_with(&err, shifted);
        assert_true(strlen(err.msg) >= 253);
        assert_true(bl_utf8_valid(err.msg, strlen(err.msg)));
        bl_err_wrap(&err, BL_EFORMAT, "context");
        assert_true(bl_utf8_valid(err.msg, strlen(err.msg)));
        assert_memory_equal(err.msg, "context: ", 9);
    }
}

static void test_checked_integers(void **state) {
    (void)state;
    uint64_t r = 7;
    assert_true(bl_add_u64(UINT64_MAX - 1, 1, &r) && r == UINT64_MAX);
    assert_false(bl_add_u64(UINT64_MAX, 1, &r));
    assert_true(r == UINT64_MAX);
    assert_true(bl_mul_u64(1ull << 32, (1ull << 32) - 1, &r));
    assert_false(bl_mul_u64(1ull << 32, 1ull << 32, &r));
    assert_true(bl_align_u64(65, 64, &r) && r == 128);
    assert_false(bl_align_u64(UINT64_MAX - 3, 64, &r));
    assert_null(bl_alloc_array(SIZE_MAX / 2, 3));
}

static void test_arena_ceiling_and_reset(void **state) {
    (void)state;
    bl_arena *a = NULL;
    bl_err err = {0};
    assert_int_equal(bl_arena_new("step", 1 << 20, &a, &err), BL_OK);
    void *p = NULL, *first = NULL;
    assert_int_equal(bl_arena_alloc(a, 100, &first, &err), BL_OK);
    assert_int_equal((uintptr_t)first % 64, 0);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(bl_arena_alloc(a, 1000, &p, &err), BL_OK);
        for (size_t k = 0; k < 1000; k++) {
            assert_int_equal(((unsigned char *)p)[k], 0);
        }
        memset(p, 0xEE, 1000);
    }
    size_t used = bl_arena_used(a);
    void *untouched = &used;
    assert_int_equal(bl_arena_alloc(a, 1 << 20, &untouched, &err), BL_ELIMIT);
    assert_ptr_equal(untouched, &used);
    assert_non_null(strstr(err.msg, "'step'"));
    assert_int_equal(bl_arena_used(a), used);
    assert_int_equal(bl_arena_alloc_array(a, SIZE_MAX / 2, 4, &p, &err), BL_ERANGE);
    bl_arena_reset(a);
    assert_int_equal(bl_arena_used(a), 0);
    assert_int_equal(bl_arena_alloc(a, 100, &p, &err), BL_OK);
    assert_ptr_equal(p, first);
    char *s = NULL;
    assert_int_equal(bl_arena_strndup(a, "hello", 4, &s, &err), BL_OK);
    assert_string_equal(s, "hell");
    bl_arena_free(a);
    bl_arena_free(NULL);
}

static void test_buf_maximum_keeps_content(void **state) {
    (void)state;
    bl_buf b;
    bl_err err = {0};
    bl_buf_init(&b, 10);
    assert_string_equal(bl_buf_str(&b), "");
    assert_int_equal(bl_buf_append_str(&b, "12345678", &err), BL_OK);
    assert_int_equal(bl_buf_append_str(&b, "9ab", &err), BL_ELIMIT);
    assert_string_equal(bl_buf_str(&b), "12345678");
    assert_int_equal(bl_buf_printf(&b, &err, "%d", 90), BL_OK);
    assert_int_equal(bl_buf_append_char(&b, 'x', &err), BL_ELIMIT);
    assert_string_equal(bl_buf_str(&b), "1234567890");
    bl_buf_consume(&b, 4);
    assert_string_equal(bl_buf_str(&b), "567890");
    char *stolen = bl_buf_steal(&b);
    assert_string_equal(stolen, "567890");
    assert_int_equal(b.len, 0);
    bl_free(stolen);
    bl_buf_done(&b);
}

static void test_ids_maximum(void **state) {
    (void)state;
    bl_ids v;
    bl_ids_init(&v, 100);
    for (int32_t i = 0; i < 100; i++) {
        assert_int_equal(bl_ids_push(&v, i, NULL), BL_OK);
    }
    bl_err err = {0};
    assert_int_equal(bl_ids_push(&v, 1, &err), BL_ELIMIT);
    assert_int_equal(v.n, 100);
    assert_int_equal(v.ids[99], 99);
    bl_ids_done(&v);
}

static void test_utf8_agrees_with_the_standard(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) {
            continue;
        }
        char s[4];
        uint32_t back = 0;
        size_t n = bl_utf8_encode(cp, s);
        assert_int_equal(bl_utf8_decode(s, n, &back), n);
        assert_int_equal(back, cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(bl_utf8_decode(s, cut, &back), 0);
            assert_int_equal(bl_utf8_complete(s, cut), 0);
        }
        assert_int_equal(bl_utf8_complete(s, n), n);
    }
    static const char *const bad[] = {
        "\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",
        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xFF"};
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        uint32_t cp;
        assert_int_equal(bl_utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        assert_int_equal(bl_utf8_complete(bad[i], strlen(bad[i])), strlen(bad[i]));
    }
    /* Unicode 3.9, maximal subparts: F1 80 80, E1 80 and C2 are one replacement each. */
    const char *s = "\xF1\x80\x80\xE1\x80\xC2\x62";
    assert_int_equal(bl_utf8_invalid_len(s, 7), 3);
    assert_int_equal(bl_utf8_invalid_len(s + 3, 4), 2);
    assert_int_equal(bl_utf8_invalid_len(s + 5, 2), 1);
}

static void test_philox_known_answers(void **state) {
    (void)state;
    /* Known-answer vectors published with Random123 (philox4x32, 10 rounds). */
    static const struct {
        uint32_t c[4], k[2], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        uint32_t r[4];
        bl_philox(rows[i].c, rows[i].k, r);
        assert_memory_equal(r, rows[i].want, sizeof r);
    }
    double sum = 0;
    for (uint32_t pos = 0; pos < 100000; pos++) {
        float u = bl_rng_uniform(42, 0, pos);
        assert_true(u >= 0.0f && u < 1.0f);
        sum += (double)u;
    }
    assert_true(sum > 49500 && sum < 50500); /* 5 sigma is 456 */
    assert_true(bl_rng_uniform(1, 0, 5) != bl_rng_uniform(1, 1, 5));
}

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bl_test_XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int fail_rename(const char *from, const char *to) {
    (void)from;
    (void)to;
    errno = ENOSPC;
    return -1;
}

static int n_eintr;
static ssize_t short_write(int fd, const void *buf, size_t n) {
    if (n_eintr++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return write(fd, buf, n > 3 ? 3 : n);
}

static void test_file_read_write_limits(void **state) {
    (void)state;
    bl_err err = {0};
    bl_buf b;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("f"));
    bl_os.write = short_write;
    assert_int_equal(bl_file_write_atomic(path, "0123456789", 10, &err), BL_OK);
    bl_os_reset();
    assert_int_equal(bl_file_read(path, 10, &b, &err), BL_OK);
    assert_string_equal(bl_buf_str(&b), "0123456789");
    bl_buf_done(&b);
    assert_int_equal(bl_file_read(path, 9, &b, &err), BL_ELIMIT);
    assert_non_null(strstr(err.msg, "10 bytes, 9 allowed"));
    /* a failed rename leaves the old content and no temporary */
    bl_os.rename = fail_rename;
    assert_int_equal(bl_file_write_atomic(path, "new", 3, &err), BL_EIO);
    bl_os_reset();
    assert_int_equal(bl_file_read(path, 99, &b, &err), BL_OK);
    assert_string_equal(bl_buf_str(&b), "0123456789");
    bl_buf_done(&b);
    char cmd[300];
    snprintf(cmd, sizeof cmd, "test \"$(ls %s | wc -l)\" = 1", folder);
    assert_int_equal(system(cmd), 0);

    bl_map m;
    assert_int_equal(bl_map_open(path, false, &m, &err), BL_OK);
    assert_int_equal(m.size_bytes, 10);
    bl_map_close(&m);
    char link_path[256];
    snprintf(link_path, sizeof link_path, "%s", in_folder("link"));
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(bl_map_open(link_path, false, &m, &err), BL_EFORMAT);
    assert_int_equal(bl_map_open(link_path, true, &m, &err), BL_OK);
    bl_map_close(&m);
    assert_int_equal(bl_map_open(folder, true, &m, &err), BL_EFORMAT);
    assert_int_equal(bl_map_open(in_folder("nothing"), true, &m, &err), BL_ENOTFOUND);
    assert_int_equal(bl_file_make_dirs(in_folder("a/b/c"), &err), BL_OK);
    assert_true(bl_file_is_dir(in_folder("a/b/c")));
    assert_int_equal(bl_file_make_dirs(in_folder("f/x"), &err), BL_ENOTFOUND);
}

static int remove_folder(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
    return system(cmd);
}

static char last_line[1100];
static void keep_line(bl_log_level level, const char *line, void *user) {
    (void)level;
    (void)user;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void test_log_lines(void **state) {
    (void)state;
    bl_log_set_sink(keep_line, NULL);
    bl_log_set_level(BL_LOG_INFO);
    bl_log(BL_LOG_INFO, "serve", "listening", "port=%d", 8000);
    assert_non_null(strstr(last_line, " info  serve listening port=8000"));
    last_line[0] = '\0';
    bl_log(BL_LOG_DEBUG, "serve", "quiet", "%s", "");
    assert_string_equal(last_line, "");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    bl_log(BL_LOG_ERROR, "serve", "big", "%s\n%s", "a", big);
    assert_true(strlen(last_line) < 1024);
    assert_null(strchr(last_line, '\n'));
    bl_log_set_sink(NULL, NULL);
    bl_log_set_level(BL_LOG_WARN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_message_is_one_clean_line),
        cmocka_unit_test(test_err_is_cut_between_characters),
        cmocka_unit_test(test_checked_integers),
        cmocka_unit_test(test_arena_ceiling_and_reset),
        cmocka_unit_test(test_buf_maximum_keeps_content),
        cmocka_unit_test(test_ids_maximum),
        cmocka_unit_test(test_utf8_agrees_with_the_standard),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test_setup_teardown(test_file_read_write_limits, make_folder, remove_folder),
        cmocka_unit_test(test_log_lines),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
