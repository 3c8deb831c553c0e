/* chat/stream: the text that comes out does not depend on how the tokens cut it; stop strings and broken
 * UTF-8. */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "chat/stream.h"

static bl_tokenizer *tok;

static int load(void **state) {
    (void)state;
    bl_buf text;
    bl_err err;
    if (bl_file_read(BL_SOURCE_DIR "/tests/fixtures/tokenizers/qwen.tokenizer.json", 1 << 20, &text, &err) !=
            BL_OK ||
        bl_tokenizer_from_json(text.data, text.len, &tok, &err) != BL_OK) {
        printf("%s\n", err.msg);
        return -1;
    }
    bl_buf_done(&text);
    return 0;
}

static int unload(void **state) {
    (void)state;
    bl_tokenizer_free(tok);
    return 0;
}

/* The token of one byte: its character in the byte-level alphabet. */
static int32_t byte_id(unsigned char b) {
    uint32_t n = 0;
    for (unsigned k = 0; k < 256; k++) {
        bool plain = (k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174;
        uint32_t cp = plain ? k : 256 + n++;
        if (k == b) {
            char s[4];
            return bl_tokenizer_id(tok, s, bl_utf8_encode(cp, s));
        }
    }
    return -1;
}

/* Cuts text into tokens: mode 0 one per byte, 1 as the tokenizer does, 2 random pieces of vocabulary and
 * bytes. */
static void cut(const char *text, size_t n, int mode, uint64_t *rng, bl_ids *ids) {
    bl_ids_reset(ids);
    if (mode == 1 && bl_utf8_valid(text, n)) {
        assert_int_equal(bl_tokenizer_encode(tok, text, n, 0, ids, NULL), BL_OK);
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t len = mode == 2 ? 1 + bl_rng_next(rng) % 6 : 1;
        int32_t id = -1;
        for (; len > 1; len--) { /* the longest piece of plain ASCII that is a token */
            bool ascii = i + len <= n;
            for (size_t k = 0; k < len && ascii; k++) {
                ascii = text[i + k] > 32 && text[i + k] < 127;
            }
            id = ascii ? bl_tokenizer_id(tok, text + i, len) : -1;
            if (id >= 0 && !bl_tokenizer_is_special(tok, id)) {
                break;
            }
            id = -1;
        }
        len = id >= 0 ? len : 1;
        id = id >= 0 ? id : byte_id((unsigned char)text[i]);
        assert_true(id >= 0);
        assert_int_equal(bl_ids_push(ids, id, NULL), BL_OK);
        i += len;
    }
}

static bool stream_all(const bl_ids *ids, const char *const *stops, size_t n_stops, bl_buf *out) {
    bl_stream *s;
    bl_err err = {0};
    bool stopped = false;
    bl_buf_reset(out);
    assert_int_equal(bl_stream_new(tok, stops, n_stops, true, &s, &err), BL_OK);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = out->len;
        assert_int_equal(bl_stream_push(s, ids->ids[i], out, &stopped, &err), BL_OK);
        assert_true(bl_utf8_valid(bl_buf_str(out) + before, out->len - before)); /* each piece may be shown */
    }
    assert_int_equal(bl_stream_finish(s, out, &err), BL_OK);
    bl_stream_free(s);
    return stopped;
}

/* What the text becomes, from the definitions: invalid UTF-8 replaced, then cut before the stop string that
 * ends first. */
static void expected_text(const char *text, size_t n, const char *const *stops, size_t n_stops, bl_buf *out) {
    bl_buf_reset(out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = bl_utf8_decode(text + i, n - i, &cp);
        if (len > 0) {
            assert_int_equal(bl_buf_append(out, text + i, len, NULL), BL_OK);
        } else {
            len = bl_utf8_invalid_len(text + i, n - i);
            assert_int_equal(bl_buf_append_str(out, "\xEF\xBF\xBD", NULL), BL_OK);
        }
        i += len;
    }
    for (size_t end = 1; end <= out->len; end++) {
        size_t start = SIZE_MAX;
        for (size_t k = 0; k < n_stops; k++) {
            size_t len = strlen(stops[k]);
            if (len <= end && memcmp(out->data + end - len, stops[k], len) == 0) {
                start = BL_MIN(start, end - len);
            }
        }
        if (start != SIZE_MAX) {
            out->len = start;
            out->data[start] = '\0';
            return;
        }
    }
}

