/* A checkpoint: which files belong to it, opened and cross-checked (spec models.md §7.2, §7.3 "Set").
 *
 * Names of shards come from a file and are therefore bare file names only. Links inside a folder are resolved
 * here, once, and what is opened afterwards is the resolved file without following links; in a Hugging Face
 * cache the files of a snapshot are links into "models--x--y/blobs", which is the only tree they may point
 * into.
 */
#include "formats/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"

#define CACHE_PREFIX "models--"

/* A draft head from a folder of its own. */
typedef struct {
    json_t *config;
    bl_safetensors *files[BL_ST_MAX_SHARDS];
    size_t n_files;
    bl_tensor_view *views; /* with the names below; the rest is borrowed from the files */
    size_t n_views;
    char *names;
} attached;

/* What a file was when it was opened. */
typedef struct {
    char *path; /* resolved */
    struct stat st;
} identity;

struct bl_checkpoint {
    bl_checkpoint_kind kind;
    char *path; /* as opened */
    char *name;
    bl_gguf *gguf;
    /* folders */
    char *real;      /* the folder, without links */
    char *link_root; /* links may point below it; NULL: no links */
    json_t *config, *generation_config;
    bl_safetensors *shards[BL_ST_MAX_SHARDS];
    char *shard_names[BL_ST_MAX_SHARDS];
    size_t n_shards;
    char left_out[256];             /* why a shard of the draft head is not among them; "": none */
    identity ids[BL_ST_MAX_SHARDS]; /* of the shards, or of the GGUF file at 0 */
    attached head;
    size_t n_views;
    const bl_tensor_view **views; /* by shard and offset */
    const bl_tensor_view **by_name;
};

static bl_code no_memory(const char *what, bl_err *err) {
    BL_FAIL(err, BL_ENOMEM, "no memory for %s", what);
}

/* A file name that names nothing but a file in the folder itself. */
static bl_code check_bare_name(const char *name, const char *what, bl_err *err) {
    BL_TRY(bl_name_check(name, strlen(name), NAME_MAX, what, err));
    if (strpbrk(name, "/\\") || strstr(name, "..")) {
        BL_FAIL(err, BL_EFORMAT, "%s '%.*s' is a path, allowed are bare file names without '..'", what,
                bl_name_shown(name, strlen(name)), name);
    }
    return BL_OK;
}

/* ---- files of a folder ---- */

static bl_code join_path(const char *dir, const char *file, char out[PATH_MAX], bl_err *err) {
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, file);
    if (n < 0 || n >= PATH_MAX) {
        BL_FAIL(err, BL_ELIMIT, "path of '%s' has %d bytes, allowed are %d", file, n, PATH_MAX - 1);
    }
    return BL_OK;
}

static bl_code fail_stat(const char *path, bl_err *err) {
    int e = errno;
    BL_FAIL(err, e == ENOENT || e == ENOTDIR ? BL_ENOTFOUND : BL_EIO, "cannot open '%s': %s", path,
            strerror(e));
}

/* Where `file` of the folder `real` really is, links followed as far as allowed. BL_ENOTFOUND when absent. */
static bl_code locate(const char *real, const char *link_root, const char *file, char out[PATH_MAX],
                      bl_err *err) {
    char path[PATH_MAX];
    struct stat st;
    BL_TRY(check_bare_name(file, "file name", err));
    BL_TRY(join_path(real, file, path, err));
    if (lstat(path, &st) != 0) {
        return fail_stat(path, err);
    }
    if (!S_ISLNK(st.st_mode)) {
        memcpy(out, path, sizeof path);
        return BL_OK;
    }
    if (!link_root) {
        BL_FAIL(err, BL_EFORMAT,
                "'%s' is a link, allowed are links inside a Hugging Face cache (models--…) only", file);
    }
    if (!realpath(path, out)) {
        return fail_stat(path, err);
    }
    size_t n = strlen(link_root);
    if (strncmp(out, link_root, n) != 0 || out[n] != '/') {
        BL_FAIL(err, BL_EFORMAT, "'%s' is a link out of '%s', allowed are links below it", file, link_root);
    }
    return BL_OK;
}

static bl_code resolve(const bl_checkpoint *c, const char *file, char out[PATH_MAX], bl_err *err) {
    return locate(c->real, c->link_root, file, out, err);
}

