/* Statements: scopes, loops, macros, captured blocks. */
#include <string.h>

#include "formats/jinja_private.h"

/* ---- scopes ---- */

bl_code bl_jn_new_act(bl_jn_ctx *c, uint32_t n_slots, bl_jn_act *parent, bl_jn_act **ret) {
    void *m, *slots;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_act), &m));
    BL_TRY(bl_jn_alloc_array(c, BL_MAX(n_slots, 1u), sizeof(bl_jn_val), &slots));
    bl_jn_act *a = m;
    a->slots = slots;
    a->parent = parent;
    for (uint32_t i = 0; i < n_slots; i++) {
        a->slots[i] = bl_jn_missing();
    }
    *ret = a;
    return BL_OK;
}

static bl_jn_val *slot_at(bl_jn_act *act, bl_jn_place p) {
    for (uint32_t i = 0; i < p.up; i++) {
        act = act->parent;
    }
    return &act->slots[p.slot];
}

/* The context's variable, else a global function, else missing. */
static bl_jn_val resolve(const bl_jn_ctx *c, const bl_jn_str *name) {
    const bl_jn_val *v = bl_jn_dict_get_str(c->vars, name);
    if (v) {
        return *v;
    }
    const bl_jn_func_def *fn = bl_jn_find_func(name);
    return fn ? (bl_jn_val){.t = BL_JN_FUNC, .fn = fn} : bl_jn_missing();
}

bl_code bl_jn_enter_frame(bl_jn_ctx *c, const bl_jn_frame *f, bl_jn_act *act) {
    BL_TRY(bl_jn_charge(c, f->n));
    for (uint32_t i = 0; i < f->n; i++) {
        const bl_jn_load *l = &f->loads[i];
        switch (l->kind) {
        case BL_JN_LOAD_PARAM:
            break;
        case BL_JN_LOAD_RESOLVE:
            act->slots[l->slot] = resolve(c, l->name);
            break;
        case BL_JN_LOAD_ALIAS:
            act->slots[l->slot] = *slot_at(act, l->from);
            break;
        case BL_JN_LOAD_UNDEFINED:
            act->slots[l->slot] = bl_jn_missing();
            break;
        }
    }
    return BL_OK;
}

void bl_jn_leave_frame(const bl_jn_frame *f, bl_jn_act *act) {
    for (uint32_t i = 0; i < f->n; i++) {
        act->slots[f->loads[i].slot] = bl_jn_missing();
    }
}

/* ---- assignment ---- */

