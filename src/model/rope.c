#include "model/rope.h"

#include <math.h>
#include <string.h>

#include "base/dmath.h"

#define TWO_PI 6.283185307179586476925286766559

/* The ramp of Llama 3.1: wavelengths above original_context / low_freq_factor are stretched by `factor`,
 * those below original_context / high_freq_factor are kept, and in between the two are mixed linearly in 1 /
 * wavelength. */
static double llama3(const bl_rope_config *c, double f) {
    double wavelength = TWO_PI / f;
    if (wavelength < c->original_context / c->high_freq_factor) {
        return f;
    }
    if (wavelength > c->original_context / c->low_freq_factor) {
        return f / c->factor;
    }
    double t =
        (c->original_context / wavelength - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    return (1.0 - t) * (f / c->factor) + t * f;
}

/* Index at which a wave turns n times over the original context (spec models.md §6.2). */
static double yarn_index(const bl_rope_config *c, double n, uint32_t n_rot) {
    return (double)n_rot * bl_dmath_log(c->original_context / (n * TWO_PI)) / (2.0 * bl_dmath_log(c->theta));
}

static double yarn(const bl_rope_config *c, double f, uint32_t i, uint32_t n_rot) {
    double low = yarn_index(c, c->beta_fast, n_rot), high = yarn_index(c, c->beta_slow, n_rot);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)n_rot - 1.0 ? high : (double)n_rot - 1.0;
    double t = ((double)i - low) / (high > low ? high - low : 0.001);
    t = t < 0.0 ? 0.0 : t > 1.0 ? 1.0 : t;
    return f / c->factor * t + f * (1.0 - t);
}

void bl_rope_inv_freq(const bl_rope_config *c, uint32_t n_rot, float *dst) {
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        double f = bl_dmath_pow(c->theta, -2.0 * (double)i / (double)n_rot);
        if (c->kind == BL_ROPE_LINEAR) {
            f /= c->factor;
        } else if (c->kind == BL_ROPE_LLAMA3) {
            f = llama3(c, f);
        } else if (c->kind == BL_ROPE_FACTORS) {
            float factor;
            memcpy(&factor, c->factors + (size_t)i * sizeof factor, sizeof factor);
            f /= (double)factor;
        } else if (c->kind == BL_ROPE_YARN) {
            f = yarn(c, f, i, n_rot);
        } else if (c->kind == BL_ROPE_PARTIAL) {
            f = i < c->turning ? f / c->factor : 0.0;
        }
        dst[i] = (float)f;
    }
}
