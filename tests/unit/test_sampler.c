/* The sampler: supports nest, draws follow the exact distribution, ties and thresholds fall where NUMERICS.md
 * §7 says. */
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/dmath.h"
#include "base/rng.h"
#include "runtime/logit_hash.h"
#include "runtime/sampler.h"

#define V 1003u /* no multiple of a block */

static float logits[V];

/* Normal-ish logits with a spread of 3: a few dominate, a long tail. Some equal pairs. */
static void fill(uint64_t seed) {
    for (uint32_t i = 0; i < V; i++) {
        double u = 0.0;
        for (int k = 0; k < 12; k++) {
            u += (double)(bl_rng_next(&seed) >> 11) * 0x1p-53;
        }
        logits[i] = (float)(3.0 * (u - 6.0));
    }
    for (uint32_t i = 10; i < V; i += 50) {
        logits[i] = logits[i - 7];
    }
}

static bl_sampler *new_sampler(uint32_t n) {
    bl_sampler *s = NULL;
    assert_int_equal(bl_sampler_new(n, &s, NULL), BL_OK);
    return s;
}

/* ---- an independent, slow definition: sort everything, long double ----------------------------------- */

static int by_rank(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y]) {
        return logits[x] > logits[y] ? -1 : 1;
    }
    return x < y ? -1 : 1;
}

/* prob[i] of every token; near: some threshold is so close that rounding may decide (the caller then skips
 * the case). */
static void exact(const bl_sampling *p, double prob[V], bool *near) {
    static int32_t order[V];
    static long double w[V];
    for (uint32_t i = 0; i < V; i++) {
        order[i] = (int32_t)i;
        prob[i] = 0.0;
    }
    qsort(order, V, sizeof *order, by_rank);
    uint32_t n = p->top_k > 0 && p->top_k < V ? p->top_k : V, keep = n;
    long double total = 0, sum = 0, max = (long double)logits[order[0]];
    for (uint32_t i = 0; i < n; i++) {
        w[i] = expl(((long double)logits[order[i]] - max) / (long double)p->temperature);
        total += w[i];
    }
    *near = false;
    for (uint32_t i = 0; i < n && p->top_p < 1.0f; i++) {
        sum += w[i];
        *near = *near || fabsl(sum / total - (long double)p->top_p) < 1e-6L;
        if (sum >= (long double)p->top_p * total) {
            keep = i + 1;
            break;
        }
    }
    uint32_t m = 0;
    for (uint32_t i = 0; i < keep; i++) {
        *near = *near || (w[i] < w[0] && fabsl(w[i] / w[0] - (long double)p->min_p) < 1e-6L);
        m += w[i] >= (long double)p->min_p * w[0];
    }
    total = 0;
    for (uint32_t i = 0; i < m; i++) {
        total += w[i];
    }
    for (uint32_t i = 0; i < m; i++) {
        prob[order[i]] = (double)(w[i] / total);
    }
}

