/* JSON schemas (the part of draft 2020-12 that docs/structured-output.md lists, with draft 7's definitions)
 * -> a drawing. Every subschema that is an object, an array or referred to is a rule of its own, drawn from a
 * list of what is still to do, so that neither a deep nor a recursive schema is a deep recursion here.
 *
 * Keywords are looked up in one table: what is not in it, or cannot be honoured where it stands, is refused
 * with its name and its place.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "grammar/internal.h"
#include "grammar/json.h"
#include "grammar/limits.h"

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_INTEGER = 4,
    T_NUMBER = 8, /* and T_INTEGER with it */
    T_STRING = 16,
    T_OBJECT = 32,
    T_ARRAY = 64
};

/* What a keyword speaks of: one of the types above, or: */
enum { NOTE = 1 << 16, SHAPE = 1 << 17, UNLESS_FALSE = 1 << 18 };

static const struct {
    const char *name;
    uint32_t about;
} keywords[] = {
    {"$schema", NOTE},
    {"$id", NOTE},
    {"$comment", NOTE},
    {"$defs", NOTE},
    {"definitions", NOTE},
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"examples", NOTE},
    {"example", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"$ref", SHAPE},
    {"anyOf", SHAPE},
    {"oneOf", SHAPE},
    {"allOf", SHAPE},
    {"enum", SHAPE},
    {"const", SHAPE},
    {"type", 0},
    {"properties", T_OBJECT},
    {"required", T_OBJECT},
    {"additionalProperties", T_OBJECT},
    {"items", T_ARRAY},
    {"prefixItems", T_ARRAY},
    {"minItems", T_ARRAY},
    {"maxItems", T_ARRAY},
    {"minLength", T_STRING},
    {"maxLength", T_STRING},
    {"pattern", T_STRING},
    {"format", T_STRING},
    {"minimum", T_NUMBER},
    {"maximum", T_NUMBER},
    {"exclusiveMinimum", T_NUMBER},
    {"exclusiveMaximum", T_NUMBER},
    {"uniqueItems", UNLESS_FALSE},
    {"nullable", UNLESS_FALSE},
};

#define MAX_PATH 160

typedef struct {
    const json_t *schema, *root;
    bool strict;
    char *path; /* JSON pointer, cut to fit */
    uint32_t rule, depth;
} part;

typedef struct {
    bl_nfa *a;
    bl_gjson j;
    const json_t *root;
    bool strict;
    part *parts; /* by rule; [0, n_drawn) are drawn */
    uint32_t n_parts, n_drawn, cap_parts;
    char path[MAX_PATH]; /* of what is being drawn */
    uint32_t depth;
} context;

/* ---- failures ---------------------------------------------------------------------------------------- */

static void fail(context *c, bl_code rc, const char *fmt, ...) BL_PRINTF(3, 4);

static void fail(context *c, bl_code rc, const char *fmt, ...) {
    char text[160];
    va_list args;
    if (bl_nfa_failed(c->a)) {
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->a->rc = bl_err_set(&c->a->err, rc, __FILE__, __LINE__, "%s at '#%s'", text, c->path);
}

static void no_support(context *c, const char *keyword, const char *detail) {
    fail(c, BL_ENOTSUP, "the schema's keyword '%.40s' is not supported%s", keyword, detail);
}

/* Goes down to path/key; the returned length takes it back. */
static size_t down(context *c, const char *key) {
    size_t n = strlen(c->path);
    (void)snprintf(c->path + n, sizeof c->path - n, "/%.60s", key);
    return n;
}

static size_t down_index(context *c, size_t i) {
    char text[24];
    (void)snprintf(text, sizeof text, "%zu", i);
    return down(c, text);
}

static void up(context *c, size_t n) {
    c->path[n] = '\0';
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static uint32_t about(const char *keyword) {
    for (size_t i = 0; i < BL_COUNTOF(keywords); i++) {
        if (strcmp(keywords[i].name, keyword) == 0) {
            return keywords[i].about;
        }
    }
    return strncmp(keyword, "x-", 2) == 0 ? NOTE : UINT32_MAX;
}

/* Refuses what is unknown; returns what the others are about. */
static uint32_t check_keywords(context *c, const json_t *s) {
    const char *key;
    json_t *v;
    uint32_t all = 0;
    json_object_foreach((json_t *)(uintptr_t)s, key, v) {
        uint32_t a = about(key);
        if (a == UINT32_MAX || (a == UNLESS_FALSE && !json_is_false(v))) {
            no_support(c, key, "");
            return 0;
        }
        all |= a;
    }
    return all;
}

/* Is there, beside annotations, anything but `keyword` (and `other`, when not NULL)? */
static bool alone(context *c, const json_t *s, const char *keyword, const char *other) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)s, key, v) {
        if (strcmp(key, keyword) != 0 && (!other || strcmp(key, other) != 0) && about(key) != NOTE &&
            about(key) != UNLESS_FALSE) {
            char detail[80];
            (void)snprintf(detail, sizeof detail, " beside '%s'", keyword);
            no_support(c, key, detail);
            return false;
        }
    }
    return true;
}

