#include "api/openai/request.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

static bl_code wrong_type(const json_t *v, const char *param, const char *wanted, bl_openai_error *e) {
    return bl_openai_refuse(e, 400, "invalid_type", param, "'%s' must be %s, not %s", param, wanted,
                            type_name(v));
}

static bl_code not_supported(const char *param, const char *detail, bl_openai_error *e) {
    return bl_openai_refuse(e, 400, "unsupported_parameter", param, "'%s' is not supported%s", param, detail);
}

/* Absent and null are the same everywhere. */
static const json_t *field(const json_t *root, const char *key) {
    const json_t *v = json_object_get(root, key);
    return v && !json_is_null(v) ? v : NULL;
}

static bl_code get_number(const json_t *root, const char *key, double min, double max, bool *ret_has,
                          float *ret, bl_openai_error *e) {
    const json_t *v = field(root, key);
    if (!v) {
        return BL_OK;
    }
    if (!json_is_number(v)) {
        return wrong_type(v, key, "a number", e);
    }
    double x = json_number_value(v);
    if (!(x >= min && x <= max)) {
        return bl_openai_refuse(e, 400, "invalid_value", key, "'%s' is %g; allowed are %g to %g", key, x, min,
                                max);
    }
    *ret = (float)x;
    *ret_has = true;
    return BL_OK;
}

static bl_code get_integer(const json_t *root, const char *key, json_int_t min, json_int_t max, bool *ret_has,
                           json_int_t *ret, bl_openai_error *e) {
    const json_t *v = field(root, key);
    if (!v) {
        return BL_OK;
    }
    if (!json_is_integer(v)) {
        return wrong_type(v, key, "an integer", e);
    }
    json_int_t x = json_integer_value(v);
    if (x < min || x > max) {
        return bl_openai_refuse(e, 400, "invalid_value", key, "'%s' is %lld; allowed are %lld to %lld", key,
                                (long long)x, (long long)min, (long long)max);
    }
    *ret = x;
    *ret_has = true;
    return BL_OK;
}

static bl_code get_bool(const json_t *root, const char *key, bool *ret, bl_openai_error *e) {
    const json_t *v = field(root, key);
    if (v && !json_is_boolean(v)) {
        return wrong_type(v, key, "a boolean", e);
    }
    if (v) {
        *ret = json_is_true(v);
    }
    return BL_OK;
}

/* Fields that are understood but not built: allowed only with the value that changes nothing. */
typedef enum { NEUTRAL_NONE, NEUTRAL_ONE, NEUTRAL_EMPTY, NEUTRAL_FALSE, NEUTRAL_WORDS } neutral;

static const struct {
    const char *name;
    neutral neutral;
    const char *words; /* NEUTRAL_WORDS: allowed strings between spaces */
    const char *detail;
    bool chat_takes; /* parse_chat_fields looks at it */
} unsupported[] = {
    {"tools", NEUTRAL_EMPTY, NULL, " in completions", true},
    {"tool_choice", NEUTRAL_WORDS, " none auto ", " in completions", true},
    {"functions", NEUTRAL_EMPTY, NULL, "", false},
    {"function_call", NEUTRAL_WORDS, " none auto ", " without functions", false},
    {"best_of", NEUTRAL_ONE, NULL, "; only 1 is", false},
    {"echo", NEUTRAL_FALSE, NULL, "", false},
    {"suffix", NEUTRAL_EMPTY, NULL, "", false},
    {"audio", NEUTRAL_NONE, NULL, "", false},
    {"prediction", NEUTRAL_NONE, NULL, "", false},
    {"web_search_options", NEUTRAL_NONE, NULL, "", false},
    {"reasoning_effort", NEUTRAL_WORDS, " none ", " in completions", true},
    {"store", NEUTRAL_FALSE, NULL, "", false},
    {"chat_template_kwargs", NEUTRAL_EMPTY, NULL, " in completions", true},
};

