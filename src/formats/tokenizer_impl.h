/* Inside the tokenizer: the parts that its files share. Nothing else includes this header.
 *
 * Data flow of encode:  text -> added tokens written as they are -> normalizer ops -> added tokens in
 * normalized text
 * -> pre-tokenizer ops -> one word at a time into the model (tokenizer_bpe.c) -> ids.
 * Everything reachable from bl_tokenizer is [immutable after open]; everything that changes during a call
 * hangs on a bl_tokenizer_work, which belongs to that call.
 */
#ifndef BL_FORMATS_TOKENIZER_IMPL_H
#define BL_FORMATS_TOKENIZER_IMPL_H

#include <assert.h>

#include "base/base.h"
#include "formats/limits.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer_regex.h"
#include "formats/unicode.h"

enum {
    BL_TOKEN_MODEL = 1, /* the model's own: merges may form it, a whole word may be it */
    BL_TOKEN_SPECIAL =
        2, /* control token: dropped by skip_special, matched only with BL_ENCODE_SPECIAL_PARSE */
    BL_TOKEN_ADDED = 4,    /* matched in the text before the model sees it */
    BL_TOKEN_RAW = 8,      /* decodes to its content as it is */
    BL_TOKEN_BYTE = 16,    /* <0xHH> standing for one byte */
    BL_TOKEN_RENAMED = 32, /* decodes to its normalized content, as in the reference */
    /* how an added token is matched; kept with its pattern only */
    BL_TOKEN_SINGLE_WORD = 256,
    BL_TOKEN_LSTRIP = 512,
    BL_TOKEN_RSTRIP = 1024,
};

/* ---- tokenizer_vocab.c: id -> content and content -> id ---------------------------------------------- */

typedef struct {
    uint32_t hash, id1; /* id + 1; 0: free */
} bl_tokenizer_slot;

typedef struct {
    uint32_t off; /* in the blob; UINT32_MAX: no such id */
    uint16_t len;
    uint8_t flags;
} bl_tokenizer_piece_info;
static_assert(BL_TOKENIZER_MAX_PIECE <= UINT16_MAX, "lengths are kept in 16 bits");

typedef struct {
    char *blob; /* contents, each followed by NUL */
    size_t blob_len, blob_cap;
    bl_tokenizer_piece_info *pieces; /* by id */
    uint32_t n_ids, cap_ids;         /* highest id + 1 */
    bl_tokenizer_slot *slots;
    uint32_t n_slots, n_used; /* n_slots: power of two, at most two thirds used */
    uint32_t longest;         /* bytes */
} bl_tokenizer_vocab;

void bl_tokenizer_vocab_done(bl_tokenizer_vocab *v);
/* Room for n_ids tokens at once (a hint that saves growing). */
bl_code bl_tokenizer_vocab_reserve(bl_tokenizer_vocab *v, size_t n_ids, bl_err *err) BL_MUST_CHECK;
/* A new token. Its id and its content must be new; empty contents are kept by id only. */
bl_code bl_tokenizer_vocab_add(bl_tokenizer_vocab *v, const char *s, size_t n, uint64_t id, unsigned flags,
                               bl_err *err) BL_MUST_CHECK;
/* Gives back the room that was kept for growing. */
void bl_tokenizer_vocab_trim(bl_tokenizer_vocab *v);
int32_t bl_tokenizer_vocab_find(const bl_tokenizer_vocab *v, const char *s, size_t n); /* -1 */
/* Only tokens of the model. */
int32_t bl_tokenizer_vocab_find_model(const bl_tokenizer_vocab *v, const char *s, size_t n);

static inline bool bl_tokenizer_vocab_has(const bl_tokenizer_vocab *v, int64_t id) {
    return id >= 0 && id < (int64_t)v->n_ids && v->pieces[id].off != UINT32_MAX;
}

typedef struct {
    int32_t left, right, id;
} bl_tokenizer_merge;

typedef struct {
    bl_tokenizer_merge *m; /* by rank */
    uint32_t n, cap;
    uint32_t *slots; /* rank + 1 */
    uint32_t n_slots;
} bl_tokenizer_merges;

void bl_tokenizer_merges_done(bl_tokenizer_merges *m);
bl_code bl_tokenizer_merges_add(bl_tokenizer_merges *m, int32_t left, int32_t right, int32_t id,
                                bl_err *err) BL_MUST_CHECK;