static uint32_t type_bit(const char *name) {
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN},           {"integer", T_INTEGER},
                 {"string", T_STRING}, {"number", T_NUMBER | T_INTEGER}, {"object", T_OBJECT},
                 {"array", T_ARRAY}};
    for (size_t i = 0; i < BL_COUNTOF(types); i++) {
        if (name && strcmp(types[i].name, name) == 0) {
            return types[i].bit;
        }
    }
    return 0;
}

static uint32_t type_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_NULL:
        return T_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return T_BOOLEAN;
    case JSON_INTEGER:
        return T_INTEGER;
    case JSON_REAL:
        return floor(json_real_value(v)) == json_real_value(v) ? T_INTEGER : T_NUMBER;
    case JSON_STRING:
        return T_STRING;
    case JSON_OBJECT:
        return T_OBJECT;
    default:
        return T_ARRAY;
    }
}

/* The types that `type` names; 0 when there is none, or (failed) a bad one. */
static uint32_t named_types(context *c, const json_t *s) {
    const json_t *v = json_object_get(s, "type");
    uint32_t all = 0;
    if (!v) {
        return 0;
    }
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_is_array(v) ? json_array_get(v, i) : v;
        uint32_t bit = type_bit(json_string_value(t));
        if (bit == 0) {
            fail(c, BL_EINVAL, "the schema's 'type' is none of JSON's");
            return 0;
        }
        all |= bit;
    }
    if (all == 0) {
        fail(c, BL_EINVAL, "the schema's 'type' is empty");
    }
    return all;
}

/* A count: 0 to the largest repetition. *ret stays when absent. */
static void get_count(context *c, const json_t *s, const char *key, uint32_t *ret) {
    const json_t *v = json_object_get(s, key);
    if (!v) {
        return;
    }
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || floor(x) != x) {
        fail(c, BL_EINVAL, "the schema's '%s' is no count", key);
    } else if (x > BL_GRAMMAR_MAX_REPEAT) {
        fail(c, BL_ELIMIT, "the schema's '%s' is %.0f, at most %u are allowed", key, x,
             BL_GRAMMAR_MAX_REPEAT);
    } else {
        *ret = (uint32_t)x;
    }
}

/* ---- references -------------------------------------------------------------------------------------- */

/* One segment of a JSON pointer into out, ~0 and ~1 undone. False: too long, or percent-encoded. */
static bool take_segment(const char **at, char *out, size_t size) {
    size_t n = 0;
    const char *p = *at;
    for (; *p && *p != '/'; p++) {
        char ch = *p;
        if (ch == '~' && (p[1] == '0' || p[1] == '1')) {
            ch = *++p == '0' ? '~' : '/';
        }
        if (n + 1 >= size || ch == '%') {
            return false;
        }
        out[n++] = ch;
    }
    out[n] = '\0';
    *at = p;
    return true;
}

