/* JSON schemas: random walks end in texts that a small validator accepts, every beginning of a good text is
 * one, bad texts are refused; what is not supported is refused by keyword and place.
 */
#include "cmocka_all.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/json.h"
#include "grammar_walk.h"

/* ---- a validator: recursive, slow, its own reading of the specification ------------------------------- */

static const json_t *root_schema;
static bool is_strict;

static const json_t *at(const json_t *s, const char *key) {
    return json_object_get(s, key);
}

static size_t n_chars(const char *s) {
    size_t n = 0;
    for (; *s; s++) {
        n += ((uint8_t)*s & 0xc0) != 0x80;
    }
    return n;
}

static bool found(const char *pattern, const char *text) {
    int code;
    size_t off;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &off, NULL);
    assert_non_null(c);
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(c, NULL);
    int rc = pcre2_match(c, (PCRE2_SPTR)text, strlen(text), 0, 0, m, NULL);
    pcre2_match_data_free(m);
    pcre2_code_free(c);
    return rc >= 0;
}

static bool valid_date(const char *t) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y = 0, m = 0, d = 0, n = 0;
    if (sscanf(t, "%4d-%2d-%2d%n", &y, &m, &d, &n) != 3 || n != 10 || m < 1 || m > 12) {
        return false;
    }
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return d >= 1 && d <= days[m - 1] + (m == 2 && leap);
}

static bool valid_format(const char *format, const char *t) {
    if (strcmp(format, "date") == 0) {
        return valid_date(t) && strlen(t) == 10;
    }
    if (strcmp(format, "date-time") == 0) {
        return valid_date(t) && t[10] == 'T' && valid_format("time", t + 11);
    }
    if (strcmp(format, "time") == 0) {
        int h, m, s;
        return sscanf(t, "%2d:%2d:%2d", &h, &m, &s) == 3 && h < 24 && m < 60 && s < 60 &&
               found("^..:..:..(\\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$", t);
    }
    if (strcmp(format, "uuid") == 0) {
        return found("^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$", t);
    }
    if (strcmp(format, "ipv4") == 0) {
        unsigned p[4];
        return sscanf(t, "%3u.%3u.%3u.%3u", &p[0], &p[1], &p[2], &p[3]) == 4 && p[0] < 256 && p[1] < 256 &&
               p[2] < 256 && p[3] < 256;
    }
    return strcmp(format, "email") == 0 && found("^[^@]+@[^@.]+(\\.[^@.]+)+$", t);
}

static bool has_type(const char *type, const json_t *v) {
    bool whole = json_is_integer(v) || (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v));
    return (strcmp(type, "null") == 0 && json_is_null(v)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(v)) || (strcmp(type, "integer") == 0 && whole) ||
           (strcmp(type, "number") == 0 && json_is_number(v)) ||
           (strcmp(type, "string") == 0 && json_is_string(v)) ||
           (strcmp(type, "object") == 0 && json_is_object(v)) ||
           (strcmp(type, "array") == 0 && json_is_array(v));
}

static bool valid(const json_t *s, const json_t *v);

static bool valid_types(const json_t *s, const json_t *v) {
    const json_t *t = at(s, "type");
    bool ok = !t || (json_is_string(t) && has_type(json_string_value(t), v));
    for (size_t i = 0; i < json_array_size(t); i++) {
        ok = ok || has_type(json_string_value(json_array_get(t, i)), v);
    }
    return ok;
}

static bool valid_string(const json_t *s, const char *t) {
    return (!at(s, "minLength") || n_chars(t) >= (size_t)json_integer_value(at(s, "minLength"))) &&
           (!at(s, "maxLength") || n_chars(t) <= (size_t)json_integer_value(at(s, "maxLength"))) &&
           (!at(s, "pattern") || found(json_string_value(at(s, "pattern")), t)) &&
           (!at(s, "format") || valid_format(json_string_value(at(s, "format")), t));
}

