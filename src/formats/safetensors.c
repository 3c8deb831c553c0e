/* safetensors: 8 bytes of length, a JSON header, the data (spec models.md §7). The header is checked in full
 * at open (§7.3 "Header" and "Tensor"), so that a view handed out always lies inside the file and has the
 * size its shape says.
 *
 * The JSON tree lives only during the parse; names are copied into one block. Stricter than the reference
 * library in what is accepted: no other field in an entry, only spaces after the object, dtypes we can use.
 */
#include "formats/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mapguard.h"
#include "base/utf8.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "formats/names.h"

struct bl_safetensors {
    bl_map map; /* data NULL when parsed from the caller's memory */
    size_t n;
    bl_tensor_view *views; /* by offset */
    uint32_t *by_name;     /* indices into views */
    char *names;           /* all names, each with its NUL */
};

typedef struct {
    const char *name;
    bl_dtype dtype; /* BL_DTYPE__MAX: known, but not used by any model here */
    uint32_t bits;
} st_dtype;

static const st_dtype st_dtypes[] = {
    {"F32", BL_DTYPE_F32, 32},     {"F16", BL_DTYPE_F16, 16},        {"BF16", BL_DTYPE_BF16, 16},
    {"U8", BL_DTYPE_U8, 8},        {"U32", BL_DTYPE_U32, 32},        {"I32", BL_DTYPE_I32, 32},
    {"I64", BL_DTYPE_I64, 64},     {"F8_E4M3", BL_DTYPE_F8_E4M3, 8}, {"F8_E8M0", BL_DTYPE_F8_E8M0, 8},
    {"BOOL", BL_DTYPE__MAX, 8},    {"I8", BL_DTYPE__MAX, 8},         {"F8_E5M2", BL_DTYPE__MAX, 8},
    {"I16", BL_DTYPE__MAX, 16},    {"U16", BL_DTYPE__MAX, 16},       {"F64", BL_DTYPE__MAX, 64},
    {"U64", BL_DTYPE__MAX, 64},    {"C64", BL_DTYPE__MAX, 64},       {"F4", BL_DTYPE__MAX, 4},
    {"F6_E2M3", BL_DTYPE__MAX, 6}, {"F6_E3M2", BL_DTYPE__MAX, 6},
};

static uint64_t get_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

/* A JSON integer in 0..2^53. */
static bl_code get_count(const json_t *v, const char *what, uint64_t *ret, bl_err *err) {
    if (!json_is_integer(v)) {
        BL_FAIL(err, BL_EFORMAT, "%s holds %s, allowed are integers", what,
                json_is_real(v) ? "a fractional or exponent number" : "something that is no number");
    }
    json_int_t i = json_integer_value(v);
    if (i < 0 || (uint64_t)i > BL_MAX_EXACT_INT) {
        BL_FAIL(err, BL_EFORMAT, "%s holds %" PRId64 ", allowed are 0 to 2^53", what, (int64_t)i);
    }
    *ret = (uint64_t)i;
    return BL_OK;
}

static bl_code read_dtype(const json_t *v, const st_dtype **ret, bl_err *err) {
    if (!json_is_string(v)) {
        BL_FAIL(err, BL_EFORMAT, "'dtype' is %s, allowed is a string", v ? "no string" : "missing");
    }
    const char *s = json_string_value(v);
    for (size_t i = 0; i < BL_COUNTOF(st_dtypes); i++) {
        if (strcmp(s, st_dtypes[i].name) == 0) {
            *ret = &st_dtypes[i];
            return BL_OK;
        }
    }
    BL_FAIL(err, BL_EFORMAT, "'dtype' is '%.*s', which safetensors does not define",
            bl_name_shown(s, strlen(s)), s);
}

static bl_code read_shape(const json_t *v, bl_tensor_view *t, bl_err *err) {
    if (!json_is_array(v)) {
        BL_FAIL(err, BL_EFORMAT, "'shape' is %s, allowed is an array", v ? "no array" : "missing");
    }
    if (json_array_size(v) > BL_TENSOR_MAX_DIMS) {
        BL_FAIL(err, BL_ELIMIT, "'shape' has %zu dimensions, allowed are %d", json_array_size(v),
                BL_TENSOR_MAX_DIMS);
    }
    t->n_dims = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        BL_TRY(get_count(json_array_get(v, i), "'shape'", &t->dims[i], err));
    }
    return BL_OK;
}

