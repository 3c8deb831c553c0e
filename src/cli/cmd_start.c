/* `darkbloom start --local`: one model behind an OpenAI-compatible server on this machine. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "cli/machine.h"
#include "provider/state.h"
#include "serve/serve.h"

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine;
    bl_cli_state_args state;
    bool local, no_auth, any_host, quiet;
    const char *bind, *api_key, *cors, *name;
    bl_opt_list aliases;
    uint32_t port, max_queue, max_connections, alive_s, write_s, drain_s;
    uint32_t max_concurrent, token_gap_ms, prefill_cap, solo_stripe, max_partial, query_block,
        queue_timeout_s;
    uint32_t kv_storage, prefix_cache; /* choices */
    uint64_t kv_bytes, prefix_cache_bytes;
    const char *paged_switch, *retired[9];
} start_args;

/* A variable of earlier versions, without effect. */
#define RETIRED(i, var)                                                                                      \
    { BL_OPT_TEXT_AT(start_args, retired[i]), .env = var }

static const bl_opt options[] = {
    BL_CLI_MODEL_OPTION(start_args),
    {BL_OPT_TEXT_AT(start_args, name), .name = "name", .arg = "ID",
     .doc = "The model's id for clients; without it the name of its file or folder."},
    {BL_OPT_LIST_AT(start_args, aliases), .name = "alias", .arg = "ID",
     .doc = "A further id that is accepted (a client's fixed model name, say)."},
    {BL_OPT_FLAG_AT(start_args, local), .name = "local", .group = "Server",
     .doc = "Serve this machine's clients, without a fleet. For now the only way, and so required."},
    {BL_OPT_TEXT_AT(start_args, bind), .name = "bind", .arg = "ADDRESS", .def = "127.0.0.1",
     .doc = "Address to listen on. Beyond loopback an API key or --no-auth is required."},
    {BL_OPT_U32_AT(start_args, port), .name = "port", .arg = "N", .def = "8000", .max = 65535,
     .doc = "Port to listen on; 0 takes a free one, which the start line names."},
    {BL_OPT_TEXT_AT(start_args, api_key), .name = "api-key", .arg = "KEY", .env = "DARKBLOOM_API_KEY",
     .doc = "Key that clients must send. Other users of this machine can read command lines: prefer the "
            "environment."},
    {BL_OPT_FLAG_AT(start_args, no_auth), .name = "no-auth", .doc = "Ask for no key, on purpose."},
    {BL_OPT_FLAG_AT(start_args, any_host), .name = "any-host",
     .doc = "Without a key on loopback: accept requests for any host name, not only this machine's."},
    {BL_OPT_TEXT_AT(start_args, cors), .name = "cors", .arg = "ORIGIN",
     .doc = "Let web pages of this origin (https://example.com, or * for all) use the server."},
    {BL_OPT_U32_AT(start_args, max_queue), .name = "max-queue", .arg = "N", .def = "32", .max = 4096,
     .doc = "Requests that may wait; more are refused with status 429."},
    {BL_OPT_U32_AT(start_args, max_connections), .name = "max-connections", .arg = "N", .def = "512",
     .min = 1, .max = 16384, .doc = "Connections open at one time; more are refused with status 503."},
    {BL_OPT_U32_AT(start_args, alive_s), .name = "keep-alive", .arg = "SECONDS", .def = "10", .max = 3600,
     .doc = "Silence of a stream after which a comment tells the client that it goes on; 0 sends none."},
    {BL_OPT_U32_AT(start_args, write_s), .name = "write-timeout", .arg = "SECONDS", .def = "60", .min = 1,
     .max = 3600, .doc = "How long a client may take nothing of what waits for it before it is dropped."},
    {BL_OPT_U32_AT(start_args, drain_s), .name = "drain-timeout", .arg = "SECONDS", .def = "30", .max = 3600,
     .doc = "After Ctrl-C or SIGTERM, how long running answers may take; a second signal ends at once."},
    {BL_OPT_FLAG_AT(start_args, quiet), .name = "quiet", .letter = 'q',
     .doc = "No progress and no line a request on standard error."},
    {BL_OPT_U32_AT(start_args, max_concurrent), .name = "max-concurrent", .arg = "N",
     .config = "backend.engine_v2_max_concurrent", .def = "4", .min = 1, .max = BL_MAX_CONCURRENT,
     .group = "Many requests at once",
     .doc = "Requests that are answered at one time; others wait. An answer does not depend on what runs "
            "beside it."},
    {BL_OPT_U32_AT(start_args, queue_timeout_s), .name = "queue-timeout", .arg = "SECONDS", .def = "120",
     .min = 1, .max = 86400, .doc = "A request that waits longer than this for its start is refused."},
    {BL_OPT_U32_AT(start_args, token_gap_ms), .name = "token-gap", .arg = "MS", .def = "250", .min = 1,
     .max = 60000,
     .doc = "Aim for the time between two tokens of an answer while prompts of others are read: long prompts "
            "are cut so that a step takes about that long."},
    {BL_OPT_U32_AT(start_args, prefill_cap), .name = "prefill-cap", .arg = "N",
     .env = "DARKBLOOM_CBV2_MIXED_PREFILL_CAP", .max = 4096,
     .doc = "Prompt tokens at most in a step that also gives tokens; 0 derives it from --token-gap."},
    {BL_OPT_U32_AT(start_args, solo_stripe), .name = "solo-stripe", .arg = "N",
     .env = "DARKBLOOM_CBV2_SOLO_PREFILL_STRIPE", .max = 4096,
     .doc = "Prompt tokens per step of the only request there is; 0: as --chunk."},
    {BL_OPT_U32_AT(start_args, max_partial), .name = "max-partial-prefills", .arg = "N", .def = "1",
     .env = "DARKBLOOM_CBV2_MAX_PARTIAL_PREFILLS", .max = BL_MAX_CONCURRENT,
     .doc = "Prompts that may be part way at one time; 0: any number."},
    {BL_OPT_U32_AT(start_args, query_block), .name = "attn-query-block", .arg = "N", .def = "128",
     .env = "DARKBLOOM_CBV2_ATTN_QUERY_BLOCK", .max = 4096,
     .doc =
         "Rows of a prompt that attend together at most; 0: no limit of its own. The answer does not depend "
         "on it."},
    {BL_OPT_CHOICE_AT(start_args, kv_storage), .name = "kv-storage", .choices = "auto|contiguous|paged",
     .config = "backend.engine_v2_kv_backend", .def = "auto",
     .doc = "Where keys and values lie; auto is contiguous. The answer does not depend on it."},
    {BL_OPT_TEXT_AT(start_args, paged_switch), .env = "DARKBLOOM_CBV2_PAGED_KV",
     .doc = "0, false, no or off: contiguous, even where paged is asked for."},
    {BL_OPT_U64_AT(start_args, kv_bytes), .name = "kv-bytes", .arg = "BYTES",
     .doc = "Memory of all keys and values; without it what --max-concurrent requests can need, or what is "
            "left."},
    {BL_OPT_CHOICE_AT(start_args, prefix_cache), .name = "prefix-cache", .choices = "on|off", .def = "on",
     .env = "DARKBLOOM_PREFIX_CACHE",
     .doc = "Remember prompts in memory, so that what a new one has in common is not evaluated again."},
    {BL_OPT_U64_AT(start_args, prefix_cache_bytes), .name = "prefix-cache-bytes", .arg = "BYTES",
     .env = "DARKBLOOM_PREFIX_CACHE_MEMORY",
     .doc = "Its memory; without it an eighth of what is left, at most 4 GiB."},
    RETIRED(0, "DARKBLOOM_ENGINE_V2"),
    RETIRED(1, "DARKBLOOM_ENGINE_V2_MODELS"),
    RETIRED(2, "DARKBLOOM_COMPILED_DECODE"),
    RETIRED(3, "DARKBLOOM_GEMMA_B1_FAST_PATH"),
    RETIRED(4, "DARKBLOOM_B1_GREEDY_FAST_PATH"),
    RETIRED(5, "DARKBLOOM_KV_GPTOSS_KERNEL"),
    RETIRED(6, "DARKBLOOM_ADAPTIVE_PREFILL_ALLOW_8192"),
    RETIRED(7, "DARKBLOOM_KV_CAPTURE_MAX_INFLIGHT"),
    RETIRED(8, "DARKBLOOM_PREFIX_CACHE_MIN_PERSIST_TOKENS"),
    BL_CLI_ENGINE_OPTIONS(start_args),
    BL_CLI_CONFIG_OPTIONS(start_args),
    BL_CLI_STORE_OPTIONS(start_args),
    BL_CLI_STATE_OPTIONS(start_args),
};

