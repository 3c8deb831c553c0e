/* Gemma 4: dense, with experts beside the MLP, and with per-layer embeddings. docs/models/gemma4.md */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "model/family.h"

#define WHAT            "config.json"
#define DEFAULT_PATTERN 6u

static const char *const expert_bases[] = {"experts", "experts.switch_glu", NULL};

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
    .layer_scalar = "layer_scalar",
    .experts = expert_bases,
    .router = "router.proj",
    .router_scale = "router.scale",
    .expert_scale = "router.per_expert_scale",
    .dense_post_norm = "post_feedforward_layernorm_1",
    .experts_norm = "pre_feedforward_layernorm_2",
    .experts_post_norm = "post_feedforward_layernorm_2",
    .ple_embed = "embed_tokens_per_layer",
    .ple_proj = "per_layer_model_projection",
    .ple_norm = "per_layer_projection_norm",
    .ple_gate = "per_layer_input_gate",
    .ple_out = "per_layer_projection",
    .ple_post_norm = "post_per_layer_input_norm",
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
    .q_norm = "attn_q_norm",
    .k_norm = "attn_k_norm",
    .post_attn_norm = "post_attention_norm",
    .ffn_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
    .post_ffn_norm = "post_ffw_norm",
    .layer_scalar = "layer_output_scale.weight",
    .experts = expert_bases,
    .router = "ffn_gate_inp",
    .router_scale = "ffn_gate_inp.scale",
    .expert_scale = "ffn_down_exps.scale",
    .dense_post_norm = "post_ffw_norm_1",
    .experts_norm = "pre_ffw_norm_2",
    .experts_post_norm = "post_ffw_norm_2",
    .ple_embed = "per_layer_token_embd",
    .ple_proj = "per_layer_model_proj",
    .ple_norm = "per_layer_proj_norm",
    .ple_gate = "inp_gate",
    .ple_out = "proj",
    .ple_post_norm = "post_norm",
};

/* ---- what both containers share ------------------------------------------------------------------------ */

/* The last n_shared layers read the keys and values of the last layer of their kind that has its own. */
static bl_code share_kv(const char *what, bl_decoder_config *cfg, uint32_t n_shared, bl_err *err) {
    int32_t last[2] = {-1, -1};
    if (n_shared >= cfg->n_layers) {
        BL_FAIL(err, BL_EFORMAT, "%s: %u of %u layers share keys and values", what, n_shared, cfg->n_layers);
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bl_layer_config *l = &cfg->layer[i];
        if (i < cfg->n_layers - n_shared) {
            last[l->sliding] = (int32_t)i;
            continue;
        }
        if (last[l->sliding] < 0) {
            BL_FAIL(err, BL_EFORMAT, "%s: layer %u shares keys and values, no layer before has them", what,
                    i);
        }
        const bl_layer_config *from = &cfg->layer[last[l->sliding]];
        if (from->head_dim != l->head_dim || from->n_kv_heads != l->n_kv_heads) {
            BL_FAIL(err, BL_EFORMAT, "%s: layer %u shares keys of %u heads of %u, its own are %u of %u", what,
                    i, from->n_kv_heads, from->head_dim, l->n_kv_heads, l->head_dim);
        }
        l->kv_from = last[l->sliding];
    }
    return BL_OK;
}

static bl_code finish(const char *what, bl_decoder_config *cfg, bl_err *err) {
    bool full = false;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        full = full || !cfg->layer[i].sliding;
    }
    if (!full) {
        BL_FAIL(err, BL_EFORMAT, "%s: no layer has full attention", what);
    }
    cfg->act = BL_GLU_GELU_TANH;
    cfg->attn_scale = 1.0f;
    cfg->qk_norm = true;
    cfg->v_norm = true;
    cfg->post_norms = true;
    cfg->layer_scalar = true;
    cfg->embed_scale = (float)sqrt((double)cfg->hidden);
    cfg->experts = BL_EXPERTS_BESIDE;
    BL_TRY(bl_family_check_experts(what, cfg, err));
    return bl_family_check_layers(what, cfg, err);
}

