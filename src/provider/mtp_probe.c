/* The probe of config.json and the strict inspection of what it declares (mtp_probe.h). Spec
 * provider-contracts.md 6.2 and 7.3; of 7.5 what headers alone can tell.
 *
 * Findings are returned, and the sentence for the operator is in the bl_err that goes along.
 */
#include "provider/mtp_probe.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/os.h"
#include "base/words.h"
#include "formats/checkpoint.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "formats/safetensors.h"

#define CONFIG      "config.json"
#define INDEX       "model.safetensors.index.json"
#define SINGLE      "model.safetensors" /* without an index: its own */
#define WHAT        CONFIG ": mtplx_mtp"
#define SHOWN(name) bl_name_shown((name), strlen(name)), (name)

/* Sets the sentence and returns the finding. */
#define FIND(err, finding, ...)                                                                              \
    do {                                                                                                     \
        (void)bl_err_set((err), BL_EFORMAT, __FILE__, __LINE__, __VA_ARGS__);                                \
        return (finding);                                                                                    \
    } while (0)
#define LOOK(expr)                                                                                           \
    do {                                                                                                     \
        bl_mtp_finding found_here = (expr);                                                                  \
        if (found_here != BL_MTP_FOUND_OK) {                                                                 \
            return found_here;                                                                               \
        }                                                                                                    \
    } while (0)

/* ---- names --------------------------------------------------------------------------------------------- */

const char *bl_mtp_declaration_name(bl_mtp_declaration d) {
    static const char *const names[BL_MTP_DECLARATION__MAX] = {
        [BL_MTP_ABSENT] = "absent",
        [BL_MTP_DECLARED] = "declared",
        [BL_MTP_UNDETERMINABLE] = "undeterminable",
    };
    return (unsigned)d < BL_MTP_DECLARATION__MAX ? names[d] : "unknown";
}

