/* formats/gguf: what a good file gives, and every rule of spec models.md §9.1 as a named case with its code
 * and its whole message. Files are built in memory, in blocks of exactly their size. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/buf.h"
#include "formats/gguf.h"
#include "formats/limits.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { T_F32 = 0, T_Q4_0 = 2, T_Q4_K = 12 };

/* ---- building ---- */

static void put(bl_buf *b, uint64_t v, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        assert_int_equal(bl_buf_append_char(b, (char)(i < 8 ? v >> 8 * i : 0), NULL), BL_OK);
    }
}

static void put_bytes(bl_buf *b, const char *s, size_t n) {
    put(b, n, 8);
    assert_int_equal(bl_buf_append(b, s, n, NULL), BL_OK);
}

static void put_str(bl_buf *b, const char *s) {
    put_bytes(b, s, strlen(s));
}

static void put_head(bl_buf *b, uint64_t n_tensors, uint64_t n_kv) {
    bl_buf_init(b, (size_t)64 << 20);
    assert_int_equal(bl_buf_append_str(b, "GGUF", NULL), BL_OK);
    put(b, 3, 4);
    put(b, n_tensors, 8);
    put(b, n_kv, 8);
}

static void put_kv(bl_buf *b, const char *key, uint32_t type, uint64_t v, size_t n_bytes) {
    put_str(b, key);
    put(b, type, 4);
    put(b, v, n_bytes);
}

static void put_kv_str(bl_buf *b, const char *key, const char *s) {
    put_str(b, key);
    put(b, STRING, 4);
    put_str(b, s);
}

static void put_array(bl_buf *b, const char *key, uint32_t elem, uint64_t n) {
    put_str(b, key);
    put(b, ARRAY, 4);
    put(b, elem, 4);
    put(b, n, 8);
}

static void put_info(bl_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t off) {
    put_str(b, name);
    put(b, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++) {
        put(b, dims[i], 8);
    }
    put(b, type, 4);
    put(b, off, 8);
}

static void put_info1(bl_buf *b, const char *name, uint64_t d0, uint32_t type, uint64_t off) {
    put_info(b, name, 1, &d0, type, off);
}

static void pad_to(bl_buf *b, size_t align) {
    while (b->len % align != 0) {
        put(b, 0, 1);
    }
}

/* The data part: n bytes of 0x3c after the padding. */
static void put_data(bl_buf *b, size_t align, size_t n) {
    pad_to(b, align);
    for (size_t i = 0; i < n; i++) {
        put(b, 0x3c, 1);
    }
}

/* ---- cases ---- */

typedef struct {
    const char *name;
    void (*build)(bl_buf *b);
    bl_code code;
    const char *msg;
} bad_case;

static void b_empty(bl_buf *b) {
    bl_buf_init(b, 8);
}
static void b_magic(bl_buf *b) {
    put_head(b, 0, 0);
    b->data[3] = 'f';
}
static void b_magic_ggml(bl_buf *b) {
    put_head(b, 0, 0);
    memcpy(b->data, "tjgg", 4);
}
static void b_version(bl_buf *b, uint32_t v) {
    put_head(b, 0, 0);
    for (int i = 0; i < 4; i++) {
        b->data[4 + i] = (char)(v >> 8 * i);
    }
}
static void b_version0(bl_buf *b) {
    b_version(b, 0);
}
static void b_version1(bl_buf *b) {
    b_version(b, 1);
}
static void b_version4(bl_buf *b) {
    b_version(b, 4);
}
static void b_big_endian(bl_buf *b) {
    b_version(b, 0x03000000);
}

static void b_many_keys(bl_buf *b) {
    put_head(b, 0, 1);
}
static void b_absurd_keys(bl_buf *b) {
    put_head(b, 0, UINT64_MAX);
    put_kv(b, "a", U8, 1, 1);
}
static void b_many_tensors(bl_buf *b) {
    put_head(b, 2, 0);
    put_info1(b, "a", 8, T_F32, 0);
}
static void b_absurd_tensors(bl_buf *b) {
    put_head(b, (uint64_t)1 << 63, 0);
    put_info1(b, "a", 8, T_F32, 0);
}
static void b_keys_eat_tensors(bl_buf *b) { /* fits before the keys are read, not after */
    put_head(b, 1, 1);
    put_kv_str(b, "a", "0123456789012345678901234567890123456789");
}
static void b_key_limit(bl_buf *b) {
    put_head(b, 0, BL_GGUF_MAX_KEYS + 1);
    put_data(b, 1, (BL_GGUF_MAX_KEYS + 1) * 14);
}
static void b_tensor_limit(bl_buf *b) {
    put_head(b, BL_GGUF_MAX_TENSORS + 1, 0);
    put_data(b, 1, (BL_GGUF_MAX_TENSORS + 1) * 33);
}

