/* The engine behind bl.h: one thread that owns model, KV and backend, and the functions that other threads
 * call. Steps are batch.c's. */
#include "runtime/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"

#define MAX_QUEUE    BL_SCHED_MAX_WAITING
#define PROFILE_MAX  ((size_t)64 << 10)
#define SAFETY_OPS   1000000000u
#define SAFETY_SLACK 20u
#define STUCK_NS     20000000u /* before the machine is asked for memory again */

void bl_engine_options_init(bl_engine_options *o) {
    *o = (bl_engine_options){.cpu_mask = UINT32_MAX, .attn_query_block = 128};
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static char *profile_text(bl_engine *e) {
    const bl_op_profile *p;
    size_t n = e->model.backend->ops->profile(e->model.backend, &p);
    bl_buf b;
    uint64_t total = 0;
    bl_buf_init(&b, PROFILE_MAX);
    for (size_t i = 0; i < n; i++) {
        total += p[i].ns;
    }
    bl_code rc = bl_buf_printf(&b, NULL, "%-18s %8s %12s %7s %10s %8s %9s\n", "operation", "calls", "ms",
                               "share", "MB read", "GB/s", "Gop/s");
    for (size_t i = 0; i < n && rc == BL_OK; i++) {
        double ns = p[i].ns > 0 ? (double)p[i].ns : 1.0;
        rc = bl_buf_printf(&b, NULL, "%-18s %8llu %12.3f %6.1f%% %10.1f %8.2f %9.2f\n", p[i].label,
                           (unsigned long long)p[i].calls, (double)p[i].ns / 1e6,
                           total > 0 ? 100.0 * (double)p[i].ns / (double)total : 0.0,
                           (double)p[i].bytes_read / 1e6, (double)p[i].bytes_read / ns,
                           (double)p[i].flops / ns);
    }
    if (rc != BL_OK) {
        bl_buf_done(&b);
        return NULL;
    }
    return bl_buf_steal(&b);
}

static uint32_t live_locked(const bl_engine *e) {
    return bl_sched_running(e->sched) + bl_sched_waiting(e->sched);
}

/* Runs the waiting job. The lock is let go of meanwhile; only this thread clears e->job. */
static void run_job_locked(bl_engine *e) {
    bl_engine_job job = e->job;
    bool idle = live_locked(e) == 0;
    bl_backend *b = e->model.backend;
    double number = 0.0;
    char *text = NULL;
    pthread_mutex_unlock(&e->mu);
    if (job == BL_JOB_READ_GBPS && idle) {
        number = bl_backend_cpu_read_gbps(b);
    } else if (job == BL_JOB_INT8_GOPS && idle) {
        number = bl_backend_cpu_int8_gops(b);
    } else if (job == BL_JOB_PROFILE_ON || job == BL_JOB_PROFILE_OFF) {
        b->ops->set_profile(b, job == BL_JOB_PROFILE_ON);
    } else if (job == BL_JOB_PROFILE_TEXT) {
        text = profile_text(e);
    }
    pthread_mutex_lock(&e->mu);
    e->job = BL_JOB_NONE;
    e->job_number = number;
    e->job_text = text;
    e->job_finished = true;
    pthread_cond_broadcast(&e->done);
}

static void *engine_main(void *arg) {
    bl_engine *e = arg;
    pthread_mutex_lock(&e->mu);
    for (;;) {
        if (e->job != BL_JOB_NONE) {
            run_job_locked(e);
        }
        bl_batch_sweep_locked(e);
        bool runs = !e->stopping && bl_batch_plan_locked(e);
        if (!runs && !e->ended) {
            if (e->stopping) {
                break;
            }
            if (live_locked(e) > 0) {
                uint64_t wait_ns = bl_batch_is_stuck_locked(e) ? STUCK_NS : 0;
                (void)bl_cond_wait_until(&e->work, &e->mu, bl_clock_mono_ns() + wait_ns);
            } else if (e->job == BL_JOB_NONE) {
                pthread_cond_wait(&e->work, &e->mu);
            }
            continue;
        }
        pthread_mutex_unlock(&e->mu);
        bl_batch_hand_out(e); /* of the sweep */
        if (runs) {
            bl_batch_run(e);
            bl_batch_hand_out(e);
        }
        pthread_mutex_lock(&e->mu);
    }
    pthread_mutex_unlock(&e->mu);
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static bl_code open_parts(bl_engine *e, const bl_engine_options *o, bl_err *err) {
    bl_loaded *l = &e->model;
    BL_TRY(bl_loader_inspect(o, l, err));
    BL_TRY(bl_loader_load(o, l, err));
    BL_TRY(bl_batch_open(e, o, err));
    e->watchdog_ms = o->watchdog_ms > 0 ? o->watchdog_ms : BL_DEFAULT_WATCHDOG_MS;
    char flags[64];
    snprintf(e->device, sizeof e->device, "%s, %u threads, %s", l->backend->ops->name,
             bl_backend_cpu_threads(l->backend), bl_cpu_flags_name(bl_backend_cpu_flags(l->backend), flags));
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        BL_FAIL(err, BL_ENOMEM, "the engine thread could not be started");
    }
    e->started = true;
    BL_TRY(bl_watchdog_start(e, err));
    bl_log(BL_LOG_INFO, "engine", "ready",
           "context=%u concurrent=%u kv_storage=%s kv_reason=%s kv_bytes=%llu prefix_cache_bytes=%llu",
           l->info.n_context, l->info.max_concurrent, l->info.kv_storage, l->info.kv_storage_reason,
           (unsigned long long)l->info.kv_bytes, (unsigned long long)l->info.prefix_cache_bytes);
    return BL_OK;
}

static void init_sync(bl_engine *e) {
    pthread_mutex_init(&e->mu, NULL);
    pthread_mutex_init(&e->cache_mu, NULL);
    pthread_mutex_init(&e->watch_mu, NULL);
    (void)bl_cond_init(&e->work);
    (void)bl_cond_init(&e->watch_cv);
    pthread_cond_init(&e->done, NULL);
}

bl_code bl_engine_open(const bl_engine_options *o, bl_engine **ret, bl_err *err) {
    if (o->max_queue > MAX_QUEUE) {
        BL_FAIL(err, BL_EINVAL, "max_queue is %u, at most %u are allowed", o->max_queue, MAX_QUEUE);
    }
    bl_engine *e = bl_alloc(sizeof *e);
    if (!e) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the engine");
    }
    init_sync(e);
    bl_code rc = open_parts(e, o, err);
    if (rc != BL_OK) {
        bl_engine_close(e);
        return rc;
    }
    *ret = e;
    return BL_OK;
}

