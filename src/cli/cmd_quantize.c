/* `darkbloom quantize`: an MLX checkpoint out of a Hugging Face one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "provider/quantize.h"

typedef struct {
    bl_cli_store_args store;
    uint32_t mode, bits, group, dtype, head, head_bits;
    uint64_t shard_size;
    bl_opt_list keep;
    bool no_head, quiet;
} quantize_args;

enum { DTYPE_SAME, DTYPE_BF16, DTYPE_F16, DTYPE_F32 };

static const bl_opt quantize_options[] = {
    {BL_OPT_CHOICE_AT(quantize_args, mode), .name = "mode", .choices = "affine|mxfp4|mxfp8|nvfp4",
     .def = "affine", .group = "Format",
     .doc = "affine: integers with a scale and an offset for each group. mxfp4, mxfp8, nvfp4: small floats "
            "with a scale."},
    {BL_OPT_U32_AT(quantize_args, bits), .name = "bits", .arg = "N", .min = 2, .max = 8,
     .doc = "Bits of an element: 2, 3, 4, 5, 6 or 8 (affine); without it 4, mxfp8 8."},
    {BL_OPT_U32_AT(quantize_args, group), .name = "group", .arg = "N", .min = 16, .max = 128,
     .doc = "Elements that share a scale: 32, 64 or 128 (affine); without it 64, mxfp4 and mxfp8 32, nvfp4 "
            "16."},
    {BL_OPT_LIST_AT(quantize_args, keep), .name = "keep", .arg = "PATTERN=BITS",
     .doc = "Give matrices whose path matches PATTERN ('*' and '?') affine BITS, or 'none' to leave them "
            "alone; the first pattern that matches counts."},
    {BL_OPT_CHOICE_AT(quantize_args, dtype), .name = "dtype", .choices = "same|bf16|f16|f32", .def = "same",
     .doc = "Type of scales and of what is not quantised; same keeps each tensor's own."},
    {BL_OPT_CHOICE_AT(quantize_args, head), .name = "head", .choices = "quantized|bf16", .def = "quantized",
     .group = "Embedded multi-token-prediction head",
     .doc = "Quantise the head's matrices too, or keep them as bf16."},
    {BL_OPT_U32_AT(quantize_args, head_bits), .name = "head-bits", .arg = "N", .min = 2, .max = 8,
     .doc = "Bits of the head's matrices; without it those of --bits."},
    {BL_OPT_FLAG_AT(quantize_args, no_head), .name = "no-head", .doc = "Leave the head out."},
    {BL_OPT_U64_AT(quantize_args, shard_size), .name = "shard-size", .arg = "BYTES", .def = "5000000000",
     .min = 1000000, .group = "Output", .doc = "Largest weight file; a larger matrix has one of its own."},
    {BL_OPT_FLAG_AT(quantize_args, quiet), .name = "quiet", .letter = 'q', .doc = "Show no progress."},
    BL_CLI_STORE_OPTIONS(quantize_args),
};

/* "layers.*.mlp.*=8" into pattern and bits; the pattern's text is cut in `copies`. */
static bl_code parse_keep(const bl_opt_list *list, bl_quantize_keep *ret, char **copies, bl_err *err) {
    for (uint32_t i = 0; i < list->n; i++) {
        const char *item = list->items[i], *eq = strrchr(item, '=');
        if (!eq || eq == item) {
            BL_FAIL(err, BL_EINVAL, "--keep is '%.80s', allowed is PATTERN=BITS", item);
        }
        uint64_t bits = 0;
        if (strcmp(eq + 1, "none") != 0) {
            BL_TRY(bl_opts_parse_u64("the bits of --keep", eq + 1, 2, 8, &bits, err));
            if (bits == 7) {
                BL_FAIL(err, BL_EINVAL, "the bits of --keep are 7, allowed are 2 3 4 5 6 8 and none");
            }
        }
        copies[i] = bl_strndup(item, (size_t)(eq - item));
        if (!copies[i]) {
            BL_FAIL(err, BL_ENOMEM, "no memory for a pattern");
        }
        ret[i] = (bl_quantize_keep){copies[i], (uint32_t)bits};
    }
    return BL_OK;
}

static bl_mlx_quantize_format format_of(const quantize_args *a) {
    static const bl_mlx_quantize_format defaults[] = {
        {BL_MLX_QUANTIZE_AFFINE, 4, 64},
        {BL_MLX_QUANTIZE_MXFP4, 4, 32},
        {BL_MLX_QUANTIZE_MXFP8, 8, 32},
        {BL_MLX_QUANTIZE_NVFP4, 4, 16},
    };
    bl_mlx_quantize_format f = defaults[a->mode];
    f.bits = a->bits ? a->bits : f.bits;
    f.group = a->group ? a->group : f.group;
    return f;
}

static void show(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    bl_cli_progress_show(user, done_bytes, total_bytes);
}

