/* `darkbloom config`: what is in force and where it comes from, and changing it. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "formats/names.h"

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bool json;
    const char *env[BL_CONFIG__MAX]; /* of each key's variable */
    bl_opts_line line;               /* of a command that was named behind the options; or none */
} config_args;

#define ENV(id, var, what)                                                                                   \
    { BL_OPT_TEXT_AT(config_args, env[id]), .env = var, .doc = what }

static const bl_opt options[] = {
    {BL_OPT_FLAG_AT(config_args, json), .name = "json", .group = "Output", .doc = "Print one JSON object."},
    BL_CLI_CONFIG_OPTIONS(config_args),
    {BL_OPT_TEXT_AT(config_args, store.home), .env = "HOME", .doc = "The user's folder, ~ above."},
    ENV(BL_CONFIG_MODEL, "DARKBLOOM_MODEL", "Goes before backend.model."),
    ENV(BL_CONFIG_MTP_MODE, "DARKBLOOM_CBV2_MTP", "0, false, no or off: as backend.mtp_mode = \"off\"."),
    ENV(BL_CONFIG_KV_BACKEND, "DARKBLOOM_CBV2_PAGED_KV",
        "0, false, no or off: as backend.engine_v2_kv_backend = \"contiguous\"."),
    ENV(BL_CONFIG_MEMORY_RESERVE_GB, "DARKBLOOM_MLX_MEMORY_RESERVE_GB",
        "Goes before provider.memory_reserve_gb."),
    ENV(BL_CONFIG_AUTO_UPDATE, "DARKBLOOM_NO_UPDATE_CHECK", "Anything: as provider.auto_update = false."),
    ENV(BL_CONFIG_PREFILL_DEADLINE_MODE, "DARKBLOOM_PREFILL_DEADLINE_MODE",
        "Where backend.prefill_deadline_mode is not in the file."),
};

/* The table above and that of the keys name the same variables. */
static void check_variables(void) {
    for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
        const char *env = bl_config_key_of((bl_config_id)id)->env;
        bool found = env == NULL;
        for (size_t i = 0; i < BL_COUNTOF(options); i++) {
            found = found || (options[i].offset == offsetof(config_args, env) + id * sizeof(char *) &&
                              strcmp(options[i].env, env) == 0);
        }
        BL_ASSERT(found);
    }
}

/* ---- one key ----------------------------------------------------------------------------------- */

typedef struct {
    bl_config_id id;
    const bl_config_key *key;
    char name[96];
    bl_buf value; /* in force, as it would be written; "" for none */
    bl_config_origin origin;
    const char *option; /* on the command line that was asked about */
    const bl_config_value *in_file;
} setting;

/* An option goes before everything but a kill switch. */
static bl_code overlay_line(const config_args *a, setting *s, bl_err *err) {
    const bl_opts_line *l = &a->line;
    bool killed = s->origin == BL_CONFIG_FROM_ENV && s->key->env_role == BL_CONFIG_ENV_SWITCH;
    for (size_t i = 0; l->command != NULL && !killed && i < l->command->n_opts; i++) {
        const bl_opt *o = &l->command->opts[i];
        if (o->config == NULL || strcmp(o->config, s->name) != 0 ||
            (l->opts.on_command_line >> i & 1u) == 0) {
            continue;
        }
        bl_buf text;
        bl_buf_init(&text, BL_OPT_MAX_BYTES);
        bl_code rc = bl_opts_line_value(l, i, &text, err);
        bl_buf_reset(&s->value);
        if (rc == BL_OK) {
            rc = bl_config_typed(s->id, false, o->name, bl_buf_str(&text), &s->value, err);
        }
        bl_buf_done(&text);
        s->origin = BL_CONFIG_FROM_COMMAND_LINE;
        s->option = o->name;
        return rc;
    }
    return BL_OK;
}

