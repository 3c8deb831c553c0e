/* Families by name, the model's life, and reading weights into the backend (see model.h). */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/dmath.h"
#include "formats/json.h"
#include "model/family.h"
#include "model/quantized.h"

/* Norms, biases and the op list: 256 layers of 65536 wide norms in f32 are 268 MB. */
#define ARENA_MAX_BYTES ((size_t)512 << 20)

static const bl_family *const families[] = {&bl_family_gemma3_text, &bl_family_gemma4, &bl_family_gpt_oss,
                                            &bl_family_llama,       &bl_family_qwen3,  &bl_family_qwen3_5};

static bl_code unknown_family(bool gguf, const char *arch, size_t n, bl_err *err) {
    char list[256];
    size_t used = 0;
    for (size_t i = 0; i < BL_COUNTOF(families); i++) {
        const char *const *names = gguf ? families[i]->gguf_archs : families[i]->types;
        for (; *names && used < sizeof list - 32; names++) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", *names);
        }
    }
    BL_FAIL(err, BL_ENOTSUP, "%s is '%.*s', this version runs %s",
            gguf ? "general.architecture" : "model_type", (int)BL_MIN(n, 64u), arch, list);
}

/* *ret_arch: the name the container goes by, from the family's table. */
static bl_code find_family(const bl_checkpoint *c, const bl_family **ret, const char **ret_arch,
                           bl_err *err) {
    bool gguf = bl_checkpoint_kind_of(c) == BL_CKPT_GGUF;
    const char *arch = NULL;
    size_t n = 0;
    if (gguf) {
        bool found = false;
        BL_TRY(bl_gguf_get_str(bl_checkpoint_gguf(c), "general.architecture", &arch, &n, &found, err));
        if (!found) {
            BL_FAIL(err, BL_EFORMAT, "metadata key 'general.architecture' is missing");
        }
    } else {
        BL_TRY(bl_json_get_str(bl_checkpoint_config(c), "model_type", "config.json", &arch, err));
        if (!arch) {
            BL_FAIL(err, BL_EFORMAT, "config.json: key 'model_type' is missing");
        }
        n = strlen(arch);
    }
    for (size_t i = 0; i < BL_COUNTOF(families); i++) {
        const char *const *names = gguf ? families[i]->gguf_archs : families[i]->types;
        for (; *names; names++) {
            if (strlen(*names) == n && memcmp(*names, arch, n) == 0) {
                *ret = families[i];
                *ret_arch = *names;
                return BL_OK;
            }
        }
    }
    return unknown_family(gguf, arch, n, err);
}

/* The text model's settings: of their own in a multimodal wrapper. */
static const json_t *text_config(const bl_checkpoint *c) {
    const json_t *o = bl_checkpoint_config(c), *text = json_object_get(o, "text_config");
    return json_is_object(text) ? text : o;
}

/* What a checkpoint may hold beside the text model: towers for pictures and sound, a head that the config
 * declares tied, rotary buffers of old exports, and ranges that quantisers leave behind. */
