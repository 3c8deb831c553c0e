/* The vocabulary as a trie in preorder: a walk over it reads memory once, forwards, and leaves out whole
 * subtrees where a prefix is not allowed. */
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "grammar/internal.h"
#include "grammar/limits.h"

#define MAX_BYTES ((size_t)256 << 20)

static int compare(const bl_grammar_vocab *v, int32_t a, int32_t b) {
    uint32_t na = v->off[a + 1] - v->off[a], nb = v->off[b + 1] - v->off[b];
    int c = memcmp(v->bytes + v->off[a], v->bytes + v->off[b], BL_MIN(na, nb));
    return c != 0 ? c : na < nb ? -1 : na > nb;
}

/* Stable, so tokens of equal bytes stay in the order of ids. */
static void merge_sort(const bl_grammar_vocab *v, int32_t *ids, int32_t *spare, uint32_t n) {
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t from = 0; from < n; from += 2 * width) {
            uint32_t i = from, middle = BL_MIN(from + width, n), j = middle, end = BL_MIN(middle + width, n);
            for (uint32_t k = from; k < end; k++) {
                bool left = i < middle && (j >= end || compare(v, ids[i], ids[j]) <= 0);
                spare[k] = left ? ids[i++] : ids[j++];
            }
        }
        memcpy(ids, spare, n * sizeof *ids);
    }
}

/* ids is sorted: what a token shares with the one before stays on the path. open[d] is the node at depth d.
 */
static void build_trie(bl_grammar_vocab *v) {
    uint32_t open[BL_GRAMMAR_MAX_TOKEN + 1], depth = 0, at = 0;
    const char *before = NULL;
    for (uint32_t i = 0; i < v->n_ids; i++) {
        const char *s = v->bytes + v->off[v->ids[i]];
        uint32_t n = v->off[v->ids[i] + 1] - v->off[v->ids[i]], common = 0;
        while (common < depth && common < n && before[common] == s[common]) {
            common++;
        }
        for (; depth > common; depth--) {
            v->trie[open[depth]].skip = at;
        }
        for (; depth < n; depth++) {
            v->trie[at] =
                (bl_gtrie){.byte = (uint8_t)s[depth], .depth = (uint8_t)(depth + 1), .first_token = i};
            open[depth + 1] = at++;
        }
        bl_gtrie *t = &v->trie[open[n]];
        t->n_tokens = (uint8_t)(t->n_tokens + (t->n_tokens < UINT8_MAX));
        for (uint32_t d = 1; d <= n; d++) {
            v->trie[open[d]].deepest = (uint8_t)BL_MAX(v->trie[open[d]].deepest, n);
        }
        before = s;
    }
    for (; depth > 0; depth--) {
        v->trie[open[depth]].skip = at;
    }
    v->n_trie = at;
}

/* Bytes beyond what each token shares with the one before it: the nodes of the trie. */
static uint32_t count_trie(const bl_grammar_vocab *v) {
    uint32_t total = 0, before = 0;
    for (uint32_t i = 0; i < v->n_ids; i++) {
        const char *s = v->bytes + v->off[v->ids[i]];
        const char *p = i > 0 ? v->bytes + v->off[v->ids[i - 1]] : NULL;
        uint32_t n = v->off[v->ids[i] + 1] - v->off[v->ids[i]], common = 0;
        while (common < before && common < n && p[common] == s[common]) {
            common++;
        }
        total += n - common;
        before = n;
    }
    return total;
}

