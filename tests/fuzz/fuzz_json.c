/* JSON texts: refused with a message of ours, or a value no deeper than allowed. The first byte picks the
 * depth. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Recursion is bounded by the very depth that is checked. */
static uint32_t depth_of(json_t *v) {
    uint32_t deepest = 0;
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            uint32_t d = depth_of(json_array_get(v, i));
            deepest = BL_MAX(deepest, d);
        }
        return deepest + 1;
    }
    if (json_is_object(v)) {
        const char *key;
        json_t *child;
        json_object_foreach(v, key, child) {
            uint32_t d = depth_of(child);
            deepest = BL_MAX(deepest, d);
        }
        return deepest + 1;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    uint32_t max_depth = data[0] % 64;
    json_t *v = NULL;
    bl_err err = {0};
    if (bl_json_parse((const char *)data + 1, size - 1, max_depth, "fuzz", &v, &err) != BL_OK) {
        BL_ASSERT(v == NULL && err.code != BL_OK && err.code != BL_EINTERNAL &&
                  strncmp(err.msg, "fuzz", 4) == 0);
        return 0;
    }
    BL_ASSERT(depth_of(v) <= max_depth);
    BL_ASSERT(memchr(data + 1, 0, size - 1) == NULL);
    json_decref(v);
    return 0;
}
