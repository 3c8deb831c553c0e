/* Conversation -> template context -> text with origins -> ids. */
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"

/* A rendered prompt, and the ids of one: more than any context. */
#define MAX_TEXT_BYTES ((size_t)64 << 20)
#define PROBE_WORD     "zqxprobe"

/* ---- contents ---- */

static bl_code check_part(const json_t *part, size_t i, size_t k, bl_err *err) {
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_object(part) || !type) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].content[%zu]: must be an object with a type", i, k);
    }
    if (strcmp(type, "text") != 0) {
        BL_FAIL(err, BL_EINVAL,
                "messages[%zu].content[%zu]: parts of type '%.40s' are not supported, only 'text'", i, k,
                type);
    }
    if (!json_is_string(json_object_get(part, "text"))) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].content[%zu].text: must be a string", i, k);
    }
    return BL_OK;
}

static bl_code check_message(const json_t *m, size_t i, bl_err *err) {
    const json_t *content = json_object_get(m, "content");
    if (!json_is_object(m)) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu]: must be an object", i);
    }
    if (!json_is_string(json_object_get(m, "role"))) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].role: must be a string", i);
    }
    if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content)) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].content: must be a string or a list of parts", i);
    }
    for (size_t k = 0; json_is_array(content) && k < json_array_size(content); k++) {
        BL_TRY(check_part(json_array_get(content, k), i, k, err));
    }
    return BL_OK;
}

static json_t *join_parts(const json_t *parts) {
    bl_buf text;
    bl_buf_init(&text, MAX_TEXT_BYTES);
    bl_code rc = BL_OK;
    for (size_t k = 0; k < json_array_size(parts) && rc == BL_OK; k++) {
        const json_t *t = json_object_get(json_array_get(parts, k), "text");
        rc = k > 0 ? bl_buf_append_char(&text, '\n', NULL) : BL_OK;
        rc = rc == BL_OK ? bl_buf_append(&text, json_string_value(t), json_string_length(t), NULL) : rc;
    }
    json_t *v = rc == BL_OK ? json_stringn(bl_buf_str(&text), text.len) : NULL;
    bl_buf_done(&text);
    return v;
}

/* The content as this template wants it; a new reference, NULL when out of memory. */
static json_t *fit_content(const bl_chat *c, json_t *content) {
    if (json_is_array(content) && !c->reads_parts) {
        return join_parts(content);
    }
    if (json_is_string(content) && c->only_parts) {
        return json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    }
    return json_incref(content);
}

/* messages with contents fitted: the list itself when nothing changes. */
static bl_code fit_messages(const bl_chat *c, const json_t *messages, json_t **ret, bl_err *err) {
    size_t n = json_is_array(messages) ? json_array_size(messages) : 0;
    if (n == 0) {
        BL_FAIL(err, BL_EINVAL, "messages: must be a list of at least one message");
    }
    json_t *out = json_array();
    for (size_t i = 0; i < n && out; i++) {
        json_t *m = json_array_get(messages, i);
        bl_code rc = check_message(m, i, err);
        if (rc != BL_OK) {
            json_decref(out);
            return rc;
        }
        json_t *content = json_object_get(m, "content");
        json_t *copy = json_copy(m); /* shallow: the caller's message stays as it is */
        json_t *fitted = content && copy ? fit_content(c, content) : NULL;
        bool ok = copy && (!content || (fitted && json_object_set_new(copy, "content", fitted) == 0)) &&
                  json_array_append(out, copy) == 0;
        json_decref(copy);
        if (!ok) {
            json_decref(out);
            out = NULL;
        }
    }
    if (!out) {
        BL_FAIL(err, BL_ENOMEM, "messages: out of memory");
    }
    *ret = out;
    return BL_OK;
}

/* ---- context ---- */

