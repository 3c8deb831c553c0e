/* Jobs: from a request's body to the last byte of its answer. The loop thread drives them; prepare.c does the
 * worker's part. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "serve/internal.h"

static const char type_sse[] = "text/event-stream; charset=utf-8";
static const char type_json[] = "application/json";

bl_job *bl_job_new(bl_serve *s, bl_http_exchange *x, bl_serve_route route, const char *request_id) {
    bl_job *job = bl_alloc(sizeof *job);
    if (!job) {
        return NULL;
    }
    job->s = s;
    job->x = x;
    job->state = JOB_READING;
    job->route = route;
    job->kind = route == BL_ROUTE_CHAT ? BL_OPENAI_CHAT : BL_OPENAI_COMPLETION;
    job->start_ns = bl_clock_mono_ns();
    (void)snprintf(job->request_id, sizeof job->request_id, "%s", request_id);
    bl_serve_make_id(s, job->kind == BL_OPENAI_CHAT ? "chatcmpl-" : "cmpl-", job->reply_id);
    job->seed = bl_rng_next(&s->rng);
    bl_buf_init(&job->delta, BL_SERVE_MAX_DELTA);
    bl_buf_init(&job->text, BL_SERVE_MAX_REPLY);
    bl_buf_init(&job->reasoning, BL_SERVE_MAX_REPLY);
    bl_buf_init(&job->calls, BL_SERVE_MAX_REPLY);
    bl_buf_init(&job->payload, BL_SERVE_MAX_REPLY);
    bl_openai_logprobs_init(&job->logprobs, job->kind, BL_SERVE_MAX_REPLY);
    job->next = s->jobs;
    if (s->jobs) {
        s->jobs->prev = job;
    }
    s->jobs = job;
    bl_http_exchange_set_user(x, job);
    return job;
}

/* ---- the list of jobs with events ---- */

static void ready_unlink_locked(bl_job *job) {
    bl_serve *s = job->s;
    *(job->ready_prev ? &job->ready_prev->ready_next : &s->ready_first) = job->ready_next;
    *(job->ready_next ? &job->ready_next->ready_prev : &s->ready_last) = job->ready_prev;
    job->ready_prev = job->ready_next = NULL;
    job->is_ready = false;
    s->n_ready--;
}

static void ready_remove(bl_job *job) {
    pthread_mutex_lock(&job->s->ready_mu);
    if (job->is_ready) {
        ready_unlink_locked(job);
    }
    pthread_mutex_unlock(&job->s->ready_mu);
}

/* The first of the list, off it; NULL when there is none. */
static bl_job *ready_pop(bl_serve *s) {
    pthread_mutex_lock(&s->ready_mu);
    bl_job *job = s->ready_first;
    if (job) {
        ready_unlink_locked(job);
    }
    pthread_mutex_unlock(&s->ready_mu);
    return job;
}

static uint32_t ready_count(bl_serve *s) {
    pthread_mutex_lock(&s->ready_mu);
    uint32_t n = s->n_ready;
    pthread_mutex_unlock(&s->ready_mu);
    return n;
}

void bl_job_notify(void *user) {
    bl_job *job = user;
    bl_serve *s = job->s;
    pthread_mutex_lock(&s->ready_mu);
    const bool first = s->n_ready == 0;
    if (!job->is_ready) {
        job->is_ready = true;
        job->ready_prev = s->ready_last;
        *(s->ready_last ? &s->ready_last->ready_next : &s->ready_first) = job;
        s->ready_last = job;
        s->n_ready++;
    }
    pthread_mutex_unlock(&s->ready_mu);
    if (first) { /* otherwise a wake-up is under way: bl_jobs_wake leaves no list behind without one */
        bl_http_server_wake(s->http);
    }
}

/* Takes the job off the server's list and gives everything back. Not while a worker has it. */
static void job_free(bl_job *job) {
    bl_serve *s = job->s;
    if (job->prev) {
        job->prev->next = job->next;
    } else {
        s->jobs = job->next;
    }
    if (job->next) {
        job->next->prev = job->prev;
    }
    bl_session_free(job->session); /* no notify after it */
    ready_remove(job);
    bl_stream_free(job->stream);
    bl_parser_free(job->parser);
    bl_free(job->body);
    bl_buf_done(&job->delta);
    bl_buf_done(&job->text);
    bl_buf_done(&job->reasoning);
    bl_buf_done(&job->calls);
    bl_buf_done(&job->payload);
    bl_openai_logprobs_done(&job->logprobs);
    bl_free(job->pending);
    bl_free(job);
}

