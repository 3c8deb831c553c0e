/* Values of a render: memory, errors, and strings with origins. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/jinja_private.h"

#define POOL_CHUNK ((size_t)32 * 1024)

/* ---- memory, errors, work ---- */

bl_code bl_jn_pool_alloc(bl_jn_pool *pool, size_t n, void **ret, bl_err *err) {
    if (n > POOL_CHUNK / 4) {
        return bl_arena_alloc(pool->arena, n, ret, err);
    }
    size_t rounded = (n + 15) & ~(size_t)15;
    if (rounded > pool->left) {
        void *m;
        BL_TRY(bl_arena_alloc(pool->arena, POOL_CHUNK, &m, err));
        pool->p = m;
        pool->left = POOL_CHUNK;
    }
    *ret = pool->p;
    pool->p += rounded;
    pool->left -= rounded;
    return BL_OK;
}

bl_code bl_jn_alloc(bl_jn_ctx *c, size_t n, void **ret) {
    return bl_jn_pool_alloc(&c->pool, n, ret, c->err);
}

bl_code bl_jn_alloc_array(bl_jn_ctx *c, size_t n, size_t size, void **ret) {
    uint64_t bytes;
    if (!bl_mul_u64(n, size, &bytes)) {
        BL_FAIL(c->err, BL_ERANGE, "chat template line %u: list of %zu elements", c->line, n);
    }
    return bl_jn_pool_alloc(&c->pool, (size_t)bytes, ret, c->err);
}

void bl_jn_report(bl_jn_ctx *c, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)bl_err_set(c->err, BL_EINVAL, __FILE__, __LINE__, "chat template line %u: %s", c->line, text);
}

bl_code bl_jn_fail_undef(bl_jn_ctx *c, bl_jn_val v) {
    const bl_jn_undef *u = v.u;
    const char *name = u->name ? u->name->p : "";
    int n = u->name ? (int)BL_MIN(u->name->n, (size_t)80) : 0;
    switch (u->kind) {
    case BL_JN_UNDEF_NAME:
        return BL_JN_FAIL(c, "'%.*s' is undefined", n, name);
    case BL_JN_UNDEF_ATTR:
        return BL_JN_FAIL(c, "'%s object' has no attribute '%.*s'", u->type_name, n, name);
    case BL_JN_UNDEF_UNSAFE:
        return BL_JN_FAIL(c, "access to attribute '%.*s' of '%s' object is unsafe", n, name, u->type_name);
    case BL_JN_UNDEF_HINT:
        return BL_JN_FAIL(c, "%s", u->hint);
    default:
        return BL_JN_FAIL(c, "%s object has no such element", u->type_name);
    }
}

bl_code bl_jn_charge(bl_jn_ctx *c, size_t n) {
    c->steps += 1 + n / 32;
    if (c->steps > c->max_steps) {
        BL_FAIL(c->err, BL_ELIMIT, "chat template line %u: more than %llu steps", c->line,
                (unsigned long long)c->max_steps);
    }
    return BL_OK;
}

bl_code bl_jn_enter(bl_jn_ctx *c) {
    if (c->depth >= c->max_depth) {
        BL_FAIL(c->err, BL_ELIMIT, "chat template line %u: nested deeper than %u", c->line, c->max_depth);
    }
    c->depth++;
    return BL_OK;
}

/* ---- constructors ---- */

bl_code bl_jn_new_undef(bl_jn_ctx *c, bl_jn_undef_kind kind, const char *type_name, const bl_jn_str *name,
                        const char *hint, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_undef), &m));
    bl_jn_undef *u = m;
    *u = (bl_jn_undef){.kind = kind, .type_name = type_name, .name = name, .hint = hint};
    *ret = (bl_jn_val){.t = BL_JN_UNDEF, .u = u};
    return BL_OK;
}

static bl_code new_str(bl_jn_ctx *c, bl_jn_str init, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_str), &m));
    bl_jn_str *s = m;
    *s = init;
    *ret = bl_jn_strval(s);
    return BL_OK;
}

bl_code bl_jn_new_str(bl_jn_ctx *c, const char *p, size_t n, uint8_t origin, bl_jn_val *ret) {
    return new_str(c, (bl_jn_str){.p = p, .n = n, .n_cp = SIZE_MAX, .origin = origin}, ret);
}

