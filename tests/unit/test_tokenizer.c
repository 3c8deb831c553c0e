/* Tokenizers of tokenizer.json: equal to the reference library on every row of the fixtures (small tokenizers
 * of ours, and the published vocabularies where BL_SHARED or ../shared holds them), and what holds for any
 * text. */
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "tokenizer_rows.h"

#include "base/clock.h"

/* ---- the reference's rows ---- */

static void test_fixture_rows(void **state) {
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(fixture_names); k++) {
        char path[512];
        snprintf(path, sizeof path, FIXTURES "%s.expected.json", fixture_names[k]);
        json_t *rows = read_rows(path);
        bl_tokenizer *t = open_fixture(fixture_names[k]);
        check_rows(t, fixture_names[k], json_object_get(rows, "encode"));
        const json_t *decode = json_object_get(rows, "decode");
        for (size_t i = 0; i < json_array_size(decode); i++) {
            check_decode(t, fixture_names[k], i, json_array_get(decode, i));
        }
        bl_tokenizer_free(t);
        json_decref(rows);
    }
}

/* The folder of published vocabularies, or NULL with a line that says so. */
static const char *shared_folder(char *ret, size_t max) {
    struct stat st;
    const char *env = getenv("BL_SHARED");
    snprintf(ret, max, "%s/fixtures/tokenizers", env ? env : BL_SOURCE_DIR "/../shared");
    if (stat(ret, &st) == 0) {
        return ret;
    }
    print_message("skipped: no published vocabularies at %s (set BL_SHARED)\n", ret);
    return NULL;
}

static void unpack(const char *path, bl_buf *ret) {
    char command[1024], chunk[65536];
    size_t n;
    snprintf(command, sizeof command, "xz -dc '%s'", path);
    bl_buf_init(ret, (size_t)64 << 20);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        assert_int_equal(bl_buf_append(ret, chunk, n, NULL), BL_OK);
    }
    assert_int_equal(pclose(f), 0);
}

static void test_published_rows(void **state) {
    static const char *const names[] = {"gemma3", "qwen3", "gptoss", "llama3_1"};
    char folder[512], path[640];
    (void)state;
    if (!shared_folder(folder, sizeof folder)) {
        skip();
    }
    for (size_t k = 0; k < BL_COUNTOF(names); k++) {
        bl_buf text;
        snprintf(path, sizeof path, "%s/%s.tokenizer.json.xz", folder, names[k]);
        unpack(path, &text);
        uint64_t t0 = bl_clock_mono_ns();
        bl_tokenizer *t = open_text(bl_buf_str(&text), text.len);
        print_message("%s: %zu bytes loaded in %.0f ms\n", names[k], text.len,
                      (double)(bl_clock_mono_ns() - t0) / 1e6);
        bl_buf_done(&text);
        snprintf(path, sizeof path, "%s/%s.expected.json", folder, names[k]);
        json_t *rows = read_rows(path);
        check_rows(t, names[k], rows);
        json_decref(rows);
        bl_tokenizer_free(t);
    }
}

/* ---- what holds for any text ---- */

static void check_round_trip(const bl_tokenizer *t, const char *what, const char *s, size_t n) {
    bl_ids ids;
    bl_buf text;
    encode_text(t, s, n, BL_ENCODE_SPECIAL_PARSE, &ids);
    decode_ids(t, ids.ids, ids.n, false, &text);
    if (text.len != n || memcmp(bl_buf_str(&text), s, n) != 0) {
        fail_msg("%s: %zu bytes became %zu", what, n, text.len);
    }
    bl_ids_done(&ids);
    bl_buf_done(&text);
}

/* Tokenizers without a lossy normalizer give every text back. */
static void test_round_trip(void **state) {
    static const char *const lossless[] = {"llama3", "o200k", "gemma", "llama2"};
    uint64_t seed = 20261130;
    char text[512];
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t k = 0; k < BL_COUNTOF(lossless); k++) {
        bl_tokenizer *t = open_fixture(lossless[k]);
        for (int i = 0; i < 3000; i++) {
            size_t n = random_text(&seed, text, sizeof text);
            if (memmem(text, n, "\xE2\x96\x81", 3) || (strcmp(lossless[k], "llama2") == 0 && n == 0)) {
                continue; /* U+2581 stands for a space there */
            }
            check_round_trip(t, lossless[k], text, n);
        }
        bl_tokenizer_free(t);
    }
}

