#include "runtime/kv.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os.h"

/* The decoder has layers of two shapes at most. */
#define MAX_CLASSES 4u

#define NO_TILE UINT32_MAX

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14, with headers from before it */
#endif

/* A list of tiles, newest first. Numbers are one more than the tile's, so that untouched zero pages are
 * "none": the bookkeeping of tiles that were never used takes no memory. */
typedef struct {
    uint32_t next, prev;
} tile_link;
typedef struct {
    uint32_t newest, oldest;
} tile_list;

/* Tiles of one size: numbers [first, first + n_tiles) of the pool, one behind the other from base. */
typedef struct {
    uint64_t tile_bytes, cost; /* cost: in whole pages, the distance between two tiles */
    uint8_t *base;
    uint32_t first, n_tiles;
    uint32_t per_slot; /* contiguous: tiles of one sequence */
    uint32_t n_fresh;  /* paged: tiles from here on were never used */
    tile_list warm;    /* free, but committed */
    tile_list cold;    /* paged: free, used once and given back to the system */
} tile_class;

typedef struct {
    uint32_t class, first, n_tiles; /* contiguous: its ring among the slot's tiles of the class */
} layer_place;

/* Mapped on demand, so that what is not used costs nothing. */
typedef struct {
    uint8_t *base;
    size_t size_bytes;
} area;

struct bl_kv_seq {
    bl_kv_pool *pool;
    uint32_t slot, len;
    uint32_t end;                   /* tiles [first_tile[i], end) of every layer i are held */
    void **tiles;                   /* [n_layers][table_len] */
    bl_kv_table *tables;            /* [n_layers] */
    uint32_t *first_tile;           /* [n_layers] */
    float *states;                  /* all of them, one behind the other */
    bool in_use, has_states, dirty; /* dirty: the states may not be zero */
};

struct bl_kv_pool {
    bl_kv_geometry g;
    uint64_t capacity, in_use, held, committed; /* in_use to the byte, the others in whole pages */
    tile_class classes[MAX_CLASSES];
    uint32_t n_classes, table_len;
    layer_place *places; /* [n_layers] */
    area memory;         /* all classes' tiles */
    area books;          /* links, then what is committed, then the sequences' tables of tiles */
    area states;
    tile_link *links;   /* [tiles] */
    bool *is_committed; /* [tiles] */
    bl_kv_seq *seqs;    /* [n_seqs] */
    bl_kv_table *tables;
    uint32_t *first_tiles;
};

/* ---- arithmetic -------------------------------------------------------------------------------------- */

static uint32_t tiles_for(uint64_t n_positions) {
    return (uint32_t)((n_positions + BL_KV_TILE - 1) / BL_KV_TILE);
}

static uint64_t whole_pages(uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

uint32_t bl_kv_max_tiles(const bl_kv_geometry *g, uint32_t layer) {
    uint32_t all = tiles_for(g->n_context);
    uint32_t window = g->layers[layer].window;
    if (window == 0) {
        return all;
    }
    /* A step of max_rows rows sees max_rows + window - 1 positions, which can start anywhere in a tile. */
    return BL_MIN(all, tiles_for((uint64_t)g->max_rows + window - 1) + 1);
}

static uint64_t layer_tile_bytes(const bl_kv_geometry *g, uint32_t layer) {
    return bl_kv_tile_bytes(g->layers[layer].n_kv_heads, g->layers[layer].head_dim, g->f32);
}

uint64_t bl_kv_tile_cost(const bl_kv_geometry *g, uint32_t layer) {
    return whole_pages(layer_tile_bytes(g, layer));
}

uint64_t bl_kv_seq_bytes(const bl_kv_geometry *g, uint32_t n_positions) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        uint64_t bytes, n = BL_MIN(tiles_for(n_positions), bl_kv_max_tiles(g, i));
        if (!bl_mul_u64(n, bl_kv_tile_cost(g, i), &bytes) || !bl_add_u64(sum, bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

bl_code bl_kv_pool_bytes(const bl_kv_geometry *g, uint64_t *ret, bl_err *err) {
    uint64_t one = bl_kv_seq_bytes(g, g->n_context), all, least = 0;
    if (one == UINT64_MAX || !bl_mul_u64(one, g->n_seqs, &all)) {
        BL_FAIL(err, BL_ERANGE, "key/value storage: %u layers of %u positions for %u sequences overflow",
                g->n_layers, g->n_context, g->n_seqs);
    }
    for (uint32_t i = 0; i < g->n_layers; i++) {
        least += bl_kv_tile_cost(g, i);
    }
    if (g->capacity_bytes > 0 && g->capacity_bytes < least) {
        BL_FAIL(err, BL_ELIMIT, "key/value storage: %llu bytes are allowed, %u positions already take %llu",
                (unsigned long long)g->capacity_bytes, BL_KV_TILE, (unsigned long long)least);
    }
    *ret = g->capacity_bytes > 0 ? BL_MIN(g->capacity_bytes, all) : all;
    return BL_OK;
}

static uint64_t state_floats(const bl_kv_geometry *g, uint32_t n) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < n; i++) {
        floats += g->states[i].n_floats;
    }
    return floats;
}

uint64_t bl_kv_state_bytes(const bl_kv_geometry *g) {
    return state_floats(g, g->n_states) * sizeof(float);
}

uint64_t bl_kv_bytes_per_token(const bl_kv_geometry *g) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        n += layer_tile_bytes(g, i) / BL_KV_TILE;
    }
    return n;
}