/* Appends " name=..." where there is something to say. */
static void add_ms(char *line, size_t size, const char *name, bool known, uint64_t ns) {
    size_t n = strlen(line);
    if (known) {
        (void)snprintf(line + n, size - n, " %s=%.1f", name, (double)ns / 1e6);
    }
}

static void add_word(char *line, size_t size, const char *name, const char *word) {
    size_t n = strlen(line);
    if (word) {
        (void)snprintf(line + n, size - n, " %s=%s", name, word);
    }
}

static void log_job(const bl_job *job, int status, const char *stage) {
    char more[384];
    /* while it prepares the worker may be writing it */
    const uint32_t n_prompt = job->state == JOB_RUNNING ? job->n_prompt : 0;
    const bool begun = job->first_token_ns > 0;
    (void)snprintf(more, sizeof more, " prompt_tokens=%u cached_tokens=%u completion_tokens=%" PRIu64,
                   n_prompt, job->n_cached, job->n_completion);
    add_ms(more, sizeof more, "queue_ms", job->has_end, job->queue_ns);
    add_ms(more, sizeof more, "ttft_ms", begun, job->first_token_ns - job->body_ns);
    add_ms(more, sizeof more, "max_gap_ms", job->has_end && job->n_completion > 1, job->max_gap_ns);
    if (job->n_drafted > 0) {
        size_t n = strlen(more);
        (void)snprintf(more + n, sizeof more - n, " drafted=%u accepted=%u", job->n_drafted, job->n_accepted);
    }
    if (job->n_preempted > 0) {
        size_t n = strlen(more);
        (void)snprintf(more + n, sizeof more - n, " preempted=%u", job->n_preempted);
    }
    add_word(more, sizeof more, "finish", job->finish);
    add_word(more, sizeof more, "cancelled_in", stage);
    bl_serve_log(job->s, job->request_id, "POST", job->route, status, job->start_ns, more);
}

/* The answer is on its way: the exchange goes back to the HTTP server. */
static void job_finish(bl_job *job, int status) {
    bl_serve *s = job->s;
    log_job(job, status, NULL);
    if (status == 200) {
        double seconds = (double)(bl_clock_mono_ns() - job->start_ns) / 1e9;
        s->mean_job_s += (seconds - s->mean_job_s) * 0.2;
        bl_histogram_add(&s->metrics.duration, seconds);
    }
    job->x = NULL;
    job_free(job);
}

void bl_job_fail(bl_job *job, const bl_openai_error *e) {
    if (!job->begun) {
        bl_serve_answer_error(job->s, job->x, job->request_id, e);
        job_finish(job, e->status);
        return;
    }
    /* The status line is out: the error goes as an event, and the stream ends without its last chunk. */
    bl_buf *b = &job->payload;
    bl_buf_reset(b);
    if (bl_buf_append_str(b, BL_OPENAI_SSE_BEGIN, NULL) == BL_OK &&
        bl_openai_write_error(e, b, NULL) == BL_OK &&
        bl_buf_append_str(b, BL_OPENAI_SSE_END, NULL) == BL_OK) {
        (void)!bl_http_send(job->x, b->data, b->len, NULL);
    }
    bl_http_end_broken(job->x);
    job_finish(job, e->status);
}

void bl_serve_engine_error(const bl_serve *s, const bl_err *err, bl_openai_error *ret) {
    bl_engine_stats st;
    bl_engine_get_stats(s->model.engine, &st);
    if (err->code == BL_EINTERNAL && st.hung) {
        (void)bl_openai_refuse(ret, 503, "engine_hung", NULL, "the engine does not come back from a step");
        return;
    }
    bl_openai_error_from(err, ret);
}

/* A time limit of the engine ended the request; its message begins with the limit's name. */
static bool is_limit(const bl_err *err, const char *name) {
    return err->code == BL_EBUSY && strncmp(err->msg, name, strlen(name)) == 0;
}

