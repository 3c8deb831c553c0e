#include "provider/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/nearest.h"

#define MAX_ENTRIES 65536 /* of one folder; more is no folder of models */

static bool given(const char *s) {
    return s != NULL && s[0] != '\0';
}

static bl_code join(char *ret, const char *a, const char *b, bl_err *err) {
    int n = snprintf(ret, BL_STORE_MAX_PATH, "%s/%s", a, b);
    if (n < 0 || n >= BL_STORE_MAX_PATH) {
        BL_FAIL(err, BL_ELIMIT, "a path below '%.120s' is longer than %d bytes", a, BL_STORE_MAX_PATH - 1);
    }
    return BL_OK;
}

static bl_code copy_path(char *ret, const char *path, bl_err *err) {
    size_t n = strlen(path);
    if (n >= BL_STORE_MAX_PATH) {
        BL_FAIL(err, BL_ELIMIT, "a folder has a path of %zu bytes, allowed: %d", n, BL_STORE_MAX_PATH - 1);
    }
    memcpy(ret, path, n + 1);
    return BL_OK;
}

bl_code bl_store_init(bl_store *ret, const bl_store_settings *s, bl_err *err) {
    bl_store st = {0};
    char cache[BL_STORE_MAX_PATH] = "";
    if (given(s->cache_home)) {
        BL_TRY(copy_path(cache, s->cache_home, err));
    } else if (given(s->home)) {
        BL_TRY(join(cache, s->home, ".cache", err));
    }
    if (given(s->models_dir)) {
        BL_TRY(copy_path(st.models, s->models_dir, err));
    } else if (cache[0] != '\0') {
        BL_TRY(join(st.models, cache, "darkbloom/models", err));
    } else {
        BL_FAIL(err, BL_EINVAL, "no folder for models: set HOME, XDG_CACHE_HOME or --models-dir");
    }
    if (given(s->hf_hub_cache)) {
        BL_TRY(copy_path(st.hf_hub, s->hf_hub_cache, err));
    } else if (given(s->hf_home)) {
        BL_TRY(join(st.hf_hub, s->hf_home, "hub", err));
    } else if (cache[0] != '\0') {
        BL_TRY(join(st.hf_hub, cache, "huggingface/hub", err));
    }
    *ret = st;
    return BL_OK;
}

/* ---- listing ----------------------------------------------------------------------------------- */

typedef struct {
    bl_store_list list;
    size_t cap;
    bl_store_origin origin;
} collector;

static bl_code add_model(collector *c, const char *name, const char *path, uint64_t size_bytes, bl_err *err) {
    if (c->list.n == BL_STORE_MAX_MODELS) {
        BL_FAIL(err, BL_ELIMIT, "more than %d models in the store", BL_STORE_MAX_MODELS);
    }
    if (c->list.n == c->cap) {
        size_t cap = c->cap == 0 ? 32 : c->cap * 2;
        void *grown = bl_realloc(c->list.models, cap * sizeof(*c->list.models));
        if (grown == NULL) {
            BL_FAIL(err, BL_ENOMEM, "no memory for the list of models");
        }
        c->list.models = grown;
        c->cap = cap;
    }
    bl_store_model m = {
        .name = bl_strdup(name), .path = bl_strdup(path), .size_bytes = size_bytes, .origin = c->origin};
    if (m.name == NULL || m.path == NULL) {
        bl_free(m.name);
        bl_free(m.path);
        BL_FAIL(err, BL_ENOMEM, "no memory for the list of models");
    }
    c->list.models[c->list.n++] = m;
    return BL_OK;
}

void bl_store_list_free(bl_store_list *l) {
    for (size_t i = 0; i < l->n; i++) {
        bl_free(l->models[i].name);
        bl_free(l->models[i].path);
    }
    bl_free(l->models);
    *l = (bl_store_list){0};
}

/* NULL *ret when the folder does not exist. */
static bl_code open_folder(const char *path, DIR **ret, bl_err *err) {
    DIR *d = opendir(path);
    if (d == NULL && errno != ENOENT && errno != ENOTDIR) {
        BL_FAIL(err, BL_EIO, "cannot read folder '%s': %s", path, strerror(errno));
    }
    *ret = d;
    return BL_OK;
}

