/* A walk along a grammar's masks for both fuzzers: nothing that compiles may ever get stuck, and what a mask
 * allows is accepted.
 */
#ifndef BL_TESTS_FUZZ_GRAMMAR_FUZZ_H
#define BL_TESTS_FUZZ_GRAMMAR_FUZZ_H

#include "base/base.h"
#include "base/rng.h"
#include "grammar/grammar.h"

#define FUZZ_LONG 12u /* tokens of two bytes beside one for each byte */

static inline void fuzz_walk(bl_grammar *g, uint64_t seed) {
    static const char pairs[] = "\"}\": {\"\"]abaa00\\n\\u\xc3\xa9\"}}]";
    char bytes[256 + 2 * FUZZ_LONG];
    uint32_t n[256 + FUZZ_LONG], mask[(256 + FUZZ_LONG + 31) / 32];
    for (uint32_t i = 0; i < 256 + FUZZ_LONG; i++) {
        n[i] = i < 256 ? 1 : 2;
    }
    for (uint32_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = i < 256 ? (char)i : pairs[(i - 256) % (sizeof pairs - 1)];
    }
    bl_grammar_vocab *v = NULL;
    bl_grammar_state *s = NULL;
    BL_ASSERT(bl_grammar_vocab_from_bytes(bytes, n, 256 + FUZZ_LONG, &v, NULL) == BL_OK);
    BL_ASSERT(bl_grammar_state_new(g, v, &s, NULL) == BL_OK);
    for (int i = 0; i < 48; i++) {
        bool may_end = false, is_free = true;
        uint32_t count = 0;
        BL_ASSERT(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL) == BL_OK && !is_free);
        for (uint32_t id = 0; id < 256 + FUZZ_LONG; id++) {
            count += mask[id / 32] >> id % 32 & 1u;
        }
        BL_ASSERT(count > 0 || may_end);
        if (count == 0) {
            break;
        }
        uint64_t pick = bl_rng_next(&seed) % count;
        for (uint32_t id = 0; id < 256 + FUZZ_LONG; id++) {
            bool allowed = mask[id / 32] >> id % 32 & 1u;
            if (allowed && pick-- == 0) {
                BL_ASSERT(bl_grammar_state_accept(s, (int32_t)id, NULL) == BL_OK);
                break;
            }
        }
    }
    bl_grammar_state_free(s);
    bl_grammar_vocab_unref(v);
}

static inline uint64_t fuzz_seed(const uint8_t *data, size_t size) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < size; i++) {
        h = (h ^ data[i]) * 0x100000001B3u;
    }
    return h;
}

/* What compiling gave: an automaton along which one can always go on, or an error that is not ours and has a
 * message. */
static inline void fuzz_judge(bl_code rc, bl_grammar *g, const bl_err *err, const uint8_t *data,
                              size_t size) {
    if (rc == BL_OK) {
        fuzz_walk(g, fuzz_seed(data, size));
        bl_grammar_unref(g);
    } else {
        BL_ASSERT(!g && err->msg[0] && rc != BL_EINTERNAL);
    }
}

#endif
