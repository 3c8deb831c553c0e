#include "formats/tokenizer_regex.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/base.h"
#include "base/buf.h"
#include "formats/unicode_data.h"

struct bl_tokenizer_regex { /* [immutable after open] */
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct bl_tokenizer_scan { /* [one thread] */
    pcre2_general_context *memory;
    pcre2_match_context *match;
    pcre2_match_data *data;
    pcre2_jit_stack *stack; /* made when an expression asks for more than the default 32 KiB */
    uint64_t budget;        /* steps left beyond each search's first */
};

/* A search may take FIRST_STEPS; one that needs more is run again with GROWTH times as many, which is charged
 * to the scan. Patterns of real tokenizers take a few steps per character of a run and stay far below the
 * budget; a pattern that backtracks without end uses it up in time linear in the text. */
enum {
    FIRST_STEPS = 4096,
    GROWTH = 16,
    BUDGET_BASE = 16 << 20,
    BUDGET_PER_BYTE = 1024,
    HEAP_LIMIT_KIB = 256 * 1024,
    JIT_STACK_MAX = 16 << 20
};

static void *regex_alloc(size_t n, void *user) {
    (void)user;
    return bl_alloc(n);
}

static void regex_release(void *p, void *user) {
    (void)user;
    bl_free(p);
}

/* ---- translation ------------------------------------------------------------------------------------- */

typedef struct {
    const char *p;
    size_t n, i;
    bool in_class;
    bl_buf *out;
} translation;

/* White_Space: PCRE2's \s also takes U+180E, Oniguruma's does not. */
static const char spaces[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{"
                             "2029}\\x{202f}\\x{205f}\\x{3000}";
static const char not_spaces[] =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-"
    "\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

static char peek(const translation *t, size_t ahead) {
    return t->i + ahead < t->n ? t->p[t->i + ahead] : '\0';
}

static bool starts(const translation *t, const char *s) {
    size_t len = strlen(s);
    return t->n - t->i >= len && memcmp(t->p + t->i, s, len) == 0;
}

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The code points of a category (one letter: all of its kind) that the reference knows and PCRE2's Unicode
 * may not. */
static bl_code emit_newer(translation *t, const char *category, size_t n, bl_err *err) {
    for (size_t i = 0; i < bl_unicode_n_newer; i++) {
        const bl_unicode_range *r = &bl_unicode_newer[i];
        if (n <= 2 && memcmp(r->category, category, n) == 0) {
            BL_TRY(bl_buf_printf(t->out, err, "\\x{%x}-\\x{%x}", (unsigned)r->first, (unsigned)r->last));
        }
    }
    return BL_OK;
}

/* Opens a class for a shorthand that stands alone; inside a class nothing is opened, but a hyphen on either
 * side, which would read as a range once the shorthand is spelled out, is refused. `after`: bytes of the
 * shorthand from i on. */
static bl_code open_set(translation *t, bool negative, size_t after, bl_err *err) {
    if (!t->in_class) {
        return bl_buf_append_str(t->out, negative ? "[^" : "[", err);
    }
    bool range_before = t->i >= 3 && t->p[t->i - 2] == '-' && t->p[t->i - 3] != '[' && t->p[t->i - 3] != '^';
    if (range_before || (peek(t, after) == '-' && peek(t, after + 1) != ']')) {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: a range next to a shorthand at byte %zu", t->i);
    }
    return BL_OK;
}

static bl_code close_set(translation *t, bl_err *err) {
    return t->in_class ? BL_OK : bl_buf_append_char(t->out, ']', err);
}

static bl_code emit_spaces(translation *t, bool negative, bl_err *err) {
    BL_TRY(open_set(t, negative && !t->in_class, 1, err));
    BL_TRY(bl_buf_append_str(t->out, negative && t->in_class ? not_spaces : spaces, err));
    return close_set(t, err);
}

/* Alphabetic, Mark, Decimal_Number, Connector_Punctuation, as in UTS #18; PCRE2's \w differs. Standing alone,
 * Oniguruma's also takes the superscripts and fractions of Latin-1. */
static bl_code emit_words(translation *t, bool negative, bl_err *err) {
    static const char *const categories[] = {"L", "M", "Nd", "Nl", "Pc"};
    static const char other_alphabetic[] =
        "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
    BL_TRY(open_set(t, negative, 1, err));
    BL_TRY(bl_buf_append_str(t->out, t->in_class ? "" : "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}", err));
    BL_TRY(bl_buf_append_str(t->out, other_alphabetic, err));
    for (size_t i = 0; i < BL_COUNTOF(categories); i++) {
        BL_TRY(emit_newer(t, categories[i], strlen(categories[i]), err));
        BL_TRY(bl_buf_printf(t->out, err, "\\p{%s}", categories[i]));
    }
    return close_set(t, err);
}

/* A category or, with a longer name, a script (of PCRE2's Unicode version). `after` as in open_set. */
static bl_code emit_category(translation *t, const char *name, size_t n, bool negative, size_t after,
                             bl_err *err) {
    const char *kind = n > 2 ? "sc:" : "";
    BL_TRY(open_set(t, negative, after, err));
    if (t->in_class && negative) { /* keeps PCRE2's Unicode version: a class cannot say "without" */
        return bl_buf_printf(t->out, err, "\\P{%s%.*s}", kind, (int)n, name);
    }
    BL_TRY(emit_newer(t, name, n, err));
    BL_TRY(bl_buf_printf(t->out, err, "\\p{%s%.*s}", kind, (int)n, name));
    return close_set(t, err);
}

/* \p{Name} \P{Name} \p{^Name}. i is at the 'p'. */
static bl_code emit_property(translation *t, bl_err *err) {
    bool negative = t->p[t->i] == 'P';
    size_t at = t->i + 2, len = 0;
    if (peek(t, 1) != '{') {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: property without braces at byte %zu", t->i);
    }
    if (at < t->n && t->p[at] == '^') {
        negative = !negative;
        at++;
    }
    while (at + len < t->n && (is_alnum(t->p[at + len]) || t->p[at + len] == '_')) {
        len++;
    }
    if (len == 0 || len > 32 || at + len >= t->n || t->p[at + len] != '}') {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: property name at byte %zu", t->i);
    }
    BL_TRY(emit_category(t, t->p + at, len, negative, at + len + 1 - t->i, err));
    t->i = at + len;
    return BL_OK;
}

/* \xHH below 80, \x{H...}, \uHHHH. i is at the letter. */
static bl_code emit_code(translation *t, bl_err *err) {
    bool braces = peek(t, 1) == '{';
    size_t at = t->i + (braces ? 2 : 1), len = 0, want = t->p[t->i] == 'u' ? 4 : 2;
    while (at + len < t->n && len < (braces ? 6 : want)) {
        char c = t->p[at + len];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) {
            break;
        }
        len++;
    }
    bool closed = braces ? at + len < t->n && t->p[at + len] == '}' && t->p[t->i] == 'x' : len == want;
    /* \x80 and above are raw bytes of the encoding in the reference engine. */
    if (len == 0 || !closed || (!braces && want == 2 && t->p[at] > '7')) {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: character code at byte %zu", t->i);
    }
    t->i = at + len - (braces ? 0 : 1);
    return bl_buf_printf(t->out, err, "\\x{%.*s}", (int)len, t->p + at);
}

static bl_code emit_escape(translation *t, bl_err *err) {
    t->i++; /* the character after the backslash */
    char c = peek(t, 0);
    switch (c) {
    case 's':
    case 'S':
        return emit_spaces(t, c == 'S', err);
    case 'w':
        return emit_words(t, false, err);
    case 'W':
        if (!t->in_class) {
            return emit_words(t, true, err);
        }
        break;
    case 'd':
    case 'D':
        return emit_category(t, "Nd", 2, c == 'D', 1, err);
    case 'p':
    case 'P':
        return emit_property(t, err);
    case 'x':
    case 'u':
        return emit_code(t, err);
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return bl_buf_printf(t->out, err, "\\%c", c);
    case 'A':
    case 'z':
        if (!t->in_class) {
            return bl_buf_printf(t->out, err, "\\%c", c);
        }
        break;
    default:
        if (c > ' ' && c < 0x7F && !is_alnum(c)) {
            return bl_buf_printf(t->out, err, "\\%c", c);
        }
        break;
    }
    BL_FAIL(err, BL_ENOTSUP, "regular expression: escape \\%c at byte %zu", c > ' ' && c < 0x7F ? c : '?',
            t->i - 1);
}

/* Groups whose meaning both engines share. i is at '('. */
static bl_code emit_group(translation *t, bl_err *err) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    if (peek(t, 1) != '?') {
        return bl_buf_append_char(t->out, '(', err);
    }
    for (size_t k = 0; k < BL_COUNTOF(known); k++) {
        if (starts(t, known[k])) {
            t->i += strlen(known[k]) - 1;
            return bl_buf_append_str(t->out, known[k], err);
        }
    }
    BL_FAIL(err, BL_ENOTSUP, "regular expression: group (?%c at byte %zu",
            peek(t, 2) > ' ' ? peek(t, 2) : '?', t->i);
}

/* {n}, {n,}, {n,m}; a following '+' is a second quantifier in one engine and possessive in the other. i is at
 * '{'. */
static bl_code emit_repeat(translation *t, bl_err *err) {
    size_t len = 1;
    while (t->i + len < t->n &&
           ((t->p[t->i + len] >= '0' && t->p[t->i + len] <= '9') || t->p[t->i + len] == ',')) {
        len++;
    }
    if (len < 2 || t->p[t->i + 1] == ',' || peek(t, len) != '}' || peek(t, len + 1) == '+') {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: repeat at byte %zu", t->i);
    }
    BL_TRY(bl_buf_append(t->out, t->p + t->i, len + 1, err));
    t->i += len;
    return BL_OK;
}

static bl_code emit_in_class(translation *t, bl_err *err) {
    char c = t->p[t->i];
    if (c == '[' || (c == '&' && peek(t, 1) == '&')) {
        BL_FAIL(err, BL_ENOTSUP, "regular expression: nested class or intersection at byte %zu", t->i);
    }
    if (c == ']') {
        t->in_class = false;
    }
    return bl_buf_append_char(t->out, c, err);
}

static bl_code emit_outside(translation *t, bl_err *err) {
    char c = t->p[t->i];
    switch (c) {
    case '[':
        t->in_class = true;
        BL_TRY(bl_buf_append_char(t->out, '[', err));
        if (peek(t, 1) == '^') {
            t->i++;
            BL_TRY(bl_buf_append_char(t->out, '^', err));
        }
        if (peek(t, 1) == ']') {
            t->i++;
            BL_TRY(bl_buf_append_str(t->out, "\\]", err));
        }
        return BL_OK;
    case '(':
        return emit_group(t, err);
    case '{':
        return emit_repeat(t, err);
    case '^':
        return bl_buf_append_str(t->out, "(?m:^)", err); /* Ruby's anchors are always multi-line */
    case '$':
        return bl_buf_append_str(t->out, "(?m:$)", err);
    default:
        return bl_buf_append_char(t->out, c, err);
    }
}

static bl_code translate(const char *pattern, size_t n, bl_buf *out, bl_err *err) {
    translation t = {.p = pattern, .n = n, .out = out};
    for (; t.i < n; t.i++) {
        if (pattern[t.i] == '\\') {
            BL_TRY(emit_escape(&t, err));
        } else if (t.in_class) {
            BL_TRY(emit_in_class(&t, err));
        } else {
            BL_TRY(emit_outside(&t, err));
        }
    }
    return BL_OK;
}

/* ---- compile and search ------------------------------------------------------------------------------ */

static bl_code compile(bl_tokenizer_regex *r, const bl_buf *pattern, bl_err *err) {
    int code = 0;
    size_t at = 0;
    r->memory = pcre2_general_context_create(regex_alloc, regex_release, NULL);
    pcre2_compile_context *how = r->memory ? pcre2_compile_context_create(r->memory) : NULL;
    if (!how) {
        BL_FAIL(err, BL_ENOMEM, "regular expression: out of memory");
    }
    pcre2_set_newline(how, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(how, 32);
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
    r->code = pcre2_compile((PCRE2_SPTR)bl_buf_str(pattern), pattern->len, options, &code, &at, how);
    pcre2_compile_context_free(how);
    if (!r->code) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof text);
        BL_FAIL(err, code == PCRE2_ERROR_HEAP_FAILED ? BL_ENOMEM : BL_EFORMAT, "regular expression: %s",
                (const char *)text);
    }
    /* Where executable memory is refused, the interpreter gives the same matches more slowly. */
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return BL_OK;
}

