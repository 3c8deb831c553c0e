/* The CPU kernel table, the packed weight layouts and the forms of activations that kernels see.
 *
 * One table, filled by bl_kernels_ref() (scalar, the truth of NUMERICS.md) and then overridden by
 * bl_kernels_avx2() and so on for the features that the machine has and the mask allows. Everything reaches a
 * kernel through the table. Every entry gives the same bits as the scalar one; tests/kernels/blcheck compares
 * them.
 *
 * PACKED WEIGHTS. One layout for every instruction set. Rows go in blocks of 16 (the last one padded with
 * zero rows), so that a SIMD lane owns one output row and x is broadcast. A block is contiguous: first its
 * scales, then, from data_off (64-aligned) on, its data.
 *
 *   float (F32, F16, BF16)   no scales; data [k][16] elements as in the file
 *   group of 32 along k      scales [k/32][16] f16 d, or [k/32][2][16] f16 d, m (Q4_1, Q5_1); one chunk per
 *                            group
 *   group of 256 (K quants)  scales per 256: Q4_K, Q5_K: bl_pk_k45; Q6_K: bl_pk_k6; eight chunks per group
 *   affine (MLX)             scales [k/group][2][16] scale, bias, both bf16, f16 or f32 as in the file; one
 *                            chunk per 32 of k
 *   MXFP4 (also GGUF's)      scales [k/32][16] E8M0 bytes; one chunk per 32 of k: E2M1 codes
 *   NVFP4                    scales [k/16][16] E4M3 bytes; one chunk per 32 of k: E2M1 codes
 *   MXFP8                    scales [k/32][16] E8M0 bytes; data [k][16] E4M3 bytes. Meets x by the rule of
 *                            float weights: 8.25 bits a weight to read, one conversion and one product each
 *
 * A chunk is 16 rows x 32 k. A *step* is 4 neighbouring k of all 16 rows: 64 bytes, byte 4*row + (k & 3); a
 * chunk has 8 steps. One 32-byte half of a step is what vpmaddubsw takes against 4 broadcast bytes of x, a
 * whole step what vpdpbusd takes.
 *
 *   2 bits    2 x 64 bytes: bits 2i, 2i+1 of vector t are step 4t + i
 *   3 bits    2 bits, then 64 bytes whose bit s is bit 2 of step s
 *   4 bits    4 x 64 bytes: byte vector v has step v in the low nibbles and step v + 4 in the high ones
 *   5 bits    4 bits, then 64 bytes whose bit s is bit 4 of step s
 *   6 bits    4 bits, then 2 x 64 bytes: bits 2i, 2i+1 of vector t are bits 4, 5 of step 4t + i
 *   8 bits    8 x 64 bytes: step s, two's complement (affine: q - 128)
 *
 * Bits are unsigned, with the file's own offset (Q4_0 8, Q5_0 16, Q6_K 32) not subtracted.
 *
 * Blocks stand alone: a kernel may be given any run of blocks of a matrix, so matrices of the same width may
 * lie one behind the other as one (the experts of a mixture).
 */
#ifndef BL_BACKEND_CPU_KERNELS_H
#define BL_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "tensor/mlx.h"

#define BL_PK_ROWS     16u   /* rows of a block */
#define BL_STRIP       512u  /* NUMERICS §3 */
#define BL_FLOAT_STRIP 32u   /* of float weights */
#define BL_SEGMENT     1024u /* NUMERICS §4 */
#define BL_N_LANES     128u  /* NUMERICS §2 */

/* Scales of 16 rows x 256 k. Sub-scales sc are per sub-block of 32; the mins of sub-blocks 2j and 2j+1 lie
 * side by side, ready to be widened into the pairs that vpmaddwd takes. */
typedef struct {
    uint16_t d[16], dmin[16]; /* f16 */
    uint8_t sc[8][16];
    uint8_t mn[4][16][2];
} bl_pk_k45;
typedef struct {
    uint16_t d[16];
    int8_t sc[16][16]; /* per sub-block of 16 */
} bl_pk_k6;

