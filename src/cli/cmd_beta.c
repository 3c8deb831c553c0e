/* `darkbloom beta`: optional behaviour, switched by name. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "provider/beta.h"

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bool json;
} beta_args;

static const bl_opt options[] = {
    {BL_OPT_FLAG_AT(beta_args, json), .name = "json", .group = "Output", .doc = "Print JSON."},
    BL_CLI_CONFIG_OPTIONS(beta_args),
    {BL_OPT_TEXT_AT(beta_args, store.home), .env = "HOME", .doc = "The user's folder, ~ above."},
};

#define IDS "gemma-prefill-layer18|gemma-weighted-r1|mtp"

/* A feature whose key nothing in this version reads: the switch is kept for the version that does. */
static bool acts(const bl_beta_feature *f) {
    return bl_config_key_of(f->key)->used_by != NULL;
}

/* enabled is null for auto, which is neither. */
static json_t *feature_json(const bl_beta_feature *f, const bl_config *c) {
    bl_beta_state s = bl_beta_requested(f, c);
    const bl_config_value *v = bl_config_get(c, f->key);
    json_t *enabled = s == BL_BETA_AUTO ? json_null() : json_boolean(s == BL_BETA_ON);
    return json_pack("{s:s, s:s, s:o, s:s, s:b, s:b, s:b, s:s}", "id", f->id, "title", f->title, "enabled",
                     enabled, "state", bl_beta_state_name(s), "pinned", v->in_file && !v->migrated,
                     "requiresRestart", f->needs_restart, "implemented", acts(f), "summary", f->summary);
}

static bl_code print_json_list(const bl_config *c, const bl_beta_feature *only, bl_err *err) {
    size_t n = 0;
    const bl_beta_feature *all = bl_beta_features(&n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        if (only == NULL || only == &all[i]) {
            (void)json_array_append_new(list, feature_json(&all[i], c));
        }
    }
    return bl_cli_print_json(list, err);
}

static int open_config(const beta_args *a, bl_config **ret) {
    bl_err err;
    return bl_cli_config_open(&a->config, a->store.home, ret, &err) == BL_OK ? -1 : bl_cli_fail(&err);
}

/* ---- list -------------------------------------------------------------------------------------- */

static int run_list(int argc, char **argv);
static const bl_command list_command = {
    .name = "beta list",
    .summary = "Show the features and their states",
    .usage = "[--json] [--config FILE]",
    .about = "Shows each feature as on, off or auto (the model decides), with one line of what it is.",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_list,
};

static void print_list(const bl_config *c) {
    size_t n = 0;
    const bl_beta_feature *all = bl_beta_features(&n);
    printf("Beta features in ");
    bl_cli_print_text(bl_config_file(c));
    printf("%s\n", bl_config_exists(c) ? "" : " (not there: defaults)");
    for (size_t i = 0; i < n; i++) {
        static const char *const shown[BL_BETA_STATE__MAX] = {"[off] ", "[on ] ", "[auto]"};
        printf("  %s %-22s %s%s\n", shown[bl_beta_requested(&all[i], c)], all[i].id, all[i].summary,
               acts(&all[i]) ? "" : " (without effect in this version)");
    }
    printf(
        "Change one: darkbloom beta enable ID, darkbloom beta disable ID. More: darkbloom beta status ID\n");
}

static int run_list(int argc, char **argv) {
    beta_args a;
    bl_opts o;
    bl_err err;
    bl_config *c = NULL;
    int status = bl_opts_begin(&list_command, argc, argv, &a, &o);
    if (status >= 0 || (status = open_config(&a, &c)) >= 0) {
        return status;
    }
    status = BL_EXIT_OK;
    if (!a.json) {
        print_list(c);
    } else if (print_json_list(c, NULL, &err) != BL_OK) {
        status = bl_cli_fail(&err);
    }
    bl_config_free(c);
    return status;
}

/* ---- status ------------------------------------------------------------------------------------ */

static int run_status(int argc, char **argv);
static const bl_command status_command = {
    .name = "beta status",
    .summary = "Show one feature, or all, with details",
    .usage = "[ID] [--json] [--config FILE]",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .max_args = 1,
    .args_name = "the feature's id",
    .words = IDS,
    .run = run_status,
};

static void print_details(const bl_beta_feature *f) {
    printf("  %s\n", f->details);
    if (!acts(f)) {
        printf("  Without effect in this version: the choice is kept in the file.\n");
    } else if (f->needs_restart) {
        printf("  Read when a process starts: restart what is running.\n");
    }
}

