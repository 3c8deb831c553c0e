/* Connections and exchanges of http_server.h over libwebsockets' raw sockets.
 *
 * Life of a connection: HEAD (collecting a head, or idle) -> BODY -> BUSY (the owner works) -> FLUSH (the
 * answer goes out)
 * -> HEAD again or LINGER (our side is shut, input is dropped until the client closes) -> closed. Everything
 * here belongs to the loop thread, but for the flag and the wake-up call of bl_http_server_wake and _quit.
 */
#include "net/http_server.h"

#include <errno.h>
#include <libwebsockets.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/os.h"

#define READ_BYTES     16384 /* one recv */
#define WRITE_BYTES    16384 /* one send: what libwebsockets may have to copy when the socket takes less */
#define IN_PAUSE_BYTES 32768 /* pipelined bytes beyond which we stop reading */
#define IN_MAX_BYTES   (IN_PAUSE_BYTES + READ_BYTES)
/* Larger output memory is given back after the response. */
#define OUT_KEEP_BYTES 262144u
/* One whole response. */
#define OUT_MAX_BYTES (256u << 20)
/* What one step may queue beyond max_output_bytes: the last events of a stream. */
#define OUT_BURST_BYTES (8u << 20)
/* Left to itself the kernel holds up to 4 MB for each reader that does not read. */
#define KERNEL_SEND_BYTES 262144
/* Connections beyond the maximum that still get a 503 instead of a close. */
#define REFUSE_SPARE   32u
#define ACCEPT_AT_ONCE 16

typedef enum { ST_HEAD, ST_BODY, ST_BUSY, ST_FLUSH, ST_LINGER } conn_state;

struct bl_http_exchange {
    bl_http_server *server;
    struct lws *wsi;
    struct bl_http_exchange *prev, *next;
    conn_state state;
    bl_buf in;
    size_t scanned;  /* of in, by bl_http_find_head */
    bl_buf head_buf; /* the head that the slices of `head` point into */
    bl_http_head head;
    bl_buf body;
    bl_http_chunked chunked;
    bl_buf out;
    size_t out_off;
    bool has_head; /* `head` is of the current request */
    bool owned; /* on_head was called and the exchange did not end: on_abort is due when the client leaves */
    bool got_bytes; /* of the head being collected */
    bool close_after;
    bool chunked_out; /* the streaming response is chunked */
    bool streaming;
    bool want_room;
    bool rx_paused;
    bool dead;
    bool body_unread;
    uint64_t body_counted; /* of this body in server->body_bytes */
    uint64_t deadline_ns;  /* of the state, 0: none */
    uint64_t body_end_ns;
    uint64_t linger_end_ns;
    uint64_t write_deadline_ns; /* while output waits */
    void *user;
};

struct bl_http_server {
    bl_http_server_options o;
    char bind[64];
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws *listener;
    int listen_fd; /* until adopted */
    uint16_t port;
    bool listener_paused;
    bool draining;
    uint32_t n_conns;
    uint64_t body_bytes; /* of all bodies that are arriving */
    uint64_t n_dropped_readers;
    bl_http_exchange *conns;
    lws_sorted_usec_list_t tick;
    atomic_bool quit; /* release in _quit, acquire in _run */
    atomic_bool wake; /* acq_rel in _wake, acq_rel in the loop */
};

void bl_http_server_options_init(bl_http_server_options *o) {
    memset(o, 0, sizeof *o);
    o->bind = "127.0.0.1";
    o->port = 8000;
    o->max_connections = 512;
    o->max_body_bytes = 16u << 20;
    o->max_all_bodies_bytes = 256u << 20;
    o->max_output_bytes = 256u << 10;
    o->head_timeout_ms = 10000;
    o->idle_timeout_ms = 60000;
    o->body_idle_timeout_ms = 15000;
    o->body_timeout_ms = 120000;
    o->write_timeout_ms = 60000;
    o->linger_timeout_ms = 3000;
    o->linger_total_ms = 30000;
}

