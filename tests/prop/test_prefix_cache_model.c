/* The prefix cache under random stores, loads and evictions, against a naive model that remembers the token
 * strings and which tiles each sequence held. With room for everything the length reused is exactly the
 * model's; with little, it is at most that. What is loaded is compared byte for byte with what those tokens
 * give, and no tenant ever gets another's. The seed is printed on failure.
 */
#include "../unit/cmocka_all.h"

#include <sys/mman.h>

#include "../unit/kv_filler.h"
#include "base/os.h"
#include "base/rng.h"
#include "runtime/prefix_cache.h"

#define MAX_LAYERS  4u
#define MAX_TOKENS  420u
#define MAX_TILES   ((MAX_TOKENS + BL_KV_TILE - 1) / BL_KV_TILE)
#define MAX_RECORDS 256u
#define N_TENANTS   3u

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(bl_rng_next(seed) % n);
}

static uint64_t committed;

static int counting_madvise(void *at, size_t n, int advice) {
    committed += advice == MADV_POPULATE_WRITE ? n : 0;
    committed -= advice == MADV_DONTNEED ? n : 0;
    return madvise(at, n, advice);
}

typedef struct {
    uint64_t tenant;
    uint32_t len;
    bool snapshot;
    int32_t tokens[MAX_TOKENS];
    bool held[MAX_LAYERS][MAX_TILES];
} record;

typedef struct {
    uint64_t seed0, seed;
    bl_kv_layer layers[MAX_LAYERS];
    bl_kv_geometry g;
    bl_kv_pool *pool;
    bl_prefix_cache *cache;
    bool roomy;
    record records[MAX_RECORDS];
    uint32_t n_records, n_alphabet;
    uint64_t committed; /* by the cache */
    uint64_t n_hits, n_tokens_hit, n_lookups;
} machine;

static const bl_state_layer states[] = {{300}, {17}};

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n) {
    uint32_t k = 0;
    while (k < n && a[k] == b[k]) {
        k++;
    }
    return k;
}

/* Could a sequence of tokens[0..n) go on, from what the records hold? agree[r]: tokens in common. */
static bool model_usable(const machine *x, const uint32_t *agree, uint32_t n) {
    bool snapshot = x->g.n_states == 0;
    for (uint32_t r = 0; r < x->n_records && !snapshot; r++) {
        snapshot = x->records[r].snapshot && x->records[r].len == n && agree[r] == n;
    }
    for (uint32_t l = 0; l < x->g.n_layers && snapshot; l++) {
        uint32_t w = x->g.layers[l].window, first = w > 0 && n >= w ? n + 1 - w : 0;
        for (uint32_t k = first / BL_KV_TILE; k * BL_KV_TILE < n; k++) {
            uint32_t need = BL_MIN(n, (k + 1) * BL_KV_TILE);
            bool found = false;
            for (uint32_t r = 0; r < x->n_records && !found; r++) {
                found = agree[r] >= need && x->records[r].held[l][k];
            }
            if (!found) {
                return false;
            }
        }
    }
    return snapshot;
}

static uint32_t model_lookup(const machine *x, uint64_t tenant, const int32_t *tokens, uint32_t n) {
    uint32_t agree[MAX_RECORDS];
    for (uint32_t r = 0; r < x->n_records; r++) {
        const record *q = &x->records[r];
        agree[r] = q->tenant == tenant ? common(q->tokens, tokens, BL_MIN(n, q->len)) : 0;
    }
    while (n > 0 && !model_usable(x, agree, n)) {
        n--;
    }
    return n;
}

static void store(machine *x, uint64_t tenant, const int32_t *tokens, bl_kv_seq *s, bool snapshot) {
    uint32_t len = bl_kv_seq_len(s);
    committed = x->committed;
    bl_prefix_cache_store(x->cache, tenant, tokens, s, snapshot);
    x->committed = committed;
    bl_prefix_cache_stats st;
    bl_prefix_cache_get_stats(x->cache, &st);
    assert_true(st.bytes_in_use <= x->committed && x->committed <= st.max_bytes);
    assert_true(!x->roomy || st.n_evicted_nodes == 0);
    record *r = &x->records[x->n_records++];
    assert_true(x->n_records <= MAX_RECORDS);
    *r = (record){.tenant = tenant, .len = len, .snapshot = snapshot && x->g.n_states > 0};
    memcpy(r->tokens, tokens, len * sizeof *tokens);
    for (uint32_t l = 0; l < x->g.n_layers; l++) {
        for (uint32_t k = 0; k * BL_KV_TILE < len; k++) {
            r->held[l][k] = bl_kv_seq_tile(s, l, k) != NULL;
        }
    }
}

/* A prompt that often goes on from one seen before, of this tenant or another. */
static uint32_t make_prompt(machine *x, int32_t tokens[MAX_TOKENS]) {
    uint32_t n = 0;
    if (x->n_records > 0 && below(&x->seed, 5) > 0) {
        const record *r = &x->records[below(&x->seed, x->n_records)];
        n = below(&x->seed, 3) == 0 ? r->len : below(&x->seed, r->len + 1);
        memcpy(tokens, r->tokens, n * sizeof *tokens);
    }
    for (uint32_t more = below(&x->seed, 150); more > 0 && n < x->g.n_context; more--, n++) {
        tokens[n] = (int32_t)below(&x->seed, x->n_alphabet) - 1;
    }
    return n;
}