static bl_code setting_open(const config_args *a, const bl_config *c, bl_config_id id, setting *ret,
                            bl_err *err) {
    *ret = (setting){.id = id, .key = bl_config_key_of(id), .in_file = bl_config_get(c, id)};
    bl_config_key_name(id, ret->name);
    bl_buf_init(&ret->value, 1u << 20);
    BL_TRY(bl_config_effective(c, id, a->env[id], &ret->value, &ret->origin, err));
    return overlay_line(a, ret, err);
}

static void setting_done(setting *s) {
    bl_buf_done(&s->value);
}

/* "default", "provider.toml:12", "environment NAME" */
static void write_origin(const setting *s, const char *file, char *ret, size_t cap) {
    switch (s->origin) {
    case BL_CONFIG_FROM_DEFAULT:
        snprintf(ret, cap, "%s", s->value.len > 0 ? "default" : "not set");
        break;
    case BL_CONFIG_FROM_FILE:
        snprintf(ret, cap, "%s:%u%s", file, s->in_file->line,
                 s->in_file->migrated ? " (of an earlier version)" : "");
        break;
    case BL_CONFIG_FROM_ENV:
        snprintf(ret, cap, "environment %s", s->key->env);
        break;
    case BL_CONFIG_FROM_COMMAND_LINE:
        snprintf(ret, cap, "command line --%s", s->option);
        break;
    }
}

/* Whether every variable holds what its key takes: before anything is printed. */
static bl_code check_all(const config_args *a, const bl_config *c, bl_err *err) {
    bl_code rc = BL_OK;
    for (unsigned id = 0; id < BL_CONFIG__MAX && rc == BL_OK; id++) {
        setting s;
        rc = setting_open(a, c, (bl_config_id)id, &s, err);
        setting_done(&s);
    }
    return rc;
}

static bl_code setting_json(const setting *s, json_t **ret, bl_err *err) {
    static const char *const origins[] = {"default", "file", "environment", "command line"};
    json_t *value = NULL, *def = NULL;
    BL_TRY(bl_cli_config_json(bl_buf_str(&s->value), &value, err));
    bl_code rc = bl_cli_config_json(s->key->def != NULL ? s->key->def : "", &def, err);
    if (rc != BL_OK) {
        json_decref(value);
        return rc;
    }
    *ret = json_pack("{s:s, s:o, s:s, s:o, s:s?, s:s?, s:s?, s:o}", "key", s->name, "value", value, "source",
                     origins[s->origin], "default", def, "environment",
                     s->origin == BL_CONFIG_FROM_ENV ? s->key->env : NULL, "option", s->option, "used_by",
                     s->key->used_by, "line",
                     s->in_file->in_file ? json_integer(s->in_file->line) : json_null());
    if (*ret == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the settings");
    }
    return BL_OK;
}

/* Parses, loads the file and prints its warnings; < 0 to go on. */
static int begin(const bl_command *command, int argc, char **argv, config_args *a, bl_opts *o,
                 bl_config **ret) {
    bl_err err;
    int status = bl_opts_begin(command, argc, argv, a, o);
    if (status >= 0) {
        return status;
    }
    check_variables();
    return bl_cli_config_open(&a->config, a->store.home, ret, &err) == BL_OK ? -1 : bl_cli_fail(&err);
}

/* ---- show -------------------------------------------------------------------------------------- */

static int run_show(int argc, char **argv);
static const bl_command show_command = {
    .name = "config show",
    .summary = "Show every setting and where its value comes from",
    .usage = "[--json] [--config FILE] [-- COMMAND [its options]]",
    .about =
        "Shows the value in force of every key of provider.toml and its origin: the default, the line of the "
        "file, or the environment variable. With a command behind --, what its options make of that; it is "
        "not run.",
    .examples = "  darkbloom config show\n"
                "  darkbloom config show -- start --local --max-concurrent 8 --mtp-mode off\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_show,
};

