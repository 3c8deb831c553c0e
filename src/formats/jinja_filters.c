/* Filters: jinja2's own (filters.py) without the web ones, and Hugging Face's tojson. map, select and their
 * kind are lazy, as there; a filter jinja2 has and we lack is refused when the template is compiled.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jinja_private.h"

static bl_code opt_int(bl_jn_ctx *c, bl_jn_val v, int64_t absent, int64_t *ret) {
    *ret = absent;
    if (v.t != BL_JN_MISSING && !bl_jn_as_index(v, ret)) {
        return BL_JN_FAIL(c, "expected an integer, not '%s'", bl_jn_type_name(v));
    }
    return BL_OK;
}

static bool flag(bl_jn_val v) {
    return v.t != BL_JN_MISSING && bl_jn_truth(v);
}
static bool given(bl_jn_val v) {
    return v.t != BL_JN_MISSING && v.t != BL_JN_NONE;
}

static bl_code undefined_hint(bl_jn_ctx *c, const char *hint, bl_jn_val *ret) {
    return bl_jn_new_undef(c, BL_JN_UNDEF_HINT, NULL, NULL, hint, ret);
}

/* ---- attribute paths ("a.b.0") ---- */

static bl_code path_step(bl_jn_ctx *c, bl_jn_val v, const bl_jn_str *path, size_t from, size_t to,
                         bl_jn_val *ret) {
    bl_jn_val key;
    bool digits = to > from;
    int64_t n = 0;
    for (size_t i = from; i < to; i++) {
        digits = digits && path->p[i] >= '0' && path->p[i] <= '9' && n < INT32_MAX;
        n = digits ? n * 10 + (path->p[i] - '0') : 0;
    }
    if (digits) {
        return bl_jn_getitem(c, v, bl_jn_int(n), ret);
    }
    BL_TRY(bl_jn_substr(c, path, from, to - from, &key));
    return bl_jn_getitem(c, v, key, ret);
}

/* make_attrgetter: attr MISSING or None gives v itself; `fallback` (MISSING: none) replaces undefined steps.
 */
static bl_code get_path(bl_jn_ctx *c, bl_jn_val v, bl_jn_val attr, bl_jn_val fallback, bl_jn_val *ret) {
    *ret = v;
    if (!given(attr)) {
        return BL_OK;
    }
    if (attr.t != BL_JN_STR) {
        BL_TRY(bl_jn_getitem(c, v, attr, ret));
    }
    for (size_t from = 0; attr.t == BL_JN_STR && from <= attr.s->n;) {
        size_t to = from;
        while (to < attr.s->n && attr.s->p[to] != '.') {
            to++;
        }
        BL_TRY(path_step(c, *ret, attr.s, from, to, ret));
        if (ret->t == BL_JN_UNDEF && given(fallback)) {
            *ret = fallback;
        }
        from = to + 1;
    }
    return BL_OK;
}

/* ignore_case */
static bl_code fold(bl_jn_ctx *c, bl_jn_val v, bool case_sensitive, bl_jn_val *ret) {
    *ret = v;
    return !case_sensitive && v.t == BL_JN_STR ? bl_jn_change_case(c, v.s, 'l', ret) : BL_OK;
}

static bl_code sort_key(bl_jn_ctx *c, bl_jn_val v, bl_jn_val attr, bl_jn_val fallback, bool case_sensitive,
                        bl_jn_val *ret) {
    BL_TRY(get_path(c, v, attr, fallback, ret));
    return fold(c, *ret, case_sensitive, ret);
}

/* ---- sorting ---- */

typedef struct {
    bl_jn_val key, val;
} keyed;

/* Stable merge sort: qsort cannot report that two keys do not compare. */
static bl_code merge_sort(bl_jn_ctx *c, keyed *v, keyed *tmp, size_t n, bool reverse) {
    if (n < 2) {
        return BL_OK;
    }
    size_t half = n / 2;
    BL_TRY(merge_sort(c, v, tmp, half, reverse));
    BL_TRY(merge_sort(c, v + half, tmp, n - half, reverse));
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n) {
        int r;
        BL_TRY(bl_jn_charge(c, 0));
        /* the later one goes first only when strictly smaller (or greater): equal ones keep their order */
        BL_TRY(bl_jn_order(c, reverse ? v[i].key : v[j].key, reverse ? v[j].key : v[i].key, "<", &r));
        tmp[k++] = r < 0 ? v[j++] : v[i++];
    }
    while (i < half) {
        tmp[k++] = v[i++];
    }
    while (j < n) {
        tmp[k++] = v[j++];
    }
    memcpy(v, tmp, n * sizeof *v);
    return BL_OK;
}

static bl_code sort_keyed(bl_jn_ctx *c, keyed *v, size_t n, bool reverse) {
    void *tmp;
    BL_TRY(bl_jn_alloc_array(c, BL_MAX(n, (size_t)1), sizeof(keyed), &tmp));
    return merge_sort(c, v, tmp, n, reverse);
}

static bl_code values_of(bl_jn_ctx *c, const keyed *v, size_t n, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, n, ret));
    for (size_t i = 0; i < n; i++) {
        ret->l->v[i] = v[i].val;
    }
    return BL_OK;
}

/* make_multi_attrgetter: comma-separated attributes; the key is always a list, so equal keys are never
 * ordered. */
