/* `darkbloom chat`: a conversation in the terminal. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "cli/line.h"

#define MAX_PROMPT_TOKENS ((size_t)1 << 24)
#define MAX_SAVED_BYTES   ((size_t)64 << 20)

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine;
    bl_cli_sampling_args sampling;
    bl_cli_template_args template;
    const char *system, *history, *state_home, *no_color;
    uint32_t color;
    bool no_history, quiet;
} chat_args;

static const bl_opt options[] = {
    BL_CLI_MODEL_OPTION(chat_args),
    {BL_OPT_TEXT_AT(chat_args, system), .name = "system", .arg = "TEXT", .group = "Conversation",
     .doc = "A system message that goes first."},
    BL_CLI_TEMPLATE_OPTIONS(chat_args),
    {BL_OPT_TEXT_AT(chat_args, history), .name = "history", .arg = "FILE", .complete = BL_COMPLETE_FILE,
     .doc = "Where typed lines are kept, readable by you alone; without it "
            "~/.local/state/darkbloom/chat_history."},
    {BL_OPT_FLAG_AT(chat_args, no_history), .name = "no-history", .doc = "Keep no lines."},
    BL_CLI_SAMPLING_OPTIONS(chat_args, "1024"),
    {BL_OPT_CHOICE_AT(chat_args, color), .name = "color", .choices = "auto|always|never", .def = "auto",
     .group = "Output", .doc = "Colour; auto means on a terminal."},
    {BL_OPT_FLAG_AT(chat_args, quiet), .name = "quiet", .letter = 'q', .doc = "No progress, no greeting."},
    BL_CLI_ENGINE_OPTIONS(chat_args),
    BL_CLI_CONFIG_OPTIONS(chat_args),
    BL_CLI_STORE_OPTIONS(chat_args),
    {BL_OPT_TEXT_AT(chat_args, state_home), .env = "XDG_STATE_HOME", .doc = "Stands in for ~/.local/state."},
    {BL_OPT_TEXT_AT(chat_args, no_color), .env = "NO_COLOR",
     .doc = "Any value: no colour unless --color always."},
};

typedef struct {
    const chat_args *a;
    bl_cli_model m;
    bl_sampling sampling;
    json_t *vars;     /* of the template, or NULL */
    json_t *messages; /* of the conversation, the system message included */
    bl_cli_thoughts thoughts;
    bool color, is_terminal, failed;
    uint32_t n_turns;
    uint64_t n_prompt, n_output;
    char last[200]; /* summary of the last answer */
} chat;

static const char HELP[] =
    "/help          this\n"
    "/clear         forget the conversation\n"
    "/retry         answer the last message again\n"
    "/system TEXT   set the system message and start anew; without TEXT remove it\n"
    "/save FILE     write the conversation as JSON\n"
    "/stats         speed of the last answer, sizes\n"
    "/exit          leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer; at an empty prompt it leaves. A line ending in \\ goes on in the next.\n"
    "Text that begins with / is typed with //.\n";

static void dim(const chat *c, FILE *f, const char *text) {
    fprintf(f, "%s%s%s", c->color ? "\033[2m" : "", text, c->color ? "\033[0m" : "");
    fflush(f);
}

/* ---- the conversation -------------------------------------------------------------------------- */

static bl_code start_anew(chat *c, const char *system, bl_err *err) {
    json_t *list = json_array();
    if (list == NULL ||
        (system != NULL &&
         json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system)) != 0)) {
        json_decref(list);
        BL_FAIL(err, BL_EINVAL, "the system message is not valid UTF-8");
    }
    json_decref(c->messages);
    c->messages = list;
    return BL_OK;
}

static const char *system_of(const chat *c) {
    const json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return role != NULL && strcmp(role, "system") == 0 ? json_string_value(json_object_get(first, "content"))
                                                       : NULL;
}

static bl_code add_message(chat *c, const char *role, const char *text, size_t n, bl_err *err) {
    if (json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", role, "content", text, n)) != 0) {
        BL_FAIL(err, BL_EINVAL, "the message is not valid UTF-8 text");
    }
    return BL_OK;
}

/* With its reasoning: the template decides what of that goes into the next prompt. */
static bl_code add_answer(chat *c, const bl_cli_answer *ans, bl_err *err) {
    BL_TRY(add_message(c, "assistant", bl_buf_str(&ans->text), ans->text.len, err));
    json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    if (ans->reasoning.len > 0 &&
        json_object_set_new(last, "reasoning_content",
                            json_stringn(bl_buf_str(&ans->reasoning), ans->reasoning.len)) != 0) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the conversation");
    }
    return BL_OK;
}

