/* GGUF v2/v3 (spec models.md §9.1): magic, version, counts, key-value pairs, tensor infos, padding, data.
 * Everything is checked at open; afterwards a value or a tensor handed out always lies inside the file.
 *
 * Values stay in the map; only indices are built: keys sorted by name, one pointer and length per string of
 * an array, views of tensors with copied (NUL-terminated) names. Not done here: what keys mean, split files,
 * big-endian files.
 */
#include "formats/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mapguard.h"
#include "formats/limits.h"
#include "formats/names.h"

typedef enum {
    VT_U8,
    VT_I8,
    VT_U16,
    VT_I16,
    VT_U32,
    VT_I32,
    VT_F32,
    VT_BOOL,
    VT_STRING,
    VT_ARRAY,
    VT_U64,
    VT_I64,
    VT_F64,
    VT__MAX
} value_type;

static const struct {
    const char *name;
    uint32_t size_bytes; /* 0: not fixed */
} value_types[VT__MAX] = {
    [VT_U8] = {"u8", 1},         [VT_I8] = {"i8", 1},       [VT_U16] = {"u16", 2}, [VT_I16] = {"i16", 2},
    [VT_U32] = {"u32", 4},       [VT_I32] = {"i32", 4},     [VT_F32] = {"f32", 4}, [VT_BOOL] = {"bool", 1},
    [VT_STRING] = {"string", 0}, [VT_ARRAY] = {"array", 0}, [VT_U64] = {"u64", 8}, [VT_I64] = {"i64", 8},
    [VT_F64] = {"f64", 8},
};

typedef struct {
    const char *key; /* in the file */
    uint32_t key_len;
    value_type type, elem; /* elem: of an array */
    uint64_t n;            /* elements of an array, bytes of a string */
    const uint8_t *data;   /* the scalar, the string's bytes, the first element */
    const char **strs;     /* array of strings only: owned */
    uint32_t *lens;
} kv;

struct bl_gguf {
    bl_map map; /* data NULL when parsed from the caller's memory */
    uint32_t version;
    size_t n_kv, n_tensors;
    kv *kvs; /* in file order */
    uint32_t *kv_by_key;
    bl_tensor_view *views; /* in file order */
    uint32_t *view_by_name;
    char *names;
    uint64_t n_array_strings;
};

/* Tensor types of the file that have no bl_dtype: known by name only, so that the refusal can say which. */
typedef struct {
    uint32_t id;
    const char *name;
    bl_dtype dtype; /* BL_DTYPE__MAX: not supported */
} tensor_type;

static const tensor_type tensor_types[] = {
    {0, "F32", BL_DTYPE_F32},       {1, "F16", BL_DTYPE_F16},           {30, "BF16", BL_DTYPE_BF16},
    {2, "Q4_0", BL_DTYPE_Q4_0},     {3, "Q4_1", BL_DTYPE_Q4_1},         {6, "Q5_0", BL_DTYPE_Q5_0},
    {7, "Q5_1", BL_DTYPE_Q5_1},     {8, "Q8_0", BL_DTYPE_Q8_0},         {12, "Q4_K", BL_DTYPE_Q4_K},
    {13, "Q5_K", BL_DTYPE_Q5_K},    {14, "Q6_K", BL_DTYPE_Q6_K},        {24, "I8", BL_DTYPE_I8},
    {25, "I16", BL_DTYPE_I16},      {26, "I32", BL_DTYPE_I32},          {27, "I64", BL_DTYPE_I64},
    {9, "Q8_1", BL_DTYPE__MAX},     {10, "Q2_K", BL_DTYPE__MAX},        {11, "Q3_K", BL_DTYPE__MAX},
    {15, "Q8_K", BL_DTYPE__MAX},    {16, "IQ2_XXS", BL_DTYPE__MAX},     {17, "IQ2_XS", BL_DTYPE__MAX},
    {18, "IQ3_XXS", BL_DTYPE__MAX}, {19, "IQ1_S", BL_DTYPE__MAX},       {20, "IQ4_NL", BL_DTYPE__MAX},
    {21, "IQ3_S", BL_DTYPE__MAX},   {22, "IQ2_S", BL_DTYPE__MAX},       {23, "IQ4_XS", BL_DTYPE__MAX},
    {28, "F64", BL_DTYPE__MAX},     {29, "IQ1_M", BL_DTYPE__MAX},       {34, "TQ1_0", BL_DTYPE__MAX},
    {35, "TQ2_0", BL_DTYPE__MAX},   {39, "MXFP4", BL_DTYPE_GGUF_MXFP4}, {40, "NVFP4", BL_DTYPE__MAX},
    {41, "Q1_0", BL_DTYPE__MAX},    {42, "Q2_0", BL_DTYPE__MAX},
};

