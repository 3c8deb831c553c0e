/* Tokenizers inside GGUF (spec models.md §9.7): model "llama" (SentencePiece-style, scores) and model "gpt2"
 * (byte-level, merges, pre-tokenizer by name). Control tokens are never the result of merging, as in
 * SentencePiece; so text cannot spell one unless BL_ENCODE_SPECIAL_PARSE asks for it.
 */
#include <string.h>

#include "base/utf8.h"
#include "formats/tokenizer_impl.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE_WORD  "[^\\r\\n\\p{L}\\p{N}]?"

/* Patterns as the models' own tokenizer.json have them, applied one after the other. */
static const struct {
    const char *name;
    const char *patterns[4];
    bool normalize, ignore_merges, add_bos;
} pre_tokenizers[] = {
    {"default",
     {"[\\p{P}$+<=>^~|]+", bl_tokenizer_gpt2_pattern, "\\p{N}+", "[0-9][0-9][0-9]"},
     false,
     false,
     false},
    {"gpt-2", {bl_tokenizer_gpt2_pattern}, false, false, false},
    {"smollm", {"\\p{N}", bl_tokenizer_gpt2_pattern}, false, false, false},
    {"llama-bpe",
     {CONTRACTIONS "|" BEFORE_WORD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES},
     false,
     true,
     true},
    {"qwen2",
     {CONTRACTIONS "|" BEFORE_WORD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES},
     true,
     false,
     false},
    {"qwen35",
     {CONTRACTIONS "|" BEFORE_WORD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES},
     true,
     false,
     false},
    {"gpt-4o",
     {BEFORE_WORD UPPER "*" LOWER "+" CONTRACTIONS "?|" BEFORE_WORD UPPER "+" LOWER "*" CONTRACTIONS
                        "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES},
     false,
     true,
     false},
};

/* Names that mean the same pre-tokenizer. */
static const char *const aliases[][2] = {
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"gpt2", "gpt-2"}};

static bl_code add_pre_tokenizer(bl_tokenizer *t, const char *name, size_t n, bool *ret_add_bos,
                                 bl_err *err) {
    for (size_t i = 0; i < BL_COUNTOF(aliases); i++) {
        if (n == strlen(aliases[i][0]) && memcmp(name, aliases[i][0], n) == 0) {
            name = aliases[i][1];
            n = strlen(name);
        }
    }
    size_t k = 0;
    while (k < BL_COUNTOF(pre_tokenizers) &&
           !(n == strlen(pre_tokenizers[k].name) && memcmp(name, pre_tokenizers[k].name, n) == 0)) {
        k++;
    }
    if (k == BL_COUNTOF(pre_tokenizers)) {
        BL_FAIL(err, BL_ENOTSUP,
                "gguf: tokenizer.ggml.pre '%.*s' is not supported (default, gpt-2, smollm, llama-bpe, qwen2, "
                "qwen35, gpt-4o are)",
                (int)BL_MIN(n, (size_t)32), name);
    }
    if (pre_tokenizers[k].normalize) {
        bl_tokenizer_op *op = NULL;
        BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_NORMAL_FORM, &op, err));
        op->form = BL_UNICODE_NFC;
    }
    t->n_normalizers = t->n_ops;
    for (size_t i = 0; i < BL_COUNTOF(pre_tokenizers[k].patterns) && pre_tokenizers[k].patterns[i]; i++) {
        const char *pattern = pre_tokenizers[k].patterns[i];
        BL_TRY(bl_tokenizer_op_split(t, pattern, strlen(pattern), BL_TOKENIZER_ISOLATED, err));
    }
    t->ignore_merges = pre_tokenizers[k].ignore_merges;
    *ret_add_bos = pre_tokenizers[k].add_bos;
    return BL_OK;
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

static bl_code flags_of(const char *s, size_t n, size_t id, int32_t type, unsigned *ret, bl_err *err) {
    switch (type) {
    case 0:
    case TYPE_NORMAL:
    case TYPE_UNUSED:
        *ret = BL_TOKEN_MODEL;
        return BL_OK;
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        *ret = BL_TOKEN_SPECIAL | BL_TOKEN_ADDED | BL_TOKEN_RAW;
        return BL_OK;
    case TYPE_USER:
        *ret = BL_TOKEN_MODEL | BL_TOKEN_ADDED | BL_TOKEN_RAW;
        return BL_OK;
    case TYPE_BYTE:
        if (bl_tokenizer_byte_token(s, n) < 0) {
            BL_FAIL(err, BL_EFORMAT, "gguf: token %zu is of type byte (6), but not written <0xHH>", id);
        }
        *ret = BL_TOKEN_BYTE;
        return BL_OK;
    default:
        BL_FAIL(err, BL_EFORMAT, "gguf: token %zu has type %d, 0 to 6 allowed", id, type);
    }
}

