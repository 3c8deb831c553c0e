/* Invariants of the engine that no other test pins (docs/invariants.md): one answer on every schedule, what
 * the cache holds of a finished request, times that add up, query blocks, and the choice of storage.
 */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "bl/bl.h"
#include "engine_calls.h"

#define FIXTURES  BL_SOURCE_DIR "/tests/fixtures/tiny/"
#define N_ASKED   4u
#define N_PROMPT  70u
#define N_OUTPUT  24u
#define MAX_READY 200u

static const char *const families[] = {FIXTURES "llama-tiny", FIXTURES "gemma3-tiny", FIXTURES "gpt_oss-tiny",
                                       FIXTURES "qwen3_5-moe-tiny"};

typedef struct {
    int32_t ids[N_OUTPUT];
    uint32_t n;
    bl_event end;
} answer;

static void fill(int32_t *ids, uint32_t n, uint32_t which) {
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)((i * 7919u + which * 31u * (i + 1) + i / 5) % 500u);
    }
}

static bl_engine_options options(const char *path) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1;
    o.n_context = 256;
    o.prefill_chunk = 32;
    o.max_concurrent = N_ASKED;
    return o;
}

static bl_session *ask(bl_engine *e, const int32_t *ids, uint32_t n, const int32_t *stop) {
    bl_request r;
    bl_request_init(&r);
    r.prompt = ids;
    r.n_prompt = n;
    r.max_tokens = N_OUTPUT;
    r.stop_ids = stop;
    r.n_stop_ids = stop ? 1 : 0;
    r.sampling.temperature = 0.0f;
    r.hash_prompt = false;
    r.logit_hash = true;
    return submit(e, &r);
}

static void drain(bl_session *s, answer *a) {
    memset(a, 0, sizeof *a);
    for (;;) {
        bl_event ev = next_event(s);
        if (ev.kind != BL_EVENT_TOKEN) {
            assert_int_equal(ev.kind, BL_EVENT_FINISHED);
            a->end = ev;
            break;
        }
        assert_true(a->n < N_OUTPUT);
        a->ids[a->n++] = ev.id;
    }
    bl_session_free(s);
}

/* ---- 9: alone, again, in a burst, and on four schedules of arrival ------------------------------------- */

static void ask_on_schedule(bl_engine *e, const uint32_t *at_us, answer *a) {
    int32_t ids[N_ASKED][N_PROMPT];
    bl_session *s[N_ASKED];
    for (uint32_t i = 0; i < N_ASKED; i++) {
        fill(ids[i], N_PROMPT, i);
        usleep(i > 0 ? at_us[i] - at_us[i - 1] : 0);
        s[i] = ask(e, ids[i], N_PROMPT - 9 * i, NULL);
    }
    for (uint32_t i = 0; i < N_ASKED; i++) {
        drain(s[i], &a[i]);
    }
}

static void test_one_answer_on_every_schedule(void **state) {
    (void)state;
    /* 0/0/0/0, 0/25/50/75, 0/100/200/300, 0/250/500/750 ms for a model some 50 times slower */
    static const uint32_t schedules[][N_ASKED] = {
        {0, 0, 0, 0}, {0, 500, 1000, 1500}, {0, 2000, 4000, 6000}, {0, 5000, 10000, 15000}};
    for (size_t f = 0; f < BL_COUNTOF(families); f++) {
        bl_engine_options o = options(families[f]);
        bl_engine *e = open_engine(&o);
        answer alone[N_ASKED], got[N_ASKED];
        int32_t ids[N_PROMPT];
        for (uint32_t i = 0; i < 2 * N_ASKED; i++) {
            fill(ids, N_PROMPT, i % N_ASKED);
            drain(ask(e, ids, N_PROMPT - 9 * (i % N_ASKED), NULL), i < N_ASKED ? &alone[i] : &got[0]);
            if (i >= N_ASKED) {
                assert_memory_equal(got[0].ids, alone[i - N_ASKED].ids, sizeof got[0].ids);
            }
        }
        for (size_t k = 0; k < BL_COUNTOF(schedules); k++) {
            ask_on_schedule(e, schedules[k], got);
            for (uint32_t i = 0; i < N_ASKED; i++) {
                assert_memory_equal(got[i].ids, alone[i].ids, sizeof got[i].ids);
                assert_int_equal(got[i].end.logit_hash, alone[i].end.logit_hash);
            }
        }
        bl_engine_close(e);
    }
}

/* ---- 10: what is stored of a finished request ---------------------------------------------------------- */

/* The last token of an answer is drawn and never fed, whether the length or a stop ends it: a prompt that
 * goes on from the answer finds everything before that token in the cache, and nothing behind. */
