/* Every allocation of opening a chat, rendering a conversation and streaming an answer fails in turn: each
 * run must say so, leave the outputs alone and leak nothing. */
#include "../unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "chat/chat.h"
#include "chat/stream.h"

#include "faults.h"

static bl_code answer(const bl_chat *c, const bl_ids *ids) {
    static const char *const stops[] = {"END", "\n\n"};
    bl_stream *s = NULL;
    bl_buf out;
    bool stopped = false;
    bl_buf_init(&out, 1000);
    bl_code rc = bl_stream_new(bl_chat_tokenizer(c), stops, 2, false, &s, NULL);
    for (size_t i = 0; i < ids->n && rc == BL_OK; i++) {
        rc = bl_stream_push(s, ids->ids[i], &out, &stopped, NULL);
    }
    if (rc == BL_OK) {
        rc = bl_stream_finish(s, &out, NULL);
    }
    bl_stream_free(s);
    bl_buf_done(&out);
    return rc;
}

static bl_code run(const bl_checkpoint *ckpt, const json_t *messages) {
    bl_chat *c = NULL;
    bl_ids ids;
    bl_ids_init(&ids, 1000);
    bl_code rc = bl_chat_open(ckpt, &c, NULL);
    assert_true((rc == BL_OK) == (c != NULL));
    if (c) {
        rc = bl_chat_render(c, messages, NULL, NULL, true, false, &ids, NULL);
        assert_true(rc == BL_OK || ids.n == 0);
    }
    if (rc == BL_OK) {
        rc = answer(c, &ids);
    }
    bl_ids_done(&ids);
    bl_chat_free(c);
    return rc;
}

/* Allocations of loading the tokenizer that may fail without harm: shrinking tables, compiling a regular
 * expression further. */
static uint64_t harmless_in_tokenizer(void) {
    bl_buf text;
    uint64_t n_harmless = 0;
    assert_int_equal(
        bl_file_read(BL_SOURCE_DIR "/tests/fixtures/tiny-chat/tokenizer.json", 1 << 20, &text, NULL), BL_OK);
    for (uint64_t n = 1; faults_arm(n, FAULT_ALLOC, false); n++) {
        bl_tokenizer *t = NULL;
        bl_code rc = bl_tokenizer_from_json(text.data, text.len, &t, NULL);
        faults.kinds = 0;
        n_harmless += atomic_load(&faults.fired) && rc == BL_OK;
        bl_tokenizer_free(t);
    }
    bl_buf_done(&text);
    return n_harmless;
}

static void allocations_fail(void **state) {
    (void)state;
    uint64_t allowed = harmless_in_tokenizer();
    bl_checkpoint *ckpt;
    bl_err err = {0};
    if (bl_checkpoint_open(BL_SOURCE_DIR "/tests/fixtures/tiny-chat", &ckpt, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    json_t *messages = json_pack("[{s:s,s:[{s:s,s:s},{s:s,s:s}]}]", "role", "user", "content", "type", "text",
                                 "text", "Hello", "type", "text", "text", "there <|im_end|>");
    assert_non_null(messages);
    uint64_t n = 1, n_harmless = 0;
    for (; faults_arm(n, FAULT_ALLOC, false); n++) {
        uint64_t live = atomic_load(&faults.n_live);
        bl_code rc = run(ckpt, messages);
        faults.kinds = 0;
        assert_int_equal(atomic_load(&faults.n_live), live);
        n_harmless += atomic_load(&faults.fired) && rc == BL_OK;
        if (atomic_load(&faults.fired) && rc != BL_ENOMEM && rc != BL_OK) {
            fail_msg("allocation %llu failing gives %s", (unsigned long long)n, bl_code_name(rc));
        }
    }
    print_message("%llu allocations\n", (unsigned long long)n - 1);
    assert_true(n > 50);
    assert_int_equal(n_harmless, allowed);
    json_decref(messages);
    bl_checkpoint_free(ckpt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
