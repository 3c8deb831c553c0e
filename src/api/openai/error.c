#include "api/openai/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/openai/write.h"
#include "base/utf8.h"

static const char *type_of(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "service_unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bl_code bl_openai_refuse(bl_openai_error *e, int status, const char *code, const char *param, const char *fmt,
                         ...) {
    memset(e, 0, sizeof *e);
    e->status = status;
    e->type = type_of(status);
    e->code = code;
    if (param) {
        (void)snprintf(e->param, sizeof e->param, "%s", param);
        e->param[bl_utf8_complete(e->param, strlen(e->param))] = '\0';
    }
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    e->message[bl_utf8_complete(e->message, strlen(e->message))] = '\0';
    return BL_EINVAL;
}

void bl_openai_error_from(const bl_err *err, bl_openai_error *ret) {
    switch (err->code) {
    case BL_EINVAL:
    case BL_EFORMAT:
    case BL_ELIMIT:
    case BL_ERANGE:
    case BL_ENOTSUP:
        (void)bl_openai_refuse(ret, 400, NULL, NULL, "%s", err->msg);
        return;
    case BL_ENOTFOUND:
        (void)bl_openai_refuse(ret, 404, NULL, NULL, "%s", err->msg);
        return;
    case BL_EBUSY: {
        static const char deadline[] = "deadline_unreachable"; /* as bl_session_submit begins its message */
        const bool late = strncmp(err->msg, deadline, sizeof deadline - 1) == 0;
        (void)bl_openai_refuse(ret, 429, late ? deadline : "queue_full", NULL, "%s", err->msg);
        return;
    }
    case BL_ENOMEM:
        (void)bl_openai_refuse(ret, 503, "out_of_memory", NULL,
                               "the server is out of memory, try again later");
        return;
    default:
        (void)bl_openai_refuse(ret, 500, "internal_error", NULL, "the server met an internal error");
        return;
    }
}

bl_code bl_openai_write_error(const bl_openai_error *e, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(ret, "{\"error\":{\"message\":", err));
    BL_TRY(bl_openai_write_string(e->message, strlen(e->message), ret, err));
    BL_TRY(bl_buf_printf(ret, err, ",\"type\":\"%s\",\"param\":", e->type));
    if (e->param[0]) {
        BL_TRY(bl_openai_write_string(e->param, strlen(e->param), ret, err));
    } else {
        BL_TRY(bl_buf_append_str(ret, "null", err));
    }
    if (e->code) {
        BL_TRY(bl_buf_printf(ret, err, ",\"code\":\"%s\"}}", e->code));
    } else {
        BL_TRY(bl_buf_append_str(ret, ",\"code\":null}}", err));
    }
    return BL_OK;
}
