#include "synthetic_models.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

const syn_shape syn_shapes[] = {
    {.name = "gemma-4-26b-a4b",
     .family = SYN_GEMMA4,
     .layers = 30,
     .full_every = 6,
     .hidden = 2816,
     .ffn = 2112,
     .heads = 16,
     .kv_heads = 8,
     .kv_heads_full = 2,
     .head_dim = 256,
     .head_dim_full = 512,
     .vocab = 262144,
     .window = 1024,
     .context = 262144,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 704,
     .k_eq_v = true},
    {.name = "gemma-4-e4b",
     .family = SYN_GEMMA4,
     .layers = 42,
     .full_every = 6,
     .hidden = 2560,
     .ffn = 10240,
     .heads = 8,
     .kv_heads = 2,
     .kv_heads_full = 2,
     .head_dim = 256,
     .head_dim_full = 512,
     .vocab = 262144,
     .window = 512,
     .context = 131072,
     .ple = 256,
     .kv_shared = 18},
    {.name = "gemma-4-e2b",
     .family = SYN_GEMMA4,
     .layers = 35,
     .full_every = 5,
     .hidden = 1536,
     .ffn = 6144,
     .heads = 8,
     .kv_heads = 1,
     .kv_heads_full = 1,
     .head_dim = 256,
     .head_dim_full = 512,
     .vocab = 262144,
     .window = 512,
     .context = 131072,
     .ple = 256,
     .kv_shared = 20,
     .double_wide = true},
    {.name = "gemma-4-31b",
     .family = SYN_GEMMA4,
     .layers = 60,
     .full_every = 6,
     .hidden = 5376,
     .ffn = 21504,
     .heads = 32,
     .kv_heads = 16,
     .kv_heads_full = 4,
     .head_dim = 256,
     .head_dim_full = 512,
     .vocab = 262144,
     .window = 1024,
     .context = 262144,
     .k_eq_v = true},
    {.name = "qwen3.5-9b",
     .family = SYN_QWEN,
     .layers = 32,
     .full_every = 4,
     .hidden = 4096,
     .ffn = 12288,
     .heads = 16,
     .kv_heads = 4,
     .kv_heads_full = 4,
     .head_dim = 256,
     .head_dim_full = 256,
     .vocab = 248320,
     .context = 262144,
     .gdn_k_heads = 16,
     .gdn_v_heads = 32},
    {.name = "qwen3.6-35b-a3b",
     .family = SYN_QWEN,
     .layers = 40,
     .full_every = 4,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .kv_heads_full = 2,
     .head_dim = 256,
     .head_dim_full = 256,
     .vocab = 248320,
     .context = 262144,
     .experts = 256,
     .top_k = 8,
     .expert_ffn = 512,
     .shared_ffn = 512,
     .gdn_k_heads = 16,
     .gdn_v_heads = 32},
    {.name = "qwen3.8-27b",
     .family = SYN_QWEN,
     .layers = 64,
     .full_every = 4,
     .hidden = 5120,
     .ffn = 17408,
     .heads = 24,
     .kv_heads = 4,
     .kv_heads_full = 4,
     .head_dim = 256,
     .head_dim_full = 256,
     .vocab = 248320,
     .context = 262144,
     .gdn_k_heads = 16,
     .gdn_v_heads = 48},
    {.name = "gpt-oss-20b",
     .family = SYN_GPT_OSS,
     .layers = 24,
     .full_every = 2,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .kv_heads_full = 8,
     .head_dim = 64,
     .head_dim_full = 64,
     .vocab = 201088,
     .window = 128,
     .context = 131072,
     .experts = 32,
     .top_k = 4,
     .expert_ffn = 2880},
    {.name = "gemma-3-270m",
     .family = SYN_GEMMA3,
     .layers = 18,
     .full_every = 6,
     .hidden = 640,
     .ffn = 2048,
     .heads = 4,
     .kv_heads = 1,
     .kv_heads_full = 1,
     .head_dim = 256,
     .head_dim_full = 256,
     .vocab = 262144,
     .window = 512,
     .context = 32768},
};
const uint32_t syn_n_shapes = BL_COUNTOF(syn_shapes);

static bool is_full(const syn_shape *s, uint32_t l) {
    /* Gemma 4 forces the last one */
    return (l + 1) % s->full_every == 0 || (s->family == SYN_GEMMA4 && l + 1 == s->layers);
}

