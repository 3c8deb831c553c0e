#include "net/download.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "base/rng.h"
#include "net/sha1.h"

#define MAX_REDIRECTS     6
#define MAX_TRIES         1000 /* of one file, however little each brings */
#define MAX_DELAY_MS      30000u
#define MAX_RETRY_AFTER_S 120u
#define MAX_ERROR_BODY    (1u << 20) /* of an answer that is thrown away */
#define MAX_ETAG          200

struct bl_downloader {
    CURL *curl;
    bl_download_options o;
    char curl_message[CURL_ERROR_SIZE];
    uint64_t rng;
};

bl_code bl_downloader_new(const bl_download_options *o, bl_downloader **ret, bl_err *err) {
    if (sodium_init() < 0 || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        BL_FAIL(err, BL_EINTERNAL, "the network libraries do not start");
    }
    bl_downloader *d = bl_alloc(sizeof(*d));
    CURL *curl = d != NULL ? curl_easy_init() : NULL;
    if (curl == NULL) {
        bl_free(d);
        curl_global_cleanup();
        BL_FAIL(err, BL_ENOMEM, "no memory for a download");
    }
    d->curl = curl;
    d->o = *o;
    d->rng = bl_clock_mono_ns();
    if (d->o.user_agent == NULL) {
        d->o.user_agent = "darkbloom";
    }
    d->o.connect_timeout_ms = o->connect_timeout_ms != 0 ? o->connect_timeout_ms : 15000;
    d->o.stall_timeout_ms = o->stall_timeout_ms != 0 ? o->stall_timeout_ms : 30000;
    d->o.max_attempts = o->max_attempts != 0 ? o->max_attempts : 5;
    d->o.retry_delay_ms = o->retry_delay_ms != 0 ? o->retry_delay_ms : 500;
    *ret = d;
    return BL_OK;
}

void bl_downloader_free(bl_downloader *d) {
    if (d != NULL) {
        curl_easy_cleanup(d->curl);
        curl_global_cleanup();
        bl_free(d);
    }
}

static bool cancelled(const bl_downloader *d) {
    /* Pairs with the store of whoever cancels; no data travels with it. */
    return d->o.cancel != NULL && atomic_load_explicit(d->o.cancel, memory_order_relaxed);
}

/* ---- hashes ------------------------------------------------------------------------------------ */

typedef struct {
    bl_hash_kind kind;
    crypto_hash_sha256_state sha256;
    bl_sha1 sha1;
} hasher;

static void hash_start(hasher *h, bl_hash_kind kind, uint64_t size_bytes) {
    h->kind = kind;
    if (kind == BL_HASH_SHA256) {
        crypto_hash_sha256_init(&h->sha256);
    } else if (kind == BL_HASH_GIT_BLOB) {
        char head[40];
        int n = snprintf(head, sizeof(head), "blob %" PRIu64, size_bytes);
        bl_sha1_init(&h->sha1);
        bl_sha1_update(&h->sha1, head, (size_t)n + 1);
    }
}

static void hash_add(hasher *h, const void *data, size_t n) {
    if (h->kind == BL_HASH_SHA256) {
        crypto_hash_sha256_update(&h->sha256, data, n);
    } else if (h->kind == BL_HASH_GIT_BLOB) {
        bl_sha1_update(&h->sha1, data, n);
    }
}

static void hash_end(hasher *h, char ret[65]) {
    uint8_t out[32] = {0};
    size_t n = 0;
    if (h->kind == BL_HASH_SHA256) {
        crypto_hash_sha256_final(&h->sha256, out);
        n = crypto_hash_sha256_BYTES;
    } else if (h->kind == BL_HASH_GIT_BLOB) {
        bl_sha1_final(&h->sha1, out);
        n = BL_SHA1_BYTES;
    }
    sodium_bin2hex(ret, 65, out, n);
}

/* Feeds the first n bytes of an open file. */
static bl_code hash_file_bytes(hasher *h, int fd, uint64_t n, const char *path, bl_err *err) {
    size_t cap = 1u << 18;
    uint8_t *chunk = bl_alloc(cap);
    if (chunk == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory to check '%s'", path);
    }
    bl_code rc = BL_OK;
    for (uint64_t off = 0; off < n && rc == BL_OK;) {
        ssize_t got = bl_os.pread(fd, chunk, (size_t)BL_MIN((uint64_t)cap, n - off), (off_t)off);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "cannot read '%s': %s", path,
                            got < 0 ? strerror(errno) : "it became shorter");
            break;
        }
        hash_add(h, chunk, (size_t)got);
        off += (uint64_t)got;
    }
    bl_free(chunk);
    return rc;
}

