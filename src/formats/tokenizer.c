/* The tokenizer's life, its look-ups, and encoding down to the level of added tokens (tokenizer_impl.h has
 * the map). */
#include "formats/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/tokenizer_impl.h"

/* ---- life -------------------------------------------------------------------------------------------- */

bl_code bl_tokenizer_new(bl_tokenizer **ret, bl_err *err) {
    bl_tokenizer *t = bl_alloc(sizeof *t);
    if (!t) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory");
    }
    bl_tokenizer_matcher_init(&t->added_raw);
    bl_tokenizer_matcher_init(&t->added_normalized);
    t->unk = t->bos = t->eos = -1;
    *ret = t;
    return BL_OK;
}

void bl_tokenizer_free(bl_tokenizer *t) {
    if (!t) {
        return;
    }
    bl_tokenizer_vocab_done(&t->vocab);
    bl_tokenizer_merges_done(&t->merges);
    bl_free(t->keys);
    bl_free(t->renamed);
    bl_tokenizer_matcher_done(&t->added_raw);
    bl_tokenizer_matcher_done(&t->added_normalized);
    for (size_t i = 0; i < t->n_ops; i++) {
        bl_tokenizer_op_done(&t->ops[i]);
    }
    bl_tokenizer_op_done(&t->decode_replace);
    bl_free(t);
}

static int compare_ids(const void *a, const void *b) {
    const bl_tokenizer_pattern *p = a, *q = b;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* Collects the normalized contents of the tokens that decode to them. */
static bl_code index_renamed(bl_tokenizer *t, bl_err *err) {
    const bl_tokenizer_matcher *m = &t->added_normalized;
    t->renamed = bl_alloc_array(m->n, sizeof *t->renamed);
    if (!t->renamed) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for %zu added tokens", m->n);
    }
    for (size_t i = 0; i < m->n; i++) {
        if (t->vocab.pieces[m->p[i].id].flags & BL_TOKEN_RENAMED) {
            t->renamed[t->n_renamed++] = m->p[i];
        }
    }
    if (t->n_renamed > 0) {
        qsort(t->renamed, t->n_renamed, sizeof *t->renamed, compare_ids);
    }
    return BL_OK;
}

bl_code bl_tokenizer_finish(bl_tokenizer *t, bl_err *err) {
    bl_tokenizer_vocab_trim(&t->vocab);
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        size_t n = t->byte_level ? bl_utf8_encode(bl_tokenizer_byte_char((uint8_t)b), s) : 1;
        if (!t->byte_level) {
            s[0] = (char)b;
        }
        t->symbol[b] = t->byte_level || b < 0x80 ? bl_tokenizer_vocab_find_model(&t->vocab, s, n) : -1;
        snprintf(s, sizeof s, "<0x%02X>", b);
        int32_t id = t->byte_fallback ? bl_tokenizer_vocab_find(&t->vocab, s, 6) : -1;
        t->fallback[b] = id >= 0 && (t->vocab.pieces[id].flags & (BL_TOKEN_MODEL | BL_TOKEN_BYTE)) ? id : -1;
    }
    for (uint32_t id = 0; t->decode_bytes && id < t->vocab.n_ids; id++) {
        if (t->vocab.pieces[id].off != UINT32_MAX &&
            bl_tokenizer_byte_token(t->vocab.blob + t->vocab.pieces[id].off, t->vocab.pieces[id].len) >= 0) {
            t->vocab.pieces[id].flags |= BL_TOKEN_BYTE;
        }
    }
    BL_TRY(index_renamed(t, err));
    BL_TRY(bl_tokenizer_matcher_index(&t->added_raw, err));
    BL_TRY(bl_tokenizer_matcher_index(&t->added_normalized, err));
    return t->keys ? BL_OK : bl_tokenizer_merges_index(&t->merges, err);
}

/* ---- look-ups ---------------------------------------------------------------------------------------- */

uint32_t bl_tokenizer_vocab_size(const bl_tokenizer *t) {
    return t->vocab.n_ids;
}

int32_t bl_tokenizer_id(const bl_tokenizer *t, const char *piece, size_t n) {
    return bl_tokenizer_vocab_find(&t->vocab, piece, n);
}

bool bl_tokenizer_is_special(const bl_tokenizer *t, int32_t id) {
    return bl_tokenizer_vocab_has(&t->vocab, id) && (t->vocab.pieces[id].flags & BL_TOKEN_SPECIAL);
}

int32_t bl_tokenizer_bos(const bl_tokenizer *t) {
    return t->bos;
}

int32_t bl_tokenizer_eos(const bl_tokenizer *t) {
    return t->eos;
}

bool bl_tokenizer_adds_bos(const bl_tokenizer *t) {
    return t->n_before > 0;
}

const char *bl_tokenizer_piece(const bl_tokenizer *t, int32_t id, size_t *ret_len) {
    if (!bl_tokenizer_vocab_has(&t->vocab, id)) {
        return NULL;
    }
    *ret_len = t->vocab.pieces[id].len;
    return t->vocab.blob + t->vocab.pieces[id].off;
}

