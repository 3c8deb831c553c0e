#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/quantize_job.h"

static const bl_mlx_quantize_format router_format = {BL_MLX_QUANTIZE_AFFINE, 8, 64};
static const bl_mlx_quantize_format blocks_format = {BL_MLX_QUANTIZE_MXFP4, 4, 32};

static bl_code bad_shape(const bl_tensor_view *t, const char *allowed, bl_err *err) {
    char shape[128] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_dims && n < sizeof shape; i++) {
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, i ? "," : "", t->dims[i]);
    }
    BL_FAIL(err, BL_EFORMAT, "tensor '%.*s' is %s [%.100s], allowed is %s",
            bl_name_shown(t->name, strlen(t->name)), t->name, bl_dtype_get(t->dtype)->name, shape, allowed);
}

static bool is_float(bl_dtype t) {
    return t == BL_DTYPE_F32 || t == BL_DTYPE_F16 || t == BL_DTYPE_BF16;
}

static bl_code add(bl_quantize_plan *p, const bl_quantize_job *j, bl_quantize_job **ret, bl_err *err) {
    if (p->n == p->cap) {
        uint32_t cap = BL_MAX(p->cap * 2, 64u);
        bl_quantize_job *jobs = p->n < BL_ST_MAX_TENSORS ? bl_realloc(p->jobs, cap * sizeof *jobs)
                                                         : NULL; /* each costs 600 bytes */
        if (!jobs) {
            BL_FAIL(err, BL_ENOMEM, "no memory for the plan of %" PRIu32 " tensors", p->n);
        }
        p->jobs = jobs;
        p->cap = cap;
    }
    p->jobs[p->n] = *j;
    *ret = &p->jobs[p->n++];
    return BL_OK;
}

/* ---- what a matrix becomes ---- */

/* Does the user say something about this module? */
static bool kept(bl_quantize_plan *p, const char *module, bl_mlx_quantize_format *f, bool *ret_quantize) {
    for (uint32_t i = 0; i < p->o->n_keep; i++) {
        if (fnmatch(p->o->keep[i].pattern, module, 0) == 0) {
            p->keep_used |= (uint64_t)1 << i;
            *ret_quantize = p->o->keep[i].bits != 0;
            *f = (bl_mlx_quantize_format){BL_MLX_QUANTIZE_AFFINE, p->o->keep[i].bits,
                                          p->o->format.mode == BL_MLX_QUANTIZE_AFFINE ? p->o->format.group
                                                                                      : 64};
            return true;
        }
    }
    return false;
}

static void set_format(bl_quantize_plan *p, bl_quantize_job *j, bool router) {
    const bl_mlx_quantize_format *base = j->head ? &p->head_format : &p->o->format;
    bool unfit = false;
    j->quantize = true;
    j->format = router ? router_format : *base;
    j->always_listed = router; /* as mlx-lm lists it, also when it is what the others are */
    if (!kept(p, j->name, &j->format, &j->quantize)) {
        if (j->head && p->o->head == BL_QUANTIZE_HEAD_PLAIN) {
            j->quantize = false;
        }
        /* mlx-lm asks the common group of routers too */
        unfit = j->width % base->group != 0;
    }
    unfit = j->quantize && (unfit || j->width % j->format.group != 0);
    if (unfit) {
        j->quantize = false;
        if (p->report.n_unfit++ == 0) {
            snprintf(p->report.first_unfit, sizeof p->report.first_unfit, "%.*s",
                     bl_name_shown(j->name, strlen(j->name)), j->name);
            p->report.unfit_width = j->width;
        }
    }
    p->report.n_quantized += j->quantize;
    if (!j->quantize) { /* from here on a tensor */
        size_t n = strlen(j->name);
        snprintf(j->name + n, sizeof j->name - n, ".weight");
    }
}

/* ---- jobs of a source tensor ---- */

static bl_code base_job(const bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                        bl_quantize_job *ret, bl_err *err) {
    bl_quantize_job j = {.src = t, .n_experts = 1, .step = 1, .head = to->head, .src_dtype = t->dtype};
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0) {
            return bad_shape(t, "a shape without 0", err);
        }
    }
    j.dtype = t->dtype;
    if (is_float(t->dtype)) {
        bool cast =
            p->o->cast && !bl_name_ends(t->name, "A_log"); /* the state's decay stays as exact as it is */
        j.dtype = to->head ? BL_DTYPE_BF16
                  : cast   ? p->o->dtype
                           : t->dtype; /* readers of heads ask for bf16 */
    }
    memcpy(j.name, to->name, sizeof j.name);
    j.n_dims = t->n_dims;
    memcpy(j.dims, t->dims, sizeof j.dims);
    j.width = t->n_dims ? t->dims[t->n_dims - 1] : 1;
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) { /* no overflow: the tensor is in a file */
        n *= t->dims[i];
    }
    j.rows = j.src_rows = n / j.width;
    j.n_params = n;
    j.plan_dtype = j.dtype;
    *ret = j;
    return BL_OK;
}