/* NULL when the document holds no such thing. */
static const json_t *resolve(const json_t *root, const char *ref) {
    char name[256];
    const json_t *at = root;
    if (!ref || *ref++ != '#') {
        return NULL;
    }
    while (*ref == '/' && at) {
        ref++;
        if (!take_segment(&ref, name, sizeof name)) {
            return NULL;
        }
        if (json_is_array(at)) {
            size_t i = 0, n = strspn(name, "0123456789");
            for (size_t k = 0; k < n && n < 9; k++) {
                i = i * 10 + (size_t)(name[k] - '0');
            }
            at = n > 0 && n < 9 && name[n] == '\0' ? json_array_get(at, i) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    return *ref == '\0' ? at : NULL;
}

/* The rule of a subschema: a new one is put on the list of what is to be drawn. */
static uint32_t rule_of(context *c, const json_t *s) {
    for (uint32_t i = 0; i < c->n_parts; i++) {
        if (c->parts[i].schema == s) {
            return c->parts[i].rule;
        }
    }
    c->a->n_steps += c->n_parts;
    if (c->depth + 1 > BL_GRAMMAR_MAX_NESTING) {
        fail(c, BL_ELIMIT, "the schema nests deeper than %u", BL_GRAMMAR_MAX_NESTING);
        return 0;
    }
    if (c->n_parts >= c->cap_parts) {
        uint32_t cap = BL_MAX(64u, 2 * c->cap_parts);
        part *p = bl_realloc(c->parts, cap * sizeof *p);
        if (!p) {
            fail(c, BL_ENOMEM, "out of memory for a schema");
            return 0;
        }
        c->parts = p;
        c->cap_parts = cap;
    }
    uint32_t rule = bl_nfa_new_rule(c->a);
    char *path = bl_strdup(c->path);
    if (!path) {
        fail(c, BL_ENOMEM, "out of memory for a schema");
        return 0;
    }
    c->parts[c->n_parts++] = (part){s, c->root, c->strict, path, rule, c->depth + 1};
    return rule;
}

static void call_schema(context *c, const json_t *s, uint32_t from, uint32_t to) {
    uint32_t rule = rule_of(c, s);
    bl_nfa_call(c->a, from, to, rule);
}

/* A reference's target is drawn as if it stood at the document's top: it may be reached from many depths. */
static void draw_ref(context *c, const json_t *s, uint32_t from, uint32_t to) {
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    const json_t *target = resolve(c->root, ref);
    if (!alone(c, s, "$ref", NULL)) {
        return;
    }
    if (!target || !(json_is_object(target) || json_is_boolean(target))) {
        fail(c, BL_ENOTSUP, "the schema's '$ref' does not lead to a schema of the same document");
        return;
    }
    char path[MAX_PATH];
    uint32_t depth = c->depth;
    memcpy(path, c->path, sizeof path);
    (void)snprintf(c->path, sizeof c->path, "%s", ref + 1);
    c->depth = 0;
    call_schema(c, target, from, to);
    c->depth = depth;
    memcpy(c->path, path, sizeof path);
}

/* ---- one of several ---------------------------------------------------------------------------------- */

static const json_t *follow(const context *c, const json_t *s) {
    for (int i = 0; i < 16 && json_is_object(s) && json_object_get(s, "$ref"); i++) {
        s = resolve(c->root, json_string_value(json_object_get(s, "$ref")));
    }
    return s;
}

/* The i-th of the values that the schema lists; NULL behind the last, or when it lists none. */
static const json_t *listed(const json_t *s, size_t i) {
    const json_t *one = json_object_get(s, "const"), *some = json_object_get(s, "enum");
    return one ? (i == 0 ? one : NULL) : json_array_get(some, i);
}

static uint32_t possible_types(context *c, const json_t *s) {
    uint32_t all = 0;
    for (size_t i = 0; listed(s, i); i++) {
        all |= type_of_value(listed(s, i));
    }
    all = all ? all : named_types(c, s);
    return all ? all : UINT32_MAX;
}

static bool lists_differ(const json_t *a, const json_t *b) {
    for (size_t i = 0; listed(a, i); i++) {
        for (size_t k = 0; listed(b, k); k++) {
            if (json_equal(listed(a, i), listed(b, k))) {
                return false;
            }
        }
    }
    return listed(a, 0) && listed(b, 0);
}

static bool requires(const json_t *s, const char *name) {
    const json_t *v = json_object_get(s, "required");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *x = json_string_value(json_array_get(v, i));
        if (x && strcmp(x, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Can no value satisfy both? Only what is plain to see: types, listed values, a property that tells. */
static bool exclude_each_other(context *c, const json_t *a, const json_t *b) {
    a = follow(c, a);
    b = follow(c, b);
    if (!json_is_object(a) || !json_is_object(b)) {
        return false;
    }
    if ((possible_types(c, a) & possible_types(c, b)) == 0 || lists_differ(a, b)) {
        return true;
    }
    const char *name;
    json_t *x;
    if (possible_types(c, a) != T_OBJECT || possible_types(c, b) != T_OBJECT) {
        return false;
    }
    json_object_foreach(json_object_get(a, "properties"), name, x) {
        const json_t *y = json_object_get(json_object_get(b, "properties"), name);
        if (y && requires(a, name) && requires(b, name) && lists_differ(follow(c, x), follow(c, y))) {
            return true;
        }
    }
    return false;
}

static void draw_value(context *c, const json_t *s, uint32_t from, uint32_t to);

static void draw_alternatives(context *c, const json_t *s, const char *key, uint32_t from, uint32_t to) {
    const json_t *all = json_object_get(s, key);
    size_t n = json_array_size(all);
    if (!alone(c, s, key, NULL)) {
        return;
    }
    if (n == 0 || (strcmp(key, "allOf") == 0 && n != 1)) {
        no_support(c, key, n == 0 ? " without schemas" : " of more than one schema");
        return;
    }
    for (size_t i = 0; i < n && strcmp(key, "oneOf") == 0; i++) {
        for (size_t k = 0; k < i; k++) {
            c->a->n_steps += 16;
            if (!exclude_each_other(c, json_array_get(all, i), json_array_get(all, k))) {
                no_support(c, key, " where more than one of its schemas could hold; use anyOf");
                return;
            }
        }
    }
    size_t outer = down(c, key);
    for (size_t i = 0; i < n && !bl_nfa_failed(c->a); i++) {
        size_t inner = down_index(c, i);
        draw_value(c, json_array_get(all, i), from, to);
        up(c, inner);
    }
    up(c, outer);
}

/* Exactly these bytes: the value as compact JSON. */
static void draw_literal(context *c, const json_t *v, uint32_t from, uint32_t to) {
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT;
    size_t n = json_dumpb(v, NULL, 0, flags);
    char *text = n > 0 ? bl_alloc(n) : NULL;
    if (!text || json_dumpb(v, text, n, flags) != n) {
        fail(c, BL_ENOMEM, "out of memory for a schema");
    } else {
        bl_nfa_join(c->a, bl_nfa_bytes(c->a, from, text, n), to);
    }
    bl_free(text);
}

static void draw_list(context *c, const json_t *s, uint32_t from, uint32_t to) {
    const char *key = json_object_get(s, "const") ? "const" : "enum";
    uint32_t types = named_types(c, s), n = 0;
    if (!alone(c, s, key, "type")) {
        return;
    }
    for (size_t i = 0; listed(s, i) && !bl_nfa_failed(c->a); i++) {
        if (types == 0 || (types & type_of_value(listed(s, i))) != 0) {
            draw_literal(c, listed(s, i), from, to);
            n++;
        }
    }
    if (n == 0) {
        fail(c, BL_EINVAL, "the schema's '%s' allows no value", key);
    }
}

/* ---- strings and numbers ----------------------------------------------------------------------------- */

#define DAYS_31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define DAYS_30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define LEAP    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
#define DATE    "([0-9]{4}-(" DAYS_31 "|" DAYS_30 "|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP ")"
#define HOUR    "([01][0-9]|2[0-3])"
#define TIME    HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]" HOUR ":[0-5][0-9])"
#define BYTE_10 "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL   "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,64}(\\.[A-Za-z0-9_+-]{1,64}){0,3}@" LABEL "(\\." LABEL "){1,3}$"},
    {"ipv4", "^(" BYTE_10 "\\.){3}" BYTE_10 "$"},
};

static void draw_pattern(context *c, const char *pattern, size_t n, uint32_t from, uint32_t to) {
    uint32_t end = bl_nfa_node(c->a);
    bl_regex_draw(c->a, bl_nfa_bytes(c->a, from, "\"", 1), end, pattern, n, true);
    bl_nfa_range(c->a, end, to, '"', '"');
}

static void draw_string(context *c, const json_t *s, uint32_t from, uint32_t to) {
    const json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    const bool counted = json_object_get(s, "minLength") || json_object_get(s, "maxLength");
    uint32_t min = 0, max = UINT32_MAX;
    get_count(c, s, "minLength", &min);
    get_count(c, s, "maxLength", &max);
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format))) {
        fail(c, BL_EINVAL, "the schema's 'pattern' or 'format' is no string");
    } else if (pattern && (format || counted)) {
        no_support(c, format ? "format" : "minLength or maxLength", " beside 'pattern'");
    } else if (format && counted) {
        no_support(c, "format", " beside 'minLength' or 'maxLength'");
    } else if (min > max) {
        fail(c, BL_EINVAL, "the schema's minLength %u is above its maxLength %u", min, max);
    } else if (pattern) {
        size_t outer = down(c, "pattern");
        draw_pattern(c, json_string_value(pattern), json_string_length(pattern), from, to);
        up(c, outer);
    } else if (format) {
        for (size_t i = 0; i < BL_COUNTOF(formats); i++) {
            if (strcmp(formats[i].name, json_string_value(format)) == 0) {
                draw_pattern(c, formats[i].pattern, strlen(formats[i].pattern), from, to);
                return;
            }
        }
        fail(c, BL_ENOTSUP, "the schema's format '%.40s' is not supported", json_string_value(format));
    } else {
        bl_gjson_string(&c->j, from, to, min, max);
    }
}

/* A bound of integers; one beyond what can be written is the largest that can. */
static void get_bound(context *c, const json_t *s, const char *key, const char *exclusive, int sign,
                      int64_t *ret) {
    const char *keys[2] = {key, exclusive};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(s, keys[i]);
        if (!v) {
            continue;
        }
        if (!json_is_number(v)) {
            fail(c, BL_EINVAL, "the schema's '%s' is no number", keys[i]);
            return;
        }
        int64_t x = json_integer_value(v);
        bool exact = json_is_integer(v);
        if (!exact) {
            double d = sign > 0 ? ceil(json_real_value(v)) : floor(json_real_value(v));
            exact = d == json_real_value(v);
            x = d > 1e18 ? INT64_MAX : d < -1e18 ? INT64_MIN : (int64_t)d;
        }
        x = BL_MIN(BL_MAX(x, -BL_GJSON_MAX_INTEGER - 1), BL_GJSON_MAX_INTEGER + 1);
        x += i == 1 && exact ? sign : 0;
        *ret = sign > 0 ? BL_MAX(*ret, x) : BL_MIN(*ret, x);
    }
}

