/* Conversations as clients send them, rendered through the templates of the families: equal byte for byte to
 * what Python's jinja2 makes of them (tools/reference/chat_renderings.py). The ids in safe mode spell the
 * same text. BL_CHAT_VECTORS adds a file of vectors over templates found elsewhere. */
#include "cmocka_all.h"

#include "chat/internal.h"
#include "chat_folder.h"

static bl_code open_chat(const char *template, bl_chat **ret, bl_err *err) {
    const folder_file files[] = {
        {"tokenizer_config.json", "{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\"}"},
        {"chat_template.jinja", template}};
    return chat_folder_open(files, BL_COUNTOF(files), ret, err);
}

/* ---- renderings ---- */

static unsigned n_same, n_refused, n_wrong;

static void complain(const char *family, const char *name, const char *what, const char *have,
                     const char *want) {
    n_wrong++;
    if (n_wrong <= 5) {
        print_error("%s, %s: %s\n have %s\n want %s\n", family, name, what, have,
                    want ? want : "(a failure)");
    }
}

/* Safe mode encodes all of the text. */
static void check_ids(const bl_chat *c, const char *family, const json_t *v, const json_t *messages,
                      const json_t *tools, const char *want) {
    bl_ids ids;
    bl_buf text;
    bl_err err = {0};
    bl_ids_init(&ids, 1 << 20);
    bl_buf_init(&text, 1 << 24);
    bl_code rc = bl_chat_render(c, messages, tools, json_object_get(v, "extra"),
                                json_is_true(json_object_get(v, "prompt")), false, &ids, &err);
    assert_int_equal(rc, BL_OK);
    assert_int_equal(bl_tokenizer_decode(c->tokenizer, ids.ids, ids.n, false, &text, &err), BL_OK);
    if (strcmp(bl_buf_str(&text), want) != 0) {
        complain(family, json_string_value(json_object_get(v, "name")), "ids", bl_buf_str(&text), want);
    }
    bl_ids_done(&ids);
    bl_buf_done(&text);
}

static void check_case(const bl_chat *c, const char *family, const json_t *v, const json_t *all_tools,
                       const json_t *expected) {
    const char *name = json_string_value(json_object_get(v, "name")), *want = json_string_value(expected);
    const json_t *messages = json_object_get(v, "messages"), *given = json_object_get(v, "tools");
    json_t *empty = json_array();
    const json_t *tools = json_is_true(given) ? all_tools : json_is_false(given) ? empty : NULL;
    json_t *before = json_deep_copy(messages);
    bl_buf text;
    bl_err err = {0};
    bl_buf_init(&text, 1 << 24);
    bl_code rc = bl_chat_render_text(c, messages, tools, json_object_get(v, "extra"),
                                     json_is_true(json_object_get(v, "prompt")), &text, &err);
    if ((rc == BL_OK) != (want != NULL)) {
        complain(family, name, "outcome", rc == BL_OK ? bl_buf_str(&text) : err.msg, want);
    } else if (want && strcmp(bl_buf_str(&text), want) != 0) {
        complain(family, name, "text", bl_buf_str(&text), want);
    } else if (want) {
        n_same++;
        check_ids(c, family, v, messages, tools, want);
    } else {
        n_refused++;
    }
    assert_true(json_equal(before, messages)); /* the caller's list stays as it is */
    json_decref(before);
    json_decref(empty);
    bl_buf_done(&text);
}

