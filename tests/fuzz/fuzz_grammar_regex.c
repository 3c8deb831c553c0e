/* Patterns, raw and as a schema's. Whatever comes: an error with a message, or an automaton within its limits
 * along which one can always go on. */
#include <stdint.h>
#include <string.h>

#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_grammar *g = NULL;
    bl_err err = {0};
    if (size < 1 || size > 4096) {
        return 0;
    }
    const char *pattern = (const char *)data + 1;
    bl_code rc;
    if (data[0] & 1) {
        json_t *s = json_pack("{s:s, s:s%}", "type", "string", "pattern", pattern, size - 1);
        if (!s) { /* no UTF-8 */
            return 0;
        }
        rc = bl_grammar_from_json_schema(s, true, &g, &err);
        json_decref(s);
    } else {
        rc = bl_grammar_from_regex(pattern, size - 1, &g, &err);
    }
    fuzz_judge(rc, g, &err, data, size);
    return 0;
}
