/* NUMERICS.md in scalar C: the truth that every other kernel equals bit for bit.
 *
 * Built for the baseline instruction set with -ffp-contract=off. Written for reading, not for speed; only
 * what makes whole models bearable (unpacking a strip of weights once for all rows) is done. No allocation,
 * no state.
 */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/canon.h"
#include "base/base.h"

/* ---- matrix products, NUMERICS §3 ----------------------------------------------------------- */

/* Element (row r, k) of a chunk, with the format's offset taken off; E2M1 codes as twice their value. */
static int16_t unpack_one(bl_dtype t, const uint8_t *c, uint32_t r, uint32_t k) {
    uint32_t s = k >> 2, at = 4 * r + (k & 3);
    if (t == BL_DTYPE_Q8_0) {
        return (int8_t)c[64 * s + at];
    }
    if (t == BL_DTYPE_AFFINE8) {
        return (int16_t)(c[64 * s + at] ^ 0x80);
    }
    if (t == BL_DTYPE_AFFINE2 || t == BL_DTYPE_AFFINE3) {
        uint32_t b = (uint32_t)(c[64 * (s >> 2) + at] >> (2 * (s & 3))) & 3u;
        return (int16_t)(t == BL_DTYPE_AFFINE3 ? b | ((uint32_t)(c[128 + at] >> s) & 1u) << 2 : b);
    }
    uint32_t q = (uint32_t)(c[64 * (s & 3) + at] >> (s < 4 ? 0 : 4)) & 15u;
    int32_t off = t == BL_DTYPE_Q4_0 ? 8 : 0;
    if (t == BL_DTYPE_MXFP4 || t == BL_DTYPE_NVFP4) {
        return (int16_t)bl_e2m1_doubled(q);
    }
    if (bl_pk_chunk_bytes(t) == 320) {
        q |= (uint32_t)((c[256 + at] >> s) & 1) << 4;
        off = t == BL_DTYPE_Q5_0 ? 16 : 0;
    } else if (bl_pk_chunk_bytes(t) == 384) {
        q |= (uint32_t)((c[256 + 64 * (s >> 2) + at] >> (2 * (s & 3))) & 3) << 4;
        off = t == BL_DTYPE_Q6_K ? 32 : 0;
    }
    return (int16_t)((int32_t)q - off);
}

static void unpack_chunk(bl_dtype t, const uint8_t *c, int16_t w[32][BL_PK_ROWS]) {
    for (uint32_t k = 0; k < 32; k++) {
        for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
            w[k][r] = unpack_one(t, c, r, k);
        }
    }
}

/* isum[row] += scale[row] * sum over n of w * q; scale NULL: 1. int32 holds every format's worst case: Q6_K
 * 16 sub-blocks of 128 * 16 * 32 * 127 = 1.4e8, Q5_K 8 * 63 * 32 * 31 * 127 = 6.4e7, AFFINE8 64 * 255
 * * 127 = 2.1e6. */
static void dot_add(int16_t w[][BL_PK_ROWS], const int8_t *q, uint32_t n, const int32_t *scale,
                    int32_t isum[BL_PK_ROWS]) {
    int32_t s[BL_PK_ROWS] = {0};
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
            s[r] += w[k][r] * q[k];
        }
    }
    for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
        isum[r] += (scale ? scale[r] : 1) * s[r];
    }
}

/* The scale (or with `min` the offset) of row r that serves element k, as the float step takes it: of E2M1
 * codes, which are doubled, half of it. */
static float scale_at(const bl_packed *w, const uint8_t *blk, uint32_t r, uint32_t k, bool min) {
    const uint8_t *s = blk + bl_pk_scale_bytes(w) * (k / bl_pk_scale_elems(w));
    uint32_t i = r + (min ? BL_PK_ROWS : 0);
    switch (w->dtype) {
    case BL_DTYPE_MXFP4:
        return 0.5f * bl_e8m0_to_f32(s[r]);
    case BL_DTYPE_MXFP8:
        return bl_e8m0_to_f32(s[r]);
    case BL_DTYPE_NVFP4:
        return 0.5f * (bl_e4m3_to_f32(s[r]) * w->global_scale);
    default:
        break;
    }
    if (bl_dtype_is_affine(w->dtype)) {
        return bl_mlx_scale(w->dtype, w->scale_dtype, s, i);
    }
    return bl_f16_to_f32(((const uint16_t *)(const void *)s)[i]);
}

