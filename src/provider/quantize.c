#include "provider/quantize.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/pull.h"
#include "provider/quantize_job.h"

#define HEAD_FILE "mtp-00001.safetensors"
/* Rows are handled in blocks of about this many elements: small against a model, large against a call. */
#define BLOCK_ELEMS ((uint64_t)1 << 19)
/* Room for config.json, tokenizer and index on the disk. */
#define SMALL_FILES_BYTES ((uint64_t)128 << 20)

typedef struct {
    bl_quantize_plan plan;
    bl_safetensors_writer *w;
    uint64_t done_bytes, total_bytes;
    /* work space of a block; each as large as any job needs */
    uint8_t *rows, *converted, *weight, *scales, *biases;
} run;

/* ---- checks before anything is written ---- */

static bl_code refuse_quantized(const bl_checkpoint *c, const json_t *config, const json_t *text,
                                const char *model_type, bl_err *err) {
    const json_t *q = json_object_get(config, "quantization_config");
    q = q ? q : json_object_get(text, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    /* gpt-oss is published with mxfp4 experts, which are taken over as they are */
    bool published = strcmp(model_type, "gpt_oss") == 0 && method && strcmp(method, "mxfp4") == 0;
    if (json_object_get(config, "quantization") || (q && !json_is_null(q) && !published)) {
        BL_FAIL(err, BL_ENOTSUP, "'%.100s' is quantised already (%.40s), a checkpoint of floats is needed",
                bl_checkpoint_name(c), method ? method : "a 'quantization' block in config.json");
    }
    return BL_OK;
}

static bl_code read_source(run *r, bl_err *err) {
    bl_quantize_plan *p = &r->plan;
    if (bl_checkpoint_kind_of(p->c) != BL_CKPT_HF) {
        BL_FAIL(err, BL_ENOTSUP,
                "'%.100s' is a GGUF file, a folder with config.json and safetensors is needed",
                bl_checkpoint_name(p->c));
    }
    p->config = bl_checkpoint_config(p->c);
    const json_t *text = json_object_get(p->config, "text_config");
    p->text = json_is_object(text) ? text : p->config;
    const char *type = json_string_value(json_object_get(p->config, "model_type"));
    if (!type) {
        BL_FAIL(err, BL_EFORMAT, "config.json has no 'model_type'");
    }
    BL_TRY(refuse_quantized(p->c, p->config, p->text, type, err));
    p->family = bl_quantize_family_find(type);
    if (!p->family) {
        BL_FAIL(err, BL_ENOTSUP, "model_type is '%.*s', allowed are %s", bl_name_shown(type, strlen(type)),
                type, bl_quantize_family_names());
    }
    snprintf(p->report.model_type, sizeof p->report.model_type, "%s", type);
    return BL_OK;
}

/* *ret_made: the folder did not exist. */
static bl_code prepare_folder(const char *dst, bool *ret_made, bl_err *err) {
    struct stat st;
    if (lstat(dst, &st) != 0 && errno == ENOENT) {
        BL_TRY(bl_file_make_dirs(dst, err));
        *ret_made = true;
        return BL_OK;
    }
    DIR *d = opendir(dst);
    if (!d) {
        BL_FAIL(err, BL_EINVAL, "'%.150s' cannot be the new folder: %s", dst, strerror(errno));
    }
    bool empty = true;
    for (struct dirent *e; (e = readdir(d));) {
        empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
    }
    closedir(d);
    if (!empty) {
        BL_FAIL(err, BL_EINVAL, "'%.150s' is not empty, a new or an empty folder is needed", dst);
    }
    return BL_OK;
}

/* ---- the plan, told to the writer ---- */

static bl_code plan_part(run *r, const bl_quantize_job *j, const char *leaf, bl_dtype dtype, uint64_t width,
                         uint32_t *ret_id, bl_err *err) {
    char name[300];
    uint64_t dims[BL_TENSOR_MAX_DIMS];
    snprintf(name, sizeof name, "%s%s", j->name, leaf);
    memcpy(dims, j->dims, sizeof dims);
    dims[j->n_dims - 1] = width;
    return bl_safetensors_writer_plan(r->w, name, dtype, j->n_dims, dims, j->head ? HEAD_FILE : NULL, ret_id,
                                      err);
}

static bl_code plan_job(run *r, bl_quantize_job *j, bl_err *err) {
    bl_quantize_report *rep = &r->plan.report;
    rep->n_params += j->n_params;
    r->total_bytes += j->n_experts * j->rows * j->width * bl_dtype_get(j->src_dtype)->block_bytes;
    if (!j->quantize) {
        rep->n_tensors++;
        return bl_safetensors_writer_plan(r->w, j->name, j->plan_dtype, j->n_dims, j->dims,
                                          j->head ? HEAD_FILE : NULL, &j->id, err);
    }
    bool affine = j->format.mode == BL_MLX_QUANTIZE_AFFINE;
    rep->n_tensors += affine ? 3 : 2;
    BL_TRY(plan_part(r, j, ".weight", BL_DTYPE_U32, j->width / 32 * j->format.bits, &j->id, err));
    BL_TRY(plan_part(r, j, ".scales", affine ? j->dtype : BL_DTYPE_U8, j->width / j->format.group,
                     &j->id_scales, err));
    return affine ? plan_part(r, j, ".biases", j->dtype, j->width / j->format.group, &j->id_biases, err)
                  : BL_OK;
}

/* Rows of a block, at least one. */
static uint64_t block_rows(const bl_quantize_job *j) {
    return BL_MIN(BL_MAX(BLOCK_ELEMS / j->width, 1), j->rows);
}

static bl_code allocate(run *r, bl_err *err) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < r->plan.n; i++) {
        n = BL_MAX(n, block_rows(&r->plan.jobs[i]) * r->plan.jobs[i].width);
    }
    if (n > (uint64_t)1 << 28) {
        BL_FAIL(err, BL_ELIMIT, "a row of %" PRIu64 " elements, allowed are 2^28", n);
    }
    r->rows = bl_alloc((size_t)n * 4);
    r->converted = bl_alloc((size_t)n * 4);
    r->weight = bl_alloc((size_t)n);
    r->scales = bl_alloc((size_t)n / 4 + 4); /* a scale of at most 4 bytes for 16 elements and more */
    r->biases = bl_alloc((size_t)n / 4 + 4);
    if (!r->rows || !r->converted || !r->weight || !r->scales || !r->biases) {
        BL_FAIL(err, BL_ENOMEM, "no memory for blocks of %" PRIu64 " elements", n);
    }
    return BL_OK;
}