static bl_code assign_tuple(bl_jn_ctx *c, const bl_jn_node *target, bl_jn_act *act, bl_jn_val v) {
    uint32_t n = target->seq.items.n;
    bl_jn_val items;
    BL_TRY(bl_jn_collect(c, v, BL_JN_LIST, &items));
    if (items.l->n != n) {
        return BL_JN_FAIL(c, "cannot unpack %zu values into %u names", items.l->n, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        BL_TRY(bl_jn_assign(c, target->seq.items.v[i], act, items.l->v[i]));
    }
    return BL_OK;
}

bl_code bl_jn_assign(bl_jn_ctx *c, const bl_jn_node *target, bl_jn_act *act, bl_jn_val v) {
    if (target->kind == BL_JN_N_TUPLE) {
        return assign_tuple(c, target, act, v);
    }
    bl_jn_val *slot = slot_at(act, target->name.place);
    if (target->kind == BL_JN_N_NAME) {
        *slot = v;
        return BL_OK;
    }
    if (slot->t != BL_JN_NS) {
        return BL_JN_FAIL(c, "cannot assign attribute on non-namespace object");
    }
    return bl_jn_dict_set(c, slot->d, bl_jn_strval(target->name.attr), v);
}

/* jinja2 checks all a.b targets before it evaluates the value. */
static bl_code check_ns_targets(bl_jn_ctx *c, const bl_jn_node *target, bl_jn_act *act) {
    if (target->kind == BL_JN_N_NSREF && slot_at(act, target->name.place)->t != BL_JN_NS) {
        return BL_JN_FAIL(c, "cannot assign attribute on non-namespace object");
    }
    for (uint32_t i = 0; target->kind == BL_JN_N_TUPLE && i < target->seq.items.n; i++) {
        BL_TRY(check_ns_targets(c, target->seq.items.v[i], act));
    }
    return BL_OK;
}

static bl_code exec_set(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    bl_jn_val v;
    BL_TRY(check_ns_targets(c, n->set.target, act));
    BL_TRY(bl_jn_eval(c, n->set.value, act, &v));
    c->line = n->line;
    return bl_jn_assign(c, n->set.target, act, v);
}

/* ---- capturing ---- */

/* Runs body with its output going to *sb. */
static bl_code capture(bl_jn_ctx *c, const bl_jn_nodes *body, bl_jn_act *act, bl_jn_sb *sb) {
    bl_jn_sb *outer = c->out;
    bl_jn_sb_init(sb);
    c->out = sb;
    bl_code rc = bl_jn_exec(c, body, act);
    c->out = outer;
    return rc;
}

/* The filters of a block, over the text in *sb. */
static bl_code filter_captured(bl_jn_ctx *c, const bl_jn_node *filter, bl_jn_act *act, bl_jn_sb *sb,
                               bl_jn_val *ret) {
    if (!filter) {
        return bl_jn_sb_done(c, sb, ret);
    }
    bl_jn_sb *outer = c->out;
    c->out = sb;
    bl_code rc = bl_jn_eval(c, filter, act, ret);
    c->out = outer;
    return rc;
}

/* SET_BLOCK and FILTER_BLOCK. A break or continue inside drops the text, as in Python's generated code. */
static bl_code exec_captured(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    const bl_jn_scope_node *s = n->scope;
    bl_jn_sb sb;
    bl_jn_val v;
    BL_TRY(bl_jn_enter_frame(c, &s->frame, act));
    BL_TRY(capture(c, &s->body, act, &sb));
    if (c->flow != BL_JN_FLOW_NEXT) {
        return BL_OK;
    }
    BL_TRY(filter_captured(c, s->filter, act, &sb, &v));
    c->line = n->line;
    if (n->kind == BL_JN_N_SET_BLOCK) {
        BL_TRY(bl_jn_assign(c, s->target, act, v));
    } else {
        BL_TRY(bl_jn_sb_print(c, c->out, v));
    }
    bl_jn_leave_frame(&s->frame, act);
    return BL_OK;
}

static bl_code exec_with(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    const bl_jn_scope_node *s = n->scope;
    BL_TRY(bl_jn_enter_frame(c, &s->frame, act));
    for (uint32_t i = 0; i < s->targets.n; i++) {
        bl_jn_val v;
        BL_TRY(bl_jn_eval(c, s->values.v[i], act, &v));
        BL_TRY(bl_jn_assign(c, s->targets.v[i], act, v));
    }
    BL_TRY(bl_jn_exec(c, &s->body, act));
    if (c->flow == BL_JN_FLOW_NEXT) {
        bl_jn_leave_frame(&s->frame, act);
    }
    return BL_OK;
}

/* ---- loops ---- */

static bl_code peek(bl_jn_ctx *c, bl_jn_loop *l) {
    if (!l->after_known) {
        bool got;
        BL_TRY(bl_jn_next(c, l->it, &l->after, &got));
        if (!got) {
            l->after = bl_jn_missing();
        }
        l->after_known = true;
    }
    return BL_OK;
}

bl_code bl_jn_loop_next(bl_jn_ctx *c, bl_jn_loop *l, bl_jn_val *ret, bool *ret_got) {
    if (l->after_known) {
        *ret_got = l->after.t != BL_JN_MISSING;
        *ret = l->after;
        l->after_known = !*ret_got; /* at the end it stays known */
    } else {
        BL_TRY(bl_jn_next(c, l->it, ret, ret_got));
    }
    if (*ret_got) {
        l->index0++;
        l->before = l->cur;
        l->cur = *ret;
    }
    return BL_OK;
}

bl_code bl_jn_loop_length(bl_jn_ctx *c, bl_jn_loop *l, int64_t *ret) {
    if (l->length < 0) {
        bool has = false;
        int64_t n = 0;
        if (l->base.t != BL_JN_MISSING) {
            BL_TRY(bl_jn_len(c, l->base, &n, &has));
        }
        if (!has) { /* a generator: run it to its end */
            bl_jn_val rest;
            BL_TRY(bl_jn_collect(c, (bl_jn_val){.t = BL_JN_ITER, .it = l->it}, BL_JN_LIST, &rest));
            BL_TRY(bl_jn_iterate(c, rest, &l->it));
            n = (int64_t)rest.l->n + l->index0 + 1 + (l->after_known && l->after.t != BL_JN_MISSING ? 1 : 0);
        }
        l->length = n;
    }
    *ret = l->length;
    return BL_OK;
}

static bl_code loop_cycle(bl_jn_ctx *c, bl_jn_val self, const bl_jn_args *a, bl_jn_val *ret) {
    if (a->n_pos == 0 || a->n_kw > 0) {
        return BL_JN_FAIL(c, "no items for cycling given");
    }
    *ret = a->pos[(size_t)self.loop->index0 % a->n_pos];
    return BL_OK;
}

static bl_code loop_changed(bl_jn_ctx *c, bl_jn_val self, const bl_jn_args *a, bl_jn_val *ret) {
    bl_jn_val now;
    bool same = false;
    BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, a->n_pos, &now));
    if (a->n_pos > 0) {
        memcpy(now.l->v, a->pos, a->n_pos * sizeof *a->pos);
    }
    if (self.loop->changed.t == BL_JN_TUPLE) {
        BL_TRY(bl_jn_eq(c, self.loop->changed, now, &same));
    }
    self.loop->changed = now;
    *ret = bl_jn_bool(!same);
    return BL_OK;
}

