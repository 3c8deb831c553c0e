/* TOML 1.0 (toml.io/en/v1.0.0), read whole and strictly: text in, a tree out in which every key and every
 * value knows where it stands. So a program can name the line of a wrong value, and change one value of a
 * file that a person wrote without touching a byte of the rest (the functions at the end).
 *
 * Refused: everything the specification forbids, a byte order mark, and what is beyond the ceilings of
 * limits.h. Dates and times are checked and otherwise kept as text. Messages begin with "NAME:LINE:COLUMN: ".
 * Not thread-safe while parsing; a document is immutable afterwards.
 */
#ifndef BL_FORMATS_TOML_H
#define BL_FORMATS_TOML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef enum {
    BL_TOML_BOOL,
    BL_TOML_INT,
    BL_TOML_FLOAT,
    BL_TOML_STRING,
    BL_TOML_TIME, /* a date, a time or both, with or without offset */
    BL_TOML_ARRAY,
    BL_TOML_TABLE,
    BL_TOML__MAX
} bl_toml_kind;

/* "an integer", for messages. */
const char *bl_toml_kind_name(bl_toml_kind kind);

/* How a table or an array came to be: decides what may be added to it, and how. */
typedef enum {
    BL_TOML_WRITTEN, /* a value in one piece: 1, "x", [..], {..} */
    BL_TOML_HEADER,  /* [table], one element of [[tables]], or the document itself */
    BL_TOML_HEADERS, /* the array that [[tables]] makes */
    BL_TOML_DOTTED,  /* by a key with dots: a.b = 1 makes a */
    BL_TOML_IMPLIED  /* above a header: [a.b] makes a */
} bl_toml_form;

typedef struct bl_toml_node bl_toml_node;
struct bl_toml_node { /* [immutable after parse] */
    bl_toml_kind kind;
    bl_toml_form form;
    const char *key; /* decoded, NUL behind it; NULL for the document and for elements of arrays */
    size_t key_len;
    uint32_t line; /* from 1: of the key, of an element's value */
    /* Bytes of the text. The key as written is [key_at, key_end); the value is [at, end), where it is
     * WRITTEN. last_end, of tables: behind the last value that was put into it, or behind its header. */
    uint32_t key_at, key_end, at, end, last_end;
    bl_toml_node *first, *last, *next; /* children in the order of the text; the next child of the parent */
    uint32_t n_children;
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *s; /* NUL behind it, and perhaps within */
            size_t len;
        } str;
    } v;
};

typedef struct bl_toml bl_toml;

/* text is copied. name is how messages call it; borrowed during the call. BL_EFORMAT, BL_ELIMIT, BL_ENOMEM.
 */
bl_code bl_toml_parse(const char *name, const char *text, size_t n, bl_toml **ret, bl_err *err) BL_MUST_CHECK;
void bl_toml_free(bl_toml *t);
const bl_toml_node *bl_toml_root(const bl_toml *t);
/* The text as it was, NUL behind it. */
const char *bl_toml_text(const bl_toml *t, size_t *ret_n);
/* The child of that name; NULL: none, or no table. */
const bl_toml_node *bl_toml_find(const bl_toml_node *table, const char *key);

/* ---- writing ------------------------------------------------------------------------------------------- */

/* A string as a value; a key as it may stand in front of '=' (bare where it can be). */
bl_code bl_toml_quote(const char *s, size_t n, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_toml_quote_key(const char *s, size_t n, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* How the first line of the text ends: what a line that is added to it ends with. */
const char *bl_toml_line_end(const bl_toml *t);

/* The text with path[0].path[1]... = value, appended to *ret. A value that stands there is replaced in its
 * place; else the assignment is added behind the last one of its table, in the way that table is written
 * (header, dotted keys, braces), and a table that is not there is added at the end. Every other byte stays.
 * value: as it is to stand in the file; the caller sees to its syntax. BL_EINVAL: something on the path is no
 * table, or is an array of them; or a table with a header would have to be replaced by a value. */
bl_code bl_toml_put(const bl_toml *t, const char *const *path, size_t n_path, const char *value, bl_buf *ret,
                    bl_err *err) BL_MUST_CHECK;

#endif
