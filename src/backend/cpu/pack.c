#include "backend/cpu/pack.h"

#include <string.h>

#include "base/base.h"
#include "tensor/mlx.h"

/* Elements of k dequantised at once on the way to F32. A multiple of every block. */
#define PART 256u

static uint16_t get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2); /* files and machine are little-endian */
    return v;
}

/* Row `row` of an MLX matrix. */
static bl_mlx_row mlx_row(const bl_mat_desc *d, uint64_t row) {
    const uint8_t *scales = d->scales, *biases = d->biases;
    uint64_t row_bytes = (uint64_t)d->k / 32 * bl_dtype_get(d->dtype)->block_bytes,
             scale_bytes = (uint64_t)d->k / d->group * bl_dtype_get(d->scale_dtype)->block_bytes;
    return (bl_mlx_row){
        .dtype = d->dtype,
        .scale_dtype = d->scale_dtype,
        .group = d->group,
        .global_scale = d->global_scale,
        .packed = (const uint8_t *)d->rows + row * row_bytes,
        .scales = scales + row * scale_bytes,
        .biases = biases ? biases + row * scale_bytes : NULL,
    };
}

static bl_code check_mlx_layout(const bl_mat_desc *d, bl_err *err) {
    bl_mlx_row r = {.dtype = d->dtype,
                    .scale_dtype = d->scale_dtype,
                    .group = d->group,
                    .global_scale = d->global_scale,
                    .scales = d->scales,
                    .biases = d->biases};
    bl_code c = bl_mlx_check_layout(&r, d->k, err);
    return c == BL_OK ? c : bl_err_wrap(err, c, "%s", d->name);
}

bl_code bl_pack_plan(const bl_mat_desc *d, bl_activations act, bl_packed *ret, uint64_t *ret_bytes,
                     bl_err *err) {
    const bl_dtype_info *info = d->dtype < BL_DTYPE_I8 ? bl_dtype_get(d->dtype) : NULL;
    if (!info) {
        BL_FAIL(err, BL_EINVAL, "%s: element type %d cannot be a weight matrix here", d->name, (int)d->dtype);
    }
    if (d->n_out == 0 || d->k == 0 || d->k % info->block_elems != 0) {
        BL_FAIL(err, BL_EINVAL, "%s: shape [%u, %u], rows must be >= 1 and a multiple of %u long", d->name,
                d->n_out, d->k, info->block_elems);
    }
    if (bl_dtype_is_mlx(d->dtype)) {
        BL_TRY(check_mlx_layout(d, err));
    }
    bl_packed p = {.dtype = d->dtype, .n_out = d->n_out, .k = d->k};
    if (bl_dtype_is_mlx(d->dtype)) {
        p.group = d->group;
        p.scale_dtype = d->scale_dtype;
        p.global_scale = d->global_scale == 0.0f ? 1.0f : d->global_scale;
    } else if (d->dtype == BL_DTYPE_GGUF_MXFP4) { /* the same numbers in another order */
        p.dtype = BL_DTYPE_MXFP4;
        p.group = 32;
    }
    if (act == BL_ACTIVATIONS_F32 && p.dtype > BL_DTYPE_BF16) {
        p.dtype = BL_DTYPE_F32;
        p.group = 0;
    }
    uint64_t scales = (uint64_t)d->k / bl_pk_scale_elems(&p) * bl_pk_scale_bytes(&p), data;
    if (p.dtype <= BL_DTYPE_BF16) {
        data = (uint64_t)d->k * BL_PK_ROWS * bl_dtype_get(p.dtype)->block_bytes;
    } else {
        data = (uint64_t)d->k / 32 * bl_pk_chunk_bytes(p.dtype);
    }
    /* k < 2^32, so these cannot overflow; their product with the number of blocks can. */
    uint64_t data_off = (scales + 63) & ~UINT64_C(63), block = data_off + ((data + 63) & ~UINT64_C(63)),
             total;
    p.n_blocks = (uint32_t)(((uint64_t)d->n_out + BL_PK_ROWS - 1) / BL_PK_ROWS);
    if (!bl_mul_u64(block, p.n_blocks, &total) || total > SIZE_MAX / 2) {
        BL_FAIL(err, BL_ERANGE, "%s: shape [%u, %u] does not fit the address space", d->name, d->n_out, d->k);
    }
    p.data_off = (size_t)data_off;
    p.block_bytes = (size_t)block;
    *ret = p;
    *ret_bytes = total;
    return BL_OK;
}

