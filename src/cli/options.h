/* Options of one command from one table: parsing, ranges, defaults, the environment, --help and shell
 * completion all read the same entries, so none of them can disagree.
 *
 * A command owns a plain struct of values. Each entry names a field of it; bl_opts_parse fills every field:
 * from the command line, else from the entry's environment variable, else from its default. This is the only
 * place in the project that calls getenv. Values of kind TEXT and LIST are borrowed from argv and the
 * environment and live as long as the process.
 */
#ifndef BL_CLI_OPTIONS_H
#define BL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef enum {
    BL_OPT_FLAG,   /* bool; no argument; false unless given */
    BL_OPT_TEXT,   /* const char *; NULL unless given or defaulted */
    BL_OPT_LIST,   /* bl_opt_list; may be repeated */
    BL_OPT_U32,    /* uint32_t in [min, max] */
    BL_OPT_U64,    /* uint64_t in [min, max] */
    BL_OPT_F64,    /* double in [fmin, fmax] */
    BL_OPT_CHOICE, /* uint32_t: index into `choices` */
    BL_OPT__MAX
} bl_opt_kind;

/* What a shell completes an argument with. */
typedef enum { BL_COMPLETE_NONE, BL_COMPLETE_FILE, BL_COMPLETE_DIR, BL_COMPLETE_MODEL } bl_opt_complete;

#define BL_OPT_MAX_OPTIONS  64 /* one bit each in bl_opts.given */
#define BL_OPT_MAX_LIST     64
#define BL_OPT_MAX_ARGS     16
#define BL_OPT_MAX_BYTES    (16u << 20) /* of one argument; longer prompts come by file */
#define BL_OPT_HELP_COLUMNS 100

typedef struct {
    const char *items[BL_OPT_MAX_LIST];
    uint32_t n;
} bl_opt_list;

typedef struct {
    bl_opt_kind kind;
    size_t
        offset; /* of the field in the command's struct; kind and offset come from the BL_OPT_*_AT macros */
    const char *name;    /* long name without dashes; NULL: settable by `env` alone (secrets, other programs'
                            variables) */
    char letter;         /* one-letter form, or 0 */
    const char *arg;     /* argument's name in help ("N"); not for flags */
    const char *def;     /* default, written as a user would; NULL: none (0, NULL, empty) */
    uint64_t min, max;   /* U32 and U64; max 0 means the type's maximum */
    double fmin, fmax;   /* F64 */
    const char *choices; /* CHOICE: "int8|f32" */
    const char *env;     /* environment variable that stands in for the option; empty counts as unset */
    const char *config;  /* key of provider.toml that stands in where neither is given (cli/config_args.h) */
    bl_opt_complete complete;
    const char *group; /* heading in help; NULL: the heading of the entry before */
    const char *doc;   /* one or more sentences without default and range, which are added from the entry;
                          NULL: not in help (variables without effect) */
} bl_opt;

/* Entry heads: {BL_OPT_U32_AT(run_args, max_tokens), .name = "max-tokens", ...}. The field's type is checked
 * at compile time. */
#define BL_OPT_AT_(k, S, field, T)                                                                           \
    .kind = (k),                                                                                             \
    .offset = offsetof(S, field) +                                                                           \
              0 * sizeof(char[__builtin_types_compatible_p(__typeof__(((S *)0)->field), T) ? 1 : -1])
#define BL_OPT_FLAG_AT(S, field)   BL_OPT_AT_(BL_OPT_FLAG, S, field, bool)
#define BL_OPT_TEXT_AT(S, field)   BL_OPT_AT_(BL_OPT_TEXT, S, field, const char *)
#define BL_OPT_LIST_AT(S, field)   BL_OPT_AT_(BL_OPT_LIST, S, field, bl_opt_list)
#define BL_OPT_U32_AT(S, field)    BL_OPT_AT_(BL_OPT_U32, S, field, uint32_t)
#define BL_OPT_U64_AT(S, field)    BL_OPT_AT_(BL_OPT_U64, S, field, uint64_t)
#define BL_OPT_F64_AT(S, field)    BL_OPT_AT_(BL_OPT_F64, S, field, double)
#define BL_OPT_CHOICE_AT(S, field) BL_OPT_AT_(BL_OPT_CHOICE, S, field, uint32_t)

