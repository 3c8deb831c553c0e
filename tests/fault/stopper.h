/* Interrupts a job that reports progress by blocks at the block of one's choice. Include behind cmocka_all.h.
 */
#ifndef BL_TESTS_FAULT_STOPPER_H
#define BL_TESTS_FAULT_STOPPER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    atomic_bool cancel;
    uint32_t n_blocks, stop_at;
} stopper;

static inline void stop(void *user, uint64_t done, uint64_t total) {
    stopper *s = user;
    assert_true(done > 0 && done <= total);
    if (++s->n_blocks == s->stop_at) {
        atomic_store_explicit(&s->cancel, true, memory_order_relaxed);
    }
}

#endif
