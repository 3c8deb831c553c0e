/* What an answer may look like: a regular expression or a JSON schema, compiled to an automaton over bytes
 * with a stack (a recursive schema), from which, for the bytes written so far, the set of allowed tokens
 * follows.
 *
 * A compiled grammar is immutable and shared by reference count; a state belongs to one request (one thread
 * at a time). Everything is bounded (limits.h): beyond is BL_ELIMIT naming found and allowed. What a schema
 * asks for that is not supported is BL_ENOTSUP naming the keyword and its JSON pointer, never silently
 * ignored. docs/structured-output.md says what is supported and which texts are produced.
 */
#ifndef BL_GRAMMAR_GRAMMAR_H
#define BL_GRAMMAR_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "formats/tokenizer.h"

typedef struct bl_grammar_vocab bl_grammar_vocab; /* trie of all tokens' bytes; immutable */
typedef struct bl_grammar bl_grammar;
typedef struct bl_grammar_state bl_grammar_state;

/* Once per tokenizer. Tokens without text (control tokens, unused ids) are never allowed inside a grammar.
 * About 16 bytes per byte of the vocabulary; 262144 tokens take about 20 MiB and 0.3 s. */
bl_code bl_grammar_vocab_new(const bl_tokenizer *t, uint32_t n_vocab, bl_grammar_vocab **ret,
                             bl_err *err) BL_MUST_CHECK;
/* The same from the tokens' bytes themselves: token i is n[i] bytes (0: never allowed), one behind the other
 * in bytes. */
bl_code bl_grammar_vocab_from_bytes(const char *bytes, const uint32_t *n, uint32_t n_vocab,
                                    bl_grammar_vocab **ret, bl_err *err) BL_MUST_CHECK;
bl_grammar_vocab *bl_grammar_vocab_ref(bl_grammar_vocab *v);
void bl_grammar_vocab_unref(bl_grammar_vocab *v);

/* Patterns match the whole answer. */
bl_code bl_grammar_from_regex(const char *pattern, size_t n, bl_grammar **ret, bl_err *err) BL_MUST_CHECK;
/* strict: additionalProperties is false where the schema does not say. */
bl_code bl_grammar_from_json_schema(const json_t *schema, bool strict, bl_grammar **ret,
                                    bl_err *err) BL_MUST_CHECK;
/* Any JSON object. */
bl_code bl_grammar_any_json(bl_grammar **ret, bl_err *err) BL_MUST_CHECK;
/* A call of one of several functions: {"name": NAME, "arguments": ARGUMENTS}, then `end`. parameters is the
 * schema of the arguments (NULL: any object); references in it are its own. */
typedef struct {
    const char *name;
    const json_t *parameters;
    bool strict;
} bl_grammar_call;
bl_code bl_grammar_from_calls(const bl_grammar_call *calls, size_t n, const char *end, bl_grammar **ret,
                              bl_err *err) BL_MUST_CHECK;
bl_grammar *bl_grammar_ref(bl_grammar *g);
void bl_grammar_unref(bl_grammar *g);
/* Memory that the automaton takes, its mask cache not counted. */
size_t bl_grammar_bytes(const bl_grammar *g);

/* A state at the start. All memory it will ever need is allocated here (about 1.5 MiB, and for the grammar's
 * first state its mask cache). */
bl_code bl_grammar_state_new(bl_grammar *g, bl_grammar_vocab *v, bl_grammar_state **ret,
                             bl_err *err) BL_MUST_CHECK;
void bl_grammar_state_free(bl_grammar_state *s);
/* The grammar does not begin with the answer but behind `marker`, the text that ends an answer's reasoning,
 * or with the token marker_id (-1: none; a control token, which has no text): up to there everything is
 * allowed. repeats: when its text is complete everything is allowed again, up to the next marker. Before the
 * first accept. marker is copied, 1 to 64 bytes. BL_ENOTSUP: a token holds the marker and text that the
 * grammar does not begin with. */
bl_code bl_grammar_state_begin_after(bl_grammar_state *s, const char *marker, size_t n, int32_t marker_id,
                                     bool repeats, bl_err *err) BL_MUST_CHECK;
/* Bit i % 32 of mask[i / 32] set: token i may come next; n_vocab / 32 words, rounded up. *ret_may_end: the
 * text so far is complete, so a stop token may come; so it may before the grammar begins. *ret_free:
 * anything may come (mask is not written). Some token is allowed or the text may end, as long as each byte
 * that the grammar needs is a token. Allocates nothing. */
bl_code bl_grammar_state_mask(bl_grammar_state *s, uint32_t *mask, bool *ret_may_end, bool *ret_free,
                              bl_err *err) BL_MUST_CHECK;
/* The token was emitted. BL_EINVAL if it was not allowed (state unchanged). Allocates nothing. */
bl_code bl_grammar_state_accept(bl_grammar_state *s, int32_t id, bl_err *err) BL_MUST_CHECK;
/* The same for bytes. */
bl_code bl_grammar_state_accept_bytes(bl_grammar_state *s, const char *bytes, size_t n,
                                      bl_err *err) BL_MUST_CHECK;
bool bl_grammar_state_may_end(const bl_grammar_state *s);
/* Nothing may come any more but the end. */
bool bl_grammar_state_is_complete(const bl_grammar_state *s);
uint32_t bl_grammar_state_n_vocab(const bl_grammar_state *s);
void bl_grammar_state_reset(bl_grammar_state *s);

#endif