static bool is_neutral(const json_t *v, neutral how, const char *words) {
    char word[24];
    switch (how) {
    case NEUTRAL_ONE:
        return json_is_number(v) && json_number_value(v) == 1.0;
    case NEUTRAL_EMPTY:
        return (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    case NEUTRAL_FALSE:
        return json_is_false(v);
    case NEUTRAL_WORDS:
        if (!json_is_string(v) || json_string_length(v) > 16 || strchr(json_string_value(v), ' ')) {
            return false;
        }
        (void)snprintf(word, sizeof word, " %s ", json_string_value(v));
        return strstr(words, word) != NULL;
    default:
        return false;
    }
}

static bl_code check_unsupported(const json_t *root, bl_openai_kind kind, bl_openai_error *e) {
    for (size_t i = 0; i < BL_COUNTOF(unsupported); i++) {
        const json_t *v = field(root, unsupported[i].name);
        if (v && !(kind == BL_OPENAI_CHAT && unsupported[i].chat_takes) &&
            !is_neutral(v, unsupported[i].neutral, unsupported[i].words)) {
            return not_supported(unsupported[i].name, unsupported[i].detail, e);
        }
    }
    bool has_n = false;
    json_int_t n = 1;
    BL_TRY(get_integer(root, "n", 1, 128, &has_n, &n, e));
    if (n != 1) {
        return not_supported("n", "; only 1 is", e);
    }
    const json_t *v = field(root, "modalities");
    if (v && !(json_is_array(v) && json_array_size(v) == 1 && json_is_string(json_array_get(v, 0)) &&
               strcmp(json_string_value(json_array_get(v, 0)), "text") == 0)) {
        return not_supported("modalities", "; only [\"text\"] is", e);
    }
    return BL_OK;
}

static bl_code parse_stop(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "stop");
    if (!v) {
        return BL_OK;
    }
    if (!json_is_string(v) && !json_is_array(v)) {
        return wrong_type(v, "stop", "a string or an array of strings", e);
    }
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > BL_OPENAI_MAX_STOPS) {
        return bl_openai_refuse(e, 400, "invalid_value", "stop",
                                "'stop' has %zu strings; at most %d are allowed", n, BL_OPENAI_MAX_STOPS);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) {
            return wrong_type(s, "stop", "a string or an array of strings", e);
        }
        if (json_string_length(s) < 1 || json_string_length(s) > BL_OPENAI_MAX_STOP_BYTES) {
            return bl_openai_refuse(e, 400, "invalid_value", "stop",
                                    "a string of 'stop' has %zu bytes; allowed are 1 to %d",
                                    json_string_length(s), BL_OPENAI_MAX_STOP_BYTES);
        }
        r->stops[r->n_stops++] = json_string_value(s);
    }
    return BL_OK;
}

