/* Mixture of experts: routing, and the products of the routed experts (NUMERICS §5).
 *
 * Token rows are copied into expert order (a counting sort, so ties keep row order), each expert's rows then
 * meet its part of the stacked matrices, and the results are added per token in ascending expert id. Neither
 * the sort nor the number of rows an expert gets can change a bit.
 */
#include <string.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/run.h"
#include "base/base.h"

/* Weight bytes per unit when experts have few rows, and blocks per unit when they have many. */
#define UNIT_BYTES  (64u << 10)
#define UNIT_BLOCKS 2u
#define MANY_ROWS   8u

/* ---- routing ---------------------------------------------------------------------------------- */

/* The n_used largest logits, ties and NaN to the lower id; ids ascending. */
static void select_experts(const float *logits, uint32_t n_experts, uint32_t n_used, uint32_t *ids) {
    uint32_t n = 0;
    while (n < n_used) {
        uint32_t best = n_experts;
        for (uint32_t e = 0, at = 0; e < n_experts; e++) {
            if (at < n && ids[at] == e) { /* taken */
                at++;
            } else if (best == n_experts || logits[e] > logits[best]) {
                best = e;
            }
        }
        uint32_t at = n++;
        for (; at > 0 && ids[at - 1] > best; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = best;
    }
}

void bl_cpu_route_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_op *op = x->op;
    uint32_t n = op->n_used, ids[BL_OP_MAX_USED];
    for (uint32_t r = row0; r < row1; r++) {
        const float *logits = slot_row(x->step, op->in0, r);
        float *out = slot_row(x->step, op->out[0], r), max, sum = 0.0f;
        select_experts(logits, x->step->widths[op->in0], n, ids);
        max = logits[ids[0]];
        for (uint32_t i = 1; i < n; i++) {
            max = logits[ids[i]] > max ? logits[ids[i]] : max;
        }
        for (uint32_t i = 0; i < n; i++) {
            out[i] = (float)ids[i];
            out[n + i] = canon_exp(logits[ids[i]] - max);
            sum = sum + out[n + i];
        }
        for (uint32_t i = 0; i < n; i++) {
            float w = out[n + i] / sum;
            out[n + i] = op->vec ? w * op->vec[ids[i]] : w;
        }
    }
}

/* ---- sorting ---------------------------------------------------------------------------------- */

static void sort_rows(const op_ctx *x, bl_cpu_moe *m) {
    const bl_op *op = x->op;
    uint32_t n = op->n_used, n_experts = op->n_experts;
    memset(m->first, 0, (n_experts + 1u) * sizeof *m->first);
    for (uint32_t r = 0; r < x->n_rows; r++) {
        const float *route = slot_row(x->step, op->in1, r);
        for (uint32_t i = 0; i < n; i++) {
            m->first[(uint32_t)route[i] + 1]++;
        }
    }
    m->n_active = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (m->first[e + 1] > 0) {
            m->active[m->n_active++] = e;
        }
        m->first[e + 1] += m->first[e];
    }
    for (uint32_t r = 0; r < x->n_rows; r++) {
        const float *route = slot_row(x->step, op->in1, r);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = m->first[(uint32_t)route[i]]++; /* moves each start to the next expert's ... */
            m->source[at] = r;
            m->place[(size_t)r * n + i] = at;
        }
    }
    memmove(m->first + 1, m->first, n_experts * sizeof *m->first); /* ... and back */
    m->first[0] = 0;
}

static void gather_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    size_t ld = slot_ld(x->step, x->op->in0);
    for (size_t i = row0; i < row1; i++) {
        memcpy(x->c->moe.x + i * ld, slot_row(x->step, x->op->in0, x->c->moe.source[i]), ld * sizeof(float));
    }
}

/* ---- products --------------------------------------------------------------------------------- */

typedef struct {
    bl_cpu *c;
    bl_mm_args a[2];
    const float *bias[2];                   /* of the whole stack, or NULL */
    uint32_t n_w, height, blocks, per_unit; /* rows and blocks of one expert; blocks of a unit */
    uint32_t units, total;                  /* of one expert; of all */
    _Atomic uint32_t next;
} stack_job;

