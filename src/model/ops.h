/* Writing the op list: one helper per kind of op the decoder uses. Internal to model/. */
#ifndef BL_MODEL_OPS_H
#define BL_MODEL_OPS_H

#include "model/model.h"

typedef struct {
    bl_model *m;
    int32_t layer; /* of the ops being written; -1 outside layers */
    size_t n, max; /* ops written; room in m->ops */
} bl_op_writer;

/* Every reference of the new op is empty, eps is the config's. */
bl_op *bl_op_add(bl_op_writer *w, bl_op_kind kind, const char *label, uint8_t in0, uint8_t in1, uint8_t out);
/* References of the op written last. */
bl_op_refs *bl_op_last_refs(const bl_op_writer *w);

/* out = rmsnorm(in) over groups of dim (0: the row); vec -1: no weight */
void bl_op_norm(bl_op_writer *w, const char *label, uint8_t in, uint8_t out, uint32_t dim, int32_t vec);
/* n products of one input; bias may be NULL */
void bl_op_matmul(bl_op_writer *w, const char *label, uint8_t in, uint32_t n, const uint8_t *outs,
                  const int32_t *mats, const int32_t *bias);
/* x += in, normed first when norm >= 0 */
void bl_op_residual(bl_op_writer *w, const char *label, uint8_t in, int32_t norm);

#endif
