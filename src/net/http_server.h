/* An HTTP/1.1 server on one event-loop thread: libwebsockets' loop, sockets and timers, http1.h's parser.
 *
 * A connection carries one exchange (request and response) at a time; pipelined requests wait in its input
 * buffer. The owner gets the calls of bl_http_handlers on the loop thread and answers with bl_http_respond,
 * or with bl_http_begin_stream, bl_http_send... and bl_http_end, at once or later, always on the loop thread.
 * bl_http_server_wake and bl_http_server_quit are the only functions for other threads.
 *
 * Nobody can make the server hold more than its limits: connections, head, body and output have maxima; slow
 * heads, bodies and readers have deadlines. A response that comes before the body was read closes the
 * connection (the rest of the body is read and dropped for a short while, so that the client gets to see the
 * answer instead of a reset).
 */
#ifndef BL_NET_HTTP_SERVER_H
#define BL_NET_HTTP_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"
#include "net/http1.h"

typedef struct bl_http_server bl_http_server;
typedef struct bl_http_exchange bl_http_exchange;

typedef struct {
    void *user;
    /* The head is there (body not yet). Answering here means that the body is not wanted. */
    void (*on_head)(void *user, bl_http_exchange *x);
    /* The whole request is there. Not called when on_head answered. */
    void (*on_request)(void *user, bl_http_exchange *x);
    /* Output fell below half of its maximum after bl_http_has_room was false. */
    void (*on_room)(void *user, bl_http_exchange *x);
    /* The client left or was dropped before bl_http_end: x is gone when this returns. Only for exchanges that
     * on_head saw. */
    void (*on_abort)(void *user, bl_http_exchange *x);
    /* The request cannot be served by this layer: answer with `status` and the message (bl_http_respond; the
     * connection closes). */
    void (*on_reject)(void *user, bl_http_exchange *x, int status, const char *message);
    void (*on_wake)(void *user); /* after bl_http_server_wake, calls may be merged */
    void (*on_tick)(void *user); /* every BL_HTTP_TICK_MS */
} bl_http_handlers;

#define BL_HTTP_TICK_MS 250

typedef struct {
    const char *bind; /* IPv4 or IPv6 address, or "localhost" */
    uint16_t port;    /* 0: the system chooses, see bl_http_server_port */
    uint32_t max_connections;
    uint64_t max_body_bytes;
    uint64_t max_all_bodies_bytes; /* of all bodies that are arriving at one time */
    uint32_t max_output_bytes;     /* queued per streaming connection; has_room is about its half */
    uint32_t head_timeout_ms;      /* from the first byte (or the accept) to the end of the head */
    uint32_t idle_timeout_ms;      /* between requests on one connection */
    uint32_t body_idle_timeout_ms;
    uint32_t body_timeout_ms;   /* the whole body */
    uint32_t write_timeout_ms;  /* output waits and the client takes nothing */
    uint32_t linger_timeout_ms; /* silence that ends reading and dropping after the last answer */
    uint32_t linger_total_ms;   /* and its whole length */
    bl_http_handlers handlers;  /* all set */
} bl_http_server_options;

/* Fills in the product's limits; bind 127.0.0.1, port 8000. */
void bl_http_server_options_init(bl_http_server_options *o);

/* Binds and listens. BL_EINVAL for a bad address, BL_EIO when the address cannot be had (the message says
 * why). */
bl_code bl_http_server_open(const bl_http_server_options *o, bl_http_server **ret, bl_err *err) BL_MUST_CHECK;
uint16_t bl_http_server_port(const bl_http_server *s);
/* Serves until bl_http_server_quit. */
void bl_http_server_run(bl_http_server *s);
/* Any thread: on_wake will be called. */
void bl_http_server_wake(bl_http_server *s);
/* Any thread: bl_http_server_run returns soon. */
void bl_http_server_quit(bl_http_server *s);
/* [loop thread] No new connections; idle ones close; running exchanges go on, their connections close after.
 */
void bl_http_server_drain(bl_http_server *s);
uint32_t bl_http_server_connections(const bl_http_server *s); /* [loop thread] all open ones */
uint32_t
bl_http_server_busy(const bl_http_server *s); /* [loop thread] those with a request or an answer under way */
uint64_t
bl_http_server_dropped_readers(const bl_http_server *s); /* [loop thread] by write_timeout_ms, so far */
/* Closes all connections (on_abort is called for running exchanges). Not while running. */
void bl_http_server_free(bl_http_server *s);

/* The exchange. All on the loop thread. */
/* Valid until the exchange ends; NULL in on_reject when the head could not be parsed. */
const bl_http_head *bl_http_exchange_head(const bl_http_exchange *x);
bl_buf *bl_http_exchange_body(bl_http_exchange *x); /* the caller may bl_buf_steal it */
void bl_http_exchange_set_user(bl_http_exchange *x, void *user);
void *bl_http_exchange_user(const bl_http_exchange *x);

/* One whole response. headers: further lines "Name: value\r\n...", or "". Ends the exchange. */
void bl_http_respond(bl_http_exchange *x, int status, const char *content_type, const char *headers,
                     const void *body, size_t n);
/* A response of unknown length: chunked for HTTP/1.1, until close for 1.0. */
void bl_http_begin_stream(bl_http_exchange *x, int status, const char *content_type, const char *headers);
/* Queues bytes. BL_ELIMIT: the queue is full (the caller should have asked has_room). */
bl_code bl_http_send(bl_http_exchange *x, const void *data, size_t n, bl_err *err) BL_MUST_CHECK;
/* False while the queue is at half of its maximum or more; on_room will be called when that changes. */
bool bl_http_has_room(bl_http_exchange *x);
void bl_http_end(bl_http_exchange *x);
/* Ends a begun stream so that the client can tell that it is incomplete: queued bytes are sent, the last
 * chunk is not. */
void bl_http_end_broken(bl_http_exchange *x);

#endif
