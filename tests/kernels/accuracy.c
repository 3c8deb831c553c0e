/* The written definitions against wider arithmetic, whole ops under every thread count, and the planted
 * faults. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/canon.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "blcheck.h"

/* ---- functions ------------------------------------------------------------------------------ */

/* |got - want| in units of the last place of f32 at want. */
static double ulps(float got, long double want) {
    if (want == 0.0L || fabsl(want) < 0x1p-149L) {
        return (double)(fabsl((long double)got - want) / 0x1p-149L);
    }
    int e = ilogbl(want) - 23;
    e = e < -149 ? -149 : e;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, e));
}

static long double sigmoid_l(long double x) {
    return 1.0L / (1.0L + expl(-x));
}
static long double softplus_l(long double x) {
    return (x > 0.0L ? x : 0.0L) + log1pl(expl(-fabsl(x)));
}
static long double silu_l(long double x) {
    return x * sigmoid_l(x);
}
static long double gelu_l(long double x) {
    return x * sigmoid_l(2.0L * 0.797884560802865355879892119868763737L * (x + 0.044715L * x * x * x));
}

typedef struct {
    const char *name;
    float (*f)(float);
    long double (*exact)(long double);
    float lo, hi;
    double limit;
} function;

void check_accuracy(bl_check *c) {
    static const function all[] = {
        {"exp", canon_exp, expl, -104.0f, 88.72f, 1.0},
        {"sigmoid", canon_sigmoid, sigmoid_l, -103.0f, 103.0f, 2.5},
        {"log1p", canon_log1p, log1pl, 0.0f, 1.0f, 2.0},
        {"softplus", canon_softplus, softplus_l, -80.0f, 80.0f, 3.0},
        {"tanh", canon_tanh, tanhl, -10.0f, 10.0f, 2.0},
        /* one more rounding, and up to twice the units where the product falls into the next binade */
        {"silu", canon_silu, silu_l, -80.0f, 80.0f, 3.5},
        /* the argument of the exponential, about 1.6 x^2 |x|, is rounded: its error grows with it */
        {"gelu_tanh", canon_gelu_tanh, gelu_l, -3.0f, 80.0f, 16.0},
    };
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        double worst = 0.0;
        float at = 0.0f;
        for (uint32_t n = 0; n < 400000; n++) {
            float u = (float)(bc_next(c) >> 40) * 0x1p-24f;
            float x = all[i].lo + (all[i].hi - all[i].lo) * u;
            x = n % 3 ? x : x * bl_bits_to_f32((127u - bc_below(c, 30)) << 23); /* small ones as well */
            double e = ulps(all[i].f(x), all[i].exact(x));
            if (e > worst) {
                worst = e;
                at = x;
            }
        }
        bc_expect(c, worst <= all[i].limit, "%s: %.2f ulp at %a, allowed %.1f", all[i].name, worst,
                  (double)at, all[i].limit);
        if (!c->quiet) {
            printf("  %-10s worst %.3f ulp (at %g) of 400000 points\n", all[i].name, worst, (double)at);
        }
    }
    bc_expect(c, bl_f32_to_bits(canon_exp(0.0f)) == bl_f32_to_bits(1.0f), "exp(0) is not 1");
    bc_expect(c, canon_exp(-INFINITY) == 0.0f && isinf(canon_exp(100.0f)), "exp at the ends");
    double worst = 0.0;
    for (uint32_t n = 0; n < 100000; n++) {
        int32_t pos = (int32_t)bc_below(c, n % 2 ? 4096 : 1u << 20);
        float inv = (float)pow(1e6, -(double)bc_below(c, 128) / 128.0), cs[2];
        bl_cpu_rope_row(pos, &inv, 1, 1.0, cs);
        long double a = (long double)pos * inv;
        worst = fmax(worst, fmax(ulps(cs[0], cosl(a)), ulps(cs[1], sinl(a))));
    }
    bc_expect(c, worst <= 0.51, "rope table: %.4f ulp, allowed 0.51", worst);
    if (!c->quiet) {
        printf("  %-10s worst %.4f ulp of 200000 values\n", "sin, cos", worst);
    }
}

/* ---- matrix products against double ---- */

/* Normalised mean squared error of the scalar product of one type, normal data, against the exact sum over
 * the dequantised weights. */
