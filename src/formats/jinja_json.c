/* The tojson filter as Hugging Face sets it up: json.dumps(x, ensure_ascii=False, ...), no HTML escaping, key
 * order kept. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jinja_private.h"

typedef struct {
    bool ensure_ascii, sort_keys, pretty;
    const bl_jn_str *item_sep, *key_sep;
    const bl_jn_str *indent; /* one level; pretty only */
    bl_jn_sb sb;
    uint32_t level;
} writer;

static bl_code write_value(bl_jn_ctx *c, writer *w, bl_jn_val v);

static bl_code write_escape(bl_jn_ctx *c, writer *w, uint32_t cp, uint8_t origin) {
    char text[16];
    switch (cp) {
    case '"':
    case '\\':
        (void)snprintf(text, sizeof text, "\\%c", (char)cp);
        break;
    case '\n':
    case '\r':
    case '\t':
    case '\b':
    case '\f':
        (void)snprintf(text, sizeof text, "\\%c",
                       cp == '\n'   ? 'n'
                       : cp == '\r' ? 'r'
                       : cp == '\t' ? 't'
                       : cp == '\b' ? 'b'
                                    : 'f');
        break;
    default:
        if (cp >= 0x10000) {
            uint32_t v = cp - 0x10000;
            (void)snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
        } else {
            (void)snprintf(text, sizeof text, "\\u%04x", cp);
        }
        break;
    }
    return bl_jn_sb_add(c, &w->sb, text, strlen(text), origin);
}

static bl_code write_str(bl_jn_ctx *c, writer *w, const bl_jn_str *s) {
    BL_TRY(bl_jn_sb_add_cstr(c, &w->sb, "\""));
    size_t plain = 0;
    for (size_t i = 0; i < s->n;) {
        size_t len = 1;
        uint32_t cp = (unsigned char)s->p[i];
        if (cp >= 0x80) {
            cp = bl_jn_cp_at(s, i, &len);
        }
        if (cp < 0x20 || cp == '"' || cp == '\\' || (w->ensure_ascii && cp > 0x7E)) {
            BL_TRY(bl_jn_sb_add_sub(c, &w->sb, s, plain, i - plain));
            BL_TRY(write_escape(c, w, cp, bl_jn_origin_at(s, i)));
            plain = i + len;
        }
        i += len;
    }
    BL_TRY(bl_jn_sb_add_sub(c, &w->sb, s, plain, s->n - plain));
    return bl_jn_sb_add_cstr(c, &w->sb, "\"");
}

static bl_code write_float(bl_jn_ctx *c, writer *w, double f) {
    char text[40];
    if (isnan(f) || isinf(f)) {
        return bl_jn_sb_add_cstr(c, &w->sb, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    }
    (void)bl_jn_float_repr(f, text);
    return bl_jn_sb_add_cstr(c, &w->sb, text);
}

static bl_code write_newline(bl_jn_ctx *c, writer *w) {
    if (!w->pretty) {
        return BL_OK;
    }
    BL_TRY(bl_jn_sb_add_cstr(c, &w->sb, "\n"));
    for (uint32_t i = 0; i < w->level; i++) {
        BL_TRY(bl_jn_sb_add_str(c, &w->sb, w->indent));
    }
    return BL_OK;
}

static bl_code open_item(bl_jn_ctx *c, writer *w, size_t i) {
    if (i > 0) {
        BL_TRY(bl_jn_sb_add_str(c, &w->sb, w->item_sep));
    }
    return write_newline(c, w);
}

static bl_code write_list(bl_jn_ctx *c, writer *w, const bl_jn_list *l) {
    if (l->n == 0) {
        return bl_jn_sb_add_cstr(c, &w->sb, "[]");
    }
    BL_TRY(bl_jn_sb_add_cstr(c, &w->sb, "["));
    w->level++;
    for (size_t i = 0; i < l->n; i++) {
        BL_TRY(open_item(c, w, i));
        BL_TRY(write_value(c, w, l->v[i]));
    }
    w->level--;
    BL_TRY(write_newline(c, w));
    return bl_jn_sb_add_cstr(c, &w->sb, "]");
}

static bl_code write_key(bl_jn_ctx *c, writer *w, bl_jn_val key) {
    switch (key.t) {
    case BL_JN_STR:
        return write_str(c, w, key.s);
    case BL_JN_NONE:
    case BL_JN_BOOL:
    case BL_JN_INT:
    case BL_JN_FLOAT:
        BL_TRY(bl_jn_sb_add_cstr(c, &w->sb, "\""));
        BL_TRY(write_value(c, w, key));
        return bl_jn_sb_add_cstr(c, &w->sb, "\"");
    default:
        return BL_JN_FAIL(c, "tojson: keys must be str, int, float, bool or None, not %s",
                          bl_jn_type_name(key));
    }
}

/* Entries in the order to write: as they are, or by key. Insertion sort over pointers would be quadratic: the
 * sort filter does it. */
static bl_code sorted_entries(bl_jn_ctx *c, const bl_jn_dict *d, bl_jn_val *ret_pairs) {
    bl_jn_val dict = {.t = BL_JN_DICT, .d = (bl_jn_dict *)(uintptr_t)d};
    bl_jn_kwarg kw;
    bl_jn_val name;
    BL_TRY(bl_jn_new_cstr(c, "case_sensitive", &name));
    kw = (bl_jn_kwarg){.name = name.s, .v = bl_jn_bool(true)};
    const bl_jn_args args = {.kw = &kw, .n_kw = 1};
    return bl_jn_apply_filter(c, bl_jn_find_filter("dictsort", 8), dict, &args, ret_pairs);
}

static bl_code write_dict(bl_jn_ctx *c, writer *w, const bl_jn_dict *d) {
    bl_jn_val pairs = bl_jn_missing();
    if (d->n == 0) {
        return bl_jn_sb_add_cstr(c, &w->sb, "{}");
    }
    if (w->sort_keys) {
        BL_TRY(sorted_entries(c, d, &pairs));
    }
    BL_TRY(bl_jn_sb_add_cstr(c, &w->sb, "{"));
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        bl_jn_val key = w->sort_keys ? pairs.l->v[i].l->v[0] : d->e[i].key;
        bl_jn_val val = w->sort_keys ? pairs.l->v[i].l->v[1] : d->e[i].val;
        BL_TRY(open_item(c, w, i));
        BL_TRY(write_key(c, w, key));
        BL_TRY(bl_jn_sb_add_str(c, &w->sb, w->key_sep));
        BL_TRY(write_value(c, w, val));
    }
    w->level--;
    BL_TRY(write_newline(c, w));
    return bl_jn_sb_add_cstr(c, &w->sb, "}");
}

