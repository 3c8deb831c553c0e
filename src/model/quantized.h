/* Weights that a Hugging Face folder keeps quantised: MLX's layout (packed codes with scales and biases
 * beside them, described by config.json's "quantization") and OpenAI's MXFP4 blocks. spec models.md §8.5. */
#ifndef BL_MODEL_QUANTIZED_H
#define BL_MODEL_QUANTIZED_H

#include "model/tensors.h"

/* Is "<leaf>.weight" quantised (has it "<leaf>.scales" beside it)? */
bool bl_quantized_is(const bl_tensor_finder *f, const char *leaf);

/* Fills type, rows, scales, biases and group of a weight of the logical shape want[n_want], whose last is the
 * row length: parameters from the config's entry for this path, else its common ones; shapes and types are
 * then held against the tensors. BL_EFORMAT naming the tensor. */
bl_code bl_quantized_desc(const bl_tensor_finder *f, const char *leaf, const uint64_t *want, uint32_t n_want,
                          bl_mat_desc *d) BL_MUST_CHECK;

/* "<leaf>_blocks" u8 [n, rows, k / 32, 16] with "<leaf>_scales" u8 [n, rows, k / 32]; want = {n, rows, k}. */
bl_code bl_quantized_blocks(const bl_tensor_finder *f, const char *leaf, const uint64_t want[3],
                            bl_mat_desc *d) BL_MUST_CHECK;

/* Refuses configs that name a method of quantising that is not run. */
bl_code bl_quantized_check_config(const bl_checkpoint *c, bl_err *err) BL_MUST_CHECK;

#endif
