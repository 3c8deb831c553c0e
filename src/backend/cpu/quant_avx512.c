/* quant_avx512.h with vpmaddubsw and vpmaddwd (Skylake-SP and others without VNNI). */
#define BL_VNNI 0
#include "backend/cpu/quant_avx512.h"

void bl_kernels_avx512_quant(bl_kernels *t) {
    fill_quant(t);
}
