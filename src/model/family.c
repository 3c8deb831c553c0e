/* Config readers that families share (see family.h). */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"

#define WHAT          "config.json"
#define KEY_MAX_BYTES 96u

/* ---- config.json ------------------------------------------------------------------------------------- */

static bl_code need_u32(const json_t *o, const char *key, uint32_t max, uint32_t *ret, bl_err *err) {
    uint64_t v = 0;
    BL_TRY(bl_json_get_u64(o, key, 1, max, WHAT, &v, err));
    if (v == 0) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": key '%s' is missing", key);
    }
    *ret = (uint32_t)v;
    return BL_OK;
}

/* Heads and dimensions are consistent: what every block below relies on. */
static bl_code check_heads(const char *what, const bl_decoder_config *cfg, bl_err *err) {
    if (cfg->n_heads % cfg->n_kv_heads != 0) {
        BL_FAIL(err, BL_EFORMAT, "%s: %u query heads are no multiple of %u key/value heads", what,
                cfg->n_heads, cfg->n_kv_heads);
    }
    if (cfg->head_dim % 2 != 0 || cfg->head_dim == 0 || cfg->head_dim > BL_MODEL_MAX_HEAD_DIM) {
        BL_FAIL(err, BL_EFORMAT, "%s: head dimension %u, an even number up to %u is allowed", what,
                cfg->head_dim, BL_MODEL_MAX_HEAD_DIM);
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
    BL_TRY(need_u32(config, "hidden_size", BL_MODEL_MAX_HIDDEN, &cfg->hidden, err));
    BL_TRY(need_u32(config, "num_hidden_layers", BL_MODEL_MAX_LAYERS, &cfg->n_layers, err));
    BL_TRY(need_u32(config, "num_attention_heads", BL_MODEL_MAX_HEADS, &cfg->n_heads, err));
    BL_TRY(need_u32(config, "intermediate_size", BL_MODEL_MAX_FFN, &cfg->ffn, err));
    BL_TRY(need_u32(config, "vocab_size", BL_MODEL_MAX_VOCAB, &cfg->n_vocab, err));
    BL_TRY(need_u32(config, "max_position_embeddings", BL_MODEL_MAX_CONTEXT, &cfg->n_context_trained, err));
    uint64_t kv = cfg->n_heads, dim = cfg->hidden / cfg->n_heads;
    BL_TRY(bl_json_get_u64(config, "num_key_value_heads", 1, cfg->n_heads, WHAT, &kv, err));
    BL_TRY(bl_json_get_u64(config, "head_dim", 2, BL_MODEL_MAX_HEAD_DIM, WHAT, &dim, err));
    cfg->n_kv_heads = (uint32_t)kv;
    cfg->head_dim = (uint32_t)dim;
    double eps = 1e-6;
    BL_TRY(bl_json_get_f64(config, "rms_norm_eps", 0.0, 1.0, WHAT, &eps, err));
    BL_TRY(check_eps(WHAT, eps, err));
    cfg->norm_eps = (float)eps;
    return check_heads(WHAT, cfg, err);
}

bl_code bl_family_hf_refuse_set(const json_t *config, const char *key, bl_err *err) {
    const json_t *v = json_object_get(config, key);
    if (v && !json_is_null(v) && !json_is_false(v) && !(json_is_number(v) && json_number_value(v) == 0.0)) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": '%s' is set, which this version does not run", key);
    }
    return BL_OK;
}

