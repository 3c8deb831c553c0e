/* Small things every layer uses: assertions, checked integers, memory through the os-call table.
 *
 * All allocation in the project goes through bl_alloc/bl_realloc/bl_free (so that faults can be injected and
 * counted); all arithmetic on untrusted numbers goes through bl_add and bl_mul.
 */
#ifndef BL_BASE_BASE_H
#define BL_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

/* Programmer invariants only, never input: kept in release. Prints and aborts. */
#define BL_ASSERT(cond) ((cond) ? (void)0 : bl_assert_failed(#cond, __FILE__, __LINE__))
#if defined(BL_DEBUG) && BL_DEBUG
#define BL_DASSERT(cond) BL_ASSERT(cond)
#else
#define BL_DASSERT(cond) ((void)0)
#endif
_Noreturn void bl_assert_failed(const char *cond, const char *file, int line);

#define BL_COUNTOF(a) (sizeof(a) / sizeof((a)[0]))
#define BL_MIN(a, b)  ((a) < (b) ? (a) : (b))
#define BL_MAX(a, b)  ((a) > (b) ? (a) : (b))

/* Checked arithmetic: false on overflow, *ret untouched then. */
static inline bool bl_add_u64(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}
static inline bool bl_mul_u64(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}
/* Rounds up to a multiple of align (a power of two). false on overflow. */
static inline bool bl_align_u64(uint64_t a, uint64_t align, uint64_t *ret) {
    uint64_t r;
    if (__builtin_add_overflow(a, align - 1, &r)) {
        return false;
    }
    *ret = r & ~(align - 1);
    return true;
}

/* Heap memory, zeroed. size 0 gives a valid pointer. NULL when out of memory: the caller reports BL_ENOMEM.
 */
void *bl_alloc(size_t size_bytes) BL_MUST_CHECK;
/* n * size with overflow check, zeroed. */
void *bl_alloc_array(size_t n, size_t size_bytes) BL_MUST_CHECK;
/* Like realloc; new bytes are not zeroed; p stays valid on failure. */
void *bl_realloc(void *p, size_t size_bytes) BL_MUST_CHECK;
/* Zeroed, aligned to `align` (power of two, 64 for vector data). Freed with bl_free_aligned. */
void *bl_alloc_aligned(size_t align, size_t size_bytes) BL_MUST_CHECK;
void bl_free_aligned(void *p);
void bl_free(void *p);
/* NUL-terminated copies; NULL when out of memory. Freed with bl_free. */
char *bl_strdup(const char *s) BL_MUST_CHECK;
char *bl_strndup(const char *s, size_t n) BL_MUST_CHECK;

#endif
