/* Element types: the table of sizes, exact half conversions, scalar dequantisation and the finite check.
 *
 * Layouts: spec models.md §9.3 to §9.5 (GGUF v3 blocks). This file is the definition of a stored weight's
 * value; kernels re-lay the same numbers and are compared with it. Rows may start at any address: fields are
 * read with memcpy, little-endian.
 */
#include "tensor/dtype.h"

#include <stddef.h>

#include "base/base.h"

static const bl_dtype_info infos[BL_DTYPE__MAX] = {
    [BL_DTYPE_F32] = {"F32", 1, 4, true},
    [BL_DTYPE_F16] = {"F16", 1, 2, true},
    [BL_DTYPE_BF16] = {"BF16", 1, 2, true},
    [BL_DTYPE_Q4_0] = {"Q4_0", 32, 18, true},
    [BL_DTYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [BL_DTYPE_Q5_0] = {"Q5_0", 32, 22, true},
    [BL_DTYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [BL_DTYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [BL_DTYPE_Q4_K] = {"Q4_K", 256, 144, true},
    [BL_DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [BL_DTYPE_Q6_K] = {"Q6_K", 256, 210, true},
    [BL_DTYPE_AFFINE2] = {"AFFINE2", 32, 8, true},
    [BL_DTYPE_AFFINE3] = {"AFFINE3", 32, 12, true},
    [BL_DTYPE_AFFINE4] = {"AFFINE4", 32, 16, true},
    [BL_DTYPE_AFFINE5] = {"AFFINE5", 32, 20, true},
    [BL_DTYPE_AFFINE6] = {"AFFINE6", 32, 24, true},
    [BL_DTYPE_AFFINE8] = {"AFFINE8", 32, 32, true},
    [BL_DTYPE_MXFP4] = {"MXFP4", 32, 16, true},
    [BL_DTYPE_MXFP8] = {"MXFP8", 32, 32, true},
    [BL_DTYPE_NVFP4] = {"NVFP4", 32, 16, true},
    [BL_DTYPE_GGUF_MXFP4] = {"GGUF_MXFP4", 32, 17, true},
    [BL_DTYPE_I8] = {"I8", 1, 1, false},
    [BL_DTYPE_I16] = {"I16", 1, 2, false},
    [BL_DTYPE_I32] = {"I32", 1, 4, false},
    [BL_DTYPE_I64] = {"I64", 1, 8, false},
    [BL_DTYPE_U8] = {"U8", 1, 1, false},
    [BL_DTYPE_U32] = {"U32", 1, 4, false},
    [BL_DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, false},
    [BL_DTYPE_F8_E8M0] = {"F8_E8M0", 1, 1, false},
};

const bl_dtype_info *bl_dtype_get(bl_dtype t) {
    BL_ASSERT((unsigned)t < BL_DTYPE__MAX);
    return &infos[t];
}

bl_code bl_dtype_row_bytes(bl_dtype t, uint64_t n, uint64_t *ret, bl_err *err) {
    const bl_dtype_info *info = bl_dtype_get(t);
    if (n % info->block_elems != 0) {
        BL_FAIL(err, BL_EFORMAT, "row of %llu elements, %s needs a multiple of %u", (unsigned long long)n,
                info->name, info->block_elems);
    }
    if (!bl_mul_u64(n / info->block_elems, info->block_bytes, ret)) {
        BL_FAIL(err, BL_ERANGE, "row of %llu elements of %s overflows 64 bits", (unsigned long long)n,
                info->name);
    }
    return BL_OK;
}

float bl_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 31u;
    uint32_t man = h & 0x3ffu;
    if (exp == 0) {
        return bl_bits_to_f32(
            sign | bl_f32_to_bits((float)man * 0x1p-24f)); /* exact: 10 bits times a power of two */
    }
    if (exp == 31) {
        return bl_bits_to_f32(sign | 0x7f800000u | man << 13);
    }
    return bl_bits_to_f32(sign | (exp + 112) << 23 | man << 13);
}

uint16_t bl_f32_to_f16(float f) {
    uint32_t u = bl_f32_to_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x1ffu));
    }
    if (mag >= 0x47800000u) { /* 65536 and above, infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (mag >=
        0x38800000u) { /* normal; rounding may carry into the exponent and, from 65520 on, into infinity */
        uint32_t r = mag - 0x38000000u;
        r += 0xfffu + (r >> 13 & 1u);
        return (uint16_t)(sign | r >> 13);
    }
    if (mag < 0x33000000u) { /* below half of the smallest denormal */
        return (uint16_t)sign;
    }
    uint32_t exp = mag >> 23; /* 102..112 */
    uint32_t man = (mag & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - exp; /* 14..24 */
    uint32_t q = man >> shift;
    uint32_t rest = man & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1u));
    return (uint16_t)(sign | q);
}

static uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static float get_f16(const uint8_t *p) {
    return bl_f16_to_f32(get_u16(p));
}

