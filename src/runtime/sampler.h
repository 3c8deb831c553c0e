/* From logits to a token: mask → bias → penalties (adjust.h) → temperature → top-k → top-p → min-p → draw
 * (NUMERICS.md §7). The result is a function of the logits' bits, the inputs of the pick and (seed, position)
 * only; all arithmetic is plain scalar C in a written order, so every machine draws the same token. Threads:
 * one owner (the scratch is reused); allocates nothing after new.
 */
#ifndef BL_RUNTIME_SAMPLER_H
#define BL_RUNTIME_SAMPLER_H

#include <stdint.h>

#include "bl/bl.h"
#include "bl/bl_err.h"
#include "runtime/adjust.h"

typedef struct bl_sampler bl_sampler;

uint64_t bl_sampler_bytes(uint32_t n_vocab);
bl_code bl_sampler_new(uint32_t n_vocab, bl_sampler **ret, bl_err *err) BL_MUST_CHECK;
void bl_sampler_free(bl_sampler *s);

/* BL_EINVAL naming the field. */
bl_code bl_sampling_check(const bl_sampling *p, bl_err *err) BL_MUST_CHECK;

/* Largest of n logits, ties to the lower id; < n. *ret_bad: some logit is NaN or infinite (then the result
 * means nothing unless minus infinity is all there is of that). */
uint32_t bl_sampler_arg_max(const float *l, uint32_t n, bool *ret_bad);
/* Picks a token. BL_EINTERNAL when a logit is NaN or infinite; BL_EINVAL when the mask allows no token. */
bl_code bl_sampler_pick(bl_sampler *s, const float *logits, const bl_pick_inputs *in, int32_t *ret_id,
                        bl_err *err) BL_MUST_CHECK;

/* Natural log-probabilities under softmax(logits), before mask, bias and penalties: of `id`, and of the n_top
 * largest (ties to the lower id) in descending order into ret_top_ids and ret_top (n_top <=
 * BL_MAX_TOP_LOGPROBS, <= n_vocab). */
void bl_sampler_logprobs(bl_sampler *s, const float *logits, int32_t id, uint32_t n_top, float *ret,
                         int32_t *ret_top_ids, float *ret_top);

/* Which tokens a draw could give, ascending, with their weights (relative to the largest): for tests. Returns
 * their number. */
uint32_t bl_sampler_support(bl_sampler *s, const float *logits, const bl_pick_inputs *in,
                            const int32_t **ret_ids, const float **ret_weights);

#endif
