/* provider.toml for commands: where it is, its warnings on stderr, its values as defaults of options. */
#ifndef BL_CLI_CONFIG_ARGS_H
#define BL_CLI_CONFIG_ARGS_H

#include <jansson.h>

#include "cli/common.h"
#include "cli/options.h"
#include "provider/config.h"

/* Field `config`; HOME is the command's own (store.home). */
typedef struct {
    const char *file, *config_home;
    char texts[2][BL_CONFIG_MAX_TEXT + 1]; /* copies of what options got from the file */
    uint32_t n_texts;
    bool earlier; /* bl_cli_begin found a file of an earlier version */
} bl_cli_config_args;

#define BL_CLI_CONFIG_OPTIONS(S)                                                                             \
    {BL_OPT_TEXT_AT(S, config.file),                                                                         \
     .name = "config",                                                                                       \
     .letter = 'c',                                                                                          \
     .arg = "FILE",                                                                                          \
     .complete = BL_COMPLETE_FILE,                                                                           \
     .group = "Configuration",                                                                               \
     .doc = "The configuration; without it darkbloom/provider.toml below ~/.config."},                       \
    {                                                                                                        \
        BL_OPT_TEXT_AT(S, config.config_home), .env = "XDG_CONFIG_HOME", .doc = "Stands in for ~/.config."   \
    }

/* The path alone. */
bl_code bl_cli_config_path(const bl_cli_config_args *a, const char *home, char ret[BL_CONFIG_MAX_PATH],
                           bl_err *err) BL_MUST_CHECK;
/* Loads it (defaults where there is none) and prints its warnings on stderr. */
bl_code bl_cli_config_open(const bl_cli_config_args *a, const char *home, bl_config **ret,
                           bl_err *err) BL_MUST_CHECK;

/* bl_opts_begin, and then the options that neither the command line nor the environment set from the file:
 * values of single models go before general ones, where *model (of the command's values; or NULL) names the
 * model. A wrong file ends the command. */
int bl_cli_begin(const bl_command *c, int argc, char **argv, void *values, bl_cli_config_args *config,
                 const bl_cli_store_args *store, const char *const *model, bl_opts *ret);
/* Behind bl_cli_begin: brings a file of an earlier version up to date. A failure is warned of: what it means
 * is known without. */
void bl_cli_config_migrate(const bl_cli_config_args *a, const char *home);

/* A value as it is written in the file, as JSON; "" is null. */
bl_code bl_cli_config_json(const char *value, json_t **ret, bl_err *err) BL_MUST_CHECK;

#endif
