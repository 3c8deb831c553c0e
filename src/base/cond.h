/* Condition variables whose timed waits are on the monotonic clock, that of bl_clock_mono_ns. */
#ifndef BL_BASE_COND_H
#define BL_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* False: the system has no resources for it; *c is then not to be used or destroyed. */
bool bl_cond_init(pthread_cond_t *c);
/* Waits for a signal (or a spurious one) until that time at the latest. False: the time is over. */
bool bl_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *mu, uint64_t until_ns);

#endif
