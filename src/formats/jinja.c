/* Compiling and rendering, from the outside. */
#include "formats/jinja.h"

#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "formats/jinja_private.h"

#define DEFAULT_STEPS  ((uint64_t)20 * 1000 * 1000)
#define DEFAULT_DEPTH  400u
#define DEFAULT_OUTPUT ((size_t)16 << 20)
#define DEFAULT_MEMORY ((size_t)256 << 20)

/* Line ends become \n and one at the very end is dropped, as jinja2's lexer does. out has room for n bytes.
 */
static size_t normalise(const char *src, size_t n, char *out) {
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = src[i];
        if (ch == '\r') {
            i += i + 1 < n && src[i + 1] == '\n' ? 1 : 0;
            ch = '\n';
        }
        out[w++] = ch;
    }
    return w > 0 && out[w - 1] == '\n' ? w - 1 : w;
}

static bl_code compile(bl_jinja *t, const char *src, size_t n, bl_err *err) {
    bl_jn_pool pool = {.arena = t->arena};
    void *m;
    BL_TRY(bl_arena_alloc(t->arena, n + 1, &m, err));
    char *text = m;
    n = normalise(src, n, text);
    bl_jn_toks toks = {0};
    BL_TRY(bl_jn_lex(text, n, &toks, err));
    bl_code rc = bl_jn_parse(t, &pool, &toks, err);
    bl_free(toks.v);
    return rc == BL_OK ? bl_jn_resolve(t, &pool, err) : rc;
}

bl_code bl_jinja_compile(const char *src, size_t n, bl_jinja **ret, bl_err *err) {
    if (n > BL_JN_MAX_SOURCE) {
        BL_FAIL(err, BL_ELIMIT, "chat template: %zu bytes, at most %u are allowed", n, BL_JN_MAX_SOURCE);
    }
    if (!bl_utf8_valid(src, n)) {
        BL_FAIL(err, BL_EFORMAT, "chat template: not valid UTF-8");
    }
    bl_jinja *t = bl_alloc(sizeof *t);
    if (!t) {
        BL_FAIL(err, BL_ENOMEM, "chat template: out of memory");
    }
    bl_code rc = bl_arena_new("chat template", BL_JN_MAX_COMPILE_BYTES, &t->arena, err);
    if (rc == BL_OK) {
        rc = compile(t, src, n, err);
    }
    if (rc != BL_OK) {
        bl_jinja_free(t);
        return rc;
    }
    *ret = t;
    return BL_OK;
}

void bl_jinja_free(bl_jinja *t) {
    if (t) {
        bl_arena_free(t->arena);
        bl_free(t);
    }
}

bool bl_jinja_mentions(const bl_jinja *t, const char *name) {
    for (uint32_t i = 0; i < t->n_names; i++) {
        if (bl_jn_str_is(t->names[i], name)) {
            return true;
        }
    }
    return false;
}

static bl_code add_variables(bl_jn_ctx *c, const json_t *from, uint8_t origin) {
    bl_jn_val v;
    if (!from) {
        return BL_OK;
    }
    BL_TRY(bl_jn_from_json(c, from, origin, &v));
    for (size_t i = 0; i < v.d->n; i++) {
        BL_TRY(bl_jn_dict_set(c, c->vars, v.d->e[i].key, v.d->e[i].val));
    }
    return BL_OK;
}

static bl_code render(bl_jn_ctx *c, const bl_jinja *t, const json_t *context, const json_t *trusted,
                      bl_jn_sb *out) {
    bl_jn_val vars;
    bl_jn_act *act;
    BL_TRY(bl_jn_new_dict(c, 16, BL_JN_DICT, &vars));
    c->vars = vars.d;
    BL_TRY(add_variables(c, trusted, BL_JN_ORIGIN_TEMPLATE));
    BL_TRY(add_variables(c, context, BL_JN_ORIGIN_INPUT));
    BL_TRY(bl_jn_new_act(c, t->n_slots, NULL, &act));
    c->out = out;
    BL_TRY(bl_jn_enter_frame(c, &t->frame, act));
    return bl_jn_exec(c, &t->body, act);
}

/* Both buffers get everything or nothing. */
static bl_code deliver(const bl_jn_sb *out, bl_buf *ret, bl_buf *ret_marks, bl_err *err) {
    if (out->n == 0) {
        return BL_OK;
    }
    size_t before = ret->len;
    BL_TRY(bl_buf_append(ret, out->p, out->n, err));
    if (!ret_marks) {
        return BL_OK;
    }
    bl_code rc = BL_OK;
    if (out->marks) {
        rc = bl_buf_append(ret_marks, out->marks, out->n, err);
    } else {
        char *same = bl_alloc(out->n);
        if (same) {
            memset(same, out->origin, out->n);
            rc = bl_buf_append(ret_marks, same, out->n, err);
            bl_free(same);
        } else {
            rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "chat template: out of memory");
        }
    }
    if (rc != BL_OK) {
        ret->len = before;
        ret->data[before] = '\0';
    }
    return rc;
}

bl_code bl_jinja_render_marked(const bl_jinja *t, const json_t *context, const json_t *trusted,
                               const json_t *own, const bl_jinja_limits *limits, bl_buf *ret,
                               bl_buf *ret_marks, bl_err *err) {
    const bl_jinja_limits l = limits ? *limits : (bl_jinja_limits){0};
    if (!json_is_object(context) || (trusted && !json_is_object(trusted))) {
        BL_FAIL(err, BL_EINVAL, "chat template: the context must be an object");
    }
    bl_arena *arena;
    BL_TRY(bl_arena_new("chat template render", l.max_memory_bytes ? l.max_memory_bytes : DEFAULT_MEMORY,
                        &arena, err));
    bl_jn_ctx c = {
        .pool = {.arena = arena},
        .err = err,
        .max_steps = l.max_steps ? l.max_steps : DEFAULT_STEPS,
        .max_depth = l.max_depth ? l.max_depth : DEFAULT_DEPTH,
        .now_unix_s = l.now_unix_s,
        .own = own,
        .seed = bl_clock_mono_ns() * 0x9E3779B97F4A7C15u,
    };
    bl_jn_sb out;
    bl_jn_sb_init(&out);
    out.max_bytes = l.max_output_bytes ? l.max_output_bytes : DEFAULT_OUTPUT;
    bl_code rc = render(&c, t, context, trusted, &out);
    if (rc == BL_OK) {
        rc = deliver(&out, ret, ret_marks, err);
    }
    bl_arena_free(arena);
    return rc;
}

bl_code bl_jinja_render(const bl_jinja *t, const json_t *context, const bl_jinja_limits *limits, bl_buf *ret,
                        bl_err *err) {
    return bl_jinja_render_marked(t, context, NULL, NULL, limits, ret, NULL, err);
}