static void print_report(const char *dst, const bl_quantize_report *r) {
    char size[24];
    printf("%s: %s, %.1f M parameters in %s, %.3f bits each%s\n", dst, r->model_type,
           (double)r->n_params / 1e6, bl_cli_size(r->size_bytes, size),
           (double)r->size_bytes * 8 / (double)r->n_params, r->has_head ? ", with its embedded head" : "");
    printf("%" PRIu32 " matrices quantised, %" PRIu32 " tensors written, %" PRIu32
           " of other towers or without use left out\n",
           r->n_quantized, r->n_tensors, r->n_skipped);
    if (r->n_unfit > 0) {
        printf("%" PRIu32
               " matrices left as they are, because the group does not divide their width; the first "
               "is %s (%" PRIu64 ")\n",
               r->n_unfit, r->first_unfit, r->unfit_width);
    }
}

static bl_code quantize(const quantize_args *a, const bl_opts *o, bl_quantize_report *ret, bl_err *err) {
    static const bl_dtype dtypes[] = {
        [DTYPE_SAME] = BL_DTYPE_BF16,
        [DTYPE_BF16] = BL_DTYPE_BF16,
        [DTYPE_F16] = BL_DTYPE_F16,
        [DTYPE_F32] = BL_DTYPE_F32,
    };
    bl_quantize_keep keep[BL_OPT_MAX_LIST];
    char *copies[BL_OPT_MAX_LIST] = {0}, *path = NULL;
    bl_store store;
    bl_cli_progress bar;
    bl_code rc;
    bl_cli_progress_init(&bar, "quantising", 0);
    bl_quantize_options q = {
        .dst = o->args[1],
        .format = format_of(a),
        .cast = a->dtype != DTYPE_SAME,
        .dtype = dtypes[a->dtype],
        .head = a->no_head     ? BL_QUANTIZE_HEAD_NONE
                : a->head == 0 ? BL_QUANTIZE_HEAD_QUANTIZED
                               : BL_QUANTIZE_HEAD_PLAIN,
        .head_bits = a->head_bits,
        .keep = keep,
        .n_keep = a->keep.n,
        .max_shard_bytes = a->shard_size,
        .cancel = bl_cli_interrupt_flag(),
        .progress = a->quiet ? NULL : show,
        .user = &bar,
    };
    BL_TRY_GOTO(rc, out, parse_keep(&a->keep, keep, copies, err));
    BL_TRY_GOTO(rc, out, bl_cli_open_store(&a->store, &store, err));
    BL_TRY_GOTO(rc, out, bl_store_resolve(&store, o->args[0], &path, err));
    q.src = path;
    rc = bl_quantize_run(&q, ret, err);
    bl_cli_progress_clear(&bar);
out:
    for (uint32_t i = 0; i < a->keep.n; i++) {
        bl_free(copies[i]);
    }
    bl_free(path);
    return rc;
}

static int run_quantize(int argc, char **argv) {
    quantize_args a;
    bl_opts o;
    int status = bl_opts_begin(&bl_command_quantize, argc, argv, &a, &o);
    if (status >= 0) {
        return status;
    }
    if (a.no_head && (bl_opts_given(&bl_command_quantize, &o, "head") || a.head_bits)) {
        bl_cli_errorf(
            "--no-head leaves the head out, --head and --head-bits say how to keep it: one of them");
        return BL_EXIT_USAGE;
    }
    if (a.head_bits && a.head != 0) {
        bl_cli_errorf("--head bf16 keeps the head as it is, --head-bits quantises it: one of them");
        return BL_EXIT_USAGE;
    }
    bl_err err;
    bl_quantize_report report;
    bl_cli_catch_interrupt();
    if (quantize(&a, &o, &report, &err) != BL_OK) {
        return bl_cli_fail(&err);
    }
    print_report(o.args[1], &report);
    return BL_EXIT_OK;
}

const bl_command bl_command_quantize = {
    .name = "quantize",
    .summary = "Make a quantised checkpoint of a full one",
    .usage = "SRC DST [--bits N] [--group N] [--mode MODE] [options]",
    .about =
        "Reads a checkpoint of floats (a Hugging Face folder, or the name of one on this machine) and writes "
        "an MLX checkpoint to the new folder DST, byte for byte as MLX quantises. Of multimodal models the "
        "text part is taken. Norms, convolutions and the like are never quantised; routers get 8 bits. "
        "Memory is small whatever the model's size; when it fails nothing is left at DST.",
    .examples = "  darkbloom quantize google/gemma-4-26b-a4b-it gemma-4-26b-4bit\n"
                "  darkbloom quantize SRC DST --bits 4 --group 64 --keep '*.mlp.*_proj=8'\n"
                "  darkbloom quantize Qwen/Qwen3.5-9B qwen-4bit --head-bits 8\n"
                "  darkbloom quantize SRC DST --mode mxfp8 --dtype bf16\n",
    .opts = quantize_options,
    .n_opts = BL_COUNTOF(quantize_options),
    .min_args = 2,
    .max_args = 2,
    .args_name = "the source and the new folder",
    .complete = BL_COMPLETE_MODEL,
    .run = run_quantize,
};