const bl_command bl_command_start = {
    .name = "start",
    .summary = "Serve a model behind an OpenAI-compatible API",
    .usage = "--local --model MODEL [options]",
    .about =
        "Loads a model and serves it: POST /v1/chat/completions and /v1/completions (streaming and whole), "
        "GET /v1/models, GET /health, GET /metrics.\n\n"
        "On loopback no key is asked for unless one is given. Several requests are answered at one time "
        "(--max-concurrent), the others wait in the order of their arrival. Ctrl-C lets running answers end.",
    .examples = "  darkbloom start --local --model gemma-3-270m\n"
                "  DARKBLOOM_API_KEY=secret darkbloom start --local --model gemma-3-270m --bind 0.0.0.0\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = bl_cmd_start,
};

/* Signals come to one thread, so that they need no handler: while the model loads they end the process, later
 * they stop the server. */
typedef struct {
    pthread_t thread;
    sigset_t set;
    pthread_mutex_t mu;
    bl_serve *running; /* [guarded by mu] what a signal stops; NULL while loading */
    atomic_bool
        ended; /* release when the server has stopped, acquire after each signal: later ones mean nothing */
} signal_watch;

static void *watch_main(void *arg) {
    signal_watch *w = arg;
    for (;;) {
        int sig = 0;
        if (sigwait(&w->set, &sig) != 0 || atomic_load_explicit(&w->ended, memory_order_acquire)) {
            return NULL;
        }
        pthread_mutex_lock(&w->mu);
        if (!w->running && !atomic_load_explicit(&w->ended, memory_order_acquire)) {
            _exit(sig == SIGINT ? BL_EXIT_INTERRUPTED : 128 + sig); /* nothing was promised to anyone yet */
        }
        if (w->running) {
            bl_serve_stop(w->running);
        }
        pthread_mutex_unlock(&w->mu);
    }
}