static void b_dup_key(bl_buf *b) {
    put_head(b, 0, 3);
    put_kv(b, "b", U8, 1, 1);
    put_kv(b, "a", U8, 1, 1);
    put_kv_str(b, "b", "x");
}
static void b_empty_key(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "", U16, 1, 8);
}
static void b_key_bytes(bl_buf *b, const char *key, size_t n) {
    put_head(b, 0, 1);
    put_bytes(b, key, n);
    put(b, U8, 4);
    put(b, 1, 1);
}
static void b_key_nul(bl_buf *b) {
    b_key_bytes(b, "a\0b", 3);
}
static void b_key_utf8(bl_buf *b) {
    b_key_bytes(b, "a\xff", 2);
}
static void b_key_newline(bl_buf *b) {
    b_key_bytes(b, "a\nb", 3);
}
static void b_key_long(bl_buf *b) {
    static char key[BL_GGUF_MAX_KEY_BYTES + 1];
    memset(key, 'k', sizeof key);
    b_key_bytes(b, key, sizeof key);
}
static void b_key_beyond(bl_buf *b) {
    put_head(b, 0, 1);
    put(b, 7, 8);
    put_data(b, 1, 6);
}
static void b_key_length_absurd(bl_buf *b) {
    put_head(b, 0, 1);
    put(b, UINT64_MAX, 8);
    put_data(b, 1, 6);
}
static void b_value_type(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "a", 13, 1, 1);
}
static void b_value_cut(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "a", U64, 1, 7);
}
static void b_string_beyond(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "a", STRING, 1, 8);
}
static void b_string_absurd(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "a", STRING, UINT64_MAX, 8);
}
static void b_bool(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "a", BOOL, 2, 1);
}
static void b_array_elem(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", 99, 0);
}
static void b_array_nested(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", ARRAY, 1);
    put(b, U8, 4);
    put(b, 0, 8);
}
static void b_array_beyond(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", U32, 3);
    put(b, 0, 11);
}
static void b_array_wraps(bl_buf *b) { /* count times 8 is 2^64 + 8 */
    put_head(b, 0, 1);
    put_array(b, "a", U64, ((uint64_t)1 << 61) + 1);
    put(b, 0, 8);
}
static void b_array_bool(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", BOOL, 2);
    put(b, 0xff01, 2);
}
static void b_array_strings_beyond(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", STRING, 3);
    put_str(b, "");
    put_str(b, "abc");
}
static void b_array_strings_second(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", STRING, 2);
    put_str(b, "");
    put(b, 9, 8);
    put(b, 0, 8);
}
static void b_array_strings_absurd(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "a", STRING, UINT64_MAX / 8);
    put_str(b, "");
}

static void b_align(bl_buf *b, uint32_t type, uint64_t v, size_t n) {
    put_head(b, 0, 1);
    put_kv(b, "general.alignment", type, v, n);
}
static void b_align_0(bl_buf *b) {
    b_align(b, U32, 0, 4);
}
static void b_align_24(bl_buf *b) {
    b_align(b, U32, 24, 4);
}
static void b_align_huge(bl_buf *b) {
    b_align(b, U64, (uint64_t)1 << 32, 8);
}
static void b_align_negative(bl_buf *b) {
    b_align(b, I32, 0xffffffe0u, 4);
}
static void b_align_f32(bl_buf *b) {
    b_align(b, F32, 0x42000000, 4);
}
static void b_align_array(bl_buf *b) {
    put_head(b, 0, 1);
    put_array(b, "general.alignment", U32, 1);
    put(b, 32, 4);
}
static void b_split(bl_buf *b) {
    put_head(b, 0, 1);
    put_kv(b, "split.count", U16, 3, 2);
}

static void b_dup_tensor(bl_buf *b) {
    put_head(b, 2, 0);
    put_info1(b, "a", 8, T_F32, 0);
    put_info1(b, "a", 8, T_F32, 32);
    put_data(b, 32, 64);
}
static void b_tensor_name(bl_buf *b, const char *name) {
    put_head(b, 1, 0);
    put_info1(b, name, 8, T_F32, 0);
    put_data(b, 32, 32);
}
static void b_tensor_empty_name(bl_buf *b) {
    b_tensor_name(b, "");
}
static void b_tensor_name_64(bl_buf *b) {
    b_tensor_name(b, "0123456789012345678901234567890123456789012345678901234567890123");
}
static void b_tensor_name_control(bl_buf *b) {
    b_tensor_name(b, "a\x1b[2J");
}
static void b_tensor_name_utf8(bl_buf *b) {
    b_tensor_name(b, "\xc3");
}
static void b_tensor_name_beyond(bl_buf *b) {
    put_head(b, 1, 0);
    put(b, (uint64_t)1 << 40, 8);
    put_data(b, 1, 64);
}

