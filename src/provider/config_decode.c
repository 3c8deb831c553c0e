/* From a TOML tree to the values of provider.toml: types, ranges, words, unknown and retired keys, and what
 * files of earlier versions meant (provider/config.h). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"
#include "base/words.h"
#include "bl/bl.h"
#include "provider/config_impl.h"

const char *config_shown_path(const char *path, char ret[112]) {
    size_t n = strlen(path);
    const char *from = n > 100 ? path + n - 100 : path;
    while (((unsigned char)*from & 0xC0) == 0x80) { /* not from within a character */
        from++;
    }
    snprintf(ret, 112, "%s%.100s", from > path ? "..." : "", from);
    return ret;
}

void config_warn(bl_config *c, uint32_t line, const char *fmt, ...) {
    if (c->n_warnings == BL_CONFIG_MAX_WARNINGS) {
        return;
    }
    char what[256], shown[112];
    bl_err e;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    /* Through bl_err_set for its rule on control bytes and cut characters. */
    (void)bl_err_set(&e, BL_EFORMAT, __FILE__, __LINE__, "%s:%u: %s", config_shown_path(c->path, shown), line,
                     what);
    snprintf(c->warnings[c->n_warnings++], sizeof c->warnings[0], "%s", e.msg);
}

int config_word_index(const char *choices, const char *s, bool loose) {
    int i = 0;
    if (loose && bl_word_is_blank(s)) {
        return 0;
    }
    for (const char *p = choices;; i++) {
        char word[32];
        size_t n = strcspn(p, "|");
        const char *words[1] = {word};
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (loose ? bl_word_is_one_of(s, words, 1) : strcmp(s, word) == 0) {
            return i;
        }
        if (p[n] == '\0') {
            return -1;
        }
        p += n + 1;
    }
}

/* ---- complaints ---------------------------------------------------------------------------------------- */

typedef struct {
    bl_config *c;
    bl_err *err;
} decoder;

/* "PATH:LINE: KEY is FOUND, allowed: ALLOWED"; entry: of a map or array, or NULL. */
static bl_code refuse(decoder *d, const char *key, const char *entry, const bl_toml_node *node,
                      const char *allowed) {
    char found[48], shown[112];
    size_t n = 0;
    const char *text = bl_toml_text(d->c->doc, &n);
    if (node->form == BL_TOML_WRITTEN && node->kind != BL_TOML_TABLE && node->kind != BL_TOML_ARRAY) {
        size_t len = node->end - node->at;
        snprintf(found, sizeof found, "%.*s%s", (int)BL_MIN(len, (size_t)40), text + node->at,
                 len > 40 ? "..." : "");
    } else {
        snprintf(found, sizeof found, "%s",
                 node->form == BL_TOML_HEADERS ? "an array of tables" : bl_toml_kind_name(node->kind));
    }
    BL_FAIL(d->err, BL_EFORMAT, "%s:%u: %s%s%.40s is %s, allowed: %s", config_shown_path(d->c->path, shown),
            node->line, key, entry != NULL ? "." : "", entry != NULL ? entry : "", found, allowed);
}

static bl_code refuse_key(decoder *d, bl_config_id id, const bl_toml_node *node) {
    char name[96], allowed[96];
    return refuse(d, bl_config_key_name(id, name), NULL, node, bl_config_allowed(id, allowed));
}

/* ---- single values ------------------------------------------------------------------------------------- */

static bool is_plain_text(const bl_toml_node *n) {
    return n->kind == BL_TOML_STRING && n->v.str.len <= BL_CONFIG_MAX_TEXT &&
           memchr(n->v.str.s, '\0', n->v.str.len) == NULL;
}

static bool is_number_of(const bl_config_key *k, const bl_toml_node *n) {
    return n->kind == BL_TOML_INT && n->v.i >= 0 && (uint64_t)n->v.i >= k->min && (uint64_t)n->v.i <= k->max;
}

const char *bl_config_word(const bl_config_key *k, uint32_t index) {
    static const char *const words[] = {"auto", "paged", "contiguous", "on", "off", "enforce"};
    const char *p = k->choices, *found = NULL;
    for (uint32_t i = 0; i < index; i++) {
        p += strcspn(p, "|") + 1;
    }
    size_t n = strcspn(p, "|");
    for (size_t i = 0; i < BL_COUNTOF(words); i++) {
        if (strlen(words[i]) == n && memcmp(words[i], p, n) == 0) {
            found = words[i];
        }
    }
    BL_ASSERT(found != NULL);
    return found;
}

