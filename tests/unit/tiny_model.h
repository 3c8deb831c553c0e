/* Small checkpoints made on the spot for tests: GGUF files with any weight type, from a Hugging Face fixture
 * (same weights, GGUF's conventions) or from random numbers of a given shape. Include in one file per test
 * program.
 */
#ifndef BL_TESTS_UNIT_TINY_MODEL_H
#define BL_TESTS_UNIT_TINY_MODEL_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/rng.h"
#include "formats/checkpoint.h"
#include "tensor/dtype.h"

#define TINY_MUST(expr) assert_int_equal((expr), BL_OK)

static const char tiny_llama[] = BL_SOURCE_DIR "/tests/fixtures/tiny/llama-tiny";
static const char tiny_gemma[] = BL_SOURCE_DIR "/tests/fixtures/tiny/gemma3-tiny";

/* ---- quantisers: simple ones, rounding to the nearest level ------------------------------------------ */

static inline void tiny_put(bl_buf *b, const void *p, size_t n) {
    TINY_MUST(bl_buf_append(b, p, n, NULL));
}

static inline void tiny_put_uint(bl_buf *b, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        TINY_MUST(bl_buf_append_char(b, (char)(v >> (8 * i)), NULL));
    }
}

static inline int tiny_level(float x, float d, int lo, int hi) {
    int q = d > 0.0f ? (int)lrintf(x / d) : 0;
    return q < lo ? lo : q > hi ? hi : q;
}

static inline void tiny_minmax(const float *x, int n, float *lo, float *hi) {
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
}

static inline void tiny_quant32(bl_dtype t, const float *x, bl_buf *out) {
    float lo, hi;
    tiny_minmax(x, 32, &lo, &hi);
    bool five = t == BL_DTYPE_Q5_0 || t == BL_DTYPE_Q5_1, offset = t == BL_DTYPE_Q4_1 || t == BL_DTYPE_Q5_1;
    int levels = t == BL_DTYPE_Q8_0 ? 255 : five ? 31 : 15;
    float amax = fmaxf(fabsf(lo), fabsf(hi));
    float d = offset ? (hi - lo) / (float)levels : amax / (float)(levels / 2);
    uint16_t dh = bl_f32_to_f16(d), mh = bl_f32_to_f16(lo);
    d = bl_f16_to_f32(dh);
    tiny_put_uint(out, dh, 2);
    if (offset) {
        tiny_put_uint(out, mh, 2);
    }
    uint8_t q[32];
    for (int i = 0; i < 32; i++) {
        if (t == BL_DTYPE_Q8_0) {
            q[i] = (uint8_t)(int8_t)tiny_level(x[i], d, -127, 127);
        } else if (offset) {
            q[i] = (uint8_t)tiny_level(x[i] - bl_f16_to_f32(mh), d, 0, levels);
        } else {
            q[i] = (uint8_t)(tiny_level(x[i], d, -(levels / 2 + 1), levels / 2) + levels / 2 + 1);
        }
    }
    if (t == BL_DTYPE_Q8_0) {
        tiny_put(out, q, 32);
        return;
    }
    if (five) {
        uint32_t qh = 0;
        for (int i = 0; i < 32; i++) {
            qh |= (uint32_t)(q[i] >> 4) << i;
        }
        tiny_put_uint(out, qh, 4);
    }
    for (int i = 0; i < 16; i++) {
        tiny_put_uint(out, (uint64_t)((q[i] & 15) | (q[i + 16] & 15) << 4), 1);
    }
}

/* Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scale and minimum. */
static inline void tiny_quant_k45(bl_dtype t, const float *x, bl_buf *out) {
    int levels = t == BL_DTYPE_Q5_K ? 31 : 15;
    float scale[8], min[8], d = 0.0f, dmin = 0.0f;
    for (int j = 0; j < 8; j++) {
        float lo, hi;
        tiny_minmax(x + 32 * j, 32, &lo, &hi);
        min[j] = lo < 0.0f ? -lo : 0.0f;
        scale[j] = (hi + min[j]) / (float)levels;
        scale[j] = scale[j] > 0.0f ? scale[j] : 0.0f;
        d = fmaxf(d, scale[j] / 63.0f);
        dmin = fmaxf(dmin, min[j] / 63.0f);
    }
    uint16_t dh = bl_f32_to_f16(d), mh = bl_f32_to_f16(dmin);
    uint8_t sc[8], mn[8], s[12] = {0}, q[256];
    for (int j = 0; j < 8; j++) {
        sc[j] = (uint8_t)tiny_level(scale[j], bl_f16_to_f32(dh), 0, 63);
        mn[j] = (uint8_t)tiny_level(min[j], bl_f16_to_f32(mh), 0, 63);
        for (int i = 0; i < 32; i++) {
            q[32 * j + i] = (uint8_t)tiny_level(x[32 * j + i] + bl_f16_to_f32(mh) * (float)mn[j],
                                                bl_f16_to_f32(dh) * (float)sc[j], 0, levels);
        }
    }
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | (sc[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(mn[j] | (mn[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 15) | (mn[j + 4] & 15) << 4);
    }
    tiny_put_uint(out, dh, 2);
    tiny_put_uint(out, mh, 2);
    tiny_put(out, s, sizeof s);
    for (int l = 0; l < 32 && t == BL_DTYPE_Q5_K; l++) {
        uint32_t h = 0;
        for (int j = 0; j < 8; j++) {
            h |= (uint32_t)(q[32 * j + l] >> 4) << j;
        }
        tiny_put_uint(out, h, 1);
    }
    for (int g = 0; g < 4; g++) {
        for (int l = 0; l < 32; l++) {
            tiny_put_uint(out, (uint64_t)((q[64 * g + l] & 15) | (q[64 * g + 32 + l] & 15) << 4), 1);
        }
    }
}

static inline void tiny_quant_k6(const float *x, bl_buf *out) {
    float amax[16], d = 0.0f;
    for (int j = 0; j < 16; j++) {
        float lo, hi;
        tiny_minmax(x + 16 * j, 16, &lo, &hi);
        amax[j] = fmaxf(fabsf(lo), fabsf(hi));
        d = fmaxf(d, amax[j] / (31.0f * 127.0f));
    }
    uint16_t dh = bl_f32_to_f16(d);
    int8_t sc[16];
    int q[256];
    for (int j = 0; j < 16; j++) {
        sc[j] = (int8_t)tiny_level(amax[j] / 31.0f, bl_f16_to_f32(dh), 0, 127);
        sc[j] = j % 2 ? (int8_t)-sc[j] : sc[j]; /* negative scales are legal */
        for (int i = 0; i < 16; i++) {
            float step = bl_f16_to_f32(dh) * (float)sc[j];
            q[16 * j + i] =
                tiny_level(step < 0.0f ? -x[16 * j + i] : x[16 * j + i], fabsf(step), -32, 31) + 32;
        }
    }
    for (int h = 0; h < 2; h++) { /* low nibbles */
        for (int l = 0; l < 64; l++) {
            tiny_put_uint(out, (uint64_t)((q[128 * h + l] & 15) | (q[128 * h + 64 + l] & 15) << 4), 1);
        }
    }
    for (int h = 0; h < 2; h++) {
        for (int l = 0; l < 32; l++) {
            const int *p = q + 128 * h + l;
            tiny_put_uint(
                out, (uint64_t)(p[0] >> 4 | (p[32] >> 4) << 2 | (p[64] >> 4) << 4 | (p[96] >> 4) << 6), 1);
        }
    }
    tiny_put(out, sc, sizeof sc);
    tiny_put_uint(out, dh, 2);
}

static inline void tiny_quantise(bl_dtype t, const float *x, size_t n, bl_buf *out) {
    size_t step = bl_dtype_get(t)->block_elems;
    assert_int_equal(n % step, 0);
    for (size_t i = 0; i < n; i += step) {
        if (t == BL_DTYPE_F32) {
            tiny_put_uint(out, bl_f32_to_bits(x[i]), 4);
        } else if (t == BL_DTYPE_F16 || t == BL_DTYPE_BF16) {
            tiny_put_uint(out, t == BL_DTYPE_F16 ? bl_f32_to_f16(x[i]) : bl_f32_to_bf16(x[i]), 2);
        } else if (t == BL_DTYPE_Q6_K) {
            tiny_quant_k6(x + i, out);
        } else if (t == BL_DTYPE_Q4_K || t == BL_DTYPE_Q5_K) {
            tiny_quant_k45(t, x + i, out);
        } else {
            tiny_quant32(t, x + i, out);
        }
    }
}

/* ---- GGUF writer ------------------------------------------------------------------------------------- */

typedef struct {
    bl_buf kv, infos, data;
    uint64_t n_kv, n_tensors;
} tiny_gguf;

static inline void tiny_gguf_init(tiny_gguf *g) {
    *g = (tiny_gguf){0};
    bl_buf_init(&g->kv, (size_t)1 << 20);
    bl_buf_init(&g->infos, (size_t)1 << 20);
    bl_buf_init(&g->data, (size_t)64 << 20);
}

static inline void tiny_put_str(bl_buf *b, const char *s) {
    tiny_put_uint(b, strlen(s), 8);
    tiny_put(b, s, strlen(s));
}

static inline void tiny_kv(tiny_gguf *g, const char *key, uint32_t type, uint64_t value, size_t n) {
    tiny_put_str(&g->kv, key);
    tiny_put_uint(&g->kv, type, 4);
    tiny_put_uint(&g->kv, value, n);
    g->n_kv++;
}

static inline void tiny_u32(tiny_gguf *g, const char *key, uint32_t v) {
    tiny_kv(g, key, 4, v, 4);
}

static inline void tiny_f32(tiny_gguf *g, const char *key, float v) {
    tiny_kv(g, key, 6, bl_f32_to_bits(v), 4);
}

static inline void tiny_str(tiny_gguf *g, const char *key, const char *v) {
    tiny_put_str(&g->kv, key);
    tiny_put_uint(&g->kv, 8, 4);
    tiny_put_str(&g->kv, v);
    g->n_kv++;
}

static inline uint32_t tiny_gguf_type(bl_dtype t) {
    static const uint32_t ids[] = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14}; /* in the order of bl_dtype */
    return ids[t];
}

/* rows 0: a vector of `cols` */
static inline void tiny_tensor(tiny_gguf *g, const char *name, bl_dtype t, const float *x, uint32_t rows,
                               uint32_t cols) {
    while (g->data.len % 32 != 0) {
        tiny_put_uint(&g->data, 0, 1);
    }
    tiny_put_str(&g->infos, name);
    tiny_put_uint(&g->infos, rows > 0 ? 2 : 1, 4);
    tiny_put_uint(&g->infos, cols, 8);
    if (rows > 0) {
        tiny_put_uint(&g->infos, rows, 8);
    }
    tiny_put_uint(&g->infos, tiny_gguf_type(t), 4);
    tiny_put_uint(&g->infos, g->data.len, 8);
    tiny_quantise(t, x, (size_t)(rows > 0 ? rows : 1) * cols, &g->data);
    g->n_tensors++;
}

static inline void tiny_gguf_write(tiny_gguf *g, const char *path) {
    bl_buf f;
    bl_buf_init(&f, (size_t)80 << 20);
    tiny_put(&f, "GGUF", 4);
    tiny_put_uint(&f, 3, 4);
    tiny_put_uint(&f, g->n_tensors, 8);
    tiny_put_uint(&f, g->n_kv, 8);
    tiny_put(&f, g->kv.data, g->kv.len);
    tiny_put(&f, g->infos.data, g->infos.len);
    while (f.len % 32 != 0) {
        tiny_put_uint(&f, 0, 1);
    }
    tiny_put(&f, g->data.data, g->data.len);
    while (f.len % 32 != 0) { /* the last tensor is padded too */
        tiny_put_uint(&f, 0, 1);
    }
    TINY_MUST(bl_file_write_atomic(path, f.data, f.len, NULL));
    bl_buf_done(&f);
    bl_buf_done(&g->kv);
    bl_buf_done(&g->infos);
    bl_buf_done(&g->data);
}

/* A path under the build folder, one per process and name. */
static inline const char *tiny_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tiny-%d-%s.gguf", BL_BUILD_DIR, (int)getpid(), name);
    return path;
}

