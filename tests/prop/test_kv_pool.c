/* The key/value pool under random extends and cuts, against what must hold: every position that a later one
 * can see has a tile, no tile belongs to two places, nothing is lost, and the plan is never exceeded. The
 * seed is printed on failure.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "runtime/kv.h"

#define MAX_LAYERS 5u
#define MAX_HELD   8192u

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(bl_rng_next(seed) % n);
}

typedef struct {
    char *at;
    uint64_t bytes;
} held_tile;

static int by_address(const void *a, const void *b) {
    const held_tile *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Tiles of all sequences do not overlap, and their bytes are what the pool says. */
static void check_tiles(bl_kv_pool *p, bl_kv_seq *const *seqs, const bl_kv_geometry *g, uint64_t seed) {
    static held_tile held[MAX_HELD];
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < g->n_seqs; s++) {
        for (uint32_t l = 0; l < g->n_layers; l++) {
            const bl_kv_table *t = bl_kv_seq_table(seqs[s], l);
            uint64_t tile_bytes = bl_kv_tile_bytes(g->layers[l].n_kv_heads, g->layers[l].head_dim, g->f32);
            uint32_t in_layer = 0;
            for (uint32_t i = 0; i < t->n_tiles; i++) {
                if (t->tiles[i]) {
                    assert_true(n < MAX_HELD);
                    held[n++] = (held_tile){t->tiles[i], tile_bytes};
                    bytes += tile_bytes;
                    in_layer++;
                }
            }
            if (in_layer > bl_kv_max_tiles(g, l)) {
                fail_msg("seed %llu: layer %u holds %u tiles", (unsigned long long)seed, l, in_layer);
            }
        }
    }
    assert_int_equal(bl_kv_pool_bytes_in_use(p), bytes);
    qsort(held, n, sizeof *held, by_address);
    for (uint32_t i = 1; i < n; i++) {
        if ((uint64_t)(held[i].at - held[i - 1].at) < held[i - 1].bytes) {
            fail_msg("seed %llu: two places share a tile", (unsigned long long)seed);
        }
    }
}

/* Positions that rows [from, from + n) see have tiles. */
static void check_visible(const bl_kv_seq *s, const bl_kv_geometry *g, uint32_t from, uint32_t n,
                          uint64_t seed) {
    for (uint32_t l = 0; l < g->n_layers; l++) {
        uint32_t w = g->layers[l].window, low = w > 0 && from + 1 > w ? from + 1 - w : 0;
        const bl_kv_table *t = bl_kv_seq_table(s, l);
        for (uint32_t tile = low / BL_KV_TILE; tile <= (from + n - 1) / BL_KV_TILE; tile++) {
            if (tile >= t->n_tiles || !t->tiles[tile]) {
                fail_msg("seed %llu: rows %u+%u, layer %u: tile %u is missing", (unsigned long long)seed,
                         from, n, l, tile);
            }
        }
    }
}

static void run_seed(uint64_t seed0) {
    uint64_t seed = seed0;
    bl_kv_layer layers[MAX_LAYERS];
    bl_kv_geometry g = {.layers = layers,
                        .n_layers = 1 + below(&seed, MAX_LAYERS),
                        .n_context = 1 + below(&seed, 1500),
                        .max_rows = 1 + below(&seed, 300),
                        .n_seqs = 1 + below(&seed, 3),
                        .f32 = below(&seed, 2) == 0};
    for (uint32_t l = 0; l < g.n_layers; l++) {
        layers[l] = (bl_kv_layer){1 + below(&seed, 2), 16, below(&seed, 2) ? 1 + below(&seed, 400) : 0};
    }
    bl_kv_pool *p = NULL;
    bl_kv_seq *seqs[3] = {0};
    assert_int_equal(bl_kv_pool_open(&g, &p, NULL), BL_OK);
    for (uint32_t s = 0; s < g.n_seqs; s++) {
        assert_int_equal(bl_kv_seq_new(p, &seqs[s], NULL), BL_OK);
    }
    for (int i = 0; i < 120; i++) {
        bl_kv_seq *s = seqs[below(&seed, g.n_seqs)];
        uint32_t len = bl_kv_seq_len(s), n = 1 + below(&seed, g.max_rows);
        if (below(&seed, 4) == 0) {
            uint32_t to = below(&seed, len + 1);
            assert_true(bl_kv_seq_can_cut(s, len) && bl_kv_seq_can_cut(s, 0));
            assert_false(bl_kv_seq_can_cut(s, len + 1));
            to = bl_kv_seq_can_cut(s, to) ? to : 0;
            bl_kv_seq_cut(s, to);
            assert_int_equal(bl_kv_seq_len(s), to);
        } else if (n <= g.n_context - len) {
            assert_int_equal(bl_kv_seq_extend(s, n, NULL), BL_OK);
            check_visible(s, &g, len, n, seed0);
            assert_int_equal(bl_kv_seq_len(s), len + n);
        } else {
            assert_int_equal(bl_kv_seq_extend(s, n, NULL), BL_ELIMIT); /* and nothing happened */
            assert_int_equal(bl_kv_seq_len(s), len);
        }
        check_tiles(p, seqs, &g, seed0);
    }
    for (uint32_t s = 0; s < g.n_seqs; s++) {
        bl_kv_seq_free(seqs[s]);
    }
    assert_int_equal(bl_kv_pool_bytes_in_use(p), 0);
    bl_kv_pool_close(p);
}

static void test_random_sequences(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        run_seed(seed);
    }
}

/* The worst case by hand: single rows and full chunks alternate over a window, at every offset in a tile. */
static void test_window_edges(void **state) {
    (void)state;
    for (uint32_t window = 1; window < 200; window += 9) {
        bl_kv_layer layer = {1, 16, window};
        bl_kv_geometry g = {.layers = &layer, .n_layers = 1, .n_context = 4000, .max_rows = 65, .n_seqs = 1};
        bl_kv_pool *p = NULL;
        bl_kv_seq *s = NULL;
        assert_int_equal(bl_kv_pool_open(&g, &p, NULL), BL_OK);
        assert_int_equal(bl_kv_seq_new(p, &s, NULL), BL_OK);
        for (int i = 0; i < 58; i++) {
            uint32_t len = bl_kv_seq_len(s), n = i % 2 ? 65 : 1;
            assert_int_equal(bl_kv_seq_extend(s, n, NULL), BL_OK);
            check_visible(s, &g, len, n, window);
        }
        bl_kv_seq_free(s);
        bl_kv_pool_close(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_sequences),
        cmocka_unit_test(test_window_edges),
    };
    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
