/* The part that all dialects share: text with markers in it, and the events. Text states look for markers
 * byte by byte; what may still become one is held. */
#include "chat/parser.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "chat/parser_impl.h"

/* A rejected markup is read again from its last '<' when that is at most this near: the beginning of the
 * longest marker. So rejecting costs no more than the bytes that were held. */
#define REREAD_BYTES 24
/* held stays below its maximum, for the automata reject before. */
#define HELD_MAX (BL_PARSER_MAX_CALL + 256)

/* Text of one event. */
#define OUT_MAX ((size_t)4096)

static const char *const names[BL_DIALECT__MAX] = {"plain", "qwen-json", "qwen-xml", "gemma4", "harmony"};

/* The order is known to the automata. */
static const char *const qwen_markers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
static const char *const gemma_markers[] = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                                            "<|\"|>"};
static const char *const harmony_markers[] = {"<|start|>",   "<|end|>",     "<|call|>",     "<|return|>",
                                              "<|channel|>", "<|message|>", "<|constrain|>"};

const char *bl_dialect_name(bl_dialect d) {
    return names[d];
}

const char *const *bl_dialect_markers(bl_dialect d, size_t *ret_n) {
    switch (d) {
    case BL_DIALECT_QWEN_JSON:
    case BL_DIALECT_QWEN_XML:
        *ret_n = BL_COUNTOF(qwen_markers);
        return qwen_markers;
    case BL_DIALECT_GEMMA4:
        *ret_n = BL_COUNTOF(gemma_markers);
        return gemma_markers;
    case BL_DIALECT_HARMONY:
        *ret_n = BL_COUNTOF(harmony_markers);
        return harmony_markers;
    default:
        *ret_n = 0;
        return NULL;
    }
}

/* ---- events ---- */

static bl_code give(bl_parser *p, bl_parsed_kind kind, const char *text, size_t n, bl_err *err) {
    const bl_parsed ev = {.kind = kind, .call = p->n_calls, .text = text, .n = n};
    return p->o.sink(p->o.user, &ev, err);
}

static bl_code flush(bl_parser *p, bl_err *err) {
    if (p->out.len == 0) {
        return BL_OK;
    }
    BL_TRY(give(p, p->kind, p->out.data, p->out.len, err));
    bl_buf_reset(&p->out);
    return BL_OK;
}

/* Certain text of the present kind. */
static bl_code put(bl_parser *p, const char *text, size_t n, bl_err *err) {
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] == BL_PARSER_CONTROL) {
            continue;
        }
        /* between characters, unless there are none */
        if (p->out.len >= OUT_MAX || (p->out.len >= OUT_MAX - 8 && ((unsigned char)text[i] & 0xc0) != 0x80)) {
            BL_TRY(flush(p, err));
        }
        BL_TRY(bl_buf_append_char(&p->out, text[i], err));
        p->fresh = p->fresh && (p->kind != BL_PARSED_CONTENT || text[i] == '\n');
    }
    return BL_OK;
}

static bl_code put_markup(bl_parser *p, const char *text, size_t n, bl_err *err) {
    BL_TRY(flush(p, err));
    return n > 0 ? give(p, BL_PARSED_MARKUP, text, n, err) : BL_OK;
}

bl_code bl_parser_become(bl_parser *p, bl_parsed_kind kind, bl_err *err) {
    if (kind != p->kind) {
        BL_TRY(flush(p, err));
        p->kind = kind;
    }
    return BL_OK;
}

bl_code bl_parser_take(bl_parser *p, bl_err *err) {
    BL_TRY(put_markup(p, p->held.data, p->held.len, err));
    bl_buf_reset(&p->held);
    p->in_markup = false;
    p->eat_newlines = p->d->newlines;
    return BL_OK;
}

bl_code bl_parser_give_call(bl_parser *p, const char *name, size_t n_name, const char *args, size_t n_args,
                            bl_err *err) {
    BL_TRY(put_markup(p, p->held.data, p->held.len, err));
    BL_TRY(give(p, BL_PARSED_CALL_BEGIN, name, n_name, err));
    BL_TRY(give(p, BL_PARSED_CALL_ARGUMENTS, args, n_args, err));
    BL_TRY(give(p, BL_PARSED_CALL_END, "", 0, err));
    p->n_calls++;
    p->fresh = true;
    bl_buf_reset(&p->held);
    p->in_markup = false;
    p->eat_newlines = p->d->newlines;
    return BL_OK;
}

