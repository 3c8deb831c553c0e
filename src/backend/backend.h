/* The seam between models and devices: weight matrices, op descriptors, steps, and the table of functions a
 * device fills.
 *
 * A family writes a flat list of ops once, at load; a step runs that list over a ragged set of rows (each
 * row: sequence, token, position). The order of every float operation is fixed by NUMERICS.md, so any two
 * backends give the same bits.
 *
 * Threads: everything here is called by the engine thread only, except bl_backend_cpu_* probes.
 */
#ifndef BL_BACKEND_BACKEND_H
#define BL_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/attn_scores.h"
#include "bl/bl_err.h"
#include "tensor/dtype.h"

#define BL_NUMERICS_VERSION 2

/* ---- weights ----------------------------------------------------------------------------------------- */

/* A weight matrix [n_out, k] in the device's own layout. Opaque; made by mat_new from a file's rows. */
typedef struct bl_mat bl_mat;

/* Which source row holds row r of a matrix: r / block * stride + offset + r % block. block 0: the same row.
 * Takes parts out of stacks (gate rows of gate_up experts, the gates between query heads) without copying. */
typedef struct {
    uint32_t block, stride, offset;
    /* > 0: within every `paired` rows of the result, the source keeps (0, n/2, 1, n/2 + 1, ...): adjacent
     * pairs rotate together there, half pairs here. */
    uint32_t paired;
    /* > 0 (float types only): the source is a stack of [k][transposed] instead of [transposed][k]. */
    uint32_t transposed;
} bl_row_map;

static inline uint64_t bl_row_map_source(const bl_row_map *m, uint32_t r) {
    if (m->paired > 0) {
        uint32_t j = r % m->paired, half = m->paired / 2;
        r += (j < half ? 2 * j : 2 * (j - half) + 1) - j;
    }
    return m->block > 0 ? (uint64_t)(r / m->block) * m->stride + m->offset + r % m->block : r;
}

typedef struct {
    const char *name;  /* for messages and profiles, borrowed for the life of the matrix */
    bl_dtype dtype;    /* of the source rows */
    uint32_t n_out, k; /* k is a multiple of the dtype's block */
    const void *rows;  /* rows of k elements, contiguous, unaligned; only read during mat_new */
    bl_row_map map;    /* which of them are this matrix's n_out */
    /* MLX types (tensor/mlx.h), whose scales lie apart; all zero for types that carry their scales. k is then
     * also a multiple of the group. Read like rows, and mapped like them. */
    uint32_t group;       /* elements per scale: 32, 64 or 128 (affine), 32 (mxfp4, mxfp8), 16 (nvfp4) */
    bl_dtype scale_dtype; /* BF16, F16 or F32 (affine), F8_E8M0 or U8 (mxfp4, mxfp8), F8_E4M3 or U8 (nvfp4) */
    const void *scales;   /* [rows][k / group], unaligned */
    const void *biases;   /* the same of scale_dtype for affine, NULL for the others */
    float global_scale;   /* nvfp4: the scale is s * global_scale; 0 means 1 */
    /* May be NULL, and is where rows are mapped. Called by mat_new, on its thread, in ascending order: these
     * rows will not be read again. */
    void (*consumed)(void *user, uint32_t first_row, uint32_t n_rows);
    void *consumed_user;
} bl_mat_desc;

/* How activations enter matrix products (NUMERICS.md §3). Decides the weights' layout, so fixed at open. */
typedef enum {
    BL_ACTIVATIONS_INT8, /* quantised weights meet int8 activations; float weights meet f32. KV is bf16 */
    BL_ACTIVATIONS_F32   /* comparison mode: weights dequantised to f32 rule, KV is f32 */
} bl_activations;

/* ---- key/value tiles --------------------------------------------------------------------------------- */

/* KV storage of one layer of one sequence is a table of tiles, one per 64 absolute positions. A tile holds,
 * for each KV head h: K transposed  [head_dim][64]   at element offset h * 2 * 64 * head_dim V [64][head_dim]
 * right behind it in bf16 (or f32 in comparison mode). 64-byte aligned. A NULL entry is a tile nobody may
 * read any more (fell out of a window). */
