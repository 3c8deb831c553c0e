#include "provider/embed_mtp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "bl/bl.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"
#include "provider/capabilities.h"
#include "provider/embed_mtp_job.h"
#include "provider/mtp_probe.h"

#define INDEX       "model.safetensors.index.json"
#define SHOWN(name) bl_name_shown((name), strlen(name)), (name)

/* ---- the target ---------------------------------------------------------------------------------------- */

static bl_code check_options(const bl_embed_mtp_options *o, bl_err *err) {
    if (o->block_size < 2 || o->block_size > 8) {
        BL_FAIL(err, BL_EINVAL, "block_size is %" PRIu32 ", allowed are 2 to 8", o->block_size);
    }
    if (o->plain) {
        return BL_OK;
    }
    if (o->format.mode != BL_MLX_QUANTIZE_AFFINE) {
        BL_FAIL(err, BL_EINVAL, "a head is stored as %s, allowed is affine",
                bl_mlx_quantize_mode_name(o->format.mode));
    }
    return bl_mlx_quantize_check(&o->format, err);
}

static bl_code read_map(bl_embed_mtp *e, bl_err *err) {
    bl_buf b;
    json_t *index = NULL;
    bl_code rc = bl_checkpoint_read_side(e->target, INDEX, BL_ST_MAX_INDEX_BYTES, &b, err);
    if (rc != BL_OK) {
        return rc == BL_ENOTFOUND ? BL_OK : rc;
    }
    rc = bl_json_parse(bl_buf_str(&b), b.len, BL_ST_MAX_DEPTH, INDEX, &index, err);
    bl_buf_done(&b);
    BL_TRY(rc);
    e->map = json_incref(json_object_get(index, "weight_map"));
    json_decref(index);
    for (size_t i = 0; i < bl_checkpoint_count(e->target); i++) {
        const char *name = bl_checkpoint_at(e->target, i)->name;
        if (!bl_embed_mtp_shard_of(e, name)) { /* it did when the target was opened */
            BL_FAIL(err, BL_ECORRUPT, INDEX " changed: '%.*s' is not listed any more", SHOWN(name));
        }
    }
    return BL_OK;
}

/* A head that the target has already is left behind with its shard; from among other tensors it cannot be
 * taken, because those files stay as they are. */
static bl_code check_old_head(bl_embed_mtp *e, bl_err *err) {
    const bl_checkpoint *c = e->target;
    for (size_t i = 0; i < bl_checkpoint_count(c); i++) {
        const char *name = bl_checkpoint_at(c, i)->name, *shard = bl_embed_mtp_shard_of(e, name);
        bool head = bl_quantize_is_head(name);
        e->report.replaced |= head;
        if (!head && strcmp(shard, BL_QUANTIZE_HEAD_FILE) == 0) {
            BL_FAIL(err, BL_EINVAL, "the target's '%s' holds '%.*s', the name is the head's",
                    BL_QUANTIZE_HEAD_FILE, SHOWN(name));
        }
        for (size_t k = 0; head && k < bl_checkpoint_count(c); k++) {
            const char *other = bl_checkpoint_at(c, k)->name;
            if (!bl_quantize_is_head(other) && strcmp(bl_embed_mtp_shard_of(e, other), shard) == 0) {
                BL_FAIL(
                    err, BL_EINVAL,
                    "the target has a head already, among the tensors of '%.*s': only one in a shard of its "
                    "own can be replaced ('darkbloom quantize SRC' makes a checkpoint with its own head)",
                    SHOWN(shard));
            }
        }
    }
    return BL_OK;
}

static bl_code read_target(bl_embed_mtp *e, bl_err *err) {
    bl_quantize_plan *p = &e->work.plan;
    if (bl_checkpoint_kind_of(e->target) != BL_CKPT_HF) {
        BL_FAIL(err, BL_ENOTSUP, "the target '%.80s' is a GGUF file, a folder with safetensors is needed",
                bl_checkpoint_name(e->target));
    }
    p->config = bl_checkpoint_config(e->target);
    const json_t *text = json_object_get(p->config, "text_config");
    e->text = p->text = json_is_object(text) ? text : p->config;
    const char *type = json_string_value(json_object_get(p->config, "model_type"));
    p->family = type ? bl_quantize_family_find(type) : NULL;
    if (!p->family || !bl_quantize_family_shifts_norms(p->family)) {
        BL_FAIL(err, BL_ENOTSUP,
                "model_type of the target is '%.*s', allowed are qwen3_5 qwen3_5_text qwen3_5_moe "
                "qwen3_5_moe_text",
                SHOWN(type ? type : ""));
    }
    snprintf(e->report.model_type, sizeof e->report.model_type, "%s", type);
    uint64_t layers = 1;
    BL_TRY(bl_json_get_u64(e->text, "mtp_num_hidden_layers", 1, 1, "config.json", &layers, err));
    BL_TRY(read_map(e, err));
    return check_old_head(e, err);
}

