/* Prefix cache: keys and values of prompts seen before, in memory, so that what a new prompt has in common
 * with one of them is not evaluated again. By the contract (NUMERICS.md) the bits are the same as a cold
 * run's.
 *
 * A tree of nodes; a node is up to 64 tokens that begin at a multiple of 64, with a copy of that tile of
 * every layer (of sliding layers too, as long as the sequence still had it) and, where the model has
 * recurrent layers, at most one snapshot of the states at the node's end. Children of a node continue its
 * tokens; only full nodes have some. There is one root per tenant, so that nobody can learn from timing what
 * another tenant asked. The key of the whole cache (weights digest, numerics version, KV format) is checked
 * by the caller: a cache lives in one engine. Tokens are compared, never only hashes. A prefix is usable at n
 * positions if: the nodes on the way hold the tiles that position n sees in every layer, and, with recurrent
 * layers, n is the position of a snapshot. Without recurrent layers any n inside a node will do: the longest
 * common prefix is found to the token (among the 64 children of a node that were used last; full ones
 * always). Bounded in bytes; the least recently used leaf goes first. A prompt that alone is too much keeps
 * its full layers and of the windows what its beginning and its end see. Everything is allocated at open
 * (addresses) and committed when first used. Threads: [engine thread].
 */
#ifndef BL_RUNTIME_PREFIX_CACHE_H
#define BL_RUNTIME_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "runtime/kv.h"

typedef struct bl_prefix_cache bl_prefix_cache;

typedef struct {
    uint64_t n_lookups, n_hits, n_tokens_hit, n_stored_tokens, n_evicted_nodes, bytes_in_use, max_bytes;
} bl_prefix_cache_stats;

/* The geometry's layers and states stay borrowed. max_bytes below one node (with its snapshot): BL_EINVAL,
 * naming both. BL_ENOTSUP, BL_ENOMEM. */
bl_code bl_prefix_cache_open(const bl_kv_geometry *g, uint64_t max_bytes, bl_prefix_cache **ret,
                             bl_err *err) BL_MUST_CHECK;
void bl_prefix_cache_close(bl_prefix_cache *c);
/* Bytes of one node's tiles and one snapshot: what max_bytes is counted in. */
uint64_t bl_prefix_cache_node_bytes(const bl_kv_geometry *g);
/* Tokens, links and tables beside max_bytes, at most: used as the nodes are. */
uint64_t bl_prefix_cache_bookkeeping_bytes(const bl_kv_geometry *g, uint64_t max_bytes);

/* Positions of tokens[0..n) that a lookup would reuse now (no state changes): for forecasts. */
uint32_t bl_prefix_cache_peek(const bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, uint32_t n);
/* Fills an empty sequence with the longest usable prefix of tokens[0..n) and returns its length, 0 for none
 * (also when the pool has no room for it: then the sequence is still empty). */
uint32_t bl_prefix_cache_load(bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, uint32_t n,
                              bl_kv_seq *s);
/* Remembers what the sequence holds: tokens[0..bl_kv_seq_len(s)). Copies only nodes (and of nodes tiles) that
 * the cache does not have, so it may be called often. A node that ends where these tokens go on grows, unless
 * that would lose a tile or a snapshot. With recurrent layers the present states become a snapshot at this
 * length (`snapshot` false: none is taken, and what is behind the last multiple of 64 is left out: without
 * one nobody could go on from there). Whatever does not fit is left out. Never fails. */
void bl_prefix_cache_store(bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, bl_kv_seq *s,
                           bool snapshot);
/* Forgets everything and gives the memory back. */
void bl_prefix_cache_clear(bl_prefix_cache *c);
void bl_prefix_cache_get_stats(const bl_prefix_cache *c, bl_prefix_cache_stats *ret);

#endif
