/* safetensors headers: the input as a file, and once more with its length field set to where the last '}' is,
 * so that mutations which change the header's length get past the first check. Every view must lie inside. */
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const uint8_t *data, size_t size, const bl_tensor_view *t) {
    BL_ASSERT(t->data >= data && t->size_bytes <= size && (size_t)(t->data - data) <= size - t->size_bytes);
    if (t->size_bytes == 0) {
        return;
    }
    volatile uint8_t sink = (uint8_t)(t->data[0] ^ t->data[t->size_bytes - 1]);
    (void)sink;
    const bl_dtype_info *info = bl_dtype_get(t->dtype);
    BL_ASSERT(t->size_bytes % info->block_bytes == 0);
    (void)!bl_dtype_check_finite(t->dtype, t->data, t->size_bytes / info->block_bytes, NULL);
}

static void parse(const uint8_t *data, size_t size) {
    bl_safetensors *st = NULL;
    bl_err err = {0};
    if (bl_safetensors_parse(data, size, "fuzz", &st, &err) != BL_OK) {
        BL_ASSERT(st == NULL && err.code != BL_OK && err.code != BL_EINTERNAL &&
                  strncmp(err.msg, "safetensors 'fuzz': ", 20) == 0);
        return;
    }
    const uint8_t *end = NULL;
    for (size_t i = 0; i < bl_safetensors_count(st); i++) {
        const bl_tensor_view *t = bl_safetensors_at(st, i);
        touch(data, size, t);
        BL_ASSERT(end == NULL || t->data == end); /* no gap, no overlap */
        end = t->data + t->size_bytes;
        BL_ASSERT(bl_safetensors_find(st, t->name) == t);
    }
    BL_ASSERT(end == NULL || end == data + size);
    bl_safetensors_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse(data, size);
    if (size < 10) {
        return 0;
    }
    size_t end = size;
    while (end > 8 && data[end - 1] != '}') {
        end--;
    }
    uint8_t *copy = bl_alloc(size);
    BL_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    for (int i = 0; i < 8; i++) {
        copy[i] = (uint8_t)((uint64_t)(end - 8) >> 8 * i);
    }
    parse(copy, size);
    bl_free(copy);
    return 0;
}
