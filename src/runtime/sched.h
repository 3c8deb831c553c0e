/* The scheduler: which rows of which requests make up the next step. Pure bookkeeping: no device, no clock,
 * no I/O, no allocation after open; one thread. The engine asks for a plan, runs it, and reports what came of
 * it. Because results do not depend on how rows are grouped (NUMERICS.md), the scheduler is free to choose.
 *
 * Words: a request has n_tokens known tokens (prompt and confirmed output) of which n_computed went through
 * the model; remaining = n_tokens - n_computed (0 while its drafts are being verified). It is decode-ready
 * when remaining == 1. A request ranks above another when its priority is higher, or the same and it arrived
 * earlier. What is promised, and the reasons: docs/scheduling.md.
 *
 * Why everybody gets through (given that the memory holds any one request alone, which the owner checks
 * before add, and that pauses end). Of the running requests take the one that ranks highest, r. A victim is
 * always the one that ranks lowest, so r never goes for another's sake; it preempts itself only when nobody
 * runs below it: then it holds all the memory that is held, and its reservation succeeds. A step that
 * preempts removes a running request and admits none, so fewer than max_running of them follow each other;
 * then comes a step without, in which every decode row gets its row and the first prompt row, in admission
 * order, at least one (decode rows, fewer than max_running <= step_tokens when a prompt runs, and drafts
 * leave it one, and a cap is at least 1). Prompts before r in that order are finite, and who is preempted
 * comes back behind r. So r advances until it ends, and the argument goes on with the next. A preempted
 * request that finds itself alone is at the front of the queue with all of the memory free: the next step
 * admits it, and it runs as r does.
 */
#ifndef BL_RUNTIME_SCHED_H
#define BL_RUNTIME_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_SCHED_MAX_RUNNING    64u
#define BL_SCHED_MAX_WAITING    4096u
#define BL_SCHED_FORECAST_STEPS 4096u

typedef enum {
    BL_SCHED_NONE, /* not with the scheduler */
    BL_SCHED_WAITING,
    BL_SCHED_RUNNING,
    BL_SCHED_PREEMPTED /* waiting again */
} bl_sched_status;

/* Embedded in the owner's request. */
typedef struct bl_sched_req {
    /* [set by the owner before add; n_tokens, n_draft, paused and cancelled at any time between plans] */
    uint64_t id;      /* unique among live ones */
    int32_t priority; /* higher goes first; stays as it is while the request is live */
    uint32_t n_tokens;
    uint32_t n_draft; /* drafted tokens it would like verified with its next decode row */
    bool paused, cancelled;
    uint32_t n_tokens_end; /* n_tokens at which it ends at the latest; 0: not known. For forecasts only. */
    /* Positions that start() is expected to find cached. A guess that is too low can only make the request
     * wait for another's prompt (max_partial_prefills); one that is too high is corrected by the scheduler.
     */
    uint32_t n_cached_guess;
    /* [the scheduler's; readable] */
    bl_sched_status status;
    uint32_t n_computed;
    uint64_t arrival; /* order of add */
    uint32_t n_preempted;
    struct bl_sched_req *prev, *next;
} bl_sched_req;

typedef struct {
    uint32_t max_running;  /* 1..BL_SCHED_MAX_RUNNING */
    uint32_t max_waiting;  /* 1..BL_SCHED_MAX_WAITING */
    uint32_t step_tokens;  /* rows of a step, >= max_running: each running request can decode in it */
    uint32_t chunk_tokens; /* rows of one request's prompt in a step, <= step_tokens */
    uint32_t solo_stripe;  /* rows of the only live request's prompt in a step, <= step_tokens; 0: off */
    uint32_t max_partial_prefills; /* requests whose prompt may be part way at one time; 0: any number */
} bl_sched_options;

/* Who keeps the memory.
 * start: r is admitted for the first time or again; returns the positions that need no evaluation (prefix
 * cache), < n_tokens; or UINT32_MAX: not now (never when nothing runs). An admission that fails after start
 * is taken back by release. It saves work to refuse here what has no room for the whole of n_tokens: a
 * request that is let in for its first chunk only is likely to be preempted. reserve: make room for n more
 * rows of r (behind n_computed); false: there is none now, nothing changed. release: drop all of r's memory
 * (r is preempted, or was not admitted after all). */
