/* The key/value pool under random operations, against a naive model of what each sequence must hold: both
 * storages side by side do the same, refuse the same and keep what they hold; no tile belongs to two places,
 * nothing is lost, and what is committed (counted at the system call) stays within the budget. The seed is
 * printed on failure.
 */
#include "../unit/cmocka_all.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "base/rng.h"
#include "runtime/kv.h"

#define MAX_LAYERS  5u
#define MAX_SEQS    3u
#define MAX_CONTEXT 1500u
#define MAX_TILES   ((MAX_CONTEXT + BL_KV_TILE - 1) / BL_KV_TILE)
#define N_OPS       120

static uint32_t below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(bl_rng_next(seed) % n);
}

/* ---- the system calls, counted ----------------------------------------------------------------------- */

static struct {
    uint64_t committed;
    bool no_populate;      /* a kernel that does not know it */
    uint32_t fail_percent; /* of the calls */
    uint64_t seed, n_failed;
} calls;

static int counting_madvise(void *at, size_t n, int advice) {
    assert_int_equal((uintptr_t)at % 4096, 0);
    if (advice == MADV_POPULATE_WRITE && calls.no_populate) {
        errno = EINVAL;
        return -1;
    }
    if (calls.fail_percent > 0 && advice != MADV_NOHUGEPAGE && below(&calls.seed, 100) < calls.fail_percent) {
        calls.n_failed++;
        errno = ENOMEM;
        return -1;
    }
    calls.committed += advice == MADV_POPULATE_WRITE ? n : 0;
    calls.committed -= advice == MADV_DONTNEED ? n : 0;
    return madvise(at, n, advice);
}

/* ---- the model --------------------------------------------------------------------------------------- */

typedef enum { ABSENT, HELD, DROPPED } tile_fate; /* DROPPED: no later position sees it */

typedef struct {
    bool exists;
    uint32_t len;
    tile_fate fate[MAX_LAYERS][MAX_TILES];
} model_seq;

typedef struct {
    bl_kv_layer layers[MAX_LAYERS];
    bl_kv_geometry g;
    uint64_t capacity, cost[MAX_LAYERS], bytes[MAX_LAYERS];
    model_seq seqs[MAX_SEQS];
} model;

static uint64_t model_held(const model *m, bool cost) {
    uint64_t n = 0;
    for (uint32_t s = 0; s < m->g.n_seqs; s++) {
        for (uint32_t l = 0; l < m->g.n_layers; l++) {
            for (uint32_t k = 0; k < MAX_TILES; k++) {
                n += m->seqs[s].fate[l][k] == HELD ? (cost ? m->cost[l] : m->bytes[l]) : 0;
            }
        }
    }
    return n;
}

/* Tiles in which a position of [from, to) lies are wanted; true when there is room, and then they are held.
 */
static bool model_take(model *m, model_seq *s, const uint32_t from[MAX_LAYERS], uint32_t to) {
    model_seq after = *s;
    uint64_t need = 0;
    for (uint32_t l = 0; l < m->g.n_layers; l++) {
        for (uint32_t p = from[l]; p < to; p++) {
            tile_fate *f = &after.fate[l][p / BL_KV_TILE];
            need += *f == HELD ? 0 : m->cost[l];
            *f = HELD;
        }
    }
    if (model_held(m, true) + need > m->capacity) {
        return false;
    }
    *s = after;
    return true;
}

/* Lowest position that the query at `pos` sees, by the definition. */
static uint32_t lowest(const model *m, uint32_t layer, uint32_t pos) {
    uint32_t w = m->g.layers[layer].window, k = pos;
    while (w > 0 ? k > 0 && pos - (k - 1) < w : k > 0) {
        k--;
    }
    return k;
}