/* ---- reading ---- */

typedef struct {
    const uint8_t *data;
    uint64_t size_bytes, pos;
} reader;

static uint64_t remaining(const reader *r) {
    return r->size_bytes - r->pos;
}

static uint64_t get_uint(const uint8_t *p, uint32_t size_bytes) {
    uint64_t v = 0;
    for (uint32_t i = size_bytes; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

static bl_code read_uint(reader *r, uint32_t size_bytes, const char *what, uint64_t *ret, bl_err *err) {
    if (remaining(r) < size_bytes) {
        BL_FAIL(err, BL_EFORMAT, "%s needs %" PRIu32 " bytes at %" PRIu64 ", file has %" PRIu64 " bytes",
                what, size_bytes, r->pos, r->size_bytes);
    }
    *ret = get_uint(r->data + r->pos, size_bytes);
    r->pos += size_bytes;
    return BL_OK;
}

static bl_code read_u32(reader *r, const char *what, uint32_t *ret, bl_err *err) {
    uint64_t v = 0;
    BL_TRY(read_uint(r, 4, what, &v, err));
    *ret = (uint32_t)v;
    return BL_OK;
}

/* A string: the bytes stay in the file. */
static bl_code read_string(reader *r, const char *what, const char **ret, uint64_t *ret_len, bl_err *err) {
    uint64_t n = 0;
    BL_TRY(read_uint(r, 8, what, &n, err));
    if (n > remaining(r)) {
        BL_FAIL(err, BL_EFORMAT,
                "%s is a string of %" PRIu64 " bytes at %" PRIu64 ", file has %" PRIu64 " bytes", what, n,
                r->pos, r->size_bytes);
    }
    if (n > BL_GGUF_MAX_STRING_BYTES) {
        BL_FAIL(err, BL_ELIMIT, "%s is a string of %" PRIu64 " bytes, allowed are %" PRIu64, what, n,
                BL_GGUF_MAX_STRING_BYTES);
    }
    *ret = (const char *)r->data + r->pos;
    *ret_len = n;
    r->pos += n;
    return BL_OK;
}

static bl_code read_type(reader *r, const char *what, value_type *ret, bl_err *err) {
    uint32_t t = 0;
    BL_TRY(read_u32(r, what, &t, err));
    if (t >= VT__MAX) {
        BL_FAIL(err, BL_EFORMAT, "%s is %" PRIu32 ", allowed are 0 to %d", what, t, VT__MAX - 1);
    }
    *ret = (value_type)t;
    return BL_OK;
}

static bl_code check_bools(const uint8_t *p, uint64_t n, bl_err *err) {
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            BL_FAIL(err, BL_EFORMAT, "bool %" PRIu64 " is %u, allowed are 0 and 1", i, p[i]);
        }
    }
    return BL_OK;
}

static bl_code read_array_strings(bl_gguf *g, reader *r, kv *v, bl_err *err) {
    if (v->n > remaining(r) / 8) {
        BL_FAIL(err, BL_EFORMAT, "array of %" PRIu64 " strings at %" PRIu64 ", file has %" PRIu64 " bytes",
                v->n, r->pos, r->size_bytes);
    }
    if (v->n > BL_GGUF_MAX_ARRAY_STRINGS - g->n_array_strings) {
        BL_FAIL(err, BL_ELIMIT, "arrays hold %" PRIu64 " strings, allowed are %" PRIu64,
                g->n_array_strings + v->n, BL_GGUF_MAX_ARRAY_STRINGS);
    }
    g->n_array_strings += v->n;
    v->strs = bl_alloc_array((size_t)v->n, sizeof *v->strs);
    v->lens = bl_alloc_array((size_t)v->n, sizeof *v->lens);
    if (!v->strs || !v->lens) {
        BL_FAIL(err, BL_ENOMEM, "no memory for an array of %" PRIu64 " strings", v->n);
    }
    for (uint64_t i = 0; i < v->n; i++) {
        uint64_t len = 0;
        BL_TRY(read_string(r, "element", &v->strs[i], &len, err));
        v->lens[i] = (uint32_t)len;
    }
    return BL_OK;
}

