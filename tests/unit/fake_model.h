/* A model for tests of serve/: the functions of bl.h, chat.h, stream.h and tokenizer.h that serve/ calls,
 * defined here so that the linker takes these instead of the real ones. Token ids are bytes, 256 ends an
 * answer. The answer to a prompt is the prompt itself, but for prompts that begin with '!': "!loop" answers
 * 'x' for ever, "!fail" fails after two tokens, "!mute" stops at once, "!hold" says nothing before
 * fake_release, then as "!loop". One engine thread that gives each of up to fake_max_concurrent requests one
 * token a step and then sleeps fake_step_us, as the real engine does.
 */
#ifndef BL_TESTS_FAKE_MODEL_H
#define BL_TESTS_FAKE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/utf8.h"
#include "bl/bl.h"
#include "chat/chat.h"
#include "chat/stream.h"
#include "grammar/grammar.h"

#define FAKE_EOS       256
#define FAKE_MAX_QUEUE 64
#define FAKE_MAX_BATCH 128
#define FAKE_CONTEXT   2048u

struct bl_session {
    bl_engine *e;
    bl_request r;
    int32_t *prompt;
    bl_event *events;
    size_t n_events, n_taken, cap;
    uint32_t n_steps; /* tokens given */
    uint32_t n_drafted, n_accepted;
    bool cancel, owner_gone, ended;
};

struct bl_engine {
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t work;
    bl_session *queue[FAKE_MAX_QUEUE], *batch[FAKE_MAX_BATCH];
    uint32_t n_queue, running; /* running: of batch */
    bool stop;
    bl_engine_stats stats;
};

static atomic_uint fake_step_us;
static atomic_bool fake_release, fake_hung;
static atomic_uint fake_forecast_ms; /* requests that want their first token sooner are refused */
static uint64_t fake_last_tenant;    /* of the last submitted request, with the two below */
static int32_t fake_last_priority;
static uint32_t fake_last_first_content_ms;
static uint32_t fake_max_queue = FAKE_MAX_QUEUE;
static uint32_t fake_max_concurrent = 1;
static bl_sampling fake_last_sampling; /* of the last submitted request */
static bool fake_has_template = true;
/* Tokens after the first of an answer come in bursts of that many and one, all drafts but one right. Before
 * the server starts. */
static uint32_t fake_draft_depth;
static bool fake_last_no_draft; /* of the last submitted request */

/* [e->mu held] */
static void fake_put(bl_session *s, bl_event ev) {
    if (s->n_events == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 16;
        s->events = realloc(s->events, s->cap * sizeof *s->events);
        BL_ASSERT(s->events);
    }
    s->events[s->n_events++] = ev;
    s->ended = ev.kind != BL_EVENT_TOKEN;
    if (s->r.notify && !s->owner_gone) {
        s->r.notify(s->r.notify_user);
    }
}

static void fake_delete(bl_session *s) {
    bl_grammar_state_free(s->r.grammar);
    free(s->prompt);
    free(s->events);
    free(s);
}

static bool fake_begins(const bl_session *s, const char *word) {
    for (size_t i = 0; word[i]; i++) {
        if (i >= s->r.n_prompt || s->prompt[i] != (unsigned char)word[i]) {
            return false;
        }
    }
    return true;
}

/* Prompts that begin with '=' are known up to their last token. */
static uint32_t fake_cached(const bl_session *s) {
    return fake_begins(s, "=") ? (uint32_t)s->r.n_prompt - 1 : 0;
}

