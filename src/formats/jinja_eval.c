/* Expressions and calls. */
#include <string.h>

#include "formats/jinja_private.h"

/* ---- arguments ---- */

/* Next name of a "a,b,c" list at *p; false at the end. */
static bool next_param(const char **p, const char **ret, size_t *ret_n) {
    if (**p == '\0') {
        return false;
    }
    const char *end = strchr(*p, ',');
    *ret = *p;
    *ret_n = end ? (size_t)(end - *p) : strlen(*p);
    *p += *ret_n + (end ? 1 : 0);
    return true;
}

bl_code bl_jn_bind(bl_jn_ctx *c, const char *what, const char *params, uint32_t n_required, bool keywords,
                   const bl_jn_args *a, bl_jn_val out[BL_JN_MAX_PARAMS]) {
    const char *p = params, *name;
    size_t n_params = 0, used = 0, len;
    for (; next_param(&p, &name, &len); n_params++) {
        out[n_params] = n_params < a->n_pos ? a->pos[n_params] : bl_jn_missing();
        for (size_t k = 0; keywords && k < a->n_kw; k++) {
            if (a->kw[k].name->n == len && memcmp(a->kw[k].name->p, name, len) == 0) {
                if (n_params < a->n_pos) {
                    return BL_JN_FAIL(c, "%s got multiple values for argument '%.*s'", what, (int)len, name);
                }
                out[n_params] = a->kw[k].v;
                used++;
            }
        }
    }
    if (a->n_pos > n_params || used < a->n_kw) {
        return BL_JN_FAIL(c, "%s: too many or unknown arguments (%zu given, %zu known)", what,
                          a->n_pos + a->n_kw, n_params);
    }
    for (size_t i = 0; i < n_required; i++) {
        if (out[i].t == BL_JN_MISSING) {
            return BL_JN_FAIL(c, "%s: %u arguments needed, %zu given", what, n_required, a->n_pos + a->n_kw);
        }
    }
    return BL_OK;
}

static bl_code add_dynamic(bl_jn_ctx *c, bl_jn_val v, bl_jn_args *a) {
    bl_jn_val list;
    void *m;
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &list));
    BL_TRY(bl_jn_alloc_array(c, a->n_pos + list.l->n + 1, sizeof(bl_jn_val), &m));
    bl_jn_val *pos = m;
    if (a->n_pos > 0) {
        memcpy(pos, a->pos, a->n_pos * sizeof *pos);
    }
    memcpy(pos + a->n_pos, list.l->v, list.l->n * sizeof *pos);
    a->pos = pos;
    a->n_pos += list.l->n;
    return BL_OK;
}

static bl_code add_dynamic_kw(bl_jn_ctx *c, bl_jn_val v, bl_jn_args *a) {
    if (v.t != BL_JN_DICT) {
        return BL_JN_FAIL(c, "argument after ** must be a mapping, not %s", bl_jn_type_name(v));
    }
    void *m;
    BL_TRY(bl_jn_alloc_array(c, a->n_kw + v.d->n + 1, sizeof(bl_jn_kwarg), &m));
    bl_jn_kwarg *kw = m;
    if (a->n_kw > 0) {
        memcpy(kw, a->kw, a->n_kw * sizeof *kw);
    }
    for (size_t i = 0; i < v.d->n; i++) {
        bl_jn_val key = v.d->e[i].key;
        if (key.t != BL_JN_STR) {
            return BL_JN_FAIL(c, "keywords must be strings");
        }
        for (size_t k = 0; k < a->n_kw; k++) {
            if (bl_jn_str_eq(a->kw[k].name, key.s)) {
                return BL_JN_FAIL(c, "got multiple values for a keyword argument");
            }
        }
        kw[a->n_kw + i] = (bl_jn_kwarg){.name = key.s, .v = v.d->e[i].val};
    }
    a->kw = kw;
    a->n_kw += v.d->n;
    return BL_OK;
}

