/* formats/safetensors: what a good file gives, and every rule of spec models.md §7.3 "Header" and "Tensor" as
 * a named case with its code and its whole message. Files are built in memory, in blocks of exactly their
 * size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/buf.h"
#include "formats/limits.h"
#include "formats/safetensors.h"
#include "match.h"

#define TEXT(s) (s), sizeof(s) - 1

/* length + header + n_data bytes of 0xaa; caller frees */
static uint8_t *build(const char *header, size_t n_header, size_t n_data, size_t *ret_size) {
    size_t size = 8 + n_header + n_data;
    uint8_t *p = bl_alloc(size);
    assert_non_null(p);
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    }
    memcpy(p + 8, header, n_header);
    memset(p + 8 + n_header, 0xaa, n_data);
    *ret_size = size;
    return p;
}

/* Prints what differs; true when all is as expected. */
static bool fails_with(const char *name, const uint8_t *data, size_t size, bl_code code, const char *msg) {
    bl_err err = {0};
    bl_safetensors *st = NULL;
    bl_code rc = bl_safetensors_parse(data, size, "f.safetensors", &st, &err);
    char full[sizeof err.msg];
    snprintf(full, sizeof full, "safetensors 'f.safetensors': %s", msg);
    bool ok = rc == code && err.code == code && msg_matches(err.msg, full) && !st &&
              bl_safetensors_parse(data, size, "f.safetensors", &st, NULL) == code;
    if (!ok) {
        print_error("case '%s': %s: %s\n", name, bl_code_name(rc), err.msg);
    }
    return ok;
}

/* ---- cases of text: header and bytes of data ---- */

typedef struct {
    const char *name;
    const char *header;
    size_t n_header, n_data;
    bl_code code;
    const char *msg;
} text_case;

#define BAD_SHAPE(s)     TEXT("{\"a\":{\"dtype\":\"U8\",\"shape\":" s ",\"data_offsets\":[0,4]}}"), 4
#define BAD_OFFS(s)      TEXT("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" s "}}"), 4
#define BAD_DTYPE(s)     TEXT("{\"a\":{\"dtype\":" s ",\"shape\":[4],\"data_offsets\":[0,4]}}"), 4
#define U8_4(name, b, e) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #b "," #e "]}"

