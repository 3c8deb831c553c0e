/* `darkbloom status`: what the server on this machine says of itself. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "provider/beta.h"
#include "provider/state.h"

typedef struct {
    bl_cli_store_args store;
    bl_cli_state_args state;
    bl_cli_config_args config;
    bool json;
} status_args;

static const bl_opt options[] = {
    {BL_OPT_FLAG_AT(status_args, json), .name = "json", .group = "Output", .doc = "Print one JSON object."},
    {BL_OPT_TEXT_AT(status_args, store.home), .env = "HOME", .doc = "The user's folder, ~ below."},
    BL_CLI_STATE_OPTIONS(status_args),
    BL_CLI_CONFIG_OPTIONS(status_args),
};

/* "12 s", "3 min", "5 h", "2 days" */
static void show_age(int64_t seconds, char *ret, size_t cap) {
    if (seconds < 120) {
        snprintf(ret, cap, "%" PRId64 " s", BL_MAX(seconds, (int64_t)0));
    } else if (seconds < 7200) {
        snprintf(ret, cap, "%" PRId64 " min", seconds / 60);
    } else if (seconds < 172800) {
        snprintf(ret, cap, "%" PRId64 " h", seconds / 3600);
    } else {
        snprintf(ret, cap, "%" PRId64 " days", seconds / 86400);
    }
}

/* Everything in the file was written by a program, but not necessarily by this one. */
static void print_text(const char *text) {
    (void)bl_cli_write_text(stdout, text, strlen(text), true);
}

static void print_slot(const bl_state_slot *s) {
    char mtp[BL_MTP_LINE_BYTES];
    printf("model        ");
    print_text(s->model);
    printf(": kv=");
    print_text(s->load_error[0] != '\0' ? "NOT SERVING" : s->kv_backend);
    printf(" (requested ");
    print_text(s->kv_requested);
    if (s->kv_fallback[0] != '\0') {
        printf(", ");
        print_text(s->kv_fallback);
    }
    if (s->load_error[0] != '\0') {
        printf(") — load failed: ");
        print_text(s->load_error);
        putchar('\n');
        return;
    }
    bl_mtp_posture(s->mtp_enabled, s->mtp_active, s->mtp_inactive_reason, mtp);
    printf(") | mtp=");
    print_text(mtp);
    if (s->mtp_active) {
        printf(", k=%u", s->mtp_depth);
    }
    putchar('\n');
}

static void print_state(const bl_state *s, bool live) {
    char age[32];
    show_age(bl_clock_wall_s() - s->started_at, age, sizeof age);
    printf("server       %s, pid %" PRId64 ", version ",
           live ? "running" : "NOT RUNNING (its state is STALE)", s->pid);
    print_text(s->version);
    printf(", started %s ago\n", age);
    if (s->address[0] != '\0') {
        bool v6 = strchr(s->address, ':') != NULL;
        printf("address      http://%s", v6 ? "[" : "");
        print_text(s->address);
        printf("%s:%u\n", v6 ? "]" : "", s->port);
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        print_slot(&s->slots[i]);
    }
}

/* What the configuration asks for: {"mtp": "auto", ...}. What a server does is in its state. */
static json_t *beta_json(const bl_config *c) {
    size_t n = 0;
    const bl_beta_feature *all = bl_beta_features(&n);
    json_t *j = json_object();
    for (size_t i = 0; i < n; i++) {
        (void)json_object_set_new(j, all[i].id,
                                  json_string(bl_beta_state_name(bl_beta_requested(&all[i], c))));
    }
    return j;
}

/* {"running": true, "stale": false, "stateFile": "...", "beta": {...}, "state": {...}} */
static bl_code print_json(const char *path, const bl_state *s, bool live, const bl_config *c, bl_err *err) {
    json_t *j =
        json_pack("{s:b, s:b, s:s}", "running", (int)live, "stale", (int)(s && !live), "stateFile", path);
    if (j) {
        (void)json_object_set_new(j, "beta", beta_json(c));
        (void)json_object_set_new(j, "state", s ? bl_state_to_json(s) : json_null());
    }
    return bl_cli_print_json(j, err);
}

/* *s is NULL where there is no state file. */
static bl_code read_state(const status_args *a, char path[BL_STORE_MAX_PATH], bl_state **s, bl_err *err) {
    BL_TRY(bl_state_path(a->state.file, a->state.home, a->store.home, path, BL_STORE_MAX_PATH, err));
    bl_state *state = bl_alloc(sizeof *state);
    if (!state) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the state file");
    }
    bl_code rc = bl_state_read(path, state, err);
    if (rc != BL_OK) {
        bl_free(state);
        return rc == BL_ENOTFOUND ? BL_OK : rc;
    }
    *s = state;
    return BL_OK;
}

static int run_status(int argc, char **argv) {
    status_args a;
    bl_opts o;
    bl_err err;
    char path[BL_STORE_MAX_PATH], beta[160];
    bl_config *c = NULL;
    bl_state *s = NULL;
    int status = bl_opts_begin(&bl_command_status, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    bl_code rc = bl_cli_config_open(&a.config, a.store.home, &c, &err);
    if (rc == BL_OK) {
        rc = read_state(&a, path, &s, &err);
    }
    bool live = rc == BL_OK && s && bl_state_is_live(s);
    if (rc == BL_OK && a.json) {
        rc = print_json(path, s, live, c, &err);
    } else if (rc == BL_OK && s) {
        print_state(s, live);
    } else if (rc == BL_OK) {
        puts("server       not running");
    }
    if (rc == BL_OK && !a.json) {
        printf("beta         %s\n", bl_beta_line(c, beta));
    }
    bl_config_free(c);
    bl_free(s);
    if (rc != BL_OK) {
        return bl_cli_fail(&err);
    }
    return live ? BL_EXIT_OK : BL_EXIT_FAILED;
}

const bl_command bl_command_status = {
    .name = "status",
    .summary = "Show the server that runs here",
    .usage = "[--json]",
    .about =
        "Reads what 'darkbloom start' wrote when it began to serve: process, address, model, how keys and "
        "values are stored, and whether tokens are drafted ahead. A state whose process is gone is called "
        "stale. Below it the beta features, as the configuration asks for them.\n"
        "\n"
        "Exit status: 0 while a server runs, 1 otherwise.",
    .examples = "  darkbloom status\n"
                "  darkbloom status --json | jq .state.slots\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_status,
};
