/* From a drawing to a packed automaton: subset construction rule by rule (calls of rules are symbols like
 * bytes), then what can never end is taken out, so that a reader who follows the automaton never gets stuck.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "grammar/internal.h"
#include "grammar/limits.h"

#define NO_NEED UINT8_MAX

static_assert(BL_GRAMMAR_MAX_DEPTH < NO_NEED, "need is one byte");
static_assert(BL_GRAMMAR_CACHE_KEY == BL_COUNTOF(((bl_gcached *)0)->key), "one limit");

/* A growing array of one type. */
typedef struct {
    void *p;
    uint32_t n, cap;
} list;

typedef struct {
    uint32_t off, n; /* members in sets */
    uint64_t hash;
} set;

typedef struct {
    bl_nfa *a;
    bl_err *err;
    bl_grammar *g;
    list nodes, calls, table, sets, members; /* bl_gnode, bl_gcall, uint32_t, set (of node i), uint32_t */
    uint32_t *slots;                         /* hash table of this rule's sets: node, 0: empty */
    uint32_t n_slots;
    uint32_t *mark, stamp; /* [n_nfa]: visited when equal to stamp */
    uint32_t *work;        /* [n_nfa + 1] */
    uint32_t *rule_start;  /* [n_rules] */
    uint32_t first;        /* first node of this rule */
} build;

static bl_code grow(build *b, list *l, uint32_t more, size_t size, uint32_t max, const char *what) {
    if ((uint64_t)l->n + more > max) {
        BL_FAIL(b->err, BL_ELIMIT, "the grammar needs more than %u %s", max, what);
    }
    if (l->n + more > l->cap) {
        uint32_t cap = BL_MAX(BL_MAX(l->cap * 2, l->n + more), 256u);
        void *p = bl_realloc(l->p, cap * size);
        if (!p) {
            BL_FAIL(b->err, BL_ENOMEM, "out of memory for a grammar");
        }
        l->p = p;
        l->cap = cap;
    }
    return BL_OK;
}

static bl_code count_steps(build *b, uint64_t n) {
    b->a->n_steps += n;
    if (b->a->n_steps > BL_GRAMMAR_MAX_STEPS) {
        BL_FAIL(b->err, BL_ELIMIT, "the grammar takes more than %u steps to compile", BL_GRAMMAR_MAX_STEPS);
    }
    return BL_OK;
}

/* Bytes that no edge tells apart share a class. */
static void find_classes(build *b) {
    bool begins[257] = {0};
    for (uint32_t e = 1; e < b->a->n_edges; e++) {
        if (b->a->edges[e].kind == BL_NFA_RANGE) {
            begins[b->a->edges[e].lo] = true;
            begins[b->a->edges[e].hi + 1] = true;
        }
    }
    uint32_t c = 0;
    for (uint32_t i = 0; i < 256; i++) {
        c += i > 0 && begins[i];
        b->g->cls[i] = (uint8_t)c;
    }
    b->g->n_classes = c + 1;
}

/* ---- sets -------------------------------------------------------------------------------------------- */

/* work[0..n) and what they reach by nothing; kept are nodes with an edge that is something, and rule ends. In
 * ascending order, so that equal sets look equal. */
static bl_code close_set(build *b, uint32_t n, uint32_t end, uint32_t *ret_n) {
    uint32_t kept = 0, all = n;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < all; i++) {
        for (uint32_t e = b->a->first[b->work[i]]; e != 0; e = b->a->edges[e].next) {
            uint32_t to = b->a->edges[e].to;
            steps++;
            if (b->a->edges[e].kind == BL_NFA_EMPTY && b->mark[to] != b->stamp) {
                b->mark[to] = b->stamp;
                b->work[all++] = to;
            }
        }
    }
    for (uint32_t i = 0; i < all; i++) {
        bool keep = b->work[i] == end;
        for (uint32_t e = b->a->first[b->work[i]]; e != 0 && !keep; e = b->a->edges[e].next) {
            keep = b->a->edges[e].kind != BL_NFA_EMPTY;
        }
        if (keep) {
            b->work[kept++] = b->work[i];
        }
    }
    for (uint32_t gap = kept / 2; gap > 0; gap /= 2) { /* shell sort: no worst case that matters below 1e5 */
        for (uint32_t i = gap; i < kept; i++) {
            uint32_t x = b->work[i], k = i;
            for (; k >= gap && b->work[k - gap] > x; k -= gap) {
                b->work[k] = b->work[k - gap];
                steps++;
            }
            b->work[k] = x;
        }
    }
    *ret_n = kept;
    return count_steps(b, steps + all);
}