/* ---- Hugging Face and MLX folders ---------------------------------------------------------------------- */

/* Newer exports list what differs per layer, under the layer's number (sometimes with leading zeros). */
static const json_t *layer_override(const json_t *o, uint32_t layer) {
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(o, "per_layer_config"), key, value) {
        uint32_t n = 0;
        size_t i = 0;
        for (; key[i] >= '0' && key[i] <= '9' && i < 6; i++) {
            n = 10 * n + (uint32_t)(key[i] - '0');
        }
        if (i > 0 && key[i] == '\0' && n == layer) {
            return value;
        }
    }
    return NULL;
}

static bl_code read_shapes(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    uint64_t full_dim = cfg->head_dim, full_kv = 0;
    bool keys = false;
    BL_TRY(bl_json_get_bool(o, "attention_k_eq_v", WHAT, &keys, err));
    BL_TRY(bl_json_get_u64(o, "global_head_dim", 2, BL_MODEL_MAX_HEAD_DIM, WHAT, &full_dim, err));
    BL_TRY(bl_json_get_u64(o, "num_global_key_value_heads", 1, cfg->n_heads, WHAT, &full_kv, err));
    if (full_kv > 0 && !keys) {
        BL_FAIL(
            err, BL_ENOTSUP,
            WHAT
            ": 'num_global_key_value_heads' without 'attention_k_eq_v', which references read differently");
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bl_layer_config *l = &cfg->layer[i];
        const json_t *own = layer_override(o, i);
        uint64_t dim = l->sliding ? cfg->head_dim : full_dim;
        uint64_t kv = !l->sliding && full_kv > 0 ? full_kv : cfg->n_kv_heads;
        if (own) {
            BL_TRY(bl_json_get_u64(own, "head_dim", 2, BL_MODEL_MAX_HEAD_DIM, WHAT, &dim, err));
            BL_TRY(bl_json_get_u64(own, "num_key_value_heads", 1, cfg->n_heads, WHAT, &kv, err));
        }
        l->head_dim = (uint32_t)dim;
        l->n_kv_heads = (uint32_t)kv;
        l->values_are_keys = keys && !l->sliding;
    }
    return BL_OK;
}

static bl_code read_experts(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    bool on = false;
    BL_TRY(bl_json_get_bool(o, "enable_moe_block", WHAT, &on, err));
    if (!on) {
        return BL_OK;
    }
    BL_TRY(bl_family_hf_need_u32(o, "num_experts", BL_MODEL_MAX_EXPERTS, &cfg->n_experts, err));
    BL_TRY(bl_family_hf_need_u32(o, "top_k_experts", BL_MODEL_MAX_EXPERTS, &cfg->n_used, err));
    return bl_family_hf_need_u32(o, "moe_intermediate_size", BL_MODEL_MAX_FFN, &cfg->expert_ffn, err);
}

static bl_code read_ple(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    uint64_t ple = 0, vocab = cfg->n_vocab;
    BL_TRY(bl_json_get_u64(o, "hidden_size_per_layer_input", 0, BL_MODEL_MAX_HIDDEN, WHAT, &ple, err));
    BL_TRY(bl_json_get_u64(o, "vocab_size_per_layer_input", 1, BL_MODEL_MAX_VOCAB, WHAT, &vocab, err));
    if (ple > 0 && vocab != cfg->n_vocab) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": 'vocab_size_per_layer_input' is %llu, 'vocab_size' %u is allowed",
                (unsigned long long)vocab, cfg->n_vocab);
    }
    cfg->ple = (uint32_t)ple;
    return BL_OK;
}

