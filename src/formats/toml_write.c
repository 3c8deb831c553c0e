/* Changing one value of a TOML text and no other byte (toml.h, "writing"). */
#include <string.h>

#include "base/base.h"
#include "formats/toml_impl.h"

/* ---- quoting ------------------------------------------------------------------------------------------- */

bl_code bl_toml_quote(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_char(ret, '"', err));
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            BL_TRY(bl_buf_printf(ret, err, "\\%c", c));
        } else if (c < 0x20 || c == 0x7f) {
            BL_TRY(bl_buf_printf(ret, err, "\\u%04X", (unsigned)c));
        } else {
            BL_TRY(bl_buf_append_char(ret, s[i], err));
        }
    }
    return bl_buf_append_char(ret, '"', err);
}

bl_code bl_toml_quote_key(const char *s, size_t n, bl_buf *ret, bl_err *err) {
    bool bare = n > 0;
    for (size_t i = 0; i < n && bare; i++) {
        bare = toml_is_bare(s[i]);
    }
    return bare ? bl_buf_append(ret, s, n, err) : bl_toml_quote(s, n, ret, err);
}

/* The text with [at, end) replaced, appended to *ret. */
static bl_code splice(const bl_toml *t, uint32_t at, uint32_t end, const char *with, bl_buf *ret,
                      bl_err *err) {
    BL_ASSERT(at <= end && end <= t->n);
    BL_TRY(bl_buf_append(ret, t->text, at, err));
    BL_TRY(bl_buf_append_str(ret, with, err));
    return bl_buf_append(ret, t->text + end, t->n - end, err);
}

/* ---- where an assignment goes -------------------------------------------------------------------------- */

/* The way down a path, as far as it exists. */
typedef struct {
    const bl_toml_node *table; /* the last table on it */
    size_t depth;              /* parts of the path that lead to it */
    size_t header_depth;       /* parts that lead to the table whose header it stands under */
} descent;

static bl_code fail_no_table(const char *const *path, size_t n, const bl_toml_node *found, bl_err *err) {
    BL_FAIL(err, BL_EINVAL, "'%.60s' is %s (line %u): '%.60s' cannot be set in it", path[n],
            found->form == BL_TOML_HEADERS ? "an array of tables" : bl_toml_kind_name(found->kind),
            found->line, path[n + 1]);
}

static bl_code descend(const bl_toml *t, const char *const *path, size_t n_path, descent *ret, bl_err *err) {
    descent d = {.table = t->root};
    while (d.depth + 1 < n_path) {
        const bl_toml_node *next = bl_toml_find(d.table, path[d.depth]);
        if (next == NULL) {
            break;
        }
        if (next->kind != BL_TOML_TABLE) {
            return fail_no_table(path, d.depth, next, err);
        }
        d.table = next;
        d.depth++;
        if (next->form == BL_TOML_HEADER) {
            d.header_depth = d.depth;
        }
    }
    *ret = d;
    return BL_OK;
}

const char *bl_toml_line_end(const bl_toml *t) {
    const char *lf = strchr(t->text, '\n');
    return lf != NULL && lf > t->text && lf[-1] == '\r' ? "\r\n" : "\n";
}

static bl_code append_path(const char *const *path, size_t n, bl_buf *b, bl_err *err) {
    for (size_t i = 0; i < n; i++) {
        BL_TRY(i > 0 ? bl_buf_append_char(b, '.', err) : BL_OK);
        BL_TRY(bl_toml_quote_key(path[i], strlen(path[i]), b, err));
    }
    return BL_OK;
}

static bl_code append_assignment(const char *const *path, size_t n, const char *value, bl_buf *b,
                                 bl_err *err) {
    BL_TRY(append_path(path, n, b, err));
    return bl_buf_printf(b, err, " = %s", value);
}