static void stack_units(void *ctx, uint32_t thread) {
    (void)thread;
    stack_job *j = ctx;
    const bl_cpu_moe *m = &j->c->moe;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->total;) {
        uint32_t e = m->active[u / j->units / j->n_w], w = u / j->units % j->n_w;
        uint32_t b0 = u % j->units * j->per_unit;
        bl_packed part = *j->a[w].w;
        bl_mm_args a = j->a[w];
        part.base += (size_t)e * j->blocks * part.block_bytes;
        part.n_blocks = j->blocks;
        part.n_out = j->height;
        a.w = &part;
        a.bias = j->bias[w] ? j->bias[w] + (size_t)e * j->height : NULL;
        j->c->k.matmul[part.dtype](&a, b0, BL_MIN(b0 + j->per_unit, j->blocks), m->first[e], m->first[e + 1]);
    }
}

/* y[i] = (expert's part of w[i]) x for every assignment; n_w stacks of one shape. */
static void stack_product(const op_ctx *x, uint32_t first_w, uint32_t n_w, const float *in, size_t ldx,
                          float *const *out, size_t ldy) {
    const bl_op *op = x->op;
    bl_cpu *c = x->c;
    uint32_t pairs = x->n_rows * op->n_used;
    const bl_packed *packed[2];
    stack_job j = {.c = c, .n_w = n_w};
    for (uint32_t i = 0; i < n_w; i++) {
        packed[i] = &op->w[first_w + i]->pk;
        j.a[i] = (bl_mm_args){.w = packed[i],
                              .xq = &c->xq[bl_pk_group(packed[i])],
                              .x = in,
                              .ldx = ldx,
                              .y = out[i],
                              .ldy = ldy};
        j.bias[i] = op->bias[first_w + i];
    }
    bl_cpu_quantise(c, packed, n_w, in, ldx, pairs);
    j.height = packed[0]->n_out / op->n_experts;
    j.blocks = j.height / BL_PK_ROWS;
    j.per_unit = pairs > MANY_ROWS * c->moe.n_active
                     ? UNIT_BLOCKS
                     : (uint32_t)BL_MAX(UNIT_BYTES / packed[0]->block_bytes, 1u);
    j.units = (j.blocks + j.per_unit - 1) / j.per_unit;
    j.total = c->moe.n_active * n_w * j.units;
    bl_pool_run(c->pool, stack_units, &j);
}

static void glu_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    uint32_t mid = x->op->w[2]->pk.k;
    size_t ld = bl_slot_stride(mid);
    for (size_t i = row0; i < row1; i++) {
        float *g = x->c->moe.gate + i * ld;
        x->c->k.glu(g, x->c->moe.up + i * ld, g, mid, x->op->act, x->op->cap);
    }
}

static void combine_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_op *op = x->op;
    const bl_cpu_moe *m = &x->c->moe;
    uint32_t n = x->step->widths[op->out[0]];
    for (uint32_t r = row0; r < row1; r++) {
        const float *weights = slot_row(x->step, op->in1, r) + op->n_used;
        float *y = slot_row(x->step, op->out[0], r);
        memset(y, 0, n * sizeof(float));
        for (uint32_t i = 0; i < op->n_used; i++) {
            size_t at = m->place[(size_t)r * op->n_used + i];
            x->c->k.axpy(weights[i], m->y + at * bl_slot_stride(n), y, n);
        }
    }
}

void bl_cpu_experts(const op_ctx *x) {
    const bl_op *op = x->op;
    bl_cpu_moe *m = &x->c->moe;
    uint32_t pairs = x->n_rows * op->n_used, hidden = x->step->widths[op->in0], mid = op->w[2]->pk.k;
    if (pairs == 0) {
        return;
    }
    sort_rows(x, m);
    bl_cpu_for_rows(x->c, pairs, hidden, gather_rows, x);
    stack_product(x, 0, 2, m->x, slot_ld(x->step, op->in0), (float *const[]){m->gate, m->up},
                  bl_slot_stride(mid));
    bl_cpu_for_rows(x->c, pairs, 8 * mid, glu_rows, x);
    stack_product(x, 2, 1, m->gate, bl_slot_stride(mid), &m->y, bl_slot_stride(x->step->widths[op->out[0]]));
    bl_cpu_for_rows(x->c, x->n_rows, op->n_used * hidden, combine_rows, x);
}
