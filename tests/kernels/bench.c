/* blcheck --bench: real shapes through the backend, against the measured roofs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "blcheck.h"

#define MIN_NS 300000000u

typedef struct {
    bl_backend *b, *scalar;
    const bc_bench_options *o;
    double gbps, gops;
    bl_check c; /* for inputs */
} bench_ctx;

/* Best time of one run of the list. */
static double best_ns(bl_backend *b, const bl_op *ops, size_t n_ops, const bl_step *s, uint64_t min_ns) {
    double best = 1e18;
    uint64_t start = bl_clock_mono_ns(), t = start;
    for (int i = 0; i < 3 || t - start < min_ns; i++) {
        uint64_t t0 = bl_clock_mono_ns();
        if (b->ops->run(b, ops, n_ops, s, NULL) != BL_OK) {
            return 0.0;
        }
        t = bl_clock_mono_ns();
        best = BL_MIN(best, (double)(t - t0));
        if (min_ns == 0) {
            break;
        }
    }
    return best;
}

static void print_line(const bench_ctx *x, const char *name, double ns, double bytes, double ops,
                       double scalar_ns) {
    double gbps = bytes / ns, gops = ops / ns;
    if (x->o->csv) {
        printf("%s,%u,%.0f,%.2f,%.1f,%.2f,%.1f,%.1f\n", name, bl_backend_cpu_threads(x->b), ns, gbps,
               100 * gbps / x->gbps, gops, 100 * gops / x->gops, scalar_ns / ns);
    } else {
        printf("%-42s %11.1f us  %7.2f GB/s %5.1f%%  %8.2f Gop/s %5.1f%%  x%.1f\n", name, ns / 1e3, gbps,
               100 * gbps / x->gbps, gops, 100 * gops / x->gops, scalar_ns / ns);
    }
    fflush(stdout);
}