/* ---- tensors ---- */

typedef struct {
    const syn_shape *s;
    bool mlx, head;
    syn_tensor *out;
    uint32_t n;
} list;

static syn_tensor *add(list *t, syn_fill fill, const char *name) {
    BL_ASSERT(t->n < SYN_MAX_TENSORS);
    syn_tensor *x = &t->out[t->n++];
    *x = (syn_tensor){.suffix = "", .fill = fill, .head = t->head};
    snprintf(x->name, sizeof x->name, "%s", name);
    return x;
}

static syn_tensor *matrix(list *t, const char *prefix, const char *leaf, uint64_t out, uint64_t in) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", prefix, leaf);
    syn_tensor *x = add(t, SYN_MATRIX, name);
    x->suffix = ".weight";
    x->n_dims = 2;
    x->dims[0] = out;
    x->dims[1] = x->fan_in = in;
    x->dense_mlp = strncmp(leaf, "mlp.", 4) == 0;
    return x;
}

static void router(list *t, const char *prefix, const char *leaf, uint64_t out, uint64_t in) {
    matrix(t, prefix, leaf, out, in)->fill = SYN_ROUTER;
    t->out[t->n - 1].dense_mlp = false;
}

/* [experts, a, b] */
static void experts(list *t, const char *prefix, const char *leaf, const char *suffix, uint64_t a, uint64_t b,
                    uint64_t fan_in) {
    syn_tensor *x = matrix(t, prefix, leaf, a, b);
    x->suffix = suffix;
    x->n_dims = 3;
    x->dims[0] = t->s->experts;
    x->dims[1] = a;
    x->dims[2] = b;
    x->fan_in = fan_in;
    x->dense_mlp = false;
    x->expert = true;
}

static void vector(list *t, syn_fill fill, const char *prefix, const char *leaf, uint64_t n) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", prefix, leaf);
    syn_tensor *x = add(t, fill, name);
    x->n_dims = 1;
    x->dims[0] = n;
}

/* Norms of the families that store 1 + w, or w around 0. */
static void norm(list *t, const char *prefix, const char *leaf, uint64_t n) {
    bool zero = t->s->family == SYN_GEMMA3 || (t->s->family == SYN_QWEN && !t->mlx);
    vector(t, zero ? SYN_NEAR_ZERO : SYN_NEAR_ONE, prefix, leaf, n);
}

static void swiglu(list *t, const char *p, const char *where, uint64_t ffn) {
    char leaf[64];
    uint64_t h = t->s->hidden;
    snprintf(leaf, sizeof leaf, "%sgate_proj", where);
    matrix(t, p, leaf, ffn, h);
    snprintf(leaf, sizeof leaf, "%sup_proj", where);
    matrix(t, p, leaf, ffn, h);
    snprintf(leaf, sizeof leaf, "%sdown_proj", where);
    matrix(t, p, leaf, h, ffn);
}

/* gate and up, then down: three tensors in MLX's layout, two in Hugging Face's. */
static void expert_mlps(list *t, const char *p, const char *mlx_where, const char *hf_where) {
    char leaf[64];
    uint64_t h = t->s->hidden, m = t->s->expert_ffn;
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (uint32_t i = 0; t->mlx && i < 3; i++) {
        snprintf(leaf, sizeof leaf, "%s%s", mlx_where, names[i]);
        experts(t, p, leaf, ".weight", i < 2 ? m : h, i < 2 ? h : m, i < 2 ? h : m);
    }
    if (!t->mlx) {
        bool turned = t->s->family == SYN_GPT_OSS; /* [experts, in, out] there */
        snprintf(leaf, sizeof leaf, "%sgate_up_proj", hf_where);
        experts(t, p, leaf, "", turned ? h : 2 * m, turned ? 2 * m : h, h);
        snprintf(leaf, sizeof leaf, "%sdown_proj", hf_where);
        experts(t, p, leaf, "", turned ? m : h, turned ? h : m, m);
    }
}

