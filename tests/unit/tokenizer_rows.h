/* Reading tokenizers and the reference's rows in tests. */
#ifndef BL_TESTS_TOKENIZER_ROWS_H
#define BL_TESTS_TOKENIZER_ROWS_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmocka_all.h"

#include "base/base.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "formats/tokenizer.h"

#define FIXTURES BL_SOURCE_DIR "/tests/fixtures/tokenizers/"

static const char *const fixture_names[] = {"qwen",  "qwen35", "llama3",    "o200k", "smollm",
                                            "gemma", "llama2", "metaspace", "added"};

static inline void read_text(const char *path, bl_buf *ret) {
    bl_err err = {0};
    if (bl_file_read(path, (size_t)64 << 20, ret, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
}

static inline bl_tokenizer *open_text(const char *text, size_t n) {
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    if (bl_tokenizer_from_json(text, n, &t, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return t;
}

static inline bl_tokenizer *open_fixture(const char *name) {
    char path[512];
    bl_buf text;
    snprintf(path, sizeof path, FIXTURES "%s.tokenizer.json", name);
    read_text(path, &text);
    bl_tokenizer *t = open_text(bl_buf_str(&text), text.len);
    bl_buf_done(&text);
    return t;
}

/* Rows hold NUL characters. */
static inline json_t *read_rows(const char *path) {
    bl_buf text;
    json_error_t why;
    read_text(path, &text);
    json_t *rows = json_loadb(bl_buf_str(&text), text.len, JSON_ALLOW_NUL, &why);
    bl_buf_done(&text);
    if (!rows) {
        fail_msg("%s: %s", path, why.text);
    }
    return rows;
}

static inline void encode_text(const bl_tokenizer *t, const char *s, size_t n, unsigned flags, bl_ids *ret) {
    bl_err err = {0};
    bl_ids_init(ret, (size_t)1 << 26);
    if (bl_tokenizer_encode(t, s, n, flags, ret, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
}

static inline void decode_ids(const bl_tokenizer *t, const int32_t *ids, size_t n, bool skip, bl_buf *ret) {
    bl_err err = {0};
    bl_buf_init(ret, (size_t)1 << 28);
    if (bl_tokenizer_decode(t, ids, n, skip, ret, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
}

/* Every token's bytes, one after the other, as a stream gives them. */
static inline void stream_ids(const bl_tokenizer *t, const int32_t *ids, size_t n, bool skip, bl_buf *ret) {
    bl_buf_init(ret, (size_t)1 << 28);
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(bl_tokenizer_token_bytes(t, ids[i], first, skip, ret, NULL), BL_OK);
        first = first && skip && bl_tokenizer_is_special(t, ids[i]);
    }
}

static inline size_t ids_of(const json_t *list, int32_t *ret, size_t max) {
    size_t n = json_array_size(list);
    assert_true(json_is_array(list) && n <= max);
    for (size_t i = 0; i < n; i++) {
        ret[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return n;
}

static inline void check_ids(const char *what, size_t row, const bl_ids *found, const json_t *want) {
    bool same = found->n == json_array_size(want);
    size_t i = 0;
    while (same && i < found->n && found->ids[i] == json_integer_value(json_array_get(want, i))) {
        i++;
    }
    if (!same || i < found->n) {
        fail_msg("%s, row %zu: %zu ids for %zu, the first difference at %zu", what, row, found->n,
                 json_array_size(want), i);
    }
}

static inline void check_text(const char *what, size_t row, const bl_buf *found, const json_t *want) {
    if (found->len != json_string_length(want) ||
        memcmp(bl_buf_str(found), json_string_value(want), found->len) != 0) {
        fail_msg("%s, row %zu: found '%s', expected '%s'", what, row, bl_buf_str(found),
                 json_string_value(want));
    }
}

static inline void check_encode(const bl_tokenizer *t, const char *what, size_t row, const json_t *text,
                                unsigned flags, const json_t *want) {
    bl_ids ids;
    encode_text(t, json_string_value(text), json_string_length(text), flags, &ids);
    check_ids(what, row, &ids, want);
    bl_ids_done(&ids);
}

static inline void check_decode(const bl_tokenizer *t, const char *what, size_t row, const json_t *o) {
    static const char *const keys[] = {"decoded", "decoded_skip"};
    int32_t ids[4096];
    size_t n = ids_of(json_object_get(o, "ids"), ids, BL_COUNTOF(ids));
    for (int skip = 0; skip < 2; skip++) {
        bl_buf text, stream;
        decode_ids(t, ids, n, skip != 0, &text);
        check_text(what, row, &text, json_object_get(o, keys[skip]));
        stream_ids(t, ids, n, skip != 0, &stream);
        if (bl_utf8_valid(bl_buf_str(&stream), stream.len)) {
            check_text(what, row, &stream, json_object_get(o, keys[skip]));
        } else {
            assert_non_null(strstr(bl_buf_str(&text), "\xEF\xBF\xBD"));
        }
        bl_buf_done(&text);
        bl_buf_done(&stream);
    }
}

/* All rows of encoding: {text, ids, ids_special, decoded, decoded_skip} and, where present, ids_plain. */
static inline void check_rows(const bl_tokenizer *t, const char *what, const json_t *rows) {
    assert_true(json_array_size(rows) > 0);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *o = json_array_get(rows, i), *text = json_object_get(o, "text");
        check_encode(t, what, i, text, BL_ENCODE_SPECIAL_PARSE, json_object_get(o, "ids"));
        check_encode(t, what, i, text, BL_ENCODE_SPECIAL_PARSE | BL_ENCODE_SPECIAL_ADD,
                     json_object_get(o, "ids_special"));
        if (json_object_get(o, "ids_plain")) {
            check_encode(t, what, i, text, 0, json_object_get(o, "ids_plain"));
        }
        check_decode(t, what, i, o);
    }
}

/* Random valid UTF-8, all planes, with runs of ordinary text in between. */
static inline size_t random_text(uint64_t *state, char *ret, size_t max) {
    static const char *const parts[] = {" ",       "  ",         "\n",           "\r\n",
                                        "keep",    "lighthouse", "It's ",        "123",
                                        "\t",      "e\xCC\x81",  "\xE7\x81\xAF", "\xF0\x9F\x98\x80",
                                        "<|end|>", "=====",      "don't",        "\xC5\xBF"};
    size_t n = 0, want = bl_rng_next(state) % 40;
    for (size_t i = 0; i < want && n + 16 < max; i++) {
        uint64_t r = bl_rng_next(state);
        if (r & 1) {
            const char *part = parts[(r >> 8) % BL_COUNTOF(parts)];
            memcpy(ret + n, part, strlen(part));
            n += strlen(part);
            continue;
        }
        static const uint32_t tops[] = {0x80, 0x800, 0x3400, 0x10000, 0x110000};
        uint32_t cp = (uint32_t)((r >> 32) % tops[(r >> 1) % BL_COUNTOF(tops)]);
        n += bl_utf8_encode(cp >= 0xD800 && cp < 0xE000 ? 0x41 : cp, ret + n);
    }
    return n;
}

#endif
