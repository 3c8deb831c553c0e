/* The local server: OpenAI's routes over one engine. Owns the HTTP server, the workers that parse, render and
 * tokenise, and the jobs that carry a request from its body to its last byte.
 *
 * Threads: the loop thread (bl_serve_run) owns sockets, jobs and sessions; workers own a job while they
 * prepare it; the engine thread only calls the wake-up. Requests and jobs move between them through two
 * queues, whole.
 */
#ifndef BL_SERVE_SERVE_H
#define BL_SERVE_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl.h"
#include "chat/chat.h"

typedef struct bl_serve bl_serve;

typedef struct {
    const char *bind;
    uint16_t port;       /* 0: the system chooses */
    const char *api_key; /* NULL: none is asked for. Only its hash is kept. */
    const char *cors;    /* allowed browser origin, "*" for all, NULL for none */
    bool any_host; /* without a key: accept any Host (the bind is public on purpose) instead of loopback names
                      only */
    uint32_t max_concurrent, max_queue; /* as the engine was opened: those that run and those that wait */
    uint32_t n_workers;
    uint32_t max_connections;
    uint32_t drain_timeout_ms; /* running answers get this long after bl_serve_stop */
    uint32_t alive_ms;         /* silence of a stream after which a comment is sent, to 250 ms; 0: never */
    uint32_t head_timeout_ms, write_timeout_ms; /* 0: the HTTP server's own */
} bl_serve_options;

void bl_serve_options_init(bl_serve_options *o);

/* Binds and listens: an address that cannot be had is known before a model is loaded. Connections wait until
 * bl_serve_run. */
bl_code bl_serve_open(const bl_serve_options *o, bl_serve **ret, bl_err *err) BL_MUST_CHECK;
uint16_t bl_serve_port(const bl_serve *s);

/* What is served; all borrowed until bl_serve_free. Before bl_serve_run. model_id is what clients see and
 * name; aliases too are accepted. */
typedef struct {
    bl_engine *engine;
    const bl_chat *chat; /* with a tokenizer */
    const char *model_id;
    const char *const *aliases;
    size_t n_aliases;
    /* Drafting, for the metrics: whether it was asked for here, and the stable name of why there is none
     * (NULL where the engine drafts, or nobody knows). */
    bool mtp_enabled;
    const char *mtp_inactive_reason;
} bl_serve_model;
bl_code bl_serve_attach(bl_serve *s, const bl_serve_model *m, bl_err *err) BL_MUST_CHECK;

/* Serves until stopped. The calling thread is the loop thread. */
bl_code bl_serve_run(bl_serve *s, bl_err *err) BL_MUST_CHECK;
/* Any thread. First call: no new connections, running answers end, then run returns. Second call: they are
 * cut short. */
void bl_serve_stop(bl_serve *s);
/* Frees all sessions and joins the workers; the engine may be closed afterwards. Not while running. */
void bl_serve_free(bl_serve *s);

#endif
