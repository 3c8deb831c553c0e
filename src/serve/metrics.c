#include "serve/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"

/* Answers begin within some 10 ms on a small model and within a minute behind a full queue. */
static const double wait_bounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
/* 4 ms a token is 250 tokens a second; the engine aims at 250 ms while it reads other prompts. */
static const double gap_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15,
                                    0.25,  0.4,    0.6,   1,    2.5,  5,    10,   30};
static const double duration_bounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                         5,    10,    30,   60,  120,  300, 600};

/* Every status that the server gives; the first stands for any other. */
static const int statuses[] = {0,   200, 204, 400, 401, 403, 404, 405, 408, 411, 413,
                               414, 415, 417, 429, 431, 499, 500, 501, 503, 505};
_Static_assert(BL_COUNTOF(statuses) <= BL_METRICS_MAX_STATUS, "a column for each status");

void bl_metrics_init(bl_metrics *m, const char *const *routes, uint32_t n_routes) {
    BL_ASSERT(n_routes <= BL_METRICS_MAX_ROUTES);
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < n_routes; i++) {
        m->routes[i] = routes[i];
    }
    m->n_routes = n_routes;
    bl_histogram_init(&m->ttft, wait_bounds, BL_COUNTOF(wait_bounds));
    bl_histogram_init(&m->queue, wait_bounds, BL_COUNTOF(wait_bounds));
    bl_histogram_init(&m->token_gap, gap_bounds, BL_COUNTOF(gap_bounds));
    bl_histogram_init(&m->duration, duration_bounds, BL_COUNTOF(duration_bounds));
}

void bl_metrics_request(bl_metrics *m, uint32_t route, int status) {
    BL_ASSERT(route < m->n_routes);
    size_t at = 0;
    for (size_t i = 1; i < BL_COUNTOF(statuses); i++) {
        at = statuses[i] == status ? i : at;
    }
    m->requests[route][at]++;
}

const char *bl_metrics_stage_name(bl_metrics_stage s) {
    static const char *const names[BL_STAGE__MAX] = {"pre_engine", "prefill", "decode"};
    return names[s];
}

uint64_t bl_metrics_resident_bytes(void) {
    uint64_t kib = 0;
    return bl_file_read_number("/proc/self/status", "VmRSS:", &kib) ? kib << 10 : 0;
}

/* ---- the text form ---- */

static bl_code head(bl_buf *b, const char *name, const char *type, const char *help, bl_err *err) {
    return bl_buf_printf(b, err, "# HELP darkbloom_%s %s\n# TYPE darkbloom_%s %s\n", name, help, name, type);
}

static bl_code one(bl_buf *b, const char *name, const char *type, const char *help, uint64_t value,
                   bl_err *err) {
    BL_TRY(head(b, name, type, help, err));
    return bl_buf_printf(b, err, "darkbloom_%s %" PRIu64 "\n", name, value);
}

/* A label's value: backslash, quote and newline are escaped (the format's three). */
static bl_code label(bl_buf *b, const char *text, bl_err *err) {
    for (; *text; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') {
            BL_TRY(bl_buf_append_char(b, '\\', err));
        }
        BL_TRY(bl_buf_append_char(b, *text == '\n' ? 'n' : *text, err));
    }
    return BL_OK;
}

