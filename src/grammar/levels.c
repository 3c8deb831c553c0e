/* Which nodes behave alike for a while. Two nodes have the same label at level k when the texts of at most k
 * bytes that lead on from them are the same (k rounds of partition refinement, classes named by hashes). A
 * counted string has a node for each character, but far from its end they differ only for long tokens: a mask
 * that is known for one serves the other, and only tokens of more than k bytes are walked again.
 */
#include "base/base.h"
#include "grammar/internal.h"
#include "grammar/limits.h"

#define MAX_WORK (64u << 20) /* labels made: about 0.1 s */

static const uint8_t levels[BL_GRAMMAR_LEVELS] = {48, 32, 24, 18, 14, 10, 7, 4};

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* The label of node i one level up. A call that cannot be empty takes at least a byte, so what is behind it
 * is asked for one byte less; behind one that can be empty the same number is left: `same` are the labels of
 * this level, as far as they are known. */
static uint64_t label(const bl_grammar *g, uint32_t i, const uint64_t *below, const uint64_t *same,
                      const bool *nullable) {
    const bl_gnode *x = &g->nodes[i];
    uint64_t h =
        mix(0xCBF29CE484222325u, (uint64_t)x->end | (uint64_t)x->need << 8 | (uint64_t)x->n_calls << 16);
    for (uint32_t c = 0; c < g->n_classes && x->row > 0; c++) {
        uint32_t to = g->table[x->row + c];
        h = mix(h, to == 0 ? 0 : below[to]);
    }
    for (uint32_t k = 0; k < x->n_calls; k++) {
        const bl_gcall *call = &g->calls[x->calls + k];
        h = mix(h, call->start);
        h = mix(h, nullable[call->start] ? same[call->back] : below[call->back]);
    }
    return h;
}

static bool calls_empty(const bl_grammar *g, uint32_t i, const bool *nullable) {
    for (uint32_t k = 0; k < g->nodes[i].n_calls; k++) {
        if (nullable[g->calls[g->nodes[i].calls + k].start]) {
            return true;
        }
    }
    return false;
}

/* At most this many calls that can be empty follow each other: the drawings of JSON put a byte between any
 * two calls of space. */
#define MAX_EMPTY_CALLS 3

bl_code bl_grammar_find_levels(bl_grammar *g, const bool *nullable, bl_err *err) {
    uint64_t per_round = (uint64_t)g->n_nodes * g->n_classes;
    uint32_t first = 0, n = g->n_nodes;
    while (first < BL_GRAMMAR_LEVELS && per_round * levels[first] > MAX_WORK) {
        first++;
    }
    g->n_levels = BL_GRAMMAR_LEVELS - first;
    if (g->n_levels == 0) {
        return BL_OK;
    }
    uint64_t *below = bl_alloc_array(n, sizeof *below), *same = bl_alloc_array(n, sizeof *same);
    g->labels = bl_alloc_array((size_t)n * g->n_levels, sizeof *g->labels);
    if (!below || !same || !g->labels) {
        bl_free(below);
        bl_free(same);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a grammar");
    }
    for (uint32_t i = 1; i < n; i++) {
        below[i] = 1; /* alive; nothing else is asked at level 0 */
    }
    uint32_t at = g->n_levels; /* filled from the shallowest, which is last */
    for (uint32_t round = 1; round <= levels[first]; round++) {
        for (uint32_t i = 1; i < n; i++) {
            same[i] = label(g, i, below, below, nullable);
        }
        for (int again = 0; again < MAX_EMPTY_CALLS; again++) {
            for (uint32_t i = 1; i < n; i++) {
                same[i] = calls_empty(g, i, nullable) ? label(g, i, below, same, nullable) : same[i];
            }
        }
        if (round == levels[first + at - 1]) {
            at--;
            g->level_bytes[at] = levels[first + at];
            for (uint32_t i = 0; i < n; i++) {
                g->labels[(size_t)at * n + i] = same[i];
            }
        }
        uint64_t *t = below;
        below = same;
        same = t;
    }
    bl_free(below);
    bl_free(same);
    return BL_OK;
}
