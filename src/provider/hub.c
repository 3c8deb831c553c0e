#include "provider/hub.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/os.h"
#include "formats/json.h"
#include "net/download.h"
#include "provider/store.h"

#define MAX_LISTED    20000 /* files of a repository */
#define MAX_NAME      512   /* bytes of a file's name in the repository */
#define MAX_REPO      96    /* bytes of ORG and of REPO, the hub's own limit */
#define MAX_REVISION  128
#define MANIFEST      ".darkbloom.json"
#define MANIFEST_MAX  (1u << 20)
#define LISTING_DEPTH 16

typedef struct {
    const char *name;  /* in the repository; owned by the listing */
    const char *local; /* below the model's folder */
    bool has_size;
    uint64_t size_bytes;
    bl_hash_kind hash;
    char hash_hex[65];
    bool here; /* already in the model's folder */
} hub_file;

typedef struct {
    const bl_hub_request *r;
    char repo[2 * MAX_REPO + 2]; /* "org/repo" */
    char key[2 * MAX_REPO + 3];  /* "org--repo" */
    char revision[MAX_REVISION + 1];
    char
        commit[65]; /* what the revision meant when asked; the revision itself when the server does not say */
    json_t *listing;
    hub_file *files; /* chosen ones */
    uint32_t n_files;
    bool is_gguf;
    char partial[BL_STORE_MAX_PATH], folder[BL_STORE_MAX_PATH];
    uint64_t total_bytes, done_bytes; /* done: files before the one in progress */
    bl_downloader *dl;
} pull;

/* ---- names ------------------------------------------------------------------------------------- */

bool bl_hub_safe_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > MAX_NAME) {
        return false;
    }
    for (const char *p = name;; p++) {
        size_t len = strcspn(p, "/");
        if (len == 0 || len > 200 || p[0] == '.') {
            return false;
        }
        p += len;
        if (*p == '\0') {
            break;
        }
    }
    for (const unsigned char *p = (const unsigned char *)name; *p != '\0'; p++) {
        if (*p < 0x20 || *p == 0x7f || *p == '\\') {
            return false;
        }
    }
    return true;
}

/* Length of a leading ORG or REPO name, 0 when there is none. "--" is refused because it separates the two on
 * disk. */
static size_t repo_part(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._");
    bool ok = n > 0 && n <= MAX_REPO && s[0] != '.' && s[0] != '-' && s[n - 1] != '.' && s[n - 1] != '-';
    for (size_t i = 0; ok && i + 1 < n; i++) {
        ok = !(s[i] == '-' && s[i + 1] == '-') && !(s[i] == '.' && s[i + 1] == '.');
    }
    return ok ? n : 0;
}

static bool revision_ok(const char *s) {
    size_t n = strlen(s);
    return n > 0 && n <= MAX_REVISION && strstr(s, "..") == NULL &&
           s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/")] == '\0';
}

bool bl_hub_is_repo(const char *name) {
    size_t org = repo_part(name);
    if (org == 0 || name[org] != '/') {
        return false;
    }
    const char *rest = name + org + 1;
    size_t repo = repo_part(rest);
    return repo > 0 && (rest[repo] == '\0' || (rest[repo] == '@' && revision_ok(rest + repo + 1)));
}

static bl_code parse_repo(pull *p, bl_err *err) {
    const char *s = p->r->repo;
    if (!bl_hub_is_repo(s)) {
        BL_FAIL(err, BL_EINVAL, "'%.100s' is no repository, allowed: ORG/REPO or ORG/REPO@REVISION", s);
    }
    const char *at = strchr(s, '@');
    size_t n = at != NULL ? (size_t)(at - s) : strlen(s);
    size_t org = strcspn(s, "/");
    snprintf(p->repo, sizeof(p->repo), "%.*s", (int)n, s);
    snprintf(p->key, sizeof(p->key), "%.*s--%.*s", (int)org, s, (int)(n - org - 1), s + org + 1);
    snprintf(p->revision, sizeof(p->revision), "%s", at != NULL ? at + 1 : "main");
    return BL_OK;
}

/* ---- asking the hub ---------------------------------------------------------------------------- */

