#include "runtime/draft_depth.h"

#include "base/base.h"

/* Before anything was measured, relative to reading the model once: a step; a verified row; a pass of the
 * head (head and output matrix of a 9B at 4 bit: 709 MB of 4464, models.md 5.5). */
static const double prior[3] = {1.0, 0.05, 0.15};
#define PRIOR_WEIGHT 0.01 /* of a term that is off by its own size, against a step that is */
#define PRIOR_ACCEPT 0.75

/* A mean of the last few: steps of one width and depth differ by some percent, contexts grow slowly. */
#define COST_WEIGHT    0.25
#define N_COST_FIRST   3u   /* times that a mean begins with */
#define FAR            1.25 /* one time moves the mean as if it were off by this at most ... */
#define STALE_COST_AGE 8u   /* ... unless the mean is older than this: then N_COST_FIRST times replace it */

/* Each draft is a coin; a mean over fewer would swing by more than the margin. */
#define MAX_JUDGED     32u
#define TRUSTED_JUDGED 8u
/* A place that was not looked at for so long may be anything by now: what comes next counts more. */
#define STALE_AGE    32u
#define STALE_JUDGED 4u

#define MARGIN         1.03 /* what a change must promise */
#define N_FIRST        12u  /* steps that may go into the first measurements at a width */
#define N_UNSEEN       24u /* choices without an observation, from which nothing is measured until there is one */
#define N_LOOK         3u
#define FIRST_INTERVAL 16u
#define LAST_INTERVAL  256u
/* A look is soon followed by another that finds so much more than it expected and is near to the best, or so
 * many more tokens, whatever they seemed to cost. */
#define PROMISING 1.05
#define NEAR      0.9
#define RISEN     1.2

void bl_draft_depth_init(bl_draft_depth *d, uint32_t max_depth, bool fixed) {
    BL_ASSERT(max_depth < BL_DRAFT_DEPTHS);
    *d = (bl_draft_depth){.max_depth = max_depth, .fixed = fixed};
    for (uint32_t i = 0; i < 3; i++) {
        d->model[i] = prior[i];
    }
    for (uint32_t w = 0; w < BL_DRAFT_WIDTHS; w++) {
        d->width[w].interval = FIRST_INTERVAL;
    }
}

static uint32_t width_of(uint32_t n_rows) {
    uint32_t w = 0;
    while (w + 1 < BL_DRAFT_WIDTHS && (1u << w) < n_rows) {
        w++;
    }
    return w;
}

/* ---- costs ---- */

static void terms(double n_rows, double n_drafting, uint32_t depth, double ret[3]) {
    ret[0] = 1.0;
    ret[1] = n_rows + n_drafting * depth;
    ret[2] = depth;
}

static double dot(const double a[3], const double b[3]) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static double model_cost(const bl_draft_depth *d, double n_rows, double n_drafting, uint32_t depth) {
    double x[3];
    terms(n_rows, n_drafting, depth, x);
    return dot(d->model, x);
}

/* Measured over modelled; between two measured depths along the line, beyond them as the nearest. */
static double measured_ratio(const bl_draft_depth *d, uint32_t w, uint32_t depth) {
    const bl_draft_cost *c = d->cost[w];
    uint32_t below = depth, above = depth;
    while (below > 0 && c[below].n == 0) {
        below--;
    }
    while (above < d->max_depth && c[above].n == 0) {
        above++;
    }
    double lo = c[below].n > 0 ? c[below].ns / model_cost(d, c[below].n_rows, c[below].n_rows, below) : 0;
    double hi = c[above].n > 0 ? c[above].ns / model_cost(d, c[above].n_rows, c[above].n_rows, above) : 0;
    if (lo > 0 && hi > 0) {
        return above > below ? lo + (hi - lo) * (depth - below) / (above - below) : lo;
    }
    return lo > 0 ? lo : hi > 0 ? hi : 1.0;
}

static double cost_of(const bl_draft_depth *d, uint32_t n_rows, uint32_t depth) {
    return model_cost(d, n_rows, n_rows, depth) * measured_ratio(d, width_of(n_rows), depth);
}

