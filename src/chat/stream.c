/* Two stages: bytes of tokens -> complete characters (`raw` keeps an unfinished one), characters -> text that
 * no stop string can begin in (`held` keeps the rest). The stop strings are matched by their prefix functions
 * (Knuth, Morris and Pratt 1977), one state each: what is held is the longest match that may still become
 * one.
 */
#include "chat/stream.h"

#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "chat/parser.h"

/* One token's bytes, and what is held of a stop string: far below. */
#define MAX_BYTES ((size_t)1 << 20)

typedef struct {
    char *text;
    uint16_t *fail; /* fail[i]: longest proper prefix of text that ends text[0, i] */
    size_t n, state;
} stop;

struct bl_stream {
    const bl_tokenizer *t;
    bool skip_special, started, stopped;
    bl_buf raw, held;
    stop stops[BL_STOP_MAX_STRINGS];
    size_t n_stops;
    const int32_t *shown;
    size_t n_shown;
};

static bl_code add_stop(bl_stream *s, const char *text, bl_err *err) {
    size_t n = strlen(text);
    if (n == 0 || n > BL_STOP_MAX_BYTES || !bl_utf8_valid(text, n)) {
        BL_FAIL(err, BL_EINVAL, "stop string %zu: %zu bytes, must be 1 to %d bytes of UTF-8", s->n_stops, n,
                BL_STOP_MAX_BYTES);
    }
    stop *p = &s->stops[s->n_stops++];
    p->n = n;
    p->text = bl_strndup(text, n);
    p->fail = bl_alloc_array(n, sizeof *p->fail);
    if (!p->text || !p->fail) {
        BL_FAIL(err, BL_ENOMEM, "stop strings: out of memory");
    }
    size_t k = 0;
    for (size_t i = 1; i < n; i++) {
        while (k > 0 && text[i] != text[k]) {
            k = p->fail[k - 1];
        }
        k += text[i] == text[k] ? 1 : 0;
        p->fail[i] = (uint16_t)k;
    }
    return BL_OK;
}

bl_code bl_stream_new(const bl_tokenizer *t, const char *const *stops, size_t n_stops, bool skip_special,
                      bl_stream **ret, bl_err *err) {
    if (n_stops > BL_STOP_MAX_STRINGS) {
        BL_FAIL(err, BL_EINVAL, "%zu stop strings, at most %d are allowed", n_stops, BL_STOP_MAX_STRINGS);
    }
    bl_stream *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "stream: out of memory");
    }
    s->t = t;
    s->skip_special = skip_special;
    bl_buf_init(&s->raw, MAX_BYTES);
    bl_buf_init(&s->held, MAX_BYTES);
    for (size_t i = 0; i < n_stops; i++) {
        bl_code rc = add_stop(s, stops[i], err);
        if (rc != BL_OK) {
            bl_stream_free(s);
            return rc;
        }
    }
    *ret = s;
    return BL_OK;
}

void bl_stream_free(bl_stream *s) {
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->n_stops; i++) {
        bl_free(s->stops[i].text);
        bl_free(s->stops[i].fail);
    }
    bl_buf_done(&s->raw);
    bl_buf_done(&s->held);
    bl_free(s);
}

void bl_stream_show(bl_stream *s, const int32_t *ids, size_t n) {
    s->shown = ids;
    s->n_shown = n;
}

/* Feeds one byte; true when the stop string ends with it. */
static bool step(stop *p, char byte) {
    while (p->state > 0 && p->text[p->state] != byte) {
        p->state = p->fail[p->state - 1];
    }
    p->state += p->text[p->state] == byte ? 1 : 0;
    return p->state == p->n;
}

/* Characters on their way out: stops when a stop string is complete, else gives out what cannot be part of
 * one. */
