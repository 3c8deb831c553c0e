/* Config readers that families share (see family.h). */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/dmath.h"
#include "formats/json.h"

#define WHAT          "config.json"
#define KEY_MAX_BYTES 96u

/* ---- config.json ------------------------------------------------------------------------------------- */

bl_code bl_family_hf_need_u32(const json_t *o, const char *key, uint32_t max, uint32_t *ret, bl_err *err) {
    uint64_t v = 0;
    BL_TRY(bl_json_get_u64(o, key, 1, max, WHAT, &v, err));
    if (v == 0) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": key '%s' is missing", key);
    }
    *ret = (uint32_t)v;
    return BL_OK;
}

bl_code bl_family_check_layers(const char *what, const bl_decoder_config *cfg, bl_err *err) {
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const bl_layer_config *l = &cfg->layer[i];
        if (l->mixer == BL_MIX_DELTA) {
            continue;
        }
        if (l->n_kv_heads == 0 || cfg->n_heads % l->n_kv_heads != 0) {
            BL_FAIL(err, BL_EFORMAT, "%s: %u query heads are no multiple of %u key/value heads", what,
                    cfg->n_heads, l->n_kv_heads);
        }
        if (l->head_dim % 2 != 0 || l->head_dim == 0 || l->head_dim > BL_MODEL_MAX_HEAD_DIM) {
            BL_FAIL(err, BL_EFORMAT, "%s: head dimension %u, an even number up to %u is allowed", what,
                    l->head_dim, BL_MODEL_MAX_HEAD_DIM);
        }
    }
    return BL_OK;
}

static bl_code check_eps(const char *what, double eps, bl_err *err) {
    if (!(eps > 0.0 && eps <= 1.0)) {
        BL_FAIL(err, BL_EFORMAT, "%s: norm epsilon %g, more than 0 and at most 1 is allowed", what, eps);
    }
    return BL_OK;
}

bl_code bl_family_hf_dims(const json_t *config, bl_decoder_config *cfg, bl_err *err) {
    BL_TRY(bl_family_hf_need_u32(config, "hidden_size", BL_MODEL_MAX_HIDDEN, &cfg->hidden, err));
    BL_TRY(bl_family_hf_need_u32(config, "num_hidden_layers", BL_MODEL_MAX_LAYERS, &cfg->n_layers, err));
    BL_TRY(bl_family_hf_need_u32(config, "num_attention_heads", BL_MODEL_MAX_HEADS, &cfg->n_heads, err));
    if (cfg->n_experts == 0 || json_object_get(config, "intermediate_size")) {
        BL_TRY(bl_family_hf_need_u32(config, "intermediate_size", BL_MODEL_MAX_FFN, &cfg->ffn, err));
    }
    BL_TRY(bl_family_hf_need_u32(config, "vocab_size", BL_MODEL_MAX_VOCAB, &cfg->n_vocab, err));
    BL_TRY(bl_family_hf_need_u32(config, "max_position_embeddings", BL_MODEL_MAX_CONTEXT,
                                 &cfg->n_context_trained, err));
    uint64_t kv = cfg->n_heads, dim = cfg->hidden / cfg->n_heads;
    BL_TRY(bl_json_get_u64(config, "num_key_value_heads", 1, cfg->n_heads, WHAT, &kv, err));
    BL_TRY(bl_json_get_u64(config, "head_dim", 2, BL_MODEL_MAX_HEAD_DIM, WHAT, &dim, err));
    cfg->n_kv_heads = (uint32_t)kv;
    cfg->head_dim = (uint32_t)dim;
    double eps = 1e-6;
    BL_TRY(bl_json_get_f64(config, "rms_norm_eps", 0.0, 1.0, WHAT, &eps, err));
    BL_TRY(check_eps(WHAT, eps, err));
    cfg->norm_eps = (float)eps;
    bl_family_uniform_layers(cfg);
    return bl_family_check_layers(WHAT, cfg, err);
}

