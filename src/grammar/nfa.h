/* Automata while they are built: nodes joined by byte ranges, by nothing, and by calls of rules (the stack's
 * part). The front ends (regex.c, json_schema.c) draw it; compile.c makes rules deterministic and packs them.
 *
 * Failures stick: after one, every call does nothing and returns node 0; the front end looks at bl_nfa_failed
 * in its loops and hands the error on at the end.
 */
#ifndef BL_GRAMMAR_NFA_H
#define BL_GRAMMAR_NFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef enum { BL_NFA_RANGE, BL_NFA_EMPTY, BL_NFA_CALL } bl_nfa_kind;

typedef struct {
    uint32_t to, next; /* next edge of the same node; 0: none */
    uint32_t rule;     /* CALL */
    uint8_t kind, lo, hi;
} bl_nfa_edge;

typedef struct {
    uint32_t start, end;
} bl_nfa_rule;

typedef struct {
    uint32_t *first; /* [n_nodes]: edge, 0: none */
    uint32_t n_nodes, cap_nodes;
    bl_nfa_edge *edges; /* [0] is not used */
    uint32_t n_edges, cap_edges;
    bl_nfa_rule *rules;
    uint32_t n_rules, cap_rules;
    uint64_t n_steps;
    bl_code rc;
    bl_err err;
} bl_nfa;

void bl_nfa_init(bl_nfa *a);
void bl_nfa_done(bl_nfa *a);
bool bl_nfa_failed(const bl_nfa *a);

uint32_t bl_nfa_node(bl_nfa *a);
void bl_nfa_join(bl_nfa *a, uint32_t from, uint32_t to); /* by nothing */
void bl_nfa_range(bl_nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
void bl_nfa_call(bl_nfa *a, uint32_t from, uint32_t to, uint32_t rule);
/* Literal bytes from a node to a new one, which is returned. */
uint32_t bl_nfa_bytes(bl_nfa *a, uint32_t from, const char *s, size_t n);
/* UTF-8 of the code points lo..hi, surrogates left out. */
void bl_nfa_points(bl_nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
/* The same inside a JSON string: quotes, backslashes and control characters as their short escapes (\u00XX
 * where there is none; U+0000 is left out). */
void bl_nfa_json_points(bl_nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);

/* A rule to be drawn: its two nodes exist. */
uint32_t bl_nfa_new_rule(bl_nfa *a);

/* ---- front ends' parts ------------------------------------------------------------------------------- */

/* Draws a pattern between two nodes. as_json: it speaks of the characters of a JSON string, and is looked for
 * anywhere in it unless ^ and $ say otherwise; else it must match the whole. The failure is in a. */
void bl_regex_draw(bl_nfa *a, uint32_t from, uint32_t to, const char *pattern, size_t n, bool as_json);

#endif