/* Before any other thread is started: they inherit the mask. */
static bl_code start_watching(signal_watch *w, bl_err *err) {
    memset(w, 0, sizeof *w);
    sigemptyset(&w->set);
    sigaddset(&w->set, SIGINT);
    sigaddset(&w->set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &w->set, NULL);
    pthread_mutex_init(&w->mu, NULL);
    int why = pthread_create(&w->thread, NULL, watch_main, w);
    if (why != 0) {
        pthread_mutex_destroy(&w->mu);
        BL_FAIL(err, BL_EIO, "a thread could not be started: %s", strerror(why));
    }
    return BL_OK;
}

static void watch_server(signal_watch *w, bl_serve *s) {
    pthread_mutex_lock(&w->mu);
    w->running = s;
    pthread_mutex_unlock(&w->mu);
}

/* No signal reaches the server any more. */
static void unwatch_server(signal_watch *w) {
    atomic_store_explicit(&w->ended, true, memory_order_release);
    watch_server(w, NULL);
}

static void stop_watching(signal_watch *w) {
    atomic_store_explicit(&w->ended, true, memory_order_release);
    (void)pthread_kill(w->thread, SIGTERM);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->mu);
}

static bool is_loopback(const char *bind) {
    return strcmp(bind, "localhost") == 0 || strncmp(bind, "127.", 4) == 0 || strcmp(bind, "::1") == 0;
}

static bool on_command_line(const bl_opts *o, const char *name) {
    for (size_t i = 0; i < BL_COUNTOF(options); i++) {
        if (options[i].name && strcmp(options[i].name, name) == 0) {
            return (o->on_command_line >> i & 1) != 0;
        }
    }
    return false;
}

static bl_code check_args(const bl_opts *o, start_args *a, bl_err *err) {
    if (!a->local) {
        BL_FAIL(err, BL_EINVAL, "--local is missing: serving a fleet is not built yet");
    }
    if (!a->engine.model) {
        BL_FAIL(err, BL_EINVAL, "--model is missing");
    }
    if (a->no_auth && a->api_key && on_command_line(o, "api-key")) {
        BL_FAIL(err, BL_EINVAL, "--api-key and --no-auth exclude each other");
    }
    if (a->no_auth) {
        a->api_key = NULL; /* said on purpose, so it wins over the environment */
    }
    if (!a->api_key && !a->no_auth && !is_loopback(a->bind)) {
        BL_FAIL(
            err, BL_EINVAL,
            "--bind %.60s is beyond loopback: give --api-key (or DARKBLOOM_API_KEY), or --no-auth on purpose",
            a->bind);
    }
    return BL_OK;
}

typedef struct {
    char *path, *name;
    bl_chat *chat;
    bl_engine *engine;
    bl_mtp_status mtp;
} loaded;

static void show_loading(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    bl_cli_progress_show(user, done_bytes, total_bytes);
}

static void close_model(loaded *m) {
    bl_engine_close(m->engine);
    bl_chat_free(m->chat);
    bl_free(m->name);
    bl_free(m->path);
}