bl_code bl_family_hf_refuse_set(const json_t *config, const char *key, bl_err *err) {
    const json_t *v = json_object_get(config, key);
    if (v && !json_is_null(v) && !json_is_false(v) && !(json_is_number(v) && json_number_value(v) == 0.0)) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": '%s' is set, which this version does not run", key);
    }
    return BL_OK;
}

void bl_family_uniform_layers(bl_decoder_config *cfg) {
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bl_layer_config *l = &cfg->layer[i];
        l->n_kv_heads = cfg->n_kv_heads;
        l->head_dim = cfg->head_dim;
        l->ffn = cfg->ffn;
        l->kv_from = (int32_t)i;
    }
}

const char *bl_family_strip_root(const char *name) {
    static const char *const roots[] = {"model.language_model.", "language_model.model.", "language_model.",
                                        "model."};
    for (size_t i = 0; i < BL_COUNTOF(roots); i++) {
        size_t n = strlen(roots[i]);
        if (strncmp(name, roots[i], n) == 0) {
            return name + n;
        }
    }
    return name;
}

bl_code bl_family_hf_layer_types(const json_t *o, uint32_t pattern, bool last_full, bl_decoder_config *cfg,
                                 bl_err *err) {
    const json_t *types = json_object_get(o, "layer_types");
    if (!types || json_is_null(types)) {
        for (uint32_t i = 0; i < cfg->n_layers; i++) {
            bool full = i % pattern == pattern - 1 || (last_full && i + 1 == cfg->n_layers);
            cfg->layer[i].sliding = cfg->window > 0 && !full;
        }
        return BL_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != cfg->n_layers) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": layer_types must list %u layers, %zu found", cfg->n_layers,
                json_array_size(types));
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (t && strcmp(t, "sliding_attention") == 0) {
            if (cfg->window == 0) {
                BL_FAIL(err, BL_EFORMAT, WHAT ": layer %u slides, but key 'sliding_window' is missing", i);
            }
            cfg->layer[i].sliding = true;
        } else if (t && strcmp(t, "linear_attention") == 0 && cfg->n_taps > 0) {
            cfg->layer[i].mixer = BL_MIX_DELTA;
        } else if (!t || strcmp(t, "full_attention") != 0) {
            BL_FAIL(err, BL_ENOTSUP, WHAT ": layer_types[%u] is '%s', %s and full_attention are allowed", i,
                    t ? t : "no string", cfg->n_taps > 0 ? "linear_attention" : "sliding_attention");
        }
    }
    return BL_OK;
}

bl_code bl_family_check_experts(const char *what, const bl_decoder_config *cfg, bl_err *err) {
    if (cfg->n_experts == 0) {
        return BL_OK;
    }
    if (cfg->n_used == 0 || cfg->n_used > cfg->n_experts || cfg->n_used > BL_OP_MAX_USED) {
        BL_FAIL(err, BL_EFORMAT, "%s: %u of %u experts per token, 1 to %u are allowed", what, cfg->n_used,
                cfg->n_experts, BL_MIN(cfg->n_experts, (uint32_t)BL_OP_MAX_USED));
    }
    if (cfg->expert_ffn == 0) {
        BL_FAIL(err, BL_EFORMAT, "%s: the width of an expert is missing", what);
    }
    return BL_OK;
}

bl_code bl_family_hf_act(const json_t *config, const char *key, bl_glu_act *ret, bl_err *err) {
    const char *act = NULL;
    BL_TRY(bl_json_get_str(config, key, WHAT, &act, err));
    if (!act) {
        return BL_OK;
    }
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0) {
        *ret = BL_GLU_SILU;
    } else if (strcmp(act, "gelu_pytorch_tanh") == 0) {
        *ret = BL_GLU_GELU_TANH;
    } else {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": %s is '%s', this version runs silu and gelu_pytorch_tanh", key, act);
    }
    return BL_OK;
}

static bl_code check_theta(const char *what, double theta, bl_err *err) {
    if (!(theta >= 1.0 && theta <= 1e12)) {
        BL_FAIL(err, BL_EFORMAT, "%s: rope base %g, 1 to 1e12 is allowed", what, theta);
    }
    return BL_OK;
}

