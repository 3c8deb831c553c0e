/* AVX2 kernels of recurrent layers: the same operations as ref.c, eight lanes at a time. */
#include <immintrin.h>
#include <math.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/vec_avx2.h"
#include "base/base.h"

#define N_REGS (BL_DELTA_LANES / 8u)

static void conv(const bl_conv_args *a, uint32_t row0, uint32_t row1, uint32_t col0, uint32_t col1) {
    uint32_t before = a->n_taps - 1;
    for (uint32_t r = row0; r < row1; r++) {
        uint32_t c = col0;
        for (; c + 8 <= col1; c += 8) {
            __m256 v = _mm256_setzero_ps();
            for (uint32_t j = 0; j < a->n_taps; j++) {
                uint32_t at = r + j;
                const float *x =
                    at < before ? a->state + (size_t)at * a->width + c : a->x + (at - before) * a->ldx + c;
                v = _mm256_fmadd_ps(_mm256_loadu_ps(a->w + (size_t)j * a->width + c), _mm256_loadu_ps(x), v);
            }
            _mm256_storeu_ps(a->y + r * a->ldy + c, v8_silu(v));
        }
        for (; c < col1; c++) {
            float v = 0.0f;
            for (uint32_t j = 0; j < a->n_taps; j++) {
                uint32_t at = r + j;
                float x =
                    at < before ? a->state[(size_t)at * a->width + c] : a->x[(at - before) * a->ldx + c];
                v = fmaf(a->w[(size_t)j * a->width + c], x, v);
            }
            a->y[r * a->ldy + c] = canon_silu(v);
        }
    }
}

/* One row over n registers of lanes. s: the state's first row at these lanes. */
V8 void delta_row(uint32_t n, float *s, size_t lds, uint32_t dim, const float *q, const float *k,
                  const float *v, float decay, float beta, float *out) {
    __m256 acc[N_REGS], d[N_REGS];
    const __m256 g = _mm256_set1_ps(decay), b = _mm256_set1_ps(beta);
    for (uint32_t m = 0; m < n; m++) {
        acc[m] = _mm256_setzero_ps();
    }
    for (uint32_t i = 0; i < dim; i++) {
        float *at = s + i * lds;
        const __m256 ki = _mm256_broadcast_ss(k + i);
        for (uint32_t m = 0; m < n; m++) {
            __m256 t = _mm256_mul_ps(_mm256_loadu_ps(at + 8 * m), g);
            _mm256_storeu_ps(at + 8 * m, t);
            acc[m] = _mm256_fmadd_ps(t, ki, acc[m]);
        }
    }
    for (uint32_t m = 0; m < n; m++) {
        d[m] = _mm256_mul_ps(b, _mm256_sub_ps(_mm256_loadu_ps(v + 8 * m), acc[m]));
        acc[m] = _mm256_setzero_ps();
    }
    for (uint32_t i = 0; i < dim; i++) {
        float *at = s + i * lds;
        const __m256 ki = _mm256_broadcast_ss(k + i), qi = _mm256_broadcast_ss(q + i);
        for (uint32_t m = 0; m < n; m++) {
            __m256 t = _mm256_fmadd_ps(ki, d[m], _mm256_loadu_ps(at + 8 * m));
            _mm256_storeu_ps(at + 8 * m, t);
            acc[m] = _mm256_fmadd_ps(t, qi, acc[m]);
        }
    }
    for (uint32_t m = 0; m < n; m++) {
        _mm256_storeu_ps(out + 8 * m, acc[m]);
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
        float *out = a->out + r * a->ldo + (size_t)head * a->head_dim;
        uint32_t j = lane0;
        if (lane1 - j == BL_DELTA_LANES) {
            delta_row(N_REGS, s + j, a->head_dim, a->dim, q, k, v + j, decay, beta, out + j);
            continue;
        }
        for (; j + 8 <= lane1; j += 8) {
            delta_row(1, s + j, a->head_dim, a->dim, q, k, v + j, decay, beta, out + j);
        }
        for (; j < lane1; j++) { /* head dims that are no multiple of 8 */
            float read = 0.0f, y = 0.0f, d;
            for (uint32_t i = 0; i < a->dim; i++) {
                float *at = &s[(size_t)i * a->head_dim + j];
                *at = *at * decay;
                read = fmaf(*at, k[i], read);
            }
            d = beta * (v[j] - read);
            for (uint32_t i = 0; i < a->dim; i++) {
                float *at = &s[(size_t)i * a->head_dim + j];
                *at = fmaf(k[i], d, *at);
                y = fmaf(*at, q[i], y);
            }
            out[j] = y;
        }
    }
}

void bl_kernels_avx2_recur(bl_kernels *t) {
    t->conv = conv;
    t->delta = delta;
}
