#include "provider/quantize_rules.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/names.h"

/* pattern: the name below the model's root, '#' for a number. to: NULL keeps the name; otherwise the module
 * that takes its place below the last layer number ("layers.N."). up: the module of the second half. */
typedef struct {
    const char *pattern;
    bl_quantize_rule rule;
    const char *to, *up;
} row;

#define M BL_QUANTIZE_MATRIX
#define P BL_QUANTIZE_PLAIN
#define N BL_QUANTIZE_NORM

#define ATTENTION                                                                                            \
    {"layers.#.self_attn.q_proj.weight", M, 0, 0}, {"layers.#.self_attn.k_proj.weight", M, 0, 0},            \
        {"layers.#.self_attn.v_proj.weight", M, 0, 0}, {                                                     \
        "layers.#.self_attn.o_proj.weight", M, 0, 0                                                          \
    }
#define BIASES                                                                                               \
    {"layers.#.self_attn.q_proj.bias", P, 0, 0}, {"layers.#.self_attn.k_proj.bias", P, 0, 0},                \
        {"layers.#.self_attn.v_proj.bias", P, 0, 0}, {                                                       \
        "layers.#.self_attn.o_proj.bias", P, 0, 0                                                            \
    }
#define QK_NORMS                                                                                             \
    {"layers.#.self_attn.q_norm.weight", N, 0, 0}, {                                                         \
        "layers.#.self_attn.k_norm.weight", N, 0, 0                                                          \
    }
#define MLP                                                                                                  \
    {"layers.#.mlp.gate_proj.weight", M, 0, 0}, {"layers.#.mlp.up_proj.weight", M, 0, 0}, {                  \
        "layers.#.mlp.down_proj.weight", M, 0, 0                                                             \
    }
#define TWO_NORMS                                                                                            \
    {"layers.#.input_layernorm.weight", N, 0, 0}, {                                                          \
        "layers.#.post_attention_layernorm.weight", N, 0, 0                                                  \
    }
#define FOUR_NORMS                                                                                           \
    TWO_NORMS, {"layers.#.pre_feedforward_layernorm.weight", N, 0, 0}, {                                     \
        "layers.#.post_feedforward_layernorm.weight", N, 0, 0                                                \
    }
#define OUTER                                                                                                \
    {"embed_tokens.weight", M, 0, 0}, {"norm.weight", N, 0, 0}, {                                            \
        "lm_head.weight", M, 0, 0                                                                            \
    }

static const row llama_rows[] = {OUTER,
                                 TWO_NORMS,
                                 ATTENTION,
                                 BIASES,
                                 MLP,
                                 {"layers.#.mlp.gate_proj.bias", P, 0, 0},
                                 {"layers.#.mlp.up_proj.bias", P, 0, 0},
                                 {"layers.#.mlp.down_proj.bias", P, 0, 0}};
static const row qwen3_rows[] = {OUTER, TWO_NORMS, ATTENTION, BIASES, QK_NORMS, MLP};
static const row gemma3_rows[] = {OUTER, FOUR_NORMS, ATTENTION, QK_NORMS, MLP};

static const row gemma4_rows[] = {
    OUTER,
    FOUR_NORMS,
    ATTENTION,
    QK_NORMS,
    MLP,
    {"layers.#.post_feedforward_layernorm_1.weight", N, 0, 0},
    {"layers.#.post_feedforward_layernorm_2.weight", N, 0, 0},
    {"layers.#.pre_feedforward_layernorm_2.weight", N, 0, 0},
    {"layers.#.layer_scalar", P, 0, 0},
    {"layers.#.router.proj.weight", BL_QUANTIZE_MATRIX8, 0, 0},
    {"layers.#.router.scale", P, 0, 0},
    {"layers.#.router.per_expert_scale", P, 0, 0},
    {"layers.#.experts.gate_up_proj", BL_QUANTIZE_HALVES, "experts.switch_glu.gate_proj",
     "experts.switch_glu.up_proj"},
    {"layers.#.experts.down_proj", M, "experts.switch_glu.down_proj", 0},
    {"layers.#.experts.switch_glu.gate_proj.weight", M, 0, 0},
    {"layers.#.experts.switch_glu.up_proj.weight", M, 0, 0},
    {"layers.#.experts.switch_glu.down_proj.weight", M, 0, 0},
    {"embed_tokens_per_layer.weight", M, 0, 0},
    {"per_layer_model_projection.weight", M, 0, 0},
    {"per_layer_projection_norm.weight", N, 0, 0},
    {"layers.#.per_layer_input_gate.weight", M, 0, 0},
    {"layers.#.per_layer_projection.weight", M, 0, 0},
    {"layers.#.post_per_layer_input_norm.weight", N, 0, 0},
};

