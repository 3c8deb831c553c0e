/* The os-call table: every system call and allocation that can fail in the product goes through it, so that
 * tests can make the Nth one fail. One of the project's three mutable globals (the others: the log sink, the
 * guard of mapped files). Set only by tests, before threads start. Entries have the semantics of the C or
 * POSIX function of the same name.
 */
#ifndef BL_BASE_OS_H
#define BL_BASE_OS_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

typedef struct {
    void *(*malloc)(size_t size);
    void *(*realloc)(void *p, size_t size);
    void (*free)(void *p);
    int (*posix_memalign)(void **ret, size_t align, size_t size);
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *buf, size_t n);
    ssize_t (*pread)(int fd, void *buf, size_t n, off_t off);
    ssize_t (*write)(int fd, const void *buf, size_t n);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, off_t off);
    int (*fstat)(int fd, struct stat *ret);
    int (*fsync)(int fd);
    int (*fchmod)(int fd, mode_t mode);
    int (*flock)(int fd, int operation);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*link)(const char *from, const char *to);
    void *(*mmap)(void *addr, size_t n, int prot, int flags, int fd, off_t off);
    int (*munmap)(void *addr, size_t n);
    int (*madvise)(void *addr, size_t n, int advice);
} bl_os_calls;

extern bl_os_calls bl_os;

/* Puts the real calls back. */
void bl_os_reset(void);

#endif
