/* Byte-pair merging of one word: a linked list of symbols and a heap of candidate pairs, O(n log n).
 *
 * Two rules decide what merges: ranks (a table of pairs; tokenizer.json and byte-level GGUF) and scores (any
 * two neighbours whose joined content is a token; SentencePiece-style GGUF). Both take the smallest key first
 * and the leftmost of equals.
 */
#include <string.h>

#include "base/utf8.h"
#include "formats/tokenizer_impl.h"

#define NONE UINT32_MAX

/* ---- heap -------------------------------------------------------------------------------------------- */

static bool comes_before(const bl_tokenizer_candidate *a, const bl_tokenizer_candidate *b) {
    return a->key != b->key ? a->key < b->key : a->pos < b->pos;
}

static bl_code heap_push(bl_tokenizer_work *w, bl_tokenizer_candidate c, bl_err *err) {
    if (w->n_heap == w->cap_heap) {
        size_t cap = w->cap_heap * 2 + 64; /* at most twice the symbols are ever waiting */
        bl_tokenizer_candidate *heap = bl_realloc(w->heap, cap * sizeof *heap);
        if (!heap) {
            BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for %zu candidate merges", cap);
        }
        w->heap = heap;
        w->cap_heap = cap;
    }
    size_t i = w->n_heap++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (!comes_before(&c, &w->heap[parent])) {
            break;
        }
        w->heap[i] = w->heap[parent];
        i = parent;
    }
    w->heap[i] = c;
    return BL_OK;
}

static bl_tokenizer_candidate heap_pop(bl_tokenizer_work *w) {
    bl_tokenizer_candidate top = w->heap[0];
    bl_tokenizer_candidate last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->n_heap) {
            break;
        }
        if (child + 1 < w->n_heap && comes_before(&w->heap[child + 1], &w->heap[child])) {
            child++;
        }
        if (!comes_before(&w->heap[child], &last)) {
            break;
        }
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* ---- symbols ----------------------------------------------------------------------------------------- */

static bl_code add_symbol(bl_tokenizer_work *w, int32_t id, size_t off, size_t len, bl_err *err) {
    if (w->n_symbols == w->cap_symbols) {
        if (w->n_symbols >= BL_TOKENIZER_MAX_WORD) {
            BL_FAIL(err, BL_ELIMIT, "tokenizer: a word of more than %u symbols", BL_TOKENIZER_MAX_WORD);
        }
        size_t cap = BL_MIN(w->cap_symbols * 2 + 64, (size_t)BL_TOKENIZER_MAX_WORD);
        bl_tokenizer_symbol *symbols = bl_realloc(w->symbols, cap * sizeof *symbols);
        if (!symbols) {
            BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for a word of %zu symbols", cap);
        }
        w->symbols = symbols;
        w->cap_symbols = cap;
    }
    uint32_t i = (uint32_t)w->n_symbols++;
    w->symbols[i] = (bl_tokenizer_symbol){
        .prev = i > 0 ? i - 1 : NONE, .next = NONE, .off = (uint32_t)off, .len = (uint32_t)len, .id = id};
    if (i > 0) {
        w->symbols[i - 1].next = i;
    }
    return BL_OK;
}

/* The unknown token, as the reference: adjacent unknowns are one when fuse_unk, and one that waits is written
 * when a known symbol comes (bytes of the fallback do not count as one). */
static bl_code add_unknown(bl_tokenizer_work *w, bool *pending, size_t off, size_t len, bl_err *err) {
    const bl_tokenizer *t = w->t;
    if (t->unk < 0) {
        return BL_OK;
    }
    if (*pending && !t->fuse_unk) {
        BL_TRY(add_symbol(w, t->unk, off, len, err));
    }
    *pending = true;
    return BL_OK;
}

