/* Runs a list of ops over a step on the pool.
 *
 * Each op is cut into units that threads take from a counter: blocks of output rows (matrix products), rows
 * (element-wise ops), query rows x KV heads (attention). Small ops run on the calling thread alone, because
 * waking the pool costs more than they do. Which thread does a unit, and how units are cut, cannot change a
 * bit: every output is computed whole by one kernel call in the written order.
 */
#include <string.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/run.h"
#include "base/base.h"
#include "base/clock.h"

/* Elements of an element-wise op below which the pool is not woken: about 5 us of work. */
#define SMALL_ELEMS 16384u
/* Weight bytes per unit of a matrix-vector product: large enough for the prefetcher, small enough to share
 * evenly. */
#define UNIT_BYTES (128u << 10)
/* Rows of x per unit of a matrix-matrix product when there are few blocks. */
#define UNIT_ROWS 64u

/* ---- rows ----------------------------------------------------------------------------------- */

typedef struct {
    bl_row_fn *fn;
    const void *ctx;
    uint32_t n_rows, chunk;
    _Atomic uint32_t next;
} row_job;

static void row_units(void *ctx, uint32_t thread) {
    (void)thread;
    row_job *j = ctx;
    for (;;) {
        uint32_t r = atomic_fetch_add_explicit(&j->next, j->chunk, memory_order_relaxed);
        if (r >= j->n_rows) {
            return;
        }
        j->fn(j->ctx, r, BL_MIN(r + j->chunk, j->n_rows));
    }
}

void bl_cpu_for_rows(bl_cpu *c, uint32_t n_rows, uint32_t width, bl_row_fn *fn, const void *ctx) {
    if (n_rows < 2 || (uint64_t)n_rows * width < SMALL_ELEMS) {
        fn(ctx, 0, n_rows);
        return;
    }
    uint32_t chunk = BL_MAX(1u, BL_MIN(n_rows / (4 * bl_pool_threads(c->pool)), 32u));
    row_job j = {.fn = fn, .ctx = ctx, .n_rows = n_rows, .chunk = chunk};
    bl_pool_run(c->pool, row_units, &j);
}

/* fn over the op's rows, each worth about `width` elements. */
static void for_rows(const op_ctx *x, bl_row_fn *fn, uint32_t width) {
    bl_cpu_for_rows(x->c, x->n_rows, width, fn, x);
}

static void embed_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    for (uint32_t i = row0; i < row1; i++) {
        uint32_t token = (uint32_t)x->step->tokens[step_row(x, i)];
        x->c->k.embed(&x->op->w[0]->pk, token, x->op->scale, slot_row(x->step, x->op->out[0], i));
    }
}

static void rope_table_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    for (uint32_t i = row0; i < row1; i++) {
        int32_t pos = x->step->pos[step_row(x, i)];
        bl_cpu_rope_row(pos, x->op->vec, x->op->n_rot / 2, x->op->scale != 0.0f ? (double)x->op->scale : 1.0,
                        slot_row(x->step, x->op->out[0], i));
    }
}

static void rmsnorm_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_op *op = x->op;
    uint32_t n = op->kind == BL_OP_ADD_NORM ? x->step->widths[op->in1] : x->step->widths[op->in0];
    uint32_t dim = op->dim ? op->dim : n;
    for (uint32_t i = row0; i < row1; i++) {
        const float *in = slot_row(x->step, op->kind == BL_OP_ADD_NORM ? op->in1 : op->in0, i);
        const float *add = op->kind == BL_OP_ADD_NORM ? slot_row(x->step, op->in0, i) : NULL;
        float *out = slot_row(x->step, op->out[0], i);
        for (uint32_t g = 0; g + dim <= n; g += dim) {
            x->c->k.rmsnorm(in + g, op->vec, add ? add + g : NULL, out + g, dim, op->eps);
        }
    }
}

