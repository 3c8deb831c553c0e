/* Qwen 3 and 3.5: <think>...</think>, and calls as XML or JSON (spec models.md §11.4).
 *
 *   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>
 *   <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
 *
 * A VALUE ends at a </parameter> that is followed by the next parameter or the end of the function, so a
 * value may hold the other tags, </parameter> and </tool_call> included. <think> opens reasoning only where
 * the answer or what follows a call begins: later it is a word of the text.
 */
#include <string.h>

#include "base/base.h"
#include "chat/parser_impl.h"

enum { THINK, THINK_END, CALL, CALL_END };
/* States of a call. */
enum { OPEN, NAME, BETWEEN, KEY, VALUE, END, JSON };

static const char parameter[] = "<parameter=", parameter_end[] = "</parameter>",
                  function_end[] = "</function>";
#define LEN(s) (sizeof(s) - 1)

static uint32_t active(const bl_parser *p) {
    if (p->kind == BL_PARSED_REASONING) {
        return 1u << THINK_END;
    }
    return (p->fresh ? 1u << THINK : 0u) | (p->o.calls ? 1u << CALL : 0u);
}

static bl_code on_marker(bl_parser *p, size_t m, bl_err *err) {
    if (m == CALL) {
        p->in_markup = true;
        p->state = OPEN;
        p->mark = p->held.len;
        p->n_params = 0;
        return BL_OK;
    }
    BL_TRY(bl_parser_take(p, err));
    return bl_parser_become(p, m == THINK ? BL_PARSED_REASONING : BL_PARSED_CONTENT, err);
}

/* ---- arguments ---- */

/* What a schema allows for a parameter. */
typedef struct {
    bool known, string, null, composite;
} types;

static void note_type(const json_t *name, types *t) {
    const char *s = json_string_value(name);
    if (s) {
        t->known = true;
        t->string = t->string || strcmp(s, "string") == 0;
        t->null = t->null || strcmp(s, "null") == 0;
        t->composite = t->composite || strcmp(s, "object") == 0 || strcmp(s, "array") == 0;
    }
}

static void note_schema(const json_t *schema, types *t, unsigned depth) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    note_type(type, t);
    for (size_t i = 0; i < json_array_size(type); i++) {
        note_type(json_array_get(type, i), t);
    }
    for (size_t i = 0; !type && i < json_array_size(values); i++) {
        t->known = true;
        t->string = t->string || json_is_string(json_array_get(values, i));
    }
    for (size_t k = 0; k < BL_COUNTOF(unions) && depth > 0; k++) {
        const json_t *list = json_object_get(schema, unions[k]);
        for (size_t i = 0; i < json_array_size(list); i++) {
            note_schema(json_array_get(list, i), t, depth - 1);
        }
    }
}

static types types_of(const bl_parser *p, const char *key, size_t n_key) {
    types t = {0};
    const char *name = p->held.data + p->name.off;
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const json_t *f = json_object_get(json_array_get(p->tools, i), "function");
        const json_t *v = json_object_get(f, "name");
        if (json_string_length(v) == p->name.n && json_is_string(v) &&
            memcmp(json_string_value(v), name, p->name.n) == 0) {
            const json_t *props = json_object_get(json_object_get(f, "parameters"), "properties");
            note_schema(json_object_getn(props, key, n_key), &t, 4);
            break;
        }
    }
    return t;
}

