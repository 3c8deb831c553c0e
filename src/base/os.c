#include "base/os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static int os_open(const char *path, int flags, mode_t mode) {
    return open(path, flags, mode);
}

#define REAL_CALLS                                                                                           \
    {                                                                                                        \
        .malloc = malloc, .realloc = realloc, .free = free, .posix_memalign = posix_memalign,                \
        .open = os_open, .close = close, .read = read, .pread = pread, .write = write, .pwrite = pwrite,     \
        .fstat = fstat, .fsync = fsync, .fchmod = fchmod, .flock = flock, .rename = rename,                  \
        .unlink = unlink, .link = link, .mmap = mmap, .munmap = munmap, .madvise = madvise,                  \
    }

bl_os_calls bl_os = REAL_CALLS;

void bl_os_reset(void) {
    bl_os = (bl_os_calls)REAL_CALLS;
}