typedef struct bl_command bl_command;
struct bl_command {
    const char *name;     /* "run"; with the parent's in front for a subcommand: "models pull" */
    const char *summary;  /* one line for the list of commands */
    const char *usage;    /* what follows "darkbloom NAME", e.g. "--model MODEL [options]" */
    const char *about;    /* paragraphs for --help, newline-separated; NULL: the summary */
    const char *examples; /* lines for --help, or NULL */
    const bl_opt *opts;
    size_t n_opts;                 /* <= BL_OPT_MAX_OPTIONS */
    uint32_t min_args, max_args;   /* positional arguments */
    const char *args_name;         /* their name in messages ("a model name") */
    bl_opt_complete complete;      /* of positional arguments */
    const char *words;             /* fixed words completing positional arguments ("bash|fish"), or NULL */
    const bl_command *const *subs; /* subcommands, or NULL */
    size_t n_subs;
    /* argv[0] is the command's own name; the exit status is returned (BL_EXIT_*). */
    int (*run)(int argc, char **argv);
};

enum { BL_EXIT_OK = 0, BL_EXIT_FAILED = 1, BL_EXIT_USAGE = 2, BL_EXIT_INTERRUPTED = 130 };

typedef struct {
    bool help;      /* --help or -h was met: values are defaults, print the help */
    uint64_t given; /* bit i: option i came from the command line or the environment */
    uint64_t on_command_line;
    const char *args[BL_OPT_MAX_ARGS];
    uint32_t n_args;
} bl_opts;

/* Fills *values (the command's struct, every field of the table) and *ret. argv[0] is skipped. BL_EINVAL with
 * a message fit to print; *values may be partly filled then. */
bl_code bl_opts_parse(const bl_command *c, int argc, char **argv, void *values, bl_opts *ret,
                      bl_err *err) BL_MUST_CHECK;

/* Was the option set by the user (rather than left at its default)? name must be in the table. */
bool bl_opts_given(const bl_command *c, const bl_opts *o, const char *name);
/* The same without the environment. */
bool bl_opts_on_command_line(const bl_command *c, const bl_opts *o, const char *name);

/* What a command line says, without the command: for showing it. *ret is freed with bl_opts_line_free. */
typedef struct {
    const bl_command *command;
    bl_opts opts;
    void *values;
} bl_opts_line;
/* argv[0] is the command's name, as bl_opts_parse takes it. */
bl_code bl_opts_line_read(const bl_command *c, int argc, char **argv, bl_opts_line *ret,
                          bl_err *err) BL_MUST_CHECK;
void bl_opts_line_free(bl_opts_line *l);
/* The value of option i as a user would write it: "8", "paged", "/a/path". TEXT, CHOICE and numbers only. */
bl_code bl_opts_line_value(const bl_opts_line *l, size_t i, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* Sets option i of the table, unless the command line or the environment did. what: where s comes from, for
 * the message. */
bl_code bl_opts_set_default(const bl_command *c, size_t i, const bl_opts *o, const char *what, const char *s,
                            void *values, bl_err *err) BL_MUST_CHECK;

/* The text of --help. */
bl_code bl_opts_help(const bl_command *c, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
/* A bash completion script for a program of these commands. */
bl_code bl_opts_completion_bash(const bl_command *const *commands, size_t n, bl_buf *ret,
                                bl_err *err) BL_MUST_CHECK;

/* The start of every command: parses, and prints help or the error. Returns a negative number to go on, else
 * the exit status. */
int bl_opts_begin(const bl_command *c, int argc, char **argv, void *values, bl_opts *ret);

/* The run function of a command with subcommands: runs the one that argv[1] names, or prints the help. */
int bl_opts_run_sub(const bl_command *c, int argc, char **argv);

/* Decimal digits only, in [min, max]: for options and lists of numbers. `what` names the value in the
 * message. */
bl_code bl_opts_parse_u64(const char *what, const char *s, uint64_t min, uint64_t max, uint64_t *ret,
                          bl_err *err) BL_MUST_CHECK;
bl_code bl_opts_parse_f64(const char *what, const char *s, double min, double max, double *ret,
                          bl_err *err) BL_MUST_CHECK;

/* "darkbloom: message" on stderr. */
void bl_cli_error(const bl_err *err);
void bl_cli_errorf(const char *fmt, ...) BL_PRINTF(1, 2);

#endif
