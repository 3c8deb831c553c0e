/* Writes a checkpoint of a published model's shape with random weights of sane scale: for measuring speed and
 * memory where the real weights are not at hand. Real names and layouts, config.json, a byte-level tokenizer;
 * streaming, so that memory does not depend on the size; the same seed gives the same files.
 *
 *   make_synthetic --shape gemma-4-26b-a4b --quant mlx4 OUT
 *   make_synthetic --list
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "synthetic_fill.h"
#include "synthetic_models.h"

typedef struct {
    const char *name, *about;
    bool quantized, dense8, mxfp4_experts;
    bl_mlx_quantize_format format;
} quant;

static const quant quants[] = {
    {"bf16", "Hugging Face layout", false, false, false, {BL_MLX_QUANTIZE_AFFINE, 0, 1}},
    {"mlx4", "affine, 4 bits in groups of 64", true, false, false, {BL_MLX_QUANTIZE_AFFINE, 4, 64}},
    {"mlx4-dense8",
     "mlx4 with the dense MLP beside experts at 8 bits",
     true,
     true,
     false,
     {BL_MLX_QUANTIZE_AFFINE, 4, 64}},
    {"mlx8", "affine, 8 bits in groups of 64", true, false, false, {BL_MLX_QUANTIZE_AFFINE, 8, 64}},
    {"mxfp4",
     "mxfp4; of gpt-oss the experts, and the rest as mlx8",
     true,
     false,
     true,
     {BL_MLX_QUANTIZE_MXFP4, 4, 32}},
    {"mxfp8", "mxfp8", true, false, false, {BL_MLX_QUANTIZE_MXFP8, 8, 32}},
    {"nvfp4", "nvfp4", true, false, false, {BL_MLX_QUANTIZE_NVFP4, 4, 16}},
};

typedef struct {
    const char *shape, *quant, *out;
    uint64_t seed, shard_bytes, layers, vocab;
    bool list, quiet;
} args;

typedef struct {
    syn_shape shape;
    const quant *q;
    syn_tensor *tensors;
    uint32_t n;
    struct {
        bool quantized;
        bl_mlx_quantize_format format;
        uint32_t ids[3];
    } plan[SYN_MAX_TENSORS];
} model;

static const bl_mlx_quantize_format affine8 = {BL_MLX_QUANTIZE_AFFINE, 8, 64};

static uint64_t elements(const syn_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        n *= t->dims[i];
    }
    return n;
}

/* Embedded heads are affine in every file. */
static bl_mlx_quantize_format head_format(const quant *q) {
    return (bl_mlx_quantize_format){BL_MLX_QUANTIZE_AFFINE, q->format.bits, 64};
}

static bool quantize_as(const syn_shape *s, const quant *q, const syn_tensor *t,
                        bl_mlx_quantize_format *ret) {
    if (!q->quantized || (t->fill != SYN_MATRIX && t->fill != SYN_ROUTER)) {
        return false;
    }
    *ret = t->head ? head_format(q) : q->format;
    if (t->fill == SYN_ROUTER || (q->dense8 && t->dense_mlp && s->experts) ||
        (q->mxfp4_experts && s->family == SYN_GPT_OSS && !t->expert)) {
        *ret = affine8;
    }
    return t->dims[t->n_dims - 1] % ret->group == 0;
}

static uint64_t bytes_of(const syn_shape *s, const quant *q, const syn_tensor *t) {
    bl_mlx_quantize_format f;
    uint64_t n = elements(t);
    if (!quantize_as(s, q, t, &f)) {
        return n * (t->fill == SYN_A_LOG ? 4 : 2);
    }
    uint64_t scale = f.mode == BL_MLX_QUANTIZE_AFFINE ? 4 : 1;
    return bl_mlx_quantize_weight_bytes(&f, n) + n / f.group * scale;
}

/* ---- --list ---- */