static bl_sampling settings(float t, uint32_t k, float p, float m) {
    return (bl_sampling){.temperature = t, .top_k = k, .top_p = p, .min_p = m, .seed = 1};
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static void test_support_and_weights_are_exact(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    static const float ts[] = {0.05f, 0.7f, 1.0f, 2.5f, 40.0f},
                       ps[] = {0.0f, 0.1f, 0.5f, 0.95f, 0.999f, 1.0f}, ms[] = {0.0f, 0.02f, 0.5f, 1.0f};
    static const uint32_t ks[] = {0, 1, 2, 40, 1002, 1003, 5000};
    uint32_t n_checked = 0, n_near = 0;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        fill(seed);
        for (size_t i = 0; i < 5 * 7 * 6 * 4; i++) {
            bl_sampling p = settings(ts[i % 5], ks[i / 5 % 7], ps[i / 35 % 6], ms[i / 210 % 4]);
            static double prob[V];
            bool near;
            exact(&p, prob, &near);
            if (near) {
                n_near++;
                continue;
            }
            const int32_t *ids;
            const float *w;
            uint32_t n = bl_sampler_support(s, logits, &(bl_pick_inputs){.sampling = &p}, &ids, &w), want = 0;
            double total = 0.0, shown = 0.0;
            for (uint32_t k = 0; k < n; k++) {
                total += (double)w[k];
                assert_true(k == 0 || ids[k] > ids[k - 1]);
            }
            for (uint32_t k = 0; k < V; k++) {
                want += prob[k] > 1e-37;
            }
            for (uint32_t k = 0; k < n; k++) {
                double q = (double)w[k] / total;
                shown += prob[ids[k]];
                if (fabs(q - prob[ids[k]]) > 1e-5 * prob[ids[k]] + 1e-30) {
                    fail_msg("t %g k %u p %g m %g: token %d has %g, exactly %g", (double)p.temperature,
                             p.top_k, (double)p.top_p, (double)p.min_p, ids[k], q, prob[ids[k]]);
                }
            }
            assert_true(shown > 1.0 - 1e-9);
            if (p.temperature > 0.1f) { /* below, tails vanish in f32 */
                assert_int_equal(n, want);
            }
            n_checked++;
        }
    }
    assert_true(n_checked > 20 * n_near);
    bl_sampler_free(s);
}

static bool contains(const int32_t *ids, uint32_t n, int32_t id) {
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* A stricter cut keeps a subset. */
static void test_supports_nest(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    static int32_t wide[V];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fill(seed);
        for (int kind = 0; kind < 3; kind++) {
            uint32_t n_wide = V;
            for (int32_t i = 0; i < (int32_t)V; i++) {
                wide[i] = i;
            }
            for (int step = 1; step <= 20; step++) {
                float x = (float)step / 21.0f;
                bl_sampling p = kind == 0   ? settings(1.0f, V / (uint32_t)step, 1.0f, 0.0f)
                                : kind == 1 ? settings(1.0f, 0, 1.0f - x, 0.0f)
                                            : settings(1.0f, 0, 1.0f, x);
                const int32_t *ids;
                const float *w;
                uint32_t n = bl_sampler_support(s, logits, &(bl_pick_inputs){.sampling = &p}, &ids, &w);
                assert_true(n >= 1 && n <= n_wide);
                for (uint32_t i = 0; i < n; i++) {
                    assert_true(contains(wide, n_wide, ids[i]));
                }
                memcpy(wide, ids, n * sizeof *ids);
                n_wide = n;
            }
        }
    }
    bl_sampler_free(s);
}

/* Chi-square of 40,000 draws against the exact distribution, cells of expectation >= 20. */
static void check_draws(bl_sampler *s, const bl_sampling *base) {
    static double prob[V];
    static uint32_t count[V];
    bool near;
    const uint32_t n = 40000;
    exact(base, prob, &near);
    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < n; i++) {
        bl_sampling p = *base;
        int32_t id = -1;
        p.seed = i / 100; /* both parts of the counter move */
        assert_int_equal(
            bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = i % 100}, &id, NULL), BL_OK);
        assert_true(id >= 0 && id < (int32_t)V && prob[id] > 0.0);
        count[id]++;
    }
    double chi = 0.0, rest_p = 0.0, rest_n = 0.0;
    int cells = 0;
    for (uint32_t i = 0; i < V; i++) {
        double want = prob[i] * n;
        if (want < 20.0) {
            rest_p += want;
            rest_n += count[i];
            continue;
        }
        chi += ((double)count[i] - want) * ((double)count[i] - want) / want;
        cells++;
    }
    if (rest_p > 20.0) {
        chi += (rest_n - rest_p) * (rest_n - rest_p) / rest_p;
        cells++;
    }
    /* mean cells - 1, deviation sqrt(2 (cells - 1)); five deviations */
    double limit = cells - 1 + 5.0 * sqrt(2.0 * (cells - 1)) + 1.0;
    if (!(chi < limit)) {
        fail_msg("t %g k %u p %g m %g: chi-square %.1f over %d cells, limit %.1f", (double)base->temperature,
                 base->top_k, (double)base->top_p, (double)base->min_p, chi, cells, limit);
    }
}