static bl_code read_array(bl_gguf *g, reader *r, kv *v, bl_err *err) {
    BL_TRY(read_type(r, "array element type", &v->elem, err));
    BL_TRY(read_uint(r, 8, "array count", &v->n, err));
    v->data = r->data + r->pos;
    if (v->elem == VT_ARRAY) {
        BL_FAIL(err, BL_EFORMAT, "array of arrays, allowed are arrays of numbers, bools and strings");
    }
    if (v->elem == VT_STRING) {
        return read_array_strings(g, r, v, err);
    }
    uint32_t size = value_types[v->elem].size_bytes;
    if (v->n > remaining(r) / size) {
        BL_FAIL(err, BL_EFORMAT, "array of %" PRIu64 " %s at %" PRIu64 ", file has %" PRIu64 " bytes", v->n,
                value_types[v->elem].name, r->pos, r->size_bytes);
    }
    if (v->elem == VT_BOOL) {
        BL_TRY(check_bools(v->data, v->n, err));
    }
    r->pos += v->n * size;
    return BL_OK;
}

static bl_code read_value(bl_gguf *g, reader *r, kv *v, bl_err *err) {
    BL_TRY(read_type(r, "value type", &v->type, err));
    if (v->type == VT_ARRAY) {
        return read_array(g, r, v, err);
    }
    if (v->type == VT_STRING) {
        const char *s = NULL;
        BL_TRY(read_string(r, "value", &s, &v->n, err));
        v->data = (const uint8_t *)s;
        return BL_OK;
    }
    uint64_t unused;
    v->data = r->data + r->pos;
    BL_TRY(read_uint(r, value_types[v->type].size_bytes, "value", &unused, err));
    return v->type == VT_BOOL ? check_bools(v->data, 1, err) : BL_OK;
}

static int cmp_bytes(const char *a, size_t an, const char *b, size_t bn) {
    int c = memcmp(a, b, BL_MIN(an, bn));
    return c != 0 ? c : (an > bn) - (an < bn);
}

static int cmp_kv(const void *a, const void *b, void *kvs) {
    const kv *x = (const kv *)kvs + *(const uint32_t *)a, *y = (const kv *)kvs + *(const uint32_t *)b;
    return cmp_bytes(x->key, x->key_len, y->key, y->key_len);
}

static bl_code read_kvs(bl_gguf *g, reader *r, uint64_t n, bl_err *err) {
    g->kvs = bl_alloc_array((size_t)n, sizeof *g->kvs);
    g->kv_by_key = bl_alloc_array((size_t)n, sizeof *g->kv_by_key);
    if (!g->kvs || !g->kv_by_key) {
        BL_FAIL(err, BL_ENOMEM, "no memory for %" PRIu64 " keys", n);
    }
    for (uint64_t i = 0; i < n; i++) {
        kv *v = &g->kvs[g->n_kv];
        uint64_t len = 0;
        bl_code rc = read_string(r, "key", &v->key, &len, err);
        if (rc == BL_OK) {
            rc = bl_name_check(v->key, (size_t)len, BL_GGUF_MAX_KEY_BYTES, "key", err);
        }
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "key %" PRIu64 " of %" PRIu64, i, n);
        }
        v->key_len = (uint32_t)len;
        g->n_kv++;
        rc = read_value(g, r, v, err);
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "key '%.*s'", bl_name_shown(v->key, v->key_len), v->key);
        }
        g->kv_by_key[i] = (uint32_t)i;
    }
    qsort_r(g->kv_by_key, g->n_kv, sizeof *g->kv_by_key, cmp_kv, g->kvs);
    for (size_t i = 1; i < g->n_kv; i++) {
        if (cmp_kv(&g->kv_by_key[i - 1], &g->kv_by_key[i], g->kvs) == 0) {
            const kv *v = &g->kvs[g->kv_by_key[i]];
            BL_FAIL(err, BL_EFORMAT, "key '%.*s' occurs twice, allowed is once",
                    bl_name_shown(v->key, v->key_len), v->key);
        }
    }
    return BL_OK;
}

/* ---- tensors ---- */

