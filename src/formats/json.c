/* JSON through jansson, with the project's limits and messages. jansson refuses duplicate keys (after
 * unescaping), NUL in strings and keys, invalid UTF-8, and numbers that fit no int64 or double; its own
 * message is not used because it quotes the text. Depth is counted before it parses, because it recurses, and
 * values, because each costs 50 to 600 bytes.
 */
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>

#include "formats/limits.h"

/* What a text would cost the parser, counted before it runs. */
typedef struct {
    size_t too_deep; /* offset of the bracket that goes beyond max_depth, or n */
    size_t n_objects, n_values;
} text_cost;

/* Up to the first syntax error the scan sees the same strings and brackets as the parser, and behind it the
 * parser does not go. */
static text_cost measure(const char *text, size_t n, uint32_t max_depth) {
    text_cost cost = {n, 0, 1};
    uint32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (depth == max_depth) {
                cost.too_deep = i;
                return cost;
            }
            depth++;
            cost.n_objects += c == '{';
            cost.n_values++; /* its first element; a comma starts each further one */
        } else if (c == ',') {
            cost.n_values++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return cost;
}

static const char *reason_of(enum json_error_code code) {
    switch (code) {
    case json_error_premature_end_of_input:
        return "the text ends too early";
    case json_error_end_of_input_expected:
        return "something follows the value";
    case json_error_invalid_utf8:
        return "not UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "NUL in a string";
    case json_error_duplicate_key:
        return "an object has the same key twice";
    case json_error_numeric_overflow:
        return "a number is out of range";
    case json_error_stack_overflow:
        return "nested too deeply";
    default:
        return "invalid JSON";
    }
}

bl_code bl_json_parse(const char *text, size_t n, uint32_t max_depth, const char *what, json_t **ret,
                      bl_err *err) {
    if (n > BL_JSON_MAX_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "%s has %zu bytes, allowed are %zu", what, n, BL_JSON_MAX_BYTES);
    }
    /* jansson 2.14 drops a NUL behind a number ("1\0" reads as 1) */
    const char *nul = n > 0 ? memchr(text, 0, n) : NULL;
    if (nul) {
        BL_FAIL(err, BL_EFORMAT, "%s: byte %zu is NUL, allowed is text", what, (size_t)(nul - text));
    }
    text_cost cost = measure(text, n, max_depth);
    if (cost.too_deep < n) {
        BL_FAIL(err, BL_ELIMIT, "%s is nested deeper than %" PRIu32 " at byte %zu", what, max_depth,
                cost.too_deep);
    }
    if (cost.n_objects > BL_JSON_MAX_OBJECTS) {
        BL_FAIL(err, BL_ELIMIT, "%s has %zu objects, allowed are %u", what, cost.n_objects,
                BL_JSON_MAX_OBJECTS);
    }
    if (cost.n_values > BL_JSON_MAX_VALUES) {
        BL_FAIL(err, BL_ELIMIT, "%s has %zu values, allowed are %u", what, cost.n_values, BL_JSON_MAX_VALUES);
    }
    json_error_t e;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!v) {
        enum json_error_code code = json_error_code(&e);
        if (code == json_error_out_of_memory) {
            BL_FAIL(err, BL_ENOMEM, "%s: no memory for %zu bytes of JSON", what, n);
        }
        BL_FAIL(err, BL_EFORMAT, "%s: line %d, column %d: %s", what, e.line, e.column, reason_of(code));
    }
    *ret = v;
    return BL_OK;
}

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
        return "a fractional number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

/* *ret_v NULL: absent or null. */
static bl_code get_field(const json_t *obj, const char *key, const char *what, const json_t **ret_v,
                         bl_err *err) {
    if (!json_is_object(obj)) {
        BL_FAIL(err, BL_EFORMAT, "%s is %s, allowed is an object", what, obj ? type_name(obj) : "absent");
    }
    const json_t *v = json_object_get(obj, key);
    *ret_v = json_is_null(v) ? NULL : v;
    return BL_OK;
}

static bl_code wrong_type(const json_t *v, const char *key, const char *what, const char *allowed,
                          bl_err *err) {
    BL_FAIL(err, BL_EFORMAT, "%s: '%s' is %s, allowed is %s", what, key, type_name(v), allowed);
}

bl_code bl_json_get_u64(const json_t *obj, const char *key, uint64_t min, uint64_t max, const char *what,
                        uint64_t *ret, bl_err *err) {
    const json_t *v;
    BL_TRY(get_field(obj, key, what, &v, err));
    if (!v) {
        return BL_OK;
    }
    if (!json_is_integer(v)) {
        return wrong_type(v, key, what, "an integer", err);
    }
    json_int_t i = json_integer_value(v);
    if (i < 0 || (uint64_t)i < min || (uint64_t)i > max) {
        BL_FAIL(err, BL_EFORMAT, "%s: '%s' is %" PRId64 ", allowed are %" PRIu64 " to %" PRIu64, what, key,
                (int64_t)i, min, max);
    }
    *ret = (uint64_t)i;
    return BL_OK;
}

bl_code bl_json_get_f64(const json_t *obj, const char *key, double min, double max, const char *what,
                        double *ret, bl_err *err) {
    const json_t *v;
    BL_TRY(get_field(obj, key, what, &v, err));
    if (!v) {
        return BL_OK;
    }
    if (!json_is_number(v)) {
        return wrong_type(v, key, what, "a number", err);
    }
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) {
        BL_FAIL(err, BL_EFORMAT, "%s: '%s' is %g, allowed are %g to %g", what, key, d, min, max);
    }
    *ret = d;
    return BL_OK;
}

bl_code bl_json_get_bool(const json_t *obj, const char *key, const char *what, bool *ret, bl_err *err) {
    const json_t *v;
    BL_TRY(get_field(obj, key, what, &v, err));
    if (!v) {
        return BL_OK;
    }
    if (!json_is_boolean(v)) {
        return wrong_type(v, key, what, "true or false", err);
    }
    *ret = json_is_true(v);
    return BL_OK;
}

bl_code bl_json_get_str(const json_t *obj, const char *key, const char *what, const char **ret, bl_err *err) {
    const json_t *v;
    BL_TRY(get_field(obj, key, what, &v, err));
    if (!v) {
        return BL_OK;
    }
    if (!json_is_string(v)) {
        return wrong_type(v, key, what, "a string", err);
    }
    if (strlen(json_string_value(v)) != json_string_length(v)) {
        BL_FAIL(err, BL_EFORMAT, "%s: '%s' holds a NUL, allowed are strings without", what, key);
    }
    *ret = json_string_value(v);
    return BL_OK;
}
