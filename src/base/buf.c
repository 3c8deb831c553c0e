#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

void bl_buf_init(bl_buf *b, size_t max_bytes) {
    *b = (bl_buf){.max_bytes = max_bytes};
}

void bl_buf_done(bl_buf *b) {
    bl_free(b->data);
    *b = (bl_buf){.max_bytes = b->max_bytes};
}

void bl_buf_reset(bl_buf *b) {
    b->len = 0;
    if (b->data) {
        b->data[0] = '\0';
    }
}

/* Room for n more bytes and the NUL. */
static bl_code reserve(bl_buf *b, size_t n, bl_err *err) {
    if (n > b->max_bytes || b->len > b->max_bytes - n || b->max_bytes == SIZE_MAX) {
        BL_FAIL(err, BL_ELIMIT, "buffer: %zu more bytes at %zu, %zu allowed", n, b->len, b->max_bytes);
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap) {
        return BL_OK;
    }
    size_t cap = BL_MIN(BL_MAX(BL_MAX(need, b->cap + b->cap / 2), (size_t)64), b->max_bytes + 1);
    char *p = bl_realloc(b->data, cap);
    if (!p) {
        BL_FAIL(err, BL_ENOMEM, "buffer: out of memory for %zu bytes", cap);
    }
    b->data = p;
    b->cap = cap;
    return BL_OK;
}

bl_code bl_buf_append(bl_buf *b, const void *data, size_t n, bl_err *err) {
    BL_TRY(reserve(b, n, err));
    if (n > 0) {
        memcpy(b->data + b->len, data, n);
    }
    b->len += n;
    b->data[b->len] = '\0';
    return BL_OK;
}

bl_code bl_buf_append_str(bl_buf *b, const char *s, bl_err *err) {
    return bl_buf_append(b, s, strlen(s), err);
}

bl_code bl_buf_append_char(bl_buf *b, char c, bl_err *err) {
    return bl_buf_append(b, &c, 1, err);
}

bl_code bl_buf_printf(bl_buf *b, bl_err *err, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    bl_code rc = n < 0 ? BL_EINVAL : reserve(b, (size_t)n, err);
    if (rc == BL_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else if (n < 0) {
        rc = bl_err_set(err, BL_EINVAL, __FILE__, __LINE__, "buffer: text cannot be formatted");
    }
    va_end(again);
    return rc;
}

void bl_buf_consume(bl_buf *b, size_t n) {
    BL_ASSERT(n <= b->len);
    if (n > 0) {
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
        b->data[b->len] = '\0';
    }
}

const char *bl_buf_str(const bl_buf *b) {
    return b->data ? b->data : "";
}

char *bl_buf_steal(bl_buf *b) {
    char *p = b->data;
    bl_buf_init(b, b->max_bytes);
    return p;
}
