#include "grammar/json.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "grammar/limits.h"

#define MAX_INDENT 16u
#define MAX_SHORT  1000u /* characters of a counted string that is drawn in full */
#define MAX_DIGITS 18u   /* an integer of so many digits fits in 64 bits, whoever reads it */

static void literal(bl_nfa *a, uint32_t from, uint32_t to, const char *text) {
    bl_nfa_join(a, bl_nfa_bytes(a, from, text, strlen(text)), to);
}

/* ---- space ------------------------------------------------------------------------------------------- */

void bl_gjson_space(bl_gjson *j, uint32_t from, uint32_t to) {
    bl_nfa *a = j->a;
    if (j->space == 0) {
        uint32_t rule = bl_nfa_new_rule(a);
        if (bl_nfa_failed(a)) {
            return;
        }
        uint32_t start = a->rules[rule].start, end = a->rules[rule].end, at = bl_nfa_node(a);
        bl_nfa_join(a, start, end);
        literal(a, start, end, " ");
        bl_nfa_range(a, start, at, '\n', '\n');
        for (uint32_t i = 0; i < MAX_INDENT; i++) {
            uint32_t next = bl_nfa_node(a);
            bl_nfa_join(a, at, end);
            bl_nfa_range(a, at, next, ' ', ' ');
            at = next;
        }
        bl_nfa_join(a, at, end);
        j->space = rule + 1;
    }
    bl_nfa_call(a, from, to, j->space - 1);
}

void bl_gjson_colon(bl_gjson *j, uint32_t from, uint32_t to) {
    uint32_t at = bl_nfa_bytes(j->a, from, ":", 1);
    bl_nfa_join(j->a, at, to);
    literal(j->a, at, to, " ");
}

/* ---- strings ----------------------------------------------------------------------------------------- */

static void hex(bl_nfa *a, uint32_t from, uint32_t to, const char *digits) {
    for (const char *d = digits; *d; d++) {
        bl_nfa_range(a, from, to, (uint8_t)*d, (uint8_t)*d);
    }
}

#define HEX_BUT_0 "123456789abcdefABCDEF"
#define HEX       "0" HEX_BUT_0

/* Behind \u: any UTF-16 but U+0000 and half a pair. */
static void unicode_escape(bl_nfa *a, uint32_t from, uint32_t to) {
    uint32_t one = bl_nfa_node(a), two = bl_nfa_node(a), three = bl_nfa_node(a);
    hex(a, two, three, HEX);
    hex(a, three, to, HEX);
    hex(a, one, two, HEX);
    hex(a, from, one, "123456789abcefABCEF");
    /* 0...: something but zeros behind it */
    uint32_t z1 = bl_nfa_node(a), z2 = bl_nfa_node(a), z3 = bl_nfa_node(a);
    hex(a, from, z1, "0");
    hex(a, z1, two, HEX_BUT_0);
    hex(a, z1, z2, "0");
    hex(a, z2, three, HEX_BUT_0);
    hex(a, z2, z3, "0");
    hex(a, z3, to, HEX_BUT_0);
    /* D0..D7 are characters; D8..DB need DC..DF behind them */
    uint32_t d = bl_nfa_node(a), h1 = bl_nfa_node(a), h2 = bl_nfa_node(a), h3 = bl_nfa_node(a);
    hex(a, from, d, "dD");
    hex(a, d, two, "01234567");
    hex(a, d, h1, "89abAB");
    hex(a, h1, h2, HEX);
    hex(a, h2, h3, HEX);
    uint32_t l1 = bl_nfa_bytes(a, h3, "\\u", 2), l2 = bl_nfa_node(a);
    hex(a, l1, l2, "dD");
    uint32_t l3 = bl_nfa_node(a);
    hex(a, l2, l3, "cdefCDEF");
    hex(a, l3, three, HEX);
}

/* What follows a backslash. */
static void escaped(bl_nfa *a, uint32_t from, uint32_t to) {
    uint32_t u = bl_nfa_node(a);
    hex(a, from, to, "\"\\/bfnrt");
    bl_nfa_range(a, from, u, 'u', 'u');
    unicode_escape(a, u, to);
}

