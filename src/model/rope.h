/* Rotary position embedding: the table of inverse frequencies of a config. */
#ifndef BL_MODEL_ROPE_H
#define BL_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef enum {
    BL_ROPE_PLAIN,
    BL_ROPE_LINEAR,  /* all frequencies divided by `factor` */
    BL_ROPE_LLAMA3,  /* long waves divided by `factor`, short ones kept, a ramp between */
    BL_ROPE_FACTORS, /* each frequency divided by its own factor (GGUF rope_freqs.weight) */
    BL_ROPE_YARN,    /* long waves divided by `factor`, short ones kept, a ramp over the index between */
    BL_ROPE_PARTIAL  /* the first `turning` frequencies of n_rot / 2 (divided by `factor`), the others 0 */
} bl_rope_kind;

typedef struct {
    bl_rope_kind kind;
    double theta;
    double factor;                            /* LINEAR, LLAMA3 */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double original_context;                  /* LLAMA3, YARN */
    double beta_fast, beta_slow;              /* YARN */
    bool truncate;                            /* YARN: the ramp's ends are rounded to whole indices */
    double table_scale;                       /* cosines and sines are multiplied by it; 0: 1 */
    uint32_t n_rot;                           /* elements of a head that turn; 0: all */
    uint32_t turning;                         /* PARTIAL */
    const uint8_t *factors;                   /* FACTORS: unaligned little-endian f32 [n_rot / 2], borrowed */
} bl_rope_config;

/* dst[n_rot / 2] = theta^(-2i / n_rot), scaled; made in double by our own pow, rounded to f32 once. */
void bl_rope_inv_freq(const bl_rope_config *c, uint32_t n_rot, float *dst);

#endif
