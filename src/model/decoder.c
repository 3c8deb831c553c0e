/* Tensor names → matrices, vectors → op list, for decoder-only models (see decoder.h). */
#include "model/decoder.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define OPS_PER_LAYER  20u
#define OPS_OUTSIDE    8u
#define MATS_PER_LAYER 7u
#define VECS_PER_LAYER 13u /* six norms, seven biases */
#define NAME_MAX_BYTES 128u
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
    int32_t layer;
    bl_err *err;
} builder;

/* The tensors of one layer, as indices into matrices and vectors. */
typedef struct {
    int32_t q, k, v, o, gate, up, down;
    int32_t bq, bk, bv, bo, bgate, bup, bdown;
    int32_t attn_norm, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffn_norm;
} layer_refs;

/* ---- tensors ----------------------------------------------------------------------------------------- */

static void full_name(const builder *b, const char *base, const char *suffix, char out[NAME_MAX_BYTES]) {
    if (b->layer >= 0) {
        snprintf(out, NAME_MAX_BYTES, "%s%d.%s.%s", b->names->layer, b->layer, base, suffix);
    } else {
        snprintf(out, NAME_MAX_BYTES, "%s.%s", base, suffix);
    }
}

static void shape_text(const bl_tensor_view *t, char out[96]) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < t->n_dims && n < 80; i++) {
        n += (size_t)snprintf(out + n, 96 - n, "%s%llu", i ? ", " : "", (unsigned long long)t->dims[i]);
    }
}

static bl_code find(builder *b, const char *name, const bl_tensor_view **ret) {
    const bl_tensor_view *t = bl_checkpoint_find(b->m->ckpt, name);
    if (!t) {
        BL_FAIL(b->err, BL_EFORMAT, "tensor '%s' is missing", name);
    }
    *ret = t;
    return BL_OK;
}

static bl_code add_matrix(builder *b, const char *base, uint32_t n_out, uint32_t k, bool paired,
                          int32_t *ret) {
    bl_model *m = b->m;
    char name[NAME_MAX_BYTES], shape[96];
    const bl_tensor_view *t = NULL;
    full_name(b, base, "weight", name);
    BL_TRY(find(b, name, &t));
    if (t->n_dims != 2 || t->dims[0] != n_out || t->dims[1] != k) {
        shape_text(t, shape);
        BL_FAIL(b->err, BL_EFORMAT, "tensor '%s' has shape [%s], the config asks for [%u, %u]", name, shape,
                n_out, k);
    }
    const bl_dtype_info *info = bl_dtype_get(t->dtype);
    if (!info->is_weight) {
        BL_FAIL(b->err, BL_ENOTSUP, "tensor '%s' has type %s, which is no weight type of this version", name,
                info->name);
    }
    if (k % info->block_elems != 0) {
        BL_FAIL(b->err, BL_EFORMAT, "tensor '%s' has rows of %u elements, %s needs a multiple of %u", name, k,
                info->name, info->block_elems);
    }
    m->matrices[m->n_matrices] = (bl_model_matrix){
        .desc = {.name = t->name, .dtype = t->dtype, .n_out = n_out, .k = k, .rows = paired ? NULL : t->data},
        .src = t,
        .paired_head_dim = paired ? m->cfg.head_dim : 0,
    };
    m->n_params += (uint64_t)n_out * k;
    *ret = (int32_t)m->n_matrices++;
    return BL_OK;
}

static bl_code add_vector(builder *b, const char *base, const char *suffix, uint32_t n, float add,
                          bool paired, int32_t *ret) {
    bl_model *m = b->m;
    char name[NAME_MAX_BYTES], shape[96];
    const bl_tensor_view *t = NULL;
    full_name(b, base, suffix, name);
    BL_TRY(find(b, name, &t));
    if (t->n_dims != 1 || t->dims[0] != n) {
        shape_text(t, shape);
        BL_FAIL(b->err, BL_EFORMAT, "tensor '%s' has shape [%s], the config asks for [%u]", name, shape, n);
    }
    if (t->dtype != BL_DTYPE_F32 && t->dtype != BL_DTYPE_F16 && t->dtype != BL_DTYPE_BF16) {
        BL_FAIL(b->err, BL_ENOTSUP, "tensor '%s' has type %s, a vector must be F32, F16 or BF16", name,
                bl_dtype_get(t->dtype)->name);
    }
    m->vectors[m->n_vectors] =
        (bl_model_vector){.src = t, .n = n, .add = add, .paired_head_dim = paired ? m->cfg.head_dim : 0};
    m->n_params += n;
    *ret = (int32_t)m->n_vectors++;
    return BL_OK;
}

