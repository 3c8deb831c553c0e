/* The prefix cache by hand: every length, tenants, snapshots, windows, order of eviction, growth. */
#include "cmocka_all.h"

#include <stdio.h>

#include "kv_filler.h"
#include "runtime/prefix_cache.h"

static const bl_state_layer one_state[] = {{500}};

typedef struct {
    bl_kv_layer layers[2];
    bl_kv_geometry g;
    bl_kv_pool *pool;
    bl_prefix_cache *cache;
    uint64_t node; /* bytes */
} fixture;

/* Two layers, the second with a window (0: none). */
static void start(fixture *f, uint32_t window, bool recurrent, uint32_t n_nodes) {
    memset(f, 0, sizeof *f);
    f->layers[0] = (bl_kv_layer){1, 16, 0};
    f->layers[1] = (bl_kv_layer){2, 16, window};
    f->g = (bl_kv_geometry){.layers = f->layers,
                            .n_layers = 2,
                            .states = one_state,
                            .n_states = recurrent,
                            .n_context = FILLER_MAX_TOKENS,
                            .max_rows = FILLER_MAX_TOKENS,
                            .n_seqs = 2};
    f->node = bl_prefix_cache_node_bytes(&f->g);
    assert_int_equal(f->node, 4096 + 8192 + (recurrent ? 4096 : 0));
    assert_int_equal(bl_kv_pool_open(&f->g, &f->pool, NULL), BL_OK);
    assert_int_equal(bl_prefix_cache_open(&f->g, n_nodes * f->node, &f->cache, NULL), BL_OK);
}

static void stop(fixture *f) {
    bl_prefix_cache_close(f->cache);
    bl_kv_pool_close(f->pool);
}

static bl_prefix_cache_stats stats(const fixture *f) {
    bl_prefix_cache_stats st;
    bl_prefix_cache_get_stats(f->cache, &st);
    assert_true(st.bytes_in_use <= st.max_bytes);
    return st;
}

/* Evaluates what the cache does not give of tokens[0..n) and stores it. */
static uint32_t serve(fixture *f, uint64_t tenant, const int32_t *tokens, uint32_t n) {
    bl_kv_seq *s = NULL;
    assert_int_equal(bl_kv_seq_new(f->pool, &s, NULL), BL_OK);
    uint32_t got = bl_prefix_cache_load(f->cache, tenant, tokens, n - 1, s);
    assert_true(filler_check(&f->g, s, tokens));
    assert_int_equal(filler_step(&f->g, s, tokens, n - got), BL_OK);
    bl_prefix_cache_store(f->cache, tenant, tokens, s, true);
    bl_kv_seq_free(s);
    return got;
}

/* 0, 1, 2, ... but `other` from position `from` on. */
static void count_up(int32_t *tokens, uint32_t n, uint32_t from, int32_t other) {
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = i < from ? (int32_t)i : other;
    }
}

static void test_every_length_is_found_to_the_token(void **state) {
    (void)state;
    int32_t tokens[400], other[400];
    count_up(tokens, 400, 400, 0);
    for (uint32_t len = 1; len <= 200; len++) {
        fixture f;
        start(&f, len % 2 ? 0 : 70, false, 40);
        serve(&f, 0, tokens, len);
        for (uint32_t n = 1; n <= 260; n++) { /* as far as asked, as far as stored */
            uint32_t got = bl_prefix_cache_peek(f.cache, 0, tokens, n);
            bool seen = f.layers[1].window == 0 || n >= len; /* earlier tiles of the window are gone */
            assert_true(got <= BL_MIN(n, len));
            assert_true(got == BL_MIN(n, len) || !seen);
        }
        for (uint32_t from = 0; from < len; from += 7) { /* as far as it agrees */
            count_up(other, 400, from, 1000);
            uint32_t got = bl_prefix_cache_peek(f.cache, 0, other, 300);
            assert_true(got == from || (f.layers[1].window > 0 && got < from));
        }
        assert_int_equal(serve(&f, 0, tokens, len + 1), len);
        assert_int_equal(serve(&f, 0, tokens, len + 1), len);
        stop(&f);
    }
}

