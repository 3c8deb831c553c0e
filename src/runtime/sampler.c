#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/dmath.h"
#include "base/rng.h"
#include "tensor/dtype.h"

#define BLOCK                                                                                                \
    256u /* of weights: summed in 8 lanes, so that the compiler may use vectors without changing a bit */
#define LANES     8u
#define MAX_LANES 16u

struct bl_sampler {
    uint32_t n_vocab, n_blocks;
    float *w;      /* [n_blocks * BLOCK]: exp((logit - max) / temperature); zero behind n_vocab */
    double *sums;  /* [n_blocks] */
    int32_t *ids;  /* [n_vocab]: candidates */
    float *weight; /* [n_vocab]: of ids, once chosen */
    const float *logits;
    uint32_t n_ids;
};

uint64_t bl_sampler_bytes(uint32_t n_vocab) {
    uint64_t n_blocks = ((uint64_t)n_vocab + BLOCK - 1) / BLOCK;
    return n_blocks * (BLOCK * sizeof(float) + sizeof(double)) + (uint64_t)n_vocab * 8u + sizeof(bl_sampler);
}

bl_code bl_sampler_new(uint32_t n_vocab, bl_sampler **ret, bl_err *err) {
    bl_sampler *s = bl_alloc(sizeof *s);
    if (s) {
        s->n_vocab = n_vocab;
        s->n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
        s->w = bl_alloc_aligned(64, (size_t)s->n_blocks * BLOCK * sizeof *s->w);
        s->sums = bl_alloc_array(s->n_blocks, sizeof *s->sums);
        s->ids = bl_alloc_array(n_vocab, sizeof *s->ids);
        s->weight = bl_alloc_array(n_vocab, sizeof *s->weight);
    }
    if (!s || !s->w || !s->sums || !s->ids || !s->weight) {
        bl_sampler_free(s);
        BL_FAIL(err, BL_ENOMEM, "out of memory for a sampler of %u tokens", n_vocab);
    }
    *ret = s;
    return BL_OK;
}

void bl_sampler_free(bl_sampler *s) {
    if (!s) {
        return;
    }
    bl_free_aligned(s->w);
    bl_free(s->sums);
    bl_free(s->ids);
    bl_free(s->weight);
    bl_free(s);
}

bl_code bl_sampling_check(const bl_sampling *p, bl_err *err) {
    if (!(p->temperature >= 0.0f && p->temperature <= 1e6f)) {
        BL_FAIL(err, BL_EINVAL, "temperature is %g, 0 to 1e6 is allowed", (double)p->temperature);
    }
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f)) {
        BL_FAIL(err, BL_EINVAL, "top_p is %g, 0 to 1 is allowed", (double)p->top_p);
    }
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f)) {
        BL_FAIL(err, BL_EINVAL, "min_p is %g, 0 to 1 is allowed", (double)p->min_p);
    }
    return BL_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------- */

#define EXP_MIN                                                                                              \
    (-87.0f) /* smaller results would be denormal: taken as 0, they are below 2^-125 of the largest */
#define LOG2E  0x1.715476p+0f
#define LN2_HI 0x1.62e400p-1f /* 14 bits: its product with |n| <= 126 is exact */
#define LN2_LO 0x1.7f7d1cp-20f
#define MAGIC  12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

/* exp for x <= 0 in f32, multiplications and additions only (no fused ones: the baseline instruction set has
 * none, and the order is what fixes the bits). Error below 2 ulp. */
static inline float exp_neg(float x) {
    uint32_t in = 0u - (uint32_t)(x > EXP_MIN); /* masks, not branches: the compiler then uses vectors */
    float c = bl_bits_to_f32((bl_f32_to_bits(x) & in) | (bl_f32_to_bits(EXP_MIN) & ~in));
    float t = c * LOG2E + MAGIC;
    float n = t - MAGIC;
    float r = (c - n * LN2_HI) - n * LN2_LO;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    uint32_t scale = (bl_f32_to_bits(t) - bl_f32_to_bits(MAGIC) + 127u) << 23; /* 2^n, n >= -126 */
    return bl_bits_to_f32(bl_f32_to_bits(p * bl_bits_to_f32(scale)) & in);
}

