/* The server with many requests at once over real sockets, on a made-up model that works on several: turns,
 * the cost of a wake-up, slow readers among fast ones, keep-alive comments, metrics, request ids, the end.
 */
#include "cmocka_all.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "exposition.h"
#include "fake_model.h"
#include "serve/serve.h"
#include "server_under_test.h"

#define MANY 64

static void clear_log(void) {
    pthread_mutex_lock(&log_mu);
    log_len = 0;
    log_text[0] = '\0';
    pthread_mutex_unlock(&log_mu);
}

static void start(uint32_t concurrent, void (*change)(bl_serve_options *o)) {
    bl_serve_options o;
    bl_serve_options_init(&o);
    o.max_concurrent = concurrent;
    o.max_queue = FAKE_MAX_QUEUE;
    if (change) {
        change(&o);
    }
    atomic_store(&fake_step_us, 1000);
    atomic_store(&fake_release, false);
    atomic_store(&fake_hung, false);
    atomic_store(&fake_forecast_ms, 0);
    fake_max_queue = FAKE_MAX_QUEUE;
    fake_max_concurrent = concurrent;
    clear_log();
    open_server(&o, NULL, 0);
}

/* ---- a client of many connections ---- */

typedef struct {
    int fd;
    char *text;
    size_t len, cap;
    bool eof, idle; /* idle: does not read */
    uint64_t last_ns, max_gap_ns, first_ns;
} stream;

static stream all[MANY + 1];

static void send_text(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static int dial(int receive_bytes) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(bl_serve_port(server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_bytes > 0) {
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes), 0);
    }
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void post(int fd, const char *path, const char *headers, const char *body) {
    char text[2048];
    (void)snprintf(
        text, sizeof text,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s", path,
        headers, strlen(body), body);
    send_text(fd, text);
}

static void open_stream(stream *c, const char *prompt, const char *fields, bool idle) {
    char body[512];
    memset(c, 0, sizeof *c);
    c->fd = dial(idle ? 4096 : 0);
    c->idle = idle;
    c->last_ns = bl_clock_mono_ns();
    (void)snprintf(body, sizeof body, "{\"model\":\"fake\",\"prompt\":\"%s\",\"stream\":true%s}", prompt,
                   fields);
    post(c->fd, "/v1/completions", "", body);
}

static void take_bytes(stream *c) {
    if (c->cap - c->len < 65536) {
        c->cap = c->cap * 2 + 131072;
        c->text = bl_realloc(c->text, c->cap);
        assert_non_null(c->text);
    }
    ssize_t n = recv(c->fd, c->text + c->len, c->cap - c->len - 1, MSG_DONTWAIT);
    uint64_t now = bl_clock_mono_ns();
    c->eof = n == 0 || (n < 0 && errno == ECONNRESET);
    assert_true(n >= 0 || c->eof || errno == EAGAIN);
    if (n > 0) {
        c->len += (size_t)n;
        c->text[c->len] = '\0';
        c->first_ns = c->first_ns ? c->first_ns : now;
        c->max_gap_ns = BL_MAX(c->max_gap_ns, now - c->last_ns);
        c->last_ns = now;
    }
}

/* Reads what comes to the streams that read, for at most ms, or until all of them ended. */
static bool listen_to(stream *list, size_t n, uint32_t ms) {
    const uint64_t end_ns = bl_clock_mono_ns() + ms * 1000000ull;
    for (;;) {
        struct pollfd fds[MANY + 1];
        stream *who[MANY + 1];
        nfds_t k = 0;
        for (size_t i = 0; i < n; i++) {
            if (!list[i].eof && !list[i].idle) {
                fds[k].fd = list[i].fd;
                fds[k].events = POLLIN;
                who[k++] = &list[i];
            }
        }
        if (k == 0 || bl_clock_mono_ns() > end_ns) {
            return k == 0;
        }
        if (poll(fds, k, 20) > 0) {
            for (nfds_t i = 0; i < k; i++) {
                if (fds[i].revents != 0) {
                    take_bytes(who[i]);
                }
            }
        }
    }
}

static size_t count(const char *text, const char *what) {
    size_t n = 0;
    for (const char *p = text ? text : ""; (p = strstr(p, what)); p++) {
        n++;
    }
    return n;
}

