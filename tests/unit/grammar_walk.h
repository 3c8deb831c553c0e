/* Shared by the grammar tests: a small vocabulary, whole texts through an automaton, random walks along
 * masks. Include in one file per test program.
 */
#ifndef BL_TESTS_UNIT_GRAMMAR_WALK_H
#define BL_TESTS_UNIT_GRAMMAR_WALK_H

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/rng.h"
#include "grammar/grammar.h"

/* Every byte, then longer tokens as models have them; two without text among them, and two that are equal. */
static const char *const walk_tokens[] = {"",         "\"",       "\",",
                                          "\": ",     "\":",      "{\"",
                                          "\"}",      "\"]",      "[\"",
                                          "}}",       "]]",       "},",
                                          "], ",      "{}",       "[]",
                                          "\n",       "\n  ",     "  ",
                                          ": ",       ", ",       "true",
                                          "false",    "null",     "rue",
                                          "12",       "3.14",     "00",
                                          "-1",       "e+5",      "aa",
                                          "ab",       "abc",      "name",
                                          "\"name\"", "\"a\":",   "foo",
                                          "hello ",   " world",   "2024",
                                          "-02",      "-29T",     ":00",
                                          "Z\"",      "\\\"",     "\\n",
                                          "\\u00",    "\\uD83D",  "\xc3\xa9",
                                          "\xe2\x82", "\x82\xac", "\xf0\x9f\x98\x80",
                                          "\xf0\x9f", "a\",\"b",  "{\"a\": 1, \"b\":",
                                          "",         "x,y",      "()",
                                          "\"c\""};
#define WALK_VOCAB (256u + BL_COUNTOF(walk_tokens))
#define WALK_WORDS ((WALK_VOCAB + 31) / 32)

static char walk_bytes[4096];
static uint32_t walk_len[WALK_VOCAB], walk_off[WALK_VOCAB];

static inline bl_grammar_vocab *walk_vocab(void) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < WALK_VOCAB; i++) {
        walk_off[i] = at;
        walk_len[i] = i < 256 ? 1 : (uint32_t)strlen(walk_tokens[i - 256]);
        if (i < 256) {
            walk_bytes[at] = (char)i;
        } else {
            memcpy(walk_bytes + at, walk_tokens[i - 256], walk_len[i]);
        }
        at += walk_len[i];
    }
    bl_grammar_vocab *v = NULL;
    assert_int_equal(bl_grammar_vocab_from_bytes(walk_bytes, walk_len, WALK_VOCAB, &v, NULL), BL_OK);
    return v;
}

static inline bl_grammar_state *walk_state(bl_grammar *g, bl_grammar_vocab *v) {
    bl_grammar_state *s = NULL;
    assert_int_equal(bl_grammar_state_new(g, v, &s, NULL), BL_OK);
    return s;
}

/* 2: the whole text is an answer; 1: the beginning of one; 0: neither. From the start. */
static inline int walk_text(bl_grammar_state *s, const char *text, size_t n) {
    bl_grammar_state_reset(s);
    for (size_t i = 0; i < n; i++) {
        if (bl_grammar_state_accept_bytes(s, text + i, 1, NULL) != BL_OK) {
            return 0;
        }
    }
    return bl_grammar_state_may_end(s) ? 2 : 1;
}

static inline bool walk_allowed(const uint32_t *mask, uint32_t id) {
    return mask[id / 32] >> id % 32 & 1u;
}

/* The mask, which must never be empty unless the text may end. */
static inline bool walk_mask(bl_grammar_state *s, uint32_t mask[WALK_WORDS]) {
    bool may_end = false, is_free = true, any = false;
    assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
    assert_false(is_free);
    for (uint32_t i = 0; i < WALK_VOCAB; i++) {
        any = any || walk_allowed(mask, i);
    }
    assert_true(any || may_end);
    assert_true(may_end == bl_grammar_state_may_end(s));
    return may_end;
}

/* A mask bit for bit: a token is allowed exactly when its bytes are, from the text so far. */
static inline void walk_check_mask(bl_grammar_state *s, const bl_buf *so_far,
                                   const uint32_t mask[WALK_WORDS]) {
    for (uint32_t id = 0; id < WALK_VOCAB; id++) {
        bl_grammar_state_reset(s);
        for (size_t i = 0; i < so_far->len; i++) {
            assert_int_equal(bl_grammar_state_accept_bytes(s, so_far->data + i, 1, NULL), BL_OK);
        }
        bool ok = walk_len[id] > 0;
        for (uint32_t i = 0; i < walk_len[id] && ok; i++) {
            ok = bl_grammar_state_accept_bytes(s, walk_bytes + walk_off[id] + i, 1, NULL) == BL_OK;
        }
        assert_int_equal(ok, walk_allowed(mask, id));
    }
    bl_grammar_state_reset(s);
    for (size_t i = 0; i < so_far->len; i++) {
        assert_int_equal(bl_grammar_state_accept_bytes(s, so_far->data + i, 1, NULL), BL_OK);
    }
}

/* A random answer into text: random allowed tokens until the text may end and the dice say so. From `hurry`
 * tokens on, what closes something is preferred. False: the dice found no end. */
static inline bool walk_random(bl_grammar_state *s, uint64_t seed, uint32_t hurry, bl_buf *text) {
    uint32_t mask[WALK_WORDS];
    bl_grammar_state_reset(s);
    bl_buf_reset(text);
    for (uint32_t n = 0;; n++) {
        if (n > 60 * hurry) {
            return false;
        }
        bool may_end = walk_mask(s, mask);
        uint32_t count = 0, id = WALK_VOCAB;
        for (uint32_t i = 0; i < WALK_VOCAB; i++) {
            count += walk_allowed(mask, i);
        }
        if (may_end && (count == 0 || n > hurry || bl_rng_next(&seed) % 4 == 0)) {
            return true;
        }
        if (n == 3 || n == 17) {
            walk_check_mask(s, text, mask);
        }
        if (bl_rng_next(&seed) % 3 < (n > hurry ? 2u : 1u)) {
            static const char closers[] = "\"}]0n\"}]abcd1";
            uint64_t from = bl_rng_next(&seed);
            for (uint64_t k = 0; k < sizeof closers - 1 && id == WALK_VOCAB; k++) {
                uint8_t c = (uint8_t)closers[(from + k) % (sizeof closers - 1)];
                id = walk_allowed(mask, c) ? c : WALK_VOCAB;
            }
        }
        for (uint64_t pick = bl_rng_next(&seed) % count; id == WALK_VOCAB;) {
            for (uint32_t i = 0; i < WALK_VOCAB; i++) {
                if (walk_allowed(mask, i) && pick-- == 0) {
                    id = i;
                    break;
                }
            }
        }
        assert_int_equal(bl_grammar_state_accept(s, (int32_t)id, NULL), BL_OK);
        assert_int_equal(bl_buf_append(text, walk_bytes + walk_off[id], walk_len[id], NULL), BL_OK);
    }
}

#endif
