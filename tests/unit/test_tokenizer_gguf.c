/* Tokenizers inside GGUF, built in memory from the fixtures: the same ids as the tokenizer.json they come
 * from, the rules of merging by score, and what is refused. */
#include <math.h>

#include "tokenizer_rows.h"

#include "formats/gguf.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

typedef struct {
    bl_buf keys;
    uint64_t n_keys;
} builder;

static void put(bl_buf *b, uint64_t v, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        assert_int_equal(bl_buf_append_char(b, (char)(v >> 8 * i), NULL), BL_OK);
    }
}

static void put_str(bl_buf *b, const char *s, size_t n) {
    put(b, n, 8);
    assert_int_equal(bl_buf_append(b, s, n, NULL), BL_OK);
}

static bl_buf *key(builder *g, const char *name, uint32_t type) {
    put_str(&g->keys, name, strlen(name));
    put(&g->keys, type, 4);
    g->n_keys++;
    return &g->keys;
}

static void start(builder *g, const char *model, const char *pre) {
    *g = (builder){0};
    bl_buf_init(&g->keys, (size_t)16 << 20);
    put_str(key(g, "general.architecture", STRING), "llama", 5);
    put_str(key(g, "tokenizer.ggml.model", STRING), model, strlen(model));
    if (pre) {
        put_str(key(g, "tokenizer.ggml.pre", STRING), pre, strlen(pre));
    }
}

static bl_buf *array(builder *g, const char *name, uint32_t type, uint64_t n) {
    bl_buf *b = key(g, name, ARRAY);
    put(b, type, 4);
    put(b, n, 8);
    return b;
}

static void strings(builder *g, const char *name, const char *const *s, size_t n) {
    bl_buf *b = array(g, name, STRING, n);
    for (size_t i = 0; i < n; i++) {
        put_str(b, s[i], strlen(s[i]));
    }
}

static void floats(builder *g, const char *name, const float *f, size_t n) {
    bl_buf *b = array(g, name, F32, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &f[i], 4);
        put(b, bits, 4);
    }
}

static void ints(builder *g, const char *name, const int32_t *v, size_t n) {
    bl_buf *b = array(g, name, I32, n);
    for (size_t i = 0; i < n; i++) {
        put(b, (uint32_t)v[i], 4);
    }
}

static void boolean(builder *g, const char *name, bool v) {
    put(key(g, name, BOOL), v, 1);
}

static void number(builder *g, const char *name, uint32_t v) {
    put(key(g, name, U32), v, 4);
}

static bl_code finish(builder *g, bl_tokenizer **ret, bl_err *err) {
    bl_buf file;
    bl_gguf *parsed = NULL;
    bl_buf_init(&file, (size_t)32 << 20);
    assert_int_equal(bl_buf_append_str(&file, "GGUF", NULL), BL_OK);
    put(&file, 3, 4);
    put(&file, 0, 8);
    put(&file, g->n_keys, 8);
    assert_int_equal(bl_buf_append(&file, bl_buf_str(&g->keys), g->keys.len, NULL), BL_OK);
    bl_buf_done(&g->keys);
    if (bl_gguf_parse((const uint8_t *)file.data, file.len, "test.gguf", &parsed, err) != BL_OK) {
        fail_msg("%s", err->msg);
    }
    bl_code rc = bl_tokenizer_from_gguf(parsed, ret, err);
    bl_gguf_free(parsed); /* nothing of it is used afterwards */
    memset(file.data, 0xAA, file.len);
    bl_buf_done(&file);
    return rc;
}