bl_code bl_jn_new_cstr(bl_jn_ctx *c, const char *p, bl_jn_val *ret) {
    return bl_jn_new_str(c, p, strlen(p), BL_JN_ORIGIN_TEMPLATE, ret);
}

bl_code bl_jn_substr(bl_jn_ctx *c, const bl_jn_str *s, size_t off, size_t n, bl_jn_val *ret) {
    bl_jn_str r = {.p = s->p + off, .n = n, .n_cp = SIZE_MAX, .origin = s->origin, .markup = s->markup};
    r.marks = s->marks ? s->marks + off : NULL;
    return new_str(c, r, ret);
}

bl_code bl_jn_as_markup(bl_jn_ctx *c, bl_jn_str *s, bool markup, bl_jn_val *ret) {
    if (s->markup == markup) {
        *ret = bl_jn_strval(s);
        return BL_OK;
    }
    bl_jn_str r = *s;
    r.markup = markup;
    return new_str(c, r, ret);
}

bl_code bl_jn_new_list(bl_jn_ctx *c, bl_jn_type t, size_t n, bl_jn_val *ret) {
    void *m, *items;
    BL_TRY(bl_jn_charge(c, n));
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_list), &m));
    BL_TRY(bl_jn_alloc_array(c, BL_MAX(n, (size_t)1), sizeof(bl_jn_val), &items));
    bl_jn_list *l = m;
    l->v = items;
    l->n = n;
    *ret = (bl_jn_val){.t = t, .l = l};
    return BL_OK;
}

bl_code bl_jn_new_pair(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, 2, ret));
    ret->l->v[0] = a;
    ret->l->v[1] = b;
    return BL_OK;
}

static bl_code array_from_json(bl_jn_ctx *c, const json_t *j, uint8_t origin, bl_jn_val *ret) {
    size_t n = json_array_size(j);
    BL_TRY(bl_jn_new_list(c, BL_JN_LIST, n, ret));
    for (size_t i = 0; i < n; i++) {
        BL_TRY(bl_jn_from_json(c, json_array_get(j, i), origin, &ret->l->v[i]));
    }
    return BL_OK;
}

static bl_code object_from_json(bl_jn_ctx *c, const json_t *j, uint8_t origin, bl_jn_val *ret) {
    BL_TRY(bl_jn_new_dict(c, json_object_size(j), BL_JN_DICT, ret));
    json_t *obj =
        (json_t *)(uintptr_t)j; /* jansson iterates through a non-const pointer; nothing is changed */
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
        bl_jn_val key, value;
        const char *k = json_object_iter_key(it);
        BL_TRY(bl_jn_new_str(c, k, strlen(k), origin, &key));
        BL_TRY(bl_jn_from_json(c, json_object_iter_value(it), origin, &value));
        BL_TRY(bl_jn_dict_set(c, ret->d, key, value));
    }
    return BL_OK;
}

static bool is_own(const bl_jn_ctx *c, const json_t *j) {
    for (size_t i = 0; i < json_array_size(c->own); i++) {
        if (json_array_get(c->own, i) == j) {
            return true;
        }
    }
    return false;
}

bl_code bl_jn_from_json(bl_jn_ctx *c, const json_t *j, uint8_t origin, bl_jn_val *ret) {
    BL_TRY(bl_jn_enter(c));
    bl_code rc = BL_OK;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        rc = object_from_json(c, j, origin, ret);
        break;
    case JSON_ARRAY:
        rc = array_from_json(c, j, origin, ret);
        break;
    case JSON_STRING:
        origin = c->own && is_own(c, j) ? BL_JN_ORIGIN_TEMPLATE : origin;
        rc = bl_jn_new_str(c, json_string_value(j), json_string_length(j), origin, ret);
        break;
    case JSON_INTEGER:
        *ret = bl_jn_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *ret = bl_jn_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *ret = bl_jn_bool(json_is_true(j));
        break;
    default:
        *ret = bl_jn_none();
        break;
    }
    bl_jn_leave(c);
    return rc;
}

/* ---- string building ---- */

void bl_jn_sb_init(bl_jn_sb *b) {
    *b = (bl_jn_sb){0};
}

