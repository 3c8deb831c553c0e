/* Parsing of a command's arguments by its option table (options.h). Help and completion are in
 * options_help.c. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"

void bl_cli_error(const bl_err *err) {
    fflush(stdout);
    fprintf(stderr, "darkbloom: %s\n", err->msg);
}

void bl_cli_errorf(const char *fmt, ...) {
    bl_err err;
    char msg[sizeof(err.msg)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    /* Through bl_err_set for its rule on control bytes and cut characters. */
    (void)bl_err_set(&err, BL_EINVAL, __FILE__, __LINE__, "%s", msg);
    bl_cli_error(&err);
}

/* ---- numbers ----------------------------------------------------------------------------------- */

bl_code bl_opts_parse_u64(const char *what, const char *s, uint64_t min, uint64_t max, uint64_t *ret,
                          bl_err *err) {
    uint64_t v = 0;
    bool ok = s[0] != '\0';
    bool fits = true;
    for (const char *p = s; *p != '\0' && ok; p++) {
        ok = *p >= '0' && *p <= '9';
        if (ok && fits) {
            fits = bl_mul_u64(v, 10, &v) && bl_add_u64(v, (uint64_t)(*p - '0'), &v);
        }
    }
    if (!ok) {
        BL_FAIL(err, BL_EINVAL, "%s is '%.40s', allowed: a whole number from %llu to %llu", what, s,
                (unsigned long long)min, (unsigned long long)max);
    }
    if (!fits || v < min || v > max) {
        BL_FAIL(err, BL_EINVAL, "%s is %.40s, allowed: %llu to %llu", what, s, (unsigned long long)min,
                (unsigned long long)max);
    }
    *ret = v;
    return BL_OK;
}

bl_code bl_opts_parse_f64(const char *what, const char *s, double min, double max, double *ret, bl_err *err) {
    /* strtod also takes hexadecimal, "inf" and leading spaces, which nobody means on a command line. */
    bool ok = s[0] != '\0' && s[strspn(s, "+-.0123456789eE")] == '\0';
    char *end = NULL;
    double v = ok ? strtod(s, &end) : 0;
    if (!ok || end == s || *end != '\0') {
        BL_FAIL(err, BL_EINVAL, "%s is '%.40s', allowed: a number from %g to %g", what, s, min, max);
    }
    if (!isfinite(v) || v < min || v > max) {
        BL_FAIL(err, BL_EINVAL, "%s is %.40s, allowed: %g to %g", what, s, min, max);
    }
    *ret = v;
    return BL_OK;
}

/* Index of `s` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *s) {
    size_t n = strlen(s);
    int i = 0;
    for (const char *p = choices;; i++) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, s, n) == 0) {
            return i;
        }
        if (p[len] == '\0') {
            return -1;
        }
        p += len + 1;
    }
}

/* ---- one value --------------------------------------------------------------------------------- */

static bl_code set_value(const bl_opt *o, const char *what, const char *s, void *values, bl_err *err) {
    char *field = (char *)values + o->offset;
    switch (o->kind) {
    case BL_OPT_FLAG: {
        bool on = true;
        memcpy(field, &on, sizeof(on));
        return BL_OK;
    }
    case BL_OPT_TEXT:
        if (strnlen(s, BL_OPT_MAX_BYTES + 1u) > BL_OPT_MAX_BYTES) {
            BL_FAIL(err, BL_ELIMIT, "%s is longer than %u bytes", what, BL_OPT_MAX_BYTES);
        }
        memcpy(field, &s, sizeof(s));
        return BL_OK;
    case BL_OPT_LIST: {
        bl_opt_list list;
        memcpy(&list, field, sizeof(list));
        if (list.n == BL_OPT_MAX_LIST) {
            BL_FAIL(err, BL_ELIMIT, "%s is given more than %d times", what, BL_OPT_MAX_LIST);
        }
        list.items[list.n++] = s;
        memcpy(field, &list, sizeof(list));
        return BL_OK;
    }
    case BL_OPT_U32:
    case BL_OPT_U64: {
        bool wide = o->kind == BL_OPT_U64;
        uint64_t max = o->max != 0 ? o->max : wide ? UINT64_MAX : UINT32_MAX;
        uint64_t v = 0;
        BL_TRY(bl_opts_parse_u64(what, s, o->min, max, &v, err));
        uint32_t narrow = (uint32_t)v;
        memcpy(field, wide ? (const void *)&v : (const void *)&narrow, wide ? sizeof(v) : sizeof(narrow));
        return BL_OK;
    }
    case BL_OPT_F64: {
        double v = 0;
        BL_TRY(bl_opts_parse_f64(what, s, o->fmin, o->fmax, &v, err));
        memcpy(field, &v, sizeof(v));
        return BL_OK;
    }
    case BL_OPT_CHOICE: {
        int i = choice_index(o->choices, s);
        if (i < 0) {
            BL_FAIL(err, BL_EINVAL, "%s is '%.40s', allowed: %s", what, s, o->choices);
        }
        uint32_t v = (uint32_t)i;
        memcpy(field, &v, sizeof(v));
        return BL_OK;
    }
    case BL_OPT__MAX:
        break;
    }
    BL_FAIL(err, BL_EINTERNAL, "option table holds kind %d", (int)o->kind);
}