static const set *set_of(const build *b, uint32_t node) {
    return (const set *)b->sets.p + node;
}

static const uint32_t *members_of(const build *b, uint32_t node) {
    return (const uint32_t *)b->members.p + set_of(b, node)->off;
}

static bl_code add_node(build *b, uint32_t n, uint64_t hash, uint32_t *ret) {
    BL_TRY(grow(b, &b->nodes, 1, sizeof(bl_gnode), BL_GRAMMAR_MAX_NODES, "nodes"));
    BL_TRY(grow(b, &b->sets, 1, sizeof(set), BL_GRAMMAR_MAX_NODES, "nodes"));
    BL_TRY(grow(b, &b->members, n, sizeof(uint32_t), BL_GRAMMAR_MAX_SETS, "members of sets of nodes"));
    ((set *)b->sets.p)[b->sets.n++] = (set){b->members.n, n, hash};
    if (n > 0) {
        memcpy((uint32_t *)b->members.p + b->members.n, b->work, n * sizeof *b->work);
    }
    b->members.n += n;
    ((bl_gnode *)b->nodes.p)[b->nodes.n] = (bl_gnode){0};
    *ret = b->nodes.n++;
    return BL_OK;
}

static bl_code grow_slots(build *b) {
    uint32_t n = BL_MAX(b->n_slots * 2, 1024u);
    uint32_t *slots = bl_alloc_array(n, sizeof *slots);
    if (!slots) {
        BL_FAIL(b->err, BL_ENOMEM, "out of memory for a grammar");
    }
    for (uint32_t i = b->first; i < b->nodes.n; i++) {
        uint32_t at = (uint32_t)set_of(b, i)->hash & (n - 1);
        while (slots[at] != 0) {
            at = (at + 1) & (n - 1);
        }
        slots[at] = i;
    }
    bl_free(b->slots);
    b->slots = slots;
    b->n_slots = n;
    return BL_OK;
}

/* The node of the set that work[0..n) closes to; 0 when it is empty. */
static bl_code intern(build *b, uint32_t n, uint32_t end, uint32_t *ret) {
    BL_TRY(close_set(b, n, end, &n));
    if (n == 0) {
        *ret = 0;
        return BL_OK;
    }
    uint64_t hash = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ b->work[i]) * 0x9E3779B97F4A7C15u;
    }
    hash ^= hash >> 29;
    if (2 * (b->nodes.n - b->first) >= b->n_slots) {
        BL_TRY(grow_slots(b));
    }
    uint32_t at = (uint32_t)hash & (b->n_slots - 1);
    for (; b->slots[at] != 0; at = (at + 1) & (b->n_slots - 1)) {
        const set *s = set_of(b, b->slots[at]);
        if (s->hash == hash && s->n == n &&
            memcmp(members_of(b, b->slots[at]), b->work, n * sizeof *b->work) == 0) {
            *ret = b->slots[at];
            return BL_OK;
        }
    }
    BL_TRY(add_node(b, n, hash, ret));
    b->slots[at] = *ret;
    return BL_OK;
}

static void next_stamp(build *b) {
    b->stamp++; /* at most one per step, and steps are fewer than 2^32 */
}

/* ---- edges of a node --------------------------------------------------------------------------------- */

/* Targets of `node` for byte c into work. */
static uint32_t targets(build *b, uint32_t node, uint32_t c) {
    uint32_t n = 0;
    const uint32_t *m = members_of(b, node);
    for (uint32_t i = 0; i < set_of(b, node)->n; i++) {
        for (uint32_t e = b->a->first[m[i]]; e != 0; e = b->a->edges[e].next) {
            const bl_nfa_edge *x = &b->a->edges[e];
            if (x->kind == BL_NFA_RANGE && x->lo <= c && c <= x->hi && b->mark[x->to] != b->stamp) {
                b->mark[x->to] = b->stamp;
                b->work[n++] = x->to;
            }
        }
    }
    return n;
}

