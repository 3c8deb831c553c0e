#include "runtime/prefix_cache.h"

#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/pages.h"
#include "runtime/tiles.h"

#define NODE_TOKENS  ((uint32_t)BL_KV_TILE)
#define MAX_GROUPS   8u  /* windows that differ; the decoder's layers have one besides "all" */
#define MAX_SIBLINGS 64u /* children of one node that are compared token by token */
#define MAX_NODES    ((uint64_t)1 << 20)

/* Nodes are numbers; 0 is none. Untouched zero pages are an empty cache. */
typedef struct {
    uint64_t hash;     /* of a root: its tenant's; of a full node: the parent's number and the tokens' */
    uint64_t tenant;   /* of a root */
    uint64_t groups;   /* bit g: holds the tiles of group g's layers */
    uint32_t n_tokens; /* 0: a root */
    uint32_t snapshot; /* tile number + 1; 0: none */
    uint32_t chain;    /* next with the same bucket, or next free node */
    uint32_t parent, child, next, prev; /* siblings, last used first */
    uint32_t newer, older; /* all but roots. A parent is newer than its children: the oldest is a leaf */
    int32_t tokens[NODE_TOKENS];
} node;

struct bl_prefix_cache {
    bl_kv_geometry g;
    bl_tiles *tiles;
    const bl_tiles_bytes *bytes;
    uint32_t *size_of, *group_of; /* [n_layers] */
    uint32_t windows[MAX_GROUPS]; /* 0: all positions */
    uint64_t group_cost[MAX_GROUPS];
    uint32_t n_groups, snapshot_size;
    uint64_t snapshot_cost, state_bytes, seed;
    bl_pages books;
    node *nodes;          /* [2 * max_nodes + 2]: there are not more roots than other nodes, and one to be */
    uint32_t *node_tiles; /* [the same][n_layers]: tile number + 1 */
    uint32_t *buckets;    /* [n_buckets] */
    uint32_t n_buckets, max_nodes, n_nodes, n_fresh, free_node;
    uint32_t newest, oldest;
    bl_prefix_cache_stats stats;
};

/* ---- sizes ------------------------------------------------------------------------------------------- */

uint64_t bl_prefix_cache_node_bytes(const bl_kv_geometry *g) {
    uint64_t n = bl_pages_round(bl_kv_state_bytes(g));
    for (uint32_t i = 0; i < g->n_layers; i++) {
        n += bl_kv_tile_cost(g, i);
    }
    return n;
}

/* Nodes that the bytes are good for. Those behind a window hold full layers' tiles only; where there are no
 * full layers they are counted as a sixteenth of a node, so that there is an end. */
static uint32_t count_nodes(const bl_kv_geometry *g, uint64_t max_bytes) {
    uint64_t least = bl_pages_round(bl_prefix_cache_node_bytes(g) / 16 + 1), n = 0;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        n += g->layers[i].window == 0 ? bl_kv_tile_cost(g, i) : 0;
    }
    return (uint32_t)BL_MIN(max_bytes / BL_MAX(least, n), MAX_NODES);
}

static uint32_t count_buckets(uint32_t n_nodes) {
    uint32_t n = 64;
    while (n < n_nodes) {
        n *= 2;
    }
    return n;
}

static uint64_t books_bytes(const bl_kv_geometry *g, uint32_t max_nodes) {
    uint64_t slots = 2 * (uint64_t)max_nodes + 2;
    return slots * (sizeof(node) + g->n_layers * sizeof(uint32_t)) +
           count_buckets(max_nodes) * sizeof(uint32_t);
}

/* Sizes of tiles; size_of (may be NULL) hears of each layer's. The snapshot's is last. False: too many. */
static bool find_sizes(const bl_kv_geometry *g, uint64_t max_bytes, bl_tile_size sizes[BL_TILES_MAX_SIZES],
                       uint32_t *ret_n, uint32_t *size_of) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_layers; i++) {
        uint32_t k = bl_tile_size_place(sizes, &n, BL_TILES_MAX_SIZES - 1, bl_kv_layer_tile_bytes(g, i));
        if (k == BL_TILES_MAX_SIZES - 1) {
            return false;
        }
        sizes[k].n_tiles = max_bytes / bl_kv_tile_cost(g, i);
        if (size_of) {
            size_of[i] = k;
        }
    }
    uint64_t bytes = bl_kv_state_bytes(g);
    if (bytes > 0) {
        sizes[n++] = (bl_tile_size){bytes, max_bytes / bl_pages_round(bytes)};
    }
    *ret_n = n;
    return true;
}

