/* The CPU backend through its public table: ops against double-precision oracles made from bl_dequant_row,
 * and its refusals. Bit equality between kernels is blcheck's; here the subject is run.c, pack.c and cpu.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/base.h"
#include "base/rng.h"
#include "tensor/mlx.h"

static uint64_t seed;
static double uniform(void) {
    return (double)(bl_rng_next(&seed) >> 11) * 0x1p-53;
}
static float normal(void) {
    double s = 0;
    for (int i = 0; i < 12; i++) {
        s += uniform();
    }
    return (float)(s - 6.0);
}

static bl_backend *open_cpu(uint32_t threads, bl_activations act) {
    bl_backend *b;
    bl_cpu_options o = {.n_threads = threads, .cpu_mask = BL_CPU_ALL, .activations = act};
    assert_int_equal(bl_backend_cpu_open(&o, &b, NULL), BL_OK);
    return b;
}

/* Random rows of a type: random bits, scales made tame. */
static uint8_t *random_rows(bl_dtype t, uint32_t n_out, uint32_t k, uint64_t *ret_row_bytes) {
    const bl_dtype_info *info = bl_dtype_get(t);
    assert_int_equal(bl_dtype_row_bytes(t, k, ret_row_bytes, NULL), BL_OK);
    size_t n = (size_t)*ret_row_bytes * n_out;
    uint8_t *p = bl_alloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)bl_rng_next(&seed);
    }
    for (size_t b = 0; b < n / info->block_bytes; b++) {
        uint8_t *q = p + b * info->block_bytes;
        uint16_t d = bl_f32_to_f16((float)(uniform() * 0.02 - 0.01)),
                 m = bl_f32_to_f16((float)(uniform() * 0.02 - 0.01));
        if (t == BL_DTYPE_F32) {
            float f = normal();
            memcpy(q, &f, 4);
        } else if (t == BL_DTYPE_F16 || t == BL_DTYPE_BF16) {
            uint16_t h = t == BL_DTYPE_F16 ? bl_f32_to_f16(normal()) : bl_f32_to_bf16(normal());
            memcpy(q, &h, 2);
        } else if (t == BL_DTYPE_Q6_K) {
            memcpy(q + 208, &d, 2);
        } else if (t == BL_DTYPE_GGUF_MXFP4) {
            q[0] = (uint8_t)(118 + q[0] % 6);
        } else if (t == BL_DTYPE_MXFP8) {
            for (uint32_t i = 0; i < 32; i++) {
                q[i] = (q[i] & 0x7f) == 0x7f ? 0 : q[i];
            }
        } else if (!bl_dtype_is_mlx(t)) {
            memcpy(q, &d, 2);
            if (t == BL_DTYPE_Q4_1 || t == BL_DTYPE_Q5_1 || t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) {
                memcpy(q + 2, &m, 2);
            }
        }
    }
    return p;
}

/* A matrix and what it was made of. */
typedef struct {
    bl_mat_desc desc;
    uint8_t *rows, *scales, *biases;
    uint64_t row_bytes, scale_bytes; /* of one row */
} source;

/* Small scales or biases of an MLX type. */
static uint8_t *random_scales(const bl_mat_desc *d, uint64_t *ret_row_bytes) {
    size_t one = bl_dtype_get(d->scale_dtype)->block_bytes, n = (size_t)d->n_out * (d->k / d->group);
    uint8_t *p = bl_alloc(n * one);
    assert_non_null(p);
    *ret_row_bytes = n / d->n_out * one;
    for (size_t i = 0; i < n; i++) {
        float f = (float)(uniform() * 0.02 - 0.01);
        uint16_t h = d->scale_dtype == BL_DTYPE_F16 ? bl_f32_to_f16(f) : bl_f32_to_bf16(f);
        uint8_t b =
            (uint8_t)(d->dtype == BL_DTYPE_NVFP4 ? bl_rng_next(&seed) % 0x7f : 118 + bl_rng_next(&seed) % 6);
        memcpy(p + i * one, one == 1 ? (void *)&b : one == 2 ? (void *)&h : (void *)&f, one);
    }
    return p;
}

