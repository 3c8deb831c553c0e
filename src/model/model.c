/* Families by name, the model's life, and reading weights into the backend (see model.h). */
#include "model/model.h"

#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "model/family.h"

/* Norms, biases and the op list: 256 layers of 65536 wide norms in f32 are 268 MB. */
#define ARENA_MAX_BYTES ((size_t)512 << 20)

static const bl_family *const families[] = {&bl_family_gemma3_text, &bl_family_llama};

static bl_code find_family(const bl_checkpoint *c, const bl_family **ret, bl_err *err) {
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
        const char *name = gguf ? families[i]->gguf_arch : families[i]->name;
        if (strlen(name) == n && memcmp(name, arch, n) == 0) {
            *ret = families[i];
            return BL_OK;
        }
    }
    BL_FAIL(err, BL_ENOTSUP, "%s is '%.*s', this version runs %s",
            gguf ? "general.architecture" : "model_type", (int)BL_MIN(n, 64u), arch,
            gguf ? "gemma3 and llama" : "gemma3_text and llama");
}

static bl_code build(bl_model *m, bl_activations activations, bl_err *err) {
    const bl_family *f = NULL;
    bool gguf = bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_GGUF;
    BL_TRY(find_family(m->ckpt, &f, err));
    BL_TRY(bl_arena_new("model", ARENA_MAX_BYTES, &m->arena, err));
    strncpy(m->cfg.family, f->name, sizeof m->cfg.family - 1);
    m->cfg.embed_scale = 1.0f;
    BL_TRY(gguf ? f->read_gguf(m->ckpt, &m->cfg, err) : f->read_hf(m->ckpt, &m->cfg, err));
    if (!gguf && m->cfg.embed_scale != 1.0f && activations != BL_ACTIVATIONS_F32) {
        /* The reference multiplies in the checkpoint's own type, so training saw the rounded factor (spec
         * §3). */
        const bl_tensor_view *t = bl_checkpoint_find(m->ckpt, "model.embed_tokens.weight");
        if (t && t->dtype == BL_DTYPE_BF16) {
            m->cfg.embed_scale = bl_bf16_to_f32(bl_f32_to_bf16(m->cfg.embed_scale));
        }
    }
    return bl_decoder_build(m, gguf ? &bl_decoder_gguf_names : f->hf_names, f->ignorable, err);
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

void bl_model_free(bl_model *m, bl_backend *b) {
    if (!m) {
        return;
    }
    for (size_t i = 0; i < m->n_matrices; i++) {
        if (m->matrices[i].mat) {
            b->ops->mat_free(b, m->matrices[i].mat);
        }
    }
    bl_arena_free(m->arena);
    bl_free(m);
}

bl_code bl_model_check_backend(const bl_model *m, const bl_backend *b, bl_err *err) {
    for (size_t i = 0; i < m->n_ops; i++) {
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

/* Row j of a head of d rows is stored at 2j (first half) or 2(j - d/2) + 1 (second half): adjacent pairs
 * rotate together in the file's convention, half pairs in ours. */
static uint32_t paired_source(uint32_t row, uint32_t d) {
    uint32_t head = row / d, j = row % d;
    return head * d + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1);
}

bl_code bl_model_load_vectors(bl_model *m, bl_err *err) {
    for (size_t i = 0; i < m->n_vectors; i++) {
        bl_model_vector *v = &m->vectors[i];
        void *p, *tmp;
        BL_TRY(bl_arena_alloc_array(m->arena, v->n, sizeof(float), &p, err));
        bl_code rc = bl_dtype_check_finite(v->src->dtype, v->src->data, v->n, err);
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "tensor '%s'", v->src->name);
        }
        float *dst = p;
        bl_dequant_row(v->src->dtype, v->src->data, dst, v->n);
        for (uint32_t k = 0; k < v->n && v->add != 0.0f; k++) {
            dst[k] = dst[k] + v->add;
        }
        if (v->paired_head_dim > 0) {
            BL_TRY(bl_arena_alloc_array(m->arena, v->n, sizeof(float), &tmp, err));
            float *sorted = tmp;
            for (uint32_t k = 0; k < v->n; k++) {
                sorted[k] = dst[paired_source(k, v->paired_head_dim)];
            }
            dst = sorted;
        }
        v->data = dst;
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

bl_code bl_model_load_matrix(bl_model *m, bl_backend *b, size_t i,
                             void (*consumed)(void *user, const bl_tensor_view *part), void *user,
                             bl_err *err) {
    bl_model_matrix *w = &m->matrices[i];
    bl_mat_desc desc = w->desc;
    row_release release = {.src = w->src, .n_rows = w->desc.n_out, .consumed = consumed, .user = user};
    if (w->paired_head_dim == 0) {
        desc.consumed = consumed ? release_rows : NULL;
        desc.consumed_user = &release;
        return b->ops->mat_new(b, &desc, &w->mat, err);
    }
    size_t row_bytes = (size_t)(w->src->size_bytes / w->desc.n_out);
    uint8_t *rows = bl_alloc_array(w->desc.n_out, row_bytes);
    if (!rows) {
        BL_FAIL(err, BL_ENOMEM, "out of memory while reordering tensor '%s'", w->desc.name);
    }
    for (uint32_t r = 0; r < w->desc.n_out; r++) {
        memcpy(rows + (size_t)r * row_bytes,
               w->src->data + (size_t)paired_source(r, w->paired_head_dim) * row_bytes, row_bytes);
    }
    if (consumed) {
        consumed(user, w->src);
    }
    desc.rows = rows;
    bl_code rc = b->ops->mat_new(b, &desc, &w->mat, err);
    bl_free(rows);
    return rc;
}