uint64_t bl_prefix_cache_bookkeeping_bytes(const bl_kv_geometry *g, uint64_t max_bytes) {
    bl_tile_size sizes[BL_TILES_MAX_SIZES];
    uint32_t n = 0;
    uint64_t tiles = 0;
    if (!find_sizes(g, max_bytes, sizes, &n, NULL)) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        tiles = BL_MAX(tiles, sizes[i].n_tiles); /* the budget goes to one size or to another */
    }
    return books_bytes(g, count_nodes(g, max_bytes)) + bl_tiles_bookkeeping_bytes(tiles);
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static bl_code find_groups(bl_prefix_cache *c, bl_err *err) {
    for (uint32_t i = 0; i < c->g.n_layers; i++) {
        uint32_t w = c->g.layers[i].window, k = 0;
        while (k < c->n_groups && c->windows[k] != w) {
            k++;
        }
        if (k == MAX_GROUPS) {
            BL_FAIL(err, BL_ENOTSUP, "prefix cache: layers of more than %u windows", MAX_GROUPS);
        }
        c->n_groups = BL_MAX(c->n_groups, k + 1);
        c->windows[k] = w;
        c->group_of[i] = k;
        c->group_cost[k] += bl_kv_tile_cost(&c->g, i);
    }
    return BL_OK;
}

static bl_code open_parts(bl_prefix_cache *c, uint64_t max_bytes, bl_err *err) {
    const bl_kv_geometry *g = &c->g;
    bl_tile_size sizes[BL_TILES_MAX_SIZES];
    uint32_t n_sizes = 0;
    if (max_bytes < bl_prefix_cache_node_bytes(g)) {
        BL_FAIL(err, BL_EINVAL, "a prefix cache of %llu bytes: one node of %u tokens takes %llu",
                (unsigned long long)max_bytes, NODE_TOKENS,
                (unsigned long long)bl_prefix_cache_node_bytes(g));
    }
    c->size_of = bl_alloc_array(g->n_layers, sizeof *c->size_of);
    c->group_of = bl_alloc_array(g->n_layers, sizeof *c->group_of);
    if (!c->size_of || !c->group_of) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the prefix cache");
    }
    if (!find_sizes(g, max_bytes, sizes, &n_sizes, c->size_of)) {
        BL_FAIL(err, BL_ENOTSUP, "prefix cache: layers of more than %u shapes", BL_TILES_MAX_SIZES - 1);
    }
    BL_TRY(find_groups(c, err));
    BL_TRY(bl_tiles_open(sizes, n_sizes, max_bytes, false, "the prefix cache", &c->tiles, err));
    c->bytes = bl_tiles_get_bytes(c->tiles);
    c->state_bytes = bl_kv_state_bytes(g);
    c->snapshot_cost = bl_pages_round(c->state_bytes);
    c->snapshot_size = n_sizes - 1;
    c->max_nodes = count_nodes(g, max_bytes);
    c->n_buckets = count_buckets(c->max_nodes);
    BL_TRY(bl_pages_map(books_bytes(g, c->max_nodes), "the prefix cache's nodes", &c->books, err));
    size_t slots = 2 * (size_t)c->max_nodes + 2;
    c->nodes = (void *)c->books.base;
    c->node_tiles = (void *)(c->nodes + slots);
    c->buckets = c->node_tiles + slots * g->n_layers;
    c->n_fresh = 1;
    c->stats.max_bytes = max_bytes;
    /* where a token string falls in the table is not to be foreseen by whoever sends it */
    c->seed = bl_clock_mono_ns();
    return BL_OK;
}

bl_code bl_prefix_cache_open(const bl_kv_geometry *g, uint64_t max_bytes, bl_prefix_cache **ret,
                             bl_err *err) {
    bl_prefix_cache *c = bl_alloc(sizeof *c);
    if (!c) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the prefix cache");
    }
    c->g = *g;
    bl_code rc = open_parts(c, max_bytes, err);
    if (rc != BL_OK) {
        bl_prefix_cache_close(c);
        return rc;
    }
    *ret = c;
    return BL_OK;
}

