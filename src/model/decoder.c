/* Config and names → matrices, vectors → op list, for decoder-only models (see decoder.h). */
#include "model/decoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "model/ops.h"
#include "model/tensors.h"

#define OPS_PER_LAYER  40u
#define OPS_OUTSIDE    40u
#define MATS_PER_LAYER 20u
#define MATS_OUTSIDE   6u
#define VECS_PER_LAYER 24u
#define VECS_OUTSIDE   8u
#define DELTA_EPS      1e-6f
#define LOCAL_ROPE_REF INT32_MIN /* refs.vec marks for the two rope tables, which are no tensors */
#define FULL_ROPE_REF  (INT32_MIN + 1)

const bl_decoder_names bl_decoder_gguf_names = {
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
};

typedef struct {
    bl_model *m;
    const bl_decoder_names *names;
    bl_tensor_finder f;
    bl_op_writer w;
    int32_t kv_of[BL_MODEL_MAX_LAYERS + 1]; /* KV layer of a layer that stores its own */
    bl_err *err;
} builder;

/* The tensors of one layer, as indices into matrices and vectors; -1: the layer has none. */
typedef struct {
    int32_t attn_norm, post_attn_norm, ffn_norm, post_ffn_norm, layer_scalar;
    int32_t q, k, v, o, attn_gate, bq, bk, bv, bo, q_norm, k_norm, sinks;
    int32_t delta[4], conv, delta_a, delta_dt, delta_norm, delta_out; /* delta: qkv, z, beta, decay */
    int32_t gate, up, down, bgate, bup, bdown;
    bl_expert_refs experts;
    int32_t router, brouter, router_scale, expert_scale, dense_post_norm, experts_norm, experts_post_norm;
    int32_t shared_gate, shared_up, shared_down, shared_router;
    int32_t ple_gate, ple_out, ple_post_norm;
} layer_refs;

/* Slots whose widths depend on a layer's shape. */
typedef struct {
    uint8_t q, k, v, attn;
} attn_slots;

/* ---- tensors ------------------------------------------------------------------------------------------- */

static bl_code matrix(builder *b, const char *leaf, uint32_t n_out, uint32_t k, int32_t *ret) {
    return bl_tensor_matrix(&b->f, leaf, n_out, k, NULL, 0, ret);
}

static bl_code vector(builder *b, const char *leaf, const char *suffix, uint32_t n, int32_t *ret) {
    return bl_tensor_vector(&b->f, &(bl_vector_spec){.leaf = leaf, .suffix = suffix, .n = n}, ret);
}

static bl_code norm(builder *b, const char *leaf, uint32_t n, int32_t *ret) {
    const bl_decoder_config *c = &b->m->cfg;
    bool plus_one = b->f.draft ? c->draft_norm_plus_one : c->norm_plus_one;
    return bl_tensor_vector(
        &b->f, &(bl_vector_spec){.leaf = leaf, .suffix = ".weight", .n = n, .add = plus_one ? 1.0f : 0.0f},
        ret);
}

/* A matrix whose rows are found by `map` among n_file, and its bias if there is one. */
static bl_code linear(builder *b, const char *leaf, uint32_t n_out, uint32_t k, const bl_row_map *map,
                      uint32_t n_file, bool bias, int32_t *ret_w, int32_t *ret_bias) {
    BL_TRY(bl_tensor_matrix(&b->f, leaf, n_out, k, map, n_file, ret_w));
    if (bias) {
        bl_vector_spec s = {.leaf = leaf, .suffix = ".bias", .n = n_out, .n_file = map ? n_file : 0};
        if (map) {
            s.map = *map;
        }
        BL_TRY(bl_tensor_vector(&b->f, &s, ret_bias));
    }
    return BL_OK;
}

static bl_code attention_tensors(builder *b, const bl_layer_config *l, bool shared, layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    uint32_t d = l->head_dim, nq = c->n_heads * d, nkv = l->n_kv_heads * d;
    bl_row_map pairs = {.paired = d}, query = {.block = d, .stride = 2 * d}, gate = query;
    gate.offset = d;
    const bl_row_map *map = c->paired_rows ? &pairs : NULL;
    if (c->attn_gate) {
        BL_TRY(linear(b, n->q, nq, c->hidden, &query, 2 * nq, c->attn_bias, &r->q, &r->bq));
        BL_TRY(bl_tensor_matrix(&b->f, n->q, nq, c->hidden, &gate, 2 * nq, &r->attn_gate));
    } else {
        BL_TRY(linear(b, n->q, nq, c->hidden, map, 0, c->attn_bias, &r->q, &r->bq));
    }
    if (!shared) {
        BL_TRY(linear(b, n->k, nkv, c->hidden, map, 0, c->attn_bias, &r->k, &r->bk));
        if (!l->values_are_keys) {
            BL_TRY(linear(b, n->v, nkv, c->hidden, NULL, 0, c->attn_bias, &r->v, &r->bv));
        }
    }
    if (c->qk_norm) {
        BL_TRY(norm(b, n->q_norm, d, &r->q_norm));
        if (!shared) {
            BL_TRY(norm(b, n->k_norm, d, &r->k_norm));
        }
    }
    BL_TRY(linear(b, n->o, c->hidden, nq, NULL, 0, c->attn_bias, &r->o, &r->bo));
    return c->sinks ? vector(b, n->sinks, "", c->n_heads, &r->sinks) : BL_OK;
}