static void draw_integer(context *c, const json_t *s, uint32_t from, uint32_t to) {
    int64_t lo = -BL_GJSON_MAX_INTEGER, hi = BL_GJSON_MAX_INTEGER;
    get_bound(c, s, "minimum", "exclusiveMinimum", 1, &lo);
    get_bound(c, s, "maximum", "exclusiveMaximum", -1, &hi);
    if (lo > hi) {
        fail(c, BL_EINVAL, "no integer of at most 18 digits satisfies the schema's minimum and maximum");
        return;
    }
    bl_gjson_integer(&c->j, from, to, lo, hi);
}

static void draw_number(context *c, const json_t *s, uint32_t from, uint32_t to) {
    static const char *const bounds[] = {"maximum", "exclusiveMinimum", "exclusiveMaximum"};
    const json_t *min = json_object_get(s, "minimum");
    for (size_t i = 0; i < BL_COUNTOF(bounds); i++) {
        if (json_object_get(s, bounds[i])) {
            no_support(c, bounds[i], " for numbers that are no integers");
            return;
        }
    }
    if (min && !(json_is_number(min) && json_number_value(min) == 0.0)) {
        no_support(c, "minimum", " for numbers that are no integers, unless it is 0");
        return;
    }
    bl_gjson_number(&c->j, from, to, !min);
}