static size_t value_size(const bl_opt *o) {
    static const size_t sizes[BL_OPT__MAX] = {
        [BL_OPT_FLAG] = sizeof(bool),        [BL_OPT_TEXT] = sizeof(char *),
        [BL_OPT_LIST] = sizeof(bl_opt_list), [BL_OPT_U32] = sizeof(uint32_t),
        [BL_OPT_U64] = sizeof(uint64_t),     [BL_OPT_F64] = sizeof(double),
        [BL_OPT_CHOICE] = sizeof(uint32_t),
    };
    return sizes[o->kind];
}

static void zero_value(const bl_opt *o, void *values) {
    memset((char *)values + o->offset, 0, value_size(o));
}

/* Environment first, default second; the command line overrides both later. */
static bl_code set_initial(const bl_opt *o, size_t i, void *values, bl_opts *ret, bl_err *err) {
    zero_value(o, values);
    const char *env = o->env != NULL ? getenv(o->env) : NULL;
    if (env != NULL && env[0] != '\0') {
        ret->given |= UINT64_C(1) << i;
        return set_value(o, o->env, env, values, err);
    }
    return o->def != NULL ? set_value(o, o->name, o->def, values, err) : BL_OK;
}

/* ---- the command line -------------------------------------------------------------------------- */

typedef struct {
    const bl_command *c;
    int argc, i;
    char **argv;
    void *values;
    bl_opts *ret;
} parser;

static bl_code take(parser *p, size_t index, const char *shown, const char *attached, bl_err *err) {
    const bl_opt *o = &p->c->opts[index];
    uint64_t bit = UINT64_C(1) << index;
    if (o->kind == BL_OPT_FLAG) {
        if (attached != NULL) {
            BL_FAIL(err, BL_EINVAL, "option '%s' takes no argument", shown);
        }
    } else if (attached == NULL) {
        if (p->i + 1 >= p->argc) {
            BL_FAIL(err, BL_EINVAL, "option '%s' needs an argument: %s", shown, o->arg);
        }
        attached = p->argv[++p->i];
    }
    if (o->kind == BL_OPT_LIST && (p->ret->on_command_line & bit) == 0) {
        zero_value(
            o, p->values); /* a list on the command line replaces the environment's, it does not extend it */
    }
    p->ret->given |= bit;
    p->ret->on_command_line |= bit;
    return set_value(o, shown, attached, p->values, err);
}

static bl_code take_long(parser *p, const char *arg, bl_err *err) {
    const char *eq = strchr(arg, '=');
    size_t n = eq != NULL ? (size_t)(eq - arg) : strlen(arg);
    const char *names[BL_OPT_MAX_OPTIONS + 1];
    size_t n_names = 0;
    for (size_t i = 0; i < p->c->n_opts; i++) {
        const char *name = p->c->opts[i].name;
        if (name == NULL) {
            continue;
        }
        if (strlen(name) == n && memcmp(name, arg, n) == 0) {
            char shown[80];
            snprintf(shown, sizeof(shown), "--%s", name);
            return take(p, i, shown, eq != NULL ? eq + 1 : NULL, err);
        }
        names[n_names++] = name;
    }
    names[n_names++] = "help";
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)BL_MIN(n, sizeof(word) - 1), arg);
    const char *near = bl_nearest(word, names, n_names);
    if (near != NULL) {
        BL_FAIL(err, BL_EINVAL, "unknown option '--%s', did you mean '--%s'?", word, near);
    }
    BL_FAIL(err, BL_EINVAL, "unknown option '--%s'", word);
}