static void rope_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    for (uint32_t i = row0; i < row1; i++) {
        const float *cs = slot_row(x->step, x->op->in0, i);
        float *v = slot_row(x->step, x->op->out[0], i);
        for (uint32_t h = 0; h < x->op->n_heads; h++) {
            x->c->k.rope(v + (size_t)h * x->op->head_dim, cs, x->op->n_rot / 2);
        }
    }
}

static void concat_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_step *s = x->step;
    uint32_t n0 = s->widths[x->op->in0], n1 = s->widths[x->op->in1];
    for (uint32_t i = row0; i < row1; i++) {
        float *out = slot_row(s, x->op->out[0], i);
        memcpy(out, slot_row(s, x->op->in0, i), n0 * sizeof(float));
        memcpy(out + n0, slot_row(s, x->op->in1, i), n1 * sizeof(float));
    }
}

static void add_gated_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    for (uint32_t i = row0; i < row1; i++) {
        float gate = canon_sigmoid(slot_row(x->step, x->op->in1, i)[0]);
        x->c->k.axpy(gate, slot_row(x->step, x->op->in0, i), slot_row(x->step, x->op->out[0], i),
                     x->step->widths[x->op->out[0]]);
    }
}

static const bl_kv_table *kv_table(const op_ctx *x, uint32_t seq) {
    return &x->step->kv[x->op->kv_layer][seq];
}

static void kv_store_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_op *op = x->op;
    bool f32 = x->c->activations == BL_ACTIVATIONS_F32;
    size_t half = (size_t)BL_KV_TILE * op->head_dim * (f32 ? 4 : 2); /* K or V of one head in a tile */
    for (uint32_t i = row0; i < row1; i++) {
        uint32_t r = step_row(x, i), pos = (uint32_t)x->step->pos[r];
        uint8_t *tile = kv_table(x, x->step->seq[r])->tiles[pos / BL_KV_TILE];
        for (uint32_t h = 0; h < op->n_kv_heads; h++) {
            uint8_t *kt = tile + 2 * half * h;
            size_t at = (size_t)h * op->head_dim;
            x->c->k.kv_store(slot_row(x->step, op->in0, i) + at, slot_row(x->step, op->in1, i) + at,
                             op->head_dim, kt, kt + half, pos % BL_KV_TILE, f32);
        }
    }
}

/* ---- elements ------------------------------------------------------------------------------- */

/* Columns of one unit of ADD, GLU, SCALE and SOFTCAP: a single row of logits is worth sharing. */
#define UNIT_COLS 4096u

typedef struct {
    const op_ctx *x;
    uint32_t width, per_row, total;
    _Atomic uint32_t next;
} elem_job;

static void elem_units(void *ctx, uint32_t thread) {
    (void)thread;
    elem_job *j = ctx;
    const bl_op *op = j->x->op;
    const bl_step *s = j->x->step;
    const bl_kernels *k = &j->x->c->k;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->total;) {
        uint32_t row = u / j->per_row, c = u % j->per_row * UNIT_COLS, n = BL_MIN(UNIT_COLS, j->width - c);
        float *y = slot_row(s, op->out[0], row) + c;
        if (op->kind == BL_OP_SOFTCAP) {
            k->softcap(y, n, op->cap);
        } else if (op->kind == BL_OP_GLU) {
            k->glu(slot_row(s, op->in0, row) + c, slot_row(s, op->in1, row) + op->in1_at + c, y, n, op->act,
                   op->cap);
        } else if (op->kind == BL_OP_SCALE) {
            const float *in = slot_row(s, op->in0, row) + c, f = op->vec ? op->vec[0] : op->scale;
            for (uint32_t i = 0; i < n; i++) {
                y[i] = in[i] * f;
            }
        } else {
            k->add(slot_row(s, op->in0, row) + c, slot_row(s, op->in1, row) + c, y, n);
        }
    }
}