static bl_code hf_rope_llama3(const json_t *p, bl_rope_config *r, bl_err *err) {
    r->kind = BL_ROPE_LLAMA3;
    BL_TRY(bl_json_get_f64(p, "low_freq_factor", 1e-3, 1e6, WHAT, &r->low_freq_factor, err));
    BL_TRY(bl_json_get_f64(p, "high_freq_factor", 1e-3, 1e6, WHAT, &r->high_freq_factor, err));
    BL_TRY(bl_json_get_f64(p, "original_max_position_embeddings", 1, BL_MODEL_MAX_CONTEXT, WHAT,
                           &r->original_context, err));
    if (!(r->low_freq_factor > 0.0) || !(r->high_freq_factor > r->low_freq_factor) ||
        !(r->original_context > 0.0)) {
        BL_FAIL(err, BL_EFORMAT,
                WHAT ": rope type llama3 needs 0 < low_freq_factor < high_freq_factor and "
                     "original_max_position_embeddings, "
                     "found %g, %g and %g",
                r->low_freq_factor, r->high_freq_factor, r->original_context);
    }
    return BL_OK;
}

static bl_code hf_rope_yarn(const json_t *p, bl_rope_config *r, bl_err *err) {
    double mscale = 0.0, mscale_all = 0.0, scale = 0.1 * bl_dmath_log(r->factor) + 1.0;
    r->kind = BL_ROPE_YARN;
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    r->truncate = true;
    BL_TRY(bl_json_get_f64(p, "beta_fast", 1e-3, 1e6, WHAT, &r->beta_fast, err));
    BL_TRY(bl_json_get_f64(p, "beta_slow", 1e-3, 1e6, WHAT, &r->beta_slow, err));
    BL_TRY(bl_json_get_bool(p, "truncate", WHAT, &r->truncate, err));
    BL_TRY(bl_json_get_f64(p, "original_max_position_embeddings", 1, BL_MODEL_MAX_CONTEXT, WHAT,
                           &r->original_context, err));
    BL_TRY(bl_json_get_f64(p, "mscale", 0.0, 100.0, WHAT, &mscale, err));
    BL_TRY(bl_json_get_f64(p, "mscale_all_dim", 0.0, 100.0, WHAT, &mscale_all, err));
    BL_TRY(bl_json_get_f64(p, "attention_factor", 1e-3, 100.0, WHAT, &scale, err));
    if (mscale > 0.0 || mscale_all > 0.0) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": rope type yarn with mscale %g and mscale_all_dim %g is not run",
                mscale, mscale_all);
    }
    if (!(r->factor >= 1.0) || !(r->original_context > 0.0) || !(r->beta_fast > r->beta_slow)) {
        BL_FAIL(err, BL_EFORMAT,
                WHAT ": rope type yarn needs a factor of at least 1, beta_fast > beta_slow and "
                     "original_max_position_embeddings, found %g, %g, %g and %g",
                r->factor, r->beta_fast, r->beta_slow, r->original_context);
    }
    r->table_scale = scale;
    return BL_OK;
}

/* Gemma 4: the whole head is paired, but only the first `partial` of its frequencies turn. */
static bl_code hf_rope_kind(const json_t *p, const char *type, double partial, uint32_t head_dim,
                            bl_rope_config *r, bl_err *err) {
    uint32_t n_rot = (uint32_t)(partial * (double)head_dim) & ~1u;
    if (strcmp(type, "proportional") == 0) {
        r->kind = BL_ROPE_PARTIAL;
        r->turning = n_rot / 2;
        BL_TRY(bl_json_get_f64(p, "factor", 1e-3, 1e6, WHAT, &r->factor, err));
    } else if (partial != 1.0) {
        r->n_rot = n_rot;
    }
    if (n_rot == 0) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": partial_rotary_factor is %g, nothing of a head of %u turns", partial,
                head_dim);
    }
    if (strcmp(type, "default") == 0 || strcmp(type, "proportional") == 0) {
        return BL_OK;
    }
    static const char *const types[] = {"linear", "llama3", "yarn"};
    bool known = false;
    for (size_t i = 0; i < BL_COUNTOF(types); i++) {
        known = known || strcmp(type, types[i]) == 0;
    }
    if (!known) {
        BL_FAIL(err, BL_ENOTSUP,
                WHAT ": rope type is '%s', this version runs default, linear, llama3, yarn and proportional",
                type);
    }
    r->factor = 0.0;
    BL_TRY(bl_json_get_f64(p, "factor", 1e-3, 1e6, WHAT, &r->factor, err));
    if (!(r->factor > 0.0)) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": rope type '%s' needs a factor", type);
    }
    r->kind = BL_ROPE_LINEAR;
    if (strcmp(type, "llama3") == 0) {
        return hf_rope_llama3(p, r, err);
    }
    return strcmp(type, "yarn") == 0 ? hf_rope_yarn(p, r, err) : BL_OK;
}

