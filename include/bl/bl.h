/* Darkbloom's waist: open an engine on a checkpoint, submit tokens with sampling settings, receive events,
 * cancel.
 *
 * No tensor, no text and no socket here. The server, the terminal, the benchmark and the fleet agent all
 * stand on this header. Threads: one engine thread (inside) owns the model. bl_engine_* and bl_session_* may
 * be called from any thread; one session must not be used by two threads at the same time.
 *
 * A request's tokens are a function of weights, prompt, seed and sampling settings only (NUMERICS.md).
 */
#ifndef BL_H
#define BL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bl_engine bl_engine;
typedef struct bl_session bl_session;

#define BL_MAX_TOP_LOGPROBS 20
#define BL_MAX_STOP_IDS     64

/* Where keys and values lie (ARCHITECTURE.md §3). AUTO is contiguous. */
typedef enum { BL_KV_CHOICE_AUTO, BL_KV_CHOICE_CONTIGUOUS, BL_KV_CHOICE_PAGED } bl_kv_choice;

#define BL_MAX_CONCURRENT 64u
#define BL_AUTO           UINT64_MAX
#define BL_MAX_DRAFT      7u /* a head's block_size is at most 8 */

typedef struct {
    const char *model_path; /* a .gguf file or a checkpoint folder */
    uint32_t n_threads;     /* 0: all cores */
    uint32_t cpu_mask;      /* BL_CPU_* bits of backend.h allowed; UINT32_MAX: all */
    bool activations_f32;   /* comparison mode, NUMERICS.md §3 */
    uint32_t n_context; /* positions a session may hold; 0: what the checkpoint declares, or less where memory
                           does not hold one session of that length */
    uint32_t prefill_chunk;    /* rows of one prompt per step; 0: default 256 */
    uint32_t max_queue;        /* requests that may wait; 0: default 32 */
    uint64_t max_memory_bytes; /* refuse to load when the plan is larger; 0: what the machine has available */
    /* many requests at once (docs/scheduling.md) */
    uint32_t max_concurrent; /* requests that run at one time; 0: default 4; at most BL_MAX_CONCURRENT */
    uint32_t step_tokens;    /* rows of a step; 0: the chunk, or max_concurrent if that is more */
    uint32_t solo_stripe;    /* rows of the prompt of the only request in a step; 0: the chunk */
    uint32_t max_partial_prefills; /* prompts part way at one time; 0: default 1; UINT32_MAX: any number */
    uint32_t prefill_cap;  /* prompt rows in a step that also decodes; 0: as many as token_gap_ms allows */
    uint32_t token_gap_ms; /* aim for the time between two tokens while other prompts are read; 0: 250 */
    /* memory */
    bl_kv_choice kv_storage;
    bool kv_paged_disabled;      /* the kill switch: contiguous, whatever kv_storage says */
    uint64_t kv_bytes;           /* budget of all keys and values; 0: what is needed or what is there */
    uint64_t prefix_cache_bytes; /* 0: off; BL_AUTO: an eighth of what is left, at most 4 GiB */
    uint32_t attn_query_block;   /* prompt rows that attend together at most; 0: no limit of its own */
    /* drafting with the checkpoint's own head (docs/mtp.md) */
    uint32_t draft_depth; /* tokens drafted per step and request at most; 0: none, and the head is not loaded;
                             at most BL_MAX_DRAFT */
    bool draft_fixed; /* always that many where there is room; false: fewer or none where they would cost more
                         than they save */
    const char *draft_path; /* folder of a head that is published separately, in place of the checkpoint's
                               own; NULL: none. One that cannot be read costs the head */
    /* how long things may take */
    uint32_t watchdog_ms; /* a step that takes longer (and longer than its rows explain) hangs; 0: 30 s */
    uint32_t admission_timeout_ms; /* in the queue; 0: 120 s */
    uint32_t stall_timeout_ms;     /* running without progress; 0: 120 s */
    /* Progress of loading (may be NULL), called on the opening thread: done and total bytes of weights. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_user;
} bl_engine_options;

void bl_engine_options_init(bl_engine_options *o);

/* Loads and starts the engine thread. Errors name the file, tensor or key. */
bl_code bl_engine_open(const bl_engine_options *o, bl_engine **ret, bl_err *err) BL_MUST_CHECK;
/* Cancels all sessions, joins the thread. Sessions must be freed before. */
void bl_engine_close(bl_engine *e);

/* A part of the model ("attention", "experts", ...) and how its matrices are stored. */
typedef struct {
    const char *name; /* static */
    char quant[48];   /* "AFFINE4 g64 90, AFFINE8 g64 30": matrices per type, most bytes first */
    uint64_t bytes;   /* in the file */
} bl_model_part;
#define BL_MODEL_MAX_PARTS 10

/* What the weights say (immutable). Sizes in bytes, strings owned by the engine. Also obtainable without
 * loading the weights. */
typedef struct {
    char family[32];    /* "gemma3_text", "llama" */
    char container[16]; /* "gguf", "safetensors" */
    char quant[96];     /* "Q5_0 81, Q4_K 27, ..." tensors per type, most bytes first */
    char draft[256];    /* "embedded", "none", or why the head that the file declares cannot be used */
    bool draft_foreign; /* because it is another model's, by a shape or the name of its family */
    uint64_t n_params, n_active_params; /* active: what one token meets, the head included */
    uint64_t n_draft_params;            /* of an embedded draft head, not in n_params */
    bl_model_part parts[BL_MODEL_MAX_PARTS];
    uint32_t n_parts;
    uint32_t n_experts, n_experts_used, expert_ffn; /* 0: dense */
    uint32_t n_delta_layers;
    uint32_t n_vocab, n_layers, n_full_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, window;
    uint32_t n_context_trained; /* declared by the checkpoint */
    uint32_t n_context;         /* in use for the plan */
    bool tied_embeddings;
    uint64_t file_bytes;
    /* memory plan */
    uint64_t weights_bytes;      /* as laid out for the kernels */
    uint64_t kv_bytes_per_token; /* all layers, before windows cap them */
    uint64_t kv_growing_bytes;   /* per token once every window is full */
    uint64_t state_bytes;        /* recurrent state of one sequence, whatever its length */
    uint64_t kv_seq_bytes; /* one session of n_context positions, windows counted, without state_bytes */
    uint64_t kv_bytes;     /* budget of all sessions, states included; committed as they grow */
    uint64_t prefix_cache_bytes; /* budget; committed as it fills */
    uint64_t scratch_bytes;      /* activations and backend scratch */
    uint64_t other_bytes;        /* tokenizer, tables, program */
    uint64_t total_bytes;
    uint64_t read_bytes_per_token; /* weights streamed by one decode step */
    uint64_t flops_per_token;      /* multiply and add counted separately, per prompt token */
    uint32_t max_concurrent;
    uint32_t draft_depth;          /* in use; 0: no drafting */
    const char *kv_storage;        /* "contiguous", "paged" */
    const char *kv_storage_reason; /* "auto", "asked_for", "kill_switch" */
} bl_model_info;

const bl_model_info *bl_engine_info(const bl_engine *e);
/* The same numbers from the headers alone (no weights read), for `models info` and admission. */
bl_code bl_model_inspect(const bl_engine_options *o, bl_model_info *ret, bl_err *err) BL_MUST_CHECK;

/* How often an embedded draft head is right. Every word of the text is given (teacher forcing): row t gives
 * the head the model's hidden of token t and token t + 1, and its likeliest token is compared with the
 * model's own likeliest one; depth 2 goes on from the head's hidden and token t + 2. The text is read in
 * pieces of at most 512 tokens, each from an empty context. */
#define BL_DRAFT_MEASURED 2u
typedef struct {
    uint64_t n_rows[BL_DRAFT_MEASURED], n_agreed[BL_DRAFT_MEASURED]; /* [0]: depth 1 */
} bl_draft_agreement;
/* Loads the model of o for this alone. n >= 3. go_on (may be NULL) hears of tokens read; false ends it with
 * BL_ECANCEL. BL_ENOTSUP, with the reason, when the model has no head that can be used. */
bl_code bl_model_measure_draft(const bl_engine_options *o, const int32_t *tokens, size_t n,
                               bool (*go_on)(void *user, uint64_t done, uint64_t total), void *user,
                               bl_draft_agreement *ret, bl_err *err) BL_MUST_CHECK;

/* Observations in seconds: counts[i] of those <= bounds[i] and above the one before; the last holds the rest.
 */
#define BL_HISTOGRAM_MAX_BOUNDS 20
typedef struct {
    const double *bounds; /* [n_bounds] ascending; static */
    uint32_t n_bounds;
    uint64_t counts[BL_HISTOGRAM_MAX_BOUNDS + 1];
    uint64_t n;
    double sum_s;
} bl_histogram;
void bl_histogram_init(bl_histogram *h, const double *bounds, uint32_t n_bounds);
void bl_histogram_add(bl_histogram *h, double seconds);

/* Tokens that the draft head proposed and the model judged. */
typedef struct {
    uint32_t max_depth, depth; /* of the engine (0: it does not draft); of its last step that gave tokens */
    uint64_t n_rounds;         /* requests' steps in which a draft was judged */
    uint64_t n_idle_rounds;    /* their steps without, because drafting would have cost more than it saved */
    uint64_t n_proposed[BL_MAX_DRAFT], n_accepted[BL_MAX_DRAFT]; /* [0]: a round's first, ... */
} bl_draft_stats;

typedef struct {
    uint32_t waiting, running; /* sessions */
    uint64_t n_prompt_tokens, n_cached_tokens,
        n_output_tokens; /* prompt tokens evaluated; found in the cache */
    uint64_t n_finished, n_failed, n_cancelled;
    uint64_t n_preempted, n_steps, n_rejected_deadline, n_expired, n_hangs;
    uint64_t kv_bytes_in_use, kv_bytes_committed, kv_bytes_capacity;
    uint64_t cache_lookups, cache_hits, cache_tokens_hit, cache_evicted, cache_bytes_in_use, cache_bytes_max;
    bl_histogram queue, ttft, token_gap, step; /* submit to start; submit to first token; between tokens */
    uint64_t attn_scores_executed, attn_scores_useful; /* of prompt chunks; see bl_attention_scores */
    bl_draft_stats draft;
    uint64_t step_age_ns; /* of the step under way; 0: none is */
    bool hung;            /* the watchdog spoke and the step has not come back */
} bl_engine_stats;
void bl_engine_get_stats(bl_engine *e, bl_engine_stats *ret);

/* Threads in use, CPU features in use as text, measured read bandwidth (0 until measured). */
const char *bl_engine_device(const bl_engine *e);
double bl_engine_measure_read_gbps(bl_engine *e); /* about 0.3 s; only while idle (0 otherwise) */
double bl_engine_measure_int8_gops(bl_engine *e);

/* One line per op label: calls, time, bytes, share. Enable before submitting; text owned by caller (bl_free).
 */
void bl_engine_set_profile(bl_engine *e, bool on);
char *bl_engine_profile_text(bl_engine *e);

typedef struct {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
    float presence_penalty, frequency_penalty; /* -2 to 2; 0: off; on tokens of the output */
    float repetition_penalty;                  /* 0.01 to 100; 1 or 0: off; on tokens of prompt and output */
} bl_sampling;

/* Added to one token's logit. */
typedef struct {
    int32_t id;
    float bias; /* -100 to 100 */
} bl_logit_bias;
#define BL_MAX_LOGIT_BIAS 1024

typedef struct {
    const int32_t *prompt;   /* copied */
    size_t n_prompt;         /* >= 1 */
    uint32_t max_tokens;     /* >= 1; the context may end the answer earlier */
    const int32_t *stop_ids; /* copied; the stop id itself is reported as the last token with `is_stop` */
    size_t n_stop_ids;
    bl_sampling sampling;
    const bl_logit_bias *logit_bias; /* copied */
    size_t n_logit_bias;             /* <= BL_MAX_LOGIT_BIAS */
    /* What the answer may look like (grammar/grammar.h), made for the engine's n_vocab; NULL: anything. Taken
     * when submit succeeds. The answer ends when it is complete, with BL_FINISH_STOP; stop ids are drawn only
     * where it may end. */
    struct bl_grammar_state *grammar;
    bool logprobs;           /* fill logprob and top[] */
    uint32_t n_top_logprobs; /* <= BL_MAX_TOP_LOGPROBS */
    bool logit_hash;         /* fill finished.logit_hash */
    bool hash_prompt; /* the hash covers the logits of every prompt row too (costs the head on each row) */
    int32_t priority; /* higher goes first */
    uint64_t tenant;  /* the prefix cache is shared among requests of one tenant only */
    bool no_prefix_cache;
    bool no_draft; /* nothing is drafted for this request; its answer is the same */
    /* Copied; for measurements and tests: output token i is drafted as draft_script[i], whatever the head
     * says (it runs all the same). */
    const int32_t *draft_script;
    size_t n_draft_script;
    uint32_t first_content_ms; /* the first token is wanted within that time: refused at submit when a
                                  forecast says no, ended when it passes; 0: no deadline */
    /* Called from the engine thread when an event became readable (may be NULL): wakes an event loop. Must
     * not block. */
    void (*notify)(void *user);
    void *notify_user;
} bl_request;

void bl_request_init(bl_request *r); /* temperature 1, top_p 1, max_tokens 256, rest off */

typedef enum { BL_EVENT_TOKEN, BL_EVENT_FINISHED, BL_EVENT_FAILED } bl_event_kind;
typedef enum { BL_FINISH_STOP, BL_FINISH_LENGTH, BL_FINISH_CANCELLED } bl_finish;

typedef struct {
    bl_event_kind kind;
    /* TOKEN */
    int32_t id;
    bool is_stop;
    float logprob; /* natural log, of the distribution before temperature and cuts */
    uint32_t n_top;
    struct {
        int32_t id;
        float logprob;
    } top[BL_MAX_TOP_LOGPROBS];
    uint32_t n_cached; /* prompt tokens not evaluated; of FINISHED too */
    /* FINISHED */
    bl_finish finish;
    uint32_t n_prompt, n_output, n_preempted;          /* n_preempted: times restarted */
    uint64_t queue_ns, prefill_ns, decode_ns, ttft_ns; /* ttft: from submit to the first token event */
    /* tokens proposed by the draft head and judged, and of them right; of TOKEN too, up to it */
    uint32_t n_drafted, n_accepted;
    uint64_t max_gap_ns; /* longest time between two tokens */
    uint64_t logit_hash;
    /* FAILED */
    bl_err err;
} bl_event;

/* Queues a request. BL_EINVAL (bad argument, prompt longer than the context: the message holds both numbers),
 * BL_EBUSY (queue full, or
 * first_content_ms cannot be met: the message then begins with "deadline_unreachable"), BL_EINTERNAL (a step
 * hangs). */
bl_code bl_session_submit(bl_engine *e, const bl_request *r, bl_session **ret, bl_err *err) BL_MUST_CHECK;

/* Next event. timeout_ms < 0 waits for ever; 0 polls. *ret_got false on timeout. After FINISHED or FAILED
 * there are no more. */
bl_code bl_session_next(bl_session *s, int timeout_ms, bl_event *ret, bool *ret_got,
                        bl_err *err) BL_MUST_CHECK;

/* The request ends at the next step boundary with FINISHED/BL_FINISH_CANCELLED. */
void bl_session_cancel(bl_session *s);
/* Cancels if needed and frees; does not wait for the engine. No notify call comes after it returns. */
void bl_session_free(bl_session *s);

#define BL_VERSION "0.1.0"
const char *bl_version(void); /* BL_VERSION of the library that is linked */

#ifdef __cplusplus
}
#endif
#endif