/* A failure after the request was found good: ours, unless the answer outgrew a stated limit. */
static void fail_with(bl_job *job, const bl_err *err) {
    bl_openai_error e;
    bl_serve_engine_error(job->s, err, &e);
    if (is_limit(err, "first_content_deadline")) {
        (void)bl_openai_refuse(&e, 429, "deadline_unreachable", NULL,
                               "the first token did not come within %u ms", job->first_content_ms);
    } else if (is_limit(err, "admission_timeout")) {
        (void)bl_openai_refuse(&e, 503, "queue_timeout", NULL, "the request waited too long for its start");
    } else if (err->code == BL_EBUSY) {
        (void)bl_openai_refuse(&e, 503, "engine_timeout", NULL, "the request made no progress for too long");
    } else if (e.status < 500 && err->code != BL_ELIMIT) {
        (void)bl_openai_refuse(&e, 500, "internal_error", NULL, "the server met an internal error");
    }
    if (e.status >= 500) {
        bl_log(BL_LOG_ERROR, "serve", "request_failed", "id=%s error=\"%s\"", job->request_id, err->msg);
    }
    bl_job_fail(job, &e);
}

void bl_job_abort(bl_job *job) {
    const bl_metrics_stage stage = job->state != JOB_RUNNING  ? BL_STAGE_PRE_ENGINE
                                   : job->first_token_ns == 0 ? BL_STAGE_PREFILL
                                                              : BL_STAGE_DECODE;
    job->s->metrics.cancelled[stage]++;
    log_job(job, 499, bl_metrics_stage_name(stage)); /* nginx's number for "client closed request" */
    job->x = NULL;
    if (job->state == JOB_PREPARING) {
        atomic_store_explicit(&job->cancelled, true, memory_order_relaxed);
        return; /* freed when the worker hands it back */
    }
    if (job->session) {
        bl_session_cancel(job->session);
    }
    job_free(job);
}

static void queue_push(bl_job **first, bl_job **last, bl_job *job) {
    job->queue_next = NULL;
    if (*last) {
        (*last)->queue_next = job;
    } else {
        *first = job;
    }
    *last = job;
}

static bl_job *queue_pop(bl_job **first, bl_job **last) {
    bl_job *job = *first;
    if (job) {
        *first = job->queue_next;
        if (!*first) {
            *last = NULL;
        }
    }
    return job;
}

void bl_job_start(bl_job *job) {
    bl_serve *s = job->s;
    bl_buf *body = bl_http_exchange_body(job->x);
    job->n_body = body->len;
    job->body = bl_buf_steal(body);
    job->body_ns = bl_clock_mono_ns();
    /* The engine's queue decides, at submit. This bound is for those on the way to it, who are no more than
     * it could take. Jobs behind the engine are not counted: a reader that does not read costs nobody's
     * place. */
    if (s->n_preparing >= s->o.max_concurrent + s->o.max_queue) {
        bl_openai_error e;
        (void)bl_openai_refuse(&e, 429, "queue_full", NULL,
                               "the queue is full: %u requests are on the way to it, %u may", s->n_preparing,
                               s->o.max_concurrent + s->o.max_queue);
        bl_job_fail(job, &e);
        return;
    }
    s->n_preparing++;
    job->state = JOB_PREPARING;
    pthread_mutex_lock(&s->mu);
    queue_push(&s->todo_first, &s->todo_last, job);
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->mu);
}

/* Checkpoints pad their vocabulary beyond the tokenizer's; a drawn id up there gives no text, as in the
 * reference. */
static bool is_known(const bl_job *job, int32_t id) {
    size_t len = 0;
    return bl_tokenizer_piece(bl_chat_tokenizer(job->s->model.chat), id, &len) != NULL;
}

/* A control token that the parser sees. */
static bool is_marker(const bl_job *job, int32_t id) {
    size_t n = 0;
    const int32_t *markers = bl_chat_markers(job->s->model.chat, &n);
    for (size_t i = 0; i < n && job->kind == BL_OPENAI_CHAT; i++) {
        if (markers[i] == id) {
            return true;
        }
    }
    return false;
}