static bl_code remember(const char *path, identity *ret, bl_err *err) {
    if (stat(path, &ret->st) != 0) {
        return fail_stat(path, err);
    }
    ret->path = bl_strdup(path);
    return ret->path ? BL_OK : no_memory("a path", err);
}

static bl_code check_unchanged(const identity *id, const char *name, bl_err *err) {
    struct stat now;
    if (stat(id->path, &now) != 0 || now.st_dev != id->st.st_dev || now.st_ino != id->st.st_ino) {
        return BL_OK; /* another file by that name, or none: ours lives on in the map */
    }
    if (now.st_size != id->st.st_size) {
        BL_FAIL(err, BL_ECORRUPT, "file '%s' had %lld bytes when it was opened and has %lld now", name,
                (long long)id->st.st_size, (long long)now.st_size);
    }
    if (now.st_mtim.tv_sec != id->st.st_mtim.tv_sec || now.st_mtim.tv_nsec != id->st.st_mtim.tv_nsec) {
        BL_FAIL(err, BL_ECORRUPT, "file '%s' was written to while it was read", name);
    }
    return BL_OK;
}

/* The nearest folder above (or at) `real` that is named models--…, or NULL. *ret caller frees. */
static bl_code find_link_root(const char *real, char **ret, bl_err *err) {
    for (size_t end = strlen(real); end > 0;) {
        size_t begin = end;
        while (begin > 0 && real[begin - 1] != '/') {
            begin--;
        }
        if (strncmp(real + begin, CACHE_PREFIX, strlen(CACHE_PREFIX)) == 0) {
            *ret = bl_strndup(real, end);
            return *ret ? BL_OK : no_memory("a path", err);
        }
        end = begin > 0 ? begin - 1 : 0;
    }
    return BL_OK;
}

bl_code bl_checkpoint_locate(const char *dir, const char *file, char **ret, bl_err *err) {
    char real[PATH_MAX], path[PATH_MAX];
    char *link_root = NULL;
    if (!realpath(dir, real)) {
        return fail_stat(dir, err);
    }
    BL_TRY(find_link_root(real, &link_root, err));
    bl_code rc = locate(real, link_root, file, path, err);
    bl_free(link_root);
    BL_TRY(rc);
    char *found = bl_strdup(path);
    if (!found) {
        return no_memory("a path", err);
    }
    *ret = found;
    return BL_OK;
}

static bl_code read_json(const bl_checkpoint *c, const char *file, size_t max_bytes, uint32_t max_depth,
                         json_t **ret, bl_err *err) {
    bl_buf b;
    json_t *v;
    BL_TRY(bl_checkpoint_read_side(c, file, max_bytes, &b, err));
    bl_code rc = bl_json_parse(bl_buf_str(&b), b.len, max_depth, file, &v, err);
    bl_buf_done(&b);
    BL_TRY(rc);
    if (!json_is_object(v)) {
        json_decref(v);
        BL_FAIL(err, BL_EFORMAT, "%s is no object", file);
    }
    *ret = v;
    return BL_OK;
}

/* ---- shards ---- */

static bl_code open_shard(bl_checkpoint *c, const char *file, bl_err *err) {
    char path[PATH_MAX];
    if (c->n_shards == BL_ST_MAX_SHARDS) {
        BL_FAIL(err, BL_ELIMIT, "more than %u shards, allowed are %u", BL_ST_MAX_SHARDS, BL_ST_MAX_SHARDS);
    }
    BL_TRY(resolve(c, file, path, err));
    char *name = bl_strdup(file);
    if (!name) {
        return no_memory("a shard's name", err);
    }
    bl_code rc = remember(path, &c->ids[c->n_shards], err);
    if (rc == BL_OK) {
        rc = bl_safetensors_open(path, false, &c->shards[c->n_shards], err);
    }
    if (rc != BL_OK) {
        bl_free(name);
        bl_free(c->ids[c->n_shards].path);
        c->ids[c->n_shards] = (identity){0};
        /* a cache file is named by its hash: say which shard it is */
        return strcmp(bl_name_of_path(path), file) == 0 ? rc : bl_err_wrap(err, rc, "%s", file);
    }
    c->shard_names[c->n_shards++] = name;
    return BL_OK;
}

static bool is_of_head(const char *tensor) {
    return strncmp(tensor, BL_CHECKPOINT_HEAD_PREFIX, strlen(BL_CHECKPOINT_HEAD_PREFIX)) == 0;
}

/* What the index says of one tensor. */
typedef struct {
    const char *file, *tensor;
} listed;

