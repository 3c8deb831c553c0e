/* main() of darkbloom: finds the command, gives it its arguments, returns its exit status.
 * 0: done; 1: failed (the reason in one line on stderr); 2: wrong usage; 130: interrupted.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"
#include "bl/bl.h"
#include "cli/commands.h"

const bl_command *const bl_commands[] = {
    &bl_command_run,      &bl_command_chat,   &bl_command_start,      &bl_command_status,
    &bl_command_tokenize, &bl_command_models, &bl_command_quantize,   &bl_command_benchmark,
    &bl_command_config,   &bl_command_beta,   &bl_command_completion,
};
const size_t bl_n_commands = BL_COUNTOF(bl_commands);

static void print_help(FILE *f) {
    fputs("Usage: darkbloom COMMAND [options]\n\n"
          "Runs open-weight language models on this machine: in the terminal and behind an OpenAI-compatible "
          "server.\n\n"
          "Commands:\n",
          f);
    for (size_t i = 0; i < bl_n_commands; i++) {
        fprintf(f, "  %-12s %s\n", bl_commands[i]->name, bl_commands[i]->summary);
    }
    fputs("\n"
          "  darkbloom COMMAND --help   explains a command, with examples\n"
          "  darkbloom --version        prints the version\n\n"
          "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.\n\n"
          "First steps:\n"
          "  darkbloom models pull gemma-3-270m\n"
          "  darkbloom run --model gemma-3-270m --prompt \"The sea is\"\n"
          "  darkbloom chat --model gemma-3-270m\n",
          f);
}

static const bl_command *find_command(const char *name) {
    for (size_t i = 0; i < bl_n_commands; i++) {
        if (strcmp(bl_commands[i]->name, name) == 0) {
            return bl_commands[i];
        }
    }
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[32];
    BL_ASSERT(bl_n_commands <= BL_COUNTOF(names));
    for (size_t i = 0; i < bl_n_commands; i++) {
        names[i] = bl_commands[i]->name;
    }
    const char *near = bl_nearest(name, names, bl_n_commands);
    if (near != NULL) {
        bl_cli_errorf("unknown command '%.60s', did you mean '%s'? (see 'darkbloom --help')", name, near);
    } else {
        bl_cli_errorf("unknown command '%.60s' (see 'darkbloom --help')", name);
    }
    return BL_EXIT_USAGE;
}

static int flushed(int status) {
    if (fflush(stdout) == EOF && status == BL_EXIT_OK) {
        bl_cli_errorf("standard output could not be written");
        return BL_EXIT_FAILED;
    }
    return status;
}

int main(int argc, char **argv) {
    /* A reader that goes away is an error of a write, not the end of the process: models unload and sessions
     * close. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return BL_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        puts("darkbloom " BL_VERSION);
        return flushed(BL_EXIT_OK);
    }
    bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return flushed(BL_EXIT_OK);
    }
    if (help) {
        const bl_command *c = find_command(argv[2]);
        if (c == NULL) {
            return unknown_command(argv[2]);
        }
        char flag[] = "--help";
        char *args[] = {argv[2], argc > 3 ? argv[3] : flag, flag, NULL};
        return flushed(c->run(argc > 3 ? 3 : 2, args));
    }
    if (name[0] == '-') {
        bl_cli_errorf("unknown option '%.60s' before the command (see 'darkbloom --help')", name);
        return BL_EXIT_USAGE;
    }
    const bl_command *c = find_command(name);
    return c != NULL ? flushed(c->run(argc - 1, argv + 1)) : unknown_command(name);
}
