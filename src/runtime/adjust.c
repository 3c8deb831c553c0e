#include "runtime/adjust.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/base.h"

#define PENALTY_MAX    2.0f /* OpenAI's range */
#define REPETITION_MIN 0.01f
#define REPETITION_MAX 100.0f
#define BIAS_MAX       100.0f

typedef struct {
    int32_t id;
    uint32_t n_output; /* 0: of the prompt only */
} count;

/* Open addressing from id to an entry; never more than half full. */
struct bl_token_counts {
    count *entries; /* [cap], in order of first sight */
    uint32_t *slot; /* [n_slots]: entry + 1, or 0 */
    uint32_t n, cap, n_slots;
};

bl_code bl_penalties_check(const bl_sampling *p, bl_err *err) {
    if (!(p->presence_penalty >= -PENALTY_MAX && p->presence_penalty <= PENALTY_MAX)) {
        BL_FAIL(err, BL_EINVAL, "presence_penalty is %g, -2 to 2 is allowed", (double)p->presence_penalty);
    }
    if (!(p->frequency_penalty >= -PENALTY_MAX && p->frequency_penalty <= PENALTY_MAX)) {
        BL_FAIL(err, BL_EINVAL, "frequency_penalty is %g, -2 to 2 is allowed", (double)p->frequency_penalty);
    }
    if (p->repetition_penalty != 0.0f &&
        !(p->repetition_penalty >= REPETITION_MIN && p->repetition_penalty <= REPETITION_MAX)) {
        BL_FAIL(err, BL_EINVAL, "repetition_penalty is %g, 0.01 to 100 is allowed",
                (double)p->repetition_penalty);
    }
    return BL_OK;
}

bl_code bl_logit_bias_check(const bl_logit_bias *b, size_t n, uint32_t n_vocab, bl_err *err) {
    if (n > BL_MAX_LOGIT_BIAS) {
        BL_FAIL(err, BL_EINVAL, "logit_bias has %zu tokens, at most %d are allowed", n, BL_MAX_LOGIT_BIAS);
    }
    for (size_t i = 0; i < n; i++) {
        if (b[i].id < 0 || (uint32_t)b[i].id >= n_vocab) {
            BL_FAIL(err, BL_EINVAL, "logit_bias names token %d, the vocabulary has %u", b[i].id, n_vocab);
        }
        if (!(b[i].bias >= -BIAS_MAX && b[i].bias <= BIAS_MAX)) {
            BL_FAIL(err, BL_EINVAL, "logit_bias of token %d is %g, -100 to 100 is allowed", b[i].id,
                    (double)b[i].bias);
        }
    }
    return BL_OK;
}

static bool repetition_on(const bl_sampling *p) {
    return p->repetition_penalty != 0.0f && p->repetition_penalty != 1.0f;
}

bool bl_penalties_on(const bl_sampling *p) {
    return p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f || repetition_on(p);
}

/* ---- history ----------------------------------------------------------------------------------------- */

static count *see(bl_token_counts *c, int32_t id) {
    uint32_t at = ((uint32_t)id * 0x9E3779B1u) & (c->n_slots - 1);
    while (c->slot[at] != 0) {
        count *e = &c->entries[c->slot[at] - 1];
        if (e->id == id) {
            return e;
        }
        at = (at + 1) & (c->n_slots - 1);
    }
    BL_ASSERT(c->n < c->cap);
    c->entries[c->n] = (count){.id = id};
    c->slot[at] = ++c->n;
    return &c->entries[c->n - 1];
}

bl_code bl_token_counts_new(const int32_t *prompt, uint32_t n_prompt, uint32_t n_output, uint32_t n_vocab,
                            bl_token_counts **ret, bl_err *err) {
    uint64_t most = BL_MIN((uint64_t)n_prompt + n_output, (uint64_t)n_vocab), slots = 16;
    while (slots < 2 * most) {
        slots *= 2;
    }
    bl_token_counts *c = slots <= UINT32_MAX ? bl_alloc(sizeof *c) : NULL;
    if (c) {
        c->cap = (uint32_t)most;
        c->n_slots = (uint32_t)slots;
        c->entries = bl_alloc_array(c->cap, sizeof *c->entries);
        c->slot = bl_alloc_array(c->n_slots, sizeof *c->slot);
    }
    if (!c || !c->entries || !c->slot) {
        bl_token_counts_free(c);
        BL_FAIL(err, BL_ENOMEM, "out of memory for the history of %llu token ids", (unsigned long long)most);
    }
    for (uint32_t i = 0; i < n_prompt; i++) {
        (void)see(c, prompt[i]);
    }
    *ret = c;
    return BL_OK;
}

void bl_token_counts_free(bl_token_counts *c) {
    if (c) {
        bl_free(c->entries);
        bl_free(c->slot);
        bl_free(c);
    }
}

void bl_token_counts_add(bl_token_counts *c, int32_t id) {
    see(c, id)->n_output++;
}

/* ---- logits ------------------------------------------------------------------------------------------ */

static void apply_mask(float *to, const float *from, uint32_t n_vocab, const uint32_t *mask) {
    for (uint32_t at = 0; at < n_vocab; at += 32) {
        uint32_t bits = mask[at / 32], n = BL_MIN(n_vocab - at, 32u);
        if (bits == UINT32_MAX) {
            memcpy(to + at, from + at, n * sizeof *to);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            to[at + i] = bits >> i & 1u ? from[at + i] : -INFINITY;
        }
    }
}

/* Nothing but a mask makes a logit infinite. */
static float clamp(float x) {
    return BL_MIN(BL_MAX(x, -FLT_MAX), FLT_MAX);
}

static float penalise(float l, const bl_sampling *p, uint32_t n_output) {
    if (repetition_on(p)) {
        l = l > 0.0f ? l / p->repetition_penalty : l * p->repetition_penalty;
    }
    if (n_output > 0) {
        l = l - p->presence_penalty;
        l = l - p->frequency_penalty * (float)n_output;
    }
    return clamp(l);
}

void bl_logits_adjust(float *to, const float *from, uint32_t n_vocab, const bl_pick_inputs *in) {
    if (in->mask) {
        apply_mask(to, from, n_vocab, in->mask);
    } else {
        memcpy(to, from, n_vocab * sizeof *to);
    }
    for (uint32_t i = 0; i < in->n_bias; i++) {
        float *l = &to[in->bias[i].id];
        if (*l != -INFINITY) {
            *l = clamp(*l + in->bias[i].bias);
        }
    }
    if (!in->counts || !bl_penalties_on(in->sampling)) {
        return;
    }
    for (uint32_t i = 0; i < in->counts->n; i++) {
        const count *c = &in->counts->entries[i];
        float *l = &to[c->id];
        if (*l != -INFINITY) {
            *l = penalise(*l, in->sampling, c->n_output);
        }
    }
}
