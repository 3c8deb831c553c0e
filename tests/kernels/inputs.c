/* Inputs and verdicts of blcheck. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/pack.h"
#include "base/base.h"
#include "base/rng.h"
#include "blcheck.h"

#define PAGE   4096u
#define CANARY 0xc5u

static _Noreturn void no_memory(void) {
    fprintf(stderr, "blcheck: out of memory\n");
    exit(2);
}

uint64_t bc_next(bl_check *c) {
    return bl_rng_next(&c->seed);
}
uint32_t bc_below(bl_check *c, uint32_t n) {
    return (uint32_t)((bc_next(c) >> 32) * n >> 32);
}

static float normal(bl_check *c) {
    int32_t s = 0;
    for (int i = 0; i < 4; i++) {
        s += (int32_t)bc_below(c, 1u << 22) - (1 << 21);
    }
    return (float)s * 0x1p-21f;
}

float bc_float(bl_check *c, bc_kind kind) {
    switch (kind) {
    case BC_NORMAL:
        return normal(c);
    case BC_EXTREME:
        return bc_next(c) & 1 ? 1.0f : -1.0f;
    case BC_SMALL:
        return bc_below(c, 3) ? bl_bits_to_f32(bc_below(c, 1u << 20) | (uint32_t)(bc_next(c) & 1) << 31)
                              : 0.0f;
    case BC_ZERO:
        return bc_next(c) & 1 ? 0.0f : -0.0f;
    default:
        break;
    }
    switch (bc_below(c, 12)) {
    case 0:
        return normal(c) * 1e-30f;
    case 1:
        return normal(c) * 1e6f;
    case 2:
        return bl_bits_to_f32(bc_below(c, 1u << 23));
    case 3:
        return bc_next(c) & 1 ? 0.0f : -0.0f;
    case 4:
        return 1.0f;
    case 5:
        return normal(c) * 1e-4f;
    default:
        return normal(c);
    }
}

bc_buf bc_new(bl_check *c, size_t size_bytes, size_t align) {
    bc_buf b = {.size_bytes = size_bytes};
    size_t room = (size_bytes + align - 1) & ~(align - 1);
    b.map_bytes = ((room + 2 * PAGE - 1) & ~(size_t)(PAGE - 1)) + PAGE;
    void *m = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED || mprotect((uint8_t *)m + b.map_bytes - PAGE, PAGE, PROT_NONE) != 0) {
        no_memory();
    }
    b.map = m;
    memset(b.map, CANARY, b.map_bytes - PAGE);
    b.p = b.map + b.map_bytes - PAGE - room;
    for (size_t i = 0; i < size_bytes; i += 8) {
        uint64_t v = bc_next(c);
        memcpy(b.p + i, &v, BL_MIN(size_bytes - i, 8));
    }
    return b;
}

void bc_free(bc_buf *b) {
    if (b->map) {
        munmap(b->map, b->map_bytes);
    }
    free(b->copy);
    *b = (bc_buf){0};
}

void bc_freeze(bc_buf *b) {
    b->copy = b->copy ? b->copy : malloc(b->size_bytes + 1);
    if (!b->copy) {
        no_memory();
    }
    memcpy(b->copy, b->p, b->size_bytes);
}

bool bc_canaries_ok(const bc_buf *b) {
    if (!b->map) {
        return true;
    }
    for (const uint8_t *q = b->map; q < b->map + b->map_bytes - PAGE; q++) {
        if (q == b->p) {
            q += b->size_bytes;
            if (q >= b->map + b->map_bytes - PAGE) {
                break;
            }
        }
        if (*q != CANARY) {
            return false;
        }
    }
    return true;
}

bool bc_unchanged(const bc_buf *b) {
    return bc_canaries_ok(b) && (!b->copy || memcmp(b->copy, b->p, b->size_bytes) == 0);
}

/* ---- forms ---------------------------------------------------------------------------------- */

#define AFFINE_GROUP(t, g)                                                                                   \
    {t, g, BL_DTYPE_BF16}, {t, g, BL_DTYPE_F16}, {                                                           \
        t, g, BL_DTYPE_F32                                                                                   \
    }
