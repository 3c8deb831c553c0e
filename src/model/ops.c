#include "model/ops.h"

#include "base/base.h"

bl_op *bl_op_add(bl_op_writer *w, bl_op_kind kind, const char *label, uint8_t in0, uint8_t in1, uint8_t out) {
    bl_model *m = w->m;
    BL_ASSERT(w->n < w->max);
    bl_op *op = &m->ops[w->n];
    *op = (bl_op){.kind = kind,
                  .layer = w->layer,
                  .label = label,
                  .in0 = in0,
                  .in1 = in1,
                  .in2 = BL_SLOT_NONE,
                  .eps = m->cfg.norm_eps};
    bl_op_refs *r = &m->refs[w->n];
    r->vec = -1;
    for (size_t i = 0; i < BL_OP_MAX_W; i++) {
        op->out[i] = BL_SLOT_NONE;
        r->w[i] = r->bias[i] = -1;
    }
    op->out[0] = out;
    op->rows = bl_slot_is_out(out) ? BL_ROWS_OUT : BL_ROWS_ALL;
    w->n++;
    return op;
}

bl_op_refs *bl_op_last_refs(const bl_op_writer *w) {
    return &w->m->refs[w->n - 1];
}

void bl_op_norm(bl_op_writer *w, const char *label, uint8_t in, uint8_t out, uint32_t dim, int32_t vec) {
    bl_op_add(w, BL_OP_RMSNORM, label, in, BL_SLOT_NONE, out)->dim = dim;
    bl_op_last_refs(w)->vec = vec;
}

void bl_op_matmul(bl_op_writer *w, const char *label, uint8_t in, uint32_t n, const uint8_t *outs,
                  const int32_t *mats, const int32_t *bias) {
    bl_op *op = bl_op_add(w, BL_OP_MATMUL, label, in, BL_SLOT_NONE, outs[0]);
    op->n_w = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        op->out[i] = outs[i];
        bl_op_last_refs(w)->w[i] = mats[i];
        bl_op_last_refs(w)->bias[i] = bias ? bias[i] : -1;
    }
}

void bl_op_residual(bl_op_writer *w, const char *label, uint8_t in, int32_t norm) {
    if (norm < 0) {
        bl_op_add(w, BL_OP_ADD, label, BL_SLOT_X, in, BL_SLOT_X);
        return;
    }
    bl_op_add(w, BL_OP_ADD_NORM, label, BL_SLOT_X, in, BL_SLOT_X)->dim = w->m->cfg.hidden;
    bl_op_last_refs(w)->vec = norm;
}
