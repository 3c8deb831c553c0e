/* Finding a model's tensors: a part's name under the container's conventions → a checked matrix, stack of
 * expert matrices or vector of bl_model. What the names are is the families' affair; how a container stores a
 * weight (plain, quantised with scales beside it, fused with another, transposed) is decided here, from what
 * is in the file. */
#ifndef BL_MODEL_TENSORS_H
#define BL_MODEL_TENSORS_H

#include "model/model.h"

#define BL_TENSOR_NAME_MAX 192u

typedef struct {
    bl_model *m;
    const char *root; /* before all names but the head's: "model.", "" */
    char prefix[64];  /* of the layer: "layers.3.", or "" */
    bool draft;       /* what is added belongs to the draft head */
    bl_err *err;
} bl_tensor_finder;

/* "<root><prefix><leaf><suffix>" */
void bl_tensor_name(const bl_tensor_finder *f, const char *leaf, const char *suffix,
                    char ret[BL_TENSOR_NAME_MAX]);
/* NULL: not in the file. */
const bl_tensor_view *bl_tensor_find(const bl_tensor_finder *f, const char *leaf, const char *suffix);

/* "<leaf>.weight" as a matrix [n_out, k]; map NULL: row by row. With a map the file's tensor has n_file rows.
 * BL_EFORMAT naming the tensor when it is missing or misshapen, BL_ENOTSUP for a type that is no weight. */
bl_code bl_tensor_matrix(bl_tensor_finder *f, const char *leaf, uint32_t n_out, uint32_t k,
                         const bl_row_map *map, uint32_t n_file, int32_t *ret) BL_MUST_CHECK;

/* The expert stacks of one layer: gate and up [n_experts * mid, hidden], down [n_experts * hidden, mid], and
 * their biases if the model has them. `bases` lists the names under which containers keep experts
 * ("mlp.experts", "mlp.switch_mlp", ...), NULL-terminated; fused and split forms of each are tried. */
typedef struct {
    int32_t w[3], bias[3]; /* gate, up, down */
} bl_expert_refs;
bl_code bl_tensor_experts(bl_tensor_finder *f, const char *const *bases, uint32_t hidden, uint32_t mid,
                          bool biased, bl_expert_refs *ret) BL_MUST_CHECK;

/* A vector of n elements; the file may hold it with any shape of n_file elements (0: n) whose first dimension
 * is n_first (0: one dimension). */
typedef struct {
    const char *leaf, *suffix;
    uint32_t n, n_file, n_first;
    float add, mul;
    bool neg_exp;
    uint32_t columns;
    bl_row_map map;
} bl_vector_spec;
bl_code bl_tensor_vector(bl_tensor_finder *f, const bl_vector_spec *s, int32_t *ret) BL_MUST_CHECK;

/* Refuses the first tensor that no matrix or vector uses, unless `skip` accepts its name. */
bl_code bl_tensor_refuse_unknown(const bl_model *m, bool (*skip)(const bl_model *m, const char *name),
                                 bl_err *err) BL_MUST_CHECK;

#endif