/* Builds the table; of two equal pairs the later counts, as in the reference. */
bl_code bl_tokenizer_merges_index(bl_tokenizer_merges *m, bl_err *err) BL_MUST_CHECK;
/* NULL when the pair does not merge; the rank is the distance from m->m. */
const bl_tokenizer_merge *bl_tokenizer_merges_find(const bl_tokenizer_merges *m, int32_t left, int32_t right);

/* ---- tokenizer_added.c: leftmost-longest search for added tokens ------------------------------------- */

typedef struct {
    uint32_t off, len;
    int32_t id;
    unsigned flags;
} bl_tokenizer_pattern;

typedef struct {
    bl_tokenizer_pattern *p; /* sorted by content after index */
    size_t n, cap;
    bl_buf text;
    uint32_t first[257]; /* patterns that begin with byte b: first[b] .. first[b + 1] */
} bl_tokenizer_matcher;

void bl_tokenizer_matcher_init(bl_tokenizer_matcher *m);
void bl_tokenizer_matcher_done(bl_tokenizer_matcher *m);
bl_code bl_tokenizer_matcher_add(bl_tokenizer_matcher *m, const char *s, size_t n, int32_t id, unsigned flags,
                                 bl_err *err) BL_MUST_CHECK;
/* Of equal contents the one added first stays. */
bl_code bl_tokenizer_matcher_index(bl_tokenizer_matcher *m, bl_err *err) BL_MUST_CHECK;
/* The longest pattern that starts exactly at s, NULL when none. */
const bl_tokenizer_pattern *bl_tokenizer_matcher_at(const bl_tokenizer_matcher *m, const char *s, size_t n);

/* ---- tokenizer_ops.c: normalizers and pre-tokenizers ------------------------------------------------- */

typedef enum {
    BL_TOKENIZER_OP_REPLACE, /* every `a` by `b` */
    BL_TOKENIZER_OP_PREPEND, /* `a` before text that is not empty */
    BL_TOKENIZER_OP_PREFIX,  /* `a` unless the text begins with it; only at the very start of the input when
                                at_start */
    BL_TOKENIZER_OP_NORMAL_FORM,
    BL_TOKENIZER_OP_LOWER,
    BL_TOKENIZER_OP_SPLIT, /* at matches of regex, or of `a` when regex is NULL */
    BL_TOKENIZER_OP__MAX
} bl_tokenizer_op_kind;

typedef enum {
    BL_TOKENIZER_ISOLATED,
    BL_TOKENIZER_REMOVED,
    BL_TOKENIZER_MERGED_PREVIOUS,
    BL_TOKENIZER_MERGED_NEXT,
    BL_TOKENIZER_CONTIGUOUS,
} bl_tokenizer_behavior;

typedef struct {
    bl_tokenizer_op_kind kind;
    char *a, *b; /* owned */
    size_t a_len, b_len;
    bool at_start;
    bl_unicode_form form;
    bl_tokenizer_regex *regex; /* owned */
    bl_tokenizer_behavior behavior;
    bool invert;
} bl_tokenizer_op;

/* ---- the tokenizer ----------------------------------------------------------------------------------- */

struct bl_tokenizer {
    bl_tokenizer_vocab vocab;
    bl_tokenizer_merges merges; /* by rank; unused when scores decide */
    uint32_t *keys;             /* by id: order of merging by score, smallest first; NULL when ranks decide */

    bl_tokenizer_matcher added_raw, added_normalized;
    bl_tokenizer_pattern *renamed; /* by id; contents in added_normalized.text */
    size_t n_renamed;
    bl_tokenizer_op ops[BL_TOKENIZER_MAX_OPS];
    size_t n_normalizers, n_ops; /* ops [0, n_normalizers) normalize, the rest split into words */

    /* model */
    bool byte_level; /* words are spelled in the byte-level alphabet */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;           /* -1: unknown symbols vanish */
    int32_t symbol[256];   /* token of one byte: of the byte-level alphabet, else of an ASCII character; -1 */
    int32_t fallback[256]; /* <0xHH>; -1 */

    /* post-processor */
    int32_t before[BL_TOKENIZER_MAX_AROUND], after[BL_TOKENIZER_MAX_AROUND];
    size_t n_before, n_after;
    int32_t bos, eos;

