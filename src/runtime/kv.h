/* Key/value storage: one pool of tiles for the whole engine, and per sequence a table of tiles for each
 * layer.
 *
 * A tile is 64 absolute positions of one layer (backend.h says what is inside); layers whose tiles have one
 * size draw from one stack. The pool is sized by the memory plan and committed at open, so that a sequence
 * which was admitted cannot run out. Sliding layers hand back the tiles that no later position can see.
 * Threads: [engine thread].
 */
#ifndef BL_RUNTIME_KV_H
#define BL_RUNTIME_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "bl/bl_err.h"
#include "model/model.h"

typedef struct {
    const bl_kv_layer *layers; /* [n_layers], borrowed */
    uint32_t n_layers;
    const bl_state_layer *states; /* [n_states], borrowed: recurrent layers */
    uint32_t n_states;
    uint32_t n_context; /* positions a sequence may hold */
    uint32_t max_rows;  /* rows of one sequence in one step */
    uint32_t n_seqs;
    bool f32;
} bl_kv_geometry;

/* Tiles that a layer of one sequence holds at most. */
uint32_t bl_kv_max_tiles(const bl_kv_geometry *g, uint32_t layer);
/* Bytes of the pool. BL_ERANGE. */
bl_code bl_kv_pool_bytes(const bl_kv_geometry *g, uint64_t *ret, bl_err *err) BL_MUST_CHECK;
/* Bytes of the recurrent states of one sequence; they do not grow with it. */
uint64_t bl_kv_state_bytes(const bl_kv_geometry *g);
/* Bytes one position costs in all layers, before windows cap them. */
uint64_t bl_kv_bytes_per_token(const bl_kv_geometry *g);

typedef struct bl_kv_pool bl_kv_pool;
bl_code bl_kv_pool_open(const bl_kv_geometry *g, bl_kv_pool **ret, bl_err *err) BL_MUST_CHECK;
void bl_kv_pool_close(bl_kv_pool *p); /* sequences are freed before */
uint64_t bl_kv_pool_bytes_in_use(const bl_kv_pool *p);

typedef struct bl_kv_seq bl_kv_seq;
bl_code bl_kv_seq_new(bl_kv_pool *p, bl_kv_seq **ret, bl_err *err) BL_MUST_CHECK;
void bl_kv_seq_free(bl_kv_seq *s); /* its tiles go back */

/* Positions stored so far: [0, n). */
uint32_t bl_kv_seq_len(const bl_kv_seq *s);
/* Makes tiles for positions [len, len + n) exist, after handing back what they cannot see, and advances len.
 * Allocates nothing. n <= max_rows; BL_ELIMIT beyond n_context. */
bl_code bl_kv_seq_extend(bl_kv_seq *s, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* Can the sequence be cut to n positions and go on from there? (Sliding layers may have let go of what
 * position n sees; recurrent states only go forward.) */
bool bl_kv_seq_can_cut(const bl_kv_seq *s, uint32_t n);
/* Forgets positions from n on (n <= len); n = 0 always works and starts the states anew. */
void bl_kv_seq_cut(bl_kv_seq *s, uint32_t n);
/* Borrowed; valid until the next extend or cut. */
const bl_kv_table *bl_kv_seq_table(const bl_kv_seq *s, uint32_t layer);
/* State i < n_states: the step moves it past its rows. Borrowed for the life of the sequence. */
float *bl_kv_seq_state(const bl_kv_seq *s, uint32_t i);

#endif
