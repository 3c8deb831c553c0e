/* printf-style and str.format formatting with Python's rules, and strftime_now. What is left out (nested
 * fields, '*' widths, locale types) is refused by name.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "formats/jinja_private.h"

#define MAX_WIDTH 100000 /* width and precision; more is nothing a prompt needs */

typedef struct {
    const bl_jn_str *fill; /* NULL: a space */
    char align;            /* '<' '>' '^' '=' or 0 */
    char sign;             /* '+' '-' ' ' or 0 */
    bool alt, zero;
    char group;               /* ',' '_' or 0 */
    int64_t width, precision; /* -1: none */
    char type;                /* 0: none */
} spec;

/* ---- layout ---- */

/* Puts `sign` + `body` into the field. Body keeps its origins. */
static bl_code put_field(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, char default_align, const char *prefix,
                         bl_jn_str *body) {
    size_t n = strlen(prefix) + bl_jn_str_len(body);
    size_t gap = f->width > 0 && (size_t)f->width > n ? (size_t)f->width - n : 0;
    char align = f->align ? f->align : f->zero ? '=' : default_align;
    const char *fill = f->fill ? f->fill->p : f->zero ? "0" : " ";
    size_t fill_n = f->fill ? f->fill->n : 1;
    size_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
    size_t inner = align == '=' ? gap : 0;
    BL_TRY(bl_jn_sb_fill(c, out, fill, fill_n, left, BL_JN_ORIGIN_TEMPLATE));
    BL_TRY(bl_jn_sb_add_cstr(c, out, prefix));
    BL_TRY(bl_jn_sb_fill(c, out, fill, fill_n, inner, BL_JN_ORIGIN_TEMPLATE));
    BL_TRY(bl_jn_sb_add_str(c, out, body));
    return bl_jn_sb_fill(c, out, fill, fill_n, gap - left - inner, BL_JN_ORIGIN_TEMPLATE);
}

static bl_code put_text(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, char default_align, const char *prefix,
                        const char *text) {
    bl_jn_str body = {.p = text, .n = strlen(text), .n_cp = SIZE_MAX};
    return put_field(c, out, f, default_align, prefix, &body);
}

static bl_code put_str(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, char default_align, bl_jn_str *s) {
    bl_jn_str part = *s;
    if (f->precision >= 0 && (size_t)f->precision < bl_jn_str_len(&part)) {
        part.n = bl_jn_str_offset(s, (size_t)f->precision);
        part.n_cp = SIZE_MAX;
    }
    return put_field(c, out, f, default_align, "", &part);
}

/* ---- numbers ---- */