typedef struct {
    bl_dtype dtype; /* GGUF_MXFP4 has become MXFP4 */
    uint32_t n_out, k;
    uint32_t group;       /* MLX types: weights per scale, else 0 */
    bl_dtype scale_dtype; /* affine types */
    float global_scale;   /* NVFP4: 1 when the file has none */
    uint32_t n_blocks;
    size_t block_bytes; /* from one block to the next, a multiple of 64 */
    size_t data_off;
    const uint8_t *base; /* 64-byte aligned */
} bl_packed;

/* How weights meet activations: in f32, or in int8 with one scale of x per so many of k (NUMERICS §3). */
typedef enum { BL_GROUP_FLOAT, BL_GROUP_32, BL_GROUP_64, BL_GROUP_256, BL_GROUP__MAX } bl_group;

static inline bl_group bl_pk_group(const bl_packed *w) {
    switch (w->dtype) {
    case BL_DTYPE_F32:
    case BL_DTYPE_F16:
    case BL_DTYPE_BF16:
    case BL_DTYPE_MXFP8:
        return BL_GROUP_FLOAT;
    case BL_DTYPE_Q4_K:
    case BL_DTYPE_Q5_K:
    case BL_DTYPE_Q6_K:
        return BL_GROUP_256;
    default:
        return bl_dtype_is_affine(w->dtype) && w->group != 32 ? BL_GROUP_64 : BL_GROUP_32;
    }
}
static inline uint32_t bl_group_elems(bl_group g) {
    return g == BL_GROUP_256 ? 256 : g == BL_GROUP_64 ? 64 : g == BL_GROUP_32 ? 32 : 1;
}
static inline bool bl_pk_is_wide(bl_dtype t) { /* K quants */
    return t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K || t == BL_DTYPE_Q6_K;
}
/* Bytes of one chunk's data (16 rows x 32 k) of a quantised type. */
static inline size_t bl_pk_chunk_bytes(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_AFFINE2:
        return 128;
    case BL_DTYPE_AFFINE3:
        return 192;
    case BL_DTYPE_Q4_0:
    case BL_DTYPE_Q4_1:
    case BL_DTYPE_Q4_K:
    case BL_DTYPE_AFFINE4:
    case BL_DTYPE_MXFP4:
    case BL_DTYPE_NVFP4:
        return 256;
    case BL_DTYPE_Q5_0:
    case BL_DTYPE_Q5_1:
    case BL_DTYPE_Q5_K:
    case BL_DTYPE_AFFINE5:
        return 320;
    case BL_DTYPE_Q6_K:
    case BL_DTYPE_AFFINE6:
        return 384;
    default:
        return 512;
    }
}
/* An offset per scale, added to the product of scale and bits. */
static inline bool bl_pk_has_min(bl_dtype t) {
    return t == BL_DTYPE_Q4_1 || t == BL_DTYPE_Q5_1 || bl_dtype_is_affine(t);
}
/* Bytes of the scales (with their offsets) of 16 rows that serve bl_pk_scale_elems(w) of k. */
static inline size_t bl_pk_scale_bytes(const bl_packed *w) {
    switch (w->dtype) {
    case BL_DTYPE_F32:
    case BL_DTYPE_F16:
    case BL_DTYPE_BF16:
        return 0;
    case BL_DTYPE_MXFP4:
    case BL_DTYPE_MXFP8:
    case BL_DTYPE_NVFP4:
        return BL_PK_ROWS;
    case BL_DTYPE_Q4_K:
    case BL_DTYPE_Q5_K:
        return sizeof(bl_pk_k45);
    case BL_DTYPE_Q6_K:
        return sizeof(bl_pk_k6);
    default:
        return (bl_pk_has_min(w->dtype) ? 2u : 1u) * BL_PK_ROWS *
               (bl_dtype_is_affine(w->dtype) && w->scale_dtype == BL_DTYPE_F32 ? 4u : 2u);
    }
}
static inline uint32_t bl_pk_scale_elems(const bl_packed *w) {
    return w->group ? w->group : bl_pk_is_wide(w->dtype) ? 256 : 32;
}

