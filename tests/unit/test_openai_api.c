/* OpenAI bodies and payloads: every field's wrong types and ranges with status, param and code; every payload
 * parsed back. */
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/openai/reply.h"
#include "api/openai/request.h"
#include "api/openai/write.h"
#include "base/base.h"
#include "formats/json.h"

#define CHAT(fields) "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" fields "}"
#define TEXT(fields) "{\"model\":\"m\",\"prompt\":\"hi\"" fields "}"

typedef struct {
    const char *param; /* NULL: accepted; "": param null */
    const char *code;
    const char *body;
} body_case;

static void run_cases(bl_openai_kind kind, const body_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bl_openai_request r;
        bl_openai_error e;
        memset(&e, 0, sizeof e);
        bl_code rc = bl_openai_parse(kind, cases[i].body, strlen(cases[i].body), &r, &e);
        if ((rc == BL_OK) != (cases[i].param == NULL)) {
            fail_msg("case %zu %s: %s", i, cases[i].body, rc == BL_OK ? "accepted" : e.message);
        }
        if (rc == BL_OK) {
            bl_openai_request_done(&r);
            continue;
        }
        if (e.status != 400 || strcmp(e.param, cases[i].param) != 0 || !e.code ||
            strcmp(e.code, cases[i].code) != 0 || strcmp(e.type, "invalid_request_error") != 0 ||
            e.message[0] == '\0') {
            fail_msg("case %zu %s: status %d param '%s' code '%s' message '%s'", i, cases[i].body, e.status,
                     e.param, e.code ? e.code : "null", e.message);
        }
        if (cases[i].param[0] && !strstr(e.message, cases[i].param)) {
            fail_msg("case %zu: message '%s' does not name the field", i, e.message);
        }
    }
}

static const char TYPE[] = "invalid_type", VALUE[] = "invalid_value", UNSUP[] = "unsupported_parameter",
                  MISSING[] = "missing_required_parameter", JSON[] = "invalid_json";

static void test_bodies_not_json(void **state) {
    (void)state;
    static const body_case cases[] = {
        {"", JSON, ""},
        {"", JSON, "{"},
        {"", JSON, "[]"},
        {"", JSON, "\"x\""},
        {"", JSON, "null"},
        {"", JSON, CHAT("") "x"},
        {"", JSON, "{\"model\":\"m\",\"model\":\"m\"}"},
        {"", JSON, "{\"model\":\"\xff\"}"},
        {"", JSON, "{\"model\":\"a\\u0000b\"}"},
        {"", JSON, "{\"model\":\"\\ud800\"}"},
        {"", JSON, "{\"seed\":99999999999999999999}"},
        {"", JSON, "{\"temperature\":1e999}"},
        {"", JSON, "{\"temperature\":NaN}"},
    };
    run_cases(BL_OPENAI_CHAT, cases, BL_COUNTOF(cases));
    char deep[7000];
    memset(deep, '[', 3000);
    memset(deep + 3000, ']', 3000);
    deep[6000] = '\0';
    const body_case nested = {"", JSON, deep};
    run_cases(BL_OPENAI_CHAT, &nested, 1);
    bl_openai_request r;
    bl_openai_error e;
    static const char with_nul[] = "{\"model\":\"a\0b\"}";
    assert_int_not_equal(bl_openai_parse(BL_OPENAI_CHAT, with_nul, sizeof with_nul - 1, &r, &e), BL_OK);
    assert_int_equal(e.status, 400);
}

