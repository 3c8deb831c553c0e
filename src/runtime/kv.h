/* Key/value storage of all sequences: for each sequence a table of tiles per layer (backend.h says what a
 * tile is), out of one budget of bytes.
 *
 * Two storages give a tile its address. CONTIGUOUS: a sequence takes one of n_seqs slots; in a slot every
 * layer has one range of addresses, so tile k of a full layer lies at base + k * tile_bytes and a sliding
 * layer is a ring of tiles. PAGED: tiles come from a common stack per tile size. Both hand the same tables to
 * the same kernels, so the bits are the same. Addresses are reserved at open, memory is committed when a tile
 * is first used (an idle pool holds nothing) and never exceeds the budget: what is free but committed is
 * given back to the system before another place needs the bytes. A tile that cannot be had is BL_ELIMIT (the
 * budget) or BL_ENOMEM (the machine): the caller waits or preempts. Sliding layers hand back the tiles that
 * no later position can see. Recurrent states (and the convolution's rows) are per sequence, whatever its
 * length.
 *
 * The budget's arithmetic: every tile costs its bytes rounded up to whole pages of the machine (real models'
 * tiles are multiples already), wherever it lies. So the two storages refuse the same operations, and what a
 * sequence needs is a sum over layers of tiles times that cost. Layers that borrow another's keys and values
 * are not in the geometry (model.h lists only layers that own storage) and cost nothing.
 * Threads: [engine thread]; nothing allocates after open.
 */
#ifndef BL_RUNTIME_KV_H
#define BL_RUNTIME_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "bl/bl_err.h"
#include "model/model.h"

typedef enum { BL_KV_CONTIGUOUS, BL_KV_PAGED } bl_kv_storage;

typedef struct {
    const bl_kv_layer *layers; /* [n_layers], borrowed */
    uint32_t n_layers;
    const bl_state_layer *states; /* [n_states], borrowed: recurrent layers */
    uint32_t n_states;
    uint32_t n_context; /* positions a sequence may hold */
    uint32_t max_rows;  /* rows of one sequence in one step */
    uint32_t n_seqs;    /* sequences at one time */
    bool f32;
    bl_kv_storage storage;
    uint64_t capacity_bytes; /* of all tiles together; 0: as much as n_seqs full sequences take */
} bl_kv_geometry;

/* Tiles that a layer of one sequence holds at most. */
uint32_t bl_kv_max_tiles(const bl_kv_geometry *g, uint32_t layer);
/* Bytes of one tile of a layer. */
uint64_t bl_kv_layer_tile_bytes(const bl_kv_geometry *g, uint32_t layer);
/* What one tile of a layer takes from the budget: its bytes in whole pages. */
uint64_t bl_kv_tile_cost(const bl_kv_geometry *g, uint32_t layer);
/* Bytes of the tiles of one sequence of n positions at the moment it holds most; states not counted.
 * UINT64_MAX when that overflows. */
uint64_t bl_kv_seq_bytes(const bl_kv_geometry *g, uint32_t n_positions);
/* What the pool may commit: capacity_bytes, but at most n_seqs * seq_bytes(n_context). BL_ERANGE. BL_ELIMIT
 * when the capacity is below what one tile of every layer needs. */
bl_code bl_kv_pool_bytes(const bl_kv_geometry *g, uint64_t *ret, bl_err *err) BL_MUST_CHECK;
/* Bytes of the recurrent states of one sequence; they do not grow with it. */
uint64_t bl_kv_state_bytes(const bl_kv_geometry *g);
/* Tables and lists of the pool, at most: used as the tiles are. */
uint64_t bl_kv_bookkeeping_bytes(const bl_kv_geometry *g);
/* Bytes one position costs in all layers, before windows cap them. */
uint64_t bl_kv_bytes_per_token(const bl_kv_geometry *g);

typedef struct bl_kv_pool bl_kv_pool;
bl_code bl_kv_pool_open(const bl_kv_geometry *g, bl_kv_pool **ret, bl_err *err) BL_MUST_CHECK;
void bl_kv_pool_close(bl_kv_pool *p); /* sequences are freed before */
uint64_t bl_kv_pool_capacity(const bl_kv_pool *p);
uint64_t bl_kv_pool_bytes_in_use(const bl_kv_pool *p);    /* tiles that sequences hold, to the byte */
uint64_t bl_kv_pool_bytes_committed(const bl_kv_pool *p); /* in pages; <= capacity */
/* Could a sequence alone in the pool grow to n positions? The same arithmetic that reserve enforces. */
bool bl_kv_pool_can_ever_fit(const bl_kv_pool *p, uint32_t n_positions);

typedef struct bl_kv_seq bl_kv_seq;
/* BL_EBUSY when n_seqs of them exist, BL_ENOMEM when there is no memory for the states. Takes bookkeeping
 * made at open: allocates nothing. States are zero. */
bl_code bl_kv_seq_new(bl_kv_pool *p, bl_kv_seq **ret, bl_err *err) BL_MUST_CHECK;
void bl_kv_seq_free(bl_kv_seq *s); /* its tiles go back */

/* Positions stored so far: [0, len). */
uint32_t bl_kv_seq_len(const bl_kv_seq *s);
/* Makes tiles for positions [len, len + n) exist, after handing back what positions from len on cannot see.
 * len does not change. All or nothing: after a failure the sequence holds what it held (less what was handed
 * back). n <= max_rows. BL_ELIMIT (beyond n_context, or the budget), BL_ENOMEM. */
bl_code bl_kv_seq_reserve(bl_kv_seq *s, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* The step that stored n reserved positions is done: len += n. */
void bl_kv_seq_commit(bl_kv_seq *s, uint32_t n);
/* Gives back tiles reserved beyond len. */
void bl_kv_seq_trim(bl_kv_seq *s);
/* Can the sequence be cut to n positions and go on from there? (Sliding layers may have let go of what
 * position n sees; recurrent states only go forward.) */
bool bl_kv_seq_can_cut(const bl_kv_seq *s, uint32_t n);
/* Forgets positions from n on (n <= len); n = 0 always works and starts the states anew. */
void bl_kv_seq_cut(bl_kv_seq *s, uint32_t n);
/* Prefix reuse. For an empty sequence: makes the tiles exist that a sequence of n positions needs to go on
 * (all of a full layer, of a sliding one those that position n sees), sets len = n; the caller then fills
 * them, and the states. All or nothing. BL_ELIMIT, BL_ENOMEM. */
bl_code bl_kv_seq_adopt(bl_kv_seq *s, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* Tile k of a layer, NULL when the sequence does not hold it. */
void *bl_kv_seq_tile(const bl_kv_seq *s, uint32_t layer, uint32_t k);
/* Borrowed; valid until the next reserve, trim, cut or adopt. */
const bl_kv_table *bl_kv_seq_table(const bl_kv_seq *s, uint32_t layer);
/* State i < n_states: the step moves it past its rows. Borrowed for the life of the sequence; written only
 * after a reserve or adopt of more than nothing. */
float *bl_kv_seq_state(const bl_kv_seq *s, uint32_t i);
/* All states of the sequence, one behind the other: bl_kv_state_bytes of them. */
float *bl_kv_seq_states(const bl_kv_seq *s);

/* Lowest position that position `pos` sees in a layer of this window (0: all). */
static inline uint32_t bl_kv_lowest_seen(uint32_t window, uint32_t pos) {
    return window > 0 && pos >= window ? pos + 1 - window : 0;
}

/* "contiguous", "paged". */
const char *bl_kv_storage_name(bl_kv_storage k);

#endif