static bl_code model_reserve(model *m, model_seq *s, uint32_t n) {
    uint32_t from[MAX_LAYERS];
    if (n > m->g.max_rows || s->len + n > m->g.n_context) {
        return BL_ELIMIT;
    }
    for (uint32_t l = 0; l < m->g.n_layers; l++) {
        from[l] = s->len;
        for (uint32_t k = 0; k < lowest(m, l, s->len) / BL_KV_TILE; k++) {
            s->fate[l][k] = DROPPED;
        }
    }
    return model_take(m, s, from, s->len + n) ? BL_OK : BL_ELIMIT;
}

static void model_shorten(const model *m, model_seq *s, uint32_t len) {
    for (uint32_t l = 0; l < m->g.n_layers; l++) {
        for (uint32_t k = 0; k < MAX_TILES; k++) {
            if (k * BL_KV_TILE >= len && s->fate[l][k] == HELD) {
                s->fate[l][k] = ABSENT;
            }
        }
    }
}

static bool model_can_cut(const model *m, const model_seq *s, uint32_t n) {
    if (n > s->len || (m->g.n_states > 0 && n > 0 && n < s->len)) {
        return false;
    }
    for (uint32_t l = 0; l < m->g.n_layers && n > 0; l++) {
        for (uint32_t k = lowest(m, l, n) / BL_KV_TILE; k <= n / BL_KV_TILE && k < MAX_TILES; k++) {
            if (s->fate[l][k] == DROPPED) {
                return false;
            }
        }
    }
    return true;
}

static void model_cut(const model *m, model_seq *s, uint32_t n) {
    model_shorten(m, s, n);
    s->len = n;
    if (n == 0) {
        memset(s->fate, 0, sizeof s->fate);
    }
}

static bl_code model_adopt(model *m, model_seq *s, uint32_t n) {
    uint32_t from[MAX_LAYERS];
    model_cut(m, s, 0);
    if (n > m->g.n_context) {
        return BL_ELIMIT;
    }
    for (uint32_t l = 0; l < m->g.n_layers; l++) {
        from[l] = lowest(m, l, n);
        from[l] -= from[l] % BL_KV_TILE; /* the tile that n itself will be in, where it begins before n */
    }
    if (!model_take(m, s, from, n)) {
        return BL_ELIMIT;
    }
    for (uint32_t l = 0; l < m->g.n_layers; l++) {
        for (uint32_t k = 0; k < from[l] / BL_KV_TILE; k++) {
            s->fate[l][k] = DROPPED;
        }
    }
    s->len = n;
    return BL_OK;
}

/* ---- one pool beside its model ----------------------------------------------------------------------- */

typedef struct {
    model m;
    bl_kv_pool *pool;
    bl_kv_seq *seqs[MAX_SEQS];
    uint64_t marks[MAX_SEQS][MAX_LAYERS][MAX_TILES]; /* what is written in the tile; 0: nothing yet */
    uint64_t next_mark, seed;
    uint64_t committed; /* by the system calls */
} machine;

/* Every tile that is held keeps the mark it got when it was taken; a new one gets its own. */
static void check_tiles(machine *x) {
    const model *m = &x->m;
    for (uint32_t s = 0; s < m->g.n_seqs; s++) {
        for (uint32_t l = 0; l < m->g.n_layers; l++) {
            uint32_t n = 0;
            size_t words = (size_t)m->bytes[l] / sizeof(uint64_t);
            for (uint32_t k = 0; k < MAX_TILES; k++) {
                uint64_t *mark = &x->marks[s][l][k];
                uint64_t *tile = x->seqs[s] ? bl_kv_seq_tile(x->seqs[s], l, k) : NULL;
                if ((tile != NULL) != (m->seqs[s].fate[l][k] == HELD)) {
                    fail_msg("seed %llu: sequence %u, layer %u, tile %u is %s", (unsigned long long)x->seed,
                             s, l, k, tile ? "held" : "missing");
                }
                n += tile != NULL;
                if (!tile) {
                    *mark = 0;
                    continue;
                }
                assert_int_equal((uintptr_t)tile % 64, 0);
                for (size_t i = 0; *mark > 0 && i < words; i += i + 64 < words ? 63 : 1) {
                    if (tile[i] != *mark) {
                        fail_msg("seed %llu: sequence %u, layer %u, tile %u lost its contents",
                                 (unsigned long long)x->seed, s, l, k);
                    }
                }
                if (*mark == 0) {
                    *mark = ++x->next_mark;
                    for (size_t i = 0; i < words; i++) {
                        tile[i] = *mark;
                    }
                }
            }
            assert_true(n <= bl_kv_max_tiles(&m->g, l));
        }
    }
    assert_int_equal(bl_kv_pool_bytes_in_use(x->pool), model_held(m, false));
    assert_int_equal(bl_kv_pool_bytes_committed(x->pool), x->committed);
    assert_in_range(x->committed, model_held(m, true), m->capacity);
}

