#include "cli/answer.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "chat/stream.h"
#include "cli/common.h"

#define MAX_TEXT   ((size_t)256 << 20)
#define MAX_TOKENS ((size_t)1 << 26)
#define POLL_MS    50 /* how long Ctrl-C may go unnoticed between two tokens */

void bl_cli_answer_init(bl_cli_answer *a) {
    *a = (bl_cli_answer){.stop_token = -1, .finish_reason = "length"};
    bl_request_init(&a->request);
    bl_ids_init(&a->tokens, MAX_TOKENS);
    bl_buf_init(&a->text, MAX_TEXT);
    bl_buf_init(&a->reasoning, MAX_TEXT);
}

void bl_cli_answer_done(bl_cli_answer *a) {
    bl_ids_done(&a->tokens);
    bl_buf_done(&a->text);
    bl_buf_done(&a->reasoning);
    json_decref(a->logprobs);
    a->logprobs = NULL;
}

void bl_cli_show_thought(bl_cli_thoughts *t, const char *text, size_t n) {
    if (!t->is_terminal) {
        return;
    }
    if (!t->open && t->color) {
        fputs("\033[2m", stdout);
    }
    t->open = true;
    (void)bl_cli_write_text(stdout, text, n, true);
}

void bl_cli_end_thought(bl_cli_thoughts *t, bool more) {
    if (t->open) {
        printf("%s%s", t->color ? "\033[0m" : "", more ? "\n\n" : "");
    }
    t->open = false;
}

/* The way of a token's text: stream, parser, sink. */
typedef struct {
    bl_stream *stream; /* NULL: no text */
    bl_parser *parser;
    bl_buf step; /* what the last push gave */
} text_pipe;

static bl_code take_text(void *user, const bl_parsed *ev, bl_err *err) {
    bl_cli_answer *a = user;
    const bool thought = ev->kind == BL_PARSED_REASONING;
    if (!thought && ev->kind != BL_PARSED_CONTENT) {
        return BL_OK; /* no tools are offered here, so there are no calls */
    }
    BL_TRY(bl_buf_append(thought ? &a->reasoning : &a->text, ev->text, ev->n, err));
    void (*show)(void *, const char *, size_t) = thought ? a->thought : a->piece;
    if (show != NULL) {
        show(a->user, ev->text, ev->n);
    }
    return BL_OK;
}

static bl_code pipe_open(bl_cli_answer *a, text_pipe *p, bl_err *err) {
    bl_parser_options o = {.dialect = BL_DIALECT_PLAIN};
    bl_buf_init(&p->step, MAX_TEXT);
    if (a->tokenizer == NULL) {
        return BL_OK;
    }
    BL_TRY(bl_stream_new(a->tokenizer, a->stop != NULL ? a->stop->items : NULL,
                         a->stop != NULL ? a->stop->n : 0, !a->show_special, &p->stream, err));
    if (a->chat != NULL) {
        size_t n = 0;
        const int32_t *markers = bl_chat_markers(a->chat, &n);
        bl_stream_show(p->stream, markers, n);
        o = bl_chat_parser_options(a->chat, a->request.prompt, a->request.n_prompt, NULL);
    }
    o.sink = take_text;
    o.user = a;
    return bl_parser_new(&o, &p->parser, err);
}

static void pipe_close(text_pipe *p) {
    bl_stream_free(p->stream);
    bl_parser_free(p->parser);
    bl_buf_done(&p->step);
}

static bl_code pipe_push(text_pipe *p, int32_t id, bool *ret_over, bl_err *err) {
    BL_TRY(bl_stream_push(p->stream, id, &p->step, ret_over, err));
    BL_TRY(bl_parser_feed(p->parser, bl_buf_str(&p->step), p->step.len, err));
    bl_buf_reset(&p->step);
    return BL_OK;
}

static bl_code pipe_finish(text_pipe *p, bl_err *err) {
    BL_TRY(bl_stream_finish(p->stream, &p->step, err));
    BL_TRY(bl_parser_feed(p->parser, bl_buf_str(&p->step), p->step.len, err));
    return bl_parser_finish(p->parser, err);
}

/* -inf (a token no draw can give) has no form in JSON. */
static json_t *logprob_value(float x) {
    return x > -1e30f ? json_real((double)x) : json_real(-1e30);
}

