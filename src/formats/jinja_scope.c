/* Names -> places. A transcription of jinja2 3.1's scoping (idtracking.py and the frame handling of
 * compiler.py): which variable a name means follows from the whole scope, not from the order of execution,
 * and templates depend on the corners of that (a `set` inside `for` does not leave it, one inside `if` does,
 * a macro sees later top-level sets).
 *
 * jinja2 gives every (scope level, name) pair a Python variable of the enclosing Python function. Here that
 * is a slot of an activation; macros, call blocks and loop filters are functions, other scopes share their
 * function's slots.
 */
#include <string.h>

#include "formats/jinja_private.h"

#define NO_LEVEL UINT16_MAX

enum { LOAD_NONE, LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED };

/* jinja2's Symbols: what this scope's level knows about each name. */
typedef struct symbols {
    const struct symbols *parent;
    uint16_t level;
    uint8_t *own;    /* the name has a reference at this level */
    uint8_t *load;   /* LOAD_* of it */
    uint8_t *stored; /* the name is assigned here */
    uint16_t *from;  /* ALIAS: level of the outer reference */
} symbols;

/* A function of the generated code: slots by (level, name). */
typedef struct function {
    struct function *parent;
    uint64_t *keys; /* level << 32 | name, +1 so that 0 is free */
    uint32_t *slots;
    uint32_t cap, n_slots;
} function;

typedef struct {
    bl_jinja *t;
    bl_jn_pool *pool;
    function *fn;
    bl_err *err;
    uint32_t depth;
} resolver;

/* ---- symbols ---- */

static bl_code symbols_new(resolver *r, const symbols *parent, uint16_t level, symbols *ret) {
    size_t n = BL_MAX(r->t->n_names, 1u);
    uint8_t *m = bl_alloc_array(n, 3 + sizeof(uint16_t));
    if (!m) {
        BL_FAIL(r->err, BL_ENOMEM, "chat template: out of memory");
    }
    /* from first: it wants alignment */
    *ret = (symbols){.parent = parent, .level = level, .from = (uint16_t *)(void *)m};
    ret->own = m + n * sizeof(uint16_t);
    ret->load = ret->own + n;
    ret->stored = ret->load + n;
    return BL_OK;
}

static void symbols_done(symbols *s) {
    bl_free(s->from);
    s->from = NULL;
}

static bl_code symbols_copy(resolver *r, const symbols *s, symbols *ret) {
    BL_TRY(symbols_new(r, s->parent, s->level, ret));
    size_t n = BL_MAX(r->t->n_names, 1u);
    memcpy(ret->from, s->from, n * (3 + sizeof(uint16_t)));
    return BL_OK;
}

/* Level of the nearest reference to the name, NO_LEVEL when there is none. */
static uint16_t find_ref(const symbols *s, uint32_t name) {
    for (; s; s = s->parent) {
        if (s->own[name]) {
            return s->level;
        }
    }
    return NO_LEVEL;
}

static void define(symbols *s, uint32_t name, uint8_t load, uint16_t from) {
    s->own[name] = 1;
    s->load[name] = load;
    s->from[name] = from;
}

static void sym_load(symbols *s, uint32_t name) {
    if (find_ref(s, name) == NO_LEVEL) {
        define(s, name, LOAD_RESOLVE, 0);
    }
}

static void sym_store(symbols *s, uint32_t name) {
    s->stored[name] = 1;
    if (!s->own[name]) {
        uint16_t outer = find_ref(s->parent, name);
        if (outer != NO_LEVEL) {
            define(s, name, LOAD_ALIAS, outer);
        } else {
            define(s, name, LOAD_UNDEFINED, 0);
        }
    }
}

static void sym_param(symbols *s, uint32_t name) {
    s->stored[name] = 1;
    define(s, name, LOAD_PARAM, 0);
}

