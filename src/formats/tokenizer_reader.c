#include "formats/tokenizer_reader.h"

#include <string.h>

#include "base/utf8.h"

enum { MAX_DEPTH = 64, MAX_STRING = 1 << 24 };

void bl_tokenizer_reader_init(bl_tokenizer_reader *r, const char *text, size_t n) {
    *r = (bl_tokenizer_reader){.start = text, .p = text, .end = text + n};
    bl_buf_init(&r->tmp, MAX_STRING);
}

void bl_tokenizer_reader_done(bl_tokenizer_reader *r) {
    bl_buf_done(&r->tmp);
}

size_t bl_tokenizer_reader_at(const bl_tokenizer_reader *r) {
    return (size_t)(r->p - r->start);
}

char bl_tokenizer_reader_peek(bl_tokenizer_reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) {
        r->p++;
    }
    return r->p < r->end ? *r->p : '\0';
}

bl_code bl_tokenizer_reader_expect(bl_tokenizer_reader *r, char c, bl_err *err) {
    if (bl_tokenizer_reader_peek(r) != c || r->p == r->end) {
        BL_FAIL(err, BL_EFORMAT, "tokenizer.json: expected '%c' at byte %zu", c, bl_tokenizer_reader_at(r));
    }
    r->p++;
    return BL_OK;
}

bl_code bl_tokenizer_reader_more(bl_tokenizer_reader *r, bool first, char close, bool *ret_more,
                                 bl_err *err) {
    if (bl_tokenizer_reader_peek(r) == close) {
        r->p++;
        *ret_more = false;
        return BL_OK;
    }
    if (!first) {
        BL_TRY(bl_tokenizer_reader_expect(r, ',', err));
    }
    *ret_more = true;
    return BL_OK;
}

static bl_code bad_string(const bl_tokenizer_reader *r, const char *at, const char *why, bl_err *err) {
    BL_FAIL(err, BL_EFORMAT, "tokenizer.json: %s in a string at byte %zu", why, (size_t)(at - r->start));
}

/* Four hex digits; false when there are none. */
static bool hex4(const bl_tokenizer_reader *r, const char *s, uint32_t *ret) {
    uint32_t v = 0;
    if (r->end - s < 4) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                            : 16;
        if (d == 16) {
            return false;
        }
        v = v * 16 + d;
    }
    *ret = v;
    return true;
}

/* \uXXXX, with its second half where it is a surrogate. p is past the 'u'. */
static bl_code unicode_escape(bl_tokenizer_reader *r, uint32_t *ret, bl_err *err) {
    uint32_t hi, lo;
    if (!hex4(r, r->p, &hi)) {
        return bad_string(r, r->p, "\\u without four digits", err);
    }
    r->p += 4;
    *ret = hi;
    if (hi < 0xD800 || hi > 0xDFFF) {
        return BL_OK;
    }
    if (hi > 0xDBFF || r->end - r->p < 6 || r->p[0] != '\\' || r->p[1] != 'u' || !hex4(r, r->p + 2, &lo) ||
        lo < 0xDC00 || lo > 0xDFFF) {
        return bad_string(r, r->p - 6, "a lone surrogate", err);
    }
    r->p += 6;
    *ret = 0x10000 + ((hi - 0xD800) << 10) + (lo - 0xDC00);
    return BL_OK;
}

static bl_code escape(bl_tokenizer_reader *r, bl_err *err) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->p < r->end ? *r->p : '\0';
    const char *at = c != '\0' ? strchr(from, c) : NULL;
    if (at) {
        r->p++;
        return bl_buf_append_char(&r->tmp, to[at - from], err);
    }
    if (c != 'u') {
        return bad_string(r, r->p, "an unknown escape", err);
    }
    r->p++;
    uint32_t cp = 0;
    char utf8[4];
    BL_TRY(unicode_escape(r, &cp, err));
    size_t n = bl_utf8_encode(cp, utf8);
    return bl_buf_append(&r->tmp, utf8, n, err);
}

