/* Jinja tokens -> syntax tree, following the grammar of jinja2 3.1 (parser.py) production by production.
 * Left-associative operator runs become one flat node, so that depth means nesting and not length.
 */
#include <string.h>

#include "formats/jinja_private.h"

typedef struct {
    bl_jinja *t;
    bl_jn_pool *pool;
    const bl_jn_tok *tok; /* the current one */
    uint32_t depth;
    uint32_t in_loop;     /* loops open in this function body: break and continue are allowed */
    uint32_t *name_index; /* open addressing over t->names, id + 1 */
    uint32_t name_index_cap;
    bl_err *err;
} parser;

#define FAIL_AT(p, tok_, ...) return fail_at((p), (tok_), __VA_ARGS__)

static bl_code fail_at(parser *p, const bl_jn_tok *tok, const char *what, const char *name, size_t n) {
    BL_FAIL(p->err, BL_EFORMAT, "chat template line %u: %s '%.*s'", tok->line, what,
            (int)BL_MIN(n, (size_t)60), name);
}

/* What a message calls the token. */
static const char *describe(const bl_jn_tok *t, size_t *ret_n) {
    static const char *const names[] = {
        [BL_JN_T_EOF] = "end of template",
        [BL_JN_T_DATA] = "text",
        [BL_JN_T_BLOCK_BEGIN] = "{%",
        [BL_JN_T_BLOCK_END] = "%}",
        [BL_JN_T_VAR_BEGIN] = "{{",
        [BL_JN_T_VAR_END] = "}}",
        [BL_JN_T_STRING] = "string",
        [BL_JN_T_INT] = "integer",
        [BL_JN_T_FLOAT] = "float",
        [BL_JN_T_OP] = NULL,
        [BL_JN_T_NAME] = NULL,
    };
    if (t->type == BL_JN_T_NAME) {
        *ret_n = t->n;
        return t->p;
    }
    const char *s = t->type == BL_JN_T_OP ? t->op : names[t->type];
    *ret_n = strlen(s);
    return s;
}

static bl_code fail_token(parser *p, const char *what) {
    size_t n;
    const char *s = describe(p->tok, &n);
    FAIL_AT(p, p->tok, what, s, n);
}

static bool is_op(const bl_jn_tok *t, const char *op) {
    return t->type == BL_JN_T_OP && strcmp(t->op, op) == 0;
}
static bool is_word(const bl_jn_tok *t, const char *w) {
    return t->type == BL_JN_T_NAME && t->n == strlen(w) && memcmp(t->p, w, t->n) == 0;
}
static const bl_jn_tok *look(const parser *p) {
    return p->tok->type == BL_JN_T_EOF ? p->tok : p->tok + 1;
}
static void advance(parser *p) {
    p->tok = look(p);
}
static bool skip_op(parser *p, const char *op) {
    if (is_op(p->tok, op)) {
        advance(p);
        return true;
    }
    return false;
}
static bool skip_word(parser *p, const char *w) {
    if (is_word(p->tok, w)) {
        advance(p);
        return true;
    }
    return false;
}

static bl_code expected(parser *p, const char *what) {
    size_t n;
    const char *s = describe(p->tok, &n);
    BL_FAIL(p->err, BL_EFORMAT, "chat template line %u: expected '%s', got '%.*s'", p->tok->line, what,
            (int)BL_MIN(n, (size_t)60), s);
}
static bl_code expect_op(parser *p, const char *op) {
    return skip_op(p, op) ? BL_OK : expected(p, op);
}
static bl_code expect_word(parser *p, const char *w) {
    return skip_word(p, w) ? BL_OK : expected(p, w);
}
static bl_code expect_type(parser *p, bl_jn_tok_type type, const char *what) {
    if (p->tok->type != type) {
        return expected(p, what);
    }
    advance(p);
    return BL_OK;
}

static bl_code deeper(parser *p) {
    if (p->depth >= BL_JN_MAX_NESTING) {
        BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: nested deeper than %u", p->tok->line,
                BL_JN_MAX_NESTING);
    }
    p->depth++;
    return BL_OK;
}

/* ---- building ---- */

static bl_code alloc(parser *p, size_t n, void **ret) {
    return bl_jn_pool_alloc(p->pool, n, ret, p->err);
}

static bl_code new_node(parser *p, bl_jn_kind kind, uint32_t line, bl_jn_node **ret) {
    void *m;
    BL_TRY(alloc(p, sizeof(bl_jn_node), &m));
    *ret = m;
    (*ret)->kind = kind;
    (*ret)->line = line;
    return BL_OK;
}

/* A list being collected; moved into the pool when done. */
typedef struct {
    bl_jn_node **v;
    uint32_t n, cap;
} nodes_buf;

static bl_code nodes_push(parser *p, nodes_buf *b, bl_jn_node *n) {
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 4;
        void *m;
        BL_TRY(alloc(p, cap * sizeof *b->v, &m));
        if (b->n > 0) {
            memcpy(m, b->v, b->n * sizeof *b->v);
        }
        b->v = m;
        b->cap = cap;
    }
    b->v[b->n++] = n;
    return BL_OK;
}
static bl_jn_nodes nodes_of(const nodes_buf *b) {
    return (bl_jn_nodes){.v = b->v, .n = b->n};
}

static bl_code new_string(parser *p, const char *s, size_t n, bl_jn_str **ret) {
    void *m;
    BL_TRY(alloc(p, sizeof(bl_jn_str), &m));
    bl_jn_str *str = m;
    *str = (bl_jn_str){.p = s, .n = n, .n_cp = SIZE_MAX};
    (void)bl_jn_str_len(str); /* counted now: the tree is shared between threads later */
    *ret = str;
    return BL_OK;
}

static uint32_t hash_name(const char *s, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    }
    return h;
}

