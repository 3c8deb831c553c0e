/* Log: one event per line on stderr (or a test's sink): time, level, component, event, key=value pairs.
 * Never user content, keys or tokens. Nothing above debug in per-token paths. Thread-safe: one write per
 * line.
 */
#ifndef BL_BASE_LOG_H
#define BL_BASE_LOG_H

#include "bl/bl_err.h"

typedef enum { BL_LOG_DEBUG, BL_LOG_INFO, BL_LOG_WARN, BL_LOG_ERROR, BL_LOG__MAX } bl_log_level;

void bl_log_set_level(
    bl_log_level level); /* default BL_LOG_WARN for terminal commands; the server sets INFO */
typedef void bl_log_sink(bl_log_level level, const char *line, void *user); /* line has no newline */
void bl_log_set_sink(bl_log_sink *sink, void *user);                        /* NULL: stderr */

/* bl_log(BL_LOG_INFO, "serve", "listening", "port=%d", port). fmt may be "" for no pairs. */
void bl_log(bl_log_level level, const char *component, const char *event, const char *fmt, ...)
    BL_PRINTF(4, 5);

#endif
