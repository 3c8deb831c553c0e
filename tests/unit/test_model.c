/* Families: what a config says becomes the right op list, what is not run is refused by name, and every
 * tensor is checked against the config. Rope frequencies against published values.
 */
#include "cmocka_all.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/model.h"
#include "tiny_model.h"

/* ---- Hugging Face folders: a fixture's weights behind another config --------------------------------- */

static char folder[512];

static void write_config(const json_t *config) {
    char path[600];
    char *text = json_dumps(config, JSON_INDENT(1));
    assert_non_null(text);
    snprintf(path, sizeof path, "%s/config.json", folder);
    TINY_MUST(bl_file_write_atomic(path, text, strlen(text), NULL));
    free(text);
}

static void make_folder(const char *fixture) {
    char from[600], to[600];
    bl_buf b;
    snprintf(folder, sizeof folder, "%s/tiny-%d-model", BL_BUILD_DIR, (int)getpid());
    TINY_MUST(bl_file_make_dirs(folder, NULL));
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    TINY_MUST(bl_file_read(from, (size_t)16 << 20, &b, NULL));
    TINY_MUST(bl_file_write_atomic(to, b.data, b.len, NULL));
    bl_buf_done(&b);
}

static void remove_folder(void) {
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

static json_t *fixture_config(const char *fixture) {
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", fixture);
    json_t *c = json_load_file(path, 0, NULL);
    assert_non_null(c);
    return c;
}

/* The code of bl_model_new and its message behind "model '...': ". */
static bl_code try_model(const char *path, char msg[256], bl_model **ret_m, bl_checkpoint **ret_c) {
    bl_checkpoint *c = NULL;
    bl_model *m = NULL;
    bl_err err = {0};
    TINY_MUST(bl_checkpoint_open(path, &c, NULL));
    bl_code rc = bl_model_new(c, BL_ACTIVATIONS_INT8, &m, &err);
    const char *at = strstr(err.msg, "': ");
    snprintf(msg, 256, "%s", at ? at + 3 : err.msg);
    if (rc == BL_OK && ret_m) {
        *ret_m = m;
        *ret_c = c;
    } else {
        bl_model_free(m, NULL);
        bl_checkpoint_free(c);
    }
    return rc;
}

typedef struct {
    const char
        *patch; /* JSON object merged over the fixture's config; null removes nothing but reads as absent */
    bl_code code;
    const char *msg;
} config_case;

static void expect_cases(const char *fixture, const config_case *cases, size_t n) {
    make_folder(fixture);
    for (size_t i = 0; i < n; i++) {
        json_t *c = fixture_config(fixture), *patch = json_loads(cases[i].patch, 0, NULL);
        char msg[256];
        assert_non_null(patch);
        assert_int_equal(json_object_update(c, patch), 0);
        write_config(c);
        bl_code rc = try_model(folder, msg, NULL, NULL);
        if (rc != cases[i].code || strcmp(msg, cases[i].msg) != 0) {
            fail_msg("%s gave %s: '%s', not %s: '%s'", cases[i].patch, bl_code_name(rc), msg,
                     bl_code_name(cases[i].code), cases[i].msg);
        }
        json_decref(c);
        json_decref(patch);
    }
    remove_folder();
}

static void test_llama_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{}", BL_OK, ""},
        {"{\"model_type\": \"mamba\"}", BL_ENOTSUP,
         "model_type is 'mamba', this version runs gemma3_text, gemma3, gemma4, gemma4_text, gpt_oss, llama, "
         "qwen3, qwen3_5, qwen3_5_text, qwen3_5_moe, "
         "qwen3_5_moe_text"},
        {"{\"model_type\": null}", BL_EFORMAT, "config.json: key 'model_type' is missing"},
        {"{\"hidden_size\": null}", BL_EFORMAT, "config.json: key 'hidden_size' is missing"},
        {"{\"hidden_size\": 0}", BL_EFORMAT, "config.json: 'hidden_size' is 0, allowed are 1 to 65536"},
        {"{\"num_hidden_layers\": 1000000}", BL_EFORMAT,
         "config.json: 'num_hidden_layers' is 1000000, allowed are 1 to 256"},
        {"{\"num_hidden_layers\": 5}", BL_EFORMAT,
         "tensor 'model.layers.4.input_layernorm.weight' is missing"},
        {"{\"num_hidden_layers\": 3}", BL_EFORMAT,
         "tensor 'model.layers.3.input_layernorm.weight' is not part of a llama model with this config"},
        {"{\"num_key_value_heads\": 3}", BL_EFORMAT,
         "config.json: 4 query heads are no multiple of 3 key/value heads"},
        {"{\"num_key_value_heads\": 4}", BL_EFORMAT,
         "tensor 'model.layers.0.self_attn.k_proj.weight' has shape [64, 128], the config asks for [128, "
         "128]"},
        {"{\"head_dim\": 31}", BL_EFORMAT,
         "config.json: head dimension 31, an even number up to 1024 is allowed"},
        {"{\"vocab_size\": 513}", BL_EFORMAT,
         "tensor 'model.embed_tokens.weight' has shape [512, 128], the config asks for [513, 128]"},
        {"{\"tie_word_embeddings\": false}", BL_EFORMAT, "tensor 'lm_head.weight' is missing"},
        {"{\"attention_bias\": true}", BL_EFORMAT,
         "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
        {"{\"mlp_bias\": true}", BL_EFORMAT, "tensor 'model.layers.0.mlp.gate_proj.bias' is missing"},
        {"{\"hidden_act\": \"relu\"}", BL_ENOTSUP,
         "config.json: hidden_act is 'relu', this version runs silu and gelu_pytorch_tanh"},
        {"{\"rms_norm_eps\": 0}", BL_EFORMAT,
         "config.json: norm epsilon 0, more than 0 and at most 1 is allowed"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}}", BL_EFORMAT,
         "config.json: rope type yarn needs a factor of at least 1, beta_fast > beta_slow and "
         "original_max_position_embeddings, found 4, 32, 1 and 0"},
        {"{\"rope_parameters\": null, \"rope_scaling\": {\"type\": \"dynamic\"}}", BL_ENOTSUP,
         "config.json: rope type is 'dynamic', this version runs default, linear, llama3, yarn and "
         "proportional"},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\"}}", BL_EFORMAT,
         "config.json: rope type 'linear' needs a factor"},
        {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}}", BL_EFORMAT,
         "config.json: rope type llama3 needs 0 < low_freq_factor < high_freq_factor and "
         "original_max_position_embeddings, "
         "found 0, 0 and 0"},
        {"{\"rope_parameters\": 3}", BL_EFORMAT, "config.json: the rope parameters must be an object"},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.01}}", BL_EFORMAT,
         "config.json: partial_rotary_factor is 0.01, nothing of a head of 32 turns"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\"}}", BL_ENOTSUP,
         "config.json: quant_method is 'gptq', this version runs mxfp4 and MLX's formats"},
    };
    expect_cases(tiny_llama, cases, BL_COUNTOF(cases));
}