static bl_code delta_tensors(builder *b, layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    uint32_t keys = c->delta_key_heads * c->delta_key_dim, values = c->delta_value_heads * c->delta_value_dim;
    uint32_t channels = 2 * keys + values;
    BL_TRY(matrix(b, n->delta_qkv, channels, c->hidden, &r->delta[0]));
    BL_TRY(matrix(b, n->delta_z, values, c->hidden, &r->delta[1]));
    BL_TRY(matrix(b, n->delta_beta, c->delta_value_heads, c->hidden, &r->delta[2]));
    BL_TRY(matrix(b, n->delta_decay, c->delta_value_heads, c->hidden, &r->delta[3]));
    bl_vector_spec conv = {.leaf = n->delta_conv,
                           .suffix = ".weight",
                           .n = channels * c->n_taps,
                           .n_first = channels,
                           .columns = c->n_taps};
    BL_TRY(bl_tensor_vector(&b->f, &conv, &r->conv));
    bl_vector_spec a = {
        .leaf = n->delta_a, .suffix = "", .n = c->delta_value_heads, .neg_exp = !c->decay_ready};
    BL_TRY(bl_tensor_vector(&b->f, &a, &r->delta_a));
    BL_TRY(vector(b, n->delta_dt, "", c->delta_value_heads, &r->delta_dt));
    BL_TRY(vector(b, n->delta_norm, ".weight", c->delta_value_dim, &r->delta_norm));
    return matrix(b, n->delta_out, c->hidden, values, &r->delta_out);
}

static bl_code expert_tensors(builder *b, layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    BL_TRY(linear(b, n->router, c->n_experts, c->hidden, NULL, 0, c->router_bias, &r->router, &r->brouter));
    if (n->router_scale) {
        bl_vector_spec s = {.leaf = n->router_scale,
                            .suffix = "",
                            .n = c->hidden,
                            .mul = (float)(1.0 / sqrt((double)c->hidden))};
        BL_TRY(bl_tensor_vector(&b->f, &s, &r->router_scale));
    }
    if (n->expert_scale) {
        BL_TRY(vector(b, n->expert_scale, "", c->n_experts, &r->expert_scale));
    }
    BL_TRY(bl_tensor_experts(&b->f, n->experts, c->hidden, c->expert_ffn, c->mlp_bias, &r->experts));
    if (c->experts == BL_EXPERTS_BESIDE) {
        BL_TRY(norm(b, n->dense_post_norm, c->hidden, &r->dense_post_norm));
        BL_TRY(norm(b, n->experts_norm, c->hidden, &r->experts_norm));
        BL_TRY(norm(b, n->experts_post_norm, c->hidden, &r->experts_post_norm));
    }
    if (c->shared_ffn > 0) {
        BL_TRY(matrix(b, n->shared_gate, c->shared_ffn, c->hidden, &r->shared_gate));
        BL_TRY(matrix(b, n->shared_up, c->shared_ffn, c->hidden, &r->shared_up));
        BL_TRY(matrix(b, n->shared_down, c->hidden, c->shared_ffn, &r->shared_down));
        BL_TRY(matrix(b, n->shared_router, 1, c->hidden, &r->shared_router));
    }
    return BL_OK;
}

static bl_code layer_tensors(builder *b, uint32_t i, layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    const bl_layer_config *l = &c->layer[i];
    memset(r, 0xff, sizeof *r); /* all -1 */
    BL_TRY(norm(b, n->attn_norm, c->hidden, &r->attn_norm));
    BL_TRY(l->mixer == BL_MIX_DELTA ? delta_tensors(b, r)
                                    : attention_tensors(b, l, l->kv_from != (int32_t)i, r));
    if (c->post_norms) {
        BL_TRY(norm(b, n->post_attn_norm, c->hidden, &r->post_attn_norm));
    }
    BL_TRY(norm(b, n->ffn_norm, c->hidden, &r->ffn_norm));
    if (l->ffn > 0) {
        BL_TRY(linear(b, n->gate, l->ffn, c->hidden, NULL, 0, c->mlp_bias, &r->gate, &r->bgate));
        BL_TRY(linear(b, n->up, l->ffn, c->hidden, NULL, 0, c->mlp_bias, &r->up, &r->bup));
        BL_TRY(linear(b, n->down, c->hidden, l->ffn, NULL, 0, c->mlp_bias, &r->down, &r->bdown));
    }
    if (c->n_experts > 0) {
        BL_TRY(expert_tensors(b, r));
    }
    if (c->post_norms) {
        BL_TRY(norm(b, n->post_ffn_norm, c->hidden, &r->post_ffn_norm));
    }
    if (c->ple > 0) {
        BL_TRY(matrix(b, n->ple_gate, c->ple, c->hidden, &r->ple_gate));
        BL_TRY(matrix(b, n->ple_out, c->hidden, c->ple, &r->ple_out));
        BL_TRY(norm(b, n->ple_post_norm, c->hidden, &r->ple_post_norm));
    }
    return c->layer_scalar ? vector(b, n->layer_scalar, "", 1, &r->layer_scalar) : BL_OK;
}

/* ---- slots --------------------------------------------------------------------------------------------- */

/* A slot has one width in the whole list. */
static bl_code use_slot(builder *b, uint8_t slot, uint32_t width) {
    uint32_t *w = &b->m->widths[slot];
    if (*w != 0 && *w != width) {
        BL_FAIL(b->err, BL_ENOTSUP, "layers of more than two shapes (widths %u and %u) are not supported", *w,
                width);
    }
    *w = width;
    return BL_OK;
}

