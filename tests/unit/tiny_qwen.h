/* Small Qwen 3.5 checkpoints made on the spot: dense or with experts, in Hugging Face's or MLX's convention,
 * whole, without a draft head, or the head alone. A weight is a function of its tensor's name and place, so
 * two checkpoints of the same geometry share what they have in common; norms are 1 + k/128, exact in bf16 in
 * both conventions. Include in one file per test program, behind cmocka_all.h and scratch_folder.h.
 */
#ifndef BL_TESTS_UNIT_TINY_QWEN_H
#define BL_TESTS_UNIT_TINY_QWEN_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "formats/safetensors_writer.h"

enum { QWEN_TRUNK = 1, QWEN_HEAD = 2, QWEN_WHOLE = 3 };

typedef struct {
    uint32_t parts; /* QWEN_TRUNK, QWEN_HEAD, QWEN_WHOLE */
    bool moe, mlx;
    bool bare;                  /* the head's names lack "mtp.", and config.json is a head's */
    bool unrolled;              /* a tensor for each expert of the head */
    bool split;                 /* the head's experts as switch_mlp */
    bool sharded;               /* the trunk in shards of 100,000 bytes */
    bool own_shard;             /* the head in mtp-00001.safetensors */
    float norms;                /* added to the head's norms, on top of their convention */
    const char *without, *also; /* a tensor of the head left out; one more, a vector of the hidden width */
    const char *reshaped;       /* its first dimension is one more */
    uint32_t n_used;            /* experts per token; 0: 2 */
} tiny_qwen;

enum {
    QW_H = 64,
    QW_LAYERS = 4,
    QW_V = 96,
    QW_HEADS = 2,
    QW_KV = 1,
    QW_D = 64,
    QW_F = 128,
    QW_E = 4,
    QW_M = 64,
    QW_S = 64
};

typedef struct {
    bl_safetensors_writer *w;
    const tiny_qwen *q;
    bool writing; /* second pass: the same calls put what the first planned */
    uint32_t next;
    bool head;
    char root[64];
} qwen_out;

static void qwen_values(const char *seed_text, bool norm, float add, uint16_t *ret, size_t n) {
    uint64_t seed = 1469598103934665603u;
    for (const char *p = seed_text; *p; p++) {
        seed = (seed ^ (uint8_t)*p) * 1099511628211u;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t r = bl_rng_next(&seed);
        float v = norm ? (float)((int)(r >> 40 & 31) - 15) / 128.0f + add
                       : (float)((int)(r >> 40 & 255) - 127) / 512.0f;
        ret[i] = bl_f32_to_bf16(v);
    }
}

/* `from`: seed name and first element of the values, when this tensor is a part of another. */
static void qwen_tensor_of(qwen_out *o, const char *leaf, uint32_t n_dims, const uint64_t *want, bool norm,
                           const char *seed, size_t first) {
    char name[200];
    uint64_t dims[3] = {0}, n = 1;
    uint32_t id;
    if (o->head && o->q->without && strcmp(o->q->without, leaf) == 0) {
        return;
    }
    memcpy(dims, want, n_dims * sizeof *dims);
    dims[0] += o->head && o->q->reshaped && strcmp(o->q->reshaped, leaf) == 0;
    for (uint32_t i = 0; i < n_dims; i++) {
        n *= dims[i];
    }
    snprintf(name, sizeof name, "%s%s", o->root, leaf);
    if (!o->writing) {
        assert_int_equal(bl_safetensors_writer_plan(
                             o->w, name, BL_DTYPE_BF16, n_dims, dims,
                             o->head && o->q->own_shard ? "mtp-00001.safetensors" : NULL, &id, NULL),
                         BL_OK);
        return;
    }
    float add = o->q->mlx ? 1.0f : 0.0f;
    uint16_t *v = bl_alloc_array((size_t)n + first, sizeof *v);
    assert_non_null(v);
    qwen_values(seed, norm, o->head ? add + o->q->norms : add, v, (size_t)n + first);
    assert_int_equal(bl_safetensors_writer_put(o->w, o->next++, v + first, (size_t)n * sizeof *v, NULL),
                     BL_OK);
    bl_free(v);
}

static void qwen_tensor(qwen_out *o, const char *leaf, uint64_t a, uint64_t b, uint64_t c, bool norm) {
    const uint64_t dims[3] = {a, b, c};
    char seed[128];
    snprintf(seed, sizeof seed, "%s%s", o->head ? "mtp." : "", leaf);
    qwen_tensor_of(o, leaf, c ? 3 : b ? 2 : 1, dims, norm, seed, 0);
}

