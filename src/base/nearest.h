/* "Did you mean": the nearest of some names to a mistyped word. */
#ifndef BL_BASE_NEAREST_H
#define BL_BASE_NEAREST_H

#include <stddef.h>

/* The nearest name when it is near enough to suggest, else NULL. Words beyond 63 bytes are never near. */
const char *bl_nearest(const char *word, const char *const *names, size_t n);

#endif