bl_code bl_hash_file(const char *path, bl_hash_kind kind, char ret[65], bl_err *err) {
    int fd = bl_os.open(path, O_RDONLY | O_CLOEXEC, 0);
    struct stat st;
    if (fd < 0 || bl_os.fstat(fd, &st) != 0) {
        int e = errno;
        if (fd >= 0) {
            bl_os.close(fd);
        }
        BL_FAIL(err, e == ENOENT ? BL_ENOTFOUND : BL_EIO, "cannot open '%s': %s", path, strerror(e));
    }
    hasher h;
    hash_start(&h, kind, (uint64_t)st.st_size);
    bl_code rc = hash_file_bytes(&h, fd, (uint64_t)st.st_size, path, err);
    bl_os.close(fd);
    if (rc == BL_OK) {
        hash_end(&h, ret);
    }
    return rc;
}

bl_code bl_url_append_escaped(bl_buf *url, const char *s, bool keep_slash, bl_err *err) {
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c) != NULL || (keep_slash && c == '/');
        if (plain) {
            BL_TRY(bl_buf_append_char(url, *s, err));
        } else {
            BL_TRY(bl_buf_printf(url, err, "%%%02X", c));
        }
    }
    return BL_OK;
}

/* ---- the partial file -------------------------------------------------------------------------- */

typedef struct {
    const bl_download_file_request *r;
    int fd;
    uint64_t n_bytes; /* in the file, all hashed */
    hasher hash;
    char path[4096];
    char etag_path[4096];
    char etag[MAX_ETAG + 1]; /* of the entity the bytes belong to; "" unknown */
} part_file;

static bl_code part_restart(part_file *p, bl_err *err) {
    if (ftruncate(p->fd, 0) != 0) {
        BL_FAIL(err, BL_EIO, "cannot truncate '%s': %s", p->path, strerror(errno));
    }
    p->n_bytes = 0;
    p->etag[0] = '\0';
    (void)bl_os.unlink(p->etag_path);
    hash_start(&p->hash, p->r->hash, p->r->size_bytes);
    return BL_OK;
}

static void part_read_etag(part_file *p) {
    bl_buf b;
    p->etag[0] = '\0';
    if (bl_file_read(p->etag_path, MAX_ETAG, &b, NULL) == BL_OK) {
        snprintf(p->etag, sizeof(p->etag), "%s", bl_buf_str(&b));
        bl_buf_done(&b);
        if (p->etag[strcspn(p->etag, "\r\n")] != '\0') {
            p->etag[0] = '\0'; /* it goes into a header; a line break would start another one */
        }
    }
}