static bl_code add_norm(builder *b, const char *base, uint32_t n, int32_t *ret) {
    return add_vector(b, base, "weight", n, b->m->cfg.norm_plus_one ? 1.0f : 0.0f, false, ret);
}

static bl_code add_linear(builder *b, const char *base, uint32_t n_out, uint32_t k, bool paired, bool bias,
                          int32_t *ret_w, int32_t *ret_bias) {
    BL_TRY(add_matrix(b, base, n_out, k, paired, ret_w));
    if (bias) {
        BL_TRY(add_vector(b, base, "bias", n_out, 0.0f, paired, ret_bias));
    }
    return BL_OK;
}

static bl_code add_layer_tensors(builder *b, layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    const bl_decoder_names *n = b->names;
    uint32_t nq = c->n_heads * c->head_dim, nkv = c->n_kv_heads * c->head_dim;
    *r = (layer_refs){.bq = -1,
                      .bk = -1,
                      .bv = -1,
                      .bo = -1,
                      .bgate = -1,
                      .bup = -1,
                      .bdown = -1,
                      .q_norm = -1,
                      .k_norm = -1,
                      .post_attn_norm = -1,
                      .post_ffn_norm = -1};
    BL_TRY(add_norm(b, n->attn_norm, c->hidden, &r->attn_norm));
    BL_TRY(add_linear(b, n->q, nq, c->hidden, c->paired_rows, c->attn_bias, &r->q, &r->bq));
    BL_TRY(add_linear(b, n->k, nkv, c->hidden, c->paired_rows, c->attn_bias, &r->k, &r->bk));
    BL_TRY(add_linear(b, n->v, nkv, c->hidden, false, c->attn_bias, &r->v, &r->bv));
    if (c->qk_norm) {
        BL_TRY(add_norm(b, n->q_norm, c->head_dim, &r->q_norm));
        BL_TRY(add_norm(b, n->k_norm, c->head_dim, &r->k_norm));
    }
    BL_TRY(add_linear(b, n->o, c->hidden, nq, false, c->attn_bias, &r->o, &r->bo));
    if (c->post_norms) {
        BL_TRY(add_norm(b, n->post_attn_norm, c->hidden, &r->post_attn_norm));
    }
    BL_TRY(add_norm(b, n->ffn_norm, c->hidden, &r->ffn_norm));
    BL_TRY(add_linear(b, n->gate, c->ffn, c->hidden, false, c->mlp_bias, &r->gate, &r->bgate));
    BL_TRY(add_linear(b, n->up, c->ffn, c->hidden, false, c->mlp_bias, &r->up, &r->bup));
    BL_TRY(add_linear(b, n->down, c->hidden, c->ffn, false, c->mlp_bias, &r->down, &r->bdown));
    if (c->post_norms) {
        BL_TRY(add_norm(b, n->post_ffn_norm, c->hidden, &r->post_ffn_norm));
    }
    return BL_OK;
}

/* ---- ops --------------------------------------------------------------------------------------------- */

static bl_op *add_op(builder *b, bl_op_kind kind, const char *label, uint8_t in0, uint8_t in1, uint8_t out) {
    bl_model *m = b->m;
    bl_op *op = &m->ops[m->n_ops];
    *op = (bl_op){
        .kind = kind, .layer = b->layer, .label = label, .in0 = in0, .in1 = in1, .eps = m->cfg.norm_eps};
    for (size_t i = 0; i < BL_OP_MAX_W; i++) {
        op->out[i] = BL_SLOT_NONE;
    }
    op->out[0] = out;
    op->rows = bl_slot_is_out(out) ? BL_ROWS_OUT : BL_ROWS_ALL;
    m->refs[m->n_ops] = (bl_op_refs){.w = {-1, -1, -1}, .bias = {-1, -1, -1}, .vec = -1};
    m->n_ops++;
    return op;
}