/* Puts the 32 values of row r into a zeroed chunk. */
static void put_chunk(bl_dtype t, const uint8_t q[32], uint32_t r, uint8_t *c) {
    c += 4 * r;
    if (t == BL_DTYPE_Q8_0 || t == BL_DTYPE_AFFINE8) {
        for (uint32_t s = 0; s < 8; s++) {
            uint32_t v;
            memcpy(&v, q + 4 * s, 4);
            v ^= t == BL_DTYPE_AFFINE8 ? 0x80808080u : 0; /* q - 128 */
            memcpy(c + 64 * s, &v, 4);
        }
        return;
    }
    if (t == BL_DTYPE_AFFINE2 || t == BL_DTYPE_AFFINE3) {
        for (uint32_t k = 0; k < 32; k++) {
            c[64 * (k >> 4) + (k & 3)] |= (uint8_t)((q[k] & 3) << (2 * ((k >> 2) & 3)));
            if (t == BL_DTYPE_AFFINE3) {
                c[128 + (k & 3)] |= (uint8_t)((q[k] >> 2) << (k >> 2));
            }
        }
        return;
    }
    uint8_t b[16]; /* whole first: one vector operation */
    for (uint32_t i = 0; i < 16; i++) {
        b[i] = (uint8_t)((q[i] & 15) | (q[16 + i] & 15) << 4);
    }
    for (uint32_t v = 0; v < 4; v++) {
        memcpy(c + 64 * v, b + 4 * v, 4);
    }
    if (t == BL_DTYPE_Q6_K || t == BL_DTYPE_AFFINE6) {
        for (uint32_t k = 0; k < 32; k++) {
            c[256 + 64 * (k >> 4) + (k & 3)] |= (uint8_t)((q[k] >> 4) << (2 * ((k >> 2) & 3)));
        }
    } else if (bl_pk_chunk_bytes(t) == 320) {
        for (uint32_t k = 0; k < 32; k++) {
            c[256 + (k & 3)] |= (uint8_t)((q[k] >> 4) << (k >> 2));
        }
    }
}

/* One 32-element block of a Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0 row (spec models.md §9.3). */
static void pack_group32(bl_dtype t, const uint8_t *src, uint32_t r, uint16_t *scale, uint8_t *chunk) {
    uint8_t q[32];
    scale[r] = get_u16(src);
    src += 2;
    if (bl_pk_has_min(t)) {
        scale[BL_PK_ROWS + r] = get_u16(src);
        src += 2;
    }
    if (t == BL_DTYPE_Q8_0) {
        put_chunk(t, src, r, chunk);
        return;
    }
    uint32_t qh = 0;
    if (t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1) {
        memcpy(&qh, src, 4);
        src += 4;
    }
    for (uint32_t j = 0; j < 16; j++) {
        q[j] = (uint8_t)((src[j] & 15) | ((qh >> j) & 1) << 4);
        q[j + 16] = (uint8_t)(src[j] >> 4 | ((qh >> (j + 16)) & 1) << 4);
    }
    put_chunk(t, q, r, chunk);
}

/* One 256-element block of a Q4_K or Q5_K row (§9.4). */
static void pack_k45(bl_dtype t, const uint8_t *src, uint32_t r, bl_pk_k45 *s, uint8_t *chunks) {
    const uint8_t *sm = src + 4, *qh = src + 16, *qs = src + (t == BL_DTYPE_Q5_K ? 48 : 16);
    size_t cb = bl_pk_chunk_bytes(t);
    s->d[r] = get_u16(src);
    s->dmin[r] = get_u16(src + 2);
    for (uint32_t j = 0; j < 8; j++) {
        uint8_t q[32];
        s->sc[j][r] = (uint8_t)(j < 4 ? sm[j] & 63 : (sm[j + 4] & 15) | (sm[j - 4] >> 6) << 4);
        s->mn[j / 2][r][j & 1] = (uint8_t)(j < 4 ? sm[j + 4] & 63 : sm[j + 4] >> 4 | (sm[j] >> 6) << 4);
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t v = (uint32_t)(qs[32 * (j / 2) + l] >> (4 * (j & 1))) & 15u;
            if (t == BL_DTYPE_Q5_K) {
                v |= (uint32_t)((qh[l] >> j) & 1) << 4;
            }
            q[l] = (uint8_t)v;
        }
        put_chunk(t, q, r, chunks + cb * j);
    }
}