static void b_dims(bl_buf *b, uint32_t n, uint64_t d0, uint64_t d1, uint32_t type) {
    uint64_t dims[5] = {d0, d1, 1, 1, 1};
    put_head(b, 1, 0);
    put_info(b, "t", n, dims, type, 0);
    put_data(b, 32, 64);
}
static void b_dims_none(bl_buf *b) {
    b_dims(b, 0, 1, 1, T_F32);
}
static void b_dims_5(bl_buf *b) {
    b_dims(b, 5, 1, 1, T_F32);
}
static void b_dims_absurd(bl_buf *b) {
    put_head(b, 1, 0);
    put_str(b, "t");
    put(b, UINT32_MAX, 4);
    put_data(b, 1, 64);
}
static void b_dim_0(bl_buf *b) {
    b_dims(b, 2, 8, 0, T_F32);
}
static void b_dims_overflow(bl_buf *b) {
    b_dims(b, 2, (uint64_t)1 << 32, (uint64_t)1 << 32, T_F32);
}
static void b_dims_overflow_small(bl_buf *b) {
    b_dims(b, 2, ((uint64_t)1 << 62) + 2, 4, T_F32);
}
static void b_dims_63(bl_buf *b) {
    b_dims(b, 1, (uint64_t)1 << 63, 1, T_F32);
}
static void b_bytes_overflow(bl_buf *b) {
    b_dims(b, 1, (uint64_t)1 << 62, 1, T_F32);
}
static void b_rows_overflow(bl_buf *b) {
    b_dims(b, 2, (uint64_t)1 << 31, (uint64_t)1 << 31, T_F32);
}
static void b_row_block(bl_buf *b) {
    b_dims(b, 2, 33, 1, T_Q4_0);
}
static void b_row_block_k(bl_buf *b) {
    b_dims(b, 2, 128, 2, T_Q4_K);
} /* 256 elements, but not in a row */
static void b_type_removed(bl_buf *b) {
    b_dims(b, 1, 8, 1, 4);
}
static void b_type_unknown(bl_buf *b) {
    b_dims(b, 1, 8, 1, 4711);
}
static void b_type_q2_k(bl_buf *b) {
    b_dims(b, 1, 256, 1, 10);
}
static void b_type_nvfp4(bl_buf *b) {
    b_dims(b, 1, 64, 1, 40);
}
static void b_info_cut(bl_buf *b) {
    put_head(b, 1, 0);
    put_info1(b, "abcdefgh", 8, T_F32, 0);
    b->len--;
}

static void b_offset_first(bl_buf *b) {
    put_head(b, 1, 0);
    put_info1(b, "a", 8, T_F32, 32);
    put_data(b, 32, 64);
}
static void b_two(bl_buf *b, uint64_t off, size_t n_data) {
    put_head(b, 2, 0);
    put_info1(b, "a", 9, T_F32, 0); /* 36 bytes, padded to 64 */
    put_info1(b, "b", 8, T_F32, off);
    put_data(b, 32, n_data);
}
static void b_offset_overlap(bl_buf *b) {
    b_two(b, 32, 96);
}
static void b_offset_same(bl_buf *b) {
    b_two(b, 0, 96);
}
static void b_offset_gap(bl_buf *b) {
    b_two(b, 96, 128);
}
static void b_offset_unpadded(bl_buf *b) {
    b_two(b, 36, 96);
}
static void b_offset_wraps(bl_buf *b) {
    b_two(b, UINT64_MAX - 31, 96);
}
static void b_data_cut(bl_buf *b) {
    b_two(b, 64, 95);
}
static void b_data_none(bl_buf *b) {
    put_head(b, 1, 0);
    put_info1(b, "blk.0.attn_q.weight", 256, T_F32, 0);
}
static void b_data_huge(bl_buf *b) {
    b_dims(b, 1, (uint64_t)1 << 60, 1, T_F32);
}