/* Merges the symbols of an if's branches. */
static void branch_update(resolver *r, symbols *s, symbols *branches, size_t n_branches) {
    for (uint32_t name = 0; name < r->t->n_names; name++) {
        bool newly_stored = false;
        for (size_t i = 0; i < n_branches; i++) {
            newly_stored = newly_stored || (branches[i].stored[name] && !s->stored[name]);
        }
        for (size_t i = 0; i < n_branches; i++) {
            if (branches[i].own[name]) {
                define(s, name, branches[i].load[name], branches[i].from[name]);
            }
        }
        if (newly_stored) {
            s->stored[name] = 1;
            uint16_t outer = s->parent ? find_ref(s->parent, name) : NO_LEVEL;
            if (outer != NO_LEVEL) {
                define(s, name, LOAD_ALIAS, outer);
            } else {
                define(s, name, LOAD_RESOLVE, 0);
            }
        }
    }
}

/* ---- functions and places ---- */

static bl_code function_slot(resolver *r, function *f, uint16_t level, uint32_t name, bool create,
                             uint32_t *ret) {
    uint64_t key = ((uint64_t)level << 32 | name) + 1;
    if (f->n_slots * 2 >= f->cap) {
        uint32_t cap = f->cap ? f->cap * 2 : 64;
        function bigger = {.parent = f->parent, .cap = cap, .n_slots = f->n_slots};
        bigger.keys = bl_alloc_array(cap, sizeof *bigger.keys);
        bigger.slots = bl_alloc_array(cap, sizeof *bigger.slots);
        if (!bigger.keys || !bigger.slots) {
            bl_free(bigger.keys);
            bl_free(bigger.slots);
            BL_FAIL(r->err, BL_ENOMEM, "chat template: out of memory");
        }
        for (uint32_t i = 0; i < f->cap; i++) {
            if (f->keys[i]) {
                uint32_t at = (uint32_t)(f->keys[i] * 0x9E3779B97F4A7C15u >> 40) & (cap - 1);
                while (bigger.keys[at]) {
                    at = (at + 1) & (cap - 1);
                }
                bigger.keys[at] = f->keys[i];
                bigger.slots[at] = f->slots[i];
            }
        }
        bl_free(f->keys);
        bl_free(f->slots);
        *f = bigger;
    }
    uint32_t at = (uint32_t)(key * 0x9E3779B97F4A7C15u >> 40) & (f->cap - 1);
    while (f->keys[at] && f->keys[at] != key) {
        at = (at + 1) & (f->cap - 1);
    }
    if (!f->keys[at]) {
        if (!create) {
            *ret = UINT32_MAX;
            return BL_OK;
        }
        f->keys[at] = key;
        f->slots[at] = f->n_slots++;
    }
    *ret = f->slots[at];
    return BL_OK;
}

static void function_done(function *f) {
    bl_free(f->keys);
    bl_free(f->slots);
}

static bl_code find_place(resolver *r, uint16_t level, uint32_t name, bl_jn_place *ret) {
    uint32_t up = 0;
    for (function *f = r->fn; f; f = f->parent, up++) {
        uint32_t slot;
        BL_TRY(function_slot(r, f, level, name, false, &slot));
        if (slot != UINT32_MAX) {
            *ret = (bl_jn_place){.up = up, .slot = slot};
            return BL_OK;
        }
    }
    const bl_jn_str *s = r->t->names[name];
    BL_FAIL(r->err, BL_EINTERNAL, "chat template: no place for name '%.*s'", (int)BL_MIN(s->n, (size_t)60),
            s->p);
}