static bl_code loop_method(bl_jn_ctx *c, bl_jn_loop *l, const bl_jn_method_def *def, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_bound), &m));
    bl_jn_bound *b = m;
    *b = (bl_jn_bound){.self = {.t = BL_JN_LOOP, .loop = l}, .def = def};
    *ret = (bl_jn_val){.t = BL_JN_METHOD, .bound = b};
    return BL_OK;
}

static bl_code loop_neighbour(bl_jn_ctx *c, bl_jn_loop *l, bool next, bl_jn_val *ret) {
    if (next) {
        BL_TRY(peek(c, l));
    }
    *ret = next ? l->after : l->before;
    if (next ? ret->t == BL_JN_MISSING : l->index0 == 0) {
        return bl_jn_new_undef(c, BL_JN_UNDEF_HINT, NULL, NULL,
                               next ? "there is no next item" : "there is no previous item", ret);
    }
    return BL_OK;
}

bl_code bl_jn_loop_attr(bl_jn_ctx *c, bl_jn_loop *l, const bl_jn_str *name, bl_jn_val *ret, bool *ret_got) {
    static const bl_jn_method_def cycle = {"cycle", NULL, loop_cycle, "", 0, false};
    static const bl_jn_method_def changed = {"changed", NULL, loop_changed, "", 0, false};
    int64_t n;
    *ret_got = true;
    if (bl_jn_str_is(name, "index0") || bl_jn_str_is(name, "index")) {
        *ret = bl_jn_int(l->index0 + (name->n == 5 ? 1 : 0));
    } else if (bl_jn_str_is(name, "first")) {
        *ret = bl_jn_bool(l->index0 == 0);
    } else if (bl_jn_str_is(name, "last")) {
        BL_TRY(peek(c, l));
        *ret = bl_jn_bool(l->after.t == BL_JN_MISSING);
    } else if (bl_jn_str_is(name, "length")) {
        BL_TRY(bl_jn_loop_length(c, l, &n));
        *ret = bl_jn_int(n);
    } else if (bl_jn_str_is(name, "revindex") || bl_jn_str_is(name, "revindex0")) {
        BL_TRY(bl_jn_loop_length(c, l, &n));
        *ret = bl_jn_int(n - l->index0 - (name->n == 9 ? 1 : 0));
    } else if (bl_jn_str_is(name, "previtem") || bl_jn_str_is(name, "nextitem")) {
        return loop_neighbour(c, l, name->p[0] == 'n', ret);
    } else if (bl_jn_str_is(name, "depth") || bl_jn_str_is(name, "depth0")) {
        *ret = bl_jn_int(name->n == 5 ? 1 : 0);
    } else if (bl_jn_str_is(name, "cycle") || bl_jn_str_is(name, "changed")) {
        return loop_method(c, l, name->n == 5 ? &cycle : &changed, ret);
    } else {
        *ret_got = false;
    }
    return BL_OK;
}

