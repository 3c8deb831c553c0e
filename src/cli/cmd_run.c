/* `darkbloom run`: one prompt, one answer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/utf8.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"

#define MAX_PROMPT_BYTES  ((size_t)64 << 20)
#define MAX_PROMPT_TOKENS ((size_t)1 << 24)

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine;
    bl_cli_sampling_args sampling;
    bl_cli_template_args template;
    const char *prompt, *prompt_file, *tokens, *system, *no_color;
    uint32_t logprobs, speculation;
    bool raw, chat, json, logit_hash, profile, ignore_eos, quiet, show_special;
} run_args;

static const bl_opt options[] = {
    BL_CLI_MODEL_OPTION(run_args),
    {BL_OPT_TEXT_AT(run_args, prompt), .name = "prompt", .letter = 'p', .arg = "TEXT",
     .group = "Prompt (one of the first three)", .doc = "The prompt; - reads standard input."},
    {BL_OPT_TEXT_AT(run_args, prompt_file), .name = "prompt-file", .letter = 'f', .arg = "FILE",
     .complete = BL_COMPLETE_FILE,
     .doc = "The prompt is the file's content, every byte of it; - reads standard input."},
    {BL_OPT_TEXT_AT(run_args, tokens), .name = "tokens", .arg = "IDS",
     .doc = "The prompt as token ids (1,2,3), taken as they are: no template, no beginning-of-text added."},
    {BL_OPT_TEXT_AT(run_args, system), .name = "system", .arg = "TEXT",
     .doc = "A system message in front (needs a template)."},
    {BL_OPT_FLAG_AT(run_args, raw), .name = "raw",
     .doc = "Leave the chat template out: the model continues the text, after beginning-of-text."},
    {BL_OPT_FLAG_AT(run_args, chat), .name = "chat",
     .doc = "Use the family's published chat format although the checkpoint ships no template."},
    BL_CLI_TEMPLATE_OPTIONS(run_args),
    BL_CLI_SAMPLING_OPTIONS(run_args, "256"),
    {BL_OPT_FLAG_AT(run_args, ignore_eos), .name = "ignore-eos",
     .doc = "Go on after the checkpoint's stop tokens, up to --max-tokens."},
    {BL_OPT_CHOICE_AT(run_args, speculation), .name = "speculation", .choices = "auto|off", .def = "auto",
     .doc = "off: draft nothing for this answer, where the model drafts. The answer is the same."},
    {BL_OPT_FLAG_AT(run_args, json), .name = "json", .group = "Output",
     .doc = "Print one JSON object and nothing else on standard output: tokens (without the stop token), "
            "stop_token, text, "
            "reasoning (when there is some), finish_reason, prompt_tokens, seed, draft (proposed, accepted), "
            "timings."},
    {BL_OPT_U32_AT(run_args, logprobs), .name = "logprobs", .arg = "N", .max = BL_MAX_TOP_LOGPROBS,
     .doc = "With --json: each token's log probability and those of the N likeliest."},
    {BL_OPT_FLAG_AT(run_args, logit_hash), .name = "logit-hash",
     .doc = "Hash the bits of all logits, of prompt rows too: one number that two machines can compare."},
    {BL_OPT_FLAG_AT(run_args, profile), .name = "profile",
     .doc = "Print time and bytes of each operation on standard error."},
    {BL_OPT_FLAG_AT(run_args, show_special), .name = "show-special",
     .doc = "Show control tokens in the text, and the markers of reasoning."},
    {BL_OPT_FLAG_AT(run_args, quiet), .name = "quiet", .letter = 'q',
     .doc = "No progress and no statistics on standard error."},
    BL_CLI_ENGINE_OPTIONS(run_args),
    BL_CLI_CONFIG_OPTIONS(run_args),
    BL_CLI_STORE_OPTIONS(run_args),
    {BL_OPT_TEXT_AT(run_args, no_color), .env = "NO_COLOR", .doc = "Any value: reasoning is not dimmed."},
};

/* ---- the prompt -------------------------------------------------------------------------------- */

static bl_code parse_ids(const char *s, bl_ids *ret, bl_err *err) {
    const char *p = s + strspn(s, " ,\t\n");
    while (*p != '\0') {
        char word[16];
        size_t n = strcspn(p, " ,\t\n");
        snprintf(word, sizeof(word), "%.*s", (int)BL_MIN(n, sizeof(word) - 1), p);
        uint64_t v = 0;
        BL_TRY(bl_opts_parse_u64("a token id", word, 0, INT32_MAX, &v, err));
        BL_TRY(bl_ids_push(ret, (int32_t)v, err));
        p += n;
        p += strspn(p, " ,\t\n");
    }
    if (ret->n == 0) {
        BL_FAIL(err, BL_EINVAL, "--tokens is empty, allowed: ids like 1,2,3");
    }
    return BL_OK;
}