/* One group of 32 or 64 of x, from element k on. */
static void step_group(const bl_packed *w, const uint8_t *blk, int16_t wq[][BL_PK_ROWS], const bl_xq *x,
                       size_t row, uint32_t k, float p[BL_PK_ROWS]) {
    uint32_t n = bl_group_elems(bl_pk_group(w)), part = w->dtype == BL_DTYPE_NVFP4 ? 16 : n;
    size_t at = row * x->ld_g + k / n;
    for (uint32_t i = 0; i < n; i += part) {
        int32_t isum[BL_PK_ROWS] = {0};
        dot_add(wq + i, x->q + row * x->ld_q + k + i, part, NULL, isum);
        for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
            p[r] = fmaf(scale_at(w, blk, r, k + i, false) * x->d[at], (float)isum[r], p[r]);
            if (bl_pk_has_min(w->dtype)) {
                p[r] = fmaf(scale_at(w, blk, r, k + i, true), x->dq[at], p[r]);
            }
        }
    }
}

static void step_group256(const bl_packed *w, const uint8_t *sc, int16_t wq[][BL_PK_ROWS], const bl_xq *x,
                          size_t row, uint32_t g, float p[BL_PK_ROWS]) {
    const int8_t *q = x->q + row * x->ld_q + 256u * g;
    float d = x->d[row * x->ld_g + g];
    int32_t isum[BL_PK_ROWS] = {0};
    int32_t scale[BL_PK_ROWS];
    if (w->dtype == BL_DTYPE_Q6_K) {
        const bl_pk_k6 *s = (const bl_pk_k6 *)(const void *)sc;
        for (uint32_t j = 0; j < 16; j++) {
            for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
                scale[r] = s->sc[j][r];
            }
            dot_add(wq + 16 * j, q + 16 * j, 16, scale, isum);
        }
        for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
            p[r] = fmaf(bl_f16_to_f32(s->d[r]) * d, (float)isum[r], p[r]);
        }
        return;
    }
    const bl_pk_k45 *s = (const bl_pk_k45 *)(const void *)sc;
    int32_t msum[BL_PK_ROWS] = {0};
    for (uint32_t j = 0; j < 8; j++) {
        for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
            scale[r] = s->sc[j][r];
            msum[r] += s->mn[j / 2][r][j & 1] * x->s32[row * x->ld_s + 8u * g + j];
        }
        dot_add(wq + 32 * j, q + 32 * j, 32, scale, isum);
    }
    for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
        p[r] = fmaf(bl_f16_to_f32(s->d[r]) * d, (float)isum[r], p[r]);
        p[r] = fmaf(-bl_f16_to_f32(s->dmin[r]), d * (float)msum[r], p[r]);
    }
}

/* y (16 lanes) takes a strip's partial; strips are added left to right, the bias at the end. */
static void strip_done(const bl_mm_args *a, uint32_t b, uint32_t row, uint32_t k0, uint32_t kn,
                       const float p[BL_PK_ROWS]) {
    float *y = a->y + (size_t)row * a->ldy + (size_t)b * BL_PK_ROWS;
    for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
        y[r] = k0 == 0 ? p[r] : y[r] + p[r];
        if (k0 + kn == a->w->k && a->bias && b * BL_PK_ROWS + r < a->w->n_out) {
            y[r] = y[r] + a->bias[b * BL_PK_ROWS + r];
        }
    }
}

static void matmul_quant(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0,
                         uint32_t row1) {
    const bl_packed *w = a->w;
    uint32_t gk = bl_group_elems(bl_pk_group(w));
    size_t sb = bl_pk_scale_bytes(w), cb = bl_pk_chunk_bytes(w->dtype);
    int16_t wq[BL_STRIP][BL_PK_ROWS];
    for (uint32_t b = block0; b < block1; b++) {
        const uint8_t *blk = w->base + b * w->block_bytes;
        for (uint32_t k0 = 0; k0 < w->k; k0 += BL_STRIP) {
            uint32_t kn = BL_MIN(BL_STRIP, w->k - k0);
            for (uint32_t k = 0; k < kn; k += 32) {
                unpack_chunk(w->dtype, blk + w->data_off + cb * ((k0 + k) / 32), wq + k);
            }
            for (uint32_t row = row0; row < row1; row++) {
                float p[BL_PK_ROWS] = {0};
                for (uint32_t k = 0; k < kn; k += gk) {
                    if (gk == 256) {
                        step_group256(w, blk + sb * ((k0 + k) / gk), wq + k, a->xq, row, (k0 + k) / gk, p);
                    } else {
                        step_group(w, blk, wq + k, a->xq, row, k0 + k, p);
                    }
                }
                strip_done(a, b, row, k0, kn, p);
            }
        }
    }
}