/* Bytes that shape and dtype ask for. */
static bl_code size_of(const bl_tensor_view *t, const st_dtype *dt, uint64_t *ret, bl_err *err) {
    uint64_t n_max = 1, bits;
    bool empty = false;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        /* a zero must not hide an overflow of the others: users multiply any of them */
        if (!bl_mul_u64(n_max, BL_MAX(t->dims[i], 1), &n_max)) {
            BL_FAIL(err, BL_ERANGE,
                    "the product of 'shape' is beyond 64 bits at dimension %" PRIu32 " (%" PRIu64 ")", i,
                    t->dims[i]);
        }
        empty = empty || t->dims[i] == 0;
    }
    if (!bl_mul_u64(n_max, dt->bits, &bits)) {
        BL_FAIL(err, BL_ERANGE, "%" PRIu64 " elements of %s are beyond 64 bits", n_max, dt->name);
    }
    if (empty) {
        bits = 0;
    }
    if (bits % 8 != 0) {
        BL_FAIL(err, BL_EFORMAT, "%" PRIu64 " elements of %s are %" PRIu64 " bits, allowed are whole bytes",
                n_max, dt->name, bits);
    }
    *ret = bits / 8;
    return BL_OK;
}

/* One entry of the header into *t (data from `data`, the start of the data part). */
static bl_code read_entry(const json_t *v, const uint8_t *data, uint64_t data_size, bl_tensor_view *t,
                          bl_err *err) {
    if (!json_is_object(v)) {
        BL_FAIL(err, BL_EFORMAT, "entry is no object");
    }
    const st_dtype *dt = NULL;
    BL_TRY(read_dtype(json_object_get(v, "dtype"), &dt, err));
    BL_TRY(read_shape(json_object_get(v, "shape"), t, err));
    const json_t *off = json_object_get(v, "data_offsets");
    if (!json_is_array(off) || json_array_size(off) != 2) {
        BL_FAIL(err, BL_EFORMAT, "'data_offsets' is %s, allowed is an array of 2",
                !off                 ? "missing"
                : json_is_array(off) ? "an array of another length"
                                     : "no array");
    }
    if (json_object_size(v) != 3) {
        BL_FAIL(err, BL_EFORMAT, "entry has %zu fields, allowed are dtype, shape and data_offsets",
                json_object_size(v));
    }
    uint64_t begin = 0, end = 0, size = 0;
    BL_TRY(get_count(json_array_get(off, 0), "'data_offsets'", &begin, err));
    BL_TRY(get_count(json_array_get(off, 1), "'data_offsets'", &end, err));
    if (end < begin) {
        BL_FAIL(err, BL_EFORMAT, "data begins at %" PRIu64 " and ends before that, at %" PRIu64, begin, end);
    }
    if (end > data_size) {
        BL_FAIL(err, BL_EFORMAT, "data ends at %" PRIu64 ", file has %" PRIu64 " bytes of data", end,
                data_size);
    }
    BL_TRY(size_of(t, dt, &size, err));
    if (end - begin != size) {
        BL_FAIL(err, BL_EFORMAT, "data_offsets span %" PRIu64 " bytes, shape and dtype %s need %" PRIu64,
                end - begin, dt->name, size);
    }
    if (dt->dtype == BL_DTYPE__MAX) {
        BL_FAIL(err, BL_ENOTSUP,
                "dtype %s is not supported, allowed are F32 F16 BF16 U8 U32 I32 I64 F8_E4M3 F8_E8M0",
                dt->name);
    }
    t->dtype = dt->dtype;
    t->data = data + begin;
    t->size_bytes = size;
    return BL_OK;
}

static bl_code check_metadata(json_t *v, bl_err *err) {
    if (json_is_null(v)) { /* what mx.save_safetensors writes when it is given none */
        return BL_OK;
    }
    if (!json_is_object(v)) {
        BL_FAIL(err, BL_EFORMAT, "'__metadata__' is no object");
    }
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value) {
        if (!json_is_string(value)) {
            BL_FAIL(err, BL_EFORMAT, "'__metadata__' holds a value that is no string");
        }
    }
    return BL_OK;
}

