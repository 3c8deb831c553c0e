/* Matrix products of quantised weights with int8 activations on 512-bit vectors: the body of quant_avx512.c
 * (BL_VNNI 0) and quant_avx512vnni.c (BL_VNNI 1).
 *
 * One vector is a step: 16 output rows x 4 k, a 32-bit lane per row; x is broadcast four bytes at a time.
 * Both units multiply unsigned weight bits with signed x. What the format takes off the bits (Q4_0 8, Q5_0
 * 16, Q6_K 32, and 128 for Q8_0, whose sign bit is flipped) comes back as minus offset times the sums of x.
 *
 * VNNI: vpdpbusd adds the four products of a lane to an int32, all exact; sub-scales by vpmulld. Bounds: the
 * comment at dot_add in ref.c; unsigned bits of Q6_K: 16 * 128 * 16 * 63 * 127 = 2.6e8.
 *
 * Without: vpmaddubsw adds pairs of products into int16 lanes, as the AVX2 file does and with its bounds.
 *  - One instruction must not saturate: 63 * 127 * 2 = 16002 at most.
 *  - Its results are added modulo 2^16, so a sum is right whenever its final value fits; the accumulator
 *    starts at minus offset * pair sums of x, which makes the weights signed. See the static asserts.
 *  - Q8_0 is cut into nibbles, w = 16 h + l with h in [-8, 7]: two 4-bit products. AFFINE8 likewise, h and l
 *    unsigned.
 *
 * MLX's affine types have no offset in their bits. FP4 codes are looked up as twice their value + 12, and 12
 * times the sum of x comes off.
 *
 * Few rows of x (decode): straight from the packed bytes, which are streamed once. Many rows: a strip of 512
 * k of one block is unpacked into a tile that stays in L1 while all rows pass, eight at a time.
 */
#ifndef BL_BACKEND_CPU_QUANT_AVX512_H
#define BL_BACKEND_CPU_QUANT_AVX512_H

#include <assert.h>

#include "backend/cpu/common_avx512.h"

#ifndef BL_VNNI
#define BL_VNNI 0
#endif

#define MAX_M 8u
#define STEPS (BL_STRIP / 4)

/* Largest |sum| of one int16 lane: |w| * |q| * 2 products a step. */
#define LANE_MAX(w_max, steps) ((w_max)*127 * 2 * (steps))
static_assert(LANE_MAX(63, 1) <= INT16_MAX, "one vpmaddubsw saturates");
static_assert(LANE_MAX(8, 8) <= INT16_MAX, "Q4_0, the nibbles of Q8_0");
static_assert(LANE_MAX(15, 8) <= INT16_MAX, "Q4_1, Q4_K, the low nibbles of Q8_0: no offset");
static_assert(LANE_MAX(16, 8) <= INT16_MAX, "Q5_0, Q5_1 with offset 16");
static_assert(LANE_MAX(31, 4) <= INT16_MAX, "Q5_K without an offset, half a sub-block");
static_assert(LANE_MAX(32, 4) <= INT16_MAX, "Q6_K with offset 32");
static_assert(LANE_MAX(31, 4) <= INT16_MAX && LANE_MAX(63, 2) <= INT16_MAX, "AFFINE5, AFFINE6");
static_assert(LANE_MAX(12, 8) <= INT16_MAX, "FP4, the offset taken off");

/* A strip of a block, unpacked. */
typedef struct {
    _Alignas(64) uint8_t w[STEPS][64]; /* weight bits; without VNNI of 8 bits the low nibbles; those + 128 */
#if !BL_VNNI
    _Alignas(64) uint8_t hi[STEPS][64]; /* 8 bits: high nibbles */
#endif
    _Alignas(64) float d[16][16], m[16][16]; /* per group; NVFP4: of the two halves */
    _Alignas(64) int32_t sc[32][16];         /* K quants: sub-scales, in the form scale_add() takes */
    _Alignas(64) int16_t pair[16][16][2];    /* minima (Q4_K, Q5_K) or scales (Q6_K) of two neighbours */
} tile;

/* Where a strip's weights come from: the tile, or with NULL the packed block. */
typedef struct {
    const tile *t;
    const uint8_t *scales, *data; /* of the strip's first group */
    const bl_packed *w;
} source;

