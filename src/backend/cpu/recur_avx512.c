/* AVX-512 kernels of recurrent layers: the same operations as ref.c, sixteen lanes at a time. */
#include <immintrin.h>

#include "backend/cpu/common_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/base.h"

#define N_REGS (BL_DELTA_LANES / 16u)

static void conv(const bl_conv_args *a, uint32_t row0, uint32_t row1, uint32_t col0, uint32_t col1) {
    uint32_t before = a->n_taps - 1;
    for (uint32_t r = row0; r < row1; r++) {
        for (uint32_t c = col0; c < col1; c += 16) {
            __mmask16 m = mask_first(col1 - c);
            __m512 v = _mm512_setzero_ps();
            for (uint32_t j = 0; j < a->n_taps; j++) {
                uint32_t at = r + j;
                const float *x =
                    at < before ? a->state + (size_t)at * a->width + c : a->x + (at - before) * a->ldx + c;
                v = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, a->w + (size_t)j * a->width + c),
                                    _mm512_maskz_loadu_ps(m, x), v);
            }
            _mm512_mask_storeu_ps(a->y + r * a->ldy + c, m, silu16(v));
        }
    }
}

/* One row over n registers of lanes, the last of them cut by `last`. s: the state's first row at these lanes.
 */
INLINE void delta_row(uint32_t n, __mmask16 last, float *s, size_t lds, uint32_t dim, const float *q,
                      const float *k, const float *v, float decay, float beta, float *out) {
    __m512 acc[N_REGS], d[N_REGS];
    __mmask16 m[N_REGS];
    const __m512 g = _mm512_set1_ps(decay), b = _mm512_set1_ps(beta);
    for (uint32_t j = 0; j < n; j++) {
        acc[j] = _mm512_setzero_ps();
        m[j] = j + 1 == n ? last : (__mmask16)0xffff;
    }
    for (uint32_t i = 0; i < dim; i++) {
        float *at = s + i * lds;
        const __m512 ki = _mm512_set1_ps(k[i]);
        for (uint32_t j = 0; j < n; j++) {
            __m512 t = _mm512_mul_ps(_mm512_maskz_loadu_ps(m[j], at + 16 * j), g);
            _mm512_mask_storeu_ps(at + 16 * j, m[j], t);
            acc[j] = _mm512_fmadd_ps(t, ki, acc[j]);
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        d[j] = _mm512_mul_ps(b, _mm512_sub_ps(_mm512_maskz_loadu_ps(m[j], v + 16 * j), acc[j]));
        acc[j] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < dim; i++) {
        float *at = s + i * lds;
        const __m512 ki = _mm512_set1_ps(k[i]), qi = _mm512_set1_ps(q[i]);
        for (uint32_t j = 0; j < n; j++) {
            __m512 t = _mm512_fmadd_ps(ki, d[j], _mm512_maskz_loadu_ps(m[j], at + 16 * j));
            _mm512_mask_storeu_ps(at + 16 * j, m[j], t);
            acc[j] = _mm512_fmadd_ps(t, qi, acc[j]);
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        _mm512_mask_storeu_ps(out + 16 * j, m[j], acc[j]);
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
        if (lane1 - lane0 == BL_DELTA_LANES) {
            delta_row(N_REGS, 0xffff, s + lane0, a->head_dim, a->dim, q, k, v + lane0, decay, beta,
                      out + lane0);
            continue;
        }
        for (uint32_t j = lane0; j < lane1; j += 16) {
            delta_row(1, mask_first(lane1 - j), s + j, a->head_dim, a->dim, q, k, v + j, decay, beta,
                      out + j);
        }
    }
}

void bl_kernels_avx512_recur(bl_kernels *t) {
    t->conv = conv;
    t->delta = delta;
}