static void test_gemma4_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{}", BL_OK, ""},
        {"{\"num_experts\": null}", BL_EFORMAT, "config.json: key 'num_experts' is missing"},
        {"{\"top_k_experts\": 9}", BL_EFORMAT, "config.json: 9 of 8 experts per token, 1 to 8 are allowed"},
        {"{\"layer_types\": [\"full_attention\"]}", BL_EFORMAT,
         "config.json: layer_types must list 7 layers, 1 found"},
        {"{\"hidden_activation\": \"relu\"}", BL_ENOTSUP,
         "config.json: hidden_activation is 'relu', this version runs silu and gelu_pytorch_tanh"},
        {"{\"num_kv_shared_layers\": 7}", BL_EFORMAT, "config.json: 7 of 7 layers share keys and values"},
        {"{\"num_kv_shared_layers\": 2}", BL_EFORMAT,
         "config.json: layer 5 shares keys and values, no layer before has them"},
        {"{\"moe_intermediate_size\": 32}", BL_EFORMAT,
         "tensor 'model.layers.0.experts.gate_up_proj' has shape [8, 128, 128], the config asks for [8, 64, "
         "128]"},
        {"{\"num_experts\": 4}", BL_EFORMAT,
         "tensor 'model.layers.0.router.proj.weight' has shape [8, 128], the config asks for [4, 128]"},
        {"{\"rope_parameters\": {}}", BL_EFORMAT,
         "config.json: rope_parameters must hold full_attention and sliding_attention"},
        {"{\"enable_moe_block\": false}", BL_EFORMAT,
         "tensor 'model.layers.0.experts.down_proj' is not part of a gemma4 model with this config"},
        {"{\"per_layer_config\": null}", BL_EFORMAT,
         "tensor 'model.layers.5.self_attn.q_proj.weight' has shape [256, 128], the config asks for [128, "
         "128]"},
        {"{\"attention_bias\": true}", BL_ENOTSUP,
         "config.json: 'attention_bias' is set, which this version does not run"},
        {"{\"num_global_key_value_heads\": 1, \"attention_k_eq_v\": false}", BL_ENOTSUP,
         "config.json: 'num_global_key_value_heads' without 'attention_k_eq_v', which references read "
         "differently"},
        {"{\"sliding_window\": null}", BL_EFORMAT,
         "config.json: layer 0 slides, but key 'sliding_window' is missing"},
        {"{\"hidden_size_per_layer_input\": 32}", BL_EFORMAT,
         "tensor 'model.embed_tokens_per_layer.weight' is missing"},
        {"{\"moe_intermediate_size\": 2000000000}", BL_EFORMAT,
         "config.json: 'moe_intermediate_size' is 2000000000, allowed are 1 to 1048576"},
        {"{\"tie_word_embeddings\": false}", BL_EFORMAT, "tensor 'lm_head.weight' is missing"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/tiny/gemma4-moe-tiny", cases, BL_COUNTOF(cases));
}