#define BL_KV_TILE 64

typedef struct {
    void *const *tiles; /* tiles[pos / 64] */
    uint32_t n_tiles;   /* length of the table */
} bl_kv_table;

static inline uint64_t bl_kv_tile_bytes(uint32_t n_kv_heads, uint32_t head_dim, bool f32) {
    return (uint64_t)n_kv_heads * 2u * BL_KV_TILE * head_dim * (f32 ? 4u : 2u);
}

/* ---- ops --------------------------------------------------------------------------------------------- */

/* Activation buffers are numbered slots; each is f32, row-major, n_rows x width (width given per slot in the
 * step). */
typedef enum {
    BL_OP_EMBED,      /* out0[r] = scale * dequant(w0[token[r]])                       dequantised in f32, one
                         product after */
    BL_OP_ROPE_TABLE, /* out0[r] = scale * cos(pos[r]*f_i) for i < n_rot/2, then sin   vec =
                         inv_freq[n_rot/2], f32; scale 0: 1 */
    BL_OP_RMSNORM,    /* out0 = in0 * r * vec, per group of `dim`; r = 1/sqrt(mean(x^2) + eps); in0 == out0
                         allowed. vec[dim], or NULL: no weight */
    BL_OP_MATMUL,     /* out_j = w_j . in0 (+ bias_j when not NULL), j < n_w */
    BL_OP_ROPE,       /* in place on out0: half pairing over the first n_rot of each head; table = in0 */
    BL_OP_KV_STORE,   /* K (in0, after norm and rope) and V (in1) of each row go to kv layer `kv_layer` at the
                         row's position */
    BL_OP_ATTENTION, /* out0 = attention of q (in0) over kv layer `kv_layer`, NUMERICS §4; keys p - window < k
                        <= p (window 0: all) */
    BL_OP_ADD,       /* out0 = in0 + in1; out0 may be either */
    BL_OP_GLU,       /* out0 = act(in0) * in1[column in1_at ...]; out0 may be either */
    BL_OP_SELECT,    /* out0[i] = in0[out_rows[i]], i < n_out_rows: from here ops with rows == OUT run on the
                        gathered rows */
    BL_OP_SOFTCAP,   /* in place on out0: cap * tanh(x / cap) */
    BL_OP_ADD_NORM,  /* out0 = in0 + rmsnorm(in1, vec); the same bits as RMSNORM then ADD. out0 may be in0 */
    BL_OP_SCALE,     /* out0 = in0 * (vec ? vec[0] : scale); out0 may be in0 */
    BL_OP_CONCAT,    /* out0 = in0 then in1, side by side */
    BL_OP_ADD_GATED, /* out0 = fma(sigmoid(in1), in0, out0); in1 has one column */
    BL_OP_ROUTE,     /* in0 = router logits [n_experts]; out0 = n_used expert ids (as floats, ascending), then
                        their weights: softmax over the n_used largest logits, times vec[expert] if there is
                        one (NUMERICS §5) */
    BL_OP_EXPERTS, /* out0 = sum over in1's (ROUTE) experts of weight * (w2 (act(w0 x) * w1 x)), x = in0. The
                      matrices stack n_experts of equal height, a multiple of 16 rows; biases likewise */
    BL_OP_CONV,    /* out0[r][c] = silu(sum_j vec[j * width + c] * in0[r - (n_taps - 1) + j][c]): causal, per
                      channel; rows before the step come from the sequence's state, which then takes the last
                      n_taps - 1 rows of in0 */
    BL_OP_DELTA,   /* Gated delta rule (NUMERICS §6) over n_heads value heads of head_dim with n_kv_heads key
                      heads of dim: in0 = q | k | v (q and k are normalised in place), in1 = write strengths,
                      in2 = decays, both before their functions (replaced in place); vec[n_heads] = -exp(A),
                      bias[0][n_heads] = dt; out0[n_heads * head_dim]; state S */
    BL_OP__MAX
} bl_op_kind;

/* The key head that serves value head h: h / (n_heads / n_kv_heads), or h % n_kv_heads where the file's value
 * heads are tiled. */
