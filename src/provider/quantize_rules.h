/* What becomes of each tensor of a Hugging Face checkpoint in the MLX layout, by family: its new name, and
 * the treatment of its bytes. Tables only; the work is in quantize.c. Source: spec models.md §2.9, §4.8,
 * §5.3, §6.3, §8.5, and mlx-lm 0.32.2's `sanitize` and `quant_predicate` of each family, whose names these
 * are.
 */
#ifndef BL_PROVIDER_QUANTIZE_RULES_H
#define BL_PROVIDER_QUANTIZE_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef enum {
    BL_QUANTIZE_SKIP,         /* another tower, or what the family drops */
    BL_QUANTIZE_PLAIN,        /* never quantised */
    BL_QUANTIZE_NORM,         /* 1 is added when the checkpoint stores zero-centred norms */
    BL_QUANTIZE_CONV,         /* [C,1,k] -> [C,k,1]: the same bytes */
    BL_QUANTIZE_MATRIX,       /* [.., out, in] */
    BL_QUANTIZE_MATRIX8,      /* routers and gates: affine, 8 bits in groups of 64 */
    BL_QUANTIZE_HALVES,       /* [E, 2M, in]: gate's rows, then up's */
    BL_QUANTIZE_PAIRS_T,      /* [E, in, 2M]: columns alternate between gate and up */
    BL_QUANTIZE_MATRIX_T,     /* [E, in, out] */
    BL_QUANTIZE_PAIRS_VALUES, /* [E, 2M]: values alternate (biases) */
    BL_QUANTIZE_PAIRS_BLOCKS, /* [E, 2M, groups, 16]: mxfp4 blocks, rows alternate */
    BL_QUANTIZE_BLOCKS,       /* [E, out, groups, 16] */
    BL_QUANTIZE_PAIRS_SCALES, /* [E, 2M, groups] */
    BL_QUANTIZE_SCALES,       /* [E, out, groups] */
    BL_QUANTIZE_STACK         /* one [out, in] per expert, to be stacked */
} bl_quantize_rule;

typedef struct bl_quantize_family bl_quantize_family;

/* By the model_type of config.json; NULL when this program does not know it. */
const bl_quantize_family *bl_quantize_family_find(const char *model_type);
/* Names of all, for messages: "gemma3_text gemma4 ...". */
const char *bl_quantize_family_names(void);

/* Norms are zero-centred in the Hugging Face layout, and shifted in MLX's: told apart by conv1d's shape. */
bool bl_quantize_family_shifts_norms(const bl_quantize_family *f);
/* Is the head tied when config.json does not say? */
bool bl_quantize_family_ties(const bl_quantize_family *f);

typedef struct {
    bl_quantize_rule rule;
    bool head;       /* of the embedded multi-token-prediction head */
    uint32_t layer;  /* 0 when the name has none */
    uint32_t expert; /* STACK: which */
    char name[256]; /* in the MLX layout; of the module ("….q_proj") for matrices, of the tensor otherwise */
    char up[256];   /* the second half's module, where one tensor becomes two */
    bool is_value;  /* the name is a tensor's, not a module's */
} bl_quantize_target;

/* Is it a tensor of an embedded head ("mtp.…", below whatever root)? */
bool bl_quantize_is_head(const char *name);

/* BL_ENOTSUP, naming the tensor, when the family has no such tensor. */
bl_code bl_quantize_target_of(const bl_quantize_family *f, const char *name, bl_quantize_target *ret,
                              bl_err *err) BL_MUST_CHECK;

#endif
