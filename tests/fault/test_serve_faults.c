/* The server while the Nth allocation fails: each request gets its answer, a 503, or a closed connection,
 * never a wrong answer; the next request is served as if nothing had been; nothing is leaked. */
#include "../unit/cmocka_all.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "../unit/fake_model.h"
#include "base/log.h"
#include "faults.h"
#include "serve/serve.h"

#define HEADERS "Host: localhost\r\nConnection: close\r\n"

static bl_serve *server;
static char reply[1 << 16];

static void *loop_main(void *arg) {
    (void)arg;
    bl_err err;
    (void)!bl_serve_run(server, &err); /* may fail: a worker that cannot start is allowed to */
    return NULL;
}

/* The status of the answer, 0 when the connection was closed without one. */
static int ask(const char *text) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(bl_serve_port(server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {10, 0};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    size_t len = 0;
    ssize_t n = 0;
    while (len + 1 < sizeof reply && (n = recv(fd, reply + len, sizeof reply - 1 - len, 0)) > 0) {
        len += (size_t)n;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        fail_msg("no answer within 10 s");
    }
    close(fd);
    reply[len] = '\0';
    return len > 12 && memcmp(reply, "HTTP/1.1 ", 9) == 0 ? (int)strtol(reply + 9, NULL, 10) : 0;
}

static int post(const char *path, const char *body) {
    char text[2048];
    (void)snprintf(text, sizeof text, "POST %s HTTP/1.1\r\n" HEADERS "Content-Length: %zu\r\n\r\n%s", path,
                   strlen(body), body);
    return ask(text);
}

/* Did the response arrive whole, by its own framing? */
static bool is_complete(void) {
    const char *end = strstr(reply, "\r\n\r\n"), *length = strcasestr(reply, "Content-Length: ");
    if (!end) {
        return false;
    }
    size_t n = strlen(end + 4);
    if (length && length < end) {
        return n == strtoul(length + 16, NULL, 10);
    }
    return n >= 5 && strcmp(end + 4 + n - 5, "0\r\n\r\n") == 0;
}

static uint64_t n_right, n_refused, n_cut;

static void check_answer(int status, const char *want) {
    if (status != 0 && status != 200 && status != 503) {
        fail_msg("status %d: %s", status, reply);
    }
    if (status == 200 && is_complete() && !strstr(reply, want)) {
        fail_msg("a wrong answer: %s", reply);
    }
    n_right += status == 200 && is_complete();
    n_refused += status == 503;
    n_cut += !is_complete();
}

static void scenario(void) {
    int status = ask("GET /health HTTP/1.1\r\n" HEADERS "\r\n");
    check_answer(status, "\"status\":\"ok\"");
    status = post("/v1/chat/completions",
                  "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"one STOP\"}],"
                  "\"stop\":[\"STOP\"],\"logprobs\":true,\"top_logprobs\":2}");
    check_answer(status, "\"content\":\"one \"");
    status =
        post("/v1/completions", "{\"model\":\"fake\",\"prompt\":[104,105],\"stream\":true,\"logprobs\":1,"
                                "\"stream_options\":{\"include_usage\":true}}");
    check_answer(status, "\"completion_tokens\":3");
    status = ask("POST /v1/completions HTTP/1.1\r\n" HEADERS "Transfer-Encoding: chunked\r\n\r\n"
                 "1e\r\n{\"model\":\"fake\",\"prompt\":\"ab\"}\r\n0\r\n\r\n");
    check_answer(status, "\"text\":\"ab\"");
    status = ask("GET /metrics HTTP/1.1\r\n" HEADERS "\r\n");
    check_answer(status, "darkbloom_requests_running 0");
}

/* One life of a server with the fault armed. */
static void run_once(void) {
    bl_serve_options o;
    bl_err err;
    pthread_t loop;
    bl_serve_options_init(&o);
    o.port = 0;
    o.n_workers = 1;
    bl_code rc = bl_serve_open(&o, &server, &err);
    if (rc != BL_OK) {
        assert_int_equal(rc, BL_ENOMEM);
        return;
    }
    bl_engine *engine = fake_engine_start();
    bl_serve_model m = {.engine = engine, .chat = &fake_chat, .model_id = "fake"};
    assert_int_equal(bl_serve_attach(server, &m, &err), BL_OK);
    assert_int_equal(pthread_create(&loop, NULL, loop_main, NULL), 0);
    scenario();
    faults_disarm();
    assert_int_equal(post("/v1/completions", "{\"model\":\"fake\",\"prompt\":\"still here\"}"), 200);
    assert_non_null(strstr(reply, "\"text\":\"still here\""));
    bl_serve_stop(server);
    bl_serve_stop(server);
    pthread_join(loop, NULL);
    bl_serve_free(server);
    fake_engine_end(engine);
}

static void run_with_faults(bool persistent, uint64_t max) {
    uint64_t n = 1;
    run_once(); /* what stays for the process's life is allocated here */
    uint64_t live = 0;
    for (; n <= max && faults_arm(n, FAULT_ALLOC, persistent); n++) {
        live = n == 1 ? atomic_load(&faults.n_live) : live;
        run_once();
        if (atomic_load(&faults.n_live) != live) {
            fail_msg("allocation %d failing leaks", (int)n);
        }
    }
    faults_disarm();
    print_message("%d points of failure: %d answers right, %d refused, %d cut off\n", (int)n - 1,
                  (int)n_right, (int)n_refused, (int)n_cut);
    assert_true(n > 40 && n_right > 0 && n_refused > 0 && n_cut > 0);
}

static void test_one_allocation_fails(void **state) {
    (void)state;
    run_with_faults(false, 10000);
}

static void test_all_allocations_fail_from_then_on(void **state) {
    (void)state;
    run_with_faults(true, 10000);
}

static void no_log(bl_log_level level, const char *line, void *user) {
    (void)level, (void)line, (void)user;
}

int main(void) {
    (void)signal(SIGPIPE, SIG_IGN);
    bl_log_set_sink(no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_allocation_fails),
        cmocka_unit_test(test_all_allocations_fail_from_then_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