static void print_status(const bl_beta_feature *f, const bl_config *c) {
    static const char *const shown[BL_BETA_STATE__MAX] = {"disabled", "ENABLED", "AUTOMATIC (model-aware)"};
    const bl_config_value *v = bl_config_get(c, f->key);
    printf("%s (%s): %s", f->title, f->id, shown[bl_beta_requested(f, c)]);
    if (v->in_file) {
        printf(", line %u of ", v->line);
        bl_cli_print_text(bl_config_file(c));
        putchar('\n');
    } else {
        printf(", by default\n");
    }
    print_details(f);
}

static int run_status(int argc, char **argv) {
    beta_args a;
    bl_opts o;
    bl_err err;
    bl_config *c = NULL;
    const bl_beta_feature *only = NULL;
    int status = bl_opts_begin(&status_command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    if (o.n_args > 0 && bl_beta_find(o.args[0], &only, &err) != BL_OK) {
        return bl_cli_wrong_usage(&err);
    }
    if ((status = open_config(&a, &c)) >= 0) {
        return status;
    }
    size_t n = 0;
    const bl_beta_feature *all = bl_beta_features(&n);
    status = BL_EXIT_OK;
    if (a.json && print_json_list(c, only, &err) != BL_OK) {
        status = bl_cli_fail(&err);
    }
    for (size_t i = 0; i < n && !a.json; i++) {
        if (only == NULL || only == &all[i]) {
            print_status(&all[i], c);
        }
    }
    bl_config_free(c);
    return status;
}

/* ---- enable, disable --------------------------------------------------------------------------- */

static int run_enable(int argc, char **argv);
static int run_disable(int argc, char **argv);

static const bl_command enable_command = {
    .name = "beta enable",
    .summary = "Switch a feature on, in provider.toml",
    .usage = "ID [--json] [--config FILE]",
    .about =
        "Writes the choice into the file, also where it is the default now, so that a later default does not "
        "change this machine. Nothing is written when the file says so already.",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the feature's id",
    .words = IDS,
    .run = run_enable,
};

static const bl_command disable_command = {
    .name = "beta disable",
    .summary = "Switch a feature off, in provider.toml",
    .usage = "ID [--json] [--config FILE]",
    .about = "Writes the choice into the file. Nothing is written when the file says so already.",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the feature's id",
    .words = IDS,
    .run = run_disable,
};

static bl_code tell(const beta_args *a, const bl_beta_feature *f, const char *path, bool on, bool written,
                    bl_err *err) {
    char key[96];
    bl_config_key_name(f->key, key);
    if (a->json) {
        return bl_cli_print_json(json_pack("{s:s, s:b, s:s, s:b, s:b, s:b, s:s, s:s}", "id", f->id, "enabled",
                                           on, "state", on ? "on" : "off", "written", written,
                                           "requiresRestart", f->needs_restart, "implemented", acts(f), "key",
                                           key, "file", path),
                                 err);
    }
    if (!written) {
        printf("%s (%s) is already %s in ", f->title, f->id, on ? "enabled" : "disabled");
    } else {
        printf("%s %s (%s)\n", on ? "Enabled" : "Disabled", f->title, f->id);
        print_details(f);
        printf("  %s in ", key);
    }
    bl_cli_print_text(path);
    putchar('\n');
    return BL_OK;
}

static int toggle(const bl_command *command, bool on, int argc, char **argv) {
    beta_args a;
    bl_opts o;
    bl_err err;
    const bl_beta_feature *f = NULL;
    char path[BL_CONFIG_MAX_PATH];
    bool written = false;
    int status = bl_opts_begin(command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    if (bl_beta_find(o.args[0], &f, &err) != BL_OK) {
        return bl_cli_wrong_usage(&err);
    }
    bl_code rc = bl_cli_config_path(&a.config, a.store.home, path, &err);
    if (rc == BL_OK) {
        rc = bl_beta_set(path, f, on, &written, &err);
    }
    if (rc == BL_OK) {
        rc = tell(&a, f, path, on, written, &err);
    }
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

static int run_enable(int argc, char **argv) {
    return toggle(&enable_command, true, argc, argv);
}

static int run_disable(int argc, char **argv) {
    return toggle(&disable_command, false, argc, argv);
}

/* ---- beta -------------------------------------------------------------------------------------- */

static const bl_command *const subcommands[] = {&list_command, &status_command, &enable_command,
                                                &disable_command};

static int run_beta(int argc, char **argv) {
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    return argc < 2 || (argv[1][0] == '-' && !help) ? run_list(argc, argv)
                                                    : bl_opts_run_sub(&bl_command_beta, argc, argv);
}

const bl_command bl_command_beta = {
    .name = "beta",
    .summary = "List and switch optional features",
    .usage = "[list|status|enable|disable]",
    .about = "Optional behaviour by name; without a subcommand the list.",
    .subs = subcommands,
    .n_subs = BL_COUNTOF(subcommands),
    .run = run_beta,
};
