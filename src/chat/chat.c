/* Opening: which template, which ids end an answer, which sampling the checkpoint wants. */
#include "chat/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"

void bl_chat_add_stop(bl_chat *c, int64_t id, uint32_t source) {
    int64_t n_vocab = c->tokenizer ? (int64_t)bl_tokenizer_vocab_size(c->tokenizer) : INT32_MAX;
    size_t i = 0;
    while (i < c->n_stop_ids && c->stop_ids[i] != id) {
        i++;
    }
    if (id < 0 || id >= n_vocab || i == BL_CHAT_MAX_STOP_IDS) {
        return;
    }
    c->stop_ids[i] = (int32_t)id;
    c->stop_sources[i] |= source;
    c->n_stop_ids = BL_MAX(c->n_stop_ids, i + 1);
}

int32_t bl_chat_control_id(const bl_chat *c, const char *piece) {
    int32_t id = bl_tokenizer_id(c->tokenizer, piece, strlen(piece));
    return id >= 0 && bl_tokenizer_is_special(c->tokenizer, id) ? id : -1;
}

/* Markers that end a turn in every template that writes them; found in the text, their ids end an answer even
 * where no configuration lists them. (<|end|> is not among them: in harmony it ends a channel, not the
 * answer.) */
static void add_turn_ends(bl_chat *c, const char *text, size_t n) {
    static const char *const markers[] = {"<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>"};
    for (size_t i = 0; i < BL_COUNTOF(markers); i++) {
        if (n > 0 && memmem(text, n, markers[i], strlen(markers[i]))) {
            bl_chat_add_stop(c, bl_chat_control_id(c, markers[i]), BL_STOP_TEMPLATE);
        }
    }
}

/* bos_token and its like, when the configuration did not name them: the tokenizer's. */
static bl_code add_token_vars(bl_chat *c, bl_err *err) {
    const struct {
        const char *name;
        int32_t id;
    } vars[] = {{"bos_token", bl_tokenizer_bos(c->tokenizer)}, {"eos_token", bl_tokenizer_eos(c->tokenizer)}};
    for (size_t i = 0; i < BL_COUNTOF(vars); i++) {
        size_t n;
        const char *piece = vars[i].id >= 0 ? bl_tokenizer_piece(c->tokenizer, vars[i].id, &n) : NULL;
        if (!piece || json_object_get(c->vars, vars[i].name)) {
            continue;
        }
        json_t *v = json_stringn(piece, n);
        if (v && json_object_set_new(c->vars, vars[i].name, v) != 0) {
            BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
        }
    }
    return BL_OK;
}

/* What Google publishes for Gemma 3 (spec models.md §12). */
static void gemma3_defaults(bl_chat_defaults *d) {
    if (!d->has_temperature) {
        d->temperature = 1.0f;
        d->has_temperature = true;
    }
    if (!d->has_top_p) {
        d->top_p = 0.95f;
        d->has_top_p = true;
    }
    if (!d->has_top_k) {
        d->top_k = 64;
        d->has_top_k = true;
    }
}

static bl_code compile_templates(bl_chat *c, const bl_chat_sources *s, bl_err *err) {
    if (s->main.len > 0) {
        BL_TRY(bl_jinja_compile(s->main.data, s->main.len, &c->main, err));
        c->source = BL_TEMPLATE_FILE;
        add_turn_ends(c, s->main.data, s->main.len);
        if (s->tool_use.len > 0) {
            BL_TRY(bl_jinja_compile(s->tool_use.data, s->tool_use.len, &c->tool_use, err));
            add_turn_ends(c, s->tool_use.data, s->tool_use.len);
        }
        return BL_OK;
    }
    if (s->gemma3 && bl_chat_control_id(c, "<start_of_turn>") >= 0 &&
        bl_chat_control_id(c, "<end_of_turn>") >= 0) {
        size_t n = strlen(bl_chat_template_gemma3);
        BL_TRY(bl_jinja_compile(bl_chat_template_gemma3, n, &c->main, err));
        c->source = BL_TEMPLATE_BUILTIN;
        add_turn_ends(c, bl_chat_template_gemma3, n);
        gemma3_defaults(&c->defaults);
    }
    return BL_OK;
}

