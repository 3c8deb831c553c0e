/* Names → matrices, stacks and vectors (see tensors.h). */
#include "model/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "model/quantized.h"

#define SHAPE_TEXT 96u

/* ---- names and shapes ---------------------------------------------------------------------------------- */

void bl_tensor_name(const bl_tensor_finder *f, const char *leaf, const char *suffix,
                    char ret[BL_TENSOR_NAME_MAX]) {
    snprintf(ret, BL_TENSOR_NAME_MAX, "%s%s%s%s", f->root, f->prefix, leaf, suffix);
}

const bl_tensor_view *bl_tensor_find(const bl_tensor_finder *f, const char *leaf, const char *suffix) {
    char name[BL_TENSOR_NAME_MAX];
    bl_tensor_name(f, leaf, suffix, name);
    return bl_checkpoint_find(f->m->ckpt, name);
}

static void shape_text(const uint64_t *dims, uint32_t n_dims, char out[SHAPE_TEXT]) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n_dims && n < SHAPE_TEXT - 16; i++) {
        n += (size_t)snprintf(out + n, SHAPE_TEXT - n, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
    }
}

static bl_code check_shape(const bl_tensor_finder *f, const bl_tensor_view *t, const uint64_t *want,
                           uint32_t n_want) {
    bool same = t->n_dims == n_want;
    for (uint32_t i = 0; i < n_want && same; i++) {
        same = t->dims[i] == want[i];
    }
    if (!same) {
        char found[SHAPE_TEXT], wanted[SHAPE_TEXT];
        f->m->cfg.draft_foreign = f->draft;
        shape_text(t->dims, t->n_dims, found);
        shape_text(want, n_want, wanted);
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has shape [%s], the config asks for [%s]", t->name, found,
                wanted);
    }
    return BL_OK;
}

static bl_code missing(const bl_tensor_finder *f, const char *leaf, const char *suffix) {
    char name[BL_TENSOR_NAME_MAX];
    bl_tensor_name(f, leaf, suffix, name);
    BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' is missing", name);
}

/* ---- matrices ------------------------------------------------------------------------------------------ */

static void count_params(const bl_tensor_finder *f, uint64_t n, uint64_t n_active) {
    if (f->draft) {
        f->m->n_draft_params += n;
    } else {
        f->m->n_params += n;
        f->m->n_active_params += n_active;
    }
}

/* Appends a matrix whose shape and type have been checked against the file. */
static bl_code append(bl_tensor_finder *f, const bl_tensor_view *t, const bl_mat_desc *desc,
                      uint32_t n_experts, int32_t *ret) {
    bl_model *m = f->m;
    const bl_dtype_info *info = bl_dtype_get(desc->dtype);
    if (!info->is_weight) {
        BL_FAIL(f->err, BL_ENOTSUP, "tensor '%s' has type %s, which is no weight type of this version",
                t->name, info->name);
    }
    if (desc->k % info->block_elems != 0) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has rows of %u elements, %s needs a multiple of %u", t->name,
                desc->k, info->name, info->block_elems);
    }
    uint32_t n_used = n_experts > 1 ? m->cfg.n_used : 1;
    m->matrices[m->n_matrices] =
        (bl_model_matrix){.desc = *desc, .src = t, .n_experts = n_experts, .n_used = n_used};
    uint64_t n = (uint64_t)desc->n_out * desc->k;
    count_params(f, n, n / n_experts * n_used);
    *ret = (int32_t)m->n_matrices++;
    return BL_OK;
}

/* Types that are no floats cannot be taken out of a transposed stack: their blocks run the other way. */
static bool is_float(bl_dtype t) {
    return t == BL_DTYPE_F32 || t == BL_DTYPE_F16 || t == BL_DTYPE_BF16;
}

/* The rows of t, plain or quantised under leaf, held against the shape want[n_want]. */
static bl_code describe(const bl_tensor_finder *f, const char *leaf, const bl_tensor_view *t,
                        const uint64_t *want, uint32_t n_want, bl_mat_desc *d) {
    if (bl_quantized_is(f, leaf)) {
        return bl_quantized_desc(f, leaf, want, n_want, d);
    }
    BL_TRY(check_shape(f, t, want, n_want));
    d->name = t->name;
    d->dtype = t->dtype;
    d->rows = t->data;
    return BL_OK;
}

