/* Regular expressions: what they accept is compared with PCRE2, what masks allow with what is accepted;
 * random walks along masks end in matching texts. */
#include "cmocka_all.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar_walk.h"

static bl_grammar *compile(const char *pattern) {
    bl_grammar *g = NULL;
    bl_err err = {0};
    bl_code rc = bl_grammar_from_regex(pattern, strlen(pattern), &g, &err);
    if (rc != BL_OK && rc != BL_ELIMIT) {
        fail_msg("%s: %s", pattern, err.msg);
    }
    return g; /* NULL: beyond a limit */
}

static pcre2_code *oracle(const char *pattern) {
    int code;
    size_t at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY,
                                  &code, &at, NULL);
    if (!c) {
        fail_msg("PCRE2 refuses %s", pattern);
    }
    return c;
}

/* Whole match; a partial one is enough with `partial`. */
static bool matches(pcre2_code *c, const char *text, size_t n) {
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(c, NULL);
    int rc = pcre2_match(c, (PCRE2_SPTR)text, n, 0, 0, m, NULL);
    pcre2_match_data_free(m);
    return rc >= 0;
}

static const char *const patterns[] = {
    "abc",
    "a*",
    "(ab|a)(c|bcd)*",
    "[a-c]{2,4}",
    "(a|b)*abb",
    "a?b?c?",
    "(?:a+b)+c{0,2}",
    "[^a]*",
    "[^\\n]+",
    ".*",
    ".{3}",
    "\\d+(\\.\\d+)?",
    "\\w+@\\w+\\.(com|org)",
    "\\s*a\\s*",
    "\\D\\W\\S",
    "[\\d\\-x]+",
    "[\\]\\^a-]+",
    "a{3}b{2,}",
    "(a{1,3}|b){2}",
    "|a||b",
    "",
    "()",
    "(a|)b",
    "^abc$",
    "^(a|bc)*$",
    "\\$\\^\\.\\*\\(\\)\\[\\]\\{\\}\\\\\\/\\|\\+\\?",
    "\xc3\xa9+",
    "[\xc3\xa0-\xc3\xbf\xe2\x82\xac]{1,3}",
    "[^\xc3\xa9]",
    "[\xf0\x9f\x98\x80-\xf0\x9f\x98\x8f]",
    "\\x41\\t\\n?",
    "(?<name>a)b",
    "(?P<n>a|b)+?c*?",
    "[[]a]",
    "a-b]c",
    "((((a))))*",
    "(a*)*b",
    "(a*b*)*c",
    "[0-9a-fA-F]{4}(-[0-9a-f]{2}){0,3}",
};

/* Texts of the pattern's own characters, so that matches are not rare. */
static size_t random_text(uint64_t *seed, const char *pattern, char *out, size_t max) {
    static const char *const pieces[] = {"a",
                                         "b",
                                         "c",
                                         "ab",
                                         "1",
                                         "2.5",
                                         " ",
                                         "\n",
                                         "-",
                                         "@",
                                         ".com",
                                         "x",
                                         "\xc3\xa9",
                                         "\xe2\x82\xac",
                                         "\xf0\x9f\x98\x81",
                                         "A",
                                         "\t",
                                         "]",
                                         "^",
                                         "z",
                                         "_"};
    size_t n = 0, want = bl_rng_next(seed) % 9;
    for (size_t i = 0; i < want; i++) {
        char one[8] = {0};
        size_t len = strlen(pattern);
        const char *p = pieces[bl_rng_next(seed) % BL_COUNTOF(pieces)];
        if (bl_rng_next(seed) % 2 && len > 0) {
            uint32_t cp;
            size_t at = bl_rng_next(seed) % len, k = bl_utf8_decode(pattern + at, len - at, &cp);
            memcpy(one, pattern + at, k);
            p = k > 0 ? one : p;
        }
        if (n + strlen(p) < max) {
            memcpy(out + n, p, strlen(p));
            n += strlen(p);
        }
    }
    return n;
}

static uint32_t n_walks; /* that came to an end */

