/* From a file's rows to packed blocks (kernels.h). */
#ifndef BL_BACKEND_CPU_PACK_H
#define BL_BACKEND_CPU_PACK_H

#include "backend/cpu/kernels.h"

/* Shape and size of a matrix's packed form (base stays NULL): quantised types become F32 when activations are
 * f32. BL_EINVAL for a type or shape that cannot be a weight. */
bl_code bl_pack_plan(const bl_mat_desc *d, bl_activations act, bl_packed *ret, uint64_t *ret_bytes,
                     bl_err *err) BL_MUST_CHECK;
/* Packs one block into dst (block_bytes, zeroed). BL_EFORMAT naming the matrix when a scale is NaN or
 * infinite. Thread-safe. */
bl_code bl_pack_block(const bl_mat_desc *d, const bl_packed *pk, uint32_t block, uint8_t *dst,
                      bl_err *err) BL_MUST_CHECK;

#endif
