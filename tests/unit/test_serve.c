/* The server over real sockets with a made-up model: routes, keys, streams, limits, disconnects, the queue
 * and the end. */
#include "cmocka_all.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "fake_model.h"
#include "formats/json.h"
#include "serve/serve.h"
#include "server_under_test.h"

static void start(void (*change)(bl_serve_options *o)) {
    static const char *const aliases[] = {"alias"};
    bl_serve_options o;
    bl_serve_options_init(&o);
    if (change) {
        change(&o);
    }
    atomic_store(&fake_step_us, 0);
    fake_max_queue = FAKE_MAX_QUEUE;
    fake_max_concurrent = 1;
    fake_has_template = true;
    fake_draft_depth = 0;
    open_server(&o, aliases, 1);
}

/* A client's end. */
typedef struct {
    int fd;
    char buf[1 << 20];
    size_t len;
    bool eof;
} client;

static client *dial(void) {
    static client c;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(bl_serve_port(server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memset(&c, 0, sizeof c);
    c.fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {10, 0};
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&a, sizeof a), 0);
    return &c;
}

static void hang_up(client *c) {
    close(c->fd);
    c->fd = -1;
}

static void say(client *c, const char *text, size_t n) {
    assert_int_equal(send(c->fd, text, n, MSG_NOSIGNAL), n);
}

static void says(client *c, const char *text) {
    say(c, text, strlen(text));
}

/* More bytes into c->buf; false at the end of the stream. */
static bool hear(client *c) {
    assert_true(c->len + 1 < sizeof c->buf);
    ssize_t n = recv(c->fd, c->buf + c->len, sizeof c->buf - 1 - c->len, 0);
    if (n < 0 && errno != ECONNRESET) {
        fail_msg("no answer within 10 s; got so far: %s", c->buf);
    }
    if (n <= 0) {
        c->eof = true;
        return false;
    }
    c->len += (size_t)n;
    c->buf[c->len] = '\0';
    return true;
}

typedef struct {
    int status;
    char head[4096];
    char body[1 << 19];
    size_t n_body;
    bool complete; /* not cut off */
} answer;

static answer got; /* the last one */

static const char *header(const char *name) {
    static char value[512];
    char key[64];
    (void)snprintf(key, sizeof key, "\r\n%s: ", name);
    const char *p = strcasestr(got.head, key);
    if (!p) {
        return NULL;
    }
    p += strlen(key);
    (void)snprintf(value, sizeof value, "%.*s", (int)strcspn(p, "\r"), p);
    return value;
}

static void eat(client *c, size_t n) {
    memmove(c->buf, c->buf + n, c->len - n + 1);
    c->len -= n;
}

static void read_chunks(client *c) {
    for (;;) {
        char *eol;
        while (!(eol = strstr(c->buf, "\r\n"))) {
            if (!hear(c)) {
                return;
            }
        }
        size_t n = strtoul(c->buf, NULL, 16), line = (size_t)(eol - c->buf) + 2;
        while (c->len < line + n + 2) {
            if (!hear(c)) {
                return;
            }
        }
        assert_true(got.n_body + n < sizeof got.body);
        memcpy(got.body + got.n_body, c->buf + line, n);
        got.n_body += n;
        got.body[got.n_body] = '\0';
        eat(c, line + n + 2);
        if (n == 0) {
            got.complete = true;
            return;
        }
    }
}

/* Reads one response into `got`. */
static int listen_for_answer(client *c, bool to_head) {
    char *end;
    memset(&got, 0, sizeof got);
    while (!(end = strstr(c->buf, "\r\n\r\n"))) {
        if (!hear(c)) {
            return 0;
        }
    }
    size_t n_head = (size_t)(end - c->buf) + 4;
    assert_true(n_head < sizeof got.head);
    memcpy(got.head, c->buf, n_head);
    assert_memory_equal(got.head, "HTTP/1.1 ", 9);
    got.status = (int)strtol(got.head + 9, NULL, 10);
    eat(c, n_head);
    const char *length = header("Content-Length"), *coding = header("Transfer-Encoding");
    if (to_head || got.status == 204 || got.status == 100) {
        got.complete = true;
    } else if (length) {
        size_t n = strtoul(length, NULL, 10);
        while (c->len < n && hear(c)) {
        }
        assert_true(c->len >= n);
        memcpy(got.body, c->buf, n);
        got.n_body = n;
        eat(c, n);
        got.complete = true;
    } else if (coding) {
        read_chunks(c);
    } else {
        while (hear(c)) {
        }
        memcpy(got.body, c->buf, c->len);
        got.n_body = c->len;
        got.complete = true;
    }
    return got.status;
}

static int request(const char *method, const char *path, const char *headers, const char *body) {
    static char text[1 << 19];
    client *c = dial();
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s", method, path, headers);
    if (body) {
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    } else {
        n += snprintf(text + n, sizeof text - (size_t)n, "\r\n");
    }
    say(c, text, (size_t)n);
    int status = listen_for_answer(c, strcmp(method, "HEAD") == 0);
    hang_up(c);
    return status;
}

static int chat(const char *content, const char *fields) {
    static char body[1 << 18];
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}", content,
                   fields);
    return request("POST", "/v1/chat/completions", "", body);
}

static json_t *body_json(void) {
    json_t *v = NULL;
    bl_err err;
    if (bl_json_parse(got.body, got.n_body, 32, "answer", &v, &err) != BL_OK) {
        fail_msg("%s: %s", err.msg, got.body);
    }
    return v;
}