static bl_code intern(parser *p, const bl_jn_tok *tok, uint32_t *ret_id) {
    uint32_t mask = p->name_index_cap - 1;
    uint32_t at = hash_name(tok->p, tok->n) & mask;
    for (; p->name_index[at]; at = (at + 1) & mask) {
        const bl_jn_str *s = p->t->names[p->name_index[at] - 1];
        if (s->n == tok->n && memcmp(s->p, tok->p, tok->n) == 0) {
            *ret_id = p->name_index[at] - 1;
            return BL_OK;
        }
    }
    if (p->t->n_names == BL_JN_MAX_NAMES) {
        BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: more than %u different names", tok->line,
                BL_JN_MAX_NAMES);
    }
    bl_jn_str *s;
    BL_TRY(new_string(p, tok->p, tok->n, &s));
    p->t->names[p->t->n_names++] = s;
    p->name_index[at] = p->t->n_names;
    *ret_id = p->t->n_names - 1;
    return BL_OK;
}

static bl_code name_node(parser *p, const bl_jn_tok *tok, bl_jn_name_ctx ctx, bl_jn_node **ret) {
    BL_TRY(new_node(p, BL_JN_N_NAME, tok->line, ret));
    BL_TRY(intern(p, tok, &(*ret)->name.id));
    (*ret)->name.name = p->t->names[(*ret)->name.id];
    (*ret)->name.ctx = ctx;
    return BL_OK;
}

/* ---- expressions ---- */

static bl_code parse_expression(parser *p, bl_jn_node **ret);
static bl_code parse_or(parser *p, bl_jn_node **ret);
static bl_code parse_unary(parser *p, bool with_filter, bl_jn_node **ret);
static bl_code parse_primary(parser *p, bool with_namespace, bl_jn_node **ret);
static bl_code parse_postfix(parser *p, bl_jn_node **node);
static bl_code parse_body(parser *p, const char *const *ends, bl_jn_nodes *ret);

typedef struct {
    bool simplified, no_cond, explicit_parens, with_namespace;
    const char *end_word; /* another word that ends the tuple */
} tuple_mode;

static bool is_tuple_end(const parser *p, const tuple_mode *m) {
    return p->tok->type == BL_JN_T_VAR_END || p->tok->type == BL_JN_T_BLOCK_END || is_op(p->tok, ")") ||
           (m->end_word && is_word(p->tok, m->end_word));
}