/* A token's id as JSON writes it: no sign, no leading zero. */
static bool take_id(const char *s, int32_t *ret) {
    size_t n = strspn(s, "0123456789");
    int64_t x = 0;
    if (n < 1 || n > 10 || s[n] != '\0' || (n > 1 && s[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        x = x * 10 + (s[i] - '0');
    }
    *ret = (int32_t)BL_MIN(x, INT32_MAX);
    return x <= INT32_MAX;
}

static bl_code parse_bias(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "logit_bias");
    const char *key;
    json_t *x;
    if (v && !json_is_object(v)) {
        return wrong_type(v, "logit_bias", "an object", e);
    }
    size_t n = json_object_size(v);
    if (n == 0) {
        return BL_OK;
    }
    if (n > BL_OPENAI_MAX_BIAS) {
        return bl_openai_refuse(e, 400, "invalid_value", "logit_bias",
                                "'logit_bias' names %zu tokens; at most %d are allowed", n,
                                BL_OPENAI_MAX_BIAS);
    }
    r->bias = bl_alloc_array(n, sizeof *r->bias);
    if (!r->bias) {
        return bl_openai_refuse(e, 503, "out_of_memory", NULL,
                                "the server is out of memory, try again later");
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        bl_openai_bias *b = &r->bias[r->n_bias];
        double value = json_number_value(x);
        if (!take_id(key, &b->id)) {
            return bl_openai_refuse(e, 400, "invalid_value", "logit_bias",
                                    "a key of 'logit_bias' is no token id");
        }
        if (!json_is_number(x) || !(value >= -100 && value <= 100)) {
            return bl_openai_refuse(e, 400, "invalid_value", "logit_bias",
                                    "a value of 'logit_bias' is no number of -100 to 100");
        }
        b->bias = (float)value;
        r->n_bias++;
    }
    return BL_OK;
}

static bl_code parse_penalties(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    bool has = false;
    BL_TRY(get_number(root, "presence_penalty", -2, 2, &has, &r->presence_penalty, e));
    BL_TRY(get_number(root, "frequency_penalty", -2, 2, &has, &r->frequency_penalty, e));
    BL_TRY(get_number(root, "repetition_penalty", 0.01, 100, &has, &r->repetition_penalty, e));
    return parse_bias(root, r, e);
}

static bl_code parse_schema(const json_t *format, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(format, "json_schema");
    if (!json_is_object(v)) {
        return bl_openai_refuse(e, 400, "invalid_value", "response_format.json_schema",
                                "'response_format.json_schema' must be an object with a schema");
    }
    const json_t *strict = field(v, "strict");
    if (strict && !json_is_boolean(strict)) {
        return wrong_type(strict, "response_format.json_schema.strict", "a boolean", e);
    }
    r->schema = field(v, "schema");
    if (!json_is_object(r->schema)) {
        return bl_openai_refuse(e, 400, "invalid_value", "response_format.json_schema.schema",
                                "'response_format.json_schema.schema' must be an object");
    }
    r->strict_schema = json_is_true(strict);
    r->format = BL_OPENAI_JSON_SCHEMA;
    return BL_OK;
}

static bl_code parse_format(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "response_format");
    if (!v) {
        return BL_OK;
    }
    if (!json_is_object(v)) {
        return wrong_type(v, "response_format", "an object", e);
    }
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && strcmp(type, "text") == 0) {
        return BL_OK;
    }
    if (type && strcmp(type, "json_object") == 0) {
        r->format = BL_OPENAI_JSON_OBJECT;
        return BL_OK;
    }
    if (type && strcmp(type, "json_schema") == 0) {
        return parse_schema(v, r, e);
    }
    if (!type || strcmp(type, "regex") != 0) {
        return not_supported("response_format", " of this type; text, json_object, json_schema and regex are",
                             e);
    }
    const json_t *pattern = field(v, "pattern");
    if (!json_is_string(pattern)) {
        return bl_openai_refuse(e, 400, "invalid_value", "response_format.pattern",
                                "'response_format.pattern' must be a string");
    }
    if (json_string_length(pattern) > BL_OPENAI_MAX_PATTERN) {
        return bl_openai_refuse(e, 400, "invalid_value", "response_format.pattern",
                                "'response_format.pattern' has %zu bytes; at most %u are allowed",
                                json_string_length(pattern), BL_OPENAI_MAX_PATTERN);
    }
    r->pattern = json_string_value(pattern);
    r->n_pattern = json_string_length(pattern);
    r->format = BL_OPENAI_REGEX;
    return BL_OK;
}

static bl_code parse_sampling(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    bool has = false;
    json_int_t x = 0;
    BL_TRY(get_number(root, "temperature", 0, 2, &r->has_temperature, &r->temperature, e));
    BL_TRY(get_number(root, "top_p", 0, 1, &r->has_top_p, &r->top_p, e));
    BL_TRY(get_number(root, "min_p", 0, 1, &r->has_min_p, &r->min_p, e));
    BL_TRY(parse_penalties(root, r, e));
    /* -1 is what vLLM's clients send for "off" */
    BL_TRY(get_integer(root, "top_k", -1, INT32_MAX, &r->has_top_k, &x, e));
    r->top_k = x > 0 ? (uint32_t)x : 0;
    BL_TRY(get_integer(root, "seed", INT64_MIN, INT64_MAX, &r->has_seed, &x, e));
    r->seed = r->has_seed ? (uint64_t)x : 0;
    BL_TRY(get_integer(root, "max_tokens", 1, INT32_MAX, &has, &x, e));
    json_int_t y = x;
    bool has_new = false;
    if (r->kind == BL_OPENAI_CHAT) {
        BL_TRY(get_integer(root, "max_completion_tokens", 1, INT32_MAX, &has_new, &y, e));
        if (has && has_new && x != y) {
            return bl_openai_refuse(e, 400, "invalid_value", "max_tokens",
                                    "'max_tokens' is %lld and 'max_completion_tokens' %lld; give one of them",
                                    (long long)x, (long long)y);
        }
    }
    r->has_max_tokens = has || has_new;
    r->max_tokens = r->has_max_tokens ? (uint32_t)y : 0;
    return parse_stop(root, r, e);
}

