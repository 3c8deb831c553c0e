/* provider.toml: the one strict loader and the one way to change it, for every command (docs/config.md).
 *
 * Loading: a file that is not there means defaults; one that cannot be read, is no TOML, or holds a value of
 * another type or word than its key takes is an error that names path, line, key, what was found and what is
 * allowed. So a mistyped rollback never turns into defaults. Unknown keys are kept and warned of. Values of
 * files of earlier versions are taken as those versions meant them.
 *
 * Changing: a lock beside the file, loading again inside it, replacing single values in the text (comments
 * and unknown keys stay, byte for byte), a temporary, fsync, rename, fsync of the folder.
 *
 * Not here: the environment and the command line (cli/ knows those and passes them in), and what a key does.
 */
#ifndef BL_PROVIDER_CONFIG_H
#define BL_PROVIDER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"
#include "formats/toml.h"

#define BL_CONFIG_VERSION      3u
#define BL_CONFIG_MAX_PATH     4096u
#define BL_CONFIG_MAX_TEXT     4096u /* bytes of one string value */
#define BL_CONFIG_MAX_WARNINGS 32u

/* ---- keys ---------------------------------------------------------------------------------------------- */

typedef enum {
    BL_CONFIG_CONFIG_VERSION,
    BL_CONFIG_NAME,
    BL_CONFIG_MEMORY_RESERVE_GB,
    BL_CONFIG_AUTO_UPDATE,
    BL_CONFIG_AUTO_RESTART,
    BL_CONFIG_UPDATE_JITTER_SECONDS,
    BL_CONFIG_PORT,
    BL_CONFIG_MODEL,
    BL_CONFIG_ENABLED_MODELS,
    BL_CONFIG_IDLE_TIMEOUT_MINS,
    BL_CONFIG_MAX_MODEL_SLOTS,
    BL_CONFIG_MAX_CONCURRENT,
    BL_CONFIG_MAX_CONCURRENT_BY_MODEL,
    BL_CONFIG_KV_BACKEND,
    BL_CONFIG_KV_BACKEND_BY_MODEL,
    BL_CONFIG_STARTUP_PRELOAD,
    BL_CONFIG_PRELOAD_MODELS,
    BL_CONFIG_STARTUP_PRELOAD_TIMEOUT_SECS,
    BL_CONFIG_STARTUP_SELFTEST,
    BL_CONFIG_STARTUP_SELFTEST_FAIL_CLOSED,
    BL_CONFIG_MTP_MODE,
    BL_CONFIG_MTP_DRAFTER_PATH,
    BL_CONFIG_PREFILL_DEADLINE_MODE,
    BL_CONFIG_MODEL_CACHE_DIRECTORY,
    BL_CONFIG_MODEL_AUTOPILOT,
    BL_CONFIG_COORDINATOR_URL,
    BL_CONFIG_HEARTBEAT_INTERVAL_SECS,
    BL_CONFIG_PRIVATE_ONLY,
    BL_CONFIG_PREFILL_LAYER18,
    BL_CONFIG_WEIGHTED_R1,
    BL_CONFIG_SCHEDULE_ENABLED,
    BL_CONFIG_SCHEDULE_WINDOWS,
    BL_CONFIG__MAX
} bl_config_id;

typedef enum {
    BL_CONFIG_BOOL,
    BL_CONFIG_U64,
    BL_CONFIG_CHOICE, /* one of some words, exactly */
    BL_CONFIG_WORD, /* the same in any case, blanks around it ignored; another word is warned of: the first */
    BL_CONFIG_TEXT,
    BL_CONFIG_TEXTS,    /* array of strings */
    BL_CONFIG_MAP_U64,  /* table from a model's name to a number */
    BL_CONFIG_MAP_WORD, /* ... to a WORD */
    BL_CONFIG_TABLE,    /* kept, not looked into */
    BL_CONFIG_WINDOWS,  /* [[schedule.windows]] */
    BL_CONFIG_KIND__MAX
} bl_config_kind;

/* What the key's environment variable does. */
typedef enum {
    BL_CONFIG_ENV_NONE,
    BL_CONFIG_ENV_WINS,      /* its value goes before the file's */
    BL_CONFIG_ENV_STANDS_IN, /* its value counts where the file says nothing */
    BL_CONFIG_ENV_SWITCH,    /* 0, false, no, off: the value is env_value, whatever the file says */
    BL_CONFIG_ENV_PRESENT    /* anything: the value is env_value */
} bl_config_env_role;

typedef struct {
    const char *section; /* "" for the top level */
    const char *name;
    bl_config_kind kind;
    const char *def;     /* as it would be written; NULL: no value unless given */
    uint64_t min, max;   /* U64 and MAP_U64 */
    const char *choices; /* "auto|on|off" */
    const char *env;
    bl_config_env_role env_role;
    const char *env_value; /* as it would be written */
    const char *used_by;   /* what of this version acts on it; NULL: nothing yet, it is checked and kept */
    const char *doc;       /* sentences */
} bl_config_key;

const bl_config_key *bl_config_key_of(bl_config_id id);
/* A word of a key's choices by its index in them. */
const char *bl_config_word(const bl_config_key *k, uint32_t index);
/* "backend.mtp_mode" in ret; returns ret. */
const char *bl_config_key_name(bl_config_id id, char ret[96]);
/* "true or false", "0 to 65535", "\"auto\", \"on\" or \"off\"", ... */
const char *bl_config_allowed(bl_config_id id, char ret[96]);

/* A key as an operator names it: "backend.mtp_mode", "mtp_mode" where no other key has that name, or with one
 * entry of a table behind it ("backend.engine_v2_max_concurrent_by_model.ORG/NAME"; entry is borrowed from
 * name, or NULL). BL_ENOTFOUND names the nearest key. */
