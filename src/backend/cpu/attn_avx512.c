/* Attention over the KV tiles, AVX-512 (NUMERICS §4).
 *
 * The query vectors of a call (rows x heads of one KV head) pass each tile together, up to four in registers:
 * scores with lanes over the tile's 64 keys, values with lanes over head dimensions. Keys that a query may
 * not see take no part: their scores are masked out of the maximum and of p, and the value sums skip them by
 * mask, not by a zero factor (an unwritten V may be anything, and adding 0 * v could turn -0 into +0).
 */
#include "backend/cpu/common_avx512.h"

#define GROUP 4u /* query vectors at once */
#define KEYS  4u /* vectors of 16 keys in a tile */

typedef struct {
    const bl_attn_args *a;
    uint32_t n, hd;   /* query vectors; head_dim in whole vectors */
    uint32_t kvh;     /* the KV head */
    float *seg, *tot; /* [n][hd] accumulators of the segment and in total */
    float *p;         /* [n][64] */
    const float *q[BL_ATTN_MAX_QV];
    float *out[BL_ATTN_MAX_QV];
    uint32_t first[BL_ATTN_MAX_QV], pos[BL_ATTN_MAX_QV]; /* keys first..pos are visible */
    float seg_m[BL_ATTN_MAX_QV], seg_l[BL_ATTN_MAX_QV], tot_m[BL_ATTN_MAX_QV], tot_l[BL_ATTN_MAX_QV];
} job;

/* One tile as a few query vectors see it. */
typedef struct {
    const void *kt, *vt;
    uint32_t idx[BL_ATTN_MAX_QV]; /* query vectors with a visible key */
    uint64_t vis[BL_ATTN_MAX_QV]; /* by position in idx: the visible keys */
    float c[BL_ATTN_MAX_QV];      /* by position in idx: what the accumulator is scaled with */
} view;