/* [e->mu held] One token; false when the answer ended. */
static bool fake_step(bl_session *s, uint32_t n) {
    bl_event ev;
    memset(&ev, 0, sizeof ev);
    if (s->cancel || s->owner_gone || s->e->stop) {
        ev.kind = BL_EVENT_FINISHED;
        ev.finish = BL_FINISH_CANCELLED;
        s->e->stats.n_cancelled++;
        fake_put(s, ev);
        return false;
    }
    const uint32_t n_before = fake_begins(s, "!fail late") || fake_begins(s, "!fail first") ? 0 : 2;
    if (fake_begins(s, "!fail") && n == n_before) {
        ev.kind = BL_EVENT_FAILED;
        (void)bl_err_set(&ev.err, BL_EINTERNAL, __FILE__, __LINE__, "made to fail");
        if (fake_begins(s, "!fail late")) {
            (void)bl_err_set(&ev.err, BL_EBUSY, __FILE__, __LINE__, "admission_timeout: made to wait");
        } else if (fake_begins(s, "!fail first")) {
            (void)bl_err_set(&ev.err, BL_EBUSY, __FILE__, __LINE__, "first_content_deadline: made to wait");
        } else if (fake_begins(s, "!fail stall")) {
            (void)bl_err_set(&ev.err, BL_EBUSY, __FILE__, __LINE__, "decode_stall: made to wait");
        }
        s->e->stats.n_failed++;
        fake_put(s, ev);
        return false;
    }
    if (fake_begins(s, "!hold") && !atomic_load(&fake_release)) {
        s->n_steps--;
        return true;
    }
    bool loop = fake_begins(s, "!loop") || fake_begins(s, "!hold");
    size_t length = fake_begins(s, "!mute") ? 0 : s->r.n_prompt;
    if (n < s->r.max_tokens && n + s->r.n_prompt < FAKE_CONTEXT * (loop ? 1000u : 1u)) {
        ev.kind = BL_EVENT_TOKEN;
        ev.id = loop ? 'x' : n < length ? s->prompt[n] : FAKE_EOS;
        ev.id = ev.id == '#' ? FAKE_EOS + 1 : ev.id; /* an id of the padding */
        ev.is_stop = ev.id == FAKE_EOS;
        ev.logprob = -0.25f;
        ev.n_cached = fake_cached(s);
        ev.n_drafted = s->n_drafted;
        ev.n_accepted = s->n_accepted;
        ev.n_top = s->r.logprobs ? s->r.n_top_logprobs : 0;
        for (uint32_t i = 0; i < ev.n_top; i++) {
            ev.top[i].id = (ev.id + (int32_t)i) % 256;
            ev.top[i].logprob = -0.25f - (float)i;
        }
        s->e->stats.n_output_tokens++;
        bool stop = ev.is_stop;
        fake_put(s, ev);
        if (!stop) {
            return true;
        }
    }
    memset(&ev, 0, sizeof ev);
    ev.kind = BL_EVENT_FINISHED;
    ev.finish = n < s->r.max_tokens ? BL_FINISH_STOP : BL_FINISH_LENGTH;
    ev.n_cached = fake_cached(s);
    ev.n_drafted = s->n_drafted;
    ev.n_accepted = s->n_accepted;
    ev.n_preempted = ev.n_cached > 0; /* so that both are seen */
    ev.queue_ns = 1500000;
    ev.max_gap_ns = 2500000;
    s->e->stats.n_finished++;
    fake_put(s, ev);
    return false;
}

/* [e->mu held] From the queue into the batch, in order. */
static void fake_admit(bl_engine *e) {
    while (e->n_queue > 0 && e->running < BL_MIN(fake_max_concurrent, FAKE_MAX_BATCH)) {
        e->batch[e->running++] = e->queue[0];
        e->n_queue--;
        memmove(e->queue, e->queue + 1, e->n_queue * sizeof e->queue[0]);
    }
}

/* [e->mu held] One token for each of the batch; those that ended leave it. */
static void fake_step_all(bl_engine *e) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running; i++) {
        bl_session *s = e->batch[i];
        uint32_t n_drafts = s->n_steps > 0 && !s->r.no_draft ? fake_draft_depth : 0;
        bool goes_on = true;
        s->n_drafted += n_drafts > 0 ? n_drafts + 1 : 0;
        s->n_accepted += n_drafts;
        for (uint32_t k = 0; k <= n_drafts && goes_on; k++) {
            goes_on = fake_step(s, s->n_steps++);
        }
        if (goes_on) {
            e->batch[n++] = s;
        } else if (s->owner_gone) {
            fake_delete(s);
        }
    }
    e->running = n;
}