static bl_code write_inner(bl_jn_ctx *c, writer *w, bl_jn_val v) {
    char text[32];
    switch (v.t) {
    case BL_JN_NONE:
        return bl_jn_sb_add_cstr(c, &w->sb, "null");
    case BL_JN_BOOL:
        return bl_jn_sb_add_cstr(c, &w->sb, v.b ? "true" : "false");
    case BL_JN_INT:
        (void)snprintf(text, sizeof text, "%lld", (long long)v.i);
        return bl_jn_sb_add_cstr(c, &w->sb, text);
    case BL_JN_FLOAT:
        return write_float(c, w, v.f);
    case BL_JN_STR:
        return write_str(c, w, v.s);
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        return write_list(c, w, v.l);
    case BL_JN_DICT:
        return write_dict(c, w, v.d);
    default:
        return BL_JN_FAIL(c, "tojson: object of type %s is not JSON serializable", bl_jn_type_name(v));
    }
}

static bl_code write_value(bl_jn_ctx *c, writer *w, bl_jn_val v) {
    BL_TRY(bl_jn_enter(c));
    bl_code rc = write_inner(c, w, v);
    bl_jn_leave(c);
    return rc;
}

static bl_code set_indent(bl_jn_ctx *c, writer *w, bl_jn_val indent) {
    int64_t width;
    bl_jn_val unit;
    if (indent.t == BL_JN_MISSING || indent.t == BL_JN_NONE) {
        return BL_OK;
    }
    w->pretty = true;
    if (indent.t == BL_JN_STR) {
        w->indent = indent.s;
        return BL_OK;
    }
    if (!bl_jn_as_index(indent, &width)) {
        return BL_JN_FAIL(c, "tojson: indent must be an integer or a string");
    }
    BL_TRY(bl_jn_new_cstr(c, " ", &unit));
    BL_TRY(bl_jn_binary(c, BL_JN_OP_MUL, unit, bl_jn_int(width), &unit));
    w->indent = unit.s;
    return BL_OK;
}

bl_code bl_jn_tojson(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) {
    static const bl_jn_str comma = {.p = ", ", .n = 2}, comma_end = {.p = ",", .n = 1},
                           colon = {.p = ": ", .n = 2};
    writer w = {.key_sep = &colon};
    bl_jn_sb_init(&w.sb);
    w.ensure_ascii = a[0].t != BL_JN_MISSING && bl_jn_truth(a[0]);
    w.sort_keys = a[3].t != BL_JN_MISSING && bl_jn_truth(a[3]);
    BL_TRY(set_indent(c, &w, a[1]));
    w.item_sep = w.pretty ? &comma_end : &comma;
    if (a[2].t != BL_JN_MISSING && a[2].t != BL_JN_NONE) {
        bl_jn_val seps;
        BL_TRY(bl_jn_collect(c, a[2], BL_JN_LIST, &seps));
        if (seps.l->n != 2 || seps.l->v[0].t != BL_JN_STR || seps.l->v[1].t != BL_JN_STR) {
            return BL_JN_FAIL(c, "tojson: separators must be two strings");
        }
        w.item_sep = seps.l->v[0].s;
        w.key_sep = seps.l->v[1].s;
    }
    BL_TRY(write_value(c, &w, self));
    return bl_jn_sb_done(c, &w.sb, ret);
}