static size_t n_tokens(const stream *c) {
    return count(c->text, "\"text\":\"x\"");
}

static void hang_up(stream *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        close(list[i].fd);
        bl_free(list[i].text);
        list[i].text = NULL;
    }
}

static char reply[1 << 18];

static int ask(const char *text) {
    int fd = dial(0);
    send_text(fd, text);
    size_t len = 0;
    ssize_t n = 0;
    while (len + 1 < sizeof reply && (n = recv(fd, reply + len, sizeof reply - 1 - len, 0)) > 0) {
        len += (size_t)n;
    }
    close(fd);
    reply[len] = '\0';
    assert_memory_equal(reply, "HTTP/1.1 ", 9);
    return (int)strtol(reply + 9, NULL, 10);
}

static int ask_post(const char *path, const char *headers, const char *body) {
    char text[4096];
    (void)snprintf(
        text, sizeof text,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s", path,
        headers, strlen(body), body);
    return ask(text);
}

static const expo *metrics(void) {
    static expo e;
    assert_int_equal(ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 200);
    assert_non_null(strstr(reply, "Content-Type: text/plain; version=0.0.4"));
    expo_parse(&e, strstr(reply, "\r\n\r\n") + 4);
    return &e;
}

static double metric(const char *name) {
    return expo_value(metrics(), name, "");
}

static void wait_engine(uint32_t running, uint32_t waiting) {
    bl_engine_stats st;
    for (int i = 0; i < 2000; i++) {
        bl_engine_get_stats(engine, &st);
        if (st.running == running && st.waiting == waiting) {
            return;
        }
        usleep(5000);
    }
    fail_msg("%u run and %u wait, expected %u and %u", st.running, st.waiting, running, waiting);
}

static void wait_running(uint32_t want) {
    wait_engine(want, 0);
}

/* ---- turns ---- */

static void test_streams_take_turns(void **state) {
    (void)state;
    enum { N = 400 };
    start(MANY, NULL);
    for (size_t i = 0; i < MANY; i++) {
        open_stream(&all[i], "!hold", ",\"max_tokens\":400", false);
    }
    wait_running(MANY);
    atomic_store(&fake_release, true);
    assert_true(listen_to(all, MANY, 20000));
    uint64_t begun_ns = 0, ended_ns = UINT64_MAX;
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(n_tokens(&all[i]), N);
        assert_int_equal(count(all[i].text, "data: [DONE]"), 1);
        begun_ns = BL_MAX(begun_ns, all[i].first_ns);
        ended_ns = BL_MIN(ended_ns, all[i].last_ns);
    }
    assert_true(begun_ns < ended_ns); /* all had begun when the first one ended */
    const expo *e = metrics();
    assert_true(
        expo_value(e, "darkbloom_http_requests_total", "{route=\"/v1/completions\",status=\"200\"}") == MANY);
    assert_true(expo_value(e, "darkbloom_output_tokens_total", "") == MANY * N);
    assert_true(expo_value(e, "darkbloom_inter_token_seconds_count", "") <= MANY * (N - 1) &&
                expo_value(e, "darkbloom_inter_token_seconds_count", "") > MANY * N / 2);
    assert_true(expo_value(e, "darkbloom_time_to_first_token_seconds_count", "") == MANY);
    assert_true(expo_value(e, "darkbloom_request_duration_seconds_count", "") == MANY);
    assert_true(expo_value(e, "darkbloom_requests_running", "") == 0);
    assert_true(expo_value(e, "darkbloom_keep_alive_comments_total", "") == 0); /* none on fast answers */
    hang_up(all, MANY);
    finish();
}

