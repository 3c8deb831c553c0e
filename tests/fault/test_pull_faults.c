/* Every Nth allocation and system call fails while models are listed and while a file is fetched from a
 * server on loopback: an ordinary error each time, nothing leaked, no file under the final name that is not
 * whole, and the next try succeeds.
 */
#include "../unit/cmocka_all.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "faults.h"
#include "net/download.h"
#include "provider/store.h"

enum { BODY = 200000 };

static char root[128], url[64], body[BODY];
static int listener = -1;

static void send_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t w = send(fd, data, n, MSG_NOSIGNAL);
        if (w <= 0) {
            return;
        }
        data += w;
        n -= (size_t)w;
    }
}

/* Answers every request with the whole body and closes; ends when the listening socket is shut down. */
static void *serve(void *arg) {
    (void)arg;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        char request[4096], head[160];
        size_t have = 0;
        ssize_t n;
        while (have + 1 < sizeof(request) &&
               (n = recv(fd, request + have, sizeof(request) - 1 - have, 0)) > 0) {
            have += (size_t)n;
            request[have] = '\0';
            if (strstr(request, "\r\n\r\n") != NULL) {
                break;
            }
        }
        int len = snprintf(
            head, sizeof(head),
            "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", BODY);
        send_all(fd, head, (size_t)len);
        send_all(fd, body, BODY);
    }
    return NULL;
}

static bool fired(void) {
    return atomic_load_explicit(&faults.fired, memory_order_relaxed);
}

static uint64_t n_live(void) {
    return atomic_load_explicit(&faults.n_live, memory_order_relaxed);
}

static const char *at(const char *name) {
    static char paths[4][256];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof(paths[0]), "%s/%s", root, name);
    return p;
}

static void listing_under(unsigned kinds, bool persistent) {
    bl_store s;
    assert_int_equal(bl_store_init(&s, &(bl_store_settings){.models_dir = root}, NULL), BL_OK);
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        char *path = NULL;
        bl_err err = {0};
        bl_code rc = bl_store_resolve(&s, "model", &path, &err);
        if (rc == BL_OK) {
            assert_string_equal(path, at("model.gguf"));
        } else {
            assert_true(fired());
            assert_null(path);
            assert_int_equal(rc, BL_ENOMEM);
        }
        bl_free(path);
        assert_int_equal(n_live(), 0);
        assert_true(n < 1000);
    }
    assert_true(n > 3);
}

static void names_resolve_while_allocations_fail(void **state) {
    (void)state;
    listing_under(FAULT_ALLOC, false);
    listing_under(FAULT_ALLOC, true);
}

static bl_code fetch(const char *path, bl_err *err) {
    bl_download_options o = {.max_attempts = 1, .retry_delay_ms = 1};
    bl_download_file_request r = {
        .url = url, .path = path, .has_size = true, .size_bytes = BODY, .hash = BL_HASH_SHA256};
    char hex[65];
    bl_downloader *d = NULL;
    BL_TRY(bl_hash_file(at("body"), BL_HASH_SHA256, hex, err));
    r.hash_hex = hex;
    BL_TRY(bl_downloader_new(&o, &d, err));
    bl_code rc = bl_download_file(d, &r, NULL, err);
    bl_downloader_free(d);
    return rc;
}

static bool is_whole(const char *path) {
    bl_buf b;
    bool ok = bl_file_read(path, BODY, &b, NULL) == BL_OK && b.len == BODY && memcmp(b.data, body, BODY) == 0;
    bl_buf_done(&b);
    return ok;
}

static void fetch_under(unsigned kinds, bool persistent) {
    char path[256];
    snprintf(path, sizeof(path), "%s", at("fetched"));
    uint64_t n = 1;
    for (; faults_arm(n, kinds, persistent); n++) {
        bl_err err = {0};
        bl_code rc = fetch(path, &err);
        bool whole_run = !fired();
        assert_int_equal(n_live(), 0);
        faults_disarm();
        if (rc != BL_OK) {
            assert_false(whole_run);
            assert_true(rc == BL_ENOMEM || rc == BL_EIO || rc == BL_ENOTFOUND);
            assert_true(strlen(err.msg) > 0);
            assert_false(bl_file_exists(path));
            /* What the failed try left is no obstacle. */
            assert_int_equal(fetch(path, &err), BL_OK);
        }
        assert_true(is_whole(path));
        assert_int_equal(unlink(path), 0);
        assert_false(bl_file_exists(at("fetched.part")));
        assert_true(n < 10000);
    }
    assert_true(n > (kinds == FAULT_IO ? 10 : 3)); /* libcurl allocates by itself */
}

static void a_file_arrives_whole_or_not_at_all(void **state) {
    (void)state;
    fetch_under(FAULT_ALLOC, false);
    fetch_under(FAULT_ALLOC, true);
    fetch_under(FAULT_IO, false);
    fetch_under(FAULT_IO, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_resolve_while_allocations_fail),
        cmocka_unit_test(a_file_arrives_whole_or_not_at_all),
    };
    snprintf(root, sizeof(root), "/tmp/bl_test_pull_faults.%ld", (long)getpid());
    for (size_t i = 0; i < BODY; i++) {
        body[i] = (char)(i * 2654435761u >> 13);
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t t;
    if (bl_file_make_dirs(root, NULL) != BL_OK ||
        bl_file_write_atomic(at("model.gguf"), "x", 1, NULL) != BL_OK ||
        bl_file_write_atomic(at("body"), body, BODY, NULL) != BL_OK ||
        bind(listener, (struct sockaddr *)&a, len) != 0 || listen(listener, 8) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) != 0 ||
        pthread_create(&t, NULL, serve, NULL) != 0) {
        return 1;
    }
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/file", ntohs(a.sin_port));
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    shutdown(listener, SHUT_RDWR);
    close(listener);
    pthread_join(t, NULL);
    char cmd[200];
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", root);
    return system(cmd) != 0 ? 1 : rc;
}