bl_code bl_family_hf_rope(const json_t *params, double theta, uint32_t head_dim, bl_rope_config *ret,
                          bl_err *err) {
    bl_rope_config r = {.kind = BL_ROPE_PLAIN, .theta = theta, .factor = 1.0};
    if (params && !json_is_null(params)) {
        if (!json_is_object(params)) {
            BL_FAIL(err, BL_EFORMAT, WHAT ": the rope parameters must be an object");
        }
        const char *type = NULL;
        double partial = 1.0;
        BL_TRY(bl_json_get_str(params, "type", WHAT, &type, err)); /* the older name of rope_type */
        BL_TRY(bl_json_get_str(params, "rope_type", WHAT, &type, err));
        BL_TRY(bl_json_get_f64(params, "rope_theta", 1.0, 1e12, WHAT, &r.theta, err));
        BL_TRY(bl_json_get_f64(params, "partial_rotary_factor", 0.0, 1.0, WHAT, &partial, err));
        BL_TRY(hf_rope_kind(params, type ? type : "default", partial, head_dim, &r, err));
    }
    BL_TRY(check_theta(WHAT, r.theta, err));
    *ret = r;
    return BL_OK;
}

/* ---- GGUF metadata ----------------------------------------------------------------------------------- */

static void gguf_key(const char *arch, const char *key, char out[KEY_MAX_BYTES]) {
    snprintf(out, KEY_MAX_BYTES, "%s.%s", arch, key);
}

bool bl_family_gguf_has(const bl_gguf *g, const char *arch, const char *key) {
    char name[KEY_MAX_BYTES];
    gguf_key(arch, key, name);
    size_t n_name = strlen(name);
    for (size_t i = 0; i < bl_gguf_key_count(g); i++) {
        const char *at;
        size_t n;
        bl_gguf_key_at(g, i, &at, &n);
        if (n == n_name && memcmp(at, name, n) == 0) {
            return true;
        }
    }
    return false;
}

bl_code bl_family_gguf_u32(const bl_gguf *g, const char *arch, const char *key, uint32_t min, uint32_t max,
                           bool required, uint32_t *ret, bl_err *err) {
    char name[KEY_MAX_BYTES];
    uint64_t v = 0;
    bool found = false;
    gguf_key(arch, key, name);
    BL_TRY(bl_gguf_get_u64(g, name, min, max, &v, &found, err));
    if (found) {
        *ret = (uint32_t)v;
    } else if (required) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s' is missing", name);
    }
    return BL_OK;
}

bl_code bl_family_gguf_f64(const bl_gguf *g, const char *arch, const char *key, bool required, double *ret,
                           bl_err *err) {
    char name[KEY_MAX_BYTES];
    bool found = false;
    double v = 0.0;
    gguf_key(arch, key, name);
    BL_TRY(bl_gguf_get_f64(g, name, &v, &found, err));
    if (found && !isfinite(v)) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s' is not a finite number", name);
    }
    if (found) {
        *ret = v;
    } else if (required) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s' is missing", name);
    }
    return BL_OK;
}