static int cmp_listed(const void *a, const void *b) {
    const listed *x = a, *y = b;
    return strcmp(x->file, y->file);
}

/* The index and the shard that was opened last must tell the same: each tensor that it lists for the shard is
 * there, and what is there is listed. */
static bl_code check_shard(const bl_checkpoint *c, json_t *map, const listed *of, size_t n, bl_err *err) {
    const char *file = c->shard_names[c->n_shards - 1];
    const bl_safetensors *st = c->shards[c->n_shards - 1];
    for (size_t i = 0; i < n; i++) {
        if (!bl_safetensors_find(st, of[i].tensor)) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%.*s' is listed in the index but absent from shard '%.*s'",
                    bl_name_shown(of[i].tensor, strlen(of[i].tensor)), of[i].tensor,
                    bl_name_shown(file, strlen(file)), file);
        }
    }
    for (size_t i = 0; i < bl_safetensors_count(st); i++) {
        const char *name = bl_safetensors_at(st, i)->name;
        if (!json_object_get(map, name)) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%.*s' is present in shard '%.*s' but not listed in the index",
                    bl_name_shown(name, strlen(name)), name, bl_name_shown(file, strlen(file)), file);
        }
    }
    return BL_OK;
}

static void close_last_shard(bl_checkpoint *c) {
    size_t last = --c->n_shards;
    bl_safetensors_free(c->shards[last]);
    bl_free(c->shard_names[last]);
    bl_free(c->ids[last].path);
    c->shards[last] = NULL;
    c->shard_names[last] = NULL;
    c->ids[last] = (identity){0};
}

static void leave_out(bl_checkpoint *c, const bl_err *why) {
    if (c->left_out[0] == '\0') {
        memcpy(c->left_out, why->msg, sizeof c->left_out);
    }
}

/* A shard of a head alone, which also must not hold what another shard has: the model's own would be in
 * doubt.
 */
static bl_code open_head_shard(bl_checkpoint *c, json_t *map, const listed *of, size_t n, bl_err *err) {
    BL_TRY(open_shard(c, of[0].file, err));
    bl_code rc = check_shard(c, map, of, n, err);
    const bl_safetensors *st = c->shards[c->n_shards - 1];
    for (size_t i = 0; i < bl_safetensors_count(st) && rc == BL_OK; i++) {
        const char *name = bl_safetensors_at(st, i)->name;
        if (strcmp(json_string_value(json_object_get(map, name)), of[0].file) != 0) {
            rc = bl_err_set(err, BL_EFORMAT, __FILE__, __LINE__,
                            "tensor '%.*s' is present in shard '%.*s', the index lists it elsewhere",
                            bl_name_shown(name, strlen(name)), name,
                            bl_name_shown(of[0].file, strlen(of[0].file)), of[0].file);
        }
    }
    if (rc != BL_OK) {
        close_last_shard(c);
    }
    return rc;
}

/* Where the entries of all[i]'s file end, and whether they are of a head alone. */
static size_t end_of_file(const listed *all, size_t n, size_t i, bool *ret_of_head) {
    const char *file = all[i].file;
    *ret_of_head = true;
    for (; i < n && strcmp(all[i].file, file) == 0; i++) {
        *ret_of_head = *ret_of_head && is_of_head(all[i].tensor);
    }
    return i;
}

static bl_code open_heads(bl_checkpoint *c, json_t *map, const listed *all, size_t n, bl_err *err) {
    bool of_head;
    for (size_t i = 0, end; i < n; i = end) {
        end = end_of_file(all, n, i, &of_head);
        bl_err why;
        bl_code rc = of_head ? open_head_shard(c, map, all + i, end - i, &why) : BL_OK;
        if (rc == BL_ENOMEM) {
            return no_memory("a shard", err);
        }
        if (rc != BL_OK) {
            leave_out(c, &why);
        }
    }
    return BL_OK;
}