static bl_code sb_reserve(bl_jn_ctx *c, bl_jn_sb *b, size_t more) {
    if (b->max_bytes > 0 && more > b->max_bytes - b->n) {
        BL_FAIL(c->err, BL_ELIMIT, "chat template line %u: output longer than %zu bytes", c->line,
                b->max_bytes);
    }
    if (more <= b->cap - b->n) {
        return BL_OK;
    }
    uint64_t want;
    if (!bl_add_u64(b->n, more, &want)) {
        BL_FAIL(c->err, BL_ERANGE, "chat template line %u: string of more than 2^64 bytes", c->line);
    }
    size_t cap = BL_MAX((size_t)want, BL_MAX(b->cap * 2, (size_t)64));
    void *m;
    BL_TRY(bl_jn_alloc(c, cap, &m));
    if (b->n > 0) {
        memcpy(m, b->p, b->n);
    }
    if (b->marks) {
        void *marks;
        BL_TRY(bl_jn_alloc(c, cap, &marks));
        memcpy(marks, b->marks, b->n);
        b->marks = marks;
    }
    b->p = m;
    b->cap = cap;
    return BL_OK;
}

/* Makes room for marks when the new bytes are not of one origin with the old. */
static bl_code sb_need_marks(bl_jn_ctx *c, bl_jn_sb *b) {
    if (!b->marks) {
        void *m;
        BL_TRY(bl_jn_alloc(c, b->cap, &m));
        b->marks = m;
        if (b->n > 0) {
            memset(b->marks, b->origin, b->n);
        }
    }
    return BL_OK;
}