/* ---- rows ---- */

/* The n rows from `from` on of expert e, one after the other, in the source's dtype. */
static const uint8_t *fetch(run *r, const bl_quantize_job *j, uint64_t e, uint64_t from, uint64_t n) {
    size_t size = bl_dtype_get(j->src_dtype)->block_bytes, row_bytes = (size_t)j->width * size;
    const uint8_t *data = j->parts ? j->parts[e]->data : j->src->data;
    uint64_t block = j->parts ? 0 : e * j->src_rows;
    if (!j->transposed && j->step == 1) {
        return data + (block + j->first + from) * row_bytes;
    }
    if (!j->transposed) {
        for (uint64_t i = 0; i < n; i++) {
            memcpy(r->rows + i * row_bytes, data + (block + j->first + (from + i) * j->step) * row_bytes,
                   row_bytes);
        }
        return r->rows;
    }
    const uint8_t *column = data + (e * j->width * j->src_rows + j->first + from * j->step) * size;
    for (uint64_t k = 0; k < j->width; k++) {
        const uint8_t *p = column + k * j->src_rows * size;
        for (uint64_t i = 0; i < n; i++) {
            memcpy(r->rows + (i * j->width + k) * size, p + i * j->step * size, size);
        }
    }
    return r->rows;
}

static float load(bl_dtype t, const uint8_t *p) {
    uint16_t h;
    float v;
    if (t == BL_DTYPE_F32) {
        memcpy(&v, p, 4);
        return v;
    }
    memcpy(&h, p, 2);
    return t == BL_DTYPE_BF16 ? bl_bf16_to_f32(h) : bl_f16_to_f32(h);
}

static void store(bl_dtype t, float v, uint8_t *p) {
    if (t == BL_DTYPE_F32) {
        memcpy(p, &v, 4);
        return;
    }
    uint16_t h = t == BL_DTYPE_BF16 ? bl_f32_to_bf16(v) : bl_f32_to_f16(v);
    memcpy(p, &h, 2);
}

/* n elements in the dtype of the result. 1 is added in the source's dtype, before it changes. */
static const uint8_t *convert(run *r, const bl_quantize_job *j, const uint8_t *from, uint64_t n) {
    if (j->src_dtype == j->dtype && !j->add_one) {
        return from;
    }
    size_t in = bl_dtype_get(j->src_dtype)->block_bytes, out = bl_dtype_get(j->dtype)->block_bytes;
    for (uint64_t i = 0; i < n; i++) {
        float v = load(j->src_dtype, from + i * in);
        if (j->add_one) {
            uint8_t sum[4];
            store(j->src_dtype, v + 1.0f, sum);
            v = load(j->src_dtype, sum);
        }
        store(j->dtype, v, r->converted + i * out);
    }
    return r->converted;
}