static bl_tokenizer *opened(builder *g) {
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    if (finish(g, &t, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return t;
}

/* ---- byte-level: the fixture's own vocabulary ---- */

typedef struct {
    json_t *tree;
    const char *tokens[2048];
    int32_t types[2048];
    size_t n;
} vocab;

static void read_vocab(const char *name, vocab *v) {
    char path[512];
    const char *content;
    json_t *id;
    *v = (vocab){0};
    snprintf(path, sizeof path, FIXTURES "%s.tokenizer.json", name);
    v->tree = read_rows(path);
    json_object_foreach(json_object_get(json_object_get(v->tree, "model"), "vocab"), content, id) {
        size_t i = (size_t)json_integer_value(id);
        assert_true(i < BL_COUNTOF(v->tokens));
        v->tokens[i] = content;
        v->types[i] = 1;
        v->n = BL_MAX(v->n, i + 1);
    }
    const json_t *added = json_object_get(v->tree, "added_tokens");
    for (size_t k = 0; k < json_array_size(added); k++) {
        const json_t *o = json_array_get(added, k);
        size_t i = (size_t)json_integer_value(json_object_get(o, "id"));
        assert_true(i < BL_COUNTOF(v->tokens));
        v->tokens[i] = json_string_value(json_object_get(o, "content"));
        v->types[i] = json_is_true(json_object_get(o, "special")) ? 3 : 4;
        v->n = BL_MAX(v->n, i + 1);
    }
}

static bl_tokenizer *byte_level_from(const char *name, const char *pre) {
    static vocab v;
    static char merges[4096][64];
    static const char *pointers[4096];
    builder g;
    read_vocab(name, &v);
    start(&g, "gpt2", pre);
    strings(&g, "tokenizer.ggml.tokens", v.tokens, v.n);
    ints(&g, "tokenizer.ggml.token_type", v.types, v.n);
    const json_t *list = json_object_get(json_object_get(v.tree, "model"), "merges");
    size_t n = json_array_size(list);
    assert_true(n < BL_COUNTOF(merges));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(list, i);
        if (json_is_string(m)) {
            snprintf(merges[i], sizeof merges[i], "%s", json_string_value(m));
        } else {
            snprintf(merges[i], sizeof merges[i], "%s %s", json_string_value(json_array_get(m, 0)),
                     json_string_value(json_array_get(m, 1)));
        }
        pointers[i] = merges[i];
    }
    strings(&g, "tokenizer.ggml.merges", pointers, n);
    number(&g, "tokenizer.ggml.bos_token_id", (uint32_t)v.n - 1);
    bl_tokenizer *t = opened(&g);
    json_decref(v.tree);
    return t;
}

static void test_byte_level_equals_json(void **state) {
    static const struct {
        const char *fixture, *pre;
        bool bos;
    } pairs[] = {{"qwen", "qwen2", false},
                 {"qwen35", "qwen35", false},
                 {"llama3", "llama-bpe", true},
                 {"llama3", "llama3", true},
                 {"o200k", "gpt-4o", false}};
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(pairs); k++) {
        char path[512];
        snprintf(path, sizeof path, FIXTURES "%s.expected.json", pairs[k].fixture);
        json_t *expected = read_rows(path);
        const json_t *rows = json_object_get(expected, "encode");
        bl_tokenizer *t = byte_level_from(pairs[k].fixture, pairs[k].pre);
        assert_true(bl_tokenizer_adds_bos(t) == pairs[k].bos);
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *o = json_array_get(rows, i), *text = json_object_get(o, "text");
            check_encode(t, pairs[k].pre, i, text, BL_ENCODE_SPECIAL_PARSE, json_object_get(o, "ids"));
            check_encode(t, pairs[k].pre, i, text, 0, json_object_get(o, "ids_plain"));
            check_decode(t, pairs[k].pre, i, o);
        }
        bl_tokenizer_free(t);
        json_decref(expected);
    }
}

/* Where words end, by pre-tokenizer: with no merges every byte is a token, so a merge across tells that they
 * do not. */
