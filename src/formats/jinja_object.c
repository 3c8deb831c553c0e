/* Python's protocols on values: truth, equality, order, membership, length, printing, iteration. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/jinja_private.h"

const char *bl_jn_type_name(bl_jn_val v) {
    static const char *const names[] = {
        [BL_JN_MISSING] = "missing", [BL_JN_UNDEF] = "Undefined", [BL_JN_NONE] = "NoneType",
        [BL_JN_BOOL] = "bool",       [BL_JN_INT] = "int",         [BL_JN_FLOAT] = "float",
        [BL_JN_STR] = "str",         [BL_JN_LIST] = "list",       [BL_JN_TUPLE] = "tuple",
        [BL_JN_DICT] = "dict",       [BL_JN_VIEW] = "dict_items", [BL_JN_RANGE] = "range",
        [BL_JN_ITER] = "generator",  [BL_JN_NS] = "Namespace",    [BL_JN_MACRO] = "Macro",
        [BL_JN_FUNC] = "function",   [BL_JN_METHOD] = "method",   [BL_JN_LOOP] = "LoopContext",
    };
    if (v.t == BL_JN_VIEW && v.view->what != 'i') {
        return v.view->what == 'k' ? "dict_keys" : "dict_values";
    }
    return names[v.t];
}

bool bl_jn_truth(bl_jn_val v) {
    switch (v.t) {
    case BL_JN_MISSING:
    case BL_JN_UNDEF:
    case BL_JN_NONE:
        return false;
    case BL_JN_BOOL:
        return v.b;
    case BL_JN_INT:
        return v.i != 0;
    case BL_JN_FLOAT:
        return v.f != 0;
    case BL_JN_STR:
        return v.s->n > 0;
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        return v.l->n > 0;
    case BL_JN_DICT:
        return v.d->n > 0;
    case BL_JN_VIEW:
        return v.view->d->n > 0;
    case BL_JN_RANGE:
        return v.r->n > 0;
    default:
        return true;
    }
}

/* ---- equality and order ---- */