static int cmp_offset(const void *a, const void *b) {
    const bl_tensor_view *x = a, *y = b;
    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    if (x->size_bytes !=
        y->size_bytes) { /* an empty tensor goes before the one that begins at the same place */
        return x->size_bytes < y->size_bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* No overlap, no gap, nothing behind (views sorted by offset). */
static bl_code check_cover(const bl_tensor_view *v, size_t n, const uint8_t *data, uint64_t data_size,
                           bl_err *err) {
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)(v[i].data - data);
        int shown = bl_name_shown(v[i].name, strlen(v[i].name));
        if (begin < end) {
            BL_FAIL(err, BL_EFORMAT,
                    "tensor '%.*s': data begins at %" PRIu64
                    ", overlaps the one before that ends at %" PRIu64,
                    shown, v[i].name, begin, end);
        }
        if (begin > end) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%.*s': data begins at %" PRIu64 ", leaves a gap after %" PRIu64,
                    shown, v[i].name, begin, end);
        }
        end = begin + v[i].size_bytes;
    }
    if (end != data_size) {
        BL_FAIL(err, BL_EFORMAT, "tensors end at %" PRIu64 ", file has %" PRIu64 " bytes of data", end,
                data_size);
    }
    return BL_OK;
}

/* Bounds and outer form of the header; *ret_text and *ret_n without the padding. */
static bl_code find_header(const uint8_t *data, uint64_t size_bytes, const char **ret_text, size_t *ret_n,
                           uint64_t *ret_data_off, bl_err *err) {
    if (size_bytes < 8) {
        BL_FAIL(err, BL_EFORMAT, "file has %" PRIu64 " bytes, the header length alone needs 8", size_bytes);
    }
    uint64_t n = get_u64(data);
    if (n == 0) {
        BL_FAIL(err, BL_EFORMAT, "header length is 0, allowed are 2 and more");
    }
    if (n > BL_ST_MAX_HEADER_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "header length is %" PRIu64 ", allowed are %" PRIu64, n,
                BL_ST_MAX_HEADER_BYTES);
    }
    if (n > size_bytes - 8) {
        BL_FAIL(err, BL_EFORMAT, "header length is %" PRIu64 ", file has %" PRIu64 " bytes after it", n,
                size_bytes - 8);
    }
    const char *text = (const char *)data + 8;
    size_t len = (size_t)n;
    if (text[0] != '{') {
        BL_FAIL(err, BL_EFORMAT, "header starts with byte 0x%02x, allowed is '{'", (unsigned char)text[0]);
    }
    if (!bl_utf8_valid(text, len)) {
        BL_FAIL(err, BL_EFORMAT, "header is not UTF-8");
    }
    while (len > 0 && text[len - 1] == ' ') {
        len--;
    }
    if (text[len - 1] != '}') {
        BL_FAIL(err, BL_EFORMAT, "header ends with byte 0x%02x, allowed are '}' and spaces",
                (unsigned char)text[len - 1]);
    }
    *ret_text = text;
    *ret_n = len;
    *ret_data_off = 8 + n;
    return BL_OK;
}

/* Counts entries and the bytes of their names, and checks the names. */
static bl_code count_entries(json_t *header, size_t *ret_n, size_t *ret_name_bytes, bl_err *err) {
    size_t n = 0, name_bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            BL_TRY(check_metadata(value, err));
            continue;
        }
        BL_TRY(bl_name_check(key, strlen(key), BL_ST_MAX_NAME_BYTES, "tensor name", err));
        n++;
        name_bytes += strlen(key) + 1;
    }
    if (n > BL_ST_MAX_TENSORS) {
        BL_FAIL(err, BL_ELIMIT, "header lists %zu tensors, allowed are %u", n, BL_ST_MAX_TENSORS);
    }
    *ret_n = n;
    *ret_name_bytes = name_bytes;
    return BL_OK;
}

static int cmp_index_name(const void *a, const void *b, void *views) {
    const bl_tensor_view *v = views;
    return strcmp(v[*(const uint32_t *)a].name, v[*(const uint32_t *)b].name);
}

