/* Element types and quantised block layouts of checkpoint files: plain data and exact scalar conversions.
 *
 * Source of the block layouts: spec models.md §8 (MLX) and §9.2-9.5 (GGUF v3). The dequantised value of every
 * format is the formula given there, evaluated in f32, each product and sum rounded once, in the written
 * order.
 */
#ifndef BL_TENSOR_DTYPE_H
#define BL_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "bl/bl_err.h"

typedef enum {
    BL_DTYPE_F32 = 0,
    BL_DTYPE_F16,
    BL_DTYPE_BF16,
    BL_DTYPE_Q4_0,
    BL_DTYPE_Q4_1,
    BL_DTYPE_Q5_0,
    BL_DTYPE_Q5_1,
    BL_DTYPE_Q8_0,
    BL_DTYPE_Q4_K,
    BL_DTYPE_Q5_K,
    BL_DTYPE_Q6_K,
    /* MLX (tensor/mlx.h): the packed elements; scales and biases lie in tensors of their own */
    BL_DTYPE_AFFINE2,
    BL_DTYPE_AFFINE3,
    BL_DTYPE_AFFINE4,
    BL_DTYPE_AFFINE5,
    BL_DTYPE_AFFINE6,
    BL_DTYPE_AFFINE8,
    BL_DTYPE_MXFP4, /* also OpenAI's blocks: low and high nibble are neighbours */
    BL_DTYPE_MXFP8,
    BL_DTYPE_NVFP4,
    BL_DTYPE_GGUF_MXFP4, /* with its scale in the block; low nibbles first */
    /* carried by containers, not by weights of this version */
    BL_DTYPE_I8,
    BL_DTYPE_I16,
    BL_DTYPE_I32,
    BL_DTYPE_I64,
    BL_DTYPE_U8,
    BL_DTYPE_U32,
    BL_DTYPE_F8_E4M3,
    BL_DTYPE_F8_E8M0,
    BL_DTYPE__MAX
} bl_dtype;

typedef struct {
    const char *name;     /* "Q4_K" */
    uint32_t block_elems; /* elements per block, 1 for plain types */
    uint32_t block_bytes; /* bytes per block; MLX types: of the packed elements alone */
    bool is_weight;       /* may be a weight matrix: all below BL_DTYPE_I8 */
} bl_dtype_info;

const bl_dtype_info *bl_dtype_get(bl_dtype t);

/* Bytes of a row of n elements. BL_EFORMAT when n is no multiple of the block, BL_ERANGE on overflow. */
bl_code bl_dtype_row_bytes(bl_dtype t, uint64_t n, uint64_t *ret, bl_err *err) BL_MUST_CHECK;

/* dst[n] (f32) = dequantised row; n a multiple of the block; src unaligned. t must be a weight type that
 * carries its scales (the MLX types: bl_mlx_dequant). */
void bl_dequant_row(bl_dtype t, const void *src, float *dst, uint64_t n);

/* BL_EFORMAT when a scale, offset or plain value among the n elements is NaN or infinite; names neither the
 * tensor nor the file: callers wrap. */
bl_code bl_dtype_check_finite(bl_dtype t, const void *src, uint64_t n, bl_err *err) BL_MUST_CHECK;

static inline float bl_bits_to_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t bl_f32_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float bl_bf16_to_f32(uint16_t h) {
    return bl_bits_to_f32((uint32_t)h << 16);
}
/* Round to nearest even; NaN stays NaN (quiet). */
static inline uint16_t bl_f32_to_bf16(float f) {
    uint32_t u = bl_f32_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
/* An E8M0 scale, 2^(e - 127): exact, 2^-127 being a denormal. 255 means NaN in files and is 2^128 = inf here.
 */
static inline float bl_e8m0_to_f32(uint8_t e) {
    return bl_bits_to_f32(e == 0 ? 0x400000u : (uint32_t)e << 23);
}
/* The largest scales whose products with the largest E2M1 (6) and E4M3 (448) values are finite. */
#define BL_E8M0_MAX_FP4 252u
#define BL_E8M0_MAX_FP8 246u
/* E4M3, the fn variant: exact. 0x7f and 0xff mean NaN in files and are +-480 here. */
static inline float bl_e4m3_to_f32(uint8_t b) {
    return bl_bits_to_f32((uint32_t)(b & 0x80u) << 24 | (uint32_t)(b & 0x7fu) << 20) * 0x1p120f;
}
/* Twice the value of an E2M1 code (sign, two bits of exponent, one of mantissa): an integer. */
static inline int32_t bl_e2m1_doubled(uint32_t code) {
    int32_t m = (int32_t)(code & 7u), v = m < 4 ? m : (2 + (m & 1)) << (m / 2 - 1);
    return code & 8u ? -v : v;
}
/* Exact. */
float bl_f16_to_f32(uint16_t h);
/* Round to nearest even, overflow to infinity, denormals kept. */
uint16_t bl_f32_to_f16(float f);

#endif
