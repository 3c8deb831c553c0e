/* The files of a checkpoint with an embedded head: those of the target, in a new folder that appears whole.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/embed_mtp_job.h"
#include "provider/pull.h"

#define MAX_FILES 512u
/* A tokenizer is the largest file beside the weights. What is larger is no part of a checkpoint. */
#define MAX_SIDE_BYTES ((uint64_t)BL_TOKENIZER_JSON_MAX_BYTES)
#define COPY_BYTES     ((size_t)1 << 20)
/* Room for config.json and index. */
#define SMALL_FILES_BYTES ((uint64_t)4 << 20)
#define SHOWN(name)       bl_name_shown((name), strlen(name)), (name)

static bl_code fail_errno(const char *doing, const char *name, bl_err *err) {
    int e = errno;
    BL_FAIL(err, BL_EIO, "cannot %s '%.*s': %s", doing, SHOWN(name), strerror(e));
}

/* ---- where the files come from ------------------------------------------------------------------------- */

typedef struct {
    char *name, *from; /* from: behind links */
    uint64_t size_bytes;
    bool shard, linked;
} file;

typedef struct {
    file files[MAX_FILES];
    uint32_t n;
} file_list;

static void list_free(file_list *l) {
    for (uint32_t i = 0; l && i < l->n; i++) {
        bl_free(l->files[i].name);
        bl_free(l->files[i].from);
    }
    bl_free(l);
}

const char *bl_embed_mtp_shard_of(const bl_embed_mtp *e, const char *tensor) {
    return e->map ? json_string_value(json_object_get(e->map, tensor)) : "model.safetensors";
}

