/* Encoder of the quantised matrices of MLX checkpoints (spec models.md §8): the bytes that
 * `mlx.core.quantize` writes on its CPU backend (compared with mlx 0.32.4,
 * tools/reference/make_mlx_encode.py), so that a checkpoint made here is the one that MLX would have made.
 *
 * Pure functions over groups of consecutive elements of a row; no state, any thread.
 *
 * affine   value = scale * q + bias, q in 0..2^bits-1; scale and bias in the source's dtype. The arithmetic
 * is f32 with round-half-even; scale and bias are rounded after q is known. mxfp4    E2M1 elements, groups of
 * 32, one E8M0 scale: the smallest power of two that is at least amax / 6. Elements between two values go to
 * the nearer one, ties towards zero. mxfp8    E4M3 elements, groups of 32, E8M0 scale likewise of amax / 448.
 * Round half to even. nvfp4    E2M1 elements, groups of 16, one E4M3 scale: amax / 6 rounded half to even. No
 * tensor-wide scale. In the three fp modes amax / max and element / scale are rounded to the source's dtype,
 * as MLX computes them there.
 */
#ifndef BL_TENSOR_MLX_QUANTIZE_H
#define BL_TENSOR_MLX_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "tensor/dtype.h"

typedef enum {
    BL_MLX_QUANTIZE_AFFINE,
    BL_MLX_QUANTIZE_MXFP4,
    BL_MLX_QUANTIZE_MXFP8,
    BL_MLX_QUANTIZE_NVFP4,
    BL_MLX_QUANTIZE__MAX
} bl_mlx_quantize_mode;

typedef struct {
    bl_mlx_quantize_mode mode;
    uint32_t bits;  /* per element */
    uint32_t group; /* elements that share a scale */
} bl_mlx_quantize_format;

/* "affine", "mxfp4"...: the word of the `quantization` block. */
const char *bl_mlx_quantize_mode_name(bl_mlx_quantize_mode mode);

/* BL_EINVAL names the combination found and those allowed: affine 2 3 4 5 6 8 bits by 32 64 128; mxfp4 4 by
 * 32; mxfp8 8 by 32; nvfp4 4 by 16. */
bl_code bl_mlx_quantize_check(const bl_mlx_quantize_format *f, bl_err *err) BL_MUST_CHECK;

/* Bytes of n elements (a multiple of the group) in the packed weight. */
static inline uint64_t bl_mlx_quantize_weight_bytes(const bl_mlx_quantize_format *f, uint64_t n) {
    return n / 8 * f->bits;
}

/* Bytes of one scale, and of one bias where there are biases (affine only): those of the source's dtype, or 1
 * in the fp modes. */
static inline uint32_t bl_mlx_quantize_scale_bytes(const bl_mlx_quantize_format *f, bl_dtype src) {
    return f->mode != BL_MLX_QUANTIZE_AFFINE ? 1 : src == BL_DTYPE_F32 ? 4 : 2;
}

/* src: n finite elements (unaligned, a multiple of the group) of dtype F32, F16 or BF16. ret_weight:
 * bl_mlx_quantize_weight_bytes; ret_scales and ret_biases: n / group values each. ret_biases is not touched
 * outside affine and may be NULL there. The format must have passed the check. */
void bl_mlx_quantize(const bl_mlx_quantize_format *f, bl_dtype src_dtype, const void *src, uint64_t n,
                     uint8_t *ret_weight, uint8_t *ret_scales, uint8_t *ret_biases);

#endif
