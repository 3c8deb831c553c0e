#include "provider/capabilities.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "formats/names.h"

/* Both builds of EigenLabs are published for apple_m5 + mlx_nax: a machine with matrix units, and the kernels
 * that use them. That is a need of another runtime, which has no meaning here and would shut every machine
 * out. What it stands for does: wide integer products (the scalar code is right, and takes minutes for a
 * token), and room for 15.2 GB of weights, a head and a context. */
static const struct {
    const char *id;
    const char *needs[4];
} rules[] = {
    {"EigenLabs/Qwen3.8-27B-4bit", {"cpu:avx2", "mem:18GiB"}},
    {"EigenLabs/Qwen3.8-27B-4bit-mtp", {"cpu:avx2", "mem:18GiB"}},
};

/* ---- the machine --------------------------------------------------------------------------------------- */

static bool lists(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *p = names; p != NULL && n > 0;) {
        size_t len = strcspn(p, "+,");
        if (len == n && memcmp(p, name, n) == 0) {
            return true;
        }
        p = p[len] != '\0' ? p + len + 1 : NULL;
    }
    return false;
}

/* One to six digits without a leading zero, followed by exactly `unit`. */
static bool number_of(const char *s, const char *unit, uint32_t *ret) {
    size_t n = strspn(s, "0123456789");
    uint32_t v = 0;
    if (n == 0 || n > 6 || s[0] == '0' || strcmp(s + n, unit) != 0) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    *ret = v;
    return true;
}

static const char *behind(const char *s, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

bool bl_machine_has(const bl_machine *m, const char *capability) {
    const char *rest;
    uint32_t v;
    if ((rest = behind(capability, "cpu:")) != NULL) {
        return m->cpu != NULL && lists(m->cpu, rest);
    }
    if ((rest = behind(capability, "cuda:sm_")) != NULL) {
        return number_of(rest, "", &v) && m->cuda_sm >= v;
    }
    if ((rest = behind(capability, "mem:")) != NULL) {
        return number_of(rest, "GiB", &v) && m->memory_bytes >> 30 >= v;
    }
    return false;
}

/* ---- the set ------------------------------------------------------------------------------------------- */

void bl_capabilities_add(bl_capabilities *c, const char *name) {
    size_t n = name != NULL ? strlen(name) : 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (n > 0 && strcmp(c->names[i], name) == 0) {
            return;
        }
    }
    if (n == 0 || n >= BL_CAPABILITY_BYTES || c->n == BL_CAPABILITIES_MAX) {
        c->n_unreadable += c->n_unreadable < UINT32_MAX;
        return;
    }
    memcpy(c->names[c->n++], name, n + 1);
}

void bl_capabilities_add_rules(bl_capabilities *c, const char *id) {
    for (size_t r = 0; r < BL_COUNTOF(rules); r++) {
        if (strcmp(rules[r].id, id) != 0) {
            continue;
        }
        for (size_t i = 0; i < BL_COUNTOF(rules[r].needs) && rules[r].needs[i] != NULL; i++) {
            bl_capabilities_add(c, rules[r].needs[i]);
        }
    }
}

typedef struct {
    const char *s;
    size_t n;
} piece;

/* The last component of the first `*n` bytes of path, which *n is cut before. "." is skipped. */
static piece last_component(const char *path, size_t *n) {
    piece p;
    do {
        while (*n > 0 && path[*n - 1] == '/') {
            (*n)--;
        }
        size_t end = *n;
        while (*n > 0 && path[*n - 1] != '/') {
            (*n)--;
        }
        p = (piece){path + *n, end - *n};
    } while (p.n == 1 && p.s[0] == '.');
    return p;
}

static bool ends_with(piece p, const char *tail) {
    size_t n = strlen(tail);
    return p.n >= n && memcmp(p.s + p.n - n, tail, n) == 0;
}

static void add_spelled(bl_capabilities *c, const char *path) {
    size_t left = strlen(path);
    char id[512];
    piece repo = last_component(path, &left), org = last_component(path, &left);
    if (ends_with(repo, ".gguf")) {
        repo = org;
        org = last_component(path, &left);
    }
    if (org.n == strlen("snapshots") && ends_with(org, "snapshots")) {
        repo = last_component(path, &left);
        org = last_component(path, &left);
    }
    const char *name = behind(repo.s, "models--");
    if (name != NULL && repo.n > strlen("models--")) {
        repo = (piece){name, repo.n - strlen("models--")};
    }
    for (size_t i = 1; i + 1 < repo.n; i++) { /* ORG--REPO; an owner's name holds no "--" */
        if (repo.s[i] == '-' && repo.s[i + 1] == '-') {
            org = (piece){repo.s, i};
            repo = (piece){repo.s + i + 2, repo.n - i - 2};
            break;
        }
    }
    /* A longer one is no id that a rule is for. */
    if (org.n + repo.n + 2 <= sizeof(id)) {
        snprintf(id, sizeof(id), "%.*s/%.*s", (int)org.n, org.s, (int)repo.n, repo.s);
        bl_capabilities_add_rules(c, id);
    }
}