static bl_code index_tokens(bl_grammar_vocab *v, bl_err *err) {
    int32_t *spare = bl_alloc_array(v->n_vocab, sizeof *spare);
    v->ids = bl_alloc_array(v->n_vocab, sizeof *v->ids);
    if (!spare || !v->ids) {
        bl_free(spare);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a vocabulary of %u tokens", v->n_vocab);
    }
    v->digest = 0xCBF29CE484222325u ^ v->n_vocab;
    for (uint32_t i = 0; i < v->n_vocab; i++) {
        uint32_t n = v->off[i + 1] - v->off[i];
        if (n > 0 && n <= BL_GRAMMAR_MAX_TOKEN) {
            v->ids[v->n_ids++] = (int32_t)i;
            v->max_depth = BL_MAX(v->max_depth, n);
        }
        v->digest = (v->digest ^ n) * 0x9E3779B97F4A7C15u;
    }
    for (uint32_t i = 0; i < v->off[v->n_vocab]; i++) {
        v->digest = (v->digest ^ (uint8_t)v->bytes[i]) * 0x9E3779B97F4A7C15u;
    }
    merge_sort(v, v->ids, spare, v->n_ids);
    bl_free(spare);
    v->trie = bl_alloc_array(count_trie(v), sizeof *v->trie);
    if (!v->trie) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a vocabulary of %u tokens", v->n_vocab);
    }
    build_trie(v);
    return BL_OK;
}

bl_code bl_grammar_vocab_from_bytes(const char *bytes, const uint32_t *n, uint32_t n_vocab,
                                    bl_grammar_vocab **ret, bl_err *err) {
    bl_grammar_vocab *v = bl_alloc(sizeof *v);
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        total += n[i];
    }
    if (total > MAX_BYTES || n_vocab > INT32_MAX) {
        bl_free(v);
        BL_FAIL(err, BL_ELIMIT, "the vocabulary has %llu bytes, at most %zu are allowed",
                (unsigned long long)total, MAX_BYTES);
    }
    if (v) {
        atomic_init(&v->refs, 1);
        v->n_vocab = n_vocab;
        v->off = bl_alloc_array((size_t)n_vocab + 1, sizeof *v->off);
        v->bytes = bl_alloc((size_t)total);
    }
    if (!v || !v->off || !v->bytes) {
        bl_grammar_vocab_unref(v);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a vocabulary of %u tokens", n_vocab);
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        v->off[i + 1] = v->off[i] + n[i];
    }
    if (total > 0) {
        memcpy(v->bytes, bytes, (size_t)total);
    }
    bl_code rc = index_tokens(v, err);
    if (rc != BL_OK) {
        bl_grammar_vocab_unref(v);
        return rc;
    }
    *ret = v;
    return BL_OK;
}

bl_code bl_grammar_vocab_new(const bl_tokenizer *t, uint32_t n_vocab, bl_grammar_vocab **ret, bl_err *err) {
    bl_buf b;
    uint32_t *n = bl_alloc_array(n_vocab, sizeof *n);
    if (!n) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a vocabulary of %u tokens", n_vocab);
    }
    bl_buf_init(&b, MAX_BYTES);
    bl_code rc = BL_OK;
    for (uint32_t i = 0; i < BL_MIN(n_vocab, bl_tokenizer_vocab_size(t)) && rc == BL_OK; i++) {
        size_t before = b.len, len;
        if (!bl_tokenizer_piece(t, (int32_t)i, &len) || bl_tokenizer_is_special(t, (int32_t)i)) {
            continue;
        }
        rc = bl_tokenizer_token_bytes(t, (int32_t)i, false, true, &b, err);
        n[i] = (uint32_t)(b.len - before);
    }
    if (rc == BL_OK) {
        rc = bl_grammar_vocab_from_bytes(bl_buf_str(&b), n, n_vocab, ret, err);
    }
    bl_buf_done(&b);
    bl_free(n);
    return rc;
}

bl_grammar_vocab *bl_grammar_vocab_ref(bl_grammar_vocab *v) {
    (void)atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed); /* the caller holds one already */
    return v;
}

void bl_grammar_vocab_unref(bl_grammar_vocab *v) {
    /* acq_rel: the one that frees sees everything the others did */
    if (v && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1) {
        bl_free(v->trie);
        bl_free(v->ids);
        bl_free(v->off);
        bl_free(v->bytes);
        bl_free(v);
    }
}
