/* Quantised weights of Hugging Face folders (see quantized.h). */
#include "model/quantized.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"

#define WHAT "config.json"

typedef struct {
    const char *mode;
    uint32_t bits, group;
} quant_params;

/* ---- what the config says ------------------------------------------------------------------------------ */

static const json_t *block(const bl_checkpoint *c, const char *key) {
    const json_t *o = bl_checkpoint_config(c);
    const json_t *b = json_object_get(o, key);
    if (!json_is_object(b)) {
        b = json_object_get(json_object_get(o, "text_config"), key);
    }
    return json_is_object(b) ? b : NULL;
}

static const json_t *quantization(const bl_tensor_finder *f) {
    if (f->draft) {
        const json_t *own = block(f->m->ckpt, "mtplx_mtp_quantization");
        if (own && json_object_size(own) > 0) {
            return own;
        }
    }
    const json_t *b = block(f->m->ckpt, "quantization");
    return b ? b : block(f->m->ckpt, "quantization_config");
}

/* Writers disagree on what comes before the text model's own path. */
static const char *strip_roots(const char *path) {
    static const char *const roots[] = {"language_model.", "model.language_model.", "model."};
    for (size_t i = 0; i < BL_COUNTOF(roots); i++) {
        size_t n = strlen(roots[i]);
        if (strncmp(path, roots[i], n) == 0) {
            path += n;
            i = (size_t)-1; /* once more from the first */
        }
    }
    return path;
}

static bl_code read_params(const json_t *o, quant_params *p, bl_err *err) {
    uint64_t bits = p->bits, group = p->group;
    p->mode = "affine";
    BL_TRY(bl_json_get_u64(o, "bits", 1, 32, WHAT, &bits, err));
    BL_TRY(bl_json_get_u64(o, "group_size", 1, 1u << 20, WHAT, &group, err));
    BL_TRY(bl_json_get_str(o, "mode", WHAT, &p->mode, err));
    p->bits = (uint32_t)bits;
    p->group = (uint32_t)group;
    return BL_OK;
}

static bl_code params_of(const bl_tensor_finder *f, const char *path, quant_params *ret) {
    const json_t *q = quantization(f), *value;
    const char *key, *own = strip_roots(path);
    if (!q) {
        BL_FAIL(f->err, BL_EFORMAT,
                WHAT ": tensor '%s.weight' is quantised, but key 'quantization' is missing", path);
    }
    *ret = (quant_params){0};
    BL_TRY(read_params(q, ret, f->err));
    json_object_foreach((json_t *)q, key, value) {
        if (strcmp(strip_roots(key), own) != 0) {
            continue;
        }
        if (json_is_false(value)) {
            BL_FAIL(f->err, BL_EFORMAT, WHAT ": '%s' is declared as not quantised, but has scales", key);
        }
        if (json_is_object(value)) {
            BL_TRY(read_params(value, ret, f->err));
        }
    }
    return BL_OK;
}

bl_code bl_quantized_check_config(const bl_checkpoint *c, bl_err *err) {
    const json_t *q = block(c, "quantization_config");
    const char *method = NULL;
    if (q && !block(c, "quantization")) {
        BL_TRY(bl_json_get_str(q, "quant_method", WHAT, &method, err));
    }
    if (method && strcmp(method, "mxfp4") != 0) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": quant_method is '%s', this version runs mxfp4 and MLX's formats",
                method);
    }
    return BL_OK;
}

/* ---- what the tensors are ------------------------------------------------------------------------------ */

static bool affine_type(uint32_t bits, bl_dtype *ret) {
    static const bl_dtype types[9] = {[2] = BL_DTYPE_AFFINE2, [3] = BL_DTYPE_AFFINE3, [4] = BL_DTYPE_AFFINE4,
                                      [5] = BL_DTYPE_AFFINE5, [6] = BL_DTYPE_AFFINE6, [8] = BL_DTYPE_AFFINE8};
    if (bits > 8 || types[bits] == BL_DTYPE_F32) {
        return false;
    }
    *ret = types[bits];
    return true;
}

static bl_code type_of(const bl_tensor_finder *f, const char *path, const quant_params *p, bl_dtype *ret) {
    static const struct {
        const char *mode;
        uint32_t bits, group;
        bl_dtype type;
    } fp[] = {
        {"mxfp4", 4, 32, BL_DTYPE_MXFP4}, {"mxfp8", 8, 32, BL_DTYPE_MXFP8}, {"nvfp4", 4, 16, BL_DTYPE_NVFP4}};
    if (strcmp(p->mode, "affine") == 0) {
        if ((p->group == 32 || p->group == 64 || p->group == 128) && affine_type(p->bits, ret)) {
            return BL_OK;
        }
        BL_FAIL(f->err, BL_ENOTSUP,
                WHAT
                ": '%s' is quantised to %u bits in groups of %u; 2, 3, 4, 5, 6 and 8 bits in groups of 32, "
                "64 and 128 are run",
                path, p->bits, p->group);
    }
    for (size_t i = 0; i < BL_COUNTOF(fp); i++) {
        if (strcmp(p->mode, fp[i].mode) == 0) {
            if (p->bits != fp[i].bits || p->group != fp[i].group) {
                BL_FAIL(f->err, BL_EFORMAT,
                        WHAT ": '%s' is %s with %u bits and groups of %u, the mode has %u and %u", path,
                        p->mode, p->bits, p->group, fp[i].bits, fp[i].group);
            }
            *ret = fp[i].type;
            return BL_OK;
        }
    }
    BL_FAIL(f->err, BL_ENOTSUP, WHAT ": mode of '%s' is '%s', affine, mxfp4, mxfp8 and nvfp4 are run", path,
            p->mode);
}