static bl_code use_attn_slots(builder *b, const bl_layer_config *l, attn_slots *ret) {
    const bl_decoder_config *c = &b->m->cfg;
    static const attn_slots common = {BL_SLOT_Q, BL_SLOT_K, BL_SLOT_V, BL_SLOT_ATTN},
                            other = {BL_SLOT_Q2, BL_SLOT_K2, BL_SLOT_V2, BL_SLOT_ATTN2};
    *ret = l->head_dim == c->head_dim && l->n_kv_heads == c->n_kv_heads ? common : other;
    BL_TRY(use_slot(b, ret->q, c->n_heads * l->head_dim));
    BL_TRY(use_slot(b, ret->attn, c->n_heads * l->head_dim));
    BL_TRY(use_slot(b, ret->k, l->n_kv_heads * l->head_dim));
    BL_TRY(use_slot(b, ret->v, l->n_kv_heads * l->head_dim));
    return c->attn_gate ? use_slot(b, BL_SLOT_ATTN_GATE, c->n_heads * l->head_dim) : BL_OK;
}

/* ---- ops of a layer ------------------------------------------------------------------------------------ */

static void rope(builder *b, const char *label, bool local, uint8_t x, uint32_t n_heads, uint32_t head_dim) {
    uint8_t table = local ? BL_SLOT_ROPE_LOCAL : BL_SLOT_ROPE;
    bl_op *op = bl_op_add(&b->w, BL_OP_ROPE, label, table, BL_SLOT_NONE, x);
    op->n_heads = n_heads;
    op->head_dim = head_dim;
    op->n_rot = b->m->widths[table];
}

/* Keys and values of this layer's own, after their norms and turned, into its KV layer. */
static void store_kv(builder *b, const layer_refs *r, const bl_layer_config *l, const attn_slots *s,
                     uint32_t kv_layer) {
    const bl_decoder_config *c = &b->m->cfg;
    if (l->values_are_keys) {
        bl_op_norm(&b->w, "v_norm", s->k, s->v, l->head_dim, -1);
    } else if (c->v_norm) {
        bl_op_norm(&b->w, "v_norm", s->v, s->v, l->head_dim, -1);
    }
    if (c->qk_norm) {
        bl_op_norm(&b->w, "k_norm", s->k, s->k, l->head_dim, r->k_norm);
    }
    rope(b, "rope_k", l->sliding, s->k, l->n_kv_heads, l->head_dim);
    bl_op *store = bl_op_add(&b->w, BL_OP_KV_STORE, "kv_store", s->k, s->v, BL_SLOT_NONE);
    store->rows = BL_ROWS_ALL;
    store->n_kv_heads = l->n_kv_heads;
    store->head_dim = l->head_dim;
    store->kv_layer = kv_layer;
}

static void project_qkv(builder *b, const layer_refs *r, const attn_slots *s) {
    uint8_t outs[BL_OP_MAX_W];
    int32_t mats[BL_OP_MAX_W], bias[BL_OP_MAX_W];
    const struct {
        int32_t w, bias;
        uint8_t out;
    } parts[] = {
        {r->q, r->bq, s->q}, {r->k, r->bk, s->k}, {r->v, r->bv, s->v}, {r->attn_gate, -1, BL_SLOT_ATTN_GATE}};
    uint32_t n = 0;
    for (size_t i = 0; i < BL_COUNTOF(parts); i++) {
        if (parts[i].w >= 0) {
            outs[n] = parts[i].out;
            mats[n] = parts[i].w;
            bias[n++] = parts[i].bias;
        }
    }
    bl_op_matmul(&b->w, "attn_qkv", BL_SLOT_H, n, outs, mats, bias);
}

static bl_code attention_ops(builder *b, uint32_t i, const layer_refs *r) {
    bl_model *m = b->m;
    const bl_decoder_config *c = &m->cfg;
    const bl_layer_config *l = &c->layer[i];
    bool own = l->kv_from == (int32_t)i;
    attn_slots s;
    BL_TRY(use_attn_slots(b, l, &s));
    if (own) {
        b->kv_of[i] = (int32_t)m->n_kv;
        m->kv[m->n_kv++] = (bl_kv_layer){l->n_kv_heads, l->head_dim, l->sliding ? c->window : 0};
    }
    uint32_t kv_layer = (uint32_t)b->kv_of[l->kv_from];
    project_qkv(b, r, &s);
    if (c->qk_norm) {
        bl_op_norm(&b->w, "q_norm", s.q, s.q, l->head_dim, r->q_norm);
    }
    rope(b, "rope_q", l->sliding, s.q, c->n_heads, l->head_dim);
    if (own) {
        store_kv(b, r, l, &s, kv_layer);
        *(b->f.draft ? &m->draft_stored_op : &m->stored_op) = b->w.n; /* the last one's stays */
    }
    bl_op *op = bl_op_add(&b->w, BL_OP_ATTENTION, l->sliding ? "attention_window" : "attention", s.q,
                          BL_SLOT_NONE, s.attn);
    op->n_heads = c->n_heads;
    op->n_kv_heads = l->n_kv_heads;
    op->head_dim = l->head_dim;
    op->kv_layer = kv_layer;
    op->window = l->sliding ? c->window : 0;
    op->scale = c->attn_scale;
    bl_op_last_refs(&b->w)->vec = r->sinks;
    if (c->attn_gate) {
        bl_op_add(&b->w, BL_OP_GLU, "attn_gate", BL_SLOT_ATTN_GATE, s.attn, s.attn)->act = BL_GLU_SIGMOID;
    }
    bl_op_matmul(&b->w, "attn_out", s.attn, 1, (const uint8_t[]){BL_SLOT_H}, &r->o, &r->bo);
    return BL_OK;
}