static bl_code parse_tuple(parser *p, tuple_mode m, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    nodes_buf items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        if (is_tuple_end(p, &m)) {
            break;
        }
        bl_jn_node *item;
        if (m.simplified) {
            BL_TRY(deeper(p));
            BL_TRY(parse_primary(p, m.with_namespace, &item));
            p->depth--;
        } else if (m.no_cond) {
            BL_TRY(parse_or(p, &item));
        } else {
            BL_TRY(parse_expression(p, &item));
        }
        BL_TRY(nodes_push(p, &items, item));
        if (!is_op(p->tok, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple) {
        if (items.n > 0) {
            *ret = items.v[0];
            return BL_OK;
        }
        if (!m.explicit_parens) {
            return fail_token(p, "expected an expression, got");
        }
    }
    BL_TRY(new_node(p, BL_JN_N_TUPLE, line, ret));
    (*ret)->seq.items = nodes_of(&items);
    return BL_OK;
}

static bl_code parse_list(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    nodes_buf items = {0};
    advance(p);
    while (!is_op(p->tok, "]")) {
        if (items.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        if (is_op(p->tok, "]")) {
            break;
        }
        bl_jn_node *item;
        BL_TRY(parse_expression(p, &item));
        BL_TRY(nodes_push(p, &items, item));
    }
    BL_TRY(expect_op(p, "]"));
    BL_TRY(new_node(p, BL_JN_N_LIST, line, ret));
    (*ret)->seq.items = nodes_of(&items);
    return BL_OK;
}

static bl_code parse_dict(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    nodes_buf items = {0};
    advance(p);
    while (!is_op(p->tok, "}")) {
        if (items.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        if (is_op(p->tok, "}")) {
            break;
        }
        bl_jn_node *key, *value;
        BL_TRY(parse_expression(p, &key));
        BL_TRY(expect_op(p, ":"));
        BL_TRY(parse_expression(p, &value));
        BL_TRY(nodes_push(p, &items, key));
        BL_TRY(nodes_push(p, &items, value));
    }
    BL_TRY(expect_op(p, "}"));
    BL_TRY(new_node(p, BL_JN_N_DICT, line, ret));
    (*ret)->seq.items = nodes_of(&items);
    return BL_OK;
}

/* Adjacent string literals are one. */
static bl_code parse_string(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    size_t room = 0;
    const bl_jn_tok *first = p->tok;
    for (; p->tok->type == BL_JN_T_STRING; advance(p)) {
        room += p->tok->n;
    }
    void *m;
    BL_TRY(alloc(p, room + 1, &m));
    char *out = m;
    size_t n = 0;
    for (const bl_jn_tok *t = first; t != p->tok; t++) {
        size_t part;
        BL_TRY(bl_jn_unescape(t, out + n, &part, p->err));
        n += part;
    }
    bl_jn_str *s;
    BL_TRY(new_string(p, out, n, &s));
    BL_TRY(new_node(p, BL_JN_N_CONST, line, ret));
    (*ret)->konst = bl_jn_strval(s);
    return BL_OK;
}

static bl_code const_node(parser *p, bl_jn_val v, bl_jn_node **ret) {
    BL_TRY(new_node(p, BL_JN_N_CONST, p->tok->line, ret));
    (*ret)->konst = v;
    advance(p);
    return BL_OK;
}

static bl_code parse_name_or_literal(parser *p, bool with_namespace, bl_jn_node **ret) {
    const bl_jn_tok *tok = p->tok;
    if (is_word(tok, "true") || is_word(tok, "True")) {
        return const_node(p, bl_jn_bool(true), ret);
    }
    if (is_word(tok, "false") || is_word(tok, "False")) {
        return const_node(p, bl_jn_bool(false), ret);
    }
    if (is_word(tok, "none") || is_word(tok, "None")) {
        return const_node(p, bl_jn_none(), ret);
    }
    advance(p);
    BL_TRY(name_node(p, tok, BL_JN_CTX_LOAD, ret));
    if (with_namespace && is_op(p->tok, ".")) {
        advance(p);
        const bl_jn_tok *attr = p->tok;
        BL_TRY(expect_type(p, BL_JN_T_NAME, "name"));
        bl_jn_str *s;
        BL_TRY(new_string(p, attr->p, attr->n, &s));
        (*ret)->kind = BL_JN_N_NSREF;
        (*ret)->name.attr = s;
    }
    return BL_OK;
}

static bl_code parse_primary(parser *p, bool with_namespace, bl_jn_node **ret) {
    const bl_jn_tok *tok = p->tok;
    switch (tok->type) {
    case BL_JN_T_NAME:
        return parse_name_or_literal(p, with_namespace, ret);
    case BL_JN_T_STRING:
        return parse_string(p, ret);
    case BL_JN_T_INT:
        return const_node(p, bl_jn_int(tok->i), ret);
    case BL_JN_T_FLOAT:
        return const_node(p, bl_jn_float(tok->f), ret);
    default:
        break;
    }
    if (is_op(tok, "(")) {
        advance(p);
        BL_TRY(parse_tuple(p, (tuple_mode){.explicit_parens = true}, ret));
        return expect_op(p, ")");
    }
    if (is_op(tok, "[")) {
        return parse_list(p, ret);
    }
    if (is_op(tok, "{")) {
        return parse_dict(p, ret);
    }
    return fail_token(p, "unexpected");
}

/* One part of a subscript; a slice comes back in parts[0..2] with *ret_slice true. */
static bl_code parse_subscribed(parser *p, bl_jn_node *parts[3], bool *ret_slice) {
    memset(parts, 0, 3 * sizeof *parts);
    *ret_slice = false;
    if (!is_op(p->tok, ":")) {
        BL_TRY(parse_expression(p, &parts[0]));
        if (!is_op(p->tok, ":")) {
            return BL_OK;
        }
    }
    *ret_slice = true;
    advance(p);
    for (int i = 1; i < 3; i++) {
        if (i == 2) {
            if (!skip_op(p, ":")) {
                return BL_OK;
            }
        }
        if (!is_op(p->tok, ":") && !is_op(p->tok, "]") && !is_op(p->tok, ",")) {
            BL_TRY(parse_expression(p, &parts[i]));
        }
    }
    return BL_OK;
}

static bl_code parse_index(parser *p, bl_jn_node **node) {
    uint32_t line = p->tok->line;
    advance(p);
    nodes_buf items = {0};
    bl_jn_node *parts[3];
    bool slice = false;
    while (!is_op(p->tok, "]")) {
        if (items.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        bool this_slice;
        BL_TRY(parse_subscribed(p, parts, &this_slice));
        slice = slice || this_slice;
        BL_TRY(nodes_push(p, &items, parts[0]));
    }
    BL_TRY(expect_op(p, "]"));
    if (slice && items.n > 1) {
        BL_FAIL(p->err, BL_ENOTSUP,
                "chat template line %u: slices inside a tuple subscript are not supported", line);
    }
    bl_jn_node *r;
    if (slice) {
        nodes_buf s = {0};
        BL_TRY(nodes_push(p, &s, *node));
        for (int i = 0; i < 3; i++) {
            BL_TRY(nodes_push(p, &s, parts[i]));
        }
        BL_TRY(new_node(p, BL_JN_N_SLICE, line, &r));
        r->seq.items = nodes_of(&s);
    } else {
        bl_jn_node *key = items.n == 1 ? items.v[0] : NULL;
        if (!key) {
            BL_TRY(new_node(p, BL_JN_N_TUPLE, line, &key));
            key->seq.items = nodes_of(&items);
        }
        BL_TRY(new_node(p, BL_JN_N_GETITEM, line, &r));
        r->un.a = *node;
        r->un.b = key;
    }
    *node = r;
    return BL_OK;
}

static bl_code parse_dot(parser *p, bl_jn_node **node) {
    uint32_t line = p->tok->line;
    advance(p);
    const bl_jn_tok *tok = p->tok;
    bl_jn_node *r;
    if (tok->type == BL_JN_T_NAME) {
        advance(p);
        bl_jn_str *s;
        BL_TRY(new_string(p, tok->p, tok->n, &s));
        BL_TRY(new_node(p, BL_JN_N_GETATTR, line, &r));
        r->un.a = *node;
        r->un.attr = s;
    } else if (tok->type == BL_JN_T_INT) {
        bl_jn_node *key;
        BL_TRY(const_node(p, bl_jn_int(tok->i), &key));
        BL_TRY(new_node(p, BL_JN_N_GETITEM, line, &r));
        r->un.a = *node;
        r->un.b = key;
    } else {
        return fail_token(p, "expected a name or number, got");
    }
    *node = r;
    return BL_OK;
}

static bl_code parse_one_arg(parser *p, bl_jn_argnodes *a, nodes_buf *pos) {
    const bl_jn_tok *tok = p->tok;
    if (skip_op(p, "*")) {
        if (a->dyn || a->dyn_kw) {
            FAIL_AT(p, tok, "invalid call syntax at", "*", 1);
        }
        return parse_expression(p, &a->dyn);
    }
    if (skip_op(p, "**")) {
        if (a->dyn_kw) {
            FAIL_AT(p, tok, "invalid call syntax at", "**", 2);
        }
        return parse_expression(p, &a->dyn_kw);
    }
    if (tok->type == BL_JN_T_NAME && is_op(look(p), "=")) {
        if (a->dyn_kw) {
            FAIL_AT(p, tok, "invalid call syntax at", tok->p, tok->n);
        }
        if (a->n_kw == BL_JN_MAX_ARGS) {
            BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: more than %u keyword arguments", tok->line,
                    BL_JN_MAX_ARGS);
        }
        for (uint32_t i = 0; i < a->n_kw; i++) {
            if (a->kw[i].name->n == tok->n && memcmp(a->kw[i].name->p, tok->p, tok->n) == 0) {
                FAIL_AT(p, tok, "keyword argument repeated:", tok->p, tok->n);
            }
        }
        advance(p);
        advance(p);
        if (!a->kw) {
            void *m;
            BL_TRY(alloc(p, BL_JN_MAX_ARGS * sizeof *a->kw, &m));
            a->kw = m;
        }
        bl_jn_str *s;
        BL_TRY(new_string(p, tok->p, tok->n, &s));
        a->kw[a->n_kw].name = s;
        BL_TRY(parse_expression(p, &a->kw[a->n_kw].v));
        a->n_kw++;
        return BL_OK;
    }
    if (a->dyn || a->dyn_kw || a->n_kw > 0) {
        FAIL_AT(p, tok, "positional argument after keyword arguments in", "call", 4);
    }
    bl_jn_node *v;
    BL_TRY(parse_expression(p, &v));
    return nodes_push(p, pos, v);
}

static bl_code parse_call_args(parser *p, bl_jn_argnodes *ret) {
    *ret = (bl_jn_argnodes){0};
    nodes_buf pos = {0};
    BL_TRY(expect_op(p, "("));
    bool comma = false;
    while (!is_op(p->tok, ")")) {
        if (comma) {
            BL_TRY(expect_op(p, ","));
            if (is_op(p->tok, ")")) {
                break;
            }
        }
        BL_TRY(parse_one_arg(p, ret, &pos));
        comma = true;
    }
    ret->pos = nodes_of(&pos);
    return expect_op(p, ")");
}

static bl_code parse_call(parser *p, bl_jn_node **node) {
    bl_jn_node *r;
    BL_TRY(new_node(p, BL_JN_N_CALL, p->tok->line, &r));
    r->call.a = *node;
    BL_TRY(parse_call_args(p, &r->call.args));
    *node = r;
    return BL_OK;
}

/* name(.name)*: jinja2 allows dots in filter and test names; no filter of ours has one. */
static bl_code parse_dotted(parser *p, const bl_jn_tok **ret) {
    *ret = p->tok;
    BL_TRY(expect_type(p, BL_JN_T_NAME, "name"));
    if (is_op(p->tok, ".")) {
        return fail_token(p, "no filter or test has a dotted name:");
    }
    return BL_OK;
}

/* "| name(args)" with the bar already read when `bar_read`. *node may be NULL: the captured text. */
static bl_code parse_filter(parser *p, bool bar_read, bl_jn_node **node) {
    while (bar_read || skip_op(p, "|")) {
        bar_read = false;
        const bl_jn_tok *name;
        BL_TRY(parse_dotted(p, &name));
        bl_jn_node *r;
        BL_TRY(new_node(p, BL_JN_N_FILTER, name->line, &r));
        r->call.a = *node;
        r->call.filter = bl_jn_find_filter(name->p, name->n);
        if (!r->call.filter) {
            FAIL_AT(p, name, "unknown or unsupported filter", name->p, name->n);
        }
        if (is_op(p->tok, "(")) {
            BL_TRY(parse_call_args(p, &r->call.args));
        }
        *node = r;
    }
    return BL_OK;
}

static bool starts_test_argument(const parser *p) {
    switch (p->tok->type) {
    case BL_JN_T_NAME:
        return !is_word(p->tok, "else") && !is_word(p->tok, "or") && !is_word(p->tok, "and");
    case BL_JN_T_STRING:
    case BL_JN_T_INT:
    case BL_JN_T_FLOAT:
        return true;
    default:
        return is_op(p->tok, "[") || is_op(p->tok, "{");
    }
}

static bl_code parse_test(parser *p, bl_jn_node **node) {
    uint32_t line = p->tok->line;
    advance(p);
    bool negated = skip_word(p, "not");
    const bl_jn_tok *name;
    BL_TRY(parse_dotted(p, &name));
    bl_jn_node *r;
    BL_TRY(new_node(p, BL_JN_N_TEST, line, &r));
    r->call.a = *node;
    r->call.test = bl_jn_find_test(name->p, name->n);
    if (!r->call.test) {
        FAIL_AT(p, name, "unknown test", name->p, name->n);
    }
    if (is_op(p->tok, "(")) {
        BL_TRY(parse_call_args(p, &r->call.args));
    } else if (starts_test_argument(p)) {
        if (is_word(p->tok, "is")) {
            return fail_token(p, "tests cannot be chained with");
        }
        nodes_buf pos = {0};
        bl_jn_node *arg;
        BL_TRY(deeper(p));
        BL_TRY(parse_primary(p, false, &arg));
        BL_TRY(parse_postfix(p, &arg));
        p->depth--;
        BL_TRY(nodes_push(p, &pos, arg));
        r->call.args.pos = nodes_of(&pos);
    }
    if (negated) {
        bl_jn_node *inner = r;
        BL_TRY(new_node(p, BL_JN_N_NOT, line, &r));
        r->un.a = inner;
    }
    *node = r;
    return BL_OK;
}

static bl_code parse_postfix(parser *p, bl_jn_node **node) {
    for (;;) {
        if (is_op(p->tok, ".")) {
            BL_TRY(parse_dot(p, node));
        } else if (is_op(p->tok, "[")) {
            BL_TRY(parse_index(p, node));
        } else if (is_op(p->tok, "(")) {
            BL_TRY(parse_call(p, node));
        } else {
            return BL_OK;
        }
    }
}

static bl_code parse_filter_expr(parser *p, bl_jn_node **node) {
    for (;;) {
        if (is_op(p->tok, "|")) {
            BL_TRY(parse_filter(p, false, node));
        } else if (is_word(p->tok, "is")) {
            BL_TRY(parse_test(p, node));
        } else if (is_op(p->tok, "(")) {
            BL_TRY(parse_call(p, node));
        } else {
            return BL_OK;
        }
    }
}

static bl_code parse_unary(parser *p, bool with_filter, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    bool neg = is_op(p->tok, "-");
    if (neg || is_op(p->tok, "+")) {
        advance(p);
        BL_TRY(deeper(p));
        bl_jn_node *a;
        BL_TRY(parse_unary(p, false, &a));
        p->depth--;
        BL_TRY(new_node(p, neg ? BL_JN_N_NEG : BL_JN_N_POS, line, ret));
        (*ret)->un.a = a;
    } else {
        BL_TRY(parse_primary(p, false, ret));
    }
    BL_TRY(parse_postfix(p, ret));
    return with_filter ? parse_filter_expr(p, ret) : BL_OK;
}

typedef struct {
    const char *text;
    bl_jn_op op;
} op_entry;

static bool match_op(const parser *p, const op_entry *ops, size_t n, bl_jn_op *ret) {
    for (size_t i = 0; i < n; i++) {
        if (is_op(p->tok, ops[i].text)) {
            *ret = ops[i].op;
            return true;
        }
    }
    return false;
}

typedef bl_code parse_fn(parser *p, bl_jn_node **ret);

/* next (op next)*: one flat node. */
static bl_code parse_chain(parser *p, const op_entry *ops, size_t n_ops, parse_fn *next, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    BL_TRY(next(p, ret));
    bl_jn_op op;
    if (!match_op(p, ops, n_ops, &op)) {
        return BL_OK;
    }
    nodes_buf items = {0};
    BL_TRY(nodes_push(p, &items, *ret));
    uint8_t *codes = NULL;
    uint32_t cap = 0;
    while (match_op(p, ops, n_ops, &op)) {
        advance(p);
        bl_jn_node *right;
        BL_TRY(next(p, &right));
        if (items.n > cap) {
            void *m;
            BL_TRY(alloc(p, items.n * 2u, &m));
            if (cap > 0) {
                memcpy(m, codes, cap);
            }
            codes = m;
            cap = items.n * 2u;
        }
        codes[items.n - 1] = (uint8_t)op;
        BL_TRY(nodes_push(p, &items, right));
    }
    BL_TRY(new_node(p, BL_JN_N_CHAIN, line, ret));
    (*ret)->seq.items = nodes_of(&items);
    (*ret)->seq.ops = codes;
    return BL_OK;
}

static bl_code parse_full_unary(parser *p, bl_jn_node **ret) {
    return parse_unary(p, true, ret);
}

static bl_code parse_pow(parser *p, bl_jn_node **ret) {
    static const op_entry ops[] = {{"**", BL_JN_OP_POW}};
    return parse_chain(p, ops, BL_COUNTOF(ops), parse_full_unary, ret);
}

static bl_code parse_math2(parser *p, bl_jn_node **ret) {
    static const op_entry ops[] = {
        {"*", BL_JN_OP_MUL}, {"/", BL_JN_OP_DIV}, {"//", BL_JN_OP_FLOORDIV}, {"%", BL_JN_OP_MOD}};
    return parse_chain(p, ops, BL_COUNTOF(ops), parse_pow, ret);
}

/* next (word next)* as one node of `kind`. */
static bl_code parse_run(parser *p, const char *word, const char *op, bl_jn_kind kind, parse_fn *next,
                         bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    BL_TRY(next(p, ret));
    nodes_buf items = {0};
    while (word ? skip_word(p, word) : skip_op(p, op)) {
        if (items.n == 0) {
            BL_TRY(nodes_push(p, &items, *ret));
        }
        bl_jn_node *right;
        BL_TRY(next(p, &right));
        BL_TRY(nodes_push(p, &items, right));
    }
    if (items.n > 0) {
        BL_TRY(new_node(p, kind, line, ret));
        (*ret)->seq.items = nodes_of(&items);
    }
    return BL_OK;
}

static bl_code parse_concat(parser *p, bl_jn_node **ret) {
    return parse_run(p, NULL, "~", BL_JN_N_CONCAT, parse_math2, ret);
}

static bl_code parse_math1(parser *p, bl_jn_node **ret) {
    static const op_entry ops[] = {{"+", BL_JN_OP_ADD}, {"-", BL_JN_OP_SUB}};
    return parse_chain(p, ops, BL_COUNTOF(ops), parse_concat, ret);
}

static bool match_compare(parser *p, bl_jn_op *ret) {
    static const op_entry ops[] = {{"==", BL_JN_OP_EQ}, {"!=", BL_JN_OP_NE}, {"<", BL_JN_OP_LT},
                                   {"<=", BL_JN_OP_LE}, {">", BL_JN_OP_GT},  {">=", BL_JN_OP_GE}};
    if (match_op(p, ops, BL_COUNTOF(ops), ret)) {
        advance(p);
        return true;
    }
    if (skip_word(p, "in")) {
        *ret = BL_JN_OP_IN;
        return true;
    }
    if (is_word(p->tok, "not") && is_word(look(p), "in")) {
        advance(p);
        advance(p);
        *ret = BL_JN_OP_NOTIN;
        return true;
    }
    return false;
}

static bl_code parse_compare(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    BL_TRY(parse_math1(p, ret));
    nodes_buf items = {0};
    uint8_t codes[BL_JN_MAX_ARGS];
    bl_jn_op op;
    while (match_compare(p, &op)) {
        if (items.n == 0) {
            BL_TRY(nodes_push(p, &items, *ret));
        }
        if (items.n > BL_JN_MAX_ARGS) {
            BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: more than %u comparisons in a row", line,
                    BL_JN_MAX_ARGS);
        }
        codes[items.n - 1] = (uint8_t)op;
        bl_jn_node *right;
        BL_TRY(parse_math1(p, &right));
        BL_TRY(nodes_push(p, &items, right));
    }
    if (items.n > 0) {
        void *m;
        BL_TRY(alloc(p, items.n, &m));
        memcpy(m, codes, items.n - 1);
        BL_TRY(new_node(p, BL_JN_N_COMPARE, line, ret));
        (*ret)->seq.items = nodes_of(&items);
        (*ret)->seq.ops = m;
    }
    return BL_OK;
}

static bl_code parse_not(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    if (!skip_word(p, "not")) {
        return parse_compare(p, ret);
    }
    bl_jn_node *a;
    BL_TRY(deeper(p));
    BL_TRY(parse_not(p, &a));
    p->depth--;
    BL_TRY(new_node(p, BL_JN_N_NOT, line, ret));
    (*ret)->un.a = a;
    return BL_OK;
}

static bl_code parse_and(parser *p, bl_jn_node **ret) {
    return parse_run(p, "and", NULL, BL_JN_N_AND, parse_not, ret);
}
static bl_code parse_or(parser *p, bl_jn_node **ret) {
    return parse_run(p, "or", NULL, BL_JN_N_OR, parse_and, ret);
}

static bl_code parse_expression(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    BL_TRY(deeper(p));
    BL_TRY(parse_or(p, ret));
    uint32_t chained = 0;
    while (skip_word(p, "if")) {
        bl_jn_node *test, *otherwise = NULL;
        BL_TRY(parse_or(p, &test));
        if (skip_word(p, "else")) {
            BL_TRY(parse_expression(p, &otherwise));
        }
        if (++chained > BL_JN_MAX_ARGS) {
            BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: more than %u inline ifs in a row", line,
                    BL_JN_MAX_ARGS);
        }
        nodes_buf items = {0};
        BL_TRY(nodes_push(p, &items, *ret));
        BL_TRY(nodes_push(p, &items, test));
        BL_TRY(nodes_push(p, &items, otherwise));
        BL_TRY(new_node(p, BL_JN_N_COND, line, ret));
        (*ret)->seq.items = nodes_of(&items);
    }
    p->depth--;
    return BL_OK;
}

/* ---- statements ---- */

/* Turns an expression into an assignment target. */
static bl_code make_target(parser *p, bl_jn_node *n, bl_jn_name_ctx ctx) {
    if (n->kind == BL_JN_N_NAME) {
        n->name.ctx = ctx;
        return BL_OK;
    }
    if (n->kind == BL_JN_N_NSREF) {
        return BL_OK;
    }
    if (n->kind == BL_JN_N_TUPLE) {
        for (uint32_t i = 0; i < n->seq.items.n; i++) {
            BL_TRY(make_target(p, n->seq.items.v[i], ctx));
        }
        return BL_OK;
    }
    BL_FAIL(p->err, BL_EFORMAT, "chat template line %u: cannot assign to this expression", n->line);
}

static bl_code parse_name_target(parser *p, bl_jn_name_ctx ctx, bl_jn_node **ret) {
    const bl_jn_tok *tok = p->tok;
    BL_TRY(expect_type(p, BL_JN_T_NAME, "name"));
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < BL_COUNTOF(reserved); i++) {
        if (is_word(tok, reserved[i])) {
            FAIL_AT(p, tok, "cannot assign to", tok->p, tok->n);
        }
    }
    return name_node(p, tok, ctx, ret);
}

