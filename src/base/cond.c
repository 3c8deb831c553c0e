#include "base/cond.h"

#include <errno.h>
#include <time.h>

bool bl_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    bool ok = pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(c, &attr) == 0;
        pthread_condattr_destroy(&attr);
    }
    return ok;
}

bool bl_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *mu, uint64_t until_ns) {
    struct timespec ts = {.tv_sec = (time_t)(until_ns / 1000000000u),
                          .tv_nsec = (long)(until_ns % 1000000000u)};
    return pthread_cond_timedwait(c, mu, &ts) != ETIMEDOUT;
}
