/* Everything of the kernel table that is no matrix product and no attention, AVX-512. */
#include "backend/cpu/common_avx512.h"

/* ---- activations to int8 ---- */

INLINE __m512i quant16(const float *x, __m512 r) {
    const __m512 magic = _mm512_set1_ps(CANON_MAGIC);
    __m512 v = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(x), r), magic);
    return _mm512_sub_epi32(_mm512_castps_si512(v), _mm512_castps_si512(magic));
}

/* q and d of one group of n = 32, 64 or 256; narrowing to bytes truncates, as the scalar cast does. */
INLINE float quant_group(const float *x, unsigned n, int8_t *q) {
    __m512 v = _mm512_abs_ps(_mm512_loadu_ps(x));
    for (unsigned i = 16; i < n; i += 16) {
        v = _mm512_max_ps(v, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    }
    float a = max16(v);
    if (a < CANON_Q_MIN) {
        memset(q, 0, n);
        return 0.0f;
    }
    __m512 r = _mm512_set1_ps(127.0f / a);
    for (unsigned i = 0; i < n; i += 16) {
        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtepi32_epi8(quant16(x + i, r)));
    }
    return a / 127.0f;
}

/* Four (low, high) pairs of int16 added up: bl_xq's ps. */
INLINE uint32_t fold_pairs(__m128i v) {
    v = _mm_add_epi16(v, _mm_unpackhi_epi64(v, v));
    v = _mm_add_epi16(v, _mm_srli_epi64(v, 32));
    return (uint32_t)_mm_cvtsi128_si32(v);
}
INLINE int16_t pair_sum(uint32_t ps) {
    return (int16_t)((int16_t)(ps & 0xffffu) + (int16_t)(ps >> 16));
}
/* Sums of neighbours of 16 values, as int16. */
INLINE __m128i neighbours(const int8_t *q) {
    return _mm_maddubs_epi16(_mm_set1_epi8(1), load128(q));
}

static void quant32(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (size_t g = 0; g < k / 32; g++) {
        size_t at = row * o->ld_g + g;
        float d = quant_group(x + 32 * g, 32, q + 32 * g);
        o->ps[at] = fold_pairs(_mm_add_epi16(neighbours(q + 32 * g), neighbours(q + 32 * g + 16)));
        o->d[at] = d;
        o->qsum[at] = pair_sum(o->ps[at]);
        o->dq[at] = d * (float)o->qsum[at];
    }
    memset(q + k, 0, (64 - k % 64) % 64);
}

static void quant64(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (size_t g = 0; g < k / 64; g++) {
        size_t at = row * o->ld_g + g;
        float d = quant_group(x + 64 * g, 64, q + 64 * g);
        __m128i s = _mm_add_epi16(neighbours(q + 64 * g), neighbours(q + 64 * g + 16));
        s = _mm_add_epi16(s, neighbours(q + 64 * g + 32));
        s = _mm_add_epi16(s, neighbours(q + 64 * g + 48));
        o->d[at] = d;
        o->qsum[at] = pair_sum(fold_pairs(s));
        o->dq[at] = d * (float)o->qsum[at];
    }
}

static void quant256(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (size_t g = 0; g < k / 256; g++) {
        o->d[row * o->ld_g + g] = quant_group(x + 256 * g, 256, q + 256 * g);
    }
    for (size_t j = 0; j < k / 32; j++) {
        size_t at = row * o->ld_s + j;
        __m128i lo = neighbours(q + 32 * j), hi = neighbours(q + 32 * j + 16);
        o->ps16[2 * at] = fold_pairs(lo);
        o->ps16[2 * at + 1] = fold_pairs(hi);
        o->ps32[at] = fold_pairs(_mm_add_epi16(lo, hi));
        o->s16[2 * at] = pair_sum(o->ps16[2 * at]);
        o->s16[2 * at + 1] = pair_sum(o->ps16[2 * at + 1]);
        o->s32[at] = pair_sum(o->ps32[at]);
    }
}

/* ---- one row of a packed matrix as floats ---- */

typedef struct {
    __m512i q[2]; /* 32 values, offset taken off */
} row_chunk;