/* A stream of tokens and the decoding of all at once give the same text, also for ids that make no sense
 * together. */
static void test_stream_is_whole(void **state) {
    uint64_t seed = 77;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t k = 0; k < BL_COUNTOF(fixture_names); k++) {
        bl_tokenizer *t = open_fixture(fixture_names[k]);
        for (int i = 0; i < 2000; i++) {
            int32_t ids[24];
            size_t n = bl_rng_next(&seed) % BL_COUNTOF(ids);
            for (size_t j = 0; j < n; j++) {
                ids[j] = (int32_t)(bl_rng_next(&seed) % bl_tokenizer_vocab_size(t));
            }
            bool skip = bl_rng_next(&seed) & 1;
            bl_buf whole, stream;
            decode_ids(t, ids, n, skip, &whole);
            stream_ids(t, ids, n, skip, &stream);
            assert_true(bl_utf8_valid(bl_buf_str(&whole), whole.len));
            if (bl_utf8_valid(bl_buf_str(&stream), stream.len)) {
                assert_int_equal(whole.len, stream.len);
                assert_memory_equal(bl_buf_str(&whole), bl_buf_str(&stream), whole.len);
            }
            bl_buf_done(&whole);
            bl_buf_done(&stream);
        }
        bl_tokenizer_free(t);
    }
}

/* A long run of one thing: every step must stay near-linear (a quadratic one would take minutes to hours). */
static void check_run(const bl_tokenizer *t, const char *what, const char *unit, size_t size) {
    char *text = bl_alloc(size + 8);
    assert_non_null(text);
    size_t len = strlen(unit), n = 0;
    for (; n + len <= size; n += len) {
        memcpy(text + n, unit, len);
    }
    text[n++] = 'x'; /* what a run of spaces has to step back from */
    bl_ids ids;
    clock_t t0 = clock(); /* processor time: the machine may be busy */
    encode_text(t, text, n, BL_ENCODE_SPECIAL_PARSE, &ids);
    double s = (double)(clock() - t0) / CLOCKS_PER_SEC;
    if (s > 60) {
        fail_msg("%s: %zu bytes of '%s' took %.1f s", what, size, unit, s);
    }
    bl_ids_done(&ids);
    bl_free(text);
}

static void test_long_runs(void **state) {
    static const char *const units[] = {"A",
                                        "aA",
                                        "1",
                                        "'",
                                        "\r\n",
                                        "a ",
                                        "\t",
                                        "=",
                                        "'s",
                                        "\xCC\x81",
                                        "\xC5\xBF",
                                        "\xE7\x81\xAF",
                                        "\xCC\x81\xCC\xA3",
                                        "<|end|",
                                        " \n",
                                        "\xE2\x96\x81",
                                        "<|end|>",
                                        "e\xCC\x81",
                                        "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
                                        "<R> ",
                                        " <L>"};
    static const char *const full[] = {"a", " ", "\n", "\xCC\x81\xCC\xA3"};
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(fixture_names); k++) {
        bl_tokenizer *t = open_fixture(fixture_names[k]);
        for (size_t u = 0; u < BL_COUNTOF(units); u++) {
            check_run(t, fixture_names[k], units[u], 100000);
        }
        for (size_t u = 0; u < BL_COUNTOF(full) && k % 2 == 0; u++) {
            check_run(t, fixture_names[k], full[u], (size_t)1 << 20);
        }
        bl_tokenizer_free(t);
    }
}

