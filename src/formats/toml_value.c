/* Scalars of TOML: strings, numbers, booleans, dates and times (toml.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/toml_impl.h"

/* ---- strings ------------------------------------------------------------------------------------------- */

static bool is_control(char c) {
    unsigned char u = (unsigned char)c;
    return (u < 0x20 && u != '\t') || u == 0x7f;
}

static bl_code put(toml_reader *r, const char *s, size_t n) {
    return bl_buf_append(&r->scratch, s, n, r->err);
}

static int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* \uXXXX and \UXXXXXXXX; the reader stands on the letter. */
static bl_code read_code_point(toml_reader *r) {
    uint32_t n_digits = r->s[r->at] == 'u' ? 4 : 8;
    uint32_t cp = 0;
    for (uint32_t i = 1; i <= n_digits; i++) {
        int v = hex_value(r->s[r->at + i]);
        if (v < 0) {
            return toml_refuse(r, r->at + i, n_digits == 4 ? "4 hexadecimal digits" : "8 hexadecimal digits");
        }
        cp = cp << 4 | (uint32_t)v;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) {
        return toml_fail(r, BL_EFORMAT, r->at, "U+%X is no character", (unsigned)cp);
    }
    char out[4];
    size_t n = bl_utf8_encode(cp, out);
    r->at += n_digits + 1;
    return put(r, out, n);
}

/* White space and line ends behind a backslash at the end of a line. False: it is not at the end of one. */
static bool skip_folded(toml_reader *r) {
    uint32_t at = r->at;
    bool folded = false;
    for (;;) {
        uint32_t n = toml_newline(r, at);
        if (n > 0) {
            folded = true;
        } else if (r->s[at] == ' ' || r->s[at] == '\t') {
            n = 1;
        } else {
            break;
        }
        at += n;
    }
    if (folded) {
        r->at = at;
    }
    return folded;
}

/* The reader stands behind the backslash. */
static bl_code read_escape(toml_reader *r, bool multi) {
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    char c = r->s[r->at];
    if (c == 'u' || c == 'U') {
        return read_code_point(r);
    }
    const char *p = c != '\0' ? strchr(from, c) : NULL;
    if (p != NULL) {
        r->at++;
        return put(r, &to[p - from], 1);
    }
    if (multi && skip_folded(r)) {
        return BL_OK;
    }
    return toml_refuse(r, r->at, "b, t, n, f, r, \", \\, uXXXX or UXXXXXXXX behind a backslash");
}

/* How many quotes stand here, at most 5. */
static uint32_t count_quotes(const toml_reader *r, char quote) {
    uint32_t n = 0;
    while (n < 5 && r->s[r->at + n] == quote) {
        n++;
    }
    return n;
}

/* The body of a string; the reader stands behind the opening quotes. */
static bl_code read_body(toml_reader *r, char quote, bool multi, uint32_t opened_at) {
    for (;;) {
        char c = r->s[r->at];
        uint32_t newline = toml_newline(r, r->at);
        if (c == quote && !multi) {
            r->at++;
            return BL_OK;
        }
        if (c == quote) {
            uint32_t n = count_quotes(r, quote);
            /* Up to two quotes may stand before the closing three. */
            BL_TRY(put(r, r->s + r->at, n >= 3 ? n - 3 : n));
            r->at += n;
            if (n >= 3) {
                return BL_OK;
            }
        } else if (c == '\\' && quote == '"') {
            r->at++;
            BL_TRY(read_escape(r, multi));
        } else if (newline > 0 && multi) {
            BL_TRY(put(r, "\n", 1));
            r->at += newline;
        } else if (r->at >= r->n || newline > 0) {
            return toml_fail(r, BL_EFORMAT, opened_at, "the string that begins here is not closed");
        } else if (is_control(c)) {
            return toml_refuse(r, r->at, "no control characters in a string");
        } else {
            BL_TRY(put(r, &c, 1));
            r->at++;
        }
    }
}