static void test_gemma4_e_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{\"vocab_size_per_layer_input\": 100}", BL_ENOTSUP,
         "config.json: 'vocab_size_per_layer_input' is 100, 'vocab_size' 512 is allowed"},
        {"{\"num_kv_shared_layers\": 4}", BL_EFORMAT,
         "tensor 'model.layers.7.self_attn.k_proj.weight' is missing"},
        {"{\"use_double_wide_mlp\": false}", BL_EFORMAT,
         "tensor 'model.layers.7.mlp.gate_proj.weight' has shape [384, 128], the config asks for [192, 128]"},
        {"{\"hidden_size_per_layer_input\": 16}", BL_EFORMAT,
         "tensor 'model.embed_tokens_per_layer.weight' has shape [512, 384], the config asks for [512, 192]"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/tiny/gemma4-e-tiny", cases, BL_COUNTOF(cases));
}

static void test_qwen3_5_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{\"linear_num_key_heads\": null}", BL_EFORMAT,
         "config.json: key 'linear_num_key_heads' is missing"},
        {"{\"linear_num_key_heads\": 3}", BL_EFORMAT,
         "config.json: 4 value heads are no multiple of 3 key heads in the delta net"},
        {"{\"output_gate_type\": \"sigmoid\"}", BL_ENOTSUP,
         "config.json: output_gate_type is 'sigmoid', this version runs swish"},
        {"{\"norm_topk_prob\": false}", BL_ENOTSUP,
         "config.json: 'norm_topk_prob' is false, this version renormalises"},
        {"{\"mlp_only_layers\": [1]}", BL_ENOTSUP,
         "config.json: 'decoder_sparse_step' or 'mlp_only_layers' mixes dense and expert layers"},
        {"{\"linear_conv_kernel_dim\": 1}", BL_EFORMAT,
         "config.json: 'linear_conv_kernel_dim' is 1, allowed are 2 to 16"},
        {"{\"linear_conv_kernel_dim\": 5}", BL_EFORMAT,
         "tensor 'model.layers.0.linear_attn.conv1d.weight' has shape [256, 1, 4], the config asks for [256, "
         "5]"},
        {"{\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
         "\"linear_attention\", \"linear_attention\", \"linear_attention\", \"linear_attention\", "
         "\"linear_attention\"]}",
         BL_EFORMAT, "config.json: no layer has full attention"},
        {"{\"num_experts_per_tok\": 0}", BL_EFORMAT,
         "config.json: 'num_experts_per_tok' is 0, allowed are 1 to 1024"},
        {"{\"shared_expert_intermediate_size\": null}", BL_EFORMAT,
         "config.json: key 'shared_expert_intermediate_size' is missing"},
        {"{\"attn_output_gate\": false}", BL_EFORMAT,
         "tensor 'model.layers.3.self_attn.q_proj.weight' has shape [512, 128], the config asks for [256, "
         "128]"},
        {"{\"rope_parameters\": {\"rope_type\": \"ntk\"}}", BL_ENOTSUP,
         "config.json: rope type is 'ntk', this version runs default, linear, llama3, yarn and proportional"},
        {"{\"num_experts\": 0}", BL_EFORMAT, "config.json: key 'intermediate_size' is missing"},
        {"{\"mtplx_mtp\": null}", BL_OK, ""},
        {"{\"linear_value_head_dim\": 16}", BL_EFORMAT,
         "tensor 'model.layers.0.linear_attn.in_proj_qkv.weight' has shape [256, 128], the config asks for "
         "[192, 128]"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny", cases, BL_COUNTOF(cases));
}