/* ---- what the automata ask ---- */

bool bl_parser_odd_in_name(char ch) {
    return (unsigned char)ch < 0x20 || (unsigned char)ch == BL_PARSER_CONTROL;
}

bool bl_parser_ends(const bl_parser *p, const char *s, size_t n) {
    return p->held.len >= n && memcmp(p->held.data + p->held.len - n, s, n) == 0;
}

bool bl_parser_ends_in(const bl_parser *p, size_t m) {
    return bl_parser_ends(p, p->markers[m].text, p->markers[m].n);
}

bl_plit bl_parser_literal(bl_parser *p, const char *const *lits, size_t n_lits, size_t *ret_which) {
    const char *s = p->held.data + p->mark;
    size_t n = p->held.len - p->mark;
    if (n == 1 && (s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || s[0] == '\r')) {
        p->mark++;
        return BL_LIT_MORE;
    }
    for (size_t i = 0; i < n_lits; i++) {
        size_t len = strlen(lits[i]);
        if (n <= len && memcmp(s, lits[i], n) == 0) {
            *ret_which = i;
            return n == len ? BL_LIT_DONE : BL_LIT_MORE;
        }
    }
    return BL_LIT_BAD;
}

/* ---- text with markers ---- */

/* The marker that s spells whole, or n_markers; *ret_more: s is the beginning of one. */
static size_t match(const bl_parser *p, uint32_t active, const char *s, size_t n, bool *ret_more) {
    *ret_more = false;
    for (size_t m = 0; m < p->n_markers; m++) {
        const bl_pmarker *k = &p->markers[m];
        if ((active >> m & 1) != 0 && n <= k->n && memcmp(s, k->text, n) == 0) {
            if (n == k->n) {
                return m;
            }
            *ret_more = true;
        }
    }
    return p->n_markers;
}

static bl_code release(bl_parser *p, size_t n, bl_err *err) {
    BL_TRY(put(p, p->held.data, n, err));
    bl_buf_consume(&p->held, n);
    return BL_OK;
}

/* In a text state: gives out what cannot be part of a marker. */
static bl_code settle(bl_parser *p, bl_err *err) {
    while (p->held.len > 0) {
        size_t nl = 0;
        bool more;
        while (p->d->newlines && nl < p->held.len && p->held.data[nl] == '\n') {
            nl++;
        }
        if (nl == p->held.len) {
            return nl > BL_PARSER_MAX_NEWLINES ? release(p, 1, err) : BL_OK;
        }
        size_t m = match(p, p->d->active(p), p->held.data + nl, p->held.len - nl, &more);
        if (m < p->n_markers) {
            return p->d->on_marker(p, m, err);
        }
        if (more) {
            return BL_OK;
        }
        BL_TRY(release(p, nl + 1, err));
    }
    return BL_OK;
}

static bl_code text_byte(bl_parser *p, char ch, bl_err *err) {
    if (p->eat_newlines && ch == '\n' && p->held.len == 0) {
        return put_markup(p, &ch, 1, err);
    }
    p->eat_newlines = false;
    bool plain = ch != '<' && (unsigned char)ch != BL_PARSER_CONTROL && (ch != '\n' || !p->d->newlines);
    if (plain && p->held.len == 0) {
        return put(p, &ch, 1, err);
    }
    BL_TRY(bl_buf_append_char(&p->held, ch, err));
    return settle(p, err);
}

static bl_code markup_byte(bl_parser *p, char ch, bl_err *err) {
    BL_TRY(bl_buf_append_char(&p->held, ch, err));
    return p->held.len > BL_PARSER_MAX_CALL ? bl_parser_reject(p, err) : p->d->step(p, err);
}

static bl_code byte(bl_parser *p, char ch, bl_err *err) {
    return p->in_markup ? markup_byte(p, ch, err) : text_byte(p, ch, err);
}