/* group and scale_dtype: as in bl_mat_desc, for MLX types. */
static source random_source(bl_dtype t, uint32_t group, bl_dtype scale_dtype, uint32_t n_out, uint32_t k) {
    source s = {.desc = {.name = "w", .dtype = t, .n_out = n_out, .k = k}};
    s.desc.rows = s.rows = random_rows(t, n_out, k, &s.row_bytes);
    if (!bl_dtype_is_mlx(t)) {
        return s;
    }
    s.desc.group = group;
    s.desc.scale_dtype = scale_dtype;
    s.desc.scales = s.scales = random_scales(&s.desc, &s.scale_bytes);
    if (bl_dtype_is_affine(t)) {
        s.desc.biases = s.biases = random_scales(&s.desc, &s.scale_bytes);
    }
    s.desc.global_scale = t == BL_DTYPE_NVFP4 ? 0.015625f : 0.0f;
    return s;
}

static void source_done(source *s) {
    bl_free(s->rows);
    bl_free(s->scales);
    bl_free(s->biases);
}

static void dequant(const source *s, uint32_t row, float *dst) {
    const bl_mat_desc *d = &s->desc;
    if (!bl_dtype_is_mlx(d->dtype)) {
        bl_dequant_row(d->dtype, s->rows + row * s->row_bytes, dst, d->k);
        return;
    }
    bl_mlx_row r = {.dtype = d->dtype,
                    .scale_dtype = d->scale_dtype,
                    .group = d->group,
                    .global_scale = d->global_scale,
                    .packed = s->rows + row * s->row_bytes,
                    .scales = s->scales + row * s->scale_bytes,
                    .biases = s->biases ? s->biases + row * s->scale_bytes : NULL};
    bl_mlx_dequant(&r, 0, dst, d->k);
}

static const struct {
    bl_dtype t;
    uint32_t group;
    bl_dtype scale_dtype;
} forms[] = {
    {BL_DTYPE_F32, 0, 0},
    {BL_DTYPE_F16, 0, 0},
    {BL_DTYPE_BF16, 0, 0},
    {BL_DTYPE_Q4_0, 0, 0},
    {BL_DTYPE_Q4_1, 0, 0},
    {BL_DTYPE_Q5_0, 0, 0},
    {BL_DTYPE_Q5_1, 0, 0},
    {BL_DTYPE_Q8_0, 0, 0},
    {BL_DTYPE_Q4_K, 0, 0},
    {BL_DTYPE_Q5_K, 0, 0},
    {BL_DTYPE_Q6_K, 0, 0},
    {BL_DTYPE_AFFINE2, 64, BL_DTYPE_F32},
    {BL_DTYPE_AFFINE3, 32, BL_DTYPE_BF16},
    {BL_DTYPE_AFFINE4, 64, BL_DTYPE_BF16},
    {BL_DTYPE_AFFINE4, 32, BL_DTYPE_F16},
    {BL_DTYPE_AFFINE4, 128, BL_DTYPE_BF16},
    {BL_DTYPE_AFFINE5, 128, BL_DTYPE_F16},
    {BL_DTYPE_AFFINE6, 32, BL_DTYPE_F32},
    {BL_DTYPE_AFFINE8, 64, BL_DTYPE_BF16},
    {BL_DTYPE_MXFP4, 32, BL_DTYPE_U8},
    {BL_DTYPE_MXFP8, 32, BL_DTYPE_U8},
    {BL_DTYPE_NVFP4, 16, BL_DTYPE_F8_E4M3},
    {BL_DTYPE_GGUF_MXFP4, 0, 0},
};

static float *slot(uint32_t rows, uint32_t width) {
    float *p = bl_alloc_aligned(64, (size_t)rows * bl_slot_stride(width) * sizeof(float));
    assert_non_null(p);
    return p;
}

