/* The OpenAI error object and its HTTP statuses: one place that turns a failure into what a client sees.
 * Messages may name fields, numbers and the requested model; never prompt text or keys.
 */
#ifndef BL_API_OPENAI_ERROR_H
#define BL_API_OPENAI_ERROR_H

#include "base/buf.h"
#include "bl/bl_err.h"

typedef struct {
    int status;       /* HTTP */
    const char *type; /* static: "invalid_request_error"... */
    const char *code; /* static, or NULL: null in the object */
    char param[64];   /* "" : null */
    char message[512];
} bl_openai_error;

/* Fills *e (type by status) and returns BL_EINVAL, so that checks read as one line. param and code may be
 * NULL. */
bl_code bl_openai_refuse(bl_openai_error *e, int status, const char *code, const char *param, const char *fmt,
                         ...) BL_PRINTF(5, 6);

/* The table from bl_code to HTTP: EINVAL, EFORMAT, ELIMIT, ERANGE, ENOTSUP 400; ENOTFOUND 404; EBUSY 429
 * (code deadline_unreachable when the message begins with that word, else queue_full);
 * ENOMEM 503; the rest 500, whose message is not passed on to the client. */
void bl_openai_error_from(const bl_err *err, bl_openai_error *ret);

/* {"error":{...}} */
bl_code bl_openai_write_error(const bl_openai_error *e, bl_buf *ret, bl_err *err) BL_MUST_CHECK;

#endif