static uint32_t compare(const char *pattern, bl_grammar_vocab *v, uint64_t seed, int n_texts) {
    bl_grammar *g = compile(pattern);
    if (!g) {
        return 0;
    }
    bl_grammar_state *s = walk_state(g, v);
    pcre2_code *c = oracle(pattern);
    uint32_t n_matched = 0;
    for (int i = 0; i < n_texts; i++) {
        char text[64];
        size_t n = random_text(&seed, pattern, text, sizeof text);
        bool want = matches(c, text, n);
        int got = walk_text(s, text, n);
        if ((got == 2) != want) {
            fail_msg("pattern %s, text '%.*s': %d, PCRE2 says %d", pattern, (int)n, text, got, want);
        }
        n_matched += want;
        for (size_t k = 0; k < n && want; k++) {
            assert_true(walk_text(s, text, k) > 0);
        }
    }
    bl_buf text;
    bl_buf_init(&text, 1 << 20);
    for (uint64_t walk = 0; walk < 10; walk++) {
        bool ended = walk_random(s, seed + walk, 60, &text);
        n_walks += ended;
        if (ended && !matches(c, bl_buf_str(&text), text.len)) {
            fail_msg("pattern %s, walk %llu: '%.200s'", pattern, (unsigned long long)walk, bl_buf_str(&text));
        }
    }
    bl_buf_done(&text);
    pcre2_code_free(c);
    bl_grammar_state_free(s);
    bl_grammar_unref(g);
    return n_matched;
}

static void test_against_pcre2(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    uint32_t n_matched = 0;
    for (size_t i = 0; i < BL_COUNTOF(patterns); i++) {
        n_matched += compare(patterns[i], v, 100 + i, 400);
    }
    assert_true(n_matched > 500 && n_walks > 350); /* the texts are not all foreign to the patterns */
    bl_grammar_vocab_unref(v);
}

/* A random pattern over few characters. */
static void random_pattern(uint64_t *seed, int depth, bl_buf *b) {
    static const char *const atoms[] = {"a", "b", "c", "[ab]", "[^a]", ".", "\\d", "1", "\xc3\xa9"};
    static const char *const repeats[] = {"*", "+", "?", "{2}", "{0,3}", "{1,}", "{2,3}?"};
    uint64_t parts = 1 + bl_rng_next(seed) % 3;
    for (uint64_t i = 0; i < parts; i++) {
        if (depth > 0 && bl_rng_next(seed) % 3 == 0) {
            assert_int_equal(bl_buf_append_str(b, "(", NULL), BL_OK);
            random_pattern(seed, depth - 1, b);
            if (bl_rng_next(seed) % 2) {
                assert_int_equal(bl_buf_append_str(b, "|", NULL), BL_OK);
                random_pattern(seed, depth - 1, b);
            }
            assert_int_equal(bl_buf_append_str(b, ")", NULL), BL_OK);
        } else {
            const char *a = atoms[bl_rng_next(seed) % BL_COUNTOF(atoms)];
            assert_int_equal(bl_buf_append_str(b, a, NULL), BL_OK);
        }
        if (bl_rng_next(seed) % 3 == 0) {
            const char *r = repeats[bl_rng_next(seed) % BL_COUNTOF(repeats)];
            assert_int_equal(bl_buf_append_str(b, r, NULL), BL_OK);
        }
    }
}

static void test_random_patterns(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    bl_buf b;
    bl_buf_init(&b, 4096);
    uint32_t n_matched = 0;
    n_walks = 0;
    for (uint64_t i = 0; i < 250; i++) {
        uint64_t seed = 1000 + i;
        bl_buf_reset(&b);
        random_pattern(&seed, 2, &b);
        n_matched += compare(bl_buf_str(&b), v, seed, 60);
    }
    assert_true(n_matched > 300 && n_walks > 2200);
    bl_buf_done(&b);
    bl_grammar_vocab_unref(v);
}