static uint64_t loop_cpu_ns(void) {
    clockid_t id;
    struct timespec t;
    assert_int_equal(pthread_getcpuclockid(loop_thread, &id), 0);
    assert_int_equal(clock_gettime(id, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What a token of the only talking stream costs the loop, beside n_silent others. */
static double cost_of_a_token(size_t n_silent, double *ret_pulls) {
    enum { N = 1000 };
    start(MANY, NULL);
    atomic_store(&fake_step_us, 300);
    for (size_t i = 0; i < n_silent; i++) {
        open_stream(&all[i], "!hold", "", false);
    }
    wait_running((uint32_t)n_silent);
    double pulls = metric("darkbloom_loop_requests_pulled_total");
    uint64_t cpu_ns = loop_cpu_ns();
    open_stream(&all[n_silent], "!loop", ",\"max_tokens\":1000", false);
    assert_true(listen_to(all + n_silent, 1, 20000));
    cpu_ns = loop_cpu_ns() - cpu_ns;
    *ret_pulls = (metric("darkbloom_loop_requests_pulled_total") - pulls) / N;
    assert_int_equal(n_tokens(&all[n_silent]), N);
    hang_up(all, n_silent + 1);
    finish();
    return (double)cpu_ns / N;
}

/* A wake-up looks at the jobs that have something to say, not at all of them. */
static void test_a_wake_up_costs_what_it_brings(void **state) {
    (void)state;
    double pulls_alone = 0, pulls_among = 0;
    double alone_ns = cost_of_a_token(0, &pulls_alone), among_ns = cost_of_a_token(MANY - 1, &pulls_among);
    print_message("a token costs the loop %.1f us alone, %.1f us beside %d silent streams; jobs looked at: "
                  "%.2f and %.2f\n",
                  alone_ns / 1e3, among_ns / 1e3, MANY - 1, pulls_alone, pulls_among);
    assert_true(pulls_alone <= 1.1 && pulls_among <= 1.1);
}

/* All of them talk: what a token costs the loop then. */
static void test_the_cost_of_a_full_house(void **state) {
    (void)state;
    start(MANY, NULL);
    for (size_t i = 0; i < MANY; i++) {
        open_stream(&all[i], "!hold", ",\"max_tokens\":500", false);
    }
    wait_running(MANY);
    const expo *e = metrics();
    double pulls = expo_value(e, "darkbloom_loop_requests_pulled_total", "");
    double wakes = expo_value(e, "darkbloom_loop_wakeups_total", "");
    uint64_t cpu_ns = loop_cpu_ns();
    atomic_store(&fake_release, true);
    assert_true(listen_to(all, MANY, 30000));
    cpu_ns = loop_cpu_ns() - cpu_ns;
    e = metrics();
    pulls = expo_value(e, "darkbloom_loop_requests_pulled_total", "") - pulls;
    wakes = expo_value(e, "darkbloom_loop_wakeups_total", "") - wakes;
    print_message("%d streams: a token costs the loop %.1f us; %.1f jobs a wake-up\n", MANY,
                  (double)cpu_ns / 1e3 / (MANY * 500), pulls / wakes);
    assert_true(pulls <= 1.1 * MANY * 500);
    hang_up(all, MANY);
    finish();
}

/* Whole answers too: their events are taken as they come, whoever else is there. */
static void test_whole_answers_beside_streams(void **state) {
    (void)state;
    start(MANY, NULL);
    for (size_t i = 0; i < MANY - 1; i++) {
        open_stream(&all[i], "!loop", ",\"max_tokens\":300", false);
    }
    wait_running(MANY - 1);
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"hello\"}"), 200);
    assert_non_null(strstr(reply, "\"text\":\"hello\""));
    assert_non_null(strstr(reply, "\"prompt_tokens_details\":{\"cached_tokens\":0}"));
    /* a stop string ends an answer before the engine's last event: what was cached is known by then */
    static const char *const more[] = {"", ",\"stop\":\"b\""};
    for (size_t i = 0; i < BL_COUNTOF(more); i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{\"model\":\"fake\",\"prompt\":\"=abc\"%s}", more[i]);
        assert_int_equal(ask_post("/v1/completions", "", body), 200);
        assert_non_null(strstr(reply, "\"prompt_tokens_details\":{\"cached_tokens\":3}"));
    }
    assert_true(listen_to(all, MANY - 1, 20000));
    for (size_t i = 0; i < MANY - 1; i++) {
        assert_int_equal(n_tokens(&all[i]), 300);
    }
    hang_up(all, MANY - 1);
    finish();
}

static void tiny_queue(bl_serve_options *o) {
    o->max_queue = 2;
}

/* The engine's queue decides who is too much; who left does not count. */
static void test_the_limit(void **state) {
    (void)state;
    start(4, tiny_queue);
    fake_max_queue = 2;
    for (size_t i = 0; i < 6; i++) {
        open_stream(&all[i], "!hold", "", false);
        wait_engine(BL_MIN((uint32_t)i + 1, 4u), i < 4 ? 0 : (uint32_t)i - 3);
    }
    const expo *e = metrics();
    assert_true(expo_value(e, "darkbloom_requests_running", "") == 4 &&
                expo_value(e, "darkbloom_requests_waiting", "") == 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"x\"}"), 429);
        assert_non_null(strstr(reply, "\"code\":\"queue_full\""));
        assert_non_null(strstr(reply, "Retry-After: "));
    }
    hang_up(all, 2);
    wait_running(4); /* the two that waited are among them */
    atomic_store(&fake_release, true);
    assert_int_equal(
        ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"y\",\"max_tokens\":1}"), 200);
    hang_up(all + 2, 4);
    finish();
}