static bl_code show_json(const config_args *a, const bl_config *c, bl_err *err) {
    json_t *keys = json_array(), *warnings = json_array();
    bl_code rc = BL_OK;
    for (unsigned id = 0; id < BL_CONFIG__MAX && rc == BL_OK; id++) {
        setting s;
        json_t *one = NULL;
        rc = setting_open(a, c, (bl_config_id)id, &s, err);
        if (rc == BL_OK) {
            rc = setting_json(&s, &one, err);
        }
        if (rc == BL_OK) {
            (void)json_array_append_new(keys, one);
        }
        setting_done(&s);
    }
    for (size_t i = 0; i < bl_config_n_warnings(c); i++) {
        (void)json_array_append_new(warnings, json_string(bl_config_warning(c, i)));
    }
    if (rc != BL_OK) {
        json_decref(keys);
        json_decref(warnings);
        return rc;
    }
    return bl_cli_print_json(json_pack("{s:s, s:b, s:o, s:o}", "file", bl_config_file(c), "exists",
                                       bl_config_exists(c), "keys", keys, "warnings", warnings),
                             err);
}

static bl_code show_table(const config_args *a, const bl_config *c, bl_err *err) {
    BL_TRY(check_all(a, c, err));
    bl_cli_print_text(bl_config_file(c));
    printf("%s\n\n", bl_config_exists(c) ? "" : " (not there: defaults)");
    for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
        setting s;
        char origin[BL_CONFIG_MAX_PATH];
        bl_code rc = setting_open(a, c, (bl_config_id)id, &s, err);
        if (rc == BL_OK) {
            write_origin(&s, bl_name_of_path(bl_config_file(c)), origin, sizeof origin);
            printf("%-43s ", s.name);
            bl_cli_print_text(s.value.len > 0 ? bl_buf_str(&s.value) : "-");
            printf("%*s  ", (int)(s.value.len < 14 ? 14 - BL_MAX(s.value.len, (size_t)1) : 0), "");
            bl_cli_print_text(origin);
            putchar('\n');
        }
        setting_done(&s);
        BL_TRY(rc);
    }
    return BL_OK;
}

/* What stands behind "--". */
static bl_code read_line(config_args *a, int argc, char **argv, bl_err *err) {
    for (size_t i = 0; i < bl_n_commands; i++) {
        if (strcmp(bl_commands[i]->name, argv[0]) == 0) {
            return bl_opts_line_read(bl_commands[i], argc, argv, &a->line, err);
        }
    }
    BL_FAIL(err, BL_EINVAL, "unknown command '%.60s' behind --", argv[0]);
}

static int run_show(int argc, char **argv) {
    config_args a = {0}; /* env: keys without a variable have no option that fills it */
    bl_opts o;
    bl_err err;
    bl_config *c = NULL;
    int n = 1;
    while (n < argc && strcmp(argv[n], "--") != 0) {
        n++;
    }
    int status = begin(&show_command, n, argv, &a, &o, &c);
    if (status >= 0) {
        return status;
    }
    if (n + 1 < argc && read_line(&a, argc - n - 1, argv + n + 1, &err) != BL_OK) {
        status = bl_cli_wrong_usage(&err);
    } else {
        status = (a.json ? show_json(&a, c, &err) : show_table(&a, c, &err)) == BL_OK ? BL_EXIT_OK
                                                                                      : bl_cli_fail(&err);
    }
    bl_opts_line_free(&a.line);
    bl_config_free(c);
    return status;
}

/* ---- get --------------------------------------------------------------------------------------- */

static int run_get(int argc, char **argv);
static const bl_command get_command = {
    .name = "config get",
    .summary = "Print the value of one setting",
    .usage = "KEY [--json] [--config FILE]",
    .about =
        "Prints the value in force of one key, a string without quotes; exit status 1 when it has none. With "
        "--json also where it comes from. An entry of a table: KEY.MODEL.",
    .examples = "  darkbloom config get backend.mtp_mode\n"
                "  darkbloom config get mtp_mode --json\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the key",
    .run = run_get,
};

