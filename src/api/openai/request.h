/* Bodies of POST /v1/chat/completions and /v1/completions -> a checked request.
 *
 * Strict where the field is known: wrong type or range is a 400 that names it; a known field that asks for
 * something not built (a forced tool, sound...) is a 400, never silently another answer.
 * Unknown fields are ignored, as OpenAI does.
 */
#ifndef BL_API_OPENAI_REQUEST_H
#define BL_API_OPENAI_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/openai/error.h"
#include "base/ids.h"

#define BL_OPENAI_MAX_DEPTH      64 /* nested arrays and objects of a body; real ones have 5 */
#define BL_OPENAI_MAX_STOPS      16
#define BL_OPENAI_MAX_STOP_BYTES 1024
#define BL_OPENAI_MAX_MESSAGES   4096
#define BL_OPENAI_MAX_TOOLS      256
#define BL_OPENAI_MAX_PROMPT_IDS (4u << 20)
#define BL_OPENAI_MAX_TOP_CHAT   20
#define BL_OPENAI_MAX_TOP_TEXT   5
#define BL_OPENAI_MAX_PRIORITY   10
#define BL_OPENAI_MAX_CACHE_KEY  1024 /* bytes */

#define BL_OPENAI_MAX_BIAS    1024
#define BL_OPENAI_MAX_PATTERN (16u << 10)

typedef enum { BL_OPENAI_CHAT, BL_OPENAI_COMPLETION } bl_openai_kind;

/* response_format */
typedef enum {
    BL_OPENAI_TEXT,
    BL_OPENAI_JSON_OBJECT,
    BL_OPENAI_JSON_SCHEMA,
    BL_OPENAI_REGEX /* our own: {"type": "regex", "pattern": "..."} */
} bl_openai_format;

typedef struct {
    int32_t id;
    float bias; /* -100 to 100 */
} bl_openai_bias;

typedef struct {
    bl_openai_kind kind;
    json_t *root; /* owns what the borrowed pointers below point into */
    const char *model;
    const json_t *messages; /* chat: a non-empty array of {role, content, tool_calls...}, roles checked,
                               "developer" already "system" */
    const json_t *tools;    /* chat: those that may be called; NULL when there are none, or by tool_choice */
    const json_t *template_kwargs; /* chat: an object of template variables, or NULL */
    const char *reasoning_effort;  /* chat: one of OpenAI's words, or NULL */
    bool one_call;                 /* chat: parallel_tool_calls is false */
    const char *prompt;            /* completion by text; NULL when by ids */
    size_t n_prompt_bytes;
    bl_ids prompt_ids; /* completion by ids: each 0..INT32_MAX, the vocabulary is not known here */
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_seed, has_max_tokens;
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty; /* 0: off */
    bl_openai_bias *bias;                                          /* owned; [n_bias], ids 0..INT32_MAX */
    size_t n_bias;
    bl_openai_format format;
    const json_t *schema; /* JSON_SCHEMA: an object or a boolean */
    bool strict_schema;
    const char *pattern; /* REGEX */
    size_t n_pattern;
    bool strict_tools; /* some function of tools says strict */
    uint32_t top_k, max_tokens;
    uint64_t seed;
    const char *stops[BL_OPENAI_MAX_STOPS];
    size_t n_stops;
    int32_t priority;             /* -10..10, 0 without */
    const char *prompt_cache_key; /* borrowed; NULL: none */
    size_t n_prompt_cache_key;
    bool stream, include_usage;
    bool no_draft; /* speculation: off */
    bool logprobs;
    uint32_t n_top_logprobs;
} bl_openai_request;

/* On failure *error says what to send and *ret is untouched. */
bl_code bl_openai_parse(bl_openai_kind kind, const char *body, size_t n, bl_openai_request *ret,
                        bl_openai_error *error) BL_MUST_CHECK;
void bl_openai_request_done(bl_openai_request *r);

#endif