static void gemma_layer(list *t, const char *p, uint32_t l) {
    const syn_shape *s = t->s;
    bool full = is_full(s, l), own_kv = l < s->layers - s->kv_shared;
    uint64_t h = s->hidden, d = full ? s->head_dim_full : s->head_dim;
    uint64_t kv = (full ? s->kv_heads_full : s->kv_heads) * d;
    norm(t, p, "input_layernorm.weight", h);
    norm(t, p, "post_attention_layernorm.weight", h);
    norm(t, p, "pre_feedforward_layernorm.weight", h);
    norm(t, p, "post_feedforward_layernorm.weight", h);
    matrix(t, p, "self_attn.q_proj", s->heads * d, h);
    norm(t, p, "self_attn.q_norm.weight", d);
    if (own_kv) {
        matrix(t, p, "self_attn.k_proj", kv, h);
        norm(t, p, "self_attn.k_norm.weight", d);
    }
    if (own_kv && !(full && s->k_eq_v)) {
        matrix(t, p, "self_attn.v_proj", kv, h);
    }
    matrix(t, p, "self_attn.o_proj", h, s->heads * d);
    swiglu(t, p, "mlp.", s->double_wide && !own_kv ? 2 * s->ffn : s->ffn);
    if (s->family == SYN_GEMMA3) {
        return;
    }
    vector(t, SYN_LAYER, p, "layer_scalar", 1);
    if (s->experts) {
        norm(t, p, "post_feedforward_layernorm_1.weight", h);
        norm(t, p, "post_feedforward_layernorm_2.weight", h);
        norm(t, p, "pre_feedforward_layernorm_2.weight", h);
        router(t, p, "router.proj", s->experts, h);
        vector(t, SYN_NEAR_ONE, p, "router.scale", h);
        vector(t, SYN_NEAR_ONE, p, "router.per_expert_scale", s->experts);
        expert_mlps(t, p, "experts.switch_glu.", "experts.");
    }
    if (s->ple) {
        matrix(t, p, "per_layer_input_gate", s->ple, h);
        matrix(t, p, "per_layer_projection", h, s->ple);
        norm(t, p, "post_per_layer_input_norm.weight", h);
    }
}

static void gemma(list *t, const char *root) {
    const syn_shape *s = t->s;
    matrix(t, root, "embed_tokens", s->vocab, s->hidden);
    if (s->ple) {
        matrix(t, root, "embed_tokens_per_layer", s->vocab, (uint64_t)s->layers * s->ple);
        matrix(t, root, "per_layer_model_projection", (uint64_t)s->layers * s->ple, s->hidden);
        norm(t, root, "per_layer_projection_norm.weight", s->ple);
    }
    for (uint32_t l = 0; l < s->layers; l++) {
        char p[96];
        snprintf(p, sizeof p, "%slayers.%" PRIu32 ".", root, l);
        gemma_layer(t, p, l);
    }
    norm(t, root, "norm.weight", s->hidden);
}

static void qwen_attention(list *t, const char *p) {
    const syn_shape *s = t->s;
    uint64_t h = s->hidden, d = s->head_dim;
    matrix(t, p, "self_attn.q_proj", 2 * s->heads * d, h); /* query and gate */
    matrix(t, p, "self_attn.k_proj", s->kv_heads * d, h);
    matrix(t, p, "self_attn.v_proj", s->kv_heads * d, h);
    matrix(t, p, "self_attn.o_proj", h, s->heads * d);
    norm(t, p, "self_attn.q_norm.weight", d);
    norm(t, p, "self_attn.k_norm.weight", d);
}

static void delta_net(list *t, const char *p) {
    const syn_shape *s = t->s;
    uint64_t h = s->hidden, v = s->gdn_v_heads, channels = (2 * s->gdn_k_heads + v) * 128;
    matrix(t, p, "linear_attn.in_proj_qkv", channels, h);
    matrix(t, p, "linear_attn.in_proj_z", v * 128, h);
    matrix(t, p, "linear_attn.in_proj_b", v, h);
    matrix(t, p, "linear_attn.in_proj_a", v, h);
    matrix(t, p, "linear_attn.out_proj", h, v * 128);
    vector(t, SYN_CONV, p, "linear_attn.conv1d.weight", channels);
    syn_tensor *conv = &t->out[t->n - 1];
    conv->n_dims = 3;
    conv->dims[1] = t->mlx ? 4 : 1;
    conv->dims[2] = t->mlx ? 1 : 4;
    vector(t, SYN_A_LOG, p, "linear_attn.A_log", v);
    vector(t, SYN_DT_BIAS, p, "linear_attn.dt_bias", v);
    vector(t, SYN_NEAR_ONE, p, "linear_attn.norm.weight", 128);
}