static void test_long_word_matches_short_rule(void **state) {
    (void)state;
    bl_tokenizer *t = open_fixture("llama3");
    enum { N = 1000000 };
    char *word = bl_alloc(N);
    uint64_t seed = 5;
    assert_non_null(word);
    for (size_t i = 0; i < N; i++) {
        word[i] = (char)('a' + bl_rng_next(&seed) % 26);
    }
    check_round_trip(t, "a word of a million letters", word, N);
    bl_free(word);
    bl_tokenizer_free(t);
}

/* ---- refusals ---- */

static void test_invalid_utf8_names_the_byte(void **state) {
    static const struct {
        const char *text;
        size_t n, at;
    } bad[] = {{"\x80", 1, 0},         {"ab\xFFz", 4, 2},         {"ab\xC3", 3, 2},
               {"\xED\xA0\x80", 3, 0}, {"x\xF0\x9F\x98", 4, 1},   {"\xF4\x90\x80\x80", 4, 0},
               {"a\xC0\x80", 3, 1},    {"ok \xE2\x28\xA1", 6, 3}, {"<|end|>\xFE", 8, 7}};
    (void)state;
    bl_tokenizer *t = open_fixture("qwen");
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_ids ids;
        bl_err err = {0};
        char want[128];
        bl_ids_init(&ids, 100);
        assert_int_equal(bl_ids_push(&ids, 42, NULL), BL_OK);
        assert_int_equal(bl_tokenizer_encode(t, bad[i].text, bad[i].n, 0, &ids, &err), BL_EINVAL);
        snprintf(want, sizeof want, "tokenizer: the text is not valid UTF-8 at byte %zu of %zu", bad[i].at,
                 bad[i].n);
        assert_string_equal(err.msg, want);
        assert_true(ids.n == 1 && ids.ids[0] == 42);
        bl_ids_done(&ids);
    }
    bl_tokenizer_free(t);
}

static void test_limits_leave_outputs_alone(void **state) {
    (void)state;
    bl_tokenizer *t = open_fixture("gemma");
    bl_ids ids;
    bl_buf text;
    bl_err err = {0};
    bl_ids_init(&ids, 3);
    assert_int_equal(bl_ids_push(&ids, 7, NULL), BL_OK);
    assert_int_equal(bl_tokenizer_encode(t, "x y z x y z x y z", 17, 3, &ids, &err), BL_ELIMIT);
    assert_true(ids.n == 1 && ids.ids[0] == 7);
    bl_ids_done(&ids);

    int32_t few[] = {300, 301, 302}, unknown[] = {300, 99999}, negative[] = {-1};
    bl_buf_init(&text, 4);
    assert_int_equal(bl_buf_append_str(&text, "abc", NULL), BL_OK);
    assert_int_equal(bl_tokenizer_decode(t, few, 3, false, &text, &err), BL_ELIMIT);
    assert_int_equal(bl_tokenizer_decode(t, unknown, 2, false, &text, &err), BL_EINVAL);
    assert_string_equal(err.msg, "tokenizer: no token has id 99999 (highest 700)");
    assert_int_equal(bl_tokenizer_decode(t, negative, 1, false, &text, &err), BL_EINVAL);
    assert_int_equal(bl_tokenizer_token_bytes(t, 701, true, false, &text, &err), BL_EINVAL);
    assert_string_equal(bl_buf_str(&text), "abc");
    bl_buf_done(&text);
    bl_tokenizer_free(t);
}

/* A minimal file with one part replaced. */
#define MODEL(x)  "{\"model\":{\"type\":\"BPE\"," x "},\"decoder\":{\"type\":\"ByteLevel\"}}"
#define VOCAB(v)  MODEL("\"vocab\":{" v "},\"merges\":[]")
#define MERGES(m) MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[" m "]")
#define TOP(x)                                                                                               \
    "{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"}," x "}"
#define PRE(x) TOP("\"pre_tokenizer\":" x)
#define SPLIT(r)                                                                                             \
    PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" r "\"},\"behavior\":\"Isolated\",\"invert\":false}")
#define DECODER(x) "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":" x "}"

