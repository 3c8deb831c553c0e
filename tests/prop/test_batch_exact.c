/* The same answer always (NUMERICS.md §8.2): whatever runs beside a request, however its prompt is cut,
 * wherever its keys lie, whether the cache knew a part of it, however often it was preempted, and however
 * many tokens were drafted, rightly or wrongly, its tokens and the hash of its logits are those of the
 * request alone, without drafting.
 *
 * Rounds are random: family, engine settings, prompts, lengths, settings of the draw, arrival, cancels,
 * drafts (those of the head, and prescribed ones that are right at random, because an untrained head never
 * is). The seed of a failing round is printed; BL_EXACT_SEED=N repeats it, BL_EXACT_FAMILY=TEXT keeps the
 * models with TEXT in their names, BL_EXACT_ROUNDS=N asks for more of them (CI runs DEFAULT_ROUNDS of each
 * family; 1 is for slow builds and makes rounds and lengths fewer too). Models of ../shared join in where it
 * is there.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/base.h"
#include "base/rng.h"
#include "bl/bl.h"
#include "grammar/grammar.h"

#define DEFAULT_ROUNDS 4u
#define MAX_REQUESTS   24u
#define MAX_PROMPT     220u
#define MAX_OUTPUT     40u
#define CONTEXT        320u

static const char *const families[] = {"llama-tiny",   "gemma3-tiny", "gemma4-e-tiny",   "gemma4-moe-tiny",
                                       "gpt_oss-tiny", "qwen3-tiny",  "qwen3_5-moe-tiny"};
static const char *const shared_families[] = {"tiny/gemma4-dense-tiny", "tiny/gemma4-vl-tiny",
                                              "tiny/qwen3_5-tiny", "tiny/qwen3_5-vl-tiny",
                                              "small/qwen3_5-doc"};

typedef struct {
    int32_t prompt[MAX_PROMPT];
    uint32_t n_prompt, max_tokens;
    bl_sampling sampling;
    int32_t priority;
    uint64_t tenant;
    bool hash_prompt, has_bias, has_grammar;
    bl_logit_bias bias[2];
    uint32_t cancel_after; /* tokens; UINT32_MAX: never */
    bool no_draft;
    int32_t script[MAX_OUTPUT]; /* drafts; [n_script] */
    uint32_t n_script;
} request;

typedef struct {
    int32_t ids[MAX_OUTPUT];
    uint32_t n;
    bl_event end;
} answer;

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(bl_rng_next(seed) % n);
}

static uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *v = getenv(name);
    return v && *v ? strtoull(v, NULL, 10) : otherwise;
}

/* For builds in which everything takes ten times as long. */
static bool is_short(void) {
    return env_number("BL_EXACT_ROUNDS", DEFAULT_ROUNDS) == 1;
}

static bl_engine *open_engine(const bl_engine_options *o, uint64_t seed) {
    bl_engine *e = NULL;
    bl_err err = {0};
    if (bl_engine_open(o, &e, &err) != BL_OK) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.msg);
    }
    return e;
}

/* Token i is the letter i mod 128. */
static bl_grammar_vocab *letters(uint32_t n_vocab) {
    char *bytes = malloc(n_vocab);
    uint32_t *n = malloc(n_vocab * sizeof *n);
    bl_grammar_vocab *v = NULL;
    assert_non_null(bytes);
    assert_non_null(n);
    for (uint32_t i = 0; i < n_vocab; i++) {
        bytes[i] = (char)(i % 128);
        n[i] = 1;
    }
    assert_int_equal(bl_grammar_vocab_from_bytes(bytes, n, n_vocab, &v, NULL), BL_OK);
    free(bytes);
    free(n);
    return v;
}