static void *fake_main(void *arg) {
    bl_engine *e = arg;
    pthread_mutex_lock(&e->mu);
    while (!e->stop) {
        fake_admit(e);
        if (e->running == 0) {
            pthread_cond_wait(&e->work, &e->mu);
            continue;
        }
        fake_step_all(e);
        uint32_t us = atomic_load(&fake_step_us);
        if (us > 0 && e->running > 0) {
            pthread_mutex_unlock(&e->mu);
            usleep(us);
            pthread_mutex_lock(&e->mu);
        }
    }
    while (e->running > 0) { /* cancelled by e->stop */
        fake_step_all(e);
    }
    pthread_mutex_unlock(&e->mu);
    return NULL;
}

static bl_engine *fake_engine_start(void) {
    bl_engine *e = calloc(1, sizeof *e);
    BL_ASSERT(e);
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->work, NULL);
    BL_ASSERT(pthread_create(&e->thread, NULL, fake_main, e) == 0);
    return e;
}

static void fake_engine_end(bl_engine *e) {
    pthread_mutex_lock(&e->mu);
    e->stop = true;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
    for (uint32_t i = 0; i < e->n_queue; i++) {
        BL_ASSERT(e->queue[i]->owner_gone); /* bl.h: sessions must be freed before */
        fake_delete(e->queue[i]);
    }
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->mu);
    free(e);
}

void bl_request_init(bl_request *r) {
    memset(r, 0, sizeof *r);
    r->max_tokens = 256;
}

bl_code bl_session_submit(bl_engine *e, const bl_request *r, bl_session **ret, bl_err *err) {
    if (r->n_prompt < 1 || r->n_prompt > FAKE_CONTEXT || r->max_tokens < 1) {
        BL_FAIL(err, BL_EINVAL, "bad request reached the engine");
    }
    bl_session *s = calloc(1, sizeof *s);
    BL_ASSERT(s);
    s->e = e;
    s->r = *r;
    s->prompt = malloc(r->n_prompt * sizeof *s->prompt);
    BL_ASSERT(s->prompt);
    memcpy(s->prompt, r->prompt, r->n_prompt * sizeof *s->prompt);
    pthread_mutex_lock(&e->mu);
    if (e->n_queue >= fake_max_queue) {
        pthread_mutex_unlock(&e->mu);
        s->r.grammar = NULL; /* still the caller's */
        fake_delete(s);
        BL_FAIL(err, BL_EBUSY, "%u requests wait, %u may", fake_max_queue, fake_max_queue);
    }
    if (r->first_content_ms > 0 && r->first_content_ms < atomic_load(&fake_forecast_ms)) {
        pthread_mutex_unlock(&e->mu);
        fake_delete(s);
        BL_FAIL(err, BL_EBUSY, "deadline_unreachable: the first token is forecast in %u ms",
                atomic_load(&fake_forecast_ms));
    }
    if (atomic_load(&fake_hung)) {
        pthread_mutex_unlock(&e->mu);
        fake_delete(s);
        BL_FAIL(err, BL_EINTERNAL, "a step of the engine hangs");
    }
    fake_last_sampling = r->sampling;
    fake_last_tenant = r->tenant;
    fake_last_priority = r->priority;
    fake_last_no_draft = r->no_draft;
    fake_last_first_content_ms = r->first_content_ms;
    e->stats.n_prompt_tokens += r->n_prompt;
    e->queue[e->n_queue++] = s;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->mu);
    *ret = s;
    return BL_OK;
}

bl_code bl_session_next(bl_session *s, int timeout_ms, bl_event *ret, bool *ret_got, bl_err *err) {
    (void)err;
    BL_ASSERT(timeout_ms == 0); /* the loop thread must never wait */
    pthread_mutex_lock(&s->e->mu);
    *ret_got = s->n_taken < s->n_events;
    if (*ret_got) {
        *ret = s->events[s->n_taken++];
    }
    pthread_mutex_unlock(&s->e->mu);
    return BL_OK;
}

void bl_session_cancel(bl_session *s) {
    pthread_mutex_lock(&s->e->mu);
    s->cancel = true;
    pthread_mutex_unlock(&s->e->mu);
}

void bl_session_free(bl_session *s) {
    if (!s) {
        return;
    }
    bl_engine *e = s->e;
    pthread_mutex_lock(&e->mu);
    s->owner_gone = true;
    bool ended = s->ended;
    pthread_mutex_unlock(&e->mu);
    if (ended) {
        fake_delete(s);
    }
}