INLINE __m512i bcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}
INLINE bool is_5bit(bl_dtype t) {
    return t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1 || t == BL_DTYPE_Q5_K || t == BL_DTYPE_AFFINE5;
}
INLINE bool is_8bit(bl_dtype t) {
    return t == BL_DTYPE_Q8_0 || t == BL_DTYPE_AFFINE8;
}
INLINE bool is_fp4(bl_dtype t) {
    return t == BL_DTYPE_MXFP4 || t == BL_DTYPE_NVFP4;
}
/* a's low halves and b's low halves, interleaved: (a, b) per row, as vpmaddwd takes them. */
INLINE __m512i interleave(__m512i a, __m512i b) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
}

/* ---- the two units ---- */

#if BL_VNNI
INLINE __m512i dot(__m512i acc, __m512i w, __m512i x) {
    return _mm512_dpbusd_epi32(acc, w, x);
}
/* acc + a.lo * b.lo + a.hi * b.hi of int16 pairs. */
INLINE __m512i pair_add(__m512i acc, __m512i a, __m512i b) {
    return _mm512_dpwssd_epi32(acc, a, b);
}
/* isum + scale * the sum in acc. */
INLINE __m512i scale_add(__m512i isum, __m512i acc, __m512i sc) {
    return _mm512_add_epi32(isum, _mm512_mullo_epi32(acc, sc));
}
INLINE __m512i scale_form(__m512i sc) {
    return sc;
}
/* The sum in acc as int32. */
INLINE __m512i widen(__m512i acc) {
    return acc;
}
/* What accumulators start with is minus this, times the sums of x. Q6_K's is taken off by load_pair. */
INLINE int offset(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_Q4_0:
        return 8;
    case BL_DTYPE_MXFP4:
        return 12;
    case BL_DTYPE_Q5_0:
        return 16;
    case BL_DTYPE_Q8_0:
        return 128;
    default:
        return 0;
    }
}
INLINE __m512i times_minus(__m512i sums, int n) {
    return _mm512_mullo_epi32(sums, _mm512_set1_epi32(-n));
}
/* Steps that one accumulator may hold before the sub-scale. */
INLINE unsigned sub_steps(bl_dtype t) {
    return t == BL_DTYPE_Q6_K ? 4 : 8;
}
/* Steps of a group of 32 or 64 that one accumulator holds. */
INLINE unsigned acc_steps(bl_dtype t) {
    return t == BL_DTYPE_NVFP4 ? 4 : 8;
}
#else
INLINE __m512i dot(__m512i acc, __m512i w, __m512i x) {
    return _mm512_add_epi16(acc, _mm512_maddubs_epi16(w, x));
}
INLINE __m512i pair_add(__m512i acc, __m512i a, __m512i b) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
}
INLINE __m512i scale_add(__m512i isum, __m512i acc, __m512i sc) {
    return _mm512_add_epi32(isum, _mm512_madd_epi16(acc, sc));
}
INLINE __m512i scale_form(__m512i sc) {
    return interleave(sc, sc);
}
INLINE __m512i widen(__m512i acc) {
    return _mm512_madd_epi16(acc, _mm512_set1_epi16(1));
}
/* Q5_1 gets an offset to stay in range and gives it back in 32 bits. Q8_0: the high nibbles'. */
INLINE int offset(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_Q4_0:
    case BL_DTYPE_Q8_0:
        return 8;
    case BL_DTYPE_MXFP4:
        return 12;
    case BL_DTYPE_Q5_0:
    case BL_DTYPE_Q5_1:
        return 16;
    case BL_DTYPE_Q6_K:
        return 32;
    default:
        return 0;
    }
}
INLINE __m512i times_minus(__m512i sums, int n) {
    return _mm512_mullo_epi16(sums, _mm512_set1_epi16((int16_t)-n));
}
INLINE unsigned sub_steps(bl_dtype t) {
    return t == BL_DTYPE_Q4_K ? 8 : 4;
}
INLINE unsigned acc_steps(bl_dtype t) {
    return t == BL_DTYPE_AFFINE6 ? 2 : t == BL_DTYPE_AFFINE5 || t == BL_DTYPE_NVFP4 ? 4 : 8;
}
#endif

/* What the accumulators of a row start with along a strip: group 32 one entry per group; without VNNI Q6_K
 * one per 16. The planes end with the row, so the load is masked. */