static bl_session *submit(bl_engine *e, const request *q, uint64_t seed) {
    bl_request r;
    bl_session *s = NULL;
    bl_err err = {0};
    bl_request_init(&r);
    r.prompt = q->prompt;
    r.n_prompt = q->n_prompt;
    r.max_tokens = q->max_tokens;
    r.sampling = q->sampling;
    r.priority = q->priority;
    r.tenant = q->tenant;
    r.logit_hash = true;
    r.hash_prompt = q->hash_prompt;
    r.logit_bias = q->bias;
    r.n_logit_bias = q->has_bias ? BL_COUNTOF(q->bias) : 0;
    r.no_draft = q->no_draft;
    r.draft_script = q->script;
    r.n_draft_script = q->n_script;
    if (q->has_grammar) {
        bl_grammar_vocab *v = letters(bl_engine_info(e)->n_vocab);
        bl_grammar *g = NULL;
        static const char pattern[] = "[0-9a-f]{3,12}(-[g-z]+)?";
        assert_int_equal(bl_grammar_from_regex(pattern, sizeof pattern - 1, &g, NULL), BL_OK);
        assert_int_equal(bl_grammar_state_new(g, v, &r.grammar, NULL), BL_OK);
        bl_grammar_unref(g);
        bl_grammar_vocab_unref(v);
    }
    if (bl_session_submit(e, &r, &s, &err) != BL_OK) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.msg);
    }
    return s;
}

/* Takes what is there; true at the end. Cancels when its time has come. */
static bool pull(bl_session *s, const request *q, answer *a, int timeout_ms, uint64_t seed) {
    for (;;) {
        bl_event ev;
        bool got = false;
        if (a->n >= q->cancel_after) {
            bl_session_cancel(s);
        }
        assert_int_equal(bl_session_next(s, timeout_ms, &ev, &got, NULL), BL_OK);
        if (!got) {
            return false;
        }
        if (ev.kind != BL_EVENT_TOKEN) {
            a->end = ev;
            if (ev.kind == BL_EVENT_FAILED) {
                fail_msg("seed %llu: %s", (unsigned long long)seed, ev.err.msg);
            }
            return true;
        }
        assert_true(a->n < MAX_OUTPUT);
        a->ids[a->n++] = ev.id;
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

/* tight: prompts that fill most of a tile, so that answers need a second one. */
static void make_requests(request *q, uint32_t n, uint32_t n_vocab, bool tight, uint64_t *seed) {
    for (uint32_t i = 0; i < n; i++) {
        request *r = &q[i];
        memset(r, 0, sizeof *r);
        /* a third of them begin as an earlier one did, some are the same altogether */
        uint32_t shared = 0;
        if (i > 0 && below(seed, 3) > 0) {
            const request *other = &q[below(seed, i)];
            shared = below(seed, 4) == 0 ? other->n_prompt : below(seed, other->n_prompt + 1);
            memcpy(r->prompt, other->prompt, shared * sizeof *r->prompt);
        }
        r->n_prompt =
            BL_MAX(shared, tight ? 30 + below(seed, 34) : 1 + below(seed, below(seed, 2) ? 200 : 20));
        for (uint32_t k = shared; k < r->n_prompt; k++) {
            r->prompt[k] = (int32_t)below(seed, n_vocab);
        }
        r->max_tokens = tight ? MAX_OUTPUT : 1 + below(seed, MAX_OUTPUT);
        r->sampling = (bl_sampling){.temperature = below(seed, 2) ? 0.0f : 0.8f,
                                    .top_k = below(seed, 2) ? 0 : 40,
                                    .top_p = below(seed, 2) ? 1.0f : 0.9f,
                                    .seed = bl_rng_next(seed)};
        if (below(seed, 3) == 0) {
            r->sampling.repetition_penalty = 1.3f;
            r->sampling.presence_penalty = 0.5f;
            r->sampling.frequency_penalty = 0.25f;
        }
        r->has_bias = below(seed, 4) == 0;
        r->bias[0] = (bl_logit_bias){(int32_t)below(seed, n_vocab / 2), 3.0f};
        r->bias[1] = (bl_logit_bias){(int32_t)(n_vocab / 2 + below(seed, n_vocab / 2)), -100.0f};
        r->has_grammar = below(seed, 4) == 0;
        r->priority = (int32_t)below(seed, 3) - 1;
        r->tenant = below(seed, 2);
        r->hash_prompt = below(seed, 4) == 0;
        r->cancel_after = below(seed, 5) == 0 ? below(seed, r->max_tokens) : UINT32_MAX;
    }
}

/* Drafts for some of the requests, of which a part is what the answer will be. */
static void make_scripts(request *q, const answer *a, uint32_t n, uint32_t n_vocab, uint64_t *seed) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t right = below(seed, 5); /* of 4 */
        q[i].no_draft = below(seed, 6) == 0;
        q[i].n_script = below(seed, 3) > 0 ? a[i].n : below(seed, a[i].n + 1);
        for (uint32_t k = 0; k < q[i].n_script; k++) {
            q[i].script[k] = below(seed, 4) < right ? a[i].ids[k] : (int32_t)below(seed, n_vocab);
        }
    }
}