/* Exact comparison of an integer and a double: -1, 0, 1; 2 for NaN. */
static int cmp_int_double(int64_t i, double d) {
    if (isnan(d)) {
        return 2;
    }
    if (d >= 9223372036854775808.0) {
        return -1;
    }
    if (d < -9223372036854775808.0) {
        return 1;
    }
    int64_t whole = (int64_t)d; /* toward zero */
    if (i != whole) {
        return i < whole ? -1 : 1;
    }
    double rest = d - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* Numbers only: -1, 0, 1, 2 (NaN); 3 when one of them is none. */
static int cmp_numbers(bl_jn_val a, bl_jn_val b) {
    int64_t ia, ib;
    bool a_int = bl_jn_as_index(a, &ia), b_int = bl_jn_as_index(b, &ib);
    if (a_int && b_int) {
        return (ia > ib) - (ia < ib);
    }
    if (a_int && b.t == BL_JN_FLOAT) {
        return cmp_int_double(ia, b.f);
    }
    if (a.t == BL_JN_FLOAT && b_int) {
        int r = cmp_int_double(ib, a.f);
        return r == 2 ? 2 : -r;
    }
    if (a.t == BL_JN_FLOAT && b.t == BL_JN_FLOAT) {
        return isnan(a.f) || isnan(b.f) ? 2 : (a.f > b.f) - (a.f < b.f);
    }
    return 3;
}

static bl_code lists_eq(bl_jn_ctx *c, const bl_jn_list *a, const bl_jn_list *b, bool *ret) {
    *ret = a->n == b->n;
    for (size_t i = 0; i < a->n && *ret; i++) {
        BL_TRY(bl_jn_eq(c, a->v[i], b->v[i], ret));
    }
    return BL_OK;
}

static bl_code dicts_eq(bl_jn_ctx *c, const bl_jn_dict *a, const bl_jn_dict *b, bool *ret) {
    *ret = a->n == b->n;
    for (size_t i = 0; i < a->n && *ret; i++) {
        const bl_jn_val *other;
        BL_TRY(bl_jn_dict_get(c, b, a->e[i].key, &other));
        *ret = other != NULL;
        if (other) {
            BL_TRY(bl_jn_eq(c, a->e[i].val, *other, ret));
        }
    }
    return BL_OK;
}

static bool ranges_eq(const bl_jn_range *a, const bl_jn_range *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bl_code eq_inner(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bool *ret) {
    *ret = false;
    if (a.t != b.t) {
        return BL_OK;
    }
    switch (a.t) {
    case BL_JN_UNDEF:
    case BL_JN_NONE:
        *ret = true;
        return BL_OK;
    case BL_JN_STR:
        BL_TRY(bl_jn_charge(c, BL_MIN(a.s->n, b.s->n)));
        *ret = bl_jn_str_eq(a.s, b.s);
        return BL_OK;
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        return lists_eq(c, a.l, b.l, ret);
    case BL_JN_DICT:
        return dicts_eq(c, a.d, b.d, ret);
    case BL_JN_RANGE:
        *ret = ranges_eq(a.r, b.r);
        return BL_OK;
    case BL_JN_VIEW:
        return BL_JN_FAIL(c, "comparing %s is not supported", bl_jn_type_name(a));
    case BL_JN_FUNC:
        *ret = a.fn == b.fn;
        return BL_OK;
    default:
        *ret = a.d == b.d; /* identity: all remaining kinds hold one pointer */
        return BL_OK;
    }
}

bl_code bl_jn_eq(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bool *ret) {
    int r = cmp_numbers(a, b);
    if (r != 3) {
        *ret = r == 0;
        return BL_OK;
    }
    BL_TRY(bl_jn_enter(c));
    BL_TRY(bl_jn_charge(c, 0));
    bl_code rc = eq_inner(c, a, b, ret);
    bl_jn_leave(c);
    return rc;
}

static bl_code order_lists(bl_jn_ctx *c, const bl_jn_list *a, const bl_jn_list *b, const char *op, int *ret) {
    size_t n = BL_MIN(a->n, b->n);
    for (size_t i = 0; i < n; i++) {
        bool eq;
        BL_TRY(bl_jn_eq(c, a->v[i], b->v[i], &eq));
        if (!eq) {
            return bl_jn_order(c, a->v[i], b->v[i], op, ret);
        }
    }
    *ret = (a->n > b->n) - (a->n < b->n);
    return BL_OK;
}

bl_code bl_jn_order(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, const char *op, int *ret) {
    int r = cmp_numbers(a, b);
    if (r != 3) {
        *ret = r;
        return BL_OK;
    }
    if (a.t == BL_JN_STR && b.t == BL_JN_STR) {
        BL_TRY(bl_jn_charge(c, BL_MIN(a.s->n, b.s->n)));
        *ret = bl_jn_str_cmp(a.s, b.s);
        return BL_OK;
    }
    if (a.t == b.t && (a.t == BL_JN_LIST || a.t == BL_JN_TUPLE)) {
        BL_TRY(bl_jn_enter(c));
        bl_code rc = order_lists(c, a.l, b.l, op, ret);
        bl_jn_leave(c);
        return rc;
    }
    if (a.t == BL_JN_UNDEF || b.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, a.t == BL_JN_UNDEF ? a : b);
    }
    return BL_JN_FAIL(c, "'%s' not supported between instances of '%s' and '%s'", op, bl_jn_type_name(a),
                      bl_jn_type_name(b));
}

bl_code bl_jn_compare(bl_jn_ctx *c, bl_jn_op op, bl_jn_val a, bl_jn_val b, bool *ret) {
    static const char *const names[] = {
        [BL_JN_OP_LT] = "<", [BL_JN_OP_LE] = "<=", [BL_JN_OP_GT] = ">", [BL_JN_OP_GE] = ">="};
    int r;
    switch (op) {
    case BL_JN_OP_EQ:
    case BL_JN_OP_NE:
        BL_TRY(bl_jn_eq(c, a, b, ret));
        *ret = op == BL_JN_OP_EQ ? *ret : !*ret;
        return BL_OK;
    case BL_JN_OP_IN:
    case BL_JN_OP_NOTIN:
        BL_TRY(bl_jn_contains(c, b, a, ret));
        *ret = op == BL_JN_OP_IN ? *ret : !*ret;
        return BL_OK;
    default:
        break;
    }
    BL_TRY(bl_jn_order(c, a, b, names[op], &r));
    *ret = r != 2 && (op == BL_JN_OP_LT   ? r < 0
                      : op == BL_JN_OP_LE ? r <= 0
                      : op == BL_JN_OP_GT ? r > 0
                                          : r >= 0);
    return BL_OK;
}

/* ---- membership and length ---- */

static bl_code scan_for(bl_jn_ctx *c, bl_jn_val box, bl_jn_val item, bool *ret) {
    bl_jn_iter *it;
    BL_TRY(bl_jn_iterate(c, box, &it));
    *ret = false;
    for (;;) {
        bl_jn_val v;
        bool got;
        BL_TRY(bl_jn_next(c, it, &v, &got));
        if (!got) {
            return BL_OK;
        }
        BL_TRY(bl_jn_eq(c, v, item, ret));
        if (*ret) {
            return BL_OK;
        }
    }
}

bl_code bl_jn_contains(bl_jn_ctx *c, bl_jn_val box, bl_jn_val item, bool *ret) {
    const bl_jn_val *found;
    switch (box.t) {
    case BL_JN_STR:
        if (item.t != BL_JN_STR) {
            return BL_JN_FAIL(c, "'in <string>' requires string as left operand, not %s",
                              bl_jn_type_name(item));
        }
        BL_TRY(bl_jn_charge(c, box.s->n));
        *ret = bl_jn_str_find(box.s, item.s, 0) != SIZE_MAX;
        return BL_OK;
    case BL_JN_DICT:
        BL_TRY(bl_jn_dict_get(c, box.d, item, &found));
        *ret = found != NULL;
        return BL_OK;
    case BL_JN_VIEW:
        if (box.view->what == 'k') {
            BL_TRY(bl_jn_dict_get(c, box.view->d, item, &found));
            *ret = found != NULL;
            return BL_OK;
        }
        return scan_for(c, box, item, ret);
    case BL_JN_LIST:
    case BL_JN_TUPLE:
    case BL_JN_RANGE:
    case BL_JN_ITER:
    case BL_JN_UNDEF:
        return scan_for(c, box, item, ret);
    default:
        return BL_JN_FAIL(c, "argument of type '%s' is not iterable", bl_jn_type_name(box));
    }
}

bl_code bl_jn_len(bl_jn_ctx *c, bl_jn_val v, int64_t *ret, bool *ret_has) {
    *ret_has = true;
    *ret = 0;
    switch (v.t) {
    case BL_JN_UNDEF:
        return BL_OK;
    case BL_JN_STR:
        BL_TRY(bl_jn_charge(c, v.s->n_cp == SIZE_MAX ? v.s->n : 0));
        *ret = (int64_t)bl_jn_str_len(v.s);
        return BL_OK;
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        *ret = (int64_t)v.l->n;
        return BL_OK;
    case BL_JN_DICT:
        *ret = (int64_t)v.d->n;
        return BL_OK;
    case BL_JN_VIEW:
        *ret = (int64_t)v.view->d->n;
        return BL_OK;
    case BL_JN_RANGE:
        *ret = v.r->n;
        return BL_OK;
    case BL_JN_LOOP:
        return bl_jn_loop_length(c, v.loop, ret);
    default:
        *ret_has = false;
        return BL_OK;
    }
}

/* ---- printing ---- */

static bl_code repr_str(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_str *s) {
    bool has_single = s->n > 0 && memchr(s->p, '\'', s->n);
    bool has_double = s->n > 0 && memchr(s->p, '"', s->n);
    char quote = has_single && !has_double ? '"' : '\'';
    char q[2] = {quote, 0};
    if (s->markup) {
        BL_TRY(bl_jn_sb_add_cstr(c, b, "Markup("));
    }
    BL_TRY(bl_jn_sb_add_cstr(c, b, q));
    for (size_t i = 0; i < s->n;) {
        size_t len;
        uint32_t cp = bl_jn_cp_at(s, i, &len);
        char esc[16];
        esc[0] = '\0';
        if (cp == (unsigned char)quote || cp == '\\') {
            (void)snprintf(esc, sizeof esc, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            (void)snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        } else if (!bl_jn_is_printable(cp)) {
            (void)snprintf(esc, sizeof esc,
                           cp < 0x100     ? "\\x%02x"
                           : cp < 0x10000 ? "\\u%04x"
                                          : "\\U%08x",
                           cp);
        }
        if (esc[0]) {
            BL_TRY(bl_jn_sb_add(c, b, esc, strlen(esc), bl_jn_origin_at(s, i)));
        } else {
            BL_TRY(bl_jn_sb_add_sub(c, b, s, i, len));
        }
        i += len;
    }
    BL_TRY(bl_jn_sb_add_cstr(c, b, q));
    return s->markup ? bl_jn_sb_add_cstr(c, b, ")") : BL_OK;
}

static bl_code repr_items(bl_jn_ctx *c, bl_jn_sb *b, const char *open, const bl_jn_val *v, size_t n,
                          const char *close) {
    BL_TRY(bl_jn_sb_add_cstr(c, b, open));
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            BL_TRY(bl_jn_sb_add_cstr(c, b, ", "));
        }
        BL_TRY(bl_jn_sb_repr(c, b, v[i]));
    }
    return bl_jn_sb_add_cstr(c, b, close);
}

