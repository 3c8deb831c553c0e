/* What a request does to the logits before temperature: mask → bias → penalties, and the history of token ids
 * that the penalties look at. The exact arithmetic is NUMERICS.md §7. A history belongs to one request: it is
 * allocated at submit and depends on the request's own tokens only, never on what else is in the batch.
 */
#ifndef BL_RUNTIME_ADJUST_H
#define BL_RUNTIME_ADJUST_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl.h"
#include "bl/bl_err.h"

typedef struct bl_token_counts bl_token_counts;

/* Everything of a request that a pick depends on; all borrowed. */
typedef struct {
    const bl_sampling *sampling;
    uint32_t pos;         /* absolute position that the token takes in its sequence */
    const uint32_t *mask; /* bit i % 32 of word i / 32 set: token i may be drawn; NULL: all may */
    const bl_logit_bias *bias;
    uint32_t n_bias;
    const bl_token_counts *counts; /* NULL: no penalty applies to anything */
} bl_pick_inputs;

/* BL_EINVAL naming the field. */
bl_code bl_penalties_check(const bl_sampling *p, bl_err *err) BL_MUST_CHECK;
bl_code bl_logit_bias_check(const bl_logit_bias *b, size_t n, uint32_t n_vocab, bl_err *err) BL_MUST_CHECK;
/* Does any of the three change something? Only then a request needs a history. */
bool bl_penalties_on(const bl_sampling *p);

/* The ids of the prompt as seen, with room for n_output tokens more. Ids must be below n_vocab. Memory: at
 * most 16 bytes for each token that can be seen, n_vocab of them at most (rounded up to a power of two). */
bl_code bl_token_counts_new(const int32_t *prompt, uint32_t n_prompt, uint32_t n_output, uint32_t n_vocab,
                            bl_token_counts **ret, bl_err *err) BL_MUST_CHECK;
void bl_token_counts_free(bl_token_counts *c);
/* A token of the output. */
void bl_token_counts_add(bl_token_counts *c, int32_t id);

/* to[n_vocab] = the changed logits; masked ones are minus infinity, all others finite if `from` is. */
void bl_logits_adjust(float *to, const float *from, uint32_t n_vocab, const bl_pick_inputs *in);

#endif