/* Exponents of all ones, looked for many at a time: bl_dtype_check_finite says which element it is. */
static bool all_finite(bl_dtype t, const uint8_t *p, uint64_t n) {
    enum { LANES = 16 };
    const uint16_t exponent = t == BL_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    if (t == BL_DTYPE_F32 || n % LANES != 0) {
        return false; /* not known */
    }
    uint16_t bad[LANES] = {0};
    for (uint64_t i = 0; i < n; i += LANES) {
        uint16_t h[LANES];
        memcpy(h, p + 2 * i, sizeof h);
        for (uint32_t k = 0; k < LANES; k++) {
            bad[k] = (uint16_t)(bad[k] | ((h[k] & exponent) == exponent));
        }
    }
    uint16_t any = 0;
    for (uint32_t k = 0; k < LANES; k++) {
        any |= bad[k];
    }
    return any == 0;
}

static bl_code check_finite(const bl_quantize_job *j, bl_dtype t, const void *p, uint64_t n, const char *what,
                            bl_err *err) {
    if (t != BL_DTYPE_F32 && t != BL_DTYPE_F16 && t != BL_DTYPE_BF16) {
        return BL_OK;
    }
    if (all_finite(t, p, n)) {
        return BL_OK;
    }
    bl_code rc = bl_dtype_check_finite(t, p, n, err);
    return rc == BL_OK
               ? rc
               : bl_err_wrap(err, rc, "'%.*s'%s", bl_name_shown(j->name, strlen(j->name)), j->name, what);
}

static bl_code put_quantized(run *r, const bl_quantize_job *j, const uint8_t *rows, uint64_t n, bl_err *err) {
    bool affine = j->format.mode == BL_MLX_QUANTIZE_AFFINE;
    uint64_t n_groups = n / j->format.group;
    size_t scale_bytes = (size_t)n_groups * bl_mlx_quantize_scale_bytes(&j->format, j->dtype);
    bl_mlx_quantize(&j->format, j->dtype, rows, n, r->weight, r->scales, r->biases);
    BL_TRY(bl_safetensors_writer_put(r->w, j->id, r->weight,
                                     (size_t)bl_mlx_quantize_weight_bytes(&j->format, n), err));
    if (affine) {
        BL_TRY(check_finite(j, j->dtype, r->scales, n_groups, ": its scales in that dtype", err));
        BL_TRY(bl_safetensors_writer_put(r->w, j->id_biases, r->biases, scale_bytes, err));
    }
    return bl_safetensors_writer_put(r->w, j->id_scales, r->scales, scale_bytes, err);
}

static bl_code put_block(run *r, const bl_quantize_job *j, uint64_t e, uint64_t from, uint64_t n,
                         bl_err *err) {
    size_t out = bl_dtype_get(j->dtype)->block_bytes;
    uint64_t n_elems = n * j->width;
    const uint8_t *raw = fetch(r, j, e, from, n);
    BL_TRY(check_finite(j, j->src_dtype, raw, n_elems, "", err));
    const uint8_t *rows = convert(r, j, raw, n_elems);
    if (rows != raw) {
        BL_TRY(check_finite(j, j->dtype, rows, n_elems, " in the new dtype", err));
    }
    if (j->quantize) {
        return put_quantized(r, j, rows, n_elems, err);
    }
    return bl_safetensors_writer_put(r->w, j->id, rows, (size_t)n_elems * out, err);
}

/* Pages of the source that will not be read again: the block's, or its expert's when rows come from all over
 * it. */
static void release(const run *r, const bl_quantize_job *j, uint64_t e, uint64_t from, uint64_t n) {
    bl_tensor_view part = j->parts ? *j->parts[e] : *j->src;
    uint64_t row_bytes = j->width * bl_dtype_get(j->src_dtype)->block_bytes;
    uint64_t expert = j->parts ? 0 : e * j->src_rows * row_bytes;
    if (!j->transposed && j->step == 1) {
        part.data += expert + (j->first + from) * row_bytes;
        part.size_bytes = n * row_bytes;
    } else if (from + n < j->rows) {
        return;
    } else {
        part.data += expert;
        part.size_bytes = j->src_rows * row_bytes;
    }
    bl_checkpoint_release_pages(r->plan.c, &part);
}

