/* Recurrent layers: the causal convolution and the gated delta rule (NUMERICS §6).
 *
 * Rows of a sequence go in order; the work is shared over channels (convolution) and over heads and lanes
 * (delta rule), which do not meet. */
#include <math.h>
#include <string.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/run.h"
#include "base/base.h"

/* Channels of a unit. */
#define CONV_COLS 256u

static float *state_of(const op_ctx *x, uint32_t seq) {
    return x->step->state[x->op->state_layer][seq];
}

/* ---- convolution ------------------------------------------------------------------------------ */

typedef struct {
    const op_ctx *x;
    uint32_t per_run, total;
    _Atomic uint32_t next;
} conv_job;

static void conv_units(void *ctx, uint32_t thread) {
    (void)thread;
    conv_job *j = ctx;
    const op_ctx *x = j->x;
    const bl_op *op = x->op;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->total;) {
        const bl_cpu_run *run = &x->c->runs[u / j->per_run];
        uint32_t c0 = u % j->per_run * CONV_COLS, width = x->step->widths[op->in0];
        bl_conv_args a = {.w = op->vec,
                          .state = state_of(x, run->seq),
                          .x = slot_row(x->step, op->in0, run->row0),
                          .y = slot_row(x->step, op->out[0], run->row0),
                          .ldx = slot_ld(x->step, op->in0),
                          .ldy = slot_ld(x->step, op->out[0]),
                          .width = width,
                          .n_taps = op->n_taps};
        x->c->k.conv(&a, 0, run->row1 - run->row0, c0, BL_MIN(c0 + CONV_COLS, width));
    }
}

/* The state takes the last n_taps - 1 rows. */
static void keep_rows(const op_ctx *x, const bl_cpu_run *run) {
    uint32_t width = x->step->widths[x->op->in0], keep = x->op->n_taps - 1, n = run->row1 - run->row0;
    float *state = state_of(x, run->seq);
    uint32_t old = n < keep ? keep - n : 0; /* of the state's rows that stay */
    memmove(state, state + (size_t)(keep - old) * width, (size_t)old * width * sizeof(float));
    for (uint32_t i = old; i < keep; i++) {
        memcpy(state + (size_t)i * width, slot_row(x->step, x->op->in0, run->row1 - keep + i),
               width * sizeof(float));
    }
}

void bl_cpu_conv(const op_ctx *x) {
    uint32_t width = x->step->widths[x->op->in0];
    conv_job j = {.x = x, .per_run = (width + CONV_COLS - 1) / CONV_COLS};
    j.total = j.per_run * x->c->n_runs;
    if (x->n_rows < 2) {
        conv_units(&j, 0);
    } else {
        bl_pool_run(x->c->pool, conv_units, &j);
    }
    for (uint32_t i = 0; i < x->c->n_runs; i++) {
        keep_rows(x, &x->c->runs[i]);
    }
}

/* ---- gated delta rule ------------------------------------------------------------------------- */

/* x / sqrt(sum x^2 + eps) * scale, by the RMS norm's order. */
static void unit_norm(const bl_kernels *k, float *x, uint32_t n, float eps, float scale) {
    k->rmsnorm(x, NULL, NULL, x, n, eps / (float)n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] * scale;
    }
}

static void gate_rows(const void *ctx, uint32_t row0, uint32_t row1) {
    const op_ctx *x = ctx;
    const bl_op *op = x->op;
    float kscale = 1.0f / sqrtf((float)op->dim), qscale = 1.0f / (float)op->dim;
    for (uint32_t r = row0; r < row1; r++) {
        float *q = slot_row(x->step, op->in0, r), *k = q + (size_t)op->n_kv_heads * op->dim;
        for (uint32_t h = 0; h < op->n_kv_heads; h++) {
            unit_norm(&x->c->k, q + (size_t)h * op->dim, op->dim, op->eps, qscale);
            unit_norm(&x->c->k, k + (size_t)h * op->dim, op->dim, op->eps, kscale);
        }
        float *beta = slot_row(x->step, op->in1, r), *decay = slot_row(x->step, op->in2, r);
        for (uint32_t h = 0; h < op->n_heads; h++) {
            beta[h] = canon_sigmoid(beta[h]);
            decay[h] = canon_exp(op->vec[h] * canon_softplus(decay[h] + op->bias[0][h]));
        }
    }
}

typedef struct {
    const op_ctx *x;
    uint32_t per_head, total;
    _Atomic uint32_t next;
} delta_job;

static void delta_units(void *ctx, uint32_t thread) {
    (void)thread;
    delta_job *j = ctx;
    const op_ctx *x = j->x;
    const bl_op *op = x->op;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->total;) {
        const bl_cpu_run *run = &x->c->runs[u / (op->n_heads * j->per_head)];
        uint32_t head = u / j->per_head % op->n_heads, lane = u % j->per_head * BL_DELTA_LANES;
        bl_delta_args a = {
            .qkv = slot_row(x->step, op->in0, run->row0),
            .ld = slot_ld(x->step, op->in0),
            .beta = slot_row(x->step, op->in1, run->row0),
            .decay = slot_row(x->step, op->in2, run->row0),
            .ldg = slot_ld(x->step, op->in1),
            .out = slot_row(x->step, op->out[0], run->row0),
            .ldo = slot_ld(x->step, op->out[0]),
            .state = state_of(x, run->seq) + bl_state_offset(op->n_taps, x->step->widths[op->in0]),
            .n_heads = op->n_heads,
            .n_key_heads = op->n_kv_heads,
            .dim = op->dim,
            .head_dim = op->head_dim,
            .heads = op->heads,
        };
        x->c->k.delta(&a, 0, run->row1 - run->row0, head, lane, BL_MIN(lane + BL_DELTA_LANES, op->head_dim));
    }
}

void bl_cpu_delta(const op_ctx *x) {
    const bl_op *op = x->op;
    bl_cpu_for_rows(x->c, x->n_rows, 4 * x->step->widths[op->in0], gate_rows, x);
    delta_job j = {.x = x, .per_head = (op->head_dim + BL_DELTA_LANES - 1) / BL_DELTA_LANES};
    j.total = x->c->n_runs * op->n_heads * j.per_head;
    bl_pool_run(x->c->pool, delta_units, &j);
}
