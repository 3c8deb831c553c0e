#include "base/dmath.h"

#include <stdint.h>
#include <string.h>

/* ln 2 in two parts; the first has 32 significant bits, so that its product with an exponent (11 bits) is
 * exact. */
#define LN2_HI  0x1.62e42feep-1
#define LN2_LO  0x1.a39ef35793c76p-33
#define INV_LN2 0x1.71547652b82fep0
#define SQRT2   0x1.6a09e667f3bcdp0

static double from_bits(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static uint64_t to_bits(double d) {
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

/* 2^n for -1022 <= n <= 1023 */
static double pow2(int64_t n) {
    return from_bits((uint64_t)(n + 1023) << 52);
}

double bl_dmath_exp(double x) {
    if (x > 709.78) {
        return from_bits(0x7ff0000000000000u);
    }
    if (x < -745.2) {
        return 0.0;
    }
    /* x = n ln2 + r with |r| <= ln2 / 2; then the Taylor polynomial of degree 13 (its remainder is below
     * 2^-57). */
    double t = x * INV_LN2;
    int64_t n = (int64_t)(t < 0 ? t - 0.5 : t + 0.5);
    double dn = (double)n;
    double r = (x - dn * LN2_HI) - dn * LN2_LO;
    static const double inv_factorial[] = {
        1.0,
        1.0,
        1.0 / 2,
        1.0 / 6,
        1.0 / 24,
        1.0 / 120,
        1.0 / 720,
        1.0 / 5040,
        1.0 / 40320,
        1.0 / 362880,
        1.0 / 3628800,
        1.0 / 39916800,
        1.0 / 479001600,
        1.0 / 6227020800.0,
    };
    double p = inv_factorial[13];
    for (int i = 12; i >= 0; i--) {
        p = p * r + inv_factorial[i];
    }
    int64_t half = n / 2; /* two factors, so that results below the normal range round once */
    return p * pow2(half) * pow2(n - half);
}

double bl_dmath_log(double x) {
    /* x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716 */
    uint64_t u = to_bits(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = from_bits((u & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m >= SQRT2) {
        m *= 0.5;
        e++;
    }
    double f = m - 1.0;
    double s = f / (m + 1.0);
    double z = s * s;
    double p = 1.0 / 23;
    for (int k = 21; k >= 3; k -= 2) {
        p = p * z + 1.0 / k;
    }
    /* 2 atanh(s) = 2s + 2s^3 (1/3 + ...), and 2s = f - s f, which keeps the error of s out of the leading
     * term */
    double tail = s * (2.0 * z * p - f);
    double de = (double)e;
    return de * LN2_HI + (f + (tail + de * LN2_LO));
}

double bl_dmath_pow(double x, double y) {
    return bl_dmath_exp(y * bl_dmath_log(x));
}
