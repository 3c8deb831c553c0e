/* provider.toml for commands: where it is, its warnings on stderr, its values as defaults of options. */
#ifndef BL_CLI_CONFIG_ARGS_H
#define BL_CLI_CONFIG_ARGS_H

#include <jansson.h>

#include "cli/options.h"
#include "provider/config.h"

/* Field `config`; HOME is the command's own (store.home). */
typedef struct {
    const char *file, *config_home;
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
void bl_cli_config_warn(const bl_config *c);

/* A value as it is written in the file, as JSON; "" is null. */
bl_code bl_cli_config_json(const char *value, json_t **ret, bl_err *err) BL_MUST_CHECK;

#endif