    /* decoder */
    bool decode_byte_level;
    bl_tokenizer_op decode_replace; /* a == NULL: none */
    bool decode_drop_first;         /* Metaspace: replaced characters of the first token vanish */
    bool decode_bytes;
    char decode_strip[4];    /* one character, removed once from the start of the text */
    size_t decode_strip_len; /* 0: none */
};

bl_code bl_tokenizer_new(bl_tokenizer **ret, bl_err *err) BL_MUST_CHECK;
/* Builds the tables once all tokens, merges and ops are in. */
bl_code bl_tokenizer_finish(bl_tokenizer *t, bl_err *err) BL_MUST_CHECK;
/* The next op, zeroed; BL_ELIMIT when there are too many. Normalizers first, then pre-tokenizers. */
bl_code bl_tokenizer_op_add(bl_tokenizer *t, bl_tokenizer_op_kind kind, bl_tokenizer_op **ret,
                            bl_err *err) BL_MUST_CHECK;
bl_code bl_tokenizer_op_text(bl_tokenizer_op *op, const char *a, size_t a_len, const char *b, size_t b_len,
                             bl_err *err) BL_MUST_CHECK;
bl_code bl_tokenizer_op_split(bl_tokenizer *t, const char *regex, size_t n, bl_tokenizer_behavior behavior,
                              bl_err *err) BL_MUST_CHECK;
void bl_tokenizer_op_done(bl_tokenizer_op *op);
/* GPT-2's pattern, which the ByteLevel pre-tokenizer carries in itself. */
extern const char bl_tokenizer_gpt2_pattern[];

typedef struct {
    uint32_t prev, next; /* UINT32_MAX at the ends */
    uint32_t off, len;   /* bytes of the word; len 0: merged into its left neighbour */
    int32_t id;          /* -1: no token */
} bl_tokenizer_symbol;

typedef struct {
    uint32_t key, pos; /* smallest key first, then leftmost */
    int32_t id;        /* what the pair becomes */
} bl_tokenizer_candidate;

/* Work space of one encode call. */
typedef struct {
    const bl_tokenizer *t;
    unsigned flags;
    size_t n_text;        /* bytes of the whole input */
    const char *text;     /* the whole input */
    const uint8_t *marks; /* origin of its bytes, NULL: all may be parsed */
    bl_ids *out;
    bl_tokenizer_symbol *symbols;
    size_t n_symbols, cap_symbols;
    bl_tokenizer_candidate *heap;
    size_t n_heap, cap_heap;
    bl_buf scratch[BL_TOKENIZER_MAX_OPS]; /* the text after op i, where it changes text */
    bl_buf spelled;                       /* a word in the byte-level alphabet */
    bl_tokenizer_scan *scan;              /* made at the first regular expression */
} bl_tokenizer_work;

/* Runs the normalizers; *ret points into s or into work space (valid until the next call). */
bl_code bl_tokenizer_normalize(bl_tokenizer_work *w, const char *s, size_t n, const char **ret, size_t *ret_n,
                               bl_err *err) BL_MUST_CHECK;
/* Splits normalized text into words and encodes each. at_start: the text begins where the input began. */
bl_code bl_tokenizer_words(bl_tokenizer_work *w, const char *s, size_t n, bool at_start,
                           bl_err *err) BL_MUST_CHECK;
/* tokenizer_bpe.c: one word into ids. */
bl_code bl_tokenizer_word(bl_tokenizer_work *w, const char *s, size_t n, bl_err *err) BL_MUST_CHECK;
/* Replaces each `a` of op in s by `b`; *ret_changed false (nothing appended) when there is none. */
bl_code bl_tokenizer_replace(const bl_tokenizer_op *op, const char *s, size_t n, bl_buf *ret,
                             bool *ret_changed, bl_err *err) BL_MUST_CHECK;

/* Byte-level alphabet (spec models.md §10.1): code point of a byte, byte of a code point (-1). */
uint32_t bl_tokenizer_byte_char(uint8_t byte);
int bl_tokenizer_char_byte(uint32_t cp);
/* The byte that "<0xHH>" stands for; -1 for other contents. */
int bl_tokenizer_byte_token(const char *s, size_t n);

#endif