void bl_engine_close(bl_engine *e) {
    if (!e) {
        return;
    }
    if (e->started) {
        pthread_mutex_lock(&e->mu);
        e->stopping = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->mu);
        pthread_join(e->thread, NULL);
    }
    bl_watchdog_stop(e);
    bl_batch_close(e);
    bl_loader_done(&e->model);
    pthread_cond_destroy(&e->watch_cv);
    pthread_mutex_destroy(&e->watch_mu);
    pthread_mutex_destroy(&e->cache_mu);
    pthread_cond_destroy(&e->done);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->mu);
    bl_free(e);
}

/* ---- from other threads ------------------------------------------------------------------------------ */

/* Cancelled ones are swept at the next step boundary; until then they do not count, but they are not
 * unbounded either (the scheduler's own limit). Preempted ones were let in long ago. */
static bl_code check_queue_locked(bl_engine *e, bl_err *err) {
    uint32_t n = 0;
    for (bl_sched_req *r = bl_sched_first_waiting(e->sched); r; r = r->next) {
        n += r->status == BL_SCHED_WAITING && !bl_session_is_cancelled(bl_session_of(r));
    }
    /* Who will start with the next step does not wait for anybody: a burst on an idle engine fills its places
     * before it fills its queue. */
    const uint32_t places = e->model.kv.n_seqs, taken = bl_sched_running(e->sched);
    if (n >= e->max_queue + (places > taken ? places - taken : 0)) {
        BL_FAIL(err, BL_EBUSY, "%u requests wait already, %u may", n, e->max_queue);
    }
    return BL_OK;
}

