/* The option table: parsing, ranges, environment, help and completion of a command made for the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The terminal program is no library; its option code is compiled into the test. */
#include "cli/options.c"
#include "cli/options_help.c"

typedef struct {
    bool json, quiet;
    const char *model, *prompt, *secret;
    bl_opt_list stop;
    uint32_t threads, mode;
    uint64_t seed;
    double temperature;
} args;

static const bl_opt table[] = {
    {BL_OPT_TEXT_AT(args, model), .name = "model", .letter = 'm', .arg = "MODEL", .env = "BL_TEST_MODEL",
     .group = "Model", .complete = BL_COMPLETE_MODEL, .doc = "The model."},
    {BL_OPT_TEXT_AT(args, prompt), .name = "prompt", .letter = 'p', .arg = "TEXT", .def = "hi",
     .doc = "The prompt."},
    {BL_OPT_LIST_AT(args, stop), .name = "stop", .arg = "TEXT", .env = "BL_TEST_STOP",
     .doc = "Ends the answer."},
    {BL_OPT_U32_AT(args, threads), .name = "threads", .letter = 't', .arg = "N", .def = "2", .min = 1,
     .max = 64, .env = "BL_TEST_THREADS", .group = "Speed", .doc = "Threads that compute."},
    {BL_OPT_U64_AT(args, seed), .name = "seed", .arg = "N", .doc = "Seed."},
    {BL_OPT_F64_AT(args, temperature), .name = "temperature", .arg = "X", .def = "1", .fmin = 0, .fmax = 2,
     .doc = "Heat."},
    {BL_OPT_CHOICE_AT(args, mode), .name = "activations", .choices = "int8|f32", .def = "int8",
     .doc = "Form of activations."},
    {BL_OPT_FLAG_AT(args, json), .name = "json", .letter = 'j', .group = "Output", .doc = "One object."},
    {BL_OPT_FLAG_AT(args, quiet), .name = "quiet", .letter = 'q', .doc = "Less."},
    {BL_OPT_TEXT_AT(args, secret), .env = "BL_TEST_SECRET",
     .doc = "A key that must not be on a command line."},
};

static const bl_command command = {
    .name = "test",
    .summary = "Test",
    .usage = "[options] [FILE]",
    .about = "First paragraph.\n\nSecond paragraph.",
    .examples = "  darkbloom test --json\n",
    .opts = table,
    .n_opts = BL_COUNTOF(table),
    .max_args = 1,
    .args_name = "a file",
    .complete = BL_COMPLETE_FILE,
};

static void clear_env(void) {
    static const char *const names[] = {"BL_TEST_MODEL", "BL_TEST_STOP", "BL_TEST_THREADS", "BL_TEST_SECRET"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        unsetenv(names[i]);
    }
}

/* Parses a NULL-terminated list of arguments. */
static bl_code parse(args *a, bl_opts *o, bl_err *err, ...) {
    char *argv[32] = {(char *)"test"};
    int argc = 1;
    va_list ap;
    va_start(ap, err);
    for (char *s; (s = va_arg(ap, char *)) != NULL;) {
        argv[argc++] = s;
    }
    va_end(ap);
    memset(a, 0xA5, sizeof(*a)); /* every field must be written */
    return bl_opts_parse(&command, argc, argv, a, o, err);
}
#define PARSE(...) parse(&a, &o, &err, __VA_ARGS__, NULL)
#define REFUSES(text, ...)                                                                                   \
    do {                                                                                                     \
        assert_int_not_equal(PARSE(__VA_ARGS__), BL_OK);                                                     \
        assert_non_null(strstr(err.msg, (text)));                                                            \
    } while (0)

static void defaults_fill_every_field(void **state) {
    (void)state;
    clear_env();
    args a;
    bl_opts o;
    bl_err err;
    assert_int_equal(parse(&a, &o, &err, NULL), BL_OK);
    assert_null(a.model);
    assert_null(a.secret);
    assert_string_equal(a.prompt, "hi");
    assert_int_equal(a.stop.n, 0);
    assert_int_equal(a.threads, 2);
    assert_int_equal(a.mode, 0);
    assert_true(a.seed == 0);
    assert_true(a.temperature == 1.0);
    assert_false(a.json);
    assert_false(a.quiet);
    assert_true(o.given == 0);
}

