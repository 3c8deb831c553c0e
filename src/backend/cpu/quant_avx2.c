/* Matrix products of quantised weights with int8 activations, AVX2.
 *
 * One vector lane owns one output row; x is broadcast four bytes at a time. vpmaddubsw multiplies unsigned
 * weight bits with signed x and adds pairs into 16 bits. Two facts keep that exact and cheap:
 *  - a single vpmaddubsw must not saturate: 15, 31, 63 * 127 * 2 = 16002 at most;
 *  - its results are added modulo 2^16, so a sum is right whenever its *final* value fits. Taking the
 * format's offset off (the accumulator starts at -offset * the pair sums of x) makes the weights signed, and
 * then: 4 bits, 8 steps: 8 * 2 * 8 * 127 = 16256 (without offset 15 * 2 * 8 * 127 = 30480); 5 bits with
 * offset 16, 8 steps: 16 * 2 * 8 * 127 = 32512; 5 bits without, 4 steps: 31 * 2 * 4 * 127 = 31496; 6 bits
 * with offset 32, 4 steps: 32512. All are <= 32767. Q8_0 is |w| times x with w's sign (|-128| is 128 as an
 * unsigned byte, x is never -128), 128 * 127 * 2 = 32512 a pair, so it is widened at once.
 * MLX's affine types have no offset in their bits: 3 bits, 8 steps: 7 * 2 * 8 * 127 = 14224; 4 bits: 30480; 5
 * bits, 4 steps: 31496; 6 bits, 2 steps: 63 * 2 * 2 * 127 = 32004; 8 bits are q - 128, then as Q8_0. FP4
 * codes are looked up as twice their value + 12, and 12 times the pair sums of x come off: 12 * 2 * 8 * 127 =
 * 24384.
 *
 * Few rows of x (decode): straight from the packed bytes, which are streamed once. Many rows: a strip of 512
 * k of one block is unpacked into a tile that stays in L1 while all rows pass.
 */
#include "backend/cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

#include "base/base.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Rows of x from which unpacking into a tile pays. */
#define TILE_ROWS 4u
#define STEPS     (BL_STRIP / 4)
/* Unpacked at once: WIDE of k of one block, all of it for most matrices. ROWS of x pass together. */
#define WIDE 2048u
#define ROWS 32u
/* Bytes that the matrix-vector product asks for in advance: 80 to 88% of plain reading on a Zen 3 core,
 * against 60% without and less with more distance. Prefetching past the end of a matrix is harmless. */
#define AHEAD 1024

typedef struct {
    _Alignas(64) uint8_t w[STEPS][64];       /* weight bits; Q8_0: |w|; AFFINE8: low nibbles */
    _Alignas(64) uint8_t raw[STEPS][64];     /* Q8_0: w; AFFINE8: high nibbles */
    _Alignas(64) float d[16][16], m[16][16]; /* per group; NVFP4: of the two halves */
    _Alignas(
        64) int16_t sc[32][32]; /* sub-scales (sc, sc) per row, as vpmaddwd takes them; per 32 (Q4_K) or 16 */
    _Alignas(64) int16_t mn[8][32]; /* pairs of minima */
} tile;

/* Keeps a value in a register here. Without it the compiler re-associates the integer additions of a whole
 * chunk and spills every product. */
#define KEEP(v) __asm__("" : "+x"(v))

INLINE __m256i load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
INLINE __m256 load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m256i bcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
/* Eight bytes, each twice, widened to int16: (sc, sc) per row. */
INLINE __m256i dup_sc(const void *p, bool is_signed) {
    __m128i v = _mm_loadl_epi64((const __m128i *)p);
    v = _mm_unpacklo_epi8(v, v);
    return is_signed ? _mm256_cvtepi8_epi16(v) : _mm256_cvtepu8_epi16(v);
}
INLINE __m256i pair_mn(const void *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}
INLINE bool is_5bit(bl_dtype t) {
    return t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1 || t == BL_DTYPE_Q5_K || t == BL_DTYPE_AFFINE5;
}
INLINE bool is_fp4(bl_dtype t) {
    return t == BL_DTYPE_MXFP4 || t == BL_DTYPE_NVFP4;
}
INLINE bool is_8bit(bl_dtype t) {
    return t == BL_DTYPE_Q8_0 || t == BL_DTYPE_AFFINE8;
}
/* log2 of what is taken off the bits to stay in range and comes back in 32 bits, 0: nothing. */
INLINE int give_back(bl_dtype t) {
    return t == BL_DTYPE_Q5_1 ? 4 : t == BL_DTYPE_AFFINE8 ? 7 : 0;
}
/* log2 of the offset that the accumulators start with, 0: none. */
INLINE int offset_shift(bl_dtype t) {
    return t == BL_DTYPE_Q4_0 ? 3 : t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1 ? 4 : t == BL_DTYPE_Q6_K ? 5 : 0;
}
/* Steps whose products one 16-bit accumulator holds: of a K quant a sub-block of 32, or half of it; of NVFP4
 * half a group, which has a scale of its own. */
INLINE unsigned acc_steps(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_Q5_K:
    case BL_DTYPE_Q6_K:
    case BL_DTYPE_AFFINE5:
    case BL_DTYPE_NVFP4:
        return 4;
    case BL_DTYPE_AFFINE6:
        return 2;
    default:
        return 8;
    }
}