static bl_code parse_target(parser *p, const char *end_word, bool with_namespace, bl_jn_node **ret) {
    tuple_mode m = {.simplified = true, .end_word = end_word, .with_namespace = with_namespace};
    BL_TRY(parse_tuple(p, m, ret));
    return make_target(p, *ret, BL_JN_CTX_STORE);
}

/* Reads ":"? "%}" body up to one of `ends` (left as the current token). */
static bl_code parse_statements(parser *p, const char *const *ends, bl_jn_nodes *ret) {
    (void)skip_op(p, ":");
    BL_TRY(expect_type(p, BL_JN_T_BLOCK_END, "%}"));
    BL_TRY(deeper(p));
    BL_TRY(parse_body(p, ends, ret));
    p->depth--;
    if (p->tok->type == BL_JN_T_EOF) {
        FAIL_AT(p, p->tok, "end of template, but missing", ends[0], strlen(ends[0]));
    }
    return BL_OK;
}

static bl_code parse_until(parser *p, const char *end, bl_jn_nodes *ret) {
    const char *const ends[] = {end, NULL};
    BL_TRY(parse_statements(p, ends, ret));
    advance(p);
    return BL_OK;
}

static bl_code parse_if(parser *p, bl_jn_node **ret) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    nodes_buf elifs = {0};
    bl_jn_node *n;
    BL_TRY(new_node(p, BL_JN_N_IF, p->tok->line, &n));
    *ret = n;
    for (;;) {
        advance(p);
        BL_TRY(parse_tuple(p, (tuple_mode){.no_cond = true}, &n->cond.test));
        BL_TRY(parse_statements(p, ends, &n->cond.body));
        if (!is_word(p->tok, "elif")) {
            break;
        }
        BL_TRY(new_node(p, BL_JN_N_IF, p->tok->line, &n));
        BL_TRY(nodes_push(p, &elifs, n));
    }
    (*ret)->cond.elifs = nodes_of(&elifs);
    bool has_else = is_word(p->tok, "else");
    advance(p);
    return has_else ? parse_until(p, "endif", &(*ret)->cond.els) : BL_OK;
}