const char *bl_kv_storage_name(bl_kv_storage k) {
    return k == BL_KV_PAGED ? "paged" : "contiguous";
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* Reserves addresses. Nothing is committed, and nothing is counted against the machine's memory yet. */
static bl_code map_area(area *a, uint64_t bytes, const char *what, bl_err *err) {
    if (bytes == 0) {
        return BL_OK;
    }
    void *at = bytes > SIZE_MAX ? MAP_FAILED
                                : bl_os.mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        BL_FAIL(err, BL_ENOMEM, "%llu bytes of addresses for %s: %s", (unsigned long long)bytes, what,
                bytes > SIZE_MAX ? "too many" : strerror(errno));
    }
    /* Huge pages would commit a neighbour's memory with a tile's own, beyond the budget. Where the system
     * knows none, nothing is to be done. */
    (void)bl_os.madvise(at, (size_t)bytes, MADV_NOHUGEPAGE);
    *a = (area){at, (size_t)bytes};
    return BL_OK;
}

static void unmap_area(area *a) {
    if (a->base) {
        bl_os.munmap(a->base, a->size_bytes);
    }
}

/* Makes memory stand behind whole pages of addresses, now: a step that finds none would be killed, a call
 * that fails can wait. */
static bl_code populate(uint8_t *at, uint64_t bytes, const char *what, bl_err *err) {
    if (bl_os.madvise(at, (size_t)bytes, MADV_POPULATE_WRITE) == 0) {
        return BL_OK;
    }
    if (errno != EINVAL) {
        BL_FAIL(err, BL_ENOMEM, "%llu bytes of %s: %s", (unsigned long long)bytes, what, strerror(errno));
    }
    /* Linux before 5.14 */
    uint64_t page = whole_pages(1);
    for (uint64_t i = 0; i < bytes; i += page) {
        ((volatile uint8_t *)at)[i] = 0;
    }
    return BL_OK;
}

/* ---- free tiles -------------------------------------------------------------------------------------- */

static void push(bl_kv_pool *p, tile_list *l, uint32_t tile) {
    p->links[tile] = (tile_link){.next = l->newest};
    if (l->newest > 0) {
        p->links[l->newest - 1].prev = tile + 1;
    } else {
        l->oldest = tile + 1;
    }
    l->newest = tile + 1;
}

static void unlink_tile(bl_kv_pool *p, tile_list *l, uint32_t tile) {
    tile_link k = p->links[tile];
    *(k.prev > 0 ? &p->links[k.prev - 1].next : &l->newest) = k.next;
    *(k.next > 0 ? &p->links[k.next - 1].prev : &l->oldest) = k.prev;
}

static uint32_t pop(bl_kv_pool *p, tile_list *l) {
    if (l->newest == 0) {
        return NO_TILE;
    }
    uint32_t tile = l->newest - 1;
    unlink_tile(p, l, tile);
    return tile;
}

static uint8_t *address(const tile_class *c, uint32_t tile) {
    return c->base + (uint64_t)(tile - c->first) * c->cost;
}

