/* Gemma 3, text towers (270M, 1B). docs/models/gemma3_text.md */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "model/family.h"

#define WHAT            "config.json"
#define DEFAULT_PATTERN 6u
#define LOCAL_THETA     10000.0

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
    .post_attn_norm = "post_attention_layernorm",
    .ffn_norm = "pre_feedforward_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .post_ffn_norm = "post_feedforward_layernorm",
};

static bl_code hf_ropes(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    double theta = 1e6, local = LOCAL_THETA;
    BL_TRY(bl_json_get_f64(o, "rope_theta", 1.0, 1e12, WHAT, &theta, err));
    BL_TRY(bl_json_get_f64(o, "rope_local_base_freq", 1.0, 1e12, WHAT, &local, err));
    const json_t *full_params = json_object_get(o, "rope_scaling"), *local_params = NULL;
    const json_t *nested = json_object_get(o, "rope_parameters");
    if (nested && json_object_get(nested, "full_attention")) {
        full_params = json_object_get(nested, "full_attention");
        local_params = json_object_get(nested, "sliding_attention");
    } else if (nested && !json_is_null(nested)) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": rope_parameters must hold full_attention and sliding_attention");
    }
    BL_TRY(bl_family_hf_rope(full_params, theta, cfg->head_dim, &cfg->rope, err));
    return bl_family_hf_rope(local_params, local, cfg->head_dim, &cfg->rope_local, err);
}

/* MLX stores the norms as Hugging Face does: 1 is added for both. */
static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    (void)c;
    BL_TRY(bl_family_hf_refuse_set(o, "attn_logit_softcapping", err));
    BL_TRY(bl_family_hf_refuse_set(o, "use_bidirectional_attention", err));
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    cfg->act = BL_GLU_GELU_TANH;
    BL_TRY(bl_family_hf_act(o, "hidden_act", &cfg->act, err)); /* some exports carry the older key too */
    BL_TRY(bl_family_hf_act(o, "hidden_activation", &cfg->act, err));
    cfg->tied = true;
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", WHAT, &cfg->tied, err));
    BL_TRY(bl_json_get_bool(o, "attention_bias", WHAT, &cfg->attn_bias, err));
    double softcap = 0.0, scalar = 256.0;
    BL_TRY(bl_json_get_f64(o, "final_logit_softcapping", 0.0, 1e6, WHAT, &softcap, err));
    BL_TRY(bl_json_get_f64(o, "query_pre_attn_scalar", 1e-3, 1e6, WHAT, &scalar, err));
    cfg->final_softcap = (float)softcap;
    cfg->attn_scale = (float)(1.0 / sqrt(scalar));
    uint64_t window = 0;
    BL_TRY(bl_json_get_u64(o, "sliding_window", 1, BL_MODEL_MAX_CONTEXT, WHAT, &window, err));
    cfg->window = (uint32_t)window;
    uint64_t pattern = DEFAULT_PATTERN;
    BL_TRY(bl_json_get_u64(o, "_sliding_window_pattern", 1, BL_MODEL_MAX_LAYERS, WHAT, &pattern, err));
    BL_TRY(bl_json_get_u64(o, "sliding_window_pattern", 1, BL_MODEL_MAX_LAYERS, WHAT, &pattern, err));
    BL_TRY(bl_family_hf_layer_types(o, (uint32_t)pattern, false, cfg, err));
    BL_TRY(hf_ropes(o, cfg, err));
    cfg->qk_norm = true;
    cfg->post_norms = true;
    cfg->norm_plus_one = true;
    cfg->embed_scale = (float)sqrt((double)cfg->hidden);
    return BL_OK;
}

static bl_code gguf_layers(const bl_gguf *g, bl_decoder_config *cfg, bl_err *err) {
    static const char key[] = "attention.sliding_window_pattern";
    BL_TRY(bl_family_gguf_u32(g, "gemma3", "attention.sliding_window", 0, BL_MODEL_MAX_CONTEXT, false,
                              &cfg->window, err));
    uint32_t pattern = DEFAULT_PATTERN, flags[BL_MODEL_MAX_LAYERS];
    bool each = bl_gguf_is_array(g, "gemma3.attention.sliding_window_pattern"); /* one flag per layer */
    if (each) {
        BL_TRY(bl_family_gguf_per_layer(g, "gemma3", key, UINT32_MAX, cfg->n_layers, flags, err));
    } else {
        BL_TRY(bl_family_gguf_u32(g, "gemma3", key, 1, BL_MODEL_MAX_LAYERS, false, &pattern, err));
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bool slides = each ? flags[i] != 0 : i % pattern < pattern - 1;
        cfg->layer[i].sliding = cfg->window > 0 && slides;
    }
    return BL_OK;
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    (void)arch;
    const bl_gguf *g = bl_checkpoint_gguf(c);
    BL_TRY(bl_family_gguf_dims(c, "gemma3", cfg, err));
    BL_TRY(gguf_layers(g, cfg, err));
    BL_TRY(bl_family_gguf_rope(g, "gemma3", 1e6, &cfg->rope, err));
    cfg->rope_local = (bl_rope_config){.kind = BL_ROPE_PLAIN, .theta = LOCAL_THETA, .factor = 1.0};
    BL_TRY(bl_family_gguf_f64(g, "gemma3", "rope.freq_base_swa", false, &cfg->rope_local.theta, err));
    if (!(cfg->rope_local.theta >= 1.0 && cfg->rope_local.theta <= 1e12)) {
        BL_FAIL(err, BL_EFORMAT, "metadata key 'gemma3.rope.freq_base_swa' is %g, 1 to 1e12 is allowed",
                cfg->rope_local.theta);
    }
    double softcap = 0.0;
    BL_TRY(bl_family_gguf_f64(g, "gemma3", "final_logit_softcapping", false, &softcap, err));
    if (!(softcap >= 0.0 && softcap <= 1e6)) {
        BL_FAIL(err, BL_EFORMAT, "metadata key 'gemma3.final_logit_softcapping' is %g, 0 to 1e6 is allowed",
                softcap);
    }
    cfg->final_softcap = (float)softcap;
    cfg->act = BL_GLU_GELU_TANH;
    cfg->qk_norm = true;
    cfg->post_norms = true;
    cfg->embed_scale = (float)sqrt((double)cfg->hidden);
    /* The 27B alone scales by hidden / heads; it is recognised by its depth, as the file has no key for it.
     */
    double scalar = cfg->n_layers == 62 ? (double)cfg->hidden / cfg->n_heads : (double)cfg->head_dim;
    cfg->attn_scale = (float)(1.0 / sqrt(scalar));
    return BL_OK;
}

const bl_family bl_family_gemma3_text = {
    .name = "gemma3_text",
    .types = {"gemma3_text", "gemma3"},
    .gguf_archs = {"gemma3"},
    .hf_names = &hf_names,
    .gguf_names = &bl_decoder_gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
    .ignorable = NULL,
};