/* ---- slow readers ---- */

static void impatient(bl_serve_options *o) {
    o->write_timeout_ms = 1500;
}

/* Readers that do not read are dropped after the limit; until then they cost the others nothing. */
static void test_slow_readers_cost_themselves(void **state) {
    (void)state;
    enum { N = 16, IDLE = 4 };
    start(N, impatient);
    atomic_store(&fake_step_us, 100);
    for (size_t i = 0; i < N; i++) {
        open_stream(&all[i], "!loop", ",\"max_tokens\":1000000", i < IDLE);
    }
    wait_running(N);
    for (int i = 0; metric("darkbloom_slow_readers_dropped_total") < IDLE; i++) {
        assert_false(listen_to(all, N, 100));
        assert_true(i < 200);
    }
    wait_running(N - IDLE);
    const double left = expo_value(metrics(), "darkbloom_requests_cancelled_total", "{stage=\"decode\"}");
    if (left != IDLE) {
        fail_msg("%g requests were cancelled, expected %d", left, IDLE);
    }
    (void)listen_to(all, N, 300);
    size_t least = SIZE_MAX, kept = 0;
    for (size_t i = IDLE; i < N; i++) {
        least = BL_MIN(least, n_tokens(&all[i]));
        /* nobody waited for the idle ones, whose limit is 1.5 s */
        assert_true(all[i].max_gap_ns < 1000000000u);
        assert_false(all[i].eof);
    }
    for (size_t i = 0; i < IDLE; i++) { /* what the kernels held is all they get: the end is missing */
        all[i].idle = false;
        while (!all[i].eof) {
            (void)listen_to(&all[i], 1, 100);
        }
        kept = BL_MAX(kept, n_tokens(&all[i]));
        assert_int_equal(count(all[i].text, "[DONE]"), 0);
    }
    print_message("readers had %zu tokens or more when the idle ones, with at most %zu, were gone\n", least,
                  kept);
    assert_true(least > kept);
    hang_up(all, N);
    finish();
}

/* A reader that pauses and goes on loses nothing. */
static void test_a_pause_loses_nothing(void **state) {
    (void)state;
    start(4, NULL);
    atomic_store(&fake_step_us, 20);
    open_stream(&all[0], "!loop", ",\"max_tokens\":8000", true);
    open_stream(&all[1], "!loop", ",\"max_tokens\":8000", false);
    assert_true(listen_to(&all[1], 1, 20000));
    usleep(1500000);
    all[0].idle = false;
    assert_true(listen_to(&all[0], 1, 20000));
    assert_int_equal(n_tokens(&all[0]), 8000);
    assert_int_equal(n_tokens(&all[1]), 8000);
    assert_int_equal(count(all[0].text, "[DONE]"), 1);
    /* the wait for the reader is not an inter-token time */
    const expo *e = metrics();
    assert_true(expo_value(e, "darkbloom_inter_token_seconds_bucket", "{le=\"1\"}") ==
                expo_value(e, "darkbloom_inter_token_seconds_count", ""));
    hang_up(all, 2);
    finish();
}

/* ---- keep-alive ---- */

static void chatty(bl_serve_options *o) {
    o->alive_ms = 400;
}

