/* Added tokens: a sorted array of contents, narrowed byte by byte. At every byte of the text the search costs
 * at most the length of the longest content that agrees with it, times a logarithm.
 */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer_impl.h"

void bl_tokenizer_matcher_init(bl_tokenizer_matcher *m) {
    *m = (bl_tokenizer_matcher){0};
    bl_buf_init(&m->text, BL_TOKENIZER_MAX_BLOB);
}

void bl_tokenizer_matcher_done(bl_tokenizer_matcher *m) {
    bl_free(m->p);
    bl_buf_done(&m->text);
}

bl_code bl_tokenizer_matcher_add(bl_tokenizer_matcher *m, const char *s, size_t n, int32_t id, unsigned flags,
                                 bl_err *err) {
    if (n == 0) {
        return BL_OK; /* matches nothing */
    }
    if (n > BL_TOKENIZER_MAX_ADDED) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: added token %d has %zu bytes, at most %u allowed", id, n,
                BL_TOKENIZER_MAX_ADDED);
    }
    if (m->n == m->cap) {
        size_t cap = m->cap * 2 + 64;
        bl_tokenizer_pattern *p = bl_realloc(m->p, cap * sizeof *p);
        if (!p) {
            BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for %zu added tokens", cap);
        }
        m->p = p;
        m->cap = cap;
    }
    uint32_t off = (uint32_t)m->text.len;
    BL_TRY(bl_buf_append(&m->text, s, n, err));
    m->p[m->n++] = (bl_tokenizer_pattern){.off = off, .len = (uint32_t)n, .id = id, .flags = flags};
    return BL_OK;
}

/* By content, then by the order of adding (off grows with it). */
static int compare_patterns(const void *a, const void *b, void *user) {
    const bl_tokenizer_pattern *p = a, *q = b;
    const char *text = user;
    int c = memcmp(text + p->off, text + q->off, BL_MIN(p->len, q->len));
    if (c != 0) {
        return c;
    }
    if (p->len != q->len) {
        return p->len < q->len ? -1 : 1;
    }
    return p->off < q->off ? -1 : p->off > q->off;
}

bl_code bl_tokenizer_matcher_index(bl_tokenizer_matcher *m, bl_err *err) {
    if (m->n > UINT32_MAX) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: %zu added tokens", m->n);
    }
    if (m->n > 0) {
        qsort_r(m->p, m->n, sizeof *m->p, compare_patterns, m->text.data);
    }
    size_t kept = 0;
    for (size_t i = 0; i < m->n; i++) {
        const bl_tokenizer_pattern *last = kept > 0 ? &m->p[kept - 1] : NULL;
        if (!last || last->len != m->p[i].len ||
            memcmp(m->text.data + last->off, m->text.data + m->p[i].off, last->len) != 0) {
            m->p[kept++] = m->p[i];
        }
    }
    m->n = kept;
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        m->first[b] = (uint32_t)i;
        while (i < m->n && (unsigned char)m->text.data[m->p[i].off] == b) {
            i++;
        }
    }
    m->first[256] = (uint32_t)i;
    return BL_OK;
}

/* First pattern in [lo, hi) whose byte at depth is >= c (all are longer than depth and agree before it). */
static size_t lower(const bl_tokenizer_matcher *m, size_t lo, size_t hi, size_t depth, unsigned c) {
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)m->text.data[m->p[mid].off + depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

const bl_tokenizer_pattern *bl_tokenizer_matcher_at(const bl_tokenizer_matcher *m, const char *s, size_t n) {
    const bl_tokenizer_pattern *best = NULL;
    unsigned c = (unsigned char)s[0];
    size_t lo = m->first[c], hi = m->first[c + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        if (m->p[lo].len == depth) { /* the shortest sorts first, and there is one of each content */
            best = &m->p[lo++];
        }
        if (depth == n) {
            break;
        }
        c = (unsigned char)s[depth];
        lo = lower(m, lo, hi, depth, c);
        hi = lower(m, lo, hi, depth, c + 1);
    }
    return best;
}