static bl_code delta_ops(builder *b, const layer_refs *r) {
    bl_model *m = b->m;
    const bl_decoder_config *c = &m->cfg;
    uint32_t values = c->delta_value_heads * c->delta_value_dim;
    uint32_t channels = 2 * c->delta_key_heads * c->delta_key_dim + values;
    BL_TRY(use_slot(b, BL_SLOT_DELTA_RAW, channels));
    BL_TRY(use_slot(b, BL_SLOT_DELTA_QKV, channels));
    BL_TRY(use_slot(b, BL_SLOT_DELTA_Z, values));
    BL_TRY(use_slot(b, BL_SLOT_DELTA_OUT, values));
    BL_TRY(use_slot(b, BL_SLOT_DELTA_BETA, c->delta_value_heads));
    BL_TRY(use_slot(b, BL_SLOT_DELTA_DECAY, c->delta_value_heads));
    bl_op_matmul(
        &b->w, "delta_in", BL_SLOT_H, 4,
        (const uint8_t[]){BL_SLOT_DELTA_RAW, BL_SLOT_DELTA_Z, BL_SLOT_DELTA_BETA, BL_SLOT_DELTA_DECAY},
        r->delta, NULL);
    uint32_t state = m->n_states++;
    m->states[state].n_floats = (uint32_t)bl_state_floats(c->n_taps, channels, c->delta_value_heads,
                                                          c->delta_key_dim, c->delta_value_dim);
    bl_op *op =
        bl_op_add(&b->w, BL_OP_CONV, "delta_conv", BL_SLOT_DELTA_RAW, BL_SLOT_NONE, BL_SLOT_DELTA_QKV);
    op->n_taps = c->n_taps;
    op->state_layer = state;
    bl_op_last_refs(&b->w)->vec = r->conv;
    op =
        bl_op_add(&b->w, BL_OP_DELTA, "delta_rule", BL_SLOT_DELTA_QKV, BL_SLOT_DELTA_BETA, BL_SLOT_DELTA_OUT);
    op->in2 = BL_SLOT_DELTA_DECAY;
    op->n_taps = c->n_taps;
    op->state_layer = state;
    op->n_heads = c->delta_value_heads;
    op->n_kv_heads = c->delta_key_heads;
    op->dim = c->delta_key_dim;
    op->head_dim = c->delta_value_dim;
    op->heads = c->delta_heads;
    op->eps = DELTA_EPS;
    bl_op_last_refs(&b->w)->vec = r->delta_a;
    bl_op_last_refs(&b->w)->bias[0] = r->delta_dt;
    m->stored_op = b->w.n;
    bl_op_norm(&b->w, "delta_norm", BL_SLOT_DELTA_OUT, BL_SLOT_DELTA_OUT, c->delta_value_dim, r->delta_norm);
    bl_op_add(&b->w, BL_OP_GLU, "delta_gate", BL_SLOT_DELTA_Z, BL_SLOT_DELTA_OUT, BL_SLOT_DELTA_OUT)->act =
        BL_GLU_SILU;
    bl_op_matmul(&b->w, "delta_out", BL_SLOT_DELTA_OUT, 1, (const uint8_t[]){BL_SLOT_H}, &r->delta_out, NULL);
    return BL_OK;
}

/* out = down(act(gate in) * up in) */
static bl_code mlp_ops(builder *b, const char *const label[3], uint8_t in, uint8_t out, uint32_t width,
                       bool other, const int32_t w[3], const int32_t bias[3]) {
    const bl_decoder_config *c = &b->m->cfg;
    uint8_t gate = other ? BL_SLOT_GATE2 : BL_SLOT_GATE, up = other ? BL_SLOT_UP2 : BL_SLOT_UP;
    BL_TRY(use_slot(b, gate, width));
    BL_TRY(use_slot(b, up, width));
    bl_op_matmul(&b->w, label[0], in, 2, (const uint8_t[]){gate, up}, w, bias);
    bl_op *glu = bl_op_add(&b->w, BL_OP_GLU, label[1], gate, up, gate);
    glu->act = c->act;
    glu->cap = c->glu_limit;
    bl_op_matmul(&b->w, label[2], gate, 1, (const uint8_t[]){out}, w + 2, bias + 2);
    return BL_OK;
}

static bl_code dense_ops(builder *b, const bl_layer_config *l, const layer_refs *r) {
    static const char *const labels[3] = {"ffn_gate_up", "ffn_glu", "ffn_down"};
    bl_op_norm(&b->w, "ffn_norm", BL_SLOT_X, BL_SLOT_H, b->m->cfg.hidden, r->ffn_norm);
    return mlp_ops(b, labels, BL_SLOT_H, BL_SLOT_H, l->ffn, l->ffn != b->m->cfg.ffn,
                   (const int32_t[]){r->gate, r->up, r->down}, (const int32_t[]){r->bgate, r->bup, r->bdown});
}

/* Router logits of router_in, then the experts of experts_in. */
static bl_code route_ops(builder *b, uint8_t in, const layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    BL_TRY(use_slot(b, BL_SLOT_ROUTER, c->n_experts));
    BL_TRY(use_slot(b, BL_SLOT_ROUTES, 2 * c->n_used));
    bl_op_matmul(&b->w, "router", in, 1, (const uint8_t[]){BL_SLOT_ROUTER}, &r->router, &r->brouter);
    bl_op *op = bl_op_add(&b->w, BL_OP_ROUTE, "route", BL_SLOT_ROUTER, BL_SLOT_NONE, BL_SLOT_ROUTES);
    op->n_used = c->n_used;
    bl_op_last_refs(&b->w)->vec = r->expert_scale;
    return BL_OK;
}

