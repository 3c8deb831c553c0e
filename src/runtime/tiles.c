#include "runtime/tiles.h"

#include "base/base.h"
#include "base/pages.h"

#define NO_TILE UINT32_MAX

/* A list of tiles, newest first. Numbers are one more than the tile's, so that untouched zero pages are
 * "none": the bookkeeping of tiles that were never used takes no memory. */
typedef struct {
    uint32_t next, prev;
} tile_link;
typedef struct {
    uint32_t newest, oldest;
} tile_list;

/* Tiles of one size, one behind the other. */
typedef struct {
    uint64_t tile_bytes, cost; /* cost: in whole pages, the distance between two tiles */
    uint8_t *base;
    tile_link *links;
    bool *is_committed;
    uint32_t n_tiles;
    uint32_t n_fresh; /* taken anywhere: tiles from here on were never used */
    tile_list warm;   /* free, but committed */
    tile_list cold;   /* taken anywhere: free, used before and given back to the system */
} tile_class;

struct bl_tiles {
    tile_class classes[BL_TILES_MAX_SIZES];
    uint32_t n_classes;
    bool placed;
    const char *what;
    bl_tiles_bytes bytes;
    bl_pages memory, books;
};

uint32_t bl_tile_size_place(bl_tile_size *sizes, uint32_t *n, uint32_t max, uint64_t tile_bytes) {
    uint32_t k = 0;
    while (k < *n && sizes[k].tile_bytes != tile_bytes) {
        k++;
    }
    if (k == *n && k < max) {
        sizes[(*n)++] = (bl_tile_size){.tile_bytes = tile_bytes};
    }
    return k;
}

static void push(tile_class *c, tile_list *l, uint32_t tile) {
    c->links[tile] = (tile_link){.next = l->newest};
    if (l->newest > 0) {
        c->links[l->newest - 1].prev = tile + 1;
    } else {
        l->oldest = tile + 1;
    }
    l->newest = tile + 1;
}

static void unlink_tile(tile_class *c, tile_list *l, uint32_t tile) {
    tile_link k = c->links[tile];
    *(k.prev > 0 ? &c->links[k.prev - 1].next : &l->newest) = k.next;
    *(k.next > 0 ? &c->links[k.next - 1].prev : &l->oldest) = k.prev;
}

static uint32_t pop(tile_class *c, tile_list *l) {
    if (l->newest == 0) {
        return NO_TILE;
    }
    uint32_t tile = l->newest - 1;
    unlink_tile(c, l, tile);
    return tile;
}

static uint8_t *address(const tile_class *c, uint32_t tile) {
    return c->base + (uint64_t)tile * c->cost;
}

uint64_t bl_tiles_bookkeeping_bytes(uint64_t n_tiles) {
    return n_tiles * (sizeof(tile_link) + sizeof(bool));
}

static bl_code map_parts(bl_tiles *t, bl_err *err) {
    uint64_t bytes = 0, n_tiles = 0;
    for (uint32_t i = 0; i < t->n_classes; i++) {
        uint64_t n;
        if (!bl_mul_u64(t->classes[i].n_tiles, t->classes[i].cost, &n) || !bl_add_u64(bytes, n, &bytes)) {
            BL_FAIL(err, BL_ERANGE, "%s: %u tiles overflow", t->what, t->classes[i].n_tiles);
        }
        n_tiles += t->classes[i].n_tiles;
    }
    BL_TRY(bl_pages_map(bytes, t->what, &t->memory, err));
    BL_TRY(bl_pages_map(bl_tiles_bookkeeping_bytes(n_tiles), t->what, &t->books, err));
    uint8_t *base = t->memory.base;
    tile_link *links = (void *)t->books.base;
    bool *flags = (void *)(t->books.base + n_tiles * sizeof *links);
    for (uint32_t i = 0; i < t->n_classes; i++) {
        tile_class *c = &t->classes[i];
        c->base = base;
        c->links = links;
        c->is_committed = flags;
        base += c->n_tiles * c->cost;
        links += c->n_tiles;
        flags += c->n_tiles;
    }
    return BL_OK;
}