static bl_code sb_add_marked(bl_jn_ctx *c, bl_jn_sb *b, const char *p, size_t n, uint8_t origin,
                             const uint8_t *marks) {
    if (n == 0) {
        return BL_OK;
    }
    BL_TRY(bl_jn_charge(c, n));
    BL_TRY(sb_reserve(c, b, n));
    if (b->n == 0 && !marks) {
        b->origin = origin;
        b->marks = NULL;
    } else if (b->marks || marks || b->origin != origin) {
        BL_TRY(sb_need_marks(c, b));
        if (marks) {
            memcpy(b->marks + b->n, marks, n);
        } else {
            memset(b->marks + b->n, origin, n);
        }
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return BL_OK;
}

bl_code bl_jn_sb_add(bl_jn_ctx *c, bl_jn_sb *b, const char *p, size_t n, uint8_t origin) {
    return sb_add_marked(c, b, p, n, origin, NULL);
}

bl_code bl_jn_sb_add_cstr(bl_jn_ctx *c, bl_jn_sb *b, const char *p) {
    return sb_add_marked(c, b, p, strlen(p), BL_JN_ORIGIN_TEMPLATE, NULL);
}

bl_code bl_jn_sb_add_sub(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_str *s, size_t off, size_t n) {
    return sb_add_marked(c, b, s->p + off, n, s->origin, s->marks ? s->marks + off : NULL);
}

bl_code bl_jn_sb_add_str(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_str *s) {
    return bl_jn_sb_add_sub(c, b, s, 0, s->n);
}

bl_code bl_jn_sb_fill(bl_jn_ctx *c, bl_jn_sb *b, const char *p, size_t n, size_t times, uint8_t origin) {
    for (size_t i = 0; i < times; i++) {
        BL_TRY(bl_jn_sb_add(c, b, p, n, origin));
    }
    return BL_OK;
}

bl_code bl_jn_sb_done(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val *ret) {
    bl_jn_str r = {
        .p = b->n > 0 ? b->p : "", .marks = b->n > 0 ? b->marks : NULL, .n = b->n, .n_cp = SIZE_MAX};
    r.origin = b->origin;
    return new_str(c, r, ret);
}

/* ---- strings ---- */

uint32_t bl_jn_cp_at(const bl_jn_str *s, size_t off, size_t *ret_len) {
    unsigned char ch = (unsigned char)s->p[off];
    if (ch < 0x80) {
        *ret_len = 1;
        return ch;
    }
    uint32_t cp;
    size_t len = bl_utf8_decode(s->p + off, s->n - off, &cp);
    if (len == 0) { /* cannot come from JSON or a compiled template; kept harmless */
        *ret_len = 1;
        return 0xFFFD;
    }
    *ret_len = len;
    return cp;
}

size_t bl_jn_cp_before(const bl_jn_str *s, size_t off) {
    size_t p = off - 1;
    while (p > 0 && off - p < 4 && ((unsigned char)s->p[p] & 0xC0) == 0x80) {
        p--;
    }
    size_t len;
    (void)bl_jn_cp_at(s, p, &len);
    return p + len == off ? p : off - 1;
}

size_t bl_jn_str_len(bl_jn_str *s) {
    if (s->n_cp != SIZE_MAX) {
        return s->n_cp;
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n; n++) {
        size_t len;
        (void)bl_jn_cp_at(s, i, &len);
        i += len;
    }
    s->n_cp = n;
    return n;
}

size_t bl_jn_str_offset(bl_jn_str *s, size_t cp) {
    if (bl_jn_str_len(s) == s->n) {
        return cp;
    }
    size_t off = 0;
    while (cp-- > 0) {
        size_t len;
        (void)bl_jn_cp_at(s, off, &len);
        off += len;
    }
    return off;
}

bool bl_jn_str_eq(const bl_jn_str *a, const bl_jn_str *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

bool bl_jn_str_is(const bl_jn_str *s, const char *lit) {
    size_t n = strlen(lit);
    return s->n == n && (n == 0 || memcmp(s->p, lit, n) == 0);
}

/* UTF-8 order is code point order, which is Python's. */
int bl_jn_str_cmp(const bl_jn_str *a, const bl_jn_str *b) {
    size_t n = BL_MIN(a->n, b->n);
    int r = n > 0 ? memcmp(a->p, b->p, n) : 0;
    return r != 0 ? r : (a->n > b->n) - (a->n < b->n);
}

size_t bl_jn_str_find(const bl_jn_str *s, const bl_jn_str *needle, size_t from) {
    if (from > s->n || needle->n > s->n - from) {
        return SIZE_MAX;
    }
    if (needle->n == 0) {
        return from;
    }
    const char *p = memmem(s->p + from, s->n - from, needle->p, needle->n);
    return p ? (size_t)(p - s->p) : SIZE_MAX;
}

/* Last occurrence that ends at or before `to`. */
size_t bl_jn_str_rfind(const bl_jn_str *s, const bl_jn_str *needle, size_t to) {
    if (needle->n > to) {
        return SIZE_MAX;
    }
    for (size_t p = to - needle->n + 1; p-- > 0;) {
        if (needle->n == 0 || (s->p[p] == needle->p[0] && memcmp(s->p + p, needle->p, needle->n) == 0)) {
            return p;
        }
    }
    return SIZE_MAX;
}

/* Appends b to the room behind a when a is the last thing in it. */
static bool grow_in_place(const bl_jn_str *a, const bl_jn_str *b, bl_jn_str *ret) {
    bl_jn_room *room = a->room;
    if (!room || a->p + a->n != room->p + room->used || b->n > room->cap - room->used) {
        return false;
    }
    bool uniform = !b->marks && b->origin == a->origin && !a->marks;
    if (!uniform && !room->marks) {
        return false;
    }
    if (room->marks) {
        if (b->marks) {
            memcpy(room->marks + room->used, b->marks, b->n);
        } else {
            memset(room->marks + room->used, b->origin, b->n);
        }
    }
    memcpy(room->p + room->used, b->p, b->n);
    room->used += b->n;
    *ret = *a;
    ret->n += b->n;
    ret->n_cp = SIZE_MAX;
    return true;
}

bl_code bl_jn_concat(bl_jn_ctx *c, bl_jn_str *a, bl_jn_str *b, bl_jn_val *ret) {
    if (b->n == 0 && !a->markup) {
        *ret = bl_jn_strval(a);
        return BL_OK;
    }
    BL_TRY(bl_jn_charge(c, b->n));
    bl_jn_str r;
    if (grow_in_place(a, b, &r)) {
        return new_str(c, r, ret);
    }
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    if (a->n + b->n >= 256) { /* likely to grow on: leave room */
        BL_TRY(sb_reserve(c, &sb, (a->n + b->n) * 2));
    }
    BL_TRY(bl_jn_sb_add_str(c, &sb, a));
    BL_TRY(bl_jn_sb_add_str(c, &sb, b));
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    if (sb.cap > sb.n) {
        void *m;
        BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_room), &m));
        bl_jn_room *room = m;
        *room = (bl_jn_room){.p = sb.p, .marks = sb.marks, .used = sb.n, .cap = sb.cap};
        ret->s->room = room;
    }
    ret->s->markup = a->markup;
    return BL_OK;
}
