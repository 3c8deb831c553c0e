/* Vector forms of canon.h, eight lanes, AVX2 + FMA. Included by *_avx2.c only (and never by a wider tier). */
#ifndef BL_BACKEND_CPU_VEC_AVX2_H
#define BL_BACKEND_CPU_VEC_AVX2_H

#include <immintrin.h>

#include "backend/cpu/canon.h"

#define V8 static inline __attribute__((always_inline))

V8 __m256 v8_abs(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* canon_exp */
V8 __m256 v8_exp(__m256 x) {
    const __m256 magic = _mm256_set1_ps(CANON_MAGIC);
    x = _mm256_max_ps(x, _mm256_set1_ps(CANON_EXP_MIN));
    x = _mm256_min_ps(x, _mm256_set1_ps(CANON_EXP_MAX));
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(CANON_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-CANON_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-CANON_LN2_LO), r);
    __m256 p = _mm256_set1_ps(CANON_EXP_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CANON_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CANON_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CANON_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CANON_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i ni = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    __m256i h = _mm256_srai_epi32(ni, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
    __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(ni, h), bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, f1), f2);
}

/* canon_sigmoid */
V8 __m256 v8_sigmoid(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 e = v8_exp(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    __m256 neg = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    return _mm256_div_ps(_mm256_blendv_ps(one, e, neg), _mm256_add_ps(one, e));
}

/* canon_tanh */
V8 __m256 v8_tanh(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    __m256 a = v8_abs(x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(CANON_TANH_C11);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(CANON_TANH_C9));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(CANON_TANH_C7));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(CANON_TANH_C5));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(CANON_TANH_C3));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = _mm256_add_ps(v8_exp(_mm256_add_ps(a, a)), one);
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    big = _mm256_or_ps(_mm256_andnot_ps(sign, big), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(big, small, _mm256_cmp_ps(a, _mm256_set1_ps(CANON_TANH_SPLIT), _CMP_LT_OQ));
}

/* canon_silu, canon_gelu_tanh */
V8 __m256 v8_silu(__m256 x) {
    return _mm256_mul_ps(x, v8_sigmoid(x));
}
V8 __m256 v8_gelu_tanh(__m256 x) {
    __m256 u = _mm256_fmadd_ps(_mm256_set1_ps(CANON_GELU_B), _mm256_mul_ps(x, x), _mm256_set1_ps(1.0f));
    u = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(CANON_GELU_A)), u);
    return _mm256_mul_ps(x, v8_sigmoid(_mm256_add_ps(u, u)));
}

/* The end of a fold by halves (NUMERICS §2): eight lanes to one. */
V8 float v8_fold(__m256 v) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
V8 float v8_max(__m256 v) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
/* Round to bf16, nearest even, in the low halves. No NaN. */
V8 __m256i v8_bf16(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

#endif
