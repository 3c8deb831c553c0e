/* Jinja templates as chat templates use them (spec models.md §11.1), sandboxed: no I/O, no attribute of the
 * host, bounded in steps, output, depth and memory. trim_blocks and lstrip_blocks are on, as in Hugging
 * Face's renderer. An unknown construct fails compile, never renders approximately. A compiled template is
 * immutable; any thread may render it.
 */
#ifndef BL_FORMATS_JINJA_H
#define BL_FORMATS_JINJA_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef struct bl_jinja bl_jinja;

typedef struct {
    uint64_t max_steps;      /* evaluated nodes; 0 = default 20 million */
    uint32_t max_depth;      /* expression, block and macro nesting; 0 = default 200 */
    size_t max_output_bytes; /* 0 = default 16 MiB */
    size_t max_memory_bytes; /* values alive while rendering; 0 = default 256 MiB */
    int64_t now_unix_s;      /* what strftime_now sees; 0 = the clock. UTC. */
} bl_jinja_limits;

/* src: at most 1 MiB. Errors name the line. */
bl_code bl_jinja_compile(const char *src, size_t n, bl_jinja **ret, bl_err *err) BL_MUST_CHECK;
void bl_jinja_free(bl_jinja *t);

/* Appends the rendering with the members of `context` (an object) as variables. raise_exception() gives
 * BL_EINVAL with its message. limits may be NULL. */
bl_code bl_jinja_render(const bl_jinja *t, const json_t *context, const bl_jinja_limits *limits, bl_buf *ret,
                        bl_err *err) BL_MUST_CHECK;

#endif