static uint64_t after_ms(uint32_t ms) {
    return bl_clock_mono_ns() + (uint64_t)ms * 1000000u;
}

static size_t out_pending(const bl_http_exchange *c) {
    return c->out.len - c->out_off;
}

/* Closes soon, from whatever call we are in. */
static void conn_kill(bl_http_exchange *c) {
    if (!c->dead) {
        c->dead = true;
        lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    }
}

static void conn_want_write(bl_http_exchange *c) {
    if (c->write_deadline_ns == 0) {
        c->write_deadline_ns = after_ms(c->server->o.write_timeout_ms);
    }
    lws_callback_on_writable(c->wsi);
}

static void queue_out(bl_http_exchange *c, const void *data, size_t n) {
    if (bl_buf_append(&c->out, data, n, NULL) != BL_OK) {
        conn_kill(c);
        return;
    }
    conn_want_write(c);
}

/* "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110 §5.6.7), whatever the locale. */
static void http_date(char out[40]) {
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)bl_clock_wall_s();
    struct tm t;
    (void)gmtime_r(&now, &t);
    lws_snprintf(out, 40, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * t.tm_wday, t.tm_mday,
                 months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

static void queue_head(bl_http_exchange *c, int status, const char *content_type, const char *headers,
                       const char *framing) {
    char date[40];
    http_date(date);
    bl_code rc =
        bl_buf_printf(&c->out, NULL, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, bl_http_reason(status), date);
    if (rc == BL_OK && content_type) {
        rc = bl_buf_printf(&c->out, NULL, "Content-Type: %s\r\n", content_type);
    }
    if (rc == BL_OK) {
        bool old_client = c->has_head && c->head.version_minor == 0;
        const char *conn = c->close_after ? "Connection: close\r\n"
                           : old_client   ? "Connection: keep-alive\r\n"
                                          : "";
        rc = bl_buf_printf(&c->out, NULL, "%s%s%s\r\n", headers, framing, conn);
    }
    if (rc != BL_OK) {
        conn_kill(c);
        return;
    }
    conn_want_write(c);
}

/* The arriving body's share of the server's budget; 0 when it was handed over or dropped. */
static void count_body(bl_http_exchange *c, uint64_t bytes) {
    c->server->body_bytes += bytes - c->body_counted;
    c->body_counted = bytes;
}

static void conn_done_answering(bl_http_exchange *c) {
    c->owned = false;
    c->user = NULL;
    c->streaming = false;
    c->want_room = false;
    c->state = ST_FLUSH;
    c->deadline_ns = 0;
    count_body(c, 0);
    bl_buf_done(&c->body);
    bl_buf_init(&c->body, (size_t)c->server->o.max_body_bytes);
    conn_want_write(c);
}

static void choose_close(bl_http_exchange *c) {
    c->body_unread = c->state == ST_HEAD || c->state == ST_BODY;
    c->close_after = c->server->draining || !c->has_head || !c->head.keep_alive || c->body_unread;
}

void bl_http_respond(bl_http_exchange *c, int status, const char *content_type, const char *headers,
                     const void *body, size_t n) {
    choose_close(c);
    char framing[64] = "";
    if (status != 204) {
        lws_snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", n);
    }
    queue_head(c, status, content_type, headers, framing);
    if (n > 0 && !(c->has_head && c->head.method == BL_HTTP_HEAD)) {
        queue_out(c, body, n);
    }
    conn_done_answering(c);
}

void bl_http_begin_stream(bl_http_exchange *c, int status, const char *content_type, const char *headers) {
    choose_close(c);
    c->chunked_out = c->has_head && c->head.version_minor == 1;
    if (!c->chunked_out) {
        c->close_after = true;
    }
    c->streaming = true;
    queue_head(c, status, content_type, headers, c->chunked_out ? "Transfer-Encoding: chunked\r\n" : "");
}

bl_code bl_http_send(bl_http_exchange *c, const void *data, size_t n, bl_err *err) {
    if (n == 0) {
        return BL_OK;
    }
    size_t max = (size_t)c->server->o.max_output_bytes + OUT_BURST_BYTES;
    if (out_pending(c) + n > max) {
        BL_FAIL(err, BL_ELIMIT, "output queue of a connection is full: %zu bytes wait, %zu are allowed",
                out_pending(c), max);
    }
    if (c->chunked_out) {
        char size_line[24];
        int len = lws_snprintf(size_line, sizeof size_line, "%zx\r\n", n);
        queue_out(c, size_line, (size_t)len);
        queue_out(c, data, n);
        queue_out(c, "\r\n", 2);
    } else {
        queue_out(c, data, n);
    }
    return BL_OK;
}

bool bl_http_has_room(bl_http_exchange *c) {
    bool room = out_pending(c) < c->server->o.max_output_bytes / 2;
    c->want_room = !room; /* on_room follows */
    return room;
}

void bl_http_end(bl_http_exchange *c) {
    if (c->chunked_out) {
        queue_out(c, "0\r\n\r\n", 5);
    }
    conn_done_answering(c);
}

void bl_http_end_broken(bl_http_exchange *c) {
    c->close_after = true;
    conn_done_answering(c);
}

const bl_http_head *bl_http_exchange_head(const bl_http_exchange *c) {
    return c->has_head ? &c->head : NULL;
}

bl_buf *bl_http_exchange_body(bl_http_exchange *c) {
    return &c->body;
}

void bl_http_exchange_set_user(bl_http_exchange *c, void *user) {
    c->user = user;
}

void *bl_http_exchange_user(const bl_http_exchange *c) {
    return c->user;
}

/* Answers a request that never reaches on_request. The handler must answer at once. */
static void conn_reject(bl_http_exchange *c, int status, const char *message) {
    if (c->state != ST_HEAD && c->state != ST_BODY) {
        conn_kill(c);
        return;
    }
    if (c->owned) {
        c->owned = false;
        c->server->o.handlers.on_abort(c->server->o.handlers.user, c);
        c->user = NULL;
    }
    c->server->o.handlers.on_reject(c->server->o.handlers.user, c, status, message);
    if (c->state != ST_FLUSH) {
        conn_kill(c);
    }
}

static void process_body(bl_http_exchange *c) {
    bl_err err;
    bool done = false;
    size_t used = 0;
    if (c->head.chunked) {
        bl_code rc = bl_http_chunked_feed(&c->chunked, c->in.data, c->in.len, &used, &done, &c->body, &err);
        uint64_t room = c->server->o.max_body_bytes - c->body.len;
        if (rc == BL_ELIMIT || (rc == BL_OK && c->chunked.left > room)) {
            conn_reject(c, 413, "the body is larger than the server accepts");
            return;
        }
        if (rc != BL_OK) {
            conn_reject(c, rc == BL_EFORMAT ? 400 : 503, err.msg);
            return;
        }
    } else {
        uint64_t left = c->head.content_length - c->body.len;
        used = left < c->in.len ? (size_t)left : c->in.len;
        if (used > 0 && bl_buf_append(&c->body, c->in.data, used, &err) != BL_OK) {
            conn_reject(c, 503, err.msg);
            return;
        }
        done = c->body.len == c->head.content_length;
    }
    if (used > 0) {
        bl_buf_consume(&c->in, used);
        c->deadline_ns = after_ms(c->server->o.body_idle_timeout_ms);
        count_body(c, c->body.len);
    }
    if (c->server->body_bytes > c->server->o.max_all_bodies_bytes) {
        conn_reject(c, 503, "too many request bodies are arriving at once, try again later");
        return;
    }
    if (done) {
        count_body(c, 0);
        c->state = ST_BUSY;
        c->deadline_ns = 0;
        c->server->o.handlers.on_request(c->server->o.handlers.user, c);
    }
}

static void begin_exchange(bl_http_exchange *c) {
    const bl_http_server_options *o = &c->server->o;
    c->has_head = true;
    bool has_body = c->head.chunked || c->head.content_length > 0;
    if (c->head.content_length > o->max_body_bytes) {
        char msg[128];
        lws_snprintf(msg, sizeof msg, "the body of %llu bytes is larger than the server accepts (%llu)",
                     (unsigned long long)c->head.content_length, (unsigned long long)o->max_body_bytes);
        conn_reject(c, 413, msg);
        return;
    }
    /* With nothing to read, on_head may answer on a connection that stays. */
    c->state = has_body ? ST_BODY : ST_BUSY;
    c->deadline_ns = has_body ? after_ms(o->body_idle_timeout_ms) : 0;
    c->body_end_ns = has_body ? after_ms(o->body_timeout_ms) : 0;
    bl_http_chunked_init(&c->chunked);
    c->owned = true;
    o->handlers.on_head(o->handlers.user, c);
    if (!c->owned) {
        return;
    }
    if (!has_body) {
        o->handlers.on_request(o->handlers.user, c);
    } else if (c->head.expect_continue && c->in.len == 0) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        queue_out(c, go_on, sizeof go_on - 1);
    }
}