/* ---- arrays ------------------------------------------------------------------------------------------ */

/* Item i from a node to another. */
static void draw_item(context *c, const json_t *s, size_t i, bool repeated, uint32_t from, uint32_t to) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    const bool in_prefix = i < json_array_size(prefix);
    size_t outer = down(c, in_prefix ? "prefixItems" : "items"), inner = strlen(c->path);
    if (in_prefix) {
        inner = down_index(c, i);
        items = json_array_get(prefix, i);
    }
    if (!items || json_is_true(items)) {
        bl_gjson_any(&c->j, from, to);
    } else if (repeated || in_prefix) {
        draw_value(c, items, from, to);
    } else {
        call_schema(c, items, from, to); /* many copies: each is one node then */
    }
    up(c, inner);
    up(c, outer);
}

static void draw_array(context *c, const json_t *s, uint32_t from, uint32_t to) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    bl_nfa *a = c->a;
    uint32_t min = 0, max = UINT32_MAX, n_prefix = (uint32_t)json_array_size(prefix);
    get_count(c, s, "minItems", &min);
    get_count(c, s, "maxItems", &max);
    if ((prefix && !json_is_array(prefix)) || json_is_array(items)) {
        fail(c, BL_ENOTSUP, "the schema's 'items' is an array; use prefixItems");
        return;
    }
    max = json_is_false(items) ? BL_MIN(max, n_prefix) : max;
    if (min > max) {
        fail(c, BL_EINVAL, "the schema wants at least %u items and allows %u", min, max);
        return;
    }
    uint32_t at = bl_nfa_node(a), last = bl_nfa_node(a), close = bl_nfa_node(a), n_single;
    bl_gjson_space(&c->j, bl_nfa_bytes(a, from, "[", 1), at);
    bl_gjson_space(&c->j, last, close);
    bl_nfa_range(a, close, to, ']', ']');
    if (min == 0) {
        bl_nfa_range(a, at, to, ']', ']');
    }
    n_single = max != UINT32_MAX ? max : BL_MAX(n_prefix, min);
    for (uint32_t i = 0; i < n_single && !bl_nfa_failed(a); i++) {
        uint32_t behind = bl_nfa_node(a), next = bl_nfa_node(a);
        draw_item(c, s, i, false, at, behind);
        if (i + 1 >= min) {
            bl_nfa_join(a, behind, last);
        }
        if (i + 1 < n_single || max == UINT32_MAX) {
            bl_gjson_space(&c->j, bl_nfa_bytes(a, behind, ",", 1), next);
        }
        at = next;
    }
    if (max == UINT32_MAX) {
        uint32_t behind = bl_nfa_node(a), next = bl_nfa_node(a), first = bl_nfa_node(a);
        bl_nfa_join(a, at, first);
        bl_nfa_join(a, next, first);
        draw_item(c, s, n_single, true, first, behind);
        bl_nfa_join(a, behind, last);
        bl_gjson_space(&c->j, bl_nfa_bytes(a, behind, ",", 1), next);
    }
}

/* ---- objects ----------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    const json_t *schema; /* NULL: any */
    bool required;
} property;

