/* The CPU backend: opening, matrices, scratch and profile. The ops themselves are in run.c.
 *
 * Matrices are packed by the pool into memory of their own (large ones mapped, so that pages are first
 * touched by the threads that pack). Nothing is allocated between prepare() and the end of run().
 */
#include "backend/cpu/cpu.h"

#include <stdatomic.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/pack.h"
#include "base/base.h"
#include "base/clock.h"
#include "base/os.h"

/* From this size on a matrix is mapped and huge pages are asked for. */
#define SLAB_BYTES ((uint64_t)8 << 20)
#define MAP_MIN    (1u << 20)

void bl_kernels_fill(bl_kernels *t, uint32_t flags) {
    bl_kernels_ref(t);
#if defined(__x86_64__)
    if (flags & BL_CPU_AVX2) {
        bl_kernels_avx2(t);
    }
    if (flags & BL_CPU_AVX512) {
        bl_kernels_avx512(t);
    }
    if (flags & BL_CPU_AVX512_VNNI) {
        bl_kernels_avx512vnni(t);
    }
#else
    (void)flags;
#endif
}

/* ---- matrices ------------------------------------------------------------------------------- */

static bl_code mat_bytes(const bl_backend *b, const bl_mat_desc *d, uint64_t *ret, bl_err *err) {
    bl_packed pk;
    return bl_pack_plan(d, ((const bl_cpu *)b)->activations, &pk, ret, err);
}

static void mat_free(bl_backend *b, bl_mat *m) {
    (void)b;
    if (!m) {
        return;
    }
    if (m->mapped) {
        bl_os.munmap(m->mem, m->mem_bytes);
    } else {
        bl_free_aligned(m->mem);
    }
    bl_free(m);
}

typedef struct {
    const bl_mat_desc *d;
    const bl_packed *pk;
    uint8_t *mem;
    uint32_t end; /* blocks [next, end) are to be packed */
    _Atomic uint32_t next;
    _Atomic bool failed; /* the first to set it owns err */
    bl_err err;
} pack_job;

static void pack_units(void *ctx, uint32_t thread) {
    (void)thread;
    pack_job *j = ctx;
    for (;;) {
        uint32_t b = atomic_fetch_add_explicit(&j->next, 4, memory_order_relaxed);
        for (uint32_t i = b; i < BL_MIN(b + 4, j->end); i++) {
            bl_err e;
            if (bl_pack_block(j->d, j->pk, i, j->mem + (size_t)i * j->pk->block_bytes, &e) != BL_OK) {
                if (!atomic_exchange(&j->failed, true)) {
                    j->err = e;
                }
                return;
            }
        }
        if (b >= j->end || atomic_load_explicit(&j->failed, memory_order_relaxed)) {
            return;
        }
    }
}

/* Packs in slabs of the source, so that the caller can let go of what was read while the rest is still to
 * come. */
static void pack_all(bl_cpu *c, const bl_mat_desc *d, pack_job *j) {
    uint64_t row_bytes = 0;
    uint32_t slab = j->pk->n_blocks;
    if (d->consumed && bl_dtype_row_bytes(d->dtype, d->k, &row_bytes, NULL) == BL_OK && row_bytes > 0) {
        slab = (uint32_t)BL_MIN(slab, BL_MAX(SLAB_BYTES / (row_bytes * BL_PK_ROWS), 8u));
    }
    for (uint32_t from = 0; from < j->pk->n_blocks && !j->failed; from += slab) {
        uint32_t row = from * BL_PK_ROWS;
        j->end = BL_MIN(from + slab, j->pk->n_blocks);
        j->next = from;
        bl_pool_run(c->pool, pack_units, j);
        if (d->consumed) {
            d->consumed(d->consumed_user, row, BL_MIN(d->n_out, j->end * BL_PK_ROWS) - row);
        }
    }
}