static bl_code entry_text(const bl_config *c, bl_config_id id, const char *entry, bl_buf *ret, bl_err *err) {
    const bl_toml_node *map = bl_config_get(c, id)->node;
    const bl_toml_node *e = map != NULL ? bl_toml_find(map, entry) : NULL;
    if (e == NULL) {
        return BL_OK;
    }
    return e->kind == BL_TOML_STRING ? bl_toml_quote(e->v.str.s, e->v.str.len, ret, err)
                                     : bl_buf_printf(ret, err, "%lld", (long long)e->v.i);
}

/* A string without its quotes; anything else as it is written. */
static bl_code print_bare(const char *name, const char *value, bl_err *err) {
    json_t *j = NULL;
    if (value[0] == '\0') {
        BL_FAIL(err, BL_ENOTFOUND, "%s is not set", name);
    }
    BL_TRY(bl_cli_config_json(value, &j, err));
    bl_cli_print_text(json_is_string(j) ? json_string_value(j) : value);
    putchar('\n');
    json_decref(j);
    return BL_OK;
}

static bl_code get_one(const config_args *a, const bl_config *c, bl_config_id id, const char *entry,
                       bl_err *err) {
    setting s;
    json_t *j = NULL;
    bl_code rc = setting_open(a, c, id, &s, err);
    if (rc == BL_OK && entry != NULL) {
        bl_buf_reset(&s.value);
        rc = entry_text(c, id, entry, &s.value, err);
    }
    if (rc == BL_OK && a->json) {
        rc = setting_json(&s, &j, err);
        rc = rc == BL_OK ? bl_cli_print_json(j, err) : rc;
    } else if (rc == BL_OK) {
        rc = print_bare(s.name, bl_buf_str(&s.value), err);
    }
    setting_done(&s);
    return rc;
}

static int run_get(int argc, char **argv) {
    config_args a = {0};
    bl_opts o;
    bl_err err;
    bl_config_id id;
    const char *entry = NULL;
    bl_config *c = NULL;
    int status = begin(&get_command, argc, argv, &a, &o, &c);
    if (status >= 0) {
        return status;
    }
    if (bl_config_find(o.args[0], &id, &entry, &err) != BL_OK) {
        status = bl_cli_wrong_usage(&err);
    } else {
        status = get_one(&a, c, id, entry, &err) == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
    }
    bl_config_free(c);
    return status;
}

/* ---- set --------------------------------------------------------------------------------------- */

static int run_set(int argc, char **argv);
static const bl_command set_command = {
    .name = "config set",
    .summary = "Change one setting in provider.toml",
    .usage = "KEY VALUE [--json] [--config FILE]",
    .about = "Checks the value and writes it into the file, where nothing else changes: comments and keys "
             "that this "
             "program does not know stay. What runs already keeps what it started with.\n"
             "\n"
             "Strings without quotes; a list with commas between its strings (\"\" empties it); an entry of "
             "a table "
             "as KEY.MODEL.",
    .examples = "  darkbloom config set backend.mtp_mode off\n"
                "  darkbloom config set backend.enabled_models org/one,org/two\n"
                "  darkbloom config set backend.engine_v2_max_concurrent_by_model.org/one 2\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .min_args = 2,
    .max_args = 2,
    .args_name = "the key and its value",
    .run = run_set,
};

typedef struct {
    bl_config_id id;
    const char *name, *entry, *value;
} change;

/* Whether the file itself says that already, in whatever way it is written. */
static bl_code is_there(const bl_config *c, const change *ch, bool *ret, bl_err *err) {
    const bl_config_value *v = bl_config_get(c, ch->id);
    bl_buf now;
    bl_buf_init(&now, 1u << 20);
    bl_code rc = ch->entry != NULL ? entry_text(c, ch->id, ch->entry, &now, err)
                                   : bl_config_write_value(c, ch->id, &now, err);
    *ret = v->in_file && !v->migrated && strcmp(bl_buf_str(&now), ch->value) == 0;
    bl_buf_done(&now);
    return rc;
}

