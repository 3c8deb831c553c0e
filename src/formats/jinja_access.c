/* Attributes, items and slices, as jinja2's sandboxed environment resolves them: an attribute of the Python
 * object first (so `d.items` is the method even when d has a key "items"), then an item; for subscripts the
 * other way round.
 */
#include <string.h>

#include "formats/jinja_private.h"

static bool is_object_dunder(const bl_jn_str *name) {
    static const char *const names[] = {"__class__", "__dict__",    "__doc__",    "__init__",
                                        "__len__",   "__getitem__", "__iter__",   "__str__",
                                        "__repr__",  "__eq__",      "__module__", "__hash__",
                                        "__new__",   "__dir__",     "__ne__",     "__format__"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        if (bl_jn_str_is(name, names[i])) {
            return true;
        }
    }
    return false;
}

static bl_code method_attr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret,
                           bool *ret_got) {
    bool known, unsafe;
    const bl_jn_method_def *def = bl_jn_find_method(obj, name, &known, &unsafe);
    *ret_got = known || unsafe || def;
    if (def) {
        void *m;
        BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_bound), &m));
        bl_jn_bound *b = m;
        *b = (bl_jn_bound){.self = obj, .def = def};
        *ret = (bl_jn_val){.t = BL_JN_METHOD, .bound = b};
        return BL_OK;
    }
    if (unsafe) {
        return bl_jn_new_undef(c, BL_JN_UNDEF_UNSAFE, bl_jn_type_name(obj), name, NULL, ret);
    }
    if (known) {
        return BL_JN_FAIL(c, "attribute '%.*s' of '%s' is not supported", (int)BL_MIN(name->n, (size_t)60),
                          name->p, bl_jn_type_name(obj));
    }
    return BL_OK;
}

bl_code bl_jn_python_attr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret, bool *ret_got) {
    *ret_got = false;
    if (obj.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, obj);
    }
    if (obj.t == BL_JN_NS && !bl_jn_str_is(name, "__class__")) {
        const bl_jn_val *v = bl_jn_dict_get_str(obj.d, name);
        *ret_got = v != NULL;
        if (v && name->n > 0 && name->p[0] == '_') {
            return bl_jn_new_undef(c, BL_JN_UNDEF_UNSAFE, bl_jn_type_name(obj), name, NULL, ret);
        }
        if (v) {
            *ret = *v;
        }
        return BL_OK;
    }
    if (is_object_dunder(name)) {
        *ret_got = true;
        return bl_jn_new_undef(c, BL_JN_UNDEF_UNSAFE, bl_jn_type_name(obj), name, NULL, ret);
    }
    switch (obj.t) {
    case BL_JN_LOOP:
        return bl_jn_loop_attr(c, obj.loop, name, ret, ret_got);
    case BL_JN_MACRO:
        if (bl_jn_str_is(name, "name") && obj.m->node->macro->name) {
            *ret_got = true;
            *ret = bl_jn_strval(obj.m->node->macro->name);
        }
        return BL_OK;
    default:
        return method_attr(c, obj, name, ret, ret_got);
    }
}

static bl_code no_attr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret) {
    return bl_jn_new_undef(c, BL_JN_UNDEF_ATTR, bl_jn_type_name(obj), name, NULL, ret);
}

bl_code bl_jn_getattr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret) {
    bool got;
    BL_TRY(bl_jn_python_attr(c, obj, name, ret, &got));
    if (got) {
        return BL_OK;
    }
    const bl_jn_val *v = obj.t == BL_JN_DICT ? bl_jn_dict_get_str(obj.d, name) : NULL;
    if (v) {
        *ret = *v;
        return BL_OK;
    }
    return no_attr(c, obj, name, ret);
}

static bl_code seq_item(bl_jn_ctx *c, bl_jn_val obj, int64_t i, bl_jn_val *ret, bool *ret_got) {
    int64_t n;
    bool has;
    BL_TRY(bl_jn_len(c, obj, &n, &has));
    i += i < 0 ? n : 0;
    *ret_got = i >= 0 && i < n;
    if (!*ret_got) {
        return BL_OK;
    }
    if (obj.t == BL_JN_STR) {
        size_t len, off = bl_jn_str_offset(obj.s, (size_t)i);
        BL_TRY(bl_jn_charge(c, off));
        (void)bl_jn_cp_at(obj.s, off, &len);
        return bl_jn_substr(c, obj.s, off, len, ret);
    }
    *ret = obj.t == BL_JN_RANGE ? bl_jn_int(obj.r->start + i * obj.r->step) : obj.l->v[i];
    return BL_OK;
}

bl_code bl_jn_getitem(bl_jn_ctx *c, bl_jn_val obj, bl_jn_val key, bl_jn_val *ret) {
    bool got = false;
    int64_t i;
    if (obj.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, obj);
    }
    if (obj.t == BL_JN_DICT && bl_jn_hashable(key)) {
        const bl_jn_val *v;
        BL_TRY(bl_jn_dict_get(c, obj.d, key, &v));
        got = v != NULL;
        if (v) {
            *ret = *v;
        }
    } else if ((obj.t == BL_JN_LIST || obj.t == BL_JN_TUPLE || obj.t == BL_JN_STR || obj.t == BL_JN_RANGE) &&
               bl_jn_as_index(key, &i)) {
        BL_TRY(seq_item(c, obj, i, ret, &got));
    }
    if (got) {
        return BL_OK;
    }
    if (key.t == BL_JN_STR) {
        BL_TRY(bl_jn_python_attr(c, obj, key.s, ret, &got));
        return got ? BL_OK : no_attr(c, obj, key.s, ret);
    }
    return bl_jn_new_undef(c, BL_JN_UNDEF_ITEM, bl_jn_type_name(obj), NULL, NULL, ret);
}