bl_code bl_tiles_open(const bl_tile_size *sizes, uint32_t n_sizes, uint64_t capacity, bool placed,
                      const char *what, bl_tiles **ret, bl_err *err) {
    BL_ASSERT(n_sizes <= BL_TILES_MAX_SIZES);
    bl_tiles *t = bl_alloc(sizeof *t);
    if (!t) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for %s", what);
    }
    t->placed = placed;
    t->what = what;
    t->bytes.capacity = capacity;
    t->n_classes = n_sizes;
    for (uint32_t i = 0; i < n_sizes; i++) {
        if (sizes[i].n_tiles >= NO_TILE) {
            bl_tiles_close(t);
            BL_FAIL(err, BL_ERANGE, "%s: %llu tiles are too many", what,
                    (unsigned long long)sizes[i].n_tiles);
        }
        t->classes[i] = (tile_class){.tile_bytes = sizes[i].tile_bytes,
                                     .cost = bl_pages_round(sizes[i].tile_bytes),
                                     .n_tiles = (uint32_t)sizes[i].n_tiles};
    }
    bl_code rc = map_parts(t, err);
    if (rc != BL_OK) {
        bl_tiles_close(t);
        return rc;
    }
    *ret = t;
    return BL_OK;
}

void bl_tiles_close(bl_tiles *t) {
    if (t) {
        bl_pages_unmap(&t->memory);
        bl_pages_unmap(&t->books);
        bl_free(t);
    }
}

const bl_tiles_bytes *bl_tiles_get_bytes(const bl_tiles *t) {
    return &t->bytes;
}

/* The longest free tile of a class goes back to the system. */
static bl_code release_oldest(bl_tiles *t, tile_class *c, bl_err *err) {
    uint32_t tile = c->warm.oldest - 1;
    BL_TRY(bl_pages_release(address(c, tile), c->cost, t->what, err));
    unlink_tile(c, &c->warm, tile);
    c->is_committed[tile] = false;
    t->bytes.committed -= c->cost;
    if (!t->placed) {
        push(c, &c->cold, tile);
    }
    return BL_OK;
}

static bl_code commit_tile(bl_tiles *t, tile_class *c, uint32_t tile, bl_err *err) {
    for (uint32_t i = 0; i < t->n_classes; i++) {
        while (t->classes[i].warm.oldest > 0 && t->bytes.committed + c->cost > t->bytes.capacity) {
            BL_TRY(release_oldest(t, &t->classes[i], err));
        }
    }
    BL_ASSERT(t->bytes.committed + c->cost <= t->bytes.capacity);
    BL_TRY(bl_pages_commit(address(c, tile), c->cost, t->what, err));
    c->is_committed[tile] = true;
    t->bytes.committed += c->cost;
    return BL_OK;
}

static void hold(bl_tiles *t, const tile_class *c) {
    t->bytes.held += c->cost;
    t->bytes.in_use += c->tile_bytes;
}

bl_code bl_tiles_take(bl_tiles *t, uint32_t size, uint32_t *ret, bl_err *err) {
    tile_class *c = &t->classes[size];
    uint32_t tile = pop(c, &c->warm);
    BL_DASSERT(!t->placed);
    if (tile == NO_TILE) {
        tile = pop(c, &c->cold);
        if (tile == NO_TILE) {
            BL_ASSERT(c->n_fresh < c->n_tiles);
            tile = c->n_fresh++;
        }
        bl_code rc = commit_tile(t, c, tile, err);
        if (rc != BL_OK) {
            push(c, &c->cold, tile);
            return rc;
        }
    }
    hold(t, c);
    *ret = tile;
    return BL_OK;
}

bl_code bl_tiles_take_at(bl_tiles *t, uint32_t size, uint32_t tile, bl_err *err) {
    tile_class *c = &t->classes[size];
    BL_DASSERT(t->placed && tile < c->n_tiles);
    if (c->is_committed[tile]) {
        unlink_tile(c, &c->warm, tile);
    } else {
        BL_TRY(commit_tile(t, c, tile, err));
    }
    hold(t, c);
    return BL_OK;
}

void bl_tiles_give_back(bl_tiles *t, uint32_t size, uint32_t tile) {
    tile_class *c = &t->classes[size];
    push(c, &c->warm, tile);
    t->bytes.held -= c->cost;
    t->bytes.in_use -= c->tile_bytes;
}

void *bl_tiles_at(const bl_tiles *t, uint32_t size, uint32_t tile) {
    return address(&t->classes[size], tile);
}

uint32_t bl_tiles_index(const bl_tiles *t, uint32_t size, const void *at) {
    const tile_class *c = &t->classes[size];
    return (uint32_t)((uint64_t)((const uint8_t *)at - c->base) / c->cost);
}

void bl_tiles_release_free(bl_tiles *t) {
    for (uint32_t i = 0; i < t->n_classes; i++) {
        while (t->classes[i].warm.oldest > 0 && release_oldest(t, &t->classes[i], NULL) == BL_OK) {
        }
    }
}