/* An entry of the index. *ret.file is NULL for one of a head that cannot be meant. */
static bl_code check_entry(bl_checkpoint *c, const char *tensor, const json_t *value, listed *ret,
                           bl_err *err) {
    const char *file = json_string_value(value);
    bl_err here;
    bl_code rc = BL_OK;
    *ret = (listed){file, tensor};
    if (!file) {
        rc = bl_err_set(&here, BL_EFORMAT, __FILE__, __LINE__, "index: tensor '%.*s' has no file name",
                        bl_name_shown(tensor, strlen(tensor)), tensor);
    } else {
        rc = check_bare_name(file, "index: shard", &here);
    }
    if (rc == BL_OK && !bl_name_ends(file, ".safetensors")) {
        rc = bl_err_set(&here, BL_EFORMAT, __FILE__, __LINE__,
                        "index: shard '%.*s' does not end in .safetensors", bl_name_shown(file, strlen(file)),
                        file);
    }
    if (rc != BL_OK && is_of_head(tensor)) {
        leave_out(c, &here);
        ret->file = NULL;
        return BL_OK;
    }
    if (rc != BL_OK && err) {
        *err = here;
    }
    return rc;
}

/* The model's own before those of heads alone, which cannot take their place. */
static bl_code open_listed(bl_checkpoint *c, json_t *map, listed *all, size_t n, bl_err *err) {
    size_t n_own = 0;
    bool of_head;
    qsort(all, n, sizeof *all, cmp_listed);
    for (size_t i = 0; i < n;) {
        i = end_of_file(all, n, i, &of_head);
        n_own += !of_head;
    }
    if (n_own > BL_ST_MAX_SHARDS) {
        BL_FAIL(err, BL_ELIMIT, "index names %zu shards, allowed are %u", n_own, BL_ST_MAX_SHARDS);
    }
    for (size_t i = 0, end; i < n; i = end) {
        end = end_of_file(all, n, i, &of_head);
        if (!of_head) {
            BL_TRY(open_shard(c, all[i].file, err));
            BL_TRY(check_shard(c, map, all + i, end - i, err));
        }
    }
    return open_heads(c, map, all, n, err);
}

/* Checks every name in the map before the first file is touched, then opens each named shard once. */
static bl_code open_shards(bl_checkpoint *c, json_t *map, bl_err *err) {
    size_t n = 0;
    const char *tensor;
    json_t *value;
    if (json_object_size(map) > BL_ST_MAX_TENSORS) {
        BL_FAIL(err, BL_ELIMIT, "index lists %zu tensors, allowed are %u", json_object_size(map),
                BL_ST_MAX_TENSORS);
    }
    listed *all = bl_alloc_array(json_object_size(map), sizeof *all);
    if (!all) {
        return no_memory("the index", err);
    }
    bl_code rc = BL_OK;
    json_object_foreach(map, tensor, value) {
        BL_TRY_GOTO(rc, out,
                    bl_name_check(tensor, strlen(tensor), BL_ST_MAX_NAME_BYTES, "index: tensor name", err));
        BL_TRY_GOTO(rc, out, check_entry(c, tensor, value, &all[n], err));
        n += all[n].file != NULL;
    }
    rc = open_listed(c, map, all, n, err);
out:
    bl_free(all);
    return rc;
}

static int cmp_view(const void *a, const void *b) {
    return strcmp((*(const bl_tensor_view *const *)a)->name, (*(const bl_tensor_view *const *)b)->name);
}

/* Gathers the views of all shards; refuses a name that two shards have. */
static bl_code gather(bl_checkpoint *c, bl_err *err) {
    size_t n = 0;
    for (size_t s = 0; s < c->n_shards; s++) {
        n += bl_safetensors_count(c->shards[s]);
    }
    if (n > BL_ST_MAX_TENSORS) {
        BL_FAIL(err, BL_ELIMIT, "shards hold %zu tensors, allowed are %u", n, BL_ST_MAX_TENSORS);
    }
    c->views = bl_alloc_array(n, sizeof *c->views);
    c->by_name = bl_alloc_array(n, sizeof *c->by_name);
    if (!c->views || !c->by_name) {
        return no_memory("the list of tensors", err);
    }
    for (size_t s = 0; s < c->n_shards; s++) {
        for (size_t i = 0; i < bl_safetensors_count(c->shards[s]); i++) {
            c->views[c->n_views++] = bl_safetensors_at(c->shards[s], i);
        }
    }
    memcpy(c->by_name, c->views, n * sizeof *c->views);
    qsort(c->by_name, n, sizeof *c->by_name, cmp_view);
    for (size_t i = 1; i < n; i++) {
        const char *name = c->by_name[i]->name;
        if (strcmp(c->by_name[i - 1]->name, name) == 0) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%.*s' is present in two shards, allowed is one",
                    bl_name_shown(name, strlen(name)), name);
        }
    }
    return BL_OK;
}