static bl_code multi_key(bl_jn_ctx *c, bl_jn_val v, bl_jn_val attr, bool case_sensitive, bl_jn_val *ret) {
    bl_jn_val keys;
    size_t parts = 1, n = 0;
    for (size_t i = 0; attr.t == BL_JN_STR && i < attr.s->n; i++) {
        parts += attr.s->p[i] == ',';
    }
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, parts, &keys));
    *ret = keys;
    if (attr.t != BL_JN_STR) {
        return sort_key(c, v, attr, bl_jn_missing(), case_sensitive, &keys.l->v[0]);
    }
    for (size_t from = 0; from <= attr.s->n;) {
        size_t to = from;
        while (to < attr.s->n && attr.s->p[to] != ',') {
            to++;
        }
        bl_jn_val part;
        BL_TRY(bl_jn_substr(c, attr.s, from, to - from, &part));
        BL_TRY(sort_key(c, v, part, bl_jn_missing(), case_sensitive, &keys.l->v[n++]));
        from = to + 1;
    }
    return BL_OK;
}

static bl_code keyed_list(bl_jn_ctx *c, bl_jn_val v, bl_jn_val attr, bl_jn_val fallback, bool case_sensitive,
                          bool multi, keyed **ret, size_t *ret_n) {
    bl_jn_val list;
    void *m;
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &list));
    BL_TRY(bl_jn_alloc_array(c, BL_MAX(list.l->n, (size_t)1), sizeof(keyed), &m));
    keyed *k = m;
    for (size_t i = 0; i < list.l->n; i++) {
        k[i].val = list.l->v[i];
        BL_TRY(multi ? multi_key(c, k[i].val, attr, case_sensitive, &k[i].key)
                     : sort_key(c, k[i].val, attr, fallback, case_sensitive, &k[i].key));
    }
    *ret = k;
    *ret_n = list.l->n;
    return BL_OK;
}

static bl_code f_sort(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    keyed *k;
    size_t n;
    BL_TRY(keyed_list(c, v, a[2], bl_jn_missing(), flag(a[1]), true, &k, &n));
    BL_TRY(sort_keyed(c, k, n, flag(a[0])));
    return values_of(c, k, n, ret);
}

static bl_code f_dictsort(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bool by_value = false;
    if (v.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, v);
    }
    if (v.t != BL_JN_DICT) {
        return BL_JN_FAIL(c, "dictsort needs a mapping, not '%s'", bl_jn_type_name(v));
    }
    if (a[1].t != BL_JN_MISSING) {
        by_value = a[1].t == BL_JN_STR && bl_jn_str_is(a[1].s, "value");
        if (!by_value && !(a[1].t == BL_JN_STR && bl_jn_str_is(a[1].s, "key"))) {
            return BL_JN_FAIL(c, "dictsort: you can only sort by either \"key\" or \"value\"");
        }
    }
    void *m;
    size_t n = v.d->n;
    BL_TRY(bl_jn_alloc_array(c, BL_MAX(n, (size_t)1), sizeof(keyed), &m));
    keyed *k = m;
    for (size_t i = 0; i < n; i++) {
        BL_TRY(bl_jn_new_pair(c, v.d->e[i].key, v.d->e[i].val, &k[i].val));
        BL_TRY(fold(c, by_value ? v.d->e[i].val : v.d->e[i].key, flag(a[0]), &k[i].key));
    }
    BL_TRY(sort_keyed(c, k, n, flag(a[2])));
    return values_of(c, k, n, ret);
}

static bl_code f_groupby(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    keyed *k;
    size_t n, groups = 0;
    BL_TRY(keyed_list(c, v, a[0], a[1], flag(a[2]), false, &k, &n));
    BL_TRY(sort_keyed(c, k, n, false));
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, n, ret));
    for (size_t i = 0; i < n;) {
        size_t j = i + 1;
        bool eq = true;
        while (j < n) {
            BL_TRY(bl_jn_eq(c, k[i].key, k[j].key, &eq));
            if (!eq) {
                break;
            }
            j++;
        }
        bl_jn_val list, key;
        BL_TRY(values_of(c, k + i, j - i, &list));
        BL_TRY(get_path(c, k[i].val, a[0], a[1], &key));
        BL_TRY(bl_jn_new_pair(c, key, list, &ret->l->v[groups++]));
        i = j;
    }
    ret->l->n = groups;
    return BL_OK;
}

static bl_code extreme(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bool want_max, bl_jn_val *ret) {
    keyed *k;
    size_t n, best = 0;
    BL_TRY(keyed_list(c, v, a[1], bl_jn_missing(), flag(a[0]), false, &k, &n));
    if (n == 0) {
        return undefined_hint(c, "No aggregated item, sequence was empty.", ret);
    }
    for (size_t i = 1; i < n; i++) {
        int r;
        BL_TRY(bl_jn_order(c, k[i].key, k[best].key, want_max ? ">" : "<", &r));
        best = r != 2 && (want_max ? r > 0 : r < 0) ? i : best;
    }
    *ret = k[best].val;
    return BL_OK;
}
static bl_code f_min(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    return extreme(c, v, a, false, ret);
}
static bl_code f_max(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    return extreme(c, v, a, true, ret);
}

