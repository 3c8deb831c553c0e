#include "formats/safetensors_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/os.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "formats/tensor_view.h"

#define MAX_SIDE_FILES 64u
#define MAX_FILES      (BL_ST_MAX_SHARDS + MAX_SIDE_FILES)

typedef struct {
    char *name;
    bl_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[BL_TENSOR_MAX_DIMS];
    uint64_t size_bytes, off_bytes, done_bytes; /* off: in the shard's data */
    uint32_t file;                              /* of `files`; before begin of `own_names`, or NO_FILE */
    bool listed; /* in a shard of somebody else: no bytes, no place of its own */
} planned;

#define NO_FILE UINT32_MAX

typedef struct {
    char *name;
    int fd;              /* -1: not open */
    bool written;        /* the temporary file exists */
    bool renamed;        /* the file exists under its own name */
    bool shard;          /* listed in the index */
    bool present;        /* somebody else's, not touched */
    uint64_t data_off;   /* shards: bytes of the header with its length */
    uint64_t data_bytes; /* shards: planned */
    uint64_t left_bytes; /* shards: not put yet */
    uint32_t n_tensors;
} out_file;

struct bl_safetensors_writer {
    char *dir;
    uint64_t max_shard_bytes, total_bytes, listed_bytes;
    planned *tensors;
    uint32_t n, cap;
    char *own_names[BL_ST_MAX_SHARDS];  /* files asked for by name */
    bool own_present[BL_ST_MAX_SHARDS]; /* of bl_safetensors_writer_list */
    uint32_t n_own;
    out_file files[MAX_FILES];
    uint32_t n_files;
    bool begun, finished;
};

static const char *dtype_word(bl_dtype t) {
    switch (t) {
    case BL_DTYPE_F32:
        return "F32";
    case BL_DTYPE_F16:
        return "F16";
    case BL_DTYPE_BF16:
        return "BF16";
    case BL_DTYPE_U8:
        return "U8";
    case BL_DTYPE_U32:
        return "U32";
    case BL_DTYPE_I32:
        return "I32";
    default:
        return NULL;
    }
}

static bl_code no_memory(const char *what, bl_err *err) {
    BL_FAIL(err, BL_ENOMEM, "no memory for %s", what);
}

bl_code bl_safetensors_writer_new(const char *dir, uint64_t max_shard_bytes, bl_safetensors_writer **ret,
                                  bl_err *err) {
    bl_safetensors_writer *w = bl_alloc(sizeof *w);
    char *copy = bl_strdup(dir);
    if (!w || !copy) {
        bl_free(w);
        bl_free(copy);
        return no_memory("a checkpoint writer", err);
    }
    w->dir = copy;
    w->max_shard_bytes = max_shard_bytes;
    *ret = w;
    return BL_OK;
}

/* ---- paths ---- */

static bl_code path_of(const bl_safetensors_writer *w, const char *name, bool temporary, char out[PATH_MAX],
                       bl_err *err) {
    int n = temporary ? snprintf(out, PATH_MAX, "%s/.%s.tmp.%ld", w->dir, name, (long)getpid())
                      : snprintf(out, PATH_MAX, "%s/%s", w->dir, name);
    if (n < 0 || n >= PATH_MAX) {
        BL_FAIL(err, BL_ELIMIT, "path of '%.*s' has %d bytes, allowed are %d",
                bl_name_shown(name, strlen(name)), name, n, PATH_MAX - 1);
    }
    return BL_OK;
}

static bl_code fail_errno(const char *doing, const char *name, bl_err *err) {
    int e = errno;
    BL_FAIL(err, BL_EIO, "cannot %s '%.*s': %s", doing, bl_name_shown(name, strlen(name)), name, strerror(e));
}

static bl_code check_file_name(const char *name, bl_err *err) {
    BL_TRY(bl_name_check(name, strlen(name), 200, "file name", err));
    if (strpbrk(name, "/\\") || name[0] == '.') {
        BL_FAIL(err, BL_EINVAL, "file name '%.*s' is a path or hidden, allowed are bare names",
                bl_name_shown(name, strlen(name)), name);
    }
    return BL_OK;
}