static void test_common_fields(void **state) {
    (void)state;
    static const body_case cases[] = {
        {NULL, NULL, CHAT("")},
        {NULL, NULL, CHAT(",\"unheard_of\":{\"a\":[1]},\"user\":\"u\",\"metadata\":{\"a\":\"b\"}")},
        {"model", MISSING, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"},
        {"model", TYPE, "{\"model\":1}"},
        {NULL, NULL, CHAT(",\"temperature\":0")},
        {NULL, NULL, CHAT(",\"temperature\":2.0,\"top_p\":null")},
        {"temperature", TYPE, CHAT(",\"temperature\":\"1\"")},
        {"temperature", TYPE, CHAT(",\"temperature\":true")},
        {"temperature", VALUE, CHAT(",\"temperature\":-0.1")},
        {"temperature", VALUE, CHAT(",\"temperature\":2.01")},
        {"top_p", TYPE, CHAT(",\"top_p\":[]")},
        {"top_p", VALUE, CHAT(",\"top_p\":1.5")},
        {"min_p", VALUE, CHAT(",\"min_p\":-1")},
        {"min_p", TYPE, CHAT(",\"min_p\":{}")},
        {NULL, NULL, CHAT(",\"top_k\":-1")},
        {"top_k", TYPE, CHAT(",\"top_k\":1.0")},
        {"top_k", VALUE, CHAT(",\"top_k\":-2")},
        {"top_k", VALUE, CHAT(",\"top_k\":2147483648")},
        {NULL, NULL, CHAT(",\"seed\":-9223372036854775808")},
        {"seed", TYPE, CHAT(",\"seed\":1.5")},
        {"seed", TYPE, CHAT(",\"seed\":\"1\"")},
        {"max_tokens", VALUE, CHAT(",\"max_tokens\":0")},
        {"max_tokens", VALUE, CHAT(",\"max_tokens\":-1")},
        {"max_tokens", TYPE, CHAT(",\"max_tokens\":\"5\"")},
        {"max_completion_tokens", VALUE, CHAT(",\"max_completion_tokens\":0")},
        {"max_completion_tokens", TYPE, CHAT(",\"max_completion_tokens\":true")},
        {"max_tokens", VALUE, CHAT(",\"max_tokens\":5,\"max_completion_tokens\":6")},
        {NULL, NULL, CHAT(",\"max_tokens\":5,\"max_completion_tokens\":5")},
        {NULL, NULL, CHAT(",\"stop\":\"x\"")},
        {NULL, NULL, CHAT(",\"stop\":[]")},
        {NULL, NULL,
         CHAT(",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
              "\"e\",\"f\",\"g\"]")},
        {"stop", VALUE,
         CHAT(",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
              "\"e\",\"f\",\"g\",\"h\"]")},
        {"stop", VALUE, CHAT(",\"stop\":\"\"")},
        {"stop", VALUE, CHAT(",\"stop\":[\"a\",\"\"]")},
        {"stop", TYPE, CHAT(",\"stop\":5")},
        {"stop", TYPE, CHAT(",\"stop\":[5]")},
        {"stop", TYPE, CHAT(",\"stop\":{}")},
        {NULL, NULL, CHAT(",\"priority\":-10")},
        {NULL, NULL, CHAT(",\"priority\":null,\"prompt_cache_key\":null")},
        {"priority", VALUE, CHAT(",\"priority\":11")},
        {"priority", VALUE, CHAT(",\"priority\":-11")},
        {"priority", TYPE, CHAT(",\"priority\":1.0")},
        {"priority", TYPE, CHAT(",\"priority\":\"high\"")},
        {NULL, NULL, CHAT(",\"prompt_cache_key\":\"\"")},
        {"prompt_cache_key", TYPE, CHAT(",\"prompt_cache_key\":7")},
        {NULL, NULL, CHAT(",\"speculation\":\"auto\"")},
        {NULL, NULL, CHAT(",\"speculation\":\"off\"")},
        {NULL, NULL, CHAT(",\"speculation\":null")},
        {"speculation", VALUE, CHAT(",\"speculation\":\"on\"")},
        {"speculation", VALUE, CHAT(",\"speculation\":\"OFF\"")},
        {"speculation", VALUE, CHAT(",\"speculation\":\"\"")},
        {"speculation", TYPE, CHAT(",\"speculation\":false")},
        {"speculation", TYPE, CHAT(",\"speculation\":{}")},
        {"stream", TYPE, CHAT(",\"stream\":1")},
        {"stream_options", VALUE, CHAT(",\"stream_options\":{}")},
        {"stream_options", TYPE, CHAT(",\"stream\":true,\"stream_options\":true")},
        {"stream_options.include_usage", TYPE,
         CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":1}")},
        {NULL, NULL, CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":true,\"other\":1}")},
        {NULL, NULL, CHAT(",\"n\":1")},
        {"n", UNSUP, CHAT(",\"n\":2")},
        {"n", VALUE, CHAT(",\"n\":0")},
        {"n", TYPE, CHAT(",\"n\":\"1\"")},
        {NULL, NULL,
         CHAT(",\"tools\":[],\"tool_choice\":\"none\",\"functions\":[],\"logit_bias\":{},\"presence_"
              "penalty\":0,"
              "\"frequency_penalty\":0.0,\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
              "\"store\":false,"
              "\"repetition_penalty\":1,\"reasoning_effort\":\"none\",\"audio\":null")},
        {"tools", TYPE, CHAT(",\"tools\":5")},
        {"tools[0]", TYPE, CHAT(",\"tools\":[5]")},
        {"tools[0]", UNSUP, CHAT(",\"tools\":[{\"type\":\"retrieval\"}]")},
        {"tools[0].function", VALUE, CHAT(",\"tools\":[{\"type\":\"function\"}]")},
        {"tools[0].function", VALUE,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]")},
        {"tools[0].function.parameters", TYPE,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]")},
        {"tools[0].function.description", TYPE,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":5}}]")},
        {NULL, NULL,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":\"auto\","
              "\"parallel_tool_calls\":false")},
        {"parallel_tool_calls", TYPE, CHAT(",\"parallel_tool_calls\":1")},
        {"tool_choice", TYPE, CHAT(",\"tool_choice\":5")},
        {"tool_choice", UNSUP, CHAT(",\"tool_choice\":\"required\"")},
        {"tool_choice", UNSUP, CHAT(",\"tool_choice\":{\"type\":\"function\"}")},
        {"functions", UNSUP, CHAT(",\"functions\":[{}]")},
        {"function_call", UNSUP, CHAT(",\"function_call\":{\"name\":\"f\"}")},
        {NULL, NULL, CHAT(",\"logit_bias\":{\"5\":1,\"0\":-100,\"2147483647\":99.5}")},
        {"logit_bias", TYPE, CHAT(",\"logit_bias\":[]")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"05\":1}")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"-1\":1}")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"2147483648\":1}")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"\":1}")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"5\":101}")},
        {"logit_bias", VALUE, CHAT(",\"logit_bias\":{\"5\":\"1\"}")},
        {NULL, NULL, CHAT(",\"presence_penalty\":0.5,\"frequency_penalty\":-2,\"repetition_penalty\":1.1")},
        {"presence_penalty", VALUE, CHAT(",\"presence_penalty\":2.5")},
        {"frequency_penalty", TYPE, CHAT(",\"frequency_penalty\":\"1\"")},
        {"repetition_penalty", VALUE, CHAT(",\"repetition_penalty\":0")},
        {NULL, NULL, CHAT(",\"response_format\":{\"type\":\"json_object\"}")},
        {NULL, NULL,
         CHAT(",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{"
              "\"type\":\"object\"},\"strict\":true}}")},
        {NULL, NULL, CHAT(",\"response_format\":{\"type\":\"regex\",\"pattern\":\"a+\"}")},
        {"response_format", UNSUP, CHAT(",\"response_format\":{}")},
        {"response_format", UNSUP, CHAT(",\"response_format\":{\"type\":\"xml\"}")},
        {"response_format.json_schema", VALUE, CHAT(",\"response_format\":{\"type\":\"json_schema\"}")},
        {"response_format.json_schema.schema", VALUE,
         CHAT(",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}")},
        {"response_format.json_schema.schema", VALUE,
         CHAT(",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"{}\"}}")},
        {"response_format.json_schema.strict", TYPE,
         CHAT(
             ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":1}}")},
        {"response_format.pattern", VALUE, CHAT(",\"response_format\":{\"type\":\"regex\"}")},
        {NULL, NULL,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":false}}]")},
        {NULL, NULL,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":true}}]")},
        {"tools[0].function.strict", TYPE,
         CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]")},
        {"response_format", TYPE, CHAT(",\"response_format\":\"text\"")},
        {"modalities", UNSUP, CHAT(",\"modalities\":[\"text\",\"audio\"]")},
        {"store", UNSUP, CHAT(",\"store\":true")},
        {NULL, NULL, CHAT(",\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"a\":1}")},
        {"reasoning_effort", VALUE, CHAT(",\"reasoning_effort\":\"hard\"")},
        {"reasoning_effort", TYPE, CHAT(",\"reasoning_effort\":5")},
        {"echo", UNSUP, TEXT(",\"echo\":true")},
        {"audio", UNSUP, CHAT(",\"audio\":{}")},
        {"prediction", UNSUP, CHAT(",\"prediction\":{\"type\":\"content\"}")},
        {"web_search_options", UNSUP, CHAT(",\"web_search_options\":{}")},
        {"chat_template_kwargs", TYPE, CHAT(",\"chat_template_kwargs\":[]")},
    };
    run_cases(BL_OPENAI_CHAT, cases, BL_COUNTOF(cases));
}

