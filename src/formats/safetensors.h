/* safetensors: the header of one file, checked in full (spec models.md §7), and views of its tensors in the
 * map. Immutable after open; any thread may read.
 */
#ifndef BL_FORMATS_SAFETENSORS_H
#define BL_FORMATS_SAFETENSORS_H

#include "base/file.h"
#include "bl/bl_err.h"
#include "formats/tensor_view.h"

typedef struct bl_safetensors bl_safetensors;

/* Parses from memory (borrowed, must outlive the result). `name` is used in messages. For fuzzing and tests.
 */
bl_code bl_safetensors_parse(const uint8_t *data, uint64_t size_bytes, const char *name, bl_safetensors **ret,
                             bl_err *err) BL_MUST_CHECK;
/* Maps and parses a file. */
bl_code bl_safetensors_open(const char *path, bool allow_links, bl_safetensors **ret,
                            bl_err *err) BL_MUST_CHECK;
void bl_safetensors_free(bl_safetensors *st);
/* BL_ECORRUPT when the file was cut short under the map, and zeros were read (base/mapguard.h). */
bl_code bl_safetensors_check_intact(const bl_safetensors *st, const char *name, bl_err *err) BL_MUST_CHECK;

size_t bl_safetensors_count(const bl_safetensors *st);
/* i < count; in order of offsets. Borrowed. */
const bl_tensor_view *bl_safetensors_at(const bl_safetensors *st, size_t i);
/* NULL when absent. */
const bl_tensor_view *bl_safetensors_find(const bl_safetensors *st, const char *name);

#endif