static bl_code write_change(const char *path, const change *ch, bool *ret_written, bl_err *err) {
    bl_config_edit *e = NULL;
    bool there = false;
    bl_code rc = bl_config_edit_begin(path, &e, err);
    if (rc == BL_OK) {
        rc = is_there(bl_config_edit_config(e), ch, &there, err);
    }
    if (rc == BL_OK && !there) {
        rc = bl_config_edit_set(e, ch->id, ch->entry, ch->value, err);
        if (rc == BL_OK) {
            rc = bl_config_edit_commit(e, ret_written, err);
        }
    }
    bl_config_edit_end(e);
    return rc;
}

static bl_code tell_change(const config_args *a, const char *path, const change *ch, bool written,
                           bl_err *err) {
    if (bl_config_env_decides(ch->id, true, a->env[ch->id])) {
        bl_cli_errorf("warning: %s is set in this environment and goes before the file",
                      bl_config_key_of(ch->id)->env);
    }
    if (a->json) {
        json_t *value = NULL;
        BL_TRY(bl_cli_config_json(ch->value, &value, err));
        return bl_cli_print_json(json_pack("{s:s, s:o, s:b, s:s}", "key", ch->name, "value", value, "written",
                                           written, "file", path),
                                 err);
    }
    printf("%s %s %s", ch->name, written ? "=" : "already is", ch->value);
    printf("  in ");
    bl_cli_print_text(path);
    putchar('\n');
    return BL_OK;
}

