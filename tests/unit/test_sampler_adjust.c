/* Mask, bias, penalties and the history behind them (NUMERICS.md §7), against a slow reference in double; the
 * cuts on large flat vocabularies against a full sort; and the same through the engine.
 */
#include "cmocka_all.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "runtime/sampler.h"
#include "tiny_model.h"

#define V      701u /* the last word of a mask is not full */
#define WORDS  ((V + 31) / 32)
#define FLAT_V 20011u

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(bl_rng_next(seed) % n);
}

static float uniform(uint64_t *seed, float lo, float hi) {
    return lo + (hi - lo) * (float)((double)(bl_rng_next(seed) >> 11) * 0x1p-53);
}

static bl_sampler *new_sampler(uint32_t n) {
    bl_sampler *s = NULL;
    assert_int_equal(bl_sampler_new(n, &s, NULL), BL_OK);
    return s;
}

/* A request's inputs, and the same facts in the plainest form. */
typedef struct {
    bl_sampling p;
    bl_pick_inputs in;
    uint32_t mask[WORDS];
    bl_logit_bias bias[8];
    bl_token_counts *counts;
    float logits[V];
    bool allowed[V], in_prompt[V];
    uint32_t n_output[V];
} world;

static void make_world(world *w, uint64_t seed) {
    *w = (world){0};
    for (uint32_t i = 0; i < V; i++) {
        w->logits[i] = uniform(&seed, -6.0f, 6.0f);
    }
    uint32_t kinds = below(&seed, 16);
    w->p = (bl_sampling){
        .temperature = below(&seed, 3) ? uniform(&seed, 0.4f, 2.0f) : 0.0f, .top_p = 1.0f, .seed = seed};
    if (kinds & 1) {
        w->p.repetition_penalty = uniform(&seed, 0.5f, 2.0f);
    }
    if (kinds & 2) {
        w->p.presence_penalty = uniform(&seed, -2.0f, 2.0f);
        w->p.frequency_penalty = uniform(&seed, -2.0f, 2.0f);
    }
    int32_t prompt[40];
    uint32_t n_prompt = 1 + below(&seed, 40), n_output = below(&seed, 200);
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = (int32_t)below(&seed, V);
        w->in_prompt[prompt[i]] = true;
    }
    assert_int_equal(bl_token_counts_new(prompt, n_prompt, n_output, V, &w->counts, NULL), BL_OK);
    for (uint32_t i = 0; i < n_output; i++) {
        int32_t id = (int32_t)below(&seed, below(&seed, 2) ? V : 20);
        bl_token_counts_add(w->counts, id);
        w->n_output[id]++;
    }
    bool masked = kinds & 4;
    uint32_t density = 1 + below(&seed, 3);
    for (uint32_t i = 0; i < V; i++) {
        bool all = (i / 32) % 5 == 0; /* whole words too */
        w->allowed[i] = !masked || all || below(&seed, 4) < density;
        w->mask[i / 32] |= (uint32_t)w->allowed[i] << i % 32;
    }
    w->mask[WORDS - 1] |= ~0u << V % 32; /* what is behind the vocabulary means nothing */
    uint32_t n_bias = kinds & 8 ? 1 + below(&seed, 8) : 0;
    for (uint32_t i = 0; i < n_bias; i++) {
        w->bias[i] = (bl_logit_bias){(int32_t)below(&seed, V), uniform(&seed, -10.0f, 10.0f)};
    }
    w->in = (bl_pick_inputs){.sampling = &w->p,
                             .pos = n_prompt + n_output,
                             .mask = masked ? w->mask : NULL,
                             .bias = w->bias,
                             .n_bias = n_bias,
                             .counts = w->counts};
}

/* The definition in double; minus infinity where masked. */
static double reference(const world *w, uint32_t i) {
    double l = (double)w->logits[i], r = (double)w->p.repetition_penalty;
    if (!w->allowed[i]) {
        return (double)-INFINITY;
    }
    for (uint32_t k = 0; k < w->in.n_bias; k++) {
        l += w->bias[k].id == (int32_t)i ? (double)w->bias[k].bias : 0.0;
    }
    if (r != 0.0 && (w->in_prompt[i] || w->n_output[i] > 0)) {
        l = l > 0.0 ? l / r : l * r;
    }
    if (w->n_output[i] > 0) {
        l -= (double)w->p.presence_penalty + (double)w->p.frequency_penalty * w->n_output[i];
    }
    return l;
}