static void dequant_q4(const uint8_t *b, float *y, bool has_min) {
    float d = get_f16(b);
    float m = has_min ? get_f16(b + 2) : 0.0f;
    const uint8_t *qs = b + (has_min ? 4 : 2);
    for (int j = 0; j < 16; j++) {
        int lo = qs[j] & 15, hi = qs[j] >> 4;
        y[j] = has_min ? d * (float)lo + m : d * (float)(lo - 8);
        y[j + 16] = has_min ? d * (float)hi + m : d * (float)(hi - 8);
    }
}

static void dequant_q5(const uint8_t *b, float *y, bool has_min) {
    float d = get_f16(b);
    float m = has_min ? get_f16(b + 2) : 0.0f;
    uint32_t qh = get_u32(b + (has_min ? 4 : 2));
    const uint8_t *qs = b + (has_min ? 8 : 6);
    for (int j = 0; j < 16; j++) {
        int lo = (int)((qs[j] & 15u) | (qh >> j & 1u) << 4);
        int hi = (int)((uint32_t)(qs[j] >> 4) | (qh >> (j + 16) & 1u) << 4);
        y[j] = has_min ? d * (float)lo + m : d * (float)(lo - 16);
        y[j + 16] = has_min ? d * (float)hi + m : d * (float)(hi - 16);
    }
}

static void dequant_q8_0(const uint8_t *b, float *y) {
    float d = get_f16(b);
    for (int j = 0; j < 32; j++) {
        y[j] = d * (float)(int8_t)b[2 + j];
    }
}