static bl_code add_token(bl_tokenizer *t, const char *s, size_t n, size_t id, int32_t type, bl_err *err) {
    unsigned flags = 0;
    if (!bl_utf8_valid(s, n)) {
        BL_FAIL(err, BL_EFORMAT, "gguf: token %zu is not valid UTF-8", id);
    }
    BL_TRY(flags_of(s, n, id, type, &flags, err));
    BL_TRY(bl_tokenizer_vocab_add(&t->vocab, s, n, id, flags, err));
    return flags & BL_TOKEN_ADDED ? bl_tokenizer_matcher_add(&t->added_raw, s, n, (int32_t)id, flags, err)
                                  : BL_OK;
}

static bl_code check_len(const bl_gguf *g, const char *key, size_t n_tokens, size_t *ret, bl_err *err) {
    size_t n = 0;
    BL_TRY(bl_gguf_array_len(g, key, &n, err));
    if (n != 0 && n != n_tokens) {
        BL_FAIL(err, BL_EFORMAT, "gguf: %s has %zu entries for %zu tokens", key, n, n_tokens);
    }
    *ret = n;
    return BL_OK;
}

static bl_code add_tokens(bl_tokenizer *t, const bl_gguf *g, bl_err *err) {
    static const char key[] = "tokenizer.ggml.token_type";
    bl_gguf_strings tokens = {0};
    size_t n_types = 0;
    bool found = false;
    BL_TRY(bl_gguf_get_strings(g, "tokenizer.ggml.tokens", &tokens, &found, err));
    if (!found || tokens.n == 0) {
        BL_FAIL(err, BL_EFORMAT, "gguf: no tokenizer.ggml.tokens");
    }
    BL_TRY(check_len(g, key, tokens.n, &n_types, err));
    BL_TRY(bl_tokenizer_vocab_reserve(&t->vocab, tokens.n, err));
    int32_t *types = bl_alloc_array(tokens.n, sizeof *types);
    if (!types) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for %zu tokens", tokens.n);
    }
    bl_code rc = n_types > 0 ? bl_gguf_array_i32(g, key, types, n_types, err) : BL_OK;
    for (size_t i = 0; rc == BL_OK && i < tokens.n; i++) {
        rc = add_token(t, tokens.s[i], tokens.len[i], i, n_types > 0 ? types[i] : TYPE_NORMAL, err);
    }
    bl_free(types);
    return rc;
}

/* ---- the two models ---------------------------------------------------------------------------------- */

/* Sorts like the negated score: the highest score gives the smallest key. */
static uint32_t key_of(float score) {
    float negated = 0.0f - score; /* never -0 */
    uint32_t bits;
    memcpy(&bits, &negated, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static bl_code add_scores(bl_tokenizer *t, const bl_gguf *g, bl_err *err) {
    static const char key[] = "tokenizer.ggml.scores";
    size_t n = 0;
    BL_TRY(check_len(g, key, t->vocab.n_ids, &n, err));
    if (n == 0) {
        BL_FAIL(err, BL_EFORMAT, "gguf: no %s", key);
    }
    t->keys = bl_alloc_array(n, sizeof *t->keys);
    float *scores = bl_alloc_array(n, sizeof *scores);
    bl_code rc = t->keys && scores
                     ? bl_gguf_array_f32(g, key, scores, n, err)
                     : bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "tokenizer: out of memory");
    for (size_t i = 0; rc == BL_OK && i < n; i++) {
        t->keys[i] = key_of(scores[i]); /* the reader refuses NaN */
    }
    bl_free(scores);
    return rc;
}

static bl_code set_up_llama(bl_tokenizer *t, const bl_gguf *g, bl_err *err) {
    static const char block[] = "\xE2\x96\x81";
    bool space_prefix = true;
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &space_prefix, NULL, err));
    BL_TRY(add_scores(t, g, err));
    if (space_prefix) {
        BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_PREPEND, &op, err));
        BL_TRY(bl_tokenizer_op_text(op, " ", 1, NULL, 0, err));
        t->decode_strip[0] = ' ';
        t->decode_strip_len = 1;
    }
    BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_REPLACE, &op, err));
    BL_TRY(bl_tokenizer_op_text(op, " ", 1, block, 3, err));
    t->n_normalizers = t->n_ops;
    t->byte_fallback = true;
    return bl_tokenizer_op_text(&t->decode_replace, block, 3, " ", 1, err);
}

static bl_code add_merge(bl_tokenizer *t, const char *s, size_t n, size_t index, bl_buf *joined,
                         bl_err *err) {
    const char *space = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
    if (!space) {
        BL_FAIL(err, BL_EFORMAT, "gguf: merge %zu is not two parts", index);
    }
    size_t at = (size_t)(space - s);
    int32_t left = bl_tokenizer_vocab_find_model(&t->vocab, s, at);
    int32_t right = bl_tokenizer_vocab_find_model(&t->vocab, space + 1, n - at - 1);
    bl_buf_reset(joined);
    BL_TRY(bl_buf_append(joined, s, at, err));
    BL_TRY(bl_buf_append(joined, space + 1, n - at - 1, err));
    int32_t id = bl_tokenizer_vocab_find_model(&t->vocab, bl_buf_str(joined), joined->len);
    if (left < 0 || right < 0 || id < 0) {
        BL_FAIL(err, BL_EFORMAT, "gguf: merge %zu has a part or a result that is no token", index);
    }
    return bl_tokenizer_merges_add(&t->merges, left, right, id, err);
}