static bl_code open_indexed(bl_checkpoint *c, json_t *index, bl_err *err) {
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) {
        BL_FAIL(err, BL_EFORMAT, "index: 'weight_map' is %s, allowed is an object",
                map ? "no object" : "missing");
    }
    if (json_object_size(map) == 0) {
        BL_FAIL(err, BL_EFORMAT, "index: 'weight_map' is empty, allowed are 1 tensor and more");
    }
    BL_TRY(open_shards(c, map, err));
    return gather(c, err);
}

static bl_code open_weights(bl_checkpoint *c, bl_err *err) {
    json_t *index;
    bl_err none;
    bl_code rc = read_json(c, "model.safetensors.index.json", BL_ST_MAX_INDEX_BYTES, BL_ST_MAX_DEPTH, &index,
                           err ? err : &none);
    if (rc == BL_ENOTFOUND) {
        BL_TRY(open_shard(c, "model.safetensors", err));
        return gather(c, err);
    }
    BL_TRY(rc);
    rc = open_indexed(c, index, err);
    json_decref(index);
    return rc;
}

/* ---- the folder ---- */

/* The one *.gguf of a folder into out (a bare name). */
static bl_code find_gguf(const char *dir, char out[NAME_MAX + 1], bl_err *err) {
    DIR *d = opendir(dir);
    if (!d) {
        return fail_stat(dir, err);
    }
    size_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (e->d_name[0] != '.' && bl_name_ends(e->d_name, ".gguf") && len <= NAME_MAX) {
            memcpy(out, e->d_name, len + 1);
            n++;
        }
    }
    closedir(d);
    if (n == 0) {
        BL_FAIL(err, BL_ENOTFOUND, "folder '%s' holds neither config.json nor a .gguf file", dir);
    }
    if (n > 1) {
        BL_FAIL(err, BL_EINVAL, "folder '%s' holds %zu .gguf files, allowed is one: name the file itself",
                dir, n);
    }
    return BL_OK;
}

static bl_code set_name(bl_checkpoint *c, const char *path, bl_err *err) {
    const char *s = bl_name_of_path(path);
    size_t n = strlen(s);
    if (c->kind == BL_CKPT_GGUF && n > 5 && bl_name_ends(s, ".gguf")) {
        n -= 5;
    }
    if (c->kind == BL_CKPT_HF && c->link_root) {
        s = bl_name_of_path(c->link_root) + strlen(CACHE_PREFIX);
        const char *owner_end = strstr(s, "--");
        s = owner_end && owner_end[2] != '\0' ? owner_end + 2 : s;
        n = strlen(s);
    }
    c->name = bl_strndup(s, n);
    return c->name ? BL_OK : no_memory("a name", err);
}

static bl_code open_gguf(bl_checkpoint *c, const char *name, const char *path, bl_err *err) {
    c->kind = BL_CKPT_GGUF;
    BL_TRY(set_name(c, name, err));
    BL_TRY(remember(path, &c->ids[0], err));
    return bl_gguf_open(path, &c->gguf, err);
}

static bl_code open_folder(bl_checkpoint *c, bl_err *err) {
    char path[PATH_MAX], file[NAME_MAX + 1];
    if (!realpath(c->path, path)) {
        return fail_stat(c->path, err);
    }
    c->real = bl_strdup(path);
    if (!c->real) {
        return no_memory("a path", err);
    }
    BL_TRY(find_link_root(c->real, &c->link_root, err));
    bl_err cause;
    bl_code rc = resolve(c, "config.json", path, &cause);
    if (rc == BL_ENOTFOUND) {
        BL_TRY(find_gguf(c->real, file, err));
        BL_TRY(resolve(c, file, path, err));
        return open_gguf(c, file, path, err);
    }
    c->kind = BL_CKPT_HF;
    BL_TRY(set_name(c, c->real, err));
    BL_TRY(read_json(c, "config.json", BL_MODEL_CONFIG_MAX_BYTES, BL_CONFIG_MAX_DEPTH, &c->config, err));
    rc = read_json(c, "generation_config.json", BL_CONFIG_MAX_BYTES, BL_CONFIG_MAX_DEPTH,
                   &c->generation_config, err);
    if (rc != BL_OK && rc != BL_ENOTFOUND) {
        return rc;
    }
    return open_weights(c, err);
}

/* ---- a head from a folder of its own ---- */