/* What the sampler and the grammar get. */
static void test_shape_of_the_answer(void **state) {
    (void)state;
    static const char body[] =
        CHAT(",\"logit_bias\":{\"7\":-3.5,\"1\":2},\"presence_penalty\":1,\"frequency_penalty\":-0.5,"
             "\"repetition_penalty\":1.25,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
             "\"name\":\"x\",\"strict\":true,\"schema\":{\"type\":\"integer\"}}},\"tools\":[{\"type\":"
             "\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{\"name\":"
             "\"g\",\"strict\":true}}]");
    bl_openai_request r;
    bl_openai_error e;
    assert_int_equal(bl_openai_parse(BL_OPENAI_CHAT, body, sizeof body - 1, &r, &e), BL_OK);
    assert_int_equal(r.n_bias, 2);
    assert_true(r.bias[0].id == 7 && r.bias[0].bias == -3.5f && r.bias[1].id == 1 && r.bias[1].bias == 2.0f);
    assert_true(r.presence_penalty == 1.0f && r.frequency_penalty == -0.5f && r.repetition_penalty == 1.25f);
    assert_int_equal(r.format, BL_OPENAI_JSON_SCHEMA);
    assert_true(r.strict_schema && r.strict_tools);
    assert_string_equal(json_string_value(json_object_get(r.schema, "type")), "integer");
    bl_openai_request_done(&r);
    static const char regex[] = TEXT(",\"response_format\":{\"type\":\"regex\",\"pattern\":\"a|b\"}");
    assert_int_equal(bl_openai_parse(BL_OPENAI_COMPLETION, regex, sizeof regex - 1, &r, &e), BL_OK);
    assert_int_equal(r.format, BL_OPENAI_REGEX);
    assert_int_equal(r.n_pattern, 3);
    bl_openai_request_done(&r);
}