static bl_code add_row(build *b, uint32_t node, uint32_t end) {
    bool begins[257] = {0}, any = false;
    uint64_t n_edges = 0;
    for (uint32_t i = 0; i < set_of(b, node)->n; i++) {
        for (uint32_t e = b->a->first[members_of(b, node)[i]]; e != 0; e = b->a->edges[e].next) {
            const bl_nfa_edge *x = &b->a->edges[e];
            n_edges++;
            if (x->kind == BL_NFA_RANGE) {
                begins[x->lo] = begins[x->hi + 1] = any = true;
            }
        }
    }
    if (!any) {
        return BL_OK;
    }
    uint32_t row = b->table.n, k = b->g->n_classes;
    BL_TRY(grow(b, &b->table, k, sizeof(uint32_t), BL_GRAMMAR_MAX_TABLE, "transitions"));
    b->table.n += k;
    memset((uint32_t *)b->table.p + row, 0, k * sizeof(uint32_t));
    uint32_t to = 0;
    for (uint32_t c = 0; c < 256; c++) {
        if (begins[c]) {
            next_stamp(b);
            BL_TRY(count_steps(b, n_edges));
            BL_TRY(intern(b, targets(b, node, c), end, &to));
        }
        ((uint32_t *)b->table.p)[row + b->g->cls[c]] = to;
    }
    ((bl_gnode *)b->nodes.p)[node].row = row;
    return BL_OK;
}

/* Calls of one rule from several members become one, to the union of where they go on. Until all rules are
 * there, start holds the rule's number. */
static bl_code add_calls(build *b, uint32_t node, uint32_t end) {
    uint32_t first = b->calls.n;
    for (uint32_t i = 0; i < set_of(b, node)->n; i++) {
        for (uint32_t e = b->a->first[members_of(b, node)[i]]; e != 0; e = b->a->edges[e].next) {
            bool known = b->a->edges[e].kind != BL_NFA_CALL;
            uint32_t rule = b->a->edges[e].rule;
            BL_TRY(count_steps(b, 1 + (known ? 0 : b->calls.n - first)));
            for (uint32_t k = first; k < b->calls.n && !known; k++) {
                known = ((bl_gcall *)b->calls.p)[k].start == rule;
            }
            if (!known) {
                BL_TRY(grow(b, &b->calls, 1, sizeof(bl_gcall), BL_GRAMMAR_MAX_NODES, "calls of rules"));
                ((bl_gcall *)b->calls.p)[b->calls.n++] = (bl_gcall){.start = rule};
            }
        }
    }
    if (b->calls.n - first > UINT16_MAX) {
        BL_FAIL(b->err, BL_ELIMIT, "the grammar has %u alternatives in one place, at most %u are allowed",
                b->calls.n - first, UINT16_MAX);
    }
    for (uint32_t k = first; k < b->calls.n; k++) {
        uint32_t n = 0, back = 0, rule = ((bl_gcall *)b->calls.p)[k].start;
        next_stamp(b);
        for (uint32_t i = 0; i < set_of(b, node)->n; i++) {
            for (uint32_t e = b->a->first[members_of(b, node)[i]]; e != 0; e = b->a->edges[e].next) {
                const bl_nfa_edge *x = &b->a->edges[e];
                BL_TRY(count_steps(b, 1));
                if (x->kind == BL_NFA_CALL && x->rule == rule && b->mark[x->to] != b->stamp) {
                    b->mark[x->to] = b->stamp;
                    b->work[n++] = x->to;
                }
            }
        }
        BL_TRY(intern(b, n, end, &back));
        ((bl_gcall *)b->calls.p)[k].back = back;
    }
    bl_gnode *x = (bl_gnode *)b->nodes.p + node;
    x->calls = first;
    x->n_calls = (uint16_t)(b->calls.n - first);
    return BL_OK;
}

static bl_code build_rule(build *b, uint32_t rule) {
    const bl_nfa_rule r = b->a->rules[rule];
    b->first = b->nodes.n;
    if (b->slots) {
        memset(b->slots, 0, b->n_slots * sizeof *b->slots);
    }
    next_stamp(b);
    b->mark[r.start] = b->stamp;
    b->work[0] = r.start;
    BL_TRY(intern(b, 1, r.end, &b->rule_start[rule]));
    for (uint32_t node = b->first; node < b->nodes.n; node++) {
        BL_TRY(add_row(b, node, r.end));
        BL_TRY(add_calls(b, node, r.end));
        const uint32_t *m = members_of(b, node);
        bl_gnode *x = (bl_gnode *)b->nodes.p + node;
        for (uint32_t i = 0; i < set_of(b, node)->n; i++) {
            x->end = x->end || m[i] == r.end;
        }
        x->plain = !x->end && x->n_calls == 0;
    }
    return BL_OK;
}

/* ---- what can end ------------------------------------------------------------------------------------ */

static uint8_t call_need(const bl_grammar *g, const bl_gcall *c) {
    uint8_t inner = g->nodes[c->start].need, behind = g->nodes[c->back].need;
    return inner == NO_NEED || behind == NO_NEED ? NO_NEED : (uint8_t)BL_MAX(inner + 1, behind);
}

