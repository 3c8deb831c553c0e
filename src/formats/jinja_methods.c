/* Methods of str, dict, list and tuple that templates call, with Python's semantics. Methods that Python has
 * and we do not are refused by name; those that would change a list or dictionary are what the sandbox says:
 * unsafe.
 */
#include <string.h>

#include "formats/jinja_private.h"

static bl_code need_str(bl_jn_ctx *c, bl_jn_val v, const char *what, bl_jn_str **ret) {
    if (v.t != BL_JN_STR) {
        return BL_JN_FAIL(c, "%s must be str, not %s", what, bl_jn_type_name(v));
    }
    *ret = v.s;
    return BL_OK;
}

static bl_code opt_int(bl_jn_ctx *c, bl_jn_val v, int64_t absent, int64_t *ret) {
    *ret = absent;
    if (v.t == BL_JN_MISSING) {
        return BL_OK;
    }
    if (!bl_jn_as_index(v, ret)) {
        return BL_JN_FAIL(c, "'%s' object cannot be interpreted as an integer", bl_jn_type_name(v));
    }
    return BL_OK;
}

/* [start, end) in bytes from optional code point bounds, as str.find takes them. *ret_ok false: start beyond
 * the end. */
static bl_code byte_range(bl_jn_ctx *c, bl_jn_str *s, bl_jn_val start, bl_jn_val end, size_t *ret_from,
                          size_t *ret_to, bool *ret_ok) {
    int64_t n, b[2];
    bool has;
    bl_jn_val lo = start.t == BL_JN_NONE ? bl_jn_missing() : start,
              hi = end.t == BL_JN_NONE ? bl_jn_missing() : end;
    BL_TRY(bl_jn_len(c, bl_jn_strval(s), &n, &has));
    BL_TRY(opt_int(c, lo, 0, &b[0]));
    BL_TRY(opt_int(c, hi, n, &b[1]));
    for (int k = 0; k < 2; k++) {
        b[k] = b[k] < 0 ? BL_MAX(b[k] + n, (int64_t)0) : b[k];
    }
    b[1] = BL_MIN(b[1], n);
    *ret_ok = b[0] <= b[1];
    if (*ret_ok) {
        *ret_from = bl_jn_str_offset(s, (size_t)b[0]);
        *ret_to = bl_jn_str_offset(s, (size_t)b[1]);
    }
    return BL_OK;
}

static bool affix(const bl_jn_str *s, size_t from, size_t to, const bl_jn_str *x, bool at_end) {
    if (x->n > to - from) {
        return false;
    }
    return x->n == 0 || memcmp(s->p + (at_end ? to - x->n : from), x->p, x->n) == 0;
}

static bl_code starts_or_ends(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bool at_end, bl_jn_val *ret) {
    size_t from = 0, to = 0;
    bool ok, yes = false;
    BL_TRY(byte_range(c, self.s, a[1], a[2], &from, &to, &ok));
    bl_jn_val one = a[0];
    const bl_jn_list many = a[0].t == BL_JN_TUPLE ? *a[0].l : (bl_jn_list){.v = &one, .n = 1};
    for (size_t i = 0; i < many.n; i++) {
        bl_jn_str *x;
        BL_TRY(need_str(c, many.v[i], at_end ? "endswith first arg" : "startswith first arg", &x));
        yes = yes || (ok && affix(self.s, from, to, x, at_end));
    }
    *ret = bl_jn_bool(yes);
    return BL_OK;
}

static bl_code m_startswith(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return starts_or_ends(c, self, a, false, ret);
}
static bl_code m_endswith(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return starts_or_ends(c, self, a, true, ret);
}

static bl_code strip_with(bl_jn_ctx *c, bl_jn_val self, bl_jn_val chars, bool left, bool right,
                          bl_jn_val *ret) {
    bl_jn_str *set = NULL;
    if (chars.t != BL_JN_MISSING && chars.t != BL_JN_NONE) {
        BL_TRY(need_str(c, chars, "strip arg", &set));
    }
    return bl_jn_strip(c, self.s, set, left, right, ret);
}
static bl_code m_strip(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return strip_with(c, self, a[0], true, true, ret);
}
static bl_code m_lstrip(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return strip_with(c, self, a[0], true, false, ret);
}
static bl_code m_rstrip(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return strip_with(c, self, a[0], false, true, ret);
}

