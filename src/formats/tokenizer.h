/* Tokenizers: byte-level BPE, SentencePiece-style BPE with byte fallback (merge ranks from tokenizer.json, or
 * scores from GGUF), with added tokens. Equal to Hugging Face tokenizers 0.23 on the project's fixtures.
 * Immutable after open; any thread may encode and decode at the same time.
 */
#ifndef BL_FORMATS_TOKENIZER_H
#define BL_FORMATS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/ids.h"
#include "bl/bl_err.h"
#include "formats/gguf.h"

typedef struct bl_tokenizer bl_tokenizer;

/* From the text of tokenizer.json (<= 64 MiB; not kept). Unknown normalizers, pre-tokenizers, models are
 * refused by name. */
bl_code bl_tokenizer_from_json(const char *text, size_t n, bl_tokenizer **ret, bl_err *err) BL_MUST_CHECK;
/* From GGUF metadata (models "llama" and "gpt2"; pre-tokenizers by name). g may be freed afterwards. */
bl_code bl_tokenizer_from_gguf(const bl_gguf *g, bl_tokenizer **ret, bl_err *err) BL_MUST_CHECK;
void bl_tokenizer_free(bl_tokenizer *t);

enum {
    BL_ENCODE_SPECIAL_ADD = 1, /* add BOS/EOS as the file's post-processor (or add_bos_token) says */
    BL_ENCODE_SPECIAL_PARSE =
        2, /* control tokens written in the text become their ids; without it they are plain text */
};
/* Appends ids. Text must be valid UTF-8 (BL_EINVAL with the byte offset otherwise). BL_ELIMIT: more ids than
 * the list admits, or a text or word beyond BL_TOKENIZER_MAX_TEXT and BL_TOKENIZER_MAX_WORD (limits.h). O(n
 * log n). Without BL_ENCODE_SPECIAL_PARSE no control token is ever produced from the text, by merging either.
 */
bl_code bl_tokenizer_encode(const bl_tokenizer *t, const char *text, size_t n, unsigned flags, bl_ids *ret,
                            bl_err *err) BL_MUST_CHECK;

/* The same for a text of two origins: marks[i] is 0 where byte i is trusted (a template's own) and 1 where it
 * is a user's. Control tokens become their ids only where every byte of them is trusted; a text whose
 * untrusted bytes spell none gets exactly the ids of BL_ENCODE_SPECIAL_PARSE. flags: BL_ENCODE_SPECIAL_ADD or
 * 0. Control tokens that the file matches in normalized text are trusted only when no user's byte can be part
 * of one: else the text around is encoded origin by origin. */
bl_code bl_tokenizer_encode_marked(const bl_tokenizer *t, const char *text, const uint8_t *marks, size_t n,
                                   unsigned flags, bl_ids *ret, bl_err *err) BL_MUST_CHECK;

/* Appends the decoded text of all ids (lossy where bytes are no UTF-8: U+FFFD as the reference). skip_special
 * drops control tokens. Unknown ids: BL_EINVAL. */
bl_code bl_tokenizer_decode(const bl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                            bl_buf *ret, bl_err *err) BL_MUST_CHECK;

/* Raw bytes one token contributes in a stream (may end inside a UTF-8 character; byte tokens give one byte;
 * control tokens give nothing when skip_special). Concatenating these and then replacing invalid UTF-8 equals
 * decode of the whole, but for a decoder's start-of-text rule, which `first` (true for the first token of a
 * text) applies; and where a run of <0xHH> tokens is not valid UTF-8 as a whole, decode gives one U+FFFD for
 * each of its tokens, as the reference does, whatever part of it is valid. */
bl_code bl_tokenizer_token_bytes(const bl_tokenizer *t, int32_t id, bool first, bool skip_special,
                                 bl_buf *ret, bl_err *err) BL_MUST_CHECK;

uint32_t bl_tokenizer_vocab_size(const bl_tokenizer *t); /* highest id + 1 */
int32_t bl_tokenizer_id(const bl_tokenizer *t, const char *piece,
                        size_t n); /* exact token content (as written, e.g. "<bos>"); -1 */
bool bl_tokenizer_is_special(const bl_tokenizer *t, int32_t id); /* control token */
int32_t bl_tokenizer_bos(const bl_tokenizer *t);                 /* -1 when none */
int32_t bl_tokenizer_eos(const bl_tokenizer *t);
bool bl_tokenizer_adds_bos(const bl_tokenizer *t);
/* The content of a token as written in the file ("<bos>", "Ġhello"); NULL for unknown ids. Borrowed. */
const char *bl_tokenizer_piece(const bl_tokenizer *t, int32_t id, size_t *ret_len);

#endif
