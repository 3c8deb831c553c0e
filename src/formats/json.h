/* JSON through jansson with the project's limits: duplicate keys are refused, depth and size are bounded,
 * numbers that do not fit are refused. Messages say where (line, column) and never quote the text.
 */
#ifndef BL_FORMATS_JSON_H
#define BL_FORMATS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

/* Parses exactly one JSON value (trailing spaces allowed). `what` names the text in messages ("config.json").
 * max_depth bounds nesting of arrays and objects and is checked before jansson recurses. Caller
 * json_decref()s. */
bl_code bl_json_parse(const char *text, size_t n, uint32_t max_depth, const char *what, json_t **ret,
                      bl_err *err) BL_MUST_CHECK;

/* Typed reads of an object's field. Absent or null: *ret unchanged, BL_OK (set the default first). Wrong type
 * or out of [min, max]: BL_EFORMAT naming what.key, the value found and the values allowed. */
bl_code bl_json_get_u64(const json_t *obj, const char *key, uint64_t min, uint64_t max, const char *what,
                        uint64_t *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_json_get_f64(const json_t *obj, const char *key, double min, double max, const char *what,
                        double *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_json_get_bool(const json_t *obj, const char *key, const char *what, bool *ret,
                         bl_err *err) BL_MUST_CHECK;
/* Borrowed string, NULL-terminated; strings with NUL inside are refused. */
bl_code bl_json_get_str(const json_t *obj, const char *key, const char *what, const char **ret,
                        bl_err *err) BL_MUST_CHECK;

#endif
