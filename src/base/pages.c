#include "base/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/os.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14, with headers from before it */
#endif

uint64_t bl_pages_round(uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

bl_code bl_pages_map(uint64_t bytes, const char *what, bl_pages *ret, bl_err *err) {
    if (bytes == 0) {
        *ret = (bl_pages){0};
        return BL_OK;
    }
    void *at = bytes > SIZE_MAX ? MAP_FAILED
                                : bl_os.mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        BL_FAIL(err, BL_ENOMEM, "%llu bytes of addresses for %s: %s", (unsigned long long)bytes, what,
                bytes > SIZE_MAX ? "too many" : strerror(errno));
    }
    /* Huge pages would commit a neighbour's memory with what is touched, beyond a budget. Where the system
     * knows none, nothing is to be done. */
    (void)bl_os.madvise(at, (size_t)bytes, MADV_NOHUGEPAGE);
    *ret = (bl_pages){at, (size_t)bytes};
    return BL_OK;
}

void bl_pages_unmap(bl_pages *p) {
    if (p->base) {
        bl_os.munmap(p->base, p->size_bytes);
    }
    *p = (bl_pages){0};
}

bl_code bl_pages_commit(void *at, uint64_t bytes, const char *what, bl_err *err) {
    if (bl_os.madvise(at, (size_t)bytes, MADV_POPULATE_WRITE) == 0) {
        return BL_OK;
    }
    if (errno != EINVAL) {
        BL_FAIL(err, BL_ENOMEM, "%llu bytes of %s: %s", (unsigned long long)bytes, what, strerror(errno));
    }
    /* a kernel that does not know the advice: nothing that is in use is written over */
    uint64_t page = bl_pages_round(1);
    for (uint64_t i = 0; i < bytes; i += page) {
        ((volatile uint8_t *)at)[i] = 0;
    }
    return BL_OK;
}

bl_code bl_pages_release(void *at, uint64_t bytes, const char *what, bl_err *err) {
    if (bl_os.madvise(at, (size_t)bytes, MADV_DONTNEED) != 0) {
        BL_FAIL(err, BL_ENOMEM, "giving back %llu bytes of %s: %s", (unsigned long long)bytes, what,
                strerror(errno));
    }
    return BL_OK;
}