bl_code bl_tensor_matrix(bl_tensor_finder *f, const char *leaf, uint32_t n_out, uint32_t k,
                         const bl_row_map *map, uint32_t n_file, int32_t *ret) {
    const bl_tensor_view *t = bl_tensor_find(f, leaf, ".weight");
    bl_mat_desc d = {.n_out = n_out, .k = k};
    if (!t) {
        return missing(f, leaf, ".weight");
    }
    const uint64_t want[2] = {map && n_file > 0 ? n_file : n_out, k};
    if (map) {
        d.map = *map;
    }
    BL_TRY(describe(f, leaf, t, want, 2, &d));
    return append(f, t, &d, 1, ret);
}

/* ---- experts ------------------------------------------------------------------------------------------- */

typedef struct {
    bl_tensor_finder *f;
    char base[64];
    uint32_t hidden, mid;
    bool biased;
    bl_expert_refs *ret;
} expert_finder;

static void leaf_of(const expert_finder *e, const char *part, char ret[96]) {
    snprintf(ret, 96, "%s%s", e->base, part);
}

/* Every expert must fill whole blocks of the kernels. */
static bl_code check_height(const expert_finder *e, const char *name, uint32_t height) {
    if (height % 16 != 0) {
        BL_FAIL(e->f->err, BL_ENOTSUP, "tensor '%s' has experts of %u rows, a multiple of 16 is allowed",
                name, height);
    }
    return BL_OK;
}

/* One stack from a tensor [n_experts, rows_in_file, k] (float, or quantised). */
static bl_code add_stack(const expert_finder *e, const char *leaf, const char *suffix, uint32_t rows_in_file,
                         uint32_t height, uint32_t k, const bl_row_map *map, int32_t *ret) {
    bl_tensor_finder *f = e->f;
    uint32_t n = f->m->cfg.n_experts;
    const uint64_t want[3] = {n, rows_in_file, k};
    const bl_tensor_view *t = bl_tensor_find(f, leaf, suffix);
    if (!t) {
        return missing(f, leaf, suffix);
    }
    BL_TRY(check_height(e, t->name, height));
    bl_mat_desc d = {.n_out = n * height, .k = k};
    if (map) {
        d.map = *map;
    }
    BL_TRY(describe(f, leaf, t, want, 3, &d));
    return append(f, t, &d, n, ret);
}

/* gate and up from one tensor [n, 2 mid, hidden], gate rows first, then down. */
static bl_code add_fused(const expert_finder *e, const char *gate_up, const char *down, const char *suffix) {
    for (uint32_t i = 0; i < 2; i++) {
        bl_row_map map = {.block = e->mid, .stride = 2 * e->mid, .offset = i * e->mid};
        BL_TRY(add_stack(e, gate_up, suffix, 2 * e->mid, e->mid, e->hidden, &map, &e->ret->w[i]));
    }
    return add_stack(e, down, suffix, e->hidden, e->hidden, e->mid, NULL, &e->ret->w[2]);
}

/* A stack kept as [n, k, rows_in_file]: gpt-oss in floats, gate and up interleaved in the rows. */
static bl_code add_transposed(const expert_finder *e, const char *leaf, uint32_t height, uint32_t k,
                              const bl_row_map *map, int32_t *ret) {
    bl_tensor_finder *f = e->f;
    uint32_t n = f->m->cfg.n_experts;
    const bl_tensor_view *t = bl_tensor_find(f, leaf, "");
    const uint64_t want[3] = {n, k, map->transposed};
    if (!t) {
        return missing(f, leaf, "");
    }
    BL_TRY(check_shape(f, t, want, 3));
    BL_TRY(check_height(e, t->name, height));
    if (!is_float(t->dtype)) {
        BL_FAIL(f->err, BL_ENOTSUP, "tensor '%s' has type %s, F32, F16 and BF16 are allowed", t->name,
                bl_dtype_get(t->dtype)->name);
    }
    bl_mat_desc d = {
        .name = t->name, .dtype = t->dtype, .n_out = n * height, .k = k, .rows = t->data, .map = *map};
    return append(f, t, &d, n, ret);
}