static void run_elements(const op_ctx *x, uint32_t width) {
    elem_job j = {.x = x, .width = width, .per_row = (width + UNIT_COLS - 1) / UNIT_COLS};
    j.total = j.per_row * x->n_rows;
    /* the functions cost about eight times an addition */
    if (j.total < 2 || (uint64_t)x->n_rows * width * (x->op->kind == BL_OP_ADD ? 1 : 8) < SMALL_ELEMS) {
        elem_units(&j, 0);
    } else {
        bl_pool_run(x->c->pool, elem_units, &j);
    }
}

/* ---- matrix products ------------------------------------------------------------------------ */

typedef struct {
    bl_cpu *c;
    const float *x;
    size_t ldx;
    uint32_t k;
    bool want[BL_GROUP__MAX];
} quant_job;

static void quant_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const quant_job *j = ctx;
    const bl_kernels *k = &j->c->k;
    for (size_t i = row0; i < row1; i++) {
        const float *in = j->x + i * j->ldx;
        if (j->want[BL_GROUP_32]) {
            k->quant32(&j->c->xq[BL_GROUP_32], i, in, j->k);
        }
        if (j->want[BL_GROUP_64]) {
            k->quant64(&j->c->xq[BL_GROUP_64], i, in, j->k);
        }
        if (j->want[BL_GROUP_256]) {
            k->quant256(&j->c->xq[BL_GROUP_256], i, in, j->k);
        }
    }
}

void bl_cpu_quantise(bl_cpu *c, const bl_packed *const *w, uint32_t n_w, const float *x, size_t ldx,
                     uint32_t n_rows) {
    quant_job j = {.c = c, .x = x, .ldx = ldx, .k = w[0]->k};
    bool any = false;
    for (uint32_t i = 0; i < n_w; i++) {
        j.want[bl_pk_group(w[i])] = true;
        any = any || bl_pk_group(w[i]) != BL_GROUP_FLOAT;
    }
    if (any) {
        bl_cpu_for_rows(c, n_rows, j.k, quant_rows, &j);
    }
}

typedef struct {
    const op_ctx *x;
    bl_mm_args a[BL_OP_MAX_W];
    uint32_t blocks[BL_OP_MAX_W];  /* per unit */
    uint32_t n_units[BL_OP_MAX_W]; /* of blocks; times row_units */
    uint32_t rows, row_units;
    uint32_t total;
    _Atomic uint32_t next;
} mm_job;

static void mm_units(void *ctx, uint32_t thread) {
    (void)thread;
    mm_job *j = ctx;
    for (;;) {
        uint32_t u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (u >= j->total) {
            return;
        }
        uint32_t w = 0;
        while (u >= j->n_units[w] * j->row_units) {
            u -= j->n_units[w] * j->row_units;
            w++;
        }
        const bl_packed *p = j->a[w].w;
        uint32_t b0 = u / j->row_units * j->blocks[w], r0 = u % j->row_units * j->rows;
        j->x->c->k.matmul[p->dtype](&j->a[w], b0, BL_MIN(b0 + j->blocks[w], p->n_blocks), r0,
                                    BL_MIN(r0 + j->rows, j->x->n_rows));
    }
}

