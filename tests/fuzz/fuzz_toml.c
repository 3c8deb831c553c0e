/* TOML texts: refused with a place and nothing else, or a tree whose every place is true: what stands there,
 * parsed alone, is the same value; and a value that is put into it is there afterwards, with every other
 * byte. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "formats/limits.h"
#include "formats/toml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const char *text, size_t n, const bl_toml_node *node) {
    bl_buf b;
    bl_toml *t = NULL;
    bl_buf_init(&b, BL_TOML_MAX_BYTES + 8);
    BL_ASSERT(bl_buf_append_str(&b, "v=", NULL) == BL_OK);
    BL_ASSERT(node->end <= n && bl_buf_append(&b, text + node->at, node->end - node->at, NULL) == BL_OK);
    BL_ASSERT(bl_toml_parse("again", b.data, b.len, &t, NULL) == BL_OK);
    const bl_toml_node *v = bl_toml_find(bl_toml_root(t), "v");
    BL_ASSERT(v && v->kind == node->kind && v->n_children == node->n_children);
    BL_ASSERT(v->kind != BL_TOML_STRING ||
              (v->v.str.len == node->v.str.len && memcmp(v->v.str.s, node->v.str.s, v->v.str.len) == 0));
    bl_toml_free(t);
    bl_buf_done(&b);
}

static uint32_t n_checked; /* values read again, so that large texts end */

static void check_node(const char *text, size_t n, const bl_toml_node *node) {
    uint32_t n_children = 0;
    BL_ASSERT(node->kind < BL_TOML__MAX && node->line >= 1);
    BL_ASSERT(!node->first || node->kind == BL_TOML_ARRAY || node->kind == BL_TOML_TABLE);
    if (node->form == BL_TOML_WRITTEN) {
        BL_ASSERT(node->at < node->end && node->end <= n);
        if (n_checked++ < 256) {
            check_again(text, n, node);
        }
    }
    if (node->kind == BL_TOML_STRING) {
        BL_ASSERT(bl_utf8_valid(node->v.str.s, node->v.str.len) && node->v.str.s[node->v.str.len] == '\0');
    }
    for (const bl_toml_node *c = node->first; c; c = c->next) {
        BL_ASSERT((c->key != NULL) == (node->kind == BL_TOML_TABLE));
        BL_ASSERT(!c->key || (c->key_at < c->key_end && c->key_end <= n));
        BL_ASSERT(c->next || c == node->last);
        check_node(text, n, c);
        n_children++;
    }
    BL_ASSERT(n_children == node->n_children);
}

/* Everything but one stretch is as it was. */
static void check_kept(const char *old, size_t n_old, const char *new, size_t n_new) {
    size_t head = 0, tail = 0;
    while (head < n_old && old[head] == new[head]) {
        head++;
    }
    while (tail < n_old - head && old[n_old - 1 - tail] == new[n_new - 1 - tail]) {
        tail++;
    }
    BL_ASSERT(head + tail == n_old); /* what is put is only ever added here: the key is new */
}

static void check_put(const bl_toml *t, const bl_toml_node *table, const char *name) {
    const char *path[2] = {name, "a key nobody has"};
    size_t n = 0;
    const char *text = bl_toml_text(t, &n);
    bl_buf b;
    bl_buf_init(&b, BL_TOML_MAX_BYTES);
    bl_code rc = bl_toml_put(t, path, 2, "42", &b, NULL);
    if (table && (table->kind != BL_TOML_TABLE || bl_toml_find(table, path[1]))) {
        BL_ASSERT(rc == (table->kind != BL_TOML_TABLE ? BL_EINVAL : BL_OK));
    } else if (rc != BL_ELIMIT) {
        bl_toml *after = NULL;
        bl_err err = {0};
        BL_ASSERT(rc == BL_OK);
        rc = bl_toml_parse("after", b.data, b.len, &after, &err);
        BL_ASSERT(rc == BL_OK || rc == BL_ELIMIT);
        if (rc == BL_OK) {
            const bl_toml_node *v = bl_toml_find(bl_toml_find(bl_toml_root(after), name), path[1]);
            BL_ASSERT(v && v->kind == BL_TOML_INT && v->v.i == 42);
            check_kept(text, n, b.data, b.len);
        }
        bl_toml_free(after);
    }
    bl_buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_toml *t = NULL;
    bl_err err = {0};
    if (bl_toml_parse("fuzz", (const char *)data, size, &t, &err) != BL_OK) {
        BL_ASSERT(t == NULL && (err.code == BL_EFORMAT || err.code == BL_ELIMIT));
        BL_ASSERT(strncmp(err.msg, "fuzz:", 5) == 0);
        return 0;
    }
    size_t n = 0;
    const char *text = bl_toml_text(t, &n);
    const bl_toml_node *root = bl_toml_root(t);
    BL_ASSERT(n == size);
    n_checked = 0;
    check_node(text, n, root);
    check_put(t, bl_toml_find(root, "none such"), "none such");
    unsigned n_put = 0;
    for (const bl_toml_node *c = root->first; c && n_put < 8; c = c->next, n_put++) {
        if (strlen(c->key) == c->key_len) { /* paths are C strings */
            check_put(t, c, c->key);
        }
    }
    bl_toml_free(t);
    return 0;
}
