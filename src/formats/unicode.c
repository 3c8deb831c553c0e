#include "formats/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/unicode_data.h"

/* Code points of one segment, decomposed. Grows with the text; a segment ends at the next code point below
 * the form's limit, so ordinary text needs a few entries. */
typedef struct {
    utf8proc_int32_t *cp;
    size_t n, cap;
} points;

enum { MAX_DECOMPOSED = 32 }; /* the longest decomposition of one code point is 18 (U+FDFA) */

/* Below this code point nothing decomposes in the form and nothing combines with what precedes it. */
static uint32_t inert_below(bl_unicode_form form) {
    switch (form) {
    case BL_UNICODE_NFC:
        return 0x300;
    case BL_UNICODE_NFD:
        return 0xC0;
    default:
        return 0xA0;
    }
}

static bool is_frozen(uint32_t cp) {
    size_t lo = 0, hi = bl_unicode_n_frozen;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp > bl_unicode_frozen[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < bl_unicode_n_frozen && cp >= bl_unicode_frozen[lo].first;
}

static bl_code push_decomposed(points *p, uint32_t cp, utf8proc_option_t options, bl_err *err) {
    if (p->cap - p->n < MAX_DECOMPOSED) {
        size_t cap = p->cap * 2 + 64;
        utf8proc_int32_t *grown = bl_realloc(p->cp, cap * sizeof *grown);
        if (!grown) {
            BL_FAIL(err, BL_ENOMEM, "unicode: out of memory for %zu code points", cap);
        }
        p->cp = grown;
        p->cap = cap;
    }
    int last_boundclass = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, p->cp + p->n, MAX_DECOMPOSED, options,
                                                 &last_boundclass);
    if (n < 0 || n > MAX_DECOMPOSED) {
        BL_FAIL(err, BL_EINTERNAL, "unicode: U+%04X does not decompose", (unsigned)cp);
    }
    p->n += (size_t)n;
    return BL_OK;
}

static unsigned combining_class(utf8proc_int32_t cp) {
    return (unsigned)utf8proc_get_property(cp)->combining_class & 0xFFu;
}

/* Stable sort of a run of marks by class: by insertion when short, else by counting (a million marks must
 * stay linear). */
static bl_code sort_marks(utf8proc_int32_t *cp, size_t n, bl_err *err) {
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t c = cp[i];
            unsigned cc = combining_class(c);
            size_t j = i;
            for (; j > 0 && combining_class(cp[j - 1]) > cc; j--) {
                cp[j] = cp[j - 1];
            }
            cp[j] = c;
        }
        return BL_OK;
    }
    utf8proc_int32_t *sorted = bl_alloc_array(n, sizeof *sorted);
    if (!sorted) {
        BL_FAIL(err, BL_ENOMEM, "unicode: out of memory for %zu combining marks", n);
    }
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) {
        at[combining_class(cp[i]) + 1]++;
    }
    for (size_t i = 1; i < BL_COUNTOF(at); i++) {
        at[i] += at[i - 1];
    }
    for (size_t i = 0; i < n; i++) {
        sorted[at[combining_class(cp[i])]++] = cp[i];
    }
    memcpy(cp, sorted, n * sizeof *sorted);
    bl_free(sorted);
    return BL_OK;
}

static bl_code append_points(bl_buf *ret, const utf8proc_int32_t *cp, size_t n, bl_err *err) {
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        size_t len = bl_utf8_encode((uint32_t)cp[i], utf8);
        BL_TRY(bl_buf_append(ret, utf8, len, err));
    }
    return BL_OK;
}

/* Orders, composes where the form asks for it, and writes one segment (canonical ordering and composition:
 * UAX #15). */
static bl_code flush_segment(points *p, bool compose, bl_buf *ret, bl_err *err) {
    for (size_t i = 0; i < p->n;) {
        size_t end = i;
        while (end < p->n && combining_class(p->cp[end]) != 0) {
            end++;
        }
        if (end - i > 1) {
            BL_TRY(sort_marks(p->cp + i, end - i, err));
        }
        i = end + 1;
    }
    if (compose && p->n > 0) {
        utf8proc_ssize_t n =
            utf8proc_normalize_utf32(p->cp, (utf8proc_ssize_t)p->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n < 0) {
            BL_FAIL(err, BL_EINTERNAL, "unicode: composition failed (%ld)", (long)n);
        }
        p->n = (size_t)n;
    }
    BL_TRY(append_points(ret, p->cp, p->n, err));
    p->n = 0;
    return BL_OK;
}

