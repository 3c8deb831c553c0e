#include "backend/attn_scores.h"

#include "base/base.h"

/* 1 + 2 + ... + n */
static uint64_t triangle(uint64_t n) {
    return n % 2 == 0 ? n / 2 * (n + 1) : (n + 1) / 2 * n;
}

/* Sum over positions p in [0, n) of min(p + 1, window). */
static uint64_t visible(uint64_t n, uint64_t window) {
    return window == 0 || n <= window ? triangle(n) : triangle(window) + (n - window) * window;
}

bl_attn_scores bl_attention_scores(uint64_t history, uint64_t n_rows, uint64_t window, uint64_t block) {
    bl_attn_scores r = {.useful = visible(history + n_rows, window) - visible(history, window)};
    for (uint64_t o = 0, step = block > 0 ? block : n_rows; o < n_rows; o += step) {
        uint64_t n = BL_MIN(step, n_rows - o), end = history + o + n, first = history + o + 1;
        r.executed += n * (end - (window > 0 && first > window ? first - window : 0));
    }
    return r;
}