static double matmul_nmse(bl_check *c, const bc_form *f) {
    enum { N_OUT = 48, K = 1024 };
    bc_matrix m = bc_matrix_new(c, f, N_OUT, K, BC_W_TAME, BL_ACTIVATIONS_INT8);
    bc_buf x = bc_new(c, K * 4, 4), y = bc_new(c, N_OUT * 4, 4), w = bc_new(c, K * 4, 4);
    bc_quant q = bc_quant_new(c, 1, K, bl_pk_group(&m.pk));
    float *xf = (float *)(void *)x.p, *wf = (float *)(void *)w.p;
    for (uint32_t i = 0; i < K; i++) {
        xf[i] = bc_float(c, BC_NORMAL);
    }
    bc_quant_row(c->ref, bl_pk_group(&m.pk), &q, 0, xf, K);
    bl_mm_args a = {.w = &m.pk, .xq = &q.xq, .x = xf, .ldx = K, .y = (float *)(void *)y.p, .ldy = N_OUT};
    c->ref->matmul[f->t](&a, 0, m.pk.n_blocks, 0, 1);
    double se = 0.0, ss = 0.0;
    for (uint32_t o = 0; o < N_OUT; o++) {
        double want = 0.0;
        bc_matrix_dequant(&m, o, wf);
        for (uint32_t i = 0; i < K; i++) {
            want += (double)wf[i] * xf[i];
        }
        se += (a.y[o] - want) * (a.y[o] - want);
        ss += want * want;
    }
    bc_matrix_free(&m);
    bc_quant_free(&q);
    bc_free(&x);
    bc_free(&y);
    bc_free(&w);
    return se / ss;
}

void check_nmse(bl_check *c) {
    const bc_form *f;
    size_t n = bc_forms(&f);
    for (size_t i = 0; i < n; i++) {
        char name[40];
        bc_form_name(&f[i], name);
        double e = matmul_nmse(c, &f[i]);
        double limit = bc_form_is_float(&f[i]) ? 1e-11 : 3e-4;
        bc_expect(c, e <= limit, "matmul %s: normalised squared error %.2g, allowed %.2g", name, e, limit);
        if (!c->quiet) {
            printf("  matmul %-17s error %.2g (normalised, squared)\n", name, e);
        }
    }
}

/* ---- threads -------------------------------------------------------------------------------- */

enum { WIDTH = 512, HIDDEN = 272, HEADS = 4, DIM = 64, N_SLOTS = 8 };

/* A small list with every kind of op whose work is split, over two sequences. */
static size_t build_ops(bl_op *ops, bl_mat *const m[5], const float *inv_freq, const float *norm) {
    size_t n = 0;
    ops[n++] =
        (bl_op){.kind = BL_OP_EMBED, .label = "embed", .out = {0}, .n_w = 1, .w = {m[0]}, .scale = 3.0f};
    ops[n++] = (bl_op){.kind = BL_OP_ROPE_TABLE, .label = "table", .out = {6}, .n_rot = DIM, .vec = inv_freq};
    ops[n++] =
        (bl_op){.kind = BL_OP_RMSNORM, .label = "norm", .in0 = 0, .out = {1}, .vec = norm, .eps = 1e-6f};
    ops[n++] = (bl_op){
        .kind = BL_OP_MATMUL, .label = "qkv", .in0 = 1, .out = {2, 3, 4}, .n_w = 3, .w = {m[1], m[2], m[2]}};
    ops[n++] = (bl_op){.kind = BL_OP_ROPE,
                       .label = "rope",
                       .in0 = 6,
                       .out = {2},
                       .n_heads = HEADS,
                       .head_dim = DIM,
                       .n_rot = DIM};
    ops[n++] =
        (bl_op){.kind = BL_OP_KV_STORE, .label = "kv", .in0 = 3, .in1 = 4, .n_kv_heads = 1, .head_dim = DIM};
    ops[n++] = (bl_op){.kind = BL_OP_ATTENTION,
                       .label = "attn",
                       .in0 = 2,
                       .out = {5},
                       .n_heads = HEADS,
                       .n_kv_heads = 1,
                       .head_dim = DIM,
                       .window = 70,
                       .scale = 0.125f};
    ops[n++] = (bl_op){.kind = BL_OP_MATMUL, .label = "out", .in0 = 5, .out = {1}, .n_w = 1, .w = {m[3]}};
    ops[n++] = (bl_op){.kind = BL_OP_ADD_NORM,
                       .label = "add_norm",
                       .in0 = 0,
                       .in1 = 1,
                       .out = {0},
                       .vec = norm,
                       .eps = 1e-6f};
    ops[n++] =
        (bl_op){.kind = BL_OP_GLU, .label = "glu", .in0 = 0, .in1 = 1, .out = {1}, .act = BL_GLU_GELU_TANH};
    ops[n++] = (bl_op){.kind = BL_OP_ADD, .label = "add", .in0 = 0, .in1 = 1, .out = {0}};
    ops[n++] = (bl_op){.kind = BL_OP_SELECT, .label = "select", .in0 = 0, .out = {1}};
    ops[n++] = (bl_op){.kind = BL_OP_MATMUL,
                       .rows = BL_ROWS_OUT,
                       .label = "head",
                       .in0 = 1,
                       .out = {7},
                       .n_w = 1,
                       .w = {m[4]}};
    ops[n++] = (bl_op){.kind = BL_OP_SOFTCAP, .rows = BL_ROWS_OUT, .label = "cap", .out = {7}, .cap = 30.0f};
    return n;
}

