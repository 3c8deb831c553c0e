/* TOML: accepted and refused texts and their values as Python's tomllib has them, places, messages, ceilings,
 * and changes of one value that leave every other byte alone. */
#include "cmocka_all.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "formats/limits.h"
#include "formats/toml.h"

static bl_toml *parse(const char *text) {
    bl_toml *t = NULL;
    bl_err err = {0};
    if (bl_toml_parse("f", text, strlen(text), &t, &err) != BL_OK) {
        fail_msg("'%s' is refused: %s", text, err.msg);
    }
    return t;
}

/* ---- against the reference ------------------------------------------------------------------------------
 */

static bool is_same(const bl_toml_node *n, const json_t *want);

static bool is_same_table(const bl_toml_node *n, json_t *want) {
    if (n->kind != BL_TOML_TABLE || n->n_children != json_object_size(want)) {
        return false;
    }
    for (const bl_toml_node *c = n->first; c; c = c->next) {
        if (!is_same(c, json_object_get(want, c->key))) {
            return false;
        }
    }
    return true;
}

static bool is_same_array(const bl_toml_node *n, const json_t *want) {
    size_t i = 0;
    if (n->kind != BL_TOML_ARRAY || n->n_children != json_array_size(want)) {
        return false;
    }
    for (const bl_toml_node *c = n->first; c; c = c->next) {
        if (!is_same(c, json_array_get(want, i++))) {
            return false;
        }
    }
    return true;
}

static bool is_same_number(const bl_toml_node *n, const json_t *want) {
    const char *i = json_string_value(json_object_get(want, "i"));
    const char *f = json_string_value(json_object_get(want, "f"));
    if (i) {
        return n->kind == BL_TOML_INT && n->v.i == strtoll(i, NULL, 10);
    }
    double v = strtod(f, NULL);
    return n->kind == BL_TOML_FLOAT && (isnan(v) ? isnan(n->v.f) : memcmp(&v, &n->v.f, sizeof v) == 0);
}

static bool is_same(const bl_toml_node *n, const json_t *want) {
    if (json_is_boolean(want)) {
        return n->kind == BL_TOML_BOOL && n->v.b == json_is_true(want);
    }
    if (json_is_string(want)) {
        return n->kind == BL_TOML_STRING && n->v.str.len == json_string_length(want) &&
               memcmp(n->v.str.s, json_string_value(want), n->v.str.len) == 0;
    }
    if (json_is_array(want)) {
        return is_same_array(n, want);
    }
    if (json_object_get(want, "t")) {
        return is_same_table(n, json_object_get(want, "t"));
    }
    return json_object_get(want, "d") ? n->kind == BL_TOML_TIME : want && is_same_number(n, want);
}

static void test_reference(void **state) {
    (void)state;
    json_error_t why;
    json_t *cases = json_load_file(BL_SOURCE_DIR "/tests/fixtures/toml/cases.json", 0, &why);
    assert_non_null(cases);
    size_t i, n_valid = 0;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const char *text = json_string_value(json_object_get(c, "text"));
        json_t *want = json_object_get(c, "value");
        bl_toml *t = NULL;
        bl_err err = {0};
        bl_code rc = bl_toml_parse("f", text, strlen(text), &t, &err);
        if (want && rc != BL_OK) {
            fail_msg("case %zu is refused: %s\n%s", i, err.msg, text);
        }
        if (!want && rc == BL_OK) {
            fail_msg("case %zu is accepted:\n%s", i, text);
        }
        if (want && !is_same(bl_toml_root(t), want)) {
            fail_msg("case %zu has other values:\n%s", i, text);
        }
        if (!want && (rc != BL_EFORMAT || strncmp(err.msg, "f:", 2) != 0)) {
            fail_msg("case %zu: %s: %s", i, bl_code_name(rc), err.msg);
        }
        n_valid += want ? 1 : 0;
        bl_toml_free(t);
    }
    assert_true(i > 2000 && n_valid > 500 && i - n_valid > 500);
    json_decref(cases);
}

/* ---- messages -------------------------------------------------------------------------------------------
 */