static void drop_last(chat *c) {
    (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static const char *last_role(const chat *c) {
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role != NULL ? role : "";
}

static void show_thought(void *user, const char *text, size_t n) {
    chat *c = user;
    bl_cli_show_thought(&c->thoughts, text, n);
}

static void show_piece(void *user, const char *text, size_t n) {
    chat *c = user;
    bl_cli_end_thought(&c->thoughts, true);
    if (!bl_cli_write_text(stdout, text, n, c->is_terminal)) {
        c->failed = true;
        bl_cli_interrupt();
    }
}

static bl_code answer_into(chat *c, bl_cli_answer *ans, bl_ids *prompt, bl_err *err) {
    BL_TRY(bl_chat_render(c->m.chat, c->messages, NULL, c->vars, true, false, prompt, err));
    size_t n_stop = 0;
    ans->engine = c->m.engine;
    ans->tokenizer = bl_chat_tokenizer(c->m.chat);
    ans->stop = &c->a->sampling.stop;
    ans->chat = c->m.chat;
    ans->piece = show_piece;
    ans->thought = show_thought;
    ans->user = c;
    ans->request.prompt = prompt->ids;
    ans->request.n_prompt = prompt->n;
    ans->request.max_tokens = c->a->sampling.max_tokens;
    ans->request.stop_ids = bl_chat_stop_ids(c->m.chat, &n_stop);
    ans->request.n_stop_ids = n_stop;
    ans->request.sampling = c->sampling;
    bl_code rc = bl_cli_answer_run(ans, err);
    bl_cli_end_thought(&c->thoughts, false);
    return rc;
}

static void after_answer(chat *c, const bl_cli_answer *ans) {
    putchar('\n');
    fflush(stdout);
    if (strcmp(ans->finish_reason, "cancelled") == 0) {
        dim(c, stderr, "(stopped)\n");
    } else if (ans->text.len == 0 && strcmp(ans->finish_reason, "length") != 0) {
        dim(c, stderr, ans->reasoning.len > 0 ? "(no answer after the reasoning)\n" : "(an empty answer)\n");
    } else if (strcmp(ans->finish_reason, "length") == 0) {
        dim(c, stderr, "(cut off: --max-tokens or the end of the context)\n");
    }
    bl_cli_answer_summary(ans, c->last, sizeof(c->last));
    c->n_turns++;
    c->n_prompt += ans->end.n_prompt;
    c->n_output += ans->end.n_output;
}

/* Answers the conversation as it stands; its last message is the user's. A failure is told and takes that
 * message back. */
static void answer(chat *c) {
    bl_cli_answer ans;
    bl_ids prompt;
    bl_err err;
    bl_cli_answer_init(&ans);
    bl_ids_init(&prompt, MAX_PROMPT_TOKENS);
    bl_cli_clear_interrupt();
    bl_code rc = answer_into(c, &ans, &prompt, &err);
    if (rc == BL_OK) {
        after_answer(c, &ans);
        /* A question whose answer was stopped before its first word is as if it had not been asked; otherwise
         * what came stays. */
        if (ans.text.len == 0 && strcmp(ans.finish_reason, "cancelled") == 0) {
            drop_last(c);
        } else {
            rc = add_answer(c, &ans, &err);
        }
    }
    if (rc != BL_OK) {
        bl_cli_error(&err);
        drop_last(c);
    }
    bl_ids_done(&prompt);
    bl_cli_answer_done(&ans);
}

/* ---- commands ---------------------------------------------------------------------------------- */

static int append_json(const char *data, size_t n, void *user) {
    return bl_buf_append(user, data, n, NULL) == BL_OK ? 0 : -1;
}

static bl_code save(const chat *c, const char *path, bl_err *err) {
    if (path[0] == '\0') {
        BL_FAIL(err, BL_EINVAL, "/save needs a file's name");
    }
    bl_buf b;
    bl_buf_init(&b, MAX_SAVED_BYTES);
    bl_code rc = BL_OK;
    if (json_dump_callback(c->messages, append_json, &b, JSON_INDENT(2)) != 0) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory to save the conversation");
    } else {
        rc = bl_file_write_atomic(path, bl_buf_str(&b), b.len, err);
    }
    bl_buf_done(&b);
    return rc;
}

static void show_stats(const chat *c) {
    char line[400], a[24];
    const bl_model_info *info = bl_engine_info(c->m.engine);
    snprintf(
        line, sizeof(line),
        "last answer: %s\n%s, context %u, planned memory %s, %u answers, %llu tokens read, %llu written\n",
        c->last[0] != '\0' ? c->last : "none yet", bl_engine_device(c->m.engine), info->n_context,
        bl_cli_size(info->total_bytes, a), c->n_turns, (unsigned long long)c->n_prompt,
        (unsigned long long)c->n_output);
    fputs(line, stderr);
}

static void retry(chat *c) {
    if (strcmp(last_role(c), "assistant") == 0) {
        drop_last(c);
    }
    if (strcmp(last_role(c), "user") != 0) {
        bl_cli_errorf("there is nothing to answer again");
        return;
    }
    c->sampling.seed++; /* the same seed would give the same answer */
    answer(c);
}

/* The command's name followed by a space or the end; *ret_rest: what follows. */
static bool is_command(const char *line, const char *name, const char **ret_rest) {
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || (line[n] != '\0' && line[n] != ' ')) {
        return false;
    }
    *ret_rest = line + n + strspn(line + n, " ");
    return true;
}

