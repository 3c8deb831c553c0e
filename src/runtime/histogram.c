/* Histograms of durations (bl.h). */
#include "base/base.h"
#include "bl/bl.h"

void bl_histogram_init(bl_histogram *h, const double *bounds, uint32_t n_bounds) {
    BL_ASSERT(n_bounds <= BL_HISTOGRAM_MAX_BOUNDS);
    *h = (bl_histogram){.bounds = bounds, .n_bounds = n_bounds};
}

void bl_histogram_add(bl_histogram *h, double seconds) {
    uint32_t i = 0;
    while (i < h->n_bounds && seconds > h->bounds[i]) {
        i++;
    }
    h->counts[i]++;
    h->n++;
    h->sum_s += seconds;
}