typedef enum { BL_HEADS_GROUPED, BL_HEADS_TILED } bl_head_order;

typedef enum { BL_ROWS_ALL, BL_ROWS_OUT } bl_op_rows;
/* SIGMOID: act(x) = sigmoid(x). CLAMPED (gpt-oss): g = min(x, limit), act(x) = g * sigmoid(1.702 g), and in1
 * is clamped to [-limit, limit], then 1 is added. */
typedef enum { BL_GLU_SILU, BL_GLU_GELU_TANH, BL_GLU_SIGMOID, BL_GLU_CLAMPED } bl_glu_act;

#define BL_OP_MAX_W    4
#define BL_OP_MAX_USED 64 /* experts a row is routed to at most */
#define BL_SLOT_NONE   255

typedef struct {
    bl_op_kind kind;
    bl_op_rows rows;
    int32_t layer;     /* -1 outside layers; for profiles and traces */
    const char *label; /* "attn_qkv"; static string */
    uint8_t in0, in1, in2;
    uint8_t out[BL_OP_MAX_W];
    uint8_t n_w;
    const bl_mat *w[BL_OP_MAX_W];
    const float *bias[BL_OP_MAX_W]; /* [n_out] or NULL */
    const float *vec;               /* borrowed from the model */
    uint32_t n_heads, n_kv_heads, head_dim, n_rot, dim;
    uint32_t kv_layer;    /* index into bl_step.kv rows */
    uint32_t state_layer; /* index into bl_step.state rows */
    uint32_t window;
    uint32_t in1_at; /* GLU: first column of in1 */
    uint32_t n_experts, n_used, n_taps;
    float scale, eps, cap; /* cap: SOFTCAP, and the limit of CLAMPED */
    bl_glu_act act;
    bl_head_order heads;
} bl_op;

typedef struct {
    uint32_t n_rows;
    const int32_t *tokens; /* [n_rows] */
    const int32_t *pos;    /* [n_rows] absolute, ascending within a sequence */
    const uint32_t
        *seq; /* [n_rows] index of the row's sequence, < n_seqs; rows of a sequence are contiguous */
    uint32_t n_seqs;
    const bl_kv_table *const *kv; /* kv[kv_layer][seq]: tables whose tiles for all rows' positions exist */
    /* state[state_layer][seq]: recurrent state of a CONV and DELTA pair, f32, 64-byte aligned: n_taps - 1
     * rows of the convolution's input, oldest first, then from bl_state_offset on S[n_heads][dim][head_dim].
     * All zero for a sequence that has no rows yet. A step moves it past its rows. */
    float *const *const *state;
    uint32_t n_out_rows;
    const uint32_t *out_rows; /* ascending row indices whose logits are wanted */
    uint32_t n_slots;
    float *const *slots;    /* [n_slots], 64-byte aligned; row stride = width rounded up to 16 floats */
    const uint32_t *widths; /* [n_slots] */
} bl_step;

static inline uint32_t bl_slot_stride(uint32_t width) {
    return (width + 15u) & ~15u;
}

/* Floats of the convolution's rows in a state, and of the whole state. */
static inline size_t bl_state_offset(uint32_t n_taps, uint32_t width) {
    return ((size_t)(n_taps - 1) * width + 15u) & ~(size_t)15;
}
static inline size_t bl_state_floats(uint32_t n_taps, uint32_t width, uint32_t n_heads, uint32_t dim,
                                     uint32_t head_dim) {
    return bl_state_offset(n_taps, width) + (((size_t)n_heads * dim * head_dim + 15u) & ~(size_t)15);
}

/* ---- the table --------------------------------------------------------------------------------------- */

typedef struct bl_backend bl_backend;

/* Timings of one op kind+label accumulated by a profiled run. */
typedef struct {
    const char *label;
    uint64_t calls, ns, bytes_read, flops;
} bl_op_profile;

