#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

#include "base/base.h"

/* Optimal string alignment distance (insert, delete, replace, swap neighbours). Words beyond 63 bytes are
 * never near. */
static size_t distance(const char *a, const char *b) {
    enum { MAX = 64 };
    size_t n = strnlen(a, MAX), m = strnlen(b, MAX);
    if (n == MAX || m == MAX) {
        return MAX;
    }
    size_t rows[3][MAX];
    for (size_t j = 0; j <= m; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t *cur = rows[i % 3], *prev = rows[(i - 1) % 3], *prev2 = rows[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
            size_t d = BL_MIN(BL_MIN(prev[j] + 1, cur[j - 1] + 1), prev[j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                d = BL_MIN(d, prev2[j - 2] + 1);
            }
            cur[j] = d;
        }
    }
    return rows[n % 3][m];
}

const char *bl_nearest(const char *word, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t best_d = SIZE_MAX;
    size_t len = strlen(word);
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, names[i]);
        /* "max-tok" means "max-tokens": an unfinished word is as good as one slip. */
        if (len >= 3 && strncmp(word, names[i], len) == 0) {
            d = 1;
        }
        if (d < best_d) {
            best_d = d;
            best = names[i];
        }
    }
    return best_d <= BL_MAX((size_t)1, BL_MIN(len / 3, (size_t)3)) ? best : NULL;
}