#define QWEN_MOE                                                                                             \
    {"layers.#.mlp.gate.weight", BL_QUANTIZE_MATRIX8, 0, 0},                                                 \
        {"layers.#.mlp.shared_expert_gate.weight", BL_QUANTIZE_MATRIX8, 0, 0},                               \
        {"layers.#.mlp.shared_expert.gate_proj.weight", M, 0, 0},                                            \
        {"layers.#.mlp.shared_expert.up_proj.weight", M, 0, 0},                                              \
        {"layers.#.mlp.shared_expert.down_proj.weight", M, 0, 0},                                            \
        {"layers.#.mlp.experts.gate_up_proj", BL_QUANTIZE_HALVES, "mlp.switch_mlp.gate_proj",                \
         "mlp.switch_mlp.up_proj"},                                                                          \
        {"layers.#.mlp.experts.down_proj", M, "mlp.switch_mlp.down_proj", 0},                                \
        {"layers.#.mlp.experts.#.gate_proj.weight", BL_QUANTIZE_STACK, "mlp.switch_mlp.gate_proj", 0},       \
        {"layers.#.mlp.experts.#.up_proj.weight", BL_QUANTIZE_STACK, "mlp.switch_mlp.up_proj", 0},           \
        {"layers.#.mlp.experts.#.down_proj.weight", BL_QUANTIZE_STACK, "mlp.switch_mlp.down_proj", 0},       \
        {"layers.#.mlp.switch_mlp.gate_proj.weight", M, 0, 0},                                               \
        {"layers.#.mlp.switch_mlp.up_proj.weight", M, 0, 0}, {                                               \
        "layers.#.mlp.switch_mlp.down_proj.weight", M, 0, 0                                                  \
    }

static const row qwen3_5_rows[] = {
    OUTER,
    TWO_NORMS,
    ATTENTION,
    QK_NORMS,
    MLP,
    QWEN_MOE,
    {"layers.#.linear_attn.in_proj_qkv.weight", M, 0, 0},
    {"layers.#.linear_attn.in_proj_z.weight", M, 0, 0},
    {"layers.#.linear_attn.in_proj_b.weight", M, 0, 0},
    {"layers.#.linear_attn.in_proj_a.weight", M, 0, 0},
    {"layers.#.linear_attn.out_proj.weight", M, 0, 0},
    {"layers.#.linear_attn.conv1d.weight", BL_QUANTIZE_CONV, 0, 0},
    {"layers.#.linear_attn.A_log", P, 0, 0},
    {"layers.#.linear_attn.dt_bias", P, 0, 0},
    {"layers.#.linear_attn.norm.weight", P, 0, 0},
};

static const row qwen_head_rows[] = {
    {"fc.weight", M, 0, 0},
    {"norm.weight", N, 0, 0},
    {"pre_fc_norm_embedding.weight", N, 0, 0},
    {"pre_fc_norm_hidden.weight", N, 0, 0},
    TWO_NORMS,
    ATTENTION,
    QK_NORMS,
    MLP,
    QWEN_MOE,
};