static void test_logits_against_double(void **state) {
    (void)state;
    static world w;
    static float to[V];
    for (uint64_t seed = 1; seed <= 400; seed++) {
        make_world(&w, seed);
        bl_logits_adjust(to, w.logits, V, &w.in);
        for (uint32_t i = 0; i < V; i++) {
            double want = reference(&w, i);
            bool touched = w.in.n_bias > 0 || w.in_prompt[i] || w.n_output[i] > 0;
            if (isinf(want) || !touched) {
                assert_true((double)to[i] == want);
            } else if (!(fabs((double)to[i] - want) <= 4e-6 * (fabs(want) + 40.0))) {
                fail_msg("seed %llu token %u: %.9g, exactly %.9g", (unsigned long long)seed, i, (double)to[i],
                         want);
            }
        }
        bl_token_counts_free(w.counts);
    }
}

/* Greedy and drawn: the reference's best token, and a support that is exactly the allowed tokens. */
static void test_picks(void **state) {
    (void)state;
    static world w;
    bl_sampler *s = new_sampler(V);
    for (uint64_t seed = 1; seed <= 400; seed++) {
        make_world(&w, seed);
        uint32_t best = 0, n_allowed = 0;
        double second = -1e9;
        for (uint32_t i = 0; i < V; i++) {
            n_allowed += w.allowed[i];
            best = reference(&w, i) > reference(&w, best) ? i : best;
        }
        for (uint32_t i = 0; i < V; i++) {
            second = i != best ? BL_MAX(second, reference(&w, i)) : second;
        }
        int32_t id = -1;
        assert_int_equal(bl_sampler_pick(s, w.logits, &w.in, &id, NULL), BL_OK);
        assert_true(w.allowed[id]);
        bool clear = reference(&w, best) - second > 1e-4;
        if (w.p.temperature == 0.0f) {
            assert_true(!clear || id == (int32_t)best);
        } else {
            const int32_t *ids;
            const float *weights;
            uint32_t n = bl_sampler_support(s, w.logits, &w.in, &ids, &weights);
            assert_true(n == n_allowed);
            for (uint32_t i = 0; i < n; i++) {
                double want =
                    exp((reference(&w, (uint32_t)ids[i]) - reference(&w, best)) / (double)w.p.temperature);
                assert_true(w.allowed[ids[i]]);
                assert_true(fabs((double)weights[i] - want) < 1e-4 * want + 1e-12);
            }
            /* cuts see the changed logits: top-k 1 and a small top-p leave the best only */
            w.p.top_k = 1;
            assert_int_equal(bl_sampler_support(s, w.logits, &w.in, &ids, &weights), 1);
            assert_true(!clear || ids[0] == (int32_t)best);
            w.p.top_k = 0;
            w.p.top_p = 1e-6f;
            assert_int_equal(bl_sampler_support(s, w.logits, &w.in, &ids, &weights), 1);
            assert_true(!clear || ids[0] == (int32_t)best);
        }
        bl_token_counts_free(w.counts);
    }
    bl_sampler_free(s);
}

