/* From a checkpoint to the events of an answer: which dialect, which tokens are its markers, what ends an
 * answer and who says so, what a prompt leaves open; and tokens through stream and parser. */
#include "cmocka_all.h"

#include "chat/chat.h"
#include "chat/stream.h"
#include "chat_folder.h"
#include "formats/json.h"

static const char *const gemma_tokens[] = {
    "<bos>",   "<|turn>",      "<turn|>",      "<|channel>",       "<channel|>",       "<|think|>", "<|tool>",
    "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>",    NULL};
static const char *const harmony_tokens[] = {"<|start|>",     "<|end|>",  "<|message|>", "<|channel|>",
                                             "<|constrain|>", "<|call|>", "<|return|>",  NULL};
static const char *const qwen_tokens[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", NULL};

/* tiny-chat's tokenizer with more added tokens, from id 308 on. */
static char *tokenizer_with(const char *const *tokens, bool special) {
    bl_buf b = folder_read(FIXTURES "/tiny-chat/tokenizer.json");
    json_t *doc = json_loadb(b.data, b.len, 0, NULL);
    bl_buf_done(&b);
    json_t *added = json_object_get(doc, "added_tokens");
    for (int i = 0; tokens[i]; i++) {
        json_t *t = json_deep_copy(json_array_get(added, 0));
        json_object_set_new(t, "id", json_integer(308 + i));
        json_object_set_new(t, "content", json_string(tokens[i]));
        json_object_set_new(t, "special", json_boolean(special));
        assert_int_equal(json_array_append_new(added, t), 0);
    }
    char *text = json_dumps(doc, 0);
    json_decref(doc);
    assert_non_null(text);
    return text;
}

static bl_chat *open_family(const char *family, const char *const *tokens, bool special,
                            const char *generation) {
    char path[512];
    bl_chat *c = NULL;
    bl_err err = {0};
    snprintf(path, sizeof path, FIXTURES "/templates/%s.jinja", family);
    bl_buf template = folder_read(path);
    char *tokenizer = tokenizer_with(tokens, special);
    const folder_file files[] = {
        {"chat_template.jinja", template.data},
        {"tokenizer.json", tokenizer},
        {"tokenizer_config.json", "{\"bos_token\":\"<bos>\",\"eos_token\":\"<|im_end|>\"}"},
        {"generation_config.json", generation},
    };
    if (chat_folder_open(files, BL_COUNTOF(files), &c, &err) != BL_OK) {
        fail_msg("%s: %s", family, err.msg);
    }
    bl_buf_done(&template);
    free(tokenizer);
    return c;
}

static bl_chat *open_gemma(void) {
    return open_family("gemma4", gemma_tokens, true, "{\"eos_token_id\":[305,310]}");
}
static bl_chat *open_harmony(void) {
    return open_family("gpt_oss", harmony_tokens, true, "{\"eos_token_id\":[314,305]}");
}
static bl_chat *open_qwen(void) {
    return open_family("qwen3_5", qwen_tokens, false, NULL);
}

static void dialects_and_their_reasons(void **state) {
    (void)state;
    static const struct {
        bl_chat *(*open)(void);
        bl_dialect d;
        const char *reason;
        size_t n_markers;
    } rows[] = {
        {open_gemma, BL_DIALECT_GEMMA4,
         "the template writes <|turn> and <|channel>; of its 5 markers 5 are tokens, 5 of them control", 5},
        {open_harmony, BL_DIALECT_HARMONY,
         "the template writes <|start|>, <|channel|> and <|message|>; of its 7 markers 7 are tokens, 7 of "
         "them "
         "control",
         7},
        {open_qwen, BL_DIALECT_QWEN_XML,
         "the template writes <|im_start|> and prescribes <tool_call> with <function=...>; of its 4 markers "
         "4 are "
         "tokens, 0 of them control",
         0},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_chat *c = rows[i].open();
        size_t n = 99;
        assert_int_equal(bl_chat_describe(c)->dialect, rows[i].d);
        assert_string_equal(bl_chat_describe(c)->reason, rows[i].reason);
        (void)bl_chat_markers(c, &n);
        assert_int_equal(n, rows[i].n_markers);
        bl_chat_free(c);
    }
    bl_chat *c = NULL;
    const folder_file bare[] = {{"chat_template.jinja", NULL}};
    assert_int_equal(chat_folder_open(bare, 1, &c, NULL), BL_OK);
    assert_string_equal(bl_chat_describe(c)->reason, "the checkpoint ships no chat template");
    assert_int_equal(bl_chat_describe(c)->dialect, BL_DIALECT_PLAIN);
    bl_chat_free(c);
}

static void assert_stop(const bl_chat *c, const char *piece, const char *sources) {
    size_t n = 0;
    const int32_t *ids = bl_chat_stop_ids(c, &n);
    for (size_t i = 0; i < n; i++) {
        const bl_chat_stop s = bl_chat_stop_at(c, i);
        assert_int_equal(s.id, ids[i]);
        if (s.n_text == strlen(piece) && memcmp(s.text, piece, s.n_text) == 0) {
            char text[200];
            bl_chat_stop_sources(s.sources, text, sizeof text);
            assert_string_equal(text, sources);
            return;
        }
    }
    fail_msg("%s is no stop token", piece);
}

static void stop_ids_and_their_sources(void **state) {
    (void)state;
    size_t n = 0;
    bl_chat *c = open_gemma();
    assert_stop(c, "<|im_end|>", "config.json, tokenizer_config.json");
    assert_stop(c, "<|endoftext|>", "generation_config.json");
    assert_stop(c, "<turn|>", "generation_config.json, chat template");
    assert_stop(c, "<|tool_response>", "dialect");
    (void)bl_chat_stop_ids(c, &n);
    assert_int_equal(n, 4);
    bl_chat_free(c);
    c = open_harmony();
    assert_stop(c, "<|return|>", "generation_config.json, dialect");
    assert_stop(c, "<|call|>", "dialect");
    (void)bl_chat_stop_ids(c, &n);
    assert_int_equal(n, 4); /* <|end|> ends a message, not the answer */
    bl_chat_free(c);
    c = open_qwen();
    assert_stop(c, "<|im_end|>", "config.json, tokenizer_config.json, chat template");
    bl_chat_free(c);
    char small[16];
    bl_chat_stop_sources(UINT32_MAX, small, sizeof small);
    assert_int_equal(strlen(small), sizeof small - 1);
}

/* ---- what a prompt leaves open ---- */

static bl_parser_options options_for(const bl_chat *c, const char *messages, const char *extra,
                                     const json_t *tools) {
    json_t *m = json_loads(messages, 0, NULL), *x = json_loads(extra, 0, NULL);
    bl_ids ids;
    bl_err err = {0};
    bl_ids_init(&ids, 1 << 16);
    if (bl_chat_render(c, m, tools, x, true, false, &ids, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    bl_parser_options o = bl_chat_parser_options(c, ids.ids, ids.n, tools);
    bl_ids_done(&ids);
    json_decref(m);
    json_decref(x);
    return o;
}

static void prompts_say_where_answers_begin(void **state) {
    (void)state;
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"<think>\"}]";
    static const struct {
        bl_chat *(*open)(void);
        const char *extra;
        bl_parser_start start;
    } rows[] = {
        {open_qwen, "{}", BL_START_REASONING},
        {open_qwen, "{\"enable_thinking\":true}", BL_START_REASONING},
        {open_qwen, "{\"enable_thinking\":false}", BL_START_TEXT},
        {open_gemma, "{}", BL_START_TEXT},
        {open_gemma, "{\"enable_thinking\":true}", BL_START_TEXT},
        {open_harmony, "{}", BL_START_HEADER},
    };
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        bl_chat *c = rows[i].open();
        const bl_parser_options o = options_for(c, hi, rows[i].extra, NULL);
        assert_int_equal(o.start, rows[i].start);
        assert_false(o.calls);
        bl_chat_free(c);
    }
    bl_chat *c = open_qwen();
    assert_int_equal(bl_chat_parser_options(c, NULL, 0, NULL).start, BL_START_TEXT);
    const int32_t beyond[] = {1 << 20}; /* an id of the padding */
    assert_int_equal(bl_chat_parser_options(c, beyond, 1, NULL).start, BL_START_TEXT);
    bl_chat_free(c);
}

/* ---- tokens -> stream -> parser ---- */

static bl_code note(void *user, const bl_parsed *ev, bl_err *err) {
    static const char *const names[] = {"C:", "R:", "T:", "", "", ""};
    if (ev->kind == BL_PARSED_MARKUP) {
        return BL_OK;
    }
    BL_TRY(bl_buf_append_str(user, names[ev->kind], err));
    return bl_buf_append(user, ev->text, ev->n, err);
}

/* special: the markers in the text are control tokens, as the model gives them; else they are spelled. */
static void assert_answer(const bl_chat *c, bl_parser_options o, const char *answer, bool special,
                          const char *want) {
    const bl_tokenizer *t = bl_chat_tokenizer(c);
    bl_stream *s;
    bl_parser *p;
    bl_ids ids;
    bl_buf step, all, said;
    bool stopped = false;
    size_t n = 0;
    bl_ids_init(&ids, 1 << 16);
    bl_buf_init(&step, 1 << 16);
    bl_buf_init(&all, 1 << 16);
    bl_buf_init(&said, 1 << 16);
    o.sink = note;
    o.user = &said;
    assert_int_equal(
        bl_tokenizer_encode(t, answer, strlen(answer), special ? BL_ENCODE_SPECIAL_PARSE : 0, &ids, NULL),
        BL_OK);
    assert_int_equal(bl_stream_new(t, NULL, 0, true, &s, NULL), BL_OK);
    const int32_t *markers = bl_chat_markers(c, &n);
    bl_stream_show(s, markers, n);
    assert_int_equal(bl_parser_new(&o, &p, NULL), BL_OK);
    for (size_t i = 0; i < ids.n; i++) {
        assert_int_equal(bl_stream_push(s, ids.ids[i], &all, &stopped, NULL), BL_OK);
    }
    assert_int_equal(bl_stream_finish(s, &all, NULL), BL_OK);
    assert_int_equal(bl_parser_feed(p, bl_buf_str(&all), all.len, NULL), BL_OK);
    assert_int_equal(bl_parser_finish(p, NULL), BL_OK);
    assert_string_equal(bl_buf_str(&said), want);
    bl_parser_free(p);
    bl_stream_free(s);
    bl_ids_done(&ids);
    bl_buf_done(&step);
    bl_buf_done(&all);
    bl_buf_done(&said);
}

static void tokens_become_events(void **state) {
    (void)state;
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
        "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}}}}]",
        0, NULL);
    bl_chat *c = open_gemma();
    bl_parser_options o = options_for(c, hi, "{\"enable_thinking\":true}", tools);
    assert_answer(c, o,
                  "<|channel>thought\nhm\n<channel|>ok<|tool_call>call:f{s:<|\"|>a b<|\"|>}<tool_call|>",
                  true, "R:hmC:okT:f{\"s\": \"a b\"}");
    assert_answer(c, o, "<|channel>thought\nhm", false, "C:<|channel>thought\nhm"); /* spelled */
    bl_chat_free(c);
    c = open_harmony();
    o = options_for(c, hi, "{}", tools);
    assert_answer(
        c, o,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{\"s\": 1}<|call|>",
        true, "R:hmT:f{\"s\": 1}");
    bl_chat_free(c);
    c = open_qwen();
    o = options_for(c, hi, "{}", tools);
    for (int special = 0; special < 2; special++) { /* no control tokens: spelled or not is the same */
        assert_answer(
            c, o,
            "hm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n</function>\n"
            "</tool_call>",
            special == 1, "R:hmT:f{\"s\": \"1\"}");
    }
    bl_chat_free(c);
    json_decref(tools);
}

/* ---- messages that cannot be rendered ---- */

static void refuses_bad_calls(void **state) {
    (void)state;
    static const struct {
        const char *call, *part;
    } rows[] = {
        {"5", "messages[1].tool_calls: must be a list"},
        {"[5]", "messages[1].tool_calls[0]: must be an object with a function's name"},
        {"[{\"function\":{\"name\":5}}]", "messages[1].tool_calls[0]: must be"},
        {"[{\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]",
         "messages[1].tool_calls[0].function.arguments"},
        {"[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]",
         "messages[1].tool_calls[0].function.arguments: must be a JSON object"},
        {"[{\"function\":{\"name\":\"f\",\"arguments\":5}}]",
         "messages[1].tool_calls[0].function.arguments: must be a JSON object"},
    };
    bl_chat *c = open_qwen();
    for (size_t i = 0; i < BL_COUNTOF(rows); i++) {
        char text[512];
        bl_ids ids;
        bl_err err = {0};
        snprintf(text, sizeof text,
                 "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_"
                 "calls\":%s}]",
                 rows[i].call);
        json_t *m = json_loads(text, 0, NULL);
        bl_ids_init(&ids, 1 << 16);
        assert_int_equal(bl_chat_render(c, m, NULL, NULL, true, false, &ids, &err), BL_EINVAL);
        if (!strstr(err.msg, rows[i].part)) {
            fail_msg("'%s' does not say '%s'", err.msg, rows[i].part);
        }
        assert_int_equal(err.code, BL_EINVAL);
        bl_ids_done(&ids);
        json_decref(m);
    }
    bl_chat_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dialects_and_their_reasons),
        cmocka_unit_test(stop_ids_and_their_sources),
        cmocka_unit_test(prompts_say_where_answers_begin),
        cmocka_unit_test(tokens_become_events),
        cmocka_unit_test(refuses_bad_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
