/* tensor/dtype: sizes, half conversions over all 65,536 codes, finite checks per type. */
#include "cmocka_all.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "tensor/mlx.h"

static void test_row_bytes(void **state) {
    (void)state;
    bl_err err;
    uint64_t n = 0;
    assert_int_equal(bl_dtype_row_bytes(BL_DTYPE_Q4_K, 512, &n, &err), BL_OK);
    assert_int_equal(n, 288);
    assert_int_equal(bl_dtype_row_bytes(BL_DTYPE_F32, 0, &n, &err), BL_OK);
    assert_int_equal(n, 0);
    n = 7;
    assert_int_equal(bl_dtype_row_bytes(BL_DTYPE_Q8_0, 33, &n, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "row of 33 elements, Q8_0 needs a multiple of 32");
    assert_int_equal(bl_dtype_row_bytes(BL_DTYPE_I64, UINT64_MAX / 4, &n, &err), BL_ERANGE);
    assert_int_equal(n, 7);
}

/* Value of a half by its definition, in double. */
static double half_value(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp == 0 ? ldexp(man, -24) : ldexp(1024 + man, exp - 25);
    return h & 0x8000 ? -v : v;
}

static void test_f16_all_codes(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bl_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true((h & 0x3ff) ? isnan(f) : isinf(f) && (signbit(f) != 0) == (h >> 15 == 1));
            continue;
        }
        assert_true((double)f == half_value((uint16_t)h));
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(bl_f32_to_f16(f), h);
    }
}

