#include "net/http1.h"

#include <string.h>
#include <strings.h>

static const char *const method_names[BL_HTTP_METHOD__MAX] = {"GET",    "HEAD",  "POST",    "PUT",
                                                              "DELETE", "PATCH", "OPTIONS", "OTHER"};

const char *bl_http_method_name(bl_http_method m) {
    return (unsigned)m < BL_HTTP_METHOD__MAX ? method_names[m] : "OTHER";
}

/* RFC 9110 §5.6.2 tchar */
static bool is_token_char(char ch) {
    if ((ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) {
        return true;
    }
    return ch != '\0' && strchr("!#$%&'*+-.^_`|~", ch) != NULL;
}

static bool slice_is(bl_http_slice s, const char *lit) {
    return s.ptr && strlen(lit) == s.len && strncasecmp(s.ptr, lit, s.len) == 0;
}

ptrdiff_t bl_http_find_head(const char *buf, size_t n, size_t from) {
    for (size_t i = from; i < n; i++) {
        unsigned char ch = (unsigned char)buf[i];
        if (ch == '\n') {
            if (i == 0 || buf[i - 1] != '\r') {
                return -1;
            }
            if (i >= 3 && buf[i - 2] == '\n') {
                return (ptrdiff_t)(i + 1);
            }
        } else if (i > 0 && buf[i - 1] == '\r') {
            return -1; /* a CR that no LF follows */
        } else if (ch == 0x7f || (ch < 0x20 && ch != '\t' && ch != '\r')) {
            return -1;
        } else if (i == 0 && !is_token_char((char)ch)) {
            return -1; /* a TLS hello, a blank line, junk: no need to wait for the end */
        }
    }
    return 0;
}

/* Cuts the next CRLF line off *p. The caller knows that one exists before end. */
static bl_http_slice next_line(const char **p, const char *end) {
    bl_http_slice s = {*p, 0};
    const char *lf = memchr(*p, '\n', (size_t)(end - *p));
    if (!lf) {
        lf = end;
    }
    s.len = (size_t)(lf - *p);
    if (s.len > 0 && s.ptr[s.len - 1] == '\r') {
        s.len--;
    }
    *p = lf < end ? lf + 1 : end;
    return s;
}

static bl_code parse_target(bl_http_slice target, bl_http_head *ret, int *ret_status, bl_err *err) {
    *ret_status = 400;
    if (target.len == 0) {
        BL_FAIL(err, BL_EFORMAT, "request target is empty");
    }
    if (target.len > BL_HTTP_MAX_TARGET_BYTES) {
        *ret_status = 414;
        BL_FAIL(err, BL_ELIMIT, "request target of %zu bytes is longer than %d", target.len,
                BL_HTTP_MAX_TARGET_BYTES);
    }
    for (size_t i = 0; i < target.len; i++) {
        unsigned char ch = (unsigned char)target.ptr[i];
        if (ch <= 0x20 || ch >= 0x7f) {
            BL_FAIL(err, BL_EFORMAT, "request target holds byte 0x%02x at offset %zu", ch, i);
        }
    }
    if (target.ptr[0] != '/' && ret->method == BL_HTTP_OPTIONS && target.len == 1 && target.ptr[0] == '*') {
        ret->path = target;
        return BL_OK;
    }
    /* absolute form (RFC 9112 §3.2.2): the authority is dropped, Host decides */
    if (target.len > 7 && strncasecmp(target.ptr, "http://", 7) == 0) {
        const char *slash = memchr(target.ptr + 7, '/', target.len - 7);
        if (!slash) {
            BL_FAIL(err, BL_EFORMAT, "request target has no path");
        }
        target.len -= (size_t)(slash - target.ptr);
        target.ptr = slash;
    }
    if (target.ptr[0] != '/') {
        BL_FAIL(err, BL_EFORMAT, "request target does not begin with '/'");
    }
    const char *mark = memchr(target.ptr, '?', target.len);
    ret->path = target;
    if (mark) {
        ret->path.len = (size_t)(mark - target.ptr);
        ret->query.ptr = mark + 1;
        ret->query.len = target.len - ret->path.len - 1;
    }
    return BL_OK;
}

static bl_code parse_request_line(bl_http_slice line, bl_http_head *ret, int *ret_status, bl_err *err) {
    *ret_status = 400;
    const char *sp1 = memchr(line.ptr, ' ', line.len);
    if (!sp1 || sp1 == line.ptr) {
        BL_FAIL(err, BL_EFORMAT, "request line has no method and target");
    }
    size_t method_len = (size_t)(sp1 - line.ptr);
    for (size_t i = 0; i < method_len; i++) {
        if (!is_token_char(line.ptr[i])) {
            BL_FAIL(err, BL_EFORMAT, "method holds byte 0x%02x", (unsigned char)line.ptr[i]);
        }
    }
    bl_http_slice target = {sp1 + 1, line.len - method_len - 1};
    const char *sp2 = memchr(target.ptr, ' ', target.len);
    if (!sp2) {
        BL_FAIL(err, BL_EFORMAT, "request line has no HTTP version");
    }
    bl_http_slice version = {sp2 + 1, target.len - (size_t)(sp2 - target.ptr) - 1};
    target.len = (size_t)(sp2 - target.ptr);
    if (version.len != 8 || memcmp(version.ptr, "HTTP/", 5) != 0 || version.ptr[6] != '.' ||
        version.ptr[5] < '0' || version.ptr[5] > '9' || version.ptr[7] < '0' || version.ptr[7] > '9') {
        BL_FAIL(err, BL_EFORMAT, "request line does not end with an HTTP version");
    }
    if (version.ptr[5] != '1') {
        *ret_status = 505;
        BL_FAIL(err, BL_ENOTSUP, "HTTP version %c.%c is not supported; HTTP/1.1 and HTTP/1.0 are",
                version.ptr[5], version.ptr[7]);
    }
    ret->version_minor = version.ptr[7] == '0' ? 0 : 1;
    ret->method = BL_HTTP_METHOD_OTHER;
    for (unsigned m = 0; m < BL_HTTP_METHOD_OTHER; m++) {
        if (strlen(method_names[m]) == method_len && memcmp(method_names[m], line.ptr, method_len) == 0) {
            ret->method = (bl_http_method)m;
        }
    }
    return parse_target(target, ret, ret_status, err);
}

static bl_code parse_length(bl_http_slice v, uint64_t *ret, bl_err *err) {
    uint64_t x = 0;
    if (v.len == 0 || v.len > 18) {
        BL_FAIL(err, BL_EFORMAT, "Content-Length has %zu characters; 1 to 18 digits are allowed", v.len);
    }
    for (size_t i = 0; i < v.len; i++) {
        if (v.ptr[i] < '0' || v.ptr[i] > '9') {
            BL_FAIL(err, BL_EFORMAT, "Content-Length is not a decimal number");
        }
        x = x * 10 + (uint64_t)(v.ptr[i] - '0');
    }
    *ret = x;
    return BL_OK;
}

/* Connection holds a comma-separated list of options. */
static bool list_has(bl_http_slice list, const char *lit) {
    const char *p = list.ptr, *end = list.ptr + list.len;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        bl_http_slice item = {p, (size_t)(stop - p)};
        while (item.len > 0 && (item.ptr[0] == ' ' || item.ptr[0] == '\t')) {
            item.ptr++;
            item.len--;
        }
        while (item.len > 0 && (item.ptr[item.len - 1] == ' ' || item.ptr[item.len - 1] == '\t')) {
            item.len--;
        }
        if (slice_is(item, lit)) {
            return true;
        }
        p = comma ? comma + 1 : end;
    }
    return false;
}

