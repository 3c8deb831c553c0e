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

static void load(bl_dtype t, const uint8_t *src, uint32_t n, float *dst) {
    if (t == BL_DTYPE_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * (size_t)i, 2);
        dst[i] = t == BL_DTYPE_BF16 ? bl_bf16_to_f32(h) : bl_f16_to_f32(h);
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
    float m = 0;
    for (uint32_t i = 0; i < n; i++) {
        m = fmaxf(m, fabsf(w[i]));
    }
    return m;
}

/* ---- affine ---- */

/* q[n] (n a multiple of 32) as one little-endian bit stream. */
static void pack(const uint8_t *q, uint32_t n, uint32_t bits, uint8_t *dst) {
    uint64_t acc = 0;
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        acc |= (uint64_t)q[i] << have;
        have += bits;
        while (have >= 8) {
            *dst++ = (uint8_t)acc;
            acc >>= 8;
            have -= 8;
        }
    }
}

static void affine_group(const float *w, uint32_t n, uint32_t bits, uint8_t *ret_q, float *ret_scale,
                         float *ret_bias) {
    float n_bins = (float)((1u << bits) - 1);
    float lo = w[0], hi = w[0];
    for (uint32_t i = 1; i < n; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
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
    for (uint32_t i = 0; i < n; i++) {
        float q = rintf((w[i] - bias) / scale);
        q = fminf(fmaxf(q, 0), n_bins);
        ret_q[i] = (uint8_t)q;
    }
    *ret_scale = scale;
    *ret_bias = bias;
}

/* ---- fp4, fp8 ---- */

/* MLX's CPU code takes the first nearest entry of the table 0 .5 1 1.5 2 3 4 6 -0 -.5 ..., distances rounded
 * to the source's dtype. Up to 6 the distances that matter are exact. Far beyond, which only a saturated
 * nvfp4 scale leads to, they all round to one number, and the first entry wins. */
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

/* A tie goes to the smaller magnitude, and a negative number that rounds to zero loses its sign: both follow
 * from "the first nearest entry". */
static uint8_t e2m1_of(bl_dtype t, float x) {
    static const float middle[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    float a = fabsf(x);
    if (a > 8) {
        return e2m1_far(t, x);
    }
    uint8_t q = 0;
    for (uint32_t i = 0; i < BL_COUNTOF(middle); i++) {
        q = (uint8_t)(q + (a > middle[i]));
    }
    return q == 0 || x > 0 ? q : q | 8;
}

/* Round half to even; 448 is the largest. */
static uint8_t e4m3_of(float x) {
    uint32_t u = bl_f32_to_bits(x);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
    u &= 0x7fffffffu;
    if (u >= bl_f32_to_bits(448.0f)) {
        return sign | 0x7e;
    }
    if (u < bl_f32_to_bits(0x1p-6f)) {
        /* below the normal numbers: multiples of 2^-9, rounded by the addition */
        float shifted = bl_bits_to_f32(u) + 0x1p14f;
        return (uint8_t)(sign | (bl_f32_to_bits(shifted) - bl_f32_to_bits(0x1p14f)));
    }
    uint32_t odd = u >> 20 & 1u;
    u = u - (120u << 23) + 0x7ffffu + odd;
    return (uint8_t)(sign | u >> 20);
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

static void fp_group(const bl_mlx_quantize_format *f, bl_dtype t, const float *w, uint8_t *ret_weight,
                     uint8_t *ret_scale) {
    float scale = round_to(t, abs_max(w, f->group) / (f->bits == 8 ? 448.0f : 6.0f));
    float unit;
    if (f->mode == BL_MLX_QUANTIZE_NVFP4) {
        *ret_scale = e4m3_of(scale);
        unit = e4m3_value(*ret_scale);
    } else {
        int e = exponent_above(scale);
        *ret_scale = (uint8_t)(e + 127);
        unit = ldexpf(1.0f, e);
    }
    for (uint32_t i = 0; i < f->group; i++) {
        float x = unit > 0 ? round_to(t, w[i] / unit) : 0;
        if (f->bits == 8) {
            ret_weight[i] = e4m3_of(x);
        } else if (i % 2 == 0) {
            ret_weight[i / 2] = e2m1_of(t, x);
        } else {
            ret_weight[i / 2] = (uint8_t)(ret_weight[i / 2] | e2m1_of(t, x) << 4);
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
            fp_group(f, src_dtype, w, ret_weight + g * group_bytes, ret_scales + g);
            continue;
        }
        float scale, bias;
        affine_group(w, f->group, f->bits, q, &scale, &bias);
        pack(q, f->group, f->bits, ret_weight + g * group_bytes);
        store(src_dtype, scale, ret_scales + g * scale_bytes);
        store(src_dtype, bias, ret_biases + g * scale_bytes);
    }
}