static bool has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcasecmp(s + n - m, suffix) == 0;
}

static bool is_gguf(const char *name) {
    /* Projectors of image models are no models of their own. */
    return has_suffix(name, ".gguf") && strncasecmp(name, "mmproj", 6) != 0;
}

typedef struct {
    bool config;
    uint64_t safetensors_bytes, gguf_bytes;
    uint32_t n_safetensors, n_gguf;
    char gguf[NAME_MAX + 1]; /* the last one seen */
} folder_facts;

static bl_code look_into(const char *path, folder_facts *ret, bl_err *err) {
    *ret = (folder_facts){0};
    DIR *d = NULL;
    BL_TRY(open_folder(path, &d, err));
    if (d == NULL) {
        return BL_OK;
    }
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL && n < MAX_ENTRIES; n++) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        if (strcmp(e->d_name, "config.json") == 0) {
            ret->config = true;
        } else if (has_suffix(e->d_name, ".safetensors")) {
            ret->n_safetensors++;
            ret->safetensors_bytes += (uint64_t)st.st_size;
        } else if (is_gguf(e->d_name)) {
            ret->n_gguf++;
            ret->gguf_bytes += (uint64_t)st.st_size;
            snprintf(ret->gguf, sizeof(ret->gguf), "%s", e->d_name);
        }
    }
    closedir(d);
    return BL_OK;
}

