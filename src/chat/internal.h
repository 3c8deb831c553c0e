/* What the files of chat/ share. Private to chat/. */
#ifndef BL_CHAT_INTERNAL_H
#define BL_CHAT_INTERNAL_H

#include "chat/chat.h"
#include "formats/jinja.h"

#define BL_CHAT_MAX_STOP_IDS 64u

struct bl_chat {
    bl_tokenizer *tokenizer; /* NULL: ids only */
    bl_jinja *main, *tool_use;
    bl_template_source source;
    json_t *vars; /* template variables that count as the template's own: bos_token and its like */
    int32_t stop_ids[BL_CHAT_MAX_STOP_IDS];
    size_t n_stop_ids;
    bl_chat_defaults defaults;
    bool reads_parts;   /* the template understands content lists */
    bool only_parts;    /* and does not understand strings */
    int64_t now_unix_s; /* 0: the clock */
};

/* What a checkpoint offers, gathered from whichever container; done frees it. */
typedef struct {
    bl_buf main, tool_use; /* template texts, empty when absent */
    bool gemma3;           /* the family */
} bl_chat_sources;

bl_code bl_chat_read_gguf(bl_chat *c, const bl_gguf *g, bl_chat_sources *s, bl_err *err) BL_MUST_CHECK;
bl_code bl_chat_read_hf(bl_chat *c, const bl_checkpoint *ckpt, bl_chat_sources *s, bl_err *err) BL_MUST_CHECK;
/* Ids outside the vocabulary and repeated ones are dropped. */
void bl_chat_add_stop(bl_chat *c, int64_t id);
/* Sets reads_parts and only_parts by rendering a probe. */
bl_code bl_chat_probe_content(bl_chat *c, bl_err *err) BL_MUST_CHECK;

/* The published Gemma 3 turn format, in our words. */
extern const char bl_chat_template_gemma3[];

#endif
