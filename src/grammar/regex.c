/* Patterns: parsed to a small tree, checked, drawn. The syntax is the common part of ECMA 262, PCRE and RE2
 * that describes a regular language; what is beyond is refused by its name. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "grammar/grammar.h"
#include "grammar/internal.h"
#include "grammar/limits.h"
#include "grammar/nfa.h"

#define MAX_POINT 0x10ffffu
#define NO_MAX    UINT32_MAX

typedef enum { EMPTY, CLASS, CAT, ALT, REPEAT } kind;

typedef struct {
    kind kind;
    uint32_t a, b;     /* CAT, ALT: children; REPEAT: child in a; CLASS: ranges [a, a + b) */
    uint32_t min, max; /* REPEAT */
} tree;

typedef struct {
    uint32_t lo, hi;
} range;

typedef struct {
    const char *s;
    size_t n, at;
    uint32_t depth;
    tree *nodes;
    uint32_t n_nodes, cap_nodes;
    range *ranges;
    uint32_t n_ranges, cap_ranges;
    bl_nfa *a;
    bool as_json;
    bl_err *err;
} parser;

/* Every node and range comes from bytes of the pattern, but for a class's few: the caps follow from it. */
static bl_code add(parser *p, tree t, uint32_t *ret) {
    if (p->n_nodes >= p->cap_nodes) {
        BL_FAIL(p->err, BL_ELIMIT, "the pattern has more than %u parts", p->cap_nodes);
    }
    p->nodes[p->n_nodes] = t;
    *ret = p->n_nodes++;
    return BL_OK;
}

static bl_code add_range(parser *p, uint32_t lo, uint32_t hi) {
    if (p->n_ranges >= p->cap_ranges) {
        BL_FAIL(p->err, BL_ELIMIT, "the pattern has more than %u ranges of characters", p->cap_ranges);
    }
    p->ranges[p->n_ranges++] = (range){lo, hi};
    return BL_OK;
}

static bl_code refuse(parser *p, const char *what) {
    BL_FAIL(p->err, BL_ENOTSUP, "the pattern has %s at byte %zu, which is not supported", what, p->at);
}

static bl_code malformed(parser *p, const char *what) {
    BL_FAIL(p->err, BL_EINVAL, "the pattern has %s at byte %zu", what, p->at);
}

static bool more(const parser *p) {
    return p->at < p->n;
}

static bool looks_at(const parser *p, const char *text) {
    size_t n = strlen(text);
    return p->n - p->at >= n && memcmp(p->s + p->at, text, n) == 0;
}

static bl_code take_point(parser *p, uint32_t *ret) {
    size_t n = bl_utf8_decode(p->s + p->at, p->n - p->at, ret);
    if (n == 0) {
        return malformed(p, "a byte that is no UTF-8");
    }
    p->at += n;
    return BL_OK;
}

/* ---- classes ----------------------------------------------------------------------------------------- */

static const range digits[] = {{'0', '9'}};
static const range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const range spaces[] = {{'\t', '\r'}, {' ', ' '}};

/* Ranges [from, n_ranges) become sorted and disjoint; negated when asked for. */
static bl_code tidy(parser *p, uint32_t from, bool negated) {
    range *r = p->ranges + from;
    uint32_t n = p->n_ranges - from, m = 0;
    for (uint32_t i = 1; i < n; i++) { /* insertion: n is small, or the pattern's own length */
        range x = r[i];
        uint32_t k = i;
        for (; k > 0 && r[k - 1].lo > x.lo; k--) {
            r[k] = r[k - 1];
        }
        r[k] = x;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (m > 0 && r[i].lo <= r[m - 1].hi + 1) {
            r[m - 1].hi = BL_MAX(r[m - 1].hi, r[i].hi);
        } else {
            r[m++] = r[i];
        }
    }
    p->n_ranges = from + m;
    if (!negated) {
        return BL_OK;
    }
    uint32_t begin = 0, k = 0;
    for (uint32_t i = 0; i < m; i++) {
        range x = r[i];
        if (x.lo > begin) {
            r[k++] = (range){begin, x.lo - 1};
        }
        begin = x.hi + 1;
    }
    p->n_ranges = from + k;
    return begin <= MAX_POINT ? add_range(p, begin, MAX_POINT) : BL_OK;
}