static bl_code parse_stream(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    BL_TRY(get_bool(root, "stream", &r->stream, e));
    const json_t *v = field(root, "stream_options");
    if (!v) {
        return BL_OK;
    }
    if (!json_is_object(v)) {
        return wrong_type(v, "stream_options", "an object", e);
    }
    if (!r->stream) {
        return bl_openai_refuse(e, 400, "invalid_value", "stream_options",
                                "'stream_options' is only allowed when 'stream' is true");
    }
    const json_t *usage = field(v, "include_usage");
    if (usage && !json_is_boolean(usage)) {
        return wrong_type(usage, "stream_options.include_usage", "a boolean", e);
    }
    r->include_usage = json_is_true(usage);
    return BL_OK;
}

static bl_code parse_logprobs(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    bool has = false;
    json_int_t x = 0;
    if (r->kind == BL_OPENAI_COMPLETION) {
        BL_TRY(get_integer(root, "logprobs", 0, BL_OPENAI_MAX_TOP_TEXT, &r->logprobs, &x, e));
        r->n_top_logprobs = (uint32_t)x;
        return BL_OK;
    }
    BL_TRY(get_bool(root, "logprobs", &r->logprobs, e));
    BL_TRY(get_integer(root, "top_logprobs", 0, BL_OPENAI_MAX_TOP_CHAT, &has, &x, e));
    if (has && x > 0 && !r->logprobs) {
        return bl_openai_refuse(e, 400, "invalid_value", "top_logprobs",
                                "'top_logprobs' is only allowed when 'logprobs' is true");
    }
    r->n_top_logprobs = (uint32_t)x;
    return BL_OK;
}

static bl_code check_content(const json_t *content, const char *where, bl_openai_error *e) {
    char param[64];
    (void)snprintf(param, sizeof param, "%s.content", where);
    if (!content) {
        return bl_openai_refuse(e, 400, "missing_required_parameter", param, "'%s' is missing", param);
    }
    if (json_is_string(content)) {
        return BL_OK;
    }
    if (!json_is_array(content)) {
        return wrong_type(content, param, "a string or an array of text parts", e);
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        (void)snprintf(param, sizeof param, "%s.content[%zu]", where, i);
        if (!json_is_object(part)) {
            return wrong_type(part, param, "an object", e);
        }
        const json_t *type = json_object_get(part, "type");
        if (!json_is_string(type)) {
            return bl_openai_refuse(e, 400, "invalid_value", param, "'%s' has no type", param);
        }
        if (strcmp(json_string_value(type), "text") != 0) {
            return not_supported(param, " with this type; only \"text\" is", e);
        }
        if (!json_is_string(json_object_get(part, "text"))) {
            return bl_openai_refuse(e, 400, "invalid_value", param, "'%s' has no text", param);
        }
    }
    return BL_OK;
}

static bl_code check_call(const json_t *call, const char *param, bl_openai_error *e) {
    if (!json_is_object(call)) {
        return wrong_type(call, param, "an object", e);
    }
    const json_t *f = json_object_get(call, "function"), *args = f ? field(f, "arguments") : NULL;
    const char *type = json_string_value(json_object_get(call, "type"));
    if (type && strcmp(type, "function") != 0) {
        return not_supported(param, " with this type; only \"function\" is", e);
    }
    if (!json_is_object(f) || !json_is_string(json_object_get(f, "name"))) {
        return bl_openai_refuse(e, 400, "invalid_value", param, "'%s' must have a function with a name",
                                param);
    }
    if (args && !json_is_string(args) && !json_is_object(args)) {
        return wrong_type(args, param, "a call whose arguments are a string", e);
    }
    return BL_OK;
}

/* What belongs to a role: calls and reasoning to an assistant, an id to a tool's result. */
static bl_code check_turn(const json_t *m, const char *role, const char *where, bl_openai_error *e) {
    static const char *const texts[] = {"reasoning_content", "reasoning", "name", "tool_call_id"};
    char param[80];
    const json_t *calls = field(m, "tool_calls");
    const bool assistant = strcmp(role, "assistant") == 0;
    (void)snprintf(param, sizeof param, "%s.tool_calls", where);
    if (calls && !json_is_array(calls)) {
        return wrong_type(calls, param, "an array", e);
    }
    if (json_array_size(calls) > 0 && !assistant) {
        return bl_openai_refuse(e, 400, "invalid_value", param,
                                "'%s' is only allowed with the role assistant", param);
    }
    for (size_t k = 0; k < json_array_size(calls); k++) {
        (void)snprintf(param, sizeof param, "%s.tool_calls[%zu]", where, k);
        BL_TRY(check_call(json_array_get(calls, k), param, e));
    }
    for (size_t k = 0; k < BL_COUNTOF(texts); k++) {
        const json_t *v = field(m, texts[k]);
        (void)snprintf(param, sizeof param, "%s.%s", where, texts[k]);
        if (v && !json_is_string(v)) {
            return wrong_type(v, param, "a string", e);
        }
    }
    const json_t *content = field(m, "content");
    return !content && json_array_size(calls) > 0 ? BL_OK : check_content(content, where, e);
}