/* The generator behind "for x in y if test": its names live in an activation of its own. */
typedef struct {
    const bl_jn_for *f;
    bl_jn_act *act;
    bool entered;
} filter_state;

/* The target read back as a value: what the generator yields. */
static bl_code read_target(bl_jn_ctx *c, const bl_jn_node *t, bl_jn_act *act, bl_jn_val *ret) {
    if (t->kind == BL_JN_N_NAME) {
        *ret = *slot_at(act, t->name.place);
        return BL_OK;
    }
    BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, t->seq.items.n, ret));
    for (uint32_t i = 0; i < t->seq.items.n; i++) {
        BL_TRY(read_target(c, t->seq.items.v[i], act, &ret->l->v[i]));
    }
    return BL_OK;
}

static bl_code filter_next(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) {
    filter_state *s = it->state;
    if (!s->entered) {
        s->entered = true;
        BL_TRY(bl_jn_enter_frame(c, &s->f->test_frame, s->act));
    }
    for (;;) {
        bl_jn_val v, yes;
        BL_TRY(bl_jn_next(c, it->src, &v, ret_got));
        if (!*ret_got) {
            return BL_OK;
        }
        BL_TRY(bl_jn_assign(c, s->f->test_target, s->act, v));
        BL_TRY(bl_jn_eval(c, s->f->test, s->act, &yes));
        if (bl_jn_truth(yes)) {
            return read_target(c, s->f->test_target, s->act, ret);
        }
    }
}

static bl_code new_filter_gen(bl_jn_ctx *c, const bl_jn_for *f, bl_jn_act *act, bl_jn_iter *src,
                              bl_jn_iter **ret) {
    void *m;
    bl_jn_val gen;
    BL_TRY(bl_jn_alloc(c, sizeof(filter_state), &m));
    filter_state *s = m;
    s->f = f;
    BL_TRY(bl_jn_new_act(c, f->test_slots, act, &s->act));
    BL_TRY(bl_jn_new_gen(c, src, filter_next, s, &gen));
    *ret = gen.it;
    return BL_OK;
}

static bl_code new_loop(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val base, bl_jn_loop **ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_loop), &m));
    *ret = m;
    **ret = (bl_jn_loop){.it = it, .base = base, .index0 = -1, .length = -1};
    return BL_OK;
}

