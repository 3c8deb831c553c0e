/* A conversation as clients send it -> as templates expect it. What the reference servers do before they
 * render is done here: contents in the form that the template reads, arguments of tool calls as objects,
 * earlier reasoning under the name that the template knows, the called function's name on its result.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "chat/internal.h"
#include "formats/json.h"

#define MAX_TEXT_BYTES      ((size_t)64 << 20)
#define MAX_ARGUMENTS_DEPTH 64

/* Their spelling is ours, so a template may make a control token of one. */
static const char *const roles[BL_ROLE__MAX] = {"system", "developer", "user", "assistant", "tool"};

/* ---- checks ---- */

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
    const json_t *calls = json_object_get(m, "tool_calls");
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
    if (calls && !json_is_array(calls) && !json_is_null(calls)) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].tool_calls: must be a list", i);
    }
    return BL_OK;
}

/* ---- contents ---- */

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
static json_t *fit_content(const bl_chat *c, bl_role role, json_t *content) {
    if (json_is_array(content) && !c->reads_parts[role]) {
        return join_parts(content);
    }
    if (json_is_string(content) && c->only_parts && c->reads_parts[role]) {
        return json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    }
    return json_incref(content);
}

/* A message without text has an empty one: templates search in it. Only an assistant's may lack it. */
static bool set_content(const bl_chat *c, bl_role role, json_t *m) {
    json_t *content = json_object_get(m, "content");
    if (!content && role != BL_ROLE_ASSISTANT) {
        return true;
    }
    json_t *text = !content || json_is_null(content) ? json_string("") : json_incref(content);
    json_t *fitted = text ? fit_content(c, role, text) : NULL;
    json_decref(text);
    return fitted && json_object_set_new(m, "content", fitted) == 0;
}

/* ---- tool calls ---- */

/* Arguments come as JSON text; templates walk through an object. A new reference in *ret. */
static bl_code parse_arguments(json_t *args, size_t i, size_t k, json_t **ret, bl_err *err) {
    json_t *v = NULL;
    char what[96];
    if (!args || json_is_null(args) || (json_is_string(args) && json_string_length(args) == 0)) {
        v = json_object();
        if (!v) {
            BL_FAIL(err, BL_ENOMEM, "messages: out of memory");
        }
    } else if (json_is_string(args)) {
        (void)snprintf(what, sizeof what, "messages[%zu].tool_calls[%zu].function.arguments", i, k);
        bl_code rc = bl_json_parse(json_string_value(args), json_string_length(args), MAX_ARGUMENTS_DEPTH,
                                   what, &v, err);
        if (rc != BL_OK && rc != BL_ENOMEM && err) {
            err->code = BL_EINVAL; /* the client's message, not a file */
        }
        if (rc != BL_OK) {
            return rc == BL_ENOMEM ? rc : BL_EINVAL;
        }
    } else {
        v = json_incref(args);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        BL_FAIL(err, BL_EINVAL, "messages[%zu].tool_calls[%zu].function.arguments: must be a JSON object", i,
                k);
    }
    *ret = v;
    return BL_OK;
}

static bl_code fit_call(json_t *calls, size_t i, size_t k, bl_err *err) {
    const json_t *old = json_array_get(calls, k), *f = json_object_get(old, "function");
    json_t *args = NULL;
    if (!json_is_object(f) || !json_is_string(json_object_get(f, "name"))) {
        BL_FAIL(err, BL_EINVAL, "messages[%zu].tool_calls[%zu]: must be an object with a function's name", i,
                k);
    }
    BL_TRY(parse_arguments(json_object_get(f, "arguments"), i, k, &args, err));
    json_t *call = json_copy((json_t *)(uintptr_t)old), *fun = json_copy((json_t *)(uintptr_t)f);
    bool ok = call && fun && json_object_set(fun, "arguments", args) == 0 &&
              json_object_set(call, "function", fun) == 0 && json_array_set(calls, k, call) == 0;
    json_decref(args);
    json_decref(call);
    json_decref(fun);
    if (!ok) {
        BL_FAIL(err, BL_ENOMEM, "messages: out of memory");
    }
    return BL_OK;
}

/* Templates ask whether the key is there, so an empty list goes. */
static bl_code fit_calls(json_t *m, size_t i, bl_err *err) {
    json_t *calls = json_object_get(m, "tool_calls");
    if (json_array_size(calls) == 0) {
        (void)json_object_del(m, "tool_calls");
        return BL_OK;
    }
    calls = json_copy(calls);
    if (!calls || json_object_set_new(m, "tool_calls", calls) != 0) {
        BL_FAIL(err, BL_ENOMEM, "messages: out of memory");
    }
    for (size_t k = 0; k < json_array_size(calls); k++) {
        BL_TRY(fit_call(calls, i, k, err));
    }
    return BL_OK;
}

/* A result names the call by its id; templates want the function's name too. `before`: the fitted messages in
 * front of it. */
