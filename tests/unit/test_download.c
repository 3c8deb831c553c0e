/* The parts of fetching that need no network: hashes, escaping, names of repositories and files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "net/download.h"
#include "net/sha1.h"
#include "provider/demo.h"
#include "provider/hub.h"

static void sha1_of(const char *text, size_t n, size_t step, char hex[41]) {
    uint8_t out[BL_SHA1_BYTES];
    bl_sha1 s;
    bl_sha1_init(&s);
    for (size_t i = 0; i < n; i += step) {
        bl_sha1_update(&s, text + i, BL_MIN(step, n - i));
    }
    bl_sha1_final(&s, out);
    for (size_t i = 0; i < sizeof(out); i++) {
        snprintf(hex + 2 * i, 3, "%02x", out[i]);
    }
}

static void sha1_vectors(void **state) {
    (void)state;
    char hex[41];
    /* FIPS 180-4 examples, and the block boundaries 55, 56, 64 computed with coreutils' sha1sum */
    static const char long_text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    sha1_of("", 0, 1, hex);
    assert_string_equal(hex, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    sha1_of("abc", 3, 3, hex);
    assert_string_equal(hex, "a9993e364706816aba3e25717850c26c9cd0d89d");
    for (size_t step = 1; step <= 56; step++) {
        sha1_of(long_text, 56, step, hex);
        assert_string_equal(hex, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    }
    char a[1000];
    memset(a, 'a', sizeof(a));
    sha1_of(a, 55, 7, hex);
    assert_string_equal(hex, "c1c8bbdc22796e28c0e15163d20899b65621d65a");
    sha1_of(a, 64, 64, hex);
    assert_string_equal(hex, "0098ba824b5c16427bd7a1122a5a442a25ec644d");
    sha1_of(a, 1000, 999, hex);
    assert_string_equal(hex, "291e9a6c66994949b57ba5e650361e98fc36b1ba");
}

static void files_are_hashed(void **state) {
    (void)state;
    char path[128], hex[65];
    bl_err err;
    snprintf(path, sizeof(path), "/tmp/bl_test_download.%ld", (long)getpid());
    assert_int_equal(bl_file_write_atomic(path, "hello\n", 6, &err), BL_OK);
    assert_int_equal(bl_hash_file(path, BL_HASH_SHA256, hex, &err), BL_OK);
    assert_string_equal(hex, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    /* `printf 'hello\n' | git hash-object --stdin` */
    assert_int_equal(bl_hash_file(path, BL_HASH_GIT_BLOB, hex, &err), BL_OK);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(bl_hash_file(path, BL_HASH_SHA256, hex, &err), BL_ENOTFOUND);
}

static void urls_are_escaped(void **state) {
    (void)state;
    bl_buf b;
    bl_buf_init(&b, 100);
    assert_int_equal(bl_url_append_escaped(&b, "a b/ü?#%&~-._9", true, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&b), "a%20b/%C3%BC%3F%23%25%26~-._9");
    bl_buf_reset(&b);
    assert_int_equal(bl_url_append_escaped(&b, "refs/pr/1", false, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&b), "refs%2Fpr%2F1");
    bl_buf_done(&b);
}

static void repositories_and_files_have_safe_names(void **state) {
    (void)state;
    static const char *const repos[] = {"a/b", "Org-1/Model.v2_x", "a/b@main", "a/b@refs/pr/1", "a/b@v1.0-x"};
    static const char *const no_repos[] = {
        "",     "a",    "a/",   "/b",    "a//b", "a/b/c",  "../b",    "a/..",     "a--x/b",    "a/b--c",
        "-a/b", "a/b.", "a/.b", "a b/c", "a/b@", "a/b@..", "a/b@x y", "a/b@x..y", "\xc3\xbc/b"};
    for (size_t i = 0; i < BL_COUNTOF(repos); i++) {
        assert_true(bl_hub_is_repo(repos[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(no_repos); i++) {
        assert_false(bl_hub_is_repo(no_repos[i]));
    }
    static const char *const files[] = {"a", "a/b.gguf", "model-00001-of-00002.safetensors", "a b",
                                        "\xc3\xbc"};
    static const char *const no_files[] = {"",       "/a",   "a/", "a//b", ".",    "..",   "../a",
                                           "a/../b", "a/.b", ".a", "a\\b", "a\nb", "a\x7f"};
    for (size_t i = 0; i < BL_COUNTOF(files); i++) {
        assert_true(bl_hub_safe_name(files[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(no_files); i++) {
        assert_false(bl_hub_safe_name(no_files[i]));
    }
    char long_name[600];
    memset(long_name, 'a', sizeof(long_name));
    long_name[201] = '\0';
    assert_false(bl_hub_safe_name(long_name));
    long_name[200] = '\0';
    assert_true(bl_hub_safe_name(long_name));
}

static void built_in_models_add_up(void **state) {
    (void)state;
    for (size_t i = 0; i < bl_n_demo_models; i++) {
        const bl_demo_model *m = &bl_demo_models[i];
        uint64_t sum = 0;
        for (uint32_t k = 0; k < m->n_parts; k++) {
            sum += m->parts[k].size_bytes;
            assert_int_equal(strlen(m->parts[k].sha256), 64);
        }
        assert_int_equal(sum, m->size_bytes);
        assert_ptr_equal(bl_demo_find(m->name), m);
        assert_false(bl_hub_is_repo(m->name));
    }
    assert_null(bl_demo_find("gemma"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha1_vectors),           cmocka_unit_test(files_are_hashed),
        cmocka_unit_test(urls_are_escaped),       cmocka_unit_test(repositories_and_files_have_safe_names),
        cmocka_unit_test(built_in_models_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
