#include "runtime/kv.h"

#include <string.h>

#include "base/base.h"
#include "base/pages.h"
#include "runtime/tiles.h"

/* The decoder has layers of two shapes at most. */
#define MAX_CLASSES 4u

typedef struct {
    uint32_t class, first, n_tiles; /* contiguous: its ring among the slot's tiles of the class */
    uint64_t cost;
} layer_place;

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
    bl_tile_size sizes[MAX_CLASSES];
    uint32_t per_slot[MAX_CLASSES]; /* tiles of one sequence */
    uint32_t n_classes, table_len;
    layer_place *places; /* [n_layers] */
    bl_tiles *tiles;
    const bl_tiles_bytes *bytes;
    bl_pages books; /* the sequences' tables of tiles */
    bl_pages states;
    bl_kv_seq *seqs; /* [n_seqs] */
    bl_kv_table *tables;
    uint32_t *first_tiles;
};

/* ---- arithmetic -------------------------------------------------------------------------------------- */

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

uint64_t bl_kv_layer_tile_bytes(const bl_kv_geometry *g, uint32_t layer) {
    return bl_kv_tile_bytes(g->layers[layer].n_kv_heads, g->layers[layer].head_dim, g->f32);
}

uint64_t bl_kv_tile_cost(const bl_kv_geometry *g, uint32_t layer) {
    return bl_pages_round(bl_kv_layer_tile_bytes(g, layer));
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
        n += bl_kv_layer_tile_bytes(g, i) / BL_KV_TILE;
    }
    return n;
}

uint64_t bl_kv_bookkeeping_bytes(const bl_kv_geometry *g) {
    uint64_t n_tiles = 0, tables = (uint64_t)g->n_layers * (tiles_for(g->n_context) * sizeof(void *) + 32u);
    for (uint32_t i = 0; i < g->n_layers; i++) {
        n_tiles += bl_kv_max_tiles(g, i);
    }
    return g->n_seqs * (tables + sizeof(bl_kv_seq) + bl_tiles_bookkeeping_bytes(n_tiles));
}

const char *bl_kv_storage_name(bl_kv_storage k) {
    return k == BL_KV_PAGED ? "paged" : "contiguous";
}

/* ---- tiles ------------------------------------------------------------------------------------------- */

static bl_code take(bl_kv_seq *s, uint32_t layer, uint32_t k, bl_err *err) {
    bl_kv_pool *p = s->pool;
    const layer_place *l = &p->places[layer];
    uint32_t tile = 0;
    if (p->g.storage == BL_KV_PAGED) {
        BL_TRY(bl_tiles_take(p->tiles, l->class, &tile, err));
    } else {
        tile = s->slot * p->per_slot[l->class] + l->first + k % l->n_tiles;
        BL_TRY(bl_tiles_take_at(p->tiles, l->class, tile, err));
    }
    s->tiles[(size_t)layer * p->table_len + k] = bl_tiles_at(p->tiles, l->class, tile);
    return BL_OK;
}

static void give_back(bl_kv_seq *s, uint32_t layer, uint32_t k) {
    bl_kv_pool *p = s->pool;
    void **at = &s->tiles[(size_t)layer * p->table_len + k];
    if (*at) {
        uint32_t class = p->places[layer].class;
        bl_tiles_give_back(p->tiles, class, bl_tiles_index(p->tiles, class, *at));
        *at = NULL;
    }
}

/* ---- open and close ---------------------------------------------------------------------------------- */

/* Finds the sizes of tiles and each layer's place. */
static bl_code lay_out(bl_kv_pool *p, uint64_t capacity, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        uint32_t c = bl_tile_size_place(p->sizes, &p->n_classes, MAX_CLASSES, bl_kv_layer_tile_bytes(g, i));
        if (c == MAX_CLASSES) {
            BL_FAIL(err, BL_ENOTSUP, "key/value storage: layers of more than %u shapes", MAX_CLASSES);
        }
        p->places[i] = (layer_place){c, p->per_slot[c], bl_kv_max_tiles(g, i), bl_kv_tile_cost(g, i)};
        uint64_t n = (uint64_t)p->per_slot[c] + p->places[i].n_tiles;
        p->per_slot[c] = (uint32_t)BL_MIN(n, UINT32_MAX); /* too many: opening the tiles says so */
    }
    for (uint32_t c = 0; c < p->n_classes; c++) {
        uint64_t n = (uint64_t)p->per_slot[c] * g->n_seqs;
        bool all = g->storage == BL_KV_CONTIGUOUS;
        p->sizes[c].n_tiles = all ? n : BL_MIN(n, capacity / bl_pages_round(p->sizes[c].tile_bytes));
    }
    return BL_OK;
}