/* Length of the longest prefix that is already normalized and safe to cut off: code points below the limit,
 * but for the last one before a code point above it (which may combine with it). */
static size_t inert_prefix(const char *s, size_t n, uint32_t limit) {
    size_t i = 0, last = 0;
    while (i < n) {
        uint32_t cp;
        size_t len = bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0 || cp >= limit) {
            return last;
        }
        last = i;
        i += len;
    }
    return n;
}

/* Decomposes from *at up to the next code point below the limit (but the first) or the next frozen one. */
static bl_code take_segment(points *p, bl_unicode_form form, const char *s, size_t n, size_t *at,
                            bl_err *err) {
    bool compat = form == BL_UNICODE_NFKC || form == BL_UNICODE_NFKD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (compat) {
        options = (utf8proc_option_t)(options | UTF8PROC_COMPAT);
    }
    for (bool first = true; *at < n; first = false) {
        uint32_t cp;
        size_t len = bl_utf8_decode(s + *at, n - *at, &cp);
        if (len == 0) {
            BL_FAIL(err, BL_EINVAL, "unicode: invalid UTF-8 at byte %zu", *at);
        }
        if ((!first && cp < inert_below(form)) || is_frozen(cp)) {
            break;
        }
        BL_TRY(push_decomposed(p, cp, options, err));
        *at += len;
    }
    return BL_OK;
}

/* Frozen code points stand for themselves and end what could combine across them. */
static bl_code copy_frozen(const char *s, size_t n, size_t *at, bl_buf *ret, bl_err *err) {
    uint32_t cp;
    size_t len, from = *at;
    while ((len = bl_utf8_decode(s + *at, n - *at, &cp)) > 0 && is_frozen(cp)) {
        *at += len;
    }
    return bl_buf_append(ret, s + from, *at - from, err);
}

static bl_code normalize(points *p, bl_unicode_form form, const char *s, size_t n, bl_buf *ret, bl_err *err) {
    bool compose = form == BL_UNICODE_NFC || form == BL_UNICODE_NFKC;
    uint32_t limit = inert_below(form);
    size_t i = 0;
    while (i < n) {
        size_t inert = inert_prefix(s + i, n - i, limit);
        BL_TRY(bl_buf_append(ret, s + i, inert, err));
        i += inert;
        BL_TRY(take_segment(p, form, s, n, &i, err));
        BL_TRY(flush_segment(p, compose, ret, err));
        BL_TRY(copy_frozen(s, n, &i, ret, err));
    }
    return BL_OK;
}

bl_code bl_unicode_normalize(bl_unicode_form form, const char *s, size_t n, bl_buf *ret, bl_err *err) {
    points p = {0};
    size_t len_before = ret->len;
    bl_code rc = normalize(&p, form, s, n, ret, err);
    if (rc != BL_OK && ret->len > len_before) {
        ret->len = len_before;
        ret->data[len_before] = '\0';
    }
    bl_free(p.cp);
    return rc;
}

bl_code bl_unicode_lower(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = bl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            BL_FAIL(err, BL_EINVAL, "unicode: invalid UTF-8 at byte %zu", i);
        }
        i += len;
        char utf8[4];
        if (cp == 0x130) { /* the only code point whose lower case is two, whatever the language */
            BL_TRY(bl_buf_append(ret, "i\xCC\x87", 3, err));
            continue;
        }
        len = bl_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), utf8);
        BL_TRY(bl_buf_append(ret, utf8, len, err));
    }
    return BL_OK;
}

bool bl_unicode_is_space(uint32_t cp) {
    return (cp >= 0x9 && cp <= 0xD) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

bool bl_unicode_is_word(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_SO: /* Other_Alphabetic: circled and squared letters */
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
               (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
    default:
        return cp == 0x200C || cp == 0x200D;
    }
}