static bl_code add_set(parser *p, char c) {
    const range *r = c == 'd' || c == 'D' ? digits : c == 'w' || c == 'W' ? words : spaces;
    size_t n = c == 'd' || c == 'D'   ? BL_COUNTOF(digits)
               : c == 'w' || c == 'W' ? BL_COUNTOF(words)
                                      : BL_COUNTOF(spaces);
    uint32_t from = p->n_ranges;
    for (size_t i = 0; i < n; i++) {
        BL_TRY(add_range(p, r[i].lo, r[i].hi));
    }
    return tidy(p, from, c < 'a');
}

static bl_code take_hex(parser *p, size_t n_max, size_t n_min, uint32_t *ret) {
    uint32_t v = 0;
    size_t n = 0;
    while (n < n_max && more(p)) {
        char c = p->s[p->at];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                            : 16;
        if (d == 16) {
            break;
        }
        v = v * 16 + d;
        p->at++;
        n++;
    }
    if (n < n_min || v > MAX_POINT || (v >= 0xd800 && v <= 0xdfff)) {
        return malformed(p, "a bad hexadecimal escape");
    }
    *ret = v;
    return BL_OK;
}

/* Behind a backslash: a set (*ret_set its letter) or a character. */
static bl_code take_escape(parser *p, bool in_class, char *ret_set, uint32_t *ret) {
    static const char letters[] = "nrtfv0", points[] = "\n\r\t\f\v\0";
    *ret_set = 0;
    if (!more(p)) {
        return malformed(p, "a backslash at its end");
    }
    char c = p->s[p->at];
    const char *known = c ? strchr(letters, c) : NULL;
    if (strchr("dDwWsS", c) && c) {
        p->at++;
        *ret_set = c;
        return BL_OK;
    }
    if (c >= '1' && c <= '9') {
        return refuse(p, "a back-reference");
    }
    if (!in_class && (c == 'b' || c == 'B')) {
        return refuse(p, "a word boundary");
    }
    if (c == 'p' || c == 'P') {
        return refuse(p, "a Unicode property");
    }
    if (c == 'k') {
        return refuse(p, "a back-reference");
    }
    p->at++;
    if (known) {
        *ret = (uint8_t)points[known - letters];
        return BL_OK;
    }
    if (c == 'b') {
        *ret = 8;
        return BL_OK;
    }
    if (c == 'x') {
        return take_hex(p, 2, 2, ret);
    }
    if (c == 'u' && more(p) && p->s[p->at] == '{') {
        p->at++;
        BL_TRY(take_hex(p, 6, 1, ret));
        if (!more(p) || p->s[p->at] != '}') {
            return malformed(p, "an unfinished \\u{");
        }
        p->at++;
        return BL_OK;
    }
    if (c == 'u') {
        return take_hex(p, 4, 4, ret);
    }
    p->at--;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        return refuse(p, "an escaped letter without meaning");
    }
    return take_point(p, ret);
}

static bl_code class_atom(parser *p, char *ret_set, uint32_t *ret) {
    *ret_set = 0;
    if (p->s[p->at] == '\\') {
        p->at++;
        return take_escape(p, true, ret_set, ret);
    }
    if (looks_at(p, "[:") || looks_at(p, "[.") || looks_at(p, "[=")) {
        return refuse(p, "a POSIX class");
    }
    return take_point(p, ret);
}

static bl_code parse_class(parser *p, uint32_t *ret) {
    uint32_t from = p->n_ranges;
    size_t begin = p->at++;
    bool negated = more(p) && p->s[p->at] == '^';
    p->at += negated;
    while (more(p) && p->s[p->at] != ']') {
        char set;
        uint32_t lo = 0, hi = 0;
        BL_TRY(class_atom(p, &set, &lo));
        hi = lo;
        if (!set && p->n - p->at >= 2 && p->s[p->at] == '-' && p->s[p->at + 1] != ']') {
            p->at++;
            BL_TRY(class_atom(p, &set, &hi));
            if (set || hi < lo) {
                return malformed(p, "a range of characters out of order");
            }
        }
        BL_TRY(set ? add_set(p, set) : add_range(p, lo, hi));
    }
    if (!more(p)) {
        p->at = begin;
        return malformed(p, "an unfinished class");
    }
    p->at++;
    BL_TRY(tidy(p, from, negated));
    if (p->n_ranges == from) {
        return malformed(p, "a class that no character is in");
    }
    return add(p, (tree){.kind = CLASS, .a = from, .b = p->n_ranges - from}, ret);
}

