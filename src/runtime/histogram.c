/* Histograms of durations for the engine's statistics (bl.h). */
#include "bl/bl.h"

const double bl_histogram_bounds[BL_HISTOGRAM_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                         0.5,   1,      2.5,   5,    10,    25,   60,  120};

void bl_histogram_add(bl_histogram *h, double seconds) {
    unsigned i = 0;
    while (i < BL_HISTOGRAM_BOUNDS && seconds > bl_histogram_bounds[i]) {
        i++;
    }
    h->counts[i]++;
    h->n++;
    h->sum_s += seconds;
}