static bl_code note_logprobs(bl_cli_answer *a, const bl_event *e, bl_err *err) {
    json_t *top = json_array();
    for (uint32_t i = 0; i < e->n_top; i++) {
        (void)json_array_append_new(
            top, json_pack("{s:i, s:o}", "id", e->top[i].id, "logprob", logprob_value(e->top[i].logprob)));
    }
    if (json_array_append_new(a->logprobs, json_pack("{s:i, s:o, s:o}", "id", e->id, "logprob",
                                                     logprob_value(e->logprob), "top", top)) != 0) {
        BL_FAIL(err, BL_ENOMEM, "no memory for log probabilities");
    }
    return BL_OK;
}

/* *ret_over: a stop string was met. */
static bl_code take_token(bl_cli_answer *a, text_pipe *p, const bl_event *e, bool *ret_over, bl_err *err) {
    if (e->is_stop) {
        a->stop_token = e->id;
        return BL_OK;
    }
    BL_TRY(bl_ids_push(&a->tokens, e->id, err));
    if (a->logprobs != NULL) {
        BL_TRY(note_logprobs(a, e, err));
    }
    /* Embeddings are often padded beyond the vocabulary: such ids have no text. */
    size_t len = 0;
    return p->stream != NULL && bl_tokenizer_piece(a->tokenizer, e->id, &len) != NULL
               ? pipe_push(p, e->id, ret_over, err)
               : BL_OK;
}

static bl_code receive(bl_cli_answer *a, bl_session *s, text_pipe *p, bl_err *err) {
    bool over = false, cancelled = false; /* over: the answer has ended for us, the engine may not know yet */
    for (;;) {
        bool got = false;
        BL_TRY(bl_session_next(s, POLL_MS, &a->end, &got, err));
        if (bl_cli_interrupted() && !cancelled) {
            cancelled = true;
            bl_session_cancel(s);
        }
        if (!got) {
            continue;
        }
        switch (a->end.kind) {
        case BL_EVENT_TOKEN:
            if (!over && !cancelled) {
                BL_TRY(take_token(a, p, &a->end, &over, err));
                if (over) {
                    bl_session_cancel(s);
                }
            }
            break;
        case BL_EVENT_FAILED:
            if (err != NULL) {
                *err = a->end.err;
            }
            return a->end.err.code;
        case BL_EVENT_FINISHED:
            if (over || (a->stop_token >= 0 && a->end.finish == BL_FINISH_STOP)) {
                a->finish_reason = "stop";
            } else {
                a->finish_reason = a->end.finish == BL_FINISH_LENGTH ? "length" : "cancelled";
            }
            return BL_OK;
        }
    }
}

bl_code bl_cli_answer_run(bl_cli_answer *a, bl_err *err) {
    bl_session *s = NULL;
    text_pipe p = {0};
    if (a->request.logprobs) {
        a->logprobs = json_array();
    }
    bl_code rc = pipe_open(a, &p, err);
    if (rc == BL_OK) {
        rc = bl_session_submit(a->engine, &a->request, &s, err);
    }
    if (rc == BL_OK) {
        rc = receive(a, s, &p, err);
    }
    if (rc == BL_OK && p.stream != NULL) {
        rc = pipe_finish(&p, err);
    }
    bl_session_free(s);
    pipe_close(&p);
    return rc;
}

static double per_second(uint64_t n, uint64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

json_t *bl_cli_answer_timings(const bl_cli_answer *a, double load_ms) {
    const bl_event *e = &a->end;
    uint32_t n_decode = e->n_output > 0 ? e->n_output - 1 : 0; /* the first token is the prompt's */
    return json_pack("{s:f, s:f, s:f, s:I, s:f, s:f, s:I, s:f, s:f}", "load_ms", load_ms, "queue_ms",
                     (double)e->queue_ns * 1e-6, "ttft_ms", (double)e->ttft_ns * 1e-6, "prompt_tokens",
                     (json_int_t)e->n_prompt, "prefill_ms", (double)e->prefill_ns * 1e-6, "prefill_tps",
                     per_second(e->n_prompt, e->prefill_ns), "output_tokens", (json_int_t)e->n_output,
                     "decode_ms", (double)e->decode_ns * 1e-6, "decode_tps",
                     per_second(n_decode, e->decode_ns));
}

void bl_cli_answer_summary(const bl_cli_answer *a, char *ret, size_t cap) {
    const bl_event *e = &a->end;
    uint32_t n_decode = e->n_output > 0 ? e->n_output - 1 : 0;
    snprintf(ret, cap, "%u prompt tokens at %.0f/s, first token after %.0f ms; %u tokens at %.1f/s",
             e->n_prompt, per_second(e->n_prompt, e->prefill_ns), (double)e->ttft_ns * 1e-6, e->n_output,
             per_second(n_decode, e->decode_ns));
}
