/* What the files of the CPU backend share: the backend's own struct and the matrix. [engine thread] except
 * where a field says more. */
#ifndef BL_BACKEND_CPU_CPU_H
#define BL_BACKEND_CPU_CPU_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/pool.h"

struct bl_mat {
    const char *name;
    bl_packed pk;
    uint8_t *mem; /* what pk.base points to */
    size_t mem_bytes;
    bool mapped; /* by mmap, else by bl_alloc_aligned */
};

#define BL_CPU_MAX_PROFILE 256u

/* Rows of one sequence that lie together in the step. */
typedef struct {
    uint32_t row0, row1, seq;
} bl_cpu_run;

/* Work space of EXPERTS: token rows sorted by expert, so that each expert's rows lie together. An assignment
 * is one (row, expert) pair; there are rows * n_used of them. */
typedef struct {
    uint32_t *first;          /* [n_experts + 1] assignments of expert e: [first[e], first[e + 1]) */
    uint32_t *active;         /* [n_experts] experts with rows */
    uint32_t *source;         /* [assignments] the token row */
    uint32_t *place;          /* [rows][n_used] where the pair went */
    float *x, *gate, *up, *y; /* [assignments] rows as wide as the ops' widest */
    uint32_t n_active;
} bl_cpu_moe;

/* What prepare() found in the list. */
typedef struct {
    uint32_t max_k[BL_GROUP__MAX]; /* widest k of a product, by group */
    uint32_t head_dim;
    uint32_t n_experts, n_used;     /* most of any EXPERTS op; 0: none */
    uint32_t expert_in, expert_mid; /* widest rows before and between an expert's products */
} bl_cpu_needs;

typedef struct {
    bl_backend base; /* first */
    bl_activations activations;
    uint32_t flags;
    bl_kernels k;
    bl_pool *pool;

    /* Scratch for steps of up to max_rows rows, made by prepare(). */
    uint32_t max_rows;
    bl_cpu_needs needs;
    void *scratch;
    bl_xq xq[BL_GROUP__MAX]; /* planes sized for max_rows (or their assignments) and the widest k; FLOAT: none
                              */
    bl_cpu_moe moe;
    float *attn; /* attn_floats per thread */
    size_t attn_floats;
    uint32_t attn_query_block;
    bl_attn_scores scores;
    bl_cpu_run *runs; /* [max_rows] of the current step */
    uint32_t n_runs;

    bool profiling;
    bl_op_profile profile[BL_CPU_MAX_PROFILE];
    bl_op_kind profile_kind[BL_CPU_MAX_PROFILE];
    size_t n_profile;
} bl_cpu;

/* run.c */
bl_code bl_cpu_run_ops(bl_backend *b, const bl_op *ops, size_t n_ops, const bl_step *step, bl_err *err);
/* rope_table.c: ret[half] cosines, then half sines, of pos * inv_freq[i], times scale. */
void bl_cpu_rope_row(int32_t pos, const float *inv_freq, uint32_t half, double scale, float *ret);

#endif