void bl_prefix_cache_close(bl_prefix_cache *c) {
    if (c) {
        bl_tiles_close(c->tiles);
        bl_pages_unmap(&c->books);
        bl_free(c->size_of);
        bl_free(c->group_of);
        bl_free(c);
    }
}

/* ---- finding nodes ----------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 32);
}

static uint64_t hash_tokens(const bl_prefix_cache *c, uint32_t parent, const int32_t *tokens) {
    uint64_t h = mix(c->seed, parent);
    for (uint32_t i = 0; i < NODE_TOKENS; i += 2) {
        h = mix(h, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]);
    }
    return mix(h, 1);
}

static uint64_t hash_tenant(const bl_prefix_cache *c, uint64_t tenant) {
    return mix(mix(mix(c->seed, 0), tenant), 2);
}

static uint32_t *bucket(const bl_prefix_cache *c, uint64_t hash) {
    return &c->buckets[hash & (c->n_buckets - 1)];
}

static uint32_t find_root(const bl_prefix_cache *c, uint64_t tenant) {
    uint32_t i = *bucket(c, hash_tenant(c, tenant));
    while (i > 0 && (c->nodes[i].n_tokens > 0 || c->nodes[i].tenant != tenant)) {
        i = c->nodes[i].chain;
    }
    return i;
}

/* The full child with these 64 tokens. */
static uint32_t find_full(const bl_prefix_cache *c, uint32_t parent, const int32_t *tokens) {
    uint64_t h = hash_tokens(c, parent, tokens);
    uint32_t i = *bucket(c, h);
    while (i > 0) {
        const node *x = &c->nodes[i];
        if (x->hash == h && x->parent == parent && x->n_tokens == NODE_TOKENS &&
            memcmp(x->tokens, tokens, sizeof x->tokens) == 0) {
            break;
        }
        i = x->chain;
    }
    return i;
}

static uint32_t common_prefix(const node *x, const int32_t *tokens, uint32_t n) {
    uint32_t k = 0, max = BL_MIN(n, x->n_tokens);
    while (k < max && x->tokens[k] == tokens[k]) {
        k++;
    }
    return k;
}

/* Can a sequence go on at n from this node, whose ancestors hold the last runs[g] tiles of group g? */
static bool is_usable(const bl_prefix_cache *c, const node *x, uint32_t n, const uint32_t *runs) {
    uint32_t end = (n + NODE_TOKENS - 1) / NODE_TOKENS;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t need = end - bl_kv_lowest_seen(c->windows[g], n) / NODE_TOKENS;
        if (need > (x->groups >> g & 1 ? runs[g] + 1 : 0)) {
            return false;
        }
    }
    return c->g.n_states == 0 || x->snapshot > 0;
}

typedef struct {
    uint32_t node, n; /* positions; 0: none */
} match;

/* The best of a node's children that is not a whole full one: its number, and how far it agrees. */
static match match_children(const bl_prefix_cache *c, uint32_t parent, uint32_t pos, const int32_t *tokens,
                            uint32_t n, const uint32_t *runs) {
    match best = {0};
    uint32_t i = c->nodes[parent].child;
    for (uint32_t seen = 0; i > 0 && seen < MAX_SIBLINGS; seen++, i = c->nodes[i].next) {
        const node *x = &c->nodes[i];
        uint32_t k = common_prefix(x, tokens, n);
        bool whole = c->g.n_states == 0 || k == x->n_tokens; /* a snapshot is of the node's end */
        if (k > 0 && whole && pos + k > best.n && is_usable(c, x, pos + k, runs)) {
            best = (match){i, pos + k};
        }
    }
    return best;
}

static match find(const bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, uint32_t n) {
    uint32_t runs[MAX_GROUPS] = {0};
    uint32_t cur = find_root(c, tenant);
    match best = {0};
    for (uint32_t pos = 0; cur > 0 && pos < n; pos += NODE_TOKENS) {
        uint32_t full = n - pos >= NODE_TOKENS ? find_full(c, cur, tokens + pos) : 0;
        if (full > 0 && is_usable(c, &c->nodes[full], pos + NODE_TOKENS, runs)) {
            best = (match){full, pos + NODE_TOKENS};
        } else {
            match m = match_children(c, cur, pos, tokens + pos, n - pos, runs);
            best = m.n > 0 ? m : best;
        }
        for (uint32_t g = 0; full > 0 && g < c->n_groups; g++) {
            runs[g] = c->nodes[full].groups >> g & 1 ? runs[g] + 1 : 0;
        }
        cur = full;
    }
    return best;
}