/* Searching backwards compares at every place: counted as such. */
static bl_code charge_search(bl_jn_ctx *c, const bl_jn_str *s, const bl_jn_str *needle, bool right) {
    uint64_t work = s->n;
    if (right && !bl_mul_u64(work, 1 + needle->n / 16, &work)) {
        work = UINT64_MAX / 2;
    }
    return bl_jn_charge(c, (size_t)work);
}

/* ---- split ---- */

typedef struct {
    bl_jn_val list;
    size_t n;
} pieces;

static bl_code add_piece(bl_jn_ctx *c, pieces *p, const bl_jn_str *s, size_t from, size_t to) {
    if (p->n == p->list.l->n) {
        bl_jn_val bigger;
        BL_TRY(bl_jn_new_list(c, BL_JN_LIST, p->n * 2, &bigger));
        memcpy(bigger.l->v, p->list.l->v, p->n * sizeof *bigger.l->v);
        p->list = bigger;
    }
    return bl_jn_substr(c, s, from, to - from, &p->list.l->v[p->n++]);
}

static bl_code split_by(bl_jn_ctx *c, const bl_jn_str *s, const bl_jn_str *sep, int64_t max, pieces *p) {
    size_t from = 0;
    for (; max != 0; max -= max > 0) {
        size_t hit = bl_jn_str_find(s, sep, from);
        if (hit == SIZE_MAX) {
            break;
        }
        BL_TRY(add_piece(c, p, s, from, hit));
        from = hit + sep->n;
    }
    return add_piece(c, p, s, from, s->n);
}

static bl_code rsplit_by(bl_jn_ctx *c, const bl_jn_str *s, const bl_jn_str *sep, int64_t max, pieces *p) {
    size_t to = s->n;
    for (; max != 0; max -= max > 0) {
        size_t hit = bl_jn_str_rfind(s, sep, to);
        if (hit == SIZE_MAX) {
            break;
        }
        BL_TRY(add_piece(c, p, s, hit + sep->n, to));
        to = hit;
    }
    return add_piece(c, p, s, 0, to);
}

static size_t skip_class(const bl_jn_str *s, size_t off, bool space) {
    while (off < s->n) {
        size_t len;
        if (bl_jn_is_space(bl_jn_cp_at(s, off, &len)) != space) {
            break;
        }
        off += len;
    }
    return off;
}

static size_t skip_class_back(const bl_jn_str *s, size_t off, bool space) {
    while (off > 0) {
        size_t len, p = bl_jn_cp_before(s, off);
        if (bl_jn_is_space(bl_jn_cp_at(s, p, &len)) != space) {
            break;
        }
        off = p;
    }
    return off;
}

static bl_code split_space(bl_jn_ctx *c, const bl_jn_str *s, int64_t max, pieces *p) {
    size_t off = skip_class(s, 0, true);
    for (; off < s->n && max != 0; max -= max > 0) {
        size_t end = skip_class(s, off, false);
        BL_TRY(add_piece(c, p, s, off, end));
        off = skip_class(s, end, true);
    }
    return off < s->n ? add_piece(c, p, s, off, s->n) : BL_OK; /* the rest as it is */
}

static bl_code rsplit_space(bl_jn_ctx *c, const bl_jn_str *s, int64_t max, pieces *p) {
    size_t off = skip_class_back(s, s->n, true);
    for (; off > 0 && max != 0; max -= max > 0) {
        size_t start = skip_class_back(s, off, false);
        BL_TRY(add_piece(c, p, s, start, off));
        off = skip_class_back(s, start, true);
    }
    return off > 0 ? add_piece(c, p, s, 0, off) : BL_OK;
}

