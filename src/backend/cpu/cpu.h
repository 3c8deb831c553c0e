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

typedef struct {
    bl_backend base; /* first */
    bl_activations activations;
    uint32_t flags;
    bl_kernels k;
    bl_pool *pool;

    /* Scratch for steps of up to max_rows rows, made by prepare(). */
    uint32_t max_rows, max_head_dim;
    uint32_t max_k[BL_GROUP__MAX]; /* widest k of a product, by group */
    void *scratch;
    bl_xq xq[BL_GROUP__MAX]; /* planes sized for max_rows and the widest k; FLOAT: none */
    float *attn;             /* attn_floats per thread */
    size_t attn_floats;
    bl_cpu_run *runs; /* [max_rows] of the current step */
    uint32_t n_runs;

    bool profiling;
    bl_op_profile profile[BL_CPU_MAX_PROFILE];
    bl_op_kind profile_kind[BL_CPU_MAX_PROFILE];
    size_t n_profile;
} bl_cpu;

/* run.c */
bl_code bl_cpu_run_ops(bl_backend *b, const bl_op *ops, size_t n_ops, const bl_step *step, bl_err *err);
/* rope_table.c: ret[half] cosines, then half sines, of pos * inv_freq[i]. */
void bl_cpu_rope_row(int32_t pos, const float *inv_freq, uint32_t half, float *ret);

#endif
