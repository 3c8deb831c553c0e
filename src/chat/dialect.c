/* Which dialect a checkpoint's answers are in: read off the markers in its chat template, and its vocabulary.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"

/* As many tokens of the prompt's end as an opening takes, and more. */
#define TAIL_IDS 16

static bool has(const bl_chat_sources *s, const char *text) {
    size_t n = strlen(text);
    return (s->main.len > 0 && memmem(s->main.data, s->main.len, text, n)) ||
           (s->tool_use.len > 0 && memmem(s->tool_use.data, s->tool_use.len, text, n));
}

/* The first row whose markers are all in the template. */
static bl_dialect choose(const bl_chat_sources *s, const char **ret_seen) {
    static const struct {
        bl_dialect dialect;
        const char *markers[3], *seen;
    } rows[] = {
        {BL_DIALECT_GEMMA4, {"<|channel>", "<|turn>"}, "the template writes <|turn> and <|channel>"},
        {BL_DIALECT_HARMONY,
         {"<|start|>", "<|channel|>", "<|message|>"},
         "the template writes <|start|>, <|channel|> and <|message|>"},
        {BL_DIALECT_QWEN_XML,
         {"<|im_start|>", "<tool_call>", "<function="},
         "the template writes <|im_start|> and prescribes <tool_call> with <function=...>"},
        {BL_DIALECT_QWEN_JSON,
         {"<|im_start|>", "<tool_call>"},
         "the template writes <|im_start|> and prescribes <tool_call> with JSON"},
        {BL_DIALECT_QWEN_JSON, {"<|im_start|>", "</think>"}, "the template writes <|im_start|> and </think>"},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bool all = true;
        for (size_t k = 0; k < 3 && rows[i].markers[k]; k++) {
            all = all && has(s, rows[i].markers[k]);
        }
        if (all) {
            *ret_seen = rows[i].seen;
            return rows[i].dialect;
        }
    }
    *ret_seen = s->main.len > 0 ? "the template writes no markers of a known dialect"
                                : "the checkpoint ships no chat template";
    return BL_DIALECT_PLAIN;
}

void bl_chat_choose_dialect(bl_chat *c, const bl_chat_sources *s) {
    bl_chat_features *f = &c->features;
    const char *seen = NULL;
    size_t n = 0, n_tokens = 0;
    f->dialect = choose(s, &seen);
    const char *const *markers = bl_dialect_markers(f->dialect, &n);
    for (size_t m = 0; m < n; m++) {
        int32_t id = bl_tokenizer_id(c->tokenizer, markers[m], strlen(markers[m]));
        n_tokens += id >= 0;
        if (id >= 0 && bl_tokenizer_is_special(c->tokenizer, id)) {
            c->control |= 1u << m;
            c->markers[c->n_markers++] = id;
        }
    }
    if (n > 0) {
        (void)snprintf(f->reason, sizeof f->reason,
                       "%s; of its %zu markers %zu are tokens, %zu of them control", seen, n, n_tokens,
                       c->n_markers);
    } else {
        (void)snprintf(f->reason, sizeof f->reason, "%s", seen);
    }
    /* where the answer ends so that a tool can run, or at all, whatever the configuration lists */
    if (f->dialect == BL_DIALECT_GEMMA4) {
        bl_chat_add_stop(c, bl_chat_control_id(c, "<|tool_response>"), BL_STOP_DIALECT);
    } else if (f->dialect == BL_DIALECT_HARMONY) {
        bl_chat_add_stop(c, bl_chat_control_id(c, "<|call|>"), BL_STOP_DIALECT);
        bl_chat_add_stop(c, bl_chat_control_id(c, "<|return|>"), BL_STOP_DIALECT);
    }
    const bl_jinja *t[] = {c->main, c->tool_use};
    for (size_t i = 0; i < BL_COUNTOF(t); i++) {
        f->tools = f->tools || (t[i] && bl_jinja_mentions(t[i], "tools"));
        f->thinking_switch = f->thinking_switch || (t[i] && bl_jinja_mentions(t[i], "enable_thinking"));
        f->reasoning_effort = f->reasoning_effort || (t[i] && bl_jinja_mentions(t[i], "reasoning_effort"));
    }
}

/* ---- what a prompt leaves open ---- */

static bool ends(const char *text, size_t n, const char *with) {
    size_t len = strlen(with);
    return n >= len && memcmp(text + n - len, with, len) == 0;
}

bl_parser_start bl_chat_start_of_text(bl_dialect d, const char *text, size_t n) {
    if (d == BL_DIALECT_HARMONY) {
        return ends(text, n, "<|start|>assistant") ? BL_START_HEADER : BL_START_TEXT;
    }
    while (n > 0 && text[n - 1] == '\n') {
        n--;
    }
    const bool qwen = d == BL_DIALECT_QWEN_JSON || d == BL_DIALECT_QWEN_XML;
    if ((qwen && ends(text, n, "<think>")) ||
        (d == BL_DIALECT_GEMMA4 && ends(text, n, "<|channel>thought"))) {
        return BL_START_REASONING;
    }
    return BL_START_TEXT;
}

bl_parser_options bl_chat_parser_options(const bl_chat *c, const int32_t *prompt, size_t n_prompt,
                                         const json_t *tools) {
    bl_parser_options o = {.dialect = c->features.dialect, .control = c->control};
    o.calls = json_is_array(tools) && json_array_size(tools) > 0;
    o.tools = o.calls ? tools : NULL;
    bl_buf tail;
    bl_buf_init(&tail, 1 << 16);
    bool good = o.dialect != BL_DIALECT_PLAIN && c->tokenizer;
    for (size_t i = n_prompt - BL_MIN(n_prompt, (size_t)TAIL_IDS); i < n_prompt && good; i++) {
        size_t len = 0;
        good = !bl_tokenizer_piece(c->tokenizer, prompt[i], &len) ||
               bl_tokenizer_token_bytes(c->tokenizer, prompt[i], false, false, &tail, NULL) == BL_OK;
    }
    o.start = good ? bl_chat_start_of_text(o.dialect, bl_buf_str(&tail), tail.len) : BL_START_TEXT;
    bl_buf_done(&tail);
    return o;
}