static const struct {
    const char *text;
    bl_code code;
    const char *msg;
} refused[] = {
    {"", BL_EFORMAT, "tokenizer.json: expected '{' at byte 0"},
    {"[]", BL_EFORMAT, "tokenizer.json: expected '{' at byte 0"},
    {"{}", BL_EFORMAT, "tokenizer.json: no model"},
    {"{\"model\":{}} x", BL_EFORMAT, "tokenizer.json: more text after the object, at byte 13"},
    {"{\"model\":{},\"model\":{}}", BL_EFORMAT, "tokenizer.json: two members are named model"},
    {"{\"model\":7}", BL_EFORMAT, "tokenizer.json: expected '{' at byte 0"},
    {"{\"model\":{}}", BL_EFORMAT, "tokenizer.json: the model has no vocab"},
    {"{\"model\":{\"vocab\":{}}}", BL_EFORMAT, "tokenizer.json: the model has no merges"},
    {"{\"a\":[[1}", BL_EFORMAT, "tokenizer.json: '}' at byte 8"},
    {"{\"a\":[1,2", BL_EFORMAT, "tokenizer.json: ends inside a value that begins at byte 5"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", BL_ENOTSUP,
     "tokenizer.json: model 'Unigram' is not supported (BPE models are)"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", BL_ENOTSUP,
     "tokenizer.json: model 'WordPiece' is not supported (BPE models are)"},
    {MODEL("\"continuing_subword_prefix\":\"##\",\"vocab\":{},\"merges\":[]"), BL_ENOTSUP,
     "tokenizer.json: continuing_subword_prefix '##' is not supported (models without one are)"},
    {MODEL("\"unk_token\":\"u\",\"vocab\":{},\"merges\":[]"), BL_EFORMAT,
     "tokenizer.json: unk_token is no token of the vocabulary"},
    {VOCAB("\"a\":0,\"a\":1"), BL_EFORMAT, "tokenizer: tokens 0 and 1 have the same content"},
    {VOCAB("\"a\":0,\"b\":0"), BL_EFORMAT, "tokenizer: two tokens have id 0"},
    {VOCAB("\"a\":4294967296"), BL_ELIMIT, "tokenizer: token id 4294967296, at most 2097151 allowed"},
    {VOCAB("\"a\":-1"), BL_EFORMAT, "tokenizer.json: expected an id at byte 5"},
    {VOCAB("\"a\":1.5"), BL_EFORMAT, "tokenizer.json: expected an id at byte 5"},
    {VOCAB("\"a\":01"), BL_EFORMAT, "tokenizer.json: expected an id at byte 5"},
    {VOCAB("\"a\":0,"), BL_EFORMAT, "tokenizer.json: expected '\"' at byte 7"},
    {VOCAB("\"\\ud800\":0"), BL_EFORMAT, "tokenizer.json: a lone surrogate in a string at byte 2"},
    {VOCAB("\"\\udc00x\":0"), BL_EFORMAT, "tokenizer.json: a lone surrogate in a string at byte 2"},
    {VOCAB("\"\\ud83d\\u0041\":0"), BL_EFORMAT, "tokenizer.json: a lone surrogate in a string at byte 2"},
    {VOCAB("\"\\x41\":0"), BL_EFORMAT, "tokenizer.json: an unknown escape in a string at byte 3"},
    {VOCAB("\"\\u12\":0"), BL_EFORMAT, "tokenizer.json: \\u without four digits in a string at byte 4"},
    {VOCAB("\"a\nb\":0"), BL_EFORMAT, "tokenizer.json: a control character in a string at byte 3"},
    {MERGES("\"a b\",\"a c\""), BL_EFORMAT, "tokenizer.json: merge 1 has a part that is no token"},
    {MERGES("\"b a\""), BL_EFORMAT, "tokenizer.json: merge 0 has a part that is no token"},
    {MERGES("\"ab\""), BL_EFORMAT, "tokenizer.json: merge 0 is not two parts"},
    {MERGES("\"a b a\""), BL_EFORMAT, "tokenizer.json: merge 0 is not two parts"},
    {MERGES("[\"a\"]"), BL_EFORMAT, "tokenizer.json: expected ',' at byte 5"},
    {MERGES("[\"a\",\"b\",\"a\"]"), BL_EFORMAT, "tokenizer.json: expected ']' at byte 9"},
    {MERGES("7"), BL_EFORMAT, "tokenizer.json: expected '\"' at byte 1"},
    {TOP("\"normalizer\":{\"type\":\"StripAccents\"}"), BL_ENOTSUP,
     "tokenizer.json: normalizer 'StripAccents' is not supported (NFC, NFD, NFKC, NFKD, Replace, Prepend, "
     "Lowercase, "
     "Sequence are)"},
    {TOP("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"\"}"), BL_ENOTSUP,
     "tokenizer.json: the pattern of normalizer Replace 'Regex' is not supported (String patterns are)"},
    {TOP("\"normalizer\":{}"), BL_EFORMAT, "tokenizer.json: normalizer has no type"},
    {TOP("\"normalizer\":[]"), BL_EFORMAT, "tokenizer.json: normalizer is no object"},
    {PRE("{\"type\":\"Whitespace\"}"), BL_ENOTSUP,
     "tokenizer.json: pre_tokenizer 'Whitespace' is not supported (Split, ByteLevel, Metaspace, Digits, "
     "Sequence are)"},
    {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
     BL_ENOTSUP, "tokenizer.json: a pre_tokenizer after ByteLevel, 'Digits' is not supported (none are)"},
    {PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Sideways\"}"), BL_ENOTSUP,
     "tokenizer.json: the behavior of pre_tokenizer Split 'Sideways' is not supported (Isolated, Removed, "
     "MergedWithPrevious, MergedWithNext, Contiguous are)"},
    {PRE("{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}"), BL_EFORMAT,
     "tokenizer.json: the pattern of pre_tokenizer Split is neither a String nor a Regex"},
    {PRE("{\"type\":\"Metaspace\",\"prepend_scheme\":\"sometimes\"}"), BL_ENOTSUP,
     "tokenizer.json: prepend_scheme 'sometimes' is not supported (always, first, never are)"},
    {SPLIT("a\\\\hb"), BL_ENOTSUP, "regular expression: escape \\h at byte 1"},
    {SPLIT("(a)\\\\1"), BL_ENOTSUP, "regular expression: escape \\1 at byte 3"},
    {SPLIT("(?i)a"), BL_ENOTSUP, "regular expression: group (?i at byte 0"},
    {SPLIT("(?<n>a)"), BL_ENOTSUP, "regular expression: group (?< at byte 0"},
    {SPLIT("a{1,2}+"), BL_ENOTSUP, "regular expression: repeat at byte 1"},
    {SPLIT("a{,2}"), BL_ENOTSUP, "regular expression: repeat at byte 1"},
    {SPLIT("[a[b]]"), BL_ENOTSUP, "regular expression: nested class or intersection at byte 2"},
    {SPLIT("[a&&b]"), BL_ENOTSUP, "regular expression: nested class or intersection at byte 2"},
    {SPLIT("[\\\\s-z]"), BL_ENOTSUP, "regular expression: a range next to a shorthand at byte 2"},
    {SPLIT("[a-\\\\s]"), BL_ENOTSUP, "regular expression: a range next to a shorthand at byte 4"},
    {SPLIT("\\\\xFF"), BL_ENOTSUP, "regular expression: character code at byte 1"},
    {SPLIT("\\\\pL"), BL_ENOTSUP, "regular expression: property without braces at byte 1"},
    {SPLIT("\\\\p{Klingon}"), BL_EFORMAT, "regular expression: unknown property after \\P or \\p"},
    {SPLIT("(a"), BL_EFORMAT, "regular expression: missing closing parenthesis"},
    {SPLIT("[z-a]"), BL_EFORMAT, "regular expression: range out of order in character class"},
    {TOP("\"post_processor\":{\"type\":\"BertProcessing\"}"), BL_ENOTSUP,
     "tokenizer.json: post_processor 'BertProcessing' is not supported (TemplateProcessing, ByteLevel, "
     "Sequence of them "
     "are)"},
    {TOP("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"), BL_EFORMAT,
     "tokenizer.json: the post_processor's template has no place for the text"},
    {TOP("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]"
         "}"),
     BL_EFORMAT, "tokenizer.json: the post_processor has no ids for 'x'"},
    {TOP("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
         "\"special_tokens\":{\"x\":{\"ids\":[9]}}}"),
     BL_EFORMAT, "tokenizer.json: the post_processor adds an id that is no token for 'x'"},
    {TOP("\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]"), BL_EFORMAT,
     "tokenizer.json: added token 0 has id 1, the vocabulary says 0"},
    {TOP("\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]"), BL_EFORMAT, "tokenizer: two tokens have id 1"},
    {TOP("\"added_tokens\":[{\"content\":\"x\"}]"), BL_EFORMAT,
     "tokenizer.json: added token 0 has id -1, the vocabulary says -1"},
    {TOP("\"added_tokens\":[{\"id\":5}]"), BL_EFORMAT, "tokenizer.json: added token has no content"},
    {TOP("\"added_tokens\":{}"), BL_EFORMAT, "tokenizer.json: added_tokens is no array"},
    {DECODER("null"), BL_EFORMAT, "tokenizer.json: decoder is no object"},
    {DECODER("{\"type\":\"WordPiece\"}"), BL_ENOTSUP,
     "tokenizer.json: decoder, at its place, 'WordPiece' is not supported (ByteLevel alone, or Replace or "
     "Metaspace, "
     "ByteFallback, Fuse, Strip in this order, are)"},
    {DECODER("{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"), BL_ENOTSUP,
     "tokenizer.json: decoder, at its place, 'Strip' is not supported (ByteLevel alone, or Replace or "
     "Metaspace, "
     "ByteFallback, Fuse, Strip in this order, are)"},
};