/* Returns the number of families; those whose template does not open are counted in *ret_closed. */
static size_t check_file(const char *path, size_t *ret_closed) {
    json_error_t why;
    json_t *doc = json_load_file(path, 0, &why);
    if (!doc) {
        fail_msg("%s:%d: %s", path, why.line, why.text);
    }
    const json_t *families = json_object_get(doc, "families"), *cases = json_object_get(doc, "cases");
    const size_t n = json_array_size(families);
    *ret_closed = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *f = json_array_get(families, i), *expected = json_object_get(f, "expected");
        const json_t *own = json_object_get(f, "template");
        const char *family = json_string_value(json_object_get(f, "family"));
        bl_chat *c = NULL;
        bl_err err = {0};
        char file[512];
        bl_buf b;
        bl_buf_init(&b, 1 << 20);
        if (!own) {
            snprintf(file, sizeof file, FIXTURES "/templates/%s.jinja", family);
            b = folder_read(file);
        }
        bl_code rc = open_chat(own ? json_string_value(own) : b.data, &c, &err);
        bl_buf_done(&b);
        if (rc != BL_OK) {
            print_error("%s: %s\n", family, err.msg);
            ++*ret_closed;
            continue;
        }
        c->now_unix_s = json_integer_value(json_object_get(doc, "now_unix_s"));
        assert_int_equal(json_array_size(expected), json_array_size(cases));
        const unsigned same = n_same, refused = n_refused, wrong = n_wrong;
        for (size_t k = 0; k < json_array_size(cases); k++) {
            check_case(c, family, json_array_get(cases, k), json_object_get(doc, "tools"),
                       json_array_get(expected, k));
        }
        if (own) {
            printf("%s (%s%s%s%s): %u equal, %u refused by both, %u wrong\n", family,
                   bl_dialect_name(c->features.dialect), c->features.tools ? ", tools" : "",
                   c->features.thinking_switch ? ", switch" : "",
                   c->features.opens_reasoning ? ", opens reasoning" : "", n_same - same, n_refused - refused,
                   n_wrong - wrong);
        }
        bl_chat_free(c);
    }
    json_decref(doc);
    return n;
}

static void equal_to_jinja2(void **state) {
    (void)state;
    size_t closed = 0;
    assert_int_equal(check_file(FIXTURES "/chat_renderings.json", &closed), 7);
    assert_int_equal(closed, 0);
    printf("%u renderings equal, %u refused by both, %u wrong\n", n_same, n_refused, n_wrong);
    assert_true(n_same > 600);
    assert_int_equal(n_wrong, 0);
}

static void equal_on_other_templates(void **state) {
    (void)state;
    const char *more = getenv("BL_CHAT_VECTORS");
    size_t closed = 0;
    if (!more) {
        printf("BL_CHAT_VECTORS is not set: no other templates are compared\n");
        skip();
    }
    n_same = n_refused = n_wrong = 0;
    size_t n = check_file(more, &closed);
    printf("%zu templates (%zu do not open): %u renderings equal, %u refused by both, %u wrong\n", n, closed,
           n_same, n_refused, n_wrong);
    assert_int_equal(n_wrong, 0);
}

/* ---- what a template says about answers ---- */

static void features_of_the_families(void **state) {
    (void)state;
    static const struct {
        const char *family;
        bl_dialect dialect;
        bool tools, thinking, effort, opens;
    } rows[] = {
        {"chatml", BL_DIALECT_PLAIN, false, false, false, false},
        {"gemma3", BL_DIALECT_PLAIN, false, false, false, false},
        {"gemma4", BL_DIALECT_GEMMA4, true, true, false, false},
        {"gpt_oss", BL_DIALECT_HARMONY, true, false, true, false},
        {"llama3", BL_DIALECT_PLAIN, true, false, false, false},
        {"qwen3", BL_DIALECT_QWEN_JSON, true, true, false, false},
        {"qwen3_5", BL_DIALECT_QWEN_XML, true, true, true, true},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        char path[512];
        bl_chat *c = NULL;
        bl_err err = {0};
        snprintf(path, sizeof path, FIXTURES "/templates/%s.jinja", rows[i].family);
        bl_buf b = folder_read(path);
        assert_int_equal(open_chat(b.data, &c, &err), BL_OK);
        bl_buf_done(&b);
        const bl_chat_features *f = bl_chat_describe(c);
        if (f->dialect != rows[i].dialect || f->tools != rows[i].tools ||
            f->thinking_switch != rows[i].thinking || f->reasoning_effort != rows[i].effort ||
            f->opens_reasoning != rows[i].opens || !f->system_role) {
            fail_msg("%s: %s (%s), tools %d, thinking %d, effort %d, opens %d, system %d", rows[i].family,
                     bl_dialect_name(f->dialect), f->reason, f->tools, f->thinking_switch,
                     f->reasoning_effort, f->opens_reasoning, f->system_role);
        }
        assert_true(strlen(f->reason) > 20);
        bl_chat_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_jinja2),
        cmocka_unit_test(equal_on_other_templates),
        cmocka_unit_test(features_of_the_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
