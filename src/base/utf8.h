/* UTF-8 at the byte level: decoding, validation, and where it may be cut. Unicode properties live in
 * formats/unicode. */
#ifndef BL_BASE_UTF8_H
#define BL_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point at s (n bytes available). Returns its length 1..4, or 0 when s starts no valid
 * sequence (overlong, surrogate, > U+10FFFF, truncated) or n == 0. *ret_cp is set on success only. */
size_t bl_utf8_decode(const char *s, size_t n, uint32_t *ret_cp);
/* Encodes cp (must be a scalar value) into out[4]; returns the length. */
size_t bl_utf8_encode(uint32_t cp, char out[4]);
bool bl_utf8_valid(const char *s, size_t n);
/* Length of the longest prefix of s that does not end inside an incomplete (but so far valid) sequence.
 * Bytes that can never become valid count as complete, so at most 3 bytes are ever held back. */
size_t bl_utf8_complete(const char *s, size_t n);
/* Bytes of maximal invalid subpart at s (Unicode 3.9, U+FFFD substitution as Python and browsers do), >= 1.
 * Call when bl_utf8_decode gave 0 and n > 0. */
size_t bl_utf8_invalid_len(const char *s, size_t n);

#endif
