/* Normalizers and pre-tokenizers, as a flat list of ops: some change the text, some split it. Pieces are
 * handed on one by one, so no list of pieces is ever held; recursion is as deep as the list is long.
 */
#include <string.h>

#include "base/utf8.h"
#include "formats/tokenizer_impl.h"

const char bl_tokenizer_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

bl_code bl_tokenizer_op_add(bl_tokenizer *t, bl_tokenizer_op_kind kind, bl_tokenizer_op **ret, bl_err *err) {
    if (t->n_ops == BL_TOKENIZER_MAX_OPS) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: more than %u normalizers and pre-tokenizers",
                BL_TOKENIZER_MAX_OPS);
    }
    bl_tokenizer_op *op = &t->ops[t->n_ops++];
    *op = (bl_tokenizer_op){.kind = kind};
    *ret = op;
    return BL_OK;
}

bl_code bl_tokenizer_op_text(bl_tokenizer_op *op, const char *a, size_t a_len, const char *b, size_t b_len,
                             bl_err *err) {
    if (a_len == 0 || a_len > BL_TOKENIZER_MAX_ADDED || b_len > BL_TOKENIZER_MAX_ADDED) {
        BL_FAIL(err, BL_ELIMIT,
                "tokenizer: a pattern of %zu bytes and a content of %zu, 1 and 0 to %u allowed", a_len, b_len,
                BL_TOKENIZER_MAX_ADDED);
    }
    op->a = bl_strndup(a, a_len);
    op->b = bl_strndup(b ? b : "", b_len);
    op->a_len = a_len;
    op->b_len = b_len;
    if (!op->a || !op->b) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory");
    }
    return BL_OK;
}

bl_code bl_tokenizer_op_split(bl_tokenizer *t, const char *regex, size_t n, bl_tokenizer_behavior behavior,
                              bl_err *err) {
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_SPLIT, &op, err));
    op->behavior = behavior;
    return bl_tokenizer_regex_new(regex, n, &op->regex, err);
}

void bl_tokenizer_op_done(bl_tokenizer_op *op) {
    bl_free(op->a);
    bl_free(op->b);
    bl_tokenizer_regex_free(op->regex);
}

/* ---- ops that change text ---------------------------------------------------------------------------- */

bl_code bl_tokenizer_replace(const bl_tokenizer_op *op, const char *s, size_t n, bl_buf *ret,
                             bool *ret_changed, bl_err *err) {
    const char *hit = n > 0 ? memmem(s, n, op->a, op->a_len) : NULL;
    *ret_changed = hit != NULL;
    while (hit) {
        size_t before = (size_t)(hit - s);
        BL_TRY(bl_buf_append(ret, s, before, err));
        BL_TRY(bl_buf_append(ret, op->b, op->b_len, err));
        s += before + op->a_len;
        n -= before + op->a_len;
        hit = n > 0 ? memmem(s, n, op->a, op->a_len) : NULL;
        if (!hit) {
            BL_TRY(bl_buf_append(ret, s, n, err));
        }
    }
    return BL_OK;
}

/* Applies ops[i], which changes text; *s and *n then point to its scratch when anything changed. */
static bl_code change(bl_tokenizer_work *w, size_t i, const char **s, size_t *n, bool at_start, bl_err *err) {
    const bl_tokenizer_op *op = &w->t->ops[i];
    bl_buf *out = &w->scratch[i];
    bool changed = true;
    bl_buf_reset(out);
    switch (op->kind) {
    case BL_TOKENIZER_OP_REPLACE:
        BL_TRY(bl_tokenizer_replace(op, *s, *n, out, &changed, err));
        break;
    case BL_TOKENIZER_OP_PREPEND:
    case BL_TOKENIZER_OP_PREFIX:
        changed =
            op->kind == BL_TOKENIZER_OP_PREPEND
                ? *n > 0
                : (at_start || !op->at_start) && !(*n >= op->a_len && memcmp(*s, op->a, op->a_len) == 0);
        if (changed) {
            BL_TRY(bl_buf_append(out, op->a, op->a_len, err));
            BL_TRY(bl_buf_append(out, *s, *n, err));
        }
        break;
    case BL_TOKENIZER_OP_NORMAL_FORM:
        BL_TRY(bl_unicode_normalize(op->form, *s, *n, out, err));
        break;
    case BL_TOKENIZER_OP_LOWER:
        BL_TRY(bl_unicode_lower(*s, *n, out, err));
        break;
    default:
        BL_FAIL(err, BL_EINTERNAL, "tokenizer: op %d does not change text", (int)op->kind);
    }
    if (changed) {
        *s = bl_buf_str(out);
        *n = out->len;
    }
    return BL_OK;
}

bl_code bl_tokenizer_normalize(bl_tokenizer_work *w, const char *s, size_t n, const char **ret, size_t *ret_n,
                               bl_err *err) {
    for (size_t i = 0; i < w->t->n_normalizers; i++) {
        BL_TRY(change(w, i, &s, &n, false, err));
    }
    *ret = s;
    *ret_n = n;
    return BL_OK;
}

