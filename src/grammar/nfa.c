#include "grammar/nfa.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "grammar/limits.h"

void bl_nfa_init(bl_nfa *a) {
    *a = (bl_nfa){.n_edges = 1};
    (void)bl_nfa_node(a); /* 0: what a failed call returns */
}

void bl_nfa_done(bl_nfa *a) {
    bl_free(a->first);
    bl_free(a->edges);
    bl_free(a->rules);
    *a = (bl_nfa){0};
}

bool bl_nfa_failed(const bl_nfa *a) {
    return a->rc != BL_OK;
}

static void fail(bl_nfa *a, bl_code rc, const char *what, uint32_t max) {
    if (a->rc != BL_OK) {
        return;
    }
    a->rc = rc;
    if (rc == BL_ENOMEM) {
        (void)bl_err_set(&a->err, rc, __FILE__, __LINE__, "out of memory for a grammar");
    } else {
        (void)bl_err_set(&a->err, rc, __FILE__, __LINE__, "the grammar needs more than %u %s", max, what);
    }
}

/* Makes room for one more element behind n. */
static bool grow(bl_nfa *a, void **p, uint32_t n, uint32_t *cap, size_t size, uint32_t max,
                 const char *what) {
    if (a->rc != BL_OK) {
        return false;
    }
    if (n >= max) {
        fail(a, BL_ELIMIT, what, max);
        return false;
    }
    if (n >= *cap) {
        uint32_t more = *cap > 0 ? *cap * 2 : 64;
        void *q = bl_realloc(*p, more * size);
        if (!q) {
            fail(a, BL_ENOMEM, what, max);
            return false;
        }
        *p = q;
        *cap = more;
    }
    return true;
}

uint32_t bl_nfa_node(bl_nfa *a) {
    void *p = a->first;
    bool ok = grow(a, &p, a->n_nodes, &a->cap_nodes, sizeof *a->first, BL_GRAMMAR_MAX_NFA_NODES,
                   "nodes before it is determinised");
    a->first = p;
    if (!ok) {
        return 0;
    }
    a->first[a->n_nodes] = 0;
    return a->n_nodes++;
}

static void add_edge(bl_nfa *a, uint32_t from, bl_nfa_edge e) {
    void *p = a->edges;
    bool ok = grow(a, &p, a->n_edges, &a->cap_edges, sizeof *a->edges, BL_GRAMMAR_MAX_NFA_EDGES,
                   "edges before it is determinised");
    a->edges = p;
    if (!ok) {
        return;
    }
    e.next = a->first[from];
    a->edges[a->n_edges] = e;
    a->first[from] = a->n_edges++;
}

void bl_nfa_join(bl_nfa *a, uint32_t from, uint32_t to) {
    add_edge(a, from, (bl_nfa_edge){.to = to, .kind = BL_NFA_EMPTY});
}

void bl_nfa_range(bl_nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi) {
    add_edge(a, from, (bl_nfa_edge){.to = to, .kind = BL_NFA_RANGE, .lo = lo, .hi = hi});
}

void bl_nfa_call(bl_nfa *a, uint32_t from, uint32_t to, uint32_t rule) {
    add_edge(a, from, (bl_nfa_edge){.to = to, .kind = BL_NFA_CALL, .rule = rule});
}

uint32_t bl_nfa_bytes(bl_nfa *a, uint32_t from, const char *s, size_t n) {
    for (size_t i = 0; i < n && a->rc == BL_OK; i++) {
        uint32_t to = bl_nfa_node(a);
        bl_nfa_range(a, from, to, (uint8_t)s[i], (uint8_t)s[i]);
        from = to;
    }
    return from;
}

uint32_t bl_nfa_new_rule(bl_nfa *a) {
    void *p = a->rules;
    bool ok =
        grow(a, &p, a->n_rules, &a->cap_rules, sizeof *a->rules, BL_GRAMMAR_MAX_RULES, "rules in a grammar");
    a->rules = p;
    if (!ok) {
        return 0;
    }
    a->rules[a->n_rules] = (bl_nfa_rule){bl_nfa_node(a), bl_nfa_node(a)};
    return a->n_rules++;
}

