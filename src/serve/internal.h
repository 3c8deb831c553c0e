/* What the files of serve/ share. */
#ifndef BL_SERVE_INTERNAL_H
#define BL_SERVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/openai/reply.h"
#include "api/openai/request.h"
#include "chat/stream.h"
#include "grammar/grammar.h"
#include "net/http_server.h"
#include "serve/metrics.h"
#include "serve/serve.h"

#define BL_SERVE_ID_BYTES    48
#define BL_SERVE_KEY_HASH    32
#define BL_SERVE_MAX_ID      64           /* characters of a request id that a client may choose */
#define BL_SERVE_PULL        64           /* events of one job in a row; then the others have their turn */
#define BL_SERVE_MAX_REPLY   (128u << 20) /* a whole answer with logprobs; longer ones need "stream" */
#define BL_SERVE_MAX_DELTA   (1u << 20)   /* text of one step */
#define BL_SERVE_MAX_PENDING (1u << 16)   /* tokens whose text is still held back */
#define BL_SERVE_MAX_ALIASES 72

typedef enum {
    BL_ROUTE_UNKNOWN,
    BL_ROUTE_ROOT,
    BL_ROUTE_HEALTH,
    BL_ROUTE_METRICS,
    BL_ROUTE_MODELS,
    BL_ROUTE_MODEL,
    BL_ROUTE_CHAT,
    BL_ROUTE_COMPLETIONS,
    BL_ROUTE_EMBEDDINGS,
    BL_ROUTE__MAX
} bl_serve_route;

typedef enum {
    JOB_READING,   /* [loop] the body is arriving */
    JOB_PREPARING, /* [worker] or in one of the two queues */
    JOB_RUNNING    /* [loop] has a session */
} bl_job_state;

typedef struct {
    int32_t id;
    float logprob;
    uint32_t n_top;
    uint64_t start_byte, n_bytes; /* in the answer's raw bytes */
    uint64_t start_char;
    struct {
        int32_t id;
        float logprob;
    } top[BL_MAX_TOP_LOGPROBS];
} bl_job_token;

typedef struct bl_job {
    struct bl_serve *s;
    bl_http_exchange *x;                    /* [loop thread] NULL when the client left */
    bl_job_state state;                     /* [loop thread] */
    struct bl_job *prev, *next;             /* [loop thread] all jobs of the server */
    struct bl_job *queue_next;              /* [guarded by s->mu] */
    struct bl_job *ready_prev, *ready_next; /* [guarded by s->ready_mu] */
    bool is_ready;                          /* [guarded by s->ready_mu] in the list of s */
    atomic_bool cancelled; /* set by the loop thread, read by the worker: a hint to stop early */
    bl_openai_kind kind;
    bl_serve_route route;
    uint64_t start_ns, body_ns; /* the head, and the whole request were there */
    uint32_t first_content_ms;  /* what the client wants, 0: nothing */
    char request_id[BL_SERVE_MAX_ID + 1], reply_id[BL_SERVE_ID_BYTES];
    char *body; /* taken from the exchange, freed by the worker */
    size_t n_body;
    uint64_t seed; /* for requests that name none */
    /* what the worker leaves */
    bl_openai_error error; /* status 0: none */
    bl_openai_request req; /* scalars only: what it borrowed is gone */
    bl_session *session;
    bl_stream *stream;
    bl_parser *parser; /* its sink is bl_job_sink */
    uint32_t n_prompt;
    /* the answer [loop thread] */
    bool begun; /* stream head sent */
    uint64_t n_completion;
    bl_buf delta, payload;         /* what a step gave, and what goes out */
    bl_buf text, reasoning, calls; /* of a whole answer */
    char call_id[BL_SERVE_ID_BYTES];
    char call_name[BL_PARSER_MAX_NAME + 1];
    uint64_t released_bytes; /* of text given out */
    uint64_t raw_bytes, raw_chars;
    bl_openai_logprobs logprobs;
    bl_job_token *pending;
    size_t n_pending, cap_pending;
    bl_openai_reply reply;
    uint64_t last_sent_ns;
    /* for the log and the metrics [loop thread] */
    uint64_t first_token_ns, last_token_ns; /* 0: none yet */
    bool waited;  /* for its reader since the last token: the next gap is not the engine's */
    bool has_end; /* the engine's last word came: queue_ns */
    uint64_t queue_ns, max_gap_ns;
    uint32_t n_cached, n_preempted; /* n_cached: known with the first token */
    uint32_t n_drafted, n_accepted; /* up to the last token */
    const char *finish;             /* static, NULL: none */
} bl_job;

/* Compiled grammars by what they were made from, least recently used out; and the vocabulary they run on,
 * made when it is first needed. */
#define BL_SERVE_GRAMMARS       32
#define BL_SERVE_GRAMMARS_BYTES ((size_t)64 << 20) /* automata and sources together */
typedef struct {
    uint8_t hash[32];    /* of kind, flags and source */
    bl_grammar *grammar; /* NULL: empty */
    size_t bytes;
    uint64_t used;
} bl_serve_grammar;