static const bad_case bad[] = {
    {"no bytes", b_empty, BL_EFORMAT, "file of 0 bytes does not start with 'GGUF'"},
    {"magic in lower case", b_magic, BL_EFORMAT, "file of 24 bytes does not start with 'GGUF'"},
    {"older container", b_magic_ggml, BL_EFORMAT, "file of 24 bytes does not start with 'GGUF'"},
    {"version 0", b_version0, BL_ENOTSUP, "version is 0, allowed are 2 and 3"},
    {"version 1", b_version1, BL_ENOTSUP, "version is 1, allowed are 2 and 3"},
    {"version 4", b_version4, BL_ENOTSUP, "version is 4, allowed are 2 and 3"},
    {"big-endian", b_big_endian, BL_ENOTSUP,
     "version is 0x03000000: a big-endian file, allowed are little-endian ones"},
    {"more keys than bytes", b_many_keys, BL_EFORMAT,
     "key count is 1, the 0 bytes that follow hold at most 0"},
    {"absurd key count", b_absurd_keys, BL_EFORMAT,
     "key count is 18446744073709551615, the 14 bytes that follow hold at most 1"},
    {"more tensors than bytes", b_many_tensors, BL_EFORMAT,
     "tensor count is 2, the 33 bytes that follow hold at most 1"},
    {"absurd tensor count", b_absurd_tensors, BL_EFORMAT,
     "tensor count is 9223372036854775808, the 33 bytes that follow hold at most 1"},
    {"more tensors than bytes after the keys", b_keys_eat_tensors, BL_EFORMAT,
     "tensor count is 1, the 0 bytes that follow hold at most 0"},
    {"65,537 keys", b_key_limit, BL_ELIMIT, "key count is 65537, allowed are 65536"},
    {"200,001 tensors", b_tensor_limit, BL_ELIMIT, "tensor count is 200001, allowed are 200000"},
    {"duplicate key", b_dup_key, BL_EFORMAT, "key 'b' occurs twice, allowed is once"},
    {"empty key", b_empty_key, BL_EFORMAT, "key 0 of 1: key is empty"},
    {"key with NUL", b_key_nul, BL_EFORMAT, "key 0 of 1: key holds the control byte 0x00 at 1"},
    {"key not UTF-8", b_key_utf8, BL_EFORMAT, "key 0 of 1: key is not UTF-8"},
    {"key with a newline", b_key_newline, BL_EFORMAT, "key 0 of 1: key holds the control byte 0x0a at 1"},
    {"key of 65,536 bytes", b_key_long, BL_ELIMIT, "key 0 of 1: key has 65536 bytes, allowed are 65535"},
    {"key beyond the file", b_key_beyond, BL_EFORMAT,
     "key 0 of 1: key is a string of 7 bytes at 32, file has 38 bytes"},
    {"absurd key length", b_key_length_absurd, BL_EFORMAT,
     "key 0 of 1: key is a string of 18446744073709551615 bytes at 32, file has 38 bytes"},
    {"unknown value type", b_value_type, BL_EFORMAT, "key 'a': value type is 13, allowed are 0 to 12"},
    {"value cut", b_value_cut, BL_EFORMAT, "key 'a': value needs 8 bytes at 37, file has 44 bytes"},
    {"string beyond the file", b_string_beyond, BL_EFORMAT,
     "key 'a': value is a string of 1 bytes at 45, file has 45 bytes"},
    {"absurd string length", b_string_absurd, BL_EFORMAT,
     "key 'a': value is a string of 18446744073709551615 bytes at 45, file has 45 bytes"},
    {"bool of 2", b_bool, BL_EFORMAT, "key 'a': bool 0 is 2, allowed are 0 and 1"},
    {"unknown element type", b_array_elem, BL_EFORMAT,
     "key 'a': array element type is 99, allowed are 0 to 12"},
    {"nested array", b_array_nested, BL_EFORMAT,
     "key 'a': array of arrays, allowed are arrays of numbers, bools and strings"},
    {"array beyond the file", b_array_beyond, BL_EFORMAT, "key 'a': array of 3 u32 at 49, file has 60 bytes"},
    {"array size wraps", b_array_wraps, BL_EFORMAT,
     "key 'a': array of 2305843009213693953 u64 at 49, file has 57 bytes"},
    {"bool of 255 in an array", b_array_bool, BL_EFORMAT, "key 'a': bool 1 is 255, allowed are 0 and 1"},
    {"more strings than bytes", b_array_strings_beyond, BL_EFORMAT,
     "key 'a': array of 3 strings at 49, file has 68 bytes"},
    {"second string beyond the file", b_array_strings_second, BL_EFORMAT,
     "key 'a': element is a string of 9 bytes at 65, file has 73 bytes"},
    {"absurd count of strings", b_array_strings_absurd, BL_EFORMAT,
     "key 'a': array of 2305843009213693951 strings at 49, file has 57 bytes"},
    {"alignment 0", b_align_0, BL_EFORMAT, "key 'general.alignment' is 0, allowed are 1 to 4294967295"},
    {"alignment 24", b_align_24, BL_EFORMAT, "key 'general.alignment' is 24, allowed are powers of two"},
    {"alignment 2^32", b_align_huge, BL_EFORMAT,
     "key 'general.alignment' is 4294967296, allowed are 1 to 4294967295"},
    {"alignment negative", b_align_negative, BL_EFORMAT,
     "key 'general.alignment' is -32, allowed are 1 to 4294967295"},
    {"alignment a float", b_align_f32, BL_EFORMAT, "key 'general.alignment' is f32, allowed is an integer"},
    {"alignment an array", b_align_array, BL_EFORMAT,
     "key 'general.alignment' is an array of u32, allowed is an integer"},
    {"split file", b_split, BL_ENOTSUP,
     "key 'split.count' is 3, allowed is 1: the model is split over several files"},
    {"duplicate tensor", b_dup_tensor, BL_EFORMAT, "tensor 'a' occurs twice, allowed is once"},
    {"empty tensor name", b_tensor_empty_name, BL_EFORMAT, "tensor 0 of 1: name is empty"},
    {"tensor name of 64 bytes", b_tensor_name_64, BL_ELIMIT,
     "tensor 0 of 1: name has 64 bytes, allowed are 63"},
    {"tensor name with escape", b_tensor_name_control, BL_EFORMAT,
     "tensor 0 of 1: name holds the control byte 0x1b at 1"},
    {"tensor name not UTF-8", b_tensor_name_utf8, BL_EFORMAT, "tensor 0 of 1: name is not UTF-8"},
    {"tensor name beyond the file", b_tensor_name_beyond, BL_EFORMAT,
     "tensor 0 of 1: name is a string of 1099511627776 bytes at 32, file has 96 bytes"},
    {"no dimensions", b_dims_none, BL_EFORMAT, "tensor 't': has 0 dimensions, allowed are 1 to 4"},
    {"5 dimensions", b_dims_5, BL_EFORMAT, "tensor 't': has 5 dimensions, allowed are 1 to 4"},
    {"absurd dimension count", b_dims_absurd, BL_EFORMAT,
     "tensor 't': has 4294967295 dimensions, allowed are 1 to 4"},
    {"dimension 0", b_dim_0, BL_EFORMAT, "tensor 't': dimension 1 is 0, allowed are 1 and more"},
    {"dimensions overflow to 0", b_dims_overflow, BL_ERANGE,
     "tensor 't': the product of dimensions is beyond 63 bits at dimension 1 (4294967296)"},
    {"dimensions overflow to 8", b_dims_overflow_small, BL_ERANGE,
     "tensor 't': the product of dimensions is beyond 63 bits at dimension 1 (4)"},
    {"dimension of 2^63", b_dims_63, BL_ERANGE,
     "tensor 't': the product of dimensions is beyond 63 bits at dimension 0 (9223372036854775808)"},
    {"row bytes overflow", b_bytes_overflow, BL_ERANGE,
     "tensor 't': row of 4611686018427387904 elements of F32 overflows 64 bits"},
    {"tensor bytes overflow", b_rows_overflow, BL_ERANGE,
     "tensor 't': 2147483648 rows of 8589934592 bytes are beyond 64 bits"},
    {"row no multiple of 32", b_row_block, BL_EFORMAT,
     "tensor 't': row of 33 elements, Q4_0 needs a multiple of 32"},
    {"row no multiple of 256", b_row_block_k, BL_EFORMAT,
     "tensor 't': row of 128 elements, Q4_K needs a multiple of 256"},
    {"removed type", b_type_removed, BL_EFORMAT, "tensor 't': type is 4, which GGUF does not define"},
    {"unknown type", b_type_unknown, BL_EFORMAT, "tensor 't': type is 4711, which GGUF does not define"},
    {"type we do not read", b_type_q2_k, BL_ENOTSUP,
     "tensor 't': type Q2_K is not supported, allowed are F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K "
     "Q6_K MXFP4"},
    {"type we do not read yet", b_type_nvfp4, BL_ENOTSUP,
     "tensor 't': type NVFP4 is not supported, allowed are F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K "
     "Q6_K MXFP4"},
    {"info cut", b_info_cut, BL_EFORMAT, "tensor 'abcdefgh': offset needs 8 bytes at 56, file has 63 bytes"},
    {"first offset not 0", b_offset_first, BL_EFORMAT,
     "tensor 'a': offset is 32, allowed is 0 (right after the one before)"},
    {"overlap", b_offset_overlap, BL_EFORMAT,
     "tensor 'b': offset is 32, allowed is 64 (right after the one before)"},
    {"the same bytes twice", b_offset_same, BL_EFORMAT,
     "tensor 'b': offset is 0, allowed is 64 (right after the one before)"},
    {"gap", b_offset_gap, BL_EFORMAT, "tensor 'b': offset is 96, allowed is 64 (right after the one before)"},
    {"padding left out", b_offset_unpadded, BL_EFORMAT,
     "tensor 'b': offset is 36, allowed is 64 (right after the one before)"},
    {"offset near 2^64", b_offset_wraps, BL_EFORMAT,
     "tensor 'b': offset is 18446744073709551584, allowed is 64 (right after the one before)"},
    {"data cut", b_data_cut, BL_EFORMAT, "tensor 'b': data ends at 192, file has 191 bytes"},
    {"no data", b_data_none, BL_EFORMAT,
     "tensor 'blk.0.attn_q.weight': data ends at 1120, file has 75 bytes"},
    {"data beyond any file", b_data_huge, BL_EFORMAT,
     "tensor 't': data ends at 4611686018427387968, file has 128 bytes"},
};