static void test_stored_positions_are_the_tokens_fed(void **state) {
    (void)state;
    for (size_t f = 0; f < BL_COUNTOF(families); f++) {
        for (int stops = 0; stops < 2; stops++) {
            bl_engine_options o = options(families[f]);
            o.prefix_cache_bytes = BL_AUTO;
            bl_engine *e = open_engine(&o);
            int32_t ids[N_PROMPT + N_OUTPUT + 2], stop = 0;
            answer a, b;
            fill(ids, N_PROMPT, 2);
            if (stops) {
                bl_engine *other = open_engine(&o);
                drain(ask(other, ids, N_PROMPT, NULL), &a);
                bl_engine_close(other);
                stop = a.ids[N_OUTPUT / 2];
            }
            drain(ask(e, ids, N_PROMPT, stops ? &stop : NULL), &a);
            assert_int_equal(a.end.finish, stops ? BL_FINISH_STOP : BL_FINISH_LENGTH);
            assert_true(stops ? a.ids[a.n - 1] == stop && a.n < N_OUTPUT : a.n == N_OUTPUT);
            bl_engine_stats st;
            bl_engine_get_stats(e, &st);
            assert_int_equal(st.kv_bytes_in_use, 0);
            memcpy(ids + N_PROMPT, a.ids, a.n * sizeof *ids);
            ids[N_PROMPT + a.n] = 77;
            ids[N_PROMPT + a.n + 1] = 78;
            drain(ask(e, ids, N_PROMPT + a.n + 2, NULL), &b);
            assert_int_equal(b.end.n_cached, N_PROMPT + a.n - 1);
            bl_engine_close(e);
        }
    }
}

/* ---- 13: times ------------------------------------------------------------------------------------------
 */

static void test_times_add_up(void **state) {
    (void)state;
    bl_engine_options o = options(families[0]);
    o.max_concurrent = 2;
    bl_engine *e = open_engine(&o);
    answer a[N_ASKED];
    static const uint32_t burst[N_ASKED];
    ask_on_schedule(e, burst, a);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        const bl_event *ev = &a[i].end;
        assert_int_equal(ev->queue_ns + ev->prefill_ns, ev->ttft_ns);
        assert_true(ev->prefill_ns > 0 && ev->decode_ns > 0);
        assert_true(ev->max_gap_ns > 0 && ev->max_gap_ns <= ev->decode_ns);
        assert_true(ev->max_gap_ns * (ev->n_output - 1) >= ev->decode_ns / 2); /* gaps make up the whole */
    }
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    assert_int_equal(st.queue.n, N_ASKED);
    assert_int_equal(st.ttft.n, N_ASKED);
    assert_int_equal(st.token_gap.n, N_ASKED * (N_OUTPUT - 1));
    bl_engine_close(e);
}

/* ---- 14: query blocks -----------------------------------------------------------------------------------
 */

static void test_one_hash_for_every_query_block(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) /* ten times as slow, and every block runs the same code */
    static const uint32_t blocks[] = {0, 13};
#else
    static const uint32_t blocks[] = {0, 1, 2, 8, 13, 64, 128, 256};
#endif
    for (size_t f = 0; f < BL_COUNTOF(families); f++) {
        uint64_t first = 0;
        for (size_t i = 0; i < BL_COUNTOF(blocks); i++) {
            bl_engine_options o = options(families[f]);
            o.attn_query_block = blocks[i];
            o.prefill_chunk = 200;
            bl_engine *e = open_engine(&o);
            int32_t ids[MAX_READY];
            bl_request r;
            bl_session *s = NULL;
            answer a;
            fill(ids, MAX_READY, 1);
            bl_request_init(&r);
            r.prompt = ids;
            r.n_prompt = MAX_READY;
            r.max_tokens = 4;
            r.sampling.temperature = 0.0f;
            r.hash_prompt = true; /* the logits of every row */
            assert_int_equal(bl_session_submit(e, &r, &s, NULL), BL_OK);
            drain(s, &a);
            first = i == 0 ? a.end.logit_hash : first;
            if (a.end.logit_hash != first) {
                fail_msg("%s: query block %u gives another hash than block 0", families[f], blocks[i]);
            }
            bl_engine_close(e);
        }
        assert_true(first != 0);
    }
}

/* ---- 23: the choice of storage --------------------------------------------------------------------------
 */

static void test_choice_of_storage(void **state) {
    (void)state;
    static const struct {
        bl_kv_choice asked;
        bool killed;
        const char *storage, *reason;
    } rows[] = {
        {BL_KV_CHOICE_AUTO, false, "contiguous", "auto"},
        {BL_KV_CHOICE_AUTO, true, "contiguous", "auto"},
        {BL_KV_CHOICE_CONTIGUOUS, false, "contiguous", "asked_for"},
        {BL_KV_CHOICE_CONTIGUOUS, true, "contiguous", "asked_for"},
        {BL_KV_CHOICE_PAGED, false, "paged", "asked_for"},
        {BL_KV_CHOICE_PAGED, true, "contiguous", "kill_switch"},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_engine_options o = options(families[1]);
        bl_model_info info;
        o.kv_storage = rows[i].asked;
        o.kv_paged_disabled = rows[i].killed;
        assert_int_equal(bl_model_inspect(&o, &info, NULL), BL_OK);
        assert_string_equal(info.kv_storage, rows[i].storage);
        assert_string_equal(info.kv_storage_reason, rows[i].reason);
        bl_engine *e = open_engine(&o); /* what is said is what is done */
        assert_string_equal(bl_engine_info(e)->kv_storage, rows[i].storage);
        bl_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_answer_on_every_schedule),
        cmocka_unit_test(test_stored_positions_are_the_tokens_fed),
        cmocka_unit_test(test_times_add_up),
        cmocka_unit_test(test_one_hash_for_every_query_block),
        cmocka_unit_test(test_choice_of_storage),
    };
    return cmocka_run_group_tests_name("invariants", tests, NULL, NULL);
}
