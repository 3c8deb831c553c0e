/* The checks of blcheck: candidate table against scalar table, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "blcheck.h"

static float *floats(const bc_buf *b) {
    return (float *)(void *)b->p;
}

static bc_buf float_buf(bl_check *c, size_t n, bc_kind kind) {
    bc_buf b = bc_new(c, n * sizeof(float), 4);
    for (size_t i = 0; i < n; i++) {
        floats(&b)[i] = bc_float(c, kind);
    }
    bc_freeze(&b);
    return b;
}

static bc_kind any_kind(bl_check *c) {
    return (bc_kind)bc_below(c, BC_KIND__MAX);
}

/* ---- matrix products ------------------------------------------------------------------------ */

typedef struct {
    const bc_form *f;
    uint32_t n_out, k, rows;
    bc_wkind wk;
    bc_kind xk;
    bool bias;
} mm_case;

/* Runs both tables on one case; then the candidate on every row alone and on a part of the blocks. */
static void matmul_case(bl_check *c, const mm_case *s) {
    bc_matrix w = bc_matrix_new(c, s->f, s->n_out, s->k, s->wk, BL_ACTIVATIONS_INT8);
    bl_dtype t = s->f->t;
    bl_group g = bl_pk_group(&w.pk);
    char name[40];
    bc_form_name(s->f, name);
    bc_buf x = float_buf(c, (size_t)s->rows * s->k, s->xk), bias = float_buf(c, s->n_out, BC_NORMAL);
    /* 16 floats between rows of y belong to nobody */
    size_t ldy = bl_slot_stride(s->n_out) + 16, ny = s->rows * ldy;
    bc_buf y0 = bc_new(c, ny * 4, 4), y1 = bc_new(c, ny * 4, 4);
    memcpy(y1.p, y0.p, ny * 4);
    bc_quant q = bc_quant_new(c, s->rows, s->k, g);
    for (uint32_t r = 0; r < s->rows; r++) {
        bc_quant_row(c->ref, g, &q, r, floats(&x) + (size_t)r * s->k, s->k);
    }
    bl_mm_args a = {.w = &w.pk,
                    .xq = &q.xq,
                    .x = floats(&x),
                    .ldx = s->k,
                    .y = floats(&y0),
                    .ldy = ldy,
                    .bias = s->bias ? floats(&bias) : NULL};
    bl_mm_args b = a;
    b.y = floats(&y1);
    c->ref->matmul[t](&a, 0, w.pk.n_blocks, 0, s->rows);
    c->cand->matmul[t](&b, 0, w.pk.n_blocks, 0, s->rows);
    bc_same(c, floats(&y0), floats(&y1), ny, "matmul %s [%u, %u] rows %u weights %d x %d", name, s->n_out,
            s->k, s->rows, s->wk, s->xk);
    for (uint32_t r = 0; r < s->rows; r++) { /* each row alone, and cut in two at a random block */
        uint32_t cut = bc_below(c, w.pk.n_blocks + 1);
        memset(floats(&y1) + r * ldy, 0xa5, w.pk.n_blocks * 64);
        c->cand->matmul[t](&b, 0, cut, r, r + 1);
        c->cand->matmul[t](&b, cut, w.pk.n_blocks, r, r + 1);
    }
    bc_same(c, floats(&y0), floats(&y1), ny, "matmul %s [%u, %u] rows %u one by one", name, s->n_out, s->k,
            s->rows);
    bc_expect(c, bc_unchanged(&w.mem) && bc_unchanged(&x) && bc_unchanged(&bias) && bc_canaries_ok(&y1),
              "matmul %s wrote outside its output", name);
    bc_matrix_free(&w);
    bc_quant_free(&q);
    bc_free(&x);
    bc_free(&bias);
    bc_free(&y0);
    bc_free(&y1);
}

