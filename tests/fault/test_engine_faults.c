/* Every Nth allocation fails while a model is loaded and while a request is served: an ordinary error each
 * time, nothing leaked, and the next load or request succeeds. System calls likewise while loading.
 */
#include "../unit/cmocka_all.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
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
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_engine *e = NULL;
        bl_err err = {0};
        bl_code rc = bl_engine_open(&o, &e, &err);
        if (rc == BL_OK) {
            assert_non_null(e);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_survives_each_allocation_failing),
        cmocka_unit_test(test_load_survives_each_call_failing),
        cmocka_unit_test(test_requests_survive_each_allocation_failing),
    };
    return cmocka_run_group_tests_name("engine_faults", tests, NULL, NULL);
}
