/* `darkbloom models embed-mtp`: a checkpoint with an embedded draft head, of one without and of a head. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "base/ids.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "provider/embed_mtp.h"

#define MAX_TEXT_BYTES ((size_t)16 << 20)
#define MIN_TOKENS     16u
/* Below this the drafts of a head are chance, whatever the text. */
#define ABOUT_NOTHING 0.05

typedef struct {
    bl_cli_store_args store;
    const char *head, *text;
    uint64_t max_memory;
    uint32_t threads, bits, group, block_size, head_norms, tokens;
    bool bf16, copy, quiet, json;
} embed_args;

static const bl_opt embed_options[] = {
    {BL_OPT_TEXT_AT(embed_args, head), .name = "head", .arg = "SRC", .complete = BL_COMPLETE_MODEL,
     .group = "The head",
     .doc = "Where the head is: a checkpoint of floats with tensors 'mtp.…', or a folder with a head alone."},
    {BL_OPT_U32_AT(embed_args, bits), .name = "bits", .arg = "N", .def = "4", .min = 2, .max = 8,
     .doc = "Bits of an element of its matrices: 2, 3, 4, 5, 6 or 8 (affine, bf16 scales)."},
    {BL_OPT_U32_AT(embed_args, group), .name = "group", .arg = "N", .def = "64", .min = 32, .max = 128,
     .doc = "Elements that share a scale: 32, 64 or 128."},
    {BL_OPT_FLAG_AT(embed_args, bf16), .name = "bf16", .doc = "Keep its matrices as bf16."},
    {BL_OPT_U32_AT(embed_args, block_size), .name = "block-size", .arg = "N", .def = "3", .min = 2, .max = 8,
     .doc = "Tokens of a round: one less is drafted."},
    {BL_OPT_CHOICE_AT(embed_args, head_norms), .name = "head-norms", .choices = "auto|w|1+w", .def = "auto",
     .doc = "What SRC stores of a norm that multiplies by 1 + w; auto reads it off the weights."},
    {BL_OPT_TEXT_AT(embed_args, text), .name = "text", .arg = "FILE", .complete = BL_COMPLETE_FILE,
     .group = "Measurement",
     .doc = "A text like what the model will write, to measure how often its drafts are right; without it a "
            "short English text of the program's own."},
    {BL_OPT_U32_AT(embed_args, tokens), .name = "tokens", .arg = "N", .def = "512", .min = MIN_TOKENS,
     .max = 1000000, .doc = "Tokens of the text that are read at most."},
    {BL_OPT_FLAG_AT(embed_args, copy), .name = "copy", .group = "Output",
     .doc = "Copy the target's weights instead of linking them."},
    {BL_OPT_FLAG_AT(embed_args, json), .name = "json", .doc = "Print one JSON object."},
    {BL_OPT_FLAG_AT(embed_args, quiet), .name = "quiet", .letter = 'q', .doc = "Show no progress."},
    {BL_OPT_U32_AT(embed_args, threads), .name = "threads", .letter = 't', .arg = "N", .min = 1, .max = 1024,
     .env = "DARKBLOOM_THREADS", .group = "Measuring engine",
     .doc = "Threads that compute; without it all cores."},
    {BL_OPT_U64_AT(embed_args, max_memory), .name = "max-memory", .arg = "BYTES", .min = 1,
     .doc = "Do not load OUT when it plans more than this; without it what the machine has available."},
    BL_CLI_STORE_OPTIONS(embed_args),
};