static bl_code part_open(part_file *p, const bl_download_file_request *r, bl_err *err) {
    p->r = r;
    p->fd = -1;
    int n = snprintf(p->path, sizeof(p->path), "%s.part", r->path);
    int m = snprintf(p->etag_path, sizeof(p->etag_path), "%s.part.etag", r->path);
    if (n < 0 || m < 0 || (size_t)m >= sizeof(p->etag_path)) {
        BL_FAIL(err, BL_ELIMIT, "a path of %zu bytes, allowed: %zu", strlen(r->path), sizeof(p->path) - 16);
    }
    p->fd = bl_os.open(p->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    struct stat st;
    if (p->fd < 0 || bl_os.fstat(p->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        BL_FAIL(err, BL_EIO, "cannot open '%s': %s", p->path,
                p->fd < 0 ? strerror(errno) : "no regular file");
    }
    part_read_etag(p);
    /* Bytes of unknown origin may only be kept where the hash will tell. */
    bool keep = r->hash != BL_HASH_NONE || p->etag[0] != '\0';
    uint64_t have = (uint64_t)st.st_size;
    if (have == 0 || !keep || (r->has_size && have > r->size_bytes)) {
        return part_restart(p, err);
    }
    hash_start(&p->hash, r->hash, r->size_bytes);
    BL_TRY(hash_file_bytes(&p->hash, p->fd, have, p->path, err));
    p->n_bytes = have;
    return BL_OK;
}

static void part_close(part_file *p) {
    if (p->fd >= 0) {
        bl_os.close(p->fd);
        p->fd = -1;
    }
}

static bl_code part_write(part_file *p, const char *data, size_t n, bl_err *err) {
    const bl_download_file_request *r = p->r;
    if (r->has_size && n > r->size_bytes - p->n_bytes) {
        BL_FAIL(err, BL_ECORRUPT, "'%s' is longer than the promised %" PRIu64 " bytes", r->name,
                r->size_bytes);
    }
    while (n > 0) {
        ssize_t w = bl_os.write(p->fd, data, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            BL_FAIL(err, BL_EIO, "cannot write '%s': %s", p->path, strerror(errno));
        }
        hash_add(&p->hash, data, (size_t)w);
        p->n_bytes += (uint64_t)w;
        data += w;
        n -= (size_t)w;
    }
    if (r->progress != NULL) {
        r->progress(r->progress_user, p->n_bytes, r->has_size ? r->size_bytes : 0);
    }
    return BL_OK;
}

static void part_delete(part_file *p) {
    (void)bl_os.unlink(p->path);
    (void)bl_os.unlink(p->etag_path);
}

/* All bytes are here: check, sync, rename. */
static bl_code part_finish(part_file *p, bl_err *err) {
    const bl_download_file_request *r = p->r;
    char hex[65] = "";
    hash_end(&p->hash, hex);
    if (r->hash != BL_HASH_NONE && strcmp(hex, r->hash_hex) != 0) {
        part_delete(p);
        BL_FAIL(err, BL_ECORRUPT,
                "'%s' has the wrong %s %.16s..., promised %.16s...; the download was deleted", r->name,
                r->hash == BL_HASH_SHA256 ? "SHA-256" : "git SHA-1", hex, r->hash_hex);
    }
    if (bl_os.fsync(p->fd) != 0 || bl_os.rename(p->path, r->path) != 0) {
        BL_FAIL(err, BL_EIO, "cannot put '%s' in place: %s", r->path, strerror(errno));
    }
    (void)bl_os.unlink(p->etag_path);
    return BL_OK;
}

/* ---- one exchange ------------------------------------------------------------------------------ */

typedef struct {
    bl_downloader *d;
    bl_buf *text; /* one of the two receives the body of a 2xx answer */
    part_file *part;
    bool body_began;
    uint64_t n_thrown_away;
    char etag[MAX_ETAG + 1];
    bool has_range;
    uint64_t range_start;
    uint32_t retry_after_s;
    bool restart; /* the server answered with a range that was not asked for */
    bl_code sink_rc;
    bl_err sink_err;
} exchange;

/* Value of header `name` in line (which has no NUL), copied into ret; false when it is another header or does
 * not fit. */
static bool header_value(const char *line, size_t n, const char *name, char *ret, size_t cap) {
    size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':') {
        return false;
    }
    const char *s = line + len + 1, *end = line + n;
    while (s < end && (*s == ' ' || *s == '\t')) {
        s++;
    }
    while (end > s && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) {
        end--;
    }
    if ((size_t)(end - s) >= cap) {
        return false;
    }
    memcpy(ret, s, (size_t)(end - s));
    ret[end - s] = '\0';
    return true;
}

static size_t on_header(char *line, size_t size, size_t n, void *user) {
    exchange *x = user;
    char value[MAX_ETAG + 1];
    n *= size;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) {
        x->etag[0] = '\0';
        x->has_range = false;
        x->retry_after_s = 0;
    } else if (header_value(line, n, "etag", value, sizeof(value))) {
        /* If-Range takes strong tags only. */
        snprintf(x->etag, sizeof(x->etag), "%s", value[0] == '"' ? value : "");
    } else if (header_value(line, n, "content-range", value, sizeof(value))) {
        x->has_range = sscanf(value, "bytes %" SCNu64 "-", &x->range_start) == 1;
    } else if (header_value(line, n, "retry-after", value, sizeof(value))) {
        unsigned s = 0;
        x->retry_after_s = sscanf(value, "%4u", &s) == 1 ? BL_MIN(s, MAX_RETRY_AFTER_S) : 0;
    }
    return n;
}

