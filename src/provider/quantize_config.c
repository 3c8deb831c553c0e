/* config.json of a quantised checkpoint: the source's, with the blocks that readers of MLX checkpoints look
 * for (spec models.md §5.3, §8.5).
 */
#include <string.h>

#include "base/base.h"
#include "formats/json.h"
#include "provider/quantize_job.h"

static json_t *format_json(const bl_mlx_quantize_format *f) {
    return json_pack("{s:i, s:i, s:s}", "group_size", (int)f->group, "bits", (int)f->bits, "mode",
                     bl_mlx_quantize_mode_name(f->mode));
}

static bool same(const bl_mlx_quantize_format *a, const bl_mlx_quantize_format *b) {
    return a->mode == b->mode && a->bits == b->bits && a->group == b->group;
}

/* The block of the trunk or of the head: what is common, then each module that differs. */
static json_t *block_json(const bl_quantize_plan *p, bool head) {
    const bl_mlx_quantize_format *common = head ? &p->head_format : &p->listed_default;
    json_t *block = format_json(common);
    for (uint32_t i = 0; i < p->n; i++) {
        const bl_quantize_job *j = &p->jobs[i];
        if (j->quantize && j->head == head && (j->always_listed || !same(&j->format, common))) {
            (void)json_object_set_new(block, j->name, format_json(&j->format));
        }
    }
    return block;
}

static bool head_is_quantized(const bl_quantize_plan *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->jobs[i].head && p->jobs[i].quantize) {
            return true;
        }
    }
    return false;
}

json_t *bl_quantize_head_block(const bl_quantize_plan *p) {
    return head_is_quantized(p) ? block_json(p, true) : json_object();
}

json_t *bl_quantize_head_declaration(bool moe, uint32_t block_size) {
    return json_pack("{s:b, s:s, s:s, s:i, s:b, s:b}", "included", 1, "prefix", "mtp.", "model_type",
                     moe ? "qwen3_5_moe_mtp" : "qwen3_5_mtp", "block_size", (int)block_size,
                     "shares_target_embeddings", 1, "shares_target_lm_head", 1);
}

static void describe_head(const bl_quantize_plan *p, json_t *config) {
    if (!p->report.has_head) {
        (void)json_object_del(config, "mtplx_mtp");
        (void)json_object_del(config, "mtplx_mtp_quantization");
        return;
    }
    if (!json_is_object(json_object_get(config, "mtplx_mtp"))) {
        bool moe = strstr(p->report.model_type, "moe") != NULL;
        (void)json_object_set_new(config, "mtplx_mtp", bl_quantize_head_declaration(moe, 3));
    }
    (void)json_object_set_new(config, "mtplx_mtp_quantization", bl_quantize_head_block(p));
}

static void set_dtype(const bl_quantize_plan *p, json_t *config) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *word = p->o->dtype == BL_DTYPE_F32   ? "float32"
                       : p->o->dtype == BL_DTYPE_F16 ? "float16"
                                                     : "bfloat16";
    for (size_t i = 0; i < BL_COUNTOF(keys); i++) {
        if (json_object_get(config, keys[i])) {
            (void)json_object_set_new(config, keys[i], json_string(word));
        }
    }
}

static int append(const char *text, size_t n, void *user) {
    return bl_buf_append(user, text, n, NULL) == BL_OK ? 0 : -1;
}

bl_code bl_quantize_config_make(const bl_quantize_plan *p, bl_buf *ret, bl_err *err) {
    json_t *config = json_deep_copy(p->config);
    (void)json_object_del(config, "_name_or_path");
    (void)json_object_del(config, "vision_config"); /* their tensors are not taken over */
    (void)json_object_del(config, "audio_config");
    json_t *text = json_object_get(config, "text_config");
    if (text) {
        (void)json_object_del(text, "quantization_config");
    }
    json_t *block = block_json(p, false);
    (void)json_object_set(config, "quantization", block);
    (void)json_object_set_new(config, "quantization_config", json_deep_copy(block));
    json_decref(block);
    describe_head(p, config);
    if (p->o->cast) {
        set_dtype(p, config);
        set_dtype(p, text);
    }
    bool complete = config && json_object_get(config, "quantization_config");
    int rc = complete ? json_dump_callback(config, append, ret,
                                           JSON_INDENT(4) | JSON_SORT_KEYS | JSON_REAL_PRECISION(16))
                      : -1;
    json_decref(config);
    if (rc != 0) {
        BL_FAIL(err, BL_ENOMEM, "no memory for config.json");
    }
    return bl_buf_append_char(ret, '\n', err);
}
