#include "provider/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "provider/store.h"

#define SPARE_BYTES (UINT64_C(64) << 20) /* left free for everything else on the disk */

bl_code bl_pull_begin(const bl_pull_options *o, const char *key, char *ret_dir, size_t cap, int *ret_lock_fd,
                      bl_err *err) {
    char lock[BL_STORE_MAX_PATH];
    int n = snprintf(ret_dir, cap, "%s/" BL_STORE_PARTIAL "/%s", o->models_dir, key);
    int m = snprintf(lock, sizeof(lock), "%s/" BL_STORE_PARTIAL "/%s.lock", o->models_dir, key);
    if (n < 0 || (size_t)n >= cap || m < 0 || (size_t)m >= sizeof(lock)) {
        BL_FAIL(err, BL_ELIMIT, "the path of the models folder '%.100s' is too long", o->models_dir);
    }
    char *slash = strrchr(lock, '/');
    *slash = '\0';
    BL_TRY(bl_file_make_dirs(lock, err));
    *slash = '/';
    int fd = bl_os.open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        BL_FAIL(err, BL_EIO, "cannot open '%s': %s", lock, strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        bl_os.close(fd);
        BL_FAIL(err, BL_EBUSY, "another download of '%s' is running", key);
    }
    bl_code rc = bl_file_make_dirs(ret_dir, err);
    if (rc != BL_OK) {
        bl_os.close(fd);
        return rc;
    }
    *ret_lock_fd = fd;
    return BL_OK;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st, (void)type, (void)where;
    (void)remove(path);
    return 0;
}

void bl_pull_end(const char *dir, int lock_fd, bool done) {
    if (lock_fd < 0) {
        return;
    }
    if (done) {
        (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    } else {
        (void)rmdir(dir); /* fails, rightly, while it holds unfinished files */
    }
    bl_os.close(lock_fd);
}

bl_code bl_pull_check_space(const char *dir, uint64_t need_bytes, bl_err *err) {
    struct statvfs v;
    if (statvfs(dir, &v) != 0) {
        BL_FAIL(err, BL_EIO, "cannot ask for the free space of '%s': %s", dir, strerror(errno));
    }
    uint64_t have = 0, need = 0;
    if (!bl_mul_u64(v.f_bavail, v.f_frsize, &have)) {
        have = UINT64_MAX;
    }
    if (!bl_add_u64(need_bytes, SPARE_BYTES, &need) || need > have) {
        BL_FAIL(err, BL_ELIMIT, "%" PRIu64 " MB are needed and %" PRIu64 " MB are free in '%s'",
                need / 1000000, have / 1000000, dir);
    }
    return BL_OK;
}

void bl_pull_emit(const bl_pull_options *o, const bl_pull_event *e) {
    if (o->event != NULL) {
        o->event(o->user, e);
    }
}
