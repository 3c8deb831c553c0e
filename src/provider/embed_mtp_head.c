/* What a head must be for its target: tensors, shapes, and the convention of its norms. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/embed_mtp_job.h"

#define WHAT        "config.json"
#define MAX_TENSORS 32u
#define MAX_DIM     ((uint64_t)1 << 24)
/* Means of norms that say which convention they are in: w is near 0, 1 + w near 1 (the loader's bounds). */
#define MEAN_CENTRED 0.25
#define MEAN_SHIFTED 0.75

typedef struct {
    const char *module; /* below "mtp." */
    uint32_t n_dims;
    uint64_t dims[3];
    bool found;
} expected;

typedef struct {
    expected t[MAX_TENSORS];
    uint32_t n;
} expectations;

static void expect(expectations *x, const char *module, uint64_t a, uint64_t b, uint64_t c) {
    BL_ASSERT(x->n < MAX_TENSORS);
    x->t[x->n++] = (expected){.module = module, .n_dims = c ? 3 : b ? 2 : 1, .dims = {a, b, c}};
}

static bl_code need(const json_t *text, const char *key, uint64_t *ret, bl_err *err) {
    if (!json_object_get(text, key)) {
        BL_FAIL(err, BL_EFORMAT, WHAT " of the target has no '%s'", key);
    }
    return bl_json_get_u64(text, key, 1, MAX_DIM, WHAT, ret, err);
}

static bl_code expect_experts(const json_t *text, uint64_t hidden, uint64_t n_experts, expectations *x,
                              bl_err *err) {
    uint64_t mid = 0, shared = 0;
    BL_TRY(need(text, "moe_intermediate_size", &mid, err));
    BL_TRY(need(text, "shared_expert_intermediate_size", &shared, err));
    expect(x, "layers.0.mlp.gate", n_experts, hidden, 0);
    expect(x, "layers.0.mlp.shared_expert_gate", 1, hidden, 0);
    expect(x, "layers.0.mlp.shared_expert.gate_proj", shared, hidden, 0);
    expect(x, "layers.0.mlp.shared_expert.up_proj", shared, hidden, 0);
    expect(x, "layers.0.mlp.shared_expert.down_proj", hidden, shared, 0);
    expect(x, "layers.0.mlp.switch_mlp.gate_proj", n_experts, mid, hidden);
    expect(x, "layers.0.mlp.switch_mlp.up_proj", n_experts, mid, hidden);
    expect(x, "layers.0.mlp.switch_mlp.down_proj", n_experts, hidden, mid);
    return BL_OK;
}

/* One layer of full attention with what joins it to the target (spec models.md 5.3). */
static bl_code expect_all(const json_t *text, expectations *x, bl_err *err) {
    uint64_t hidden = 0, heads = 0, kv_heads = 0, dim = 0, n_experts = 0, ffn = 0;
    bool gate = true;
    BL_TRY(need(text, "hidden_size", &hidden, err));
    BL_TRY(need(text, "num_attention_heads", &heads, err));
    kv_heads = heads;
    dim = hidden / heads;
    BL_TRY(bl_json_get_u64(text, "num_key_value_heads", 1, MAX_DIM, WHAT, &kv_heads, err));
    BL_TRY(bl_json_get_u64(text, "head_dim", 1, MAX_DIM, WHAT, &dim, err));
    BL_TRY(bl_json_get_u64(text, "num_experts", 0, 4096, WHAT, &n_experts, err));
    BL_TRY(bl_json_get_bool(text, "attn_output_gate", WHAT, &gate, err));
    expect(x, "fc", hidden, 2 * hidden, 0);
    expect(x, "norm", hidden, 0, 0);
    expect(x, "pre_fc_norm_embedding", hidden, 0, 0);
    expect(x, "pre_fc_norm_hidden", hidden, 0, 0);
    expect(x, "layers.0.input_layernorm", hidden, 0, 0);
    expect(x, "layers.0.post_attention_layernorm", hidden, 0, 0);
    expect(x, "layers.0.self_attn.q_proj", heads * dim * (gate ? 2 : 1), hidden, 0);
    expect(x, "layers.0.self_attn.k_proj", kv_heads * dim, hidden, 0);
    expect(x, "layers.0.self_attn.v_proj", kv_heads * dim, hidden, 0);
    expect(x, "layers.0.self_attn.o_proj", hidden, heads * dim, 0);
    expect(x, "layers.0.self_attn.q_norm", dim, 0, 0);
    expect(x, "layers.0.self_attn.k_norm", dim, 0, 0);
    if (n_experts > 0) {
        return expect_experts(text, hidden, n_experts, x, err);
    }
    BL_TRY(need(text, "intermediate_size", &ffn, err));
    expect(x, "layers.0.mlp.gate_proj", ffn, hidden, 0);
    expect(x, "layers.0.mlp.up_proj", ffn, hidden, 0);
    expect(x, "layers.0.mlp.down_proj", hidden, ffn, 0);
    return BL_OK;
}