/* ---- encode ------------------------------------------------------------------------------------------ */

/* The code point that ends at s + at; at > 0. */
static uint32_t before(const char *s, size_t at, size_t *ret_len) {
    uint32_t cp = 0;
    size_t len = 1;
    while (len < at && len < 4 && ((unsigned char)s[at - len] & 0xC0) == 0x80) {
        len++;
    }
    (void)bl_utf8_decode(s + at - len, len, &cp);
    *ret_len = len;
    return cp;
}

static bool is_single_word(const char *s, size_t n, size_t start, size_t stop) {
    uint32_t cp = 0;
    size_t len;
    if (start > 0 && bl_unicode_is_word(before(s, start, &len))) {
        return false;
    }
    return stop == n || bl_utf8_decode(s + stop, n - stop, &cp) == 0 || !bl_unicode_is_word(cp);
}

static size_t skip_spaces_left(const char *s, size_t floor, size_t at) {
    size_t len;
    while (at > floor && bl_unicode_is_space(before(s, at, &len))) {
        at -= len;
    }
    return BL_MAX(at, floor);
}

static size_t skip_spaces_right(const char *s, size_t n, size_t at) {
    uint32_t cp;
    size_t len;
    while ((len = bl_utf8_decode(s + at, n - at, &cp)) > 0 && bl_unicode_is_space(cp)) {
        at += len;
    }
    return at;
}

typedef bl_code plain_fn(bl_tokenizer_work *w, const char *s, size_t n, bool at_start, bl_err *err);

/* May the control token at s[0, n) be parsed? s lies in w->text. A refused match that runs into trusted bytes
 * must not hide a control token there: *ret_resume is where to look on. */
static bool is_trusted(const bl_tokenizer_work *w, const char *s, size_t n, size_t *ret_resume) {
    *ret_resume = n;
    if (!w->marks) {
        return true;
    }
    const uint8_t *marks = w->marks + (s - w->text);
    if (!memchr(marks, 1, n)) {
        return true;
    }
    const uint8_t *trusted = memchr(marks + 1, 0, n - 1);
    *ret_resume = trusted ? (size_t)(trusted - marks) : n;
    return false;
}

/* Cuts s at added tokens: their ids are written, the text between goes to `plain`. As in the reference, a
 * match that does not count (a control token that may not be parsed, part of a longer word) still hides
 * shorter ones inside it. */
static bl_code cut_added(bl_tokenizer_work *w, const bl_tokenizer_matcher *m, const char *s, size_t n,
                         bool at_start, plain_fn *plain, bl_err *err) {
    size_t done = 0, spaces_end = 0;
    for (size_t i = 0; i < n;) {
        const bl_tokenizer_pattern *p = m->n > 0 ? bl_tokenizer_matcher_at(m, s + i, n - i) : NULL;
        if (!p) {
            i++;
            continue;
        }
        size_t start = i, stop = i + p->len;
        size_t resume = p->len;
        bool special = p->flags & BL_TOKEN_SPECIAL;
        bool parsed = !special || ((w->flags & BL_ENCODE_SPECIAL_PARSE) &&
                                   (m != &w->t->added_raw || is_trusted(w, s + i, p->len, &resume)));
        i += resume;
        if (!parsed || ((p->flags & BL_TOKEN_SINGLE_WORD) && !is_single_word(s, n, start, stop))) {
            continue;
        }
        if (p->flags & BL_TOKEN_LSTRIP) {
            start = BL_MAX(skip_spaces_left(s, BL_MIN(done, start), start), done);
        }
        if (p->flags & BL_TOKEN_RSTRIP) {
            if (stop >= spaces_end) { /* else inside a run that was walked already: not again, it would be
                                         quadratic */
                spaces_end = skip_spaces_right(s, n, stop);
            }
            stop = spaces_end;
        }
        if (done < start) {
            BL_TRY(plain(w, s + done, start - done, at_start && done == 0, err));
        }
        BL_TRY(bl_ids_push(w->out, p->id, err));
        done = stop;
    }
    return done < n ? plain(w, s + done, n - done, at_start && done == 0, err) : BL_OK;
}

static bl_code encode_normalized(bl_tokenizer_work *w, const char *s, size_t n, bool at_start, bl_err *err) {
    BL_TRY(bl_tokenizer_normalize(w, s, n, &s, &n, err));
    return cut_added(w, &w->t->added_normalized, s, n, at_start, bl_tokenizer_words, err);
}

/* Control tokens in the normalized form of s[0, n). */
static bl_code count_controls(bl_tokenizer_work *w, const char *s, size_t n, size_t *ret, bl_err *err) {
    const bl_tokenizer_matcher *m = &w->t->added_normalized;
    BL_TRY(bl_tokenizer_normalize(w, s, n, &s, &n, err));
    for (size_t i = 0; i < n;) {
        const bl_tokenizer_pattern *p = bl_tokenizer_matcher_at(m, s + i, n - i);
        *ret += p && (p->flags & BL_TOKEN_SPECIAL) ? 1 : 0;
        i += p ? p->len : 1;
    }
    return BL_OK;
}