void bl_capabilities_add_path(bl_capabilities *c, const char *path) {
    add_spelled(c, path);
    char real[PATH_MAX];
    if (realpath(path, real) != NULL) { /* otherwise there is nothing to load either */
        add_spelled(c, real);
    }
}

void bl_capabilities_add_config(bl_capabilities *c, const json_t *config) {
    const char *id = json_string_value(json_object_get(config, "_name_or_path"));
    if (id != NULL) {
        bl_capabilities_add_rules(c, id);
    }
    const json_t *list = json_object_get(config, BL_CAPABILITIES_KEY);
    if (list != NULL && !json_is_array(list)) {
        bl_capabilities_add(c, NULL);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        const char *name = json_string_value(s);
        bool whole = name != NULL && strlen(name) == json_string_length(s);
        bl_capabilities_add(c, whole ? name : NULL);
    }
}

/* ---- the verdict --------------------------------------------------------------------------------------- */

void bl_capabilities_missing(const bl_capabilities *c, const bl_machine *m, bl_capabilities *ret) {
    bl_capabilities r = {.n_unreadable = c->n_unreadable};
    for (uint32_t i = 0; i < c->n; i++) {
        if (!bl_machine_has(m, c->names[i])) {
            bl_capabilities_add(&r, c->names[i]);
        }
    }
    *ret = r;
}

const char *bl_capabilities_text(const bl_capabilities *c, char ret[BL_CAPABILITIES_TEXT]) {
    const size_t tail = sizeof(" and 4294967295 more");
    size_t n = 0;
    uint32_t i = 0;
    ret[0] = '\0';
    for (; i < c->n; i++) {
        size_t len = strlen(c->names[i]) + (i > 0 ? 2 : 0);
        if (n + len + tail > BL_CAPABILITIES_TEXT) {
            break;
        }
        snprintf(ret + n, BL_CAPABILITIES_TEXT - n, "%s%s", i > 0 ? ", " : "", c->names[i]);
        n += len;
    }
    uint64_t rest = (uint64_t)c->n - i + c->n_unreadable;
    if (rest > 0) {
        snprintf(ret + n, BL_CAPABILITIES_TEXT - n, "%s%llu %s", n > 0 ? " and " : "",
                 (unsigned long long)BL_MIN(rest, UINT32_MAX), n > 0 ? "more" : "unreadable");
    }
    for (char *p = ret; *p != '\0'; p++) { /* they come out of files, and this is one line */
        if ((unsigned char)*p < 0x20 || *p == 0x7F) {
            *p = '?';
        }
    }
    return ret;
}

bl_code bl_capabilities_check(const bl_capabilities *c, const bl_machine *m, const char *model, bl_err *err) {
    bl_capabilities missing;
    char text[BL_CAPABILITIES_TEXT];
    bl_capabilities_missing(c, m, &missing);
    if (missing.n > 0 || missing.n_unreadable > 0) {
        BL_FAIL(err, BL_ENOTSUP, "model '%.*s' needs what this machine lacks: %s",
                bl_name_shown(model, strlen(model)), model, bl_capabilities_text(&missing, text));
    }
    return BL_OK;
}

bl_code bl_capabilities_pass_on(const bl_capabilities *c, json_t *config, bl_err *err) {
    bl_capabilities all = {0};
    bl_capabilities_add_config(&all, config);
    for (uint32_t i = 0; i < c->n; i++) {
        bl_capabilities_add(&all, c->names[i]);
    }
    if (c->n_unreadable > 0 || all.n_unreadable > 0) {
        BL_FAIL(err, BL_ENOTSUP,
                BL_CAPABILITIES_KEY ": %u requirements cannot be passed on, %u of 1 to %u bytes can",
                c->n_unreadable + all.n_unreadable, BL_CAPABILITIES_MAX, BL_CAPABILITY_BYTES - 1);
    }
    if (all.n == 0) {
        return BL_OK;
    }
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; i < all.n && ok; i++) {
        ok = json_array_append_new(list, json_string(all.names[i])) == 0;
    }
    if (!ok || json_object_set(config, BL_CAPABILITIES_KEY, list) != 0) {
        json_decref(list);
        BL_FAIL(err, BL_ENOMEM, BL_CAPABILITIES_KEY ": out of memory");
    }
    json_decref(list);
    return BL_OK;
}
