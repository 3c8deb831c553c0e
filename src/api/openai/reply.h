/* Answers -> OpenAI payloads: whole objects, stream chunks (the JSON only), logprobs, models.
 * Everything appends to a buffer whose maximum bounds the answer.
 */
#ifndef BL_API_OPENAI_REPLY_H
#define BL_API_OPENAI_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "api/openai/request.h"
#include "base/buf.h"

typedef struct {
    bl_openai_kind kind;
    const char *id;          /* "chatcmpl-..." or "cmpl-..." */
    const char *model;       /* the served id */
    const char *fingerprint; /* of weights and program */
    int64_t created;         /* Unix time */
    bool include_usage;      /* stream_options.include_usage: every chunk carries the key */
} bl_openai_reply;

typedef struct {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cached_tokens;                    /* of the prompt: found in the prefix cache */
    bool drafts;                               /* the model drafts: the two below are shown */
    uint64_t accepted_tokens, rejected_tokens; /* drafted tokens that were found right, and wrong */
} bl_openai_usage;

/* One token with its bytes (which may be part of a character) and alternatives. */
typedef struct {
    const char *bytes;
    size_t n_bytes;
    float logprob;
} bl_openai_token;

/* Logprobs of a stretch of answer, in the kind's own shape. */
typedef struct {
    bl_openai_kind kind;
    uint32_t n;                   /* tokens held */
    bl_buf entries;               /* chat: the objects. completion: "tokens" */
    bl_buf values, tops, offsets; /* completion only */
} bl_openai_logprobs;

void bl_openai_logprobs_init(bl_openai_logprobs *l, bl_openai_kind kind, size_t max_bytes);
void bl_openai_logprobs_done(bl_openai_logprobs *l);
void bl_openai_logprobs_reset(bl_openai_logprobs *l);
/* text_offset: characters of the answer before this token (completion). */
bl_code bl_openai_logprobs_add(bl_openai_logprobs *l, const bl_openai_token *t, const bl_openai_token *top,
                               uint32_t n_top, uint64_t text_offset, bl_err *err) BL_MUST_CHECK;

/* What a whole answer says. In a chat beside its content the reasoning, and the calls as JSON objects with
 * commas between (bl_openai_write_call). */
typedef struct {
    const char *text, *reasoning, *calls;
    size_t n, n_reasoning, n_calls;     /* bytes */
    const bl_openai_logprobs *logprobs; /* NULL: null */
} bl_openai_answer;

/* Stream chunks. logprobs NULL: null. finish NULL: null. The first chat chunk carries the role. */
bl_code bl_openai_write_role_chunk(const bl_openai_reply *r, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_openai_write_chunk(const bl_openai_reply *r, const char *text, size_t n,
                              const bl_openai_logprobs *logprobs, const char *finish, bl_buf *ret,
                              bl_err *err) BL_MUST_CHECK;
/* delta.reasoning_content. */
bl_code bl_openai_write_reasoning_chunk(const bl_openai_reply *r, const char *text, size_t n,
                                        const bl_openai_logprobs *logprobs, bl_buf *ret,
                                        bl_err *err) BL_MUST_CHECK;
/* delta.tool_calls: the head of call `index` when id is not NULL (text: the function's name), else more of
 * its arguments. */
bl_code bl_openai_write_call_chunk(const bl_openai_reply *r, uint32_t index, const char *id, const char *text,
                                   size_t n, const bl_openai_logprobs *logprobs, bl_buf *ret,
                                   bl_err *err) BL_MUST_CHECK;
/* A call of a whole answer. */
bl_code bl_openai_write_call(const char *id, const char *name, size_t n_name, const char *arguments, size_t n,
                             bl_buf *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_openai_write_usage_chunk(const bl_openai_reply *r, const bl_openai_usage *u, bl_buf *ret,
                                    bl_err *err) BL_MUST_CHECK;
/* The whole answer as one object. */
bl_code bl_openai_write_reply(const bl_openai_reply *r, const bl_openai_answer *a, const char *finish,
                              const bl_openai_usage *u, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* Server-sent events: BEGIN, one payload above (a single line), END. */
#define BL_OPENAI_SSE_BEGIN "data: "
#define BL_OPENAI_SSE_END   "\n\n"
#define BL_OPENAI_SSE_DONE  "data: [DONE]\n\n"
#define BL_OPENAI_SSE_ALIVE ": keep-alive\n\n" /* a comment, which clients skip */

/* One model object; n_context and the like are extensions beside OpenAI's keys. */
typedef struct {
    const char *id;
    int64_t created;
    uint32_t n_context;
    bool can_chat;
} bl_openai_model;
bl_code bl_openai_write_model(const bl_openai_model *m, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_openai_write_model_list(const bl_openai_model *m, size_t n, bl_buf *ret,
                                   bl_err *err) BL_MUST_CHECK;

#endif