static bl_code repr_dict(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_dict *d) {
    BL_TRY(bl_jn_sb_add_cstr(c, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) {
            BL_TRY(bl_jn_sb_add_cstr(c, b, ", "));
        }
        BL_TRY(bl_jn_sb_repr(c, b, d->e[i].key));
        BL_TRY(bl_jn_sb_add_cstr(c, b, ": "));
        BL_TRY(bl_jn_sb_repr(c, b, d->e[i].val));
    }
    return bl_jn_sb_add_cstr(c, b, "}");
}

static bl_code repr_view(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) {
    bl_jn_val items;
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &items));
    BL_TRY(bl_jn_sb_add_cstr(c, b, bl_jn_type_name(v)));
    return repr_items(c, b, "([", items.l->v, items.l->n, "])");
}

static bl_code repr_range(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_range *r) {
    char text[80];
    if (r->step == 1) {
        (void)snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    } else {
        (void)snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                       (long long)r->step);
    }
    return bl_jn_sb_add_cstr(c, b, text);
}

static bl_code repr_loop(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_loop *l) {
    int64_t n;
    char text[80];
    BL_TRY(bl_jn_loop_length(c, l, &n));
    (void)snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)l->index0 + 1, (long long)n);
    return bl_jn_sb_add_cstr(c, b, text);
}

