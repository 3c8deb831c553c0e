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
    bool transposed, quantize, always_listed, head;
    float add;                 /* to every element */
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
    float norm_shift;            /* what norms need: 1 where the source stores them zero-centred */
    bool head_only;              /* the draft head of the source, for a target whose config this is; */
    bool bare_head;              /* its names lack "mtp." */
    bool tied;
    uint64_t first_shared; /* layers from here on have no K and V of their own */
    bl_mlx_quantize_format listed_default, head_format;
    bl_quantize_job *jobs;
    uint32_t n, cap;
    uint64_t keep_used; /* bit i: pattern i matched */
    bl_quantize_report report;
} bl_quantize_plan;

/* Jobs for every tensor of the checkpoint, or of its head (quantize_plan.c). o, c, family, config and text
 * are set; with head_only norm_shift too. */
bl_code bl_quantize_plan_make(bl_quantize_plan *p, bl_err *err) BL_MUST_CHECK;
void bl_quantize_plan_done(bl_quantize_plan *p);

/* conv1d [C,1,4] is Hugging Face's layout, and its norms are zero-centred; [C,4,1] is MLX's (spec §4.3). */
bool bl_quantize_stores_centred(const bl_quantize_family *family, const bl_checkpoint *c);

/* The block of mtplx_mtp_quantization: {} when no matrix of the head is quantised. NULL: no memory. */
json_t *bl_quantize_head_block(const bl_quantize_plan *p);
/* mtplx_mtp of an embedded head. NULL: no memory. */
json_t *bl_quantize_head_declaration(bool moe, uint32_t block_size);
/* config.json of the result, appended to *ret (quantize_config.c). */
bl_code bl_quantize_config_make(const bl_quantize_plan *p, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#define BL_QUANTIZE_HEAD_FILE "mtp-00001.safetensors"

/* A plan being carried out (quantize_rows.c). */
typedef struct {
    bl_quantize_plan plan;
    bl_safetensors_writer *w;
    uint64_t done_bytes, total_bytes; /* of the source */
    /* work space of a block; each as large as any job needs */
    uint8_t *rows, *converted, *weight, *scales, *biases;
} bl_quantize_work;

/* Tells the writer every tensor; then, after its begin, hands it all bytes. The plan's options have the
 * cancel flag and hear of progress. */
bl_code bl_quantize_work_plan(bl_quantize_work *r, bl_err *err) BL_MUST_CHECK;
bl_code bl_quantize_work_run(bl_quantize_work *r, bl_err *err) BL_MUST_CHECK;
/* The plan too; the writer is its maker's. */
void bl_quantize_work_done(bl_quantize_work *r);

#endif