static int run_set(int argc, char **argv) {
    config_args a = {0};
    bl_opts o;
    bl_err err;
    char path[BL_CONFIG_MAX_PATH];
    int status = bl_opts_begin(&set_command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    check_variables();
    change ch = {.name = o.args[0]};
    bl_buf value;
    bl_buf_init(&value, 1u << 20);
    bl_code rc = bl_config_find(ch.name, &ch.id, &ch.entry, &err);
    if (rc == BL_OK && ch.id == BL_CONFIG_CONFIG_VERSION) {
        rc =
            bl_err_set(&err, BL_EINVAL, __FILE__, __LINE__, "config_version is written by the program alone");
    }
    if (rc == BL_OK) {
        rc = bl_config_typed(ch.id, ch.entry != NULL, ch.name, o.args[1], &value, &err);
    }
    if (rc != BL_OK) {
        bl_buf_done(&value);
        return bl_cli_wrong_usage(&err);
    }
    bool written = false;
    ch.value = bl_buf_str(&value);
    rc = bl_cli_config_path(&a.config, a.store.home, path, &err);
    if (rc == BL_OK) {
        rc = write_change(path, &ch, &written, &err);
    }
    if (rc == BL_OK) {
        rc = tell_change(&a, path, &ch, written, &err);
    }
    bl_buf_done(&value);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

/* ---- explain ----------------------------------------------------------------------------------- */

static int run_explain(int argc, char **argv);
static const bl_command explain_command = {
    .name = "config explain",
    .summary = "Say what settings mean, allow and override",
    .usage = "[KEY...] [--json] [--config FILE]",
    .about = "Says what each key means, what it may hold, its default, what it is now and why, and what goes "
             "before "
             "it. Without a key: all of them.",
    .examples = "  darkbloom config explain mtp_mode\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .max_args = BL_OPT_MAX_ARGS,
    .args_name = "keys",
    .run = run_explain,
};

/* What the variable of a key does; "" for none. */
static void write_env(const bl_config_key *k, char ret[160]) {
    ret[0] = '\0';
    switch (k->env_role) {
    case BL_CONFIG_ENV_NONE:
        break;
    case BL_CONFIG_ENV_WINS:
        snprintf(ret, 160, "%s goes before the file", k->env);
        break;
    case BL_CONFIG_ENV_STANDS_IN:
        snprintf(ret, 160, "%s counts where the file says nothing", k->env);
        break;
    case BL_CONFIG_ENV_SWITCH:
        snprintf(ret, 160, "%s set to 0, false, no or off: %s, whatever the file says", k->env, k->env_value);
        break;
    case BL_CONFIG_ENV_PRESENT:
        snprintf(ret, 160, "%s set to anything: %s, whatever the file says", k->env, k->env_value);
        break;
    }
}

static void explain_text(const setting *s, const bl_config *c) {
    char origin[BL_CONFIG_MAX_PATH + 32], allowed[96], env[160];
    write_origin(s, bl_config_file(c), origin, sizeof origin);
    write_env(s->key, env);
    printf("%s\n  %s\n", s->name, s->key->doc);
    printf("  allowed      %s\n", bl_config_allowed(s->id, allowed));
    printf("  default      %s\n", s->key->def != NULL ? s->key->def : "not set");
    printf("  now          ");
    bl_cli_print_text(s->value.len > 0 ? bl_buf_str(&s->value) : "not set");
    if (s->value.len > 0) {
        printf(", ");
        bl_cli_print_text(origin);
    }
    putchar('\n');
    if (env[0] != '\0') {
        printf("  environment  %s\n", env);
    }
    printf("  used by      %s\n",
           s->key->used_by != NULL ? s->key->used_by : "nothing in this version: it is checked and kept");
}

static bl_code explain_json(setting *s, json_t *list, bl_err *err) {
    json_t *one = NULL;
    char allowed[96], env[160];
    BL_TRY(setting_json(s, &one, err));
    write_env(s->key, env);
    (void)json_object_set_new(one, "doc", json_string(s->key->doc));
    (void)json_object_set_new(one, "allowed", json_string(bl_config_allowed(s->id, allowed)));
    (void)json_object_set_new(one, "environment_rule", env[0] != '\0' ? json_string(env) : json_null());
    (void)json_array_append_new(list, one);
    return BL_OK;
}

static bl_code explain_keys(const config_args *a, const bl_config *c, const bl_config_id *ids, size_t n,
                            bl_err *err) {
    json_t *list = a->json ? json_array() : NULL;
    bl_code rc = check_all(a, c, err);
    for (size_t i = 0; i < n && rc == BL_OK; i++) {
        setting s;
        rc = setting_open(a, c, ids[i], &s, err);
        if (rc == BL_OK && a->json) {
            rc = explain_json(&s, list, err);
        } else if (rc == BL_OK) {
            printf("%s", i > 0 ? "\n" : "");
            explain_text(&s, c);
        }
        setting_done(&s);
    }
    if (rc != BL_OK || !a->json) {
        json_decref(list);
        return rc;
    }
    return bl_cli_print_json(json_pack("{s:s, s:o}", "file", bl_config_file(c), "keys", list), err);
}

static int run_explain(int argc, char **argv) {
    config_args a = {0};
    bl_opts o;
    bl_err err;
    bl_config *c = NULL;
    bl_config_id ids[BL_CONFIG__MAX];
    size_t n = 0;
    const char *entry = NULL;
    int status = begin(&explain_command, argc, argv, &a, &o, &c);
    if (status >= 0) {
        return status;
    }
    static_assert(BL_OPT_MAX_ARGS <= BL_CONFIG__MAX, "ids holds every argument");
    bl_code found = BL_OK;
    for (; n < o.n_args && found == BL_OK; n++) {
        found = bl_config_find(o.args[n], &ids[n], &entry, &err);
    }
    for (; o.n_args == 0 && n < BL_CONFIG__MAX; n++) {
        ids[n] = (bl_config_id)n;
    }
    if (found != BL_OK) {
        status = bl_cli_wrong_usage(&err);
    } else {
        status = explain_keys(&a, c, ids, n, &err) == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
    }
    bl_config_free(c);
    return status;
}

/* ---- config ------------------------------------------------------------------------------------ */

static const bl_command *const subcommands[] = {&show_command, &get_command, &set_command, &explain_command};

static int run_config(int argc, char **argv) {
    return bl_opts_run_sub(&bl_command_config, argc, argv);
}

const bl_command bl_command_config = {
    .name = "config",
    .summary = "Show, explain and change the configuration",
    .usage = "show|get|set|explain",
    .subs = subcommands,
    .n_subs = BL_COUNTOF(subcommands),
    .run = run_config,
};