static bl_code experts_op(builder *b, uint8_t in, const layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    BL_TRY(use_slot(b, BL_SLOT_EXPERTS_OUT, c->hidden));
    bl_op *op = bl_op_add(&b->w, BL_OP_EXPERTS, "experts", in, BL_SLOT_ROUTES, BL_SLOT_EXPERTS_OUT);
    op->n_w = 3;
    op->n_experts = c->n_experts;
    op->n_used = c->n_used;
    op->act = c->act;
    op->cap = c->glu_limit;
    memcpy(bl_op_last_refs(&b->w)->w, r->experts.w, sizeof r->experts.w);
    memcpy(bl_op_last_refs(&b->w)->bias, r->experts.bias, sizeof r->experts.bias);
    return BL_OK;
}

static bl_code experts_alone_ops(builder *b, const layer_refs *r) {
    static const char *const labels[3] = {"shared_gate_up", "shared_glu", "shared_down"};
    const bl_decoder_config *c = &b->m->cfg;
    bl_op_norm(&b->w, "ffn_norm", BL_SLOT_X, BL_SLOT_H, c->hidden, r->ffn_norm);
    BL_TRY(route_ops(b, BL_SLOT_H, r));
    BL_TRY(experts_op(b, BL_SLOT_H, r));
    if (c->shared_ffn > 0) {
        BL_TRY(use_slot(b, BL_SLOT_SHARED_GATE, 1));
        BL_TRY(use_slot(b, BL_SLOT_SHARED_OUT, c->hidden));
        bl_op_matmul(&b->w, "shared_router", BL_SLOT_H, 1, (const uint8_t[]){BL_SLOT_SHARED_GATE},
                     &r->shared_router, NULL);
        BL_TRY(mlp_ops(b, labels, BL_SLOT_H, BL_SLOT_SHARED_OUT, c->shared_ffn, false,
                       (const int32_t[]){r->shared_gate, r->shared_up, r->shared_down},
                       (const int32_t[]){-1, -1, -1}));
        bl_op_add(&b->w, BL_OP_ADD_GATED, "shared_add", BL_SLOT_SHARED_OUT, BL_SLOT_SHARED_GATE,
                  BL_SLOT_EXPERTS_OUT);
    }
    bl_op_residual(&b->w, "ffn_residual", BL_SLOT_EXPERTS_OUT, r->post_ffn_norm);
    return BL_OK;
}

/* Dense MLP and experts read the same stream through norms of their own; so does the router. */
static bl_code experts_beside_ops(builder *b, const bl_layer_config *l, const layer_refs *r) {
    uint32_t hidden = b->m->cfg.hidden;
    BL_TRY(dense_ops(b, l, r));
    bl_op_norm(&b->w, "ffn_dense_norm", BL_SLOT_H, BL_SLOT_H, hidden, r->dense_post_norm);
    BL_TRY(use_slot(b, BL_SLOT_EXPERTS_IN, hidden));
    bl_op_norm(&b->w, "router_norm", BL_SLOT_X, BL_SLOT_EXPERTS_IN, hidden, r->router_scale);
    BL_TRY(route_ops(b, BL_SLOT_EXPERTS_IN, r));
    bl_op_norm(&b->w, "experts_norm", BL_SLOT_X, BL_SLOT_EXPERTS_IN, hidden, r->experts_norm);
    BL_TRY(experts_op(b, BL_SLOT_EXPERTS_IN, r));
    bl_op_norm(&b->w, "experts_out_norm", BL_SLOT_EXPERTS_OUT, BL_SLOT_EXPERTS_OUT, hidden,
               r->experts_post_norm);
    bl_op_add(&b->w, BL_OP_ADD, "ffn_add", BL_SLOT_H, BL_SLOT_EXPERTS_OUT, BL_SLOT_H);
    bl_op_residual(&b->w, "ffn_residual", BL_SLOT_H, r->post_ffn_norm);
    return BL_OK;
}

static bl_code ple_ops(builder *b, uint32_t i, const layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    BL_TRY(use_slot(b, BL_SLOT_PLE_GATE, c->ple));
    bl_op_matmul(&b->w, "ple_gate", BL_SLOT_X, 1, (const uint8_t[]){BL_SLOT_PLE_GATE}, &r->ple_gate, NULL);
    bl_op *glu = bl_op_add(&b->w, BL_OP_GLU, "ple_glu", BL_SLOT_PLE_GATE, BL_SLOT_PLE, BL_SLOT_PLE_GATE);
    glu->act = c->act;
    glu->in1_at = i * c->ple;
    bl_op_matmul(&b->w, "ple_out", BL_SLOT_PLE_GATE, 1, (const uint8_t[]){BL_SLOT_H}, &r->ple_out, NULL);
    bl_op_residual(&b->w, "ple_residual", BL_SLOT_H, r->ple_post_norm);
    return BL_OK;
}

static bl_code add_layer(builder *b, uint32_t i, const char *prefix) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_layer_config *l = &c->layer[i];
    layer_refs r;
    snprintf(b->f.prefix, sizeof b->f.prefix, "%s", prefix);
    b->w.layer = (int32_t)i;
    BL_TRY(layer_tensors(b, i, &r));
    bl_op_norm(&b->w, "attn_norm", BL_SLOT_X, BL_SLOT_H, c->hidden, r.attn_norm);
    BL_TRY(l->mixer == BL_MIX_DELTA ? delta_ops(b, &r) : attention_ops(b, i, &r));
    bl_op_residual(&b->w, "attn_residual", BL_SLOT_H, r.post_attn_norm);
    if (c->n_experts == 0) {
        BL_TRY(dense_ops(b, l, &r));
        bl_op_residual(&b->w, "ffn_residual", BL_SLOT_H, r.post_ffn_norm);
    } else {
        BL_TRY(c->experts == BL_EXPERTS_BESIDE ? experts_beside_ops(b, l, &r) : experts_alone_ops(b, &r));
    }
    if (c->ple > 0) {
        BL_TRY(ple_ops(b, i, &r));
    }
    if (r.layer_scalar >= 0) {
        bl_op_add(&b->w, BL_OP_SCALE, "layer_scalar", BL_SLOT_X, BL_SLOT_NONE, BL_SLOT_X);
        bl_op_last_refs(&b->w)->vec = r.layer_scalar;
    }
    return BL_OK;
}

