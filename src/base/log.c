#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The log sink: one of the two mutable globals (STYLE.md rule 40). [guarded by mu], the level [atomic]. */
static struct {
    pthread_mutex_t mu;
    bl_log_sink *sink;
    void *user;
    atomic_int level;
} logger = {.mu = PTHREAD_MUTEX_INITIALIZER, .level = BL_LOG_WARN};

void bl_log_set_level(bl_log_level level) {
    atomic_store_explicit(&logger.level, (int)level,
                          memory_order_relaxed); /* pairs with the load in bl_log */
}

void bl_log_set_sink(bl_log_sink *sink, void *user) {
    pthread_mutex_lock(&logger.mu);
    logger.sink = sink;
    logger.user = user;
    pthread_mutex_unlock(&logger.mu);
}

void bl_log(bl_log_level level, const char *component, const char *event, const char *fmt, ...) {
    static const char *const names[BL_LOG__MAX] = {"debug", "info", "warn", "error"};
    if ((int)level < atomic_load_explicit(&logger.level, memory_order_relaxed) || level >= BL_LOG__MAX) {
        return;
    }
    char line[1024];
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    struct tm tm;
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    int w = snprintf(line + n, sizeof line - n, ".%03ldZ %-5s %s %s ", ts.tv_nsec / 1000000, names[level],
                     component, event);
    n += w > 0 ? (size_t)w : 0;
    va_list ap;
    va_start(ap, fmt);
    w = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    n = w > 0 ? (n + (size_t)w < sizeof line - 1 ? n + (size_t)w : sizeof line - 2) : n;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    while (n > 0 && line[n - 1] == ' ') {
        n--;
    }
    line[n] = '\0';
    pthread_mutex_lock(&logger.mu);
    if (logger.sink) {
        logger.sink(level, line, logger.user);
    } else {
        line[n] = '\n';
        ssize_t ignored = write(STDERR_FILENO, line, n + 1);
        (void)ignored; /* a log that cannot be written has nowhere to say so */
    }
    pthread_mutex_unlock(&logger.mu);
}
