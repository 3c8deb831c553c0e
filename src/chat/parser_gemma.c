/* Gemma 4: <|channel>thought\n...<channel|> and <|tool_call>call:NAME{...}<tool_call|> (spec models.md
 * §11.2).
 *
 * The arguments' notation: keys without quotes, strings between <|"|> markers with nothing escaped, numbers,
 * true, false, null, nested {} and []. Keys between markers and strings as JSON writes them are taken too.
 * Inside a string every other marker is text.
 */
#include <string.h>

#include "base/base.h"
#include "chat/parser_impl.h"

enum { CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE };
/* States of markup. */
enum { CHANNEL_NAME, HEAD, NAME, ARGS, END };

static uint32_t active(const bl_parser *p) {
    if (p->kind == BL_PARSED_REASONING) {
        return 1u << CHANNEL_END;
    }
    return 1u << CHANNEL | (p->o.calls ? 1u << CALL : 0u);
}

static bl_code on_marker(bl_parser *p, size_t m, bl_err *err) {
    if (m == CHANNEL_END) {
        BL_TRY(bl_parser_take(p, err));
        return bl_parser_become(p, BL_PARSED_CONTENT, err);
    }
    p->in_markup = true;
    p->state = m == CHANNEL ? CHANNEL_NAME : HEAD;
    p->mark = p->held.len;
    return BL_OK;
}

/* ---- arguments ---- */

typedef struct {
    const bl_parser *p;
    const char *s;
    size_t n, i;
    bl_buf *out;
    bl_err *err;
    bl_code rc; /* of out */
} notation;

static void skip_space(notation *a) {
    while (a->i < a->n &&
           (a->s[a->i] == ' ' || a->s[a->i] == '\n' || a->s[a->i] == '\t' || a->s[a->i] == '\r')) {
        a->i++;
    }
}

static bool out(notation *a, const char *s, size_t n) {
    a->rc = a->rc == BL_OK ? bl_buf_append(a->out, s, n, a->err) : a->rc;
    return a->rc == BL_OK;
}

static bool quoted(notation *a, const char *s, size_t n) {
    a->rc = a->rc == BL_OK ? bl_jscan_quote(s, n, a->out, a->err) : a->rc;
    return a->rc == BL_OK;
}

static bool at_quote(const notation *a) {
    const bl_pmarker *q = &a->p->markers[QUOTE];
    return a->n - a->i >= q->n && memcmp(a->s + a->i, q->text, q->n) == 0;
}

/* A string of either form; false when there is none, or it does not end. */
static bool string(notation *a) {
    const bl_pmarker *q = &a->p->markers[QUOTE];
    if (at_quote(a)) {
        const char *from = a->s + a->i + q->n;
        const char *to = memmem(from, a->n - a->i - q->n, q->text, q->n);
        if (!to) {
            return false;
        }
        a->i = (size_t)(to - a->s) + q->n;
        return quoted(a, from, (size_t)(to - from));
    }
    if (a->i < a->n && a->s[a->i] == '"') {
        size_t from = a->i, end = bl_jscan_value(a->s, a->n, a->i, 1);
        if (end == SIZE_MAX) {
            return false;
        }
        a->i = end;
        return out(a, a->s + from, end - from);
    }
    return false;
}

static bool key(notation *a) {
    size_t from = a->i;
    if (at_quote(a) || (a->i < a->n && a->s[a->i] == '"')) {
        return string(a);
    }
    while (a->i < a->n && !strchr(":,{}[]<>\"\n", a->s[a->i]) && a->s[a->i] != '\0' &&
           (unsigned char)a->s[a->i] != BL_PARSER_CONTROL) {
        a->i++;
    }
    size_t end = a->i;
    while (end > from && a->s[end - 1] == ' ') {
        end--;
    }
    return end > from && end - from <= BL_PARSER_MAX_NAME && quoted(a, a->s + from, end - from);
}

static bool value(notation *a, unsigned depth);

static bool member(notation *a, bool object, unsigned depth) {
    if (object) {
        if (!key(a)) {
            return false;
        }
        skip_space(a);
        if (a->i >= a->n || a->s[a->i] != ':') {
            return false;
        }
        a->i++;
        if (!out(a, ": ", 2)) {
            return false;
        }
    }
    return value(a, depth);
}

static bool group(notation *a, unsigned depth) {
    const bool object = a->s[a->i] == '{';
    const char close = object ? '}' : ']';
    if (depth == 0 || !out(a, a->s + a->i++, 1)) {
        return false;
    }
    skip_space(a);
    for (bool first = true; a->i < a->n && a->s[a->i] != close; first = false) {
        if (!first && (a->s[a->i++] != ',' || !out(a, ", ", 2))) {
            return false;
        }
        skip_space(a);
        if (!member(a, object, depth - 1)) {
            return false;
        }
        skip_space(a);
    }
    return a->i < a->n && out(a, a->s + a->i++, 1);
}

