/* The common decoder-only block: tensor names → matrices and vectors → op list. Families describe themselves
 * with a bl_decoder_config and a table of names; nothing here knows which family it serves. */
#ifndef BL_MODEL_DECODER_H
#define BL_MODEL_DECODER_H

#include "model/model.h"

/* Names without ".weight"/".bias"; per-layer ones follow `layer` ("model.layers.", "blk.") and "<n>.". NULL:
 * the family has no such tensor. */
typedef struct {
    const char *embed, *head, *final_norm, *layer;
    const char *attn_norm, *q, *k, *v, *o, *q_norm, *k_norm, *post_attn_norm;
    const char *ffn_norm, *gate, *up, *down, *post_ffn_norm;
} bl_decoder_names;

extern const bl_decoder_names bl_decoder_gguf_names;

/* Fills m (cfg is set) with matrices, vectors, KV geometry and ops. Refuses missing, misshapen and unknown
 * tensors. A tensor whose name `ignorable` accepts may be left over. */
bl_code bl_decoder_build(bl_model *m, const bl_decoder_names *names, bool (*ignorable)(const char *name),
                         bl_err *err) BL_MUST_CHECK;

#endif