static void set_word(const bl_config_key *k, int index, bl_config_value *v) {
    v->u = (uint64_t)index;
    v->text = bl_config_word(k, (uint32_t)index);
}

static void warn_word(decoder *d, const char *key, const char *entry, const bl_toml_node *node) {
    config_warn(d->c, node->line, "%s%s%.60s is \"%.40s\", which no KV storage is called: auto is taken", key,
                entry != NULL ? "." : "", entry != NULL ? entry : "", node->v.str.s);
}

static bl_code decode_map(decoder *d, bl_config_id id, const bl_toml_node *node) {
    char name[96], allowed[96];
    const bl_config_key *k = bl_config_key_of(id);
    bl_config_key_name(id, name);
    if (node->kind != BL_TOML_TABLE) {
        return refuse(d, name, NULL, node, "a table from models to values");
    }
    bl_config_allowed(id, allowed);
    for (const bl_toml_node *e = node->first; e != NULL; e = e->next) {
        bool word = k->kind == BL_CONFIG_MAP_WORD;
        if (word ? !is_plain_text(e) : !is_number_of(k, e)) {
            return refuse(d, name, e->key, e, allowed);
        }
        if (word && config_word_index(k->choices, e->v.str.s, true) < 0) {
            warn_word(d, name, e->key, e);
        }
    }
    return BL_OK;
}

static bl_code decode_texts(decoder *d, const char *name, const bl_toml_node *node, const char *allowed) {
    if (node->kind != BL_TOML_ARRAY || node->form != BL_TOML_WRITTEN) {
        return refuse(d, name, NULL, node, allowed);
    }
    for (const bl_toml_node *e = node->first; e != NULL; e = e->next) {
        if (!is_plain_text(e)) {
            return refuse(d, name, "element", e, "a string in quotes");
        }
    }
    return BL_OK;
}

static bl_code decode_windows(decoder *d, bl_config_id id, const bl_toml_node *node) {
    static const char *const texts[] = {"start", "end"};
    if (node->kind != BL_TOML_ARRAY) {
        return refuse_key(d, id, node);
    }
    for (const bl_toml_node *w = node->first; w != NULL; w = w->next) {
        if (w->kind != BL_TOML_TABLE) {
            return refuse_key(d, id, w);
        }
        const bl_toml_node *days = bl_toml_find(w, "days");
        if (days != NULL) {
            BL_TRY(decode_texts(d, "schedule.windows.days", days, "an array of strings"));
        }
        for (size_t i = 0; i < BL_COUNTOF(texts); i++) {
            const bl_toml_node *t = bl_toml_find(w, texts[i]);
            if (t != NULL && !is_plain_text(t)) {
                return refuse(d, "schedule.windows", texts[i], t, "\"HH:MM\"");
            }
        }
    }
    return BL_OK;
}

static bl_code decode_words(decoder *d, bl_config_id id, const bl_toml_node *node, bl_config_value *v) {
    const bl_config_key *k = bl_config_key_of(id);
    if (!is_plain_text(node)) {
        return refuse_key(d, id, node);
    }
    int index = config_word_index(k->choices, node->v.str.s, k->kind == BL_CONFIG_WORD);
    if (index < 0 && k->kind == BL_CONFIG_CHOICE) {
        return refuse_key(d, id, node);
    }
    if (index < 0) {
        char name[96];
        warn_word(d, bl_config_key_name(id, name), NULL, node);
        index = 0;
    }
    set_word(k, index, v);
    return BL_OK;
}