static bl_code find_tensor_type(uint32_t id, bl_dtype *ret, bl_err *err) {
    for (size_t i = 0; i < BL_COUNTOF(tensor_types); i++) {
        if (tensor_types[i].id != id) {
            continue;
        }
        if (tensor_types[i].dtype == BL_DTYPE__MAX) {
            BL_FAIL(err, BL_ENOTSUP,
                    "type %s is not supported, allowed are F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K "
                    "Q6_K MXFP4",
                    tensor_types[i].name);
        }
        *ret = tensor_types[i].dtype;
        return BL_OK;
    }
    BL_FAIL(err, BL_EFORMAT, "type is %" PRIu32 ", which GGUF does not define", id);
}

/* Dimensions, in C order, and the size they ask for. */
static bl_code read_dims(reader *r, bl_tensor_view *t, bl_err *err) {
    uint64_t elems = 1;
    BL_TRY(read_u32(r, "dimension count", &t->n_dims, err));
    if (t->n_dims < 1 || t->n_dims > BL_GGUF_MAX_DIMS) {
        BL_FAIL(err, BL_EFORMAT, "has %" PRIu32 " dimensions, allowed are 1 to %u", t->n_dims,
                BL_GGUF_MAX_DIMS);
    }
    for (uint32_t i = 0; i < t->n_dims; i++) {
        uint64_t d = 0;
        BL_TRY(read_uint(r, 8, "dimension", &d, err));
        if (d == 0) {
            BL_FAIL(err, BL_EFORMAT, "dimension %" PRIu32 " is 0, allowed are 1 and more", i);
        }
        if (!bl_mul_u64(elems, d, &elems) || elems > INT64_MAX) {
            BL_FAIL(err, BL_ERANGE,
                    "the product of dimensions is beyond 63 bits at dimension %" PRIu32 " (%" PRIu64 ")", i,
                    d);
        }
        t->dims[t->n_dims - 1 - i] = d;
    }
    return BL_OK;
}

/* One tensor info. *ret_off is the offset from the start of the data. */
static bl_code read_tensor_info(reader *r, bl_tensor_view *t, uint64_t *ret_off, bl_err *err) {
    uint32_t type = 0;
    uint64_t row_bytes = 0, rows = 1;
    BL_TRY(read_dims(r, t, err));
    BL_TRY(read_u32(r, "type", &type, err));
    BL_TRY(read_uint(r, 8, "offset", ret_off, err));
    BL_TRY(find_tensor_type(type, &t->dtype, err));
    BL_TRY(bl_dtype_row_bytes(t->dtype, t->dims[t->n_dims - 1], &row_bytes, err));
    for (uint32_t i = 0; i + 1 < t->n_dims; i++) {
        rows *= t->dims[i]; /* a factor of the product checked in read_dims */
    }
    if (!bl_mul_u64(row_bytes, rows, &t->size_bytes)) {
        BL_FAIL(err, BL_ERANGE, "%" PRIu64 " rows of %" PRIu64 " bytes are beyond 64 bits", rows, row_bytes);
    }
    return BL_OK;
}

static int cmp_view(const void *a, const void *b, void *views) {
    const bl_tensor_view *v = views;
    return strcmp(v[*(const uint32_t *)a].name, v[*(const uint32_t *)b].name);
}

static bl_code sort_tensors(bl_gguf *g, bl_err *err) {
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->view_by_name[i] = (uint32_t)i;
    }
    qsort_r(g->view_by_name, g->n_tensors, sizeof *g->view_by_name, cmp_view, g->views);
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (cmp_view(&g->view_by_name[i - 1], &g->view_by_name[i], g->views) == 0) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%s' occurs twice, allowed is once",
                    g->views[g->view_by_name[i]].name);
        }
    }
    return BL_OK;
}

/* Reads the infos; views get offsets through `offs` (n of them) because the data start is known only behind
 * the last. */
static bl_code read_infos(bl_gguf *g, reader *r, uint64_t n, uint64_t *offs, bl_err *err) {
    char *name = g->names;
    for (uint64_t i = 0; i < n; i++) {
        bl_tensor_view *t = &g->views[i];
        const char *s = NULL;
        uint64_t len = 0;
        bl_code rc = read_string(r, "name", &s, &len, err);
        if (rc == BL_OK) {
            rc = bl_name_check(s, (size_t)len, BL_GGUF_MAX_NAME_BYTES, "name", err);
        }
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "tensor %" PRIu64 " of %" PRIu64, i, n);
        }
        memcpy(name, s, (size_t)len);
        t->name = name;
        name += len + 1;
        rc = read_tensor_info(r, t, &offs[i], err);
        if (rc != BL_OK) {
            return bl_err_wrap(err, rc, "tensor '%s'", t->name);
        }
        g->n_tensors++;
    }
    return sort_tensors(g, err);
}