/* What an accumulator starts with: minus the offset times the pair sums. */
INLINE __m256i start(int shift, const uint32_t *ps) {
    return shift ? _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(bcast4(ps), shift))
                 : _mm256_setzero_si256();
}
/* The same for group `at` of 32 of x, or with NVFP4 for the 16 at q. */
INLINE __m256i start_group(bl_dtype t, const bl_xq *x, size_t at, const int8_t *q) {
    if (t == BL_DTYPE_MXFP4) {
        return _mm256_mullo_epi16(bcast4(x->ps + at), _mm256_set1_epi16(-12));
    }
    if (t == BL_DTYPE_NVFP4) {
        __m128i s = _mm_loadu_si128((const __m128i *)(const void *)q);
        s = _mm_maddubs_epi16(_mm_set1_epi8(12), s);
        s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xb1));
        return _mm256_broadcastsi128_si256(_mm_sub_epi16(_mm_setzero_si128(), s));
    }
    return offset_shift(t) ? start(offset_shift(t), x->ps + at) : _mm256_setzero_si256();
}

/* ---- scales --------------------------------------------------------------------------------- */

/* Eight of the 16 scales or biases at p, of an affine type. */
INLINE __m256 load_affine(bl_dtype scale_dtype, const uint8_t *p, unsigned h) {
    if (scale_dtype == BL_DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)p + 8 * h);
    }
    if (scale_dtype == BL_DTYPE_F16) {
        return load_f16((const uint16_t *)(const void *)p + 8 * h);
    }
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * h));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
/* Half of eight E8M0 scales: exponent 0 is a denormal. */
INLINE __m256 load_e8m0_half(const uint8_t *p) {
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    e = _mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(0.5f));
}
/* Half of eight E4M3 scales times g. As f16 bits E4M3 is 2^-8 of its value. */
INLINE __m256 load_e4m3_half(const uint8_t *p, float g) {
    __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8);
    v = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x7f)), 7), sign);
    __m256 f = _mm256_mul_ps(_mm256_cvtph_ps(v), _mm256_set1_ps(256.0f));
    return _mm256_mul_ps(_mm256_mul_ps(f, _mm256_set1_ps(g)), _mm256_set1_ps(0.5f));
}
/* Scales, and offsets or the second half's scales, of group g (of G) for half h of the lanes. sb is
 * bl_pk_scale_bytes. */
INLINE void load_scales(bl_dtype t, unsigned G, const bl_packed *w, const uint8_t *blk, size_t sb, uint32_t g,
                        unsigned h, __m256 *d, __m256 *m) {
    if (bl_dtype_is_affine(t)) {
        const uint8_t *p = blk + sb * (G == 64 && w->group == 128 ? g / 2 : g);
        *d = load_affine(w->scale_dtype, p, h);
        *m = load_affine(w->scale_dtype, p + sb / 2, h);
    } else if (t == BL_DTYPE_MXFP4) {
        *d = *m = load_e8m0_half(blk + (size_t)16 * g + 8 * h);
    } else if (t == BL_DTYPE_NVFP4) {
        *d = load_e4m3_half(blk + (size_t)32 * g + 8 * h, w->global_scale);
        *m = load_e4m3_half(blk + (size_t)32 * g + 16 + 8 * h, w->global_scale);
    } else {
        const uint16_t *sc = (const uint16_t *)(const void *)(blk + sb * g);
        *d = load_f16(sc + 8 * h);
        *m = bl_pk_has_min(t) ? load_f16(sc + 16 + 8 * h) : *d;
    }
}

/* ---- bits ----------------------------------------------------------------------------------- */