static void reverse_list(bl_jn_list *l) {
    for (size_t i = 0; i + 1 < l->n - i; i++) {
        bl_jn_val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static bl_code split(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bool right, bl_jn_val *ret) {
    int64_t max;
    BL_TRY(opt_int(c, a[1], -1, &max));
    BL_TRY(bl_jn_charge(c, self.s->n));
    pieces p = {0};
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, 8, &p.list));
    if (a[0].t == BL_JN_MISSING || a[0].t == BL_JN_NONE) {
        BL_TRY(right ? rsplit_space(c, self.s, max, &p) : split_space(c, self.s, max, &p));
    } else {
        bl_jn_str *sep;
        BL_TRY(need_str(c, a[0], "separator", &sep));
        if (sep->n == 0) {
            return BL_JN_FAIL(c, "empty separator");
        }
        BL_TRY(charge_search(c, self.s, sep, right));
        BL_TRY(right ? rsplit_by(c, self.s, sep, max, &p) : split_by(c, self.s, sep, max, &p));
    }
    p.list.l->n = p.n;
    if (right) {
        reverse_list(p.list.l);
    }
    *ret = p.list;
    return BL_OK;
}

static bl_code m_split(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return split(c, self, a, false, ret);
}
static bl_code m_rsplit(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return split(c, self, a, true, ret);
}

static bl_code m_splitlines(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return bl_jn_split_lines(c, self.s, bl_jn_truth(a[0]), ret);
}

static bl_code partition(bl_jn_ctx *c, bl_jn_val self, bl_jn_val sep_arg, bool right, bl_jn_val *ret) {
    bl_jn_str *sep, *s = self.s;
    BL_TRY(need_str(c, sep_arg, "separator", &sep));
    if (sep->n == 0) {
        return BL_JN_FAIL(c, "empty separator");
    }
    BL_TRY(charge_search(c, s, sep, right));
    size_t hit = right ? bl_jn_str_rfind(s, sep, s->n) : bl_jn_str_find(s, sep, 0);
    size_t cut[4] = {0, hit, hit + sep->n, s->n};
    if (hit == SIZE_MAX) {
        cut[1] = cut[2] = right ? 0 : s->n;
    }
    BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, 3, ret));
    for (int i = 0; i < 3; i++) {
        BL_TRY(bl_jn_substr(c, s, cut[i], cut[i + 1] - cut[i], &ret->l->v[i]));
    }
    return BL_OK;
}
static bl_code m_partition(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return partition(c, self, a[0], false, ret);
}
static bl_code m_rpartition(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return partition(c, self, a[0], true, ret);
}

/* ---- searching ---- */

static bl_code search(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bool right, bool must,
                      bl_jn_val *ret) {
    bl_jn_str *x;
    size_t from = 0, to = 0, hit = SIZE_MAX;
    bool ok;
    BL_TRY(need_str(c, a[0], "substring", &x));
    BL_TRY(byte_range(c, self.s, a[1], a[2], &from, &to, &ok));
    BL_TRY(charge_search(c, self.s, x, right));
    if (ok) {
        bl_jn_str part = *self.s;
        part.n = to;
        hit = right ? bl_jn_str_rfind(&part, x, to) : bl_jn_str_find(&part, x, from);
        hit = hit != SIZE_MAX && hit < from ? SIZE_MAX : hit;
    }
    if (hit == SIZE_MAX) {
        *ret = bl_jn_int(-1);
        return must ? BL_JN_FAIL(c, "substring not found") : BL_OK;
    }
    bl_jn_str before = {.p = self.s->p, .n = hit, .n_cp = SIZE_MAX};
    *ret = bl_jn_int((int64_t)bl_jn_str_len(&before));
    return BL_OK;
}
static bl_code m_find(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return search(c, self, a, false, false, ret);
}
static bl_code m_rfind(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return search(c, self, a, true, false, ret);
}
static bl_code m_index(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return search(c, self, a, false, true, ret);
}
static bl_code m_rindex(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return search(c, self, a, true, true, ret);
}

