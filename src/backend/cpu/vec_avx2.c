/* Norms, element-wise ops, quantisation of activations and probes, AVX2. Rows of any length: whole vectors,
 * then the scalar definition. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/vec_avx2.h"

#define UNROLL _Pragma("GCC unroll 16")

static __m256i load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* ---- quantisation --------------------------------------------------------------------------- */

/* 32 values by r to int8 at q. */
V8 __m256i quant_32_values(const float *x, __m256 r, int8_t *q) {
    __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), r));
    __m256i i1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), r));
    __m256i i2 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), r));
    __m256i i3 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), r));
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(i0, i1), _mm256_packs_epi32(i2, i3));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, b);
    return b;
}
V8 __m256 abs_max_32(const float *x) {
    __m256 a = _mm256_max_ps(v8_abs(_mm256_loadu_ps(x)), v8_abs(_mm256_loadu_ps(x + 8)));
    __m256 b = _mm256_max_ps(v8_abs(_mm256_loadu_ps(x + 16)), v8_abs(_mm256_loadu_ps(x + 24)));
    return _mm256_max_ps(a, b);
}
/* Pair sums of 16 neighbours in each half: bytes to int16 pairs, folded to one (low, high) pair per half. */
V8 __m256i pair_sums(__m256i b) {
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), b);
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
    return _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
}
V8 int32_t sum_pair(uint32_t ps) {
    return (int16_t)(ps & 0xffffu) + (int16_t)(ps >> 16);
}

static void quant32(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 32; g++, x += 32) {
        size_t at = row * o->ld_g + g;
        float a = v8_max(abs_max_32(x));
        if (a < CANON_Q_MIN) {
            _mm256_storeu_si256((__m256i *)(void *)(q + 32 * g), _mm256_setzero_si256());
            o->d[at] = 0.0f;
            o->qsum[at] = 0;
            o->dq[at] = 0.0f;
            o->ps[at] = 0;
            continue;
        }
        float d = a / 127.0f;
        __m256i s = pair_sums(quant_32_values(x, _mm256_set1_ps(127.0f / a), q + 32 * g));
        __m128i t = _mm_add_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        uint32_t ps = (uint32_t)_mm_cvtsi128_si32(t);
        int32_t qsum = sum_pair(ps);
        o->d[at] = d;
        o->qsum[at] = qsum;
        o->dq[at] = d * (float)qsum;
        o->ps[at] = ps;
    }
    memset(q + k, 0, (64 - k % 64) % 64);
}

static void quant64(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 64; g++, x += 64) {
        size_t at = row * o->ld_g + g;
        float a = v8_max(_mm256_max_ps(abs_max_32(x), abs_max_32(x + 32)));
        bool zero = a < CANON_Q_MIN;
        float d = zero ? 0.0f : a / 127.0f;
        /* r = 0 turns every value into 0 */
        __m256 r = _mm256_set1_ps(zero ? 0.0f : 127.0f / a);
        __m256i s = pair_sums(quant_32_values(x, r, q + 64 * g));
        s = _mm256_add_epi16(s, pair_sums(quant_32_values(x + 32, r, q + 64 * g + 32)));
        __m128i t = _mm_add_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        int32_t qsum = sum_pair((uint32_t)_mm_cvtsi128_si32(t));
        o->d[at] = d;
        o->qsum[at] = qsum;
        o->dq[at] = d * (float)qsum;
    }
}

static void quant256(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    int8_t *q = o->q + row * o->ld_q;
    for (uint32_t g = 0; g < k / 256; g++, x += 256) {
        __m256 m = abs_max_32(x);
        for (uint32_t j = 1; j < 8; j++) {
            m = _mm256_max_ps(m, abs_max_32(x + 32 * j));
        }
        float a = v8_max(m);
        bool zero = a < CANON_Q_MIN;
        o->d[row * o->ld_g + g] = zero ? 0.0f : a / 127.0f;
        /* r = 0 turns every value into 0 */
        __m256 r = _mm256_set1_ps(zero ? 0.0f : 127.0f / a);
        for (uint32_t j = 0; j < 8; j++) {
            size_t at = row * o->ld_s + 8 * (size_t)g + j;
            __m256i s = pair_sums(quant_32_values(x + 32 * j, r, q + 256 * g + 32 * j));
            uint32_t lo = (uint32_t)_mm256_extract_epi32(s, 0), hi = (uint32_t)_mm256_extract_epi32(s, 4);
            __m128i t = _mm_add_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
            o->ps16[2 * at] = lo;
            o->ps16[2 * at + 1] = hi;
            o->ps32[at] = (uint32_t)_mm_cvtsi128_si32(t);
            o->s16[2 * at] = (int16_t)sum_pair(lo);
            o->s16[2 * at + 1] = (int16_t)sum_pair(hi);
            o->s32[at] = (int16_t)(sum_pair(lo) + sum_pair(hi));
        }
    }
}

