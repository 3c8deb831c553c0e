/* Bodies of the OpenAI routes. The first byte chooses the route. Whatever comes: a request within its limits,
 * or an error object that is JSON with a 4xx status. */
#include <stdint.h>
#include <string.h>

#include "api/openai/request.h"
#include "base/base.h"
#include "formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const bl_openai_error *e) {
    bl_buf b;
    bl_err err;
    json_t *v = NULL;
    bl_buf_init(&b, 16384);
    BL_ASSERT(e->status == 400);
    BL_ASSERT(bl_openai_write_error(e, &b, &err) == BL_OK);
    BL_ASSERT(bl_json_parse(b.data, b.len, 4, "error", &v, &err) == BL_OK);
    json_decref(v);
    bl_buf_done(&b);
}

static void check_request(const bl_openai_request *r) {
    BL_ASSERT(r->model && r->n_stops <= BL_OPENAI_MAX_STOPS);
    BL_ASSERT(!r->has_temperature || (r->temperature >= 0 && r->temperature <= 2));
    BL_ASSERT(!r->has_top_p || (r->top_p >= 0 && r->top_p <= 1));
    BL_ASSERT(!r->has_max_tokens || (r->max_tokens >= 1 && r->max_tokens <= INT32_MAX));
    BL_ASSERT(r->n_top_logprobs <= BL_OPENAI_MAX_TOP_CHAT);
    BL_ASSERT(r->n_bias <= BL_OPENAI_MAX_BIAS && (r->n_bias == 0 || r->bias));
    for (size_t i = 0; i < r->n_bias; i++) {
        BL_ASSERT(r->bias[i].id >= 0 && r->bias[i].bias >= -100 && r->bias[i].bias <= 100);
    }
    BL_ASSERT(r->format != BL_OPENAI_JSON_SCHEMA || json_is_object(r->schema));
    BL_ASSERT(r->format != BL_OPENAI_REGEX || r->n_pattern <= BL_OPENAI_MAX_PATTERN);
    for (size_t i = 0; i < r->n_stops; i++) {
        size_t n = strlen(r->stops[i]);
        BL_ASSERT(n >= 1 && n <= BL_OPENAI_MAX_STOP_BYTES);
    }
    if (r->kind == BL_OPENAI_CHAT) {
        BL_ASSERT(json_array_size(r->messages) >= 1);
    } else {
        BL_ASSERT(r->prompt || r->prompt_ids.n > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    bl_openai_request r;
    bl_openai_error e;
    bl_openai_kind kind = data[0] & 1 ? BL_OPENAI_COMPLETION : BL_OPENAI_CHAT;
    memset(&e, 0, sizeof e);
    if (bl_openai_parse(kind, (const char *)data + 1, size - 1, &r, &e) == BL_OK) {
        check_request(&r);
        bl_openai_request_done(&r);
    } else {
        check_error(&e);
    }
    return 0;
}