typedef struct {
    pthread_mutex_t mu;
    bl_grammar_vocab *vocab;
    bl_serve_grammar entries[BL_SERVE_GRAMMARS];
    uint64_t tick;
} bl_serve_grammars;

struct bl_serve {
    bl_serve_options o;
    bl_http_server *http;
    bl_serve_model model;
    const char *aliases[BL_SERVE_MAX_ALIASES];
    char fingerprint[24];
    int64_t created;
    uint64_t start_ns;
    bool has_key;
    bool is_loopback;
    uint8_t hash_key[32], key_hash[BL_SERVE_KEY_HASH];
    char cors[256];
    uint64_t rng; /* [loop thread] ids and seeds */
    /* [loop thread] */
    bl_job *jobs;
    uint32_t n_preparing; /* with the workers; behind them the engine counts */
    bl_metrics metrics;
    double mean_job_s;
    bool draining, forced;
    uint64_t drain_end_ns; /* of the current phase of draining */
    atomic_uint n_stop_calls;
    /* workers */
    pthread_t workers[16];
    uint32_t n_workers;
    pthread_mutex_t mu;
    pthread_cond_t has_work;
    bl_job *todo_first, *todo_last; /* [guarded by mu] */
    bl_job *done_first, *done_last; /* [guarded by mu] */
    bool workers_stop;              /* [guarded by mu] */
    bl_serve_grammars grammars;     /* [guarded by its mu] */
    /* Jobs whose session has an event: put in by the engine thread (bl_job_notify), taken out by the loop.
     * ready_mu is the innermost lock: nothing is called under it. */
    pthread_mutex_t ready_mu;
    bl_job *ready_first, *ready_last; /* [guarded by ready_mu] */
    uint32_t n_ready;                 /* [guarded by ready_mu] */
};

/* serve.c */
/* Text of n random characters a-z0-9 after prefix. [loop thread] */
void bl_serve_make_id(bl_serve *s, const char *prefix, char out[BL_SERVE_ID_BYTES]);
/* The client's X-Request-Id when it is 1 to BL_SERVE_MAX_ID of [A-Za-z0-9_.-], else one of ours. h may be
 * NULL. [loop thread] */
void bl_serve_request_id(bl_serve *s, const bl_http_head *h, char out[BL_SERVE_MAX_ID + 1]);
/* Header lines that every response carries, in out. */
void bl_serve_headers(bl_serve *s, bl_http_exchange *x, const char *request_id, const char *more, char *out,
                      size_t size);
void bl_serve_answer_error(bl_serve *s, bl_http_exchange *x, const char *request_id,
                           const bl_openai_error *e);
/* One line a request, and its count in the metrics. more: further " key=value" pairs, or "". */
void bl_serve_log(bl_serve *s, const char *request_id, const char *method, bl_serve_route route, int status,
                  uint64_t start_ns, const char *more);
/* For bl_request.tenant. cache_key may be NULL. Any thread. */
uint64_t bl_serve_tenant(const bl_serve *s, const char *cache_key, size_t n);
/* What an engine's refusal or failure means to a client. Any thread. */
void bl_serve_engine_error(const bl_serve *s, const bl_err *err, bl_openai_error *ret);
bool bl_serve_knows_model(const bl_serve *s, const char *name);

/* job.c */
bl_job *bl_job_new(bl_serve *s, bl_http_exchange *x, bl_serve_route route, const char *request_id);
void bl_job_start(bl_job *job);                          /* the body is there */
void bl_job_abort(bl_job *job);                          /* the client left */
void bl_job_fail(bl_job *job, const bl_openai_error *e); /* answers as far as it still can, and frees */
void bl_job_room(bl_job *job);                           /* the client reads again */
void bl_jobs_wake(bl_serve *s); /* takes prepared jobs, pulls events of those that have some */
/* [engine thread] The session's notify; user is the job. */
void bl_job_notify(void *user);
void bl_jobs_tick(bl_serve *s, uint64_t now_ns);
bl_code bl_jobs_open(bl_serve *s, bl_err *err) BL_MUST_CHECK; /* starts the workers */
void bl_jobs_close(bl_serve *s);                              /* joins them, frees what is queued */

/* [loop] Takes the parser's events; user is the job. */
bl_code bl_job_sink(void *user, const bl_parsed *ev, bl_err *err) BL_MUST_CHECK;

/* prepare.c */
/* [worker] Body -> submitted session; job->error says why not. */
void bl_job_prepare(bl_job *job);

/* grammars.c */
/* [worker] The state of a grammar that holds the answer to what the request asks for; *ret NULL: it asks for
 * nothing of the kind. p says how the answer begins. */
bl_code bl_serve_shape(bl_serve *s, const bl_openai_request *q, const bl_parser_options *p,
                       bl_grammar_state **ret, bl_openai_error *e) BL_MUST_CHECK;
void bl_serve_grammars_init(bl_serve_grammars *g);
void bl_serve_grammars_done(bl_serve_grammars *g);

#endif
