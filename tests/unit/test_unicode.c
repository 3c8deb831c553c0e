/* formats/unicode: normal forms, properties; and the translated regular expressions of tokenizers. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cmocka_all.h"

#include "base/base.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "formats/tokenizer_regex.h"
#include "formats/unicode.h"

static void normal(bl_unicode_form form, const char *s, size_t n, bl_buf *ret) {
    bl_buf_init(ret, (size_t)1 << 26);
    assert_int_equal(bl_unicode_normalize(form, s, n, ret, NULL), BL_OK);
}

static void test_forms(void **state) {
    static const struct {
        const char *in, *nfc, *nfd, *nfkc;
    } rows[] = {
        {"", "", "", ""},
        {"plain ASCII\n", "plain ASCII\n", "plain ASCII\n", "plain ASCII\n"},
        {"e\xCC\x81", "\xC3\xA9", "e\xCC\x81", "\xC3\xA9"},
        {"\xC3\xA9", "\xC3\xA9", "e\xCC\x81", "\xC3\xA9"},
        {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87", "q\xCC\xA3\xCC\x87",
         "q\xCC\xA3\xCC\x87"}, /* reordered, not composed */
        {"\xE1\xB8\x8B\xCC\xA3", "\xE1\xB8\x8D\xCC\x87", "d\xCC\xA3\xCC\x87", "\xE1\xB8\x8D\xCC\x87"},
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
         "\xEA\xB0\x81"},                                      /* Hangul */
        {"\xE2\x84\xAB", "\xC3\x85", "A\xCC\x8A", "\xC3\x85"}, /* Angstrom sign */
        {"\xEF\xAC\x81 \xC2\xBD", "\xEF\xAC\x81 \xC2\xBD", "\xEF\xAC\x81 \xC2\xBD",
         "fi 1\xE2\x81\x84"
         "2"},
        {"\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC",
         "\xE0\xA4\x95\xE0\xA4\xBC"},                                                     /* excluded */
        {"\xCC\x81\xCC\xA3", "\xCC\xA3\xCC\x81", "\xCC\xA3\xCC\x81", "\xCC\xA3\xCC\x81"}, /* no base */
        /* newer than the reference's tables: no reordering across U+07FD, no composition of U+11938 */
        {"a\xDF\xBD\xCC\xB4", "a\xDF\xBD\xCC\xB4", "a\xDF\xBD\xCC\xB4", "a\xDF\xBD\xCC\xB4"},
        {"e\xDF\xBD\xCC\x81", "e\xDF\xBD\xCC\x81", "e\xDF\xBD\xCC\x81", "e\xDF\xBD\xCC\x81"},
        {"\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0",
         "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"},
        {"a\xCC\x81z\xCC\x81", "\xC3\xA1\xC5\xBA", "a\xCC\x81z\xCC\x81", "\xC3\xA1\xC5\xBA"},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        const char *want[] = {rows[i].nfc, rows[i].nfd, rows[i].nfkc};
        const bl_unicode_form forms[] = {BL_UNICODE_NFC, BL_UNICODE_NFD, BL_UNICODE_NFKC};
        for (size_t f = 0; f < 3; f++) {
            bl_buf out;
            normal(forms[f], rows[i].in, strlen(rows[i].in), &out);
            if (strcmp(bl_buf_str(&out), want[f]) != 0) {
                fail_msg("row %zu, form %zu: '%s'", i, f, bl_buf_str(&out));
            }
            bl_buf_done(&out);
        }
    }
}

/* Normalizing twice changes nothing, and composing does not depend on having decomposed first. */
static void test_forms_are_stable(void **state) {
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        static const uint32_t tops[] = {0x80, 0x370, 0x1200, 0x3400, 0x20000};
        char text[64];
        size_t n = 0;
        while (n < 40) {
            uint64_t r = bl_rng_next(&seed);
            uint32_t cp =
                r & 1 ? 0x300 + (uint32_t)(r >> 32) % 0x70 : (uint32_t)((r >> 32) % tops[(r >> 8) % 5]);
            n += bl_utf8_encode(cp >= 0xD800 && cp < 0xE000 ? 'x' : cp, text + n);
        }
        for (unsigned f = 0; f < BL_UNICODE_FORM__MAX; f++) {
            bl_buf once, twice, apart, joined;
            normal((bl_unicode_form)f, text, n, &once);
            normal((bl_unicode_form)f, bl_buf_str(&once), once.len, &twice);
            assert_int_equal(once.len, twice.len);
            assert_memory_equal(bl_buf_str(&once), bl_buf_str(&twice), once.len);
            if (f == BL_UNICODE_NFC) {
                normal(BL_UNICODE_NFD, text, n, &apart);
                normal(BL_UNICODE_NFC, bl_buf_str(&apart), apart.len, &joined);
                assert_int_equal(once.len, joined.len);
                assert_memory_equal(bl_buf_str(&once), bl_buf_str(&joined), once.len);
                bl_buf_done(&apart);
                bl_buf_done(&joined);
            }
            bl_buf_done(&once);
            bl_buf_done(&twice);
        }
    }
}