void bl_engine_get_stats(bl_engine *e, bl_engine_stats *ret) {
    pthread_mutex_lock(&e->mu);
    *ret = e->stats;
    ret->waiting = e->n_queue;
    ret->running = e->running;
    ret->hung = atomic_load(&fake_hung);
    pthread_mutex_unlock(&e->mu);
}

const bl_model_info *bl_engine_info(const bl_engine *e) {
    static const bl_model_info info = {.family = "fake",
                                       .n_vocab = 260,
                                       .n_context = FAKE_CONTEXT,
                                       .kv_storage = "paged",
                                       .kv_storage_reason = "asked_for"};
    static const bl_model_info drafting = {.family = "fake",
                                           .n_vocab = 260,
                                           .n_context = FAKE_CONTEXT,
                                           .kv_storage = "paged",
                                           .kv_storage_reason = "asked_for",
                                           .draft_depth = 3};
    (void)e;
    return fake_draft_depth > 0 ? &drafting : &info;
}

const char *bl_version(void) {
    return "0-test";
}

/* chat.h */

struct bl_chat {
    int unused;
};
struct bl_tokenizer {
    int unused;
};

static bl_chat_features fake_features; /* what a test sets */
static bl_parser_start fake_start;
static json_t *fake_last_extra; /* template variables of the last rendering */
static bool fake_last_had_tools;

static const struct bl_chat fake_chat;
static const struct bl_tokenizer fake_tokenizer;

const bl_tokenizer *bl_chat_tokenizer(const bl_chat *c) {
    (void)c;
    return &fake_tokenizer;
}

bl_template_source bl_chat_template_source(const bl_chat *c) {
    (void)c;
    return fake_has_template ? BL_TEMPLATE_FILE : BL_TEMPLATE_NONE;
}

const int32_t *bl_chat_stop_ids(const bl_chat *c, size_t *ret_n) {
    static const int32_t ids[] = {FAKE_EOS};
    (void)c;
    *ret_n = 1;
    return ids;
}

bl_chat_defaults bl_chat_sampling_defaults(const bl_chat *c) {
    (void)c;
    bl_chat_defaults d = {
        .temperature = 0.5f, .top_p = 0.75f, .top_k = 11, .min_p = 0, .has_temperature = true};
    return d;
}

bl_code bl_chat_encode_prompt(const bl_chat *c, const char *text, size_t n, bl_ids *ret, bl_err *err) {
    (void)c;
    for (size_t i = 0; i < n; i++) {
        BL_TRY(bl_ids_push(ret, (unsigned char)text[i], err));
    }
    return BL_OK;
}

/* The last message alone. */
bl_code bl_chat_render(const bl_chat *c, const json_t *messages, const json_t *tools, const json_t *extra,
                       bool add_generation_prompt, bool parity, bl_ids *ret, bl_err *err) {
    (void)parity;
    BL_ASSERT(add_generation_prompt);
    json_decref(fake_last_extra);
    fake_last_extra = extra ? json_deep_copy(extra) : NULL;
    fake_last_had_tools = tools != NULL;
    const json_t *content =
        json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    if (!json_is_string(content)) {
        BL_FAIL(err, BL_EINVAL, "the template takes text only");
    }
    return bl_chat_encode_prompt(c, json_string_value(content), json_string_length(content), ret, err);
}

const bl_chat_features *bl_chat_describe(const bl_chat *c) {
    (void)c;
    return &fake_features;
}

/* '$' is a control token of the harmony dialect: <|call|>. */
const int32_t *bl_chat_markers(const bl_chat *c, size_t *ret_n) {
    static const int32_t ids[] = {'$'};
    (void)c;
    *ret_n = fake_features.dialect == BL_DIALECT_HARMONY ? 1 : 0;
    return ids;
}

bl_parser_options bl_chat_parser_options(const bl_chat *c, const int32_t *prompt, size_t n_prompt,
                                         const json_t *tools) {
    (void)c, (void)prompt, (void)n_prompt;
    bl_parser_options o = {
        .dialect = fake_features.dialect, .start = fake_start, .calls = tools, .tools = tools};
    o.control = fake_features.dialect == BL_DIALECT_HARMONY ? 4 : 0;
    return o;
}