/* ---- norms and element-wise ops ------------------------------------------------------------- */

/* Sum of squares in 128 lanes, folded. Half of the lanes at a time, so that they stay in registers. */
static float sum_squares(const float *x, uint32_t n) {
    __m256 half[2][8];
    for (uint32_t p = 0; p < 2; p++) {
        __m256 s[8];
        for (uint32_t j = 0; j < 8; j++) {
            s[j] = _mm256_setzero_ps();
        }
        uint32_t i = 64 * p;
        for (; i + 64 <= n; i += BL_N_LANES) {
            for (uint32_t j = 0; j < 8; j++) {
                __m256 v = _mm256_loadu_ps(x + i + 8 * j);
                s[j] = _mm256_fmadd_ps(v, v, s[j]);
            }
        }
        for (uint32_t j = 0; j < 8 && i + 8 * j < n;
             j++) { /* the last, partial run of lanes; missing ones add +0 */
            float t[8] = {0};
            memcpy(t, x + i + 8 * j, (n - i - 8 * j < 8 ? n - i - 8 * j : 8) * sizeof(float));
            __m256 v = _mm256_loadu_ps(t);
            s[j] = _mm256_fmadd_ps(v, v, s[j]);
        }
        memcpy(half[p], s, sizeof(s));
    }
    for (uint32_t w = 8; w > 0; w /= 2) { /* fold 64, then 32, 16 and 8 lanes */
        for (uint32_t j = 0; j < w; j++) {
            half[0][j] = _mm256_add_ps(half[0][j], w == 8 ? half[1][j] : half[0][j + w]);
        }
    }
    return v8_fold(half[0][0]);
}

static void rmsnorm(const float *x, const float *w, const float *add, float *y, uint32_t n, float eps) {
    float r = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    __m256 rv = _mm256_set1_ps(r);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), rv);
        v = w ? _mm256_mul_ps(v, _mm256_loadu_ps(w + i)) : v;
        _mm256_storeu_ps(y + i, add ? _mm256_add_ps(_mm256_loadu_ps(add + i), v) : v);
    }
    for (; i < n; i++) {
        float v = x[i] * r;
        v = w ? v * w[i] : v;
        y[i] = add ? add[i] + v : v;
    }
}

static void add(const float *a, const float *b, float *y, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    }
    for (; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}

/* act(a) * b of eight elements; canon_glu_clamped for CLAMPED. */
V8 __m256 glu8(__m256 a, __m256 b, bl_glu_act act, __m256 limit) {
    switch (act) {
    case BL_GLU_SILU:
        return _mm256_mul_ps(v8_silu(a), b);
    case BL_GLU_GELU_TANH:
        return _mm256_mul_ps(v8_gelu_tanh(a), b);
    case BL_GLU_SIGMOID:
        return _mm256_mul_ps(v8_sigmoid(a), b);
    case BL_GLU_CLAMPED:
        break;
    }
    /* min and max return the second operand where the first is not smaller (larger), as the scalar does */
    __m256 g = _mm256_min_ps(a, limit);
    __m256 u = _mm256_max_ps(_mm256_min_ps(b, limit), _mm256_sub_ps(_mm256_setzero_ps(), limit));
    __m256 v = _mm256_mul_ps(g, v8_sigmoid(_mm256_mul_ps(_mm256_set1_ps(1.702f), g)));
    return _mm256_mul_ps(v, _mm256_add_ps(u, _mm256_set1_ps(1.0f)));
}

static void glu(const float *a, const float *b, float *y, size_t n, bl_glu_act act, float limit) {
    const __m256 lim = _mm256_set1_ps(limit);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, glu8(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), act, lim));
    }
    if (i < n) {
        float ta[8] = {0}, tb[8] = {0};
        memcpy(ta, a + i, (n - i) * sizeof(float));
        memcpy(tb, b + i, (n - i) * sizeof(float));
        _mm256_storeu_ps(ta, glu8(_mm256_loadu_ps(ta), _mm256_loadu_ps(tb), act, lim));
        memcpy(y + i, ta, (n - i) * sizeof(float));
    }
}

static void axpy(float w, const float *x, float *y, size_t n) {
    const __m256 ww = _mm256_set1_ps(w);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(ww, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    }
    for (; i < n; i++) {
        y[i] = fmaf(w, x[i], y[i]);
    }
}