/* Solves a x = b for a symmetric positive definite a (made so by the prior): no pivoting is needed. */
static void solve3(double a[3][3], double b[3], double ret[3]) {
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t j = i + 1; j < 3; j++) {
            double f = a[j][i] / a[i][i];
            for (uint32_t k = i; k < 3; k++) {
                a[j][k] -= f * a[i][k];
            }
            b[j] -= f * b[i];
        }
    }
    for (uint32_t i = 3; i-- > 0;) {
        double sum = b[i];
        for (uint32_t k = i + 1; k < 3; k++) {
            sum -= a[i][k] * ret[k];
        }
        ret[i] = sum / a[i][i];
    }
}

/* Least squares of relative errors over the means, drawn a little towards the prior, which decides what the
 * means leave open (with one request, a step and its first row are never seen apart). The unknowns are in
 * units of the prior times `scale`. */
static void fit_model(bl_draft_depth *d) {
    double scale = 0, a[3][3] = {{0}}, b[3] = {0}, t[3];
    double x[BL_DRAFT_WIDTHS * BL_DRAFT_DEPTHS][3];
    uint32_t n_means = 0;
    for (uint32_t w = 0; w < BL_DRAFT_WIDTHS; w++) {
        for (uint32_t k = 0; k <= d->max_depth; k++) {
            const bl_draft_cost *c = &d->cost[w][k];
            if (c->n > 0) {
                terms(c->n_rows, c->n_rows, k, x[n_means]);
                scale += c->ns / dot(prior, x[n_means]);
                for (uint32_t i = 0; i < 3; i++) {
                    x[n_means][i] *= prior[i] / c->ns;
                }
                n_means++;
            }
        }
    }
    scale /= n_means;
    for (uint32_t i = 0; i < 3; i++) {
        a[i][i] = b[i] = PRIOR_WEIGHT;
    }
    for (uint32_t m = 0; m < n_means; m++) {
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t j = 0; j < 3; j++) {
                a[i][j] += scale * x[m][i] * scale * x[m][j];
            }
            b[i] += scale * x[m][i];
        }
    }
    solve3(a, b, t);
    for (uint32_t i = 0; i < 3; i++) {
        d->model[i] = scale * prior[i] * BL_MAX(t[i], 1e-3); /* a cost, whatever noise says */
    }
    d->measured = true;
}

static double least_of(const bl_draft_cost *c) {
    double least = c->last[0];
    for (uint32_t i = 1; i < BL_MIN(c->n_last, BL_DRAFT_COSTS_KEPT); i++) {
        least = BL_MIN(least, c->last[i]);
    }
    return least;
}

/* n_drafting of the n_rows requests drafted. */
static void add_cost(bl_draft_depth *d, uint32_t n_rows, uint32_t n_drafting, uint32_t depth, double ns) {
    bl_draft_cost *c = &d->cost[width_of(n_rows)][depth];
    double rows = c->n_rows + (n_rows - c->n_rows) * (c->n == 0 ? 1.0 : COST_WEIGHT);
    if (c->n > 0) { /* take what is there to the new mean width */
        double f = model_cost(d, rows, rows, depth) / model_cost(d, c->n_rows, c->n_rows, depth);
        c->ns *= f;
        for (uint32_t i = 0; i < BL_DRAFT_COSTS_KEPT; i++) {
            c->last[i] *= f;
        }
    }
    c->n_rows = rows;
    ns *= model_cost(d, rows, rows, depth) / model_cost(d, n_rows, n_drafting, depth);
    if (c->age >= STALE_COST_AGE) {
        c->n = BL_MIN(c->n, N_COST_FIRST);
        c->n_last = 0;
    }
    c->age = 0;
    c->last[c->n_last % BL_DRAFT_COSTS_KEPT] = ns;
    c->n_last = c->n_last + 1 < 2 * BL_DRAFT_COSTS_KEPT ? c->n_last + 1 : BL_DRAFT_COSTS_KEPT;
    c->n += c->n < UINT32_MAX;
    if (c->n <= N_COST_FIRST) {
        c->ns = least_of(c);
    } else if (c->n_last >= N_COST_FIRST) {
        double to = least_of(c);
        bool restart = c->n <= 2 * N_COST_FIRST;
        if (!restart || (to < c->ns * FAR && to * FAR > c->ns)) {
            to = BL_MAX(c->ns / FAR, BL_MIN(c->ns * FAR, to)) * COST_WEIGHT + c->ns * (1 - COST_WEIGHT);
        }
        c->ns = to;
    }
    for (uint32_t k = 0; k <= d->max_depth; k++) {
        c = &d->cost[width_of(n_rows)][k];
        c->age += k != depth && c->age < UINT32_MAX;
    }
    fit_model(d);
}