static const text_case header_cases[] = {
    {"not UTF-8", TEXT("{\"\xc0\x80\":1}"), 0, BL_EFORMAT, "header is not UTF-8"},
    {"not UTF-8: surrogate", TEXT("{\"\xed\xa0\x80\":1}"), 0, BL_EFORMAT, "header is not UTF-8"},
    {"starts with an array", TEXT("[{}]"), 0, BL_EFORMAT, "header starts with byte 0x5b, allowed is '{'"},
    {"starts with a space", TEXT(" {}"), 0, BL_EFORMAT, "header starts with byte 0x20, allowed is '{'"},
    {"starts with a byte order mark", TEXT("\xef\xbb\xbf{}"), 0, BL_EFORMAT,
     "header starts with byte 0xef, allowed is '{'"},
    {"a letter after the object", TEXT("{} x"), 0, BL_EFORMAT,
     "header ends with byte 0x78, allowed are '}' and spaces"},
    {"a newline after the object", TEXT("{}\n"), 0, BL_EFORMAT,
     "header ends with byte 0x0a, allowed are '}' and spaces"},
    {"a NUL after the object", TEXT("{}\0"), 0, BL_EFORMAT,
     "header ends with byte 0x00, allowed are '}' and spaces"},
    {"an object after the object", TEXT("{}{}"), 0, BL_EFORMAT,
     "header: line 1, column #: something follows the value"},
    {"unfinished", TEXT("{\"a\":{}"), 0, BL_EFORMAT, "header: line 1, column #: the text ends too early"},
    {"nested 5 deep", TEXT("{\"a\":{\"shape\":[[[1]]]}}"), 0, BL_ELIMIT,
     "header is nested deeper than 4 at byte 16"},
    {"empty key", TEXT("{" U8_4("", 0, 4) "}"), 4, BL_EFORMAT, "tensor name is empty"},
    {"key with an escaped NUL", TEXT("{\"a\\u0000b\":{}}"), 0, BL_EFORMAT,
     "header: line 1, column #: NUL in a string"},
    {"key with a NUL", TEXT("{\"a\0b\":{}}"), 0, BL_EFORMAT, "header: byte 3 is NUL, allowed is text"},
    {"NUL behind a number", BAD_SHAPE("[4\0]"), BL_EFORMAT, "header: byte 29 is NUL, allowed is text"},
    {"key with a newline", TEXT("{\"a\nb\":{}}"), 0, BL_EFORMAT, "header: line 1, column #: invalid JSON"},
    {"key with an escaped control byte", TEXT("{" U8_4("a\\u0007", 0, 4) "}"), 4, BL_EFORMAT,
     "tensor name holds the control byte 0x07 at 1"},
    {"key with DEL", TEXT("{" U8_4("\x7f", 0, 4) "}"), 4, BL_EFORMAT,
     "tensor name holds the control byte 0x7f at 0"},
    {"duplicate key", TEXT("{" U8_4("a", 0, 4) "," U8_4("a", 4, 8) "}"), 8, BL_EFORMAT,
     "header: line 1, column #: an object has the same key twice"},
    {"duplicate key after unescaping", TEXT("{" U8_4("a", 0, 4) "," U8_4("\\u0061", 4, 8) "}"), 8, BL_EFORMAT,
     "header: line 1, column #: an object has the same key twice"},
    {"duplicate field",
     TEXT("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"), 4, BL_EFORMAT,
     "header: line 1, column #: an object has the same key twice"},
    {"negative number", BAD_SHAPE("[-4]"), BL_EFORMAT, "tensor 'a': 'shape' holds -4, allowed are 0 to 2^53"},
    {"fractional number", BAD_SHAPE("[4.5]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds a fractional or exponent number, allowed are integers"},
    {"fraction that is whole", BAD_SHAPE("[4.0]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds a fractional or exponent number, allowed are integers"},
    {"exponent form", BAD_SHAPE("[4e0]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds a fractional or exponent number, allowed are integers"},
    {"beyond 2^53", BAD_SHAPE("[9007199254740993]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds 9007199254740993, allowed are 0 to 2^53"},
    {"beyond 2^63", BAD_SHAPE("[9223372036854775808]"), BL_EFORMAT,
     "header: line 1, column #: a number is out of range"},
    {"a real beyond double", BAD_SHAPE("[1e999]"), BL_EFORMAT,
     "header: line 1, column #: a number is out of range"},
    {"a dimension that is a string", BAD_SHAPE("[\"4\"]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds something that is no number, allowed are integers"},
    {"a dimension that is true", BAD_SHAPE("[true]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds something that is no number, allowed are integers"},
    {"negative offset", BAD_OFFS("[-4,0]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' holds -4, allowed are 0 to 2^53"},
    {"fractional offset", BAD_OFFS("[0,4.0]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' holds a fractional or exponent number, allowed are integers"},
    {"offset beyond 2^53", BAD_OFFS("[0,9007199254740993]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' holds 9007199254740993, allowed are 0 to 2^53"},
    {"dtype missing", TEXT("{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}"), 4, BL_EFORMAT,
     "tensor 'a': 'dtype' is missing, allowed is a string"},
    {"shape missing", TEXT("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}"), 4, BL_EFORMAT,
     "tensor 'a': 'shape' is missing, allowed is an array"},
    {"data_offsets missing", TEXT("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}"), 4, BL_EFORMAT,
     "tensor 'a': 'data_offsets' is missing, allowed is an array of 2"},
    {"dtype a number", BAD_DTYPE("8"), BL_EFORMAT, "tensor 'a': 'dtype' is no string, allowed is a string"},
    {"shape a number", BAD_SHAPE("4"), BL_EFORMAT, "tensor 'a': 'shape' is no array, allowed is an array"},
    {"data_offsets an object", BAD_OFFS("{}"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' is no array, allowed is an array of 2"},
    {"data_offsets of 0", BAD_OFFS("[]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' is an array of another length, allowed is an array of 2"},
    {"data_offsets of 1", BAD_OFFS("[4]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' is an array of another length, allowed is an array of 2"},
    {"data_offsets of 3", BAD_OFFS("[0,4,4]"), BL_EFORMAT,
     "tensor 'a': 'data_offsets' is an array of another length, allowed is an array of 2"},
    {"extra field", TEXT("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"strides\":[1]}}"),
     4, BL_EFORMAT, "tensor 'a': entry has 4 fields, allowed are dtype, shape and data_offsets"},
    {"entry a number", TEXT("{\"a\":4}"), 0, BL_EFORMAT, "tensor 'a': entry is no object"},
    {"metadata an array", TEXT("{\"__metadata__\":[]}"), 0, BL_EFORMAT, "'__metadata__' is no object"},
    {"metadata with a number", TEXT("{\"__metadata__\":{\"format\":1}}"), 0, BL_EFORMAT,
     "'__metadata__' holds a value that is no string"},
};

static const text_case tensor_cases[] = {
    {"end before begin", BAD_OFFS("[4,0]"), BL_EFORMAT,
     "tensor 'a': data begins at 4 and ends before that, at 0"},
    {"end beyond the data", BAD_OFFS("[0,5]"), BL_EFORMAT,
     "tensor 'a': data ends at 5, file has 4 bytes of data"},
    {"end that overflows with the header", BAD_OFFS("[0,9007199254740992]"), BL_EFORMAT,
     "tensor 'a': data ends at 9007199254740992, file has 4 bytes of data"},
    {"end beyond 64 bits", BAD_OFFS("[0,18446744073709551615]"), BL_EFORMAT,
     "header: line 1, column #: a number is out of range"},
    {"shape product overflows", BAD_SHAPE("[4294967296,4294967296]"), BL_ERANGE,
     "tensor 'a': the product of 'shape' is beyond 64 bits at dimension 1 (4294967296)"},
    {"shape product overflows behind a zero", BAD_SHAPE("[0,4294967296,4294967296]"), BL_ERANGE,
     "tensor 'a': the product of 'shape' is beyond 64 bits at dimension 2 (4294967296)"},
    {"shape product overflows to 4", BAD_SHAPE("[4611686018427387905,4]"), BL_EFORMAT,
     "tensor 'a': 'shape' holds 4611686018427387905, allowed are 0 to 2^53"},
    {"size in bits overflows",
     TEXT("{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740992,64],\"data_offsets\":[0,4]}}"), 4, BL_ERANGE,
     "tensor 'a': 576460752303423488 elements of F32 are beyond 64 bits"},
    {"9 dimensions", BAD_SHAPE("[1,1,1,1,1,1,1,1,4]"), BL_ELIMIT,
     "tensor 'a': 'shape' has 9 dimensions, allowed are 8"},
    {"size too small for the shape", BAD_SHAPE("[5]"), BL_EFORMAT,
     "tensor 'a': data_offsets span 4 bytes, shape and dtype U8 need 5"},
    {"size too large for the shape", BAD_SHAPE("[3]"), BL_EFORMAT,
     "tensor 'a': data_offsets span 4 bytes, shape and dtype U8 need 3"},
    {"bytes for an empty shape", BAD_SHAPE("[0]"), BL_EFORMAT,
     "tensor 'a': data_offsets span 4 bytes, shape and dtype U8 need 0"},
    {"misdeclared dtype", BAD_DTYPE("\"BF16\""), BL_EFORMAT,
     "tensor 'a': data_offsets span 4 bytes, shape and dtype BF16 need 8"},
    {"unknown dtype", BAD_DTYPE("\"F33\""), BL_EFORMAT,
     "tensor 'a': 'dtype' is 'F33', which safetensors does not define"},
    {"lower-case dtype", BAD_DTYPE("\"u8\""), BL_EFORMAT,
     "tensor 'a': 'dtype' is 'u8', which safetensors does not define"},
    {"empty dtype", BAD_DTYPE("\"\""), BL_EFORMAT,
     "tensor 'a': 'dtype' is '', which safetensors does not define"},
    {"dtype we do not use", BAD_DTYPE("\"BOOL\""), BL_ENOTSUP,
     "tensor 'a': dtype BOOL is not supported, allowed are F32 F16 BF16 U8 U32 I32 I64 F8_E4M3 F8_E8M0"},
    {"4-bit dtype, odd count", TEXT("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}"), 2,
     BL_EFORMAT, "tensor 'a': 3 elements of F4 are 12 bits, allowed are whole bytes"},
    {"6-bit dtype, odd count", TEXT("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]}}"),
     2, BL_EFORMAT, "tensor 'a': 2 elements of F6_E2M3 are 12 bits, allowed are whole bytes"},
    {"4-bit dtype, even count", TEXT("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}"), 2,
     BL_ENOTSUP,
     "tensor 'a': dtype F4 is not supported, allowed are F32 F16 BF16 U8 U32 I32 I64 F8_E4M3 F8_E8M0"},
    {"overlap", TEXT("{" U8_4("a", 0, 4) "," U8_4("b", 2, 6) "}"), 6, BL_EFORMAT,
     "tensor 'b': data begins at 2, overlaps the one before that ends at 4"},
    {"the same bytes twice", TEXT("{" U8_4("a", 0, 4) "," U8_4("b", 0, 4) "}"), 4, BL_EFORMAT,
     "tensor 'b': data begins at 0, overlaps the one before that ends at 4"},
    {"gap at the start", TEXT("{" U8_4("a", 4, 8) "}"), 8, BL_EFORMAT,
     "tensor 'a': data begins at 4, leaves a gap after 0"},
    {"gap between", TEXT("{" U8_4("b", 5, 9) "," U8_4("a", 0, 4) "}"), 9, BL_EFORMAT,
     "tensor 'b': data begins at 5, leaves a gap after 4"},
    {"bytes behind the last", TEXT("{" U8_4("a", 0, 4) "}"), 5, BL_EFORMAT,
     "tensors end at 4, file has 5 bytes of data"},
    {"data without tensors", TEXT("{}"), 1, BL_EFORMAT, "tensors end at 0, file has 1 bytes of data"},
};

static void run_text_cases(const text_case *cases, size_t n) {
    size_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        size_t size;
        uint8_t *p = build(cases[i].header, cases[i].n_header, cases[i].n_data, &size);
        n_bad += !fails_with(cases[i].name, p, size, cases[i].code, cases[i].msg);
        bl_free(p);
    }
    assert_int_equal(n_bad, 0);
}

static void test_header_rules(void **state) {
    (void)state;
    run_text_cases(header_cases, BL_COUNTOF(header_cases));
}

static void test_tensor_rules(void **state) {
    (void)state;
    run_text_cases(tensor_cases, BL_COUNTOF(tensor_cases));
}

/* ---- cases of length ---- */

static void test_length_rules(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t n; /* as declared; the file goes on with "{}" */
        bl_code code;
        const char *msg;
    } cases[] = {
        {"0", 0, BL_EFORMAT, "header length is 0, allowed are 2 and more"},
        {"one beyond the file", 3, BL_EFORMAT, "header length is 3, file has 2 bytes after it"},
        {"our cap", (uint64_t)32 << 20, BL_EFORMAT, "header length is 33554432, file has 2 bytes after it"},
        {"one beyond our cap", ((uint64_t)32 << 20) + 1, BL_ELIMIT,
         "header length is 33554433, allowed are 33554432"},
        {"beyond 100 MB", 100000001, BL_ELIMIT, "header length is 100000001, allowed are 33554432"},
        {"8 + N wraps to 2", UINT64_MAX - 5, BL_ELIMIT,
         "header length is 18446744073709551610, allowed are 33554432"},
        {"largest", UINT64_MAX, BL_ELIMIT, "header length is 18446744073709551615, allowed are 33554432"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        uint8_t *p = bl_alloc(10);
        for (int k = 0; k < 8; k++) {
            p[k] = (uint8_t)(cases[i].n >> 8 * k);
        }
        p[8] = '{';
        p[9] = '}';
        assert_true(fails_with(cases[i].name, p, 10, cases[i].code, cases[i].msg));
        bl_free(p);
    }
    for (size_t n = 0; n < 8; n++) {
        char msg[128];
        uint8_t *p = bl_alloc(n);
        snprintf(msg, sizeof msg, "file has %zu bytes, the header length alone needs 8", n);
        assert_true(fails_with("shorter than the length", p, n, BL_EFORMAT, msg));
        bl_free(p);
    }
}

static void test_key_of_1025_bytes(void **state) {
    (void)state;
    for (size_t n = BL_ST_MAX_NAME_BYTES; n <= BL_ST_MAX_NAME_BYTES + 1; n++) {
        char header[2048], key[BL_ST_MAX_NAME_BYTES + 2];
        memset(key, 'k', n);
        key[n] = '\0';
        int len = snprintf(header, sizeof header,
                           "{\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", key);
        size_t size;
        uint8_t *p = build(header, (size_t)len, 1, &size);
        bl_safetensors *st = NULL;
        if (n == BL_ST_MAX_NAME_BYTES) {
            assert_int_equal(bl_safetensors_parse(p, size, "f", &st, NULL), BL_OK);
            assert_non_null(bl_safetensors_find(st, key));
            bl_safetensors_free(st);
        } else {
            assert_true(fails_with("key of 1025 bytes", p, size, BL_ELIMIT,
                                   "tensor name has 1025 bytes, allowed are 1024"));
        }
        bl_free(p);
    }
}

/* A long name is shown in part, cut between characters. */
static void test_long_name_in_message(void **state) {
    (void)state;
    char header[1024], key[301] = "", shown[128] = "";
    for (int i = 0; i < 100; i++) {
        memcpy(key + 3 * i, "€", 4);
    }
    memcpy(shown, key, BL_NAME_SHOWN_BYTES);
    int len = snprintf(header, sizeof header, "{\"x%s\":7}", key);
    size_t size;
    uint8_t *p = build(header, (size_t)len, 0, &size);
    char msg[256];
    snprintf(msg, sizeof msg, "tensor 'x%.*s': entry is no object", (int)(BL_NAME_SHOWN_BYTES - 1) / 3 * 3,
             key);
    assert_true(fails_with("long name", p, size, BL_EFORMAT, msg));
    bl_free(p);
}

/* n empty tensors e0, e1, ...; caller frees. */
static uint8_t *build_many(size_t n, size_t *ret_size) {
    bl_buf b;
    bl_buf_init(&b, BL_ST_MAX_HEADER_BYTES);
    assert_int_equal(bl_buf_append_char(&b, '{', NULL), BL_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(bl_buf_printf(&b, NULL,
                                       "%s\"e%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                       i ? "," : "", i),
                         BL_OK);
    }
    assert_int_equal(bl_buf_append_char(&b, '}', NULL), BL_OK);
    uint8_t *p = build(b.data, b.len, 0, ret_size);
    bl_buf_done(&b);
    return p;
}

static void test_entry_count(void **state) {
    (void)state;
    size_t size;
    uint8_t *p = build_many(BL_ST_MAX_TENSORS + 1, &size);
    assert_true(
        fails_with("200,001 entries", p, size, BL_ELIMIT, "header lists 200001 tensors, allowed are 200000"));
    bl_free(p);
    p = build_many(BL_ST_MAX_TENSORS, &size);
    bl_safetensors *st = NULL;
    assert_int_equal(bl_safetensors_parse(p, size, "f", &st, NULL), BL_OK);
    assert_int_equal(bl_safetensors_count(st), BL_ST_MAX_TENSORS);
    assert_non_null(bl_safetensors_find(st, "e199999"));
    bl_safetensors_free(st);
    bl_free(p);
}

/* ---- good files ---- */

static const char good_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"b.empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[13,13]},"
    "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]},"
    "\"\\u0061\":{\"dtype\":\"I64\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[13,21]}}   ";

static void test_good_file(void **state) {
    (void)state;
    size_t size;
    uint8_t *p = build(TEXT(good_header), 21, &size);
    bl_safetensors *st = NULL;
    assert_int_equal(bl_safetensors_parse(p, size, "f", &st, NULL), BL_OK);
    assert_int_equal(bl_safetensors_count(st), 4);
    const uint8_t *data = p + size - 21;
    static const struct {
        const char *name;
        bl_dtype dtype;
        uint32_t n_dims;
        uint64_t off, size;
    } want[] = {
        {"z", BL_DTYPE_BF16, 2, 0, 12},
        {"scalar", BL_DTYPE_U8, 0, 12, 1},
        {"b.empty", BL_DTYPE_F32, 2, 13, 0},
        {"a", BL_DTYPE_I64, 8, 13, 8},
    };
    for (size_t i = 0; i < BL_COUNTOF(want); i++) {
        const bl_tensor_view *t = bl_safetensors_at(st, i);
        assert_string_equal(t->name, want[i].name);
        assert_int_equal(t->dtype, want[i].dtype);
        assert_int_equal(t->n_dims, want[i].n_dims);
        assert_ptr_equal(t->data, data + want[i].off);
        assert_int_equal(t->size_bytes, want[i].size);
        assert_ptr_equal(bl_safetensors_find(st, want[i].name), t);
    }
    assert_int_equal(bl_safetensors_at(st, 0)->dims[0], 2);
    assert_int_equal(bl_safetensors_at(st, 0)->dims[1], 3);
    assert_null(bl_safetensors_find(st, "b"));
    assert_null(bl_safetensors_find(st, "__metadata__"));
    bl_safetensors_free(st);
    bl_free(p);
}

/* The reference reader takes null for none, and MLX writes it. */
static void test_metadata_null(void **state) {
    (void)state;
    size_t size;
    uint8_t *p = build(TEXT("{\"__metadata__\":null,\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
                            "\"data_offsets\":[0,1]}}"),
                       1, &size);
    bl_safetensors *st = NULL;
    assert_int_equal(bl_safetensors_parse(p, size, "f", &st, NULL), BL_OK);
    assert_int_equal(bl_safetensors_count(st), 1);
    bl_safetensors_free(st);
    bl_free(p);
}

static void test_no_tensors(void **state) {
    (void)state;
    size_t size;
    uint8_t *p = build(TEXT("{}"), 0, &size);
    bl_safetensors *st = NULL;
    assert_int_equal(bl_safetensors_parse(p, size, "f", &st, NULL), BL_OK);
    assert_int_equal(bl_safetensors_count(st), 0);
    assert_null(bl_safetensors_find(st, "a"));
    bl_safetensors_free(st);
    bl_free(p);
}

/* Each shorter file is refused, in a block of its own size so that a read past the end is seen. */
static void test_truncated_at_every_byte(void **state) {
    (void)state;
    size_t size;
    uint8_t *p = build(TEXT(good_header), 21, &size);
    for (size_t n = 0; n < size; n++) {
        uint8_t *q = bl_alloc(n);
        memcpy(q, p, n);
        bl_safetensors *st = NULL;
        bl_err err = {0};
        assert_int_equal(bl_safetensors_parse(q, n, "f", &st, &err), BL_EFORMAT);
        assert_null(st);
        assert_non_null(strstr(err.msg, "safetensors 'f': "));
        bl_free(q);
    }
    bl_free(p);
}

/* Any single changed byte: refused with a message, or accepted with views that lie inside. */
static void test_every_byte_changed(void **state) {
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, '"', '\\', '[', '}', '-', '9', 0x7f, 0x80, 0xff};
    size_t size, n_ok = 0;
    uint8_t *p = build(TEXT(good_header), 21, &size);
    for (size_t i = 0; i < size - 21; i++) {
        uint8_t was = p[i];
        for (size_t v = 0; v < BL_COUNTOF(values); v++) {
            p[i] = values[v];
            bl_safetensors *st = NULL;
            bl_err err = {0};
            if (bl_safetensors_parse(p, size, "f", &st, &err) != BL_OK) {
                assert_non_null(strstr(err.msg, "safetensors 'f': "));
                continue;
            }
            n_ok++;
            for (size_t k = 0; k < bl_safetensors_count(st); k++) {
                const bl_tensor_view *t = bl_safetensors_at(st, k);
                assert_true(t->data >= p + 8 && t->data + t->size_bytes <= p + size);
            }
            bl_safetensors_free(st);
        }
        p[i] = was;
    }
    assert_true(n_ok > 0); /* a letter of a name may change */
    bl_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_rules),
        cmocka_unit_test(test_tensor_rules),
        cmocka_unit_test(test_length_rules),
        cmocka_unit_test(test_key_of_1025_bytes),
        cmocka_unit_test(test_long_name_in_message),
        cmocka_unit_test(test_entry_count),
        cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_metadata_null),
        cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_truncated_at_every_byte),
        cmocka_unit_test(test_every_byte_changed),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