static void test_messages(void **state) {
    (void)state;
#define M(list) "{\"model\":\"m\",\"messages\":" list "}"
    static const body_case cases[] = {
        {"messages", MISSING, "{\"model\":\"m\"}"},
        {"messages", MISSING, M("null")},
        {"messages", TYPE, M("\"hi\"")},
        {"messages", VALUE, M("[]")},
        {"messages[0]", TYPE, M("[\"hi\"]")},
        {"messages[0].role", MISSING, M("[{\"content\":\"x\"}]")},
        {"messages[0].role", TYPE, M("[{\"role\":5,\"content\":\"x\"}]")},
        {"messages[0].role", VALUE, M("[{\"role\":\"robot\",\"content\":\"x\"}]")},
        {"messages[1].role", UNSUP,
         M("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"function\",\"content\":\"x\"}]")},
        {NULL, NULL, M("[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c1\"}]")},
        {"messages[0].tool_call_id", TYPE, M("[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":5}]")},
        {"messages[0].content", MISSING, M("[{\"role\":\"tool\"}]")},
        {"messages[0].reasoning_content", TYPE,
         M("[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":[]}]")},
        {NULL, NULL,
         M("[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
           "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]")},
        {"messages[0].tool_calls[0]", TYPE,
         M("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}]}]")},
        {"messages[0].tool_calls[0]", UNSUP,
         M("[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"x\",\"function\":{\"name\":\"f\"}}]}]")},
        {"messages[0].tool_calls", TYPE, M("[{\"role\":\"assistant\",\"tool_calls\":5}]")},
        {"messages[0].tool_calls", VALUE, M("[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]")},
        {"messages[0].content", MISSING, M("[{\"role\":\"user\"}]")},
        {"messages[0].content", MISSING, M("[{\"role\":\"assistant\",\"content\":null}]")},
        {"messages[0].content", TYPE, M("[{\"role\":\"user\",\"content\":5}]")},
        {"messages[0].content[0]", TYPE, M("[{\"role\":\"user\",\"content\":[\"x\"]}]")},
        {"messages[0].content[0]", VALUE, M("[{\"role\":\"user\",\"content\":[{}]}]")},
        {"messages[0].content[1]", UNSUP,
         M("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
           "\"image_url\":{}}]}]")},
        {"messages[0].content[0]", VALUE, M("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]")},
        {"messages[0].tool_calls[0]", VALUE,
         M("[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}]")},
        {NULL, NULL, M("[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[],\"name\":\"n\"}]")},
        {NULL, NULL, M("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]")},
    };
    run_cases(BL_OPENAI_CHAT, cases, BL_COUNTOF(cases));
    bl_openai_request r;
    bl_openai_error e;
    static const char dev[] = M("[{\"role\":\"developer\",\"content\":\"x\"}]");
    assert_int_equal(bl_openai_parse(BL_OPENAI_CHAT, dev, sizeof dev - 1, &r, &e), BL_OK);
    assert_string_equal(json_string_value(json_object_get(json_array_get(r.messages, 0), "role")), "system");
    bl_openai_request_done(&r);
}

