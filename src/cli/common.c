#include "cli/common.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/os.h"
#include "base/words.h"
#include "backend/backend.h"
#include "cli/machine.h"

bl_code bl_cli_open_store(const bl_cli_store_args *a, bl_store *ret, bl_err *err) {
    bl_store_settings s = {.models_dir = a->models_dir,
                           .cache_home = a->cache_home,
                           .home = a->home,
                           .hf_home = a->hf_home,
                           .hf_hub_cache = a->hf_hub_cache};
    return bl_store_init(ret, &s, err);
}

/* ---- a model, opened --------------------------------------------------------------------------- */

/* Drafting, decided once: nothing later reads config.json for it again. */
static void plan_drafting(const bl_cli_engine_args *a, const char *home, bl_engine_options *o,
                          bl_mtp_plan *ret) {
    static const bl_mtp_mode modes[] = {BL_MTP_MODE_AUTO, BL_MTP_MODE_ON, BL_MTP_MODE_OFF};
    bl_mtp_settings s = {.mode = modes[a->mtp_mode],
                         .killed = bl_word_is_off(a->mtp_switch),
                         .depth = a->mtp_depth,
                         .drafter_path = a->mtp_drafter_path,
                         .home = home};
    bl_mtp_plan_make(&s, o->model_path, ret);
    o->draft_depth = ret->depth;
    o->draft_fixed = a->mtp_fixed;
    o->draft_path = ret->drafter_path[0] != '\0' ? ret->drafter_path : NULL;
}

bl_code bl_cli_engine_options(const bl_cli_engine_args *a, const bl_cli_store_args *s, bl_engine_options *ret,
                              char **ret_path, bl_mtp_plan *ret_mtp, bl_err *err) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    if (a->model == NULL) {
        BL_FAIL(
            err, BL_EINVAL,
            "no model given: --model MODEL or DARKBLOOM_MODEL ('darkbloom models list' shows what is here)");
    }
    BL_TRY(bl_cpu_parse_mask(a->cpu_mask, &o.cpu_mask, err));
    bl_store store;
    char *path = NULL;
    BL_TRY(bl_cli_open_store(s, &store, err));
    BL_TRY(bl_store_resolve(&store, a->model, &path, err));
    o.model_path = path;
    o.n_threads = a->threads;
    o.n_context = a->context;
    o.prefill_chunk = a->chunk;
    o.activations_f32 = a->activations == 1;
    o.max_memory_bytes = a->max_memory;
    o.max_concurrent = 1; /* `start` asks for more */
    plan_drafting(a, s->home, &o, ret_mtp);
    *ret = o;
    *ret_path = path;
    return BL_OK;
}

bl_code bl_cli_sampling(const bl_command *c, const bl_opts *o, const bl_cli_sampling_args *a,
                        const bl_chat *chat, bl_sampling *ret, bl_err *err) {
    bl_chat_defaults d = {.temperature = 1, .top_p = 1};
    if (chat != NULL) {
        d = bl_chat_sampling_defaults(chat);
    }
    bl_sampling s = {.temperature =
                         bl_opts_given(c, o, "temperature") ? (float)a->temperature : d.temperature,
                     .top_k = bl_opts_given(c, o, "top-k") ? a->top_k : d.top_k,
                     .top_p = bl_opts_given(c, o, "top-p") ? (float)a->top_p : d.top_p,
                     .min_p = bl_opts_given(c, o, "min-p") ? (float)a->min_p : d.min_p,
                     .seed = a->seed};
    if (!bl_opts_given(c, o, "seed")) {
        uint32_t drawn = 0; /* 32 bits: short enough to type again */
        if (getrandom(&drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn)) {
            BL_FAIL(err, BL_EIO, "the system gives no random seed: %s", strerror(errno));
        }
        s.seed = drawn;
    }
    *ret = s;
    return BL_OK;
}

bl_code bl_cli_template_vars(const bl_cli_template_args *a, const bl_chat *chat, json_t **ret, bl_err *err) {
    const bl_chat_features *f = bl_chat_describe(chat);
    if (a->thinking != 0 && !f->thinking_switch) {
        BL_FAIL(err, BL_EINVAL, "--thinking %s: the chat template has no such switch",
                a->thinking == 1 ? "on" : "off");
    }
    if (a->effort != NULL && !f->reasoning_effort) {
        BL_FAIL(err, BL_EINVAL, "--effort %.20s: the chat template has no such setting", a->effort);
    }
    if (a->thinking == 0 && a->effort == NULL) {
        *ret = NULL;
        return BL_OK;
    }
    json_t *vars = json_object();
    int rc = vars != NULL ? 0 : -1;
    if (rc == 0 && a->thinking != 0) {
        rc = json_object_set_new(vars, "enable_thinking", json_boolean(a->thinking == 1));
    }
    if (rc == 0 && a->effort != NULL) {
        rc = json_object_set_new(vars, "reasoning_effort", json_string(a->effort));
    }
    if (rc != 0) {
        json_decref(vars);
        BL_FAIL(err, BL_EINVAL, "--effort: not valid UTF-8 text");
    }
    *ret = vars;
    return BL_OK;
}