#define AFFINE(t) AFFINE_GROUP(t, 64), AFFINE_GROUP(t, 32), AFFINE_GROUP(t, 128)
#define PLAIN(t)                                                                                             \
    { t, 0, BL_DTYPE_F32 }

static const bc_form forms[] = {
    PLAIN(BL_DTYPE_F32),
    PLAIN(BL_DTYPE_F16),
    PLAIN(BL_DTYPE_BF16),
    PLAIN(BL_DTYPE_Q4_0),
    PLAIN(BL_DTYPE_Q4_1),
    PLAIN(BL_DTYPE_Q5_0),
    PLAIN(BL_DTYPE_Q5_1),
    PLAIN(BL_DTYPE_Q8_0),
    PLAIN(BL_DTYPE_Q4_K),
    PLAIN(BL_DTYPE_Q5_K),
    PLAIN(BL_DTYPE_Q6_K),
    AFFINE(BL_DTYPE_AFFINE2),
    AFFINE(BL_DTYPE_AFFINE3),
    AFFINE(BL_DTYPE_AFFINE4),
    AFFINE(BL_DTYPE_AFFINE5),
    AFFINE(BL_DTYPE_AFFINE6),
    AFFINE(BL_DTYPE_AFFINE8),
    {BL_DTYPE_MXFP4, 32, BL_DTYPE_U8},
    {BL_DTYPE_MXFP8, 32, BL_DTYPE_F8_E8M0},
    {BL_DTYPE_NVFP4, 16, BL_DTYPE_U8},
    PLAIN(BL_DTYPE_GGUF_MXFP4),
};

