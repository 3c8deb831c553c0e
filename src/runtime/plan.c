#include "runtime/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "runtime/prefix_cache.h"
#include "runtime/sampler.h"

/* Measured on the 270M (262144 tokens) and on SmolLM2 (49152): the program with its libraries, and the
 * tokenizer's tables with the container's. */
#define PROGRAM_BYTES         ((uint64_t)16 << 20)
#define TOKENIZER_TOKEN_BYTES 80u

/* ---- parts ------------------------------------------------------------------------------------------- */

/* Matrices of one type and group. */
typedef struct {
    bl_dtype dtype;
    uint32_t group, count;
    uint64_t bytes;
} quant_count;
#define MAX_COUNTS 24u

static void count_matrix(quant_count *c, const bl_model_matrix *w) {
    for (uint32_t i = 0; i < MAX_COUNTS; i++) {
        if (c[i].count == 0 || (c[i].dtype == w->desc.dtype && c[i].group == w->desc.group)) {
            c[i].dtype = w->desc.dtype;
            c[i].group = w->desc.group;
            c[i].count++;
            c[i].bytes += bl_model_matrix_file_bytes(w);
            return;
        }
    }
}

/* "Q8_0 25, Q5_0 81": matrices per type, most bytes first. Empties c. */
static void quant_text(quant_count *c, size_t cap, char *out) {
    size_t n = 0;
    out[0] = '\0';
    for (;;) {
        quant_count *best = NULL;
        for (uint32_t i = 0; i < MAX_COUNTS; i++) {
            if (c[i].count > 0 && (!best || c[i].bytes > best->bytes)) {
                best = &c[i];
            }
        }
        if (!best || n + 24 > cap) {
            return;
        }
        char group[16] = "";
        if (best->group > 0) {
            snprintf(group, sizeof group, " g%u", best->group);
        }
        int k = snprintf(out + n, cap - n, "%s%s%s %u", n ? ", " : "", bl_dtype_get(best->dtype)->name, group,
                         best->count);
        n += k > 0 ? (size_t)k : 0;
        best->count = 0;
    }
}

/* The part of the model an op belongs to, by its label. */
static const char *part_of(const bl_model *m, size_t op) {
    static const struct {
        const char *label, *part;
    } parts[] = {{"embed", "embedding"},
                 {"ple_embed", "per-layer table"},
                 {"ple_", "per-layer inputs"},
                 {"attn_", "attention"},
                 {"delta_", "delta net"},
                 {"ffn_", "mlp"},
                 {"experts", "experts"},
                 {"router", "router"},
                 {"shared_router", "router"},
                 {"shared_", "shared expert"},
                 {"head", "head"}};
    if (op >= m->n_ops) {
        return "draft head";
    }
    for (size_t i = 0; i < BL_COUNTOF(parts); i++) {
        if (strncmp(m->ops[op].label, parts[i].label, strlen(parts[i].label)) == 0) {
            return parts[i].part;
        }
    }
    return "other";
}

/* Matrices that are parts of the same tensor (fused gate and up). */
static uint64_t shares_of(const bl_model *m, size_t w) {
    uint64_t n = 0;
    for (size_t i = w > 4 ? w - 4 : 0; i < m->n_matrices && i <= w + 4; i++) { /* they are neighbours */
        n += m->matrices[i].src == m->matrices[w].src;
    }
    return n;
}