static void every_form_of_an_option(void **state) {
    (void)state;
    clear_env();
    args a;
    bl_opts o;
    bl_err err;
    assert_int_equal(PARSE("--model", "m", "--prompt=a=b", "-t8", "-jq", "--stop", "x", "--stop=", "--seed",
                           "18446744073709551615", "--temperature", "0.25", "--activations", "f32", "file"),
                     BL_OK);
    assert_string_equal(a.model, "m");
    assert_string_equal(a.prompt, "a=b");
    assert_int_equal(a.threads, 8);
    assert_true(a.json);
    assert_true(a.quiet);
    assert_int_equal(a.stop.n, 2);
    assert_string_equal(a.stop.items[0], "x");
    assert_string_equal(a.stop.items[1], "");
    assert_true(a.seed == UINT64_MAX);
    assert_true(a.temperature == 0.25);
    assert_int_equal(a.mode, 1);
    assert_int_equal(o.n_args, 1);
    assert_string_equal(o.args[0], "file");
    assert_true(bl_opts_given(&command, &o, "seed"));
    assert_int_equal(PARSE("-jt", "3", "--", "--json"), BL_OK);
    assert_int_equal(a.threads, 3);
    assert_string_equal(o.args[0], "--json");
    assert_false(bl_opts_given(&command, &o, "seed"));
    /* An argument may look like an option, and a lone dash is an argument. */
    assert_int_equal(PARSE("--prompt", "--json", "-"), BL_OK);
    assert_string_equal(a.prompt, "--json");
    assert_false(a.json);
    assert_string_equal(o.args[0], "-");
}

static void ranges_and_forms_are_refused(void **state) {
    (void)state;
    clear_env();
    args a;
    bl_opts o;
    bl_err err;
    REFUSES("--threads is 0, allowed: 1 to 64", "--threads", "0");
    REFUSES("--threads is 65, allowed: 1 to 64", "--threads=65");
    REFUSES("--threads is '-1', allowed: a whole number", "--threads", "-1");
    REFUSES("-t is '2x'", "-t2x");
    REFUSES("--threads is ''", "--threads=");
    REFUSES("--threads is 99999999999999999999999", "--threads", "99999999999999999999999");
    REFUSES("--seed is 18446744073709551616", "--seed", "18446744073709551616");
    REFUSES("--seed is ' 1'", "--seed", " 1");
    REFUSES("--temperature is 2.5, allowed: 0 to 2", "--temperature", "2.5");
    REFUSES("--temperature is 'nan'", "--temperature", "nan");
    REFUSES("--temperature is 'inf'", "--temperature", "inf");
    REFUSES("--temperature is '0x1'", "--temperature", "0x1");
    REFUSES("--temperature is '1e'", "--temperature", "1e");
    REFUSES("--temperature is 1e999", "--temperature", "1e999");
    REFUSES("--activations is 'int', allowed: int8|f32", "--activations", "int");
    REFUSES("'--json' takes no argument", "--json=1");
    REFUSES("'--model' needs an argument: MODEL", "--model");
    REFUSES("unknown option '-x'", "-jx");
    REFUSES("2 arguments given, allowed: at most 1 (a file)", "a", "b");
}

static void unknown_options_suggest_the_nearest(void **state) {
    (void)state;
    clear_env();
    args a;
    bl_opts o;
    bl_err err;
    REFUSES("unknown option '--modle', did you mean '--model'?", "--modle", "x");
    REFUSES("did you mean '--temperature'?", "--temp", "1");
    REFUSES("did you mean '--help'?", "--hlep");
    REFUSES("unknown option '--zzzzzz'", "--zzzzzz");
    assert_null(strstr(err.msg, "did you mean"));
}

static void the_environment_stands_in(void **state) {
    (void)state;
    clear_env();
    args a;
    bl_opts o;
    bl_err err;
    setenv("BL_TEST_MODEL", "from-env", 1);
    setenv("BL_TEST_THREADS", "7", 1);
    setenv("BL_TEST_SECRET", "k", 1);
    setenv("BL_TEST_STOP", "env", 1);
    assert_int_equal(PARSE("--stop", "own"), BL_OK);
    assert_string_equal(a.model, "from-env");
    assert_string_equal(a.secret, "k");
    assert_int_equal(a.threads, 7);
    assert_int_equal(a.stop.n, 1);
    assert_string_equal(a.stop.items[0], "own");
    assert_true(bl_opts_given(&command, &o, "threads"));
    assert_false(bl_opts_on_command_line(&command, &o, "threads"));
    assert_int_equal(PARSE("-t", "3"), BL_OK);
    assert_true(bl_opts_on_command_line(&command, &o, "threads"));
    assert_int_equal(a.threads, 3);
    assert_string_equal(a.stop.items[0], "env");
    setenv("BL_TEST_THREADS", "", 1);
    assert_int_equal(PARSE("-j"), BL_OK);
    assert_int_equal(a.threads, 2);
    setenv("BL_TEST_THREADS", "many", 1);
    REFUSES("BL_TEST_THREADS is 'many'", "-j");
    clear_env();
}