static void test_refused_files(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(refused); i++) {
        bl_tokenizer *t = NULL;
        bl_err err = {0};
        bl_code rc = bl_tokenizer_from_json(refused[i].text, strlen(refused[i].text), &t, &err);
        if (rc != refused[i].code || strcmp(err.msg, refused[i].msg) != 0) {
            fail_msg("case %zu '%s': %s '%s', expected %s '%s'", i, refused[i].text, bl_code_name(rc),
                     err.msg, bl_code_name(refused[i].code), refused[i].msg);
        }
        assert_null(t);
    }
    static const char latin1[] = "{\"model\":\"\xE9\"}";
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    assert_int_equal(bl_tokenizer_from_json(latin1, sizeof latin1 - 1, &t, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "tokenizer.json: not valid UTF-8");
}

static void test_accepted_spellings(void **state) {
    /* escapes in the vocabulary, NUL, members in another order, spaces, an unknown member */
    static const char text[] =
        " { \"x\" : [ { \"y\" : null } , -1.5e3 ] , \"decoder\" : { \"type\" : \"Fuse\" } , \"model\" : { "
        "\"merges\" : [ [ "
        "\"\\u0061\" , \"\\ud83d\\ude00\" ] ] , \"vocab\" : { \"a\" : 3 , \"\\uD83D\\uDE00\" : 1 , "
        "\"a\\ud83d\\uDE00\" : 7 , \"\\u0000\" : 2 , \"\\\"\\\\\\/\\b\\f\\n\\r\\t\" : 0 } } } \n";
    (void)state;
    bl_tokenizer *t = open_text(text, sizeof text - 1);
    bl_ids ids;
    size_t n = 0;
    encode_text(t, "xa\xF0\x9F\x98\x80\0a", 8, 0, &ids);
    assert_int_equal(ids.n, 3);
    assert_true(ids.ids[0] == 7 && ids.ids[1] == 2 && ids.ids[2] == 3);
    assert_int_equal(bl_tokenizer_vocab_size(t), 8);
    assert_string_equal(bl_tokenizer_piece(t, 0, &n), "\"\\/\b\f\n\r\t");
    assert_int_equal(n, 8);
    assert_null(bl_tokenizer_piece(t, 4, &n));
    assert_null(bl_tokenizer_piece(t, -1, &n));
    assert_null(bl_tokenizer_piece(t, 8, &n));
    assert_int_equal(bl_tokenizer_id(t, "\0", 1), 2);
    assert_int_equal(bl_tokenizer_id(t, "zz", 2), -1);
    assert_int_equal(bl_tokenizer_id(t, "", 0), -1);
    assert_false(bl_tokenizer_adds_bos(t));
    assert_int_equal(bl_tokenizer_bos(t), -1);
    bl_ids_done(&ids);
    bl_tokenizer_free(t);
}