/* Gives free tiles back to the system, the longest free of a class first, until `bytes` more may be
 * committed. The caller knows that what is held leaves room for them. */
static bl_code make_room(bl_kv_pool *p, uint64_t bytes, bl_err *err) {
    for (uint32_t i = 0; i < p->n_classes && p->committed + bytes > p->capacity; i++) {
        tile_class *c = &p->classes[i];
        while (c->warm.oldest > 0 && p->committed + bytes > p->capacity) {
            uint32_t tile = c->warm.oldest - 1;
            if (bl_os.madvise(address(c, tile), (size_t)c->cost, MADV_DONTNEED) != 0) {
                BL_FAIL(err, BL_ENOMEM, "giving back %llu free bytes of key/value storage: %s",
                        (unsigned long long)c->cost, strerror(errno));
            }
            unlink_tile(p, &c->warm, tile);
            p->is_committed[tile] = false;
            p->committed -= c->cost;
            if (p->g.storage == BL_KV_PAGED) {
                push(p, &c->cold, tile);
            }
        }
    }
    BL_ASSERT(p->committed + bytes <= p->capacity);
    return BL_OK;
}

static bl_code commit_tile(bl_kv_pool *p, tile_class *c, uint32_t tile, bl_err *err) {
    BL_TRY(populate(address(c, tile), c->cost, "key/value storage", err));
    p->is_committed[tile] = true;
    p->committed += c->cost;
    return BL_OK;
}

/* The tile that is k of the layer in the sequence's slot. */
static bl_code take_contiguous(const bl_kv_seq *s, uint32_t layer, uint32_t k, uint32_t *ret, bl_err *err) {
    bl_kv_pool *p = s->pool;
    const layer_place *l = &p->places[layer];
    tile_class *c = &p->classes[l->class];
    uint32_t tile = c->first + s->slot * c->per_slot + l->first + k % l->n_tiles;
    if (p->is_committed[tile]) {
        unlink_tile(p, &c->warm, tile);
    } else {
        BL_TRY(make_room(p, c->cost, err));
        BL_TRY(commit_tile(p, c, tile, err));
    }
    *ret = tile;
    return BL_OK;
}

static bl_code take_paged(bl_kv_pool *p, uint32_t layer, uint32_t *ret, bl_err *err) {
    tile_class *c = &p->classes[p->places[layer].class];
    uint32_t tile = pop(p, &c->warm);
    if (tile == NO_TILE) {
        BL_TRY(make_room(p, c->cost, err));
        tile = pop(p, &c->cold);
        if (tile == NO_TILE) {
            BL_ASSERT(c->n_fresh < c->n_tiles);
            tile = c->first + c->n_fresh++;
        }
        bl_code rc = commit_tile(p, c, tile, err);
        if (rc != BL_OK) {
            push(p, &c->cold, tile);
            return rc;
        }
    }
    *ret = tile;
    return BL_OK;
}

static bl_code take(bl_kv_seq *s, uint32_t layer, uint32_t k, bl_err *err) {
    bl_kv_pool *p = s->pool;
    const tile_class *c = &p->classes[p->places[layer].class];
    uint32_t tile = 0;
    if (p->g.storage == BL_KV_PAGED) {
        BL_TRY(take_paged(p, layer, &tile, err));
    } else {
        BL_TRY(take_contiguous(s, layer, k, &tile, err));
    }
    s->tiles[(size_t)layer * p->table_len + k] = address(c, tile);
    p->in_use += c->tile_bytes;
    p->held += c->cost;
    return BL_OK;
}

static void give_back(bl_kv_seq *s, uint32_t layer, uint32_t k) {
    bl_kv_pool *p = s->pool;
    void **at = &s->tiles[(size_t)layer * p->table_len + k];
    if (*at) {
        tile_class *c = &p->classes[p->places[layer].class];
        push(p, &c->warm, c->first + (uint32_t)((uint64_t)((uint8_t *)*at - c->base) / c->cost));
        p->in_use -= c->tile_bytes;
        p->held -= c->cost;
        *at = NULL;
    }
}

/* ---- open and close ---------------------------------------------------------------------------------- */

