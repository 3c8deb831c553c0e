/* The server's frame: options, routes, authorisation, headers, access log, draining. Jobs are in job.c. */
#include "serve/serve.h"

#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "serve/internal.h"

#define FORCED_FLUSH_MS      1000u    /* for the last bytes after a forced end */
#define MAX_FIRST_CONTENT_MS 3600000u /* an hour */

static const char type_json[] = "application/json";

static const struct {
    const char *path; /* as logged; a trailing {id} matches the rest */
    const char *allow;
    bool get, post;
} routes[BL_ROUTE__MAX] = {
    [BL_ROUTE_UNKNOWN] = {"-", "", false, false},
    [BL_ROUTE_ROOT] = {"/", "GET, HEAD", true, false},
    [BL_ROUTE_HEALTH] = {"/health", "GET, HEAD", true, false},
    [BL_ROUTE_METRICS] = {"/metrics", "GET, HEAD", true, false},
    [BL_ROUTE_MODELS] = {"/v1/models", "GET, HEAD", true, false},
    [BL_ROUTE_MODEL] = {"/v1/models/{id}", "GET, HEAD", true, false},
    [BL_ROUTE_CHAT] = {"/v1/chat/completions", "POST", false, true},
    [BL_ROUTE_COMPLETIONS] = {"/v1/completions", "POST", false, true},
    [BL_ROUTE_EMBEDDINGS] = {"/v1/embeddings", "POST", false, true},
};

/* Other names of the same things. */
static const struct {
    const char *path;
    bl_serve_route route;
} aliases[] = {{"/v1/health", BL_ROUTE_HEALTH},      {"/models", BL_ROUTE_MODELS},
               {"/chat/completions", BL_ROUTE_CHAT}, {"/completions", BL_ROUTE_COMPLETIONS},
               {"/embeddings", BL_ROUTE_EMBEDDINGS}, {"/embedding", BL_ROUTE_EMBEDDINGS}};

void bl_serve_options_init(bl_serve_options *o) {
    memset(o, 0, sizeof *o);
    o->bind = "127.0.0.1";
    o->port = 8000;
    o->max_concurrent = 4;
    o->max_queue = 32;
    o->n_workers = 2;
    o->max_connections = 512;
    o->drain_timeout_ms = 30000;
    o->alive_ms = 10000;
}

void bl_serve_make_id(bl_serve *s, const char *prefix, char out[BL_SERVE_ID_BYTES]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strlen(prefix);
    BL_ASSERT(n + 24 < BL_SERVE_ID_BYTES);
    memcpy(out, prefix, n);
    for (size_t i = 0; i < 24; i++) {
        out[n + i] = letters[bl_rng_next(&s->rng) % (sizeof letters - 1)];
    }
    out[n + 24] = '\0';
}

void bl_serve_request_id(bl_serve *s, const bl_http_head *h, char out[BL_SERVE_MAX_ID + 1]) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const bl_http_slice id = h ? h->request_id : (bl_http_slice){NULL, 0};
    bool sane = id.ptr && id.len >= 1 && id.len <= BL_SERVE_MAX_ID;
    for (size_t i = 0; sane && i < id.len; i++) {
        sane = memchr(good, id.ptr[i], sizeof good - 1) != NULL;
    }
    if (sane) {
        memcpy(out, id.ptr, id.len);
        out[id.len] = '\0';
    } else {
        bl_serve_make_id(s, "req_", out);
    }
}

void bl_serve_headers(bl_serve *s, bl_http_exchange *x, const char *request_id, const char *more, char *out,
                      size_t size) {
    const bl_http_head *h = bl_http_exchange_head(x);
    bool any = strcmp(s->cors, "*") == 0;
    bool listed = h && h->origin.ptr && s->cors[0] && h->origin.len == strlen(s->cors) &&
                  memcmp(h->origin.ptr, s->cors, h->origin.len) == 0;
    char cors[sizeof s->cors + 160] = "";
    if (any || listed) {
        (void)snprintf(cors, sizeof cors,
                       "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: X-Request-Id, "
                       "Retry-After\r\n%s",
                       s->cors, any ? "" : "Vary: Origin\r\n");
    }
    int n = snprintf(out, size, "X-Request-Id: %s\r\n%s%s", request_id, cors, more);
    BL_ASSERT(n > 0 && (size_t)n < size);
}

