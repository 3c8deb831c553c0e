/* formats/json: what is refused, where the message says it is, and typed reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "match.h"

#define TEXT(s) (s), sizeof(s) - 1

static const struct {
    const char *name, *text;
    size_t n;
    bl_code code;
    const char *msg;
} bad[] = {
    {"empty", TEXT(""), BL_EFORMAT, "t: line 1, column #: the text ends too early"},
    {"spaces only", TEXT("  "), BL_EFORMAT, "t: line 1, column #: the text ends too early"},
    {"two values", TEXT("1 2"), BL_EFORMAT, "t: line 1, column #: something follows the value"},
    {"second line", TEXT("{\n \"a\": x}"), BL_EFORMAT, "t: line 2, column #: invalid JSON"},
    {"unfinished", TEXT("[1,"), BL_EFORMAT, "t: line 1, column #: the text ends too early"},
    {"duplicate", TEXT("{\"a\":1,\"a\":2}"), BL_EFORMAT,
     "t: line 1, column #: an object has the same key twice"},
    {"duplicate after unescaping", TEXT("{\"a\":1,\"\\u0061\":2}"), BL_EFORMAT,
     "t: line 1, column #: an object has the same key twice"},
    {"duplicate two levels down", TEXT("[{\"a\":1,\"a\":2}]"), BL_EFORMAT,
     "t: line 1, column #: an object has the same key twice"},
    {"NUL escape", TEXT("\"\\u0000\""), BL_EFORMAT, "t: line 1, column #: NUL in a string"},
    {"NUL byte", TEXT("\"a\0b\""), BL_EFORMAT, "t: byte 2 is NUL, allowed is text"},
    {"NUL behind a number", TEXT("[1\0,2]"), BL_EFORMAT, "t: byte 2 is NUL, allowed is text"},
    {"NUL escape in key", TEXT("{\"\\u0000\":1}"), BL_EFORMAT, "t: line 1, column #: NUL in a string"},
    {"NUL behind the value", TEXT("1\0"), BL_EFORMAT, "t: byte 1 is NUL, allowed is text"},
    {"invalid UTF-8", TEXT("\"\xff\""), BL_EFORMAT, "t: line 1, column #: not UTF-8"},
    {"lone surrogate escape", TEXT("\"\\ud800\""), BL_EFORMAT, "t: line 1, column #: invalid JSON"},
    {"integer beyond 64 bits", TEXT("9223372036854775808"), BL_EFORMAT,
     "t: line 1, column #: a number is out of range"},
    {"real beyond double", TEXT("1e400"), BL_EFORMAT, "t: line 1, column #: a number is out of range"},
    {"NaN", TEXT("NaN"), BL_EFORMAT, "t: line 1, column #: invalid JSON"},
    {"leading zero", TEXT("01"), BL_EFORMAT, "t: line 1, column #: invalid JSON"},
    {"comment", TEXT("/**/1"), BL_EFORMAT, "t: line 1, column #: invalid JSON"},
    {"trailing comma", TEXT("[1,]"), BL_EFORMAT, "t: line 1, column #: invalid JSON"},
    {"5 deep", TEXT("[{\"a\":[[[1]]]}]"), BL_ELIMIT, "t is nested deeper than 4 at byte 8"},
};

static void test_refused(void **state) {
    (void)state;
    size_t n_bad = 0;
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_err err = {0};
        json_t *v = NULL;
        bl_code rc = bl_json_parse(bad[i].text, bad[i].n, 4, "t", &v, &err);
        if (rc != bad[i].code || !msg_matches(err.msg, bad[i].msg) || v) {
            print_error("case '%s': %s\n", bad[i].name, err.msg);
            n_bad++;
        }
    }
    assert_int_equal(n_bad, 0);
}