static bl_code keep_one(bl_http_slice *slot, bl_http_slice value, const char *name, bl_err *err) {
    if (slot->ptr) {
        BL_FAIL(err, BL_EFORMAT, "%s is given twice", name);
    }
    *slot = value;
    return BL_OK;
}

static bl_code take_field(bl_http_slice name, bl_http_slice value, bl_http_head *ret, int *ret_status,
                          bl_err *err) {
    *ret_status = 400;
    if (slice_is(name, "host")) {
        return keep_one(&ret->host, value, "Host", err);
    }
    if (slice_is(name, "authorization")) {
        return keep_one(&ret->authorization, value, "Authorization", err);
    }
    if (slice_is(name, "content-type")) {
        return keep_one(&ret->content_type, value, "Content-Type", err);
    }
    if (slice_is(name, "origin")) {
        return keep_one(&ret->origin, value, "Origin", err);
    }
    if (slice_is(name, "x-darkbloom-first-content-ms")) {
        return keep_one(&ret->first_content_ms, value, "X-Darkbloom-First-Content-Ms", err);
    }
    if (slice_is(
            name,
            "x-request-id")) { /* proxies may add their own: no reason to refuse, but neither one is it */
        ret->request_ids = ret->request_ids || ret->request_id.ptr;
        ret->request_id = ret->request_ids ? (bl_http_slice){NULL, 0} : value;
        return BL_OK;
    }
    if (slice_is(name, "content-length")) {
        if (ret->has_length) {
            BL_FAIL(err, BL_EFORMAT, "Content-Length is given twice");
        }
        ret->has_length = true;
        return parse_length(value, &ret->content_length, err);
    }
    if (slice_is(name, "transfer-encoding")) {
        if (ret->chunked || !slice_is(value, "chunked")) {
            *ret_status = 501;
            BL_FAIL(err, BL_ENOTSUP, "Transfer-Encoding is not exactly 'chunked'");
        }
        ret->chunked = true;
    } else if (slice_is(name, "connection")) {
        if (list_has(value, "close")) {
            ret->keep_alive = false;
        } else if (list_has(value, "keep-alive") && ret->version_minor == 0) {
            ret->keep_alive = true;
        }
    } else if (slice_is(name, "expect")) {
        if (!slice_is(value, "100-continue")) {
            *ret_status = 417;
            BL_FAIL(err, BL_ENOTSUP, "Expect is not '100-continue'");
        }
        ret->expect_continue = ret->version_minor == 1;
    }
    return BL_OK;
}