INLINE void strip_starts(bl_dtype t, const bl_xq *x, size_t row, uint32_t k0, uint32_t kn, int32_t out[32]) {
    if (!offset(t)) {
        return;
    }
    if (t == BL_DTYPE_Q6_K) {
        const uint32_t *ps = x->ps16 + 2 * row * x->ld_s + k0 / 16;
        for (uint32_t i = 0; i < kn / 16; i += 16) { /* kn is a multiple of 256 */
            _mm512_storeu_si512(out + i, times_minus(load512(ps + i), offset(t)));
        }
        return;
    }
    size_t at = row * x->ld_g + k0 / 32;
    const void *sums = BL_VNNI ? (const void *)(x->qsum + at) : (const void *)(x->ps + at);
    __m512i v = _mm512_maskz_loadu_epi32(mask_first(kn / 32), sums);
    _mm512_storeu_si512(out, times_minus(v, offset(t)));
}
/* What an accumulator of half a group of NVFP4 starts with: -12 times the sum (VNNI) or pair sums of 16 of x.
 */
INLINE __m512i start_half(const int8_t *q) {
    __m128i s = _mm_maddubs_epi16(_mm_set1_epi8(12), load128(q)); /* 12 * 2 * 127 = 3048 */
#if BL_VNNI
    s = _mm_madd_epi16(s, _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_broadcastd_epi32(s));
#else
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_broadcastd_epi32(s));
#endif
}
INLINE __m512i start(bl_dtype t, const int32_t *starts) {
    return offset(t) ? _mm512_set1_epi32(*starts) : _mm512_setzero_si512();
}

/* ---- unpacking ----
 *
 * Bits that a 32-bit shift moves into a neighbouring byte are masked off. */

INLINE void nibbles(__m512i b, __m512i *lo, __m512i *hi) {
    const __m512i mask = _mm512_set1_epi8(15);
    *lo = _mm512_and_si512(b, mask);
    *hi = _mm512_and_si512(_mm512_srli_epi32(b, 4), mask);
}
/* b | (a & bits) */
INLINE __m512i or_bits(__m512i b, __m512i a, char bits) {
    return _mm512_ternarylogic_epi32(b, a, _mm512_set1_epi8(bits), 0xf8);
}
/* Weight bits of steps v and v + 4 of a chunk of 2 to 6 bits. */
INLINE void unpack2(bl_dtype t, const uint8_t *c, unsigned v, __m512i *lo, __m512i *hi) {
    if (t == BL_DTYPE_AFFINE2 || t == BL_DTYPE_AFFINE3) {
        const __m512i mask = _mm512_set1_epi8(3);
        *lo = _mm512_and_si512(_mm512_srli_epi32(load512(c), 2 * v), mask);
        *hi = _mm512_and_si512(_mm512_srli_epi32(load512(c + 64), 2 * v), mask);
        if (t == BL_DTYPE_AFFINE3) { /* bits v and v + 4 to bit 2 */
            __m512i p = load512(c + 128);
            *lo = or_bits(*lo, v < 2 ? _mm512_slli_epi32(p, 2 - v) : _mm512_srli_epi32(p, v - 2), 4);
            *hi = or_bits(*hi, _mm512_srli_epi32(p, v + 2), 4);
        }
        return;
    }
    nibbles(load512(c + 64 * v), lo, hi);
    if (is_fp4(t)) {
        const __m512i table =
            _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        *lo = _mm512_shuffle_epi8(table, *lo);
        *hi = _mm512_shuffle_epi8(table, *hi);
        return;
    }
    if (is_5bit(t)) { /* bits v and v + 4 to bit 4 */
        __m512i p = load512(c + 256);
        *lo = or_bits(*lo, _mm512_slli_epi32(p, 4 - v), 16);
        *hi = or_bits(*hi, _mm512_srli_epi32(p, v), 16);
    } else if (t == BL_DTYPE_Q6_K || t == BL_DTYPE_AFFINE6) { /* bits 2v and 2v + 1 to bits 4 and 5 */
        __m512i p = load512(c + 256), q = load512(c + 320);
        p = v < 2 ? _mm512_slli_epi32(p, 4 - 2 * v) : _mm512_srli_epi32(p, 2 * v - 4);
        q = v < 2 ? _mm512_slli_epi32(q, 4 - 2 * v) : _mm512_srli_epi32(q, 2 * v - 4);
        *lo = or_bits(*lo, p, 48);
        *hi = or_bits(*hi, q, 48);
    }
}
/* Eight signed bits + 128. */
INLINE __m512i load_8bit(const uint8_t *p) {
    return _mm512_xor_si512(load512(p), _mm512_set1_epi8((char)0x80));
}