/* False when more bytes are needed. */
static bool process_head(bl_http_exchange *c) {
    while (c->in.len >= 2 && c->in.data[0] == '\r' && c->in.data[1] == '\n') {
        bl_buf_consume(&c->in, 2); /* RFC 9112 §2.2: an empty line before a request is skipped */
    }
    if (c->in.len == 0 || (c->in.len == 1 && c->in.data[0] == '\r')) {
        return false;
    }
    if (!c->got_bytes) {
        c->got_bytes = true;
        c->deadline_ns = after_ms(c->server->o.head_timeout_ms);
    }
    ptrdiff_t len = bl_http_find_head(c->in.data, c->in.len, c->scanned);
    if (len < 0) {
        conn_reject(c, 400, "the request is not HTTP/1.1");
        return true;
    }
    if (len > BL_HTTP_MAX_HEAD_BYTES || (len == 0 && c->in.len >= BL_HTTP_MAX_HEAD_BYTES)) {
        conn_reject(c, 431, "the request head is larger than 16384 bytes");
        return true;
    }
    c->scanned = c->in.len;
    if (len == 0) {
        return false;
    }
    bl_err err;
    int status = 503; /* no memory, unless the parser says otherwise */
    bl_buf_reset(&c->head_buf);
    bl_code rc = bl_buf_append(&c->head_buf, c->in.data, (size_t)len, &err);
    if (rc == BL_OK) {
        rc = bl_http_parse_head(c->head_buf.data, c->head_buf.len, &c->head, &status, &err);
    }
    bl_buf_consume(&c->in, (size_t)len);
    c->scanned = 0;
    if (rc != BL_OK) {
        conn_reject(c, status, err.msg);
    } else {
        begin_exchange(c);
    }
    return true;
}

