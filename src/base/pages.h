/* Memory mapped in whole pages whose addresses are reserved first and committed when used: for storage with a
 * budget, whose layout is fixed at open. All calls go through the os-call table. No state; any thread.
 */
#ifndef BL_BASE_PAGES_H
#define BL_BASE_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef struct {
    uint8_t *base; /* zero bytes, page-aligned; NULL when size_bytes is 0 */
    size_t size_bytes;
} bl_pages;

/* Rounds up to whole pages of this machine. */
uint64_t bl_pages_round(uint64_t bytes);
/* Reserves addresses; nothing is committed, and nothing counted against the machine's memory yet. What is
 * touched is committed page by page, never in huge pages. `what` is for the message. BL_ENOMEM. */
bl_code bl_pages_map(uint64_t bytes, const char *what, bl_pages *ret, bl_err *err) BL_MUST_CHECK;
void bl_pages_unmap(bl_pages *p);
/* Makes memory stand behind whole pages, now: a thread that touched them and found none would be killed, a
 * call that fails can wait. BL_ENOMEM. */
bl_code bl_pages_commit(void *at, uint64_t bytes, const char *what, bl_err *err) BL_MUST_CHECK;
/* Gives the memory back; the addresses stay, and read zero. BL_ENOMEM: it is still there. */
bl_code bl_pages_release(void *at, uint64_t bytes, const char *what, bl_err *err) BL_MUST_CHECK;

#endif