static bl_code f_unique(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    keyed *k;
    size_t n, kept = 0;
    bl_jn_val seen, list, it;
    bl_jn_iter *src;
    BL_TRY(keyed_list(c, v, a[1], bl_jn_missing(), flag(a[0]), false, &k, &n));
    BL_TRY(bl_jn_new_dict(c, 0, BL_JN_DICT, &seen));
    for (size_t i = 0; i < n; i++) {
        size_t before = seen.d->n;
        BL_TRY(bl_jn_dict_set(c, seen.d, k[i].key, bl_jn_none()));
        if (seen.d->n > before) {
            k[kept++] = k[i];
        }
    }
    BL_TRY(values_of(c, k, kept, &list));
    BL_TRY(bl_jn_iterate(c, list, &src));
    it = (bl_jn_val){.t = BL_JN_ITER, .it = src};
    *ret = it;
    return BL_OK;
}

static bl_code f_sum(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_iter *it;
    bl_jn_val sum = a[1].t == BL_JN_MISSING ? bl_jn_int(0) : a[1];
    BL_TRY(bl_jn_iterate(c, v, &it));
    if (sum.t == BL_JN_STR) {
        return BL_JN_FAIL(c, "sum() can't sum strings");
    }
    for (;;) {
        bl_jn_val x;
        bool got;
        BL_TRY(bl_jn_next(c, it, &x, &got));
        if (!got) {
            *ret = sum;
            return BL_OK;
        }
        BL_TRY(get_path(c, x, a[0], bl_jn_missing(), &x));
        BL_TRY(bl_jn_binary(c, BL_JN_OP_ADD, sum, x, &sum));
    }
}

/* ---- plain ones ---- */

static bl_code f_length(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    int64_t n;
    bool has;
    BL_TRY(bl_jn_len(c, v, &n, &has));
    if (!has) {
        return BL_JN_FAIL(c, "object of type '%s' has no len()", bl_jn_type_name(v));
    }
    *ret = bl_jn_int(n);
    return BL_OK;
}

static bl_code f_default(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    *ret = v;
    if (v.t != BL_JN_UNDEF && !(flag(a[1]) && !bl_jn_truth(v))) {
        return BL_OK;
    }
    if (a[0].t == BL_JN_MISSING) {
        return bl_jn_new_cstr(c, "", ret);
    }
    *ret = a[0];
    return BL_OK;
}

static bl_code f_list(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return bl_jn_collect(c, v, BL_JN_LIST, ret);
}

static bl_code f_first(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_iter *it;
    bool got;
    BL_TRY(bl_jn_iterate(c, v, &it));
    BL_TRY(bl_jn_next(c, it, ret, &got));
    return got ? BL_OK : undefined_hint(c, "No first item, sequence was empty.", ret);
}

static bool reversible(bl_jn_val v) {
    return v.t == BL_JN_LIST || v.t == BL_JN_TUPLE || v.t == BL_JN_DICT || v.t == BL_JN_VIEW ||
           v.t == BL_JN_RANGE || v.t == BL_JN_UNDEF;
}

static bl_code f_last(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_iter *it;
    bool got;
    if (v.t == BL_JN_STR && v.s->n > 0) {
        size_t at = bl_jn_cp_before(v.s, v.s->n);
        return bl_jn_substr(c, v.s, at, v.s->n - at, ret);
    }
    if (v.t != BL_JN_STR && !reversible(v)) {
        return BL_JN_FAIL(c, "'%s' object is not reversible", bl_jn_type_name(v));
    }
    BL_TRY(bl_jn_iterate(c, v, &it));
    it->reversed = true;
    BL_TRY(bl_jn_next(c, it, ret, &got));
    return got ? BL_OK : undefined_hint(c, "No last item, sequence was empty.", ret);
}

static bl_code f_reverse(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    if (v.t == BL_JN_STR) {
        const bl_jn_val bounds[3] = {bl_jn_missing(), bl_jn_missing(), bl_jn_int(-1)};
        return bl_jn_slice(c, v, bounds, ret);
    }
    if (!reversible(v)) {
        BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &v));
        const bl_jn_val bounds[3] = {bl_jn_missing(), bl_jn_missing(), bl_jn_int(-1)};
        return bl_jn_slice(c, v, bounds, ret);
    }
    bl_jn_iter *it;
    BL_TRY(bl_jn_iterate(c, v, &it));
    it->reversed = true;
    *ret = (bl_jn_val){.t = BL_JN_ITER, .it = it};
    return BL_OK;
}

static bl_code f_string(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_str *s;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    *ret = bl_jn_strval(s);
    return BL_OK;
}

static bl_code f_safe(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_str *s;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    return bl_jn_as_markup(c, s, true, ret);
}

static bl_code f_escape(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_str *s;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    return bl_jn_escape(c, s, ret);
}

static bl_code cased(bl_jn_ctx *c, bl_jn_val v, char mode, bl_jn_val *ret) {
    bl_jn_str *s;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    return bl_jn_change_case(c, s, mode, ret);
}
static bl_code f_upper(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return cased(c, v, 'u', ret);
}
static bl_code f_lower(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return cased(c, v, 'l', ret);
}
static bl_code f_capitalize(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return cased(c, v, 'c', ret);
}