/* The same sign everywhere, so that nothing cancels. */
static void matmul_one_sign(bl_check *c, const bc_form *f, bc_wkind wk) {
    enum { ROWS = 5, K = 512 };
    bl_dtype t = f->t;
    char name[40];
    bc_form_name(f, name);
    bc_matrix w = bc_matrix_new(c, f, 16, K, wk, BL_ACTIVATIONS_INT8);
    bc_quant q = bc_quant_new(c, ROWS, K, bl_pk_group(&w.pk));
    bc_buf x = float_buf(c, ROWS * K, BC_NORMAL), y0 = bc_new(c, ROWS * 64, 4), y1 = bc_new(c, ROWS * 64, 4);
    for (uint32_t i = 0; i < ROWS * K; i++) {
        floats(&x)[i] = i / K % 2 ? -1.0f : 1.0f;
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        bc_quant_row(c->ref, bl_pk_group(&w.pk), &q, r, floats(&x) + K * r, K);
    }
    bl_mm_args a = {.w = &w.pk, .xq = &q.xq, .x = floats(&x), .ldx = K, .y = floats(&y0), .ldy = 16}, b = a;
    b.y = floats(&y1);
    c->ref->matmul[t](&a, 0, 1, 0, ROWS);
    c->cand->matmul[t](&b, 0, 1, 0, ROWS);
    bc_same(c, floats(&y0), floats(&y1), 16 * ROWS, "matmul %s, all signs equal, weights %d", name, wk);
    c->cand->matmul[t](&b, 0, 1, 0, 2);
    bc_same(c, floats(&y0), floats(&y1), 16 * ROWS, "matmul %s, all signs equal, weights %d, two rows", name,
            wk);
    bc_matrix_free(&w);
    bc_quant_free(&q);
    bc_free(&x);
    bc_free(&y0);
    bc_free(&y1);
}

void check_matmul(bl_check *c, const bc_form *f) {
    static const uint32_t outs[] = {1, 15, 16, 17, 40, 64}, widths[] = {704, 2880, 1056};
    uint32_t unit = bc_form_unit(f), n = bl_dtype_is_affine(f->t) ? 3 : 8; /* these come in nine forms each */
    for (uint32_t rows = 0; rows <= 9; rows++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = unit * (1 + bc_below(c, i % 2 ? 3 : unit == 1 ? 1400 : 1400 / unit));
            k = i == 0 ? (unit == 1 ? 512 : 1024) : k;
            mm_case s = {.f = f,
                         .n_out = outs[bc_below(c, BL_COUNTOF(outs))],
                         .k = k,
                         .rows = rows,
                         .wk = (bc_wkind)bc_below(c, BC_W__MAX),
                         .xk = i < 4 && (i == 0 || n > 3) ? BC_NORMAL : any_kind(c),
                         .bias = bc_next(c) & 1};
            matmul_case(c, &s);
        }
    }
    for (uint32_t i = 0; i < BL_COUNTOF(widths); i++) { /* real widths, strips that end early */
        for (uint32_t rows = 1; unit > 1 && widths[i] % unit == 0 && rows <= 5; rows += 4) {
            mm_case s = {
                .f = f, .n_out = 32, .k = widths[i], .rows = rows, .wk = BC_W_RANDOM, .xk = BC_NORMAL};
            matmul_case(c, &s);
        }
    }
    for (int wk = 0; wk < BC_W__MAX;
         wk++) { /* the accumulators' worst cases: every |q| 127, every weight at an end of its range */
        for (uint32_t rows = 1; rows <= 5; rows += 4) {
            mm_case s = {.f = f, .n_out = 33, .k = 1024, .rows = rows, .wk = (bc_wkind)wk, .xk = BC_EXTREME};
            matmul_case(c, &s);
        }
    }
    matmul_one_sign(c, f, BC_W_MAX);
    matmul_one_sign(c, f, BC_W_MIN);
}

void check_quant(bl_check *c) {
    for (uint32_t i = 0; i < 90; i++) {
        bl_group g = (bl_group)(BL_GROUP_32 + i % 3);
        uint32_t k = bl_group_elems(g) * (1 + bc_below(c, 9));
        bc_buf x = float_buf(c, 2 * k, any_kind(c));
        if (i % 5 == 0) { /* halves: ties of rint */
            for (uint32_t j = 0; j < 2 * k; j++) {
                floats(&x)[j] = 0.5f * (float)((int)bc_below(c, 509) - 254);
            }
            floats(&x)[3] = 127.0f;
            bc_freeze(&x);
        }
        bc_quant a = bc_quant_new(c, 2, k, g), b = bc_quant_new(c, 2, k, g);
        memset(a.q.p, 0, a.q.size_bytes);
        memset(b.q.p, 1, b.q.size_bytes);
        for (uint32_t r = 0; r < 2; r++) {
            bc_quant_row(c->ref, g, &a, r, floats(&x) + r * k, k);
            bc_quant_row(c->cand, g, &b, r, floats(&x) + r * k, k);
        }
        bc_expect(c, bc_quant_equal(&a, &b, 2, k, g), "quant%d k %u case %u", (int)bl_group_elems(g), k, i);
        bc_expect(c, bc_unchanged(&x), "quant changed its input");
        bc_quant_free(&a);
        bc_quant_free(&b);
        bc_free(&x);
    }
}