uint32_t bl_prefix_cache_peek(const bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, uint32_t n) {
    return find(c, tenant, tokens, n).n;
}

/* ---- order of use ------------------------------------------------------------------------------------ */

static void leave_order(bl_prefix_cache *c, uint32_t i) {
    const node *x = &c->nodes[i];
    *(x->newer > 0 ? &c->nodes[x->newer].older : &c->newest) = x->older;
    *(x->older > 0 ? &c->nodes[x->older].newer : &c->oldest) = x->newer;
}

/* Just older than `newer`; 0: the newest of all. */
static void enter_order(bl_prefix_cache *c, uint32_t i, uint32_t newer) {
    node *x = &c->nodes[i];
    x->newer = newer;
    x->older = newer > 0 ? c->nodes[newer].older : c->newest;
    *(newer > 0 ? &c->nodes[newer].older : &c->newest) = i;
    *(x->older > 0 ? &c->nodes[x->older].newer : &c->oldest) = i;
}

static void leave_parent(bl_prefix_cache *c, uint32_t i) {
    const node *x = &c->nodes[i];
    *(x->prev > 0 ? &c->nodes[x->prev].next : &c->nodes[x->parent].child) = x->next;
    if (x->next > 0) {
        c->nodes[x->next].prev = x->prev;
    }
}

static void enter_parent(bl_prefix_cache *c, uint32_t i) {
    node *x = &c->nodes[i], *p = &c->nodes[x->parent];
    x->prev = 0;
    x->next = p->child;
    if (x->next > 0) {
        c->nodes[x->next].prev = i;
    }
    p->child = i;
}

static bool is_root(const bl_prefix_cache *c, uint32_t i) {
    return c->nodes[i].n_tokens == 0;
}

/* The node and what it continues are the last used. */
static void touch(bl_prefix_cache *c, uint32_t i) {
    for (; !is_root(c, i); i = c->nodes[i].parent) {
        leave_order(c, i);
        enter_order(c, i, 0);
        leave_parent(c, i);
        enter_parent(c, i);
    }
}

/* ---- making and dropping nodes ----------------------------------------------------------------------- */

static uint32_t *tiles_of(const bl_prefix_cache *c, uint32_t i) {
    return c->node_tiles + (size_t)i * c->g.n_layers;
}

static void enter_bucket(bl_prefix_cache *c, uint32_t i, uint64_t hash) {
    uint32_t *b = bucket(c, hash);
    c->nodes[i].hash = hash;
    c->nodes[i].chain = *b;
    *b = i;
}

static void leave_bucket(bl_prefix_cache *c, uint32_t i) {
    uint32_t *at = bucket(c, c->nodes[i].hash);
    while (*at != i) {
        at = &c->nodes[*at].chain;
    }
    *at = c->nodes[i].chain;
}

/* An empty node; the caller saw to it that there is one left. */
static uint32_t new_slot(bl_prefix_cache *c) {
    uint32_t i = c->free_node;
    if (i > 0) {
        c->free_node = c->nodes[i].chain;
    } else {
        BL_ASSERT(c->n_fresh < 2 * (uint64_t)c->max_nodes + 2);
        i = c->n_fresh++;
    }
    memset(&c->nodes[i], 0, sizeof c->nodes[i]);
    return i;
}

static void free_slot(bl_prefix_cache *c, uint32_t i) {
    c->nodes[i].chain = c->free_node;
    c->free_node = i;
}

static uint32_t new_root(bl_prefix_cache *c, uint64_t tenant) {
    uint32_t i = new_slot(c);
    c->nodes[i].tenant = tenant;
    enter_bucket(c, i, hash_tenant(c, tenant));
    return i;
}

static void drop_root_if_empty(bl_prefix_cache *c, uint32_t root) {
    if (c->nodes[root].child == 0) {
        leave_bucket(c, root);
        free_slot(c, root);
    }
}