static bl_code run_job(run *r, const bl_quantize_job *j, bl_err *err) {
    const bl_quantize_options *o = r->plan.o;
    uint64_t per_block = block_rows(j);
    for (uint64_t e = 0; e < j->n_experts; e++) {
        for (uint64_t from = 0; from < j->rows; from += per_block) {
            uint64_t n = BL_MIN(per_block, j->rows - from);
            if (o->cancel && atomic_load_explicit(o->cancel, memory_order_relaxed)) {
                BL_FAIL(err, BL_ECANCEL, "interrupted, nothing was kept");
            }
            BL_TRY(put_block(r, j, e, from, n, err));
            release(r, j, e, from, n);
            r->done_bytes += n * j->width * bl_dtype_get(j->src_dtype)->block_bytes;
            if (o->progress) {
                o->progress(o->user, r->done_bytes, r->total_bytes);
            }
        }
    }
    return BL_OK;
}

/* ---- the files beside the weights ---- */

static bl_code copy_side_files(run *r, bl_err *err) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json",
                                        "LICENSE",
                                        "LICENSE.txt"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        bl_buf b;
        bl_err cause = {0};
        bl_code rc = bl_checkpoint_read_side(r->plan.c, names[i], BL_TOKENIZER_JSON_MAX_BYTES, &b, &cause);
        if (rc == BL_ENOTFOUND) {
            continue;
        }
        if (rc != BL_OK) {
            BL_FAIL(err, rc, "%s", cause.msg);
        }
        rc = bl_safetensors_writer_side(r->w, names[i], b.data, b.len, err);
        bl_buf_done(&b);
        BL_TRY(rc);
    }
    return BL_OK;
}

static bl_code write_config(run *r, bl_err *err) {
    bl_buf b;
    bl_buf_init(&b, BL_CONFIG_MAX_BYTES);
    bl_code rc = bl_quantize_config_make(&r->plan, &b, err);
    if (rc == BL_OK) {
        rc = bl_safetensors_writer_side(r->w, "config.json", b.data, b.len, err);
    }
    bl_buf_done(&b);
    return rc;
}

/* ---- all of it ---- */

static bl_code write_all(run *r, bl_err *err) {
    const bl_quantize_options *o = r->plan.o;
    BL_TRY(bl_safetensors_writer_new(o->dst, o->max_shard_bytes, &r->w, err));
    for (uint32_t i = 0; i < r->plan.n; i++) {
        BL_TRY(plan_job(r, &r->plan.jobs[i], err));
    }
    BL_TRY(bl_safetensors_writer_begin(r->w, err));
    r->plan.report.size_bytes = bl_safetensors_writer_bytes(r->w);
    BL_TRY(bl_pull_check_space(o->dst, r->plan.report.size_bytes + SMALL_FILES_BYTES, err));
    BL_TRY(allocate(r, err));
    BL_TRY(copy_side_files(r, err));
    BL_TRY(write_config(r, err));
    for (uint32_t i = 0; i < r->plan.n; i++) {
        BL_TRY(run_job(r, &r->plan.jobs[i], err));
    }
    BL_TRY(bl_checkpoint_check_intact(r->plan.c, err));
    return bl_safetensors_writer_finish(r->w, err);
}

static bl_code quantize(run *r, bl_err *err) {
    bool made = false;
    BL_TRY(read_source(r, err));
    BL_TRY(bl_quantize_plan_make(&r->plan, err));
    BL_TRY(prepare_folder(r->plan.o->dst, &made, err));
    bl_code rc = write_all(r, err);
    bl_safetensors_writer_free(r->w);
    if (rc != BL_OK && made) {
        (void)rmdir(r->plan.o->dst);
    }
    return rc;
}

bl_code bl_quantize_run(const bl_quantize_options *o, bl_quantize_report *ret, bl_err *err) {
    run r = {.plan = {.o = o}};
    bl_checkpoint *c = NULL;
    BL_TRY(bl_mlx_quantize_check(&o->format, err));
    BL_TRY(bl_checkpoint_open(o->src, &c, err));
    r.plan.c = c;
    bl_code rc = quantize(&r, err);
    if (rc == BL_OK) {
        *ret = r.plan.report;
    }
    bl_quantize_plan_done(&r.plan);
    bl_free(r.rows);
    bl_free(r.converted);
    bl_free(r.weight);
    bl_free(r.scales);
    bl_free(r.biases);
    bl_checkpoint_free(c);
    return rc;
}