static void done_attached(attached *h) {
    for (size_t i = 0; i < h->n_files; i++) {
        bl_safetensors_free(h->files[i]);
    }
    json_decref(h->config);
    bl_free(h->views);
    bl_free(h->names);
    *h = (attached){0};
}

static bl_code read_head_config(const char *real, attached *h, bl_err *err) {
    char path[PATH_MAX];
    bl_buf b;
    BL_TRY(join_path(real, "config.json", path, err));
    BL_TRY(bl_file_read(path, BL_CONFIG_MAX_BYTES, &b, err));
    bl_code rc =
        bl_json_parse(bl_buf_str(&b), b.len, BL_CONFIG_MAX_DEPTH, "the head's config.json", &h->config, err);
    bl_buf_done(&b);
    BL_TRY(rc);
    if (!json_is_object(h->config)) {
        BL_FAIL(err, BL_EFORMAT, "the head's config.json is no object");
    }
    return BL_OK;
}

/* In no order: the tensors are sorted by name later. */
static bl_code open_head_files(const char *real, attached *h, bl_err *err) {
    char path[PATH_MAX];
    bl_code rc = BL_OK;
    DIR *d = opendir(real);
    if (!d) {
        return fail_stat(real, err);
    }
    for (struct dirent *e; rc == BL_OK && (e = readdir(d));) {
        if (!bl_name_ends(e->d_name, ".safetensors")) {
            continue;
        }
        if (h->n_files == BL_ST_MAX_SHARDS) {
            rc = bl_err_set(err, BL_ELIMIT, __FILE__, __LINE__,
                            "the head has more than %u .safetensors files, which are allowed",
                            BL_ST_MAX_SHARDS);
            break;
        }
        rc = join_path(real, e->d_name, path, err);
        if (rc == BL_OK) {
            rc = bl_safetensors_open(path, false, &h->files[h->n_files], err);
        }
        h->n_files += rc == BL_OK;
    }
    closedir(d);
    return rc;
}

/* Views of all files under the names that an embedded head has. */
static bl_code name_head(attached *h, bl_err *err) {
    const size_t n_prefix = strlen(BL_CHECKPOINT_HEAD_PREFIX);
    size_t n_bytes = 0;
    for (size_t f = 0; f < h->n_files; f++) {
        h->n_views += bl_safetensors_count(h->files[f]);
        for (size_t i = 0; i < bl_safetensors_count(h->files[f]); i++) {
            n_bytes += n_prefix + strlen(bl_safetensors_at(h->files[f], i)->name) + 1;
        }
    }
    if (h->n_views == 0) {
        BL_FAIL(err, BL_ENOTFOUND, "the head's folder holds no tensor");
    }
    h->views = bl_alloc_array(h->n_views, sizeof *h->views);
    h->names = bl_alloc(n_bytes);
    if (!h->views || !h->names) {
        return no_memory("the head's tensors", err);
    }
    char *name = h->names;
    size_t n = 0;
    for (size_t f = 0; f < h->n_files; f++) {
        for (size_t i = 0; i < bl_safetensors_count(h->files[f]); i++) {
            bl_tensor_view *v = &h->views[n++];
            *v = *bl_safetensors_at(h->files[f], i);
            size_t len = strlen(v->name) + 1;
            memcpy(name, BL_CHECKPOINT_HEAD_PREFIX, n_prefix);
            memcpy(name + n_prefix, v->name, len);
            v->name = name;
            name += n_prefix + len;
        }
    }
    return BL_OK;
}

/* config.json as an embedded head would have it. */
static bl_code declare_head(const bl_checkpoint *c, const attached *h, json_t **ret, bl_err *err) {
    json_t *quantization = json_object_get(h->config, "quantization");
    json_t *block = json_object_get(h->config, "block_size"),
           *type = json_object_get(h->config, "model_type");
    json_t *config = json_copy(c->config), *head = json_object();
    quantization = quantization ? quantization : json_object_get(h->config, "quantization_config");
    int bad = json_object_set_new(head, "included", json_true());
    bad |= type ? json_object_set(head, "model_type", type) : 0;
    bad |= block ? json_object_set(head, "block_size", block) : 0;
    bad |= quantization ? json_object_set(config, "mtplx_mtp_quantization", quantization)
                        : json_object_set_new(config, "mtplx_mtp_quantization", json_object());
    bad |= json_object_set_new(config, "mtplx_mtp", head);
    if (bad != 0) {
        json_decref(config);
        return no_memory("the head's declaration", err);
    }
    *ret = config;
    return BL_OK;
}

