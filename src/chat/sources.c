/* Where a checkpoint says how to talk to it: GGUF metadata, or the side files of a Hugging Face folder. */
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"
#include "formats/json.h"
#include "formats/limits.h"

#define TEMPLATE_MAX_BYTES ((size_t)1 << 20)
#define CONFIG_MAX_BYTES                                                                                     \
    ((size_t)16 << 20) /* tokenizer_config.json lists added tokens, and may hold templates */

static bl_code set_var(bl_chat *c, const char *name, const char *s, size_t n, bl_err *err) {
    json_t *v = json_stringn(s, n);
    if (!v) {
        return BL_OK; /* a piece that is no text (a byte token): no variable */
    }
    if (json_object_set_new(c->vars, name, v) != 0) {
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    return BL_OK;
}

/* ---- GGUF ---- */

static bl_code gguf_template(const bl_gguf *g, const char *key, bl_buf *ret, bl_err *err) {
    const char *s = NULL;
    size_t n = 0;
    BL_TRY(bl_gguf_get_str(g, key, &s, &n, NULL, err));
    if (n > TEMPLATE_MAX_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "%s: %zu bytes, at most %zu are allowed", key, n, TEMPLATE_MAX_BYTES);
    }
    return n > 0 ? bl_buf_append(ret, s, n, err) : BL_OK;
}

static bl_code gguf_float(const bl_gguf *g, const char *key, double min, double max, float *ret,
                          bool *ret_found, bl_err *err) {
    double v = 0;
    bool found = false;
    BL_TRY(bl_gguf_get_f64(g, key, &v, &found, err));
    if (found && !(v >= min && v <= max)) {
        BL_FAIL(err, BL_EFORMAT, "%s: %g, must be %g to %g", key, v, min, max);
    }
    if (found) {
        *ret = (float)v;
        *ret_found = true;
    }
    return BL_OK;
}

static bl_code gguf_sampling(bl_chat_defaults *d, const bl_gguf *g, bl_err *err) {
    bool min_p = false;
    uint64_t top_k = 0;
    BL_TRY(gguf_float(g, "general.sampling.temp", 0, 100, &d->temperature, &d->has_temperature, err));
    BL_TRY(gguf_float(g, "general.sampling.top_p", 0, 1, &d->top_p, &d->has_top_p, err));
    BL_TRY(gguf_float(g, "general.sampling.min_p", 0, 1, &d->min_p, &min_p, err));
    BL_TRY(bl_gguf_get_u64(g, "general.sampling.top_k", 0, UINT32_MAX, &top_k, &d->has_top_k, err));
    d->top_k = (uint32_t)top_k;
    return BL_OK;
}

bl_code bl_chat_read_gguf(bl_chat *c, const bl_gguf *g, bl_chat_sources *s, bl_err *err) {
    static const struct {
        const char *key;
        uint32_t source;
    } stops[] = {{"tokenizer.ggml.eos_token_id", BL_STOP_GGUF_EOS},
                 {"tokenizer.ggml.eot_token_id", BL_STOP_GGUF_EOT},
                 {"tokenizer.ggml.eom_token_id", BL_STOP_GGUF_EOM}};
    static const struct {
        const char *key, *name;
    } vars[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                {"tokenizer.ggml.eos_token_id", "eos_token"},
                {"tokenizer.ggml.unknown_token_id", "unk_token"},
                {"tokenizer.ggml.padding_token_id", "pad_token"}};
    const char *arch = NULL, *model = NULL;
    size_t n = 0, n_model = 0;
    BL_TRY(bl_gguf_get_str(g, "tokenizer.ggml.model", &model, &n_model, NULL, err));
    if (!model) {
        return BL_OK; /* ids only */
    }
    BL_TRY(bl_tokenizer_from_gguf(g, &c->tokenizer, err));
    BL_TRY(bl_gguf_get_str(g, "general.architecture", &arch, &n, NULL, err));
    s->gemma3 = n == 6 && memcmp(arch, "gemma3", 6) == 0;
    for (size_t i = 0; i < BL_COUNTOF(stops); i++) {
        uint64_t id = UINT64_MAX;
        bool found = false;
        BL_TRY(bl_gguf_get_u64(g, stops[i].key, 0, UINT32_MAX, &id, &found, err));
        if (found) {
            bl_chat_add_stop(c, (int64_t)id, stops[i].source);
        }
    }
    for (size_t i = 0; i < BL_COUNTOF(vars); i++) {
        uint64_t id = 0;
        bool found = false;
        size_t n_piece = 0;
        BL_TRY(bl_gguf_get_u64(g, vars[i].key, 0, UINT32_MAX, &id, &found, err));
        const char *piece =
            found && id <= INT32_MAX ? bl_tokenizer_piece(c->tokenizer, (int32_t)id, &n_piece) : NULL;
        if (piece) {
            BL_TRY(set_var(c, vars[i].name, piece, n_piece, err));
        }
    }
    BL_TRY(gguf_template(g, "tokenizer.chat_template", &s->main, err));
    BL_TRY(gguf_template(g, "tokenizer.chat_template.tool_use", &s->tool_use, err));
    return gguf_sampling(&c->defaults, g, err);
}