/* jinja2's title: words begin after white space or one of -({[< */
static bl_code f_title(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_str *s;
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    BL_TRY(bl_jn_soft_str(c, v, &s));
    for (size_t i = 0; i < s->n;) {
        size_t start = i;
        bool is_sep = false;
        for (bool first = true; i < s->n; first = false) {
            size_t len;
            uint32_t cp = bl_jn_cp_at(s, i, &len);
            bool sep = bl_jn_is_space(cp) || (cp < 0x80 && cp > 0 && strchr("-({[<", (int)cp));
            if (!first && sep != is_sep) {
                break;
            }
            is_sep = sep;
            i += len;
        }
        size_t len;
        (void)bl_jn_cp_at(s, start, &len);
        bl_jn_val head, tail;
        BL_TRY(bl_jn_substr(c, s, start, len, &head));
        BL_TRY(bl_jn_change_case(c, head.s, 'u', &head));
        BL_TRY(bl_jn_substr(c, s, start + len, i - start - len, &tail));
        BL_TRY(bl_jn_change_case(c, tail.s, 'l', &tail));
        BL_TRY(bl_jn_sb_add_str(c, &sb, head.s));
        BL_TRY(bl_jn_sb_add_str(c, &sb, tail.s));
    }
    return bl_jn_sb_done(c, &sb, ret);
}

static bl_code f_trim(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_str *s;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    if (given(a[0]) && a[0].t != BL_JN_STR) {
        return BL_JN_FAIL(c, "strip arg must be None or str");
    }
    return bl_jn_strip(c, s, given(a[0]) ? a[0].s : NULL, true, true, ret);
}

static bl_code f_replace(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_str *s, *from, *to;
    int64_t count;
    BL_TRY(bl_jn_to_str(c, v, &s));
    BL_TRY(bl_jn_to_str(c, a[0], &from));
    BL_TRY(bl_jn_to_str(c, a[1], &to));
    BL_TRY(opt_int(c, given(a[2]) ? a[2] : bl_jn_missing(), -1, &count));
    return bl_jn_replace(c, s, from, to, count, ret);
}

static bl_code f_join(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_iter *it;
    bl_jn_sb sb;
    bl_jn_str *sep = NULL;
    bl_jn_sb_init(&sb);
    if (a[0].t != BL_JN_MISSING) {
        BL_TRY(bl_jn_to_str(c, a[0], &sep));
    }
    BL_TRY(bl_jn_iterate(c, v, &it));
    for (bool first = true;; first = false) {
        bl_jn_val x;
        bool got;
        BL_TRY(bl_jn_next(c, it, &x, &got));
        if (!got) {
            return bl_jn_sb_done(c, &sb, ret);
        }
        BL_TRY(get_path(c, x, a[1], bl_jn_missing(), &x));
        if (!first && sep) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, sep));
        }
        BL_TRY(bl_jn_sb_print(c, &sb, x));
    }
}

static bl_code f_indent(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_val nl, text, lines, unit;
    bl_jn_sb sb;
    int64_t width = 4;
    if (v.t != BL_JN_STR) {
        return BL_JN_FAIL(c, "indent needs a string, not '%s'", bl_jn_type_name(v));
    }
    if (a[0].t == BL_JN_STR) {
        unit = a[0];
    } else {
        BL_TRY(opt_int(c, a[0], 4, &width));
        BL_TRY(bl_jn_new_cstr(c, " ", &unit));
        BL_TRY(bl_jn_binary(c, BL_JN_OP_MUL, unit, bl_jn_int(width), &unit));
    }
    bool first = flag(a[1]), blank = flag(a[2]);
    BL_TRY(bl_jn_new_cstr(c, "\n", &nl));
    BL_TRY(bl_jn_concat(c, v.s, nl.s, &text));
    BL_TRY(bl_jn_split_lines(c, text.s, false, &lines));
    bl_jn_sb_init(&sb);
    for (size_t i = 0; i < lines.l->n; i++) {
        bl_jn_str *line = lines.l->v[i].s;
        if (i > 0) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, nl.s));
        }
        if (i == 0 ? first : blank || line->n > 0) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, unit.s));
        }
        BL_TRY(bl_jn_sb_add_str(c, &sb, line));
    }
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    ret->s->markup = v.s->markup;
    return BL_OK;
}

static bl_code f_items(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_iter *it;
    bl_jn_val list;
    if (v.t == BL_JN_UNDEF) {
        BL_TRY(bl_jn_new_list(c, BL_JN_LIST, 0, &list));
        BL_TRY(bl_jn_iterate(c, list, &it));
    } else {
        if (v.t != BL_JN_DICT) {
            return BL_JN_FAIL(c, "can only get item pairs from a mapping, not '%s'", bl_jn_type_name(v));
        }
        void *m;
        BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_view), &m));
        bl_jn_view *view = m;
        *view = (bl_jn_view){.d = v.d, .what = 'i'};
        BL_TRY(bl_jn_iterate(c, (bl_jn_val){.t = BL_JN_VIEW, .view = view}, &it));
    }
    *ret = (bl_jn_val){.t = BL_JN_ITER, .it = it};
    return BL_OK;
}

static bl_code f_attr(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bool got;
    if (a[0].t != BL_JN_STR) {
        return BL_JN_FAIL(c, "attr needs a name");
    }
    BL_TRY(bl_jn_python_attr(c, v, a[0].s, ret, &got));
    return got ? BL_OK : bl_jn_new_undef(c, BL_JN_UNDEF_ATTR, bl_jn_type_name(v), a[0].s, NULL, ret);
}

