/* A model: what a checkpoint's headers say, which tensors become which matrices and vectors, and the flat
 * list of ops that evaluates it. bl_model_new reads headers only (so `models info` and the memory plan cost
 * nothing); the loader then calls bl_model_load_vectors and bl_model_load_matrix, after which the list can
 * run on the backend.
 *
 * Norm conventions and head orders of the containers are resolved here: kernels see plain RMS norms and
 * half-pair RoPE. Threads: one owner; [immutable after load].
 */
#ifndef BL_MODEL_MODEL_H
#define BL_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/arena.h"
#include "bl/bl_err.h"
#include "formats/checkpoint.h"
#include "model/rope.h"

/* Ceilings on what a config may ask for: far above any released dense model, low enough that products fit in
 * 64 bits. */
#define BL_MODEL_MAX_LAYERS   256u
#define BL_MODEL_MAX_HIDDEN   65536u
#define BL_MODEL_MAX_FFN      (1u << 20)
#define BL_MODEL_MAX_VOCAB    (1u << 22)
#define BL_MODEL_MAX_HEADS    1024u
#define BL_MODEL_MAX_HEAD_DIM 1024u
#define BL_MODEL_MAX_CONTEXT  (1u << 24)

/* What a decoder-only family reads from its config. */
typedef struct {
    char family[32];
    uint32_t n_vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn;
    uint32_t n_context_trained;
    uint32_t window; /* of the sliding layers; 0: there are none */
    bool sliding[BL_MODEL_MAX_LAYERS];
    bl_rope_config rope, rope_local; /* rope_local is used by sliding layers */
    float norm_eps;
    float embed_scale; /* 1: none */
    float attn_scale;
    float final_softcap; /* 0: none */
    bl_glu_act act;
    bool tied;          /* no output matrix of its own */
    bool qk_norm;       /* RMS norm per head on q and k */
    bool post_norms;    /* norms after attention and after the MLP, before the residual adds */
    bool attn_bias;     /* biases on q, k, v and o */
    bool mlp_bias;      /* biases on gate, up and down */
    bool norm_plus_one; /* the file stores w, the norm multiplies by 1 + w */
    bool paired_rows;   /* q and k rows of a head are stored (x0, xD/2, x1, xD/2+1, ...): undone at load */
} bl_decoder_config;

typedef struct {
    bl_mat_desc desc; /* rows: the file's bytes, or NULL where they must be reordered first */
    const bl_tensor_view *src;
    uint32_t paired_head_dim; /* > 0: rows of each head of this many rows are stored as pairs */
    bl_mat *mat;              /* NULL until loaded */
} bl_model_matrix;

typedef struct {
    const bl_tensor_view *src;
    uint32_t n;
    float add; /* added to every element */
    uint32_t paired_head_dim;
    float *data; /* NULL until loaded; in the model's arena */
} bl_model_vector;

/* Where an op's pointers come from once loaded: indices into matrices and vectors, -1 for none. */
typedef struct {
    int32_t w[BL_OP_MAX_W], bias[BL_OP_MAX_W], vec;
} bl_op_refs;

/* KV geometry of one layer. */
typedef struct {
    uint32_t n_kv_heads, head_dim, window;
} bl_kv_layer;

/* Slots of the decoder's op list. */
enum {
    BL_SLOT_X, /* residual stream, all rows */
    BL_SLOT_H, /* normed input, then the block's output */
    BL_SLOT_Q,
    BL_SLOT_K,
    BL_SLOT_V,
    BL_SLOT_ATTN,
    BL_SLOT_GATE,
    BL_SLOT_UP,
    BL_SLOT_ROPE,
    BL_SLOT_ROPE_LOCAL,
    BL_SLOT_OUT_X, /* residual of the rows whose logits are wanted, then their final norm */
    BL_SLOT_LOGITS,
    BL_SLOT__MAX
};

typedef struct {
    bl_decoder_config cfg;
    const bl_checkpoint *ckpt; /* borrowed, must outlive the model */
    bl_arena *arena;
    bl_model_matrix *matrices;
    size_t n_matrices;
    bl_model_vector *vectors;
    size_t n_vectors;
    float *inv_freq, *inv_freq_local; /* [head_dim / 2] */
    bl_op *ops;
    bl_op_refs *refs; /* [n_ops] */
    size_t n_ops;
    size_t stored_op; /* ops before it leave every key and value stored; after it only x and q are read */
    size_t select_op; /* ops from here work on the gathered rows only */
    size_t head_op;   /* the product that makes the logits */
    uint32_t widths[BL_SLOT__MAX];
    bl_kv_layer *kv; /* [n_layers] */
    uint64_t n_params;
} bl_model;

/* Slots from here on hold gathered rows. */
static inline bool bl_slot_is_out(uint32_t slot) {
    return slot >= BL_SLOT_OUT_X;
}

/* Recognises the family, reads and checks its config, checks every tensor's name, shape and type against it,
 * and writes the op list. Reads no weights (but for a GGUF's rope factors). `activations` decides what a bf16
 * checkpoint's embedding scale is. Errors name key or tensor. */
bl_code bl_model_new(const bl_checkpoint *c, bl_activations activations, bl_model **ret,
                     bl_err *err) BL_MUST_CHECK;
/* b: the backend that made the matrices; may be NULL when none was loaded. */
void bl_model_free(bl_model *m, bl_backend *b);

/* Asks the backend about every op and weight type. BL_ENOTSUP naming the op, the tensor and its type. */
bl_code bl_model_check_backend(const bl_model *m, const bl_backend *b, bl_err *err) BL_MUST_CHECK;

bl_code bl_model_load_vectors(bl_model *m, bl_err *err) BL_MUST_CHECK;
/* i < n_matrices. `consumed` (may be NULL) hears of source bytes that will not be read again, in ascending
 * order, as a part of the tensor. */
bl_code bl_model_load_matrix(bl_model *m, bl_backend *b, size_t i,
                             void (*consumed)(void *user, const bl_tensor_view *part), void *user,
                             bl_err *err) BL_MUST_CHECK;
/* Fills the pointers of the ops; after everything is loaded. */
void bl_model_resolve(bl_model *m);

#endif
