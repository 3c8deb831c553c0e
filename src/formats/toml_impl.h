/* What the files of the TOML reader share: the reader's place in the text and how it complains. */
#ifndef BL_FORMATS_TOML_IMPL_H
#define BL_FORMATS_TOML_IMPL_H

#include "base/arena.h"
#include "base/buf.h"
#include "formats/limits.h"
#include "formats/toml.h"

struct bl_toml {
    bl_arena *arena;
    const char *text;
    uint32_t n;
    bl_toml_node *root;
};

typedef struct {
    const char *name;
    bl_toml *doc;
    const char *s; /* doc's text; s[n] is NUL, which no valid text holds */
    uint32_t n, at;
    uint32_t line, line_at; /* line (from 1) in which byte line_at is: only moves forward */
    uint32_t n_nodes, n_keys, depth;
    bl_toml_node *table;     /* of the last header */
    const bl_toml_node *key; /* whose value is being read, for messages; NULL */
    bl_buf scratch;          /* of one string */
    bl_err *err;
} toml_reader;

/* "NAME:LINE:COLUMN: key 'K': found '}', allowed: ..." about byte `at`. Returns BL_EFORMAT. */
bl_code toml_refuse(toml_reader *r, uint32_t at, const char *allowed) BL_MUST_CHECK;
/* The same place with a sentence of its own. */
bl_code toml_fail(toml_reader *r, bl_code code, uint32_t at, const char *fmt, ...)
    BL_PRINTF(4, 5) BL_MUST_CHECK;

/* Scalars (toml_value.c). The reader stands at the first byte, and behind the last on success. */
/* A string of any of the four kinds, into r->scratch. one_line: not of three quotes (keys). */
bl_code toml_read_string(toml_reader *r, bool one_line) BL_MUST_CHECK;
/* true, false, numbers, dates and times. */
bl_code toml_read_word(toml_reader *r, bl_toml_node *ret) BL_MUST_CHECK;

static inline bool toml_is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* May stand in a key without quotes. */
static inline bool toml_is_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || toml_is_digit(c) || c == '-' || c == '_';
}

/* Length of the line end at byte `at`: 1, 2 (CR LF), or 0. */
static inline uint32_t toml_newline(const toml_reader *r, uint32_t at) {
    return r->s[at] == '\n' ? 1 : r->s[at] == '\r' && r->s[at + 1] == '\n' ? 2 : 0;
}

#endif