static bl_code decode_value(decoder *d, bl_config_id id, const bl_toml_node *node, bl_config_value *v) {
    char name[96];
    const bl_config_key *k = bl_config_key_of(id);
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        if (node->kind != BL_TOML_BOOL) {
            return refuse_key(d, id, node);
        }
        v->b = node->v.b;
        return BL_OK;
    case BL_CONFIG_U64:
        if (!is_number_of(k, node)) {
            return refuse_key(d, id, node);
        }
        v->u = (uint64_t)node->v.i;
        return BL_OK;
    case BL_CONFIG_CHOICE:
    case BL_CONFIG_WORD:
        return decode_words(d, id, node, v);
    case BL_CONFIG_TEXT:
        if (!is_plain_text(node)) {
            return refuse_key(d, id, node);
        }
        v->text = node->v.str.s;
        return BL_OK;
    case BL_CONFIG_TEXTS:
        v->node = node;
        return decode_texts(d, bl_config_key_name(id, name), node, "an array of strings");
    case BL_CONFIG_MAP_U64:
    case BL_CONFIG_MAP_WORD:
        v->node = node;
        return decode_map(d, id, node);
    case BL_CONFIG_TABLE:
        v->node = node;
        return node->kind == BL_TOML_TABLE ? BL_OK : refuse_key(d, id, node);
    case BL_CONFIG_WINDOWS:
        v->node = node;
        return decode_windows(d, id, node);
    case BL_CONFIG_KIND__MAX:
        break;
    }
    BL_FAIL(d->err, BL_EINTERNAL, "the table of keys holds kind %d", (int)k->kind);
}

/* The default of the table, which is TOML of the key's own kind. */
static void set_default(bl_config_id id, bl_config_value *v) {
    const bl_config_key *k = bl_config_key_of(id);
    *v = (bl_config_value){.has_value = k->def != NULL};
    if (k->def == NULL) {
        return;
    }
    if (k->kind == BL_CONFIG_BOOL) {
        v->b = k->def[0] == 't';
    } else if (k->kind == BL_CONFIG_U64) {
        for (const char *p = k->def; *p != '\0'; p++) {
            v->u = v->u * 10 + (uint64_t)(*p - '0');
        }
    } else if (k->kind == BL_CONFIG_CHOICE || k->kind == BL_CONFIG_WORD) {
        set_word(k, 0, v); /* the first word is the default */
    } else if (k->kind == BL_CONFIG_TEXT) {
        v->text = "darkbloom"; /* provider.name: the only text with a default */
    }
}

/* ---- the file's keys ----------------------------------------------------------------------------------- */

