/* Ids to text. Two kinds of decoder: the byte-level alphabet, and pieces with a replaced space and <0xHH>
 * bytes. */
#include <string.h>

#include "base/utf8.h"
#include "formats/tokenizer_impl.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

uint32_t bl_tokenizer_byte_char(uint8_t byte) {
    if (byte <= 0x20) {
        return 0x100u + byte;
    }
    if (byte >= 0x7F && byte <= 0xA0) {
        return 0x121u + (byte - 0x7Fu);
    }
    return byte == 0xAD ? 0x143 : byte;
}

int bl_tokenizer_char_byte(uint32_t cp) {
    if (cp >= 0x100 && cp <= 0x120) {
        return (int)(cp - 0x100);
    }
    if (cp >= 0x121 && cp <= 0x142) {
        return (int)(cp - 0x121 + 0x7F);
    }
    if (cp == 0x143) {
        return 0xAD;
    }
    return cp <= 0xFF && bl_tokenizer_byte_char((uint8_t)cp) == cp ? (int)cp : -1;
}

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int bl_tokenizer_byte_token(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0) {
        return -1;
    }
    return hex(s[3]) * 16 + hex(s[4]);
}

/* Bytes of a content in the byte-level alphabet; a content with any other character stands for itself. */
static bl_code append_spelled(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    size_t before = ret->len;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = 0;
        len = bl_utf8_decode(s + i, n - i, &cp);
        int byte = len > 0 ? bl_tokenizer_char_byte(cp) : -1;
        if (byte < 0) {
            ret->len = before;
            return bl_buf_append(ret, s, n, err);
        }
        BL_TRY(bl_buf_append_char(ret, (char)byte, err));
    }
    return BL_OK;
}

/* Removes every `a` of op: what Metaspace does to the first token. */
static bl_code append_without(const bl_tokenizer_op *op, const char *s, size_t n, bl_buf *ret, bl_err *err) {
    bl_tokenizer_op drop = *op;
    drop.b_len = 0;
    bool changed = false;
    BL_TRY(bl_tokenizer_replace(&drop, s, n, ret, &changed, err));
    return changed ? BL_OK : bl_buf_append(ret, s, n, err);
}

