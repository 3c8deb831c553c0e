/* JSON's own parts, drawn: what schemas are made of. Which of the many ways to write a value are produced is
 * decided here (docs/structured-output.md).
 */
#ifndef BL_GRAMMAR_JSON_H
#define BL_GRAMMAR_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/nfa.h"

/* Rules that are drawn when they are first asked for. */
typedef struct {
    bl_nfa *a;
    uint32_t space, any, escape, wide; /* rule + 1; 0: not drawn yet */
} bl_gjson;

/* Between brackets and values: nothing, a space, or a newline and up to 16 spaces. Behind a colon: nothing or
 * a space. */
void bl_gjson_space(bl_gjson *j, uint32_t from, uint32_t to);
void bl_gjson_colon(bl_gjson *j, uint32_t from, uint32_t to);
/* Any value. */
void bl_gjson_any(bl_gjson *j, uint32_t from, uint32_t to);
/* A string of min to max characters (UINT32_MAX: any number). */
void bl_gjson_string(bl_gjson *j, uint32_t from, uint32_t to, uint32_t min, uint32_t max);
/* Numbers of at most 18 digits before and after the point and two in the exponent. */
void bl_gjson_number(bl_gjson *j, uint32_t from, uint32_t to, bool negative);
/* lo..hi, both at most 18 digits. */
void bl_gjson_integer(bl_gjson *j, uint32_t from, uint32_t to, int64_t lo, int64_t hi);
#define BL_GJSON_MAX_INTEGER INT64_C(999999999999999999)
/* A key in its quotes that is none of names, which are sorted by strcmp and hold no NUL. With names it is
 * written without escapes, so that it cannot be one of them in disguise. */
void bl_gjson_key(bl_gjson *j, uint32_t from, uint32_t to, const char *const *names, size_t n_names);
/* An object of any kind. */
void bl_gjson_any_object(bl_gjson *j, uint32_t from, uint32_t to);

#endif