/* Finds the classes of tiles and each layer's place. *ret_n: tiles in all. */
static bl_code lay_out(bl_kv_pool *p, uint32_t *ret_n, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        uint64_t bytes = layer_tile_bytes(g, i);
        uint32_t c = 0;
        while (c < p->n_classes && p->classes[c].tile_bytes != bytes) {
            c++;
        }
        if (c == MAX_CLASSES) {
            BL_FAIL(err, BL_ENOTSUP, "key/value storage: layers of more than %u shapes", MAX_CLASSES);
        }
        if (c == p->n_classes) {
            p->classes[p->n_classes++] = (tile_class){.tile_bytes = bytes, .cost = bl_kv_tile_cost(g, i)};
        }
        p->places[i] = (layer_place){c, p->classes[c].per_slot, bl_kv_max_tiles(g, i)};
        uint64_t n = (uint64_t)p->classes[c].per_slot + p->places[i].n_tiles;
        p->classes[c].per_slot = (uint32_t)BL_MIN(n, UINT32_MAX); /* too many: said below */
    }
    uint64_t total = 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        tile_class *k = &p->classes[c];
        uint64_t n = (uint64_t)k->per_slot * g->n_seqs;
        if (g->storage == BL_KV_PAGED) {
            n = BL_MIN(n, p->capacity / k->cost);
        }
        if (total + n >= UINT32_MAX) {
            BL_FAIL(err, BL_ERANGE,
                    "key/value storage: %u layers of %u positions for %u sequences are too many tiles",
                    g->n_layers, g->n_context, g->n_seqs);
        }
        k->first = (uint32_t)total;
        k->n_tiles = (uint32_t)n;
        total += n;
    }
    *ret_n = (uint32_t)total;
    return BL_OK;
}

static bl_code map_tiles(bl_kv_pool *p, bl_err *err) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint64_t n;
        if (!bl_mul_u64(p->classes[c].n_tiles, p->classes[c].cost, &n) || !bl_add_u64(bytes, n, &bytes)) {
            BL_FAIL(err, BL_ERANGE, "key/value storage: %u tiles overflow", p->classes[c].n_tiles);
        }
    }
    BL_TRY(map_area(&p->memory, bytes, "key/value storage", err));
    uint8_t *base = p->memory.base;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        p->classes[c].base = base;
        base += p->classes[c].n_tiles * p->classes[c].cost;
    }
    return BL_OK;
}

static bl_code map_books(bl_kv_pool *p, uint32_t n_tiles, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    uint64_t tables, links = (uint64_t)n_tiles * sizeof(tile_link), flags = whole_pages(n_tiles);
    if (!bl_mul_u64((uint64_t)g->n_seqs * g->n_layers, p->table_len * sizeof(void *), &tables) ||
        tables > UINT64_MAX / 2) {
        BL_FAIL(err, BL_ERANGE, "key/value storage: %u tables overflow", g->n_seqs);
    }
    BL_TRY(map_area(&p->books, links + flags + tables, "key/value tables", err));
    p->links = (void *)p->books.base;
    p->is_committed = (void *)(p->books.base + links);
    void **tiles = (void *)(p->books.base + links + flags);
    uint64_t state_bytes = whole_pages(bl_kv_state_bytes(g)), all_states;
    if (!bl_mul_u64(state_bytes, g->n_seqs, &all_states)) {
        BL_FAIL(err, BL_ERANGE, "recurrent states of %u sequences overflow", g->n_seqs);
    }
    BL_TRY(map_area(&p->states, all_states, "recurrent states", err));
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        bl_kv_seq *s = &p->seqs[i];
        *s = (bl_kv_seq){.pool = p,
                         .slot = i,
                         .tiles = tiles + (size_t)i * g->n_layers * p->table_len,
                         .tables = p->tables + (size_t)i * g->n_layers,
                         .first_tile = p->first_tiles + (size_t)i * g->n_layers};
        s->states = all_states > 0 ? (void *)(p->states.base + i * state_bytes) : NULL;
        for (uint32_t l = 0; l < g->n_layers; l++) {
            s->tables[l] =
                (bl_kv_table){.tiles = s->tiles + (size_t)l * p->table_len, .n_tiles = p->table_len};
        }
    }
    return BL_OK;
}