static void run_alone(const char *path, const request *q, answer *a, uint32_t n, uint64_t seed) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1;
    o.n_context = CONTEXT;
    o.max_concurrent = 1;
    o.prefix_cache_bytes = 0;
    bl_engine *e = open_engine(&o, seed);
    for (uint32_t i = 0; i < n; i++) {
        request r = q[i];
        r.cancel_after = UINT32_MAX;
        bl_session *s = submit(e, &r, seed);
        a[i] = (answer){0};
        assert_true(pull(s, &r, &a[i], -1, seed));
        bl_session_free(s);
    }
    bl_engine_close(e);
}

static bl_engine_options random_options(const char *path, uint64_t *seed) {
    static const uint32_t chunks[] = {1, 7, 32, 64, 256}, blocks[] = {0, 32, 128};
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1 + below(seed, 3);
    o.n_context = CONTEXT;
    o.max_queue = MAX_REQUESTS;
    o.cpu_mask = below(seed, 4) == 0 ? 0 : UINT32_MAX;
    o.prefill_chunk = chunks[below(seed, BL_COUNTOF(chunks))];
    o.step_tokens = below(seed, 2) ? 0 : o.prefill_chunk + below(seed, 100);
    o.solo_stripe = below(seed, 3) == 0 ? o.prefill_chunk + below(seed, 64) : 0;
    o.max_partial_prefills = below(seed, 3);
    o.prefill_cap = below(seed, 2) ? 0 : 1 + below(seed, 40);
    o.attn_query_block = blocks[below(seed, BL_COUNTOF(blocks))];
    o.max_concurrent = 1 + below(seed, 8);
    o.kv_storage = below(seed, 2) ? BL_KV_CHOICE_PAGED : BL_KV_CHOICE_CONTIGUOUS;
    o.prefix_cache_bytes = below(seed, 3) == 0 ? 0 : BL_AUTO;
    o.draft_depth = below(seed, 5);
    o.draft_fixed = below(seed, 3) > 0;
    return o;
}