/* Raw bytes of a token, as the answer's logprobs show them. */
static bl_code token_bytes(const bl_job *job, int32_t id, bool first, bl_buf *bytes, size_t *ret_n,
                           bl_err *err) {
    size_t before = bytes->len;
    if (is_known(job, id)) {
        BL_TRY(bl_tokenizer_token_bytes(bl_chat_tokenizer(job->s->model.chat), id, first, false, bytes, err));
    }
    *ret_n = bytes->len - before;
    return BL_OK;
}

/* Moves the first `n` pending tokens into job->logprobs. */
static bl_code release_tokens(bl_job *job, size_t n, bl_err *err) {
    bl_buf bytes;
    bl_buf_init(&bytes, BL_SERVE_MAX_DELTA);
    bl_code rc = BL_OK;
    for (size_t i = 0; i < n && rc == BL_OK; i++) {
        const bl_job_token *p = &job->pending[i];
        bl_openai_token t = {NULL, 0, p->logprob}, top[BL_MAX_TOP_LOGPROBS];
        size_t off[BL_MAX_TOP_LOGPROBS + 1];
        bool first = p->start_byte == 0 && job->logprobs.n == 0 && i == 0;
        bl_buf_reset(&bytes);
        rc = token_bytes(job, p->id, first, &bytes, &t.n_bytes, err);
        for (uint32_t k = 0; k < p->n_top && rc == BL_OK; k++) {
            top[k].logprob = p->top[k].logprob;
            off[k] = bytes.len;
            rc = token_bytes(job, p->top[k].id, first, &bytes, &top[k].n_bytes, err);
        }
        if (rc != BL_OK) {
            break;
        }
        const char *data = bl_buf_str(&bytes); /* does not move any more */
        t.bytes = data;
        for (uint32_t k = 0; k < p->n_top; k++) {
            top[k].bytes = data + off[k];
        }
        rc = bl_openai_logprobs_add(&job->logprobs, &t, top, p->n_top, p->start_char, err);
    }
    bl_buf_done(&bytes);
    if (rc == BL_OK) {
        memmove(job->pending, job->pending + n, (job->n_pending - n) * sizeof *job->pending);
        job->n_pending -= n;
    }
    return rc;
}

/* How many pending tokens have some of their text in the first `n_bytes` of the answer (or none of their own,
 * in front of it). */
static size_t count_released(const bl_job *job, uint64_t n_bytes) {
    size_t n = 0;
    while (n < job->n_pending) {
        const bl_job_token *p = &job->pending[n];
        if (p->start_byte >= n_bytes && !(p->n_bytes == 0 && p->start_byte == n_bytes)) {
            break;
        }
        n++;
    }
    return n;
}

static bl_code note_token(bl_job *job, const bl_event *ev, bl_err *err) {
    if (job->n_pending == job->cap_pending) {
        size_t cap = BL_MAX(job->cap_pending * 2, (size_t)16);
        if (cap > BL_SERVE_MAX_PENDING) {
            BL_FAIL(err, BL_ELIMIT, "more than %u tokens without text", BL_SERVE_MAX_PENDING);
        }
        bl_job_token *p = bl_realloc(job->pending, cap * sizeof *p);
        if (!p) {
            BL_FAIL(err, BL_ENOMEM, "no memory for logprobs");
        }
        job->pending = p;
        job->cap_pending = cap;
    }
    bl_buf bytes;
    bl_buf_init(&bytes, BL_SERVE_MAX_DELTA);
    bl_job_token *p = &job->pending[job->n_pending];
    memset(p, 0, sizeof *p);
    /* what the stream gives: control tokens have no text there, but for the parser's with their sign */
    bl_code rc = BL_OK;
    const bool marker = is_marker(job, ev->id);
    if (marker) {
        rc = bl_buf_append_char(&bytes, (char)BL_PARSER_CONTROL, err);
    }
    if (is_known(job, ev->id) && rc == BL_OK) {
        rc = bl_tokenizer_token_bytes(bl_chat_tokenizer(job->s->model.chat), ev->id, job->n_completion == 1,
                                      !marker, &bytes, err);
    }
    if (rc == BL_OK) {
        p->id = ev->id;
        p->logprob = ev->logprob;
        p->start_byte = job->raw_bytes;
        p->start_char = job->raw_chars;
        p->n_bytes = bytes.len;
        p->n_top = BL_MIN(ev->n_top, (uint32_t)BL_MAX_TOP_LOGPROBS);
        for (uint32_t i = 0; i < p->n_top; i++) {
            p->top[i].id = ev->top[i].id;
            p->top[i].logprob = ev->top[i].logprob;
        }
        job->raw_bytes += bytes.len;
        for (size_t i = 0; i < bytes.len; i++) {
            job->raw_chars += ((unsigned char)bytes.data[i] & 0xc0) != 0x80;
        }
        job->n_pending++;
    }
    bl_buf_done(&bytes);
    return rc;
}