/* Each matrix once, in the part of the first op that uses it. */
static void describe_parts(const bl_model *m, bl_model_info *r) {
    quant_count counts[BL_MODEL_MAX_PARTS][MAX_COUNTS] = {0};
    quant_count all[MAX_COUNTS] = {0};
    for (size_t i = 0; i < m->n_all_ops; i++) {
        for (size_t k = 0; k < m->ops[i].n_w; k++) {
            size_t w = (size_t)m->refs[i].w[k];
            const char *name = part_of(m, i);
            uint32_t p = 0;
            while (p < r->n_parts && strcmp(r->parts[p].name, name) != 0) {
                p++;
            }
            bool shared =
                i >= m->n_ops && w < m->n_trunk_matrices; /* the head's products of the model's own */
            if (p == BL_MODEL_MAX_PARTS || shared || (m->cfg.tied && strcmp(name, "head") == 0)) {
                continue;
            }
            if (p == r->n_parts) {
                r->parts[r->n_parts++].name = name;
            }
            r->parts[p].bytes += bl_model_matrix_file_bytes(&m->matrices[w]) / shares_of(m, w);
            count_matrix(counts[p], &m->matrices[w]);
        }
    }
    for (size_t i = 0; i < m->n_matrices; i++) {
        count_matrix(all, &m->matrices[i]);
    }
    quant_text(all, sizeof r->quant, r->quant);
    for (uint32_t p = 0; p < r->n_parts; p++) {
        quant_text(counts[p], sizeof r->parts[p].quant, r->parts[p].quant);
    }
}

static bl_code sum_weights(const bl_model *m, const bl_backend *b, bl_model_info *r, bl_err *err) {
    uint64_t vectors = 0;
    for (size_t i = 0; i < m->n_matrices; i++) {
        const bl_model_matrix *w = &m->matrices[i];
        uint64_t bytes;
        BL_TRY(b->ops->mat_bytes(b, &w->desc, &bytes, err));
        if (!bl_add_u64(r->weights_bytes, bytes, &r->weights_bytes)) {
            BL_FAIL(err, BL_ERANGE, "the weights of '%s' overflow", bl_checkpoint_name(m->ckpt));
        }
    }
    for (size_t i = 0; i < m->n_vectors; i++) {
        vectors += (uint64_t)m->vectors[i].n * sizeof(float);
    }
    r->weights_bytes += vectors;
    for (size_t i = 0; i < m->n_ops; i++) {
        for (size_t k = 0; k < m->ops[i].n_w; k++) {
            const bl_model_matrix *w = &m->matrices[m->refs[i].w[k]];
            const bl_mat_desc *d = &w->desc;
            uint64_t bytes;
            BL_TRY(b->ops->mat_bytes(b, d, &bytes, err));
            if (m->ops[i].kind == BL_OP_EMBED) {
                r->read_bytes_per_token += bytes / d->n_out; /* one row */
                continue;
            }
            r->read_bytes_per_token += bytes / w->n_experts * w->n_used;
            if (i < m->select_op) { /* the head runs once per prompt */
                r->flops_per_token += 2 * (uint64_t)d->n_out * d->k / w->n_experts * w->n_used;
            }
        }
    }
    r->read_bytes_per_token += vectors;
    return BL_OK;
}

/* What the backend keeps for activations in its own form: the widest input of a product once more as bytes
 * with its scales, and per thread an attention work area. prepare() says it exactly, but needs the loaded
 * matrices. */
static uint64_t backend_scratch(const bl_model *m, uint32_t max_rows) {
    const bl_decoder_config *c = &m->cfg;
    uint64_t widest = 0, rows = (uint64_t)max_rows * BL_MAX(c->n_used, 1u);
    for (size_t i = 0; i < m->n_all_ops; i++) {
        if (m->ops[i].kind == BL_OP_MATMUL || m->ops[i].kind == BL_OP_EXPERTS) {
            widest = BL_MAX(widest, m->matrices[m->refs[i].w[0]].desc.k);
        }
    }
    /* experts' rows: in, gate, up and out in f32 */
    uint64_t experts = c->n_experts > 0 ? rows * 8u * ((uint64_t)c->hidden + c->expert_ffn) : 0;
    return rows * widest * 2u + experts + ((uint64_t)1 << 20);
}

uint32_t bl_plan_samplers(const bl_backend *b, uint32_t n_seqs) {
    return n_seqs > 1 ? bl_backend_cpu_threads(b) : 1;
}