/* ---- planning ---- */

static bl_code find_own(bl_safetensors_writer *w, const char *file, bool present, uint32_t *ret,
                        bl_err *err) {
    for (uint32_t i = 0; i < w->n_own; i++) {
        if (strcmp(w->own_names[i], file) != 0) {
            continue;
        }
        if (w->own_present[i] != present) {
            BL_FAIL(err, BL_EINVAL, "shard '%.*s' is in the folder already, and would be written",
                    bl_name_shown(file, strlen(file)), file);
        }
        *ret = i;
        return BL_OK;
    }
    BL_TRY(check_file_name(file, err));
    if (w->n_own == BL_ST_MAX_SHARDS) {
        BL_FAIL(err, BL_ELIMIT, "more than %u shards, allowed are %u", BL_ST_MAX_SHARDS, BL_ST_MAX_SHARDS);
    }
    char *copy = bl_strdup(file);
    if (!copy) {
        return no_memory("a shard's name", err);
    }
    w->own_names[w->n_own] = copy;
    w->own_present[w->n_own] = present;
    *ret = w->n_own++;
    return BL_OK;
}

static bl_code size_of(const char *name, bl_dtype dtype, uint32_t n_dims, const uint64_t *dims, uint64_t *ret,
                       bl_err *err) {
    uint64_t n = bl_dtype_get(dtype)->block_bytes;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (!bl_mul_u64(n, dims[i], &n)) {
            BL_FAIL(err, BL_ERANGE, "tensor '%.*s': size is beyond 64 bits",
                    bl_name_shown(name, strlen(name)), name);
        }
    }
    *ret = n;
    return BL_OK;
}

static bl_code grow(bl_safetensors_writer *w, bl_err *err) {
    if (w->n < w->cap) {
        return BL_OK;
    }
    if (w->n >= BL_ST_MAX_TENSORS) {
        BL_FAIL(err, BL_ELIMIT, "more than %u tensors, allowed are %u", BL_ST_MAX_TENSORS, BL_ST_MAX_TENSORS);
    }
    uint32_t cap = BL_MIN(BL_MAX(w->cap * 2, 64u), BL_ST_MAX_TENSORS);
    planned *p = bl_realloc(w->tensors, cap * sizeof *p);
    if (!p) {
        return no_memory("the plan of a checkpoint", err);
    }
    w->tensors = p;
    w->cap = cap;
    return BL_OK;
}

bl_code bl_safetensors_writer_plan(bl_safetensors_writer *w, const char *name, bl_dtype dtype,
                                   uint32_t n_dims, const uint64_t *dims, const char *file, uint32_t *ret_id,
                                   bl_err *err) {
    BL_ASSERT(!w->begun && n_dims <= BL_TENSOR_MAX_DIMS);
    planned t = {.dtype = dtype, .n_dims = n_dims, .file = NO_FILE};
    BL_TRY(bl_name_check(name, strlen(name), BL_ST_MAX_NAME_BYTES, "tensor name", err));
    if (!dtype_word(dtype)) {
        BL_FAIL(err, BL_EINVAL, "tensor '%.*s' has dtype %s, written are F32 F16 BF16 U8 U32 I32",
                bl_name_shown(name, strlen(name)), name, bl_dtype_get(dtype)->name);
    }
    BL_TRY(size_of(name, dtype, n_dims, dims, &t.size_bytes, err));
    if (file) {
        BL_TRY(find_own(w, file, false, &t.file, err));
    }
    uint64_t total;
    if (!bl_add_u64(w->total_bytes, t.size_bytes, &total) || total > BL_MAX_EXACT_INT) {
        BL_FAIL(err, BL_ERANGE, "checkpoint of more than 2^53 bytes");
    }
    BL_TRY(grow(w, err));
    t.name = bl_strdup(name);
    if (!t.name) {
        return no_memory("a tensor's name", err);
    }
    memcpy(t.dims, dims, n_dims * sizeof *dims);
    w->total_bytes = total;
    *ret_id = w->n;
    w->tensors[w->n++] = t;
    return BL_OK;
}