static void qwen_layer(list *t, const char *p, bool full) {
    const syn_shape *s = t->s;
    norm(t, p, "input_layernorm.weight", s->hidden);
    norm(t, p, "post_attention_layernorm.weight", s->hidden);
    if (full) {
        qwen_attention(t, p);
    } else {
        delta_net(t, p);
    }
    if (!s->experts) {
        swiglu(t, p, "mlp.", s->ffn);
        return;
    }
    router(t, p, "mlp.gate", s->experts, s->hidden);
    router(t, p, "mlp.shared_expert_gate", 1, s->hidden);
    swiglu(t, p, "mlp.shared_expert.", s->shared_ffn);
    expert_mlps(t, p, "mlp.switch_mlp.", "mlp.experts.");
}

static void qwen(list *t, const char *root) {
    const syn_shape *s = t->s;
    matrix(t, root, "embed_tokens", s->vocab, s->hidden);
    for (uint32_t l = 0; l < s->layers; l++) {
        char p[96];
        snprintf(p, sizeof p, "%slayers.%" PRIu32 ".", root, l);
        qwen_layer(t, p, is_full(s, l));
    }
    norm(t, root, "norm.weight", s->hidden);
    matrix(t, t->mlx ? "language_model." : "", "lm_head", s->vocab, s->hidden);
    t->head = true;
    matrix(t, "mtp.", "fc", s->hidden, 2 * (uint64_t)s->hidden);
    norm(t, "mtp.", "pre_fc_norm_embedding.weight", s->hidden);
    norm(t, "mtp.", "pre_fc_norm_hidden.weight", s->hidden);
    norm(t, "mtp.", "norm.weight", s->hidden);
    qwen_layer(t, "mtp.layers.0.", true);
}

static void gpt_oss_layer(list *t, const char *p) {
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    const syn_shape *s = t->s;
    uint64_t h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, m = s->expert_ffn;
    const uint64_t out[] = {q, kv, kv, h};
    char leaf[64];
    norm(t, p, "input_layernorm.weight", h);
    norm(t, p, "post_attention_layernorm.weight", h);
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(leaf, sizeof leaf, "self_attn.%s", names[i]);
        matrix(t, p, leaf, out[i], i < 3 ? h : q);
        snprintf(leaf, sizeof leaf, "self_attn.%s.bias", names[i]);
        vector(t, SYN_NEAR_ZERO, p, leaf, out[i]);
    }
    vector(t, SYN_SINKS, p, "self_attn.sinks", s->heads);
    router(t, p, "mlp.router", s->experts, h);
    vector(t, SYN_NEAR_ZERO, p, "mlp.router.bias", s->experts);
    expert_mlps(t, p, "mlp.experts.", "mlp.experts.");
    static const char *const mlx_bias[] = {"gate_proj.bias", "up_proj.bias", "down_proj.bias"};
    static const char *const hf_bias[] = {"gate_up_proj_bias", "down_proj_bias"};
    for (uint32_t i = 0; i < (t->mlx ? 3u : 2u); i++) {
        snprintf(leaf, sizeof leaf, "mlp.experts.%s", t->mlx ? mlx_bias[i] : hf_bias[i]);
        bool down = i + 1 == (t->mlx ? 3u : 2u);
        vector(t, SYN_NEAR_ZERO, p, leaf, s->experts);
        syn_tensor *x = &t->out[t->n - 1];
        x->n_dims = 2;
        x->dims[1] = down ? h : t->mlx ? m : 2 * m;
    }
}

static void gpt_oss(list *t) {
    const syn_shape *s = t->s;
    matrix(t, "model.", "embed_tokens", s->vocab, s->hidden);
    for (uint32_t l = 0; l < s->layers; l++) {
        char p[96];
        snprintf(p, sizeof p, "model.layers.%" PRIu32 ".", l);
        gpt_oss_layer(t, p);
    }
    norm(t, "model.", "norm.weight", s->hidden);
    matrix(t, "", "lm_head", s->vocab, s->hidden);
}

uint32_t syn_tensors(const syn_shape *s, bool mlx, syn_tensor *ret) {
    list t = {.s = s, .mlx = mlx, .out = ret};
    const char *wrapped = mlx ? "language_model.model." : "model.language_model.";
    switch (s->family) {
    case SYN_GEMMA3:
        gemma(&t, "model.");
        break;
    case SYN_GEMMA4:
        gemma(&t, wrapped);
        break;
    case SYN_QWEN:
        qwen(&t, wrapped);
        break;
    case SYN_GPT_OSS:
        gpt_oss(&t);
        break;
    }
    return t.n;
}