static bl_code repr_macro(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_macro *m) {
    const bl_jn_str *name = m->node->macro->name;
    if (!name) {
        return bl_jn_sb_add_cstr(c, b, "<Macro anonymous>");
    }
    BL_TRY(bl_jn_sb_add_cstr(c, b, "<Macro "));
    BL_TRY(repr_str(c, b, name));
    return bl_jn_sb_add_cstr(c, b, ">");
}

static bl_code repr_inner(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) {
    char text[40];
    switch (v.t) {
    case BL_JN_UNDEF:
        return bl_jn_sb_add_cstr(c, b, "Undefined");
    case BL_JN_NONE:
        return bl_jn_sb_add_cstr(c, b, "None");
    case BL_JN_BOOL:
        return bl_jn_sb_add_cstr(c, b, v.b ? "True" : "False");
    case BL_JN_INT:
        (void)snprintf(text, sizeof text, "%lld", (long long)v.i);
        return bl_jn_sb_add_cstr(c, b, text);
    case BL_JN_FLOAT:
        (void)bl_jn_float_repr(v.f, text);
        return bl_jn_sb_add_cstr(c, b, text);
    case BL_JN_STR:
        return repr_str(c, b, v.s);
    case BL_JN_LIST:
        return repr_items(c, b, "[", v.l->v, v.l->n, "]");
    case BL_JN_TUPLE:
        return repr_items(c, b, "(", v.l->v, v.l->n, v.l->n == 1 ? ",)" : ")");
    case BL_JN_DICT:
        return repr_dict(c, b, v.d);
    case BL_JN_VIEW:
        return repr_view(c, b, v);
    case BL_JN_RANGE:
        return repr_range(c, b, v.r);
    case BL_JN_NS:
        BL_TRY(bl_jn_sb_add_cstr(c, b, "<Namespace "));
        BL_TRY(repr_dict(c, b, v.d));
        return bl_jn_sb_add_cstr(c, b, ">");
    case BL_JN_MACRO:
        return repr_macro(c, b, v.m);
    case BL_JN_LOOP:
        return repr_loop(c, b, v.loop);
    default: /* Python prints an address: nothing a template can mean */
        return BL_JN_FAIL(c, "a %s cannot be printed", bl_jn_type_name(v));
    }
}

