/* Arenas: named memory lifetimes with a ceiling. Allocation is a bump; everything goes at reset or free.
 * Lifetimes in use: model, session, request, step. Not thread-safe: one owner at a time.
 */
#ifndef BL_BASE_ARENA_H
#define BL_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef struct bl_arena bl_arena;

/* `name` is a static string used in messages. max_bytes is the ceiling on the sum of allocations (>= 1). */
bl_code bl_arena_new(const char *name, size_t max_bytes, bl_arena **ret, bl_err *err) BL_MUST_CHECK;
void bl_arena_free(bl_arena *a);
/* Keeps the first block. */
void bl_arena_reset(bl_arena *a);
/* Zeroed, aligned to 64. BL_ELIMIT beyond the ceiling, BL_ENOMEM when the system has none. ret gets the
 * pointer. */
bl_code bl_arena_alloc(bl_arena *a, size_t size_bytes, void **ret, bl_err *err) BL_MUST_CHECK;
/* n * size with overflow check (BL_ERANGE). */
bl_code bl_arena_alloc_array(bl_arena *a, size_t n, size_t size_bytes, void **ret, bl_err *err) BL_MUST_CHECK;
/* NUL-terminated copy of n bytes. */
bl_code bl_arena_strndup(bl_arena *a, const char *s, size_t n, char **ret, bl_err *err) BL_MUST_CHECK;
size_t bl_arena_used(const bl_arena *a);

#endif