/* Offsets must be contiguous in listing order, each padded to the alignment, and inside the file. */
static bl_code place_tensors(bl_gguf *g, const reader *r, uint64_t align, const uint64_t *offs, bl_err *err) {
    uint64_t start = 0, want = 0;
    if (!bl_align_u64(r->pos, align, &start)) {
        BL_FAIL(err, BL_ERANGE, "data would begin beyond 64 bits");
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        bl_tensor_view *t = &g->views[i];
        uint64_t begin, end;
        if (offs[i] != want) {
            BL_FAIL(err, BL_EFORMAT,
                    "tensor '%s': offset is %" PRIu64 ", allowed is %" PRIu64 " (right after the one before)",
                    t->name, offs[i], want);
        }
        if (!bl_add_u64(start, offs[i], &begin) || !bl_add_u64(begin, t->size_bytes, &end)) {
            BL_FAIL(err, BL_ERANGE, "tensor '%s': data would end beyond 64 bits", t->name);
        }
        if (end > r->size_bytes) {
            BL_FAIL(err, BL_EFORMAT, "tensor '%s': data ends at %" PRIu64 ", file has %" PRIu64 " bytes",
                    t->name, end, r->size_bytes);
        }
        t->data = r->data + begin;
        if (!bl_align_u64(offs[i] + t->size_bytes, align, &want)) {
            BL_FAIL(err, BL_ERANGE, "tensor '%s': padding would end beyond 64 bits", t->name);
        }
    }
    return BL_OK;
}

static bl_code read_tensors(bl_gguf *g, reader *r, uint64_t n, uint64_t align, bl_err *err) {
    g->views = bl_alloc_array((size_t)n, sizeof *g->views);
    g->view_by_name = bl_alloc_array((size_t)n, sizeof *g->view_by_name);
    g->names = bl_alloc_array((size_t)n, BL_GGUF_MAX_NAME_BYTES + 1);
    uint64_t *offs = bl_alloc_array((size_t)n, sizeof *offs);
    bl_code rc = BL_OK;
    if (!g->views || !g->view_by_name || !g->names || !offs) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for %" PRIu64 " tensors", n);
        goto out;
    }
    BL_TRY_GOTO(rc, out, read_infos(g, r, n, offs, err));
    rc = place_tensors(g, r, align, offs, err);
out:
    bl_free(offs);
    return rc;
}

/* ---- whole file ---- */

static bl_code check_count(uint64_t n, uint64_t max, uint64_t min_record_bytes, const reader *r,
                           const char *what, bl_err *err) {
    if (n > remaining(r) / min_record_bytes) {
        BL_FAIL(err, BL_EFORMAT,
                "%s count is %" PRIu64 ", the %" PRIu64 " bytes that follow hold at most %" PRIu64, what, n,
                remaining(r), remaining(r) / min_record_bytes);
    }
    if (n > max) {
        BL_FAIL(err, BL_ELIMIT, "%s count is %" PRIu64 ", allowed are %" PRIu64, what, n, max);
    }
    return BL_OK;
}

static bl_code read_head(reader *r, uint32_t *ret_version, uint64_t *ret_n_tensors, uint64_t *ret_n_kv,
                         bl_err *err) {
    static const uint8_t magic[4] = {'G', 'G', 'U', 'F'};
    if (r->size_bytes < 4 || memcmp(r->data, magic, 4) != 0) {
        BL_FAIL(err, BL_EFORMAT, "file of %" PRIu64 " bytes does not start with 'GGUF'", r->size_bytes);
    }
    r->pos = 4;
    BL_TRY(read_u32(r, "version", ret_version, err));
    if (*ret_version == 0x03000000u || *ret_version == 0x02000000u) {
        BL_FAIL(err, BL_ENOTSUP,
                "version is 0x%08" PRIx32 ": a big-endian file, allowed are little-endian ones",
                *ret_version);
    }
    if (*ret_version != 2 && *ret_version != 3) {
        BL_FAIL(err, BL_ENOTSUP, "version is %" PRIu32 ", allowed are 2 and 3", *ret_version);
    }
    BL_TRY(read_uint(r, 8, "tensor count", ret_n_tensors, err));
    BL_TRY(read_uint(r, 8, "key count", ret_n_kv, err));
    /* key: length, one byte, type, one byte; tensor: length, one byte, dimension count, one dimension, type,
     * offset */
    BL_TRY(check_count(*ret_n_kv, BL_GGUF_MAX_KEYS, 8 + 1 + 4 + 1, r, "key", err));
    return check_count(*ret_n_tensors, BL_GGUF_MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8, r, "tensor", err);
}