bl_code bl_jn_eval_args(bl_jn_ctx *c, const bl_jn_argnodes *n, bl_jn_act *act, bl_jn_args *ret) {
    *ret = (bl_jn_args){.n_pos = n->pos.n, .n_kw = n->n_kw};
    void *m;
    if (n->pos.n > 0) {
        BL_TRY(bl_jn_alloc_array(c, n->pos.n, sizeof(bl_jn_val), &m));
        ret->pos = m;
    }
    if (n->n_kw > 0) {
        BL_TRY(bl_jn_alloc_array(c, n->n_kw, sizeof(bl_jn_kwarg), &m));
        ret->kw = m;
    }
    for (uint32_t i = 0; i < n->pos.n; i++) {
        BL_TRY(bl_jn_eval(c, n->pos.v[i], act, &ret->pos[i]));
    }
    for (uint32_t i = 0; i < n->n_kw; i++) {
        ret->kw[i].name = n->kw[i].name;
        BL_TRY(bl_jn_eval(c, n->kw[i].v, act, &ret->kw[i].v));
    }
    if (n->dyn) {
        bl_jn_val v;
        BL_TRY(bl_jn_eval(c, n->dyn, act, &v));
        BL_TRY(add_dynamic(c, v, ret));
    }
    if (n->dyn_kw) {
        bl_jn_val v;
        BL_TRY(bl_jn_eval(c, n->dyn_kw, act, &v));
        BL_TRY(add_dynamic_kw(c, v, ret));
    }
    return BL_OK;
}

/* ---- calls ---- */

static bl_code call_method(bl_jn_ctx *c, const bl_jn_bound *b, const bl_jn_args *a, bl_jn_val *ret) {
    if (b->def->raw) {
        return b->def->raw(c, b->self, a, ret);
    }
    bl_jn_val bound[BL_JN_MAX_PARAMS];
    BL_TRY(bl_jn_bind(c, b->def->name, b->def->params, b->def->n_required, b->def->keywords, a, bound));
    return b->def->fn(c, b->self, bound, ret);
}

/* loop.cycle and loop.changed come as bound methods over the loop. */
bl_code bl_jn_call(bl_jn_ctx *c, bl_jn_val fn, const bl_jn_args *a, bl_jn_val *ret) {
    switch (fn.t) {
    case BL_JN_UNDEF:
        return bl_jn_fail_undef(c, fn);
    case BL_JN_FUNC:
        return fn.fn->fn(c, a, ret);
    case BL_JN_METHOD:
        return call_method(c, fn.bound, a, ret);
    case BL_JN_MACRO:
        return bl_jn_call_macro(c, fn.m, a, ret);
    case BL_JN_LOOP:
        return BL_JN_FAIL(c, "the loop must have the 'recursive' marker to be called recursively");
    default:
        return BL_JN_FAIL(c, "'%s' object is not callable", bl_jn_type_name(fn));
    }
}

/* ---- nodes ---- */

static bl_jn_val *slot_at(bl_jn_act *act, bl_jn_place p) {
    for (uint32_t i = 0; i < p.up; i++) {
        act = act->parent;
    }
    return &act->slots[p.slot];
}

static bl_code eval_name(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    *ret = *slot_at(act, n->name.place);
    if (ret->t == BL_JN_MISSING) {
        return bl_jn_new_undef(c, BL_JN_UNDEF_NAME, NULL, n->name.name, NULL, ret);
    }
    return BL_OK;
}

static bl_code eval_items(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_list(c, n->kind == BL_JN_N_LIST ? BL_JN_LIST : BL_JN_TUPLE, n->seq.items.n, ret));
    for (uint32_t i = 0; i < n->seq.items.n; i++) {
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, &ret->l->v[i]));
    }
    return BL_OK;
}

