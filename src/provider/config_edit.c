/* Changing provider.toml: lock, load again, replace single values in the text, write so that a reader or a
 * power cut sees the old file or the new one (provider/config.h).
 *
 * The lock is a file beside it, which is never renamed or removed: every save replaces the file itself, so
 * two writers that locked that would hold locks on different ones.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "formats/limits.h"
#include "provider/config_impl.h"

#define NEW_FILE_MODE 0600

struct bl_config_edit {
    int lock_fd;
    char path[PATH_MAX];
    bl_config *now; /* with the changes */
    bool changed;
    mode_t mode;
};

/* ---- beginning and end --------------------------------------------------------------------------------- */

static bl_code take_lock(bl_config_edit *e, bl_err *err) {
    char lock[PATH_MAX + 8], shown[112];
    snprintf(lock, sizeof lock, "%s.lock", e->path);
    config_shown_path(lock, shown);
    e->lock_fd = bl_os.open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (e->lock_fd < 0) {
        BL_FAIL(err, BL_EIO, "cannot open the lock '%s': %s", shown, strerror(errno));
    }
    while (bl_os.flock(e->lock_fd, LOCK_EX) != 0) {
        if (errno != EINTR) {
            BL_FAIL(err, BL_EIO, "cannot lock '%s': %s", shown, strerror(errno));
        }
    }
    return BL_OK;
}

static bl_code begin(bl_config_edit *e, const char *path, bl_err *err) {
    char shown[112];
    if (realpath(path, e->path) == NULL) {
        /* No such file (or one that loading will complain of): by its own name. */
        int n = snprintf(e->path, sizeof e->path, "%s", path);
        if (n < 0 || n + 8 > (int)sizeof e->path) {
            BL_FAIL(err, BL_ELIMIT, "'%s': the path is too long", config_shown_path(path, shown));
        }
    }
    BL_TRY(bl_file_make_parent(e->path, err));
    BL_TRY(take_lock(e, err));
    BL_TRY(bl_config_open(e->path, &e->now, err));
    e->mode = bl_config_exists(e->now) ? e->now->mode : NEW_FILE_MODE;
    return BL_OK;
}

bl_code bl_config_edit_begin(const char *path, bl_config_edit **ret, bl_err *err) {
    bl_config_edit *e = bl_alloc(sizeof *e);
    if (e == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for changing provider.toml");
    }
    e->lock_fd = -1;
    bl_code rc = begin(e, path, err);
    if (rc != BL_OK) {
        bl_config_edit_end(e);
        return rc;
    }
    *ret = e;
    return BL_OK;
}

void bl_config_edit_end(bl_config_edit *e) {
    if (e == NULL) {
        return;
    }
    bl_config_free(e->now);
    if (e->lock_fd >= 0) {
        bl_os.close(e->lock_fd); /* which unlocks */
    }
    bl_free(e);
}

const bl_config *bl_config_edit_config(const bl_config_edit *e) {
    return e->now;
}

/* ---- changes ------------------------------------------------------------------------------------------- */

/* Takes a text as the new state if it loads. */
static bl_code take_text(bl_config_edit *e, const bl_buf *text, bl_err *err) {
    bl_config *next = NULL;
    size_t n = 0;
    const char *old = bl_toml_text(e->now->doc, &n);
    if (text->len == n && memcmp(bl_buf_str(text), old, n) == 0) {
        return BL_OK;
    }
    BL_TRY(bl_config_parse(e->path, bl_buf_str(text), text->len, bl_config_exists(e->now), &next, err));
    bl_config_free(e->now);
    e->now = next;
    e->changed = true;
    return BL_OK;
}

/* ---- earlier versions ---------------------------------------------------------------------------------- */

typedef struct {
    uint32_t at, end;
    char with[64];
} patch;