/* ---- entry and exit ------------------------------------------------------------------------------------ */

static void rope_tables(builder *b) {
    const bl_model *m = b->m;
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t slot = i == 0 ? BL_SLOT_ROPE : BL_SLOT_ROPE_LOCAL;
        if (m->widths[slot] == 0) {
            continue;
        }
        bl_op *op = bl_op_add(&b->w, BL_OP_ROPE_TABLE, "rope_table", BL_SLOT_NONE, BL_SLOT_NONE, slot);
        op->n_rot = m->widths[slot];
        op->scale = (float)(i == 0 ? m->cfg.rope.table_scale : m->cfg.rope_local.table_scale);
        bl_op_last_refs(&b->w)->vec = i == 0 ? FULL_ROPE_REF : LOCAL_ROPE_REF;
    }
}

static void embed_op(builder *b, const char *label, int32_t mat, uint8_t out, float scale) {
    bl_op *op = bl_op_add(&b->w, BL_OP_EMBED, label, BL_SLOT_NONE, BL_SLOT_NONE, out);
    op->scale = scale;
    op->n_w = 1;
    bl_op_last_refs(&b->w)->w[0] = mat;
}

static bl_code ple_entry(builder *b) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    uint32_t width = c->n_layers * c->ple;
    int32_t embed, proj, norm_vec;
    BL_TRY(matrix(b, n->ple_embed, c->n_vocab, width, &embed));
    BL_TRY(matrix(b, n->ple_proj, width, c->hidden, &proj));
    BL_TRY(norm(b, n->ple_norm, c->ple, &norm_vec));
    BL_TRY(use_slot(b, BL_SLOT_PLE, width));
    BL_TRY(use_slot(b, BL_SLOT_PLE_EMBED, width));
    embed_op(b, "ple_embed", embed, BL_SLOT_PLE_EMBED, sqrtf((float)c->ple));
    bl_op_matmul(&b->w, "ple_proj", BL_SLOT_X, 1, (const uint8_t[]){BL_SLOT_PLE}, &proj, NULL);
    bl_op_add(&b->w, BL_OP_SCALE, "ple_scale", BL_SLOT_PLE, BL_SLOT_NONE, BL_SLOT_PLE)->scale =
        (float)(1.0 / sqrt((double)c->hidden));
    bl_op_norm(&b->w, "ple_norm", BL_SLOT_PLE, BL_SLOT_PLE, c->ple, norm_vec);
    bl_op_add(&b->w, BL_OP_ADD, "ple_add", BL_SLOT_PLE, BL_SLOT_PLE_EMBED, BL_SLOT_PLE);
    bl_op_add(&b->w, BL_OP_SCALE, "ple_scale", BL_SLOT_PLE, BL_SLOT_NONE, BL_SLOT_PLE)->scale =
        (float)(1.0 / sqrt(2.0));
    return BL_OK;
}

static void head_ops(builder *b, int32_t head) {
    bl_op_matmul(&b->w, "head", BL_SLOT_OUT_X, 1, (const uint8_t[]){BL_SLOT_LOGITS}, &head, NULL);
    if (b->m->cfg.final_softcap > 0.0f) {
        bl_op_add(&b->w, BL_OP_SOFTCAP, "softcap", BL_SLOT_NONE, BL_SLOT_NONE, BL_SLOT_LOGITS)->cap =
            b->m->cfg.final_softcap;
    }
}

/* ---- draft head (spec models.md §5) -------------------------------------------------------------------- */

static bl_code draft_tensors(builder *b, int32_t norms[3], int32_t *join) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    BL_TRY(norm(b, n->draft_embed_norm, c->hidden, &norms[0]));
    BL_TRY(norm(b, n->draft_hidden_norm, c->hidden, &norms[1]));
    BL_TRY(norm(b, n->draft_norm, c->hidden, &norms[2]));
    return matrix(b, n->draft_join, c->hidden, 2 * c->hidden, join);
}

