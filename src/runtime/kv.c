#include "runtime/kv.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/os.h"

/* The decoder has layers of two shapes at most. */
#define MAX_CLASSES 4u

/* Tiles of one size. */
typedef struct {
    uint64_t tile_bytes;
    uint8_t *base;
    uint32_t *free_tiles; /* stack of tile numbers, a part of the pool's */
    uint32_t n_free, n_tiles;
} tile_class;

struct bl_kv_pool {
    bl_kv_geometry g;
    uint8_t *base; /* of all classes, one behind the other */
    uint64_t size_bytes;
    uint32_t *free_tiles;
    tile_class classes[MAX_CLASSES];
    uint32_t n_classes;
    uint8_t *class_of; /* [n_layers] */
};

struct bl_kv_seq {
    bl_kv_pool *pool;
    uint32_t len;
    void **tiles;         /* [n_layers][table_len] */
    bl_kv_table *tables;  /* [n_layers] */
    uint32_t *first_tile; /* [n_layers]: lowest tile still held */
    uint32_t table_len;
    float *states; /* all of them, one behind the other */
};

static uint32_t tiles_for(uint64_t n_positions) {
    return (uint32_t)((n_positions + BL_KV_TILE - 1) / BL_KV_TILE);
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

/* The classes of a geometry: tile sizes and counts; class_of (may be NULL) hears of each layer's. */
static bl_code count_tiles(const bl_kv_geometry *g, tile_class classes[MAX_CLASSES], uint32_t *ret_n,
                           uint8_t *class_of, bl_err *err) {
    uint64_t total = 0;
    *ret_n = 0;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        uint64_t bytes = layer_tile_bytes(g, i), n = 0;
        uint32_t c = 0;
        while (c < *ret_n && classes[c].tile_bytes != bytes) {
            c++;
        }
        if (c == MAX_CLASSES) {
            BL_FAIL(err, BL_ENOTSUP, "key/value storage: layers of more than %u shapes", MAX_CLASSES);
        }
        if (c == *ret_n) {
            classes[(*ret_n)++] = (tile_class){.tile_bytes = bytes};
        }
        if (!bl_mul_u64(bl_kv_max_tiles(g, i), g->n_seqs, &n) || !bl_add_u64(total, n, &total) ||
            total > UINT32_MAX) {
            BL_FAIL(err, BL_ERANGE,
                    "key/value storage: %u layers of %u positions for %u sequences are too many tiles",
                    g->n_layers, g->n_context, g->n_seqs);
        }
        classes[c].n_tiles += (uint32_t)n;
        if (class_of) {
            class_of[i] = (uint8_t)c;
        }
    }
    return BL_OK;
}

bl_code bl_kv_pool_bytes(const bl_kv_geometry *g, uint64_t *ret, bl_err *err) {
    tile_class classes[MAX_CLASSES];
    uint32_t n = 0;
    BL_TRY(count_tiles(g, classes, &n, NULL, err));
    *ret = 0;
    for (uint32_t c = 0; c < n; c++) {
        uint64_t bytes;
        if (!bl_mul_u64(classes[c].n_tiles, classes[c].tile_bytes, &bytes) || !bl_add_u64(*ret, bytes, ret)) {
            BL_FAIL(err, BL_ERANGE, "key/value storage: %u tiles overflow", classes[c].n_tiles);
        }
    }
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

/* Deals the storage and the stacks of free tiles out to the classes. */
static void deal_out(bl_kv_pool *p) {
    uint8_t *base = p->base;
    uint32_t *stack = p->free_tiles;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        tile_class *k = &p->classes[c];
        k->base = base;
        k->free_tiles = stack;
        k->n_free = k->n_tiles;
        for (uint32_t i = 0; i < k->n_tiles; i++) {
            k->free_tiles[i] = k->n_tiles - 1 - i; /* low addresses first */
        }
        base += k->n_tiles * k->tile_bytes;
        stack += k->n_tiles;
    }
}

bl_code bl_kv_pool_open(const bl_kv_geometry *g, bl_kv_pool **ret, bl_err *err) {
    uint64_t bytes;
    size_t n = 0;
    BL_TRY(bl_kv_pool_bytes(g, &bytes, err));
    bl_kv_pool *p = bl_alloc(sizeof *p);
    if (p) {
        p->class_of = bl_alloc_array(g->n_layers, sizeof *p->class_of);
    }
    if (!p || !p->class_of) {
        bl_kv_pool_close(p);
        BL_FAIL(err, BL_ENOMEM, "out of memory for the key/value pool");
    }
    bl_code rc = count_tiles(g, p->classes, &p->n_classes, p->class_of, err);
    if (rc != BL_OK) {
        bl_kv_pool_close(p);
        return rc;
    }
    for (uint32_t c = 0; c < p->n_classes; c++) {
        n += p->classes[c].n_tiles;
    }
    p->free_tiles = bl_alloc_array(n, sizeof *p->free_tiles);
    if (!p->free_tiles) {
        bl_kv_pool_close(p);
        BL_FAIL(err, BL_ENOMEM, "out of memory for the table of %zu key/value tiles", n);
    }
    /* Populated at once: what the plan promised is then really there, and no step waits for a page. */
    void *base = bl_os.mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) {
        int e = errno;
        bl_kv_pool_close(p);
        BL_FAIL(err, BL_ENOMEM, "%llu bytes of key/value storage for %u positions: %s",
                (unsigned long long)bytes, g->n_context, strerror(e));
    }
    p->g = *g;
    p->base = base;
    p->size_bytes = bytes;
    deal_out(p);
    *ret = p;
    return BL_OK;
}

void bl_kv_pool_close(bl_kv_pool *p) {
    if (!p) {
        return;
    }
    if (p->base) {
        bl_os.munmap(p->base, (size_t)p->size_bytes);
    }
    bl_free(p->free_tiles);
    bl_free(p->class_of);
    bl_free(p);
}