/* The checkpoint's own tensors and the head's in new lists. */
static bl_code merge_views(const bl_checkpoint *c, const attached *h, const bl_tensor_view ***ret_views,
                           const bl_tensor_view ***ret_by_name, size_t *ret_n, bl_err *err) {
    size_t n = 0, cap = c->n_views + h->n_views;
    const bl_tensor_view **views = bl_alloc_array(cap, sizeof *views);
    const bl_tensor_view **by_name = bl_alloc_array(cap, sizeof *by_name);
    bl_code rc = views && by_name ? BL_OK : no_memory("the list of tensors", err);
    for (size_t i = 0; rc == BL_OK && i < c->n_views; i++) {
        if (!is_of_head(c->views[i]->name)) {
            views[n++] = c->views[i];
        }
    }
    for (size_t i = 0; rc == BL_OK && i < h->n_views; i++) {
        views[n++] = &h->views[i];
    }
    if (rc == BL_OK && n > BL_ST_MAX_TENSORS) {
        rc = bl_err_set(err, BL_ELIMIT, __FILE__, __LINE__, "model and head have %zu tensors, allowed are %u",
                        n, BL_ST_MAX_TENSORS);
    }
    if (rc == BL_OK) {
        memcpy(by_name, views, n * sizeof *views);
        qsort(by_name, n, sizeof *by_name, cmp_view);
    }
    for (size_t i = 1; rc == BL_OK && i < n; i++) {
        const char *name = by_name[i]->name;
        if (strcmp(by_name[i - 1]->name, name) == 0) {
            rc = bl_err_set(err, BL_EFORMAT, __FILE__, __LINE__,
                            "tensor '%.*s' is present twice in the head, allowed is once",
                            bl_name_shown(name, strlen(name)), name);
        }
    }
    if (rc != BL_OK) {
        bl_free(views);
        bl_free(by_name);
        return rc;
    }
    *ret_views = views;
    *ret_by_name = by_name;
    *ret_n = n;
    return BL_OK;
}

static bl_code read_head(const char *dir, attached *h, bl_err *err) {
    char real[PATH_MAX];
    if (!realpath(dir, real)) {
        return fail_stat(dir, err);
    }
    BL_TRY(read_head_config(real, h, err));
    BL_TRY(open_head_files(real, h, err));
    return name_head(h, err);
}

bl_code bl_checkpoint_attach_head(bl_checkpoint *c, const char *dir, bl_err *err) {
    attached h = {0};
    json_t *config = NULL;
    const bl_tensor_view **views = NULL, **by_name = NULL;
    size_t n = 0;
    if (c->kind != BL_CKPT_HF || c->head.n_files > 0) {
        BL_FAIL(err, BL_ENOTSUP, "'%s' %s: it takes no head from another folder", c->name,
                c->kind == BL_CKPT_HF ? "has one already" : "is a GGUF file");
    }
    bl_code rc = read_head(dir, &h, err);
    if (rc == BL_OK) {
        rc = declare_head(c, &h, &config, err);
    }
    if (rc == BL_OK) {
        rc = merge_views(c, &h, &views, &by_name, &n, err);
    }
    if (rc != BL_OK) {
        json_decref(config);
        done_attached(&h);
        return rc;
    }
    json_decref(c->config);
    bl_free(c->views);
    bl_free(c->by_name);
    c->config = config;
    c->views = views;
    c->by_name = by_name;
    c->n_views = n;
    c->head = h;
    return BL_OK;
}

/* ---- the whole ---- */

bl_code bl_checkpoint_open(const char *path, bl_checkpoint **ret, bl_err *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        return fail_stat(path, err);
    }
    bl_checkpoint *c = bl_alloc(sizeof *c);
    if (!c) {
        return no_memory("a checkpoint", err);
    }
    bl_code rc;
    c->path = bl_strdup(path);
    if (!c->path) {
        rc = no_memory("a path", err);
    } else if (!S_ISDIR(st.st_mode)) {
        rc = open_gguf(c, path, path, err);
    } else {
        rc = open_folder(c, err);
        if (rc != BL_OK) {
            const char *shown = bl_name_of_path(path);
            shown = *shown ? shown : path;
            rc = bl_err_wrap(err, rc, "checkpoint '%.*s'", bl_name_shown(shown, strlen(shown)), shown);
        }
    }
    if (rc != BL_OK) {
        bl_checkpoint_free(c);
        return rc;
    }
    *ret = c;
    return BL_OK;
}