static bl_code open_into(bl_chat *c, const bl_checkpoint *ckpt, bl_chat_sources *s, bl_err *err) {
    c->vars = json_object();
    if (!c->vars) {
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    const bl_gguf *g = bl_checkpoint_gguf(ckpt);
    BL_TRY(g ? bl_chat_read_gguf(c, g, s, err) : bl_chat_read_hf(c, ckpt, s, err));
    if (!c->tokenizer) {
        return BL_OK;
    }
    bl_chat_add_stop(c, bl_tokenizer_eos(c->tokenizer), BL_STOP_TOKENIZER);
    BL_TRY(add_token_vars(c, err));
    BL_TRY(compile_templates(c, s, err));
    bl_chat_choose_dialect(c, s);
    return c->main ? bl_chat_probe_template(c, err) : BL_OK;
}

bl_code bl_chat_open(const bl_checkpoint *ckpt, bl_chat **ret, bl_err *err) {
    bl_chat *c = bl_alloc(sizeof *c);
    if (!c) {
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    c->defaults = (bl_chat_defaults){.temperature = 1.0f, .top_p = 1.0f};
    (void)snprintf(c->features.reason, sizeof c->features.reason, "the checkpoint ships no tokenizer");
    bl_chat_sources s = {0};
    bl_buf_init(&s.main, (size_t)1 << 20);
    bl_buf_init(&s.tool_use, (size_t)1 << 20);
    bl_code rc = open_into(c, ckpt, &s, err);
    bl_buf_done(&s.main);
    bl_buf_done(&s.tool_use);
    if (rc != BL_OK) {
        bl_chat_free(c);
        return bl_err_wrap(err, rc, "%s", bl_checkpoint_name(ckpt));
    }
    *ret = c;
    return BL_OK;
}

void bl_chat_free(bl_chat *c) {
    if (!c) {
        return;
    }
    bl_jinja_free(c->main);
    bl_jinja_free(c->tool_use);
    bl_tokenizer_free(c->tokenizer);
    json_decref(c->vars);
    bl_free(c);
}

const bl_tokenizer *bl_chat_tokenizer(const bl_chat *c) {
    return c->tokenizer;
}

bl_template_source bl_chat_template_source(const bl_chat *c) {
    return c->source;
}

const int32_t *bl_chat_stop_ids(const bl_chat *c, size_t *ret_n) {
    *ret_n = c->n_stop_ids;
    return c->stop_ids;
}

bl_chat_stop bl_chat_stop_at(const bl_chat *c, size_t i) {
    bl_chat_stop s = {.id = c->stop_ids[i], .sources = c->stop_sources[i]};
    s.text = c->tokenizer ? bl_tokenizer_piece(c->tokenizer, s.id, &s.n_text) : NULL;
    return s;
}

void bl_chat_stop_sources(uint32_t sources, char *out, size_t size) {
    static const char *const words[] = {"config.json",
                                        "config.json text_config",
                                        "generation_config.json",
                                        "tokenizer_config.json",
                                        "tokenizer",
                                        "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id",
                                        "chat template",
                                        "dialect"};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < BL_COUNTOF(words) && used < size; i++) {
        if ((sources >> i & 1) != 0) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "", words[i]);
        }
    }
}

const bl_chat_features *bl_chat_describe(const bl_chat *c) {
    return &c->features;
}

const int32_t *bl_chat_markers(const bl_chat *c, size_t *ret_n) {
    *ret_n = c->n_markers;
    return c->markers;
}

bl_chat_defaults bl_chat_sampling_defaults(const bl_chat *c) {
    return c->defaults;
}