static void conn_pause_rx(bl_http_exchange *c, bool pause) {
    if (c->rx_paused != pause) {
        c->rx_paused = pause;
        (void)lws_rx_flow_control(c->wsi, pause ? 0 : 1);
    }
}

static void conn_process(bl_http_exchange *c) {
    while (!c->dead) {
        if (c->state == ST_HEAD) {
            if (!process_head(c)) {
                break;
            }
        } else if (c->state == ST_BODY && c->in.len > 0) {
            process_body(c);
        } else {
            break;
        }
    }
    if (c->state == ST_LINGER || (c->state == ST_FLUSH && c->close_after)) {
        bl_buf_reset(&c->in);
    }
}

static int conn_rx(bl_http_exchange *c, const void *data, size_t n) {
    if (c->dead) {
        return -1;
    }
    if (c->state == ST_LINGER) { /* it still sends: closing now would reset it before it read the answer */
        c->deadline_ns = BL_MIN(after_ms(c->server->o.linger_timeout_ms), c->linger_end_ns);
        return 0;
    }
    if (c->state == ST_FLUSH && c->close_after) {
        return 0;
    }
    if (bl_buf_append(&c->in, data, n, NULL) != BL_OK) {
        return -1;
    }
    conn_process(c);
    conn_pause_rx(c, c->in.len >= IN_PAUSE_BYTES || lws_partial_buffered(c->wsi));
    return c->dead ? -1 : 0;
}