static bl_code parse_field_line(bl_http_slice line, bl_http_head *ret, int *ret_status, bl_err *err) {
    *ret_status = 400;
    const char *colon = memchr(line.ptr, ':', line.len);
    if (!colon || colon == line.ptr) {
        BL_FAIL(err, BL_EFORMAT, "a header line has no name");
    }
    bl_http_slice name = {line.ptr, (size_t)(colon - line.ptr)};
    for (size_t i = 0; i < name.len; i++) {
        if (!is_token_char(name.ptr[i])) {
            BL_FAIL(err, BL_EFORMAT, "a header name holds byte 0x%02x", (unsigned char)name.ptr[i]);
        }
    }
    bl_http_slice value = {colon + 1, line.len - name.len - 1};
    while (value.len > 0 && (value.ptr[0] == ' ' || value.ptr[0] == '\t')) {
        value.ptr++;
        value.len--;
    }
    while (value.len > 0 && (value.ptr[value.len - 1] == ' ' || value.ptr[value.len - 1] == '\t')) {
        value.len--;
    }
    return take_field(name, value, ret, ret_status, err);
}

bl_code bl_http_parse_head(const char *buf, size_t n, bl_http_head *ret, int *ret_status, bl_err *err) {
    bl_http_head h;
    int status = 400;
    memset(&h, 0, sizeof h);
    const char *p = buf, *end = buf + n;
    bl_code rc = parse_request_line(next_line(&p, end), &h, &status, err);
    h.keep_alive = h.version_minor == 1;
    unsigned n_headers = 0;
    while (rc == BL_OK && p < end) {
        bl_http_slice line = next_line(&p, end);
        if (line.len == 0) {
            break;
        }
        if (++n_headers > BL_HTTP_MAX_HEADERS) {
            *ret_status = 431;
            BL_FAIL(err, BL_ELIMIT, "more than %d header lines", BL_HTTP_MAX_HEADERS);
        }
        rc = parse_field_line(line, &h, &status, err);
    }
    if (rc != BL_OK) {
        *ret_status = status;
        return rc;
    }
    *ret_status = 400;
    if (h.version_minor == 1 && !h.host.ptr) {
        BL_FAIL(err, BL_EFORMAT, "Host is missing");
    }
    if (h.chunked && h.has_length) {
        BL_FAIL(err, BL_EFORMAT, "both Content-Length and Transfer-Encoding are given");
    }
    if (h.chunked && h.version_minor == 0) {
        BL_FAIL(err, BL_EFORMAT, "Transfer-Encoding in an HTTP/1.0 request");
    }
    *ret = h;
    return BL_OK;
}

static int hex_value(char ch) {
    if (ch >= '0' && ch <= '9') {
        return ch - '0';
    }
    if (ch >= 'a' && ch <= 'f') {
        return ch - 'a' + 10;
    }
    return ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
}