static void test_logprob_fields(void **state) {
    (void)state;
    static const body_case chat[] = {
        {NULL, NULL, CHAT(",\"logprobs\":true,\"top_logprobs\":20")},
        {NULL, NULL, CHAT(",\"logprobs\":false,\"top_logprobs\":0")},
        {"logprobs", TYPE, CHAT(",\"logprobs\":5")},
        {"top_logprobs", VALUE, CHAT(",\"logprobs\":true,\"top_logprobs\":21")},
        {"top_logprobs", VALUE, CHAT(",\"logprobs\":true,\"top_logprobs\":-1")},
        {"top_logprobs", VALUE, CHAT(",\"top_logprobs\":2")},
        {"top_logprobs", TYPE, CHAT(",\"logprobs\":true,\"top_logprobs\":true")},
    };
    run_cases(BL_OPENAI_CHAT, chat, BL_COUNTOF(chat));
    static const body_case text[] = {
        {NULL, NULL, TEXT(",\"logprobs\":0")},
        {NULL, NULL, TEXT(",\"logprobs\":5,\"suffix\":\"\",\"best_of\":1,\"echo\":false")},
        {"logprobs", VALUE, TEXT(",\"logprobs\":6")},
        {"logprobs", TYPE, TEXT(",\"logprobs\":true")},
        {"suffix", UNSUP, TEXT(",\"suffix\":\"x\"")},
        {"best_of", UNSUP, TEXT(",\"best_of\":2")},
    };
    run_cases(BL_OPENAI_COMPLETION, text, BL_COUNTOF(text));
}

static void test_prompts(void **state) {
    (void)state;
#define P(p) "{\"model\":\"m\",\"prompt\":" p "}"
    static const body_case cases[] = {
        {NULL, NULL, P("\"\"")},
        {NULL, NULL, P("[\"one\"]")},
        {NULL, NULL, P("[1,2,3]")},
        {NULL, NULL, P("[[1,2,3]]")},
        {"prompt", MISSING, "{\"model\":\"m\"}"},
        {"prompt", TYPE, P("5")},
        {"prompt", TYPE, P("{}")},
        {"prompt", VALUE, P("[]")},
        {"prompt", VALUE, P("[[]]")},
        {"prompt", UNSUP, P("[\"a\",\"b\"]")},
        {"prompt", UNSUP, P("[[1],[2]]")},
        {"prompt", TYPE, P("[1,\"a\"]")},
        {"prompt", TYPE, P("[1,2.0]")},
        {"prompt", TYPE, P("[null]")},
    };
    run_cases(BL_OPENAI_COMPLETION, cases, BL_COUNTOF(cases));
    bl_openai_request r;
    bl_openai_error e;
    static const char negative[] = P("[1,-1]");
    assert_int_not_equal(bl_openai_parse(BL_OPENAI_COMPLETION, negative, sizeof negative - 1, &r, &e), BL_OK);
    assert_string_equal(e.param, "prompt");
    static const char ids[] = P("[[7,0,2147483647]]");
    assert_int_equal(bl_openai_parse(BL_OPENAI_COMPLETION, ids, sizeof ids - 1, &r, &e), BL_OK);
    assert_null(r.prompt);
    assert_int_equal(r.prompt_ids.n, 3);
    assert_int_equal(r.prompt_ids.ids[2], INT32_MAX);
    bl_openai_request_done(&r);
}