bl_code bl_jn_sb_repr(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) {
    BL_TRY(bl_jn_enter(c));
    bl_code rc = repr_inner(c, b, v);
    bl_jn_leave(c);
    return rc;
}

bl_code bl_jn_sb_print(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) {
    if (v.t == BL_JN_STR) {
        return bl_jn_sb_add_str(c, b, v.s);
    }
    return v.t == BL_JN_UNDEF ? BL_OK : bl_jn_sb_repr(c, b, v);
}

bl_code bl_jn_soft_str(bl_jn_ctx *c, bl_jn_val v, bl_jn_str **ret) {
    if (v.t == BL_JN_STR) {
        *ret = v.s;
        return BL_OK;
    }
    bl_jn_sb sb;
    bl_jn_val s;
    bl_jn_sb_init(&sb);
    BL_TRY(bl_jn_sb_print(c, &sb, v));
    BL_TRY(bl_jn_sb_done(c, &sb, &s));
    *ret = s.s;
    return BL_OK;
}

bl_code bl_jn_to_str(bl_jn_ctx *c, bl_jn_val v, bl_jn_str **ret) {
    bl_jn_str *s;
    bl_jn_val plain;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    BL_TRY(bl_jn_as_markup(c, s, false, &plain));
    *ret = plain.s;
    return BL_OK;
}

/* ---- iteration ---- */

bool bl_jn_iterable(bl_jn_val v) {
    switch (v.t) {
    case BL_JN_UNDEF:
    case BL_JN_STR:
    case BL_JN_LIST:
    case BL_JN_TUPLE:
    case BL_JN_DICT:
    case BL_JN_VIEW:
    case BL_JN_RANGE:
    case BL_JN_ITER:
    case BL_JN_LOOP:
        return true;
    default:
        return false;
    }
}

bl_code bl_jn_iterate(bl_jn_ctx *c, bl_jn_val v, bl_jn_iter **ret) {
    if (v.t == BL_JN_ITER) {
        *ret = v.it;
        return BL_OK;
    }
    if (!bl_jn_iterable(v) || v.t == BL_JN_LOOP) {
        return BL_JN_FAIL(c, "'%s' object is not iterable", bl_jn_type_name(v));
    }
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_iter), &m));
    bl_jn_iter *it = m;
    *it = (bl_jn_iter){.base = v};
    *ret = it;
    return BL_OK;
}