/* A mask of few tokens with every cut: nothing else is ever drawn, also where top-k asks for more. */
static void test_masked_tokens_are_never_drawn(void **state) {
    (void)state;
    static float logits[V];
    uint32_t mask[WORDS] = {0};
    uint64_t seed = 5;
    bl_sampler *s = new_sampler(V);
    for (uint32_t i = 0; i < V; i++) {
        logits[i] = uniform(&seed, 0.0f, 30.0f);
    }
    const uint32_t allowed[] = {3, 31, 32, 699, 700};
    for (size_t i = 0; i < BL_COUNTOF(allowed); i++) {
        mask[allowed[i] / 32] |= 1u << allowed[i] % 32;
        logits[allowed[i]] = -20.0f + (float)i;
    }
    static const bl_sampling all[] = {
        {.temperature = 0.0f, .top_p = 1.0f},
        {.temperature = 1.0f, .top_p = 1.0f},
        {.temperature = 1e6f, .top_p = 1.0f},
        {.temperature = 1.0f, .top_p = 0.9f},
        {.temperature = 1.0f, .top_p = 1.0f, .top_k = 40},
        {.temperature = 5.0f, .top_p = 0.99f, .top_k = 700, .min_p = 0.01f},
        {.temperature = 1.0f, .top_p = 0.0f, .min_p = 1.0f},
        {.temperature = 2.0f, .top_p = 1.0f, .min_p = 0.2f},
    };
    uint32_t n_seen[V] = {0};
    for (size_t k = 0; k < BL_COUNTOF(all); k++) {
        for (uint32_t pos = 0; pos < 500; pos++) {
            bl_pick_inputs in = {.sampling = &all[k], .pos = pos, .mask = mask};
            int32_t id = -1;
            assert_int_equal(bl_sampler_pick(s, logits, &in, &id, NULL), BL_OK);
            assert_true(mask[id / 32] >> id % 32 & 1u);
            n_seen[id]++;
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(allowed); i++) {
        assert_true(n_seen[allowed[i]] > 50);
    }
    uint32_t none[WORDS] = {0};
    none[WORDS - 1] = ~0u << V % 32;
    int32_t id = -7;
    bl_err err = {0};
    bl_pick_inputs in = {.sampling = &all[0], .pos = 9, .mask = none};
    assert_int_equal(bl_sampler_pick(s, logits, &in, &id, &err), BL_EINVAL);
    assert_string_equal(err.msg, "the mask allows none of 701 tokens at position 9");
    assert_int_equal(id, -7);
    in.mask = mask; /* a NaN is the model's fault, masked or not */
    logits[5] = NAN;
    assert_int_equal(bl_sampler_pick(s, logits, &in, &id, &err), BL_EINTERNAL);
    bl_sampler_free(s);
}

/* Settings that change nothing give the draws of none at all. */
static void test_neutral_settings_change_nothing(void **state) {
    (void)state;
    static float logits[V];
    uint64_t seed = 8;
    bl_sampler *s = new_sampler(V);
    const int32_t prompt[] = {1, 2, 3};
    bl_token_counts *c = NULL;
    assert_int_equal(bl_token_counts_new(prompt, 3, 300, V, &c, NULL), BL_OK);
    bl_sampling plain = {.temperature = 1.0f, .top_p = 1.0f, .seed = 4}, neutral = plain;
    neutral.repetition_penalty = 1.0f;
    neutral.presence_penalty = -0.0f;
    assert_false(bl_penalties_on(&neutral));
    uint32_t mask[WORDS];
    memset(mask, 0xff, sizeof mask);
    const bl_logit_bias zero = {.id = 6};
    for (uint32_t pos = 0; pos < 300; pos++) {
        for (uint32_t i = 0; i < V; i++) {
            logits[i] = uniform(&seed, -3.0f, 3.0f);
        }
        bl_pick_inputs a = {.sampling = &plain, .pos = pos}, b = {.sampling = &neutral,
                                                                  .pos = pos,
                                                                  .mask = mask,
                                                                  .bias = &zero,
                                                                  .n_bias = 1,
                                                                  .counts = c};
        int32_t x = -1, y = -2;
        assert_int_equal(bl_sampler_pick(s, logits, &a, &x, NULL), BL_OK);
        assert_int_equal(bl_sampler_pick(s, logits, &b, &y, NULL), BL_OK);
        assert_int_equal(x, y);
        bl_token_counts_add(c, x);
    }
    bl_token_counts_free(c);
    bl_sampler_free(s);
}

/* Extreme values stay finite, so that only a mask makes a logit infinite. */
static void test_results_stay_finite(void **state) {
    (void)state;
    const float from[4] = {3e38f, -3e38f, FLT_MAX, -FLT_MAX};
    float to[4];
    const int32_t prompt[] = {0, 1, 2, 3};
    bl_token_counts *c = NULL;
    assert_int_equal(bl_token_counts_new(prompt, 4, 4, 4, &c, NULL), BL_OK);
    for (int32_t i = 0; i < 4; i++) {
        bl_token_counts_add(c, i);
    }
    bl_sampling p = {.repetition_penalty = 0.01f, .presence_penalty = -2.0f};
    for (int i = 0; i < 2; i++) {
        bl_pick_inputs in = {.sampling = &p, .counts = c};
        bl_logits_adjust(to, from, 4, &in);
        for (int k = 0; k < 4; k++) {
            assert_true(isfinite(to[k]) && (to[k] > 0.0f) == (from[k] > 0.0f));
        }
        p.repetition_penalty = 100.0f;
    }
    bl_token_counts_free(c);
}

static float flat[FLAT_V];

static int by_rank(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (flat[x] != flat[y]) {
        return flat[x] > flat[y] ? -1 : 1;
    }
    return x < y ? -1 : 1;
}

/* The set that top-p and a large top-k keep, compared with a full sort and the sum in its order: exactly. */
static void test_cuts_equal_a_full_sort(void **state) {
    (void)state;
    static int32_t order[FLAT_V];
    static float weight[FLAT_V];
    static bool kept[FLAT_V];
    bl_sampler *s = new_sampler(FLAT_V);
    const int32_t *ids;
    const float *w;
    const float spread[] = {0.0f, 0.01f, 1.0f, 20.0f, 300.0f}, ps[] = {0.0f, 0.3f, 0.95f, 0.9999f};
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint64_t rng = seed;
        bl_sampling p = {.temperature = seed % 2 ? 0.7f : 1.0f, .top_p = 1.0f};
        for (uint32_t i = 0; i < FLAT_V; i++) {
            flat[i] = uniform(&rng, -1.0f, 1.0f) * spread[seed % 5];
            flat[i] = below(&rng, 8) == 0 ? flat[below(&rng, i + 1)] : flat[i];
            flat[i] = below(&rng, 50) == 0 ? (below(&rng, 2) ? 0.0f : -0.0f) : flat[i];
            order[i] = (int32_t)i;
        }
        qsort(order, FLAT_V, sizeof *order, by_rank);
        /* every weight, as the sampler sees it: those of the whole vocabulary */
        bl_pick_inputs in = {.sampling = &p};
        uint32_t n = bl_sampler_support(s, flat, &in, &ids, &w);
        memset(weight, 0, sizeof weight);
        for (uint32_t i = 0; i < n; i++) {
            weight[ids[i]] = w[i];
        }
        p.top_k = seed % 3 ? 0 : 1 + below(&rng, FLAT_V - 1);
        p.top_p = p.top_k > 0 && seed % 2 ? 1.0f : ps[below(&rng, 4)];
        uint32_t k = p.top_k > 0 ? p.top_k : FLAT_V, keep = 0;
        double total = 0.0, sum = 0.0;
        for (uint32_t i = 0; i < k; i++) {
            total += (double)weight[order[i]];
        }
        memset(kept, 0, sizeof kept);
        while (keep < k && !(p.top_p < 1.0f && keep > 0 && sum >= (double)p.top_p * total)) {
            kept[order[keep]] = weight[order[keep]] > 0.0f;
            sum += (double)weight[order[keep++]];
        }
        n = bl_sampler_support(s, flat, &in, &ids, &w);
        uint32_t n_wrong = 0;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(i == 0 || ids[i] > ids[i - 1]);
            n_wrong += w[i] > 0.0f && !kept[ids[i]];
            kept[ids[i]] = false;
        }
        for (uint32_t i = 0; i < FLAT_V; i++) {
            n_wrong += kept[i];
        }
        /* without top-k the total is summed in blocks: the last bit of it may move the end by a token */
        if (n_wrong > (p.top_k > 0 ? 0u : 1u)) {
            fail_msg("seed %llu: %u of %u tokens differ", (unsigned long long)seed, n_wrong, n);
        }
    }
    bl_sampler_free(s);
}