static void plain_character(bl_nfa *a, uint32_t from, uint32_t to) {
    bl_nfa_range(a, from, to, 0x20, '"' - 1);
    bl_nfa_range(a, from, to, '"' + 1, '\\' - 1);
    bl_nfa_range(a, from, to, '\\' + 1, 0x7f);
}

static uint32_t draw_once(bl_gjson *j, uint32_t *rule, void (*draw)(bl_nfa *a, uint32_t from, uint32_t to)) {
    if (*rule == 0) {
        uint32_t r = bl_nfa_new_rule(j->a);
        if (bl_nfa_failed(j->a)) {
            return 0;
        }
        draw(j->a, j->a->rules[r].start, j->a->rules[r].end);
        *rule = r + 1;
    }
    return *rule - 1;
}

static void wide_character(bl_nfa *a, uint32_t from, uint32_t to) {
    bl_nfa_points(a, from, to, 0x80, 0x10ffff);
}

/* A character as cheap in nodes as its place asks for: escapes are a rule everywhere, since few tokens have
 * one; characters beyond ASCII only in long counted strings, since walking through calls is slow. */
static void character(bl_gjson *j, uint32_t from, uint32_t to, bool is_long) {
    plain_character(j->a, from, to);
    bl_nfa_call(j->a, bl_nfa_bytes(j->a, from, "\\", 1), to, draw_once(j, &j->escape, escaped));
    if (is_long) {
        bl_nfa_call(j->a, from, to, draw_once(j, &j->wide, wide_character));
    } else {
        wide_character(j->a, from, to);
    }
}