static void test_position(void **state) {
    (void)state;
    bl_err err = {0};
    json_t *v = NULL;
    assert_int_equal(bl_json_parse(TEXT("{\n \"a\": x}"), 4, "t", &v, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: line 2, column 7: invalid JSON");
}

/* Brackets in strings and behind escaped quotes are no nesting. */
static void test_depth_counts_brackets_only(void **state) {
    (void)state;
    static const char *const good[] = {"[[[[1]]]]", "[[[[]],[[]]]]", "[\"[[[[[[\\\"[[[[[\"]",
                                       "[\"\\\\\",[[[1]]]]"};
    for (size_t i = 0; i < BL_COUNTOF(good); i++) {
        json_t *v = NULL;
        assert_int_equal(bl_json_parse(good[i], strlen(good[i]), 4, "t", &v, NULL), BL_OK);
        json_decref(v);
    }
}

static void test_a_million_brackets(void **state) {
    (void)state;
    size_t n = 1000000;
    char *s = bl_alloc(n);
    memset(s, '[', n);
    bl_err err = {0};
    json_t *v = NULL;
    assert_int_equal(bl_json_parse(s, n, 64, "t", &v, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "t is nested deeper than 64 at byte 64");
    /* beyond jansson's own ceiling the refusal is still ours */
    assert_int_equal(bl_json_parse(s, n, UINT32_MAX, "t", &v, &err), BL_EFORMAT);
    assert_non_null(strstr(err.msg, "nested too deeply"));
    bl_free(s);
}

static void test_too_long(void **state) {
    (void)state;
    bl_err err = {0};
    json_t *v = NULL;
    assert_int_equal(bl_json_parse("1", BL_JSON_MAX_BYTES + 1, 4, "t", &v, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "t has 67108865 bytes, allowed are 67108864");
}

/* n copies of `part` between head and tail; caller frees. */
static char *repeat(const char *head, const char *part, size_t n, const char *tail, size_t *ret_n) {
    size_t part_n = strlen(part), head_n = strlen(head), tail_n = strlen(tail);
    char *s = bl_alloc(head_n + n * part_n + tail_n);
    assert_non_null(s);
    memcpy(s, head, head_n);
    for (size_t i = 0; i < n; i++) {
        memcpy(s + head_n + i * part_n, part, part_n);
    }
    memcpy(s + head_n + n * part_n, tail, tail_n);
    *ret_n = head_n + n * part_n + tail_n;
    return s;
}

/* Texts that are small but would cost gigabytes once parsed. */
static void test_value_limits(void **state) {
    (void)state;
    size_t n;
    bl_err err = {0};
    json_t *v = NULL;
    char *s = repeat("[", "0,", BL_JSON_MAX_VALUES, "0]", &n);
    assert_int_equal(bl_json_parse(s, n, 4, "t", &v, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "t has 4194306 values, allowed are 4194304");
    bl_free(s);
    s = repeat("[", "{},", BL_JSON_MAX_OBJECTS, "{}]", &n);
    assert_int_equal(bl_json_parse(s, n, 4, "t", &v, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "t has 262145 objects, allowed are 262144");
    bl_free(s);
    s = repeat("[", "{},", BL_JSON_MAX_OBJECTS - 1, "\"{,{,\"]", &n);
    assert_int_equal(bl_json_parse(s, n, 4, "t", &v, &err), BL_OK);
    json_decref(v);
    bl_free(s);
}

static void test_typed_reads(void **state) {
    (void)state;
    static const char text[] =
        "{\"u\":7,\"neg\":-1,\"r\":2.5,\"s\":\"x\",\"b\":true,\"nil\":null,\"o\":{},\"a\":[]}";
    json_t *o = NULL;
    bl_err err = {0};
    assert_int_equal(bl_json_parse(TEXT(text), 4, "t", &o, &err), BL_OK);
    uint64_t u = 99;
    double d = 99;
    bool b = false;
    const char *s = "99";
    assert_int_equal(bl_json_get_u64(o, "u", 1, 7, "t", &u, &err), BL_OK);
    assert_int_equal(u, 7);
    assert_int_equal(bl_json_get_u64(o, "u", 1, 6, "t", &u, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'u' is 7, allowed are 1 to 6");
    assert_int_equal(bl_json_get_u64(o, "u", 8, 9, "t", &u, &err), BL_EFORMAT);
    assert_int_equal(bl_json_get_u64(o, "neg", 0, UINT64_MAX, "t", &u, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'neg' is -1, allowed are 0 to 18446744073709551615");
    assert_int_equal(bl_json_get_u64(o, "r", 0, 9, "t", &u, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'r' is a fractional number, allowed is an integer");
    assert_int_equal(bl_json_get_u64(o, "nil", 0, 9, "t", &u, &err), BL_OK);
    assert_int_equal(bl_json_get_u64(o, "absent", 0, 9, "t", &u, &err), BL_OK);
    assert_int_equal(u, 7);
    assert_int_equal(bl_json_get_f64(o, "r", 0, 3, "t", &d, &err), BL_OK);
    assert_true(d == 2.5);
    assert_int_equal(bl_json_get_f64(o, "u", 0, 9, "t", &d, &err), BL_OK);
    assert_true(d == 7);
    assert_int_equal(bl_json_get_f64(o, "r", 3, 4, "t", &d, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'r' is 2.5, allowed are 3 to 4");
    assert_int_equal(bl_json_get_f64(o, "b", 3, 4, "t", &d, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'b' is a boolean, allowed is a number");
    assert_int_equal(bl_json_get_bool(o, "b", "t", &b, &err), BL_OK);
    assert_true(b);
    assert_int_equal(bl_json_get_bool(o, "u", "t", &b, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'u' is an integer, allowed is true or false");
    assert_int_equal(bl_json_get_str(o, "s", "t", &s, &err), BL_OK);
    assert_string_equal(s, "x");
    assert_int_equal(bl_json_get_str(o, "o", "t", &s, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'o' is an object, allowed is a string");
    assert_int_equal(bl_json_get_str(json_object_get(o, "a"), "k", "t", &s, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t is an array, allowed is an object");
    assert_int_equal(bl_json_get_str(NULL, "k", "t", &s, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t is absent, allowed is an object");
    json_object_set_new(o, "nul", json_stringn("a\0b", 3));
    assert_int_equal(bl_json_get_str(o, "nul", "t", &s, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "t: 'nul' holds a NUL, allowed are strings without");
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_position),
        cmocka_unit_test(test_depth_counts_brackets_only),
        cmocka_unit_test(test_a_million_brackets),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_value_limits),
        cmocka_unit_test(test_typed_reads),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