static bl_code read_ropes(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    const json_t *params = json_object_get(o, "rope_parameters");
    const json_t *full = json_object_get(params, "full_attention"),
                 *local = json_object_get(params, "sliding_attention");
    uint32_t full_dim = cfg->head_dim;
    if (!full || !local) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": rope_parameters must hold full_attention and sliding_attention");
    }
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        full_dim = cfg->layer[i].sliding ? full_dim : cfg->layer[i].head_dim;
    }
    BL_TRY(bl_family_hf_rope(full, 1e6, full_dim, &cfg->rope, err));
    return bl_family_hf_rope(local, 1e4, cfg->head_dim, &cfg->rope_local, err);
}

static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    (void)c;
    bl_glu_act act = BL_GLU_GELU_TANH;
    uint64_t window = 0, shared = 0;
    double softcap = 0.0;
    bool wide = false;
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    BL_TRY(bl_family_hf_refuse_set(o, "attention_bias", err));
    BL_TRY(bl_family_hf_act(o, "hidden_activation", &act, err));
    if (act != BL_GLU_GELU_TANH) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": hidden_activation is not gelu_pytorch_tanh, which this family has");
    }
    cfg->tied = true;
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", WHAT, &cfg->tied, err));
    BL_TRY(bl_json_get_f64(o, "final_logit_softcapping", 0.0, 1e6, WHAT, &softcap, err));
    cfg->final_softcap = (float)softcap;
    BL_TRY(bl_json_get_u64(o, "sliding_window", 1, BL_MODEL_MAX_CONTEXT, WHAT, &window, err));
    cfg->window = (uint32_t)window;
    uint64_t pattern = DEFAULT_PATTERN;
    BL_TRY(bl_json_get_u64(o, "sliding_window_pattern", 1, BL_MODEL_MAX_LAYERS, WHAT, &pattern, err));
    BL_TRY(bl_family_hf_layer_types(o, (uint32_t)pattern, true, cfg, err));
    BL_TRY(read_shapes(o, cfg, err));
    BL_TRY(read_experts(o, cfg, err));
    BL_TRY(read_ple(o, cfg, err));
    BL_TRY(read_ropes(o, cfg, err));
    BL_TRY(bl_json_get_u64(o, "num_kv_shared_layers", 0, BL_MODEL_MAX_LAYERS, WHAT, &shared, err));
    BL_TRY(bl_json_get_bool(o, "use_double_wide_mlp", WHAT, &wide, err));
    BL_TRY(share_kv(WHAT, cfg, (uint32_t)shared, err));
    for (uint32_t i = 0; i < cfg->n_layers && wide; i++) {
        cfg->layer[i].ffn *= cfg->layer[i].kv_from != (int32_t)i ? 2 : 1;
    }
    return finish(WHAT, cfg, err);
}

/* ---- GGUF ---------------------------------------------------------------------------------------------- */

/* The first `turning` frequencies are divided by 1, the others by something huge: they stand still. */
static bl_code read_rope_factors(const bl_checkpoint *c, bl_decoder_config *cfg, bl_err *err) {
    const bl_tensor_view *t = bl_checkpoint_find(c, "rope_freqs.weight");
    uint32_t n = (cfg->rope.n_rot > 0 ? cfg->rope.n_rot : cfg->head_dim) / 2;
    if (!t) {
        return BL_OK;
    }
    if (t->dtype != BL_DTYPE_F32 || t->n_dims != 1 || t->dims[0] != n || cfg->rope.kind != BL_ROPE_PLAIN) {
        BL_FAIL(err, BL_EFORMAT,
                "tensor 'rope_freqs.weight' must hold %u F32 values, without a rope.scaling.type", n);
    }
    cfg->rope.kind = BL_ROPE_PARTIAL;
    for (uint32_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * sizeof f, sizeof f);
        bool turns = f == 1.0f, still = f >= 1e20f;
        if ((!turns && !still) || (turns && i != cfg->rope.turning)) {
            BL_FAIL(err, BL_ENOTSUP,
                    "tensor 'rope_freqs.weight': element %u is %g, 1s and then 1e30s are allowed", i,
                    (double)f);
        }
        cfg->rope.turning += turns;
    }
    return BL_OK;
}