bl_code bl_family_gguf_per_layer(const bl_gguf *g, const char *arch, const char *key, uint32_t max,
                                 uint32_t n_layers, uint32_t *ret, bl_err *err) {
    char name[KEY_MAX_BYTES];
    int32_t values[BL_MODEL_MAX_LAYERS];
    size_t n = 0;
    gguf_key(arch, key, name);
    if (bl_gguf_array_len(g, name, &n, NULL) != BL_OK || n == 0) {
        BL_TRY(bl_family_gguf_u32(g, arch, key, 1, max, true, &ret[0], err));
        for (uint32_t i = 1; i < n_layers; i++) {
            ret[i] = ret[0];
        }
        return BL_OK;
    }
    if (n != n_layers) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s' has %zu elements, the model has %u layers", name, n,
                n_layers);
    }
    BL_TRY(bl_gguf_array_i32(g, name, values, n, err));
    for (uint32_t i = 0; i < n_layers; i++) {
        if (values[i] < 0 || (uint32_t)values[i] > max) {
            BL_FAIL(err, BL_EFORMAT, "metadata key '%s': element %u is %d, 0 to %u is allowed", name, i,
                    values[i], max);
        }
        ret[i] = (uint32_t)values[i];
    }
    return BL_OK;
}

/* Key and value heads and MLP widths, which some files give for each layer. */
static bl_code gguf_layers(const bl_gguf *g, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    uint32_t kv[BL_MODEL_MAX_LAYERS], ffn[BL_MODEL_MAX_LAYERS] = {0};
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        kv[i] = cfg->n_heads;
    }
    if (bl_family_gguf_has(g, arch, "attention.head_count_kv")) {
        BL_TRY(bl_family_gguf_per_layer(g, arch, "attention.head_count_kv", cfg->n_heads, cfg->n_layers, kv,
                                        err));
    }
    if (cfg->n_experts == 0 || bl_family_gguf_has(g, arch, "feed_forward_length")) {
        BL_TRY(bl_family_gguf_per_layer(g, arch, "feed_forward_length", BL_MODEL_MAX_FFN, cfg->n_layers, ffn,
                                        err));
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        cfg->layer[i].n_kv_heads = kv[i];
        cfg->layer[i].ffn = ffn[i];
        cfg->layer[i].head_dim = cfg->head_dim;
        cfg->layer[i].kv_from = (int32_t)i;
    }
    cfg->n_kv_heads = kv[0];
    cfg->ffn = ffn[0];
    return BL_OK;
}

bl_code bl_family_gguf_dims(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_u32(g, arch, "embedding_length", 1, BL_MODEL_MAX_HIDDEN, true, &cfg->hidden, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "block_count", 1, BL_MODEL_MAX_LAYERS, true, &cfg->n_layers, err));
    BL_TRY(
        bl_family_gguf_u32(g, arch, "attention.head_count", 1, BL_MODEL_MAX_HEADS, true, &cfg->n_heads, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "context_length", 1, BL_MODEL_MAX_CONTEXT, true,
                              &cfg->n_context_trained, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "expert_count", 0, BL_MODEL_MAX_EXPERTS, false, &cfg->n_experts, err));
    cfg->head_dim = cfg->hidden / cfg->n_heads;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.key_length", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &cfg->head_dim, err));
    uint32_t value_length = cfg->head_dim, n_rot = cfg->head_dim;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.value_length", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &value_length, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "rope.dimension_count", 2, BL_MODEL_MAX_HEAD_DIM, false, &n_rot, err));
    if (value_length != cfg->head_dim || n_rot > cfg->head_dim || n_rot % 2 != 0) {
        BL_FAIL(
            err, BL_ENOTSUP,
            "%s: key length %u, value length %u, rotated %u: this version needs the first two equal and an "
            "even part of them rotated",
            arch, cfg->head_dim, value_length, n_rot);
    }
    BL_TRY(gguf_layers(g, arch, cfg, err));
    double eps = 0.0;
    BL_TRY(bl_family_gguf_f64(g, arch, "attention.layer_norm_rms_epsilon", true, &eps, err));
    BL_TRY(check_eps(arch, eps, err));
    cfg->norm_eps = (float)eps;
    /* The vocabulary is as large as the embedding says: arch.vocab_size and the token list are optional. */
    const bl_tensor_view *embed = bl_checkpoint_find(c, "token_embd.weight");
    if (!embed || embed->n_dims != 2 || embed->dims[0] == 0 || embed->dims[0] > BL_MODEL_MAX_VOCAB) {
        BL_FAIL(err, BL_EFORMAT, "tensor 'token_embd.weight' must be there with 1 to %u rows",
                BL_MODEL_MAX_VOCAB);
    }
    cfg->n_vocab = (uint32_t)embed->dims[0];
    cfg->tied = bl_checkpoint_find(c, "output.weight") == NULL;
    return bl_family_check_layers(arch, cfg, err);
}