static bl_code endpoint_url(const pull *p, bl_buf *url, bl_err *err) {
    const char *e =
        p->r->endpoint != NULL && p->r->endpoint[0] != '\0' ? p->r->endpoint : BL_HUB_DEFAULT_ENDPOINT;
    if (strncasecmp(e, "http://", 7) != 0 && strncasecmp(e, "https://", 8) != 0) {
        BL_FAIL(err, BL_EINVAL, "the hub's endpoint is '%.100s', allowed: an http:// or https:// URL", e);
    }
    size_t n = strlen(e);
    while (n > 0 && e[n - 1] == '/') {
        n--;
    }
    return bl_buf_append(url, e, n, err);
}

/* What a refusal means here, with the server's status where it gave one. */
static bl_code explain(const pull *p, bl_code rc, long status, bl_err *err) {
    bool token = p->r->token != NULL && p->r->token[0] != '\0';
    if (status == 401 || status == 403) {
        if (token) {
            BL_FAIL(err, BL_EINVAL,
                    "'%s' refuses access (%ld) to the token in HF_TOKEN: is it valid, and were the model's "
                    "terms accepted?",
                    p->repo, status);
        }
        BL_FAIL(err, BL_EINVAL, "'%s' refuses access (%ld): it does not exist, or needs a token in HF_TOKEN",
                p->repo, status);
    }
    if (status == 404) {
        BL_FAIL(err, BL_ENOTFOUND, "there is no repository '%s' with a revision '%s'", p->repo, p->revision);
    }
    return rc;
}

static bl_code ask(pull *p, bl_err *err) {
    bl_buf url, body;
    bl_buf_init(&url, 4096);
    bl_buf_init(&body, BL_HUB_MAX_LISTING);
    long status = 0;
    bl_code rc;
    BL_TRY_GOTO(rc, out, endpoint_url(p, &url, err));
    BL_TRY_GOTO(rc, out, bl_buf_printf(&url, err, "/api/models/%s/revision/", p->repo));
    BL_TRY_GOTO(rc, out, bl_url_append_escaped(&url, p->revision, false, err));
    BL_TRY_GOTO(rc, out, bl_buf_append_str(&url, "?blobs=true", err));
    rc = bl_download_text(p->dl, bl_buf_str(&url), &body, &status, err);
    if (rc != BL_OK) {
        rc = explain(p, rc, status, err);
        goto out;
    }
    BL_TRY_GOTO(
        rc, out,
        bl_json_parse(bl_buf_str(&body), body.len, LISTING_DEPTH, "the hub's answer", &p->listing, err));
    const char *commit = json_string_value(json_object_get(p->listing, "sha"));
    bool known = commit != NULL && strlen(commit) <= 64 && commit[0] != '\0' &&
                 commit[strspn(commit, "0123456789abcdef")] == '\0';
    if (known) {
        snprintf(p->commit, sizeof(p->commit), "%s", commit);
    }
    if (!json_is_array(json_object_get(p->listing, "siblings"))) {
        rc = bl_err_set(err, BL_EFORMAT, __FILE__, __LINE__, "the hub's answer about '%s' lists no files",
                        p->repo);
    }
out:
    bl_buf_done(&url);
    bl_buf_done(&body);
    return rc;
}

/* ---- choosing files ---------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcasecmp(s + n - m, suffix) == 0;
}

static const char *base_name(const char *s) {
    const char *slash = strrchr(s, '/');
    return slash != NULL ? slash + 1 : s;
}

static bool is_side_file(const char *name) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_model_safetensors(const char *name) {
    return strcmp(name, "model.safetensors") == 0 || strcmp(name, "model.safetensors.index.json") == 0 ||
           fnmatch("model-*-of-*.safetensors", name, 0) == 0;
}

/* One file of several is no model; a projector is none either. */
static bool is_whole_gguf(const char *name) {
    return ends_with(name, ".gguf") && fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-*", name, 0) != 0 &&
           strncasecmp(base_name(name), "mmproj", 6) != 0;
}