static bl_code add_interleaved(const expert_finder *e, const char *gate_up, const char *down) {
    for (uint32_t i = 0; i < 2; i++) {
        bl_row_map map = {.block = 1, .stride = 2, .offset = i, .transposed = 2 * e->mid};
        BL_TRY(add_transposed(e, gate_up, e->mid, e->hidden, &map, &e->ret->w[i]));
    }
    return add_transposed(e, down, e->hidden, e->mid, &(bl_row_map){.transposed = e->hidden}, &e->ret->w[2]);
}

/* OpenAI's MXFP4: "<leaf>_blocks" [n, rows, k / 32, 16] and "<leaf>_scales" [n, rows, k / 32]. */
static bl_code add_blocks(const expert_finder *e) {
    char leaf[96];
    uint32_t n = e->f->m->cfg.n_experts;
    for (uint32_t i = 0; i < 3; i++) {
        leaf_of(e, i < 2 ? ".gate_up_proj" : ".down_proj", leaf);
        uint32_t height = i < 2 ? e->mid : e->hidden, k = i < 2 ? e->hidden : e->mid;
        bl_mat_desc d = {.n_out = n * height, .k = k};
        if (i < 2) {
            d.map = (bl_row_map){.block = 1, .stride = 2, .offset = i};
        }
        const bl_tensor_view *t = bl_tensor_find(e->f, leaf, "_blocks");
        if (!t) {
            return missing(e->f, leaf, "_blocks");
        }
        BL_TRY(check_height(e, t->name, height));
        BL_TRY(bl_quantized_blocks(e->f, leaf, (const uint64_t[]){n, i < 2 ? 2u * height : height, k}, &d));
        BL_TRY(append(e->f, t, &d, n, &e->ret->w[i]));
    }
    return BL_OK;
}

/* gate, up and down each on their own, [n, rows, k]; the parts' names in `part`. */
static bl_code add_split(const expert_finder *e, const char *const part[3]) {
    char leaf[96];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t height = i < 2 ? e->mid : e->hidden, k = i < 2 ? e->hidden : e->mid;
        leaf_of(e, part[i], leaf);
        BL_TRY(add_stack(e, leaf, ".weight", height, height, k, NULL, &e->ret->w[i]));
    }
    return BL_OK;
}

static bl_code add_expert_bias(const expert_finder *e, bool fused, const char *const part[3]) {
    uint32_t n = e->f->m->cfg.n_experts;
    for (uint32_t i = 0; i < 3 && e->biased; i++) {
        char leaf[96];
        uint32_t height = i < 2 ? e->mid : e->hidden;
        bl_vector_spec s = {.leaf = leaf, .n = n * height, .n_first = n};
        if (fused) {
            leaf_of(e, i < 2 ? ".gate_up_proj_bias" : ".down_proj_bias", leaf);
            s.suffix = "";
            s.n_file = i < 2 ? 2 * s.n : s.n;
            s.map = i < 2 ? (bl_row_map){.block = 1, .stride = 2, .offset = i} : (bl_row_map){0};
        } else {
            leaf_of(e, part[i], leaf);
            s.suffix = ".bias";
        }
        BL_TRY(bl_tensor_vector(e->f, &s, &e->ret->bias[i]));
    }
    return BL_OK;
}

bl_code bl_tensor_experts(bl_tensor_finder *f, const char *const *bases, uint32_t hidden, uint32_t mid,
                          bool biased, bl_expert_refs *ret) {
    static const char *const hf[3] = {".gate_proj", ".up_proj", ".down_proj"};
    static const char *const gguf[3] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    expert_finder e = {.f = f, .hidden = hidden, .mid = mid, .biased = biased, .ret = ret};
    char leaf[96];
    *ret = (bl_expert_refs){.w = {-1, -1, -1}, .bias = {-1, -1, -1}};
    for (; *bases; bases++) {
        snprintf(e.base, sizeof e.base, "%s", *bases);
        leaf_of(&e, ".gate_up_proj", leaf);
        if (bl_tensor_find(f, leaf, "")) {
            char down[96];
            leaf_of(&e, ".down_proj", down);
            BL_TRY(f->m->cfg.act == BL_GLU_CLAMPED ? add_interleaved(&e, leaf, down)
                                                   : add_fused(&e, leaf, down, ""));
            return add_expert_bias(&e, true, hf);
        }
        if (bl_tensor_find(f, leaf, "_blocks")) {
            BL_TRY(add_blocks(&e));
            return add_expert_bias(&e, true, hf);
        }
        leaf_of(&e, ".gate_proj", leaf);
        if (bl_tensor_find(f, leaf, ".weight")) {
            BL_TRY(add_split(&e, hf));
            return add_expert_bias(&e, false, hf);
        }
    }
    e.base[0] = '\0';
    if (bl_tensor_find(f, "ffn_gate_up_exps", ".weight")) {
        return add_fused(&e, "ffn_gate_up_exps", "ffn_down_exps", ".weight");
    }
    if (bl_checkpoint_kind_of(f->m->ckpt) == BL_CKPT_GGUF) {
        BL_TRY(add_split(&e, gguf));
        return add_expert_bias(&e, false, gguf);
    }
    return missing(f, leaf, ".weight");
}

