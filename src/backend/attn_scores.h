/* How many attention scores a prompt chunk costs when its rows attend in blocks, each block to the keys that
 * its own rows can see: exact integers, for counters, plans and tests. */
#ifndef BL_BACKEND_ATTN_SCORES_H
#define BL_BACKEND_ATTN_SCORES_H

#include <stdint.h>

typedef struct {
    uint64_t executed; /* rows times keys of the block's span, summed over blocks */
    uint64_t useful;   /* visible ones: the causal mask and the window taken off */
} bl_attn_scores;

/* n_rows queries at positions [history, history + n_rows) of one query head; window 0: all keys before.
 * block: rows that share a span at most; 0: all of them. A block of rows [o, o + n) spans keys [start, end)
 * with end = history + o + n and start = max(0, history + o + 1 - window). */
bl_attn_scores bl_attention_scores(uint64_t history, uint64_t n_rows, uint64_t window, uint64_t block);

#endif
