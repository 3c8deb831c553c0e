/* `darkbloom tokenize`: text to token ids and back. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"
#include "formats/json.h"

#define MAX_TEXT_BYTES      ((size_t)256 << 20)
#define MAX_TOKENIZER_BYTES ((size_t)64 << 20)
#define MAX_IDS             ((size_t)1 << 28)

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine; /* the model only */
    const char *tokenizer;
    bool json, no_special, decode;
} tokenize_args;

static const bl_opt options[] = {
    BL_CLI_MODEL_OPTION(tokenize_args),
    {BL_OPT_TEXT_AT(tokenize_args, tokenizer), .name = "tokenizer", .arg = "FILE",
     .complete = BL_COMPLETE_FILE, .doc = "A tokenizer.json, instead of a model."},
    {BL_OPT_FLAG_AT(tokenize_args, decode), .name = "decode", .letter = 'd', .group = "What to do",
     .doc = "Read ids (a JSON list, or numbers with spaces or commas between) and print their text, exactly, "
            "with no newline added."},
    {BL_OPT_FLAG_AT(tokenize_args, no_special), .name = "no-special",
     .doc = "Do not add the beginning- and end-of-text tokens that the tokenizer's own rules add. With "
            "--decode: leave control "
            "tokens out of the text."},
    {BL_OPT_FLAG_AT(tokenize_args, json), .name = "json", .group = "Output",
     .doc = "Print the ids as one JSON list."},
    BL_CLI_CONFIG_OPTIONS(tokenize_args),
    BL_CLI_STORE_OPTIONS(tokenize_args),
};

/* Either *ret_chat owns the tokenizer, or *ret_own is it. */
typedef struct {
    bl_chat *chat;
    bl_tokenizer *own;
    const bl_tokenizer *t;
} source;

static bl_code open_source(const tokenize_args *a, source *s, bl_err *err) {
    if (a->tokenizer != NULL) {
        bl_buf text;
        BL_TRY(bl_file_read(a->tokenizer, MAX_TOKENIZER_BYTES, &text, err));
        bl_code rc = bl_tokenizer_from_json(bl_buf_str(&text), text.len, &s->own, err);
        bl_buf_done(&text);
        s->t = s->own;
        return rc;
    }
    bl_store store;
    char *path = NULL;
    BL_TRY(bl_cli_open_store(&a->store, &store, err));
    BL_TRY(bl_store_resolve(&store, a->engine.model, &path, err));
    bl_code rc = bl_cli_chat_open(path, &s->chat, err);
    bl_free(path);
    if (rc == BL_OK) {
        s->t = bl_chat_tokenizer(s->chat);
        if (s->t == NULL) {
            BL_FAIL(err, BL_ENOTSUP, "'%.100s' has no tokenizer", a->engine.model);
        }
    }
    return rc;
}

/* A token's content as the file writes it, with control characters and quotes escaped as in C. */
static void print_piece(const bl_tokenizer *t, int32_t id) {
    size_t n = 0;
    const char *s = bl_tokenizer_piece(t, id, &n);
    putchar('"');
    for (size_t i = 0; s != NULL && i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n') {
            fputs("\\n", stdout);
        } else if (c == '\t') {
            fputs("\\t", stdout);
        } else if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            printf("\\x%02x", c);
        } else {
            putchar(c);
        }
    }
    fputs(bl_tokenizer_is_special(t, id) ? "\"  control\n" : "\"\n", stdout);
}

static bl_code print_ids(const tokenize_args *a, const bl_tokenizer *t, const bl_ids *ids, bl_err *err) {
    if (a->json) {
        putchar('[');
        for (size_t i = 0; i < ids->n; i++) {
            printf("%s%d", i > 0 ? "," : "", ids->ids[i]);
        }
        puts("]");
    } else {
        for (size_t i = 0; i < ids->n; i++) {
            printf("%7d  ", ids->ids[i]);
            print_piece(t, ids->ids[i]);
        }
        fprintf(stderr, "%zu token%s\n", ids->n, ids->n == 1 ? "" : "s");
    }
    if (fflush(stdout) == EOF) {
        BL_FAIL(err, BL_EIO, "standard output could not be written");
    }
    return BL_OK;
}

static bl_code encode(const tokenize_args *a, const bl_tokenizer *t, const bl_buf *in, bl_err *err) {
    bl_ids ids;
    bl_ids_init(&ids, MAX_IDS);
    /* Control tokens in the text are parsed either way, as the reference library does. */
    unsigned flags = BL_ENCODE_SPECIAL_PARSE | (a->no_special ? 0 : BL_ENCODE_SPECIAL_ADD);
    bl_code rc = bl_tokenizer_encode(t, bl_buf_str(in), in->len, flags, &ids, err);
    if (rc == BL_OK) {
        rc = print_ids(a, t, &ids, err);
    }
    bl_ids_done(&ids);
    return rc;
}