static bl_code m_count(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_str *x;
    size_t from = 0, to = 0;
    bool ok;
    int64_t n = 0;
    BL_TRY(need_str(c, a[0], "substring", &x));
    BL_TRY(byte_range(c, self.s, a[1], a[2], &from, &to, &ok));
    BL_TRY(bl_jn_charge(c, self.s->n));
    bl_jn_str part = *self.s;
    part.n = to;
    if (ok && x->n == 0) {
        bl_jn_str window = {.p = self.s->p + from, .n = to - from, .n_cp = SIZE_MAX};
        n = (int64_t)bl_jn_str_len(&window) + 1;
    }
    while (ok && x->n > 0 && (from = bl_jn_str_find(&part, x, from)) != SIZE_MAX) {
        n++;
        from += x->n;
    }
    *ret = bl_jn_int(n);
    return BL_OK;
}

/* ---- building ---- */

static bl_code m_replace(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_str *from, *to;
    int64_t count;
    BL_TRY(need_str(c, a[0], "replace() argument 1", &from));
    BL_TRY(need_str(c, a[1], "replace() argument 2", &to));
    BL_TRY(opt_int(c, a[2], -1, &count));
    if (self.s->markup) {
        return BL_JN_FAIL(c, "replace() on text marked safe is not supported");
    }
    return bl_jn_replace(c, self.s, from, to, count, ret);
}

static bl_code m_join(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_iter *it;
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    if (self.s->markup) {
        return BL_JN_FAIL(c, "join() on text marked safe is not supported");
    }
    BL_TRY(bl_jn_iterate(c, a[0], &it));
    for (bool first = true;; first = false) {
        bl_jn_val v;
        bool got;
        bl_jn_str *s;
        BL_TRY(bl_jn_next(c, it, &v, &got));
        if (!got) {
            return bl_jn_sb_done(c, &sb, ret);
        }
        BL_TRY(need_str(c, v, "sequence item", &s));
        if (!first) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, self.s));
        }
        BL_TRY(bl_jn_sb_add_str(c, &sb, s));
    }
}