/* y = W x over n rows through one MATMUL op, and the normalised mean squared error against double. */
static double matmul_nmse(bl_backend *b, const source *src, uint32_t rows, bool with_bias) {
    uint32_t n_out = src->desc.n_out, k = src->desc.k;
    bl_mat *m;
    bl_err err;
    assert_int_equal(b->ops->mat_new(b, &src->desc, &m, &err), BL_OK);
    float *slots[2] = {slot(rows, k), slot(rows, n_out)}, *bias = bl_alloc(n_out * sizeof(float)),
          *w = bl_alloc(k * sizeof(float));
    assert_true(bias && w);
    for (uint32_t i = 0; i < n_out; i++) {
        bias[i] = normal();
    }
    for (size_t i = 0; i < (size_t)rows * bl_slot_stride(k); i++) {
        slots[0][i] = normal();
    }
    bl_op op = {.kind = BL_OP_MATMUL,
                .label = "mm",
                .in0 = 0,
                .out = {1},
                .n_w = 1,
                .w = {m},
                .bias = {with_bias ? bias : NULL}};
    int32_t *pos = bl_alloc(rows * sizeof(*pos));
    uint32_t *seq = bl_alloc(rows * sizeof(*seq));
    assert_true(pos && seq);
    for (uint32_t i = 0; i < rows; i++) {
        pos[i] = (int32_t)i;
    }
    uint32_t widths[2] = {k, n_out};
    bl_step s = {.n_rows = rows,
                 .tokens = pos,
                 .pos = pos,
                 .seq = seq,
                 .n_seqs = 1,
                 .n_slots = 2,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    assert_int_equal(b->ops->prepare(b, &op, 1, rows, &scratch, &err), BL_OK);
    assert_int_equal(b->ops->run(b, &op, 1, &s, &err), BL_OK);
    double se = 0, ss = 0;
    for (uint32_t o = 0; o < n_out; o++) {
        dequant(src, o, w);
        for (uint32_t r = 0; r < rows; r++) {
            double want = with_bias ? bias[o] : 0.0;
            for (uint32_t i = 0; i < k; i++) {
                want += (double)w[i] * slots[0][r * bl_slot_stride(k) + i];
            }
            double e = slots[1][r * bl_slot_stride(n_out) + o] - want;
            se += e * e;
            ss += want * want;
        }
    }
    b->ops->mat_free(b, m);
    bl_free_aligned(slots[0]);
    bl_free_aligned(slots[1]);
    bl_free(bias);
    bl_free(w);
    bl_free(pos);
    bl_free(seq);
    return se / ss;
}

static void test_matmul(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        bl_backend *b = open_cpu(2, act ? BL_ACTIVATIONS_F32 : BL_ACTIVATIONS_INT8);
        for (size_t f = 0; f < BL_COUNTOF(forms); f++) {
            bl_dtype t = forms[f].t;
            uint32_t k = bl_dtype_get(t)->block_elems == 256 || forms[f].group == 128 ? 768
                         : forms[f].group == 64                                       ? 704
                                                                                      : 672;
            for (uint32_t rows = 1; rows <= 9; rows += 4) {
                seed = (uint64_t)(f * 100) + rows;
                source src = random_source(t, forms[f].group, forms[f].scale_dtype, 37, k);
                double e = matmul_nmse(b, &src, rows, rows == 5);
                bool floats = act || t <= BL_DTYPE_BF16 || t == BL_DTYPE_MXFP8;
                /* int8 activations of normal data: error about (a/127)^2/12 relative to 1, a near 2.5 to 3 */
                if (e > (floats ? 1e-11 : 2e-4) || (!floats && e < 1e-7)) {
                    fail_msg("%s, activations %d, %u rows: nmse %g", bl_dtype_get(t)->name, act, rows, e);
                }
                source_done(&src);
            }
        }
        b->ops->close(b);
    }
}