/* ---- acceptance ---- */

static void add_judged(bl_draft_depth *d, uint32_t i, uint32_t n_reached, uint32_t n_accepted) {
    if (n_reached == 0) {
        d->place[i].age += d->place[i].age < UINT32_MAX;
        return;
    }
    if (d->place[i].age >= STALE_AGE) {
        d->place[i].n_weight = BL_MIN(d->place[i].n_weight, STALE_JUDGED);
    }
    d->place[i].age = 0;
    double rate = (double)n_accepted / n_reached;
    for (uint32_t r = 0; r < n_reached; r++) {
        d->place[i].n_judged += d->place[i].n_judged < TRUSTED_JUDGED;
        d->place[i].n_weight += d->place[i].n_weight < MAX_JUDGED;
        d->place[i].p += (rate - d->place[i].p) / d->place[i].n_weight;
    }
}

/* Tokens a request gets of a step. A place with few judged drafts is taken to be like the one before it. */
static double tokens_of(const bl_draft_depth *d, uint32_t depth) {
    double before = PRIOR_ACCEPT, run = 1.0, sum = 1.0;
    for (uint32_t i = 0; i < depth; i++) {
        double known = (double)d->place[i].n_judged / TRUSTED_JUDGED;
        double p = known * d->place[i].p + (1.0 - known) * before;
        run *= p;
        sum += run;
        before = p;
    }
    return sum;
}

static double goodput(const bl_draft_depth *d, uint32_t n_rows, uint32_t depth) {
    return n_rows * tokens_of(d, depth) / cost_of(d, n_rows, depth);
}

/* ---- the three calls ---- */

/* What is to be measured before anything is chosen at this width; UINT32_MAX: nothing (any more). */
static uint32_t first_depth(const bl_draft_depth *d, uint32_t w) {
    if (d->width[w].n_first >= N_FIRST) {
        return UINT32_MAX;
    }
    if (w == 0 && d->cost[0][d->max_depth].n < N_COST_FIRST) {
        return d->max_depth;
    }
    return d->cost[w][0].n < N_COST_FIRST ? 0 : UINT32_MAX;
}

/* The depth to look at. Every other time a neighbour, whatever is thought of it: that is how rising
 * acceptance is seen from 0. Else the one that was not looked at for longest of those that are thought nearly
 * as good: where rows cost in tiles, the best may be behind a worse neighbour. */
static uint32_t depth_aside(bl_draft_depth *d, uint32_t n_rows, uint32_t w) {
    uint32_t depth = d->width[w].depth, turn = d->width[w].n_looks++;
    bool down = depth == d->max_depth || (depth > 0 && turn % 4 < 2);
    uint32_t ret = down ? depth - 1 : depth + 1;
    uint32_t oldest = 0;
    for (uint32_t k = 0; k <= d->max_depth && turn % 2 == 1; k++) {
        const bl_draft_cost *c = &d->cost[w][k];
        uint32_t age = c->n > 0 ? c->age : UINT32_MAX;
        if (k != depth && age > oldest && goodput(d, n_rows, k) > goodput(d, n_rows, depth) * NEAR) {
            oldest = age;
            ret = k;
        }
    }
    return ret;
}

static void begin_look(bl_draft_depth *d, uint32_t n_rows, uint32_t w) {
    d->width[w].look = depth_aside(d, n_rows, w);
    d->width[w].before = goodput(d, n_rows, d->width[w].look);
    d->width[w].tokens_before = tokens_of(d, d->width[w].look);
    d->width[w].n_look = N_LOOK;
}