/* Weight bits of steps v and v + 4, half h of the lanes. */
INLINE void nibbles(__m256i b, __m256i *lo, __m256i *hi) {
    const __m256i mask = _mm256_set1_epi8(15);
    *lo = _mm256_and_si256(b, mask);
    *hi = _mm256_and_si256(_mm256_srli_epi16(b, 4), mask);
}
INLINE void unpack2(bl_dtype t, const uint8_t *c, unsigned v, unsigned h, __m256i *lo, __m256i *hi) {
    if (t == BL_DTYPE_AFFINE2 || t == BL_DTYPE_AFFINE3) {
        const __m256i mask = _mm256_set1_epi8(3), bit = _mm256_set1_epi8(4);
        *lo = _mm256_and_si256(_mm256_srli_epi16(load(c + 32 * h), 2 * (int)v), mask);
        *hi = _mm256_and_si256(_mm256_srli_epi16(load(c + 64 + 32 * h), 2 * (int)v), mask);
        if (t == BL_DTYPE_AFFINE3) {
            __m256i p = load(c + 128 + 32 * h);
            __m256i l = v <= 2 ? _mm256_slli_epi16(p, 2 - (int)v) : _mm256_srli_epi16(p, (int)v - 2);
            *lo = _mm256_or_si256(*lo, _mm256_and_si256(l, bit));
            *hi = _mm256_or_si256(*hi, _mm256_and_si256(_mm256_srli_epi16(p, (int)v + 2), bit));
        }
        return;
    }
    nibbles(load(c + 64 * v + 32 * h), lo, hi);
    if (is_fp4(t)) {
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        *lo = _mm256_shuffle_epi8(table, *lo);
        *hi = _mm256_shuffle_epi8(table, *hi);
        return;
    }
    if (is_5bit(t)) {
        const __m256i bit = _mm256_set1_epi8(16);
        __m256i p = load(c + 256 + 32 * h);
        *lo = _mm256_or_si256(*lo, _mm256_and_si256(_mm256_slli_epi16(p, 4 - (int)v), bit));
        *hi = _mm256_or_si256(*hi, _mm256_and_si256(_mm256_srli_epi16(p, (int)v), bit));
    } else if (t == BL_DTYPE_Q6_K || t == BL_DTYPE_AFFINE6) {
        const __m256i bits = _mm256_set1_epi8(48);
        __m256i p = load(c + 256 + 32 * h), q = load(c + 320 + 32 * h);
        int sh = 4 - 2 * (int)v;
        p = sh >= 0 ? _mm256_slli_epi16(p, sh) : _mm256_srli_epi16(p, -sh);
        q = sh >= 0 ? _mm256_slli_epi16(q, sh) : _mm256_srli_epi16(q, -sh);
        *lo = _mm256_or_si256(*lo, _mm256_and_si256(p, bits));
        *hi = _mm256_or_si256(*hi, _mm256_and_si256(q, bits));
    }
}
INLINE void store_y(const bl_mm_args *a, uint32_t b, size_t row, uint32_t k0, unsigned h, __m256 p) {
    float *y = a->y + row * a->ldy + (size_t)b * BL_PK_ROWS + 8 * h;
    _mm256_storeu_ps(y, k0 ? _mm256_add_ps(_mm256_loadu_ps(y), p) : p);
}
static void add_bias(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1) {
    uint32_t end = BL_MIN(block1 * BL_PK_ROWS, a->w->n_out);
    for (size_t row = row0; a->bias && row < row1; row++) {
        for (size_t i = (size_t)block0 * BL_PK_ROWS; i < end; i++) {
            a->y[row * a->ldy + i] += a->bias[i];
        }
    }
}

/* ---- few rows: straight from the packed bytes ----------------------------------------------- */

INLINE void ask_ahead(bl_dtype t, const uint8_t *chunk) {
    UNROLL for (unsigned i = 0; i < bl_pk_chunk_bytes(t); i += 64) {
        _mm_prefetch((const char *)chunk + AHEAD + i, _MM_HINT_T0);
    }
}

/* isum[h] (+)= products of one chunk (32 k) with one row of x; NVFP4: of its halves in isum[h] and isum[2 +
 * h]. `add` when isum holds a sum already. */
INLINE void chunk_dot(bl_dtype t, const uint8_t *c, const int8_t *q, const bl_xq *x, size_t at, bool add,
                      __m256i isum[4]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const unsigned n = acc_steps(t);
    __m256i lo, hi;
    ask_ahead(t, c);
    if (!add) {
        isum[0] = isum[1] = isum[2] = isum[3] = _mm256_setzero_si256();
    }
    if (is_8bit(t)) {
        UNROLL for (unsigned s = 0; s < 8; s++) {
            __m256i xs = bcast4(q + 4 * s);
            UNROLL for (unsigned h = 0; h < 2; h++) {
                __m256i w = load(c + 64 * s + 32 * h);
                __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(xs, w));
                isum[h] = _mm256_add_epi32(isum[h], _mm256_madd_epi16(p, ones));
                KEEP(isum[h]);
            }
        }
        return;
    }
    __m256i acc[2][2]; /* of steps 0-3 (or all) and 4-7 */
    acc[0][0] = acc[0][1] = start_group(t, x, at, q);
    acc[1][0] = acc[1][1] = t == BL_DTYPE_NVFP4 ? start_group(t, x, at, q + 16) : _mm256_setzero_si256();
    UNROLL for (unsigned v = 0; v < 4; v++) {
        __m256i x0 = bcast4(q + 4 * v), x1 = bcast4(q + 16 + 4 * v);
        UNROLL for (unsigned h = 0; h < 2; h++) {
            unpack2(t, c, v, h, &lo, &hi);
            __m256i *a1 = n == 8 ? acc[0] : acc[1];
            acc[0][h] = _mm256_add_epi16(acc[0][h], _mm256_maddubs_epi16(lo, x0));
            KEEP(acc[0][h]);
            a1[h] = _mm256_add_epi16(a1[h], _mm256_maddubs_epi16(hi, x1));
            KEEP(a1[h]);
            if (v == 3 || (n == 2 && v == 1)) {
                unsigned second = t == BL_DTYPE_NVFP4 ? 2 + h : h;
                isum[h] = _mm256_add_epi32(isum[h], _mm256_madd_epi16(acc[0][h], ones));
                if (n < 8) {
                    isum[second] = _mm256_add_epi32(isum[second], _mm256_madd_epi16(acc[1][h], ones));
                }
                acc[0][h] = acc[1][h] = _mm256_setzero_si256();
            }
        }
    }
}