/* 16 scales or biases of an affine type. */
INLINE __m512 load_affine(bl_dtype scale_dtype, const uint8_t *p) {
    return scale_dtype == BL_DTYPE_F32   ? _mm512_loadu_ps(p)
           : scale_dtype == BL_DTYPE_F16 ? load_f16(p)
                                         : load_bf16(p);
}
/* Half of 16 E8M0 scales: exponent 0 is a denormal. */
INLINE __m512 load_e8m0_half(const uint8_t *p) {
    __m512i e = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load128(p)), 23);
    e = _mm512_max_epu32(e, _mm512_set1_epi32(0x400000));
    return _mm512_mul_ps(_mm512_castsi512_ps(e), _mm512_set1_ps(0.5f));
}
/* Half of 16 E4M3 scales times g. As f16 bits E4M3 is 2^-8 of its value. */
INLINE __m512 load_e4m3_half(const uint8_t *p, float g) {
    __m256i v = _mm256_cvtepu8_epi16(load128(p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x80)), 8);
    v = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x7f)), 7), sign);
    __m512 f = _mm512_mul_ps(_mm512_cvtph_ps(v), _mm512_set1_ps(256.0f));
    return _mm512_mul_ps(_mm512_mul_ps(f, _mm512_set1_ps(g)), _mm512_set1_ps(0.5f));
}

INLINE __m512i load_sc(bl_dtype t, const uint8_t *scales, unsigned j) { /* sub-scale j as int32 */
    if (t == BL_DTYPE_Q6_K) {
        return _mm512_cvtepi8_epi32(load128(((const bl_pk_k6 *)(const void *)scales)->sc[j]));
    }
    return _mm512_cvtepu8_epi32(load128(((const bl_pk_k45 *)(const void *)scales)->sc[j]));
}
/* Factors of the pair sums of x: minima 2j and 2j + 1, or Q6_K's sub-scales. */
INLINE __m512i load_pair(bl_dtype t, const uint8_t *scales, unsigned j) {
    if (t == BL_DTYPE_Q6_K) {
        return interleave(load_sc(t, scales, 2 * j), load_sc(t, scales, 2 * j + 1));
    }
    return _mm512_cvtepu8_epi16(load256(((const bl_pk_k45 *)(const void *)scales)->mn[j]));
}
/* Pairs of a group of 256 that load_pair serves. */
INLINE unsigned n_pairs(bl_dtype t) {
    return t != BL_DTYPE_Q6_K ? 4 : BL_VNNI ? 8 : 0;
}
/* Scales, and offsets or the second half's scales, of group g of the strip (of G = 32 or 64). */
INLINE void load_scales(bl_dtype t, unsigned G, const source *s, uint32_t g, __m512 *d, __m512 *m) {
    if (bl_dtype_is_affine(t)) {
        size_t half = s->w->scale_dtype == BL_DTYPE_F32 ? 64 : 32;
        const uint8_t *p = s->scales + 2 * half * (G == 64 && s->w->group == 128 ? g / 2 : g);
        *d = load_affine(s->w->scale_dtype, p);
        *m = load_affine(s->w->scale_dtype, p + half);
    } else if (t == BL_DTYPE_MXFP4) {
        *d = *m = load_e8m0_half(s->scales + 16 * g);
    } else if (t == BL_DTYPE_NVFP4) {
        *d = load_e4m3_half(s->scales + 32 * g, s->w->global_scale);
        *m = load_e4m3_half(s->scales + 32 * g + 16, s->w->global_scale);
    } else {
        const uint8_t *p = s->scales + (bl_pk_has_min(t) ? 64 : 32) * g;
        *d = load_f16(p);
        *m = bl_pk_has_min(t) ? load_f16(p + 32) : *d;
    }
}
INLINE size_t scale_bytes(bl_dtype t) { /* of 256 k of a K quant */
    return t == BL_DTYPE_Q6_K ? sizeof(bl_pk_k6) : sizeof(bl_pk_k45);
}