static void test_embed(void **state) {
    (void)state;
    bl_backend *b = open_cpu(1, BL_ACTIVATIONS_INT8);
    for (size_t f = 0; f < BL_COUNTOF(forms); f++) {
        uint32_t k = 512, n_out = 21;
        uint64_t scratch;
        source src = random_source(forms[f].t, forms[f].group, forms[f].scale_dtype, n_out, k);
        bl_mat *m;
        assert_int_equal(b->ops->mat_new(b, &src.desc, &m, NULL), BL_OK);
        int32_t tokens[3] = {0, 17, 20}, pos[3] = {0, 1, 2};
        uint32_t seq[3] = {0}, widths[1] = {k};
        float *slots[1] = {slot(3, k)}, want[512];
        bl_op op = {.kind = BL_OP_EMBED, .label = "embed", .out = {0}, .n_w = 1, .w = {m}, .scale = 25.25f};
        bl_step s = {.n_rows = 3,
                     .tokens = tokens,
                     .pos = pos,
                     .seq = seq,
                     .n_seqs = 1,
                     .n_slots = 1,
                     .slots = slots,
                     .widths = widths};
        assert_int_equal(b->ops->prepare(b, &op, 1, 3, &scratch, NULL), BL_OK);
        assert_int_equal(b->ops->run(b, &op, 1, &s, NULL), BL_OK);
        for (int r = 0; r < 3; r++) {
            dequant(&src, (uint32_t)tokens[r], want);
            for (uint32_t i = 0; i < k; i++) {
                if (slots[0][(uint32_t)r * k + i] != 25.25f * want[i]) {
                    fail_msg("%s row %d element %u: %g, expected %g", bl_dtype_get(forms[f].t)->name, r, i,
                             (double)slots[0][(uint32_t)r * k + i], (double)(25.25f * want[i]));
                }
            }
        }
        tokens[1] = 21;
        assert_int_equal(b->ops->run(b, &op, 1, &s, NULL), BL_EINVAL);
        tokens[1] = -1;
        assert_int_equal(b->ops->run(b, &op, 1, &s, NULL), BL_EINVAL);
        b->ops->mat_free(b, m);
        bl_free_aligned(slots[0]);
        source_done(&src);
    }
    b->ops->close(b);
}

static void test_bad_mlx(void **state) {
    (void)state;
    bl_backend *b = open_cpu(2, BL_ACTIVATIONS_INT8);
    source src = random_source(BL_DTYPE_AFFINE4, 64, BL_DTYPE_BF16, 40, 128);
    bl_mat *m = NULL;
    bl_err err;
    src.desc.name = "layers.3.w";
    uint16_t nan = 0x7fc0, good;
    memcpy(&good, src.biases + 33 * src.scale_bytes + 2, 2);
    memcpy(src.biases + 33 * src.scale_bytes + 2, &nan, 2);
    assert_int_equal(b->ops->mat_new(b, &src.desc, &m, &err), BL_EFORMAT);
    assert_non_null(strstr(err.msg, "layers.3.w, row 33"));
    assert_non_null(strstr(err.msg, "bias is NaN (AFFINE4, group at element 64)"));
    memcpy(src.biases + 33 * src.scale_bytes + 2, &good, 2);
    src.desc.group = 48;
    assert_int_equal(b->ops->mat_new(b, &src.desc, &m, &err), BL_EINVAL);
    assert_non_null(strstr(err.msg, "layers.3.w"));
    src.desc.group = 64;
    src.desc.biases = NULL;
    assert_int_equal(b->ops->mat_new(b, &src.desc, &m, &err), BL_EINVAL);
    assert_null(m);
    source_done(&src);
    b->ops->close(b);
}

static void test_bad_scale(void **state) {
    (void)state;
    bl_backend *b = open_cpu(2, BL_ACTIVATIONS_INT8);
    uint64_t rb;
    uint8_t *raw = random_rows(BL_DTYPE_Q8_0, 40, 64, &rb);
    uint16_t nan = 0x7e00;
    memcpy(raw + 33 * rb + 34, &nan, 2);
    bl_mat_desc d = {.name = "blk.3.w", .dtype = BL_DTYPE_Q8_0, .n_out = 40, .k = 64, .rows = raw};
    bl_mat *m = NULL;
    bl_err err;
    assert_int_equal(b->ops->mat_new(b, &d, &m, &err), BL_EFORMAT);
    assert_null(m);
    assert_non_null(strstr(err.msg, "blk.3.w"));
    d.k = 48;
    assert_int_equal(b->ops->mat_new(b, &d, &m, &err), BL_EINVAL);
    bl_free(raw);
    b->ops->close(b);
}

/* ---- attention: two sequences, GQA, a window, against double; and the same bits row by row ---- */

enum { D = 48, NH = 6, NKV = 2, ROWS0 = 150, ROWS1 = 3, ROWS = ROWS0 + ROWS1, TILES = 3 };