static bl_code set_up_gpt2(bl_tokenizer *t, const bl_gguf *g, bool *ret_add_bos, bl_err *err) {
    const char *pre = "default";
    size_t pre_len = strlen(pre);
    bl_gguf_strings merges = {0};
    bool found = false;
    BL_TRY(bl_gguf_get_str(g, "tokenizer.ggml.pre", &pre, &pre_len, NULL, err));
    BL_TRY(add_pre_tokenizer(t, pre, pre_len, ret_add_bos, err));
    BL_TRY(bl_gguf_get_strings(g, "tokenizer.ggml.merges", &merges, &found, err));
    if (!found) {
        BL_FAIL(err, BL_EFORMAT, "gguf: no tokenizer.ggml.merges");
    }
    bl_buf joined;
    bl_buf_init(&joined, 2 * BL_TOKENIZER_MAX_PIECE);
    bl_code rc = BL_OK;
    for (size_t i = 0; rc == BL_OK && i < merges.n; i++) {
        rc = add_merge(t, merges.s[i], merges.len[i], i, &joined, err);
    }
    bl_buf_done(&joined);
    t->byte_level = t->decode_byte_level = true;
    return rc;
}

/* ---- special ids ------------------------------------------------------------------------------------- */

/* An id from the metadata, or `absent` where it is a token; -1 else. */
static bl_code get_id(const bl_tokenizer *t, const bl_gguf *g, const char *key, int32_t absent, int32_t *ret,
                      bl_err *err) {
    uint64_t id = 0;
    bool found = false;
    BL_TRY(bl_gguf_get_u64(g, key, 0, t->vocab.n_ids - 1, &id, &found, err));
    *ret = found ? (int32_t)id : bl_tokenizer_vocab_has(&t->vocab, absent) ? absent : -1;
    return BL_OK;
}

static bl_code set_around(bl_tokenizer *t, const bl_gguf *g, bool scored, bool add_bos, bl_err *err) {
    bool add_eos = false;
    BL_TRY(get_id(t, g, "tokenizer.ggml.bos_token_id", scored ? 1 : -1, &t->bos, err));
    BL_TRY(get_id(t, g, "tokenizer.ggml.eos_token_id", scored ? 2 : -1, &t->eos, err));
    BL_TRY(get_id(t, g, "tokenizer.ggml.unknown_token_id", scored ? 0 : -1, &t->unk, err));
    if (!scored) {
        t->unk = -1; /* every byte has a token; the id is there for other uses */
    }
    BL_TRY(bl_gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &add_bos, NULL, err));
    BL_TRY(bl_gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &add_eos, NULL, err));
    if ((add_bos && t->bos < 0) || (add_eos && t->eos < 0)) {
        BL_FAIL(err, BL_EFORMAT, "gguf: add_%s_token is set, but there is no such token",
                t->bos < 0 && add_bos ? "bos" : "eos");
    }
    if (add_bos) {
        t->before[t->n_before++] = t->bos;
    }
    if (add_eos) {
        t->after[t->n_after++] = t->eos;
    }
    return BL_OK;
}

static bl_code load(bl_tokenizer *t, const bl_gguf *g, bl_err *err) {
    const char *model = "";
    size_t n = 0;
    bool add_bos = true;
    BL_TRY(bl_gguf_get_str(g, "tokenizer.ggml.model", &model, &n, NULL, err));
    bool scored = n == 5 && memcmp(model, "llama", 5) == 0;
    if (!scored && !(n == 4 && memcmp(model, "gpt2", 4) == 0)) {
        BL_FAIL(err, BL_ENOTSUP, "gguf: tokenizer.ggml.model '%.*s' is not supported (llama, gpt2 are)",
                (int)BL_MIN(n, (size_t)32), model);
    }
    BL_TRY(add_tokens(t, g, err));
    BL_TRY(scored ? set_up_llama(t, g, err) : set_up_gpt2(t, g, &add_bos, err));
    BL_TRY(set_around(t, g, scored, add_bos, err));
    return bl_tokenizer_finish(t, err);
}

bl_code bl_tokenizer_from_gguf(const bl_gguf *g, bl_tokenizer **ret, bl_err *err) {
    bl_tokenizer *t = NULL;
    BL_TRY(bl_tokenizer_new(&t, err));
    bl_code rc = load(t, g, err);
    if (rc != BL_OK) {
        bl_tokenizer_free(t);
        return rc;
    }
    *ret = t;
    return BL_OK;
}