static bl_code histogram(bl_buf *b, const char *name, const char *help, const bl_histogram *h, bl_err *err) {
    uint64_t sum = 0;
    BL_TRY(head(b, name, "histogram", help, err));
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        sum += h->counts[i];
        BL_TRY(
            bl_buf_printf(b, err, "darkbloom_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->bounds[i], sum));
    }
    return bl_buf_printf(b, err,
                         "darkbloom_%s_bucket{le=\"+Inf\"} %" PRIu64 "\ndarkbloom_%s_sum %.9g\n"
                         "darkbloom_%s_count %" PRIu64 "\n",
                         name, h->n, name, h->sum_s, name, h->n);
}

static bl_code write_requests(const bl_metrics *m, bl_buf *b, bl_err *err) {
    BL_TRY(head(b, "http_requests_total", "counter", "Requests answered or given up, by route and status.",
                err));
    for (uint32_t r = 0; r < m->n_routes; r++) {
        for (size_t k = 0; k < BL_COUNTOF(statuses); k++) {
            if (m->requests[r][k] == 0) {
                continue;
            }
            char status[8] = "other";
            if (k > 0) {
                (void)snprintf(status, sizeof status, "%d", statuses[k]);
            }
            BL_TRY(bl_buf_append_str(b, "darkbloom_http_requests_total{route=\"", err));
            BL_TRY(label(b, m->routes[r], err));
            BL_TRY(bl_buf_printf(b, err, "\",status=\"%s\"} %" PRIu64 "\n", status, m->requests[r][k]));
        }
    }
    BL_TRY(head(b, "requests_cancelled_total", "counter", "Requests whose client left, by how far they were.",
                err));
    for (unsigned i = 0; i < BL_STAGE__MAX; i++) {
        BL_TRY(bl_buf_printf(b, err, "darkbloom_requests_cancelled_total{stage=\"%s\"} %" PRIu64 "\n",
                             bl_metrics_stage_name((bl_metrics_stage)i), m->cancelled[i]));
    }
    BL_TRY(histogram(b, "time_to_first_token_seconds", "From the whole request to its first token.", &m->ttft,
                     err));
    BL_TRY(histogram(b, "inter_token_seconds",
                     "Between two tokens of a request, but for those that waited for their reader.",
                     &m->token_gap, err));
    BL_TRY(histogram(b, "queue_seconds", "In the engine's queue, of requests that ended by themselves.",
                     &m->queue, err));
    return histogram(b, "request_duration_seconds",
                     "From the head of a request to the last byte of its answer.", &m->duration, err);
}

static bl_code write_engine(const bl_metrics_view *v, bl_buf *b, bl_err *err) {
    const bl_engine_stats *e = &v->engine;
    BL_TRY(one(b, "requests_preparing", "gauge", "Requests between their body and the engine.", v->preparing,
               err));
    BL_TRY(one(b, "requests_waiting", "gauge", "Requests in the engine's queue.", e->waiting, err));
    BL_TRY(one(b, "requests_running", "gauge", "Requests that the engine works on.", e->running, err));
    BL_TRY(head(b, "engine_requests_total", "counter", "Requests that left the engine, by how.", err));
    BL_TRY(bl_buf_printf(b, err,
                         "darkbloom_engine_requests_total{outcome=\"finished\"} %" PRIu64 "\n"
                         "darkbloom_engine_requests_total{outcome=\"failed\"} %" PRIu64 "\n"
                         "darkbloom_engine_requests_total{outcome=\"cancelled\"} %" PRIu64 "\n",
                         e->n_finished, e->n_failed, e->n_cancelled));
    BL_TRY(
        histogram(b, "engine_queue_seconds", "From submit to the start, of all requests.", &e->queue, err));
    BL_TRY(
        histogram(b, "engine_time_to_first_token_seconds", "From submit to the first token.", &e->ttft, err));
    BL_TRY(
        histogram(b, "engine_inter_token_seconds", "Between two tokens of a request.", &e->token_gap, err));
    return histogram(b, "engine_step_seconds", "Of the engine's steps.", &e->step, err);
}

static bl_code write_memory(const bl_metrics_view *v, bl_buf *b, bl_err *err) {
    const bl_engine_stats *e = &v->engine;
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } all[] = {
        {"kv_bytes_in_use", "gauge", "Bytes of keys and values that sequences hold.", e->kv_bytes_in_use},
        {"kv_bytes_committed", "gauge", "Bytes of keys and values that have memory.", e->kv_bytes_committed},
        {"kv_bytes_capacity", "gauge", "Budget of keys and values.", e->kv_bytes_capacity},
        {"prefix_cache_lookups_total", "counter", "Prompts looked up in the prefix cache.", e->cache_lookups},
        {"prefix_cache_hits_total", "counter", "Prompts of which it held something.", e->cache_hits},
        {"prefix_cache_hit_tokens_total", "counter", "Tokens that it held of them.", e->cache_tokens_hit},
        {"prefix_cache_evictions_total", "counter", "Entries that left it.", e->cache_evicted},
        {"prefix_cache_bytes_in_use", "gauge", "Bytes that it holds.", e->cache_bytes_in_use},
        {"prefix_cache_bytes_capacity", "gauge", "Its budget.", e->cache_bytes_max},
    };
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        BL_TRY(one(b, all[i].name, all[i].type, all[i].help, all[i].value, err));
    }
    if (!v->kv_storage || !v->kv_storage_reason) {
        return BL_OK;
    }
    BL_TRY(head(b, "kv_storage", "gauge", "Where keys and values lie, and why.", err));
    return bl_buf_printf(b, err, "darkbloom_kv_storage{storage=\"%s\",reason=\"%s\"} 1\n", v->kv_storage,
                         v->kv_storage_reason);
}

static bl_code write_counts(const bl_metrics_view *v, bl_buf *b, bl_err *err) {
    const bl_engine_stats *e = &v->engine;
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } all[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens evaluated.", e->n_prompt_tokens},
        {"cached_prompt_tokens_total", "counter", "Prompt tokens found in the prefix cache.",
         e->n_cached_tokens},
        {"output_tokens_total", "counter", "Tokens generated.", e->n_output_tokens},
        {"engine_steps_total", "counter", "Steps of the engine.", e->n_steps},
        {"preemptions_total", "counter", "Times a running request had to give its memory back.",
         e->n_preempted},
        {"deadline_rejections_total", "counter", "Requests refused by the forecast of their first token.",
         e->n_rejected_deadline},
        {"expired_requests_total", "counter", "Requests that a time limit ended.", e->n_expired},
        {"engine_hangs_total", "counter", "Steps that the watchdog reported.", e->n_hangs},
        {"engine_hung", "gauge", "1 while a reported step has not come back.", e->hung},
        {"attention_scores_executed_total", "counter", "Attention scores of prompts that were computed.",
         e->attn_scores_executed},
        {"attention_scores_useful_total", "counter", "Of these, those that the mask keeps.",
         e->attn_scores_useful},
    };
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        BL_TRY(one(b, all[i].name, all[i].type, all[i].help, all[i].value, err));
    }
    BL_TRY(head(b, "engine_step_age_seconds", "gauge", "How long the step under way runs.", err));
    return bl_buf_printf(b, err, "darkbloom_engine_step_age_seconds %.6f\n", (double)e->step_age_ns / 1e9);
}