static bl_code check_message(json_t *m, size_t i, bl_openai_error *e) {
    static const char *const roles[] = {"system", "user", "assistant", "developer", "tool"};
    char where[32], param[64];
    (void)snprintf(where, sizeof where, "messages[%zu]", i);
    (void)snprintf(param, sizeof param, "%s.role", where);
    if (!json_is_object(m)) {
        return wrong_type(m, where, "an object", e);
    }
    const json_t *role = field(m, "role");
    if (!role) {
        return bl_openai_refuse(e, 400, "missing_required_parameter", param, "'%s' is missing", param);
    }
    if (!json_is_string(role)) {
        return wrong_type(role, param, "a string", e);
    }
    const char *name = json_string_value(role);
    if (strcmp(name, "function") == 0) {
        return not_supported(param, " with this value; \"tool\" is", e);
    }
    bool known = false;
    for (size_t k = 0; k < BL_COUNTOF(roles); k++) {
        known = known || strcmp(name, roles[k]) == 0;
    }
    if (!known) {
        return bl_openai_refuse(e, 400, "invalid_value", param,
                                "'%s' must be system, developer, user, assistant or tool", param);
    }
    static const char *const others[] = {"function_call", "audio"};
    for (size_t k = 0; k < BL_COUNTOF(others); k++) {
        const json_t *v = field(m, others[k]);
        if (v && !is_neutral(v, NEUTRAL_EMPTY, NULL)) {
            (void)snprintf(param, sizeof param, "%s.%s", where, others[k]);
            return not_supported(param, "", e);
        }
    }
    BL_TRY(check_turn(m, name, where, e));
    /* "developer" is OpenAI's later name for "system"; templates know the older one. Last: `name` goes with
     * the old value. */
    if (strcmp(name, "developer") == 0 && json_object_set_new(m, "role", json_string("system")) != 0) {
        return bl_openai_refuse(e, 503, "out_of_memory", NULL,
                                "the server is out of memory, try again later");
    }
    return BL_OK;
}

static bl_code parse_messages(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "messages");
    if (!v) {
        return bl_openai_refuse(e, 400, "missing_required_parameter", "messages", "'messages' is missing");
    }
    if (!json_is_array(v)) {
        return wrong_type(v, "messages", "an array", e);
    }
    size_t n = json_array_size(v);
    if (n < 1 || n > BL_OPENAI_MAX_MESSAGES) {
        return bl_openai_refuse(e, 400, "invalid_value", "messages",
                                "'messages' has %zu entries; allowed are 1 to %d", n, BL_OPENAI_MAX_MESSAGES);
    }
    for (size_t i = 0; i < n; i++) {
        BL_TRY(check_message(json_array_get(v, i), i, e));
    }
    r->messages = v;
    return BL_OK;
}

static bl_code parse_prompt_ids(const json_t *list, bl_openai_request *r, bl_openai_error *e) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id)) {
            return wrong_type(id, "prompt", "a string, a list of one string, or a list of token ids", e);
        }
        json_int_t x = json_integer_value(id);
        if (x < 0 || x > INT32_MAX) {
            return bl_openai_refuse(e, 400, "invalid_value", "prompt",
                                    "token id %lld at index %zu is not in the vocabulary", (long long)x, i);
        }
        bl_err err;
        if (bl_ids_push(&r->prompt_ids, (int32_t)x, &err) != BL_OK) {
            bl_openai_error_from(&err, e);
            return BL_EINVAL;
        }
    }
    return BL_OK;
}