/* The scope's loads, for execution; gives each of its names a slot in the current function. */
static bl_code make_frame(resolver *r, const symbols *s, bl_jn_frame *ret) {
    uint32_t n = 0;
    for (uint32_t name = 0; name < r->t->n_names; name++) {
        n += s->own[name] ? 1 : 0;
    }
    void *m;
    BL_TRY(bl_jn_pool_alloc(r->pool, BL_MAX(n, 1u) * sizeof(bl_jn_load), &m, r->err));
    *ret = (bl_jn_frame){.loads = m, .n = n};
    uint32_t at = 0;
    for (uint32_t name = 0; name < r->t->n_names; name++) {
        if (!s->own[name]) {
            continue;
        }
        bl_jn_load *l = &ret->loads[at++];
        BL_TRY(function_slot(r, r->fn, s->level, name, true, &l->slot));
        l->name = r->t->names[name];
        switch (s->load[name]) {
        case LOAD_PARAM:
            l->kind = BL_JN_LOAD_PARAM;
            break;
        case LOAD_RESOLVE:
            l->kind = BL_JN_LOAD_RESOLVE;
            break;
        case LOAD_ALIAS:
            l->kind = BL_JN_LOAD_ALIAS;
            BL_TRY(find_place(r, s->from[name], name, &l->from));
            break;
        default:
            l->kind = BL_JN_LOAD_UNDEFINED;
            break;
        }
    }
    return BL_OK;
}

/* ---- walking ---- */

static bl_code deeper(resolver *r, const bl_jn_node *n) {
    if (r->depth >= 2 * BL_JN_MAX_NESTING) {
        BL_FAIL(r->err, BL_ELIMIT, "chat template line %u: nested deeper than %u", n->line,
                2 * BL_JN_MAX_NESTING);
    }
    r->depth++;
    return BL_OK;
}

typedef bl_code visit_fn(resolver *r, bl_jn_node *n, void *user);

static bl_code each(resolver *r, const bl_jn_nodes *v, visit_fn *fn, void *user) {
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->v[i]) {
            BL_TRY(fn(r, v->v[i], user));
        }
    }
    return BL_OK;
}

/* Calls fn on the direct children of an expression. */
static bl_code expr_children(resolver *r, bl_jn_node *n, visit_fn *fn, void *user) {
    switch (n->kind) {
    case BL_JN_N_LIST:
    case BL_JN_N_TUPLE:
    case BL_JN_N_DICT:
    case BL_JN_N_SLICE:
    case BL_JN_N_CHAIN:
    case BL_JN_N_AND:
    case BL_JN_N_OR:
    case BL_JN_N_CONCAT:
    case BL_JN_N_COMPARE:
    case BL_JN_N_COND:
        return each(r, &n->seq.items, fn, user);
    case BL_JN_N_GETATTR:
    case BL_JN_N_GETITEM:
    case BL_JN_N_NOT:
    case BL_JN_N_NEG:
    case BL_JN_N_POS:
    case BL_JN_N_PRINT:
        if (n->un.a) {
            BL_TRY(fn(r, n->un.a, user));
        }
        return n->kind == BL_JN_N_GETITEM ? fn(r, n->un.b, user) : BL_OK;
    case BL_JN_N_CALL:
    case BL_JN_N_FILTER:
    case BL_JN_N_TEST: {
        const bl_jn_argnodes *a = &n->call.args;
        if (n->call.a) {
            BL_TRY(fn(r, n->call.a, user));
        }
        BL_TRY(each(r, &a->pos, fn, user));
        for (uint32_t i = 0; i < a->n_kw; i++) {
            BL_TRY(fn(r, a->kw[i].v, user));
        }
        if (a->dyn) {
            BL_TRY(fn(r, a->dyn, user));
        }
        return a->dyn_kw ? fn(r, a->dyn_kw, user) : BL_OK;
    }
    default:
        return BL_OK;
    }
}

/* Which of "loop"/"caller"/"kwargs"/"varargs" are read before anything else touches them (find_undeclared).
 */
typedef struct {
    const char *names[3];
    bool found[3], gone[3];
    bool stored; /* any of them is assigned */
} undeclared;

static bl_code find_undeclared(resolver *r, bl_jn_node *n, void *user);

