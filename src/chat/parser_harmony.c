/* gpt-oss: messages with a header and a body (spec models.md §11.5).
 *
 *   <|start|>assistant<|channel|>analysis<|message|>...<|end|>
 *   <|start|>assistant to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>{...}<|call|>
 *
 * The recipient may stand behind the channel too. The prompt ends in <|start|>assistant, so an answer begins
 * inside a header. Analysis is reasoning; final, and commentary to nobody, are content; a message to a
 * function is a call when its body is a JSON object. A header that says anything else is text, and its body
 * is content. A message ends at <|end|>, <|call|>, <|return|>, or where the next one starts.
 */
#include <string.h>

#include "base/base.h"
#include "chat/parser_impl.h"

enum { START, END, CALL, RETURN, CHANNEL, MESSAGE, CONSTRAIN };
#define ENDS (1u << END | 1u << CALL | 1u << RETURN)
/* p->state: where a text is, and the two kinds of markup. BODY is what follows a rejected markup. */
enum { BODY = 0, BETWEEN, HEADER, ARGUMENTS };

static uint32_t active(const bl_parser *p) {
    /* between messages a header may come without its <|start|>assistant */
    return ENDS | 1u << START | (p->state == BETWEEN ? 1u << CHANNEL : 0u);
}

static bl_code on_marker(bl_parser *p, size_t m, bl_err *err) {
    if (m == START || m == CHANNEL) {
        p->in_markup = true;
        p->state = HEADER;
        return BL_OK;
    }
    BL_TRY(bl_parser_take(p, err));
    p->state = BETWEEN;
    return bl_parser_become(p, BL_PARSED_CONTENT, err);
}

/* ---- headers ---- */

typedef struct {
    bl_pslice channel, recipient, kind;
} header;

typedef enum { HEADER_MORE, HEADER_DONE, HEADER_BAD } header_state;

/* Length of marker m at s[i]; 0: another text; SIZE_MAX: its beginning, cut off. */
static size_t marker_at(const bl_parser *p, size_t m, size_t i) {
    const bl_pmarker *k = &p->markers[m];
    const size_t n = BL_MIN(p->held.len - i, k->n);
    if (memcmp(p->held.data + i, k->text, n) != 0) {
        return 0;
    }
    return n == k->n ? n : SIZE_MAX;
}