static bl_code f_center(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    bool known, unsafe;
    bl_jn_str *s;
    static const bl_jn_str name = {.p = "center", .n = 6, .n_cp = 6};
    BL_TRY(bl_jn_soft_str(c, v, &s));
    bl_jn_val self = bl_jn_strval(s);
    const bl_jn_val args[2] = {a[0].t == BL_JN_MISSING ? bl_jn_int(80) : a[0], bl_jn_missing()};
    return bl_jn_find_method(self, &name, &known, &unsafe)->fn(c, self, args, ret);
}

static bl_code f_truncate(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t length, leeway, n;
    bool has;
    bl_jn_val end = a[2], cut;
    BL_TRY(opt_int(c, a[0], 255, &length));
    BL_TRY(opt_int(c, given(a[3]) ? a[3] : bl_jn_missing(), 5, &leeway));
    if (end.t == BL_JN_MISSING) {
        BL_TRY(bl_jn_new_cstr(c, "...", &end));
    }
    if (end.t != BL_JN_STR) {
        return BL_JN_FAIL(c, "truncate: end must be a string");
    }
    int64_t end_n = (int64_t)bl_jn_str_len(end.s);
    if (length < end_n || leeway < 0) {
        return BL_JN_FAIL(c, "truncate: length %lld is below %lld", (long long)length, (long long)end_n);
    }
    BL_TRY(bl_jn_len(c, v, &n, &has));
    if (has && n - leeway <= length) {
        *ret = v; /* whatever has a length, as in Python */
        return BL_OK;
    }
    if (v.t != BL_JN_STR) {
        return BL_JN_FAIL(c, "truncate needs a string, not '%s'", bl_jn_type_name(v));
    }
    const bl_jn_val bounds[3] = {bl_jn_missing(), bl_jn_int(length - end_n), bl_jn_missing()};
    BL_TRY(bl_jn_slice(c, v, bounds, &cut));
    if (!flag(a[1])) {
        size_t p = cut.s->n;
        while (p > 0 && cut.s->p[p - 1] != ' ') {
            p--;
        }
        if (p > 0) {
            BL_TRY(bl_jn_substr(c, cut.s, 0, p - 1, &cut));
        }
    }
    return bl_jn_binary(c, BL_JN_OP_ADD, cut, end, ret);
}

static bool is_word(uint32_t cp) {
    return cp == '_' || bl_jn_is_alpha(cp) || bl_jn_is_numeric(cp);
}

static bl_code f_wordcount(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    bl_jn_str *s;
    int64_t n = 0;
    bool inside = false;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    BL_TRY(bl_jn_charge(c, s->n));
    for (size_t i = 0; i < s->n;) {
        size_t len;
        bool word = is_word(bl_jn_cp_at(s, i, &len));
        n += word && !inside;
        inside = word;
        i += len;
    }
    *ret = bl_jn_int(n);
    return BL_OK;
}

/* ---- numbers ---- */

/* Python's int(str, base) and float(str) after stripping; *ret_ok false when malformed. */
static bool parse_int(const bl_jn_str *s, int64_t base, int64_t *ret) {
    size_t i = 0, end = s->n;
    bool neg = false, any = false;
    uint64_t v = 0;
    while (i < end && bl_jn_is_space((unsigned char)s->p[i])) {
        i++;
    }
    while (end > i && bl_jn_is_space((unsigned char)s->p[end - 1])) {
        end--;
    }
    if (i < end && (s->p[i] == '-' || s->p[i] == '+')) {
        neg = s->p[i++] == '-';
    }
    if (end - i > 2 && s->p[i] == '0') {
        char b = (char)(s->p[i + 1] | 0x20);
        i += (base == 16 && b == 'x') || (base == 8 && b == 'o') || (base == 2 && b == 'b') ? 2 : 0;
    }
    for (; i < end; i++) {
        char ch = s->p[i];
        if (ch == '_' && any && i + 1 < end && s->p[i + 1] != '_') {
            continue;
        }
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'a' && ch <= 'z' ? ch - 'a' + 10
                : ch >= 'A' && ch <= 'Z' ? ch - 'A' + 10
                                         : 99;
        if (d >= base || __builtin_mul_overflow(v, (uint64_t)base, &v) ||
            __builtin_add_overflow(v, (uint64_t)d, &v)) {
            return false;
        }
        any = true;
    }
    if (!any || v > (uint64_t)INT64_MAX) {
        return false;
    }
    *ret = neg ? -(int64_t)v : (int64_t)v;
    return true;
}

static bool parse_float(const bl_jn_str *s, double *ret) {
    char text[128];
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        if (n == 0 && bl_jn_is_space(ch)) {
            continue;
        }
        if (n + 1 >= sizeof text || ch == 'x' || ch == 'X' || ch == '(' || ch >= 0x80 || ch == 0) {
            return false; /* strtod would take hexadecimal and nan(...), Python does not */
        }
        if (ch == '_' && n > 0 && text[n - 1] >= '0' && text[n - 1] <= '9' && i + 1 < s->n &&
            s->p[i + 1] >= '0' && s->p[i + 1] <= '9') {
            continue;
        }
        text[n++] = (char)ch;
    }
    while (n > 0 && bl_jn_is_space((unsigned char)text[n - 1])) {
        n--;
    }
    text[n] = '\0';
    char *end;
    *ret = strtod(text, &end);
    return n > 0 && *end == '\0';
}