void bl_serve_answer_error(bl_serve *s, bl_http_exchange *x, const char *request_id,
                           const bl_openai_error *e) {
    char headers[1024], more[160] = "";
    if (e->status == 429) {
        double wait_s = ceil(s->mean_job_s / BL_MAX(s->o.max_concurrent, 1u)); /* until one of them ends */
        (void)snprintf(more, sizeof more, "Retry-After: %u\r\n", (unsigned)BL_MIN(BL_MAX(wait_s, 1.0), 60.0));
    } else if (e->status == 503) {
        (void)snprintf(more, sizeof more, "Retry-After: 1\r\n");
    } else if (e->status == 401) {
        (void)snprintf(more, sizeof more, "WWW-Authenticate: Bearer\r\n");
    } else if (e->status == 405) {
        (void)snprintf(more, sizeof more, "Allow: %.100s\r\n", e->param);
    }
    bl_openai_error shown = *e;
    if (e->status == 405) {
        shown.param[0] = '\0';
    }
    bl_serve_headers(s, x, request_id, more, headers, sizeof headers);
    bl_buf body;
    bl_buf_init(&body, 8192);
    if (bl_openai_write_error(&shown, &body, NULL) != BL_OK) {
        bl_buf_reset(&body);
    }
    bl_http_respond(x, e->status, type_json, headers, bl_buf_str(&body), body.len);
    bl_buf_done(&body);
}

void bl_serve_log(bl_serve *s, const char *request_id, const char *method, bl_serve_route route, int status,
                  uint64_t start_ns, const char *more) {
    bl_metrics_request(&s->metrics, route, status);
    bl_log(BL_LOG_INFO, "serve", "request", "id=%s method=%s route=%s status=%d ms=%.1f%s", request_id,
           method, routes[route].path, status, (double)(bl_clock_mono_ns() - start_ns) / 1e6, more);
}

/* Who has the same key is one tenant, and each of its cache keys one of its own. The hash is keyed with a
 * number of this process, so that neither key can be told from it. */
uint64_t bl_serve_tenant(const bl_serve *s, const char *cache_key, size_t n) {
    crypto_generichash_state h;
    uint8_t hash[16];
    uint64_t tenant;
    (void)crypto_generichash_init(&h, s->hash_key, sizeof s->hash_key, sizeof hash);
    (void)crypto_generichash_update(&h, s->key_hash, sizeof s->key_hash);
    (void)crypto_generichash_update(&h, (const unsigned char *)(cache_key ? cache_key : ""),
                                    cache_key ? n : 0);
    (void)crypto_generichash_final(&h, hash, sizeof hash);
    memcpy(&tenant, hash, sizeof tenant);
    return tenant;
}

bool bl_serve_knows_model(const bl_serve *s, const char *name) {
    bool known = strcmp(name, s->model.model_id) == 0;
    for (size_t i = 0; i < s->model.n_aliases; i++) {
        known = known || strcmp(name, s->model.aliases[i]) == 0;
    }
    return known;
}

static bool slice_is(bl_http_slice a, const char *b) {
    return a.ptr && a.len == strlen(b) && memcmp(a.ptr, b, a.len) == 0;
}

