/* Jinja templates as chat templates use them (spec models.md §11.1), sandboxed: no I/O, no attribute of the
 * host, bounded in steps, output, depth and memory. Semantics are those of jinja2 3.1's
 * ImmutableSandboxedEnvironment as Hugging Face configures it: trim_blocks, lstrip_blocks, loopcontrols,
 * tojson without HTML escaping, raise_exception, strftime_now,
 * {% generation %}. An unknown construct, filter or test fails compile; an unknown method fails the render
 * that calls it; nothing is rendered approximately. A compiled template is immutable; any thread may render
 * it.
 */
#ifndef BL_FORMATS_JINJA_H
#define BL_FORMATS_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "bl/bl_err.h"

typedef struct bl_jinja bl_jinja;

typedef struct {
    uint64_t max_steps; /* evaluated nodes, and one per 32 bytes moved or searched; 0 = default 20 million */
    uint32_t max_depth; /* expression, block and macro nesting; 0 = default 400 (a C stack of about 300 KB) */
    size_t max_output_bytes; /* 0 = default 16 MiB */
    size_t max_memory_bytes; /* values alive while rendering; 0 = default 256 MiB */
    int64_t now_unix_s;      /* what strftime_now sees; 0 = the clock. UTC. */
} bl_jinja_limits;

/* src: at most 1 MiB of UTF-8. Errors name the line: BL_EFORMAT (syntax, unknown name of a tag, filter or
 * test), BL_ENOTSUP (jinja2 has it, we do not), BL_ELIMIT. */
bl_code bl_jinja_compile(const char *src, size_t n, bl_jinja **ret, bl_err *err) BL_MUST_CHECK;
void bl_jinja_free(bl_jinja *t);

/* Appends the rendering with the members of `context` (an object) as variables. raise_exception() gives
 * BL_EINVAL with its message, other failures of the template BL_EINVAL with the line, ceilings BL_ELIMIT.
 * limits may be NULL. */
bl_code bl_jinja_render(const bl_jinja *t, const json_t *context, const bl_jinja_limits *limits, bl_buf *ret,
                        bl_err *err) BL_MUST_CHECK;

/* The same, and where each byte came from: *ret_marks gets one byte per byte appended to *ret, 0 when it is
 * the template's own text, 1 when it came from `context` (through whatever slicing, trimming or joining). The
 * members of `trusted` (an object or NULL; `context` wins over equal names) are variables that count as the
 * template's own: bos_token and its like. So do the strings of `context` that are elements of `own` (an array
 * or NULL; the same json_t, not an equal one): words that the caller chose, a role for one. */
bl_code bl_jinja_render_marked(const bl_jinja *t, const json_t *context, const json_t *trusted,
                               const json_t *own, const bl_jinja_limits *limits, bl_buf *ret,
                               bl_buf *ret_marks, bl_err *err) BL_MUST_CHECK;

/* Does the template look at `name` as a variable anywhere? Tells what a template knows about ("tools",
 * "enable_thinking"). */
bool bl_jinja_mentions(const bl_jinja *t, const char *name);

#endif