static bool matches_globs(const bl_hub_request *r, const char *name) {
    for (uint32_t i = 0; i < r->n_globs; i++) {
        if (fnmatch(r->globs[i], name, FNM_CASEFOLD) == 0 ||
            fnmatch(r->globs[i], base_name(name), FNM_CASEFOLD) == 0) {
            return true;
        }
    }
    return false;
}

static const char *sibling_name(const pull *p, size_t i) {
    const char *s = json_string_value(
        json_object_get(json_array_get(json_object_get(p->listing, "siblings"), i), "rfilename"));
    return s != NULL ? s : "";
}

static size_t n_siblings(const pull *p) {
    return BL_MIN(json_array_size(json_object_get(p->listing, "siblings")), (size_t)MAX_LISTED);
}

static bool is_hex(const char *s, size_t n) {
    return s != NULL && strlen(s) == n && s[strspn(s, "0123456789abcdef")] == '\0';
}

static bl_code choose(pull *p, size_t i, bl_err *err) {
    const json_t *s = json_array_get(json_object_get(p->listing, "siblings"), i);
    const char *name = sibling_name(p, i);
    if (!bl_hub_safe_name(name)) {
        BL_FAIL(err, BL_EFORMAT, "'%s' lists a file whose name is not safe to create", p->repo);
    }
    if (p->n_files == BL_HUB_MAX_FILES) {
        BL_FAIL(err, BL_ELIMIT, "more than %d files of '%s' to fetch", BL_HUB_MAX_FILES, p->repo);
    }
    hub_file f = {.name = name, .local = ends_with(name, ".gguf") ? base_name(name) : name};
    const json_t *lfs = json_object_get(s, "lfs");
    const json_t *size = json_object_get(lfs, "size");
    size = size != NULL ? size : json_object_get(s, "size");
    if (json_is_integer(size) && json_integer_value(size) >= 0) {
        f.has_size = true;
        f.size_bytes = (uint64_t)json_integer_value(size);
    }
    const char *sha256 = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(s, "blobId"));
    if (is_hex(sha256, 64)) {
        f.hash = BL_HASH_SHA256;
        memcpy(f.hash_hex, sha256, 65);
    } else if (lfs == NULL && is_hex(blob, 40) && f.has_size) {
        f.hash = BL_HASH_GIT_BLOB;
        memcpy(f.hash_hex, blob, 41);
    }
    for (uint32_t k = 0; k < p->n_files; k++) {
        if (strcmp(p->files[k].local, f.local) == 0) {
            BL_FAIL(err, BL_EINVAL, "two files of '%s' are called '%.80s': narrow --file down", p->repo,
                    f.local);
        }
    }
    if (!bl_add_u64(p->total_bytes, f.size_bytes, &p->total_bytes)) {
        BL_FAIL(err, BL_EFORMAT, "'%s' promises files of impossible sizes", p->repo);
    }
    p->files[p->n_files++] = f;
    return BL_OK;
}

/* Which of several GGUF files to take when nobody said: the best quality that stays small comes first. */
static int gguf_preference(const char *name) {
    static const char *const order[] = {"Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q4_0",
                                        "Q4_1",   "Q5_0", "Q5_1",   "BF16", "F16",    "F32"};
    for (size_t i = 0; i < BL_COUNTOF(order); i++) {
        if (strcasestr(name, order[i]) != NULL) {
            return (int)i;
        }
    }
    return (int)BL_COUNTOF(order);
}

