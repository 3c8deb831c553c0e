/* A scratch folder per test, removed after it; the checkpoint under test is its subfolder "m". Include in one
 * file per test program, behind cmocka_all.h.
 */
#ifndef BL_TESTS_UNIT_SCRATCH_FOLDER_H
#define BL_TESTS_UNIT_SCRATCH_FOLDER_H

#include <dirent.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static char root[64];

/* The path of a file in it; four of them are valid at a time. */
static const char *at(const char *file) {
    static char path[4][512];
    static unsigned turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", root, file);
    return path[turn];
}

static void write_bytes(const char *file, const void *data, size_t n) {
    assert_int_equal(bl_file_write_atomic(at(file), data, n, NULL), BL_OK);
}

static inline void write_text(const char *file, const char *text) {
    write_bytes(file, text, strlen(text));
}

static void make_dir(const char *dir) {
    assert_int_equal(bl_file_make_dirs(at(dir), NULL), BL_OK);
}

/* Of any folder; 0 when there is none. */
static inline uint32_t count_entries(const char *path) {
    DIR *d = opendir(path);
    uint32_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    if (d) {
        closedir(d);
    }
    return n;
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/bl_scratch.XXXXXX");
    if (!mkdtemp(root)) {
        return -1;
    }
    make_dir("m");
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