#define CASE_METHOD(name, mode)                                                                              \
    static bl_code name(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {                  \
        (void)a;                                                                                             \
        return bl_jn_change_case(c, self.s, (mode), ret);                                                    \
    }
CASE_METHOD(m_upper, 'u')
CASE_METHOD(m_lower, 'l')
CASE_METHOD(m_capitalize, 'c')
CASE_METHOD(m_title, 't')
CASE_METHOD(m_swapcase, 's')
CASE_METHOD(m_casefold, 'f')

/* Pads to `width` code points: `left_of_space` says how many of the missing ones go in front. */
static bl_code pad(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, char side, bl_jn_val *ret) {
    int64_t width, n;
    bool has;
    bl_jn_val space;
    BL_TRY(opt_int(c, a[0], 0, &width));
    BL_TRY(bl_jn_len(c, self, &n, &has));
    BL_TRY(bl_jn_new_cstr(c, " ", &space));
    bl_jn_val fill = a[1].t == BL_JN_MISSING ? space : a[1];
    if (fill.t != BL_JN_STR || bl_jn_str_len(fill.s) != 1) {
        return BL_JN_FAIL(c, "the fill character must be exactly one character long");
    }
    if (width <= n) {
        *ret = self;
        return BL_OK;
    }
    size_t gap = (size_t)(width - n);
    size_t left = side == 'r' ? gap : side == 'l' ? 0 : gap / 2 + (gap & (size_t)width & 1);
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    uint8_t origin = bl_jn_origin_at(fill.s, 0);
    BL_TRY(bl_jn_sb_fill(c, &sb, fill.s->p, fill.s->n, left, origin));
    BL_TRY(bl_jn_sb_add_str(c, &sb, self.s));
    BL_TRY(bl_jn_sb_fill(c, &sb, fill.s->p, fill.s->n, gap - left, origin));
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    ret->s->markup = self.s->markup;
    return BL_OK;
}
static bl_code m_ljust(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return pad(c, self, a, 'l', ret);
}
static bl_code m_rjust(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return pad(c, self, a, 'r', ret);
}
static bl_code m_center(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return pad(c, self, a, 'c', ret);
}

static bl_code m_zfill(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    bl_jn_str *s = self.s;
    int64_t width, n;
    bool has;
    BL_TRY(opt_int(c, a[0], 0, &width));
    BL_TRY(bl_jn_len(c, self, &n, &has));
    if (width <= n) {
        *ret = self;
        return BL_OK;
    }
    size_t sign = s->n > 0 && (s->p[0] == '+' || s->p[0] == '-') ? 1 : 0;
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    BL_TRY(bl_jn_sb_add_sub(c, &sb, s, 0, sign));
    BL_TRY(bl_jn_sb_fill(c, &sb, "0", 1, (size_t)(width - n), BL_JN_ORIGIN_TEMPLATE));
    BL_TRY(bl_jn_sb_add_sub(c, &sb, s, sign, s->n - sign));
    return bl_jn_sb_done(c, &sb, ret);
}

static bl_code remove_affix(bl_jn_ctx *c, bl_jn_val self, bl_jn_val arg, bool at_end, bl_jn_val *ret) {
    bl_jn_str *x;
    BL_TRY(need_str(c, arg, "argument", &x));
    *ret = self;
    if (x->n == 0 || !affix(self.s, 0, self.s->n, x, at_end)) {
        return BL_OK;
    }
    return bl_jn_substr(c, self.s, at_end ? 0 : x->n, self.s->n - x->n, ret);
}
static bl_code m_removeprefix(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return remove_affix(c, self, a[0], false, ret);
}
static bl_code m_removesuffix(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    return remove_affix(c, self, a[0], true, ret);
}

/* ---- predicates ---- */

static bool is_alnum(uint32_t cp) {
    return bl_jn_is_alpha(cp) || bl_jn_is_numeric(cp);
}

static bl_code all_of(bl_jn_ctx *c, bl_jn_val self, bool (*is)(uint32_t), bl_jn_val *ret) {
    BL_TRY(bl_jn_charge(c, self.s->n));
    bool yes = self.s->n > 0;
    for (size_t i = 0; i < self.s->n && yes;) {
        size_t len;
        yes = is(bl_jn_cp_at(self.s, i, &len));
        i += len;
    }
    *ret = bl_jn_bool(yes);
    return BL_OK;
}

#define ALL_METHOD(name, is)                                                                                 \
    static bl_code name(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {                  \
        (void)a;                                                                                             \
        return all_of(c, self, (is), ret);                                                                   \
    }
ALL_METHOD(m_isalpha, bl_jn_is_alpha)
ALL_METHOD(m_isalnum, is_alnum)
ALL_METHOD(m_isdigit, bl_jn_is_digit)
ALL_METHOD(m_isdecimal, bl_jn_is_decimal)
ALL_METHOD(m_isspace, bl_jn_is_space)

/* isupper and islower: at least one cased character, none of the other case. */
static bl_code cased(bl_jn_ctx *c, bl_jn_val self, bool (*want)(uint32_t), bool (*other)(uint32_t),
                     bl_jn_val *ret) {
    BL_TRY(bl_jn_charge(c, self.s->n));
    bool any = false, bad = false;
    for (size_t i = 0; i < self.s->n && !bad;) {
        size_t len;
        uint32_t cp = bl_jn_cp_at(self.s, i, &len);
        any = any || want(cp);
        bad = other(cp) || bl_jn_is_title(cp);
        i += len;
    }
    *ret = bl_jn_bool(any && !bad);
    return BL_OK;
}
static bl_code m_isupper(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return cased(c, self, bl_jn_is_upper, bl_jn_is_lower, ret);
}
static bl_code m_islower(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return cased(c, self, bl_jn_is_lower, bl_jn_is_upper, ret);
}
static bl_code m_isascii(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    int64_t n;
    bool has;
    BL_TRY(bl_jn_len(c, self, &n, &has));
    bool ascii = true;
    for (size_t i = 0; i < self.s->n && ascii; i++) {
        ascii = (unsigned char)self.s->p[i] < 0x80;
    }
    *ret = bl_jn_bool(ascii);
    return BL_OK;
}

/* ---- dict, list, tuple, float ---- */

static bl_code view(bl_jn_ctx *c, bl_jn_val self, char what, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_view), &m));
    bl_jn_view *v = m;
    *v = (bl_jn_view){.d = self.d, .what = what};
    *ret = (bl_jn_val){.t = BL_JN_VIEW, .view = v};
    return BL_OK;
}
static bl_code m_items(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return view(c, self, 'i', ret);
}
static bl_code m_keys(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return view(c, self, 'k', ret);
}
static bl_code m_values(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)a;
    return view(c, self, 'v', ret);
}