static void test_bad_settings_are_named(void **state) {
    (void)state;
    static const struct {
        bl_sampling p;
        const char *msg;
    } bad[] = {
        {{.presence_penalty = 2.5f}, "presence_penalty is 2.5, -2 to 2 is allowed"},
        {{.frequency_penalty = -3.0f}, "frequency_penalty is -3, -2 to 2 is allowed"},
        {{.frequency_penalty = NAN}, "frequency_penalty is nan, -2 to 2 is allowed"},
        {{.repetition_penalty = -1.0f}, "repetition_penalty is -1, 0.01 to 100 is allowed"},
        {{.repetition_penalty = 101.0f}, "repetition_penalty is 101, 0.01 to 100 is allowed"},
    };
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_err err = {0};
        assert_int_equal(bl_sampling_check(&bad[i].p, &err), BL_EINVAL);
        assert_string_equal(err.msg, bad[i].msg);
    }
    static bl_logit_bias many[BL_MAX_LOGIT_BIAS + 1];
    bl_err err = {0};
    assert_int_equal(bl_logit_bias_check(many, BL_MAX_LOGIT_BIAS, 1, &err), BL_OK);
    assert_int_equal(bl_logit_bias_check(many, BL_MAX_LOGIT_BIAS + 1, 1, &err), BL_EINVAL);
    assert_string_equal(err.msg, "logit_bias has 1025 tokens, at most 1024 are allowed");
    many[1].id = 7;
    assert_int_equal(bl_logit_bias_check(many, 2, 7, &err), BL_EINVAL);
    assert_string_equal(err.msg, "logit_bias names token 7, the vocabulary has 7");
    many[1] = (bl_logit_bias){.id = 6, .bias = NAN};
    assert_int_equal(bl_logit_bias_check(many, 2, 7, &err), BL_EINVAL);
    assert_string_equal(err.msg, "logit_bias of token 6 is nan, -100 to 100 is allowed");
}

