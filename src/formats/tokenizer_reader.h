/* A pull reader over one JSON text, for the two members of tokenizer.json that are too large for a tree: the
 * vocabulary (262144 members) and the merges (514906 pairs). The text must be valid UTF-8 and outlive the
 * reader.
 */
#ifndef BL_FORMATS_TOKENIZER_READER_H
#define BL_FORMATS_TOKENIZER_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef struct {
    const char *start, *p, *end;
    bl_buf tmp; /* a string that had escapes */
} bl_tokenizer_reader;

void bl_tokenizer_reader_init(bl_tokenizer_reader *r, const char *text, size_t n);
void bl_tokenizer_reader_done(bl_tokenizer_reader *r);
size_t bl_tokenizer_reader_at(const bl_tokenizer_reader *r); /* byte offset, for messages */

/* The next byte that is no space; '\0' at the end. */
char bl_tokenizer_reader_peek(bl_tokenizer_reader *r);
bl_code bl_tokenizer_reader_expect(bl_tokenizer_reader *r, char c, bl_err *err) BL_MUST_CHECK;
/* Between members or elements: after ',' *ret_more is true, after `close` false; both are consumed. `first`:
 * nothing has been read since the opening bracket. */
bl_code bl_tokenizer_reader_more(bl_tokenizer_reader *r, bool first, char close, bool *ret_more,
                                 bl_err *err) BL_MUST_CHECK;
/* A string; *ret points into the text, or into tmp until the next string. Lone surrogates are refused. */
bl_code bl_tokenizer_reader_string(bl_tokenizer_reader *r, const char **ret, size_t *ret_n,
                                   bl_err *err) BL_MUST_CHECK;
/* A plain non-negative integer below 2^53. */
bl_code bl_tokenizer_reader_integer(bl_tokenizer_reader *r, uint64_t *ret, bl_err *err) BL_MUST_CHECK;
/* Any value: its extent. Brackets are matched and strings are walked; the rest is for whoever parses it. */
bl_code bl_tokenizer_reader_skip(bl_tokenizer_reader *r, const char **ret, size_t *ret_n,
                                 bl_err *err) BL_MUST_CHECK;

#endif