/* Quantised rows of activations (NUMERICS §3). One set per group width. Row r of a plane starts at r * its
 * leading dimension (in elements); q rows are 64-byte aligned. The sums are what the formats' offsets need:
 *   qsum             sum of q over the group (32 or 64)
 *   s32, s16         sums of q over 32 and 16 neighbours
 *   ps, ps32, ps16   the same split in two for vpmaddubsw's lanes: low half the int16 sum of q[4s] + q[4s+1]
 * over the group's steps s, high half that of q[4s+2] + q[4s+3] */
typedef struct {
    size_t ld_q; /* of q: multiple of 64 */
    size_t ld_g; /* of d, dq, qsum, ps (per group) */
    size_t ld_s; /* of s32 and ps32; s16 and ps16 have twice it */
    int8_t *q;
    float *d; /* a / 127 */
    /* groups 32 and 64 */
    int32_t *qsum;
    float *dq; /* d * (float)qsum, rounded once */
    /* group 32 */
    uint32_t *ps;
    /* group 256 */
    int16_t *s32, *s16;
    uint32_t *ps32, *ps16;
} bl_xq;

/* One matrix product over a range of blocks and rows: y[r][16 * block ...] for r in [row0, row1). y's row
 * stride covers whole blocks (bl_slot_stride), and the lanes past n_out are written (with the zero rows'
 * result). */
typedef struct {
    const bl_packed *w;
    const bl_xq *xq; /* quantised weights */
    const float *x;  /* float weights: [rows][ldx] */
    size_t ldx;
    float *y;
    size_t ldy;
    const float *bias; /* [n_out] or NULL */
} bl_mm_args;

typedef void bl_mm_fn(const bl_mm_args *a, uint32_t block0, uint32_t block1, uint32_t row0, uint32_t row1);

/* Attention of rows [row0, row1) of one sequence, over query heads [head0, head1) which share one KV head. */
#define BL_ATTN_MAX_QV 64u /* (row1 - row0) * (head1 - head0) at most */
typedef struct {
    const float *q; /* [rows][ldq], head h at h * head_dim */
    float *out;     /* [rows][ldo] */
    size_t ldq, ldo;
    const int32_t *pos; /* [rows] */
    void *const *tiles; /* tile table of this layer and sequence */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window; /* 0: all */
    float scale;
    const float *sinks; /* [n_heads] or NULL */
    bool kv_f32;
} bl_attn_args;
typedef void bl_attn_fn(const bl_attn_args *a, uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1,
                        float *scratch);
/* Floats of scratch for one call: segment and total accumulators and 64 scores per query vector. 64-byte
 * aligned. */
static inline size_t bl_attn_scratch_floats(uint32_t head_dim) {
    return (size_t)BL_ATTN_MAX_QV * (2u * ((head_dim + 15u) & ~15u) + 64u);
}

/* The gated delta rule over the rows of one sequence (NUMERICS §6), q and k normalised, gates evaluated. */
typedef struct {
    const float *qkv; /* [rows][ld]: q [n_key_heads][dim], k likewise, v [n_heads][head_dim] */
    size_t ld;
    const float *beta, *decay; /* [rows][ldg] */
    size_t ldg;
    float *out; /* [rows][ldo] */
    size_t ldo;
    float *state; /* [n_heads][dim][head_dim] */
    uint32_t n_heads, n_key_heads, dim, head_dim;
    bl_head_order heads;
} bl_delta_args;

static inline uint32_t bl_delta_key_head(const bl_delta_args *a, uint32_t head) {
    return a->heads == BL_HEADS_TILED ? head % a->n_key_heads : head / (a->n_heads / a->n_key_heads);
}
/* Lanes of head_dim that one call takes at most. */
#define BL_DELTA_LANES 64u