const char *bl_mtp_finding_name(bl_mtp_finding f) {
    static const char *const names[BL_MTP_FOUND__MAX] = {
        [BL_MTP_FOUND_NOT_INSPECTED] = "not_inspected",
        [BL_MTP_FOUND_OK] = "ok",
        [BL_MTP_FOUND_NO_FOLDER] = "no_folder",
        [BL_MTP_FOUND_CONFIG_MISSING] = "config_missing",
        [BL_MTP_FOUND_CONFIG_LINK] = "config_link",
        [BL_MTP_FOUND_CONFIG_UNREADABLE] = "config_unreadable",
        [BL_MTP_FOUND_CONFIG_IRREGULAR] = "config_irregular",
        [BL_MTP_FOUND_CONFIG_EMPTY] = "config_empty",
        [BL_MTP_FOUND_CONFIG_TOO_LARGE] = "config_too_large",
        [BL_MTP_FOUND_CONFIG_MALFORMED] = "config_malformed",
        [BL_MTP_FOUND_NOT_DECLARED] = "not_declared",
        [BL_MTP_FOUND_QUANTIZATION] = "quantization",
        [BL_MTP_FOUND_PREFIX] = "prefix",
        [BL_MTP_FOUND_BLOCK_SIZE] = "block_size",
        [BL_MTP_FOUND_OWN_MATRICES] = "own_matrices",
        [BL_MTP_FOUND_INDEX_MISSING] = "index_missing",
        [BL_MTP_FOUND_INDEX_LINK] = "index_link",
        [BL_MTP_FOUND_INDEX_UNREADABLE] = "index_unreadable",
        [BL_MTP_FOUND_INDEX_IRREGULAR] = "index_irregular",
        [BL_MTP_FOUND_INDEX_EMPTY] = "index_empty",
        [BL_MTP_FOUND_INDEX_TOO_LARGE] = "index_too_large",
        [BL_MTP_FOUND_INDEX_MALFORMED] = "index_malformed",
        [BL_MTP_FOUND_KEY] = "key",
        [BL_MTP_FOUND_NO_TENSORS] = "no_tensors",
        [BL_MTP_FOUND_TOO_MANY_TENSORS] = "too_many_tensors",
        [BL_MTP_FOUND_SHARD_NAME] = "shard_name",
        [BL_MTP_FOUND_SHARD_MISSING] = "shard_missing",
        [BL_MTP_FOUND_SHARD_LINK] = "shard_link",
        [BL_MTP_FOUND_SHARD_UNREADABLE] = "shard_unreadable",
        [BL_MTP_FOUND_SHARD_IRREGULAR] = "shard_irregular",
        [BL_MTP_FOUND_SHARD_HEADER_TOO_LARGE] = "shard_header_too_large",
        [BL_MTP_FOUND_SHARD_MALFORMED] = "shard_malformed",
        [BL_MTP_FOUND_TENSOR_MISSING] = "tensor_missing",
        [BL_MTP_FOUND_TENSOR_EMPTY] = "tensor_empty",
        [BL_MTP_FOUND_DTYPE] = "dtype",
        [BL_MTP_FOUND_PAYLOAD_TOO_LARGE] = "payload_too_large",
        [BL_MTP_FOUND_FOLDER_LINK] = "folder_link",
        [BL_MTP_FOUND_FOLDER_PATH] = "folder_path",
        [BL_MTP_FOUND_FILE_LINK] = "file_link",
        [BL_MTP_FOUND_FILE_STRANGE] = "file_strange",
        [BL_MTP_FOUND_TOO_MANY_FILES] = "too_many_files",
        [BL_MTP_FOUND_MODEL_TYPE] = "model_type",
        [BL_MTP_FOUND_NO_MEMORY] = "no_memory",
    };
    return (unsigned)f < BL_MTP_FOUND__MAX ? names[f] : "unknown";
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* One failure means a finding of its own for each of the three kinds of file. */
typedef struct {
    bl_mtp_finding missing, link, unreadable, irregular, too_large;
} file_findings;

static const file_findings of_config = {BL_MTP_FOUND_CONFIG_MISSING, BL_MTP_FOUND_CONFIG_LINK,
                                        BL_MTP_FOUND_CONFIG_UNREADABLE, BL_MTP_FOUND_CONFIG_IRREGULAR,
                                        BL_MTP_FOUND_CONFIG_TOO_LARGE};
static const file_findings of_index = {BL_MTP_FOUND_INDEX_MISSING, BL_MTP_FOUND_INDEX_LINK,
                                       BL_MTP_FOUND_INDEX_UNREADABLE, BL_MTP_FOUND_INDEX_IRREGULAR,
                                       BL_MTP_FOUND_INDEX_TOO_LARGE};
static const file_findings of_shard = {BL_MTP_FOUND_SHARD_MISSING, BL_MTP_FOUND_SHARD_LINK,
                                       BL_MTP_FOUND_SHARD_UNREADABLE, BL_MTP_FOUND_SHARD_IRREGULAR,
                                       BL_MTP_FOUND_SHARD_HEADER_TOO_LARGE};

static bl_mtp_finding locate(const char *dir, const char *file, const file_findings *of, char **ret,
                             bl_err *err) {
    switch (bl_checkpoint_locate(dir, file, ret, err)) {
    case BL_OK:
        return BL_MTP_FOUND_OK;
    case BL_ENOTFOUND:
        return of->missing;
    case BL_EFORMAT:
        return of->link;
    case BL_ENOMEM:
        return BL_MTP_FOUND_NO_MEMORY;
    default:
        return of->unreadable;
    }
}

/* The whole file into *b, which the caller ends with bl_buf_done either way. */
static bl_mtp_finding read_file(const char *dir, const char *file, size_t max_bytes, const file_findings *of,
                                bl_buf *b, bl_err *err) {
    char *path = NULL;
    bl_buf_init(b, max_bytes);
    LOOK(locate(dir, file, of, &path, err));
    bl_code rc = bl_file_read(path, max_bytes, b, err);
    bl_free(path);
    switch (rc) {
    case BL_OK:
        return BL_MTP_FOUND_OK;
    case BL_ENOTFOUND:
        return of->missing;
    case BL_EFORMAT:
        return of->irregular;
    case BL_ELIMIT:
        return of->too_large;
    case BL_ENOMEM:
        return BL_MTP_FOUND_NO_MEMORY;
    default:
        return of->unreadable;
    }
}

static void digest(const bl_buf *b, uint8_t ret[BL_MTP_SHA256_BYTES]) {
    static_assert(BL_MTP_SHA256_BYTES == crypto_hash_sha256_BYTES, "size of SHA-256");
    (void)crypto_hash_sha256(ret, (const unsigned char *)bl_buf_str(b), b->len);
}

/* An object, or the finding of the file's text. */
static bl_mtp_finding parse_object(const bl_buf *b, const char *file, uint32_t max_depth,
                                   bl_mtp_finding empty, bl_mtp_finding malformed, json_t **ret,
                                   bl_err *err) {
    json_t *v = NULL;
    if (b->len == 0) {
        FIND(err, empty, "%s is empty", file);
    }
    bl_code rc = bl_json_parse(bl_buf_str(b), b->len, max_depth, file, &v, err);
    if (rc != BL_OK) {
        return rc == BL_ENOMEM ? BL_MTP_FOUND_NO_MEMORY : malformed;
    }
    if (!json_is_object(v)) {
        json_decref(v);
        FIND(err, malformed, "%s is no object", file);
    }
    *ret = v;
    return BL_MTP_FOUND_OK;
}

/* ---- the probe ----------------------------------------------------------------------------------------- */

static void take_declaration(json_t *config, bl_mtp_probe *p) {
    json_t *head = json_object_get(config, "mtplx_mtp");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (type && strlen(type) < sizeof p->model_type) {
        memcpy(p->model_type, type, strlen(type) + 1);
    }
    p->declaration = BL_MTP_ABSENT;
    if (json_is_object(head) && json_is_true(json_object_get(head, "included"))) {
        p->declaration = BL_MTP_DECLARED;
        p->head = json_incref(head);
        p->quantization = json_incref(json_object_get(config, "mtplx_mtp_quantization"));
    }
}

static bl_mtp_finding probe(const char *dir, bl_mtp_probe *p, bl_err *err) {
    bl_buf b;
    json_t *config = NULL;
    bl_mtp_finding f = read_file(dir, CONFIG, BL_MTP_PROBE_MAX_BYTES, &of_config, &b, err);
    if (f == BL_MTP_FOUND_OK) {
        p->config_bytes = b.len;
        digest(&b, p->config_sha256);
        f = parse_object(&b, CONFIG, BL_CONFIG_MAX_DEPTH, BL_MTP_FOUND_CONFIG_EMPTY,
                         BL_MTP_FOUND_CONFIG_MALFORMED, &config, err);
    }
    if (f == BL_MTP_FOUND_OK) {
        take_declaration(config, p);
    }
    json_decref(config);
    bl_buf_done(&b);
    return f;
}

void bl_mtp_probe_read(const char *dir, bl_mtp_probe *ret) {
    bl_err err = {0};
    *ret = (bl_mtp_probe){0};
    if (!dir) {
        return;
    }
    ret->declaration = BL_MTP_UNDETERMINABLE;
    ret->cause = probe(dir, ret, &err);
    if (ret->cause != BL_MTP_FOUND_OK) {
        memcpy(ret->detail, err.msg, sizeof ret->detail);
    }
}

void bl_mtp_probe_done(bl_mtp_probe *p) {
    json_decref(p->head);
    json_decref(p->quantization);
    *p = (bl_mtp_probe){0};
}

/* ---- what config.json said ----------------------------------------------------------------------------- */

static bl_mtp_finding check_config(const bl_mtp_probe *p, bl_mtp_inspection *ret, bl_err *err) {
    if (p->config_bytes > BL_MTP_INSPECT_MAX_BYTES) {
        FIND(err, BL_MTP_FOUND_CONFIG_TOO_LARGE,
             CONFIG " has %" PRIu64 " bytes, allowed with a draft head are %zu", p->config_bytes,
             BL_MTP_INSPECT_MAX_BYTES);
    }
    if (p->declaration == BL_MTP_UNDETERMINABLE) {
        FIND(err, p->cause, "%s", p->detail);
    }
    if (p->declaration != BL_MTP_DECLARED) {
        FIND(err, BL_MTP_FOUND_NOT_DECLARED, WHAT ".included is not true");
    }
    memcpy(ret->config_sha256, p->config_sha256, sizeof ret->config_sha256);
    return BL_MTP_FOUND_OK;
}

static bl_mtp_finding check_head(const bl_mtp_probe *p, bl_mtp_inspection *ret, bl_err *err) {
    const char *prefix = BL_MTP_PREFIX;
    uint64_t block = 3;
    bool embeddings = true, head = true;
    if (!json_is_object(p->quantization)) {
        FIND(err, BL_MTP_FOUND_QUANTIZATION, CONFIG ": mtplx_mtp_quantization is %s, allowed is an object",
             p->quantization ? "no object" : "missing");
    }
    if (bl_json_get_str(p->head, "prefix", WHAT, &prefix, err) != BL_OK) {
        return BL_MTP_FOUND_PREFIX;
    }
    if (strcmp(prefix, BL_MTP_PREFIX) != 0) {
        FIND(err, BL_MTP_FOUND_PREFIX, WHAT ".prefix is '%.*s', allowed is '" BL_MTP_PREFIX "'",
             SHOWN(prefix));
    }
    if (bl_json_get_u64(p->head, "block_size", 2, 8, WHAT, &block, err) != BL_OK) {
        return BL_MTP_FOUND_BLOCK_SIZE;
    }
    if (bl_json_get_bool(p->head, "shares_target_embeddings", WHAT, &embeddings, err) != BL_OK ||
        bl_json_get_bool(p->head, "shares_target_lm_head", WHAT, &head, err) != BL_OK) {
        return BL_MTP_FOUND_OWN_MATRICES;
    }
    if (!embeddings || !head) {
        FIND(err, BL_MTP_FOUND_OWN_MATRICES, WHAT ".%s is false, allowed is true",
             embeddings ? "shares_target_lm_head" : "shares_target_embeddings");
    }
    ret->block_size = (uint32_t)block;
    return BL_MTP_FOUND_OK;
}

/* ---- the index ----------------------------------------------------------------------------------------- */

static bl_mtp_finding check_index(json_t *index, json_t **ret_map, bl_err *err) {
    json_t *map = json_object_get(index, "weight_map"), *meta = json_object_get(index, "metadata"), *value;
    const char *key;
    if (!json_is_object(map)) {
        FIND(err, BL_MTP_FOUND_INDEX_MALFORMED, INDEX ": weight_map is %s, allowed is an object",
             map ? "no object" : "missing");
    }
    if (meta && !json_is_object(meta) && !json_is_null(meta)) {
        FIND(err, BL_MTP_FOUND_INDEX_MALFORMED, INDEX ": metadata is no object");
    }
    json_object_foreach(map, key, value) {
        if (!json_is_string(value)) {
            FIND(err, BL_MTP_FOUND_INDEX_MALFORMED, INDEX ": tensor '%.*s' has no file name", SHOWN(key));
        }
    }
    *ret_map = map;
    return BL_MTP_FOUND_OK;
}

static bl_mtp_finding read_index(const char *dir, uint8_t ret_sha256[BL_MTP_SHA256_BYTES], json_t **ret,
                                 bl_err *err) {
    bl_buf b;
    bl_mtp_finding f = read_file(dir, INDEX, BL_MTP_INSPECT_MAX_BYTES, &of_index, &b, err);
    if (f == BL_MTP_FOUND_OK) {
        digest(&b, ret_sha256);
        f = parse_object(&b, INDEX, BL_ST_MAX_DEPTH, BL_MTP_FOUND_INDEX_EMPTY, BL_MTP_FOUND_INDEX_MALFORMED,
                         ret, err);
    }
    bl_buf_done(&b);
    return f;
}

typedef struct {
    const char *key, *shard;
} entry;

static bl_mtp_finding check_entry(const entry *e, bl_err *err) {
    size_t n = strlen(e->key);
    if (n == strlen(BL_MTP_PREFIX) || n > BL_MTP_MAX_KEY_BYTES) {
        FIND(err, BL_MTP_FOUND_KEY, INDEX ": name '%.*s' has %zu bytes, allowed are %zu to %u", SHOWN(e->key),
             n, strlen(BL_MTP_PREFIX) + 1, BL_MTP_MAX_KEY_BYTES);
    }
    if (bl_name_check(e->shard, strlen(e->shard), BL_MTP_MAX_SHARD_NAME, INDEX ": shard", err) != BL_OK) {
        return BL_MTP_FOUND_SHARD_NAME;
    }
    if (strpbrk(e->shard, "/\\") || strstr(e->shard, "..") || !bl_name_ends(e->shard, ".safetensors")) {
        FIND(err, BL_MTP_FOUND_SHARD_NAME,
             INDEX ": shard '%.*s' is no bare file name that ends in .safetensors", SHOWN(e->shard));
    }
    return BL_MTP_FOUND_OK;
}

static int cmp_entry(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int c = strcmp(x->shard, y->shard);
    return c != 0 ? c : strcmp(x->key, y->key);
}

/* The head's entries, by shard. list has room for all of the map. */
static bl_mtp_finding collect(json_t *map, entry *list, size_t *ret_n, bl_err *err) {
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value) {
        if (strncmp(key, BL_MTP_PREFIX, strlen(BL_MTP_PREFIX)) == 0) {
            list[n] = (entry){key, json_string_value(value)};
            LOOK(check_entry(&list[n], err));
            n++;
        }
    }
    if (n == 0) {
        FIND(err, BL_MTP_FOUND_NO_TENSORS, "the index lists no tensor '" BL_MTP_PREFIX "...'");
    }
    if (n > BL_MTP_MAX_TENSORS) {
        FIND(err, BL_MTP_FOUND_TOO_MANY_TENSORS,
             INDEX " lists %zu tensors '" BL_MTP_PREFIX "...', allowed are %u", n, BL_MTP_MAX_TENSORS);
    }
    qsort(list, n, sizeof *list, cmp_entry);
    *ret_n = n;
    return BL_MTP_FOUND_OK;
}

