/* Every allocation of opening a chat, rendering a conversation and streaming an answer fails in turn: each
 * run must say so, leave the outputs alone and leak nothing. */
#include "../unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "chat/chat.h"
#include "chat/parser.h"
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

/* ---- the parser ---- */

static bl_code swallow(void *user, const bl_parsed *ev, bl_err *err) {
    (void)err;
    *(size_t *)user += ev->n;
    return BL_OK;
}

static bl_code parse(bl_dialect d, const char *text) {
    size_t n_given = 0;
    const bl_parser_options o = {.dialect = d, .calls = true, .sink = swallow, .user = &n_given};
    bl_parser *p = NULL;
    bl_code rc = bl_parser_new(&o, &p, NULL);
    assert_true((rc == BL_OK) == (p != NULL));
    for (size_t i = 0; i < strlen(text) && rc == BL_OK; i++) {
        rc = bl_parser_feed(p, text + i, 1, NULL);
    }
    if (p && rc != BL_OK) { /* it gives nothing more */
        size_t before = n_given;
        assert_int_equal(bl_parser_feed(p, "more", 4, NULL), BL_OK);
        assert_int_equal(bl_parser_finish(p, NULL), BL_OK);
        assert_int_equal(n_given, before);
    } else if (p) {
        rc = bl_parser_finish(p, NULL);
    }
    bl_parser_free(p);
    return rc;
}

static void parsing_fails(void **state) {
    (void)state;
    static const struct {
        bl_dialect d;
        const char *text;
    } rows[] = {
        {BL_DIALECT_QWEN_XML, "<think>a</think>b<tool_call>\n<function=f>\n<parameter=k>\nv\"\n</parameter>\n"
                              "</function>\n</tool_call>c<tool_call>x"},
        {BL_DIALECT_GEMMA4,
         "<|channel>thought\na<channel|>b<|tool_call>call:f{k:<|\"|>v<|\"|>,n:[1,{}]}<tool_call|>"},
        {BL_DIALECT_HARMONY, "<|start|>assistant<|channel|>analysis<|message|>a<|end|><|start|>assistant "
                             "to=functions.f<|channel|>commentary<|message|>{\"k\": 1}<|call|>"},
    };
    uint64_t n_fired = 0;
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        for (uint64_t n = 1; faults_arm(n, FAULT_ALLOC, false); n++) {
            uint64_t live = atomic_load(&faults.n_live);
            bl_code rc = parse(rows[i].d, rows[i].text);
            faults.kinds = 0;
            assert_int_equal(atomic_load(&faults.n_live), live);
            assert_int_equal(rc, atomic_load(&faults.fired) ? BL_ENOMEM : BL_OK);
            n_fired += atomic_load(&faults.fired);
        }
    }
    assert_true(n_fired >= 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(parsing_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
