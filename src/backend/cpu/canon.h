/* The scalar definitions of NUMERICS.md that are small enough to share: exp and its kin, the written orders
 * of element-wise ops.
 *
 * Vector kernels perform the identical sequence of operations lane by lane. All functions are static inline
 * and are compiled into each file with that file's own instruction set; fmaf is exact everywhere (one
 * rounding), with or without the instruction. Domain: no NaN. Fits by weighted least squares (Lawson) on the
 * stated interval, coefficients rounded to f32.
 */
#ifndef BL_BACKEND_CPU_CANON_H
#define BL_BACKEND_CPU_CANON_H

#include <math.h>
#include <stdint.h>

#include "tensor/dtype.h"

#define CANON_LOG2E  0x1.715476p+0f
#define CANON_LN2_HI 0x1.62e400p-1f
#define CANON_LN2_LO 0x1.7f7d1cp-20f
/* 1.5 * 2^23: adding and subtracting it rounds to an integer, ties to even. */
#define CANON_MAGIC 12582912.0f
/* Below: less than half of the smallest denormal. Above: infinity. */
#define CANON_EXP_MIN (-104.0f)
#define CANON_EXP_MAX 89.0f
/* exp(r) = 1 + r + r^2 (C2 + ... + C6 r^4), |r| <= ln2/2: 3.1e-9 relative before rounding. */
#define CANON_EXP_C2 0x1.fffffcp-2f
#define CANON_EXP_C3 0x1.555492p-3f
#define CANON_EXP_C4 0x1.5558f2p-5f
#define CANON_EXP_C5 0x1.123a20p-7f
#define CANON_EXP_C6 0x1.6a23d0p-10f
/* tanh(x) = x + x^3 (C3 + ... + C11 x^8), |x| < 0.6: 2.8e-9 relative before rounding. */
#define CANON_TANH_C3    (-0x1.55553ep-2f)
#define CANON_TANH_C5    0x1.1109aep-3f
#define CANON_TANH_C7    (-0x1.b898dep-5f)
#define CANON_TANH_C9    0x1.54b8a0p-6f
#define CANON_TANH_C11   (-0x1.825858p-8f)
#define CANON_TANH_SPLIT 0.5625f
/* sqrt(2/pi) and 0.044715, f32 */
#define CANON_GELU_A 0x1.988454p-1f
#define CANON_GELU_B 0x1.6e4e26p-5f
/* a below this counts as 0: 127/a stays finite */
#define CANON_Q_MIN 0x1p-120f

static inline float canon_pow2(int32_t n) {
    return bl_bits_to_f32((uint32_t)(n + 127) << 23);
} /* -126 <= n <= 127 */

/* <= 1 ulp; denormal results rounded once; exp(0) = 1. */
static inline float canon_exp(float x) {
    x = x > CANON_EXP_MIN ? x : CANON_EXP_MIN;
    x = x < CANON_EXP_MAX ? x : CANON_EXP_MAX;
    float t = fmaf(x, CANON_LOG2E, CANON_MAGIC);
    float n = t - CANON_MAGIC;
    float r = fmaf(n, -CANON_LN2_HI, x);
    r = fmaf(n, -CANON_LN2_LO, r);
    float p = CANON_EXP_C6;
    p = fmaf(p, r, CANON_EXP_C5);
    p = fmaf(p, r, CANON_EXP_C4);
    p = fmaf(p, r, CANON_EXP_C3);
    p = fmaf(p, r, CANON_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n in two factors, so that n from -150 to 128 needs no special case: n/2 rounded down, and the rest.
     */
    int32_t ni = (int32_t)(bl_f32_to_bits(t) - bl_f32_to_bits(CANON_MAGIC));
    int32_t h = ni >> 1;
    return (p * canon_pow2(h)) * canon_pow2(ni - h);
}

/* <= 2.4 ulp over all x, denormal results included: exp, sum and quotient each round. */
static inline float canon_sigmoid(float x) {
    float e = canon_exp(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* <= 2 ulp. Both branches are computed and one chosen, as a vector does it. */
static inline float canon_tanh(float x) {
    float a = fabsf(x);
    float z = x * x;
    float p = CANON_TANH_C11;
    p = fmaf(p, z, CANON_TANH_C9);
    p = fmaf(p, z, CANON_TANH_C7);
    p = fmaf(p, z, CANON_TANH_C5);
    p = fmaf(p, z, CANON_TANH_C3);
    float small = fmaf(p * z, x, x);
    float big = 1.0f - 2.0f / (canon_exp(a + a) + 1.0f);
    return a < CANON_TANH_SPLIT ? small : copysignf(big, x);
}

static inline float canon_silu(float x) {
    return x * canon_sigmoid(x);
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the second form, which does not
 * cancel. */
static inline float canon_gelu_tanh(float x) {
    float u = (x * CANON_GELU_A) * fmaf(CANON_GELU_B, x * x, 1.0f);
    return x * canon_sigmoid(u + u);
}

/* log(1 + t) for 0 <= t <= 1, <= 2 ulp: 2 atanh(f), f = t / (2 + t) <= 1/3, by its series in f^2, cut below
 * 3e-9 relative. */
static inline float canon_log1p(float t) {
    float f = t / (2.0f + t);
    float z = f * f;
    float p = 0x1.111112p-4f; /* 1/15, then 1/13 ... 1/3 */
    p = fmaf(p, z, 0x1.3b13b2p-4f);
    p = fmaf(p, z, 0x1.745d18p-4f);
    p = fmaf(p, z, 0x1.c71c72p-4f);
    p = fmaf(p, z, 0x1.24924ap-3f);
    p = fmaf(p, z, 0x1.99999ap-3f);
    p = fmaf(p, z, 0x1.555556p-2f);
    float g = f + f;
    return fmaf(g, p * z, g);
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|), <= 3 ulp. */
static inline float canon_softplus(float x) {
    return (x > 0.0f ? x : 0.0f) + canon_log1p(canon_exp(-fabsf(x)));
}

/* gpt-oss: (clamp(b) + 1) * (g * sigmoid(1.702 g)), g = min(a, limit). */
static inline float canon_glu_clamped(float a, float b, float limit) {
    float g = a < limit ? a : limit;
    float u = b < limit ? b : limit;
    u = u > -limit ? u : -limit;
    return (g * canon_sigmoid(1.702f * g)) * (u + 1.0f);
}

static inline float canon_softcap(float x, float cap) {
    return cap * canon_tanh(x / cap);
}

/* rint for |v| < 2^22, ties to even, as an integer. */
static inline int32_t canon_rint(float v) {
    return (int32_t)(bl_f32_to_bits(v + CANON_MAGIC) - bl_f32_to_bits(CANON_MAGIC));
}

#endif
