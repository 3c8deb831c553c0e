/* cos and sin of pos * inv_freq, in double, by the same operations on every machine (NUMERICS §1): the host
 * makes these tables for all devices. The product is exact in double for pos < 2^29. Reduction by pi/2 in
 * three parts (Cody and Waite, Software Manual for the Elementary Functions, 1980), the first two 30 bits
 * long so that n * part is exact for n < 2^23; then Taylor series on |r| <= pi/4, truncated below 1e-16.
 * Absolute error under 1e-15 for angles up to 1.3e7, then one rounding to f32. */
#include "backend/cpu/cpu.h"

#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define PIO2_1      0x1.921fb54p+0   /* 30 bits of pi/2 */
#define PIO2_2      0x1.10b46118p-30 /* the next 30 */
#define PIO2_3      0x1.313198a2e0370p-61
#define ROUND       6755399441055744.0 /* 1.5 * 2^52 */

static void sincos_d(double a, double *c, double *s) {
    double n = (a * TWO_OVER_PI + ROUND) - ROUND;
    double r = ((a - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
    double z = r * r;
    double ps = -1.0 / 1307674368000.0; /* 1/15! */
    ps = ps * z + 1.0 / 6227020800.0;
    ps = ps * z - 1.0 / 39916800.0;
    ps = ps * z + 1.0 / 362880.0;
    ps = ps * z - 1.0 / 5040.0;
    ps = ps * z + 1.0 / 120.0;
    ps = ps * z - 1.0 / 6.0;
    double sn = r + r * (z * ps);
    double pc = 1.0 / 20922789888000.0; /* 1/16! */
    pc = pc * z - 1.0 / 87178291200.0;
    pc = pc * z + 1.0 / 479001600.0;
    pc = pc * z - 1.0 / 3628800.0;
    pc = pc * z + 1.0 / 40320.0;
    pc = pc * z - 1.0 / 720.0;
    pc = pc * z + 1.0 / 24.0;
    pc = pc * z - 0.5;
    double cn = 1.0 + z * pc;
    switch ((int64_t)n & 3) {
    case 0:
        *c = cn, *s = sn;
        break;
    case 1:
        *c = -sn, *s = cn;
        break;
    case 2:
        *c = -cn, *s = -sn;
        break;
    default:
        *c = sn, *s = -cn;
        break;
    }
}

void bl_cpu_rope_row(int32_t pos, const float *inv_freq, uint32_t half, double scale, float *ret) {
    for (uint32_t i = 0; i < half; i++) {
        double c, s;
        sincos_d((double)pos * (double)inv_freq[i], &c, &s);
        ret[i] = (float)(c * scale);
        ret[i + half] = (float)(s * scale);
    }
}