/* ---- models ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *arch; /* "llama" or "gemma3" */
    uint32_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, context, window;
    float theta;
} tiny_dims;

static const tiny_dims tiny_llama_dims = {"llama", 128, 4, 4, 2, 32, 192, 512, 4096, 0, 10000.0f};
static const tiny_dims tiny_gemma_dims = {"gemma3", 128, 7, 4, 2, 32, 192, 512, 4096, 12, 1e6f};
/* Rows of 256 for the K types; three KV heads, a vocabulary that is no multiple of 16. */
static const tiny_dims tiny_k_dims = {"llama", 256, 2, 12, 3, 64, 512, 515, 2048, 0, 10000.0f};

static inline void tiny_meta(tiny_gguf *g, const tiny_dims *d) {
    char key[96];
    tiny_str(g, "general.architecture", d->arch);
#define TINY_KEY(name) (snprintf(key, sizeof key, "%s.%s", d->arch, name), key)
    tiny_u32(g, TINY_KEY("block_count"), d->layers);
    tiny_u32(g, TINY_KEY("context_length"), d->context);
    tiny_u32(g, TINY_KEY("embedding_length"), d->hidden);
    tiny_u32(g, TINY_KEY("feed_forward_length"), d->ffn);
    tiny_u32(g, TINY_KEY("attention.head_count"), d->heads);
    tiny_u32(g, TINY_KEY("attention.head_count_kv"), d->kv_heads);
    tiny_u32(g, TINY_KEY("attention.key_length"), d->head_dim);
    tiny_u32(g, TINY_KEY("attention.value_length"), d->head_dim);
    tiny_f32(g, TINY_KEY("attention.layer_norm_rms_epsilon"), 1e-6f);
    tiny_f32(g, TINY_KEY("rope.freq_base"), d->theta);
    if (d->window > 0) {
        tiny_u32(g, TINY_KEY("attention.sliding_window"), d->window);
    }
#undef TINY_KEY
}

