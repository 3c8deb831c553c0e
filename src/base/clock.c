#include "base/clock.h"

#include <time.h>

uint64_t bl_clock_mono_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int64_t bl_clock_wall_s(void) {
    return (int64_t)time(NULL);
}
