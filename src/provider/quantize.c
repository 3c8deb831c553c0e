#include "provider/quantize.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/pull.h"
#include "provider/quantize_job.h"

/* Room for config.json, tokenizer and index on the disk. */
#define SMALL_FILES_BYTES ((uint64_t)128 << 20)

/* ---- checks before anything is written ---- */

static bl_code refuse_quantized(const bl_checkpoint *c, const json_t *config, const json_t *text,
                                const char *model_type, bl_err *err) {
    const json_t *q = json_object_get(config, "quantization_config");
    q = q ? q : json_object_get(text, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    /* gpt-oss is published with mxfp4 experts, which are taken over as they are */
    bool published = strcmp(model_type, "gpt_oss") == 0 && method && strcmp(method, "mxfp4") == 0;
    if (json_object_get(config, "quantization") || (q && !json_is_null(q) && !published)) {
        BL_FAIL(err, BL_ENOTSUP, "'%.100s' is quantised already (%.40s), a checkpoint of floats is needed",
                bl_checkpoint_name(c), method ? method : "a 'quantization' block in config.json");
    }
    return BL_OK;
}

static bl_code read_source(bl_quantize_work *r, bl_err *err) {
    bl_quantize_plan *p = &r->plan;
    if (bl_checkpoint_kind_of(p->c) != BL_CKPT_HF) {
        BL_FAIL(err, BL_ENOTSUP,
                "'%.100s' is a GGUF file, a folder with config.json and safetensors is needed",
                bl_checkpoint_name(p->c));
    }
    p->config = bl_checkpoint_config(p->c);
    const json_t *text = json_object_get(p->config, "text_config");
    p->text = json_is_object(text) ? text : p->config;
    const char *type = json_string_value(json_object_get(p->config, "model_type"));
    if (!type) {
        BL_FAIL(err, BL_EFORMAT, "config.json has no 'model_type'");
    }
    BL_TRY(refuse_quantized(p->c, p->config, p->text, type, err));
    p->family = bl_quantize_family_find(type);
    if (!p->family) {
        BL_FAIL(err, BL_ENOTSUP, "model_type is '%.*s', allowed are %s", bl_name_shown(type, strlen(type)),
                type, bl_quantize_family_names());
    }
    snprintf(p->report.model_type, sizeof p->report.model_type, "%s", type);
    return BL_OK;
}

/* *ret_made: the folder did not exist. */
static bl_code prepare_folder(const char *dst, bool *ret_made, bl_err *err) {
    bool exists;
    BL_TRY(bl_file_check_new_dir(dst, &exists, err));
    if (!exists) {
        BL_TRY(bl_file_make_dirs(dst, err));
        *ret_made = true;
    }
    return BL_OK;
}

/* ---- the files beside the weights ---- */

static bl_code copy_side_files(bl_quantize_work *r, bl_err *err) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json",
                                        "LICENSE",
                                        "LICENSE.txt"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        bl_buf b;
        bl_err cause = {0};
        bl_code rc = bl_checkpoint_read_side(r->plan.c, names[i], BL_TOKENIZER_JSON_MAX_BYTES, &b, &cause);
        if (rc == BL_ENOTFOUND) {
            continue;
        }
        if (rc != BL_OK) {
            BL_FAIL(err, rc, "%s", cause.msg);
        }
        rc = bl_safetensors_writer_side(r->w, names[i], b.data, b.len, err);
        bl_buf_done(&b);
        BL_TRY(rc);
    }
    return BL_OK;
}

static bl_code write_config(bl_quantize_work *r, bl_err *err) {
    bl_buf b;
    bl_buf_init(&b, BL_CONFIG_MAX_BYTES);
    bl_code rc = bl_quantize_config_make(&r->plan, &b, err);
    if (rc == BL_OK) {
        rc = bl_safetensors_writer_side(r->w, "config.json", b.data, b.len, err);
    }
    bl_buf_done(&b);
    return rc;
}

/* ---- all of it ---- */

static bl_code write_all(bl_quantize_work *r, bl_err *err) {
    const bl_quantize_options *o = r->plan.o;
    BL_TRY(bl_safetensors_writer_new(o->dst, o->max_shard_bytes, &r->w, err));
    BL_TRY(bl_quantize_work_plan(r, err));
    BL_TRY(bl_safetensors_writer_begin(r->w, err));
    r->plan.report.size_bytes = bl_safetensors_writer_bytes(r->w);
    BL_TRY(bl_pull_check_space(o->dst, r->plan.report.size_bytes + SMALL_FILES_BYTES, err));
    BL_TRY(copy_side_files(r, err));
    BL_TRY(write_config(r, err));
    BL_TRY(bl_quantize_work_run(r, err));
    BL_TRY(bl_checkpoint_check_intact(r->plan.c, err));
    return bl_safetensors_writer_finish(r->w, err);
}

static bl_code quantize(bl_quantize_work *r, bl_err *err) {
    bool made = false;
    BL_TRY(read_source(r, err));
    BL_TRY(bl_quantize_plan_make(&r->plan, err));
    BL_TRY(prepare_folder(r->plan.o->dst, &made, err));
    bl_code rc = write_all(r, err);
    bl_safetensors_writer_free(r->w);
    if (rc != BL_OK && made) {
        (void)rmdir(r->plan.o->dst);
    }
    return rc;
}

bl_code bl_quantize_run(const bl_quantize_options *o, bl_quantize_report *ret, bl_err *err) {
    bl_quantize_work r = {.plan = {.o = o}};
    bl_checkpoint *c = NULL;
    BL_TRY(bl_mlx_quantize_check(&o->format, err));
    BL_TRY(bl_checkpoint_open(o->src, &c, err));
    r.plan.c = c;
    bl_code rc = quantize(&r, err);
    if (rc == BL_OK) {
        *ret = r.plan.report;
    }
    bl_quantize_work_done(&r);
    bl_checkpoint_free(c);
    return rc;
}