typedef struct {
    const char *gguf, *hf_llama, *hf_gemma; /* NULL: the family has none */
    int rows, cols;                         /* codes below; rows -1: a vector of cols */
    bool paired;
} tiny_role;

enum { TINY_H, TINY_Q, TINY_KV, TINY_F, TINY_D };

static const tiny_role tiny_roles[] = {
    {"attn_norm", "input_layernorm", "input_layernorm", -1, TINY_H, false},
    {"attn_q", "self_attn.q_proj", "self_attn.q_proj", TINY_Q, TINY_H, true},
    {"attn_k", "self_attn.k_proj", "self_attn.k_proj", TINY_KV, TINY_H, true},
    {"attn_v", "self_attn.v_proj", "self_attn.v_proj", TINY_KV, TINY_H, false},
    {"attn_output", "self_attn.o_proj", "self_attn.o_proj", TINY_H, TINY_Q, false},
    {"attn_q_norm", NULL, "self_attn.q_norm", -1, TINY_D, false},
    {"attn_k_norm", NULL, "self_attn.k_norm", -1, TINY_D, false},
    {"post_attention_norm", NULL, "post_attention_layernorm", -1, TINY_H, false},
    {"ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm", -1, TINY_H, false},
    {"ffn_gate", "mlp.gate_proj", "mlp.gate_proj", TINY_F, TINY_H, false},
    {"ffn_up", "mlp.up_proj", "mlp.up_proj", TINY_F, TINY_H, false},
    {"ffn_down", "mlp.down_proj", "mlp.down_proj", TINY_H, TINY_F, false},
    {"post_ffw_norm", NULL, "post_feedforward_layernorm", -1, TINY_H, false},
};

static inline uint32_t tiny_size(const tiny_dims *d, int code) {
    switch (code) {
    case TINY_H:
        return d->hidden;
    case TINY_Q:
        return d->heads * d->head_dim;
    case TINY_KV:
        return d->kv_heads * d->head_dim;
    case TINY_F:
        return d->ffn;
    default:
        return d->head_dim;
    }
}

