/* GGUF v2/v3, little-endian: metadata and tensors, checked in full (spec models.md §9.1). Single file
 * (split.count <= 1). Immutable after open; any thread may read.
 */
#ifndef BL_FORMATS_GGUF_H
#define BL_FORMATS_GGUF_H

#include <stdbool.h>

#include "base/file.h"
#include "bl/bl_err.h"
#include "formats/tensor_view.h"

typedef struct bl_gguf bl_gguf;

bl_code bl_gguf_parse(const uint8_t *data, uint64_t size_bytes, const char *name, bl_gguf **ret,
                      bl_err *err) BL_MUST_CHECK;
bl_code bl_gguf_open(const char *path, bl_gguf **ret, bl_err *err) BL_MUST_CHECK; /* links are followed */
void bl_gguf_free(bl_gguf *g);
/* BL_ECORRUPT when the file was cut short under the map, and zeros were read (base/mapguard.h). */
bl_code bl_gguf_check_intact(const bl_gguf *g, const char *name, bl_err *err) BL_MUST_CHECK;

size_t bl_gguf_count(const bl_gguf *g);
const bl_tensor_view *bl_gguf_at(const bl_gguf *g, size_t i);
const bl_tensor_view *bl_gguf_find(const bl_gguf *g, const char *name);

/* Typed metadata reads. Absent: *ret unchanged and BL_OK, *ret_found (may be NULL) false. A value of another
 * type: any integer type that fits is accepted, else BL_EFORMAT naming key, found and allowed. */
bl_code bl_gguf_get_u64(const bl_gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                        bool *ret_found, bl_err *err) BL_MUST_CHECK;
bl_code bl_gguf_get_f64(const bl_gguf *g, const char *key, double *ret, bool *ret_found,
                        bl_err *err) BL_MUST_CHECK;
bl_code bl_gguf_get_bool(const bl_gguf *g, const char *key, bool *ret, bool *ret_found,
                         bl_err *err) BL_MUST_CHECK;
/* Borrowed, not NUL-terminated. */
bl_code bl_gguf_get_str(const bl_gguf *g, const char *key, const char **ret, size_t *ret_len, bool *ret_found,
                        bl_err *err) BL_MUST_CHECK;

/* Keys in file order: i < bl_gguf_key_count. Borrowed, not NUL-terminated; UTF-8 without control bytes. */
size_t bl_gguf_key_count(const bl_gguf *g);
void bl_gguf_key_at(const bl_gguf *g, size_t i, const char **ret, size_t *ret_len);
/* Is the key's value an array (numbers that some files give per layer)? false when absent. */
bool bl_gguf_is_array(const bl_gguf *g, const char *key);

/* An array of strings: each s[i] borrowed, len[i] bytes (arrays owned by g). */
typedef struct {
    const char *const *s;
    const uint32_t *len;
    size_t n;
} bl_gguf_strings;
bl_code bl_gguf_get_strings(const bl_gguf *g, const char *key, bl_gguf_strings *ret, bool *ret_found,
                            bl_err *err) BL_MUST_CHECK;
/* Numeric array element access with conversion; n = 0 when absent. Element readers return BL_EFORMAT for
 * other types. */
bl_code bl_gguf_array_len(const bl_gguf *g, const char *key, size_t *ret_n, bl_err *err) BL_MUST_CHECK;
bl_code bl_gguf_array_f32(const bl_gguf *g, const char *key, float *dst, size_t n, bl_err *err) BL_MUST_CHECK;
bl_code bl_gguf_array_i32(const bl_gguf *g, const char *key, int32_t *dst, size_t n,
                          bl_err *err) BL_MUST_CHECK; /* any int or bool */

#endif