/* The first byte of a file's body decides whether it continues what is there or starts anew. */
static bl_code begin_file_body(exchange *x, long status, bl_err *err) {
    part_file *p = x->part;
    if (status == 206) {
        if (!x->has_range || x->range_start != p->n_bytes) {
            x->restart = true;
            BL_FAIL(err, BL_EFORMAT, "'%s': the server answered with another range than asked for",
                    p->r->name);
        }
    } else if (p->n_bytes > 0) {
        BL_TRY(part_restart(p, err));
    }
    if (x->etag[0] != '\0' && strcmp(x->etag, p->etag) != 0) {
        BL_TRY(bl_file_write_atomic(p->etag_path, x->etag, strlen(x->etag), err));
        snprintf(p->etag, sizeof(p->etag), "%s", x->etag);
    }
    return BL_OK;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    exchange *x = user;
    n *= size;
    long status = 0;
    curl_easy_getinfo(x->d->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status / 100 != 2) {
        x->n_thrown_away += n;
        return x->n_thrown_away <= MAX_ERROR_BODY ? n : 0;
    }
    if (x->part != NULL && !x->body_began) {
        x->sink_rc = begin_file_body(x, status, &x->sink_err);
    }
    x->body_began = true;
    if (x->sink_rc == BL_OK) {
        x->sink_rc = x->part != NULL ? part_write(x->part, data, n, &x->sink_err)
                                     : bl_buf_append(x->text, data, n, &x->sink_err);
    }
    return x->sink_rc == BL_OK ? n : 0;
}

static int on_progress(void *user, curl_off_t dl_total, curl_off_t dl_now, curl_off_t ul_total,
                       curl_off_t ul_now) {
    (void)dl_total, (void)dl_now, (void)ul_total, (void)ul_now;
    return cancelled(((exchange *)user)->d) ? 1 : 0;
}

/* ---- origins and redirects --------------------------------------------------------------------- */

typedef struct {
    char scheme[16], host[256], port[8];
} origin;

static bool get_part(CURLU *u, CURLUPart what, char *ret, size_t cap) {
    char *s = NULL;
    if (curl_url_get(u, what, &s, CURLU_DEFAULT_PORT) != CURLUE_OK || s == NULL) {
        return false;
    }
    size_t n = strlen(s);
    bool fits = n < cap;
    if (fits) {
        memcpy(ret, s, n + 1);
    }
    curl_free(s);
    return fits;
}

static bool origin_of(const char *url, origin *ret) {
    CURLU *u = curl_url();
    bool ok = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              get_part(u, CURLUPART_SCHEME, ret->scheme, sizeof(ret->scheme)) &&
              get_part(u, CURLUPART_HOST, ret->host, sizeof(ret->host)) &&
              get_part(u, CURLUPART_PORT, ret->port, sizeof(ret->port));
    curl_url_cleanup(u);
    return ok;
}

static bool same_origin(const origin *a, const origin *b) {
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}

static bool may_carry_token(const origin *o) {
    return strcasecmp(o->scheme, "https") == 0 || strcasecmp(o->host, "localhost") == 0 ||
           strncmp(o->host, "127.", 4) == 0 || strcmp(o->host, "[::1]") == 0;
}

static bool append_header(struct curl_slist **list, const char *name, const char *value) {
    char line[4096];
    int n = snprintf(line, sizeof(line), "%s: %s", name, value);
    struct curl_slist *grown = n > 0 && (size_t)n < sizeof(line) ? curl_slist_append(*list, line) : NULL;
    sodium_memzero(line, sizeof(line)); /* may have held the token */
    if (grown == NULL) {
        return false;
    }
    *list = grown;
    return true;
}

/* One request and answer. *ret_code is libcurl's verdict. */
static bl_code exchange_once(exchange *x, const char *url, bool with_token, CURLcode *ret_code, bl_err *err) {
    bl_downloader *d = x->d;
    CURL *c = d->curl;
    char range[32];
    struct curl_slist *headers = NULL;
    bool ok = true;
    curl_easy_reset(c);
    d->curl_message[0] = '\0';
    if (with_token) {
        char bearer[4096];
        int n = snprintf(bearer, sizeof(bearer), "Bearer %s", d->o.token);
        ok = n > 0 && (size_t)n < sizeof(bearer) && append_header(&headers, "Authorization", bearer);
        sodium_memzero(bearer, sizeof(bearer));
    }
    if (x->part != NULL && x->part->n_bytes > 0) {
        snprintf(range, sizeof(range), "%" PRIu64 "-", x->part->n_bytes);
        ok = ok && curl_easy_setopt(c, CURLOPT_RANGE, range) == CURLE_OK;
        if (x->part->etag[0] != '\0') {
            ok = ok && append_header(&headers, "If-Range", x->part->etag);
        }
    }
    ok = ok && curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_USERAGENT, d->o.user_agent) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_ERRORBUFFER, d->curl_message) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)d->o.connect_timeout_ms) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)BL_MAX(d->o.stall_timeout_ms / 1000, 1u)) ==
             CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_HEADERDATA, x) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_WRITEDATA, x) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress) == CURLE_OK &&
         curl_easy_setopt(c, CURLOPT_XFERINFODATA, x) == CURLE_OK;
    if (ok) {
        *ret_code = curl_easy_perform(c);
    }
    curl_slist_free_all(headers);
    if (!ok) {
        BL_FAIL(err, BL_ENOMEM, "libcurl refuses its settings");
    }
    return BL_OK;
}