static void drop_tiles(bl_prefix_cache *c, uint32_t i, uint64_t groups) {
    for (uint32_t l = 0; l < c->g.n_layers; l++) {
        uint32_t *t = &tiles_of(c, i)[l];
        if (groups >> c->group_of[l] & 1 && *t > 0) {
            bl_tiles_give_back(c->tiles, c->size_of[l], *t - 1);
            *t = 0;
        }
    }
    c->nodes[i].groups &= ~groups;
}

/* A leaf. Its root stays when it is `keep_root`. */
static void drop(bl_prefix_cache *c, uint32_t i, uint32_t keep_root) {
    node *x = &c->nodes[i];
    drop_tiles(c, i, UINT64_MAX);
    if (x->snapshot > 0) {
        bl_tiles_give_back(c->tiles, c->snapshot_size, x->snapshot - 1);
    }
    if (x->n_tokens == NODE_TOKENS) {
        leave_bucket(c, i);
    }
    leave_order(c, i);
    leave_parent(c, i);
    if (is_root(c, x->parent) && x->parent != keep_root) {
        drop_root_if_empty(c, x->parent);
    }
    free_slot(c, i);
    c->n_nodes--;
}

/* What a store is at: it evicts others, never its own path, whose last node and length these are. */
typedef struct {
    bl_kv_seq *s;
    const int32_t *tokens;
    uint32_t len, root, pinned, depth;
} storing;

/* Drops a window's tiles that the path's end cannot see any more, the last such: what a prompt that is too
 * long to be kept whole needs least. (Its first nodes keep theirs longest: others may part there.) */
static bool strip(bl_prefix_cache *c, const storing *w) {
    uint32_t i = w->pinned;
    for (uint32_t k = w->depth; k-- > 0; i = c->nodes[i].parent) {
        for (uint32_t g = 0; g < c->n_groups; g++) {
            uint32_t seen = bl_kv_lowest_seen(c->windows[g], w->depth * NODE_TOKENS) / NODE_TOKENS;
            if (k < seen && c->nodes[i].groups >> g & 1) {
                drop_tiles(c, i, (uint64_t)1 << g);
                return true;
            }
        }
    }
    return false;
}

/* `strips`: to go on, the path may lose what its end does not see. */
static bool make_room(bl_prefix_cache *c, const storing *w, uint64_t bytes, uint32_t n_nodes, bool strips) {
    bool room = true;
    while (room && (c->bytes->held + bytes > c->bytes->capacity || c->n_nodes + n_nodes > c->max_nodes)) {
        if (c->oldest > 0 && c->oldest != w->pinned) {
            drop(c, c->oldest, w->root);
            c->stats.n_evicted_nodes++;
        } else {
            room = strips && c->n_nodes + n_nodes <= c->max_nodes && strip(c, w);
        }
    }
    return room;
}

/* Groups whose tile k the sequence holds. */
static uint64_t groups_held(const bl_prefix_cache *c, const storing *w, uint32_t k) {
    uint64_t groups = 0;
    for (uint32_t l = 0; l < c->g.n_layers; l++) {
        groups |= bl_kv_seq_tile(w->s, l, k) ? (uint64_t)1 << c->group_of[l] : 0;
    }
    return groups;
}

static void copy_tile(const bl_prefix_cache *c, const storing *w, uint32_t i, uint32_t l, uint32_t k) {
    memcpy(bl_tiles_at(c->tiles, c->size_of[l], tiles_of(c, i)[l] - 1), bl_kv_seq_tile(w->s, l, k),
           (size_t)bl_kv_layer_tile_bytes(&c->g, l));
}

/* Copies tile k of these groups' layers to a node that has none of them. All or nothing. */
static bool copy_groups(bl_prefix_cache *c, const storing *w, uint32_t i, uint32_t k, uint64_t groups,
                        bool strips) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        bytes += groups >> g & 1 ? c->group_cost[g] : 0;
    }
    if (!make_room(c, w, bytes, 0, strips)) {
        return false;
    }
    for (uint32_t l = 0; l < c->g.n_layers; l++) {
        uint32_t tile;
        if (!(groups >> c->group_of[l] & 1)) {
            continue;
        }
        if (bl_tiles_take(c->tiles, c->size_of[l], &tile, NULL) != BL_OK) {
            drop_tiles(c, i, groups);
            return false;
        }
        tiles_of(c, i)[l] = tile + 1;
        copy_tile(c, w, i, l, k);
    }
    c->nodes[i].groups |= groups;
    return true;
}