static void bench_form(bench_ctx *x, const char *label, const bc_form *f, uint32_t n_out, uint32_t k,
                       uint32_t rows, uint32_t copies) {
    char name[96], form[40];
    snprintf(name, sizeof(name), "%s %s [%u,%u] x %u", label, bc_form_name(f, form), n_out, k, rows);
    if (x->o->filter && !strstr(name, x->o->filter)) {
        return;
    }
    /* `copies` matrices in turn, so that small ones come from memory as they do in a model */
    enum { MAX_COPIES = 64 };
    /* random bits of floats would be denormals and huge numbers, which are slow */
    bc_wkind kind =
        bc_form_is_float(f) ? BC_W_MAX : BC_W_TAME; /* wild scales make denormals: slow on Intel */
    bc_matrix m = bc_matrix_new(&x->c, f, n_out, k, kind, BL_ACTIVATIONS_INT8);
    bl_mat *mats[MAX_COPIES + 1];
    bl_op ops[MAX_COPIES + 1];
    copies = BL_MIN(copies, MAX_COPIES);
    for (uint32_t i = 0; i <= copies; i++) { /* the last one for the scalar backend */
        bl_backend *b = i == copies ? x->scalar : x->b;
        if (b->ops->mat_new(b, &m.desc, &mats[i], NULL) != BL_OK) {
            exit(2);
        }
        ops[i] = (bl_op){.kind = BL_OP_MATMUL, .label = "mm", .in0 = 0, .out = {1}, .n_w = 1, .w = {mats[i]}};
    }
    uint32_t widths[2] = {k, n_out};
    bc_buf s0 = bc_new(&x->c, (size_t)rows * bl_slot_stride(k) * 4, 64),
           s1 = bc_new(&x->c, (size_t)rows * bl_slot_stride(n_out) * 4, 64);
    bc_buf pos = bc_new(&x->c, rows * 4, 4), seq = bc_new(&x->c, rows * 4, 4);
    float *slots[2] = {(float *)(void *)s0.p, (float *)(void *)s1.p};
    for (size_t i = 0; i < (size_t)rows * bl_slot_stride(k); i++) {
        slots[0][i] = bc_float(&x->c, BC_NORMAL);
    }
    for (uint32_t i = 0; i < rows; i++) {
        ((int32_t *)(void *)pos.p)[i] = (int32_t)i;
        ((uint32_t *)(void *)seq.p)[i] = 0;
    }
    bl_step s = {.n_rows = rows,
                 .tokens = (int32_t *)(void *)pos.p,
                 .pos = (int32_t *)(void *)pos.p,
                 .seq = (uint32_t *)(void *)seq.p,
                 .n_seqs = 1,
                 .n_slots = 2,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    if (x->b->ops->prepare(x->b, ops, copies, rows, &scratch, NULL) != BL_OK ||
        x->scalar->ops->prepare(x->scalar, ops, 1, rows, &scratch, NULL) != BL_OK) {
        exit(2);
    }
    double ns = best_ns(x->b, ops, copies, &s, MIN_NS) / copies;
    double scalar_ns = best_ns(x->scalar, &ops[copies], 1, &s, 0);
    print_line(x, name, ns, (double)x->b->ops->mat_read_bytes(mats[0]), 2.0 * n_out * k * rows, scalar_ns);
    for (uint32_t i = 0; i <= copies; i++) {
        x->b->ops->mat_free(x->b, mats[i]);
    }
    bc_matrix_free(&m);
    bc_free(&s0);
    bc_free(&s1);
    bc_free(&pos);
    bc_free(&seq);
}

static void bench_matmul(bench_ctx *x, const char *label, bl_dtype t, uint32_t n_out, uint32_t k,
                         uint32_t rows, uint32_t copies) {
    bc_form f = bc_form_of(t);
    bench_form(x, label, &f, n_out, k, rows, copies);
}

static void bench_attention(bench_ctx *x, uint32_t nh, uint32_t n_kv, uint32_t dim, uint32_t rows,
                            uint32_t pos0, uint32_t window) {
    char name[64];
    snprintf(name, sizeof(name), "attention %ux%ux%u rows %u at %u w %u", nh, n_kv, dim, rows, pos0, window);
    if (x->o->filter && !strstr(name, x->o->filter)) {
        return;
    }
    uint32_t n_tiles = (pos0 + rows + BL_KV_TILE - 1) / BL_KV_TILE, widths[2] = {nh * dim, nh * dim};
    size_t tile_bytes = (size_t)bl_kv_tile_bytes(n_kv, dim, false);
    bc_buf kv = bc_new(&x->c, tile_bytes * n_tiles, 64), s0 = bc_new(&x->c, (size_t)rows * nh * dim * 4, 64),
           s1 = bc_new(&x->c, (size_t)rows * nh * dim * 4, 64), pos = bc_new(&x->c, rows * 4, 4),
           seq = bc_new(&x->c, rows * 4, 4);
    float *slots[2] = {(float *)(void *)s0.p, (float *)(void *)s1.p};
    for (size_t i = 0; i < tile_bytes * n_tiles / 2; i++) {
        ((uint16_t *)(void *)kv.p)[i] = bl_f32_to_bf16(bc_float(&x->c, BC_NORMAL));
    }
    for (size_t i = 0; i < (size_t)rows * nh * dim; i++) {
        slots[0][i] = bc_float(&x->c, BC_NORMAL);
    }
    void **table = calloc(n_tiles, sizeof(*table));
    if (!table) {
        exit(2);
    }
    double flops = 0.0;
    for (uint32_t i = 0; i < n_tiles; i++) {
        table[i] = kv.p + i * tile_bytes;
    }
    for (uint32_t i = 0; i < rows; i++) {
        ((int32_t *)(void *)pos.p)[i] = (int32_t)(pos0 + i);
        ((uint32_t *)(void *)seq.p)[i] = 0;
        flops += 4.0 * (window ? BL_MIN(pos0 + i + 1, window) : pos0 + i + 1) * nh * dim;
    }
    bl_kv_table t = {table, n_tiles};
    const bl_kv_table *kvs[1] = {&t};
    bl_op op = {.kind = BL_OP_ATTENTION,
                .label = "attn",
                .in0 = 0,
                .out = {1},
                .n_heads = nh,
                .n_kv_heads = n_kv,
                .head_dim = dim,
                .window = window,
                .scale = 0.0625f};
    bl_step s = {.n_rows = rows,
                 .tokens = (int32_t *)(void *)pos.p,
                 .pos = (int32_t *)(void *)pos.p,
                 .seq = (uint32_t *)(void *)seq.p,
                 .n_seqs = 1,
                 .kv = kvs,
                 .n_slots = 2,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    if (x->b->ops->prepare(x->b, &op, 1, rows, &scratch, NULL) != BL_OK ||
        x->scalar->ops->prepare(x->scalar, &op, 1, rows, &scratch, NULL) != BL_OK) {
        exit(2);
    }
    double ns = best_ns(x->b, &op, 1, &s, MIN_NS);
    print_line(x, name, ns, (double)tile_bytes * n_tiles, flops, best_ns(x->scalar, &op, 1, &s, 0));
    bc_free(&kv);
    bc_free(&s0);
    bc_free(&s1);
    bc_free(&pos);
    bc_free(&seq);
    free(table);
}

/* One row op over `rows` rows of `width`. */
static void bench_rows(bench_ctx *x, const char *label, bl_op op, uint32_t width, uint32_t rows) {
    char name[64];
    snprintf(name, sizeof(name), "%s %u x %u", label, width, rows);
    if (x->o->filter && !strstr(name, x->o->filter)) {
        return;
    }
    uint32_t widths[3] = {width, width, width};
    bc_buf b[3], pos = bc_new(&x->c, rows * 4, 4), seq = bc_new(&x->c, rows * 4, 4),
                 vec = bc_new(&x->c, width * 4, 4);
    float *slots[3];
    for (int i = 0; i < 3; i++) {
        b[i] = bc_new(&x->c, (size_t)rows * bl_slot_stride(width) * 4, 64);
        slots[i] = (float *)(void *)b[i].p;
        for (size_t j = 0; j < (size_t)rows * bl_slot_stride(width); j++) {
            slots[i][j] = bc_float(&x->c, BC_NORMAL);
        }
    }
    for (uint32_t i = 0; i < width; i++) {
        ((float *)(void *)vec.p)[i] = 1.0f;
    }
    for (uint32_t i = 0; i < rows; i++) {
        ((int32_t *)(void *)pos.p)[i] = (int32_t)i;
        ((uint32_t *)(void *)seq.p)[i] = 0;
    }
    op.vec = (float *)(void *)vec.p;
    op.in0 = 0;
    op.in1 = 1;
    op.out[0] = op.kind == BL_OP_ROPE ? 0 : 2;
    bl_step s = {.n_rows = rows,
                 .tokens = (int32_t *)(void *)pos.p,
                 .pos = (int32_t *)(void *)pos.p,
                 .seq = (uint32_t *)(void *)seq.p,
                 .n_seqs = 1,
                 .n_slots = 3,
                 .slots = slots,
                 .widths = widths};
    uint64_t scratch;
    if (x->b->ops->prepare(x->b, &op, 1, rows, &scratch, NULL) != BL_OK ||
        x->scalar->ops->prepare(x->scalar, &op, 1, rows, &scratch, NULL) != BL_OK) {
        exit(2);
    }
    double ns = best_ns(x->b, &op, 1, &s, MIN_NS / 10);
    print_line(x, name, ns, 8.0 * width * rows, (double)width * rows, best_ns(x->scalar, &op, 1, &s, 0));
    for (int i = 0; i < 3; i++) {
        bc_free(&b[i]);
    }
    bc_free(&pos);
    bc_free(&seq);
    bc_free(&vec);
}

int bench(const bc_bench_options *o) {
    bench_ctx x = {.o = o, .c = {.tier = "bench", .seed = 1}};
    bl_cpu_options a = {.n_threads = o->threads, .cpu_mask = o->mask, .activations = BL_ACTIVATIONS_INT8},
                   s = a;
    s.cpu_mask = 0;
    bl_err err;
    if (bl_backend_cpu_open(&a, &x.b, &err) != BL_OK || bl_backend_cpu_open(&s, &x.scalar, &err) != BL_OK) {
        fprintf(stderr, "blcheck: %s\n", err.msg);
        return 2;
    }
    char flags[64];
    x.gbps = bl_backend_cpu_read_gbps(x.b);
    x.gops = bl_backend_cpu_int8_gops(x.b);
    if (o->csv) {
        printf("name,threads,ns,GB/s,%% of read,Gop/s,%% of int8,x scalar\n");
    } else {
        printf("%s, %u threads: reads %.2f GB/s, int8 %.1f Gop/s\n",
               bl_cpu_flags_name(bl_backend_cpu_flags(x.b), flags), bl_backend_cpu_threads(x.b), x.gbps,
               x.gops);
    }
    bench_matmul(&x, "head", BL_DTYPE_Q8_0, 262144, 640, 1, 1);
    bench_matmul(&x, "head", BL_DTYPE_Q8_0, 49152, 576, 1, 2);
    const bc_form *f;
    size_t n_forms = bc_forms(&f);
    for (size_t i = 0; i < n_forms; i++) {
        bench_form(&x, "ffn", &f[i], 2048, bl_pk_is_wide(f[i].t) ? 2048 : 640, 1, 48);
    }
    for (size_t i = 0; i < n_forms; i++) {
        bench_form(&x, "ffn", &f[i], 2048, bl_pk_is_wide(f[i].t) ? 2048 : 640, 512, 1);
    }
    bench_matmul(&x, "ffn", BL_DTYPE_Q5_0, 2048, 640, 4, 48);
    bench_matmul(&x, "ffn", BL_DTYPE_Q5_0, 2048, 640, 16, 1);
    bench_matmul(&x, "kv", BL_DTYPE_Q8_0, 256, 640, 512, 1);
    bench_attention(&x, 4, 1, 256, 512, 0, 0);
    bench_attention(&x, 9, 3, 64, 512, 0, 0);
    bench_attention(&x, 4, 1, 256, 1, 511, 0);
    bench_attention(&x, 4, 1, 256, 1, 4095, 0);
    bench_attention(&x, 9, 3, 64, 1, 4095, 0);
    bench_rows(&x, "rmsnorm", (bl_op){.kind = BL_OP_RMSNORM, .eps = 1e-6f}, 640, 512);
    bench_rows(&x, "rmsnorm", (bl_op){.kind = BL_OP_RMSNORM, .eps = 1e-6f}, 640, 1);
    bench_rows(&x, "gelu_glu", (bl_op){.kind = BL_OP_GLU, .act = BL_GLU_GELU_TANH}, 2048, 512);
    bench_rows(&x, "silu_glu", (bl_op){.kind = BL_OP_GLU, .act = BL_GLU_SILU}, 1536, 1);
    bench_rows(&x, "rope", (bl_op){.kind = BL_OP_ROPE, .n_heads = 4, .head_dim = 160, .n_rot = 160}, 640,
               512);
    bench_rows(&x, "rope_table", (bl_op){.kind = BL_OP_ROPE_TABLE, .n_rot = 256}, 256, 512);
    x.b->ops->close(x.b);
    x.scalar->ops->close(x.scalar);
    return 0;
}