/* The request with its redirects. */
static bl_code exchange_run(exchange *x, const char *first_url, CURLcode *ret_code, long *ret_status,
                            bl_err *err) {
    bl_downloader *d = x->d;
    origin first, now;
    if (!origin_of(first_url, &first)) {
        BL_FAIL(err, BL_EINVAL, "not a URL: '%.160s'", first_url);
    }
    char url[8192];
    int n = snprintf(url, sizeof(url), "%s", first_url);
    for (int hop = 0; n > 0 && (size_t)n < sizeof(url); hop++) {
        if (!origin_of(url, &now)) {
            BL_FAIL(err, BL_EFORMAT, "the server redirects to something that is no URL");
        }
        if (strcasecmp(first.scheme, "https") == 0 && strcasecmp(now.scheme, "https") != 0) {
            BL_FAIL(err, BL_EFORMAT, "the server redirects from https to %s, which is not followed",
                    now.scheme);
        }
        bool with_token =
            d->o.token != NULL && d->o.token[0] != '\0' && same_origin(&first, &now) && may_carry_token(&now);
        BL_TRY(exchange_once(x, url, with_token, ret_code, err));
        char *to = NULL;
        curl_easy_getinfo(d->curl, CURLINFO_RESPONSE_CODE, ret_status);
        curl_easy_getinfo(d->curl, CURLINFO_REDIRECT_URL, &to);
        if (*ret_code != CURLE_OK || *ret_status / 100 != 3 || to == NULL) {
            return BL_OK;
        }
        if (hop == MAX_REDIRECTS) {
            BL_FAIL(err, BL_ELIMIT, "more than %d redirects", MAX_REDIRECTS);
        }
        n = snprintf(url, sizeof(url), "%s", to);
    }
    BL_FAIL(err, BL_ELIMIT, "a URL is longer than %zu bytes", sizeof(url) - 1);
}

/* ---- trying again ------------------------------------------------------------------------------ */

static bool may_pass(CURLcode c) {
    switch (c) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_WEIRD_SERVER_REPLY:
        return true;
    default:
        return false;
    }
}

typedef enum { OUTCOME_DONE, OUTCOME_RETRY, OUTCOME_FATAL } outcome;

static outcome fail_with(bl_err *err, outcome o, bl_code code, const char *name, const char *what) {
    (void)bl_err_set(err, code, __FILE__, __LINE__, "cannot fetch '%s': %s", name, what);
    return o;
}

static outcome judge(exchange *x, CURLcode c, long status, const char *name, bl_err *err) {
    char text[64];
    if (c == CURLE_ABORTED_BY_CALLBACK || cancelled(x->d)) {
        return fail_with(err, OUTCOME_FATAL, BL_ECANCEL, name, "interrupted");
    }
    if (x->sink_rc != BL_OK) {
        *err = x->sink_err;
        return x->restart ? OUTCOME_RETRY : OUTCOME_FATAL;
    }
    if (c != CURLE_OK) {
        const char *what = x->d->curl_message[0] != '\0' ? x->d->curl_message : curl_easy_strerror(c);
        return fail_with(err, may_pass(c) ? OUTCOME_RETRY : OUTCOME_FATAL, BL_EIO, name, what);
    }
    if (status / 100 == 2) {
        const part_file *p = x->part;
        if (p != NULL && p->r->has_size && p->n_bytes < p->r->size_bytes) {
            return fail_with(err, OUTCOME_RETRY, BL_EIO, name, "the answer ended early");
        }
        return OUTCOME_DONE;
    }
    snprintf(text, sizeof(text), "the server answers %ld", status);
    if (status == 416) {
        x->restart = true;
        return fail_with(err, OUTCOME_RETRY, BL_EIO, name, text);
    }
    if (status == 408 || status == 429 || status >= 500) {
        return fail_with(err, OUTCOME_RETRY, BL_EIO, name, text);
    }
    bl_code code = status == 404 ? BL_ENOTFOUND : status == 401 || status == 403 ? BL_EINVAL : BL_EIO;
    return fail_with(err, OUTCOME_FATAL, code, name, text);
}

