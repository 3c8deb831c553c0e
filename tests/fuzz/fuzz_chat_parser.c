/* Answers of a model. The first byte chooses dialect and start, the second which markers are control tokens
 * and whether tools were offered, the third seeds the cuts; the rest is the answer. Whatever comes: the same
 * events for every cut, no byte lost, arguments that are a JSON object. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "chat/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
    "\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},\"u\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
    "\"object\"}]}}}}}]";

/* Events as text: kind, text; neighbours of one kind of text joined. And every byte that was accounted for.
 */
typedef struct {
    bl_buf events, all;
    bl_parsed_kind last;
    bool json;
    uint32_t n_calls;
} record;

static void add(bl_buf *b, const char *s, size_t n) {
    BL_ASSERT(bl_buf_append(b, s, n, NULL) == BL_OK);
}

static void check_arguments(const char *text, size_t n) {
    json_error_t why;
    json_t *v = json_loadb(text, n, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &why);
    /* jansson has no numbers beyond a double's, and no halves of surrogate pairs */
    BL_ASSERT(v ? json_is_object(v)
                : json_error_code(&why) == json_error_numeric_overflow || memmem(text, n, "\\u", 2));
    json_decref(v);
}

static bl_code note(void *user, const bl_parsed *ev, bl_err *err) {
    record *r = user;
    (void)err;
    const bool text = ev->kind == BL_PARSED_CONTENT || ev->kind == BL_PARSED_REASONING;
    for (size_t i = 0; i < ev->n && ev->kind != BL_PARSED_MARKUP; i++) {
        BL_ASSERT((unsigned char)ev->text[i] != BL_PARSER_CONTROL);
    }
    if (text || ev->kind == BL_PARSED_MARKUP) {
        BL_ASSERT(ev->n > 0);
        add(&r->all, ev->text, ev->n);
    }
    if (ev->kind == BL_PARSED_MARKUP) {
        return BL_OK;
    }
    if (!text || r->last != ev->kind) {
        add(&r->events, "\n#", 2);
        add(&r->events, &(char){(char)('0' + ev->kind)}, 1);
    }
    add(&r->events, ev->text, ev->n);
    BL_ASSERT(text || ev->call == r->n_calls);
    if (ev->kind == BL_PARSED_CALL_BEGIN) {
        BL_ASSERT(ev->n >= 1 && ev->n <= BL_PARSER_MAX_NAME);
    }
    if (ev->kind == BL_PARSED_CALL_ARGUMENTS && r->json) {
        check_arguments(ev->text, ev->n);
    }
    r->n_calls += ev->kind == BL_PARSED_CALL_END;
    r->last = ev->kind;
    return BL_OK;
}

static void run(bl_parser_options o, const char *text, size_t n, uint64_t *cuts, bool json, record *r) {
    bl_parser *p;
    memset(r, 0, sizeof *r);
    bl_buf_init(&r->events, 64 << 20);
    bl_buf_init(&r->all, 64 << 20);
    r->last = BL_PARSED_MARKUP;
    r->json = json;
    o.sink = note;
    o.user = r;
    BL_ASSERT(bl_parser_new(&o, &p, NULL) == BL_OK);
    for (size_t i = 0; i < n;) {
        size_t len = cuts ? 1 + bl_rng_next(cuts) % 7 : n;
        len = BL_MIN(len, n - i);
        BL_ASSERT(bl_parser_feed(p, text + i, len, NULL) == BL_OK);
        i += len;
    }
    BL_ASSERT(bl_parser_finish(p, NULL) == BL_OK);
    BL_ASSERT(bl_parser_n_calls(p) == r->n_calls);
    bl_parser_free(p);
}

static size_t strip(char *s, size_t n) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        s[k] = s[i];
        k += (unsigned char)s[i] != BL_PARSER_CONTROL;
    }
    return k;
}

static void done(record *r) {
    bl_buf_done(&r->events);
    bl_buf_done(&r->all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) {
        return 0;
    }
    json_t *tools = json_loads(tools_text, 0, NULL);
    const bl_parser_options o = {.dialect = (bl_dialect)(data[0] % BL_DIALECT__MAX),
                                 .start = (bl_parser_start)(data[0] / 16 % 3),
                                 .control = data[1] & 127,
                                 .calls = data[1] < 128,
                                 .tools = tools};
    uint64_t cuts = data[2];
    size_t n = size - 3;
    const char *text = (const char *)data + 3;
    char *plain = bl_alloc(n);
    memcpy(plain, text, n);
    const size_t n_plain = strip(plain, n);
    const bool json = bl_utf8_valid(plain, n_plain);
    record whole, pieces;
    run(o, text, n, NULL, json, &whole);
    run(o, text, n, &cuts, false, &pieces);
    BL_ASSERT(whole.events.len == pieces.events.len);
    BL_ASSERT(memcmp(bl_buf_str(&whole.events), bl_buf_str(&pieces.events), whole.events.len) == 0);
    whole.all.len = whole.all.data ? strip(whole.all.data, whole.all.len) : 0;
    BL_ASSERT(whole.all.len == n_plain && memcmp(bl_buf_str(&whole.all), plain, n_plain) == 0);
    done(&whole);
    done(&pieces);
    bl_free(plain);
    json_decref(tools);
    return 0;
}