/* ---- through the engine ------------------------------------------------------------------------------ */

static void ask(bl_engine *e, const bl_request *r, int32_t *ids, float *logprobs, uint32_t n) {
    bl_session *s = NULL;
    assert_int_equal(bl_session_submit(e, r, &s, NULL), BL_OK);
    for (uint32_t i = 0; i <= n; i++) {
        bl_event ev;
        bool got = false;
        assert_int_equal(bl_session_next(s, 60000, &ev, &got, NULL), BL_OK);
        assert_true(got);
        assert_int_equal(ev.kind, i < n ? BL_EVENT_TOKEN : BL_EVENT_FINISHED);
        if (i < n) {
            ids[i] = ev.id;
            logprobs[i] = ev.logprob;
        }
    }
    bl_session_free(s);
}

#define N_OUT 40

static void test_engine_applies_them(void **state) {
    (void)state;
    static const int32_t prompt[] = {5, 17, 301, 44, 9, 260, 77};
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = tiny_llama;
    o.n_threads = 1;
    o.n_context = 128;
    bl_engine *e = NULL;
    assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
    bl_request r;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = BL_COUNTOF(prompt);
    r.max_tokens = N_OUT;
    r.sampling.temperature = 0.0f;
    r.logprobs = true;
    int32_t plain[N_OUT], ids[N_OUT], again[N_OUT];
    float lp_plain[N_OUT], lp[N_OUT];
    ask(e, &r, plain, lp_plain, N_OUT);

    bl_logit_bias bias[] = {{plain[0], -100.0f}};
    r.logit_bias = bias;
    r.n_logit_bias = 1;
    ask(e, &r, ids, lp, N_OUT);
    for (uint32_t i = 0; i < N_OUT; i++) {
        assert_int_not_equal(ids[i], plain[0]);
    }
    bias[0].bias = 100.0f; /* forced; its log-probability stays that of the raw logits */
    ask(e, &r, ids, lp, N_OUT);
    for (uint32_t i = 0; i < N_OUT; i++) {
        assert_int_equal(ids[i], plain[0]);
    }
    assert_true(lp[0] == lp_plain[0]);

    /* Between small logits a token never comes twice under such a penalty, and nothing of one request stays
     * for the next. */
    r.n_logit_bias = 0;
    r.sampling.presence_penalty = 2.0f;
    r.sampling.frequency_penalty = 2.0f;
    r.sampling.repetition_penalty = 1.5f;
    ask(e, &r, ids, lp, N_OUT);
    assert_memory_not_equal(ids, plain, sizeof ids);
    ask(e, &r, again, lp, N_OUT);
    assert_memory_equal(ids, again, sizeof ids);
    r.sampling.presence_penalty = r.sampling.frequency_penalty = r.sampling.repetition_penalty = 0.0f;
    ask(e, &r, ids, lp, N_OUT);
    assert_memory_equal(ids, plain, sizeof ids);

    bl_session *s = NULL;
    bl_err err = {0};
    bias[0].id = (int32_t)bl_engine_info(e)->n_vocab;
    r.n_logit_bias = 1;
    assert_int_equal(bl_session_submit(e, &r, &s, &err), BL_EINVAL);
    assert_null(s);
    bl_engine_close(e);
}