static void test_comments_only_in_silence(void **state) {
    (void)state;
    start(1, chatty);
    /* in the queue: the first comment comes after the grace period, not before */
    open_stream(&all[0], "!hold", ",\"max_tokens\":3", false);
    wait_running(1);
    uint64_t t0 = bl_clock_mono_ns();
    open_stream(&all[1], "!loop", ",\"max_tokens\":60", false);
    while (count(all[1].text, ": keep-alive\n\n") == 0) {
        (void)listen_to(all, 2, 5);
        assert_true(bl_clock_mono_ns() - t0 < 5000000000u);
    }
    assert_true(bl_clock_mono_ns() - t0 > 390000000u);
    (void)listen_to(all, 2, 1000);
    size_t n = count(all[1].text, ": keep-alive\n\n");
    assert_true(n >= 2 && n <= 4);                        /* one each 400 to 650 ms */
    assert_true(count(all[0].text, ": keep-alive") >= 2); /* running without a token */
    assert_int_equal(n_tokens(&all[1]), 0);
    /* 60 tokens in 1.2 s are never silent that long */
    atomic_store(&fake_step_us, 20000);
    atomic_store(&fake_release, true);
    assert_true(listen_to(all, 2, 20000));
    assert_int_equal(n_tokens(&all[1]), 60);
    assert_true(count(all[1].text, ": keep-alive") <= n + 1);
    const char *last = all[1].text;
    for (const char *p = last; (p = strstr(p, ": keep-alive")); p++) {
        last = p;
    }
    assert_true(last < strstr(all[1].text, "\"text\":\"x\"")); /* none after the first token */
    hang_up(all, 2);
    /* between tokens: one a second */
    atomic_store(&fake_step_us, 1000000);
    open_stream(&all[0], "!loop", ",\"max_tokens\":2", false);
    assert_true(listen_to(all, 1, 10000));
    const char *token = strstr(all[0].text, "\"text\":\"x\""), *note = strstr(all[0].text, ": keep-alive");
    assert_true(token && note && token < note && strstr(note, "\"text\":\"x\""));
    hang_up(all, 1);
    finish();
}

static void silent(bl_serve_options *o) {
    o->alive_ms = 0;
}

static void test_comments_can_be_off(void **state) {
    (void)state;
    start(1, silent);
    open_stream(&all[0], "!hold", "", false);
    (void)listen_to(all, 1, 700);
    assert_int_equal(count(all[0].text, ": keep-alive"), 0);
    hang_up(all, 1);
    finish();
}

/* ---- ids, routes, metrics ---- */

static void test_request_ids(void **state) {
    (void)state;
    static const char body[] = "{\"model\":\"fake\",\"prompt\":\"a\"}";
    char headers[256], want[128];
    start(4, NULL);
    static const char *const good[] = {"a", "Req-1.b_c",
                                       "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"};
    for (size_t i = 0; i < BL_COUNTOF(good); i++) {
        (void)snprintf(headers, sizeof headers, "X-Request-Id: %s\r\n", good[i]);
        (void)snprintf(want, sizeof want, "\r\nX-Request-Id: %s\r\n", good[i]);
        assert_int_equal(ask_post("/v1/completions", headers, body), 200);
        assert_non_null(strstr(reply, want));
        (void)snprintf(want, sizeof want, "id=%s method=POST route=/v1/completions status=200", good[i]);
        assert_non_null(strstr(log_text, want));
        assert_int_equal(ask_post("/nowhere", headers, body), 404); /* refusals too */
        assert_non_null(strstr(reply, good[i]));
    }
    static const char *const bad[] = {
        "X-Request-Id:\r\n",
        "X-Request-Id: a b\r\n",
        "X-Request-Id: a\"b\r\n",
        "X-Request-Id: \xc3\xa9\r\n",
        "X-Request-Id: 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_x\r\n",
        "X-Request-Id: one\r\nX-Request-Id: two\r\n",
        "X-Request-Id: one\r\nX-Request-Id: two\r\nX-Request-Id: three\r\n"};
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        assert_int_equal(ask_post("/v1/completions", bad[i], body), 200);
        assert_non_null(strstr(reply, "\r\nX-Request-Id: req_"));
    }
    finish();
}