static bl_code eval_dict(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_dict(c, n->seq.items.n / 2, BL_JN_DICT, ret));
    for (uint32_t i = 0; i + 1 < n->seq.items.n; i += 2) {
        bl_jn_val k, v;
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, &k));
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i + 1], act, &v));
        BL_TRY(bl_jn_dict_set(c, ret->d, k, v));
    }
    return BL_OK;
}

static bl_code eval_slice(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val obj, bounds[3];
    BL_TRY(bl_jn_eval(c, n->seq.items.v[0], act, &obj));
    for (int i = 0; i < 3; i++) {
        bounds[i] = bl_jn_missing();
        if (n->seq.items.v[i + 1]) {
            BL_TRY(bl_jn_eval(c, n->seq.items.v[i + 1], act, &bounds[i]));
        }
    }
    return bl_jn_slice(c, obj, bounds, ret);
}

static bl_code eval_chain(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    BL_TRY(bl_jn_eval(c, n->seq.items.v[0], act, ret));
    for (uint32_t i = 1; i < n->seq.items.n; i++) {
        bl_jn_val right;
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, &right));
        c->line = n->line;
        BL_TRY(bl_jn_binary(c, (bl_jn_op)n->seq.ops[i - 1], *ret, right, ret));
    }
    return BL_OK;
}

/* Python's chained comparison: a < b < c evaluates b once and stops at the first false. */
static bl_code eval_compare(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val left, right;
    BL_TRY(bl_jn_eval(c, n->seq.items.v[0], act, &left));
    for (uint32_t i = 1; i < n->seq.items.n; i++) {
        bool yes;
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, &right));
        c->line = n->line;
        BL_TRY(bl_jn_compare(c, (bl_jn_op)n->seq.ops[i - 1], left, right, &yes));
        *ret = bl_jn_bool(yes);
        if (!yes) {
            return BL_OK;
        }
        left = right;
    }
    return BL_OK;
}

static bl_code eval_logic(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    for (uint32_t i = 0; i < n->seq.items.n; i++) {
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, ret));
        if (bl_jn_truth(*ret) == (n->kind == BL_JN_N_OR)) {
            return BL_OK;
        }
    }
    return BL_OK;
}

static bl_code eval_concat(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val text = bl_jn_missing();
    for (uint32_t i = 0; i < n->seq.items.n; i++) {
        bl_jn_val v;
        bl_jn_str *s;
        BL_TRY(bl_jn_eval(c, n->seq.items.v[i], act, &v));
        BL_TRY(bl_jn_to_str(c, v, &s));
        if (text.t == BL_JN_MISSING) {
            text = bl_jn_strval(s);
        } else {
            BL_TRY(bl_jn_concat(c, text.s, s, &text));
        }
    }
    *ret = text;
    return BL_OK;
}

static bl_code eval_cond(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val test;
    BL_TRY(bl_jn_eval(c, n->seq.items.v[1], act, &test));
    const bl_jn_node *pick = n->seq.items.v[bl_jn_truth(test) ? 0 : 2];
    if (!pick) {
        return bl_jn_new_undef(c, BL_JN_UNDEF_HINT, NULL, NULL,
                               "the inline if-expression evaluated to false and no else section was defined.",
                               ret);
    }
    return bl_jn_eval(c, pick, act, ret);
}

static bl_code eval_sign(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val v;
    int64_t i;
    BL_TRY(bl_jn_eval(c, n->un.a, act, &v));
    bool neg = n->kind == BL_JN_N_NEG;
    if (v.t == BL_JN_FLOAT) {
        *ret = bl_jn_float(neg ? -v.f : v.f);
        return BL_OK;
    }
    if (bl_jn_as_index(v, &i)) {
        return bl_jn_binary(c, neg ? BL_JN_OP_SUB : BL_JN_OP_ADD, bl_jn_int(0), bl_jn_int(i), ret);
    }
    if (v.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, v);
    }
    return BL_JN_FAIL(c, "bad operand type for unary %c: '%s'", neg ? '-' : '+', bl_jn_type_name(v));
}

