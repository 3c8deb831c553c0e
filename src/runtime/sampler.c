#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/dmath.h"
#include "base/rng.h"
#include "runtime/adjust.h"
#include "tensor/dtype.h"

#define BLOCK                                                                                                \
    256u /* of weights: summed in 8 lanes, so that the compiler may use vectors without changing a bit */
#define LANES     8u
#define MAX_LANES 16u

#define DIGIT_BITS   11u /* of a radix pass: three passes make a 32-bit key */
#define N_DIGITS     (1u << DIGIT_BITS)
#define HEAP_MAX     1024u /* above, sorting the whole vocabulary by radix is faster than a heap (measured) */
#define BUCKET_SHIFT 20u   /* buckets of weights: eight per octave */
#define N_BUCKETS    ((0x3f800000u >> BUCKET_SHIFT) + 1u) /* weights are at most 1 */

struct bl_sampler {
    uint32_t n_vocab, n_blocks;
    float *w;      /* [n_blocks * BLOCK]: exp((logit - max) / temperature); zero behind n_vocab */
    double *sums;  /* [n_blocks] */
    int32_t *ids;  /* [n_vocab]: candidates */
    float *weight; /* [n_vocab]: of ids, once chosen */
    uint64_t *pairs,
        *spare;      /* [n_vocab]: what the radix sort works on: key in the high half, id in the low */
    float *adjusted; /* [n_vocab]: logits after mask, bias and penalties */
    uint32_t digits[N_DIGITS];
    double mass[N_BUCKETS];
    uint32_t n_ids;
};

