/* Jinja text -> tokens, as jinja2's Lexer with trim_blocks and lstrip_blocks on (jinja2 3.1 lexer.py,
 * tokeniter). Comments and raw blocks are resolved here; the parser sees data, tags, and the tokens inside
 * tags.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/jinja_private.h"

#define MAX_BRACES 4096u

typedef struct {
    const char *src;
    size_t n, pos;
    uint32_t line;
    bool line_starting; /* the last match ended with a newline: lstrip applies to the text that follows */
    char closing[MAX_BRACES];
    size_t n_open;
    bl_jn_toks toks;
    bl_err *err;
} lexer;

static bl_code push(lexer *x, bl_jn_tok tok) {
    bl_jn_toks *t = &x->toks;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 1024;
        bl_jn_tok *v = bl_realloc(t->v, cap * sizeof *v);
        if (!v) {
            BL_FAIL(x->err, BL_ENOMEM, "chat template: out of memory for %zu tokens", cap);
        }
        t->v = v;
        t->cap = cap;
    }
    t->v[t->n++] = tok;
    return BL_OK;
}

static uint32_t count_lines(const char *p, size_t n) {
    uint32_t k = 0;
    for (size_t i = 0; i < n; i++) {
        k += p[i] == '\n';
    }
    return k;
}

/* Bytes of the white space character at p (Python's \s), 0 when it is none. */
static size_t space_len(const char *p, size_t n) {
    if (n == 0) {
        return 0;
    }
    if ((unsigned char)*p < 0x80) {
        return bl_jn_is_space((unsigned char)*p) ? 1 : 0;
    }
    uint32_t cp;
    size_t len = bl_utf8_decode(p, n, &cp);
    return len > 0 && bl_jn_is_space(cp) ? len : 0;
}

static size_t skip_space(const lexer *x, size_t pos) {
    size_t len;
    while ((len = space_len(x->src + pos, x->n - pos)) > 0) {
        pos += len;
    }
    return pos;
}

/* Length of p without the white space at its end. */
static size_t rstrip_len(const char *p, size_t n) {
    size_t end = 0;
    for (size_t i = 0; i < n;) {
        size_t ws = space_len(p + i, n - i);
        if (ws > 0) {
            i += ws;
            continue;
        }
        uint32_t cp;
        size_t len = bl_utf8_decode(p + i, n - i, &cp);
        i += len > 0 ? len : 1;
        end = i;
    }
    return end;
}

static bool all_space(const char *p, size_t n) {
    return rstrip_len(p, n) == 0;
}

static bool at(const lexer *x, size_t pos, const char *lit) {
    size_t len = strlen(lit);
    return x->n - pos >= len && memcmp(x->src + pos, lit, len) == 0;
}

/* Emits the text before a tag with the white space rules applied. `is_var`: the tag is a print tag (no
 * lstrip). */
static bl_code emit_data(lexer *x, size_t start, size_t end, char sign, bool is_var) {
    const char *p = x->src + start;
    size_t n = end - start;
    size_t keep = n;
    if (sign == '-') {
        keep = rstrip_len(p, n);
    } else if (sign != '+' && !is_var) {
        size_t line_start = n;
        while (line_start > 0 && p[line_start - 1] != '\n') {
            line_start--;
        }
        if ((line_start > 0 || x->line_starting) && all_space(p + line_start, n - line_start)) {
            keep = line_start;
        }
    }
    if (keep > 0) {
        BL_TRY(push(x, (bl_jn_tok){.type = BL_JN_T_DATA, .line = x->line, .p = p, .n = keep}));
    }
    x->line += count_lines(p, n);
    return BL_OK;
}

/* A tag that ends at pos: "%}" or "-%}" or "+%}". Returns the position behind it including what it swallows,
 * or SIZE_MAX. */
static size_t match_block_end(const lexer *x, size_t pos, bool trim) {
    if (at(x, pos, "-%}")) {
        return skip_space(x, pos + 3);
    }
    if (trim && at(x, pos, "+%}")) {
        return pos + 3;
    }
    if (at(x, pos, "%}")) {
        pos += 2;
        return trim && pos < x->n && x->src[pos] == '\n' ? pos + 1 : pos;
    }
    return SIZE_MAX;
}

/* "{%[-+]? raw %}" at pos: position behind it, or SIZE_MAX. keyword is "raw" or "endraw". */
static size_t match_raw(const lexer *x, size_t pos, const char *keyword, bool trim, char *ret_sign) {
    if (!at(x, pos, "{%")) {
        return SIZE_MAX;
    }
    pos += 2;
    *ret_sign = 0;
    if (pos < x->n && (x->src[pos] == '-' || x->src[pos] == '+')) {
        *ret_sign = x->src[pos++];
    }
    pos = skip_space(x, pos);
    if (!at(x, pos, keyword)) {
        return SIZE_MAX;
    }
    pos = skip_space(x, pos + strlen(keyword));
    return match_block_end(x, pos, trim);
}