static bl_code parse_prompt(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "prompt");
    if (!v) {
        return bl_openai_refuse(e, 400, "missing_required_parameter", "prompt", "'prompt' is missing");
    }
    if (json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0))) {
        if (json_array_size(v) > 1) {
            return bl_openai_refuse(e, 400, "unsupported_parameter", "prompt",
                                    "'prompt' has %zu prompts; one a request is supported",
                                    json_array_size(v));
        }
        v = json_array_get(v, 0);
    }
    if (json_is_string(v)) {
        r->prompt = json_string_value(v);
        r->n_prompt_bytes = json_string_length(v);
        return BL_OK;
    }
    if (!json_is_array(v)) {
        return wrong_type(v, "prompt", "a string, a list of one string, or a list of token ids", e);
    }
    if (json_array_size(v) == 0) {
        return bl_openai_refuse(e, 400, "invalid_value", "prompt", "'prompt' is empty");
    }
    return parse_prompt_ids(v, r, e);
}

/* ---- tools and thinking ---- */

static bool is_name(const json_t *v) {
    static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = json_string_length(v);
    return json_is_string(v) && n >= 1 && n <= 64 && strspn(json_string_value(v), chars) == n;
}

static bl_code check_tool(const json_t *tool, size_t i, bl_openai_error *e) {
    char param[64];
    (void)snprintf(param, sizeof param, "tools[%zu]", i);
    if (!json_is_object(tool)) {
        return wrong_type(tool, param, "an object", e);
    }
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type || strcmp(type, "function") != 0) {
        return not_supported(param, " with this type; only \"function\" is", e);
    }
    const json_t *f = json_object_get(tool, "function");
    (void)snprintf(param, sizeof param, "tools[%zu].function", i);
    if (!json_is_object(f)) {
        return bl_openai_refuse(e, 400, "invalid_value", param, "'%s' must be an object", param);
    }
    if (!is_name(json_object_get(f, "name"))) {
        return bl_openai_refuse(e, 400, "invalid_value", param,
                                "'%s' must have a name of 1 to 64 letters, digits, '_', '-' and '.'", param);
    }
    static const char *const keys[] = {"description", "parameters"};
    for (size_t k = 0; k < BL_COUNTOF(keys); k++) {
        const json_t *v = field(f, keys[k]);
        (void)snprintf(param, sizeof param, "tools[%zu].function.%s", i, keys[k]);
        if (v && !(k == 0 ? json_is_string(v) : json_is_object(v))) {
            return wrong_type(v, param, k == 0 ? "a string" : "an object", e);
        }
    }
    const json_t *strict = field(f, "strict");
    (void)snprintf(param, sizeof param, "tools[%zu].function.strict", i);
    return strict && !json_is_boolean(strict) ? wrong_type(strict, param, "a boolean", e) : BL_OK;
}

static bl_code parse_tools(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "tools"), *choice = field(root, "tool_choice");
    bool parallel = true;
    BL_TRY(get_bool(root, "parallel_tool_calls", &parallel, e));
    r->one_call = !parallel;
    if (v && !json_is_array(v)) {
        return wrong_type(v, "tools", "an array", e);
    }
    if (json_array_size(v) > BL_OPENAI_MAX_TOOLS) {
        return bl_openai_refuse(e, 400, "invalid_value", "tools",
                                "'tools' has %zu entries; at most %d are allowed", json_array_size(v),
                                BL_OPENAI_MAX_TOOLS);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        BL_TRY(check_tool(json_array_get(v, i), i, e));
        const json_t *f = json_object_get(json_array_get(v, i), "function");
        r->strict_tools = r->strict_tools || json_is_true(json_object_get(f, "strict"));
    }
    const char *word = json_string_value(choice);
    if (choice && !json_is_string(choice) && !json_is_object(choice)) {
        return wrong_type(choice, "tool_choice", "a string or an object", e);
    }
    if (choice && (!word || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0))) {
        return not_supported(
            "tool_choice", " with this value; a model cannot be made to call, only \"auto\" and \"none\" are",
            e);
    }
    r->tools = json_array_size(v) > 0 && !(word && strcmp(word, "none") == 0) ? v : NULL;
    return BL_OK;
}

static bl_code parse_chat_fields(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    static const char efforts[] = " none minimal low medium high xhigh max ";
    BL_TRY(parse_tools(root, r, e));
    const json_t *v = field(root, "chat_template_kwargs");
    if (v && !json_is_object(v)) {
        return wrong_type(v, "chat_template_kwargs", "an object", e);
    }
    r->template_kwargs = v;
    v = field(root, "reasoning_effort");
    if (v && !json_is_string(v)) {
        return wrong_type(v, "reasoning_effort", "a string", e);
    }
    if (v && !is_neutral(v, NEUTRAL_WORDS, efforts)) {
        return bl_openai_refuse(e, 400, "invalid_value", "reasoning_effort",
                                "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max");
    }
    r->reasoning_effort = v ? json_string_value(v) : NULL;
    return BL_OK;
}