/* "[1, 2]", "1 2" and "1,2" alike. Strict about everything else. */
static bl_code parse_ids(const bl_buf *in, bl_ids *ret, bl_err *err) {
    static const char separators[] = " ,\t\r\n";
    const char *p = bl_buf_str(in);
    if (strlen(p) != in->len) {
        BL_FAIL(err, BL_EINVAL, "the list of ids holds a NUL byte");
    }
    p += strspn(p, " \t\r\n");
    bool list = *p == '[';
    p += list ? 1 : 0;
    p += strspn(p, separators);
    while (*p != '\0' && *p != ']') {
        char word[16];
        size_t n = strcspn(p, " ,\t\r\n]");
        snprintf(word, sizeof(word), "%.*s", (int)BL_MIN(n, sizeof(word) - 1), p);
        uint64_t v = 0;
        BL_TRY(bl_opts_parse_u64("a token id", word, 0, INT32_MAX, &v, err));
        BL_TRY(bl_ids_push(ret, (int32_t)v, err));
        p += n;
        p += strspn(p, separators);
    }
    if ((*p == ']') != list || (list && p[1 + strspn(p + 1, " \t\r\n")] != '\0')) {
        BL_FAIL(err, BL_EINVAL, "the list of ids does not end as it began: '[' needs one ']' at the end");
    }
    return BL_OK;
}

static bl_code decode(const tokenize_args *a, const bl_tokenizer *t, const bl_buf *in, bl_err *err) {
    bl_ids ids;
    bl_buf text;
    bl_ids_init(&ids, MAX_IDS);
    bl_buf_init(&text, MAX_TEXT_BYTES);
    bl_code rc = parse_ids(in, &ids, err);
    if (rc == BL_OK) {
        rc = bl_tokenizer_decode(t, ids.ids, ids.n, a->no_special, &text, err);
    }
    if (rc == BL_OK &&
        (fwrite(bl_buf_str(&text), 1, text.len, stdout) != text.len || fflush(stdout) == EOF)) {
        rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "standard output could not be written");
    }
    bl_buf_done(&text);
    bl_ids_done(&ids);
    return rc;
}

static int run_tokenize(int argc, char **argv) {
    tokenize_args a = {0};
    bl_opts o;
    bl_err err;
    int status = bl_cli_begin(&bl_command_tokenize, argc, argv, &a, &a.config, &a.store, &a.engine.model, &o);
    if (status >= 0) {
        return status;
    }
    if (a.tokenizer == NULL && a.engine.model == NULL) {
        bl_cli_errorf("no tokenizer given: --model MODEL or --tokenizer FILE");
        return BL_EXIT_USAGE;
    }
    /* A model named by the environment alone gives way. */
    if (a.tokenizer != NULL && bl_opts_on_command_line(&bl_command_tokenize, &o, "model")) {
        bl_cli_errorf("both --model and --tokenizer given, allowed: one of them");
        return BL_EXIT_USAGE;
    }
    source s = {0};
    bl_buf in;
    bl_buf_init(&in, 0);
    bl_code rc = open_source(&a, &s, &err);
    if (rc == BL_OK) {
        rc = bl_cli_read_stdin(MAX_TEXT_BYTES, &in, &err);
    }
    if (rc == BL_OK) {
        rc = a.decode ? decode(&a, s.t, &in, &err) : encode(&a, s.t, &in, &err);
    }
    bl_buf_done(&in);
    bl_chat_free(s.chat);
    bl_tokenizer_free(s.own);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

const bl_command bl_command_tokenize = {
    .name = "tokenize",
    .summary = "Turn text into token ids, or ids into text",
    .usage = "--model MODEL|--tokenizer FILE [--json] [--decode] < TEXT",
    .about = "Reads standard input, every byte of it, and prints its token ids. Control tokens written in "
             "the text become their ids, as "
             "in the reference library; the tokenizer's own rules add beginning-of-text unless --no-special "
             "is given.",
    .examples = "  printf 'Hello world' | darkbloom tokenize -m gemma-3-270m\n"
                "  printf 'Hello world' | darkbloom tokenize -m gemma-3-270m --json --no-special\n"
                "  echo '[2, 9259, 1902]' | darkbloom tokenize --tokenizer tokenizer.json --decode\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_tokenize,
};