static bool is_beside(const bl_model *m, const char *name) {
    static const char *const parts[] = {"vision_tower.",         "vision_model.", "audio_tower.",
                                        "embed_vision.",         "embed_audio.",  "visual.",
                                        "multi_modal_projector."};
    static const char *const tails[] = {".rotary_emb.inv_freq", ".input_min", ".input_max", ".output_min",
                                        ".output_max"};
    const char *own = bl_family_strip_root(name);
    size_t n = strlen(name);
    for (size_t i = 0; i < BL_COUNTOF(parts); i++) {
        if (strncmp(own, parts[i], strlen(parts[i])) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(tails); i++) {
        size_t k = strlen(tails[i]);
        if (n >= k && strcmp(name + n - k, tails[i]) == 0) {
            return true;
        }
    }
    return m->cfg.tied && strncmp(own, "lm_head.", 8) == 0;
}

static bool may_skip(const bl_model *m, const char *name) {
    return (bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_HF && is_beside(m, name)) ||
           (m->family->ignorable && m->family->ignorable(m, name));
}

static bl_code build(bl_model *m, bl_activations activations, bl_err *err) {
    const char *arch = NULL;
    bool gguf = bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_GGUF;
    BL_TRY(find_family(m->ckpt, &m->family, &arch, err));
    const bl_family *f = m->family;
    BL_TRY(bl_arena_new("model", ARENA_MAX_BYTES, &m->arena, err));
    snprintf(m->cfg.family, sizeof m->cfg.family, "%s", f->name);
    m->cfg.embed_scale = 1.0f;
    if (gguf) {
        BL_TRY(f->read_gguf(m->ckpt, arch, &m->cfg, err));
    } else {
        BL_TRY(bl_quantized_check_config(m->ckpt, err));
        BL_TRY(f->read_hf(m->ckpt, text_config(m->ckpt), &m->cfg, err));
    }
    return bl_decoder_build(m, gguf ? f->gguf_names : f->hf_names, activations, may_skip, err);
}

bl_code bl_model_new(const bl_checkpoint *c, bl_activations activations, bl_model **ret, bl_err *err) {
    bl_model *m = bl_alloc(sizeof *m);
    if (!m) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the model's description");
    }
    m->ckpt = c;
    bl_code rc = build(m, activations, err);
    if (rc != BL_OK) {
        bl_model_free(m, NULL);
        return bl_err_wrap(err, rc, "model '%s'", bl_checkpoint_name(c));
    }
    *ret = m;
    return BL_OK;
}

static void free_matrices(bl_model *m, bl_backend *b, size_t from) {
    for (size_t i = from; i < m->n_matrices; i++) {
        if (m->matrices[i].mat) {
            b->ops->mat_free(b, m->matrices[i].mat);
        }
    }
    m->n_matrices = from;
}

void bl_model_drop_draft(bl_model *m, bl_backend *b) {
    if (!bl_model_has_draft(m)) {
        return;
    }
    free_matrices(m, b, m->n_trunk_matrices);
    m->n_vectors = m->n_trunk_vectors;
    m->n_all_ops = m->hidden_op = m->draft_op = m->draft_stored_op = m->draft_select_op = m->n_ops;
    m->n_kv--;
    m->n_states--;
    m->widths[BL_SLOT_HIDDEN] = m->widths[BL_SLOT_DRAFT_PAIR] = 0;
}

void bl_model_free(bl_model *m, bl_backend *b) {
    if (!m) {
        return;
    }
    free_matrices(m, b, 0);
    bl_arena_free(m->arena);
    bl_free(m);
}

bl_code bl_model_check_backend(const bl_model *m, const bl_backend *b, bl_err *err) {
    for (size_t i = 0; i < m->n_all_ops; i++) {
        const bl_op *op = &m->ops[i];
        if (op->n_w == 0 && !b->ops->supports(b, op->kind, BL_DTYPE_F32)) {
            BL_FAIL(err, BL_ENOTSUP, "operation '%s' is not supported by the %s backend", op->label,
                    b->ops->name);
        }
        for (size_t k = 0; k < op->n_w; k++) {
            const bl_model_matrix *w = &m->matrices[m->refs[i].w[k]];
            if (!b->ops->supports(b, op->kind, w->desc.dtype)) {
                BL_FAIL(err, BL_ENOTSUP,
                        "operation '%s' with tensor '%s' of type %s is not supported by the %s backend",
                        op->label, w->desc.name, bl_dtype_get(w->desc.dtype)->name, b->ops->name);
            }
        }
    }
    return BL_OK;
}

