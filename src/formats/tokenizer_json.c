/* tokenizer.json of the Hugging Face tokenizers library. The vocabulary and the merges are read straight from
 * the text; all other members, which are small, are copied aside and parsed into a tree that lives as long as
 * the load.
 */
#include <string.h>

#include "base/utf8.h"
#include "formats/json.h"
#include "formats/tokenizer_impl.h"
#include "formats/tokenizer_reader.h"

static const char file[] = "tokenizer.json";

typedef struct {
    const char *s;
    size_t n;
} slice;

/* ---- what is supported, by name ---------------------------------------------------------------------- */

static bl_code unsupported(const char *what, const char *found, const char *allowed, bl_err *err) {
    BL_FAIL(err, BL_ENOTSUP, "%s: %s '%.64s' is not supported (%s are)", file, what, found, allowed);
}

/* The "type" of a normalizer, pre-tokenizer, ... */
static bl_code type_of(const json_t *o, const char *what, const char **ret, bl_err *err) {
    const char *type = NULL;
    if (!json_is_object(o)) {
        BL_FAIL(err, BL_EFORMAT, "%s: %s is no object", file, what);
    }
    BL_TRY(bl_json_get_str(o, "type", what, &type, err));
    if (!type) {
        BL_FAIL(err, BL_EFORMAT, "%s: %s has no type", file, what);
    }
    *ret = type;
    return BL_OK;
}

static bl_code need_str(const json_t *o, const char *key, const char *what, const char **ret, bl_err *err) {
    *ret = NULL;
    BL_TRY(bl_json_get_str(o, key, what, ret, err));
    if (!*ret) {
        BL_FAIL(err, BL_EFORMAT, "%s: %s has no %s", file, what, key);
    }
    return BL_OK;
}

static bl_code need_array(const json_t *o, const char *key, const char *what, const json_t **ret,
                          bl_err *err) {
    *ret = json_object_get(o, key);
    if (!json_is_array(*ret)) {
        BL_FAIL(err, BL_EFORMAT, "%s: %s has no array %s", file, what, key);
    }
    return BL_OK;
}

/* {"String": "..."} or {"Regex": "..."}. */
static bl_code pattern_of(const json_t *o, const char *what, const char **ret_string, const char **ret_regex,
                          bl_err *err) {
    const json_t *pattern = json_object_get(o, "pattern");
    *ret_string = *ret_regex = NULL;
    if (json_is_object(pattern)) {
        BL_TRY(bl_json_get_str(pattern, "String", what, ret_string, err));
        BL_TRY(bl_json_get_str(pattern, "Regex", what, ret_regex, err));
    }
    if (!*ret_string == !*ret_regex) {
        BL_FAIL(err, BL_EFORMAT, "%s: the pattern of %s is neither a String nor a Regex", file, what);
    }
    return BL_OK;
}

/* ---- normalizers ------------------------------------------------------------------------------------- */

static bl_code add_replace(bl_tokenizer *t, const char *a, const char *b, bl_err *err) {
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_REPLACE, &op, err));
    return bl_tokenizer_op_text(op, a, strlen(a), b, strlen(b), err);
}

static bl_code add_prefix(bl_tokenizer *t, bl_tokenizer_op_kind kind, const char *a, bool at_start,
                          bl_err *err) {
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_tokenizer_op_add(t, kind, &op, err));
    op->at_start = at_start;
    return bl_tokenizer_op_text(op, a, strlen(a), NULL, 0, err);
}

static bl_code add_form(bl_tokenizer *t, bl_unicode_form form, bl_err *err) {
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_NORMAL_FORM, &op, err));
    op->form = form;
    return BL_OK;
}

