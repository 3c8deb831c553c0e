/* Sequences whose keys, values and states are functions of the tokens so far, as a model's are: what is found
 * in a tile says which tokens it came from. */
#ifndef BL_TESTS_KV_FILLER_H
#define BL_TESTS_KV_FILLER_H

#include <string.h>

#include "base/base.h"
#include "runtime/kv.h"

#define FILLER_MAX_TOKENS 2048u

static uint64_t filler_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

/* Of tokens[0..pos]: what position pos of every layer depends on. */
static uint64_t filler_hash(const int32_t *tokens, uint32_t pos) {
    uint64_t h = 1;
    for (uint32_t i = 0; i <= pos; i++) {
        h = filler_mix(h, (uint64_t)(uint32_t)tokens[i] + 1);
    }
    return h;
}

/* The element's bytes in a tile: K [head_dim][64], then V [64][head_dim], per head. */
static uint32_t filler_value(uint64_t hash, uint32_t layer, uint32_t i) {
    return (uint32_t)(filler_mix(filler_mix(hash, layer), i) >> 16);
}

/* Writes position pos of a tile, or compares it; false when it differs. */
static bool filler_position(const bl_kv_geometry *g, uint32_t layer, void *tile, uint32_t pos, uint64_t hash,
                            bool write) {
    uint32_t heads = g->layers[layer].n_kv_heads, dim = g->layers[layer].head_dim, p = pos % BL_KV_TILE;
    size_t width = g->f32 ? 4 : 2;
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t d = 0; d < 2 * dim; d++) {
            size_t at = (size_t)h * 2 * BL_KV_TILE * dim;
            at +=
                d < dim ? (size_t)d * BL_KV_TILE + p : (size_t)BL_KV_TILE * dim + (size_t)p * dim + (d - dim);
            uint32_t v = filler_value(hash, layer, h * 2 * dim + d);
            uint8_t *to = (uint8_t *)tile + at * width;
            if (write) {
                memcpy(to, &v, width);
            } else if (memcmp(to, &v, width) != 0) {
                return false;
            }
        }
    }
    return true;
}

static void filler_states(const bl_kv_geometry *g, float *to, uint64_t hash) {
    size_t n = (size_t)bl_kv_state_bytes(g) / sizeof *to;
    for (size_t i = 0; i < n; i++) {
        to[i] = (float)(uint16_t)filler_value(hash, 77, (uint32_t)i);
    }
}

/* One step of n rows: reserve, store, commit. The code of reserve. */
static bl_code filler_step(const bl_kv_geometry *g, bl_kv_seq *s, const int32_t *tokens, uint32_t n) {
    uint32_t len = bl_kv_seq_len(s);
    bl_code rc = bl_kv_seq_reserve(s, n, NULL);
    if (rc != BL_OK || n == 0) {
        return rc;
    }
    uint64_t h = len > 0 ? filler_hash(tokens, len - 1) : 1;
    for (uint32_t p = len; p < len + n; p++) {
        h = filler_mix(h, (uint64_t)(uint32_t)tokens[p] + 1);
        for (uint32_t l = 0; l < g->n_layers; l++) {
            (void)filler_position(g, l, bl_kv_seq_tile(s, l, p / BL_KV_TILE), p, h, true);
        }
    }
    if (g->n_states > 0) {
        filler_states(g, bl_kv_seq_states(s), h);
    }
    bl_kv_seq_commit(s, n);
    return BL_OK;
}

/* Everything that the next position sees is what these tokens give, byte for byte. */
static bool filler_check(const bl_kv_geometry *g, const bl_kv_seq *s, const int32_t *tokens) {
    uint32_t len = bl_kv_seq_len(s);
    uint64_t h = 1;
    for (uint32_t p = 0; p < len; p++) {
        h = filler_mix(h, (uint64_t)(uint32_t)tokens[p] + 1);
        for (uint32_t l = 0; l < g->n_layers; l++) {
            void *tile = bl_kv_seq_tile(s, l, p / BL_KV_TILE);
            bool seen = g->layers[l].window == 0 || len - p < g->layers[l].window;
            if (seen && (!tile || !filler_position(g, l, tile, p, h, false))) {
                return false;
            }
        }
    }
    static float want[4096];
    if (g->n_states > 0 && len > 0) {
        filler_states(g, want, h);
        return memcmp(want, bl_kv_seq_states(s), (size_t)bl_kv_state_bytes(g)) == 0;
    }
    return true;
}

#endif
