/* What the batch engine promises beyond equal answers (test_batch_exact.c): order of service, the bound on
 * the gap between two tokens, preemption, deadlines, leases, and a watchdog that can say that a step hangs.
 */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/attn_scores.h"
#include "base/base.h"
#include "base/clock.h"
#include "bl/bl.h"
#include "engine_calls.h"
#include "tiny_model.h"

#define MAX_PROMPT 4000u

static int32_t prompt[MAX_PROMPT];

static int fill_prompt(void **state) {
    (void)state;
    for (uint32_t i = 0; i < MAX_PROMPT; i++) {
        prompt[i] = (int32_t)((i * 7919u + i / 13u) % 500u);
    }
    return 0;
}

static bl_engine_options options(uint32_t n_concurrent) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = tiny_llama;
    o.n_threads = 1;
    o.n_context = 4096;
    o.max_concurrent = n_concurrent;
    return o;
}

static bl_request greedy(uint32_t n_prompt, uint32_t max_tokens) {
    bl_request r;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0.0f;
    return r;
}

static bl_event drain(bl_session *s) {
    for (;;) {
        bl_event ev = next_event(s);
        if (ev.kind != BL_EVENT_TOKEN) {
            bl_session_free(s);
            return ev;
        }
    }
}

/* ---- order ------------------------------------------------------------------------------------------- */

static void test_higher_priority_starts_first(void **state) {
    (void)state;
    bl_engine_options o = options(1);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(8, 3000);
    bl_session *busy = submit(e, &r), *s[3];
    next_event(busy);
    r.max_tokens = 4;
    for (int i = 0; i < 3; i++) {
        r.priority = i; /* the last one submitted is the most urgent */
        s[i] = submit(e, &r);
    }
    bl_session_cancel(busy);
    drain(busy);
    uint64_t waited[3];
    for (int i = 0; i < 3; i++) {
        waited[i] = drain(s[i]).queue_ns;
    }
    assert_true(waited[2] < waited[1] && waited[1] < waited[0]);
    bl_engine_close(e);
}

/* While a long prompt is read, a running request gets a token from every step, and a step holds prefill_cap
 * rows of it at most: so the prompt takes at least n / cap steps, each with a token. */
static void test_prompts_do_not_hold_up_tokens(void **state) {
    (void)state;
    bl_engine_options o = options(2);
    o.prefill_cap = 16;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(8, 3000);
    bl_session *talks = submit(e, &r);
    next_event(talks);
    bl_engine_stats s0, s1;
    bl_engine_get_stats(e, &s0);
    r = greedy(1600, 1);
    bl_session *reads = submit(e, &r);
    drain(reads);
    bl_engine_get_stats(e, &s1);
    uint64_t steps = s1.n_steps - s0.n_steps, tokens = s1.n_output_tokens - s0.n_output_tokens;
    assert_true(steps >= 1600 / 16);
    assert_true(tokens >= 1600 / 16);
    assert_true(tokens + 2 >= steps); /* every step gave one */
    bl_session_cancel(talks);
    drain(talks);
    bl_engine_close(e);
}

static void test_cancel_takes_one_step(void **state) {
    (void)state;
    bl_engine_options o = options(4);
    o.prefill_cap = 16;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(3000, 1000);
    bl_session *s = submit(e, &r);
    bl_engine_stats before, after;
    do {
        bl_engine_get_stats(e, &before);
    } while (before.n_steps == 0);
    bl_session_cancel(s);
    bl_engine_get_stats(e, &before);
    bl_event ev = drain(s);
    bl_engine_get_stats(e, &after);
    assert_int_equal(ev.finish, BL_FINISH_CANCELLED);
    assert_true(after.n_steps - before.n_steps <= 1);
    assert_int_equal(after.kv_bytes_in_use, 0);
    bl_engine_close(e);
}

/* Five requests that need two tiles a layer each in a budget of six: the lowest and youngest go back, and all
 * end with what they asked for. */
