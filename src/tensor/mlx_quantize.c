#include "tensor/mlx_quantize.h"

#include <inttypes.h>
#include <math.h>

#include "base/base.h"

#define MAX_GROUP 128

typedef struct {
    const char *name;
    uint32_t bits_mask;  /* bit b: b bits are allowed */
    uint32_t group_mask; /* 16 | 32 | 64 | 128 */
} mode_info;

static const mode_info modes[] = {
    [BL_MLX_QUANTIZE_AFFINE] = {"affine", 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 8,
                                32 | 64 | 128},
    [BL_MLX_QUANTIZE_MXFP4] = {"mxfp4", 1u << 4, 32},
    [BL_MLX_QUANTIZE_MXFP8] = {"mxfp8", 1u << 8, 32},
    [BL_MLX_QUANTIZE_NVFP4] = {"nvfp4", 1u << 4, 16},
};

const char *bl_mlx_quantize_mode_name(bl_mlx_quantize_mode mode) {
    BL_ASSERT((uint32_t)mode < BL_MLX_QUANTIZE__MAX);
    return modes[mode].name;
}

bl_code bl_mlx_quantize_check(const bl_mlx_quantize_format *f, bl_err *err) {
    BL_ASSERT((uint32_t)f->mode < BL_MLX_QUANTIZE__MAX);
    const mode_info *m = &modes[f->mode];
    bool bits_ok = f->bits < 32 && (m->bits_mask >> f->bits & 1u) != 0;
    bool group_ok = f->group != 0 && (f->group & (f->group - 1)) == 0 && (m->group_mask & f->group) != 0;
    if (bits_ok && group_ok) {
        return BL_OK;
    }
    if (f->mode == BL_MLX_QUANTIZE_AFFINE) {
        BL_FAIL(err, BL_EINVAL,
                "affine with %" PRIu32 " bits in groups of %" PRIu32
                ", allowed are 2 3 4 5 6 8 bits in groups of 32 64 128",
                f->bits, f->group);
    }
    BL_FAIL(err, BL_EINVAL,
            "%s with %" PRIu32 " bits in groups of %" PRIu32 ", allowed is %d bits in groups of %" PRIu32,
            m->name, f->bits, f->group, f->mode == BL_MLX_QUANTIZE_MXFP8 ? 8 : 4, m->group_mask);
}

/* ---- plain numbers ---- */

/* Groups are whole blocks of this many elements: loops of a fixed length that compilers turn into vectors. */
#define LANES 16u