static bool is_word_char(char ch) {
    return (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') ||
           (ch != '\0' && strchr("_-.:/", ch));
}

static bl_pslice word_at(const bl_parser *p, size_t i) {
    size_t from = i;
    while (i < p->held.len && is_word_char(p->held.data[i])) {
        i++;
    }
    return (bl_pslice){from, i - from};
}

/* One of the markers inside a header, at *i. */
static header_state read_marker(const bl_parser *p, size_t *i, header *h, bool *ret_end) {
    static const uint8_t inner[] = {CHANNEL, CONSTRAIN, MESSAGE};
    bool cut = false;
    for (size_t k = 0; k < BL_COUNTOF(inner); k++) {
        size_t n = marker_at(p, inner[k], *i);
        cut = cut || n == SIZE_MAX;
        if (n == 0 || n == SIZE_MAX) {
            continue;
        }
        *i += n;
        if (inner[k] == MESSAGE) {
            *ret_end = true;
        } else if (inner[k] == CHANNEL) {
            if (h->channel.off > 0) {
                return HEADER_BAD;
            }
            h->channel = word_at(p, *i);
            *i += h->channel.n;
        }
        return HEADER_DONE;
    }
    return cut ? HEADER_MORE : HEADER_BAD;
}

/* "to=NAME", or the word that says of what kind the body is. */
static header_state read_word(const bl_parser *p, size_t *i, header *h) {
    static const char to[] = "to=";
    const char *s = p->held.data + *i;
    const size_t left = p->held.len - *i, n = BL_MIN(left, sizeof to - 1);
    if (memcmp(s, to, n) == 0) {
        if (n < sizeof to - 1) {
            return HEADER_MORE;
        }
        if (h->recipient.off > 0) {
            return HEADER_BAD;
        }
        h->recipient = word_at(p, *i + n);
        *i += n + h->recipient.n;
        return HEADER_DONE;
    }
    if (h->kind.off > 0 || h->channel.n + h->recipient.n == 0) {
        return HEADER_BAD;
    }
    h->kind = word_at(p, *i);
    *i += h->kind.n;
    return h->kind.n > 0 ? HEADER_DONE : HEADER_BAD;
}

/* Reads held as a header from its beginning; short enough to do so at every byte. */
static header_state read_header(const bl_parser *p, header *h) {
    static const char role[] = "assistant";
    const char *s = p->held.data;
    size_t i = marker_at(p, START, 0);
    if (i == SIZE_MAX) {
        return HEADER_MORE;
    }
    if (i > 0) {
        size_t n = BL_MIN(p->held.len - i, sizeof role - 1);
        if (memcmp(s + i, role, n) != 0) {
            return HEADER_BAD;
        }
        i += n;
    }
    while (i < p->held.len) {
        bool end = false;
        header_state st = HEADER_DONE;
        if (s[i] == ' ') {
            i++;
        } else if (s[i] == '<' || (unsigned char)s[i] == BL_PARSER_CONTROL) {
            st = read_marker(p, &i, h, &end);
        } else {
            st = read_word(p, &i, h);
        }
        if (st != HEADER_DONE || end) {
            return st;
        }
    }
    return HEADER_MORE;
}

static bool slice_is(const bl_parser *p, bl_pslice s, const char *word) {
    return s.n == strlen(word) && memcmp(p->held.data + s.off, word, s.n) == 0;
}

static bl_code end_header(bl_parser *p, const header *h, bl_err *err) {
    static const char space[] = "functions.";
    const size_t n = sizeof space - 1;
    if (h->recipient.n > n && p->o.calls && memcmp(p->held.data + h->recipient.off, space, n) == 0) {
        p->name = (bl_pslice){h->recipient.off + n, h->recipient.n - n};
        p->args.off = p->held.len;
        p->in_string = p->escaped = false;
        p->state = ARGUMENTS;
        return BL_OK;
    }
    const bool analysis = slice_is(p, h->channel, "analysis");
    const bool said =
        slice_is(p, h->channel, "final") || slice_is(p, h->channel, "commentary") || h->channel.n == 0;
    if (h->recipient.n > 0 || (!analysis && !said)) {
        return bl_parser_reject(p, err);
    }
    p->state = BODY;
    BL_TRY(bl_parser_take(p, err));
    return bl_parser_become(p, analysis ? BL_PARSED_REASONING : BL_PARSED_CONTENT, err);
}

/* ---- the automaton ---- */

static bl_code step_header(bl_parser *p, bl_err *err) {
    header h = {{0, 0}, {0, 0}, {0, 0}};
    header_state st = p->held.len <= BL_PARSER_MAX_HEADER ? read_header(p, &h) : HEADER_BAD;
    if (st == HEADER_DONE) {
        return end_header(p, &h, err);
    }
    if (st == HEADER_BAD) {
        return bl_parser_reject(p, err);
    }
    return BL_OK;
}

static bl_code end_arguments(bl_parser *p, size_t n_marker, bl_err *err) {
    const char *s = p->held.data;
    size_t from = p->args.off, end = p->held.len - n_marker;
    while (from < end && (s[from] == ' ' || s[from] == '\n')) {
        from++;
    }
    while (end > from && (s[end - 1] == ' ' || s[end - 1] == '\n')) {
        end--;
    }
    if (end > from && !bl_jscan_is_object(s + from, end - from)) {
        return bl_parser_reject(p, err);
    }
    BL_TRY(bl_parser_become(p, BL_PARSED_CONTENT, err));
    p->state = BETWEEN;
    return bl_parser_give_call(p, s + p->name.off, p->name.n, end > from ? s + from : "{}",
                               end > from ? end - from : 2, err);
}

/* A message's end among the arguments. Characters inside a string are none, a control token is anywhere. */
static size_t end_at(const bl_parser *p) {
    size_t m = START;
    while (m <= RETURN && !(bl_parser_ends_in(p, m) &&
                            (!p->in_string || (unsigned char)p->markers[m].text[0] == BL_PARSER_CONTROL))) {
        m++;
    }
    return m;
}

static bl_code step_arguments(bl_parser *p, char ch, bl_err *err) {
    const size_t m = ch == '>' ? end_at(p) : RETURN + 1;
    if (m == START) { /* the end is missing */
        return bl_parser_reject(p, err);
    }
    if (m <= RETURN) {
        return end_arguments(p, p->markers[m].n, err);
    }
    if (p->in_string) {
        p->in_string = p->escaped || ch != '"';
        p->escaped = !p->escaped && ch == '\\';
    } else {
        p->in_string = ch == '"';
    }
    return BL_OK;
}

static bl_code step(bl_parser *p, bl_err *err) {
    if (p->state == ARGUMENTS) {
        return step_arguments(p, p->held.data[p->held.len - 1], err);
    }
    return step_header(p, err);
}

static void start_header(bl_parser *p) {
    p->in_markup = true;
    p->state = HEADER;
}

const bl_pdialect bl_pdialect_harmony = {active, on_marker, step, false, start_header};
