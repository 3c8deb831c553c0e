/* Tests ("x is NAME") and global functions. */
#include <string.h>

#include "formats/jinja_private.h"

#define TEST(name, expr)                                                                                     \
    static bl_code name(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {                               \
        (void)c;                                                                                             \
        (void)arg;                                                                                           \
        *ret = (expr);                                                                                       \
        return BL_OK;                                                                                        \
    }

TEST(t_defined, v.t != BL_JN_UNDEF)
TEST(t_undefined, v.t == BL_JN_UNDEF)
TEST(t_none, v.t == BL_JN_NONE)
TEST(t_boolean, v.t == BL_JN_BOOL)
TEST(t_true, v.t == BL_JN_BOOL && v.b)
TEST(t_false, v.t == BL_JN_BOOL && !v.b)
TEST(t_integer, v.t == BL_JN_INT)
TEST(t_float, v.t == BL_JN_FLOAT)
TEST(t_number, v.t == BL_JN_INT || v.t == BL_JN_FLOAT || v.t == BL_JN_BOOL)
TEST(t_string, v.t == BL_JN_STR)
TEST(t_mapping, v.t == BL_JN_DICT)
TEST(t_sequence, v.t == BL_JN_STR || v.t == BL_JN_LIST || v.t == BL_JN_TUPLE || v.t == BL_JN_DICT ||
                     v.t == BL_JN_RANGE || v.t == BL_JN_UNDEF)
TEST(t_iterable, bl_jn_iterable(v))
TEST(t_callable, v.t == BL_JN_MACRO || v.t == BL_JN_FUNC || v.t == BL_JN_METHOD || v.t == BL_JN_UNDEF ||
                     v.t == BL_JN_LOOP)
TEST(t_escaped, v.t == BL_JN_STR && v.s->markup)
TEST(t_filter, arg.t == BL_JN_MISSING && v.t == BL_JN_STR && bl_jn_known_filter(v.s))
TEST(t_test, arg.t == BL_JN_MISSING && v.t == BL_JN_STR && bl_jn_known_test(v.s))

static bl_code case_is(bl_jn_ctx *c, bl_jn_val v, const bl_jn_str *method, bool *ret) {
    bl_jn_str *s;
    bool known, unsafe;
    bl_jn_val r;
    BL_TRY(bl_jn_to_str(c, v, &s));
    bl_jn_val self = bl_jn_strval(s);
    BL_TRY(bl_jn_find_method(self, method, &known, &unsafe)->fn(c, self, NULL, &r));
    *ret = r.b;
    return BL_OK;
}
static bl_code t_lower(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    static const bl_jn_str method = {.p = "islower", .n = 7};
    (void)arg;
    return case_is(c, v, &method, ret);
}
static bl_code t_upper(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    static const bl_jn_str method = {.p = "isupper", .n = 7};
    (void)arg;
    return case_is(c, v, &method, ret);
}

static bl_code modulo_is(bl_jn_ctx *c, bl_jn_val v, bl_jn_val by, int64_t want, bool *ret) {
    bl_jn_val r;
    BL_TRY(bl_jn_binary(c, BL_JN_OP_MOD, v, by, &r));
    return bl_jn_eq(c, r, bl_jn_int(want), ret);
}
static bl_code t_odd(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    (void)arg;
    return modulo_is(c, v, bl_jn_int(2), 1, ret);
}
static bl_code t_even(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    (void)arg;
    return modulo_is(c, v, bl_jn_int(2), 0, ret);
}
static bl_code t_divisibleby(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    return modulo_is(c, v, arg, 0, ret);
}

#define COMPARE_TEST(name, op)                                                                               \
    static bl_code name(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {                               \
        return bl_jn_compare(c, (op), v, arg, ret);                                                          \
    }
COMPARE_TEST(t_eq, BL_JN_OP_EQ)
COMPARE_TEST(t_ne, BL_JN_OP_NE)
COMPARE_TEST(t_lt, BL_JN_OP_LT)
COMPARE_TEST(t_le, BL_JN_OP_LE)
COMPARE_TEST(t_gt, BL_JN_OP_GT)
COMPARE_TEST(t_ge, BL_JN_OP_GE)
COMPARE_TEST(t_in, BL_JN_OP_IN)

/* Identity. Whether equal numbers or strings are one object is CPython's affair: refused. */
static bl_code t_sameas(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret) {
    *ret = false;
    if (v.t != arg.t) {
        return BL_OK;
    }
    switch (v.t) {
    case BL_JN_NONE:
        *ret = true;
        return BL_OK;
    case BL_JN_BOOL:
        *ret = v.b == arg.b;
        return BL_OK;
    case BL_JN_INT:
    case BL_JN_FLOAT:
    case BL_JN_STR:
        return BL_JN_FAIL(c, "sameas between two values of type '%s' is not supported", bl_jn_type_name(v));
    default:
        *ret = v.d == arg.d;
        return BL_OK;
    }
}

static const bl_jn_test_def tests[] = {
    {"odd", t_odd, 0},
    {"even", t_even, 0},
    {"divisibleby", t_divisibleby, 1},
    {"defined", t_defined, 0},
    {"undefined", t_undefined, 0},
    {"filter", t_filter, 0},
    {"test", t_test, 0},
    {"none", t_none, 0},
    {"boolean", t_boolean, 0},
    {"false", t_false, 0},
    {"true", t_true, 0},
    {"integer", t_integer, 0},
    {"float", t_float, 0},
    {"lower", t_lower, 0},
    {"upper", t_upper, 0},
    {"string", t_string, 0},
    {"mapping", t_mapping, 0},
    {"number", t_number, 0},
    {"sequence", t_sequence, 0},
    {"iterable", t_iterable, 0},
    {"callable", t_callable, 0},
    {"sameas", t_sameas, 1},
    {"escaped", t_escaped, 0},
    {"in", t_in, 1},
    {"==", t_eq, 1},
    {"eq", t_eq, 1},
    {"equalto", t_eq, 1},
    {"!=", t_ne, 1},
    {"ne", t_ne, 1},
    {">", t_gt, 1},
    {"gt", t_gt, 1},
    {"greaterthan", t_gt, 1},
    {">=", t_ge, 1},
    {"ge", t_ge, 1},
    {"<", t_lt, 1},
    {"lt", t_lt, 1},
    {"lessthan", t_lt, 1},
    {"<=", t_le, 1},
    {"le", t_le, 1},
};

const bl_jn_test_def *bl_jn_find_test(const char *name, size_t n) {
    for (size_t i = 0; i < BL_COUNTOF(tests); i++) {
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0) {
            return &tests[i];
        }
    }
    return NULL;
}

bool bl_jn_known_test(const bl_jn_str *name) {
    return bl_jn_find_test(name->p, name->n) != NULL;
}

bl_code bl_jn_apply_test(bl_jn_ctx *c, const bl_jn_test_def *t, bl_jn_val v, const bl_jn_args *a, bool *ret) {
    if (a->n_pos + a->n_kw != t->n_args || a->n_kw > 0) {
        return BL_JN_FAIL(c, "test '%s' takes %u arguments, %zu given", t->name, t->n_args,
                          a->n_pos + a->n_kw);
    }
    return t->fn(c, v, t->n_args > 0 ? a->pos[0] : bl_jn_missing(), ret);
}

/* ---- global functions ---- */

static bl_code g_raise_exception(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret) {
    bl_jn_val v[BL_JN_MAX_PARAMS];
    bl_jn_str *s;
    (void)ret;
    BL_TRY(bl_jn_bind(c, "raise_exception", "message", 1, true, a, v));
    BL_TRY(bl_jn_to_str(c, v[0], &s));
    BL_FAIL(c->err, BL_EINVAL, "%.*s", (int)BL_MIN(s->n, (size_t)1024), s->p);
}

static bl_code g_strftime_now(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret) {
    bl_jn_val v[BL_JN_MAX_PARAMS];
    BL_TRY(bl_jn_bind(c, "strftime_now", "format", 1, true, a, v));
    if (v[0].t != BL_JN_STR) {
        return BL_JN_FAIL(c, "strftime_now needs a string, not '%s'", bl_jn_type_name(v[0]));
    }
    return bl_jn_strftime(c, v[0].s, ret);
}

static bl_code g_range(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret) {
    int64_t v[3] = {0, 0, 1};
    if (a->n_kw > 0 || a->n_pos < 1 || a->n_pos > 3) {
        return BL_JN_FAIL(c, "range takes 1 to 3 arguments, %zu given", a->n_pos + a->n_kw);
    }
    for (size_t i = 0; i < a->n_pos; i++) {
        if (!bl_jn_as_index(a->pos[i], &v[a->n_pos == 1 ? 1 : i])) {
            return a->pos[i].t == BL_JN_UNDEF
                       ? bl_jn_fail_undef(c, a->pos[i])
                       : BL_JN_FAIL(c, "range: '%s' is no integer", bl_jn_type_name(a->pos[i]));
        }
    }
    if (v[2] == 0) {
        return BL_JN_FAIL(c, "range: step must not be zero");
    }
    int64_t span = 0;
    bool forward = v[2] > 0;
    if (forward ? v[0] < v[1] : v[0] > v[1]) {
        if (__builtin_sub_overflow(forward ? v[1] : v[0], forward ? v[0] : v[1], &span) ||
            v[2] == INT64_MIN) {
            return BL_JN_FAIL(c, "range too big, at most %d are allowed", BL_JN_MAX_RANGE);
        }
        span = (span - 1) / (forward ? v[2] : -v[2]) + 1;
    }
    if (span > BL_JN_MAX_RANGE) {
        return BL_JN_FAIL(c, "range too big, at most %d are allowed", BL_JN_MAX_RANGE);
    }
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_range), &m));
    bl_jn_range *r = m;
    *r = (bl_jn_range){.start = v[0], .stop = v[1], .step = v[2], .n = span};
    *ret = (bl_jn_val){.t = BL_JN_RANGE, .r = r};
    return BL_OK;
}

