/* The small trained model with a draft head (../shared/fixtures/small/qwen3_5-doc), for tests that need
 * weights with real statistics. They skip, and say so, where it is not there. Include behind cmocka_all.h.
 */
#ifndef BL_TESTS_UNIT_TRAINED_MODEL_H
#define BL_TESTS_UNIT_TRAINED_MODEL_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Its folder into path, and its expected.json, which the caller gives back (json_decref): "valid_ids" is text
 * it was not trained on, "greedy" a list of prompts with their answers. Skips the test otherwise. */
static json_t *open_trained(char *path, size_t cap) {
    const char *shared = getenv("BL_SHARED");
    char file[600];
    snprintf(path, cap, "%s/fixtures/small/qwen3_5-doc", shared ? shared : BL_SOURCE_DIR "/../shared");
    snprintf(file, sizeof file, "%.580s/expected.json", path);
    json_t *j = json_load_file(file, 0, NULL);
    if (!j) {
        print_message("%s is not there: skipped\n", file);
        skip();
    }
    return j;
}

/* The first n numbers of a list, which has them. */
static void read_ids(const json_t *list, int32_t *ret, size_t n) {
    assert_true(json_array_size(list) >= n);
    for (size_t i = 0; i < n; i++) {
        ret[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
}

#endif
