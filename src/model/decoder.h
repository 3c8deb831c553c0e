/* The decoder: config and names → tensors → op list. Families describe themselves with a bl_decoder_config
 * and a table of names; nothing here knows which family it serves. */
#ifndef BL_MODEL_DECODER_H
#define BL_MODEL_DECODER_H

#include "model/model.h"

/* Names of parts, NULL where the family has no such tensor. Matrices and norms are named without ".weight"
 * and ".bias"; fields marked (whole) are complete. Per-layer names follow `layer` and "<n>.". All but `head`
 * follow the container's root ("model.", "language_model.model.", ...). */
typedef struct {
    const char *embed, *head, *final_norm, *layer;
    /* attention */
    const char *attn_norm, *q, *k, *v, *o, *q_norm, *k_norm, *post_attn_norm;
    const char *sinks; /* (whole) */
    /* MLP */
    const char *ffn_norm, *gate, *up, *down, *post_ffn_norm;
    const char *layer_scalar; /* (whole) */
    /* experts; their own names are bl_tensor_experts' */
    const char *const *experts;
    const char *router;
    const char *router_scale, *expert_scale; /* (whole) */
    const char *dense_post_norm, *experts_norm, *experts_post_norm;
    const char *shared_gate, *shared_up, *shared_down, *shared_router;
    /* gated delta net */
    const char *delta_qkv, *delta_z, *delta_beta, *delta_decay, *delta_conv, *delta_norm, *delta_out;
    const char *delta_a, *delta_dt; /* (whole) */
    /* per-layer embeddings */
    const char *ple_embed, *ple_proj, *ple_norm;    /* of the model */
    const char *ple_gate, *ple_out, *ple_post_norm; /* of a layer */
    /* draft head; its layer has the names above behind draft_layer */
    const char *draft_root, *draft_layer, *draft_embed_norm, *draft_hidden_norm, *draft_join, *draft_norm;
} bl_decoder_names;

extern const bl_decoder_names bl_decoder_gguf_names;

/* Fills m (cfg is set) with matrices, vectors, KV and state geometry and ops. Refuses missing, misshapen and
 * unknown tensors; one whose name `ignorable` accepts (may be NULL) may be left over. A draft head that is
 * declared but unusable does not fail the model: cfg.draft_refused says why. */
bl_code bl_decoder_build(bl_model *m, const bl_decoder_names *names, bl_activations activations,
                         bool (*ignorable)(const bl_model *m, const char *name), bl_err *err) BL_MUST_CHECK;

#endif
