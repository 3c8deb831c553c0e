/* Arithmetic and number printing as Python does them; integers beyond 64 bits are refused, never wrapped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jinja_private.h"

bool bl_jn_as_index(bl_jn_val v, int64_t *ret) {
    if (v.t == BL_JN_INT || v.t == BL_JN_BOOL) {
        *ret = v.t == BL_JN_INT ? v.i : v.b;
        return true;
    }
    return false;
}

bool bl_jn_as_double(bl_jn_val v, double *ret) {
    int64_t i;
    if (v.t == BL_JN_FLOAT) {
        *ret = v.f;
        return true;
    }
    if (bl_jn_as_index(v, &i)) {
        *ret = (double)i;
        return true;
    }
    return false;
}

/* Shortest digits that read back as f, laid out like Python's repr. out has room for 40. */
size_t bl_jn_float_repr(double f, char out[40]) {
    if (isnan(f) || isinf(f)) {
        const char *s = isnan(f) ? "nan" : f < 0 ? "-inf" : "inf";
        memcpy(out, s, strlen(s) + 1);
        return strlen(s);
    }
    char sci[40];
    for (int prec = 0; prec <= 16; prec++) {
        (void)snprintf(sci, sizeof sci, "%.*e", prec, f);
        if (strtod(sci, NULL) == f) {
            break;
        }
    }
    char digits[24];
    size_t n = 0, w = 0;
    const char *p = sci;
    if (*p == '-') {
        out[w++] = '-';
        p++;
    }
    for (; *p && *p != 'e'; p++) {
        if (*p != '.') {
            digits[n++] = *p;
        }
    }
    int exp = *p == 'e' ? (int)strtod(p + 1, NULL) : 0;
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    if (exp < -4 || exp >= 16) {
        out[w++] = digits[0];
        if (n > 1) {
            out[w++] = '.';
            memcpy(out + w, digits + 1, n - 1);
            w += n - 1;
        }
        w += (size_t)snprintf(out + w, 40 - w, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return w;
    }
    if (exp < 0) {
        memcpy(out + w, "0.", 2);
        w += 2;
        for (int i = -1; i > exp; i--) {
            out[w++] = '0';
        }
        memcpy(out + w, digits, n);
        w += n;
    } else {
        for (int i = 0; i <= exp; i++) {
            out[w++] = (size_t)i < n ? digits[i] : '0';
        }
        out[w++] = '.';
        if (n > (size_t)exp + 1) {
            memcpy(out + w, digits + exp + 1, n - (size_t)exp - 1);
            w += n - (size_t)exp - 1;
        } else {
            out[w++] = '0';
        }
    }
    out[w] = '\0';
    return w;
}

static bl_code overflow(bl_jn_ctx *c) {
    BL_FAIL(c->err, BL_ERANGE, "chat template line %u: integer beyond 64 bits", c->line);
}

static bl_code zero_division(bl_jn_ctx *c) {
    return BL_JN_FAIL(c, "division by zero");
}

static bl_code int_pow(bl_jn_ctx *c, int64_t a, int64_t b, bl_jn_val *ret) {
    int64_t r = 1;
    while (b > 0) {
        if ((b & 1) && __builtin_mul_overflow(r, a, &r)) {
            return overflow(c);
        }
        b >>= 1;
        if (b > 0 && __builtin_mul_overflow(a, a, &a)) {
            return overflow(c);
        }
    }
    *ret = bl_jn_int(r);
    return BL_OK;
}

static bl_code float_pow(bl_jn_ctx *c, double a, double b, bl_jn_val *ret) {
    if (a == 0 && b < 0) {
        return zero_division(c);
    }
    if (a < 0 && b != floor(b)) {
        return BL_JN_FAIL(c, "complex numbers are not supported");
    }
    double r = pow(a, b);
    if (isinf(r) && !isinf(a) && !isinf(b)) {
        return BL_JN_FAIL(c, "number out of range");
    }
    *ret = bl_jn_float(r);
    return BL_OK;
}

static bl_code int_binary(bl_jn_ctx *c, bl_jn_op op, int64_t a, int64_t b, bl_jn_val *ret) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case BL_JN_OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case BL_JN_OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case BL_JN_OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case BL_JN_OP_DIV:
        if (b == 0) {
            return zero_division(c);
        }
        *ret = bl_jn_float((double)a / (double)b);
        return BL_OK;
    case BL_JN_OP_FLOORDIV:
    case BL_JN_OP_MOD:
        if (b == 0) {
            return zero_division(c);
        }
        if (b == -1) { /* INT64_MIN / -1 traps */
            over = op == BL_JN_OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == BL_JN_OP_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) {
            r = op == BL_JN_OP_MOD ? r + b : r - 1;
        }
        break;
    default:
        return b >= 0 ? int_pow(c, a, b, ret) : float_pow(c, (double)a, (double)b, ret);
    }
    if (over) {
        return overflow(c);
    }
    *ret = bl_jn_int(r);
    return BL_OK;
}