static bl_code open_parts(bl_kv_pool *p, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    uint32_t n_tiles = 0;
    size_t n_tables = (size_t)g->n_seqs * g->n_layers;
    BL_TRY(bl_kv_pool_bytes(g, &p->capacity, err));
    p->table_len = tiles_for(g->n_context);
    p->places = bl_alloc_array(g->n_layers, sizeof *p->places);
    p->seqs = bl_alloc_array(g->n_seqs, sizeof *p->seqs);
    p->tables = bl_alloc_array(n_tables, sizeof *p->tables);
    p->first_tiles = bl_alloc_array(n_tables, sizeof *p->first_tiles);
    if (!p->places || !p->seqs || !p->tables || !p->first_tiles) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the tables of %u sequences", g->n_seqs);
    }
    BL_TRY(lay_out(p, &n_tiles, err));
    BL_TRY(map_tiles(p, err));
    return map_books(p, n_tiles, err);
}

bl_code bl_kv_pool_open(const bl_kv_geometry *g, bl_kv_pool **ret, bl_err *err) {
    bl_kv_pool *p = bl_alloc(sizeof *p);
    if (!p) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the key/value pool");
    }
    p->g = *g;
    bl_code rc = open_parts(p, err);
    if (rc != BL_OK) {
        bl_kv_pool_close(p);
        return rc;
    }
    *ret = p;
    return BL_OK;
}

void bl_kv_pool_close(bl_kv_pool *p) {
    if (!p) {
        return;
    }
    unmap_area(&p->memory);
    unmap_area(&p->books);
    unmap_area(&p->states);
    bl_free(p->places);
    bl_free(p->seqs);
    bl_free(p->tables);
    bl_free(p->first_tiles);
    bl_free(p);
}

uint64_t bl_kv_pool_capacity(const bl_kv_pool *p) {
    return p->capacity;
}

uint64_t bl_kv_pool_bytes_in_use(const bl_kv_pool *p) {
    return p->in_use;
}

uint64_t bl_kv_pool_bytes_committed(const bl_kv_pool *p) {
    return p->committed;
}

bool bl_kv_pool_can_ever_fit(const bl_kv_pool *p, uint32_t n_positions) {
    return n_positions <= p->g.n_context && bl_kv_seq_bytes(&p->g, n_positions) <= p->capacity;
}

/* ---- sequences --------------------------------------------------------------------------------------- */

bl_code bl_kv_seq_new(bl_kv_pool *p, bl_kv_seq **ret, bl_err *err) {
    bl_kv_seq *s = NULL;
    for (uint32_t i = 0; i < p->g.n_seqs && !s; i++) {
        s = p->seqs[i].in_use ? NULL : &p->seqs[i];
    }
    if (!s) {
        BL_FAIL(err, BL_EBUSY, "%u sequences exist already, %u may", p->g.n_seqs, p->g.n_seqs);
    }
    if (s->states && !s->has_states) {
        BL_TRY(
            populate((uint8_t *)s->states, whole_pages(bl_kv_state_bytes(&p->g)), "recurrent states", err));
        s->has_states = true;
    }
    s->in_use = true;
    *ret = s;
    return BL_OK;
}

void bl_kv_seq_free(bl_kv_seq *s) {
    if (s) {
        bl_kv_seq_cut(s, 0);
        s->in_use = false;
    }
}

uint32_t bl_kv_seq_len(const bl_kv_seq *s) {
    return s->len;
}

/* Gives back tiles from `end` on in every layer. */
static void shorten(bl_kv_seq *s, uint32_t end) {
    for (uint32_t i = 0; i < s->pool->g.n_layers; i++) {
        for (uint32_t k = BL_MAX(end, s->first_tile[i]); k < s->end; k++) {
            give_back(s, i, k);
        }
    }
    s->end = BL_MIN(s->end, end);
}

/* Takes the tiles up to `end` that the sequence does not hold, of all layers or of none. */
static bl_code lengthen(bl_kv_seq *s, uint32_t end, bl_err *err) {
    bl_kv_pool *p = s->pool;
    uint32_t was = s->end;
    uint64_t need = 0;
    for (uint32_t i = 0; i < p->g.n_layers; i++) {
        uint32_t from = BL_MAX(was, s->first_tile[i]);
        need += from < end ? (uint64_t)(end - from) * p->classes[p->places[i].class].cost : 0;
    }
    if (need > p->capacity - p->held) {
        BL_FAIL(err, BL_ELIMIT, "key/value storage: %llu more bytes are needed, %llu of %llu are in use",
                (unsigned long long)need, (unsigned long long)p->held, (unsigned long long)p->capacity);
    }
    s->end = BL_MAX(was, end);
    for (uint32_t i = 0; i < p->g.n_layers; i++) {
        for (uint32_t k = BL_MAX(was, s->first_tile[i]); k < end; k++) {
            bl_code rc = take(s, i, k, err);
            if (rc != BL_OK) {
                shorten(s, was);
                return rc;
            }
        }
    }
    return BL_OK;
}

