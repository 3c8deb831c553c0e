/* Lines a person types: with editing and history on a terminal (libedit), plainly from a pipe. */
#ifndef BL_CLI_LINE_H
#define BL_CLI_LINE_H

#include <stdbool.h>

#include "base/buf.h"
#include "bl/bl_err.h"

#define BL_LINE_MAX_BYTES (1u << 20)

typedef struct bl_line bl_line;

typedef enum { BL_LINE_TEXT, BL_LINE_END, BL_LINE_INTERRUPT } bl_line_kind;

/* prompt: shown on a terminal; may hold escape sequences between two \1 bytes. history: a file (its folder is
 * made) that keeps lines between sessions with mode 0600, or NULL. Not a terminal: neither is used. */
bl_code bl_line_open(const char *prompt, const char *history, bl_line **ret, bl_err *err) BL_MUST_CHECK;
/* Saves the history. */
void bl_line_close(bl_line *l);
bool bl_line_is_terminal(const bl_line *l);

/* One line without its newline into *ret (reset first). Ctrl-C on an empty line is BL_LINE_INTERRUPT; on a
 * terminal it first clears what was typed. A line that ends in a backslash goes on in the next one. */
bl_code bl_line_read(bl_line *l, bl_buf *ret, bl_line_kind *ret_kind, bl_err *err) BL_MUST_CHECK;

#endif
