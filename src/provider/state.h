/* What a running server says about itself to other commands: one small JSON file, replaced whole, removed at
 * a clean stop. `status` reads it. A file whose process is gone is stale: the process died, or the machine
 * did.
 *
 * Keys are the ones of spec provider-contracts.md 15, in camelCase; unknown ones are ignored on reading.
 */
#ifndef BL_PROVIDER_STATE_H
#define BL_PROVIDER_STATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_STATE_SCHEMA    1
#define BL_STATE_MAX_SLOTS 64u
#define BL_STATE_MAX_BYTES ((size_t)1 << 20)

/* A model that is served. Strings are cut to fit; "" stands for a key that is not there. */
typedef struct {
    char model[256];
    char kv_backend[16], kv_requested[16], kv_fallback[48];
    bool mtp_enabled, mtp_active;
    char mtp_inactive_reason[48]; /* a name of bl_mtp_reason_get */
    uint32_t mtp_depth;
    char load_error[256];
} bl_state_slot;

typedef struct {
    uint32_t schema;
    int64_t pid;
    uint64_t pid_start; /* bl_state_process_start of pid: a later process of that number is another; 0: not
                           known */
    char version[32];
    int64_t started_at, written_at; /* Unix time */
    char address[64];               /* as bound; "": none */
    uint16_t port;
    char model[256]; /* of slots[0] */
    uint32_t n_slots;
    bl_state_slot slots[BL_STATE_MAX_SLOTS];
} bl_state;

/* Where the file is: `file` itself, or darkbloom/daemon-state.json below state_home or ~/.local/state. NULL
 * and
 * "" are unset. BL_EINVAL when no folder can be named. */
bl_code bl_state_path(const char *file, const char *state_home, const char *home, char *ret, size_t cap,
                      bl_err *err) BL_MUST_CHECK;

/* Makes the folder, writes a temporary, syncs and renames. Sets s->written_at. */
bl_code bl_state_write(const char *path, bl_state *s, bl_err *err) BL_MUST_CHECK;
/* BL_ENOTFOUND when there is none, BL_EFORMAT when it is no state of this schema. */
bl_code bl_state_read(const char *path, bl_state *ret, bl_err *err) BL_MUST_CHECK;
/* Only if it is still that process's: a server that started later keeps its own. */
void bl_state_remove(const char *path, int64_t pid);

/* Whether the process that wrote it runs. */
bool bl_state_is_live(const bl_state *s);
/* When a process began, in ticks since boot; 0: there is none, or the system does not tell. */
uint64_t bl_state_process_start(int64_t pid);

/* The file's content, which is also what `status --json` shows. NULL when out of memory. */
json_t *bl_state_to_json(const bl_state *s);

#endif
