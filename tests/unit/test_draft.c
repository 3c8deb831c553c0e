/* Drafting in the batch engine beyond equal answers (test_batch_exact.c): what is counted, what ends an
 * answer inside a run of right drafts, when nothing is drafted, and a head that cannot be read.
 */
#include "cmocka_all.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "bl/bl.h"
#include "engine_calls.h"
#include "runtime/loader.h"
#include "tiny_model.h"
#include "trained_model.h"

#define N_PROMPT 20u
#define N_OUTPUT 24u

static const char model[] = BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny";

typedef struct {
    int32_t ids[N_OUTPUT];
    float logprobs[N_OUTPUT];
    uint32_t n;
    bl_event end;
} answer;

static bl_engine_options options(uint32_t depth) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = model;
    o.n_threads = 1;
    o.n_context = 256;
    o.max_concurrent = 2;
    o.prefix_cache_bytes = 0;
    o.draft_depth = depth;
    o.draft_fixed = true;
    return o;
}

static bl_request greedy(void) {
    static int32_t prompt[N_PROMPT];
    bl_request r;
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = (int32_t)((i * 7919u) % 300u);
    }
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = N_PROMPT;
    r.max_tokens = N_OUTPUT;
    r.sampling.temperature = 0.0f;
    r.logit_hash = true;
    r.logprobs = true;
    return r;
}

static answer ask(bl_engine *e, const bl_request *r) {
    bl_session *s = submit(e, r);
    answer a = {0};
    uint32_t n_drafted = 0, n_accepted = 0; /* told with each token, and so complete with the last */
    for (;;) {
        a.end = next_event(s);
        assert_in_range(a.end.n_drafted, n_drafted, n_drafted + 1);
        assert_in_range(a.end.n_accepted, n_accepted, n_accepted + 1);
        if (a.end.kind != BL_EVENT_TOKEN) {
            assert_int_equal(a.end.n_drafted, n_drafted);
            assert_int_equal(a.end.n_accepted, n_accepted);
            bl_session_free(s);
            return a;
        }
        n_drafted = a.end.n_drafted;
        n_accepted = a.end.n_accepted;
        a.logprobs[a.n] = a.end.logprob;
        a.ids[a.n++] = a.end.id;
    }
}

static void assert_same(const answer *a, const answer *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
    assert_int_equal(a->end.finish, b->end.finish);
    assert_int_equal(a->end.logit_hash, b->end.logit_hash);
    assert_int_equal(a->end.n_output, b->end.n_output);
}

static uint64_t sum(const uint64_t *n) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < BL_MAX_DRAFT; i++) {
        all += n[i];
    }
    return all;
}

static answer plain(const bl_request *r) {
    bl_engine_options o = options(0);
    bl_engine *e = open_engine(&o);
    answer a = ask(e, r);
    bl_engine_close(e);
    return a;
}

/* Drafts that are the answer: each round gives 1 + k tokens, and all is counted. */
static void test_right_drafts_save_steps(void **state) {
    (void)state;
    bl_request r = greedy();
    answer alone = plain(&r);
    assert_int_equal(alone.n, N_OUTPUT);
    assert_int_equal(alone.end.n_drafted, 0);
    for (uint32_t k = 1; k <= 5; k++) {
        bl_engine_options o = options(k);
        bl_engine *e = open_engine(&o);
        assert_int_equal(bl_engine_info(e)->draft_depth, k);
        r.draft_script = alone.ids;
        r.n_draft_script = alone.n;
        answer a = ask(e, &r);
        bl_engine_stats st;
        bl_engine_get_stats(e, &st);
        assert_same(&alone, &a);
        /* the first token comes with the prompt; a round's last token is no draft, or the limit's */
        uint32_t rest = N_OUTPUT - 1, full = rest / (k + 1), left = rest % (k + 1);
        assert_int_equal(st.n_steps, 1 + full + (left > 0));
        assert_int_equal(a.end.n_drafted, full * k + (left > 0 ? left - 1 : 0));
        assert_int_equal(a.end.n_accepted, a.end.n_drafted);
        assert_int_equal(st.draft.max_depth, k);
        assert_int_equal(st.draft.depth, k);
        assert_int_equal(sum(st.draft.n_proposed), a.end.n_drafted);
        assert_int_equal(sum(st.draft.n_accepted), a.end.n_accepted);
        assert_int_equal(st.n_output_tokens, N_OUTPUT);
        assert_int_equal(st.kv_bytes_in_use, 0);
        bl_engine_close(e);
    }
}

