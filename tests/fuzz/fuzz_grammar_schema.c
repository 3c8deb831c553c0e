/* Schemas as JSON text behind a byte that says whether they are strict. Whatever comes: an error with a
 * message, or an automaton within its limits along which one can always go on. */
#include <stdint.h>
#include <string.h>

#include "formats/json.h"
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_grammar *g = NULL;
    json_t *s = NULL;
    bl_err err = {0};
    if (size < 1 || size > 65536 ||
        bl_json_parse((const char *)data + 1, size - 1, 64, "s", &s, &err) != BL_OK) {
        return 0;
    }
    bl_code rc = bl_grammar_from_json_schema(s, data[0] & 1, &g, &err);
    json_decref(s);
    fuzz_judge(rc, g, &err, data, size);
    return 0;
}