static void end_look(bl_draft_depth *d, uint32_t n_rows, uint32_t w) {
    double g = goodput(d, n_rows, d->width[w].look);
    bool more = g > d->width[w].before * PROMISING && g > goodput(d, n_rows, d->width[w].depth) * NEAR;
    bool risen = tokens_of(d, d->width[w].look) > d->width[w].tokens_before * RISEN;
    d->width[w].interval = more || risen ? FIRST_INTERVAL : BL_MIN(d->width[w].interval * 2, LAST_INTERVAL);
    d->width[w].n_since = 0;
}

static void choose_again(bl_draft_depth *d, uint32_t n_rows, uint32_t w) {
    uint32_t best = 0;
    double most = goodput(d, n_rows, 0);
    for (uint32_t k = 1; k <= d->max_depth; k++) {
        double g = goodput(d, n_rows, k);
        if (g > most) {
            most = g;
            best = k;
        }
    }
    if (!d->width[w].chosen || most > goodput(d, n_rows, d->width[w].depth) * MARGIN) {
        /* Deeper by one at a time: each step judges more drafts, and what made it climb may be luck. */
        uint32_t most_deep = d->width[w].chosen ? d->width[w].depth + 1 : d->max_depth;
        d->width[w].depth = BL_MIN(best, most_deep);
        d->width[w].chosen = true;
        d->width[w].interval = FIRST_INTERVAL;
        d->width[w].n_since = 0;
    }
}

uint32_t bl_draft_depth_choose(bl_draft_depth *d, uint32_t n_rows) {
    if (d->fixed || d->max_depth == 0) {
        return d->max_depth;
    }
    n_rows = BL_MAX(n_rows, 1u);
    uint32_t w = width_of(n_rows);
    bool seen = d->width[w].n_unseen < N_UNSEEN; /* there is a point in measuring */
    d->width[w].n_unseen += seen;
    uint32_t first = first_depth(d, w);
    if (seen && first != UINT32_MAX) {
        return first;
    }
    if (seen && d->width[w].n_look > 0) {
        return d->width[w].look;
    }
    if (!d->width[w].chosen || d->width[w].n_judged_at != d->n_observed) {
        d->width[w].n_judged_at = d->n_observed;
        choose_again(d, n_rows, w);
        if (seen && d->width[w].n_since >= d->width[w].interval) {
            begin_look(d, n_rows, w);
            return d->width[w].look;
        }
    }
    return d->width[w].depth;
}

void bl_draft_depth_observe(bl_draft_depth *d, uint32_t n_rows, uint32_t depth, uint64_t ns,
                            const uint32_t *n_reached, const uint32_t *n_accepted) {
    if (depth > d->max_depth || n_rows == 0 || ns == 0) {
        return;
    }
    uint32_t w = width_of(n_rows);
    uint32_t n_drafting = depth > 0 ? BL_MIN(n_reached[0], n_rows) : n_rows;
    /* Counted whether or not it is the depth that was chosen, so that nothing can wait for one for ever. */
    bool first = first_depth(d, w) != UINT32_MAX;
    d->width[w].n_first += first;
    d->width[w].n_since += !first && d->width[w].n_look == 0;
    d->width[w].n_unseen = 0;
    d->n_observed++;
    if (n_drafting > 0) {
        add_cost(d, n_rows, n_drafting, depth, (double)ns);
    }
    for (uint32_t i = 0; i < d->max_depth; i++) {
        add_judged(d, i, i < depth ? n_reached[i] : 0, i < depth ? n_accepted[i] : 0);
    }
    if (d->width[w].n_look > 0 && --d->width[w].n_look == 0) {
        end_look(d, n_rows, w);
    }
}

double bl_draft_depth_expected(const bl_draft_depth *d, uint32_t n_rows, uint32_t depth) {
    if (!d->measured || n_rows == 0 || depth > d->max_depth) {
        return 0;
    }
    return goodput(d, n_rows, depth) * 1e9;
}
