/* What the files that run ops share (run.c, moe.c, recur.c). [engine thread] and its pool. */
#ifndef BL_BACKEND_CPU_RUN_H
#define BL_BACKEND_CPU_RUN_H

#include "backend/cpu/cpu.h"

typedef struct {
    bl_cpu *c;
    const bl_op *op;
    const bl_step *step;
    uint32_t n_rows; /* rows the op runs on */
} op_ctx;

static inline float *slot_row(const bl_step *s, uint8_t slot, size_t row) {
    return s->slots[slot] + row * bl_slot_stride(s->widths[slot]);
}
static inline size_t slot_ld(const bl_step *s, uint8_t slot) {
    return bl_slot_stride(s->widths[slot]);
}
/* The step's row behind row i of an op. */
static inline uint32_t step_row(const op_ctx *x, uint32_t i) {
    return x->op->rows == BL_ROWS_OUT ? x->step->out_rows[i] : i;
}

/* Rows [row0, row1) of what ctx describes. */
typedef void bl_row_fn(const void *ctx, uint32_t row0, uint32_t row1);
/* fn over n_rows rows, each worth about `width` elements, on the pool when that is worth it. */
void bl_cpu_for_rows(bl_cpu *c, uint32_t n_rows, uint32_t width, bl_row_fn *fn, const void *ctx);

/* Rows of activations into the planes that products with these n_w matrices take; rows 0 ... n_rows - 1. */
void bl_cpu_quantise(bl_cpu *c, const bl_packed *const *w, uint32_t n_w, const float *x, size_t ldx,
                     uint32_t n_rows);
/* moe.c: ROUTE of rows (ctx: op_ctx), EXPERTS. */
void bl_cpu_route_rows(const void *ctx, uint32_t row0, uint32_t row1);
void bl_cpu_experts(const op_ctx *x);
/* recur.c */
void bl_cpu_conv(const op_ctx *x);
void bl_cpu_delta(const op_ctx *x);

#endif