/* The prompt's text into *b, initialised here. */
static bl_code read_prompt(const run_args *a, bool dash, bl_buf *b, bl_err *err) {
    bl_buf_init(b, MAX_PROMPT_BYTES);
    const char *file = dash ? "-" : a->prompt != NULL && strcmp(a->prompt, "-") == 0 ? "-" : a->prompt_file;
    if (file == NULL) {
        return bl_buf_append_str(b, a->prompt, err);
    }
    return strcmp(file, "-") == 0 ? bl_cli_read_stdin(MAX_PROMPT_BYTES, b, err)
                                  : bl_file_read(file, MAX_PROMPT_BYTES, b, err);
}

static bool is_templated(const run_args *a, const bl_cli_model *m) {
    return a->tokens == NULL && !a->raw &&
           (bl_chat_template_source(m->chat) == BL_TEMPLATE_FILE || a->chat || a->system != NULL);
}

static bl_code encode(const run_args *a, const bl_cli_model *m, const bl_buf *text, bl_ids *ret,
                      bl_err *err) {
    bl_template_source source = bl_chat_template_source(m->chat);
    const char *s = bl_buf_str(text);
    if (bl_chat_tokenizer(m->chat) == NULL) {
        BL_FAIL(err, BL_ENOTSUP, "'%s' has no tokenizer: give the prompt as --tokens", m->name);
    }
    if (!bl_utf8_valid(s, text->len)) {
        BL_FAIL(err, BL_EINVAL, "the prompt is not valid UTF-8");
    }
    if (!is_templated(a, m)) {
        if (a->template.thinking != 0 || a->template.effort != NULL) {
            BL_FAIL(err, BL_EINVAL, "--thinking and --effort need a chat template, '%s' has none", m->name);
        }
        return bl_chat_encode_prompt(m->chat, s, text->len, ret, err);
    }
    if (source == BL_TEMPLATE_NONE) {
        BL_FAIL(err, BL_ENOTSUP, "'%s' has no chat template: leave --chat and --system out", m->name);
    }
    json_t *vars = NULL;
    BL_TRY(bl_cli_template_vars(&a->template, m->chat, &vars, err));
    json_t *messages = json_array();
    if (a->system != NULL) {
        (void)json_array_append_new(messages,
                                    json_pack("{s:s, s:s}", "role", "system", "content", a->system));
    }
    (void)json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "user", "content", s, text->len));
    bl_code rc = bl_chat_render(m->chat, messages, NULL, vars, true, false, ret, err);
    json_decref(vars);
    json_decref(messages);
    return rc;
}

static bl_code check_args(const run_args *a, const bl_opts *o, bl_err *err) {
    bool dash = o->n_args == 1;
    if (dash && strcmp(o->args[0], "-") != 0) {
        BL_FAIL(err, BL_EINVAL, "unexpected argument '%.60s': the prompt is given as --prompt TEXT",
                o->args[0]);
    }
    int n = (a->prompt != NULL) + (a->prompt_file != NULL) + (a->tokens != NULL) + dash;
    if (n != 1) {
        BL_FAIL(err, BL_EINVAL, "%d prompts given, allowed: one of --prompt, --prompt-file, --tokens, -", n);
    }
    if (a->raw && (a->chat || a->system != NULL)) {
        BL_FAIL(err, BL_EINVAL, "--raw leaves the template out, --chat and --system need it: give one");
    }
    if (a->tokens != NULL && (a->chat || a->system != NULL)) {
        BL_FAIL(err, BL_EINVAL, "--tokens takes ids as they are, --chat and --system cannot change them");
    }
    if ((a->raw || a->tokens != NULL) && (a->template.thinking != 0 || a->template.effort != NULL)) {
        BL_FAIL(err, BL_EINVAL, "--thinking and --effort need the template, which %s leaves out",
                a->raw ? "--raw" : "--tokens");
    }
    if (a->engine.model == NULL) {
        BL_FAIL(err, BL_EINVAL, "no model given: --model MODEL or DARKBLOOM_MODEL");
    }
    return BL_OK;
}

/* ---- output ------------------------------------------------------------------------------------ */

