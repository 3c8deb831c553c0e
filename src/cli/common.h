/* What several commands share: the option entries for models, engine and sampling, finding the model a name
 * means, progress on a terminal, Ctrl-C. A command embeds the argument structs under the field names the
 * macros expect and puts the macros into its table.
 */
#ifndef BL_CLI_COMMON_H
#define BL_CLI_COMMON_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bl/bl.h"
#include "chat/chat.h"
#include "cli/options.h"
#include "provider/mtp_load.h"
#include "provider/store.h"

/* ---- where models are: field `store` ----------------------------------------------------------- */

typedef struct {
    const char *models_dir, *cache_home, *home, *hf_home, *hf_hub_cache;
} bl_cli_store_args;

#define BL_CLI_STORE_OPTIONS(S)                                                                              \
    {BL_OPT_TEXT_AT(S, store.models_dir),                                                                    \
     .name = "models-dir",                                                                                   \
     .arg = "DIR",                                                                                           \
     .env = "DARKBLOOM_MODELS_DIR",                                                                          \
     .group = "Where models are",                                                                            \
     .complete = BL_COMPLETE_DIR,                                                                            \
     .doc = "Folder of downloaded models; without it ~/.cache/darkbloom/models."},                           \
        {BL_OPT_TEXT_AT(S, store.cache_home), .env = "XDG_CACHE_HOME", .doc = "Stands in for ~/.cache."},    \
        {BL_OPT_TEXT_AT(S, store.home), .env = "HOME", .doc = "The user's folder, ~ above."},                \
        {BL_OPT_TEXT_AT(S, store.hf_home), .env = "HF_HOME",                                                 \
         .doc = "Models are also found in hub/ below it (the Hugging Face cache)."},                         \
    {                                                                                                        \
        BL_OPT_TEXT_AT(S, store.hf_hub_cache), .env = "HF_HUB_CACHE", .doc = "That cache's folder itself."   \
    }

bl_code bl_cli_open_store(const bl_cli_store_args *a, bl_store *ret, bl_err *err) BL_MUST_CHECK;

/* ---- the state file: fields `state` and `store` ------------------------------------------------- */

typedef struct {
    const char *file, *home;
} bl_cli_state_args;

#define BL_CLI_STATE_OPTIONS(S)                                                                              \
    {BL_OPT_TEXT_AT(S, state.file), .env = "DARKBLOOM_STATE_FILE",                                           \
     .doc = "What a server says of itself to 'darkbloom status'; without it "                                \
            "darkbloom/daemon-state.json below ~/.local/state."},                                            \
    {                                                                                                        \
        BL_OPT_TEXT_AT(S, state.home), .env = "XDG_STATE_HOME", .doc = "Stands in for ~/.local/state."       \
    }

/* ---- the engine: field `engine` ---------------------------------------------------------------- */

typedef struct {
    const char *model, *cpu_mask, *mtp_switch, *mtp_drafter_path;
    uint32_t threads, context, chunk, activations, mtp_mode, mtp_depth;
    uint64_t max_memory;
    bool mtp_fixed;
} bl_cli_engine_args;

#define BL_CLI_MODEL_OPTION(S)                                                                               \
    {                                                                                                        \
        BL_OPT_TEXT_AT(S, engine.model), .name = "model", .letter = 'm', .arg = "MODEL",                     \
                                         .env = "DARKBLOOM_MODEL", .config = "backend.model",                \
                                         .complete = BL_COMPLETE_MODEL, .group = "Model",                    \
                                         .doc = "A .gguf file, a checkpoint folder, or the name of a model " \
                                                "on this machine ('darkbloom models list')."                 \
    }