static void moved_to(lexer *x, size_t from, size_t to) {
    x->line += count_lines(x->src + from, to - from);
    x->line_starting = to > from && x->src[to - 1] == '\n';
    x->pos = to;
}

static bl_code lex_comment(lexer *x) {
    uint32_t line = x->line;
    const char *e = memmem(x->src + x->pos, x->n - x->pos, "#}", 2);
    if (!e) {
        BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: comment without '#}'", line);
    }
    size_t hit = (size_t)(e - x->src);
    size_t end = hit + 2;
    char sign = hit > x->pos ? x->src[hit - 1] : '\0';
    if (sign == '-') {
        end = skip_space(x, end);
    } else if (sign != '+' && end < x->n && x->src[end] == '\n') {
        end++;
    }
    moved_to(x, x->pos, end);
    return BL_OK;
}

static bl_code lex_raw(lexer *x) {
    uint32_t line = x->line;
    for (size_t p = x->pos; p < x->n; p++) {
        char sign;
        size_t end = x->src[p] == '{' ? match_raw(x, p, "endraw", true, &sign) : SIZE_MAX;
        if (end != SIZE_MAX) {
            BL_TRY(emit_data(x, x->pos, p, sign, false));
            moved_to(x, p, end);
            return BL_OK;
        }
    }
    BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: raw block without 'endraw'", line);
}

static bool is_name_start(const char *p, size_t n, size_t *ret_len) {
    unsigned char ch = (unsigned char)*p;
    if (ch < 0x80) {
        *ret_len = 1;
        return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_';
    }
    uint32_t cp;
    *ret_len = bl_utf8_decode(p, n, &cp);
    return *ret_len > 0 && bl_jn_is_alpha(cp);
}

static bool is_digit(char ch) {
    return ch >= '0' && ch <= '9';
}

/* (\d+_)*\d+ at pos; returns the end, or pos when there is none. */
static size_t digits(const lexer *x, size_t pos) {
    size_t end = pos;
    while (end < x->n && is_digit(x->src[end])) {
        end++;
        if (end + 1 < x->n && x->src[end] == '_' && is_digit(x->src[end + 1])) {
            end++;
        }
    }
    return end;
}

/* End of a float at pos, or SIZE_MAX. */
static size_t match_float(const lexer *x, size_t pos) {
    if (pos > 0 && x->src[pos - 1] == '.') {
        return SIZE_MAX;
    }
    size_t end = digits(x, pos);
    if (end == pos) {
        return SIZE_MAX;
    }
    bool is_float = false;
    if (end + 1 < x->n && x->src[end] == '.' && is_digit(x->src[end + 1])) {
        end = digits(x, end + 1);
        is_float = true;
    }
    if (end < x->n && (x->src[end] == 'e' || x->src[end] == 'E')) {
        size_t e = end + 1;
        if (e < x->n && (x->src[e] == '+' || x->src[e] == '-')) {
            e++;
        }
        if (digits(x, e) > e) {
            end = digits(x, e);
            is_float = true;
        }
    }
    return is_float ? end : SIZE_MAX;
}

static int digit_value(char ch) {
    if (is_digit(ch)) {
        return ch - '0';
    }
    if (ch >= 'a' && ch <= 'f') {
        return ch - 'a' + 10;
    }
    return ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : 99;
}

static bl_code lex_int(lexer *x) {
    int base = 10;
    size_t pos = x->pos;
    bool prefixed = false;
    if (x->src[pos] == '0' && pos + 1 < x->n) {
        char b = (char)(x->src[pos + 1] | 0x20);
        int wanted = b == 'b' ? 2 : b == 'o' ? 8 : b == 'x' ? 16 : 0;
        size_t first = pos + 2 < x->n && x->src[pos + 2] == '_' ? pos + 3 : pos + 2;
        if (wanted > 0 && first < x->n && digit_value(x->src[first]) < wanted) {
            base = wanted;
            pos = first;
            prefixed = true;
        }
    }
    bool zeros = !prefixed && x->src[pos] == '0';
    int64_t v = 0;
    while (pos < x->n) {
        size_t at_digit = x->src[pos] == '_' && pos + 1 < x->n ? pos + 1 : pos;
        int d = digit_value(x->src[at_digit]);
        if (d >= base || (zeros && d != 0)) {
            break;
        }
        if (__builtin_mul_overflow(v, (int64_t)base, &v) || __builtin_add_overflow(v, (int64_t)d, &v)) {
            BL_FAIL(x->err, BL_ENOTSUP, "chat template line %u: integer beyond 64 bits", x->line);
        }
        pos = at_digit + 1;
    }
    x->pos = pos;
    return push(x, (bl_jn_tok){.type = BL_JN_T_INT, .line = x->line, .i = v});
}