/* [want..., last] of one of the three tensors. */
static bl_code check_part(const bl_tensor_finder *f, const bl_tensor_view *t, const uint64_t *want,
                          uint32_t n_want, uint64_t last, const char *why) {
    bool same = t->n_dims == n_want && t->dims[n_want - 1] == last;
    for (uint32_t i = 0; i + 1 < n_want && same; i++) {
        same = t->dims[i] == want[i];
    }
    if (!same) {
        f->m->cfg.draft_foreign = f->draft;
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' ends in %llu, a weight of %llu rows of %llu %s needs %llu",
                t->name, t->n_dims > 0 ? (unsigned long long)t->dims[t->n_dims - 1] : 0ull,
                (unsigned long long)want[n_want - 2], (unsigned long long)want[n_want - 1], why,
                (unsigned long long)last);
    }
    return BL_OK;
}

bool bl_quantized_is(const bl_tensor_finder *f, const char *leaf) {
    return bl_checkpoint_kind_of(f->m->ckpt) == BL_CKPT_HF && bl_tensor_find(f, leaf, ".scales") != NULL;
}

static bl_code fill_scales(const bl_tensor_finder *f, const char *leaf, const uint64_t *want, uint32_t n_want,
                           const quant_params *p, const char *why, bl_mat_desc *d) {
    const bl_tensor_view *s = bl_tensor_find(f, leaf, ".scales"), *b = bl_tensor_find(f, leaf, ".biases");
    bool affine = strcmp(p->mode, "affine") == 0;
    BL_TRY(check_part(f, s, want, n_want, want[n_want - 1] / p->group, why));
    bool is_float = s->dtype == BL_DTYPE_BF16 || s->dtype == BL_DTYPE_F16 || s->dtype == BL_DTYPE_F32;
    if (affine ? !is_float : s->dtype != BL_DTYPE_U8) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has type %s, %s scales are %s", s->name,
                bl_dtype_get(s->dtype)->name, p->mode, affine ? "BF16, F16 or F32" : "U8");
    }
    if (affine != (b != NULL)) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s': biases are %s, which %s weights %s", s->name,
                b ? "there" : "missing", p->mode, affine ? "need" : "do not have");
    }
    if (b) {
        BL_TRY(check_part(f, b, want, n_want, want[n_want - 1] / p->group, why));
        if (b->dtype != s->dtype) {
            BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has type %s, its scales have %s", b->name,
                    bl_dtype_get(b->dtype)->name, bl_dtype_get(s->dtype)->name);
        }
        d->biases = b->data;
    }
    d->scales = s->data;
    d->scale_dtype = s->dtype;
    d->group = p->group;
    return BL_OK;
}

bl_code bl_quantized_desc(const bl_tensor_finder *f, const char *leaf, const uint64_t *want, uint32_t n_want,
                          bl_mat_desc *d) {
    char path[BL_TENSOR_NAME_MAX], why[48];
    quant_params p;
    const bl_tensor_view *t = bl_tensor_find(f, leaf, ".weight");
    uint64_t k = want[n_want - 1];
    bl_tensor_name(f, leaf, "", path);
    if (!t || t->dtype != BL_DTYPE_U32) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s.weight' has scales, but is %s instead of U32", path,
                t ? bl_dtype_get(t->dtype)->name : "missing");
    }
    BL_TRY(params_of(f, path, &p));
    BL_TRY(type_of(f, path, &p, &d->dtype));
    if (k % p.group != 0 || k % 32 != 0) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s' has rows of %llu elements, groups of %u do not fill them",
                t->name, (unsigned long long)k, p.group);
    }
    snprintf(why, sizeof why, "at %u bits in groups of %u", p.bits, p.group);
    BL_TRY(check_part(f, t, want, n_want, k * p.bits / 32, why));
    d->name = t->name;
    d->rows = t->data;
    return fill_scales(f, leaf, want, n_want, &p, why, d);
}

bl_code bl_quantized_blocks(const bl_tensor_finder *f, const char *leaf, const uint64_t want[3],
                            bl_mat_desc *d) {
    const bl_tensor_view *t = bl_tensor_find(f, leaf, "_blocks"), *s = bl_tensor_find(f, leaf, "_scales");
    char path[BL_TENSOR_NAME_MAX];
    bl_tensor_name(f, leaf, "", path);
    if (!t || !s) {
        BL_FAIL(f->err, BL_EFORMAT, "tensor '%s_%s' is missing", path, t ? "scales" : "blocks");
    }
    uint64_t n_blocks = want[2] / 32;
    bool fits = want[2] % 32 == 0 && t->dtype == BL_DTYPE_U8 && s->dtype == BL_DTYPE_U8 && t->n_dims == 4 &&
                s->n_dims == 3 && t->dims[3] == 16;
    for (uint32_t i = 0; i < 3 && fits; i++) {
        uint64_t dim = i < 2 ? want[i] : n_blocks;
        fits = t->dims[i] == dim && s->dims[i] == dim;
    }
    if (!fits) {
        BL_FAIL(
            f->err, BL_EFORMAT,
            "tensors '%s_blocks' and _scales must be U8 of [%llu, %llu, %llu, 16] and the same without 16",
            path, (unsigned long long)want[0], (unsigned long long)want[1], (unsigned long long)n_blocks);
    }
    d->name = t->name;
    d->dtype = BL_DTYPE_MXFP4;
    d->rows = t->data;
    d->scales = s->data;
    d->scale_dtype = BL_DTYPE_U8;
    d->group = 32;
    return BL_OK;
}
