/* The keys of provider.toml, in the order of docs/config.md: one table for the loader, `darkbloom config`,
 * its messages and its help (provider/config.h). */
#include "provider/config.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"

#define MAX_SECONDS_DAY 86400u
#define MAX_ANY         ((uint64_t)INT64_MAX) /* TOML's integers end there */

static const bl_config_key keys[BL_CONFIG__MAX] = {
    [BL_CONFIG_CONFIG_VERSION] =
        {"", "config_version", BL_CONFIG_U64, .def = "3", .min = 1, .max = MAX_ANY,
         .used_by = "every command",
         .doc = "The version of the file's keys. Kept up to date by whatever writes the file."},
    [BL_CONFIG_NAME] = {"provider", "name", BL_CONFIG_TEXT, .def = "\"darkbloom\"",
                        .doc = "The name under which this machine is shown."},
    [BL_CONFIG_MEMORY_RESERVE_GB] = {"provider", "memory_reserve_gb", BL_CONFIG_U64, .def = "4",
                                     .max = 1u << 20, .env = "DARKBLOOM_MLX_MEMORY_RESERVE_GB",
                                     .env_role = BL_CONFIG_ENV_WINS,
                                     .doc = "Memory that admission leaves to others."},
    [BL_CONFIG_AUTO_UPDATE] = {"provider", "auto_update", BL_CONFIG_BOOL, .def = "true",
                               .env = "DARKBLOOM_NO_UPDATE_CHECK", .env_role = BL_CONFIG_ENV_PRESENT,
                               .env_value = "false", .doc = "Look for new versions and install them."},
    [BL_CONFIG_AUTO_RESTART] = {"provider", "auto_restart", BL_CONFIG_BOOL, .def = "true",
                                .doc = "Start the service again after a crash."},
    [BL_CONFIG_UPDATE_JITTER_SECONDS] =
        {"provider", "update_jitter_seconds", BL_CONFIG_U64, .def = "300", .max = MAX_ANY,
         .doc = "Random delay of a background update at most; more than 3600 counts "
                "as 3600, 0 is none."},
    [BL_CONFIG_PORT] = {"backend", "port", BL_CONFIG_U64, .def = "8100", .max = 65535,
                        .doc = "The port of the earlier backend. 'start --local' listens on --port."},
    [BL_CONFIG_MODEL] = {"backend", "model", BL_CONFIG_TEXT, .env = "DARKBLOOM_MODEL",
                         .env_role = BL_CONFIG_ENV_WINS,
                         .used_by = "run, chat, start, benchmark, tokenize (before it: --model)",
                         .doc = "The model that is taken where a command is given none."},
    [BL_CONFIG_ENABLED_MODELS] = {"backend", "enabled_models", BL_CONFIG_TEXTS, .def = "[]",
                                  .doc = "Offer these models only; empty: every one that can be served."},
    [BL_CONFIG_IDLE_TIMEOUT_MINS] = {"backend", "idle_timeout_mins", BL_CONFIG_U64, .def = "60",
                                     .max = MAX_ANY,
                                     .doc = "Unload a model that was idle for so long; 0: never."},
    [BL_CONFIG_MAX_MODEL_SLOTS] = {"backend", "max_model_slots", BL_CONFIG_U64, .def = "3", .min = 1,
                                   .max = INT32_MAX, .doc = "Models that are loaded at one time."},
    [BL_CONFIG_MAX_CONCURRENT] =
        {"backend", "engine_v2_max_concurrent", BL_CONFIG_U64, .def = "4", .max = MAX_ANY,
         .used_by = "start (before it: --max-concurrent)",
         .doc = "Requests that are answered at one time. Below 1 counts as 1, above 64 as "
                "64."},
    [BL_CONFIG_MAX_CONCURRENT_BY_MODEL] = {"backend", "engine_v2_max_concurrent_by_model", BL_CONFIG_MAP_U64,
                                           .max = MAX_ANY, .used_by = "start (before it: --max-concurrent)",
                                           .doc = "The same for single models, by name."},
    [BL_CONFIG_KV_BACKEND] =
        {"backend", "engine_v2_kv_backend", BL_CONFIG_WORD, .def = "\"auto\"",
         .choices = "auto|paged|contiguous", .env = "DARKBLOOM_CBV2_PAGED_KV",
         .env_role = BL_CONFIG_ENV_SWITCH, .env_value = "\"contiguous\"",
         .used_by = "start (before it: --kv-storage)",
         .doc = "Where keys and values lie; auto is contiguous here. Answers do not depend on "
                "it. Another word is warned of and counts as auto."},
    [BL_CONFIG_KV_BACKEND_BY_MODEL] = {"backend", "engine_v2_kv_backend_by_model", BL_CONFIG_MAP_WORD,
                                       .choices = "auto|paged|contiguous",
                                       .used_by = "start (before it: --kv-storage)",
                                       .doc = "The same for single models, by name."},
    [BL_CONFIG_STARTUP_PRELOAD] = {"backend", "startup_preload", BL_CONFIG_BOOL, .def = "true",
                                   .doc = "Load models before the first request."},
    [BL_CONFIG_PRELOAD_MODELS] = {"backend", "preload_models", BL_CONFIG_TEXTS, .def = "[]",
                                  .doc = "Which, in this order; empty: those that were loaded last."},
    [BL_CONFIG_STARTUP_PRELOAD_TIMEOUT_SECS] = {"backend", "startup_preload_timeout_secs", BL_CONFIG_U64,
                                                .def = "120", .max = MAX_ANY,
                                                .doc = "How long registration waits for that."},
    [BL_CONFIG_STARTUP_SELFTEST] = {"backend", "startup_selftest", BL_CONFIG_BOOL, .def = "true",
                                    .doc = "Let each model draw one token after it was loaded."},
    [BL_CONFIG_STARTUP_SELFTEST_FAIL_CLOSED] = {"backend", "startup_selftest_fail_closed", BL_CONFIG_BOOL,
                                                .def = "false",
                                                .doc = "Do not serve a model that failed that."},
    [BL_CONFIG_MTP_MODE] =
        {"backend", "mtp_mode", BL_CONFIG_CHOICE, .def = "\"auto\"", .choices = "auto|on|off",
         .env = "DARKBLOOM_CBV2_MTP", .env_role = BL_CONFIG_ENV_SWITCH, .env_value = "\"off\"",
         .used_by = "run, chat, start, benchmark, models info (before it: --mtp-mode)",
         .doc = "Drafting. auto: with the head that a Qwen 3.5 family checkpoint embeds; on: heads "
                "published separately and mtp_drafter_path too; off: never. docs/mtp.md"},
    [BL_CONFIG_MTP_DRAFTER_PATH] =
        {"backend", "mtp_drafter_path", BL_CONFIG_TEXT,
         .used_by = "run, chat, start, benchmark, models info (before it: --mtp-drafter-path)",
         .doc = "Folder of a head that is not in the checkpoint; needs mtp_mode = \"on\". "
                "Blank: none."},
    [BL_CONFIG_PREFILL_DEADLINE_MODE] =
        {"backend", "prefill_deadline_mode", BL_CONFIG_CHOICE, .choices = "off|enforce",
         .env = "DARKBLOOM_PREFILL_DEADLINE_MODE", .env_role = BL_CONFIG_ENV_STANDS_IN,
         .doc = "Whether requests whose first token would come too late are refused."},
    [BL_CONFIG_MODEL_CACHE_DIRECTORY] = {"backend", "model_cache_directory", BL_CONFIG_TEXT,
                                         .doc = "Another folder of models."},
    [BL_CONFIG_MODEL_AUTOPILOT] = {"backend", "model_autopilot", BL_CONFIG_TABLE,
                                   .doc = "Consent to a coordinator's choice of loaded models."},
    [BL_CONFIG_COORDINATOR_URL] =
        {"coordinator", "url", BL_CONFIG_TEXT,
         .doc = "The coordinator of the fleet. No default here: none is ours to name."},
    [BL_CONFIG_HEARTBEAT_INTERVAL_SECS] = {"coordinator", "heartbeat_interval_secs", BL_CONFIG_U64,
                                           .def = "5", .min = 1, .max = MAX_SECONDS_DAY,
                                           .doc = "Time between two signs of life."},
    [BL_CONFIG_PRIVATE_ONLY] = {"coordinator", "private_only", BL_CONFIG_BOOL, .def = "false",
                                .doc = "Serve the owner's requests only."},
    [BL_CONFIG_PREFILL_LAYER18] =
        {"gemma_optimizations", "prefill_layer18", BL_CONFIG_BOOL, .def = "true",
         .doc = "Submit a prompt's work every 18 layers instead of once. Goes before the "
                "environment."},
    [BL_CONFIG_WEIGHTED_R1] =
        {"gemma_optimizations", "weighted_r1", BL_CONFIG_BOOL, .def = "true",
         .doc = "The fused expert path of prompts: weighted un-sort and exact-shape expert "
                "products, together. Goes before the environment."},
    [BL_CONFIG_SCHEDULE_ENABLED] = {"schedule", "enabled", BL_CONFIG_BOOL,
                                    .doc = "Serve within the windows only."},
    [BL_CONFIG_SCHEDULE_WINDOWS] =
        {"schedule", "windows", BL_CONFIG_WINDOWS,
         .doc = "[[schedule.windows]]: days (\"mon\" to \"sun\"), start and end "
                "(\"HH:MM\", local time; an end before the start is the next day's)."},
};