bl_code bl_family_hf_refuse_quantised(const json_t *config, bl_err *err) {
    BL_TRY(bl_family_hf_refuse_set(config, "quantization_config", err));
    return bl_family_hf_refuse_set(config, "quantization", err);
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

bl_code bl_family_hf_rope(const json_t *params, double theta, bl_rope_config *ret, bl_err *err) {
    bl_rope_config r = {.kind = BL_ROPE_PLAIN, .theta = theta, .factor = 1.0};
    if (params && !json_is_null(params)) {
        if (!json_is_object(params)) {
            BL_FAIL(err, BL_EFORMAT, WHAT ": the rope parameters must be an object");
        }
        const char *type = NULL;
        BL_TRY(bl_json_get_str(params, "type", WHAT, &type, err)); /* the older name of rope_type */
        BL_TRY(bl_json_get_str(params, "rope_type", WHAT, &type, err));
        BL_TRY(bl_json_get_f64(params, "rope_theta", 1.0, 1e12, WHAT, &r.theta, err));
        double partial = 1.0;
        BL_TRY(bl_json_get_f64(params, "partial_rotary_factor", 0.0, 1.0, WHAT, &partial, err));
        if (partial != 1.0) {
            BL_FAIL(err, BL_ENOTSUP, WHAT ": partial_rotary_factor is %g, this version runs 1 only", partial);
        }
        if (type && strcmp(type, "default") != 0) {
            bool linear = strcmp(type, "linear") == 0;
            if (!linear && strcmp(type, "llama3") != 0) {
                BL_FAIL(err, BL_ENOTSUP,
                        WHAT ": rope type is '%s', this version runs default, linear and llama3", type);
            }
            r.factor = 0.0;
            BL_TRY(bl_json_get_f64(params, "factor", 1e-3, 1e6, WHAT, &r.factor, err));
            if (!(r.factor > 0.0)) {
                BL_FAIL(err, BL_EFORMAT, WHAT ": rope type '%s' needs a factor", type);
            }
            r.kind = BL_ROPE_LINEAR;
            if (!linear) {
                BL_TRY(hf_rope_llama3(params, &r, err));
            }
        }
    }
    BL_TRY(check_theta(WHAT, r.theta, err));
    *ret = r;
    return BL_OK;
}

/* ---- GGUF metadata ----------------------------------------------------------------------------------- */

static void gguf_key(const char *arch, const char *key, char out[KEY_MAX_BYTES]) {
    snprintf(out, KEY_MAX_BYTES, "%s.%s", arch, key);
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

bl_code bl_family_gguf_dims(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_u32(g, arch, "embedding_length", 1, BL_MODEL_MAX_HIDDEN, true, &cfg->hidden, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "block_count", 1, BL_MODEL_MAX_LAYERS, true, &cfg->n_layers, err));
    BL_TRY(
        bl_family_gguf_u32(g, arch, "attention.head_count", 1, BL_MODEL_MAX_HEADS, true, &cfg->n_heads, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "feed_forward_length", 1, BL_MODEL_MAX_FFN, true, &cfg->ffn, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "context_length", 1, BL_MODEL_MAX_CONTEXT, true,
                              &cfg->n_context_trained, err));
    cfg->n_kv_heads = cfg->n_heads;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.head_count_kv", 1, cfg->n_heads, false, &cfg->n_kv_heads,
                              err));
    cfg->head_dim = cfg->hidden / cfg->n_heads;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.key_length", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &cfg->head_dim, err));
    uint32_t value_length = cfg->head_dim, n_rot = cfg->head_dim;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.value_length", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &value_length, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "rope.dimension_count", 2, BL_MODEL_MAX_HEAD_DIM, false, &n_rot, err));
    if (value_length != cfg->head_dim || n_rot != cfg->head_dim) {
        BL_FAIL(err, BL_ENOTSUP,
                "%s: key length %u, value length %u, rotated %u: this version needs the three equal", arch,
                cfg->head_dim, value_length, n_rot);
    }
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
    return check_heads(arch, cfg, err);
}

bl_code bl_family_gguf_rope(const bl_gguf *g, const char *arch, double default_theta, bl_rope_config *ret,
                            bl_err *err) {
    bl_rope_config r = {.kind = BL_ROPE_PLAIN, .theta = default_theta, .factor = 1.0};
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
    } else if (found && !(n == 4 && memcmp(type, "none", 4) == 0)) {
        BL_FAIL(err, BL_ENOTSUP, "metadata key '%s' is '%.*s', this version runs none and linear", name,
                (int)BL_MIN(n, 32u), type);
    }
    *ret = r;
    return BL_OK;
}