static void assert_error(int status, const char *code) {
    json_t *v = body_json();
    const json_t *e = json_object_get(v, "error");
    const char *have = json_string_value(json_object_get(e, "code"));
    if (got.status != status || !have || strcmp(have, code) != 0) {
        fail_msg("status %d body %s; expected %d %s", got.status, got.body, status, code);
    }
    assert_string_equal(header("Content-Type"), "application/json");
    assert_non_null(header("X-Request-Id"));
    json_decref(v);
}

/* Waits until /health's queue key has the value. */
static void wait_queue(const char *key, int want) {
    int have = -1;
    for (int i = 0; i < 200; i++) {
        bl_engine_stats st;
        bl_engine_get_stats(engine, &st);
        have = strcmp(key, "running") == 0 ? (int)st.running : (int)st.waiting;
        if (have == want) {
            return;
        }
        usleep(10000);
    }
    fail_msg("%s is %d, expected %d", key, have, want);
}

static void test_plain_routes(void **state) {
    (void)state;
    start(NULL);
    assert_int_equal(request("GET", "/", "", NULL), 200);
    assert_non_null(strstr(got.body, "/v1/chat/completions"));
    assert_int_equal(request("GET", "/health", "", NULL), 200);
    json_t *v = body_json();
    assert_string_equal(json_string_value(json_object_get(v, "status")), "ok");
    json_decref(v);
    assert_int_equal(request("GET", "/v1/models?x=1", "", NULL), 200);
    v = body_json();
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(v, "data"), 0), "id")), "fake");
    json_decref(v);
    assert_int_equal(request("GET", "/v1/models/fake", "", NULL), 200);
    assert_int_equal(request("GET", "/v1/models/ali%61s", "", NULL), 200);
    (void)request("GET", "/v1/models/other", "", NULL);
    assert_error(404, "model_not_found");
    (void)request("GET", "/v1/models/%00", "", NULL);
    assert_error(404, "model_not_found");
    (void)request("GET", "/nowhere", "", NULL);
    assert_error(404, "unknown_url");
    (void)request("GET", "/v1/models/", "", NULL);
    assert_error(404, "unknown_url");
    (void)request("POST", "/v1/models", "", "{}");
    assert_error(405, "method_not_allowed");
    (void)request("GET", "/v1/chat/completions", "", NULL);
    assert_error(405, "method_not_allowed");
    assert_string_equal(header("Allow"), "POST");
    (void)request("BREW", "/", "", NULL);
    assert_error(405, "method_not_allowed");
    (void)request("OPTIONS", "/v1/models", "", NULL);
    assert_error(405, "method_not_allowed");
    assert_int_equal(request("HEAD", "/health", "", NULL), 200);
    assert_true(strtoul(header("Content-Length"), NULL, 10) > 10);
    assert_int_equal(got.n_body, 0);
    struct tm date;
    assert_non_null(strptime(header("Date"), "%a, %d %b %Y %H:%M:%S GMT", &date));
    assert_true(labs((long)(timegm(&date) - time(NULL))) < 5);
    finish();
}

static const char *content_of(const json_t *v) {
    return json_string_value(json_object_get(
        json_object_get(json_array_get(json_object_get(v, "choices"), 0), "message"), "content"));
}

static void test_whole_answers(void **state) {
    (void)state;
    start(NULL);
    assert_int_equal(chat("h\\u00e9llo \\ud83d\\ude00", ""), 200);
    json_t *v = body_json();
    assert_string_equal(content_of(v), "h\xc3\xa9llo \xf0\x9f\x98\x80");
    const json_t *u = json_object_get(v, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "prompt_tokens")), 11);
    assert_int_equal(json_integer_value(json_object_get(u, "completion_tokens")),
                     12); /* the stop token counts */
    assert_int_equal(memcmp(json_string_value(json_object_get(v, "id")), "chatcmpl-", 9), 0);
    json_decref(v);
    assert_true(fake_last_sampling.temperature == 0.5f && fake_last_sampling.top_k == 11 &&
                fake_last_sampling.top_p == 0.75f);

    assert_int_equal(
        chat("abcdef",
             ",\"max_tokens\":3,\"temperature\":0,\"seed\":77,\"top_k\":2,\"min_p\":0.5,\"top_p\":1"),
        200);
    v = body_json();
    assert_string_equal(content_of(v), "abc");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(v, "choices"), 0), "finish_reason")),
        "length");
    json_decref(v);
    assert_true(fake_last_sampling.temperature == 0 && fake_last_sampling.seed == 77 &&
                fake_last_sampling.top_k == 2 && fake_last_sampling.min_p == 0.5f &&
                fake_last_sampling.top_p == 1);

    assert_int_equal(chat("one two STOP three", ",\"stop\":[\"zzz\",\"STOP\"]"), 200);
    v = body_json();
    assert_string_equal(content_of(v), "one two ");
    json_decref(v);
    assert_int_equal(chat("a#b", ",\"logprobs\":true"), 200); /* an id that the tokenizer does not know */
    v = body_json();
    assert_string_equal(content_of(v), "ab");
    json_decref(v);
    assert_int_equal(chat("!mute", ""), 200);
    v = body_json();
    assert_string_equal(content_of(v), "");
    json_decref(v);
    assert_int_equal(request("POST", "/v1/completions", "", "{\"model\":\"alias\",\"prompt\":[104,105]}"),
                     200);
    v = body_json();
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(v, "choices"), 0), "text")), "hi");
    json_decref(v);
    finish();
}