static void test_draws_follow_the_distribution(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    fill(3);
    bl_sampling all[] = {settings(1.0f, 0, 1.0f, 0.0f),   settings(2.0f, 0, 1.0f, 0.0f),
                         settings(1.0f, 64, 0.95f, 0.0f), settings(1.0f, 0, 0.9f, 0.0f),
                         settings(1.0f, 0, 1.0f, 0.03f),  settings(0.6f, 20, 0.95f, 0.01f),
                         settings(30.0f, 0, 1.0f, 0.0f),  settings(30.0f, 300, 1.0f, 0.0f)};
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        check_draws(s, &all[i]);
    }
    bl_sampler_free(s);
}

static void test_greedy_and_ties(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    bl_sampling p = settings(0.0f, 5, 0.1f, 0.0f);
    int32_t id = -1;
    fill(9);
    logits[700] = logits[31] = logits[999] = 50.0f;
    assert_int_equal(bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = 0}, &id, NULL),
                     BL_OK);
    assert_int_equal(id, 31);
    p = settings(1.0f, 1, 1.0f, 0.0f); /* top-k 1 keeps the lower id of the tie */
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = i}, &id, NULL),
                         BL_OK);
        assert_int_equal(id, 31);
    }
    p = settings(1.0f, 2, 1.0f, 0.0f);
    const int32_t *ids;
    const float *w;
    assert_int_equal(bl_sampler_support(s, logits, &(bl_pick_inputs){.sampling = &p}, &ids, &w), 2);
    assert_int_equal(ids[0], 31);
    assert_int_equal(ids[1], 700);
    p = settings(1.0f, 0, 0.5f, 0.0f); /* two thirds of the mass: two of the three equals, in id order */
    assert_int_equal(bl_sampler_support(s, logits, &(bl_pick_inputs){.sampling = &p}, &ids, &w), 2);
    assert_int_equal(ids[1], 700);
    for (uint32_t i = 0; i < V; i++) {
        logits[i] = -0.0f;
    }
    logits[5] = 0.0f; /* the zeros are equal */
    p.temperature = 0.0f;
    assert_int_equal(bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = 0}, &id, NULL),
                     BL_OK);
    assert_int_equal(id, 0);
    bl_sampler_free(s);
}

static void test_bad_logits_are_reported(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    bl_sampling p = settings(1.0f, 0, 1.0f, 0.0f);
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    const uint32_t at[] = {0, 500, V - 1};
    for (int i = 0; i < 12; i++) {
        int32_t id = -7;
        bl_err err = {0};
        fill(1);
        logits[at[i % 3]] = bad[i / 3];
        assert_int_equal(bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = 12}, &id, &err),
                         BL_EINTERNAL);
        assert_string_equal(err.msg, "the model produced a logit that is NaN or infinite at position 12");
        assert_int_equal(id, -7);
    }
    bl_sampler_free(s);
}

static void test_extreme_temperatures(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    fill(4);
    logits[77] = 40.0f;
    const float cold[] = {1e-45f, 1e-20f, 1e-3f};
    for (size_t t = 0; t < 3; t++) {
        bl_sampling p = settings(cold[t], 0, 1.0f, 0.0f);
        for (uint32_t i = 0; i < 100; i++) {
            int32_t id = -1;
            assert_int_equal(
                bl_sampler_pick(s, logits, &(bl_pick_inputs){.sampling = &p, .pos = i}, &id, NULL), BL_OK);
            assert_int_equal(id, 77);
        }
    }
    bl_sampler_free(s);
}