static void list_shape(const syn_shape *s, syn_tensor *tensors) {
    uint64_t params = 0, head = 0;
    uint32_t n = syn_tensors(s, true, tensors);
    for (uint32_t i = 0; i < n; i++) {
        *(tensors[i].head ? &head : &params) += elements(&tensors[i]);
    }
    printf("%-16s %8.3f %7.3f", s->name, (double)params * 1e-9, (double)head * 1e-9);
    for (size_t q = 0; q < BL_COUNTOF(quants); q++) {
        uint64_t bytes = 0;
        n = syn_tensors(s, quants[q].quantized, tensors);
        for (uint32_t i = 0; i < n; i++) {
            bytes += bytes_of(s, &quants[q], &tensors[i]);
        }
        printf(" %11.3f", (double)bytes * 1e-9);
    }
    putchar('\n');
}

static int list_all(void) {
    syn_tensor *tensors = bl_alloc_array(SYN_MAX_TENSORS, sizeof *tensors);
    if (!tensors) {
        return 1;
    }
    printf("%-16s %8s %7s", "shape", "params B", "head B");
    for (size_t q = 0; q < BL_COUNTOF(quants); q++) {
        printf(" %11s", quants[q].name);
    }
    puts("   (GB, head included)");
    for (uint32_t i = 0; i < syn_n_shapes; i++) {
        list_shape(&syn_shapes[i], tensors);
    }
    for (size_t q = 0; q < BL_COUNTOF(quants); q++) {
        printf("%-12s %s\n", quants[q].name, quants[q].about);
    }
    bl_free(tensors);
    return 0;
}

/* ---- writing ---- */

#define HEAD_FILE "mtp-00001.safetensors"

static bl_code plan_tensor(model *m, bl_safetensors_writer *w, uint32_t i, bl_err *err) {
    const syn_tensor *t = &m->tensors[i];
    char name[192];
    uint64_t dims[3];
    const char *file = m->q->quantized && t->head ? HEAD_FILE : NULL;
    m->plan[i].quantized = quantize_as(&m->shape, m->q, t, &m->plan[i].format);
    if (!m->plan[i].quantized) {
        snprintf(name, sizeof name, "%s%s", t->name, t->suffix);
        bl_dtype dtype = t->fill == SYN_A_LOG ? BL_DTYPE_F32 : BL_DTYPE_BF16;
        return bl_safetensors_writer_plan(w, name, dtype, t->n_dims, t->dims, file, &m->plan[i].ids[0], err);
    }
    static const char *const parts[] = {".weight", ".scales", ".biases"};
    const bl_mlx_quantize_format *f = &m->plan[i].format;
    bool affine = f->mode == BL_MLX_QUANTIZE_AFFINE;
    memcpy(dims, t->dims, sizeof dims);
    for (uint32_t k = 0; k < (affine ? 3u : 2u); k++) {
        uint64_t width = t->dims[t->n_dims - 1];
        dims[t->n_dims - 1] = k == 0 ? width / 32 * f->bits : width / f->group;
        bl_dtype dtype = k == 0 ? BL_DTYPE_U32 : affine ? BL_DTYPE_BF16 : BL_DTYPE_U8;
        snprintf(name, sizeof name, "%s%s", t->name, parts[k]);
        BL_TRY(bl_safetensors_writer_plan(w, name, dtype, t->n_dims, dims, file, &m->plan[i].ids[k], err));
    }
    return BL_OK;
}

static bl_code format_json(const bl_mlx_quantize_format *f, bl_buf *b, bl_err *err) {
    return bl_buf_printf(b, err, "\"group_size\": %u, \"bits\": %u, \"mode\": \"%s\"", f->group, f->bits,
                         bl_mlx_quantize_mode_name(f->mode));
}

static bl_code quantization_json(const model *m, bool head, const char *key, bl_buf *b, bl_err *err) {
    bl_mlx_quantize_format common = head ? head_format(m->q) : m->q->format;
    BL_TRY(bl_buf_printf(b, err, ",\n\"%s\": {", key));
    BL_TRY(format_json(&common, b, err));
    for (uint32_t i = 0; i < m->n; i++) {
        const bl_mlx_quantize_format *f = &m->plan[i].format;
        bool differs = f->bits != common.bits || f->group != common.group || f->mode != common.mode;
        if (m->plan[i].quantized && m->tensors[i].head == head && differs) {
            BL_TRY(bl_buf_printf(b, err, ",\n\"%s\": {", m->tensors[i].name));
            BL_TRY(format_json(f, b, err));
            BL_TRY(bl_buf_append_char(b, '}', err));
        }
    }
    return bl_buf_append_char(b, '}', err);
}

