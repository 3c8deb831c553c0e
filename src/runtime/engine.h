/* Inside the engine: what engine.c (the thread and the public functions), batch.c (one step) and watchdog.c
 * share.
 *
 * The engine thread's loop: take what others asked for, end what is cancelled or out of time, plan a step
 * (under engine.mu), run it (without), hand out events (without). Lock order: engine.mu, then cache_mu
 * or session.mu; no callback runs under any.
 */
#ifndef BL_RUNTIME_ENGINE_H
#define BL_RUNTIME_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "bl/bl.h"
#include "runtime/draft_depth.h"
#include "runtime/exec.h"
#include "runtime/kv.h"
#include "runtime/lease.h"
#include "runtime/loader.h"
#include "runtime/prefix_cache.h"
#include "runtime/sampler.h"
#include "runtime/sched.h"
#include "runtime/session.h"

#define BL_DEFAULT_QUEUE       32u
#define BL_DEFAULT_WATCHDOG_MS 30000u

/* What only the engine thread may do, asked for by others. */
typedef enum {
    BL_JOB_NONE,
    BL_JOB_READ_GBPS,
    BL_JOB_INT8_GOPS,
    BL_JOB_PROFILE_ON,
    BL_JOB_PROFILE_OFF,
    BL_JOB_PROFILE_TEXT
} bl_engine_job;

/* A row whose logits are wanted. */
typedef struct {
    uint32_t row, pos, nth; /* nth: among its session's rows of the step */
    bl_session *s;
    bool draws;  /* a token is drawn from it */
    bool judges; /* and the next row's token is a draft of that token */
} bl_wanted_row;

/* What was drawn from a row, before its session hears of it. */
typedef struct {
    bl_token_event t;
    bl_top_logprob top[BL_MAX_TOP_LOGPROBS];
    bool given, judged, right;
} bl_drawn;

struct bl_engine {
    /* [immutable after open] */
    bl_loaded model;
    bl_lease_options leases;
    uint32_t max_queue, prefill_cap, token_gap_ms, watchdog_ms;
    char device[96];
    pthread_t thread, watchdog;
    bool started, watched;

    /* [engine thread] */
    bl_exec *exec;
    bl_sampler **samplers; /* [n_samplers]: one for each thread that draws */
    uint32_t n_samplers;
    bl_drawn *drawn;       /* [max_out] */
    bl_wanted_row *wanted; /* [max_rows] */
    uint32_t *wanted_rows; /* [max_rows] */
    bl_session *ended;     /* sessions whose last event is to be handed out */
    bl_draft_depth draft_depth;
    uint32_t depth;                                     /* drafts of each request in this step, at most */
    uint32_t judged[BL_MAX_DRAFT], right[BL_MAX_DRAFT]; /* drafts of this step, by their place */
    uint32_t n_empty_plans;
    bl_session *denied; /* while a step is planned: the last one that the machine had no memory for */

    /* Tiles are copied under cache_mu, which takes its time; only the engine thread changes anything. */
    pthread_mutex_t cache_mu;
    bl_prefix_cache *cache; /* NULL: off */

    /* [guarded by mu] */
    pthread_mutex_t mu;
    pthread_cond_t work; /* to the engine thread */
    pthread_cond_t done; /* a job is finished */
    bl_sched *sched;
    bl_kv_pool *pool;       /* the kernels use its tiles without mu; tables change under it */
    bl_sched_plan plan;     /* [engine thread] but for making it */
    double row_ns, step_ns; /* moving means: of a prompt row, of a step that only decodes */
    bool stopping;
    uint64_t n_submitted; /* ids of requests */
    bl_engine_job job;
    bool job_finished;
    double job_number;
    char *job_text;
    bl_engine_stats stats;

    /* the watchdog's */
    _Atomic uint64_t step_start_ns; /* 0: no step is under way. Release by the engine, acquire by readers */
    _Atomic uint64_t step_limit_ns;
    atomic_bool hung; /* set by the watchdog, cleared by the engine thread when the step is back */
    pthread_mutex_t watch_mu;
    pthread_cond_t watch_cv;
    bool watch_stop; /* [guarded by watch_mu] */
};

static inline bl_session *bl_session_of(bl_sched_req *r) {
    return (bl_session *)(void *)((char *)r - offsetof(bl_session, sched));
}

/* batch.c [engine thread] */
bl_code bl_batch_open(bl_engine *e, const bl_engine_options *o, bl_err *err) BL_MUST_CHECK;
void bl_batch_close(bl_engine *e);
/* Ends cancelled sessions and those whose time is over (all of them when the engine stops). */
void bl_batch_sweep_locked(bl_engine *e);
/* Plans a step; false when there is nothing to run. */
bool bl_batch_plan_locked(bl_engine *e);
/* Runs the plan. mu is not held. */
void bl_batch_run(bl_engine *e);
/* After a plan that was empty although requests live. A request that preempted itself finds all of the memory
 * free in the next plan; if even that is not enough, the machine does not give what the budget promised:
 * true, and the third time the request that is first in line fails. */
bool bl_batch_is_stuck_locked(bl_engine *e);
/* Hands out the last events of e->ended. mu is not held. */
void bl_batch_hand_out(bl_engine *e);
/* Prompt tokens that the prefix cache knows now. Any thread, without mu. */
uint32_t bl_batch_cached(bl_engine *e, const bl_session *s);
/* Could a request of so many prompt tokens show its first one in time? [guarded by mu] */
bool bl_batch_meets_deadline_locked(bl_engine *e, const bl_session *s, uint64_t *ret_forecast_ms);

/* watchdog.c */
bl_code bl_watchdog_start(bl_engine *e, bl_err *err) BL_MUST_CHECK;
void bl_watchdog_stop(bl_engine *e);
/* [engine thread] A step of n_rows begins; is over. */
void bl_watchdog_step(bl_engine *e, uint32_t n_rows);
void bl_watchdog_rest(bl_engine *e);

#endif