static bl_code undeclared_statement(resolver *r, bl_jn_node *n, undeclared *u) {
    switch (n->kind) {
    case BL_JN_N_IF:
        BL_TRY(find_undeclared(r, n->cond.test, u));
        BL_TRY(each(r, &n->cond.body, find_undeclared, u));
        BL_TRY(each(r, &n->cond.elifs, find_undeclared, u));
        return each(r, &n->cond.els, find_undeclared, u);
    case BL_JN_N_FOR:
        BL_TRY(find_undeclared(r, n->loop->target, u));
        BL_TRY(find_undeclared(r, n->loop->iter, u));
        BL_TRY(each(r, &n->loop->body, find_undeclared, u));
        BL_TRY(each(r, &n->loop->els, find_undeclared, u));
        return n->loop->test ? find_undeclared(r, n->loop->test, u) : BL_OK;
    case BL_JN_N_SET:
        BL_TRY(find_undeclared(r, n->set.target, u));
        return find_undeclared(r, n->set.value, u);
    case BL_JN_N_MACRO:
    case BL_JN_N_CALL_BLOCK:
        if (n->macro->call) {
            BL_TRY(find_undeclared(r, n->macro->call, u));
        }
        BL_TRY(each(r, &n->macro->args, find_undeclared, u));
        BL_TRY(each(r, &n->macro->defaults, find_undeclared, u));
        return each(r, &n->macro->body, find_undeclared, u);
    case BL_JN_N_SET_BLOCK:
    case BL_JN_N_FILTER_BLOCK:
    case BL_JN_N_WITH:
        BL_TRY(each(r, &n->scope->targets, find_undeclared, u));
        BL_TRY(each(r, &n->scope->values, find_undeclared, u));
        if (n->scope->target) {
            BL_TRY(find_undeclared(r, n->scope->target, u));
        }
        if (n->kind == BL_JN_N_SET_BLOCK && n->scope->filter) {
            BL_TRY(find_undeclared(r, n->scope->filter, u));
        }
        BL_TRY(each(r, &n->scope->body, find_undeclared, u));
        return n->kind == BL_JN_N_FILTER_BLOCK ? find_undeclared(r, n->scope->filter, u) : BL_OK;
    default:
        return BL_OK;
    }
}

static bl_code find_undeclared(resolver *r, bl_jn_node *n, void *user) {
    undeclared *u = user;
    if (n->kind == BL_JN_N_NAME) {
        for (size_t i = 0; i < BL_COUNTOF(u->names) && u->names[i]; i++) {
            if (bl_jn_str_is(n->name.name, u->names[i])) {
                u->stored = u->stored || n->name.ctx == BL_JN_CTX_STORE;
                if (n->name.ctx == BL_JN_CTX_LOAD && !u->gone[i]) {
                    u->found[i] = true;
                } else {
                    u->gone[i] = true;
                }
            }
        }
        return BL_OK;
    }
    BL_TRY(deeper(r, n));
    BL_TRY(undeclared_statement(r, n, u));
    BL_TRY(expr_children(r, n, find_undeclared, user));
    r->depth--;
    return BL_OK;
}

/* FrameSymbolVisitor: what a scope's own statements load and store. Inner scopes are not entered. */
static bl_code analyze(resolver *r, bl_jn_node *n, void *user);

static bl_code analyze_if(resolver *r, bl_jn_node *n, symbols *s) {
    BL_TRY(analyze(r, n->cond.test, s));
    const bl_jn_nodes *parts[3] = {&n->cond.body, &n->cond.elifs, &n->cond.els};
    symbols branches[3] = {0};
    bl_code rc = BL_OK;
    for (size_t i = 0; i < 3 && rc == BL_OK; i++) {
        rc = symbols_copy(r, s, &branches[i]);
        if (rc == BL_OK) {
            rc = each(r, parts[i], analyze, &branches[i]);
        }
    }
    if (rc == BL_OK) {
        branch_update(r, s, branches, 3);
    }
    for (size_t i = 0; i < 3; i++) {
        symbols_done(&branches[i]);
    }
    return rc;
}