bl_code bl_safetensors_writer_list(bl_safetensors_writer *w, const char *name, uint64_t size_bytes,
                                   const char *file, bl_err *err) {
    BL_ASSERT(!w->begun);
    planned t = {.listed = true};
    uint64_t total;
    BL_TRY(bl_name_check(name, strlen(name), BL_ST_MAX_NAME_BYTES, "tensor name", err));
    if (!bl_add_u64(w->listed_bytes, size_bytes, &total) || total > BL_MAX_EXACT_INT) {
        BL_FAIL(err, BL_ERANGE, "checkpoint of more than 2^53 bytes");
    }
    BL_TRY(find_own(w, file, true, &t.file, err));
    BL_TRY(grow(w, err));
    t.name = bl_strdup(name);
    if (!t.name) {
        return no_memory("a tensor's name", err);
    }
    w->listed_bytes = total;
    w->tensors[w->n++] = t;
    return BL_OK;
}

uint64_t bl_safetensors_writer_bytes(const bl_safetensors_writer *w) {
    return w->total_bytes;
}

static int cmp_name(const void *a, const void *b) {
    return strcmp((*(const planned *const *)a)->name, (*(const planned *const *)b)->name);
}

/* All tensors by name; the caller frees. */
static bl_code sort_names(const bl_safetensors_writer *w, const planned ***ret, bl_err *err) {
    const planned **by_name = bl_alloc_array(w->n, sizeof *by_name);
    if (!by_name) {
        return no_memory("the index", err);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        by_name[i] = &w->tensors[i];
    }
    qsort(by_name, w->n, sizeof *by_name, cmp_name);
    *ret = by_name;
    return BL_OK;
}

static bl_code check_names(const bl_safetensors_writer *w, bl_err *err) {
    const planned **by_name;
    BL_TRY(sort_names(w, &by_name, err));
    bl_code rc = BL_OK;
    for (uint32_t i = 1; i < w->n && rc == BL_OK; i++) {
        if (strcmp(by_name[i - 1]->name, by_name[i]->name) == 0) {
            const char *name = by_name[i]->name;
            rc = bl_err_set(err, BL_EINVAL, __FILE__, __LINE__, "tensor '%.*s' is planned twice",
                            bl_name_shown(name, strlen(name)), name);
        }
    }
    bl_free(by_name);
    return rc;
}

static bl_code add_file(bl_safetensors_writer *w, const char *name, bool shard, uint32_t *ret, bl_err *err) {
    if (w->n_files == MAX_FILES) {
        BL_FAIL(err, BL_ELIMIT, "more than %u files, allowed are %u", MAX_FILES, MAX_FILES);
    }
    char *copy = bl_strdup(name);
    if (!copy) {
        return no_memory("a file's name", err);
    }
    w->files[w->n_files] = (out_file){.name = copy, .fd = -1, .shard = shard};
    *ret = w->n_files++;
    return BL_OK;
}

static void assign(planned *t, out_file *f, uint32_t file) {
    t->file = file;
    t->off_bytes = f->data_bytes;
    f->data_bytes += t->size_bytes;
    f->left_bytes += t->size_bytes;
    f->n_tensors++;
}

/* Which numbered shard each tensor without a file of its own goes to, in order of planning: a shard is closed
 * when the next tensor would exceed it. */
static uint32_t cut(const bl_safetensors_writer *w, uint32_t *shard_of) {
    uint32_t n_shards = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->tensors[i].file != NO_FILE) {
            continue;
        }
        uint64_t size = w->tensors[i].size_bytes;
        if (n_shards == 0 || (bytes > 0 && size > w->max_shard_bytes - BL_MIN(bytes, w->max_shard_bytes))) {
            n_shards++;
            bytes = 0;
        }
        bytes += size;
        shard_of[i] = n_shards - 1;
    }
    return n_shards;
}