static void test_messages(void **state) {
    (void)state;
    static const struct {
        const char *text, *msg;
    } cases[] = {
        {"a = 1\nb = ture\n", "f:2:5: key 'b': found 'ture', allowed: a value: "},
        {"a = 1\n\nb = \n", "f:3:5: key 'b': found the end of the line, allowed: a value: "},
        {"b =", "f:1:4: key 'b': found the end of the file, allowed: a value: "},
        {"\xC3\xA4 = 1", "f:1:1: found '\xC3\xA4', allowed: a key"},
        {"a = '\xC3\xA4' x", "f:1:9: found 'x', allowed: the end of the line, or a comment"},
        {"[a]\nb = 1\n[a]\n", "f:3:2: key 'a' is already there, as a table in line 1"},
        {"a = 1\na = 2\n", "f:2:1: key 'a' is already there, as an integer in line 1"},
        {"a = \"x", "f:1:5: key 'a': the string that begins here is not closed"},
        {"a = 99999999999999999999",
         "f:1:5: key 'a': found 99999999999999999999, allowed: integers of 64 bits"},
        {"a = 2023-02-30", "f:1:5: key 'a': found '2023-02-30', allowed: a date or time"},
        {"a = '\x01'", "f:1:6: key 'a': found byte 0x01, allowed: no control"},
        {"\xEF\xBB\xBF"
         "a = 1",
         "f:1:1: a byte order mark, allowed"},
        {"a = '\xFF'", "f:1:6: byte 0xff is not UTF-8 text"},
        {"[a\n", "f:1:3: found the end of the line, allowed: ']' behind"},
        {"a = [1, 2", "f:1:10: key 'a': found the end of the file, allowed: ',' or ']'"},
        {"a = {b = 1, c}", "f:1:14: key 'a': found '}', allowed: '=' behind a key"},
        {"a = {b = 1, c = x}", "f:1:17: key 'c': found 'x', allowed: a value"},
        {"a = \"\\ud800\"", "f:1:7: key 'a': U+D800 is no character"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_toml *t = NULL;
        bl_err err = {0};
        assert_int_equal(bl_toml_parse("f", cases[i].text, strlen(cases[i].text), &t, &err), BL_EFORMAT);
        assert_null(t);
        if (strncmp(err.msg, cases[i].msg, strlen(cases[i].msg)) != 0) {
            fail_msg("'%s' where '%s' is wanted", err.msg, cases[i].msg);
        }
    }
    bl_toml *t = NULL;
    bl_err err = {0};
    assert_int_equal(bl_toml_parse("f", "a = 1\0b", 7, &t, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "f:1:6: byte 0x00 is not UTF-8 text");
}

/* ---- ceilings -------------------------------------------------------------------------------------------
 */

static void expect(const bl_buf *b, bl_code want) {
    bl_toml *t = NULL;
    bl_err err = {0};
    assert_int_equal(bl_toml_parse("f", b->data, b->len, &t, &err), want);
    assert_true((want == BL_OK) == (t != NULL));
    bl_toml_free(t);
}

static void repeat(bl_buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(bl_buf_append_str(b, s, NULL), BL_OK);
    }
}

static void test_ceilings(void **state) {
    (void)state;
    for (unsigned over = 0; over < 2; over++) {
        bl_code want = over ? BL_ELIMIT : BL_OK;
        bl_buf b;
        bl_buf_init(&b, 4u << 20);
        repeat(&b, "#", BL_TOML_MAX_BYTES + over);
        expect(&b, want);
        bl_buf_reset(&b);
        for (unsigned i = 0; i < BL_TOML_MAX_KEYS + over; i++) {
            assert_int_equal(bl_buf_printf(&b, NULL, "k%u = 1\n", i), BL_OK);
        }
        expect(&b, want);
        bl_buf_reset(&b);
        repeat(&b, "a = [", 1);
        repeat(&b, "1,", BL_TOML_MAX_NODES - 1 + over); /* a is one too */
        repeat(&b, "]", 1);
        expect(&b, want);
        bl_buf_reset(&b);
        repeat(&b, "a = ", 1);
        repeat(&b, "[", BL_TOML_MAX_DEPTH + over);
        repeat(&b, "]", BL_TOML_MAX_DEPTH + over);
        expect(&b, want);
        bl_buf_reset(&b);
        repeat(&b, "a.", BL_TOML_MAX_DEPTH - 1 + over);
        repeat(&b, "a = 1", 1);
        expect(&b, want);
        bl_buf_reset(&b);
        repeat(&b, "a = ", 1);
        repeat(&b, "0.", 1);
        repeat(&b, "1", BL_TOML_MAX_NUMBER - 2 + over);
        expect(&b, want);
        bl_buf_done(&b);
    }
    bl_buf b;
    bl_buf_init(&b, 4u << 20);
    repeat(&b, "a = ", 1);
    repeat(&b, "[", 100000); /* the stack is not the limit */
    expect(&b, BL_ELIMIT);
    bl_buf_done(&b);
}

/* ---- places ---------------------------------------------------------------------------------------------
 */

static void test_places(void **state) {
    (void)state;
    const char *text = "x = 1 # c\n\n[t]\n\"k\" = \"\"\"\na\"\"\" # d\n[[u]]\ny = [1,\n 2]\n";
    bl_toml *t = parse(text);
    const bl_toml_node *k = bl_toml_find(bl_toml_find(bl_toml_root(t), "t"), "k");
    assert_int_equal(k->line, 4);
    assert_memory_equal(text + k->key_at, "\"k\"", 3);
    assert_int_equal(k->key_end - k->key_at, 3);
    assert_memory_equal(text + k->at, "\"\"\"\na\"\"\"", 8);
    assert_int_equal(k->end - k->at, 8);
    const bl_toml_node *u = bl_toml_find(bl_toml_root(t), "u");
    assert_int_equal(u->form, BL_TOML_HEADERS);
    const bl_toml_node *y = bl_toml_find(u->first, "y");
    assert_int_equal(y->line, 7);
    assert_int_equal(y->first->line, 7);
    assert_int_equal(y->last->line, 8);
    size_t n = 0;
    assert_string_equal(bl_toml_text(t, &n), text);
    assert_int_equal(n, strlen(text));
    assert_null(bl_toml_find(k, "x"));
    bl_toml_free(t);
}

/* ---- writing --------------------------------------------------------------------------------------------
 */

static bl_code put(const char *text, const char *path, const char *value, bl_buf *ret, bl_err *err) {
    char copy[64];
    const char *parts[8];
    size_t n = 0;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy; p; n++) {
        parts[n] = p;
        p = strchr(p, '/');
        if (p) {
            *p++ = '\0';
        }
    }
    bl_toml *t = parse(text);
    bl_buf_init(ret, BL_TOML_MAX_BYTES);
    bl_code rc = bl_toml_put(t, parts, n, value, ret, err);
    bl_toml_free(t);
    return rc;
}