static void run_matmul(const op_ctx *x) {
    const bl_op *op = x->op;
    if (x->n_rows == 0) {
        return;
    }
    const bl_packed *packed[BL_OP_MAX_W];
    uint32_t n_blocks = 0, n_threads = bl_pool_threads(x->c->pool);
    uint64_t bytes = 0;
    mm_job j = {.x = x, .rows = x->n_rows, .row_units = 1};
    for (uint32_t i = 0; i < op->n_w; i++) {
        const bl_packed *p = &op->w[i]->pk;
        packed[i] = p;
        n_blocks += p->n_blocks;
        bytes += (uint64_t)p->n_blocks * p->block_bytes;
        j.a[i] = (bl_mm_args){.w = p,
                              .xq = &x->c->xq[bl_pk_group(p)],
                              .x = slot_row(x->step, op->in0, 0),
                              .ldx = slot_ld(x->step, op->in0),
                              .y = slot_row(x->step, op->out[i], 0),
                              .ldy = slot_ld(x->step, op->out[i]),
                              .bias = op->bias[i]};
    }
    bl_cpu_quantise(x->c, packed, op->n_w, j.a[0].x, j.a[0].ldx, x->n_rows);
    /* Eight units per thread, so that a slow thread costs at most an eighth of a share; unless that makes the
     * units tiny. */
    uint64_t want = BL_MIN(bytes / (8u * n_threads) + 1, UNIT_BYTES);
    if (x->n_rows > UNIT_ROWS && n_blocks < 8 * n_threads) {
        j.rows = UNIT_ROWS;
        j.row_units = (x->n_rows + UNIT_ROWS - 1) / UNIT_ROWS;
    }
    for (uint32_t i = 0; i < op->n_w; i++) {
        const bl_packed *p = &op->w[i]->pk;
        uint64_t per = BL_MAX(want / p->block_bytes, 1);
        j.blocks[i] = x->n_rows > 8 ? 1 : (uint32_t)BL_MIN(per, p->n_blocks);
        j.n_units[i] = (p->n_blocks + j.blocks[i] - 1) / j.blocks[i];
        j.total += j.n_units[i] * j.row_units;
    }
    bl_pool_run(x->c->pool, mm_units, &j);
}

/* ---- attention ------------------------------------------------------------------------------ */

typedef struct {
    const op_ctx *x;
    uint32_t rows, heads; /* of a unit, at most */
    uint32_t parts;       /* units per KV head and row block */
    uint32_t total;
    _Atomic uint32_t next;
} attn_job;

static void attn_units(void *ctx, uint32_t thread) {
    attn_job *j = ctx;
    const op_ctx *x = j->x;
    const bl_op *op = x->op;
    uint32_t group = op->n_heads / op->n_kv_heads, per_block = op->n_kv_heads * j->parts;
    bl_attn_args a = {
        .q = slot_row(x->step, op->in0, 0),
        .out = slot_row(x->step, op->out[0], 0),
        .ldq = slot_ld(x->step, op->in0),
        .ldo = slot_ld(x->step, op->out[0]),
        .pos = x->step->pos,
        .n_heads = op->n_heads,
        .n_kv_heads = op->n_kv_heads,
        .head_dim = op->head_dim,
        .window = op->window,
        .scale = op->scale,
        .sinks = op->vec,
        .kv_f32 = x->c->activations == BL_ACTIVATIONS_F32,
    };
    for (;;) {
        uint32_t u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (u >= j->total) {
            return;
        }
        u = j->total - 1 - u; /* later rows see more keys: longest first */
        uint32_t block = u / per_block, part = u % per_block, i = 0;
        const bl_cpu_run *run = x->c->runs;
        for (;; i++) {
            uint32_t n = (run[i].row1 - run[i].row0 + j->rows - 1) / j->rows;
            if (block < n) {
                break;
            }
            block -= n;
        }
        uint32_t r0 = run[i].row0 + block * j->rows;
        uint32_t kvh = part / j->parts, h0 = kvh * group + part % j->parts * j->heads;
        a.tiles = kv_table(x, run[i].seq)->tiles;
        x->c->k.attention(&a, r0, BL_MIN(r0 + j->rows, run[i].row1), h0,
                          BL_MIN(h0 + j->heads, (kvh + 1) * group), x->c->attn + thread * x->c->attn_floats);
    }
}

/* Chunks of a prompt; a single row has no mask to waste on. */
static void count_scores(const op_ctx *x, uint32_t block) {
    const bl_op *op = x->op;
    for (uint32_t i = 0; i < x->c->n_runs; i++) {
        const bl_cpu_run *run = &x->c->runs[i];
        uint32_t n = run->row1 - run->row0;
        if (n > 1) {
            bl_attn_scores s = bl_attention_scores((uint64_t)x->step->pos[run->row0], n, op->window, block);
            x->c->scores.executed += s.executed * op->n_heads;
            x->c->scores.useful += s.useful * op->n_heads;
        }
    }
}