bl_code bl_cli_chat_open(const char *path, bl_chat **ret, bl_err *err) {
    bl_checkpoint *c = NULL;
    BL_TRY(bl_checkpoint_open(path, &c, err));
    bl_code rc = bl_chat_open(c, ret, err);
    bl_checkpoint_free(c);
    return rc;
}

/* Once it is known that this machine has what the model needs. */
static bl_code open_chat(bl_cli_model *m, uint32_t cpu_mask, bl_err *err) {
    bl_checkpoint *c = NULL;
    BL_TRY(bl_checkpoint_open(m->path, &c, err));
    bl_code rc = bl_cli_check_needs(c, cpu_mask, err);
    if (rc == BL_OK) {
        rc = bl_chat_open(c, &m->chat, err);
    }
    snprintf(m->name, sizeof m->name, "%s", bl_checkpoint_name(c));
    bl_checkpoint_free(c);
    return rc;
}

static void show_loading(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    bl_cli_progress_show(user, done_bytes, total_bytes);
}

void bl_cli_mtp_warn(const bl_mtp_status *s, const char *path) {
    char line[BL_MTP_LINE_BYTES];
    if (s->loud) {
        bl_mtp_status_line(s, line);
        bl_cli_errorf("warning: mtp: %s: %s: %s", line, path, s->detail);
    }
}

/* Nobody hears of drafting who neither has nor asked for it. */
static void report_drafting(const bl_cli_model *m, bool quiet) {
    char line[BL_MTP_LINE_BYTES];
    bl_cli_mtp_warn(&m->mtp, m->path);
    if (!m->mtp.loud && m->mtp.enabled && !quiet) {
        bl_mtp_status_line(&m->mtp, line);
        fprintf(stderr, "mtp: %s\n", line);
    }
}

bl_code bl_cli_model_open(const bl_cli_engine_args *a, const bl_cli_store_args *s, bool quiet, bool remembers,
                          bl_cli_model *ret, bl_err *err) {
    bl_cli_model m = {0};
    bl_engine_options o;
    bl_cli_progress bar;
    bl_mtp_plan plan;
    uint64_t start = bl_clock_mono_ns();
    BL_TRY(bl_cli_engine_options(a, s, &o, &m.path, &plan, err));
    o.prefix_cache_bytes = remembers ? BL_AUTO : 0;
    bl_cli_progress_init(&bar, "loading", 0);
    if (!quiet && bar.is_terminal) {
        o.progress = show_loading;
        o.progress_user = &bar;
    }
    bl_code rc = open_chat(&m, o.cpu_mask, err);
    if (rc == BL_OK) {
        rc = bl_mtp_engine_open(&plan, &o, &m.engine, err);
    }
    bl_cli_progress_clear(&bar);
    if (rc != BL_OK) {
        bl_cli_model_close(&m);
        return rc;
    }
    m.load_ms = (double)(bl_clock_mono_ns() - start) * 1e-6;
    bl_mtp_status_make(&plan, bl_engine_info(m.engine), &m.mtp);
    report_drafting(&m, quiet);
    *ret = m;
    return BL_OK;
}

void bl_cli_model_close(bl_cli_model *m) {
    bl_engine_close(m->engine);
    bl_chat_free(m->chat);
    bl_free(m->path);
    *m = (bl_cli_model){0};
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------ */

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

void bl_cli_interrupt(void) {
    atomic_store_explicit(&interrupted, true, memory_order_relaxed);
}

/* ---- progress ---------------------------------------------------------------------------------- */

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

/* ---- small things ------------------------------------------------------------------------------ */

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
    int bad =
        j == NULL || json_dumpf(j, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) != 0;
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

bool bl_cli_write_text(FILE *f, const char *text, size_t n, bool for_terminal) {
    size_t from = 0;
    for (size_t i = 0; for_terminal && i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        /* C0 and DEL are one byte, C1 is C2 80..9F. */
        bool c1 = c == 0xC2 && i + 1 < n && ((unsigned char)text[i + 1] & 0xE0) == 0x80;
        if (!c1 && (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7F))) {
            continue;
        }
        fwrite(text + from, 1, i - from, f);
        fputc('?', f);
        i += c1 ? 1 : 0;
        from = i + 1;
    }
    fwrite(text + from, 1, n - from, f);
    return fflush(f) != EOF && !ferror(f);
}

void bl_cli_print_text(const char *text) {
    (void)bl_cli_write_text(stdout, text, strlen(text), isatty(STDOUT_FILENO) == 1);
}

int bl_cli_wrong_usage(const bl_err *err) {
    bl_cli_errorf("%s", err->msg);
    return BL_EXIT_USAGE;
}

int bl_cli_fail(const bl_err *err) {
    bl_cli_error(err);
    return err->code == BL_ECANCEL ? BL_EXIT_INTERRUPTED : BL_EXIT_FAILED;
}