bl_code toml_read_string(toml_reader *r, bool one_line) {
    uint32_t opened_at = r->at;
    char quote = r->s[r->at];
    bl_buf_reset(&r->scratch);
    bool multi = !one_line && r->s[r->at + 1] == quote && r->s[r->at + 2] == quote;
    r->at += multi ? 3 : 1;
    if (multi) {
        r->at += toml_newline(r, r->at); /* a line end right behind the quotes is not part of it */
    }
    return read_body(r, quote, multi, opened_at);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* The digits of s[0..n) in a base, each underscore between two of them. */
static bool are_digits(const char *s, uint32_t n, int base) {
    bool after_digit = false;
    for (uint32_t i = 0; i < n; i++) {
        int v = hex_value(s[i]);
        bool digit = v >= 0 && v < base;
        if (!digit && !(s[i] == '_' && after_digit)) {
            return false;
        }
        after_digit = digit;
    }
    return after_digit;
}

static bool is_decimal(const char *s, uint32_t n) {
    return are_digits(s, n, 10) && (n == 1 || s[0] != '0');
}

/* False: beyond 64 bits with sign. */
static bool to_integer(const char *s, uint32_t n, int base, bool negative, int64_t *ret) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != '_' &&
            (!bl_mul_u64(v, (uint64_t)base, &v) || !bl_add_u64(v, (uint64_t)hex_value(s[i]), &v))) {
            return false;
        }
    }
    uint64_t max = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    if (v > max) {
        return false;
    }
    *ret = !negative ? (int64_t)v : v == max ? INT64_MIN : -(int64_t)v;
    return true;
}

/* digits [. digits] [e [sign] digits], where one of the two is there. */
static bool is_float(const char *s, uint32_t n) {
    uint32_t whole = 0;
    while (whole < n && (toml_is_digit(s[whole]) || s[whole] == '_')) {
        whole++;
    }
    if (whole == n || !is_decimal(s, whole)) {
        return false;
    }
    uint32_t at = whole;
    if (s[at] == '.') {
        uint32_t from = ++at;
        while (at < n && (toml_is_digit(s[at]) || s[at] == '_')) {
            at++;
        }
        if (!are_digits(s + from, at - from, 10)) {
            return false;
        }
    }
    if (at == n) {
        return true;
    }
    if (s[at] != 'e' && s[at] != 'E') {
        return false;
    }
    at++;
    at += at < n && (s[at] == '+' || s[at] == '-') ? 1 : 0;
    return are_digits(s + at, n - at, 10);
}

static double to_double(const char *s, uint32_t n, bool negative) {
    char digits[BL_TOML_MAX_NUMBER + 1];
    uint32_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != '_') {
            digits[len++] = s[i];
        }
    }
    digits[len] = '\0';
    double v = strtod(digits, NULL);
    return negative ? -v : v;
}

static const char *const a_value = "a value: a string in quotes, a number, true, false, a date, [..] or {..}";

static bl_code read_number(toml_reader *r, const char *s, uint32_t n, bl_toml_node *ret) {
    bool sign = s[0] == '+' || s[0] == '-';
    bool negative = s[0] == '-';
    const char *d = s + (sign ? 1 : 0);
    uint32_t n_d = n - (sign ? 1 : 0);
    int base = 10;
    if (!sign && n_d > 2 && d[0] == '0') {
        base = d[1] == 'x' ? 16 : d[1] == 'o' ? 8 : d[1] == 'b' ? 2 : 10;
    }
    if (n > BL_TOML_MAX_NUMBER) {
        return toml_fail(r, BL_ELIMIT, r->at, "a number of %u characters, %u allowed", n, BL_TOML_MAX_NUMBER);
    }
    d += base != 10 ? 2 : 0;
    n_d -= base != 10 ? 2 : 0;
    if (base != 10 ? are_digits(d, n_d, base) : is_decimal(d, n_d)) {
        if (!to_integer(d, n_d, base, negative, &ret->v.i)) {
            return toml_fail(r, BL_EFORMAT, r->at, "found %.*s, allowed: integers of 64 bits", (int)n, s);
        }
        ret->kind = BL_TOML_INT;
        return BL_OK;
    }
    ret->kind = BL_TOML_FLOAT;
    if (base == 10 && is_float(d, n_d)) {
        ret->v.f = to_double(d, n_d, negative);
        return BL_OK;
    }
    if (n_d == 3 && (memcmp(d, "inf", 3) == 0 || memcmp(d, "nan", 3) == 0)) {
        double v = d[0] == 'i' ? (double)INFINITY : (double)NAN;
        ret->v.f = negative ? -v : v;
        return BL_OK;
    }
    return toml_refuse(r, r->at, a_value);
}