static const char *sign_of(bool negative, char sign) {
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

static size_t to_base(uint64_t v, unsigned base, bool upper, char out[72]) {
    char tmp[72];
    size_t n = 0;
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    do {
        tmp[n++] = digits[v % base];
        v /= base;
    } while (v > 0);
    for (size_t i = 0; i < n; i++) {
        out[i] = tmp[n - 1 - i];
    }
    out[n] = '\0';
    return n;
}

/* Puts separators between groups of `every` digits of the integer part of text. out has room for twice the
 * length. */
static void group_digits(const char *text, char sep, size_t every, char *out) {
    size_t n = 0;
    while (text[n] && ((text[n] >= '0' && text[n] <= '9') || (text[n] >= 'a' && text[n] <= 'f'))) {
        n++;
    }
    for (size_t i = 0; i < n; i++) {
        *out++ = text[i];
        if ((n - 1 - i) % every == 0 && i + 1 < n) {
            *out++ = sep;
        }
    }
    memcpy(out, text + n, strlen(text + n) + 1);
}

static bl_code put_int(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, char type, int64_t v) {
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    char digits[72], grouped[160], prefix[8];
    size_t n = to_base(v < 0 ? 0 - (uint64_t)v : (uint64_t)v, base, type == 'X', digits);
    const char *mark = !f->alt || base == 10 ? ""
                       : base == 16          ? (type == 'X' ? "0X" : "0x")
                       : base == 8           ? "0o"
                                             : "0b";
    (void)snprintf(prefix, sizeof prefix, "%s%s", sign_of(v < 0, f->sign), mark);
    const char *text = digits;
    if (f->group) {
        group_digits(digits, f->group, base == 10 ? 3 : 4, grouped);
        text = grouped;
    }
    if (f->precision > (int64_t)n) { /* printf style: at least this many digits */
        bl_jn_sb sb;
        bl_jn_val body;
        bl_jn_sb_init(&sb);
        BL_TRY(bl_jn_sb_fill(c, &sb, "0", 1, (size_t)f->precision - n, BL_JN_ORIGIN_TEMPLATE));
        BL_TRY(bl_jn_sb_add(c, &sb, text, strlen(text), BL_JN_ORIGIN_TEMPLATE));
        BL_TRY(bl_jn_sb_done(c, &sb, &body));
        return put_field(c, out, f, '>', prefix, body.s);
    }
    return put_text(c, out, f, '>', prefix, text);
}

/* Cuts zeros (and a bare point) from the end of a mantissa. */
static void strip_zeros(char *text) {
    char *e = strchr(text, 'e');
    char *end = e ? e : text + strlen(text);
    char *stop = end;
    if (memchr(text, '.', (size_t)(end - text))) {
        while (stop[-1] == '0') {
            stop--;
        }
        stop -= stop[-1] == '.' ? 1 : 0;
    }
    memmove(stop, end, strlen(end) + 1);
}

/* A float without a type letter but with a precision: 'g' that keeps one digit behind the point. */
static void general_text(double v, int precision, char *text, size_t room) {
    int p = precision > 0 ? precision : 1;
    (void)snprintf(text, room, "%.*e", p - 1, v);
    const char *e = strchr(text, 'e');
    if (!e) {
        return; /* inf, nan */
    }
    int exp = (int)strtod(e + 1, NULL);
    if (exp + 1 <= -4 || exp + 1 > p - 1) {
        strip_zeros(text);
        return;
    }
    (void)snprintf(text, room, "%.*f", p - 1 - exp, v);
    strip_zeros(text);
    if (!strchr(text, '.')) {
        (void)snprintf(text + strlen(text), room - strlen(text), ".0");
    }
}

static bl_code put_float(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, char type, double v) {
    char text[512], grouped[1024];
    bool negative = signbit(v) && !isnan(v);
    double mag = negative ? -v : v;
    int precision = f->precision >= 0 ? (int)f->precision : 6;
    if (precision > 100) {
        return BL_JN_FAIL(c, "precision %d is beyond 100", precision);
    }
    switch (type) {
    case 'e':
    case 'E':
        (void)snprintf(text, sizeof text, type == 'E' ? "%.*E" : "%.*e", precision, mag);
        break;
    case 'f':
    case 'F':
        (void)snprintf(text, sizeof text, "%.*f", precision, mag);
        break;
    case 'g':
    case 'G':
        (void)snprintf(text, sizeof text, type == 'G' ? "%.*G" : "%.*g", precision, mag);
        break;
    case '%':
        (void)snprintf(text, sizeof text - 1, "%.*f", precision, mag * 100.0);
        memcpy(text + strlen(text), "%", 2);
        break;
    default:
        if (f->precision < 0) {
            (void)bl_jn_float_repr(mag, text);
        } else {
            general_text(mag, precision, text, sizeof text);
        }
        break;
    }
    if (f->alt) {
        return BL_JN_FAIL(c, "'#' with a floating-point format is not supported");
    }
    if (f->group) {
        group_digits(text, f->group, 3, grouped);
    }
    return put_text(c, out, f, '>', sign_of(negative, f->sign), f->group ? grouped : text);
}

/* ---- printf style ---- */

typedef struct {
    const bl_jn_str *fmt;
    size_t pos;
    bl_jn_val args;
    size_t next; /* next positional argument */
    bool used_single;
} percent;

static bl_code next_arg(bl_jn_ctx *c, percent *p, bl_jn_val *ret) {
    if (p->args.t == BL_JN_TUPLE) {
        if (p->next >= p->args.l->n) {
            return BL_JN_FAIL(c, "not enough arguments for format string");
        }
        *ret = p->args.l->v[p->next++];
        return BL_OK;
    }
    if (p->used_single) {
        return BL_JN_FAIL(c, "not enough arguments for format string");
    }
    p->used_single = true;
    *ret = p->args;
    return BL_OK;
}

static bl_code parse_count(bl_jn_ctx *c, const bl_jn_str *s, size_t *pos, int64_t *ret) {
    int64_t v = 0;
    while (*pos < s->n && s->p[*pos] >= '0' && s->p[*pos] <= '9') {
        v = v * 10 + (s->p[*pos] - '0');
        if (v > MAX_WIDTH) {
            return BL_JN_FAIL(c, "format width or precision beyond %d", MAX_WIDTH);
        }
        (*pos)++;
    }
    *ret = v;
    return BL_OK;
}

static bl_code parse_percent_spec(bl_jn_ctx *c, percent *p, spec *f) {
    const bl_jn_str *s = p->fmt;
    *f = (spec){.width = -1, .precision = -1};
    for (; p->pos < s->n && s->p[p->pos] && strchr("-+ 0#", s->p[p->pos]); p->pos++) {
        char ch = s->p[p->pos];
        f->align = ch == '-' ? '<' : f->align;
        f->sign = ch == '+' ? '+' : ch == ' ' && f->sign != '+' ? ' ' : f->sign;
        f->zero = f->zero || ch == '0';
        f->alt = f->alt || ch == '#';
    }
    f->zero = f->zero && f->align != '<';
    BL_TRY(parse_count(c, s, &p->pos, &f->width));
    if (p->pos < s->n && s->p[p->pos] == '.') {
        p->pos++;
        BL_TRY(parse_count(c, s, &p->pos, &f->precision));
    }
    while (p->pos < s->n && s->p[p->pos] && strchr("hlL", s->p[p->pos])) {
        p->pos++;
    }
    if (p->pos >= s->n) {
        return BL_JN_FAIL(c, "incomplete format");
    }
    f->type = s->p[p->pos++];
    return BL_OK;
}

static bl_code percent_value(bl_jn_ctx *c, bl_jn_sb *out, const spec *f, bl_jn_val v) {
    int64_t i;
    double d;
    spec text = *f;
    text.zero = false;
    bl_jn_str *s;
    switch (f->type) {
    case 's':
        BL_TRY(bl_jn_to_str(c, v, &s));
        return put_str(c, out, &text, '>', s);
    case 'r': {
        bl_jn_sb sb;
        bl_jn_val r;
        bl_jn_sb_init(&sb);
        BL_TRY(bl_jn_sb_repr(c, &sb, v));
        BL_TRY(bl_jn_sb_done(c, &sb, &r));
        return put_str(c, out, &text, '>', r.s);
    }
    case 'd':
    case 'i':
    case 'u':
        if (v.t == BL_JN_FLOAT && v.f > -9.2e18 && v.f < 9.2e18) {
            v = bl_jn_int((int64_t)v.f);
        }
        /* fall through */
    case 'x':
    case 'X':
    case 'o':
        if (!bl_jn_as_index(v, &i)) {
            return BL_JN_FAIL(c, "%%%c format: a number is required, not %s", f->type, bl_jn_type_name(v));
        }
        return put_int(c, out, f, f->type == 'i' || f->type == 'u' ? 'd' : f->type, i);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!bl_jn_as_double(v, &d)) {
            return BL_JN_FAIL(c, "must be real number, not %s", bl_jn_type_name(v));
        }
        return put_float(c, out, f, f->type, d);
    default:
        return BL_JN_FAIL(c, "format character '%c' is not supported", f->type);
    }
}