/* need of every node: the fewest frames with which the end of its rule can be reached; NO_NEED when it cannot
 * at all, or not within the depth that a state has. */
static bl_code find_needs(build *b) {
    bl_grammar *g = b->g;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        g->nodes[i].need = g->nodes[i].end ? 0 : NO_NEED;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = g->n_nodes; i-- > 1;) {
            bl_gnode *x = &g->nodes[i];
            uint8_t need = x->need;
            for (uint32_t c = 0; c < g->n_classes && x->row > 0 && need > 0; c++) {
                need = BL_MIN(need, g->nodes[g->table[x->row + c]].need);
            }
            for (uint32_t k = 0; k < x->n_calls && need > 0; k++) {
                need = BL_MIN(need, call_need(g, &g->calls[x->calls + k]));
            }
            need = need > BL_GRAMMAR_MAX_DEPTH ? NO_NEED : need;
            changed = changed || need != x->need;
            x->need = need;
            BL_TRY(count_steps(b, 1 + g->n_classes / 8));
        }
    }
    return BL_OK;
}

/* Takes out every edge that leads nowhere. */
static void prune(bl_grammar *g) {
    for (uint32_t i = 0; i < g->n_table; i++) {
        g->table[i] = g->nodes[g->table[i]].need == NO_NEED ? 0 : g->table[i];
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint16_t kept = 0;
        bl_gnode *x = &g->nodes[i];
        for (uint32_t k = 0; k < x->n_calls; k++) {
            if (call_need(g, &g->calls[x->calls + k]) != NO_NEED) {
                g->calls[x->calls + kept++] = g->calls[x->calls + k];
            }
        }
        x->n_calls = kept;
        x->plain = !x->end && kept == 0;
    }
}

/* A rule that can call itself before any byte would be entered for ever. Rules are identified by their start
 * nodes; reach[] marks nodes that can be met without a byte. */
typedef struct {
    build *b;
    bool *nullable; /* [n_nodes] */
    uint8_t *color; /* [n_nodes] of start nodes: 0 new, 1 under way, 2 done */
} left_check;

static bl_code find_nullable(left_check *l) {
    const bl_grammar *g = l->b->g;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 1; i < g->n_nodes; i++) {
            const bl_gnode *x = &g->nodes[i];
            bool is = l->nullable[i] || x->end;
            for (uint32_t k = 0; k < x->n_calls && !is; k++) {
                const bl_gcall *c = &g->calls[x->calls + k];
                is = l->nullable[c->start] && l->nullable[c->back];
            }
            changed = changed || is != l->nullable[i];
            l->nullable[i] = is;
        }
        BL_TRY(count_steps(l->b, g->n_nodes));
    }
    return BL_OK;
}

static bl_code check_left(left_check *l, uint32_t start, uint32_t depth) {
    const bl_grammar *g = l->b->g;
    if (l->color[start] == 2) {
        return BL_OK;
    }
    if (l->color[start] == 1 || depth > BL_GRAMMAR_MAX_DEPTH) {
        BL_FAIL(l->b->err, BL_ENOTSUP, "a part of the schema refers to itself with nothing in between");
    }
    l->color[start] = 1;
    uint32_t node = start;
    /* along nullable calls; each node has few, and they lead on in one rule */
    uint32_t todo[64], n = 1;
    todo[0] = node;
    for (uint32_t i = 0; i < n; i++) {
        const bl_gnode *x = &g->nodes[todo[i]];
        for (uint32_t k = 0; k < x->n_calls; k++) {
            const bl_gcall *c = &g->calls[x->calls + k];
            BL_TRY(count_steps(l->b, 1));
            BL_TRY(check_left(l, c->start, depth + 1));
            bool known = !l->nullable[c->start];
            for (uint32_t j = 0; j < n && !known; j++) {
                known = todo[j] == c->back;
            }
            if (!known && n < BL_COUNTOF(todo)) {
                todo[n++] = c->back;
            } else if (!known) {
                BL_FAIL(l->b->err, BL_ELIMIT, "more than %zu parts of the schema in a row may be empty",
                        BL_COUNTOF(todo));
            }
        }
    }
    l->color[start] = 2;
    return BL_OK;
}