static void weigh_block(const float *restrict x, float max, float temperature, float *restrict w) {
    for (uint32_t i = 0; i < BLOCK; i++) {
        w[i] = exp_neg((x[i] - max) / temperature);
    }
}

static double block_sum(const float *w) {
    double lane[LANES] = {0};
    for (uint32_t i = 0; i < BLOCK; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lane[j] += (double)w[i + j];
        }
    }
    for (uint32_t j = LANES / 2; j > 0; j /= 2) {
        for (uint32_t i = 0; i < j; i++) {
            lane[i] += lane[i + j];
        }
    }
    return lane[0];
}

/* w[i] = exp((l[i] - max) / temperature) for all tokens; returns their sum. */
static double weigh_all(bl_sampler *s, const float *l, float max, float temperature) {
    double total = 0.0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        float *w = s->w + (size_t)b * BLOCK;
        const float *x = l + (size_t)b * BLOCK;
        if (s->n_vocab - b * BLOCK >= BLOCK) {
            weigh_block(x, max, temperature, w);
        } else {
            for (uint32_t i = 0; i < s->n_vocab - b * BLOCK; i++) {
                w[i] = exp_neg((x[i] - max) / temperature);
            }
        }
        s->sums[b] = block_sum(w);
        total += s->sums[b];
    }
    return total;
}

/* Largest logit, ties to the lower id; -1 when some logit is NaN or infinite. */
static int32_t arg_max(const float *l, uint32_t n) {
    float lane[MAX_LANES];
    uint32_t bad[MAX_LANES] = {0};
    for (uint32_t j = 0; j < MAX_LANES; j++) {
        lane[j] = -INFINITY;
    }
    uint32_t i = 0;
    for (; i + MAX_LANES <= n; i += MAX_LANES) {
        for (uint32_t j = 0; j < MAX_LANES; j++) {
            lane[j] = l[i + j] > lane[j] ? l[i + j] : lane[j];
            bad[j] |= (bl_f32_to_bits(l[i + j]) & 0x7f800000u) +
                      0x00800000u; /* the top bit: all exponent bits set */
        }
    }
    for (uint32_t j = 0; i < n; i++, j++) {
        lane[j] = l[i] > lane[j] ? l[i] : lane[j];
        bad[j] |= (bl_f32_to_bits(l[i]) & 0x7f800000u) + 0x00800000u;
    }
    for (uint32_t j = 1; j < MAX_LANES; j++) {
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
        bad[0] |= bad[j];
    }
    if (bad[0] & 0x80000000u) {
        return -1;
    }
    uint32_t best = 0;
    while (l[best] != lane[0]) {
        best++;
    }
    return (int32_t)best;
}

/* ---- candidates: heaps over ids ---------------------------------------------------------------------- */

/* The total order of candidates: larger logit first, then lower id. Every sort below gives one result,
 * whatever its steps. */
static bool before(const float *l, int32_t a, int32_t b) {
    return l[a] > l[b] || (l[a] == l[b] && a < b);
}

typedef bool less_fn(const float *l, int32_t a, int32_t b);

static bool worse(const float *l, int32_t a, int32_t b) {
    return before(l, b, a);
}

static bool lower_id(const float *l, int32_t a, int32_t b) {
    (void)l;
    return a < b;
}

/* ids[0..n) is a heap with the first element by `first` on top, but for position i. */
static void sift_down(int32_t *ids, uint32_t n, uint32_t i, const float *l, less_fn *first) {
    int32_t x = ids[i];
    for (uint32_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && first(l, ids[c + 1], ids[c])) {
            c++;
        }
        if (!first(l, ids[c], x)) {
            break;
        }
        ids[i] = ids[c];
        i = c;
    }
    ids[i] = x;
}

static void heapify(int32_t *ids, uint32_t n, const float *l, less_fn *first) {
    for (uint32_t i = n / 2; i-- > 0;) {
        sift_down(ids, n, i, l, first);
    }
}

