/* Leases: how long a request may go without progress before it is ended, on the monotonic clock. Pure
 * arithmetic over times that the engine passes in; one owner. The engine says what happened, asks at step
 * boundaries whether a lease ran out, and waits no longer than until the next one can.
 *
 * admission: from begin to the first admission, never armed again. prefill: since prompt rows were last
 * computed, decode: since the last confirmed token; both only while the request runs and is not paused, and
 * only by what a finished step made of it: rows that are merely planned refresh nothing. A preemption, an
 * admission after it and a resume start a fresh window; after a preemption computed rows count from 0 again
 * (else the rows up to the old watermark would look like no progress). back-pressure: since the pause began.
 * safety: once, from begin. first content: the request's own deadline until its first token.
 */
#ifndef BL_RUNTIME_LEASE_H
#define BL_RUNTIME_LEASE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    BL_LEASE_OK,
    BL_LEASE_ADMISSION,
    BL_LEASE_PREFILL_STALL,
    BL_LEASE_DECODE_STALL,
    BL_LEASE_SAFETY,
    BL_LEASE_FIRST_CONTENT,
    BL_LEASE_BACKPRESSURE,
    BL_LEASE__MAX
} bl_lease_cause;

/* 120000 each by default; 0: off. */
typedef struct {
    uint64_t admission_ms, prefill_ms, decode_ms, backpressure_ms;
} bl_lease_options;

/* Opaque to others. Times are absolute, in ns. */
typedef struct {
    uint64_t enqueued_ns, progress_ns, paused_ns, safety_ns;
    uint64_t first_content_ns; /* 0: none */
    uint32_t watermark;        /* rows computed since the last admission */
    bool admitted, running, decoding, paused, has_token;
} bl_lease;

void bl_lease_options_init(bl_lease_options *o);
/* admission + 2 * prompt / 200 + max_tokens / 5 + 60 s, at most 1e9 s; never overflows. */
uint64_t bl_lease_safety_ms(const bl_lease_options *o, uint64_t n_prompt, uint64_t max_tokens);
/* now_ns: when the request was received, so that waiting counts. first_content_ms: 0: none. */
void bl_lease_begin(bl_lease *l, const bl_lease_options *o, uint64_t now_ns, uint64_t n_prompt,
                    uint64_t max_tokens, uint64_t first_content_ms);
void bl_lease_admitted(bl_lease *l, uint64_t now_ns);
/* A step that computed rows up to n_computed is finished. */
void bl_lease_computed(bl_lease *l, uint64_t now_ns, uint32_t n_computed);
void bl_lease_token(bl_lease *l, uint64_t now_ns); /* a token is confirmed */
void bl_lease_preempted(bl_lease *l, uint64_t now_ns);
void bl_lease_paused(bl_lease *l, uint64_t now_ns);
void bl_lease_resumed(bl_lease *l, uint64_t now_ns);

/* The lease that ran out first of those that did by now. */
bl_lease_cause bl_lease_check(const bl_lease *l, const bl_lease_options *o, uint64_t now_ns);
/* The earliest time at which check fails if nothing happens until then; UINT64_MAX: never. */
uint64_t bl_lease_next_ns(const bl_lease *l, const bl_lease_options *o);
/* "ok", "admission_timeout", "prefill_stall", "decode_stall", "safety_deadline", "first_content_deadline",
 * "backpressure_timeout". */
const char *bl_lease_cause_name(bl_lease_cause c);

#endif
