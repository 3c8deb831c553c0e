/* Qwen 3.5, 3.6 and 3.8, dense and with experts: three gated delta net layers, then one of gated attention;
 * an embedded draft head. docs/models/qwen3_5.md */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"
#include "formats/json.h"
#include "model/family.h"

#define WHAT             "config.json"
#define DEFAULT_INTERVAL 4u
#define DEFAULT_TURNING  0.25

static const char *const expert_bases[] = {"mlp.experts", "mlp.switch_mlp", NULL};

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
    .experts = expert_bases,
    .router = "mlp.gate",
    .shared_gate = "mlp.shared_expert.gate_proj",
    .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj",
    .shared_router = "mlp.shared_expert_gate",
    .delta_qkv = "linear_attn.in_proj_qkv",
    .delta_z = "linear_attn.in_proj_z",
    .delta_beta = "linear_attn.in_proj_b",
    .delta_decay = "linear_attn.in_proj_a",
    .delta_conv = "linear_attn.conv1d",
    .delta_norm = "linear_attn.norm",
    .delta_out = "linear_attn.out_proj",
    .delta_a = "linear_attn.A_log",
    .delta_dt = "linear_attn.dt_bias",
    .draft_root = "mtp.",
    .draft_layer = "layers.0.",
    .draft_embed_norm = "pre_fc_norm_embedding",
    .draft_hidden_norm = "pre_fc_norm_hidden",
    .draft_join = "fc",
    .draft_norm = "norm",
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
    .ffn_norm = "post_attention_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
    .experts = expert_bases,
    .router = "ffn_gate_inp",
    .shared_gate = "ffn_gate_shexp",
    .shared_up = "ffn_up_shexp",
    .shared_down = "ffn_down_shexp",
    .shared_router = "ffn_gate_inp_shexp",
    .delta_qkv = "attn_qkv",
    .delta_z = "attn_gate",
    .delta_beta = "ssm_beta",
    .delta_decay = "ssm_alpha",
    .delta_conv = "ssm_conv1d",
    .delta_norm = "ssm_norm",
    .delta_out = "ssm_out",
    .delta_a = "ssm_a",
    .delta_dt = "ssm_dt.bias",
    .draft_root = "",
    .draft_layer = "blk.",
    .draft_embed_norm = "nextn.enorm",
    .draft_hidden_norm = "nextn.hnorm",
    .draft_join = "nextn.eh_proj",
    .draft_norm = "nextn.shared_head_norm",
};

/* ---- what both containers share ------------------------------------------------------------------------ */

static bl_code finish(const char *what, bl_decoder_config *cfg, bl_err *err) {
    const bl_layer_config *full = NULL;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        if (cfg->n_experts > 0) {
            cfg->layer[i].ffn = 0;
        }
        if (cfg->layer[i].mixer == BL_MIX_ATTENTION && !full) {
            full = &cfg->layer[i];
        }
    }
    if (!full) {
        BL_FAIL(err, BL_EFORMAT, "%s: no layer has full attention", what);
    }
    if (cfg->delta_value_heads % cfg->delta_key_heads != 0) {
        BL_FAIL(err, BL_EFORMAT, "%s: %u value heads are no multiple of %u key heads in the delta net", what,
                cfg->delta_value_heads, cfg->delta_key_heads);
    }
    cfg->n_kv_heads = full->n_kv_heads;
    cfg->layer[cfg->n_layers] = *full; /* the draft head's layer */
    cfg->layer[cfg->n_layers].kv_from = (int32_t)cfg->n_layers;
    cfg->act = BL_GLU_SILU;
    cfg->qk_norm = true;
    cfg->attn_scale = (float)(1.0 / sqrt((double)cfg->head_dim));
    BL_TRY(bl_family_check_experts(what, cfg, err));
    return bl_family_check_layers(what, cfg, err);
}

/* Layer i is full when (i + 1) % interval == 0. */
static void apply_interval(bl_decoder_config *cfg, uint32_t interval) {
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        cfg->layer[i].mixer = (i + 1) % interval == 0 ? BL_MIX_ATTENTION : BL_MIX_DELTA;
    }
}