static void test_short_memory_preempts(void **state) {
    (void)state;
    bl_engine_options o = options(5);
    bl_model_info info;
    o.n_context = 384;
    TINY_MUST(bl_model_inspect(&o, &info, NULL));
    o.kv_bytes = info.kv_seq_bytes;
    bl_engine *e = open_engine(&o);
    bl_session *s[5];
    bl_event ev[5];
    for (uint32_t i = 0; i < 5; i++) {
        bl_request r = greedy(40, 60);
        r.priority = i == 4;  /* the last one is worth more than the others */
        r.hash_prompt = true; /* rows of a second prefill do not count twice */
        s[i] = submit(e, &r);
    }
    for (uint32_t i = 0; i < 5; i++) {
        ev[i] = drain(s[i]);
        assert_int_equal(ev[i].finish, BL_FINISH_LENGTH);
        assert_int_equal(ev[i].n_output, 60);
    }
    assert_int_equal(ev[4].n_preempted, 0);
    assert_int_equal(ev[0].n_preempted, 0);
    assert_true(ev[3].n_preempted > 0);
    for (uint32_t i = 1; i < 5; i++) { /* all asked for the same */
        assert_int_equal(ev[i].logit_hash, ev[0].logit_hash);
    }
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    assert_true(st.n_preempted > 0);
    assert_int_equal(st.kv_bytes_in_use, 0);
    bl_engine_close(e);
}

/* ---- time -------------------------------------------------------------------------------------------- */

static void test_unreachable_deadline_is_refused_before_work(void **state) {
    (void)state;
    bl_engine_options o = options(1);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(500, 1);
    drain(submit(e, &r)); /* now the speed is known */
    r = greedy(100, 3000);
    bl_session *busy = submit(e, &r);
    next_event(busy);
    bl_engine_stats before, after;
    bl_engine_get_stats(e, &before);
    r = greedy(4000, 1);
    r.first_content_ms = 1;
    bl_session *s = NULL;
    bl_err err = {0};
    assert_int_equal(bl_session_submit(e, &r, &s, &err), BL_EBUSY);
    assert_null(s);
    assert_memory_equal(err.msg, "deadline_unreachable", strlen("deadline_unreachable"));
    bl_engine_get_stats(e, &after);
    assert_int_equal(after.n_rejected_deadline, before.n_rejected_deadline + 1);
    assert_int_equal(after.waiting, 0);
    assert_int_equal(after.n_prompt_tokens, before.n_prompt_tokens);
    bl_session_cancel(busy);
    drain(busy);
    r = greedy(100, 1);
    r.first_content_ms = 60000;
    assert_int_equal(drain(submit(e, &r)).kind, BL_EVENT_FINISHED);
    bl_engine_close(e);
}

/* A forecast needs the speed of each kind of work in it. Before any token was timed, a request that would
 * wait for tokens of others cannot be told to be in time; alone it can. */
static void test_no_forecast_without_both_rates(void **state) {
    (void)state;
    bl_engine_options o = options(1);
    o.prefill_chunk = 2000;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(500, 1);
    r.first_content_ms = 1000000; /* nothing was measured: let in */
    assert_int_equal(drain(submit(e, &r)).kind, BL_EVENT_FINISHED);
    assert_int_equal(drain(submit(e, &r)).kind, BL_EVENT_FINISHED); /* prompts were */
    bl_request busy = greedy(2000, 50);
    bl_session *first = submit(e, &busy), *s = NULL; /* its prompt takes a step of a while */
    bl_err err = {0};
    assert_int_equal(bl_session_submit(e, &r, &s, &err), BL_EBUSY);
    assert_memory_equal(err.msg, "deadline_unreachable", strlen("deadline_unreachable"));
    drain(first);
    assert_int_equal(drain(submit(e, &r)).kind, BL_EVENT_FINISHED);
    bl_engine_close(e);
}

static void test_waiting_too_long_is_an_answer(void **state) {
    (void)state;
    bl_engine_options o = options(1);
    o.admission_timeout_ms = 20;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(8, 4000);
    bl_session *busy = submit(e, &r);
    next_event(busy);
    bl_session *s = submit(e, &r);
    bl_event ev = drain(s);
    assert_int_equal(ev.kind, BL_EVENT_FAILED);
    assert_int_equal(ev.err.code, BL_EBUSY);
    assert_memory_equal(ev.err.msg, "admission_timeout", strlen("admission_timeout"));
    bl_session_cancel(busy);
    drain(busy);
    bl_engine_close(e);
}