static bl_code lex_float(lexer *x, size_t end) {
    char text[64];
    size_t n = 0;
    for (size_t i = x->pos; i < end; i++) {
        if (x->src[i] != '_') {
            if (n + 1 >= sizeof text) {
                BL_FAIL(x->err, BL_ENOTSUP, "chat template line %u: number of more than %zu digits", x->line,
                        sizeof text - 1);
            }
            text[n++] = x->src[i];
        }
    }
    text[n] = '\0';
    x->pos = end;
    return push(x, (bl_jn_tok){.type = BL_JN_T_FLOAT, .line = x->line, .f = strtod(text, NULL)});
}

static bl_code lex_name(lexer *x) {
    size_t end = x->pos;
    size_t len;
    while (end < x->n && (is_name_start(x->src + end, x->n - end, &len) || is_digit(x->src[end]))) {
        end += is_digit(x->src[end]) ? 1 : len;
    }
    bl_jn_tok tok = {.type = BL_JN_T_NAME, .line = x->line, .p = x->src + x->pos, .n = end - x->pos};
    x->pos = end;
    return push(x, tok);
}

static bl_code lex_string(lexer *x) {
    char quote = x->src[x->pos];
    size_t p = x->pos + 1;
    while (p < x->n && x->src[p] != quote) {
        p += x->src[p] == '\\' ? 2 : 1;
    }
    if (p >= x->n) {
        BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: string without closing quote", x->line);
    }
    bl_jn_tok tok = {.type = BL_JN_T_STRING, .line = x->line, .p = x->src + x->pos + 1, .n = p - x->pos - 1};
    x->line += count_lines(tok.p, tok.n);
    x->pos = p + 1;
    return push(x, tok);
}

static bl_code lex_operator(lexer *x) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *p = x->src + x->pos;
    bl_jn_tok tok = {.type = BL_JN_T_OP, .line = x->line};
    tok.op[0] = *p;
    for (size_t i = 0; i < BL_COUNTOF(two); i++) {
        if (at(x, x->pos, two[i])) {
            tok.op[1] = p[1];
        }
    }
    if (!tok.op[1] && (*p == '\0' || !strchr("+-/*%~[](){}><=.:|,;", *p))) {
        BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: unexpected character '%c'", x->line, *p);
    }
    if (*p == '(' || *p == '[' || *p == '{') {
        if (x->n_open == MAX_BRACES) {
            BL_FAIL(x->err, BL_ELIMIT, "chat template line %u: more than %u open brackets", x->line,
                    MAX_BRACES);
        }
        x->closing[x->n_open++] = *p == '(' ? ')' : *p == '[' ? ']' : '}';
    } else if (*p == ')' || *p == ']' || *p == '}') {
        if (x->n_open == 0) {
            BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: unexpected '%c'", x->line, *p);
        }
        char expected = x->closing[--x->n_open];
        if (expected != *p) {
            BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: unexpected '%c', expected '%c'", x->line, *p,
                    expected);
        }
    }
    x->pos += tok.op[1] ? 2 : 1;
    return push(x, tok);
}

/* The inside of a tag, up to and including its end. */
static bl_code lex_tag(lexer *x, bool is_var) {
    uint32_t opened = x->line;
    x->n_open = 0;
    while (x->pos < x->n) {
        if (x->n_open == 0) {
            size_t end = SIZE_MAX;
            if (!is_var) {
                end = match_block_end(x, x->pos, true);
            } else if (at(x, x->pos, "-}}")) {
                end = skip_space(x, x->pos + 3);
            } else if (at(x, x->pos, "}}")) {
                end = x->pos + 2;
            }
            if (end != SIZE_MAX) {
                bl_jn_tok tok = {.type = is_var ? BL_JN_T_VAR_END : BL_JN_T_BLOCK_END, .line = x->line};
                BL_TRY(push(x, tok));
                moved_to(x, x->pos, end);
                return BL_OK;
            }
        }
        size_t after_space = skip_space(x, x->pos);
        size_t len;
        if (after_space > x->pos) {
            moved_to(x, x->pos, after_space);
        } else if (is_digit(x->src[x->pos])) {
            size_t end = match_float(x, x->pos);
            BL_TRY(end != SIZE_MAX ? lex_float(x, end) : lex_int(x));
        } else if (is_name_start(x->src + x->pos, x->n - x->pos, &len)) {
            BL_TRY(lex_name(x));
        } else if (x->src[x->pos] == '\'' || x->src[x->pos] == '"') {
            BL_TRY(lex_string(x));
        } else {
            BL_TRY(lex_operator(x));
        }
    }
    BL_FAIL(x->err, BL_EFORMAT, "chat template line %u: tag without '%s'", opened, is_var ? "}}" : "%}");
}

