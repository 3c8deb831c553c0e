/* Randomness: Philox 4x32-10, the counter-based generator of NUMERICS.md §7 (Salmon et al., "Parallel Random
 * Numbers: As Easy as 1, 2, 3", SC'11). Pure functions of key and counter; no state to share.
 */
#ifndef BL_BASE_RNG_H
#define BL_BASE_RNG_H

#include <stdint.h>

/* ret[4] = Philox4x32-10(counter, key). */
void bl_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* The draw for output position `pos` of a request: uniform in [0, 1) with 24 bits, as float arithmetic sees
 * it. key = seed (low, high); counter = (pos, stream low, stream high, 0). */
float bl_rng_uniform(uint64_t seed, uint64_t stream, uint32_t pos);

/* Sequential generator for tests, ids and jitter (splitmix64). Not for sampling. */
static inline uint64_t bl_rng_next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