/* A copy of exactly the bytes, so that a read past the end is seen; caller frees. */
static uint8_t *exact(const bl_buf *b, size_t n) {
    uint8_t *p = bl_alloc(n);
    assert_non_null(p);
    if (n > 0) {
        memcpy(p, b->data, n);
    }
    return p;
}

static void test_rules(void **state) {
    (void)state;
    size_t n_bad = 0;
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_buf b;
        bad[i].build(&b);
        uint8_t *p = exact(&b, b.len);
        bl_err err = {0};
        bl_gguf *g = NULL;
        bl_code rc = bl_gguf_parse(p, b.len, "x.gguf", &g, &err);
        char full[sizeof err.msg];
        snprintf(full, sizeof full, "gguf 'x.gguf': %s", bad[i].msg);
        if (rc != bad[i].code || err.code != rc || strcmp(err.msg, full) != 0 || g ||
            bl_gguf_parse(p, b.len, "x.gguf", &g, NULL) != bad[i].code) {
            print_error("case '%s': %s: %s\n", bad[i].name, bl_code_name(rc), err.msg);
            n_bad++;
        }
        bl_free(p);
        bl_buf_done(&b);
    }
    assert_int_equal(n_bad, 0);
}

/* Limits that need many bytes: one string, and strings over all arrays. */
static void test_string_limits(void **state) {
    (void)state;
    uint64_t size = 45 + BL_GGUF_MAX_STRING_BYTES + 1;
    bl_buf b;
    bl_err err = {0};
    bl_gguf *g = NULL;
    put_head(&b, 0, 1);
    put_kv(&b, "a", STRING, BL_GGUF_MAX_STRING_BYTES + 1, 8);
    uint8_t *p = bl_alloc(size);
    memcpy(p, b.data, b.len);
    assert_int_equal(bl_gguf_parse(p, size, "x", &g, &err), BL_ELIMIT);
    assert_string_equal(err.msg,
                        "gguf 'x': key 'a': value is a string of 67108865 bytes, allowed are 67108864");
    bl_free(p);
    bl_buf_done(&b);

    size = 49 + (BL_GGUF_MAX_ARRAY_STRINGS + 1) * 8;
    put_head(&b, 0, 1);
    put_array(&b, "a", STRING, BL_GGUF_MAX_ARRAY_STRINGS + 1);
    p = bl_alloc(size); /* zeros: empty strings */
    memcpy(p, b.data, b.len);
    assert_int_equal(bl_gguf_parse(p, size, "x", &g, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "gguf 'x': key 'a': arrays hold 16777217 strings, allowed are 16777216");
    bl_free(p);
    bl_buf_done(&b);
}

/* ---- a good file ---- */

static void build_good(bl_buf *b) {
    static const uint64_t dims[4] = {256, 3, 2, 1};
    put_head(b, 3, 15);
    put_kv(b, "general.alignment", U16, 64, 2);
    put_kv_str(b, "general.architecture", "llama");
    put_kv(b, "u8", U8, 200, 1);
    put_kv(b, "i8", I8, 0x80, 1);
    put_kv(b, "i16", I16, 1000, 2);
    put_kv(b, "i64", I64, UINT64_MAX, 8);
    put_kv(b, "u64", U64, UINT64_MAX, 8);
    put_kv(b, "f32", F32, 0x3fc00000, 4);
    put_kv(b, "f64", F64, 0x4004000000000000, 8);
    put_kv(b, "bool", BOOL, 1, 1);
    put_kv(b, "nan", F32, 0x7fc00000, 4);
    put_array(b, "strs", STRING, 3);
    put_str(b, "a");
    put_str(b, "");
    put_bytes(b, "\xff\0z", 3);
    put_array(b, "i32s", I32, 3);
    put(b, 7, 4);
    put(b, 0xffffffff, 4);
    put(b, 0x80000000, 4);
    put_array(b, "f32s", F32, 2);
    put(b, 0xff800000, 4);
    put(b, 0x3f000000, 4);
    put_array(b, "bools", BOOL, 2);
    put(b, 0x0100, 2);
    put_info(b, "q", 4, dims, T_Q4_K, 0); /* 6 rows of 144 = 864, padded to 896 */
    put_info(b, "e", 1, (const uint64_t[]){5}, T_F32, 896);
    put_info(b, "d", 2, (const uint64_t[]){64, 2}, T_Q4_0, 960);
    put_data(b, 64, 960 + 72);
}

static void test_good_tensors(void **state) {
    (void)state;
    bl_buf b;
    build_good(&b);
    uint8_t *p = exact(&b, b.len);
    bl_gguf *g = NULL;
    assert_int_equal(bl_gguf_parse(p, b.len, "x", &g, NULL), BL_OK);
    assert_int_equal(bl_gguf_count(g), 3);
    const uint8_t *data = p + b.len - (960 + 72);
    const bl_tensor_view *q = bl_gguf_at(g, 0), *e = bl_gguf_at(g, 1), *d = bl_gguf_find(g, "d");
    assert_string_equal(q->name, "q");
    assert_int_equal(q->dtype, BL_DTYPE_Q4_K);
    assert_int_equal(q->n_dims, 4);
    assert_true(q->dims[0] == 1 && q->dims[1] == 2 && q->dims[2] == 3 && q->dims[3] == 256);
    assert_int_equal(q->size_bytes, 864);
    assert_ptr_equal(q->data, data);
    assert_ptr_equal(e->data, data + 896);
    assert_int_equal(e->size_bytes, 20);
    assert_ptr_equal(d, bl_gguf_at(g, 2));
    assert_true(d->dims[0] == 2 && d->dims[1] == 64 && d->size_bytes == 72);
    assert_ptr_equal(d->data, data + 960);
    assert_null(bl_gguf_find(g, ""));
    assert_null(bl_gguf_find(g, "qq"));
    bl_gguf_free(g);
    bl_free(p);
    bl_buf_done(&b);
}

static bl_gguf *open_good(bl_buf *b, uint8_t **ret_p) {
    bl_gguf *g = NULL;
    build_good(b);
    *ret_p = exact(b, b->len);
    assert_int_equal(bl_gguf_parse(*ret_p, b->len, "x", &g, NULL), BL_OK);
    return g;
}

static void close_good(bl_gguf *g, bl_buf *b, uint8_t *p) {
    bl_gguf_free(g);
    bl_free(p);
    bl_buf_done(b);
}

static void test_scalars(void **state) {
    (void)state;
    bl_buf b;
    uint8_t *p;
    bl_gguf *g = open_good(&b, &p);
    bl_err err = {0};
    uint64_t u = 5;
    bool found = true;
    assert_int_equal(bl_gguf_get_u64(g, "absent", 0, 9, &u, &found, &err), BL_OK);
    assert_true(u == 5 && !found);
    assert_int_equal(bl_gguf_get_u64(g, "u8", 0, 255, &u, &found, &err), BL_OK);
    assert_true(u == 200 && found);
    assert_int_equal(bl_gguf_get_u64(g, "i16", 0, 1000, &u, NULL, &err), BL_OK);
    assert_int_equal(u, 1000);
    assert_int_equal(bl_gguf_get_u64(g, "u64", 0, UINT64_MAX, &u, NULL, &err), BL_OK);
    assert_true(u == UINT64_MAX);
    u = 5;
    assert_int_equal(bl_gguf_get_u64(g, "i16", 0, 999, &u, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i16' is 1000, allowed are 0 to 999");
    assert_int_equal(bl_gguf_get_u64(g, "i8", 0, 999, &u, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i8' is -128, allowed are 0 to 999");
    assert_int_equal(bl_gguf_get_u64(g, "i64", 0, UINT64_MAX, &u, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i64' is -1, allowed are 0 to 18446744073709551615");
    assert_int_equal(bl_gguf_get_u64(g, "bool", 0, 9, &u, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'bool' is bool, allowed is an integer");
    assert_int_equal(bl_gguf_get_u64(g, "i32s", 0, 9, &u, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i32s' is an array of i32, allowed is an integer");
    assert_int_equal(u, 5);
    double d = 0;
    assert_int_equal(bl_gguf_get_f64(g, "f32", &d, &found, &err), BL_OK);
    assert_true(d == 1.5);
    assert_int_equal(bl_gguf_get_f64(g, "f64", &d, NULL, &err), BL_OK);
    assert_true(d == 2.5);
    assert_int_equal(bl_gguf_get_f64(g, "i8", &d, NULL, &err), BL_OK);
    assert_true(d == -128);
    assert_int_equal(bl_gguf_get_f64(g, "nan", &d, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'nan' is NaN, allowed are finite numbers");
    assert_int_equal(bl_gguf_get_f64(g, "general.architecture", &d, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'general.architecture' is string, allowed is a number");
    bool flag = false;
    assert_int_equal(bl_gguf_get_bool(g, "bool", &flag, &found, &err), BL_OK);
    assert_true(flag && found);
    assert_int_equal(bl_gguf_get_bool(g, "u8", &flag, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'u8' is an integer other than 0 and 1, allowed is a bool");
    const char *s = NULL;
    size_t n = 0;
    assert_int_equal(bl_gguf_get_str(g, "general.architecture", &s, &n, &found, &err), BL_OK);
    assert_true(n == 5 && memcmp(s, "llama", 5) == 0);
    assert_int_equal(bl_gguf_get_str(g, "u8", &s, &n, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'u8' is u8, allowed is a string");
    close_good(g, &b, p);
}

static void test_arrays(void **state) {
    (void)state;
    bl_buf b;
    uint8_t *p;
    bl_gguf *g = open_good(&b, &p);
    bl_err err = {0};
    bl_gguf_strings strs = {0};
    bool found = false;
    assert_int_equal(bl_gguf_get_strings(g, "strs", &strs, &found, &err), BL_OK);
    assert_true(found && strs.n == 3 && strs.len[0] == 1 && strs.len[1] == 0 && strs.len[2] == 3);
    assert_memory_equal(strs.s[2], "\xff\0z", 3);
    assert_int_equal(bl_gguf_get_strings(g, "i32s", &strs, NULL, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i32s' is an array of i32, allowed is an array of string");
    size_t n = 9;
    assert_int_equal(bl_gguf_array_len(g, "i32s", &n, &err), BL_OK);
    assert_int_equal(n, 3);
    assert_int_equal(bl_gguf_array_len(g, "absent", &n, &err), BL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(bl_gguf_array_len(g, "u8", &n, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'u8' is u8, allowed is an array");
    assert_true(bl_gguf_is_array(g, "i32s") && !bl_gguf_is_array(g, "u8") && !bl_gguf_is_array(g, "absent"));
    int32_t i[3];
    float f[3];
    assert_int_equal(bl_gguf_array_i32(g, "i32s", i, 3, &err), BL_OK);
    assert_true(i[0] == 7 && i[1] == -1 && i[2] == INT32_MIN);
    assert_int_equal(bl_gguf_array_f32(g, "i32s", f, 3, &err), BL_OK);
    assert_true(f[0] == 7 && f[1] == -1);
    assert_int_equal(bl_gguf_array_f32(g, "f32s", f, 2, &err), BL_OK);
    assert_true(f[0] == -INFINITY && f[1] == 0.5f);
    assert_int_equal(bl_gguf_array_i32(g, "bools", i, 2, &err), BL_OK);
    assert_true(i[0] == 0 && i[1] == 1);
    assert_int_equal(bl_gguf_array_i32(g, "i32s", i, 2, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'i32s' has 3 elements, allowed are 2");
    assert_int_equal(bl_gguf_array_i32(g, "f32s", i, 2, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'f32s' is an array of f32, allowed is an array of integers or bools");
    assert_int_equal(bl_gguf_array_f32(g, "absent", f, 2, &err), BL_ENOTFOUND);
    assert_string_equal(err.msg, "key 'absent' is absent, allowed is an array of numbers");
    assert_int_equal(bl_gguf_array_f32(g, "strs", f, 3, &err), BL_EFORMAT);
    assert_int_equal(bl_gguf_key_count(g), 15);
    const char *key;
    bl_gguf_key_at(g, 1, &key, &n);
    assert_true(n == 20 && memcmp(key, "general.architecture", n) == 0);
    close_good(g, &b, p);
}

static void test_array_values_that_do_not_fit(void **state) {
    (void)state;
    bl_buf b;
    bl_err err = {0};
    bl_gguf *g = NULL;
    int32_t i[1];
    float f[2];
    put_head(&b, 0, 3);
    put_array(&b, "u", U32, 1);
    put(&b, 0x80000000, 4);
    put_array(&b, "i", I64, 1);
    put(&b, (uint64_t)INT32_MIN - 1, 8);
    put_array(&b, "f", F32, 2);
    put(&b, 0, 4);
    put(&b, 0x7fc00000, 4);
    assert_int_equal(bl_gguf_parse((const uint8_t *)b.data, b.len, "x", &g, &err), BL_OK);
    assert_int_equal(bl_gguf_array_i32(g, "u", i, 1, &err), BL_ERANGE);
    assert_string_equal(err.msg, "key 'u': element 0 does not fit 32 bits with sign");
    assert_int_equal(bl_gguf_array_i32(g, "i", i, 1, &err), BL_ERANGE);
    assert_int_equal(bl_gguf_array_f32(g, "f", f, 2, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "key 'f': element 1 is NaN, allowed are numbers");
    bl_gguf_free(g);
    bl_buf_done(&b);
}

/* Version 2, no tensors, nothing behind the keys: legal. */
static void test_small_good_files(void **state) {
    (void)state;
    bl_buf b;
    bl_gguf *g = NULL;
    b_version(&b, 2);
    assert_int_equal(bl_gguf_parse((const uint8_t *)b.data, b.len, "x", &g, NULL), BL_OK);
    assert_int_equal(bl_gguf_count(g) + bl_gguf_key_count(g), 0);
    bl_gguf_free(g);
    bl_buf_done(&b);
    put_head(&b, 0, 1);
    put_kv(&b, "split.count", U16, 1, 2);
    assert_int_equal(bl_gguf_parse((const uint8_t *)b.data, b.len, "x", &g, NULL), BL_OK);
    bl_gguf_free(g);
    bl_buf_done(&b);
    put_head(&b, 1, 0); /* a name of 63 bytes */
    put_info1(&b, "012345678901234567890123456789012345678901234567890123456789012", 8, T_F32, 0);
    put_data(&b, 32, 32);
    assert_int_equal(bl_gguf_parse((const uint8_t *)b.data, b.len, "x", &g, NULL), BL_OK);
    assert_int_equal(strlen(bl_gguf_at(g, 0)->name), 63);
    bl_gguf_free(g);
    bl_buf_done(&b);
}

static void test_truncated_at_every_byte(void **state) {
    (void)state;
    bl_buf b;
    build_good(&b);
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *p = exact(&b, n);
        bl_err err = {0};
        bl_gguf *g = NULL;
        assert_int_equal(bl_gguf_parse(p, n, "x", &g, &err), BL_EFORMAT);
        assert_null(g);
        assert_non_null(strstr(err.msg, "gguf 'x': "));
        bl_free(p);
    }
    bl_buf_done(&b);
}

/* Any single changed byte of the metadata: refused with a message, or accepted with views that lie inside. */
static void test_every_byte_changed(void **state) {
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x08, 0x09, 0x20, 0x7f, 0x80, 0xff};
    bl_buf b;
    build_good(&b);
    size_t n_meta = b.len - 960 - 72, n_ok = 0;
    uint8_t *p = exact(&b, b.len);
    for (size_t i = 0; i < n_meta; i++) {
        uint8_t was = p[i];
        for (size_t v = 0; v < BL_COUNTOF(values); v++) {
            p[i] = values[v];
            bl_gguf *g = NULL;
            bl_err err = {0};
            if (bl_gguf_parse(p, b.len, "x", &g, &err) != BL_OK) {
                assert_non_null(strstr(err.msg, "gguf 'x': "));
                continue;
            }
            n_ok++;
            for (size_t k = 0; k < bl_gguf_count(g); k++) {
                const bl_tensor_view *t = bl_gguf_at(g, k);
                assert_true(t->data >= p + 24 && t->data + t->size_bytes <= p + b.len);
            }
            bl_gguf_free(g);
        }
        p[i] = was;
    }
    assert_true(n_ok > 0);
    bl_free(p);
    bl_buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_string_limits),
        cmocka_unit_test(test_good_tensors),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_array_values_that_do_not_fit),
        cmocka_unit_test(test_small_good_files),
        cmocka_unit_test(test_truncated_at_every_byte),
        cmocka_unit_test(test_every_byte_changed),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