typedef struct {
    bl_kv_table tables[2];
    const bl_kv_table *kv[1];
    void *tiles[2][TILES];
} kv_fixture;

static void kv_init(kv_fixture *f, bool f32) {
    for (int s = 0; s < 2; s++) {
        for (int t = 0; t < TILES; t++) {
            f->tiles[s][t] = bl_alloc_aligned(64, (size_t)bl_kv_tile_bytes(NKV, D, f32));
            assert_non_null(f->tiles[s][t]);
            memset(f->tiles[s][t], 0xff,
                   (size_t)bl_kv_tile_bytes(NKV, D, f32)); /* NaN: slots not yet written must not be seen */
        }
        f->tables[s] = (bl_kv_table){.tiles = f->tiles[s], .n_tiles = TILES};
    }
    f->kv[0] = f->tables;
}

static void kv_done(kv_fixture *f) {
    for (int s = 0; s < 2; s++) {
        for (int t = 0; t < TILES; t++) {
            bl_free_aligned(f->tiles[s][t]);
        }
    }
}

/* slots: 0 q, 1 k, 2 v, 3 out. Stores and attends rows [r0, r1) of the given data in one step. */
static void attend(bl_backend *b, kv_fixture *f, float *const data[4], uint32_t r0, uint32_t r1,
                   const int32_t *pos, const uint32_t *seq, uint32_t window) {
    static const uint32_t widths[4] = {NH * D, NKV * D, NKV * D, NH * D};
    float *slots[4];
    for (int i = 0; i < 4; i++) {
        slots[i] = data[i] + (size_t)r0 * bl_slot_stride(widths[i]);
    }
    bl_op ops[2] = {
        {.kind = BL_OP_KV_STORE, .label = "kv", .in0 = 1, .in1 = 2, .n_kv_heads = NKV, .head_dim = D},
        {.kind = BL_OP_ATTENTION,
         .label = "attn",
         .in0 = 0,
         .out = {3},
         .n_heads = NH,
         .n_kv_heads = NKV,
         .head_dim = D,
         .window = window,
         .scale = 0.144f}};
    bl_step s = {.n_rows = r1 - r0,
                 .tokens = pos,
                 .pos = pos + r0,
                 .seq = seq + r0,
                 .n_seqs = 2,
                 .kv = f->kv,
                 .n_slots = 4,
                 .slots = slots,
                 .widths = widths};
    bl_err err;
    uint64_t scratch;
    assert_int_equal(b->ops->prepare(b, ops, 2, r1 - r0, &scratch, &err), BL_OK);
    if (b->ops->run(b, ops, 2, &s, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
}

static double attention_error(float *const data[4], const int32_t *pos, const uint32_t *seq, uint32_t window,
                              uint32_t rows) {
    double worst = 0;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < NH; h++) {
            double sum = 0, acc[D] = {0}, s[ROWS];
            for (int pass = 0; pass < 2; pass++) {
                for (uint32_t j = 0; j < rows; j++) {
                    if (seq[j] != seq[r] || pos[j] > pos[r] ||
                        (window && pos[j] <= pos[r] - (int32_t)window)) {
                        continue;
                    }
                    if (pass == 0) {
                        s[j] = 0;
                        for (uint32_t i = 0; i < D; i++) {
                            s[j] += (double)data[0][r * NH * D + h * D + i] *
                                    data[1][j * NKV * D + h / 3 * D + i];
                        }
                        continue;
                    }
                    double p = exp(s[j] * 0.144f);
                    sum += p;
                    for (uint32_t i = 0; i < D; i++) {
                        acc[i] += p * data[2][j * NKV * D + h / 3 * D + i];
                    }
                }
            }
            for (uint32_t i = 0; i < D; i++) {
                worst = fmax(worst, fabs(acc[i] / sum - data[3][r * NH * D + h * D + i]));
            }
        }
    }
    return worst;
}