/* Of earlier versions, without effect: whatever they hold, a configuration stays usable. */
static bool is_retired(const char *section, const char *name) {
    static const char *const names[] = {"continuous_batching", "adaptive_prefill", "engine_v2",
                                        "legacy_compiled_decode", "kv_quant"};
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        if (strcmp(section, "backend") == 0 && strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void warn_unknown(decoder *d, const char *section, const bl_toml_node *node) {
    const char *names[BL_CONFIG__MAX + 8];
    size_t n = 0;
    bool top = section[0] == '\0';
    for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
        const bl_config_key *k = bl_config_key_of((bl_config_id)i);
        if (strcmp(k->section, section) == 0) {
            names[n++] = k->name;
        } else if (top && (n == 0 || strcmp(names[n - 1], k->section) != 0)) {
            names[n++] = k->section;
        }
    }
    const char *near = bl_nearest(node->key, names, n);
    config_warn(d->c, node->line, "unknown %s '%s%s%.60s' is ignored%s%s%s",
                top && node->kind == BL_TOML_TABLE ? "section" : "key", section, top ? "" : ".", node->key,
                near != NULL ? ", did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

static bl_code decode_key(decoder *d, const char *section, const bl_toml_node *node) {
    for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
        const bl_config_key *k = bl_config_key_of((bl_config_id)i);
        if (strcmp(k->section, section) == 0 && strcmp(k->name, node->key) == 0) {
            bl_config_value v = {.has_value = true, .in_file = true, .line = node->line};
            BL_TRY(decode_value(d, (bl_config_id)i, node, &v));
            d->c->values[i] = v;
            return BL_OK;
        }
    }
    if (strcmp(section, "backend") == 0 && strcmp(node->key, "mtp") == 0) {
        d->c->legacy_mtp = node;
        return node->kind == BL_TOML_BOOL ? BL_OK : refuse(d, "backend.mtp", NULL, node, "true or false");
    }
    if (is_retired(section, node->key)) {
        config_warn(d->c, node->line, "'%s.%s' has no effect any more, the line can go", section, node->key);
    } else {
        warn_unknown(d, section, node);
    }
    return BL_OK;
}

static bool is_section(const char *name) {
    for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
        const char *section = bl_config_key_of((bl_config_id)i)->section;
        if (section[0] != '\0' && strcmp(section, name) == 0) {
            return true;
        }
    }
    return false;
}

static bl_code decode_keys(decoder *d) {
    for (const bl_toml_node *n = bl_toml_root(d->c->doc)->first; n != NULL; n = n->next) {
        if (!is_section(n->key)) {
            BL_TRY(decode_key(d, "", n));
            continue;
        }
        if (n->kind != BL_TOML_TABLE) {
            return refuse(d, n->key, NULL, n, "a table");
        }
        for (const bl_toml_node *k = n->first; k != NULL; k = k->next) {
            BL_TRY(decode_key(d, n->key, k));
        }
    }
    return BL_OK;
}

/* ---- what earlier versions meant ----------------------------------------------------------------------- */

static void migrate_concurrency(bl_config *c) {
    bl_config_value *v = &c->values[BL_CONFIG_MAX_CONCURRENT];
    const bl_config_value *kv = &c->values[BL_CONFIG_KV_BACKEND];
    bool paged = kv->in_file && strcmp(kv->text, "paged") == 0;
    if (c->version == 1 && v->in_file && v->u == CONFIG_GENERATED_CONCURRENCY && !paged) {
        v->u = CONFIG_CURRENT_CONCURRENCY;
        v->migrated = true;
        config_warn(
            c, v->line,
            "backend.engine_v2_max_concurrent is the 8 that version 1 wrote by itself, taken as %u; if "
            "you chose it, set it again",
            CONFIG_CURRENT_CONCURRENCY);
    }
}

static void migrate_mtp(bl_config *c) {
    bl_config_value *v = &c->values[BL_CONFIG_MTP_MODE];
    if (c->legacy_mtp == NULL) {
        return;
    }
    if (v->in_file) {
        config_warn(c, c->legacy_mtp->line, "'backend.mtp' has no effect beside mtp_mode, the line can go");
        return;
    }
    /* A false that a version before 3 wrote was its default. */
    int index = c->legacy_mtp->v.b ? 1 : c->version >= 3 ? 2 : 0;
    *v = (bl_config_value){.has_value = true, .in_file = true, .migrated = true, .line = c->legacy_mtp->line};
    set_word(bl_config_key_of(BL_CONFIG_MTP_MODE), index, v);
}

static void look_at_version(bl_config *c) {
    bl_config_value *v = &c->values[BL_CONFIG_CONFIG_VERSION];
    c->version = v->in_file ? v->u : 0;
    if (c->version > BL_CONFIG_VERSION) {
        config_warn(c, v->line, "config_version is %llu, this program knows %u: newer keys are ignored",
                    (unsigned long long)c->version, BL_CONFIG_VERSION);
    }
    v->migrated = c->exists && c->version < BL_CONFIG_VERSION;
    v->u = BL_CONFIG_VERSION;
}

static void look_at_values(bl_config *c) {
    bl_config_value *n = &c->values[BL_CONFIG_MAX_CONCURRENT];
    uint64_t taken = BL_MIN(BL_MAX(n->u, (uint64_t)1), (uint64_t)BL_MAX_CONCURRENT);
    if (n->u != taken) {
        config_warn(c, n->line, "backend.engine_v2_max_concurrent is %llu, taken as %llu",
                    (unsigned long long)n->u, (unsigned long long)taken);
        n->u = taken;
    }
    const bl_config_value *path = &c->values[BL_CONFIG_MTP_DRAFTER_PATH];
    if (path->in_file && !bl_word_is_blank(path->text) &&
        strcmp(c->values[BL_CONFIG_MTP_MODE].text, "on") != 0) {
        config_warn(c, path->line, "backend.mtp_drafter_path has no effect without mtp_mode = \"on\"");
    }
}

bl_code config_decode(bl_config *c, bl_err *err) {
    decoder d = {c, err};
    for (unsigned i = 0; i < BL_CONFIG__MAX; i++) {
        set_default((bl_config_id)i, &c->values[i]);
    }
    BL_TRY(decode_keys(&d));
    look_at_version(c);
    migrate_concurrency(c);
    migrate_mtp(c);
    look_at_values(c);
    return BL_OK;
}