static bl_code loop_body(bl_jn_ctx *c, const bl_jn_for *f, bl_jn_act *act, bl_jn_loop *l, bool *ret_any) {
    for (;;) {
        bl_jn_val v;
        bool got;
        BL_TRY(bl_jn_loop_next(c, l, &v, &got));
        if (!got) {
            return BL_OK;
        }
        BL_TRY(bl_jn_assign(c, f->target, act, v));
        if (f->has_loop) {
            *slot_at(act, f->loop) = (bl_jn_val){.t = BL_JN_LOOP, .loop = l};
        }
        BL_TRY(bl_jn_enter_frame(c, &f->frame, act));
        BL_TRY(bl_jn_exec(c, &f->body, act));
        bl_jn_flow flow = c->flow;
        c->flow = BL_JN_FLOW_NEXT;
        /* jinja2 notes "not empty" at the end of a body: break and continue in the first pass leave it empty
         */
        *ret_any = *ret_any || flow == BL_JN_FLOW_NEXT;
        if (flow == BL_JN_FLOW_BREAK) {
            return BL_OK;
        }
    }
}

static bl_code exec_for(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    const bl_jn_for *f = n->loop;
    bl_jn_val base;
    bl_jn_iter *it;
    bl_jn_loop *l;
    bool any = false;
    BL_TRY(bl_jn_eval(c, f->iter, act, &base));
    c->line = n->line;
    BL_TRY(bl_jn_iterate(c, base, &it));
    if (f->test) {
        BL_TRY(new_filter_gen(c, f, act, it, &it));
        base = bl_jn_missing();
    }
    BL_TRY(new_loop(c, it, base, &l));
    BL_TRY(loop_body(c, f, act, l, &any));
    bl_jn_leave_frame(&f->frame, act);
    if (f->els.n > 0 && !any) {
        BL_TRY(bl_jn_enter_frame(c, &f->else_frame, act));
        BL_TRY(bl_jn_exec(c, &f->els, act));
        bl_jn_leave_frame(&f->else_frame, act);
    }
    return BL_OK;
}

/* ---- macros ---- */

static bl_code new_macro(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) {
    void *m;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_macro), &m));
    bl_jn_macro *macro = m;
    *macro = (bl_jn_macro){.node = n, .env = act};
    *ret = (bl_jn_val){.t = BL_JN_MACRO, .m = macro};
    return BL_OK;
}

static const bl_jn_val *take_kw(const bl_jn_args *a, bool *used, const bl_jn_str *name, const char *lit) {
    for (size_t i = 0; i < a->n_kw; i++) {
        if (!used[i] && (name ? bl_jn_str_eq(a->kw[i].name, name) : bl_jn_str_is(a->kw[i].name, lit))) {
            used[i] = true;
            return &a->kw[i].v;
        }
    }
    return NULL;
}

/* What is left of the keywords: into kwargs, or an error. */
static bl_code rest_of_keywords(bl_jn_ctx *c, const bl_jn_macro_node *m, const bl_jn_args *a,
                                const bool *used, bl_jn_act *act) {
    bl_jn_val rest;
    BL_TRY(bl_jn_new_dict(c, 0, BL_JN_DICT, &rest));
    for (size_t i = 0; i < a->n_kw; i++) {
        if (used[i]) {
            continue;
        }
        if (!m->has_kwargs) {
            return BL_JN_FAIL(c, "macro takes no keyword argument '%.*s'",
                              (int)BL_MIN(a->kw[i].name->n, (size_t)60), a->kw[i].name->p);
        }
        BL_TRY(bl_jn_dict_set(c, rest.d, bl_jn_strval(a->kw[i].name), a->kw[i].v));
    }
    if (m->has_kwargs) {
        act->slots[m->kwargs_slot] = rest;
    }
    return BL_OK;
}

static bl_code rest_of_positional(bl_jn_ctx *c, const bl_jn_macro_node *m, const bl_jn_args *a,
                                  bl_jn_act *act) {
    size_t extra = a->n_pos > m->args.n ? a->n_pos - m->args.n : 0;
    if (extra > 0 && !m->has_varargs) {
        return BL_JN_FAIL(c, "macro takes not more than %u argument(s), %zu given", m->args.n, a->n_pos);
    }
    if (m->has_varargs) {
        bl_jn_val rest;
        BL_TRY(bl_jn_new_list(c, BL_JN_TUPLE, extra, &rest));
        if (extra > 0) {
            memcpy(rest.l->v, a->pos + m->args.n, extra * sizeof *a->pos);
        }
        act->slots[m->varargs_slot] = rest;
    }
    return BL_OK;
}