/* A million marks that all have to change places: minutes when sorted by insertion. */
static void test_marks_are_linear(void **state) {
    enum { N = 1 << 20 };
    (void)state;
    char *text = bl_alloc(N * 4);
    assert_non_null(text);
    for (size_t i = 0; i < N; i++) {
        memcpy(text + 4 * i, "\xCC\x81\xCC\xA3", 4);
    }
    bl_buf out;
    clock_t t0 = clock();
    normal(BL_UNICODE_NFC, text, N * 4, &out);
    assert_true((double)(clock() - t0) / CLOCKS_PER_SEC < 30);
    assert_int_equal(out.len, N * 4);
    assert_memory_equal(bl_buf_str(&out) + (N - 1) * 2, "\xCC\xA3\xCC\x81", 4);
    bl_buf_done(&out);
    bl_free(text);
}

static void test_properties(void **state) {
    static const uint32_t spaces[] = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,
                                      0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    static const uint32_t no_spaces[] = {0x8,    0xE,    0x1C,   0x1F,   0x21,  0x180E,
                                         0x200B, 0x200D, 0x2060, 0xFEFF, 0x2581};
    static const uint32_t words[] = {'a', 'Z', '0', '_', 0xE9, 0x301, 0x663, 0x4E00, 0x24B6, 0x200D, 0x2160};
    static const uint32_t no_words[] = {' ', '-', '\'', 0xBD, 0x20AC, 0x1F600, 0x2581};
    unsigned n = 0;
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(spaces); i++) {
        assert_true(bl_unicode_is_space(spaces[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(no_spaces); i++) {
        assert_false(bl_unicode_is_space(no_spaces[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(words); i++) {
        assert_true(bl_unicode_is_word(words[i]));
    }
    for (size_t i = 0; i < BL_COUNTOF(no_words); i++) {
        assert_false(bl_unicode_is_word(no_words[i]));
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        n += bl_unicode_is_space(cp);
    }
    assert_int_equal(n, 25);
}

static void test_lower(void **state) {
    bl_buf out;
    bl_err err = {0};
    (void)state;
    bl_buf_init(&out, 100);
    assert_int_equal(bl_unicode_lower("ABC \xC3\x9C \xC4\xB0 \xCE\xA3", 12, &out, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&out), "abc \xC3\xBC i\xCC\x87 \xCF\x83");
    bl_buf_reset(&out);
    assert_int_equal(bl_unicode_lower("a\xFF", 2, &out, &err), BL_EINVAL);
    assert_int_equal(bl_unicode_normalize(BL_UNICODE_NFC, "abc\xFF", 4, &out, &err), BL_EINVAL);
    assert_string_equal(err.msg, "unicode: invalid UTF-8 at byte 3");
    bl_buf_done(&out);
}

/* ---- regular expressions ---- */

static bool matches(const char *pattern, const char *text, size_t n, size_t *ret_end) {
    bl_tokenizer_regex *r = NULL;
    bl_tokenizer_scan *s = NULL;
    bl_err err = {0};
    size_t start = 0;
    bool found = false;
    if (bl_tokenizer_regex_new(pattern, strlen(pattern), &r, &err) != BL_OK) {
        fail_msg("%s: %s", pattern, err.msg);
    }
    assert_int_equal(bl_tokenizer_scan_new(n, &s, &err), BL_OK);
    assert_int_equal(bl_tokenizer_regex_find(r, s, text, n, 0, &start, ret_end, &found, &err), BL_OK);
    bl_tokenizer_scan_free(s);
    bl_tokenizer_regex_free(r);
    return found && start == 0;
}

static void test_regex_meaning(void **state) {
    static const struct {
        const char *pattern, *text;
        bool match;
    } rows[] = {
        {"\\s", "\xC2\x85", true},
        {"\\s", "\xC2\xA0", true},
        {"\\s", "\xE1\xA0\x8E", false}, /* U+180E is no space */
        {"\\S", "\xE1\xA0\x8E", true},
        {"[^\\s]", "\xE1\xA0\x8E", true},
        {"[\\S]", "\xE1\xA0\x8E", true},
        {"[\\S]", " ", false},
        {"\\s", "\x1C", false},
        {"[\\s]", "\xE2\x80\xA8", true},
        {"(?i:'s)", "'S", true},
        {"(?i:'s)", "'\xC5\xBF", true},
        {"(?i:'s)", "'\xC3\x9F", false},
        {"(?i:[sdmt])", "\xC5\xBF", true},
        {"(?i:k)", "\xE2\x84\xAA", true},
        {"'s", "'\xC5\xBF", false},
        {"\\d", "\xD9\xA3", true},
        {"\\p{N}", "\xC2\xBD", true},
        {"\\d", "\xC2\xBD", false},
        {"\\p{L}", "\xF0\xB1\x8D\x90", true}, /* U+31350, Unicode 15 */
        {"[^\\p{L}]", "\xF0\xB1\x8D\x90", false},
        {"\\P{L}", "\xF0\xB1\x8D\x90", false},
        {"\\p{Lo}", "\xF0\xB1\x8D\x90", true},
        {"\\p{Lu}", "\xF0\xB1\x8D\x90", false},
        {"\\d", "\xF0\x90\xB5\x80", true}, /* U+10D40, Unicode 16 */
        {"\\w", "\xE2\x92\xB6", true},
        {"[\\w]", "\xE2\x85\xA0", true},
        {"\\w", "\xC2\xBD", true},
        {"[\\w]", "\xC2\xBD", false},
        {"\\w", "_", true},
        {"\\w", "\xCC\x81", true},
        {"\\w", "-", false},
        {"\\W", "-", true},
        {"\\p{^L}", "1", true},
        {"\\P{L}", "a", false},
        {"\\p{Han}", "\xE7\x81\xAF", true},
        {"\\p{Han}", "\xE3\x80\x81", false},
        {".", "\n", false},
        {".", "\r", true},
        {"a$", "a\n", true},
        {"\\x41\\x{42}\\u0043", "ABC", true},
        {"[]a]", "]", true},
        {"[^]a]", "a", false},
        {"a++b", "aab", true},
        {"\\-\\.\\/", "-./", true},
        {"[\\-a]", "-", true},
        {"(?>a+)b|aa", "aa", true},
        {"a(?=b)", "ab", true},
        {"a(?!b)", "ab", false},
        {"\\Aa\\z", "a", true},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        size_t end = 0;
        if (matches(rows[i].pattern, rows[i].text, strlen(rows[i].text), &end) != rows[i].match) {
            fail_msg("row %zu: %s", i, rows[i].pattern);
        }
    }
}

/* A pattern that backtracks without end is given up in bounded time, text without a match included. */
static void test_regex_budget(void **state) {
    enum { N = 20000 };
    (void)state;
    char *text = bl_alloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    text[N - 1] = 'c'; /* or the engine sees that no match can end */
    bl_tokenizer_regex *r = NULL;
    bl_tokenizer_scan *s = NULL;
    bl_err err = {0};
    size_t start = 0, end = 0;
    bool found = false;
    static const char pattern[] = "(?:a|a|aa)*[^a]c";
    assert_int_equal(bl_tokenizer_regex_new(pattern, sizeof pattern - 1, &r, &err), BL_OK);
    assert_int_equal(bl_tokenizer_scan_new(N, &s, &err), BL_OK);
    clock_t t0 = clock();
    assert_int_equal(bl_tokenizer_regex_find(r, s, text, N, 0, &start, &end, &found, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "regular expression: match limit exceeded at byte 0 of 20000");
    assert_true((double)(clock() - t0) / CLOCKS_PER_SEC < 30);
    bl_tokenizer_scan_free(s);
    bl_tokenizer_regex_free(r);
    bl_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_forms_are_stable),
        cmocka_unit_test(test_marks_are_linear),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_lower),
        cmocka_unit_test(test_regex_meaning),
        cmocka_unit_test(test_regex_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