const bl_config_key *bl_config_key_of(bl_config_id id) {
    BL_ASSERT(id < BL_CONFIG__MAX);
    return &keys[id];
}

const char *bl_config_key_name(bl_config_id id, char ret[96]) {
    const bl_config_key *k = bl_config_key_of(id);
    snprintf(ret, 96, "%s%s%s", k->section, k->section[0] != '\0' ? "." : "", k->name);
    return ret;
}

/* "a|b|c" as "a", "b" or "c". */
static void words_in_quotes(const char *choices, char *ret, size_t cap) {
    size_t at = 0;
    for (const char *p = choices; *p != '\0' && at < cap;) {
        size_t n = strcspn(p, "|");
        const char *rest = p + n + (p[n] != '\0' ? 1 : 0);
        const char *between = p == choices ? "" : strchr(rest, '|') == NULL && *rest == '\0' ? " or " : ", ";
        int w = snprintf(ret + at, cap - at, "%s\"%.*s\"", between, (int)n, p);
        at += w > 0 ? (size_t)w : 0;
        p = rest;
    }
}

const char *bl_config_allowed(bl_config_id id, char ret[96]) {
    const bl_config_key *k = bl_config_key_of(id);
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        snprintf(ret, 96, "true or false");
        break;
    case BL_CONFIG_U64:
    case BL_CONFIG_MAP_U64:
        if (k->max == MAX_ANY) {
            snprintf(ret, 96, "an integer from %llu", (unsigned long long)k->min);
        } else {
            snprintf(ret, 96, "an integer from %llu to %llu", (unsigned long long)k->min,
                     (unsigned long long)k->max);
        }
        break;
    case BL_CONFIG_CHOICE:
    case BL_CONFIG_WORD:
    case BL_CONFIG_MAP_WORD:
        words_in_quotes(k->choices, ret, 96);
        break;
    case BL_CONFIG_TEXT:
        snprintf(ret, 96, "a string in quotes, of at most %u bytes", BL_CONFIG_MAX_TEXT);
        break;
    case BL_CONFIG_TEXTS:
        snprintf(ret, 96, "an array of strings");
        break;
    case BL_CONFIG_TABLE:
        snprintf(ret, 96, "a table");
        break;
    case BL_CONFIG_WINDOWS:
        snprintf(ret, 96, "an array of tables");
        break;
    case BL_CONFIG_KIND__MAX:
        BL_ASSERT(false);
    }
    return ret;
}