void check_embed(bl_check *c) {
    const bc_form *f;
    size_t n = bc_forms(&f);
    for (size_t t = 0; t < n; t++) {
        char name[40];
        uint32_t k = 256 * (1 + bc_below(c, 3)), n_out = 1 + bc_below(c, 40);
        bc_matrix w = bc_matrix_new(c, &f[t], n_out, k, BC_W_RANDOM, BL_ACTIVATIONS_INT8);
        bc_buf a = bc_new(c, k * 4, 4), b = bc_new(c, k * 4, 4);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = bc_below(c, n_out);
            bc_matrix_dequant(&w, row, floats(&a));
            for (uint32_t j = 0; j < k; j++) {
                floats(&a)[j] = 25.25f * floats(&a)[j];
            }
            c->cand->embed(&w.pk, row, 25.25f, floats(&b));
            bc_same(c, floats(&a), floats(&b), k, "embed %s row %u against tensor/",
                    bc_form_name(&f[t], name), row);
        }
        bc_expect(c, bc_unchanged(&w.mem) && bc_canaries_ok(&b), "embed wrote outside its output");
        bc_matrix_free(&w);
        bc_free(&a);
        bc_free(&b);
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static uint32_t any_length(bl_check *c, uint32_t i) {
    static const uint32_t n[] = {1, 2, 7, 8, 9, 63, 64, 65, 100, 127, 128, 129, 192, 200, 256, 640, 1000};
    return i < BL_COUNTOF(n) ? n[i] : 1 + bc_below(c, 2000);
}

void check_rmsnorm(bl_check *c) {
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t n = any_length(c, i);
        bc_buf x = float_buf(c, n, any_kind(c)), w = float_buf(c, n, BC_NORMAL),
               add = float_buf(c, n, BC_MIXED);
        bc_buf y0 = bc_new(c, n * 4, 4), y1 = bc_new(c, n * 4, 4);
        const float *wp = i & 1 ? floats(&w) : NULL, *ap = i & 2 ? floats(&add) : NULL;
        c->ref->rmsnorm(floats(&x), wp, ap, floats(&y0), n, 1e-6f);
        c->cand->rmsnorm(floats(&x), wp, ap, floats(&y1), n, 1e-6f);
        bc_same(c, floats(&y0), floats(&y1), n, "rmsnorm n %u case %u", n, i);
        bc_expect(c, bc_unchanged(&x) && bc_unchanged(&w) && bc_unchanged(&add) && bc_canaries_ok(&y1),
                  "rmsnorm n %u wrote outside", n);
        c->cand->rmsnorm(floats(&x), wp, ap, floats(&x), n, 1e-6f);
        bc_same(c, floats(&y0), floats(&x), n, "rmsnorm in place n %u", n);
        bc_free(&x);
        bc_free(&w);
        bc_free(&add);
        bc_free(&y0);
        bc_free(&y1);
    }
}

void check_elementwise(bl_check *c) {
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t n = any_length(c, i);
        bc_kind kind = any_kind(c);
        bc_buf a = float_buf(c, n, kind), b = float_buf(c, n, BC_NORMAL), y0 = bc_new(c, n * 4, 4),
               y1 = bc_new(c, n * 4, 4);
        for (uint32_t j = 0; i % 3 == 0 && j < n; j++) { /* the ends of exp and tanh */
            floats(&a)[j] = bc_float(c, BC_NORMAL) * 60.0f;
        }
        bc_freeze(&a);
        c->ref->add(floats(&a), floats(&b), floats(&y0), n);
        c->cand->add(floats(&a), floats(&b), floats(&y1), n);
        bc_same(c, floats(&y0), floats(&y1), n, "add n %u", n);
        memcpy(y1.p, y0.p, n * 4);
        c->ref->axpy(0.75f, floats(&a), floats(&y0), n);
        c->cand->axpy(0.75f, floats(&a), floats(&y1), n);
        bc_same(c, floats(&y0), floats(&y1), n, "axpy n %u", n);
        for (int act = 0; act <= BL_GLU_CLAMPED; act++) {
            c->ref->glu(floats(&a), floats(&b), floats(&y0), n, (bl_glu_act)act, 1.25f);
            c->cand->glu(floats(&a), floats(&b), floats(&y1), n, (bl_glu_act)act, 1.25f);
            bc_same(c, floats(&y0), floats(&y1), n, "glu %d n %u values %d", act, n, kind);
        }
        memcpy(y0.p, a.p, n * 4);
        memcpy(y1.p, a.p, n * 4);
        c->ref->softcap(floats(&y0), n, 30.0f);
        c->cand->softcap(floats(&y1), n, 30.0f);
        bc_same(c, floats(&y0), floats(&y1), n, "softcap n %u values %d", n, kind);
        bc_expect(c, bc_unchanged(&a) && bc_unchanged(&b) && bc_canaries_ok(&y1),
                  "an element-wise op wrote outside its output, n %u", n);
        bc_free(&a);
        bc_free(&b);
        bc_free(&y0);
        bc_free(&y1);
    }
}