/* The file's values in the order and form the kernels want. */
static bl_code load_vector(bl_model *m, bl_model_vector *v, float *all, bl_err *err) {
    void *p;
    BL_TRY(bl_arena_alloc_array(m->arena, v->n, sizeof(float), &p, err));
    float *dst = p;
    for (uint32_t k = 0; k < v->n; k++) {
        uint64_t at = bl_row_map_source(&v->map, k);
        if (v->columns > 0) {
            uint32_t rows = v->n / v->columns;
            at = (uint64_t)(k % rows) * v->columns + k / rows;
        }
        dst[k] = v->neg_exp ? (float)-bl_dmath_exp((double)all[at]) : all[at];
        dst[k] = v->add != 0.0f ? dst[k] + v->add : dst[k];
        dst[k] = v->mul != 0.0f ? dst[k] * v->mul : dst[k];
    }
    v->data = dst;
    return BL_OK;
}

bl_code bl_model_load_vectors(bl_model *m, size_t from, size_t to, bl_err *err) {
    for (size_t i = from; i < to; i++) {
        bl_model_vector *v = &m->vectors[i];
        uint64_t n = v->src->size_bytes / bl_dtype_get(v->src->dtype)->block_bytes;
        bl_code rc = bl_dtype_check_finite(v->src->dtype, v->src->data, n, err);
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "tensor '%s'", v->src->name);
        }
        float *all = bl_alloc_array((size_t)n, sizeof *all);
        if (!all) {
            BL_FAIL(err, BL_ENOMEM, "out of memory for tensor '%s'", v->src->name);
        }
        bl_dequant_row(v->src->dtype, v->src->data, all, n);
        rc = load_vector(m, v, all, err);
        bl_free(all);
        BL_TRY(rc);
    }
    return BL_OK;
}

typedef struct {
    const bl_tensor_view *src;
    uint32_t n_rows;
    void (*consumed)(void *user, const bl_tensor_view *part);
    void *user;
} row_release;

static void release_rows(void *user, uint32_t first_row, uint32_t n_rows) {
    const row_release *r = user;
    bl_tensor_view part = *r->src;
    uint64_t row_bytes = r->src->size_bytes / r->n_rows;
    part.data += first_row * row_bytes;
    part.size_bytes = n_rows * row_bytes;
    r->consumed(r->user, &part);
}

/* Of scales or biases that lie in an array of their own. */
static uint64_t scale_bytes(const bl_model_matrix *w) {
    const bl_mat_desc *d = &w->desc;
    if (d->group == 0) {
        return 0;
    }
    const bl_dtype_info *info = bl_dtype_get(d->dtype);
    uint64_t elements = w->src->size_bytes / info->block_bytes * info->block_elems;
    return elements / d->group * bl_dtype_get(d->scale_dtype)->block_bytes;
}

uint64_t bl_model_matrix_file_bytes(const bl_model_matrix *w) {
    return w->src->size_bytes + scale_bytes(w) * (w->desc.biases ? 2 : 1);
}

bl_code bl_model_load_matrix(bl_model *m, bl_backend *b, size_t i,
                             void (*consumed)(void *user, const bl_tensor_view *part), void *user,
                             bl_err *err) {
    bl_model_matrix *w = &m->matrices[i];
    bl_mat_desc desc = w->desc;
    bool mapped = desc.map.block > 0 || desc.map.paired > 0 || desc.map.transposed > 0;
    row_release release = {.src = w->src, .n_rows = w->desc.n_out, .consumed = consumed, .user = user};
    if (consumed && !mapped) {
        desc.consumed = release_rows;
        desc.consumed_user = &release;
    }
    bl_code rc = b->ops->mat_new(b, &desc, &w->mat, err);
    if (rc == BL_OK && consumed && mapped) {
        consumed(user, w->src);
    }
    const void *beside[] = {desc.scales, desc.biases};
    for (size_t k = 0; k < BL_COUNTOF(beside) && rc == BL_OK && consumed; k++) {
        if (beside[k]) {
            consumed(user, &(bl_tensor_view){
                               .name = w->src->name, .data = beside[k], .size_bytes = scale_bytes(w)});
        }
    }
    return rc;
}
