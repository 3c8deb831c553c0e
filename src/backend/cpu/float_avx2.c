/* Matrix products of float weights (f32, f16, bf16, mxfp8) with f32 activations, AVX2: lanes are output rows,
 * x is broadcast, one fma per k.
 *
 * A row's 16 outputs are two chains of fused multiply-adds four cycles long, so one row alone would leave the
 * units half idle: rows of x are done six at a time, and a single row takes four blocks at a time.
 */
#include "backend/cpu/kernels.h"

#include <immintrin.h>

#include "base/base.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* 2^8 times eight E8M0 scales; exponent 0 is a denormal. */
INLINE __m256 mx_scales(const uint8_t *p) {
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    e = _mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(256.0f));
}

/* Eight weights from element i on; MXFP8: without their scales, and 2^-8 of the value, which is what E4M3
 * bits mean as f16. */
INLINE __m256 weights(bl_dtype t, const uint8_t *p, size_t i) {
    if (t == BL_DTYPE_MXFP8) {
        __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(p + i));
        b = _mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), b), 1);
        return _mm256_cvtph_ps(_mm_and_si128(b, _mm_set1_epi16((short)0xbf80)));
    }
    if (t == BL_DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)p + i);
    }
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i));
    return t == BL_DTYPE_F16 ? _mm256_cvtph_ps(h)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* M rows of x by N blocks. */
INLINE void kernel(bl_dtype t, unsigned M, unsigned N, const bl_mm_args *a, uint32_t b, size_t row) {
    const bl_packed *w = a->w;
    const uint8_t *blk = w->base + (size_t)b * w->block_bytes, *data = blk + w->data_off;
    const float *x = a->x + row * a->ldx;
    for (uint32_t k0 = 0; k0 < w->k; k0 += BL_FLOAT_STRIP) {
        uint32_t k1 = BL_MIN(k0 + BL_FLOAT_STRIP, w->k);
        __m256 p[6][8], scale[8];
        UNROLL for (unsigned m = 0; m < M; m++) {
            UNROLL for (unsigned n = 0; n < 2 * N; n++) {
                p[m][n] = _mm256_setzero_ps();
            }
        }
        const size_t run = t == BL_DTYPE_MXFP8 ? 32 : BL_STRIP; /* of k with the same scales */
        for (size_t kr = k0; kr < k1; kr += run) {
            UNROLL for (unsigned n = 0; n < 2 * N; n++) {
                scale[n] = _mm256_setzero_ps();
                if (t == BL_DTYPE_MXFP8) {
                    scale[n] = mx_scales(blk + n / 2 * w->block_bytes + kr / 32 * BL_PK_ROWS + n % 2 * 8);
                }
            }
            for (size_t k = kr; k < BL_MIN(kr + run, k1); k++) {
                __m256 v[8];
                UNROLL for (unsigned n = 0; n < 2 * N; n++) {
                    v[n] = weights(t, data + n / 2 * w->block_bytes, BL_PK_ROWS * k + n % 2 * 8);
                    if (t == BL_DTYPE_MXFP8) { /* exact: three bits of mantissa */
                        v[n] = _mm256_mul_ps(v[n], scale[n]);
                    }
                }
                UNROLL for (unsigned m = 0; m < M; m++) {
                    __m256 xv = _mm256_broadcast_ss(x + m * a->ldx + k);
                    UNROLL for (unsigned n = 0; n < 2 * N; n++) {
                        p[m][n] = _mm256_fmadd_ps(v[n], xv, p[m][n]);
                    }
                }
            }
        }
        UNROLL for (unsigned m = 0; m < M; m++) {
            UNROLL for (unsigned n = 0; n < 2 * N; n++) {
                float *y = a->y + (row + m) * a->ldy + (size_t)b * BL_PK_ROWS + 8 * n;
                _mm256_storeu_ps(y, k0 ? _mm256_add_ps(_mm256_loadu_ps(y), p[m][n]) : p[m][n]);
            }
        }
    }
}

INLINE void matmul(bl_dtype t, const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0,
                   uint32_t row1) {
    uint32_t b = block0;
    for (; row1 - row0 == 1 && b + 4 <= block1; b += 4) {
        kernel(t, 1, 4, a, b, row0);
    }
    for (; b < block1; b++) {
        size_t row = row0;
        for (; row + 6 <= row1; row += 6) {
            kernel(t, 6, 1, a, b, row);
        }
        for (; row + 2 <= row1; row += 2) {
            kernel(t, 2, 1, a, b, row);
        }
        if (row < row1) {
            kernel(t, 1, 1, a, b, row);
        }
    }
    uint32_t end = BL_MIN(block1 * BL_PK_ROWS, a->w->n_out);
    for (size_t row = row0; a->bias && row < row1; row++) {
        for (size_t i = (size_t)block0 * BL_PK_ROWS; i < end; i++) {
            a->y[row * a->ldy + i] += a->bias[i];
        }
    }
}

#define MATMUL(name, type)                                                                                   \
    static void name(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1) {  \
        matmul(type, a, block0, block1, row0, row1);                                                         \
    }
MATMUL(matmul_f32, BL_DTYPE_F32)
MATMUL(matmul_f16, BL_DTYPE_F16)
MATMUL(matmul_bf16, BL_DTYPE_BF16)
MATMUL(matmul_mxfp8, BL_DTYPE_MXFP8)

void bl_kernels_avx2_float(bl_kernels *t) {
    t->matmul[BL_DTYPE_F32] = matmul_f32;
    t->matmul[BL_DTYPE_F16] = matmul_f16;
    t->matmul[BL_DTYPE_BF16] = matmul_bf16;
    t->matmul[BL_DTYPE_MXFP8] = matmul_mxfp8;
}