/* ---- shards -------------------------------------------------------------------------------------------- */

/* Before the file is mapped and its header parsed: what it is, and how long it says its header is. */
static bl_mtp_finding check_file(const char *path, const char *shard, bl_err *err) {
    uint8_t head[8];
    struct stat st;
    int fd = bl_os.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0);
    if (fd < 0 || bl_os.fstat(fd, &st) != 0) {
        int e = errno;
        if (fd >= 0) {
            (void)bl_os.close(fd);
        }
        FIND(err, e == ENOENT ? BL_MTP_FOUND_SHARD_MISSING : BL_MTP_FOUND_SHARD_UNREADABLE,
             "cannot open shard '%.*s': %s", SHOWN(shard), strerror(e));
    }
    ssize_t n = S_ISREG(st.st_mode) ? bl_os.pread(fd, head, sizeof head, 0) : 0;
    (void)bl_os.close(fd);
    if (!S_ISREG(st.st_mode)) {
        FIND(err, BL_MTP_FOUND_SHARD_IRREGULAR, "shard '%.*s' is no regular file", SHOWN(shard));
    }
    uint64_t size = 0;
    for (int i = 7; i >= 0 && n == (ssize_t)sizeof head; i--) {
        size = size << 8 | head[i];
    }
    if (size > BL_MTP_MAX_HEADER_BYTES && size <= (uint64_t)st.st_size) {
        FIND(err, BL_MTP_FOUND_SHARD_HEADER_TOO_LARGE,
             "shard '%.*s' has a header of %" PRIu64 " bytes, allowed are %" PRIu64, SHOWN(shard), size,
             BL_MTP_MAX_HEADER_BYTES);
    }
    return BL_MTP_FOUND_OK; /* a file that is too short is the parser's to describe */
}