static bool value(notation *a, unsigned depth) {
    static const char *const words[] = {"true", "false", "null"};
    skip_space(a);
    if (a->i >= a->n) {
        return false;
    }
    if (a->s[a->i] == '{' || a->s[a->i] == '[') {
        return group(a, depth);
    }
    size_t len = bl_jscan_number(a->s, a->n, a->i);
    for (size_t k = 0; k < BL_COUNTOF(words) && len == 0; k++) {
        size_t n = strlen(words[k]);
        len = a->n - a->i >= n && memcmp(a->s + a->i, words[k], n) == 0 ? n : 0;
    }
    if (len > 0) {
        a->i += len;
        return out(a, a->s + a->i - len, len);
    }
    return string(a);
}

static bl_code give_call(bl_parser *p, bl_err *err) {
    bl_buf args;
    bl_buf_init(&args, 8 * BL_PARSER_MAX_CALL);
    notation a = {
        .p = p, .s = p->held.data + p->args.off, .n = p->args.n, .out = &args, .err = err, .rc = BL_OK};
    bool good = value(&a, BL_PARSER_MAX_DEPTH) && a.i == a.n;
    bl_code rc = a.rc;
    if (rc == BL_OK) {
        rc = good ? bl_parser_give_call(p, p->held.data + p->name.off, p->name.n, args.data, args.len, err)
                  : bl_parser_reject(p, err);
    }
    bl_buf_done(&args);
    return rc;
}

/* ---- the automaton ---- */

enum { NO_STRING, IN_STRING, ESCAPED }; /* p->lit: a string as JSON writes it */

static bl_code step_args(bl_parser *p, char ch) {
    const bool quote = ch == '>' && bl_parser_ends_in(p, QUOTE);
    if (p->in_string) { /* between markers */
        p->in_string = !quote;
        return BL_OK;
    }
    if (p->lit != NO_STRING) {
        p->lit = p->lit == ESCAPED ? IN_STRING : ch == '\\' ? ESCAPED : ch == '"' ? NO_STRING : IN_STRING;
        return BL_OK;
    }
    p->in_string = quote;
    if (ch == '"' && !bl_parser_ends(p, "<|\"", 3)) { /* not the one in the marker */
        p->lit = IN_STRING;
    }
    p->depth += ch == '{' || ch == '[';
    p->depth -= ch == '}' || ch == ']';
    if (p->depth == 0) {
        p->args.n = p->held.len - p->args.off;
        p->state = END;
        p->mark = p->held.len;
    }
    return BL_OK;
}

static bl_code step_name(bl_parser *p, char ch, bl_err *err) {
    const size_t n = p->held.len - 1 - p->mark;
    if (ch == '{' && n > 0) {
        p->name = (bl_pslice){p->mark, n};
        p->args.off = p->held.len - 1;
        p->depth = 1;
        p->in_string = false;
        p->lit = NO_STRING;
        p->state = ARGS;
        return BL_OK;
    }
    const bool bad = bl_parser_odd_in_name(ch) || strchr("<>{}\"", ch);
    return bad || n > BL_PARSER_MAX_NAME ? bl_parser_reject(p, err) : BL_OK;
}

/* "thought" and the end of its line; the channel may also be closed at once. */
static bl_code step_channel(bl_parser *p, bl_err *err) {
    static const char thought[] = "thought";
    const char *s = p->held.data + p->mark;
    const size_t n = p->held.len - p->mark, n_thought = sizeof thought - 1;
    if (n <= n_thought) {
        return memcmp(s, thought, n) == 0 ? BL_OK : bl_parser_reject(p, err);
    }
    if (s[n_thought] == '\n') {
        BL_TRY(bl_parser_take(p, err));
        return bl_parser_become(p, BL_PARSED_REASONING, err);
    }
    const bl_pmarker *end = &p->markers[CHANNEL_END];
    if (n - n_thought > end->n || memcmp(s + n_thought, end->text, n - n_thought) != 0) {
        return bl_parser_reject(p, err);
    }
    return n - n_thought == end->n ? bl_parser_take(p, err) : BL_OK;
}

static bl_code step_literal(bl_parser *p, bl_err *err) {
    const char *const head[] = {"call:"}, *const end[] = {p->markers[CALL_END].text};
    size_t which = 0;
    switch (bl_parser_literal(p, p->state == HEAD ? head : end, 1, &which)) {
    case BL_LIT_MORE:
        return BL_OK;
    case BL_LIT_BAD:
        return bl_parser_reject(p, err);
    default:
        break;
    }
    if (p->state == END) {
        return give_call(p, err);
    }
    p->state = NAME;
    p->mark = p->held.len;
    return BL_OK;
}

static bl_code step(bl_parser *p, bl_err *err) {
    const char ch = p->held.data[p->held.len - 1];
    switch (p->state) {
    case CHANNEL_NAME:
        return step_channel(p, err);
    case NAME:
        return step_name(p, ch, err);
    case ARGS:
        return step_args(p, ch);
    default:
        return step_literal(p, err);
    }
}

const bl_pdialect bl_pdialect_gemma = {active, on_marker, step, true, NULL};
