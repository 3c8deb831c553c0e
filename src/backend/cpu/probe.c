/* Measured ceilings of this machine, with the backend's own threads and kernels. */
#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "base/clock.h"

#define READ_BYTES (256u << 20)
#define READ_UNIT  (1u << 20)
#define PROBE_NS   250000000u
#define INT8_ITERS (1u << 20)

typedef struct {
    const bl_kernels *k;
    const uint8_t *p;
    uint8_t *touch;
    uint32_t n_units;
    _Atomic uint32_t next;
    _Atomic uint64_t sum, work;
} probe_job;

static void touch_units(void *ctx, uint32_t thread) {
    probe_job *j = ctx;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_units;) {
        for (size_t i = 0; i < READ_UNIT; i += 64) {
            j->touch[(size_t)u * READ_UNIT + i] = (uint8_t)(i >> 6 ^ thread);
        }
    }
}

static void read_units(void *ctx, uint32_t thread) {
    (void)thread;
    probe_job *j = ctx;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_units;) {
        atomic_fetch_add_explicit(&j->sum, j->k->probe_read(j->p + (size_t)u * READ_UNIT, READ_UNIT),
                                  memory_order_relaxed);
    }
}

static void int8_units(void *ctx, uint32_t thread) {
    (void)thread;
    probe_job *j = ctx;
    for (uint32_t u; (u = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_units;) {
        uint64_t sink = 0;
        atomic_fetch_add_explicit(&j->work, j->k->probe_int8(INT8_ITERS, &sink), memory_order_relaxed);
        atomic_fetch_add_explicit(&j->sum, sink, memory_order_relaxed);
    }
}

double bl_backend_cpu_read_gbps(bl_backend *b) {
    bl_cpu *c = (bl_cpu *)b;
    uint8_t *p = bl_alloc_aligned(4096, READ_BYTES);
    if (!p) {
        return 0.0;
    }
    probe_job j = {.k = &c->k, .p = p, .touch = p, .n_units = READ_BYTES / READ_UNIT};
    bl_pool_run(c->pool, touch_units, &j);
    double best = 0.0;
    for (uint64_t t0 = bl_clock_mono_ns(), t = t0; t - t0 < PROBE_NS;) {
        uint64_t begin = t;
        atomic_store(&j.next, 0);
        bl_pool_run(c->pool, read_units, &j);
        t = bl_clock_mono_ns();
        best = BL_MAX(best, (double)READ_BYTES / (double)(t - begin));
    }
    bl_free_aligned(p);
    return best;
}

double bl_backend_cpu_int8_gops(bl_backend *b) {
    bl_cpu *c = (bl_cpu *)b;
    probe_job j = {.k = &c->k, .n_units = 8 * bl_pool_threads(c->pool)};
    double best = 0.0;
    for (uint64_t t0 = bl_clock_mono_ns(), t = t0; t - t0 < PROBE_NS;) {
        uint64_t begin = t;
        atomic_store(&j.next, 0);
        atomic_store(&j.work, 0);
        bl_pool_run(c->pool, int8_units, &j);
        t = bl_clock_mono_ns();
        best = BL_MAX(best, 2.0 * (double)atomic_load(&j.work) / (double)(t - begin));
    }
    return best;
}
