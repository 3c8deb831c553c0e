/* The structure of a TOML text: keys, headers, arrays, inline tables, and what may be defined twice (toml.h).
 * Scalars are in toml_value.c, writing in toml_write.c.
 *
 * Arrays and inline tables recurse, to BL_TOML_MAX_DEPTH; tables of headers do not.
 */
#include "formats/toml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/toml_impl.h"

const char *bl_toml_kind_name(bl_toml_kind kind) {
    static const char *const names[BL_TOML__MAX] = {
        [BL_TOML_BOOL] = "a boolean",  [BL_TOML_INT] = "an integer",      [BL_TOML_FLOAT] = "a float",
        [BL_TOML_STRING] = "a string", [BL_TOML_TIME] = "a date or time", [BL_TOML_ARRAY] = "an array",
        [BL_TOML_TABLE] = "a table",
    };
    return kind < BL_TOML__MAX ? names[kind] : "?";
}

/* ---- complaints ---------------------------------------------------------------------------------------- */

/* Moves the reader's line to byte `at`, which is not before the last asked for. */
static uint32_t line_of(toml_reader *r, uint32_t at) {
    for (; r->line_at < at; r->line_at++) {
        r->line += r->s[r->line_at] == '\n' ? 1 : 0;
    }
    return r->line;
}

bl_code toml_fail(toml_reader *r, bl_code code, uint32_t at, const char *fmt, ...) {
    uint32_t line = 1, from = 0, column = 1;
    for (uint32_t i = 0; i < at; i++) {
        if (r->s[i] == '\n') {
            line++;
            from = i + 1;
        }
    }
    for (uint32_t i = from; i < at; i++) {
        column += ((unsigned char)r->s[i] & 0xC0) != 0x80 ? 1 : 0; /* characters, not bytes */
    }
    char what[256], key[80] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (r->key != NULL) {
        snprintf(key, sizeof key, "key '%.60s': ", r->key->key);
    }
    return bl_err_set(r->err, code, __FILE__, __LINE__, "%s:%u:%u: %s%s", r->name, line, column, key, what);
}

