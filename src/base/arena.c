#include "base/arena.h"

#include <assert.h>
#include <string.h>

#include "base/base.h"
#include "base/os.h"

#define ARENA_ALIGN     64u
#define ARENA_BLOCK_MIN ((size_t)64 * 1024)

typedef struct block {
    struct block *prev;
    size_t cap, used;
    unsigned char *data; /* behind the header, aligned */
} block;

static_assert(sizeof(block) <= ARENA_ALIGN, "the header must fit before the data");

struct bl_arena {
    const char *name;
    size_t max_bytes, used;
    block *last, *first;
};

/* A block is one aligned allocation: header in the first 64 bytes, data behind it. */
static block *new_block(size_t cap) {
    void *p = NULL;
    if (cap > SIZE_MAX - ARENA_ALIGN || bl_os.posix_memalign(&p, ARENA_ALIGN, cap + ARENA_ALIGN) != 0) {
        return NULL;
    }
    block *b = p;
    b->cap = cap;
    b->used = 0;
    b->data = (unsigned char *)b + ARENA_ALIGN;
    return b;
}

bl_code bl_arena_new(const char *name, size_t max_bytes, bl_arena **ret, bl_err *err) {
    bl_arena *a = bl_alloc(sizeof *a);
    if (!a) {
        BL_FAIL(err, BL_ENOMEM, "arena '%s': out of memory", name);
    }
    a->name = name;
    a->max_bytes = max_bytes;
    *ret = a;
    return BL_OK;
}

static void free_blocks(block *b, const block *stop) {
    while (b != stop) {
        block *prev = b->prev;
        bl_free_aligned(b);
        b = prev;
    }
}

void bl_arena_free(bl_arena *a) {
    if (!a) {
        return;
    }
    free_blocks(a->last, NULL);
    bl_free(a);
}

void bl_arena_reset(bl_arena *a) {
    if (a->first) {
        free_blocks(a->last, a->first);
        a->last = a->first;
        a->first->used = 0;
    }
    a->used = 0;
}

bl_code bl_arena_alloc(bl_arena *a, size_t size_bytes, void **ret, bl_err *err) {
    uint64_t rounded;
    if (!bl_align_u64(size_bytes > 0 ? size_bytes : 1, ARENA_ALIGN, &rounded) ||
        rounded > a->max_bytes - a->used) {
        BL_FAIL(err, BL_ELIMIT, "arena '%s': %zu more bytes, %zu in use, %zu allowed", a->name, size_bytes,
                a->used, a->max_bytes);
    }
    size_t n = (size_t)rounded;
    if (!a->last || a->last->cap - a->last->used < n) {
        /* Blocks double with what is in use, so that small arenas stay small and large ones have few blocks.
         */
        size_t cap = BL_MAX(BL_MAX(n, ARENA_BLOCK_MIN), BL_MIN(a->used, (size_t)8 << 20));
        block *b = new_block(cap);
        if (!b) {
            BL_FAIL(err, BL_ENOMEM, "arena '%s': out of memory for %zu bytes", a->name, cap);
        }
        b->prev = a->last;
        a->last = b;
        if (!a->first) {
            a->first = b;
        }
    }
    unsigned char *p = a->last->data + a->last->used;
    memset(p, 0, n);
    a->last->used += n;
    a->used += n;
    *ret = p;
    return BL_OK;
}

bl_code bl_arena_alloc_array(bl_arena *a, size_t n, size_t size_bytes, void **ret, bl_err *err) {
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) {
        BL_FAIL(err, BL_ERANGE, "arena '%s': %zu items of %zu bytes overflow", a->name, n, size_bytes);
    }
    return bl_arena_alloc(a, total, ret, err);
}

bl_code bl_arena_strndup(bl_arena *a, const char *s, size_t n, char **ret, bl_err *err) {
    void *p;
    if (n == SIZE_MAX) {
        BL_FAIL(err, BL_ERANGE, "arena '%s': string too long", a->name);
    }
    BL_TRY(bl_arena_alloc(a, n + 1, &p, err));
    memcpy(p, s, n);
    *ret = p;
    return BL_OK;
}

size_t bl_arena_used(const bl_arena *a) {
    return a->used;
}