/* The head's experts in three forms of the same numbers. */
static void qwen_experts(qwen_out *o, const char *layer) {
    char leaf[96];
    static const char *const words[] = {"gate_proj", "up_proj"};
    bool unrolled = o->head && o->q->unrolled, split = o->head && o->q->split;
    if (!unrolled && !split) {
        snprintf(leaf, sizeof leaf, "%smlp.experts.gate_up_proj", layer);
        qwen_tensor_of(o, leaf, 3, (const uint64_t[]){QW_E, 2 * QW_M, QW_H}, false, "gate_up", 0);
        snprintf(leaf, sizeof leaf, "%smlp.experts.down_proj", layer);
        qwen_tensor_of(o, leaf, 3, (const uint64_t[]){QW_E, QW_H, QW_M}, false, "down", 0);
        return;
    }
    for (size_t e = 0; e < QW_E && unrolled; e++) {
        for (size_t half = 0; half < 2; half++) {
            snprintf(leaf, sizeof leaf, "%smlp.experts.%zu.%s.weight", layer, e, words[half]);
            qwen_tensor_of(o, leaf, 2, (const uint64_t[]){QW_M, QW_H}, false, "gate_up",
                           (2 * e + half) * QW_M * QW_H);
        }
        snprintf(leaf, sizeof leaf, "%smlp.experts.%zu.down_proj.weight", layer, e);
        qwen_tensor_of(o, leaf, 2, (const uint64_t[]){QW_H, QW_M}, false, "down", e * QW_H * QW_M);
    }
    if (split) { /* other numbers for gate and up: only its shapes are of interest */
        snprintf(leaf, sizeof leaf, "%smlp.switch_mlp.gate_proj.weight", layer);
        qwen_tensor(o, leaf, QW_E, QW_M, QW_H, false);
        snprintf(leaf, sizeof leaf, "%smlp.switch_mlp.up_proj.weight", layer);
        qwen_tensor(o, leaf, QW_E, QW_M, QW_H, false);
        snprintf(leaf, sizeof leaf, "%smlp.switch_mlp.down_proj.weight", layer);
        qwen_tensor_of(o, leaf, 3, (const uint64_t[]){QW_E, QW_H, QW_M}, false, "down", 0);
    }
}

typedef struct {
    const char *leaf;
    uint64_t a, b, c;
    bool norm;
} qwen_row;

static void qwen_rows(qwen_out *o, const char *layer, const qwen_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char leaf[96];
        bool conv = strcmp(rows[i].leaf, "linear_attn.conv1d.weight") == 0;
        snprintf(leaf, sizeof leaf, "%s%s", layer, rows[i].leaf);
        qwen_tensor(o, leaf, rows[i].a, conv && o->q->mlx ? 4 : rows[i].b, conv && o->q->mlx ? 1 : rows[i].c,
                    rows[i].norm);
    }
}

static void qwen_layer(qwen_out *o, const char *layer, bool linear) {
    static const qwen_row norms[] = {{"input_layernorm.weight", QW_H, 0, 0, true},
                                     {"post_attention_layernorm.weight", QW_H, 0, 0, true}};
    static const qwen_row attention[] = {{"self_attn.q_proj.weight", 2 * QW_HEADS * QW_D, QW_H, 0, false},
                                         {"self_attn.k_proj.weight", QW_KV * QW_D, QW_H, 0, false},
                                         {"self_attn.v_proj.weight", QW_KV * QW_D, QW_H, 0, false},
                                         {"self_attn.o_proj.weight", QW_H, QW_HEADS * QW_D, 0, false},
                                         {"self_attn.q_norm.weight", QW_D, 0, 0, true},
                                         {"self_attn.k_norm.weight", QW_D, 0, 0, true}};
    static const qwen_row delta[] = {{"linear_attn.in_proj_qkv.weight", 128, QW_H, 0, false},
                                     {"linear_attn.in_proj_z.weight", 64, QW_H, 0, false},
                                     {"linear_attn.in_proj_b.weight", 2, QW_H, 0, false},
                                     {"linear_attn.in_proj_a.weight", 2, QW_H, 0, false},
                                     {"linear_attn.conv1d.weight", 128, 1, 4, false},
                                     {"linear_attn.A_log", 2, 0, 0, false},
                                     {"linear_attn.dt_bias", 2, 0, 0, false},
                                     {"linear_attn.norm.weight", 32, 0, 0, false},
                                     {"linear_attn.out_proj.weight", QW_H, 64, 0, false}};
    static const qwen_row dense[] = {{"mlp.gate_proj.weight", QW_F, QW_H, 0, false},
                                     {"mlp.up_proj.weight", QW_F, QW_H, 0, false},
                                     {"mlp.down_proj.weight", QW_H, QW_F, 0, false}};
    static const qwen_row moe[] = {{"mlp.gate.weight", QW_E, QW_H, 0, false},
                                   {"mlp.shared_expert_gate.weight", 1, QW_H, 0, false},
                                   {"mlp.shared_expert.gate_proj.weight", QW_S, QW_H, 0, false},
                                   {"mlp.shared_expert.up_proj.weight", QW_S, QW_H, 0, false},
                                   {"mlp.shared_expert.down_proj.weight", QW_H, QW_S, 0, false}};
    qwen_rows(o, layer, norms, BL_COUNTOF(norms));
    if (linear) {
        qwen_rows(o, layer, delta, BL_COUNTOF(delta));
    } else {
        qwen_rows(o, layer, attention, BL_COUNTOF(attention));
    }
    if (!o->q->moe) {
        qwen_rows(o, layer, dense, BL_COUNTOF(dense));
        return;
    }
    qwen_rows(o, layer, moe, BL_COUNTOF(moe));
    qwen_experts(o, layer);
}