bl_code bl_tokenizer_reader_string(bl_tokenizer_reader *r, const char **ret, size_t *ret_n, bl_err *err) {
    BL_TRY(bl_tokenizer_reader_expect(r, '"', err));
    const char *from = r->p;
    bool escaped = false;
    bl_buf_reset(&r->tmp);
    for (;;) {
        if (r->p == r->end) {
            return bad_string(r, from, "no end", err);
        }
        unsigned char c = (unsigned char)*r->p;
        if (c == '"') {
            break;
        }
        if (c < 0x20) {
            return bad_string(r, r->p, "a control character", err);
        }
        if (c != '\\') {
            r->p++;
            continue;
        }
        escaped = true;
        BL_TRY(bl_buf_append(&r->tmp, from, (size_t)(r->p - from), err));
        r->p++;
        BL_TRY(escape(r, err));
        from = r->p;
    }
    if (escaped) {
        BL_TRY(bl_buf_append(&r->tmp, from, (size_t)(r->p - from), err));
    }
    *ret = escaped ? bl_buf_str(&r->tmp) : from;
    *ret_n = escaped ? r->tmp.len : (size_t)(r->p - from);
    r->p++;
    return BL_OK;
}

bl_code bl_tokenizer_reader_integer(bl_tokenizer_reader *r, uint64_t *ret, bl_err *err) {
    (void)bl_tokenizer_reader_peek(r);
    const char *from = r->p;
    uint64_t v = 0;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && r->p - from < 16) {
        v = v * 10 + (uint64_t)(*r->p++ - '0');
    }
    char next = r->p < r->end ? *r->p : '\0';
    bool ends = next == ',' || next == '}' || next == ']' || next == ' ' || next == '\n' || next == '\r' ||
                next == '\t';
    if (r->p == from || !ends || v >= (uint64_t)1 << 53 || (*from == '0' && r->p - from > 1)) {
        BL_FAIL(err, BL_EFORMAT, "tokenizer.json: expected an id at byte %zu", (size_t)(from - r->start));
    }
    *ret = v;
    return BL_OK;
}

/* Moves past a string without reading it. */
static bl_code skip_string(bl_tokenizer_reader *r, bl_err *err) {
    const char *from = r->p++;
    while (r->p < r->end && *r->p != '"') {
        r->p += *r->p == '\\' && r->end - r->p > 1 ? 2 : 1;
    }
    if (r->p >= r->end) {
        return bad_string(r, from, "no end", err);
    }
    r->p++;
    return BL_OK;
}

bl_code bl_tokenizer_reader_skip(bl_tokenizer_reader *r, const char **ret, size_t *ret_n, bl_err *err) {
    char open[MAX_DEPTH];
    size_t depth = 0;
    (void)bl_tokenizer_reader_peek(r);
    const char *from = r->p;
    do {
        char c = bl_tokenizer_reader_peek(r);
        if (r->p == r->end) {
            BL_FAIL(err, BL_EFORMAT, "tokenizer.json: ends inside a value that begins at byte %zu",
                    (size_t)(from - r->start));
        }
        if (c == '"') {
            BL_TRY(skip_string(r, err));
        } else if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH) {
                BL_FAIL(err, BL_ELIMIT, "tokenizer.json: nested more than %d deep", MAX_DEPTH);
            }
            open[depth++] = c == '{' ? '}' : ']';
            r->p++;
        } else if (c == '}' || c == ']') {
            if (depth == 0 || open[depth - 1] != c) {
                BL_FAIL(err, BL_EFORMAT, "tokenizer.json: '%c' at byte %zu", c, bl_tokenizer_reader_at(r));
            }
            depth--;
            r->p++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            r->p++;
        } else { /* number or word: to the next delimiter */
            const char *word = r->p;
            while (r->p < r->end && !memchr(",:]}\" \n\r\t{[", *r->p, 12)) {
                r->p++;
            }
            if (r->p == word) {
                BL_FAIL(err, BL_EFORMAT, "tokenizer.json: expected a value at byte %zu",
                        bl_tokenizer_reader_at(r));
            }
        }
    } while (depth > 0);
    *ret = from;
    *ret_n = (size_t)(r->p - from);
    return BL_OK;
}