static bl_code mat_new(bl_backend *b, const bl_mat_desc *d, bl_mat **ret, bl_err *err) {
    bl_cpu *c = (bl_cpu *)b;
    bl_packed pk;
    uint64_t bytes;
    BL_TRY(bl_pack_plan(d, c->activations, &pk, &bytes, err));
    bl_mat *m = bl_alloc(sizeof(*m));
    if (!m) {
        BL_FAIL(err, BL_ENOMEM, "%s: no memory", d->name);
    }
    m->name = d->name;
    m->mem_bytes = (size_t)bytes;
    m->mapped = bytes >= MAP_MIN;
    if (m->mapped) {
        void *p = bl_os.mmap(NULL, m->mem_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        m->mem = p == MAP_FAILED ? NULL : p;
    } else {
        m->mem = bl_alloc_aligned(64, m->mem_bytes);
    }
    if (!m->mem) {
        bl_free(m);
        BL_FAIL(err, BL_ENOMEM, "%s: no memory for %llu bytes of packed weights", d->name,
                (unsigned long long)bytes);
    }
    if (m->mapped) {
        (void)madvise(m->mem, m->mem_bytes,
                      MADV_HUGEPAGE); /* fewer TLB misses while streaming; refusal is harmless */
    }
    pack_job j = {.d = d, .pk = &pk, .mem = m->mem};
    pack_all(c, d, &j);
    if (j.failed) {
        mat_free(b, m);
        if (err) {
            *err = j.err;
        }
        return j.err.code;
    }
    pk.base = m->mem;
    m->pk = pk;
    *ret = m;
    return BL_OK;
}

static uint64_t mat_read_bytes(const bl_mat *m) {
    return (uint64_t)m->pk.block_bytes * m->pk.n_blocks;
}

/* ---- scratch -------------------------------------------------------------------------------- */

static void measure_product(bl_cpu_needs *n, const bl_op *op) {
    for (uint32_t j = 0; j < op->n_w; j++) {
        const bl_packed *p = &op->w[j]->pk;
        bl_group g = bl_pk_group(p);
        n->max_k[g] = BL_MAX(n->max_k[g], p->k);
    }
}

static bl_cpu_needs measure(const bl_op *ops, size_t n_ops) {
    bl_cpu_needs n = {0};
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].kind == BL_OP_ATTENTION) {
            n.head_dim = BL_MAX(n.head_dim, ops[i].head_dim);
        } else if (ops[i].kind == BL_OP_MATMUL) {
            measure_product(&n, &ops[i]);
        } else if (ops[i].kind == BL_OP_EXPERTS) {
            measure_product(&n, &ops[i]);
            n.n_experts = BL_MAX(n.n_experts, ops[i].n_experts);
            n.n_used = BL_MAX(n.n_used, ops[i].n_used);
            n.expert_in = BL_MAX(n.expert_in, ops[i].w[0]->pk.k);
            n.expert_mid = BL_MAX(n.expert_mid, ops[i].w[2]->pk.k);
        }
    }
    return n;
}

/* Hands out 64-byte aligned parts of one allocation; with base NULL it only counts. */
typedef struct {
    uint8_t *base;
    size_t used;
} carver;

static void *carve(carver *c, size_t n, size_t size) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + 63) & ~(size_t)63;
    return p;
}

static bl_cpu_moe lay_out_moe(carver *v, const bl_cpu_needs *n, uint32_t rows) {
    bl_cpu_moe m = {0};
    size_t pairs = (size_t)rows * n->n_used;
    m.first = carve(v, n->n_experts + 1u, sizeof(uint32_t));
    m.active = carve(v, n->n_experts, sizeof(uint32_t));
    m.source = carve(v, pairs, sizeof(uint32_t));
    m.place = carve(v, pairs, sizeof(uint32_t));
    m.x = carve(v, pairs * bl_slot_stride(n->expert_in), sizeof(float));
    m.gate = carve(v, pairs * bl_slot_stride(n->expert_mid), sizeof(float));
    m.up = carve(v, pairs * bl_slot_stride(n->expert_mid), sizeof(float));
    m.y = carve(v, pairs * bl_slot_stride(n->expert_in), sizeof(float));
    return m;
}

static void lay_out(bl_cpu *c, carver *v, uint32_t rows, const bl_cpu_needs *n) {
    size_t q_rows = (size_t)rows * BL_MAX(n->n_used, 1u);
    for (int g = BL_GROUP_32; g < BL_GROUP__MAX; g++) {
        uint32_t k = n->max_k[g];
        bl_xq a = {.ld_q = (k + 63u) & ~63u, .ld_g = (k / bl_group_elems((bl_group)g) + 15u) & ~15u};
        a.q = carve(v, q_rows * a.ld_q, 1);
        a.d = carve(v, q_rows * a.ld_g, sizeof(float));
        if (g == BL_GROUP_256) {
            a.ld_s = (k / 32 + 31u) & ~31u;
            a.s32 = carve(v, q_rows * a.ld_s, sizeof(int16_t));
            a.s16 = carve(v, q_rows * a.ld_s * 2, sizeof(int16_t));
            a.ps32 = carve(v, q_rows * a.ld_s, sizeof(uint32_t));
            a.ps16 = carve(v, q_rows * a.ld_s * 2, sizeof(uint32_t));
        } else {
            a.qsum = carve(v, q_rows * a.ld_g, sizeof(int32_t));
            a.dq = carve(v, q_rows * a.ld_g, sizeof(float));
        }
        if (g == BL_GROUP_32) {
            a.ps = carve(v, q_rows * a.ld_g, sizeof(uint32_t));
        }
        c->xq[g] = a;
    }
    c->moe = n->n_used > 0 ? lay_out_moe(v, n, rows) : (bl_cpu_moe){0};
    c->attn_floats = n->head_dim ? (bl_attn_scratch_floats(n->head_dim) + 15u) & ~(size_t)15 : 0;
    c->attn = carve(v, c->attn_floats * bl_pool_threads(c->pool), sizeof(float));
    c->runs = carve(v, rows, sizeof(bl_cpu_run));
}

