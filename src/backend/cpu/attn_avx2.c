/* Attention, AVX2 (NUMERICS §4).
 *
 * A call holds up to 64 query vectors (rows x heads that share one KV head) and walks the tiles once for all
 * of them. Scores: lanes are keys (K is stored transposed), up to six query vectors share each load of K.
 * Values: lanes are dimensions, six share each load of V. bf16 is widened in registers, which hides behind
 * the multiply-adds. A key outside a vector's range never reaches its sums: scores are computed for whole
 * vectors of keys and dropped, values are visited in the common range together and in the ragged ends one
 * vector at a time, always in ascending order.
 */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/vec_avx2.h"
#include "base/base.h"

#define UNROLL _Pragma("GCC unroll 16")
#define GROUP  6u

/* One query vector. */
typedef struct {
    const float *q;
    float *out;
    float *acc, *tot; /* [head_dim] of the segment and of all */
    float *s;         /* [64] scores, then weights, of the current tile */
    float m, l, tot_m, tot_l;
    float c;             /* exp(m - m') of the current tile */
    uint32_t first, end; /* visible positions [first, end) */
    uint32_t j0, j1;     /* of the current tile */
} qvec;

V8 __m256 kv8(const void *p, size_t i, bool f32) {
    if (f32) {
        return _mm256_loadu_ps((const float *)p + i);
    }
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Asks for what lies `ahead` bytes behind n bytes at element i: the same place in the next tile, or (0)
 * nothing new. */
V8 void ask_ahead(unsigned n, bool f32, const void *p, size_t i, ptrdiff_t ahead) {
    uintptr_t at = (uintptr_t)p + i * (f32 ? 4 : 2) + (uintptr_t)ahead;
    for (unsigned b = 0; b < n; b += 64) {
        _mm_prefetch((const char *)(at + b), _MM_HINT_T0);
    }
}

/* s[m][j .. j + 8N) = scale * q_m . K, for M vectors. */
V8 void scores(unsigned M, unsigned N, bool f32, qvec *const *v, const void *kt, uint32_t j,
               uint32_t head_dim, float scale, ptrdiff_t ahead) {
    __m256 s[GROUP][8];
    UNROLL for (unsigned m = 0; m < M; m++) {
        UNROLL for (unsigned n = 0; n < N; n++) {
            s[m][n] = _mm256_setzero_ps();
        }
    }
    const float *q[GROUP];
    UNROLL for (unsigned m = 0; m < M; m++) {
        q[m] = v[m]->q;
    }
    for (size_t d = 0; d < head_dim; d++) {
        __m256 k[8];
        ask_ahead(8 * N * (f32 ? 4 : 2), f32, kt, d * BL_KV_TILE + j, ahead);
        UNROLL for (unsigned n = 0; n < N; n++) {
            k[n] = kv8(kt, d * BL_KV_TILE + j + 8 * n, f32);
        }
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m256 x = _mm256_broadcast_ss(q[m] + d);
            UNROLL for (unsigned n = 0; n < N; n++) {
                s[m][n] = _mm256_fmadd_ps(x, k[n], s[m][n]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        UNROLL for (unsigned n = 0; n < N; n++) {
            _mm256_storeu_ps(v[m]->s + j + 8 * n, _mm256_mul_ps(s[m][n], _mm256_set1_ps(scale)));
        }
    }
}

/* acc[d .. d + 8N) = fma(acc, c, sum over the visible j of w_j V_j), for M vectors whose ranges have [lo, hi)
 * in common. */
V8 void values(unsigned M, unsigned N, bool f32, qvec *const *v, const void *vt, uint32_t lo, uint32_t hi,
               uint32_t d, uint32_t head_dim, ptrdiff_t ahead) {
    __m256 t[GROUP][8];
    const float *w[GROUP];
    UNROLL for (unsigned m = 0; m < M; m++) {
        w[m] = v[m]->s;
        UNROLL for (unsigned n = 0; n < N; n++) {
            t[m][n] = _mm256_setzero_ps();
        }
        for (uint32_t j = v[m]->j0; j < lo; j++) {
            __m256 x = _mm256_broadcast_ss(w[m] + j);
            UNROLL for (unsigned n = 0; n < N; n++) {
                t[m][n] = _mm256_fmadd_ps(x, kv8(vt, (size_t)j * head_dim + d + 8 * n, f32), t[m][n]);
            }
        }
    }
    for (uint32_t j = lo; j < hi; j++) {
        __m256 y[8];
        ask_ahead(8 * N * (f32 ? 4 : 2), f32, vt, (size_t)j * head_dim + d, ahead);
        UNROLL for (unsigned n = 0; n < N; n++) {
            y[n] = kv8(vt, (size_t)j * head_dim + d + 8 * n, f32);
        }
        UNROLL for (unsigned m = 0; m < M; m++) {
            __m256 x = _mm256_broadcast_ss(w[m] + j);
            UNROLL for (unsigned n = 0; n < N; n++) {
                t[m][n] = _mm256_fmadd_ps(x, y[n], t[m][n]);
            }
        }
    }
    UNROLL for (unsigned m = 0; m < M; m++) {
        for (uint32_t j = BL_MAX(hi, v[m]->j0); j < v[m]->j1; j++) {
            __m256 x = _mm256_broadcast_ss(w[m] + j);
            UNROLL for (unsigned n = 0; n < N; n++) {
                t[m][n] = _mm256_fmadd_ps(x, kv8(vt, (size_t)j * head_dim + d + 8 * n, f32), t[m][n]);
            }
        }
        __m256 c = _mm256_set1_ps(v[m]->c);
        UNROLL for (unsigned n = 0; n < N; n++) {
            float *a = v[m]->acc + d + 8 * n;
            _mm256_storeu_ps(a, _mm256_fmadd_ps(_mm256_loadu_ps(a), c, t[m][n]));
        }
    }
}

/* The last head_dim % 8 dimensions. */
static void values_tail(bool f32, qvec *v, const void *vt, uint32_t d, uint32_t head_dim) {
    for (; d < head_dim; d++) {
        float t = 0.0f;
        for (size_t j = v->j0; j < v->j1; j++) {
            size_t i = j * head_dim + d;
            t = fmaf(v->s[j], f32 ? ((const float *)vt)[i] : bl_bf16_to_f32(((const uint16_t *)vt)[i]), t);
        }
        v->acc[d] = fmaf(v->acc[d], v->c, t);
    }
}

/* The running maximum, the weights and their sum for one vector's tile. */
static void softmax_tile(qvec *v) {
    __m256 s[8];
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i lo = _mm256_set1_epi32((int)v->j0 - 1), hi = _mm256_set1_epi32((int)v->j1);
    __m256 t = _mm256_set1_ps(-INFINITY), see[8];
    UNROLL for (unsigned n = 0; n < 8; n++) {
        __m256i j = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * (int)n));
        see[n] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(j, lo), _mm256_cmpgt_epi32(hi, j)));
        s[n] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(v->s + 8 * n), see[n]);
        t = _mm256_max_ps(s[n], t);
    }
    float top = v8_max(t), m = v->m > top ? v->m : top;
    __m256 mv = _mm256_set1_ps(m);
    UNROLL for (unsigned n = 0; n < 8; n++) {
        s[n] = _mm256_and_ps(v8_exp(_mm256_sub_ps(s[n], mv)), see[n]);
        _mm256_storeu_ps(v->s + 8 * n, s[n]);
    }
    for (unsigned w = 4; w > 0; w /= 2) {
        for (unsigned n = 0; n < w; n++) {
            s[n] = _mm256_add_ps(s[n], s[n + w]);
        }
    }
    v->c = canon_exp(v->m - m);
    v->l = fmaf(v->l, v->c, v8_fold(s[0]));
    v->m = m;
}