static bl_code add_gguf_files(collector *c, const char *name, const char *path, bl_err *err) {
    DIR *d = NULL;
    BL_TRY(open_folder(path, &d, err));
    bl_code rc = BL_OK;
    uint32_t n = 0;
    for (struct dirent *e; d != NULL && rc == BL_OK && (e = readdir(d)) != NULL && n < MAX_ENTRIES; n++) {
        struct stat st;
        if (!is_gguf(e->d_name) || e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0 ||
            !S_ISREG(st.st_mode)) {
            continue;
        }
        char full[BL_STORE_MAX_PATH], label[BL_STORE_MAX_PATH];
        rc = join(full, path, e->d_name, err);
        if (rc == BL_OK) {
            rc = join(label, name, e->d_name, err);
        }
        if (rc == BL_OK) {
            rc = add_model(c, label, full, (uint64_t)st.st_size, err);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return rc;
}

/* A folder that may be a model, or hold several GGUF files. */
static bl_code add_folder(collector *c, const char *name, const char *path, bl_err *err) {
    folder_facts f;
    BL_TRY(look_into(path, &f, err));
    if (f.config && f.n_safetensors > 0) {
        BL_TRY(add_model(c, name, path, f.safetensors_bytes, err));
    } else if (f.n_gguf == 1) {
        char file[BL_STORE_MAX_PATH];
        BL_TRY(join(file, path, f.gguf, err));
        return add_model(c, name, file, f.gguf_bytes, err);
    }
    return f.n_gguf > 0 ? add_gguf_files(c, name, path, err) : BL_OK;
}

/* "org--repo" -> "org/repo". */
static void slash_name(const char *folder, char *ret, size_t cap) {
    const char *dashes = strstr(folder, "--");
    if (dashes == NULL || dashes == folder) {
        snprintf(ret, cap, "%s", folder);
    } else {
        snprintf(ret, cap, "%.*s/%s", (int)(dashes - folder), folder, dashes + 2);
    }
}

static bl_code list_own(const bl_store *s, collector *c, bl_err *err) {
    DIR *d = NULL;
    BL_TRY(open_folder(s->models, &d, err));
    bl_code rc = BL_OK;
    uint32_t n = 0;
    for (struct dirent *e; d != NULL && rc == BL_OK && (e = readdir(d)) != NULL && n < MAX_ENTRIES; n++) {
        char path[BL_STORE_MAX_PATH], name[NAME_MAX + 2];
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0) {
            continue;
        }
        rc = join(path, s->models, e->d_name, err);
        if (rc == BL_OK && S_ISREG(st.st_mode) && is_gguf(e->d_name)) {
            snprintf(name, sizeof(name), "%.*s", (int)(strlen(e->d_name) - strlen(".gguf")), e->d_name);
            rc = add_model(c, name, path, (uint64_t)st.st_size, err);
        } else if (rc == BL_OK && S_ISDIR(st.st_mode)) {
            slash_name(e->d_name, name, sizeof(name));
            rc = add_folder(c, name, path, err);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return rc;
}

/* The newest snapshot folder's name; "" when there is none. */
static bl_code newest_snapshot(const char *snapshots, char *ret, size_t cap, bl_err *err) {
    ret[0] = '\0';
    DIR *d = NULL;
    BL_TRY(open_folder(snapshots, &d, err));
    struct timespec newest = {0};
    uint32_t n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL && n < MAX_ENTRIES; n++) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0 || !S_ISDIR(st.st_mode)) {
            continue;
        }
        if (ret[0] == '\0' || st.st_mtim.tv_sec > newest.tv_sec ||
            (st.st_mtim.tv_sec == newest.tv_sec && st.st_mtim.tv_nsec > newest.tv_nsec)) {
            newest = st.st_mtim;
            snprintf(ret, cap, "%s", e->d_name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return BL_OK;
}

/* hub/models--org--repo -> its snapshot folder, or "" when nothing was downloaded. */
static bl_code snapshot_of(const char *repo, char *ret, bl_err *err) {
    char snapshots[BL_STORE_MAX_PATH], ref[BL_STORE_MAX_PATH], rev[NAME_MAX + 1];
    BL_TRY(join(snapshots, repo, "snapshots", err));
    BL_TRY(join(ref, repo, "refs/main", err));
    ret[0] = '\0';
    bl_buf b;
    if (bl_file_read(ref, NAME_MAX, &b, NULL) == BL_OK) {
        const char *text = bl_buf_str(&b);
        size_t n = strspn(text, "0123456789abcdefABCDEF");
        snprintf(rev, sizeof(rev), "%.*s", (int)n, text);
        bl_buf_done(&b);
        if (n > 0) {
            BL_TRY(join(ret, snapshots, rev, err));
        }
    }
    if (ret[0] != '\0' && bl_file_is_dir(ret)) {
        return BL_OK;
    }
    ret[0] = '\0';
    BL_TRY(newest_snapshot(snapshots, rev, sizeof(rev), err));
    return rev[0] != '\0' ? join(ret, snapshots, rev, err) : BL_OK;
}

static bl_code list_hf(const bl_store *s, collector *c, bl_err *err) {
    static const char prefix[] = "models--";
    if (s->hf_hub[0] == '\0') {
        return BL_OK;
    }
    DIR *d = NULL;
    /* Another program's folder: when it cannot be read, our own models must still list. */
    if (open_folder(s->hf_hub, &d, NULL) != BL_OK) {
        return BL_OK;
    }
    bl_code rc = BL_OK;
    uint32_t n = 0;
    for (struct dirent *e; d != NULL && rc == BL_OK && (e = readdir(d)) != NULL && n < MAX_ENTRIES; n++) {
        if (strncmp(e->d_name, prefix, sizeof(prefix) - 1) != 0) {
            continue;
        }
        char repo[BL_STORE_MAX_PATH], snapshot[BL_STORE_MAX_PATH], name[NAME_MAX + 2];
        rc = join(repo, s->hf_hub, e->d_name, err);
        if (rc == BL_OK) {
            rc = snapshot_of(repo, snapshot, err);
        }
        if (rc == BL_OK && snapshot[0] != '\0') {
            slash_name(e->d_name + sizeof(prefix) - 1, name, sizeof(name));
            rc = add_folder(c, name, snapshot, err);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return rc;
}

static int by_origin_and_name(const void *a, const void *b) {
    const bl_store_model *x = a, *y = b;
    return x->origin != y->origin ? (x->origin < y->origin ? -1 : 1) : strcmp(x->name, y->name);
}

bl_code bl_store_list_models(const bl_store *s, bl_store_list *ret, bl_err *err) {
    collector c = {.origin = BL_STORE_OWN};
    bl_code rc = list_own(s, &c, err);
    if (rc == BL_OK) {
        c.origin = BL_STORE_HF_CACHE;
        rc = list_hf(s, &c, err);
    }
    if (rc != BL_OK) {
        bl_store_list_free(&c.list);
        return rc;
    }
    if (c.list.n > 1) {
        qsort(c.list.models, c.list.n, sizeof(*c.list.models), by_origin_and_name);
    }
    *ret = c.list;
    return BL_OK;
}

/* ---- names ------------------------------------------------------------------------------------- */

static const char *short_name(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

/* How well `wanted` names `name`: 4 exact, 3 but for case, 2 the part after the last slash, 1 a beginning of
 * either, 0 not at all. */
static int match_rank(const char *wanted, const char *name) {
    size_t n = strlen(wanted);
    if (strcmp(wanted, name) == 0) {
        return 4;
    }
    if (strcasecmp(wanted, name) == 0) {
        return 3;
    }
    if (strcasecmp(wanted, short_name(name)) == 0) {
        return 2;
    }
    return strncasecmp(wanted, name, n) == 0 || strncasecmp(wanted, short_name(name), n) == 0 ? 1 : 0;
}

static bl_code fail_unknown(const bl_store_list *l, const char *name, bl_err *err) {
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; i < l->n && n + 2 <= BL_COUNTOF(names); i++) {
        names[n++] = l->models[i].name;
        names[n++] = short_name(l->models[i].name);
    }
    const char *near = bl_nearest(name, names, n);
    if (near != NULL) {
        BL_FAIL(err, BL_ENOTFOUND,
                "no model '%.80s' here, did you mean '%.80s'? ('darkbloom models list' shows all)", name,
                near);
    }
    BL_FAIL(err, BL_ENOTFOUND,
            "no model or file '%.80s' (%zu models here: 'darkbloom models list'; fetch one: 'darkbloom "
            "models pull NAME')",
            name, l->n);
}

/* The same model in both places: the first, our own, is meant. */
static bool named_before(const bl_store_list *l, size_t i) {
    size_t j = 0;
    while (j < i && strcmp(l->models[j].name, l->models[i].name) != 0) {
        j++;
    }
    return j < i;
}

static bl_code resolve_in(const bl_store_list *l, const char *name, char **ret_path, bl_err *err) {
    int best = 0;
    size_t at = 0, second = 0;
    uint32_t n_best = 0;
    for (size_t i = 0; i < l->n; i++) {
        int rank = match_rank(name, l->models[i].name);
        if (rank == 0 || rank < best || named_before(l, i)) {
            continue;
        }
        if (rank > best) {
            best = rank;
            n_best = 0;
        }
        if (n_best++ == 0) {
            at = i;
        } else if (n_best == 2) {
            second = i;
        }
    }
    if (n_best == 0) {
        return fail_unknown(l, name, err);
    }
    if (n_best > 1) {
        BL_FAIL(err, BL_EINVAL, "'%.60s' could be any of %u models: '%.60s', '%.60s'%s", name, n_best,
                l->models[at].name, l->models[second].name, n_best > 2 ? ", ..." : "");
    }
    char *path = bl_strdup(l->models[at].path);
    if (path == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a path");
    }
    *ret_path = path;
    return BL_OK;
}

bl_code bl_store_resolve(const bl_store *s, const char *name, char **ret_path, bl_err *err) {
    if (name[0] == '\0') {
        BL_FAIL(err, BL_EINVAL, "the model's name is empty");
    }
    if (bl_file_exists(name)) {
        char *path = bl_strdup(name);
        if (path == NULL) {
            BL_FAIL(err, BL_ENOMEM, "no memory for a path");
        }
        *ret_path = path;
        return BL_OK;
    }
    if (name[0] == '/' || strncmp(name, "./", 2) == 0 || strncmp(name, "../", 3) == 0) {
        BL_FAIL(err, BL_ENOTFOUND, "no file or folder '%.160s'", name);
    }
    bl_store_list l;
    BL_TRY(bl_store_list_models(s, &l, err));
    bl_code rc = resolve_in(&l, name, ret_path, err);
    bl_store_list_free(&l);
    return rc;
}