static bl_op_refs *last_refs(const builder *b) {
    return &b->m->refs[b->m->n_ops - 1];
}

static void add_norm_op(builder *b, const char *label, uint8_t in, uint8_t out, uint32_t dim, int32_t vec) {
    bl_op *op = add_op(b, BL_OP_RMSNORM, label, in, BL_SLOT_NONE, out);
    op->dim = dim;
    last_refs(b)->vec = vec;
}

static void add_matmul(builder *b, const char *label, uint8_t in, uint8_t n_w, const uint8_t *outs,
                       const int32_t *w, const int32_t *bias) {
    bl_op *op = add_op(b, BL_OP_MATMUL, label, in, BL_SLOT_NONE, outs[0]);
    op->n_w = n_w;
    for (size_t i = 0; i < n_w; i++) {
        op->out[i] = outs[i];
        last_refs(b)->w[i] = w[i];
        last_refs(b)->bias[i] = bias[i];
    }
}

/* x += norm(h), or x += h in families without norms behind the block */
static void add_residual(builder *b, const char *label, int32_t norm) {
    if (norm < 0) {
        add_op(b, BL_OP_ADD, label, BL_SLOT_X, BL_SLOT_H, BL_SLOT_X);
        return;
    }
    bl_op *op = add_op(b, BL_OP_ADD_NORM, label, BL_SLOT_X, BL_SLOT_H, BL_SLOT_X);
    op->dim = b->m->cfg.hidden;
    last_refs(b)->vec = norm;
}

static void add_rope(builder *b, const char *label, uint8_t table, uint8_t x, uint32_t n_heads) {
    bl_op *op = add_op(b, BL_OP_ROPE, label, table, BL_SLOT_NONE, x);
    op->n_heads = n_heads;
    op->head_dim = b->m->cfg.head_dim;
    op->n_rot = b->m->cfg.head_dim;
}

static void add_attention_ops(builder *b, const layer_refs *r) {
    const bl_decoder_config *c = &b->m->cfg;
    uint32_t layer = (uint32_t)b->layer;
    bool sliding = c->sliding[layer];
    add_norm_op(b, "attn_norm", BL_SLOT_X, BL_SLOT_H, c->hidden, r->attn_norm);
    add_matmul(b, "attn_qkv", BL_SLOT_H, 3, (const uint8_t[]){BL_SLOT_Q, BL_SLOT_K, BL_SLOT_V},
               (const int32_t[]){r->q, r->k, r->v}, (const int32_t[]){r->bq, r->bk, r->bv});
    if (c->qk_norm) {
        add_norm_op(b, "q_norm", BL_SLOT_Q, BL_SLOT_Q, c->head_dim, r->q_norm);
        add_norm_op(b, "k_norm", BL_SLOT_K, BL_SLOT_K, c->head_dim, r->k_norm);
    }
    uint8_t table = sliding ? BL_SLOT_ROPE_LOCAL : BL_SLOT_ROPE;
    add_rope(b, "rope_q", table, BL_SLOT_Q, c->n_heads);
    add_rope(b, "rope_k", table, BL_SLOT_K, c->n_kv_heads);
    bl_op *store = add_op(b, BL_OP_KV_STORE, "kv_store", BL_SLOT_K, BL_SLOT_V, BL_SLOT_NONE);
    store->rows = BL_ROWS_ALL;
    store->n_kv_heads = c->n_kv_heads;
    store->head_dim = c->head_dim;
    store->kv_layer = layer;
    b->m->stored_op = b->m->n_ops; /* the last layer's stays */
    bl_op *attn = add_op(b, BL_OP_ATTENTION, sliding ? "attention_window" : "attention", BL_SLOT_Q,
                         BL_SLOT_NONE, BL_SLOT_ATTN);
    attn->n_heads = c->n_heads;
    attn->n_kv_heads = c->n_kv_heads;
    attn->head_dim = c->head_dim;
    attn->kv_layer = layer;
    attn->window = sliding ? c->window : 0;
    attn->scale = c->attn_scale;
    add_matmul(b, "attn_out", BL_SLOT_ATTN, 1, (const uint8_t[]){BL_SLOT_H}, &r->o, &r->bo);
    add_residual(b, "attn_residual", r->post_attn_norm);
}

