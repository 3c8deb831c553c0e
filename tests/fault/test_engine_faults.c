/* Every Nth allocation and system call fails while a model is loaded and while requests are served: an
 * ordinary error each time, nothing leaked, and the next load or request succeeds.
 */
#include "../unit/cmocka_all.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "bl/bl.h"
#include "faults.h"

static const char tiny[] = BL_SOURCE_DIR "/tests/fixtures/tiny/gemma3-tiny";
static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};

static bl_engine_options small_options(void) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = tiny;
    o.n_threads = 2;
    o.n_context = 128;
    return o;
}

static bool fired(void) {
    return atomic_load_explicit(&faults.fired, memory_order_relaxed);
}

static void load_under(unsigned kinds, bool persistent) {
    bl_engine_options o = small_options();
    o.kv_storage = persistent ? BL_KV_CHOICE_PAGED : BL_KV_CHOICE_AUTO; /* what fails is never replaced */
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_engine *e = NULL;
        bl_err err = {0};
        bl_code rc = bl_engine_open(&o, &e, &err);
        if (rc == BL_OK) {
            assert_non_null(e);
            assert_string_equal(bl_engine_info(e)->kv_storage, persistent ? "paged" : "contiguous");
            bl_engine_close(e);
        } else {
            assert_null(e);
            assert_true(fired());
            if (rc != BL_ENOMEM && rc != BL_EIO) {
                fail_msg("fault %llu gave '%s': %s", (unsigned long long)n, bl_code_name(rc), err.msg);
            }
            assert_true(strlen(err.msg) > 0);
        }
        assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
        assert_true(n < 100000);
    }
    assert_true(n > 5);
}

static void test_load_survives_each_allocation_failing(void **state) {
    (void)state;
    load_under(FAULT_ALLOC, false);
    load_under(FAULT_ALLOC, true);
}

static void test_load_survives_each_call_failing(void **state) {
    (void)state;
    load_under(FAULT_IO, false);
    load_under(FAULT_IO, true);
}

/* Runs a request to its end; the code of submit, or of the FAILED event. */
static bl_code serve(bl_engine *e, int32_t ids[8]) {
    bl_request r;
    bl_session *s = NULL;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = BL_COUNTOF(prompt);
    r.max_tokens = 8;
    r.logprobs = true;
    r.n_top_logprobs = 3;
    r.logit_hash = true;
    bl_code rc = bl_session_submit(e, &r, &s, NULL);
    if (rc != BL_OK) {
        assert_null(s);
        return rc;
    }
    for (int n = 0;;) {
        bl_event ev;
        bool got = false;
        assert_int_equal(bl_session_next(s, 60000, &ev, &got, NULL), BL_OK);
        assert_true(got);
        if (ev.kind == BL_EVENT_TOKEN) {
            ids[n++] = ev.id;
            continue;
        }
        rc = ev.kind == BL_EVENT_FAILED ? ev.err.code : BL_OK;
        break;
    }
    bl_session_free(s);
    return rc;
}

/* The engine lets go of a session a moment after its last event was read. */
static void expect_live(uint64_t want) {
    for (int i = 0; i < 5000 && atomic_load_explicit(&faults.n_live, memory_order_relaxed) != want; i++) {
        usleep(1000);
    }
    assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), want);
}

static void test_requests_survive_each_allocation_failing(void **state) {
    (void)state;
    bl_engine_options o = small_options();
    bl_engine *e = NULL;
    int32_t want[8], got[8];
    assert_true(faults_arm(1, 0, false)); /* counts from here, nothing fails */
    assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
    uint64_t live = atomic_load_explicit(&faults.n_live, memory_order_relaxed);
    assert_int_equal(serve(e, want), BL_OK);
    uint64_t n_failed = 0;
    for (int persistent = 0; persistent < 2; persistent++) {
        for (uint64_t n = 1; faults_arm(n, FAULT_ALLOC, persistent); n++) {
            bl_code rc = serve(e, got);
            if (rc == BL_OK) {
                assert_memory_equal(want, got, sizeof want);
            } else {
                assert_int_equal(rc, BL_ENOMEM);
                assert_true(fired());
                n_failed++;
            }
            uint64_t calls = atomic_load_explicit(&faults.n_calls, memory_order_relaxed);
            assert_true(calls <= 8); /* a request allocates when submitted, a step never */
            faults.kinds = 0;
            assert_int_equal(serve(e, got), BL_OK); /* the next one is served */
            assert_memory_equal(want, got, sizeof want);
            expect_live(live);
        }
    }
    assert_true(n_failed >= 8);
    bl_engine_close(e);
    assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
}

/* ---- several at one time ------------------------------------------------------------------------------ */

#define N_MANY   4u
#define N_OUTPUT 30u

typedef struct {
    const char *model;
    bl_kv_choice storage;
} setup;