uint64_t bl_kv_pool_bytes_in_use(const bl_kv_pool *p) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < p->n_classes; c++) {
        bytes += (uint64_t)(p->classes[c].n_tiles - p->classes[c].n_free) * p->classes[c].tile_bytes;
    }
    return bytes;
}

static void *take(bl_kv_pool *p, uint32_t layer) {
    tile_class *c = &p->classes[p->class_of[layer]];
    return c->n_free > 0 ? c->base + c->free_tiles[--c->n_free] * c->tile_bytes : NULL;
}

static void give_back(bl_kv_pool *p, uint32_t layer, void **tile) {
    tile_class *c = &p->classes[p->class_of[layer]];
    if (*tile) {
        BL_ASSERT(c->n_free < c->n_tiles);
        c->free_tiles[c->n_free++] = (uint32_t)((uint64_t)((uint8_t *)*tile - c->base) / c->tile_bytes);
        *tile = NULL;
    }
}

/* ---- sequences --------------------------------------------------------------------------------------- */

bl_code bl_kv_seq_new(bl_kv_pool *p, bl_kv_seq **ret, bl_err *err) {
    uint32_t n_layers = p->g.n_layers;
    bl_kv_seq *s = bl_alloc(sizeof *s);
    if (s) {
        s->pool = p;
        s->table_len = tiles_for(p->g.n_context);
        s->tiles = bl_alloc_array((size_t)n_layers * s->table_len, sizeof *s->tiles);
        s->tables = bl_alloc_array(n_layers, sizeof *s->tables);
        s->first_tile = bl_alloc_array(n_layers, sizeof *s->first_tile);
        s->states = bl_alloc_aligned(64, (size_t)bl_kv_state_bytes(&p->g) + 64);
    }
    if (!s || !s->states || !s->tiles || !s->tables || !s->first_tile) {
        bl_kv_seq_free(s);
        BL_FAIL(err, BL_ENOMEM, "out of memory for the tables and states of a sequence");
    }
    memset(s->states, 0, (size_t)bl_kv_state_bytes(&p->g));
    for (uint32_t i = 0; i < n_layers; i++) {
        s->tables[i] = (bl_kv_table){.tiles = s->tiles + (size_t)i * s->table_len, .n_tiles = s->table_len};
    }
    *ret = s;
    return BL_OK;
}

void bl_kv_seq_free(bl_kv_seq *s) {
    if (!s) {
        return;
    }
    if (s->tiles && s->first_tile && s->states) {
        bl_kv_seq_cut(s, 0);
    }
    bl_free(s->tiles);
    bl_free(s->tables);
    bl_free(s->first_tile);
    bl_free_aligned(s->states);
    bl_free(s);
}

uint32_t bl_kv_seq_len(const bl_kv_seq *s) {
    return s->len;
}

/* Lowest position that position `pos` sees in a layer. */
static uint32_t lowest_seen(uint32_t window, uint32_t pos) {
    return window > 0 && pos + 1 > window ? pos + 1 - window : 0;
}

bl_code bl_kv_seq_extend(bl_kv_seq *s, uint32_t n, bl_err *err) {
    bl_kv_pool *p = s->pool;
    if (n > p->g.max_rows || n > p->g.n_context - s->len) {
        BL_FAIL(err, BL_ELIMIT, "%u more positions after %u: %u per step and %u in all are allowed", n,
                s->len, p->g.max_rows, p->g.n_context);
    }
    uint32_t end = tiles_for((uint64_t)s->len + n);
    for (uint32_t i = 0; i < p->g.n_layers; i++) {
        void **t = s->tiles + (size_t)i * s->table_len;
        uint32_t keep = lowest_seen(p->g.layers[i].window, s->len) / BL_KV_TILE;
        for (; s->first_tile[i] < keep; s->first_tile[i]++) {
            give_back(p, i, &t[s->first_tile[i]]);
        }
        for (uint32_t k = s->len / BL_KV_TILE; k < end; k++) {
            if (!t[k] && !(t[k] = take(p, i))) {
                BL_FAIL(err, BL_EINTERNAL, "the key/value pool is empty at layer %u, position %u", i, s->len);
            }
        }
    }
    s->len += n;
    return BL_OK;
}

bool bl_kv_seq_can_cut(const bl_kv_seq *s, uint32_t n) {
    if (n > s->len || (s->pool->g.n_states > 0 && n > 0 && n < s->len)) {
        return false;
    }
    for (uint32_t i = 0; i < s->pool->g.n_layers; i++) {
        if (n > 0 && lowest_seen(s->pool->g.layers[i].window, n) / BL_KV_TILE < s->first_tile[i]) {
            return false;
        }
    }
    return true;
}

void bl_kv_seq_cut(bl_kv_seq *s, uint32_t n) {
    uint32_t end = tiles_for(n);
    for (uint32_t i = 0; i < s->pool->g.n_layers; i++) {
        void **t = s->tiles + (size_t)i * s->table_len;
        for (uint32_t k = BL_MAX(end, s->first_tile[i]); k < tiles_for(s->len); k++) {
            give_back(s->pool, i, &t[k]);
        }
        s->first_tile[i] = BL_MIN(s->first_tile[i], end);
    }
    if (n == 0) {
        memset(s->states, 0, (size_t)bl_kv_state_bytes(&s->pool->g));
    }
    s->len = n;
}

const bl_kv_table *bl_kv_seq_table(const bl_kv_seq *s, uint32_t layer) {
    return &s->tables[layer];
}

float *bl_kv_seq_state(const bl_kv_seq *s, uint32_t i) {
    return s->states + state_floats(&s->pool->g, i);
}