bl_code bl_kv_seq_reserve(bl_kv_seq *s, uint32_t n, bl_err *err) {
    bl_kv_pool *p = s->pool;
    if (n > p->g.max_rows || n > p->g.n_context - s->len) {
        BL_FAIL(err, BL_ELIMIT, "%u more positions after %u: %u per step and %u in all are allowed", n,
                s->len, p->g.max_rows, p->g.n_context);
    }
    for (uint32_t i = 0; i < p->g.n_layers; i++) {
        uint32_t keep = bl_kv_lowest_seen(p->g.layers[i].window, s->len) / BL_KV_TILE;
        for (; s->first_tile[i] < keep; s->first_tile[i]++) {
            give_back(s, i, s->first_tile[i]);
        }
    }
    BL_TRY(lengthen(s, tiles_for((uint64_t)s->len + n), err));
    s->dirty |= n > 0;
    return BL_OK;
}

void bl_kv_seq_commit(bl_kv_seq *s, uint32_t n) {
    BL_ASSERT(tiles_for((uint64_t)s->len + n) <= s->end && n <= s->pool->g.n_context - s->len);
    s->len += n;
}

void bl_kv_seq_trim(bl_kv_seq *s) {
    shorten(s, tiles_for(s->len));
}

bool bl_kv_seq_can_cut(const bl_kv_seq *s, uint32_t n) {
    if (n > s->len || (s->pool->g.n_states > 0 && n > 0 && n < s->len)) {
        return false;
    }
    for (uint32_t i = 0; i < s->pool->g.n_layers; i++) {
        if (n > 0 && bl_kv_lowest_seen(s->pool->g.layers[i].window, n) / BL_KV_TILE < s->first_tile[i]) {
            return false;
        }
    }
    return true;
}

void bl_kv_seq_cut(bl_kv_seq *s, uint32_t n) {
    shorten(s, tiles_for(n));
    s->len = n;
    if (n == 0) {
        memset(s->first_tile, 0, s->pool->g.n_layers * sizeof *s->first_tile);
        if (s->dirty && s->states) {
            memset(s->states, 0, (size_t)bl_kv_state_bytes(&s->pool->g));
        }
        s->dirty = false;
    }
}

bl_code bl_kv_seq_adopt(bl_kv_seq *s, uint32_t n, bl_err *err) {
    bl_kv_pool *p = s->pool;
    BL_ASSERT(s->len == 0);
    shorten(s, 0);
    if (n > p->g.n_context) {
        BL_FAIL(err, BL_ELIMIT, "%u positions to go on from, %u are allowed", n, p->g.n_context);
    }
    for (uint32_t i = 0; i < p->g.n_layers; i++) {
        s->first_tile[i] = bl_kv_lowest_seen(p->g.layers[i].window, n) / BL_KV_TILE;
    }
    bl_code rc = lengthen(s, tiles_for(n), err);
    if (rc != BL_OK) {
        memset(s->first_tile, 0, p->g.n_layers * sizeof *s->first_tile);
        return rc;
    }
    s->len = n;
    s->dirty |= n > 0;
    return BL_OK;
}

void *bl_kv_seq_tile(const bl_kv_seq *s, uint32_t layer, uint32_t k) {
    return k < s->pool->table_len ? s->tiles[(size_t)layer * s->pool->table_len + k] : NULL;
}

const bl_kv_table *bl_kv_seq_table(const bl_kv_seq *s, uint32_t layer) {
    return &s->tables[layer];
}

float *bl_kv_seq_state(const bl_kv_seq *s, uint32_t i) {
    return s->states + state_floats(&s->pool->g, i);
}

float *bl_kv_seq_states(const bl_kv_seq *s) {
    return s->states;
}