static bl_code read_alignment(const bl_gguf *g, uint64_t *ret, bl_err *err) {
    uint64_t align = 32;
    BL_TRY(bl_gguf_get_u64(g, "general.alignment", 1, UINT32_MAX, &align, NULL, err));
    if ((align & (align - 1)) != 0) {
        BL_FAIL(err, BL_EFORMAT, "key 'general.alignment' is %" PRIu64 ", allowed are powers of two", align);
    }
    *ret = align;
    return BL_OK;
}

static bl_code parse(bl_gguf *g, const uint8_t *data, uint64_t size_bytes, bl_err *err) {
    reader r = {data, size_bytes, 0};
    uint64_t n_tensors = 0, n_kv = 0, align = 0, n_split = 1;
    BL_TRY(read_head(&r, &g->version, &n_tensors, &n_kv, err));
    BL_TRY(read_kvs(g, &r, n_kv, err));
    BL_TRY(read_alignment(g, &align, err));
    BL_TRY(bl_gguf_get_u64(g, "split.count", 0, UINT64_MAX, &n_split, NULL, err));
    if (n_split > 1) {
        BL_FAIL(err, BL_ENOTSUP,
                "key 'split.count' is %" PRIu64 ", allowed is 1: the model is split over several files",
                n_split);
    }
    BL_TRY(check_count(n_tensors, BL_GGUF_MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8, &r, "tensor", err));
    return read_tensors(g, &r, n_tensors, align, err);
}

bl_code bl_gguf_parse(const uint8_t *data, uint64_t size_bytes, const char *name, bl_gguf **ret,
                      bl_err *err) {
    bl_gguf *g = bl_alloc(sizeof *g);
    if (!g) {
        BL_FAIL(err, BL_ENOMEM, "gguf '%s': no memory", name);
    }
    bl_code rc = parse(g, data, size_bytes, err);
    if (rc != BL_OK) {
        bl_gguf_free(g);
        return bl_err_wrap(err, rc, "gguf '%.*s'", bl_name_shown(name, strlen(name)), name);
    }
    *ret = g;
    return BL_OK;
}

bl_code bl_gguf_open(const char *path, bl_gguf **ret, bl_err *err) {
    bl_map map;
    bl_gguf *g = NULL;
    BL_TRY(bl_map_open(path, true, &map, err));
    bl_code rc = bl_mapguard_add(map.data, map.size_bytes, err);
    if (rc == BL_OK) {
        rc = bl_gguf_parse(map.data, map.size_bytes, bl_name_of_path(path), &g, err);
    }
    if (rc == BL_OK) {
        rc = bl_mapguard_check(map.data, bl_name_of_path(path), err);
    }
    if (rc != BL_OK) {
        bl_gguf_free(g);
        bl_mapguard_remove(map.data);
        bl_map_close(&map);
        return rc;
    }
    g->map = map;
    *ret = g;
    return BL_OK;
}

bl_code bl_gguf_check_intact(const bl_gguf *g, const char *name, bl_err *err) {
    return bl_mapguard_check(g->map.data, name, err);
}

void bl_gguf_free(bl_gguf *g) {
    if (!g) {
        return;
    }
    for (size_t i = 0; g->kvs && i < g->n_kv; i++) {
        bl_free(g->kvs[i].strs);
        bl_free(g->kvs[i].lens);
    }
    bl_mapguard_remove(g->map.data);
    bl_map_close(&g->map);
    bl_free(g->kvs);
    bl_free(g->kv_by_key);
    bl_free(g->views);
    bl_free(g->view_by_name);
    bl_free(g->names);
    bl_free(g);
}

size_t bl_gguf_count(const bl_gguf *g) {
    return g->n_tensors;
}

const bl_tensor_view *bl_gguf_at(const bl_gguf *g, size_t i) {
    BL_ASSERT(i < g->n_tensors);
    return &g->views[i];
}