uint64_t bl_sampler_bytes(uint32_t n_vocab) {
    uint64_t n_blocks = ((uint64_t)n_vocab + BLOCK - 1) / BLOCK;
    uint64_t per_token = sizeof(int32_t) + 2 * sizeof(float) + 2 * sizeof(uint64_t);
    return n_blocks * (BLOCK * sizeof(float) + sizeof(double)) + n_vocab * per_token + sizeof(bl_sampler);
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
        s->pairs = bl_alloc_array(n_vocab, sizeof *s->pairs);
        s->spare = bl_alloc_array(n_vocab, sizeof *s->spare);
        s->adjusted = bl_alloc_array(n_vocab, sizeof *s->adjusted);
    }
    if (!s || !s->w || !s->sums || !s->ids || !s->weight || !s->pairs || !s->spare || !s->adjusted) {
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
    bl_free(s->pairs);
    bl_free(s->spare);
    bl_free(s->adjusted);
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
    return bl_penalties_check(p, err);
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

uint32_t bl_sampler_arg_max(const float *l, uint32_t n, bool *ret_bad) {
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
    *ret_bad = (bad[0] & 0x80000000u) != 0;
    uint32_t best = 0;
    while (best + 1 < n && l[best] != lane[0]) {
        best++;
    }
    return best;
}

/* ---- candidates -------------------------------------------------------------------------------------- */

/* The total order of candidates: larger logit first, then lower id. Every sort below gives one result,
 * whatever its steps. */
static bool before(const float *l, int32_t a, int32_t b) {
    return l[a] > l[b] || (l[a] == l[b] && a < b);
}

typedef bool less_fn(const float *l, int32_t a, int32_t b);

static bool worse(const float *l, int32_t a, int32_t b) {
    return before(l, b, a);
}

static bool higher_id(const float *l, int32_t a, int32_t b) {
    (void)l;
    return a > b;
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

/* A key whose ascending order is the logits' descending one; the two zeros are equal. */
static uint32_t rank_key(float x) {
    uint32_t bits = bl_f32_to_bits(x + 0.0f); /* minus zero becomes zero */
    return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

/* Sorts pairs by key; a stable sort, so equal keys stay in the order of ids that they were collected in. A
 * pass whose digit is the same for all is left out. */
static void sort_pairs(bl_sampler *s, uint32_t n) {
    for (uint32_t shift = 32; shift < 64; shift += DIGIT_BITS) {
        memset(s->digits, 0, sizeof s->digits);
        for (uint32_t i = 0; i < n; i++) {
            s->digits[(s->pairs[i] >> shift) % N_DIGITS]++;
        }
        if (n == 0 || s->digits[(s->pairs[0] >> shift) % N_DIGITS] == n) {
            continue;
        }
        uint32_t at = 0;
        for (uint32_t d = 0; d < N_DIGITS; d++) {
            uint32_t count = s->digits[d];
            s->digits[d] = at;
            at += count;
        }
        for (uint32_t i = 0; i < n; i++) {
            s->spare[s->digits[(s->pairs[i] >> shift) % N_DIGITS]++] = s->pairs[i];
        }
        uint64_t *t = s->pairs;
        s->pairs = s->spare;
        s->spare = t;
    }
}

static int32_t pair_id(uint64_t pair) {
    return (int32_t)(uint32_t)pair;
}

/* ids = the k first candidates in order. k <= n_vocab. The heap keeps the worst of the best on top: most
 * tokens cost one comparison. */
static void select_top(bl_sampler *s, const float *l, uint32_t k) {
    uint32_t n = s->n_vocab;
    int32_t *ids = s->ids;
    if (k > HEAP_MAX) {
        for (uint32_t i = 0; i < n; i++) {
            s->pairs[i] = (uint64_t)rank_key(l[i]) << 32 | i;
        }
        sort_pairs(s, n);
        for (uint32_t i = 0; i < k; i++) {
            ids[i] = pair_id(s->pairs[i]);
        }
        return;
    }
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

/* The smallest weight that can belong to the run of first candidates that reaches `need`: bounds of the
 * buckets' masses only, so a little lower than it must be. */
static float top_p_threshold(bl_sampler *s, double need) {
    memset(s->mass, 0, sizeof s->mass);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        s->mass[bl_f32_to_bits(s->w[i]) >> BUCKET_SHIFT] += (double)s->w[i];
    }
    double mass = 0.0;
    uint32_t b = N_BUCKETS;
    do { /* at least the largest; the run's own sum has another order: its last bits differ */
        mass += s->mass[--b];
    } while (b > 1 && mass < need * (1.0 + 1e-9));
    return bl_bits_to_f32((b << BUCKET_SHIFT) -
                          64u); /* exp_neg may fall by an ulp where its argument rises */
}

/* Without top-k: ids, ascending, = the shortest run of first candidates whose weight reaches `need`. Sorted
 * is only what can belong to it. */
static void collect_top_p(bl_sampler *s, const float *l, double need) {
    float least = top_p_threshold(s, need);
    uint32_t n = 0, m = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->w[i] >= least && s->w[i] > 0.0f) {
            s->pairs[n++] = (uint64_t)rank_key(l[i]) << 32 | i;
        }
    }
    sort_pairs(s, n);
    double sum = 0.0;
    while (m < n) {
        sum += (double)s->w[pair_id(s->pairs[m++])];
        if (sum >= need) {
            break;
        }
    }
    int32_t last = pair_id(s->pairs[m - 1]);
    s->n_ids = 0;
    for (int32_t i = 0; i < (int32_t)s->n_vocab; i++) {
        if (!before(l, last, i) && s->w[i] > 0.0f) {
            s->ids[s->n_ids++] = i;
        }
    }
}

static void keep_all(bl_sampler *s, float min_weight) {
    s->n_ids = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->w[i] >= min_weight && s->w[i] > 0.0f) {
            s->ids[s->n_ids++] = (int32_t)i;
        }
    }
}

/* ids = what top-k and then top-p leave, ascending by id; w holds their weights. */
static void collect_top_k(bl_sampler *s, const float *l, float max, const bl_sampling *p) {
    double total = 0.0, sum = 0.0;
    select_top(s, l, p->top_k);
    for (uint32_t i = 0; i < p->top_k; i++) {
        int32_t id = s->ids[i];
        s->w[id] = exp_neg((l[id] - max) / p->temperature);
        total += (double)s->w[id];
    }
    uint32_t keep = 0;
    while (keep < p->top_k && !(p->top_p < 1.0f && keep > 0 && sum >= (double)p->top_p * total)) {
        sum += (double)s->w[s->ids[keep++]];
    }
    s->n_ids = keep;
    if (keep <= HEAP_MAX) {
        heapify(s->ids, keep, l, higher_id);
        unheap(s->ids, keep, l, higher_id);
        return;
    }
    int32_t last = s->ids[keep - 1];
    s->n_ids = 0;
    for (int32_t i = 0; i < (int32_t)s->n_vocab; i++) {
        if (!before(l, last, i)) {
            s->ids[s->n_ids++] = i;
        }
    }
}