static bool is_listed(const file_list *l, const char *name) {
    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(l->files[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static bl_code list_file(const bl_embed_mtp *e, file_list *l, const char *name, bool shard, bl_err *err) {
    struct stat st;
    file f = {.shard = shard};
    if (l->n == MAX_FILES) {
        BL_FAIL(err, BL_ELIMIT, "the target has more than %u files, which are allowed", MAX_FILES);
    }
    BL_TRY(bl_checkpoint_locate(bl_checkpoint_path(e->target), name, &f.from, err));
    f.name = bl_strdup(name);
    if (!f.name || stat(f.from, &st) != 0) {
        bl_code rc = f.name ? fail_errno("look at", name, err)
                            : bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for a file's name");
        bl_free(f.name);
        bl_free(f.from);
        return rc;
    }
    f.size_bytes = (uint64_t)st.st_size;
    l->files[l->n++] = f;
    return BL_OK;
}

/* Is it of the weights of this or another format, or bookkeeping that is written anew? */
static bool is_side_file(const char *name) {
    static const char *const others[] = {".safetensors", ".gguf",    ".bin",
                                         ".pt",          ".pth",     ".onnx",
                                         ".h5",          ".msgpack", ".safetensors.index.json"};
    for (size_t i = 0; i < BL_COUNTOF(others); i++) {
        if (bl_name_ends(name, others[i])) {
            return false;
        }
    }
    return name[0] != '.' && strcmp(name, "config.json") != 0;
}

/* What lies beside the weights: regular files of a tokenizer's size at most. */
static bl_code list_side_file(bl_embed_mtp *e, file_list *l, const char *name, bl_err *err) {
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", bl_checkpoint_path(e->target), name);
    if (is_listed(l, name) || strcmp(name, "config.json") == 0 ||
        strcmp(name, "model.safetensors.index.json") == 0 || strcmp(name, BL_QUANTIZE_HEAD_FILE) == 0) {
        return BL_OK;
    }
    if (!is_side_file(name) || n < 0 || n >= PATH_MAX || stat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size > MAX_SIDE_BYTES) {
        e->report.n_left += name[0] != '.';
        return BL_OK;
    }
    return list_file(e, l, name, false, err);
}

static bl_code list_side_files(bl_embed_mtp *e, file_list *l, bl_err *err) {
    DIR *d = opendir(bl_checkpoint_path(e->target));
    bl_code rc = BL_OK;
    if (!d) {
        return fail_errno("read folder", bl_checkpoint_path(e->target), err);
    }
    for (struct dirent *entry; rc == BL_OK && (entry = readdir(d));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            rc = list_side_file(e, l, entry->d_name, err);
        }
    }
    closedir(d);
    return rc;
}

static bl_code list_files(bl_embed_mtp *e, file_list *l, bl_err *err) {
    for (size_t i = 0; i < bl_checkpoint_count(e->target); i++) {
        const char *tensor = bl_checkpoint_at(e->target, i)->name;
        const char *shard = bl_embed_mtp_shard_of(e, tensor);
        if (!bl_quantize_is_head(tensor) && !is_listed(l, shard)) {
            BL_TRY(list_file(e, l, shard, true, err));
        }
    }
    return list_side_files(e, l, err);
}

/* ---- the new folder ------------------------------------------------------------------------------------ */

static bl_code join(const char *dir, const char *name, char ret[PATH_MAX], bl_err *err) {
    int n = snprintf(ret, PATH_MAX, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX) {
        BL_FAIL(err, BL_ELIMIT, "path of '%.*s' has %d bytes, allowed are %d", SHOWN(name), n, PATH_MAX - 1);
    }
    return BL_OK;
}

/* "a/b//" -> "a" and "b"; "b" -> "." and "b". */
static bl_code split(const char *out, char parent[PATH_MAX], char name[NAME_MAX + 1], bl_err *err) {
    size_t end = strlen(out);
    while (end > 1 && out[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && out[begin - 1] != '/') {
        begin--;
    }
    size_t n = end - begin;
    bool dots = (n == 1 && out[begin] == '.') || (n == 2 && strncmp(out + begin, "..", 2) == 0);
    if (n == 0 || dots || n > 200 || begin >= PATH_MAX - 256) {
        BL_FAIL(err, BL_EINVAL, "'%.150s' cannot be the name of a new folder", out);
    }
    memcpy(name, out + begin, n);
    name[n] = '\0';
    snprintf(parent, PATH_MAX, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin > 0 ? out : ".");
    return BL_OK;
}

bl_code bl_embed_mtp_make_folder(bl_embed_mtp *e, bl_err *err) {
    char name[NAME_MAX + 1], hidden[NAME_MAX + 1];
    BL_TRY(split(e->o->out, e->parent, name, err));
    bool exists;
    BL_TRY(bl_file_check_new_dir(e->o->out, &exists, err));
    snprintf(hidden, sizeof hidden, ".%.200s.tmp.%ld", name, (long)getpid());
    BL_TRY(join(e->parent, hidden, e->folder, err));
    BL_TRY(bl_file_make_dirs(e->parent, err));
    if (mkdir(e->folder, 0755) != 0) {
        return fail_errno("make folder", e->folder, err);
    }
    e->made = true;
    return BL_OK;
}

void bl_embed_mtp_remove_folder(bl_embed_mtp *e) {
    DIR *d = e->made ? opendir(e->folder) : NULL;
    char path[PATH_MAX];
    if (!d) {
        return;
    }
    for (struct dirent *entry; (entry = readdir(d));) {
        bool dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!dots && join(e->folder, entry->d_name, path, NULL) == BL_OK) {
            (void)bl_os.unlink(path);
        }
    }
    closedir(d);
    (void)rmdir(e->folder);
    e->made = false;
}

/* ---- links and copies ---------------------------------------------------------------------------------- */

typedef struct {
    bl_embed_mtp *e;
    const file *f;
    int in, out;
    uint64_t done_bytes;
} copy;

static bl_code copy_piece(copy *c, char *buf, bool *ret_end, bl_err *err) {
    const bl_embed_mtp_options *o = c->e->o;
    if (o->cancel && atomic_load_explicit(o->cancel, memory_order_relaxed)) {
        BL_FAIL(err, BL_ECANCEL, "interrupted, nothing was kept");
    }
    ssize_t n = bl_os.read(c->in, buf, COPY_BYTES);
    if (n < 0) {
        return errno == EINTR ? BL_OK : fail_errno("read", c->f->name, err);
    }
    *ret_end = n == 0;
    for (ssize_t at = 0; at < n;) {
        ssize_t k = bl_os.write(c->out, buf + at, (size_t)(n - at));
        if (k < 0 && errno != EINTR) {
            return fail_errno("write", c->f->name, err);
        }
        at += BL_MAX(k, 0);
    }
    c->done_bytes += (uint64_t)n;
    c->e->work.done_bytes += (uint64_t)n;
    if (n > 0 && o->progress) {
        o->progress(o->user, c->e->work.done_bytes, c->e->work.total_bytes);
    }
    return BL_OK;
}

static bl_code copy_open_file(copy *c, bl_err *err) {
    char *buf = bl_alloc(COPY_BYTES);
    if (!buf) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a block of a file");
    }
    bl_code rc = BL_OK;
    for (bool end = false; rc == BL_OK && !end;) {
        rc = copy_piece(c, buf, &end, err);
    }
    bl_free(buf);
    BL_TRY(rc);
    if (c->done_bytes != c->f->size_bytes) {
        BL_FAIL(err, BL_ECORRUPT, "'%.*s' changed while it was read: it had %" PRIu64 " bytes, then %" PRIu64,
                SHOWN(c->f->name), c->f->size_bytes, c->done_bytes);
    }
    return bl_os.fsync(c->out) == 0 ? BL_OK : fail_errno("sync", c->f->name, err);
}

static bl_code copy_file(bl_embed_mtp *e, const file *f, bl_err *err) {
    char to[PATH_MAX];
    copy c = {.e = e, .f = f, .in = -1, .out = -1};
    BL_TRY(join(e->folder, f->name, to, err));
    bl_code rc = BL_OK;
    c.in = bl_os.open(f->from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (c.in < 0) {
        return fail_errno("open", f->name, err);
    }
    c.out = bl_os.open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    rc = c.out < 0 ? fail_errno("create", f->name, err) : copy_open_file(&c, err);
    (void)bl_os.close(c.in);
    if (c.out >= 0 && bl_os.close(c.out) != 0 && rc == BL_OK) {
        rc = fail_errno("close", f->name, err);
    }
    e->report.n_copied++;
    e->report.copied_bytes += f->size_bytes;
    return rc;
}

/* Weights as hard links where the file system has them: other names of the same bytes. Small files are
 * copied, because people edit them in place. */
static bl_code link_shards(bl_embed_mtp *e, file_list *l, bl_err *err) {
    char to[PATH_MAX];
    for (uint32_t i = 0; i < l->n && !e->o->copy; i++) {
        file *f = &l->files[i];
        BL_TRY(join(e->folder, f->name, to, err));
        f->linked = f->shard && bl_os.link(f->from, to) == 0;
        if (f->linked) {
            e->report.n_linked++;
            e->report.linked_bytes += f->size_bytes;
        }
    }
    return BL_OK;
}

static bl_code take(bl_embed_mtp *e, file_list *l, uint64_t head_bytes, bl_err *err) {
    BL_TRY(list_files(e, l, err));
    BL_TRY(link_shards(e, l, err));
    uint64_t bytes = 0; /* no overflow: sizes of files */
    for (uint32_t i = 0; i < l->n; i++) {
        bytes += l->files[i].linked ? 0 : l->files[i].size_bytes;
    }
    BL_TRY(bl_pull_check_space(e->folder, bytes + head_bytes + SMALL_FILES_BYTES, err));
    e->work.total_bytes += bytes;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!l->files[i].linked) {
            BL_TRY(copy_file(e, &l->files[i], err));
        }
    }
    return BL_OK;
}

bl_code bl_embed_mtp_take_files(bl_embed_mtp *e, uint64_t head_bytes, bl_err *err) {
    file_list *l = bl_alloc(sizeof *l);
    if (!l) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the list of files");
    }
    bl_code rc = take(e, l, head_bytes, err);
    list_free(l);
    return rc;
}

bl_code bl_embed_mtp_publish(bl_embed_mtp *e, bl_err *err) {
    BL_TRY(bl_file_sync_dir(e->folder, err));
    if (bl_os.rename(e->folder, e->o->out) != 0) {
        return fail_errno("rename to", e->o->out, err);
    }
    snprintf(e->folder, sizeof e->folder, "%s", e->o->out); /* what a failure from here on removes */
    return bl_file_sync_dir(e->parent, err);
}
