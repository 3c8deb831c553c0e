/* Every allocation of loading a tokenizer and of encoding and decoding fails in turn: each run must say so,
 * leave the outputs alone and leak nothing. */
#include "../unit/tokenizer_rows.h"

#include "faults.h"

/* Loads the file and sends one text through; *ret_rc is the first failure. */
static void run(const bl_buf *file, bl_code *ret_rc) {
    static const char text[] = "The lighthouse  doesn't sleep \xF0\x9F\x98\x80 e\xCC\x81 12<|end|>\n\n";
    bl_tokenizer *t = NULL;
    bl_ids ids;
    bl_buf out;
    bl_ids_init(&ids, 1000);
    bl_buf_init(&out, 1000);
    *ret_rc = bl_tokenizer_from_json(bl_buf_str(file), file->len, &t, NULL);
    assert_true((*ret_rc == BL_OK) == (t != NULL));
    if (t) {
        *ret_rc = bl_tokenizer_encode(t, text, sizeof text - 1, BL_ENCODE_SPECIAL_PARSE, &ids, NULL);
        assert_true(*ret_rc == BL_OK || ids.n == 0);
    }
    if (*ret_rc == BL_OK) {
        *ret_rc = bl_tokenizer_decode(t, ids.ids, ids.n, false, &out, NULL);
        assert_true(*ret_rc == BL_OK || out.len == 0);
    }
    if (*ret_rc == BL_OK) {
        *ret_rc = bl_tokenizer_token_bytes(t, ids.ids[0], true, false, &out, NULL);
    }
    bl_tokenizer_free(t);
    bl_ids_done(&ids);
    bl_buf_done(&out);
}

static void test_allocations_fail(void **state) {
    static const char *const names[] = {"qwen", "gemma", "metaspace", "added"};
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(names); k++) {
        char path[512];
        bl_buf file;
        snprintf(path, sizeof path, FIXTURES "%s.tokenizer.json", names[k]);
        read_text(path, &file);
        uint64_t n = 1;
        for (; faults_arm(n, FAULT_ALLOC, false); n++) {
            uint64_t live = atomic_load(&faults.n_live);
            bl_code rc = BL_OK;
            run(&file, &rc);
            faults.kinds = 0;
            assert_int_equal(atomic_load(&faults.n_live), live);
            /* The one allocation that may fail without harm is that for shrinking a table. */
            if (atomic_load(&faults.fired) && rc != BL_ENOMEM && rc != BL_OK) {
                fail_msg("%s: allocation %llu failing gives %s", names[k], (unsigned long long)n,
                         bl_code_name(rc));
            }
        }
        print_message("%s: %llu allocations\n", names[k], (unsigned long long)n - 1);
        assert_true(n > 20);
        bl_buf_done(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
