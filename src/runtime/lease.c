#include "runtime/lease.h"

#include "base/base.h"

#define NS_PER_MS     1000000u
#define DEFAULT_MS    120000u
#define SAFETY_MAX_MS 1000000000000u /* 1e9 s: in nanoseconds it still fits 64 bits */

/* The slowest that work may be and still be let go on: 200 prompt tokens a second, with a factor of two for
 * one preemption, and 5 output tokens a second. */
#define MS_PER_PROMPT_TOKEN 10u
#define MS_PER_OUTPUT_TOKEN 200u
#define SAFETY_SLACK_MS     60000u

static uint64_t add_sat(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t mul_sat(uint64_t a, uint64_t b) {
    uint64_t r;
    return bl_mul_u64(a, b, &r) ? r : UINT64_MAX;
}

static uint64_t after(uint64_t from_ns, uint64_t ms) {
    return add_sat(from_ns, mul_sat(ms, NS_PER_MS));
}

void bl_lease_options_init(bl_lease_options *o) {
    *o = (bl_lease_options){DEFAULT_MS, DEFAULT_MS, DEFAULT_MS, DEFAULT_MS};
}

uint64_t bl_lease_safety_ms(const bl_lease_options *o, uint64_t n_prompt, uint64_t max_tokens) {
    uint64_t ms = add_sat(o->admission_ms, SAFETY_SLACK_MS);
    ms = add_sat(ms, mul_sat(n_prompt, MS_PER_PROMPT_TOKEN));
    ms = add_sat(ms, mul_sat(max_tokens, MS_PER_OUTPUT_TOKEN));
    return BL_MIN(ms, SAFETY_MAX_MS);
}

void bl_lease_begin(bl_lease *l, const bl_lease_options *o, uint64_t now_ns, uint64_t n_prompt,
                    uint64_t max_tokens, uint64_t first_content_ms) {
    *l = (bl_lease){.enqueued_ns = now_ns,
                    .progress_ns = now_ns,
                    .safety_ns = after(now_ns, bl_lease_safety_ms(o, n_prompt, max_tokens)),
                    .first_content_ns = first_content_ms ? after(now_ns, first_content_ms) : 0};
}

void bl_lease_admitted(bl_lease *l, uint64_t now_ns) {
    l->admitted = true;
    l->running = true;
    l->decoding = false;
    l->watermark = 0;
    l->progress_ns = now_ns;
}

void bl_lease_computed(bl_lease *l, uint64_t now_ns, uint32_t n_computed) {
    if (n_computed <= l->watermark) {
        return;
    }
    l->watermark = n_computed;
    /* Rows without a token are no progress of a request that decodes. */
    if (!l->decoding) {
        l->progress_ns = now_ns;
    }
}

void bl_lease_token(bl_lease *l, uint64_t now_ns) {
    l->has_token = true;
    l->decoding = true;
    l->progress_ns = now_ns;
}

void bl_lease_preempted(bl_lease *l, uint64_t now_ns) {
    l->running = false;
    l->decoding = false;
    l->watermark = 0;
    l->progress_ns = now_ns;
}

void bl_lease_paused(bl_lease *l, uint64_t now_ns) {
    if (!l->paused) {
        l->paused = true;
        l->paused_ns = now_ns;
    }
}

void bl_lease_resumed(bl_lease *l, uint64_t now_ns) {
    if (l->paused) {
        l->paused = false;
        l->progress_ns = now_ns;
    }
}

/* Of the leases that are armed, the one that runs out first. */
static bl_lease_cause first_expiry(const bl_lease *l, const bl_lease_options *o, uint64_t *ret_ns) {
    bl_lease_cause cause = BL_LEASE_SAFETY;
    uint64_t ns = l->safety_ns, end;
    if (l->first_content_ns && !l->has_token && l->first_content_ns < ns) {
        cause = BL_LEASE_FIRST_CONTENT;
        ns = l->first_content_ns;
    }
    if (!l->admitted && o->admission_ms && (end = after(l->enqueued_ns, o->admission_ms)) < ns) {
        cause = BL_LEASE_ADMISSION;
        ns = end;
    }
    if (l->paused && o->backpressure_ms && (end = after(l->paused_ns, o->backpressure_ms)) < ns) {
        cause = BL_LEASE_BACKPRESSURE;
        ns = end;
    }
    uint64_t progress_ms = l->decoding ? o->decode_ms : o->prefill_ms;
    if (l->running && !l->paused && progress_ms && (end = after(l->progress_ns, progress_ms)) < ns) {
        cause = l->decoding ? BL_LEASE_DECODE_STALL : BL_LEASE_PREFILL_STALL;
        ns = end;
    }
    *ret_ns = ns;
    return cause;
}

bl_lease_cause bl_lease_check(const bl_lease *l, const bl_lease_options *o, uint64_t now_ns) {
    uint64_t ns;
    bl_lease_cause cause = first_expiry(l, o, &ns);
    return now_ns >= ns ? cause : BL_LEASE_OK;
}

uint64_t bl_lease_next_ns(const bl_lease *l, const bl_lease_options *o) {
    uint64_t ns;
    (void)first_expiry(l, o, &ns);
    return ns;
}

const char *bl_lease_cause_name(bl_lease_cause c) {
    static const char *const names[BL_LEASE__MAX] = {
        [BL_LEASE_OK] = "ok",
        [BL_LEASE_ADMISSION] = "admission_timeout",
        [BL_LEASE_PREFILL_STALL] = "prefill_stall",
        [BL_LEASE_DECODE_STALL] = "decode_stall",
        [BL_LEASE_SAFETY] = "safety_deadline",
        [BL_LEASE_FIRST_CONTENT] = "first_content_deadline",
        [BL_LEASE_BACKPRESSURE] = "backpressure_timeout",
    };
    return (unsigned)c < BL_LEASE__MAX ? names[c] : "unknown";
}