/* One row of x with the groups of G = 32 or 64 of a block. */
INLINE void vec_small(bl_dtype t, unsigned G, const bl_mm_args *a, uint32_t b, size_t row) {
    const bl_packed *w = a->w;
    const uint8_t *blk = w->base + (size_t)b * w->block_bytes;
    const bl_xq *x = a->xq;
    const size_t cb = bl_pk_chunk_bytes(t), sb = bl_pk_scale_bytes(w);
    for (uint32_t k0 = 0; k0 < w->k; k0 += BL_STRIP) {
        uint32_t g1 = BL_MIN(k0 + BL_STRIP, w->k) / G;
        __m256 p[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t g = k0 / G; g < g1; g++) {
            size_t at = row * x->ld_g + g;
            const uint8_t *c = blk + w->data_off + cb * (G / 32) * g;
            const int8_t *q = x->q + row * x->ld_q + (size_t)G * g;
            __m256i isum[4];
            chunk_dot(t, c, q, x, at, false, isum);
            if (G == 64) {
                chunk_dot(t, c + cb, q + 32, x, at, true, isum);
            }
            __m256 d = _mm256_broadcast_ss(x->d + at);
            UNROLL for (unsigned h = 0; h < 2; h++) {
                __m256 dw, mw;
                load_scales(t, G, w, blk, sb, g, h, &dw, &mw);
                if (give_back(t)) {
                    isum[h] =
                        _mm256_add_epi32(isum[h], _mm256_slli_epi32(bcast4(x->qsum + at), give_back(t)));
                }
                p[h] = _mm256_fmadd_ps(_mm256_mul_ps(dw, d), _mm256_cvtepi32_ps(isum[h]), p[h]);
                if (t == BL_DTYPE_NVFP4) {
                    p[h] = _mm256_fmadd_ps(_mm256_mul_ps(mw, d), _mm256_cvtepi32_ps(isum[2 + h]), p[h]);
                }
                if (bl_pk_has_min(t)) {
                    p[h] = _mm256_fmadd_ps(mw, _mm256_broadcast_ss(x->dq + at), p[h]);
                }
            }
        }
        store_y(a, b, row, k0, 0, p[0]);
        store_y(a, b, row, k0, 1, p[1]);
    }
}

/* isum of one group of 256 with one row of x. */
INLINE void super_dot(bl_dtype t, const uint8_t *scales, const uint8_t *c, const int8_t *q,
                      const uint32_t *ps16, __m256i isum[2]) {
    isum[0] = isum[1] = _mm256_setzero_si256();
    for (uint32_t j = 0; j < 8; j++, c += bl_pk_chunk_bytes(t), q += 32, ps16 += 2) {
        ask_ahead(t, c);
        __m256i a0[2], a1[2], lo, hi; /* steps 0-3 and 4-7: the halves of the sub-block */
        a0[0] = a0[1] = start(offset_shift(t), ps16);
        a1[0] = a1[1] = start(offset_shift(t), ps16 + 1);
        UNROLL for (unsigned v = 0; v < 4; v++) {
            __m256i x0 = bcast4(q + 4 * v), x1 = bcast4(q + 16 + 4 * v);
            UNROLL for (unsigned h = 0; h < 2; h++) {
                unpack2(t, c, v, h, &lo, &hi);
                a0[h] = _mm256_add_epi16(a0[h], _mm256_maddubs_epi16(lo, x0));
                a1[h] = _mm256_add_epi16(a1[h], _mm256_maddubs_epi16(hi, x1));
                KEEP(a0[h]);
                KEEP(a1[h]);
            }
        }
        UNROLL for (unsigned h = 0; h < 2; h++) {
            if (t == BL_DTYPE_Q6_K) {
                const bl_pk_k6 *s = (const bl_pk_k6 *)(const void *)scales;
                isum[h] =
                    _mm256_add_epi32(isum[h], _mm256_madd_epi16(a0[h], dup_sc(s->sc[2 * j] + 8 * h, true)));
                isum[h] = _mm256_add_epi32(isum[h],
                                           _mm256_madd_epi16(a1[h], dup_sc(s->sc[2 * j + 1] + 8 * h, true)));
                continue;
            }
            __m256i sc = dup_sc(((const bl_pk_k45 *)(const void *)scales)->sc[j] + 8 * h, false);
            if (acc_steps(t) == 8) {
                isum[h] = _mm256_add_epi32(isum[h], _mm256_madd_epi16(_mm256_add_epi16(a0[h], a1[h]), sc));
            } else {
                isum[h] = _mm256_add_epi32(isum[h], _mm256_madd_epi16(a0[h], sc));
                isum[h] = _mm256_add_epi32(isum[h], _mm256_madd_epi16(a1[h], sc));
            }
        }
    }
}