static void test_gpt_oss_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{\"num_local_experts\": null}", BL_EFORMAT, "config.json: key 'num_local_experts' is missing"},
        {"{\"num_experts_per_tok\": 5}", BL_EFORMAT,
         "config.json: 5 of 4 experts per token, 1 to 4 are allowed"},
        {"{\"intermediate_size\": 64}", BL_EFORMAT,
         "tensor 'model.layers.0.mlp.experts.gate_up_proj' has shape [4, 128, 256], the config asks for [4, "
         "128, 128]"},
        {"{\"layer_types\": [\"sliding\", \"full_attention\", \"sliding\", \"full_attention\"]}", BL_ENOTSUP,
         "config.json: layer_types[0] is 'sliding', sliding_attention and full_attention are allowed"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 0.5, "
         "\"original_max_position_embeddings\": 128}}",
         BL_EFORMAT,
         "config.json: rope type yarn needs a factor of at least 1, beta_fast > beta_slow and "
         "original_max_position_embeddings, found 0.5, 32, 1 and 128"},
        {"{\"head_dim\": 33}", BL_EFORMAT,
         "config.json: head dimension 33, an even number up to 1024 is allowed"},
        {"{\"swiglu_limit\": -1}", BL_EFORMAT,
         "config.json: 'swiglu_limit' is -1, allowed are 0.001 to 1e+06"},
        {"{\"sliding_window\": null}", BL_EFORMAT,
         "config.json: layer 0 slides, but key 'sliding_window' is missing"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/tiny/gpt_oss-tiny", cases, BL_COUNTOF(cases));
}

static void test_qwen3_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{\"use_sliding_window\": true}", BL_ENOTSUP,
         "config.json: 'use_sliding_window' is set, which this version does not run"},
        {"{\"head_dim\": 64}", BL_EFORMAT,
         "tensor 'model.layers.0.self_attn.q_proj.weight' has shape [128, 128], the config asks for [256, "
         "128]"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3-tiny", cases, BL_COUNTOF(cases));
}

static void test_quantised_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{}", BL_OK, ""},
        {"{\"quantization\": null, \"quantization_config\": null}", BL_EFORMAT,
         "config.json: tensor 'model.embed_tokens.weight' is quantised, but key 'quantization' is missing"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 8}}", BL_EFORMAT,
         "tensor 'model.embed_tokens.weight' ends in 16, a weight of 512 rows of 128 at 8 bits in groups of "
         "64 needs 32"},
        {"{\"quantization\": {\"group_size\": 32, \"bits\": 4}}", BL_EFORMAT,
         "tensor 'model.embed_tokens.scales' ends in 2, a weight of 512 rows of 128 at 4 bits in groups of "
         "32 needs 4"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 7}}", BL_ENOTSUP,
         "config.json: 'model.embed_tokens' is quantised to 7 bits in groups of 64; 2, 3, 4, 5, 6 and 8 bits "
         "in groups of 32, 64 and 128 are run"},
        {"{\"quantization\": {\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\"}}", BL_EFORMAT,
         "tensor 'model.embed_tokens.scales' ends in 2, a weight of 512 rows of 128 at 4 bits in groups of "
         "32 needs 4"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"mxfp4\"}}", BL_EFORMAT,
         "config.json: 'model.embed_tokens' is mxfp4 with 4 bits and groups of 64, the mode has 4 and 32"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"nf4\"}}", BL_ENOTSUP,
         "config.json: mode of 'model.embed_tokens' is 'nf4', affine, mxfp4, mxfp8 and nvfp4 are run"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\", \"lm_head\": false}}",
         BL_EFORMAT, "config.json: 'lm_head' is declared as not quantised, but has scales"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\", "
         "\"model.layers.0.mlp.up_proj\": {\"group_size\": 64, \"bits\": 8}}}",
         BL_EFORMAT,
         "tensor 'model.layers.0.mlp.up_proj.weight' ends in 16, a weight of 192 rows of 128 at 8 bits in "
         "groups of 64 needs 32"},
        {"{\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\", "
         "\"model.layers.0.mlp.up_proj\": {\"bits\": \"x\"}}}",
         BL_EFORMAT, "config.json: 'bits' is a string, allowed is an integer"},
    };
    expect_cases(BL_SOURCE_DIR "/tests/fixtures/mlx/qwen3-tiny-4bit", cases, BL_COUNTOF(cases));
}

