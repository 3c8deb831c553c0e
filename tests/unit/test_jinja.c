/* The Jinja interpreter against vectors made by Python's jinja2 (tests/fixtures/jinja, provenance in the
 * README there; BL_JINJA_VECTORS adds one more file), and its own rules: limits, origins, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jinja.h"

static unsigned n_checked, n_failed;

static void show(const char *what, const char *s) {
    printf("  %s: %.3000s\n", what, s);
}

static void check_case(const char *name, const char *src, const json_t *context, const json_t *v,
                       const bl_jinja_limits *limits) {
    bl_jinja *t = NULL;
    bl_err err = {0};
    bl_buf out;
    bl_buf_init(&out, 64 << 20);
    const char *expected = json_string_value(json_object_get(v, "expected"));
    bl_code rc = bl_jinja_compile(src, strlen(src), &t, &err);
    if (rc == BL_OK) {
        rc = bl_jinja_render(t, context, limits, &out, &err);
    }
    bool ok = expected ? rc == BL_OK && strcmp(bl_buf_str(&out), expected) == 0 : rc != BL_OK;
    n_checked++;
    if (!ok) {
        n_failed++;
        printf("FAILED %s\n", name);
        if (strlen(src) < 500) {
            show("template", src);
        }
        show("expected", expected ? expected : "an error");
        const char *python = json_string_value(json_object_get(v, "error"));
        if (python) {
            show("python says", python);
        }
        show(rc == BL_OK ? "got" : "error", rc == BL_OK ? bl_buf_str(&out) : err.msg);
    }
    if (rc != BL_OK && (err.code != rc || err.msg[0] == '\0')) {
        n_failed++;
        printf("FAILED %s: code %d without a message\n", name, (int)rc);
    }
    bl_buf_done(&out);
    bl_jinja_free(t);
}

static void check_file(const char *path) {
    json_error_t jerr;
    json_t *doc = json_load_file(path, 0, &jerr);
    if (!doc) {
        fail_msg("%s:%d: %s", path, jerr.line, jerr.text);
    }
    const json_t *cases = json_object_get(doc, "cases");
    const bl_jinja_limits limits = {.now_unix_s = json_integer_value(json_object_get(doc, "now_unix_s"))};
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *v = json_array_get(cases, i);
        const json_t *context = json_object_get(v, "context");
        const json_t *template = json_object_get(v, "template");
        check_case(json_string_value(json_object_get(v, "name")),
                   json_string_value(template ? template : json_object_get(doc, "template")),
                   context ? context : json_object_get(doc, "context"), v, &limits);
    }
    json_decref(doc);
}

static void vectors_of_jinja2(void **state) {
    (void)state;
    const char *dir = BL_SOURCE_DIR "/tests/fixtures/jinja";
    DIR *d = opendir(dir);
    assert_non_null(d);
    struct dirent *e;
    while ((e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".json") == 0) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            check_file(path);
        }
    }
    closedir(d);
    const char *more = getenv("BL_JINJA_VECTORS");
    if (more) {
        check_file(more);
    }
    printf("%u vectors, %u failed\n", n_checked, n_failed);
    assert_true(n_checked > 500);
    assert_int_equal(n_failed, 0);
}

/* Renders with the members of `context` (JSON text). */
static bl_code render_text(const char *src, const char *context, const bl_jinja_limits *limits, bl_buf *out,
                           bl_buf *marks, bl_err *err) {
    bl_jinja *t;
    json_error_t jerr;
    json_t *ctx = json_loads(context, 0, &jerr);
    assert_non_null(ctx);
    bl_code rc = bl_jinja_compile(src, strlen(src), &t, err);
    if (rc == BL_OK) {
        json_t *trusted = json_pack("{s:s}", "bos_token", "<bos>");
        rc = bl_jinja_render_marked(t, ctx, trusted, NULL, limits, out, marks, err);
        json_decref(trusted);
        bl_jinja_free(t);
    }
    json_decref(ctx);
    return rc;
}

/* Text with the input's bytes in brackets. */
static void assert_origins(const char *src, const char *context, const char *expected) {
    bl_buf out, marks, shown;
    bl_err err = {0};
    bl_buf_init(&out, 1 << 20);
    bl_buf_init(&marks, 1 << 20);
    bl_buf_init(&shown, 1 << 20);
    bl_code rc = render_text(src, context, NULL, &out, &marks, &err);
    if (rc != BL_OK) {
        fail_msg("%s: %s", src, err.msg);
    }
    assert_int_equal(out.len, marks.len);
    for (size_t i = 0; i <= out.len; i++) {
        bool before = i > 0 && marks.data[i - 1] == 1, now = i < out.len && marks.data[i] == 1;
        if (before != now) {
            assert_int_equal(bl_buf_append_char(&shown, now ? '[' : ']', &err), BL_OK);
        }
        if (i < out.len) {
            assert_int_equal(bl_buf_append_char(&shown, out.data[i], &err), BL_OK);
        }
    }
    assert_string_equal(bl_buf_str(&shown), expected);
    bl_buf_done(&out);
    bl_buf_done(&marks);
    bl_buf_done(&shown);
}