/* Once it is known that this machine has what the model needs. */
static bl_code open_chat(loaded *m, uint32_t cpu_mask, bl_err *err) {
    bl_checkpoint *c = NULL;
    BL_TRY(bl_checkpoint_open(m->path, &c, err));
    bl_code rc = bl_cli_check_needs(c, cpu_mask, err);
    if (rc == BL_OK) {
        rc = bl_chat_open(c, &m->chat, err);
    }
    m->name = bl_strdup(bl_checkpoint_name(c));
    bl_checkpoint_free(c);
    if (rc == BL_OK && !m->name) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the model's name");
    }
    return rc;
}

static void batch_options(const start_args *a, bl_engine_options *o) {
    o->max_queue = a->max_queue;
    o->max_concurrent = a->max_concurrent;
    o->admission_timeout_ms = a->queue_timeout_s * 1000u;
    o->token_gap_ms = a->token_gap_ms;
    o->prefill_cap = a->prefill_cap;
    o->solo_stripe = a->solo_stripe;
    o->max_partial_prefills = a->max_partial > 0 ? a->max_partial : UINT32_MAX;
    o->attn_query_block = a->query_block;
    o->kv_storage = (bl_kv_choice)a->kv_storage;
    o->kv_paged_disabled = bl_word_is_off(a->paged_switch);
    o->kv_bytes = a->kv_bytes;
    o->prefix_cache_bytes = a->prefix_cache == 1        ? 0
                            : a->prefix_cache_bytes > 0 ? a->prefix_cache_bytes
                                                        : BL_AUTO;
}

/* On failure *m still is to be closed. */
static bl_code open_model(const start_args *a, loaded *m, bl_err *err) {
    bl_engine_options o;
    bl_cli_progress bar;
    bl_mtp_plan plan;
    BL_TRY(bl_cli_engine_options(&a->engine, &a->store, &o, &m->path, &plan, err));
    BL_TRY(open_chat(m, o.cpu_mask, err));
    batch_options(a, &o);
    bl_cli_progress_init(&bar, "loading", 0);
    if (!a->quiet && bar.is_terminal) {
        o.progress = show_loading;
        o.progress_user = &bar;
    }
    bl_code rc = bl_mtp_engine_open(&plan, &o, &m->engine, err);
    bl_cli_progress_clear(&bar);
    if (rc == BL_OK) {
        bl_mtp_status_make(&plan, bl_engine_info(m->engine), &m->mtp);
        bl_cli_mtp_warn(&m->mtp, m->path);
    }
    return rc;
}

static void print_start_line(const start_args *a, const bl_serve *s, const loaded *m, const char *id) {
    bool v6 = strchr(a->bind, ':') != NULL;
    const bl_model_info *info = bl_engine_info(m->engine);
    char mtp[BL_MTP_LINE_BYTES];
    bl_mtp_status_line(&m->mtp, mtp);
    printf("listening on http://%s%s%s:%u  model %s  context %u  %s  %s\nmtp: %s\n", v6 ? "[" : "", a->bind,
           v6 ? "]" : "", (unsigned)bl_serve_port(s), id, info->n_context, bl_engine_device(m->engine),
           a->api_key ? "API key needed" : "no API key needed", mtp);
    (void)fflush(stdout);
}

/* ---- the state file ---- */

static void copy_text(char *ret, size_t cap, const char *text) {
    snprintf(ret, cap, "%s", text);
}

static void describe_slot(const start_args *a, const loaded *m, const char *id, bl_state_slot *s) {
    static const char *const choices[] = {"auto", "contiguous", "paged"};
    const bl_model_info *info = bl_engine_info(m->engine);
    copy_text(s->model, sizeof s->model, id);
    copy_text(s->kv_backend, sizeof s->kv_backend, info->kv_storage);
    copy_text(s->kv_requested, sizeof s->kv_requested, choices[a->kv_storage]);
    if (strcmp(info->kv_storage_reason, "kill_switch") == 0) {
        copy_text(s->kv_fallback, sizeof s->kv_fallback, info->kv_storage_reason);
    }
    s->mtp_enabled = m->mtp.enabled;
    s->mtp_active = m->mtp.active;
    s->mtp_depth = m->mtp.depth;
    if (!m->mtp.active) {
        copy_text(s->mtp_inactive_reason, sizeof s->mtp_inactive_reason,
                  bl_mtp_reason_get(m->mtp.reason)->name);
    }
}

