/* Values of MLX rows (mlx.h) and the checks that make them finite. */
#include "tensor/mlx.h"

#include <math.h>

#include "base/base.h"

static uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool group_fits(bl_dtype t, uint32_t group) {
    if (bl_dtype_is_affine(t)) {
        return group == 32 || group == 64 || group == 128;
    }
    return group == (t == BL_DTYPE_NVFP4 ? 16 : 32);
}

static bool scales_fit(bl_dtype t, bl_dtype s) {
    if (bl_dtype_is_affine(t)) {
        return s == BL_DTYPE_BF16 || s == BL_DTYPE_F16 || s == BL_DTYPE_F32;
    }
    return s == BL_DTYPE_U8 || s == (t == BL_DTYPE_NVFP4 ? BL_DTYPE_F8_E4M3 : BL_DTYPE_F8_E8M0);
}

bl_code bl_mlx_check_layout(const bl_mlx_row *r, uint64_t k, bl_err *err) {
    if (!bl_dtype_is_mlx(r->dtype)) {
        BL_FAIL(err, BL_EINVAL, "element type %d is not one of MLX", (int)r->dtype);
    }
    const char *name = bl_dtype_get(r->dtype)->name;
    bool affine = bl_dtype_is_affine(r->dtype);
    if (!group_fits(r->dtype, r->group)) {
        BL_FAIL(err, BL_EINVAL, "%s with groups of %u, allowed are %s", name, r->group,
                affine                       ? "32, 64 and 128"
                : r->dtype == BL_DTYPE_NVFP4 ? "16"
                                             : "32");
    }
    if (k == 0 || k % r->group != 0 || k % 32 != 0) {
        BL_FAIL(err, BL_EINVAL, "%s rows of %llu, must be a multiple of %u and at least that", name,
                (unsigned long long)k, BL_MAX(r->group, 32u));
    }
    if ((unsigned)r->scale_dtype >= BL_DTYPE__MAX || !scales_fit(r->dtype, r->scale_dtype)) {
        BL_FAIL(err, BL_EINVAL, "%s with scales of %s, allowed are %s", name,
                (unsigned)r->scale_dtype < BL_DTYPE__MAX ? bl_dtype_get(r->scale_dtype)->name : "no type",
                affine                       ? "BF16, F16 and F32"
                : r->dtype == BL_DTYPE_NVFP4 ? "U8 and F8_E4M3"
                                             : "U8 and F8_E8M0");
    }
    if (!r->scales || affine != (r->biases != NULL)) {
        BL_FAIL(err, BL_EINVAL, "%s %s scales and %s biases, needs scales%s", name,
                r->scales ? "with" : "without", r->biases ? "with" : "without",
                affine ? " and biases" : " only");
    }
    if (!isfinite(r->global_scale) || (r->global_scale != 0.0f && r->dtype != BL_DTYPE_NVFP4)) {
        BL_FAIL(err, BL_EINVAL, "%s with a global scale of %g, allowed is %s", name, (double)r->global_scale,
                r->dtype == BL_DTYPE_NVFP4 ? "a finite number" : "none");
    }
    return BL_OK;
}

void bl_mlx_codes(bl_dtype t, const void *packed, uint64_t first, uint8_t q[32]) {
    const uint32_t bits = bl_mlx_bits(t);
    const uint8_t *p = (const uint8_t *)packed + first / 32 * 4 * bits;
    if (bits == 8) {
        memcpy(q, p, 32);
        return;
    }
    if (bits == 4) {
        for (uint32_t j = 0; j < 16; j++) {
            q[2 * j] = p[j] & 15u;
            q[2 * j + 1] = p[j] >> 4;
        }
        return;
    }
    uint32_t have = 0, n = 0; /* bits not yet handed out, and how many */
    for (uint32_t j = 0; j < 32; j++) {
        if (n < bits) {
            have |= (uint32_t)*p++ << n;
            n += 8;
        }
        q[j] = (uint8_t)(have & ((1u << bits) - 1u));
        have >>= bits;
        n -= bits;
    }
}