static const row gpt_oss_rows[] = {
    OUTER,
    TWO_NORMS,
    ATTENTION,
    BIASES,
    {"layers.#.self_attn.sinks", P, 0, 0},
    {"layers.#.mlp.router.weight", BL_QUANTIZE_MATRIX8, 0, 0},
    {"layers.#.mlp.router.bias", P, 0, 0},
    {"layers.#.mlp.experts.gate_up_proj", BL_QUANTIZE_PAIRS_T, "mlp.experts.gate_proj",
     "mlp.experts.up_proj"},
    {"layers.#.mlp.experts.down_proj", BL_QUANTIZE_MATRIX_T, "mlp.experts.down_proj", 0},
    {"layers.#.mlp.experts.gate_up_proj_bias", BL_QUANTIZE_PAIRS_VALUES, "mlp.experts.gate_proj.bias",
     "mlp.experts.up_proj.bias"},
    {"layers.#.mlp.experts.down_proj_bias", P, "mlp.experts.down_proj.bias", 0},
    {"layers.#.mlp.experts.gate_up_proj_blocks", BL_QUANTIZE_PAIRS_BLOCKS, "mlp.experts.gate_proj",
     "mlp.experts.up_proj"},
    {"layers.#.mlp.experts.down_proj_blocks", BL_QUANTIZE_BLOCKS, "mlp.experts.down_proj", 0},
    {"layers.#.mlp.experts.gate_up_proj_scales", BL_QUANTIZE_PAIRS_SCALES, "mlp.experts.gate_proj",
     "mlp.experts.up_proj"},
    {"layers.#.mlp.experts.down_proj_scales", BL_QUANTIZE_SCALES, "mlp.experts.down_proj", 0},
    {"layers.#.mlp.experts.gate_proj.weight", M, 0, 0},
    {"layers.#.mlp.experts.up_proj.weight", M, 0, 0},
    {"layers.#.mlp.experts.down_proj.weight", M, 0, 0},
    {"layers.#.mlp.experts.gate_proj.bias", P, 0, 0},
    {"layers.#.mlp.experts.up_proj.bias", P, 0, 0},
    {"layers.#.mlp.experts.down_proj.bias", P, 0, 0},
};

#undef M
#undef P
#undef N

struct bl_quantize_family {
    const char *model_type;
    const row *rows;
    size_t n_rows;
    bool wrapped; /* names begin with "language_model." */
    bool head;    /* may carry mtp.* */
    bool ties;
};

#define ROWS(r) r, BL_COUNTOF(r)

static const bl_quantize_family families[] = {
    {"gemma3_text", ROWS(gemma3_rows), false, false, true},
    {"gemma4", ROWS(gemma4_rows), true, false, true},
    {"gemma4_text", ROWS(gemma4_rows), false, false, true},
    {"llama", ROWS(llama_rows), false, false, false},
    {"qwen3", ROWS(qwen3_rows), false, false, false},
    {"qwen3_5", ROWS(qwen3_5_rows), true, true, false},
    {"qwen3_5_text", ROWS(qwen3_5_rows), true, true, false},
    {"qwen3_5_moe", ROWS(qwen3_5_rows), true, true, false},
    {"qwen3_5_moe_text", ROWS(qwen3_5_rows), true, true, false},
    {"gpt_oss", ROWS(gpt_oss_rows), false, false, false},
};