static void test_tenants_share_nothing(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[300];
    count_up(tokens, 300, 300, 0);
    start(&f, 0, false, 100);
    assert_int_equal(serve(&f, 7, tokens, 200), 0);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 300), 0);
    assert_int_equal(bl_prefix_cache_peek(f.cache, UINT64_MAX, tokens, 300), 0);
    assert_int_equal(serve(&f, 8, tokens, 200), 0);
    assert_int_equal(serve(&f, 7, tokens, 250), 200);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 8, tokens, 300), 200);
    assert_int_equal(stats(&f).bytes_in_use, 8 * f.node);
    bl_prefix_cache_clear(f.cache);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 7, tokens, 300), 0);
    assert_int_equal(stats(&f).bytes_in_use, 0);
    assert_int_equal(serve(&f, 7, tokens, 200), 0); /* and it goes on working */
    assert_int_equal(bl_prefix_cache_peek(f.cache, 7, tokens, 300), 200);
    stop(&f);
}

static void test_only_what_is_new_is_copied(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[300];
    count_up(tokens, 300, 300, 0);
    start(&f, 0, false, 100);
    serve(&f, 0, tokens, 10);
    assert_int_equal(stats(&f).bytes_in_use, f.node);
    assert_int_equal(stats(&f).n_stored_tokens, 10);
    serve(&f, 0, tokens, 40); /* the node grows */
    serve(&f, 0, tokens, 40);
    serve(&f, 0, tokens, 30);
    assert_int_equal(stats(&f).bytes_in_use, f.node);
    assert_int_equal(stats(&f).n_stored_tokens, 40);
    serve(&f, 0, tokens, 128);
    assert_int_equal(stats(&f).bytes_in_use, 2 * f.node);
    assert_int_equal(stats(&f).n_stored_tokens, 128);
    tokens[100] = -5; /* leaves the second node: a sibling */
    assert_int_equal(serve(&f, 0, tokens, 120), 100);
    assert_int_equal(stats(&f).bytes_in_use, 3 * f.node);
    tokens[100] = 100;
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 300), 128);
    bl_prefix_cache_stats st = stats(&f);
    assert_int_equal(st.n_lookups, 6);
    assert_int_equal(st.n_hits, 5);
    assert_int_equal(st.n_tokens_hit, 10 + 39 + 29 + 40 + 100);
    stop(&f);
}

static void test_states_need_a_snapshot(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[300];
    bl_kv_seq *s = NULL;
    count_up(tokens, 300, 300, 0);
    start(&f, 0, true, 100);
    assert_int_equal(bl_kv_seq_new(f.pool, &s, NULL), BL_OK);
    assert_int_equal(filler_step(&f.g, s, tokens, 30), BL_OK);
    bl_prefix_cache_store(f.cache, 0, tokens, s, false); /* nobody could go on from here */
    assert_int_equal(stats(&f).bytes_in_use, 0);
    bl_prefix_cache_store(f.cache, 0, tokens, s, true);
    assert_int_equal(filler_step(&f.g, s, tokens, 34), BL_OK);
    bl_prefix_cache_store(f.cache, 0, tokens, s, false);
    for (uint32_t n = 0; n < 300; n++) {
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, n), n >= 30 ? 30 : 0);
    }
    assert_int_equal(filler_step(&f.g, s, tokens, 136), BL_OK);
    bl_prefix_cache_store(f.cache, 0, tokens, s, true);
    for (uint32_t n = 0; n < 300; n++) {
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, n), n >= 200 ? 200 : n >= 30 ? 30 : 0);
    }
    bl_kv_seq_free(s);
    assert_int_equal(serve(&f, 0, tokens, 190), 30);
    assert_int_equal(serve(&f, 0, tokens, 250), 200);
    stop(&f);
}

/* A sequence that was long hands over only the window's last tiles: shorter prefixes are of no use until
 * somebody who still has them stores them. */
static void test_a_window_needs_its_tiles(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[600];
    bl_kv_seq *s = NULL;
    count_up(tokens, 600, 600, 0);
    start(&f, 100, false, 100);
    assert_int_equal(bl_kv_seq_new(f.pool, &s, NULL), BL_OK);
    assert_int_equal(filler_step(&f.g, s, tokens, 500), BL_OK);
    assert_int_equal(bl_kv_seq_reserve(s, 1, NULL), BL_OK);
    bl_prefix_cache_store(f.cache, 0, tokens, s, true);
    assert_int_equal(stats(&f).bytes_in_use, 8 * 4096 + 2 * 8192); /* 401.. are seen: tiles 6 and 7 */
    bl_kv_seq_free(s);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 600), 500);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 484), 484);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 482), 0); /* sees 383: tile 5 */
    assert_int_equal(serve(&f, 0, tokens, 450), 0);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 600), 500);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 449), 449);
    assert_int_equal(stats(&f).bytes_in_use, 8 * f.node); /* filled up */
    stop(&f);
}