static bl_serve_route find_route(bl_http_slice path) {
    static const char models[] = "/v1/models/";
    for (unsigned r = BL_ROUTE_ROOT; r < BL_ROUTE__MAX; r++) {
        if (r != BL_ROUTE_MODEL && slice_is(path, routes[r].path)) {
            return (bl_serve_route)r;
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(aliases); i++) {
        if (slice_is(path, aliases[i].path)) {
            return aliases[i].route;
        }
    }
    size_t n = sizeof models - 1;
    return path.len > n && memcmp(path.ptr, models, n) == 0 ? BL_ROUTE_MODEL : BL_ROUTE_UNKNOWN;
}

/* Constant time: both sides are hashed under a random key, and the hashes compared. */
static bool key_is_right(const bl_serve *s, bl_http_slice authorization) {
    static const char scheme[] = "Bearer ";
    size_t n = sizeof scheme - 1;
    uint8_t hash[BL_SERVE_KEY_HASH];
    if (!authorization.ptr || authorization.len < n || strncasecmp(authorization.ptr, scheme, n) != 0) {
        return false;
    }
    (void)crypto_generichash(hash, sizeof hash, (const unsigned char *)authorization.ptr + n,
                             authorization.len - n, s->hash_key, sizeof s->hash_key);
    return sodium_memcmp(hash, s->key_hash, sizeof hash) == 0;
}

static bool is_loopback_host(bl_http_slice host) {
    char name[64];
    if (!host.ptr || host.len == 0 || host.len >= sizeof name) {
        return !host.ptr; /* HTTP/1.0 without Host: no browser */
    }
    memcpy(name, host.ptr, host.len);
    name[host.len] = '\0';
    char *end = name[0] == '[' ? strchr(name, ']') : strchr(name, ':');
    if (end) {
        *end = '\0';
    }
    const char *bare = name[0] == '[' ? name + 1 : name;
    size_t n = strlen(bare);
    if (strcasecmp(bare, "localhost") == 0 || (n > 10 && strcasecmp(bare + n - 10, ".localhost") == 0)) {
        return true;
    }
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *ai = NULL;
    if (getaddrinfo(bare, NULL, &hints, &ai) != 0) {
        return false;
    }
    freeaddrinfo(ai);
    return true;
}

/* A page in a browser on this machine must not be able to use a server that asks for no key: neither directly
 * (Origin) nor by pointing its own name at 127.0.0.1 (Host). */
static bl_code check_browser(const bl_serve *s, const bl_http_head *h, bl_openai_error *e) {
    if (s->has_key) {
        return BL_OK;
    }
    if (s->is_loopback && !s->o.any_host && !is_loopback_host(h->host)) {
        return bl_openai_refuse(e, 403, "forbidden_host", NULL,
                                "the Host header does not name this machine; give the server an API key");
    }
    if (!h->origin.ptr || strcmp(s->cors, "*") == 0 || (s->cors[0] && slice_is(h->origin, s->cors))) {
        return BL_OK;
    }
    static const char http[] = "http://";
    size_t n = sizeof http - 1;
    bool same = h->host.ptr && h->origin.len == n + h->host.len && memcmp(h->origin.ptr, http, n) == 0 &&
                memcmp(h->origin.ptr + n, h->host.ptr, h->host.len) == 0;
    if (same) {
        return BL_OK;
    }
    return bl_openai_refuse(e, 403, "forbidden_origin", NULL,
                            "this origin is not allowed; start the server with --cors or an API key");
}

static bool media_type_is(bl_http_slice t, const char *want) {
    size_t n = strlen(want);
    return t.len >= n && strncasecmp(t.ptr, want, n) == 0 &&
           (t.len == n || t.ptr[n] == ';' || t.ptr[n] == ' ');
}

/* Form data is what `curl -d` says by default. Letting it pass opens nothing to web pages: their POSTs carry
 * an Origin, which check_browser has seen. */
static bl_code check_content_type(const bl_http_head *h, bl_openai_error *e) {
    bl_http_slice t = h->content_type;
    if (!t.ptr || media_type_is(t, "application/json") ||
        media_type_is(t, "application/x-www-form-urlencoded")) {
        return BL_OK;
    }
    return bl_openai_refuse(e, 415, "unsupported_media_type", NULL, "Content-Type must be application/json");
}

/* X-Darkbloom-First-Content-Ms; 0 when it is absent. */
static bl_code read_first_content(const bl_http_head *h, uint32_t *ret, bl_openai_error *e) {
    static const char name[] = "X-Darkbloom-First-Content-Ms";
    const bl_http_slice v = h->first_content_ms;
    uint32_t ms = 0;
    for (size_t i = 0; i < v.len; i++) {
        if (v.ptr[i] < '0' || v.ptr[i] > '9' || v.len > 7) {
            return bl_openai_refuse(e, 400, "invalid_value", name,
                                    "'%s' is not an integer of at most 7 digits", name);
        }
        ms = ms * 10 + (uint32_t)(v.ptr[i] - '0');
    }
    if (v.ptr && (ms < 1 || ms > MAX_FIRST_CONTENT_MS)) {
        return bl_openai_refuse(e, 400, "invalid_value", name, "'%s' is %u; allowed are 1 to %u", name, ms,
                                MAX_FIRST_CONTENT_MS);
    }
    *ret = ms;
    return BL_OK;
}

static bl_code check_head(const bl_serve *s, const bl_http_head *h, bl_serve_route route,
                          bl_openai_error *e) {
    if (route == BL_ROUTE_UNKNOWN) {
        return bl_openai_refuse(e, 404, "unknown_url", NULL, "no such route; see GET / for those that are");
    }
    bool get = h->method == BL_HTTP_GET || h->method == BL_HTTP_HEAD;
    if (!(get && routes[route].get) && !(h->method == BL_HTTP_POST && routes[route].post)) {
        return bl_openai_refuse(e, 405, "method_not_allowed", routes[route].allow, "this route takes %s",
                                routes[route].allow);
    }
    BL_TRY(check_browser(s, h, e));
    /* Liveness is for load balancers and scripts, which hold no keys. */
    if (s->has_key && route != BL_ROUTE_HEALTH && route != BL_ROUTE_ROOT &&
        !key_is_right(s, h->authorization)) {
        return bl_openai_refuse(e, 401, "invalid_api_key", NULL,
                                h->authorization.ptr
                                    ? "the API key is not right"
                                    : "an API key is needed: send 'Authorization: Bearer KEY'");
    }
    if (route == BL_ROUTE_EMBEDDINGS) {
        return bl_openai_refuse(e, 400, "embeddings_not_configured", NULL,
                                "this server serves a language model and makes no embeddings");
    }
    if (routes[route].post) {
        if (!h->has_length && !h->chunked) {
            return bl_openai_refuse(e, 411, "length_required", NULL,
                                    "the request has no body: send Content-Length or chunks");
        }
        return check_content_type(h, e);
    }
    return BL_OK;
}

static bl_openai_model describe_model(const bl_serve *s) {
    bl_openai_model m = {s->model.model_id, s->created, bl_engine_info(s->model.engine)->n_context,
                         bl_chat_template_source(s->model.chat) != BL_TEMPLATE_NONE};
    return m;
}

/* *ret_status: 503 while the engine hangs, so that who watches by status alone sees it. */
static bl_code write_health(bl_serve *s, bl_buf *b, int *ret_status, bl_err *err) {
    bl_engine_stats st;
    bl_engine_get_stats(s->model.engine, &st);
    *ret_status = st.hung ? 503 : 200;
    BL_TRY(bl_buf_printf(b, err, "{\"status\":\"%s\",\"model\":",
                         st.hung       ? "hung"
                         : s->draining ? "draining"
                                       : "ok"));
    bl_openai_model m = describe_model(s);
    BL_TRY(bl_openai_write_model(&m, b, err));
    return bl_buf_printf(
        b, err,
        ",\"queue\":{\"preparing\":%u,\"waiting\":%u,\"running\":%u,\"max_waiting\":%u,\"max_running\":%u},"
        "\"connections\":%u,"
        "\"requests\":{\"finished\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"cancelled\":%" PRIu64 "},"
        "\"tokens\":{\"prompt\":%" PRIu64 ",\"output\":%" PRIu64 "},\"uptime_s\":%" PRIu64
        ",\"version\":\"%s\"}",
        s->n_preparing, st.waiting, st.running, s->o.max_queue, s->o.max_concurrent,
        bl_http_server_connections(s->http), st.n_finished, st.n_failed, st.n_cancelled, st.n_prompt_tokens,
        st.n_output_tokens, (bl_clock_mono_ns() - s->start_ns) / 1000000000u, bl_version());
}

static bl_code write_metrics(bl_serve *s, bl_buf *b, bl_err *err) {
    const bl_model_info *info = bl_engine_info(s->model.engine);
    bl_metrics_view v = {.version = bl_version(),
                         .model = s->model.model_id,
                         .kv_storage = info->kv_storage,
                         .kv_storage_reason = info->kv_storage_reason,
                         .mtp_enabled = s->model.mtp_enabled,
                         .mtp_inactive_reason = s->model.mtp_inactive_reason,
                         .start_s = (uint64_t)s->created,
                         .preparing = s->n_preparing,
                         .connections = bl_http_server_connections(s->http),
                         .dropped_readers = bl_http_server_dropped_readers(s->http),
                         .resident_bytes = bl_metrics_resident_bytes()};
    bl_engine_get_stats(s->model.engine, &v.engine);
    return bl_metrics_write(&s->metrics, &v, b, err);
}

static bl_code write_root(bl_serve *s, bl_buf *b, bl_err *err) {
    return bl_buf_printf(
        b, err,
        "Darkbloom %s serves one model in the manner of OpenAI's API.\n\n"
        "  base_url  http://HOST:%u/v1\n"
        "  model     %s\n"
        "  api_key   %s\n\n"
        "  POST /v1/chat/completions   POST /v1/completions   GET /v1/models   GET /health   GET /metrics\n\n"
        "  curl http://HOST:%u/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
        bl_version(), (unsigned)bl_serve_port(s), s->model.model_id,
        s->has_key ? "the server's" : "not needed (any)", (unsigned)bl_serve_port(s), s->model.model_id);
}

static bl_code write_get(bl_serve *s, const bl_http_head *h, bl_serve_route route, bl_buf *b, int *ret_status,
                         bl_openai_error *e) {
    bl_err err;
    bl_code rc = BL_OK;
    bl_openai_model m = describe_model(s);
    if (route == BL_ROUTE_ROOT) {
        rc = write_root(s, b, &err);
    } else if (route == BL_ROUTE_HEALTH) {
        rc = write_health(s, b, ret_status, &err);
    } else if (route == BL_ROUTE_METRICS) {
        rc = write_metrics(s, b, &err);
    } else if (route == BL_ROUTE_MODELS) {
        rc = bl_openai_write_model_list(&m, 1, b, &err);
    } else {
        char id[512];
        size_t skip = sizeof "/v1/models/" - 1;
        bl_http_slice rest = {h->path.ptr + skip, h->path.len - skip};
        if (bl_http_unescape(rest, id, sizeof id, NULL) != BL_OK || !bl_serve_knows_model(s, id)) {
            return bl_openai_refuse(e, 404, "model_not_found", "model", "no such model; '%.100s' is served",
                                    s->model.model_id);
        }
        rc = bl_openai_write_model(&m, b, &err);
    }
    if (rc != BL_OK) {
        bl_openai_error_from(&err, e);
        return BL_EINVAL;
    }
    return BL_OK;
}

static void answer_get(bl_serve *s, bl_http_exchange *x, const char *request_id, bl_serve_route route,
                       int *ret_status) {
    bl_openai_error e;
    bl_buf body;
    bl_buf_init(&body, BL_METRICS_MAX_BYTES);
    int status = 200;
    if (write_get(s, bl_http_exchange_head(x), route, &body, &status, &e) != BL_OK) {
        *ret_status = e.status;
        bl_serve_answer_error(s, x, request_id, &e);
    } else {
        char headers[1024];
        *ret_status = status;
        bl_serve_headers(s, x, request_id, "Cache-Control: no-store\r\n", headers, sizeof headers);
        const char *type = route == BL_ROUTE_ROOT      ? "text/plain; charset=utf-8"
                           : route == BL_ROUTE_METRICS ? "text/plain; version=0.0.4; charset=utf-8"
                                                       : type_json;
        bl_http_respond(x, status, type, headers, bl_buf_str(&body), body.len);
    }
    bl_buf_done(&body);
}

/* Answers a request that has no job. */
static int answer_head(bl_serve *s, bl_http_exchange *x, const char *id, bl_serve_route route) {
    const bl_http_head *h = bl_http_exchange_head(x);
    bl_openai_error e;
    if (h->method == BL_HTTP_OPTIONS && s->cors[0]) {
        char headers[1024];
        bl_serve_headers(
            s, x, id,
            "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n"
            "Access-Control-Allow-Headers: authorization, content-type, *\r\nAccess-Control-Max-Age: 600\r\n",
            headers, sizeof headers);
        bl_http_respond(x, 204, NULL, headers, NULL, 0);
        return 204;
    }
    if (check_head(s, h, route, &e) == BL_OK && routes[route].get) {
        int status = 0;
        answer_get(s, x, id, route, &status);
        return status;
    }
    bl_serve_answer_error(s, x, id, &e);
    return e.status;
}

static void on_head(void *user, bl_http_exchange *x) {
    bl_serve *s = user;
    const bl_http_head *h = bl_http_exchange_head(x);
    const bl_serve_route route = find_route(h->path);
    const char *method = bl_http_method_name(h->method);
    uint64_t start_ns = bl_clock_mono_ns();
    uint32_t first_content_ms = 0;
    bl_openai_error e;
    char id[BL_SERVE_MAX_ID + 1];
    int status = 0;
    bl_serve_request_id(s, h, id);
    if (!routes[route].post || h->method != BL_HTTP_POST || check_head(s, h, route, &e) != BL_OK) {
        status = answer_head(s, x, id, route);
    } else if (read_first_content(h, &first_content_ms, &e) != BL_OK) {
        status = e.status;
        bl_serve_answer_error(s, x, id, &e);
    } else {
        bl_job *job = bl_job_new(s, x, route, id);
        if (job) {
            job->first_content_ms = first_content_ms;
            return; /* the body comes */
        }
        status = 503;
        (void)bl_openai_refuse(&e, 503, "out_of_memory", NULL,
                               "the server is out of memory, try again later");
        bl_serve_answer_error(s, x, id, &e);
    }
    bl_serve_log(s, id, method, route, status, start_ns, "");
}

static void on_request(void *user, bl_http_exchange *x) {
    (void)user;
    bl_job *job = bl_http_exchange_user(x);
    bl_job_start(job);
}

static void on_room(void *user, bl_http_exchange *x) {
    (void)user;
    bl_job *job = bl_http_exchange_user(x);
    if (job) {
        bl_job_room(job);
    }
}

static void on_abort(void *user, bl_http_exchange *x) {
    (void)user;
    bl_job *job = bl_http_exchange_user(x);
    if (job) {
        bl_job_abort(job);
    }
}

static void on_reject(void *user, bl_http_exchange *x, int status, const char *message) {
    bl_serve *s = user;
    bl_openai_error e;
    char id[BL_SERVE_MAX_ID + 1];
    const bl_http_head *h = bl_http_exchange_head(x);
    bl_serve_request_id(s, h, id);
    const char *code = status == 413   ? "body_too_large"
                       : status == 408 ? "timeout"
                       : status == 503 ? "overloaded"
                                       : "invalid_http";
    (void)bl_openai_refuse(&e, status, code, NULL, "%s", message);
    bl_serve_answer_error(s, x, id, &e);
    bl_serve_log(s, id, h ? bl_http_method_name(h->method) : "-", h ? find_route(h->path) : BL_ROUTE_UNKNOWN,
                 status, bl_clock_mono_ns(), "");
}

static void cut_short(bl_serve *s) {
    bl_openai_error e;
    (void)bl_openai_refuse(&e, 503, "shutting_down", NULL, "the server is shutting down");
    for (bl_job *job = s->jobs, *next; job; job = next) {
        next = job->next;
        if (job->state == JOB_RUNNING) {
            bl_job_fail(job, &e);
        }
    }
}

static void check_draining(bl_serve *s) {
    unsigned calls =
        atomic_load_explicit(&s->n_stop_calls, memory_order_acquire); /* pairs with bl_serve_stop */
    if (calls == 0) {
        return;
    }
    uint64_t now_ns = bl_clock_mono_ns();
    if (!s->draining) {
        s->draining = true;
        s->drain_end_ns = now_ns + (uint64_t)s->o.drain_timeout_ms * 1000000u;
        bl_log(BL_LOG_INFO, "serve", "draining", "busy=%u timeout_ms=%u", bl_http_server_busy(s->http),
               s->o.drain_timeout_ms);
        bl_http_server_drain(s->http);
    }
    if (!s->forced && (calls > 1 || now_ns > s->drain_end_ns)) {
        s->forced = true;
        s->drain_end_ns = now_ns + (uint64_t)FORCED_FLUSH_MS * 1000000u;
        cut_short(s);
    }
    if (bl_http_server_busy(s->http) == 0 || (s->forced && now_ns > s->drain_end_ns)) {
        bl_http_server_quit(s->http);
    }
}

static void on_wake(void *user) {
    bl_serve *s = user;
    bl_jobs_wake(s);
    check_draining(s);
}

static void on_tick(void *user) {
    bl_serve *s = user;
    bl_jobs_tick(s, bl_clock_mono_ns());
    check_draining(s);
}

static bool is_loopback_bind(const char *bind) {
    return strcmp(bind, "localhost") == 0 || strncmp(bind, "127.", 4) == 0 || strcmp(bind, "::1") == 0;
}

static bl_code take_cors(bl_serve *s, const char *cors, bl_err *err) {
    size_t n = cors ? strlen(cors) : 0;
    bool ok = n < sizeof s->cors;
    for (size_t i = 0; i < n && ok; i++) {
        ok = cors[i] > 0x20 && cors[i] < 0x7f;
    }
    if (!ok || (n > 0 && strcmp(cors, "*") != 0 && !strstr(cors, "://"))) {
        BL_FAIL(err, BL_EINVAL, "--cors is neither '*' nor an origin like https://example.com");
    }
    if (n > 0) {
        memcpy(s->cors, cors, n + 1);
    }
    return BL_OK;
}

static bl_code take_options(bl_serve *s, const bl_serve_options *o, bl_err *err) {
    s->o = *o;
    s->o.api_key = NULL;
    s->is_loopback = is_loopback_bind(o->bind);
    BL_TRY(take_cors(s, o->cors, err));
    randombytes_buf(&s->rng, sizeof s->rng);
    randombytes_buf(s->hash_key, sizeof s->hash_key);
    if (o->api_key) {
        if (o->api_key[0] == '\0') {
            BL_FAIL(err, BL_EINVAL, "the API key is empty");
        }
        s->has_key = true;
        (void)crypto_generichash(s->key_hash, sizeof s->key_hash, (const unsigned char *)o->api_key,
                                 strlen(o->api_key), s->hash_key, sizeof s->hash_key);
    }
    return BL_OK;
}

bl_code bl_serve_open(const bl_serve_options *o, bl_serve **ret, bl_err *err) {
    if (sodium_init() < 0) {
        BL_FAIL(err, BL_EINTERNAL, "libsodium could not be started");
    }
    bl_serve *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the server");
    }
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->ready_mu, NULL);
    bl_serve_grammars_init(&s->grammars);
    const char *names[BL_ROUTE__MAX];
    for (unsigned r = 0; r < BL_ROUTE__MAX; r++) {
        names[r] = routes[r].path;
    }
    bl_metrics_init(&s->metrics, names, BL_ROUTE__MAX);
    pthread_cond_init(&s->has_work, NULL);
    bl_code rc = take_options(s, o, err);
    if (rc == BL_OK) {
        bl_http_server_options ho;
        bl_http_server_options_init(&ho);
        ho.bind = o->bind;
        ho.port = o->port;
        ho.max_connections = o->max_connections;
        ho.head_timeout_ms = o->head_timeout_ms ? o->head_timeout_ms : ho.head_timeout_ms;
        ho.write_timeout_ms = o->write_timeout_ms ? o->write_timeout_ms : ho.write_timeout_ms;
        bl_http_handlers handlers = {s, on_head, on_request, on_room, on_abort, on_reject, on_wake, on_tick};
        ho.handlers = handlers;
        rc = bl_http_server_open(&ho, &s->http, err);
    }
    if (rc != BL_OK) {
        bl_serve_free(s);
        return rc;
    }
    *ret = s;
    return BL_OK;
}

