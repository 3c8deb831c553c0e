/* Fault injection over the os-call table: fail the Nth allocation or system call, once or from then on.
 *
 *     for (uint64_t n = 1; faults_arm(n, FAULT_ALLOC, false); n++) { run the scenario; check the code; }
 *
 * faults_arm() returns false once a whole scenario ran without reaching its fault: the loop is then complete.
 * Thread-safe counters, since engine threads allocate too. Include in one file per test program.
 */
#ifndef BL_TESTS_FAULTS_H
#define BL_TESTS_FAULTS_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/os.h"

typedef enum { FAULT_ALLOC = 1, FAULT_IO = 2 } fault_kind;

static struct {
    bl_os_calls real;
    atomic_uint_fast64_t n_calls, n_live; /* n_live: allocations not freed, for leak checks without ASan */
    uint64_t fail_at;
    unsigned kinds;
    bool persistent, armed_before;
    atomic_bool fired;
} faults;

static bool fault_due(fault_kind kind) {
    if (!(faults.kinds & (unsigned)kind)) {
        return false;
    }
    uint64_t n = atomic_fetch_add_explicit(&faults.n_calls, 1, memory_order_relaxed) + 1;
    bool due = faults.persistent ? n >= faults.fail_at : n == faults.fail_at;
    if (due) {
        atomic_store_explicit(&faults.fired, true, memory_order_relaxed);
    }
    return due;
}

static void *fault_malloc(size_t n) {
    void *p = fault_due(FAULT_ALLOC) ? NULL : faults.real.malloc(n);
    atomic_fetch_add_explicit(&faults.n_live, p ? 1 : 0, memory_order_relaxed);
    return p;
}

static void *fault_realloc(void *old, size_t n) {
    void *p = fault_due(FAULT_ALLOC) ? NULL : faults.real.realloc(old, n);
    atomic_fetch_add_explicit(&faults.n_live, p && !old ? 1 : 0, memory_order_relaxed);
    return p;
}

static void fault_free(void *p) {
    atomic_fetch_sub_explicit(&faults.n_live, p ? 1 : 0, memory_order_relaxed);
    faults.real.free(p);
}

static int fault_memalign(void **ret, size_t align, size_t n) {
    int rc = fault_due(FAULT_ALLOC) ? ENOMEM : faults.real.posix_memalign(ret, align, n);
    atomic_fetch_add_explicit(&faults.n_live, rc == 0 ? 1 : 0, memory_order_relaxed);
    return rc;
}

static int fault_open(const char *path, int flags, mode_t mode) {
    if (fault_due(FAULT_IO)) {
        errno = EMFILE;
        return -1;
    }
    return faults.real.open(path, flags, mode);
}

static ssize_t fault_read(int fd, void *buf, size_t n) {
    if (fault_due(FAULT_IO)) {
        errno = EIO;
        return -1;
    }
    return faults.real.read(fd, buf, n);
}

static ssize_t fault_pread(int fd, void *buf, size_t n, off_t off) {
    if (fault_due(FAULT_IO)) {
        errno = EIO;
        return -1;
    }
    return faults.real.pread(fd, buf, n, off);
}

static ssize_t fault_write(int fd, const void *buf, size_t n) {
    if (fault_due(FAULT_IO)) {
        errno = ENOSPC;
        return -1;
    }
    return faults.real.write(fd, buf, n);
}

static ssize_t fault_pwrite(int fd, const void *buf, size_t n, off_t off) {
    if (fault_due(FAULT_IO)) {
        errno = ENOSPC;
        return -1;
    }
    return faults.real.pwrite(fd, buf, n, off);
}

static int fault_fsync(int fd) {
    if (fault_due(FAULT_IO)) {
        errno = EIO;
        return -1;
    }
    return faults.real.fsync(fd);
}

static int fault_fchmod(int fd, mode_t mode) {
    if (fault_due(FAULT_IO)) {
        errno = EPERM;
        return -1;
    }
    return faults.real.fchmod(fd, mode);
}

static int fault_flock(int fd, int operation) {
    if (fault_due(FAULT_IO)) {
        errno = ENOLCK;
        return -1;
    }
    return faults.real.flock(fd, operation);
}

static int fault_rename(const char *from, const char *to) {
    if (fault_due(FAULT_IO)) {
        errno = EIO;
        return -1;
    }
    return faults.real.rename(from, to);
}

static int fault_link(const char *from, const char *to) {
    if (fault_due(FAULT_IO)) {
        errno = EXDEV;
        return -1;
    }
    return faults.real.link(from, to);
}

static int fault_fstat(int fd, struct stat *st) {
    if (fault_due(FAULT_IO)) {
        errno = EIO;
        return -1;
    }
    return faults.real.fstat(fd, st);
}

static void *fault_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off) {
    if (fault_due(FAULT_IO)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return faults.real.mmap(addr, n, prot, flags, fd, off);
}

static int fault_madvise(void *addr, size_t n, int advice) {
    if (fault_due(FAULT_IO)) {
        errno = ENOMEM;
        return -1;
    }
    return faults.real.madvise(addr, n, advice);
}

/* Puts the real calls back; allocations made under the table may still be freed afterwards. */
static void faults_disarm(void) {
    faults.kinds = 0;
}

/* Arms the nth (from 1) call of the given kinds. False when the scenario before did not reach its fault. */
static bool faults_arm(uint64_t n, unsigned kinds, bool persistent) {
    if (n > 1 && !atomic_load_explicit(&faults.fired, memory_order_relaxed)) {
        faults_disarm();
        return false;
    }
    if (!faults.armed_before) {
        faults.real = bl_os;
        faults.armed_before = true;
        bl_os.malloc = fault_malloc;
        bl_os.realloc = fault_realloc;
        bl_os.free = fault_free;
        bl_os.posix_memalign = fault_memalign;
        bl_os.open = fault_open;
        bl_os.read = fault_read;
        bl_os.pread = fault_pread;
        bl_os.write = fault_write;
        bl_os.pwrite = fault_pwrite;
        bl_os.fsync = fault_fsync;
        bl_os.fchmod = fault_fchmod;
        bl_os.flock = fault_flock;
        bl_os.rename = fault_rename;
        bl_os.link = fault_link;
        bl_os.fstat = fault_fstat;
        bl_os.mmap = fault_mmap;
        bl_os.madvise = fault_madvise;
    }
    atomic_store_explicit(&faults.n_calls, 0, memory_order_relaxed);
    atomic_store_explicit(&faults.fired, false, memory_order_relaxed);
    faults.fail_at = n;
    faults.persistent = persistent;
    faults.kinds = kinds;
    return true;
}

#endif