/* Text up to the next tag, and that tag. */
static bl_code lex_root(lexer *x) {
    size_t p = x->pos;
    while (p + 1 < x->n && !(x->src[p] == '{' && strchr("%{#", x->src[p + 1]) && x->src[p + 1])) {
        p++;
    }
    if (p + 1 >= x->n) {
        if (x->pos < x->n) {
            bl_jn_tok tok = {.type = BL_JN_T_DATA, .line = x->line, .p = x->src + x->pos, .n = x->n - x->pos};
            x->pos = x->n;
            return push(x, tok);
        }
        return BL_OK;
    }
    char sign = 0;
    size_t raw_end = match_raw(x, p, "raw", false, &sign);
    if (raw_end != SIZE_MAX) {
        BL_TRY(emit_data(x, x->pos, p, sign, false));
        moved_to(x, p, raw_end);
        return lex_raw(x);
    }
    char kind = x->src[p + 1];
    size_t inside = p + 2;
    sign = inside < x->n && (x->src[inside] == '-' || x->src[inside] == '+') ? x->src[inside] : '\0';
    inside += sign ? 1 : 0;
    BL_TRY(emit_data(x, x->pos, p, sign, kind == '{'));
    x->pos = inside;
    x->line_starting = false;
    if (kind == '#') {
        return lex_comment(x);
    }
    bl_jn_tok_type type = kind == '{' ? BL_JN_T_VAR_BEGIN : BL_JN_T_BLOCK_BEGIN;
    BL_TRY(push(x, (bl_jn_tok){.type = type, .line = x->line}));
    return lex_tag(x, kind == '{');
}

bl_code bl_jn_lex(const char *src, size_t n, bl_jn_toks *ret, bl_err *err) {
    lexer *x = bl_alloc(sizeof *x);
    if (!x) {
        BL_FAIL(err, BL_ENOMEM, "chat template: out of memory");
    }
    x->src = src;
    x->n = n;
    x->line = 1;
    x->line_starting = true;
    x->err = err;
    bl_code rc = BL_OK;
    while (rc == BL_OK && x->pos < x->n) {
        rc = lex_root(x);
    }
    if (rc == BL_OK) {
        rc = push(x, (bl_jn_tok){.type = BL_JN_T_EOF, .line = x->line});
    }
    if (rc == BL_OK) {
        *ret = x->toks;
    } else {
        bl_free(x->toks.v);
    }
    bl_free(x);
    return rc;
}

/* Hexadecimal escape of exactly `want` digits at p; -1 when malformed. */
static int64_t hex_escape(const char *p, size_t n, size_t want) {
    if (n < want) {
        return -1;
    }
    int64_t v = 0;
    for (size_t i = 0; i < want; i++) {
        int d = digit_value(p[i]);
        if (d > 15) {
            return -1;
        }
        v = v * 16 + d;
    }
    return v;
}

/* Escape at p (behind the backslash), n > 0: code point (-1: error, -2: nothing, -3: not an escape), bytes
 * used in *ret_len. */
static int64_t escape(const char *p, size_t n, size_t *ret_len) {
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    *ret_len = 1;
    if (*p == '\n') {
        return -2;
    }
    const char *simple = *p ? strchr(from, *p) : NULL;
    if (simple) {
        return to[simple - from];
    }
    if (*p >= '0' && *p <= '7') {
        int64_t v = 0;
        size_t k = 0;
        while (k < 3 && k < n && p[k] >= '0' && p[k] <= '7') {
            v = v * 8 + (p[k++] - '0');
        }
        *ret_len = k;
        return v;
    }
    size_t want = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (want > 0) {
        int64_t v = hex_escape(p + 1, n - 1, want);
        *ret_len = 1 + want;
        return v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF) ? -1 : v;
    }
    return *p == 'N' ? -1 : -3;
}

bl_code bl_jn_unescape(const bl_jn_tok *tok, char *out, size_t *ret_n, bl_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < tok->n;) {
        if (tok->p[i] != '\\') {
            out[n++] = tok->p[i++];
            continue;
        }
        size_t len;
        int64_t cp = escape(tok->p + i + 1, tok->n - i - 1, &len);
        if (cp == -1) {
            BL_FAIL(err, BL_EFORMAT, "chat template line %u: malformed or unsupported escape in a string",
                    tok->line);
        }
        if (cp == -3) { /* Python keeps the backslash of an unknown escape */
            out[n++] = '\\';
            i += 1;
            continue;
        }
        if (cp >= 0) {
            n += bl_utf8_encode((uint32_t)cp, out + n);
        }
        i += 1 + len;
    }
    *ret_n = n;
    return BL_OK;
}