static bool float_to_int(double f, int64_t *ret) {
    if (!(f > -9.2233720368547e18 && f < 9.2233720368547e18)) {
        return false;
    }
    *ret = (int64_t)f;
    return true;
}

static bl_code f_int(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t base, i;
    double f;
    BL_TRY(opt_int(c, a[1], 10, &base));
    if (base < 2 || base > 36) {
        return BL_JN_FAIL(c, "int: base %lld, must be 2 to 36", (long long)base);
    }
    if (v.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, v);
    }
    bool ok = bl_jn_as_index(v, &i);
    if (v.t == BL_JN_FLOAT) {
        if (isinf(v.f)) {
            return BL_JN_FAIL(c, "cannot convert float infinity to integer");
        }
        ok = float_to_int(v.f, &i);
    } else if (v.t == BL_JN_STR) {
        ok = parse_int(v.s, base, &i) || (parse_float(v.s, &f) && float_to_int(f, &i));
    }
    *ret = ok ? bl_jn_int(i) : a[0].t == BL_JN_MISSING ? bl_jn_int(0) : a[0];
    return BL_OK;
}

static bl_code f_float(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    double f;
    if (v.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, v);
    }
    bool ok = bl_jn_as_double(v, &f) || (v.t == BL_JN_STR && parse_float(v.s, &f));
    *ret = ok ? bl_jn_float(f) : a[0].t == BL_JN_MISSING ? bl_jn_float(0.0) : a[0];
    return BL_OK;
}

static bl_code f_abs(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    int64_t i;
    if (v.t == BL_JN_FLOAT) {
        *ret = bl_jn_float(fabs(v.f));
        return BL_OK;
    }
    if (v.t == BL_JN_UNDEF) {
        return bl_jn_fail_undef(c, v);
    }
    if (!bl_jn_as_index(v, &i)) {
        return BL_JN_FAIL(c, "bad operand type for abs(): '%s'", bl_jn_type_name(v));
    }
    return bl_jn_binary(c, i < 0 ? BL_JN_OP_SUB : BL_JN_OP_ADD, bl_jn_int(0), bl_jn_int(i), ret);
}

static bl_code f_round(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t precision;
    double f;
    BL_TRY(opt_int(c, a[0], 0, &precision));
    bool common = a[1].t == BL_JN_MISSING || (a[1].t == BL_JN_STR && bl_jn_str_is(a[1].s, "common"));
    bool up = a[1].t == BL_JN_STR && bl_jn_str_is(a[1].s, "ceil");
    if (!common && !up && !(a[1].t == BL_JN_STR && bl_jn_str_is(a[1].s, "floor"))) {
        return BL_JN_FAIL(c, "round: method must be common, ceil or floor");
    }
    if (precision < 0 || precision > 100) {
        return BL_JN_FAIL(c, "round: precision %lld is not supported", (long long)precision);
    }
    if (!bl_jn_as_double(v, &f)) {
        return v.t == BL_JN_UNDEF ? bl_jn_fail_undef(c, v)
                                  : BL_JN_FAIL(c, "round needs a number, not '%s'", bl_jn_type_name(v));
    }
    if (!common) {
        double scale = pow(10.0, (double)precision);
        *ret = bl_jn_float((up ? ceil(f * scale) : floor(f * scale)) / scale);
        return BL_OK;
    }
    if (v.t != BL_JN_FLOAT) {
        *ret = v.t == BL_JN_BOOL ? bl_jn_int(v.b) : v;
        return BL_OK;
    }
    char text[512]; /* printf rounds the exact value half to even, as Python's round does */
    (void)snprintf(text, sizeof text, "%.*f", (int)precision, f);
    *ret = bl_jn_float(isfinite(f) ? strtod(text, NULL) : f);
    return BL_OK;
}

/* ---- batches ---- */

static bl_code as_generator(bl_jn_ctx *c, bl_jn_val list, bl_jn_val *ret) {
    bl_jn_iter *it;
    BL_TRY(bl_jn_iterate(c, list, &it));
    *ret = (bl_jn_val){.t = BL_JN_ITER, .it = it};
    return BL_OK;
}

static bl_code sub_list(bl_jn_ctx *c, const bl_jn_list *l, size_t from, size_t to, size_t fill,
                        bl_jn_val filler, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, to - from + fill, ret));
    memcpy(ret->l->v, l->v + from, (to - from) * sizeof *l->v);
    for (size_t i = 0; i < fill; i++) {
        ret->l->v[to - from + i] = filler;
    }
    return BL_OK;
}

static bl_code f_batch(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t count;
    bl_jn_val list, out;
    BL_TRY(opt_int(c, a[0], 0, &count));
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &list));
    if (count < 1 || count > INT32_MAX) {
        return BL_JN_FAIL(c, "batch: size %lld, must be at least 1", (long long)count);
    }
    size_t n = list.l->n, size = (size_t)count, groups = (n + size - 1) / size;
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, groups, &out));
    for (size_t g = 0; g < groups; g++) {
        size_t from = g * size, to = BL_MIN(from + size, n);
        size_t fill = given(a[1]) ? size - (to - from) : 0;
        BL_TRY(sub_list(c, list.l, from, to, fill, a[1], &out.l->v[g]));
    }
    return as_generator(c, out, ret);
}