static void test_logprobs(void **state) {
    (void)state;
    bl_sampler *s = new_sampler(V);
    fill(6);
    long double total = 0;
    for (uint32_t i = 0; i < V; i++) {
        total += expl((long double)logits[i]);
    }
    float lp, top[20];
    int32_t ids[20];
    for (int32_t id = 0; id < (int32_t)V; id += 17) {
        bl_sampler_logprobs(s, logits, id, 20, &lp, ids, top);
        long double want = (long double)logits[id] - logl(total);
        assert_true(fabsl((long double)lp - want) < 1e-5L);
    }
    for (int i = 1; i < 20; i++) {
        assert_true(logits[ids[i]] < logits[ids[i - 1]] ||
                    (logits[ids[i]] == logits[ids[i - 1]] && ids[i] > ids[i - 1]));
    }
    bl_sampler_free(s);
    s = new_sampler(1); /* the smallest vocabulary */
    bl_sampler_logprobs(s, logits, 0, 20, &lp, ids, top);
    assert_true(lp == 0.0f);
    bl_sampler_free(s);
}

/* Any change of one bit of one logit changes the hash; the order of rows matters. */
static void test_hash_sees_every_bit(void **state) {
    (void)state;
    fill(8);
    uint64_t h = bl_logit_hash_row(0, logits, V);
    for (uint32_t i = 0; i < V * 32; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i / 32], 4);
        bits ^= 1u << (i % 32);
        memcpy(&logits[i / 32], &bits, 4);
        assert_true(bl_logit_hash_row(0, logits, V) != h);
        bits ^= 1u << (i % 32);
        memcpy(&logits[i / 32], &bits, 4);
        i += i % 32 == 31 ? 32 * 12 : 0; /* every 13th element, all its bits */
    }
    static float other[V];
    memcpy(other, logits, sizeof other);
    other[0] += 1.0f;
    uint64_t ab = bl_logit_hash_row(bl_logit_hash_row(0, logits, V), other, V);
    uint64_t ba = bl_logit_hash_row(bl_logit_hash_row(0, other, V), logits, V);
    assert_true(ab != ba);
    /* the definition, written out for three elements (lanes 0, 1, 2) */
    const float x[3] = {1.0f, -2.0f, 0.5f};
    uint64_t want = 0, lane;
    for (uint64_t j = 0; j < 128; j++) {
        uint32_t bits = 0;
        lane = 0xCBF29CE484222325u + j;
        if (j < 3) {
            memcpy(&bits, &x[j], 4);
            lane = (lane ^ bits) * 0x9E3779B97F4A7C15u;
        }
        want = (want ^ lane ^ (lane >> 32)) * 0x9E3779B97F4A7C15u;
        want ^= want >> 29;
    }
    assert_true(bl_logit_hash_row(0, x, 3) == want);
}

static void test_dmath_against_long_double(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 200000; i++) {
        double x = ((double)(bl_rng_next(&seed) >> 11) * 0x1p-53 - 0.5) * 1400.0;
        long double want = expl((long double)x);
        if (want > 1e-300L && want < 1e300L) {
            assert_true(fabsl((long double)bl_dmath_exp(x) - want) <= 3e-16L * want);
        }
        double y = exp(x * 0.9);
        if (y > 1e-300 && y < 1e300) {
            want = logl((long double)y);
            assert_true(fabsl((long double)bl_dmath_log(y) - want) <= 3e-16L * fabsl(want));
        }
    }
    assert_true(bl_dmath_exp(0.0) == 1.0 && bl_dmath_log(1.0) == 0.0);
    assert_true(bl_dmath_exp(-800.0) == 0.0 && isinf(bl_dmath_exp(800.0)));
    assert_true(bl_dmath_exp(-745.0) == 0x1p-1074); /* the smallest denormal */
    assert_true(fabs(bl_dmath_pow(10.0, 3.0) - 1000.0) < 1e-11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_support_and_weights_are_exact),
        cmocka_unit_test(test_supports_nest),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_bad_logits_are_reported),
        cmocka_unit_test(test_extreme_temperatures),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_hash_sees_every_bit),
        cmocka_unit_test(test_dmath_against_long_double),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