static bl_code percent_key(bl_jn_ctx *c, percent *p, bl_jn_val *ret) {
    const char *close = memchr(p->fmt->p + p->pos, ')', p->fmt->n - p->pos);
    if (!close) {
        return BL_JN_FAIL(c, "incomplete format key");
    }
    if (p->args.t != BL_JN_DICT) {
        return BL_JN_FAIL(c, "format requires a mapping");
    }
    bl_jn_str key = {
        .p = p->fmt->p + p->pos + 1, .n = (size_t)(close - p->fmt->p) - p->pos - 1, .n_cp = SIZE_MAX};
    const bl_jn_val *v = bl_jn_dict_get_str(p->args.d, &key);
    if (!v) {
        return BL_JN_FAIL(c, "format key is not in the mapping");
    }
    p->pos = (size_t)(close - p->fmt->p) + 1;
    *ret = *v;
    return BL_OK;
}

static bl_code percent_one(bl_jn_ctx *c, percent *p, bl_jn_sb *out) {
    bl_jn_val v = bl_jn_missing();
    spec f;
    if (p->pos < p->fmt->n && p->fmt->p[p->pos] == '(') {
        BL_TRY(percent_key(c, p, &v));
    }
    if (p->pos < p->fmt->n && p->fmt->p[p->pos] == '%') {
        p->pos++;
        return bl_jn_sb_add(c, out, "%", 1, BL_JN_ORIGIN_TEMPLATE);
    }
    BL_TRY(parse_percent_spec(c, p, &f));
    if (v.t == BL_JN_MISSING) {
        BL_TRY(next_arg(c, p, &v));
    }
    return percent_value(c, out, &f, v);
}