/* ---- config.json ---- */

static bl_code layer_types(const syn_shape *s, bl_buf *b, bl_err *err) {
    const char *other = s->family == SYN_QWEN ? "linear_attention" : "sliding_attention";
    BL_TRY(bl_buf_append_str(b, "\"layer_types\": [", err));
    for (uint32_t l = 0; l < s->layers; l++) {
        BL_TRY(bl_buf_printf(b, err, "%s\"%s\"", l ? ", " : "", is_full(s, l) ? "full_attention" : other));
    }
    return bl_buf_append_str(b, "],\n", err);
}

/* What all of them have. */
static bl_code common(const syn_shape *s, bl_buf *b, bl_err *err) {
    BL_TRY(
        bl_buf_printf(b, err,
                      "\"hidden_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u, "
                      "\"num_key_value_heads\": %u, \"head_dim\": %u,\n\"vocab_size\": %u, "
                      "\"max_position_embeddings\": %u, \"attention_dropout\": 0.0, \"use_cache\": true,\n",
                      s->hidden, s->layers, s->heads, s->kv_heads, s->head_dim, s->vocab, s->context));
    return layer_types(s, b, err);
}

static bl_code gemma3_config(const syn_shape *s, bl_buf *b, bl_err *err) {
    BL_TRY(bl_buf_append_str(
        b, "{\"model_type\": \"gemma3_text\", \"architectures\": [\"Gemma3ForCausalLM\"],\n", err));
    BL_TRY(common(s, b, err));
    return bl_buf_printf(b, err,
                         "\"intermediate_size\": %u, \"sliding_window\": %u, \"sliding_window_pattern\": %u, "
                         "\"rope_theta\": 1000000.0, \"rope_local_base_freq\": 10000.0,\n"
                         "\"query_pre_attn_scalar\": %u, \"rms_norm_eps\": 1e-06, \"hidden_activation\": "
                         "\"gelu_pytorch_tanh\", \"attn_logit_softcapping\": null,\n"
                         "\"final_logit_softcapping\": null, \"attention_bias\": false, "
                         "\"tie_word_embeddings\": true, \"bos_token_id\": 2, \"eos_token_id\": 1, "
                         "\"pad_token_id\": 0, \"dtype\": \"bfloat16\"",
                         s->ffn, s->window, s->full_every, s->head_dim);
}

static bl_code gemma4_config(const syn_shape *s, bl_buf *b, bl_err *err) {
    char global_kv[16] = "null", moe[128] = "\"num_experts\": null, \"top_k_experts\": null, "
                                            "\"moe_intermediate_size\": null";
    if (s->k_eq_v) {
        snprintf(global_kv, sizeof global_kv, "%u", s->kv_heads_full);
    }
    if (s->experts) {
        snprintf(moe, sizeof moe, "\"num_experts\": %u, \"top_k_experts\": %u, \"moe_intermediate_size\": %u",
                 s->experts, s->top_k, s->expert_ffn);
    }
    BL_TRY(bl_buf_printf(b, err,
                         "{\"model_type\": \"gemma4\", \"architectures\": "
                         "[\"Gemma4ForConditionalGeneration\"], \"tie_word_embeddings\": true, "
                         "\"vocab_size\": %u, \"eos_token_id\": [1, 106],\n\"dtype\": \"bfloat16\", "
                         "\"text_config\": {\"model_type\": \"gemma4_text\",\n",
                         s->vocab));
    BL_TRY(common(s, b, err));
    BL_TRY(bl_buf_printf(
        b, err,
        "\"intermediate_size\": %u, \"global_head_dim\": %u, \"num_global_key_value_heads\": %s, "
        "\"attention_k_eq_v\": %s, \"sliding_window\": %u,\n"
        "\"vocab_size_per_layer_input\": %u, \"hidden_size_per_layer_input\": %u, "
        "\"num_kv_shared_layers\": %u, \"use_double_wide_mlp\": %s,\n"
        "\"enable_moe_block\": %s, %s,\n",
        s->ffn, s->head_dim_full, global_kv, s->k_eq_v ? "true" : "false", s->window, s->vocab, s->ple,
        s->kv_shared, s->double_wide ? "true" : "false", s->experts ? "true" : "false", moe));
    return bl_buf_append_str(
        b,
        "\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": 10000.0}, \"full_attention\": {\"rope_type\": \"proportional\", "
        "\"rope_theta\": 1000000.0, \"partial_rotary_factor\": 0.25}},\n"
        "\"rms_norm_eps\": 1e-06, \"hidden_activation\": \"gelu_pytorch_tanh\", "
        "\"final_logit_softcapping\": 30.0, \"attention_bias\": false,\n"
        "\"tie_word_embeddings\": true, \"bos_token_id\": 2, \"eos_token_id\": 1, "
        "\"pad_token_id\": 0, \"dtype\": \"bfloat16\"}",
        err);
}

