/* Unicode properties and normal forms on UTF-8, through utf8proc's tables. Input must be valid UTF-8. Linear
 * in the length of the text, also for long runs of combining marks.
 */
#ifndef BL_FORMATS_UNICODE_H
#define BL_FORMATS_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef enum {
    BL_UNICODE_NFC,
    BL_UNICODE_NFD,
    BL_UNICODE_NFKC,
    BL_UNICODE_NFKD,
    BL_UNICODE_FORM__MAX
} bl_unicode_form;

/* Appends the normal form of s to *ret. */
bl_code bl_unicode_normalize(bl_unicode_form form, const char *s, size_t n, bl_buf *ret,
                             bl_err *err) BL_MUST_CHECK;
/* Appends s with each code point lower-cased on its own (no final-sigma rule), as the reference tokenizers
 * do. */
bl_code bl_unicode_lower(const char *s, size_t n, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
/* Property White_Space (25 code points, stable since Unicode 6.3). */
bool bl_unicode_is_space(uint32_t cp);
/* \w of UTS #18: alphabetic, mark, decimal digit, connector punctuation, join control. */
bool bl_unicode_is_word(uint32_t cp);

#endif