static void test_the_deadline_header(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "0", "-1", "1.5", "1e3", "3600001", "99999999", "12345678901234567890", "x"};
    static const char *const good[] = {"1000", "3600000", "0060000"};
    char headers[128];
    start(4, NULL);
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        (void)snprintf(headers, sizeof headers, "X-Darkbloom-First-Content-Ms: %s\r\n", bad[i]);
        assert_int_equal(ask_post("/v1/completions", headers, "{\"model\":\"fake\",\"prompt\":\"a\"}"), 400);
        assert_non_null(strstr(reply, "\"param\":\"X-Darkbloom-First-Content-Ms\""));
    }
    for (size_t i = 0; i < BL_COUNTOF(good); i++) {
        (void)snprintf(headers, sizeof headers, "X-Darkbloom-First-Content-Ms: %s\r\n", good[i]);
        assert_int_equal(ask_post("/v1/completions", headers, "{\"model\":\"fake\",\"prompt\":\"a\"}"), 200);
    }
    finish();
}

/* The deadline, the priority and the tenant reach the engine; what it says comes back with its own code. */
static void test_what_the_engine_is_told(void **state) {
    (void)state;
    static const char deadline[] = "X-Darkbloom-First-Content-Ms: 60000\r\n";
    start(4, NULL);
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\"}"), 200);
    const uint64_t tenant = fake_last_tenant;
    assert_true(fake_last_priority == 0 && fake_last_first_content_ms == 0);
    assert_int_equal(
        ask_post("/v1/completions", deadline, "{\"model\":\"fake\",\"prompt\":\"a\",\"priority\":-7}"), 200);
    assert_int_equal(fake_last_priority, -7);
    assert_true(fake_last_first_content_ms > 50000 && fake_last_first_content_ms <= 60000);
    assert_true(fake_last_tenant == tenant);
    assert_int_equal(
        ask_post("/v1/completions", "",
                 "{\"model\":\"fake\",\"prompt\":\"a\",\"prompt_cache_key\":\"k\",\"user\":\"u\"}"),
        200);
    const uint64_t keyed = fake_last_tenant;
    assert_true(keyed != tenant);
    assert_int_equal(
        ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"b\",\"prompt_cache_key\":\"k\"}"),
        200);
    assert_true(fake_last_tenant == keyed);
    atomic_store(&fake_forecast_ms, 100000);
    assert_int_equal(ask_post("/v1/completions", deadline, "{\"model\":\"fake\",\"prompt\":\"a\"}"), 429);
    assert_non_null(strstr(reply, "\"code\":\"deadline_unreachable\""));
    assert_non_null(strstr(reply, "Retry-After: "));
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\"}"), 200);
    finish();
}

/* A body that takes longer than the whole deadline never reaches the engine. */
static void test_a_deadline_that_is_spent(void **state) {
    (void)state;
    start(4, NULL);
    int fd = dial(0);
    send_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Darkbloom-First-Content-Ms: 100\r\n"
                  "Connection: close\r\nContent-Length: 29\r\n\r\n{\"model\"");
    usleep(200000);
    send_text(fd, ":\"fake\",\"prompt\":\"a\"}");
    ssize_t n = recv(fd, reply, sizeof reply - 1, 0);
    assert_true(n > 0);
    reply[n] = '\0';
    close(fd);
    assert_int_equal(strtol(reply + 9, NULL, 10), 429);
    bl_engine_stats st;
    bl_engine_get_stats(engine, &st);
    assert_int_equal(st.n_prompt_tokens, 0);
    finish();
}