static bl_code qwen_config(const syn_shape *s, bl_buf *b, bl_err *err) {
    const char *moe = s->experts ? "_moe" : "";
    BL_TRY(bl_buf_printf(
        b, err,
        "{\"model_type\": \"qwen3_5%s\", \"architectures\": [\"Qwen3_5%sForConditionalGeneration\"], "
        "\"tie_word_embeddings\": false, \"dtype\": \"bfloat16\",\n\"text_config\": "
        "{\"model_type\": \"qwen3_5%s_text\",\n",
        moe, s->experts ? "Moe" : "", moe));
    BL_TRY(common(s, b, err));
    if (s->experts) {
        BL_TRY(
            bl_buf_printf(b, err,
                          "\"num_experts\": %u, \"num_experts_per_tok\": %u, \"moe_intermediate_size\": %u, "
                          "\"shared_expert_intermediate_size\": %u,\n",
                          s->experts, s->top_k, s->expert_ffn, s->shared_ffn));
    } else {
        BL_TRY(bl_buf_printf(b, err, "\"intermediate_size\": %u,\n", s->ffn));
    }
    return bl_buf_printf(
        b, err,
        "\"full_attention_interval\": %u, \"linear_num_key_heads\": %u, \"linear_num_value_heads\": %u, "
        "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128,\n\"linear_conv_kernel_dim\": 4, "
        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000.0, "
        "\"partial_rotary_factor\": 0.25, \"mrope_section\": [11, 11, 10], \"mrope_interleaved\": true},\n"
        "\"rms_norm_eps\": 1e-06, \"attn_output_gate\": true, \"mamba_ssm_dtype\": \"float32\", "
        "\"hidden_act\": \"silu\", \"attention_bias\": false, \"tie_word_embeddings\": false,\n"
        "\"mtp_num_hidden_layers\": 1, \"mtp_use_dedicated_embeddings\": false, \"eos_token_id\": 248044, "
        "\"dtype\": \"bfloat16\"},\n"
        "\"mtplx_mtp\": {\"included\": true, \"prefix\": \"mtp.\", \"model_type\": \"qwen3_5%s_mtp\", "
        "\"block_size\": 3, \"shares_target_embeddings\": true, \"shares_target_lm_head\": true}",
        s->full_every, s->gdn_k_heads, s->gdn_v_heads, moe);
}

static bl_code gpt_oss_config(const syn_shape *s, bl_buf *b, bl_err *err) {
    static const char rope[] =
        "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": "
        "1.0, \"original_max_position_embeddings\": 4096, \"truncate\": false}";
    BL_TRY(bl_buf_append_str(b, "{\"model_type\": \"gpt_oss\", \"architectures\": [\"GptOssForCausalLM\"],\n",
                             err));
    BL_TRY(common(s, b, err));
    return bl_buf_printf(
        b, err,
        "\"intermediate_size\": %u, \"num_local_experts\": %u, \"num_experts_per_tok\": %u, "
        "\"sliding_window\": %u, \"swiglu_limit\": 7.0,\n\"rope_theta\": 150000.0, "
        "\"rope_scaling\": %s,\n\"rms_norm_eps\": 1e-05, \"attention_bias\": true, "
        "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"eos_token_id\": 200002, "
        "\"pad_token_id\": 199999, \"dtype\": \"bfloat16\"",
        s->expert_ffn, s->experts, s->top_k, s->window, rope);
}