bl_code bl_tokenizer_regex_new(const char *pattern, size_t n, bl_tokenizer_regex **ret, bl_err *err) {
    if (n == 0 || n > BL_TOKENIZER_MAX_PATTERN) {
        BL_FAIL(err, BL_ELIMIT, "regular expression: %zu bytes, 1 to %u allowed", n,
                BL_TOKENIZER_MAX_PATTERN);
    }
    bl_tokenizer_regex *r = bl_alloc(sizeof *r);
    if (!r) {
        BL_FAIL(err, BL_ENOMEM, "regular expression: out of memory");
    }
    bl_buf text;
    bl_buf_init(&text, 64u * BL_TOKENIZER_MAX_PATTERN);
    bl_code rc = translate(pattern, n, &text, err);
    if (rc == BL_OK) {
        rc = compile(r, &text, err);
    }
    bl_buf_done(&text);
    if (rc != BL_OK) {
        bl_tokenizer_regex_free(r);
        return rc;
    }
    *ret = r;
    return BL_OK;
}

void bl_tokenizer_regex_free(bl_tokenizer_regex *r) {
    if (!r) {
        return;
    }
    pcre2_code_free(r->code);
    pcre2_general_context_free(r->memory);
    bl_free(r);
}

bl_code bl_tokenizer_scan_new(size_t n_text, bl_tokenizer_scan **ret, bl_err *err) {
    bl_tokenizer_scan *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "regular expression: out of memory");
    }
    s->memory = pcre2_general_context_create(regex_alloc, regex_release, NULL);
    s->match = s->memory ? pcre2_match_context_create(s->memory) : NULL;
    s->data = s->memory ? pcre2_match_data_create(1, s->memory) : NULL;
    if (!s->match || !s->data) {
        bl_tokenizer_scan_free(s);
        BL_FAIL(err, BL_ENOMEM, "regular expression: out of memory");
    }
    pcre2_set_heap_limit(s->match, HEAP_LIMIT_KIB);
    s->budget = BUDGET_BASE + (uint64_t)BUDGET_PER_BYTE * n_text;
    *ret = s;
    return BL_OK;
}