const bl_tensor_view *bl_gguf_find(const bl_gguf *g, const char *name) {
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const bl_tensor_view *t = &g->views[g->view_by_name[mid]];
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

/* ---- metadata ---- */

static const kv *find_key(const bl_gguf *g, const char *key) {
    size_t lo = 0, hi = g->n_kv, n = strlen(key);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const kv *v = &g->kvs[g->kv_by_key[mid]];
        int c = cmp_bytes(key, n, v->key, v->key_len);
        if (c == 0) {
            return v;
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

static const kv *find_value(const bl_gguf *g, const char *key, bool *ret_found) {
    const kv *v = find_key(g, key);
    if (ret_found) {
        *ret_found = v != NULL;
    }
    return v;
}

static bl_code wrong_type(const kv *v, const char *allowed, bl_err *err) {
    bool array = v->type == VT_ARRAY;
    BL_FAIL(err, BL_EFORMAT, "key '%.*s' is %s%s, allowed is %s", bl_name_shown(v->key, v->key_len), v->key,
            array ? "an array of " : "", value_types[array ? v->elem : v->type].name, allowed);
}

/* An integer of any width: *ret_u holds it, or *ret_i when *ret_neg is true. false for other types. */
static bool get_integer(value_type type, const uint8_t *p, uint64_t *ret_u, int64_t *ret_i, bool *ret_neg) {
    uint32_t size = value_types[type].size_bytes;
    switch (type) {
    case VT_U8:
    case VT_U16:
    case VT_U32:
    case VT_U64:
        *ret_u = get_uint(p, size);
        *ret_i = 0;
        *ret_neg = false;
        return true;
    case VT_I8:
    case VT_I16:
    case VT_I32:
    case VT_I64: {
        uint64_t u = get_uint(p, size), sign = (uint64_t)1 << (8 * size - 1);
        uint64_t extended = (u ^ sign) - sign; /* two's complement to 64 bits */
        *ret_u = extended;
        *ret_i = (int64_t)extended;
        *ret_neg = *ret_i < 0;
        return true;
    }
    default:
        return false;
    }
}

static bool get_number(value_type type, const uint8_t *p, double *ret) {
    uint64_t u;
    int64_t i;
    bool neg;
    if (type == VT_F32) {
        *ret = (double)bl_bits_to_f32((uint32_t)get_uint(p, 4));
        return true;
    }
    if (type == VT_F64) {
        uint64_t bits = get_uint(p, 8);
        memcpy(ret, &bits, 8);
        return true;
    }
    if (!get_integer(type, p, &u, &i, &neg)) {
        return false;
    }
    *ret = neg ? (double)i : (double)u;
    return true;
}

bl_code bl_gguf_get_u64(const bl_gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                        bool *ret_found, bl_err *err) {
    const kv *v = find_value(g, key, ret_found);
    uint64_t u;
    int64_t i;
    bool neg;
    if (!v) {
        return BL_OK;
    }
    if (!get_integer(v->type, v->data, &u, &i, &neg)) {
        return wrong_type(v, "an integer", err);
    }
    if (neg) {
        BL_FAIL(err, BL_EFORMAT, "key '%s' is %" PRId64 ", allowed are %" PRIu64 " to %" PRIu64, key, i, min,
                max);
    }
    if (u < min || u > max) {
        BL_FAIL(err, BL_EFORMAT, "key '%s' is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64, key, u, min,
                max);
    }
    *ret = u;
    return BL_OK;
}

bl_code bl_gguf_get_f64(const bl_gguf *g, const char *key, double *ret, bool *ret_found, bl_err *err) {
    const kv *v = find_value(g, key, ret_found);
    double d;
    if (!v) {
        return BL_OK;
    }
    if (!get_number(v->type, v->data, &d)) {
        return wrong_type(v, "a number", err);
    }
    if (!isfinite(d)) {
        BL_FAIL(err, BL_EFORMAT, "key '%s' is %s, allowed are finite numbers", key,
                isnan(d) ? "NaN" : "infinite");
    }
    *ret = d;
    return BL_OK;
}

bl_code bl_gguf_get_bool(const bl_gguf *g, const char *key, bool *ret, bool *ret_found, bl_err *err) {
    const kv *v = find_value(g, key, ret_found);
    uint64_t u;
    int64_t i;
    bool neg;
    if (!v) {
        return BL_OK;
    }
    if (v->type == VT_BOOL) {
        *ret = v->data[0] != 0;
        return BL_OK;
    }
    if (!get_integer(v->type, v->data, &u, &i, &neg)) {
        return wrong_type(v, "a bool", err);
    }
    if (neg || u > 1) {
        BL_FAIL(err, BL_EFORMAT, "key '%s' is an integer other than 0 and 1, allowed is a bool", key);
    }
    *ret = u != 0;
    return BL_OK;
}

bl_code bl_gguf_get_str(const bl_gguf *g, const char *key, const char **ret, size_t *ret_len, bool *ret_found,
                        bl_err *err) {
    const kv *v = find_value(g, key, ret_found);
    if (!v) {
        return BL_OK;
    }
    if (v->type != VT_STRING) {
        return wrong_type(v, "a string", err);
    }
    *ret = (const char *)v->data;
    *ret_len = (size_t)v->n;
    return BL_OK;
}

size_t bl_gguf_key_count(const bl_gguf *g) {
    return g->n_kv;
}

void bl_gguf_key_at(const bl_gguf *g, size_t i, const char **ret, size_t *ret_len) {
    BL_ASSERT(i < g->n_kv);
    *ret = g->kvs[i].key;
    *ret_len = g->kvs[i].key_len;
}

bool bl_gguf_is_array(const bl_gguf *g, const char *key) {
    const kv *v = find_key(g, key);
    return v && v->type == VT_ARRAY;
}

bl_code bl_gguf_get_strings(const bl_gguf *g, const char *key, bl_gguf_strings *ret, bool *ret_found,
                            bl_err *err) {
    const kv *v = find_value(g, key, ret_found);
    if (!v) {
        return BL_OK;
    }
    if (v->type != VT_ARRAY || v->elem != VT_STRING) {
        return wrong_type(v, "an array of string", err);
    }
    *ret = (bl_gguf_strings){v->strs, v->lens, (size_t)v->n};
    return BL_OK;
}

bl_code bl_gguf_array_len(const bl_gguf *g, const char *key, size_t *ret_n, bl_err *err) {
    const kv *v = find_key(g, key);
    if (v && v->type != VT_ARRAY) {
        return wrong_type(v, "an array", err);
    }
    *ret_n = v ? (size_t)v->n : 0;
    return BL_OK;
}

/* The array under key, with exactly n elements of a fixed size. */
static bl_code find_numbers(const bl_gguf *g, const char *key, size_t n, const char *allowed, const kv **ret,
                            bl_err *err) {
    const kv *v = find_key(g, key);
    if (!v) {
        BL_FAIL(err, BL_ENOTFOUND, "key '%s' is absent, allowed is %s", key, allowed);
    }
    if (v->type != VT_ARRAY || v->elem == VT_STRING) {
        return wrong_type(v, allowed, err);
    }
    if (v->n != n) {
        BL_FAIL(err, BL_EFORMAT, "key '%s' has %" PRIu64 " elements, allowed are %zu", key, v->n, n);
    }
    *ret = v;
    return BL_OK;
}

bl_code bl_gguf_array_f32(const bl_gguf *g, const char *key, float *dst, size_t n, bl_err *err) {
    static const char allowed[] = "an array of numbers";
    const kv *v = NULL;
    BL_TRY(find_numbers(g, key, n, allowed, &v, err));
    uint32_t size = value_types[v->elem].size_bytes;
    for (size_t i = 0; i < n; i++) {
        double d;
        if (!get_number(v->elem, v->data + i * size, &d)) {
            return wrong_type(v, allowed, err);
        }
        if (isnan(d)) {
            BL_FAIL(err, BL_EFORMAT, "key '%s': element %zu is NaN, allowed are numbers", key, i);
        }
        dst[i] = (float)d;
    }
    return BL_OK;
}

bl_code bl_gguf_array_i32(const bl_gguf *g, const char *key, int32_t *dst, size_t n, bl_err *err) {
    static const char allowed[] = "an array of integers or bools";
    const kv *v = NULL;
    BL_TRY(find_numbers(g, key, n, allowed, &v, err));
    uint32_t size = value_types[v->elem].size_bytes;
    for (size_t i = 0; i < n; i++) {
        uint64_t u;
        int64_t s = 0;
        bool neg;
        const uint8_t *p = v->data + i * size;
        if (v->elem == VT_BOOL) {
            dst[i] = p[0];
            continue;
        }
        if (!get_integer(v->elem, p, &u, &s, &neg)) {
            return wrong_type(v, allowed, err);
        }
        if (neg ? s < INT32_MIN : u > INT32_MAX) {
            BL_FAIL(err, BL_ERANGE, "key '%s': element %zu does not fit 32 bits with sign", key, i);
        }
        dst[i] = neg ? (int32_t)s : (int32_t)u;
    }
    return BL_OK;
}
