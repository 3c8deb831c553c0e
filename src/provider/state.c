/* The state file (state.h). */
#include "provider/state.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "formats/json.h"

#define FILE_NAME "darkbloom/daemon-state.json"
#define MAX_DEPTH 8

/* ---- where --------------------------------------------------------------------------------------------- */

bl_code bl_state_path(const char *file, const char *state_home, const char *home, char *ret, size_t cap,
                      bl_err *err) {
    int n;
    if (file && *file) {
        n = snprintf(ret, cap, "%s", file);
    } else if (state_home && *state_home) {
        n = snprintf(ret, cap, "%s/" FILE_NAME, state_home);
    } else if (home && *home) {
        n = snprintf(ret, cap, "%s/.local/state/" FILE_NAME, home);
    } else {
        BL_FAIL(err, BL_EINVAL, "no folder for the state file: neither XDG_STATE_HOME nor HOME is set");
    }
    if (n < 0 || (size_t)n >= cap) {
        BL_FAIL(err, BL_ELIMIT, "the path of the state file has %d bytes, allowed are %zu", n, cap - 1);
    }
    return BL_OK;
}

/* ---- processes ----------------------------------------------------------------------------------------- */

/* The 22nd field of /proc/PID/stat; the second is a name in parentheses that may hold anything. */
uint64_t bl_state_process_start(int64_t pid) {
    char path[48];
    bl_buf b;
    uint64_t start = 0;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    if (pid <= 0 || bl_file_read(path, 8192, &b, NULL) != BL_OK) {
        return 0;
    }
    const char *p = strrchr(bl_buf_str(&b), ')');
    for (int field = 2; p && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    for (p = p ? p + 1 : ""; *p >= '0' && *p <= '9' && start < UINT64_MAX / 10 - 1; p++) {
        start = 10 * start + (uint64_t)(*p - '0');
    }
    bl_buf_done(&b);
    return start;
}

bool bl_state_is_live(const bl_state *s) {
    if (s->pid <= 0 || s->pid > INT32_MAX || (kill((pid_t)s->pid, 0) != 0 && errno == ESRCH)) {
        return false;
    }
    return s->pid_start == 0 || bl_state_process_start(s->pid) == s->pid_start;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put(json_t *j, const char *key, json_t *value) {
    (void)json_object_set_new(j, key, value);
}

static void put_text(json_t *j, const char *key, const char *text) {
    if (*text) {
        put(j, key, json_string(text));
    }
}

static json_t *slot_json(const bl_state_slot *s) {
    json_t *j = json_object();
    put_text(j, "model", s->model);
    put_text(j, "kvBackend", s->kv_backend);
    put_text(j, "kvBackendRequested", s->kv_requested);
    put_text(j, "kvBackendFallbackReason", s->kv_fallback);
    put(j, "mtpEnabled", json_boolean(s->mtp_enabled));
    put(j, "mtpActive", json_boolean(s->mtp_active));
    put_text(j, "mtpInactiveReason", s->mtp_inactive_reason);
    put(j, "mtpDepth", json_integer(s->mtp_depth));
    put_text(j, "loadError", s->load_error);
    return j;
}

json_t *bl_state_to_json(const bl_state *s) {
    json_t *j = json_object(), *slots = json_array(), *who = json_object();
    put(j, "schema", json_integer(s->schema));
    put(j, "pid", json_integer((json_int_t)s->pid));
    put(who, "pid", json_integer((json_int_t)s->pid));
    put(who, "startTicks", json_integer((json_int_t)s->pid_start));
    put(j, "processIdentity", who);
    put_text(j, "version", s->version);
    put(j, "startedAt", json_integer((json_int_t)s->started_at));
    put(j, "writtenAt", json_integer((json_int_t)s->written_at));
    put_text(j, "address", s->address);
    put(j, "port", json_integer(s->port));
    put_text(j, "currentModel", s->model);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        (void)json_array_append_new(slots, slot_json(&s->slots[i]));
    }
    put(j, "slots", slots);
    return j;
}

bl_code bl_state_write(const char *path, bl_state *s, bl_err *err) {
    BL_ASSERT(s->n_slots <= BL_STATE_MAX_SLOTS);
    BL_TRY(bl_file_make_parent(path, err));
    s->schema = BL_STATE_SCHEMA;
    s->written_at = bl_clock_wall_s();
    json_t *j = bl_state_to_json(s);
    size_t n = j ? json_dumpb(j, NULL, 0, JSON_INDENT(2)) : 0;
    char *text = n > 0 ? bl_alloc(n) : NULL;
    bool ok = text && json_dumpb(j, text, n, JSON_INDENT(2)) == n;
    bl_code rc = ok ? bl_file_write_atomic(path, text, n, err)
                    : bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the state file");
    json_decref(j);
    bl_free(text);
    return rc;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void get_text(const json_t *j, const char *key, char *ret, size_t cap) {
    const char *s = json_string_value(json_object_get(j, key));
    snprintf(ret, cap, "%s", s ? s : "");
}

static void read_slot(const json_t *j, bl_state_slot *s) {
    get_text(j, "model", s->model, sizeof s->model);
    get_text(j, "kvBackend", s->kv_backend, sizeof s->kv_backend);
    get_text(j, "kvBackendRequested", s->kv_requested, sizeof s->kv_requested);
    get_text(j, "kvBackendFallbackReason", s->kv_fallback, sizeof s->kv_fallback);
    s->mtp_enabled = json_is_true(json_object_get(j, "mtpEnabled"));
    s->mtp_active = json_is_true(json_object_get(j, "mtpActive"));
    get_text(j, "mtpInactiveReason", s->mtp_inactive_reason, sizeof s->mtp_inactive_reason);
    s->mtp_depth = (uint32_t)json_integer_value(json_object_get(j, "mtpDepth"));
    get_text(j, "loadError", s->load_error, sizeof s->load_error);
}

static bl_code take(const json_t *j, const char *path, bl_state *s, bl_err *err) {
    const json_t *schema = json_object_get(j, "schema"), *pid = json_object_get(j, "pid");
    const json_t *slots = json_object_get(j, "slots");
    if (!json_is_integer(schema) || json_integer_value(schema) != BL_STATE_SCHEMA) {
        BL_FAIL(err, BL_EFORMAT, "'%s': schema is %" JSON_INTEGER_FORMAT ", allowed is %d", path,
                json_integer_value(schema), BL_STATE_SCHEMA);
    }
    if (!json_is_integer(pid) || json_integer_value(pid) <= 0) {
        BL_FAIL(err, BL_EFORMAT, "'%s': pid is no process number", path);
    }
    s->schema = BL_STATE_SCHEMA;
    s->pid = json_integer_value(pid);
    s->pid_start =
        (uint64_t)json_integer_value(json_object_get(json_object_get(j, "processIdentity"), "startTicks"));
    get_text(j, "version", s->version, sizeof s->version);
    s->started_at = json_integer_value(json_object_get(j, "startedAt"));
    s->written_at = json_integer_value(json_object_get(j, "writtenAt"));
    get_text(j, "address", s->address, sizeof s->address);
    s->port = (uint16_t)json_integer_value(json_object_get(j, "port"));
    get_text(j, "currentModel", s->model, sizeof s->model);
    for (size_t i = 0; i < json_array_size(slots) && s->n_slots < BL_STATE_MAX_SLOTS; i++) {
        read_slot(json_array_get(slots, i), &s->slots[s->n_slots++]);
    }
    return BL_OK;
}

bl_code bl_state_read(const char *path, bl_state *ret, bl_err *err) {
    bl_buf b;
    json_t *j = NULL;
    BL_TRY(bl_file_read(path, BL_STATE_MAX_BYTES, &b, err));
    bl_code rc = bl_json_parse(bl_buf_str(&b), b.len, MAX_DEPTH, path, &j, err);
    bl_buf_done(&b);
    BL_TRY(rc);
    memset(ret, 0, sizeof *ret);
    rc = take(j, path, ret, err);
    json_decref(j);
    return rc;
}

void bl_state_remove(const char *path, int64_t pid) {
    bl_state *s = bl_alloc(sizeof *s);
    if (s && bl_state_read(path, s, NULL) == BL_OK && s->pid == pid) {
        (void)bl_os.unlink(path);
    }
    bl_free(s);
}