/* One line a place in a round, the first draft's being 1; that one is there also where nothing is drafted. */
static bl_code by_depth(bl_buf *b, const char *name, const char *help, const uint64_t *counts,
                        uint32_t max_depth, bl_err *err) {
    BL_TRY(head(b, name, "counter", help, err));
    for (uint32_t i = 0; i < BL_MIN(BL_MAX(max_depth, 1u), BL_MAX_DRAFT); i++) {
        BL_TRY(bl_buf_printf(b, err, "darkbloom_%s{depth=\"%u\"} %" PRIu64 "\n", name, i + 1, counts[i]));
    }
    return BL_OK;
}

static bl_code write_drafting(const bl_metrics_view *v, bl_buf *b, bl_err *err) {
    const bl_draft_stats *d = &v->engine.draft;
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } all[] = {
        {"mtp_enabled", "gauge", "1 where drafting is asked for with this model.", v->mtp_enabled},
        {"mtp_active", "gauge", "1 while the engine drafts.", d->max_depth > 0},
        {"mtp_max_depth", "gauge", "Tokens that are drafted ahead at most.", d->max_depth},
        {"mtp_depth", "gauge", "Of these, in the last decoding step.", d->depth},
        {"mtp_rounds_total", "counter", "Steps of a request in which drafts were verified.", d->n_rounds},
        {"mtp_idle_rounds_total", "counter", "Steps of a request without, because drafting would cost more.",
         d->n_idle_rounds},
    };
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        BL_TRY(one(b, all[i].name, all[i].type, all[i].help, all[i].value, err));
    }
    BL_TRY(by_depth(b, "mtp_tokens_proposed_total", "Drafted tokens, by place in their round.", d->n_proposed,
                    d->max_depth, err));
    BL_TRY(by_depth(b, "mtp_tokens_accepted_total", "Of these, those that were found right.", d->n_accepted,
                    d->max_depth, err));
    if (!v->mtp_inactive_reason) {
        return BL_OK;
    }
    BL_TRY(head(b, "mtp_inactive_reason", "gauge", "Why the engine does not draft.", err));
    BL_TRY(bl_buf_append_str(b, "darkbloom_mtp_inactive_reason{model=\"", err));
    BL_TRY(label(b, v->model, err));
    return bl_buf_printf(b, err, "\",reason=\"%s\"} 1\n", v->mtp_inactive_reason);
}

static bl_code write_process(const bl_metrics *m, const bl_metrics_view *v, bl_buf *b, bl_err *err) {
    BL_TRY(head(b, "info", "gauge", "The program and the model that it serves.", err));
    BL_TRY(bl_buf_append_str(b, "darkbloom_info{version=\"", err));
    BL_TRY(label(b, v->version, err));
    BL_TRY(bl_buf_append_str(b, "\",model=\"", err));
    BL_TRY(label(b, v->model, err));
    BL_TRY(bl_buf_append_str(b, "\"} 1\n", err));
    BL_TRY(
        one(b, "start_time_seconds", "gauge", "When the server began to serve, Unix time.", v->start_s, err));
    BL_TRY(one(b, "connections", "gauge", "Open connections.", v->connections, err));
    BL_TRY(one(b, "slow_readers_dropped_total", "counter", "Connections closed because they took nothing.",
               v->dropped_readers, err));
    BL_TRY(one(b, "keep_alive_comments_total", "counter", "Comments sent into silent streams.",
               m->n_keep_alives, err));
    BL_TRY(
        one(b, "loop_wakeups_total", "counter", "Wake-ups of the event loop for requests.", m->n_wakes, err));
    BL_TRY(one(b, "loop_requests_pulled_total", "counter", "Requests looked at in those wake-ups.",
               m->n_pulls, err));
    if (v->resident_bytes == 0) {
        return BL_OK;
    }
    return one(b, "process_resident_memory_bytes", "gauge", "Resident memory of the process.",
               v->resident_bytes, err);
}

bl_code bl_metrics_write(const bl_metrics *m, const bl_metrics_view *v, bl_buf *ret, bl_err *err) {
    BL_TRY(write_process(m, v, ret, err));
    BL_TRY(write_requests(m, ret, err));
    BL_TRY(write_engine(v, ret, err));
    BL_TRY(write_counts(v, ret, err));
    BL_TRY(write_drafting(v, ret, err));
    return write_memory(v, ret, err);
}