static bl_code add_draft(builder *b, int32_t embed, int32_t final_norm, int32_t head) {
    bl_model *m = b->m;
    const bl_decoder_config *c = &m->cfg;
    char prefix[32] = "";
    int32_t norms[3], join;
    if (bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_GGUF) { /* a block like the others, with more in it */
        snprintf(prefix, sizeof prefix, "%s%u.", b->names->draft_layer, c->n_layers);
    }
    b->f.draft = true;
    b->f.root = b->names->draft_root;
    snprintf(b->f.prefix, sizeof b->f.prefix, "%s", prefix);
    BL_TRY(draft_tensors(b, norms, &join));
    BL_TRY(use_slot(b, BL_SLOT_HIDDEN, c->hidden));
    BL_TRY(use_slot(b, BL_SLOT_DRAFT_PAIR, 2 * c->hidden));
    m->draft_state = m->n_states++;
    m->states[m->draft_state].n_floats = (uint32_t)bl_slot_stride(c->hidden);
    bl_op_norm(&b->w, "hidden_norm", BL_SLOT_X, BL_SLOT_HIDDEN, c->hidden, final_norm);
    m->draft_op = b->w.n;
    rope_tables(b);
    embed_op(b, "draft_embed", embed, BL_SLOT_X, c->embed_scale);
    bl_op_norm(&b->w, "draft_embed_norm", BL_SLOT_X, BL_SLOT_X, c->hidden, norms[0]);
    bl_op_norm(&b->w, "draft_hidden_norm", BL_SLOT_HIDDEN, BL_SLOT_H, c->hidden, norms[1]);
    bl_op_add(&b->w, BL_OP_CONCAT, "draft_pair", BL_SLOT_X, BL_SLOT_H, BL_SLOT_DRAFT_PAIR);
    bl_op_matmul(&b->w, "draft_join", BL_SLOT_DRAFT_PAIR, 1, (const uint8_t[]){BL_SLOT_X}, &join, NULL);
    BL_TRY(add_layer(b, c->n_layers, prefix[0] != '\0' ? prefix : b->names->draft_layer));
    b->w.layer = -1;
    bl_op_norm(&b->w, "draft_norm", BL_SLOT_X, BL_SLOT_HIDDEN, c->hidden, norms[2]);
    m->draft_select_op = b->w.n;
    bl_op_add(&b->w, BL_OP_SELECT, "draft_select", BL_SLOT_HIDDEN, BL_SLOT_NONE, BL_SLOT_OUT_X);
    head_ops(b, head);
    m->n_all_ops = b->w.n;
    return BL_OK;
}

/* A head that cannot be used leaves the model as it was, with the reason. */
static void try_draft(builder *b, int32_t embed, int32_t final_norm, int32_t head) {
    bl_model *m = b->m, before = *m;
    bl_err err = {0}, *outer = b->err;
    m->hidden_op = b->w.n;
    b->err = b->f.err = &err;
    if (m->cfg.draft_refused[0] == '\0' && add_draft(b, embed, final_norm, head) != BL_OK) {
        before.cfg = m->cfg;
        *m = before;
        snprintf(m->cfg.draft_refused, sizeof m->cfg.draft_refused, "%s", err.msg);
    }
    b->err = b->f.err = outer;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* Slots that ops behind stored_op read before they write them. */
static void find_live(bl_model *m) {
    bool written[BL_SLOT__MAX] = {false}, live[BL_SLOT__MAX] = {false};
    for (size_t i = m->stored_op; i < m->n_ops; i++) {
        const bl_op *op = &m->ops[i];
        const uint8_t ins[] = {op->in0, op->in1, op->in2,
                               op->kind == BL_OP_ADD_GATED || op->kind == BL_OP_ROPE ? op->out[0]
                                                                                     : (uint8_t)BL_SLOT_NONE};
        for (size_t k = 0; k < BL_COUNTOF(ins); k++) {
            if (ins[k] != BL_SLOT_NONE && !bl_slot_is_out(ins[k]) && !written[ins[k]] && !live[ins[k]]) {
                live[ins[k]] = true;
                m->live[m->n_live++] = ins[k];
            }
        }
        for (size_t k = 0; k < BL_OP_MAX_W; k++) {
            if (op->out[k] != BL_SLOT_NONE) {
                written[op->out[k]] = true;
            }
        }
    }
}

static bl_code alloc_tables(bl_model *m, bl_err *err) {
    size_t n = m->cfg.n_layers + 1u; /* the draft head's layer is one more */
    void *p;
    BL_TRY(bl_arena_alloc_array(m->arena, n * MATS_PER_LAYER + MATS_OUTSIDE, sizeof *m->matrices, &p, err));
    m->matrices = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n * VECS_PER_LAYER + VECS_OUTSIDE, sizeof *m->vectors, &p, err));
    m->vectors = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n * OPS_PER_LAYER + OPS_OUTSIDE, sizeof *m->ops, &p, err));
    m->ops = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n * OPS_PER_LAYER + OPS_OUTSIDE, sizeof *m->refs, &p, err));
    m->refs = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n, sizeof *m->kv, &p, err));
    m->kv = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n, sizeof *m->states, &p, err));
    m->states = p;
    return BL_OK;
}

/* Widths of the tables of angles: what turns of a head, in full and in sliding layers. */
static bl_code make_ropes(builder *b) {
    bl_model *m = b->m;
    const bl_decoder_config *c = &m->cfg;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const bl_layer_config *l = &c->layer[i];
        const bl_rope_config *r = l->sliding ? &c->rope_local : &c->rope;
        if (l->mixer == BL_MIX_ATTENTION) {
            BL_TRY(use_slot(b, l->sliding ? BL_SLOT_ROPE_LOCAL : BL_SLOT_ROPE,
                            r->n_rot > 0 ? r->n_rot : l->head_dim));
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n_rot = m->widths[i == 0 ? BL_SLOT_ROPE : BL_SLOT_ROPE_LOCAL];
        void *p;
        BL_TRY(bl_arena_alloc_array(m->arena, BL_MAX(n_rot / 2, 1u), sizeof *m->inv_freq, &p, b->err));
        bl_rope_inv_freq(i == 0 ? &c->rope : &c->rope_local, n_rot, p);
        *(i == 0 ? &m->inv_freq : &m->inv_freq_local) = p;
    }
    return BL_OK;
}

/* Hugging Face folders put the text model under different roots; the embedding tells which. */
static const char *find_root(const bl_checkpoint *c, const bl_decoder_names *names) {
    static const char *const roots[] = {"model.language_model.", "language_model.model.", "language_model.",
                                        "model.", ""};
    char name[BL_TENSOR_NAME_MAX];
    for (size_t i = 0; i < BL_COUNTOF(roots); i++) {
        snprintf(name, sizeof name, "%s%s.weight", roots[i], names->embed);
        if (bl_checkpoint_find(c, name)) {
            return roots[i];
        }
    }
    return bl_checkpoint_kind_of(c) == BL_CKPT_GGUF ? "" : "model.";
}