static const setup setups[] = {
    {BL_SOURCE_DIR "/tests/fixtures/tiny/gemma3-tiny", BL_KV_CHOICE_CONTIGUOUS},
    {BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny", BL_KV_CHOICE_PAGED}, /* recurrent states */
    {BL_SOURCE_DIR "/tests/fixtures/tiny/gemma3-tiny", BL_KV_CHOICE_PAGED},
    {BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny", BL_KV_CHOICE_CONTIGUOUS},
};

/* With a sanitizer everything takes ten times as long: a selection. */
#if defined(__SANITIZE_ADDRESS__)
#define N_SETUPS   2u
#define EVERY_CALL 1u
#define FEW_CALLS  1u
#else
#define N_SETUPS   BL_COUNTOF(setups)
#define EVERY_CALL UINT64_MAX
#define FEW_CALLS  6u
#endif

#define MAX_FAIL_NS 60000000000u

typedef struct {
    int32_t ids[N_MANY][N_OUTPUT];
    bl_code rc[N_MANY]; /* of submit, or of the event that ends it */
} answers;

/* A budget that holds one of them at its longest, but not all; the cache has room for some. */
static bl_engine_options many_options(const setup *u) {
    bl_engine_options o = small_options();
    bl_model_info info;
    o.model_path = u->model;
    o.n_context = 192;
    o.n_threads = 1;
    o.max_concurrent = 3;
    o.prefill_chunk = 32; /* a prompt that is restarted passes the place where memory ends in a later step */
    o.kv_storage = u->storage;
    o.draft_depth = 2; /* of a model with a head */
    o.draft_fixed = true;
    assert_int_equal(bl_model_inspect(&o, &info, NULL), BL_OK);
    o.kv_bytes = info.kv_seq_bytes;
    o.prefix_cache_bytes = 2 * info.kv_seq_bytes + 4 * info.state_bytes;
    return o;
}

static void serve_many(bl_engine *e, answers *a) {
    static const uint32_t lengths[N_MANY] = {40, 50, 100, 30};
    int32_t ids[100];
    bl_session *s[N_MANY] = {0};
    memset(a, 0, sizeof *a);
    for (uint32_t i = 0; i < N_MANY; i++) {
        for (uint32_t k = 0; k < BL_COUNTOF(ids); k++) { /* every second begins like the one before it */
            ids[k] = (int32_t)((k * 37 + (k > 20 ? i : i / 2)) % 500);
        }
        bl_request r;
        bl_request_init(&r);
        r.prompt = ids;
        r.n_prompt = lengths[i];
        r.max_tokens = N_OUTPUT;
        r.sampling.temperature = 0.0f;
        a->rc[i] = bl_session_submit(e, &r, &s[i], NULL);
    }
    for (uint32_t i = 0; i < N_MANY; i++) {
        for (uint32_t n = 0; s[i];) {
            bl_event ev;
            bool got = false;
            assert_int_equal(bl_session_next(s[i], 20000, &ev, &got, NULL), BL_OK);
            if (!got) {
                fail_msg("request %u got no event in 20 s", i);
            }
            if (ev.kind == BL_EVENT_TOKEN) {
                assert_true(n < N_OUTPUT);
                a->ids[i][n++] = ev.id;
                continue;
            }
            a->rc[i] = ev.kind == BL_EVENT_FAILED ? ev.err.code : BL_OK;
            assert_true(a->rc[i] != BL_OK || n == N_OUTPUT);
            bl_session_free(s[i]);
            s[i] = NULL;
        }
    }
}

/* What came is right, as far as it came. Returns how many failed, all of them for want of memory. */
static uint32_t check_many(const answers *want, const answers *a) {
    uint32_t n_failed = 0;
    for (uint32_t i = 0; i < N_MANY; i++) {
        if (a->rc[i] == BL_OK) {
            assert_memory_equal(want->ids[i], a->ids[i], sizeof a->ids[i]);
        } else {
            assert_int_equal(a->rc[i], BL_ENOMEM);
            n_failed++;
        }
    }
    return n_failed;
}

/* One life of an engine, opened without faults; kinds == 0: none at all. Returns requests that failed. */
static uint32_t live_once(const bl_engine_options *o, const answers *want, unsigned kinds) {
    answers got;
    bl_engine *e = NULL;
    bl_engine_stats st;
    faults.kinds = 0;
    assert_int_equal(bl_engine_open(o, &e, NULL), BL_OK);
    uint64_t live = atomic_load_explicit(&faults.n_live, memory_order_relaxed);
    faults.kinds = kinds;
    uint64_t start = bl_clock_mono_ns();
    serve_many(e, &got);
    uint64_t ns = bl_clock_mono_ns() - start;
    faults.kinds = 0;
    uint32_t n_failed = check_many(want, &got);
    if (n_failed > 0 && ns > MAX_FAIL_NS) { /* it would have tried for ever: no judgement of speed */
        fail_msg("%u requests took %llu ms to fail", n_failed, (unsigned long long)(ns / 1000000u));
    }
    serve_many(e, &got); /* the next ones are served */
    assert_int_equal(check_many(want, &got), 0);
    expect_live(live);
    bl_engine_get_stats(e, &st);
    assert_int_equal(st.kv_bytes_in_use, 0);
    assert_int_equal(st.running + st.waiting, 0);
    assert_true(st.kv_bytes_committed <= st.kv_bytes_capacity);
    bl_engine_close(e);
    assert_int_equal(atomic_load_explicit(&faults.n_live, memory_order_relaxed), 0);
    return n_failed;
}

static void test_many_without_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETUPS; i++) {
        bl_engine_options o = many_options(&setups[i]);
        answers first, again;
        bl_engine *e = NULL;
        bl_engine_stats st;
        assert_true(faults_arm(1, 0, false));
        assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
        serve_many(e, &first);
        serve_many(e, &again);
        assert_int_equal(check_many(&first, &again), 0);
        bl_engine_get_stats(e, &st);
        assert_true(st.n_preempted > 0); /* the budget is as tight as it is meant to be */
        assert_true(st.cache_hits > 0);
        bl_engine_close(e);
    }
}