static void run_attention(const op_ctx *x) {
    const bl_op *op = x->op;
    uint32_t group = op->n_heads / op->n_kv_heads, n_threads = bl_pool_threads(x->c->pool);
    attn_job j = {.x = x, .heads = BL_MIN(group, BL_ATTN_MAX_QV)};
    j.rows = BL_MAX(BL_MIN(BL_ATTN_MAX_QV / j.heads, 16u), 1u);
    if (x->c->attn_query_block > 0) {
        j.rows = BL_MIN(j.rows, x->c->attn_query_block);
    }
    count_scores(x, j.rows);
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < x->c->n_runs; i++) {
        blocks += (x->c->runs[i].row1 - x->c->runs[i].row0 + j.rows - 1) / j.rows;
    }
    /* Few units (decode): heads that share K and V are dealt to several threads. */
    while (j.heads > 1 && blocks * op->n_kv_heads * ((group + j.heads - 1) / j.heads) < n_threads) {
        j.heads = (j.heads + 1) / 2;
    }
    j.parts = (group + j.heads - 1) / j.heads;
    j.total = blocks * op->n_kv_heads * j.parts;
    if (j.total == 1) {
        attn_units(&j, 0);
    } else if (j.total > 0) {
        bl_pool_run(x->c->pool, attn_units, &j);
    }
}

/* ---- checks --------------------------------------------------------------------------------- */

/* Sequences' rows must lie together and positions be in their tables' range. */
static bl_code find_runs(bl_cpu *c, const bl_step *s, bl_err *err) {
    c->n_runs = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->seq[r] >= s->n_seqs || s->pos[r] < 0) {
            BL_FAIL(err, BL_EINVAL, "step row %u: sequence %u of %u, position %d", r, s->seq[r], s->n_seqs,
                    s->pos[r]);
        }
        if (r > 0 && s->seq[r] == s->seq[r - 1]) {
            if (s->pos[r] <= s->pos[r - 1]) {
                BL_FAIL(err, BL_EINVAL, "step row %u: position %d after %d of the same sequence", r,
                        s->pos[r], s->pos[r - 1]);
            }
            c->runs[c->n_runs - 1].row1 = r + 1;
        } else {
            c->runs[c->n_runs++] = (bl_cpu_run){.row0 = r, .row1 = r + 1, .seq = s->seq[r]};
        }
    }
    return BL_OK;
}

/* Every tile that the rows of a run store to or see must be there. */
static bl_code check_tiles(const op_ctx *x, bl_err *err) {
    for (uint32_t i = 0; i < x->c->n_runs; i++) {
        const bl_cpu_run *run = &x->c->runs[i];
        const bl_kv_table *t = kv_table(x, run->seq);
        uint32_t p0 = (uint32_t)x->step->pos[run->row0], p1 = (uint32_t)x->step->pos[run->row1 - 1],
                 first = p0;
        if (x->op->kind == BL_OP_ATTENTION) {
            first = x->op->window && p0 >= x->op->window ? p0 - x->op->window + 1 : 0;
        }
        for (uint32_t k = first / BL_KV_TILE; k <= p1 / BL_KV_TILE; k++) {
            if (k >= t->n_tiles || !t->tiles[k]) {
                BL_FAIL(err, BL_EINVAL, "kv layer %u: tile %u of sequence %u is missing (table of %u)",
                        x->op->kv_layer, k, run->seq, t->n_tiles);
            }
        }
    }
    return BL_OK;
}

static bl_code check_matmul(const op_ctx *x, bl_err *err) {
    const bl_op *op = x->op;
    for (uint32_t i = 0; i < op->n_w; i++) {
        const bl_packed *p = &op->w[i]->pk;
        if (p->k != x->step->widths[op->in0] || p->n_out != x->step->widths[op->out[i]]) {
            BL_FAIL(err, BL_EINVAL, "%s: matrix [%u, %u] between slots of width %u and %u", op->label,
                    p->n_out, p->k, x->step->widths[op->in0], x->step->widths[op->out[i]]);
        }
        bl_group g = bl_pk_group(p);
        uint32_t max = g == BL_GROUP_FLOAT ? p->k : x->c->needs.max_k[g];
        if (p->k > max) {
            BL_FAIL(err, BL_EINVAL, "%s: rows of %u, prepared for %u", op->label, p->k, max);
        }
    }
    return BL_OK;
}

