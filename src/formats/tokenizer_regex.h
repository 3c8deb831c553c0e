/* Regular expressions of tokenizers: written for Oniguruma (Ruby syntax, UTF-8), run by PCRE2 with its JIT.
 *
 * A pattern is translated first, so that \s, \w, properties, ^ and $ mean what the reference engine takes
 * them for; what is not known to mean the same in both is refused by name. A compiled expression is immutable
 * and may be used by any thread; each scan belongs to one.
 */
#ifndef BL_FORMATS_TOKENIZER_REGEX_H
#define BL_FORMATS_TOKENIZER_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "bl/bl_err.h"

#define BL_TOKENIZER_MAX_PATTERN 8192u

typedef struct bl_tokenizer_regex bl_tokenizer_regex;
typedef struct bl_tokenizer_scan bl_tokenizer_scan;

/* pattern: n bytes of UTF-8. BL_ENOTSUP: a construct outside the common ground; BL_EFORMAT: no valid
 * expression. */
bl_code bl_tokenizer_regex_new(const char *pattern, size_t n, bl_tokenizer_regex **ret,
                               bl_err *err) BL_MUST_CHECK;
void bl_tokenizer_regex_free(bl_tokenizer_regex *r);

/* Work space and budget for the searches over one text of n_text bytes. */
bl_code bl_tokenizer_scan_new(size_t n_text, bl_tokenizer_scan **ret, bl_err *err) BL_MUST_CHECK;
void bl_tokenizer_scan_free(bl_tokenizer_scan *s);

/* The leftmost match at or after `from` in text (valid UTF-8; `from` on a boundary). BL_ELIMIT when the steps
 * of all searches of a scan exceed a multiple of its text. */
bl_code bl_tokenizer_regex_find(const bl_tokenizer_regex *r, bl_tokenizer_scan *s, const char *text, size_t n,
                                size_t from, size_t *ret_start, size_t *ret_end, bool *ret_found,
                                bl_err *err) BL_MUST_CHECK;

#endif