static void test_values_arrive(void **state) {
    (void)state;
    static const char body[] = CHAT(",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,\"min_p\":0.125,"
                                    "\"seed\":-2,\"max_completion_tokens\":9,"
                                    "\"stop\":[\"a\",\"b\"],\"stream\":true,\"stream_options\":{\"include_"
                                    "usage\":true},\"logprobs\":true,\"top_logprobs\":3,\"priority\":-3,"
                                    "\"prompt_cache_key\":\"ck\"");
    bl_openai_request r;
    bl_openai_error e;
    assert_int_equal(bl_openai_parse(BL_OPENAI_CHAT, body, sizeof body - 1, &r, &e), BL_OK);
    assert_true(r.has_temperature && r.has_top_p && r.has_top_k && r.has_min_p && r.has_seed &&
                r.has_max_tokens);
    assert_true(r.temperature == 0.25f && r.top_p == 0.5f && r.min_p == 0.125f);
    assert_int_equal(r.top_k, 7);
    assert_int_equal(r.seed, (uint64_t)-2);
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[1], "b");
    assert_true(r.stream && r.include_usage && r.logprobs);
    assert_int_equal(r.n_top_logprobs, 3);
    assert_int_equal(r.priority, -3);
    assert_string_equal(r.prompt_cache_key, "ck");
    assert_int_equal(r.n_prompt_cache_key, 2);
    bl_openai_request_done(&r);

    assert_int_equal(bl_openai_parse(BL_OPENAI_CHAT, CHAT(""), sizeof CHAT("") - 1, &r, &e), BL_OK);
    assert_false(r.has_temperature || r.has_top_p || r.has_top_k || r.has_min_p || r.has_seed ||
                 r.has_max_tokens);
    assert_false(r.stream || r.include_usage || r.logprobs);
    assert_true(r.priority == 0 && !r.prompt_cache_key);
    assert_int_equal(r.n_stops, 0);
    bl_openai_request_done(&r);
}

static json_t *parse_back(const bl_buf *b) {
    json_t *v = NULL;
    bl_err err;
    if (bl_json_parse(bl_buf_str(b), b->len, 16, "payload", &v, &err) != BL_OK) {
        fail_msg("payload is no JSON: %s in %s", err.msg, bl_buf_str(b));
    }
    return v;
}

static void test_strings(void **state) {
    (void)state;
    char all[256];
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
    }
    bl_buf b;
    bl_buf_init(&b, 8192);
    assert_int_equal(bl_buf_append_char(&b, '[', NULL), BL_OK);
    assert_int_equal(bl_openai_write_string(all + 1, 127, &b, NULL), BL_OK);
    assert_int_equal(bl_buf_append_char(&b, ',', NULL), BL_OK);
    assert_int_equal(bl_openai_write_string("\xf0\x9f\x98\x80\xe2\x82\xac\xf0\x9f", 9, &b, NULL), BL_OK);
    assert_int_equal(bl_buf_append_char(&b, ']', NULL), BL_OK);
    json_t *v = parse_back(&b);
    assert_int_equal(json_string_length(json_array_get(v, 0)), 127);
    assert_memory_equal(json_string_value(json_array_get(v, 0)), all + 1, 127);
    assert_string_equal(json_string_value(json_array_get(v, 1)), "\xf0\x9f\x98\x80\xe2\x82\xac\xef\xbf\xbd");
    json_decref(v);
    bl_buf_done(&b);
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        bl_code code;
        int status;
        bool shown;
    } table[] = {
        {BL_EINVAL, 400, true},    {BL_EFORMAT, 400, true},    {BL_ELIMIT, 400, true},
        {BL_ERANGE, 400, true},    {BL_ENOTSUP, 400, true},    {BL_ENOTFOUND, 404, true},
        {BL_EBUSY, 429, true},     {BL_ENOMEM, 503, false},    {BL_EIO, 500, false},
        {BL_ECORRUPT, 500, false}, {BL_EINTERNAL, 500, false}, {BL_ECANCEL, 500, false},
    };
    for (size_t i = 0; i < BL_COUNTOF(table); i++) {
        bl_err err;
        bl_openai_error e;
        (void)bl_err_set(&err, table[i].code, __FILE__, __LINE__, "secret \"path\"");
        bl_openai_error_from(&err, &e);
        assert_int_equal(e.status, table[i].status);
        assert_int_equal(strstr(e.message, "secret") != NULL, table[i].shown);
        bl_buf b;
        bl_buf_init(&b, 4096);
        assert_int_equal(bl_openai_write_error(&e, &b, NULL), BL_OK);
        json_t *v = parse_back(&b);
        const json_t *o = json_object_get(v, "error");
        assert_string_equal(json_string_value(json_object_get(o, "message")), e.message);
        assert_string_equal(json_string_value(json_object_get(o, "type")), e.type);
        assert_true(json_is_null(json_object_get(o, "param")));
        assert_non_null(json_object_get(o, "code"));
        json_decref(v);
        bl_buf_done(&b);
    }
    bl_openai_error e;
    bl_err busy;
    (void)bl_err_set(&busy, BL_EBUSY, __FILE__, __LINE__, "9 requests wait");
    bl_openai_error_from(&busy, &e);
    assert_string_equal(e.code, "queue_full");
    (void)bl_err_set(&busy, BL_EBUSY, __FILE__, __LINE__,
                     "deadline_unreachable: 900 ms are left, 1200 needed");
    bl_openai_error_from(&busy, &e);
    assert_string_equal(e.code, "deadline_unreachable");
    assert_int_equal(e.status, 429);
    /* a message that is cut is cut between characters */
    char longest[700];
    memset(longest, 'a', sizeof longest);
    for (size_t i = 1; i + 1 < sizeof longest; i += 2) {
        memcpy(longest + i, "\xc3\xa9", 2);
    }
    longest[sizeof longest - 1] = '\0';
    (void)bl_openai_refuse(&e, 400, "c", "p", "%s", longest);
    bl_buf b;
    bl_buf_init(&b, 8192);
    assert_int_equal(bl_openai_write_error(&e, &b, NULL), BL_OK);
    assert_null(strstr(bl_buf_str(&b), "\xef\xbf\xbd"));
    bl_buf_done(&b);
}

