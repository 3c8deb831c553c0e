/* What the AVX-512 files share: small loads, the canonical functions 16 lanes at a time, and the parts that
 * fill the kernel table.
 *
 * Each file that includes this gets its own copies, compiled with its own instruction set (STYLE.md rule 48).
 * The functions perform the operations of canon.h lane by lane, in that order.
 */
#ifndef BL_BACKEND_CPU_COMMON_AVX512_H
#define BL_BACKEND_CPU_COMMON_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/kernels.h"
#include "base/base.h"

#define INLINE static inline __attribute__((always_inline))
/* In front of loops whose bounds are constants once inlined, so that arrays of vectors become registers. */
#define UNROLL _Pragma("GCC unroll 64")

void bl_kernels_avx512_vec(bl_kernels *t);
void bl_kernels_avx512_float(bl_kernels *t);
void bl_kernels_avx512_attn(bl_kernels *t);
void bl_kernels_avx512_recur(bl_kernels *t);
void bl_kernels_avx512_quant(bl_kernels *t);

INLINE __m512i load512(const void *p) {
    return _mm512_loadu_si512(p);
}
INLINE __m256i load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
INLINE __m128i load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
/* 16 f16 or bf16 as f32, exact. */
INLINE __m512 load_f16(const void *p) {
    return _mm512_cvtph_ps(load256(p));
}
INLINE __m512 load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
}
/* Lanes below n, all of them from 16 on. */
INLINE __mmask16 mask_first(size_t n) {
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* Lanes fold by halves: j += j + 8, + 4, + 2, + 1 (NUMERICS §2, the last four steps). */
INLINE float fold16(__m512 v) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
/* Exact in any order. */
INLINE float max16(__m512 v) {
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

INLINE __m512 pow2_16(__m512i n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
/* canon_exp. vmaxps and vminps are "a > b ? a : b" and "a < b ? a : b", as written there. */
INLINE __m512 exp16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(CANON_MAGIC), one = _mm512_set1_ps(1.0f);
    x = _mm512_max_ps(x, _mm512_set1_ps(CANON_EXP_MIN));
    x = _mm512_min_ps(x, _mm512_set1_ps(CANON_EXP_MAX));
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(CANON_LOG2E), magic);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-CANON_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-CANON_LN2_LO), r);
    __m512 p = _mm512_set1_ps(CANON_EXP_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CANON_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CANON_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CANON_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CANON_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i ni = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(magic));
    __m512i h = _mm512_srai_epi32(ni, 1);
    return _mm512_mul_ps(_mm512_mul_ps(p, pow2_16(h)), pow2_16(_mm512_sub_epi32(ni, h)));
}
/* canon_sigmoid */
INLINE __m512 sigmoid16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = exp16(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));
    __mmask16 neg = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_div_ps(_mm512_mask_blend_ps(neg, one, e), _mm512_add_ps(one, e));
}
/* canon_tanh */
INLINE __m512 tanh16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(CANON_TANH_C11);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(CANON_TANH_C9));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(CANON_TANH_C7));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(CANON_TANH_C5));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(CANON_TANH_C3));
    __m512 near0 = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 big = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one);
    big = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), big));
    big = _mm512_or_ps(_mm512_andnot_ps(sign, big), _mm512_and_ps(sign, x));
    __mmask16 small = _mm512_cmp_ps_mask(a, _mm512_set1_ps(CANON_TANH_SPLIT), _CMP_LT_OQ);
    return _mm512_mask_blend_ps(small, big, near0);
}
/* canon_silu, canon_gelu_tanh */
INLINE __m512 silu16(__m512 x) {
    return _mm512_mul_ps(x, sigmoid16(x));
}
INLINE __m512 gelu16(__m512 x) {
    __m512 c = _mm512_fmadd_ps(_mm512_set1_ps(CANON_GELU_B), _mm512_mul_ps(x, x), _mm512_set1_ps(1.0f));
    __m512 u = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(CANON_GELU_A)), c);
    return _mm512_mul_ps(x, sigmoid16(_mm512_add_ps(u, u)));
}

/* 16 outputs of a row take a strip's partial. */
INLINE void add_strip(const bl_mm_args *a, uint32_t b, size_t row, uint32_t k0, __m512 p) {
    float *y = a->y + row * a->ldy + (size_t)b * BL_PK_ROWS;
    _mm512_storeu_ps(y, k0 ? _mm512_add_ps(_mm512_loadu_ps(y), p) : p);
}
INLINE void add_bias(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1) {
    size_t end = BL_MIN((size_t)block1 * BL_PK_ROWS, a->w->n_out);
    for (size_t row = row0; a->bias && row < row1; row++) {
        for (size_t i = (size_t)block0 * BL_PK_ROWS; i < end; i += 16) {
            __mmask16 m = mask_first(end - i);
            float *y = a->y + row * a->ldy + i;
            __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), _mm512_maskz_loadu_ps(m, a->bias + i));
            _mm512_mask_storeu_ps(y, m, v);
        }
    }
}

#endif