/* ---- Hugging Face folder ---- */

/* Reads a side file; *ret stays NULL (or the buffer empty) when it does not exist. */
static bl_code read_text(const bl_checkpoint *ckpt, const char *file, size_t max_bytes, bl_buf *ret,
                         bl_err *err) {
    bl_err local = {0};
    bl_code rc = bl_checkpoint_read_side(ckpt, file, max_bytes, ret, &local);
    if (rc == BL_ENOTFOUND) {
        return BL_OK;
    }
    if (rc != BL_OK && err) {
        *err = local;
    }
    return rc;
}

static bl_code read_object(const bl_checkpoint *ckpt, const char *file, json_t **ret, bl_err *err) {
    bl_buf text;
    bl_buf_init(&text, CONFIG_MAX_BYTES);
    bl_code rc = read_text(ckpt, file, CONFIG_MAX_BYTES, &text, err);
    if (rc == BL_OK && text.len > 0) {
        rc = bl_json_parse(text.data, text.len, BL_CONFIG_MAX_DEPTH, file, ret, err);
    }
    bl_buf_done(&text);
    if (rc == BL_OK && *ret && !json_is_object(*ret)) {
        json_decref(*ret);
        *ret = NULL;
        BL_FAIL(err, BL_EFORMAT, "%s: must be an object", file);
    }
    return rc;
}

/* eos_token_id: an integer or a list of them. */
static bl_code add_eos(bl_chat *c, const json_t *config, const char *what, uint32_t source, bl_err *err) {
    const json_t *v = config ? json_object_get(config, "eos_token_id") : NULL;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!v || json_is_null(v)) {
        return BL_OK;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id)) {
            BL_FAIL(err, BL_EFORMAT, "%s: eos_token_id must be an integer or a list of integers", what);
        }
        bl_chat_add_stop(c, json_integer_value(id), source);
    }
    return BL_OK;
}

static bl_code hf_sampling(bl_chat_defaults *d, const json_t *g, bl_err *err) {
    static const char what[] = "generation_config.json";
    double temperature = -1, top_p = -1, min_p = 0;
    uint64_t top_k = UINT64_MAX;
    const json_t *do_sample = json_object_get(g, "do_sample");
    BL_TRY(bl_json_get_f64(g, "temperature", 0, 100, what, &temperature, err));
    BL_TRY(bl_json_get_f64(g, "top_p", 0, 1, what, &top_p, err));
    BL_TRY(bl_json_get_f64(g, "min_p", 0, 1, what, &min_p, err));
    BL_TRY(bl_json_get_u64(g, "top_k", 0, UINT32_MAX, what, &top_k, err));
    if (json_is_false(do_sample)) { /* the file says greedy: its other numbers are not in force */
        d->temperature = 0;
        d->has_temperature = true;
        return BL_OK;
    }
    if (temperature >= 0) {
        d->temperature = (float)temperature;
        d->has_temperature = true;
    }
    if (top_p >= 0) {
        d->top_p = (float)top_p;
        d->has_top_p = true;
    }
    if (top_k != UINT64_MAX) {
        d->top_k = (uint32_t)top_k;
        d->has_top_k = true;
    }
    d->min_p = (float)min_p;
    return BL_OK;
}