/* -n 5, -n5; flags may be joined: -jq. */
static bl_code take_letters(parser *p, const char *arg, bl_err *err) {
    for (; *arg != '\0'; arg++) {
        size_t i = 0;
        while (i < p->c->n_opts && p->c->opts[i].letter != *arg) {
            i++;
        }
        if (i == p->c->n_opts) {
            BL_FAIL(err, BL_EINVAL, "unknown option '-%c'", *arg);
        }
        char shown[3] = {'-', *arg, '\0'};
        bool flag = p->c->opts[i].kind == BL_OPT_FLAG;
        BL_TRY(take(p, i, shown, flag || arg[1] == '\0' ? NULL : arg + 1, err));
        if (!flag) {
            break;
        }
    }
    return BL_OK;
}

static bl_code check_positionals(const bl_command *c, const bl_opts *o, bl_err *err) {
    const char *what = c->args_name != NULL ? c->args_name : "an argument";
    if (o->n_args > c->max_args) {
        if (c->max_args == 0) {
            BL_FAIL(err, BL_EINVAL, "unexpected argument '%.60s'", o->args[0]);
        }
        BL_FAIL(err, BL_EINVAL, "%u arguments given, allowed: at most %u (%s)", o->n_args, c->max_args, what);
    }
    if (o->n_args < c->min_args) {
        BL_FAIL(err, BL_EINVAL, "%s is missing", what);
    }
    return BL_OK;
}

/* -h and --help win over everything else on the line, so that they also help where the rest is wrong. */
static bool asks_for_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

bl_code bl_opts_parse(const bl_command *c, int argc, char **argv, void *values, bl_opts *ret, bl_err *err) {
    BL_ASSERT(c->n_opts <= BL_OPT_MAX_OPTIONS && c->max_args <= BL_OPT_MAX_ARGS);
    memset(ret, 0, sizeof(*ret));
    if (asks_for_help(argc, argv)) {
        for (size_t i = 0; i < c->n_opts; i++) {
            zero_value(&c->opts[i], values);
        }
        ret->help = true;
        return BL_OK;
    }
    parser p = {.c = c, .argc = argc, .i = 1, .argv = argv, .values = values, .ret = ret};
    for (size_t i = 0; i < c->n_opts; i++) {
        BL_TRY(set_initial(&c->opts[i], i, values, ret, err));
    }
    bool only_args = false;
    for (; p.i < argc; p.i++) {
        const char *arg = argv[p.i];
        if (!only_args && strcmp(arg, "--") == 0) {
            only_args = true;
        } else if (!only_args && arg[0] == '-' && arg[1] == '-') {
            BL_TRY(take_long(&p, arg + 2, err));
        } else if (!only_args && arg[0] == '-' && arg[1] != '\0') {
            BL_TRY(take_letters(&p, arg + 1, err));
        } else {
            if (ret->n_args == BL_OPT_MAX_ARGS) {
                BL_FAIL(err, BL_ELIMIT, "more than %d arguments", BL_OPT_MAX_ARGS);
            }
            ret->args[ret->n_args++] = arg;
        }
    }
    return check_positionals(c, ret, err);
}

static bool bit_of(const bl_command *c, uint64_t bits, const char *name) {
    for (size_t i = 0; i < c->n_opts; i++) {
        if (c->opts[i].name != NULL && strcmp(c->opts[i].name, name) == 0) {
            return (bits >> i & 1u) != 0;
        }
    }
    bl_assert_failed("the option is in the table", __FILE__, __LINE__);
}

bool bl_opts_given(const bl_command *c, const bl_opts *o, const char *name) {
    return bit_of(c, o->given, name);
}

bool bl_opts_on_command_line(const bl_command *c, const bl_opts *o, const char *name) {
    return bit_of(c, o->on_command_line, name);
}

bl_code bl_opts_set_default(const bl_command *c, size_t i, const bl_opts *o, const char *what, const char *s,
                            void *values, bl_err *err) {
    BL_ASSERT(i < c->n_opts);
    return (o->given >> i & 1u) != 0 ? BL_OK : set_value(&c->opts[i], what, s, values, err);
}