/* The 6-bit scale and min of sub-block j out of the 12 bytes S. */
static void k_scale_min(const uint8_t *s, int j, int *ret_sc, int *ret_mn) {
    if (j < 4) {
        *ret_sc = s[j] & 63;
        *ret_mn = s[j + 4] & 63;
    } else {
        *ret_sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *ret_mn = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K, and Q5_K when qh (32 bytes of fifth bits) is given. */
static void dequant_q45_k(const uint8_t *b, const uint8_t *qh, const uint8_t *qs, float *y) {
    float d = get_f16(b), dmin = get_f16(b + 2);
    for (int g = 0; g < 4; g++) {
        for (int half = 0; half < 2; half++) {
            int sc, mn;
            k_scale_min(b + 4, 2 * g + half, &sc, &mn);
            float ds = d * (float)sc, dm = dmin * (float)mn;
            for (int l = 0; l < 32; l++) {
                int q = half ? qs[32 * g + l] >> 4 : qs[32 * g + l] & 15;
                if (qh && (qh[l] >> (2 * g + half) & 1)) {
                    q += 16;
                }
                y[64 * g + 32 * half + l] = ds * (float)q - dm;
            }
        }
    }
}

static void dequant_q6_k(const uint8_t *b, float *y) {
    float d = get_f16(b + 208);
    for (int h = 0; h < 2; h++) {
        const uint8_t *ql = b + 64 * h, *qh = b + 128 + 32 * h, *sc = b + 192 + 8 * h;
        float *yh = y + 128 * h;
        for (int l = 0; l < 32; l++) {
            int i = l / 16;
            int q[4] = {
                (ql[l] & 15) | (qh[l] & 3) << 4,
                (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4,
                ql[l] >> 4 | (qh[l] >> 4 & 3) << 4,
                ql[l + 32] >> 4 | (qh[l] >> 6) << 4,
            };
            for (int k = 0; k < 4; k++) {
                yh[l + 32 * k] = d * (float)(int8_t)sc[i + 2 * k] * (float)(q[k] - 32);
            }
        }
    }
}

/* 17 bytes: the scale, then 16 bytes of low and high halves. */
static void dequant_mxfp4(const uint8_t *b, float *y) {
    float d = bl_e8m0_to_f32(b[0]);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (0.5f * (float)bl_e2m1_doubled(b[1 + j] & 15u));
        y[j + 16] = d * (0.5f * (float)bl_e2m1_doubled(b[1 + j] >> 4));
    }
}

static void dequant_block(bl_dtype t, const uint8_t *b, float *y) {
    switch (t) {
    case BL_DTYPE_Q4_0:
    case BL_DTYPE_Q4_1:
        dequant_q4(b, y, t == BL_DTYPE_Q4_1);
        break;
    case BL_DTYPE_Q5_0:
    case BL_DTYPE_Q5_1:
        dequant_q5(b, y, t == BL_DTYPE_Q5_1);
        break;
    case BL_DTYPE_Q8_0:
        dequant_q8_0(b, y);
        break;
    case BL_DTYPE_Q4_K:
        dequant_q45_k(b, NULL, b + 16, y);
        break;
    case BL_DTYPE_Q5_K:
        dequant_q45_k(b, b + 16, b + 48, y);
        break;
    case BL_DTYPE_Q6_K:
        dequant_q6_k(b, y);
        break;
    default:
        BL_ASSERT(t == BL_DTYPE_GGUF_MXFP4); /* the last of the block formats; MLX rows do not come here */
        dequant_mxfp4(b, y);
        break;
    }
}

void bl_dequant_row(bl_dtype t, const void *src, float *dst, uint64_t n) {
    const bl_dtype_info *info = bl_dtype_get(t);
    const uint8_t *p = src;
    BL_ASSERT(info->is_weight && n % info->block_elems == 0);
    switch (t) {
    case BL_DTYPE_F32:
        for (uint64_t i = 0; i < n; i++) {
            dst[i] = bl_bits_to_f32(get_u32(p + 4 * i));
        }
        return;
    case BL_DTYPE_F16:
        for (uint64_t i = 0; i < n; i++) {
            dst[i] = get_f16(p + 2 * i);
        }
        return;
    case BL_DTYPE_BF16:
        for (uint64_t i = 0; i < n; i++) {
            dst[i] = bl_bf16_to_f32(get_u16(p + 2 * i));
        }
        return;
    default:
        for (uint64_t i = 0; i < n; i += info->block_elems) {
            dequant_block(t, p, dst + i);
            p += info->block_bytes;
        }
    }
}

/* Where the float fields of a type lie: bits width, exponent mask, and up to two offsets in the block. */
typedef struct {
    uint32_t width_bytes; /* 0: the type holds no value that is not finite */
    uint32_t n_fields;
    uint32_t off_bytes[2];
} float_fields;

static float_fields fields_of(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_F32:
        return (float_fields){4, 1, {0, 0}};
    case BL_DTYPE_F16:
    case BL_DTYPE_BF16:
    case BL_DTYPE_Q4_0:
    case BL_DTYPE_Q5_0:
    case BL_DTYPE_Q8_0:
        return (float_fields){2, 1, {0, 0}};
    case BL_DTYPE_Q4_1:
    case BL_DTYPE_Q5_1:
    case BL_DTYPE_Q4_K:
    case BL_DTYPE_Q5_K:
        return (float_fields){2, 2, {0, 2}};
    case BL_DTYPE_Q6_K:
        return (float_fields){2, 1, {208, 0}};
    case BL_DTYPE_F8_E4M3:
    case BL_DTYPE_F8_E8M0:
    case BL_DTYPE_GGUF_MXFP4:
        return (float_fields){1, 1, {0, 0}};
    default:
        return (float_fields){0, 0, {0, 0}};
    }
}

static bool field_finite(bl_dtype t, const uint8_t *p) {
    switch (t) {
    case BL_DTYPE_F32:
        return (get_u32(p) & 0x7f800000u) != 0x7f800000u;
    case BL_DTYPE_BF16:
        return (get_u16(p) & 0x7f80u) != 0x7f80u;
    case BL_DTYPE_F8_E4M3: /* the fn variant: no infinity, 0x7f and 0xff are NaN */
        return (*p & 0x7fu) != 0x7fu;
    case BL_DTYPE_F8_E8M0:
        return *p != 0xffu;
    case BL_DTYPE_GGUF_MXFP4: /* 6 * 2^126 is too large for f32 */
        return *p <= BL_E8M0_MAX_FP4;
    default: /* an f16 field */
        return (get_u16(p) & 0x7c00u) != 0x7c00u;
    }
}

static bool field_is_nan(bl_dtype t, const uint8_t *p) {
    switch (t) {
    case BL_DTYPE_F32:
        return (get_u32(p) & 0x7fffffu) != 0;
    case BL_DTYPE_BF16:
        return (get_u16(p) & 0x7fu) != 0;
    case BL_DTYPE_F8_E4M3:
    case BL_DTYPE_F8_E8M0:
        return true;
    case BL_DTYPE_GGUF_MXFP4:
        return *p == 0xffu;
    default:
        return (get_u16(p) & 0x3ffu) != 0;
    }
}

bl_code bl_dtype_check_finite(bl_dtype t, const void *src, uint64_t n, bl_err *err) {
    const bl_dtype_info *info = bl_dtype_get(t);
    float_fields f = fields_of(t);
    const uint8_t *p = src;
    for (uint64_t i = 0; f.width_bytes != 0 && i < n; i += info->block_elems, p += info->block_bytes) {
        for (uint32_t k = 0; k < f.n_fields; k++) {
            const uint8_t *field = p + f.off_bytes[k];
            if (field_finite(t, field)) {
                continue;
            }
            const char *value = field_is_nan(t, field) ? "NaN" : "infinite";
            if (info->block_elems == 1) {
                BL_FAIL(err, BL_EFORMAT, "element %llu (%s) is %s, allowed are finite values",
                        (unsigned long long)i, info->name, value);
            }
            BL_FAIL(err, BL_EFORMAT, "%s of the %s block at element %llu is %s, allowed are finite values",
                    k == 0 ? "scale" : "offset", info->name, (unsigned long long)i, value);
        }
    }
    return BL_OK;
}