static bl_code f_slice(bl_jn_ctx *c, bl_jn_val v, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t count;
    bl_jn_val list, out;
    BL_TRY(opt_int(c, a[0], 0, &count));
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &list));
    if (count < 1 || count > BL_JN_MAX_RANGE) {
        return BL_JN_FAIL(c, "slice: %lld slices, must be 1 to %d", (long long)count, BL_JN_MAX_RANGE);
    }
    size_t slices = (size_t)count, per = list.l->n / slices, extra = list.l->n % slices, from = 0;
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, slices, &out));
    for (size_t g = 0; g < slices; g++) {
        size_t to = from + per + (g < extra ? 1 : 0);
        BL_TRY(sub_list(c, list.l, from, to, given(a[1]) && g >= extra ? 1 : 0, a[1], &out.l->v[g]));
        from = to;
    }
    return as_generator(c, out, ret);
}

/* ---- map, select and their kind ---- */

typedef struct {
    const bl_jn_filter_def *filter; /* map with a filter */
    const bl_jn_test_def *test;     /* select... with a test; NULL: truth */
    bl_jn_val attr, fallback;
    bl_jn_args args;
    bool negate;
} pipeline;

static bl_code map_next(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) {
    const pipeline *p = it->state;
    bl_jn_val v;
    BL_TRY(bl_jn_next(c, it->src, &v, ret_got));
    if (!*ret_got) {
        return BL_OK;
    }
    return p->filter ? bl_jn_apply_filter(c, p->filter, v, &p->args, ret)
                     : get_path(c, v, p->attr, p->fallback, ret);
}

static bl_code select_next(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) {
    const pipeline *p = it->state;
    for (;;) {
        bl_jn_val x;
        bool yes;
        BL_TRY(bl_jn_next(c, it->src, ret, ret_got));
        if (!*ret_got) {
            return BL_OK;
        }
        BL_TRY(get_path(c, *ret, p->attr, bl_jn_missing(), &x));
        yes = bl_jn_truth(x);
        if (p->test) {
            BL_TRY(bl_jn_apply_test(c, p->test, x, &p->args, &yes));
        }
        if (yes != p->negate) {
            return BL_OK;
        }
    }
}

static bl_code new_pipeline(bl_jn_ctx *c, const bl_jn_args *a, size_t used, pipeline **ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(pipeline), &m));
    *ret = m;
    **ret = (pipeline){.attr = bl_jn_missing(), .fallback = bl_jn_missing(), .args = *a};
    used = BL_MIN(used, a->n_pos);
    (*ret)->args.pos = used > 0 ? a->pos + used : a->pos;
    (*ret)->args.n_pos = a->n_pos - used;
    return BL_OK;
}

static bl_code empty_generator(bl_jn_ctx *c, bl_jn_val *ret) {
    bl_jn_val list;
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, 0, &list));
    return as_generator(c, list, ret);
}

static bl_code f_map(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    pipeline *p;
    bl_jn_iter *src;
    if (!bl_jn_truth(v)) {
        return empty_generator(c, ret);
    }
    BL_TRY(new_pipeline(c, a, 1, &p));
    if (a->n_pos == 0) {
        for (size_t i = 0; i < a->n_kw; i++) {
            if (bl_jn_str_is(a->kw[i].name, "attribute")) {
                p->attr = a->kw[i].v;
            } else if (bl_jn_str_is(a->kw[i].name, "default")) {
                p->fallback = a->kw[i].v;
            } else {
                return BL_JN_FAIL(c, "map: unexpected keyword argument '%.*s'",
                                  (int)BL_MIN(a->kw[i].name->n, (size_t)60), a->kw[i].name->p);
            }
        }
        if (p->attr.t == BL_JN_MISSING) {
            return BL_JN_FAIL(c, "map requires a filter argument");
        }
    } else {
        p->filter = a->pos[0].t == BL_JN_STR ? bl_jn_find_filter(a->pos[0].s->p, a->pos[0].s->n) : NULL;
        if (!p->filter) {
            return BL_JN_FAIL(c, "map: unknown or unsupported filter");
        }
    }
    BL_TRY(bl_jn_iterate(c, v, &src));
    return bl_jn_new_gen(c, src, map_next, p, ret);
}

static bl_code select_or_reject(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bool by_attr, bool negate,
                                bl_jn_val *ret) {
    pipeline *p;
    bl_jn_iter *src;
    if (!bl_jn_truth(v)) {
        return empty_generator(c, ret);
    }
    size_t at = by_attr ? 1 : 0;
    BL_TRY(new_pipeline(c, a, at + 1, &p));
    p->negate = negate;
    if (by_attr) {
        if (a->n_pos == 0) {
            return BL_JN_FAIL(c, "missing parameter for attribute name");
        }
        p->attr = a->pos[0];
    }
    if (a->n_pos > at) {
        p->test = a->pos[at].t == BL_JN_STR ? bl_jn_find_test(a->pos[at].s->p, a->pos[at].s->n) : NULL;
        if (!p->test) {
            return BL_JN_FAIL(c, "unknown test in select or reject");
        }
    }
    BL_TRY(bl_jn_iterate(c, v, &src));
    return bl_jn_new_gen(c, src, select_next, p, ret);
}
static bl_code f_select(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    return select_or_reject(c, v, a, false, false, ret);
}
static bl_code f_reject(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    return select_or_reject(c, v, a, false, true, ret);
}
static bl_code f_selectattr(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    return select_or_reject(c, v, a, true, false, ret);
}
static bl_code f_rejectattr(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    return select_or_reject(c, v, a, true, true, ret);
}