/* ---- Hugging Face and MLX folders ---------------------------------------------------------------------- */

static bl_code read_delta(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    BL_TRY(bl_family_hf_need_u32(o, "linear_num_key_heads", BL_MODEL_MAX_HEADS, &cfg->delta_key_heads, err));
    BL_TRY(
        bl_family_hf_need_u32(o, "linear_num_value_heads", BL_MODEL_MAX_HEADS, &cfg->delta_value_heads, err));
    BL_TRY(bl_family_hf_need_u32(o, "linear_key_head_dim", BL_MODEL_MAX_HEAD_DIM, &cfg->delta_key_dim, err));
    BL_TRY(
        bl_family_hf_need_u32(o, "linear_value_head_dim", BL_MODEL_MAX_HEAD_DIM, &cfg->delta_value_dim, err));
    BL_TRY(bl_family_hf_need_u32(o, "linear_conv_kernel_dim", BL_MODEL_MAX_TAPS, &cfg->n_taps, err));
    if (cfg->n_taps < 2) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": 'linear_conv_kernel_dim' is %u, allowed are 2 to %u", cfg->n_taps,
                BL_MODEL_MAX_TAPS);
    }
    const char *gate = NULL;
    BL_TRY(bl_json_get_str(o, "output_gate_type", WHAT, &gate, err));
    if (gate && strcmp(gate, "swish") != 0 && strcmp(gate, "silu") != 0) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": output_gate_type is '%s', this version runs swish", gate);
    }
    return BL_OK;
}

static bl_code read_experts(const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    uint64_t n = 0;
    bool renormalised = true;
    BL_TRY(bl_json_get_u64(o, "num_experts", 0, BL_MODEL_MAX_EXPERTS, WHAT, &n, err));
    cfg->n_experts = (uint32_t)n;
    if (n == 0) {
        return BL_OK;
    }
    BL_TRY(bl_family_hf_need_u32(o, "num_experts_per_tok", BL_MODEL_MAX_EXPERTS, &cfg->n_used, err));
    BL_TRY(bl_family_hf_need_u32(o, "moe_intermediate_size", BL_MODEL_MAX_FFN, &cfg->expert_ffn, err));
    BL_TRY(
        bl_family_hf_need_u32(o, "shared_expert_intermediate_size", BL_MODEL_MAX_FFN, &cfg->shared_ffn, err));
    BL_TRY(bl_json_get_bool(o, "norm_topk_prob", WHAT, &renormalised, err));
    if (!renormalised) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": 'norm_topk_prob' is false, this version renormalises");
    }
    uint64_t step = 1;
    const json_t *dense = json_object_get(o, "mlp_only_layers");
    BL_TRY(bl_json_get_u64(o, "decoder_sparse_step", 0, BL_MODEL_MAX_LAYERS, WHAT, &step, err));
    if (step != 1 || json_array_size(dense) > 0) {
        BL_FAIL(err, BL_ENOTSUP,
                WHAT ": 'decoder_sparse_step' or 'mlp_only_layers' mixes dense and expert layers");
    }
    return BL_OK;
}

/* Hugging Face stores w where the norm multiplies by 1 + w, MLX stores 1 + w; the convolution's layout tells
 * which wrote the file (spec §4.3). */
static bool is_hf_layout(const bl_checkpoint *c) {
    static const char tail[] = "linear_attn.conv1d.weight";
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        const bl_tensor_view *t = bl_checkpoint_at(c, i);
        size_t n = strlen(t->name), k = sizeof tail - 1;
        if (n >= k && strcmp(t->name + n - k, tail) == 0) {
            return t->n_dims == 3 && t->dims[2] != 1;
        }
    }
    return true;
}

