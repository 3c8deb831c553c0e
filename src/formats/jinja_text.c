/* Unicode and text operations as Python's str does them: white space, case, strip, replace, HTML escaping,
 * lines. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "formats/jinja_private.h"
#include "formats/jinja_unicode_tables.h"

bool bl_jn_is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool bl_jn_is_printable(uint32_t cp) {
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

bool bl_jn_is_alpha(uint32_t cp) {
    utf8proc_category_t k = category(cp);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool bl_jn_is_decimal(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool bl_jn_is_digit(uint32_t cp) {
    if (bl_jn_is_decimal(cp)) {
        return true;
    }
    for (size_t i = 0; i < BL_COUNTOF(bl_jn_other_digits); i++) {
        if (cp >= bl_jn_other_digits[i][0] && cp <= bl_jn_other_digits[i][1]) {
            return true;
        }
    }
    return false;
}

/* With the few digits above, letters-as-numbers and fractions; CJK numerals are letters here, not numbers. */
bool bl_jn_is_numeric(uint32_t cp) {
    utf8proc_category_t k = category(cp);
    return bl_jn_is_digit(cp) || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool bl_jn_is_upper(uint32_t cp) {
    return utf8proc_isupper((utf8proc_int32_t)cp) && !bl_jn_is_title(cp);
}
bool bl_jn_is_lower(uint32_t cp) {
    return utf8proc_islower((utf8proc_int32_t)cp) && !bl_jn_is_title(cp);
}
bool bl_jn_is_title(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LT;
}
bool bl_jn_is_cased(uint32_t cp) {
    return bl_jn_is_upper(cp) || bl_jn_is_lower(cp) || bl_jn_is_title(cp);
}

bool bl_jn_is_case_ignorable(uint32_t cp) {
    static const uint32_t mid[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                   0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
    for (size_t i = 0; i < BL_COUNTOF(mid); i++) {
        if (cp == mid[i]) {
            return true;
        }
    }
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

size_t bl_jn_map_case(uint32_t cp, char mode, uint32_t out[3]) {
    utf8proc_int32_t v = (utf8proc_int32_t)cp;
    if (cp < 0x80) {
        bool up = mode == 'u' || mode == 't';
        bool is_lower = cp >= 'a' && cp <= 'z', is_upper = cp >= 'A' && cp <= 'Z';
        out[0] = up && is_lower ? cp - 32 : !up && is_upper ? cp + 32 : cp;
        return 1;
    }
    if (mode == 'f') {
        utf8proc_int32_t buf[4];
        int klass = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(v, buf, 4, UTF8PROC_CASEFOLD, &klass);
        if (n >= 1 && n <= 3) {
            for (utf8proc_ssize_t i = 0; i < n; i++) {
                out[i] = (uint32_t)buf[i];
            }
            return (size_t)n;
        }
        out[0] = cp;
        return 1;
    }
    if (mode == 'l') {
        out[0] = (uint32_t)utf8proc_tolower(v);
        if (cp == 0x130) { /* the one character whose lower case is two */
            out[0] = 'i';
            out[1] = 0x307;
            return 2;
        }
        return 1;
    }
    for (size_t i = 0; i < BL_COUNTOF(bl_jn_special_case); i++) {
        if (bl_jn_special_case[i][0] == cp) {
            const uint32_t *m = &bl_jn_special_case[i][mode == 'u' ? 1 : 4];
            size_t n = 0;
            while (n < 3 && m[n]) {
                out[n] = m[n];
                n++;
            }
            return n;
        }
    }
    out[0] = (uint32_t)(mode == 'u' ? utf8proc_toupper(v) : utf8proc_totitle(v));
    return 1;
}

/* Greek capital sigma at the end of a word becomes the final form (Unicode 3.13, as CPython's
 * handle_capital_sigma). */
static bool is_final_sigma(const bl_jn_str *s, size_t off, size_t len) {
    size_t p = off;
    uint32_t cp = 0;
    bool cased_before = false;
    while (p > 0) {
        size_t k;
        p = bl_jn_cp_before(s, p);
        cp = bl_jn_cp_at(s, p, &k);
        if (!bl_jn_is_case_ignorable(cp)) {
            cased_before = bl_jn_is_cased(cp);
            break;
        }
    }
    if (!cased_before) {
        return false;
    }
    for (p = off + len; p < s->n;) {
        size_t k;
        cp = bl_jn_cp_at(s, p, &k);
        if (!bl_jn_is_case_ignorable(cp)) {
            return !bl_jn_is_cased(cp);
        }
        p += k;
    }
    return true;
}

static char mode_here(char mode, bool first, bool after_cased, uint32_t cp) {
    switch (mode) {
    case 'c':
        return first ? 't' : 'l';
    case 't':
        return after_cased ? 'l' : 't';
    case 's':
        return bl_jn_is_upper(cp) ? 'l' : bl_jn_is_lower(cp) ? 'u' : ' ';
    default:
        return mode;
    }
}

bl_code bl_jn_change_case(bl_jn_ctx *c, bl_jn_str *s, char mode, bl_jn_val *ret) {
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    bool after_cased = false;
    for (size_t i = 0; i < s->n;) {
        size_t len;
        uint32_t cp = bl_jn_cp_at(s, i, &len);
        char m = mode_here(mode, i == 0, after_cased, cp);
        if (m == ' ') {
            BL_TRY(bl_jn_sb_add_sub(c, &sb, s, i, len));
        } else {
            uint32_t out[3];
            size_t n = bl_jn_map_case(cp, m, out);
            if (cp == 0x3A3 && m == 'l' && is_final_sigma(s, i, len)) {
                out[0] = 0x3C2;
            }
            for (size_t k = 0; k < n; k++) {
                char bytes[4];
                size_t nb = bl_utf8_encode(out[k], bytes);
                BL_TRY(bl_jn_sb_add(c, &sb, bytes, nb, bl_jn_origin_at(s, i)));
            }
        }
        after_cased = bl_jn_is_cased(cp);
        i += len;
    }
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    ret->s->markup = s->markup;
    return BL_OK;
}

/* Is the code point one of `chars` (NULL: white space)? */
static bool in_set(const bl_jn_str *chars, uint32_t cp) {
    if (!chars) {
        return bl_jn_is_space(cp);
    }
    for (size_t i = 0; i < chars->n;) {
        size_t len;
        if (bl_jn_cp_at(chars, i, &len) == cp) {
            return true;
        }
        i += len;
    }
    return false;
}

bl_code bl_jn_strip(bl_jn_ctx *c, bl_jn_str *s, const bl_jn_str *chars, bool left, bool right,
                    bl_jn_val *ret) {
    size_t set_cost = chars ? chars->n + 1 : 1;
    size_t start = 0, end = s->n;
    while (left && start < end) {
        size_t len;
        if (!in_set(chars, bl_jn_cp_at(s, start, &len))) {
            break;
        }
        start += len;
        BL_TRY(bl_jn_charge(c, set_cost));
    }
    while (right && end > start) {
        size_t len, p = bl_jn_cp_before(s, end);
        if (!in_set(chars, bl_jn_cp_at(s, p, &len))) {
            break;
        }
        end = p;
        BL_TRY(bl_jn_charge(c, set_cost));
    }
    if (start == 0 && end == s->n) {
        *ret = bl_jn_strval(s);
        return BL_OK;
    }
    return bl_jn_substr(c, s, start, end - start, ret);
}

/* Python's replace of the empty string: `to` goes before every character and at the end. */
static bl_code replace_empty(bl_jn_ctx *c, bl_jn_str *s, const bl_jn_str *to, int64_t count, bl_jn_val *ret) {
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    size_t i = 0;
    while (i < s->n) {
        size_t len;
        (void)bl_jn_cp_at(s, i, &len);
        if (count != 0) {
            BL_TRY(bl_jn_sb_add_str(c, &sb, to));
            count -= count > 0;
        }
        BL_TRY(bl_jn_sb_add_sub(c, &sb, s, i, len));
        i += len;
    }
    if (count != 0) {
        BL_TRY(bl_jn_sb_add_str(c, &sb, to));
    }
    return bl_jn_sb_done(c, &sb, ret);
}

bl_code bl_jn_replace(bl_jn_ctx *c, bl_jn_str *s, const bl_jn_str *from, const bl_jn_str *to, int64_t count,
                      bl_jn_val *ret) {
    BL_TRY(bl_jn_charge(c, s->n));
    if (from->n == 0) {
        return replace_empty(c, s, to, count, ret);
    }
    size_t hit = bl_jn_str_find(s, from, 0);
    if (hit == SIZE_MAX || count == 0) {
        *ret = bl_jn_strval(s);
        return BL_OK;
    }
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    size_t pos = 0;
    while (hit != SIZE_MAX && count != 0) {
        BL_TRY(bl_jn_sb_add_sub(c, &sb, s, pos, hit - pos));
        BL_TRY(bl_jn_sb_add_str(c, &sb, to));
        pos = hit + from->n;
        count -= count > 0;
        BL_TRY(bl_jn_charge(c, 0));
        hit = bl_jn_str_find(s, from, pos);
    }
    BL_TRY(bl_jn_sb_add_sub(c, &sb, s, pos, s->n - pos));
    return bl_jn_sb_done(c, &sb, ret);
}

bl_code bl_jn_escape(bl_jn_ctx *c, bl_jn_str *s, bl_jn_val *ret) {
    if (s->markup) {
        *ret = bl_jn_strval(s);
        return BL_OK;
    }
    bl_jn_sb sb;
    bl_jn_sb_init(&sb);
    size_t pos = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *e = NULL;
        switch (s->p[i]) {
        case '&':
            e = "&amp;";
            break;
        case '<':
            e = "&lt;";
            break;
        case '>':
            e = "&gt;";
            break;
        case '\'':
            e = "&#39;";
            break;
        case '"':
            e = "&#34;";
            break;
        default:
            break;
        }
        if (e) {
            BL_TRY(bl_jn_sb_add_sub(c, &sb, s, pos, i - pos));
            BL_TRY(bl_jn_sb_add(c, &sb, e, strlen(e), bl_jn_origin_at(s, i)));
            pos = i + 1;
        }
    }
    BL_TRY(bl_jn_sb_add_sub(c, &sb, s, pos, s->n - pos));
    BL_TRY(bl_jn_sb_done(c, &sb, ret));
    ret->s->markup = true;
    return BL_OK;
}

/* Bytes of the line break at off (str.splitlines), 0 when there is none. */
static size_t line_break(const bl_jn_str *s, size_t off) {
    size_t len;
    uint32_t cp = bl_jn_cp_at(s, off, &len);
    if (cp == '\r' && off + 1 < s->n && s->p[off + 1] == '\n') {
        return 2;
    }
    bool is_break = (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
                    cp == 0x2029;
    return is_break ? len : 0;
}

bl_code bl_jn_split_lines(bl_jn_ctx *c, bl_jn_str *s, bool keep, bl_jn_val *ret) {
    BL_TRY(bl_jn_charge(c, s->n));
    size_t n_lines = 0;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0, start = 0;
        for (size_t i = 0; i < s->n;) {
            size_t nl = line_break(s, i);
            size_t len;
            (void)bl_jn_cp_at(s, i, &len);
            i += nl > 0 ? nl : len;
            if (nl > 0 || i >= s->n) {
                if (pass == 1) {
                    size_t end = nl > 0 && !keep ? i - nl : i;
                    BL_TRY(bl_jn_substr(c, s, start, end - start, &ret->l->v[at]));
                }
                at++;
                start = i;
            }
        }
        n_lines = at;
        if (pass == 0) {
            BL_TRY(bl_jn_new_list(c, BL_JN_LIST, n_lines, ret));
        }
    }
    return BL_OK;
}