static bl_code map_books(bl_kv_pool *p, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    uint64_t tables, state_bytes = bl_pages_round(bl_kv_state_bytes(g)), states;
    if (!bl_mul_u64((uint64_t)g->n_seqs * g->n_layers, p->table_len * sizeof(void *), &tables) ||
        !bl_mul_u64(state_bytes, g->n_seqs, &states)) {
        BL_FAIL(err, BL_ERANGE, "key/value storage: tables and states of %u sequences overflow", g->n_seqs);
    }
    BL_TRY(bl_pages_map(tables, "key/value tables", &p->books, err));
    BL_TRY(bl_pages_map(states, "recurrent states", &p->states, err));
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        bl_kv_seq *s = &p->seqs[i];
        *s = (bl_kv_seq){.pool = p,
                         .slot = i,
                         .tiles = (void **)(void *)p->books.base + (size_t)i * g->n_layers * p->table_len,
                         .tables = p->tables + (size_t)i * g->n_layers,
                         .first_tile = p->first_tiles + (size_t)i * g->n_layers};
        s->states = states > 0 ? (void *)(p->states.base + i * state_bytes) : NULL;
        for (uint32_t l = 0; l < g->n_layers; l++) {
            s->tables[l] =
                (bl_kv_table){.tiles = s->tiles + (size_t)l * p->table_len, .n_tiles = p->table_len};
        }
    }
    return BL_OK;
}

static bl_code open_parts(bl_kv_pool *p, bl_err *err) {
    const bl_kv_geometry *g = &p->g;
    uint64_t capacity;
    size_t n_tables = (size_t)g->n_seqs * g->n_layers;
    BL_TRY(bl_kv_pool_bytes(g, &capacity, err));
    p->table_len = tiles_for(g->n_context);
    p->places = bl_alloc_array(g->n_layers, sizeof *p->places);
    p->seqs = bl_alloc_array(g->n_seqs, sizeof *p->seqs);
    p->tables = bl_alloc_array(n_tables, sizeof *p->tables);
    p->first_tiles = bl_alloc_array(n_tables, sizeof *p->first_tiles);
    if (!p->places || !p->seqs || !p->tables || !p->first_tiles) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the tables of %u sequences", g->n_seqs);
    }
    BL_TRY(lay_out(p, capacity, err));
    BL_TRY(bl_tiles_open(p->sizes, p->n_classes, capacity, g->storage == BL_KV_CONTIGUOUS,
                         "key/value storage", &p->tiles, err));
    p->bytes = bl_tiles_get_bytes(p->tiles);
    return map_books(p, err);
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
    bl_tiles_close(p->tiles);
    bl_pages_unmap(&p->books);
    bl_pages_unmap(&p->states);
    bl_free(p->places);
    bl_free(p->seqs);
    bl_free(p->tables);
    bl_free(p->first_tiles);
    bl_free(p);
}

uint64_t bl_kv_pool_capacity(const bl_kv_pool *p) {
    return p->bytes->capacity;
}

uint64_t bl_kv_pool_bytes_in_use(const bl_kv_pool *p) {
    return p->bytes->in_use;
}

uint64_t bl_kv_pool_bytes_committed(const bl_kv_pool *p) {
    return p->bytes->committed;
}

bool bl_kv_pool_can_ever_fit(const bl_kv_pool *p, uint32_t n_positions) {
    return n_positions <= p->g.n_context && bl_kv_seq_bytes(&p->g, n_positions) <= p->bytes->capacity;
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
        BL_TRY(bl_pages_commit(s->states, bl_pages_round(bl_kv_state_bytes(&p->g)), "recurrent states", err));
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
        need += from < end ? (uint64_t)(end - from) * p->places[i].cost : 0;
    }
    if (need > p->bytes->capacity - p->bytes->held) {
        BL_FAIL(err, BL_ELIMIT, "key/value storage: %llu more bytes are needed, %llu of %llu are in use",
                (unsigned long long)need, (unsigned long long)p->bytes->held,
                (unsigned long long)p->bytes->capacity);
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