/* Length of the run of one origin at s. */
static size_t origin_run(const bl_tokenizer_work *w, const char *s, size_t n) {
    const uint8_t *marks = w->marks + (s - w->text);
    const uint8_t *other = memchr(marks, marks[0] ? 0 : 1, n);
    return other ? (size_t)(other - marks) : n;
}

static bool has_normalized_controls(const bl_tokenizer *t) {
    for (size_t i = 0; i < t->added_normalized.n; i++) {
        if (t->added_normalized.p[i].flags & BL_TOKEN_SPECIAL) {
            return true;
        }
    }
    return false;
}

/* Normalizing loses which byte came from where. So the control tokens of the whole are compared with those of
 * the trusted runs alone: none more, then none is a user's. */
static bool encode_mixed(bl_tokenizer_work *w, const char *s, size_t n, bool at_start, bl_code *ret_rc,
                         bl_err *err) {
    size_t whole = 0, own = 0;
    *ret_rc = count_controls(w, s, n, &whole, err);
    for (size_t i = 0; i < n && *ret_rc == BL_OK;) {
        size_t len = origin_run(w, s + i, n - i);
        if (!w->marks[s + i - w->text]) {
            *ret_rc = count_controls(w, s + i, len, &own, err);
        }
        i += len;
    }
    if (*ret_rc != BL_OK || whole == own) {
        return *ret_rc != BL_OK;
    }
    unsigned flags = w->flags;
    for (size_t i = 0; i < n && *ret_rc == BL_OK;) {
        size_t len = origin_run(w, s + i, n - i);
        w->flags = w->marks[s + i - w->text] ? flags & ~(unsigned)BL_ENCODE_SPECIAL_PARSE : flags;
        *ret_rc = encode_normalized(w, s + i, len, at_start && i == 0, err);
        i += len;
    }
    w->flags = flags;
    return true;
}

/* Text between added tokens that were written as they are. */
static bl_code encode_plain(bl_tokenizer_work *w, const char *s, size_t n, bool at_start, bl_err *err) {
    bl_code rc;
    if (w->marks && has_normalized_controls(w->t) && memchr(w->marks + (s - w->text), 1, n) &&
        encode_mixed(w, s, n, at_start, &rc, err)) {
        return rc;
    }
    return encode_normalized(w, s, n, at_start, err);
}

static bl_code check_text(const char *s, size_t n, bl_err *err) {
    if (n > BL_TOKENIZER_MAX_TEXT) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: a text of %zu bytes, at most %zu allowed", n,
                BL_TOKENIZER_MAX_TEXT);
    }
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (unsigned char)s[i] < 0x80 ? 1 : bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            BL_FAIL(err, BL_EINVAL, "tokenizer: the text is not valid UTF-8 at byte %zu of %zu", i, n);
        }
        i += len;
    }
    return BL_OK;
}

static bl_code encode(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) {
    const bl_tokenizer *t = w->t;
    if (w->flags & BL_ENCODE_SPECIAL_ADD) {
        BL_TRY(bl_ids_append(w->out, t->before, t->n_before, err));
    }
    BL_TRY(cut_added(w, &t->added_raw, s, n, true, encode_plain, err));
    return w->flags & BL_ENCODE_SPECIAL_ADD ? bl_ids_append(w->out, t->after, t->n_after, err) : BL_OK;
}

static bl_code encode_text(const bl_tokenizer *t, const char *text, const uint8_t *marks, size_t n,
                           unsigned flags, bl_ids *ret, bl_err *err) {
    BL_TRY(check_text(text, n, err));
    bl_tokenizer_work *w = bl_alloc(sizeof *w);
    if (!w) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory");
    }
    w->t = t;
    w->flags = flags;
    w->n_text = n;
    w->text = text;
    w->marks = marks;
    w->out = ret;
    bl_buf_init(&w->spelled, BL_TOKENIZER_MAX_OUT);
    for (size_t i = 0; i < t->n_ops; i++) {
        bl_buf_init(&w->scratch[i], BL_TOKENIZER_MAX_OUT);
    }
    size_t n_before = ret->n;
    bl_code rc = encode(w, text, n, err);
    if (rc != BL_OK) {
        ret->n = n_before;
    }
    for (size_t i = 0; i < t->n_ops; i++) {
        bl_buf_done(&w->scratch[i]);
    }
    bl_buf_done(&w->spelled);
    bl_tokenizer_scan_free(w->scan);
    bl_free(w->symbols);
    bl_free(w->heap);
    bl_free(w);
    return rc;
}

bl_code bl_tokenizer_encode(const bl_tokenizer *t, const char *text, size_t n, unsigned flags, bl_ids *ret,
                            bl_err *err) {
    return encode_text(t, text, NULL, n, flags, ret, err);
}

bl_code bl_tokenizer_encode_marked(const bl_tokenizer *t, const char *text, const uint8_t *marks, size_t n,
                                   unsigned flags, bl_ids *ret, bl_err *err) {
    return encode_text(t, text, marks, n, flags | BL_ENCODE_SPECIAL_PARSE, ret, err);
}