/* ---- control tokens ---- */

static void test_control_tokens_only_on_request(void **state) {
    (void)state;
    for (size_t k = 0; k < BL_COUNTOF(fixture_names); k++) {
        bl_tokenizer *t = open_fixture(fixture_names[k]);
        uint64_t seed = 9;
        for (int i = 0; i < 500; i++) {
            char text[512];
            size_t n = random_text(&seed, text, sizeof text);
            bl_ids ids;
            encode_text(t, text, n, 0, &ids);
            for (size_t j = 0; j < ids.n; j++) { /* an unknown token is no injection */
                assert_true(!bl_tokenizer_is_special(t, ids.ids[j]) ||
                            ids.ids[j] == bl_tokenizer_id(t, "<unk>", 5));
            }
            bl_ids_done(&ids);
        }
        bl_tokenizer_free(t);
    }
    bl_tokenizer *t = open_fixture("llama3");
    assert_true(bl_tokenizer_adds_bos(t));
    assert_int_equal(bl_tokenizer_bos(t), bl_tokenizer_id(t, "<bos>", 5));
    assert_true(bl_tokenizer_is_special(t, bl_tokenizer_bos(t)));
    assert_false(bl_tokenizer_is_special(t, bl_tokenizer_id(t, "<think>", 7)));
    assert_false(bl_tokenizer_is_special(t, -1));
    assert_false(bl_tokenizer_is_special(t, 1 << 30));
    bl_ids ids;
    encode_text(t, "<bos>", 5, BL_ENCODE_SPECIAL_ADD, &ids);
    assert_int_equal(ids.ids[0], bl_tokenizer_bos(t));
    assert_true(ids.n > 2);
    bl_ids_done(&ids);
    bl_tokenizer_free(t);
}