/* A wrong draft ends its round: those behind it are not judged. */
static void test_wrong_drafts_cost_nothing_of_the_answer(void **state) {
    (void)state;
    bl_request r = greedy();
    answer alone = plain(&r);
    int32_t wrong[N_OUTPUT];
    for (uint32_t i = 0; i < N_OUTPUT; i++) {
        wrong[i] = alone.ids[i] == 0 ? 1 : 0;
    }
    bl_engine_options o = options(3);
    bl_engine *e = open_engine(&o);
    r.draft_script = wrong;
    r.n_draft_script = N_OUTPUT;
    answer a = ask(e, &r);
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    assert_same(&alone, &a);
    assert_int_equal(st.n_steps, N_OUTPUT);
    assert_int_equal(a.end.n_accepted, 0);
    assert_int_equal(a.end.n_drafted, N_OUTPUT - 2); /* not beside the first token, not before the last */
    assert_int_equal(st.draft.n_proposed[0], N_OUTPUT - 2);
    assert_int_equal(st.draft.n_proposed[1], 0);
    bl_engine_close(e);
}

/* A stop token among the right drafts: nothing behind it is given, hashed or counted as output. */
static void test_stop_inside_a_run(void **state) {
    (void)state;
    bl_request r = greedy();
    answer free_run = plain(&r);
    for (uint32_t at = 1; at < 8; at++) {
        int32_t stop = free_run.ids[at];
        r = greedy();
        r.stop_ids = &stop;
        r.n_stop_ids = 1;
        answer alone = plain(&r);
        bl_engine_options o = options(4);
        bl_engine *e = open_engine(&o);
        r.draft_script = free_run.ids;
        r.n_draft_script = free_run.n;
        answer a = ask(e, &r);
        assert_same(&alone, &a);
        assert_int_equal(a.end.finish, BL_FINISH_STOP);
        bl_engine_close(e);
    }
}

/* The answer may end at any place of a round, the context's end included. */
static void test_limits_inside_a_run(void **state) {
    (void)state;
    bl_request r = greedy();
    answer all = plain(&r);
    bl_engine_options o = options(4);
    o.n_context = N_PROMPT + 9;
    bl_engine *e = open_engine(&o);
    for (uint32_t n = 1; n <= 12; n++) {
        r = greedy();
        r.max_tokens = n;
        r.draft_script = all.ids;
        r.n_draft_script = all.n;
        answer a = ask(e, &r);
        assert_int_equal(a.n, BL_MIN(n, 10u)); /* the last one needs no position */
        assert_int_equal(a.end.finish, BL_FINISH_LENGTH);
        assert_memory_equal(a.ids, all.ids, a.n * sizeof *a.ids);
    }
    bl_engine_close(e);
}

static void test_no_draft_drafts_nothing(void **state) {
    (void)state;
    bl_request r = greedy();
    answer alone = plain(&r);
    bl_engine_options o = options(2);
    bl_engine *e = open_engine(&o);
    r.no_draft = true;
    answer a = ask(e, &r);
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    assert_same(&alone, &a);
    assert_int_equal(a.end.n_drafted, 0);
    assert_int_equal(st.draft.n_rounds, 0);
    assert_int_equal(st.draft.n_idle_rounds, 0); /* it was not for the cost */
    bl_engine_close(e);
}

/* Depth 0: the head is not in memory, and what is said about it stays. A model without one never drafts. */
static void test_depth_zero_leaves_the_head_out(void **state) {
    (void)state;
    bl_model_info with, without, other;
    bl_engine_options o = options(2);
    assert_int_equal(bl_model_inspect(&o, &with, NULL), BL_OK);
    o.draft_depth = 0;
    assert_int_equal(bl_model_inspect(&o, &without, NULL), BL_OK);
    assert_int_equal(with.draft_depth, 2);
    assert_int_equal(without.draft_depth, 0);
    assert_string_equal(with.draft, "embedded");
    assert_string_equal(without.draft, "embedded");
    assert_true(without.weights_bytes < with.weights_bytes);
    assert_true(without.kv_seq_bytes < with.kv_seq_bytes);
    o = options(2);
    o.model_path = tiny_llama;
    assert_int_equal(bl_model_inspect(&o, &other, NULL), BL_OK);
    assert_int_equal(other.draft_depth, 0);
    assert_string_equal(other.draft, "none");
    bl_err err;
    o.draft_depth = BL_MAX_DRAFT + 1;
    assert_int_equal(bl_model_inspect(&o, &other, &err), BL_EINVAL);
    assert_string_equal(err.msg, "draft_depth is 8, at most 7 are allowed");
}

static void test_script_is_checked(void **state) {
    (void)state;
    bl_engine_options o = options(1);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy();
    bl_session *s = NULL;
    bl_err err;
    int32_t outside = (int32_t)bl_engine_info(e)->n_vocab;
    r.draft_script = &outside;
    r.n_draft_script = 1;
    assert_int_equal(bl_session_submit(e, &r, &s, &err), BL_EINVAL);
    assert_non_null(strstr(err.msg, "draft script"));
    bl_engine_close(e);
}