/* ids and weight = the support of the draw, ascending by id. False when it is the whole vocabulary (then w
 * and sums hold it). */
static bool find_support(bl_sampler *s, const float *l, uint32_t best, const bl_sampling *p) {
    float max = l[best];
    if (p->top_k > 0 && p->top_k < s->n_vocab) {
        collect_top_k(s, l, max, p);
    } else {
        double total = weigh_all(s, l, max, p->temperature);
        if (!(p->top_p < 1.0f) && !(p->min_p > 0.0f)) {
            return false;
        }
        if (p->top_p < 1.0f) {
            collect_top_p(s, l, (double)p->top_p * total);
        } else {
            keep_all(s, p->min_p);
        }
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_ids; i++) {
        float w = s->w[s->ids[i]];
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

/* The logits that the draw is made from: the model's own, or a changed copy. */
static const float *adjust(bl_sampler *s, const float *logits, const bl_pick_inputs *in) {
    if (!in->mask && in->n_bias == 0 && !bl_penalties_on(in->sampling)) {
        return logits;
    }
    bl_logits_adjust(s->adjusted, logits, s->n_vocab, in);
    return s->adjusted;
}

bl_code bl_sampler_pick(bl_sampler *s, const float *logits, const bl_pick_inputs *in, int32_t *ret_id,
                        bl_err *err) {
    const bl_sampling *p = in->sampling;
    bool bad;
    uint32_t best = bl_sampler_arg_max(logits, s->n_vocab, &bad);
    if (bad) {
        BL_FAIL(err, BL_EINTERNAL, "the model produced a logit that is NaN or infinite at position %u",
                in->pos);
    }
    const float *l = adjust(s, logits, in);
    if (l != logits) {
        best = bl_sampler_arg_max(l, s->n_vocab, &bad);
        if (l[best] == -INFINITY) {
            BL_FAIL(err, BL_EINVAL, "the mask allows none of %u tokens at position %u", s->n_vocab, in->pos);
        }
    }
    if (p->temperature == 0.0f) {
        *ret_id = (int32_t)best;
        return BL_OK;
    }
    float u = bl_rng_uniform(p->seed, 0, in->pos);
    *ret_id = find_support(s, l, best, p) ? draw_list(s->ids, s->weight, s->n_ids, u) : draw_all(s, u);
    return BL_OK;
}

void bl_sampler_logprobs(bl_sampler *s, const float *logits, int32_t id, uint32_t n_top, float *ret,
                         int32_t *ret_top_ids, float *ret_top) {
    n_top = BL_MIN(BL_MIN(n_top, s->n_vocab), BL_MAX_TOP_LOGPROBS);
    select_top(s, logits, BL_MAX(n_top, 1u));
    double max = (double)logits[s->ids[0]];
    double log_sum = bl_dmath_log(weigh_all(s, logits, logits[s->ids[0]], 1.0f));
    *ret = (float)(((double)logits[id] - max) - log_sum);
    for (uint32_t i = 0; i < n_top; i++) {
        ret_top_ids[i] = s->ids[i];
        ret_top[i] = (float)(((double)logits[s->ids[i]] - max) - log_sum);
    }
}

uint32_t bl_sampler_support(bl_sampler *s, const float *logits, const bl_pick_inputs *in,
                            const int32_t **ret_ids, const float **ret_weights) {
    bool bad;
    (void)bl_sampler_arg_max(logits, s->n_vocab, &bad);
    const float *l = adjust(s, logits, in);
    bool none;
    uint32_t best = bl_sampler_arg_max(l, s->n_vocab, &none);
    if (bad || l[best] == -INFINITY) {
        return 0;
    }
    if (!find_support(s, l, best, in->sampling)) {
        keep_all(s, 0.0f);
        for (uint32_t i = 0; i < s->n_ids; i++) {
            s->weight[i] = s->w[s->ids[i]];
        }
    }
    *ret_ids = s->ids;
    *ret_weights = s->weight;
    return s->n_ids;
}
