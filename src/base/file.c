#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os.h"

static bl_code fail_errno(const char *what, const char *path, bl_err *err) {
    int e = errno;
    BL_FAIL(err, e == ENOENT || e == ENOTDIR ? BL_ENOTFOUND : BL_EIO, "cannot %s '%s': %s", what, path,
            strerror(e));
}

/* Opens a regular file for reading. */
static bl_code open_regular(const char *path, int extra_flags, int *ret_fd, struct stat *ret_st,
                            bl_err *err) {
    int fd = bl_os.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | extra_flags, 0);
    if (fd < 0) {
        if (errno == ELOOP && (extra_flags & O_NOFOLLOW)) {
            BL_FAIL(err, BL_EFORMAT, "'%s' is a symbolic link, a plain file is required here", path);
        }
        return fail_errno("open", path, err);
    }
    if (bl_os.fstat(fd, ret_st) != 0) {
        bl_code rc = fail_errno("stat", path, err);
        bl_os.close(fd);
        return rc;
    }
    if (!S_ISREG(ret_st->st_mode)) {
        bl_os.close(fd);
        BL_FAIL(err, BL_EFORMAT, "'%s' is %s, a regular file is required", path,
                S_ISDIR(ret_st->st_mode) ? "a folder" : "no regular file");
    }
    *ret_fd = fd;
    return BL_OK;
}

bl_code bl_file_read(const char *path, size_t max_bytes, bl_buf *b, bl_err *err) {
    bl_buf_init(b, max_bytes);
    int fd = -1;
    struct stat st;
    BL_TRY(open_regular(path, 0, &fd, &st, err));
    bl_code rc = BL_OK;
    if ((uint64_t)st.st_size > max_bytes) {
        rc = bl_err_set(err, BL_ELIMIT, __FILE__, __LINE__, "'%s' has %lld bytes, %zu allowed", path,
                        (long long)st.st_size, max_bytes);
    }
    char chunk[16384];
    while (rc == BL_OK) {
        ssize_t n = bl_os.read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            rc = fail_errno("read", path, err);
        } else if (n == 0) {
            break;
        } else {
            rc = bl_buf_append(b, chunk, (size_t)n, err);
            if (rc != BL_OK) {
                rc = bl_err_wrap(err, rc, "reading '%s'", path);
            }
        }
    }
    bl_os.close(fd);
    if (rc != BL_OK) {
        bl_buf_done(b);
    }
    return rc;
}

bl_code bl_map_open(const char *path, bool allow_links, bl_map *ret, bl_err *err) {
    int fd = -1;
    struct stat st;
    BL_TRY(open_regular(path, allow_links ? 0 : O_NOFOLLOW, &fd, &st, err));
    if (st.st_size <= 0) {
        bl_os.close(fd);
        BL_FAIL(err, BL_EFORMAT, "'%s' is empty", path);
    }
    void *p = bl_os.mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    bl_code rc = p == MAP_FAILED ? fail_errno("map", path, err) : BL_OK;
    bl_os.close(fd);
    if (rc == BL_OK) {
        *ret = (bl_map){.data = p, .size_bytes = (uint64_t)st.st_size, .dev = st.st_dev, .ino = st.st_ino};
    }
    return rc;
}

void bl_map_close(bl_map *m) {
    if (m->data) {
        union { /* munmap takes a plain pointer; the map itself is never written */
            const uint8_t *from;
            void *to;
        } addr = {.from = m->data};
        bl_os.munmap(addr.to, (size_t)m->size_bytes);
    }
    *m = (bl_map){0};
}

static bl_code write_all(int fd, const char *path, const void *data, size_t n, bl_err *err) {
    const char *p = data;
    while (n > 0) {
        ssize_t w = bl_os.write(fd, p, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            return fail_errno("write", path, err);
        }
        p += w;
        n -= (size_t)w;
    }
    return BL_OK;
}

/* Fills the open temporary and renames it over path, or removes it. rc: what has happened to it so far. */
static bl_code put_in_place(int fd, bl_code rc, const char *tmp, const char *path, const void *data, size_t n,
                            bl_err *err) {
    if (rc == BL_OK) {
        rc = write_all(fd, tmp, data, n, err);
    }
    if (rc == BL_OK && bl_os.fsync(fd) != 0) {
        rc = fail_errno("sync", tmp, err);
    }
    if (bl_os.close(fd) != 0 && rc == BL_OK) {
        rc = fail_errno("close", tmp, err);
    }
    if (rc == BL_OK && bl_os.rename(tmp, path) != 0) {
        rc = fail_errno("rename to", path, err);
    }
    if (rc != BL_OK) {
        bl_os.unlink(tmp);
    }
    return rc;
}