static bl_mtp_finding open_shard(const char *dir, const char *shard, bl_safetensors **ret, bl_err *err) {
    char *path = NULL;
    LOOK(locate(dir, shard, &of_shard, &path, err));
    bl_mtp_finding f = check_file(path, shard, err);
    bl_code rc = f == BL_MTP_FOUND_OK ? bl_safetensors_open(path, false, ret, err) : BL_OK;
    if (rc != BL_OK && strcmp(bl_name_of_path(path), shard) != 0) {
        (void)bl_err_wrap(err, rc, "%s",
                          shard); /* a cache file is named by its hash: say which shard it is */
    }
    bl_free(path);
    switch (rc) {
    case BL_OK:
        return f;
    case BL_ENOTFOUND:
        return BL_MTP_FOUND_SHARD_MISSING;
    case BL_EIO:
        return BL_MTP_FOUND_SHARD_UNREADABLE;
    case BL_ENOMEM:
        return BL_MTP_FOUND_NO_MEMORY;
    case BL_ENOTSUP:
        return BL_MTP_FOUND_DTYPE;
    default:
        return BL_MTP_FOUND_SHARD_MALFORMED;
    }
}

/* Length of a tensor's module path: without its last part. */
static int module_of(const char *key) {
    const char *dot = strrchr(key, '.');
    return (int)(dot - key); /* the prefix ends in a dot */
}