/* A whole word that is a control token of the vocabulary stays text (ignore_merges finds it otherwise). */
static void test_ignore_merges_is_no_back_door(void **state) {
    static const char text[] =
        "{\"model\":{\"vocab\":{\"s\":0,\"t\":1,\"o\":2,\"p\":3,\"stop\":4,\"pots\":5},\"merges\":[],"
        "\"ignore_merges\":true},\"decoder\":{\"type\":\"Fuse\"},\"added_tokens\":[{\"id\":4,\"content\":"
        "\"stop\",\"special\":true,\"normalized\":false}]}";
    (void)state;
    bl_tokenizer *t = open_text(text, sizeof text - 1);
    bl_ids ids;
    encode_text(t, "stop", 4, 0, &ids);
    assert_int_equal(ids.n, 4);
    bl_ids_done(&ids);
    encode_text(t, "stop", 4, BL_ENCODE_SPECIAL_PARSE, &ids);
    assert_true(ids.n == 1 && ids.ids[0] == 4);
    bl_ids_done(&ids);
    encode_text(t, "pots", 4, 0, &ids);
    assert_true(ids.n == 1 && ids.ids[0] == 5);
    bl_ids_done(&ids);
    bl_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture_rows),
        cmocka_unit_test(test_published_rows),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_stream_is_whole),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_long_word_matches_short_rule),
        cmocka_unit_test(test_invalid_utf8_names_the_byte),
        cmocka_unit_test(test_limits_leave_outputs_alone),
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_accepted_spellings),
        cmocka_unit_test(test_control_tokens_only_on_request),
        cmocka_unit_test(test_ignore_merges_is_no_back_door),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