void check_rope(bl_check *c) {
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t half = i < 20 ? i + 1 : 1 + bc_below(c, 200);
        bc_buf x0 = float_buf(c, 2 * half, any_kind(c)), x1 = bc_new(c, 8 * half, 4),
               cs = float_buf(c, 2 * half, BC_NORMAL);
        memcpy(x1.p, x0.p, 8 * half);
        c->ref->rope(floats(&x0), floats(&cs), half);
        c->cand->rope(floats(&x1), floats(&cs), half);
        bc_same(c, floats(&x0), floats(&x1), 2 * half, "rope half %u", half);
        bc_expect(c, bc_unchanged(&cs) && bc_canaries_ok(&x1), "rope wrote outside, half %u", half);
        bc_free(&x0);
        bc_free(&x1);
        bc_free(&cs);
    }
}

void check_kv_store(bl_check *c) {
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t dim = i < 6 ? 16 * (i + 1) : 1 + bc_below(c, 260);
        bool f32 = i & 1;
        size_t bytes = (size_t)BL_KV_TILE * dim * (f32 ? 4 : 2);
        bc_buf k = float_buf(c, dim, BC_MIXED), v = float_buf(c, dim, BC_MIXED);
        bc_buf t[4];
        for (int j = 0; j < 4; j++) {
            t[j] = bc_new(c, bytes, 4);
        }
        memcpy(t[2].p, t[0].p, bytes);
        memcpy(t[3].p, t[1].p, bytes);
        uint32_t col = bc_below(c, BL_KV_TILE);
        c->ref->kv_store(floats(&k), floats(&v), dim, t[0].p, t[1].p, col, f32);
        c->cand->kv_store(floats(&k), floats(&v), dim, t[2].p, t[3].p, col, f32);
        bool same = memcmp(t[0].p, t[2].p, bytes) == 0 && memcmp(t[1].p, t[3].p, bytes) == 0;
        bc_expect(
            c, same && bc_canaries_ok(&t[2]) && bc_canaries_ok(&t[3]) && bc_unchanged(&k) && bc_unchanged(&v),
            "kv_store dim %u col %u f32 %d", dim, col, f32);
        for (int j = 0; j < 4; j++) {
            bc_free(&t[j]);
        }
        bc_free(&k);
        bc_free(&v);
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

typedef struct {
    uint32_t dim, n_kv, group, rows, pos0, window;
    bool f32, sinks;
    bc_kind kind;
} attn_case;

static void attention_case(bl_check *c, const attn_case *s) {
    uint32_t nh = s->n_kv * s->group, end = s->pos0 + s->rows, n_tiles = (end + BL_KV_TILE - 1) / BL_KV_TILE;
    size_t ld = (size_t)nh * s->dim, tile_bytes = (size_t)bl_kv_tile_bytes(s->n_kv, s->dim, s->f32);
    bc_buf q = float_buf(c, s->rows * ld, s->kind), y0 = bc_new(c, s->rows * ld * 4, 4),
           y1 = bc_new(c, s->rows * ld * 4, 4);
    bc_buf scratch = bc_new(c, bl_attn_scratch_floats(s->dim) * 4, 64), sinks = float_buf(c, nh, s->kind);
    bc_buf *tiles = calloc(n_tiles, sizeof(*tiles));
    void **table = calloc(n_tiles, sizeof(*table));
    int32_t *pos = calloc(s->rows, sizeof(*pos));
    if (!tiles || !table || !pos) {
        exit(2);
    }
    uint32_t first = s->window && s->pos0 >= s->window ? s->pos0 - s->window + 1 : 0;
    for (uint32_t t = first / BL_KV_TILE; t < n_tiles; t++) {
        tiles[t] = bc_new(c, tile_bytes, 64);
        table[t] = tiles[t].p;
        for (size_t i = 0; i < tile_bytes / (s->f32 ? 4 : 2); i++) {
            /* the position of this element, as key (inner index) or as value (outer) */
            size_t in = i % ((size_t)BL_KV_TILE * s->dim);
            bool value = i / ((size_t)BL_KV_TILE * s->dim) % 2;
            uint32_t p = t * BL_KV_TILE + (uint32_t)(value ? in / s->dim : in % BL_KV_TILE);
            float f = p < end ? bc_float(c, s->kind == BC_EXTREME ? BC_NORMAL : s->kind)
                              : NAN; /* not yet written: must not be seen */
            uint16_t h = bl_f32_to_bf16(f);
            memcpy(tiles[t].p + i * (s->f32 ? 4 : 2), s->f32 ? (void *)&f : (void *)&h, s->f32 ? 4 : 2);
        }
        bc_freeze(&tiles[t]);
    }
    for (uint32_t r = 0; r < s->rows; r++) {
        pos[r] = (int32_t)(s->pos0 + r);
    }
    bl_attn_args a = {.q = floats(&q),
                      .out = floats(&y0),
                      .ldq = ld,
                      .ldo = ld,
                      .pos = pos,
                      .tiles = table,
                      .n_heads = nh,
                      .n_kv_heads = s->n_kv,
                      .head_dim = s->dim,
                      .window = s->window,
                      .scale = 0.125f,
                      .sinks = s->sinks ? floats(&sinks) : NULL,
                      .kv_f32 = s->f32};
    for (uint32_t h = 0; h < s->n_kv; h++) {
        c->ref->attention(&a, 0, s->rows, h * s->group, (h + 1) * s->group, floats(&scratch));
    }
    a.out = floats(&y1);
    for (int way = 0; way < 2; way++) { /* all at once, then head by head and in pieces of rows */
        for (uint32_t h = 0; h < s->n_kv; h++) {
            if (way == 0) {
                c->cand->attention(&a, 0, s->rows, h * s->group, (h + 1) * s->group, floats(&scratch));
                continue;
            }
            for (uint32_t g = 0; g < s->group; g++) {
                uint32_t cut = bc_below(c, s->rows), hh = h * s->group + g;
                if (cut > 0) {
                    c->cand->attention(&a, 0, cut, hh, hh + 1, floats(&scratch));
                }
                c->cand->attention(&a, cut, s->rows, hh, hh + 1, floats(&scratch));
            }
        }
        bc_same(
            c, floats(&y0), floats(&y1), s->rows * ld,
            "attention dim %u kv heads %u x %u rows %u from %u window %u f32 %d sinks %d values %d way %d",
            s->dim, s->n_kv, s->group, s->rows, s->pos0, s->window, s->f32, s->sinks, s->kind, way);
    }
    bool clean = bc_unchanged(&q) && bc_canaries_ok(&y1) && bc_canaries_ok(&scratch);
    for (uint32_t t = 0; t < n_tiles; t++) {
        clean = clean && bc_unchanged(&tiles[t]);
        bc_free(&tiles[t]);
    }
    bc_expect(c, clean, "attention wrote outside its output");
    bc_free(&q);
    bc_free(&y0);
    bc_free(&y1);
    bc_free(&scratch);
    bc_free(&sinks);
    free(tiles);
    free(table);
    free(pos);
}

void check_attention(bl_check *c) {
    static const uint32_t dims[] = {64, 256, 48, 16, 8, 20, 5, 128};
    static const uint32_t starts[] = {0, 1, 60, 63, 64, 1000, 1023, 1024, 1030, 2040};
    for (uint32_t i = 0; i < 64; i++) {
        attn_case s = {.dim = dims[i % BL_COUNTOF(dims)],
                       .n_kv = 1 + bc_below(c, 2),
                       .group = 1 + bc_below(c, 6),
                       .pos0 = starts[bc_below(c, 10)],
                       .window = bc_below(c, 3) ? 0 : 1 + bc_below(c, 200),
                       .f32 = bc_below(c, 3) == 0,
                       .sinks = bc_below(c, 3) == 0};
        s.kind = i % 4 == 0 ? BC_MIXED : i % 4 == 1 ? BC_SMALL : BC_NORMAL;
        if (s.kind == BC_MIXED) {
            s.kind = BC_EXTREME;
        }
        s.rows = 1 + bc_below(c, i % 2 ? 3 : BL_ATTN_MAX_QV / s.group);
        attention_case(c, &s);
    }
}