/* One tile for M vectors that all see some of it. */
V8 void tile(unsigned M, bool f32, qvec *const *v, const void *kt, const void *vt, uint32_t head_dim,
             float scale, ptrdiff_t ahead) {
    /* Vectors of keys per pass: 8 to 12 chains of fma, so that their latency is hidden. */
    const unsigned N = M == 1 ? 8 : M <= 3 ? 4 : 2;
    uint32_t j0 = v[0]->j0, j1 = v[0]->j1, lo = j0, hi = j1;
    for (unsigned m = 1; m < M; m++) {
        j0 = BL_MIN(j0, v[m]->j0);
        j1 = BL_MAX(j1, v[m]->j1);
        lo = BL_MAX(lo, v[m]->j0);
        hi = BL_MIN(hi, v[m]->j1);
    }
    for (uint32_t j = j0 - j0 % (8 * N); j < j1; j += 8 * N) {
        scores(M, N, f32, v, kt, j, head_dim, scale, ahead);
    }
    for (unsigned m = 0; m < M; m++) {
        softmax_tile(v[m]);
    }
    uint32_t d = 0;
    if (lo < hi) {
        for (; d + 8 * N <= head_dim; d += 8 * N) {
            values(M, N, f32, v, vt, lo, hi, d, head_dim, ahead);
        }
    }
    for (unsigned m = 0; m < M; m++) { /* no common key, or the rest of the dimensions */
        uint32_t i = d;
        for (; i + 8 <= head_dim; i += 8) {
            values(1, 1, f32, v + m, vt, v[m]->j0, v[m]->j1, i, head_dim, 0);
        }
        values_tail(f32, v[m], vt, i, head_dim);
    }
}

