#include "base/ids.h"

#include <string.h>

#include "base/base.h"

void bl_ids_init(bl_ids *v, size_t max_n) {
    *v = (bl_ids){.max_n = max_n};
}

void bl_ids_done(bl_ids *v) {
    bl_free(v->ids);
    *v = (bl_ids){.max_n = v->max_n};
}

void bl_ids_reset(bl_ids *v) {
    v->n = 0;
}

bl_code bl_ids_append(bl_ids *v, const int32_t *ids, size_t n, bl_err *err) {
    if (n > v->max_n || v->n > v->max_n - n) {
        BL_FAIL(err, BL_ELIMIT, "token list: %zu more tokens at %zu, %zu allowed", n, v->n, v->max_n);
    }
    if (v->n + n > v->cap) {
        size_t cap = BL_MIN(BL_MAX(BL_MAX(v->n + n, v->cap * 2), (size_t)32), v->max_n);
        size_t size_bytes;
        if (__builtin_mul_overflow(cap, sizeof *v->ids, &size_bytes)) {
            BL_FAIL(err, BL_ERANGE, "token list: %zu tokens overflow", cap);
        }
        int32_t *p = bl_realloc(v->ids, size_bytes);
        if (!p) {
            BL_FAIL(err, BL_ENOMEM, "token list: out of memory for %zu tokens", cap);
        }
        v->ids = p;
        v->cap = cap;
    }
    if (n > 0) {
        memcpy(v->ids + v->n, ids, n * sizeof *ids);
    }
    v->n += n;
    return BL_OK;
}

bl_code bl_ids_push(bl_ids *v, int32_t id, bl_err *err) {
    return bl_ids_append(v, &id, 1, err);
}
