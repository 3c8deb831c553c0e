/* The server that a test program runs on a thread of its own, over the fake model, and what it logged.
 * Include in one file per test program, behind cmocka_all.h and fake_model.h.
 */
#ifndef BL_TESTS_UNIT_SERVER_UNDER_TEST_H
#define BL_TESTS_UNIT_SERVER_UNDER_TEST_H

#include <pthread.h>
#include <stdio.h>

#include "base/log.h"
#include "serve/serve.h"

static bl_engine *engine;
static bl_serve *server;
static pthread_t loop_thread;
static char log_text[1 << 20];
static size_t log_len;
static pthread_mutex_t log_mu = PTHREAD_MUTEX_INITIALIZER;

static void log_sink(bl_log_level level, const char *line, void *user) {
    (void)level, (void)user;
    pthread_mutex_lock(&log_mu);
    int n = snprintf(log_text + log_len, sizeof log_text - log_len, "%s\n", line);
    log_len = BL_MIN(log_len + (size_t)n, sizeof log_text - 1);
    pthread_mutex_unlock(&log_mu);
}

static void *loop_main(void *arg) {
    bl_err err;
    (void)arg;
    BL_ASSERT(bl_serve_run(server, &err) == BL_OK);
    return NULL;
}

/* On a free port, as `o` says otherwise, with the fake model. */
static void open_server(bl_serve_options *o, const char *const *aliases, size_t n_aliases) {
    bl_err err;
    o->port = 0;
    engine = fake_engine_start();
    if (bl_serve_open(o, &server, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    bl_serve_model m = {engine, &fake_chat, "fake", aliases, n_aliases, false, NULL};
    assert_int_equal(bl_serve_attach(server, &m, &err), BL_OK);
    assert_int_equal(pthread_create(&loop_thread, NULL, loop_main, NULL), 0);
}

/* After it stopped by itself. */
static void close_server(void) {
    pthread_join(loop_thread, NULL);
    bl_serve_free(server);
    fake_engine_end(engine);
    server = NULL;
}

/* Stops it at once. */
static void finish(void) {
    bl_serve_stop(server);
    bl_serve_stop(server);
    close_server();
}

#endif
