/* What the server counts about its requests, and GET /metrics in Prometheus' text form (version 0.0.4).
 *
 * Lock rules: a bl_metrics belongs to the loop thread. Every observation is made there (tokens are pulled,
 * jobs end and requests are refused on it) and GET /metrics is answered on it, so there is no lock and no
 * atomic. The engine's numbers come in with bl_metrics_view, which the caller fills from
 * bl_engine_get_stats (that takes the engine's own lock for the copy).
 *
 * Labels are routes, statuses and stages from closed lists, and the model's name as the operator gave it;
 * nothing that a client sent.
 */
#ifndef BL_SERVE_METRICS_H
#define BL_SERVE_METRICS_H

#include "base/buf.h"
#include "bl/bl.h"

#define BL_METRICS_MAX_ROUTES 16
#define BL_METRICS_MAX_STATUS 32
#define BL_METRICS_MAX_BYTES  (256u << 10)

/* How far a request was when its client left. */
typedef enum {
    BL_STAGE_PRE_ENGINE, /* body, template, tokens: no session yet */
    BL_STAGE_PREFILL,    /* in the engine, before the first token (its queue included) */
    BL_STAGE_DECODE,
    BL_STAGE__MAX
} bl_metrics_stage;

typedef struct {
    const char *routes[BL_METRICS_MAX_ROUTES]; /* static */
    uint32_t n_routes;
    uint64_t requests[BL_METRICS_MAX_ROUTES][BL_METRICS_MAX_STATUS];
    uint64_t cancelled[BL_STAGE__MAX];
    bl_histogram ttft, token_gap, queue, duration;
    uint64_t n_keep_alives;
    uint64_t n_wakes, n_pulls; /* wake-ups of the loop for jobs, and jobs looked at in them */
} bl_metrics;

/* The rest of what is shown: taken when it is asked for. */
typedef struct {
    const char *version, *model;
    const char *kv_storage, *kv_storage_reason; /* NULL: not shown */
    bool mtp_enabled;
    const char *mtp_inactive_reason; /* NULL: not shown */
    uint64_t start_s;                /* Unix time */
    bl_engine_stats engine;
    uint32_t preparing, connections;
    uint64_t dropped_readers;
    uint64_t resident_bytes; /* 0: not known, then not shown */
} bl_metrics_view;

void bl_metrics_init(bl_metrics *m, const char *const *routes, uint32_t n_routes);
void bl_metrics_request(bl_metrics *m, uint32_t route, int status);
const char *bl_metrics_stage_name(bl_metrics_stage s);

bl_code bl_metrics_write(const bl_metrics *m, const bl_metrics_view *v, bl_buf *ret,
                         bl_err *err) BL_MUST_CHECK;

/* The process's resident memory; 0 when the system does not say. */
uint64_t bl_metrics_resident_bytes(void);

#endif