static bl_code send_event(bl_job *job, bl_err *err) {
    BL_TRY(bl_buf_append_str(&job->payload, BL_OPENAI_SSE_END, err));
    BL_TRY(bl_http_send(job->x, job->payload.data, job->payload.len, err));
    job->last_sent_ns = bl_clock_mono_ns();
    return BL_OK;
}

static bl_code begin_event(bl_job *job, bl_err *err) {
    bl_buf_reset(&job->payload);
    return bl_buf_append_str(&job->payload, BL_OPENAI_SSE_BEGIN, err);
}

/* ---- what the parser says ---- */

/* Those of the tokens whose text went to the parser; they go with the next chunk. */
static const bl_openai_logprobs *logprobs_of(const bl_job *job) {
    return job->req.logprobs ? &job->logprobs : NULL;
}

static bl_code sink_stream(bl_job *job, const bl_parsed *ev, bl_err *err) {
    const bl_openai_logprobs *lp = logprobs_of(job);
    bl_buf *b = &job->payload;
    BL_TRY(begin_event(job, err));
    switch (ev->kind) {
    case BL_PARSED_CONTENT:
        BL_TRY(bl_openai_write_chunk(&job->reply, ev->text, ev->n, lp, NULL, b, err));
        break;
    case BL_PARSED_REASONING:
        BL_TRY(bl_openai_write_reasoning_chunk(&job->reply, ev->text, ev->n, lp, b, err));
        break;
    case BL_PARSED_CALL_BEGIN:
        bl_serve_make_id(job->s, "call_", job->call_id);
        BL_TRY(bl_openai_write_call_chunk(&job->reply, ev->call, job->call_id, ev->text, ev->n, lp, b, err));
        break;
    case BL_PARSED_CALL_ARGUMENTS:
        BL_TRY(bl_openai_write_call_chunk(&job->reply, ev->call, NULL, ev->text, ev->n, lp, b, err));
        break;
    default:
        return BL_OK;
    }
    bl_openai_logprobs_reset(&job->logprobs);
    return send_event(job, err);
}

static bl_code sink_whole(bl_job *job, const bl_parsed *ev, bl_err *err) {
    switch (ev->kind) {
    case BL_PARSED_CONTENT:
        return bl_buf_append(&job->text, ev->text, ev->n, err);
    case BL_PARSED_REASONING:
        return bl_buf_append(&job->reasoning, ev->text, ev->n, err);
    case BL_PARSED_CALL_BEGIN:
        bl_serve_make_id(job->s, "call_", job->call_id);
        (void)snprintf(job->call_name, sizeof job->call_name, "%.*s", (int)ev->n, ev->text);
        return BL_OK;
    case BL_PARSED_CALL_ARGUMENTS:
        BL_TRY(bl_buf_append_str(&job->calls, ev->call > 0 ? "," : "", err));
        return bl_openai_write_call(job->call_id, job->call_name, strlen(job->call_name), ev->text, ev->n,
                                    &job->calls, err);
    default:
        return BL_OK;
    }
}

bl_code bl_job_sink(void *user, const bl_parsed *ev, bl_err *err) {
    bl_job *job = user;
    return job->req.stream ? sink_stream(job, ev, err) : sink_whole(job, ev, err);
}

/* Gives out what became certain: job->delta and the logprobs that belong to it. `all`: the answer ends here.
 */