static bl_code one_point(parser *p, uint32_t point, uint32_t *ret) {
    uint32_t from = p->n_ranges;
    BL_TRY(add_range(p, point, point));
    return add(p, (tree){.kind = CLASS, .a = from, .b = 1}, ret);
}

static bl_code set_class(parser *p, char set, uint32_t *ret) {
    uint32_t from = p->n_ranges;
    if (set == '.') { /* all but the end of a line */
        BL_TRY(add_range(p, '\n', '\n'));
        BL_TRY(tidy(p, from, true));
    } else {
        BL_TRY(add_set(p, set));
    }
    return add(p, (tree){.kind = CLASS, .a = from, .b = p->n_ranges - from}, ret);
}

/* ---- the rest of the syntax -------------------------------------------------------------------------- */

static bl_code parse_choice(parser *p, uint32_t *ret);

static bl_code parse_group(parser *p, uint32_t *ret) {
    size_t begin = p->at++;
    if (looks_at(p, "?=") || looks_at(p, "?!")) {
        return refuse(p, "a look-ahead");
    }
    if (looks_at(p, "?<=") || looks_at(p, "?<!")) {
        return refuse(p, "a look-behind");
    }
    if (looks_at(p, "?>")) {
        return refuse(p, "an atomic group");
    }
    if (looks_at(p, "?:")) {
        p->at += 2;
    } else if (looks_at(p, "?P<") || looks_at(p, "?<")) {
        while (more(p) && p->s[p->at] != '>') {
            p->at++;
        }
        p->at += more(p);
    } else if (looks_at(p, "?")) {
        return refuse(p, "an inline flag");
    }
    if (++p->depth > BL_GRAMMAR_MAX_NESTING) {
        BL_FAIL(p->err, BL_ELIMIT, "the pattern nests groups deeper than %u", BL_GRAMMAR_MAX_NESTING);
    }
    BL_TRY(parse_choice(p, ret));
    p->depth--;
    if (!more(p) || p->s[p->at] != ')') {
        p->at = begin;
        return malformed(p, "an unfinished group");
    }
    p->at++;
    return BL_OK;
}

static bl_code parse_atom(parser *p, uint32_t *ret) {
    char c = p->s[p->at];
    if (c == '(') {
        return parse_group(p, ret);
    }
    if (c == '[') {
        return parse_class(p, ret);
    }
    if (c == '.') {
        p->at++;
        return set_class(p, '.', ret);
    }
    if (c == '*' || c == '+' || c == '?') {
        return malformed(p, "a repetition of nothing");
    }
    if (c == '^' || c == '$') {
        return refuse(p, "an anchor that is not at an end");
    }
    uint32_t point = 0;
    if (c == '\\') {
        char set;
        p->at++;
        if (more(p) && strchr("AzZG", p->s[p->at]) && p->s[p->at]) {
            return refuse(p, "an anchor that is not at an end");
        }
        BL_TRY(take_escape(p, false, &set, &point));
        return set ? set_class(p, set, ret) : one_point(p, point, ret);
    }
    BL_TRY(take_point(p, &point));
    return one_point(p, point, ret);
}

static bl_code take_count(parser *p, bool *ret_has, uint32_t *ret) {
    uint64_t v = 0;
    *ret_has = false;
    while (more(p) && p->s[p->at] >= '0' && p->s[p->at] <= '9') {
        v = BL_MIN(v * 10 + (uint64_t)(p->s[p->at] - '0'), (uint64_t)UINT32_MAX - 1);
        *ret_has = true;
        p->at++;
    }
    if (v > BL_GRAMMAR_MAX_REPEAT) {
        BL_FAIL(p->err, BL_ELIMIT, "the pattern repeats %llu times at byte %zu, at most %u are allowed",
                (unsigned long long)v, p->at, BL_GRAMMAR_MAX_REPEAT);
    }
    *ret = (uint32_t)v;
    return BL_OK;
}