/* Plain prose about nothing in particular. It measures a head on English prose, and nothing else. */
static const char own_text[] =
    "A bridge has to carry its own weight before it can carry anything else. Most of what an engineer does "
    "in the first weeks of a project is therefore bookkeeping: how heavy is each beam, where does the load "
    "go, and which part of the structure would give way first if the estimate were wrong. Only when these "
    "questions have answers does it make sense to ask how many people will cross the river every day.\n\n"
    "The same is true of a kitchen. Before the first guest arrives, the cook checks that the knives are "
    "sharp, that the pans are clean, and that there is enough flour, butter and salt for the whole evening. "
    "The list is long and rather dull, but it is much easier to buy an onion at noon than at eight o'clock. "
    "When the orders come in, nobody has time to look for anything. Everything has its place, and everyone "
    "knows where that place is.\n\n"
    "There are three rules that help in both cases. First, write down what you know, and write down what you "
    "do not know. Second, change one thing at a time, so that you can tell what made the difference. Third, "
    "when something goes wrong, do not begin with the most interesting explanation; begin with the most "
    "likely one. A light that does not come on is usually not a sign of a failing power station. It is "
    "usually the bulb.\n\n"
    "In the spring the river rises by two or three metres. The old bridge was built for that, with wide "
    "arches and thick piers, and it has stood for almost two hundred years. The new one will be lighter and "
    "longer, and it will be open to the public at the end of next year. Until then the ferry runs every "
    "twenty minutes from six in the morning to ten at night. A single ticket costs two euros, and children "
    "under the age of six travel free of charge. If the weather is bad, the ferry stays where it is, and "
    "those who want to go to the other side have to take the long road over the hills.\n";

/* ---- the text ------------------------------------------------------------------------------------------ */

/* The ids to measure on, in the target's tokens; none when it has no tokenizer. */
static bl_code read_text(const embed_args *a, const char *target, bl_ids *ret, bl_err *err) {
    bl_chat *chat = NULL;
    bl_buf b;
    bl_code rc;
    bl_buf_init(&b, MAX_TEXT_BYTES);
    BL_TRY_GOTO(rc, out, bl_cli_chat_open(target, &chat, err));
    if (a->text) {
        BL_TRY_GOTO(rc, out, bl_file_read(a->text, MAX_TEXT_BYTES, &b, err));
    } else {
        BL_TRY_GOTO(rc, out, bl_buf_append_str(&b, own_text, err));
    }
    if (bl_chat_tokenizer(chat)) {
        rc = bl_tokenizer_encode(bl_chat_tokenizer(chat), bl_buf_str(&b), b.len, BL_ENCODE_SPECIAL_ADD, ret,
                                 err);
        if (rc == BL_OK && ret->n < MIN_TOKENS) {
            rc = bl_err_set(err, BL_EINVAL, __FILE__, __LINE__,
                            "the text has %zu tokens, at least %u are needed", ret->n, MIN_TOKENS);
        }
        ret->n = BL_MIN(ret->n, (size_t)a->tokens);
    }
out:
    bl_buf_done(&b);
    bl_chat_free(chat);
    return rc;
}

/* ---- making and measuring ------------------------------------------------------------------------------ */

static void show(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    bl_cli_progress_show(user, done_bytes, total_bytes);
}

static bl_code embed(const embed_args *a, const char *target, const char *head, const char *out,
                     bl_embed_mtp_report *ret, bl_err *err) {
    static const bl_embed_norms norms[] = {BL_EMBED_NORMS_AUTO, BL_EMBED_NORMS_CENTRED,
                                           BL_EMBED_NORMS_SHIFTED};
    bl_cli_progress bar;
    bl_cli_progress_init(&bar, "embedding", 0);
    bl_embed_mtp_options o = {.target = target,
                              .head = head,
                              .out = out,
                              .plain = a->bf16,
                              .format = {BL_MLX_QUANTIZE_AFFINE, a->bits, a->group},
                              .block_size = a->block_size,
                              .norms = norms[a->head_norms],
                              .copy = a->copy,
                              .cancel = bl_cli_interrupt_flag(),
                              .progress = a->quiet ? NULL : show,
                              .user = &bar};
    bl_code rc = bl_embed_mtp_run(&o, ret, err);
    bl_cli_progress_clear(&bar);
    return rc;
}

static bool go_on(void *user, uint64_t done, uint64_t total) {
    (void)user;
    (void)done;
    (void)total;
    return !bl_cli_interrupted();
}

static bl_code measure(const embed_args *a, const char *out, const bl_ids *ids, bl_draft_agreement *ret,
                       bl_err *err) {
    bl_engine_options o;
    bl_mtp_plan plan;
    bl_cli_progress bar;
    char *path = NULL;
    const bl_cli_engine_args engine = {
        .model = out, .cpu_mask = "all", .threads = a->threads, .max_memory = a->max_memory};
    BL_TRY(bl_cli_engine_options(&engine, &a->store, &o, &path, &plan, err));
    bl_cli_progress_init(&bar, "loading", 0);
    o.progress = a->quiet || !bar.is_terminal ? NULL : show;
    o.progress_user = &bar;
    if (!a->quiet) {
        fprintf(stderr, "measuring the drafts on %zu tokens\n", ids->n);
    }
    bl_code rc = bl_model_measure_draft(&o, ids->ids, ids->n, go_on, NULL, ret, err);
    bl_cli_progress_clear(&bar);
    bl_free(path);
    return rc == BL_OK ? rc : bl_err_wrap(err, rc, "'%.80s' is complete, its drafts were not measured", out);
}