/* Returns false to leave. */
static bool command(chat *c, const char *line) {
    static const char *const names[] = {"/help", "/clear", "/retry", "/system",
                                        "/save", "/stats", "/exit",  "/quit"};
    const char *rest = "";
    bl_err err;
    bl_code rc = BL_OK;
    if (is_command(line, "/exit", &rest) || is_command(line, "/quit", &rest)) {
        return false;
    }
    if (is_command(line, "/help", &rest)) {
        fputs(HELP, stderr);
    } else if (is_command(line, "/clear", &rest)) {
        char *system = system_of(c) != NULL ? bl_strdup(system_of(c)) : NULL;
        rc = start_anew(c, system, &err);
        bl_free(system);
        dim(c, stderr, "(forgotten)\n");
    } else if (is_command(line, "/retry", &rest)) {
        retry(c);
    } else if (is_command(line, "/system", &rest)) {
        rc = start_anew(c, rest[0] != '\0' ? rest : NULL, &err);
        dim(c, stderr, "(a new conversation)\n");
    } else if (is_command(line, "/save", &rest)) {
        rc = save(c, rest, &err);
    } else if (is_command(line, "/stats", &rest)) {
        show_stats(c);
    } else {
        char word[40];
        snprintf(word, sizeof(word), "%.*s", (int)BL_MIN(strcspn(line, " "), sizeof(word) - 1), line);
        const char *near = bl_nearest(word, names, BL_COUNTOF(names));
        bl_cli_errorf("unknown command '%s'%s%s%s (/help shows all; // begins a text with /)", word,
                      near != NULL ? ", did you mean " : "", near != NULL ? near : "",
                      near != NULL ? "?" : "");
    }
    if (rc != BL_OK) {
        bl_cli_error(&err);
    }
    return true;
}

static void message(chat *c, const char *text, size_t n) {
    bl_err err;
    if (!bl_utf8_valid(text, n) || memchr(text, '\0', n) != NULL) {
        bl_cli_errorf("the message is not valid UTF-8 text");
    } else if (add_message(c, "user", text, n, &err) != BL_OK) {
        bl_cli_error(&err);
    } else {
        answer(c);
    }
}

static bl_code converse(chat *c, bl_line *in, bl_err *err) {
    bl_buf line;
    bl_buf_init(&line, BL_LINE_MAX_BYTES);
    bl_code rc = BL_OK;
    for (bool on = true; on && rc == BL_OK && !c->failed;) {
        bl_line_kind kind = BL_LINE_END;
        rc = bl_line_read(in, &line, &kind, err);
        if (rc != BL_OK || kind != BL_LINE_TEXT) {
            if (bl_line_is_terminal(in)) {
                putchar('\n');
            }
            break;
        }
        const char *text = bl_buf_str(&line);
        if (text[strspn(text, " \t")] == '\0') {
            continue;
        }
        if (text[0] == '/' && text[1] != '/') {
            on = command(c, text);
        } else {
            bool escaped = text[0] == '/';
            message(c, text + escaped, line.len - escaped);
        }
    }
    bl_buf_done(&line);
    if (rc == BL_OK && c->failed) {
        BL_FAIL(err, BL_EIO, "standard output could not be written");
    }
    return rc;
}

/* ---- the command ------------------------------------------------------------------------------- */