/* Every "..._token" of tokenizer_config.json: a string, or an object with its content. */
static bl_code hf_token_vars(bl_chat *c, const json_t *config, bl_err *err) {
    json_t *obj = (json_t *)(uintptr_t)config; /* jansson iterates through a non-const pointer */
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        size_t n = strlen(key);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (n > 6 && strcmp(key + n - 6, "_token") == 0 && json_is_string(v)) {
            BL_TRY(set_var(c, key, json_string_value(v), json_string_length(v), err));
        }
    }
    const json_t *eos = json_object_get(c->vars, "eos_token");
    if (eos) {
        bl_chat_add_stop(c, bl_tokenizer_id(c->tokenizer, json_string_value(eos), json_string_length(eos)),
                         BL_STOP_TOKENIZER_CONFIG);
    }
    return BL_OK;
}

static bl_code take_template(const json_t *v, bl_buf *ret, bl_err *err) {
    if (ret->len > 0 || !json_is_string(v)) {
        return BL_OK;
    }
    return bl_buf_append(ret, json_string_value(v), json_string_length(v), err);
}

/* chat_template: a string, or a list of {name, template}. */
static bl_code hf_config_template(const json_t *config, bl_chat_sources *s, bl_err *err) {
    const json_t *v = json_object_get(config, "chat_template");
    bool has_file = s->main.len > 0;
    if (!v || json_is_null(v) || json_is_string(v)) {
        return take_template(v, &s->main, err);
    }
    if (!json_is_array(v)) {
        BL_FAIL(err, BL_EFORMAT, "tokenizer_config.json: chat_template must be a string or a list");
    }
    for (size_t i = 0; i < json_array_size(v) && !has_file; i++) {
        const json_t *entry = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *text = json_object_get(entry, "template");
        if (!name || !json_is_string(text)) {
            BL_FAIL(err, BL_EFORMAT, "tokenizer_config.json: chat_template[%zu] must have name and template",
                    i);
        }
        if (strcmp(name, "default") == 0) {
            BL_TRY(take_template(text, &s->main, err));
        } else if (strcmp(name, "tool_use") == 0) {
            BL_TRY(take_template(text, &s->tool_use, err));
        }
    }
    return BL_OK;
}

static bl_code read_tokenizer(bl_chat *c, const bl_checkpoint *ckpt, bl_err *err) {
    bl_buf text;
    bl_buf_init(&text, BL_TOKENIZER_JSON_MAX_BYTES);
    bl_code rc = read_text(ckpt, "tokenizer.json", BL_TOKENIZER_JSON_MAX_BYTES, &text, err);
    if (rc == BL_OK && text.len > 0) {
        rc = bl_tokenizer_from_json(text.data, text.len, &c->tokenizer, err);
    }
    bl_buf_done(&text);
    return rc;
}

static bool is_gemma3(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && (strcmp(type, "gemma3_text") == 0 || strcmp(type, "gemma3") == 0);
}

bl_code bl_chat_read_hf(bl_chat *c, const bl_checkpoint *ckpt, bl_chat_sources *s, bl_err *err) {
    const json_t *config = bl_checkpoint_config(ckpt);
    const json_t *generation = bl_checkpoint_generation_config(ckpt);
    json_t *tokenizer_config = NULL;
    BL_TRY(read_tokenizer(c, ckpt, err));
    BL_TRY(add_eos(c, config, "config.json", BL_STOP_CONFIG, err));
    BL_TRY(add_eos(c, config ? json_object_get(config, "text_config") : NULL, "config.json: text_config",
                   BL_STOP_TEXT_CONFIG, err));
    BL_TRY(add_eos(c, generation, "generation_config.json", BL_STOP_GENERATION_CONFIG, err));
    if (generation) {
        BL_TRY(hf_sampling(&c->defaults, generation, err));
    }
    s->gemma3 = config && is_gemma3(config);
    if (!c->tokenizer) {
        return BL_OK;
    }
    BL_TRY(read_text(ckpt, "chat_template.jinja", TEMPLATE_MAX_BYTES, &s->main, err));
    BL_TRY(read_object(ckpt, "tokenizer_config.json", &tokenizer_config, err));
    bl_code rc = BL_OK;
    if (tokenizer_config) {
        rc = hf_token_vars(c, tokenizer_config, err);
        rc = rc == BL_OK ? hf_config_template(tokenizer_config, s, err) : rc;
    }
    json_decref(tokenizer_config);
    return rc;
}