static void test_refused_requests(void **state) {
    (void)state;
    start(NULL);
    (void)request("POST", "/v1/completions", "", "{\"model\":\"other\",\"prompt\":\"x\"}");
    assert_error(404, "model_not_found");
    (void)request("POST", "/v1/completions", "", "{\"model\":\"fake\",\"prompt\":[1,260]}");
    assert_error(400, "invalid_value");
    (void)request("POST", "/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"\"}");
    assert_error(400, "invalid_value");
    (void)request("POST", "/v1/completions", "", "");
    assert_error(400, "invalid_json");
    (void)request("POST", "/v1/completions", "Content-Length: 0\r\n", NULL);
    assert_error(400, "invalid_json");
    (void)request("POST", "/v1/completions", "", NULL);
    assert_error(411, "length_required");
    (void)request("POST", "/v1/completions", "Content-Type: text/plain\r\nContent-Length: 2\r\n", NULL);
    assert_error(415, "unsupported_media_type");
    /* what `curl -d` says by default passes; the body is looked at */
    (void)request("POST", "/v1/completions",
                  "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n", NULL);
    assert_error(400, "invalid_json");
    static char body[5000];
    memset(body, 'a', sizeof body);
    memcpy(body, "{\"model\":\"fake\",\"prompt\":\"", 26);
    memcpy(body + 26 + 3000, "\"}", 3);
    (void)request("POST", "/v1/completions", "", body);
    assert_error(400, "context_length_exceeded");
    assert_non_null(strstr(got.body, "3000"));
    assert_non_null(strstr(got.body, "2048"));
    memset(body, '[', 3000);
    body[3000] = '\0';
    (void)request("POST", "/v1/completions", "", body);
    assert_error(400, "invalid_json");
    fake_has_template = false;
    (void)chat("hi", "");
    assert_error(400, "no_chat_template");
    finish();
}

/* The answer text of a stream, its events checked one by one. */
static char stream_text[1 << 16], stream_finish[16];
static int n_events, n_usage;
static bool stream_done, stream_error;

static void read_events(const char *text_key) {
    stream_text[0] = stream_finish[0] = '\0';
    n_events = n_usage = 0;
    stream_done = stream_error = false;
    const char *p = got.body;
    while (*p) {
        const char *end = strstr(p, "\n\n");
        assert_non_null(end);
        if (*p == ':') { /* comment */
            p = end + 2;
            continue;
        }
        assert_memory_equal(p, "data: ", 6);
        assert_false(stream_done);
        p += 6;
        if (end - p == 6 && memcmp(p, "[DONE]", 6) == 0) {
            stream_done = true;
        } else {
            json_t *v = NULL;
            bl_err err;
            if (bl_json_parse(p, (size_t)(end - p), 32, "event", &v, &err) != BL_OK) {
                fail_msg("%s", err.msg);
            }
            n_events++;
            stream_error = stream_error || json_object_get(v, "error");
            n_usage += json_is_object(json_object_get(v, "usage"));
            const json_t *c = json_array_get(json_object_get(v, "choices"), 0);
            const json_t *t = strcmp(text_key, "text") == 0
                                  ? json_object_get(c, "text")
                                  : json_object_get(json_object_get(c, "delta"), text_key);
            if (json_is_string(t)) {
                assert_true(bl_utf8_valid(json_string_value(t), json_string_length(t)));
                size_t len = strlen(stream_text);
                (void)snprintf(stream_text + len, sizeof stream_text - len, "%s", json_string_value(t));
            }
            const char *f = json_string_value(json_object_get(c, "finish_reason"));
            if (f) {
                (void)snprintf(stream_finish, sizeof stream_finish, "%s", f);
            }
            json_decref(v);
        }
        p = end + 2;
    }
}

/* What is left of an answer when the counts of drafting and the ids of the answer are taken away. */
static json_t *answer_without_drafts(json_t **ret_details) {
    json_t *v = body_json(), *usage = json_object_get(v, "usage");
    *ret_details = json_incref(json_object_get(usage, "completion_tokens_details"));
    (void)json_object_del(usage, "completion_tokens_details");
    (void)json_object_del(v, "id");
    (void)json_object_del(v, "created");
    return v;
}

/* Tokens that come in bursts give the answer of tokens that come alone: text, reason of the end and counts,
 * also where a stop string or the limit ends it inside a burst. Only what was drafted is told beside. */
static void test_drafting(void **state) {
    (void)state;
    static const struct {
        const char *content, *fields;
        uint32_t n_rounds; /* of bursts until the last token */
    } rows[] = {
        {"abcdefghij", "", 3},
        {"one two STOP three and more", ",\"stop\":\" STOP\"", 3},
        {"one two STOP three and more", ",\"stop\":[\"o\"]", 0},
        {"one two STOP three and more", ",\"stop\":[\"wo\"]", 2},
        {"abcdefghij", ",\"max_tokens\":3", 1},
        {"abcdefghij", ",\"logprobs\":true,\"stop\":\"ef\"", 2},
        {"abcdefghij", ",\"speculation\":\"auto\"", 3},
        {"abcdefghij", ",\"speculation\":\"off\"", 0},
    };
    json_t *plain[BL_COUNTOF(rows)], *details;
    start(NULL);
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        assert_int_equal(chat(rows[i].content, rows[i].fields), 200);
        plain[i] = answer_without_drafts(&details);
        assert_null(details);
    }
    finish();
    start(NULL);
    fake_draft_depth = 3;
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        assert_int_equal(chat(rows[i].content, rows[i].fields), 200);
        json_t *v = answer_without_drafts(&details);
        if (!json_equal(v, plain[i])) {
            fail_msg("row %zu: %s", i, got.body);
        }
        json_int_t accepted = json_integer_value(json_object_get(details, "accepted_prediction_tokens"));
        json_int_t rejected = json_integer_value(json_object_get(details, "rejected_prediction_tokens"));
        assert_int_equal(accepted, 3 * rows[i].n_rounds);
        assert_int_equal(rejected, rows[i].n_rounds);
        assert_int_equal(fake_last_no_draft, strstr(rows[i].fields, "off") != NULL);
        json_decref(v);
        json_decref(details);
        json_decref(plain[i]);
    }
    assert_int_equal(
        chat("abcdefghij", ",\"stream\":true,\"stop\":\"fg\",\"stream_options\":{\"include_usage\":true}"),
        200);
    read_events("content");
    assert_string_equal(stream_text, "abcde");
    assert_non_null(strstr(got.body, "\"completion_tokens\":7,"));
    assert_non_null(strstr(got.body, "\"completion_tokens_details\":{\"accepted_prediction_tokens\":6,"
                                     "\"rejected_prediction_tokens\":2}"));
    assert_int_equal(request("POST", "/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"hey\"}"), 200);
    assert_non_null(strstr(got.body, "\"accepted_prediction_tokens\":3,"));
    finish();
    fake_draft_depth = 0;
}

