/* The rows of every job: out of the source's map, converted, quantised, to the writer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/names.h"
#include "provider/quantize_job.h"

/* Rows are handled in blocks of about this many elements: small against a model, large against a call. */
#define BLOCK_ELEMS ((uint64_t)1 << 19)

/* ---- the plan, told to the writer ---- */

static bl_code plan_part(bl_quantize_work *r, const bl_quantize_job *j, const char *leaf, bl_dtype dtype,
                         uint64_t width, uint32_t *ret_id, bl_err *err) {
    char name[300];
    uint64_t dims[BL_TENSOR_MAX_DIMS];
    snprintf(name, sizeof name, "%s%s", j->name, leaf);
    memcpy(dims, j->dims, sizeof dims);
    dims[j->n_dims - 1] = width;
    return bl_safetensors_writer_plan(r->w, name, dtype, j->n_dims, dims,
                                      j->head ? BL_QUANTIZE_HEAD_FILE : NULL, ret_id, err);
}

static bl_code plan_job(bl_quantize_work *r, bl_quantize_job *j, bl_err *err) {
    bl_quantize_report *rep = &r->plan.report;
    rep->n_params += j->n_params;
    r->total_bytes += j->n_experts * j->rows * j->width * bl_dtype_get(j->src_dtype)->block_bytes;
    if (!j->quantize) {
        rep->n_tensors++;
        return bl_safetensors_writer_plan(r->w, j->name, j->plan_dtype, j->n_dims, j->dims,
                                          j->head ? BL_QUANTIZE_HEAD_FILE : NULL, &j->id, err);
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

static bl_code allocate(bl_quantize_work *r, bl_err *err) {
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
static const uint8_t *fetch(bl_quantize_work *r, const bl_quantize_job *j, uint64_t e, uint64_t from,
                            uint64_t n) {
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

/* n elements in the dtype of the result. What is added is added in the source's dtype, before it changes. */
static const uint8_t *convert(bl_quantize_work *r, const bl_quantize_job *j, const uint8_t *from,
                              uint64_t n) {
    if (j->src_dtype == j->dtype && j->add == 0.0f) {
        return from;
    }
    size_t in = bl_dtype_get(j->src_dtype)->block_bytes, out = bl_dtype_get(j->dtype)->block_bytes;
    for (uint64_t i = 0; i < n; i++) {
        float v = load(j->src_dtype, from + i * in);
        if (j->add != 0.0f) {
            uint8_t sum[4];
            store(j->src_dtype, v + j->add, sum);
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

static bl_code put_quantized(bl_quantize_work *r, const bl_quantize_job *j, const uint8_t *rows, uint64_t n,
                             bl_err *err) {
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

static bl_code put_block(bl_quantize_work *r, const bl_quantize_job *j, uint64_t e, uint64_t from, uint64_t n,
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
static void release(const bl_quantize_work *r, const bl_quantize_job *j, uint64_t e, uint64_t from,
                    uint64_t n) {
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

static bl_code run_job(bl_quantize_work *r, const bl_quantize_job *j, bl_err *err) {
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

/* ---- all jobs ---- */

bl_code bl_quantize_work_plan(bl_quantize_work *r, bl_err *err) {
    for (uint32_t i = 0; i < r->plan.n; i++) {
        BL_TRY(plan_job(r, &r->plan.jobs[i], err));
    }
    return BL_OK;
}

bl_code bl_quantize_work_run(bl_quantize_work *r, bl_err *err) {
    BL_TRY(allocate(r, err));
    for (uint32_t i = 0; i < r->plan.n; i++) {
        BL_TRY(run_job(r, &r->plan.jobs[i], err));
    }
    return BL_OK;
}

void bl_quantize_work_done(bl_quantize_work *r) {
    bl_quantize_plan_done(&r->plan);
    bl_free(r->rows);
    bl_free(r->converted);
    bl_free(r->weight);
    bl_free(r->scales);
    bl_free(r->biases);
}