static bool map_has(const json_t *map, const char *key, const char *part) {
    char sibling[BL_MTP_MAX_KEY_BYTES + 16];
    snprintf(sibling, sizeof sibling, "%.*s%s", module_of(key), key, part);
    return json_object_get(map, sibling) != NULL;
}

/* Of the module itself if it has an entry, with or without the prefix; of all otherwise. */
static bool quantization_covers(const json_t *q, const char *key) {
    char path[BL_MTP_MAX_KEY_BYTES + 1];
    snprintf(path, sizeof path, "%.*s", module_of(key), key);
    const json_t *own = json_object_get(q, path);
    if (!own && strlen(path) > strlen(BL_MTP_PREFIX)) {
        own = json_object_get(q, path + strlen(BL_MTP_PREFIX));
    }
    if (own) {
        return json_is_object(own);
    }
    return json_is_integer(json_object_get(q, "bits")) && json_is_integer(json_object_get(q, "group_size"));
}

/* Scales are bf16 with biases (affine), or bytes without (the small floats). */
static bl_mtp_finding check_dtype(const json_t *map, const bl_tensor_view *t, bl_err *err) {
    const char *allowed = NULL;
    bool ok = false;
    if (bl_name_ends(t->name, ".biases")) {
        ok = t->dtype == BL_DTYPE_BF16;
        allowed = "BF16";
    } else if (bl_name_ends(t->name, ".scales")) {
        bool affine = map_has(map, t->name, ".biases");
        ok = t->dtype == (affine ? BL_DTYPE_BF16 : BL_DTYPE_U8);
        allowed = affine ? "BF16" : "U8 (without biases)";
    } else if (bl_name_ends(t->name, ".weight") && map_has(map, t->name, ".scales")) {
        ok = t->dtype == BL_DTYPE_U32;
        allowed = "U32 (with scales)";
    } else {
        ok = t->dtype == BL_DTYPE_BF16 || t->dtype == BL_DTYPE_F16 || t->dtype == BL_DTYPE_F32;
        allowed = "BF16, F16 and F32";
    }
    if (!ok) {
        FIND(err, BL_MTP_FOUND_DTYPE, "tensor '%.*s' is %s, allowed: %s", SHOWN(t->name),
             bl_dtype_get(t->dtype)->name, allowed);
    }
    return BL_MTP_FOUND_OK;
}

static bl_mtp_finding check_tensor(const bl_safetensors *st, const entry *e, const json_t *map,
                                   const json_t *quantization, uint64_t *bytes, bl_err *err) {
    const bl_tensor_view *t = bl_safetensors_find(st, e->key);
    if (!t) {
        FIND(err, BL_MTP_FOUND_TENSOR_MISSING, "tensor '%.*s' is not in its shard '%.*s'", SHOWN(e->key),
             SHOWN(e->shard));
    }
    if (t->size_bytes == 0) {
        FIND(err, BL_MTP_FOUND_TENSOR_EMPTY, "tensor '%.*s' has 0 bytes", SHOWN(e->key));
    }
    LOOK(check_dtype(map, t, err));
    if (bl_name_ends(e->key, ".scales") && !quantization_covers(quantization, e->key)) {
        FIND(err, BL_MTP_FOUND_QUANTIZATION, CONFIG ": mtplx_mtp_quantization does not describe '%.*s'",
             SHOWN(e->key));
    }
    if (!bl_add_u64(*bytes, t->size_bytes, bytes) || *bytes > BL_MTP_MAX_PAYLOAD) {
        FIND(err, BL_MTP_FOUND_PAYLOAD_TOO_LARGE,
             "the head has more than %" PRIu64 " bytes, which are allowed", BL_MTP_MAX_PAYLOAD);
    }
    return BL_MTP_FOUND_OK;
}

/* One open shard at a time. */
static bl_mtp_finding check_shards(const char *dir, const bl_mtp_probe *p, const json_t *map,
                                   const entry *list, size_t n, uint64_t *ret_bytes, bl_err *err) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n;) {
        bl_safetensors *st = NULL;
        size_t first = i;
        bl_mtp_finding f = open_shard(dir, list[i].shard, &st, err);
        for (; f == BL_MTP_FOUND_OK && i < n && strcmp(list[i].shard, list[first].shard) == 0; i++) {
            f = check_tensor(st, &list[i], map, p->quantization, &bytes, err);
        }
        bl_safetensors_free(st);
        LOOK(f);
    }
    *ret_bytes = bytes;
    return BL_MTP_FOUND_OK;
}

