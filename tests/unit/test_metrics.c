/* The exposition of GET /metrics: its form, its escapes, its arithmetic. */
#include "exposition.h"

#include "base/base.h"
#include "serve/metrics.h"

static const char *const routes[] = {"-", "/v1/chat/completions", "/v1/models/{id}"};

static char *text_of(const bl_metrics *m, const char *model) {
    bl_buf b;
    bl_err err;
    static const double bounds[] = {0.01, 0.025, 0.05, 1, 120}; /* the engine brings its own */
    bl_metrics_view v = {.version = "1.2", .model = model, .start_s = 1700000000, .resident_bytes = 4096};
    v.engine.running = 3;
    v.engine.n_output_tokens = 77;
    v.engine.kv_bytes_capacity = 1u << 30;
    v.engine.n_preempted = 5;
    v.engine.cache_hits = 6;
    v.engine.step_age_ns = 1500000000;
    v.engine.draft = (bl_draft_stats){.max_depth = 2,
                                      .depth = 1,
                                      .n_rounds = 9,
                                      .n_idle_rounds = 4,
                                      .n_proposed = {9, 5},
                                      .n_accepted = {6, 2}};
    v.mtp_enabled = true;
    bl_histogram_init(&v.engine.step, bounds, BL_COUNTOF(bounds));
    bl_histogram_add(&v.engine.step, 0.02);
    bl_histogram_add(&v.engine.step, 500);
    v.kv_storage = "paged";
    v.kv_storage_reason = "asked_for";
    bl_buf_init(&b, BL_METRICS_MAX_BYTES);
    if (bl_metrics_write(m, &v, &b, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return bl_buf_steal(&b);
}

static void test_an_empty_exposition(void **state) {
    (void)state;
    static expo e;
    bl_metrics m;
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    char *text = text_of(&m, "m");
    expo_parse(&e, text);
    assert_true(expo_value(&e, "darkbloom_requests_running", "") == 3);
    assert_true(expo_value(&e, "darkbloom_output_tokens_total", "") == 77);
    assert_true(expo_value(&e, "darkbloom_time_to_first_token_seconds_count", "") == 0);
    assert_true(expo_value(&e, "darkbloom_kv_bytes_capacity", "") == 1073741824.0);
    assert_true(expo_value(&e, "darkbloom_preemptions_total", "") == 5);
    assert_true(expo_value(&e, "darkbloom_prefix_cache_hits_total", "") == 6);
    assert_true(expo_value(&e, "darkbloom_engine_step_age_seconds", "") == 1.5);
    assert_true(expo_value(&e, "darkbloom_engine_step_seconds_bucket", "{le=\"0.01\"}") == 0);
    assert_true(expo_value(&e, "darkbloom_engine_step_seconds_bucket", "{le=\"0.025\"}") == 1);
    assert_true(expo_value(&e, "darkbloom_engine_step_seconds_count", "") == 2);
    assert_true(expo_value(&e, "darkbloom_kv_storage", "{storage=\"paged\",reason=\"asked_for\"}") == 1);
    assert_true(expo_value(&e, "darkbloom_process_resident_memory_bytes", "") == 4096);
    bl_free(text);
}

static void test_drafting(void **state) {
    (void)state;
    static expo e;
    bl_metrics m;
    bl_buf b;
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    char *text = text_of(&m, "m");
    expo_parse(&e, text);
    assert_true(expo_value(&e, "darkbloom_mtp_enabled", "") == 1);
    assert_true(expo_value(&e, "darkbloom_mtp_active", "") == 1);
    assert_true(expo_value(&e, "darkbloom_mtp_max_depth", "") == 2);
    assert_true(expo_value(&e, "darkbloom_mtp_depth", "") == 1);
    assert_true(expo_value(&e, "darkbloom_mtp_rounds_total", "") == 9);
    assert_true(expo_value(&e, "darkbloom_mtp_idle_rounds_total", "") == 4);
    assert_true(expo_value(&e, "darkbloom_mtp_tokens_proposed_total", "{depth=\"1\"}") == 9);
    assert_true(expo_value(&e, "darkbloom_mtp_tokens_proposed_total", "{depth=\"2\"}") == 5);
    assert_true(expo_value(&e, "darkbloom_mtp_tokens_accepted_total", "{depth=\"2\"}") == 2);
    assert_null(strstr(text, "{depth=\"3\"}"));
    assert_null(strstr(text, "mtp_inactive_reason"));
    bl_free(text);

    bl_metrics_view v = {.version = "1", .model = "a\"b", .mtp_inactive_reason = "config_disabled"};
    bl_buf_init(&b, BL_METRICS_MAX_BYTES);
    assert_int_equal(bl_metrics_write(&m, &v, &b, NULL), BL_OK);
    text = bl_buf_steal(&b);
    expo_parse(&e, text);
    assert_true(expo_value(&e, "darkbloom_mtp_enabled", "") == 0);
    assert_true(expo_value(&e, "darkbloom_mtp_active", "") == 0);
    assert_true(expo_value(&e, "darkbloom_mtp_tokens_proposed_total", "{depth=\"1\"}") == 0);
    assert_true(expo_value(&e, "darkbloom_mtp_inactive_reason",
                           "{model=\"a\\\"b\",reason=\"config_disabled\"}") == 1);
    bl_free(text);
}

static void test_labels_are_escaped(void **state) {
    (void)state;
    static expo e;
    bl_metrics m;
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    char *text = text_of(&m, "a\"b\\c\nd}");
    expo_parse(&e, text);
    assert_true(expo_value(&e, "darkbloom_info", "{version=\"1.2\",model=\"a\\\"b\\\\c\\nd}\"}") == 1);
    bl_free(text);
}

static void test_requests_by_route_and_status(void **state) {
    (void)state;
    static expo e;
    bl_metrics m;
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    for (int i = 0; i < 3; i++) {
        bl_metrics_request(&m, 1, 200);
    }
    bl_metrics_request(&m, 1, 429);
    bl_metrics_request(&m, 2, 404);
    bl_metrics_request(&m, 0, 299); /* none of ours */
    m.cancelled[BL_STAGE_DECODE] = 2;
    char *text = text_of(&m, "m");
    expo_parse(&e, text);
    const char *name = "darkbloom_http_requests_total";
    assert_true(expo_value(&e, name, "{route=\"/v1/chat/completions\",status=\"200\"}") == 3);
    assert_true(expo_value(&e, name, "{route=\"/v1/chat/completions\",status=\"429\"}") == 1);
    assert_true(expo_value(&e, name, "{route=\"/v1/models/{id}\",status=\"404\"}") == 1);
    assert_true(expo_value(&e, name, "{route=\"-\",status=\"other\"}") == 1);
    assert_true(expo_value(&e, "darkbloom_requests_cancelled_total", "{stage=\"decode\"}") == 2);
    assert_true(expo_value(&e, "darkbloom_requests_cancelled_total", "{stage=\"prefill\"}") == 0);
    bl_free(text);
}

static void test_histograms(void **state) {
    (void)state;
    static expo e;
    bl_metrics m;
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    /* on a bound counts below it; beyond the last there is +Inf */
    static const double seconds[] = {0, 0.005, 0.0051, 0.3, 120, 1e6};
    for (size_t i = 0; i < BL_COUNTOF(seconds); i++) {
        bl_histogram_add(&m.ttft, seconds[i]);
    }
    char *text = text_of(&m, "m");
    expo_parse(&e, text);
    const char *name = "darkbloom_time_to_first_token_seconds_bucket";
    assert_true(expo_value(&e, name, "{le=\"0.005\"}") == 2);
    assert_true(expo_value(&e, name, "{le=\"0.01\"}") == 3);
    assert_true(expo_value(&e, name, "{le=\"0.5\"}") == 4);
    assert_true(expo_value(&e, name, "{le=\"120\"}") == 5);
    assert_true(expo_value(&e, name, "{le=\"+Inf\"}") == 6);
    assert_true(fabs(expo_value(&e, "darkbloom_time_to_first_token_seconds_sum", "") - 1000120.3101) < 1e-2);
    bl_free(text);
}

/* A buffer that is too small is an error, not a cut text. */
static void test_the_limit(void **state) {
    (void)state;
    bl_metrics m;
    bl_buf b;
    bl_metrics_view v = {.version = "1", .model = "m"};
    bl_metrics_init(&m, routes, BL_COUNTOF(routes));
    bl_buf_init(&b, 1000);
    assert_int_equal(bl_metrics_write(&m, &v, &b, NULL), BL_ELIMIT);
    bl_buf_done(&b);
}

static void test_resident_memory(void **state) {
    (void)state;
    uint64_t before = bl_metrics_resident_bytes();
    const size_t n = 32u << 20;
    char *p = bl_alloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i += 4096) {
        p[i] = 1;
    }
    uint64_t after = bl_metrics_resident_bytes();
    assert_true(before > (1u << 18) && after > before + n - (n >> 3) && after < before + 2 * n);
    bl_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_exposition), cmocka_unit_test(test_drafting),
        cmocka_unit_test(test_labels_are_escaped),  cmocka_unit_test(test_requests_by_route_and_status),
        cmocka_unit_test(test_histograms),          cmocka_unit_test(test_the_limit),
        cmocka_unit_test(test_resident_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
