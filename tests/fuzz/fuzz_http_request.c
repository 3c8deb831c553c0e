/* A request's bytes: the head and a chunked body give the same result for every way of cutting them. The
 * first byte chooses the cut. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "net/http1.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_BODY 4096

static ptrdiff_t find_in_steps(const char *text, size_t n, size_t step) {
    for (size_t at = 0, from = 0; at < n;) {
        at = BL_MIN(at + step, n);
        ptrdiff_t r = bl_http_find_head(text, at, from);
        if (r != 0) {
            return r;
        }
        from = at;
    }
    return 0;
}

typedef struct {
    bl_code rc;
    bool done;
    size_t used;
    bl_buf body;
} decoded;

static void decode_in_steps(const char *text, size_t n, size_t step, decoded *ret) {
    bl_http_chunked c;
    bl_http_chunked_init(&c);
    memset(ret, 0, sizeof *ret);
    bl_buf_init(&ret->body, MAX_BODY);
    while (ret->used < n && !ret->done && ret->rc == BL_OK) {
        size_t used = 0, part = BL_MIN(step, n - ret->used);
        ret->rc = bl_http_chunked_feed(&c, text + ret->used, part, &used, &ret->done, &ret->body, NULL);
        if (ret->rc == BL_OK) {
            BL_ASSERT(used == part || ret->done);
            ret->used += used;
        }
    }
}

static void check_head(const char *text, size_t n) {
    bl_http_head h;
    bl_err err;
    int status = 0;
    if (bl_http_parse_head(text, n, &h, &status, &err) != BL_OK) {
        BL_ASSERT((status >= 400 && status < 500) || status == 501 || status == 505);
        BL_ASSERT(strcmp(bl_http_reason(status), "Unknown") != 0);
        return;
    }
    BL_ASSERT(h.path.len >= 1 && (h.path.ptr[0] == '/' || h.method == BL_HTTP_OPTIONS));
    BL_ASSERT(!(h.chunked && h.has_length));
    BL_ASSERT(h.version_minor == 0 || h.host.ptr);
    const bl_http_slice slices[] = {h.path, h.query, h.host, h.authorization, h.content_type, h.origin};
    for (size_t i = 0; i < BL_COUNTOF(slices); i++) {
        BL_ASSERT(!slices[i].ptr || (slices[i].ptr >= text && slices[i].ptr + slices[i].len <= text + n));
    }
    char out[256];
    if (bl_http_unescape(h.path, out, sizeof out, NULL) == BL_OK) {
        BL_ASSERT(strlen(out) <= h.path.len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    size_t n = size - 1, step = (size_t)data[0] % 64 + 1;
    ptrdiff_t head = bl_http_find_head(text, n, 0);
    BL_ASSERT(find_in_steps(text, n, step) == head);
    size_t body = 0;
    if (head > 0) {
        check_head(text, (size_t)head);
        body = (size_t)head;
    }
    decoded whole, cut;
    decode_in_steps(text + body, n - body, n + 1, &whole);
    decode_in_steps(text + body, n - body, step, &cut);
    BL_ASSERT(whole.rc == cut.rc && whole.done == cut.done);
    if (whole.rc == BL_OK) {
        BL_ASSERT(whole.used == cut.used && whole.body.len == cut.body.len);
        BL_ASSERT(whole.body.len == 0 || memcmp(whole.body.data, cut.body.data, whole.body.len) == 0);
    }
    bl_buf_done(&whole.body);
    bl_buf_done(&cut.body);
    return 0;
}