/* Mean of a float vector; 0.5, which decides nothing, where there is none. */
static double mean_of(const bl_checkpoint *c, const char *name) {
    const bl_tensor_view *t = bl_checkpoint_find(c, name);
    float v[256];
    double sum = 0.0;
    if (!t || t->n_dims != 1 || t->dims[0] == 0 ||
        (t->dtype != BL_DTYPE_F32 && t->dtype != BL_DTYPE_F16 && t->dtype != BL_DTYPE_BF16)) {
        return 0.5;
    }
    size_t size = bl_dtype_get(t->dtype)->block_bytes;
    for (uint64_t at = 0; at < t->dims[0]; at += 256) {
        uint64_t n = BL_MIN((uint64_t)256, t->dims[0] - at);
        bl_dequant_row(t->dtype, t->data + at * size, v, n);
        for (uint64_t i = 0; i < n; i++) {
            sum += (double)v[i];
        }
    }
    return sum / (double)t->dims[0];
}

/* Means of norms: near 0 where w of 1 + w is stored, near 1 or above for 1 + w. */
#define NORMS_CENTRED 0.25
#define NORMS_SHIFTED 0.75

/* Does the head store w of 1 + w? It may come from another tool than the body (spec §15.14). A plain head has
 * the body's convention, unless the mean of its norms clearly contradicts: that is repaired. A quantised one
 * is MLX's and stores 1 + w: taken at its word, because then its maker did the conversion, and whether it
 * went wrong in the norms alone cannot be known here. What looks wrong is said, since nothing but drafts that
 * are never accepted would show it. */
static bool draft_plus_one(const bl_checkpoint *c, bool body) {
    static const char *const norms[] = {"mtp.layers.0.input_layernorm.weight",
                                        "mtp.layers.0.post_attention_layernorm.weight", "mtp.norm.weight",
                                        "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"};
    bool quantized = bl_checkpoint_find(c, "mtp.fc.scales") != NULL;
    double mean = 0.0;
    for (size_t i = 0; i < BL_COUNTOF(norms); i++) {
        mean += mean_of(c, norms[i]) / (double)BL_COUNTOF(norms);
    }
    bool shifted = mean > NORMS_SHIFTED, centred = mean < NORMS_CENTRED;
    if (quantized) {
        if (centred) {
            bl_log(BL_LOG_WARN, "model", "draft_norms",
                   "mean=%.3f stored=w expected=1+w taken_as=1+w effect=drafts_will_be_wrong "
                   "remedy=embed_the_head_again",
                   mean);
        }
        return false;
    }
    if ((body && shifted) || (!body && centred)) {
        bl_log(BL_LOG_WARN, "model", "draft_norms", "mean=%.3f stored=%s expected=%s taken_as=%s effect=none",
               mean, centred ? "w" : "1+w", body ? "w" : "1+w", centred ? "w" : "1+w");
        return centred;
    }
    return body;
}

static bl_code check_draft(const json_t *d, bl_decoder_config *cfg, bl_err *err) {
    const char *prefix = "mtp.", *type = NULL;
    bool embeddings = true, head = true;
    uint64_t block = 3;
    BL_TRY(bl_json_get_str(d, "prefix", WHAT, &prefix, err));
    BL_TRY(bl_json_get_str(d, "model_type", WHAT, &type, err));
    BL_TRY(bl_json_get_u64(d, "block_size", 2, 8, WHAT, &block, err));
    BL_TRY(bl_json_get_bool(d, "shares_target_embeddings", WHAT, &embeddings, err));
    BL_TRY(bl_json_get_bool(d, "shares_target_lm_head", WHAT, &head, err));
    if (strcmp(prefix, "mtp.") != 0) {
        BL_FAIL(err, BL_EFORMAT, WHAT ": mtplx_mtp.prefix is '%s', 'mtp.' is allowed", prefix);
    }
    const char *want = cfg->n_experts > 0 ? "qwen3_5_moe_mtp" : "qwen3_5_mtp";
    if (type && strcmp(type, want) != 0) {
        cfg->draft_foreign = true;
        BL_FAIL(err, BL_EFORMAT, WHAT ": mtplx_mtp.model_type is '%s', the model's is '%s'", type, want);
    }
    if (!embeddings || !head) {
        BL_FAIL(err, BL_ENOTSUP,
                WHAT ": mtplx_mtp has embeddings or a head of its own, sharing both is allowed");
    }
    return BL_OK;
}