static bl_code m_get(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    const bl_jn_val *v;
    BL_TRY(bl_jn_dict_get(c, self.d, a[0], &v));
    *ret = v ? *v : a[1].t == BL_JN_MISSING ? bl_jn_none() : a[1];
    return BL_OK;
}

static bl_code m_copy(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)c;
    (void)a;
    *ret = self; /* nothing in a sandboxed template can change either of the two */
    return BL_OK;
}

static bl_code m_list_count(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    int64_t n = 0;
    for (size_t i = 0; i < self.l->n; i++) {
        bool eq;
        BL_TRY(bl_jn_eq(c, self.l->v[i], a[0], &eq));
        n += eq;
    }
    *ret = bl_jn_int(n);
    return BL_OK;
}

static bl_code m_list_index(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    for (size_t i = 0; i < self.l->n; i++) {
        bool eq;
        BL_TRY(bl_jn_eq(c, self.l->v[i], a[0], &eq));
        if (eq) {
            *ret = bl_jn_int((int64_t)i);
            return BL_OK;
        }
    }
    return BL_JN_FAIL(c, "value is not in the list");
}

static bl_code m_is_integer(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    (void)c;
    (void)a;
    *ret = bl_jn_bool(self.f >= -9e18 && self.f <= 9e18 ? (double)(int64_t)self.f == self.f
                                                        : self.f - self.f == 0);
    return BL_OK;
}

/* ---- tables ---- */

static const bl_jn_method_def str_methods[] = {
    {"startswith", m_startswith, NULL, "prefix,start,end", 1, false},
    {"endswith", m_endswith, NULL, "suffix,start,end", 1, false},
    {"strip", m_strip, NULL, "chars", 0, false},
    {"lstrip", m_lstrip, NULL, "chars", 0, false},
    {"rstrip", m_rstrip, NULL, "chars", 0, false},
    {"split", m_split, NULL, "sep,maxsplit", 0, true},
    {"rsplit", m_rsplit, NULL, "sep,maxsplit", 0, true},
    {"splitlines", m_splitlines, NULL, "keepends", 0, true},
    {"partition", m_partition, NULL, "sep", 1, false},
    {"rpartition", m_rpartition, NULL, "sep", 1, false},
    {"replace", m_replace, NULL, "old,new,count", 2, false},
    {"join", m_join, NULL, "iterable", 1, false},
    {"upper", m_upper, NULL, "", 0, false},
    {"lower", m_lower, NULL, "", 0, false},
    {"capitalize", m_capitalize, NULL, "", 0, false},
    {"title", m_title, NULL, "", 0, false},
    {"swapcase", m_swapcase, NULL, "", 0, false},
    {"casefold", m_casefold, NULL, "", 0, false},
    {"find", m_find, NULL, "sub,start,end", 1, false},
    {"rfind", m_rfind, NULL, "sub,start,end", 1, false},
    {"index", m_index, NULL, "sub,start,end", 1, false},
    {"rindex", m_rindex, NULL, "sub,start,end", 1, false},
    {"count", m_count, NULL, "sub,start,end", 1, false},
    {"ljust", m_ljust, NULL, "width,fillchar", 1, false},
    {"rjust", m_rjust, NULL, "width,fillchar", 1, false},
    {"center", m_center, NULL, "width,fillchar", 1, false},
    {"zfill", m_zfill, NULL, "width", 1, false},
    {"removeprefix", m_removeprefix, NULL, "prefix", 1, false},
    {"removesuffix", m_removesuffix, NULL, "suffix", 1, false},
    {"isalpha", m_isalpha, NULL, "", 0, false},
    {"isalnum", m_isalnum, NULL, "", 0, false},
    {"isdigit", m_isdigit, NULL, "", 0, false},
    {"isdecimal", m_isdecimal, NULL, "", 0, false},
    {"isspace", m_isspace, NULL, "", 0, false},
    {"isupper", m_isupper, NULL, "", 0, false},
    {"islower", m_islower, NULL, "", 0, false},
    {"isascii", m_isascii, NULL, "", 0, false},
    {"format", NULL, bl_jn_str_format, "", 0, true},
};
static const bl_jn_method_def dict_methods[] = {
    {"items", m_items, NULL, "", 0, false},   {"keys", m_keys, NULL, "", 0, false},
    {"values", m_values, NULL, "", 0, false}, {"get", m_get, NULL, "key,default", 1, false},
    {"copy", m_copy, NULL, "", 0, false},
};
static const bl_jn_method_def list_methods[] = {
    {"count", m_list_count, NULL, "value", 1, false},
    {"index", m_list_index, NULL, "value", 1, false},
    {"copy", m_copy, NULL, "", 0, false},
};
static const bl_jn_method_def float_methods[] = {{"is_integer", m_is_integer, NULL, "", 0, false}};