#define ROWS_A 100u
#define ROWS_B 33u

/* Runs the list in pieces of `chunk` rows of each sequence; ret[133 * HIDDEN] are all logits. false when the
 * backend refuses. */
static bool run_list(bl_check *c, const bc_matrix mats[5], uint32_t threads, uint32_t mask, uint32_t chunk,
                     float *ret) {
    static const uint32_t widths[N_SLOTS] = {WIDTH, WIDTH, HEADS * DIM, DIM, DIM, HEADS * DIM, DIM, HIDDEN};
    float inv_freq[DIM / 2], norm[WIDTH];
    for (uint32_t i = 0; i < DIM / 2; i++) {
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / DIM);
    }
    for (uint32_t i = 0; i < WIDTH; i++) {
        norm[i] = 1.0f + (float)(i % 7) * 0.1f;
    }
    bl_cpu_options o = {.n_threads = threads, .cpu_mask = mask, .activations = BL_ACTIVATIONS_INT8};
    bl_backend *b;
    bl_err err;
    if (bl_backend_cpu_open(&o, &b, &err) != BL_OK) {
        return false;
    }
    bl_mat *m[5] = {NULL};
    bool ok = true;
    for (int i = 0; i < 5; i++) {
        ok = ok && b->ops->mat_new(b, &mats[i].desc, &m[i], &err) == BL_OK;
    }
    bc_buf slots[N_SLOTS], tiles[2][2];
    float *slot[N_SLOTS];
    void *table[2][2];
    for (int i = 0; i < N_SLOTS; i++) {
        slots[i] = bc_new(c, (size_t)(ROWS_A + ROWS_B) * bl_slot_stride(widths[i]) * 4, 64);
        slot[i] = (float *)(void *)slots[i].p;
    }
    for (int i = 0; i < 4; i++) {
        tiles[i / 2][i % 2] = bc_new(c, (size_t)bl_kv_tile_bytes(1, DIM, false), 64);
        table[i / 2][i % 2] = tiles[i / 2][i % 2].p;
    }
    bl_kv_table tables[2] = {{table[0], 2}, {table[1], 2}};
    const bl_kv_table *kv[1] = {tables};
    bl_op ops[16];
    size_t n_ops = build_ops(ops, m, inv_freq, norm);
    int32_t tokens[ROWS_A + ROWS_B], pos[ROWS_A + ROWS_B];
    uint32_t seq[ROWS_A + ROWS_B], out[ROWS_A + ROWS_B];
    uint64_t scratch;
    ok = ok && b->ops->prepare(b, ops, n_ops, ROWS_A + ROWS_B, &scratch, &err) == BL_OK;
    for (uint32_t p0 = 0; ok && p0 < ROWS_A; p0 += chunk) {
        uint32_t n = 0;
        for (uint32_t s = 0; s < 2; s++) {
            for (uint32_t p = p0; p < BL_MIN(p0 + chunk, s ? ROWS_B : ROWS_A); p++, n++) {
                tokens[n] = (int32_t)((p * 37 + s * 11) % HIDDEN);
                pos[n] = (int32_t)p;
                seq[n] = s;
                out[n] = n;
            }
        }
        bl_step step = {.n_rows = n,
                        .tokens = tokens,
                        .pos = pos,
                        .seq = seq,
                        .n_seqs = 2,
                        .kv = kv,
                        .n_out_rows = n,
                        .out_rows = out,
                        .n_slots = N_SLOTS,
                        .slots = slot,
                        .widths = widths};
        ok = b->ops->run(b, ops, n_ops, &step, &err) == BL_OK;
        for (uint32_t i = 0; i < n; i++) {
            memcpy(ret + ((size_t)(seq[i] ? ROWS_A : 0) + (uint32_t)pos[i]) * HIDDEN, slot[7] + i * HIDDEN,
                   HIDDEN * 4);
        }
    }
    for (int i = 0; i < N_SLOTS; i++) {
        ok = ok && bc_canaries_ok(&slots[i]);
        bc_free(&slots[i]);
    }
    for (int i = 0; i < 4; i++) {
        bc_free(&tiles[i / 2][i % 2]);
    }
    for (int i = 0; i < 5; i++) {
        b->ops->mat_free(b, m[i]);
    }
    b->ops->close(b);
    return ok;
}