typedef struct {
    const char *name; /* "cpu" */
    void (*close)(bl_backend *b);
    /* Can this op (with its weights' dtypes) run here? Asked by the loader for every op before weights are
     * touched. */
    bool (*supports)(const bl_backend *b, bl_op_kind kind, bl_dtype w);
    /* Bytes mat_new will keep for a matrix; the memory plan is made of these. */
    bl_code (*mat_bytes)(const bl_backend *b, const bl_mat_desc *d, uint64_t *ret, bl_err *err);
    /* Re-lays a matrix, using the pool. Checks scales for NaN and infinity (BL_EFORMAT naming d->name). */
    bl_code (*mat_new)(bl_backend *b, const bl_mat_desc *d, bl_mat **ret, bl_err *err);
    void (*mat_free)(bl_backend *b, bl_mat *m);
    /* Bytes read from the matrix by one row's product: what decode streams. */
    uint64_t (*mat_read_bytes)(const bl_mat *m);
    /* Bytes of scratch the backend will hold for steps of up to max_rows rows over this list. Call before the
     * first run; run() itself allocates nothing. */
    bl_code (*prepare)(bl_backend *b, const bl_op *ops, size_t n_ops, uint32_t max_rows,
                       uint64_t *ret_scratch_bytes, bl_err *err);
    /* Runs ops in order and returns when results are in the slots. */
    bl_code (*run)(bl_backend *b, const bl_op *ops, size_t n_ops, const bl_step *step, bl_err *err);
    /* Profile: enabled by set_profile(true); read returns entries in first-seen order, owned by the backend.
     */
    void (*set_profile)(bl_backend *b, bool on);
    size_t (*profile)(const bl_backend *b, const bl_op_profile **ret);
} bl_backend_ops;

struct bl_backend {
    const bl_backend_ops *ops; /* first member of every backend's own struct */
};

/* ---- CPU --------------------------------------------------------------------------------------------- */

enum {
    BL_CPU_AVX2 = 1u << 0,   /* AVX2 + FMA + F16C */
    BL_CPU_AVX512 = 1u << 1, /* F, BW, VL, DQ */
    BL_CPU_AVX512_VNNI = 1u << 2,
    BL_CPU_ALL = 7u
};
/* What cpuid and xgetbv say this machine and its OS support (a level without the levels below it is not
 * reported). */
uint32_t bl_cpu_detect(void);
/* "avx2+avx512+avx512vnni", "scalar". Returns buf. */
const char *bl_cpu_flags_name(uint32_t flags, char buf[64]);
/* Parses --cpu-mask: a number, or names joined by '+' or ','; "scalar"/"none" = 0, "all" = BL_CPU_ALL.
 * BL_EINVAL. */
bl_code bl_cpu_parse_mask(const char *s, uint32_t *ret, bl_err *err) BL_MUST_CHECK;

typedef struct {
    uint32_t n_threads; /* 0: all cores this process may use */
    uint32_t cpu_mask;  /* features allowed; BL_CPU_ALL */
    bl_activations activations;
    uint32_t attn_query_block; /* rows of a prompt that attend together at most (a kernel call takes up to 16,
                                  whatever this says); 0: no limit but that one */
} bl_cpu_options;

bl_code bl_backend_cpu_open(const bl_cpu_options *opt, bl_backend **ret, bl_err *err) BL_MUST_CHECK;
uint32_t bl_backend_cpu_threads(const bl_backend *b);
uint32_t bl_backend_cpu_flags(const bl_backend *b); /* in use */

/* Calls fn(user, i, thread) once for every i < n, shared among the backend's threads: thread is below
 * bl_backend_cpu_threads and no two calls with the same one run at a time. [engine thread] */
void bl_backend_cpu_each(bl_backend *b, uint32_t n, void (*fn)(void *user, uint32_t i, uint32_t thread),
                         void *user);

/* Attention scores of prompt chunks so far, over all layers and query heads. */
bl_attn_scores bl_backend_cpu_attn_scores(const bl_backend *b);

/* Measured ceilings of this machine with the backend's threads: sequential read bandwidth of a buffer much
 * larger than the caches, and int8 multiply-accumulates (2 ops each) of the best integer unit. Takes about
 * 0.3 s each. */
double bl_backend_cpu_read_gbps(bl_backend *b);
double bl_backend_cpu_int8_gops(bl_backend *b);

#endif