static bl_code f_format(bl_jn_ctx *c, bl_jn_val v, const bl_jn_args *a, bl_jn_val *ret) {
    bl_jn_str *s;
    bl_jn_val args;
    BL_TRY(bl_jn_soft_str(c, v, &s));
    if (a->n_kw > 0 && a->n_pos > 0) {
        return BL_JN_FAIL(c, "format: can't handle positional and keyword arguments at the same time");
    }
    if (a->n_kw > 0) {
        BL_TRY(bl_jn_new_dict(c, a->n_kw, BL_JN_DICT, &args));
        for (size_t i = 0; i < a->n_kw; i++) {
            BL_TRY(bl_jn_dict_set(c, args.d, bl_jn_strval(a->kw[i].name), a->kw[i].v));
        }
    } else {
        BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, a->n_pos, &args));
        if (a->n_pos > 0) {
            memcpy(args.l->v, a->pos, a->n_pos * sizeof *a->pos);
        }
    }
    return bl_jn_percent(c, s, args, ret);
}

/* ---- table ---- */

static const bl_jn_filter_def filters[] = {
    {"abs", f_abs, NULL, "", 0},
    {"attr", f_attr, NULL, "name", 1},
    {"batch", f_batch, NULL, "linecount,fill_with", 1},
    {"capitalize", f_capitalize, NULL, "", 0},
    {"center", f_center, NULL, "width", 0},
    {"count", f_length, NULL, "", 0},
    {"d", f_default, NULL, "default_value,boolean", 0},
    {"default", f_default, NULL, "default_value,boolean", 0},
    {"dictsort", f_dictsort, NULL, "case_sensitive,by,reverse", 0},
    {"e", f_escape, NULL, "", 0},
    {"escape", f_escape, NULL, "", 0},
    {"first", f_first, NULL, "", 0},
    {"float", f_float, NULL, "default", 0},
    {"format", NULL, f_format, "", 0},
    {"groupby", f_groupby, NULL, "attribute,default,case_sensitive", 1},
    {"indent", f_indent, NULL, "width,first,blank", 0},
    {"int", f_int, NULL, "default,base", 0},
    {"items", f_items, NULL, "", 0},
    {"join", f_join, NULL, "d,attribute", 0},
    {"last", f_last, NULL, "", 0},
    {"length", f_length, NULL, "", 0},
    {"list", f_list, NULL, "", 0},
    {"lower", f_lower, NULL, "", 0},
    {"map", NULL, f_map, "", 0},
    {"max", f_max, NULL, "case_sensitive,attribute", 0},
    {"min", f_min, NULL, "case_sensitive,attribute", 0},
    {"reject", NULL, f_reject, "", 0},
    {"rejectattr", NULL, f_rejectattr, "", 0},
    {"replace", f_replace, NULL, "old,new,count", 2},
    {"reverse", f_reverse, NULL, "", 0},
    {"round", f_round, NULL, "precision,method", 0},
    {"safe", f_safe, NULL, "", 0},
    {"select", NULL, f_select, "", 0},
    {"selectattr", NULL, f_selectattr, "", 0},
    {"slice", f_slice, NULL, "slices,fill_with", 1},
    {"sort", f_sort, NULL, "reverse,case_sensitive,attribute", 0},
    {"string", f_string, NULL, "", 0},
    {"sum", f_sum, NULL, "attribute,start", 0},
    {"title", f_title, NULL, "", 0},
    {"tojson", bl_jn_tojson, NULL, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", f_trim, NULL, "chars", 0},
    {"truncate", f_truncate, NULL, "length,killwords,end,leeway", 0},
    {"unique", f_unique, NULL, "case_sensitive,attribute", 0},
    {"upper", f_upper, NULL, "", 0},
    {"wordcount", f_wordcount, NULL, "", 0},
};

const bl_jn_filter_def *bl_jn_find_filter(const char *name, size_t n) {
    for (size_t i = 0; i < BL_COUNTOF(filters); i++) {
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}

bool bl_jn_known_filter(const bl_jn_str *name) {
    static const char *const others[] = {"filesizeformat", "forceescape", "pprint",   "random", "striptags",
                                         "urlencode",      "urlize",      "wordwrap", "xmlattr"};
    for (size_t i = 0; i < BL_COUNTOF(others); i++) {
        if (bl_jn_str_is(name, others[i])) {
            return true;
        }
    }
    return bl_jn_find_filter(name->p, name->n) != NULL;
}

bl_code bl_jn_apply_filter(bl_jn_ctx *c, const bl_jn_filter_def *f, bl_jn_val v, const bl_jn_args *a,
                           bl_jn_val *ret) {
    if (f->raw) {
        return f->raw(c, v, a, ret);
    }
    bl_jn_val bound[BL_JN_MAX_PARAMS];
    BL_TRY(bl_jn_bind(c, f->name, f->params, f->n_required, true, a, bound));
    return f->fn(c, v, bound, ret);
}