static bl_code add_one_normalizer(bl_tokenizer *t, const json_t *o, const char *type, bl_err *err) {
    static const char *const forms[BL_UNICODE_FORM__MAX] = {[BL_UNICODE_NFC] = "NFC",
                                                            [BL_UNICODE_NFD] = "NFD",
                                                            [BL_UNICODE_NFKC] = "NFKC",
                                                            [BL_UNICODE_NFKD] = "NFKD"};
    const char *a, *b;
    bl_tokenizer_op *op = NULL;
    for (unsigned f = 0; f < BL_UNICODE_FORM__MAX; f++) {
        if (strcmp(type, forms[f]) == 0) {
            return add_form(t, (bl_unicode_form)f, err);
        }
    }
    if (strcmp(type, "Replace") == 0) {
        const char *regex;
        BL_TRY(pattern_of(o, "normalizer Replace", &a, &regex, err));
        if (regex) {
            return unsupported("the pattern of normalizer Replace", "Regex", "String patterns", err);
        }
        BL_TRY(need_str(o, "content", "normalizer Replace", &b, err));
        return add_replace(t, a, b, err);
    }
    if (strcmp(type, "Prepend") == 0) {
        BL_TRY(need_str(o, "prepend", "normalizer Prepend", &a, err));
        return add_prefix(t, BL_TOKENIZER_OP_PREPEND, a, false, err);
    }
    if (strcmp(type, "Lowercase") == 0) {
        return bl_tokenizer_op_add(t, BL_TOKENIZER_OP_LOWER, &op, err);
    }
    return unsupported("normalizer", type, "NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Sequence",
                       err);
}