/* 256 is the last id that the tokenizer knows. */
const char *bl_tokenizer_piece(const bl_tokenizer *t, int32_t id, size_t *ret_len) {
    (void)t, (void)ret_len;
    return id >= 0 && id <= FAKE_EOS ? "piece" : NULL;
}

uint32_t bl_tokenizer_vocab_size(const bl_tokenizer *t) {
    (void)t;
    return FAKE_EOS + 1;
}

bool bl_tokenizer_is_special(const bl_tokenizer *t, int32_t id) {
    (void)t;
    return id == FAKE_EOS;
}

int32_t bl_tokenizer_id(const bl_tokenizer *t, const char *piece, size_t n) {
    (void)t, (void)piece, (void)n;
    return -1;
}

bl_code bl_tokenizer_token_bytes(const bl_tokenizer *t, int32_t id, bool first, bool skip_special,
                                 bl_buf *ret, bl_err *err) {
    (void)t, (void)first;
    if (id > FAKE_EOS) {
        BL_FAIL(err, BL_EINVAL, "id %d is not in the vocabulary", (int)id);
    }
    if (id == FAKE_EOS) {
        return skip_special ? BL_OK : bl_buf_append_str(ret, "<end>", err);
    }
    return bl_buf_append_char(ret, (char)id, err);
}

/* stream.h */

struct bl_stream {
    char *stops[BL_STOP_MAX_STRINGS];
    size_t n_stops;
    bl_buf held;
    bool shows;
};

bl_code bl_stream_new(const bl_tokenizer *t, const char *const *stops, size_t n, bool skip_special,
                      bl_stream **ret, bl_err *err) {
    (void)t, (void)err;
    BL_ASSERT(skip_special);
    bl_stream *s = calloc(1, sizeof *s);
    BL_ASSERT(s);
    bl_buf_init(&s->held, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        s->stops[s->n_stops++] = strdup(stops[i]);
    }
    *ret = s;
    return BL_OK;
}

void bl_stream_free(bl_stream *s) {
    if (s) {
        for (size_t i = 0; i < s->n_stops; i++) {
            free(s->stops[i]);
        }
        bl_buf_done(&s->held);
        free(s);
    }
}

void bl_stream_show(bl_stream *s, const int32_t *ids, size_t n) {
    s->shows = n > 0;
    BL_ASSERT(n == 0 || ids[0] == '$');
}

bl_code bl_stream_push(bl_stream *s, int32_t id, bl_buf *ret, bool *ret_stopped, bl_err *err) {
    if (s->shows && id == '$') {
        return bl_buf_append_str(ret, "\xff<|call|>", err);
    }
    BL_TRY(bl_tokenizer_token_bytes(NULL, id, false, true, &s->held, err));
    size_t keep = s->held.len - bl_utf8_complete(bl_buf_str(&s->held), s->held.len);
    for (size_t i = 0; i < s->n_stops; i++) {
        size_t len = strlen(s->stops[i]);
        const char *hit = memmem(bl_buf_str(&s->held), s->held.len, s->stops[i], len);
        if (hit) {
            *ret_stopped = true;
            return bl_buf_append(ret, s->held.data, (size_t)(hit - s->held.data), err);
        }
        for (size_t n = BL_MIN(len - 1, s->held.len); n > keep; n--) {
            if (memcmp(s->held.data + s->held.len - n, s->stops[i], n) == 0) {
                keep = n;
            }
        }
    }
    size_t give = s->held.len - keep;
    BL_TRY(bl_buf_append(ret, bl_buf_str(&s->held), give, err));
    bl_buf_consume(&s->held, give);
    return BL_OK;
}

bl_code bl_stream_finish(bl_stream *s, bl_buf *ret, bl_err *err) {
    size_t whole = bl_utf8_complete(bl_buf_str(&s->held), s->held.len);
    BL_TRY(bl_buf_append(ret, bl_buf_str(&s->held), whole, err));
    return whole < s->held.len ? bl_buf_append_str(ret, "\xef\xbf\xbd", err) : BL_OK;
}

#endif