/* "auto" is the server's own choice. */
static bl_code parse_speculation(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *v = field(root, "speculation");
    const char *word = v ? json_string_value(v) : "auto";
    if (!word) {
        return wrong_type(v, "speculation", "a string", e);
    }
    r->no_draft = strcmp(word, "off") == 0;
    if (!r->no_draft && strcmp(word, "auto") != 0) {
        return bl_openai_refuse(e, 400, "invalid_value", "speculation",
                                "'speculation' must be \"auto\" or \"off\"");
    }
    return BL_OK;
}

/* How the request is to be served, not what it asks. */
static bl_code parse_service(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    bool has = false;
    json_int_t x = 0;
    BL_TRY(get_integer(root, "priority", -BL_OPENAI_MAX_PRIORITY, BL_OPENAI_MAX_PRIORITY, &has, &x, e));
    r->priority = (int32_t)x;
    const json_t *v = field(root, "prompt_cache_key");
    if (v && !json_is_string(v)) {
        return wrong_type(v, "prompt_cache_key", "a string", e);
    }
    if (json_string_length(v) > BL_OPENAI_MAX_CACHE_KEY) {
        return bl_openai_refuse(e, 400, "invalid_value", "prompt_cache_key",
                                "'prompt_cache_key' has %zu bytes; at most %d are allowed",
                                json_string_length(v), BL_OPENAI_MAX_CACHE_KEY);
    }
    r->prompt_cache_key = json_string_value(v);
    r->n_prompt_cache_key = json_string_length(v);
    return parse_speculation(root, r, e);
}

static bl_code parse_fields(const json_t *root, bl_openai_request *r, bl_openai_error *e) {
    const json_t *model = field(root, "model");
    if (!model) {
        return bl_openai_refuse(e, 400, "missing_required_parameter", "model", "'model' is missing");
    }
    if (!json_is_string(model)) {
        return wrong_type(model, "model", "a string", e);
    }
    r->model = json_string_value(model);
    BL_TRY(check_unsupported(root, r->kind, e));
    BL_TRY(parse_stream(root, r, e));
    BL_TRY(parse_sampling(root, r, e));
    BL_TRY(parse_logprobs(root, r, e));
    BL_TRY(parse_format(root, r, e));
    BL_TRY(parse_service(root, r, e));
    if (r->kind == BL_OPENAI_COMPLETION) {
        return parse_prompt(root, r, e);
    }
    BL_TRY(parse_messages(root, r, e));
    return parse_chat_fields(root, r, e);
}

bl_code bl_openai_parse(bl_openai_kind kind, const char *body, size_t n, bl_openai_request *ret,
                        bl_openai_error *error) {
    bl_err err;
    bl_openai_request r;
    memset(&r, 0, sizeof r);
    r.kind = kind;
    bl_ids_init(&r.prompt_ids, BL_OPENAI_MAX_PROMPT_IDS);
    if (n == 0) {
        return bl_openai_refuse(error, 400, "invalid_json", NULL,
                                "the body is empty; a JSON object is expected");
    }
    bl_code rc = bl_json_parse(body, n, BL_OPENAI_MAX_DEPTH, "body", &r.root, &err);
    if (rc == BL_ENOMEM) {
        bl_openai_error_from(&err, error);
        return BL_EINVAL;
    }
    if (rc != BL_OK) {
        return bl_openai_refuse(error, 400, "invalid_json", NULL, "%s", err.msg);
    }
    if (!json_is_object(r.root)) {
        rc = bl_openai_refuse(error, 400, "invalid_json", NULL, "the body is %s; a JSON object is expected",
                              type_name(r.root));
    } else {
        rc = parse_fields(r.root, &r, error);
    }
    if (rc != BL_OK) {
        bl_openai_request_done(&r);
        return rc;
    }
    *ret = r;
    return BL_OK;
}

void bl_openai_request_done(bl_openai_request *r) {
    json_decref(r->root);
    r->root = NULL;
    bl_free(r->bias);
    r->bias = NULL;
    r->n_bias = 0;
    bl_ids_done(&r->prompt_ids);
}
