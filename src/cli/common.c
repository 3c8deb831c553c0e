#include "cli/common.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/os.h"

bl_code bl_cli_open_store(const bl_cli_store_args *a, bl_store *ret, bl_err *err) {
    bl_store_settings s = {.models_dir = a->models_dir,
                           .cache_home = a->cache_home,
                           .home = a->home,
                           .hf_home = a->hf_home,
                           .hf_hub_cache = a->hf_hub_cache};
    return bl_store_init(ret, &s, err);
}

/* ---- Ctrl-C
 * ---------------------------------------------------------------------------------------------------------------
 */

/* A signal handler has no argument to find its flag by: the one mutable global of cli/. */
static atomic_bool interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    /* Pairs with the relaxed loads of the loops that poll it; no data travels with it. */
    atomic_store_explicit(&interrupted, true, memory_order_relaxed);
}

void bl_cli_catch_interrupt(void) {
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: waiting calls return */
    sigemptyset(&sa.sa_mask);
    (void)sigaction(SIGINT, &sa, NULL);
}

const atomic_bool *bl_cli_interrupt_flag(void) {
    return &interrupted;
}

bool bl_cli_interrupted(void) {
    return atomic_load_explicit(&interrupted, memory_order_relaxed);
}

void bl_cli_clear_interrupt(void) {
    atomic_store_explicit(&interrupted, false, memory_order_relaxed);
}

/* ---- progress
 * --------------------------------------------------------------------------------------------------------------
 */

void bl_cli_progress_init(bl_cli_progress *p, const char *what, uint64_t start_bytes) {
    *p = (bl_cli_progress){.what = what,
                           .is_terminal = isatty(STDERR_FILENO) == 1,
                           .start_ns = bl_clock_mono_ns(),
                           .start_bytes = start_bytes};
    p->last_ns = p->start_ns;
}

static void draw_bar(bl_cli_progress *p, uint64_t now, uint64_t done, uint64_t total) {
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], a[24], b[24], speed[24], left[32] = "";
    double part = total > 0 ? (double)done / (double)total : 0;
    unsigned filled = (unsigned)(part * WIDTH);
    for (unsigned i = 0; i < WIDTH; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    bar[WIDTH] = '\0';
    double s = (double)(now - p->start_ns) * 1e-9;
    double rate = s > 0 && done > p->start_bytes ? (double)(done - p->start_bytes) / s : 0;
    if (rate > 0 && total > done) {
        unsigned n_left = (unsigned)BL_MIN((double)(total - done) / rate, 359999.0);
        snprintf(left, sizeof(left), ", %u:%02u left", n_left / 60, n_left % 60);
    }
    fprintf(stderr, "\r\033[K%s [%s] %s of %s, %s/s%s", p->what, bar, bl_cli_size(done, a),
            bl_cli_size(total, b), bl_cli_size((uint64_t)rate, speed), left);
    fflush(stderr);
    p->drawn = true;
}

void bl_cli_progress_show(bl_cli_progress *p, uint64_t done_bytes, uint64_t total_bytes) {
    uint64_t now = bl_clock_mono_ns();
    if (p->is_terminal) {
        /* Ten times a second, the first time after a quarter: what is over sooner shows nothing. */
        uint64_t wait_ns = p->drawn ? 100000000u : 250000000u;
        if (now - p->last_ns >= wait_ns) {
            p->last_ns = now;
            draw_bar(p, now, done_bytes, total_bytes);
        }
        return;
    }
    uint32_t tenth = total_bytes > 0 ? (uint32_t)((double)done_bytes / (double)total_bytes * 10) : 0;
    if (tenth > p->last_tenth && now - p->start_ns >= 1000000000u) {
        char a[24], b[24];
        p->last_tenth = tenth;
        fprintf(stderr, "%s: %s of %s (%u%%)\n", p->what, bl_cli_size(done_bytes, a),
                bl_cli_size(total_bytes, b), tenth * 10);
    }
}

void bl_cli_progress_clear(bl_cli_progress *p) {
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        p->drawn = false;
    }
}

/* ---- small things
 * ------------------------------------------------------------------------------------------------------------
 */

const char *bl_cli_size(uint64_t n_bytes, char ret[24]) {
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
    if (n_bytes < 1000) {
        snprintf(ret, 24, "%" PRIu64 " bytes", n_bytes);
        return ret;
    }
    double v = (double)n_bytes / 1000;
    size_t u = 0;
    while (v >= 999.95 && u + 1 < BL_COUNTOF(units)) {
        v /= 1000;
        u++;
    }
    snprintf(ret, 24, "%.1f %s", v, units[u]);
    return ret;
}

bl_code bl_cli_print_json(json_t *j, bl_err *err) {
    int bad = j == NULL || json_dumpf(j, stdout, JSON_COMPACT | JSON_ENCODE_ANY) != 0;
    json_decref(j);
    if (bad || putchar('\n') == EOF || fflush(stdout) == EOF) {
        BL_FAIL(err, BL_EIO, "the result could not be written");
    }
    return BL_OK;
}

bl_code bl_cli_read_stdin(size_t max_bytes, bl_buf *ret, bl_err *err) {
    bl_buf_init(ret, max_bytes);
    char chunk[16384];
    for (;;) {
        ssize_t n = bl_os.read(STDIN_FILENO, chunk, sizeof(chunk));
        if (n == 0) {
            return BL_OK;
        }
        if (n > 0) {
            BL_TRY(bl_buf_append(ret, chunk, (size_t)n, err));
        } else if (errno != EINTR || bl_cli_interrupted()) {
            BL_FAIL(err, bl_cli_interrupted() ? BL_ECANCEL : BL_EIO, "cannot read standard input: %s",
                    strerror(errno));
        }
    }
}

int bl_cli_fail(const bl_err *err) {
    bl_cli_error(err);
    return err->code == BL_ECANCEL ? BL_EXIT_INTERRUPTED : BL_EXIT_FAILED;
}