bl_code bl_http_unescape(bl_http_slice s, char *out, size_t size, bl_err *err) {
    size_t len = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char ch = (unsigned char)s.ptr[i];
        if (ch == '%') {
            int hi = i + 1 < s.len ? hex_value(s.ptr[i + 1]) : -1;
            int lo = i + 2 < s.len ? hex_value(s.ptr[i + 2]) : -1;
            if (hi < 0 || lo < 0) {
                BL_FAIL(err, BL_EINVAL, "a '%%' escape of the path is not two hexadecimal digits");
            }
            ch = (unsigned char)(hi * 16 + lo);
            i += 2;
        }
        if (ch < 0x20 || ch == 0x7f) {
            BL_FAIL(err, BL_EINVAL, "the path holds control byte 0x%02x", ch);
        }
        if (len + 1 >= size) {
            BL_FAIL(err, BL_ELIMIT, "a path segment is longer than %zu bytes", size - 1);
        }
        out[len++] = (char)ch;
    }
    out[len] = '\0';
    return BL_OK;
}

enum {
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    TRAILER_START,
    TRAILER,
    TRAILER_LF,
    LAST_LF,
    DONE
};

void bl_http_chunked_init(bl_http_chunked *c) {
    memset(c, 0, sizeof *c);
}

/* One byte outside of chunk data. */
static bl_code chunk_step(bl_http_chunked *c, char ch, bl_err *err) {
    size_t line_max = c->state >= TRAILER_START ? BL_HTTP_MAX_TRAILERS : BL_HTTP_MAX_CHUNK_LINE;
    if (++c->line_bytes > line_max) {
        BL_FAIL(err, BL_EFORMAT, "a chunk header or the trailers are longer than %zu bytes", line_max);
    }
    int digit = hex_value(ch);
    switch (c->state) {
    case CHUNK_SIZE:
        if (digit >= 0) {
            if (c->left >> 56) {
                BL_FAIL(err, BL_EFORMAT, "a chunk size has too many digits");
            }
            c->left = c->left * 16 + (uint64_t)digit;
            c->has_digit = true;
            return BL_OK;
        }
        if (!c->has_digit || (ch != '\r' && ch != ';' && ch != ' ' && ch != '\t')) {
            BL_FAIL(err, BL_EFORMAT, "a chunk size is not a hexadecimal number");
        }
        c->state = ch == '\r' ? CHUNK_SIZE_LF : CHUNK_EXT;
        return BL_OK;
    case CHUNK_EXT:
        if (ch == '\n') {
            BL_FAIL(err, BL_EFORMAT, "a chunk header ends without CR");
        }
        c->state = ch == '\r' ? CHUNK_SIZE_LF : CHUNK_EXT;
        return BL_OK;
    case TRAILER_START:
        c->state = ch == '\r' ? LAST_LF : TRAILER;
        if (ch == '\n') {
            BL_FAIL(err, BL_EFORMAT, "a trailer line ends without CR");
        }
        return BL_OK;
    case TRAILER:
        if (ch == '\n') {
            BL_FAIL(err, BL_EFORMAT, "a trailer line ends without CR");
        }
        c->state = ch == '\r' ? TRAILER_LF : TRAILER;
        return BL_OK;
    case CHUNK_DATA_CR:
        if (ch != '\r') {
            BL_FAIL(err, BL_EFORMAT, "chunk data is longer than the chunk's size");
        }
        c->state = CHUNK_DATA_LF;
        return BL_OK;
    default: /* the states that wait for LF */
        if (ch != '\n') {
            BL_FAIL(err, BL_EFORMAT, "a CR of the chunked coding is not followed by LF");
        }
        break;
    }
    if (c->state == CHUNK_SIZE_LF) {
        c->state = c->left > 0 ? CHUNK_DATA : TRAILER_START;
        c->line_bytes = 0;
    } else if (c->state == CHUNK_DATA_LF) {
        bl_http_chunked_init(c);
    } else {
        c->state = c->state == TRAILER_LF ? TRAILER_START : DONE;
    }
    return BL_OK;
}

bl_code bl_http_chunked_feed(bl_http_chunked *c, const char *in, size_t n, size_t *ret_used, bool *ret_done,
                             bl_buf *body, bl_err *err) {
    size_t i = 0;
    while (i < n && c->state != DONE) {
        if (c->state != CHUNK_DATA) {
            BL_TRY(chunk_step(c, in[i], err));
            i++;
            continue;
        }
        size_t part = n - i;
        if (c->left < part) {
            part = (size_t)c->left;
        }
        BL_TRY(bl_buf_append(body, in + i, part, err));
        i += part;
        c->left -= part;
        if (c->left == 0) {
            c->state = CHUNK_DATA_CR;
            c->line_bytes = 0;
        }
    }
    *ret_used = i;
    *ret_done = c->state == DONE;
    return BL_OK;
}

const char *bl_http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } table[] = {
        {100, "Continue"},
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].status == status) {
            return table[i].reason;
        }
    }
    return "Unknown";
}
