/* gpt-oss: experts everywhere, attention sinks, biases, YaRN. docs/models/gpt_oss.md */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "model/family.h"

#define WHAT          "config.json"
#define DEFAULT_LIMIT 7.0

static const char *const expert_bases[] = {"mlp.experts", NULL};

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
    .sinks = "self_attn.sinks",
    .ffn_norm = "post_attention_layernorm",
    .experts = expert_bases,
    .router = "mlp.router",
};

static const bl_decoder_names gguf_names = {
    .embed = "token_embd",
    .head = "output",
    .final_norm = "output_norm",
    .layer = "blk.",
    .attn_norm = "attn_norm",
    .q = "attn_q",
    .k = "attn_k",
    .v = "attn_v",
    .o = "attn_output",
    .sinks = "attn_sinks.weight",
    .ffn_norm = "post_attention_norm",
    .experts = expert_bases,
    .router = "ffn_gate_inp",
};

static bl_code finish(const char *what, bl_decoder_config *cfg, bl_err *err) {
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        cfg->layer[i].ffn = 0;
    }
    cfg->act = BL_GLU_CLAMPED;
    cfg->attn_bias = true;
    cfg->mlp_bias = true;
    cfg->router_bias = true;
    cfg->sinks = true;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    cfg->rope_local = cfg->rope;
    return bl_family_check_experts(what, cfg, err);
}

static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    (void)c;
    double limit = DEFAULT_LIMIT, theta = 150000.0;
    uint64_t window = 0;
    BL_TRY(bl_family_hf_need_u32(o, "num_local_experts", BL_MODEL_MAX_EXPERTS, &cfg->n_experts, err));
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    /* older exports of the key go by experts_per_token */
    const char *used =
        json_object_get(o, "num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
    BL_TRY(bl_family_hf_need_u32(o, used, BL_MODEL_MAX_EXPERTS, &cfg->n_used, err));
    BL_TRY(bl_family_hf_need_u32(o, "intermediate_size", BL_MODEL_MAX_FFN, &cfg->expert_ffn, err));
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", WHAT, &cfg->tied, err));
    BL_TRY(bl_json_get_u64(o, "sliding_window", 1, BL_MODEL_MAX_CONTEXT, WHAT, &window, err));
    cfg->window = (uint32_t)window;
    BL_TRY(bl_family_hf_layer_types(o, 2, false, cfg, err));
    BL_TRY(bl_json_get_f64(o, "swiglu_limit", 1e-3, 1e6, WHAT, &limit, err));
    cfg->glu_limit = (float)limit;
    BL_TRY(bl_json_get_f64(o, "rope_theta", 1.0, 1e12, WHAT, &theta, err));
    const json_t *params = json_object_get(o, "rope_parameters");
    BL_TRY(bl_family_hf_rope(params && !json_is_null(params) ? params : json_object_get(o, "rope_scaling"),
                             theta, cfg->head_dim, &cfg->rope, err));
    return finish(WHAT, cfg, err);
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_dims(c, arch, cfg, err));
    if (cfg->n_experts == 0) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s.expert_count' is missing", arch);
    }
    BL_TRY(
        bl_family_gguf_u32(g, arch, "expert_used_count", 1, BL_MODEL_MAX_EXPERTS, true, &cfg->n_used, err));
    cfg->expert_ffn = cfg->ffn;
    BL_TRY(bl_family_gguf_u32(g, arch, "expert_feed_forward_length", 1, BL_MODEL_MAX_FFN, false,
                              &cfg->expert_ffn, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.sliding_window", 1, BL_MODEL_MAX_CONTEXT, true,
                              &cfg->window, err));
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        cfg->layer[i].sliding = i % 2 == 0;
    }
    BL_TRY(bl_family_gguf_rope(g, arch, 150000.0, &cfg->rope, err));
    cfg->glu_limit = (float)DEFAULT_LIMIT;
    return finish(arch, cfg, err);
}

const bl_family bl_family_gpt_oss = {
    .name = "gpt_oss",
    .types = {"gpt_oss"},
    .gguf_archs = {"gpt-oss"},
    .hf_names = &hf_names,
    .gguf_names = &gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
};
