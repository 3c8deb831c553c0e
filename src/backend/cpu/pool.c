#include "backend/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "base/base.h"

/* Spins before a worker sleeps: about 30 us, more than the gap between two ops of a decode step and little
 * when the machine is shared. */
#define SPINS 1500u

/* state = epoch << 32 | CLOSED | number of workers inside. One word, so that joining is one compare-and-swap
 * that fails once the job is closed or another has begun. */
#define CLOSED    0x80000000u
#define ACTIVE(s) ((uint32_t)(s)&0x7fffffffu)
#define EPOCH(s)  ((uint32_t)((s) >> 32))

struct bl_pool {
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic uint32_t n_sleeping;
    _Atomic bool stop;
    bl_pool_fn *fn; /* written before the state that opens the job, read after joining it */
    void *ctx;
    pthread_mutex_t mu;
    pthread_cond_t wake; /* the state changed or stop was set */
    uint32_t n_threads, n_started;
    struct worker {
        bl_pool *pool;
        pthread_t id;
        uint32_t index;
    } workers[BL_POOL_MAX_THREADS];
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits for an epoch other than `seen`, or stop. Spins, then sleeps. */
static uint64_t wait_job(bl_pool *p, uint32_t seen) {
    for (uint32_t i = 0; i < SPINS; i++) {
        uint64_t s =
            atomic_load_explicit(&p->state, memory_order_acquire); /* pairs with the store in bl_pool_run */
        if (EPOCH(s) != seen || atomic_load_explicit(&p->stop, memory_order_relaxed)) {
            return s;
        }
        relax();
    }
    pthread_mutex_lock(&p->mu);
    /* Sequentially consistent, as are the store of the state and the load of n_sleeping in bl_pool_run: one
     * of the two sees the other. */
    atomic_fetch_add(&p->n_sleeping, 1);
    uint64_t s;
    while (EPOCH(s = atomic_load(&p->state)) == seen && !atomic_load(&p->stop)) {
        pthread_cond_wait(&p->wake, &p->mu);
    }
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->mu);
    return s;
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    bl_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        uint64_t s = wait_job(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) {
            return NULL;
        }
        seen = EPOCH(s);
        while (EPOCH(s) == seen && !(s & CLOSED)) {
            /* acquire: fn and ctx of the job; release on the way out: its results */
            if (atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acquire,
                                                      memory_order_acquire)) {
                p->fn(p->ctx, w->index);
                atomic_fetch_sub_explicit(&p->state, 1,
                                          memory_order_release); /* pairs with the wait in bl_pool_run */
                break;
            }
        }
    }
}

void bl_pool_run(bl_pool *p, bl_pool_fn *fn, void *ctx) {
    if (p->n_started == 0) {
        fn(ctx, 0);
        return;
    }
    uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    p->fn = fn;
    p->ctx = ctx;
    atomic_store(&p->state, (uint64_t)(EPOCH(s) + 1u) << 32);
    if (atomic_load(&p->n_sleeping) > 0) {
        pthread_mutex_lock(&p->mu);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mu);
    }
    fn(ctx, 0);
    s = atomic_fetch_or_explicit(&p->state, CLOSED, memory_order_acquire);
    for (uint32_t i = 0; ACTIVE(s) != 0; i++) {
        if (i < SPINS) {
            relax();
        } else {
            sched_yield(); /* a worker was descheduled in the middle of a unit */
        }
        s = atomic_load_explicit(&p->state, memory_order_acquire); /* pairs with the worker's release */
    }
}

bl_code bl_pool_new(uint32_t n_threads, bl_pool **ret, bl_err *err) {
    if (n_threads == 0 || n_threads > BL_POOL_MAX_THREADS) {
        BL_FAIL(err, BL_EINVAL, "threads: %u, allowed 1 to %u", n_threads, BL_POOL_MAX_THREADS);
    }
    bl_pool *p = bl_alloc_aligned(64, sizeof(*p));
    if (!p) {
        BL_FAIL(err, BL_ENOMEM, "thread pool: no memory");
    }
    p->n_threads = n_threads;
    atomic_store(&p->state, (uint64_t)CLOSED);
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (uint32_t i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->index = i;
        int e = pthread_create(&w->id, NULL, worker_main, w);
        if (e != 0) {
            bl_pool_free(p);
            BL_FAIL(err, BL_EIO, "thread %u of %u could not be started (error %d)", i, n_threads, e);
        }
        p->n_started++;
    }
    *ret = p;
    return BL_OK;
}

void bl_pool_free(bl_pool *p) {
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
    for (uint32_t i = p->n_started; i > 0; i--) {
        pthread_join(p->workers[i].id, NULL);
    }
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    bl_free_aligned(p);
}

uint32_t bl_pool_threads(const bl_pool *p) {
    return p->n_threads;
}