typedef struct {
    property *p; /* in the schema's order */
    const char **names;
    size_t n, cap;
    const json_t *more; /* schema of other properties; NULL: none are allowed */
} members;

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_member(context *c, members *m, const char *name, const json_t *schema, bool required) {
    if (m->n >= m->cap) {
        fail(c, BL_ELIMIT, "the schema's object has more than %zu properties", m->cap);
        return;
    }
    m->names[m->n] = name;
    m->p[m->n++] = (property){name, schema, required};
}

static void collect_members(context *c, const json_t *s, members *m) {
    const json_t *props = json_object_get(s, "properties"), *required = json_object_get(s, "required");
    const json_t *more = json_object_get(s, "additionalProperties");
    const char *name;
    json_t *v;
    if ((props && !json_is_object(props)) || (required && !json_is_array(required)) ||
        (more && !json_is_object(more) && !json_is_boolean(more))) {
        fail(c, BL_EINVAL,
             "the schema's 'properties', 'required' or 'additionalProperties' has a wrong type");
        return;
    }
    bool allowed = more ? !json_is_false(more) : !c->strict;
    m->more = !allowed ? NULL : more ? more : json_true();
    json_object_foreach((json_t *)(uintptr_t)props, name, v) {
        if (strlen(name) > 256) {
            fail(c, BL_ELIMIT, "a property's name has %zu bytes, at most 256 are allowed", strlen(name));
            return;
        }
        c->a->n_steps += json_array_size(required);
        add_member(c, m, name, v, requires(s, name));
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        name = json_string_value(json_array_get(required, i));
        if (!name || strlen(name) > 256) {
            fail(c, BL_EINVAL, "the schema's 'required' holds something that is no name");
        } else if (!json_object_get(props, name)) {
            if (!allowed) {
                fail(c, BL_EINVAL, "the schema requires a property that it does not allow");
                return;
            }
            add_member(c, m, name, more, true);
        }
    }
    qsort(m->names, m->n, sizeof *m->names, by_name);
}

static void draw_member(context *c, const property *p, uint32_t from, uint32_t to) {
    uint32_t colon = bl_nfa_node(c->a), value = bl_nfa_node(c->a);
    json_t *name = json_string(p->name);
    if (!name) {
        fail(c, BL_ENOMEM, "out of memory for a schema");
        return;
    }
    draw_literal(c, name, from, colon);
    json_decref(name);
    bl_gjson_colon(&c->j, colon, value);
    size_t outer = down(c, "properties"), inner = down(c, p->name);
    if (p->schema) {
        draw_value(c, p->schema, value, to);
    } else {
        bl_gjson_any(&c->j, value, to);
    }
    up(c, inner);
    up(c, outer);
}

/* For each property i two nodes: `must`, where a comma (or nothing, before the first member) asks for one of
 * the properties from i on, and `some`, behind a member that stands before it. */
static void draw_members(context *c, const members *m, uint32_t open, uint32_t close, uint32_t last) {
    bl_nfa *a = c->a;
    uint32_t must = bl_nfa_node(a), some = 0;
    bool may_be_empty = true;
    bl_nfa_join(a, open, must);
    for (size_t i = 0; i < m->n; i++) {
        may_be_empty = may_be_empty && !m->p[i].required;
    }
    if (may_be_empty) {
        bl_nfa_join(a, open, close);
    }
    size_t n_required = 0;
    for (size_t i = 0; i < m->n; i++) {
        n_required += m->p[i].required;
    }
    for (size_t i = 0; i <= m->n && !bl_nfa_failed(a); i++) {
        if (i > 0) { /* behind property i - 1: a comma, or the end when nothing is owed */
            bl_gjson_space(&c->j, bl_nfa_bytes(a, some, ",", 1), must);
            if (n_required == 0) {
                bl_nfa_join(a, some, last);
            }
        }
        if (i == m->n) {
            break;
        }
        uint32_t behind = bl_nfa_node(a), next = bl_nfa_node(a);
        if (!json_is_false(m->p[i].schema)) {
            draw_member(c, &m->p[i], must, behind);
        }
        if (!m->p[i].required) {
            bl_nfa_join(a, must, next);
        }
        n_required -= m->p[i].required;
        must = next;
        some = behind;
    }
    if (m->more) {
        uint32_t colon = bl_nfa_node(a), value = bl_nfa_node(a), behind = bl_nfa_node(a);
        bl_gjson_key(&c->j, must, colon, m->names, m->n);
        bl_gjson_colon(&c->j, colon, value);
        size_t outer = down(c, "additionalProperties");
        draw_value(c, m->more, value, behind);
        up(c, outer);
        bl_nfa_join(a, behind, last);
        bl_gjson_space(&c->j, bl_nfa_bytes(a, behind, ",", 1), must);
    }
}

