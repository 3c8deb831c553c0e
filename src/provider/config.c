/* Loading provider.toml, and what its values are in force (provider/config.h). Decoding is in
 * config_decode.c, changing in config_edit.c. */
#include "provider/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/os.h"
#include "base/words.h"
#include "formats/limits.h"
#include "provider/config_impl.h"

/* ---- where --------------------------------------------------------------------------------------------- */

static bool given(const char *s) {
    return s != NULL && s[0] != '\0';
}

bl_code bl_config_path(const char *path, const char *config_home, const char *home,
                       char ret[BL_CONFIG_MAX_PATH], bl_err *err) {
    int n;
    if (given(path) && strncmp(path, "~/", 2) == 0 && given(home)) {
        n = snprintf(ret, BL_CONFIG_MAX_PATH, "%s/%s", home, path + 2);
    } else if (given(path)) {
        n = snprintf(ret, BL_CONFIG_MAX_PATH, "%s", path);
    } else if (given(config_home) && config_home[0] == '/') { /* a relative one is to be ignored (XDG) */
        n = snprintf(ret, BL_CONFIG_MAX_PATH, "%s/darkbloom/provider.toml", config_home);
    } else if (given(home)) {
        n = snprintf(ret, BL_CONFIG_MAX_PATH, "%s/.config/darkbloom/provider.toml", home);
    } else {
        BL_FAIL(err, BL_EINVAL, "no folder for provider.toml: set HOME, XDG_CONFIG_HOME or --config");
    }
    if (n < 0 || n + 8 > (int)BL_CONFIG_MAX_PATH) { /* room for ".lock" and ".tmp" */
        BL_FAIL(err, BL_ELIMIT, "the path of provider.toml has %d bytes, %u allowed", n,
                BL_CONFIG_MAX_PATH - 8);
    }
    return BL_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static bl_code fail_read(const char *path, int why, bl_err *err) {
    char shown[112];
    BL_FAIL(err, BL_EIO, "cannot read '%s': %s", config_shown_path(path, shown), strerror(why));
}

/* Only "no such file" is a file that is not there: a link to nothing, or a folder that may not be searched,
 * had a configuration behind it. */
static bl_code fail_open(const char *path, int why, bl_err *err) {
    char shown[112];
    if (why != ENOENT) {
        return fail_read(path, why, err);
    }
    int fd = bl_os.open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd >= 0) {
        bl_os.close(fd);
        BL_FAIL(err, BL_EIO, "cannot read '%s': a symbolic link to nothing", config_shown_path(path, shown));
    }
    if (errno != ENOENT) {
        return fail_read(path, errno, err);
    }
    BL_FAIL(err, BL_ENOTFOUND, "there is no '%s'", config_shown_path(path, shown));
}

static bl_code read_open(int fd, const char *path, bl_buf *b, mode_t *ret_mode, bl_err *err) {
    char chunk[16384], shown[112];
    struct stat st;
    if (bl_os.fstat(fd, &st) != 0) {
        return fail_read(path, errno, err);
    }
    if (!S_ISREG(st.st_mode)) {
        BL_FAIL(err, BL_EIO, "cannot read '%s': %s, not a file", config_shown_path(path, shown),
                S_ISDIR(st.st_mode) ? "a folder" : "a device");
    }
    for (;;) {
        ssize_t n = bl_os.read(fd, chunk, sizeof chunk);
        if (n == 0) {
            break;
        }
        if (n < 0 && errno != EINTR) {
            return fail_read(path, errno, err);
        }
        if (n > 0 && bl_buf_append(b, chunk, (size_t)n, err) != BL_OK) {
            return bl_err_wrap(err, BL_ELIMIT, "'%s'", config_shown_path(path, shown));
        }
    }
    *ret_mode = st.st_mode & 07777;
    return BL_OK;
}

static bl_code read_file(const char *path, bl_buf *b, mode_t *ret_mode, bl_err *err) {
    int fd = bl_os.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) {
        return fail_open(path, errno, err);
    }
    bl_code rc = read_open(fd, path, b, ret_mode, err);
    bl_os.close(fd);
    return rc;
}

/* ---- loading ------------------------------------------------------------------------------------------- */

bl_code bl_config_parse(const char *path, const char *text, size_t n, bool exists, bl_config **ret,
                        bl_err *err) {
    char shown[112];
    bl_config *c = bl_alloc(sizeof *c);
    if (c == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for provider.toml");
    }
    snprintf(c->path, sizeof c->path, "%s", path);
    c->exists = exists;
    bl_code rc = bl_toml_parse(config_shown_path(path, shown), text, n, &c->doc, err);
    if (rc == BL_OK) {
        rc = config_decode(c, err);
    }
    if (rc != BL_OK) {
        bl_config_free(c);
        return rc;
    }
    *ret = c;
    return BL_OK;
}

