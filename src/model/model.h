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

#define BL_MODEL_MAX_EXPERTS 1024u
#define BL_MODEL_MAX_TAPS    16u

/* How a layer mixes positions. */
typedef enum { BL_MIX_ATTENTION, BL_MIX_DELTA } bl_mixer;

typedef struct {
    bl_mixer mixer;
    bool sliding; /* sees `window` positions and turns by rope_local */
    uint32_t n_kv_heads, head_dim;
    uint32_t ffn;         /* width of the dense MLP; 0: the layer has none */
    int32_t kv_from;      /* the layer whose keys and values it reads, itself but for shared ones */
    bool values_are_keys; /* no v projection: values are the unnormed keys */
} bl_layer_config;

/* Where norms and residuals of a layer with experts lie. */
typedef enum {
    BL_EXPERTS_ALONE, /* in the MLP's place, a shared expert beside them if shared_ffn > 0 */
    BL_EXPERTS_BESIDE /* Gemma 4: beside the dense MLP, each with norms of its own */
} bl_experts_place;

/* What a decoder-only family reads from its config. */
typedef struct {
    char family[32];
    uint32_t n_vocab, hidden, n_layers, n_heads;
    uint32_t n_kv_heads, head_dim, ffn; /* of most layers; layer[] has each one's */
    uint32_t n_context_trained;
    uint32_t window;                                /* of the sliding layers; 0: there are none */
    bl_layer_config layer[BL_MODEL_MAX_LAYERS + 1]; /* the last one's successor is the draft head's */
    bl_rope_config rope, rope_local;                /* rope_local is used by sliding layers */
    float norm_eps;
    float embed_scale; /* 1: none */
    float attn_scale;
    float final_softcap; /* 0: none */
    bl_glu_act act;
    float glu_limit;   /* of BL_GLU_CLAMPED */
    bool tied;         /* no output matrix of its own */
    bool qk_norm;      /* RMS norm per head on q and k */
    bool v_norm;       /* and on v, without a weight */
    bool post_norms;   /* norms after attention and after the MLP, before the residual adds */
    bool attn_bias;    /* biases on q, k, v and o */
    bool attn_gate;    /* q's rows carry a gate per head behind it: attention is multiplied by its sigmoid */
    bool sinks;        /* a logit per head that takes part in softmax only */
    bool layer_scalar; /* the stream is multiplied by a number behind every layer */
    bool mlp_bias;     /* biases on gate, up and down, and of the experts */
    bool router_bias;
    bool norm_plus_one; /* the file stores w, the norm multiplies by 1 + w */
    bool paired_rows;   /* q and k rows of a head are stored (x0, xD/2, x1, xD/2+1, ...): undone at load */

    /* mixture of experts; n_experts 0: none */
    bl_experts_place experts;
    uint32_t n_experts, n_used, expert_ffn, shared_ffn;

    /* gated delta net layers */
    uint32_t delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim, n_taps;
    bl_head_order delta_heads;
    bool decay_ready; /* the file stores -exp(A_log) in A_log's place */

    /* per-layer embeddings (Gemma 4 E models); 0: none */
    uint32_t ple;

    /* embedded draft head */
    uint32_t n_draft_layers; /* declared by the file */
    bool draft_norm_plus_one;
    char draft_refused[256]; /* why a declared head cannot be used; empty: it can */
    bool draft_foreign;      /* because it is another model's, by a shape or the name of its family */
} bl_decoder_config;

typedef struct {
    bl_mat_desc desc;
    const bl_tensor_view *src;
    uint32_t n_experts, n_used; /* of a stack: how many of the experts a row reads; 1 of 1 otherwise */
    bl_mat *mat;                /* NULL until loaded */
} bl_model_matrix;

typedef struct {
    const bl_tensor_view *src;
    uint32_t n;
    bl_row_map map;
    uint32_t columns; /* > 0: the file's [n / columns][columns] is turned over */
    float add, mul;   /* (x + add) * mul; mul 0: 1 */
    bool neg_exp;     /* -exp(x) instead */
    float *data;      /* NULL until loaded; in the model's arena */
} bl_model_vector;

/* Where an op's pointers come from once loaded: indices into matrices and vectors, -1 for none. */
typedef struct {
    int32_t w[BL_OP_MAX_W], bias[BL_OP_MAX_W], vec;
} bl_op_refs;

/* KV geometry of one layer. */
typedef struct {
    uint32_t n_kv_heads, head_dim, window;
} bl_kv_layer;