/* {m}, {m,}, {m,n}: false when the brace is a character of its own. */
static bl_code parse_bounds(parser *p, bool *ret_is, uint32_t *min, uint32_t *max) {
    size_t begin = p->at++;
    bool has_min, has_max = false, comma = false;
    BL_TRY(take_count(p, &has_min, min));
    *max = *min;
    if (more(p) && p->s[p->at] == ',') {
        p->at++;
        comma = true;
        BL_TRY(take_count(p, &has_max, max));
        *max = has_max ? *max : NO_MAX;
    }
    *ret_is = has_min && more(p) && p->s[p->at] == '}';
    if (!*ret_is) {
        p->at = begin;
        return malformed(p, comma || has_min ? "an unfinished repetition" : "a brace; write \\{");
    }
    p->at++;
    if (*max < *min) {
        return malformed(p, "a repetition whose bounds are out of order");
    }
    return BL_OK;
}

static bool at_quantifier(const parser *p) {
    return more(p) && strchr("*+?{", p->s[p->at]) && p->s[p->at];
}

static bl_code parse_repeat(parser *p, uint32_t *ret) {
    BL_TRY(parse_atom(p, ret));
    if (!at_quantifier(p)) {
        return BL_OK;
    }
    uint32_t min = 0, max = NO_MAX;
    char c = p->s[p->at];
    bool is = true;
    if (c == '{') {
        BL_TRY(parse_bounds(p, &is, &min, &max));
    } else {
        p->at++;
        min = c == '+';
        max = c == '?' ? 1 : NO_MAX;
    }
    if (more(p) && p->s[p->at] == '?') {
        p->at++; /* lazy: the same texts */
    } else if (more(p) && p->s[p->at] == '+') {
        return refuse(p, "a possessive repetition");
    }
    if (at_quantifier(p)) {
        return malformed(p, "a repetition of a repetition");
    }
    return add(p, (tree){.kind = REPEAT, .a = *ret, .min = min, .max = max}, ret);
}

/* Any characters, for a pattern that is looked for inside a text. */
static bl_code anything(parser *p, uint32_t *ret) {
    uint32_t from = p->n_ranges;
    BL_TRY(add_range(p, 0, MAX_POINT));
    BL_TRY(add(p, (tree){.kind = CLASS, .a = from, .b = 1}, ret));
    return add(p, (tree){.kind = REPEAT, .a = *ret, .max = NO_MAX}, ret);
}

static bl_code append(parser *p, uint32_t *all, uint32_t one) {
    return add(p, (tree){.kind = CAT, .a = *all, .b = one}, all);
}

static bool at_end_of_branch(const parser *p) {
    return !more(p) || p->s[p->at] == '|' || p->s[p->at] == ')';
}

static bl_code parse_branch(parser *p, uint32_t *ret) {
    uint32_t one;
    bool outer = p->depth == 0, begins = outer && looks_at(p, "^"), ends = false;
    p->at += begins;
    BL_TRY(add(p, (tree){.kind = EMPTY}, ret));
    if (outer && p->as_json && !begins) {
        BL_TRY(anything(p, &one));
        BL_TRY(append(p, ret, one));
    }
    while (!at_end_of_branch(p) && !ends) {
        if (outer && p->s[p->at] == '$') {
            p->at++;
            ends = at_end_of_branch(p);
            if (!ends) {
                p->at--;
                return refuse(p, "an anchor that is not at an end");
            }
            break;
        }
        BL_TRY(parse_repeat(p, &one));
        BL_TRY(append(p, ret, one));
    }
    if (outer && p->as_json && !ends) {
        BL_TRY(anything(p, &one));
        BL_TRY(append(p, ret, one));
    }
    return BL_OK;
}

static bl_code parse_choice(parser *p, uint32_t *ret) {
    BL_TRY(parse_branch(p, ret));
    while (more(p) && p->s[p->at] == '|') {
        uint32_t other;
        p->at++;
        BL_TRY(parse_branch(p, &other));
        BL_TRY(add(p, (tree){.kind = ALT, .a = *ret, .b = other}, ret));
    }
    return BL_OK;
}

/* ---- drawing ----------------------------------------------------------------------------------------- */