static void test_put(void **state) {
    (void)state;
    static const struct {
        const char *text, *path, *value, *want;
    } cases[] = {
        /* in its place */
        {"a = 1 # c\nb=2", "a", "7", "a = 7 # c\nb=2"},
        {"[t]\n'a'  =  [1,\n2] # c\n", "t/a", "true", "[t]\n'a'  =  true # c\n"},
        {"t = {a = 1, b = 2}", "t/b", "3", "t = {a = 1, b = 3}"},
        {"t.a = 1\n", "t/a", "2", "t.a = 2\n"},
        {"[t]\na = {b = 1}\n", "t/a", "{c = 1}", "[t]\na = {c = 1}\n"},
        /* behind the last of its table */
        {"a = 1 # c\n\n[t]\n", "b", "2", "a = 1 # c\nb = 2\n\n[t]\n"},
        {"# c\n[t]\na = 1", "b", "2", "b = 2\n# c\n[t]\na = 1"},
        {"", "b", "2", "b = 2\n"},
        {"[t] # c\n# d\na = [\n1] # e\n# f\n\n[u]\n", "t/b", "2",
         "[t] # c\n# d\na = [\n1] # e\nb = 2\n# f\n\n[u]\n"},
        {"[t] # c\n# d\n", "t/b", "2", "[t] # c\nb = 2\n# d\n"},
        {"[t]", "t/b", "2", "[t]\nb = 2\n"},
        {"[t]\r\na = 1\r\n[u]\r\n", "t/b", "2", "[t]\r\na = 1\r\nb = 2\r\n[u]\r\n"},
        {"[t]\na.x = 1\nc = 1\n", "t/a/b", "2", "[t]\na.x = 1\na.b = 2\nc = 1\n"},
        {"t.a = 1\nx = 1\n[u]\n", "t/b", "2", "t.a = 1\nt.b = 2\nx = 1\n[u]\n"},
        {"t.a = 1\n", "t/u/b c", "2", "t.a = 1\nt.u.\"b c\" = 2\n"},
        {"t = {}\n", "t/b", "2", "t = { b = 2 }\n"},
        {"t = { a = 1 }\n", "t/b", "2", "t = { a = 1, b = 2 }\n"},
        {"t = {a.b = 1}\n", "t/a/c", "2", "t = {a.b = 1, a.c = 2}\n"},
        {"t = {a = {b = 1}, d = 1}\n", "t/a/c", "2", "t = {a = {b = 1, c = 2}, d = 1}\n"},
        {"t = {a = 1}\n", "t/u/c", "2", "t = {a = 1, u.c = 2}\n"},
        /* a table that is not there */
        {"", "t/a", "2", "[t]\na = 2\n"},
        {"x = 1", "t/a", "2", "x = 1\n\n[t]\na = 2\n"},
        {"[t]\nx = 1\n", "t/u v/a", "2", "[t]\nx = 1\n\n[t.\"u v\"]\na = 2\n"},
        {"[t.u]\nx = 1\n", "t/a", "2", "[t.u]\nx = 1\n\n[t]\na = 2\n"},
        {"[t.u]\nx = 1\n[t]\ny = 1\n[v]\n", "t/a", "2", "[t.u]\nx = 1\n[t]\ny = 1\na = 2\n[v]\n"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_buf b;
        bl_err err = {0};
        assert_int_equal(put(cases[i].text, cases[i].path, cases[i].value, &b, &err), BL_OK);
        assert_string_equal(bl_buf_str(&b), cases[i].want);
        bl_toml_free(parse(bl_buf_str(&b)));
        bl_buf_done(&b);
    }
}

static void test_put_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *path, *msg;
    } cases[] = {
        {"t = 1\n", "t/a", "'t' is an integer (line 1): 'a' cannot be set in it"},
        {"[[t]]\n", "t/a", "'t' is an array of tables (line 1): 'a' cannot be set in it"},
        {"[t.a]\n", "t/a", "'a' is written as a table of its own (line 1), not as one value"},
        {"[t]\na.b = 1\n", "t/a", "'a' is written as a table of its own (line 2), not as one value"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_buf b;
        bl_err err = {0};
        assert_int_equal(put(cases[i].text, cases[i].path, "1", &b, &err), BL_EINVAL);
        assert_string_equal(err.msg, cases[i].msg);
        bl_buf_done(&b);
    }
}