/* An operation's own calls are booked on its pool. */
#define BOOKED(x, expr) (calls.committed = 0, (expr), (x)->committed += calls.committed)

typedef enum { OP_RESERVE, OP_STEP, OP_TRIM, OP_CUT, OP_ADOPT, OP_RENEW, OP__MAX } op_kind;
typedef struct {
    op_kind kind;
    uint32_t seq, n, part;
} op;

/* The models may differ when calls fail, so that the code is handed out and not compared here. */
static bl_code do_reserve(machine *x, const op *o, uint32_t commit) {
    bl_kv_seq *s = x->seqs[o->seq];
    model_seq *q = &x->m.seqs[o->seq];
    model_seq before = *q;
    bl_code rc;
    bl_code want = model_reserve(&x->m, q, o->n);
    BOOKED(x, rc = bl_kv_seq_reserve(s, o->n, NULL));
    if (rc != want) {
        assert_int_equal(rc, BL_ENOMEM);
        assert_int_equal(want, BL_OK);
        for (uint32_t l = 0; l < x->m.g.n_layers; l++) { /* what was taken went back, what fell out did too */
            for (uint32_t k = 0; k < MAX_TILES; k++) {
                q->fate[l][k] =
                    q->fate[l][k] == HELD && before.fate[l][k] != HELD ? before.fate[l][k] : q->fate[l][k];
            }
        }
    }
    if (rc == BL_OK) {
        bl_kv_seq_commit(s, commit);
        q->len += commit;
    }
    return rc;
}

static bl_code do_adopt(machine *x, const op *o) {
    bl_code rc, want = model_adopt(&x->m, &x->m.seqs[o->seq], o->n);
    bl_kv_seq_cut(x->seqs[o->seq], 0); /* and what is held after may be other tiles */
    memset(x->marks[o->seq], 0, sizeof x->marks[o->seq]);
    BOOKED(x, rc = bl_kv_seq_adopt(x->seqs[o->seq], o->n, NULL));
    if (rc != want) {
        assert_int_equal(rc, BL_ENOMEM);
        assert_int_equal(want, BL_OK);
        model_cut(&x->m, &x->m.seqs[o->seq], 0);
    }
    return rc;
}

static void do_cut(machine *x, const op *o) {
    bl_kv_seq *s = x->seqs[o->seq];
    model_seq *q = &x->m.seqs[o->seq];
    uint32_t to = o->n % (q->len + 2);
    assert_true(bl_kv_seq_can_cut(s, 0));
    assert_int_equal(bl_kv_seq_can_cut(s, to), model_can_cut(&x->m, q, to));
    to = bl_kv_seq_can_cut(s, to) ? to : 0;
    bl_kv_seq_cut(s, to);
    model_cut(&x->m, q, to);
}