static void same_text_for_every_cut(void **state) {
    (void)state;
    static const char *const alphabet[] = {"a",        "b",    "ab",       "\n", "</s>",         " ",
                                           "stop",     "STOP", "\xC3\xA9", "é",  "\xE4\xBD\xA0", "🎉",
                                           "\xF0\x9F", "\xFF", "\xC3",     "aab"};
    static const char *const words[] = {"a", "b", "\n", "st", "op", "</", "s>", "é", "🎉", "aab", "ST"};
    uint64_t rng = 20260801;
    bl_ids ids;
    bl_buf want, got, text;
    bl_ids_init(&ids, 1 << 20);
    bl_buf_init(&want, 1 << 20);
    bl_buf_init(&got, 1 << 20);
    bl_buf_init(&text, 1 << 20);
    for (int round = 0; round < 3000; round++) {
        char store[6][32] = {{0}};
        const char *stops[6];
        size_t n_stops = bl_rng_next(&rng) % 7;
        for (size_t k = 0; k < n_stops; k++) {
            for (size_t parts = 1 + bl_rng_next(&rng) % 3; parts > 0; parts--) {
                strncat(store[k], words[bl_rng_next(&rng) % BL_COUNTOF(words)], 10);
            }
            stops[k] = store[k];
        }
        bl_buf_reset(&text);
        for (size_t parts = bl_rng_next(&rng) % 40; parts > 0; parts--) {
            assert_int_equal(
                bl_buf_append_str(&text, alphabet[bl_rng_next(&rng) % BL_COUNTOF(alphabet)], NULL), BL_OK);
        }
        expected_text(bl_buf_str(&text), text.len, stops, n_stops, &want);
        for (int mode = 0; mode < 4; mode++) {
            cut(bl_buf_str(&text), text.len, BL_MIN(mode, 2), &rng, &ids);
            (void)stream_all(&ids, stops, n_stops, &got);
            if (got.len != want.len || memcmp(bl_buf_str(&got), bl_buf_str(&want), got.len) != 0) {
                fail_msg("round %d mode %d: '%s' instead of '%s' from '%s'", round, mode, bl_buf_str(&got),
                         bl_buf_str(&want), bl_buf_str(&text));
            }
        }
    }
    bl_ids_done(&ids);
    bl_buf_done(&want);
    bl_buf_done(&got);
    bl_buf_done(&text);
}

static void push_text(bl_stream *s, const char *text, bl_buf *out, bool *stopped) {
    for (const char *p = text; *p; p++) {
        assert_int_equal(bl_stream_push(s, byte_id((unsigned char)*p), out, stopped, NULL), BL_OK);
    }
}

static void gives_out_as_soon_as_certain(void **state) {
    (void)state;
    bl_stream *s;
    bl_buf out;
    bool stopped;
    static const char *const stops[] = {"END", "ab🎉"};
    bl_buf_init(&out, 1 << 10);
    assert_int_equal(bl_stream_new(tok, stops, 2, true, &s, NULL), BL_OK);
    push_text(s, "x\xF0\x9F\x8E", &out, &stopped); /* three of four bytes */
    assert_string_equal(bl_buf_str(&out), "x");
    push_text(s, "\x89", &out, &stopped);
    assert_string_equal(bl_buf_str(&out), "x🎉");
    push_text(s, "EN", &out, &stopped);
    assert_string_equal(bl_buf_str(&out), "x🎉");
    push_text(s, "E", &out, &stopped);
    assert_string_equal(bl_buf_str(&out), "x🎉EN");
    push_text(s, "N", &out, &stopped);
    assert_false(stopped);
    push_text(s, "D", &out, &stopped);
    assert_true(stopped);
    assert_string_equal(bl_buf_str(&out), "x🎉EN");
    push_text(s, "more", &out, &stopped);
    assert_true(stopped);
    assert_int_equal(bl_stream_finish(s, &out, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&out), "x🎉EN");
    bl_stream_free(s);

    bl_buf_reset(&out);
    assert_int_equal(bl_stream_new(tok, stops, 2, true, &s, NULL), BL_OK);
    push_text(s, "aEN\xE4\xBD", &out, &stopped);
    assert_string_equal(bl_buf_str(&out), "a");
    assert_int_equal(bl_stream_finish(s, &out, NULL),
                     BL_OK); /* what was held, and one replacement for the cut character */
    assert_string_equal(bl_buf_str(&out), "aEN\xEF\xBF\xBD");
    bl_stream_free(s);
    bl_buf_done(&out);
}