static const char *content(const bl_tokenizer *t, int32_t id, size_t *ret_n) {
    const bl_tokenizer_piece_info *piece = &t->vocab.pieces[id];
    size_t lo = 0, hi = t->n_renamed;
    while ((piece->flags & BL_TOKEN_RENAMED) && lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const bl_tokenizer_pattern *p = &t->renamed[mid];
        if (p->id == id) {
            *ret_n = p->len;
            return t->added_normalized.text.data + p->off;
        }
        if (p->id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    *ret_n = piece->len;
    return t->vocab.blob + piece->off;
}

/* The bytes of one token, before the rule about the start of the text. */
static bl_code append_token(const bl_tokenizer *t, int32_t id, bool first, bl_buf *ret, bl_err *err) {
    size_t n = 0;
    const char *s = content(t, id, &n);
    unsigned flags = t->vocab.pieces[id].flags;
    if (flags & BL_TOKEN_RAW) {
        return bl_buf_append(ret, s, n, err);
    }
    if (flags & BL_TOKEN_BYTE) {
        return bl_buf_append_char(ret, (char)bl_tokenizer_byte_token(s, n), err);
    }
    if (t->decode_byte_level) {
        return append_spelled(s, n, ret, err);
    }
    if (first && t->decode_drop_first) {
        return append_without(&t->decode_replace, s, n, ret, err);
    }
    bool changed = false;
    if (t->decode_replace.a) {
        BL_TRY(bl_tokenizer_replace(&t->decode_replace, s, n, ret, &changed, err));
    }
    return changed ? BL_OK : bl_buf_append(ret, s, n, err);
}

static bool starts_with_strip(const bl_tokenizer *t, const bl_buf *b, size_t at) {
    return t->decode_strip_len > 0 && b->len - at >= t->decode_strip_len &&
           memcmp(b->data + at, t->decode_strip, t->decode_strip_len) == 0;
}

static bl_code check_id(const bl_tokenizer *t, int32_t id, bl_err *err) {
    if (!bl_tokenizer_vocab_has(&t->vocab, id)) {
        BL_FAIL(err, BL_EINVAL, "tokenizer: no token has id %d (highest %u)", id, t->vocab.n_ids - 1);
    }
    return BL_OK;
}

bl_code bl_tokenizer_token_bytes(const bl_tokenizer *t, int32_t id, bool first, bool skip_special,
                                 bl_buf *ret, bl_err *err) {
    BL_TRY(check_id(t, id, err));
    if (skip_special && (t->vocab.pieces[id].flags & BL_TOKEN_SPECIAL)) {
        return BL_OK;
    }
    bl_buf one;
    bl_buf_init(&one, BL_TOKENIZER_MAX_OUT);
    bl_code rc = append_token(t, id, first, &one, err);
    if (rc == BL_OK) {
        size_t strip = first && starts_with_strip(t, &one, 0) ? t->decode_strip_len : 0;
        rc = bl_buf_append(ret, bl_buf_str(&one) + strip, one.len - strip, err);
    }
    bl_buf_done(&one);
    return rc;
}

/* Invalid sequences become U+FFFD, one for each maximal part that could have begun a character. */
static bl_code append_lossy(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    size_t from = 0, i = 0;
    while (i < n) {
        uint32_t cp;
        size_t len = (unsigned char)s[i] < 0x80 ? 1 : bl_utf8_decode(s + i, n - i, &cp);
        if (len > 0) {
            i += len;
            continue;
        }
        BL_TRY(bl_buf_append(ret, s + from, i - from, err));
        BL_TRY(bl_buf_append_str(ret, replacement, err));
        i += bl_utf8_invalid_len(s + i, n - i);
        from = i;
    }
    return bl_buf_append(ret, s + from, n - from, err);
}

/* The end of a run of byte tokens: the reference drops the whole run for one U+FFFD per byte unless all of it
 * is valid. */
static bl_code flush_bytes(bl_buf *run, bl_buf *ret, bl_err *err) {
    if (bl_utf8_valid(bl_buf_str(run), run->len)) {
        BL_TRY(bl_buf_append(ret, bl_buf_str(run), run->len, err));
    } else {
        for (size_t i = 0; i < run->len; i++) {
            BL_TRY(bl_buf_append_str(ret, replacement, err));
        }
    }
    bl_buf_reset(run);
    return BL_OK;
}

static bl_code decode(const bl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, bl_buf *run,
                      bl_buf *text, bl_err *err) {
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        BL_TRY(check_id(t, ids[i], err));
        unsigned flags = t->vocab.pieces[ids[i]].flags;
        if (skip_special && (flags & BL_TOKEN_SPECIAL)) {
            continue;
        }
        if (t->decode_byte_level) { /* everything is one run of bytes */
            BL_TRY(append_token(t, ids[i], first, run, err));
        } else if (flags & BL_TOKEN_BYTE) {
            BL_TRY(append_token(t, ids[i], first, run, err));
        } else {
            BL_TRY(flush_bytes(run, text, err));
            BL_TRY(append_token(t, ids[i], first, text, err));
        }
        first = false;
    }
    return t->decode_byte_level ? append_lossy(bl_buf_str(run), run->len, text, err)
                                : flush_bytes(run, text, err);
}

bl_code bl_tokenizer_decode(const bl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                            bl_buf *ret, bl_err *err) {
    bl_buf run, text;
    bl_buf_init(&run, BL_TOKENIZER_MAX_OUT);
    bl_buf_init(&text, BL_TOKENIZER_MAX_OUT);
    bl_code rc = decode(t, ids, n, skip_special, &run, &text, err);
    if (rc == BL_OK) {
        size_t strip = starts_with_strip(t, &text, 0) ? t->decode_strip_len : 0;
        rc = bl_buf_append(ret, bl_buf_str(&text) + strip, text.len - strip, err);
    }
    bl_buf_done(&run);
    bl_buf_done(&text);
    return rc;
}
