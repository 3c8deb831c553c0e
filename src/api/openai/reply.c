#include "api/openai/reply.h"

#include <inttypes.h>
#include <string.h>

#include "api/openai/write.h"
#include "base/utf8.h"

void bl_openai_logprobs_init(bl_openai_logprobs *l, bl_openai_kind kind, size_t max_bytes) {
    l->kind = kind;
    l->n = 0;
    bl_buf_init(&l->entries, max_bytes);
    bl_buf_init(&l->values, max_bytes);
    bl_buf_init(&l->tops, max_bytes);
    bl_buf_init(&l->offsets, max_bytes);
}

void bl_openai_logprobs_done(bl_openai_logprobs *l) {
    bl_buf_done(&l->entries);
    bl_buf_done(&l->values);
    bl_buf_done(&l->tops);
    bl_buf_done(&l->offsets);
}

void bl_openai_logprobs_reset(bl_openai_logprobs *l) {
    l->n = 0;
    bl_buf_reset(&l->entries);
    bl_buf_reset(&l->values);
    bl_buf_reset(&l->tops);
    bl_buf_reset(&l->offsets);
}

/* A token's text; one that is part of a character is written with its bytes as \xNN, after `prefix`, as
 * OpenAI's servers do. */
static bl_code write_token_text(const bl_openai_token *t, const char *prefix, bl_buf *ret, bl_err *err) {
    if (bl_utf8_valid(t->bytes, t->n_bytes)) {
        return bl_openai_write_string(t->bytes, t->n_bytes, ret, err);
    }
    BL_TRY(bl_buf_printf(ret, err, "\"%s", prefix));
    for (size_t i = 0; i < t->n_bytes; i++) {
        BL_TRY(bl_buf_printf(ret, err, "\\\\x%02x", (unsigned char)t->bytes[i]));
    }
    return bl_buf_append_char(ret, '"', err);
}

static bl_code write_chat_token(const bl_openai_token *t, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, "{\"token\":", err));
    BL_TRY(write_token_text(t, "", ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"logprob\":", err));
    BL_TRY(bl_openai_write_logprob(t->logprob, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"bytes\":[", err));
    for (size_t i = 0; i < t->n_bytes; i++) {
        BL_TRY(bl_buf_printf(ret, err, i ? ",%u" : "%u", (unsigned)(unsigned char)t->bytes[i]));
    }
    return bl_buf_append_char(ret, ']', err);
}

static bl_code add_chat(bl_openai_logprobs *l, const bl_openai_token *t, const bl_openai_token *top,
                        uint32_t n_top, bl_err *err) {
    BL_TRY(bl_buf_append_str(&l->entries, l->n ? "," : "", err));
    BL_TRY(write_chat_token(t, &l->entries, err));
    BL_TRY(bl_buf_append_str(&l->entries, ",\"top_logprobs\":[", err));
    for (uint32_t i = 0; i < n_top; i++) {
        BL_TRY(bl_buf_append_str(&l->entries, i ? "," : "", err));
        BL_TRY(write_chat_token(&top[i], &l->entries, err));
        BL_TRY(bl_buf_append_char(&l->entries, '}', err));
    }
    return bl_buf_append_str(&l->entries, "]}", err);
}

static bool same_bytes(const bl_openai_token *a, const bl_openai_token *b) {
    return a->n_bytes == b->n_bytes && (a->n_bytes == 0 || memcmp(a->bytes, b->bytes, a->n_bytes) == 0);
}

/* {text: logprob}; of several tokens with one text the likeliest counts, which comes first. */
static bl_code add_top_map(bl_openai_logprobs *l, const bl_openai_token *top, uint32_t n_top, bl_err *err) {
    const char *before = "{";
    for (uint32_t i = 0; i < n_top; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i; k++) {
            seen = seen || same_bytes(&top[k], &top[i]);
        }
        if (!seen) {
            BL_TRY(bl_buf_append_str(&l->tops, before, err));
            BL_TRY(write_token_text(&top[i], "bytes:", &l->tops, err));
            BL_TRY(bl_buf_append_char(&l->tops, ':', err));
            BL_TRY(bl_openai_write_logprob(top[i].logprob, &l->tops, err));
            before = ",";
        }
    }
    return bl_buf_append_str(&l->tops, n_top ? "}" : "{}", err);
}

bl_code bl_openai_logprobs_add(bl_openai_logprobs *l, const bl_openai_token *t, const bl_openai_token *top,
                               uint32_t n_top, uint64_t text_offset, bl_err *err) {
    if (l->kind == BL_OPENAI_CHAT) {
        BL_TRY(add_chat(l, t, top, n_top, err));
    } else {
        const char *comma = l->n ? "," : "";
        BL_TRY(bl_buf_append_str(&l->entries, comma, err));
        BL_TRY(write_token_text(t, "bytes:", &l->entries, err));
        BL_TRY(bl_buf_append_str(&l->values, comma, err));
        BL_TRY(bl_openai_write_logprob(t->logprob, &l->values, err));
        BL_TRY(bl_buf_append_str(&l->tops, comma, err));
        BL_TRY(add_top_map(l, top, n_top, err));
        BL_TRY(bl_buf_printf(&l->offsets, err, "%s%" PRIu64, comma, text_offset));
    }
    l->n++;
    return BL_OK;
}