static bl_code analyze_name(bl_jn_node *n, symbols *s) {
    switch (n->name.ctx) {
    case BL_JN_CTX_LOAD:
        sym_load(s, n->name.id);
        break;
    case BL_JN_CTX_STORE:
        sym_store(s, n->name.id);
        break;
    case BL_JN_CTX_PARAM:
        sym_param(s, n->name.id);
        break;
    }
    return BL_OK;
}

static bl_code analyze(resolver *r, bl_jn_node *n, void *user) {
    symbols *s = user;
    BL_TRY(deeper(r, n));
    bl_code rc = BL_OK;
    switch (n->kind) {
    case BL_JN_N_NAME:
        rc = analyze_name(n, s);
        break;
    case BL_JN_N_NSREF:
        sym_load(s, n->name.id);
        break;
    case BL_JN_N_IF:
        rc = analyze_if(r, n, s);
        break;
    case BL_JN_N_FOR:
        rc = analyze(r, n->loop->iter, s);
        break;
    case BL_JN_N_SET:
        BL_TRY(analyze(r, n->set.value, s));
        rc = analyze(r, n->set.target, s);
        break;
    case BL_JN_N_MACRO:
        sym_store(s, n->macro->target->name.id);
        break;
    case BL_JN_N_CALL_BLOCK:
        rc = n->macro->call ? analyze(r, n->macro->call, s) : BL_OK;
        break;
    case BL_JN_N_SET_BLOCK:
        rc = analyze(r, n->scope->target, s);
        break;
    case BL_JN_N_FILTER_BLOCK:
        rc = analyze(r, n->scope->filter, s);
        break;
    case BL_JN_N_WITH:
        rc = each(r, &n->scope->values, analyze, s);
        break;
    default:
        rc = expr_children(r, n, analyze, s);
        break;
    }
    r->depth--;
    return rc;
}

/* The target of a for: its names are parameters of the loop's scope. */
static bl_code analyze_params(resolver *r, bl_jn_node *n, void *user) {
    if (n->kind == BL_JN_N_NAME) {
        sym_param(user, n->name.id);
        return BL_OK;
    }
    return each(r, &n->seq.items, analyze_params, user);
}

/* ---- placing: mirrors the code generator's walk over frames ---- */

static bl_code place(resolver *r, bl_jn_node *n, void *user);

static bl_code place_name(resolver *r, bl_jn_node *n, const symbols *s) {
    uint16_t level = find_ref(s, n->name.id);
    if (level == NO_LEVEL) {
        BL_FAIL(r->err, BL_ENOTSUP, "chat template line %u: name '%.*s' cannot be used here", n->line,
                (int)BL_MIN(n->name.name->n, (size_t)60), n->name.name->p);
    }
    return find_place(r, level, n->name.id, &n->name.place);
}

static bl_code copy_target(resolver *r, const bl_jn_node *n, bl_jn_node **ret) {
    void *m;
    BL_TRY(bl_jn_pool_alloc(r->pool, sizeof *n, &m, r->err));
    *ret = m;
    **ret = *n;
    if (n->kind == BL_JN_N_TUPLE && n->seq.items.n > 0) {
        BL_TRY(bl_jn_pool_alloc(r->pool, n->seq.items.n * sizeof(bl_jn_node *), &m, r->err));
        (*ret)->seq.items.v = m;
        for (uint32_t i = 0; i < n->seq.items.n; i++) {
            BL_TRY(copy_target(r, n->seq.items.v[i], &(*ret)->seq.items.v[i]));
        }
    }
    return BL_OK;
}