/* ---- the plan against it ------------------------------------------------------------------------------- */

static void shape_text(uint32_t n_dims, const uint64_t *dims, char *ret, size_t cap) {
    size_t n = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < n_dims && n < cap; i++) {
        n += (size_t)snprintf(ret + n, cap - n, "%s%" PRIu64, i ? "," : "", dims[i]);
    }
}

static expected *find_expected(expectations *x, const char *module, size_t n) {
    for (uint32_t i = 0; i < x->n; i++) {
        if (strlen(x->t[i].module) == n && strncmp(x->t[i].module, module, n) == 0) {
            return &x->t[i];
        }
    }
    return NULL;
}

/* Length of a job's name without what makes a tensor's of a module's. */
static size_t module_bytes(const char *name) {
    static const char tail[] = ".weight";
    size_t n = strlen(name), m = sizeof tail - 1;
    return n > m && strcmp(name + n - m, tail) == 0 ? n - m : n;
}

static bl_code check_job(const bl_quantize_job *j, expectations *x, bl_err *err) {
    const char *module = j->name + strlen("mtp.");
    int n = (int)BL_MIN(module_bytes(module), (size_t)BL_NAME_SHOWN_BYTES); /* rules know no stranger names */
    expected *want = find_expected(x, module, module_bytes(module));
    if (!want) {
        BL_FAIL(err, BL_EFORMAT,
                "the head has a tensor 'mtp.%.*s.weight', which the target's geometry has no place for", n,
                module);
    }
    if (want->found) {
        BL_FAIL(err, BL_EFORMAT, "the head has 'mtp.%.*s.weight' in two forms, allowed is one", n, module);
    }
    want->found = true;
    bool same = j->n_dims == want->n_dims;
    for (uint32_t i = 0; i < want->n_dims && same; i++) {
        same = j->dims[i] == want->dims[i];
    }
    if (!same) {
        char found[64], allowed[64];
        shape_text(j->n_dims, j->dims, found, sizeof found);
        shape_text(want->n_dims, want->dims, allowed, sizeof allowed);
        BL_FAIL(err, BL_EFORMAT, "tensor 'mtp.%.*s.weight' of the head is [%s], the target allows [%s]", n,
                module, found, allowed);
    }
    return BL_OK;
}

static bl_code check_jobs(const bl_quantize_plan *p, const json_t *text, bl_err *err) {
    expectations x = {0};
    BL_TRY(expect_all(text, &x, err));
    for (uint32_t i = 0; i < p->n; i++) {
        BL_TRY(check_job(&p->jobs[i], &x, err));
    }
    for (uint32_t i = 0; i < x.n; i++) {
        if (!x.t[i].found) {
            BL_FAIL(err, BL_EFORMAT, "the head has no tensor 'mtp.%s.weight', which the target asks for",
                    x.t[i].module);
        }
    }
    return BL_OK;
}

/* What no shape shows, where both say it. */
static bl_code check_configs(const json_t *head, const json_t *target, bl_err *err) {
    static const char *const keys[] = {
        "hidden_size", "vocab_size",  "num_attention_heads", "num_key_value_heads",
        "head_dim",    "num_experts", "num_experts_per_tok", "moe_intermediate_size"};
    for (size_t i = 0; i < BL_COUNTOF(keys); i++) {
        const json_t *a = json_object_get(head, keys[i]), *b = json_object_get(target, keys[i]);
        if (json_is_integer(a) && json_is_integer(b) && !json_equal(a, b)) {
            BL_FAIL(err, BL_EFORMAT,
                    "%s is %" JSON_INTEGER_FORMAT " in the head's config.json, the target's is "
                    "%" JSON_INTEGER_FORMAT,
                    keys[i], json_integer_value(a), json_integer_value(b));
        }
    }
    return BL_OK;
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static bool is_float(bl_dtype t) {
    return t == BL_DTYPE_F32 || t == BL_DTYPE_F16 || t == BL_DTYPE_BF16;
}

static double sum_of(const bl_tensor_view *t) {
    float v[256];
    double sum = 0.0;
    size_t size = bl_dtype_get(t->dtype)->block_bytes;
    for (uint64_t at = 0; at < t->dims[0]; at += BL_COUNTOF(v)) {
        uint64_t n = BL_MIN((uint64_t)BL_COUNTOF(v), t->dims[0] - at);
        bl_dequant_row(t->dtype, t->data + at * size, v, n);
        for (uint64_t i = 0; i < n; i++) {
            sum += (double)v[i];
        }
    }
    return sum;
}

/* Mean over the norms of the hidden width, one weight each; those of queries and keys are near 1.5 or more in
 * trained models, whatever the convention, and say nothing. */
static double mean_of_norms(const bl_quantize_plan *p) {
    double sum = 0.0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const bl_quantize_job *j = &p->jobs[i];
        if (j->n_dims == 1 && is_float(j->src_dtype) && !strstr(j->name, ".self_attn.")) {
            sum += sum_of(j->src) / (double)j->src->dims[0];
            n++;
        }
    }
    return n > 0 ? sum / (double)n : 0.0;
}

