/* Errors: a code and a fixed-size message.
 *
 * Every function that can fail returns bl_code and takes `bl_err *err` last (NULL allowed). On failure the
 * ret_ outputs are untouched and nothing is leaked. A message names the object, the value found and the value
 * allowed; it never holds prompt text, keys or tokens. No allocation happens here.
 */
#ifndef BL_ERR_H
#define BL_ERR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    BL_OK = 0,
    BL_EINVAL,    /* the caller's argument or request is wrong */
    BL_EFORMAT,   /* a file or message does not follow its format */
    BL_ELIMIT,    /* well formed, but beyond a stated limit */
    BL_ERANGE,    /* integer overflow or a value out of its type's range */
    BL_ENOMEM,    /* memory could not be had (or an arena's ceiling was reached: BL_ELIMIT) */
    BL_EIO,       /* the operating system refused a read, write, open, map... */
    BL_ENOTFOUND, /* no such file, model, tensor, key */
    BL_ENOTSUP,   /* understood, but not supported here */
    BL_ECANCEL,   /* cancelled by the caller */
    BL_EBUSY,     /* full queue, try later */
    BL_ECORRUPT,  /* hash or size does not match what was promised */
    BL_EINTERNAL, /* a defect of ours, reported instead of crashing */
    BL_ERR__MAX
} bl_code;

typedef struct {
    bl_code code;
    int line;         /* where it was raised */
    const char *file; /* static string */
    char msg[256];    /* one line, UTF-8, NUL-terminated */
} bl_err;

#if defined(__GNUC__)
#define BL_MUST_CHECK   __attribute__((warn_unused_result))
#define BL_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define BL_MUST_CHECK
#define BL_PRINTF(a, b)
#endif

/* Fills *err (when not NULL) and returns code. The message is cut at 255 bytes, never inside a UTF-8
 * character, and control bytes in it become '?'. Use through BL_FAIL. */
bl_code bl_err_set(bl_err *err, bl_code code, const char *file, int line, const char *fmt, ...)
    BL_PRINTF(5, 6);

/* Puts "context: " before the message, keeping the code. Returns err->code (or `code` when err is NULL). */
bl_code bl_err_wrap(bl_err *err, bl_code code, const char *fmt, ...) BL_PRINTF(3, 4);

/* Short lower-case name of a code ("format", "limit", ...). */
const char *bl_code_name(bl_code code);

/* The code is returned as written, so that a compiler sees that this is a failure. */
#define BL_FAIL(err, code, ...)                                                                              \
    do {                                                                                                     \
        (void)bl_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__);                                    \
        return (code);                                                                                       \
    } while (0)
#define BL_TRY(expr)                                                                                         \
    do {                                                                                                     \
        bl_code bl_try_code = (expr);                                                                        \
        if (bl_try_code != BL_OK) {                                                                          \
            return bl_try_code;                                                                              \
        }                                                                                                    \
    } while (0)
/* The goto form: sets `rc` and jumps to the function's one forward clean-up label. */
#define BL_TRY_GOTO(rc, label, expr)                                                                         \
    do {                                                                                                     \
        (rc) = (expr);                                                                                       \
        if ((rc) != BL_OK) {                                                                                 \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