/* Between two neighbouring halves: below, at and above the middle. */
static void test_f32_to_f16_rounding(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float lo = bl_f16_to_f32((uint16_t)h);
        float hi = h == 0x7bff ? 65536.0f : bl_f16_to_f32((uint16_t)(h + 1));
        float mid = (lo + hi) / 2; /* exact: one more bit */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(bl_f32_to_f16(mid), even);
        assert_int_equal(bl_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(bl_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(bl_f32_to_f16(-mid), even | 0x8000);
    }
    assert_int_equal(bl_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(bl_f32_to_f16(-1e30f), 0xfc00);
    assert_true((bl_f32_to_f16(NAN) & 0x7fff) > 0x7c00);
    assert_true((bl_f32_to_f16(bl_bits_to_f32(0x7f800001u)) & 0x7fff) > 0x7c00);
    assert_int_equal(bl_f32_to_f16(1e-30f), 0);
}

static void test_bf16(void **state) {
    (void)state;
    assert_int_equal(bl_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(bl_f32_to_bf16(bl_bits_to_f32(0x3f808000u)), 0x3f80); /* tie to even */
    assert_int_equal(bl_f32_to_bf16(bl_bits_to_f32(0x3f818000u)), 0x3f82);
    assert_int_equal(bl_f32_to_bf16(bl_bits_to_f32(0x3f808001u)), 0x3f81);
    assert_int_equal(bl_f32_to_bf16(bl_bits_to_f32(0x7f7fffffu)), 0x7f80);
    assert_true(isnan(bl_bf16_to_f32(bl_f32_to_bf16(bl_bits_to_f32(0x7f800001u)))));
}

/* One row per float field of each type: three blocks, the field of the middle one set to the bad value. */
static const struct {
    const char *name;
    bl_dtype type;
    uint32_t off_bytes, width_bytes;
    uint32_t nan, inf; /* inf 0: the type has none */
    const char *part;
} fields[] = {
    {"f32", BL_DTYPE_F32, 0, 4, 0xffc00000u, 0x7f800000u, "element 1 (F32)"},
    {"f16", BL_DTYPE_F16, 0, 2, 0x7c01u, 0xfc00u, "element 1 (F16)"},
    {"bf16", BL_DTYPE_BF16, 0, 2, 0x7fc0u, 0xff80u, "element 1 (BF16)"},
    {"q4_0 scale", BL_DTYPE_Q4_0, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q4_0 block at element 32"},
    {"q4_1 scale", BL_DTYPE_Q4_1, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q4_1 block at element 32"},
    {"q4_1 offset", BL_DTYPE_Q4_1, 2, 2, 0x7e00u, 0x7c00u, "offset of the Q4_1 block at element 32"},
    {"q5_0 scale", BL_DTYPE_Q5_0, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q5_0 block at element 32"},
    {"q5_1 scale", BL_DTYPE_Q5_1, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q5_1 block at element 32"},
    {"q5_1 offset", BL_DTYPE_Q5_1, 2, 2, 0x7e00u, 0x7c00u, "offset of the Q5_1 block at element 32"},
    {"q8_0 scale", BL_DTYPE_Q8_0, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q8_0 block at element 32"},
    {"q4_k scale", BL_DTYPE_Q4_K, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q4_K block at element 256"},
    {"q4_k offset", BL_DTYPE_Q4_K, 2, 2, 0x7e00u, 0x7c00u, "offset of the Q4_K block at element 256"},
    {"q5_k scale", BL_DTYPE_Q5_K, 0, 2, 0x7e00u, 0x7c00u, "scale of the Q5_K block at element 256"},
    {"q5_k offset", BL_DTYPE_Q5_K, 2, 2, 0x7e00u, 0x7c00u, "offset of the Q5_K block at element 256"},
    {"q6_k scale", BL_DTYPE_Q6_K, 208, 2, 0x7e00u, 0x7c00u, "scale of the Q6_K block at element 256"},
    {"f8_e4m3", BL_DTYPE_F8_E4M3, 0, 1, 0xffu, 0, "element 1 (F8_E4M3)"},
    {"f8_e8m0", BL_DTYPE_F8_E8M0, 0, 1, 0xffu, 0, "element 1 (F8_E8M0)"},
    {"gguf_mxfp4", BL_DTYPE_GGUF_MXFP4, 0, 1, 0xffu, 0xfdu, "scale of the GGUF_MXFP4 block at element 32"},
};

static void test_small_floats(void **state) {
    (void)state;
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t c = 0; c < 16; c++) {
        assert_true(0.5f * (float)bl_e2m1_doubled(c) == (c & 8 ? -e2m1[c & 7] : e2m1[c & 7]));
    }
    for (int b = 0; b < 256; b++) {
        int exp = b >> 3 & 15, man = b & 7;
        double v = exp == 0 ? ldexp(man, -9) : ldexp(8 + man, exp - 10);
        assert_true((double)bl_e4m3_to_f32((uint8_t)b) == (b & 0x80 ? -v : v));
        assert_int_equal(signbit(bl_e4m3_to_f32((uint8_t)b)) != 0, b >> 7);
        assert_true((double)bl_e8m0_to_f32((uint8_t)b) == (b == 255 ? (double)INFINITY : ldexp(1, b - 127)));
    }
}

static void test_check_finite(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(fields); i++) {
        const bl_dtype_info *info = bl_dtype_get(fields[i].type);
        uint8_t row[3 * 210];
        uint64_t n = 3u * info->block_elems;
        for (int inf = 0; inf < 2; inf++) {
            bl_err err;
            uint32_t v = inf ? fields[i].inf : fields[i].nan;
            if (v == 0) {
                continue;
            }
            memset(row, 0x3c, sizeof row);
            assert_int_equal(bl_dtype_check_finite(fields[i].type, row, n, &err), BL_OK);
            for (uint32_t b = 0; b < fields[i].width_bytes; b++) {
                row[info->block_bytes + fields[i].off_bytes + b] = (uint8_t)(v >> 8 * b);
            }
            assert_int_equal(bl_dtype_check_finite(fields[i].type, row, n, &err), BL_EFORMAT);
            assert_non_null(strstr(err.msg, fields[i].part));
            assert_non_null(
                strstr(err.msg, inf ? "is infinite, allowed are finite" : "is NaN, allowed are finite"));
            assert_int_equal(bl_dtype_check_finite(fields[i].type, row, info->block_elems, &err), BL_OK);
        }
    }
}

/* Quants are integers: any bits are finite there. */
static void test_check_finite_ignores_quants(void **state) {
    (void)state;
    uint8_t b[144];
    memset(b, 0xff, sizeof b);
    memset(b, 0, 4);
    assert_int_equal(bl_dtype_check_finite(BL_DTYPE_Q4_K, b, 256, NULL), BL_OK);
    memset(b, 0xff, sizeof b);
    assert_int_equal(bl_dtype_check_finite(BL_DTYPE_I32, b, 36, NULL), BL_OK);
}

/* Every type against the values of the gguf Python package (tests/fixtures/dequant), bit for bit, signed
 * zeros included: both evaluate the same f32 operations in the same order. */
static void test_dequant_equals_reference(void **state) {
    (void)state;
    for (int t = BL_DTYPE_F32; t < BL_DTYPE_I8; t++) {
        if (bl_dtype_is_mlx((bl_dtype)t)) {
            continue; /* test_mlx.c */
        }
        const bl_dtype_info *info = bl_dtype_get((bl_dtype)t);
        char path[512], name[20] = "";
        for (size_t i = 0; info->name[i]; i++) {
            name[i] = (char)tolower((unsigned char)info->name[i]);
        }
        snprintf(path, sizeof path, BL_SOURCE_DIR "/tests/fixtures/dequant/%s.bin", name);
        bl_buf b;
        uint32_t n_blocks = 0;
        assert_int_equal(bl_file_read(path, 1 << 20, &b, NULL), BL_OK);
        memcpy(&n_blocks, b.data, 4);
        uint64_t n = (uint64_t)n_blocks * info->block_elems;
        assert_true(n_blocks >= 10);
        assert_int_equal(b.len, 4 + n_blocks * info->block_bytes + 4 * n);
        float *got = bl_alloc_array(n, sizeof *got);
        const char *want = b.data + 4 + n_blocks * info->block_bytes;
        bl_dequant_row((bl_dtype)t, b.data + 4, got, n);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, want + 4 * i, 4);
            if (bl_f32_to_bits(got[i]) != bits) {
                fail_msg("%s: value %llu is %a, the reference has %a", info->name, (unsigned long long)i,
                         (double)got[i], (double)bl_bits_to_f32(bits));
            }
        }
        assert_int_equal(bl_dtype_check_finite((bl_dtype)t, b.data + 4, n, NULL), BL_OK);
        bl_free(got);
        bl_buf_done(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_f16_all_codes),
        cmocka_unit_test(test_f32_to_f16_rounding),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_small_floats),
        cmocka_unit_test(test_check_finite),
        cmocka_unit_test(test_check_finite_ignores_quants),
        cmocka_unit_test(test_dequant_equals_reference),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