/* The head is the model's where the config says so; a declaration that is wrong costs the head only. */
static void read_draft(const bl_checkpoint *c, bl_decoder_config *cfg) {
    const json_t *d = json_object_get(bl_checkpoint_config(c), "mtplx_mtp");
    bl_err err = {0};
    if (!json_is_true(json_object_get(d, "included"))) {
        return;
    }
    cfg->n_draft_layers = 1;
    cfg->draft_norm_plus_one = draft_plus_one(c, cfg->norm_plus_one);
    if (check_draft(d, cfg, &err) != BL_OK) {
        snprintf(cfg->draft_refused, sizeof cfg->draft_refused, "%s", err.msg);
    }
}

static bl_code read_hf(const bl_checkpoint *c, const json_t *o, bl_decoder_config *cfg, bl_err *err) {
    bl_glu_act act = BL_GLU_SILU;
    BL_TRY(read_experts(o, cfg, err));
    BL_TRY(bl_family_hf_dims(o, cfg, err));
    BL_TRY(read_delta(o, cfg, err));
    BL_TRY(bl_family_hf_act(o, "hidden_act", &act, err));
    if (act != BL_GLU_SILU) {
        BL_FAIL(err, BL_ENOTSUP, WHAT ": hidden_act is not silu, which this family has");
    }
    BL_TRY(bl_json_get_bool(o, "tie_word_embeddings", WHAT, &cfg->tied, err));
    BL_TRY(bl_family_hf_refuse_set(o, "attention_bias", err));
    cfg->attn_gate = true;
    BL_TRY(bl_json_get_bool(o, "attn_output_gate", WHAT, &cfg->attn_gate, err));
    uint64_t interval = DEFAULT_INTERVAL;
    BL_TRY(bl_json_get_u64(o, "full_attention_interval", 1, BL_MODEL_MAX_LAYERS, WHAT, &interval, err));
    apply_interval(cfg, (uint32_t)interval);
    if (json_is_array(json_object_get(o, "layer_types"))) {
        apply_interval(cfg, 1);
        BL_TRY(bl_family_hf_layer_types(o, 1, false, cfg, err));
    }
    double theta = 1e7, turning = DEFAULT_TURNING;
    BL_TRY(bl_json_get_f64(o, "rope_theta", 1.0, 1e12, WHAT, &theta, err));
    BL_TRY(bl_json_get_f64(o, "partial_rotary_factor", 0.0, 1.0, WHAT, &turning, err));
    const json_t *params = json_object_get(o, "rope_parameters");
    BL_TRY(bl_family_hf_rope(params, theta, cfg->head_dim, &cfg->rope, err));
    if (!json_object_get(params, "partial_rotary_factor")) {
        cfg->rope.n_rot = (uint32_t)(turning * (double)cfg->head_dim) & ~1u;
    }
    cfg->norm_plus_one = is_hf_layout(c);
    BL_TRY(finish(WHAT, cfg, err));
    read_draft(c, cfg);
    return BL_OK;
}

/* ---- GGUF ---------------------------------------------------------------------------------------------- */

/* Which blocks are delta nets: newer files list them, the draft block included; others give the interval. */
static bl_code gguf_mixers(const bl_gguf *g, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    static const char list[] = "attention.recurrent_layers";
    uint32_t interval = DEFAULT_INTERVAL, flags[BL_MODEL_MAX_LAYERS];
    BL_TRY(bl_family_gguf_u32(g, arch, "full_attention_interval", 1, BL_MODEL_MAX_LAYERS, false, &interval,
                              err));
    apply_interval(cfg, interval);
    if (!bl_family_gguf_has(g, arch, list)) {
        return BL_OK;
    }
    BL_TRY(bl_family_gguf_per_layer(g, arch, list, 1, cfg->n_layers + cfg->n_draft_layers, flags, err));
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        cfg->layer[i].mixer = flags[i] != 0 ? BL_MIX_DELTA : BL_MIX_ATTENTION;
    }
    return BL_OK;
}