static void origins_follow_every_operation(void **state) {
    (void)state;
    static const char ctx[] =
        "{\"x\": \" <a>B \", \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\\n\"}, \"n\": 5, \"csv\": \"1,2\"}";
    assert_origins("plain", ctx, "plain");
    assert_origins("{{ bos_token }}{{ x }}|", ctx, "<bos>[ <a>B ]|");
    assert_origins("{{ '<s>' + x + '</s>' }}", ctx, "<s>[ <a>B ]</s>");
    assert_origins("{{ '<s>' ~ x ~ n }}", ctx, "<s>[ <a>B ]5");
    assert_origins("{{ x|trim }}.{{ x.strip() }}", ctx, "[<a>B].[<a>B]");
    assert_origins("{{ ('<' + x)|trim }}", ctx, "<[ <a>B]");
    assert_origins("{{ (x + '>')[::-1] }}", ctx, ">[ B>a< ]");
    assert_origins("{{ (x + '>')[-3:] }}", ctx, "[B ]>");
    assert_origins("{{ x|upper }}{{ ('a' + x).lower() }}", ctx, "[ <A>B ]a[ <a>b ]");
    assert_origins("{{ x.replace('<a>', '<T>') }}", ctx, "[ ]<T>[B ]");
    assert_origins("{{ 'a-b'|replace('-', x) }}", ctx, "a[ <a>B ]b");
    assert_origins("{{ l|join('+') }}{{ ';'.join(l) }}", ctx, "[p]+[qp];[q]");
    assert_origins("{{ csv.split(',')|join('-') }}", ctx, "[1]-[2]");
    assert_origins("{{ d|tojson }}", ctx, "{\"[k]\": \"[v\\n]\"}");
    assert_origins("{{ d }}{{ l }}", ctx, "{'[k]': '[v\\n]'}['[p]', '[q]']");
    assert_origins("{{ '%s|%s' % (x, 'y') }}{{ '<{}>'.format(n) }}{{ '<{}>'.format(csv) }}", ctx,
                   "[ <a>B ]|y<5><[1,2]>");
    assert_origins("{% set y %}<{{ x|trim }}>{% endset %}{{ y }}", ctx, "<[<a>B]>");
    assert_origins("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(csv) }}{{ m(a='t') }}", ctx, "<[1,2]><t>");
    assert_origins("{% for c in csv %}{{ c }}{% endfor %}{{ csv|first }}{{ csv|last }}", ctx, "[1,212]");
    assert_origins("{% filter upper %}<{{ d.k }}>{% endfilter %}", ctx, "<[V\n]>");
    assert_origins(
        "{% set ns = namespace(s='') %}{% for c in l %}{% set ns.s = ns.s + '<' + c %}{% endfor %}{{ ns.s }}",
        ctx, "<[p]<[q]");
    assert_origins("{{ x|e }}{{ ('<'|safe) + csv + '<' }}", ctx, "[ &lt;a&gt;B ]<[1,2]&lt;");
    assert_origins("{{ (csv + '\\n<').splitlines()|join('|') }}{{ d.k|indent(2, true) }}", ctx,
                   "[1,2]|<  [v]\n");
    assert_origins("{{ {'k': 'own'}[d|first] }}{{ x if x else 'y' }}{{ missing|default(csv) }}", ctx,
                   "own[ <a>B 1,2]");
    assert_origins("{{ d|dictsort }}", ctx, "[('[k]', '[v\\n]')]");
}

static void assert_code(const char *src, const bl_jinja_limits *limits, bl_code want) {
    bl_buf out;
    bl_err err = {0};
    bl_buf_init(&out, 64 << 20);
    bl_code rc = render_text(src, "{\"s\": \"text\"}", limits, &out, NULL, &err);
    if (rc != want) {
        fail_msg("%.200s: code %s (%s), expected %s", src, bl_code_name(rc), err.msg, bl_code_name(want));
    }
    assert_int_equal(out.len, 0);
    bl_buf_done(&out);
}

