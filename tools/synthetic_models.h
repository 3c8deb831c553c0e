/* The shapes of spec models.md §14 as lists of tensors, config.json and a tokenizer: what
 * tools/make_synthetic writes with random numbers.
 */
#ifndef BL_TOOLS_SYNTHETIC_MODELS_H
#define BL_TOOLS_SYNTHETIC_MODELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"
#include "tensor/mlx_quantize.h"

typedef enum { SYN_GEMMA3, SYN_GEMMA4, SYN_QWEN, SYN_GPT_OSS } syn_family;

typedef struct {
    const char *name;
    syn_family family;
    uint32_t layers, full_every; /* layer l has full attention when (l+1) % full_every == 0 */
    uint32_t hidden, ffn, heads, kv_heads, kv_heads_full, head_dim, head_dim_full;
    uint32_t vocab, window, context;
    uint32_t experts, top_k, expert_ffn, shared_ffn;
    uint32_t ple, kv_shared;  /* gemma 4 E models */
    bool double_wide, k_eq_v; /* gemma 4 */
    uint32_t gdn_k_heads, gdn_v_heads;
} syn_shape;

extern const syn_shape syn_shapes[];
extern const uint32_t syn_n_shapes;

/* What the numbers of a tensor look like. */
typedef enum {
    SYN_MATRIX,    /* std 1/sqrt(fan_in) */
    SYN_ROUTER,    /* the same; 8 bits when quantised */
    SYN_NEAR_ONE,  /* norms, and scales that multiply */
    SYN_NEAR_ZERO, /* zero-centred norms, biases */
    SYN_SINKS,     /* logits: -1 to 1 */
    SYN_CONV,      /* std 1/2: four taps */
    SYN_A_LOG,     /* log of 1 to 16, f32 */
    SYN_DT_BIAS,   /* steps of 0.001 to 0.1 before softplus */
    SYN_LAYER      /* just below 1: it multiplies the whole stream */
} syn_fill;

typedef struct {
    char name[160];     /* without ".weight" for matrices: see suffix */
    const char *suffix; /* ".weight", or "" where the family has none */
    syn_fill fill;
    uint32_t n_dims;
    uint64_t dims[3];
    uint64_t fan_in;
    bool head, dense_mlp, expert;
} syn_tensor;

#define SYN_MAX_TENSORS 4096

/* All tensors of the shape with its first `layers` layers and `vocab` rows, in the MLX layout or in Hugging
 * Face's. *ret holds SYN_MAX_TENSORS; returns how many. */
uint32_t syn_tensors(const syn_shape *s, bool mlx, syn_tensor *ret);

/* config.json without its last brace, which the caller adds with the quantization blocks. */
bl_code syn_config(const syn_shape *s, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
/* A byte-level tokenizer with the family's special tokens, and its config with a plain template. */
bl_code syn_tokenizer(const syn_shape *s, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
bl_code syn_tokenizer_config(const syn_shape *s, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#endif