void bl_gjson_string(bl_gjson *j, uint32_t from, uint32_t to, uint32_t min, uint32_t max) {
    bl_nfa *a = j->a;
    uint32_t at = bl_nfa_bytes(a, from, "\"", 1), end = bl_nfa_node(a);
    uint32_t n = max != UINT32_MAX ? max : min;
    bl_nfa_range(a, end, to, '"', '"');
    for (uint32_t i = 0; i < n && !bl_nfa_failed(a); i++) {
        uint32_t next = bl_nfa_node(a);
        if (i >= min) {
            bl_nfa_join(a, at, end);
        }
        character(j, at, next, n > MAX_SHORT);
        at = next;
    }
    bl_nfa_join(a, at, end);
    if (max == UINT32_MAX) {
        uint32_t loop = bl_nfa_node(a);
        bl_nfa_join(a, at, loop);
        plain_character(a, loop, loop);
        wide_character(a, loop, loop);
        escaped(a, bl_nfa_bytes(a, loop, "\\", 1), loop);
        bl_nfa_join(a, loop, end);
    }
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

/* n to m digits. */
static void digits(bl_nfa *a, uint32_t from, uint32_t to, uint32_t n, uint32_t m) {
    for (uint32_t i = 0; i < m; i++) {
        uint32_t next = bl_nfa_node(a);
        if (i >= n) {
            bl_nfa_join(a, from, to);
        }
        bl_nfa_range(a, from, next, '0', '9');
        from = next;
    }
    bl_nfa_join(a, from, to);
}

/* 0, or up to 18 digits that do not begin with one. */
static void whole(bl_nfa *a, uint32_t from, uint32_t to) {
    uint32_t at = bl_nfa_node(a);
    literal(a, from, to, "0");
    bl_nfa_range(a, from, at, '1', '9');
    digits(a, at, to, 0, MAX_DIGITS - 1);
}

void bl_gjson_number(bl_gjson *j, uint32_t from, uint32_t to, bool negative) {
    bl_nfa *a = j->a;
    uint32_t sign = bl_nfa_node(a), point = bl_nfa_node(a), exponent = bl_nfa_node(a);
    bl_nfa_join(a, from, sign);
    if (negative) {
        literal(a, from, sign, "-");
    }
    whole(a, sign, point);
    bl_nfa_join(a, point, exponent);
    digits(a, bl_nfa_bytes(a, point, ".", 1), exponent, 1, MAX_DIGITS);
    bl_nfa_join(a, exponent, to);
    uint32_t e = bl_nfa_node(a), e_sign = bl_nfa_node(a);
    bl_nfa_range(a, exponent, e, 'e', 'e');
    bl_nfa_range(a, exponent, e, 'E', 'E');
    bl_nfa_join(a, e, e_sign);
    literal(a, e, e_sign, "+");
    literal(a, e, e_sign, "-");
    digits(a, e_sign, to, 1, 2);
}

/* Digit strings between lo and hi, which have the same length n. */
static void between(bl_nfa *a, uint32_t from, uint32_t to, const char *lo, const char *hi, uint32_t n) {
    if (strspn(lo, "0") >= n && strspn(hi, "9") >= n) {
        digits(a, from, to, n, n);
        return;
    }
    if (*lo == *hi) {
        between(a, bl_nfa_bytes(a, from, lo, 1), to, lo + 1, hi + 1, n - 1);
        return;
    }
    between(a, bl_nfa_bytes(a, from, lo, 1), to, lo + 1, "999999999999999999", n - 1);
    between(a, bl_nfa_bytes(a, from, hi, 1), to, "000000000000000000", hi + 1, n - 1);
    if (*lo + 1 < *hi) {
        uint32_t at = bl_nfa_node(a);
        bl_nfa_range(a, from, at, (uint8_t)(*lo + 1), (uint8_t)(*hi - 1));
        digits(a, at, to, n - 1, n - 1);
    }
}

/* lo >= 0. */
static void magnitudes(bl_nfa *a, uint32_t from, uint32_t to, uint64_t lo, uint64_t hi) {
    uint64_t first = 0, last = 9; /* of the numbers with n digits */
    for (uint32_t n = 1; n <= MAX_DIGITS; n++) {
        uint64_t l = BL_MAX(lo, first), h = BL_MIN(hi, last);
        if (l <= h) {
            char lo_text[24], hi_text[24];
            (void)snprintf(lo_text, sizeof lo_text, "%llu", (unsigned long long)l);
            (void)snprintf(hi_text, sizeof hi_text, "%llu", (unsigned long long)h);
            between(a, from, to, lo_text, hi_text, n);
        }
        first = last + 1;
        last = last * 10 + 9;
    }
}

void bl_gjson_integer(bl_gjson *j, uint32_t from, uint32_t to, int64_t lo, int64_t hi) {
    if (hi >= 0) {
        magnitudes(j->a, from, to, (uint64_t)BL_MAX(lo, 0), (uint64_t)hi);
    }
    if (lo < 0) {
        uint32_t at = bl_nfa_bytes(j->a, from, "-", 1);
        magnitudes(j->a, at, to, (uint64_t)-BL_MIN(hi, -1), (uint64_t)-lo);
    }
}

/* ---- anything ---------------------------------------------------------------------------------------- */

static bool is_plain(uint32_t c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Whole characters beyond ASCII whose first byte is not in use. */
static void other_leads(bl_nfa *a, uint32_t at, uint32_t to, const bool used[256]) {
    static const struct {
        uint32_t lo, hi, mark;
    } leads[] = {{0x80, 0x7ff, 0xc0}, {0x800, 0xffff, 0xe0}, {0x10000, 0x10ffff, 0xf0}};
    for (uint32_t k = 0; k < BL_COUNTOF(leads); k++) {
        uint32_t shift = 6 * (k + 1);
        for (uint32_t c = leads[k].lo >> shift; c <= leads[k].hi >> shift; c++) {
            if (!used[leads[k].mark | c]) {
                bl_nfa_points(a, at, to, BL_MAX(c << shift, leads[k].lo),
                              BL_MIN(((c + 1) << shift) - 1, leads[k].hi));
            }
        }
    }
}

/* The texts that are none of names[0..n), which share their first `depth` bytes, as a trie: `at` lies on the
 * path of the names, `rest` off it. A name's characters beyond ASCII are not followed: no key begins as the
 * name does up to there and goes on with the same first byte. */
static void not_a_name(bl_nfa *a, uint32_t at, uint32_t end, uint32_t rest, const char *const *names,
                       size_t n, size_t depth) {
    bool used[256] = {0};
    for (size_t i = 0; i < n; i++) {
        used[(uint8_t)names[i][depth]] = true;
    }
    if (!used[0]) {
        bl_nfa_join(a, at, end);
    }
    for (uint32_t c = 0x20; c < 0x80; c++) {
        if (is_plain(c) && !used[c]) {
            bl_nfa_range(a, at, rest, (uint8_t)c, (uint8_t)c);
        }
    }
    other_leads(a, at, rest, used);
    for (size_t i = 0, to; i < n && !bl_nfa_failed(a); i = to) {
        uint8_t c = (uint8_t)names[i][depth];
        to = i + 1;
        while (to < n && (uint8_t)names[to][depth] == c) {
            to++;
        }
        if (is_plain(c)) {
            uint32_t next = bl_nfa_node(a);
            bl_nfa_range(a, at, next, c, c);
            not_a_name(a, next, end, rest, names + i, to - i, depth + 1);
        }
    }
}

void bl_gjson_key(bl_gjson *j, uint32_t from, uint32_t to, const char *const *names, size_t n_names) {
    bl_nfa *a = j->a;
    if (n_names == 0) {
        bl_gjson_string(j, from, to, 0, UINT32_MAX);
        return;
    }
    uint32_t at = bl_nfa_bytes(a, from, "\"", 1), end = bl_nfa_node(a), rest = bl_nfa_node(a);
    not_a_name(a, at, end, rest, names, n_names, 0);
    plain_character(a, rest, rest);
    wide_character(a, rest, rest);
    bl_nfa_join(a, rest, end);
    bl_nfa_range(a, end, to, '"', '"');
}

static void any_pair(bl_gjson *j, uint32_t from, uint32_t to) {
    uint32_t colon = bl_nfa_node(j->a), value = bl_nfa_node(j->a);
    bl_gjson_key(j, from, colon, NULL, 0);
    bl_gjson_colon(j, colon, value);
    bl_gjson_any(j, value, to);
}

/* Elements between brackets, commas between them, none allowed. */
static void any_list(bl_gjson *j, uint32_t from, uint32_t to, const char *open, unsigned char close,
                     void (*element)(bl_gjson *j, uint32_t from, uint32_t to)) {
    bl_nfa *a = j->a;
    uint32_t first = bl_nfa_node(a), behind = bl_nfa_node(a), next = bl_nfa_node(a), last = bl_nfa_node(a);
    bl_gjson_space(j, bl_nfa_bytes(a, from, open, 1), first);
    bl_nfa_range(a, first, to, close, close);
    element(j, first, behind);
    bl_gjson_space(j, bl_nfa_bytes(a, behind, ",", 1), next);
    element(j, next, behind);
    bl_gjson_space(j, behind, last);
    bl_nfa_range(a, last, to, close, close);
}

void bl_gjson_any_object(bl_gjson *j, uint32_t from, uint32_t to) {
    any_list(j, from, to, "{", '}', any_pair);
}

void bl_gjson_any(bl_gjson *j, uint32_t from, uint32_t to) {
    bl_nfa *a = j->a;
    if (j->any == 0) {
        uint32_t rule = bl_nfa_new_rule(a);
        if (bl_nfa_failed(a)) {
            return;
        }
        j->any = rule + 1; /* before it is drawn: it calls itself */
        uint32_t start = a->rules[rule].start, end = a->rules[rule].end;
        bl_gjson_string(j, start, end, 0, UINT32_MAX);
        bl_gjson_number(j, start, end, true);
        literal(a, start, end, "true");
        literal(a, start, end, "false");
        literal(a, start, end, "null");
        bl_gjson_any_object(j, start, end);
        any_list(j, start, end, "[", ']', bl_gjson_any);
    }
    bl_nfa_call(a, from, to, j->any - 1);
}
