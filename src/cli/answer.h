/* One answer of a model in the terminal: submits a request, turns tokens into text as they come, stops at
 * stop strings and at Ctrl-C, and keeps everything that was said. Used by run and chat.
 */
#ifndef BL_CLI_ANSWER_H
#define BL_CLI_ANSWER_H

#include <jansson.h>

#include "base/buf.h"
#include "base/ids.h"
#include "bl/bl.h"
#include "chat/chat.h"
#include "cli/options.h"
#include "formats/tokenizer.h"

typedef struct {
    /* filled by the caller */
    bl_engine *engine;
    const bl_tokenizer *tokenizer; /* NULL: no text */
    bl_request request;            /* borrowed arrays */
    const bl_chat *chat;           /* not NULL: the answer is parsed, and reasoning is apart from the text */
    const bl_opt_list *stop;
    bool show_special;                                       /* control tokens appear in the text */
    void (*piece)(void *user, const char *text, size_t n);   /* text as it becomes certain; may be NULL */
    void (*thought)(void *user, const char *text, size_t n); /* reasoning, likewise */
    void *user;
    /* results */
    bl_ids tokens;      /* without the terminating stop id */
    int32_t stop_token; /* -1: none */
    bl_buf text, reasoning;
    const char *finish_reason; /* "stop", "length", "cancelled" */
    json_t *logprobs;          /* list of {id, logprob, top: [...]}, when asked for */
    bl_event end;              /* the FINISHED event */
} bl_cli_answer;

/* Reasoning on its way to a terminal: dimmed, and a blank line behind it. It is for a person who waits: a
 * file or a pipe gets none. */
typedef struct {
    bool is_terminal, color;
    bool open; /* some was shown, and nothing else since */
} bl_cli_thoughts;
void bl_cli_show_thought(bl_cli_thoughts *t, const char *text, size_t n);
/* Before other text; `more` false: at the end of the answer. */
void bl_cli_end_thought(bl_cli_thoughts *t, bool more);

void bl_cli_answer_init(bl_cli_answer *a);
void bl_cli_answer_done(bl_cli_answer *a);
/* Runs to the end. Ctrl-C (bl_cli_interrupted) ends the answer with finish_reason "cancelled", which is no
 * error. */
bl_code bl_cli_answer_run(bl_cli_answer *a, bl_err *err) BL_MUST_CHECK;

/* {prompt_tokens, ttft_ms, prefill_ms, prefill_tps, decode_ms, decode_tps, queue_ms, ...} of a finished
 * answer. */
json_t *bl_cli_answer_timings(const bl_cli_answer *a, double load_ms);
/* "12 prompt tokens at 310/s, first after 40 ms; 64 tokens at 95/s" */
void bl_cli_answer_summary(const bl_cli_answer *a, char *ret, size_t cap);

#endif
