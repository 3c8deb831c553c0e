/* Qwen 3, dense. docs/models/qwen3.md */
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
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .ffn_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    (void)c;
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    BL_TRY(bl_family_hf_refuse_set(o, "use_sliding_window", err));
    cfg->act = BL_GLU_SILU;
    BL_TRY(bl_family_hf_act(o, "hidden_act", &cfg->act, err));
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", "config.json", &cfg->tied, err));
    BL_TRY(bl_json_get_bool(o, "attention_bias", "config.json", &cfg->attn_bias, err));
    double theta = 1e6;
    BL_TRY(bl_json_get_f64(o, "rope_theta", 1.0, 1e12, "config.json", &theta, err));
    const json_t *params = json_object_get(o, "rope_parameters");
    BL_TRY(bl_family_hf_rope(params && !json_is_null(params) ? params : json_object_get(o, "rope_scaling"),
                             theta, cfg->head_dim, &cfg->rope, err));
    cfg->qk_norm = true;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    return BL_OK;
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_dims(c, arch, cfg, err));
    BL_TRY(bl_family_gguf_rope(g, arch, 1e6, &cfg->rope, err));
    cfg->act = BL_GLU_SILU;
    cfg->qk_norm = true;
    cfg->attn_bias = bl_checkpoint_find(c, "blk.0.attn_q.bias") != NULL;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    return BL_OK;
}

const bl_family bl_family_qwen3 = {
    .name = "qwen3",
    .types = {"qwen3"},
    .gguf_archs = {"qwen3"},
    .hf_names = &hf_names,
    .gguf_names = &bl_decoder_gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
};
