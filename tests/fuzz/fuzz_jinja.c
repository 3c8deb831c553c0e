/* Chat templates: bytes up to the first NUL are the template, what follows is a JSON context (a fixed one
 * when it is none). Rendered under tight limits; whatever comes, output and marks have one length and a
 * failure has a message. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/jinja.h"
#include "formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char fixed_context[] =
    "{\"s\":\"Hello "
    "W\\u00f6rld\",\"n\":7,\"f\":2.5,\"t\":true,\"z\":null,\"l\":[3,1,\"a\",null],\"d\":{\"b\":1,\"a\":\"x\","
    "\"items\":[]},"
    "\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"u\"}]},"
    "{\"role\":\"assistant\",\"content\":\"<think>x</"
    "think>y\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":"
    "\"number\"}}}}}],\"add_generation_prompt\":true}";

static json_t *context_of(const uint8_t *data, size_t size) {
    json_t *ctx = NULL;
    if (size > 0 && bl_json_parse((const char *)data, size, 40, "fuzz", &ctx, NULL) == BL_OK) {
        if (json_is_object(ctx)) {
            return ctx;
        }
        json_decref(ctx);
    }
    return bl_json_parse(fixed_context, sizeof fixed_context - 1, 40, "fuzz", &ctx, NULL) == BL_OK ? ctx
                                                                                                   : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    bl_jinja *t;
    bl_err err = {0};
    if (bl_jinja_compile((const char *)data, n, &t, &err) != BL_OK) {
        BL_ASSERT(err.code != BL_OK && err.msg[0] != '\0');
        return 0;
    }
    json_t *ctx = context_of(nul ? nul + 1 : data, nul ? size - n - 1 : 0);
    json_t *trusted = json_pack("{s:s}", "bos_token", "<bos>");
    const bl_jinja_limits limits = {.max_steps = 20000,
                                    .max_depth = 100,
                                    .max_output_bytes = 1 << 16,
                                    .max_memory_bytes = 1 << 22,
                                    .now_unix_s = 1};
    bl_buf out, marks;
    bl_buf_init(&out, 1 << 20);
    bl_buf_init(&marks, 1 << 20);
    err = (bl_err){0};
    bl_code rc = bl_jinja_render_marked(t, ctx, trusted, NULL, &limits, &out, &marks, &err);
    BL_ASSERT(rc == err.code && (rc == BL_OK) == (err.msg[0] == '\0'));
    BL_ASSERT(out.len == marks.len);
    BL_ASSERT(rc == BL_OK || out.len == 0);
    BL_ASSERT(bl_utf8_valid(bl_buf_str(&out), out.len));
    for (size_t i = 0; i < marks.len; i++) {
        BL_ASSERT(marks.data[i] == 0 || marks.data[i] == 1);
    }
    bl_buf_done(&out);
    bl_buf_done(&marks);
    json_decref(ctx);
    json_decref(trusted);
    bl_jinja_free(t);
    return 0;
}