bl_code bl_jn_percent(bl_jn_ctx *c, bl_jn_str *fmt, bl_jn_val args, bl_jn_val *ret) {
    percent p = {.fmt = fmt, .args = args};
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    if (fmt->markup) {
        return BL_JN_FAIL(c, "%% formatting of text marked safe is not supported");
    }
    while (p.pos < fmt->n) {
        const char *hit = memchr(fmt->p + p.pos, '%', fmt->n - p.pos);
        size_t end = hit ? (size_t)(hit - fmt->p) : fmt->n;
        BL_TRY(bl_jn_sb_add_sub(c, &sb, fmt, p.pos, end - p.pos));
        p.pos = end;
        if (hit) {
            p.pos++;
            BL_TRY(percent_one(c, &p, &sb));
        }
    }
    /* Python overlooks unused arguments only when they come as a mapping; anything subscriptable counts as
     * one. */
    bool mapping =
        args.t == BL_JN_DICT || args.t == BL_JN_LIST || args.t == BL_JN_UNDEF || args.t == BL_JN_RANGE;
    bool left_over = args.t == BL_JN_TUPLE ? p.next < args.l->n : !p.used_single && !mapping;
    if (left_over) {
        return BL_JN_FAIL(c, "not all arguments converted during string formatting");
    }
    return bl_jn_sb_done(c, &sb, ret);
}

/* ---- str.format ---- */

typedef struct {
    const bl_jn_str *fmt;
    const bl_jn_args *args;
    size_t auto_index;
    bool manual; /* a field was numbered by hand */
} formatter;

static bool is_digits(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') {
            return false;
        }
    }
    return n > 0;
}

/* string.Formatter.get_value: what the part before the first '.' or '[' names. */
static bl_code field_base(bl_jn_ctx *c, formatter *f, const char *p, size_t n, bl_jn_val *ret) {
    if (!is_digits(p, n)) {
        bl_jn_str name = {.p = p, .n = n, .n_cp = SIZE_MAX};
        for (size_t i = 0; i < f->args->n_kw; i++) {
            if (bl_jn_str_eq(f->args->kw[i].name, &name)) {
                *ret = f->args->kw[i].v;
                return BL_OK;
            }
        }
        return BL_JN_FAIL(c, "format: no argument named '%.*s'", (int)BL_MIN(n, (size_t)60), p);
    }
    bl_jn_str digits = {.p = p, .n = n};
    size_t pos = 0;
    int64_t index;
    BL_TRY(parse_count(c, &digits, &pos, &index));
    if ((size_t)index >= f->args->n_pos) {
        return BL_JN_FAIL(c, "format: replacement index %lld out of range", (long long)index);
    }
    *ret = f->args->pos[index];
    return BL_OK;
}

/* string.Formatter.vformat: an empty field takes the next argument; a number by hand forbids that. */
static bl_code next_field(bl_jn_ctx *c, formatter *f, bl_jn_val *ret) {
    if (f->manual) {
        return BL_JN_FAIL(c, "format: cannot switch from manual to automatic field numbering");
    }
    if (f->auto_index >= f->args->n_pos) {
        return BL_JN_FAIL(c, "format: replacement index %zu out of range", f->auto_index);
    }
    *ret = f->args->pos[f->auto_index++];
    return BL_OK;
}