/* jinja2's Macro.__call__. */
static bl_code bind_macro(bl_jn_ctx *c, const bl_jn_macro_node *m, const bl_jn_args *a, bl_jn_act *act) {
    void *mem;
    BL_TRY(bl_jn_alloc_array(c, a->n_kw + 1, sizeof(bool), &mem));
    bool *used = mem;
    bool found_caller = a->n_pos >= m->args.n && m->explicit_caller;
    for (uint32_t i = 0; i < m->args.n; i++) {
        bl_jn_val v = bl_jn_missing();
        if (i < a->n_pos) {
            v = a->pos[i];
        } else {
            const bl_jn_val *kw = take_kw(a, used, m->args.v[i]->name.name, NULL);
            v = kw ? *kw : v;
            found_caller = found_caller || bl_jn_str_is(m->args.v[i]->name.name, "caller");
        }
        BL_TRY(bl_jn_assign(c, m->args.v[i], act, v));
    }
    if (m->has_caller && !found_caller) {
        const bl_jn_val *kw = take_kw(a, used, NULL, "caller");
        if (kw && kw->t != BL_JN_NONE) {
            act->slots[m->caller_slot] = *kw;
        } else {
            BL_TRY(bl_jn_new_undef(c, BL_JN_UNDEF_HINT, NULL, NULL, "No caller defined",
                                   &act->slots[m->caller_slot]));
        }
    }
    BL_TRY(rest_of_keywords(c, m, a, used, act));
    return rest_of_positional(c, m, a, act);
}

static bl_code macro_defaults(bl_jn_ctx *c, const bl_jn_macro_node *m, bl_jn_act *act) {
    for (uint32_t i = 0; i < m->args.n; i++) {
        const bl_jn_node *arg = m->args.v[i];
        bl_jn_val *slot = slot_at(act, arg->name.place);
        if (slot->t != BL_JN_MISSING) {
            continue;
        }
        if (i + m->defaults.n < m->args.n) {
            BL_TRY(bl_jn_new_undef(c, BL_JN_UNDEF_HINT, NULL, arg->name.name, "a parameter was not provided",
                                   slot));
        } else {
            bl_jn_val v;
            BL_TRY(bl_jn_eval(c, m->defaults.v[i + m->defaults.n - m->args.n], act, &v));
            *slot_at(act, arg->name.place) = v;
        }
    }
    return BL_OK;
}

static bl_code run_macro(bl_jn_ctx *c, const bl_jn_macro *macro, const bl_jn_args *a, bl_jn_val *ret) {
    const bl_jn_macro_node *m = macro->node->macro;
    bl_jn_act *act;
    bl_jn_sb sb;
    BL_TRY(bl_jn_new_act(c, m->n_slots, macro->env, &act));
    BL_TRY(bind_macro(c, m, a, act));
    BL_TRY(bl_jn_enter_frame(c, &m->frame, act));
    BL_TRY(macro_defaults(c, m, act));
    BL_TRY(capture(c, &m->body, act, &sb));
    return bl_jn_sb_done(c, &sb, ret);
}

bl_code bl_jn_call_macro(bl_jn_ctx *c, const bl_jn_macro *macro, const bl_jn_args *a, bl_jn_val *ret) {
    BL_TRY(bl_jn_enter(c));
    bl_code rc = run_macro(c, macro, a, ret);
    bl_jn_leave(c);
    return rc;
}