static bl_code source_is_centred(bl_embed_mtp *e, bool *ret, bl_err *err) {
    double mean = e->report.norm_mean;
    if (e->o->norms != BL_EMBED_NORMS_AUTO) {
        *ret = e->o->norms == BL_EMBED_NORMS_CENTRED;
        return BL_OK;
    }
    if (mean > MEAN_SHIFTED || mean < MEAN_CENTRED) {
        *ret = mean < MEAN_CENTRED;
        return BL_OK;
    }
    if (e->work.plan.bare_head) {
        BL_FAIL(
            err, BL_EINVAL,
            "the head's norms have a mean of %.3f: below %.2f they would be w, above %.2f 1 + w; say which "
            "(--head-norms)",
            mean, MEAN_CENTRED, MEAN_SHIFTED);
    }
    *ret = bl_quantize_stores_centred(e->work.plan.family, e->head);
    return BL_OK;
}

/* By this matrix readers tell a quantised head. */
static bool joins_quantized(const bl_quantize_plan *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->jobs[i].quantize && strcmp(p->jobs[i].name, "mtp.fc") == 0) {
            return true;
        }
    }
    return false;
}

/* A quantised head is MLX's, and 1 + w everywhere; a plain one has the convention of the layers beside it. */
static bl_code shift_norms(bl_embed_mtp *e, bl_err *err) {
    bl_quantize_plan *p = &e->work.plan;
    bool from = false;
    e->report.norm_mean = mean_of_norms(p);
    BL_TRY(source_is_centred(e, &from, err));
    bool to = !joins_quantized(p) && bl_quantize_stores_centred(p->family, e->target);
    e->report.norm_shift = (int32_t)from - (int32_t)to;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->jobs[i].n_dims == 1) {
            p->jobs[i].add = (float)e->report.norm_shift;
        }
    }
    return BL_OK;
}

/* ---- the source ---------------------------------------------------------------------------------------- */

static const json_t *text_of(const bl_checkpoint *c) {
    const json_t *config = bl_checkpoint_config(c), *text = json_object_get(config, "text_config");
    return json_is_object(text) ? text : config;
}

/* A head alone is told by its model_type and has names without prefix. */
static bl_code find_head(bl_embed_mtp *e, bl_err *err) {
    const bl_checkpoint *c = e->head;
    const char *type = json_string_value(json_object_get(bl_checkpoint_config(c), "model_type"));
    bool any = false,
         alone = type && (strcmp(type, "qwen3_5_mtp") == 0 || strcmp(type, "qwen3_5_moe_mtp") == 0);
    if (bl_checkpoint_left_out(c)) { /* its own shards are no condition of a model, but of this they are */
        BL_FAIL(err, BL_EFORMAT, "the head cannot be read: %.200s", bl_checkpoint_left_out(c));
    }
    for (size_t i = 0; i < bl_checkpoint_count(c) && !any; i++) {
        any = bl_quantize_is_head(bl_checkpoint_at(c, i)->name);
    }
    if (!any && !alone) {
        BL_FAIL(err, BL_EFORMAT,
                "'%.80s' holds no tensor 'mtp.…', and its model_type is not that of a head (qwen3_5_mtp, "
                "qwen3_5_moe_mtp)",
                bl_checkpoint_name(c));
    }
    e->work.plan.bare_head = !any;
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        const char *name = bl_checkpoint_at(c, i)->name;
        if ((!any || bl_quantize_is_head(name)) && bl_name_ends(name, ".scales")) {
            BL_FAIL(err, BL_ENOTSUP, "the head is quantised already ('%.*s'), one of floats is needed",
                    bl_name_shown(name, strlen(name)), name);
        }
    }
    return BL_OK;
}

bl_code bl_embed_mtp_plan_head(bl_embed_mtp *e, bl_err *err) {
    const bl_embed_mtp_options *o = e->o;
    bl_quantize_plan *p = &e->work.plan;
    if (bl_checkpoint_kind_of(e->head) != BL_CKPT_HF) {
        BL_FAIL(err, BL_ENOTSUP, "the head '%.80s' is a GGUF file, a folder with safetensors is needed",
                bl_checkpoint_name(e->head));
    }
    BL_TRY(find_head(e, err));
    BL_TRY(check_configs(text_of(e->head), e->text, err));
    e->quantize =
        (bl_quantize_options){.format = o->format,
                              .head = o->plain ? BL_QUANTIZE_HEAD_PLAIN : BL_QUANTIZE_HEAD_QUANTIZED,
                              .cancel = o->cancel,
                              .progress = o->progress,
                              .user = o->user};
    p->o = &e->quantize;
    p->c = e->head;
    p->head_only = true;
    BL_TRY(bl_quantize_plan_make(p, err));
    BL_TRY(check_jobs(p, e->text, err));
    return shift_norms(e, err);
}
