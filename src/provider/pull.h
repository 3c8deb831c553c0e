/* Fetching models into the store: what a pull reports while it runs, shared by its sources (hub.h, demo.h).
 */
#ifndef BL_PROVIDER_PULL_H
#define BL_PROVIDER_PULL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef enum {
    BL_PULL_PLAN,     /* n_files and total_bytes are known, nothing fetched yet; done_bytes is here already */
    BL_PULL_FILE,     /* file `name` begins */
    BL_PULL_PROGRESS, /* done_bytes of total_bytes, over all files */
    BL_PULL_NOTE      /* `text`: one line for people */
} bl_pull_event_kind;

typedef struct {
    bl_pull_event_kind kind;
    const char *name, *text;
    uint32_t file, n_files; /* file: the one that begins, from 1 */
    uint64_t done_bytes, total_bytes;
} bl_pull_event;

typedef struct {
    const char *models_dir;                            /* bl_store.models; made when missing */
    const atomic_bool *cancel;                         /* as in net/download.h */
    void (*event)(void *user, const bl_pull_event *e); /* may be NULL */
    void *user;
} bl_pull_options;

/* Makes the folder of models and its folder for unfinished downloads, takes the lock of one model's download
 * (BL_EBUSY when another process has it) and names its working folder models/.partial/KEY (ret_dir[cap]). */
bl_code bl_pull_begin(const bl_pull_options *o, const char *key, char *ret_dir, size_t cap, int *ret_lock_fd,
                      bl_err *err) BL_MUST_CHECK;
/* Gives the lock back. done: the working folder goes, with what an abandoned revision left in it; otherwise
 * unfinished files stay. */
void bl_pull_end(const char *dir, int lock_fd, bool done);

/* BL_ELIMIT when less than need_bytes (and some room) are free below dir: both numbers in the message. */
bl_code bl_pull_check_space(const char *dir, uint64_t need_bytes, bl_err *err) BL_MUST_CHECK;

void bl_pull_emit(const bl_pull_options *o, const bl_pull_event *e);

#endif