static uint32_t get4(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
/* Byte 4 * i + j of the result is byte j of v shifted right by shift * i. */
INLINE __m128i spread(uint32_t v, int shift) {
    __m128i x = _mm_set1_epi32((int32_t)v);
    return _mm_srlv_epi32(x, _mm_setr_epi32(0, shift, 2 * shift, 3 * shift));
}

/* Row r of a chunk: four bytes of each step. c is the chunk plus 4 * r. */
INLINE row_chunk row_of_chunk(bl_dtype t, const uint8_t *c) {
    __m128i lo, hi;
    int32_t offset = 0;
    if (t == BL_DTYPE_Q8_0) {
        int32_t s[8];
        for (unsigned i = 0; i < 8; i++) {
            s[i] = (int32_t)get4(c + 64 * i);
        }
        lo = load128(s);
        hi = load128(s + 4);
        return (row_chunk){{_mm512_cvtepi8_epi32(lo), _mm512_cvtepi8_epi32(hi)}};
    }
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i v = _mm_setr_epi32((int32_t)get4(c), (int32_t)get4(c + 64), (int32_t)get4(c + 128),
                               (int32_t)get4(c + 192));
    lo = _mm_and_si128(v, nibble);
    hi = _mm_and_si128(_mm_srli_epi16(v, 4), nibble);
    if (t == BL_DTYPE_Q4_0) {
        offset = 8;
    } else if (t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1 || t == BL_DTYPE_Q5_K) {
        const __m128i bit = _mm_set1_epi8(1);
        uint32_t p = get4(c + 256);
        lo = _mm_or_si128(lo, _mm_slli_epi16(_mm_and_si128(spread(p, 1), bit), 4));
        hi = _mm_or_si128(hi, _mm_slli_epi16(_mm_and_si128(spread(p >> 4, 1), bit), 4));
        offset = t == BL_DTYPE_Q5_0 ? 16 : 0;
    } else if (t == BL_DTYPE_Q6_K) {
        const __m128i bits = _mm_set1_epi8(3);
        lo = _mm_or_si128(lo, _mm_slli_epi16(_mm_and_si128(spread(get4(c + 256), 2), bits), 4));
        hi = _mm_or_si128(hi, _mm_slli_epi16(_mm_and_si128(spread(get4(c + 320), 2), bits), 4));
        offset = 32;
    }
    const __m512i off = _mm512_set1_epi32(offset);
    return (row_chunk){
        {_mm512_sub_epi32(_mm512_cvtepu8_epi32(lo), off), _mm512_sub_epi32(_mm512_cvtepu8_epi32(hi), off)}};
}

/* The 16-value halves' factors and the chunk's minimum, as bl_dequant_row rounds them. */
INLINE void row_scales(bl_dtype t, const uint8_t *scales, uint32_t g, uint32_t r, float d[2], float *m) {
    *m = 0.0f;
    if (t == BL_DTYPE_Q6_K) {
        const bl_pk_k6 *s = (const bl_pk_k6 *)(const void *)scales + g / 8;
        float f = _cvtsh_ss(s->d[r]);
        d[0] = f * (float)s->sc[g % 8 * 2][r];
        d[1] = f * (float)s->sc[g % 8 * 2 + 1][r];
        return;
    }
    if (t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) {
        const bl_pk_k45 *s = (const bl_pk_k45 *)(const void *)scales + g / 8;
        uint32_t j = g % 8;
        d[0] = d[1] = _cvtsh_ss(s->d[r]) * (float)s->sc[j][r];
        *m = _cvtsh_ss(s->dmin[r]) * (float)s->mn[j / 2][r][j & 1];
        return;
    }
    const uint16_t *s = (const uint16_t *)(const void *)scales + (size_t)g * (bl_pk_has_min(t) ? 32 : 16);
    d[0] = d[1] = _cvtsh_ss(s[r]);
    if (bl_pk_has_min(t)) {
        *m = _cvtsh_ss(s[BL_PK_ROWS + r]);
    }
}

INLINE void embed_quant(bl_dtype t, const bl_packed *w, uint32_t row, float scale, float *dst) {
    const uint8_t *blk = w->base + (size_t)(row / BL_PK_ROWS) * w->block_bytes;
    const uint32_t r = row % BL_PK_ROWS;
    const bool wide = bl_pk_is_wide(t);
    const __m512 sv = _mm512_set1_ps(scale);
    for (uint32_t g = 0; g < w->k / 32; g++) {
        row_chunk c = row_of_chunk(t, blk + w->data_off + bl_pk_chunk_bytes(t) * g + 4 * (size_t)r);
        float d[2], m;
        row_scales(t, blk, g, r, d, &m);
        UNROLL for (unsigned i = 0; i < 2; i++) {
            __m512 v = _mm512_mul_ps(_mm512_set1_ps(d[i]), _mm512_cvtepi32_ps(c.q[i]));
            if (bl_pk_has_min(t)) {
                v = _mm512_add_ps(v, _mm512_set1_ps(m));
            } else if (wide && t != BL_DTYPE_Q6_K) {
                v = _mm512_sub_ps(v, _mm512_set1_ps(m));
            }
            _mm512_storeu_ps(dst + 32 * (size_t)g + 16 * i, _mm512_mul_ps(sv, v));
        }
    }
}

static void embed_float(const bl_packed *w, uint32_t row, float scale, float *dst) {
    const uint8_t *p = w->base + (size_t)(row / BL_PK_ROWS) * w->block_bytes + w->data_off;
    const uint32_t r = row % BL_PK_ROWS;
    for (size_t k = 0; k < w->k; k++) {
        if (w->dtype == BL_DTYPE_F32) {
            dst[k] = scale * bl_bits_to_f32(get4(p + 4 * (BL_PK_ROWS * k + r)));
            continue;
        }
        uint16_t h;
        memcpy(&h, p + 2 * (BL_PK_ROWS * k + r), 2);
        dst[k] = scale * (w->dtype == BL_DTYPE_F16 ? _cvtsh_ss(h) : bl_bf16_to_f32(h));
    }
}

static void embed(const bl_packed *w, uint32_t row, float scale, float *dst) {
    if (w->dtype >= BL_DTYPE_AFFINE2) {
        bl_embed_ref(w, row, scale, dst); /* one row a token: tens of microseconds */
        return;
    }
    switch (w->dtype) {
#define CASE(t)                                                                                              \
    case t:                                                                                                  \
        embed_quant(t, w, row, scale, dst);                                                                  \
        break;
        CASE(BL_DTYPE_Q4_0)
        CASE(BL_DTYPE_Q4_1)
        CASE(BL_DTYPE_Q5_0)
        CASE(BL_DTYPE_Q5_1)
        CASE(BL_DTYPE_Q8_0)
        CASE(BL_DTYPE_Q4_K)
        CASE(BL_DTYPE_Q5_K)
        CASE(BL_DTYPE_Q6_K)
#undef CASE
    default:
        embed_float(w, row, scale, dst);
    }
}

/* ---- norms and element-wise ops ---- */

static void rmsnorm(const float *x, const float *w, const float *add, float *y, uint32_t n, float eps) {
    __m512 s[8];
    UNROLL for (unsigned j = 0; j < 8; j++) {
        s[j] = _mm512_setzero_ps();
    }
    uint32_t i = 0;
    for (; i + BL_N_LANES <= n; i += BL_N_LANES) {
        UNROLL for (unsigned j = 0; j < 8; j++) {
            __m512 v = _mm512_loadu_ps(x + i + 16 * j);
            s[j] = _mm512_fmadd_ps(v, v, s[j]);
        }
    }
    UNROLL for (unsigned j = 0; j < 8; j++) {
        if (i + 16 * j < n) {
            __mmask16 m = mask_first(n - i - 16 * j);
            __m512 v = _mm512_maskz_loadu_ps(m, x + i + 16 * j);
            s[j] = _mm512_mask3_fmadd_ps(v, v, s[j], m);
        }
    }
    for (unsigned h = 4; h > 0; h /= 2) {
        for (unsigned j = 0; j < h; j++) {
            s[j] = _mm512_add_ps(s[j], s[j + h]);
        }
    }
    __m512 r = _mm512_set1_ps(1.0f / sqrtf(fold16(s[0]) / (float)n + eps));
    for (i = 0; i < n; i += 16) {
        __mmask16 m = mask_first(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);
        if (w) {
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i));
        }
        if (add) {
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, add + i), v);
        }
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void add(const float *a, const float *b, float *y, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_first(n - i);
        __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

/* act(a) * b of sixteen elements; canon_glu_clamped for CLAMPED. */
INLINE __m512 glu16(__m512 a, __m512 b, bl_glu_act act, __m512 limit) {
    switch (act) {
    case BL_GLU_SILU:
        return _mm512_mul_ps(silu16(a), b);
    case BL_GLU_GELU_TANH:
        return _mm512_mul_ps(gelu16(a), b);
    case BL_GLU_SIGMOID:
        return _mm512_mul_ps(sigmoid16(a), b);
    case BL_GLU_CLAMPED:
        break;
    }
    /* min and max return the second operand where the first is not smaller (larger), as the scalar does */
    __m512 g = _mm512_min_ps(a, limit);
    __m512 u = _mm512_max_ps(_mm512_min_ps(b, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
    __m512 v = _mm512_mul_ps(g, sigmoid16(_mm512_mul_ps(_mm512_set1_ps(1.702f), g)));
    return _mm512_mul_ps(v, _mm512_add_ps(u, _mm512_set1_ps(1.0f)));
}

static void glu(const float *a, const float *b, float *y, size_t n, bl_glu_act act, float limit) {
    const __m512 lim = _mm512_set1_ps(limit);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_first(n - i);
        _mm512_mask_storeu_ps(
            y + i, m, glu16(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i), act, lim));
    }
}

static void axpy(float w, const float *x, float *y, size_t n) {
    const __m512 ww = _mm512_set1_ps(w);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_first(n - i);
        __m512 v = _mm512_fmadd_ps(ww, _mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void softcap(float *x, size_t n, float cap) {
    const __m512 c = _mm512_set1_ps(cap);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_first(n - i);
        __m512 v = tanh16(_mm512_div_ps(_mm512_maskz_loadu_ps(m, x + i), c));
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(c, v));
    }
}

/* fma(a, c, -(b * s)): vfmsub rounds a * c - (b * s) once, which is the same. */
static void rope(float *x, const float *cs, uint32_t half) {
    for (size_t i = 0; i < half; i += 16) {
        __mmask16 m = mask_first(half - i);
        __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + half + i);
        __m512 c = _mm512_maskz_loadu_ps(m, cs + i), s = _mm512_maskz_loadu_ps(m, cs + half + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + half + i, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

/* bl_f32_to_bf16 */
INLINE __m256i to_bf16(__m512 v) {
    __m512i u = _mm512_castps_si512(v), hi = _mm512_srli_epi32(u, 16);
    __m512i up = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(hi, _mm512_set1_epi32(1)));
    up = _mm512_srli_epi32(_mm512_add_epi32(u, up), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, hi, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(up);
}

static void kv_store(const float *k, const float *v, uint32_t head_dim, void *kt, void *vt, uint32_t col,
                     bool f32) {
    if (f32) {
        memcpy((float *)vt + (size_t)col * head_dim, v, head_dim * sizeof(float));
        for (size_t d = 0; d < head_dim; d++) {
            ((float *)kt)[d * BL_KV_TILE + col] = k[d];
        }
        return;
    }
    uint16_t *to = (uint16_t *)kt + col, *row = (uint16_t *)vt + (size_t)col * head_dim;
    for (size_t d = 0; d < head_dim; d += 16) {
        __mmask16 m = mask_first(head_dim - d);
        uint16_t kb[16];
        _mm256_mask_storeu_epi16(row + d, m, to_bf16(_mm512_maskz_loadu_ps(m, v + d)));
        _mm256_storeu_si256((__m256i *)(void *)kb, to_bf16(_mm512_maskz_loadu_ps(m, k + d)));
        for (size_t i = 0; i < BL_MIN(16u, head_dim - d); i++) {
            to[(d + i) * BL_KV_TILE] = kb[i];
        }
    }
}

/* ---- probes ---- */

static uint64_t probe_read(const uint8_t *p, size_t n) {
    __m512i s[4];
    UNROLL for (unsigned j = 0; j < 4; j++) {
        s[j] = _mm512_setzero_si512();
    }
    for (size_t i = 0; i + 256 <= n; i += 256) {
        UNROLL for (unsigned j = 0; j < 4; j++) {
            s[j] = _mm512_add_epi64(s[j], load512(p + i + 64 * j));
        }
    }
    s[0] = _mm512_add_epi64(_mm512_add_epi64(s[0], s[1]), _mm512_add_epi64(s[2], s[3]));
    uint64_t v[8], sum = 0;
    _mm512_storeu_si512(v, s[0]);
    for (unsigned j = 0; j < 8; j++) {
        sum += v[j];
    }
    return sum;
}

/* vpmaddubsw and the addition that must follow it; 16-bit sums wrap, which is as good here. */
static uint64_t probe_int8(uint64_t n_iter, uint64_t *sink) {
    const __m512i one = _mm512_set1_epi8(1);
    __m512i s[12], w[12], x = _mm512_set1_epi32((int32_t)n_iter);
    UNROLL for (unsigned j = 0; j < 12; j++) {
        s[j] = _mm512_setzero_si512();
        w[j] = _mm512_set1_epi8((char)(j + 1));
    }
    for (uint64_t i = 0; i < n_iter; i++) {
        UNROLL for (unsigned j = 0; j < 12; j++) {
            s[j] = _mm512_add_epi16(s[j], _mm512_maddubs_epi16(w[j], x));
        }
        x = _mm512_add_epi8(x, one); /* so that no product can be taken out of the loop */
    }
    for (unsigned j = 1; j < 12; j++) {
        s[0] = _mm512_add_epi16(s[0], s[j]);
    }
    *sink = (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(s[0]));
    return 12 * 64 * n_iter;
}

void bl_kernels_avx512_vec(bl_kernels *t) {
    t->quant32 = quant32;
    t->quant64 = quant64;
    t->quant256 = quant256;
    t->embed = embed;
    t->rmsnorm = rmsnorm;
    t->add = add;
    t->glu = glu;
    t->axpy = axpy;
    t->softcap = softcap;
    t->rope = rope;
    t->kv_store = kv_store;
    t->probe_read = probe_read;
    t->probe_int8 = probe_int8;
}

void bl_kernels_avx512(bl_kernels *t) {
    bl_kernels_avx512_vec(t);
    bl_kernels_avx512_float(t);
    bl_kernels_avx512_attn(t);
    bl_kernels_avx512_recur(t);
    bl_kernels_avx512_quant(t);
    t->flags |= BL_CPU_AVX512;
}