bl_code bl_config_find(const char *name, bl_config_id *ret, const char **ret_entry,
                       bl_err *err) BL_MUST_CHECK;

/* ---- a loaded file ------------------------------------------------------------------------------------- */

typedef struct {
    bool has_value; /* the file's or the default */
    bool in_file;   /* the key itself stands in the file */
    bool migrated;  /* the file is of an earlier version and says something else */
    uint32_t line;  /* in_file */
    bool b;
    uint64_t u;               /* U64; CHOICE and WORD: index into choices */
    const char *text;         /* TEXT, CHOICE and WORD; NULL: no value */
    const bl_toml_node *node; /* TEXTS, maps, tables: in the file; NULL: empty */
} bl_config_value;

typedef struct bl_config bl_config; /* [immutable after open] */

/* Where the file is: `given` (--config; a leading ~/ is the home folder), else config_home (XDG_CONFIG_HOME,
 * if absolute) or home + "/.config", and darkbloom/provider.toml below. NULL and "" are unset. */
bl_code bl_config_path(const char *given, const char *config_home, const char *home,
                       char ret[BL_CONFIG_MAX_PATH], bl_err *err) BL_MUST_CHECK;

/* Strict. BL_ENOTFOUND: there is no such file (the only error a caller may turn into defaults); BL_EIO: it
 * cannot be read; BL_EFORMAT, BL_ELIMIT: it is wrong. */
bl_code bl_config_load(const char *path, bl_config **ret, bl_err *err) BL_MUST_CHECK;
/* The same, with defaults for a file that is not there. What commands call. */
bl_code bl_config_open(const char *path, bl_config **ret, bl_err *err) BL_MUST_CHECK;
/* Of a text; exists false: the text of a file that is yet to be written. */
bl_code bl_config_parse(const char *path, const char *text, size_t n, bool exists, bl_config **ret,
                        bl_err *err) BL_MUST_CHECK;
void bl_config_free(bl_config *c);

const char *bl_config_file(const bl_config *c);
bool bl_config_exists(const bl_config *c);
const bl_config_value *bl_config_get(const bl_config *c, bl_config_id id);
/* Unknown and retired keys, values that are taken otherwise than written, in the order of the file: whole
 * lines. */
size_t bl_config_n_warnings(const bl_config *c);
const char *bl_config_warning(const bl_config *c, size_t i);

/* The entry of a MAP_U64 or MAP_WORD (the index of its word) for a model. False: none. */
bool bl_config_map_u64(const bl_config *c, bl_config_id id, const char *model, uint64_t *ret);
bool bl_config_map_word(const bl_config *c, bl_config_id id, const char *model, uint32_t *ret);

/* A value as it would be written in the file, appended; nothing where there is none. */
bl_code bl_config_write_value(const bl_config *c, bl_config_id id, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* ---- what is in force ---------------------------------------------------------------------------------- */

typedef enum {
    BL_CONFIG_FROM_DEFAULT,
    BL_CONFIG_FROM_FILE,
    BL_CONFIG_FROM_ENV,
    BL_CONFIG_FROM_COMMAND_LINE /* said by cli/ alone */
} bl_config_origin;

/* Whether the key's variable, of that value (NULL or "": unset), goes before the file; in_file: the key
 * stands in it. */
bool bl_config_env_decides(bl_config_id id, bool in_file, const char *env);

/* The value in force, as it would be written, appended to *ret; env is the variable's value, NULL or "" when
 * unset. BL_EINVAL: the variable holds what the key does not take. */
bl_code bl_config_effective(const bl_config *c, bl_config_id id, const char *env, bl_buf *ret,
                            bl_config_origin *ret_origin, bl_err *err) BL_MUST_CHECK;

/* What an operator types (true, 8, auto, a path, a list as a,b) as it is to stand in the file,
 * appended. what: the key or variable, for the message. BL_EINVAL says what is allowed. */
bl_code bl_config_typed(bl_config_id id, bool entry, const char *what, const char *typed, bl_buf *ret,
                        bl_err *err) BL_MUST_CHECK;

/* The file's text as this version would have it, appended; as it is where nothing is to be done. */
bl_code bl_config_migrated_text(const bl_config *c, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* ---- changing the file --------------------------------------------------------------------------------- */

typedef struct bl_config_edit bl_config_edit;

/* Makes the folder, waits for the lock (PATH.lock), loads strictly (no file: an empty one). A link is
 * followed first, so that it stays one. */
bl_code bl_config_edit_begin(const char *path, bl_config_edit **ret, bl_err *err) BL_MUST_CHECK;
/* What the file says, with the changes made so far. Borrowed until the next change. */
const bl_config *bl_config_edit_config(const bl_config_edit *e);
/* Brings a file of an earlier version to this one's, in its text; one of a later version is left alone. */
bl_code bl_config_edit_migrate(bl_config_edit *e, bl_err *err) BL_MUST_CHECK;
/* value: as bl_config_typed writes it; entry: of a map, or NULL. Migrates first. What results is loaded
 * strictly before it is accepted. */
bl_code bl_config_edit_set(bl_config_edit *e, bl_config_id id, const char *entry, const char *value,
                           bl_err *err) BL_MUST_CHECK;
/* Writes if anything changed. On failure the file is the old one, except when only its folder could not be
 * synced. */
bl_code bl_config_edit_commit(bl_config_edit *e, bool *ret_written, bl_err *err) BL_MUST_CHECK;
/* Unlocks and frees; NULL is a no-op. What was not committed is gone. */
void bl_config_edit_end(bl_config_edit *e);

#endif