/* Time limits of the engine and its watchdog, before and after a stream began. */
static void test_the_engines_limits(void **state) {
    (void)state;
    static const struct {
        const char *prompt, *code;
        int status;
    } cases[] = {{"!fail late", "queue_timeout", 503},
                 {"!fail first", "deadline_unreachable", 429},
                 {"!fail stall", "engine_timeout", 503},
                 {"!fail", "internal_error", 500}};
    char body[128], code[64];
    start(4, NULL);
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        (void)snprintf(code, sizeof code, "\"code\":\"%s\"", cases[i].code);
        (void)snprintf(body, sizeof body, "{\"model\":\"fake\",\"prompt\":\"%s\"}", cases[i].prompt);
        assert_int_equal(ask_post("/v1/completions", "", body), cases[i].status);
        assert_non_null(strstr(reply, code));
        open_stream(&all[0], cases[i].prompt, "", false);
        assert_true(listen_to(all, 1, 5000));
        assert_int_equal(count(all[0].text, code), 1);
        assert_int_equal(count(all[0].text, "[DONE]"), 0);
        hang_up(all, 1);
    }
    static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_int_equal(ask(health), 200);
    atomic_store(&fake_hung, true);
    assert_int_equal(ask(health), 503);
    assert_non_null(strstr(reply, "\"status\":\"hung\""));
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\"}"), 503);
    assert_non_null(strstr(reply, "\"code\":\"engine_hung\""));
    assert_true(metric("darkbloom_engine_hung") == 1);
    atomic_store(&fake_hung, false);
    assert_int_equal(ask(health), 200);
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\"}"), 200);
    finish();
}