/* name(.attr | [item])* */
static bl_code field_value(bl_jn_ctx *c, formatter *f, const char *p, size_t n, bl_jn_val *ret) {
    size_t i = 0;
    if (n == 0) {
        return next_field(c, f, ret);
    }
    if (is_digits(p, n)) {
        if (f->auto_index > 0) {
            return BL_JN_FAIL(c, "format: cannot switch from automatic to manual field numbering");
        }
        f->manual = true;
    }
    while (i < n && p[i] != '.' && p[i] != '[') {
        i++;
    }
    BL_TRY(field_base(c, f, p, i, ret));
    while (i < n) {
        bool attr = p[i++] == '.';
        size_t start = i;
        while (i < n && (attr ? p[i] != '.' && p[i] != '[' : p[i] != ']')) {
            i++;
        }
        if (i == start || (!attr && i >= n)) {
            return BL_JN_FAIL(c, "format: malformed field name");
        }
        bl_jn_val key;
        BL_TRY(bl_jn_new_str(c, p + start, i - start, BL_JN_ORIGIN_TEMPLATE, &key));
        if (attr) {
            BL_TRY(bl_jn_getattr(c, *ret, key.s, ret));
            continue;
        }
        if (is_digits(p + start, i - start)) {
            size_t pos = 0;
            int64_t v;
            BL_TRY(parse_count(c, key.s, &pos, &v));
            key = bl_jn_int(v);
        }
        BL_TRY(bl_jn_getitem(c, *ret, key, ret));
        i++;
        if (i < n && p[i] != '.' && p[i] != '[') {
            return BL_JN_FAIL(c, "format: malformed field name");
        }
    }
    return BL_OK;
}

static bl_code parse_spec(bl_jn_ctx *c, const bl_jn_str *s, bl_jn_str *fill, spec *f) {
    size_t pos = 0, len = 0;
    *f = (spec){.width = -1, .precision = -1};
    if (s->n > 0) {
        (void)bl_jn_cp_at(s, 0, &len);
    }
    if (len < s->n && s->n > 0 && s->p[len] && strchr("<>=^", s->p[len])) {
        *fill = (bl_jn_str){.p = s->p, .n = len, .n_cp = 1};
        f->fill = fill;
        f->align = s->p[len];
        pos = len + 1;
    } else if (s->n > 0 && s->p[0] && strchr("<>=^", s->p[0])) {
        f->align = s->p[0];
        pos = 1;
    }
    if (pos < s->n && s->p[pos] && strchr("+- ", s->p[pos])) {
        f->sign = s->p[pos++];
    }
    if (pos < s->n && s->p[pos] == '#') {
        f->alt = true;
        pos++;
    }
    if (pos < s->n && s->p[pos] == '0') {
        f->zero = true;
        pos++;
    }
    BL_TRY(parse_count(c, s, &pos, &f->width));
    if (pos < s->n && (s->p[pos] == ',' || s->p[pos] == '_')) {
        f->group = s->p[pos++];
    }
    if (pos < s->n && s->p[pos] == '.') {
        pos++;
        if (pos >= s->n || !is_digits(s->p + pos, 1)) {
            return BL_JN_FAIL(c, "format specifier missing precision");
        }
        BL_TRY(parse_count(c, s, &pos, &f->precision));
    }
    if (pos < s->n) {
        f->type = s->p[pos++];
    }
    if (pos < s->n || (f->group && f->zero)) {
        return BL_JN_FAIL(c, "invalid or unsupported format specifier");
    }
    return BL_OK;
}

static bl_code put_formatted(bl_jn_ctx *c, bl_jn_sb *out, bl_jn_val v, const bl_jn_str *s) {
    bl_jn_str fill;
    spec f;
    int64_t i;
    if (s->n == 0) {
        bl_jn_str *text;
        BL_TRY(bl_jn_to_str(c, v, &text));
        return bl_jn_sb_add_str(c, out, text);
    }
    BL_TRY(parse_spec(c, s, &fill, &f));
    if (v.t == BL_JN_STR && (f.type == 0 || f.type == 's') && !f.sign && !f.alt && !f.group &&
        f.align != '=') {
        if (f.zero && !f.align) { /* a zero before the width of a string: left-aligned zeros */
            fill = (bl_jn_str){.p = "0", .n = 1, .n_cp = 1};
            f.fill = &fill;
            f.align = '<';
        }
        return put_str(c, out, &f, '<', v.s);
    }
    if (v.t != BL_JN_STR && bl_jn_as_index(v, &i)) {
        if (f.type == 0 || (f.type && strchr("dxXob", f.type))) {
            if (f.precision >= 0) {
                return BL_JN_FAIL(c, "precision not allowed in integer format specifier");
            }
            return put_int(c, out, &f, f.type ? f.type : 'd', i);
        }
        v = bl_jn_float((double)i);
    }
    if (v.t == BL_JN_FLOAT && (f.type == 0 || strchr("eEfFgG%", f.type))) {
        return put_float(c, out, &f, f.type, v.f);
    }
    return BL_JN_FAIL(c, "unsupported format for '%s'", bl_jn_type_name(v));
}