static bl_code add_locked(bl_engine *e, const bl_request *r, bl_session *s, bl_err *err) {
    if (e->stopping) {
        BL_FAIL(err, BL_EBUSY, "the engine is being closed");
    }
    if (atomic_load_explicit(&e->hung, memory_order_acquire)) { /* pairs with the watchdog's */
        BL_FAIL(err, BL_EINTERNAL, "a step of the engine hangs, requests are refused until it comes back");
    }
    BL_TRY(check_queue_locked(e, err));
    /* The safety lease counts on 200 prompt and 5 output tokens a second. A large model on few cores, a long
     * prompt or a busy machine do not reach that, and what makes progress must not be ended: it is a guard
     * against what nobody thought of, so it waits far longer, and in proportion to the model's operations. */
    uint64_t slow = SAFETY_SLACK * BL_MAX(e->model.info.flops_per_token / SAFETY_OPS, 1u);
    bl_lease_begin(&s->lease, &e->leases, s->t_submit, s->n_prompt * slow, s->max_output * slow,
                   r->first_content_ms);
    s->sched.id = ++e->n_submitted;
    BL_TRY(bl_sched_add(e->sched, &s->sched, err));
    uint64_t forecast_ms;
    if (r->first_content_ms > 0 && !bl_batch_meets_deadline_locked(e, s, &forecast_ms)) {
        bl_sched_remove(e->sched, &s->sched);
        e->stats.n_rejected_deadline++;
        BL_FAIL(err, BL_EBUSY,
                "deadline_unreachable: the first token is forecast in %llu ms, %u ms are allowed",
                (unsigned long long)forecast_ms, r->first_content_ms);
    }
    return BL_OK;
}

bl_code bl_session_submit(bl_engine *e, const bl_request *r, bl_session **ret, bl_err *err) {
    bl_session *s;
    BL_TRY(bl_session_new(r, e->model.info.n_vocab, e->model.info.n_context, &s, err));
    s->sched.n_cached_guess = bl_batch_cached(e, s);
    pthread_mutex_lock(&e->mu);
    bl_code rc = add_locked(e, r, s, err);
    if (rc == BL_OK) {
        s->grammar = r->grammar; /* taken now that nothing can fail */
        *ret = s;                /* before the engine can see it */
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->mu);
    if (rc != BL_OK) {
        bl_session_unref(s);
        bl_session_unref(s);
    }
    return rc;
}

const bl_model_info *bl_engine_info(const bl_engine *e) {
    return &e->model.info;
}

const char *bl_engine_device(const bl_engine *e) {
    return e->device;
}

void bl_engine_get_stats(bl_engine *e, bl_engine_stats *ret) {
    pthread_mutex_lock(&e->mu);
    *ret = e->stats;
    ret->running = bl_sched_running(e->sched);
    ret->waiting = bl_sched_waiting(e->sched);
    ret->kv_bytes_in_use = bl_kv_pool_bytes_in_use(e->pool);
    ret->kv_bytes_committed = bl_kv_pool_bytes_committed(e->pool);
    ret->kv_bytes_capacity = bl_kv_pool_capacity(e->pool);
    pthread_mutex_unlock(&e->mu);
    uint64_t start = atomic_load_explicit(&e->step_start_ns, memory_order_acquire), now = bl_clock_mono_ns();
    ret->step_age_ns = start > 0 && now > start ? now - start : 0;
    ret->hung = atomic_load_explicit(&e->hung, memory_order_acquire); /* both pair with the watchdog's */
}

/* Hands a job to the engine thread and waits; jobs of several callers run one after the other. */
static double do_job(bl_engine *e, bl_engine_job job, char **ret_text) {
    pthread_mutex_lock(&e->mu);
    while (e->job != BL_JOB_NONE || e->job_finished) {
        pthread_cond_wait(&e->done, &e->mu);
    }
    e->job = job;
    pthread_cond_signal(&e->work);
    while (!e->job_finished) {
        pthread_cond_wait(&e->done, &e->mu);
    }
    double number = e->job_number;
    if (ret_text) {
        *ret_text = e->job_text;
    }
    e->job_text = NULL;
    e->job_finished = false;
    pthread_cond_broadcast(&e->done);
    pthread_mutex_unlock(&e->mu);
    return number;
}

double bl_engine_measure_read_gbps(bl_engine *e) {
    return do_job(e, BL_JOB_READ_GBPS, NULL);
}

double bl_engine_measure_int8_gops(bl_engine *e) {
    return do_job(e, BL_JOB_INT8_GOPS, NULL);
}

void bl_engine_set_profile(bl_engine *e, bool on) {
    do_job(e, on ? BL_JOB_PROFILE_ON : BL_JOB_PROFILE_OFF, NULL);
}

char *bl_engine_profile_text(bl_engine *e) {
    char *text = NULL;
    do_job(e, BL_JOB_PROFILE_TEXT, &text);
    return text;
}

bl_code bl_model_inspect(const bl_engine_options *o, bl_model_info *ret, bl_err *err) {
    bl_loaded l;
    BL_TRY(bl_loader_inspect(o, &l, err));
    *ret = l.info;
    bl_loader_done(&l);
    return BL_OK;
}

const char *bl_version(void) {
    return BL_VERSION;
}
