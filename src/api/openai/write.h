/* JSON text pieces that the payloads are made of. */
#ifndef BL_API_OPENAI_WRITE_H
#define BL_API_OPENAI_WRITE_H

#include <stddef.h>

#include "base/buf.h"
#include "bl/bl_err.h"

/* A JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD. */
bl_code bl_openai_write_string(const char *s, size_t n, bl_buf *ret, bl_err *err) BL_MUST_CHECK;
/* A number that every JSON reader takes: -9999.0 stands for minus infinity and NaN, as OpenAI's servers do.
 */
bl_code bl_openai_write_logprob(float x, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#endif