static bl_code choose_gguf(pull *p, bl_err *err) {
    size_t best = SIZE_MAX, n = 0;
    int best_rank = 0;
    for (size_t i = 0; i < n_siblings(p); i++) {
        const char *name = sibling_name(p, i);
        if (!is_whole_gguf(name)) {
            continue;
        }
        int rank = gguf_preference(base_name(name));
        if (n++ == 0 || rank < best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    if (n == 0) {
        BL_FAIL(err, BL_ENOTFOUND, "'%s' holds neither model.safetensors nor a whole GGUF file", p->repo);
    }
    p->is_gguf = true;
    return choose(p, best, err);
}

static bl_code choose_all(pull *p, bl_err *err) {
    bool globs = p->r->n_globs > 0;
    uint32_t n_weights = 0, n_gguf = 0;
    for (size_t i = 0; i < n_siblings(p); i++) {
        const char *name = sibling_name(p, i);
        bool wanted = globs ? matches_globs(p->r, name) && !is_side_file(name) : is_model_safetensors(name);
        if (wanted) {
            BL_TRY(choose(p, i, err));
            n_weights++;
            n_gguf += ends_with(name, ".gguf") ? 1 : 0;
        }
    }
    if (n_weights == 0 && globs) {
        BL_FAIL(err, BL_ENOTFOUND, "no file of '%s' matches --file '%.80s'", p->repo, p->r->globs[0]);
    }
    if (n_weights == 0) {
        return choose_gguf(p, err);
    }
    p->is_gguf = n_gguf == n_weights;
    for (size_t i = 0; !p->is_gguf && i < n_siblings(p); i++) {
        if (is_side_file(sibling_name(p, i))) {
            BL_TRY(choose(p, i, err));
        }
    }
    return BL_OK;
}

/* ---- what is here already ---------------------------------------------------------------------- */

static const char *hash_prefix(bl_hash_kind k) {
    return k == BL_HASH_SHA256 ? "sha256:" : k == BL_HASH_GIT_BLOB ? "git:" : "none:";
}

/* models/KEY/<local> or models/.partial/KEY/<local>.<start of its hash>: bytes of different contents never
 * meet. */
static bl_code path_of(const char *dir, const hub_file *f, bool partial, char *ret, bl_err *err) {
    int n = partial ? snprintf(ret, BL_STORE_MAX_PATH, "%s/%s.%.16s", dir, f->local,
                               f->hash == BL_HASH_NONE ? "unhashed" : f->hash_hex)
                    : snprintf(ret, BL_STORE_MAX_PATH, "%s/%s", dir, f->local);
    if (n < 0 || n >= BL_STORE_MAX_PATH) {
        BL_FAIL(err, BL_ELIMIT, "the path of '%.100s' is too long", f->local);
    }
    return BL_OK;
}

static bool has_size_on_disk(const char *path, const hub_file *f) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && f->has_size &&
           (uint64_t)st.st_size == f->size_bytes;
}

/* A file counts as present when the manifest remembers this very hash and its size is right on disk. */
static bl_code mark_present(pull *p, bl_err *err) {
    char path[BL_STORE_MAX_PATH];
    bl_buf text;
    json_t *manifest = NULL;
    int n = snprintf(path, sizeof(path), "%s/" MANIFEST, p->folder);
    if (n < 0 || (size_t)n >= sizeof(path) || bl_file_read(path, MANIFEST_MAX, &text, NULL) != BL_OK) {
        return BL_OK;
    }
    /* An unreadable manifest only means that files are fetched again. */
    (void)!bl_json_parse(bl_buf_str(&text), text.len, LISTING_DEPTH, "manifest", &manifest, NULL);
    bl_buf_done(&text);
    bl_code rc = BL_OK;
    for (uint32_t i = 0; i < p->n_files && rc == BL_OK; i++) {
        hub_file *f = &p->files[i];
        const char *h = json_string_value(json_object_get(json_object_get(manifest, "files"), f->local));
        size_t prefix = strlen(hash_prefix(f->hash));
        if (h == NULL || f->hash == BL_HASH_NONE || strncmp(h, hash_prefix(f->hash), prefix) != 0 ||
            strcmp(h + prefix, f->hash_hex) != 0) {
            continue;
        }
        rc = path_of(p->folder, f, false, path, err);
        f->here = rc == BL_OK && has_size_on_disk(path, f);
    }
    json_decref(manifest);
    return rc;
}

static int append_json(const char *data, size_t n, void *user) {
    return bl_buf_append(user, data, n, NULL) == BL_OK ? 0 : -1;
}

static bl_code write_manifest(const pull *p, bl_err *err) {
    char path[BL_STORE_MAX_PATH];
    int n = snprintf(path, sizeof(path), "%s/" MANIFEST, p->folder);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        BL_FAIL(err, BL_ELIMIT, "the path of '%s' is too long", p->repo);
    }
    json_t *old = NULL;
    bl_buf text;
    if (bl_file_read(path, MANIFEST_MAX, &text, NULL) == BL_OK) {
        (void)!bl_json_parse(bl_buf_str(&text), text.len, LISTING_DEPTH, "manifest", &old, NULL);
        bl_buf_done(&text);
    }
    /* Files of earlier pulls stay, with what is known about them. */
    json_t *files = json_copy(json_object_get(old, "files"));
    json_decref(old);
    if (!json_is_object(files)) {
        json_decref(files);
        files = json_object();
    }
    int bad = files == NULL;
    for (uint32_t i = 0; i < p->n_files && !bad; i++) {
        const hub_file *f = &p->files[i];
        bad = json_object_set_new(files, f->local, json_sprintf("%s%s", hash_prefix(f->hash), f->hash_hex));
    }
    json_t *m = bad ? NULL
                    : json_pack("{s:s, s:s, s:s, s:O}", "repo", p->repo, "revision", p->revision, "commit",
                                p->commit, "files", files);
    json_decref(files);
    bl_buf out;
    bl_buf_init(&out, MANIFEST_MAX);
    bl_code rc = BL_OK;
    if (m == NULL || json_dump_callback(m, append_json, &out, JSON_INDENT(2)) != 0) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the manifest of '%s'", p->repo);
    } else {
        rc = bl_file_write_atomic(path, bl_buf_str(&out), out.len, err);
    }
    json_decref(m);
    bl_buf_done(&out);
    return rc;
}

