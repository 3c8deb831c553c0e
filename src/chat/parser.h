/* The text of an answer -> what it says: reasoning, content, tool calls. One automaton for each dialect that
 * model families write, behind one interface. Bytes go in, cut anywhere; events come out, and apart from
 * where texts are cut the events are the same for every way of cutting.
 *
 * Nothing is lost. Every byte of the answer comes out once: as text of the state that it was met in, or as
 * MARKUP when it belongs to a marker, a header or a call that was understood. Markup that is malformed,
 * unfinished at the end, or longer than the limits below is text, markers included. A call is given out when
 * it is complete, for until then nobody knows whether it is one.
 *
 * Newlines next to a marker belong to it in dialects whose templates write them there (all but harmony): one
 * run behind it, and up to BL_PARSER_MAX_NEWLINES in front of it.
 *
 * A marker that is a control token in the vocabulary comes with the byte 0xff in front of its text, as
 * bl_stream gives it (that byte is in no UTF-8 text), so the same characters spelled by other tokens are
 * text. A 0xff never comes out.
 *
 * One owner at a time; may move between threads. Knows no tokenizer and no template (dialect.c chooses).
 */
#ifndef BL_CHAT_PARSER_H
#define BL_CHAT_PARSER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_PARSER_MAX_CALL     ((size_t)1 << 20) /* bytes of one tool call */
#define BL_PARSER_MAX_HEADER   256               /* bytes of a harmony header */
#define BL_PARSER_MAX_NAME     256               /* bytes of a function's or parameter's name */
#define BL_PARSER_MAX_KEYS     128               /* parameters of one call in XML */
#define BL_PARSER_MAX_DEPTH    64                /* nested values of arguments */
#define BL_PARSER_MAX_NEWLINES 64
#define BL_PARSER_CONTROL      0xff
#define BL_PARSER_MAX_MARKERS  8

typedef enum {
    BL_DIALECT_PLAIN,     /* everything is content */
    BL_DIALECT_QWEN_JSON, /* <think>, <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    BL_DIALECT_QWEN_XML,  /* <think>, <tool_call><function=...><parameter=...>...; the automaton takes both */
    BL_DIALECT_GEMMA4,    /* <|channel>thought, <|tool_call>call:NAME{...}<tool_call|> */
    BL_DIALECT_HARMONY,   /* <|start|>assistant<|channel|>analysis<|message|>...<|end|> */
    BL_DIALECT__MAX
} bl_dialect;

const char *bl_dialect_name(bl_dialect d); /* "plain", "qwen-json"... */
/* The markers of a dialect; those that are control tokens are told to the parser by their bit. */
const char *const *bl_dialect_markers(bl_dialect d, size_t *ret_n);

/* What the prompt left open. */
typedef enum {
    BL_START_TEXT,      /* a message begins: content, or an opening marker */
    BL_START_REASONING, /* the prompt holds the opening marker of reasoning */
    BL_START_HEADER     /* harmony: the prompt ends in <|start|>assistant */
} bl_parser_start;

typedef enum {
    BL_PARSED_CONTENT,
    BL_PARSED_REASONING,
    BL_PARSED_CALL_BEGIN,     /* text: the function's name */
    BL_PARSED_CALL_ARGUMENTS, /* text: a JSON object */
    BL_PARSED_CALL_END,       /* no text */
    BL_PARSED_MARKUP          /* text: bytes of the answer that were understood and shown to nobody */
} bl_parsed_kind;

typedef struct {
    bl_parsed_kind kind;
    uint32_t call; /* CALL_*: 0, 1, ... */
    const char *text;
    size_t n;
} bl_parsed;

typedef struct {
    bl_dialect dialect;
    bl_parser_start start;
    uint32_t control;    /* bit i: marker i of the dialect is a control token */
    bool calls;          /* tools were offered; else calls are text */
    const json_t *tools; /* as in the request (NULL: none); referenced while the parser lives. Their schemas
                            say which arguments in XML are strings. */
    /* Called during feed and finish with texts that are gone afterwards. A failure ends the feed. */
    bl_code (*sink)(void *user, const bl_parsed *ev, bl_err *err);
    void *user;
} bl_parser_options;

typedef struct bl_parser bl_parser;

bl_code bl_parser_new(const bl_parser_options *o, bl_parser **ret, bl_err *err) BL_MUST_CHECK;
void bl_parser_free(bl_parser *p);

/* UTF-8 and marked control tokens; any cut. After a failure the parser gives nothing more. */
bl_code bl_parser_feed(bl_parser *p, const char *text, size_t n, bl_err *err) BL_MUST_CHECK;
/* The end of the answer: what was undecided comes out as text. */
bl_code bl_parser_finish(bl_parser *p, bl_err *err) BL_MUST_CHECK;
uint32_t bl_parser_n_calls(const bl_parser *p); /* complete ones so far */

#endif
