#include "cli/config_args.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/words.h"
#include "bl/bl.h"

bl_code bl_cli_config_path(const bl_cli_config_args *a, const char *home, char ret[BL_CONFIG_MAX_PATH],
                           bl_err *err) {
    return bl_config_path(a->file, a->config_home, home, ret, err);
}

static void warn(const bl_config *c) {
    size_t n = bl_config_n_warnings(c);
    for (size_t i = 0; i < n; i++) {
        bl_cli_errorf("warning: %s", bl_config_warning(c, i));
    }
    if (n == BL_CONFIG_MAX_WARNINGS) {
        bl_cli_errorf("warning: %s: there may be more of these", bl_config_file(c));
    }
}

bl_code bl_cli_config_open(const bl_cli_config_args *a, const char *home, bl_config **ret, bl_err *err) {
    char path[BL_CONFIG_MAX_PATH];
    BL_TRY(bl_cli_config_path(a, home, path, err));
    BL_TRY(bl_config_open(path, ret, err));
    warn(*ret);
    return BL_OK;
}

/* Depth is bounded by the parser's. NULL: no memory. */
static json_t *to_json(const bl_toml *doc, const bl_toml_node *n) {
    size_t len = 0;
    switch (n->kind) {
    case BL_TOML_BOOL:
        return json_boolean(n->v.b);
    case BL_TOML_INT:
        return json_integer(n->v.i);
    case BL_TOML_FLOAT: /* NULL for inf and nan, which JSON lacks: as text then */
        break;
    case BL_TOML_STRING:
        return json_stringn(n->v.str.s, n->v.str.len);
    case BL_TOML_ARRAY: {
        json_t *list = json_array();
        for (const bl_toml_node *e = n->first; e != NULL && list != NULL; e = e->next) {
            (void)json_array_append_new(list, to_json(doc, e));
        }
        return list;
    }
    case BL_TOML_TABLE: {
        json_t *table = json_object();
        for (const bl_toml_node *e = n->first; e != NULL && table != NULL; e = e->next) {
            (void)json_object_set_new(table, e->key, to_json(doc, e));
        }
        return table;
    }
    case BL_TOML_TIME:
    case BL_TOML__MAX:
        break;
    }
    json_t *number = n->kind == BL_TOML_FLOAT ? json_real(n->v.f) : NULL;
    const char *text = bl_toml_text(doc, &len);
    return number != NULL ? number : json_stringn(text + n->at, n->end - n->at);
}

bl_code bl_cli_config_json(const char *value, json_t **ret, bl_err *err) {
    if (value[0] == '\0') {
        *ret = json_null();
        return BL_OK;
    }
    bl_buf b;
    bl_toml *t = NULL;
    bl_buf_init(&b, 1u << 20);
    bl_code rc = bl_buf_printf(&b, err, "v = %s", value);
    if (rc == BL_OK) {
        rc = bl_toml_parse("value", b.data, b.len, &t, err);
    }
    if (rc == BL_OK) {
        *ret = to_json(t, bl_toml_find(bl_toml_root(t), "v"));
    }
    bl_toml_free(t);
    bl_buf_done(&b);
    return rc;
}

/* ---- options from the file --------------------------------------------------------------------- */

typedef struct {
    const bl_command *c;
    const bl_opts *o;
    void *values;
    bl_cli_config_args *args;
    const bl_config *config;
} filling;

static bl_code set_option(filling *f, size_t i, const char *what, const char *text, bl_err *err) {
    return bl_opts_set_default(f->c, i, f->o, what, text, f->values, err);
}

static bl_code set_number(filling *f, size_t i, const char *what, uint64_t v, bl_err *err) {
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    return set_option(f, i, what, digits, err);
}

static bl_code set_text(filling *f, size_t i, const char *what, const char *text, bl_err *err) {
    if (bl_word_is_blank(text)) {
        return BL_OK;
    }
    BL_ASSERT(f->args->n_texts < BL_COUNTOF(f->args->texts) && strlen(text) <= BL_CONFIG_MAX_TEXT);
    char *copy = f->args->texts[f->args->n_texts++];
    memcpy(copy, text, strlen(text) + 1);
    return set_option(f, i, what, copy, err);
}