void check_threads(bl_check *c, uint32_t mask, const char *tier) {
    static const bl_dtype types[][5] = {
        {BL_DTYPE_Q8_0, BL_DTYPE_Q5_0, BL_DTYPE_Q4_1, BL_DTYPE_Q4_K, BL_DTYPE_Q6_K},
        {BL_DTYPE_BF16, BL_DTYPE_F16, BL_DTYPE_Q5_K, BL_DTYPE_Q5_1, BL_DTYPE_Q4_0},
        {BL_DTYPE_AFFINE4, BL_DTYPE_AFFINE8, BL_DTYPE_NVFP4, BL_DTYPE_MXFP8, BL_DTYPE_MXFP4},
        {BL_DTYPE_GGUF_MXFP4, BL_DTYPE_AFFINE3, BL_DTYPE_AFFINE6, BL_DTYPE_AFFINE5, BL_DTYPE_AFFINE2}};
    static const uint32_t outs[5] = {HIDDEN, HEADS * DIM, DIM, WIDTH, HIDDEN},
                          ks[5] = {WIDTH, WIDTH, WIDTH, HEADS * DIM, WIDTH};
    size_t n = (size_t)(ROWS_A + ROWS_B) * HIDDEN;
    float *want = malloc(n * 4), *got = malloc(n * 4);
    if (!want || !got) {
        exit(2);
    }
    for (size_t s = 0; s < BL_COUNTOF(types); s++) {
        bc_matrix m[5];
        for (int i = 0; i < 5; i++) {
            bc_form f = bc_form_of(types[s][i]);
            m[i] = bc_matrix_new(c, &f, outs[i], ks[i], BC_W_ALTERNATE, BL_ACTIVATIONS_INT8);
        }
        bc_expect(c, run_list(c, m, 1, 0, 1000, want), "the op list does not run");
        for (uint32_t threads = 1; threads <= 3; threads++) {
            static const uint32_t chunks[] = {1000, 7, 1, 64};
            for (size_t i = 0; i < (mask == 0 ? 2 : BL_COUNTOF(chunks)); i++) {
                bool ok = run_list(c, m, threads, mask, chunks[i], got);
                bc_expect(c, ok, "the op list does not run: %s, %u threads, chunks of %u", tier, threads,
                          chunks[i]);
                bc_same(c, want, got, n, "op list %zu: %s, %u threads, chunks of %u", s, tier, threads,
                        chunks[i]);
            }
        }
        for (int i = 0; i < 5; i++) {
            bc_matrix_free(&m[i]);
        }
    }
    free(want);
    free(got);
}

/* ---- planted faults ------------------------------------------------------------------------- */

static bl_kernels sound; /* what the faulty kernels below spoil; set by selftest() before use */