static void conn_next_request(bl_http_exchange *c) {
    c->state = ST_HEAD;
    c->has_head = false;
    c->got_bytes = false;
    c->scanned = 0;
    c->chunked_out = false;
    c->body_end_ns = 0;
    c->deadline_ns = after_ms(c->server->o.idle_timeout_ms);
    conn_process(c);
}

/* All queued output is with the kernel. */
static int conn_flushed(bl_http_exchange *c) {
    c->write_deadline_ns = 0;
    c->out_off = 0;
    if (c->out.cap > OUT_KEEP_BYTES) {
        bl_buf_done(&c->out);
        bl_buf_init(&c->out, OUT_MAX_BYTES);
    }
    bl_buf_reset(&c->out);
    if (c->state != ST_FLUSH) {
        return 0;
    }
    if (!c->close_after && !c->server->draining) {
        conn_next_request(c);
        return c->dead ? -1 : 0;
    }
    c->state = ST_LINGER;
    c->deadline_ns = after_ms(c->server->o.linger_timeout_ms);
    c->linger_end_ns = after_ms(c->server->o.linger_total_ms);
    return shutdown(lws_get_socket_fd(c->wsi), SHUT_WR) == 0 ? 0 : -1;
}

static int conn_writable(bl_http_exchange *c) {
    if (c->dead) {
        return -1;
    }
    if (out_pending(c) > 0) {
        unsigned char slice[LWS_PRE + WRITE_BYTES];
        size_t n = BL_MIN(out_pending(c), (size_t)WRITE_BYTES);
        memcpy(slice + LWS_PRE, c->out.data + c->out_off, n);
        if (lws_write(c->wsi, slice + LWS_PRE, n, LWS_WRITE_RAW) < 0) {
            return -1;
        }
        c->out_off += n;
        c->write_deadline_ns = after_ms(c->server->o.write_timeout_ms);
        if (c->out_off >= OUT_KEEP_BYTES && c->streaming) {
            bl_buf_consume(&c->out, c->out_off);
            c->out_off = 0;
        }
    }
    /* With a partial send inside, libwebsockets returns at once for readable input: left on, that would spin.
     * It calls back when the rest is out. */
    bool partial = lws_partial_buffered(c->wsi) != 0;
    if (!partial) {
        if (out_pending(c) > 0) {
            lws_callback_on_writable(c->wsi);
        } else if (conn_flushed(c) != 0) {
            return -1;
        }
    }
    conn_pause_rx(c, partial || c->in.len >= IN_PAUSE_BYTES);
    if (c->want_room && c->owned && bl_http_has_room(c)) {
        c->server->o.handlers.on_room(c->server->o.handlers.user, c);
    }
    return c->dead ? -1 : 0;
}