/* Attributes of Python's types that we do not have. */
static const char *const str_others[] = {"encode",    "expandtabs",  "format_map", "isidentifier",
                                         "isnumeric", "isprintable", "istitle",    "maketrans",
                                         "translate", NULL};
static const char *const dict_others[] = {"fromkeys", NULL};
static const char *const int_others[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag",
    "numerator",        "real",      "to_bytes",   NULL};
static const char *const float_others[] = {
    "as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "real", NULL};
static const char *const view_others[] = {"isdisjoint", "mapping", NULL};
static const char *const range_others[] = {"count", "index", "start", "step", "stop", NULL};
static const char *const iter_others[] = {"send",    "throw",      "close",        "gi_frame",
                                          "gi_code", "gi_running", "gi_yieldfrom", NULL};
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const list_unsafe[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};

typedef struct {
    const bl_jn_method_def *defs;
    size_t n;
    const char *const *others, *const *unsafe;
} method_table;

static method_table table_of(bl_jn_type t) {
    switch (t) {
    case BL_JN_STR:
        return (method_table){str_methods, BL_COUNTOF(str_methods), str_others, NULL};
    case BL_JN_DICT:
        return (method_table){dict_methods, BL_COUNTOF(dict_methods), dict_others, dict_unsafe};
    case BL_JN_LIST:
        return (method_table){list_methods, BL_COUNTOF(list_methods), NULL, list_unsafe};
    case BL_JN_TUPLE:
        return (method_table){list_methods, 2, NULL, NULL};
    case BL_JN_INT:
    case BL_JN_BOOL:
        return (method_table){NULL, 0, int_others, NULL};
    case BL_JN_FLOAT:
        return (method_table){float_methods, BL_COUNTOF(float_methods), float_others, NULL};
    case BL_JN_VIEW:
        return (method_table){NULL, 0, view_others, NULL};
    case BL_JN_RANGE:
        return (method_table){NULL, 0, range_others, NULL};
    case BL_JN_ITER:
        return (method_table){NULL, 0, iter_others, NULL};
    default:
        return (method_table){0};
    }
}

static bool listed(const char *const *list, const bl_jn_str *name) {
    for (; list && *list; list++) {
        if (bl_jn_str_is(name, *list)) {
            return true;
        }
    }
    return false;
}

const bl_jn_method_def *bl_jn_find_method(bl_jn_val self, const bl_jn_str *name, bool *ret_known,
                                          bool *ret_unsafe) {
    method_table t = table_of(self.t);
    *ret_known = listed(t.others, name);
    *ret_unsafe = listed(t.unsafe, name);
    for (size_t i = 0; i < t.n; i++) {
        if (bl_jn_str_is(name, t.defs[i].name)) {
            return &t.defs[i];
        }
    }
    return NULL;
}
