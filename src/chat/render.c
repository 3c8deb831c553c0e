/* Conversation -> template context -> text with origins -> ids. */
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"

/* A rendered prompt, and the ids of one: more than any context. */
#define MAX_TEXT_BYTES ((size_t)64 << 20)
#define PROBE_WORD     "zqxprobe"

/* ---- context ---- */

/* As Hugging Face passes them: tools and documents are there and none when not given. */
static bl_code make_context(const bl_chat *c, const json_t *messages, const json_t *tools,
                            const json_t *extra, bool add_generation_prompt, json_t **ret, json_t **ret_own,
                            bl_err *err) {
    json_t *fitted = NULL, *own = NULL;
    if (extra && !json_is_object(extra)) {
        BL_FAIL(err, BL_EINVAL, "template variables: must be an object");
    }
    if (tools && !json_is_array(tools) && !json_is_null(tools)) {
        BL_FAIL(err, BL_EINVAL, "tools: must be a list");
    }
    BL_TRY(bl_chat_fit_messages(c, messages, &fitted, &own, err));
    json_t *ctx = json_pack("{s:n}", "documents");
    bool ok = ctx && (!extra || json_object_update(ctx, (json_t *)(uintptr_t)extra) == 0);
    ok = ok && json_object_set(ctx, "messages", fitted) == 0;
    ok = ok && (tools ? json_object_set(ctx, "tools", (json_t *)(uintptr_t)tools)
                      : json_object_set_new(ctx, "tools", json_null())) == 0;
    ok = ok && json_object_set_new(ctx, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0;
    json_decref(fitted);
    if (!ok) {
        json_decref(ctx);
        json_decref(own);
        BL_FAIL(err, BL_ENOMEM, "chat: out of memory");
    }
    *ret = ctx;
    *ret_own = own;
    return BL_OK;
}

static bl_code render_marked(const bl_chat *c, const json_t *messages, const json_t *tools,
                             const json_t *extra, bool add_generation_prompt, bl_buf *ret, bl_buf *ret_marks,
                             bl_err *err) {
    json_t *ctx = NULL, *own = NULL;
    if (!c->main) {
        BL_FAIL(err, BL_ENOTSUP, "this model has no chat template");
    }
    BL_TRY(make_context(c, messages, tools, extra, add_generation_prompt, &ctx, &own, err));
    const bl_jinja *t =
        c->tool_use && json_is_array(tools) && json_array_size(tools) > 0 ? c->tool_use : c->main;
    const bl_jinja_limits limits = {.now_unix_s = c->now_unix_s};
    bl_code rc = bl_jinja_render_marked(t, ctx, c->vars, own, &limits, ret, ret_marks, err);
    json_decref(ctx);
    json_decref(own);
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

/* Renders `messages` (taken); *ret_shown: it succeeded and shows the probe word. Only lack of memory is an
 * error. */
static bl_code probe(const bl_chat *c, json_t *messages, bl_buf *out, bool *ret_shown, bl_err *err) {
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

/* A conversation that has this content in this role, where templates expect the role. A new reference. */
static json_t *probe_messages(bl_role role, json_t *content) {
    json_t *m = NULL;
    if (!content) {
        return NULL;
    }
    switch (role) {
    case BL_ROLE_SYSTEM:
    case BL_ROLE_DEVELOPER:
        m = json_pack("[{s:s, s:O}, {s:s, s:s}]", "role", role == BL_ROLE_SYSTEM ? "system" : "developer",
                      "content", content, "role", "user", "content", "u");
        break;
    case BL_ROLE_ASSISTANT:
        m = json_pack("[{s:s, s:s}, {s:s, s:O}, {s:s, s:s}]", "role", "user", "content", "u", "role",
                      "assistant", "content", content, "role", "user", "content", "v");
        break;
    case BL_ROLE_TOOL:
        m = json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{}}}]}, {s:s, s:s, s:O}]", "role",
                      "user", "content", "u", "role", "assistant", "content", "", "tool_calls", "id", "c1",
                      "type", "function", "function", "name", "f", "arguments", "role", "tool",
                      "tool_call_id", "c1", "content", content);
        break;
    default:
        m = json_pack("[{s:s, s:O}]", "role", "user", "content", content);
        break;
    }
    json_decref(content);
    return m;
}

/* A turn with a list must show its text and not the list's own notation; with a string, the text. */
static bl_code probe_content(bl_chat *c, bl_buf *out, bl_err *err) {
    bool reads[BL_ROLE__MAX], strings = false;
    for (size_t k = 0; k < BL_ROLE__MAX; k++) {
        c->reads_parts[k] = true; /* let the list through */
    }
    for (size_t k = 0; k < BL_ROLE__MAX; k++) {
        BL_TRY(probe(
            c, probe_messages((bl_role)k, json_pack("[{s:s, s:s}]", "type", "text", "text", PROBE_WORD)), out,
            &reads[k], err));
        reads[k] = reads[k] && !strstr(bl_buf_str(out), "'type'") && !strstr(bl_buf_str(out), "\"type\"");
    }
    memcpy(c->reads_parts, reads, sizeof reads);
    BL_TRY(probe(c, probe_messages(BL_ROLE_USER, json_string(PROBE_WORD)), out, &strings, err));
    c->only_parts = reads[BL_ROLE_USER] && !strings;
    return BL_OK;
}

bl_code bl_chat_probe_template(bl_chat *c, bl_err *err) {
    bl_buf out;
    bool shown = false;
    bl_buf_init(&out, MAX_TEXT_BYTES);
    bl_code rc = probe_content(c, &out, err);
    if (rc == BL_OK) {
        rc = probe(c, probe_messages(BL_ROLE_USER, json_string(PROBE_WORD)), &out, &shown, err);
        c->features.opens_reasoning = shown && bl_chat_start_of_text(c->features.dialect, bl_buf_str(&out),
                                                                     out.len) == BL_START_REASONING;
    }
    if (rc == BL_OK) {
        rc = probe(c, probe_messages(BL_ROLE_SYSTEM, json_string(PROBE_WORD)), &out, &c->features.system_role,
                   err);
    }
    bl_buf_done(&out);
    return rc;
}