static bl_code give_out(bl_job *job, bool all, bl_err *err) {
    job->released_bytes += job->delta.len;
    if (job->req.logprobs) {
        BL_TRY(release_tokens(job, all ? job->n_pending : count_released(job, job->released_bytes), err));
    }
    BL_TRY(bl_parser_feed(job->parser, bl_buf_str(&job->delta), job->delta.len, err));
    bl_buf_reset(&job->delta);
    if (all) {
        BL_TRY(bl_parser_finish(job->parser, err));
    }
    if (!all || !job->req.stream || job->logprobs.n == 0) {
        return BL_OK;
    }
    BL_TRY(begin_event(job, err)); /* tokens behind the last text */
    BL_TRY(bl_openai_write_chunk(&job->reply, "", 0, &job->logprobs, NULL, &job->payload, err));
    bl_openai_logprobs_reset(&job->logprobs);
    return send_event(job, err);
}

static bl_code end_stream(bl_job *job, const char *finish, const bl_openai_usage *usage, bl_err *err) {
    BL_TRY(begin_event(job, err));
    BL_TRY(bl_openai_write_chunk(&job->reply, "", 0, NULL, finish, &job->payload, err));
    BL_TRY(send_event(job, err));
    if (job->req.include_usage) {
        BL_TRY(begin_event(job, err));
        BL_TRY(bl_openai_write_usage_chunk(&job->reply, usage, &job->payload, err));
        BL_TRY(send_event(job, err));
    }
    BL_TRY(bl_http_send(job->x, BL_OPENAI_SSE_DONE, sizeof BL_OPENAI_SSE_DONE - 1, err));
    bl_http_end(job->x);
    return BL_OK;
}

/* The answer is complete. stopped: a stop string ended it, so what was held back is dropped. */
static bl_code complete(bl_job *job, const char *finish, bool stopped, bl_err *err) {
    if (!stopped) {
        BL_TRY(bl_stream_finish(job->stream, &job->delta, err));
    }
    if (stopped && job->req.logprobs) {
        job->n_pending = count_released(job, job->released_bytes + job->delta.len);
    }
    BL_TRY(give_out(job, true, err));
    if (bl_parser_n_calls(job->parser) > 0 && strcmp(finish, "stop") == 0) {
        finish = "tool_calls";
    }
    job->finish = finish;
    const bl_openai_usage usage = {.prompt_tokens = job->n_prompt,
                                   .completion_tokens = job->n_completion,
                                   .cached_tokens = job->n_cached,
                                   .drafts = bl_engine_info(job->s->model.engine)->draft_depth > 0,
                                   .accepted_tokens = job->n_accepted,
                                   .rejected_tokens = job->n_drafted - job->n_accepted};
    if (job->req.stream) {
        return end_stream(job, finish, &usage, err);
    }
    char headers[512];
    bl_buf_reset(&job->payload);
    const bl_openai_answer answer = {.text = bl_buf_str(&job->text),
                                     .reasoning = bl_buf_str(&job->reasoning),
                                     .calls = bl_buf_str(&job->calls),
                                     .n = job->text.len,
                                     .n_reasoning = job->reasoning.len,
                                     .n_calls = job->calls.len,
                                     .logprobs = logprobs_of(job)};
    BL_TRY(bl_openai_write_reply(&job->reply, &answer, finish, &usage, &job->payload, err));
    bl_serve_headers(job->s, job->x, job->request_id, "", headers, sizeof headers);
    bl_http_respond(job->x, 200, type_json, headers, job->payload.data, job->payload.len);
    return BL_OK;
}

static void complete_job(bl_job *job, const char *finish, bool stopped) {
    bl_err err;
    if (complete(job, finish, stopped, &err) == BL_OK) {
        job_finish(job, 200);
    } else {
        fail_with(job, &err);
    }
}

/* A stop string may end the answer inside a run of accepted drafts: what is counted then are those that were
 * judged until its last token came. */
static void count_drafts(bl_job *job, const bl_event *ev) {
    job->n_drafted = ev->n_drafted;
    job->n_accepted = BL_MIN(ev->n_accepted, ev->n_drafted);
}