static bool copy_states(bl_prefix_cache *c, const storing *w, uint32_t i) {
    uint32_t tile;
    if (c->nodes[i].snapshot > 0) {
        return true;
    }
    if (!make_room(c, w, c->snapshot_cost, 0, true) ||
        bl_tiles_take(c->tiles, c->snapshot_size, &tile, NULL) != BL_OK) {
        return false;
    }
    memcpy(bl_tiles_at(c->tiles, c->snapshot_size, tile), bl_kv_seq_states(w->s), (size_t)c->state_bytes);
    c->nodes[i].snapshot = tile + 1;
    return true;
}

/* A new child with tile k; 0 when there is no room. */
static uint32_t add_node(bl_prefix_cache *c, const storing *w, uint32_t parent, uint32_t k) {
    uint32_t t = BL_MIN(NODE_TOKENS, w->len - k * NODE_TOKENS);
    if (!make_room(c, w, 0, 1, false)) {
        return 0;
    }
    uint32_t i = new_slot(c);
    if (!copy_groups(c, w, i, k, groups_held(c, w, k), true)) {
        free_slot(c, i);
        return 0;
    }
    node *x = &c->nodes[i];
    x->parent = parent;
    x->n_tokens = t;
    memcpy(x->tokens, w->tokens + (size_t)k * NODE_TOKENS, t * sizeof *x->tokens);
    if (t == NODE_TOKENS) {
        enter_bucket(c, i, hash_tokens(c, parent, x->tokens));
    }
    enter_parent(c, i);
    enter_order(c, i, is_root(c, parent) ? 0 : parent);
    c->n_nodes++;
    c->stats.n_stored_tokens += t;
    return i;
}

/* The node takes on what follows its tokens in tile k, all of which the sequence holds. */
static void grow_node(bl_prefix_cache *c, storing *w, uint32_t i, uint32_t k) {
    node *x = &c->nodes[i];
    uint32_t t = BL_MIN(NODE_TOKENS, w->len - k * NODE_TOKENS);
    c->stats.n_stored_tokens += t - x->n_tokens;
    memcpy(x->tokens, w->tokens + (size_t)k * NODE_TOKENS, t * sizeof *x->tokens);
    x->n_tokens = t;
    if (t == NODE_TOKENS) {
        enter_bucket(c, i, hash_tokens(c, x->parent, x->tokens));
    }
    for (uint32_t l = 0; l < c->g.n_layers; l++) {
        if (x->groups >> c->group_of[l] & 1) {
            copy_tile(c, w, i, l, k);
        }
    }
}

/* ---- store and load ---------------------------------------------------------------------------------- */

/* Gives a node the tiles that it lacks and the sequence holds. */
static void fill_node(bl_prefix_cache *c, const storing *w, uint32_t i, uint32_t k) {
    uint64_t missing = groups_held(c, w, k) & ~c->nodes[i].groups;
    if (missing) {
        (void)copy_groups(c, w, i, k, missing, false);
    }
}

/* The child for tile k, made, grown or found; 0 when it does not fit. */
static uint32_t put_child(bl_prefix_cache *c, storing *w, uint32_t parent, uint32_t k) {
    const int32_t *tokens = w->tokens + (size_t)k * NODE_TOKENS;
    uint32_t t = BL_MIN(NODE_TOKENS, w->len - k * NODE_TOKENS), grows = 0, covers = 0, exact = 0;
    uint64_t held = groups_held(c, w, k);
    uint32_t i = c->nodes[parent].child;
    for (uint32_t seen = 0; i > 0 && seen < MAX_SIBLINGS; seen++, i = c->nodes[i].next) {
        const node *x = &c->nodes[i];
        uint32_t n = common_prefix(x, tokens, t);
        exact = n == t && x->n_tokens == t ? i : exact;
        covers = n == t && (held & ~x->groups) == 0 && c->g.n_states == 0 ? i : covers;
        grows = n == x->n_tokens && n < t && (x->groups & ~held) == 0 && x->snapshot == 0 ? i : grows;
    }
    i = exact > 0 ? exact : covers > 0 ? covers : grows;
    if (i == 0) {
        return add_node(c, w, parent, k);
    }
    leave_order(c, i);
    enter_order(c, i, is_root(c, parent) ? 0 : parent);
    leave_parent(c, i);
    enter_parent(c, i);
    w->pinned = i;
    w->depth = k + 1;
    if (exact == 0 && covers == 0) {
        grow_node(c, w, i, k);
    }
    if (c->nodes[i].n_tokens == t) { /* a longer one's tiles are not ours to give */
        fill_node(c, w, i, k);
    }
    return i;
}