/* A limit of 20 ms makes a step of 2,000 rows one that hangs. */
static void test_watchdog_speaks_and_the_engine_recovers(void **state) {
    (void)state;
    bl_engine_options o = options(2);
    o.watchdog_ms = 20;
    o.prefill_chunk = 2000;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(2000, 4);
    bl_session *s = submit(e, &r), *refused = NULL;
    bl_event ev = next_event(s);
    assert_int_equal(ev.kind, BL_EVENT_FAILED);
    assert_int_equal(ev.err.code, BL_EINTERNAL);
    assert_non_null(strstr(ev.err.msg, "hangs"));
    bl_engine_stats st, later;
    bl_err err = {0};
    bl_engine_get_stats(e, &st);
    bl_code rc = bl_session_submit(e, &r, &refused, &err);
    bl_engine_get_stats(e, &later);
    if (st.hung && later.hung) { /* the step did not come back in between */
        assert_int_equal(rc, BL_EINTERNAL);
    }
    bl_session_free(refused);
    assert_true(st.n_hangs >= 1);
    bl_session_free(s);
    do {
        bl_engine_get_stats(e, &st);
        usleep(1000);
    } while (st.hung || st.running > 0 || st.step_age_ns > 0);
    assert_int_equal(st.kv_bytes_in_use, 0);
    r = greedy(1, 1);
    for (int i = 0; i < 50; i++) { /* served again; on a busy machine 20 ms may pass in a step of one row */
        refused = NULL;
        if (bl_session_submit(e, &r, &refused, &err) == BL_OK) {
            ev = drain(refused);
        }
        if (ev.kind == BL_EVENT_FINISHED) {
            break;
        }
        usleep(20000);
    }
    assert_int_equal(ev.kind, BL_EVENT_FINISHED);
    bl_engine_close(e);
}

/* ---- counters ---------------------------------------------------------------------------------------- */

/* Chunks of a prompt count what the formula says, whatever the block; decode counts nothing. */
static void test_attention_scores_are_counted(void **state) {
    (void)state;
    static const uint32_t blocks[] = {1, 2, 8, 0};
    for (size_t i = 0; i < BL_COUNTOF(blocks); i++) {
        bl_engine_options o = options(1);
        o.model_path = tiny_gemma;
        o.n_context = 512;
        o.prefill_chunk = 100;
        o.attn_query_block = blocks[i];
        bl_engine *e = open_engine(&o);
        const bl_model_info *info = bl_engine_info(e);
        bl_request r = greedy(250, 20);
        drain(submit(e, &r));
        bl_engine_stats st;
        bl_engine_get_stats(e, &st);
        uint32_t block = blocks[i] > 0 ? BL_MIN(blocks[i], 16u) : 16u;
        uint64_t executed = 0, useful = 0;
        /* Of the last layer only rows that are asked for get past the stored keys: one, which counts nothing.
         * Layer 5 is the only one that sees everything. */
        for (uint32_t l = 0; l + 1 < info->n_layers; l++) {
            for (uint32_t at = 0; at < 250; at += 100) {
                bl_attn_scores s =
                    bl_attention_scores(at, BL_MIN(250 - at, 100u), l == 5 ? 0 : info->window, block);
                executed += s.executed * info->n_heads;
                useful += s.useful * info->n_heads;
            }
        }
        assert_int_equal(st.attn_scores_executed, executed);
        assert_int_equal(st.attn_scores_useful, useful);
        bl_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_higher_priority_starts_first),
        cmocka_unit_test(test_prompts_do_not_hold_up_tokens),
        cmocka_unit_test(test_cancel_takes_one_step),
        cmocka_unit_test(test_short_memory_preempts),
        cmocka_unit_test(test_unreachable_deadline_is_refused_before_work),
        cmocka_unit_test(test_no_forecast_without_both_rates),
        cmocka_unit_test(test_waiting_too_long_is_an_answer),
        cmocka_unit_test(test_watchdog_speaks_and_the_engine_recovers),
        cmocka_unit_test(test_attention_scores_are_counted),
    };
    return cmocka_run_group_tests_name("batch", tests, fill_prompt, NULL);
}