INLINE void vec_group256(bl_dtype t, const bl_mm_args *a, uint32_t b, size_t row) {
    const bl_packed *w = a->w;
    const uint8_t *blk = w->base + (size_t)b * w->block_bytes;
    const bl_xq *x = a->xq;
    const size_t sb = t == BL_DTYPE_Q6_K ? sizeof(bl_pk_k6) : sizeof(bl_pk_k45),
                 cb = 8 * bl_pk_chunk_bytes(t);
    for (uint32_t k0 = 0; k0 < w->k; k0 += BL_STRIP) {
        uint32_t g1 = BL_MIN(k0 + BL_STRIP, w->k) / 256;
        __m256 p[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t g = k0 / 256; g < g1; g++) {
            const uint8_t *sc = blk + sb * g;
            const uint16_t *f16 = (const uint16_t *)(const void *)sc; /* d[16], then dmin[16] */
            size_t at = row * x->ld_s + 8 * (size_t)g;
            __m256i isum[2];
            super_dot(t, sc, blk + w->data_off + cb * g, x->q + row * x->ld_q + 256 * (size_t)g,
                      x->ps16 + 2 * at, isum);
            __m256 d = _mm256_broadcast_ss(x->d + row * x->ld_g + g);
            UNROLL for (unsigned h = 0; h < 2; h++) {
                p[h] = _mm256_fmadd_ps(_mm256_mul_ps(load_f16(f16 + 8 * h), d), _mm256_cvtepi32_ps(isum[h]),
                                       p[h]);
                if (t == BL_DTYPE_Q6_K) {
                    continue;
                }
                __m256i msum = _mm256_setzero_si256();
                UNROLL for (unsigned j = 0; j < 4; j++) {
                    __m256i mn = pair_mn(((const bl_pk_k45 *)(const void *)sc)->mn[j][8 * h]);
                    msum = _mm256_add_epi32(msum, _mm256_madd_epi16(mn, bcast4(x->s32 + at + 2 * j)));
                }
                p[h] = _mm256_fnmadd_ps(load_f16(f16 + 16 + 8 * h),
                                        _mm256_mul_ps(d, _mm256_cvtepi32_ps(msum)), p[h]);
            }
        }
        store_y(a, b, row, k0, 0, p[0]);
        store_y(a, b, row, k0, 1, p[1]);
    }
}

/* ---- many rows: a strip of a block in a tile ------------------------------------------------ */

INLINE void expand(bl_dtype t, unsigned G, const bl_packed *w, const uint8_t *blk, uint32_t k0, uint32_t kn,
                   tile *o) {
    const uint8_t *c = blk + w->data_off + bl_pk_chunk_bytes(t) * (k0 / 32);
    for (uint32_t g = 0; g < kn / 32; g++, c += bl_pk_chunk_bytes(t)) {
        __m256i lo, hi;
        UNROLL for (unsigned i = 0; i < 16; i++) {
            if (is_8bit(t)) {
                lo = load(c + 32 * i);
                _mm256_store_si256((__m256i *)(void *)(o->raw[8 * g + i / 2] + 32 * (i % 2)), lo);
                _mm256_store_si256((__m256i *)(void *)(o->w[8 * g + i / 2] + 32 * (i % 2)),
                                   _mm256_abs_epi8(lo));
            } else if (i < 8) {
                unpack2(t, c, i / 2, i % 2, &lo, &hi);
                _mm256_store_si256((__m256i *)(void *)(o->w[8 * g + i / 2] + 32 * (i % 2)), lo);
                _mm256_store_si256((__m256i *)(void *)(o->w[8 * g + 4 + i / 2] + 32 * (i % 2)), hi);
            }
        }
    }
    if (!bl_pk_is_wide(t)) {
        const size_t sb = bl_pk_scale_bytes(w);
        for (uint32_t g = 0; g < kn / G; g++) {
            for (unsigned h = 0; h < 2; h++) {
                __m256 d, m;
                load_scales(t, G, w, blk, sb, k0 / G + g, h, &d, &m);
                _mm256_store_ps(o->d[g] + 8 * h, d);
                _mm256_store_ps(o->m[g] + 8 * h, m);
            }
        }
        return;
    }
    for (uint32_t g = 0; g < kn / 256; g++) {
        const bl_pk_k45 *s = (const bl_pk_k45 *)(const void *)blk + k0 / 256 + g;
        const bl_pk_k6 *s6 = (const bl_pk_k6 *)(const void *)blk + k0 / 256 + g;
        for (uint32_t h = 0; h < 2; h++) {
            _mm256_store_ps(o->d[g] + 8 * h, load_f16((t == BL_DTYPE_Q6_K ? s6->d : s->d) + 8 * h));
            for (uint32_t j = 0; t == BL_DTYPE_Q6_K && j < 16; j++) {
                _mm256_store_si256((__m256i *)(void *)(o->sc[16 * g + j] + 16 * h),
                                   dup_sc(s6->sc[j] + 8 * h, true));
            }
            if (t == BL_DTYPE_Q6_K) {
                continue;
            }
            _mm256_store_ps(o->m[g] + 8 * h, load_f16(s->dmin + 8 * h));
            for (uint32_t j = 0; j < 8; j++) {
                _mm256_store_si256((__m256i *)(void *)(o->sc[8 * g + j] + 16 * h),
                                   dup_sc(s->sc[j] + 8 * h, false));
            }
            for (uint32_t j = 0; j < 4; j++) {
                _mm256_store_si256((__m256i *)(void *)(o->mn[4 * g + j] + 16 * h), pair_mn(s->mn[j][8 * h]));
            }
        }
    }
}

