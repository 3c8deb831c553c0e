/* Inside of quantize*.c: one tensor or quantised matrix of the new checkpoint, and where its rows come from.
 */
#ifndef BL_PROVIDER_QUANTIZE_JOB_H
#define BL_PROVIDER_QUANTIZE_JOB_H

#include <jansson.h>

#include "formats/checkpoint.h"
#include "formats/safetensors_writer.h"
#include "provider/quantize.h"
#include "provider/quantize_rules.h"

/* Row r of expert e (one expert for what has none) is row e * src_rows + first + r * step of the source, or,
 * of a transposed source [E, width, src_rows], that column of block e. Stacked experts have a source each. */
typedef struct {
    const bl_tensor_view *src;
    const bl_tensor_view **parts; /* stacked: n_experts of them; owned */
    uint64_t n_experts, src_rows, first, step, rows, width;
    bool transposed, add_one, quantize, always_listed, head;
    bl_dtype src_dtype, dtype; /* as stored; as written, or before it is quantised */
    bl_mlx_quantize_format format;
    char name[256];  /* of the tensor, or of the module when it is quantised */
    uint32_t n_dims; /* as written when it is not quantised */
    uint64_t dims[BL_TENSOR_MAX_DIMS];
    bl_dtype plan_dtype; /* of the file: U32 for mxfp4 blocks taken over */
    uint32_t id, id_scales, id_biases;
    uint64_t n_params;
} bl_quantize_job;

typedef struct {
    const bl_quantize_options *o;
    const bl_checkpoint *c;
    const bl_quantize_family *family;
    const json_t *config, *text; /* text: the tower's part */
    bool shift_norms;            /* the source stores zero-centred norms */
    bool tied;
    uint64_t first_shared; /* layers from here on have no K and V of their own */
    bl_mlx_quantize_format listed_default, head_format;
    bl_quantize_job *jobs;
    uint32_t n, cap;
    uint64_t keep_used; /* bit i: pattern i matched */
    bl_quantize_report report;
} bl_quantize_plan;

/* Jobs for every tensor of the checkpoint (quantize_plan.c). */
bl_code bl_quantize_plan_make(bl_quantize_plan *p, bl_err *err) BL_MUST_CHECK;
void bl_quantize_plan_done(bl_quantize_plan *p);

/* config.json of the result, appended to *ret (quantize_config.c). */
bl_code bl_quantize_config_make(const bl_quantize_plan *p, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#endif
