/* Every ceiling of src/grammar/, with its reason. Beyond one is BL_ELIMIT, which names what was found and
 * what is allowed.
 */
#ifndef BL_GRAMMAR_LIMITS_H
#define BL_GRAMMAR_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define BL_GRAMMAR_MAX_PATTERN ((size_t)16 << 10)  /* bytes of a regular expression */
#define BL_GRAMMAR_MAX_SCHEMA  ((size_t)256 << 10) /* bytes of a schema as compact JSON */
#define BL_GRAMMAR_MAX_NESTING 64u                 /* groups in a pattern; subschemas in a schema */
#define BL_GRAMMAR_MAX_REPEAT  10000u              /* bounds of {m,n}, minLength, minItems... */
/* Automaton before and after determinising. What people write needs hundreds; a pattern that needs more than
 * this has an exponential core. */
#define BL_GRAMMAR_MAX_NFA_NODES 400000u
#define BL_GRAMMAR_MAX_NFA_EDGES 1200000u
#define BL_GRAMMAR_MAX_NODES     100000u
#define BL_GRAMMAR_MAX_TABLE     (4u << 20)   /* transitions: 16 MiB */
#define BL_GRAMMAR_MAX_SETS      (8u << 20)   /* members of all sets while determinising: 32 MiB */
#define BL_GRAMMAR_MAX_STEPS     (100u << 20) /* elementary steps of a compilation: about a second */
#define BL_GRAMMAR_MAX_RULES     8192u
#define BL_GRAMMAR_MAX_NAMES     1024u /* properties of one object */

/* A state. Nested calls of rules: a text that nests deeper is not allowed, and what is begun can always be
 * ended within it. Readings: ways in which the text so far can be understood at one time; later ones are
 * dropped, which takes possibilities away but never allows a wrong text. */
#define BL_GRAMMAR_MAX_DEPTH    72u
#define BL_GRAMMAR_MAX_READINGS 64u
#define BL_GRAMMAR_MAX_SEEN     512u /* nodes looked at in one step */
#define BL_GRAMMAR_MAX_FRAMES   65536u
#define BL_GRAMMAR_MAX_TOKEN    255u /* bytes of a token; longer ones are not allowed inside a grammar */

/* Masks kept per grammar, least recently used out. */
#define BL_GRAMMAR_CACHE_BYTES   ((size_t)4 << 20)
#define BL_GRAMMAR_CACHE_ENTRIES 256u
#define BL_GRAMMAR_CACHE_KEY     384u /* words of a configuration; larger ones are not kept */

#endif
