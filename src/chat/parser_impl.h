/* What the automata share. Private to chat/parser*.c.
 *
 * p->held is what is undecided: in a text state newlines and the beginning of a marker, else everything since
 * the markup began. A dialect is three functions over it.
 */
#ifndef BL_CHAT_PARSER_IMPL_H
#define BL_CHAT_PARSER_IMPL_H

#include "base/buf.h"
#include "chat/parser.h"

typedef struct {
    size_t off, n;
} bl_pslice; /* of p->held */

typedef struct {
    char text[24];
    size_t n;
} bl_pmarker;

typedef struct bl_pdialect {
    /* Bits of the markers that mean something in the present text state. */
    uint32_t (*active)(const bl_parser *p);
    /* p->held ends in marker m; in front of it there are newlines only. */
    bl_code (*on_marker)(bl_parser *p, size_t m, bl_err *err);
    /* p->in_markup: the last byte of p->held is new. */
    bl_code (*step)(bl_parser *p, bl_err *err);
    bool newlines;                      /* beside markers are markup */
    void (*start_header)(bl_parser *p); /* BL_START_HEADER; NULL: has none */
} bl_pdialect;

struct bl_parser {
    bl_parser_options o;
    json_t *tools;
    const bl_pdialect *d;
    bl_pmarker markers[BL_PARSER_MAX_MARKERS];
    size_t n_markers;
    bl_buf held, out; /* out: certain text of `kind`, not yet given */
    bl_parsed_kind kind;
    bool failed, finished;
    bool in_markup;    /* dialect->step has the bytes */
    bool eat_newlines; /* those behind a marker */
    bool fresh;        /* no content since the start or the last call */
    uint32_t n_calls;
    /* a call or header under way; meaning is the dialect's */
    int state;
    size_t mark;       /* where the present piece of held begins */
    size_t depth, lit; /* nesting; bytes of a literal matched */
    bool in_string, escaped;
    bl_pslice name, args;
    struct {
        bl_pslice key, value;
    } params[BL_PARSER_MAX_KEYS];
    size_t n_params;
};

extern const bl_pdialect bl_pdialect_qwen, bl_pdialect_gemma, bl_pdialect_harmony;

/* A byte that no name has: control characters, and the sign of control tokens. */
bool bl_parser_odd_in_name(char ch);
/* Does held end in these bytes? */
bool bl_parser_ends(const bl_parser *p, const char *s, size_t n);
bool bl_parser_ends_in(const bl_parser *p, size_t m); /* in marker m */
/* held as a whole was understood: it is given out as markup and forgotten. */
bl_code bl_parser_take(bl_parser *p, bl_err *err);
/* held is no markup after all: it is text, but for its end when a marker may begin there, which is read
 * again. */
bl_code bl_parser_reject(bl_parser *p, bl_err *err);
/* From here on text of this kind. */
bl_code bl_parser_become(bl_parser *p, bl_parsed_kind kind, bl_err *err);
/* held was a call: markup, then the three events. */
bl_code bl_parser_give_call(bl_parser *p, const char *name, size_t n_name, const char *args, size_t n_args,
                            bl_err *err);

typedef enum { BL_LIT_MORE, BL_LIT_DONE, BL_LIT_BAD } bl_plit;
/* Matches held[p->mark..] with one of the literals, white space in front of them skipped. */
bl_plit bl_parser_literal(bl_parser *p, const char *const *lits, size_t n_lits, size_t *ret_which);

/* jscan.c: JSON without building it, so that arguments keep their spelling. */
/* End of the value that begins at s[i] (white space in front allowed), or SIZE_MAX: none, or deeper than
 * depth. */
size_t bl_jscan_value(const char *s, size_t n, size_t i, unsigned depth);
bool bl_jscan_is_value(const char *s, size_t n); /* one value and white space */
bool bl_jscan_is_object(const char *s, size_t n);
/* Length of the number at s[i]; 0: none. */
size_t bl_jscan_number(const char *s, size_t n, size_t i);
/* The value of a member of the object s; the last one when there are several. */
bool bl_jscan_member(const char *s, size_t n, const char *key, bl_pslice *ret);
/* Appends text as a JSON string; control-token bytes (0xff) are dropped. */
bl_code bl_jscan_quote(const char *s, size_t n, bl_buf *ret, bl_err *err);

#endif