static void do_renew(machine *x, const op *o) {
    bl_kv_seq **s = &x->seqs[o->seq];
    if (*s) {
        bl_kv_seq_free(*s);
        model_cut(&x->m, &x->m.seqs[o->seq], 0);
        *s = NULL;
        return;
    }
    assert_int_equal(bl_kv_seq_new(x->pool, s, NULL), BL_OK);
    assert_int_equal(bl_kv_seq_len(*s), 0);
}

static bl_code apply(machine *x, const op *o) {
    bl_code rc = BL_OK;
    if (!x->seqs[o->seq] || o->kind == OP_RENEW) {
        do_renew(x, o);
    } else if (o->kind == OP_TRIM) {
        bl_kv_seq_trim(x->seqs[o->seq]);
        model_shorten(&x->m, &x->m.seqs[o->seq], x->m.seqs[o->seq].len);
    } else if (o->kind == OP_CUT) {
        do_cut(x, o);
    } else if (o->kind == OP_ADOPT) {
        rc = do_adopt(x, o);
    } else {
        rc = do_reserve(x, o, o->kind == OP_STEP ? o->n : o->n * o->part / 8);
    }
    if (x->seqs[o->seq]) {
        assert_int_equal(bl_kv_seq_len(x->seqs[o->seq]), x->m.seqs[o->seq].len);
    }
    check_tiles(x);
    return rc;
}

static op random_op(uint64_t *seed, const bl_kv_geometry *g) {
    static const op_kind kinds[] = {OP_STEP, OP_STEP, OP_STEP, OP_STEP,  OP_RESERVE,
                                    OP_TRIM, OP_CUT,  OP_CUT,  OP_ADOPT, OP_RENEW};
    op o = {
        .kind = kinds[below(seed, BL_COUNTOF(kinds))], .seq = below(seed, g->n_seqs), .part = below(seed, 9)};
    o.n =
        o.kind == OP_CUT || o.kind == OP_ADOPT ? below(seed, g->n_context + 2) : below(seed, g->max_rows + 2);
    return o;
}

static void start(machine *x, const bl_kv_geometry *g, bl_kv_storage storage, uint64_t seed) {
    memset(x, 0, sizeof *x);
    x->seed = seed;
    x->m.g = *g;
    memcpy(x->m.layers, g->layers, g->n_layers * sizeof *g->layers);
    x->m.g.layers = x->m.layers;
    x->m.g.storage = storage;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        x->m.bytes[l] = bl_kv_tile_bytes(g->layers[l].n_kv_heads, g->layers[l].head_dim, g->f32);
        x->m.cost[l] = (x->m.bytes[l] + 4095) / 4096 * 4096;
    }
    BOOKED(x, assert_int_equal(bl_kv_pool_open(&x->m.g, &x->pool, NULL), BL_OK));
    x->m.capacity = bl_kv_pool_capacity(x->pool);
    check_tiles(x);
    assert_int_equal(bl_kv_pool_bytes_committed(x->pool), 0);
}

static void stop(machine *x) {
    for (uint32_t s = 0; s < x->m.g.n_seqs; s++) {
        bl_kv_seq_free(x->seqs[s]);
    }
    assert_int_equal(bl_kv_pool_bytes_in_use(x->pool), 0);
    bl_kv_pool_close(x->pool);
}

/* Shapes with tiles below, of and between whole pages; budgets from one tile per layer up. */
static bl_kv_geometry random_geometry(uint64_t *seed, bl_kv_layer layers[MAX_LAYERS],
                                      const bl_state_layer *state) {
    static const uint32_t dims[] = {8, 16, 24};
    bl_kv_geometry g = {.layers = layers,
                        .n_layers = 1 + below(seed, MAX_LAYERS),
                        .states = state,
                        .n_states = below(seed, 4) == 0,
                        .n_context = 1 + below(seed, MAX_CONTEXT),
                        .max_rows = 1 + below(seed, 300),
                        .n_seqs = 1 + below(seed, MAX_SEQS),
                        .f32 = below(seed, 2) == 0};
    uint32_t dim = dims[below(seed, 3)];
    uint64_t least = 0, all = 0;
    for (uint32_t l = 0; l < g.n_layers; l++) {
        layers[l] = (bl_kv_layer){1 + below(seed, 2), dim, below(seed, 2) ? 1 + below(seed, 400) : 0};
        least += bl_kv_tile_cost(&g, l);
    }
    all = bl_kv_seq_bytes(&g, g.n_context) * g.n_seqs;
    if (below(seed, 3) > 0) {
        g.capacity_bytes = least + below(seed, (uint32_t)(all - least + 1));
    }
    return g;
}