/* A declared head that is wrong costs the head, not the model. */
static void test_draft_declarations(void **state) {
    (void)state;
    static const struct {
        const char *patch, *reason; /* NULL: the head is there */
    } cases[] = {
        {"{}", NULL},
        {"{\"mtplx_mtp\": null}", ""},
        {"{\"mtplx_mtp\": {\"included\": true, \"prefix\": \"x.\"}}",
         "config.json: mtplx_mtp.prefix is 'x.', 'mtp.' is allowed"},
        {"{\"mtplx_mtp\": {\"included\": true, \"block_size\": 9}}",
         "config.json: 'block_size' is 9, allowed are 2 to 8"},
        {"{\"mtplx_mtp\": {\"included\": true, \"model_type\": \"qwen3_5_mtp\"}}",
         "config.json: mtplx_mtp.model_type is 'qwen3_5_mtp', the model's is 'qwen3_5_moe_mtp'"},
        {"{\"mtplx_mtp\": {\"included\": true, \"shares_target_lm_head\": false}}",
         "config.json: mtplx_mtp has embeddings or a head of its own, sharing both is allowed"},
    };
    static const char fixture[] = BL_SOURCE_DIR "/tests/fixtures/tiny/qwen3_5-moe-tiny";
    make_folder(fixture);
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        json_t *c = fixture_config(fixture), *patch = json_loads(cases[i].patch, 0, NULL);
        bl_model *m = NULL;
        bl_checkpoint *ckpt = NULL;
        char msg[256];
        assert_int_equal(json_object_update(c, patch), 0);
        write_config(c);
        assert_int_equal(try_model(folder, msg, &m, &ckpt), BL_OK);
        assert_int_equal(bl_model_has_draft(m), cases[i].reason == NULL);
        assert_string_equal(m->cfg.draft_refused, cases[i].reason ? cases[i].reason : "");
        bl_model_free(m, NULL);
        bl_checkpoint_free(ckpt);
        json_decref(c);
        json_decref(patch);
    }
    remove_folder();
}

static void test_gemma_configs(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{}", BL_OK, ""},
        {"{\"attn_logit_softcapping\": 50.0}", BL_ENOTSUP,
         "config.json: 'attn_logit_softcapping' is set, which this version does not run"},
        {"{\"use_bidirectional_attention\": true}", BL_ENOTSUP,
         "config.json: 'use_bidirectional_attention' is set, which this version does not run"},
        {"{\"final_logit_softcapping\": 30.0}", BL_OK, ""},
        {"{\"layer_types\": [\"full_attention\"]}", BL_EFORMAT,
         "config.json: layer_types must list 7 layers, 1 found"},
        {"{\"layer_types\": [\"full_attention\", 1, 1, 1, 1, 1, 1]}", BL_ENOTSUP,
         "config.json: layer_types[1] is 'no string', sliding_attention and full_attention are allowed"},
        {"{\"layer_types\": null}", BL_OK, ""},
        {"{\"sliding_window\": null}", BL_EFORMAT,
         "config.json: layer 0 slides, but key 'sliding_window' is missing"},
        {"{\"rope_parameters\": {\"rope_theta\": 1e6}}", BL_ENOTSUP,
         "config.json: rope_parameters must hold full_attention and sliding_attention"},
        {"{\"model_type\": \"gemma3\"}", BL_OK, ""},
    };
    expect_cases(tiny_gemma, cases, BL_COUNTOF(cases));
}

static size_t count_ops(const bl_model *m, bl_op_kind kind) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_ops; i++) {
        n += m->ops[i].kind == kind;
    }
    return n;
}