/* PySlice_Unpack and PySlice_AdjustIndices. */
static bl_code slice_bounds(bl_jn_ctx *c, const bl_jn_val bounds[3], int64_t n, int64_t ret[3],
                            int64_t *ret_n) {
    bool given[3];
    for (int k = 0; k < 3; k++) {
        given[k] = bounds[k].t != BL_JN_MISSING && bounds[k].t != BL_JN_NONE;
        if (given[k] && !bl_jn_as_index(bounds[k], &ret[k])) {
            return BL_JN_FAIL(c, "slice indices must be integers or None");
        }
    }
    int64_t step = given[2] ? ret[2] : 1;
    if (step == 0) {
        return BL_JN_FAIL(c, "slice step cannot be zero");
    }
    step = BL_MAX(step, -INT64_MAX);
    int64_t lo = step < 0 ? -1 : 0, hi = step < 0 ? n - 1 : n;
    for (int k = 0; k < 2; k++) {
        if (!given[k]) {
            ret[k] = (k == 0) == (step > 0) ? lo : hi;
            continue;
        }
        if (ret[k] < 0) {
            ret[k] = ret[k] < -n ? lo : ret[k] + n;
        }
        ret[k] = BL_MIN(BL_MAX(ret[k], lo), hi);
    }
    ret[2] = step;
    int64_t span = step > 0 ? ret[1] - ret[0] : ret[0] - ret[1];
    int64_t stride = step > 0 ? step : -step;
    *ret_n = span > 0 ? (span - 1) / stride + 1 : 0;
    return BL_OK;
}

static bl_code slice_str(bl_jn_ctx *c, bl_jn_str *s, const int64_t b[3], int64_t n, bl_jn_val *ret) {
    BL_TRY(bl_jn_charge(c, s->n));
    if (n == 0) {
        return bl_jn_substr(c, s, 0, 0, ret);
    }
    if (b[2] == 1) {
        size_t start = bl_jn_str_offset(s, (size_t)b[0]), stop = bl_jn_str_offset(s, (size_t)b[1]);
        return bl_jn_substr(c, s, start, stop - start, ret);
    }
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    size_t off = bl_jn_str_offset(s, (size_t)b[0]);
    for (int64_t k = 0; k < n; k++) {
        size_t len;
        (void)bl_jn_cp_at(s, off, &len);
        BL_TRY(bl_jn_sb_add_sub(c, &sb, s, off, len));
        int64_t move = k + 1 < n ? b[2] : 0;
        for (; move > 0; move--) {
            (void)bl_jn_cp_at(s, off, &len);
            off += len;
        }
        for (; move < 0; move++) {
            off = bl_jn_cp_before(s, off);
        }
    }
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    ret->s->markup = s->markup;
    return BL_OK;
}

static bl_code slice_range(bl_jn_ctx *c, const bl_jn_range *r, const int64_t b[3], int64_t n,
                           bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_range), &m));
    bl_jn_range *out = m;
    int64_t step;
    if (__builtin_mul_overflow(r->step, b[2], &step) || __builtin_mul_overflow(b[0], r->step, &out->start) ||
        __builtin_add_overflow(out->start, r->start, &out->start) ||
        __builtin_mul_overflow(b[1], r->step, &out->stop) ||
        __builtin_add_overflow(out->stop, r->start, &out->stop)) {
        return BL_JN_FAIL(c, "range beyond 64 bits");
    }
    out->step = step;
    out->n = n;
    *ret = (bl_jn_val){.t = BL_JN_RANGE, .r = out};
    return BL_OK;
}

bl_code bl_jn_slice(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_val bounds[3], bl_jn_val *ret) {
    if (obj.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, obj);
    }
    if (obj.t != BL_JN_STR && obj.t != BL_JN_LIST && obj.t != BL_JN_TUPLE && obj.t != BL_JN_RANGE) {
        return BL_JN_FAIL(c, "'%s' object cannot be sliced", bl_jn_type_name(obj));
    }
    int64_t len, b[3], n;
    bool has;
    BL_TRY(bl_jn_len(c, obj, &len, &has));
    BL_TRY(slice_bounds(c, bounds, len, b, &n));
    if (obj.t == BL_JN_STR) {
        return slice_str(c, obj.s, b, n, ret);
    }
    if (obj.t == BL_JN_RANGE) {
        return slice_range(c, obj.r, b, n, ret);
    }
    BL_TRY(bl_jn_new_list(c, obj.t, (size_t)n, ret));
    for (int64_t k = 0; k < n; k++) {
        ret->l->v[k] = obj.l->v[b[0] + k * b[2]];
    }
    return BL_OK;
}
