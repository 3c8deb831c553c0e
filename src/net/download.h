/* Downloads over HTTP(S) through libcurl: small documents into memory, large files into place.
 *
 * A file arrives in PATH.part and is renamed to PATH only when its size and hash are as promised, so PATH is
 * never half a file. An interrupted download goes on where it stopped, in this process or the next (Range
 * with If-Range; the entity tag lives in PATH.part.etag). Failures that may pass (connection, 408, 429, 5xx,
 * a body cut short) are tried again with growing pauses. Redirects are followed here, not by libcurl: the
 * token goes to the first URL's own scheme, host and port and nowhere else, is never sent unencrypted beyond
 * this machine, and https is never left for http. Proxy variables are honoured by libcurl itself. One
 * downloader belongs to one thread.
 */
#ifndef BL_NET_DOWNLOAD_H
#define BL_NET_DOWNLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef struct bl_downloader bl_downloader;

typedef struct {
    const char *token;           /* bearer token, or NULL; borrowed, never in messages */
    const char *user_agent;      /* borrowed; NULL: "darkbloom" */
    uint32_t connect_timeout_ms; /* 0: 15,000 */
    uint32_t stall_timeout_ms;   /* no byte for so long: try again. 0: 30,000 */
    uint32_t max_attempts;       /* in a row without a new byte. 0: 5 */
    uint32_t retry_delay_ms;     /* first pause, doubled each time up to 30 s. 0: 500 */
    const atomic_bool *cancel; /* set from a signal handler or another thread: BL_ECANCEL soon; may be NULL */
    /* One line for people, e.g. why a download is tried again; may be NULL. */
    void (*note)(void *user, const char *line);
    void *note_user;
} bl_download_options;

bl_code bl_downloader_new(const bl_download_options *o, bl_downloader **ret, bl_err *err) BL_MUST_CHECK;
void bl_downloader_free(bl_downloader *d);

/* GET into *ret (appended, within the buffer's maximum). The status of the last answer goes to *ret_status
 * (may be NULL) also on failure; 0: none came. A status that is not 2xx fails: 404 BL_ENOTFOUND, 401 and 403
 * BL_EINVAL, others BL_EIO. */
bl_code bl_download_text(bl_downloader *d, const char *url, bl_buf *ret, long *ret_status,
                         bl_err *err) BL_MUST_CHECK;

typedef enum {
    BL_HASH_NONE,
    BL_HASH_SHA256,
    BL_HASH_GIT_BLOB /* SHA-1 of "blob SIZE\0" and the content; needs the size */
} bl_hash_kind;

typedef struct {
    const char *url;
    const char *path; /* its folder exists */
    const char *name; /* for messages; NULL: path */
    bool has_size;
    uint64_t size_bytes;
    bl_hash_kind hash;
    const char *hash_hex; /* lower case */
    /* Called for every piece; total 0 when unknown. May be NULL. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_user;
} bl_download_file_request;

/* Also BL_ECORRUPT (size or hash differ: the partial file is deleted), BL_ECANCEL (the partial file stays),
 * BL_EIO (network or disk). */
bl_code bl_download_file(bl_downloader *d, const bl_download_file_request *r, long *ret_status,
                         bl_err *err) BL_MUST_CHECK;

/* Hash of a file as lower-case hex in ret[65]. */
bl_code bl_hash_file(const char *path, bl_hash_kind kind, char ret[65], bl_err *err) BL_MUST_CHECK;

/* Percent-encodes a path or one of its components: keep_slash leaves '/' as it is. */
bl_code bl_url_append_escaped(bl_buf *url, const char *s, bool keep_slash, bl_err *err) BL_MUST_CHECK;

#endif