static void test_attention(void **state) {
    (void)state;
    seed = 5;
    float *data[4] = {slot(ROWS, NH * D), slot(ROWS, NKV * D), slot(ROWS, NKV * D), slot(ROWS, NH * D)};
    int32_t pos[ROWS];
    uint32_t seq[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        pos[r] = (int32_t)(r < ROWS0 ? r : r - ROWS0);
        seq[r] = r < ROWS0 ? 0 : 1;
    }
    for (size_t i = 0; i < ROWS * NH * D; i++) {
        data[0][i] = normal();
    }
    for (size_t i = 0; i < ROWS * NKV * D;
         i++) { /* bf16 values, so that storage is exact and the oracle sees the same */
        data[1][i] = bl_bf16_to_f32(bl_f32_to_bf16(normal()));
        data[2][i] = bl_bf16_to_f32(bl_f32_to_bf16(normal()));
    }
    for (uint32_t window = 0; window <= 70; window += 35) {
        for (int act = 0; act < 2; act++) {
            uint32_t rows = ROWS;
            bl_backend *b = open_cpu(2, act ? BL_ACTIVATIONS_F32 : BL_ACTIVATIONS_INT8);
            kv_fixture f;
            kv_init(&f, act != 0);
            attend(b, &f, data, 0, rows, pos, seq, window);
            double e = attention_error(data, pos, seq, window, rows);
            if (e > 2e-5) {
                fail_msg("window %u, activations %d: error %g", window, act, e);
            }
            float *once = slot(ROWS, NH * D), *all = data[3];
            memcpy(once, all, (size_t)rows * NH * D * sizeof(float));
            memset(all, 0, (size_t)rows * NH * D * sizeof(float));
            static const uint32_t cuts[] = {0, 1, 8, 9, 73, 140, ROWS};
            for (size_t i = 0; i + 1 < BL_COUNTOF(cuts); i++) {
                attend(b, &f, data, cuts[i], cuts[i + 1], pos, seq, window);
            }
            assert_memory_equal(once, all, (size_t)rows * NH * D * sizeof(float));
            bl_free_aligned(once);
            kv_done(&f);
            b->ops->close(b);
        }
    }
    for (int i = 0; i < 4; i++) {
        bl_free_aligned(data[i]);
    }
}

/* Rows that see position j are those at j ... j + window - 1, and no others: a key and value at j that change
 * move exactly their bits, on both sides of both edges. */
static void expect_causal(float *const data[4], uint32_t j, uint32_t window, uint32_t block, bool f32) {
    int32_t pos[ROWS];
    uint32_t seq[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        pos[r] = (int32_t)(r < ROWS0 ? r : r - ROWS0);
        seq[r] = r < ROWS0 ? 0 : 1;
    }
    float *before = slot(ROWS, NH * D);
    for (int changed = 0; changed < 2; changed++) {
        bl_cpu_options o = {.n_threads = 2,
                            .cpu_mask = UINT32_MAX,
                            .activations = f32 ? BL_ACTIVATIONS_F32 : BL_ACTIVATIONS_INT8,
                            .attn_query_block = block};
        bl_backend *b = NULL;
        kv_fixture f;
        assert_int_equal(bl_backend_cpu_open(&o, &b, NULL), BL_OK);
        kv_init(&f, f32);
        for (uint32_t i = 0; changed && i < NKV * D; i++) {
            data[1][j * NKV * D + i] += 0.5f;
            data[2][j * NKV * D + i] += 1.0f;
        }
        attend(b, &f, data, 0, ROWS, pos, seq, window);
        if (!changed) {
            memcpy(before, data[3], (size_t)ROWS * NH * D * sizeof(float));
        }
        for (uint32_t i = 0; changed && i < NKV * D; i++) {
            data[1][j * NKV * D + i] -= 0.5f;
            data[2][j * NKV * D + i] -= 1.0f;
        }
        kv_done(&f);
        b->ops->close(b);
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        bool sees = r < ROWS0 && r >= j && (window == 0 || r < j + window);
        for (uint32_t h = 0; h < NH; h++) {
            size_t at = (size_t)r * NH * D + (size_t)h * D;
            bool same = memcmp(before + at, data[3] + at, D * sizeof(float)) == 0;
            if (same == sees) {
                fail_msg("window %u, block %u: row %u, head %u %s position %u", window, block, r, h,
                         sees ? "does not see" : "sees", j);
            }
        }
    }
    bl_free_aligned(before);
}

