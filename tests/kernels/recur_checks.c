/* The convolution and the delta rule of a tier against the scalar ones, over awkward shapes, cut in pieces.
 */
#include "base/base.h"
#include "blcheck.h"

#include <string.h>

static float *floats(const bc_buf *b) {
    return (float *)(void *)b->p;
}

static bc_buf buf_of(bl_check *c, size_t n, bc_kind kind) {
    bc_buf b = bc_new(c, n * sizeof(float), 4);
    for (size_t i = 0; i < n; i++) {
        floats(&b)[i] = bc_float(c, kind);
    }
    bc_freeze(&b);
    return b;
}

void check_conv(bl_check *c) {
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t taps = 2 + bc_below(c, 4), rows = 1 + bc_below(c, 9);
        uint32_t width = i < 12 ? i + 1 : 1 + bc_below(c, 200), ld = width + bc_below(c, 5);
        bc_buf w = buf_of(c, (size_t)taps * width, BC_NORMAL),
               state = buf_of(c, (size_t)(taps - 1) * width, BC_MIXED),
               x = buf_of(c, (size_t)rows * ld, i % 2 ? BC_NORMAL : BC_MIXED),
               y0 = bc_new(c, (size_t)rows * ld * 4, 4), y1 = bc_new(c, (size_t)rows * ld * 4, 4);
        memcpy(y1.p, y0.p, (size_t)rows * ld * 4); /* between the rows nothing may change */
        bl_conv_args a = {.w = floats(&w),
                          .state = floats(&state),
                          .x = floats(&x),
                          .y = floats(&y0),
                          .ldx = ld,
                          .ldy = ld,
                          .width = width,
                          .n_taps = taps};
        c->ref->conv(&a, 0, rows, 0, width);
        a.y = floats(&y1);
        uint32_t cut = bc_below(c, rows), col = bc_below(c, width);
        c->cand->conv(&a, 0, cut, 0, width);
        c->cand->conv(&a, cut, rows, 0, col);
        c->cand->conv(&a, cut, rows, col, width);
        bc_same(c, floats(&y0), floats(&y1), (size_t)rows * ld, "conv taps %u rows %u width %u", taps, rows,
                width);
        bc_expect(c, bc_unchanged(&w) && bc_unchanged(&state) && bc_unchanged(&x) && bc_canaries_ok(&y1),
                  "conv wrote outside its output, width %u", width);
        bc_free(&w);
        bc_free(&state);
        bc_free(&x);
        bc_free(&y0);
        bc_free(&y1);
    }
}

static void delta_case(bl_check *c, uint32_t i) {
    static const uint32_t dims[] = {128, 64, 32, 16, 20, 7};
    uint32_t dim = dims[bc_below(c, 6)], head_dim = dims[i % 6], keys = 1 + bc_below(c, 3);
    uint32_t heads = keys * (1 + bc_below(c, 3)), rows = 1 + bc_below(c, 6);
    size_t ld = 2u * keys * dim + heads * head_dim, ldo = heads * head_dim;
    size_t n_state = (size_t)heads * dim * head_dim;
    bc_buf qkv = buf_of(c, rows * ld, i % 3 ? BC_NORMAL : BC_SMALL),
           gates = buf_of(c, 2u * rows * heads, BC_NORMAL), s0 = buf_of(c, n_state, BC_NORMAL),
           s1 = bc_new(c, n_state * 4, 64), y0 = bc_new(c, rows * ldo * 4, 4),
           y1 = bc_new(c, rows * ldo * 4, 4);
    memcpy(s1.p, s0.p, n_state * 4);
    bl_delta_args a = {.qkv = floats(&qkv),
                       .ld = ld,
                       .beta = floats(&gates),
                       .decay = floats(&gates) + rows * heads,
                       .ldg = heads,
                       .out = floats(&y0),
                       .ldo = ldo,
                       .state = floats(&s0),
                       .n_heads = heads,
                       .n_key_heads = keys,
                       .dim = dim,
                       .head_dim = head_dim,
                       .heads = i & 1 ? BL_HEADS_TILED : BL_HEADS_GROUPED};
    uint32_t cut = bc_below(c, rows);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t j = 0; j < head_dim; j += BL_DELTA_LANES) {
            c->ref->delta(&a, 0, rows, h, j, BL_MIN(j + BL_DELTA_LANES, head_dim));
        }
    }
    a.out = floats(&y1);
    a.state = floats(&s1);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t j = 0; j < head_dim; j += BL_DELTA_LANES) {
            c->cand->delta(&a, 0, cut, h, j, BL_MIN(j + BL_DELTA_LANES, head_dim));
            c->cand->delta(&a, cut, rows, h, j, BL_MIN(j + BL_DELTA_LANES, head_dim));
        }
    }
    bc_same(c, floats(&y0), floats(&y1), rows * ldo, "delta dim %u head %u heads %u of %u rows %u", dim,
            head_dim, heads, keys, rows);
    bc_same(c, floats(&s0), floats(&s1), n_state, "delta state dim %u head %u", dim, head_dim);
    bc_expect(c, bc_unchanged(&qkv) && bc_unchanged(&gates) && bc_canaries_ok(&y1) && bc_canaries_ok(&s1),
              "delta wrote outside, dim %u head %u", dim, head_dim);
    bc_free(&qkv);
    bc_free(&gates);
    bc_free(&s0);
    bc_free(&s1);
    bc_free(&y0);
    bc_free(&y1);
}

void check_delta(bl_check *c) {
    for (uint32_t i = 0; i < 36; i++) {
        delta_case(c, i);
    }
}
