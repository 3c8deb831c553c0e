/* Rows of MLX weights: packed elements with scales (and, for the affine types, biases) in arrays of their
 * own.
 *
 * Source: spec models.md §8. A row of elements is one little-endian bit stream, lowest bits first; a scale
 * and a bias serve `group` neighbours. Plain data and exact scalar conversions; this is the definition of a
 * stored weight's value: affine   scale * q, rounded to f32, + bias, rounded to f32; q unsigned; the scale
 * may be negative mxfp4    E2M1 * 2^(e - 127), exact mxfp8    E4M3 * 2^(e - 127), exact nvfp4    E2M1 * (E4M3
 * scale * global scale, rounded to f32), rounded to f32
 */
#ifndef BL_TENSOR_MLX_H
#define BL_TENSOR_MLX_H

#include "tensor/dtype.h"

static inline bool bl_dtype_is_mlx(bl_dtype t) {
    return t >= BL_DTYPE_AFFINE2 && t <= BL_DTYPE_NVFP4;
}
static inline bool bl_dtype_is_affine(bl_dtype t) {
    return t >= BL_DTYPE_AFFINE2 && t <= BL_DTYPE_AFFINE8;
}
/* Bits of an element of an MLX type. */
static inline uint32_t bl_mlx_bits(bl_dtype t) {
    return bl_dtype_get(t)->block_bytes / 4;
}

/* One row. Pointers borrowed, unaligned. */
typedef struct {
    bl_dtype dtype;
    bl_dtype scale_dtype; /* as in bl_mat_desc (backend.h) */
    uint32_t group;
    float global_scale; /* nvfp4; 0 means 1 */
    const void *packed; /* k elements */
    const void *scales; /* [k / group] */
    const void *biases; /* [k / group], NULL unless affine */
} bl_mlx_row;

/* BL_EINVAL when the type, its group and its scales' type do not belong together, k is no multiple of the
 * group and of 32, a global scale is not finite or not nvfp4's, or biases are there although the type has
 * none (or missing). Looks at no array. */
bl_code bl_mlx_check_layout(const bl_mlx_row *r, uint64_t k, bl_err *err) BL_MUST_CHECK;

/* q[32] = the raw codes of elements [first, first + 32); first a multiple of 32. */
void bl_mlx_codes(bl_dtype t, const void *packed, uint64_t first, uint8_t q[32]);

/* Scale or bias i out of an array of scale_dtype; not nvfp4's global scale. */
float bl_mlx_scale(bl_dtype t, bl_dtype scale_dtype, const void *scales, uint64_t i);

/* dst[n] (f32) = elements [first, first + n) of the row; first and n multiples of 32. */
void bl_mlx_dequant(const bl_mlx_row *r, uint64_t first, float *dst, uint64_t n);

/* BL_EFORMAT when a scale, bias or mxfp8 element among the first n is NaN or infinite, or a scale so large
 * that an element times it may be; names neither the tensor nor the file: callers wrap. */
bl_code bl_mlx_check_finite(const bl_mlx_row *r, uint64_t n, bl_err *err) BL_MUST_CHECK;

#endif