static void test_attention_is_causal(void **state) {
    (void)state;
    static const uint32_t at[] = {0, 1, 30, 63, 64, 65, 100, ROWS0 - 1};
    seed = 6;
    float *data[4] = {slot(ROWS, NH * D), slot(ROWS, NKV * D), slot(ROWS, NKV * D), slot(ROWS, NH * D)};
    for (size_t i = 0; i < ROWS * NH * D; i++) {
        data[0][i] = 0.2f * normal(); /* no key takes all of the weight */
    }
    for (size_t i = 0; i < ROWS * NKV * D; i++) {
        data[1][i] = normal();
        data[2][i] = normal();
    }
    for (uint32_t window = 0; window <= 70; window += 35) {
        for (size_t i = 0; i < BL_COUNTOF(at); i++) {
            expect_causal(data, at[i], window, 0, false);
            expect_causal(data, at[i], window, 7, true);
        }
    }
    for (int i = 0; i < 4; i++) {
        bl_free_aligned(data[i]);
    }
}

static void test_missing_tile(void **state) {
    (void)state;
    bl_backend *b = open_cpu(1, BL_ACTIVATIONS_INT8);
    kv_fixture f;
    kv_init(&f, false);
    float *slots[2] = {slot(1, NH * D), slot(1, NH * D)};
    uint32_t widths[2] = {NH * D, NH * D}, seq = 0;
    int32_t pos = 64 * TILES;
    bl_op op = {.kind = BL_OP_ATTENTION,
                .label = "attn",
                .in0 = 0,
                .out = {1},
                .n_heads = NH,
                .n_kv_heads = NKV,
                .head_dim = D,
                .scale = 1};
    bl_step s = {.n_rows = 1,
                 .tokens = &pos,
                 .pos = &pos,
                 .seq = &seq,
                 .n_seqs = 2,
                 .kv = f.kv,
                 .n_slots = 2,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    bl_err err;
    assert_int_equal(b->ops->prepare(b, &op, 1, 1, &scratch, NULL), BL_OK);
    assert_int_equal(b->ops->run(b, &op, 1, &s, &err), BL_EINVAL);
    pos = -1;
    assert_int_equal(b->ops->run(b, &op, 1, &s, &err), BL_EINVAL);
    pos = 0;
    seq = 2;
    assert_int_equal(b->ops->run(b, &op, 1, &s, &err), BL_EINVAL);
    kv_done(&f);
    bl_free_aligned(slots[0]);
    bl_free_aligned(slots[1]);
    b->ops->close(b);
}

/* A step that prepare() did not foresee is refused, not run over the end of the scratch. */
static void test_unprepared(void **state) {
    (void)state;
    bl_backend *b = open_cpu(1, BL_ACTIVATIONS_INT8);
    uint64_t rb, scratch;
    uint8_t *raw = random_rows(BL_DTYPE_Q8_0, 16, 96, &rb);
    bl_mat_desc d = {.name = "w", .dtype = BL_DTYPE_Q8_0, .n_out = 16, .k = 96, .rows = raw};
    bl_mat *m;
    bl_err err;
    assert_int_equal(b->ops->mat_new(b, &d, &m, &err), BL_OK);
    float *slots[2] = {slot(2, 96), slot(2, 96)};
    uint32_t widths[2] = {96, 16}, seq[2] = {0, 0};
    int32_t pos[2] = {0, 1};
    bl_op mm = {.kind = BL_OP_MATMUL, .label = "mm", .in0 = 0, .out = {1}, .n_w = 1, .w = {m}};
    bl_op norm = {.kind = BL_OP_RMSNORM, .label = "norm", .in0 = 0, .out = {0}, .dim = 48, .eps = 1e-6f};
    bl_step s = {.n_rows = 1,
                 .tokens = pos,
                 .pos = pos,
                 .seq = seq,
                 .n_seqs = 1,
                 .n_slots = 2,
                 .slots = slots,
                 .widths = widths};
    assert_int_equal(b->ops->run(b, &norm, 1, &s, &err), BL_EINVAL); /* nothing prepared */
    assert_int_equal(b->ops->prepare(b, &norm, 1, 1, &scratch, &err), BL_OK);
    assert_int_equal(b->ops->run(b, &norm, 1, &s, &err), BL_OK);
    assert_int_equal(b->ops->run(b, &mm, 1, &s, &err), BL_EINVAL); /* a list without products */
    assert_int_equal(b->ops->prepare(b, &mm, 1, 1, &scratch, &err), BL_OK);
    assert_int_equal(b->ops->run(b, &mm, 1, &s, &err), BL_OK);
    s.n_rows = 2;
    assert_int_equal(b->ops->run(b, &mm, 1, &s, &err), BL_EINVAL); /* more rows */
    s.n_rows = 1;
    widths[0] = 64;
    assert_int_equal(b->ops->run(b, &mm, 1, &s, &err), BL_EINVAL); /* other widths */
    norm.dim = 40;
    assert_int_equal(b->ops->run(b, &norm, 1, &s, &err), BL_EINVAL);
    b->ops->mat_free(b, m);
    bl_free_aligned(slots[0]);
    bl_free_aligned(slots[1]);
    bl_free(raw);
    b->ops->close(b);
}

static void test_rope_table(void **state) {
    (void)state;
    bl_backend *b = open_cpu(2, BL_ACTIVATIONS_INT8);
    float inv[64];
    for (int i = 0; i < 64; i++) {
        inv[i] = (float)pow(10000.0, -2.0 * i / 128.0);
    }
    int32_t pos[4] = {0, 1, 777, 1048575};
    uint32_t seq[4] = {0}, widths[1] = {128};
    float *slots[1] = {slot(4, 128)};
    bl_op op = {.kind = BL_OP_ROPE_TABLE, .label = "rope", .out = {0}, .n_rot = 128, .vec = inv};
    bl_step s = {.n_rows = 4,
                 .tokens = pos,
                 .pos = pos,
                 .seq = seq,
                 .n_seqs = 1,
                 .n_slots = 1,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    assert_int_equal(b->ops->prepare(b, &op, 1, 4, &scratch, NULL), BL_OK);
    assert_int_equal(b->ops->run(b, &op, 1, &s, NULL), BL_OK);
    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < 64; i++) {
            long double a = (long double)pos[r] * inv[i];
            assert_float_equal(slots[0][r * 128 + i], (float)cosl(a), 6e-8f);
            assert_float_equal(slots[0][r * 128 + 64 + i], (float)sinl(a), 6e-8f);
        }
    }
    bl_free_aligned(slots[0]);
    b->ops->close(b);
}

