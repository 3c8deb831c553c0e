/* How many tokens to draft: a controller that picks the depth with the best expected tokens per second from
 * what steps cost and how many drafts were right. Pure bookkeeping: no clock, no allocation, no device; the
 * same calls give the same depths. What it picks can never change an answer, only the speed. [engine thread]
 *
 * Costs: a moving mean of the least of the last few times per depth and width of the batch (other programs
 * only ever add to a step's time), widths in powers of two (1, 2, 3-4, 5-8, ...). A model of three terms (a
 * step; each verified row; each pass of the head) is fitted through these means. It tells the cost of depths
 * that were not tried, and carries a mean from one width to another within a power of two, so that a width
 * that changes with every step does not look like noise.
 *
 * Acceptance: for each place of a round, how often a draft is right when all before it are.
 *
 * A step at depth k gives 1 + p0 + p0 p1 + ... tokens a request; the depth that gives the most a second wins,
 * by a margin. 0 always competes. What is not measured goes stale, so from time to time a few steps take
 * another depth, mostly one next to the chosen; the interval doubles while that changes nothing.
 *
 * The first steps: at one request max_depth is measured first, then 0; at other widths 0. Where nothing can
 * be observed, measuring is given up until something can, and the depth is chosen by prediction.
 */
#ifndef BL_RUNTIME_DRAFT_DEPTH_H
#define BL_RUNTIME_DRAFT_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

#define BL_DRAFT_DEPTHS     8u /* 0 to 7 */
#define BL_DRAFT_COSTS_KEPT 8u
#define BL_DRAFT_WIDTHS     7u /* up to 1, 2, 4, ... 64 rows, and what is more */

/* What steps at one width and depth cost. */
typedef struct {
    double ns;     /* moving mean of the least; all times are for n_rows requests */
    double n_rows; /* moving mean of the width */
    double last[BL_DRAFT_COSTS_KEPT];
    uint32_t n, n_last;
    uint32_t age; /* observations since the last one of this */
} bl_draft_cost;

/* Nobody but draft_depth.c looks inside. */
typedef struct bl_draft_depth {
    uint32_t max_depth;
    bool fixed;
    bl_draft_cost cost[BL_DRAFT_WIDTHS][BL_DRAFT_DEPTHS];
    double model[3]; /* ns of a step, of a verified row, of a pass of the head; before the first: relative */
    bool measured;   /* model is in ns */
    uint64_t n_observed;
    struct {
        double p;
        uint32_t n_judged, n_weight; /* drafts judged, and behind p: both up to a limit */
        uint32_t age;                /* observations since the last judged one */
    } place[BL_DRAFT_DEPTHS - 1u];
    struct {
        uint32_t depth; /* the chosen one */
        bool chosen;
        uint32_t n_first;  /* observations while the first measurements were due */
        uint32_t n_unseen; /* choices since the last observation */
        uint64_t n_judged_at;
        uint32_t n_since, interval; /* observations since the last look at another depth; when to look next */
        uint32_t n_looks, look;     /* looks so far; the depth of this one */
        uint32_t n_look;            /* observations it still wants; 0: none is under way */
        double before, tokens_before; /* tokens per ns and tokens that were expected of it */
    } width[BL_DRAFT_WIDTHS];
} bl_draft_depth;

/* max_depth < BL_DRAFT_DEPTHS. fixed: every step drafts max_depth, whatever it costs. */
void bl_draft_depth_init(bl_draft_depth *d, uint32_t max_depth, bool fixed);

/* The depth, 0 to max_depth, for a step in which n_rows requests decode (>= 1). Called once a step or more:
 * it is the observations that count. */
uint32_t bl_draft_depth_choose(bl_draft_depth *d, uint32_t n_rows);

/* What a step without prompt rows gave: n_rows requests decoded in ns, drafting included. n_reached[i], i <
 * depth: requests that had a draft at place i and all before it right; n_accepted[i]: of them right. Both may
 * be NULL at depth 0. n_reached[0] may be less than n_rows, where some requests do not draft; those that do
 * had `depth` drafts each. (A step in which limits cut the drafts of some is not observed.) */
void bl_draft_depth_observe(bl_draft_depth *d, uint32_t n_rows, uint32_t depth, uint64_t ns,
                            const uint32_t *n_reached, const uint32_t *n_accepted);

/* For reports: tokens per second of all n_rows requests at a depth <= max_depth, measured or predicted; 0
 * while nothing was observed. */
double bl_draft_depth_expected(const bl_draft_depth *d, uint32_t n_rows, uint32_t depth);

#endif