/* ---- the inspection ------------------------------------------------------------------------------------ */

/* The head's tensors among those of map, sorted; list has room for one more than map. */
typedef bl_mtp_finding collect_fn(json_t *map, entry *list, size_t *ret_n, bl_err *err);

/* map: tensors to shards, checked. */
static bl_mtp_finding inspect_tensors(const char *dir, const bl_mtp_probe *p, json_t *map, collect_fn *choose,
                                      bl_mtp_inspection *ret, bl_err *err) {
    size_t n = 0;
    entry *list = bl_alloc_array(json_object_size(map) + 1, sizeof *list);
    if (!list) {
        FIND(err, BL_MTP_FOUND_NO_MEMORY, "no memory for %zu names", json_object_size(map));
    }
    bl_mtp_finding f = choose(map, list, &n, err);
    if (f == BL_MTP_FOUND_OK) {
        f = check_shards(dir, p, map, list, n, &ret->artifact_bytes, err);
    }
    ret->n_tensors = (uint32_t)n;
    bl_free(list);
    return f;
}

static bl_mtp_finding inspect_indexed(const char *dir, const bl_mtp_probe *p, bl_mtp_inspection *ret,
                                      bl_err *err) {
    json_t *index = NULL, *map = NULL;
    LOOK(read_index(dir, ret->index_sha256, &index, err));
    bl_mtp_finding f = check_index(index, &map, err);
    if (f == BL_MTP_FOUND_OK) {
        f = inspect_tensors(dir, p, map, collect, ret, err);
    }
    json_decref(index);
    return f;
}

/* Of the header, which is the index of a single file. */
static bl_mtp_finding digest_header(const char *path, uint8_t ret[BL_MTP_SHA256_BYTES], bl_err *err) {
    crypto_hash_sha256_state state;
    uint8_t b[4096];
    uint64_t at = 0, end = 8;
    ssize_t n = 1;
    int fd = bl_os.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0);
    (void)crypto_hash_sha256_init(&state);
    while (fd >= 0 && n > 0 && at < end) {
        n = bl_os.pread(fd, b, (size_t)BL_MIN((uint64_t)sizeof b, end - at), (off_t)at);
        for (int i = 7; i >= 0 && at == 0 && n == 8; i--) {
            end += (uint64_t)b[i] << 8 * i;
        }
        if (n > 0) {
            (void)crypto_hash_sha256_update(&state, b, (unsigned long long)n);
            at += (uint64_t)n;
        }
    }
    int e = errno;
    if (fd >= 0) {
        (void)bl_os.close(fd);
    }
    if (at < end || end == 8) {
        FIND(err, BL_MTP_FOUND_SHARD_UNREADABLE, "cannot read the header of '" SINGLE "': %s", strerror(e));
    }
    (void)crypto_hash_sha256_final(&state, ret);
    return BL_MTP_FOUND_OK;
}

/* Those names of a file that begin with prefix, as an index would list them. */
static bl_mtp_finding list_file(const char *dir, const char *file, const char *prefix, json_t *map,
                                bl_err *err) {
    bl_safetensors *st = NULL;
    LOOK(open_shard(dir, file, &st, err));
    bl_mtp_finding f = BL_MTP_FOUND_OK;
    for (size_t i = 0; i < bl_safetensors_count(st) && f == BL_MTP_FOUND_OK; i++) {
        const char *name = bl_safetensors_at(st, i)->name;
        if (strncmp(name, prefix, strlen(prefix)) == 0 &&
            json_object_set_new(map, name, json_string(file)) != 0) {
            (void)bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the names of '%s'", file);
            f = BL_MTP_FOUND_NO_MEMORY;
        }
    }
    bl_safetensors_free(st);
    return f;
}

static bl_mtp_finding inspect_single(const char *dir, const char *path, const bl_mtp_probe *p,
                                     bl_mtp_inspection *ret, bl_err *err) {
    json_t *map = json_object();
    if (!map) {
        FIND(err, BL_MTP_FOUND_NO_MEMORY, "no memory for the names of '" SINGLE "'");
    }
    bl_mtp_finding f = list_file(dir, SINGLE, BL_MTP_PREFIX, map, err);
    if (f == BL_MTP_FOUND_OK) {
        f = digest_header(path, ret->index_sha256, err);
    }
    if (f == BL_MTP_FOUND_OK) {
        f = inspect_tensors(dir, p, map, collect, ret, err);
    }
    json_decref(map);
    return f;
}

/* A folder without an index may be one file, which lists its tensors itself. */
static bl_mtp_finding inspect_weights(const char *dir, const bl_mtp_probe *p, bl_mtp_inspection *ret,
                                      bl_err *err) {
    char *path = NULL;
    bl_err none;
    bl_mtp_finding f = inspect_indexed(dir, p, ret, err);
    if (f == BL_MTP_FOUND_INDEX_MISSING && bl_checkpoint_locate(dir, SINGLE, &path, &none) == BL_OK) {
        f = inspect_single(dir, path, p, ret, err);
    }
    bl_free(path);
    return f;
}