static void add_mlp_ops(builder *b, const layer_refs *r) {
    add_norm_op(b, "ffn_norm", BL_SLOT_X, BL_SLOT_H, b->m->cfg.hidden, r->ffn_norm);
    add_matmul(b, "ffn_gate_up", BL_SLOT_H, 2, (const uint8_t[]){BL_SLOT_GATE, BL_SLOT_UP},
               (const int32_t[]){r->gate, r->up}, (const int32_t[]){r->bgate, r->bup});
    add_op(b, BL_OP_GLU, "ffn_glu", BL_SLOT_GATE, BL_SLOT_UP, BL_SLOT_GATE)->act = b->m->cfg.act;
    add_matmul(b, "ffn_down", BL_SLOT_GATE, 1, (const uint8_t[]){BL_SLOT_H}, &r->down, &r->bdown);
    add_residual(b, "ffn_residual", r->post_ffn_norm);
}

static void add_entry_ops(builder *b, int32_t embed) {
    const bl_decoder_config *c = &b->m->cfg;
    bool full = false, local = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        full = full || !c->sliding[i];
        local = local || c->sliding[i];
    }
    bl_op *op = add_op(b, BL_OP_EMBED, "embed", BL_SLOT_NONE, BL_SLOT_NONE, BL_SLOT_X);
    op->scale = c->embed_scale;
    op->n_w = 1;
    last_refs(b)->w[0] = embed;
    if (full) {
        op = add_op(b, BL_OP_ROPE_TABLE, "rope_table", BL_SLOT_NONE, BL_SLOT_NONE, BL_SLOT_ROPE);
        op->n_rot = c->head_dim;
        last_refs(b)->vec = FULL_ROPE_REF;
    }
    if (local) {
        op = add_op(b, BL_OP_ROPE_TABLE, "rope_table", BL_SLOT_NONE, BL_SLOT_NONE, BL_SLOT_ROPE_LOCAL);
        op->n_rot = c->head_dim;
        last_refs(b)->vec = LOCAL_ROPE_REF;
    }
}