uint16_t bl_serve_port(const bl_serve *s) {
    return bl_http_server_port(s->http);
}

bl_code bl_serve_attach(bl_serve *s, const bl_serve_model *m, bl_err *err) {
    if (!bl_chat_tokenizer(m->chat)) {
        BL_FAIL(err, BL_ENOTSUP, "model '%.100s' has no tokenizer, so it cannot be served", m->model_id);
    }
    if (m->n_aliases > BL_SERVE_MAX_ALIASES) {
        BL_FAIL(err, BL_ELIMIT, "%zu aliases of the model, at most %d are allowed", m->n_aliases,
                BL_SERVE_MAX_ALIASES);
    }
    s->model = *m;
    for (size_t i = 0; i < s->model.n_aliases; i++) {
        s->aliases[i] = m->aliases[i];
    }
    s->model.aliases = s->aliases;
    s->created = bl_clock_wall_s();
    s->start_ns = bl_clock_mono_ns();
    const bl_model_info *info = bl_engine_info(m->engine);
    char what[512];
    uint8_t hash[16];
    (void)snprintf(what, sizeof what, "%s|%s|%s|%s|%" PRIu64 "|%" PRIu64, bl_version(), m->model_id,
                   info->family, info->quant, info->n_params, info->file_bytes);
    (void)crypto_generichash(hash, sizeof hash, (const unsigned char *)what, strlen(what), NULL, 0);
    (void)snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%02x%02x%02x%02x%02x", hash[0], hash[1],
                   hash[2], hash[3], hash[4]);
    return BL_OK;
}

bl_code bl_serve_run(bl_serve *s, bl_err *err) {
    BL_ASSERT(s->model.engine && s->model.chat);
    BL_TRY(bl_jobs_open(s, err));
    bl_http_server_run(s->http);
    return BL_OK;
}

void bl_serve_stop(bl_serve *s) {
    (void)atomic_fetch_add_explicit(&s->n_stop_calls, 1, memory_order_release);
    bl_http_server_wake(s->http);
}

void bl_serve_free(bl_serve *s) {
    if (!s) {
        return;
    }
    bl_jobs_close(s);
    bl_http_server_free(s->http);
    bl_serve_grammars_done(&s->grammars);
    pthread_cond_destroy(&s->has_work);
    pthread_mutex_destroy(&s->ready_mu);
    pthread_mutex_destroy(&s->mu);
    sodium_memzero(s->key_hash, sizeof s->key_hash);
    bl_free(s);
}
