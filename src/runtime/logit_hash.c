#include "runtime/logit_hash.h"

#include <string.h>

#include "tensor/dtype.h"

#define LANES 128u
#define MULT  0x9E3779B97F4A7C15u /* odd: multiplying loses nothing */
#define START 0xCBF29CE484222325u

/* Xor with new bits and multiplication by an odd number are both one-to-one on the state, so a row that
 * differs in one element differs in its lane for sure; lanes are independent chains, which is what makes it
 * cheap. */
uint64_t bl_logit_hash_row(uint64_t state, const float *logits, uint32_t n) {
    uint64_t lane[LANES];
    for (uint32_t j = 0; j < LANES; j++) {
        lane[j] = START + j;
    }
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lane[j] = (lane[j] ^ bl_f32_to_bits(logits[i + j])) * MULT;
        }
    }
    for (uint32_t j = 0; i < n; i++, j++) {
        lane[j] = (lane[j] ^ bl_f32_to_bits(logits[i])) * MULT;
    }
    uint64_t h = state;
    for (uint32_t j = 0; j < LANES; j++) {
        h = (h ^ lane[j] ^ (lane[j] >> 32)) * MULT;
        h ^= h >> 29;
    }
    return h;
}