/* Slots of the decoder's op list. Width 0: not used by this model. */
enum {
    BL_SLOT_X, /* residual stream, all rows */
    BL_SLOT_H, /* normed input, then the block's output */
    BL_SLOT_Q,
    BL_SLOT_K,
    BL_SLOT_V,
    BL_SLOT_ATTN,
    BL_SLOT_Q2, /* the same for layers whose heads are shaped differently from layer 0's */
    BL_SLOT_K2,
    BL_SLOT_V2,
    BL_SLOT_ATTN2,
    BL_SLOT_ATTN_GATE,
    BL_SLOT_GATE,
    BL_SLOT_UP,
    BL_SLOT_GATE2, /* for MLPs of another width */
    BL_SLOT_UP2,
    BL_SLOT_ROPE,
    BL_SLOT_ROPE_LOCAL,
    BL_SLOT_DELTA_RAW, /* q | k | v before and after the convolution */
    BL_SLOT_DELTA_QKV,
    BL_SLOT_DELTA_Z,
    BL_SLOT_DELTA_BETA,
    BL_SLOT_DELTA_DECAY,
    BL_SLOT_DELTA_OUT,
    BL_SLOT_ROUTER, /* logits */
    BL_SLOT_ROUTES,
    BL_SLOT_EXPERTS_IN,
    BL_SLOT_EXPERTS_OUT,
    BL_SLOT_SHARED_GATE,
    BL_SLOT_SHARED_OUT,
    BL_SLOT_PLE, /* per-layer inputs, all layers side by side */
    BL_SLOT_PLE_EMBED,
    BL_SLOT_PLE_GATE,
    BL_SLOT_HIDDEN, /* final norm of all rows: what the draft head reads, and leaves for its next step */
    BL_SLOT_DRAFT_PAIR,
    BL_SLOT_OUT_X, /* residual of the rows whose logits are wanted, then their final norm */
    BL_SLOT_LOGITS,
    BL_SLOT__MAX
};

/* Recurrent state of one layer. */
typedef struct {
    uint32_t n_floats;
} bl_state_layer;

typedef struct {
    bl_decoder_config cfg;
    const struct bl_family *family;
    const bl_checkpoint *ckpt; /* borrowed, must outlive the model */
    bl_arena *arena;
    bl_model_matrix *matrices;
    size_t n_matrices, n_trunk_matrices; /* those behind the trunk's are the draft head's own */
    bl_model_vector *vectors;
    size_t n_vectors, n_trunk_vectors;
    float *inv_freq, *inv_freq_local; /* [n_rot / 2] */
    bl_op *ops;
    bl_op_refs *refs;
    size_t n_ops; /* of the model itself */
    size_t
        stored_op; /* ops before it leave every key, value and state stored; after it only `live` is read */
    size_t select_op; /* ops from here work on the gathered rows only */
    size_t head_op;   /* the product that makes the logits */
    uint8_t live[BL_SLOT__MAX];
    uint32_t n_live;
    /* The draft head: [hidden_op, draft_op) takes every row's final norm to BL_SLOT_HIDDEN, [draft_op,
     * draft_select_op) turns HIDDEN and the rows' tokens into the next HIDDEN, [draft_select_op, n_all_ops)
     * makes logits of the gathered rows. The head's keys and values are stored before draft_stored_op. All
     * equal n_ops without a head. */
    size_t hidden_op, draft_op, draft_stored_op, draft_select_op, n_all_ops;
    uint32_t draft_state; /* index of the state that keeps a sequence's last hidden for the head */
    uint32_t widths[BL_SLOT__MAX];
    bl_kv_layer *kv; /* [n_kv] */
    uint32_t n_kv;
    bl_state_layer *states; /* [n_states] */
    uint32_t n_states;
    uint64_t n_params, n_active_params; /* active: what one token meets */
    uint64_t n_draft_params;            /* of the draft head, not in the above */
} bl_model;

static inline bool bl_model_has_draft(const bl_model *m) {
    return m->n_all_ops > m->n_ops;
}

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

/* Forgets the draft head: nothing of it is loaded, planned or run from here on. b: as for bl_model_free. The
 * head's layer and state are the last of kv and states. */
void bl_model_drop_draft(bl_model *m, bl_backend *b);

/* Asks the backend about every op and weight type. BL_ENOTSUP naming the op, the tensor and its type. */
bl_code bl_model_check_backend(const bl_model *m, const bl_backend *b, bl_err *err) BL_MUST_CHECK;

/* Bytes that loading a matrix reads, its scales and biases included. */
uint64_t bl_model_matrix_file_bytes(const bl_model_matrix *w);

/* Vectors [from, to): the trunk's end at n_trunk_vectors. */
bl_code bl_model_load_vectors(bl_model *m, size_t from, size_t to, bl_err *err) BL_MUST_CHECK;
/* i < n_matrices. `consumed` (may be NULL) hears of source bytes that were read, as parts of the tensor;
 * several matrices may share a tensor. */
bl_code bl_model_load_matrix(bl_model *m, bl_backend *b, size_t i,
                             void (*consumed)(void *user, const bl_tensor_view *part), void *user,
                             bl_err *err) BL_MUST_CHECK;
/* Fills the pointers of the ops; after everything is loaded. */
void bl_model_resolve(bl_model *m);

#endif