static void wrong_scale(const bl_mm_args *a, uint32_t b0, uint32_t b1, uint32_t r0, uint32_t r1) {
    sound.matmul[a->w->dtype](a, b0, b1, r0, r1);
    if (b1 > b0 && r1 > r0) {
        float *y = a->y + (size_t)(r1 - 1) * a->ldy + (size_t)(b1 - 1) * BL_PK_ROWS;
        *y = bl_bits_to_f32(bl_f32_to_bits(*y) + 1); /* one unit in the last place, one output */
    }
}
static void row_depends(const bl_mm_args *a, uint32_t b0, uint32_t b1, uint32_t r0, uint32_t r1) {
    sound.matmul[a->w->dtype](a, b0, b1, r0, r1);
    if (r1 - r0 == 1 && b1 > b0) {
        a->y[(size_t)r0 * a->ldy + (size_t)b0 * BL_PK_ROWS] += 0.5f;
    }
}
static void past_the_row(const bl_mm_args *a, uint32_t b0, uint32_t b1, uint32_t r0, uint32_t r1) {
    sound.matmul[a->w->dtype](a, b0, b1, r0, r1);
    if (r1 > r0 && b1 == a->w->n_blocks) {
        a->y[(size_t)r0 * a->ldy + (size_t)b1 * BL_PK_ROWS] = 0.0f;
    }
}
static void short_tail(const float *x, const float *y, float *z, size_t n) {
    sound.add(x, y, z, n - (n % 8 == 7));
}
static void writes_before(const float *x, const float *y, float *z, size_t n) {
    sound.add(x, y, z, n);
    ((uint8_t *)z)[-1] = 0;
}
static void writes_input(float *x, const float *cs, uint32_t half) {
    float *p;
    memcpy(&p, &(const float *){cs}, sizeof(p));
    sound.rope(x, cs, half);
    p[half] += 1.0f;
}
static void sees_future(const bl_attn_args *a, uint32_t r0, uint32_t r1, uint32_t h0, uint32_t h1,
                        float *scratch) {
    int32_t pos[BL_ATTN_MAX_QV];
    bl_attn_args b = *a;
    for (uint32_t r = r0; r < r1; r++) {
        pos[r - r0] = a->pos[r] + (r + 1 < r1 ? 1 : 0);
    }
    b.pos = pos - r0;
    sound.attention(&b, r0, r1, h0, h1, scratch);
}
static void rounds_up(const bl_xq *o, size_t row, const float *x, uint32_t k) {
    sound.quant32(o, row, x, k);
    for (uint32_t i = 0; i < k; i++) { /* ties away from zero */
        float v = x[i] * (127.0f / (o->d[row * o->ld_g + i / 32] * 127.0f));
        o->q[row * o->ld_q + i] = (int8_t)roundf(o->d[row * o->ld_g + i / 32] == 0.0f ? 0.0f : v);
    }
}
static void rough_norm(const float *x, const float *w, const float *add, float *y, uint32_t n, float eps) {
    float s = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        s += x[i] * x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        float v = x[i] / sqrtf(s / (float)n + eps) * (w ? w[i] : 1.0f);
        y[i] = add ? add[i] + v : v;
    }
}

static void caught(bl_check *c, const char *what, const bl_check *f) {
    bc_expect(c, f->n_failed > 0, "planted fault not caught: %s", what);
}

static void check_form(bl_check *c, bl_dtype t) {
    bc_form f = bc_form_of(t);
    check_matmul(c, &f);
}

void selftest(bl_check *c) {
    bl_kernels bad;
    sound = *c->ref;
#define PLANT(what, field, value, call)                                                                      \
    do {                                                                                                     \
        bl_check f = {                                                                                       \
            .ref = c->ref, .cand = &bad, .tier = "planted", .seed = 7, .first_seed = 7, .quiet = true};      \
        bad = sound;                                                                                         \
        bad.field = value;                                                                                   \
        call;                                                                                                \
        caught(c, what, &f);                                                                                 \
    } while (0)
    PLANT("one unit in the last place of a product", matmul[BL_DTYPE_Q5_0], wrong_scale,
          check_form(&f, BL_DTYPE_Q5_0));
    PLANT("the same with scales apart", matmul[BL_DTYPE_AFFINE4], wrong_scale,
          check_form(&f, BL_DTYPE_AFFINE4));
    PLANT("a row alone differs from the row in a batch", matmul[BL_DTYPE_F16], row_depends,
          check_form(&f, BL_DTYPE_F16));
    PLANT("a write between the rows of the output", matmul[BL_DTYPE_Q6_K], past_the_row,
          check_form(&f, BL_DTYPE_Q6_K));
    PLANT("the last element of an odd length", add, short_tail, check_elementwise(&f));
    PLANT("a write before the output", add, writes_before, check_elementwise(&f));
    PLANT("a changed input", rope, writes_input, check_rope(&f));
    PLANT("attention to the next position", attention, sees_future, check_attention(&f));
    PLANT("ties rounded away from zero", quant32, rounds_up, check_quant(&f));
    PLANT("a norm in another order", rmsnorm, rough_norm, check_rmsnorm(&f));
    /* and the sound table passes */
    bl_check f = {.ref = c->ref, .cand = &sound, .tier = "sound", .seed = 7, .first_seed = 7};
    check_form(&f, BL_DTYPE_Q4_1);
    check_attention(&f);
    check_elementwise(&f);
    bc_expect(c, f.n_failed == 0 && f.n_passed > 0, "the sound table fails");
}
