/* Names out of files: checked once here, so that messages may carry them. */
#include "formats/names.h"

#include <string.h>

#include "base/utf8.h"
#include "formats/limits.h"

bl_code bl_name_check(const char *s, size_t n, size_t max_bytes, const char *what, bl_err *err) {
    if (n == 0) {
        BL_FAIL(err, BL_EFORMAT, "%s is empty", what);
    }
    if (n > max_bytes) {
        BL_FAIL(err, BL_ELIMIT, "%s has %zu bytes, allowed are %zu", what, n, max_bytes);
    }
    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7f) {
            BL_FAIL(err, BL_EFORMAT, "%s holds the control byte 0x%02x at %zu", what, c, i);
        }
    }
    if (!bl_utf8_valid(s, n)) {
        BL_FAIL(err, BL_EFORMAT, "%s is not UTF-8", what);
    }
    return BL_OK;
}

int bl_name_shown(const char *s, size_t n) {
    if (n > BL_NAME_SHOWN_BYTES) {
        n = bl_utf8_complete(s, BL_NAME_SHOWN_BYTES);
    }
    return (int)n;
}

bool bl_name_ends(const char *s, const char *with) {
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

const char *bl_name_of_path(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