static bl_code entry_value(bl_jn_ctx *c, const bl_jn_entry *e, char what, bl_jn_val *ret) {
    if (what == 'i') {
        return bl_jn_new_pair(c, e->key, e->val, ret);
    }
    *ret = what == 'v' ? e->val : e->key;
    return BL_OK;
}

static bl_code next_of_base(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) {
    const bl_jn_val v = it->base;
    size_t n = 0;
    switch (v.t) {
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        n = v.l->n;
        break;
    case BL_JN_DICT:
        n = v.d->n;
        break;
    case BL_JN_VIEW:
        n = v.view->d->n;
        break;
    case BL_JN_RANGE:
        n = (size_t)v.r->n;
        break;
    case BL_JN_STR:
        n = v.s->n;
        break;
    default:
        break;
    }
    *ret_got = it->pos < n;
    if (!*ret_got) {
        return BL_OK;
    }
    if (v.t == BL_JN_STR) {
        size_t len, off = it->pos;
        (void)bl_jn_cp_at(v.s, off, &len);
        it->pos += len;
        return bl_jn_substr(c, v.s, off, len, ret);
    }
    size_t i = it->reversed ? n - 1 - it->pos : it->pos;
    it->pos++;
    switch (v.t) {
    case BL_JN_DICT:
        *ret = v.d->e[i].key;
        return BL_OK;
    case BL_JN_VIEW:
        return entry_value(c, &v.view->d->e[i], v.view->what, ret);
    case BL_JN_RANGE:
        *ret = bl_jn_int(v.r->start + (int64_t)i * v.r->step);
        return BL_OK;
    default:
        *ret = v.l->v[i];
        return BL_OK;
    }
}

bl_code bl_jn_next(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) {
    BL_TRY(bl_jn_charge(c, 0));
    *ret_got = false;
    if (it->done) {
        return BL_OK;
    }
    if (!it->next) {
        return next_of_base(c, it, ret, ret_got);
    }
    BL_TRY(bl_jn_enter(c)); /* generators stack up on each other */
    bl_code rc = it->next(c, it, ret, ret_got);
    bl_jn_leave(c);
    it->done = rc != BL_OK || !*ret_got;
    return rc;
}

bl_code bl_jn_collect(bl_jn_ctx *c, bl_jn_val v, bl_jn_type t, bl_jn_val *ret) {
    bl_jn_iter *it;
    BL_TRY(bl_jn_iterate(c, v, &it));
    bl_jn_val list;
    size_t cap = v.t == BL_JN_LIST || v.t == BL_JN_TUPLE ? v.l->n : 8;
    BL_TRY(bl_jn_new_list(c, t, cap, &list));
    size_t n = 0;
    for (;;) {
        bl_jn_val item;
        bool got;
        BL_TRY(bl_jn_next(c, it, &item, &got));
        if (!got) {
            break;
        }
        if (n == list.l->n) {
            bl_jn_val bigger;
            BL_TRY(bl_jn_new_list(c, t, n * 2 + 8, &bigger));
            memcpy(bigger.l->v, list.l->v, n * sizeof *list.l->v);
            list = bigger;
        }
        list.l->v[n++] = item;
    }
    list.l->n = n;
    *ret = list;
    return BL_OK;
}

bl_code bl_jn_new_gen(bl_jn_ctx *c, bl_jn_iter *src,
                      bl_code (*next)(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got),
                      void *state, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_iter), &m));
    bl_jn_iter *it = m;
    *it = (bl_jn_iter){.src = src, .next = next, .state = state, .base = bl_jn_missing()};
    *ret = (bl_jn_val){.t = BL_JN_ITER, .it = it};
    return BL_OK;
}