typedef struct {
    bl_cli_thoughts thoughts;
    bool is_terminal, failed;
} screen;

static void show_thought(void *user, const char *text, size_t n) {
    screen *s = user;
    bl_cli_show_thought(&s->thoughts, text, n);
}

static void show_piece(void *user, const char *text, size_t n) {
    screen *s = user;
    bl_cli_end_thought(&s->thoughts, true);
    if (!bl_cli_write_text(stdout, text, n, s->is_terminal)) {
        s->failed = true; /* the reader went away: nobody is left to compute for */
        bl_cli_interrupt();
    }
}

static json_t *result_json(const run_args *a, const bl_cli_model *m, const bl_cli_answer *ans) {
    json_t *tokens = json_array();
    for (size_t i = 0; i < ans->tokens.n; i++) {
        (void)json_array_append_new(tokens, json_integer(ans->tokens.ids[i]));
    }
    json_t *j =
        json_pack("{s:s, s:o, s:s%, s:s, s:I, s:I, s:s, s:o}", "model", m->name, "tokens", tokens, "text",
                  bl_buf_str(&ans->text), ans->text.len, "finish_reason", ans->finish_reason, "prompt_tokens",
                  (json_int_t)ans->end.n_prompt, "seed", (json_int_t)ans->request.sampling.seed, "device",
                  bl_engine_device(m->engine), "timings", bl_cli_answer_timings(ans, m->load_ms));
    if (ans->reasoning.len > 0) {
        (void)json_object_set_new(j, "reasoning",
                                  json_stringn(bl_buf_str(&ans->reasoning), ans->reasoning.len));
    }
    (void)json_object_set_new(j, "draft",
                              json_pack("{s:I, s:I}", "proposed", (json_int_t)ans->end.n_drafted, "accepted",
                                        (json_int_t)ans->end.n_accepted));
    (void)json_object_set_new(j, "stop_token",
                              ans->stop_token >= 0 ? json_integer(ans->stop_token) : json_null());
    if (a->logit_hash) {
        (void)json_object_set_new(j, "logit_hash",
                                  json_sprintf("%016llx", (unsigned long long)ans->end.logit_hash));
    }
    if (ans->logprobs != NULL) {
        (void)json_object_set(j, "logprobs", ans->logprobs);
    }
    return j;
}

static void print_ids(const bl_ids *ids) {
    for (size_t i = 0; i < ids->n; i++) {
        printf("%s%d", i > 0 ? "," : "", ids->ids[i]);
    }
}

static bl_code print_result(const run_args *a, const bl_cli_model *m, const bl_cli_answer *ans, bl_err *err) {
    if (a->json) {
        BL_TRY(bl_cli_print_json(result_json(a, m, ans), err));
    } else {
        if (ans->tokenizer == NULL) {
            print_ids(&ans->tokens);
        }
        putchar('\n');
        if (fflush(stdout) == EOF) {
            BL_FAIL(err, BL_EIO, "standard output could not be written");
        }
        if (a->logit_hash) {
            fprintf(stderr, "logit hash %016llx\n", (unsigned long long)ans->end.logit_hash);
        }
    }
    if (!a->quiet && !a->json) {
        char line[200];
        bl_cli_answer_summary(ans, line, sizeof(line));
        fprintf(stderr, "%s: %s; loaded in %.2f s; %s; seed %llu\n", m->name, line, m->load_ms / 1000,
                bl_engine_device(m->engine), (unsigned long long)ans->request.sampling.seed);
    }
    return BL_OK;
}

static void print_profile(const bl_cli_model *m) {
    char *text = bl_engine_profile_text(m->engine);
    if (text != NULL) {
        fputs(text, stderr);
    }
    bl_free(text);
}

/* ---- the command ------------------------------------------------------------------------------- */