/* The list a config asks for: windows, ropes, scales, the embedding's factor. */
static void test_op_lists(void **state) {
    (void)state;
    char msg[256];
    bl_model *m;
    bl_checkpoint *c;
    assert_int_equal(try_model(tiny_gemma, msg, &m, &c), BL_OK);
    assert_int_equal(count_ops(m, BL_OP_ATTENTION), 7);
    assert_int_equal(count_ops(m, BL_OP_ADD_NORM), 14);
    assert_int_equal(count_ops(m, BL_OP_ADD), 0);
    assert_int_equal(count_ops(m, BL_OP_ROPE_TABLE), 2);
    for (size_t i = 0; i < m->n_ops; i++) {
        const bl_op *op = &m->ops[i];
        if (op->kind == BL_OP_ATTENTION) {
            assert_int_equal(op->window, op->layer == 5 ? 0 : 12);
            assert_true(op->scale == (float)(1.0 / sqrt(32.0)));
        } else if (op->kind == BL_OP_ROPE) {
            assert_int_equal(op->in0, op->layer == 5 ? BL_SLOT_ROPE : BL_SLOT_ROPE_LOCAL);
        } else if (op->kind == BL_OP_EMBED) {
            assert_true(op->scale == 11.3125f); /* sqrt(128) rounded to bf16, as the checkpoint is bf16 */
        }
        assert_true((i >= m->select_op) == (op->rows == BL_ROWS_OUT));
    }
    assert_true(m->inv_freq[1] == (float)pow(1e6, -1.0 / 16) &&
                m->inv_freq_local[1] == (float)pow(1e4, -1.0 / 16));
    bl_model_free(m, NULL);
    TINY_MUST(bl_model_new(c, BL_ACTIVATIONS_F32, &m, NULL));
    assert_true(m->ops[0].kind == BL_OP_EMBED && m->ops[0].scale == 11.313708f);
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
    assert_int_equal(try_model(tiny_llama, msg, &m, &c), BL_OK);
    assert_int_equal(count_ops(m, BL_OP_ADD), 8);
    assert_int_equal(count_ops(m, BL_OP_ROPE_TABLE), 1);
    assert_int_equal(m->n_params,
                     512 * 128 + 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128 + 2 * 128) + 128);
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
}

/* The last 5 of 12 layers borrow the keys and values of earlier ones: they own no storage, so that whoever
 * counts model.kv charges nothing for them, and read what an owner of the same kind stored. */
static void test_borrowing_layers_own_no_storage(void **state) {
    (void)state;
    char msg[256];
    bl_model *m;
    bl_checkpoint *c;
    assert_int_equal(try_model(BL_SOURCE_DIR "/tests/fixtures/tiny/gemma4-e-tiny", msg, &m, &c), BL_OK);
    assert_int_equal(m->cfg.n_layers, 12);
    assert_int_equal(m->n_kv, 7);
    assert_int_equal(count_ops(m, BL_OP_KV_STORE), 7);
    assert_int_equal(count_ops(m, BL_OP_ATTENTION), 12);
    uint32_t stored = 0;
    for (size_t i = 0; i < m->n_ops; i++) {
        const bl_op *op = &m->ops[i];
        if (op->kind == BL_OP_KV_STORE) {
            assert_int_equal(op->kv_layer, stored++);
        } else if (op->kind == BL_OP_ATTENTION) {
            assert_true(op->kv_layer < stored);
            assert_int_equal(op->window, m->kv[op->kv_layer].window);
            assert_int_equal(op->head_dim, m->kv[op->kv_layer].head_dim);
            assert_int_equal(op->n_kv_heads, m->kv[op->kv_layer].n_kv_heads);
        }
    }
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
}

/* ---- GGUF -------------------------------------------------------------------------------------------- */

typedef void gguf_edit(tiny_gguf *g);