static bl_code eval_call(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val fn;
    bl_jn_args a;
    BL_TRY(bl_jn_eval(c, n->call.a, act, &fn));
    BL_TRY(bl_jn_eval_args(c, &n->call.args, act, &a));
    c->line = n->line;
    return bl_jn_call(c, fn, &a, ret);
}

/* The captured text of a filter or set block takes the place of a missing input. */
static bl_code eval_filter(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val v;
    bl_jn_args a;
    if (n->call.a) {
        BL_TRY(bl_jn_eval(c, n->call.a, act, &v));
    } else {
        BL_TRY(bl_jn_sb_done(c, c->out, &v));
    }
    BL_TRY(bl_jn_eval_args(c, &n->call.args, act, &a));
    c->line = n->line;
    return bl_jn_apply_filter(c, n->call.filter, v, &a, ret);
}

static bl_code eval_test(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val v;
    bl_jn_args a;
    bool yes;
    BL_TRY(bl_jn_eval(c, n->call.a, act, &v));
    BL_TRY(bl_jn_eval_args(c, &n->call.args, act, &a));
    c->line = n->line;
    BL_TRY(bl_jn_apply_test(c, n->call.test, v, &a, &yes));
    *ret = bl_jn_bool(yes);
    return BL_OK;
}

static bl_code eval_inner(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    bl_jn_val a, b;
    switch (n->kind) {
    case BL_JN_N_LIST:
    case BL_JN_N_TUPLE:
        return eval_items(c, n, act, ret);
    case BL_JN_N_DICT:
        return eval_dict(c, n, act, ret);
    case BL_JN_N_GETATTR:
        BL_TRY(bl_jn_eval(c, n->un.a, act, &a));
        c->line = n->line;
        return bl_jn_getattr(c, a, n->un.attr, ret);
    case BL_JN_N_GETITEM:
        BL_TRY(bl_jn_eval(c, n->un.a, act, &a));
        BL_TRY(bl_jn_eval(c, n->un.b, act, &b));
        c->line = n->line;
        return bl_jn_getitem(c, a, b, ret);
    case BL_JN_N_SLICE:
        return eval_slice(c, n, act, ret);
    case BL_JN_N_CALL:
        return eval_call(c, n, act, ret);
    case BL_JN_N_FILTER:
        return eval_filter(c, n, act, ret);
    case BL_JN_N_TEST:
        return eval_test(c, n, act, ret);
    case BL_JN_N_NOT:
        BL_TRY(bl_jn_eval(c, n->un.a, act, &a));
        *ret = bl_jn_bool(!bl_jn_truth(a));
        return BL_OK;
    case BL_JN_N_NEG:
    case BL_JN_N_POS:
        return eval_sign(c, n, act, ret);
    case BL_JN_N_CHAIN:
        return eval_chain(c, n, act, ret);
    case BL_JN_N_AND:
    case BL_JN_N_OR:
        return eval_logic(c, n, act, ret);
    case BL_JN_N_CONCAT:
        return eval_concat(c, n, act, ret);
    case BL_JN_N_COMPARE:
        return eval_compare(c, n, act, ret);
    case BL_JN_N_COND:
        return eval_cond(c, n, act, ret);
    default:
        BL_FAIL(c->err, BL_EINTERNAL, "chat template line %u: node %d is no expression", n->line,
                (int)n->kind);
    }
}

bl_code bl_jn_eval(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    if (n->kind == BL_JN_N_CONST) {
        *ret = n->konst;
        return BL_OK;
    }
    c->line = n->line;
    if (n->kind == BL_JN_N_NAME) {
        return eval_name(c, n, act, ret);
    }
    BL_TRY(bl_jn_charge(c, 0));
    BL_TRY(bl_jn_enter(c));
    bl_code rc = eval_inner(c, n, act, ret);
    bl_jn_leave(c);
    return rc;
}