static void test_embeddings_and_other_names(void **state) {
    (void)state;
    static const char *const routes[] = {"/v1/embeddings", "/embeddings", "/embedding"};
    start(4, NULL);
    for (size_t i = 0; i < BL_COUNTOF(routes); i++) {
        assert_int_equal(ask_post(routes[i], "", "{\"model\":\"fake\",\"input\":\"a\"}"), 400);
        assert_non_null(strstr(reply, "\"code\":\"embeddings_not_configured\""));
    }
    assert_int_equal(ask("GET /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 405);
    assert_int_equal(ask("GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 200);
    assert_int_equal(ask("GET /models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 200);
    assert_int_equal(ask_post("/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\"}"), 200);
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"a\",\"n\":2}"), 400);
    assert_non_null(strstr(reply, "'n' is not supported; only 1 is"));
    finish();
}

static void with_key(bl_serve_options *o) {
    o->api_key = "sk-right";
}

static void test_metrics_need_the_key(void **state) {
    (void)state;
    start(4, with_key);
    assert_int_equal(ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 401);
    assert_int_equal(ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         "Authorization: Bearer sk-right\r\n\r\n"),
                     200);
    assert_int_equal(ask("GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), 200);
    finish();
}

/* Every way to end is counted and logged with its stage. */
static void test_the_stages_of_a_cancel(void **state) {
    (void)state;
    start(1, NULL);
    open_stream(&all[0], "!loop", "", false);
    while (n_tokens(&all[0]) == 0) {
        (void)listen_to(all, 1, 5);
    }
    open_stream(&all[1], "!hold", "", false); /* waits */
    while (all[1].len == 0) {
        (void)listen_to(all + 1, 1, 5);
    }
    int fd = dial(0);
    send_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{");
    usleep(50000);
    close(fd);
    hang_up(all, 2);
    wait_running(0);
    usleep(50000);
    const expo *e = metrics();
    assert_true(expo_value(e, "darkbloom_requests_cancelled_total", "{stage=\"pre_engine\"}") == 1);
    assert_true(expo_value(e, "darkbloom_requests_cancelled_total", "{stage=\"prefill\"}") == 1);
    assert_true(expo_value(e, "darkbloom_requests_cancelled_total", "{stage=\"decode\"}") == 1);
    assert_true(
        expo_value(e, "darkbloom_http_requests_total", "{route=\"/v1/completions\",status=\"499\"}") == 3);
    assert_int_equal(ask_post("/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"abc\"}"), 200);
    assert_int_equal(count(log_text, "cancelled_in=pre_engine"), 1);
    assert_int_equal(count(log_text, "cancelled_in=prefill"), 1);
    assert_int_equal(count(log_text, "cancelled_in=decode"), 1);
    const char *line = strstr(log_text, "prompt_tokens=3 cached_tokens=0 completion_tokens=4 queue_ms=1.5");
    assert_non_null(line);
    char words[512];
    (void)snprintf(words, sizeof words, "%.*s", (int)strcspn(line, "\n"), line);
    assert_non_null(strstr(words, " ttft_ms="));
    assert_non_null(strstr(words, " max_gap_ms=2.5 finish=stop"));
    finish();
}

/* ---- the end ---- */

static void test_many_streams_end_gracefully(void **state) {
    (void)state;
    start(32, NULL);
    for (size_t i = 0; i < 48; i++) { /* 16 of them wait */
        open_stream(&all[i], "!loop", ",\"max_tokens\":200", false);
    }
    wait_engine(32, 16);
    bl_serve_stop(server);
    assert_true(listen_to(all, 48, 20000));
    for (size_t i = 0; i < 48; i++) {
        assert_int_equal(n_tokens(&all[i]), 200);
        assert_int_equal(count(all[i].text, "[DONE]"), 1);
    }
    close_server();
    hang_up(all, 48);

    start(32, NULL); /* the second call cuts all of them, with a word */
    for (size_t i = 0; i < 48; i++) {
        open_stream(&all[i], "!loop", "", false);
    }
    wait_engine(32, 16);
    (void)listen_to(all, 48, 100);
    uint64_t t0 = bl_clock_mono_ns();
    bl_serve_stop(server);
    bl_serve_stop(server);
    assert_true(listen_to(all, 48, 20000));
    assert_true(bl_clock_mono_ns() - t0 < 3000000000u);
    for (size_t i = 0; i < 48; i++) {
        assert_int_equal(count(all[i].text, "[DONE]"), 0);
        assert_int_equal(count(all[i].text, "\"code\":\"shutting_down\""), 1);
    }
    close_server();
    hang_up(all, 48);
}

/* Clients come and go at random while others are served. */
static void test_random_disconnects(void **state) {
    (void)state;
    uint64_t seed = 1;
    start(24, NULL);
    atomic_store(&fake_step_us, 200);
    for (size_t i = 0; i < 24; i++) {
        open_stream(&all[i], "!loop", ",\"max_tokens\":1000000", false);
    }
    uint32_t n_left = 0;
    for (int round = 0; round < 400; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t i = (seed >> 40) % 23; /* the last one stays */
        hang_up(&all[i], 1);
        n_left++;
        open_stream(&all[i], (seed >> 33) % 3 == 0 ? "!hold" : "!loop", ",\"max_tokens\":1000000", false);
        (void)listen_to(all, 24, (seed >> 50) % 4);
    }
    assert_false(all[23].eof);
    size_t before = n_tokens(&all[23]);
    (void)listen_to(all, 24, 300);
    assert_true(n_tokens(&all[23]) > before); /* still served */
    hang_up(all, 24);
    wait_running(0);
    usleep(300000);
    const expo *e = metrics();
    assert_true(expo_value(e, "darkbloom_http_requests_total",
                           "{route=\"/v1/completions\",status=\"499\"}") <= n_left + 24);
    assert_true(expo_value(e, "darkbloom_requests_preparing", "") == 0 &&
                expo_value(e, "darkbloom_requests_waiting", "") == 0);
    assert_true(expo_value(e, "darkbloom_connections", "") == 1);
    finish();
}

int main(void) {
    (void)signal(SIGPIPE, SIG_IGN);
    bl_log_set_level(BL_LOG_INFO);
    bl_log_set_sink(log_sink, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_take_turns),
        cmocka_unit_test(test_a_wake_up_costs_what_it_brings),
        cmocka_unit_test(test_the_cost_of_a_full_house),
        cmocka_unit_test(test_whole_answers_beside_streams),
        cmocka_unit_test(test_the_limit),
        cmocka_unit_test(test_slow_readers_cost_themselves),
        cmocka_unit_test(test_a_pause_loses_nothing),
        cmocka_unit_test(test_comments_only_in_silence),
        cmocka_unit_test(test_comments_can_be_off),
        cmocka_unit_test(test_request_ids),
        cmocka_unit_test(test_the_deadline_header),
        cmocka_unit_test(test_what_the_engine_is_told),
        cmocka_unit_test(test_a_deadline_that_is_spent),
        cmocka_unit_test(test_the_engines_limits),
        cmocka_unit_test(test_embeddings_and_other_names),
        cmocka_unit_test(test_metrics_need_the_key),
        cmocka_unit_test(test_the_stages_of_a_cancel),
        cmocka_unit_test(test_many_streams_end_gracefully),
        cmocka_unit_test(test_random_disconnects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