static const bl_state_layer one_state = {100};

static void test_both_storages_do_what_the_model_does(void **state) {
    (void)state;
    static machine a, b;
    uint32_t n_ops = 0, n_refused = 0;
    for (uint64_t seed0 = 1; seed0 <= 400; seed0++) {
        uint64_t seed = seed0;
        bl_kv_layer layers[MAX_LAYERS];
        bl_kv_geometry g = random_geometry(&seed, layers, &one_state);
        start(&a, &g, BL_KV_CONTIGUOUS, seed0);
        start(&b, &g, BL_KV_PAGED, seed0);
        for (int i = 0; i < N_OPS; i++) {
            op o = random_op(&seed, &g);
            bl_code rc = apply(&a, &o);
            if (rc != apply(&b, &o)) {
                fail_msg("seed %llu: operation %d is refused by one storage only", (unsigned long long)seed0,
                         i);
            }
            n_ops++;
            n_refused += rc != BL_OK;
        }
        stop(&a);
        stop(&b);
    }
    assert_true(n_ops >= 10000 && n_refused > 1000);
}

/* The machine has no memory to give or take now and then: all or nothing, and the next call is none the
 * worse. */
static void test_calls_that_fail_change_nothing(void **state) {
    (void)state;
    static machine x;
    calls.seed = 1;
    for (uint64_t seed0 = 1; seed0 <= 200; seed0++) {
        uint64_t seed = seed0;
        bl_kv_layer layers[MAX_LAYERS];
        bl_kv_geometry g = random_geometry(&seed, layers, NULL);
        g.n_states = 0;
        start(&x, &g, seed0 % 2 ? BL_KV_PAGED : BL_KV_CONTIGUOUS, seed0);
        for (int i = 0; i < N_OPS; i++) {
            op o = random_op(&seed, &g);
            calls.fail_percent = below(&seed, 3) * 10;
            (void)apply(&x, &o);
        }
        calls.fail_percent = 0;
        stop(&x);
    }
    assert_in_range(calls.n_failed, 500, 1000000);
}

/* ---- by hand ----------------------------------------------------------------------------------------- */

static bl_kv_pool *open_pool(const bl_kv_geometry *g) {
    bl_kv_pool *p = NULL;
    assert_int_equal(bl_kv_pool_open(g, &p, NULL), BL_OK);
    return p;
}

static bl_kv_seq *new_seq(bl_kv_pool *p) {
    bl_kv_seq *s = NULL;
    assert_int_equal(bl_kv_seq_new(p, &s, NULL), BL_OK);
    return s;
}

/* The worst case: single rows and full chunks alternate over a window, at every offset in a tile. */
static void test_window_edges(void **state) {
    (void)state;
    static machine x;
    for (uint32_t window = 1; window < 200; window += 9) {
        bl_kv_layer layer = {1, 16, window};
        bl_kv_geometry g = {.layers = &layer, .n_layers = 1, .n_context = 1500, .max_rows = 65, .n_seqs = 1};
        start(&x, &g, window % 2 ? BL_KV_PAGED : BL_KV_CONTIGUOUS, window);
        x.seqs[0] = new_seq(x.pool);
        for (uint32_t i = 0; i < 44; i++) {
            op o = {.kind = OP_STEP, .n = i % 2 ? 65 : 1};
            assert_int_equal(apply(&x, &o), BL_OK);
        }
        stop(&x);
    }
}