static bl_code place_loop_test(resolver *r, bl_jn_for *f, const symbols *outer) {
    symbols s = {0};
    function fn = {.parent = r->fn};
    bl_code rc;
    BL_TRY_GOTO(rc, out, symbols_new(r, outer, (uint16_t)(outer->level + 1), &s));
    BL_TRY_GOTO(rc, out, analyze_params(r, f->target, &s));
    BL_TRY_GOTO(rc, out, analyze(r, f->test, &s));
    r->fn = &fn;
    BL_TRY_GOTO(rc, out, make_frame(r, &s, &f->test_frame));
    BL_TRY_GOTO(rc, out, copy_target(r, f->target, &f->test_target));
    BL_TRY_GOTO(rc, out, place(r, f->test_target, &s));
    BL_TRY_GOTO(rc, out, place(r, f->test, &s));
    f->test_slots = fn.n_slots;
out:
    r->fn = fn.parent;
    function_done(&fn);
    symbols_done(&s);
    return rc;
}

static bl_code check_loop_stores(resolver *r, bl_jn_node *n, void *user) {
    undeclared probe = {.names = {"loop"}};
    BL_TRY(find_undeclared(r, n, &probe));
    *(bool *)user = *(bool *)user || probe.stored;
    return BL_OK;
}

static bl_code place_loop_body(resolver *r, bl_jn_for *f, const symbols *outer) {
    undeclared u = {.names = {"loop"}};
    BL_TRY(each(r, &f->body, find_undeclared, &u));
    f->has_loop = u.found[0];
    symbols s = {0};
    bl_code rc;
    BL_TRY_GOTO(rc, out, symbols_new(r, outer, (uint16_t)(outer->level + 1), &s));
    uint32_t loop_id = UINT32_MAX;
    for (uint32_t i = 0; i < r->t->n_names && f->has_loop; i++) {
        if (bl_jn_str_is(r->t->names[i], "loop")) {
            loop_id = i;
            sym_param(&s, i);
        }
    }
    BL_TRY_GOTO(rc, out, analyze_params(r, f->target, &s));
    BL_TRY_GOTO(rc, out, each(r, &f->body, analyze, &s));
    BL_TRY_GOTO(rc, out, make_frame(r, &s, &f->frame));
    if (loop_id != UINT32_MAX) {
        BL_TRY_GOTO(rc, out, find_place(r, s.level, loop_id, &f->loop));
    }
    BL_TRY_GOTO(rc, out, place(r, f->target, &s));
    BL_TRY_GOTO(rc, out, each(r, &f->body, place, &s));
out:
    symbols_done(&s);
    return rc;
}

/* Enters a scope whose content is `body` (and nothing else) in the current function. */
static bl_code place_simple_scope(resolver *r, const bl_jn_nodes *body, const symbols *outer,
                                  bl_jn_frame *frame) {
    symbols s = {0};
    bl_code rc;
    BL_TRY_GOTO(rc, out, symbols_new(r, outer, (uint16_t)(outer->level + 1), &s));
    BL_TRY_GOTO(rc, out, each(r, body, analyze, &s));
    BL_TRY_GOTO(rc, out, make_frame(r, &s, frame));
    BL_TRY_GOTO(rc, out, each(r, body, place, &s));
out:
    symbols_done(&s);
    return rc;
}

static bl_code place_for(resolver *r, bl_jn_node *n, const symbols *outer) {
    bl_jn_for *f = n->loop;
    bool stores_loop = false;
    BL_TRY(check_loop_stores(r, f->target, &stores_loop));
    BL_TRY(each(r, &f->body, check_loop_stores, &stores_loop));
    BL_TRY(each(r, &f->els, check_loop_stores, &stores_loop));
    if (stores_loop) {
        BL_FAIL(r->err, BL_EFORMAT, "chat template line %u: cannot assign to 'loop' in a for loop", n->line);
    }
    BL_TRY(place(r, f->iter, (void *)(uintptr_t)outer));
    if (f->test) {
        BL_TRY(place_loop_test(r, f, outer));
    }
    BL_TRY(place_loop_body(r, f, outer));
    return f->els.n > 0 ? place_simple_scope(r, &f->els, outer, &f->else_frame) : BL_OK;
}