/* ---- ops that split ---------------------------------------------------------------------------------- */

/* A split in progress: pieces come from left to right, with one held back for the behaviours that join. */
typedef struct {
    bl_tokenizer_work *w;
    size_t op_index;
    const char *s;
    bool at_start;
    bool held, held_match;
    size_t held_from, held_to;
} split;

static bl_code run_ops(bl_tokenizer_work *w, size_t i, const char *s, size_t n, bool at_start, bl_err *err);

static bl_code hand_on(const split *p, size_t from, size_t to, bl_err *err) {
    return from == to ? BL_OK
                      : run_ops(p->w, p->op_index + 1, p->s + from, to - from, p->at_start && from == 0, err);
}

static bl_code flush(split *p, bl_err *err) {
    if (!p->held) {
        return BL_OK;
    }
    p->held = false;
    return hand_on(p, p->held_from, p->held_to, err);
}

/* One piece, a match of the pattern or the text between two matches. */
static bl_code piece(split *p, size_t from, size_t to, bool match, bl_err *err) {
    const bl_tokenizer_op *op = &p->w->t->ops[p->op_index];
    bool is_match = match != op->invert;
    bool join = false;
    switch (op->behavior) {
    case BL_TOKENIZER_ISOLATED:
        return hand_on(p, from, to, err);
    case BL_TOKENIZER_REMOVED:
        return is_match ? BL_OK : hand_on(p, from, to, err);
    case BL_TOKENIZER_MERGED_PREVIOUS: /* a match joins what stands before it, but not another match */
        join = p->held && is_match && !p->held_match;
        break;
    case BL_TOKENIZER_MERGED_NEXT: /* what follows a match joins it, unless it is a match itself */
        join = p->held && !is_match && p->held_match;
        break;
    case BL_TOKENIZER_CONTIGUOUS:
        join = p->held && is_match == p->held_match;
        break;
    }
    if (join) {
        p->held_to = to;
    } else {
        BL_TRY(flush(p, err));
        p->held_from = from;
        p->held_to = to;
    }
    p->held = true;
    p->held_match = is_match;
    return BL_OK;
}

/* The next match at or after `from`. */
static bl_code find(split *p, size_t n, size_t from, size_t *ret_start, size_t *ret_end, bool *ret_found,
                    bl_err *err) {
    const bl_tokenizer_op *op = &p->w->t->ops[p->op_index];
    if (op->regex) {
        if (!p->w->scan) {
            BL_TRY(bl_tokenizer_scan_new(p->w->n_text, &p->w->scan, err));
        }
        return bl_tokenizer_regex_find(op->regex, p->w->scan, p->s, n, from, ret_start, ret_end, ret_found,
                                       err);
    }
    const char *hit = from < n ? memmem(p->s + from, n - from, op->a, op->a_len) : NULL;
    *ret_found = hit != NULL;
    if (hit) {
        *ret_start = (size_t)(hit - p->s);
        *ret_end = *ret_start + op->a_len;
    }
    return BL_OK;
}

static bl_code run_split(bl_tokenizer_work *w, size_t i, const char *s, size_t n, bool at_start,
                         bl_err *err) {
    split p = {.w = w, .op_index = i, .s = s, .at_start = at_start};
    size_t done = 0, from = 0;
    while (from < n) {
        size_t start = 0, end = 0;
        bool found = false;
        BL_TRY(find(&p, n, from, &start, &end, &found, err));
        if (!found) {
            break;
        }
        if (start > done) {
            BL_TRY(piece(&p, done, start, false, err));
        }
        if (end > start || start > done) {
            BL_TRY(piece(&p, start, end, true, err));
        }
        done = end;
        from = end;
        if (end == start &&
            from < n) { /* an empty match only marks a boundary; go on after the next character */
            uint32_t cp;
            size_t len = bl_utf8_decode(s + from, n - from, &cp);
            from += BL_MAX(len, (size_t)1);
        }
    }
    if (done < n) {
        BL_TRY(piece(&p, done, n, false, err));
    }
    return flush(&p, err);
}

static bl_code run_ops(bl_tokenizer_work *w, size_t i, const char *s, size_t n, bool at_start, bl_err *err) {
    for (; i < w->t->n_ops; i++) {
        if (n == 0) {
            return BL_OK;
        }
        if (w->t->ops[i].kind == BL_TOKENIZER_OP_SPLIT) {
            return run_split(w, i, s, n, at_start, err);
        }
        BL_TRY(change(w, i, &s, &n, at_start, err));
    }
    return n > 0 ? bl_tokenizer_word(w, s, n, err) : BL_OK;
}

bl_code bl_tokenizer_words(bl_tokenizer_work *w, const char *s, size_t n, bool at_start, bl_err *err) {
    return run_ops(w, w->t->n_normalizers, s, n, at_start, err);
}