static bl_code parse_for(parser *p, bl_jn_node **ret) {
    static const char *const ends[] = {"endfor", "else", NULL};
    BL_TRY(new_node(p, BL_JN_N_FOR, p->tok->line, ret));
    advance(p);
    void *m;
    BL_TRY(alloc(p, sizeof(bl_jn_for), &m));
    bl_jn_for *f = m;
    (*ret)->loop = f;
    BL_TRY(parse_target(p, "in", false, &f->target));
    BL_TRY(expect_word(p, "in"));
    BL_TRY(parse_tuple(p, (tuple_mode){.no_cond = true, .end_word = "recursive"}, &f->iter));
    if (skip_word(p, "if")) {
        BL_TRY(parse_expression(p, &f->test));
    }
    if (is_word(p->tok, "recursive")) {
        BL_FAIL(p->err, BL_ENOTSUP, "chat template line %u: recursive loops are not supported", p->tok->line);
    }
    p->in_loop++;
    BL_TRY(parse_statements(p, ends, &f->body));
    p->in_loop--;
    bool has_else = is_word(p->tok, "else");
    advance(p);
    return has_else ? parse_until(p, "endfor", &f->els) : BL_OK;
}

static bl_code new_scope(parser *p, bl_jn_kind kind, bl_jn_node **ret) {
    void *m;
    BL_TRY(new_node(p, kind, p->tok->line, ret));
    BL_TRY(alloc(p, sizeof(bl_jn_scope_node), &m));
    (*ret)->scope = m;
    return BL_OK;
}