/* ---- config.json --------------------------------------------------------------------------------------- */

typedef struct {
    bl_buf *b;
    bool failed; /* jansson 2.14 goes on after a key that could not be written */
} sink;

static int append(const char *text, size_t n, void *user) {
    sink *s = user;
    s->failed |= bl_buf_append(s->b, text, n, NULL) != BL_OK;
    return s->failed ? -1 : 0;
}

/* Numbers in as few digits as say the same. */
static bl_code dump(const json_t *config, bl_buf *ret, bl_err *err) {
    static const size_t digits[] = {15, 17};
    for (size_t i = 0; i < BL_COUNTOF(digits); i++) {
        json_t *again = NULL;
        sink to = {.b = ret};
        ret->len = 0;
        if (json_dump_callback(config, append, &to, JSON_INDENT(4) | JSON_REAL_PRECISION(digits[i])) != 0 ||
            to.failed) {
            BL_FAIL(err, BL_ENOMEM, "no memory for config.json");
        }
        BL_TRY(bl_json_parse(bl_buf_str(ret), ret->len, BL_CONFIG_MAX_DEPTH, "config.json", &again, err));
        bool same = json_equal(config, again) == 1;
        json_decref(again);
        if (same) {
            break;
        }
    }
    return bl_buf_append_char(ret, '\n', err);
}

static bl_code make_config(const bl_embed_mtp *e, bl_buf *ret, bl_err *err) {
    const bl_quantize_plan *p = &e->work.plan;
    json_t *config = json_deep_copy(p->config), *block = bl_quantize_head_block(p);
    bool moe = json_integer_value(json_object_get(e->text, "num_experts")) > 0;
    json_t *head = bl_quantize_head_declaration(moe, e->o->block_size);
    json_t *text = json_object_get(config, "text_config");
    text = json_is_object(text) ? text : config;
    int bad = !config || !block || !head;
    bad |= json_object_set_new(config, "mtplx_mtp", head);
    bad |= json_object_set_new(config, "mtplx_mtp_quantization", block);
    if (!json_object_get(text, "mtp_num_hidden_layers")) { /* other readers ask for it */
        bad |= json_object_set_new(text, "mtp_num_hidden_layers", json_integer(1));
    }
    bl_code rc = BL_OK;
    if (bad) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for config.json");
    } else {
        /* What the target asks of a machine by its id is asked under any name that the result gets. */
        bl_capabilities needs = {0};
        bl_capabilities_add_path(&needs, e->o->target);
        bl_capabilities_add_config(&needs, config);
        rc = bl_capabilities_pass_on(&needs, config, err);
    }
    if (rc == BL_OK) {
        rc = dump(config, ret, err);
    }
    json_decref(config);
    return rc;
}

/* ---- the result ---------------------------------------------------------------------------------------- */

static bl_code list_target(bl_embed_mtp *e, bl_err *err) {
    for (size_t i = 0; i < bl_checkpoint_count(e->target); i++) {
        const bl_tensor_view *t = bl_checkpoint_at(e->target, i);
        if (!bl_quantize_is_head(t->name)) {
            BL_TRY(bl_safetensors_writer_list(e->work.w, t->name, t->size_bytes,
                                              bl_embed_mtp_shard_of(e, t->name), err));
        }
    }
    return BL_OK;
}

static bl_code write_config(bl_embed_mtp *e, bl_err *err) {
    bl_buf b;
    bl_buf_init(&b, BL_CONFIG_MAX_BYTES);
    bl_code rc = make_config(e, &b, err);
    if (rc == BL_OK) {
        rc = bl_safetensors_writer_side(e->work.w, "config.json", b.data, b.len, err);
    }
    bl_buf_done(&b);
    return rc;
}

