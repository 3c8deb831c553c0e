#include "base/utf8.h"

#include <string.h>

/* Length a lead byte announces, 0 for none, and the range its second byte must lie in (Unicode 15, table
 * 3-7). */
static size_t lead(unsigned char c, unsigned char *ret_lo, unsigned char *ret_hi) {
    *ret_lo = 0x80;
    *ret_hi = 0xBF;
    if (c < 0x80) {
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        return 2;
    }
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0) {
            *ret_lo = 0xA0;
        } else if (c == 0xED) {
            *ret_hi = 0x9F;
        }
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0) {
            *ret_lo = 0x90;
        } else if (c == 0xF4) {
            *ret_hi = 0x8F;
        }
        return 4;
    }
    return 0;
}

/* Bytes at s that form a correct prefix of a sequence of *ret_len bytes; 0 when the first byte starts none.
 */
static size_t prefix(const char *s, size_t n, size_t *ret_len) {
    if (n == 0) {
        *ret_len = 0;
        return 0;
    }
    unsigned char lo, hi;
    size_t len = lead((unsigned char)s[0], &lo, &hi);
    *ret_len = len;
    if (len == 0) {
        return 0;
    }
    size_t i = 1;
    while (i < len && i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c < lo || c > hi) {
            break;
        }
        lo = 0x80;
        hi = 0xBF;
        i++;
    }
    return i;
}

size_t bl_utf8_decode(const char *s, size_t n, uint32_t *ret_cp) {
    size_t len;
    if (prefix(s, n, &len) != len || len == 0) {
        return 0;
    }
    static const unsigned char lead_mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t cp = (unsigned char)s[0] & lead_mask[len];
    for (size_t i = 1; i < len; i++) {
        cp = (cp << 6) | ((unsigned char)s[i] & 0x3Fu);
    }
    *ret_cp = cp;
    return len;
}

size_t bl_utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | (cp >> 6));
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | (cp >> 12));
        out[1] = (char)(0x80 | ((cp >> 6) & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | (cp >> 18));
    out[1] = (char)(0x80 | ((cp >> 12) & 0x3F));
    out[2] = (char)(0x80 | ((cp >> 6) & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool bl_utf8_valid(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) { /* most text is ASCII for long stretches */
            memcpy(&eight, s + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        uint32_t cp;
        size_t len = bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            return false;
        }
        i += len;
    }
    return true;
}

size_t bl_utf8_complete(const char *s, size_t n) {
    /* Only the last three bytes can belong to a sequence that is still growing. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        size_t len;
        size_t got = prefix(s + n - back, back, &len);
        if (len > back && got == back) {
            return n - back;
        }
    }
    return n;
}

size_t bl_utf8_invalid_len(const char *s, size_t n) {
    size_t len;
    size_t got = prefix(s, n, &len);
    return got > 0 ? got : 1;
}