static void draw_object(context *c, const json_t *s, uint32_t from, uint32_t to) {
    bl_nfa *a = c->a;
    members m = {.cap = BL_GRAMMAR_MAX_NAMES};
    m.p = bl_alloc_array(m.cap, sizeof *m.p);
    m.names = bl_alloc_array(m.cap, sizeof *m.names);
    if (!m.p || !m.names) {
        fail(c, BL_ENOMEM, "out of memory for a schema");
    } else {
        collect_members(c, s, &m);
        uint32_t open = bl_nfa_node(a), close = bl_nfa_node(a), last = bl_nfa_node(a);
        bl_gjson_space(&c->j, bl_nfa_bytes(a, from, "{", 1), open);
        bl_gjson_space(&c->j, last, close);
        bl_nfa_range(a, close, to, '}', '}');
        draw_members(c, &m, open, close, last);
    }
    bl_free(m.p);
    bl_free(m.names);
}

/* ---- values ------------------------------------------------------------------------------------------ */

static void draw_types(context *c, const json_t *s, uint32_t keys, uint32_t from, uint32_t to) {
    uint32_t types = named_types(c, s);
    if (types == 0) { /* what the keywords speak of */
        types = keys & (T_OBJECT | T_ARRAY | T_STRING | T_NUMBER);
        types |= types & T_NUMBER ? T_INTEGER : 0;
    }
    if (types == 0) {
        bl_gjson_any(&c->j, from, to);
        return;
    }
    if (types & T_NULL) {
        bl_nfa_join(c->a, bl_nfa_bytes(c->a, from, "null", 4), to);
    }
    if (types & T_BOOLEAN) {
        bl_nfa_join(c->a, bl_nfa_bytes(c->a, from, "true", 4), to);
        bl_nfa_join(c->a, bl_nfa_bytes(c->a, from, "false", 5), to);
    }
    if (types & T_NUMBER) {
        draw_number(c, s, from, to);
    } else if (types & T_INTEGER) {
        draw_integer(c, s, from, to);
    }
    if (types & T_STRING) {
        draw_string(c, s, from, to);
    }
    if (types & T_ARRAY) {
        draw_array(c, s, from, to);
    }
    if (types & T_OBJECT) {
        draw_object(c, s, from, to);
    }
}

/* The body of a rule, or a value that needs none. */
static void draw_body(context *c, const json_t *s, uint32_t from, uint32_t to) {
    if (json_is_true(s)) {
        bl_gjson_any(&c->j, from, to);
        return;
    }
    if (!json_is_object(s)) {
        fail(c, BL_EINVAL, json_is_false(s) ? "the schema allows nothing" : "a schema is no object");
        return;
    }
    uint32_t keys = check_keywords(c, s);
    if (bl_nfa_failed(c->a)) {
        return;
    }
    if (json_object_get(s, "$ref")) {
        draw_ref(c, s, from, to);
    } else if (json_object_get(s, "anyOf")) {
        draw_alternatives(c, s, "anyOf", from, to);
    } else if (json_object_get(s, "oneOf")) {
        draw_alternatives(c, s, "oneOf", from, to);
    } else if (json_object_get(s, "allOf")) {
        draw_alternatives(c, s, "allOf", from, to);
    } else if (listed(s, 0) || json_object_get(s, "enum")) {
        draw_list(c, s, from, to);
    } else {
        draw_types(c, s, keys, from, to);
    }
}

/* Objects and arrays, and what is too deep to stand inline, are rules. */
static void draw_value(context *c, const json_t *s, uint32_t from, uint32_t to) {
    if (bl_nfa_failed(c->a)) {
        return;
    }
    if (json_is_object(s) && json_object_get(s, "$ref")) {
        (void)check_keywords(c, s);
        draw_ref(c, s, from, to);
        return;
    }
    bool scalar = json_is_object(s) && !json_object_get(s, "anyOf") && !json_object_get(s, "oneOf") &&
                  !json_object_get(s, "allOf");
    if (scalar && !listed(s, 0)) {
        const uint32_t nests = T_OBJECT | T_ARRAY;
        uint32_t types = named_types(c, s), keys = check_keywords(c, s);
        scalar = ((types ? types : keys) & nests) == 0;
    }
    if (scalar || json_is_boolean(s)) {
        draw_body(c, s, from, to);
    } else {
        call_schema(c, s, from, to);
    }
}

static void draw_parts(context *c) {
    while (c->n_drawn < c->n_parts && !bl_nfa_failed(c->a)) {
        part p = c->parts[c->n_drawn++];
        (void)snprintf(c->path, sizeof c->path, "%s", p.path);
        c->depth = p.depth;
        c->root = p.root;
        c->strict = p.strict;
        draw_body(c, p.schema, c->a->rules[p.rule].start, c->a->rules[p.rule].end);
        if (c->a->n_steps > BL_GRAMMAR_MAX_STEPS) {
            fail(c, BL_ELIMIT, "the schema takes more than %u steps to read", BL_GRAMMAR_MAX_STEPS);
        }
    }
}

