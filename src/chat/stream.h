/* The way out: token ids one by one -> text that may be shown. Holds back incomplete UTF-8 and any tail that
 * could still grow into a stop string; the text given out is the same however the tokens arrive. One owner at
 * a time.
 *
 * Of several stop strings the one that is complete first wins; of those that end together the longest. So the
 * cut is a function of the text, not of how it came.
 */
#ifndef BL_CHAT_STREAM_H
#define BL_CHAT_STREAM_H

#include <stdbool.h>

#include "base/buf.h"
#include "bl/bl_err.h"
#include "formats/tokenizer.h"

#define BL_STOP_MAX_STRINGS 16
#define BL_STOP_MAX_BYTES   1024

typedef struct bl_stream bl_stream;

/* stops: n UTF-8 strings (copied), each 1..BL_STOP_MAX_BYTES bytes; n <= BL_STOP_MAX_STRINGS. tokenizer is
 * borrowed.
 */
bl_code bl_stream_new(const bl_tokenizer *t, const char *const *stops, size_t n_stops, bool skip_special,
                      bl_stream **ret, bl_err *err) BL_MUST_CHECK;
void bl_stream_free(bl_stream *s);

/* These control tokens give their text with BL_PARSER_CONTROL (parser.h) in front, whatever skip_special
 * says: for a parser, which takes them out. They are no part of a stop string, nor of what comes between two
 * parts of one. ids is borrowed. */
void bl_stream_show(bl_stream *s, const int32_t *ids, size_t n);

/* Appends what became certain to *ret. *ret_stopped true when a stop string was met: the text ends before it
 * and further pushes give nothing. Invalid UTF-8 becomes U+FFFD once it is certain. */
bl_code bl_stream_push(bl_stream *s, int32_t id, bl_buf *ret, bool *ret_stopped, bl_err *err) BL_MUST_CHECK;
/* The end: appends what was held back (incomplete UTF-8 becomes U+FFFD). */
bl_code bl_stream_finish(bl_stream *s, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#endif