/* Weight (row r, k) of a block of floats. */
static float float_weight(const bl_packed *w, const uint8_t *blk, uint32_t r, uint32_t k) {
    const uint8_t *data = blk + w->data_off;
    size_t i = (size_t)k * BL_PK_ROWS + r;
    if (w->dtype == BL_DTYPE_MXFP8) {
        return bl_e4m3_to_f32(data[i]) * scale_at(w, blk, r, k, false);
    }
    if (w->dtype == BL_DTYPE_F32) {
        float f;
        memcpy(&f, data + 4 * i, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, data + 2 * i, 2);
    return w->dtype == BL_DTYPE_F16 ? bl_f16_to_f32(h) : bl_bf16_to_f32(h);
}

static void matmul_float(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0,
                         uint32_t row1) {
    const bl_packed *w = a->w;
    float wf[BL_FLOAT_STRIP][BL_PK_ROWS];
    for (uint32_t b = block0; b < block1; b++) {
        const uint8_t *blk = w->base + b * w->block_bytes;
        for (uint32_t k0 = 0; k0 < w->k; k0 += BL_FLOAT_STRIP) {
            uint32_t kn = BL_MIN(BL_FLOAT_STRIP, w->k - k0);
            for (uint32_t i = 0; i < kn * BL_PK_ROWS; i++) {
                wf[i / BL_PK_ROWS][i % BL_PK_ROWS] =
                    float_weight(w, blk, i % BL_PK_ROWS, k0 + i / BL_PK_ROWS);
            }
            for (uint32_t row = row0; row < row1; row++) {
                const float *x = a->x + (size_t)row * a->ldx + k0;
                float p[BL_PK_ROWS] = {0};
                for (uint32_t k = 0; k < kn; k++) {
                    for (uint32_t r = 0; r < BL_PK_ROWS; r++) {
                        p[r] = fmaf(wf[k][r], x[k], p[r]);
                    }
                }
                strip_done(a, b, row, k0, kn, p);
            }
        }
    }
}

/* ---- activations to int8 -------------------------------------------------------------------- */

/* q, d of one group of n. A group whose a is below CANON_Q_MIN is zero; one with an infinity gives d = inf, q
 * = 0 and so NaN results. */
static float quant_group(const float *x, uint32_t n, int8_t *q) {
    float a = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float v = fabsf(x[i]);
        a = v > a ? v : a;
    }
    if (a < CANON_Q_MIN) {
        memset(q, 0, n);
        return 0.0f;
    }
    float r = 127.0f / a;
    for (uint32_t i = 0; i < n; i++) {
        q[i] = (int8_t)canon_rint(x[i] * r);
    }
    return a / 127.0f;
}

/* Sum of n values and, in *ps, its two halves (kernels.h). */
static int32_t sum_q(const int8_t *q, uint32_t n, uint32_t *ps) {
    int32_t s[2] = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        s[(i >> 1) & 1] += q[i];
    }
    *ps = (uint32_t)(uint16_t)s[0] | (uint32_t)(uint16_t)s[1] << 16;
    return s[0] + s[1];
}

static void quant32(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 32; g++) {
        size_t at = row * o->ld_g + g;
        o->d[at] = quant_group(x + 32 * g, 32, q + 32 * g);
        o->qsum[at] = sum_q(q + 32 * g, 32, &o->ps[at]);
        o->dq[at] = o->d[at] * (float)o->qsum[at];
    }
    memset(q + k, 0, (64 - k % 64) % 64);
}

static void quant64(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 64; g++) {
        size_t at = row * o->ld_g + g;
        uint32_t ps;
        o->d[at] = quant_group(x + 64 * g, 64, q + 64 * g);
        o->qsum[at] = sum_q(q + 64 * g, 64, &ps);
        o->dq[at] = o->d[at] * (float)o->qsum[at];
    }
}

static void quant256(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 256; g++) {
        o->d[row * o->ld_g + g] = quant_group(x + 256 * g, 256, q + 256 * g);
    }
    for (uint32_t j = 0; j < k / 32; j++) {
        size_t at = row * o->ld_s + j;
        o->s32[at] = (int16_t)sum_q(q + 32 * j, 32, &o->ps32[at]);
        o->s16[2 * at] = (int16_t)sum_q(q + 32 * j, 16, &o->ps16[2 * at]);
        o->s16[2 * at + 1] = (int16_t)sum_q(q + 32 * j + 16, 16, &o->ps16[2 * at + 1]);
    }
}