/* ---- fetching ---------------------------------------------------------------------------------- */

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    (void)total_bytes;
    pull *p = user;
    bl_pull_emit(&p->r->pull, &(bl_pull_event){.kind = BL_PULL_PROGRESS,
                                               .done_bytes = p->done_bytes + done_bytes,
                                               .total_bytes = p->total_bytes,
                                               .n_files = p->n_files});
}

static void on_note(void *user, const char *line) {
    pull *p = user;
    bl_pull_emit(&p->r->pull, &(bl_pull_event){.kind = BL_PULL_NOTE, .text = line});
}

static bl_code fetch_one(pull *p, hub_file *f, bl_err *err) {
    char path[BL_STORE_MAX_PATH];
    BL_TRY(path_of(p->partial, f, true, path, err));
    BL_TRY(bl_file_make_parent(path, err));
    if (f->hash != BL_HASH_NONE && has_size_on_disk(path, f)) {
        return BL_OK; /* whole from an earlier run: it got this name only after its hash was right */
    }
    bl_buf url;
    bl_buf_init(&url, 8192);
    long status = 0;
    bl_code rc;
    BL_TRY_GOTO(rc, out, endpoint_url(p, &url, err));
    BL_TRY_GOTO(rc, out, bl_buf_printf(&url, err, "/%s/resolve/", p->repo));
    BL_TRY_GOTO(rc, out, bl_url_append_escaped(&url, p->commit, false, err));
    BL_TRY_GOTO(rc, out, bl_buf_append_char(&url, '/', err));
    BL_TRY_GOTO(rc, out, bl_url_append_escaped(&url, f->name, true, err));
    bl_download_file_request d = {.url = bl_buf_str(&url),
                                  .path = path,
                                  .name = f->name,
                                  .has_size = f->has_size,
                                  .size_bytes = f->size_bytes,
                                  .hash = f->hash,
                                  .hash_hex = f->hash_hex,
                                  .progress = on_progress,
                                  .progress_user = p};
    rc = bl_download_file(p->dl, &d, &status, err);
    if (rc == BL_EINVAL && (status == 401 || status == 403)) {
        rc = explain(p, rc, status, err);
    }
out:
    bl_buf_done(&url);
    return rc;
}