static void test_streams(void **state) {
    (void)state;
    start(NULL);
    assert_int_equal(
        chat("h\\u00e9llo \\ud83d\\ude00!", ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
        200);
    assert_true(got.complete);
    assert_memory_equal(header("Content-Type"), "text/event-stream", 17);
    read_events("content");
    assert_string_equal(stream_text, "h\xc3\xa9llo \xf0\x9f\x98\x80!");
    assert_string_equal(stream_finish, "stop");
    assert_true(stream_done);
    assert_int_equal(n_usage, 1);
    assert_int_equal(n_events, 1 + 8 + 1 + 1); /* role, characters, finish, usage */

    assert_int_equal(chat("one two STOP three", ",\"stream\":true,\"stop\":\" STOP\""), 200);
    read_events("content");
    assert_string_equal(stream_text, "one two");
    assert_int_equal(n_usage, 0);
    assert_int_equal(chat("abcdef", ",\"stream\":true,\"max_tokens\":2"), 200);
    read_events("content");
    assert_string_equal(stream_finish, "length");
    assert_int_equal(
        request("POST", "/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"hey\",\"stream\":true}"),
        200);
    read_events("text");
    assert_string_equal(stream_text, "hey");
    assert_true(stream_done);

    /* the engine fails after two tokens: an error event, and no last chunk */
    assert_int_equal(chat("!fail", ",\"stream\":true"), 200);
    assert_false(got.complete);
    read_events("content");
    assert_true(stream_error && !stream_done);
    assert_null(strstr(got.body, "made to fail")); /* inner messages stay inside */
    (void)chat("!fail", "");
    assert_error(500, "internal_error");

    /* HTTP/1.0: no chunks, until close */
    client *c = dial();
    static const char body[] = "{\"model\":\"fake\",\"prompt\":\"old\",\"stream\":true}";
    char text[512];
    (void)snprintf(text, sizeof text, "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
                   sizeof body - 1, body);
    says(c, text);
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_null(header("Transfer-Encoding"));
    read_events("text");
    assert_string_equal(stream_text, "old");
    hang_up(c);
    finish();
}

/* ---- reasoning and tools ---- */

#define TOOLS                                                                                                \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","   \
    "\"properties\":{\"s\":{\"type\":\"string\"}}}}}]"

static char said[1 << 12]; /* "R[..]C[..]T0[name]{..}" */
static char last_finish[24];

static void say_more(const char *text) {
    size_t n = strlen(said);
    (void)snprintf(said + n, sizeof said - n, "%s", text);
}

static const char *text_at(const json_t *v, const char *key) {
    const char *t = json_string_value(json_object_get(v, key));
    return t ? t : "";
}

/* Adds one delta, or a whole message; ids must look like ids, and come once a call. */
static void note_message(const json_t *m, char *kind) {
    static const char *const keys[] = {"reasoning_content", "content"};
    for (size_t i = 0; i < 2; i++) {
        const char *t = text_at(m, keys[i]);
        if (t[0] && *kind != keys[i][0]) {
            say_more(i == 0 ? "R:" : "C:");
            *kind = keys[i][0];
        }
        say_more(t);
    }
    const json_t *calls = json_object_get(m, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        const char *id = text_at(call, "id");
        if (id[0]) {
            assert_memory_equal(id, "call_", 5);
            assert_true(strlen(id) > 20);
            assert_string_equal(text_at(call, "type"), "function");
            say_more("T:");
            say_more(text_at(f, "name"));
            *kind = 't';
        }
        say_more(text_at(f, "arguments"));
    }
}

static void note_choice(const json_t *v, const char *key, char *kind) {
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    note_message(json_object_get(choice, key), kind);
    const char *f = text_at(choice, "finish_reason");
    if (f[0]) {
        (void)snprintf(last_finish, sizeof last_finish, "%s", f);
    }
}

/* Both ways of asking must say the same. */
static void assert_says(const char *content, const char *fields, const char *want,
                        const char *finish_reason) {
    char more[2048], kind = 0;
    assert_int_equal(chat(content, fields), 200);
    said[0] = last_finish[0] = '\0';
    json_t *v = body_json();
    note_choice(v, "message", &kind);
    const json_t *m = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "message");
    if (json_object_get(m, "tool_calls") && !strstr(want, "C:")) {
        assert_true(json_is_null(json_object_get(m, "content")));
    }
    json_decref(v);
    assert_string_equal(said, want);
    assert_string_equal(last_finish, finish_reason);

    (void)snprintf(more, sizeof more, "%s,\"stream\":true", fields);
    assert_int_equal(chat(content, more), 200);
    said[0] = last_finish[0] = '\0';
    kind = 0;
    for (char *p = strstr(got.body, "data: {"), *end; p; p = strstr(end, "data: {")) {
        end = strstr(p, "\n\n");
        assert_non_null(end);
        v = NULL;
        assert_int_equal(bl_json_parse(p + 6, (size_t)(end - p) - 6, 32, "event", &v, NULL), BL_OK);
        note_choice(v, "delta", &kind);
        json_decref(v);
    }
    assert_string_equal(said, want);
    assert_string_equal(last_finish, finish_reason);
}

