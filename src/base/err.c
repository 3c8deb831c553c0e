/* The error record of bl_err.h: formatting, clean cuts, wrapping. Allocates nothing. */
#include "bl/bl_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Makes msg one printable line and cuts it where UTF-8 may be cut. `full` is what the text would have needed.
 */
static void tidy(char *msg, size_t size, int full) {
    size_t n = strlen(msg);
    if (full > 0 && (size_t)full >= size) {
        n = bl_utf8_complete(msg, n);
        msg[n] = '\0';
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)msg[i];
        if (c < 0x20 || c == 0x7f) {
            msg[i] = '?';
        }
    }
}

bl_code bl_err_set(bl_err *err, bl_code code, const char *file, int line, const char *fmt, ...) {
    if (!err) {
        return code;
    }
    err->code = code;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    int full = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    tidy(err->msg, sizeof err->msg, full);
    return code;
}

bl_code bl_err_wrap(bl_err *err, bl_code code, const char *fmt, ...) {
    if (!err) {
        return code;
    }
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0) {
        n = 0;
    }
    int full = n;
    if ((size_t)n < sizeof err->msg) {
        full += snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
    }
    tidy(err->msg, sizeof err->msg, full);
    return err->code;
}

const char *bl_code_name(bl_code code) {
    static const char *const names[BL_ERR__MAX] = {
        [BL_OK] = "ok",
        [BL_EINVAL] = "invalid",
        [BL_EFORMAT] = "format",
        [BL_ELIMIT] = "limit",
        [BL_ERANGE] = "range",
        [BL_ENOMEM] = "memory",
        [BL_EIO] = "io",
        [BL_ENOTFOUND] = "not_found",
        [BL_ENOTSUP] = "not_supported",
        [BL_ECANCEL] = "cancelled",
        [BL_EBUSY] = "busy",
        [BL_ECORRUPT] = "corrupt",
        [BL_EINTERNAL] = "internal",
    };
    return code >= 0 && code < BL_ERR__MAX ? names[code] : "unknown";
}