static void draw(parser *p, uint32_t t, uint32_t from, uint32_t to);

static void draw_repeat(parser *p, const tree *t, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < t->min && !bl_nfa_failed(p->a); i++) {
        uint32_t next = bl_nfa_node(p->a);
        draw(p, t->a, from, next);
        from = next;
    }
    if (t->max == NO_MAX) {
        uint32_t loop = bl_nfa_node(p->a);
        bl_nfa_join(p->a, from, loop);
        draw(p, t->a, loop, loop);
        bl_nfa_join(p->a, loop, to);
        return;
    }
    bl_nfa_join(p->a, from, to);
    for (uint32_t i = t->min; i < t->max && !bl_nfa_failed(p->a); i++) {
        uint32_t next = bl_nfa_node(p->a);
        draw(p, t->a, from, next);
        bl_nfa_join(p->a, next, to);
        from = next;
    }
}

static void draw(parser *p, uint32_t at, uint32_t from, uint32_t to) {
    const tree *t = &p->nodes[at];
    if (bl_nfa_failed(p->a)) {
        return;
    }
    switch (t->kind) {
    case EMPTY:
        bl_nfa_join(p->a, from, to);
        break;
    case CLASS:
        for (uint32_t i = t->a; i < t->a + t->b; i++) {
            if (p->as_json) {
                bl_nfa_json_points(p->a, from, to, p->ranges[i].lo, p->ranges[i].hi);
            } else {
                bl_nfa_points(p->a, from, to, p->ranges[i].lo, p->ranges[i].hi);
            }
        }
        break;
    case CAT: { /* leftmost first, in a loop: a branch is as long as the pattern */
        uint32_t end = to;
        while (p->nodes[at].kind == CAT) {
            uint32_t middle = bl_nfa_node(p->a);
            draw(p, p->nodes[at].b, middle, end);
            end = middle;
            at = p->nodes[at].a;
        }
        draw(p, at, from, end);
        break;
    }
    case ALT:
        while (p->nodes[at].kind == ALT) {
            draw(p, p->nodes[at].b, from, to);
            at = p->nodes[at].a;
        }
        draw(p, at, from, to);
        break;
    case REPEAT:
        draw_repeat(p, t, from, to);
        break;
    }
}

void bl_regex_draw(bl_nfa *a, uint32_t from, uint32_t to, const char *pattern, size_t n, bool as_json) {
    if (bl_nfa_failed(a)) {
        return;
    }
    parser p = {.s = pattern, .n = n, .a = a, .as_json = as_json, .err = &a->err};
    if (n > BL_GRAMMAR_MAX_PATTERN) {
        a->rc = bl_err_set(&a->err, BL_ELIMIT, __FILE__, __LINE__,
                           "the pattern has %zu bytes, at most %zu are allowed", n, BL_GRAMMAR_MAX_PATTERN);
        return;
    }
    p.cap_nodes = 10 * (uint32_t)n + 16;
    p.cap_ranges = 6 * (uint32_t)n + 16;
    p.nodes = bl_alloc_array(p.cap_nodes, sizeof *p.nodes);
    p.ranges = bl_alloc_array(p.cap_ranges, sizeof *p.ranges);
    uint32_t root = 0;
    if (!p.nodes || !p.ranges) {
        a->rc = bl_err_set(&a->err, BL_ENOMEM, __FILE__, __LINE__, "out of memory for a pattern");
    } else {
        a->rc = parse_choice(&p, &root);
        if (a->rc == BL_OK && more(&p)) {
            a->rc = malformed(&p, "a closing parenthesis too many");
        }
        draw(&p, root, from, to);
    }
    bl_free(p.nodes);
    bl_free(p.ranges);
}

bl_code bl_grammar_from_regex(const char *pattern, size_t n, bl_grammar **ret, bl_err *err) {
    bl_nfa a;
    bl_nfa_init(&a);
    uint32_t rule = bl_nfa_new_rule(&a);
    if (!bl_nfa_failed(&a)) {
        bl_regex_draw(&a, a.rules[rule].start, a.rules[rule].end, pattern, n, false);
    }
    bl_code rc = bl_grammar_compile(&a, rule, ret, err);
    bl_nfa_done(&a);
    return rc;
}
