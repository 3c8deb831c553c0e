/* `darkbloom completion bash`: the completion script, made from the option tables. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"

static int run_completion(int argc, char **argv) {
    bl_opts o;
    char unused;
    int status = bl_opts_begin(&bl_command_completion, argc, argv, &unused, &o);
    if (status >= 0) {
        return status;
    }
    if (strcmp(o.args[0], "bash") != 0) {
        bl_cli_errorf("shell is '%.40s', allowed: bash", o.args[0]);
        return BL_EXIT_USAGE;
    }
    bl_err err;
    bl_buf script;
    bl_buf_init(&script, 1u << 20);
    status = BL_EXIT_OK;
    if (bl_opts_completion_bash(bl_commands, bl_n_commands, &script, &err) != BL_OK) {
        bl_cli_error(&err);
        status = BL_EXIT_FAILED;
    } else {
        fputs(bl_buf_str(&script), stdout);
    }
    bl_buf_done(&script);
    return status;
}

const bl_command bl_command_completion = {
    .name = "completion",
    .summary = "Print a shell completion script",
    .usage = "bash",
    .about = "Prints a completion script for the shell: commands, options, their values, file names and the "
             "names of models on this "
             "machine.",
    .examples = "  source <(darkbloom completion bash)\n"
                "  darkbloom completion bash > ~/.local/share/bash-completion/completions/darkbloom\n",
    .min_args = 1,
    .max_args = 1,
    .args_name = "the shell's name (bash)",
    .words = "bash",
    .run = run_completion,
};