static bl_code check_experts(const op_ctx *x, bl_err *err) {
    const bl_op *op = x->op;
    const uint32_t *widths = x->step->widths;
    uint32_t hidden = widths[op->in0], mid = op->w[2]->pk.k;
    for (uint32_t i = 0; i < 3; i++) {
        const bl_packed *p = &op->w[i]->pk;
        uint32_t height = i < 2 ? mid : widths[op->out[0]], k = i < 2 ? hidden : mid;
        if (height % BL_PK_ROWS != 0 || p->n_out != (uint64_t)height * op->n_experts || p->k != k) {
            BL_FAIL(err, BL_EINVAL, "%s: matrix [%u, %u], %u experts of [%u, %u] are wanted, in 16s of rows",
                    op->label, p->n_out, p->k, op->n_experts, height, k);
        }
    }
    if (op->n_used == 0 || widths[op->in1] != 2 * op->n_used || op->n_used > x->c->needs.n_used ||
        op->n_experts > x->c->needs.n_experts || hidden > x->c->needs.expert_in ||
        mid > x->c->needs.expert_mid) {
        BL_FAIL(err, BL_EINVAL, "%s: %u of %u experts, prepared for %u of %u", op->label, op->n_used,
                op->n_experts, x->c->needs.n_used, x->c->needs.n_experts);
    }
    return BL_OK;
}

/* Recurrent ops need every row of their sequences, in order, and a state to go on from. */
static bl_code check_recurrent(const op_ctx *x, bl_err *err) {
    const bl_op *op = x->op;
    const uint32_t *widths = x->step->widths;
    if (op->rows == BL_ROWS_OUT || !x->step->state) {
        BL_FAIL(err, BL_EINVAL, "%s: runs on all rows, with a state", op->label);
    }
    bool fits = op->kind == BL_OP_CONV
                    ? op->n_taps > 1 && widths[op->in0] == widths[op->out[0]] && op->in0 != op->out[0]
                    : widths[op->in0] == 2 * op->n_kv_heads * op->dim + op->n_heads * op->head_dim &&
                          widths[op->in1] == op->n_heads && widths[op->in2] == op->n_heads &&
                          widths[op->out[0]] == op->n_heads * op->head_dim;
    if (!fits) {
        BL_FAIL(err, BL_EINVAL, "%s: %u value and %u key heads between slots of width %u and %u", op->label,
                op->n_heads, op->n_kv_heads, widths[op->in0], widths[op->out[0]]);
    }
    for (uint32_t i = 0; i < x->c->n_runs; i++) {
        if (!x->step->state[op->state_layer][x->c->runs[i].seq]) {
            BL_FAIL(err, BL_EINVAL, "%s: sequence %u has no state", op->label, x->c->runs[i].seq);
        }
    }
    return BL_OK;
}