/* One 256-element block of a Q6_K row (§9.4). */
static void pack_k6(const uint8_t *src, uint32_t r, bl_pk_k6 *s, uint8_t *chunks) {
    s->d[r] = get_u16(src + 208);
    for (uint32_t j = 0; j < 16; j++) {
        s->sc[j][r] = (int8_t)src[192 + j];
    }
    for (uint32_t j = 0; j < 8; j++) { /* 32 elements: half j / 4, quarter j % 4 of it */
        const uint8_t *ql = src + 64 * (j / 4) + 32 * (j & 1), *qh = src + 128 + 32 * (j / 4);
        uint8_t q[32];
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t lo = (uint32_t)(ql[l] >> ((j & 2) ? 4 : 0)) & 15u;
            q[l] = (uint8_t)(lo | ((uint32_t)(qh[l] >> (2 * (j & 3))) & 3u) << 4);
        }
        put_chunk(BL_DTYPE_Q6_K, q, r, chunks + bl_pk_chunk_bytes(BL_DTYPE_Q6_K) * j);
    }
}

/* A row of an MLX type. Scales and biases are copied as they are. */
static void pack_mlx_row(const bl_mat_desc *d, const bl_packed *pk, uint64_t at, uint32_t r, uint8_t *dst) {
    bl_mlx_row m = mlx_row(d, at);
    const uint8_t *scales = m.scales, *biases = m.biases;
    size_t sb = bl_pk_scale_bytes(pk), one = bl_dtype_get(d->scale_dtype)->block_bytes;
    for (uint32_t g = 0; g < pk->k / pk->group; g++) {
        memcpy(dst + sb * g + one * r, scales + one * g, one);
        if (biases) {
            memcpy(dst + sb * g + one * (BL_PK_ROWS + r), biases + one * g, one);
        }
    }
    dst += pk->data_off;
    for (uint32_t k = 0; k < pk->k; k += 32) {
        uint8_t q[32];
        bl_mlx_codes(d->dtype, m.packed, k, q);
        if (d->dtype != BL_DTYPE_MXFP8) {
            put_chunk(d->dtype, q, r, dst + bl_pk_chunk_bytes(d->dtype) * (k / 32));
            continue;
        }
        for (uint32_t i = 0; i < 32; i++) {
            dst[(size_t)(k + i) * BL_PK_ROWS + r] = q[i];
        }
    }
}

/* A row of GGUF's MXFP4: the scale and the nibbles lie together, low nibbles first. */
static void pack_gguf_mxfp4_row(const bl_packed *pk, const uint8_t *src, uint32_t r, uint8_t *dst) {
    for (uint32_t g = 0; g < pk->k / 32; g++, src += 17) {
        uint8_t q[32];
        dst[BL_PK_ROWS * g + r] = src[0];
        for (uint32_t j = 0; j < 16; j++) {
            q[j] = src[1 + j] & 15;
            q[j + 16] = src[1 + j] >> 4;
        }
        put_chunk(BL_DTYPE_MXFP4, q, r, dst + pk->data_off + bl_pk_chunk_bytes(BL_DTYPE_MXFP4) * g);
    }
}

static void pack_quant_row(const bl_packed *pk, const uint8_t *src, uint32_t r, size_t row_bytes,
                           uint8_t *dst) {
    bl_dtype t = pk->dtype;
    bool wide = bl_pk_is_wide(t);
    uint32_t n = pk->k / (wide ? 256 : 32);
    size_t sb = row_bytes / n, cb = bl_pk_chunk_bytes(t);
    for (uint32_t g = 0; g < n; g++, src += sb) {
        uint8_t *chunk = dst + pk->data_off + cb * g * (wide ? 8 : 1);
        if (!wide) {
            pack_group32(t, src, r,
                         (uint16_t *)(void *)dst + (size_t)g * BL_PK_ROWS * (bl_pk_has_min(t) ? 2 : 1),
                         chunk);
        } else if (t == BL_DTYPE_Q6_K) {
            pack_k6(src, r, (bl_pk_k6 *)(void *)dst + g, chunk);
        } else {
            pack_k45(t, src, r, (bl_pk_k45 *)(void *)dst + g, chunk);
        }
    }
}

