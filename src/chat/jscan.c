/* JSON as text: where values end, and strings written. */
#include <string.h>

#include "chat/parser_impl.h"

static size_t skip_space(const char *s, size_t n, size_t i) {
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t')) {
        i++;
    }
    return i;
}

static bool is_hex4(const char *s, size_t n, size_t i) {
    for (size_t k = 0; k < 4; k++) {
        if (i + k >= n ||
            !((s[i + k] >= '0' && s[i + k] <= '9') || ((s[i + k] | 32) >= 'a' && (s[i + k] | 32) <= 'f'))) {
            return false;
        }
    }
    return true;
}

/* s[i] is the opening quote. */
static size_t skip_string(const char *s, size_t n, size_t i) {
    for (i++; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch == '"') {
            return i + 1;
        }
        if (ch < 0x20 || ch == BL_PARSER_CONTROL) {
            return SIZE_MAX;
        }
        if (ch == '\\') {
            i++;
            if (i >= n || !strchr("\"\\/bfnrtu", s[i]) || s[i] == '\0' ||
                (s[i] == 'u' && !is_hex4(s, n, i + 1))) {
                return SIZE_MAX;
            }
        }
    }
    return SIZE_MAX;
}

static size_t count_digits(const char *s, size_t n, size_t i) {
    size_t k = i;
    while (k < n && s[k] >= '0' && s[k] <= '9') {
        k++;
    }
    return k - i;
}

size_t bl_jscan_number(const char *s, size_t n, size_t i) {
    size_t k = i + (i < n && s[i] == '-'), digits = count_digits(s, n, k);
    if (digits == 0 || (digits > 1 && s[k] == '0')) {
        return 0;
    }
    k += digits;
    if (k < n && s[k] == '.') {
        digits = count_digits(s, n, k + 1);
        if (digits == 0) {
            return 0;
        }
        k += 1 + digits;
    }
    if (k < n && (s[k] == 'e' || s[k] == 'E')) {
        size_t e = k + 1;
        e += e < n && (s[e] == '+' || s[e] == '-');
        digits = count_digits(s, n, e);
        if (digits == 0) {
            return 0;
        }
        k = e + digits;
    }
    return k - i;
}

static size_t skip_word(const char *s, size_t n, size_t i) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t k = 0; k < 3; k++) {
        size_t len = strlen(words[k]);
        if (n - i >= len && memcmp(s + i, words[k], len) == 0) {
            return i + len;
        }
    }
    return SIZE_MAX;
}

/* A member's key and colon; the end of the colon. */
static size_t skip_key(const char *s, size_t n, size_t i) {
    i = i < n && s[i] == '"' ? skip_string(s, n, i) : SIZE_MAX;
    i = i == SIZE_MAX ? i : skip_space(s, n, i);
    return i != SIZE_MAX && i < n && s[i] == ':' ? i + 1 : SIZE_MAX;
}

/* s[i] is the bracket. */
static size_t skip_group(const char *s, size_t n, size_t i, unsigned depth) {
    bool object = s[i] == '{';
    char close = object ? '}' : ']';
    i = skip_space(s, n, i + 1);
    if (i < n && s[i] == close) {
        return i + 1;
    }
    for (;;) {
        i = object ? skip_key(s, n, i) : i;
        i = i == SIZE_MAX ? i : bl_jscan_value(s, n, i, depth - 1);
        i = i == SIZE_MAX ? i : skip_space(s, n, i);
        if (i == SIZE_MAX || i >= n || (s[i] != ',' && s[i] != close)) {
            return SIZE_MAX;
        }
        if (s[i] == close) {
            return i + 1;
        }
        i = skip_space(s, n, i + 1);
    }
}

size_t bl_jscan_value(const char *s, size_t n, size_t i, unsigned depth) {
    i = skip_space(s, n, i);
    if (i >= n) {
        return SIZE_MAX;
    }
    if (s[i] == '{' || s[i] == '[') {
        return depth == 0 ? SIZE_MAX : skip_group(s, n, i, depth);
    }
    if (s[i] == '"') {
        return skip_string(s, n, i);
    }
    size_t len = bl_jscan_number(s, n, i);
    return len > 0 ? i + len : skip_word(s, n, i);
}

bool bl_jscan_is_value(const char *s, size_t n) {
    size_t end = bl_jscan_value(s, n, 0, BL_PARSER_MAX_DEPTH);
    return end != SIZE_MAX && skip_space(s, n, end) == n;
}

bool bl_jscan_is_object(const char *s, size_t n) {
    size_t i = skip_space(s, n, 0);
    return i < n && s[i] == '{' && bl_jscan_is_value(s, n);
}

bool bl_jscan_member(const char *s, size_t n, const char *key, bl_pslice *ret) {
    size_t n_key = strlen(key), i = skip_space(s, n, 0);
    bool found = false;
    if (!bl_jscan_is_object(s, n)) {
        return false;
    }
    i = skip_space(s, n, i + 1);
    while (s[i] != '}') {
        size_t name = i, value, end;
        i = skip_key(s, n, i);
        value = skip_space(s, n, i);
        end = bl_jscan_value(s, n, value, BL_PARSER_MAX_DEPTH);
        if (memcmp(s + name + 1, key, n_key) == 0 && s[name + 1 + n_key] == '"') {
            *ret = (bl_pslice){value, end - value};
            found = true;
        }
        i = skip_space(s, n, end);
        i = s[i] == ',' ? skip_space(s, n, i + 1) : i;
    }
    return found;
}

bl_code bl_jscan_quote(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    BL_TRY(bl_buf_append_char(ret, '"', err));
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        const char *hit = ch != 0 ? strchr(from, s[i]) : NULL;
        if (ch == BL_PARSER_CONTROL) {
            continue;
        }
        if (hit) {
            const char pair[2] = {'\\', to[hit - from]};
            BL_TRY(bl_buf_append(ret, pair, 2, err));
        } else if (ch < 0x20) {
            BL_TRY(bl_buf_printf(ret, err, "\\u%04x", ch));
        } else {
            BL_TRY(bl_buf_append_char(ret, s[i], err));
        }
    }
    return bl_buf_append_char(ret, '"', err);
}