/* Full layers cost what they say, windows at most their ring: who can ever fit alone does, in any steps; a
 * full layer's sequence that cannot ever fit does not. */
static void test_can_ever_fit_is_what_reserve_enforces(void **state) {
    (void)state;
    for (uint64_t seed0 = 1; seed0 <= 300; seed0++) {
        uint64_t seed = seed0;
        bl_kv_layer layers[MAX_LAYERS];
        bl_kv_geometry g = random_geometry(&seed, layers, NULL);
        g.n_states = 0;
        bool windows = false;
        for (uint32_t l = 0; l < g.n_layers; l++) {
            windows |= layers[l].window > 0;
        }
        g.storage = seed0 % 2 ? BL_KV_PAGED : BL_KV_CONTIGUOUS;
        bl_kv_pool *p = open_pool(&g);
        bl_kv_seq *s = new_seq(p);
        uint32_t n = 1 + below(&seed, g.n_context);
        bool fits = bl_kv_pool_can_ever_fit(p, n), grew = true;
        while (bl_kv_seq_len(s) < n && grew) {
            uint32_t k = 1 + below(&seed, BL_MIN(g.max_rows, n - bl_kv_seq_len(s)));
            grew = bl_kv_seq_reserve(s, k, NULL) == BL_OK;
            bl_kv_seq_commit(s, grew ? k : 0);
        }
        if (fits ? !grew : grew && !windows) {
            fail_msg("seed %llu: %u positions can%s ever fit, but did%s", (unsigned long long)seed0, n,
                     fits ? "" : "not", grew ? "" : " not");
        }
        assert_false(bl_kv_pool_can_ever_fit(p, g.n_context + 1));
        bl_kv_seq_free(s);
        bl_kv_pool_close(p);
    }
}

/* What one sequence has let go of is used again before more is committed, and moves to another place when
 * that needs the budget. */
static void test_free_memory_is_reused_then_moved(void **state) {
    (void)state;
    for (int storage = 0; storage < 2; storage++) {
        bl_kv_layer layers[] = {{1, 16, 0}, {1, 32, 0}};
        bl_kv_geometry g = {.layers = layers,
                            .n_layers = 2,
                            .n_context = 640,
                            .max_rows = 640,
                            .n_seqs = 2,
                            .storage = storage == 0 ? BL_KV_CONTIGUOUS : BL_KV_PAGED,
                            .capacity_bytes = (uint64_t)10 * (4096 + 8192)};
        bl_kv_pool *p = open_pool(&g);
        bl_kv_seq *a = new_seq(p), *b = new_seq(p), *c = NULL;
        assert_int_equal(bl_kv_seq_new(p, &c, NULL), BL_EBUSY);
        assert_int_equal(bl_kv_pool_bytes_committed(p), 0);
        assert_int_equal(bl_kv_seq_reserve(a, 320, NULL), BL_OK);
        assert_int_equal(bl_kv_pool_bytes_committed(p), 5 * 12288);
        bl_kv_seq_trim(a);
        assert_int_equal(bl_kv_pool_bytes_in_use(p), 0);
        assert_int_equal(bl_kv_pool_bytes_committed(p), 5 * 12288);
        assert_int_equal(bl_kv_seq_reserve(a, 320, NULL), BL_OK); /* the same memory */
        assert_int_equal(bl_kv_pool_bytes_committed(p), 5 * 12288);
        bl_kv_seq_commit(a, 320);
        assert_int_equal(bl_kv_seq_reserve(b, 321, NULL), BL_ELIMIT);
        assert_int_equal(bl_kv_pool_bytes_committed(p), 5 * 12288);
        assert_int_equal(bl_kv_seq_reserve(b, 320, NULL), BL_OK);
        assert_int_equal(bl_kv_pool_bytes_committed(p), 10 * 12288);
        bl_kv_seq_free(a);
        assert_int_equal(bl_kv_seq_reserve(b, 640, NULL), BL_OK); /* all there is */
        assert_int_equal(bl_kv_pool_bytes_committed(p), 10 * 12288);
        assert_int_equal(bl_kv_pool_bytes_in_use(p), 10 * 12288);
        bl_kv_seq_free(b);
        bl_kv_pool_close(p);
    }
}

