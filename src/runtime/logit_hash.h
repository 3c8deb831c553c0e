/* The rolling hash of logits (NUMERICS.md §8): one number that two machines can compare. */
#ifndef BL_RUNTIME_LOGIT_HASH_H
#define BL_RUNTIME_LOGIT_HASH_H

#include <stdint.h>

/* Folds the bits of one row into the state and returns the new state; the first state is 0. About one cycle
 * per logit. */
uint64_t bl_logit_hash_row(uint64_t state, const float *logits, uint32_t n);

#endif