INLINE void expand(bl_dtype t, unsigned G, const source *s, uint32_t kn, tile *o) {
    const uint8_t *c = s->data;
    const unsigned n_vec = is_8bit(t) ? 8 : 4;
    for (uint32_t g = 0; g < kn / 32; g++, c += bl_pk_chunk_bytes(t)) {
        __m512i lo, hi;
        UNROLL for (unsigned v = 0; v < n_vec; v++) {
            if (is_8bit(t)) {
                lo = load_8bit(c + 64 * v);
#if !BL_VNNI
                nibbles(lo, &lo, &hi);
                _mm512_store_si512(o->hi[8 * g + v], hi);
#endif
                _mm512_store_si512(o->w[8 * g + v], lo);
                continue;
            }
            unpack2(t, c, v, &lo, &hi);
            _mm512_store_si512(o->w[8 * g + v], lo);
            _mm512_store_si512(o->w[8 * g + 4 + v], hi);
        }
    }
    const uint8_t *sc = s->scales;
    for (uint32_t g = 0; g < kn / G; g++, sc += scale_bytes(t)) {
        if (!bl_pk_is_wide(t)) {
            __m512 d, m;
            load_scales(t, G, s, g, &d, &m);
            _mm512_store_ps(o->d[g], d);
            _mm512_store_ps(o->m[g], m);
            continue;
        }
        _mm512_store_ps(o->d[g], load_f16(sc)); /* both forms of scales begin with d[16] */
        if (t != BL_DTYPE_Q6_K) {
            _mm512_store_ps(o->m[g], load_f16(sc + 32));
        }
        const unsigned n_sc = t == BL_DTYPE_Q6_K ? 16 : 8;
        for (unsigned j = 0; j < n_sc; j++) {
            _mm512_store_si512(o->sc[n_sc * g + j], scale_form(load_sc(t, sc, j)));
        }
        for (unsigned j = 0; j < n_pairs(t); j++) {
            _mm512_store_si512(o->pair[n_pairs(t) * g + j], load_pair(t, sc, j));
        }
    }
}

/* ---- integer dots ---- */

/* Pointers to M rows of x, made opaque: the compiler would otherwise keep each of the M * n addresses of a
 * group in its own stack slot and load it again for every product. */
INLINE void row_pointers(unsigned M, const int8_t *q, size_t ld_q, const int8_t *r[]) {
    UNROLL for (unsigned m = 0; m < M; m++, q += ld_q) {
        __asm__("" : "+r"(q));
        r[m] = q;
    }
}

/* acc[m] += n steps of a plane of the tile with M rows of x. */
INLINE void dot_steps(unsigned M, const uint8_t (*w)[64], const int8_t *q, size_t ld_q, unsigned n,
                      __m512i acc[]) {
    const int8_t *r[MAX_M];
    row_pointers(M, q, ld_q, r);
    UNROLL for (unsigned s = 0; s < n; s++) {
        __m512i wv = _mm512_load_si512(w[s]);
        UNROLL for (unsigned m = 0; m < M; m++) {
            acc[m] = dot(acc[m], wv, bcast4(r[m] + 4 * s));
        }
    }
}
/* The same from a packed chunk of 2 to 6 bits: steps 0-3 into a, 4-7 into b, which may be a. */
INLINE void dot_chunk(bl_dtype t, unsigned M, const uint8_t *c, const int8_t *q, size_t ld_q, __m512i a[],
                      __m512i b[]) {
    const int8_t *r[MAX_M];
    row_pointers(M, q, ld_q, r);
    UNROLL for (unsigned v = 0; v < 4; v++) {
        __m512i lo, hi;
        unpack2(t, c, v, &lo, &hi);
        UNROLL for (unsigned m = 0; m < M; m++) {
            a[m] = dot(a[m], lo, bcast4(r[m] + 4 * v));
            b[m] = dot(b[m], hi, bcast4(r[m] + 16 + 4 * v));
        }
    }
}

/* The same of six bits without VNNI: int32 sums of steps 0-3 and 4-7, widened after two steps each. */
INLINE void dot_quarters(bl_dtype t, unsigned M, const uint8_t *c, const int8_t *q, size_t ld_q, __m512i a[],
                         __m512i b[]) {
    const int8_t *r[MAX_M];
    row_pointers(M, q, ld_q, r);
    UNROLL for (unsigned v = 0; v < 4; v += 2) {
        __m512i lo[2], hi[2];
        unpack2(t, c, v, &lo[0], &hi[0]);
        unpack2(t, c, v + 1, &lo[1], &hi[1]);
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m512i x = _mm512_setzero_si512(), y = x;
            UNROLL for (unsigned i = 0; i < 2; i++) {
                x = dot(x, lo[i], bcast4(r[m] + 4 * (v + i)));
                y = dot(y, hi[i], bcast4(r[m] + 16 + 4 * (v + i)));
            }
            a[m] = v ? _mm512_add_epi32(a[m], widen(x)) : widen(x);
            b[m] = v ? _mm512_add_epi32(b[m], widen(y)) : widen(y);
        }
    }
}