static bl_code write_logprobs(const bl_openai_logprobs *l, bl_buf *ret, bl_err *err) {
    if (!l) {
        return bl_buf_append_str(ret, "null", err);
    }
    if (l->kind == BL_OPENAI_CHAT) {
        BL_TRY(bl_buf_append_str(ret, "{\"content\":[", err));
        BL_TRY(bl_buf_append(ret, bl_buf_str(&l->entries), l->entries.len, err));
        return bl_buf_append_str(ret, "],\"refusal\":null}", err);
    }
    BL_TRY(bl_buf_append_str(ret, "{\"tokens\":[", err));
    BL_TRY(bl_buf_append(ret, bl_buf_str(&l->entries), l->entries.len, err));
    BL_TRY(bl_buf_append_str(ret, "],\"token_logprobs\":[", err));
    BL_TRY(bl_buf_append(ret, bl_buf_str(&l->values), l->values.len, err));
    BL_TRY(bl_buf_append_str(ret, "],\"top_logprobs\":[", err));
    BL_TRY(bl_buf_append(ret, bl_buf_str(&l->tops), l->tops.len, err));
    BL_TRY(bl_buf_append_str(ret, "],\"text_offset\":[", err));
    BL_TRY(bl_buf_append(ret, bl_buf_str(&l->offsets), l->offsets.len, err));
    return bl_buf_append_str(ret, "]}", err);
}

/* {"id":...,"model":...  without the closing brace */
static bl_code write_head(const bl_openai_reply *r, bool chunk, bl_buf *ret, bl_err *err) {
    const char *object = r->kind == BL_OPENAI_COMPLETION ? "text_completion"
                         : chunk                         ? "chat.completion.chunk"
                                                         : "chat.completion";
    BL_TRY(bl_buf_printf(ret, err, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                         r->id, object, r->created));
    BL_TRY(bl_openai_write_string(r->model, strlen(r->model), ret, err));
    return bl_buf_printf(ret, err, ",\"system_fingerprint\":\"%s\"", r->fingerprint);
}

static bl_code write_finish(const char *finish, bl_buf *ret, bl_err *err) {
    return finish ? bl_buf_printf(ret, err, ",\"finish_reason\":\"%s\"}", finish)
                  : bl_buf_append_str(ret, ",\"finish_reason\":null}", err);
}

static bl_code close_chunk(const bl_openai_reply *r, bl_buf *ret, bl_err *err) {
    return bl_buf_append_str(ret, r->include_usage ? "],\"usage\":null}" : "]}", err);
}

bl_code bl_openai_write_role_chunk(const bl_openai_reply *r, bl_buf *ret, bl_err *err) {
    BL_TRY(write_head(r, true, ret, err));
    BL_TRY(bl_buf_append_str(
        ret,
        ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}",
        err));
    return close_chunk(r, ret, err);
}

bl_code bl_openai_write_chunk(const bl_openai_reply *r, const char *text, size_t n,
                              const bl_openai_logprobs *logprobs, const char *finish, bl_buf *ret,
                              bl_err *err) {
    BL_TRY(write_head(r, true, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"choices\":[{\"index\":0,", err));
    if (r->kind == BL_OPENAI_CHAT) {
        bool empty = n == 0 && !logprobs;
        BL_TRY(bl_buf_append_str(ret, empty ? "\"delta\":{" : "\"delta\":{\"content\":", err));
        if (!empty) {
            BL_TRY(bl_openai_write_string(text, n, ret, err));
        }
        BL_TRY(bl_buf_append_char(ret, '}', err));
    } else {
        BL_TRY(bl_buf_append_str(ret, "\"text\":", err));
        BL_TRY(bl_openai_write_string(text, n, ret, err));
    }
    BL_TRY(bl_buf_append_str(ret, ",\"logprobs\":", err));
    BL_TRY(write_logprobs(logprobs, ret, err));
    BL_TRY(write_finish(finish, ret, err));
    return close_chunk(r, ret, err);
}

/* ,"logprobs":...,"finish_reason":null} and the end of the chunk */
static bl_code close_delta(const bl_openai_reply *r, const bl_openai_logprobs *logprobs, bl_buf *ret,
                           bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, ",\"logprobs\":", err));
    BL_TRY(write_logprobs(logprobs, ret, err));
    BL_TRY(write_finish(NULL, ret, err));
    return close_chunk(r, ret, err);
}

bl_code bl_openai_write_reasoning_chunk(const bl_openai_reply *r, const char *text, size_t n,
                                        const bl_openai_logprobs *logprobs, bl_buf *ret, bl_err *err) {
    BL_TRY(write_head(r, true, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":", err));
    BL_TRY(bl_openai_write_string(text, n, ret, err));
    BL_TRY(bl_buf_append_char(ret, '}', err));
    return close_delta(r, logprobs, ret, err);
}