static bl_code refuse_left_recursion_and_label(build *b) {
    left_check l = {b, bl_alloc(b->g->n_nodes), bl_alloc(b->g->n_nodes)};
    bl_code rc = BL_ENOMEM;
    if (!l.nullable || !l.color) {
        (void)bl_err_set(b->err, BL_ENOMEM, __FILE__, __LINE__, "out of memory for a grammar");
    } else {
        rc = find_nullable(&l);
        for (uint32_t i = 0; i < b->a->n_rules && rc == BL_OK; i++) {
            rc = b->rule_start[i] ? check_left(&l, b->rule_start[i], 0) : BL_OK;
        }
        rc = rc == BL_OK ? bl_grammar_find_levels(b->g, l.nullable, b->err) : rc;
    }
    bl_free(l.nullable);
    bl_free(l.color);
    return rc;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static bl_code build_all(build *b, uint32_t root) {
    bl_grammar *g = b->g;
    uint32_t n = b->a->n_nodes, dead = 0;
    find_classes(b);
    b->mark = bl_alloc_array(n, sizeof *b->mark);
    b->work = bl_alloc_array((size_t)n + 1, sizeof *b->work);
    b->rule_start = bl_alloc_array(b->a->n_rules, sizeof *b->rule_start);
    if (!b->mark || !b->work || !b->rule_start) {
        BL_FAIL(b->err, BL_ENOMEM, "out of memory for a grammar");
    }
    BL_TRY(add_node(b, 0, 0, &dead));
    BL_TRY(grow(b, &b->table, g->n_classes, sizeof(uint32_t), BL_GRAMMAR_MAX_TABLE, "transitions"));
    memset(b->table.p, 0, g->n_classes * sizeof(uint32_t)); /* row 0: of nodes without bytes */
    b->table.n = g->n_classes;
    for (uint32_t i = 0; i < b->a->n_rules; i++) {
        BL_TRY(build_rule(b, i));
    }
    BL_TRY(grow(b, &b->calls, 1, sizeof(bl_gcall), UINT32_MAX, "calls of rules")); /* never NULL */
    for (uint32_t k = 0; k < b->calls.n; k++) {
        bl_gcall *c = (bl_gcall *)b->calls.p + k;
        c->start = b->rule_start[c->start];
    }
    g->nodes = b->nodes.p;
    g->calls = b->calls.p;
    g->table = b->table.p;
    g->n_nodes = b->nodes.n;
    g->n_calls = b->calls.n;
    g->n_table = b->table.n;
    g->start = b->rule_start[root];
    b->nodes.p = b->calls.p = b->table.p = NULL;
    BL_TRY(find_needs(b));
    if (g->nodes[g->start].need == NO_NEED) {
        BL_FAIL(b->err, BL_EINVAL, "no text satisfies the grammar, or none that nests at most %u deep",
                BL_GRAMMAR_MAX_DEPTH);
    }
    prune(g);
    return refuse_left_recursion_and_label(b);
}

bl_code bl_grammar_compile(bl_nfa *a, uint32_t root, bl_grammar **ret, bl_err *err) {
    if (a->rc != BL_OK) {
        BL_FAIL(err, a->rc, "%s", a->err.msg);
    }
    bl_grammar *g = bl_alloc(sizeof *g);
    if (!g || pthread_mutex_init(&g->mu, NULL) != 0) {
        bl_free(g);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a grammar");
    }
    atomic_init(&g->refs, 1);
    build b = {.a = a, .err = err, .g = g};
    bl_code rc = build_all(&b, root);
    bl_free(b.nodes.p);
    bl_free(b.calls.p);
    bl_free(b.table.p);
    bl_free(b.sets.p);
    bl_free(b.members.p);
    bl_free(b.slots);
    bl_free(b.mark);
    bl_free(b.work);
    bl_free(b.rule_start);
    if (rc != BL_OK) {
        bl_grammar_unref(g);
        return rc;
    }
    *ret = g;
    return BL_OK;
}

bl_grammar *bl_grammar_ref(bl_grammar *g) {
    (void)atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed); /* the caller holds one already */
    return g;
}

void bl_grammar_unref(bl_grammar *g) {
    /* acq_rel: the one that frees sees everything the others did */
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (uint32_t i = 0; i < g->n_cache; i++) {
        bl_free(g->cache[i].mask);
    }
    bl_free(g->cache);
    bl_free(g->nodes);
    bl_free(g->calls);
    bl_free(g->table);
    bl_free(g->labels);
    pthread_mutex_destroy(&g->mu);
    bl_free(g);
}

size_t bl_grammar_bytes(const bl_grammar *g) {
    return sizeof *g + g->n_nodes * sizeof *g->nodes + g->n_calls * sizeof *g->calls +
           g->n_table * sizeof *g->table + (size_t)g->n_levels * g->n_nodes * sizeof *g->labels;
}
