/* A strict reader of Prometheus' text form (version 0.0.4), for tests: what it does not understand fails the
 * test. Checks that HELP and TYPE stand once and before their samples, that names and escapes are legal, that
 * no sample comes twice, that histograms are cumulative and whole, and that counters are called _total.
 */
#ifndef BL_TESTS_EXPOSITION_H
#define BL_TESTS_EXPOSITION_H

#include "cmocka_all.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPO_MAX 512

typedef struct {
    char name[96], labels[256]; /* labels as written, with their escapes */
    double value;
} expo_sample;

typedef struct {
    expo_sample samples[EXPO_MAX];
    size_t n;
    char family[96], type[16]; /* of the lines being read */
    char families[128][96];
    size_t n_families;
} expo;

static size_t expo_name(const char *p) {
    size_t n = 0;
    while (isalpha((unsigned char)p[n]) || p[n] == '_' || (n > 0 && isdigit((unsigned char)p[n]))) {
        n++;
    }
    return n;
}

/* {a="b",c="d"} -> its length, without leaving the line. */
static size_t expo_labels(const char *line) {
    const char *p = line;
    assert_int_equal(*p++, '{');
    do {
        size_t n = expo_name(p);
        assert_true(n > 0 && p[n] == '=' && p[n + 1] == '"');
        for (p += n + 2; *p != '"'; p++) {
            assert_true(*p != '\n' && *p != '\0');
            if (*p == '\\') {
                p++;
                if (*p != '\\' && *p != '"' && *p != 'n') {
                    fail_msg("a bad escape in %.100s", line);
                }
            }
        }
        p++;
    } while (*p++ == ',');
    assert_int_equal(p[-1], '}');
    return (size_t)(p - line);
}

static void expo_comment(expo *e, const char *line) {
    const bool help = strncmp(line, "# HELP ", 7) == 0;
    assert_true(help || strncmp(line, "# TYPE ", 7) == 0);
    size_t n = expo_name(line + 7);
    char name[96];
    (void)snprintf(name, sizeof name, "%.*s", (int)n, line + 7);
    assert_memory_equal(name, "darkbloom_", 10);
    assert_int_equal(line[7 + n], ' ');
    if (help) { /* opens a family */
        assert_true(line[8 + n] != '\n');
        for (size_t i = 0; i < e->n_families; i++) {
            if (strcmp(e->families[i], name) == 0) {
                fail_msg("%s has a second HELP", name);
            }
        }
        (void)snprintf(e->families[e->n_families++], sizeof e->families[0], "%s", name);
        (void)snprintf(e->family, sizeof e->family, "%s", name);
        e->type[0] = '\0';
        return;
    }
    assert_string_equal(name, e->family); /* right after its HELP */
    assert_int_equal(e->type[0], '\0');
    (void)snprintf(e->type, sizeof e->type, "%.*s", (int)strcspn(line + 8 + n, "\n"), line + 8 + n);
    assert_true(strcmp(e->type, "counter") == 0 || strcmp(e->type, "gauge") == 0 ||
                strcmp(e->type, "histogram") == 0);
    const bool total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
    assert_int_equal(total, strcmp(e->type, "counter") == 0);
}

static void expo_line(expo *e, const char *line) {
    assert_true(e->n < EXPO_MAX);
    expo_sample *s = &e->samples[e->n];
    size_t n = expo_name(line);
    (void)snprintf(s->name, sizeof s->name, "%.*s", (int)n, line);
    size_t n_labels = line[n] == '{' ? expo_labels(line + n) : 0;
    assert_true(n_labels < sizeof s->labels);
    (void)snprintf(s->labels, sizeof s->labels, "%.*s", (int)n_labels, line + n);
    assert_int_equal(line[n + n_labels], ' ');
    char *end = NULL;
    s->value = strtod(line + n + n_labels + 1, &end);
    assert_true(*end == '\n' && isfinite(s->value) && s->value >= 0);
    assert_true(e->type[0] != '\0');
    size_t family = strlen(e->family);
    assert_memory_equal(s->name, e->family, family);
    const char *rest = s->name + family;
    if (strcmp(e->type, "histogram") == 0) {
        assert_true(strcmp(rest, "_bucket") == 0 || strcmp(rest, "_sum") == 0 || strcmp(rest, "_count") == 0);
    } else {
        assert_string_equal(rest, "");
    }
    for (size_t i = 0; i < e->n; i++) {
        if (strcmp(e->samples[i].name, s->name) == 0 && strcmp(e->samples[i].labels, s->labels) == 0) {
            fail_msg("%s%s comes twice", s->name, s->labels);
        }
    }
    e->n++;
}

/* The value of a sample; labels "" for none. Fails when there is none. */
static double expo_value(const expo *e, const char *name, const char *labels) {
    for (size_t i = 0; i < e->n; i++) {
        if (strcmp(e->samples[i].name, name) == 0 && strcmp(e->samples[i].labels, labels) == 0) {
            return e->samples[i].value;
        }
    }
    fail_msg("no sample %s%s", name, labels);
    return 0;
}

/* Buckets ascend in bound and count, and end with +Inf, which is _count. */
static void expo_check_histogram(const expo *e, const char *family) {
    char name[128];
    double bound = -1, count = 0;
    bool whole = false;
    (void)snprintf(name, sizeof name, "%s_bucket", family);
    for (size_t i = 0; i < e->n; i++) {
        const expo_sample *s = &e->samples[i];
        if (strcmp(s->name, name) != 0) {
            continue;
        }
        assert_false(whole);
        assert_memory_equal(s->labels, "{le=\"", 5);
        whole = strcmp(s->labels, "{le=\"+Inf\"}") == 0;
        double le = whole ? INFINITY : strtod(s->labels + 5, NULL);
        assert_true(le > bound && s->value >= count);
        bound = le;
        count = s->value;
    }
    assert_true(whole);
    (void)snprintf(name, sizeof name, "%s_count", family);
    assert_true(expo_value(e, name, "") == count);
    (void)snprintf(name, sizeof name, "%s_sum", family);
    assert_true(count > 0 || expo_value(e, name, "") == 0);
}

static void expo_parse(expo *e, const char *text) {
    memset(e, 0, sizeof *e);
    for (const char *p = text, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end); /* the last line ends too */
        if (*p == '#') {
            expo_comment(e, p);
        } else {
            expo_line(e, p);
        }
    }
    for (size_t i = 0; i < e->n; i++) {
        size_t n = strlen(e->samples[i].name);
        if (n > 6 && strcmp(e->samples[i].name + n - 6, "_count") == 0) {
            char family[96];
            (void)snprintf(family, sizeof family, "%.*s", (int)n - 6, e->samples[i].name);
            expo_check_histogram(e, family);
        }
    }
}

#endif
