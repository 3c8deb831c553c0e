#include "runtime/session.h"

#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/cond.h"
#include "grammar/grammar.h"
#include "runtime/sampler.h"

void bl_request_init(bl_request *r) {
    *r = (bl_request){.max_tokens = 256, .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
}

static bl_code check_request(const bl_request *r, uint32_t n_vocab, uint32_t n_context, bl_err *err) {
    if (!r->prompt || r->n_prompt == 0) {
        BL_FAIL(err, BL_EINVAL, "the prompt is empty, at least one token is needed");
    }
    if (r->n_prompt > n_context) {
        BL_FAIL(err, BL_EINVAL, "the prompt has %zu tokens, the context holds %u", r->n_prompt, n_context);
    }
    for (size_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= n_vocab) {
            BL_FAIL(err, BL_EINVAL, "a prompt token is outside the vocabulary of %u", n_vocab);
        }
    }
    if (r->max_tokens == 0) {
        BL_FAIL(err, BL_EINVAL, "max_tokens is 0, at least 1 is needed");
    }
    if (r->n_stop_ids > BL_MAX_STOP_IDS) {
        BL_FAIL(err, BL_EINVAL, "%zu stop ids, at most %d are allowed", r->n_stop_ids, BL_MAX_STOP_IDS);
    }
    if (r->n_top_logprobs > BL_MAX_TOP_LOGPROBS) {
        BL_FAIL(err, BL_EINVAL, "top_logprobs is %u, at most %d are allowed", r->n_top_logprobs,
                BL_MAX_TOP_LOGPROBS);
    }
    if (r->grammar && bl_grammar_state_n_vocab(r->grammar) != n_vocab) {
        BL_FAIL(err, BL_EINVAL, "the grammar is made for %u tokens, the vocabulary has %u",
                bl_grammar_state_n_vocab(r->grammar), n_vocab);
    }
    for (size_t i = 0; i < r->n_draft_script; i++) {
        if (r->draft_script[i] < 0 || (uint32_t)r->draft_script[i] >= n_vocab) {
            BL_FAIL(err, BL_EINVAL, "a token of the draft script is outside the vocabulary of %u", n_vocab);
        }
    }
    BL_TRY(bl_logit_bias_check(r->logit_bias, r->n_logit_bias, n_vocab, err));
    return bl_sampling_check(&r->sampling, err);
}

static bool init_sync(bl_session *s) {
    if (pthread_mutex_init(&s->mu, NULL) != 0) {
        return false;
    }
    bool ok = bl_cond_init(&s->cv);
    if (!ok) {
        pthread_mutex_destroy(&s->mu);
    }
    return ok;
}

static void free_arrays(bl_session *s) {
    bl_free(s->ids);
    bl_free(s->tokens);
    bl_free(s->top);
    bl_free(s->bias);
    bl_free(s->script);
    bl_token_counts_free(s->counts);
    bl_grammar_state_free(s->grammar);
    bl_free(s->mask);
    bl_free(s);
}

