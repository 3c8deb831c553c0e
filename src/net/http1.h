/* HTTP/1.1 request parsing: bytes in, structs out. No socket, no allocation (the chunked decoder appends to a
 * caller's buffer).
 *
 * Strict where laxness lets two readers of one byte stream disagree (RFC 9112 §11): one Host, one
 * Content-Length of digits, never both lengths, no folded lines, no space before a colon, no bare CR or LF,
 * no control bytes. Everything refused has a status.
 *
 * libwebsockets 4.1.6 has an HTTP/1 server role; net/ uses that library's event loop and raw sockets but not
 * the role. Measured on it: "Content-Length: -5" makes the body the next request, "5x" and a repeated length
 * are accepted, a chunked body is handed over undecoded, "Expect: 100-continue" is not answered, malformed
 * requests get HTML pages or a silent close, and a second request sent while the first is being answered
 * spins the loop (2.1 million HTTP_BODY_COMPLETION calls in 2 s) and hides the client's disconnect.
 */
#ifndef BL_NET_HTTP1_H
#define BL_NET_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

#define BL_HTTP_MAX_HEAD_BYTES   16384 /* request line and headers: SDKs send well under 2 KiB */
#define BL_HTTP_MAX_HEADERS      100
#define BL_HTTP_MAX_TARGET_BYTES 2048
#define BL_HTTP_MAX_CHUNK_LINE   256  /* size and extensions of one chunk */
#define BL_HTTP_MAX_TRAILERS     8192 /* bytes of trailer fields, read and dropped */

typedef enum {
    BL_HTTP_GET,
    BL_HTTP_HEAD,
    BL_HTTP_POST,
    BL_HTTP_PUT,
    BL_HTTP_DELETE,
    BL_HTTP_PATCH,
    BL_HTTP_OPTIONS,
    BL_HTTP_METHOD_OTHER,
    BL_HTTP_METHOD__MAX
} bl_http_method;

const char *bl_http_method_name(bl_http_method m); /* "OTHER" for unknown ones: never the client's bytes */

/* A slice of the head's bytes. ptr NULL: the field is absent. */
typedef struct {
    const char *ptr;
    size_t len;
} bl_http_slice;

typedef struct {
    bl_http_method method;
    unsigned version_minor; /* HTTP/1.0 or HTTP/1.1 */
    bl_http_slice path;     /* begins with '/', still percent-encoded; "*" only for OPTIONS */
    bl_http_slice query;    /* after '?', or absent */
    bool has_length;
    uint64_t content_length;
    bool chunked;
    bool keep_alive;
    bool expect_continue;
    bl_http_slice host, authorization, content_type, origin;
    bl_http_slice request_id;       /* X-Request-Id; absent too when it is given twice */
    bool request_ids;               /* it was given twice */
    bl_http_slice first_content_ms; /* X-Darkbloom-First-Content-Ms, as sent */
} bl_http_head;

/* Looks at buf[from..n) for the end of a head that starts at buf[0]. Returns the head's length including the
 * empty line, 0 when more bytes are needed, or -1 when a byte was met that no head can hold (answer 400).
 * `from` is where the last call stopped (its n), so the scan is linear however the bytes arrive. */
ptrdiff_t bl_http_find_head(const char *buf, size_t n, size_t from);

/* Parses a whole head (length as found above). On failure *ret_status is the HTTP status to answer with.
 * Slices point into buf. */
bl_code bl_http_parse_head(const char *buf, size_t n, bl_http_head *ret, int *ret_status,
                           bl_err *err) BL_MUST_CHECK;

/* Undoes %XX of a path segment into out (NUL-terminated). BL_EINVAL: bad escape, or a byte below 0x20 or
 * 0x7f. BL_ELIMIT: out is full. */
bl_code bl_http_unescape(bl_http_slice s, char *out, size_t size, bl_err *err) BL_MUST_CHECK;

/* Chunked transfer coding (RFC 9112 §7.1), fed in pieces of any size. */
typedef struct {
    uint8_t state;
    bool has_digit;
    uint64_t left;     /* bytes of the current chunk still to come */
    size_t line_bytes; /* of the current chunk-size line or trailer section */
} bl_http_chunked;

void bl_http_chunked_init(bl_http_chunked *c);
/* Appends decoded bytes to *body (its maximum bounds the whole: BL_ELIMIT). *ret_used: bytes of in consumed,
 * also when done in the middle. *ret_done true when the last chunk and the trailers were read. BL_EFORMAT for
 * a broken coding. */
bl_code bl_http_chunked_feed(bl_http_chunked *c, const char *in, size_t n, size_t *ret_used, bool *ret_done,
                             bl_buf *body, bl_err *err) BL_MUST_CHECK;

/* "OK", "Too Many Requests"...; "Unknown" for codes this project does not send. */
const char *bl_http_reason(int status);

#endif