static bl_mtp_finding inspect(const char *dir, const bl_mtp_probe *p, bl_mtp_inspection *ret, bl_err *err) {
    if (!dir || !bl_file_is_dir(dir)) {
        FIND(err, BL_MTP_FOUND_NO_FOLDER, "'%s' is no folder", dir ? dir : "");
    }
    LOOK(check_config(p, ret, err));
    LOOK(check_head(p, ret, err));
    return inspect_weights(dir, p, ret, err);
}

static void conclude(bl_mtp_inspection *r, const bl_err *err, bl_mtp_inspection *ret) {
    if (r->finding == BL_MTP_FOUND_OK) {
        r->resident_bytes = r->artifact_bytes + (r->artifact_bytes + 4) / 5; /* both are far below 2^64 */
        *ret = *r;
        return;
    }
    *ret = (bl_mtp_inspection){.finding = r->finding};
    memcpy(ret->detail, err->msg, sizeof ret->detail);
}

void bl_mtp_inspect(const char *dir, const bl_mtp_probe *probe, bl_mtp_inspection *ret) {
    bl_err err = {0};
    bl_mtp_inspection r = {0};
    char config[9], index[9];
    r.finding = inspect(dir, probe, &r, &err);
    sodium_bin2hex(config, sizeof config, r.config_sha256, 4);
    sodium_bin2hex(index, sizeof index, r.index_sha256, 4);
    snprintf(r.revision, sizeof r.revision, "inline-%s-%s", config, index);
    conclude(&r, &err, ret);
}

/* ---- a folder that holds a head alone ------------------------------------------------------------------ */

static bl_mtp_finding check_member(const char *dir, const char *name, uint64_t *bytes, bl_err *err) {
    char path[BL_MTP_MAX_PATH + 300];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path || lstat(path, &st) != 0) {
        FIND(err, BL_MTP_FOUND_FOLDER_PATH, "cannot look at '%.*s': %s", SHOWN(name), strerror(errno));
    }
    if (S_ISLNK(st.st_mode)) {
        FIND(err, BL_MTP_FOUND_FILE_LINK, "'%.*s' is a link, allowed are files", SHOWN(name));
    }
    if (!S_ISREG(st.st_mode) || (strcmp(name, CONFIG) != 0 && !bl_name_ends(name, ".safetensors"))) {
        FIND(err, BL_MTP_FOUND_FILE_STRANGE,
             "'%.*s' is in the folder, allowed are the files " CONFIG " and *.safetensors alone",
             SHOWN(name));
    }
    if (!bl_add_u64(*bytes, (uint64_t)st.st_size, bytes) || *bytes > BL_MTP_MAX_PAYLOAD) {
        FIND(err, BL_MTP_FOUND_PAYLOAD_TOO_LARGE,
             "the folder has more than %" PRIu64 " bytes, which are allowed", BL_MTP_MAX_PAYLOAD);
    }
    return BL_MTP_FOUND_OK;
}

/* Every member; names are hidden from nobody but the folder itself and its parent. Those of weights go to
 * shards. */
static bl_mtp_finding check_members(const char *dir, json_t *shards, bl_err *err) {
    uint64_t bytes = 0;
    unsigned n = 0;
    bl_mtp_finding f = BL_MTP_FOUND_OK;
    DIR *d = opendir(dir);
    if (!d) {
        FIND(err, BL_MTP_FOUND_FOLDER_PATH, "cannot read folder '%.*s': %s", SHOWN(dir), strerror(errno));
    }
    for (struct dirent *e; f == BL_MTP_FOUND_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        f = check_member(dir, e->d_name, &bytes, err);
        if (f == BL_MTP_FOUND_OK && ++n > BL_MTP_MAX_FILES) {
            (void)bl_err_set(err, BL_EFORMAT, __FILE__, __LINE__,
                             "the folder has more than %u files, which are allowed", BL_MTP_MAX_FILES);
            f = BL_MTP_FOUND_TOO_MANY_FILES;
        }
        if (f == BL_MTP_FOUND_OK && strcmp(e->d_name, CONFIG) != 0 &&
            json_array_append_new(shards, json_string(e->d_name)) != 0) {
            (void)bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the names of files");
            f = BL_MTP_FOUND_NO_MEMORY;
        }
    }
    closedir(d);
    return f;
}

/* Names are those of modules, so each has a part behind a dot. */
static bl_mtp_finding collect_all(json_t *map, entry *list, size_t *ret_n, bl_err *err) {
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(map, key, value) {
        const char *dot = strrchr(key, '.');
        if (!dot || dot == key || strlen(key) > BL_MTP_MAX_KEY_BYTES) {
            FIND(err, BL_MTP_FOUND_KEY, "tensor name '%.*s' is none of a module's", SHOWN(key));
        }
        list[n++] = (entry){key, json_string_value(value)};
    }
    if (n == 0) {
        FIND(err, BL_MTP_FOUND_NO_TENSORS, "the folder holds no tensor");
    }
    if (n > BL_MTP_MAX_TENSORS) {
        FIND(err, BL_MTP_FOUND_TOO_MANY_TENSORS, "the folder holds %zu tensors, allowed are %u", n,
             BL_MTP_MAX_TENSORS);
    }
    qsort(list, n, sizeof *list, cmp_entry);
    *ret_n = n;
    return BL_MTP_FOUND_OK;
}

