#include "cli/config_args.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

bl_code bl_cli_config_path(const bl_cli_config_args *a, const char *home, char ret[BL_CONFIG_MAX_PATH],
                           bl_err *err) {
    return bl_config_path(a->file, a->config_home, home, ret, err);
}

bl_code bl_cli_config_open(const bl_cli_config_args *a, const char *home, bl_config **ret, bl_err *err) {
    char path[BL_CONFIG_MAX_PATH];
    BL_TRY(bl_cli_config_path(a, home, path, err));
    BL_TRY(bl_config_open(path, ret, err));
    bl_cli_config_warn(*ret);
    return BL_OK;
}

void bl_cli_config_warn(const bl_config *c) {
    size_t n = bl_config_n_warnings(c);
    for (size_t i = 0; i < n; i++) {
        bl_cli_errorf("warning: %s", bl_config_warning(c, i));
    }
    if (n == BL_CONFIG_MAX_WARNINGS) {
        bl_cli_errorf("warning: %s: there may be more of these", bl_config_file(c));
    }
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