static void time_token(bl_job *job, const bl_event *ev) {
    const uint64_t now_ns = bl_clock_mono_ns();
    if (job->first_token_ns == 0) {
        job->first_token_ns = now_ns;
        job->n_cached = ev->n_cached;
        bl_histogram_add(&job->s->metrics.ttft, (double)(now_ns - job->body_ns) / 1e9);
    } else if (!job->waited) {
        bl_histogram_add(&job->s->metrics.token_gap, (double)(now_ns - job->last_token_ns) / 1e9);
    }
    job->last_token_ns = now_ns;
}

/* False when the job is gone. */
static bool take_token(bl_job *job, const bl_event *ev) {
    bl_err err;
    job->n_completion++;
    count_drafts(job, ev);
    time_token(job, ev);
    if (ev->is_stop && !is_marker(job, ev->id)) {
        return true; /* counted, not shown; FINISHED follows */
    }
    bool stopped = false;
    bl_code rc = job->req.logprobs && !ev->is_stop ? note_token(job, ev, &err) : BL_OK;
    if (rc == BL_OK && is_known(job, ev->id)) {
        rc = bl_stream_push(job->stream, ev->id, &job->delta, &stopped, &err);
    }
    if (rc == BL_OK && stopped) {
        bl_session_cancel(job->session);
        complete_job(job, "stop", true);
        return false;
    }
    if (rc == BL_OK) {
        rc = give_out(job, false, &err);
    }
    if (rc != BL_OK) {
        bl_session_cancel(job->session);
        fail_with(job, &err);
        return false;
    }
    if (job->req.one_call && bl_parser_n_calls(job->parser) > 0) {
        bl_session_cancel(job->session);
        complete_job(job, "stop", true);
        return false;
    }
    return true;
}

/* The engine's last event. */
static void take_end(bl_job *job, const bl_event *ev) {
    if (ev->kind == BL_EVENT_FAILED) {
        fail_with(job, &ev->err);
        return;
    }
    job->has_end = true;
    count_drafts(job, ev);
    job->queue_ns = ev->queue_ns;
    job->max_gap_ns = ev->max_gap_ns;
    job->n_preempted = ev->n_preempted;
    bl_histogram_add(&job->s->metrics.queue, (double)ev->queue_ns / 1e9);
    if (ev->finish == BL_FINISH_CANCELLED) {
        bl_openai_error e;
        (void)bl_openai_refuse(&e, 503, "shutting_down", NULL, "the server is shutting down");
        bl_job_fail(job, &e);
    } else {
        complete_job(job, ev->finish == BL_FINISH_STOP ? "stop" : "length", false);
    }
}

/* Pulls events while the client has room for what they give. A job with more than its turn's worth goes to
 * the end of the list. */
static void pump(bl_job *job) {
    for (uint32_t n = 0;; n++) {
        if (job->req.stream && !bl_http_has_room(job->x)) {
            job->waited = true;
            return; /* bl_job_room follows */
        }
        if (n == BL_SERVE_PULL) {
            bl_job_notify(job);
            return;
        }
        bl_event ev;
        bl_err err;
        bool got = false;
        if (bl_session_next(job->session, 0, &ev, &got, &err) != BL_OK) {
            fail_with(job, &err);
            return;
        }
        if (!got) {
            job->waited = false; /* the reader is as far as the engine */
            return;
        }
        if (ev.kind != BL_EVENT_TOKEN) {
            take_end(job, &ev);
            return;
        }
        if (!take_token(job, &ev)) {
            return;
        }
    }
}

void bl_job_room(bl_job *job) {
    if (job->state == JOB_RUNNING) {
        pump(job);
    }
}

static bl_code begin_stream(bl_job *job, bl_err *err) {
    char headers[512];
    bl_serve_headers(job->s, job->x, job->request_id, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
                     headers, sizeof headers);
    bl_http_begin_stream(job->x, 200, type_sse, headers);
    job->begun = true;
    job->last_sent_ns = bl_clock_mono_ns();
    if (job->kind == BL_OPENAI_CHAT) {
        BL_TRY(begin_event(job, err));
        BL_TRY(bl_openai_write_role_chunk(&job->reply, &job->payload, err));
        BL_TRY(send_event(job, err));
    }
    return BL_OK;
}