/* ---- vectors ------------------------------------------------------------------------------------------- */

bl_code bl_tensor_vector(bl_tensor_finder *f, const bl_vector_spec *s, int32_t *ret) {
    bl_model *m = f->m;
    const bl_tensor_view *t = bl_tensor_find(f, s->leaf, s->suffix);
    if (!t) {
        return missing(f, s->leaf, s->suffix);
    }
    uint64_t n = t->n_dims == 0 ? 1 : t->dims[0], first = n, want = s->n_file > 0 ? s->n_file : s->n;
    for (uint32_t i = 1; i < t->n_dims; i++) {
        n = n > UINT32_MAX ? n : n * t->dims[i]; /* dims are checked by the container: no overflow below */
    }
    if (n != want || first != (s->n_first > 0 ? s->n_first : want)) {
        char shape[SHAPE_TEXT], wanted[SHAPE_TEXT];
        m->cfg.draft_foreign = f->draft;
        shape_text(t->dims, t->n_dims, shape);
        const uint64_t dims[2] = {s->n_first, s->n_first > 0 ? want / s->n_first : 0};
        shape_text(s->n_first > 0 ? dims : &want, s->n_first > 0 ? 2 : 1, wanted);
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has shape [%s], the config asks for [%s]", t->name, shape,
                wanted);
    }
    if (!is_float(t->dtype)) {
        BL_FAIL(f->err, BL_ENOTSUP, "tensor '%s' has type %s, a vector must be F32, F16 or BF16", t->name,
                bl_dtype_get(t->dtype)->name);
    }
    m->vectors[m->n_vectors] = (bl_model_vector){.src = t,
                                                 .n = s->n,
                                                 .map = s->map,
                                                 .columns = s->columns,
                                                 .add = s->add,
                                                 .mul = s->mul,
                                                 .neg_exp = s->neg_exp};
    count_params(f, s->n, s->n);
    *ret = (int32_t)m->n_vectors++;
    return BL_OK;
}

/* ---- what is left -------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

bl_code bl_tensor_refuse_unknown(const bl_model *m, bool (*skip)(const bl_model *m, const char *name),
                                 bl_err *err) {
    size_t n = 0;
    uintptr_t *used = bl_alloc_array(3 * m->n_matrices + m->n_vectors, sizeof *used);
    if (!used) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the list of tensors");
    }
    for (size_t i = 0; i < m->n_matrices; i++) {
        used[n++] = (uintptr_t)m->matrices[i].src->data;
        used[n++] = (uintptr_t)m->matrices[i].desc.scales;
        used[n++] = (uintptr_t)m->matrices[i].desc.biases;
    }
    for (size_t i = 0; i < m->n_vectors; i++) {
        used[n++] = (uintptr_t)m->vectors[i].src->data;
    }
    qsort(used, n, sizeof *used, by_address);
    const bl_tensor_view *stray = NULL;
    for (size_t i = 0; i < bl_checkpoint_count(m->ckpt) && !stray; i++) {
        const bl_tensor_view *t = bl_checkpoint_at(m->ckpt, i);
        uintptr_t at = (uintptr_t)t->data;
        if (t->size_bytes > 0 && !bsearch(&at, used, n, sizeof *used, by_address) && !skip(m, t->name)) {
            stray = t;
        }
    }
    bl_free(used);
    if (stray) {
        BL_FAIL(err, BL_EFORMAT, "tensor '%s' is not part of a %s model with this config", stray->name,
                m->cfg.family);
    }
    return BL_OK;
}
