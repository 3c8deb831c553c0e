/* GGUF files: whatever parses must have every tensor inside the file, and every reader must cope with every
 * key. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_NUMBERS 64

static void touch_tensor(const uint8_t *data, size_t size, const bl_tensor_view *t) {
    static float row[256];
    BL_ASSERT(t->data >= data && t->size_bytes <= size && (size_t)(t->data - data) <= size - t->size_bytes);
    BL_ASSERT(t->size_bytes > 0);
    volatile uint8_t sink = (uint8_t)(t->data[0] ^ t->data[t->size_bytes - 1]);
    (void)sink;
    const bl_dtype_info *info = bl_dtype_get(t->dtype);
    BL_ASSERT(t->size_bytes % info->block_bytes == 0);
    (void)!bl_dtype_check_finite(t->dtype, t->data, t->size_bytes / info->block_bytes * info->block_elems,
                                 NULL);
    if (info->is_weight) {
        bl_dequant_row(t->dtype, t->data, row, info->block_elems);
    }
}

static void touch_strings(const uint8_t *data, size_t size, const bl_gguf_strings *s) {
    for (size_t i = 0; i < s->n; i++) {
        const uint8_t *p = (const uint8_t *)s->s[i];
        BL_ASSERT(p >= data && s->len[i] <= size && (size_t)(p - data) <= size - s->len[i]);
    }
}

static void touch_key(const bl_gguf *g, const uint8_t *data, size_t size, size_t i) {
    const char *key;
    size_t len;
    bl_gguf_key_at(g, i, &key, &len);
    BL_ASSERT(len > 0 && memchr(key, 0, len) == NULL);
    char *name = bl_strndup(key, len);
    BL_ASSERT(name != NULL);
    uint64_t u = 0;
    double d = 0;
    bool b = false, found = false;
    const char *s = NULL;
    size_t n = 0;
    bl_gguf_strings strs = {0};
    int32_t ints[N_NUMBERS];
    float floats[N_NUMBERS];
    bl_err err;
    (void)!bl_gguf_get_u64(g, name, 0, UINT64_MAX, &u, &found, &err);
    BL_ASSERT(found);
    (void)!bl_gguf_get_f64(g, name, &d, &found, &err);
    (void)!bl_gguf_get_bool(g, name, &b, &found, &err);
    if (bl_gguf_get_str(g, name, &s, &n, &found, &err) == BL_OK) {
        BL_ASSERT((const uint8_t *)s >= data && (const uint8_t *)s + n <= data + size);
    }
    if (bl_gguf_get_strings(g, name, &strs, &found, &err) == BL_OK) {
        touch_strings(data, size, &strs);
    }
    if (bl_gguf_array_len(g, name, &n, &err) == BL_OK) {
        BL_ASSERT(bl_gguf_is_array(g, name) && n <= size); /* an element is a byte at least */
        n = BL_MIN(n, N_NUMBERS);                          /* beyond, the readers refuse by count */
        (void)!bl_gguf_array_f32(g, name, floats, n, &err);
        (void)!bl_gguf_array_i32(g, name, ints, n, &err);
    }
    bl_free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_gguf *g = NULL;
    bl_err err = {0};
    if (bl_gguf_parse(data, size, "fuzz", &g, &err) != BL_OK) {
        BL_ASSERT(g == NULL && err.code != BL_OK && err.code != BL_EINTERNAL &&
                  strncmp(err.msg, "gguf 'fuzz': ", 13) == 0);
        return 0;
    }
    for (size_t i = 0; i < bl_gguf_count(g); i++) {
        const bl_tensor_view *t = bl_gguf_at(g, i);
        touch_tensor(data, size, t);
        BL_ASSERT(bl_gguf_find(g, t->name) == t);
    }
    for (size_t i = 0; i < bl_gguf_key_count(g); i++) {
        touch_key(g, data, size, i);
    }
    bl_gguf_free(g);
    return 0;
}
