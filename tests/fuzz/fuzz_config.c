/* provider.toml: refused with its place, or taken; then its text brought up to date means the same, value by
 * value, and is up to date. Every value that is in force can be written. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "formats/limits.h"
#include "provider/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const bl_config *a, const bl_config *b, bl_config_id id) {
    bl_buf x, y;
    bl_buf_init(&x, 8u << 20); /* control characters take six bytes each when they are written */
    bl_buf_init(&y, 8u << 20);
    BL_ASSERT(bl_config_write_value(a, id, &x, NULL) == BL_OK &&
              bl_config_write_value(b, id, &y, NULL) == BL_OK);
    BL_ASSERT(strcmp(bl_buf_str(&x), bl_buf_str(&y)) == 0);
    bl_buf_done(&x);
    bl_buf_done(&y);
}

/* What is written is TOML. */
static void check_value(const bl_config *c, bl_config_id id, const char *env) {
    bl_buf b;
    bl_toml *t = NULL;
    bl_config_origin origin;
    bl_buf_init(&b, 8u << 20);
    BL_ASSERT(bl_buf_append_str(&b, "v = ", NULL) == BL_OK);
    if (bl_config_effective(c, id, env, &b, &origin, NULL) == BL_OK && b.len > 4 &&
        b.len < BL_TOML_MAX_BYTES) {
        BL_ASSERT(bl_toml_parse("value", b.data, b.len, &t, NULL) == BL_OK);
        bl_toml_free(t);
    }
    bl_buf_done(&b);
}

static void check_migration(const bl_config *c) {
    bl_buf text, again;
    bl_config *after = NULL;
    bl_buf_init(&text, BL_TOML_MAX_BYTES);
    bl_buf_init(&again, BL_TOML_MAX_BYTES);
    bl_code rc = bl_config_migrated_text(c, &text, NULL);
    if (rc == BL_OK) {
        rc = bl_config_parse("after", bl_buf_str(&text), text.len, true, &after, NULL);
    }
    BL_ASSERT(rc == BL_OK || rc == BL_ELIMIT);
    if (rc == BL_OK) {
        for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
            check_same(c, after, (bl_config_id)id);
        }
        BL_ASSERT(bl_config_migrated_text(after, &again, NULL) == BL_OK);
        BL_ASSERT(again.len == text.len && memcmp(bl_buf_str(&again), bl_buf_str(&text), text.len) == 0);
    }
    bl_config_free(after);
    bl_buf_done(&text);
    bl_buf_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_config *c = NULL;
    bl_err err = {0};
    if (bl_config_parse("fuzz", (const char *)data, size, true, &c, &err) != BL_OK) {
        BL_ASSERT(c == NULL && (err.code == BL_EFORMAT || err.code == BL_ELIMIT));
        BL_ASSERT(strncmp(err.msg, "fuzz:", 5) == 0);
        return 0;
    }
    for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
        check_value(c, (bl_config_id)id, NULL);
        check_value(c, (bl_config_id)id, "off");
    }
    for (size_t i = 0; i < bl_config_n_warnings(c); i++) {
        BL_ASSERT(strncmp(bl_config_warning(c, i), "fuzz:", 5) == 0 &&
                  !strchr(bl_config_warning(c, i), '\n'));
    }
    check_migration(c);
    bl_config_free(c);
    return 0;
}