static bl_code exec_call_block(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    const bl_jn_node *call = n->macro->call;
    bl_jn_val caller, fn, v;
    bl_jn_args a = {0};
    BL_TRY(new_macro(c, n, act, &caller));
    if (!call) { /* generation: the body itself */
        BL_TRY(bl_jn_call_macro(c, caller.m, &a, &v));
        return bl_jn_sb_print(c, c->out, v);
    }
    BL_TRY(bl_jn_eval(c, call->call.a, act, &fn));
    BL_TRY(bl_jn_eval_args(c, &call->call.args, act, &a));
    void *m;
    bl_jn_val name;
    BL_TRY(bl_jn_alloc_array(c, a.n_kw + 1, sizeof(bl_jn_kwarg), &m));
    BL_TRY(bl_jn_new_cstr(c, "caller", &name));
    bl_jn_kwarg *kw = m;
    if (a.n_kw > 0) {
        memcpy(kw, a.kw, a.n_kw * sizeof *kw);
    }
    kw[a.n_kw] = (bl_jn_kwarg){.name = name.s, .v = caller};
    a.kw = kw;
    a.n_kw++;
    c->line = n->line;
    BL_TRY(bl_jn_call(c, fn, &a, &v));
    return bl_jn_sb_print(c, c->out, v);
}

/* ---- dispatch ---- */

static bl_code exec_if(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    bl_jn_val v;
    BL_TRY(bl_jn_eval(c, n->cond.test, act, &v));
    if (bl_jn_truth(v)) {
        return bl_jn_exec(c, &n->cond.body, act);
    }
    for (uint32_t i = 0; i < n->cond.elifs.n; i++) {
        const bl_jn_node *e = n->cond.elifs.v[i];
        BL_TRY(bl_jn_eval(c, e->cond.test, act, &v));
        if (bl_jn_truth(v)) {
            return bl_jn_exec(c, &e->cond.body, act);
        }
    }
    return bl_jn_exec(c, &n->cond.els, act);
}

static bl_code exec_one(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act) {
    bl_jn_val v;
    switch (n->kind) {
    case BL_JN_N_DATA:
        return bl_jn_sb_add_str(c, c->out, n->konst.s);
    case BL_JN_N_PRINT:
        BL_TRY(bl_jn_eval(c, n->un.a, act, &v));
        return bl_jn_sb_print(c, c->out, v);
    case BL_JN_N_IF:
        return exec_if(c, n, act);
    case BL_JN_N_FOR:
        return exec_for(c, n, act);
    case BL_JN_N_SET:
        return exec_set(c, n, act);
    case BL_JN_N_SET_BLOCK:
    case BL_JN_N_FILTER_BLOCK:
        return exec_captured(c, n, act);
    case BL_JN_N_WITH:
        return exec_with(c, n, act);
    case BL_JN_N_MACRO:
        BL_TRY(new_macro(c, n, act, &v));
        return bl_jn_assign(c, n->macro->target, act, v);
    case BL_JN_N_CALL_BLOCK:
        return exec_call_block(c, n, act);
    case BL_JN_N_BREAK:
    case BL_JN_N_CONTINUE:
        c->flow = n->kind == BL_JN_N_BREAK ? BL_JN_FLOW_BREAK : BL_JN_FLOW_CONTINUE;
        return BL_OK;
    default:
        BL_FAIL(c->err, BL_EINTERNAL, "chat template line %u: node %d is no statement", n->line,
                (int)n->kind);
    }
}

bl_code bl_jn_exec(bl_jn_ctx *c, const bl_jn_nodes *body, bl_jn_act *act) {
    if (body->n == 0) {
        return BL_OK;
    }
    BL_TRY(bl_jn_enter(c));
    for (uint32_t i = 0; i < body->n && c->flow == BL_JN_FLOW_NEXT; i++) {
        c->line = body->v[i]->line;
        BL_TRY(bl_jn_charge(c, 0));
        BL_TRY(exec_one(c, body->v[i], act));
    }
    bl_jn_leave(c);
    return BL_OK;
}