static void add_exit_ops(builder *b, int32_t norm, int32_t head) {
    bl_model *m = b->m;
    m->select_op = m->n_ops;
    add_op(b, BL_OP_SELECT, "select", BL_SLOT_X, BL_SLOT_NONE, BL_SLOT_OUT_X);
    add_norm_op(b, "final_norm", BL_SLOT_OUT_X, BL_SLOT_OUT_X, m->cfg.hidden, norm);
    m->head_op = m->n_ops;
    add_matmul(b, "head", BL_SLOT_OUT_X, 1, (const uint8_t[]){BL_SLOT_LOGITS}, &head, (const int32_t[]){-1});
    if (m->cfg.final_softcap > 0.0f) {
        add_op(b, BL_OP_SOFTCAP, "softcap", BL_SLOT_NONE, BL_SLOT_NONE, BL_SLOT_LOGITS)->cap =
            m->cfg.final_softcap;
    }
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static void set_widths(bl_model *m) {
    const bl_decoder_config *c = &m->cfg;
    uint32_t nq = c->n_heads * c->head_dim, nkv = c->n_kv_heads * c->head_dim;
    m->widths[BL_SLOT_X] = c->hidden;
    m->widths[BL_SLOT_H] = c->hidden;
    m->widths[BL_SLOT_Q] = nq;
    m->widths[BL_SLOT_K] = nkv;
    m->widths[BL_SLOT_V] = nkv;
    m->widths[BL_SLOT_ATTN] = nq;
    m->widths[BL_SLOT_GATE] = c->ffn;
    m->widths[BL_SLOT_UP] = c->ffn;
    m->widths[BL_SLOT_ROPE] = c->head_dim;
    m->widths[BL_SLOT_ROPE_LOCAL] = c->head_dim;
    m->widths[BL_SLOT_OUT_X] = c->hidden;
    m->widths[BL_SLOT_LOGITS] = c->n_vocab;
}

static bl_code refuse_unknown(const builder *b, bool (*ignorable)(const char *name)) {
    const bl_model *m = b->m;
    char head[NAME_MAX_BYTES];
    snprintf(head, sizeof head, "%s.weight", b->names->head);
    for (size_t i = 0; i < bl_checkpoint_count(m->ckpt); i++) {
        const bl_tensor_view *t = bl_checkpoint_at(m->ckpt, i);
        bool used = false;
        for (size_t k = 0; k < m->n_matrices && !used; k++) {
            used = m->matrices[k].src == t;
        }
        for (size_t k = 0; k < m->n_vectors && !used; k++) {
            used = m->vectors[k].src == t;
        }
        /* A head stored beside a tied embedding is a copy that the reference library overwrites too. */
        if (!used && !(m->cfg.tied && strcmp(t->name, head) == 0) && !(ignorable && ignorable(t->name))) {
            BL_FAIL(b->err, BL_EFORMAT, "tensor '%s' is not part of a %s model with this config", t->name,
                    m->cfg.family);
        }
    }
    return BL_OK;
}

static bl_code alloc_tables(bl_model *m, bl_err *err) {
    size_t n_layers = m->cfg.n_layers;
    void *p;
    BL_TRY(bl_arena_alloc_array(m->arena, n_layers * MATS_PER_LAYER + 2, sizeof *m->matrices, &p, err));
    m->matrices = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n_layers * VECS_PER_LAYER + 1, sizeof *m->vectors, &p, err));
    m->vectors = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n_layers * OPS_PER_LAYER + OPS_OUTSIDE, sizeof *m->ops, &p, err));
    m->ops = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n_layers * OPS_PER_LAYER + OPS_OUTSIDE, sizeof *m->refs, &p, err));
    m->refs = p;
    BL_TRY(bl_arena_alloc_array(m->arena, n_layers, sizeof *m->kv, &p, err));
    m->kv = p;
    BL_TRY(bl_arena_alloc_array(m->arena, m->cfg.head_dim / 2, sizeof *m->inv_freq, &p, err));
    m->inv_freq = p;
    BL_TRY(bl_arena_alloc_array(m->arena, m->cfg.head_dim / 2, sizeof *m->inv_freq, &p, err));
    m->inv_freq_local = p;
    return BL_OK;
}

bl_code bl_decoder_build(bl_model *m, const bl_decoder_names *names, bool (*ignorable)(const char *name),
                         bl_err *err) {
    const bl_decoder_config *c = &m->cfg;
    builder b = {.m = m, .names = names, .layer = -1, .err = err};
    BL_TRY(alloc_tables(m, err));
    int32_t embed, head, final_norm;
    BL_TRY(add_matrix(&b, names->embed, c->n_vocab, c->hidden, false, &embed));
    head = embed;
    if (!c->tied) {
        BL_TRY(add_matrix(&b, names->head, c->n_vocab, c->hidden, false, &head));
    }
    add_entry_ops(&b, embed);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer_refs r;
        b.layer = (int32_t)i;
        BL_TRY(add_layer_tensors(&b, &r));
        add_attention_ops(&b, &r);
        add_mlp_ops(&b, &r);
        m->kv[i] = (bl_kv_layer){c->n_kv_heads, c->head_dim, c->sliding[i] ? c->window : 0};
    }
    b.layer = -1;
    BL_TRY(add_norm(&b, names->final_norm, c->hidden, &final_norm));
    add_exit_ops(&b, final_norm, head);
    set_widths(m);
    bl_rope_inv_freq(&c->rope, c->head_dim, m->inv_freq);
    bl_rope_inv_freq(&c->rope_local, c->head_dim, m->inv_freq_local);
    return refuse_unknown(&b, ignorable);
}

void bl_model_resolve(bl_model *m) {
    for (size_t i = 0; i < m->n_ops; i++) {
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