/* NULL in *ret: keep none. */
static bl_code history_path(const chat_args *a, char *buf, size_t cap, const char **ret, bl_err *err) {
    const char *home = a->state_home != NULL ? a->state_home : a->store.home;
    const char *below = a->state_home != NULL ? "" : "/.local/state";
    *ret = NULL;
    if (a->no_history || (a->history == NULL && home == NULL)) {
        return BL_OK;
    }
    int n = a->history != NULL ? snprintf(buf, cap, "%s", a->history)
                               : snprintf(buf, cap, "%s%s/darkbloom/chat_history", home, below);
    if (n < 0 || (size_t)n >= cap) {
        BL_FAIL(err, BL_ELIMIT, "the path of the history file is longer than %zu bytes", cap - 1);
    }
    *ret = buf;
    return BL_OK;
}

static bl_code open_chat(chat *c, const bl_opts *o, bl_err *err) {
    const chat_args *a = c->a;
    BL_TRY(bl_cli_model_open(&a->engine, &a->store, a->quiet, true, &c->m, err));
    if (bl_chat_tokenizer(c->m.chat) == NULL || bl_chat_template_source(c->m.chat) == BL_TEMPLATE_NONE) {
        BL_FAIL(err, BL_ENOTSUP,
                "'%s' has no chat template: it can continue texts ('darkbloom run'), not hold a conversation",
                c->m.name);
    }
    BL_TRY(bl_cli_template_vars(&a->template, c->m.chat, &c->vars, err));
    BL_TRY(bl_cli_sampling(&bl_command_chat, o, &a->sampling, c->m.chat, &c->sampling, err));
    return start_anew(c, a->system, err);
}

static void greet(const chat *c) {
    char line[300];
    snprintf(line, sizeof(line), "%s on %s, loaded in %.2f s. /help shows commands.\n", c->m.name,
             bl_engine_device(c->m.engine), c->m.load_ms / 1000);
    dim(c, stderr, line);
    if (bl_chat_template_source(c->m.chat) == BL_TEMPLATE_BUILTIN) {
        dim(c, stderr,
            "The checkpoint ships no chat template; the family's published format is used. A base model may "
            "ramble.\n");
    }
}

static bl_code run(chat *c, const bl_opts *o, bl_err *err) {
    const chat_args *a = c->a;
    char path[4096];
    const char *history = NULL;
    bl_line *in = NULL;
    BL_TRY(history_path(a, path, sizeof(path), &history, err));
    BL_TRY(open_chat(c, o, err));
    bl_cli_catch_interrupt(); /* until here Ctrl-C ends the process, as nothing is lost */
    c->is_terminal = isatty(STDOUT_FILENO) == 1;
    c->color = a->color == 1 || (a->color == 0 && c->is_terminal && a->no_color == NULL);
    c->thoughts = (bl_cli_thoughts){.is_terminal = c->is_terminal, .color = c->color};
    BL_TRY(bl_line_open(c->color ? "\1\033[1;32m\1> \1\033[0m\1" : "> ", history, &in, err));
    if (bl_line_is_terminal(in) && !a->quiet) {
        greet(c);
    }
    bl_code rc = converse(c, in, err);
    bl_line_close(in);
    return rc;
}

static int run_chat(int argc, char **argv) {
    chat_args a = {0};
    bl_opts o;
    bl_err err;
    int status = bl_cli_begin(&bl_command_chat, argc, argv, &a, &a.config, &a.store, &a.engine.model, &o);
    if (status >= 0) {
        return status;
    }
    if (a.engine.model == NULL) {
        bl_cli_errorf("no model given: --model MODEL or DARKBLOOM_MODEL");
        return BL_EXIT_USAGE;
    }
    chat c = {.a = &a};
    bl_code rc = run(&c, &o, &err);
    json_decref(c.messages);
    json_decref(c.vars);
    bl_cli_model_close(&c.m);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

const bl_command bl_command_chat = {
    .name = "chat",
    .summary = "Talk with a model",
    .usage = "--model MODEL [--system TEXT] [options]",
    .about = "A conversation: type a message, read the answer as it comes. Ctrl-C stops an answer; at an "
             "empty prompt it leaves. "
             "Lines are edited as in a shell and kept for the next time. With input from a pipe each line is "
             "a message.\n"
             "\n"
             "Commands inside: /help /clear /retry /system TEXT /save FILE /stats /exit",
    .examples = "  darkbloom chat --model smollm2-135m\n"
                "  darkbloom chat -m smollm2-135m --system \"Answer in one sentence.\" --temperature 0.3\n"
                "  printf 'Hello\\nAnd now in French.\\n' | darkbloom chat -m smollm2-135m\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_chat,
};