/* Python's float modulo: the sign of the divisor. */
static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m != 0) {
        return (b < 0) != (m < 0) ? m + b : m;
    }
    return copysign(0.0, b);
}

static double float_floordiv(double a, double b) {
    double m = fmod(a, b);
    double d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) {
        d -= 1.0;
    }
    if (d == 0) {
        return copysign(0.0, a / b);
    }
    double f = floor(d);
    return d - f > 0.5 ? f + 1.0 : f;
}

static bl_code float_binary(bl_jn_ctx *c, bl_jn_op op, double a, double b, bl_jn_val *ret) {
    double r = 0;
    if (b == 0 && (op == BL_JN_OP_DIV || op == BL_JN_OP_FLOORDIV || op == BL_JN_OP_MOD)) {
        return zero_division(c);
    }
    switch (op) {
    case BL_JN_OP_ADD:
        r = a + b;
        break;
    case BL_JN_OP_SUB:
        r = a - b;
        break;
    case BL_JN_OP_MUL:
        r = a * b;
        break;
    case BL_JN_OP_DIV:
        r = a / b;
        break;
    case BL_JN_OP_FLOORDIV:
        r = float_floordiv(a, b);
        break;
    case BL_JN_OP_MOD:
        r = float_mod(a, b);
        break;
    default:
        return float_pow(c, a, b, ret);
    }
    *ret = bl_jn_float(r);
    return BL_OK;
}

static bl_code repeat(bl_jn_ctx *c, bl_jn_val v, int64_t times, bl_jn_val *ret) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (v.t == BL_JN_STR) {
        bl_jn_sb sb;
        bl_jn_sb_init(&sb);
        for (size_t i = 0; i < n && v.s->n > 0; i++) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, v.s));
        }
        BL_TRY(bl_jn_sb_done(c, &sb, ret));
        ret->s->markup = v.s->markup;
        return BL_OK;
    }
    uint64_t total;
    if (!bl_mul_u64(n, v.l->n, &total)) {
        return overflow(c);
    }
    BL_TRY(bl_jn_new_list(c, v.t, (size_t)total, ret));
    for (size_t i = 0; i < (size_t)total; i++) {
        ret->l->v[i] = v.l->v[i % v.l->n];
    }
    return BL_OK;
}

static bl_code join_lists(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_list(c, a.t, a.l->n + b.l->n, ret));
    memcpy(ret->l->v, a.l->v, a.l->n * sizeof *a.l->v);
    memcpy(ret->l->v + a.l->n, b.l->v, b.l->n * sizeof *b.l->v);
    return BL_OK;
}

/* One side Markup: the other is escaped, the sum is Markup. */
static bl_code add_strings(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) {
    if (a.s->markup || b.s->markup) {
        BL_TRY(bl_jn_escape(c, a.s, &a));
        BL_TRY(bl_jn_escape(c, b.s, &b));
    }
    return bl_jn_concat(c, a.s, b.s, ret);
}

static bool is_seq(bl_jn_val v) {
    return v.t == BL_JN_STR || v.t == BL_JN_LIST || v.t == BL_JN_TUPLE;
}

bl_code bl_jn_binary(bl_jn_ctx *c, bl_jn_op op, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) {
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};
    int64_t ia = 0, ib = 0;
    double da, db;
    bool a_int = bl_jn_as_index(a, &ia), b_int = bl_jn_as_index(b, &ib);
    if (a_int && b_int) {
        return int_binary(c, op, ia, ib, ret);
    }
    if (bl_jn_as_double(a, &da) && bl_jn_as_double(b, &db)) {
        return float_binary(c, op, da, db, ret);
    }
    if (a.t == BL_JN_STR && op == BL_JN_OP_MOD) {
        return bl_jn_percent(c, a.s, b, ret);
    }
    if (a.t == BL_JN_UNDEF || b.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, a.t == BL_JN_UNDEF ? a : b);
    }
    if (op == BL_JN_OP_ADD && a.t == b.t && is_seq(a)) {
        return a.t == BL_JN_STR ? add_strings(c, a, b, ret) : join_lists(c, a, b, ret);
    }
    if (op == BL_JN_OP_MUL && is_seq(a) && b_int) {
        return repeat(c, a, ib, ret);
    }
    if (op == BL_JN_OP_MUL && a_int && is_seq(b)) {
        return repeat(c, b, ia, ret);
    }
    return BL_JN_FAIL(c, "unsupported operand types for %s: '%s' and '%s'", symbols[op], bl_jn_type_name(a),
                      bl_jn_type_name(b));
}
