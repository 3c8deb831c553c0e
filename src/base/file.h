/* Whole files: bounded reads, read-only maps, atomic writes. Paths appear in messages; contents never do. */
#ifndef BL_BASE_FILE_H
#define BL_BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "bl/bl_err.h"

/* Reads a regular file of at most max_bytes into *b (initialised here with that maximum; done by the caller,
 * also safe to call after failure). BL_ENOTFOUND, BL_EIO, BL_ELIMIT. */
bl_code bl_file_read(const char *path, size_t max_bytes, bl_buf *b, bl_err *err) BL_MUST_CHECK;

/* The unsigned decimal number behind `key` (its first occurrence, blanks skipped) in a text file of at most
 * 64 KiB; key "": at the start of the file. For what the kernel shows in /proc and /sys. False: there is
 * none. */
bool bl_file_read_number(const char *path, const char *key, uint64_t *ret);

/* A read-only private map of a regular file. size 0 files are refused (BL_EFORMAT). */
typedef struct {
    const uint8_t *data;
    uint64_t size_bytes;
    uint64_t dev, ino; /* identity at open */
} bl_map;

/* allow_links: false opens with O_NOFOLLOW (spec models.md §7.3). */
bl_code bl_map_open(const char *path, bool allow_links, bl_map *ret, bl_err *err) BL_MUST_CHECK;
void bl_map_close(bl_map *m);

/* Writes to `path` by a temporary in the same folder, fsync and rename: readers see the old or the new, never
 * half. */
bl_code bl_file_write_atomic(const char *path, const void *data, size_t n, bl_err *err) BL_MUST_CHECK;

/* The same, and lasting: the folder is synced too. mode: permissions of the new file. For writers that hold a
 * lock of their own: the temporary is always PATH.tmp, so one that a power cut left is used up by the next.
 * Only when the folder alone could not be synced is the new file there in spite of an error. */
bl_code bl_file_replace(const char *path, const void *data, size_t n, mode_t mode, bl_err *err) BL_MUST_CHECK;

/* mkdir -p with mode 0700 for new components. */
bl_code bl_file_make_dirs(const char *path, bl_err *err) BL_MUST_CHECK;
/* The same for the folder that path is in. */
bl_code bl_file_make_parent(const char *path, bl_err *err) BL_MUST_CHECK;
/* What was made, renamed or removed in the folder lasts. */
bl_code bl_file_sync_dir(const char *path, bl_err *err) BL_MUST_CHECK;
/* May the folder be filled with something new? BL_OK when there is none (*ret_exists false) or an empty one;
 * BL_EINVAL otherwise. */
bl_code bl_file_check_new_dir(const char *path, bool *ret_exists, bl_err *err) BL_MUST_CHECK;

bool bl_file_is_dir(const char *path);
bool bl_file_exists(const char *path);

#endif