static bl_code check_op(const op_ctx *x, bl_err *err) {
    const bl_op *op = x->op;
    switch (op->kind) {
    case BL_OP_EMBED:
        for (uint32_t i = 0; i < x->n_rows; i++) {
            int32_t t = x->step->tokens[step_row(x, i)];
            if (t < 0 || (uint32_t)t >= op->w[0]->pk.n_out) {
                BL_FAIL(err, BL_EINVAL, "step row %u: token id %d, allowed 0 to %u", i, t,
                        op->w[0]->pk.n_out - 1);
            }
        }
        return BL_OK;
    case BL_OP_MATMUL:
        return check_matmul(x, err);
    case BL_OP_RMSNORM:
    case BL_OP_ADD_NORM: {
        uint32_t w = x->step->widths[op->kind == BL_OP_RMSNORM ? op->in0 : op->in1];
        if (op->dim != 0 && w % op->dim != 0) {
            BL_FAIL(err, BL_EINVAL, "%s: norm over %u of rows of %u", op->label, op->dim, w);
        }
        return BL_OK;
    }
    case BL_OP_KV_STORE:
    case BL_OP_ATTENTION:
        if (op->rows == BL_ROWS_OUT) {
            BL_FAIL(err, BL_ENOTSUP, "%s: runs on all rows only", op->label);
        }
        if (op->kind == BL_OP_ATTENTION && op->head_dim > x->c->needs.head_dim) {
            BL_FAIL(err, BL_EINVAL, "%s: heads of %u, prepared for %u", op->label, op->head_dim,
                    x->c->needs.head_dim);
        }
        return check_tiles(x, err);
    case BL_OP_ROUTE:
        if (op->n_used == 0 || op->n_used > x->step->widths[op->in0] ||
            x->step->widths[op->out[0]] != 2 * op->n_used) {
            BL_FAIL(err, BL_EINVAL, "%s: %u of %u experts into a slot of width %u", op->label, op->n_used,
                    x->step->widths[op->in0], x->step->widths[op->out[0]]);
        }
        return BL_OK;
    case BL_OP_EXPERTS:
        return check_experts(x, err);
    case BL_OP_CONV:
    case BL_OP_DELTA:
        return check_recurrent(x, err);
    default:
        return BL_OK;
    }
}

/* ---- the list ------------------------------------------------------------------------------- */

static void run_op(const op_ctx *x) {
    const bl_op *op = x->op;
    const bl_step *s = x->step;
    uint32_t w = op->out[0] < s->n_slots ? s->widths[op->out[0]] : 0;
    switch (op->kind) {
    case BL_OP_EMBED:
        for_rows(x, embed_rows, w);
        break;
    case BL_OP_ROPE_TABLE:
        for_rows(x, rope_table_rows, 16 * w);
        break;
    case BL_OP_RMSNORM:
    case BL_OP_ADD_NORM:
        for_rows(x, rmsnorm_rows, 2 * w);
        break;
    case BL_OP_MATMUL:
        run_matmul(x);
        break;
    case BL_OP_ROPE:
        for_rows(x, rope_rows, w);
        break;
    case BL_OP_KV_STORE:
        for_rows(x, kv_store_rows, 8 * op->n_kv_heads * op->head_dim);
        break;
    case BL_OP_ATTENTION:
        run_attention(x);
        break;
    case BL_OP_ADD:
    case BL_OP_GLU:
    case BL_OP_SCALE:
    case BL_OP_SOFTCAP:
        run_elements(x, w);
        break;
    case BL_OP_CONCAT:
        for_rows(x, concat_rows, w);
        break;
    case BL_OP_ADD_GATED:
        for_rows(x, add_gated_rows, w);
        break;
    case BL_OP_ROUTE:
        for_rows(x, bl_cpu_route_rows, 64 * s->widths[op->in0]);
        break;
    case BL_OP_EXPERTS:
        bl_cpu_experts(x);
        break;
    case BL_OP_CONV:
        bl_cpu_conv(x);
        break;
    case BL_OP_DELTA:
        bl_cpu_delta(x);
        break;
    case BL_OP_SELECT:
        for (uint32_t i = 0; i < s->n_out_rows; i++) {
            memcpy(slot_row(s, op->out[0], i), slot_row(s, op->in0, s->out_rows[i]), w * sizeof(float));
        }
        break;
    case BL_OP__MAX:
        break;
    }
}

/* What the op read from memory at least, and its multiply-adds times two (matrix products and attention;
 * others count as nothing). */
