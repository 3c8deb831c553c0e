/* Every allocation on the way from a pattern or a schema to a mask fails in turn: each run must say so, leave
 * the outputs alone and leak nothing; and a mask allocates nothing at all. */
#include "../unit/cmocka_all.h"

#include <string.h>

#include "base/base.h"
#include "faults.h"
#include "formats/json.h"
#include "grammar/grammar.h"

static const char *const sources[] = {
    "(ab|c){2,5}[^d]*",
    "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":9},\"p\":{\"type\":"
    "\"string\",\"pattern\":"
    "\"a+\"},\"next\":{\"$ref\":\"#\"},\"k\":{\"enum\":[1,\"x\"]}},\"additionalProperties\":true,"
    "\"required\":[\"s\"]}",
};

static bl_code compile(size_t i, const json_t *schema, bl_grammar **ret) {
    return i == 0 ? bl_grammar_from_regex(sources[0], strlen(sources[0]), ret, NULL)
                  : bl_grammar_from_json_schema(schema, true, ret, NULL);
}

/* *ret_rc is the first failure. */
static void run(size_t i, const json_t *schema, bl_code *ret_rc) {
    static const char bytes[] = "abcd{\"s}: ,";
    const uint32_t n = sizeof bytes - 1;
    uint32_t lens[sizeof bytes], mask[1] = {0};
    bl_grammar *g = NULL;
    bl_grammar_vocab *v = NULL;
    bl_grammar_state *s = NULL;
    for (uint32_t k = 0; k < n; k++) {
        lens[k] = 1;
    }
    *ret_rc = compile(i, schema, &g);
    assert_true((*ret_rc == BL_OK) == (g != NULL));
    if (*ret_rc == BL_OK) {
        *ret_rc = bl_grammar_vocab_from_bytes(bytes, lens, n, &v, NULL);
        assert_true((*ret_rc == BL_OK) == (v != NULL));
    }
    if (*ret_rc == BL_OK) {
        *ret_rc = bl_grammar_state_new(g, v, &s, NULL);
        assert_true((*ret_rc == BL_OK) == (s != NULL));
    }
    if (*ret_rc == BL_OK) {
        bool may_end, is_free;
        uint64_t calls = atomic_load(&faults.n_calls);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(bl_grammar_state_mask(s, mask, &may_end, &is_free, NULL), BL_OK);
            assert_true(mask[0] != 0);
            for (int32_t id = 0; id < (int32_t)n; id++) {
                if (mask[0] >> id & 1u) {
                    assert_int_equal(bl_grammar_state_accept(s, id, NULL), BL_OK);
                    break;
                }
            }
        }
        assert_int_equal(atomic_load(&faults.n_calls), calls);
    }
    bl_grammar_state_free(s);
    bl_grammar_vocab_unref(v);
    bl_grammar_unref(g);
}

static void test_allocations_fail(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(sources); i++) {
        json_t *schema = NULL;
        if (i > 0) {
            assert_int_equal(bl_json_parse(sources[i], strlen(sources[i]), 32, "s", &schema, NULL), BL_OK);
        }
        uint64_t n = 1;
        for (; faults_arm(n, FAULT_ALLOC, false); n++) {
            uint64_t live = atomic_load(&faults.n_live);
            bl_code rc = BL_OK;
            run(i, schema, &rc);
            faults.kinds = 0;
            assert_int_equal(atomic_load(&faults.n_live), live);
            if (atomic_load(&faults.fired) && rc != BL_ENOMEM) {
                fail_msg("%s: allocation %llu failing gives %s", sources[i], (unsigned long long)n,
                         bl_code_name(rc));
            }
        }
        print_message("%zu: %llu allocations\n", i, (unsigned long long)n - 1);
        assert_true(n > 30);
        json_decref(schema);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocations_fail)};
    return cmocka_run_group_tests_name("grammar_faults", tests, NULL, NULL);
}