float bl_mlx_scale(bl_dtype t, bl_dtype scale_dtype, const void *scales, uint64_t i) {
    const uint8_t *p = scales;
    if (!bl_dtype_is_affine(t)) {
        return t == BL_DTYPE_NVFP4 ? bl_e4m3_to_f32(p[i]) : bl_e8m0_to_f32(p[i]);
    }
    switch (scale_dtype) {
    case BL_DTYPE_F32:
        return bl_bits_to_f32(get_u32(p + 4 * i));
    case BL_DTYPE_F16:
        return bl_f16_to_f32(get_u16(p + 2 * i));
    default:
        return bl_bf16_to_f32(get_u16(p + 2 * i));
    }
}

void bl_mlx_dequant(const bl_mlx_row *r, uint64_t first, float *dst, uint64_t n) {
    BL_ASSERT(first % 32 == 0 && n % 32 == 0 && bl_dtype_is_mlx(r->dtype));
    float global = r->global_scale == 0.0f ? 1.0f : r->global_scale, s = 0.0f, b = 0.0f;
    for (uint64_t i = 0; i < n; i += 32) {
        uint8_t q[32];
        bl_mlx_codes(r->dtype, r->packed, first + i, q);
        for (uint64_t j = 0; j < 32; j++) {
            if ((first + i + j) % r->group == 0 || i + j == 0) {
                uint64_t g = (first + i + j) / r->group;
                s = bl_mlx_scale(r->dtype, r->scale_dtype, r->scales, g);
                s = r->dtype == BL_DTYPE_NVFP4 ? s * global : s;
                b = r->biases ? bl_mlx_scale(r->dtype, r->scale_dtype, r->biases, g) : 0.0f;
            }
            if (r->biases) {
                dst[i + j] = s * (float)q[j] + b;
            } else if (r->dtype == BL_DTYPE_MXFP8) {
                dst[i + j] = s * bl_e4m3_to_f32(q[j]);
            } else {
                dst[i + j] = s * (0.5f * (float)bl_e2m1_doubled(q[j]));
            }
        }
    }
}

/* What is wrong with scale g, or NULL. */
static const char *bad_scale(const bl_mlx_row *r, uint64_t g) {
    if (!bl_dtype_is_affine(r->dtype)) {
        uint8_t s = ((const uint8_t *)r->scales)[g];
        if (r->dtype == BL_DTYPE_NVFP4) {
            float v = bl_e4m3_to_f32(s) * (r->global_scale == 0.0f ? 1.0f : r->global_scale);
            return (s & 0x7fu) == 0x7fu ? "scale is NaN" : isfinite(6.0f * v) ? NULL : "scale is too large";
        }
        uint32_t max = r->dtype == BL_DTYPE_MXFP4 ? BL_E8M0_MAX_FP4 : BL_E8M0_MAX_FP8;
        return s == 0xffu ? "scale is NaN" : s > max ? "scale is too large" : NULL;
    }
    float s = bl_mlx_scale(r->dtype, r->scale_dtype, r->scales, g),
          b = bl_mlx_scale(r->dtype, r->scale_dtype, r->biases, g);
    if (!isfinite(s)) {
        return isnan(s) ? "scale is NaN" : "scale is infinite";
    }
    if (!isfinite(b)) {
        return isnan(b) ? "bias is NaN" : "bias is infinite";
    }
    float max = (float)((1u << bl_mlx_bits(r->dtype)) - 1u);
    return isfinite(s * max + b) ? NULL : "scale is too large";
}

bl_code bl_mlx_check_finite(const bl_mlx_row *r, uint64_t n, bl_err *err) {
    const char *name = bl_dtype_get(r->dtype)->name;
    for (uint64_t g = 0; g < n / r->group; g++) {
        const char *bad = bad_scale(r, g);
        if (bad) {
            BL_FAIL(err, BL_EFORMAT, "%s (%s, group at element %llu), allowed are finite values", bad, name,
                    (unsigned long long)(g * r->group));
        }
    }
    const uint8_t *q = r->packed;
    for (uint64_t i = 0; r->dtype == BL_DTYPE_MXFP8 && i < n; i++) {
        if ((q[i] & 0x7fu) == 0x7fu) {
            BL_FAIL(err, BL_EFORMAT, "element %llu (%s) is NaN, allowed are finite values",
                    (unsigned long long)i, name);
        }
    }
    return BL_OK;
}