static bl_code check_size(const json_t *schema, bl_err *err) {
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        BL_FAIL(err, BL_EINVAL, "the schema is no object");
    }
    size_t n = json_dumpb(schema, NULL, 0, JSON_ENCODE_ANY | JSON_COMPACT);
    if (n > BL_GRAMMAR_MAX_SCHEMA) {
        BL_FAIL(err, BL_ELIMIT, "the schema has %zu bytes, at most %zu are allowed", n,
                BL_GRAMMAR_MAX_SCHEMA);
    }
    return BL_OK;
}

/* Draws what is left, compiles, frees. */
static bl_code finish(context *c, uint32_t root, bl_grammar **ret, bl_err *err) {
    draw_parts(c);
    bl_code rc = bl_grammar_compile(c->a, root, ret, err);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        bl_free(c->parts[i].path);
    }
    bl_free(c->parts);
    bl_nfa_done(c->a);
    return rc;
}

bl_code bl_grammar_from_json_schema(const json_t *schema, bool strict, bl_grammar **ret, bl_err *err) {
    bl_nfa a;
    BL_TRY(check_size(schema, err));
    bl_nfa_init(&a);
    context c = {.a = &a, .j = {.a = &a}, .root = schema, .strict = strict};
    uint32_t root = rule_of(&c, schema);
    return finish(&c, root, ret, err);
}

static void draw_key(context *c, const char *key, uint32_t from, uint32_t to) {
    bl_gjson_colon(&c->j, bl_nfa_bytes(c->a, from, key, strlen(key)), to);
}

static void draw_call(context *c, const bl_grammar_call *call, uint32_t from, uint32_t to) {
    bl_nfa *a = c->a;
    json_t *name = json_string(call->name);
    uint32_t at[7];
    for (size_t i = 0; i < BL_COUNTOF(at); i++) {
        at[i] = bl_nfa_node(a);
    }
    bl_gjson_space(&c->j, bl_nfa_bytes(a, from, "{", 1), at[0]);
    draw_key(c, "\"name\"", at[0], at[1]);
    if (name) {
        draw_literal(c, name, at[1], at[2]);
        json_decref(name);
    } else {
        fail(c, BL_ENOMEM, "out of memory for a schema");
    }
    bl_gjson_space(&c->j, bl_nfa_bytes(a, at[2], ",", 1), at[3]);
    draw_key(c, "\"arguments\"", at[3], at[4]);
    if (call->parameters) {
        c->root = call->parameters;
        c->strict = call->strict;
        call_schema(c, call->parameters, at[4], at[5]);
    } else {
        bl_gjson_any_object(&c->j, at[4], at[5]);
    }
    bl_gjson_space(&c->j, at[5], at[6]);
    bl_nfa_range(a, at[6], to, '}', '}');
}

bl_code bl_grammar_from_calls(const bl_grammar_call *calls, size_t n, const char *end, bl_grammar **ret,
                              bl_err *err) {
    bl_nfa a;
    for (size_t i = 0; i < n; i++) {
        if (calls[i].parameters) {
            BL_TRY(check_size(calls[i].parameters, err));
        }
    }
    bl_nfa_init(&a);
    context c = {.a = &a, .j = {.a = &a}};
    uint32_t root = bl_nfa_new_rule(&a);
    if (!bl_nfa_failed(&a)) {
        uint32_t from = bl_nfa_node(&a), to = bl_nfa_node(&a), last = bl_nfa_node(&a);
        bl_gjson_space(&c.j, a.rules[root].start, from);
        for (size_t i = 0; i < n; i++) {
            (void)snprintf(c.path, sizeof c.path, "/tools/%zu/function/parameters", i);
            draw_call(&c, &calls[i], from, to);
        }
        bl_gjson_space(&c.j, to, last);
        bl_nfa_join(&a, bl_nfa_bytes(&a, last, end, strlen(end)), a.rules[root].end);
    }
    return finish(&c, root, ret, err);
}

bl_code bl_grammar_any_json(bl_grammar **ret, bl_err *err) {
    bl_nfa a;
    bl_nfa_init(&a);
    bl_gjson j = {.a = &a};
    uint32_t root = bl_nfa_new_rule(&a);
    if (!bl_nfa_failed(&a)) {
        bl_gjson_any_object(&j, a.rules[root].start, a.rules[root].end);
    }
    bl_code rc = bl_grammar_compile(&a, root, ret, err);
    bl_nfa_done(&a);
    return rc;
}