const bl_quantize_family *bl_quantize_family_find(const char *model_type) {
    for (size_t i = 0; i < BL_COUNTOF(families); i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const char *bl_quantize_family_names(void) {
    return "gemma3_text gemma4 gemma4_text llama qwen3 qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text "
           "gpt_oss";
}

bool bl_quantize_family_shifts_norms(const bl_quantize_family *f) {
    return f->head;
}

bool bl_quantize_family_ties(const bl_quantize_family *f) {
    return f->ties;
}

/* ---- names ---- */

static bool begins(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

/* Towers of the multimodal wrappers, and quantities that nothing reads. */
static bool is_skipped(const char *name) {
    static const char *const towers[] = {"vision_tower.",         "audio_tower.", "visual.",
                                         "embed_vision.",         "embed_audio.", "vision_embedder.",
                                         "multi_modal_projector."};
    static const char *const leaves[] = {".input_min", ".input_max", ".output_min", ".output_max",
                                         ".rotary_emb.inv_freq"};
    const char *s = begins(name, "model.") ? name + 6 : name;
    for (size_t i = 0; i < BL_COUNTOF(towers); i++) {
        if (begins(s, towers[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(leaves); i++) {
        if (bl_name_ends(name, leaves[i])) {
            return true;
        }
    }
    return false;
}

/* The part of a name below the model's root (a head's too). */
static const char *below_root(const char *name, bool *ret_head) {
    static const char *const roots[] = {"model.language_model.", "language_model.model.", "language_model.",
                                        "model."};
    *ret_head = false;
    for (size_t i = 0; i < BL_COUNTOF(roots); i++) {
        if (begins(name, roots[i])) {
            name += strlen(roots[i]);
            break;
        }
    }
    if (begins(name, "mtp.")) {
        *ret_head = true;
        name += 4;
    }
    return name;
}

bool bl_quantize_is_head(const char *name) {
    bool head;
    (void)below_root(name, &head);
    return head;
}

/* Numbers of up to 6 digits where the pattern has '#'. */
static bool matches(const char *pattern, const char *s, uint32_t numbers[2]) {
    uint32_t n = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (*pattern != *s++) {
                return false;
            }
            continue;
        }
        uint32_t digits = 0, v = 0;
        for (; *s >= '0' && *s <= '9' && digits < 7; s++, digits++) {
            v = v * 10 + (uint32_t)(*s - '0');
        }
        if (digits == 0 || digits == 7 || n == 2) {
            return false;
        }
        numbers[n++] = v;
    }
    return *s == '\0';
}

static const row *find_row(const bl_quantize_family *f, const char *name, bool head, uint32_t numbers[2]) {
    const row *rows = head ? qwen_head_rows : f->rows;
    size_t n = head ? BL_COUNTOF(qwen_head_rows) : f->n_rows;
    if (head && !f->head) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if (matches(rows[i].pattern, name, numbers)) {
            return &rows[i];
        }
    }
    return NULL;
}

static bool is_module(bl_quantize_rule r) {
    switch (r) {
    case BL_QUANTIZE_SKIP:
    case BL_QUANTIZE_PLAIN:
    case BL_QUANTIZE_NORM:
    case BL_QUANTIZE_CONV:
    case BL_QUANTIZE_PAIRS_VALUES:
        return false;
    default:
        return true;
    }
}

/* root + leaf, or root + "layers.N." + to; ".weight" cut off a module's name. */
static bool compose(const char *root, const char *leaf, const char *to, uint32_t layer, bool module,
                    char ret[256]) {
    int n =
        to ? snprintf(ret, 256, "%slayers.%u.%s", root, layer, to) : snprintf(ret, 256, "%s%s", root, leaf);
    if (n < 0 || n >= 256) {
        return false;
    }
    if (!to && module && bl_name_ends(ret, ".weight")) {
        ret[n - (int)strlen(".weight")] = '\0';
    }
    return true;
}

bl_code bl_quantize_target_of(const bl_quantize_family *f, const char *name, bl_quantize_target *ret,
                              bl_err *err) {
    bl_quantize_target t = {.rule = BL_QUANTIZE_SKIP};
    if (is_skipped(name)) {
        *ret = t;
        return BL_OK;
    }
    uint32_t numbers[2] = {0, 0};
    const char *leaf = below_root(name, &t.head);
    const row *r = find_row(f, leaf, t.head, numbers);
    int shown = bl_name_shown(name, strlen(name));
    if (!r) {
        BL_FAIL(err, BL_ENOTSUP, "tensor '%.*s' is not one of a %s checkpoint", shown, name, f->model_type);
    }
    const char *root = t.head                             ? "mtp."
                       : strncmp(leaf, "lm_head", 7) == 0 ? (f->wrapped ? "language_model." : "")
                       : f->wrapped                       ? "language_model.model."
                                                          : "model.";
    t.rule = r->rule;
    t.layer = numbers[0];
    t.expert = numbers[1];
    t.is_value = !is_module(r->rule);
    if (!compose(root, leaf, r->to, numbers[0], !t.is_value, t.name) ||
        (r->up && !compose(root, leaf, r->up, numbers[0], !t.is_value, t.up))) {
        BL_FAIL(err, BL_ELIMIT, "tensor '%.*s': its name has %zu bytes, allowed are 200", shown, name,
                strlen(name));
    }
    *ret = t;
    return BL_OK;
}