/* acc[m][h] += products of n steps of the plane with M rows of x. */
INLINE void dot_steps(unsigned M, const uint8_t (*w)[64], const int8_t *q, size_t ld_q, unsigned n,
                      __m256i acc[][2]) {
    UNROLL for (unsigned s = 0; s < n; s++) {
        __m256i w0 = load(w[s]), w1 = load(w[s] + 32);
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m256i x = bcast4(q + m * ld_q + 4 * s);
            acc[m][0] = _mm256_add_epi16(acc[m][0], _mm256_maddubs_epi16(w0, x));
            acc[m][1] = _mm256_add_epi16(acc[m][1], _mm256_maddubs_epi16(w1, x));
            KEEP(acc[m][0]);
            KEEP(acc[m][1]);
        }
    }
}

/* isum[m][h] (+)= products of a chunk of signed bytes with M rows of x. */
INLINE void dot_signed(unsigned M, bool add, const uint8_t (*w)[64], const uint8_t (*raw)[64],
                       const int8_t *q, size_t ld_q, __m256i isum[][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL for (unsigned m = 0; !add && m < M; m++) {
        isum[m][0] = isum[m][1] = _mm256_setzero_si256();
    }
    UNROLL for (unsigned s = 0; s < 8; s++) {
        __m256i w0 = load(w[s]), w1 = load(w[s] + 32);
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m256i x = bcast4(q + m * ld_q + 4 * s);
            __m256i p0 = _mm256_maddubs_epi16(w0, _mm256_sign_epi8(x, load(raw[s])));
            __m256i p1 = _mm256_maddubs_epi16(w1, _mm256_sign_epi8(x, load(raw[s] + 32)));
            isum[m][0] = _mm256_add_epi32(isum[m][0], _mm256_madd_epi16(p0, ones));
            isum[m][1] = _mm256_add_epi32(isum[m][1], _mm256_madd_epi16(p1, ones));
            KEEP(isum[m][0]);
            KEEP(isum[m][1]);
        }
    }
}

/* Strips are added left to right; the first one starts the sum. */
INLINE void add_strip(float sum[BL_PK_ROWS], uint32_t k0, unsigned h, __m256 p) {
    _mm256_storeu_ps(sum + 8 * h, k0 ? _mm256_add_ps(_mm256_loadu_ps(sum + 8 * h), p) : p);
}

