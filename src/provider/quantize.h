/* Makes an MLX checkpoint of a Hugging Face one: the text tower alone, names and layouts as mlx-lm writes
 * them, matrices quantised as MLX quantises them (tensor/mlx_quantize.h), everything else as it was. An
 * embedded multi-token-prediction head of Qwen is kept in a shard of its own.
 *
 * Streaming: tensors are read from the map and written row block by row block; memory is a few blocks,
 * whatever the model's size. docs/quantize.md says what is quantised and why.
 */
#ifndef BL_PROVIDER_QUANTIZE_H
#define BL_PROVIDER_QUANTIZE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "tensor/mlx_quantize.h"

typedef enum { BL_QUANTIZE_HEAD_QUANTIZED, BL_QUANTIZE_HEAD_PLAIN, BL_QUANTIZE_HEAD_NONE } bl_quantize_head;

/* Matrices whose module path matches `pattern` ('*' and '?' as in a shell) get `bits`, 0 leaves them alone.
 */
typedef struct {
    const char *pattern;
    uint32_t bits;
} bl_quantize_keep;

typedef struct {
    const char *src, *dst; /* dst: absent, or an empty folder */
    bl_mlx_quantize_format format;
    bool cast; /* floats become `dtype` first (F32, F16, BF16); otherwise each keeps its own */
    bl_dtype dtype;
    bl_quantize_head head;
    uint32_t head_bits;           /* affine; 0: those of the format */
    const bl_quantize_keep *keep; /* the first that matches counts */
    uint32_t n_keep;
    uint64_t max_shard_bytes;
    const atomic_bool *cancel; /* may be NULL; BL_ECANCEL within a block */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* of the source; may be NULL */
    void *user;
} bl_quantize_options;

typedef struct {
    char model_type[64];
    uint32_t n_tensors;    /* written */
    uint32_t n_quantized;  /* matrices */
    uint32_t n_unfit;      /* matrices left alone because the group does not divide their width */
    char first_unfit[128]; /* the first of those */
    uint64_t unfit_width;
    uint32_t n_skipped; /* tensors of the source that the text tower does not use */
    bool has_head;
    uint64_t n_params, size_bytes;
} bl_quantize_report;

/* On failure nothing stays at dst. BL_EINVAL for a format that does not exist, a dst that holds something, a
 * pattern that matches nothing; BL_ENOTSUP for a family not known and a source that is quantised already;
 * BL_EFORMAT, naming the tensor, for shapes and values that cannot be. */
bl_code bl_quantize_run(const bl_quantize_options *o, bl_quantize_report *ret, bl_err *err) BL_MUST_CHECK;

#endif