static int conn_open(bl_http_server *s, struct lws *wsi) {
    bl_http_exchange *c = bl_alloc(sizeof *c);
    if (!c) {
        return -1;
    }
    c->server = s;
    c->wsi = wsi;
    bl_buf_init(&c->in, IN_MAX_BYTES);
    bl_buf_init(&c->head_buf, BL_HTTP_MAX_HEAD_BYTES);
    bl_buf_init(&c->body, (size_t)s->o.max_body_bytes);
    bl_buf_init(&c->out, OUT_MAX_BYTES);
    c->deadline_ns = after_ms(s->o.head_timeout_ms);
    c->next = s->conns;
    if (s->conns) {
        s->conns->prev = c;
    }
    s->conns = c;
    s->n_conns++;
    lws_set_opaque_user_data(wsi, c);
    if (s->n_conns > s->o.max_connections) {
        conn_reject(c, 503, "too many connections");
    }
    return 0;
}

static void conn_close(bl_http_server *s, struct lws *wsi) {
    bl_http_exchange *c = lws_get_opaque_user_data(wsi);
    if (!c) {
        return;
    }
    lws_set_opaque_user_data(wsi, NULL);
    c->dead = true;
    if (c->owned) {
        c->owned = false;
        s->o.handlers.on_abort(s->o.handlers.user, c);
    }
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    s->n_conns--;
    count_body(c, 0);
    bl_buf_done(&c->in);
    bl_buf_done(&c->head_buf);
    bl_buf_done(&c->body);
    bl_buf_done(&c->out);
    bl_free(c);
}

static void conn_check_deadlines(bl_http_exchange *c, uint64_t now_ns) {
    if (c->write_deadline_ns != 0 && now_ns > c->write_deadline_ns) {
        c->server->n_dropped_readers++;
        conn_kill(c); /* a reader that takes nothing */
        return;
    }
    bool body_late = c->state == ST_BODY && now_ns > c->body_end_ns;
    if (!body_late && (c->deadline_ns == 0 || now_ns <= c->deadline_ns)) {
        return;
    }
    if (c->state == ST_HEAD && c->got_bytes) {
        conn_reject(c, 408, "the request head did not arrive in time");
    } else if (c->state == ST_BODY) {
        conn_reject(c, 408, "the request body did not arrive in time");
    } else {
        conn_kill(c);
    }
}

static void server_tick(lws_sorted_usec_list_t *sul) {
    bl_http_server *s = lws_container_of(sul, bl_http_server, tick);
    uint64_t now_ns = bl_clock_mono_ns();
    for (bl_http_exchange *c = s->conns; c; c = c->next) {
        if (!c->dead) {
            conn_check_deadlines(c, now_ns);
        }
    }
    if (s->listener && s->listener_paused) {
        s->listener_paused = false;
        (void)lws_rx_flow_control(s->listener, 1);
    }
    s->o.handlers.on_tick(s->o.handlers.user);
    lws_sul_schedule(s->context, 0, &s->tick, server_tick, (lws_usec_t)BL_HTTP_TICK_MS * LWS_US_PER_MS);
}

static void server_accept(bl_http_server *s, int fd) {
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        lws_sock_file_fd_type conn;
        conn.sockfd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (conn.sockfd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                bl_log(BL_LOG_WARN, "net", "accept_failed", "errno=%d pausing_ms=%d", errno, BL_HTTP_TICK_MS);
                s->listener_paused =
                    true; /* out of descriptors: try again at the next tick instead of spinning */
                (void)lws_rx_flow_control(s->listener, 0);
            }
            return;
        }
        if (s->n_conns >= s->o.max_connections + REFUSE_SPARE) {
            (void)bl_os.close(conn.sockfd);
            continue;
        }
        int one = 1, bytes = KERNEL_SEND_BYTES;
        /* a token must not wait for an ACK */
        (void)setsockopt(conn.sockfd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        (void)setsockopt(conn.sockfd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        (void)lws_adopt_descriptor_vhost(s->vhost, LWS_ADOPT_SOCKET, conn, "bl-http",
                                         NULL); /* closes on failure */
    }
}

