#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

_Noreturn void bl_assert_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line, cond);
    abort();
}

void *bl_alloc(size_t size_bytes) {
    void *p = bl_os.malloc(size_bytes > 0 ? size_bytes : 1);
    if (p) {
        memset(p, 0, size_bytes);
    }
    return p;
}

void *bl_alloc_array(size_t n, size_t size_bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) {
        return NULL;
    }
    return bl_alloc(total);
}

void *bl_realloc(void *p, size_t size_bytes) {
    return bl_os.realloc(p, size_bytes > 0 ? size_bytes : 1);
}

void *bl_alloc_aligned(size_t align, size_t size_bytes) {
    void *p = NULL;
    if (bl_os.posix_memalign(&p, align, size_bytes > 0 ? size_bytes : 1) != 0) {
        return NULL;
    }
    memset(p, 0, size_bytes);
    return p;
}

void bl_free_aligned(void *p) {
    bl_os.free(p);
}

void bl_free(void *p) {
    bl_os.free(p);
}

char *bl_strndup(const char *s, size_t n) {
    char *p = n < SIZE_MAX ? bl_alloc(n + 1) : NULL;
    if (p) {
        memcpy(p, s, n);
    }
    return p;
}

char *bl_strdup(const char *s) {
    return bl_strndup(s, strlen(s));
}