static void test_the_least_recently_used_leaf_goes_first(void **state) {
    (void)state;
    fixture f;
    int32_t a[256], b[256], d[256];
    count_up(a, 256, 256, 0);
    count_up(b, 256, 64, 1000); /* a's first node, then its own */
    count_up(d, 256, 0, 2000);
    start(&f, 0, false, 4);
    serve(&f, 0, a, 128);
    serve(&f, 0, b, 128);
    serve(&f, 0, d, 64);
    assert_int_equal(stats(&f).bytes_in_use, 4 * f.node);
    assert_int_equal(stats(&f).n_evicted_nodes, 0);
    serve(&f, 0, a, 120); /* used: a's second node stays, b's goes */
    serve(&f, 1, d, 64);
    assert_int_equal(stats(&f).n_evicted_nodes, 1);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, a, 256), 128);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, b, 256), 64);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, d, 256), 64);
    serve(&f, 0, a, 256); /* its own path is never evicted for it */
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, a, 256), 256);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 1, d, 256), 0);
    count_up(a, 256, 256, 0);
    serve(&f, 2, a, 256);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, a, 256), 0);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 2, a, 256), 256);
    stop(&f);
}

/* A load is a use, and a store of what is there already is one too. */
static void test_what_counts_as_use(void **state) {
    (void)state;
    int32_t tokens[3][64];
    for (int by_load = 0; by_load < 2; by_load++) {
        fixture f;
        start(&f, 0, false, 2);
        for (int32_t i = 0; i < 3; i++) {
            count_up(tokens[i], 64, 0, i + 1);
        }
        serve(&f, 0, tokens[0], 64);
        serve(&f, 0, tokens[1], 64);
        bl_kv_seq *s = NULL;
        assert_int_equal(bl_kv_seq_new(f.pool, &s, NULL), BL_OK);
        if (by_load) {
            assert_int_equal(bl_prefix_cache_load(f.cache, 0, tokens[0], 64, s), 64);
        } else {
            assert_int_equal(filler_step(&f.g, s, tokens[0], 64), BL_OK);
            bl_prefix_cache_store(f.cache, 0, tokens[0], s, true);
        }
        bl_kv_seq_free(s);
        serve(&f, 0, tokens[2], 64);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens[0], 64), 64);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens[1], 64), 0);
        stop(&f);
    }
}

static void test_what_does_not_fit_is_left_out(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[1000];
    count_up(tokens, 1000, 1000, 0);
    start(&f, 0, false, 3);
    serve(&f, 0, tokens, 1000);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 1000), 192);
    assert_int_equal(stats(&f).n_evicted_nodes, 0);
    serve(&f, 0, tokens, 1000);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 1000), 192);
    stop(&f);

    bl_prefix_cache *c = NULL;
    bl_err err;
    start(&f, 0, true, 1);
    serve(&f, 0, tokens, 20);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 1000), 20);
    assert_int_equal(bl_prefix_cache_open(&f.g, f.node - 1, &c, &err), BL_EINVAL);
    assert_null(c);
    assert_non_null(strstr(err.msg, "16383"));
    assert_non_null(strstr(err.msg, "16384"));
    stop(&f);
}

/* What is behind a long prompt's window makes room for its end, whether it is stored at once or as it grows.
 */
static void test_a_long_prompt_keeps_its_end(void **state) {
    (void)state;
    int32_t tokens[1200];
    count_up(tokens, 1200, 1200, 0);
    for (uint32_t step = 32; step <= 1024; step *= 2) {
        fixture f;
        bl_kv_seq *s = NULL;
        start(&f, 100, false,
              10); /* 16 nodes with full layers take 5 1/3 whole ones, windows are 2/3 of one */
        serve(&f, 1, tokens, 100);
        assert_int_equal(bl_kv_seq_new(f.pool, &s, NULL), BL_OK);
        for (uint32_t n = 0; n < 1024; n += step) {
            assert_int_equal(filler_step(&f.g, s, tokens, step), BL_OK);
            bl_prefix_cache_store(f.cache, 0, tokens, s, true);
            assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 1200), n + step);
            assert_true(stats(&f).bytes_in_use <= 10 * f.node);
        }
        bl_kv_seq_free(s);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 1, tokens, 1200), 0);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 130), 130); /* the beginning too */
        assert_int_equal(serve(&f, 0, tokens, 1030), 1024);
        stop(&f);
    }
}