static void test_reasoning_and_tools(void **state) {
    (void)state;
    start(NULL);
    memset(&fake_features, 0, sizeof fake_features);
    fake_features.dialect = BL_DIALECT_QWEN_XML;
    fake_features.tools = true;
    assert_says("<think>\\nhm\\n</think>\\n\\nYes.", "", "R:hmC:Yes.", "stop");
    fake_start = BL_START_REASONING;
    assert_says("hm\\n</think>\\n\\nYes.", "", "R:hmC:Yes.", "stop");
    assert_says("hm and on", ",\"max_tokens\":4", "R:hm a", "length");
    fake_start = BL_START_TEXT;
#define CALL_OF(name, s)                                                                                     \
    "<tool_call>\\n<function=" name ">\\n<parameter=s>\\n" s "\\n</parameter>\\n</function>\\n</tool_call>"
    assert_says("I call.\\n\\n" CALL_OF("f", "12") "\\n" CALL_OF("g", "12"), TOOLS,
                "C:I call.T:f{\"s\": \"12\"}T:g{\"s\": 12}", "tool_calls");
    assert_says(CALL_OF("f", "a") "\\n" CALL_OF("f", "b"), TOOLS ",\"parallel_tool_calls\":false",
                "T:f{\"s\": \"a\"}", "tool_calls");
    /* without tools, or with none to choose, and cut off, it is text */
    assert_says("<tool_call>\\n{}", "", "C:<tool_call>\n{}", "stop");
    assert_says(CALL_OF("f", "a"), TOOLS ",\"tool_choice\":\"none\"",
                "C:<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
                "stop");
    assert_false(fake_last_had_tools);
    assert_says("<tool_call>\\n<function=f>", TOOLS, "C:<tool_call>\n<function=f>", "stop");
    assert_true(fake_last_had_tools);
    /* a stop string ends a text that was held back as well */
    assert_says("a<thiSTOP", ",\"stop\":\"STOP\"", "C:a<thi", "stop");

    /* harmony: '$' stands for the control token <|call|> */
    fake_features.dialect = BL_DIALECT_HARMONY;
    fake_start = BL_START_HEADER;
    assert_says(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.f<|channel|>commentary "
        "json<|message|>{}$",
        TOOLS, "R:hmT:f{}", "tool_calls");
    assert_says("<|channel|>final<|message|>the <|call|> token", "", "C:the <|call|> token", "stop");
    fake_start = BL_START_TEXT;
    fake_features.dialect = BL_DIALECT_PLAIN;
    assert_says("<think>x", "", "C:<think>x", "stop");
    fake_features.tools = false;
    (void)chat("x", TOOLS);
    assert_error(400, "unsupported_parameter");
    finish();
}

/* Tokens of all chunks or of the whole answer. */
static size_t count_logprobs(const char *key) {
    size_t n = 0;
    const bool stream = strcmp(key, "delta") == 0;
    for (char *p = stream ? strstr(got.body, "data: {") : got.body, *end; p;
         p = stream ? strstr(end, "data: {") : NULL) {
        end = stream ? strstr(p, "\n\n") : got.body + got.n_body;
        json_t *v = NULL;
        p += stream ? 6 : 0;
        assert_int_equal(bl_json_parse(p, (size_t)(end - p), 32, "event", &v, NULL), BL_OK);
        const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
        n += json_array_size(json_object_get(json_object_get(choice, "logprobs"), "content"));
        json_decref(v);
    }
    return n;
}

/* Every token of the answer has its entry, once: thoughts, markers and what is held back at the end too. */
static void test_logprobs_of_thoughts(void **state) {
    (void)state;
    static const char *const answers[] = {"<think>\\nab\\n</think>\\n\\nc\\u00e9d", "ab<thi",
                                          "<tool_call>\\n{\\\"name\\\":\\\"f\\\"}\\n</tool_call>\\n"};
    static const size_t n_tokens[] = {25, 6, 38};
    start(NULL);
    memset(&fake_features, 0, sizeof fake_features);
    fake_features.dialect = BL_DIALECT_QWEN_JSON;
    fake_features.tools = true;
    for (size_t i = 0; i < BL_COUNTOF(answers); i++) {
        assert_int_equal(chat(answers[i], TOOLS ",\"logprobs\":true"), 200);
        assert_int_equal(count_logprobs("message"), n_tokens[i]);
        assert_int_equal(chat(answers[i], TOOLS ",\"logprobs\":true,\"stream\":true"), 200);
        assert_int_equal(count_logprobs("delta"), n_tokens[i]);
    }
    memset(&fake_features, 0, sizeof fake_features);
    finish();
}

/* {"variable": value} that the template was given; NULL: it was not. */
static const json_t *variable(const char *name) {
    return json_object_get(fake_last_extra, name);
}