bl_code bl_session_new(const bl_request *r, uint32_t n_vocab, uint32_t n_context, bl_session **ret,
                       bl_err *err) {
    BL_TRY(check_request(r, n_vocab, n_context, err));
    bl_session *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a session");
    }
    s->n_prompt = (uint32_t)r->n_prompt;
    /* The last token is sampled but not stored, so it needs no position. */
    s->max_output = BL_MIN(r->max_tokens, n_context - s->n_prompt + 1);
    s->n_top = r->logprobs ? BL_MIN(r->n_top_logprobs, n_vocab) : 0;
    s->ids = bl_alloc_array((size_t)s->n_prompt + s->max_output, sizeof *s->ids);
    s->tokens = bl_alloc_array(s->max_output, sizeof *s->tokens);
    s->top = bl_alloc_array((size_t)s->max_output * s->n_top, sizeof *s->top);
    s->bias = bl_alloc_array(r->n_logit_bias, sizeof *s->bias);
    s->n_script = (uint32_t)BL_MIN(r->n_draft_script, s->max_output);
    s->script = bl_alloc_array(s->n_script, sizeof *s->script);
    s->mask = bl_alloc_array(r->grammar ? ((size_t)n_vocab + 31) / 32 : 0, sizeof *s->mask);
    bool counted =
        !bl_penalties_on(&r->sampling) ||
        bl_token_counts_new(r->prompt, s->n_prompt, s->max_output, n_vocab, &s->counts, NULL) == BL_OK;
    if (!s->ids || !s->tokens || !s->top || !s->bias || !s->script || !s->mask || !counted || !init_sync(s)) {
        free_arrays(s);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a session of %zu prompt tokens and up to %u more",
                r->n_prompt, BL_MIN(r->max_tokens, n_context));
    }
    memcpy(s->ids, r->prompt, s->n_prompt * sizeof *s->ids);
    if (r->n_stop_ids > 0) {
        memcpy(s->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *r->stop_ids);
    }
    s->n_stop_ids = (uint32_t)r->n_stop_ids;
    if (r->n_logit_bias > 0) {
        memcpy(s->bias, r->logit_bias, r->n_logit_bias * sizeof *s->bias);
    }
    s->n_bias = (uint32_t)r->n_logit_bias;
    if (s->n_script > 0) {
        memcpy(s->script, r->draft_script, s->n_script * sizeof *s->script);
    }
    s->sampling = r->sampling;
    s->logprobs = r->logprobs;
    s->logit_hash = r->logit_hash || r->hash_prompt;
    s->hash_prompt = r->hash_prompt;
    s->no_prefix_cache = r->no_prefix_cache;
    s->no_draft = r->no_draft;
    s->tenant = r->tenant;
    s->sched = (bl_sched_req){
        .priority = r->priority, .n_tokens = s->n_prompt, .n_tokens_end = s->n_prompt + s->max_output};
    s->notify = r->notify;
    s->notify_user = r->notify_user;
    s->t_submit = bl_clock_mono_ns();
    atomic_init(&s->refs, 2);
    atomic_init(&s->cancel, false);
    *ret = s;
    return BL_OK;
}

void bl_session_ref(bl_session *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); /* the caller's own keeps it alive */
}

void bl_session_unref(bl_session *s) {
    /* acq_rel: the one that frees sees everything the other did */
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        pthread_cond_destroy(&s->cv);
        pthread_mutex_destroy(&s->mu);
        free_arrays(s);
    }
}

/* ---- engine side ------------------------------------------------------------------------------------- */

/* Called with the lock held, which it lets go of around the call: no callback runs under a lock. `notifying`
 * is what bl_session_free waits for. */
static void notify_locked(bl_session *s) {
    pthread_cond_broadcast(&s->cv);
    if (s->detached || !s->notify) {
        return;
    }
    s->notifying = true;
    pthread_mutex_unlock(&s->mu);
    s->notify(s->notify_user);
    pthread_mutex_lock(&s->mu);
    s->notifying = false;
    pthread_cond_broadcast(&s->cv);
}