static bl_code assign_all(bl_safetensors_writer *w, uint32_t *shard_of, bl_err *err) {
    uint32_t n_shards = cut(w, shard_of), file;
    if (n_shards + w->n_own > BL_ST_MAX_SHARDS) {
        BL_FAIL(err, BL_ELIMIT,
                "%" PRIu64 " bytes of tensors make %" PRIu32 " shards of at most %" PRIu64
                " bytes, allowed are %u",
                w->total_bytes, n_shards + w->n_own, w->max_shard_bytes, BL_ST_MAX_SHARDS);
    }
    for (uint32_t s = 0; s < n_shards; s++) {
        char name[64] = "model.safetensors";
        if (n_shards > 1) {
            snprintf(name, sizeof name, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", s + 1, n_shards);
        }
        BL_TRY(add_file(w, name, true, &file, err));
    }
    for (uint32_t s = 0; s < w->n_own; s++) {
        BL_TRY(add_file(w, w->own_names[s], true, &file, err));
        w->files[file].present = w->own_present[s];
    }
    for (uint32_t i = 0; i < w->n; i++) {
        file = w->tensors[i].file == NO_FILE ? shard_of[i] : n_shards + w->tensors[i].file;
        assign(&w->tensors[i], &w->files[file], file);
    }
    return BL_OK;
}

bl_code bl_safetensors_writer_begin(bl_safetensors_writer *w, bl_err *err) {
    BL_ASSERT(!w->begun);
    BL_TRY(check_names(w, err));
    uint32_t *shard_of = bl_alloc_array(w->n, sizeof *shard_of);
    if (!shard_of) {
        return no_memory("the plan of a checkpoint", err);
    }
    bl_code rc = assign_all(w, shard_of, err);
    bl_free(shard_of);
    w->begun = rc == BL_OK;
    return rc;
}

/* ---- headers ---- */

static bl_code append_quoted(bl_buf *b, const char *s, bl_err *err) {
    BL_TRY(bl_buf_append_char(b, '"', err));
    for (; *s; s++) { /* names were checked: no control characters */
        if (*s == '"' || *s == '\\') {
            BL_TRY(bl_buf_append_char(b, '\\', err));
        }
        BL_TRY(bl_buf_append_char(b, *s, err));
    }
    return bl_buf_append_char(b, '"', err);
}

static bl_code append_entry(bl_buf *b, const planned *t, bl_err *err) {
    BL_TRY(bl_buf_append_char(b, ',', err));
    BL_TRY(append_quoted(b, t->name, err));
    BL_TRY(bl_buf_printf(b, err, ":{\"dtype\":\"%s\",\"shape\":[", dtype_word(t->dtype)));
    for (uint32_t i = 0; i < t->n_dims; i++) {
        BL_TRY(bl_buf_printf(b, err, "%s%" PRIu64, i ? "," : "", t->dims[i]));
    }
    return bl_buf_printf(b, err, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->off_bytes,
                         t->off_bytes + t->size_bytes);
}

static bl_code build_header(const bl_safetensors_writer *w, uint32_t file, bl_buf *b, bl_err *err) {
    BL_TRY(bl_buf_append_str(b, "12345678{\"__metadata__\":{\"format\":\"mlx\"}", err));
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->tensors[i].file == file) {
            BL_TRY(append_entry(b, &w->tensors[i], err));
        }
    }
    BL_TRY(bl_buf_append_char(b, '}', err));
    while (b->len % 8 != 0) {
        BL_TRY(bl_buf_append_char(b, ' ', err));
    }
    uint64_t n = b->len - 8;
    for (int i = 0; i < 8; i++) {
        b->data[i] = (char)(uint8_t)(n >> 8 * i);
    }
    return BL_OK;
}

/* ---- files ---- */

