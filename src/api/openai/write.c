#include "api/openai/write.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/utf8.h"

static bool is_plain(unsigned char ch) {
    return ch >= 0x20 && ch < 0x80 && ch != '"' && ch != '\\' && ch != 0x7f;
}

static bl_code write_escape(unsigned char ch, bl_buf *ret, bl_err *err) {
    switch (ch) {
    case '"':
        return bl_buf_append(ret, "\\\"", 2, err);
    case '\\':
        return bl_buf_append(ret, "\\\\", 2, err);
    case '\n':
        return bl_buf_append(ret, "\\n", 2, err);
    case '\r':
        return bl_buf_append(ret, "\\r", 2, err);
    case '\t':
        return bl_buf_append(ret, "\\t", 2, err);
    default:
        return bl_buf_printf(ret, err, "\\u%04x", ch);
    }
}

bl_code bl_openai_write_string(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_char(ret, '"', err));
    size_t i = 0;
    while (i < n) {
        size_t from = i;
        uint32_t cp;
        size_t len = 1;
        while (i < n && (is_plain((unsigned char)s[i]) ||
                         ((unsigned char)s[i] >= 0x80 && (len = bl_utf8_decode(s + i, n - i, &cp)) > 0))) {
            i += is_plain((unsigned char)s[i]) ? 1 : len;
        }
        if (i > from) {
            BL_TRY(bl_buf_append(ret, s + from, i - from, err));
        }
        if (i == n) {
            break;
        }
        if ((unsigned char)s[i] < 0x80) {
            BL_TRY(write_escape((unsigned char)s[i], ret, err));
            i++;
        } else {
            BL_TRY(bl_buf_append(ret, "\xef\xbf\xbd", 3, err));
            i += bl_utf8_invalid_len(s + i, n - i);
        }
    }
    return bl_buf_append_char(ret, '"', err);
}

bl_code bl_openai_write_logprob(float x, bl_buf *ret, bl_err *err) {
    if (!isfinite(x) || x < -9999.0f) {
        return bl_buf_append_str(ret, "-9999.0", err);
    }
    return bl_buf_printf(ret, err, "%.9g", (double)x);
}
