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
#include "formats/checkpoint.h"
#include "formats/tokenizer.h"

typedef struct bl_chat bl_chat;

/* Reads tokenizer and template from the checkpoint: GGUF metadata; or tokenizer.json, chat_template.jinja /
 * tokenizer_config.json, generation_config.json, config.json. c may be freed afterwards. A folder without a
 * tokenizer opens (ids only): bl_chat_tokenizer is NULL then. */
bl_code bl_chat_open(const bl_checkpoint *c, bl_chat **ret, bl_err *err) BL_MUST_CHECK;
void bl_chat_free(bl_chat *c);

const bl_tokenizer *bl_chat_tokenizer(const bl_chat *c);

typedef enum {
    BL_TEMPLATE_NONE,   /* neither the checkpoint nor its family names one */
    BL_TEMPLATE_FILE,   /* the checkpoint's own */
    BL_TEMPLATE_BUILTIN /* the family's published format, because the checkpoint ships none and its vocabulary
                           has the turn markers */
} bl_template_source;
bl_template_source bl_chat_template_source(const bl_chat *c);

/* Ids that end an answer: union of every source (spec §12). Borrowed. */
const int32_t *bl_chat_stop_ids(const bl_chat *c, size_t *ret_n);

/* Sampling defaults of generation_config.json; fields absent there hold the neutral values temperature 1,
 * top_p 1, top_k 0, min_p 0 and has_* false. */
typedef struct {
    float temperature, top_p, min_p;
    uint32_t top_k;
    bool has_temperature, has_top_p, has_top_k;
} bl_chat_defaults;
bl_chat_defaults bl_chat_sampling_defaults(const bl_chat *c);

/* Renders a conversation to ids. messages: array of {role, content: string or list of {type: "text", text}},
 * further keys passed to the template. tools: array or NULL. extra: object of further template variables or
 * NULL. The BOS is never doubled. User-written text never yields control tokens (safe mode of spec §10.1)
 * unless parity is true, which encodes the rendered text as Hugging Face does. BL_EINVAL for what the
 * template or these rules refuse (the message is fit for a client). */
bl_code bl_chat_render(const bl_chat *c, const json_t *messages, const json_t *tools, const json_t *extra,
                       bool add_generation_prompt, bool parity, bl_ids *ret, bl_err *err) BL_MUST_CHECK;
/* The rendered text itself (for display and tests). */
bl_code bl_chat_render_text(const bl_chat *c, const json_t *messages, const json_t *tools,
                            const json_t *extra, bool add_generation_prompt, bl_buf *ret,
                            bl_err *err) BL_MUST_CHECK;
/* A plain prompt: BOS as the checkpoint says, control tokens in the text parsed. */
bl_code bl_chat_encode_prompt(const bl_chat *c, const char *text, size_t n, bl_ids *ret,
                              bl_err *err) BL_MUST_CHECK;

#endif
