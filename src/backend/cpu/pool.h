/* The thread pool: persistent workers and the calling thread, one job at a time.
 *
 * A job is a function that takes work units from a counter until none is left, so any number of threads can
 * do it and a worker that was asleep or descheduled is not waited for: it joins a job only while the job is
 * open. Results must not depend on who takes a unit. [engine thread] owns the pool; workers only ever touch
 * the job.
 */
#ifndef BL_BACKEND_CPU_POOL_H
#define BL_BACKEND_CPU_POOL_H

#include <stdatomic.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_POOL_MAX_THREADS 256u

typedef struct bl_pool bl_pool;

/* `thread` is 0 for the caller and below bl_pool_threads() for workers: an index for per-thread scratch. */
typedef void bl_pool_fn(void *ctx, uint32_t thread);

/* n_threads counts the caller (1: no workers). BL_EINVAL, BL_ENOMEM, BL_EIO when a thread cannot be started.
 */
bl_code bl_pool_new(uint32_t n_threads, bl_pool **ret, bl_err *err) BL_MUST_CHECK;
/* Joins the workers. NULL is a no-op. */
void bl_pool_free(bl_pool *p);
uint32_t bl_pool_threads(const bl_pool *p);
/* Runs fn on the caller and on every worker that is there in time; returns when all that joined have left. */
void bl_pool_run(bl_pool *p, bl_pool_fn *fn, void *ctx);

#endif