static int server_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                           size_t len) {
    (void)user;
    bl_http_server *s = wsi ? lws_context_user(lws_get_context(wsi)) : NULL;
    if (!s) {
        return 0;
    }
    bl_http_exchange *c;
    switch (reason) {
    case LWS_CALLBACK_RAW_ADOPT:
        return conn_open(s, wsi);
    case LWS_CALLBACK_RAW_RX:
        c = lws_get_opaque_user_data(wsi);
        return c ? conn_rx(c, in, len) : -1;
    case LWS_CALLBACK_RAW_WRITEABLE:
        c = lws_get_opaque_user_data(wsi);
        return c ? conn_writable(c) : -1;
    case LWS_CALLBACK_RAW_CLOSE:
        conn_close(s, wsi);
        return 0;
    case LWS_CALLBACK_RAW_RX_FILE:
        server_accept(s, lws_get_socket_fd(wsi));
        return 0;
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        if (atomic_exchange_explicit(&s->wake, false,
                                     memory_order_acq_rel)) { /* pairs with bl_http_server_wake */
            s->o.handlers.on_wake(s->o.handlers.user);
        }
        return 0;
    default:
        return 0;
    }
}

/* Room for max_connections among the process's descriptors; the maximum shrinks when the system does not give
 * it. */
static void make_room_for_connections(bl_http_server *s) {
    const rlim_t others = 128; /* files of the model, the loop's own, what libraries hold */
    rlim_t want = (rlim_t)s->o.max_connections + REFUSE_SPARE + others;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want) {
        return;
    }
    limit.rlim_cur = BL_MIN(want, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= want) {
        return;
    }
    rlim_t room = limit.rlim_cur > others + REFUSE_SPARE ? limit.rlim_cur - others - REFUSE_SPARE : 1;
    bl_log(BL_LOG_WARN, "net", "few_descriptors", "limit=%llu max_connections=%llu wanted=%u",
           (unsigned long long)limit.rlim_cur, (unsigned long long)room, s->o.max_connections);
    s->o.max_connections = (uint32_t)room;
}

static void lws_log(int level, const char *line) {
    size_t n = strcspn(line, "\n");
    bl_log(BL_LOG_DEBUG, "net", "lws", "level=%d text=\"%.*s\"", level, (int)BL_MIN(n, (size_t)200), line);
}

/* A bound and listening socket, or an error that names address and reason. */
static bl_code listen_on(const char *bind_to, uint16_t port, int *ret_fd, uint16_t *ret_port, bl_err *err) {
    const char *host = strcmp(bind_to, "localhost") == 0 ? "127.0.0.1" : bind_to;
    char service[8];
    lws_snprintf(service, sizeof service, "%u", (unsigned)port);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *ai = NULL;
    if (getaddrinfo(host, service, &hints, &ai) != 0) {
        BL_FAIL(err, BL_EINVAL, "--bind '%.64s' is not an IPv4 or IPv6 address", bind_to);
    }
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1, why = 0;
    struct sockaddr_storage got;
    socklen_t got_len = sizeof got;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, 512) != 0 ||
        getsockname(fd, (struct sockaddr *)&got, &got_len) != 0) {
        why = errno;
    }
    freeaddrinfo(ai);
    if (why != 0) {
        if (fd >= 0) {
            (void)bl_os.close(fd);
        }
        BL_FAIL(err, BL_EIO, "cannot listen on %.64s port %u: %s", bind_to, (unsigned)port, strerror(why));
    }
    struct sockaddr_in a4;
    struct sockaddr_in6 a6;
    memcpy(&a4, &got, sizeof a4);
    memcpy(&a6, &got, sizeof a6);
    *ret_port = ntohs(got.ss_family == AF_INET6 ? a6.sin6_port : a4.sin_port);
    *ret_fd = fd;
    return BL_OK;
}

static const struct lws_protocols protocols[] = {
    {.name = "bl-http", .callback = server_callback, .rx_buffer_size = READ_BYTES},
    {.name = NULL},
};