bl_code bl_openai_write_call_chunk(const bl_openai_reply *r, uint32_t index, const char *id, const char *text,
                                   size_t n, const bl_openai_logprobs *logprobs, bl_buf *ret, bl_err *err) {
    BL_TRY(write_head(r, true, ret, err));
    BL_TRY(bl_buf_printf(ret, err, ",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%u,",
                         index));
    if (id) {
        BL_TRY(bl_buf_printf(ret, err, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id));
        BL_TRY(bl_openai_write_string(text, n, ret, err));
        BL_TRY(bl_buf_append_str(ret, ",\"arguments\":\"\"}}]}", err));
    } else {
        BL_TRY(bl_buf_append_str(ret, "\"function\":{\"arguments\":", err));
        BL_TRY(bl_openai_write_string(text, n, ret, err));
        BL_TRY(bl_buf_append_str(ret, "}}]}", err));
    }
    return close_delta(r, logprobs, ret, err);
}

bl_code bl_openai_write_call(const char *id, const char *name, size_t n_name, const char *arguments, size_t n,
                             bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_printf(ret, err, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id));
    BL_TRY(bl_openai_write_string(name, n_name, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"arguments\":", err));
    BL_TRY(bl_openai_write_string(arguments, n, ret, err));
    return bl_buf_append_str(ret, "}}", err);
}

static bl_code write_usage(const bl_openai_usage *u, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_printf(
        ret, err,
        "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64
        ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}",
        u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens, u->cached_tokens));
    if (u->drafts) {
        BL_TRY(bl_buf_printf(ret, err,
                             ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%" PRIu64
                             ",\"rejected_prediction_tokens\":%" PRIu64 "}",
                             u->accepted_tokens, u->rejected_tokens));
    }
    return bl_buf_append_str(ret, "}}", err);
}

bl_code bl_openai_write_usage_chunk(const bl_openai_reply *r, const bl_openai_usage *u, bl_buf *ret,
                                    bl_err *err) {
    BL_TRY(write_head(r, true, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"choices\":[],", err));
    return write_usage(u, ret, err);
}

static bl_code write_message(const bl_openai_answer *a, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, "\"message\":{\"role\":\"assistant\",\"refusal\":null,\"content\":", err));
    if (a->n == 0 && a->n_calls > 0) {
        BL_TRY(bl_buf_append_str(ret, "null", err));
    } else {
        BL_TRY(bl_openai_write_string(a->text, a->n, ret, err));
    }
    if (a->n_reasoning > 0) {
        BL_TRY(bl_buf_append_str(ret, ",\"reasoning_content\":", err));
        BL_TRY(bl_openai_write_string(a->reasoning, a->n_reasoning, ret, err));
    }
    if (a->n_calls > 0) {
        BL_TRY(bl_buf_append_str(ret, ",\"tool_calls\":[", err));
        BL_TRY(bl_buf_append(ret, a->calls, a->n_calls, err));
        BL_TRY(bl_buf_append_char(ret, ']', err));
    }
    return bl_buf_append_char(ret, '}', err);
}

bl_code bl_openai_write_reply(const bl_openai_reply *r, const bl_openai_answer *a, const char *finish,
                              const bl_openai_usage *u, bl_buf *ret, bl_err *err) {
    BL_TRY(write_head(r, false, ret, err));
    BL_TRY(bl_buf_append_str(ret, ",\"choices\":[{\"index\":0,", err));
    if (r->kind == BL_OPENAI_CHAT) {
        BL_TRY(write_message(a, ret, err));
    } else {
        BL_TRY(bl_buf_append_str(ret, "\"text\":", err));
        BL_TRY(bl_openai_write_string(a->text, a->n, ret, err));
    }
    BL_TRY(bl_buf_append_str(ret, ",\"logprobs\":", err));
    BL_TRY(write_logprobs(a->logprobs, ret, err));
    BL_TRY(write_finish(finish, ret, err));
    BL_TRY(bl_buf_append_str(ret, "],", err));
    return write_usage(u, ret, err);
}

bl_code bl_openai_write_model(const bl_openai_model *m, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, "{\"id\":", err));
    BL_TRY(bl_openai_write_string(m->id, strlen(m->id), ret, err));
    return bl_buf_printf(ret, err,
                         ",\"object\":\"model\",\"created\":%" PRId64
                         ",\"owned_by\":\"darkbloom\",\"context_length\":%u,\"chat\":%s}",
                         m->created, m->n_context, m->can_chat ? "true" : "false");
}

bl_code bl_openai_write_model_list(const bl_openai_model *m, size_t n, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, "{\"object\":\"list\",\"data\":[", err));
    for (size_t i = 0; i < n; i++) {
        BL_TRY(bl_buf_append_str(ret, i ? "," : "", err));
        BL_TRY(bl_openai_write_model(&m[i], ret, err));
    }
    return bl_buf_append_str(ret, "]}", err);
}
