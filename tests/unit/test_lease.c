/* Leases (spec engine-runtime §3.3, invariant 12; hard expiry of invariant 53): what arms and refreshes each,
 * what does not, and that no number of tokens overflows. */
#include "cmocka_all.h"

#include <string.h>

#include "base/base.h"
#include "runtime/lease.h"

#define S  1000000000ull
#define T0 (5 * S)

static bl_lease_options defaults(void) {
    bl_lease_options o;
    bl_lease_options_init(&o);
    return o;
}

static bl_lease begun(const bl_lease_options *o) {
    bl_lease l;
    bl_lease_begin(&l, o, T0, 1000, 16000, 0);
    return l;
}

/* The lease runs out at exactly `at`, not before, and next says so. */
static void expect_expiry(const bl_lease *l, const bl_lease_options *o, uint64_t at, bl_lease_cause cause) {
    assert_int_equal(bl_lease_check(l, o, at - 1), BL_LEASE_OK);
    assert_int_equal(bl_lease_check(l, o, at), cause);
    assert_int_equal(bl_lease_next_ns(l, o), at);
}

static void test_defaults_are_120_seconds(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    assert_int_equal(o.admission_ms, 120000);
    assert_int_equal(o.prefill_ms, 120000);
    assert_int_equal(o.decode_ms, 120000);
    assert_int_equal(o.backpressure_ms, 120000);
}

/* Invariant 12: safety = admission + 2 * prompt / 200 + max_tokens / 5 + 60 s. */
static void test_safety_formula(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    assert_int_equal(bl_lease_safety_ms(&o, 1000, 16000), 3390000);
    assert_int_equal(bl_lease_safety_ms(&o, 0, 0), 180000);
    assert_int_equal(bl_lease_safety_ms(&o, 1, 1), 180210);
    o.admission_ms = 0;
    assert_int_equal(bl_lease_safety_ms(&o, 0, 0), 60000);
}

/* Invariant 12: saturation at 1e9 s, whatever the numbers, and a deadline that is later than now. */
static void test_safety_saturates(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    const uint64_t most = 1000000000000ull; /* ms */
    assert_int_equal(bl_lease_safety_ms(&o, 0, UINT64_MAX), most);
    assert_int_equal(bl_lease_safety_ms(&o, UINT64_MAX, 0), most);
    assert_int_equal(bl_lease_safety_ms(&o, UINT64_MAX, UINT64_MAX), most);
    assert_int_equal(bl_lease_safety_ms(&o, 0, most / 200), most);
    /* One below the ceiling is not cut. */
    assert_int_equal(bl_lease_safety_ms(&o, 0, (most - 180000) / 200 - 1), most - 200);
    o.admission_ms = UINT64_MAX;
    assert_int_equal(bl_lease_safety_ms(&o, 1, 1), most);
    o = (bl_lease_options){0};
    bl_lease l;
    bl_lease_begin(&l, &o, UINT64_MAX - 1, UINT64_MAX, UINT64_MAX, UINT64_MAX);
    assert_int_equal(bl_lease_next_ns(&l, &o), UINT64_MAX);
    assert_int_equal(bl_lease_check(&l, &o, UINT64_MAX - 1), BL_LEASE_OK);
}

static void test_safety_is_set_once(void **state) {
    (void)state;
    bl_lease_options o = {.admission_ms = 0, .prefill_ms = 0, .decode_ms = 0};
    bl_lease l = begun(&o);
    uint64_t end = T0 + bl_lease_safety_ms(&o, 1000, 16000) * 1000000u;
    bl_lease_admitted(&l, T0 + 5 * S);
    bl_lease_token(&l, T0 + 6 * S);
    bl_lease_preempted(&l, T0 + 7 * S);
    bl_lease_admitted(&l, T0 + 8 * S);
    expect_expiry(&l, &o, end, BL_LEASE_SAFETY);
}

static void test_admission_runs_out(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    expect_expiry(&l, &o, T0 + 120 * S, BL_LEASE_ADMISSION);
}