static bool valid_number(const json_t *s, double x) {
    return (!at(s, "minimum") || x >= json_number_value(at(s, "minimum"))) &&
           (!at(s, "maximum") || x <= json_number_value(at(s, "maximum"))) &&
           (!at(s, "exclusiveMinimum") || x > json_number_value(at(s, "exclusiveMinimum"))) &&
           (!at(s, "exclusiveMaximum") || x < json_number_value(at(s, "exclusiveMaximum")));
}

static bool valid_array(const json_t *s, const json_t *v) {
    size_t n = json_array_size(v), n_prefix = json_array_size(at(s, "prefixItems"));
    bool ok = (!at(s, "minItems") || n >= (size_t)json_integer_value(at(s, "minItems"))) &&
              (!at(s, "maxItems") || n <= (size_t)json_integer_value(at(s, "maxItems")));
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *item = i < n_prefix ? json_array_get(at(s, "prefixItems"), i) : at(s, "items");
        ok = !item || valid(item, json_array_get(v, i));
    }
    return ok;
}

static bool valid_object(const json_t *s, const json_t *v) {
    const char *key;
    json_t *x;
    const json_t *more = at(s, "additionalProperties");
    for (size_t i = 0; i < json_array_size(at(s, "required")); i++) {
        if (!at(v, json_string_value(json_array_get(at(s, "required"), i)))) {
            return false;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        const json_t *p = at(at(s, "properties"), key);
        bool ok = p      ? valid(p, x)
                  : more ? valid(more, x)
                         : !is_strict || !(at(s, "type") || at(s, "properties"));
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool valid_shape(const json_t *s, const json_t *v) {
    const json_t *some = at(s, "anyOf") ? at(s, "anyOf") : at(s, "oneOf");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(some); i++) {
        n += valid(json_array_get(some, i), v);
    }
    if (some && (n == 0 || (at(s, "oneOf") && n != 1))) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(at(s, "allOf")); i++) {
        if (!valid(json_array_get(at(s, "allOf"), i), v)) {
            return false;
        }
    }
    bool listed = !at(s, "enum");
    for (size_t i = 0; i < json_array_size(at(s, "enum")); i++) {
        listed = listed || json_equal(json_array_get(at(s, "enum"), i), v);
    }
    return listed && (!at(s, "const") || json_equal(at(s, "const"), v));
}

static bool valid(const json_t *s, const json_t *v) {
    const char *ref = json_string_value(at(s, "$ref"));
    if (json_is_boolean(s)) {
        return json_is_true(s);
    }
    if (ref) { /* "#", or "#/a/b" */
        char path[128];
        const json_t *to = root_schema;
        snprintf(path, sizeof path, "%s", ref);
        char *rest = NULL;
        for (char *p = strtok_r(path + 1, "/", &rest); p; p = strtok_r(NULL, "/", &rest)) {
            to = at(to, p);
        }
        assert_non_null(to);
        return valid(to, v);
    }
    return valid_types(s, v) && valid_shape(s, v) &&
           (!json_is_string(v) || valid_string(s, json_string_value(v))) &&
           (!json_is_number(v) || valid_number(s, json_number_value(v))) &&
           (!json_is_array(v) || valid_array(s, v)) && (!json_is_object(v) || valid_object(s, v));
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static const struct {
    const char *schema;
    bool strict;
    const char *good[6], *bad[8];
} cases[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
     "\"required\":[\"a\"]}",
     true,
     {"{\"a\":1}", "{\"a\": -12, \"b\": \"x\"}", "{\n  \"a\": 0,\n  \"b\": \"\\u00e9\\\"\"\n}",
      "{ \"a\":1 }"},
     {"{}", "{\"b\":\"x\"}", "{\"a\":1,\"c\":2}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":1.5}", "{\"a\" :1}",
      "{\"a\":1}x"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":true,\"c\":{\"type\":\"null\"}}}",
     true,
     {"{}", "{ }", "{\"b\":[1,{\"x\":null}]}", "{\"a\":1,\"c\":null}", "{\"a\":\"\",\"b\":2}",
      "{\"c\":null}"},
     {"{\"c\":1}", "{\"d\":1}", "{,\"a\":1}", "{\"a\":1 \"b\":2}", "{\"a\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"},\"a\":{\"type\":\"boolean\"}},"
     "\"required\":[\"z\"]}",
     false,
     {"{\"ab\":1,\"z\":0}", "{\"z\":[],\"b\":1,\"abc\":{}}",
      "{\"ab\":1,\"a\":true,\"z\":0,\"\":1,\"\xc3\xa9\":2}"},
     {"{\"ab\":1}", "{\"z\":1,\"ab\":2}", "{\"z\":1,\"a\":3}", "{\"z\":1,\"\\u0061\":3}",
      "{\"ab\":\"x\",\"z\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"n\":{\"type\":"
     "\"string\"}}}",
     true,
     {"{}", "{\"n\":\"x\"}", "{\"m\":1,\"nn\":2}", "{\"n\":\"\",\"x\":0}"},
     {"{\"m\":\"x\"}", "{\"n\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12},\"minItems\":1,"
     "\"maxItems\":4}",
     true,
     {"[1]", "[-3, 12]", "[\n  0,\n  7\n]", "[1,2,3,4]"},
     {"[]", "[1,2,3,4,5]", "[-4]", "[13]", "[1 ,2]", "[120]", "[-12]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"boolean\"}],\"items\":false}",
     true,
     {"[]", "[\"a\"]", "[\"a\", true]"},
     {"[true]", "[\"a\",true,1]", "[\"a\",]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"type\":\"string\"},\"minItems\":2}",
     true,
     {"[1,\"\"]", "[1,\"a\",\"b\"]"},
     {"[1]", "[\"a\",\"b\"]", "[1,1]"}},
    {"{\"enum\":[\"red\",\"green\",3,null,[1,2],{\"a\":\"b\"},1.5]}",
     true,
     {"\"red\"", "3", "null", "[1,2]", "{\"a\":\"b\"}", "1.5"},
     {"\"re\"", "\"redd\"", "33", "[1, 2]", "2"}},
    {"{\"type\":\"string\",\"enum\":[\"red\",3]}", true, {"\"red\""}, {"3"}},
    {"{\"const\":\"q\\\"\\n\xc3\xa9\"}", true, {"\"q\\\"\\n\xc3\xa9\""}, {"\"q\"", "q"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":"
     "\"string\"}},\"required\":[\"a\"]},{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}]"
     "}",
     true,
     {"1", "null", "{\"a\":\"x\"}", "{\"a\":3}", "{}"},
     {"\"x\"", "{\"a\":null}", "nul"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"x\"},\"v\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"v\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"y\",\"z\"]}},"
     "\"required\":[\"k\"]},{\"type\":\"string\"}]}",
     true,
     {"{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\"}", "\"s\""},
     {"{\"k\":\"x\"}", "{\"k\":\"y\",\"v\":1}", "{}"}},
    {"{\"allOf\":[{\"type\":\"boolean\"}],\"title\":\"t\",\"description\":\"d\"}",
     true,
     {"true", "false"},
     {"1"}},
    {"{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":{"
     "\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}},\"required\":[\"v\",\"kids\"]}},\"$ref\":\"#/$defs/"
     "node\"}",
     true,
     {"{\"v\":1,\"kids\":[]}",
      "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[{\"v\":3,\"kids\":[]}]},{\"v\":4,\"kids\":[]}]}"},
     {"{\"v\":1}", "{\"v\":1,\"kids\":[{}]}", "{\"v\":1,\"kids\":[1]}"}},
    {"{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
     "\"required\":[\"next\"]}",
     true,
     {"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
     {"{\"next\":{}}", "null"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
     true,
     {"\"ab\"", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z\"", "\"\\u00e9\\n\"", "\"\\ud83d\\ude00x\""},
     {"\"a\"", "\"abcde\"", "\"\\ud83d\\ude00\"", "\"\\ud83dxx\"", "\"\\ude00xx\"", "\"a\nb\"",
      "\"\\u0000a\"", "\"\\x00\""}},
    {"{\"type\":\"string\",\"minLength\":3}", true, {"\"abc\"", "\"abcdefgh\""}, {"\"ab\""}},
    {"{\"type\":\"string\",\"maxLength\":1200}", true, {"\"\"", "\"\xc3\xa9\\n\""}, {"\"a"}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\\d$\"}",
     true,
     {"\"ab1\""},
     {"\"1\"", "\"xab1\"", "\"ab1 \""}},
    {"{\"type\":\"string\",\"pattern\":\"b.d|^x\"}",
     true,
     {"\"abcd\"", "\"b\\\"d\"", "\"b\\\\d\"", "\"x\\nyz\"", "\"xyz\""},
     {"\"bd\"", "\"ax\"", "\"b\\nd\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     true,
     {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-13-01\"", "\"2023-04-31\"", "\"2023-00-10\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     true,
     {"\"2024-02-29T23:59:59Z\"", "\"2023-06-01T00:00:00.25+02:00\""},
     {"\"2024-02-29T24:00:00Z\"", "\"2024-02-29 10:00:00Z\"", "\"2024-02-29T10:00:00\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}", true, {"\"12:30:00Z\""}, {"\"12:60:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     true,
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}",
     true,
     {"\"a.b+c@example.com\"", "\"x@y-z.org\""},
     {"\"a@b\"", "\"@b.c\"", "\"a@b..c\"", "\"a b@c.d\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", true, {"\"127.0.0.255\""}, {"\"256.0.0.1\"", "\"1.2.3\""}},
    {"{\"type\":\"integer\",\"minimum\":0}",
     true,
     {"0", "999999999999999999"},
     {"-1", "1000000000000000000", "007"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":1001}",
     true,
     {"10", "99", "100", "1000"},
     {"9", "1001", "-10", "10000"}},
    {"{\"type\":\"integer\",\"minimum\":-1234,\"maximum\":-56.5}",
     true,
     {"-57", "-100", "-1234"},
     {"-56", "-1235", "57", "0"}},
    {"{\"type\":\"number\"}",
     true,
     {"0", "-1.5", "1e5", "12.25E-3"},
     {"01", "1.", ".5", "1e", "1e999", "+1"}},
    {"{\"type\":\"number\",\"minimum\":0}", true, {"0.5"}, {"-0.5"}},
    {"{\"type\":[\"string\",\"null\",\"array\"],\"maxLength\":2,\"maxItems\":1,\"items\":{\"type\":"
     "\"boolean\"}}",
     true,
     {"\"ab\"", "null", "[true]", "[]"},
     {"\"abc\"", "[true,true]", "1"}},
    {"{}",
     true,
     {"1", "\"x\"", "{\"a\":[{},[]]}", "[1, 2.5e3, \"a\"]", "true"},
     {"tru3", "[1,]", "{\"a\":1,}", ""}},
    {"{\"type\":\"object\"}", false, {"{}", "{\"a\":{\"b\":[1]}}"}, {"[]", "{1:2}"}},
};

static json_t *parse(const char *text, size_t n) {
    json_t *v = NULL;
    return bl_json_parse(text, n, 400, "text", &v, NULL) == BL_OK ? v : NULL;
}

/* As our own parser, but duplicate keys, which no automaton can tell, are let through. */
static json_t *parse_loose(const char *text, size_t n) {
    json_error_t e;
    return json_loadb(text, n, JSON_DECODE_ANY, &e);
}

static bl_grammar *compile(const char *schema, bool strict) {
    json_t *s = parse(schema, strlen(schema));
    bl_grammar *g = NULL;
    bl_err err = {0};
    assert_non_null(s);
    if (bl_grammar_from_json_schema(s, strict, &g, &err) != BL_OK) {
        fail_msg("%s: %s", schema, err.msg);
    }
    json_decref(s);
    return g;
}

static void test_texts(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_grammar *g = compile(cases[i].schema, cases[i].strict);
        bl_grammar_state *s = walk_state(g, v);
        root_schema = parse(cases[i].schema, strlen(cases[i].schema));
        is_strict = cases[i].strict;
        for (size_t k = 0; k < 6 && cases[i].good[k]; k++) {
            const char *t = cases[i].good[k];
            json_t *value = parse(t, strlen(t));
            if (!value || !valid(root_schema, value)) {
                fail_msg("the test is wrong: %s is not valid for %s", t, cases[i].schema);
            }
            json_decref(value);
            if (walk_text(s, t, strlen(t)) != 2) {
                fail_msg("%s refuses %s", cases[i].schema, t);
            }
            for (size_t n = 0; n < strlen(t); n++) {
                if (walk_text(s, t, n) == 0) {
                    fail_msg("%s refuses the beginning '%.*s'", cases[i].schema, (int)n, t);
                }
            }
        }
        for (size_t k = 0; k < 8 && cases[i].bad[k]; k++) {
            if (walk_text(s, cases[i].bad[k], strlen(cases[i].bad[k])) == 2) {
                fail_msg("%s accepts %s", cases[i].schema, cases[i].bad[k]);
            }
        }
        json_decref((json_t *)(uintptr_t)root_schema);
        bl_grammar_state_free(s);
        bl_grammar_unref(g);
    }
    bl_grammar_vocab_unref(v);
}

static void test_random_walks(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    bl_buf text;
    bl_buf_init(&text, 4 << 20);
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_grammar *g = compile(cases[i].schema, cases[i].strict);
        bl_grammar_state *s = walk_state(g, v);
        root_schema = parse(cases[i].schema, strlen(cases[i].schema));
        is_strict = cases[i].strict;
        for (uint64_t seed = 0; seed < 40; seed++) {
            if (!walk_random(s, seed * 1000 + i, 60, &text)) {
                fail_msg("%s, seed %llu: no end of %.300s", cases[i].schema, (unsigned long long)seed,
                         bl_buf_str(&text));
            }
            json_t *value = parse_loose(bl_buf_str(&text), text.len);
            if (!value || !valid(root_schema, value)) {
                fail_msg("%s, seed %llu: %s", cases[i].schema, (unsigned long long)seed, bl_buf_str(&text));
            }
            json_decref(value);
        }
        json_decref((json_t *)(uintptr_t)root_schema);
        bl_grammar_state_free(s);
        bl_grammar_unref(g);
    }
    bl_buf_done(&text);
    bl_grammar_vocab_unref(v);
}

/* Masks inside counted strings of a recursive schema, made from those of like places: at each byte of a text
 * they are what the bytes say. */
static void test_masks_of_counted_strings(void **state) {
    (void)state;
    static const char text[] =
        "{\"s\":\"abc h\xc3\xa9\\n world, hello \",\"next\": {\"s\":\"a\",\"next\":{\n "
        "\"s\": \"aaaaaaaaaaaaaaaaaaaaaaaa\"}, \"n\":[-12,3]}}";
    bl_grammar_vocab *v = walk_vocab();
    bl_grammar *g =
        compile("{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":24},"
                "\"next\":{\"$ref\":\"#\"},\"n\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}},"
                "\"required\":[\"s\"]}",
                true);
    bl_grammar_state *s = walk_state(g, v);
    bl_buf so_far;
    bl_buf_init(&so_far, 4096);
    for (size_t i = 0; i <= sizeof text - 1; i++) {
        uint32_t mask[WALK_WORDS];
        (void)walk_mask(s, mask);
        walk_check_mask(s, &so_far, mask);
        if (i < sizeof text - 1) {
            assert_int_equal(bl_grammar_state_accept_bytes(s, text + i, 1, NULL), BL_OK);
            assert_int_equal(bl_buf_append(&so_far, text + i, 1, NULL), BL_OK);
        }
    }
    assert_true(bl_grammar_state_is_complete(s));
    bl_buf_done(&so_far);
    bl_grammar_state_free(s);
    bl_grammar_unref(g);
    bl_grammar_vocab_unref(v);
}

/* Every integer of a range and none beside it. */
static void test_integer_ranges(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    uint64_t seed = 3;
    for (int i = 0; i < 60; i++) {
        char text[128];
        int lo = (int)(bl_rng_next(&seed) % 2600) - 1300, hi = lo + (int)(bl_rng_next(&seed) % 1500);
        snprintf(text, sizeof text, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", lo, hi);
        bl_grammar *g = compile(text, true);
        bl_grammar_state *s = walk_state(g, v);
        for (int x = -3000; x <= 3000; x++) {
            snprintf(text, sizeof text, "%d", x);
            if ((walk_text(s, text, strlen(text)) == 2) != (x >= lo && x <= hi)) {
                fail_msg("%d to %d: %d", lo, hi, x);
            }
        }
        bl_grammar_state_free(s);
        bl_grammar_unref(g);
    }
    bl_grammar_vocab_unref(v);
}

static void test_any_json(void **state) {
    (void)state;
    bl_grammar_vocab *v = walk_vocab();
    bl_grammar *g = NULL;
    assert_int_equal(bl_grammar_any_json(&g, NULL), BL_OK);
    bl_grammar_state *s = walk_state(g, v);
    bl_buf text;
    bl_buf_init(&text, 4 << 20);
    for (uint64_t seed = 1; seed <= 200; seed++) {
        assert_true(walk_random(s, seed, 100, &text));
        json_t *value = parse_loose(bl_buf_str(&text), text.len);
        if (!json_is_object(value)) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, bl_buf_str(&text));
        }
        json_decref(value);
    }
    assert_int_equal(walk_text(s, "[]", 2), 0);
    bl_buf_done(&text);
    /* as deep as it goes, and back: never stuck */
    uint32_t mask[WALK_WORDS], depth = 0;
    bl_grammar_state_reset(s);
    assert_int_equal(bl_grammar_state_accept_bytes(s, "{\"a\":", 5, NULL), BL_OK);
    while (walk_mask(s, mask), walk_allowed(mask, '[')) {
        assert_int_equal(bl_grammar_state_accept(s, '[', NULL), BL_OK);
        depth++;
    }
    assert_true(depth >= 64);
    assert_int_equal(bl_grammar_state_accept(s, '0', NULL), BL_OK);
    for (; depth > 0; depth--) {
        assert_int_equal(bl_grammar_state_accept(s, ']', NULL), BL_OK);
    }
    assert_int_equal(bl_grammar_state_accept(s, '}', NULL), BL_OK);
    assert_true(bl_grammar_state_may_end(s));
    bl_grammar_state_free(s);
    bl_grammar_unref(g);
    bl_grammar_vocab_unref(v);
}

static void test_refusals_name_the_place(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        bl_code code;
        const char *msg;
    } bad[] = {
        {"{\"not\":{}}", BL_ENOTSUP, "the schema's keyword 'not' is not supported at '#'"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}", BL_ENOTSUP,
         "the schema's keyword 'uniqueItems' is not supported at '#/properties/a'"},
        {"{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"number\",\"multipleOf\":"
         "2}]}}",
         BL_ENOTSUP, "the schema's keyword 'multipleOf' is not supported at '#/items/anyOf/1'"},
        {"{\"type\":\"object\",\"patternProperties\":{}}", BL_ENOTSUP,
         "the schema's keyword 'patternProperties' is not supported at '#'"},
        {"{\"allOf\":[{},{}]}", BL_ENOTSUP,
         "the schema's keyword 'allOf' is not supported of more than one schema at '#'"},
        {"{\"anyOf\":[{}],\"type\":\"object\"}", BL_ENOTSUP,
         "the schema's keyword 'type' is not supported beside 'anyOf' at '#'"},
        {"{\"enum\":[1],\"minimum\":0}", BL_ENOTSUP,
         "the schema's keyword 'minimum' is not supported beside 'enum' at '#'"},
        {"{\"$ref\":\"#/$defs/a\",\"minimum\":0,\"$defs\":{\"a\":true}}", BL_ENOTSUP,
         "the schema's keyword 'minimum' is not supported beside '$ref' at '#'"},
        {"{\"$ref\":\"#/$defs/b\",\"$defs\":{\"a\":true}}", BL_ENOTSUP,
         "the schema's '$ref' does not lead to a schema of the same document at '#'"},
        {"{\"$ref\":\"http://example.com/a\"}", BL_ENOTSUP,
         "the schema's '$ref' does not lead to a schema of the same document at '#'"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"if\":true}}}", BL_ENOTSUP,
         "the schema's keyword 'if' is not supported at '#/$defs/a'"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", BL_ENOTSUP,
         "the schema's keyword 'oneOf' is not supported where more than one of its schemas could hold; use "
         "anyOf "
         "at '#'"},
        {"{\"type\":\"string\",\"format\":\"uri\"}", BL_ENOTSUP,
         "the schema's format 'uri' is not supported at '#'"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", BL_ENOTSUP,
         "the schema's keyword 'minLength or maxLength' is not supported beside 'pattern' at '#'"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", BL_ENOTSUP,
         "the pattern has a look-ahead at byte 1, which is not supported"},
        {"{\"type\":\"number\",\"maximum\":3}", BL_ENOTSUP,
         "the schema's keyword 'maximum' is not supported for numbers that are no integers at '#'"},
        {"{\"type\":\"array\",\"items\":[{}]}", BL_ENOTSUP,
         "the schema's 'items' is an array; use prefixItems at '#'"},
        {"{\"type\":\"strin\"}", BL_EINVAL, "the schema's 'type' is none of JSON's at '#'"},
        {"{\"type\":\"string\",\"minLength\":-1}", BL_EINVAL, "the schema's 'minLength' is no count at '#'"},
        {"{\"type\":\"string\",\"maxLength\":10001}", BL_ELIMIT,
         "the schema's 'maxLength' is 10001, at most 10000 are allowed at '#'"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", BL_EINVAL,
         "the schema wants at least 3 items and allows 2 at '#'"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", BL_EINVAL,
         "no integer of at most 18 digits satisfies the schema's minimum and maximum at '#'"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", BL_EINVAL,
         "the schema requires a property that it does not allow at '#'"},
        {"false", BL_EINVAL, "the schema allows nothing at '#'"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", BL_EINVAL,
         "no text satisfies the grammar, or none that nests at most 72 deep"},
        {"{\"$ref\":\"#\"}", BL_EINVAL, "no text satisfies the grammar, or none that nests at most 72 deep"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", BL_ENOTSUP,
         "a part of the schema refers to itself with nothing in between"},
        {"{\"type\":\"array\",\"maxItems\":10000,\"items\":{\"type\":\"array\",\"maxItems\":10000,\"items\":{"
         "\"enum\":[1,2]},\"minItems\":9000},\"minItems\":10000}",
         BL_OK, ""},
    };
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        json_error_t e;
        json_t *s = json_loads(bad[i].schema, JSON_DECODE_ANY, &e);
        assert_non_null(s);
        bl_grammar *g = NULL;
        bl_err err = {0};
        bl_code rc = bl_grammar_from_json_schema(s, true, &g, &err);
        if (rc != bad[i].code || strcmp(err.msg, bad[i].msg) != 0) {
            fail_msg("%s: %s: %s", bad[i].schema, bl_code_name(rc), err.msg);
        }
        bl_grammar_unref(g);
        json_decref(s);
    }
}

/* Calls of functions, each behind its marker; text between them is free. */
static void test_calls(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"d\":{\"$ref\":\"#/$defs/d\"}},\"required\":"
        "[\"d\"],\"$defs\":{\"d\":{\"type\":\"integer\",\"maximum\":9}}}";
    static const char schema_2[] =
        "{\"$defs\":{\"d\":{\"const\":\"x\"}},\"type\":\"object\",\"properties\":{\"d\":{"
        "\"$ref\":\"#/$defs/d\"}}}";
    bl_grammar_vocab *v = walk_vocab();
    bl_grammar_call calls[] = {{"f", parse(schema, sizeof schema - 1), true},
                               {"g.h", parse(schema_2, sizeof schema_2 - 1), false},
                               {"any", NULL, false}};
    bl_grammar *g = NULL;
    assert_int_equal(bl_grammar_from_calls(calls, 3, "</c>", &g, NULL), BL_OK);
    bl_grammar_state *s = walk_state(g, v);
    static const char *const good[] = {"hello {\"x\" <c>{\"name\": \"f\", \"arguments\": {\"d\": 3}}</c> and "
                                       "<c>\n{\"name\":\"any\",\"arguments\":{}}\n</c>",
                                       "<c>{\"name\":\"g.h\",\"arguments\":{\"d\":\"x\",\"e\":1}} "
                                       "</c><c>\n\n{\"name\":\"f\",\"arguments\":{\"d\":-1}}</c>",
                                       "<c"};
    static const char *const bad[] = {"<c>x",
                                      "<c>{\"name\":\"h\"",
                                      "<c>{\"name\":\"f\",\"arguments\":{\"d\":\"x\"",
                                      "<c>{\"name\":\"f\",\"arguments\":{}",
                                      "<c>{\"name\":\"g.h\",\"arguments\":{\"d\":1",
                                      "a<c>{\"name\":\"any\",\"arguments\":{}}</c>b<c>c"};
    assert_int_equal(bl_grammar_state_begin_after(s, "<c>", 3, -1, true, NULL), BL_OK);
    for (size_t i = 0; i < BL_COUNTOF(good); i++) {
        uint32_t mask[WALK_WORDS];
        bool may_end, is_free;
        if (walk_text(s, good[i], strlen(good[i])) != 1) {
            fail_msg("refused: %s", good[i]);
        }
        assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
        assert_true(is_free && !bl_grammar_state_is_complete(s));
    }
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        if (walk_text(s, bad[i], strlen(bad[i])) != 0) {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    bl_grammar_state_free(s);
    bl_grammar_unref(g);
    bl_err err = {0};
    json_decref((json_t *)(uintptr_t)calls[1].parameters);
    calls[1].parameters = parse("{\"not\":{}}", 10);
    assert_int_equal(bl_grammar_from_calls(calls, 3, "", &g, &err), BL_ENOTSUP);
    assert_string_equal(err.msg,
                        "the schema's keyword 'not' is not supported at '#/tools/1/function/parameters'");
    for (int i = 0; i < 2; i++) {
        json_decref((json_t *)(uintptr_t)calls[i].parameters);
    }
    bl_grammar_vocab_unref(v);
}

/* Nesting and size have ends. */
static void test_limits(void **state) {
    (void)state;
    bl_buf b;
    bl_buf_init(&b, 1 << 20);
    for (uint32_t depth = 63; depth <= 64; depth++) {
        bl_grammar *g = NULL;
        bl_err err = {0};
        bl_buf_reset(&b);
        for (uint32_t i = 0; i < depth; i++) {
            assert_int_equal(bl_buf_append_str(&b, "{\"type\":\"array\",\"items\":", NULL), BL_OK);
        }
        assert_int_equal(bl_buf_append_str(&b, "{\"type\":\"object\"}", NULL), BL_OK);
        for (uint32_t i = 0; i < depth; i++) {
            assert_int_equal(bl_buf_append_str(&b, "}", NULL), BL_OK);
        }
        json_t *s = parse(b.data, b.len);
        bl_code rc = bl_grammar_from_json_schema(s, true, &g, &err);
        assert_int_equal(rc, depth < 64 ? BL_OK : BL_ELIMIT);
        assert_true(depth < 64 || strstr(err.msg, "the schema nests deeper than 64 at '#/items/items"));
        bl_grammar_unref(g);
        json_decref(s);
    }
    bl_grammar *g = NULL;
    bl_err err = {0};
    static char text[300000];
    memset(text, 'x', sizeof text - 1);
    json_t *s = json_pack("{s:s, s:s}", "type", "string", "title", text);
    assert_int_equal(bl_grammar_from_json_schema(s, true, &g, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "the schema has 300027 bytes, at most 262144 are allowed");
    json_decref(s);
    bl_buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_random_walks),
        cmocka_unit_test(test_masks_of_counted_strings),
        cmocka_unit_test(test_integer_ranges),
        cmocka_unit_test(test_any_json),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_refusals_name_the_place),
    };
    return cmocka_run_group_tests_name("grammar_schema", tests, NULL, NULL);
}