/* Row `at` of the file's tensor: in place, or gathered into tmp from a transposed stack. */
static const uint8_t *source_row(const bl_mat_desc *d, uint64_t at, uint64_t row_bytes, uint8_t *tmp) {
    const uint8_t *rows = d->rows;
    uint64_t t = d->map.transposed;
    if (t == 0) {
        return rows + at * row_bytes;
    }
    size_t size = bl_dtype_get(d->dtype)->block_bytes;
    const uint8_t *first = rows + (at / t * d->k * t + at % t) * size;
    for (uint64_t k = 0; k < d->k; k++) {
        memcpy(tmp + k * size, first + k * t * size, size);
    }
    return tmp;
}

/* Row r of a block from row `at` of the file, whose elements are at src. */
static void pack_float_row(const bl_mat_desc *d, const bl_packed *pk, const uint8_t *src, uint64_t at,
                           uint32_t r, uint8_t *dst) {
    const bl_dtype_info *info = bl_dtype_get(d->dtype);
    dst += pk->data_off;
    if (pk->dtype != BL_DTYPE_F32) {
        for (size_t k = 0; k < d->k; k++) {
            memcpy(dst + 2 * (k * BL_PK_ROWS + r), src + 2 * k, 2);
        }
        return;
    }
    float part[PART];
    for (uint32_t k = 0; k < d->k; k += PART) {
        uint32_t n = BL_MIN(PART, d->k - k);
        if (bl_dtype_is_mlx(d->dtype)) {
            bl_mlx_row m = mlx_row(d, at);
            bl_mlx_dequant(&m, k, part, n);
        } else {
            bl_dequant_row(d->dtype, src + (size_t)k / info->block_elems * info->block_bytes, part, n);
        }
        for (uint32_t i = 0; i < n; i++) {
            memcpy(dst + 4 * ((size_t)(k + i) * BL_PK_ROWS + r), &part[i], 4);
        }
    }
}

bl_code bl_pack_block(const bl_mat_desc *d, const bl_packed *pk, uint32_t block, uint8_t *dst, bl_err *err) {
    uint64_t row_bytes;
    BL_TRY(bl_dtype_row_bytes(d->dtype, d->k, &row_bytes, err));
    uint8_t *tmp = NULL;
    if (d->map.transposed > 0 && !(tmp = bl_alloc((size_t)row_bytes))) {
        BL_FAIL(err, BL_ENOMEM, "%s: no memory for a row", d->name);
    }
    uint32_t n = BL_MIN(BL_PK_ROWS, d->n_out - block * BL_PK_ROWS);
    bl_code c = BL_OK;
    for (uint32_t r = 0; r < n && c == BL_OK; r++) {
        uint64_t at = bl_row_map_source(&d->map, block * BL_PK_ROWS + r);
        const uint8_t *src = source_row(d, at, row_bytes, tmp);
        if (bl_dtype_is_mlx(d->dtype)) {
            bl_mlx_row m = mlx_row(d, at);
            c = bl_mlx_check_finite(&m, d->k, err);
        } else {
            c = bl_dtype_check_finite(d->dtype, src, d->k, err);
        }
        if (c != BL_OK) {
            c = bl_err_wrap(err, c, "%s, row %llu", d->name, (unsigned long long)at);
        } else if (pk->dtype <= BL_DTYPE_BF16) {
            pack_float_row(d, pk, src, at, r, dst);
        } else if (bl_dtype_is_mlx(d->dtype)) {
            pack_mlx_row(d, pk, at, r, dst);
        } else if (d->dtype == BL_DTYPE_GGUF_MXFP4) {
            pack_gguf_mxfp4_row(pk, src, r, dst);
        } else {
            pack_quant_row(pk, src, r, (size_t)row_bytes, dst);
        }
    }
    bl_free(tmp);
    return c;
}