/* Invariant 12: admission never re-arms. */
static void test_admission_ends_for_ever(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0 + 119 * S);
    bl_lease_computed(&l, T0 + 119 * S, 10);
    bl_lease_preempted(&l, T0 + 130 * S);
    /* It waits again, with neither admission nor progress lease: only safety is left. */
    expect_expiry(&l, &o, T0 + 3390 * S, BL_LEASE_SAFETY);
}

/* Invariant 12: only finished progress refreshes; rows up to the watermark are none. */
static void test_prefill_refreshes_above_the_watermark_only(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0 + 10 * S);
    expect_expiry(&l, &o, T0 + 130 * S, BL_LEASE_PREFILL_STALL);
    bl_lease_computed(&l, T0 + 50 * S, 512);
    expect_expiry(&l, &o, T0 + 170 * S, BL_LEASE_PREFILL_STALL);
    bl_lease_computed(&l, T0 + 60 * S, 512);
    bl_lease_computed(&l, T0 + 61 * S, 100);
    expect_expiry(&l, &o, T0 + 170 * S, BL_LEASE_PREFILL_STALL);
    bl_lease_computed(&l, T0 + 62 * S, 513);
    expect_expiry(&l, &o, T0 + 182 * S, BL_LEASE_PREFILL_STALL);
}

/* Invariant 12: while it decodes only a confirmed token counts. */
static void test_decode_refreshes_by_tokens_only(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0);
    bl_lease_computed(&l, T0 + 1 * S, 1000);
    bl_lease_token(&l, T0 + 1 * S);
    expect_expiry(&l, &o, T0 + 121 * S, BL_LEASE_DECODE_STALL);
    bl_lease_computed(&l, T0 + 100 * S, 1001);
    expect_expiry(&l, &o, T0 + 121 * S, BL_LEASE_DECODE_STALL);
    bl_lease_token(&l, T0 + 100 * S);
    expect_expiry(&l, &o, T0 + 220 * S, BL_LEASE_DECODE_STALL);
}

/* Invariant 12: a steady token stream outlives 120 s. */
static void test_steady_stream_outlives_the_window(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0);
    for (uint64_t t = 0; t < 3389; t += 1) {
        assert_int_equal(bl_lease_check(&l, &o, T0 + t * S), BL_LEASE_OK);
        bl_lease_token(&l, T0 + t * S);
    }
    assert_int_equal(bl_lease_check(&l, &o, T0 + 3390 * S), BL_LEASE_SAFETY);
}

/* Invariant 12: preemption resets the prefill window and the watermark. */
static void test_preemption_starts_a_fresh_prefill_window(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0);
    bl_lease_computed(&l, T0 + 1 * S, 1000);
    bl_lease_token(&l, T0 + 1 * S);
    bl_lease_preempted(&l, T0 + 100 * S);
    assert_int_equal(bl_lease_check(&l, &o, T0 + 1000 * S), BL_LEASE_OK); /* waiting is no stall */
    bl_lease_admitted(&l, T0 + 1000 * S);
    expect_expiry(&l, &o, T0 + 1120 * S, BL_LEASE_PREFILL_STALL);
    bl_lease_computed(&l, T0 + 1050 * S, 512); /* below what was computed before */
    expect_expiry(&l, &o, T0 + 1170 * S, BL_LEASE_PREFILL_STALL);
    bl_lease_token(&l, T0 + 1060 * S);
    expect_expiry(&l, &o, T0 + 1180 * S, BL_LEASE_DECODE_STALL);
}

static void test_pause_stops_progress_and_resume_starts_afresh(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l = begun(&o);
    bl_lease_admitted(&l, T0);
    bl_lease_token(&l, T0);
    bl_lease_paused(&l, T0 + 100 * S);
    bl_lease_paused(&l, T0 + 150 * S); /* still the same pause */
    expect_expiry(&l, &o, T0 + 220 * S, BL_LEASE_BACKPRESSURE);
    bl_lease_resumed(&l, T0 + 210 * S);
    expect_expiry(&l, &o, T0 + 330 * S, BL_LEASE_DECODE_STALL);
    bl_lease_resumed(&l, T0 + 300 * S); /* no pause to end: refreshes nothing */
    expect_expiry(&l, &o, T0 + 330 * S, BL_LEASE_DECODE_STALL);
}