INLINE __m512 load_kv(const void *p, size_t at, bool f32, __mmask16 m) {
    if (f32) {
        return _mm512_maskz_loadu_ps(m, (const float *)p + at);
    }
    __m256i v = _mm256_maskz_loadu_epi16(m, (const uint16_t *)p + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* Scores, not yet scaled, of M query vectors from `at` on. */
INLINE void scores(job *j, const view *v, unsigned M, uint32_t at, bool f32) {
    const float *q[GROUP];
    __m512 s[GROUP][KEYS];
    UNROLL for (unsigned m = 0; m < M; m++) {
        q[m] = j->q[v->idx[at + m]];
        UNROLL for (unsigned i = 0; i < KEYS; i++) {
            s[m][i] = _mm512_setzero_ps();
        }
    }
    for (size_t d = 0; d < j->a->head_dim; d++) {
        UNROLL for (unsigned i = 0; i < KEYS; i++) {
            __m512 k = load_kv(v->kt, d * BL_KV_TILE + 16 * i, f32, (__mmask16)0xffff);
            UNROLL for (unsigned m = 0; m < M; m++) {
                s[m][i] = _mm512_fmadd_ps(_mm512_set1_ps(q[m][d]), k, s[m][i]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        float *p = j->p + (size_t)v->idx[at + m] * BL_KV_TILE;
        UNROLL for (unsigned i = 0; i < KEYS; i++) {
            _mm512_storeu_ps(p + 16 * i, s[m][i]);
        }
    }
}

/* Scores become p; m and l of the segment move on. */
INLINE void softmax(job *j, view *v, uint32_t at) {
    const uint32_t i = v->idx[at];
    const __m512 scale = _mm512_set1_ps(j->a->scale), none = _mm512_set1_ps(-INFINITY);
    float *p = j->p + (size_t)i * BL_KV_TILE;
    __m512 s[KEYS], t = none;
    UNROLL for (unsigned k = 0; k < KEYS; k++) {
        __mmask16 seen = (__mmask16)(v->vis[at] >> (16 * k));
        s[k] = _mm512_mask_mul_ps(none, seen, _mm512_loadu_ps(p + 16 * k), scale);
        t = _mm512_max_ps(t, s[k]);
    }
    float tile = max16(t), old = j->seg_m[i], m = old > tile ? old : tile;
    UNROLL for (unsigned k = 0; k < KEYS; k++) {
        __mmask16 seen = (__mmask16)(v->vis[at] >> (16 * k));
        s[k] = _mm512_maskz_mov_ps(seen, exp16(_mm512_sub_ps(s[k], _mm512_set1_ps(m))));
        _mm512_storeu_ps(p + 16 * k, s[k]);
    }
    __m512 sum = _mm512_add_ps(_mm512_add_ps(s[0], s[2]), _mm512_add_ps(s[1], s[3]));
    v->c[at] = canon_exp(old - m);
    j->seg_l[i] = fmaf(j->seg_l[i], v->c[at], fold16(sum));
    j->seg_m[i] = m;
}

/* acc = fma(acc, c, sum over visible keys in [j0, j1) of p * v) for N vectors of head dimensions from d on.
 * partial: not every query vector sees all of [j0, j1). */
INLINE void values(job *j, const view *v, unsigned M, unsigned N, uint32_t at, uint32_t d, uint32_t j0,
                   uint32_t j1, bool partial, bool f32) {
    const uint32_t head_dim = j->a->head_dim;
    const __mmask16 lanes = N == 1 ? mask_first(head_dim - d) : (__mmask16)0xffff;
    const float *p[GROUP];
    __m512 s[GROUP][4];
    UNROLL for (unsigned m = 0; m < M; m++) {
        p[m] = j->p + (size_t)v->idx[at + m] * BL_KV_TILE;
        UNROLL for (unsigned i = 0; i < N; i++) {
            s[m][i] = _mm512_setzero_ps();
        }
    }
    for (size_t k = j0; k < j1; k++) {
        __m512 x[4];
        UNROLL for (unsigned i = 0; i < N; i++) {
            x[i] = load_kv(v->vt, k * head_dim + d + 16 * i, f32, lanes);
        }
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m512 w = _mm512_set1_ps(p[m][k]);
            __mmask16 seen = (__mmask16)(0u - (uint32_t)(v->vis[at + m] >> k & 1));
            UNROLL for (unsigned i = 0; i < N; i++) {
                s[m][i] = partial ? _mm512_mask3_fmadd_ps(w, x[i], s[m][i], seen)
                                  : _mm512_fmadd_ps(w, x[i], s[m][i]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        float *acc = j->seg + (size_t)v->idx[at + m] * j->hd + d;
        __m512 c = _mm512_set1_ps(v->c[at + m]);
        UNROLL for (unsigned i = 0; i < N; i++) {
            _mm512_storeu_ps(acc + 16 * i, _mm512_fmadd_ps(_mm512_loadu_ps(acc + 16 * i), c, s[m][i]));
        }
    }
}

INLINE void all_values(job *j, const view *v, unsigned M, uint32_t at, uint32_t j0, uint32_t j1, bool partial,
                       bool f32) {
    uint32_t d = 0;
    for (; d + 64 <= j->a->head_dim; d += 64) {
        values(j, v, M, 4, at, d, j0, j1, partial, f32);
    }
    for (; d < j->a->head_dim; d += 16) {
        values(j, v, M, 1, at, d, j0, j1, partial, f32);
    }
}

/* M query vectors from `at` on over one tile. */
INLINE void tile_pass(job *j, view *v, unsigned M, uint32_t at, bool f32) {
    scores(j, v, M, at, f32);
    uint64_t any = 0, every = UINT64_MAX;
    for (unsigned m = 0; m < M; m++) {
        softmax(j, v, at + m);
        any |= v->vis[at + m];
        every &= v->vis[at + m];
    }
    uint32_t j0 = (uint32_t)__builtin_ctzll(any), j1 = 64 - (uint32_t)__builtin_clzll(any);
    if (M > 1 && any != every) {
        all_values(j, v, M, at, j0, j1, true, f32);
    } else {
        all_values(j, v, M, at, j0, j1, false, f32);
    }
}

INLINE void tile(job *j, view *v, uint32_t n, bool f32) {
    uint32_t at = 0;
    for (; at + 4 <= n; at += 4) {
        tile_pass(j, v, 4, at, f32);
    }
    if (at + 2 <= n) {
        tile_pass(j, v, 2, at, f32);
        at += 2;
    }
    if (at < n) {
        tile_pass(j, v, 1, at, f32);
    }
}

static void tile_bf16(job *j, view *v, uint32_t n) {
    tile(j, v, n, false);
}
static void tile_f32(job *j, view *v, uint32_t n) {
    tile(j, v, n, true);
}

/* Keys of the tile at t0 that query vector i sees; not none. */
static uint64_t visible(const job *j, uint32_t i, uint32_t t0) {
    uint32_t j0 = j->first[i] > t0 ? j->first[i] - t0 : 0,
             j1 = BL_MIN(j->pos[i] - t0 + 1, (uint32_t)BL_KV_TILE);
    return UINT64_MAX << j0 & UINT64_MAX >> (BL_KV_TILE - j1);
}

static void segment(job *j, uint32_t s0, uint32_t last) {
    const bl_attn_args *a = j->a;
    const size_t half = (size_t)BL_KV_TILE * a->head_dim * (a->kv_f32 ? 4 : 2);
    view v;
    for (uint32_t i = 0; i < j->n; i++) {
        j->seg_m[i] = -INFINITY;
        j->seg_l[i] = 0.0f;
    }
    memset(j->seg, 0, (size_t)j->n * j->hd * sizeof(float));
    for (uint32_t t0 = s0; t0 < s0 + BL_SEGMENT && t0 <= last; t0 += BL_KV_TILE) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < j->n; i++) {
            if (j->pos[i] >= t0 && j->first[i] < t0 + BL_KV_TILE) {
                v.idx[n] = i;
                v.vis[n++] = visible(j, i, t0);
            }
        }
        if (n == 0) {
            continue; /* the tile may be gone */
        }
        v.kt = (const uint8_t *)a->tiles[t0 / BL_KV_TILE] + 2 * half * j->kvh;
        v.vt = (const uint8_t *)v.kt + half;
        if (a->kv_f32) {
            tile_f32(j, &v, n);
        } else {
            tile_bf16(j, &v, n);
        }
    }
}

/* The segment of query vector i joins its total. */
static void combine(job *j, uint32_t i) {
    float m = j->tot_m[i] > j->seg_m[i] ? j->tot_m[i] : j->seg_m[i];
    float c = canon_exp(j->tot_m[i] - m), cs = canon_exp(j->seg_m[i] - m);
    const __m512 cv = _mm512_set1_ps(c), csv = _mm512_set1_ps(cs);
    float *tot = j->tot + (size_t)i * j->hd, *seg = j->seg + (size_t)i * j->hd;
    for (uint32_t d = 0; d < j->hd; d += 16) {
        __m512 s = _mm512_mul_ps(csv, _mm512_loadu_ps(seg + d));
        _mm512_storeu_ps(tot + d, _mm512_fmadd_ps(_mm512_loadu_ps(tot + d), cv, s));
    }
    j->tot_l[i] = fmaf(j->tot_l[i], c, cs * j->seg_l[i]);
    j->tot_m[i] = m;
}

static void attention(const bl_attn_args *a, uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1,
                      float *scratch) {
    job j = {.a = a, .hd = (a->head_dim + 15u) & ~15u, .kvh = head0 / (a->n_heads / a->n_kv_heads)};
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t row = row0; row < row1; row++) {
        uint32_t pos = (uint32_t)a->pos[row];
        uint32_t from = a->window && pos >= a->window ? pos - a->window + 1 : 0;
        first = BL_MIN(first, from);
        last = BL_MAX(last, pos);
        for (uint32_t h = head0; h < head1; h++, j.n++) {
            j.q[j.n] = a->q + (size_t)row * a->ldq + (size_t)h * a->head_dim;
            j.out[j.n] = a->out + (size_t)row * a->ldo + (size_t)h * a->head_dim;
            j.first[j.n] = from;
            j.pos[j.n] = pos;
            j.tot_m[j.n] = a->sinks ? a->sinks[h] : -INFINITY;
            j.tot_l[j.n] = a->sinks ? 1.0f : 0.0f;
        }
    }
    j.seg = scratch;
    j.tot = j.seg + (size_t)j.n * j.hd;
    j.p = j.tot + (size_t)j.n * j.hd;
    memset(j.tot, 0, (size_t)j.n * j.hd * sizeof(float));
    if (j.n == 0) {
        return;
    }
    for (uint32_t s0 = first - first % BL_SEGMENT; s0 <= last; s0 += BL_SEGMENT) {
        segment(&j, s0, last);
        for (uint32_t i = 0; i < j.n; i++) {
            if (j.pos[i] >= s0 && j.first[i] < s0 + BL_SEGMENT) {
                combine(&j, i);
            }
        }
    }
    for (uint32_t i = 0; i < j.n; i++) {
        const __m512 l = _mm512_set1_ps(j.tot_l[i]);
        for (uint32_t d = 0; d < a->head_dim; d += 16) {
            __m512 v = _mm512_div_ps(_mm512_loadu_ps(j.tot + (size_t)i * j.hd + d), l);
            _mm512_mask_storeu_ps(j.out[i] + d, mask_first(a->head_dim - d), v);
        }
    }
}

void bl_kernels_avx512_attn(bl_kernels *t) {
    t->attention = attention;
}