static void load(bl_dtype t, const uint8_t *src, uint32_t n, float *dst) {
    if (t == BL_DTYPE_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    for (uint32_t i = 0; i < n; i += LANES) {
        uint16_t h[LANES];
        uint32_t u[LANES];
        memcpy(h, src + 2 * (size_t)i, sizeof h);
        if (t == BL_DTYPE_F16) {
            for (uint32_t k = 0; k < LANES; k++) {
                dst[i + k] = bl_f16_to_f32(h[k]);
            }
            continue;
        }
        for (uint32_t k = 0; k < LANES; k++) {
            u[k] = (uint32_t)h[k] << 16;
        }
        memcpy(dst + i, u, sizeof u);
    }
}

static void store(bl_dtype t, float v, uint8_t *dst) {
    if (t == BL_DTYPE_F32) {
        memcpy(dst, &v, 4);
    } else {
        uint16_t h = t == BL_DTYPE_BF16 ? bl_f32_to_bf16(v) : bl_f32_to_f16(v);
        memcpy(dst, &h, 2);
    }
}

static float round_to(bl_dtype t, float v) {
    switch (t) {
    case BL_DTYPE_BF16:
        return bl_bf16_to_f32(bl_f32_to_bf16(v));
    case BL_DTYPE_F16:
        return bl_f16_to_f32(bl_f32_to_f16(v));
    default:
        return v;
    }
}

static float abs_max(const float *w, uint32_t n) {
    float m[LANES] = {0};
    for (uint32_t i = 0; i < n; i += LANES) {
        for (uint32_t k = 0; k < LANES; k++) {
            m[k] = fabsf(w[i + k]) > m[k] ? fabsf(w[i + k]) : m[k];
        }
    }
    for (uint32_t k = 1; k < LANES; k++) {
        m[0] = m[k] > m[0] ? m[k] : m[0];
    }
    return m[0];
}

/* ---- affine ---- */

/* q[n] (n a multiple of 32) as one little-endian bit stream. */
static void pack(const uint8_t *q, uint32_t n, uint32_t bits, uint8_t *dst) {
    if (bits == 8) {
        memcpy(dst, q, n);
        return;
    }
    if (bits == 4) {
        for (uint32_t i = 0; i < n / 2; i++) {
            dst[i] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i += 8, dst += bits) { /* 8 elements are `bits` bytes */
        uint64_t v = 0;
        for (uint32_t k = 0; k < 8; k++) {
            v |= (uint64_t)q[i + k] << k * bits;
        }
        for (uint32_t k = 0; k < bits; k++) {
            dst[k] = (uint8_t)(v >> 8 * k);
        }
    }
}

static void min_max(const float *w, uint32_t n, float *ret_lo, float *ret_hi) {
    float lo[LANES], hi[LANES];
    memcpy(lo, w, sizeof lo);
    memcpy(hi, w, sizeof hi);
    for (uint32_t i = LANES; i < n; i += LANES) {
        for (uint32_t k = 0; k < LANES; k++) {
            lo[k] = w[i + k] < lo[k] ? w[i + k] : lo[k];
            hi[k] = w[i + k] > hi[k] ? w[i + k] : hi[k];
        }
    }
    for (uint32_t k = 1; k < LANES; k++) {
        lo[0] = lo[k] < lo[0] ? lo[k] : lo[0];
        hi[0] = hi[k] > hi[0] ? hi[k] : hi[0];
    }
    *ret_lo = lo[0];
    *ret_hi = hi[0];
}

static void affine_group(const float *w, uint32_t n, uint32_t bits, uint8_t *ret_q, float *ret_scale,
                         float *ret_bias) {
    float n_bins = (float)((1u << bits) - 1), lo, hi;
    min_max(w, n, &lo, &hi);
    bool from_low = fabsf(lo) > fabsf(hi);
    float scale = fmaxf((hi - lo) / n_bins, 1e-7f);
    scale = from_low ? scale : -scale;
    float edge = from_low ? lo : hi;
    /* The end of larger magnitude becomes exact, and zero falls on a step. */
    float q0 = rintf(edge / scale);
    float bias = 0;
    if (q0 != 0) {
        scale = edge / q0;
        bias = edge;
    }
    for (uint32_t i = 0; i < n; i += LANES) {
        float x[LANES];
        uint32_t u[LANES];
        /* Cut to the range before rounding: its ends are whole numbers, so that is the same. Below 2^22,
         * adding 1.5 * 2^23 rounds half to even and leaves the number in the low bits. */
        for (uint32_t k = 0; k < LANES; k++) {
            float v = (w[i + k] - bias) / scale;
            v = v > 0 ? v : 0;
            v = v < n_bins ? v : n_bins;
            x[k] = v + 0x1.8p23f;
        }
        memcpy(u, x, sizeof u);
        for (uint32_t k = 0; k < LANES; k++) {
            ret_q[i + k] = (uint8_t)u[k];
        }
    }
    *ret_scale = scale;
    *ret_bias = bias;
}

/* ---- fp4, fp8 ---- */

/* MLX's CPU code takes the first nearest entry of the table 0 .5 1 1.5 2 3 4 6 -0 -.5 ..., distances rounded
 * to the source's dtype. */
static uint8_t e2m1_far(bl_dtype t, float x) {
    static const float value[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint8_t best = 0;
    float nearest = INFINITY;
    for (uint8_t i = 0; i < 16; i++) {
        float d = fabsf(round_to(t, x - (i < 8 ? value[i] : -value[i - 8])));
        if (d < nearest) {
            nearest = d;
            best = i;
        }
    }
    return best;
}

/* From the table follows: a tie goes to the smaller magnitude, and a negative number that rounds to zero
 * loses its sign. Up to 8 the distances that matter are exact; far beyond, which only a saturated nvfp4 scale
 * leads to, they all round to one number, and the first entry wins. */
static void e2m1_lanes(const float *x, uint32_t *ret_q) {
    for (uint32_t k = 0; k < LANES; k++) {
        float a = fabsf(x[k]);
        uint32_t q = (uint32_t)(a > 0.25f) + (uint32_t)(a > 0.75f) + (uint32_t)(a > 1.25f) +
                     (uint32_t)(a > 1.75f) + (uint32_t)(a > 2.5f) + (uint32_t)(a > 3.5f) +
                     (uint32_t)(a > 5.0f);
        ret_q[k] = q | (uint32_t)(x[k] < -0.25f) << 3;
    }
}

/* Round half to even; 448 is the largest. Below 2^-6 lie multiples of 2^-9, rounded by an addition. */
static void e4m3_lanes(const float *x, uint32_t *ret_q) {
    uint32_t u[LANES], low[LANES];
    float shifted[LANES];
    memcpy(u, x, sizeof u);
    for (uint32_t k = 0; k < LANES; k++) {
        shifted[k] = fabsf(x[k]) + 0x1p14f;
    }
    memcpy(low, shifted, sizeof low);
    for (uint32_t k = 0; k < LANES; k++) {
        uint32_t m = u[k] & 0x7fffffffu;
        uint32_t high = (m - (120u << 23) + 0x7ffffu + (m >> 20 & 1u)) >> 20;
        uint32_t q = m < 121u << 23 ? low[k] - (141u << 23) : high;
        q = m >= 0x43e00000u ? 0x7eu : q; /* 448 */
        ret_q[k] = (u[k] >> 24 & 0x80u) | q;
    }
}

static uint8_t e4m3_of(float v) {
    float x[LANES] = {v};
    uint32_t q[LANES];
    e4m3_lanes(x, q);
    return (uint8_t)q[0];
}

static float e4m3_value(uint8_t s) {
    uint32_t e = s >> 3 & 15u, m = s & 7u;
    float v = e == 0 ? (float)m * 0x1p-9f : bl_bits_to_f32((e + 120u) << 23 | m << 20);
    return s & 0x80u ? -v : v;
}

/* The smallest power of two that is at least x, as its exponent. 0 for x = 0, as MLX stores it. */
static int exponent_above(float x) {
    if (x <= 0) {
        return 0;
    }
    int e;
    float m = frexpf(x, &e); /* x = m * 2^e, m in [0.5, 1) */
    e = m == 0.5f ? e - 1 : e;
    return BL_MIN(BL_MAX(e, -127), 127);
}

static void fp_group(const bl_mlx_quantize_format *f, bl_dtype t, const float *w, uint8_t *ret_q,
                     uint8_t *ret_scale) {
    float most = abs_max(w, f->group), scale = round_to(t, most / (f->bits == 8 ? 448.0f : 6.0f)), unit;
    bool nv = f->mode == BL_MLX_QUANTIZE_NVFP4;
    if (nv) {
        *ret_scale = e4m3_of(scale);
        unit = e4m3_value(*ret_scale);
    } else {
        int e = exponent_above(scale);
        *ret_scale = (uint8_t)(e + 127);
        unit = ldexpf(1.0f, e);
    }
    for (uint32_t i = 0; i < f->group; i += LANES) {
        float x[LANES];
        uint32_t q[LANES];
        for (uint32_t k = 0; k < LANES; k++) {
            x[k] = unit > 0 ? w[i + k] / unit : 0;
        }
        /* a quotient by a power of two needs no rounding but where it is too small to matter */
        for (uint32_t k = 0; nv && k < LANES; k++) {
            x[k] = round_to(t, x[k]);
        }
        if (f->bits == 8) {
            e4m3_lanes(x, q);
        } else {
            e2m1_lanes(x, q);
        }
        for (uint32_t k = 0; nv && most > 8 * unit && k < LANES; k++) {
            q[k] = fabsf(x[k]) > 8 ? e2m1_far(t, x[k]) : q[k];
        }
        for (uint32_t k = 0; k < LANES; k++) {
            ret_q[i + k] = (uint8_t)q[k];
        }
    }
}

void bl_mlx_quantize(const bl_mlx_quantize_format *f, bl_dtype src_dtype, const void *src, uint64_t n,
                     uint8_t *ret_weight, uint8_t *ret_scales, uint8_t *ret_biases) {
    float w[MAX_GROUP];
    uint8_t q[MAX_GROUP];
    BL_ASSERT(f->group <= MAX_GROUP && n % f->group == 0);
    uint32_t src_bytes = src_dtype == BL_DTYPE_F32 ? 4 : 2;
    uint32_t scale_bytes = bl_mlx_quantize_scale_bytes(f, src_dtype);
    size_t group_bytes = (size_t)bl_mlx_quantize_weight_bytes(f, f->group);
    const uint8_t *from = src;
    for (uint64_t g = 0; g < n / f->group; g++) {
        load(src_dtype, from + g * f->group * src_bytes, f->group, w);
        if (f->mode != BL_MLX_QUANTIZE_AFFINE) {
            fp_group(f, src_dtype, w, q, ret_scales + g);
            pack(q, f->group, f->bits, ret_weight + g * group_bytes);
            continue;
        }
        float scale, bias;
        affine_group(w, f->group, f->bits, q, &scale, &bias);
        pack(q, f->group, f->bits, ret_weight + g * group_bytes);
        store(src_dtype, scale, ret_scales + g * scale_bytes);
        store(src_dtype, bias, ret_biases + g * scale_bytes);
    }
}
