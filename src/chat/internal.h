/* What the files of chat/ share. Private to chat/. */
#ifndef BL_CHAT_INTERNAL_H
#define BL_CHAT_INTERNAL_H

#include "chat/chat.h"
#include "formats/jinja.h"

#define BL_CHAT_MAX_STOP_IDS 64u

/* Roles that the API admits. */
typedef enum {
    BL_ROLE_SYSTEM,
    BL_ROLE_DEVELOPER,
    BL_ROLE_USER,
    BL_ROLE_ASSISTANT,
    BL_ROLE_TOOL,
    BL_ROLE__MAX
} bl_role;

struct bl_chat {
    bl_tokenizer *tokenizer; /* NULL: ids only */
    bl_jinja *main, *tool_use;
    bl_template_source source;
    json_t *vars; /* template variables that count as the template's own: bos_token and its like */
    int32_t stop_ids[BL_CHAT_MAX_STOP_IDS];
    uint32_t stop_sources[BL_CHAT_MAX_STOP_IDS];
    size_t n_stop_ids;
    bl_chat_defaults defaults;
    bl_chat_features features;
    int32_t markers[BL_PARSER_MAX_MARKERS]; /* those that are control tokens */
    size_t n_markers;
    uint32_t control;               /* their bits in bl_dialect_markers */
    bool reads_parts[BL_ROLE__MAX]; /* the template understands content lists in this role */
    bool only_parts;                /* and does not understand strings */
    int64_t now_unix_s;             /* 0: the clock */
};

/* What a checkpoint offers, gathered from whichever container; done frees it. */
typedef struct {
    bl_buf main, tool_use; /* template texts, empty when absent */
    bool gemma3;           /* the family */
} bl_chat_sources;

bl_code bl_chat_read_gguf(bl_chat *c, const bl_gguf *g, bl_chat_sources *s, bl_err *err) BL_MUST_CHECK;
bl_code bl_chat_read_hf(bl_chat *c, const bl_checkpoint *ckpt, bl_chat_sources *s, bl_err *err) BL_MUST_CHECK;
/* Ids outside the vocabulary are dropped; of a repeated one the source is noted. */
void bl_chat_add_stop(bl_chat *c, int64_t id, uint32_t source);
/* The id of a control token, or -1. */
int32_t bl_chat_control_id(const bl_chat *c, const char *piece);
/* Sets reads_parts and only_parts, system_role and opens_reasoning by rendering probes. */
bl_code bl_chat_probe_template(bl_chat *c, bl_err *err) BL_MUST_CHECK;
/* The dialect and what follows from it: markers, stop ids, features that the names in the template show. */
void bl_chat_choose_dialect(bl_chat *c, const bl_chat_sources *s);
bl_parser_start bl_chat_start_of_text(bl_dialect d, const char *text, size_t n);

/* A copy of the conversation as the template wants it, and the strings in it that are ours (roles). */
bl_code bl_chat_fit_messages(const bl_chat *c, const json_t *messages, json_t **ret, json_t **ret_own,
                             bl_err *err) BL_MUST_CHECK;

/* The published Gemma 3 turn format, in our words. */
extern const char bl_chat_template_gemma3[];

#endif