static void test_no_room_in_the_pool_is_a_miss(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[600];
    count_up(tokens, 600, 600, 0);
    start(&f, 0, false, 100);
    bl_kv_geometry g = f.g;
    bl_kv_pool_close(f.pool);
    g.capacity_bytes = 10 * 12288;
    f.g = g;
    assert_int_equal(bl_kv_pool_open(&g, &f.pool, NULL), BL_OK);
    serve(&f, 0, tokens, 600);
    bl_kv_seq *a = NULL, *b = NULL;
    assert_int_equal(bl_kv_seq_new(f.pool, &a, NULL), BL_OK);
    assert_int_equal(bl_kv_seq_new(f.pool, &b, NULL), BL_OK);
    assert_int_equal(bl_kv_seq_reserve(a, 64, NULL), BL_OK);
    assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 600), 600);
    assert_int_equal(bl_prefix_cache_load(f.cache, 0, tokens, 600, b), 0);
    assert_int_equal(bl_kv_seq_len(b), 0);
    assert_int_equal(bl_kv_pool_bytes_in_use(f.pool), 12288);
    assert_int_equal(stats(&f).n_hits, 0);
    bl_kv_seq_free(a);
    assert_int_equal(bl_prefix_cache_load(f.cache, 0, tokens, 600, b), 600);
    assert_true(filler_check(&f.g, b, tokens));
    bl_kv_seq_free(b);
    stop(&f);
}

/* More short prompts that begin alike than are compared token by token: the last used are found. */
static void test_many_siblings(void **state) {
    (void)state;
    fixture f;
    int32_t tokens[64];
    start(&f, 0, false, 300);
    for (int32_t i = 0; i < 200; i++) {
        count_up(tokens, 30, 1, i + 1);
        assert_true(serve(&f, 0, tokens, 30) <= 1);
    }
    for (int32_t i = 199; i >= 137; i--) {
        count_up(tokens, 30, 1, i + 1);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 0, tokens, 30), 30);
    }
    for (int32_t i = 0; i < 200; i++) { /* full ones always */
        count_up(tokens, 64, 1, i + 1);
        serve(&f, 1, tokens, 64);
    }
    for (int32_t i = 0; i < 100; i++) {
        count_up(tokens, 64, 1, i + 101);
        assert_int_equal(bl_prefix_cache_peek(f.cache, 1, tokens, 64), 64);
    }
    stop(&f);
}

static void test_bytes_beside_the_budget(void **state) {
    (void)state;
    bl_kv_layer layers[30];
    for (uint32_t l = 0; l < 30; l++) {
        layers[l] = l % 6 == 5 ? (bl_kv_layer){2, 512, 0} : (bl_kv_layer){8, 256, 1024};
    }
    bl_kv_geometry g = {.layers = layers, .n_layers = 30, .n_context = 131072, .max_rows = 512, .n_seqs = 4};
    assert_int_equal(bl_prefix_cache_node_bytes(&g), (uint64_t)64 * (25 * 8192 + 5 * 4096));
    uint64_t max = (uint64_t)4 << 30, books = bl_prefix_cache_bookkeeping_bytes(&g, max);
    assert_in_range(books, max / 10000, max / 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_is_found_to_the_token),
        cmocka_unit_test(test_tenants_share_nothing),
        cmocka_unit_test(test_only_what_is_new_is_copied),
        cmocka_unit_test(test_states_need_a_snapshot),
        cmocka_unit_test(test_a_window_needs_its_tiles),
        cmocka_unit_test(test_the_least_recently_used_leaf_goes_first),
        cmocka_unit_test(test_what_counts_as_use),
        cmocka_unit_test(test_what_does_not_fit_is_left_out),
        cmocka_unit_test(test_a_long_prompt_keeps_its_end),
        cmocka_unit_test(test_no_room_in_the_pool_is_a_miss),
        cmocka_unit_test(test_many_siblings),
        cmocka_unit_test(test_bytes_beside_the_budget),
    };
    return cmocka_run_group_tests_name("prefix_cache", tests, NULL, NULL);
}