/* As Hugging Face passes them: tools and documents are there and none when not given. */
static bl_code make_context(const bl_chat *c, const json_t *messages, const json_t *tools,
                            const json_t *extra, bool add_generation_prompt, json_t **ret, bl_err *err) {
    json_t *fitted = NULL;
    if (extra && !json_is_object(extra)) {
        BL_FAIL(err, BL_EINVAL, "template variables: must be an object");
    }
    if (tools && !json_is_array(tools) && !json_is_null(tools)) {
        BL_FAIL(err, BL_EINVAL, "tools: must be a list");
    }
    BL_TRY(fit_messages(c, messages, &fitted, err));
    json_t *ctx = json_pack("{s:n}", "documents");
    bool ok = ctx && (!extra || json_object_update(ctx, (json_t *)(uintptr_t)extra) == 0);
    ok = ok && json_object_set(ctx, "messages", fitted) == 0;
    ok = ok && (tools ? json_object_set(ctx, "tools", (json_t *)(uintptr_t)tools)
                      : json_object_set_new(ctx, "tools", json_null())) == 0;
    ok = ok && json_object_set_new(ctx, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0;
    json_decref(fitted);
    if (!ok) {
        json_decref(ctx);
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    *ret = ctx;
    return BL_OK;
}

static bl_code render_marked(const bl_chat *c, const json_t *messages, const json_t *tools,
                             const json_t *extra, bool add_generation_prompt, bl_buf *ret, bl_buf *ret_marks,
                             bl_err *err) {
    json_t *ctx = NULL;
    if (!c->main) {
        BL_FAIL(err, BL_ENOTSUP, "this model has no chat template");
    }
    BL_TRY(make_context(c, messages, tools, extra, add_generation_prompt, &ctx, err));
    const bl_jinja *t =
        c->tool_use && json_is_array(tools) && json_array_size(tools) > 0 ? c->tool_use : c->main;
    const bl_jinja_limits limits = {.now_unix_s = c->now_unix_s};
    bl_code rc = bl_jinja_render_marked(t, ctx, c->vars, &limits, ret, ret_marks, err);
    json_decref(ctx);
    return rc;
}

bl_code bl_chat_render_text(const bl_chat *c, const json_t *messages, const json_t *tools,
                            const json_t *extra, bool add_generation_prompt, bl_buf *ret, bl_err *err) {
    return render_marked(c, messages, tools, extra, add_generation_prompt, ret, NULL, err);
}

/* ---- ids ---- */

/* At ids[from]: exactly one BOS when the tokenizer wants one, never two. */
static bl_code fix_bos(const bl_chat *c, bl_ids *ids, size_t from, bl_err *err) {
    int32_t bos = bl_tokenizer_bos(c->tokenizer);
    size_t n = ids->n - from;
    if (bos < 0) {
        return BL_OK;
    }
    if (n >= 2 && ids->ids[from] == bos && ids->ids[from + 1] == bos) {
        memmove(ids->ids + from, ids->ids + from + 1, (n - 1) * sizeof *ids->ids);
        ids->n--;
        return BL_OK;
    }
    if (!bl_tokenizer_adds_bos(c->tokenizer) || (n > 0 && ids->ids[from] == bos)) {
        return BL_OK;
    }
    BL_TRY(bl_ids_push(ids, bos, err));
    memmove(ids->ids + from + 1, ids->ids + from, n * sizeof *ids->ids);
    ids->ids[from] = bos;
    return BL_OK;
}

bl_code bl_chat_render(const bl_chat *c, const json_t *messages, const json_t *tools, const json_t *extra,
                       bool add_generation_prompt, bool parity, bl_ids *ret, bl_err *err) {
    bl_buf text, marks;
    size_t before = ret->n;
    bl_buf_init(&text, MAX_TEXT_BYTES);
    bl_buf_init(&marks, MAX_TEXT_BYTES);
    bl_code rc = render_marked(c, messages, tools, extra, add_generation_prompt, &text, &marks, err);
    if (rc == BL_OK && parity) {
        rc =
            bl_tokenizer_encode(c->tokenizer, bl_buf_str(&text), text.len, BL_ENCODE_SPECIAL_PARSE, ret, err);
    } else if (rc == BL_OK) {
        rc = bl_tokenizer_encode_marked(c->tokenizer, bl_buf_str(&text), (const uint8_t *)bl_buf_str(&marks),
                                        text.len, 0, ret, err);
        rc = rc == BL_OK ? fix_bos(c, ret, before, err) : rc;
    }
    if (rc != BL_OK) {
        ret->n = before;
    }
    bl_buf_done(&text);
    bl_buf_done(&marks);
    return rc;
}

bl_code bl_chat_encode_prompt(const bl_chat *c, const char *text, size_t n, bl_ids *ret, bl_err *err) {
    size_t before = ret->n;
    if (!c->tokenizer) {
        BL_FAIL(err, BL_ENOTSUP, "this model has no tokenizer: give token ids");
    }
    unsigned flags = BL_ENCODE_SPECIAL_ADD | BL_ENCODE_SPECIAL_PARSE;
    BL_TRY(bl_tokenizer_encode(c->tokenizer, text, n, flags, ret, err));
    bl_code rc = fix_bos(c, ret, before, err);
    if (rc != BL_OK) {
        ret->n = before;
    }
    return rc;
}

/* ---- what the template understands ---- */

/* Renders one user turn; *ret_shown: it succeeded and shows the probe word. Only lack of memory is an error.
 */
static bl_code probe(const bl_chat *c, json_t *content, bl_buf *out, bool *ret_shown, bl_err *err) {
    json_t *messages = content ? json_pack("[{s:s, s:o}]", "role", "user", "content", content) : NULL;
    bl_err local = {0};
    bl_buf_reset(out);
    if (!messages) {
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    bl_code rc = bl_chat_render_text(c, messages, NULL, NULL, true, out, &local);
    json_decref(messages);
    if (rc == BL_ENOMEM) {
        BL_FAIL(err, BL_ENOMEM, "%s", local.msg);
    }
    *ret_shown = rc == BL_OK && strstr(bl_buf_str(out), PROBE_WORD);
    return BL_OK;
}

/* A user turn with a list must show its text and not the list's own notation; with a string, the text. */
bl_code bl_chat_probe_content(bl_chat *c, bl_err *err) {
    bl_buf out;
    bool parts = false, strings = false;
    bl_buf_init(&out, MAX_TEXT_BYTES);
    c->reads_parts = true; /* let the list through */
    bl_code rc = probe(c, json_pack("[{s:s, s:s}]", "type", "text", "text", PROBE_WORD), &out, &parts, err);
    parts = parts && !strstr(bl_buf_str(&out), "'type'") && !strstr(bl_buf_str(&out), "\"type\"");
    if (rc == BL_OK) {
        rc = probe(c, json_string(PROBE_WORD), &out, &strings, err);
    }
    c->reads_parts = parts;
    c->only_parts = parts && !strings;
    bl_buf_done(&out);
    return rc;
}