static bl_code give(bl_stream *s, const char *text, size_t n, bl_buf *ret, bl_err *err) {
    size_t hold = 0;
    for (size_t i = 0; i < n; i++) {
        size_t cut = 0;
        for (size_t k = 0; k < s->n_stops; k++) {
            cut = step(&s->stops[k], text[i]) ? BL_MAX(cut, s->stops[k].n) : cut;
        }
        if (cut > 0) {
            s->stopped = true;
            BL_TRY(bl_buf_append(&s->held, text, i + 1, err));
            BL_TRY(bl_buf_append(ret, s->held.data, s->held.len - cut, err));
            bl_buf_reset(&s->held);
            return BL_OK;
        }
    }
    for (size_t k = 0; k < s->n_stops; k++) {
        hold = BL_MAX(hold, s->stops[k].state);
    }
    BL_TRY(bl_buf_append(&s->held, text, n, err));
    if (s->held.len > hold) {
        size_t out = s->held.len - hold;
        BL_TRY(bl_buf_append(ret, s->held.data, out, err));
        bl_buf_consume(&s->held, out);
    }
    return BL_OK;
}

/* Characters of raw that are certain: all but an unfinished one at the end (or all of it, at the end of the
 * text). */
static bl_code drain(bl_stream *s, bool end, bl_buf *ret, bl_err *err) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const char *p = s->raw.data;
    size_t n = end ? s->raw.len : bl_utf8_complete(p ? p : "", s->raw.len);
    for (size_t i = 0; i < n && !s->stopped;) {
        size_t good = i;
        uint32_t cp;
        size_t len;
        while (good < n && (len = bl_utf8_decode(p + good, n - good, &cp)) > 0) {
            good += len;
        }
        if (good > i) {
            BL_TRY(give(s, p + i, good - i, ret, err));
        }
        if (good < n && !s->stopped) {
            BL_TRY(give(s, replacement, sizeof replacement - 1, ret, err));
            good += bl_utf8_invalid_len(p + good, n - good);
        }
        i = good;
    }
    bl_buf_consume(&s->raw, n);
    return BL_OK;
}

static bool is_shown(const bl_stream *s, int32_t id) {
    for (size_t i = 0; i < s->n_shown; i++) {
        if (s->shown[i] == id) {
            return true;
        }
    }
    return false;
}

/* What was held back is certain: no character and no stop string goes on across a marker. */
static bl_code push_shown(bl_stream *s, int32_t id, bl_buf *ret, bl_err *err) {
    static const char control[] = {(char)BL_PARSER_CONTROL};
    BL_TRY(drain(s, true, ret, err));
    if (s->stopped) {
        return BL_OK;
    }
    BL_TRY(bl_buf_append(ret, bl_buf_str(&s->held), s->held.len, err));
    bl_buf_reset(&s->held);
    for (size_t k = 0; k < s->n_stops; k++) {
        s->stops[k].state = 0;
    }
    BL_TRY(bl_buf_append(ret, control, sizeof control, err));
    return bl_tokenizer_token_bytes(s->t, id, false, false, ret, err);
}

bl_code bl_stream_push(bl_stream *s, int32_t id, bl_buf *ret, bool *ret_stopped, bl_err *err) {
    *ret_stopped = s->stopped;
    if (s->stopped) {
        return BL_OK;
    }
    if (is_shown(s, id)) {
        BL_TRY(push_shown(s, id, ret, err));
        *ret_stopped = s->stopped;
        return BL_OK;
    }
    BL_TRY(bl_tokenizer_token_bytes(s->t, id, !s->started, s->skip_special, &s->raw, err));
    /* a control token that is dropped leaves the text as unstarted as it was */
    s->started = s->started || !(s->skip_special && bl_tokenizer_is_special(s->t, id));
    BL_TRY(drain(s, false, ret, err));
    *ret_stopped = s->stopped;
    return BL_OK;
}

bl_code bl_stream_finish(bl_stream *s, bl_buf *ret, bl_err *err) {
    if (s->stopped) {
        return BL_OK;
    }
    BL_TRY(drain(s, true, ret, err));
    if (!s->stopped) {
        BL_TRY(bl_buf_append(ret, s->held.data, s->held.len, err));
    }
    bl_buf_reset(&s->held);
    s->stopped = true;
    return BL_OK;
}