static bl_code add_plain(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                         bl_err *err) {
    bl_quantize_job j, *added;
    if (!is_float(t->dtype)) {
        return bad_shape(t, "F32, F16 or BF16", err);
    }
    BL_TRY(base_job(p, t, to, &j, err));
    if (to->rule == BL_QUANTIZE_CONV) {
        if (t->n_dims != 3 || (t->dims[1] != 1 && t->dims[2] != 1)) {
            return bad_shape(t, "[channels,1,width]", err);
        }
        j.dims[1] = t->dims[1] * t->dims[2];
        j.dims[2] = 1;
    }
    j.add = to->rule == BL_QUANTIZE_NORM && t->n_dims == 1 ? p->norm_shift : 0.0f;
    return add(p, &j, &added, err);
}

static bl_code add_matrix(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                          bl_err *err) {
    bl_quantize_job j, *added;
    if (!is_float(t->dtype) || t->n_dims < 2 || t->n_dims > 3) {
        return bad_shape(t, "F32, F16 or BF16 [out,in] or [experts,out,in]", err);
    }
    BL_TRY(base_job(p, t, to, &j, err));
    set_format(p, &j, to->rule == BL_QUANTIZE_MATRIX8);
    return add(p, &j, &added, err);
}

/* One of gate and up, or down, of a tensor with all experts. n_parts: 2 where rows of two matrices are in
 * one, `part` of them taken. */
static bl_code add_experts(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                           uint32_t part, uint32_t n_parts, bl_err *err) {
    bl_quantize_job j, *added;
    bool transposed = to->rule == BL_QUANTIZE_PAIRS_T || to->rule == BL_QUANTIZE_MATRIX_T;
    bool pairs = to->rule == BL_QUANTIZE_PAIRS_T;
    if (!is_float(t->dtype) || t->n_dims != 3 || t->dims[transposed ? 2 : 1] % n_parts != 0) {
        return bad_shape(t, n_parts == 1 ? "[experts,..,..]" : "[experts,..,..] with gate and up in one",
                         err);
    }
    BL_TRY(base_job(p, t, to, &j, err));
    if (part == 1) {
        memcpy(j.name, to->up, sizeof j.name);
    }
    j.n_experts = t->dims[0];
    j.src_rows = t->dims[transposed ? 2 : 1];
    j.width = t->dims[transposed ? 1 : 2];
    j.rows = j.src_rows / n_parts;
    j.step = pairs ? 2 : 1;
    j.first = pairs ? part : part * j.rows;
    j.transposed = transposed;
    j.dims[1] = j.rows;
    j.dims[2] = j.width;
    j.n_params /= n_parts;
    set_format(p, &j, false);
    return add(p, &j, &added, err);
}

static bl_code add_pair_values(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                               uint32_t part, bl_err *err) {
    bl_quantize_job j, *added;
    if (!is_float(t->dtype) || t->n_dims != 2 || t->dims[1] % 2 != 0) {
        return bad_shape(t, "F32, F16 or BF16 [experts,2 x width]", err);
    }
    BL_TRY(base_job(p, t, to, &j, err));
    if (part == 1) {
        memcpy(j.name, to->up, sizeof j.name);
    }
    j.n_experts = t->dims[0];
    j.src_rows = t->dims[1];
    j.rows = t->dims[1] / 2;
    j.width = 1;
    j.first = part;
    j.step = 2;
    j.dims[1] = j.rows;
    j.n_params /= 2;
    return add(p, &j, &added, err);
}