static void qwen_trunk(qwen_out *o) {
    o->head = false;
    snprintf(o->root, sizeof o->root, "%s", o->q->mlx ? "language_model.model." : "model.language_model.");
    qwen_tensor(o, "embed_tokens.weight", QW_V, QW_H, 0, false);
    qwen_tensor(o, "norm.weight", QW_H, 0, 0, true);
    for (uint32_t l = 0; l < QW_LAYERS; l++) {
        char layer[32];
        snprintf(layer, sizeof layer, "layers.%u.", l);
        qwen_layer(o, layer, l % 4 != 3);
    }
    snprintf(o->root, sizeof o->root, "%s", o->q->mlx ? "language_model." : "");
    qwen_tensor(o, "lm_head.weight", QW_V, QW_H, 0, false);
}

static void qwen_head(qwen_out *o) {
    o->head = true;
    snprintf(o->root, sizeof o->root, "%s", o->q->bare ? "" : "mtp.");
    qwen_tensor(o, "fc.weight", QW_H, 2 * QW_H, 0, false);
    qwen_tensor(o, "norm.weight", QW_H, 0, 0, true);
    qwen_tensor(o, "pre_fc_norm_embedding.weight", QW_H, 0, 0, true);
    qwen_tensor(o, "pre_fc_norm_hidden.weight", QW_H, 0, 0, true);
    qwen_layer(o, "layers.0.", false);
    if (o->q->also) {
        qwen_tensor(o, o->q->also, QW_H, 0, 0, true);
    }
}

static void qwen_all(qwen_out *o) {
    if (o->q->parts & QWEN_TRUNK) {
        qwen_trunk(o);
    }
    if (o->q->parts & QWEN_HEAD) {
        qwen_head(o);
    }
}

/* config.json; a whole checkpoint declares its head. Caller decrefs. */
static json_t *qwen_config(const tiny_qwen *q) {
    json_t *text = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:s, s:i, s:i, s:{s:f, s:s, s:f}}",
        "model_type", q->moe ? "qwen3_5_moe_text" : "qwen3_5_text", "hidden_size", QW_H, "num_hidden_layers",
        QW_LAYERS, "num_attention_heads", QW_HEADS, "num_key_value_heads", QW_KV, "head_dim", QW_D,
        "vocab_size", QW_V, "linear_num_key_heads", 1, "linear_num_value_heads", 2, "linear_key_head_dim", 32,
        "linear_value_head_dim", 32, "linear_conv_kernel_dim", 4, "rms_norm_eps", 1e-6, "hidden_act", "silu",
        "max_position_embeddings", 256, "full_attention_interval", 4, "rope_parameters", "rope_theta", 1e7,
        "rope_type", "default", "partial_rotary_factor", 0.25);
    if (q->moe) {
        json_object_set_new(text, "num_experts", json_integer(QW_E));
        json_object_set_new(text, "num_experts_per_tok", json_integer(q->n_used ? q->n_used : 2));
        json_object_set_new(text, "moe_intermediate_size", json_integer(QW_M));
        json_object_set_new(text, "shared_expert_intermediate_size", json_integer(QW_S));
    } else {
        json_object_set_new(text, "intermediate_size", json_integer(QW_F));
    }
    const char *type =
        q->bare ? (q->moe ? "qwen3_5_moe_mtp" : "qwen3_5_mtp") : (q->moe ? "qwen3_5_moe" : "qwen3_5");
    json_t *j = json_pack("{s:s, s:b, s:o, s:s, s:f, s:i}", "model_type", type, "tie_word_embeddings", 0,
                          "text_config", text, "zz_kept", "as it was", "a_real", 0.1, "eos_token_id", 7);
    if (q->parts == QWEN_WHOLE) {
        json_object_set_new(j, "mtplx_mtp", json_pack("{s:b}", "included", 1));
        json_object_set_new(j, "mtplx_mtp_quantization", json_object());
    }
    return j;
}

static void qwen_write_config(const char *dir, json_t *config) {
    char path[512], *text = json_dumps(config, JSON_INDENT(1));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(bl_file_write_atomic(path, text, strlen(text), NULL), BL_OK);
    free(text);
    json_decref(config);
}

/* dir: made here. */
static void qwen_write(const char *dir, const tiny_qwen *q) {
    qwen_out o = {.q = q};
    assert_int_equal(bl_file_make_dirs(dir, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_new(dir, q->sharded ? 100000 : (uint64_t)1 << 40, &o.w, NULL),
                     BL_OK);
    qwen_all(&o);
    assert_int_equal(bl_safetensors_writer_begin(o.w, NULL), BL_OK);
    o.writing = true;
    qwen_all(&o);
    assert_int_equal(bl_safetensors_writer_finish(o.w, NULL), BL_OK);
    bl_safetensors_writer_free(o.w);
    if (!q->sharded && !q->own_shard) { /* one file, as Hugging Face writes it */
        char path[512];
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
        assert_int_equal(remove(path), 0);
    }
    qwen_write_config(dir, qwen_config(q));
}

#endif