static void test_states_start_at_zero(void **state) {
    (void)state;
    bl_kv_layer layer = {1, 16, 0};
    bl_state_layer states[] = {{1000}, {24}};
    bl_kv_geometry g = {.layers = &layer,
                        .n_layers = 1,
                        .states = states,
                        .n_states = 2,
                        .n_context = 64,
                        .max_rows = 8,
                        .n_seqs = 2};
    bl_kv_pool *p = open_pool(&g);
    assert_int_equal(bl_kv_state_bytes(&g), 4096);
    for (int round = 0; round < 6; round++) {
        bl_kv_seq *s = new_seq(p), *t = new_seq(p);
        assert_ptr_equal(bl_kv_seq_state(s, 1), bl_kv_seq_states(s) + 1000);
        for (uint32_t i = 0; i < 1024; i++) {
            assert_true(bl_kv_seq_states(s)[i] == 0.0f && bl_kv_seq_states(t)[i] == 0.0f);
        }
        if (round % 2) {
            assert_int_equal(bl_kv_seq_reserve(s, 8, NULL), BL_OK);
        } else {
            assert_int_equal(bl_kv_seq_adopt(s, 8, NULL), BL_OK);
        }
        memset(bl_kv_seq_states(s), 1, 4096);
        if (round == 3) {
            bl_kv_seq_cut(s, 0);
            assert_true(bl_kv_seq_states(s)[1023] == 0.0f);
        }
        bl_kv_seq_free(s);
        bl_kv_seq_free(t);
    }
    bl_kv_pool_close(p);
}

/* A kernel without MADV_POPULATE_WRITE. */
static void test_pages_are_touched_where_they_cannot_be_populated(void **state) {
    (void)state;
    static machine x;
    bl_kv_layer layer = {3, 16, 0};
    bl_kv_geometry g = {.layers = &layer, .n_layers = 1, .n_context = 640, .max_rows = 640, .n_seqs = 1};
    calls.no_populate = true;
    start(&x, &g, BL_KV_CONTIGUOUS, 0);
    x.seqs[0] = new_seq(x.pool);
    assert_int_equal(bl_kv_seq_reserve(x.seqs[0], 640, NULL), BL_OK);
    unsigned char there[30] = {0};
    assert_int_equal(mincore(bl_kv_seq_tile(x.seqs[0], 0, 0), 30 * 4096, there), 0);
    for (int i = 0; i < 30; i++) {
        assert_int_equal(there[i] & 1, 1);
    }
    calls.no_populate = false;
    stop(&x);
}

static uint64_t resident_bytes(void) {
    uint64_t kib = 0;
    assert_true(bl_file_read_number("/proc/self/status", "VmRSS:", &kib));
    return kib << 10;
}

/* 16 GiB of pool on any machine: what is not used takes nothing, and what was let go of is really gone once
 * another place took the budget. */