/* ---- dates and times ----------------------------------------------------------------------------------- */

/* n digits at *p, moving it; -1: there are none. */
static int take_digits(const char **p, const char *end, int n) {
    int v = 0;
    if (end - *p < n) {
        return -1;
    }
    for (int i = 0; i < n; i++) {
        if (!toml_is_digit((*p)[i])) {
            return -1;
        }
        v = v * 10 + ((*p)[i] - '0');
    }
    *p += n;
    return v;
}

static bool take_char(const char **p, const char *end, char c) {
    if (*p < end && **p == c) {
        ++*p;
        return true;
    }
    return false;
}

static bool take_date(const char **p, const char *end) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y = take_digits(p, end, 4);
    bool ok = y >= 0 && take_char(p, end, '-');
    int m = ok ? take_digits(p, end, 2) : -1;
    ok = m >= 1 && m <= 12 && take_char(p, end, '-');
    int d = ok ? take_digits(p, end, 2) : -1;
    bool leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    return ok && d >= 1 && d <= days[m - 1] + (m == 2 && leap ? 1 : 0);
}

/* hh:mm, both in range. */
static bool take_minutes(const char **p, const char *end) {
    int h = take_digits(p, end, 2);
    if (h < 0 || h > 23 || !take_char(p, end, ':')) {
        return false;
    }
    int m = take_digits(p, end, 2);
    return m >= 0 && m <= 59;
}

static bool take_time(const char **p, const char *end) {
    if (!take_minutes(p, end) || !take_char(p, end, ':')) {
        return false;
    }
    int s = take_digits(p, end, 2);
    if (s < 0 || s > 60) { /* 60: a leap second (RFC 3339) */
        return false;
    }
    if (!take_char(p, end, '.')) {
        return true;
    }
    const char *from = *p;
    while (*p < end && toml_is_digit(**p)) {
        ++*p;
    }
    return *p > from;
}

static bool is_time(const char *s, uint32_t n) {
    const char *p = s, *end = s + n;
    if (n > 2 && s[2] == ':') {
        return take_time(&p, end) && p == end;
    }
    if (!take_date(&p, end)) {
        return false;
    }
    if (p == end) {
        return true;
    }
    if (!take_char(&p, end, 'T') && !take_char(&p, end, 't') && !take_char(&p, end, ' ')) {
        return false;
    }
    if (!take_time(&p, end)) {
        return false;
    }
    if (p == end || take_char(&p, end, 'Z') || take_char(&p, end, 'z')) {
        return p == end;
    }
    return (take_char(&p, end, '+') || take_char(&p, end, '-')) && take_minutes(&p, end) && p == end;
}

/* ---- a word -------------------------------------------------------------------------------------------- */

static uint32_t word_length(const toml_reader *r, uint32_t at) {
    uint32_t n = 0;
    while (toml_is_bare(r->s[at + n]) || (r->s[at + n] != '\0' && strchr("+.:", r->s[at + n]) != NULL)) {
        n++;
    }
    return n;
}

bl_code toml_read_word(toml_reader *r, bl_toml_node *ret) {
    const char *s = r->s + r->at;
    uint32_t n = word_length(r, r->at);
    if (n == 0) {
        return toml_refuse(r, r->at, a_value);
    }
    bool time = toml_is_digit(s[0]) && ((n > 2 && s[2] == ':') || (n > 4 && s[4] == '-'));
    if (time && n == 10 && s[10] == ' ' && toml_is_digit(s[11])) {
        n += 1 + word_length(r, r->at + 11); /* a blank may stand between date and time */
    }
    bool yes = n == 4 && memcmp(s, "true", 4) == 0;
    if (yes || (n == 5 && memcmp(s, "false", 5) == 0)) {
        ret->kind = BL_TOML_BOOL;
        ret->v.b = yes;
    } else if (time) {
        if (!is_time(s, n)) {
            return toml_refuse(r, r->at, "a date or time as 1979-05-27, 07:32:00 or 1979-05-27T07:32:00Z");
        }
        ret->kind = BL_TOML_TIME;
    } else {
        BL_TRY(read_number(r, s, n, ret));
    }
    r->at += n;
    return BL_OK;
}