static void count_work(const op_ctx *x, uint64_t *bytes, uint64_t *flops) {
    const bl_op *op = x->op;
    *bytes = *flops = 0;
    if (op->kind == BL_OP_MATMUL) {
        for (uint32_t i = 0; i < op->n_w; i++) {
            const bl_packed *p = &op->w[i]->pk;
            *bytes += (uint64_t)p->n_blocks * p->block_bytes;
            *flops += 2ull * p->n_out * p->k * x->n_rows;
        }
    } else if (op->kind == BL_OP_EXPERTS) {
        for (uint32_t i = 0; i < op->n_w; i++) {
            const bl_packed *p = &op->w[i]->pk;
            *bytes += (uint64_t)p->n_blocks * p->block_bytes / op->n_experts * x->c->moe.n_active;
            *flops += 2ull * p->n_out / op->n_experts * p->k * x->n_rows * op->n_used;
        }
    } else if (op->kind == BL_OP_DELTA) {
        uint64_t state = (uint64_t)op->n_heads * op->dim * op->head_dim;
        *bytes = state * sizeof(float) * x->c->n_runs;
        *flops = 7 * state * x->n_rows;
    } else if (op->kind == BL_OP_ATTENTION) {
        for (uint32_t i = 0; i < x->n_rows; i++) {
            uint64_t n = (uint64_t)x->step->pos[i] + 1;
            n = op->window ? BL_MIN(n, op->window) : n;
            *flops += 4ull * n * op->n_heads * op->head_dim;
        }
        for (uint32_t i = 0; i < x->c->n_runs; i++) {
            uint64_t n = (uint64_t)x->step->pos[x->c->runs[i].row1 - 1] + 1;
            n = op->window ? BL_MIN(n, op->window + (uint64_t)(x->c->runs[i].row1 - x->c->runs[i].row0) - 1)
                           : n;
            *bytes +=
                2ull * n * op->n_kv_heads * op->head_dim * (x->c->activations == BL_ACTIVATIONS_F32 ? 4 : 2);
        }
    }
}

static void profile_add(const op_ctx *x, uint64_t ns) {
    bl_cpu *c = x->c;
    const char *label = x->op->label ? x->op->label : "op";
    size_t i = 0;
    while (i < c->n_profile &&
           (c->profile_kind[i] != x->op->kind || strcmp(c->profile[i].label, label) != 0)) {
        i++;
    }
    if (i == BL_CPU_MAX_PROFILE) {
        return;
    }
    if (i == c->n_profile) {
        c->profile[i] = (bl_op_profile){.label = label};
        c->profile_kind[i] = x->op->kind;
        c->n_profile++;
    }
    uint64_t bytes, flops;
    count_work(x, &bytes, &flops);
    c->profile[i].calls++;
    c->profile[i].ns += ns;
    c->profile[i].bytes_read += bytes;
    c->profile[i].flops += flops;
}

bl_code bl_cpu_run_ops(bl_backend *b, const bl_op *ops, size_t n_ops, const bl_step *step, bl_err *err) {
    bl_cpu *c = (bl_cpu *)b;
    if (step->n_rows > c->max_rows || step->n_out_rows > c->max_rows) {
        BL_FAIL(err, BL_EINVAL, "step of %u rows, prepared for %u", BL_MAX(step->n_rows, step->n_out_rows),
                c->max_rows);
    }
    BL_TRY(find_runs(c, step, err));
    for (uint32_t i = 0; i < step->n_out_rows; i++) {
        if (step->out_rows[i] >= step->n_rows) {
            BL_FAIL(err, BL_EINVAL, "output row %u of a step of %u rows", step->out_rows[i], step->n_rows);
        }
    }
    for (size_t i = 0; i < n_ops; i++) {
        op_ctx x = {.c = c, .op = &ops[i], .step = step};
        x.n_rows = ops[i].rows == BL_ROWS_OUT ? step->n_out_rows : step->n_rows;
        BL_TRY(check_op(&x, err));
        uint64_t t0 = c->profiling ? bl_clock_mono_ns() : 0;
        run_op(&x);
        if (c->profiling) {
            profile_add(&x, bl_clock_mono_ns() - t0);
        }
    }
    return BL_OK;
}