static void help_wins_and_covers_every_option(void **state) {
    (void)state;
    args a;
    bl_opts o;
    bl_err err;
    setenv("BL_TEST_THREADS", "bad", 1);
    assert_int_equal(PARSE("--nonsense", "--help"), BL_OK);
    assert_true(o.help);
    assert_int_equal(PARSE("-h"), BL_OK);
    assert_true(o.help);
    clear_env();
    assert_int_equal(PARSE("--", "-h"), BL_OK);
    assert_false(o.help);
    bl_buf b;
    bl_buf_init(&b, 1u << 20);
    assert_int_equal(bl_opts_help(&command, &b, &err), BL_OK);
    const char *text = bl_buf_str(&b);
    for (size_t i = 0; i < command.n_opts; i++) {
        const bl_opt *opt = &command.opts[i];
        char name[80];
        snprintf(name, sizeof(name), "%s%s", opt->name != NULL ? "--" : "",
                 opt->name != NULL ? opt->name : opt->env);
        assert_non_null(strstr(text, name));
        assert_non_null(strstr(text, opt->doc));
    }
    assert_non_null(
        strstr(text, "Usage: darkbloom test [options] [FILE]\n\nFirst paragraph.\n\nSecond paragraph.\n"));
    assert_non_null(strstr(text, "(default: 2; 1 to 64; environment: BL_TEST_THREADS)"));
    assert_non_null(strstr(text, "(default: 1; 0 to 2)"));
    assert_non_null(strstr(text, "--activations int8|f32"));
    assert_non_null(strstr(text, "\nExamples:\n  darkbloom test --json\n"));
    for (const char *line = text; *line != '\0';) {
        size_t n = strcspn(line, "\n");
        assert_true(n <= BL_OPT_HELP_COLUMNS);
        assert_true(n == 0 || line[n - 1] != ' ');
        line += n + (line[n] != '\0');
    }
    bl_buf_done(&b);
}

static void completion_knows_every_option(void **state) {
    (void)state;
    bl_err err;
    bl_buf b;
    bl_buf_init(&b, 1u << 20);
    const bl_command *const list[] = {&command};
    assert_int_equal(bl_opts_completion_bash(list, 1, &b, &err), BL_OK);
    const char *text = bl_buf_str(&b);
    assert_non_null(strstr(text, "--model|-m) _darkbloom_models; return ;;"));
    assert_non_null(strstr(text, "--activations) _darkbloom_words 'int8 f32'; return ;;"));
    assert_non_null(strstr(
        text, "--help --model --prompt --stop --threads --seed --temperature --activations --json --quiet'"));
    assert_null(strstr(text, "BL_TEST_SECRET"));
    bl_buf_done(&b);
}

static void lists_have_an_end(void **state) {
    (void)state;
    clear_env();
    char *argv[2 * BL_OPT_MAX_LIST + 8] = {(char *)"test"};
    int argc = 1;
    for (int i = 0; i < BL_OPT_MAX_LIST; i++) {
        argv[argc++] = (char *)"--stop=x";
    }
    args a;
    bl_opts o;
    bl_err err;
    assert_int_equal(bl_opts_parse(&command, argc, argv, &a, &o, &err), BL_OK);
    assert_int_equal(a.stop.n, BL_OPT_MAX_LIST);
    argv[argc++] = (char *)"--stop=x";
    assert_int_equal(bl_opts_parse(&command, argc, argv, &a, &o, &err), BL_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_every_field),
        cmocka_unit_test(every_form_of_an_option),
        cmocka_unit_test(ranges_and_forms_are_refused),
        cmocka_unit_test(unknown_options_suggest_the_nearest),
        cmocka_unit_test(the_environment_stands_in),
        cmocka_unit_test(help_wins_and_covers_every_option),
        cmocka_unit_test(completion_knows_every_option),
        cmocka_unit_test(lists_have_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