static bl_code add_normalizer(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *type;
    const json_t *list;
    if (!o || json_is_null(o)) {
        return BL_OK;
    }
    BL_TRY(type_of(o, "normalizer", &type, err));
    if (strcmp(type, "Sequence") != 0) {
        return add_one_normalizer(t, o, type, err);
    }
    BL_TRY(need_array(o, "normalizers", "normalizer Sequence", &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        BL_TRY(type_of(json_array_get(list, i), "normalizer", &type, err));
        BL_TRY(add_one_normalizer(t, json_array_get(list, i), type, err));
    }
    return BL_OK;
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------- */

static bl_code behavior_of(const json_t *o, bl_tokenizer_behavior *ret, bl_err *err) {
    static const char *const names[] = {
        [BL_TOKENIZER_ISOLATED] = "Isolated",
        [BL_TOKENIZER_REMOVED] = "Removed",
        [BL_TOKENIZER_MERGED_PREVIOUS] = "MergedWithPrevious",
        [BL_TOKENIZER_MERGED_NEXT] = "MergedWithNext",
        [BL_TOKENIZER_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    BL_TRY(need_str(o, "behavior", "pre_tokenizer Split", &name, err));
    for (unsigned i = 0; i < BL_COUNTOF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret = (bl_tokenizer_behavior)i;
            return BL_OK;
        }
    }
    return unsupported("the behavior of pre_tokenizer Split", name,
                       "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous", err);
}

static bl_code add_split(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *string, *regex;
    bl_tokenizer_behavior behavior = BL_TOKENIZER_ISOLATED;
    BL_TRY(pattern_of(o, "pre_tokenizer Split", &string, &regex, err));
    BL_TRY(behavior_of(o, &behavior, err));
    if (regex) {
        BL_TRY(bl_tokenizer_op_split(t, regex, strlen(regex), behavior, err));
    } else {
        bl_tokenizer_op *op = NULL;
        BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_SPLIT, &op, err));
        op->behavior = behavior;
        BL_TRY(bl_tokenizer_op_text(op, string, strlen(string), NULL, 0, err));
    }
    return bl_json_get_bool(o, "invert", "pre_tokenizer Split", &t->ops[t->n_ops - 1].invert, err);
}

static bl_code add_byte_level(bl_tokenizer *t, const json_t *o, bl_err *err) {
    bool prefix = true, use_regex = true;
    BL_TRY(bl_json_get_bool(o, "add_prefix_space", "pre_tokenizer ByteLevel", &prefix, err));
    BL_TRY(bl_json_get_bool(o, "use_regex", "pre_tokenizer ByteLevel", &use_regex, err));
    t->byte_level = true;
    if (prefix) {
        BL_TRY(add_prefix(t, BL_TOKENIZER_OP_PREFIX, " ", false, err));
    }
    if (!use_regex) {
        return BL_OK;
    }
    return bl_tokenizer_op_split(t, bl_tokenizer_gpt2_pattern, strlen(bl_tokenizer_gpt2_pattern),
                                 BL_TOKENIZER_ISOLATED, err);
}

/* Metaspace names its replacement and where a prefix goes; older files say add_prefix_space instead. */
static bl_code metaspace_of(const json_t *o, const char **ret_replacement, const char **ret_scheme,
                            bl_err *err) {
    bool prefix = true;
    *ret_replacement = "\xE2\x96\x81";
    *ret_scheme = NULL;
    BL_TRY(bl_json_get_str(o, "replacement", "Metaspace", ret_replacement, err));
    BL_TRY(bl_json_get_str(o, "prepend_scheme", "Metaspace", ret_scheme, err));
    BL_TRY(bl_json_get_bool(o, "add_prefix_space", "Metaspace", &prefix, err));
    if (!*ret_scheme) {
        *ret_scheme = prefix ? "always" : "never";
    }
    if (strcmp(*ret_scheme, "always") != 0 && strcmp(*ret_scheme, "first") != 0 &&
        strcmp(*ret_scheme, "never") != 0) {
        return unsupported("prepend_scheme", *ret_scheme, "always, first, never", err);
    }
    return BL_OK;
}

static bl_code add_metaspace(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *replacement, *scheme;
    bool use_split = true;
    BL_TRY(metaspace_of(o, &replacement, &scheme, err));
    BL_TRY(bl_json_get_bool(o, "split", "pre_tokenizer Metaspace", &use_split, err));
    BL_TRY(add_replace(t, " ", replacement, err));
    if (strcmp(scheme, "never") != 0) {
        BL_TRY(add_prefix(t, BL_TOKENIZER_OP_PREFIX, replacement, strcmp(scheme, "first") == 0, err));
    }
    if (!use_split) {
        return BL_OK;
    }
    bl_tokenizer_op *op = NULL;
    BL_TRY(bl_tokenizer_op_add(t, BL_TOKENIZER_OP_SPLIT, &op, err));
    op->behavior = BL_TOKENIZER_MERGED_NEXT;
    return bl_tokenizer_op_text(op, replacement, strlen(replacement), NULL, 0, err);
}

static bl_code add_one_pre_tokenizer(bl_tokenizer *t, const json_t *o, const char *type, bl_err *err) {
    if (t->byte_level) { /* what follows would see the byte-level alphabet */
        return unsupported("a pre_tokenizer after ByteLevel,", type, "none", err);
    }
    if (strcmp(type, "Split") == 0) {
        return add_split(t, o, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return add_byte_level(t, o, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return add_metaspace(t, o, err);
    }
    if (strcmp(type, "Digits") == 0) {
        bool individual = false;
        BL_TRY(bl_json_get_bool(o, "individual_digits", "pre_tokenizer Digits", &individual, err));
        return bl_tokenizer_op_split(t, "\\p{N}", 5,
                                     individual ? BL_TOKENIZER_ISOLATED : BL_TOKENIZER_CONTIGUOUS, err);
    }
    return unsupported("pre_tokenizer", type, "Split, ByteLevel, Metaspace, Digits, Sequence", err);
}

static bl_code add_pre_tokenizer(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *type;
    const json_t *list;
    if (!o || json_is_null(o)) {
        return BL_OK;
    }
    BL_TRY(type_of(o, "pre_tokenizer", &type, err));
    if (strcmp(type, "Sequence") != 0) {
        return add_one_pre_tokenizer(t, o, type, err);
    }
    BL_TRY(need_array(o, "pretokenizers", "pre_tokenizer Sequence", &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        BL_TRY(type_of(json_array_get(list, i), "pre_tokenizer", &type, err));
        BL_TRY(add_one_pre_tokenizer(t, json_array_get(list, i), type, err));
    }
    return BL_OK;
}

/* ---- post-processor ---------------------------------------------------------------------------------- */

/* The ids of one special token of the template, appended on the side that is being filled. */
static bl_code add_template_token(bl_tokenizer *t, const json_t *tokens, const char *name, bool after,
                                  bl_err *err) {
    const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    int32_t *side = after ? t->after : t->before;
    size_t *n = after ? &t->n_after : &t->n_before;
    if (!json_is_array(ids)) {
        BL_FAIL(err, BL_EFORMAT, "%s: the post_processor has no ids for '%.64s'", file, name);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || !bl_tokenizer_vocab_has(&t->vocab, id)) {
            BL_FAIL(err, BL_EFORMAT, "%s: the post_processor adds an id that is no token for '%.64s'", file,
                    name);
        }
        if (*n == BL_TOKENIZER_MAX_AROUND) {
            BL_FAIL(err, BL_ELIMIT, "%s: the post_processor adds more than %u tokens", file,
                    BL_TOKENIZER_MAX_AROUND);
        }
        side[(*n)++] = (int32_t)id;
    }
    return BL_OK;
}

static bl_code add_template(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const json_t *single, *tokens = json_object_get(o, "special_tokens");
    bool seen_text = false;
    BL_TRY(need_array(o, "single", "post_processor TemplateProcessing", &single, err));
    if (t->n_before + t->n_after > 0) {
        return unsupported("post_processor", "a second TemplateProcessing", "one, and ByteLevel,", err);
    }
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        if (special) {
            const char *name;
            BL_TRY(need_str(special, "id", "post_processor TemplateProcessing", &name, err));
            BL_TRY(add_template_token(t, tokens, name, seen_text, err));
        } else if (json_object_get(json_array_get(single, i), "Sequence") && !seen_text) {
            seen_text = true;
        } else {
            BL_FAIL(err, BL_EFORMAT, "%s: piece %zu of the post_processor's template", file, i);
        }
    }
    if (!seen_text) {
        BL_FAIL(err, BL_EFORMAT, "%s: the post_processor's template has no place for the text", file);
    }
    t->bos = t->n_before > 0 ? t->before[0] : -1;
    t->eos = t->n_after > 0 ? t->after[t->n_after - 1] : -1;
    return BL_OK;
}

static bl_code add_post_processor(bl_tokenizer *t, const json_t *o, unsigned depth, bl_err *err) {
    const char *type;
    const json_t *list;
    if (!o || json_is_null(o)) {
        return BL_OK;
    }
    BL_TRY(type_of(o, "post_processor", &type, err));
    if (strcmp(type, "ByteLevel") == 0) {
        return BL_OK; /* moves offsets only */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return add_template(t, o, err);
    }
    if (strcmp(type, "Sequence") != 0 || depth > 0) {
        return unsupported("post_processor", type, "TemplateProcessing, ByteLevel, Sequence of them", err);
    }
    BL_TRY(need_array(o, "processors", "post_processor Sequence", &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        BL_TRY(add_post_processor(t, json_array_get(list, i), depth + 1, err));
    }
    return BL_OK;
}

/* ---- decoder ----------------------------------------------------------------------------------------- */

static bl_code set_decode_replace(bl_tokenizer *t, const char *a, const char *b, bl_err *err) {
    if (t->decode_replace.a) {
        return unsupported("decoder", "a second Replace or Metaspace", "one each", err);
    }
    return bl_tokenizer_op_text(&t->decode_replace, a, strlen(a), b, strlen(b), err);
}

static bl_code add_decode_strip(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *content;
    uint64_t start = 0, stop = 0;
    uint32_t cp;
    BL_TRY(need_str(o, "content", "decoder Strip", &content, err));
    BL_TRY(bl_json_get_u64(o, "start", 0, 1, "decoder Strip", &start, err));
    BL_TRY(bl_json_get_u64(o, "stop", 0, 0, "decoder Strip", &stop, err));
    size_t len = bl_utf8_decode(content, strlen(content), &cp);
    if (len == 0 || content[len] != '\0') {
        BL_FAIL(err, BL_EFORMAT, "%s: the content of decoder Strip is not one character", file);
    }
    if (start == 1) {
        memcpy(t->decode_strip, content, len);
        t->decode_strip_len = len;
    }
    return BL_OK;
}

/* Decoders work in this order; another one would mean something else. */
enum { STAGE_PIECE, STAGE_BYTES, STAGE_FUSED, STAGE_STRIPPED, STAGE_BYTE_LEVEL };

static bl_code add_one_decoder(bl_tokenizer *t, const json_t *o, const char *type, int *stage, bl_err *err) {
    const char *a, *b;
    if (strcmp(type, "ByteLevel") == 0 && *stage == STAGE_PIECE && !t->decode_replace.a) {
        t->decode_byte_level = true;
        *stage = STAGE_BYTE_LEVEL;
        return BL_OK;
    }
    if (strcmp(type, "Replace") == 0 && *stage == STAGE_PIECE) {
        const char *regex;
        BL_TRY(pattern_of(o, "decoder Replace", &a, &regex, err));
        BL_TRY(need_str(o, "content", "decoder Replace", &b, err));
        if (regex) {
            return unsupported("the pattern of decoder Replace", "Regex", "String patterns", err);
        }
        return set_decode_replace(t, a, b, err);
    }
    if (strcmp(type, "Metaspace") == 0 && *stage == STAGE_PIECE) {
        BL_TRY(metaspace_of(o, &a, &b, err));
        t->decode_drop_first = strcmp(b, "never") != 0;
        return set_decode_replace(t, a, " ", err);
    }
    if (strcmp(type, "ByteFallback") == 0 && *stage == STAGE_PIECE) {
        t->decode_bytes = true;
        *stage = STAGE_BYTES;
        return BL_OK;
    }
    if (strcmp(type, "Fuse") == 0 && *stage <= STAGE_BYTES) {
        *stage = STAGE_FUSED;
        return BL_OK;
    }
    if (strcmp(type, "Strip") == 0 && *stage == STAGE_FUSED) {
        *stage = STAGE_STRIPPED;
        return add_decode_strip(t, o, err);
    }
    return unsupported("decoder, at its place,", type,
                       "ByteLevel alone, or Replace or Metaspace, ByteFallback, Fuse, Strip in this order,",
                       err);
}

static bl_code add_decoder(bl_tokenizer *t, const json_t *o, bl_err *err) {
    const char *type;
    const json_t *list;
    int stage = STAGE_PIECE;
    BL_TRY(type_of(o, "decoder", &type, err));
    if (strcmp(type, "Sequence") != 0) {
        return add_one_decoder(t, o, type, &stage, err);
    }
    BL_TRY(need_array(o, "decoders", "decoder Sequence", &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        BL_TRY(type_of(json_array_get(list, i), "decoder", &type, err));
        BL_TRY(add_one_decoder(t, json_array_get(list, i), type, &stage, err));
    }
    return BL_OK;
}

/* ---- added tokens ------------------------------------------------------------------------------------ */

static bl_code added_flags(const json_t *o, unsigned *ret_flags, bool *ret_normalized, bl_err *err) {
    static const struct {
        const char *key;
        unsigned flag;
    } keys[] = {{"single_word", BL_TOKEN_SINGLE_WORD},
                {"lstrip", BL_TOKEN_LSTRIP},
                {"rstrip", BL_TOKEN_RSTRIP},
                {"special", BL_TOKEN_SPECIAL}};
    *ret_flags = BL_TOKEN_ADDED;
    for (size_t i = 0; i < BL_COUNTOF(keys); i++) {
        bool on = false;
        BL_TRY(bl_json_get_bool(o, keys[i].key, "added token", &on, err));
        *ret_flags |= on ? keys[i].flag : 0;
    }
    *ret_normalized = !(*ret_flags & BL_TOKEN_SPECIAL);
    return bl_json_get_bool(o, "normalized", "added token", ret_normalized, err);
}

static bl_code add_pattern(bl_tokenizer_work *w, bl_tokenizer *t, const char *s, size_t n, int32_t id,
                           unsigned flags, bool normalized, bl_err *err) {
    if (!normalized) {
        return bl_tokenizer_matcher_add(&t->added_raw, s, n, id, flags, err);
    }
    const char *form = s;
    size_t form_n = n;
    BL_TRY(bl_tokenizer_normalize(w, s, n, &form, &form_n, err));
    if (form_n != n || memcmp(form, s, n) != 0) {
        t->vocab.pieces[id].flags |= BL_TOKEN_RENAMED;
    }
    return bl_tokenizer_matcher_add(&t->added_normalized, form, form_n, id, flags, err);
}

static bl_code add_added(bl_tokenizer_work *w, bl_tokenizer *t, const json_t *o, size_t index, bl_err *err) {
    uint64_t id = UINT64_MAX;
    unsigned flags;
    bool normalized;
    const char *content;
    BL_TRY(need_str(o, "content", "added token", &content, err));
    BL_TRY(bl_json_get_u64(o, "id", 0, BL_TOKENIZER_MAX_IDS - 1, "added token", &id, err));
    BL_TRY(added_flags(o, &flags, &normalized, err));
    size_t n = strlen(content);
    if (n == 0) {
        return BL_OK; /* as the reference */
    }
    int32_t known = bl_tokenizer_vocab_find(&t->vocab, content, n);
    if (id == UINT64_MAX || (known >= 0 && (uint64_t)known != id)) {
        BL_FAIL(err, BL_EFORMAT, "%s: added token %zu has id %lld, the vocabulary says %d", file, index,
                (long long)id, known);
    }
    if (known < 0) {
        BL_TRY(bl_tokenizer_vocab_add(&t->vocab, content, n, id, 0, err));
    }
    t->vocab.pieces[id].flags |= (uint8_t)(flags & (BL_TOKEN_SPECIAL | BL_TOKEN_ADDED));
    return add_pattern(w, t, content, n, (int32_t)id, flags, normalized, err);
}

/* Special tokens come first, as in the reference: of two added tokens with one content the first found
 * counts. */
static bl_code add_all_added(bl_tokenizer_work *w, bl_tokenizer *t, const json_t *list, bl_err *err) {
    if (!list || json_is_null(list)) {
        return BL_OK;
    }
    if (!json_is_array(list)) {
        BL_FAIL(err, BL_EFORMAT, "%s: added_tokens is no array", file);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *o = json_array_get(list, i);
            bool special = false;
            BL_TRY(bl_json_get_bool(o, "special", "added token", &special, err));
            if (special == (pass == 0)) {
                BL_TRY(add_added(w, t, o, i, err));
            }
        }
    }
    return BL_OK;
}

static bl_code add_added_tokens(bl_tokenizer *t, const json_t *list, bl_err *err) {
    bl_tokenizer_work *w = bl_alloc(sizeof *w);
    if (!w) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory");
    }
    w->t = t;
    for (size_t i = 0; i < t->n_ops; i++) {
        bl_buf_init(&w->scratch[i], BL_TOKENIZER_MAX_OUT);
    }
    bl_code rc = add_all_added(w, t, list, err);
    for (size_t i = 0; i < t->n_ops; i++) {
        bl_buf_done(&w->scratch[i]);
    }
    bl_free(w);
    return rc;
}

/* ---- model ------------------------------------------------------------------------------------------- */

static bl_code read_vocab(bl_tokenizer *t, slice text, bl_err *err) {
    bl_tokenizer_reader r;
    bl_tokenizer_reader_init(&r, text.s, text.n);
    bool more = false;
    bl_code rc = bl_tokenizer_reader_expect(&r, '{', err);
    for (bool first = true; rc == BL_OK; first = false) {
        const char *s;
        size_t n;
        uint64_t id;
        BL_TRY_GOTO(rc, out, bl_tokenizer_reader_more(&r, first, '}', &more, err));
        if (!more) {
            break;
        }
        BL_TRY_GOTO(rc, out, bl_tokenizer_reader_string(&r, &s, &n, err));
        BL_TRY_GOTO(rc, out, bl_tokenizer_reader_expect(&r, ':', err));
        BL_TRY_GOTO(rc, out, bl_tokenizer_reader_integer(&r, &id, err));
        BL_TRY_GOTO(rc, out, bl_tokenizer_vocab_add(&t->vocab, s, n, id, BL_TOKEN_MODEL, err));
    }
out:
    bl_tokenizer_reader_done(&r);
    return rc;
}

static bl_code merge_part(const bl_tokenizer *t, const char *s, size_t n, int32_t *ret, bl_err *err) {
    *ret = bl_tokenizer_vocab_find_model(&t->vocab, s, n);
    if (*ret < 0) {
        BL_FAIL(err, BL_EFORMAT, "%s: merge %u has a part that is no token", file, t->merges.n);
    }
    return BL_OK;
}

/* One element: "left right" or ["left", "right"]. */
static bl_code read_merge(bl_tokenizer *t, bl_tokenizer_reader *r, bl_buf *joined, bl_err *err) {
    const char *s;
    size_t n;
    int32_t left, right, id;
    if (bl_tokenizer_reader_peek(r) == '[') {
        BL_TRY(bl_tokenizer_reader_expect(r, '[', err));
        BL_TRY(bl_tokenizer_reader_string(r, &s, &n, err));
        BL_TRY(merge_part(t, s, n, &left, err));
        BL_TRY(bl_tokenizer_reader_expect(r, ',', err));
        BL_TRY(bl_tokenizer_reader_string(r, &s, &n, err));
        BL_TRY(merge_part(t, s, n, &right, err));
        BL_TRY(bl_tokenizer_reader_expect(r, ']', err));
    } else {
        BL_TRY(bl_tokenizer_reader_string(r, &s, &n, err));
        if (n >= 8 && memcmp(s, "#version", 8) == 0) {
            return BL_OK;
        }
        const char *space = n > 0 ? memchr(s, ' ', n) : NULL;
        size_t at = space ? (size_t)(space - s) : n;
        if (!space || memchr(space + 1, ' ', n - at - 1)) {
            BL_FAIL(err, BL_EFORMAT, "%s: merge %u is not two parts", file, t->merges.n);
        }
        BL_TRY(merge_part(t, s, at, &left, err));
        BL_TRY(merge_part(t, space + 1, n - at - 1, &right, err));
    }
    const bl_tokenizer_vocab *v = &t->vocab;
    bl_buf_reset(joined);
    BL_TRY(bl_buf_append(joined, v->blob + v->pieces[left].off, v->pieces[left].len, err));
    BL_TRY(bl_buf_append(joined, v->blob + v->pieces[right].off, v->pieces[right].len, err));
    BL_TRY(merge_part(t, bl_buf_str(joined), joined->len, &id, err));
    return bl_tokenizer_merges_add(&t->merges, left, right, id, err);
}

static bl_code read_merges(bl_tokenizer *t, slice text, bl_err *err) {
    bl_tokenizer_reader r;
    bl_buf joined;
    bl_tokenizer_reader_init(&r, text.s, text.n);
    bl_buf_init(&joined, 2 * BL_TOKENIZER_MAX_PIECE);
    bool more = false;
    bl_code rc = bl_tokenizer_reader_expect(&r, '[', err);
    for (bool first = true; rc == BL_OK; first = false) {
        BL_TRY_GOTO(rc, out, bl_tokenizer_reader_more(&r, first, ']', &more, err));
        if (!more) {
            break;
        }
        rc = read_merge(t, &r, &joined, err);
    }
out:
    bl_tokenizer_reader_done(&r);
    bl_buf_done(&joined);
    return rc;
}

static bl_code refuse_affix(const json_t *model, const char *key, bl_err *err) {
    const char *s = NULL;
    BL_TRY(bl_json_get_str(model, key, "model", &s, err));
    return s && *s ? unsupported(key, s, "models without one", err) : BL_OK;
}

static bl_code read_model(bl_tokenizer *t, const json_t *model, slice vocab, slice merges, bl_err *err) {
    const char *type = "BPE", *unk = NULL;
    double dropout = 0;
    BL_TRY(bl_json_get_str(model, "type", "model", &type, err));
    if (strcmp(type, "BPE") != 0) {
        return unsupported("model", type, "BPE models", err);
    }
    BL_TRY(bl_json_get_f64(model, "dropout", 0, 0, "model", &dropout, err));
    BL_TRY(refuse_affix(model, "continuing_subword_prefix", err));
    BL_TRY(refuse_affix(model, "end_of_word_suffix", err));
    BL_TRY(bl_json_get_bool(model, "fuse_unk", "model", &t->fuse_unk, err));
    BL_TRY(bl_json_get_bool(model, "byte_fallback", "model", &t->byte_fallback, err));
    BL_TRY(bl_json_get_bool(model, "ignore_merges", "model", &t->ignore_merges, err));
    BL_TRY(bl_json_get_str(model, "unk_token", "model", &unk, err));
    if (!vocab.s || !merges.s) {
        BL_FAIL(err, BL_EFORMAT, "%s: the model has no %s", file, vocab.s ? "merges" : "vocab");
    }
    BL_TRY(read_vocab(t, vocab, err));
    if (unk) {
        t->unk = bl_tokenizer_vocab_find_model(&t->vocab, unk, strlen(unk));
        if (t->unk < 0) {
            BL_FAIL(err, BL_EFORMAT, "%s: unk_token is no token of the vocabulary", file);
        }
    }
    return read_merges(t, merges, err);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* Walks an object: the values of the members named in `apart` go to `ret_apart` as they stand, all others are
 * copied to *rest, an object of its own. A name in `apart` that comes twice is refused here, all others by
 * the JSON parser. */
static bl_code set_apart(bl_tokenizer_reader *r, const char *const *apart, slice *ret_apart, size_t n_apart,
                         bl_buf *rest, bl_err *err) {
    bool more = false;
    BL_TRY(bl_tokenizer_reader_expect(r, '{', err));
    BL_TRY(bl_buf_append_char(rest, '{', err));
    for (bool first = true;; first = false) {
        slice key, value;
        BL_TRY(bl_tokenizer_reader_more(r, first, '}', &more, err));
        if (!more) {
            break;
        }
        if (bl_tokenizer_reader_peek(r) != '"') {
            return bl_tokenizer_reader_expect(r, '"', err);
        }
        BL_TRY(bl_tokenizer_reader_skip(r, &key.s, &key.n, err));
        BL_TRY(bl_tokenizer_reader_expect(r, ':', err));
        BL_TRY(bl_tokenizer_reader_skip(r, &value.s, &value.n, err));
        size_t i = 0;
        while (i < n_apart &&
               !(key.n == strlen(apart[i]) + 2 && memcmp(key.s + 1, apart[i], key.n - 2) == 0)) {
            i++;
        }
        if (i == n_apart) {
            BL_TRY(rest->len > 1 ? bl_buf_append_char(rest, ',', err) : BL_OK);
            BL_TRY(bl_buf_append(rest, key.s, key.n, err));
            BL_TRY(bl_buf_append_char(rest, ':', err));
            BL_TRY(bl_buf_append(rest, value.s, value.n, err));
            continue;
        }
        if (ret_apart[i].s) {
            BL_FAIL(err, BL_EFORMAT, "%s: two members are named %s", file, apart[i]);
        }
        ret_apart[i] = value;
    }
    return bl_buf_append_char(rest, '}', err);
}

typedef struct {
    bl_buf top, model; /* without what was set apart */
    slice parts[2];    /* vocab, merges */
    json_t *top_tree, *model_tree;
} sections;

static bl_code read_sections(sections *s, const char *text, size_t n, bl_err *err) {
    static const char *const top[] = {"model"};
    static const char *const model[] = {"vocab", "merges"};
    slice found = {0};
    bl_tokenizer_reader r;
    bl_tokenizer_reader_init(&r, text, n);
    bl_code rc = set_apart(&r, top, &found, 1, &s->top, err);
    if (rc == BL_OK && (bl_tokenizer_reader_peek(&r) != '\0' || r.p != r.end)) {
        rc = bl_err_set(err, BL_EFORMAT, __FILE__, __LINE__, "%s: more text after the object, at byte %zu",
                        file, bl_tokenizer_reader_at(&r));
    }
    bl_tokenizer_reader_done(&r);
    BL_TRY(rc);
    if (!found.s) {
        BL_FAIL(err, BL_EFORMAT, "%s: no model", file);
    }
    bl_tokenizer_reader_init(&r, found.s, found.n);
    rc = set_apart(&r, model, s->parts, 2, &s->model, err);
    bl_tokenizer_reader_done(&r);
    BL_TRY(rc);
    BL_TRY(bl_json_parse(bl_buf_str(&s->top), s->top.len, 32, file, &s->top_tree, err));
    return bl_json_parse(bl_buf_str(&s->model), s->model.len, 32, file, &s->model_tree, err);
}

static bl_code load(bl_tokenizer *t, sections *s, const char *text, size_t n, bl_err *err) {
    if (!bl_utf8_valid(text, n)) {
        BL_FAIL(err, BL_EFORMAT, "%s: not valid UTF-8", file);
    }
    BL_TRY(read_sections(s, text, n, err));
    BL_TRY(read_model(t, s->model_tree, s->parts[0], s->parts[1], err));
    BL_TRY(add_normalizer(t, json_object_get(s->top_tree, "normalizer"), err));
    t->n_normalizers = t->n_ops;
    BL_TRY(add_pre_tokenizer(t, json_object_get(s->top_tree, "pre_tokenizer"), err));
    BL_TRY(add_added_tokens(t, json_object_get(s->top_tree, "added_tokens"), err));
    BL_TRY(add_post_processor(t, json_object_get(s->top_tree, "post_processor"), 0, err));
    BL_TRY(add_decoder(t, json_object_get(s->top_tree, "decoder"), err));
    return bl_tokenizer_finish(t, err);
}

bl_code bl_tokenizer_from_json(const char *text, size_t n, bl_tokenizer **ret, bl_err *err) {
    if (n > BL_TOKENIZER_JSON_MAX_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "%s: %zu bytes, at most %zu allowed", file, n, BL_TOKENIZER_JSON_MAX_BYTES);
    }
    sections s = {0};
    bl_tokenizer *t = NULL;
    bl_buf_init(&s.top, BL_TOKENIZER_JSON_MAX_BYTES);
    bl_buf_init(&s.model, BL_TOKENIZER_JSON_MAX_BYTES);
    bl_code rc = bl_tokenizer_new(&t, err);
    if (rc == BL_OK) {
        rc = load(t, &s, text, n, err);
    }
    json_decref(s.top_tree);
    json_decref(s.model_tree);
    bl_buf_done(&s.top);
    bl_buf_done(&s.model);
    if (rc != BL_OK) {
        bl_tokenizer_free(t);
        return rc;
    }
    *ret = t;
    return BL_OK;
}