static void request(machine *x) {
    int32_t tokens[MAX_TOKENS];
    uint64_t tenant = below(&x->seed, N_TENANTS);
    uint32_t n = make_prompt(x, tokens), ask = n > 0 ? n - below(&x->seed, 2) : 0;
    bl_kv_seq *s = NULL;
    assert_int_equal(bl_kv_seq_new(x->pool, &s, NULL), BL_OK);
    uint32_t want = model_lookup(x, tenant, tokens, ask);
    uint32_t peek = bl_prefix_cache_peek(x->cache, tenant, tokens, ask);
    uint32_t got = bl_prefix_cache_load(x->cache, tenant, tokens, ask, s);
    if (x->roomy ? got != want : got > want) {
        fail_msg("seed %llu: %u of %u tokens are reused, the model says %u", (unsigned long long)x->seed0,
                 got, ask, want);
    }
    assert_int_equal(got, peek);
    assert_int_equal(bl_kv_seq_len(s), got);
    if (!filler_check(&x->g, s, tokens)) {
        fail_msg("seed %llu: %u reused tokens are not what was stored", (unsigned long long)x->seed0, got);
    }
    x->n_lookups++;
    x->n_hits += got > 0;
    x->n_tokens_hit += got;
    while (bl_kv_seq_len(s) < n) {
        uint32_t k = 1 + below(&x->seed, x->g.max_rows);
        assert_int_equal(filler_step(&x->g, s, tokens, BL_MIN(n - bl_kv_seq_len(s), k)), BL_OK);
        if (below(&x->seed, 3) == 0 && x->n_records < MAX_RECORDS - 1) {
            store(x, tenant, tokens, s, below(&x->seed, 2));
        }
    }
    if (n > 0 && below(&x->seed, 3) > 0) {
        store(x, tenant, tokens, s, below(&x->seed, 4) > 0);
    }
    assert_true(filler_check(&x->g, s, tokens)); /* the cache has copies, not the tiles */
    bl_kv_seq_free(s);
}

static void start(machine *x, uint64_t seed0, bool roomy) {
    memset(x, 0, sizeof *x);
    x->seed0 = x->seed = seed0;
    x->roomy = roomy;
    uint32_t n_layers = 1 + below(&x->seed, MAX_LAYERS), kind = below(&x->seed, 3);
    for (uint32_t l = 0; l < n_layers; l++) { /* full, mixed, windows of one or more sizes */
        uint32_t w = kind == 0 || (kind == 1 && l == 0) ? 0 : 1 + below(&x->seed, 150);
        x->layers[l] = (bl_kv_layer){1 + below(&x->seed, 2), 4,
                                     l > 1 && below(&x->seed, 2) ? x->layers[l - 1].window : w};
    }
    x->g = (bl_kv_geometry){.layers = x->layers,
                            .n_layers = n_layers,
                            .states = states,
                            .n_states = below(&x->seed, 3) == 0 ? 2 : 0,
                            .n_context = MAX_TOKENS,
                            .max_rows = 1 + below(&x->seed, 200),
                            .n_seqs = 2,
                            .f32 = below(&x->seed, 2) == 0,
                            .storage = below(&x->seed, 2) ? BL_KV_PAGED : BL_KV_CONTIGUOUS};
    x->n_alphabet = 1 + below(&x->seed, 3);
    uint64_t node = bl_prefix_cache_node_bytes(&x->g);
    uint64_t max = roomy ? 4000 * node : node + below(&x->seed, (uint32_t)(12 * node));
    assert_int_equal(bl_kv_pool_open(&x->g, &x->pool, NULL), BL_OK);
    committed = 0;
    assert_int_equal(bl_prefix_cache_open(&x->g, max, &x->cache, NULL), BL_OK);
    assert_int_equal(committed, 0); /* an idle cache takes no memory */
}

static void stop(machine *x) {
    bl_prefix_cache_stats st;
    bl_prefix_cache_get_stats(x->cache, &st);
    assert_int_equal(st.n_lookups, x->n_lookups);
    assert_int_equal(st.n_hits, x->n_hits);
    assert_int_equal(st.n_tokens_hit, x->n_tokens_hit);
    committed = x->committed;
    bl_prefix_cache_clear(x->cache);
    assert_int_equal(committed, 0);
    bl_prefix_cache_get_stats(x->cache, &st);
    assert_int_equal(st.bytes_in_use, 0);
    bl_prefix_cache_close(x->cache);
    assert_int_equal(bl_kv_pool_bytes_in_use(x->pool), 0);
    bl_kv_pool_close(x->pool);
}

static void run(bool roomy, uint64_t n_seeds, uint32_t n_requests) {
    static machine x;
    uint64_t hits = 0, lookups = 0;
    for (uint64_t seed = 1; seed <= n_seeds; seed++) {
        start(&x, seed + (roomy ? 0 : 100000), roomy);
        for (uint32_t i = 0; i < n_requests && x.n_records < MAX_RECORDS - 1; i++) {
            request(&x);
        }
        hits += x.n_hits;
        lookups += x.n_lookups;
        stop(&x);
    }
    assert_true(lookups > n_seeds * n_requests / 2 && hits > lookups / (roomy ? 3 : 10));
}

static void test_with_room_the_longest_prefix_is_reused(void **state) {
    (void)state;
    run(true, 150, 60);
}

static void test_with_little_room_what_is_reused_is_right(void **state) {
    (void)state;
    run(false, 300, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_with_room_the_longest_prefix_is_reused),
        cmocka_unit_test(test_with_little_room_what_is_reused_is_right),
    };
    bl_os.madvise = counting_madvise;
    return cmocka_run_group_tests_name("prefix_cache_model", tests, NULL, NULL);
}