static void test_pre_tokenizers_split(void **state) {
    static const struct {
        const char *pre, *text;
        size_t n_ids; /* with the merges "1 2" and "a ,": joined unless a word ends between */
    } cases[] = {{"gpt-2", "12", 1}, {"gpt2", "12", 1},    {"smollm", "12", 2}, {"default", "12", 1},
                 {"qwen2", "12", 2}, {"qwen35", "12", 2},  {"gpt-4o", "12", 1}, {"llama-v3", "12", 1},
                 {"gpt-2", "a,", 2}, {"default", "a,", 2}, {NULL, "12", 1},     {"default", "1212", 3}};
    static const char *const tokens[] = {"1", "2", "a", ",", "12", "a,"};
    static const char *const merges[] = {"1 2", "a ,"};
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(cases); k++) {
        builder g;
        bl_ids ids;
        start(&g, "gpt2", cases[k].pre);
        strings(&g, "tokenizer.ggml.tokens", tokens, BL_COUNTOF(tokens));
        strings(&g, "tokenizer.ggml.merges", merges, BL_COUNTOF(merges));
        number(&g, "tokenizer.ggml.bos_token_id", 0);
        bl_tokenizer *t = opened(&g);
        encode_text(t, cases[k].text, strlen(cases[k].text), 0, &ids);
        if (ids.n != cases[k].n_ids) {
            fail_msg("%s '%s': %zu ids, expected %zu", cases[k].pre, cases[k].text, ids.n, cases[k].n_ids);
        }
        bl_ids_done(&ids);
        bl_tokenizer_free(t);
    }
}

/* ---- by score ---- */

static const char block[] = "\xE2\x96\x81";

/* The gemma fixture's merges are all splits in the order of the pieces; so scores falling with the id say the
 * same. */
static void test_scores_equal_ranks(void **state) {
    static vocab v;
    static float scores[2048];
    builder g;
    (void)state;
    read_vocab("gemma", &v);
    for (size_t i = 0; i < v.n; i++) {
        scores[i] = -(float)i;
        if (bl_utf8_valid(v.tokens[i], strlen(v.tokens[i])) && strncmp(v.tokens[i], "<0x", 3) == 0) {
            v.types[i] = 6;
        }
    }
    start(&g, "llama", "default");
    strings(&g, "tokenizer.ggml.tokens", v.tokens, v.n);
    ints(&g, "tokenizer.ggml.token_type", v.types, v.n);
    floats(&g, "tokenizer.ggml.scores", scores, v.n);
    number(&g, "tokenizer.ggml.bos_token_id", 2);
    number(&g, "tokenizer.ggml.eos_token_id", 1);
    number(&g, "tokenizer.ggml.unknown_token_id", 3);
    boolean(&g, "tokenizer.ggml.add_space_prefix", false);
    bl_tokenizer *t = opened(&g);
    json_t *expected = read_rows(FIXTURES "gemma.expected.json");
    const json_t *rows = json_object_get(expected, "encode");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *o = json_array_get(rows, i), *text = json_object_get(o, "text");
        check_encode(t, "scores", i, text, BL_ENCODE_SPECIAL_PARSE, json_object_get(o, "ids"));
        check_encode(t, "scores", i, text, BL_ENCODE_SPECIAL_PARSE | BL_ENCODE_SPECIAL_ADD,
                     json_object_get(o, "ids_special"));
        check_encode(t, "scores", i, text, 0, json_object_get(o, "ids_plain"));
        check_decode(t, "scores", i, o);
    }
    assert_int_equal(bl_tokenizer_eos(t), 1);
    bl_tokenizer_free(t);
    json_decref(expected);
    json_decref(v.tree);
}

static void check(const bl_tokenizer *t, const char *text, unsigned flags, const int32_t *want, size_t n) {
    bl_ids ids;
    encode_text(t, text, strlen(text), flags, &ids);
    if (ids.n != n || (n > 0 && memcmp(ids.ids, want, n * sizeof *want) != 0)) {
        fail_msg("'%s': %zu ids, the first %d", text, ids.n, ids.n > 0 ? ids.ids[0] : -1);
    }
    bl_ids_done(&ids);
}

#define CHECK(text, flags, ...)                                                                              \
    do {                                                                                                     \
        static const int32_t want_[] = {__VA_ARGS__};                                                        \
        check(t, text, flags, want_, BL_COUNTOF(want_));                                                     \
    } while (0)