static void test_thinking_variables(void **state) {
    (void)state;
    start(NULL);
    memset(&fake_features, 0, sizeof fake_features);
    assert_int_equal(chat("x", ",\"chat_template_kwargs\":{\"enable_thinking\":false,\"a\":\"b\"}"), 200);
    assert_true(json_is_false(variable("enable_thinking")));
    assert_string_equal(json_string_value(variable("a")), "b");
    assert_int_equal(chat("x", ",\"reasoning_effort\":\"none\""), 200);
    assert_int_equal(json_object_size(fake_last_extra), 0);
    (void)chat("x", ",\"reasoning_effort\":\"low\"");
    assert_error(400, "unsupported_parameter");
    fake_features.thinking_switch = true;
    assert_int_equal(chat("x", ",\"reasoning_effort\":\"low\""), 200);
    assert_true(json_is_true(variable("enable_thinking")) && !variable("reasoning_effort"));
    assert_int_equal(chat("x", ",\"reasoning_effort\":\"none\""), 200);
    assert_true(json_is_false(variable("enable_thinking")));
    assert_int_equal(
        chat("x", ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true}"), 200);
    assert_true(json_is_true(variable("enable_thinking"))); /* the exact word wins */
    fake_features.reasoning_effort = true;
    assert_int_equal(chat("x", ",\"reasoning_effort\":\"xhigh\""), 200);
    assert_string_equal(json_string_value(variable("reasoning_effort")), "xhigh");
    assert_null(variable("enable_thinking"));
    json_decref(fake_last_extra);
    fake_last_extra = NULL;
    memset(&fake_features, 0, sizeof fake_features);
    finish();
}

static void test_logprobs(void **state) {
    (void)state;
    start(NULL);
    assert_int_equal(chat("abSTc", ",\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"ST\""), 200);
    json_t *v = body_json();
    const json_t *list = json_object_get(
        json_object_get(json_array_get(json_object_get(v, "choices"), 0), "logprobs"), "content");
    assert_int_equal(json_array_size(list), 2); /* of the text that is shown */
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "token")), "b");
    assert_int_equal(json_array_size(json_object_get(json_array_get(list, 1), "top_logprobs")), 2);
    json_decref(v);
    assert_int_equal(
        request("POST", "/v1/completions", "", "{\"model\":\"fake\",\"prompt\":\"\\u00e9b\",\"logprobs\":1}"),
        200);
    v = body_json();
    const json_t *lp = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "logprobs");
    assert_int_equal(json_array_size(json_object_get(lp, "tokens")), 3);
    assert_string_equal(json_string_value(json_array_get(json_object_get(lp, "tokens"), 0)), "bytes:\\xc3");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 2)), 1);
    json_decref(v);
    /* streamed: as many tokens, each with the event that shows its text */
    assert_int_equal(chat("\\ud83d\\ude00ab", ",\"stream\":true,\"logprobs\":true"), 200);
    size_t n = 0;
    for (const char *p = got.body; (p = strstr(p, "\"token\":")); p++) {
        n++;
    }
    assert_int_equal(n, 6);
    read_events("content");
    assert_string_equal(stream_text, "\xf0\x9f\x98\x80"
                                     "ab");
    finish();
}

static void with_key(bl_serve_options *o) {
    o->api_key = "sk-right";
}

static void test_keys(void **state) {
    (void)state;
    start(with_key);
    (void)request("GET", "/v1/models", "", NULL);
    assert_error(401, "invalid_api_key");
    assert_string_equal(header("WWW-Authenticate"), "Bearer");
    static const char *const wrong[] = {"Bearer sk-wrong", "Bearer sk-right ", "Bearer",
                                        "Bearer ",         "Basic sk-right",   "sk-right",
                                        "Bearer sk-righ",  "Bearer sk-rightt"};
    for (size_t i = 0; i < BL_COUNTOF(wrong); i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "Authorization: %s\r\n", wrong[i]);
        int want = i == 1 ? 200 : 401; /* spaces around a header's value are not part of it */
        assert_int_equal(request("GET", "/v1/models", line, NULL), want);
    }
    assert_int_equal(request("GET", "/v1/models", "Authorization: bearer sk-right\r\n", NULL), 200);
    assert_int_equal(request("GET", "/health", "", NULL), 200);
    /* refused before the body is read */
    client *c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 401);
    assert_string_equal(header("Connection"), "close");
    hang_up(c);
    assert_null(strstr(log_text, "sk-"));
    finish();
}

static void with_cors(bl_serve_options *o) {
    o->cors = "https://app.example";
}

static void test_browsers(void **state) {
    (void)state;
    start(NULL);
    client *c = dial();
    says(c, "GET /v1/models HTTP/1.1\r\nHost: evil.example:8000\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 403);
    assert_error(403, "forbidden_host");
    hang_up(c);
    static const char *const hosts[] = {"localhost:8000", "127.0.0.1", "[::1]:8000", "a.localhost",
                                        "LOCALHOST"};
    for (size_t i = 0; i < BL_COUNTOF(hosts); i++) {
        char text[128];
        c = dial();
        (void)snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i]);
        says(c, text);
        assert_int_equal(listen_for_answer(c, false), 200);
        hang_up(c);
    }
    (void)request("POST", "/v1/completions", "Origin: https://evil.example\r\n", "{}");
    assert_error(403, "forbidden_origin");
    assert_int_equal(request("GET", "/health", "Origin: http://127.0.0.1\r\n", NULL), 200); /* same origin */
    finish();

    start(with_cors);
    assert_int_equal(request("OPTIONS", "/v1/chat/completions", "Origin: https://app.example\r\n", NULL),
                     204);
    assert_string_equal(header("Access-Control-Allow-Origin"), "https://app.example");
    assert_int_equal(request("GET", "/v1/models", "Origin: https://app.example\r\n", NULL), 200);
    assert_string_equal(header("Access-Control-Allow-Origin"), "https://app.example");
    assert_string_equal(header("Vary"), "Origin");
    assert_int_equal(request("GET", "/v1/models", "Origin: https://evil.example\r\n", NULL), 403);
    assert_null(header("Access-Control-Allow-Origin"));
    finish();
}

#define SMALL      "{\"model\":\"fake\",\"prompt\":\"ab\"}"
#define POST_SMALL "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\n\r\n" SMALL

static void any_host(bl_serve_options *o) {
    o->any_host = true;
}