/* Where in held a marker may begin, newlines in front of it included; not at 0, which was tried. */
static size_t find_tail(const bl_parser *p) {
    const char *s = p->held.data;
    const size_t n = p->held.len, least = n > REREAD_BYTES ? n - REREAD_BYTES : 1;
    size_t from = n;
    while (from > least && s[from - 1] != '<' && (unsigned char)s[from - 1] != BL_PARSER_CONTROL) {
        from--;
    }
    if (from <= least) {
        return n;
    }
    from--;
    if (from > least && (unsigned char)s[from - 1] == BL_PARSER_CONTROL) {
        from--;
    }
    while (from > least && p->d->newlines && s[from - 1] == '\n') {
        from--;
    }
    return from;
}

bl_code bl_parser_reject(bl_parser *p, bl_err *err) {
    char tail[REREAD_BYTES];
    const size_t n = p->held.len, from = find_tail(p);
    memcpy(tail, p->held.data + from, n - from);
    p->in_markup = false;
    p->eat_newlines = false;
    p->state = 0;
    BL_TRY(bl_parser_become(p, BL_PARSED_CONTENT, err)); /* markup begins where content is due */
    BL_TRY(put(p, p->held.data, from, err));
    bl_buf_reset(&p->held);
    for (size_t i = 0; i < n - from; i++) {
        BL_TRY(byte(p, tail[i], err));
    }
    return BL_OK;
}

/* ---- the interface ---- */

static const bl_pdialect *dialect_of(bl_dialect d) {
    switch (d) {
    case BL_DIALECT_QWEN_JSON:
    case BL_DIALECT_QWEN_XML:
        return &bl_pdialect_qwen;
    case BL_DIALECT_GEMMA4:
        return &bl_pdialect_gemma;
    case BL_DIALECT_HARMONY:
        return &bl_pdialect_harmony;
    default:
        return NULL;
    }
}

bl_code bl_parser_new(const bl_parser_options *o, bl_parser **ret, bl_err *err) {
    bl_parser *p = bl_alloc(sizeof *p);
    size_t n = 0;
    if (!p) {
        BL_FAIL(err, BL_ENOMEM, "parser: out of memory");
    }
    p->o = *o;
    p->tools = o->tools ? json_incref((json_t *)(uintptr_t)o->tools) : NULL;
    p->d = dialect_of(o->dialect);
    bl_buf_init(&p->held, HELD_MAX);
    bl_buf_init(&p->out, OUT_MAX);
    const char *const *texts = bl_dialect_markers(o->dialect, &n);
    for (size_t m = 0; m < n; m++) {
        const bool control = (o->control >> m & 1) != 0;
        (void)snprintf(p->markers[m].text, sizeof p->markers[m].text, "%s%s", control ? "\xff" : "",
                       texts[m]);
        p->markers[m].n = strlen(p->markers[m].text);
    }
    p->n_markers = n;
    p->kind = o->start == BL_START_REASONING ? BL_PARSED_REASONING : BL_PARSED_CONTENT;
    p->fresh = true;
    p->eat_newlines = o->start == BL_START_REASONING;
    if (o->start == BL_START_HEADER && p->d && p->d->start_header) {
        p->d->start_header(p);
    }
    *ret = p;
    return BL_OK;
}

void bl_parser_free(bl_parser *p) {
    if (!p) {
        return;
    }
    json_decref(p->tools);
    bl_buf_done(&p->held);
    bl_buf_done(&p->out);
    bl_free(p);
}

static bl_code feed(bl_parser *p, const char *text, size_t n, bl_err *err) {
    if (!p->d) {
        BL_TRY(put(p, text, n, err));
        return flush(p, err);
    }
    for (size_t i = 0; i < n; i++) {
        BL_TRY(byte(p, text[i], err));
    }
    return flush(p, err);
}

bl_code bl_parser_feed(bl_parser *p, const char *text, size_t n, bl_err *err) {
    if (p->failed || p->finished) {
        return BL_OK;
    }
    bl_code rc = feed(p, text, n, err);
    p->failed = rc != BL_OK;
    return rc;
}

bl_code bl_parser_finish(bl_parser *p, bl_err *err) {
    if (p->failed || p->finished) {
        return BL_OK;
    }
    p->finished = true;
    bl_code rc = put(p, bl_buf_str(&p->held), p->held.len, err);
    rc = rc == BL_OK ? flush(p, err) : rc;
    p->failed = rc != BL_OK;
    return rc;
}

uint32_t bl_parser_n_calls(const bl_parser *p) {
    return p->n_calls;
}