static uint32_t name_id(const resolver *r, const char *name) {
    for (uint32_t i = 0; i < r->t->n_names; i++) {
        if (bl_jn_str_is(r->t->names[i], name)) {
            return i;
        }
    }
    return UINT32_MAX;
}

/* The special parameters of a macro whose body reads them. */
static bl_code macro_specials(resolver *r, bl_jn_node *n, symbols *s) {
    bl_jn_macro_node *m = n->macro;
    undeclared u = {.names = {"caller", "kwargs", "varargs"}};
    BL_TRY(each(r, &m->body, find_undeclared, &u));
    bool explicit_arg[3] = {false, false, false};
    uint32_t caller_at = 0;
    for (uint32_t i = 0; i < m->args.n; i++) {
        for (size_t k = 0; k < 3; k++) {
            if (bl_jn_str_is(m->args.v[i]->name.name, u.names[k])) {
                explicit_arg[k] = true;
                caller_at = k == 0 ? i : caller_at;
            }
        }
    }
    m->explicit_caller = explicit_arg[0];
    m->has_caller = u.found[0];
    m->has_kwargs = u.found[1] && !explicit_arg[1];
    m->has_varargs = u.found[2] && !explicit_arg[2];
    if (u.found[0] && explicit_arg[0] && caller_at + m->defaults.n < m->args.n) {
        BL_FAIL(r->err, BL_EFORMAT, "chat template line %u: parameter 'caller' needs a default", n->line);
    }
    if (m->has_caller && !m->explicit_caller) {
        sym_param(s, name_id(r, "caller"));
    }
    if (m->has_kwargs) {
        sym_param(s, name_id(r, "kwargs"));
    }
    if (m->has_varargs) {
        sym_param(s, name_id(r, "varargs"));
    }
    return BL_OK;
}

static bl_code special_slot(resolver *r, const symbols *s, const char *name, uint32_t *ret) {
    bl_jn_place p;
    BL_TRY(find_place(r, s->level, name_id(r, name), &p));
    *ret = p.slot;
    return BL_OK;
}

static bl_code analyze_macro(resolver *r, bl_jn_macro_node *m, symbols *s) {
    BL_TRY(each(r, &m->args, analyze, s));
    BL_TRY(each(r, &m->defaults, analyze, s));
    return each(r, &m->body, analyze, s);
}

static bl_code place_macro(resolver *r, bl_jn_node *n, const symbols *outer) {
    bl_jn_macro_node *m = n->macro;
    symbols s = {0};
    function fn = {.parent = r->fn};
    bl_code rc;
    BL_TRY_GOTO(rc, out, symbols_new(r, outer, (uint16_t)(outer->level + 1), &s));
    BL_TRY_GOTO(rc, out, analyze_macro(r, m, &s));
    BL_TRY_GOTO(rc, out, macro_specials(r, n, &s));
    BL_TRY_GOTO(rc, out, analyze_macro(r, m, &s));
    r->fn = &fn;
    BL_TRY_GOTO(rc, out, make_frame(r, &s, &m->frame));
    if (m->has_caller) {
        BL_TRY_GOTO(rc, out, special_slot(r, &s, "caller", &m->caller_slot));
    }
    if (m->has_kwargs) {
        BL_TRY_GOTO(rc, out, special_slot(r, &s, "kwargs", &m->kwargs_slot));
    }
    if (m->has_varargs) {
        BL_TRY_GOTO(rc, out, special_slot(r, &s, "varargs", &m->varargs_slot));
    }
    BL_TRY_GOTO(rc, out, each(r, &m->args, place, &s));
    BL_TRY_GOTO(rc, out, each(r, &m->defaults, place, &s));
    BL_TRY_GOTO(rc, out, each(r, &m->body, place, &s));
    m->n_slots = fn.n_slots;
out:
    r->fn = fn.parent;
    function_done(&fn);
    symbols_done(&s);
    return rc;
}