/* ---- what is said -------------------------------------------------------------------------------------- */

typedef struct {
    const char *out;
    const embed_args *args;
    bl_embed_mtp_report made;
    size_t n_ids; /* 0: not measured */
    bl_draft_agreement agreed;
} outcome;

static double rate(const outcome *r, uint32_t depth) {
    uint64_t n = r->agreed.n_rows[depth];
    return n > 0 ? (double)r->agreed.n_agreed[depth] / (double)n : 0.0;
}

static void print_report(const outcome *r) {
    const bl_embed_mtp_report *m = &r->made;
    char a[24], b[24];
    printf("%s: %s, with a head of %.1f M parameters in %s%s\n", r->out, m->model_type,
           (double)m->n_head_params / 1e6, bl_cli_size(m->head_bytes, a),
           m->replaced ? " in place of the one it had" : "");
    if (r->args->bf16) {
        printf("its %" PRIu32 " tensors are bf16", m->n_tensors);
    } else {
        printf("%" PRIu32 " matrices quantised to %" PRIu32 " bits in groups of %" PRIu32, m->n_quantized,
               r->args->bits, r->args->group);
    }
    printf("; norms of mean %.3f, %s\n", m->norm_mean,
           m->norm_shift > 0   ? "1 added"
           : m->norm_shift < 0 ? "1 taken away"
                               : "stored as they are");
    if (m->n_unfit > 0) {
        printf("%" PRIu32 " matrices left as bf16, because the group does not divide their width; the first "
               "is %s (%" PRIu64 ")\n",
               m->n_unfit, m->first_unfit, m->unfit_width);
    }
    printf("of the target %" PRIu32 " files linked (%s, the same bytes on the disk), %" PRIu32
           " copied (%s), %" PRIu32 " left out\n",
           m->n_linked, bl_cli_size(m->linked_bytes, a), m->n_copied, bl_cli_size(m->copied_bytes, b),
           m->n_left);
    if (r->n_ids == 0) {
        puts("drafts not measured: the target has no tokenizer");
        return;
    }
    printf("drafts equal to the model's own choice, on %zu tokens of %s: %.3f at depth 1, %.3f at depth 2\n",
           r->n_ids, r->args->text ? "the text" : "an English text of the program's own", rate(r, 0),
           rate(r, 1));
}

static json_t *draft_json(const outcome *r) {
    json_t *depths = json_array();
    for (uint32_t d = 0; d < BL_DRAFT_MEASURED; d++) {
        (void)json_array_append_new(depths, json_pack("{s:I, s:I, s:f}", "rows",
                                                      (json_int_t)r->agreed.n_rows[d], "agreed",
                                                      (json_int_t)r->agreed.n_agreed[d], "rate", rate(r, d)));
    }
    return json_pack("{s:I, s:s, s:o}", "tokens", (json_int_t)r->n_ids, "text",
                     r->args->text ? "file" : "own", "depths", depths);
}

static json_t *report_json(const outcome *r) {
    const bl_embed_mtp_report *m = &r->made;
    json_t *head =
        json_pack("{s:I, s:I, s:i, s:i, s:i, s:f, s:i, s:b}", "parameters", (json_int_t)m->n_head_params,
                  "bytes", (json_int_t)m->head_bytes, "tensors", (int)m->n_tensors, "quantised",
                  (int)m->n_quantized, "unfit", (int)m->n_unfit, "norm_mean", m->norm_mean, "norm_shift",
                  (int)m->norm_shift, "replaced", (int)m->replaced);
    json_t *files = json_pack("{s:i, s:I, s:i, s:I, s:i}", "linked", (int)m->n_linked, "linked_bytes",
                              (json_int_t)m->linked_bytes, "copied", (int)m->n_copied, "copied_bytes",
                              (json_int_t)m->copied_bytes, "left", (int)m->n_left);
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "path", r->out, "model_type", m->model_type, "head", head,
                     "files", files, "draft", r->n_ids > 0 ? draft_json(r) : json_null());
}

