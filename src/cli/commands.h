/* The commands of `darkbloom`. Each src/cli/cmd_X.c defines one bl_command (its option table, help and run
 * function); main.c lists them. A new command: declare it here, add one line to the table in main.c.
 */
#ifndef BL_CLI_COMMANDS_H
#define BL_CLI_COMMANDS_H

#include "cli/options.h"

extern const bl_command bl_command_run;
extern const bl_command bl_command_chat;
extern const bl_command bl_command_tokenize;
extern const bl_command bl_command_models;
extern const bl_command bl_command_embed_mtp; /* of models */
extern const bl_command bl_command_quantize;
extern const bl_command bl_command_benchmark;
extern const bl_command bl_command_start; /* in cmd_start.c, with .run = bl_cmd_start */
extern const bl_command bl_command_config;
extern const bl_command bl_command_beta;
extern const bl_command bl_command_completion;

extern const bl_command bl_command_status;

int bl_cmd_start(int argc, char **argv);

/* All of them, in the order of --help (main.c). */
extern const bl_command *const bl_commands[];
extern const size_t bl_n_commands;

#endif