static bl_code parse_set(parser *p, bl_jn_node **ret) {
    uint32_t line = p->tok->line;
    advance(p);
    bl_jn_node *target;
    BL_TRY(parse_target(p, NULL, true, &target));
    if (skip_op(p, "=")) {
        BL_TRY(new_node(p, BL_JN_N_SET, line, ret));
        (*ret)->set.target = target;
        return parse_tuple(p, (tuple_mode){0}, &(*ret)->set.value);
    }
    BL_TRY(new_scope(p, BL_JN_N_SET_BLOCK, ret));
    (*ret)->line = line;
    (*ret)->scope->target = target;
    BL_TRY(parse_filter(p, false, &(*ret)->scope->filter));
    return parse_until(p, "endset", &(*ret)->scope->body);
}

static bl_code parse_with(parser *p, bl_jn_node **ret) {
    BL_TRY(new_scope(p, BL_JN_N_WITH, ret));
    advance(p);
    nodes_buf targets = {0}, values = {0};
    while (p->tok->type != BL_JN_T_BLOCK_END) {
        if (targets.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        bl_jn_node *target, *value;
        BL_TRY(parse_target(p, NULL, false, &target));
        BL_TRY(make_target(p, target, BL_JN_CTX_PARAM));
        BL_TRY(expect_op(p, "="));
        BL_TRY(parse_expression(p, &value));
        BL_TRY(nodes_push(p, &targets, target));
        BL_TRY(nodes_push(p, &values, value));
    }
    (*ret)->scope->targets = nodes_of(&targets);
    (*ret)->scope->values = nodes_of(&values);
    return parse_until(p, "endwith", &(*ret)->scope->body);
}

static bl_code parse_signature(parser *p, bl_jn_macro_node *m) {
    nodes_buf args = {0}, defaults = {0};
    BL_TRY(expect_op(p, "("));
    while (!is_op(p->tok, ")")) {
        if (args.n > 0) {
            BL_TRY(expect_op(p, ","));
        }
        if (args.n == BL_JN_MAX_ARGS) {
            BL_FAIL(p->err, BL_ELIMIT, "chat template line %u: more than %u parameters", p->tok->line,
                    BL_JN_MAX_ARGS);
        }
        bl_jn_node *arg;
        BL_TRY(parse_name_target(p, BL_JN_CTX_PARAM, &arg));
        for (uint32_t i = 0; i < args.n; i++) {
            if (args.v[i]->name.id == arg->name.id) {
                FAIL_AT(p, p->tok, "parameter repeated:", arg->name.name->p, arg->name.name->n);
            }
        }
        if (skip_op(p, "=")) {
            bl_jn_node *def;
            BL_TRY(parse_expression(p, &def));
            BL_TRY(nodes_push(p, &defaults, def));
        } else if (defaults.n > 0) {
            return fail_token(p, "parameter without default follows one with default, before");
        }
        BL_TRY(nodes_push(p, &args, arg));
    }
    m->args = nodes_of(&args);
    m->defaults = nodes_of(&defaults);
    return expect_op(p, ")");
}

/* A body that is a function of its own: loops outside are not its loops. */
static bl_code parse_function_body(parser *p, const char *end, bl_jn_nodes *ret) {
    uint32_t outer = p->in_loop;
    p->in_loop = 0;
    BL_TRY(parse_until(p, end, ret));
    p->in_loop = outer;
    return BL_OK;
}

static bl_code new_macro(parser *p, bl_jn_kind kind, bl_jn_node **ret) {
    void *m;
    BL_TRY(new_node(p, kind, p->tok->line, ret));
    BL_TRY(alloc(p, sizeof(bl_jn_macro_node), &m));
    (*ret)->macro = m;
    return BL_OK;
}

static bl_code parse_macro(parser *p, bl_jn_node **ret) {
    BL_TRY(new_macro(p, BL_JN_N_MACRO, ret));
    advance(p);
    bl_jn_macro_node *m = (*ret)->macro;
    BL_TRY(parse_name_target(p, BL_JN_CTX_STORE, &m->target));
    m->name = m->target->name.name;
    BL_TRY(parse_signature(p, m));
    return parse_function_body(p, "endmacro", &m->body);
}

static bl_code parse_call_block(parser *p, bl_jn_node **ret) {
    BL_TRY(new_macro(p, BL_JN_N_CALL_BLOCK, ret));
    advance(p);
    bl_jn_macro_node *m = (*ret)->macro;
    if (is_op(p->tok, "(")) {
        BL_TRY(parse_signature(p, m));
    }
    BL_TRY(parse_expression(p, &m->call));
    if (m->call->kind != BL_JN_N_CALL) {
        BL_FAIL(p->err, BL_EFORMAT, "chat template line %u: 'call' needs a call", (*ret)->line);
    }
    return parse_function_body(p, "endcall", &m->body);
}

/* Hugging Face's {% generation %}: marks assistant text for training; rendered like a call block around its
 * body. */
static bl_code parse_generation(parser *p, bl_jn_node **ret) {
    BL_TRY(new_macro(p, BL_JN_N_CALL_BLOCK, ret));
    advance(p);
    return parse_function_body(p, "endgeneration", &(*ret)->macro->body);
}

static bl_code parse_filter_block(parser *p, bl_jn_node **ret) {
    BL_TRY(new_scope(p, BL_JN_N_FILTER_BLOCK, ret));
    advance(p);
    BL_TRY(parse_filter(p, true, &(*ret)->scope->filter));
    return parse_until(p, "endfilter", &(*ret)->scope->body);
}

static bl_code parse_print(parser *p, nodes_buf *out) {
    uint32_t line = p->tok->line;
    advance(p);
    bool first = true;
    while (p->tok->type != BL_JN_T_BLOCK_END) {
        if (!first) {
            BL_TRY(expect_op(p, ","));
        }
        first = false;
        bl_jn_node *n;
        BL_TRY(new_node(p, BL_JN_N_PRINT, line, &n));
        BL_TRY(parse_expression(p, &n->un.a));
        BL_TRY(nodes_push(p, out, n));
    }
    return BL_OK;
}

static bl_code parse_flow(parser *p, bl_jn_node **ret) {
    bool is_break = is_word(p->tok, "break");
    if (p->in_loop == 0) {
        return fail_token(p, "outside of a loop:");
    }
    BL_TRY(new_node(p, is_break ? BL_JN_N_BREAK : BL_JN_N_CONTINUE, p->tok->line, ret));
    advance(p);
    return BL_OK;
}

static bl_code parse_statement(parser *p, nodes_buf *out) {
    static const struct {
        const char *word;
        bl_code (*fn)(parser *p, bl_jn_node **ret);
    } table[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"break", parse_flow},
        {"continue", parse_flow},   {"generation", parse_generation},
    };
    if (p->tok->type != BL_JN_T_NAME) {
        return fail_token(p, "expected a tag name, got");
    }
    if (is_word(p->tok, "print")) {
        return parse_print(p, out);
    }
    for (size_t i = 0; i < BL_COUNTOF(table); i++) {
        if (is_word(p->tok, table[i].word)) {
            bl_jn_node *n;
            BL_TRY(table[i].fn(p, &n));
            return nodes_push(p, out, n);
        }
    }
    return fail_token(p, "unknown or unsupported tag");
}