static bl_code answer(const run_args *a, const bl_opts *o, const bl_cli_model *m, const bl_ids *prompt,
                      bl_err *err) {
    bl_cli_answer ans;
    bl_cli_answer_init(&ans);
    screen out = {.is_terminal = isatty(STDOUT_FILENO) == 1};
    out.thoughts = (bl_cli_thoughts){.is_terminal = out.is_terminal, .color = a->no_color == NULL};
    size_t n_stop = 0;
    const int32_t *stop_ids = bl_chat_stop_ids(m->chat, &n_stop);
    ans.engine = m->engine;
    ans.tokenizer = bl_chat_tokenizer(m->chat);
    ans.stop = &a->sampling.stop;
    ans.show_special = a->show_special;
    ans.chat = is_templated(a, m) && !a->show_special ? m->chat : NULL;
    if (!a->json) {
        ans.piece = show_piece;
        ans.thought = show_thought;
        ans.user = &out;
    }
    bl_request *r = &ans.request;
    r->prompt = prompt->ids;
    r->n_prompt = prompt->n;
    r->max_tokens = a->sampling.max_tokens;
    r->stop_ids = stop_ids;
    r->n_stop_ids = a->ignore_eos ? 0 : n_stop;
    r->logprobs = bl_opts_given(&bl_command_run, o, "logprobs");
    r->n_top_logprobs = a->logprobs;
    r->logit_hash = r->hash_prompt = a->logit_hash;
    r->no_draft = a->speculation == 1;
    bl_code rc = bl_cli_sampling(&bl_command_run, o, &a->sampling, m->chat, &r->sampling, err);
    if (rc == BL_OK) {
        rc = bl_cli_answer_run(&ans, err);
        bl_cli_end_thought(&out.thoughts, false);
    }
    if (rc == BL_OK && out.failed) {
        rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "standard output could not be written");
    } else if (rc == BL_OK) {
        rc = print_result(a, m, &ans, err);
    }
    if (rc == BL_OK && bl_cli_interrupted()) {
        rc = bl_err_set(err, BL_ECANCEL, __FILE__, __LINE__, "interrupted");
    }
    bl_cli_answer_done(&ans);
    return rc;
}

static bl_code run(const run_args *a, const bl_opts *o, bl_err *err) {
    bl_cli_model m = {0};
    bl_buf text;
    bl_ids prompt;
    bl_buf_init(&text, MAX_PROMPT_BYTES);
    bl_ids_init(&prompt, MAX_PROMPT_TOKENS);
    bl_code rc;
    if (a->tokens != NULL) {
        BL_TRY_GOTO(rc, out, parse_ids(a->tokens, &prompt, err));
    } else {
        BL_TRY_GOTO(rc, out, read_prompt(a, o->n_args == 1, &text, err));
    }
    BL_TRY_GOTO(rc, out, bl_cli_model_open(&a->engine, &a->store, a->quiet || a->json, false, &m, err));
    bl_cli_catch_interrupt(); /* until here Ctrl-C ends the process, as nothing is lost */
    if (a->tokens == NULL) {
        BL_TRY_GOTO(rc, out, encode(a, &m, &text, &prompt, err));
    }
    if (a->profile) {
        bl_engine_set_profile(m.engine, true);
    }
    rc = answer(a, o, &m, &prompt, err);
    if (rc == BL_OK && a->profile) {
        print_profile(&m);
    }
out:
    bl_cli_model_close(&m);
    bl_ids_done(&prompt);
    bl_buf_done(&text);
    return rc;
}

static int run_run(int argc, char **argv) {
    run_args a = {0};
    bl_opts o;
    bl_err err;
    int status = bl_cli_begin(&bl_command_run, argc, argv, &a, &a.config, &a.store, &a.engine.model, &o);
    if (status >= 0) {
        return status;
    }
    if (check_args(&a, &o, &err) != BL_OK) {
        bl_cli_error(&err);
        return BL_EXIT_USAGE;
    }
    return run(&a, &o, &err) == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

const bl_command bl_command_run = {
    .name = "run",
    .summary = "Answer one prompt",
    .usage = "--model MODEL --prompt TEXT [options]",
    .about = "Answers one prompt and prints the answer as it comes. Statistics go to standard error.\n"
             "\n"
             "A checkpoint that ships a chat template gets the prompt as a user's message in that template. "
             "One without (a base model) "
             "gets beginning-of-text and the prompt as it is, and continues it; --chat uses the family's "
             "published format instead, --raw "
             "leaves any template out. In a template, control tokens written in the prompt are plain text; "
             "without one they are control "
             "tokens.\n"
             "\n"
             "The same prompt, seed and sampling give the same answer, whatever the threads, chunks and CPU "
             "features.",
    .examples = "  darkbloom run --model gemma-3-270m --prompt \"The sea is\" --max-tokens 40\n"
                "  darkbloom run -m smollm2-135m -p \"Name three rivers.\" --temperature 0\n"
                "  git diff | darkbloom run -m smollm2-135m --system \"Write a commit message.\" --prompt -\n"
                "  darkbloom run -m model.gguf --tokens 2,651,3768 --json --logit-hash\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .max_args = 1,
    .args_name = "- for standard input",
    .run = run_run,
};