typedef struct {
    void *user;
    uint32_t (*start)(void *user, bl_sched_req *r);
    bool (*reserve)(void *user, bl_sched_req *r, uint32_t n);
    void (*release)(void *user, bl_sched_req *r);
} bl_sched_memory;

typedef struct {
    bl_sched_req *req;
    uint32_t n;       /* rows: of the prompt, or 1 + n_draft */
    uint32_t n_draft; /* of them */
    bool decode;      /* it was decode-ready when planned */
} bl_sched_item;

/* Decode rows first, then prompt rows of running requests, then admitted requests; each in order. A plan can
 * be empty while requests live: everybody is paused, or the only running one preempted itself (then the next
 * plan is not). */
typedef struct {
    bl_sched_item items[BL_SCHED_MAX_RUNNING];
    uint32_t n_items, n_rows, n_decode_rows, n_prefill_rows;
    bl_sched_req *preempted[BL_SCHED_MAX_RUNNING];
    uint32_t n_preempted;
    bool solo; /* the stripe was armed */
} bl_sched_plan;

typedef struct bl_sched bl_sched;
/* BL_EINVAL, BL_ENOMEM. The options and the memory's functions are copied. */
bl_code bl_sched_open(const bl_sched_options *o, const bl_sched_memory *m, bl_sched **ret,
                      bl_err *err) BL_MUST_CHECK;
void bl_sched_close(bl_sched *s); /* requests are the owner's */

/* Behind the last of its priority class. BL_EINVAL: the id is live already or there are no tokens (nothing
 * changes); BL_EBUSY: the queue is full (found, allowed). A preempted request does not count against the
 * limit. */
bl_code bl_sched_add(bl_sched *s, bl_sched_req *r, bl_err *err) BL_MUST_CHECK;
/* Takes a request out, wherever it is; its memory is the owner's to free (release is not called). */
void bl_sched_remove(bl_sched *s, bl_sched_req *r);

/* The next step. prefill_cap: at most so many prompt rows in a step that also decodes (0: no limit) -- what
 * bounds the time between two tokens of a running request. n_computed of planned requests advances. */
void bl_sched_plan_step(bl_sched *s, uint32_t prefill_cap, bl_sched_plan *ret);
/* The step did not run, or drafts were refused: n rows of r are taken back. */
void bl_sched_rollback(bl_sched *s, bl_sched_req *r, uint32_t n);
/* A running request goes back to the front of its class with nothing computed; the owner has released its
 * memory. */
void bl_sched_requeue(bl_sched *s, bl_sched_req *r);

uint32_t bl_sched_running(const bl_sched *s);
uint32_t bl_sched_waiting(const bl_sched *s); /* preempted ones too */
/* In admission order; in waiting order. `next` goes on, NULL ends. */
bl_sched_req *bl_sched_first_running(const bl_sched *s);
bl_sched_req *bl_sched_first_waiting(const bl_sched *s);

/* The steps until r's first token if nothing else arrives, as work: prefill rows and decode rows of all steps
 * up to and including that one, each step in full. The rules are those of bl_sched_plan_step (but for memory,
 * which is taken to suffice). Running requests generate until n_tokens_end, a token a step (without drafts).
 * r is live, or not yet added: then as if it were added now. n_cached: positions of r that the prefix cache
 * holds. Called between steps. False: it cannot be told (r is paused or cancelled, slots are held by paused
 * requests or by ones whose end is not known, more than BL_SCHED_FORECAST_STEPS steps): treat as unbounded.
 * Cost: O(max_running) a step. */
typedef struct {
    uint64_t prefill_rows, decode_rows, steps;
} bl_sched_work;
bool bl_sched_forecast(const bl_sched *s, const bl_sched_req *r, uint32_t n_cached, uint32_t prefill_cap,
                       bl_sched_work *ret);

#endif
