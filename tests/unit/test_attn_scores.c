/* How many scores blocked attention computes: the closed form against a count one by one, and against the
 * figures of a model of 16 query heads with windows of 1024 (2 bytes per score). */
#include "cmocka_all.h"

#include "backend/attn_scores.h"
#include "base/base.h"
#include "base/rng.h"

static bl_attn_scores count(uint64_t history, uint64_t n, uint64_t window, uint64_t block) {
    bl_attn_scores r = {0};
    for (uint64_t q = 0; q < n; q++) {
        uint64_t o = block > 0 ? q / block * block : 0, last = block > 0 ? BL_MIN(o + block, n) : n;
        for (uint64_t key = 0; key < history + last; key++) {
            uint64_t pos = history + q, first = history + o;
            r.useful += key <= pos && (window == 0 || key + window > pos);
            r.executed += window == 0 || key + window > first;
        }
    }
    return r;
}

static void test_formula_equals_a_count(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 400; i++) {
        uint64_t history = bl_rng_next(&seed) % 200, n = 1 + bl_rng_next(&seed) % 100;
        uint64_t window = bl_rng_next(&seed) % 3 ? 1 + bl_rng_next(&seed) % 150 : 0;
        uint64_t block = bl_rng_next(&seed) % 4 ? 1 + bl_rng_next(&seed) % 64 : 0;
        bl_attn_scores a = bl_attention_scores(history, n, window, block),
                       b = count(history, n, window, block);
        assert_int_equal(a.executed, b.executed);
        assert_int_equal(a.useful, b.useful);
    }
}

static double ratio(uint64_t history, uint64_t n, uint64_t block) {
    bl_attn_scores s = bl_attention_scores(history, n, 1024, block);
    return (double)s.executed / (double)s.useful;
}

static void test_share_of_useful_scores(void **state) {
    (void)state;
    static const struct {
        uint64_t history, n;
        double r[4]; /* block 0, 256, 128, 64 */
    } rows[] = {
        {1023, 512, {1.4990, 1.2490, 1.1240, 1.0615}},  {512, 512, {1.3325, 1.1659, 1.0826, 1.0410}},
        {0, 512, {1.9961, 1.4971, 1.2476, 1.1228}},     {5000, 1024, {1.9990, 1.2490, 1.1240, 1.0615}},
        {1023, 2048, {2.9990, 1.2490, 1.1240, 1.0615}}, {0, 2048, {2.6658, 1.2489, 1.1240, 1.0615}}};
    static const uint64_t blocks[] = {0, 256, 128, 64};
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        for (size_t k = 0; k < BL_COUNTOF(blocks); k++) {
            assert_float_equal(ratio(rows[i].history, rows[i].n, blocks[k]), rows[i].r[k], 6e-5);
        }
    }
}

static uint64_t bytes(uint64_t layers, uint64_t history, uint64_t window) {
    return layers * 16 * 2 * bl_attention_scores(history, 2048, window, 128).executed;
}

static void test_bytes_of_a_long_prompt(void **state) {
    (void)state;
    assert_int_equal(bytes(1, 32768 - 2048, 0), 2084569088u);
    assert_int_equal(bytes(4, 7 * 2048, 0), 4043309056u);
    assert_int_equal(bytes(25, 7 * 2048, 1024), 1885798400u);
    assert_int_equal(bytes(25, 0, 1024), 1414758400u);
    assert_int_equal(bytes(4, 0, 0), 285212672u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_equals_a_count),
        cmocka_unit_test(test_share_of_useful_scores),
        cmocka_unit_test(test_bytes_of_a_long_prompt),
    };
    return cmocka_run_group_tests_name("attn_scores", tests, NULL, NULL);
}