static void softcap(float *x, size_t n, float cap) {
    __m256 c = _mm256_set1_ps(cap);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, _mm256_mul_ps(c, v8_tanh(_mm256_div_ps(_mm256_loadu_ps(x + i), c))));
    }
    for (; i < n; i++) {
        x[i] = canon_softcap(x[i], cap);
    }
}

static void rope(float *x, const float *cs, uint32_t half) {
    uint32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
        __m256 c = _mm256_loadu_ps(cs + i), s = _mm256_loadu_ps(cs + i + half);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, cs[i], -(b * cs[i + half]));
        x[i + half] = fmaf(b, cs[i], a * cs[i + half]);
    }
}

static void kv_store(const float *k, const float *v, uint32_t head_dim, void *kt, void *vt, uint32_t col,
                     bool f32) {
    if (f32) {
        for (uint32_t d = 0; d < head_dim; d++) {
            ((float *)kt)[(size_t)d * BL_KV_TILE + col] = k[d];
        }
        memcpy((float *)vt + (size_t)col * head_dim, v, head_dim * sizeof(float));
        return;
    }
    uint16_t *kc = (uint16_t *)kt + col, *vr = (uint16_t *)vt + (size_t)col * head_dim;
    uint32_t d = 0;
    for (; d + 16 <= head_dim; d += 16) {
        __m256i p = _mm256_packus_epi32(v8_bf16(_mm256_loadu_ps(v + d)), v8_bf16(_mm256_loadu_ps(v + d + 8)));
        _mm256_storeu_si256((__m256i *)(void *)(vr + d), _mm256_permute4x64_epi64(p, 0xd8));
    }
    for (; d < head_dim; d++) {
        vr[d] = bl_f32_to_bf16(v[d]);
    }
    for (d = 0; d < head_dim; d++) {
        kc[(size_t)d * BL_KV_TILE] = bl_f32_to_bf16(k[d]);
    }
}

/* ---- probes --------------------------------------------------------------------------------- */

static uint64_t probe_read(const uint8_t *p, size_t n) {
    __m256i s[8];
    for (uint32_t j = 0; j < 8; j++) {
        s[j] = _mm256_setzero_si256();
    }
    for (size_t i = 0; i + 256 <= n; i += 256) {
        for (uint32_t j = 0; j < 8; j++) {
            s[j] = _mm256_add_epi64(s[j], load(p + i + 32 * j));
        }
    }
    for (uint32_t j = 1; j < 8; j++) {
        s[0] = _mm256_add_epi64(s[0], s[j]);
    }
    uint64_t v[4];
    memcpy(v, &s[0], sizeof(v));
    return v[0] + v[1] + v[2] + v[3];
}

/* vpmaddubsw and the addition that every use of it needs, in eight independent chains: 32
 * multiply-accumulates a pair. */
static uint64_t probe_int8(uint64_t n_iter, uint64_t *sink) {
    __m256i s[8], w = _mm256_set1_epi8((char)(n_iter & 15)), x = _mm256_set1_epi8((char)(n_iter >> 4 & 127));
    UNROLL for (uint32_t j = 0; j < 8; j++) {
        s[j] = _mm256_set1_epi16((short)j);
    }
    for (uint64_t i = 0; i < n_iter; i++) {
        UNROLL for (uint32_t j = 0; j < 8; j++) {
            __asm__("" : "+x"(x)); /* so that it is not the same product eight times */
            s[j] = _mm256_add_epi16(s[j], _mm256_maddubs_epi16(w, x));
            __asm__("" : "+x"(s[j]));
        }
    }
    UNROLL for (uint32_t j = 1; j < 8; j++) {
        s[0] = _mm256_xor_si256(s[0], s[j]);
    }
    uint64_t v[4];
    memcpy(v, &s[0], sizeof(v));
    *sink = v[0] ^ v[1] ^ v[2] ^ v[3];
    return n_iter * 8 * 32;
}

void bl_kernels_avx2(bl_kernels *t) {
    t->flags |= BL_CPU_AVX2;
    t->quant32 = quant32;
    t->quant64 = quant64;
    t->quant256 = quant256;
    t->rmsnorm = rmsnorm;
    t->add = add;
    t->glu = glu;
    t->axpy = axpy;
    t->softcap = softcap;
    t->rope = rope;
    t->kv_store = kv_store;
    t->probe_read = probe_read;
    t->probe_int8 = probe_int8;
    bl_kernels_avx2_float(t);
    bl_kernels_avx2_quant(t);
    bl_kernels_avx2_attn(t);
    bl_kernels_avx2_recur(t);
}
