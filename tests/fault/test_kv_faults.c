/* Every Nth allocation and system call fails under the key/value pool and the prefix cache: opening is an
 * ordinary error each time, a reserve or adopt changes nothing, a store leaves out, a load is a miss; what is
 * loaded is right all the same, and nothing leaks.
 */
#include "../unit/cmocka_all.h"

#include "../unit/kv_filler.h"
#include "faults.h"
#include "runtime/prefix_cache.h"

static bl_kv_layer layers[] = {{1, 4, 0}, {2, 4, 90}, {1, 4, 0}};
static const bl_state_layer states[] = {{500}};
static int32_t tokens[600];

static bl_kv_geometry geometry(bl_kv_storage storage, bool recurrent) {
    bl_kv_geometry g = {.layers = layers,
                        .n_layers = 3,
                        .states = states,
                        .n_states = recurrent,
                        .n_context = 600,
                        .max_rows = 128,
                        .n_seqs = 3,
                        .storage = storage};
    g.capacity_bytes = bl_kv_seq_bytes(&g, 600) * 3 / 2;
    return g;
}

static bool fired(void) {
    return atomic_load_explicit(&faults.fired, memory_order_relaxed);
}

static void expect_fault(bl_code rc) {
    assert_true(rc == BL_OK || (fired() && rc == BL_ENOMEM));
}

static void test_opening(void **state) {
    (void)state;
    for (unsigned kinds = FAULT_ALLOC; kinds <= FAULT_IO; kinds++) {
        uint64_t n = 1;
        for (; faults_arm(n, kinds, n % 2); n++) {
            bl_kv_geometry g = geometry(BL_KV_PAGED, true);
            bl_kv_pool *p = NULL;
            bl_kv_seq *s = NULL;
            bl_prefix_cache *c = NULL;
            bl_err err = {0};
            bl_code rc = bl_kv_pool_open(&g, &p, &err);
            expect_fault(rc);
            assert_true((rc == BL_OK) == (p != NULL));
            rc = p ? bl_kv_seq_new(p, &s, &err) : BL_OK;
            expect_fault(rc);
            rc = bl_prefix_cache_open(&g, (uint64_t)1 << 20, &c, &err);
            expect_fault(rc);
            assert_true((rc == BL_OK) == (c != NULL));
            bl_kv_seq_free(s);
            bl_kv_pool_close(p);
            bl_prefix_cache_close(c);
            assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        }
        assert_true(n > 6);
    }
    faults_disarm();
}

/* A request's steps with a store after each; a step that fails is done again. */
static void serve(const bl_kv_geometry *g, bl_kv_pool *p, bl_prefix_cache *c, uint64_t tenant, uint32_t n) {
    bl_kv_seq *s = NULL;
    bl_code rc = bl_kv_seq_new(p, &s, NULL);
    expect_fault(rc);
    if (rc != BL_OK) {
        return;
    }
    uint32_t got = bl_prefix_cache_load(c, tenant, tokens, n - 1, s);
    assert_int_equal(bl_kv_seq_len(s), got);
    assert_true(filler_check(g, s, tokens));
    for (int tries = 0; bl_kv_seq_len(s) < n && tries < 20; tries++) {
        uint32_t len = bl_kv_seq_len(s), k = n - len < 128 ? n - len : 128;
        uint64_t in_use = bl_kv_pool_bytes_in_use(p);
        rc = filler_step(g, s, tokens, k);
        expect_fault(rc);
        assert_true(rc == BL_OK || bl_kv_pool_bytes_in_use(p) <= in_use);
        assert_int_equal(bl_kv_seq_len(s), rc == BL_OK ? len + k : len);
        if (rc == BL_OK) {
            bl_prefix_cache_store(c, tenant, tokens, s, true);
        }
    }
    assert_true(filler_check(g, s, tokens));
    bl_kv_seq_free(s);
    bl_prefix_cache_stats st;
    bl_prefix_cache_get_stats(c, &st);
    assert_true(st.bytes_in_use <= st.max_bytes);
    assert_true(bl_kv_pool_bytes_committed(p) <= bl_kv_pool_capacity(p));
    assert_int_equal(bl_kv_pool_bytes_in_use(p), 0);
}

static void run(bl_kv_storage storage, bool recurrent, bool persistent) {
    uint64_t n = 1;
    for (; faults_arm(n, FAULT_IO | FAULT_ALLOC, persistent); n++) {
        bl_kv_geometry g = geometry(storage, recurrent);
        bl_kv_pool *p = NULL;
        bl_prefix_cache *c = NULL;
        faults.kinds = 0;
        assert_int_equal(bl_kv_pool_open(&g, &p, NULL), BL_OK);
        assert_int_equal(bl_prefix_cache_open(&g, 9 * bl_prefix_cache_node_bytes(&g), &c, NULL), BL_OK);
        faults.kinds = FAULT_IO | FAULT_ALLOC;
        for (uint64_t round = 0; round < 4; round++) {
            serve(&g, p, c, round % 2, 600);
            serve(&g, p, c, round % 2, 300);
        }
        bl_prefix_cache_clear(c);
        faults.kinds = 0;
        serve(&g, p, c, 0, 600); /* and then all is well */
        serve(&g, p, c, 0, 600);
        assert_int_equal(bl_prefix_cache_peek(c, 0, tokens, 600) > 300, 1);
        bl_prefix_cache_close(c);
        bl_kv_pool_close(p);
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
    }
    assert_true(n > 20);
    faults_disarm();
}

static void test_serving(void **state) {
    (void)state;
    run(BL_KV_CONTIGUOUS, false, false);
    run(BL_KV_PAGED, true, false);
    run(BL_KV_CONTIGUOUS, true, true);
    run(BL_KV_PAGED, false, true);
}

int main(void) {
    for (int32_t i = 0; i < 600; i++) {
        tokens[i] = i * 7 % 50;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opening),
        cmocka_unit_test(test_serving),
    };
    return cmocka_run_group_tests_name("kv_faults", tests, NULL, NULL);
}