static void store_path(bl_prefix_cache *c, storing *w, bool snapshot) {
    uint32_t cur = w->root, k = 0, n_full = w->len / NODE_TOKENS, next;
    while (k < n_full && (next = find_full(c, cur, w->tokens + (size_t)k * NODE_TOKENS)) > 0) {
        cur = next;
        k++;
    }
    touch(c, cur);
    w->pinned = is_root(c, cur) ? 0 : cur;
    w->depth = k;
    for (uint32_t i = cur, at = k; at > 0; i = c->nodes[i].parent) {
        fill_node(c, w, i, --at);
    }
    bool rest = w->len % NODE_TOKENS > 0, with_states = snapshot && c->g.n_states > 0;
    for (; k < n_full; k++) {
        cur = put_child(c, w, cur, k);
        if (cur == 0) {
            return;
        }
        w->pinned = cur;
        w->depth = k + 1;
    }
    if (rest && (c->g.n_states == 0 || snapshot)) {
        cur = put_child(c, w, cur, k);
        w->pinned = cur;
        w->depth = k + 1;
    } else if (rest) {
        return;
    }
    if (with_states && cur > 0 && !copy_states(c, w, cur) && rest) {
        drop(c, cur, w->root); /* nobody could go on from there */
    }
}

void bl_prefix_cache_store(bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, bl_kv_seq *s,
                           bool snapshot) {
    storing w = {.s = s, .tokens = tokens, .len = bl_kv_seq_len(s), .root = find_root(c, tenant)};
    if (w.len == 0) {
        return;
    }
    if (w.root == 0) {
        w.root = new_root(c, tenant);
    }
    store_path(c, &w, snapshot);
    drop_root_if_empty(c, w.root);
}

uint32_t bl_prefix_cache_load(bl_prefix_cache *c, uint64_t tenant, const int32_t *tokens, uint32_t n,
                              bl_kv_seq *s) {
    match m = find(c, tenant, tokens, n);
    c->stats.n_lookups++;
    if (m.n == 0 || bl_kv_seq_adopt(s, m.n, NULL) != BL_OK) {
        return 0;
    }
    uint32_t i = m.node;
    for (uint32_t k = (m.n - 1) / NODE_TOKENS + 1; k-- > 0; i = c->nodes[i].parent) {
        for (uint32_t l = 0; l < c->g.n_layers; l++) {
            void *to = bl_kv_seq_tile(s, l, k);
            if (to) {
                uint32_t tile = tiles_of(c, i)[l];
                BL_ASSERT(tile > 0);
                memcpy(to, bl_tiles_at(c->tiles, c->size_of[l], tile - 1),
                       (size_t)bl_kv_layer_tile_bytes(&c->g, l));
            }
        }
    }
    if (c->g.n_states > 0) {
        memcpy(bl_kv_seq_states(s), bl_tiles_at(c->tiles, c->snapshot_size, c->nodes[m.node].snapshot - 1),
               (size_t)c->state_bytes);
    }
    touch(c, m.node);
    c->stats.n_hits++;
    c->stats.n_tokens_hit += m.n;
    return m.n;
}

void bl_prefix_cache_clear(bl_prefix_cache *c) {
    while (c->oldest > 0) {
        drop(c, c->oldest, 0);
    }
    bl_tiles_release_free(c->tiles);
}

void bl_prefix_cache_get_stats(const bl_prefix_cache *c, bl_prefix_cache_stats *ret) {
    *ret = c->stats;
    ret->bytes_in_use = c->bytes->held;
}