static void test_mask(void **state) {
    (void)state;
    uint32_t m;
    bl_err err;
    char buf[64];
    assert_int_equal(bl_cpu_parse_mask("avx2+avx512", &m, NULL), BL_OK);
    assert_int_equal(m, BL_CPU_AVX2 | BL_CPU_AVX512);
    assert_int_equal(bl_cpu_parse_mask("all", &m, NULL), BL_OK);
    assert_int_equal(m, BL_CPU_ALL);
    assert_int_equal(bl_cpu_parse_mask("0x1", &m, NULL), BL_OK);
    assert_int_equal(m, 1);
    assert_int_equal(bl_cpu_parse_mask("scalar", &m, NULL), BL_OK);
    assert_int_equal(m, 0);
    static const char *bad[] = {"", "sse", "avx2+", "8", "99999999999", "0x", "1x", ",avx2"};
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        m = 77;
        assert_int_equal(bl_cpu_parse_mask(bad[i], &m, &err), BL_EINVAL);
        assert_int_equal(m, 77);
    }
    assert_string_equal(bl_cpu_flags_name(BL_CPU_ALL, buf), "avx2+avx512+avx512vnni");
    assert_string_equal(bl_cpu_flags_name(0, buf), "scalar");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),       cmocka_unit_test(test_embed),
        cmocka_unit_test(test_bad_mlx),      cmocka_unit_test(test_bad_scale),
        cmocka_unit_test(test_attention),    cmocka_unit_test(test_attention_is_causal),
        cmocka_unit_test(test_missing_tile), cmocka_unit_test(test_unprepared),
        cmocka_unit_test(test_rope_table),   cmocka_unit_test(test_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