void bl_session_push_token(bl_session *s, const bl_token_event *t, const bl_top_logprob *top) {
    pthread_mutex_lock(&s->mu);
    if (!s->ended) {
        BL_ASSERT(s->n_written < s->max_output);
        s->tokens[s->n_written] = *t;
        if (s->n_top > 0) {
            memcpy(s->top + (size_t)s->n_written * s->n_top, top, s->n_top * sizeof *top);
        }
        s->n_written++;
        notify_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
}

void bl_session_give_up(bl_session *s, const bl_event *e) {
    pthread_mutex_lock(&s->mu);
    if (!s->ended) {
        s->end = *e;
        s->ended = true;
        notify_locked(s);
    }
    pthread_mutex_unlock(&s->mu);
}

void bl_session_end(bl_session *s, const bl_event *e) {
    bl_session_give_up(s, e);
    bl_session_unref(s);
}

bool bl_session_is_cancelled(bl_session *s) {
    return atomic_load_explicit(&s->cancel, memory_order_acquire); /* pairs with bl_session_cancel */
}

bool bl_session_is_stop(const bl_session *s, int32_t id) {
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* The tokens that the grammar allows, stop tokens where the answer may end. NULL: all. */
static bl_code make_mask(bl_session *s, const uint32_t **ret, bl_err *err) {
    bool may_end = true, is_free = true;
    if (s->grammar) {
        BL_TRY(bl_grammar_state_mask(s->grammar, s->mask, &may_end, &is_free, err));
    }
    for (uint32_t i = 0; i < s->n_stop_ids && !is_free; i++) {
        uint32_t id = (uint32_t)s->stop_ids[i], bit = 1u << id % 32;
        if (id < bl_grammar_state_n_vocab(s->grammar)) {
            s->mask[id / 32] = may_end ? s->mask[id / 32] | bit : s->mask[id / 32] & ~bit;
        }
    }
    *ret = is_free ? NULL : s->mask;
    return BL_OK;
}

bl_code bl_session_pick_inputs(bl_session *s, bl_pick_inputs *ret, bl_err *err) {
    const uint32_t *mask;
    BL_TRY(make_mask(s, &mask, err));
    *ret = (bl_pick_inputs){.sampling = &s->sampling,
                            .pos = s->n_prompt + s->n_output,
                            .mask = mask,
                            .bias = s->bias,
                            .n_bias = s->n_bias,
                            .counts = s->counts};
    return BL_OK;
}

void bl_session_count(bl_session *s, int32_t id) {
    if (s->counts) {
        bl_token_counts_add(s->counts, id);
    }
    if (s->grammar && !bl_session_is_stop(s, id)) {
        bl_code rc = bl_grammar_state_accept(s->grammar, id, NULL);
        BL_DASSERT(rc == BL_OK); /* the mask allowed it */
        (void)rc;
    }
}

bool bl_session_is_complete(const bl_session *s) {
    return s->grammar && bl_grammar_state_is_complete(s->grammar);
}

/* ---- reader side ------------------------------------------------------------------------------------- */

static void take_token_locked(bl_session *s, bl_event *ret) {
    const bl_token_event *t = &s->tokens[s->n_read];
    *ret = (bl_event){.kind = BL_EVENT_TOKEN,
                      .id = s->ids[s->n_prompt + s->n_read],
                      .is_stop = t->is_stop,
                      .logprob = t->logprob,
                      .n_top = s->n_top,
                      .n_drafted = t->n_drafted,
                      .n_accepted = t->n_accepted,
                      .n_cached = s->n_cached}; /* set once, before the first token was pushed */
    for (uint32_t i = 0; i < s->n_top; i++) {
        const bl_top_logprob *p = &s->top[(size_t)s->n_read * s->n_top + i];
        ret->top[i].id = p->id;
        ret->top[i].logprob = p->logprob;
    }
    s->n_read++;
}

bl_code bl_session_next(bl_session *s, int timeout_ms, bl_event *ret, bool *ret_got, bl_err *err) {
    (void)err; /* nothing fails today */
    uint64_t until_ns = timeout_ms > 0 ? bl_clock_mono_ns() + (uint64_t)timeout_ms * 1000000u : 0;
    pthread_mutex_lock(&s->mu);
    bool in_time = timeout_ms != 0;
    while (s->n_read == s->n_written && !s->ended && in_time) {
        if (timeout_ms < 0) {
            pthread_cond_wait(&s->cv, &s->mu);
        } else {
            in_time = bl_cond_wait_until(&s->cv, &s->mu, until_ns);
        }
    }
    *ret_got = true;
    if (s->n_read < s->n_written) {
        take_token_locked(s, ret);
    } else if (s->ended && !s->end_read) {
        *ret = s->end;
        s->end_read = true;
    } else {
        *ret_got = false;
    }
    pthread_mutex_unlock(&s->mu);
    return BL_OK;
}

void bl_session_cancel(bl_session *s) {
    atomic_store_explicit(&s->cancel, true, memory_order_release); /* pairs with bl_session_is_cancelled */
}

void bl_session_free(bl_session *s) {
    if (!s) {
        return;
    }
    bl_session_cancel(s);
    pthread_mutex_lock(&s->mu);
    s->detached = true;
    while (s->notifying) {
        pthread_cond_wait(&s->cv, &s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    bl_session_unref(s);
}