static bl_code gguf_layers(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    uint32_t flags[BL_MODEL_MAX_LAYERS], local_dim = cfg->head_dim, shared = 0;
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.sliding_window", 1, BL_MODEL_MAX_CONTEXT, true,
                              &cfg->window, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.key_length_swa", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &local_dim, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "attention.shared_kv_layers", 0, BL_MODEL_MAX_LAYERS, false, &shared,
                              err));
    BL_TRY(
        bl_family_gguf_per_layer(g, arch, "attention.sliding_window_pattern", 1, cfg->n_layers, flags, err));
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bl_layer_config *l = &cfg->layer[i];
        char name[64];
        l->sliding = flags[i] != 0;
        l->head_dim = l->sliding ? local_dim : cfg->head_dim;
        snprintf(name, sizeof name, "blk.%u.attn_v.weight", i);
        l->values_are_keys =
            i < cfg->n_layers - BL_MIN(shared, cfg->n_layers) && !bl_checkpoint_find(c, name);
    }
    cfg->head_dim = cfg->layer[0].head_dim;
    cfg->n_kv_heads = cfg->layer[0].n_kv_heads;
    return share_kv(arch, cfg, shared, err);
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    double softcap = 0.0;
    BL_TRY(bl_family_gguf_dims(c, arch, cfg, err));
    BL_TRY(bl_family_gguf_rope(g, arch, 1e6, &cfg->rope, err));
    BL_TRY(read_rope_factors(c, cfg, err));
    cfg->rope_local = (bl_rope_config){.kind = BL_ROPE_PLAIN, .theta = 1e4, .factor = 1.0};
    BL_TRY(bl_family_gguf_f64(g, arch, "rope.freq_base_swa", false, &cfg->rope_local.theta, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "rope.dimension_count_swa", 2, BL_MODEL_MAX_HEAD_DIM, false,
                              &cfg->rope_local.n_rot, err));
    BL_TRY(gguf_layers(c, arch, cfg, err));
    if (!(cfg->rope_local.theta >= 1.0 && cfg->rope_local.theta <= 1e12) ||
        cfg->rope_local.n_rot > cfg->head_dim) {
        BL_FAIL(err, BL_EFORMAT, "metadata keys '%s.rope.*_swa': base %g over %u of %u, 1 to 1e12 is allowed",
                arch, cfg->rope_local.theta, cfg->rope_local.n_rot, cfg->head_dim);
    }
    BL_TRY(bl_family_gguf_f64(g, arch, "final_logit_softcapping", false, &softcap, err));
    if (!(softcap >= 0.0 && softcap <= 1e6)) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s.final_logit_softcapping' is %g, 0 to 1e6 is allowed", arch,
                softcap);
    }
    cfg->final_softcap = (float)softcap;
    BL_TRY(bl_family_gguf_u32(g, arch, "embedding_length_per_layer_input", 0, BL_MODEL_MAX_HIDDEN, false,
                              &cfg->ple, err));
    if (cfg->n_experts > 0) {
        BL_TRY(bl_family_gguf_u32(g, arch, "expert_used_count", 1, BL_MODEL_MAX_EXPERTS, true, &cfg->n_used,
                                  err));
        BL_TRY(bl_family_gguf_u32(g, arch, "expert_feed_forward_length", 1, BL_MODEL_MAX_FFN, true,
                                  &cfg->expert_ffn, err));
    }
    return finish(arch, cfg, err);
}

static bool ignorable(const bl_model *m, const char *name) {
    (void)m;
    return strcmp(name, "rope_freqs.weight") == 0;
}

const bl_family bl_family_gemma4 = {
    .name = "gemma4",
    .types = {"gemma4", "gemma4_text"},
    .gguf_archs = {"gemma4"},
    .hf_names = &hf_names,
    .gguf_names = &gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
    .ignorable = ignorable,
};