bl_code syn_config(const syn_shape *s, bl_buf *ret, bl_err *err) {
    switch (s->family) {
    case SYN_GEMMA3:
        return gemma3_config(s, ret, err);
    case SYN_GEMMA4:
        return gemma4_config(s, ret, err);
    case SYN_QWEN:
        return qwen_config(s, ret, err);
    case SYN_GPT_OSS:
        break;
    }
    return gpt_oss_config(s, ret, err);
}

/* ---- tokenizer ---- */

typedef struct {
    uint32_t id;
    const char *text;
} special;

static const special gemma3_specials[] = {
    {0, "<pad>"}, {1, "<eos>"}, {2, "<bos>"}, {3, "<unk>"}, {105, "<start_of_turn>"}, {106, "<end_of_turn>"}};
static const special gemma4_specials[] = {{0, "<pad>"}, {1, "<eos>"},     {2, "<bos>"},
                                          {3, "<unk>"}, {105, "<|turn>"}, {106, "<turn|>"}};
static const special qwen_specials[] = {
    {248044, "<|endoftext|>"}, {248045, "<|im_start|>"}, {248046, "<|im_end|>"}};
static const special gpt_oss_specials[] = {
    {199998, "<|startoftext|>"}, {199999, "<|endoftext|>"}, {200002, "<|return|>"},  {200005, "<|channel|>"},
    {200006, "<|start|>"},       {200007, "<|end|>"},       {200008, "<|message|>"}, {200012, "<|call|>"}};

static const special *specials_of(const syn_shape *s, uint32_t *ret_n) {
    switch (s->family) {
    case SYN_GEMMA3:
        *ret_n = BL_COUNTOF(gemma3_specials);
        return gemma3_specials;
    case SYN_GEMMA4:
        *ret_n = BL_COUNTOF(gemma4_specials);
        return gemma4_specials;
    case SYN_QWEN:
        *ret_n = BL_COUNTOF(qwen_specials);
        return qwen_specials;
    case SYN_GPT_OSS:
        break;
    }
    *ret_n = BL_COUNTOF(gpt_oss_specials);
    return gpt_oss_specials;
}

/* Bytes have the ids from here on; 107 is above Gemma's markers. */
#define FIRST_BYTE 107u

/* The printable stand-ins of byte-level BPE: 68 bytes move to U+0100 and up. */
static uint32_t stand_in(uint32_t byte, uint32_t *n_moved) {
    bool stays = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return stays ? byte : 256 + (*n_moved)++;
}

bl_code syn_tokenizer(const syn_shape *s, bl_buf *ret, bl_err *err) {
    uint32_t n = 0, n_moved = 0;
    const special *sp = specials_of(s, &n);
    BL_TRY(bl_buf_append_str(
        ret, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [", err));
    for (uint32_t i = 0; i < n && sp[i].id < s->vocab; i++) {
        BL_TRY(bl_buf_printf(ret, err,
                             "%s{\"id\": %u, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                             "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                             i ? ",\n" : "", sp[i].id, sp[i].text));
    }
    BL_TRY(bl_buf_append_str(
        ret,
        "],\n\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null,\n\"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": "
        "true},\n\"model\": "
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], "
        "\"vocab\": {",
        err));
    for (uint32_t b = 0; b < 256; b++) {
        BL_TRY(bl_buf_printf(ret, err, "%s\"\\u%04x\": %u", b ? ", " : "", stand_in(b, &n_moved),
                             FIRST_BYTE + b));
    }
    for (uint32_t i = 0; i < n && sp[i].id < s->vocab; i++) {
        BL_TRY(bl_buf_printf(ret, err, ", \"%s\": %u", sp[i].text, sp[i].id));
    }
    return bl_buf_append_str(ret, "}}}\n", err);
}

bl_code syn_tokenizer_config(const syn_shape *s, bl_buf *ret, bl_err *err) {
    bool gemma = s->family == SYN_GEMMA3 || s->family == SYN_GEMMA4;
    return bl_buf_printf(
        ret, err,
        "{\"bos_token\": %s, \"eos_token\": %s, \"add_bos_token\": false,\n"
        "\"chat_template\": \"{%% for m in messages %%}{{ m['role'] }}: {{ m['content'] }}\\n"
        "{%% endfor %%}assistant:\"}\n",
        gemma ? "\"<bos>\"" : "null",
        gemma                   ? "\"<eos>\""
        : s->family == SYN_QWEN ? "\"<|im_end|>\""
                                : "\"<|return|>\"");
}