/* Token i < 256 is the byte i; the others have no text. */
static bl_grammar_state *new_grammar(const char *pattern, uint32_t n_vocab) {
    char bytes[256];
    uint32_t *n = calloc(n_vocab, sizeof *n);
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        n[i] = 1;
    }
    bl_grammar *g = NULL;
    bl_grammar_vocab *v = NULL;
    bl_grammar_state *s = NULL;
    assert_int_equal(bl_grammar_from_regex(pattern, strlen(pattern), &g, NULL), BL_OK);
    assert_int_equal(bl_grammar_vocab_from_bytes(bytes, n, n_vocab, &v, NULL), BL_OK);
    assert_int_equal(bl_grammar_state_new(g, v, &s, NULL), BL_OK);
    bl_grammar_unref(g); /* the state holds both */
    bl_grammar_vocab_unref(v);
    free(n);
    return s;
}

static uint32_t read_all(bl_session *s, char *text, bool *ret_stop, bl_event *ret_end) {
    uint32_t n = 0;
    for (*ret_stop = false;;) {
        bl_event ev;
        bool got = false;
        assert_int_equal(bl_session_next(s, 60000, &ev, &got, NULL), BL_OK);
        if (ev.kind != BL_EVENT_TOKEN) {
            text[n] = '\0';
            *ret_end = ev;
            bl_session_free(s);
            return n;
        }
        *ret_stop = ev.is_stop;
        if (!ev.is_stop) {
            assert_true(ev.id < 256 && n < 100);
            text[n++] = (char)ev.id;
        }
    }
}

static void test_engine_follows_a_grammar(void **state) {
    (void)state;
    static const int32_t prompt[] = {5, 17, 301, 44};
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = tiny_llama;
    o.n_threads = 1;
    o.n_context = 128;
    bl_engine *e = NULL;
    assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
    uint32_t n_vocab = bl_engine_info(e)->n_vocab;
    int32_t stop = (int32_t)n_vocab - 1;
    char text[128];
    bool stopped;
    bl_event end;
    bl_session *s = NULL;
    bl_request r;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = BL_COUNTOF(prompt);
    r.max_tokens = 60;
    for (uint64_t seed = 0; seed < 20; seed++) {
        /* complete without a stop id, which would have been allowed nowhere else */
        r.sampling.seed = seed;
        r.sampling.temperature = seed % 2 ? 0.0f : 2.0f;
        r.n_stop_ids = 0;
        r.grammar = new_grammar("[0-9]{3}|no", n_vocab);
        assert_int_equal(bl_session_submit(e, &r, &s, NULL), BL_OK);
        uint32_t n = read_all(s, text, &stopped, &end);
        assert_true(!stopped && end.kind == BL_EVENT_FINISHED && end.finish == BL_FINISH_STOP);
        assert_true((n == 3 && strspn(text, "0123456789") == 3) || strcmp(text, "no") == 0);
        /* a bias for the stop id ends the answer where it may end, not before */
        const bl_logit_bias bias = {stop, 100.0f};
        r.stop_ids = &stop;
        r.n_stop_ids = 1;
        r.logit_bias = &bias;
        r.n_logit_bias = 1;
        r.grammar = new_grammar("[a-c]{4,}", n_vocab);
        assert_int_equal(bl_session_submit(e, &r, &s, NULL), BL_OK);
        n = read_all(s, text, &stopped, &end);
        assert_true(stopped && n == 4 && strspn(text, "abc") == 4 && end.finish == BL_FINISH_STOP);
        r.n_logit_bias = 0;
    }
    bl_err err = {0};
    r.grammar = new_grammar("a", n_vocab - 1);
    assert_int_equal(bl_session_submit(e, &r, &s, &err), BL_EINVAL);
    assert_string_equal(err.msg, "the grammar is made for 511 tokens, the vocabulary has 512");
    bl_grammar_state_free(r.grammar); /* not taken */
    bl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_against_double),
        cmocka_unit_test(test_picks),
        cmocka_unit_test(test_masked_tokens_are_never_drawn),
        cmocka_unit_test(test_neutral_settings_change_nothing),
        cmocka_unit_test(test_results_stay_finite),
        cmocka_unit_test(test_cuts_equal_a_full_sort),
        cmocka_unit_test(test_bad_settings_are_named),
        cmocka_unit_test(test_engine_applies_them),
        cmocka_unit_test(test_engine_follows_a_grammar),
    };
    return cmocka_run_group_tests_name("sampler_adjust", tests, NULL, NULL);
}