/* A heap with the last element on top becomes the list in ascending order. */
static void unheap(int32_t *ids, uint32_t n, const float *l, less_fn *last) {
    for (uint32_t m = n; m > 1; m--) {
        int32_t top = ids[0];
        ids[0] = ids[m - 1];
        sift_down(ids, m - 1, 0, l, last);
        ids[m - 1] = top;
    }
}

static bool higher_id(const float *l, int32_t a, int32_t b) {
    return lower_id(l, b, a);
}

/* ids = the k first candidates in order. k <= n. The heap keeps the worst of the best on top: most tokens
 * cost one comparison. */
static void select_top(int32_t *ids, const float *l, uint32_t n, uint32_t k) {
    for (uint32_t i = 0; i < k; i++) {
        ids[i] = (int32_t)i;
    }
    heapify(ids, k, l, worse);
    for (uint32_t i = k; i < n; i++) {
        if (l[i] > l[ids[0]]) { /* equal ones lose: their id is higher */
            ids[0] = (int32_t)i;
            sift_down(ids, k, 0, l, worse);
        }
    }
    unheap(ids, k, l, worse);
}

/* Without top-k: ids = the shortest run of first candidates whose weight reaches `need`. Tokens are collected
 * down to a threshold that falls until the run fits, since sorting the whole vocabulary would cost more than
 * the step. */
static uint32_t collect_top_p(bl_sampler *s, double need) {
    static const float thresholds[] = {0x1p-8f, 0x1p-16f, 0x1p-32f, 0x1p-126f};
    uint32_t n = 0;
    for (size_t t = 0; t < BL_COUNTOF(thresholds); t++) {
        n = 0;
        double mass = 0.0;
        for (uint32_t i = 0; i < s->n_vocab; i++) {
            if (s->w[i] >= thresholds[t]) {
                s->ids[n++] = (int32_t)i;
                mass += (double)s->w[i];
            }
        }
        if (mass >= need * (1.0 + 1e-9)) { /* the sum below has another order: do not rely on its last bits */
            break;
        }
    }
    /* Pops the first candidates to the end of the array, then turns them round. */
    heapify(s->ids, n, s->logits, before);
    uint32_t m = 0;
    double sum = 0.0;
    while (m < n) {
        int32_t top = s->ids[0];
        s->ids[0] = s->ids[n - m - 1];
        s->ids[n - m - 1] = top;
        m++;
        sift_down(s->ids, n - m, 0, s->logits, before);
        sum += (double)s->w[top];
        if (sum >= need) {
            break;
        }
    }
    memmove(s->ids, s->ids + (n - m),
            m * sizeof *s->ids); /* in reverse order; sorted by id afterwards anyway */
    return m;
}

static void keep_all(bl_sampler *s, float min_weight) {
    s->n_ids = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->w[i] >= min_weight && s->w[i] > 0.0f) {
            s->ids[s->n_ids++] = (int32_t)i;
        }
    }
}

/* ids and weight = the support of the draw, ascending by id. False when it is the whole vocabulary (then w
 * and sums hold it). */
static bool find_support(bl_sampler *s, const float *l, int32_t best, const bl_sampling *p) {
    float max = l[best];
    bool cut_k = p->top_k > 0 && p->top_k < s->n_vocab, cut_p = p->top_p < 1.0f;
    s->logits = l;
    if (cut_k) {
        s->n_ids = p->top_k;
        select_top(s->ids, l, s->n_vocab, s->n_ids);
        double total = 0.0, sum = 0.0;
        for (uint32_t i = 0; i < s->n_ids; i++) {
            s->weight[i] = exp_neg((l[s->ids[i]] - max) / p->temperature);
            total += (double)s->weight[i];
        }
        uint32_t keep = 0;
        while (keep < s->n_ids && !(cut_p && keep > 0 && sum >= (double)p->top_p * total)) {
            sum += (double)s->weight[keep++];
        }
        s->n_ids = keep;
    } else {
        double total = weigh_all(s, l, max, p->temperature);
        if (!cut_p && !(p->min_p > 0.0f)) {
            return false;
        }
        if (cut_p) {
            s->n_ids = collect_top_p(s, (double)p->top_p * total);
        } else {
            keep_all(s, p->min_p);
        }
    }
    heapify(s->ids, s->n_ids, l, higher_id);
    unheap(s->ids, s->n_ids, l, higher_id);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_ids; i++) {
        float w = exp_neg((l[s->ids[i]] - max) / p->temperature);
        if (w >= p->min_p) { /* the largest weight is 1 */
            s->ids[n] = s->ids[i];
            s->weight[n++] = w;
        }
    }
    s->n_ids = n;
    return true;
}

