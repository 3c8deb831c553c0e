/* HTTP/1.1 parsing: every refusal with its status, and the same result for every split of the input. */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "net/http1.h"

#define HOST "Host: h\r\n"

static int status_of(const char *text, bl_http_head *h) {
    bl_err err;
    int status = 0;
    ptrdiff_t n = bl_http_find_head(text, strlen(text), 0);
    if (n < 0) {
        return 400;
    }
    if (n == 0) {
        return -1;
    }
    return bl_http_parse_head(text, (size_t)n, h, &status, &err) == BL_OK ? 200 : status;
}

static void test_statuses(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {200, "GET / HTTP/1.1\r\n" HOST "\r\n"},
        {200, "GET / HTTP/1.0\r\n\r\n"},
        {200, "GET / HTTP/1.9\r\n" HOST "\r\n"},
        {200, "BREW /pot HTTP/1.1\r\n" HOST "\r\n"},
        {200, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n"},
        {200, "GET http://h/a?b HTTP/1.1\r\n" HOST "\r\n"},
        {200, "GET / HTTP/1.1\r\nhOST:h\r\nX-Empty:\r\n\r\n"},
        {200, "POST / HTTP/1.1\r\n" HOST "Content-Length: 000000000000000012\r\n\r\n"},
        {-1, "GET / HTTP/1.1\r\n" HOST},
        {-1, "GET / HTTP/1.1\r\n" HOST "\r"},
        {400, "GET / HTTP/1.1\n" HOST "\n"},
        {400, "GET / HTTP/1.1\r\n" HOST "A: b\n\r\n"},
        {400, "GET / HTTP/1.1\rX" HOST "\r\n"},
        {400, "\r\nGET / HTTP/1.1\r\n\r\n"}, /* the server skips empty lines itself */
        {400, " GET / HTTP/1.1\r\n" HOST "\r\n"},
        {400, "\x16\x03\x01\x02"},
        {400, "GET / HTTP/1.1\r\n" HOST "A: \x01\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST "A: \x7f\r\n\r\n"},
        {400, "GET /\r\n" HOST "\r\n"},
        {400, "GET\r\n" HOST "\r\n"},
        {400, "GET  HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET / HTTP/1.1 \r\n" HOST "\r\n"},
        {400, "GET / http/1.1\r\n" HOST "\r\n"},
        {400, "GET / HTTP/11\r\n" HOST "\r\n"},
        {400, "GET / a HTTP/1.1\r\n" HOST "\r\n"},
        {400, "G(T / HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET x HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET * HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET http://h HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n"},
        {505, "GET / HTTP/2.0\r\n" HOST "\r\n"},
        {505, "GET / HTTP/0.9\r\n" HOST "\r\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST HOST "\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST " folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST "nocolon\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST ": v\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST "Authorization: a\r\nauthorization: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" HOST
              "X-Darkbloom-First-Content-Ms: 1\r\nX-Darkbloom-First-Content-Ms: 2\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: -5\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 5x\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x5\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 9999999999999999999\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {417, "POST / HTTP/1.1\r\n" HOST "Expect: tea\r\n\r\n"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_http_head h;
        int got = status_of(cases[i].text, &h);
        if (got != cases[i].status) {
            fail_msg("case %zu: status %d, expected %d", i, got, cases[i].status);
        }
    }
}

static void test_limits(void **state) {
    (void)state;
    char text[16384];
    bl_http_head h;
    int n =
        snprintf(text, sizeof text, "GET /%0*d HTTP/1.1\r\n" HOST "\r\n", BL_HTTP_MAX_TARGET_BYTES - 1, 0);
    assert_true(n > 0);
    assert_int_equal(status_of(text, &h), 200);
    (void)snprintf(text, sizeof text, "GET /%0*d HTTP/1.1\r\n" HOST "\r\n", BL_HTTP_MAX_TARGET_BYTES, 0);
    assert_int_equal(status_of(text, &h), 414);
    for (int extra = 0; extra < 2; extra++) {
        size_t len = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\n" HOST);
        for (int i = 0; i < BL_HTTP_MAX_HEADERS - 1 + extra; i++) {
            len += (size_t)snprintf(text + len, sizeof text - len, "a%d: b\r\n", i);
        }
        (void)snprintf(text + len, sizeof text - len, "\r\n");
        assert_int_equal(status_of(text, &h), extra ? 431 : 200);
    }
}

static void assert_slice(bl_http_slice s, const char *want) {
    assert_non_null(s.ptr);
    assert_int_equal(s.len, strlen(want));
    assert_memory_equal(s.ptr, want, s.len);
}

static void test_fields(void **state) {
    (void)state;
    bl_http_head h;
    assert_int_equal(
        status_of("POST /v1/x%20y?q=1?2 HTTP/1.1\r\nHost:  example:80 \r\nAuthorization:\tBearer k\t\r\n"
                  "Content-Length: 17\r\nContent-Type: a/b\r\nOrigin: http://o\r\nExpect: 100-Continue\r\n"
                  "Connection: foo, Close\r\n\r\n",
                  &h),
        200);
    assert_int_equal(h.method, BL_HTTP_POST);
    assert_slice(h.path, "/v1/x%20y");
    assert_slice(h.query, "q=1?2");
    assert_slice(h.host, "example:80");
    assert_slice(h.authorization, "Bearer k");
    assert_slice(h.content_type, "a/b");
    assert_slice(h.origin, "http://o");
    assert_true(h.has_length && h.expect_continue && !h.chunked && !h.keep_alive);
    assert_int_equal(h.content_length, 17);

    assert_int_equal(status_of("GET / HTTP/1.1\r\n" HOST
                               "X-Request-ID: r-1\r\nx-darkbloom-first-content-ms: 250\r\n\r\n",
                               &h),
                     200);
    assert_slice(h.request_id, "r-1");
    assert_slice(h.first_content_ms, "250");
    assert_int_equal(status_of("GET / HTTP/1.1\r\n" HOST
                               "X-Request-Id: a\r\nX-Request-Id: b\r\nX-Request-Id: c\r\n\r\n",
                               &h),
                     200);
    assert_null(h.request_id.ptr); /* neither of them */

    assert_int_equal(status_of("GET http://h:1/p HTTP/1.1\r\n" HOST "\r\n", &h), 200);
    assert_slice(h.path, "/p");
    assert_null(h.query.ptr);
    assert_true(h.keep_alive);
    assert_int_equal(status_of("GET / HTTP/1.0\r\n\r\n", &h), 200);
    assert_false(h.keep_alive);
    assert_int_equal(status_of("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &h), 200);
    assert_true(h.keep_alive);
    assert_int_equal(status_of("get / HTTP/1.1\r\n" HOST "\r\n", &h), 200);
    assert_int_equal(h.method, BL_HTTP_METHOD_OTHER); /* methods are case-sensitive */
    assert_string_equal(bl_http_method_name(h.method), "OTHER");
    assert_string_equal(bl_http_reason(429), "Too Many Requests");
    assert_string_equal(bl_http_reason(999), "Unknown");
}

/* However the bytes arrive, the end of the head is found at the same place. */
static void test_find_head_splits(void **state) {
    (void)state;
    static const char text[] = "POST / HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhiGET";
    ptrdiff_t whole = bl_http_find_head(text, sizeof text - 1, 0);
    assert_int_equal(whole, sizeof text - 1 - 5);
    for (size_t a = 0; a < (size_t)whole; a++) {
        assert_int_equal(bl_http_find_head(text, a, 0), 0);
        assert_int_equal(bl_http_find_head(text, sizeof text - 1, a), whole);
    }
    size_t from = 0;
    for (size_t n = 1; n < (size_t)whole; n++) {
        assert_int_equal(bl_http_find_head(text, n, from), 0);
        from = n;
    }
    assert_int_equal(bl_http_find_head(text, (size_t)whole, from), whole);
}

static bl_code unescape(const char *in, char *out, size_t size) {
    bl_http_slice s = {in, strlen(in)};
    return bl_http_unescape(s, out, size, NULL);
}

static void test_unescape(void **state) {
    (void)state;
    char out[8];
    assert_int_equal(unescape("a%2Fb%c3%A9", out, sizeof out), BL_OK);
    assert_string_equal(out, "a/b\xc3\xa9");
    assert_int_equal(unescape("%", out, sizeof out), BL_EINVAL);
    assert_int_equal(unescape("%4", out, sizeof out), BL_EINVAL);
    assert_int_equal(unescape("%4g", out, sizeof out), BL_EINVAL);
    assert_int_equal(unescape("a%00b", out, sizeof out), BL_EINVAL);
    assert_int_equal(unescape("a%7f", out, sizeof out), BL_EINVAL);
    assert_int_equal(unescape("1234567", out, sizeof out), BL_OK);
    assert_int_equal(unescape("12345678", out, sizeof out), BL_ELIMIT);
}

/* Feeds in pieces cut at `a` and `b`; *ret_rest is what follows the body. */
static bl_code decode(const char *in, size_t n, size_t a, size_t b, bl_buf *body, bool *ret_done,
                      size_t *ret_used) {
    bl_http_chunked c;
    bl_http_chunked_init(&c);
    size_t cuts[] = {a, b, n}, at = 0;
    *ret_done = false;
    for (size_t i = 0; i < 3 && !*ret_done; i++) {
        while (at < cuts[i] && !*ret_done) {
            size_t used = 0;
            bl_code rc = bl_http_chunked_feed(&c, in + at, cuts[i] - at, &used, ret_done, body, NULL);
            if (rc != BL_OK) {
                return rc;
            }
            at += used;
        }
    }
    *ret_used = at;
    return BL_OK;
}

static void test_chunked_splits(void **state) {
    (void)state;
    static const char in[] =
        "5\r\nhello\r\n1;x=\"y\"\r\n \r\n00A \r\nwonderful!\r\n0\r\nT: v\r\nU: w\r\n\r\nNEXT";
    size_t n = sizeof in - 1;
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            bl_buf body;
            bool done = false;
            size_t used = 0;
            bl_buf_init(&body, 64);
            assert_int_equal(decode(in, n, a, b, &body, &done, &used), BL_OK);
            assert_true(done);
            assert_int_equal(used, n - 4);
            assert_string_equal(bl_buf_str(&body), "hello wonderful!");
            bl_buf_done(&body);
        }
    }
}

static void test_chunked_refusals(void **state) {
    (void)state;
    static const struct {
        bl_code rc;
        const char *in;
    } cases[] = {
        {BL_EFORMAT, "\r\n"},
        {BL_EFORMAT, "x\r\n"},
        {BL_EFORMAT, "-1\r\n"},
        {BL_EFORMAT, " 5\r\nhello\r\n"},
        {BL_EFORMAT, "5\nhello\r\n"},
        {BL_EFORMAT, "5;a\nhello"},
        {BL_EFORMAT, "5\rXhello"},
        {BL_EFORMAT, "5\r\nhelloX\r\n"},
        {BL_EFORMAT, "5\r\nhello\rX"},
        {BL_EFORMAT, "fffffffffffffffff\r\n"},
        {BL_EFORMAT, "0\r\nT: v\n\r\n"},
        {BL_EFORMAT, "0\r\n\n"},
        {BL_EFORMAT, "0\r\n\rX"},
        {BL_ELIMIT, "41\r\n12345678901234567890123456789012345678901234567890123456789012345\r\n"},
        {BL_OK, "40\r\n1234567890123456789012345678901234567890123456789012345678901234\r\n0\r\n\r\n"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_buf body;
        bool done = false;
        size_t used = 0, n = strlen(cases[i].in);
        bl_buf_init(&body, 64);
        bl_code rc = decode(cases[i].in, n, n, n, &body, &done, &used);
        if (rc != cases[i].rc) {
            fail_msg("case %zu: code %d, expected %d", i, (int)rc, (int)cases[i].rc);
        }
        bl_buf_done(&body);
    }
    /* endless chunk extensions and trailers */
    char line[BL_HTTP_MAX_TRAILERS + 64];
    memset(line, 'a', sizeof line);
    memcpy(line, "1;", 2);
    bl_buf body;
    bool done = false;
    size_t used = 0;
    bl_buf_init(&body, 64);
    assert_int_equal(decode(line, BL_HTTP_MAX_CHUNK_LINE, 1, 2, &body, &done, &used), BL_OK);
    assert_int_equal(decode(line, BL_HTTP_MAX_CHUNK_LINE + 1, 1, 2, &body, &done, &used), BL_EFORMAT);
    memcpy(line, "0\r\n", 3);
    assert_int_equal(decode(line, sizeof line, 1, 2, &body, &done, &used), BL_EFORMAT);
    bl_buf_done(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_fields),           cmocka_unit_test(test_find_head_splits),
        cmocka_unit_test(test_unescape),         cmocka_unit_test(test_chunked_splits),
        cmocka_unit_test(test_chunked_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