int bl_opts_begin(const bl_command *c, int argc, char **argv, void *values, bl_opts *ret) {
    bl_err err;
    if (bl_opts_parse(c, argc, argv, values, ret, &err) != BL_OK) {
        fprintf(stderr, "darkbloom: %s (see 'darkbloom %s --help')\n", err.msg, c->name);
        return BL_EXIT_USAGE;
    }
    if (!ret->help) {
        return -1;
    }
    bl_buf text;
    bl_buf_init(&text, 1u << 20);
    int status = BL_EXIT_OK;
    if (bl_opts_help(c, &text, &err) != BL_OK) {
        bl_cli_error(&err);
        status = BL_EXIT_FAILED;
    } else if (fputs(bl_buf_str(&text), stdout) == EOF || fflush(stdout) == EOF) {
        status = BL_EXIT_FAILED;
    }
    bl_buf_done(&text);
    return status;
}

/* ---- a command line without its command ---------------------------------------------------------- */

bl_code bl_opts_line_read(const bl_command *c, int argc, char **argv, bl_opts_line *ret, bl_err *err) {
    bl_opts_line l = {.command = c};
    size_t size = 1;
    for (size_t i = 0; i < c->n_opts; i++) {
        size = BL_MAX(size, c->opts[i].offset + value_size(&c->opts[i]));
    }
    l.values = bl_alloc(size);
    if (l.values == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the options of '%s'", c->name);
    }
    bl_code rc = bl_opts_parse(c, argc, argv, l.values, &l.opts, err);
    if (rc != BL_OK) {
        bl_opts_line_free(&l);
        return rc;
    }
    *ret = l;
    return BL_OK;
}

void bl_opts_line_free(bl_opts_line *l) {
    bl_free(l->values);
    *l = (bl_opts_line){0};
}

bl_code bl_opts_line_value(const bl_opts_line *l, size_t i, bl_buf *ret, bl_err *err) {
    const bl_opt *o = &l->command->opts[i];
    const char *field = (const char *)l->values + o->offset;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    const char *text = NULL;
    switch (o->kind) {
    case BL_OPT_TEXT:
        memcpy(&text, field, sizeof(text));
        return bl_buf_append_str(ret, text != NULL ? text : "", err);
    case BL_OPT_U32:
        memcpy(&u32, field, sizeof(u32));
        return bl_buf_printf(ret, err, "%u", (unsigned)u32);
    case BL_OPT_U64:
        memcpy(&u64, field, sizeof(u64));
        return bl_buf_printf(ret, err, "%llu", (unsigned long long)u64);
    case BL_OPT_CHOICE:
        memcpy(&u32, field, sizeof(u32));
        text = o->choices;
        while (u32-- > 0) {
            text += strcspn(text, "|") + 1;
        }
        return bl_buf_append(ret, text, strcspn(text, "|"), err);
    case BL_OPT_FLAG:
    case BL_OPT_LIST:
    case BL_OPT_F64:
    case BL_OPT__MAX:
        break;
    }
    BL_FAIL(err, BL_EINTERNAL, "option '--%s' has no such value", o->name);
}

int bl_opts_run_sub(const bl_command *c, int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        bl_opts o;
        char unused;
        char flag[] = "--help";
        char *help[] = {argv[0], flag, NULL};
        int status = bl_opts_begin(c, 2, help, &unused, &o);
        return argc < 2 ? BL_EXIT_USAGE : status;
    }
    const char *names[16];
    BL_ASSERT(c->n_subs <= BL_COUNTOF(names));
    for (size_t i = 0; i < c->n_subs; i++) {
        names[i] = strchr(c->subs[i]->name, ' ') + 1;
        if (strcmp(names[i], argv[1]) == 0) {
            return c->subs[i]->run(argc - 1, argv + 1);
        }
    }
    const char *near = bl_nearest(argv[1], names, c->n_subs);
    bl_cli_errorf("unknown command '%s %.60s'%s%s%s (see 'darkbloom %s --help')", c->name, argv[1],
                  near != NULL ? ", did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "",
                  c->name);
    return BL_EXIT_USAGE;
}