/* mxfp4 blocks and their scales are MLX's bytes already; only rows that alternate are put in order. */
static bl_code add_blocks(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                          uint32_t part, uint32_t n_parts, bl_err *err) {
    bl_quantize_job j, *added;
    bool scales = to->rule == BL_QUANTIZE_PAIRS_SCALES || to->rule == BL_QUANTIZE_SCALES;
    if (t->dtype != BL_DTYPE_U8 || t->n_dims != (scales ? 3 : 4) || t->dims[1] % n_parts != 0 ||
        (!scales && t->dims[3] != 16)) {
        return bad_shape(t, scales ? "U8 [experts,rows,groups]" : "U8 [experts,rows,groups,16]", err);
    }
    BL_TRY(base_job(p, t, to, &j, err));
    size_t n = (size_t)snprintf(j.name, sizeof j.name, "%s%s", part == 1 ? to->up : to->name,
                                scales ? ".scales" : ".weight");
    BL_ASSERT(n < sizeof j.name);
    j.n_experts = t->dims[0];
    j.src_rows = t->dims[1];
    j.rows = t->dims[1] / n_parts;
    j.first = part;
    j.step = n_parts;
    j.width = scales ? t->dims[2] : t->dims[2] * 16;
    j.n_dims = 3;
    j.dims[1] = j.rows;
    j.dims[2] = scales ? t->dims[2] : t->dims[2] * 4;
    j.plan_dtype = scales ? BL_DTYPE_U8 : BL_DTYPE_U32;
    j.n_params = scales ? 0 : j.n_experts * j.rows * t->dims[2] * 32;
    p->report.n_quantized += !scales;
    return add(p, &j, &added, err);
}

static bl_quantize_job *find_stack(bl_quantize_plan *p, const char *module) {
    for (uint32_t i = p->n; i > 0; i--) {
        bl_quantize_job *j = &p->jobs[i - 1];
        /* a matrix left alone has .weight behind its module's name */
        size_t n = strlen(module);
        if (j->parts && strncmp(j->name, module, n) == 0 &&
            (j->name[n] == '\0' || strcmp(j->name + n, ".weight") == 0)) {
            return j;
        }
    }
    return NULL;
}

/* Experts that are tensors of their own come together in one. */
static bl_code add_stacked(bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to,
                           bl_err *err) {
    uint64_t n_experts = 0;
    BL_TRY(bl_json_get_u64(p->text, "num_experts", 1, 4096, "config.json", &n_experts, err));
    if (!is_float(t->dtype) || t->n_dims != 2 || to->expert >= n_experts) {
        return bad_shape(t, "[out,in] of an expert below num_experts", err);
    }
    bl_quantize_job *j = find_stack(p, to->name);
    if (!j) {
        bl_quantize_job fresh;
        BL_TRY(base_job(p, t, to, &fresh, err));
        fresh.n_experts = n_experts;
        fresh.n_dims = 3;
        fresh.dims[0] = n_experts;
        fresh.dims[1] = t->dims[0];
        fresh.dims[2] = t->dims[1];
        fresh.n_params *= n_experts;
        set_format(p, &fresh, false);
        fresh.parts = bl_alloc_array((size_t)n_experts, sizeof(bl_tensor_view *));
        if (!fresh.parts) {
            BL_FAIL(err, BL_ENOMEM, "no memory for %" PRIu64 " experts", n_experts);
        }
        bl_code rc = add(p, &fresh, &j, err);
        if (rc != BL_OK) {
            bl_free(fresh.parts);
            return rc;
        }
    }
    if (t->dtype != j->src_dtype || t->dims[0] != j->dims[1] || t->dims[1] != j->dims[2]) {
        return bad_shape(t, "what the other experts have", err);
    }
    j->parts[to->expert] = t;
    return BL_OK;
}

static bl_code check_stacks(const bl_quantize_plan *p, bl_err *err) {
    for (uint32_t i = 0; i < p->n; i++) {
        const bl_quantize_job *j = &p->jobs[i];
        for (uint64_t e = 0; j->parts && e < j->n_experts; e++) {
            if (!j->parts[e]) {
                BL_FAIL(err, BL_EFORMAT, "'%.*s': expert %" PRIu64 " of %" PRIu64 " is missing",
                        bl_name_shown(j->name, strlen(j->name)), j->name, e, j->n_experts);
            }
        }
    }
    return BL_OK;
}

static bool dropped(const bl_quantize_plan *p, const bl_tensor_view *t, const bl_quantize_target *to) {
    if (to->rule == BL_QUANTIZE_SKIP || (to->head && p->o->head == BL_QUANTIZE_HEAD_NONE)) {
        return true;
    }
    if (bl_name_ends(t->name, "lm_head.weight")) {
        return p->tied; /* a copy of the embedding that nobody reads */
    }
    bool kv = strstr(t->name, ".self_attn.k_proj.") || strstr(t->name, ".self_attn.v_proj.") ||
              strstr(t->name, ".self_attn.k_norm.");
    return kv && !to->head && to->layer >= p->first_shared;
}

