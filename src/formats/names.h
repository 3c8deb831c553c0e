/* Names that come out of files: what may be one, and how much of it a message shows. */
#ifndef BL_FORMATS_NAMES_H
#define BL_FORMATS_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "bl/bl_err.h"

/* BL_EFORMAT when the n bytes are empty, not UTF-8 or hold a control byte; BL_ELIMIT beyond max_bytes. `what`
 * ("key", "tensor name") starts the message. A name that passed can be printed with "%.*s" and bl_name_shown.
 */
bl_code bl_name_check(const char *s, size_t n, size_t max_bytes, const char *what, bl_err *err) BL_MUST_CHECK;

/* Precision for "%.*s": at most BL_NAME_SHOWN_BYTES, never inside a character. */
int bl_name_shown(const char *s, size_t n);

bool bl_name_ends(const char *s, const char *with);

/* The part of a path after its last '/', or the whole. Borrowed. */
const char *bl_name_of_path(const char *path);

#endif