/* dict(): from a mapping or pairs, and keywords. */
static bl_code fill_dict(bl_jn_ctx *c, const bl_jn_args *a, const char *what, bl_jn_dict *d) {
    if (a->n_pos > 1) {
        return BL_JN_FAIL(c, "%s takes at most 1 positional argument, %zu given", what, a->n_pos);
    }
    if (a->n_pos == 1 && a->pos[0].t == BL_JN_DICT) {
        const bl_jn_dict *from = a->pos[0].d;
        for (size_t i = 0; i < from->n; i++) {
            BL_TRY(bl_jn_dict_set(c, d, from->e[i].key, from->e[i].val));
        }
    } else if (a->n_pos == 1) {
        bl_jn_iter *it;
        BL_TRY(bl_jn_iterate(c, a->pos[0], &it));
        for (;;) {
            bl_jn_val item, pair;
            bool got;
            BL_TRY(bl_jn_next(c, it, &item, &got));
            if (!got) {
                break;
            }
            BL_TRY(bl_jn_collect(c, item, BL_JN_LIST, &pair));
            if (pair.l->n != 2) {
                return BL_JN_FAIL(c, "%s: sequence element has length %zu; 2 is required", what, pair.l->n);
            }
            BL_TRY(bl_jn_dict_set(c, d, pair.l->v[0], pair.l->v[1]));
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        BL_TRY(bl_jn_dict_set(c, d, bl_jn_strval(a->kw[i].name), a->kw[i].v));
    }
    return BL_OK;
}

static bl_code g_dict(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_dict(c, a->n_kw, BL_JN_DICT, ret));
    return fill_dict(c, a, "dict", ret->d);
}

static bl_code g_namespace(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_dict(c, a->n_kw, BL_JN_NS, ret));
    return fill_dict(c, a, "namespace", ret->d);
}

static const bl_jn_func_def funcs[] = {
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {"raise_exception", g_raise_exception},
    {"strftime_now", g_strftime_now},
};

const bl_jn_func_def *bl_jn_find_func(const bl_jn_str *name) {
    for (size_t i = 0; i < BL_COUNTOF(funcs); i++) {
        if (bl_jn_str_is(name, funcs[i].name)) {
            return &funcs[i];
        }
    }
    return NULL;
}