bl_code bl_plan_make(const bl_model *m, const bl_backend *b, const bl_kv_geometry *kv,
                     const bl_exec_size *size, uint64_t prefix_cache_bytes, bl_model_info *ret, bl_err *err) {
    const bl_decoder_config *c = &m->cfg;
    bl_model_info r = {.n_params = m->n_params,
                       .n_active_params = m->n_active_params,
                       .n_draft_params = bl_model_has_draft(m) ? m->n_draft_params : 0,
                       .n_experts = c->n_experts,
                       .n_experts_used = c->n_used,
                       .expert_ffn = c->expert_ffn,
                       .n_vocab = c->n_vocab,
                       .n_layers = c->n_layers,
                       .hidden = c->hidden,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .head_dim = c->head_dim,
                       .ffn = c->ffn,
                       .window = c->window,
                       .n_context_trained = c->n_context_trained,
                       .n_context = kv->n_context,
                       .draft_foreign = c->draft_foreign,
                       .draft_depth = size->max_draft,
                       .tied_embeddings = c->tied,
                       .file_bytes = bl_checkpoint_tensor_bytes(m->ckpt)};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        r.n_full_layers += c->layer[i].mixer == BL_MIX_ATTENTION && !c->layer[i].sliding;
        r.n_delta_layers += c->layer[i].mixer == BL_MIX_DELTA;
    }
    snprintf(r.family, sizeof r.family, "%s", c->family);
    snprintf(r.container, sizeof r.container, "%s",
             bl_checkpoint_kind_of(m->ckpt) == BL_CKPT_GGUF ? "gguf" : "safetensors");
    snprintf(r.draft, sizeof r.draft, "%s",
             c->draft_refused[0] != '\0' ? c->draft_refused
             : c->n_draft_layers > 0     ? "embedded"
                                         : "none");
    describe_parts(m, &r);
    BL_TRY(sum_weights(m, b, &r, err));
    r.kv_bytes_per_token = bl_kv_bytes_per_token(kv);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const bl_kv_layer *l = &kv->layers[i];
        r.kv_growing_bytes += l->window > 0 ? 0 : bl_kv_layer_tile_bytes(kv, i) / BL_KV_TILE;
    }
    BL_TRY(bl_kv_pool_bytes(kv, &r.kv_bytes, err));
    r.kv_seq_bytes = bl_kv_seq_bytes(kv, kv->n_context);
    r.prefix_cache_bytes = prefix_cache_bytes;
    r.state_bytes = bl_kv_state_bytes(kv);
    r.kv_bytes += r.state_bytes * kv->n_seqs;
    BL_TRY(bl_exec_bytes(m, size, &r.scratch_bytes, err));
    r.scratch_bytes +=
        backend_scratch(m, size->max_rows) + bl_plan_samplers(b, kv->n_seqs) * bl_sampler_bytes(c->n_vocab);
    r.other_bytes =
        PROGRAM_BYTES + (uint64_t)c->n_vocab * TOKENIZER_TOKEN_BYTES + bl_kv_bookkeeping_bytes(kv);
    if (prefix_cache_bytes > 0) {
        r.other_bytes += bl_prefix_cache_bookkeeping_bytes(kv, prefix_cache_bytes);
    }
    if (!bl_add_u64(r.weights_bytes, r.kv_bytes, &r.total_bytes) ||
        !bl_add_u64(r.total_bytes, prefix_cache_bytes, &r.total_bytes) ||
        !bl_add_u64(r.total_bytes, r.scratch_bytes + r.other_bytes, &r.total_bytes)) {
        BL_FAIL(err, BL_ERANGE, "the memory plan of '%s' overflows", bl_checkpoint_name(m->ckpt));
    }
    *ret = r;
    return BL_OK;
}

/* ---- what there is ----------------------------------------------------------------------------------- */

uint64_t bl_plan_available_bytes(void) {
    uint64_t available = 0, kib, limit, used;
    if (bl_file_read_number("/proc/meminfo", "MemAvailable:", &kib)) {
        available = kib << 10;
    }
    /* Control groups, version 2 and 1; "max" is no number and means no limit. */
    if ((bl_file_read_number("/sys/fs/cgroup/memory.max", "", &limit) &&
         bl_file_read_number("/sys/fs/cgroup/memory.current", "", &used)) ||
        (bl_file_read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &limit) &&
         bl_file_read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", &used))) {
        uint64_t left = limit > used ? limit - used : 1;
        available = available == 0 ? left : BL_MIN(available, left);
    }
    return available;
}