/* ---- one row of a packed matrix as floats --------------------------------------------------- */

/* The dequantised value of bl_dequant_row and bl_mlx_dequant, from the packed form: q already has its offset
 * off; d * sc first, then * q, then the minimum. */
static float dequant_one(const bl_packed *w, const uint8_t *blk, uint32_t r, uint32_t k, int32_t q) {
    bl_dtype t = w->dtype;
    const uint8_t *sc = blk + bl_pk_scale_bytes(w) * (k / bl_pk_scale_elems(w));
    if (t == BL_DTYPE_Q6_K) {
        const bl_pk_k6 *s = (const bl_pk_k6 *)(const void *)sc;
        return (bl_f16_to_f32(s->d[r]) * (float)s->sc[k % 256 / 16][r]) * (float)q;
    }
    if (t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) {
        const bl_pk_k45 *s = (const bl_pk_k45 *)(const void *)sc;
        uint32_t j = k % 256 / 32;
        float m = bl_f16_to_f32(s->dmin[r]) * (float)s->mn[j / 2][r][j & 1];
        return (bl_f16_to_f32(s->d[r]) * (float)s->sc[j][r]) * (float)q - m;
    }
    if (t == BL_DTYPE_NVFP4) {
        return (bl_e4m3_to_f32(sc[r]) * w->global_scale) * (0.5f * (float)q);
    }
    float v = scale_at(w, blk, r, k, false) * (float)q; /* MXFP4: halved scale, doubled code, all exact */
    return bl_pk_has_min(t) ? v + scale_at(w, blk, r, k, true) : v;
}

void bl_embed_ref(const bl_packed *w, uint32_t row, float scale, float *dst) {
    const uint8_t *blk = w->base + row / BL_PK_ROWS * w->block_bytes;
    uint32_t r = row % BL_PK_ROWS;
    if (bl_pk_group(w) == BL_GROUP_FLOAT) {
        for (uint32_t k = 0; k < w->k; k++) {
            dst[k] = scale * float_weight(w, blk, r, k);
        }
        return;
    }
    size_t cb = bl_pk_chunk_bytes(w->dtype);
    for (uint32_t k = 0; k < w->k; k++) {
        int32_t q = unpack_one(w->dtype, blk + w->data_off + cb * (k / 32), r, k % 32);
        dst[k] = scale * dequant_one(w, blk, r, k, q);
    }
}

/* ---- norms and element-wise ops ------------------------------------------------------------- */

/* Folds v[n] by halves (NUMERICS §2): lane j += lane j + w. */
static float fold(float *v, uint32_t n) {
    for (uint32_t w = n / 2; w > 0; w /= 2) {
        for (uint32_t j = 0; j < w; j++) {
            v[j] += v[j + w];
        }
    }
    return v[0];
}

static void rmsnorm(const float *x, const float *w, const float *add, float *y, uint32_t n, float eps) {
    float lane[BL_N_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lane[i % BL_N_LANES] = fmaf(x[i], x[i], lane[i % BL_N_LANES]);
    }
    float r = 1.0f / sqrtf(fold(lane, BL_N_LANES) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float v = x[i] * r;
        v = w ? v * w[i] : v;
        y[i] = add ? add[i] + v : v;
    }
}

static void add(const float *a, const float *b, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}

static void glu(const float *a, const float *b, float *y, size_t n, bl_glu_act act, float limit) {
    for (size_t i = 0; i < n; i++) {
        switch (act) {
        case BL_GLU_SILU:
            y[i] = canon_silu(a[i]) * b[i];
            break;
        case BL_GLU_GELU_TANH:
            y[i] = canon_gelu_tanh(a[i]) * b[i];
            break;
        case BL_GLU_SIGMOID:
            y[i] = canon_sigmoid(a[i]) * b[i];
            break;
        case BL_GLU_CLAMPED:
            y[i] = canon_glu_clamped(a[i], b[i], limit);
            break;
        }
    }
}

static void axpy(float w, const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        y[i] = fmaf(w, x[i], y[i]);
    }
}

static void softcap(float *x, size_t n, float cap) {
    for (size_t i = 0; i < n; i++) {
        x[i] = canon_softcap(x[i], cap);
    }
}