/* The plan was made with the head; a head whose numbers are none is left out of it. */
static void test_unreadable_head_costs_the_head(void **state) {
    (void)state;
    bl_engine_options o = options(2);
    bl_loaded l;
    TINY_MUST(bl_loader_inspect(&o, &l, NULL));
    assert_true(bl_model_has_draft(l.model));
    bl_model_vector *v = &l.model->vectors[l.model->n_trunk_vectors];
    bl_tensor_view broken = *v->src;
    static const uint16_t nan_bf16[4096] = {[1] = 0x7fc0};
    static const float nan_f32[4096] = {[1] = __builtin_nanf("")};
    broken.data = broken.dtype == BL_DTYPE_F32 ? (const uint8_t *)nan_f32 : (const uint8_t *)nan_bf16;
    assert_true(broken.size_bytes <= sizeof nan_bf16);
    v->src = &broken;
    uint32_t n_kv = l.model->n_kv, n_states = l.model->n_states;
    TINY_MUST(bl_loader_load(&o, &l, NULL));
    assert_false(bl_model_has_draft(l.model));
    assert_int_equal(l.info.draft_depth, 0);
    assert_int_equal(l.size.max_draft, 0);
    assert_int_equal(l.kv.n_layers, n_kv - 1);
    assert_int_equal(l.kv.n_states, n_states - 1);
    assert_non_null(strstr(l.info.draft, broken.name));
    bl_loader_done(&l);
}

/* ---- the trained model ------------------------------------------------------------------------------- */

#define MAX_TEXTS 16u
#define MAX_TEXT  512u
#define N_GIVEN   200u

typedef struct {
    int32_t ids[MAX_TEXT];
    uint32_t n;
} text;

/* Prompts of documentation that the model was not trained on. */
static uint32_t read_prompts(const json_t *expected, text *ret) {
    const json_t *list = json_object_get(expected, "greedy");
    uint32_t n = BL_MIN((uint32_t)json_array_size(list), MAX_TEXTS);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *ids = json_object_get(json_array_get(list, i), "prompt_ids");
        ret[i].n = (uint32_t)json_array_size(ids);
        assert_true(ret[i].n > 0 && ret[i].n + N_GIVEN <= MAX_TEXT);
        read_ids(ids, ret[i].ids, ret[i].n);
    }
    return n;
}

/* The model's own answers behind the prompts, with two drafts a step. */
static bl_draft_stats go_on(const bl_engine_options *o, text *t, uint32_t n) {
    bl_engine *e = open_engine(o);
    for (uint32_t i = 0; i < n; i++) {
        bl_request r;
        bl_request_init(&r);
        r.prompt = t[i].ids;
        r.n_prompt = t[i].n;
        r.max_tokens = N_GIVEN;
        r.sampling.temperature = 0.0f;
        bl_session *s = submit(e, &r);
        for (bl_event ev = next_event(s); ev.kind == BL_EVENT_TOKEN; ev = next_event(s)) {
            t[i].ids[t[i].n++] = ev.id;
        }
        bl_session_free(s);
    }
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    bl_engine_close(e);
    return st.draft;
}

/* As often as the head agrees with the model when it is given the same texts (within 3 points: a round starts
 * where the one before ended, teacher forcing looks at every position). */
static void test_acceptance_is_what_teacher_forcing_predicts(void **state) {
    (void)state;
    static text texts[MAX_TEXTS];
    char folder[512];
    json_t *expected = open_trained(folder, sizeof folder);
    bl_engine_options o = options(2);
    o.model_path = folder;
    o.n_context = MAX_TEXT;
    uint32_t n = read_prompts(expected, texts);
    json_decref(expected);
    assert_true(n > 2);
    bl_draft_stats got = go_on(&o, texts, n);
    bl_draft_agreement sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        bl_draft_agreement a;
        TINY_MUST(bl_model_measure_draft(&o, texts[i].ids, texts[i].n, NULL, NULL, &a, NULL));
        for (uint32_t d = 0; d < BL_DRAFT_MEASURED; d++) {
            sum.n_rows[d] += a.n_rows[d];
            sum.n_agreed[d] += a.n_agreed[d];
        }
    }
    for (uint32_t d = 0; d < BL_DRAFT_MEASURED; d++) {
        double accepted = (double)got.n_accepted[d] / (double)got.n_proposed[d];
        double agreed = (double)sum.n_agreed[d] / (double)sum.n_rows[d];
        printf("depth %u: %llu of %llu accepted (%.3f), teacher forcing %.3f\n", d + 1,
               (unsigned long long)got.n_accepted[d], (unsigned long long)got.n_proposed[d], accepted,
               agreed);
        assert_true(got.n_proposed[d] > 200);
        assert_true(fabs(accepted - agreed) <= 0.03);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_drafts_save_steps),
        cmocka_unit_test(test_wrong_drafts_cost_nothing_of_the_answer),
        cmocka_unit_test(test_stop_inside_a_run),
        cmocka_unit_test(test_limits_inside_a_run),
        cmocka_unit_test(test_no_draft_drafts_nothing),
        cmocka_unit_test(test_depth_zero_leaves_the_head_out),
        cmocka_unit_test(test_script_is_checked),
        cmocka_unit_test(test_unreadable_head_costs_the_head),
        cmocka_unit_test(test_acceptance_is_what_teacher_forcing_predicts),
    };
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