/* isum[m][h] = products of `steps` steps from step s on of the group at q with M rows of x. */
INLINE void tile_dot(bl_dtype t, unsigned M, const tile *w, unsigned s, unsigned steps, const bl_xq *x,
                     size_t at, const int8_t *q, __m256i isum[][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const unsigned n = acc_steps(t);
    __m256i acc[4][2];
    if (is_8bit(t)) {
        UNROLL for (unsigned i = 0; i < steps; i += 8) {
            dot_signed(M, i > 0, w->w + s + i, w->raw + s + i, q + 4 * i, x->ld_q, isum);
        }
        return;
    }
    UNROLL for (unsigned i = 0; i < steps; i += n) {
        UNROLL for (unsigned m = 0; m < M; m++) {
            acc[m][0] = acc[m][1] = start_group(t, x, at + m * x->ld_g, q + m * x->ld_q);
        }
        dot_steps(M, w->w + s + i, q + 4 * i, x->ld_q, n, acc);
        UNROLL for (unsigned m = 0; m < M; m++) {
            UNROLL for (unsigned h = 0; h < 2; h++) {
                __m256i v = _mm256_madd_epi16(acc[m][h], ones);
                isum[m][h] = i ? _mm256_add_epi32(isum[m][h], v) : v;
                KEEP(isum[m][h]);
            }
        }
    }
}

INLINE void tile_small(bl_dtype t, unsigned G, unsigned M, const tile *w, const bl_mm_args *a, size_t row,
                       uint32_t k0, uint32_t kn, float (*sum)[BL_PK_ROWS]) {
    const bl_xq *x = a->xq;
    const unsigned n = t == BL_DTYPE_NVFP4 ? 4 : G / 4; /* steps of a float step */
    __m256 p[4][2];
    UNROLL for (unsigned m = 0; m < M; m++) {
        p[m][0] = p[m][1] = _mm256_setzero_ps();
    }
    for (uint32_t g = 0; g < kn / G; g++) {
        size_t at = row * x->ld_g + k0 / G + g;
        const int8_t *q = x->q + row * x->ld_q + k0 + (size_t)G * g;
        UNROLL for (unsigned i = 0; i < G / 4; i += n) {
            __m256i isum[4][2];
            tile_dot(t, M, w, G / 4 * g + i, n, x, at, q + 4 * i, isum);
            const float *dw = i ? w->m[g] : w->d[g];
            UNROLL for (unsigned m = 0; m < M; m++) {
                __m256 d = _mm256_broadcast_ss(x->d + at + m * x->ld_g);
                UNROLL for (unsigned h = 0; h < 2; h++) {
                    if (give_back(t)) {
                        __m256i qs = _mm256_slli_epi32(bcast4(x->qsum + at + m * x->ld_g), give_back(t));
                        isum[m][h] = _mm256_add_epi32(isum[m][h], qs);
                    }
                    __m256 dd = _mm256_mul_ps(_mm256_load_ps(dw + 8 * h), d);
                    p[m][h] = _mm256_fmadd_ps(dd, _mm256_cvtepi32_ps(isum[m][h]), p[m][h]);
                    if (bl_pk_has_min(t)) {
                        __m256 dq = _mm256_broadcast_ss(x->dq + at + m * x->ld_g);
                        p[m][h] = _mm256_fmadd_ps(_mm256_load_ps(w->m[g] + 8 * h), dq, p[m][h]);
                    }
                }
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        add_strip(sum[m], k0, 0, p[m][0]);
        add_strip(sum[m], k0, 1, p[m][1]);
    }
}

INLINE void tile_group256(bl_dtype t, unsigned M, const tile *w, const bl_mm_args *a, size_t row, uint32_t k0,
                          uint32_t kn, float (*sum)[BL_PK_ROWS]) {
    const bl_xq *x = a->xq;
    const unsigned n = acc_steps(t), n_sub = 64 / n;
    __m256 p[4][2];
    UNROLL for (unsigned m = 0; m < M; m++) {
        p[m][0] = p[m][1] = _mm256_setzero_ps();
    }
    for (uint32_t g = 0; g < kn / 256; g++) {
        size_t at = row * x->ld_s + 8 * (size_t)(k0 / 256 + g); /* of s32 */
        const int8_t *q = x->q + row * x->ld_q + k0 + 256 * (size_t)g;
        __m256i isum[4][2];
        UNROLL for (unsigned m = 0; m < M; m++) {
            isum[m][0] = isum[m][1] = _mm256_setzero_si256();
        }
        for (uint32_t j = 0; j < n_sub; j++) {
            __m256i acc[4][2];
            UNROLL for (unsigned m = 0; m < M; m++) {
                acc[m][0] = acc[m][1] = start(offset_shift(t), x->ps16 + 2 * (at + m * x->ld_s) + j);
            }
            dot_steps(M, w->w + 64 * g + n * j, q + 4 * n * j, x->ld_q, n, acc);
            const int16_t *sc = w->sc[t == BL_DTYPE_Q6_K ? 16 * g + j : 8 * g + n * j / 8];
            UNROLL for (unsigned h = 0; h < 2; h++) {
                __m256i s = load(sc + 16 * h);
                UNROLL for (unsigned m = 0; m < M; m++) {
                    isum[m][h] = _mm256_add_epi32(isum[m][h], _mm256_madd_epi16(acc[m][h], s));
                }
            }
        }
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m256 d = _mm256_broadcast_ss(x->d + (row + m) * x->ld_g + k0 / 256 + g);
            UNROLL for (unsigned h = 0; h < 2; h++) {
                __m256 dw = _mm256_load_ps(w->d[g] + 8 * h);
                p[m][h] = _mm256_fmadd_ps(_mm256_mul_ps(dw, d), _mm256_cvtepi32_ps(isum[m][h]), p[m][h]);
                if (t == BL_DTYPE_Q6_K) {
                    continue;
                }
                __m256i msum = _mm256_setzero_si256();
                UNROLL for (unsigned j = 0; j < 4; j++) {
                    __m256i s = bcast4(x->s32 + at + m * x->ld_s + 2 * j);
                    msum = _mm256_add_epi32(msum, _mm256_madd_epi16(load(w->mn[4 * g + j] + 16 * h), s));
                }
                p[m][h] = _mm256_fnmadd_ps(_mm256_load_ps(w->m[g] + 8 * h),
                                           _mm256_mul_ps(d, _mm256_cvtepi32_ps(msum)), p[m][h]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        add_strip(sum[m], k0, 0, p[m][0]);
        add_strip(sum[m], k0, 1, p[m][1]);
    }
}

/* ---- per type ------------------------------------------------------------------------------- */

INLINE void tile_rows(bl_dtype t, unsigned G, unsigned M, const tile *w, const bl_mm_args *a, size_t row,
                      uint32_t k0, uint32_t kn, float (*sum)[BL_PK_ROWS]) {
    if (bl_pk_is_wide(t)) {
        tile_group256(t, M, w, a, row, k0, kn, sum);
    } else {
        tile_small(t, G, M, w, a, row, k0, kn, sum);
    }
}

/* Up to ROWS rows of one block over up to WIDE of k. Sums stay in a small buffer of their own: rows of y are
 * a power of two apart as often as not, so going over them once per strip would miss the cache every time
 * (1.5 times slower at 512 rows of 2048). */
INLINE void tile_block(bl_dtype t, unsigned G, const tile *w, const bl_mm_args *a, uint32_t b, uint32_t row0,
                       uint32_t row1, uint32_t k0, uint32_t kn) {
    _Alignas(32) float sum[ROWS][BL_PK_ROWS];
    float *y = a->y + row0 * a->ldy + (size_t)b * BL_PK_ROWS;
    uint32_t n = row1 - row0;
    for (uint32_t r = 0; r < n; r++) {
        _mm_prefetch((const char *)(y + r * a->ldy),
                     _MM_HINT_T0); /* a line of its own each, written at the end */
    }
    for (uint32_t r = 0; k0 > 0 && r < n; r++) {
        memcpy(sum[r], y + r * a->ldy, sizeof(sum[r]));
    }
    for (uint32_t k = 0; k < kn; k += BL_STRIP, w++) {
        uint32_t len = BL_MIN(BL_STRIP, kn - k), r = 0;
        for (; r + 4 <= n; r += 4) {
            tile_rows(t, G, 4, w, a, row0 + r, k0 + k, len, sum + r);
        }
        if (r + 2 <= n) {
            tile_rows(t, G, 2, w, a, row0 + r, k0 + k, len, sum + r);
            r += 2;
        }
        if (r < n) {
            tile_rows(t, G, 1, w, a, row0 + r, k0 + k, len, sum + r);
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        memcpy(y + r * a->ldy, sum[r], sizeof(sum[r]));
    }
}

INLINE void matmul_g(bl_dtype t, unsigned G, const bl_mm_args *a, uint32_t block0, uint32_t block1,
                     uint32_t row0, uint32_t row1) {
    if (row1 - row0 < TILE_ROWS) {
        for (uint32_t b = block0; b < block1; b++) {
            for (size_t row = row0; row < row1; row++) {
                if (bl_pk_is_wide(t)) {
                    vec_group256(t, a, b, row);
                } else {
                    vec_small(t, G, a, b, row);
                }
            }
        }
        add_bias(a, block0, block1, row0, row1);
        return;
    }
    tile w[WIDE / BL_STRIP];
    for (uint32_t b = block0; b < block1; b++) {
        for (uint32_t k0 = 0; k0 < a->w->k; k0 += WIDE) {
            uint32_t kn = BL_MIN(WIDE, a->w->k - k0);
            for (uint32_t k = 0; k < kn; k += BL_STRIP) {
                expand(t, G, a->w, a->w->base + (size_t)b * a->w->block_bytes, k0 + k,
                       BL_MIN(BL_STRIP, kn - k), &w[k / BL_STRIP]);
            }
            for (uint32_t r = row0; r < row1; r += ROWS) {
                tile_block(t, G, w, a, b, r, BL_MIN(r + ROWS, row1), k0, kn);
            }
        }
    }
    add_bias(a, block0, block1, row0, row1);
}

INLINE void matmul(bl_dtype t, const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0,
                   uint32_t row1) {
    if (bl_dtype_is_affine(t) && a->w->group != 32) {
        matmul_g(t, 64, a, block0, block1, row0, row1);
    } else {
        matmul_g(t, bl_pk_is_wide(t) ? 256 : 32, a, block0, block1, row0, row1);
    }
}

#define MATMUL(name, type)                                                                                   \
    static void name(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1) {  \
        matmul(type, a, block0, block1, row0, row1);                                                         \
    }
MATMUL(matmul_q4_0, BL_DTYPE_Q4_0)
MATMUL(matmul_q4_1, BL_DTYPE_Q4_1)
MATMUL(matmul_q5_0, BL_DTYPE_Q5_0)
MATMUL(matmul_q5_1, BL_DTYPE_Q5_1)
MATMUL(matmul_q8_0, BL_DTYPE_Q8_0)
MATMUL(matmul_q4_k, BL_DTYPE_Q4_K)
MATMUL(matmul_q5_k, BL_DTYPE_Q5_K)
MATMUL(matmul_q6_k, BL_DTYPE_Q6_K)
MATMUL(matmul_affine2, BL_DTYPE_AFFINE2)
MATMUL(matmul_affine3, BL_DTYPE_AFFINE3)
MATMUL(matmul_affine4, BL_DTYPE_AFFINE4)
MATMUL(matmul_affine5, BL_DTYPE_AFFINE5)
MATMUL(matmul_affine6, BL_DTYPE_AFFINE6)
MATMUL(matmul_affine8, BL_DTYPE_AFFINE8)
MATMUL(matmul_mxfp4, BL_DTYPE_MXFP4)
MATMUL(matmul_nvfp4, BL_DTYPE_NVFP4)

void bl_kernels_avx2_quant(bl_kernels *t) {
    t->matmul[BL_DTYPE_Q4_0] = matmul_q4_0;
    t->matmul[BL_DTYPE_Q4_1] = matmul_q4_1;
    t->matmul[BL_DTYPE_Q5_0] = matmul_q5_0;
    t->matmul[BL_DTYPE_Q5_1] = matmul_q5_1;
    t->matmul[BL_DTYPE_Q8_0] = matmul_q8_0;
    t->matmul[BL_DTYPE_Q4_K] = matmul_q4_k;
    t->matmul[BL_DTYPE_Q5_K] = matmul_q5_k;
    t->matmul[BL_DTYPE_Q6_K] = matmul_q6_k;
    t->matmul[BL_DTYPE_AFFINE2] = matmul_affine2;
    t->matmul[BL_DTYPE_AFFINE3] = matmul_affine3;
    t->matmul[BL_DTYPE_AFFINE4] = matmul_affine4;
    t->matmul[BL_DTYPE_AFFINE5] = matmul_affine5;
    t->matmul[BL_DTYPE_AFFINE6] = matmul_affine6;
    t->matmul[BL_DTYPE_AFFINE8] = matmul_affine8;
    t->matmul[BL_DTYPE_MXFP4] = matmul_mxfp4;
    t->matmul[BL_DTYPE_NVFP4] = matmul_nvfp4;
    t->matmul[BL_DTYPE_GGUF_MXFP4] = matmul_mxfp4; /* packed as MXFP4 */
}