static bl_code write_at(const out_file *f, const void *data, size_t n, uint64_t off, bl_err *err) {
    const char *p = data;
    while (n > 0) {
        ssize_t done = bl_os.pwrite(f->fd, p, n, (off_t)off);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            errno = done == 0 ? ENOSPC : errno;
            return fail_errno("write", f->name, err);
        }
        p += done;
        off += (uint64_t)done;
        n -= (size_t)done;
    }
    return BL_OK;
}

static bl_code create(bl_safetensors_writer *w, out_file *f, bl_err *err) {
    char path[PATH_MAX];
    BL_TRY(path_of(w, f->name, true, path, err));
    f->fd = bl_os.open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (f->fd < 0) {
        return fail_errno("create", f->name, err);
    }
    f->written = true;
    return BL_OK;
}

static bl_code sync_and_close(out_file *f, bl_err *err) {
    bl_code rc = bl_os.fsync(f->fd) == 0 ? BL_OK : fail_errno("sync", f->name, err);
    int fd = f->fd;
    f->fd = -1;
    if (bl_os.close(fd) != 0 && rc == BL_OK) {
        rc = fail_errno("close", f->name, err);
    }
    return rc;
}

static bl_code open_shard(bl_safetensors_writer *w, uint32_t file, bl_err *err) {
    out_file *f = &w->files[file];
    bl_buf b;
    bl_buf_init(&b, BL_ST_MAX_HEADER_BYTES);
    bl_code rc = build_header(w, file, &b, err);
    if (rc == BL_OK) {
        rc = create(w, f, err);
    }
    if (rc == BL_OK) {
        rc = write_at(f, b.data, b.len, 0, err);
        f->data_off = b.len;
    }
    bl_buf_done(&b);
    return rc;
}

bl_code bl_safetensors_writer_put(bl_safetensors_writer *w, uint32_t id, const void *data, size_t n,
                                  bl_err *err) {
    BL_ASSERT(w->begun && id < w->n);
    planned *t = &w->tensors[id];
    out_file *f = &w->files[t->file];
    if (n > t->size_bytes - t->done_bytes) {
        BL_FAIL(err, BL_EINVAL, "tensor '%.*s': %zu bytes at %" PRIu64 " of %" PRIu64,
                bl_name_shown(t->name, strlen(t->name)), t->name, n, t->done_bytes, t->size_bytes);
    }
    if (n == 0) {
        return BL_OK;
    }
    if (!f->written) {
        BL_TRY(open_shard(w, t->file, err));
    }
    BL_TRY(write_at(f, data, n, f->data_off + t->off_bytes + t->done_bytes, err));
    t->done_bytes += n;
    f->left_bytes -= n;
    return f->left_bytes == 0 ? sync_and_close(f, err) : BL_OK;
}

bl_code bl_safetensors_writer_side(bl_safetensors_writer *w, const char *name, const void *data, size_t n,
                                   bl_err *err) {
    BL_ASSERT(w->begun && !w->finished);
    uint32_t file;
    BL_TRY(check_file_name(name, err));
    for (uint32_t i = 0; i < w->n_files; i++) {
        if (strcmp(w->files[i].name, name) == 0) {
            BL_FAIL(err, BL_EINVAL, "file '%s' is written twice", name);
        }
    }
    BL_TRY(add_file(w, name, false, &file, err));
    out_file *f = &w->files[file];
    BL_TRY(create(w, f, err));
    BL_TRY(write_at(f, data, n, 0, err));
    return sync_and_close(f, err);
}

/* ---- the end ---- */