bl_code bl_http_server_open(const bl_http_server_options *o, bl_http_server **ret, bl_err *err) {
    bl_http_server *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the HTTP server");
    }
    s->o = *o;
    s->listen_fd = -1;
    bl_code rc = listen_on(o->bind, o->port, &s->listen_fd, &s->port, err);
    if (rc != BL_OK) {
        goto fail;
    }
    make_room_for_connections(s);
    lws_set_log_level(LLL_ERR | LLL_WARN, lws_log);
    struct lws_context_creation_info info;
    memset(&info, 0, sizeof info);
    info.port = CONTEXT_PORT_NO_LISTEN;
    info.protocols = protocols;
    info.user = s;
    info.gid = -1; /* as we are */
    info.uid = -1;
    info.options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME;
    info.pt_serv_buf_size = READ_BYTES;
    info.fd_limit_per_thread = s->o.max_connections + REFUSE_SPARE + 16;
    s->context = lws_create_context(&info);
    s->vhost = s->context ? lws_create_vhost(s->context, &info) : NULL;
    if (!s->vhost) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "libwebsockets could not be started");
        goto fail;
    }
    lws_sock_file_fd_type fd;
    fd.filefd = s->listen_fd;
    s->listener = lws_adopt_descriptor_vhost(s->vhost, LWS_ADOPT_RAW_FILE_DESC, fd, "bl-http", NULL);
    s->listen_fd = -1;
    if (!s->listener) {
        rc =
            bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "libwebsockets did not take the listening socket");
        goto fail;
    }
    lws_sul_schedule(s->context, 0, &s->tick, server_tick, (lws_usec_t)BL_HTTP_TICK_MS * LWS_US_PER_MS);
    *ret = s;
    return BL_OK;
fail:
    bl_http_server_free(s);
    return rc;
}

uint16_t bl_http_server_port(const bl_http_server *s) {
    return s->port;
}

uint32_t bl_http_server_connections(const bl_http_server *s) {
    return s->n_conns;
}

uint32_t bl_http_server_busy(const bl_http_server *s) {
    uint32_t n = 0;
    for (const bl_http_exchange *c = s->conns; c; c = c->next) {
        n += !c->dead && c->state != ST_LINGER && (c->state != ST_HEAD || c->got_bytes);
    }
    return n;
}

uint64_t bl_http_server_dropped_readers(const bl_http_server *s) {
    return s->n_dropped_readers;
}

void bl_http_server_run(bl_http_server *s) {
    while (!atomic_load_explicit(&s->quit, memory_order_acquire)) { /* pairs with bl_http_server_quit */
        if (lws_service(s->context, 0) < 0) {
            break;
        }
    }
}

void bl_http_server_wake(bl_http_server *s) {
    /* One system call for all wake-ups that the loop has not seen yet: whoever set the flag makes it, and the
     * loop clears the flag before it looks at what the callers left. */
    if (!atomic_exchange_explicit(&s->wake, true, memory_order_acq_rel)) {
        lws_cancel_service(s->context);
    }
}

void bl_http_server_quit(bl_http_server *s) {
    atomic_store_explicit(&s->quit, true, memory_order_release);
    lws_cancel_service(s->context);
}

void bl_http_server_drain(bl_http_server *s) {
    s->draining = true;
    if (s->listener) {
        lws_set_timeout(s->listener, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
        s->listener = NULL;
    }
    for (bl_http_exchange *c = s->conns; c; c = c->next) {
        if (c->state == ST_HEAD && !c->got_bytes) {
            conn_kill(c);
        }
    }
}

void bl_http_server_free(bl_http_server *s) {
    if (!s) {
        return;
    }
    if (s->context) {
        lws_sul_schedule(s->context, 0, &s->tick, server_tick, LWS_SET_TIMER_USEC_CANCEL);
        lws_context_destroy(s->context);
    }
    if (s->listen_fd >= 0) {
        (void)bl_os.close(s->listen_fd);
    }
    bl_free(s);
}