/* A causal convolution per channel, then silu, over the rows of one sequence. `state` are the n_taps - 1 rows
 * before row 0, of `width` floats; it is read only. */
typedef struct {
    const float *w; /* [n_taps][width] */
    const float *state, *x;
    float *y;
    size_t ldx, ldy;
    uint32_t width, n_taps;
} bl_conv_args;

typedef struct {
    uint32_t flags;                /* what filled it, BL_CPU_* */
    bl_mm_fn *matmul[BL_DTYPE_I8]; /* by weight type */
    bl_attn_fn *attention;
    /* One row of x into row `row` of the planes. k % 32 == 0 (q is then zeroed up to the next 64), k % 64, k
     * % 256 == 0. */
    void (*quant32)(const bl_xq *o, size_t row, const float *x, uint32_t k);
    void (*quant64)(const bl_xq *o, size_t row, const float *x, uint32_t k);
    void (*quant256)(const bl_xq *o, size_t row, const float *x, uint32_t k);
    /* dst[k] = row `row` dequantised exactly like bl_dequant_row or bl_mlx_dequant, times scale (one
     * product). */
    void (*embed)(const bl_packed *w, uint32_t row, float scale, float *dst);
    /* y = (x * r) * w over n elements, w NULL: x * r; y == x allowed. With add not NULL: y = add + that (y ==
     * add allowed). */
    void (*rmsnorm)(const float *x, const float *w, const float *add, float *y, uint32_t n, float eps);
    void (*add)(const float *a, const float *b, float *y, size_t n);
    void (*glu)(const float *a, const float *b, float *y, size_t n, bl_glu_act act, float limit);
    void (*softcap)(float *x, size_t n, float cap);
    /* One head in place; cs = cos[half] then sin[half], half = n_rot / 2. */
    void (*rope)(float *x, const float *cs, uint32_t half);
    /* y[n] = fma(w, x, y) */
    void (*axpy)(float w, const float *x, float *y, size_t n);
    void (*conv)(const bl_conv_args *a, uint32_t row0, uint32_t row1, uint32_t col0, uint32_t col1);
    /* Rows in order; lanes [lane0, lane1) of value head `head`, at most BL_DELTA_LANES. */
    void (*delta)(const bl_delta_args *a, uint32_t row0, uint32_t row1, uint32_t head, uint32_t lane0,
                  uint32_t lane1);
    /* One row of K and V of one head into a tile: k column `col` of kt[head_dim][64], v row of
     * vt[64][head_dim]. */
    void (*kv_store)(const float *k, const float *v, uint32_t head_dim, void *kt, void *vt, uint32_t col,
                     bool f32);
    /* Probes: reads n bytes (multiple of 256) and returns something that depends on all of them; runs n_iter
     * rounds of the widest int8 multiply-accumulate in independent chains and returns the number of
     * multiply-accumulates done (*sink keeps it honest). */
    uint64_t (*probe_read)(const uint8_t *p, size_t n);
    uint64_t (*probe_int8)(uint64_t n_iter, uint64_t *sink);
} bl_kernels;

void bl_kernels_ref(bl_kernels *t);
/* Its embed, for the types that a wider tier has no form of. */
void bl_embed_ref(const bl_packed *w, uint32_t row, float scale, float *dst);
#if defined(__x86_64__)
void bl_kernels_avx2(bl_kernels *t);
/* its parts, one file each */
void bl_kernels_avx2_float(bl_kernels *t);
void bl_kernels_avx2_quant(bl_kernels *t);
void bl_kernels_avx2_attn(bl_kernels *t);
void bl_kernels_avx2_recur(bl_kernels *t);
void bl_kernels_avx512(bl_kernels *t);
void bl_kernels_avx512vnni(bl_kernels *t);
#endif
/* Scalar, then every tier in flags from narrow to wide. */
void bl_kernels_fill(bl_kernels *t, uint32_t flags);

#endif