bl_code bl_file_write_atomic(const char *path, const void *data, size_t n, bl_err *err) {
    char tmp[4096];
    int len = snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof tmp) {
        BL_FAIL(err, BL_ELIMIT, "path of %zu bytes, %zu allowed", strlen(path), sizeof tmp - 32);
    }
    int fd = bl_os.open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return fail_errno("create", tmp, err);
    }
    return put_in_place(fd, BL_OK, tmp, path, data, n, err);
}

bl_code bl_file_sync_dir(const char *path, bl_err *err) {
    int fd = bl_os.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) {
        return fail_errno("open folder", path, err);
    }
    bl_code rc = bl_os.fsync(fd) == 0 ? BL_OK : fail_errno("sync folder", path, err);
    bl_os.close(fd);
    return rc;
}

static bl_code sync_folder_of(const char *path, bl_err *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", len > 0 ? (int)len : 1, len > 0 ? path : ".");
    return bl_file_sync_dir(folder, err);
}

bl_code bl_file_replace(const char *path, const void *data, size_t n, mode_t mode, bl_err *err) {
    char tmp[4096];
    int len = snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (len < 0 || (size_t)len >= sizeof tmp) {
        BL_FAIL(err, BL_ELIMIT, "path of %zu bytes, %zu allowed", strlen(path), sizeof tmp - 5);
    }
    int fd = bl_os.open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        bl_code rc = fail_errno("create", tmp, err);
        bl_os.unlink(tmp); /* a link, or a file of another owner: not in the way of the next try */
        return rc;
    }
    bl_code rc = bl_os.fchmod(fd, mode) == 0 ? BL_OK : fail_errno("set permissions of", tmp, err);
    BL_TRY(put_in_place(fd, rc, tmp, path, data, n, err));
    return sync_folder_of(path, err);
}

bl_code bl_file_make_dirs(const char *path, bl_err *err) {
    char part[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        BL_FAIL(err, BL_ELIMIT, "folder path of %zu bytes, 1 to %zu allowed", n, sizeof part - 1);
    }
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST) {
            return fail_errno("create folder", part, err);
        }
    }
    if (!bl_file_is_dir(path)) {
        BL_FAIL(err, BL_EIO, "'%s' exists and is no folder", path);
    }
    return BL_OK;
}

bl_code bl_file_make_parent(const char *path, bl_err *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path) {
        return BL_OK;
    }
    size_t n = (size_t)(slash - path);
    if (n >= sizeof folder) {
        BL_FAIL(err, BL_ELIMIT, "folder path of %zu bytes, 1 to %zu allowed", n, sizeof folder - 1);
    }
    snprintf(folder, sizeof folder, "%.*s", (int)n, path);
    return bl_file_is_dir(folder) ? BL_OK : bl_file_make_dirs(folder, err);
}

bl_code bl_file_check_new_dir(const char *path, bool *ret_exists, bl_err *err) {
    struct stat st;
    *ret_exists = lstat(path, &st) == 0 || errno != ENOENT;
    if (!*ret_exists) {
        return BL_OK;
    }
    DIR *d = opendir(path);
    if (!d) {
        BL_FAIL(err, BL_EINVAL, "'%.150s' cannot be the new folder: %s", path, strerror(errno));
    }
    bool empty = true;
    for (struct dirent *e; (e = readdir(d));) {
        empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
    }
    closedir(d);
    if (!empty) {
        BL_FAIL(err, BL_EINVAL, "'%.150s' is not empty, a new or an empty folder is needed", path);
    }
    return BL_OK;
}

bool bl_file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool bl_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

/* Unsigned decimal at s; false when there is none or it does not fit. */
static bool read_number(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    if (*s < '0' || *s > '9') {
        return false;
    }
    for (; *s >= '0' && *s <= '9'; s++) {
        if (!bl_mul_u64(v, 10, &v) || !bl_add_u64(v, (uint64_t)(*s - '0'), &v)) {
            return false;
        }
    }
    *ret = v;
    return true;
}

bool bl_file_read_number(const char *path, const char *key, uint64_t *ret) {
    bl_buf b;
    bool ok = false;
    if (bl_file_read(path, (size_t)64 << 10, &b, NULL) == BL_OK) {
        const char *at = strstr(bl_buf_str(&b), key);
        if (at) {
            at += strlen(key);
            at += strspn(at, " \t");
            ok = read_number(at, ret);
        }
    }
    bl_buf_done(&b);
    return ok;
}