/* The container has no key for rounding the ramp's ends: gpt-oss, the one family that comes so, does not. */
static bl_code gguf_rope_yarn(const bl_gguf *g, const char *arch, bl_rope_config *r, bl_err *err) {
    r->kind = BL_ROPE_YARN;
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    BL_TRY(bl_family_gguf_f64(g, arch, "rope.scaling.factor", true, &r->factor, err));
    BL_TRY(bl_family_gguf_f64(g, arch, "rope.scaling.yarn_beta_fast", false, &r->beta_fast, err));
    BL_TRY(bl_family_gguf_f64(g, arch, "rope.scaling.yarn_beta_slow", false, &r->beta_slow, err));
    BL_TRY(
        bl_family_gguf_f64(g, arch, "rope.scaling.original_context_length", true, &r->original_context, err));
    if (!(r->factor >= 1.0 && r->factor <= 1e6) || !(r->original_context >= 1.0) ||
        !(r->beta_slow > 0.0 && r->beta_fast > r->beta_slow)) {
        BL_FAIL(
            err, BL_EFORMAT,
            "metadata keys '%s.rope.scaling.*': factor %g, original context %g, betas %g and %g make no yarn",
            arch, r->factor, r->original_context, r->beta_fast, r->beta_slow);
    }
    r->table_scale = 0.1 * bl_dmath_log(r->factor) + 1.0;
    return BL_OK;
}

bl_code bl_family_gguf_rope(const bl_gguf *g, const char *arch, double default_theta, bl_rope_config *ret,
                            bl_err *err) {
    bl_rope_config r = {.kind = BL_ROPE_PLAIN, .theta = default_theta, .factor = 1.0};
    BL_TRY(
        bl_family_gguf_u32(g, arch, "rope.dimension_count", 2, BL_MODEL_MAX_HEAD_DIM, false, &r.n_rot, err));
    char name[KEY_MAX_BYTES];
    const char *type = NULL;
    size_t n = 0;
    bool found = false;
    BL_TRY(bl_family_gguf_f64(g, arch, "rope.freq_base", false, &r.theta, err));
    BL_TRY(check_theta(arch, r.theta, err));
    gguf_key(arch, "rope.scaling.type", name);
    BL_TRY(bl_gguf_get_str(g, name, &type, &n, &found, err));
    if (found && n == 6 && memcmp(type, "linear", 6) == 0) {
        r.kind = BL_ROPE_LINEAR;
        BL_TRY(bl_family_gguf_f64(g, arch, "rope.scaling.factor", true, &r.factor, err));
        if (!(r.factor >= 1e-3 && r.factor <= 1e6)) {
            BL_FAIL(err, BL_EFORMAT, "metadata key '%s.rope.scaling.factor' is %g, 0.001 to 1e6 is allowed",
                    arch, r.factor);
        }
    } else if (found && n == 4 && memcmp(type, "yarn", 4) == 0) {
        BL_TRY(gguf_rope_yarn(g, arch, &r, err));
    } else if (found && !(n == 4 && memcmp(type, "none", 4) == 0)) {
        BL_FAIL(err, BL_ENOTSUP, "metadata key '%s' is '%.*s', this version runs none, linear and yarn", name,
                (int)BL_MIN(n, 32u), type);
    }
    *ret = r;
    return BL_OK;
}
