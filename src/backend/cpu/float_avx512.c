/* Matrix products of f32, f16, bf16 and mxfp8 weights with f32 activations, AVX-512.
 *
 * A lane owns one output row; its partial is one chain of fma over ascending k within a strip, so speed comes
 * from independent chains: several rows of x, and with few rows several blocks of weights, at once.
 */
#include "backend/cpu/common_avx512.h"

#define MAX_M 8u
#define MAX_B 4u

/* 2^8 times 16 E8M0 scales; exponent 0 is a denormal. */
INLINE __m512 mx_scales(const uint8_t *p) {
    __m512i e = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load128(p)), 23);
    e = _mm512_max_epu32(e, _mm512_set1_epi32(0x400000));
    return _mm512_mul_ps(_mm512_castsi512_ps(e), _mm512_set1_ps(256.0f));
}

/* MXFP8: without its scale, and 2^-8 of the value, which is what E4M3 bits mean as f16. */
INLINE __m512 weight(bl_dtype t, const uint8_t *data, size_t k) {
    switch (t) {
    case BL_DTYPE_MXFP8: {
        __m256i b = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load128(data + 16 * k)), 8);
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(b, 1), _mm256_set1_epi16((short)0xbf80)));
    }
    case BL_DTYPE_F32:
        return _mm512_loadu_ps(data + 64 * k);
    case BL_DTYPE_F16:
        return load_f16(data + 32 * k);
    default:
        return load_bf16(data + 32 * k);
    }
}

/* One strip of B blocks with M rows of x. */
INLINE void strip(bl_dtype t, unsigned M, unsigned B, const bl_mm_args *a, uint32_t b, size_t row,
                  uint32_t k0, uint32_t kn) {
    const bl_packed *w = a->w;
    const uint8_t *blk = w->base + (size_t)b * w->block_bytes, *data = blk + w->data_off;
    const float *x = a->x + row * a->ldx + k0;
    __m512 p[MAX_M][MAX_B], scale[MAX_B];
    UNROLL for (unsigned m = 0; m < M; m++) {
        UNROLL for (unsigned i = 0; i < B; i++) {
            p[m][i] = _mm512_setzero_ps();
        }
    }
    const size_t run = t == BL_DTYPE_MXFP8 ? 32 : BL_STRIP; /* of k with the same scales */
    for (size_t kr = 0; kr < kn; kr += run) {
        UNROLL for (unsigned i = 0; i < B; i++) {
            scale[i] = _mm512_setzero_ps();
            if (t == BL_DTYPE_MXFP8) {
                scale[i] = mx_scales(blk + i * w->block_bytes + (k0 + kr) / 32 * BL_PK_ROWS);
            }
        }
        for (size_t k = kr; k < BL_MIN(kr + run, kn); k++) {
            __m512 wv[MAX_B];
            UNROLL for (unsigned i = 0; i < B; i++) {
                wv[i] = weight(t, data + i * w->block_bytes, k0 + k);
                if (t == BL_DTYPE_MXFP8) { /* exact: three bits of mantissa */
                    wv[i] = _mm512_mul_ps(wv[i], scale[i]);
                }
            }
            UNROLL for (unsigned m = 0; m < M; m++) {
                __m512 xv = _mm512_set1_ps(x[m * a->ldx + k]);
                UNROLL for (unsigned i = 0; i < B; i++) {
                    p[m][i] = _mm512_fmadd_ps(wv[i], xv, p[m][i]);
                }
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        UNROLL for (unsigned i = 0; i < B; i++) {
            add_strip(a, b + i, row + m, k0, p[m][i]);
        }
    }
}

/* All strips of one row of B blocks; rows by 8 (then B <= 2: registers), 4, 2, 1. */
INLINE void blocks(bl_dtype t, unsigned B, bool many, const bl_mm_args *a, uint32_t b, uint32_t row0,
                   uint32_t row1) {
    for (uint32_t k0 = 0; k0 < a->w->k; k0 += BL_FLOAT_STRIP) {
        uint32_t kn = BL_MIN(BL_FLOAT_STRIP, a->w->k - k0);
        size_t row = row0;
        for (; many && row + 8 <= row1; row += 8) {
            strip(t, 8, B, a, b, row, k0, kn);
        }
        for (; row + 4 <= row1; row += 4) {
            strip(t, 4, B, a, b, row, k0, kn);
        }
        for (; row + 2 <= row1; row += 2) {
            strip(t, 2, B, a, b, row, k0, kn);
        }
        for (; row < row1; row++) {
            strip(t, 1, B, a, b, row, k0, kn);
        }
    }
}

INLINE void matmul(bl_dtype t, const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0,
                   uint32_t row1) {
    uint32_t b = block0;
    if (row1 - row0 >= 8) {
        for (; b + 2 <= block1; b += 2) {
            blocks(t, 2, true, a, b, row0, row1);
        }
    } else {
        for (; b + 4 <= block1; b += 4) {
            blocks(t, 4, false, a, b, row0, row1);
        }
    }
    for (; b < block1; b++) {
        blocks(t, 1, true, a, b, row0, row1);
    }
    add_bias(a, block0, block1, row0, row1);
}

#define MATMUL(name, type)                                                                                   \
    static void name(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1) {  \
        matmul(type, a, block0, block1, row0, row1);                                                         \
    }
MATMUL(matmul_f32, BL_DTYPE_F32)
MATMUL(matmul_f16, BL_DTYPE_F16)
MATMUL(matmul_bf16, BL_DTYPE_BF16)
MATMUL(matmul_mxfp8, BL_DTYPE_MXFP8)

void bl_kernels_avx512_float(bl_kernels *t) {
    t->matmul[BL_DTYPE_F32] = matmul_f32;
    t->matmul[BL_DTYPE_F16] = matmul_f16;
    t->matmul[BL_DTYPE_BF16] = matmul_bf16;
    t->matmul[BL_DTYPE_MXFP8] = matmul_mxfp8;
}