static bl_code config_json(const model *m, bl_buf *b, bl_err *err) {
    BL_TRY(syn_config(&m->shape, b, err));
    if (m->q->quantized) {
        BL_TRY(quantization_json(m, false, "quantization", b, err));
        BL_TRY(quantization_json(m, false, "quantization_config", b, err));
    }
    if (m->shape.family == SYN_QWEN && m->q->quantized) {
        BL_TRY(quantization_json(m, true, "mtplx_mtp_quantization", b, err));
    } else if (m->shape.family == SYN_QWEN) {
        BL_TRY(bl_buf_append_str(b, ",\n\"mtplx_mtp_quantization\": {}", err));
    }
    return bl_buf_append_str(b, "}\n", err);
}

static bl_code put_sides(const model *m, bl_safetensors_writer *w, bl_err *err) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "config.json"};
    bl_code rc = BL_OK;
    for (uint32_t i = 0; i < 3 && rc == BL_OK; i++) {
        bl_buf b;
        bl_buf_init(&b, 1u << 20);
        rc = i == 0   ? syn_tokenizer(&m->shape, &b, err)
             : i == 1 ? syn_tokenizer_config(&m->shape, &b, err)
                      : config_json(m, &b, err);
        if (rc == BL_OK) {
            rc = bl_safetensors_writer_side(w, names[i], b.data, b.len, err);
        }
        bl_buf_done(&b);
    }
    return rc;
}

static void show(const char *what, uint64_t done, uint64_t total, uint64_t start_ns) {
    double s = (double)(bl_clock_mono_ns() - start_ns) * 1e-9;
    fprintf(stderr, "\r\033[K%s: %.2f of %.2f GB, %.2f GB/s", what, (double)done * 1e-9, (double)total * 1e-9,
            s > 0 ? (double)done * 1e-9 / s : 0);
}

static bl_code put_tensors(model *m, syn_filler *f, const args *a, bl_err *err) {
    uint64_t done = 0, total = bl_safetensors_writer_bytes(f->w), start = bl_clock_mono_ns(), last = start;
    bool bar = !a->quiet && isatty(STDERR_FILENO) == 1;
    for (uint32_t i = 0; i < m->n; i++) {
        const syn_tensor *t = &m->tensors[i];
        f->state = a->seed * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u + 1;
        BL_TRY(m->plan[i].quantized
                   ? syn_put_quantized(f, &m->plan[i].format, t, m->plan[i].ids, elements(t), err)
                   : syn_put_plain(f, t, m->plan[i].ids[0], elements(t), err));
        done += bytes_of(&m->shape, m->q, t);
        if (bar && bl_clock_mono_ns() - last > 200000000u) {
            last = bl_clock_mono_ns();
            show(a->shape, done, total, start);
        }
    }
    if (bar) {
        fputs("\r\033[K", stderr);
    }
    return BL_OK;
}

static bl_code write_model(model *m, const args *a, bl_err *err) {
    syn_filler *f = bl_alloc(sizeof *f);
    void *chunk = bl_alloc(SYN_CHUNK_BYTES);
    bl_code rc = BL_OK;
    if (!f || !chunk) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for a chunk");
        goto out;
    }
    f->chunk = chunk;
    BL_TRY_GOTO(rc, out, bl_file_make_dirs(a->out, err));
    BL_TRY_GOTO(rc, out, bl_safetensors_writer_new(a->out, a->shard_bytes, &f->w, err));
    for (uint32_t i = 0; i < m->n; i++) {
        BL_TRY_GOTO(rc, out, plan_tensor(m, f->w, i, err));
    }
    BL_TRY_GOTO(rc, out, bl_safetensors_writer_begin(f->w, err));
    BL_TRY_GOTO(rc, out, put_sides(m, f->w, err));
    BL_TRY_GOTO(rc, out, put_tensors(m, f, a, err));
    rc = bl_safetensors_writer_finish(f->w, err);
    if (rc == BL_OK) {
        printf("%s: %s %s, %" PRIu64 " bytes of tensors\n", a->out, m->shape.name, m->q->name,
               bl_safetensors_writer_bytes(f->w));
    }
out:
    if (f) {
        bl_safetensors_writer_free(f->w);
    }
    bl_free(f);
    bl_free(chunk);
    return rc;
}