static void test_score_rules(void **state) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", block,    "a",  "b", "ab", "ba", "aa",
                                         "<x>",   "<y>", "abab", "<0x00>", "xy", "<", "<x", ">",  "  "};
    static const float scores[] = {0, 0, 0, -1, -1, -1, -5, -5, -2, -1, -1, -3, 0, -7, -1, -1, -1, -1};
    static const int32_t types[] = {2, 3, 3, 1, 1, 1, 1, 1, 1, 3, 4, 1, 6, 1, 1, 1, 1, 4};
    builder g;
    (void)state;
    start(&g, "llama", NULL);
    strings(&g, "tokenizer.ggml.tokens", tokens, BL_COUNTOF(tokens));
    ints(&g, "tokenizer.ggml.token_type", types, BL_COUNTOF(types));
    floats(&g, "tokenizer.ggml.scores", scores, BL_COUNTOF(scores));
    bl_tokenizer *t = opened(&g); /* ids absent: bos 1, eos 2, unknown 0; a space in front */
    CHECK("aba", 0, 3, 6, 4);     /* equal scores: leftmost */
    CHECK("aab", 0, 3, 8, 5);     /* -2 before -5 */
    CHECK("abab", 0, 3, 11);      /* ab and ab, then abab */
    CHECK("ababa", 0, 3, 11, 4);
    CHECK("xy", 0, 3, 13);                                  /* neither x nor y is a token, xy is */
    CHECK("x", 0, 3, 0);                                    /* no byte token: unknown */
    CHECK("<x>", 0, 3, 15, 16);                             /* merging cannot make a control token */
    CHECK("a<x>b", BL_ENCODE_SPECIAL_PARSE, 3, 4, 9, 3, 5); /* text after a control token begins anew */
    CHECK("a<y>b", 0, 3, 4, 10, 3, 5);                      /* user-defined: always */
    CHECK("a  b", 0, 3, 4, 17, 3, 5);                       /* and before spaces become blocks */
    CHECK("ab", BL_ENCODE_SPECIAL_ADD, 1, 3, 6);
    CHECK("<unk>", BL_ENCODE_SPECIAL_PARSE, 0);
    check(t, "", 0, (const int32_t[]){0}, 0);
    bl_ids ids;
    encode_text(t, "\0", 1, 0, &ids);
    assert_true(ids.n == 2 && ids.ids[1] == 12);
    bl_ids_done(&ids);

    static const int32_t out[] = {1, 3, 6, 3, 4, 10, 12};
    bl_buf text;
    decode_ids(t, out, 7, true, &text);
    assert_int_equal(text.len, 8);
    assert_memory_equal(bl_buf_str(&text), "ab a<y>\0",
                        8); /* the space of the prefix is gone, the other is not */
    bl_buf_done(&text);
    bl_tokenizer_free(t);
}

/* ---- refusals ---- */

typedef struct {
    const char *model, *pre;
    bool tokens, merges, scores;
    const char *merge;
    int32_t type;
    float score;
    const char *msg;
    bl_code code;
} wrong;