/* Adds the bytes of one character as <0xHH> tokens, when there is one for each. */
static bl_code add_bytes(bl_tokenizer_work *w, const char *s, size_t off, size_t len, bool *ret_done,
                         bl_err *err) {
    for (size_t k = 0; k < len; k++) {
        if (w->t->fallback[(unsigned char)s[off + k]] < 0) {
            *ret_done = false;
            return BL_OK;
        }
    }
    *ret_done = true;
    for (size_t k = 0; k < len; k++) {
        BL_TRY(add_symbol(w, w->t->fallback[(unsigned char)s[off + k]], off + k, 1, err));
    }
    return BL_OK;
}

/* Symbols of the rank model: one per byte of the byte-level alphabet, else one per character. */
static bl_code load_ranked(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) {
    const bl_tokenizer *t = w->t;
    bool pending = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = (unsigned char)s[i];
        len = t->byte_level || cp < 0x80 ? 1 : bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            BL_FAIL(err, BL_EINTERNAL, "tokenizer: a word is no UTF-8 at byte %zu", i);
        }
        int32_t id =
            len == 1 ? t->symbol[(unsigned char)s[i]] : bl_tokenizer_vocab_find_model(&t->vocab, s + i, len);
        bool done = id >= 0;
        if (done) {
            if (pending) {
                BL_TRY(add_symbol(w, t->unk, i, len, err));
                pending = false;
            }
            BL_TRY(add_symbol(w, id, i, len, err));
        } else if (t->byte_fallback && !t->byte_level) {
            BL_TRY(add_bytes(w, s, i, len, &done, err));
        }
        if (!done) {
            BL_TRY(add_unknown(w, &pending, i, len, err));
        }
    }
    return pending ? add_symbol(w, t->unk, n, 1, err) : BL_OK;
}

/* Symbols of the score model: one per character, known or not (two unknown neighbours may still join into a
 * token). */
static bl_code load_scored(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) {
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            BL_FAIL(err, BL_EINTERNAL, "tokenizer: a word is no UTF-8 at byte %zu", i);
        }
        int32_t id = len == 1 ? w->t->symbol[(unsigned char)s[i]]
                              : bl_tokenizer_vocab_find_model(&w->t->vocab, s + i, len);
        BL_TRY(add_symbol(w, id, i, len, err));
    }
    return BL_OK;
}

/* ---- merging ----------------------------------------------------------------------------------------- */

/* What symbol `left` and its right neighbour merge into; false when they do not. */
static bool pair_of(const bl_tokenizer_work *w, const char *s, uint32_t left, bl_tokenizer_candidate *ret) {
    const bl_tokenizer *t = w->t;
    const bl_tokenizer_symbol *a = &w->symbols[left], *b = &w->symbols[a->next];
    if (!t->keys) {
        const bl_tokenizer_merge *m = bl_tokenizer_merges_find(&t->merges, a->id, b->id);
        if (!m) {
            return false;
        }
        *ret = (bl_tokenizer_candidate){.key = (uint32_t)(m - t->merges.m), .pos = left, .id = m->id};
        return true;
    }
    int32_t id = bl_tokenizer_vocab_find_model(&t->vocab, s + a->off, (size_t)a->len + b->len);
    if (id < 0) {
        return false;
    }
    *ret = (bl_tokenizer_candidate){.key = t->keys[id], .pos = left, .id = id};
    return true;
}

static bl_code consider(bl_tokenizer_work *w, const char *s, uint32_t left, bl_err *err) {
    bl_tokenizer_candidate c;
    if (left == NONE || w->symbols[left].next == NONE || !pair_of(w, s, left, &c)) {
        return BL_OK;
    }
    return heap_push(w, c, err);
}

/* Whether the pair at c.pos still merges into c.id. By ranks the reference asks for the same result, not the
 * same pair; by scores the pair covers the same bytes if it has the same length. */