/* n floats of a tensor: from the checkpoint, or random (norms near 1, matrices small) when c is NULL. */
static inline void tiny_weights(const bl_checkpoint *c, const char *name, bool norm, float *dst, size_t n,
                                uint64_t *seed) {
    if (c) {
        const bl_tensor_view *t = bl_checkpoint_find(c, name);
        assert_non_null(t);
        bl_dequant_row(t->dtype, t->data, dst, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        double u = (double)(bl_rng_next(seed) >> 11) * 0x1p-53 - 0.5;
        dst[i] = norm ? (float)(1.0 + 0.2 * u) : (float)(0.2 * u);
    }
}

/* GGUF's order of the q and k rows of llama files: x0, xD/2, x1, xD/2+1, ... */
static inline void tiny_pair_rows(float *x, uint32_t rows, uint32_t cols, uint32_t d) {
    float *copy = bl_alloc_array((size_t)rows * cols, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, x, (size_t)rows * cols * sizeof *x);
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t i = r % d / 2, s = r % 2;
        memcpy(x + (size_t)r * cols, copy + (size_t)(r / d * d + s * (d / 2) + i) * cols, cols * sizeof *x);
    }
    bl_free(copy);
}

/* Writes a model with its matrices in the given types, used in turn; the embedding takes types[0]. c: the HF
 * fixture whose weights to store, or NULL for random ones. edit may add keys and tensors, or be NULL. */
static inline void tiny_model_write_edited(const char *path, const tiny_dims *d, const bl_checkpoint *c,
                                           const bl_dtype *types, size_t n_types,
                                           void (*edit)(tiny_gguf *g)) {
    bool gemma = strcmp(d->arch, "gemma3") == 0;
    tiny_gguf g;
    char name[96], hf[96];
    uint64_t seed = 7;
    size_t next = 0;
    float *x = bl_alloc_array((size_t)BL_MAX(d->vocab, d->ffn) * BL_MAX(d->hidden, d->ffn), sizeof *x);
    assert_non_null(x);
    tiny_gguf_init(&g);
    tiny_meta(&g, d);
    tiny_weights(c, "model.embed_tokens.weight", false, x, (size_t)d->vocab * d->hidden, &seed);
    tiny_tensor(&g, "token_embd.weight", types[next++ % n_types], x, d->vocab, d->hidden);
    for (uint32_t l = 0; l < d->layers; l++) {
        for (size_t r = 0; r < BL_COUNTOF(tiny_roles); r++) {
            const tiny_role *role = &tiny_roles[r];
            const char *base = gemma ? role->hf_gemma : role->hf_llama;
            if (!base) {
                continue;
            }
            uint32_t rows = role->rows < 0 ? 0 : tiny_size(d, role->rows), cols = tiny_size(d, role->cols);
            snprintf(name, sizeof name, "blk.%u.%s.weight", l, role->gguf);
            snprintf(hf, sizeof hf, "model.layers.%u.%s.weight", l, base);
            tiny_weights(c, hf, rows == 0, x, (size_t)BL_MAX(rows, 1u) * cols, &seed);
            for (uint32_t i = 0; rows == 0 && gemma && c && i < cols; i++) {
                x[i] += 1.0f;
            }
            if (role->paired && !gemma) {
                tiny_pair_rows(x, rows, cols, d->head_dim);
            }
            tiny_tensor(&g, name, rows == 0 ? BL_DTYPE_F32 : types[next++ % n_types], x, rows, cols);
        }
    }
    tiny_weights(c, "model.norm.weight", true, x, d->hidden, &seed);
    for (uint32_t i = 0; gemma && c && i < d->hidden; i++) {
        x[i] += 1.0f;
    }
    tiny_tensor(&g, "output_norm.weight", BL_DTYPE_F32, x, 0, d->hidden);
    bl_free(x);
    if (edit) {
        edit(&g);
    }
    tiny_gguf_write(&g, path);
}

static inline void tiny_model_write(const char *path, const tiny_dims *d, const bl_checkpoint *c,
                                    const bl_dtype *types, size_t n_types) {
    tiny_model_write_edited(path, d, c, types, n_types, NULL);
}

#endif