static void test_an_idle_pool_takes_no_memory(void **state) {
    (void)state;
    bl_kv_layer layers[8];
    for (uint32_t l = 0; l < 8; l++) {
        layers[l] = (bl_kv_layer){8, 128, 0};
    }
    bl_kv_geometry g = {.layers = layers, .n_layers = 8, .n_context = 65536, .max_rows = 512, .n_seqs = 8};
    for (int storage = 0; storage < 2; storage++) {
        g.storage = storage == 0 ? BL_KV_CONTIGUOUS : BL_KV_PAGED;
        g.capacity_bytes = 0;
        uint64_t before = resident_bytes();
        bl_kv_pool *p = open_pool(&g);
        assert_int_equal(bl_kv_pool_capacity(p), (uint64_t)16 << 30);
        bl_kv_seq *s = new_seq(p);
        assert_true(resident_bytes() < before + ((uint64_t)1 << 20));
        bl_kv_seq_free(s);
        bl_kv_pool_close(p);
        g.capacity_bytes = (uint64_t)16 << 20; /* 8 tiles per layer */
        p = open_pool(&g);
        for (int round = 0; round < 8; round++) {
            bl_kv_seq *seqs[8];
            for (int i = 0; i < 8; i++) {
                seqs[i] = new_seq(p);
            }
            for (int i = 0; i < 8; i++) {
                assert_int_equal(bl_kv_seq_reserve(seqs[i], 512, NULL), BL_OK);
                assert_true(resident_bytes() < before + ((uint64_t)18 << 20));
                bl_kv_seq_free(seqs[i]);
            }
        }
        bl_kv_pool_close(p);
    }
}

/* Admission's arithmetic on Gemma 4 26B-A4B (engine-runtime.md §5.1): 25 windows of 1024 positions at 8192
 * bytes, 5 full layers at 4096 bytes a position. */
static void test_bytes_of_gemma(void **state) {
    (void)state;
    bl_kv_layer layers[30];
    for (uint32_t l = 0; l < 30; l++) {
        layers[l] = l % 6 == 5 ? (bl_kv_layer){2, 512, 0} : (bl_kv_layer){8, 256, 1024};
    }
    bl_kv_geometry g = {.layers = layers, .n_layers = 30, .n_context = 131072, .max_rows = 1, .n_seqs = 1};
    assert_int_equal(bl_kv_bytes_per_token(&g), 25 * 8192 + 20480);
    assert_int_equal(bl_kv_seq_bytes(&g, 1024), 209715200 + 20971520);
    uint64_t ring = 25 * 64 * 8192; /* single rows over a window that does not begin with a tile: one more */
    assert_int_equal(bl_kv_seq_bytes(&g, 10240), 209715200 + ring + (uint64_t)10240 * 20480);
    assert_int_equal(bl_kv_seq_bytes(&g, 124 * 1024) - bl_kv_seq_bytes(&g, 123 * 1024),
                     (uint64_t)1024 * 20480);
    uint64_t bytes = 7;
    bl_err err;
    g.capacity_bytes = bl_kv_seq_bytes(&g, 1) - 1;
    assert_int_equal(bl_kv_pool_bytes(&g, &bytes, &err), BL_ELIMIT);
    assert_int_equal(bytes, 7);
    g.capacity_bytes++;
    assert_int_equal(bl_kv_pool_bytes(&g, &bytes, &err), BL_OK);
    assert_int_equal(bytes, g.capacity_bytes);
    g.n_seqs = UINT32_MAX;
    g.n_context = UINT32_MAX;
    assert_int_equal(bl_kv_pool_bytes(&g, &bytes, &err), BL_ERANGE);
    assert_string_equal(bl_kv_storage_name(BL_KV_CONTIGUOUS), "contiguous");
    assert_string_equal(bl_kv_storage_name(BL_KV_PAGED), "paged");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_storages_do_what_the_model_does),
        cmocka_unit_test(test_calls_that_fail_change_nothing),
        cmocka_unit_test(test_window_edges),
        cmocka_unit_test(test_can_ever_fit_is_what_reserve_enforces),
        cmocka_unit_test(test_free_memory_is_reused_then_moved),
        cmocka_unit_test(test_states_start_at_zero),
        cmocka_unit_test(test_pages_are_touched_where_they_cannot_be_populated),
        cmocka_unit_test(test_an_idle_pool_takes_no_memory),
        cmocka_unit_test(test_bytes_of_gemma),
    };
    bl_os.madvise = counting_madvise;
    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