/* ---- public ------------------------------------------------------------------------------------------ */

static int32_t draw_list(const int32_t *ids, const float *w, uint32_t n, float u) {
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        total += (double)w[i];
    }
    double target = (double)u * total;
    int32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i];
        if (w[i] > 0.0f) {
            last = ids[i];
            if (sum > target) {
                break;
            }
        }
    }
    return last;
}

/* Whole vocabulary: blocks first, then inside the block. */
static int32_t draw_all(const bl_sampler *s, float u) {
    double total = 0.0, sum = 0.0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        total += s->sums[b];
    }
    double target = (double)u * total;
    uint32_t b = 0, last_used = 0;
    double before_block = 0.0, before_last = 0.0;
    for (; b < s->n_blocks; b++) {
        if (s->sums[b] > 0.0) {
            last_used = b;
            before_last = before_block;
        }
        if (before_block + s->sums[b] > target) {
            break;
        }
        before_block += s->sums[b];
    }
    uint32_t at = last_used * BLOCK, last = at;
    sum = before_last;
    for (uint32_t i = at; i < at + BLOCK; i++) {
        sum += (double)s->w[i];
        if (s->w[i] > 0.0f) {
            last = i;
            if (sum > target) {
                break;
            }
        }
    }
    return (int32_t)last;
}

bl_code bl_sampler_pick(bl_sampler *s, const float *logits, const bl_sampling *p, uint32_t pos,
                        int32_t *ret_id, bl_err *err) {
    int32_t best = arg_max(logits, s->n_vocab);
    if (best < 0) {
        BL_FAIL(err, BL_EINTERNAL, "the model produced a logit that is NaN or infinite at position %u", pos);
    }
    if (p->temperature == 0.0f) {
        *ret_id = best;
        return BL_OK;
    }
    float u = bl_rng_uniform(p->seed, 0, pos);
    *ret_id = find_support(s, logits, best, p) ? draw_list(s->ids, s->weight, s->n_ids, u) : draw_all(s, u);
    return BL_OK;
}

void bl_sampler_logprobs(bl_sampler *s, const float *logits, int32_t id, uint32_t n_top, float *ret,
                         int32_t *ret_top_ids, float *ret_top) {
    n_top = BL_MIN(BL_MIN(n_top, s->n_vocab), BL_MAX_TOP_LOGPROBS);
    select_top(s->ids, logits, s->n_vocab, BL_MAX(n_top, 1u));
    double max = (double)logits[s->ids[0]];
    double log_sum = bl_dmath_log(weigh_all(s, logits, logits[s->ids[0]], 1.0f));
    *ret = (float)(((double)logits[id] - max) - log_sum);
    for (uint32_t i = 0; i < n_top; i++) {
        ret_top_ids[i] = s->ids[i];
        ret_top[i] = (float)(((double)logits[s->ids[i]] - max) - log_sum);
    }
}

uint32_t bl_sampler_support(bl_sampler *s, const float *logits, const bl_sampling *p, const int32_t **ret_ids,
                            const float **ret_weights) {
    int32_t best = arg_max(logits, s->n_vocab);
    if (best < 0) {
        return 0;
    }
    if (!find_support(s, logits, best, p)) {
        keep_all(s, 0.0f);
        for (uint32_t i = 0; i < s->n_ids; i++) {
            s->weight[i] = s->w[s->ids[i]];
        }
    }
    *ret_ids = s->ids;
    *ret_weights = s->weight;
    return s->n_ids;
}
