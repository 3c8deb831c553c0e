/* quant_avx512.h with vpdpbusd and vpdpwssd, and the integer probe. */
#define BL_VNNI 1
#include "backend/cpu/quant_avx512.h"

static uint64_t probe_int8(uint64_t n_iter, uint64_t *sink) {
    const __m512i w = _mm512_set1_epi8((char)(n_iter & 15)), x = _mm512_set1_epi32((int32_t)n_iter);
    __m512i s[12];
    UNROLL for (unsigned j = 0; j < 12; j++) {
        s[j] = _mm512_set1_epi32((int32_t)j);
    }
    for (uint64_t i = 0; i < n_iter; i++) {
        UNROLL for (unsigned j = 0; j < 48; j++) { /* the latency is five cycles, two start in each */
            s[j % 12] = _mm512_dpbusd_epi32(s[j % 12], w, x);
        }
    }
    for (unsigned j = 1; j < 12; j++) {
        s[0] = _mm512_add_epi32(s[0], s[j]);
    }
    *sink = (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(s[0]));
    return UINT64_C(48) * 64 * n_iter;
}

void bl_kernels_avx512vnni(bl_kernels *t) {
    fill_quant(t);
    t->probe_int8 = probe_int8;
    t->flags |= BL_CPU_AVX512_VNNI;
}