static void test_refused(void **state) {
    static const wrong cases[] = {
        {"bert", NULL, true, true, true, "a b", 1, 0,
         "gguf: tokenizer.ggml.model 'bert' is not supported (llama, gpt2 are)", BL_ENOTSUP},
        {"", NULL, true, true, true, "a b", 1, 0,
         "gguf: tokenizer.ggml.model '' is not supported (llama, gpt2 are)", BL_ENOTSUP},
        {"gpt2", "viking", true, true, true, "a b", 1, 0,
         "gguf: tokenizer.ggml.pre 'viking' is not supported (default, gpt-2, smollm, llama-bpe, qwen2, "
         "qwen35, gpt-4o are)",
         BL_ENOTSUP},
        {"gpt2", NULL, false, true, true, "a b", 1, 0, "gguf: no tokenizer.ggml.tokens", BL_EFORMAT},
        {"gpt2", NULL, true, false, true, "a b", 1, 0, "gguf: no tokenizer.ggml.merges", BL_EFORMAT},
        {"llama", NULL, true, true, false, "a b", 1, 0, "gguf: no tokenizer.ggml.scores", BL_EFORMAT},
        {"gpt2", NULL, true, true, true, "ab", 1, 0, "gguf: merge 0 is not two parts", BL_EFORMAT},
        {"gpt2", NULL, true, true, true, "a c", 1, 0, "gguf: merge 0 has a part or a result that is no token",
         BL_EFORMAT},
        {"gpt2", NULL, true, true, true, "b a", 1, 0, "gguf: merge 0 has a part or a result that is no token",
         BL_EFORMAT},
        {"gpt2", NULL, true, true, true, "a b", 7, 0, "gguf: token 2 has type 7, 0 to 6 allowed", BL_EFORMAT},
        {"llama", NULL, true, true, true, "a b", 6, 0,
         "gguf: token 2 is of type byte (6), but not written <0xHH>", BL_EFORMAT},
        {"llama", NULL, true, true, true, "a b", 1, NAN,
         "key 'tokenizer.ggml.scores': element 2 is NaN, allowed are numbers", BL_EFORMAT},
        {"llama", NULL, true, true, true, "a b", 1, 0, NULL, BL_OK},
        {"gpt2", NULL, true, true, true, "a b", 1, 0, NULL, BL_OK},
        {"gpt2", "llama-bpe", true, true, true, "a b", 1, 0,
         "gguf: add_bos_token is set, but there is no such token", BL_EFORMAT},
    };
    static const char *const tokens[] = {"a", "b", "ab"};
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        const wrong *c = &cases[i];
        const int32_t types[] = {1, 1, c->type};
        const float scores[] = {0, 0, c->score};
        builder g;
        bl_tokenizer *t = NULL;
        bl_err err = {0};
        start(&g, c->model, c->pre);
        if (c->tokens) {
            strings(&g, "tokenizer.ggml.tokens", tokens, 3);
        }
        if (c->merges) {
            strings(&g, "tokenizer.ggml.merges", &c->merge, 1);
        }
        if (c->scores) {
            floats(&g, "tokenizer.ggml.scores", scores, 3);
        }
        ints(&g, "tokenizer.ggml.token_type", types, 3);
        bl_code rc = finish(&g, &t, &err);
        if (rc != c->code || (c->msg && strcmp(err.msg, c->msg) != 0)) {
            fail_msg("case %zu: %s '%s', expected '%s'", i, bl_code_name(rc), err.msg,
                     c->msg ? c->msg : "no error");
        }
        bl_tokenizer_free(t);
    }
}

static void test_refused_lengths_and_contents(void **state) {
    static const char *const twice[] = {"a", "b", "a"};
    static const char *const bad[] = {"a", "\xFF", "c"};
    static const float two[] = {0, 0};
    static const struct {
        const char *const *tokens;
        size_t n_scores;
        uint32_t bos;
        const char *msg;
    } cases[] = {{twice, 3, 0, "tokenizer: tokens 0 and 2 have the same content"},
                 {bad, 3, 0, "gguf: token 1 is not valid UTF-8"},
                 {fixture_names, 2, 0, "gguf: tokenizer.ggml.scores has 2 entries for 3 tokens"}};
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        builder g;
        bl_tokenizer *t = NULL;
        bl_err err = {0};
        start(&g, "llama", NULL);
        strings(&g, "tokenizer.ggml.tokens", cases[i].tokens, 3);
        floats(&g, "tokenizer.ggml.scores", cases[i].n_scores == 2 ? two : (const float[]){0, 0, 0},
               cases[i].n_scores);
        assert_int_equal(finish(&g, &t, &err), BL_EFORMAT);
        assert_string_equal(err.msg, cases[i].msg);
        assert_null(t);
    }
    builder g;
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    start(&g, "llama", NULL);
    strings(&g, "tokenizer.ggml.tokens", fixture_names, 3);
    floats(&g, "tokenizer.ggml.scores", (const float[]){0, 0, 0}, 3);
    number(&g, "tokenizer.ggml.bos_token_id", 3);
    assert_int_equal(finish(&g, &t, &err), BL_EFORMAT);
    assert_non_null(strstr(err.msg, "tokenizer.ggml.bos_token_id"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_equals_json),
        cmocka_unit_test(test_pre_tokenizers_split),
        cmocka_unit_test(test_scores_equal_ranks),
        cmocka_unit_test(test_score_rules),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_lengths_and_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
