/* exp, log and pow in double from +, -, *, / and bit operations only, in a written order: the same bits on
 * every machine and compiler (libm differs between them). For tables and log-probabilities, not for kernels:
 * their functions are in the backends. Error below 2 ulp for exp and log; pow is exp(y log x), so |y log x|
 * ulp. Finite arguments.
 */
#ifndef BL_BASE_DMATH_H
#define BL_BASE_DMATH_H

double bl_dmath_exp(double x);           /* 0 below -745.2, infinity above 709.7 */
double bl_dmath_log(double x);           /* x > 0 and normal */
double bl_dmath_pow(double x, double y); /* x > 0 and normal */

#endif