static void test_refusals_have_names(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        bl_code code;
        const char *msg;
    } bad[] = {
        {"a(?=b)", BL_ENOTSUP, "the pattern has a look-ahead at byte 2, which is not supported"},
        {"(?!b)", BL_ENOTSUP, "the pattern has a look-ahead at byte 1, which is not supported"},
        {"(?<=b)c", BL_ENOTSUP, "the pattern has a look-behind at byte 1, which is not supported"},
        {"(?<!b)c", BL_ENOTSUP, "the pattern has a look-behind at byte 1, which is not supported"},
        {"(a)\\1", BL_ENOTSUP, "the pattern has a back-reference at byte 4, which is not supported"},
        {"(?<n>a)\\k<n>", BL_ENOTSUP, "the pattern has a back-reference at byte 8, which is not supported"},
        {"\\bfoo", BL_ENOTSUP, "the pattern has a word boundary at byte 1, which is not supported"},
        {"\\p{L}", BL_ENOTSUP, "the pattern has a Unicode property at byte 1, which is not supported"},
        {"(?i)a", BL_ENOTSUP, "the pattern has an inline flag at byte 1, which is not supported"},
        {"(?>a)", BL_ENOTSUP, "the pattern has an atomic group at byte 1, which is not supported"},
        {"a++", BL_ENOTSUP, "the pattern has a possessive repetition at byte 2, which is not supported"},
        {"a^b", BL_ENOTSUP,
         "the pattern has an anchor that is not at an end at byte 1, which is not supported"},
        {"a$b", BL_ENOTSUP,
         "the pattern has an anchor that is not at an end at byte 1, which is not supported"},
        {"(^a)", BL_ENOTSUP,
         "the pattern has an anchor that is not at an end at byte 1, which is not supported"},
        {"[[:alpha:]]", BL_ENOTSUP, "the pattern has a POSIX class at byte 1, which is not supported"},
        {"\\q", BL_ENOTSUP,
         "the pattern has an escaped letter without meaning at byte 1, which is not supported"},
        {"(a", BL_EINVAL, "the pattern has an unfinished group at byte 0"},
        {"a)", BL_EINVAL, "the pattern has a closing parenthesis too many at byte 1"},
        {"[a", BL_EINVAL, "the pattern has an unfinished class at byte 0"},
        {"[b-a]", BL_EINVAL, "the pattern has a range of characters out of order at byte 4"},
        {"[]", BL_EINVAL, "the pattern has a class that no character is in at byte 2"},
        {"*a", BL_EINVAL, "the pattern has a repetition of nothing at byte 0"},
        {"a**", BL_EINVAL, "the pattern has a repetition of a repetition at byte 2"},
        {"a{3,2}", BL_EINVAL, "the pattern has a repetition whose bounds are out of order at byte 6"},
        {"a{", BL_EINVAL, "the pattern has a brace; write \\{ at byte 1"},
        {"a{2", BL_EINVAL, "the pattern has an unfinished repetition at byte 1"},
        {"\\", BL_EINVAL, "the pattern has a backslash at its end at byte 1"},
        {"\\x4", BL_EINVAL, "the pattern has a bad hexadecimal escape at byte 3"},
        {"\\ud800", BL_EINVAL, "the pattern has a bad hexadecimal escape at byte 6"},
        {"\xff", BL_EINVAL, "the pattern has a byte that is no UTF-8 at byte 0"},
        {"a{10001}", BL_ELIMIT, "the pattern repeats 10001 times at byte 7, at most 10000 are allowed"},
        {"(a|b)*a(a|b){17}", BL_ELIMIT, "the grammar needs more than 100000 nodes"},
        {"((a{1000}){1000}){1000}", BL_ELIMIT,
         "the grammar needs more than 400000 nodes before it is determinised"},
    };
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_grammar *g = NULL;
        bl_err err = {0};
        bl_code rc = bl_grammar_from_regex(bad[i].pattern, strlen(bad[i].pattern), &g, &err);
        if (rc != bad[i].code || strcmp(err.msg, bad[i].msg) != 0 || g) {
            fail_msg("%s: %s: %s", bad[i].pattern, bl_code_name(rc), err.msg);
        }
    }
    static char text[20000];
    bl_grammar *g = NULL;
    bl_err err = {0};
    memset(text, 'a', sizeof text);
    assert_int_equal(bl_grammar_from_regex(text, 16384, &g, &err), BL_OK);
    bl_grammar_unref(g);
    assert_int_equal(bl_grammar_from_regex(text, 16385, &g, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "the pattern has 16385 bytes, at most 16384 are allowed");
    memset(text, '(', 65);
    assert_int_equal(bl_grammar_from_regex(text, 70, &g, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "the pattern nests groups deeper than 64");
}

/* Kept masks are the masks; kept for more configurations than fit. */
static void test_kept_masks(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    bl_grammar *g = compile("[a-z]{0,600}");
    bl_grammar_state *s = walk_state(g, v), *t = walk_state(g, v);
    uint32_t first[WALK_WORDS], mask[WALK_WORDS];
    for (int round = 0; round < 3; round++) {
        bl_grammar_state_reset(s);
        bl_grammar_state_reset(t);
        for (int i = 0; i < 600; i++) {
            (void)walk_mask(s, first);
            (void)walk_mask(t, mask);
            assert_memory_equal(first, mask, sizeof mask);
            /* "abc" fits until there are two left */
            assert_int_equal(walk_allowed(mask, 256 + 31), i <= 597);
            assert_int_equal(bl_grammar_state_accept(s, 'x', NULL), BL_OK);
            assert_int_equal(bl_grammar_state_accept(t, 'x', NULL), BL_OK);
        }
        assert_true(walk_mask(s, mask));
        for (uint32_t i = 0; i < WALK_WORDS; i++) {
            assert_int_equal(mask[i], 0);
        }
    }
    bl_err err = {0};
    assert_int_equal(bl_grammar_state_accept(s, 'x', &err), BL_EINVAL);
    assert_int_equal(bl_grammar_state_accept(s, (int32_t)WALK_VOCAB, &err), BL_EINVAL);
    assert_int_equal(bl_grammar_state_accept(s, 256, &err), BL_EINVAL); /* no text */
    assert_true(bl_grammar_state_may_end(s));
    bl_grammar_state_free(s);
    bl_grammar_state_free(t);
    bl_grammar_unref(g);
    bl_grammar_vocab_unref(v);
}

/* Masks that are made from those of like configurations: at each place of a random text they are what the
 * bytes say. */
static void test_masks_of_counted_texts(void **state) {
    (void)state;
    static const char *const counted[] = {"[a-z]{0,70}", "(ab?c?){3,40}d", "[^,]{1,20}(, [^,]{1,9}){0,9}",
                                          ".{2,60}x?", "(a|bc|\\d{2}){0,30}(foo)?"};
    bl_grammar_vocab *v = walk_vocab();
    bl_buf text;
    bl_buf_init(&text, 1 << 16);
    for (size_t i = 0; i < BL_COUNTOF(counted); i++) {
        bl_grammar *g = compile(counted[i]);
        bl_grammar_state *s = walk_state(g, v);
        for (uint64_t seed = 1; seed <= 3; seed++) {
            uint64_t dice = seed * 77 + i;
            uint32_t mask[WALK_WORDS], count;
            bl_buf_reset(&text);
            bl_grammar_state_reset(s);
            do {
                (void)walk_mask(s, mask);
                walk_check_mask(s, &text, mask);
                count = 0;
                for (uint32_t id = 0; id < WALK_VOCAB; id++) {
                    count += walk_allowed(mask, id);
                }
                uint64_t pick = count > 0 ? bl_rng_next(&dice) % count : 0;
                for (uint32_t id = 0; id < WALK_VOCAB && count > 0; id++) {
                    if (walk_allowed(mask, id) && pick-- == 0) {
                        assert_int_equal(bl_grammar_state_accept(s, (int32_t)id, NULL), BL_OK);
                        assert_int_equal(bl_buf_append(&text, walk_bytes + walk_off[id], walk_len[id], NULL),
                                         BL_OK);
                        break;
                    }
                }
            } while (count > 0 && text.len < 400);
        }
        bl_grammar_state_free(s);
        bl_grammar_unref(g);
    }
    bl_buf_done(&text);
    bl_grammar_vocab_unref(v);
}

/* Anything until the marker, then blanks, then the grammar. */
static void test_begins_after_a_marker(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    bl_grammar *g = compile("abc|ab");
    bl_grammar_state *s = walk_state(g, v);
    uint32_t mask[WALK_WORDS];
    bool may_end, is_free;
    assert_int_equal(bl_grammar_state_begin_after(s, "</aab>", 6, 300, false, NULL), BL_OK);
    const char *before[] = {"</aab>", "x</aa</aab>", "</</aab> \n", "<</aab>\n\n"};
    for (size_t i = 0; i < BL_COUNTOF(before) + 1; i++) {
        bl_grammar_state_reset(s);
        for (const char *c = i > 0 ? before[i - 1] : ""; *c; c++) {
            if (c[0] != ' ' && c[0] != '\n') {
                assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
                assert_true(is_free && may_end && !bl_grammar_state_may_end(s));
            }
            assert_int_equal(bl_grammar_state_accept(s, (uint8_t)*c, NULL), BL_OK);
        }
        if (i == 0) { /* the same by its token; one without text may come before */
            assert_int_equal(bl_grammar_state_accept(s, 256, NULL), BL_OK);
            assert_int_equal(bl_grammar_state_accept(s, 300, NULL), BL_OK);
        }
        assert_false(walk_mask(s, mask));
        assert_true(walk_allowed(mask, 'a') && walk_allowed(mask, '\n') && !walk_allowed(mask, 'b'));
        assert_int_equal(bl_grammar_state_accept(s, 'b', NULL), BL_EINVAL);
        assert_int_equal(bl_grammar_state_accept(s, 'a', NULL), BL_OK);
        (void)walk_mask(s, mask);
        assert_true(walk_allowed(mask, 'b') && !walk_allowed(mask, '\n') && !walk_allowed(mask, ' '));
        assert_int_equal(bl_grammar_state_accept(s, 'b', NULL), BL_OK);
        assert_true(bl_grammar_state_may_end(s));
    }
    /* a token that would end the marker and overstep is not allowed; {"a": 1, "b": is the only one here */
    const uint32_t over = 256 + 53;
    assert_string_equal(walk_tokens[over - 256], "{\"a\": 1, \"b\":");
    assert_int_equal(bl_grammar_state_begin_after(s, "x{\"a", 4, -1, false, NULL), BL_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
        assert_true(is_free);
        assert_int_equal(bl_grammar_state_accept(s, i == 0 ? (int32_t)over : 'x', NULL), BL_OK);
    }
    assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
    assert_true(!is_free && may_end);
    for (uint32_t i = 0; i < WALK_VOCAB; i++) {
        assert_true(walk_allowed(mask, i) == (i != over));
    }
    assert_int_equal(bl_grammar_state_accept(s, (int32_t)over, NULL), BL_EINVAL);
    assert_int_equal(bl_grammar_state_accept_bytes(s, "{\"a\nab", 6, NULL), BL_OK);
    assert_true(bl_grammar_state_may_end(s));
    bl_err err = {0};
    assert_int_equal(bl_grammar_state_begin_after(s, "{\"a", 3, -1, false, &err), BL_ENOTSUP);
    assert_string_equal(err.msg, "a token of the vocabulary holds the marker of 3 bytes and more");
    assert_int_equal(bl_grammar_state_begin_after(s, "", 0, -1, false, &err), BL_EINVAL);
    bl_grammar_state_free(s);
    bl_grammar_unref(g);
    bl_grammar_vocab_unref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_pcre2),          cmocka_unit_test(test_random_patterns),
        cmocka_unit_test(test_refusals_have_names),    cmocka_unit_test(test_kept_masks),
        cmocka_unit_test(test_masks_of_counted_texts), cmocka_unit_test(test_begins_after_a_marker),
    };
    return cmocka_run_group_tests_name("grammar_regex", tests, NULL, NULL);
}