bl_code bl_config_load(const char *path, bl_config **ret, bl_err *err) {
    bl_buf b;
    mode_t mode = 0;
    bl_buf_init(&b, BL_TOML_MAX_BYTES);
    bl_code rc = read_file(path, &b, &mode, err);
    if (rc == BL_OK) {
        rc = bl_config_parse(path, bl_buf_str(&b), b.len, true, ret, err);
    }
    if (rc == BL_OK) {
        (*ret)->mode = mode;
    }
    bl_buf_done(&b);
    return rc;
}

bl_code bl_config_open(const char *path, bl_config **ret, bl_err *err) {
    bl_code rc = bl_config_load(path, ret, err);
    return rc == BL_ENOTFOUND ? bl_config_parse(path, "", 0, false, ret, err) : rc;
}

void bl_config_free(bl_config *c) {
    if (c != NULL) {
        bl_toml_free(c->doc);
        bl_free(c);
    }
}

const char *bl_config_file(const bl_config *c) {
    return c->path;
}

bool bl_config_exists(const bl_config *c) {
    return c->exists;
}

const bl_config_value *bl_config_get(const bl_config *c, bl_config_id id) {
    BL_ASSERT(id < BL_CONFIG__MAX);
    return &c->values[id];
}

size_t bl_config_n_warnings(const bl_config *c) {
    return c->n_warnings;
}

const char *bl_config_warning(const bl_config *c, size_t i) {
    BL_ASSERT(i < c->n_warnings);
    return c->warnings[i];
}

bool bl_config_map_u64(const bl_config *c, bl_config_id id, const char *model, uint64_t *ret) {
    const bl_toml_node *map = bl_config_get(c, id)->node;
    const bl_toml_node *e = map != NULL ? bl_toml_find(map, model) : NULL;
    if (e != NULL) {
        *ret = (uint64_t)e->v.i;
    }
    return e != NULL;
}

bool bl_config_map_word(const bl_config *c, bl_config_id id, const char *model, uint32_t *ret) {
    const bl_toml_node *map = bl_config_get(c, id)->node;
    const bl_toml_node *e = map != NULL ? bl_toml_find(map, model) : NULL;
    if (e != NULL) {
        int index = config_word_index(bl_config_key_of(id)->choices, e->v.str.s, true);
        *ret = index > 0 ? (uint32_t)index : 0;
    }
    return e != NULL;
}

/* ---- values as text ------------------------------------------------------------------------------------ */

/* An array or a table from a file, on one line. Depth is bounded by the parser's. */
static bl_code write_node(const bl_toml *doc, const bl_toml_node *n, bl_buf *ret, bl_err *err) {
    size_t len = 0;
    const char *text = bl_toml_text(doc, &len);
    if (n->kind == BL_TOML_STRING) {
        return bl_toml_quote(n->v.str.s, n->v.str.len, ret, err);
    }
    if (n->kind != BL_TOML_ARRAY && n->kind != BL_TOML_TABLE) {
        return bl_buf_append(ret, text + n->at, n->end - n->at, err);
    }
    bool table = n->kind == BL_TOML_TABLE;
    BL_TRY(bl_buf_append_str(ret, table ? (n->first != NULL ? "{ " : "{") : "[", err));
    for (const bl_toml_node *e = n->first; e != NULL; e = e->next) {
        if (table) {
            BL_TRY(bl_toml_quote_key(e->key, e->key_len, ret, err));
            BL_TRY(bl_buf_append_str(ret, " = ", err));
        }
        BL_TRY(write_node(doc, e, ret, err));
        BL_TRY(e->next != NULL ? bl_buf_append_str(ret, ", ", err) : BL_OK);
    }
    return bl_buf_append_str(ret, table ? (n->first != NULL ? " }" : "}") : "]", err);
}

bl_code bl_config_write_value(const bl_config *c, bl_config_id id, bl_buf *ret, bl_err *err) {
    const bl_config_value *v = bl_config_get(c, id);
    const bl_config_key *k = bl_config_key_of(id);
    if (!v->has_value) {
        return BL_OK;
    }
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        return bl_buf_append_str(ret, v->b ? "true" : "false", err);
    case BL_CONFIG_U64:
        return bl_buf_printf(ret, err, "%llu", (unsigned long long)v->u);
    case BL_CONFIG_CHOICE:
    case BL_CONFIG_WORD:
    case BL_CONFIG_TEXT:
        return bl_toml_quote(v->text, strlen(v->text), ret, err);
    case BL_CONFIG_TEXTS:
    case BL_CONFIG_MAP_U64:
    case BL_CONFIG_MAP_WORD:
    case BL_CONFIG_TABLE:
    case BL_CONFIG_WINDOWS:
        return v->node != NULL ? write_node(c->doc, v->node, ret, err) : bl_buf_append_str(ret, k->def, err);
    case BL_CONFIG_KIND__MAX:
        break;
    }
    BL_FAIL(err, BL_EINTERNAL, "the table of keys holds kind %d", (int)k->kind);
}