/* The exit status: a head whose drafts are chance is no success, though the folder stays to be looked at. */
static int conclude(const outcome *r) {
    bl_err err;
    if (!r->args->json) {
        print_report(r);
    } else if (bl_cli_print_json(report_json(r), &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    if (r->n_ids > 0 && rate(r, 0) < ABOUT_NOTHING) {
        bl_cli_errorf("the head's drafts are wrong: %.3f of them are the model's choice; is it another "
                      "model's head, or are "
                      "its norms stored otherwise than --head-norms says (mean %.3f)? '%.100s' was kept",
                      rate(r, 0), r->made.norm_mean, r->out);
        return BL_EXIT_FAILED;
    }
    return BL_EXIT_OK;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static bl_code run_all(const embed_args *a, outcome *r, const char *target_name, bl_err *err) {
    bl_store store;
    char *target = NULL, *head = NULL;
    bl_ids ids;
    bl_code rc;
    bl_ids_init(&ids, MAX_TEXT_BYTES);
    BL_TRY_GOTO(rc, out, bl_cli_open_store(&a->store, &store, err));
    BL_TRY_GOTO(rc, out, bl_store_resolve(&store, target_name, &target, err));
    BL_TRY_GOTO(rc, out, bl_store_resolve(&store, a->head, &head, err));
    BL_TRY_GOTO(rc, out, read_text(a, target, &ids, err));
    BL_TRY_GOTO(rc, out, embed(a, target, head, r->out, &r->made, err));
    if (ids.n > 0) {
        BL_TRY_GOTO(rc, out, measure(a, r->out, &ids, &r->agreed, err));
    }
    r->n_ids = ids.n;
out:
    bl_ids_done(&ids);
    bl_free(target);
    bl_free(head);
    return rc;
}

static int run_embed(int argc, char **argv) {
    embed_args a;
    bl_opts o;
    int status = bl_opts_begin(&bl_command_embed_mtp, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    if (!a.head) {
        bl_cli_errorf("--head SRC is needed: where the head is");
        return BL_EXIT_USAGE;
    }
    if (a.bf16 && (bl_opts_given(&bl_command_embed_mtp, &o, "bits") ||
                   bl_opts_given(&bl_command_embed_mtp, &o, "group"))) {
        bl_cli_errorf("--bf16 keeps the matrices, --bits and --group quantise them: one of them");
        return BL_EXIT_USAGE;
    }
    bl_err err;
    outcome r = {.out = o.args[1], .args = &a};
    bl_cli_catch_interrupt();
    return run_all(&a, &r, o.args[0], &err) == BL_OK ? conclude(&r) : bl_cli_fail(&err);
}

const bl_command bl_command_embed_mtp = {
    .name = "models embed-mtp",
    .summary = "Make a checkpoint with an embedded draft head",
    .usage = "TARGET --head SRC OUT [--bits N | --bf16] [options]",
    .about =
        "Writes to the new folder OUT what TARGET is, with the draft head of SRC in a shard of its own, so "
        "that it drafts by itself. TARGET is a Qwen 3.5 checkpoint (a folder, or a name of one on this "
        "machine), quantised or not; its weights are linked where the disk allows it, and never changed. SRC "
        "is the full checkpoint that the model was made from, or a folder with its head alone.\n"
        "\n"
        "A head of another geometry is refused, and nothing is left at OUT. Then OUT is loaded, and the "
        "head's "
        "drafts are compared with the model's own choices on a text. When none of them is right, OUT is "
        "kept, "
        "a warning says so, and the exit status is 1.",
    .examples =
        "  darkbloom models embed-mtp qwen-4bit --head Qwen/Qwen3.5-9B qwen-4bit-mtp\n"
        "  darkbloom models embed-mtp TARGET --head SRC OUT --bf16 --text letters.txt --tokens 2048\n",
    .opts = embed_options,
    .n_opts = BL_COUNTOF(embed_options),
    .min_args = 2,
    .max_args = 2,
    .args_name = "the target and the new folder",
    .complete = BL_COMPLETE_MODEL,
    .run = run_embed,
};