/* A job comes back from its worker. */
static void job_prepared(bl_job *job) {
    job->state = JOB_RUNNING;
    job->s->n_preparing--;
    if (!job->x) {
        if (job->session) {
            bl_session_cancel(job->session);
        }
        job_free(job);
        return;
    }
    bl_serve *s = job->s;
    if (s->forced) { /* it came back after all others were cut short */
        bl_openai_error e;
        (void)bl_openai_refuse(&e, 503, "shutting_down", NULL, "the server is shutting down");
        bl_job_fail(job, &e);
        return;
    }
    if (job->error.status != 0) {
        bl_job_fail(job, &job->error);
        return;
    }
    bl_openai_reply reply = {job->kind,      job->reply_id,     s->model.model_id,
                             s->fingerprint, bl_clock_wall_s(), job->req.include_usage};
    job->reply = reply;
    bl_err err;
    if (job->req.stream && begin_stream(job, &err) != BL_OK) {
        bl_session_cancel(job->session);
        fail_with(job, &err);
        return;
    }
    pump(job);
}

void bl_jobs_wake(bl_serve *s) {
    for (;;) {
        pthread_mutex_lock(&s->mu);
        bl_job *job = queue_pop(&s->done_first, &s->done_last);
        pthread_mutex_unlock(&s->mu);
        if (!job) {
            break;
        }
        job_prepared(job);
    }
    /* Only those that have something, and each once: who has more comes again with the next wake-up, after
     * the sockets had their turn. */
    s->metrics.n_wakes++;
    for (uint32_t n = ready_count(s); n > 0; n--) {
        bl_job *job = ready_pop(s);
        if (!job) {
            break;
        }
        s->metrics.n_pulls++;
        if (job->state == JOB_RUNNING) { /* else its session is still coming back from the worker */
            pump(job);
        }
    }
    if (ready_count(s) > 0) {
        bl_http_server_wake(s->http);
    }
}

void bl_jobs_tick(bl_serve *s, uint64_t now_ns) {
    for (bl_job *job = s->jobs; job && s->o.alive_ms > 0; job = job->next) {
        if (job->begun && now_ns - job->last_sent_ns > (uint64_t)s->o.alive_ms * 1000000u &&
            bl_http_has_room(job->x)) {
            (void)!bl_http_send(job->x, BL_OPENAI_SSE_ALIVE, sizeof BL_OPENAI_SSE_ALIVE - 1, NULL);
            job->last_sent_ns = now_ns;
            s->metrics.n_keep_alives++;
        }
    }
}

static void *worker_main(void *arg) {
    bl_serve *s = arg;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        while (!s->todo_first && !s->workers_stop) {
            pthread_cond_wait(&s->has_work, &s->mu);
        }
        if (s->workers_stop) {
            break;
        }
        bl_job *job = queue_pop(&s->todo_first, &s->todo_last);
        pthread_mutex_unlock(&s->mu);
        bl_job_prepare(job);
        pthread_mutex_lock(&s->mu);
        queue_push(&s->done_first, &s->done_last, job);
        pthread_mutex_unlock(&s->mu);
        bl_http_server_wake(s->http);
        pthread_mutex_lock(&s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

bl_code bl_jobs_open(bl_serve *s, bl_err *err) {
    while (s->n_workers < s->o.n_workers && s->n_workers < BL_COUNTOF(s->workers)) {
        int why = pthread_create(&s->workers[s->n_workers], NULL, worker_main, s);
        if (why != 0) {
            BL_FAIL(err, BL_EIO, "a worker thread could not be started: %s", strerror(why));
        }
        s->n_workers++;
    }
    return BL_OK;
}

void bl_jobs_close(bl_serve *s) {
    pthread_mutex_lock(&s->mu);
    s->workers_stop = true;
    pthread_cond_broadcast(&s->has_work);
    pthread_mutex_unlock(&s->mu);
    while (s->n_workers > 0) {
        pthread_join(s->workers[--s->n_workers], NULL);
    }
    /* No call of bl_http_server_wake may come after the HTTP server is gone: sessions go first. */
    for (bl_job *job = s->jobs, *next; job; job = next) {
        next = job->next;
        if (job->x) {
            bl_http_exchange_set_user(job->x, NULL);
        }
        job_free(job);
    }
}