static void edit_none(tiny_gguf *g) {
    (void)g;
}
static void edit_experts(tiny_gguf *g) {
    tiny_u32(g, "llama.expert_count", 8);
}
static void edit_longrope(tiny_gguf *g) {
    tiny_str(g, "llama.rope.scaling.type", "longrope");
}
static void edit_linear(tiny_gguf *g) {
    tiny_str(g, "llama.rope.scaling.type", "linear");
}
static void edit_unknown(tiny_gguf *g) {
    static const float x[32];
    tiny_tensor(g, "blk.0.attn_sinks.weight", BL_DTYPE_F32, x, 0, 32);
}
static void edit_factors(tiny_gguf *g) {
    static float f[16];
    for (int i = 0; i < 16; i++) {
        f[i] = (float)(1 + i);
    }
    tiny_tensor(g, "rope_freqs.weight", BL_DTYPE_F32, f, 0, 16);
}
static void edit_bad_factors(tiny_gguf *g) {
    static const float f[16] = {1.0f}; /* zeros */
    tiny_tensor(g, "rope_freqs.weight", BL_DTYPE_F32, f, 0, 16);
}
static void edit_few_factors(tiny_gguf *g) {
    static const float f[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    tiny_tensor(g, "rope_freqs.weight", BL_DTYPE_F32, f, 0, 8);
}
static void edit_rot(tiny_gguf *g) {
    tiny_u32(g, "llama.rope.dimension_count", 16);
}

static const char *write_llama(gguf_edit *edit) {
    static const bl_dtype types[] = {BL_DTYPE_F16};
    const char *path = tiny_path("model");
    tiny_model_write_edited(path, &tiny_llama_dims, NULL, types, 1, edit);
    return path;
}

static void test_gguf_files(void **state) {
    (void)state;
    static const struct {
        gguf_edit *edit;
        bl_code code;
        const char *msg;
    } cases[] = {
        {edit_none, BL_OK, ""},
        {edit_factors, BL_OK, ""},
        {edit_experts, BL_ENOTSUP,
         "metadata key 'llama.expert_count' is 8, this version runs dense llama models only"},
        {edit_longrope, BL_ENOTSUP,
         "metadata key 'llama.rope.scaling.type' is 'longrope', this version runs none, linear and yarn"},
        {edit_linear, BL_EFORMAT, "metadata key 'llama.rope.scaling.factor' is missing"},
        {edit_unknown, BL_EFORMAT,
         "tensor 'blk.0.attn_sinks.weight' is not part of a llama model with this config"},
        {edit_bad_factors, BL_EFORMAT, "tensor 'rope_freqs.weight': element 1 is 0, 0.001 to 1e6 is allowed"},
        {edit_few_factors, BL_EFORMAT, "tensor 'rope_freqs.weight' must hold 16 F32 values"},
        {edit_rot, BL_ENOTSUP,
         "metadata key 'llama.rope.dimension_count' is 16, heads of 32 must turn whole"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        char msg[256];
        const char *path = write_llama(cases[i].edit);
        assert_int_equal(try_model(path, msg, NULL, NULL), cases[i].code);
        assert_string_equal(msg, cases[i].msg);
        unlink(path);
    }
    bl_model *m;
    bl_checkpoint *c;
    char msg[256];
    const char *path = write_llama(edit_factors);
    assert_int_equal(try_model(path, msg, &m, &c), BL_OK);
    for (int i = 0; i < 16; i++) {
        assert_true(m->inv_freq[i] == (float)(pow(10000.0, -i / 16.0) / (1 + i)));
    }
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
    unlink(path);
}

static void add_biases(tiny_gguf *g, float scale) {
    static const struct {
        const char *name;
        uint32_t n;
    } biases[] = {{"attn_q", 128},   {"attn_k", 64},  {"attn_v", 64},   {"attn_output", 128},
                  {"ffn_gate", 192}, {"ffn_up", 192}, {"ffn_down", 128}};
    for (uint32_t l = 0; l < 4; l++) {
        for (size_t i = 0; i < BL_COUNTOF(biases); i++) {
            float x[192];
            char name[64];
            for (uint32_t k = 0; k < 192; k++) {
                x[k] = scale * (float)k;
            }
            snprintf(name, sizeof name, "blk.%u.%s.bias", l, biases[i].name);
            tiny_tensor(g, name, BL_DTYPE_F32, x, 0, biases[i].n);
        }
    }
}
static void edit_biases(tiny_gguf *g) {
    add_biases(g, 1.0f);
}

/* Biases of q and k are stored in pairs like the rows, and put back alike; the others stay. */
static void test_biases_are_bound(void **state) {
    (void)state;
    char msg[256];
    bl_model *m;
    bl_checkpoint *c;
    const char *path = write_llama(edit_biases);
    assert_int_equal(try_model(path, msg, &m, &c), BL_OK);
    TINY_MUST(bl_model_load_vectors(m, 0, m->n_vectors, NULL));
    bl_model_resolve(m);
    size_t n = 0;
    for (size_t i = 0; i < m->n_ops && m->ops[i].layer <= 0; i++) {
        const bl_op *op = &m->ops[i];
        for (uint32_t k = 0; op->kind == BL_OP_MATMUL && k < op->n_w; k++) {
            bool paired = op->in0 == BL_SLOT_H && op->n_w == 3 && k < 2;
            assert_non_null(op->bias[k]);
            for (uint32_t j = 0; j < 64; j++) {
                uint32_t h = j / 32, r = j % 32;
                uint32_t want = paired ? 32 * h + (r < 16 ? 2 * r : 2 * (r - 16) + 1) : j;
                assert_true(op->bias[k][j] == (float)want);
            }
            n++;
        }
    }
    assert_int_equal(n, 7);
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
    unlink(path);
}

/* ---- rope -------------------------------------------------------------------------------------------- */

static void test_rope_frequencies(void **state) {
    (void)state;
    float f[128];
    bl_rope_config c = {.kind = BL_ROPE_PLAIN, .theta = 10000.0, .factor = 1.0};
    bl_rope_inv_freq(&c, 256, f); /* spec models.md §16 */
    assert_true(f[0] == 1.0f && fabsf(f[1] - 0.930572041f) < 1e-7f &&
                fabsf(f[127] - 1.07460783e-4f) < 1e-11f);
    c.theta = 1e7;
    bl_rope_inv_freq(&c, 64, f);
    assert_true(fabsf(f[1] - 0.60429639f) < 1e-7f && fabsf(f[31] - 1.6548171e-7f) < 1e-14f);
    c.kind = BL_ROPE_LINEAR;
    c.factor = 8.0;
    bl_rope_inv_freq(&c, 64, f);
    assert_true(f[0] == 0.125f);
    /* Llama 3.1: theta 500000, factor 8, low 1, high 4, 8192; D 128. Wavelength of i is 2 pi theta^(i/64). */
    c = (bl_rope_config){.kind = BL_ROPE_LLAMA3,
                         .theta = 500000.0,
                         .factor = 8.0,
                         .low_freq_factor = 1.0,
                         .high_freq_factor = 4.0,
                         .original_context = 8192.0};
    bl_rope_inv_freq(&c, 128, f);
    double previous = 2.0;
    int n_mixed = 0;
    for (int i = 0; i < 64; i++) {
        double plain = pow(500000.0, -i / 64.0), wave = 2.0 * 3.14159265358979323846 / plain;
        if (wave < 2048.0) {
            assert_true(f[i] == (float)plain);
        } else if (wave > 8192.0) {
            assert_true(f[i] == (float)(plain / 8.0));
        } else {
            assert_true((double)f[i] < plain && (double)f[i] > plain / 8.0);
            n_mixed++;
        }
        assert_true((double)f[i] < previous);
        previous = (double)f[i];
    }
    assert_true(n_mixed >= 5);
    /* one value in the ramp by hand: i = 31, wave = 2 pi 500000^(31/64) = 3617.5..., t = (8192 / wave - 1) /
     * 3 */
    double plain = pow(500000.0, -31 / 64.0),
           t = (8192.0 * plain / (2.0 * 3.14159265358979323846) - 1.0) / 3.0;
    assert_true(fabs((double)f[31] - ((1.0 - t) * plain / 8.0 + t * plain)) < 1e-10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borrowing_layers_own_no_storage),
        cmocka_unit_test(test_llama_configs),
        cmocka_unit_test(test_gemma_configs),
        cmocka_unit_test(test_gemma4_configs),
        cmocka_unit_test(test_gemma4_e_configs),
        cmocka_unit_test(test_qwen3_5_configs),
        cmocka_unit_test(test_gpt_oss_configs),
        cmocka_unit_test(test_qwen3_configs),
        cmocka_unit_test(test_quantised_configs),
        cmocka_unit_test(test_draft_declarations),
        cmocka_unit_test(test_op_lists),
        cmocka_unit_test(test_gguf_files),
        cmocka_unit_test(test_biases_are_bound),
        cmocka_unit_test(test_rope_frequencies),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