static void test_quote(void **state) {
    (void)state;
    static const char raw[] = "a\"b\\c\td\n\x7f\0\xC3\xA4";
    bl_buf b;
    bl_buf_init(&b, 4096);
    assert_int_equal(bl_buf_append_str(&b, "k = ", NULL), BL_OK);
    assert_int_equal(bl_toml_quote(raw, sizeof raw - 1, &b, NULL), BL_OK);
    bl_toml *t = parse(bl_buf_str(&b));
    const bl_toml_node *k = bl_toml_find(bl_toml_root(t), "k");
    assert_int_equal(k->v.str.len, sizeof raw - 1);
    assert_memory_equal(k->v.str.s, raw, sizeof raw - 1);
    bl_toml_free(t);
    bl_buf_reset(&b);
    assert_int_equal(bl_toml_quote_key("a-Z_9", 5, &b, NULL), BL_OK);
    assert_int_equal(bl_toml_quote_key("a.b", 3, &b, NULL), BL_OK);
    assert_int_equal(bl_toml_quote_key("", 0, &b, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&b), "a-Z_9\"a.b\"\"\"");
    bl_buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_ceilings),  cmocka_unit_test(test_places),
        cmocka_unit_test(test_put),       cmocka_unit_test(test_put_is_refused),
        cmocka_unit_test(test_quote),
    };
    return cmocka_run_group_tests_name("toml", tests, NULL, NULL);
}