/* False: there is none to be removed. A server that cannot say how it is still serves. */
static bool write_state(const start_args *a, const bl_serve *s, const loaded *m, const char *id,
                        char path[BL_STORE_MAX_PATH]) {
    bl_err err;
    bl_state *state = bl_alloc(sizeof *state);
    bl_code rc =
        state ? bl_state_path(a->state.file, a->state.home, a->store.home, path, BL_STORE_MAX_PATH, &err)
              : bl_err_set(&err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the state file");
    if (rc == BL_OK) {
        state->pid = getpid();
        state->pid_start = bl_state_process_start(state->pid);
        state->started_at = bl_clock_wall_s();
        state->port = bl_serve_port(s);
        copy_text(state->version, sizeof state->version, bl_version());
        copy_text(state->address, sizeof state->address, a->bind);
        copy_text(state->model, sizeof state->model, id);
        state->n_slots = 1;
        describe_slot(a, m, id, &state->slots[0]);
        rc = bl_state_write(path, state, &err);
    }
    bl_free(state);
    if (rc != BL_OK) {
        bl_log(BL_LOG_WARN, "start", "state_file", "error=\"%s\"", err.msg);
    }
    return rc == BL_OK;
}

static bl_code serve_model(const start_args *a, bl_serve *s, const loaded *m, signal_watch *w, bl_err *err) {
    const char *id = a->name ? a->name : m->name;
    const char *aliases[BL_OPT_MAX_LIST + 2];
    size_t n_aliases = 0;
    aliases[n_aliases++] = a->engine.model; /* as the operator named it */
    aliases[n_aliases++] = m->name;
    for (uint32_t i = 0; i < a->aliases.n; i++) {
        aliases[n_aliases++] = a->aliases.items[i];
    }
    const char *reason = m->mtp.active ? NULL : bl_mtp_reason_get(m->mtp.reason)->name;
    bl_serve_model model = {m->engine, m->chat, id, aliases, n_aliases, m->mtp.enabled, reason};
    BL_TRY(bl_serve_attach(s, &model, err));
    char path[BL_STORE_MAX_PATH];
    bool has_state = write_state(a, s, m, id, path);
    print_start_line(a, s, m, id);
    watch_server(w, s);
    bl_code rc = bl_serve_run(s, err);
    unwatch_server(w);
    if (has_state) {
        bl_state_remove(path, getpid());
    }
    return rc;
}

static bl_code serve(const start_args *a, signal_watch *w, bl_err *err) {
    bl_serve_options o;
    bl_serve *s = NULL;
    bl_serve_options_init(&o);
    o.bind = a->bind;
    o.port = (uint16_t)a->port;
    o.api_key = a->api_key;
    o.cors = a->cors;
    o.any_host = a->any_host;
    o.max_concurrent = a->max_concurrent;
    o.max_queue = a->max_queue;
    o.alive_ms = a->alive_s * 1000u;
    o.write_timeout_ms = a->write_s * 1000u;
    o.max_connections = a->max_connections;
    o.drain_timeout_ms = a->drain_s * 1000u;
    BL_TRY(bl_serve_open(&o, &s, err));
    loaded m = {0};
    bl_code rc = open_model(a, &m, err);
    if (rc == BL_OK) {
        rc = serve_model(a, s, &m, w, err);
    }
    bl_serve_free(s);
    close_model(&m);
    return rc;
}

static void warn_retired(const start_args *a) {
    for (size_t i = 0; i < BL_COUNTOF(options); i++) {
        size_t first = offsetof(start_args, retired), at = options[i].offset;
        if (at >= first && at < first + sizeof a->retired &&
            a->retired[(at - first) / sizeof a->retired[0]]) {
            bl_cli_errorf("warning: %s has no effect any more", options[i].env);
        }
    }
}

int bl_cmd_start(int argc, char **argv) {
    start_args a = {0};
    bl_opts o;
    bl_err err;
    int status = bl_cli_begin(&bl_command_start, argc, argv, &a, &a.config, &a.store, &a.engine.model, &o);
    if (status >= 0) {
        return status;
    }
    bl_cli_config_migrate(&a.config, a.store.home);
    warn_retired(&a);
    if (check_args(&o, &a, &err) != BL_OK) {
        bl_cli_errorf("%s (see 'darkbloom start --help')", err.msg);
        return BL_EXIT_USAGE;
    }
    signal_watch w;
    if (start_watching(&w, &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    bl_log_set_level(a.quiet ? BL_LOG_WARN : BL_LOG_INFO);
    bl_code rc = serve(&a, &w, &err);
    stop_watching(&w);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}
