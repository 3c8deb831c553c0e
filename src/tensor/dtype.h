/* Element types and quantised block layouts of checkpoint files: plain data and exact scalar conversions.
 *
 * Source of the block layouts: spec models.md §9.2-9.4 (GGUF v3). The dequantised value of every format is
 * the formula given there, evaluated in f32, each product and sum rounded once, in the written order.
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
    uint32_t block_bytes; /* bytes per block */
    bool is_weight;       /* may be a weight matrix (first eleven) */
} bl_dtype_info;

const bl_dtype_info *bl_dtype_get(bl_dtype t);

/* Bytes of a row of n elements. BL_EFORMAT when n is no multiple of the block, BL_ERANGE on overflow. */
bl_code bl_dtype_row_bytes(bl_dtype t, uint64_t n, uint64_t *ret, bl_err *err) BL_MUST_CHECK;

/* dst[n] (f32) = dequantised row; n a multiple of the block; src unaligned. t must be a weight type. */
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
/* Exact. */
float bl_f16_to_f32(uint16_t h);
/* Round to nearest even, overflow to infinity, denormals kept. */
uint16_t bl_f32_to_f16(float f);

#endif