/* ---- characters -------------------------------------------------------------------------------------- */

/* Where sequences lead. They share the nodes from which only whole runs of continuation bytes are left. */
typedef struct {
    bl_nfa *a;
    uint32_t from, to;
    uint32_t full[4]; /* [k]: k bytes 80..BF lead to `to`; 0: not drawn yet */
} utf8_drawing;

static uint32_t full_node(utf8_drawing *d, size_t k) {
    if (k == 0) {
        return d->to;
    }
    if (d->full[k] == 0) {
        d->full[k] = bl_nfa_node(d->a);
        bl_nfa_range(d->a, d->full[k], full_node(d, k - 1), 0x80, 0xbf);
    }
    return d->full[k];
}

/* Byte sequences between lo and hi, each byte free in its own range. */
static void draw_sequence(utf8_drawing *d, const uint8_t *lo, const uint8_t *hi, size_t n) {
    size_t n_full = 0;
    while (n_full + 1 < n && lo[n - 1 - n_full] == 0x80 && hi[n - 1 - n_full] == 0xbf) {
        n_full++;
    }
    uint32_t from = d->from;
    for (size_t i = 0; i + n_full < n; i++) {
        uint32_t next = i + n_full + 1 < n ? bl_nfa_node(d->a) : full_node(d, n_full);
        bl_nfa_range(d->a, from, next, lo[i], hi[i]);
        from = next;
    }
}

/* Splits lo..hi, of one encoded length, until all bytes but the differing first ones are whole 80..BF runs.
 */
static void draw_same_length(utf8_drawing *d, uint32_t lo, uint32_t hi) {
    char l[4], h[4];
    size_t n = bl_utf8_encode(lo, l);
    for (size_t i = 1; i < n; i++) { /* i continuation bytes at the end */
        uint32_t m = (1u << (6 * i)) - 1;
        if ((lo & ~m) != (hi & ~m)) {
            if ((lo & m) != 0) {
                draw_same_length(d, lo, lo | m);
                draw_same_length(d, (lo | m) + 1, hi);
                return;
            }
            if ((hi & m) != m) {
                draw_same_length(d, lo, (hi & ~m) - 1);
                draw_same_length(d, hi & ~m, hi);
                return;
            }
        }
    }
    (void)bl_utf8_encode(hi, h);
    draw_sequence(d, (const uint8_t *)l, (const uint8_t *)h, n);
}

void bl_nfa_points(bl_nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xffff, 0x10ffff};
    utf8_drawing d = {.a = a, .from = from, .to = to};
    uint32_t begin = 0;
    for (size_t i = 0; i < BL_COUNTOF(ends) && a->rc == BL_OK; i++) {
        uint32_t first = BL_MAX(lo, begin), last = BL_MIN(hi, ends[i]);
        if (first <= last) {
            draw_same_length(&d, first, last);
        }
        begin = ends[i] == 0xd7ff ? 0xe000 : ends[i] + 1;
    }
}

void bl_nfa_json_points(bl_nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi) {
    static const struct {
        uint8_t point;
        char escape;
    } shorts[] = {{'"', '"'}, {'\\', '\\'}, {8, 'b'}, {9, 't'}, {10, 'n'}, {12, 'f'}, {13, 'r'}};
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < BL_COUNTOF(shorts); i++) {
        if (shorts[i].point >= lo && shorts[i].point <= hi) {
            const char text[2] = {'\\', shorts[i].escape};
            bl_nfa_join(a, bl_nfa_bytes(a, from, text, 2), to);
        }
    }
    for (uint32_t c = BL_MAX(lo, 1u); c <= hi && c < 0x20; c++) {
        if (c >= 8 && c <= 13 && c != 11) {
            continue;
        }
        char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        bl_nfa_join(a, bl_nfa_bytes(a, from, text, 6), to);
    }
    static const uint32_t plain[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};
    for (size_t i = 0; i < BL_COUNTOF(plain); i++) {
        uint32_t first = BL_MAX(lo, plain[i][0]), last = BL_MIN(hi, plain[i][1]);
        if (first <= last) {
            bl_nfa_points(a, from, to, first, last);
        }
    }
}