static void rope(float *x, const float *cs, uint32_t half) {
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cs[i], s = cs[i + half];
        x[i] = fmaf(a, c, -(b * s));
        x[i + half] = fmaf(b, c, a * s);
    }
}

static void kv_store(const float *k, const float *v, uint32_t head_dim, void *kt, void *vt, uint32_t col,
                     bool f32) {
    for (uint32_t d = 0; d < head_dim; d++) {
        if (f32) {
            ((float *)kt)[(size_t)d * BL_KV_TILE + col] = k[d];
            ((float *)vt)[(size_t)col * head_dim + d] = v[d];
        } else {
            ((uint16_t *)kt)[(size_t)d * BL_KV_TILE + col] = bl_f32_to_bf16(k[d]);
            ((uint16_t *)vt)[(size_t)col * head_dim + d] = bl_f32_to_bf16(v[d]);
        }
    }
}

/* ---- attention, NUMERICS §4 ----------------------------------------------------------------- */

static float kv_at(const void *p, size_t i, bool f32) {
    return f32 ? ((const float *)p)[i] : bl_bf16_to_f32(((const uint16_t *)p)[i]);
}

typedef struct {
    float m, l;
    float *acc; /* [head_dim] */
} soft_state;

/* One tile: keys j in [j0, j1) of it are visible. */
static void attn_tile(const bl_attn_args *a, const float *q, const void *kt, const void *vt, uint32_t j0,
                      uint32_t j1, soft_state *st) {
    float s[BL_KV_TILE], p[BL_KV_TILE] = {0};
    float t = -INFINITY;
    for (uint32_t j = j0; j < j1; j++) {
        float v = 0.0f;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            v = fmaf(q[d], kv_at(kt, (size_t)d * BL_KV_TILE + j, a->kv_f32), v);
        }
        s[j] = v * a->scale;
        t = s[j] > t ? s[j] : t;
    }
    float m = st->m > t ? st->m : t;
    float c = canon_exp(st->m - m);
    for (uint32_t j = j0; j < j1; j++) {
        p[j] = canon_exp(s[j] - m);
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float v = 0.0f;
        for (uint32_t j = j0; j < j1; j++) {
            v = fmaf(p[j], kv_at(vt, (size_t)j * a->head_dim + d, a->kv_f32), v);
        }
        st->acc[d] = fmaf(st->acc[d], c, v);
    }
    st->l = fmaf(st->l, c, fold(p, BL_KV_TILE));
    st->m = m;
}

static void attn_one(const bl_attn_args *a, uint32_t row, uint32_t head, soft_state *seg, soft_state *tot) {
    uint32_t pos = (uint32_t)a->pos[row];
    uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    uint32_t kvh = head / (a->n_heads / a->n_kv_heads);
    size_t elem = a->kv_f32 ? 4 : 2;
    const float *q = a->q + (size_t)row * a->ldq + (size_t)head * a->head_dim;
    tot->m = a->sinks ? a->sinks[head] : -INFINITY;
    tot->l = a->sinks ? 1.0f : 0.0f;
    memset(tot->acc, 0, a->head_dim * sizeof(float));
    for (uint32_t s0 = first - first % BL_SEGMENT; s0 <= pos; s0 += BL_SEGMENT) {
        seg->m = -INFINITY;
        seg->l = 0.0f;
        memset(seg->acc, 0, a->head_dim * sizeof(float));
        for (uint32_t t0 = s0; t0 < s0 + BL_SEGMENT && t0 <= pos; t0 += BL_KV_TILE) {
            if (t0 + BL_KV_TILE <= first) {
                continue;
            }
            const uint8_t *kt = (const uint8_t *)a->tiles[t0 / BL_KV_TILE] +
                                (size_t)kvh * 2 * BL_KV_TILE * a->head_dim * elem;
            uint32_t j0 = first > t0 ? first - t0 : 0, j1 = BL_MIN(pos - t0 + 1, BL_KV_TILE);
            attn_tile(a, q, kt, kt + (size_t)BL_KV_TILE * a->head_dim * elem, j0, j1, seg);
        }
        float m = tot->m > seg->m ? tot->m : seg->m;
        float c = canon_exp(tot->m - m), cs = canon_exp(seg->m - m);
        tot->l = fmaf(tot->l, c, cs * seg->l);
        for (uint32_t d = 0; d < a->head_dim; d++) {
            tot->acc[d] = fmaf(tot->acc[d], c, cs * seg->acc[d]);
        }
        tot->m = m;
    }
    float *out = a->out + (size_t)row * a->ldo + (size_t)head * a->head_dim;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        out[d] = tot->acc[d] / tot->l;
    }
}

