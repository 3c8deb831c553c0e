/* A named tensor inside a mapped file: where its bytes are and what they mean. Plain data. */
#ifndef BL_FORMATS_TENSOR_VIEW_H
#define BL_FORMATS_TENSOR_VIEW_H

#include <stdint.h>

#include "tensor/dtype.h"

#define BL_TENSOR_MAX_DIMS 8

typedef struct {
    const char *name; /* borrowed from the container */
    bl_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[BL_TENSOR_MAX_DIMS]; /* C order: dims[n_dims-1] is the fastest (row length). GGUF's order is
                                          reversed here, so a linear weight is [out, in] in every format. */
    const uint8_t *data;               /* unaligned, borrowed from the map */
    uint64_t size_bytes;
} bl_tensor_view;

#endif