static bl_code typed_texts(const char *what, const char *typed, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_char(ret, '[', err));
    for (const char *p = typed; *p != '\0';) {
        size_t n = strcspn(p, ",");
        size_t lead = strspn(p, " ");
        size_t len = n;
        while (len > lead && p[len - 1] == ' ') {
            len--;
        }
        if (len <= lead) {
            BL_FAIL(err, BL_EINVAL, "%s is '%.60s', allowed: strings with commas between them", what, typed);
        }
        BL_TRY(bl_toml_quote(p + lead, len - lead, ret, err));
        p += n;
        if (*p == ',') {
            p++;
            BL_TRY(bl_buf_append_str(ret, ", ", err));
        }
    }
    return bl_buf_append_char(ret, ']', err);
}

static bl_code fail_typed(bl_config_id id, const char *what, const char *typed, bl_err *err) {
    char allowed[96];
    BL_FAIL(err, BL_EINVAL, "%s is '%.60s', allowed: %s", what, typed, bl_config_allowed(id, allowed));
}

static bl_code typed_number(bl_config_id id, const char *what, const char *typed, bl_buf *ret, bl_err *err) {
    const bl_config_key *k = bl_config_key_of(id);
    uint64_t v = 0;
    bool ok = typed[0] != '\0';
    for (const char *p = typed; *p != '\0' && ok; p++) {
        ok = *p >= '0' && *p <= '9' && bl_mul_u64(v, 10, &v) && bl_add_u64(v, (uint64_t)(*p - '0'), &v);
    }
    if (!ok || v < k->min || v > k->max) {
        return fail_typed(id, what, typed, err);
    }
    return bl_buf_printf(ret, err, "%llu", (unsigned long long)v);
}

bl_code bl_config_typed(bl_config_id id, bool entry, const char *what, const char *typed, bl_buf *ret,
                        bl_err *err) {
    const bl_config_key *k = bl_config_key_of(id);
    bool map = k->kind == BL_CONFIG_MAP_U64 || k->kind == BL_CONFIG_MAP_WORD;
    if (map != entry || k->kind == BL_CONFIG_TABLE || k->kind == BL_CONFIG_WINDOWS) {
        BL_FAIL(err, BL_EINVAL, "%s is a table: %s", what,
                map ? "set one entry of it (KEY.MODEL)" : "edit the file");
    }
    bool loose = k->kind == BL_CONFIG_WORD || k->kind == BL_CONFIG_MAP_WORD;
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        if (strcmp(typed, "true") != 0 && strcmp(typed, "false") != 0) {
            return fail_typed(id, what, typed, err);
        }
        return bl_buf_append_str(ret, typed, err);
    case BL_CONFIG_U64:
    case BL_CONFIG_MAP_U64:
        return typed_number(id, what, typed, ret, err);
    case BL_CONFIG_CHOICE:
    case BL_CONFIG_WORD:
    case BL_CONFIG_MAP_WORD:
        if ((loose && bl_word_is_blank(typed)) || config_word_index(k->choices, typed, loose) < 0) {
            return fail_typed(id, what, typed, err);
        }
        return bl_toml_quote(typed, strlen(typed), ret, err);
    case BL_CONFIG_TEXT:
        if (strlen(typed) > BL_CONFIG_MAX_TEXT) {
            return fail_typed(id, what, typed, err);
        }
        return bl_toml_quote(typed, strlen(typed), ret, err);
    case BL_CONFIG_TEXTS:
        return typed_texts(what, typed, ret, err);
    case BL_CONFIG_TABLE:
    case BL_CONFIG_WINDOWS:
    case BL_CONFIG_KIND__MAX:
        break;
    }
    BL_FAIL(err, BL_EINTERNAL, "the table of keys holds kind %d", (int)k->kind);
}

/* ---- what is in force ---------------------------------------------------------------------------------- */

bool bl_config_env_decides(bl_config_id id, bool in_file, const char *env) {
    if (!given(env)) {
        return false;
    }
    switch (bl_config_key_of(id)->env_role) {
    case BL_CONFIG_ENV_NONE:
        return false;
    case BL_CONFIG_ENV_WINS:
    case BL_CONFIG_ENV_PRESENT:
        return true;
    case BL_CONFIG_ENV_STANDS_IN:
        return !in_file;
    case BL_CONFIG_ENV_SWITCH:
        return bl_word_is_off(env);
    }
    return false;
}

bl_code bl_config_effective(const bl_config *c, bl_config_id id, const char *env, bl_buf *ret,
                            bl_config_origin *ret_origin, bl_err *err) {
    const bl_config_key *k = bl_config_key_of(id);
    const bl_config_value *v = bl_config_get(c, id);
    if (bl_config_env_decides(id, v->in_file, env)) {
        *ret_origin = BL_CONFIG_FROM_ENV;
        return k->env_value != NULL ? bl_buf_append_str(ret, k->env_value, err)
                                    : bl_config_typed(id, false, k->env, env, ret, err);
    }
    *ret_origin = v->in_file ? BL_CONFIG_FROM_FILE : BL_CONFIG_FROM_DEFAULT;
    return bl_config_write_value(c, id, ret, err);
}
