/* blcheck: every kernel of every instruction set against the scalar one, bit for bit; and how fast it is.
 *
 * Candidates are found, not listed: the table is filled under growing CPU masks, and each entry that differs
 * from the entries seen before is compared with the scalar table. A check draws inputs from a seed that its
 * failure message prints.
 */
#ifndef BL_TESTS_KERNELS_BLCHECK_H
#define BL_TESTS_KERNELS_BLCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kernels.h"

typedef struct {
    const bl_kernels *ref, *cand;
    const char *tier; /* of cand, for messages */
    uint64_t seed;    /* state of the generator */
    uint64_t first_seed;
    bool quiet; /* self-test: failures are wanted and not printed */
    uint64_t n_passed, n_failed;
} bl_check;

/* ---- inputs --------------------------------------------------------------------------------- */

uint64_t bc_next(bl_check *c);
uint32_t bc_below(bl_check *c, uint32_t n); /* [0, n) */
/* One float of a kind: the mix that kernels are fed. All finite. */
typedef enum {
    BC_NORMAL,  /* around +-1 */
    BC_MIXED,   /* normal, tiny, huge, denormal, +-0, repeated */
    BC_EXTREME, /* +-1 exactly: every quantised value is +-127 */
    BC_SMALL,   /* denormals and zeros */
    BC_ZERO,
    BC_KIND__MAX
} bc_kind;
float bc_float(bl_check *c, bc_kind kind);

/* Memory whose last byte is followed by a page that may not be touched; the bytes before it are canaries. */
typedef struct {
    uint8_t *p;
    size_t size_bytes;
    uint8_t *map;
    size_t map_bytes;
    uint8_t *copy; /* set by bc_freeze */
} bc_buf;
bc_buf bc_new(bl_check *c, size_t size_bytes,
              size_t align); /* filled with random bytes; exits when out of memory */
void bc_free(bc_buf *b);
void bc_freeze(bc_buf *b);          /* remembers the contents */
bool bc_unchanged(const bc_buf *b); /* contents and canaries are as bc_freeze saw them */
bool bc_canaries_ok(const bc_buf *b);

/* A packed matrix with random contents. */
typedef enum {
    BC_W_RANDOM,
    BC_W_MAX,
    BC_W_MIN,
    BC_W_ALTERNATE,
    BC_W_HUGE,
    BC_W_TINY,
    BC_W_ZERO,
    BC_W_TAME, /* random bits, scales around 1 */
    BC_W__MAX
} bc_wkind;
/* A form that weights come in: the type and, for MLX's, the group and the type of the scales. */
typedef struct {
    bl_dtype t;
    uint32_t group;
    bl_dtype scale_dtype;
} bc_form;
size_t bc_forms(const bc_form **ret); /* all of them, by ascending type */
bc_form bc_form_of(bl_dtype t);       /* the first of a type */
const char *bc_form_name(const bc_form *f, char buf[40]);
bool bc_form_is_float(const bc_form *f);
uint32_t bc_form_unit(const bc_form *f); /* k must be a multiple of it */

typedef struct {
    bl_packed pk;
    bl_mat_desc desc; /* over raw, scales and biases */
    bc_buf raw, scales, biases, mem;
    size_t row_bytes;
} bc_matrix;
bc_matrix bc_matrix_new(bl_check *c, const bc_form *f, uint32_t n_out, uint32_t k, bc_wkind kind,
                        bl_activations act);
void bc_matrix_free(bc_matrix *m);
/* dst[k] by tensor/, from the source rows. */
void bc_matrix_dequant(const bc_matrix *m, uint32_t row, float *dst);

/* Planes of quantised activations of `rows` rows, filled by table t from x. */
typedef struct {
    bl_xq xq;
    bc_buf q, d, qsum, dq, ps, s32, s16, ps32, ps16;
} bc_quant;
bc_quant bc_quant_new(bl_check *c, uint32_t rows, uint32_t k, bl_group g); /* FLOAT: planes of nothing */
/* Row r from x by the kernel of table t for the group. */
void bc_quant_row(const bl_kernels *t, bl_group g, bc_quant *q, size_t r, const float *x, uint32_t k);
void bc_quant_free(bc_quant *q);
/* Every plane of a equals that of b, canaries included. */
bool bc_quant_equal(const bc_quant *a, const bc_quant *b, uint32_t rows, uint32_t k, bl_group g);

/* ---- verdicts ------------------------------------------------------------------------------- */

/* Counts; prints the message when ok is false. Returns ok. */
bool bc_expect(bl_check *c, bool ok, const char *fmt, ...) BL_PRINTF(3, 4);
/* Compares n floats bit for bit and reports the first difference. */
bool bc_same(bl_check *c, const float *ref, const float *cand, size_t n, const char *fmt, ...)
    BL_PRINTF(5, 6);

/* ---- checks: each compares c->cand with c->ref ---------------------------------------------- */

void check_matmul(bl_check *c, const bc_form *f);
void check_quant(bl_check *c);
void check_embed(bl_check *c);
void check_rmsnorm(bl_check *c);
void check_elementwise(bl_check *c);
void check_rope(bl_check *c);
void check_kv_store(bl_check *c);
void check_conv(bl_check *c);
void check_delta(bl_check *c);
void check_attention(bl_check *c);
/* Not against another table: the definitions against wider arithmetic, and whole ops under every thread
 * count. */
void check_accuracy(bl_check *c);
void check_nmse(bl_check *c);
void check_threads(bl_check *c, uint32_t mask, const char *tier);

/* Plants faults in a copy of the scalar table; every one must be caught. */
void selftest(bl_check *c);

typedef struct {
    const char *filter; /* substring of a line's name, NULL: all */
    uint32_t threads;   /* 0: all */
    bool csv;
    uint32_t mask; /* CPU features allowed */
} bc_bench_options;
int bench(const bc_bench_options *o);

#endif
