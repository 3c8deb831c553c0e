/* Text in and out of a model: tokenizer, chat template and stop rules of one checkpoint. Knows no HTTP and no
 * engine. A bl_chat is immutable after open; any thread may use it.
 */
#ifndef BL_CHAT_CHAT_H
#define BL_CHAT_CHAT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/ids.h"
#include "bl/bl_err.h"
#include "chat/parser.h"
#include "formats/checkpoint.h"
#include "formats/tokenizer.h"

typedef struct bl_chat bl_chat;

/* Reads tokenizer and template from the checkpoint: GGUF metadata; or tokenizer.json, chat_template.jinja /
 * tokenizer_config.json (the file wins), generation_config.json, config.json. c may be freed afterwards. A
 * folder without a tokenizer opens (ids only): bl_chat_tokenizer is NULL then. A template with a construct
 * that we do not have fails here, naming it and its line. */
bl_code bl_chat_open(const bl_checkpoint *c, bl_chat **ret, bl_err *err) BL_MUST_CHECK;
void bl_chat_free(bl_chat *c);

const bl_tokenizer *bl_chat_tokenizer(const bl_chat *c);

typedef enum {
    BL_TEMPLATE_NONE,   /* neither the checkpoint nor its family names one */
    BL_TEMPLATE_FILE,   /* the checkpoint's own */
    BL_TEMPLATE_BUILTIN /* the family's published format, because the checkpoint ships none and its
                           vocabulary has the turn markers */
} bl_template_source;
bl_template_source bl_chat_template_source(const bl_chat *c);

/* Ids that end an answer: union of every source (spec §12): eos of config.json (and its text_config), of
 * generation_config.json, of the tokenizer; eos, eot and eom of GGUF; and control tokens that end a turn in
 * the template's text (<end_of_turn>, <turn|>, <|im_end|>, <|eot_id|>), or hand over for a tool's result in
 * the dialect (Gemma 4's <|tool_response>, harmony's <|call|>) or end its answer (<|return|>). Borrowed. */
const int32_t *bl_chat_stop_ids(const bl_chat *c, size_t *ret_n);

/* Where a stop id was found; several bits when several say so. */
enum {
    BL_STOP_CONFIG = 1,
    BL_STOP_TEXT_CONFIG = 2,
    BL_STOP_GENERATION_CONFIG = 4,
    BL_STOP_TOKENIZER_CONFIG = 8,
    BL_STOP_TOKENIZER = 16,
    BL_STOP_GGUF_EOS = 32,
    BL_STOP_GGUF_EOT = 64,
    BL_STOP_GGUF_EOM = 128,
    BL_STOP_TEMPLATE = 256,
    BL_STOP_DIALECT = 512
};
typedef struct {
    int32_t id;
    uint32_t sources;
    const char *text; /* the token as its file writes it; NULL without a tokenizer */
    size_t n_text;
} bl_chat_stop;
/* The i-th of the stop ids, for display. */
bl_chat_stop bl_chat_stop_at(const bl_chat *c, size_t i);
/* "config.json, generation_config.json" in out (cut to fit). */
void bl_chat_stop_sources(uint32_t sources, char *out, size_t size);

/* What the template and the vocabulary say about answers. Immutable, borrowed. */
typedef struct {
    bl_dialect dialect;
    char reason[200];      /* why this dialect, one line */
    bool tools;            /* the template reads `tools` */
    bool thinking_switch;  /* ... `enable_thinking` */
    bool reasoning_effort; /* ... `reasoning_effort` */
    bool system_role;      /* a system message was tried and appears */
    bool opens_reasoning;  /* by default an answer begins inside reasoning */
} bl_chat_features;
const bl_chat_features *bl_chat_describe(const bl_chat *c);

/* Control tokens that the answer's parser must see; bl_stream_show takes them. Borrowed. */
const int32_t *bl_chat_markers(const bl_chat *c, size_t *ret_n);
/* Options of a parser for the answer to this prompt; sink and user are left empty. tools as in the request,
 * NULL or empty: calls are text. What the prompt left open is read off its last tokens. */
bl_parser_options bl_chat_parser_options(const bl_chat *c, const int32_t *prompt, size_t n_prompt,
                                         const json_t *tools);

/* Sampling defaults of generation_config.json, or of GGUF's general.sampling.*; with the built-in template
 * those its family publishes. Fields absent there hold the neutral values temperature 1, top_p 1, top_k 0,
 * min_p 0 and has_* false. */
typedef struct {
    float temperature, top_p, min_p;
    uint32_t top_k;
    bool has_temperature, has_top_p, has_top_k;
} bl_chat_defaults;
bl_chat_defaults bl_chat_sampling_defaults(const bl_chat *c);

/* Renders a conversation to ids. messages: array of {role, content: string, null, or list of {type: "text",
 * text}}, further keys passed to the template; an assistant's may have tool_calls, whose arguments (JSON text
 * or an object) the template gets as an object, and reasoning_content (or `thinking`, or `reasoning`), which
 * the template gets under the first two names; a tool's gets the name of the function that its tool_call_id
 * names. tools: array or NULL (a template named "tool_use" is taken then, when there is one). extra: object
 * of further template variables or NULL; it cannot replace messages, tools or add_generation_prompt.
 *
 * Lists of text parts reach a template that reads them as they are, another one as one string, the parts
 * joined with newlines (as vLLM and llama.cpp do); a template that reads nothing but parts gets strings as
 * one part. Which it is was tried once, at open. Parts that are not text are refused.
 *
 * User-written text never yields control tokens (safe mode of spec §10.1): only the template's own bytes, the
 * checkpoint's bos_token and its like, and the roles system, developer, user, assistant and tool are parsed.
 * Conversations that spell no control token get the ids of parity mode, which encodes the rendered text as
 * Hugging Face does; but where the tokenizer adds a BOS and the template wrote none, only safe mode adds it.
 * The BOS is never doubled in safe mode. BL_EINVAL for what the template or these rules refuse (the message
 * is fit for a client). */
bl_code bl_chat_render(const bl_chat *c, const json_t *messages, const json_t *tools, const json_t *extra,
                       bool add_generation_prompt, bool parity, bl_ids *ret, bl_err *err) BL_MUST_CHECK;
/* The rendered text itself (for display and tests). */
bl_code bl_chat_render_text(const bl_chat *c, const json_t *messages, const json_t *tools,
                            const json_t *extra, bool add_generation_prompt, bl_buf *ret,
                            bl_err *err) BL_MUST_CHECK;
/* A plain prompt: BOS as the checkpoint says (once), control tokens in the text parsed. */
bl_code bl_chat_encode_prompt(const bl_chat *c, const char *text, size_t n, bl_ids *ret,
                              bl_err *err) BL_MUST_CHECK;

#endif
