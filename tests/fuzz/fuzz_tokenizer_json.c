/* Input: a tokenizer.json, and after the first NUL byte a text. The text and a fixed set are encoded with all
 * flags; what comes back must decode, be the same as a stream, and hold no control token that was not asked
 * for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ids(const bl_tokenizer *t, const bl_ids *ids, bool skip) {
    bl_buf whole, stream;
    bl_buf_init(&whole, (size_t)1 << 24);
    bl_buf_init(&stream, (size_t)1 << 24);
    bool first = true, fits = true;
    for (size_t i = 0; i < ids->n; i++) {
        BL_ASSERT(ids->ids[i] >= 0 && (uint32_t)ids->ids[i] < bl_tokenizer_vocab_size(t));
        fits = fits && bl_tokenizer_token_bytes(t, ids->ids[i], first, skip, &stream, NULL) == BL_OK;
        first = first && skip && bl_tokenizer_is_special(t, ids->ids[i]);
    }
    bl_code rc = bl_tokenizer_decode(t, ids->ids, ids->n, skip, &whole, NULL);
    BL_ASSERT(rc == BL_OK || rc == BL_ELIMIT);
    if (rc == BL_OK && fits) {
        BL_ASSERT(bl_utf8_valid(bl_buf_str(&whole), whole.len));
        if (bl_utf8_valid(bl_buf_str(&stream), stream.len)) {
            BL_ASSERT(whole.len == stream.len &&
                      memcmp(bl_buf_str(&whole), bl_buf_str(&stream), whole.len) == 0);
        }
    }
    bl_buf_done(&whole);
    bl_buf_done(&stream);
}

static void check_text(const bl_tokenizer *t, const char *s, size_t n) {
    for (unsigned flags = 0; flags < 4; flags++) {
        bl_ids ids;
        bl_err err = {0};
        bl_ids_init(&ids, (size_t)1 << 20);
        bl_code rc = bl_tokenizer_encode(t, s, n, flags, &ids, &err);
        BL_ASSERT(rc == BL_OK || rc == BL_ELIMIT || (rc == BL_EINVAL && !bl_utf8_valid(s, n)));
        BL_ASSERT(rc == BL_OK || (ids.n == 0 && err.msg[0] != '\0'));
        check_ids(t, &ids, false);
        check_ids(t, &ids, true);
        bl_ids_done(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const texts[] = {"", "a", " the  lamp\n\n turns ",
                                        "It's 12 <|end|>\r\n\xC5\xBF \xF0\x9F\x98\x80 e\xCC\x81\xE2\x96\x81",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    char *json = bl_alloc(n + 1); /* its own block: a read past the end is seen */
    BL_ASSERT(json != NULL);
    memcpy(json, data, n);
    bl_code rc = bl_tokenizer_from_json(json, n, &t, &err);
    bl_free(json);
    BL_ASSERT((rc == BL_OK) == (t != NULL) && (rc == BL_OK || err.msg[0] != '\0'));
    if (!t) {
        return 0;
    }
    for (size_t i = 0; i < BL_COUNTOF(texts); i++) {
        check_text(t, texts[i], strlen(texts[i]));
    }
    if (nul) {
        check_text(t, (const char *)nul + 1, size - n - 1);
    }
    for (uint32_t id = 0; id < bl_tokenizer_vocab_size(t) && id < 1000; id++) {
        size_t len = 0;
        const char *piece = bl_tokenizer_piece(t, (int32_t)id, &len);
        BL_ASSERT(!piece || len == 0 || bl_tokenizer_id(t, piece, len) == (int32_t)id);
    }
    bl_tokenizer_free(t);
    return 0;
}