static bl_code add_tensor(bl_quantize_plan *p, const bl_tensor_view *t, bl_err *err) {
    bl_quantize_target to;
    char name[BL_ST_MAX_NAME_BYTES + 8];
    snprintf(name, sizeof name, "%s%s", p->bare_head ? "mtp." : "", t->name);
    if (p->head_only && !bl_quantize_is_head(name)) {
        return BL_OK;
    }
    BL_TRY(bl_quantize_target_of(p->family, name, &to, err));
    if (dropped(p, t, &to)) {
        p->report.n_skipped++;
        return BL_OK;
    }
    p->report.has_head |= to.head;
    switch (to.rule) {
    case BL_QUANTIZE_MATRIX:
    case BL_QUANTIZE_MATRIX8:
        return add_matrix(p, t, &to, err);
    case BL_QUANTIZE_HALVES:
    case BL_QUANTIZE_PAIRS_T:
        BL_TRY(add_experts(p, t, &to, 0, 2, err));
        return add_experts(p, t, &to, 1, 2, err);
    case BL_QUANTIZE_MATRIX_T:
        return add_experts(p, t, &to, 0, 1, err);
    case BL_QUANTIZE_PAIRS_VALUES:
        BL_TRY(add_pair_values(p, t, &to, 0, err));
        return add_pair_values(p, t, &to, 1, err);
    case BL_QUANTIZE_PAIRS_BLOCKS:
    case BL_QUANTIZE_PAIRS_SCALES:
        BL_TRY(add_blocks(p, t, &to, 0, 2, err));
        p->listed_default = blocks_format;
        return add_blocks(p, t, &to, 1, 2, err);
    case BL_QUANTIZE_BLOCKS:
    case BL_QUANTIZE_SCALES:
        p->listed_default = blocks_format;
        return add_blocks(p, t, &to, 0, 1, err);
    case BL_QUANTIZE_STACK:
        return add_stacked(p, t, &to, err);
    default:
        return add_plain(p, t, &to, err);
    }
}

/* ---- the checkpoint as a whole ---- */

bool bl_quantize_stores_centred(const bl_quantize_family *family, const bl_checkpoint *c) {
    if (!bl_quantize_family_shifts_norms(family)) {
        return false;
    }
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        const bl_tensor_view *t = bl_checkpoint_at(c, i);
        if (bl_name_ends(t->name, "conv1d.weight") && t->n_dims == 3 && t->dims[2] != 1) {
            return true;
        }
    }
    return false;
}

static bl_code read_config(bl_quantize_plan *p, bl_err *err) {
    uint64_t n_layers = 0, n_shared = 0;
    p->tied = bl_quantize_family_ties(p->family);
    BL_TRY(bl_json_get_bool(p->config, "tie_word_embeddings", "config.json", &p->tied, err));
    BL_TRY(bl_json_get_bool(p->text, "tie_word_embeddings", "config.json", &p->tied, err));
    BL_TRY(bl_json_get_u64(p->text, "num_hidden_layers", 1, 4096, "config.json", &n_layers, err));
    BL_TRY(bl_json_get_u64(p->text, "num_kv_shared_layers", 0, n_layers, "config.json", &n_shared, err));
    p->first_shared = n_layers ? n_layers - n_shared : UINT64_MAX;
    p->norm_shift = bl_quantize_stores_centred(p->family, p->c) ? 1.0f : 0.0f;
    return BL_OK;
}

/* The head is affine whatever the trunk is: that is the one form that its readers share. */
static bl_code choose_head_format(bl_quantize_plan *p, bl_err *err) {
    const bl_mlx_quantize_format *f = &p->o->format;
    p->head_format =
        (bl_mlx_quantize_format){BL_MLX_QUANTIZE_AFFINE, p->o->head_bits ? p->o->head_bits : f->bits,
                                 f->mode == BL_MLX_QUANTIZE_AFFINE ? f->group : 64};
    bl_code rc = bl_mlx_quantize_check(&p->head_format, err);
    return rc == BL_OK ? rc : bl_err_wrap(err, rc, "the head");
}

bl_code bl_quantize_plan_make(bl_quantize_plan *p, bl_err *err) {
    p->listed_default = p->o->format;
    BL_TRY(choose_head_format(p, err));
    if (!p->head_only) {
        BL_TRY(read_config(p, err));
    }
    for (size_t i = 0; i < bl_checkpoint_count(p->c); i++) {
        BL_TRY(add_tensor(p, bl_checkpoint_at(p->c, i), err));
    }
    BL_TRY(check_stacks(p, err));
    for (uint32_t i = 0; i < p->o->n_keep; i++) {
        if (!(p->keep_used >> i & 1)) {
            BL_FAIL(err, BL_EINVAL, "no matrix of the checkpoint matches '%.80s'", p->o->keep[i].pattern);
        }
    }
    return BL_OK;
}

void bl_quantize_plan_done(bl_quantize_plan *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        bl_free(p->jobs[i].parts);
    }
    bl_free(p->jobs);
    p->jobs = NULL;
    p->n = 0;
}