static bool is_current(const bl_tokenizer_work *w, const bl_tokenizer_candidate *c) {
    const bl_tokenizer_symbol *a = &w->symbols[c->pos];
    if (a->len == 0 || a->next == NONE) {
        return false;
    }
    const bl_tokenizer_symbol *b = &w->symbols[a->next];
    if (w->t->keys) {
        return a->len + b->len == w->t->vocab.pieces[c->id].len;
    }
    const bl_tokenizer_merge *m = bl_tokenizer_merges_find(&w->t->merges, a->id, b->id);
    return m && m->id == c->id;
}

static bl_code merge_all(bl_tokenizer_work *w, const char *s, bl_err *err) {
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_symbols; i++) {
        BL_TRY(consider(w, s, (uint32_t)i, err));
    }
    while (w->n_heap > 0) {
        bl_tokenizer_candidate c = heap_pop(w);
        if (!is_current(w, &c)) {
            continue;
        }
        bl_tokenizer_symbol *a = &w->symbols[c.pos], *b = &w->symbols[a->next];
        a->len += b->len;
        a->id = c.id;
        a->next = b->next;
        b->len = 0;
        if (a->next != NONE) {
            w->symbols[a->next].prev = c.pos;
        }
        BL_TRY(consider(w, s, a->prev, err));
        BL_TRY(consider(w, s, c.pos, err));
    }
    return BL_OK;
}

/* A symbol of the score model that is no token: its bytes, else the unknown token. */
static bl_code emit_unknown(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) {
    const bl_tokenizer *t = w->t;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->fallback[(unsigned char)s[i]];
        if (id < 0) {
            return t->unk >= 0 ? bl_ids_push(w->out, t->unk, err) : BL_OK;
        }
        BL_TRY(bl_ids_push(w->out, id, err));
    }
    return BL_OK;
}

static bl_code emit(bl_tokenizer_work *w, const char *s, bl_err *err) {
    for (uint32_t i = w->n_symbols > 0 ? 0 : NONE; i != NONE; i = w->symbols[i].next) {
        const bl_tokenizer_symbol *a = &w->symbols[i];
        if (a->id >= 0) {
            BL_TRY(bl_ids_push(w->out, a->id, err));
        } else {
            BL_TRY(emit_unknown(w, s + a->off, a->len, err));
        }
    }
    return BL_OK;
}

/* The token that is the whole word, -1 when none: ignore_merges. Never a control token, whatever the flags:
 * those are matched before, when they are asked for. */
static bl_code whole_word(bl_tokenizer_work *w, const char *s, size_t n, int32_t *ret, bl_err *err) {
    const bl_tokenizer *t = w->t;
    *ret = -1;
    if (n > t->vocab.longest) { /* spelling only lengthens */
        return BL_OK;
    }
    if (t->byte_level) {
        bl_buf_reset(&w->spelled);
        for (size_t i = 0; i < n; i++) {
            char utf8[4];
            size_t len = bl_utf8_encode(bl_tokenizer_byte_char((uint8_t)s[i]), utf8);
            BL_TRY(bl_buf_append(&w->spelled, utf8, len, err));
        }
        s = bl_buf_str(&w->spelled);
        n = w->spelled.len;
    }
    int32_t id = bl_tokenizer_vocab_find_model(&t->vocab, s, n);
    *ret = id >= 0 && (t->vocab.pieces[id].flags & BL_TOKEN_SPECIAL) ? -1 : id;
    return BL_OK;
}

bl_code bl_tokenizer_word(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) {
    if (w->t->ignore_merges) {
        int32_t id;
        BL_TRY(whole_word(w, s, n, &id, err));
        if (id >= 0) {
            return bl_ids_push(w->out, id, err);
        }
    }
    w->n_symbols = 0;
    if (w->t->keys) {
        BL_TRY(load_scored(w, s, n, err));
    } else {
        BL_TRY(load_ranked(w, s, n, err));
    }
    BL_TRY(merge_all(w, s, err));
    return emit(w, s, err);
}