void bl_checkpoint_free(bl_checkpoint *c) {
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->n_shards; i++) {
        bl_safetensors_free(c->shards[i]);
        bl_free(c->shard_names[i]);
    }
    for (size_t i = 0; i < BL_ST_MAX_SHARDS; i++) {
        bl_free(c->ids[i].path);
    }
    bl_gguf_free(c->gguf);
    done_attached(&c->head);
    json_decref(c->config);
    json_decref(c->generation_config);
    bl_free(c->views);
    bl_free(c->by_name);
    bl_free(c->link_root);
    bl_free(c->real);
    bl_free(c->name);
    bl_free(c->path);
    bl_free(c);
}

const char *bl_checkpoint_left_out(const bl_checkpoint *c) {
    return c->left_out[0] != '\0' ? c->left_out : NULL;
}

bl_checkpoint_kind bl_checkpoint_kind_of(const bl_checkpoint *c) {
    return c->kind;
}
const char *bl_checkpoint_path(const bl_checkpoint *c) {
    return c->path;
}
const char *bl_checkpoint_name(const bl_checkpoint *c) {
    return c->name;
}
const bl_gguf *bl_checkpoint_gguf(const bl_checkpoint *c) {
    return c->gguf;
}
const json_t *bl_checkpoint_config(const bl_checkpoint *c) {
    return c->config;
}
const json_t *bl_checkpoint_generation_config(const bl_checkpoint *c) {
    return c->generation_config;
}

size_t bl_checkpoint_count(const bl_checkpoint *c) {
    return c->gguf ? bl_gguf_count(c->gguf) : c->n_views;
}

const bl_tensor_view *bl_checkpoint_at(const bl_checkpoint *c, size_t i) {
    BL_ASSERT(i < bl_checkpoint_count(c));
    return c->gguf ? bl_gguf_at(c->gguf, i) : c->views[i];
}

const bl_tensor_view *bl_checkpoint_find(const bl_checkpoint *c, const char *name) {
    if (c->gguf) {
        return bl_gguf_find(c->gguf, name);
    }
    size_t lo = 0, hi = c->n_views;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int cmp = strcmp(name, c->by_name[mid]->name);
        if (cmp == 0) {
            return c->by_name[mid];
        }
        if (cmp < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

uint64_t bl_checkpoint_tensor_bytes(const bl_checkpoint *c) {
    uint64_t sum = 0; /* no overflow: tensors do not overlap and lie in mapped files */
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        sum += bl_checkpoint_at(c, i)->size_bytes;
    }
    return sum;
}

void bl_checkpoint_release_pages(const bl_checkpoint *c, const bl_tensor_view *t) {
    (void)c;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    /* only whole pages of this tensor: neighbours may still be wanted */
    uintptr_t begin = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)t->data + (uintptr_t)t->size_bytes) & ~(page - 1);
    if (begin < end) {
        /* advice on a private read-only map: failure costs memory only */
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}

static bool is_head_shard(const bl_safetensors *st) {
    size_t n = bl_safetensors_count(st), i = 0;
    while (i < n && is_of_head(bl_safetensors_at(st, i)->name)) {
        i++;
    }
    return n > 0 && i == n;
}

bl_code bl_checkpoint_check_intact(const bl_checkpoint *c, bl_err *err) {
    if (c->gguf) {
        BL_TRY(bl_gguf_check_intact(c->gguf, c->name, err));
        return check_unchanged(&c->ids[0], c->name, err);
    }
    for (size_t s = 0; s < c->n_shards; s++) {
        if (is_head_shard(c->shards[s])) {
            continue;
        }
        BL_TRY(bl_safetensors_check_intact(c->shards[s], c->shard_names[s], err));
        BL_TRY(check_unchanged(&c->ids[s], c->shard_names[s], err));
    }
    return BL_OK;
}

bl_code bl_checkpoint_read_side(const bl_checkpoint *c, const char *file, size_t max_bytes, bl_buf *ret,
                                bl_err *err) {
    char path[PATH_MAX];
    if (c->kind == BL_CKPT_GGUF) {
        BL_FAIL(err, BL_ENOTFOUND, "'%s' does not exist: the checkpoint is a GGUF file", file);
    }
    BL_TRY(resolve(c, file, path, err));
    return bl_file_read(path, max_bytes, ret, err);
}
