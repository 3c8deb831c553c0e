/* Llama 2 and 3, SmolLM and other models of the plain decoder shape. docs/models/llama.md */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "model/family.h"

static const bl_decoder_names hf_names = {
    .embed = "embed_tokens",
    .head = "lm_head",
    .final_norm = "norm",
    .layer = "layers.",
    .attn_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .ffn_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    (void)c;
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    cfg->act = BL_GLU_SILU;
    BL_TRY(bl_family_hf_act(o, "hidden_act", &cfg->act, err));
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", "config.json", &cfg->tied, err));
    BL_TRY(bl_json_get_bool(o, "attention_bias", "config.json", &cfg->attn_bias, err));
    BL_TRY(bl_json_get_bool(o, "mlp_bias", "config.json", &cfg->mlp_bias, err));
    double theta = 10000.0;
    BL_TRY(bl_json_get_f64(o, "rope_theta", 1.0, 1e12, "config.json", &theta, err));
    const json_t *params = json_object_get(o, "rope_parameters");
    BL_TRY(bl_family_hf_rope(params && !json_is_null(params) ? params : json_object_get(o, "rope_scaling"),
                             theta, cfg->head_dim, &cfg->rope, err));
    cfg->rope_local = cfg->rope;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    return BL_OK;
}

/* Llama 3's ramp comes as a tensor of factors, one per frequency. */
static bl_code read_rope_factors(const bl_checkpoint *c, bl_decoder_config *cfg, bl_err *err) {
    const bl_tensor_view *t = bl_checkpoint_find(c, "rope_freqs.weight");
    if (!t) {
        return BL_OK;
    }
    if (t->dtype != BL_DTYPE_F32 || t->n_dims != 1 || t->dims[0] != cfg->head_dim / 2) {
        BL_FAIL(err, BL_EFORMAT, "tensor 'rope_freqs.weight' must hold %u F32 values", cfg->head_dim / 2);
    }
    for (uint32_t i = 0; i < cfg->head_dim / 2; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * sizeof f, sizeof f);
        if (!(f >= 1e-3f && f <= 1e6f)) {
            BL_FAIL(err, BL_EFORMAT, "tensor 'rope_freqs.weight': element %u is %g, 0.001 to 1e6 is allowed",
                    i, (double)f);
        }
    }
    if (cfg->rope.kind != BL_ROPE_PLAIN) {
        BL_FAIL(err, BL_ENOTSUP, "tensor 'rope_freqs.weight' beside a rope.scaling.type is not supported");
    }
    cfg->rope.kind = BL_ROPE_FACTORS;
    cfg->rope.factors = t->data;
    return BL_OK;
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_dims(c, arch, cfg, err));
    if (cfg->n_experts > 0) {
        BL_FAIL(err, BL_ENOTSUP,
                "metadata key 'llama.expert_count' is %u, this version runs dense llama models only",
                cfg->n_experts);
    }
    BL_TRY(bl_family_gguf_rope(g, arch, 10000.0, &cfg->rope, err));
    if (cfg->rope.n_rot != 0 && cfg->rope.n_rot != cfg->head_dim) {
        BL_FAIL(err, BL_ENOTSUP, "metadata key '%s.rope.dimension_count' is %u, heads of %u must turn whole",
                arch, cfg->rope.n_rot, cfg->head_dim);
    }
    BL_TRY(read_rope_factors(c, cfg, err));
    cfg->rope_local = cfg->rope;
    cfg->act = BL_GLU_SILU;
    cfg->paired_rows = true;
    cfg->attn_bias = bl_checkpoint_find(c, "blk.0.attn_q.bias") != NULL;
    cfg->mlp_bias = bl_checkpoint_find(c, "blk.0.ffn_gate.bias") != NULL;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    return BL_OK;
}

/* rope_freqs.weight is read above. */
static bool ignorable(const bl_model *m, const char *name) {
    (void)m;
    return strcmp(name, "rope_freqs.weight") == 0;
}

const bl_family bl_family_llama = {
    .name = "llama",
    .types = {"llama"},
    .gguf_archs = {"llama"},
    .hf_names = &hf_names,
    .gguf_names = &bl_decoder_gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
    .ignorable = ignorable,
};