static void test_keep_alive_and_pipelining(void **state) {
    (void)state;
    start(any_host);
    atomic_store(&fake_step_us, 2000);
    client *c = dial();
    says(c, POST_SMALL);
    assert_int_equal(listen_for_answer(c, false), 200);
    says(c, "\r\n" POST_SMALL "GET /health HTTP/1.1\r\nHost: h\r\n\r\n" POST_SMALL
            "HEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_non_null(strstr(got.body, "\"text\":\"ab\""));
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_non_null(strstr(got.body, "\"status\":\"ok\""));
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_non_null(strstr(got.body, "\"text\":\"ab\""));
    assert_int_equal(listen_for_answer(c, true), 200);
    assert_int_equal(listen_for_answer(c, false), 404);
    says(c, "GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_false(hear(c));
    hang_up(c);
    finish();
}

static void test_every_split(void **state) {
    (void)state;
    start(any_host);
    static const char text[] =
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "8\r\n{\"model\"\r\n16;e\r\n:\"fake\",\"prompt\":\"ab\"}\r\n0\r\nT: t\r\n\r\n";
    client *c = dial();
    for (size_t cut = 1; cut < sizeof text - 1; cut++) {
        say(c, text, cut);
        usleep(200);
        say(c, text + cut, sizeof text - 1 - cut);
        if (listen_for_answer(c, false) != 200) {
            fail_msg("cut at %zu: %d %s", cut, got.status, got.body);
        }
        assert_non_null(strstr(got.body, "\"text\":\"ab\""));
    }
    for (size_t i = 0; i < sizeof text - 1; i++) { /* byte by byte */
        say(c, text + i, 1);
    }
    assert_int_equal(listen_for_answer(c, false), 200);
    hang_up(c);
    finish();
}

static void test_bodies(void **state) {
    (void)state;
    start(any_host);
    client *c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\nExpect: 100-continue\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 100);
    says(c, SMALL);
    assert_int_equal(listen_for_answer(c, false), 200);
    hang_up(c);
    /* too large by its header: answered at once, also when asked whether to continue */
    uint64_t t0 = bl_clock_mono_ns();
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\nExpect: "
            "100-continue\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 413);
    assert_error(413, "body_too_large");
    assert_true(bl_clock_mono_ns() - t0 < 1000000000u);
    hang_up(c);
    /* too large by its chunks */
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1000001\r\n");
    assert_int_equal(listen_for_answer(c, false), 413);
    hang_up(c);
    /* a client that sends 100 MB before it reads still gets the answer */
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n");
    static char block[1 << 20];
    for (size_t sent = 0; sent < 100000000;) {
        ssize_t n = send(c->fd, block, BL_MIN(sizeof block, 100000000 - sent), MSG_NOSIGNAL);
        if (n <= 0) {
            break;
        }
        sent += (size_t)n;
    }
    assert_int_equal(listen_for_answer(c, false), 413);
    hang_up(c);
    /* also when it takes its time */
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n");
    for (int i = 0; i < 8; i++) {
        say(c, block, 10000);
        usleep(500000);
    }
    say(c, block, 10000);
    assert_int_equal(listen_for_answer(c, false), 413);
    hang_up(c);
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    assert_int_equal(listen_for_answer(c, false), 400);
    assert_error(400, "invalid_http");
    hang_up(c);
    c = dial();
    says(c, "nonsense\r\n\r\n");
    assert_int_equal(listen_for_answer(c, false), 400);
    assert_error(400, "invalid_http");
    assert_false(hear(c));
    hang_up(c);
    c = dial();
    says(c, "GET / HTTP/1.1\r\n");
    for (int i = 0; i < 20; i++) {
        char line[1024];
        (void)snprintf(line, sizeof line, "X: %01000d\r\n", i);
        says(c, line);
    }
    assert_int_equal(listen_for_answer(c, false), 431);
    hang_up(c);
    finish();
}