void bl_tokenizer_scan_free(bl_tokenizer_scan *s) {
    if (!s) {
        return;
    }
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->match);
    pcre2_jit_stack_free(s->stack);
    pcre2_general_context_free(s->memory);
    bl_free(s);
}

/* One search with a limit on its steps. Without NO_UTF_CHECK every call would validate the rest of the text:
 * quadratic. */
static int search(const bl_tokenizer_regex *r, bl_tokenizer_scan *s, const char *text, size_t n, size_t from,
                  uint32_t steps) {
    pcre2_set_match_limit(s->match, steps);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->data, s->match);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || s->stack) {
        return rc;
    }
    s->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_MAX, s->memory);
    if (!s->stack) {
        return PCRE2_ERROR_NOMEMORY;
    }
    pcre2_jit_stack_assign(s->match, NULL, s->stack);
    return pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->data, s->match);
}

bl_code bl_tokenizer_regex_find(const bl_tokenizer_regex *r, bl_tokenizer_scan *s, const char *text, size_t n,
                                size_t from, size_t *ret_start, size_t *ret_end, bool *ret_found,
                                bl_err *err) {
    uint64_t steps = FIRST_STEPS;
    int rc = search(r, s, text, n, from, (uint32_t)steps);
    while (rc == PCRE2_ERROR_MATCHLIMIT && steps * GROWTH <= s->budget) {
        steps = BL_MIN(steps * GROWTH, (uint64_t)UINT32_MAX);
        s->budget -= steps;
        rc = search(r, s, text, n, from, (uint32_t)steps);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        *ret_found = false;
        return BL_OK;
    }
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        BL_FAIL(err, rc == PCRE2_ERROR_NOMEMORY ? BL_ENOMEM : BL_ELIMIT,
                "regular expression: %s at byte %zu of %zu", (const char *)why, from, n);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->data);
    *ret_start = span[0];
    *ret_end = span[1];
    *ret_found = true;
    return BL_OK;
}