static void limits_hold(void **state) {
    (void)state;
    assert_code("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", NULL,
                BL_ELIMIT);
    assert_code("{% for a in range(1000) %}x{% endfor %}", &(bl_jinja_limits){.max_steps = 500}, BL_ELIMIT);
    assert_code("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, BL_ELIMIT);
    assert_code("{{ 'x' * 20000000 }}", NULL, BL_ELIMIT);
    assert_code("{{ 'x' * 2000 }}", &(bl_jinja_limits){.max_output_bytes = 1000}, BL_ELIMIT);
    assert_code("{{ ('x' * 1000000000)|length }}", NULL, BL_ELIMIT);
    assert_code("{{ [0] * 1000000000 }}", NULL, BL_ELIMIT);
    assert_code("{{ ([0] * 100000)|length }}", &(bl_jinja_limits){.max_memory_bytes = 1 << 20}, BL_ELIMIT);
    assert_code("{% set ns = namespace(a=none) %}{% set ns.a = ns %}{{ ns }}", NULL, BL_ELIMIT);
    assert_code("{% set ns = namespace(a=[]) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% endfor "
                "%}{{ ns.a }}",
                NULL, BL_ELIMIT);
    assert_code("{% set ns = namespace(a='x') %}{% for i in range(1000) %}{% set ns.a = ns.a|map('string') "
                "%}{% endfor %}"
                "{{ ns.a|list }}",
                NULL, BL_ELIMIT);
}

/* `before`, n times `open`, `middle`, n times `close`, `after`: refused or rendered, never a crash. */
static void nest(const char *before, const char *open, const char *middle, const char *close,
                 const char *after, size_t n, bool must_fail) {
    bl_buf src, out;
    bl_err err = {0};
    bl_jinja *t = NULL;
    bl_buf_init(&src, 4 << 20);
    bl_buf_init(&out, 1 << 20);
    assert_int_equal(bl_buf_append_str(&src, before, &err), BL_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(bl_buf_append_str(&src, open, &err), BL_OK);
    }
    assert_int_equal(bl_buf_append_str(&src, middle, &err), BL_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(bl_buf_append_str(&src, close, &err), BL_OK);
    }
    assert_int_equal(bl_buf_append_str(&src, after, &err), BL_OK);
    bl_code rc = bl_jinja_compile(src.data, src.len, &t, &err);
    if (rc == BL_OK) {
        json_t *ctx = json_pack("{s:i}", "x", 1);
        rc = bl_jinja_render(t, ctx, NULL, &out, &err);
        json_decref(ctx);
    }
    if (must_fail) {
        assert_int_not_equal(rc, BL_OK);
        assert_non_null(strstr(err.msg, "chat template"));
    } else if (rc != BL_OK) {
        fail_msg("%s%s%s: %s", before, open, middle, err.msg);
    }
    bl_jinja_free(t);
    bl_buf_done(&src);
    bl_buf_done(&out);
}

static void nesting_fails_cleanly(void **state) {
    (void)state;
    static const char *const cases[][5] = {
        {"{{ ", "(", "1", ")", " }}"},
        {"{{ ", "[", "", "]", " }}"},
        {"{{ ", "[", "", "", ""},
        {"{{ ", "{1:", "1", "}", " }}"},
        {"{{ ", "not ", "1", "", " }}"},
        {"{{ ", "-", "1", "", " }}"},
        {"{{ x", "|string", "", "", " }}"},
        {"{{ x", ".a", "", "", " }}"},
        {"{{ x", "[0]", "", "", " }}"},
        {"{{ x", "()", "", "", " }}"},
        {"{{ 1", " if x else 1", "", "", " }}"},
        {"{{ ", "f(", "", "", ""},
        {"{{ x", "[", "", "", ""},
        {"{{ x", "[:", "", "", ""},
        {"{{ x is ", "not is ", "", "", ""},
        {"", "{% if x %}", "a", "{% endif %}", ""},
        {"", "{% for a in [1] %}", "a", "{% endfor %}", ""},
        {"", "{% set x %}", "a", "{% endset %}", ""},
        {"", "{% macro m() %}", "a", "{% endmacro %}", ""},
        {"", "{% filter upper %}", "a", "{% endfilter %}", ""},
        {"{% set ", "(", "a", ")", " = 1 %}"},
        {"{% for ", "(", "a", ",)", " in x %}{% endfor %}"},
        {"{{ ", "x[x", "", "]", " }}"},
        {"{{ ", "x(x|default(", "1", "))", " }}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nest(cases[i][0], cases[i][1], cases[i][2], cases[i][3], cases[i][4], 3000, true);
        nest(cases[i][0], cases[i][1], cases[i][2], cases[i][3], cases[i][4], 100000, true);
    }
    /* length is not depth */
    nest("{{ 1", " + 1", "", "", " }}", 20000, false);
    nest("{{ 'a'", " ~ 'b'", "", "", " }}", 20000, false);
    nest("{{ 1", " and 1", "", "", " }}", 20000, false);
    nest("{{ 1", " * 1", "", "", " }}", 20000, false);
    nest("{% if 0 %}", "{% elif 0 %}", "{% endif %}", "", "", 20000, false);
    nest("", "{% if x %}{% set y = 1 %}{% endif %}", "", "", "", 5000, false);
    nest("", "{{ x }}{# c #}\n", "", "", "", 10000, false);
}

static void messages_name_place_and_thing(void **state) {
    (void)state;
    static const struct {
        const char *src, *text;
        bl_code code;
    } cases[] = {
        {"a\nb\n{{ x|nofilter }}", "chat template line 3: unknown or unsupported filter 'nofilter'",
         BL_EFORMAT},
        {"\n{{ x is notest }}", "chat template line 2: unknown test 'notest'", BL_EFORMAT},
        {"{% include 'x' %}", "chat template line 1: unknown or unsupported tag 'include'", BL_EFORMAT},
        {"{{ s.nomethod() }}", "chat template line 1: 'str object' has no attribute 'nomethod'", BL_EINVAL},
        {"{{ s.encode() }}", "chat template line 1: attribute 'encode' of 'str' is not supported", BL_EINVAL},
        {"\n\n{{ a.b }}", "chat template line 3: 'a' is undefined", BL_EINVAL},
        {"{{ [].append(1) }}",
         "chat template line 1: access to attribute 'append' of 'list' object is unsafe", BL_EINVAL},
        {"{{ raise_exception('roles must alternate\n!') }}", "roles must alternate?!", BL_EINVAL},
        {"{{ 1 / 0 }}", "chat template line 1: division by zero", BL_EINVAL},
        {"{{ 's' + 1 }}", "chat template line 1: unsupported operand types for +: 'str' and 'int'",
         BL_EINVAL},
        {"{% for x in y recursive %}{% endfor %}", "chat template line 1: recursive loops are not supported",
         BL_ENOTSUP},
        {"{% if x %}", "chat template line 1: end of template, but missing 'endif'", BL_EFORMAT},
        {"\xff", "chat template: not valid UTF-8", BL_EFORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bl_err err = {0};
        bl_buf out;
        bl_buf_init(&out, 1 << 20);
        assert_int_equal(render_text(cases[i].src, "{\"s\": \"t\"}", NULL, &out, NULL, &err), cases[i].code);
        assert_string_equal(err.msg, cases[i].text);
        bl_buf_done(&out);
    }
}

static void asks_which_names_it_reads(void **state) {
    (void)state;
    bl_jinja *t;
    static const char src[] = "{% if enable_thinking is defined %}{{ messages[0].content }}{% endif %}";
    assert_int_equal(bl_jinja_compile(src, sizeof src - 1, &t, NULL), BL_OK);
    assert_true(bl_jinja_mentions(t, "enable_thinking"));
    assert_true(bl_jinja_mentions(t, "messages"));
    assert_false(bl_jinja_mentions(t, "content"));
    assert_false(bl_jinja_mentions(t, "tools"));
    bl_jinja_free(t);
}

typedef struct {
    const bl_jinja *t;
    const json_t *context;
    const char *want;
    unsigned n_wrong;
} thread_job;

static void *render_often(void *user) {
    thread_job *job = user;
    for (int i = 0; i < 50; i++) {
        bl_buf out;
        bl_buf_init(&out, 1 << 20);
        bl_code rc = bl_jinja_render(job->t, job->context, NULL, &out, NULL);
        job->n_wrong += rc != BL_OK || strcmp(bl_buf_str(&out), job->want) != 0;
        bl_buf_done(&out);
    }
    return NULL;
}

/* A compiled template is immutable: TSan watches this one. */
static void one_template_for_many_threads(void **state) {
    (void)state;
    json_t *doc = json_load_file(BL_SOURCE_DIR "/tests/fixtures/jinja/chat_gemma4.json", 0, NULL);
    const char *src = json_string_value(json_object_get(doc, "template"));
    const json_t *cases = json_object_get(doc, "cases");
    bl_jinja *t;
    pthread_t threads[4];
    thread_job jobs[4];
    assert_int_equal(bl_jinja_compile(src, strlen(src), &t, NULL), BL_OK);
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = json_array_get(cases, i * 11);
        jobs[i] = (thread_job){t, json_object_get(v, "context"),
                               json_string_value(json_object_get(v, "expected")), 0};
        assert_non_null(jobs[i].want);
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(jobs[i].n_wrong, 0);
    }
    bl_jinja_free(t);
    json_decref(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_jinja2),
        cmocka_unit_test(origins_follow_every_operation),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(nesting_fails_cleanly),
        cmocka_unit_test(messages_name_place_and_thing),
        cmocka_unit_test(asks_which_names_it_reads),
        cmocka_unit_test(one_template_for_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