/* ---- the command line ---- */

static const char usage[] = "Usage: make_synthetic --shape NAME --quant QUANT [options] OUT\n"
                            "       make_synthetic --list\n\n"
                            "  --shape NAME     a shape of --list\n"
                            "  --quant QUANT    bf16, mlx4, mlx4-dense8, mlx8, mxfp4, mxfp8, nvfp4\n"
                            "  --seed N         another set of numbers (default 1)\n"
                            "  --shard-size N   bytes of the largest file (default 5000000000)\n"
                            "  --layers N       the first N layers only\n"
                            "  --vocab N        the first N rows of the vocabulary only\n"
                            "  --quiet          no progress\n";

static bool number(const char *s, uint64_t min, uint64_t *ret) {
    char *end;
    errno = 0;
    *ret = strtoull(s, &end, 10);
    return errno == 0 && *s >= '0' && *s <= '9' && *end == '\0' && *ret >= min;
}

static bool parse(int argc, char **argv, args *a) {
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},  {"quant", required_argument, NULL, 'q'},
        {"seed", required_argument, NULL, 'r'},   {"shard-size", required_argument, NULL, 'z'},
        {"layers", required_argument, NULL, 'l'}, {"vocab", required_argument, NULL, 'v'},
        {"quiet", no_argument, NULL, 'Q'},        {"list", no_argument, NULL, 'L'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    *a = (args){.seed = 1, .shard_bytes = BL_SAFETENSORS_SHARD_BYTES};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            a->shape = optarg;
            break;
        case 'q':
            a->quant = optarg;
            break;
        case 'r':
            ok = number(optarg, 0, &a->seed);
            break;
        case 'z':
            ok = number(optarg, 1000000, &a->shard_bytes);
            break;
        case 'l':
            ok = number(optarg, 1, &a->layers);
            break;
        case 'v':
            ok = number(optarg, 512, &a->vocab);
            break;
        case 'Q':
            a->quiet = true;
            break;
        case 'L':
            a->list = true;
            break;
        default:
            ok = false;
        }
    }
    a->out = optind + 1 == argc ? argv[optind] : NULL;
    return ok && (a->list || (a->shape && a->quant && a->out));
}

static bl_code choose(const args *a, model *m, bl_err *err) {
    for (uint32_t i = 0; i < syn_n_shapes; i++) {
        if (strcmp(syn_shapes[i].name, a->shape) == 0) {
            m->shape = syn_shapes[i];
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(quants); i++) {
        if (strcmp(quants[i].name, a->quant) == 0) {
            m->q = &quants[i];
        }
    }
    if (!m->shape.name || !m->q) {
        BL_FAIL(err, BL_EINVAL, "%s is '%.60s', see make_synthetic --list", m->shape.name ? "quant" : "shape",
                m->shape.name ? a->quant : a->shape);
    }
    syn_shape *s = &m->shape;
    if (a->layers && a->layers < s->layers) {
        uint32_t own = s->layers - s->kv_shared;
        s->layers = (uint32_t)a->layers;
        s->kv_shared = s->layers > own ? s->layers - own : 0;
    }
    s->vocab = a->vocab && a->vocab < s->vocab ? (uint32_t)a->vocab : s->vocab;
    m->n = syn_tensors(s, m->q->quantized, m->tensors);
    return BL_OK;
}

int main(int argc, char **argv) {
    args a;
    bl_err err = {0};
    if (!parse(argc, argv, &a)) {
        fputs(usage, stderr);
        return 2;
    }
    if (a.list) {
        return list_all();
    }
    model *m = bl_alloc(sizeof *m);
    syn_tensor *tensors = bl_alloc_array(SYN_MAX_TENSORS, sizeof *tensors);
    bl_code rc = BL_ENOMEM;
    if (m && tensors) {
        m->tensors = tensors;
        rc = choose(&a, m, &err);
        if (rc == BL_OK) {
            rc = write_model(m, &a, &err);
        }
    }
    if (rc != BL_OK) {
        fprintf(stderr, "make_synthetic: %s\n", err.msg[0] ? err.msg : "no memory");
    }
    bl_free(tensors);
    bl_free(m);
    return rc == BL_OK ? 0 : 1;
}
