/* One request: what was asked, how far it is, and the queue of events to its reader.
 *
 * Two owners hold it by reference count: the reader (from submit to bl_session_free) and the engine (from
 * submit to the last event). Every event a request can have fits in memory reserved at submit, so that a slow
 * reader never stops the engine and the decode step allocates nothing.
 */
#ifndef BL_RUNTIME_SESSION_H
#define BL_RUNTIME_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl.h"
#include "runtime/adjust.h"
#include "runtime/kv.h"
#include "runtime/lease.h"
#include "runtime/sched.h"

typedef struct {
    float logprob;
    bool is_stop;
    uint32_t n_drafted, n_accepted; /* of the request, up to this token */
} bl_token_event;                   /* its id is in ids[] */

typedef struct {
    int32_t id;
    float logprob;
} bl_top_logprob;

struct bl_session {
    atomic_uint refs;   /* the last one frees */
    atomic_bool cancel; /* release by the reader, acquire by the engine at step boundaries */

    /* [immutable after submit] */
    uint32_t n_prompt, max_output; /* max_output: by the request and by the context */
    int32_t stop_ids[BL_MAX_STOP_IDS];
    uint32_t n_stop_ids, n_top;
    bl_sampling sampling;
    bl_logit_bias *bias; /* [n_bias] */
    uint32_t n_bias;
    bool logprobs, logit_hash, hash_prompt, no_prefix_cache, no_draft;
    int32_t *script; /* [n_script]: what is drafted for output tokens; measurements and tests */
    uint32_t n_script;
    uint64_t tenant;
    uint64_t t_submit;

    bl_sched_req sched; /* [guarded by engine.mu] */
    bl_lease lease;     /* [guarded by engine.mu] */
    bool given_up;      /* [guarded by engine.mu] the watchdog ended it */
    uint32_t n_denied;  /* [guarded by engine.mu] times it went for want of memory since its last token */
    uint64_t t_denied;  /* [guarded by engine.mu] the first of them */

    /* [engine thread] */
    bl_token_counts *counts;          /* NULL without penalties */
    struct bl_grammar_state *grammar; /* NULL: anything may be said */
    uint32_t *mask;                   /* with a grammar: a bit per token */
    int32_t *ids;   /* [n_prompt + max_output]: prompt, then output; a reader sees the ones of its events */
    bl_kv_seq *seq; /* NULL while it waits */
    uint32_t n_output, n_cached;
    uint32_t n_paired;              /* positions whose row of the draft head is stored */
    uint32_t n_drafted, n_accepted; /* judged; of them right */
    uint32_t n_kept;                /* rows of this step that happened: not behind a refused draft */
    bool refused;      /* in this step a draft was, or the answer ended: later rows did not happen */
    uint32_t n_hashed; /* rows up to this position are in the hash; a second prefill skips them */
    uint64_t t_start, t_first, t_last, max_gap_ns, hash;
    struct bl_session *next_ended; /* those that a step ends, until their events are out */
    bl_event last;                 /* the event they end with */
    bool failed;                   /* in this step, for last.err */

    /* [guarded by mu] */
    pthread_mutex_t mu;
    pthread_cond_t cv;      /* an event came, the session ended, or notify returned */
    bl_token_event *tokens; /* [max_output] */
    bl_top_logprob *top;    /* [max_output][n_top] */
    uint32_t n_written, n_read;
    bool ended, end_read;
    bl_event end;
    bool detached;  /* the reader left: no notify any more */
    bool notifying; /* a notify call is under way, without the lock */
    void (*notify)(void *user);
    void *notify_user;
};

/* Checks and copies a request. n_vocab bounds ids. BL_EINVAL, BL_ENOMEM. Both references are set. */
bl_code bl_session_new(const bl_request *r, uint32_t n_vocab, uint32_t n_context, bl_session **ret,
                       bl_err *err) BL_MUST_CHECK;
void bl_session_ref(bl_session *s);
void bl_session_unref(bl_session *s);

/* Engine side. */
/* The token is ids[n_prompt + number of tokens pushed before]. Nothing happens after the end. */
void bl_session_push_token(bl_session *s, const bl_token_event *t, const bl_top_logprob *top);
/* The last event, unless there was one; drops the engine's reference. */
void bl_session_end(bl_session *s, const bl_event *e);
/* The last event while the engine thread may still work on the session (the watchdog's way). */
void bl_session_give_up(bl_session *s, const bl_event *e);
bool bl_session_is_cancelled(bl_session *s);
bool bl_session_is_stop(const bl_session *s, int32_t id);
/* What the sampler needs to know of the request to draw output token n_output. Borrowed until the next call
 * on the session. Fails where the grammar cannot say what may come next. */
bl_code bl_session_pick_inputs(bl_session *s, bl_pick_inputs *ret, bl_err *err) BL_MUST_CHECK;
/* The token was drawn: once per token of the output, in their order. */
void bl_session_count(bl_session *s, int32_t id);
/* The grammar allows nothing more: the answer ends without a stop token. */
bool bl_session_is_complete(const bl_session *s);

#endif
