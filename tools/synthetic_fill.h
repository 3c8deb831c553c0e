/* Random numbers in the bytes of each format, gigabytes a second: random bits are the codes, small tables the
 * scales. The same seed and tensor give the same bytes, however they are cut.
 */
#ifndef BL_TOOLS_SYNTHETIC_FILL_H
#define BL_TOOLS_SYNTHETIC_FILL_H

#include "formats/safetensors_writer.h"
#include "synthetic_models.h"

#define SYN_CHUNK_BYTES ((size_t)4 << 20)

typedef struct {
    uint64_t state; /* of the generator */
    void *chunk;    /* SYN_CHUNK_BYTES, aligned for 64-bit words */
    uint16_t table[65536];
    bl_safetensors_writer *w;
} syn_filler;

/* n bf16 numbers of the tensor's kind (f32 for A_log) to the writer's tensor `id`. */
bl_code syn_put_plain(syn_filler *f, const syn_tensor *t, uint32_t id, uint64_t n, bl_err *err) BL_MUST_CHECK;

/* A quantised matrix of n elements: mean 0, std 1/sqrt(fan_in). ids: weight, scales, biases. */
bl_code syn_put_quantized(syn_filler *f, const bl_mlx_quantize_format *q, const syn_tensor *t,
                          const uint32_t ids[3], uint64_t n, bl_err *err) BL_MUST_CHECK;

#endif