size_t bc_forms(const bc_form **ret) {
    *ret = forms;
    return BL_COUNTOF(forms);
}
bc_form bc_form_of(bl_dtype t) {
    size_t i = 0;
    while (forms[i].t != t) {
        i++;
    }
    return forms[i];
}
const char *bc_form_name(const bc_form *f, char buf[40]) {
    if (bl_dtype_is_affine(f->t)) {
        snprintf(buf, 40, "%s g%u %s", bl_dtype_get(f->t)->name, f->group,
                 bl_dtype_get(f->scale_dtype)->name);
    } else {
        snprintf(buf, 40, "%s", bl_dtype_get(f->t)->name);
    }
    return buf;
}
bool bc_form_is_float(const bc_form *f) {
    return f->t <= BL_DTYPE_BF16 || f->t == BL_DTYPE_MXFP8;
}
uint32_t bc_form_unit(const bc_form *f) {
    return BL_MAX(f->group, bl_dtype_get(f->t)->block_elems);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* A finite f16 for a kind of matrix. */
static uint16_t scale_f16(bl_check *c, bc_wkind kind) {
    uint16_t sign = (uint16_t)((bc_next(c) & 1) << 15);
    switch (kind) {
    case BC_W_HUGE:
        return (uint16_t)(0x7bff | sign);
    case BC_W_TINY: /* denormals */
        return (uint16_t)(bc_below(c, 1024) | sign);
    case BC_W_ZERO:
        return sign;
    case BC_W_RANDOM:
        return bc_below(c, 16) ? bl_f32_to_f16(normal(c) * 0.01f) : (uint16_t)(bc_below(c, 0x7c00) | sign);
    default:
        return bl_f32_to_f16(normal(c));
    }
}
/* The same in f32: magnitudes whose sums of products stay finite. */
static float scale_f32(bl_check *c, bc_wkind kind) {
    uint32_t sign = (uint32_t)(bc_next(c) & 1) << 31;
    switch (kind) {
    case BC_W_HUGE:
        return bl_bits_to_f32(0x67ffffffu | sign); /* 2^81 */
    case BC_W_TINY:
        return bl_bits_to_f32(bc_below(c, 1u << 23) | sign);
    case BC_W_ZERO:
        return bl_bits_to_f32(sign);
    case BC_W_RANDOM:
        return bc_below(c, 16) ? normal(c) * 0.01f : bl_bits_to_f32(bc_below(c, 0x40000000u) | sign);
    default:
        return normal(c);
    }
}
static uint8_t scale_e8m0(bl_check *c, bc_wkind kind) {
    switch (kind) {
    case BC_W_HUGE:
        return 200;
    case BC_W_TINY:
        return (uint8_t)bc_below(c, 4);
    case BC_W_ZERO:
        return 0;
    case BC_W_RANDOM:
        return (uint8_t)(bc_below(c, 16) ? 118 + bc_below(c, 8) : bc_below(c, 180));
    default:
        return (uint8_t)(125 + bc_below(c, 4));
    }
}
static uint8_t scale_e4m3(bl_check *c, bc_wkind kind) {
    uint8_t sign = (uint8_t)((bc_next(c) & 1) << 7);
    switch (kind) {
    case BC_W_HUGE:
        return 0x7e | sign;
    case BC_W_TINY:
        return (uint8_t)bc_below(c, 8) | sign;
    case BC_W_ZERO:
        return sign;
    default:
        return (uint8_t)bc_below(c, 0x7f) | sign;
    }
}

/* Bits of weights by kind. E2M1: 7 is the largest, 15 the least; likewise E4M3 0x7e and 0xfe. */
static void fill_bits(bl_check *c, bl_dtype t, uint8_t *p, size_t n, bc_wkind kind) {
    bool fp4 = t == BL_DTYPE_MXFP4 || t == BL_DTYPE_NVFP4 || t == BL_DTYPE_GGUF_MXFP4;
    uint8_t max = fp4                   ? 0x77
                  : t == BL_DTYPE_MXFP8 ? 0x7e
                  : t == BL_DTYPE_Q8_0  ? 0x7f
                                        : 0xff,
            min = fp4                   ? 0xff
                  : t == BL_DTYPE_MXFP8 ? 0xfe
                  : t == BL_DTYPE_Q8_0  ? 0x80
                                        : 0;
    for (size_t i = 0; i < n; i++) {
        p[i] = kind == BC_W_MAX         ? max
               : kind == BC_W_MIN       ? min
               : kind == BC_W_ALTERNATE ? (i & 1 ? max : min)
                                        : (uint8_t)bc_next(c);
        if (t == BL_DTYPE_MXFP8 && (p[i] & 0x7f) == 0x7f) {
            p[i] &= 0xfe;
        }
    }
}

/* One block's bytes: weight bits by kind, scales finite. */
static void fill_block(bl_check *c, bl_dtype t, uint8_t *p, size_t n, bc_wkind kind) {
    fill_bits(c, t, p, n, kind);
    uint16_t d = scale_f16(c, kind), m = scale_f16(c, kind);
    if (t == BL_DTYPE_Q6_K) {
        for (uint32_t j = 0; (kind == BC_W_MAX || kind == BC_W_MIN) && j < 16; j++) {
            p[192 + j] = 0x80; /* sub-scale -128, the largest magnitude */
        }
        memcpy(p + 208, &d, 2);
    } else if (t == BL_DTYPE_GGUF_MXFP4) {
        p[0] = scale_e8m0(c, kind);
    } else if (!bl_dtype_is_mlx(t)) {
        memcpy(p, &d, 2);
        if (bl_pk_has_min(t) || t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) {
            memcpy(p + 2, &m, 2);
        }
        if ((t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) && kind == BC_W_MIN) {
            memset(p + 4, 0xff, 12);
        }
    }
}

/* Scales or biases of an MLX matrix. */
static bc_buf mlx_scales(bl_check *c, const bc_form *f, size_t n, bc_wkind kind) {
    size_t size = bl_dtype_get(f->scale_dtype)->block_bytes;
    bc_buf b = bc_new(c, n * size, 1);
    for (size_t i = 0; i < n; i++) {
        uint8_t e = f->t == BL_DTYPE_NVFP4 ? scale_e4m3(c, kind) : scale_e8m0(c, kind);
        float v = scale_f32(c, kind);
        uint16_t h =
            f->scale_dtype == BL_DTYPE_F16 ? scale_f16(c, kind) : (uint16_t)(bl_f32_to_bits(v) >> 16);
        const void *from = size == 1 ? (const void *)&e : size == 2 ? (const void *)&h : (const void *)&v;
        memcpy(b.p + i * size, from, size);
    }
    return b;
}

bc_matrix bc_matrix_new(bl_check *c, const bc_form *form, uint32_t n_out, uint32_t k, bc_wkind kind,
                        bl_activations act) {
    bl_dtype t = form->t;
    const bl_dtype_info *info = bl_dtype_get(t);
    bc_matrix m = {.row_bytes = (size_t)k / info->block_elems * info->block_bytes};
    m.raw = bc_new(c, m.row_bytes * n_out, 1);
    for (size_t i = 0; i < m.row_bytes * n_out; i += info->block_bytes) {
        uint8_t *p = m.raw.p + i;
        bc_kind fk = kind == BC_W_RANDOM ? BC_MIXED
                     : kind == BC_W_TINY ? BC_SMALL
                     : kind == BC_W_ZERO ? BC_ZERO
                                         : BC_NORMAL;
        float f = bc_float(c, fk);
        uint16_t h = t == BL_DTYPE_BF16 ? bl_f32_to_bf16(f) : bl_f32_to_f16(fabsf(f) < 6e4f ? f : 1.0f);
        if (t == BL_DTYPE_F32) {
            memcpy(p, &f, 4);
        } else if (t == BL_DTYPE_F16 || t == BL_DTYPE_BF16) {
            memcpy(p, &h, 2);
        } else {
            fill_block(c, t, p, info->block_bytes, kind);
        }
    }
    m.desc = (bl_mat_desc){.name = "w", .dtype = t, .n_out = n_out, .k = k, .rows = m.raw.p};
    if (bl_dtype_is_mlx(t)) {
        m.scales = mlx_scales(c, form, (size_t)n_out * (k / form->group), kind);
        if (bl_dtype_is_affine(t)) {
            m.biases = mlx_scales(c, form, (size_t)n_out * (k / form->group), kind);
        }
        m.desc.group = form->group;
        m.desc.scale_dtype = form->scale_dtype;
        m.desc.scales = m.scales.p;
        m.desc.biases = m.biases.p;
        m.desc.global_scale = t == BL_DTYPE_NVFP4 && bc_next(c) & 1 ? 0.37f : 0.0f;
    }
    uint64_t bytes = 0;
    bl_err err;
    if (bl_pack_plan(&m.desc, act, &m.pk, &bytes, &err) != BL_OK) {
        fprintf(stderr, "blcheck: %s\n", err.msg);
        exit(2);
    }
    m.mem = bc_new(c, (size_t)bytes, 64);
    memset(m.mem.p, 0, (size_t)bytes);
    for (uint32_t b = 0; b < m.pk.n_blocks; b++) {
        if (bl_pack_block(&m.desc, &m.pk, b, m.mem.p + b * m.pk.block_bytes, &err) != BL_OK) {
            fprintf(stderr, "blcheck: %s\n", err.msg);
            exit(2);
        }
    }
    m.pk.base = m.mem.p;
    bc_freeze(&m.mem);
    return m;
}

void bc_matrix_dequant(const bc_matrix *m, uint32_t row, float *dst) {
    const bl_mat_desc *d = &m->desc;
    if (!bl_dtype_is_mlx(d->dtype)) {
        bl_dequant_row(d->dtype, m->raw.p + row * m->row_bytes, dst, d->k);
        return;
    }
    size_t at = (size_t)row * (d->k / d->group) * bl_dtype_get(d->scale_dtype)->block_bytes;
    bl_mlx_row r = {.dtype = d->dtype,
                    .scale_dtype = d->scale_dtype,
                    .group = d->group,
                    .global_scale = d->global_scale,
                    .packed = m->raw.p + row * m->row_bytes,
                    .scales = m->scales.p + at,
                    .biases = m->biases.p ? m->biases.p + at : NULL};
    bl_mlx_dequant(&r, 0, dst, d->k);
}

void bc_matrix_free(bc_matrix *m) {
    bc_free(&m->raw);
    bc_free(&m->scales);
    bc_free(&m->biases);
    bc_free(&m->mem);
}

bc_quant bc_quant_new(bl_check *c, uint32_t rows, uint32_t k, bl_group g) {
    bc_quant q = {.xq = {.ld_q = (k + 63u) & ~63u, .ld_g = k / bl_group_elems(g), .ld_s = k / 32}};
    if (g == BL_GROUP_FLOAT) {
        return q;
    }
    q.q = bc_new(c, rows * q.xq.ld_q, 64);
    q.d = bc_new(c, rows * q.xq.ld_g * 4, 4);
    if (g == BL_GROUP_256) {
        q.s32 = bc_new(c, rows * q.xq.ld_s * 2, 2);
        q.s16 = bc_new(c, rows * q.xq.ld_s * 4, 2);
        q.ps32 = bc_new(c, rows * q.xq.ld_s * 4, 4);
        q.ps16 = bc_new(c, rows * q.xq.ld_s * 8, 4);
    } else {
        q.qsum = bc_new(c, rows * q.xq.ld_g * 4, 4);
        q.dq = bc_new(c, rows * q.xq.ld_g * 4, 4);
    }
    if (g == BL_GROUP_32) {
        q.ps = bc_new(c, rows * q.xq.ld_g * 4, 4);
    }
    q.xq.q = (int8_t *)q.q.p;
    q.xq.d = (float *)(void *)q.d.p;
    q.xq.qsum = (int32_t *)(void *)q.qsum.p;
    q.xq.dq = (float *)(void *)q.dq.p;
    q.xq.ps = (uint32_t *)(void *)q.ps.p;
    q.xq.s32 = (int16_t *)(void *)q.s32.p;
    q.xq.s16 = (int16_t *)(void *)q.s16.p;
    q.xq.ps32 = (uint32_t *)(void *)q.ps32.p;
    q.xq.ps16 = (uint32_t *)(void *)q.ps16.p;
    return q;
}

void bc_quant_row(const bl_kernels *t, bl_group g, bc_quant *q, size_t r, const float *x, uint32_t k) {
    if (g == BL_GROUP_32) {
        t->quant32(&q->xq, r, x, k);
    } else if (g == BL_GROUP_64) {
        t->quant64(&q->xq, r, x, k);
    } else if (g == BL_GROUP_256) {
        t->quant256(&q->xq, r, x, k);
    }
}

static bc_buf *plane(bc_quant *q, int i) {
    bc_buf *all[] = {&q->q, &q->d, &q->qsum, &q->dq, &q->ps, &q->s32, &q->s16, &q->ps32, &q->ps16};
    return all[i];
}

void bc_quant_free(bc_quant *q) {
    for (int i = 0; i < 9; i++) {
        bc_free(plane(q, i));
    }
}

bool bc_quant_equal(const bc_quant *a, const bc_quant *b, uint32_t rows, uint32_t k, bl_group g) {
    bc_quant x = *a, y = *b;
    (void)rows;
    (void)k;
    (void)g;
    for (int i = 0; i < 9; i++) {
        const bc_buf *u = plane(&x, i), *v = plane(&y, i);
        if (!bc_canaries_ok(v) || u->size_bytes != v->size_bytes ||
            (u->p && memcmp(u->p, v->p, u->size_bytes) != 0)) {
            return false;
        }
    }
    return true;
}

bool bc_expect(bl_check *c, bool ok, const char *fmt, ...) {
    if (ok) {
        c->n_passed++;
        return true;
    }
    c->n_failed++;
    if (!c->quiet && c->n_failed <= 50) {
        va_list ap;
        va_start(ap, fmt);
        printf("FAIL [%s, seed %llu] ", c->tier, (unsigned long long)c->first_seed);
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
    }
    return false;
}

bool bc_same(bl_check *c, const float *ref, const float *cand, size_t n, const char *fmt, ...) {
    size_t i = 0;
    while (i < n && bl_f32_to_bits(ref[i]) == bl_f32_to_bits(cand[i])) {
        i++;
    }
    if (i == n) {
        c->n_passed++;
        return true;
    }
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return bc_expect(c, false, "%s: element %zu of %zu is %a, scalar %a", what, i, n, (double)cand[i],
                     (double)ref[i]);
}