static bl_code code_of(bl_mtp_finding f) {
    switch (f) {
    case BL_MTP_FOUND_NO_MEMORY:
        return BL_ENOMEM;
    case BL_MTP_FOUND_CONFIG_UNREADABLE:
    case BL_MTP_FOUND_INDEX_UNREADABLE:
    case BL_MTP_FOUND_SHARD_UNREADABLE:
        return BL_EIO;
    default:
        return BL_EFORMAT;
    }
}

/* What its readers will say of it, before anybody can see it: the inspection of declared heads, and the
 * loader. */
static bl_code check_result(const bl_embed_mtp *e, bl_err *err) {
    bl_mtp_probe probe;
    bl_mtp_inspection found;
    bl_mtp_probe_read(e->folder, &probe);
    bl_mtp_inspect(e->folder, &probe, &found);
    bl_mtp_probe_done(&probe);
    if (found.finding != BL_MTP_FOUND_OK) {
        BL_FAIL(err, code_of(found.finding), "the head would not be accepted: %.190s", found.detail);
    }
    bl_engine_options o;
    bl_model_info info;
    bl_engine_options_init(&o);
    o.model_path = e->folder;
    o.draft_depth = e->o->block_size - 1;
    BL_TRY(bl_model_inspect(&o, &info, err));
    if (strcmp(info.draft, "embedded") != 0) {
        BL_FAIL(err, BL_EFORMAT, "the head cannot be used with the target: %.190s", info.draft);
    }
    return BL_OK;
}

static bl_code write_all(bl_embed_mtp *e, bl_err *err) {
    bl_quantize_work *w = &e->work;
    BL_TRY(bl_safetensors_writer_new(e->folder, BL_SAFETENSORS_SHARD_BYTES, &w->w, err));
    BL_TRY(bl_quantize_work_plan(w, err));
    BL_TRY(list_target(e, err));
    BL_TRY(bl_safetensors_writer_begin(w->w, err));
    e->report.head_bytes = bl_safetensors_writer_bytes(w->w);
    if (e->report.head_bytes > BL_MTP_MAX_PAYLOAD) {
        BL_FAIL(err, BL_ELIMIT, "the head has %" PRIu64 " bytes, allowed are %" PRIu64, e->report.head_bytes,
                BL_MTP_MAX_PAYLOAD);
    }
    BL_TRY(bl_embed_mtp_take_files(e, e->report.head_bytes, err));
    BL_TRY(write_config(e, err));
    BL_TRY(bl_quantize_work_run(w, err));
    BL_TRY(bl_checkpoint_check_intact(e->head, err));
    BL_TRY(bl_checkpoint_check_intact(e->target, err));
    BL_TRY(bl_safetensors_writer_finish(w->w, err));
    BL_TRY(check_result(e, err));
    return bl_embed_mtp_publish(e, err);
}

static void fill_report(bl_embed_mtp *e) {
    const bl_quantize_report *r = &e->work.plan.report;
    e->report.n_tensors = r->n_tensors;
    e->report.n_quantized = r->n_quantized;
    e->report.n_unfit = e->o->plain ? 0 : r->n_unfit;
    memcpy(e->report.first_unfit, r->first_unfit, sizeof e->report.first_unfit);
    e->report.unfit_width = r->unfit_width;
    e->report.n_head_params = r->n_params;
}

static bl_code embed(bl_embed_mtp *e, bl_err *err) {
    BL_TRY(check_options(e->o, err));
    BL_TRY(bl_checkpoint_open(e->o->target, &e->target, err));
    BL_TRY(read_target(e, err));
    BL_TRY(bl_checkpoint_open(e->o->head, &e->head, err));
    BL_TRY(bl_embed_mtp_plan_head(e, err));
    BL_TRY(bl_embed_mtp_make_folder(e, err));
    bl_code rc = write_all(e, err);
    bl_safetensors_writer_free(e->work.w);
    if (rc != BL_OK) {
        bl_embed_mtp_remove_folder(e);
    }
    return rc;
}

bl_code bl_embed_mtp_run(const bl_embed_mtp_options *o, bl_embed_mtp_report *ret, bl_err *err) {
    bl_embed_mtp *e = bl_alloc(sizeof *e);
    if (!e) {
        BL_FAIL(err, BL_ENOMEM, "no memory to embed a head");
    }
    e->o = o;
    bl_code rc = embed(e, err);
    if (rc == BL_OK) {
        fill_report(e);
        *ret = e->report;
    }
    bl_quantize_work_done(&e->work);
    json_decref(e->map);
    bl_checkpoint_free(e->head);
    bl_checkpoint_free(e->target);
    bl_free(e);
    return rc;
}