static void fail_each(const setup *u, unsigned kinds, bool persistent, uint64_t step_by, uint64_t *n_failed) {
    bl_engine_options o = many_options(u);
    answers want;
    bl_engine *e = NULL;
    assert_true(faults_arm(1, 0, false));
    assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
    serve_many(e, &want);
    assert_int_equal(check_many(&want, &want), 0);
    bl_engine_close(e);
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n += 1 + n / step_by) {
        *n_failed += live_once(&o, &want, kinds);
        assert_true(n < 100000);
    }
    assert_true(n > 10);
}

/* One call that fails, whichever: what submits fails, what runs is begun again. */
static void test_many_survive_each_call_failing_once(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETUPS; i++) {
        uint64_t n_refused = 0, n_failed = 0;
        uint64_t step_by =
            i < 1 ? EVERY_CALL : FEW_CALLS; /* every one for the first, a selection for the others */
        fail_each(&setups[i], FAULT_ALLOC, false, step_by, &n_refused);
        fail_each(&setups[i], FAULT_IO, false, step_by, &n_failed);
        assert_true(n_refused > 0);
        assert_int_equal(n_failed, 0);
    }
}

/* From one call on every one fails: requests end soon and say why, and those that have all they need are
 * served. */
static void test_many_survive_calls_failing_for_ever(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETUPS; i++) {
        uint64_t n_failed = 0;
        fail_each(&setups[i], FAULT_ALLOC | FAULT_IO, true, BL_MIN(FEW_CALLS, 2u), &n_failed);
        fail_each(&setups[i], FAULT_IO, true, BL_MIN(FEW_CALLS, 4u), &n_failed);
        assert_true(n_failed > 0);
    }
}

/* Whatever a step does -- prompts and tokens side by side, preemption, the prefix cache storing, loading and
 * evicting --, it asks for no memory from the heap. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETUPS; i++) {
        bl_engine_options o = many_options(&setups[i]);
        bl_engine *e = NULL;
        bl_engine_stats st;
        answers a;
        assert_true(faults_arm(1, 0, false));
        assert_int_equal(bl_engine_open(&o, &e, NULL), BL_OK);
        faults.fail_at = UINT64_MAX;
        faults.kinds = FAULT_ALLOC;
        bl_request r;
        bl_request_init(&r);
        r.prompt = prompt;
        r.n_prompt = 1;
        r.max_tokens = 1;
        bl_session *s = NULL;
        assert_int_equal(bl_session_submit(e, &r, &s, NULL), BL_OK); /* and one step: a submit's count */
        bl_event ev;
        bool got = false;
        do {
            assert_int_equal(bl_session_next(s, 20000, &ev, &got, NULL), BL_OK);
            assert_true(got);
        } while (ev.kind == BL_EVENT_TOKEN);
        bl_session_free(s);
        uint64_t per_submit = atomic_load_explicit(&faults.n_calls, memory_order_relaxed);
        serve_many(e, &a);
        uint64_t calls = atomic_load_explicit(&faults.n_calls, memory_order_relaxed) - per_submit;
        bl_engine_get_stats(e, &st);
        faults.kinds = 0;
        assert_true(st.n_preempted > 0);
        assert_true(st.n_steps > N_OUTPUT);
        assert_int_equal(calls, N_MANY * per_submit);
        bl_engine_close(e);
    }
}

static void no_log(bl_log_level level, const char *line, void *user) {
    (void)level, (void)line, (void)user;
}

int main(void) {
    bl_log_set_sink(no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_survives_each_allocation_failing),
        cmocka_unit_test(test_load_survives_each_call_failing),
        cmocka_unit_test(test_requests_survive_each_allocation_failing),
        cmocka_unit_test(test_many_without_faults),
        cmocka_unit_test(test_many_survive_each_call_failing_once),
        cmocka_unit_test(test_many_survive_calls_failing_for_ever),
        cmocka_unit_test(test_steps_allocate_nothing),
    };
    return cmocka_run_group_tests_name("engine_faults", tests, NULL, NULL);
}