static bl_code build_index(const bl_safetensors_writer *w, bl_buf *b, bl_err *err) {
    const planned **by_name;
    BL_TRY(sort_names(w, &by_name, err));
    bl_code rc;
    BL_TRY_GOTO(rc, out,
                bl_buf_printf(b, err,
                              "{\n    \"metadata\": {\"total_size\": %" PRIu64 "},\n    \"weight_map\": {",
                              w->total_bytes + w->listed_bytes));
    for (uint32_t i = 0; i < w->n; i++) {
        BL_TRY_GOTO(rc, out, bl_buf_append_str(b, i ? ",\n        " : "\n        ", err));
        BL_TRY_GOTO(rc, out, append_quoted(b, by_name[i]->name, err));
        BL_TRY_GOTO(rc, out, bl_buf_append_str(b, ": ", err));
        BL_TRY_GOTO(rc, out, append_quoted(b, w->files[by_name[i]->file].name, err));
    }
    rc = bl_buf_append_str(b, "\n    }\n}\n", err);
out:
    bl_free(by_name);
    return rc;
}

static bl_code write_index(bl_safetensors_writer *w, bl_err *err) {
    bl_buf b;
    bl_buf_init(&b, BL_ST_MAX_INDEX_BYTES);
    bl_code rc = build_index(w, &b, err);
    if (rc == BL_OK) {
        rc = bl_safetensors_writer_side(w, "model.safetensors.index.json", b.data, b.len, err);
    }
    bl_buf_done(&b);
    return rc;
}

static bl_code check_complete(bl_safetensors_writer *w, bl_err *err) {
    for (uint32_t i = 0; i < w->n; i++) {
        const planned *t = &w->tensors[i];
        if (t->done_bytes != t->size_bytes) {
            BL_FAIL(err, BL_EINVAL, "tensor '%.*s' has %" PRIu64 " of %" PRIu64 " bytes",
                    bl_name_shown(t->name, strlen(t->name)), t->name, t->done_bytes, t->size_bytes);
        }
    }
    for (uint32_t i = 0; i < w->n_files; i++) {
        if (w->files[i].shard && !w->files[i].written && !w->files[i].present) { /* empty tensors only */
            BL_TRY(open_shard(w, i, err));
            BL_TRY(sync_and_close(&w->files[i], err));
        }
    }
    return BL_OK;
}

static bl_code rename_file(bl_safetensors_writer *w, out_file *f, bl_err *err) {
    char from[PATH_MAX], to[PATH_MAX];
    BL_TRY(path_of(w, f->name, true, from, err));
    BL_TRY(path_of(w, f->name, false, to, err));
    if (bl_os.rename(from, to) != 0) {
        return fail_errno("rename to", f->name, err);
    }
    f->written = false;
    f->renamed = true;
    return BL_OK;
}

static bl_code rename_all(bl_safetensors_writer *w, bl_err *err) {
    static const char last[] = "config.json"; /* what makes a folder a model */
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < w->n_files; i++) {
            if (!w->files[i].present && (strcmp(w->files[i].name, last) == 0) == (pass == 1)) {
                BL_TRY(rename_file(w, &w->files[i], err));
            }
        }
    }
    return bl_file_sync_dir(w->dir, err);
}

bl_code bl_safetensors_writer_finish(bl_safetensors_writer *w, bl_err *err) {
    BL_ASSERT(w->begun && !w->finished);
    BL_TRY(check_complete(w, err));
    BL_TRY(write_index(w, err));
    BL_TRY(rename_all(w, err));
    w->finished = true;
    return BL_OK;
}

static void remove_file(const bl_safetensors_writer *w, const out_file *f) {
    char path[PATH_MAX];
    if ((f->written || f->renamed) && path_of(w, f->name, f->written, path, NULL) == BL_OK) {
        (void)bl_os.unlink(path);
    }
}

void bl_safetensors_writer_free(bl_safetensors_writer *w) {
    if (!w) {
        return;
    }
    for (uint32_t i = 0; i < w->n_files; i++) {
        if (w->files[i].fd >= 0) {
            bl_os.close(w->files[i].fd);
        }
        if (!w->finished) {
            remove_file(w, &w->files[i]);
        }
        bl_free(w->files[i].name);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        bl_free(w->tensors[i].name);
    }
    for (uint32_t i = 0; i < w->n_own; i++) {
        bl_free(w->own_names[i]);
    }
    bl_free(w->tensors);
    bl_free(w->dir);
    bl_free(w);
}