static bl_code head_matrix(builder *b, int32_t embed, int32_t *ret) {
    static const char *const roots[] = {"", "language_model.", "model.language_model.", "model."};
    const bl_decoder_config *c = &b->m->cfg;
    *ret = embed;
    if (c->tied) {
        return BL_OK;
    }
    bl_tensor_finder f = b->f;
    for (size_t i = 0; i < BL_COUNTOF(roots); i++) {
        f.root = roots[i];
        if (bl_tensor_find(&f, b->names->head, ".weight")) {
            break;
        }
        f.root = "";
    }
    return bl_tensor_matrix(&f, b->names->head, c->n_vocab, c->hidden, NULL, 0, ret);
}

/* The reference multiplies in the checkpoint's own type, so training saw the rounded factor (spec §2.3, §3).
 */
static void round_embed_scale(bl_model *m, const bl_model_matrix *embed, bl_activations activations) {
    bool bf16 = embed->desc.dtype == BL_DTYPE_BF16 ||
                (embed->desc.scales && embed->desc.scale_dtype == BL_DTYPE_BF16);
    if (bf16 && bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_HF && activations != BL_ACTIVATIONS_F32) {
        m->cfg.embed_scale = bl_bf16_to_f32(bl_f32_to_bf16(m->cfg.embed_scale));
    }
}

static bl_code build_trunk(builder *b, bl_activations activations, int32_t *embed, int32_t *final_norm,
                           int32_t *head) {
    bl_model *m = b->m;
    const bl_decoder_config *c = &m->cfg;
    BL_TRY(use_slot(b, BL_SLOT_X, c->hidden));
    BL_TRY(use_slot(b, BL_SLOT_H, c->hidden));
    BL_TRY(use_slot(b, BL_SLOT_OUT_X, c->hidden));
    BL_TRY(use_slot(b, BL_SLOT_LOGITS, c->n_vocab));
    BL_TRY(make_ropes(b));
    BL_TRY(matrix(b, b->names->embed, c->n_vocab, c->hidden, embed));
    round_embed_scale(m, &m->matrices[*embed], activations);
    BL_TRY(head_matrix(b, *embed, head));
    embed_op(b, "embed", *embed, BL_SLOT_X, c->embed_scale);
    if (c->ple > 0) {
        BL_TRY(ple_entry(b));
    }
    rope_tables(b);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s%u.", b->names->layer, i);
        BL_TRY(add_layer(b, i, prefix));
    }
    b->f.prefix[0] = '\0';
    b->w.layer = -1;
    BL_TRY(norm(b, b->names->final_norm, c->hidden, final_norm));
    m->select_op = b->w.n;
    bl_op_add(&b->w, BL_OP_SELECT, "select", BL_SLOT_X, BL_SLOT_NONE, BL_SLOT_OUT_X);
    bl_op_norm(&b->w, "final_norm", BL_SLOT_OUT_X, BL_SLOT_OUT_X, c->hidden, *final_norm);
    m->head_op = b->w.n;
    head_ops(b, *head);
    m->n_trunk_matrices = m->n_matrices;
    m->n_trunk_vectors = m->n_vectors;
    m->n_ops = m->n_all_ops = m->hidden_op = m->draft_op = m->draft_stored_op = m->draft_select_op = b->w.n;
    return BL_OK;
}

bl_code bl_decoder_build(bl_model *m, const bl_decoder_names *names, bl_activations activations,
                         bool (*ignorable)(const bl_model *m, const char *name), bl_err *err) {
    builder b = {.m = m, .names = names, .err = err};
    int32_t embed, final_norm, head;
    b.f = (bl_tensor_finder){.m = m, .root = find_root(m->ckpt, names), .err = err};
    b.w = (bl_op_writer){.m = m, .layer = -1, .max = (m->cfg.n_layers + 1u) * OPS_PER_LAYER + OPS_OUTSIDE};
    BL_TRY(alloc_tables(m, err));
    BL_TRY(build_trunk(&b, activations, &embed, &final_norm, &head));
    /* one row of each table is looked up; as a head the table is read whole */
    m->n_active_params -= (uint64_t)m->cfg.n_vocab *
                          ((m->cfg.tied ? 0 : m->cfg.hidden) + (uint64_t)m->cfg.n_layers * m->cfg.ple);
    find_live(m);
    if (m->cfg.n_draft_layers > 0) {
        try_draft(&b, embed, final_norm, head);
    }
    return bl_tensor_refuse_unknown(m, ignorable, err);
}

void bl_model_resolve(bl_model *m) {
    for (size_t i = 0; i < m->n_all_ops; i++) {
        bl_op *op = &m->ops[i];
        const bl_op_refs *r = &m->refs[i];
        for (size_t k = 0; k < BL_OP_MAX_W; k++) {
            op->w[k] = r->w[k] >= 0 ? m->matrices[r->w[k]].mat : NULL;
            op->bias[k] = r->bias[k] >= 0 ? m->vectors[r->bias[k]].data : NULL;
        }
        if (r->vec == FULL_ROPE_REF || r->vec == LOCAL_ROPE_REF) {
            op->vec = r->vec == FULL_ROPE_REF ? m->inv_freq : m->inv_freq_local;
        } else {
            op->vec = r->vec >= 0 ? m->vectors[r->vec].data : NULL;
        }
    }
}
