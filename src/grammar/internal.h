/* What the files of grammar/ share: the packed automaton, and how a front end's drawing becomes one. */
#ifndef BL_GRAMMAR_INTERNAL_H
#define BL_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "grammar/grammar.h"
#include "grammar/nfa.h"

/* A node of a deterministic rule. Node 0 is where nothing is allowed. */
typedef struct {
    uint32_t row;   /* offset in table: what follows a byte class; 0: no byte */
    uint32_t calls; /* first of n_calls */
    uint16_t n_calls;
    uint8_t need;    /* frames that must still be free to reach the end of the rule, at least */
    bool end, plain; /* end: the rule may end here. plain: neither that nor calls */
} bl_gnode;

typedef struct {
    uint32_t start, back; /* first node of the rule, and where its end leads */
} bl_gcall;

#define BL_GRAMMAR_LEVELS 8

typedef struct {
    uint64_t hash, used;               /* used: when, 0: empty */
    uint64_t alike[BL_GRAMMAR_LEVELS]; /* hashes of the key's labels at each level */
    uint64_t vocab;                    /* digest */
    uint32_t n_key;
    uint32_t key[384];
    uint32_t *mask;
} bl_gcached;

struct bl_grammar {
    atomic_uint refs;
    /* [immutable] */
    uint8_t cls[256];
    uint32_t n_classes;
    bl_gnode *nodes;
    bl_gcall *calls;
    uint32_t *table;
    uint32_t n_nodes, n_calls, n_table, start;
    uint64_t *labels; /* [n_levels][n_nodes], deepest level first */
    uint32_t n_levels;
    uint8_t level_bytes[BL_GRAMMAR_LEVELS];
    /* [guarded by mu] masks of configurations met */
    pthread_mutex_t mu;
    bl_gcached *cache;
    uint32_t n_cache, cache_vocab; /* entries; n_vocab that they are made for */
    uint64_t tick;
};

/* Makes every rule deterministic and packs them. The drawing's own failure is passed on. BL_EINVAL: no text
 * matches. */
bl_code bl_grammar_compile(bl_nfa *a, uint32_t root, bl_grammar **ret, bl_err *err) BL_MUST_CHECK;

/* Fills labels. nullable[node]: its rule's end can be reached without a byte. */
bl_code bl_grammar_find_levels(bl_grammar *g, const bool *nullable, bl_err *err) BL_MUST_CHECK;

/* One byte of the trie in preorder. */
typedef struct {
    uint32_t skip;        /* index of the next node outside this one's subtree */
    uint32_t first_token; /* in ids: tokens that end here */
    uint8_t n_tokens;     /* more of equal bytes than 255 are left out */
    uint8_t byte, depth;  /* depth >= 1 */
    uint8_t deepest;      /* depth of the longest token that begins so */
} bl_gtrie;

struct bl_grammar_vocab {
    atomic_uint refs;
    uint32_t n_vocab, n_trie, n_ids, max_depth;
    bl_gtrie *trie;
    int32_t *ids;  /* by their bytes */
    uint32_t *off; /* [n_vocab + 1]: into bytes */
    char *bytes;
    uint64_t digest;
};

#endif
