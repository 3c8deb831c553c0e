/* Maps of files that another process cuts short while we read them. Touching a page behind the new end raises
 * SIGBUS, which would end the process; a guarded map reads as zeros there instead and is marked, so that
 * whoever read from it can report the file instead of using what was read (spec models.md §7.3 "Runtime").
 *
 * [any thread]. The first guard installs the process's SIGBUS handler and keeps it; faults outside guarded
 * maps go to the handler that was there before. The table of guards is a mutable global, as signal handlers
 * have no other way to it.
 */
#ifndef BL_BASE_MAPGUARD_H
#define BL_BASE_MAPGUARD_H

#include <stdint.h>

#include "bl/bl_err.h"

/* Most maps at a time: the shards of two models and room. */
#define BL_MAPGUARD_MAX 256

/* Guards size_bytes at data (page aligned, from bl_map_open). BL_ELIMIT beyond BL_MAPGUARD_MAX. */
bl_code bl_mapguard_add(const uint8_t *data, uint64_t size_bytes, bl_err *err) BL_MUST_CHECK;
/* Before the map is closed. Unknown and NULL data: no-op. */
void bl_mapguard_remove(const uint8_t *data);
/* BL_ECORRUPT when a page of the guarded map at data had to be read as zeros; `name` is the file in the
 * message. */
bl_code bl_mapguard_check(const uint8_t *data, const char *name, bl_err *err) BL_MUST_CHECK;

#endif