static const bl_openai_reply chat_reply = {BL_OPENAI_CHAT, "chatcmpl-1", "mo\"del", "fp_1", 1700000000, true};
static const bl_openai_reply text_reply = {BL_OPENAI_COMPLETION, "cmpl-1", "m", "fp_1", 1700000000, false};

static void add_tokens(bl_openai_logprobs *l) {
    const bl_openai_token tops[] = {{"a", 1, -0.5f}, {"a", 1, -0.75f}, {"\xf0\x9f", 2, -INFINITY}};
    assert_int_equal(bl_openai_logprobs_add(l, &tops[0], tops, 3, 0, NULL), BL_OK);
    assert_int_equal(bl_openai_logprobs_add(l, &tops[2], NULL, 0, 1, NULL), BL_OK);
}

static void test_chat_payloads(void **state) {
    (void)state;
    bl_buf b;
    bl_buf_init(&b, 1 << 16);
    bl_openai_logprobs l;
    bl_openai_logprobs_init(&l, BL_OPENAI_CHAT, 1 << 16);
    add_tokens(&l);
    const bl_openai_usage u = {3, 4, 2, false, 0, 0};
    assert_int_equal(bl_openai_write_reply(&chat_reply,
                                           &(bl_openai_answer){.text = "hi\n", .n = 3, .logprobs = &l},
                                           "stop", &u, &b, NULL),
                     BL_OK);
    json_t *v = parse_back(&b);
    assert_string_equal(json_string_value(json_object_get(v, "object")), "chat.completion");
    assert_string_equal(json_string_value(json_object_get(v, "model")), "mo\"del");
    const json_t *c = json_array_get(json_object_get(v, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(c, "message"), "content")), "hi\n");
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "stop");
    const json_t *content = json_object_get(json_object_get(c, "logprobs"), "content");
    assert_int_equal(json_array_size(content), 2);
    const json_t *first = json_array_get(content, 0), *second = json_array_get(content, 1);
    assert_int_equal(json_array_size(json_object_get(first, "top_logprobs")), 3);
    assert_true(json_number_value(json_object_get(first, "logprob")) == -0.5);
    assert_string_equal(json_string_value(json_object_get(second, "token")), "\\xf0\\x9f");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(second, "bytes"), 1)), 0x9f);
    assert_true(json_number_value(json_object_get(second, "logprob")) == -9999.0);
    const json_t *usage = json_object_get(v, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 7);
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "cached_tokens")), 2);
    assert_null(json_object_get(usage, "completion_tokens_details"));
    json_decref(v);

    bl_buf_reset(&b);
    assert_int_equal(bl_openai_write_role_chunk(&chat_reply, &b, NULL), BL_OK);
    v = parse_back(&b);
    assert_string_equal(json_string_value(json_object_get(v, "object")), "chat.completion.chunk");
    assert_true(json_is_null(json_object_get(v, "usage")));
    json_decref(v);
    bl_buf_reset(&b);
    assert_int_equal(bl_openai_write_chunk(&chat_reply, "", 0, NULL, "length", &b, NULL), BL_OK);
    v = parse_back(&b);
    c = json_array_get(json_object_get(v, "choices"), 0);
    assert_int_equal(json_object_size(json_object_get(c, "delta")), 0);
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
    json_decref(v);
    bl_buf_reset(&b);
    assert_int_equal(bl_openai_write_usage_chunk(&chat_reply, &u, &b, NULL), BL_OK);
    v = parse_back(&b);
    assert_int_equal(json_array_size(json_object_get(v, "choices")), 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(v, "usage"), "prompt_tokens")), 3);
    json_decref(v);
    bl_openai_logprobs_done(&l);
    bl_buf_done(&b);
}