/* On a line of its own behind the one that holds byte `behind`; in front of everything for 0. */
static bl_code put_line(const bl_toml *t, uint32_t behind, const char *line, bl_buf *ret, bl_err *err) {
    const char *eol = bl_toml_line_end(t);
    uint32_t at = behind;
    if (behind > 0) {
        const char *lf = memchr(t->text + behind, '\n', t->n - behind);
        at = lf != NULL ? (uint32_t)(lf - t->text) + 1 : t->n;
    }
    BL_TRY(bl_buf_append(ret, t->text, at, err));
    if (at > 0 && t->text[at - 1] != '\n') {
        BL_TRY(bl_buf_append_str(ret, eol, err));
    }
    BL_TRY(bl_buf_printf(ret, err, "%s%s", line, eol));
    return bl_buf_append(ret, t->text + at, t->n - at, err);
}

/* A header of its own at the end of the text. */
static bl_code put_table(const bl_toml *t, const char *const *path, size_t n_path, const char *value,
                         bl_buf *ret, bl_err *err) {
    const char *eol = bl_toml_line_end(t);
    BL_TRY(bl_buf_append(ret, t->text, t->n, err));
    if (t->n > 0) {
        BL_TRY(bl_buf_printf(ret, err, "%s%s", t->text[t->n - 1] != '\n' ? eol : "", eol));
    }
    BL_TRY(bl_buf_append_char(ret, '[', err));
    BL_TRY(append_path(path, n_path - 1, ret, err));
    BL_TRY(bl_buf_printf(ret, err, "]%s", eol));
    BL_TRY(append_assignment(path + n_path - 1, 1, value, ret, err));
    return bl_buf_append_str(ret, eol, err);
}

/* Whether a table of dotted keys or braces is inside braces: then those are where its keys go. */
static const bl_toml_node *braces_around(const bl_toml *t, const char *const *path, size_t depth,
                                         size_t *ret_depth) {
    const bl_toml_node *at = t->root, *found = NULL;
    for (size_t i = 0; i < depth; i++) {
        at = bl_toml_find(at, path[i]);
        if (at->form == BL_TOML_WRITTEN) {
            found = at;
            *ret_depth = i + 1;
        }
    }
    return found;
}

static bl_code put_in_braces(const bl_toml *t, const bl_toml_node *table, const char *assignment, bl_buf *ret,
                             bl_err *err) {
    BL_TRY(bl_buf_append(ret, t->text, table->last_end, err));
    BL_TRY(bl_buf_printf(ret, err, table->n_children > 0 ? ", %s" : " %s ", assignment));
    return bl_buf_append(ret, t->text + table->last_end, t->n - table->last_end, err);
}

static bl_code add(const bl_toml *t, const descent *d, const char *const *path, size_t n_path,
                   const char *value, bl_buf *ret, bl_err *err) {
    bl_toml_form form = d->table->form;
    size_t from = d->header_depth; /* the assignment's key is what follows it */
    bool complete = d->depth + 1 == n_path;
    const bl_toml_node *braces = braces_around(t, path, d->depth, &from);
    if (braces == NULL && form != BL_TOML_DOTTED && !(complete && form == BL_TOML_HEADER)) {
        return put_table(t, path, n_path, value, ret, err);
    }
    bl_buf line;
    bl_buf_init(&line, BL_TOML_MAX_BYTES);
    bl_code rc = append_assignment(path + from, n_path - from, value, &line, err);
    if (rc == BL_OK && braces != NULL) {
        rc = put_in_braces(t, braces, bl_buf_str(&line), ret, err);
    } else if (rc == BL_OK) {
        rc = put_line(t, d->table->last_end, bl_buf_str(&line), ret, err);
    }
    bl_buf_done(&line);
    return rc;
}

bl_code bl_toml_put(const bl_toml *t, const char *const *path, size_t n_path, const char *value, bl_buf *ret,
                    bl_err *err) {
    BL_ASSERT(n_path >= 1);
    descent d;
    BL_TRY(descend(t, path, n_path, &d, err));
    const bl_toml_node *there = d.depth + 1 == n_path ? bl_toml_find(d.table, path[n_path - 1]) : NULL;
    if (there == NULL) {
        return add(t, &d, path, n_path, value, ret, err);
    }
    if (there->form != BL_TOML_WRITTEN) {
        BL_FAIL(err, BL_EINVAL, "'%.60s' is written as a table of its own (line %u), not as one value",
                path[n_path - 1], there->line);
    }
    return splice(t, there->at, there->end, value, ret, err);
}