static bool at_end_word(const parser *p, const char *const *ends) {
    for (size_t i = 0; ends && ends[i]; i++) {
        if (is_word(p->tok, ends[i])) {
            return true;
        }
    }
    return false;
}

/* Data, print tags and statements, up to a block whose first word is one of `ends` (NULL: to the end of the
 * text). */
static bl_code parse_body(parser *p, const char *const *ends, bl_jn_nodes *ret) {
    nodes_buf out = {0};
    while (p->tok->type != BL_JN_T_EOF) {
        const bl_jn_tok *tok = p->tok;
        bl_jn_node *n;
        advance(p);
        if (tok->type == BL_JN_T_DATA) {
            bl_jn_str *s;
            BL_TRY(new_string(p, tok->p, tok->n, &s));
            BL_TRY(new_node(p, BL_JN_N_DATA, tok->line, &n));
            n->konst = bl_jn_strval(s);
            BL_TRY(nodes_push(p, &out, n));
        } else if (tok->type == BL_JN_T_VAR_BEGIN) {
            BL_TRY(new_node(p, BL_JN_N_PRINT, tok->line, &n));
            BL_TRY(parse_tuple(p, (tuple_mode){0}, &n->un.a));
            BL_TRY(expect_type(p, BL_JN_T_VAR_END, "}}"));
            BL_TRY(nodes_push(p, &out, n));
        } else { /* BLOCK_BEGIN: the lexer gives nothing else here */
            if (at_end_word(p, ends)) {
                break;
            }
            BL_TRY(parse_statement(p, &out));
            BL_TRY(expect_type(p, BL_JN_T_BLOCK_END, "%}"));
        }
    }
    *ret = nodes_of(&out);
    return BL_OK;
}

bl_code bl_jn_parse(bl_jinja *t, bl_jn_pool *pool, const bl_jn_toks *toks, bl_err *err) {
    parser p = {.t = t, .pool = pool, .tok = toks->v, .err = err, .name_index_cap = BL_JN_MAX_NAMES * 2};
    void *m;
    BL_TRY(alloc(&p, BL_JN_MAX_NAMES * sizeof *t->names, &m));
    t->names = m;
    p.name_index = bl_alloc_array(p.name_index_cap, sizeof *p.name_index);
    if (!p.name_index) {
        BL_FAIL(err, BL_ENOMEM, "chat template: out of memory");
    }
    bl_code rc = parse_body(&p, NULL, &t->body);
    bl_free(p.name_index);
    return rc;
}