/* "{...}" without its braces. */
static bl_code put_replacement(bl_jn_ctx *c, formatter *f, bl_jn_sb *out, size_t start, size_t end) {
    const char *p = f->fmt->p;
    size_t name_end = start;
    while (name_end < end && p[name_end] != '!' && p[name_end] != ':') {
        name_end += 1;
    }
    bl_jn_val v;
    BL_TRY(field_value(c, f, p + start, name_end - start, &v));
    size_t pos = name_end;
    if (pos < end && p[pos] == '!') {
        char conv = pos + 1 < end ? p[pos + 1] : '\0';
        pos += 2;
        bl_jn_sb sb;
        bl_jn_sb_init(&sb);
        if (conv == 's') {
            BL_TRY(bl_jn_sb_print(c, &sb, v));
        } else if (conv == 'r') {
            BL_TRY(bl_jn_sb_repr(c, &sb, v));
        } else {
            return BL_JN_FAIL(c, "format: conversion is not supported");
        }
        BL_TRY(bl_jn_sb_done(c, &sb, &v));
    }
    bl_jn_str spec_text = {.p = "", .n_cp = SIZE_MAX};
    if (pos < end) {
        if (p[pos] != ':') {
            return BL_JN_FAIL(c, "format: expected ':' after conversion specifier");
        }
        spec_text.p = p + pos + 1;
        spec_text.n = end - pos - 1;
    }
    return put_formatted(c, out, v, &spec_text);
}

bl_code bl_jn_str_format(bl_jn_ctx *c, bl_jn_val self, const bl_jn_args *a, bl_jn_val *ret) {
    const bl_jn_str *s = self.s;
    formatter f = {.fmt = s, .args = a};
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    if (s->markup) {
        return BL_JN_FAIL(c, "format() on text marked safe is not supported");
    }
    for (size_t i = 0; i < s->n;) {
        char ch = s->p[i];
        if (ch != '{' && ch != '}') {
            size_t start = i;
            while (i < s->n && s->p[i] != '{' && s->p[i] != '}') {
                i++;
            }
            BL_TRY(bl_jn_sb_add_sub(c, &sb, s, start, i - start));
            continue;
        }
        if (i + 1 < s->n && s->p[i + 1] == ch) {
            BL_TRY(bl_jn_sb_add_sub(c, &sb, s, i, 1));
            i += 2;
            continue;
        }
        const char *close = ch == '{' ? memchr(s->p + i, '}', s->n - i) : NULL;
        if (!close) {
            return BL_JN_FAIL(c, "format: single '%c' in the string", ch);
        }
        size_t end = (size_t)(close - s->p);
        if (memchr(s->p + i + 1, '{', end - i - 1)) {
            return BL_JN_FAIL(c, "format: fields inside fields are not supported");
        }
        BL_TRY(put_replacement(c, &f, &sb, i + 1, end));
        i = end + 1;
    }
    return bl_jn_sb_done(c, &sb, ret);
}

/* ---- dates ---- */

bl_code bl_jn_strftime(bl_jn_ctx *c, const bl_jn_str *fmt, bl_jn_val *ret) {
    time_t t = (time_t)(c->now_unix_s != 0 ? c->now_unix_s : bl_clock_wall_s());
    struct tm tm;
    if (!gmtime_r(&t, &tm)) {
        return BL_JN_FAIL(c, "the date is out of range");
    }
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    for (size_t i = 0; i < fmt->n;) {
        if (fmt->p[i] != '%') {
            BL_TRY(bl_jn_sb_add_sub(c, &sb, fmt, i, 1));
            i++;
            continue;
        }
        char directive[4] = {'%', 0, 0, 0};
        size_t n = 1;
        i++;
        if (i < fmt->n && fmt->p[i] == '-') { /* glibc: no padding */
            directive[n++] = fmt->p[i++];
        }
        if (i >= fmt->n || !fmt->p[i] || !strchr("aAbBcdHIjmMpSUwWxXyYeDFTRGuV%", fmt->p[i])) {
            return BL_JN_FAIL(c, "strftime_now: unsupported directive");
        }
        directive[n] = fmt->p[i++];
        char text[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* one directive, checked above */
        size_t len = strftime(text, sizeof text, directive, &tm);
#pragma GCC diagnostic pop
        BL_TRY(bl_jn_sb_add(c, &sb, text, len, BL_JN_ORIGIN_TEMPLATE));
    }
    return bl_jn_sb_done(c, &sb, ret);
}