static bool set_result_name(json_t *m, const json_t *before) {
    const char *id = json_string_value(json_object_get(m, "tool_call_id"));
    if (!id || json_is_string(json_object_get(m, "name"))) {
        return true;
    }
    for (size_t i = json_array_size(before); i-- > 0;) {
        const json_t *b = json_array_get(before, i), *calls = json_object_get(b, "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            const json_t *call = json_array_get(calls, k);
            const char *other = json_string_value(json_object_get(call, "id"));
            if (other && strcmp(other, id) == 0) {
                return json_object_set(m, "name",
                                       json_object_get(json_object_get(call, "function"), "name")) == 0;
            }
        }
        const char *role = json_string_value(json_object_get(b, "role"));
        if (strcmp(role, "tool") != 0) {
            return true; /* results follow their calls */
        }
    }
    return true;
}

/* ---- reasoning ---- */

static json_t *text_of(const json_t *m, const char *key) {
    json_t *v = json_object_get(m, key);
    return json_is_string(v) && json_string_length(v) > 0 ? v : NULL;
}

/* Beside a tool call harmony's template takes one text only: what was said goes behind what was thought. */
static bool join_thoughts(json_t *m) {
    json_t *said = json_object_get(m, "tool_calls") ? text_of(m, "content") : NULL;
    if (!said) {
        return true;
    }
    json_t *both =
        json_sprintf("%s\n\n%s", json_string_value(json_object_get(m, "thinking")), json_string_value(said));
    return both && json_object_set_new(m, "thinking", both) == 0 &&
           json_object_set_new(m, "content", json_string("")) == 0;
}

/* Earlier reasoning comes under three names, and templates read two of them. */
static bool set_reasoning(const bl_chat *c, json_t *m) {
    json_t *r = text_of(m, "reasoning_content");
    r = r ? r : text_of(m, "thinking");
    r = r ? r : text_of(m, "reasoning");
    if (!r) {
        return true;
    }
    if (json_object_set(m, "reasoning_content", r) != 0 ||
        (!json_object_get(m, "thinking") && json_object_set(m, "thinking", r) != 0)) {
        return false;
    }
    return c->features.dialect != BL_DIALECT_HARMONY || join_thoughts(m);
}

/* ---- one after the other ---- */

/* Clients send null for what is not there; templates ask whether the key is. (For contents see above.) */
static void drop_nulls(json_t *m) {
    void *it = json_object_iter(m);
    while (it) {
        const char *key = json_object_iter_key(it);
        void *next = json_object_iter_next(m, it);
        if (json_is_null(json_object_iter_value(it)) && strcmp(key, "content") != 0) {
            (void)json_object_del(m, key);
        }
        it = next;
    }
}

static bl_code fit_message(const bl_chat *c, json_t *m, size_t i, const json_t *before, const json_t *own,
                           bl_err *err) {
    const char *name = json_string_value(json_object_get(m, "role"));
    size_t k = 0;
    while (k < BL_ROLE__MAX && strcmp(name, roles[k]) != 0) {
        k++;
    }
    const bl_role role =
        k < BL_ROLE__MAX ? (bl_role)k : BL_ROLE_USER; /* another one is treated like a user's */
    drop_nulls(m);
    BL_TRY(fit_calls(m, i, err));
    bool ok = k == BL_ROLE__MAX || json_object_set(m, "role", json_array_get(own, k)) == 0;
    ok = ok && set_content(c, role, m);
    ok = ok && (role != BL_ROLE_ASSISTANT || set_reasoning(c, m));
    ok = ok && (role != BL_ROLE_TOOL || set_result_name(m, before));
    if (!ok) {
        BL_FAIL(err, BL_ENOMEM, "messages: out of memory");
    }
    return BL_OK;
}

static bl_code fit_all(const bl_chat *c, const json_t *messages, json_t *out, const json_t *own,
                       bl_err *err) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        BL_TRY(check_message(m, i, err));
        json_t *copy = json_copy(m); /* shallow: the caller's message stays as it is */
        bl_code rc = copy ? fit_message(c, copy, i, out, own, err) : BL_ENOMEM;
        if (!copy || (rc == BL_OK && json_array_append(out, copy) != 0)) {
            rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "messages: out of memory");
        }
        json_decref(copy);
        BL_TRY(rc);
    }
    return BL_OK;
}

bl_code bl_chat_fit_messages(const bl_chat *c, const json_t *messages, json_t **ret, json_t **ret_own,
                             bl_err *err) {
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        BL_FAIL(err, BL_EINVAL, "messages: must be a list of at least one message");
    }
    json_t *out = json_array(), *own = json_array();
    bool ok = out && own;
    for (size_t k = 0; k < BL_COUNTOF(roles) && ok; k++) {
        ok = json_array_append_new(own, json_string(roles[k])) == 0;
    }
    bl_code rc = ok ? fit_all(c, messages, out, own, err)
                    : bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "messages: out of memory");
    if (rc != BL_OK) {
        json_decref(out);
        json_decref(own);
        return rc;
    }
    *ret = out;
    *ret_own = own;
    return BL_OK;
}