bl_code toml_refuse(toml_reader *r, uint32_t at, const char *allowed) {
    const char *s = r->s + at;
    char found[64];
    uint32_t cp = 0;
    int n = 0;
    while (n < 40 && (toml_is_bare(s[n]) || s[n] == '+' || s[n] == '.' || s[n] == ':')) {
        n++;
    }
    size_t len = at < r->n ? bl_utf8_decode(s, r->n - at, &cp) : 0;
    if (at >= r->n) {
        snprintf(found, sizeof found, "the end of the file");
    } else if (toml_newline(r, at) > 0) {
        snprintf(found, sizeof found, "the end of the line");
    } else if (n > 0) {
        snprintf(found, sizeof found, "'%.*s'", n, s);
    } else if (len == 0 || cp < 0x20 || cp == 0x7f) {
        snprintf(found, sizeof found, "byte 0x%02x", (unsigned)(unsigned char)*s);
    } else {
        snprintf(found, sizeof found, "'%.*s'", (int)len, s);
    }
    return toml_fail(r, BL_EFORMAT, at, "found %s, allowed: %s", found, allowed);
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

/* One part of a key as written. */
typedef struct {
    const char *name;
    size_t len;
    uint32_t at, end;
} key_part;

typedef struct {
    key_part parts[BL_TOML_MAX_DEPTH];
    uint32_t n;
} key_path;

static bl_toml_node *find_child(const bl_toml_node *t, const char *name, size_t len) {
    for (bl_toml_node *c = t->first; c != NULL; c = c->next) {
        if (c->key_len == len && memcmp(c->key, name, len) == 0) {
            return c;
        }
    }
    return NULL;
}

/* A last child of `parent`; key NULL: an element of an array, at the reader's place. */
static bl_code add_node(toml_reader *r, bl_toml_node *parent, const key_part *key, bl_toml_node **ret) {
    void *p = NULL;
    uint32_t at = key != NULL ? key->at : r->at;
    if (r->n_nodes == BL_TOML_MAX_NODES || (key != NULL && r->n_keys == BL_TOML_MAX_KEYS)) {
        return toml_fail(r, BL_ELIMIT, at, "more than %u keys or %u values", BL_TOML_MAX_KEYS,
                         BL_TOML_MAX_NODES);
    }
    BL_TRY(bl_arena_alloc(r->doc->arena, sizeof(bl_toml_node), &p, r->err));
    bl_toml_node *node = p;
    node->line = line_of(r, at);
    if (key != NULL) {
        node->key = key->name;
        node->key_len = key->len;
        node->key_at = key->at;
        node->key_end = key->end;
        r->n_keys++;
    }
    r->n_nodes++;
    if (parent->last != NULL) {
        parent->last->next = node;
    } else {
        parent->first = node;
    }
    parent->last = node;
    parent->n_children++;
    *ret = node;
    return BL_OK;
}

static bl_code add_table(toml_reader *r, bl_toml_node *parent, const key_part *key, bl_toml_form form,
                         bl_toml_node **ret) {
    BL_TRY(add_node(r, parent, key, ret));
    (*ret)->kind = BL_TOML_TABLE;
    (*ret)->form = form;
    return BL_OK;
}

static bl_code fail_twice(toml_reader *r, const key_part *key, const bl_toml_node *first) {
    return toml_fail(r, BL_EFORMAT, key->at, "key '%.60s' is already there, as %s in line %u", key->name,
                     bl_toml_kind_name(first->kind), first->line);
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

static void skip_blanks(toml_reader *r) {
    while (r->s[r->at] == ' ' || r->s[r->at] == '\t') {
        r->at++;
    }
}

static bl_code read_key_part(toml_reader *r, key_part *ret) {
    char c = r->s[r->at];
    char *name = NULL;
    ret->at = r->at;
    if (c == '"' || c == '\'') {
        BL_TRY(toml_read_string(r, true));
        ret->len = r->scratch.len;
        BL_TRY(bl_arena_strndup(r->doc->arena, bl_buf_str(&r->scratch), ret->len, &name, r->err));
    } else {
        while (toml_is_bare(r->s[r->at])) {
            r->at++;
        }
        ret->len = r->at - ret->at;
        if (ret->len == 0) {
            return toml_refuse(r, r->at, "a key (letters, digits, - and _, or a string in quotes)");
        }
        BL_TRY(bl_arena_strndup(r->doc->arena, r->s + ret->at, ret->len, &name, r->err));
    }
    ret->name = name;
    ret->end = r->at;
    return BL_OK;
}

/* a."b c".d, blanks around the dots and behind the key. */
static bl_code read_key(toml_reader *r, key_path *ret) {
    ret->n = 0;
    for (;;) {
        if (ret->n == BL_TOML_MAX_DEPTH) {
            return toml_fail(r, BL_ELIMIT, r->at, "a key of more than %u parts", BL_TOML_MAX_DEPTH);
        }
        BL_TRY(read_key_part(r, &ret->parts[ret->n++]));
        skip_blanks(r);
        if (r->s[r->at] != '.') {
            return BL_OK;
        }
        r->at++;
        skip_blanks(r);
    }
}

/* ---- values -------------------------------------------------------------------------------------------- */

static bl_code read_value(toml_reader *r, bl_toml_node *ret);
static bl_code read_assignment(toml_reader *r, bl_toml_node *table);

static bl_code read_comment(toml_reader *r) {
    for (; r->at < r->n && toml_newline(r, r->at) == 0; r->at++) {
        unsigned char c = (unsigned char)r->s[r->at];
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return toml_refuse(r, r->at, "no control characters in a comment");
        }
    }
    return BL_OK;
}

/* Blanks, comments and line ends between the elements of an array. */
static bl_code skip_lines(toml_reader *r) {
    for (;;) {
        skip_blanks(r);
        uint32_t n = toml_newline(r, r->at);
        if (n > 0) {
            r->at += n;
        } else if (r->s[r->at] == '#') {
            BL_TRY(read_comment(r));
        } else {
            return BL_OK;
        }
    }
}

static bl_code read_array(toml_reader *r, bl_toml_node *array) {
    r->at++;
    for (;;) {
        BL_TRY(skip_lines(r));
        if (r->s[r->at] == ']') {
            break;
        }
        bl_toml_node *element = NULL;
        BL_TRY(add_node(r, array, NULL, &element));
        BL_TRY(read_value(r, element));
        BL_TRY(skip_lines(r));
        if (r->s[r->at] == ',') {
            r->at++;
        } else if (r->s[r->at] != ']') {
            return toml_refuse(r, r->at, "',' or ']' behind an element of an array");
        }
    }
    r->at++;
    return BL_OK;
}

static bl_code read_inline_table(toml_reader *r, bl_toml_node *table) {
    r->at++;
    table->last_end = r->at;
    skip_blanks(r);
    if (r->s[r->at] == '}') {
        r->at++;
        return BL_OK;
    }
    for (;;) {
        BL_TRY(read_assignment(r, table));
        skip_blanks(r);
        if (r->s[r->at] == '}') {
            r->at++;
            return BL_OK;
        }
        if (r->s[r->at] != ',') {
            return toml_refuse(r, r->at, "',' or '}' behind a value of an inline table");
        }
        r->at++;
        skip_blanks(r);
    }
}

/* An array or inline table, one level deeper. */
static bl_code read_nested(toml_reader *r, bl_toml_node *ret) {
    if (r->depth == BL_TOML_MAX_DEPTH) {
        return toml_fail(r, BL_ELIMIT, r->at, "values are more than %u deep in each other",
                         BL_TOML_MAX_DEPTH);
    }
    r->depth++;
    ret->kind = r->s[r->at] == '[' ? BL_TOML_ARRAY : BL_TOML_TABLE;
    bl_code rc = ret->kind == BL_TOML_ARRAY ? read_array(r, ret) : read_inline_table(r, ret);
    r->depth--;
    return rc;
}

static bl_code read_value(toml_reader *r, bl_toml_node *ret) {
    char c = r->s[r->at];
    ret->at = r->at;
    if (c == '[' || c == '{') {
        BL_TRY(read_nested(r, ret));
    } else if (c == '"' || c == '\'') {
        char *copy = NULL;
        BL_TRY(toml_read_string(r, false));
        BL_TRY(bl_arena_strndup(r->doc->arena, bl_buf_str(&r->scratch), r->scratch.len, &copy, r->err));
        ret->kind = BL_TOML_STRING;
        ret->v.str.s = copy;
        ret->v.str.len = r->scratch.len;
    } else {
        BL_TRY(toml_read_word(r, ret));
    }
    ret->end = r->at;
    return BL_OK;
}

/* ---- assignments --------------------------------------------------------------------------------------- */

/* The table that a part of a dotted key means. Tables of headers and inline tables are complete: their keys
 * stand in one place. */
static bl_code enter_dotted(toml_reader *r, bl_toml_node *t, const key_part *part, bl_toml_node **ret) {
    bl_toml_node *next = find_child(t, part->name, part->len);
    if (next == NULL) {
        return add_table(r, t, part, BL_TOML_DOTTED, ret);
    }
    if (next->kind != BL_TOML_TABLE || (next->form != BL_TOML_DOTTED && next->form != BL_TOML_IMPLIED)) {
        return fail_twice(r, part, next);
    }
    next->form = BL_TOML_DOTTED; /* an implied one is defined by this */
    *ret = next;
    return BL_OK;
}

static bl_code read_assignment(toml_reader *r, bl_toml_node *table) {
    key_path path;
    bl_toml_node *chain[BL_TOML_MAX_DEPTH]; /* the tables on the way, in each of which the assignment ends */
    bl_toml_node *node = NULL;
    const bl_toml_node *outer = r->key;
    BL_TRY(read_key(r, &path));
    chain[0] = table;
    for (uint32_t i = 0; i + 1 < path.n; i++) {
        BL_TRY(enter_dotted(r, chain[i], &path.parts[i], &chain[i + 1]));
    }
    const key_part *last = &path.parts[path.n - 1];
    const bl_toml_node *there = find_child(chain[path.n - 1], last->name, last->len);
    if (there != NULL) {
        return fail_twice(r, last, there);
    }
    if (r->s[r->at] != '=') {
        return toml_refuse(r, r->at, "'=' behind a key");
    }
    r->at++;
    skip_blanks(r);
    BL_TRY(add_node(r, chain[path.n - 1], last, &node));
    r->key = node;
    BL_TRY(read_value(r, node));
    r->key = outer;
    for (uint32_t i = 0; i < path.n; i++) {
        chain[i]->last_end = node->end;
    }
    return BL_OK;
}

/* ---- headers ------------------------------------------------------------------------------------------- */

/* The table that a part of a header in front of the last means: of an array of tables the last one. */
static bl_code enter_header(toml_reader *r, bl_toml_node *t, const key_part *part, bl_toml_node **ret) {
    bl_toml_node *next = find_child(t, part->name, part->len);
    if (next == NULL) {
        return add_table(r, t, part, BL_TOML_IMPLIED, ret);
    }
    if (next->form == BL_TOML_HEADERS) {
        *ret = next->last;
        return BL_OK;
    }
    if (next->kind != BL_TOML_TABLE || next->form == BL_TOML_WRITTEN) {
        return fail_twice(r, part, next);
    }
    *ret = next;
    return BL_OK;
}

static bl_code define_table(toml_reader *r, bl_toml_node *t, const key_part *key, bl_toml_node **ret) {
    bl_toml_node *there = find_child(t, key->name, key->len);
    if (there == NULL) {
        return add_table(r, t, key, BL_TOML_HEADER, ret);
    }
    if (there->form != BL_TOML_IMPLIED) {
        return fail_twice(r, key, there);
    }
    there->form = BL_TOML_HEADER;
    there->line = line_of(r, key->at);
    there->key_at = key->at;
    there->key_end = key->end;
    *ret = there;
    return BL_OK;
}

static bl_code define_element(toml_reader *r, bl_toml_node *t, const key_part *key, bl_toml_node **ret) {
    bl_toml_node *array = find_child(t, key->name, key->len);
    if (array == NULL) {
        BL_TRY(add_node(r, t, key, &array));
        array->kind = BL_TOML_ARRAY;
        array->form = BL_TOML_HEADERS;
    } else if (array->form != BL_TOML_HEADERS) {
        return fail_twice(r, key, array);
    }
    return add_table(r, array, NULL, BL_TOML_HEADER, ret);
}

static bl_code read_header(toml_reader *r) {
    key_path path;
    bl_toml_node *t = r->doc->root;
    bool element = r->s[r->at + 1] == '[';
    r->at += element ? 2 : 1;
    skip_blanks(r);
    BL_TRY(read_key(r, &path));
    if (r->s[r->at] != ']' || (element && r->s[r->at + 1] != ']')) {
        return toml_refuse(r, r->at,
                           element ? "']]' behind the name of tables" : "']' behind the name of a table");
    }
    for (uint32_t i = 0; i + 1 < path.n; i++) {
        BL_TRY(enter_header(r, t, &path.parts[i], &t));
    }
    const key_part *last = &path.parts[path.n - 1];
    BL_TRY(element ? define_element(r, t, last, &r->table) : define_table(r, t, last, &r->table));
    r->at += element ? 2 : 1;
    r->table->last_end = r->at;
    return BL_OK;
}

/* ---- the document -------------------------------------------------------------------------------------- */

static bl_code read_line(toml_reader *r) {
    skip_blanks(r);
    char c = r->s[r->at];
    if (c == '[') {
        BL_TRY(read_header(r));
    } else if (c != '#' && r->at < r->n && toml_newline(r, r->at) == 0) {
        BL_TRY(read_assignment(r, r->table));
    }
    skip_blanks(r);
    if (r->s[r->at] == '#') {
        BL_TRY(read_comment(r));
    }
    uint32_t n = toml_newline(r, r->at);
    if (n == 0 && r->at < r->n) {
        return toml_refuse(r, r->at, "the end of the line, or a comment");
    }
    r->at += n;
    return BL_OK;
}

static bl_code check_bytes(toml_reader *r) {
    if (r->n >= 3 && memcmp(r->s, "\xEF\xBB\xBF", 3) == 0) {
        return toml_fail(r, BL_EFORMAT, 0, "a byte order mark, allowed: UTF-8 without one");
    }
    for (uint32_t at = 0; at < r->n;) {
        uint32_t cp;
        size_t len = bl_utf8_decode(r->s + at, r->n - at, &cp);
        if (len == 0 || cp == 0) {
            return toml_fail(r, BL_EFORMAT, at, "byte 0x%02x is not UTF-8 text",
                             (unsigned)(unsigned char)r->s[at]);
        }
        at += (uint32_t)len;
    }
    return BL_OK;
}

static bl_code read_document(toml_reader *r, const char *text, size_t n) {
    void *root = NULL;
    char *copy = NULL;
    BL_TRY(bl_arena_strndup(r->doc->arena, text, n, &copy, r->err));
    BL_TRY(bl_arena_alloc(r->doc->arena, sizeof(bl_toml_node), &root, r->err));
    r->doc->text = r->s = copy;
    r->doc->n = r->n = (uint32_t)n;
    r->doc->root = r->table = root;
    r->table->kind = BL_TOML_TABLE;
    r->table->form = BL_TOML_HEADER;
    r->table->line = r->line = 1;
    BL_TRY(check_bytes(r));
    while (r->at < r->n) {
        BL_TRY(read_line(r));
    }
    return BL_OK;
}

bl_code bl_toml_parse(const char *name, const char *text, size_t n, bl_toml **ret, bl_err *err) {
    if (n > BL_TOML_MAX_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "%s: %zu bytes, %zu allowed", name, n, BL_TOML_MAX_BYTES);
    }
    toml_reader r = {.name = name, .err = err};
    r.doc = bl_alloc(sizeof *r.doc);
    if (r.doc == NULL) {
        BL_FAIL(err, BL_ENOMEM, "%s: no memory", name);
    }
    bl_buf_init(&r.scratch, BL_TOML_MAX_BYTES);
    bl_code rc = bl_arena_new("toml", BL_TOML_MAX_MEMORY, &r.doc->arena, err);
    if (rc == BL_OK) {
        rc = read_document(&r, text, n);
    }
    bl_buf_done(&r.scratch);
    if (rc != BL_OK) {
        bl_toml_free(r.doc);
        return rc;
    }
    *ret = r.doc;
    return BL_OK;
}

void bl_toml_free(bl_toml *t) {
    if (t != NULL) {
        bl_arena_free(t->arena);
        bl_free(t);
    }
}

const bl_toml_node *bl_toml_root(const bl_toml *t) {
    return t->root;
}

const char *bl_toml_text(const bl_toml *t, size_t *ret_n) {
    *ret_n = t->n;
    return t->text;
}

const bl_toml_node *bl_toml_find(const bl_toml_node *table, const char *key) {
    return table->kind == BL_TOML_TABLE ? find_child(table, key, strlen(key)) : NULL;
}