static bl_code place_scope(resolver *r, bl_jn_node *n, const symbols *outer) {
    bl_jn_scope_node *sc = n->scope;
    void *outer_user = (void *)(uintptr_t)outer;
    symbols s = {0};
    bl_code rc;
    BL_TRY(each(r, &sc->values, place, outer_user));
    BL_TRY_GOTO(rc, out, symbols_new(r, outer, (uint16_t)(outer->level + 1), &s));
    BL_TRY_GOTO(rc, out, each(r, &sc->targets, analyze, &s));
    BL_TRY_GOTO(rc, out, each(r, &sc->body, analyze, &s));
    if (n->kind == BL_JN_N_FILTER_BLOCK) {
        BL_TRY_GOTO(rc, out, analyze(r, sc->filter, &s));
    }
    BL_TRY_GOTO(rc, out, make_frame(r, &s, &sc->frame));
    BL_TRY_GOTO(rc, out, each(r, &sc->targets, place, &s));
    BL_TRY_GOTO(rc, out, each(r, &sc->body, place, &s));
    if (sc->filter) {
        BL_TRY_GOTO(rc, out, place(r, sc->filter, &s));
    }
    if (sc->target) {
        BL_TRY_GOTO(rc, out, place(r, sc->target, outer_user));
    }
out:
    symbols_done(&s);
    return rc;
}

static bl_code place(resolver *r, bl_jn_node *n, void *user) {
    const symbols *s = user;
    BL_TRY(deeper(r, n));
    bl_code rc = BL_OK;
    switch (n->kind) {
    case BL_JN_N_NAME:
    case BL_JN_N_NSREF:
        rc = place_name(r, n, s);
        break;
    case BL_JN_N_IF:
        BL_TRY(place(r, n->cond.test, user));
        BL_TRY(each(r, &n->cond.body, place, user));
        BL_TRY(each(r, &n->cond.elifs, place, user));
        rc = each(r, &n->cond.els, place, user);
        break;
    case BL_JN_N_FOR:
        rc = place_for(r, n, s);
        break;
    case BL_JN_N_SET:
        BL_TRY(place(r, n->set.value, user));
        rc = place(r, n->set.target, user);
        break;
    case BL_JN_N_MACRO:
        BL_TRY(place_macro(r, n, s));
        rc = place(r, n->macro->target, user);
        break;
    case BL_JN_N_CALL_BLOCK:
        BL_TRY(place_macro(r, n, s));
        rc = n->macro->call ? place(r, n->macro->call, user) : BL_OK;
        break;
    case BL_JN_N_SET_BLOCK:
    case BL_JN_N_FILTER_BLOCK:
    case BL_JN_N_WITH:
        rc = place_scope(r, n, s);
        break;
    default:
        rc = expr_children(r, n, place, user);
        break;
    }
    r->depth--;
    return rc;
}

bl_code bl_jn_resolve(bl_jinja *t, bl_jn_pool *pool, bl_err *err) {
    function root = {0};
    resolver r = {.t = t, .pool = pool, .fn = &root, .err = err};
    symbols s = {0};
    bl_code rc;
    BL_TRY_GOTO(rc, out, symbols_new(&r, NULL, 0, &s));
    BL_TRY_GOTO(rc, out, each(&r, &t->body, analyze, &s));
    BL_TRY_GOTO(rc, out, make_frame(&r, &s, &t->frame));
    BL_TRY_GOTO(rc, out, each(&r, &t->body, place, &s));
    t->n_slots = root.n_slots;
out:
    function_done(&root);
    symbols_done(&s);
    return rc;
}