static void test_text_payloads(void **state) {
    (void)state;
    bl_buf b;
    bl_buf_init(&b, 1 << 16);
    bl_openai_logprobs l;
    bl_openai_logprobs_init(&l, BL_OPENAI_COMPLETION, 1 << 16);
    add_tokens(&l);
    bl_openai_logprobs_reset(&l);
    add_tokens(&l);
    assert_int_equal(bl_openai_write_chunk(&text_reply, "a", 1, &l, NULL, &b, NULL), BL_OK);
    json_t *v = parse_back(&b);
    assert_null(json_object_get(v, "usage"));
    const json_t *c = json_array_get(json_object_get(v, "choices"), 0), *lp = json_object_get(c, "logprobs");
    assert_string_equal(json_string_value(json_object_get(c, "text")), "a");
    assert_true(json_is_null(json_object_get(c, "finish_reason")));
    assert_string_equal(json_string_value(json_array_get(json_object_get(lp, "tokens"), 1)),
                        "bytes:\\xf0\\x9f");
    assert_int_equal(json_array_size(json_object_get(lp, "token_logprobs")), 2);
    const json_t *map = json_array_get(json_object_get(lp, "top_logprobs"), 0);
    assert_int_equal(json_object_size(map), 2); /* "a" once */
    assert_true(json_number_value(json_object_get(map, "a")) == -0.5);
    assert_int_equal(json_object_size(json_array_get(json_object_get(lp, "top_logprobs"), 1)), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 1)), 1);
    json_decref(v);

    bl_buf_reset(&b);
    const bl_openai_usage u = {1, 2, 0, true, 7, 3};
    assert_int_equal(
        bl_openai_write_reply(&text_reply, &(bl_openai_answer){.text = "x", .n = 1}, "length", &u, &b, NULL),
        BL_OK);
    v = parse_back(&b);
    assert_string_equal(json_string_value(json_object_get(v, "object")), "text_completion");
    assert_true(json_is_null(json_object_get(json_array_get(json_object_get(v, "choices"), 0), "logprobs")));
    const json_t *details = json_object_get(json_object_get(v, "usage"), "completion_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "accepted_prediction_tokens")), 7);
    assert_int_equal(json_integer_value(json_object_get(details, "rejected_prediction_tokens")), 3);
    json_decref(v);

    bl_buf_reset(&b);
    const bl_openai_model m = {"a/b", 5, 2048, true};
    assert_int_equal(bl_openai_write_model_list(&m, 1, &b, NULL), BL_OK);
    v = parse_back(&b);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(v, "data"), 0), "id")), "a/b");
    json_decref(v);

    /* an answer larger than its maximum fails, and the buffer keeps to it */
    bl_buf small;
    bl_buf_init(&small, 64);
    assert_int_equal(bl_openai_write_reply(&text_reply, &(bl_openai_answer){.text = "x", .n = 1}, "length",
                                           &u, &small, NULL),
                     BL_ELIMIT);
    bl_buf_done(&small);
    bl_openai_logprobs_done(&l);
    bl_buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_not_json),
        cmocka_unit_test(test_common_fields),
        cmocka_unit_test(test_shape_of_the_answer),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_logprob_fields),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_values_arrive),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_chat_payloads),
        cmocka_unit_test(test_text_payloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