static void post_slow(client *c, const char *fields) {
    char text[1024], body[512];
    (void)snprintf(body, sizeof body, "{\"model\":\"fake\",\"prompt\":\"!loop\"%s}", fields);
    (void)snprintf(text, sizeof text,
                   "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                   body);
    says(c, text);
}

static void test_disconnects(void **state) {
    (void)state;
    start(any_host);
    atomic_store(&fake_step_us, 20000);
    for (int streaming = 0; streaming < 2; streaming++) {
        client *c = dial();
        post_slow(c, streaming ? ",\"stream\":true" : "");
        wait_queue("running", 1);
        uint64_t t0 = bl_clock_mono_ns();
        hang_up(c);
        wait_queue("running", 0);
        assert_true(bl_clock_mono_ns() - t0 < 500000000u); /* a step is 20 ms */
    }
    bl_engine_stats st;
    bl_engine_get_stats(engine, &st);
    assert_int_equal(st.n_cancelled, 2);
    assert_int_equal(st.n_finished, 0);
    /* in the middle of a head and of a body */
    client *c = dial();
    says(c, "POST /v1/comp");
    hang_up(c);
    c = dial();
    says(c, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\n\r\n{\"mod");
    hang_up(c);
    assert_int_equal(chat("ok", ""), 200);
    finish();
}

static void small_queue(bl_serve_options *o) {
    o->any_host = true;
    o->max_concurrent = 1;
    o->max_queue = 1;
}

static void test_queue(void **state) {
    (void)state;
    start(small_queue);
    fake_max_queue = 1;
    atomic_store(&fake_step_us, 5000);
    int fds[2];
    for (int i = 0; i < 2; i++) { /* one runs, one waits */
        client *c = dial();
        post_slow(c, "");
        fds[i] = c->fd;
        wait_queue("running", 1);
    }
    wait_queue("waiting", 1);
    (void)chat("hi", "");
    assert_error(429, "queue_full");
    assert_non_null(header("Retry-After"));
    close(fds[1]);
    close(fds[0]);
    wait_queue("running", 0);
    wait_queue("waiting", 0);
    assert_int_equal(chat("hi", ""), 200);
    finish();
}

static void short_times(bl_serve_options *o) {
    o->any_host = true;
    o->head_timeout_ms = 300;
    o->write_timeout_ms = 600;
    o->alive_ms = 200;
}

static void test_slow_clients(void **state) {
    (void)state;
    start(short_times);
    client *c = dial();
    says(c, "GET / HT");
    assert_int_equal(listen_for_answer(c, false), 408);
    hang_up(c);
    c = dial();
    assert_false(hear(c)); /* silent: closed without a word */
    hang_up(c);
    /* a reader that takes nothing: what waits for it is bounded, and it is dropped */
    c = dial();
    int small = 4096;
    atomic_store(&fake_step_us, 1);
    assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    post_slow(c, ",\"stream\":true");
    wait_queue("running", 1);
    bl_engine_stats st;
    for (int i = 0; i < 1000; i++) {
        bl_engine_get_stats(engine, &st);
        if (st.running == 0) {
            break;
        }
        usleep(10000);
    }
    assert_int_equal(st.running, 0);
    hang_up(c);
    /* silence in a stream is broken by comments */
    atomic_store(&fake_step_us, 900000);
    c = dial();
    post_slow(c, ",\"stream\":true,\"max_tokens\":2");
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_non_null(strstr(got.body, ": keep-alive\n\n"));
    read_events("text");
    assert_string_equal(stream_text, "xx");
    hang_up(c);
    finish();
}

static void few_connections(bl_serve_options *o) {
    o->any_host = true;
    o->max_connections = 4;
}

static void test_connection_limit(void **state) {
    (void)state;
    start(few_connections);
    int fds[4];
    for (int i = 0; i < 4; i++) {
        client *c = dial();
        says(c, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_int_equal(listen_for_answer(c, false), 200);
        fds[i] = c->fd;
    }
    client *c = dial();
    assert_int_equal(listen_for_answer(c, false), 503);
    assert_error(503, "overloaded");
    hang_up(c);
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
    usleep(100000);
    assert_int_equal(request("GET", "/health", "", NULL), 200);
    finish();
}

static void test_graceful_end(void **state) {
    (void)state;
    start(any_host);
    atomic_store(&fake_step_us, 20000);
    client *idle = dial();
    int idle_fd = idle->fd;
    client *c = dial();
    post_slow(c, ",\"stream\":true,\"max_tokens\":20");
    wait_queue("running", 1);
    bl_serve_stop(server);
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_true(got.complete);
    read_events("text");
    assert_int_equal(strlen(stream_text), 20);
    assert_true(stream_done);
    char byte;
    assert_int_equal(recv(idle_fd, &byte, 1, 0), 0);
    close(idle_fd);
    hang_up(c);
    pthread_join(loop_thread, NULL);
    bl_serve_free(server);
    fake_engine_end(engine);

    start(any_host); /* the second call cuts */
    atomic_store(&fake_step_us, 20000);
    c = dial();
    post_slow(c, ",\"stream\":true");
    while (!strstr(c->buf, "\r\n\r\n") && hear(c)) {
    }
    bl_serve_stop(server);
    bl_serve_stop(server);
    assert_int_equal(listen_for_answer(c, false), 200);
    assert_false(got.complete);
    read_events("text");
    assert_true(stream_error && !stream_done);
    hang_up(c);
    pthread_join(loop_thread, NULL);
    bl_serve_free(server);
    fake_engine_end(engine);
}

static void test_options(void **state) {
    (void)state;
    bl_serve_options o;
    bl_serve *s = NULL;
    bl_err err;
    start(NULL);
    bl_serve_options_init(&o);
    o.port = bl_serve_port(server);
    assert_int_equal(bl_serve_open(&o, &s, &err), BL_EIO);
    assert_non_null(strstr(err.msg, "127.0.0.1"));
    finish();
    o.bind = "nowhere.example";
    assert_int_equal(bl_serve_open(&o, &s, &err), BL_EINVAL);
    o.bind = "127.0.0.1";
    o.port = 0;
    o.api_key = "";
    assert_int_equal(bl_serve_open(&o, &s, &err), BL_EINVAL);
    o.api_key = NULL;
    static const char *const bad[] = {"app.example", "https://a b", "https://a\r\nX: y"};
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        o.cors = bad[i];
        assert_int_equal(bl_serve_open(&o, &s, &err), BL_EINVAL);
    }
}

/* The log names requests and numbers, and nothing that a user wrote. */
static void test_log(void **state) {
    (void)state;
    assert_non_null(strstr(log_text, "method=POST route=/v1/chat/completions status=200"));
    assert_non_null(strstr(log_text, "route=/v1/models/{id} status=404"));
    static const char *const written[] = {"hello", "one two", "evil", "nowhere", "nonsense", "BREW"};
    for (size_t i = 0; i < BL_COUNTOF(written); i++) {
        if (strstr(log_text, written[i])) {
            fail_msg("the log holds '%s'", written[i]);
        }
    }
}

int main(void) {
    (void)signal(SIGPIPE, SIG_IGN);
    bl_log_set_level(BL_LOG_INFO);
    bl_log_set_sink(log_sink, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_routes),
        cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_drafting),
        cmocka_unit_test(test_reasoning_and_tools),
        cmocka_unit_test(test_logprobs_of_thoughts),
        cmocka_unit_test(test_thinking_variables),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_browsers),
        cmocka_unit_test(test_keep_alive_and_pipelining),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_disconnects),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_slow_clients),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_graceful_end),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