/* False when cancelled meanwhile. */
static bool pause_ms(const bl_downloader *d, uint64_t ms) {
    uint64_t end = bl_clock_mono_ns() + ms * 1000000u;
    while (!cancelled(d) && bl_clock_mono_ns() < end) {
        struct timespec t = {.tv_nsec = 20000000};
        (void)nanosleep(&t, NULL);
    }
    return !cancelled(d);
}

static uint64_t next_delay_ms(bl_downloader *d, uint32_t attempt, uint32_t retry_after_s) {
    uint64_t ms = BL_MIN((uint64_t)d->o.retry_delay_ms << BL_MIN(attempt, 16u), (uint64_t)MAX_DELAY_MS);
    ms = ms * 3 / 4 + bl_rng_next(&d->rng) % (ms / 2 + 1);
    return BL_MAX(ms, (uint64_t)retry_after_s * 1000);
}

static bl_code fetch(bl_downloader *d, const char *url, const char *name, bl_buf *text, part_file *part,
                     long *ret_status, bl_err *err) {
    bl_err local;
    err = err != NULL ? err : &local;
    size_t text_start = text != NULL ? text->len : 0;
    uint32_t attempt = 0;
    for (uint32_t tries = 0; tries < MAX_TRIES; tries++) {
        uint64_t had = part != NULL ? part->n_bytes : 0;
        exchange x = {.d = d, .text = text, .part = part};
        CURLcode c = CURLE_OK;
        long status = 0;
        BL_TRY(exchange_run(&x, url, &c, &status, err));
        *ret_status = status;
        outcome o = judge(&x, c, status, name, err);
        if (o == OUTCOME_DONE) {
            return BL_OK;
        }
        if (o == OUTCOME_FATAL) {
            return err->code;
        }
        if (part != NULL && x.restart) {
            BL_TRY(part_restart(part, err));
        }
        if (text != NULL && text->len > text_start) {
            text->len = text_start;
            text->data[text_start] = '\0';
        }
        attempt = part != NULL && part->n_bytes > had ? 0 : attempt + 1;
        if (attempt >= d->o.max_attempts) {
            return bl_err_wrap(err, err->code, "after %u attempts", attempt);
        }
        uint64_t delay = next_delay_ms(d, attempt > 0 ? attempt - 1 : 0, x.retry_after_s);
        if (d->o.note != NULL) {
            char line[320];
            snprintf(line, sizeof(line), "%s; trying again in %.1f s", err->msg, (double)delay / 1000);
            d->o.note(d->o.note_user, line);
        }
        if (!pause_ms(d, delay)) {
            BL_FAIL(err, BL_ECANCEL, "cannot fetch '%s': interrupted", name);
        }
    }
    BL_FAIL(err, BL_ELIMIT, "cannot fetch '%s': the server breaks off again and again", name);
}

bl_code bl_download_text(bl_downloader *d, const char *url, bl_buf *ret, long *ret_status, bl_err *err) {
    long status = 0;
    bl_code rc = fetch(d, url, url, ret, NULL, &status, err);
    if (ret_status != NULL) {
        *ret_status = status;
    }
    return rc;
}

bl_code bl_download_file(bl_downloader *d, const bl_download_file_request *request, long *ret_status,
                         bl_err *err) {
    bl_download_file_request r = *request;
    if (r.name == NULL) {
        r.name = r.path;
    }
    part_file *p = bl_alloc(sizeof(*p));
    if (p == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a download");
    }
    long status = 0;
    bl_code rc = part_open(p, &r, err);
    bool complete = rc == BL_OK && r.has_size && p->n_bytes == r.size_bytes;
    if (rc == BL_OK && !complete) {
        rc = fetch(d, r.url, r.name, NULL, p, &status, err);
        if (rc == BL_ECORRUPT) {
            part_delete(p);
        }
    }
    if (rc == BL_OK) {
        rc = part_finish(p, err);
    }
    part_close(p);
    bl_free(p);
    if (ret_status != NULL) {
        *ret_status = status;
    }
    return rc;
}