static bl_code prepare(bl_backend *b, const bl_op *ops, size_t n_ops, uint32_t max_rows,
                       uint64_t *ret_scratch_bytes, bl_err *err) {
    bl_cpu *c = (bl_cpu *)b;
    bl_cpu_needs needs = measure(ops, n_ops);
    bl_cpu next = *c;
    carver v = {0};
    lay_out(&next, &v, max_rows, &needs);
    v.base = bl_alloc_aligned(64, v.used + 64);
    if (!v.base) {
        BL_FAIL(err, BL_ENOMEM, "cpu: no memory for %zu bytes of scratch (%u rows)", v.used, max_rows);
    }
    bl_free_aligned(c->scratch);
    c->scratch = v.base;
    v.used = 0;
    lay_out(c, &v, max_rows, &needs);
    c->max_rows = max_rows;
    c->needs = needs;
    *ret_scratch_bytes = v.used + 64;
    return BL_OK;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static bool supports(const bl_backend *b, bl_op_kind kind, bl_dtype w) {
    (void)b;
    return kind < BL_OP__MAX &&
           ((kind != BL_OP_MATMUL && kind != BL_OP_EMBED && kind != BL_OP_EXPERTS) || w < BL_DTYPE_I8);
}

static void set_profile(bl_backend *b, bool on) {
    bl_cpu *c = (bl_cpu *)b;
    c->profiling = on;
    c->n_profile = on ? 0 : c->n_profile;
}

static size_t profile(const bl_backend *b, const bl_op_profile **ret) {
    const bl_cpu *c = (const bl_cpu *)b;
    *ret = c->profile;
    return c->n_profile;
}

static void close_cpu(bl_backend *b) {
    bl_cpu *c = (bl_cpu *)b;
    if (!c) {
        return;
    }
    bl_pool_free(c->pool);
    bl_free_aligned(c->scratch);
    bl_free(c);
}

static const bl_backend_ops cpu_ops = {
    .name = "cpu",
    .close = close_cpu,
    .supports = supports,
    .mat_bytes = mat_bytes,
    .mat_new = mat_new,
    .mat_free = mat_free,
    .mat_read_bytes = mat_read_bytes,
    .prepare = prepare,
    .run = bl_cpu_run_ops,
    .set_profile = set_profile,
    .profile = profile,
};

/* Cores this process may use. */
static uint32_t usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return 1;
    }
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : BL_MIN((uint32_t)n, BL_POOL_MAX_THREADS);
}

bl_code bl_backend_cpu_open(const bl_cpu_options *opt, bl_backend **ret, bl_err *err) {
    bl_cpu *c = bl_alloc(sizeof(*c));
    if (!c) {
        BL_FAIL(err, BL_ENOMEM, "cpu backend: no memory");
    }
    c->base.ops = &cpu_ops;
    c->activations = opt->activations;
    c->attn_query_block = opt->attn_query_block;
    c->flags = bl_cpu_detect() & opt->cpu_mask;
    if (!(c->flags & BL_CPU_AVX2)) {
        c->flags = 0; /* a tier stands on the ones below it */
    } else if (!(c->flags & BL_CPU_AVX512)) {
        c->flags &= ~(uint32_t)BL_CPU_AVX512_VNNI;
    }
    bl_kernels_fill(&c->k, c->flags);
    bl_code rc = bl_pool_new(opt->n_threads ? opt->n_threads : usable_cores(), &c->pool, err);
    if (rc != BL_OK) {
        close_cpu(&c->base);
        return rc;
    }
    *ret = &c->base;
    return BL_OK;
}

uint32_t bl_backend_cpu_threads(const bl_backend *b) {
    return bl_pool_threads(((const bl_cpu *)b)->pool);
}
typedef struct {
    void (*fn)(void *user, uint32_t i, uint32_t thread);
    void *user;
    uint32_t n;
    _Atomic uint32_t next;
} each_job;

static void each_unit(void *ctx, uint32_t thread) {
    each_job *j = ctx;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n;) {
        j->fn(j->user, i, thread);
    }
}

void bl_backend_cpu_each(bl_backend *b, uint32_t n, void (*fn)(void *user, uint32_t i, uint32_t thread),
                         void *user) {
    each_job j = {.fn = fn, .user = user, .n = n};
    if (n < 2) {
        each_unit(&j, 0);
    } else {
        bl_pool_run(((bl_cpu *)b)->pool, each_unit, &j);
    }
}

bl_attn_scores bl_backend_cpu_attn_scores(const bl_backend *b) {
    return ((const bl_cpu *)b)->scores;
}
uint32_t bl_backend_cpu_flags(const bl_backend *b) {
    return ((const bl_cpu *)b)->k.flags;
}