/* Of config.json: the family, the block, and how its matrices are quantised, into p. */
static bl_mtp_finding check_local_config(const json_t *config, bl_mtp_probe *p, bl_mtp_inspection *ret,
                                         bl_err *err) {
    static const char *const words[] = {"qwen3_5_mtp", "qwen3_5_moe_mtp"};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    json_t *q = json_object_get(config, "quantization");
    uint64_t block = 3;
    if (!bl_word_is_one_of(type, words, BL_COUNTOF(words))) {
        FIND(err, BL_MTP_FOUND_MODEL_TYPE, CONFIG ": model_type is '%.*s', allowed are %s and %s",
             SHOWN(type ? type : ""), words[0], words[1]);
    }
    if (bl_json_get_u64(config, "block_size", 2, 8, CONFIG, &block, err) != BL_OK) {
        return BL_MTP_FOUND_BLOCK_SIZE;
    }
    q = q ? q : json_object_get(config, "quantization_config");
    if (q && !json_is_object(q)) {
        FIND(err, BL_MTP_FOUND_QUANTIZATION, CONFIG ": quantization is no object");
    }
    p->quantization = q ? json_incref(q) : json_object();
    if (!p->quantization) {
        FIND(err, BL_MTP_FOUND_NO_MEMORY, "no memory for " CONFIG);
    }
    ret->block_size = (uint32_t)block;
    return BL_MTP_FOUND_OK;
}

static bl_mtp_finding read_local_config(const char *dir, bl_mtp_probe *p, bl_mtp_inspection *ret,
                                        bl_err *err) {
    bl_buf b;
    json_t *config = NULL;
    bl_mtp_finding f = read_file(dir, CONFIG, BL_MTP_INSPECT_MAX_BYTES, &of_config, &b, err);
    if (f == BL_MTP_FOUND_OK) {
        digest(&b, ret->config_sha256);
        f = parse_object(&b, CONFIG, BL_CONFIG_MAX_DEPTH, BL_MTP_FOUND_CONFIG_EMPTY,
                         BL_MTP_FOUND_CONFIG_MALFORMED, &config, err);
    }
    bl_buf_done(&b);
    if (f == BL_MTP_FOUND_OK) {
        f = check_local_config(config, p, ret, err);
    }
    json_decref(config);
    return f;
}

static bl_mtp_finding inspect_members(const char *dir, bl_mtp_probe *p, json_t *shards, json_t *map,
                                      bl_mtp_inspection *ret, bl_err *err) {
    LOOK(check_members(dir, shards, err));
    LOOK(read_local_config(dir, p, ret, err));
    for (size_t i = 0; i < json_array_size(shards); i++) {
        LOOK(list_file(dir, json_string_value(json_array_get(shards, i)), "", map, err));
    }
    return inspect_tensors(dir, p, map, collect_all, ret, err);
}

static bl_mtp_finding inspect_local(const char *path, bl_mtp_probe *p, bl_mtp_inspection *ret, bl_err *err) {
    struct stat st;
    if (strlen(path) > BL_MTP_MAX_PATH) {
        FIND(err, BL_MTP_FOUND_FOLDER_PATH, "the path has %zu bytes, allowed are %u", strlen(path),
             BL_MTP_MAX_PATH);
    }
    if (lstat(path, &st) != 0) {
        FIND(err, errno == ENOENT ? BL_MTP_FOUND_NO_FOLDER : BL_MTP_FOUND_FOLDER_PATH,
             "cannot open folder '%.*s': %s", SHOWN(path), strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        FIND(err, S_ISLNK(st.st_mode) ? BL_MTP_FOUND_FOLDER_LINK : BL_MTP_FOUND_NO_FOLDER,
             "'%.*s' is %s, allowed is a folder", SHOWN(path), S_ISLNK(st.st_mode) ? "a link" : "no folder");
    }
    json_t *shards = json_array(), *map = json_object();
    bl_mtp_finding f = BL_MTP_FOUND_NO_MEMORY;
    if (shards && map) {
        f = inspect_members(path, p, shards, map, ret, err);
    } else {
        (void)bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the names of the head");
    }
    json_decref(shards);
    json_decref(map);
    return f;
}

void bl_mtp_inspect_local(const char *path, bl_mtp_inspection *ret) {
    bl_err err = {0};
    bl_mtp_inspection r = {0};
    bl_mtp_probe p = {0};
    char config[17];
    r.finding = inspect_local(path, &p, &r, &err);
    bl_mtp_probe_done(&p);
    sodium_bin2hex(config, sizeof config, r.config_sha256, 8);
    snprintf(r.revision, sizeof r.revision, "local-%s", config);
    conclude(&r, &err, ret);
}