static bool is_word(const char *s, size_t n, const char *word) {
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* Raw text of a value -> JSON. Strings stay what they are; the rest is JSON, or one of the three words that
 * Python's templates write for it, or a string after all. */
static bl_code write_value(const char *s, size_t n, types t, bl_buf *ret, bl_err *err) {
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const bool wordy = t.known && t.string;
    if (wordy && t.null && (is_word(s, n, "null") || is_word(s, n, "None"))) {
        return bl_buf_append_str(ret, "null", err);
    }
    const bool composite = n > 0 && (s[0] == '{' || s[0] == '[');
    if (wordy && !(t.composite && composite && bl_jscan_is_value(s, n))) {
        return bl_jscan_quote(s, n, ret, err);
    }
    for (size_t i = 0; i < BL_COUNTOF(python); i++) {
        if (is_word(s, n, python[i][0])) {
            return bl_buf_append_str(ret, python[i][1], err);
        }
    }
    return bl_jscan_is_value(s, n) ? bl_buf_append(ret, s, n, err) : bl_jscan_quote(s, n, ret, err);
}

static bool key_repeats(const bl_parser *p, size_t i) {
    const char *held = p->held.data;
    for (size_t k = 0; k < i; k++) {
        if (p->params[k].key.n == p->params[i].key.n &&
            memcmp(held + p->params[k].key.off, held + p->params[i].key.off, p->params[i].key.n) == 0) {
            return true;
        }
    }
    return false;
}

static bl_code write_arguments(const bl_parser *p, bl_buf *ret, bl_err *err) {
    const char *held = p->held.data;
    BL_TRY(bl_buf_append_char(ret, '{', err));
    for (size_t i = 0; i < p->n_params; i++) {
        const bl_pslice k = p->params[i].key, v = p->params[i].value;
        BL_TRY(i > 0 ? bl_buf_append_str(ret, ", ", err) : BL_OK);
        BL_TRY(bl_jscan_quote(held + k.off, k.n, ret, err));
        BL_TRY(bl_buf_append_str(ret, ": ", err));
        BL_TRY(write_value(held + v.off, v.n, types_of(p, held + k.off, k.n), ret, err));
    }
    return bl_buf_append_char(ret, '}', err);
}

static bl_code give_xml(bl_parser *p, bl_err *err) {
    bl_buf args;
    bl_buf_init(&args, 8 * BL_PARSER_MAX_CALL); /* an escape takes six bytes for one */
    bl_code rc = write_arguments(p, &args, err);
    if (rc == BL_OK) {
        rc = bl_parser_give_call(p, p->held.data + p->name.off, p->name.n, args.data, args.len, err);
    }
    bl_buf_done(&args);
    return rc;
}

/* The object at p->args: {"name": ..., "arguments": ...}. */
static bl_code give_json(bl_parser *p, bl_err *err) {
    const char *s = p->held.data + p->args.off;
    bl_pslice name, args = {0, 0};
    if (!bl_jscan_member(s, p->args.n, "name", &name) || s[name.off] != '"' || name.n < 3 ||
        memchr(s + name.off, '\\', name.n)) {
        return bl_parser_reject(p, err);
    }
    bool has = bl_jscan_member(s, p->args.n, "arguments", &args) ||
               bl_jscan_member(s, p->args.n, "parameters", &args);
    if (has && s[args.off] != '{') {
        return bl_parser_reject(p, err);
    }
    return bl_parser_give_call(p, s + name.off + 1, name.n - 2, has ? s + args.off : "{}", has ? args.n : 2,
                               err);
}

/* ---- the automaton ---- */

/* A name up to '>'. */
static bl_code step_name(bl_parser *p, char ch, bl_err *err) {
    const size_t n = p->held.len - 1 - p->mark;
    const bl_pslice name = {p->mark, n};
    if (bl_parser_odd_in_name(ch) || ch == '<' || (ch == '>' && n == 0) || n > BL_PARSER_MAX_NAME) {
        return bl_parser_reject(p, err);
    }
    if (ch != '>') {
        return BL_OK;
    }
    if (p->state == NAME) {
        p->name = name;
        p->state = BETWEEN;
    } else {
        p->params[p->n_params].key = name;
        if (key_repeats(p, p->n_params)) {
            return bl_parser_reject(p, err);
        }
        p->state = VALUE;
    }
    p->mark = p->held.len;
    return BL_OK;
}

/* held ends in `tag` (n bytes); is there a </parameter> in front of it, white space between? Then the value
 * ends there. */
static bool value_ends(bl_parser *p, const char *tag, size_t n) {
    const char *s = p->held.data;
    if (!bl_parser_ends(p, tag, n)) {
        return false;
    }
    size_t end = p->held.len - n;
    while (end > p->mark &&
           (s[end - 1] == ' ' || s[end - 1] == '\n' || s[end - 1] == '\t' || s[end - 1] == '\r')) {
        end--;
    }
    if (end < p->mark + LEN(parameter_end) ||
        memcmp(s + end - LEN(parameter_end), parameter_end, LEN(parameter_end)) != 0) {
        return false;
    }
    size_t from = p->mark;
    end -= LEN(parameter_end);
    from += from < end && s[from] == '\n';
    end -= end > from && s[end - 1] == '\n';
    p->params[p->n_params++].value = (bl_pslice){from, end - from};
    return true;
}

static bl_code step_value(bl_parser *p, char ch, bl_err *err) {
    if (ch == '=' && value_ends(p, parameter, LEN(parameter))) {
        p->state = KEY;
        p->mark = p->held.len;
        return p->n_params < BL_PARSER_MAX_KEYS ? BL_OK : bl_parser_reject(p, err);
    }
    if (ch == '>' && value_ends(p, function_end, LEN(function_end))) {
        p->state = END;
        p->mark = p->held.len;
    }
    return BL_OK;
}

static bl_code step_json(bl_parser *p, char ch) {
    if (p->in_string) {
        p->in_string = p->escaped || ch != '"';
        p->escaped = !p->escaped && ch == '\\';
        return BL_OK;
    }
    p->in_string = ch == '"';
    p->depth += ch == '{' || ch == '[';
    p->depth -= ch == '}' || ch == ']';
    if (p->depth == 0) {
        p->args.n = p->held.len - p->args.off;
        p->state = END;
        p->mark = p->held.len;
    }
    return BL_OK;
}

static bl_code step_literal(bl_parser *p, bl_err *err) {
    const char *const open[] = {"<function=", "{"}, *const between[] = {parameter, function_end},
                      *const end[] = {p->markers[CALL_END].text};
    const char *const *lits = p->state == OPEN ? open : p->state == BETWEEN ? between : end;
    size_t which = 0;
    switch (bl_parser_literal(p, lits, p->state == END ? 1 : 2, &which)) {
    case BL_LIT_MORE:
        return BL_OK;
    case BL_LIT_BAD:
        return bl_parser_reject(p, err);
    default:
        break;
    }
    if (p->state == END) {
        return p->args.n > 0 ? give_json(p, err) : give_xml(p, err);
    }
    if (p->state == OPEN) {
        p->state = which == 0 ? NAME : JSON;
        p->args = (bl_pslice){p->mark, 0};
        p->depth = 1;
        p->in_string = p->escaped = false;
    } else {
        p->state = which == 0 ? KEY : END;
    }
    p->mark = p->held.len;
    return BL_OK;
}

static bl_code step(bl_parser *p, bl_err *err) {
    const char ch = p->held.data[p->held.len - 1];
    switch (p->state) {
    case NAME:
    case KEY:
        return step_name(p, ch, err);
    case VALUE:
        return step_value(p, ch, err);
    case JSON:
        return step_json(p, ch);
    default:
        return step_literal(p, err);
    }
}

const bl_pdialect bl_pdialect_qwen = {active, on_marker, step, true, NULL};