static void attention(const bl_attn_args *a, uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1,
                      float *scratch) {
    soft_state seg = {.acc = scratch}, tot = {.acc = scratch + a->head_dim};
    for (uint32_t row = row0; row < row1; row++) {
        for (uint32_t h = head0; h < head1; h++) {
            attn_one(a, row, h, &seg, &tot);
        }
    }
}

/* ---- recurrent layers, NUMERICS §6 ---------------------------------------------------------- */

static void conv(const bl_conv_args *a, uint32_t row0, uint32_t row1, uint32_t col0, uint32_t col1) {
    uint32_t before = a->n_taps - 1;
    for (uint32_t r = row0; r < row1; r++) {
        for (uint32_t c = col0; c < col1; c++) {
            float v = 0.0f;
            for (uint32_t j = 0; j < a->n_taps; j++) {
                uint32_t at = r + j; /* counted from the first row of the state */
                float x =
                    at < before ? a->state[(size_t)at * a->width + c] : a->x[(at - before) * a->ldx + c];
                v = fmaf(a->w[(size_t)j * a->width + c], x, v);
            }
            a->y[r * a->ldy + c] = canon_silu(v);
        }
    }
}

static void delta(const bl_delta_args *a, uint32_t row0, uint32_t row1, uint32_t head, uint32_t lane0,
                  uint32_t lane1) {
    uint32_t kh = bl_delta_key_head(a, head), n_keys = a->n_key_heads * a->dim;
    float *s = a->state + (size_t)head * a->dim * a->head_dim;
    for (uint32_t r = row0; r < row1; r++) {
        const float *q = a->qkv + r * a->ld + (size_t)kh * a->dim, *k = q + n_keys;
        const float *v = a->qkv + r * a->ld + 2 * n_keys + (size_t)head * a->head_dim;
        float decay = a->decay[r * a->ldg + head], beta = a->beta[r * a->ldg + head];
        for (uint32_t j = lane0; j < lane1; j++) {
            float read = 0.0f, y = 0.0f;
            for (uint32_t i = 0; i < a->dim; i++) {
                float *at = &s[(size_t)i * a->head_dim + j];
                *at = *at * decay;
                read = fmaf(*at, k[i], read);
            }
            float d = beta * (v[j] - read);
            for (uint32_t i = 0; i < a->dim; i++) {
                float *at = &s[(size_t)i * a->head_dim + j];
                *at = fmaf(k[i], d, *at);
                y = fmaf(*at, q[i], y);
            }
            a->out[r * a->ldo + (size_t)head * a->head_dim + j] = y;
        }
    }
}

/* ---- probes --------------------------------------------------------------------------------- */

static uint64_t probe_read(const uint8_t *p, size_t n) {
    uint64_t s[4] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; j++) {
            uint64_t v;
            memcpy(&v, p + i + 8 * j, 8);
            s[j] += v;
        }
    }
    return s[0] + s[1] + s[2] + s[3];
}

static uint64_t probe_int8(uint64_t n_iter, uint64_t *sink) {
    uint64_t s[4] = {1, 2, 3, 4};
    for (uint64_t i = 0; i < n_iter; i++) {
        for (uint32_t j = 0; j < 4; j++) {
            s[j] += (uint64_t)((int64_t)(int8_t)s[j] * (int8_t)i);
        }
    }
    *sink = s[0] + s[1] + s[2] + s[3];
    return 4 * n_iter;
}

void bl_kernels_ref(bl_kernels *t) {
    *t = (bl_kernels){
        .attention = attention,
        .quant32 = quant32,
        .quant64 = quant64,
        .quant256 = quant256,
        .embed = bl_embed_ref,
        .rmsnorm = rmsnorm,
        .add = add,
        .glu = glu,
        .softcap = softcap,
        .rope = rope,
        .axpy = axpy,
        .conv = conv,
        .delta = delta,
        .kv_store = kv_store,
        .probe_read = probe_read,
        .probe_int8 = probe_int8,
    };
    for (uint32_t i = 0; i < BL_DTYPE_I8; i++) {
        t->matmul[i] = i <= BL_DTYPE_BF16 || i == BL_DTYPE_MXFP8 ? matmul_float : matmul_quant;
    }
}
