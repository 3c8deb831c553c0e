/* Growable byte buffer with a mandatory maximum (after curl's dynbuf). Content is always NUL-terminated past
 * len. After a failed append the content is as before. Not thread-safe.
 */
#ifndef BL_BASE_BUF_H
#define BL_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

#include "bl/bl_err.h"

typedef struct {
    char *data; /* NULL while empty and never grown */
    size_t len;
    size_t cap;
    size_t max_bytes;
} bl_buf;

void bl_buf_init(bl_buf *b, size_t max_bytes);
void bl_buf_done(bl_buf *b);  /* frees; usable again after init */
void bl_buf_reset(bl_buf *b); /* len = 0, memory kept */
bl_code bl_buf_append(bl_buf *b, const void *data, size_t n, bl_err *err) BL_MUST_CHECK;
bl_code bl_buf_append_str(bl_buf *b, const char *s, bl_err *err) BL_MUST_CHECK;
bl_code bl_buf_append_char(bl_buf *b, char c, bl_err *err) BL_MUST_CHECK;
bl_code bl_buf_printf(bl_buf *b, bl_err *err, const char *fmt, ...) BL_PRINTF(3, 4) BL_MUST_CHECK;
/* Removes the first n bytes (n <= len). */
void bl_buf_consume(bl_buf *b, size_t n);
/* Content as a C string, "" when empty. Borrowed until the next change. */
const char *bl_buf_str(const bl_buf *b);
/* Hands the memory over (caller frees with bl_free); the buffer is empty again. NULL only if nothing was ever
 * held. */
char *bl_buf_steal(bl_buf *b);

#endif