static bl_code read_gguf(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err) {
    const bl_gguf *g = bl_checkpoint_gguf(c);
    uint32_t inner = 0;
    BL_TRY(bl_family_gguf_dims(c, arch, cfg, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "nextn_predict_layers", 0, 4, false, &cfg->n_draft_layers, err));
    if (cfg->n_draft_layers >= cfg->n_layers) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s.nextn_predict_layers' is %u of %u blocks", arch,
                cfg->n_draft_layers, cfg->n_layers);
    }
    cfg->n_layers -= cfg->n_draft_layers; /* block_count counts them */
    if (cfg->n_draft_layers > 1) {
        snprintf(cfg->draft_refused, sizeof cfg->draft_refused, "%u prediction layers, one is run",
                 cfg->n_draft_layers);
    }
    BL_TRY(bl_family_gguf_u32(g, arch, "ssm.conv_kernel", 2, BL_MODEL_MAX_TAPS, true, &cfg->n_taps, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "ssm.state_size", 1, BL_MODEL_MAX_HEAD_DIM, true, &cfg->delta_key_dim,
                              err));
    BL_TRY(bl_family_gguf_u32(g, arch, "ssm.group_count", 1, BL_MODEL_MAX_HEADS, true, &cfg->delta_key_heads,
                              err));
    BL_TRY(bl_family_gguf_u32(g, arch, "ssm.time_step_rank", 1, BL_MODEL_MAX_HEADS, true,
                              &cfg->delta_value_heads, err));
    BL_TRY(bl_family_gguf_u32(g, arch, "ssm.inner_size", 1, BL_MODEL_MAX_FFN, true, &inner, err));
    if (inner % cfg->delta_value_heads != 0 || inner / cfg->delta_value_heads > BL_MODEL_MAX_HEAD_DIM) {
        BL_FAIL(err, BL_EFORMAT, "metadata key '%s.ssm.inner_size' is %u, no multiple of %u heads", arch,
                inner, cfg->delta_value_heads);
    }
    cfg->delta_value_dim = inner / cfg->delta_value_heads;
    cfg->delta_heads = BL_HEADS_TILED;
    cfg->decay_ready = true;
    cfg->attn_gate = true;
    BL_TRY(gguf_mixers(g, arch, cfg, err));
    BL_TRY(bl_family_gguf_rope(g, arch, 1e7, &cfg->rope, err));
    if (cfg->n_experts > 0) {
        BL_TRY(bl_family_gguf_u32(g, arch, "expert_used_count", 1, BL_MODEL_MAX_EXPERTS, true, &cfg->n_used,
                                  err));
        BL_TRY(bl_family_gguf_u32(g, arch, "expert_feed_forward_length", 1, BL_MODEL_MAX_FFN, true,
                                  &cfg->expert_ffn, err));
        BL_TRY(bl_family_gguf_u32(g, arch, "expert_shared_feed_forward_length", 1, BL_MODEL_MAX_FFN, true,
                                  &cfg->shared_ffn, err));
    }
    return finish(arch, cfg, err);
}

/* Tensors of a head that is not declared, or not usable, are no part of the model. */
static bool ignorable(const bl_model *m, const char *name) {
    char block[24];
    snprintf(block, sizeof block, "blk.%u.", m->cfg.n_layers);
    return !bl_model_has_draft(m) &&
           (strncmp(name, "mtp.", 4) == 0 || strncmp(name, block, strlen(block)) == 0);
}

const bl_family bl_family_qwen3_5 = {
    .name = "qwen3_5",
    .types = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
    .gguf_archs = {"qwen35", "qwen35moe"},
    .hf_names = &hf_names,
    .gguf_names = &gguf_names,
    .read_hf = read_hf,
    .read_gguf = read_gguf,
    .ignorable = ignorable,
};