/* The text with the patches, which do not overlap, appended to *ret. */
static bl_code apply(const bl_config *c, patch *s, size_t n, bl_buf *ret, bl_err *err) {
    size_t len = 0;
    uint32_t at = 0;
    const char *old = bl_toml_text(c->doc, &len);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) { /* the next in the order of the text */
            if (s[k].at < s[i].at) {
                patch t = s[i];
                s[i] = s[k];
                s[k] = t;
            }
        }
        BL_TRY(bl_buf_append(ret, old + at, s[i].at - at, err));
        BL_TRY(bl_buf_append_str(ret, s[i].with, err));
        at = s[i].end;
    }
    return bl_buf_append(ret, old + at, len - at, err);
}

/* The stamp where it stands, or in front of everything: it has to be above the first table. */
static patch stamp(const bl_config *c) {
    patch s = {0};
    const bl_toml_node *there = bl_toml_find(bl_toml_root(c->doc), "config_version");
    if (there != NULL) {
        s.at = there->at;
        s.end = there->end;
        snprintf(s.with, sizeof s.with, "%u", BL_CONFIG_VERSION);
        return s;
    }
    snprintf(s.with, sizeof s.with, "config_version = %u%s", BL_CONFIG_VERSION, bl_toml_line_end(c->doc));
    return s;
}

/* All at once: what a value means depends on the version beside it. */
bl_code bl_config_migrated_text(const bl_config *c, bl_buf *ret, bl_err *err) {
    patch s[4];
    size_t n = 0;
    if (c->version < BL_CONFIG_VERSION) {
        s[n++] = stamp(c);
    }
    if (n > 0 && bl_config_get(c, BL_CONFIG_MAX_CONCURRENT)->migrated) {
        const bl_toml_node *backend = bl_toml_find(bl_toml_root(c->doc), "backend");
        const bl_toml_node *node = bl_toml_find(backend, "engine_v2_max_concurrent");
        s[n] = (patch){.at = node->at, .end = node->end};
        snprintf(s[n++].with, sizeof s[0].with, "%u", CONFIG_CURRENT_CONCURRENCY);
    }
    if (n > 0 && bl_config_get(c, BL_CONFIG_MTP_MODE)->migrated) {
        const bl_toml_node *node = c->legacy_mtp;
        s[n++] = (patch){.at = node->key_at, .end = node->key_end, .with = "mtp_mode"};
        s[n] = (patch){.at = node->at, .end = node->end};
        snprintf(s[n++].with, sizeof s[0].with, "\"%s\"", bl_config_get(c, BL_CONFIG_MTP_MODE)->text);
    }
    return apply(c, s, n, ret, err);
}

bl_code bl_config_edit_migrate(bl_config_edit *e, bl_err *err) {
    bl_buf text;
    bl_buf_init(&text, BL_TOML_MAX_BYTES);
    bl_code rc = bl_config_migrated_text(e->now, &text, err);
    if (rc == BL_OK) {
        rc = take_text(e, &text, err);
    }
    bl_buf_done(&text);
    return rc;
}

/* ---- a value ------------------------------------------------------------------------------------------- */

bl_code bl_config_edit_set(bl_config_edit *e, bl_config_id id, const char *entry, const char *value,
                           bl_err *err) {
    const bl_config_key *k = bl_config_key_of(id);
    const char *path[3];
    size_t n = 0;
    BL_TRY(bl_config_edit_migrate(e, err)); /* else the value could be taken for one of an earlier version */
    if (k->section[0] != '\0') {
        path[n++] = k->section;
    }
    path[n++] = k->name;
    if (entry != NULL) {
        path[n++] = entry;
    }
    bl_buf text;
    bl_buf_init(&text, BL_TOML_MAX_BYTES);
    bl_code rc = bl_toml_put(e->now->doc, path, n, value, &text, err);
    if (rc == BL_OK) {
        rc = take_text(e, &text, err);
    }
    bl_buf_done(&text);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

bl_code bl_config_edit_commit(bl_config_edit *e, bool *ret_written, bl_err *err) {
    size_t n = 0;
    const char *text = bl_toml_text(e->now->doc, &n);
    bool changed = e->changed;
    if (changed) {
        BL_TRY(bl_file_replace(e->path, text, n, e->mode, err));
        e->changed = false;
    }
    *ret_written = changed;
    return BL_OK;
}