static void drops_or_shows_control_tokens(void **state) {
    (void)state;
    int32_t end = bl_tokenizer_id(tok, "<|end|>", 7);
    assert_true(end >= 0);
    for (int skip = 0; skip < 2; skip++) {
        bl_stream *s;
        bl_buf out;
        bool stopped;
        bl_buf_init(&out, 1 << 10);
        assert_int_equal(bl_stream_new(tok, NULL, 0, skip, &s, NULL), BL_OK);
        push_text(s, "a", &out, &stopped);
        assert_int_equal(bl_stream_push(s, end, &out, &stopped, NULL), BL_OK);
        push_text(s, "b", &out, &stopped);
        assert_int_equal(bl_stream_finish(s, &out, NULL), BL_OK);
        assert_string_equal(bl_buf_str(&out), skip ? "ab" : "a<|end|>b");
        bl_stream_free(s);
        bl_buf_done(&out);
    }
}

static void refuses_bad_stops(void **state) {
    (void)state;
    bl_stream *s;
    bl_err err = {0};
    char longest[BL_STOP_MAX_BYTES + 2];
    const char *many[BL_STOP_MAX_STRINGS + 1];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (size_t i = 0; i < BL_COUNTOF(many); i++) {
        many[i] = "x";
    }
    assert_int_equal(bl_stream_new(tok, (const char *[]){""}, 1, true, &s, &err), BL_EINVAL);
    assert_int_equal(bl_stream_new(tok, (const char *[]){"\xFF"}, 1, true, &s, &err), BL_EINVAL);
    assert_int_equal(bl_stream_new(tok, (const char *[]){longest}, 1, true, &s, &err), BL_EINVAL);
    assert_non_null(strstr(err.msg, "1025 bytes"));
    assert_int_equal(bl_stream_new(tok, many, BL_COUNTOF(many), true, &s, &err), BL_EINVAL);
    longest[BL_STOP_MAX_BYTES] = '\0';
    assert_int_equal(bl_stream_new(tok, (const char *[]){longest}, 1, true, &s, &err), BL_OK);
    bl_buf out;
    bool stopped;
    bl_buf_init(&out, 1 << 12);
    push_text(s, longest, &out, &stopped);
    assert_true(stopped);
    assert_int_equal(out.len, 0);
    bl_buf_done(&out);
    bl_stream_free(s);
}

/* Control tokens for the parser come with their sign, between texts and not in them. */
static void shown_markers(void **state) {
    (void)state;
    const char *const stops[] = {"STOP", "|end"};
    const int32_t end = bl_tokenizer_id(tok, "<|end|>", 7), start = bl_tokenizer_id(tok, "<|start|>", 9);
    assert_true(end >= 0 && bl_tokenizer_is_special(tok, end) && start >= 0);
    const int32_t shown[] = {end};
    const int32_t tokens[] = {byte_id('S'),  byte_id('T'), end,           byte_id('O'), byte_id('P'), start,
                              byte_id(0xc3), end,          byte_id(0xa9), byte_id('S'), end};
    bl_stream *s;
    bl_buf out;
    bool stopped = false;
    bl_buf_init(&out, 1000);
    assert_int_equal(bl_stream_new(tok, stops, 2, true, &s, NULL), BL_OK);
    bl_stream_show(s, shown, 1);
    for (size_t i = 0; i < BL_COUNTOF(tokens); i++) {
        assert_int_equal(bl_stream_push(s, tokens[i], &out, &stopped, NULL), BL_OK);
        assert_false(stopped);
    }
    assert_int_equal(bl_stream_finish(s, &out, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&out), "ST\xff<|end|>OP\xef\xbf\xbd\xff<|end|>\xef\xbf\xbdS\xff<|end|>");
    bl_stream_free(s);
    bl_buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shown_markers),
        cmocka_unit_test(same_text_for_every_cut),
        cmocka_unit_test(gives_out_as_soon_as_certain),
        cmocka_unit_test(drops_or_shows_control_tokens),
        cmocka_unit_test(refuses_bad_stops),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