static bl_code read_entries(bl_safetensors *st, json_t *header, const uint8_t *data, uint64_t data_size,
                            bl_err *err) {
    size_t n = 0, name_bytes = 0;
    BL_TRY(count_entries(header, &n, &name_bytes, err));
    st->views = bl_alloc_array(n, sizeof *st->views);
    st->by_name = bl_alloc_array(n, sizeof *st->by_name);
    st->names = bl_alloc(name_bytes);
    if (!st->views || !st->by_name || !st->names) {
        BL_FAIL(err, BL_ENOMEM, "no memory for %zu tensors", n);
    }
    char *name = st->names;
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            continue;
        }
        size_t len = strlen(key);
        memcpy(name, key, len + 1);
        bl_tensor_view *t = &st->views[st->n];
        t->name = name;
        bl_code rc = read_entry(value, data, data_size, t, err);
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "tensor '%.*s'", bl_name_shown(key, len), key);
        }
        name += len + 1;
        st->n++;
    }
    qsort(st->views, n, sizeof *st->views, cmp_offset);
    BL_TRY(check_cover(st->views, n, data, data_size, err));
    for (size_t i = 0; i < n; i++) {
        st->by_name[i] = (uint32_t)i;
    }
    qsort_r(st->by_name, n, sizeof *st->by_name, cmp_index_name, st->views);
    return BL_OK;
}

static bl_code parse(bl_safetensors *st, const uint8_t *data, uint64_t size_bytes, bl_err *err) {
    const char *text = NULL;
    size_t n = 0;
    uint64_t off = 0;
    json_t *header = NULL;
    BL_TRY(find_header(data, size_bytes, &text, &n, &off, err));
    BL_TRY(bl_json_parse(text, n, BL_ST_MAX_DEPTH, "header", &header, err));
    bl_code rc = read_entries(st, header, data + off, size_bytes - off, err);
    json_decref(header);
    return rc;
}

bl_code bl_safetensors_parse(const uint8_t *data, uint64_t size_bytes, const char *name, bl_safetensors **ret,
                             bl_err *err) {
    bl_safetensors *st = bl_alloc(sizeof *st);
    if (!st) {
        BL_FAIL(err, BL_ENOMEM, "safetensors '%s': no memory", name);
    }
    bl_code rc = parse(st, data, size_bytes, err);
    if (rc != BL_OK) {
        bl_safetensors_free(st);
        return bl_err_wrap(err, rc, "safetensors '%.*s'", bl_name_shown(name, strlen(name)), name);
    }
    *ret = st;
    return BL_OK;
}

bl_code bl_safetensors_open(const char *path, bool allow_links, bl_safetensors **ret, bl_err *err) {
    bl_map map;
    bl_safetensors *st = NULL;
    BL_TRY(bl_map_open(path, allow_links, &map, err));
    bl_code rc = bl_mapguard_add(map.data, map.size_bytes, err);
    if (rc == BL_OK) {
        rc = bl_safetensors_parse(map.data, map.size_bytes, bl_name_of_path(path), &st, err);
    }
    if (rc == BL_OK) {
        rc = bl_mapguard_check(map.data, bl_name_of_path(path), err);
    }
    if (rc != BL_OK) {
        bl_safetensors_free(st);
        bl_mapguard_remove(map.data);
        bl_map_close(&map);
        return rc;
    }
    st->map = map;
    *ret = st;
    return BL_OK;
}

bl_code bl_safetensors_check_intact(const bl_safetensors *st, const char *name, bl_err *err) {
    return bl_mapguard_check(st->map.data, name, err);
}

void bl_safetensors_free(bl_safetensors *st) {
    if (!st) {
        return;
    }
    bl_mapguard_remove(st->map.data);
    bl_map_close(&st->map);
    bl_free(st->views);
    bl_free(st->by_name);
    bl_free(st->names);
    bl_free(st);
}

size_t bl_safetensors_count(const bl_safetensors *st) {
    return st->n;
}

const bl_tensor_view *bl_safetensors_at(const bl_safetensors *st, size_t i) {
    BL_ASSERT(i < st->n);
    return &st->views[i];
}

const bl_tensor_view *bl_safetensors_find(const bl_safetensors *st, const char *name) {
    size_t lo = 0, hi = st->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const bl_tensor_view *t = &st->views[st->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) {
            return t;
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}