/* ---- by name ------------------------------------------------------------------------------------------- */

static bool is_map(bl_config_id id) {
    return keys[id].kind == BL_CONFIG_MAP_U64 || keys[id].kind == BL_CONFIG_MAP_WORD;
}

/* Whole name, or whole name and ".ENTRY" of a map; with short names those without their section. */
static bool matches(bl_config_id id, const char *name, bool short_names, const char **ret_entry) {
    char full[96];
    const char *want = short_names ? keys[id].name : bl_config_key_name(id, full);
    size_t n = strlen(want);
    *ret_entry = NULL;
    if (strncmp(name, want, n) != 0) {
        return false;
    }
    if (name[n] == '.' && name[n + 1] != '\0' && is_map(id)) {
        *ret_entry = name + n + 1;
        return true;
    }
    return name[n] == '\0';
}

static bl_code fail_unknown(const char *name, bl_err *err) {
    char full[BL_CONFIG__MAX][96];
    const char *names[2 * BL_CONFIG__MAX];
    for (size_t i = 0; i < BL_CONFIG__MAX; i++) {
        names[i] = bl_config_key_name((bl_config_id)i, full[i]);
        names[BL_CONFIG__MAX + i] = keys[i].name;
    }
    const char *near = bl_nearest(name, names, BL_COUNTOF(names));
    if (near != NULL) {
        BL_FAIL(err, BL_ENOTFOUND, "no key '%.60s', did you mean '%s'?", name, near);
    }
    BL_FAIL(err, BL_ENOTFOUND, "no key '%.60s' ('darkbloom config show' lists them)", name);
}

bl_code bl_config_find(const char *name, bl_config_id *ret, const char **ret_entry, bl_err *err) {
    for (unsigned short_names = 0; short_names < 2; short_names++) {
        bl_config_id found = BL_CONFIG__MAX;
        const char *entry = NULL, *e = NULL;
        for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
            if (matches((bl_config_id)i, name, short_names == 1, &e)) {
                found = found == BL_CONFIG__MAX ? (bl_config_id)i : BL_CONFIG__MAX + 1;
                entry = e;
            }
        }
        if (found < BL_CONFIG__MAX) {
            *ret = found;
            *ret_entry = entry;
            return BL_OK;
        }
    }
    return fail_unknown(name, err);
}