/* A budget in which not all can run: between one session and all of them. */
static void tighten(bl_engine_options *o, uint64_t *seed) {
    bl_model_info info;
    bl_err err = {0};
    if (bl_model_inspect(o, &info, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    if (below(seed, 3) > 0) {
        o->kv_bytes = info.kv_seq_bytes + (below(seed, 2) ? below(seed, 100) * info.kv_seq_bytes / 50 : 0);
    }
    if (o->prefix_cache_bytes > 0 && below(seed, 2)) {
        o->prefix_cache_bytes = info.kv_seq_bytes + info.state_bytes * 2; /* evicts all the time */
    }
}

static void run_together(bl_engine *e, const request *q, answer *a, uint32_t n, uint64_t *seed,
                         uint64_t seed0) {
    bl_session *s[MAX_REQUESTS] = {0};
    bool done[MAX_REQUESTS] = {0};
    uint32_t n_done = 0, n_sent = 0;
    bool burst = below(seed, 2);
    memset(a, 0, n * sizeof *a);
    while (n_done < n) {
        while (n_sent < n && (burst || below(seed, 3) > 0)) {
            s[n_sent] = submit(e, &q[n_sent], seed0);
            n_sent++;
        }
        for (uint32_t i = 0; i < n_sent; i++) {
            if (!done[i] && pull(s[i], &q[i], &a[i], n_sent == n && below(seed, 4) == 0 ? 1 : 0, seed0)) {
                done[i] = true;
                n_done++;
                bl_session_free(s[i]);
            }
        }
        if (below(seed, 4) == 0) {
            usleep(below(seed, 500));
        }
    }
}

static void compare(const request *q, const answer *alone, const answer *together, uint32_t n,
                    uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) {
        const answer *x = &alone[i], *y = &together[i];
        bool cut = y->end.finish == BL_FINISH_CANCELLED;
        if (cut ? y->n > x->n : y->n != x->n) {
            fail_msg("seed %llu: request %u of %u gave %u tokens, alone %u", (unsigned long long)seed, i, n,
                     y->n, x->n);
        }
        for (uint32_t k = 0; k < y->n; k++) {
            if (x->ids[k] != y->ids[k]) {
                fail_msg("seed %llu: request %u of %u (prompt %u): token %u is %d, alone %d",
                         (unsigned long long)seed, i, n, q[i].n_prompt, k, y->ids[k], x->ids[k]);
            }
        }
        if (!cut && x->end.logit_hash != y->end.logit_hash) {
            fail_msg(
                "seed %llu: request %u of %u (prompt %u, %u cached, preempted %u times): another logit hash",
                (unsigned long long)seed, i, n, q[i].n_prompt, y->end.n_cached, y->end.n_preempted);
        }
        if (q[i].cancel_after == UINT32_MAX && cut) {
            fail_msg("seed %llu: request %u of %u was cancelled by nobody", (unsigned long long)seed, i, n);
        }
    }
}

typedef struct {
    uint64_t rounds, requests, preempted, hits, cancelled, drafted, right;
    bool heads; /* a family with a draft head took part */
} tally;

static void run_round(const char *path, uint64_t seed0, tally *t) {
    static request q[MAX_REQUESTS];
    static answer alone[MAX_REQUESTS], together[MAX_REQUESTS];
    uint64_t seed = seed0;
    bl_engine_options o = random_options(path, &seed);
    tighten(&o, &seed);
    uint32_t n = 2 + below(&seed, is_short() ? 5 : MAX_REQUESTS - 1);
    bl_engine *e = open_engine(&o, seed0);
    make_requests(q, n, bl_engine_info(e)->n_vocab, below(&seed, 2), &seed);
    run_alone(path, q, alone, n, seed0);
    make_scripts(q, alone, n, bl_engine_info(e)->n_vocab, &seed);
    run_together(e, q, together, n, &seed, seed0);
    compare(q, alone, together, n, seed0);
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    if (st.kv_bytes_in_use != 0 || st.running != 0 || st.waiting != 0) {
        fail_msg("seed %llu: %llu bytes of keys and values, %u running, %u waiting at the end",
                 (unsigned long long)seed0, (unsigned long long)st.kv_bytes_in_use, st.running, st.waiting);
    }
    t->rounds++;
    t->requests += n;
    t->preempted += st.n_preempted;
    t->hits += st.cache_hits;
    t->cancelled += st.n_cancelled;
    t->heads |= st.draft.max_depth > 0;
    for (uint32_t k = 0; k < BL_MAX_DRAFT; k++) {
        t->drafted += st.draft.n_proposed[k];
        t->right += st.draft.n_accepted[k];
    }
    bl_engine_close(e);
}

static void run_family(const char *folder, const char *name, tally *t) {
    char path[512];
    uint64_t seed = env_number("BL_EXACT_SEED", 0), rounds = env_number("BL_EXACT_ROUNDS", DEFAULT_ROUNDS);
    const char *only = getenv("BL_EXACT_FAMILY");
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (only && !strstr(name, only)) {
        return;
    }
    if (access(path, R_OK) != 0) {
        printf("%s is not there: skipped\n", path);
        return;
    }
    for (uint64_t i = 0; i < (seed ? 1 : rounds); i++) {
        run_round(path, seed ? seed : 1000 + i, t);
    }
}

static void test_mixes_give_the_answers_of_requests_alone(void **state) {
    (void)state;
    tally t = {0};
    for (size_t i = 0; i < BL_COUNTOF(families); i += is_short() ? 3 : 1) {
        run_family(BL_SOURCE_DIR "/tests/fixtures/tiny", families[i], &t);
    }
    char shared[512];
    const char *root = getenv("BL_SHARED");
    snprintf(shared, sizeof shared, "%s/fixtures", root ? root : BL_SOURCE_DIR "/../shared");
    for (size_t i = 0; i < BL_COUNTOF(shared_families); i++) {
        run_family(shared, shared_families[i], &t);
    }
    printf(
        "%llu rounds, %llu requests, %llu preemptions, %llu cache hits, %llu cancelled, %llu tokens drafted, "
        "%llu of them right\n",
        (unsigned long long)t.rounds, (unsigned long long)t.requests, (unsigned long long)t.preempted,
        (unsigned long long)t.hits, (unsigned long long)t.cancelled, (unsigned long long)t.drafted,
        (unsigned long long)t.right);
    if (!getenv("BL_EXACT_SEED") && !getenv("BL_EXACT_FAMILY") &&
        !is_short()) { /* the suite must have met what it is about */
        assert_true(t.preempted > 0 && t.hits > 0 && t.cancelled > 0);
        assert_true(t.heads && t.right > 0 && t.drafted > t.right);
    }
}

/* ---- prefix hits at every length --------------------------------------------------------------------- */

/* A prompt of which the first n tokens are known, n = 1 ... 200: tokens and hash of a cold run. */
static void hits_at_every_length(const char *name, bl_kv_choice storage) {
    char path[512];
    request q = {.max_tokens = 3, .cancel_after = UINT32_MAX, .sampling = {.top_p = 1.0f}};
    int32_t base[MAX_PROMPT];
    uint64_t seed = 7;
    uint32_t n_hits = 0;
    bl_engine_options o;
    snprintf(path, sizeof path, BL_SOURCE_DIR "/tests/fixtures/tiny/%s", name);
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1;
    o.n_context = CONTEXT;
    o.max_concurrent = 2;
    o.kv_storage = storage;
    bl_engine *cold = open_engine(&o, seed);
    o.prefix_cache_bytes = BL_AUTO;
    bl_engine *warm = open_engine(&o, seed);
    uint32_t n_vocab = bl_engine_info(cold)->n_vocab;
    for (uint32_t i = 0; i < MAX_PROMPT; i++) {
        base[i] = (int32_t)below(&seed, n_vocab);
    }
    uint32_t n_lengths = 0, stride = is_short() ? 13 : 1;
    for (uint32_t n = 1; n <= 200; n += stride, n_lengths++) {
        answer a = {0}, b = {0};
        memcpy(q.prompt, base, n * sizeof *base);
        q.n_prompt = n;
        bl_session *s = submit(warm, &q, 7);
        answer first = {0};
        assert_true(pull(s, &q, &first, -1, 7));
        bl_session_free(s);
        for (uint32_t k = 0; k < 8; k++) { /* what follows differs for every n */
            q.prompt[n + k] = (int32_t)below(&seed, n_vocab);
        }
        q.n_prompt = n + 8;
        s = submit(cold, &q, 7);
        assert_true(pull(s, &q, &a, -1, 7));
        bl_session_free(s);
        s = submit(warm, &q, 7);
        assert_true(pull(s, &q, &b, -1, 7));
        bl_session_free(s);
        compare(&q, &a, &b, 1, n);
        n_hits += b.end.n_cached >= n;
    }
    printf("%s: %u of %u lengths were hit\n", name, n_hits, n_lengths);
    assert_true(n_hits >= n_lengths - n_lengths / 20);
    bl_engine_close(cold);
    bl_engine_close(warm);
}

static void test_hits_at_every_length(void **state) {
    (void)state;
    hits_at_every_length("llama-tiny", BL_KV_CHOICE_CONTIGUOUS);
    if (is_short()) {
        hits_at_every_length("qwen3_5-moe-tiny", BL_KV_CHOICE_PAGED);
        return;
    }
    hits_at_every_length("gemma3-tiny", BL_KV_CHOICE_PAGED);
    hits_at_every_length("gemma4-e-tiny", BL_KV_CHOICE_CONTIGUOUS);
    hits_at_every_length("gpt_oss-tiny", BL_KV_CHOICE_PAGED);
    hits_at_every_length("qwen3_5-moe-tiny", BL_KV_CHOICE_CONTIGUOUS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits_at_every_length),
        cmocka_unit_test(test_mixes_give_the_answers_of_requests_alone),
    };
    return cmocka_run_group_tests_name("batch_exact", tests, NULL, NULL);
}
