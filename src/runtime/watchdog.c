/* The watchdog: a thread that looks at the clock while a step runs. A step that takes longer than its rows
 * explain is reported, its requests are ended, and new ones are refused until it comes back; the rest of the
 * program goes on and can say so. It cannot end the step itself. */
#include "base/base.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "runtime/engine.h"

#define LOOK_MS 1000u
/* A slow machine: operations per second and thread that a step may be held against. The slowest seen, scalar
 * kernels on one core, give about 4e9. */
#define SLOW_OPS 1e9

void bl_watchdog_step(bl_engine *e, uint32_t n_rows) {
    const bl_model_info *m = &e->model.info;
    /* every row may see the whole context: two products per head and dimension */
    double attention = 4.0 * m->n_layers * m->n_heads * m->head_dim * m->n_context * n_rows;
    double ops =
        attention + (double)m->flops_per_token * n_rows + 2.0 * (double)m->n_vocab * m->hidden * n_rows;
    uint64_t limit = (uint64_t)e->watchdog_ms * 1000000u;
    if (e->watchdog_ms >= BL_DEFAULT_WATCHDOG_MS) { /* a shorter one is taken at its word */
        limit += (uint64_t)(ops / SLOW_OPS * 1e9);
    }
    atomic_store_explicit(&e->step_limit_ns, limit, memory_order_relaxed);
    /* release: whoever sees the start sees the limit */
    atomic_store_explicit(&e->step_start_ns, bl_clock_mono_ns(), memory_order_release);
}

void bl_watchdog_rest(bl_engine *e) {
    pthread_mutex_lock(&e->watch_mu);                                  /* so that no bark comes after it */
    atomic_store_explicit(&e->step_start_ns, 0, memory_order_release); /* pairs with is_late_locked */
    bool was = atomic_exchange_explicit(&e->hung, false, memory_order_acq_rel);
    pthread_mutex_unlock(&e->watch_mu);
    if (was) {
        bl_log(BL_LOG_WARN, "engine", "step_came_back", "requests=served_again");
    }
}

static bool is_late_locked(bl_engine *e, uint64_t *ret_age_ns) {
    uint64_t start = atomic_load_explicit(&e->step_start_ns, memory_order_acquire); /* pairs with step */
    uint64_t now = bl_clock_mono_ns();
    *ret_age_ns = start > 0 && now > start ? now - start : 0;
    return *ret_age_ns > atomic_load_explicit(&e->step_limit_ns, memory_order_relaxed) && start > 0;
}

/* A live session that was not told yet; the caller gets a reference. */
static bl_session *next_to_tell_locked(bl_engine *e) {
    bl_sched_req *lists[] = {bl_sched_first_running(e->sched), bl_sched_first_waiting(e->sched)};
    for (size_t i = 0; i < BL_COUNTOF(lists); i++) {
        for (bl_sched_req *r = lists[i]; r; r = r->next) {
            bl_session *s = bl_session_of(r);
            if (!s->given_up) {
                s->given_up = true;
                bl_session_ref(s);
                return s;
            }
        }
    }
    return NULL;
}

static void bark(bl_engine *e, uint64_t age_ns) {
    bl_event ev = {.kind = BL_EVENT_FAILED};
    uint64_t limit_ns = atomic_load_explicit(&e->step_limit_ns, memory_order_relaxed);
    (void)bl_err_set(&ev.err, BL_EINTERNAL, __FILE__, __LINE__,
                     "a step of the engine hangs: it runs for %llu ms, %llu ms are allowed",
                     (unsigned long long)(age_ns / 1000000u), (unsigned long long)(limit_ns / 1000000u));
    bl_log(BL_LOG_ERROR, "engine", "step_hangs", "ms=%llu", (unsigned long long)(age_ns / 1000000u));
    pthread_mutex_lock(&e->mu);
    e->stats.n_hangs++;
    for (bl_session *s; (s = next_to_tell_locked(e)) != NULL;) {
        pthread_mutex_unlock(&e->mu); /* no callback runs under it */
        bl_session_give_up(s, &ev);
        bl_session_cancel(s); /* so that the engine lets go of it when it is back */
        bl_session_unref(s);
        pthread_mutex_lock(&e->mu);
    }
    pthread_mutex_unlock(&e->mu);
}

static void *watchdog_main(void *arg) {
    bl_engine *e = arg;
    uint64_t look_ms = BL_MAX(BL_MIN((uint64_t)LOOK_MS, e->watchdog_ms / 4u), 1u);
    pthread_mutex_lock(&e->watch_mu);
    while (!e->watch_stop) {
        uint64_t age;
        (void)bl_cond_wait_until(&e->watch_cv, &e->watch_mu, bl_clock_mono_ns() + look_ms * 1000000u);
        if (!e->watch_stop && is_late_locked(e, &age) &&
            !atomic_exchange_explicit(&e->hung, true, memory_order_acq_rel)) { /* pairs with rest */
            pthread_mutex_unlock(&e->watch_mu);
            bark(e, age);
            pthread_mutex_lock(&e->watch_mu);
        }
    }
    pthread_mutex_unlock(&e->watch_mu);
    return NULL;
}

bl_code bl_watchdog_start(bl_engine *e, bl_err *err) {
    if (pthread_create(&e->watchdog, NULL, watchdog_main, e) != 0) {
        BL_FAIL(err, BL_ENOMEM, "the watchdog thread could not be started");
    }
    e->watched = true;
    return BL_OK;
}

void bl_watchdog_stop(bl_engine *e) {
    if (e->watched) {
        pthread_mutex_lock(&e->watch_mu);
        e->watch_stop = true;
        pthread_cond_signal(&e->watch_cv);
        pthread_mutex_unlock(&e->watch_mu);
        pthread_join(e->watchdog, NULL);
    }
}