#define BL_CLI_ENGINE_OPTIONS(S)                                                                             \
    {BL_OPT_U32_AT(S, engine.context),                                                                       \
     .name = "context",                                                                                      \
     .arg = "N",                                                                                             \
     .min = 1,                                                                                               \
     .max = 16777216,                                                                                        \
     .env = "DARKBLOOM_CONTEXT",                                                                             \
     .group = "Engine",                                                                                      \
     .doc = "Positions a conversation may hold; without it what the checkpoint declares."},                  \
        {BL_OPT_U32_AT(S, engine.threads),                                                                   \
         .name = "threads",                                                                                  \
         .letter = 't',                                                                                      \
         .arg = "N",                                                                                         \
         .min = 1,                                                                                           \
         .max = 1024,                                                                                        \
         .env = "DARKBLOOM_THREADS",                                                                         \
         .doc = "Threads that compute; without it all cores. The answer does not depend on it."},            \
        {BL_OPT_TEXT_AT(S, engine.cpu_mask),                                                                 \
         .name = "cpu-mask",                                                                                 \
         .arg = "FEATURES",                                                                                  \
         .def = "all",                                                                                       \
         .env = "DARKBLOOM_CPU_MASK",                                                                        \
         .doc = "CPU features that may be used: all, scalar, or names joined by '+' (avx2, avx512, "         \
                "avx512vnni). The answer does not depend on it."},                                           \
        {BL_OPT_U32_AT(S, engine.chunk),                                                                     \
         .name = "chunk",                                                                                    \
         .arg = "N",                                                                                         \
         .def = "256",                                                                                       \
         .min = 1,                                                                                           \
         .max = 4096,                                                                                        \
         .doc = "Prompt tokens per step. The answer does not depend on it."},                                \
        {BL_OPT_CHOICE_AT(S, engine.activations), .name = "activations", .choices = "int8|f32",              \
         .def = "int8",                                                                                      \
         .doc = "How activations meet quantised weights; f32 is slow and for comparison with references."},  \
        {BL_OPT_CHOICE_AT(S, engine.mtp_mode),                                                               \
         .name = "mtp-mode",                                                                                 \
         .choices = "auto|on|off",                                                                           \
         .def = "auto",                                                                                      \
         .config = "backend.mtp_mode",                                                                       \
         .doc = "Drafting tokens ahead with a draft head: auto where the checkpoint declares one, on also "  \
                "with a head from elsewhere, off never. The answer does not depend on it."},                 \
        {BL_OPT_U32_AT(S, engine.mtp_depth), .name = "mtp-depth", .arg = "N", .max = BL_MAX_DRAFT,           \
         .doc = "Tokens drafted ahead at most; 0: what the head is made for."},                              \
        {BL_OPT_FLAG_AT(S, engine.mtp_fixed), .name = "mtp-fixed",                                           \
         .doc = "Draft that many always; without it fewer or none where they cost more than they save."},    \
        {BL_OPT_TEXT_AT(S, engine.mtp_drafter_path),                                                         \
         .name = "mtp-drafter-path",                                                                         \
         .arg = "DIR",                                                                                       \
         .config = "backend.mtp_drafter_path",                                                               \
         .complete = BL_COMPLETE_DIR,                                                                        \
         .doc = "Folder of a draft head that is published separately; with --mtp-mode on."},                 \
        {BL_OPT_TEXT_AT(S, engine.mtp_switch), .env = "DARKBLOOM_CBV2_MTP",                                  \
         .doc = "0, false, no or off: no drafting, whatever --mtp-mode says."},                              \
    {                                                                                                        \
        BL_OPT_U64_AT(S, engine.max_memory), .name = "max-memory", .arg = "BYTES", .min = 1,                 \
                                             .doc = "Refuse to load a model that plans more than this; "     \
                                                    "without it what the machine has available."             \
    }

/* Finds the model, plans its drafting and fills *ret; *ret_path (bl_free) holds the path that ret->model_path
 * points to. */
bl_code bl_cli_engine_options(const bl_cli_engine_args *a, const bl_cli_store_args *s, bl_engine_options *ret,
                              char **ret_path, bl_mtp_plan *ret_mtp, bl_err *err) BL_MUST_CHECK;
/* A warning on stderr where one is due: "mtp: target-only (REASON): PATH: DETAIL". */
void bl_cli_mtp_warn(const bl_mtp_status *s, const char *path);

/* ---- sampling: field `sampling` ---------------------------------------------------------------- */

typedef struct {
    double temperature, top_p, min_p;
    uint32_t top_k, max_tokens;
    uint64_t seed;
    bl_opt_list stop;
} bl_cli_sampling_args;

#define BL_CLI_SAMPLING_OPTIONS(S, def_max_tokens)                                                           \
    {BL_OPT_U32_AT(S, sampling.max_tokens),                                                                  \
     .name = "max-tokens",                                                                                   \
     .letter = 'n',                                                                                          \
     .arg = "N",                                                                                             \
     .def = (def_max_tokens),                                                                                \
     .min = 1,                                                                                               \
     .group = "Answer",                                                                                      \
     .doc = "Longest answer in tokens; the end of the context may come earlier."},                           \
        {BL_OPT_F64_AT(S, sampling.temperature),                                                             \
         .name = "temperature",                                                                              \
         .arg = "X",                                                                                         \
         .fmin = 0,                                                                                          \
         .fmax = 100,                                                                                        \
         .doc = "0 always takes the likeliest token; without it what the checkpoint recommends, else 1."},   \
        {BL_OPT_U32_AT(S, sampling.top_k), .name = "top-k", .arg = "N",                                      \
         .doc = "Draw among the N likeliest tokens; 0 is off; without it what the checkpoint recommends, "   \
                "else off."},                                                                                \
        {BL_OPT_F64_AT(S, sampling.top_p),                                                                   \
         .name = "top-p",                                                                                    \
         .arg = "X",                                                                                         \
         .fmin = 0,                                                                                          \
         .fmax = 1,                                                                                          \
         .doc = "Draw among the likeliest tokens that together reach probability X; 1 is off; without it "   \
                "what the checkpoint recommends, else off."},                                                \
        {BL_OPT_F64_AT(S, sampling.min_p),                                                                   \
         .name = "min-p",                                                                                    \
         .arg = "X",                                                                                         \
         .fmin = 0,                                                                                          \
         .fmax = 1,                                                                                          \
         .def = "0",                                                                                         \
         .doc = "Leave out tokens less likely than X times the likeliest; 0 is off."},                       \
        {BL_OPT_U64_AT(S, sampling.seed), .name = "seed", .arg = "N",                                        \
         .doc = "Seed of the draws: the same seed gives the same answer; without it a new one each time."},  \
    {                                                                                                        \
        BL_OPT_LIST_AT(S, sampling.stop), .name = "stop", .arg = "TEXT",                                     \
                                          .doc = "End the answer before this text."                          \
    }