/* acc[m] of eight bits, chunk c of the strip: as int32. */
INLINE void dot_8bit(unsigned M, const source *s, uint32_t c, const int8_t *q, size_t ld_q, __m512i acc[]) {
    const uint8_t *data = s->data + 512 * (size_t)c;
    const int8_t *r[MAX_M];
#if BL_VNNI
    if (s->t) {
        dot_steps(M, s->t->w + 8 * c, q, ld_q, 8, acc);
        return;
    }
    row_pointers(M, q, ld_q, r);
    UNROLL for (unsigned v = 0; v < 8; v++) {
        __m512i w = load_8bit(data + 64 * v);
        UNROLL for (unsigned m = 0; m < M; m++) {
            acc[m] = dot(acc[m], w, bcast4(r[m] + 4 * v));
        }
    }
#else
    __m512i low[MAX_M];
    UNROLL for (unsigned m = 0; m < M; m++) {
        low[m] = _mm512_setzero_si512();
    }
    if (s->t) {
        dot_steps(M, s->t->w + 8 * c, q, ld_q, 8, low);
        dot_steps(M, s->t->hi + 8 * c, q, ld_q, 8, acc);
    } else {
        row_pointers(M, q, ld_q, r);
        UNROLL for (unsigned v = 0; v < 8; v++) {
            __m512i lo, hi;
            nibbles(load_8bit(data + 64 * v), &lo, &hi);
            UNROLL for (unsigned m = 0; m < M; m++) {
                __m512i x = bcast4(r[m] + 4 * v);
                low[m] = dot(low[m], lo, x);
                acc[m] = dot(acc[m], hi, x);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        acc[m] = _mm512_madd_epi16(acc[m], _mm512_set1_epi16(16));
        acc[m] = _mm512_add_epi32(acc[m], widen(low[m]));
    }
#endif
}

/* acc[m] = products of chunk c of the strip, as int32; NVFP4: of its first half, and second[m] of its other.
 * st: strip_starts of each row. */
INLINE void dot32(bl_dtype t, unsigned M, const source *s, uint32_t c, const int8_t *q, size_t ld_q,
                  int32_t st[][32], __m512i acc[], __m512i second[]) {
    const unsigned n = acc_steps(t);
    const uint8_t *data = s->data + bl_pk_chunk_bytes(t) * c;
    UNROLL for (unsigned m = 0; m < M; m++) {
        acc[m] = t == BL_DTYPE_NVFP4 ? start_half(q + m * ld_q) : start(t, &st[m][c]);
        second[m] = t == BL_DTYPE_NVFP4 ? start_half(q + m * ld_q + 16) : _mm512_setzero_si512();
    }
    if (is_8bit(t)) {
        dot_8bit(M, s, c, q, ld_q, acc);
        return;
    }
    if (s->t && n == 8) {
        dot_steps(M, s->t->w + 8 * c, q, ld_q, 8, acc);
    } else if (s->t) { /* in halves; AFFINE6 without VNNI in quarters */
        __m512i part[MAX_M];
        UNROLL for (unsigned i = 0; i < 8; i += n) {
            __m512i *to = i < 4 ? acc : second;
            UNROLL for (unsigned m = 0; m < M; m++) {
                part[m] = i % 4 ? _mm512_setzero_si512() : to[m];
            }
            dot_steps(M, s->t->w + 8 * c + i, q + 4 * i, ld_q, n, part);
            UNROLL for (unsigned m = 0; m < M; m++) {
                __m512i v = widen(part[m]);
                to[m] = i % 4 ? _mm512_add_epi32(to[m], v) : v;
            }
        }
    } else if (n > 2) {
        dot_chunk(t, M, data, q, ld_q, acc, n == 8 ? acc : second);
    } else {
        dot_quarters(t, M, data, q, ld_q, acc, second);
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        if (n == 8 || (!s->t && n > 2)) {
            acc[m] = widen(acc[m]);
            second[m] = widen(second[m]);
        }
        if (n < 8 && t != BL_DTYPE_NVFP4) {
            acc[m] = _mm512_add_epi32(acc[m], second[m]);
        }
    }
}

/* isum[m] of group g of the strip, one of 256 k, without what load_pair takes off. */
INLINE void dot256(bl_dtype t, unsigned M, const source *s, uint32_t g, const int8_t *q, size_t ld_q,
                   int32_t st[][32], __m512i isum[]) {
    const unsigned n = sub_steps(t), n_sc = t == BL_DTYPE_Q6_K ? 16 : 8;
    UNROLL for (unsigned m = 0; m < M; m++) {
        isum[m] = _mm512_setzero_si512();
    }
    if (s->t) {
        for (unsigned j = 0; j < 64 / n; j++) {
            __m512i acc[MAX_M];
            UNROLL for (unsigned m = 0; m < M; m++) {
                acc[m] = start(t, &st[m][16 * g + j]);
            }
            dot_steps(M, s->t->w + 64 * g + n * j, q + 4 * n * j, ld_q, n, acc);
            __m512i sc = _mm512_load_si512(s->t->sc[n_sc * g + (n_sc == 16 ? j : n * j / 8)]);
            UNROLL for (unsigned m = 0; m < M; m++) {
                isum[m] = scale_add(isum[m], acc[m], sc);
            }
        }
        return;
    }
    const uint8_t *c = s->data + 8 * bl_pk_chunk_bytes(t) * g, *scales = s->scales + scale_bytes(t) * g;
    for (unsigned j = 0; j < 8; j++, c += bl_pk_chunk_bytes(t), q += 32) {
        __m512i a[MAX_M], b[MAX_M];
        UNROLL for (unsigned m = 0; m < M; m++) {
            a[m] = start(t, &st[m][16 * g + 2 * j]);
            b[m] = start(t, &st[m][16 * g + 2 * j + 1]);
        }
        __m512i sc = scale_form(load_sc(t, scales, t == BL_DTYPE_Q6_K ? 2 * j : j)), sc2 = sc;
        if (t == BL_DTYPE_Q6_K) {
            sc2 = scale_form(load_sc(t, scales, 2 * j + 1));
        }
        dot_chunk(t, M, c, q, ld_q, a, n == 8 ? a : b);
        UNROLL for (unsigned m = 0; m < M; m++) {
            isum[m] = scale_add(isum[m], a[m], sc);
            if (n == 4) {
                isum[m] = scale_add(isum[m], b[m], sc2);
            }
        }
    }
}

/* ---- a strip of one block with M rows of x, and the float steps ---- */

INLINE void strip_small(bl_dtype t, unsigned G, unsigned M, const source *s, const bl_mm_args *a, uint32_t b,
                        size_t row, uint32_t k0, uint32_t kn) {
    const bl_xq *x = a->xq;
    int32_t st[MAX_M][32];
    __m512 p[MAX_M];
    UNROLL for (unsigned m = 0; m < M; m++) {
        strip_starts(t, x, row + m, k0, kn, st[m]);
        p[m] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < kn / G; g++) {
        size_t at = row * x->ld_g + k0 / G + g;
        const int8_t *q = x->q + row * x->ld_q + k0 + (size_t)G * g;
        __m512i isum[MAX_M], second[MAX_M];
        dot32(t, M, s, G / 32 * g, q, x->ld_q, st, isum, second);
        if (G == 64) {
            __m512i more[MAX_M];
            dot32(t, M, s, 2 * g + 1, q + 32, x->ld_q, st, more, second);
            UNROLL for (unsigned m = 0; m < M; m++) {
                isum[m] = _mm512_add_epi32(isum[m], more[m]);
            }
        }
        __m512 dw, mw;
        if (s->t) {
            dw = _mm512_load_ps(s->t->d[g]);
            mw = _mm512_load_ps(s->t->m[g]);
        } else {
            load_scales(t, G, s, g, &dw, &mw);
        }
        UNROLL for (unsigned m = 0; m < M; m++, at += x->ld_g) {
            if (t == BL_DTYPE_Q5_1 && offset(t)) {
                isum[m] = _mm512_add_epi32(isum[m], _mm512_set1_epi32(16 * x->qsum[at]));
            }
            __m512 dx = _mm512_set1_ps(x->d[at]);
            p[m] = _mm512_fmadd_ps(_mm512_mul_ps(dw, dx), _mm512_cvtepi32_ps(isum[m]), p[m]);
            if (t == BL_DTYPE_NVFP4) {
                p[m] = _mm512_fmadd_ps(_mm512_mul_ps(mw, dx), _mm512_cvtepi32_ps(second[m]), p[m]);
            }
            if (bl_pk_has_min(t)) {
                p[m] = _mm512_fmadd_ps(mw, _mm512_set1_ps(x->dq[at]), p[m]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        add_strip(a, b, row + m, k0, p[m]);
    }
}

INLINE void strip256(bl_dtype t, unsigned M, const source *s, const bl_mm_args *a, uint32_t b, size_t row,
                     uint32_t k0, uint32_t kn) {
    const bl_xq *x = a->xq;
    int32_t st[MAX_M][32];
    __m512 p[MAX_M];
    UNROLL for (unsigned m = 0; m < M; m++) {
        strip_starts(t, x, row + m, k0, kn, st[m]);
        p[m] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < kn / 256; g++) {
        size_t at = row * x->ld_g + k0 / 256 + g, as = row * x->ld_s + k0 / 32 + 8 * (size_t)g;
        const uint8_t *scales = s->scales + scale_bytes(t) * g;
        __m512i isum[MAX_M], msum[MAX_M];
        dot256(t, M, s, g, x->q + row * x->ld_q + k0 + 256 * (size_t)g, x->ld_q, st, isum);
        UNROLL for (unsigned m = 0; m < M; m++) {
            msum[m] = _mm512_setzero_si512();
        }
        UNROLL for (unsigned j = 0; j < n_pairs(t); j++) {
            __m512i f = s->t ? _mm512_load_si512(s->t->pair[n_pairs(t) * g + j]) : load_pair(t, scales, j);
            UNROLL for (unsigned m = 0; m < M; m++) {
                size_t am = as + m * x->ld_s;
                const int16_t *sums = t == BL_DTYPE_Q6_K ? x->s16 + 2 * am : x->s32 + am;
                msum[m] = pair_add(msum[m], f, bcast4(sums + 2 * j));
            }
        }
        __m512 dw = s->t ? _mm512_load_ps(s->t->d[g]) : load_f16(scales), mw = dw;
        if (t != BL_DTYPE_Q6_K) {
            mw = s->t ? _mm512_load_ps(s->t->m[g]) : load_f16(scales + 32);
        }
        UNROLL for (unsigned m = 0; m < M; m++, at += x->ld_g) {
            __m512 d = _mm512_set1_ps(x->d[at]);
            if (t == BL_DTYPE_Q6_K && n_pairs(t)) {
                isum[m] = _mm512_sub_epi32(isum[m], _mm512_slli_epi32(msum[m], 5));
            }
            p[m] = _mm512_fmadd_ps(_mm512_mul_ps(dw, d), _mm512_cvtepi32_ps(isum[m]), p[m]);
            if (t != BL_DTYPE_Q6_K) {
                p[m] = _mm512_fnmadd_ps(mw, _mm512_mul_ps(d, _mm512_cvtepi32_ps(msum[m])), p[m]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        add_strip(a, b, row + m, k0, p[m]);
    }
}

INLINE void strip(bl_dtype t, unsigned G, unsigned M, const source *s, const bl_mm_args *a, uint32_t b,
                  size_t row, uint32_t k0, uint32_t kn) {
    if (bl_pk_is_wide(t)) {
        strip256(t, M, s, a, b, row, k0, kn);
    } else {
        strip_small(t, G, M, s, a, b, row, k0, kn);
    }
}

INLINE void matmul_g(bl_dtype t, unsigned G, const bl_mm_args *a, uint32_t block0, uint32_t block1,
                     uint32_t row0, uint32_t row1) {
    const bl_packed *w = a->w;
    const size_t sb = bl_pk_scale_bytes(w);
    const uint32_t scale_k = bl_pk_scale_elems(w);
    tile room;
    for (uint32_t b = block0; b < block1; b++) {
        const uint8_t *blk = w->base + (size_t)b * w->block_bytes;
        for (uint32_t k0 = 0; k0 < w->k; k0 += BL_STRIP) {
            uint32_t kn = BL_MIN(BL_STRIP, w->k - k0);
            source s = {.w = w,
                        .scales = blk + sb * (k0 / scale_k),
                        .data = blk + w->data_off + bl_pk_chunk_bytes(t) * (k0 / 32)};
            size_t row = row0;
            if (row1 - row0 >= MAX_M) {
                expand(t, G, &s, kn, &room);
                source full = s;
                full.t = &room;
                for (; row + MAX_M <= row1; row += MAX_M) {
                    strip(t, G, MAX_M, &full, a, b, row, k0, kn);
                }
            }
            if (row + 4 <= row1) {
                strip(t, G, 4, &s, a, b, row, k0, kn);
                row += 4;
            }
            if (row + 2 <= row1) {
                strip(t, G, 2, &s, a, b, row, k0, kn);
                row += 2;
            }
            if (row < row1) {
                strip(t, G, 1, &s, a, b, row, k0, kn);
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

static inline void fill_quant(bl_kernels *t) {
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

#endif
