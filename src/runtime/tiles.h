/* Pieces of memory of a few sizes out of one budget of bytes: what the key/value pool and the prefix cache
 * stand on. A piece costs whole pages; it is committed when first taken, taken again before another is
 * committed, and given back to the system only when another size (or place) needs its bytes. So
 * held <= committed <= capacity at all times. Nothing allocates after open. Threads: one owner.
 */
#ifndef BL_RUNTIME_TILES_H
#define BL_RUNTIME_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_TILES_MAX_SIZES 8u

typedef struct {
    uint64_t tile_bytes; /* > 0 */
    uint64_t n_tiles;    /* addresses for so many */
} bl_tile_size;

/* The place of a tile size in a list of them, which takes it on when it is new; `max` when that is full. */
uint32_t bl_tile_size_place(bl_tile_size *sizes, uint32_t *n, uint32_t max, uint64_t tile_bytes);

typedef struct {
    uint64_t capacity, committed, held; /* whole pages */
    uint64_t in_use;                    /* what is held, to the byte */
} bl_tiles_bytes;

typedef struct bl_tiles bl_tiles;

/* `placed`: the caller says which tile it wants (take_at); otherwise any will do (take). `what` is for
 * messages, static. BL_ENOMEM, BL_ERANGE. */
bl_code bl_tiles_open(const bl_tile_size *sizes, uint32_t n_sizes, uint64_t capacity, bool placed,
                      const char *what, bl_tiles **ret, bl_err *err) BL_MUST_CHECK;
void bl_tiles_close(bl_tiles *t);
uint64_t bl_tiles_bookkeeping_bytes(uint64_t n_tiles);
const bl_tiles_bytes *bl_tiles_get_bytes(const bl_tiles *t); /* borrowed, always up to date */

/* A free tile of a size. The caller made sure that held leaves room for it. BL_ENOMEM: nothing changed. */
bl_code bl_tiles_take(bl_tiles *t, uint32_t size, uint32_t *ret, bl_err *err) BL_MUST_CHECK;
/* Tile `tile`, which is free. */
bl_code bl_tiles_take_at(bl_tiles *t, uint32_t size, uint32_t tile, bl_err *err) BL_MUST_CHECK;
void bl_tiles_give_back(bl_tiles *t, uint32_t size, uint32_t tile);
void *bl_tiles_at(const bl_tiles *t, uint32_t size, uint32_t tile);
uint32_t bl_tiles_index(const bl_tiles *t, uint32_t size, const void *at);
/* All that is free goes back to the system, as far as that works. */
void bl_tiles_release_free(bl_tiles *t);

#endif