/* Fills ret from the options and what the checkpoint recommends (chat may be NULL). A seed nobody gave is
 * drawn here. */
bl_code bl_cli_sampling(const bl_command *c, const bl_opts *o, const bl_cli_sampling_args *a,
                        const bl_chat *chat, bl_sampling *ret, bl_err *err) BL_MUST_CHECK;

/* ---- what the chat template is told ------------------------------------------------------------- */

typedef struct {
    uint32_t thinking; /* 0 as the template has it, 1 on, 2 off */
    const char *effort;
} bl_cli_template_args;

#define BL_CLI_TEMPLATE_OPTIONS(S)                                                                           \
    {BL_OPT_CHOICE_AT(S, template.thinking), .name = "thinking", .choices = "auto|on|off", .def = "auto",    \
     .doc = "Whether the model reasons before it answers; auto is the chat template's own choice."},         \
    {                                                                                                        \
        BL_OPT_TEXT_AT(S, template.effort), .name = "effort", .arg = "WORD",                                 \
                                            .doc = "How much it reasons (low, medium, high...), where the "  \
                                                   "chat template has such a setting."                       \
    }

/* The template's variables of these options; *ret NULL when there are none. BL_EINVAL when the template reads
 * no such variable. */
bl_code bl_cli_template_vars(const bl_cli_template_args *a, const bl_chat *chat, json_t **ret,
                             bl_err *err) BL_MUST_CHECK;

/* ---- a model, opened --------------------------------------------------------------------------- */

typedef struct {
    char *path;
    char name[128]; /* last component of the path without .gguf */
    bl_chat *chat;  /* tokenizer may be NULL: a folder of weights alone takes and gives ids */
    bl_engine *engine;
    bl_mtp_status mtp;
    double load_ms;
} bl_cli_model;

/* Finds, loads, shows progress on stderr unless quiet. remembers: later requests continue earlier ones (a
 * prefix cache). On failure *ret holds nothing. */
bl_code bl_cli_model_open(const bl_cli_engine_args *a, const bl_cli_store_args *s, bool quiet, bool remembers,
                          bl_cli_model *ret, bl_err *err) BL_MUST_CHECK;
void bl_cli_model_close(bl_cli_model *m);
/* Tokenizer, template and stop ids alone. */
bl_code bl_cli_chat_open(const char *path, bl_chat **ret, bl_err *err) BL_MUST_CHECK;

/* ---- Ctrl-C ------------------------------------------------------------------------------------ */

/* From now on SIGINT sets a flag (and interrupts waiting calls) instead of ending the process. */
void bl_cli_catch_interrupt(void);
/* For code that takes a cancel flag. */
const atomic_bool *bl_cli_interrupt_flag(void);
bool bl_cli_interrupted(void);
void bl_cli_clear_interrupt(void);
void bl_cli_interrupt(void); /* as if Ctrl-C had come */

/* ---- progress on stderr ------------------------------------------------------------------------ */

/* A bar that is redrawn on a terminal; otherwise a line now and then. */
typedef struct {
    const char *what; /* "loading", shown in front; borrowed */
    bool is_terminal, drawn;
    uint64_t start_ns, last_ns;
    uint64_t start_bytes; /* done when it began: not counted in the speed */
    uint32_t last_tenth;
} bl_cli_progress;

void bl_cli_progress_init(bl_cli_progress *p, const char *what, uint64_t start_bytes);
void bl_cli_progress_show(bl_cli_progress *p, uint64_t done_bytes, uint64_t total_bytes);
/* Removes the bar, so that other lines can be written. */
void bl_cli_progress_clear(bl_cli_progress *p);

/* ---- small things ------------------------------------------------------------------------------ */

/* "253.1 MB" in ret; returns ret. Powers of ten, as disks and downloads are counted. */
const char *bl_cli_size(uint64_t n_bytes, char ret[24]);
/* One JSON value and a newline on stdout. j is given up. */
bl_code bl_cli_print_json(json_t *j, bl_err *err) BL_MUST_CHECK;
/* All of standard input, at most max_bytes. *ret is initialised here; done by the caller, also after failure.
 */
bl_code bl_cli_read_stdin(size_t max_bytes, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
/* Writes text and flushes. for_terminal: control characters other than newline and tab, which could steer the
 * terminal, become '?'. False when it could not be written. */
bool bl_cli_write_text(FILE *f, const char *text, size_t n, bool for_terminal);
/* The same to standard output, of a whole string. */
void bl_cli_print_text(const char *text);
/* Prints the error; the exit status of wrong arguments. */
int bl_cli_wrong_usage(const bl_err *err);
/* Prints the error and gives the exit status that belongs to it. */
int bl_cli_fail(const bl_err *err);

#endif
