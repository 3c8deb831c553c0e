/* Time, injectable. Monotonic for durations and deadlines, wall for what people read. */
#ifndef BL_BASE_CLOCK_H
#define BL_BASE_CLOCK_H

#include <stdint.h>

uint64_t bl_clock_mono_ns(void);
int64_t bl_clock_wall_s(void); /* Unix time */

#endif