/* Invariant 53: counted from receipt, queue wait included; ends with the first token. */
static void test_first_content_is_hard_until_the_first_token(void **state) {
    (void)state;
    bl_lease_options o = {0};
    bl_lease l;
    bl_lease_begin(&l, &o, T0, 10, 10, 9000);
    expect_expiry(&l, &o, T0 + 9 * S, BL_LEASE_FIRST_CONTENT);
    bl_lease_admitted(&l, T0 + 8 * S);
    bl_lease_computed(&l, T0 + 8 * S, 10);
    expect_expiry(&l, &o, T0 + 9 * S, BL_LEASE_FIRST_CONTENT);
    bl_lease_token(&l, T0 + 8 * S + 1);
    assert_int_equal(bl_lease_check(&l, &o, T0 + 10 * S), BL_LEASE_OK);
    bl_lease_preempted(&l, T0 + 10 * S); /* had its first token: the deadline stays met */
    assert_int_equal(bl_lease_check(&l, &o, T0 + 10 * S), BL_LEASE_OK);
}

static void test_zero_turns_a_lease_off(void **state) {
    (void)state;
    bl_lease_options o = {0};
    bl_lease l = begun(&o);
    uint64_t safety = T0 + 3270 * S;
    expect_expiry(&l, &o, safety, BL_LEASE_SAFETY);
    bl_lease_admitted(&l, T0);
    expect_expiry(&l, &o, safety, BL_LEASE_SAFETY);
    bl_lease_token(&l, T0);
    expect_expiry(&l, &o, safety, BL_LEASE_SAFETY);
    bl_lease_paused(&l, T0);
    expect_expiry(&l, &o, safety, BL_LEASE_SAFETY);
}

/* A check that comes late, after a long step, names what ran out first. */
static void test_late_check_names_the_first_cause(void **state) {
    (void)state;
    bl_lease_options o = defaults();
    bl_lease l;
    bl_lease_begin(&l, &o, T0, 10, 10, 130000);
    assert_int_equal(bl_lease_check(&l, &o, T0 + 4000 * S), BL_LEASE_ADMISSION);
    bl_lease_admitted(&l, T0 + 100 * S);
    assert_int_equal(bl_lease_check(&l, &o, T0 + 4000 * S), BL_LEASE_FIRST_CONTENT);
    bl_lease_token(&l, T0 + 100 * S);
    assert_int_equal(bl_lease_check(&l, &o, T0 + 4000 * S), BL_LEASE_SAFETY); /* 182.1 s */
}

static void test_causes_have_names(void **state) {
    (void)state;
    assert_string_equal(bl_lease_cause_name(BL_LEASE_OK), "ok");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_ADMISSION), "admission_timeout");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_PREFILL_STALL), "prefill_stall");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_DECODE_STALL), "decode_stall");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_SAFETY), "safety_deadline");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_FIRST_CONTENT), "first_content_deadline");
    assert_string_equal(bl_lease_cause_name(BL_LEASE_BACKPRESSURE), "backpressure_timeout");
    assert_string_equal(bl_lease_cause_name(BL_LEASE__MAX), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_120_seconds),
        cmocka_unit_test(test_safety_formula),
        cmocka_unit_test(test_safety_saturates),
        cmocka_unit_test(test_safety_is_set_once),
        cmocka_unit_test(test_admission_runs_out),
        cmocka_unit_test(test_admission_ends_for_ever),
        cmocka_unit_test(test_prefill_refreshes_above_the_watermark_only),
        cmocka_unit_test(test_decode_refreshes_by_tokens_only),
        cmocka_unit_test(test_steady_stream_outlives_the_window),
        cmocka_unit_test(test_preemption_starts_a_fresh_prefill_window),
        cmocka_unit_test(test_pause_stops_progress_and_resume_starts_afresh),
        cmocka_unit_test(test_first_content_is_hard_until_the_first_token),
        cmocka_unit_test(test_zero_turns_a_lease_off),
        cmocka_unit_test(test_late_check_names_the_first_cause),
        cmocka_unit_test(test_causes_have_names),
    };
    return cmocka_run_group_tests_name("lease", tests, NULL, NULL);
}