static bl_code set_general(filling *f, size_t i, bl_config_id id, bl_err *err) {
    const bl_config_value *v = bl_config_get(f->config, id);
    char name[96], what[128];
    if (!v->in_file) {
        return BL_OK;
    }
    snprintf(what, sizeof what, "%s (line %u)", bl_config_key_name(id, name), v->line);
    switch (bl_config_key_of(id)->kind) {
    case BL_CONFIG_U64:
        return set_number(f, i, what, v->u, err);
    case BL_CONFIG_CHOICE:
    case BL_CONFIG_WORD:
        return set_option(f, i, what, v->text, err);
    case BL_CONFIG_TEXT:
        return set_text(f, i, what, v->text, err);
    default:
        BL_FAIL(err, BL_EINTERNAL, "option '--%s' cannot be set by %s", f->c->opts[i].name, name);
    }
}

static bl_code set_for_model(filling *f, size_t i, bl_config_id id, const char *model, bl_err *err) {
    uint64_t n = 0;
    uint32_t word = 0;
    if (id == BL_CONFIG_MAX_CONCURRENT &&
        bl_config_map_u64(f->config, BL_CONFIG_MAX_CONCURRENT_BY_MODEL, model, &n)) {
        n = BL_MIN(BL_MAX(n, (uint64_t)1),
                   (uint64_t)BL_MAX_CONCURRENT); /* as the loader takes the key for all */
        return set_number(f, i, "backend.engine_v2_max_concurrent_by_model", n, err);
    }
    if (id == BL_CONFIG_KV_BACKEND &&
        bl_config_map_word(f->config, BL_CONFIG_KV_BACKEND_BY_MODEL, model, &word)) {
        return set_option(f, i, "backend.engine_v2_kv_backend_by_model",
                          bl_config_word(bl_config_key_of(id), word), err);
    }
    return BL_OK;
}

/* model NULL: general values; else those of that model. */
static bl_code fill(filling *f, const char *model, bl_err *err) {
    for (size_t i = 0; i < f->c->n_opts; i++) {
        bl_config_id id;
        const char *entry = NULL;
        if (f->c->opts[i].config != NULL) {
            BL_TRY(bl_config_find(f->c->opts[i].config, &id, &entry, err));
            BL_TRY(model == NULL ? set_general(f, i, id, err) : set_for_model(f, i, id, model, err));
        }
    }
    return BL_OK;
}

static bool given(const char *s) {
    return s != NULL && s[0] != '\0';
}

int bl_cli_begin(const bl_command *c, int argc, char **argv, void *values, bl_cli_config_args *config,
                 const bl_cli_store_args *store, const char *const *model, bl_opts *ret) {
    bl_err err;
    bl_config *loaded = NULL;
    config->n_texts = 0;
    config->earlier = false;
    int status = bl_opts_begin(c, argc, argv, values, ret);
    if (status >= 0) {
        return status;
    }
    if (!given(config->file) && !given(config->config_home) && !given(store->home)) {
        return -1; /* no place for a file: there is none */
    }
    bl_code rc = bl_cli_config_open(config, store->home, &loaded, &err);
    if (rc == BL_OK) {
        filling f = {c, ret, values, config, loaded};
        config->earlier = bl_config_get(loaded, BL_CONFIG_CONFIG_VERSION)->migrated;
        rc = fill(&f, NULL, &err);
        if (rc == BL_OK && model != NULL && *model != NULL) {
            rc = fill(&f, *model, &err);
        }
    }
    bl_config_free(loaded);
    return rc == BL_OK ? -1 : bl_cli_fail(&err);
}

void bl_cli_config_migrate(const bl_cli_config_args *a, const char *home) {
    char path[BL_CONFIG_MAX_PATH];
    bl_err err;
    bl_config_edit *e = NULL;
    bool written = false;
    if (!a->earlier) {
        return;
    }
    bl_code rc = bl_cli_config_path(a, home, path, &err);
    if (rc == BL_OK) {
        rc = bl_config_edit_begin(path, &e, &err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_migrate(e, &err);
    }
    if (rc == BL_OK) {
        rc = bl_config_edit_commit(e, &written, &err);
    }
    bl_config_edit_end(e);
    if (rc != BL_OK) {
        bl_cli_errorf("warning: the file stays one of an earlier version: %s", err.msg);
    } else if (written) {
        bl_cli_errorf("note: %s is now a file of version %u", path, BL_CONFIG_VERSION);
    }
}