static void tile_bf16(unsigned M, qvec *const *v, const void *kt, const void *vt, uint32_t head_dim,
                      float scale, ptrdiff_t ahead) {
    switch (M) {
    case 6:
        tile(6, false, v, kt, vt, head_dim, scale, ahead);
        break;
    case 5:
        tile(5, false, v, kt, vt, head_dim, scale, ahead);
        break;
    case 4:
        tile(4, false, v, kt, vt, head_dim, scale, ahead);
        break;
    case 3:
        tile(3, false, v, kt, vt, head_dim, scale, ahead);
        break;
    case 2:
        tile(2, false, v, kt, vt, head_dim, scale, ahead);
        break;
    default:
        tile(1, false, v, kt, vt, head_dim, scale, ahead);
        break;
    }
}
static void tile_f32(unsigned M, qvec *const *v, const void *kt, const void *vt, uint32_t head_dim,
                     float scale, ptrdiff_t ahead) {
    if (M == GROUP) {
        tile(GROUP, true, v, kt, vt, head_dim, scale, ahead);
        return;
    }
    for (unsigned m = 0; m < M; m++) {
        tile(1, true, v + m, kt, vt, head_dim, scale, ahead);
    }
}

/* Folds a finished segment into the totals. */
static void end_segment(qvec *v, uint32_t head_dim) {
    float m = v->tot_m > v->m ? v->tot_m : v->m;
    float c = canon_exp(v->tot_m - m), cs = canon_exp(v->m - m);
    v->tot_l = fmaf(v->tot_l, c, cs * v->l);
    for (uint32_t d = 0; d < head_dim; d++) {
        v->tot[d] = fmaf(v->tot[d], c, cs * v->acc[d]);
        v->acc[d] = 0.0f;
    }
    v->tot_m = m;
    v->m = -INFINITY;
    v->l = 0.0f;
}

static uint32_t start(const bl_attn_args *a, uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1,
                      float *scratch, qvec *v) {
    uint32_t n = 0;
    size_t dim = (a->head_dim + 15u) & ~15u;
    for (uint32_t row = row0; row < row1; row++) {
        uint32_t pos = (uint32_t)a->pos[row];
        for (uint32_t h = head0; h < head1; h++, n++) {
            size_t at = (size_t)h * a->head_dim;
            float *p = scratch + n * (2 * dim + BL_KV_TILE);
            v[n] = (qvec){.q = a->q + row * a->ldq + at,
                          .out = a->out + row * a->ldo + at,
                          .s = p,
                          .acc = p + BL_KV_TILE,
                          .tot = p + BL_KV_TILE + dim,
                          .m = -INFINITY,
                          .tot_m = a->sinks ? a->sinks[h] : -INFINITY,
                          .tot_l = a->sinks ? 1.0f : 0.0f,
                          .first = a->window && pos >= a->window ? pos - a->window + 1 : 0,
                          .end = pos + 1};
            memset(v[n].acc, 0, 2 * dim * sizeof(float));
        }
    }
    return n;
}

static void attention(const bl_attn_args *a, uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1,
                      float *scratch) {
    qvec v[BL_ATTN_MAX_QV], *active[BL_ATTN_MAX_QV];
    uint32_t n = start(a, row0, row1, head0, head1, scratch, v);
    uint32_t first = v[0].first, end = v[n - 1].end; /* positions ascend */
    size_t half = (size_t)BL_KV_TILE * a->head_dim * (a->kv_f32 ? 4 : 2);
    size_t at = head0 / (a->n_heads / a->n_kv_heads) * 2 * half;
    if (n <= GROUP) { /* decode: nothing else hides the first tile */
        ask_ahead((unsigned)(2 * half), false, (const uint8_t *)a->tiles[first / BL_KV_TILE] + at, 0, 0);
    }
    for (uint32_t t0 = first - first % BL_KV_TILE; t0 < end; t0 += BL_KV_TILE) {
        uint32_t n_active = 0;
        for (uint32_t i = 0; i < n; i++) {
            v[i].j0 = v[i].first > t0 ? v[i].first - t0 : 0;
            v[i].j1 = v[i].end > t0 ? BL_MIN(v[i].end - t0, BL_KV_TILE) : 0;
            if (v[i].j0 < v[i].j1) {
                active[n_active++] = &v[i];
            }
        }
        const uint8_t *kt = n_active ? (const uint8_t *)a->tiles[t0 / BL_KV_TILE] + at : NULL;
        const uint8_t *next =
            kt && t0 + BL_KV_TILE < end ? (const uint8_t *)a->tiles[t0 / BL_KV_TILE + 1] + at : kt;
        for (uint32_t i = 0; i < n_active; i += GROUP) {
            (a->kv_f32 ? tile_f32 : tile_bf16)(BL_MIN(GROUP, n_active - i), active + i, kt, kt + half,
                                               a->head_dim, a->scale,
                                               (ptrdiff_t)((uintptr_t)next - (uintptr_t)kt));
        }
        if ((t0 + BL_KV_TILE) % BL_SEGMENT == 0 || t0 + BL_KV_TILE >= end) {
            for (uint32_t i = 0; i < n; i++) {
                if (v[i].m > -INFINITY) {
                    end_segment(&v[i], a->head_dim);
                }
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < a->head_dim; d++) {
            v[i].out[d] = v[i].tot[d] / v[i].tot_l;
        }
    }
}

void bl_kernels_avx2_attn(bl_kernels *t) {
    t->attention = attention;
}