static bl_code fetch_all(pull *p, bl_err *err) {
    uint64_t here = 0;
    for (uint32_t i = 0; i < p->n_files; i++) {
        here += p->files[i].here ? p->files[i].size_bytes : 0;
    }
    bl_pull_emit(&p->r->pull, &(bl_pull_event){.kind = BL_PULL_PLAN,
                                               .name = p->repo,
                                               .n_files = p->n_files,
                                               .done_bytes = here,
                                               .total_bytes = p->total_bytes});
    BL_TRY(bl_pull_check_space(p->partial, p->total_bytes - here, err));
    for (uint32_t i = 0; i < p->n_files; i++) {
        hub_file *f = &p->files[i];
        if (!f->here) {
            bl_pull_emit(&p->r->pull, &(bl_pull_event){.kind = BL_PULL_FILE,
                                                       .name = f->name,
                                                       .file = i + 1,
                                                       .n_files = p->n_files,
                                                       .done_bytes = p->done_bytes,
                                                       .total_bytes = p->total_bytes});
            BL_TRY(fetch_one(p, f, err));
        }
        p->done_bytes += f->size_bytes;
        on_progress(p, 0, 0);
    }
    return BL_OK;
}

static bl_code move_into_place(pull *p, bl_err *err) {
    char from[BL_STORE_MAX_PATH], to[BL_STORE_MAX_PATH];
    /* config.json makes the folder a model, so it comes last. */
    for (int last = 0; last < 2; last++) {
        for (uint32_t i = 0; i < p->n_files; i++) {
            const hub_file *f = &p->files[i];
            if (f->here || (strcmp(f->local, "config.json") == 0) != (last == 1)) {
                continue;
            }
            BL_TRY(path_of(p->partial, f, true, from, err));
            BL_TRY(path_of(p->folder, f, false, to, err));
            BL_TRY(bl_file_make_parent(to, err));
            if (bl_os.rename(from, to) != 0) {
                BL_FAIL(err, BL_EIO, "cannot put '%s' in place: %s", to, strerror(errno));
            }
        }
    }
    return write_manifest(p, err);
}

static bl_code result_path(const pull *p, char **ret_path, bl_err *err) {
    char path[BL_STORE_MAX_PATH];
    snprintf(path, sizeof(path), "%s", p->folder);
    for (uint32_t i = 0; p->is_gguf && i < p->n_files; i++) {
        if (ends_with(p->files[i].local, ".gguf")) {
            BL_TRY(path_of(p->folder, &p->files[i], false, path, err));
            break;
        }
    }
    char *s = bl_strdup(path);
    if (s == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a path");
    }
    *ret_path = s;
    return BL_OK;
}

static bl_code pull_locked(pull *p, char **ret_path, bl_err *err) {
    bl_download_options o = {.token = p->r->token,
                             .user_agent = p->r->user_agent,
                             .cancel = p->r->pull.cancel,
                             .note = on_note,
                             .note_user = p};
    BL_TRY(bl_downloader_new(&o, &p->dl, err));
    BL_TRY(ask(p, err));
    BL_TRY(choose_all(p, err));
    BL_TRY(mark_present(p, err));
    BL_TRY(fetch_all(p, err));
    BL_TRY(move_into_place(p, err));
    return result_path(p, ret_path, err);
}

bl_code bl_hub_pull(const bl_hub_request *r, char **ret_path, bl_err *err) {
    pull *p = bl_alloc(sizeof(*p));
    hub_file *files = bl_alloc_array(BL_HUB_MAX_FILES, sizeof(*files));
    int lock = -1;
    bl_code rc = BL_OK;
    if (p == NULL || files == NULL) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for a download");
        goto out;
    }
    p->r = r;
    p->files = files;
    BL_TRY_GOTO(rc, out, parse_repo(p, err));
    snprintf(p->commit, sizeof(p->commit), "%.64s", p->revision);
    int n = snprintf(p->folder, sizeof(p->folder), "%s/%s", r->pull.models_dir, p->key);
    if (n < 0 || (size_t)n >= sizeof(p->folder)) {
        rc = bl_err_set(err, BL_ELIMIT, __FILE__, __LINE__, "the path of the models folder is too long");
        goto out;
    }
    BL_TRY_GOTO(rc, out, bl_pull_begin(&r->pull, p->key, p->partial, sizeof(p->partial), &lock, err));
    rc = pull_locked(p, ret_path, err);
    bl_pull_end(p->partial, lock, rc == BL_OK);
out:
    if (p != NULL) {
        bl_downloader_free(p->dl);
        json_decref(p->listing);
    }
    bl_free(files);
    bl_free(p);
    return rc;
}
