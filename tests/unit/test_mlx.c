/* tensor/mlx: the bit streams of spec models.md §8.1, every mode against MLX's own values
 * (tests/fixtures/mlx_quant.safetensors), and what is refused. */
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/safetensors.h"
#include "tensor/mlx.h"

static void test_codes(void **state) {
    (void)state;
    static const struct {
        bl_dtype t;
        uint8_t bytes[5];
        uint8_t n, q[8];
    } cases[] = {
        {BL_DTYPE_AFFINE2, {0xe4}, 4, {0, 1, 2, 3}},
        {BL_DTYPE_AFFINE3, {0x88, 0xc6, 0xfa}, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
        {BL_DTYPE_AFFINE4, {0x10, 0x32, 0x54, 0x76}, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
        {BL_DTYPE_AFFINE5, {0x20, 0x88, 0xc1, 0xbb, 0xff}, 8, {0, 1, 2, 3, 28, 29, 30, 31}},
        {BL_DTYPE_AFFINE6, {0x81, 0xe0, 0xff}, 4, {1, 2, 62, 63}},
        {BL_DTYPE_AFFINE8, {0, 255, 7}, 3, {0, 255, 7}},
        {BL_DTYPE_MXFP4, {0x10, 0xfe}, 4, {0, 1, 14, 15}},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        uint8_t two[64] = {0}, q[32];
        uint32_t half = bl_dtype_get(cases[i].t)->block_bytes;
        memcpy(two + half, cases[i].bytes, sizeof cases[i].bytes);
        bl_mlx_codes(cases[i].t, two, 32, q);
        assert_memory_equal(q, cases[i].q, cases[i].n);
        bl_mlx_codes(cases[i].t, two, 0, q);
        assert_int_equal(q[0], 0);
    }
}

static const bl_tensor_view *tensor(const bl_safetensors *st, const char *key, const char *part) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", key, part);
    const bl_tensor_view *t = bl_safetensors_find(st, name);
    if (!t) {
        fail_msg("the fixture has no '%s'", name);
    }
    return t;
}

/* Values must be equal but for `rel` of the larger one, 0: in every bit but the sign of zero. */
static void compare(const bl_safetensors *st, const char *key, bl_mlx_row r, double rel) {
    const bl_tensor_view *w = tensor(st, key, "weight"), *s = tensor(st, key, "scales"),
                         *v = tensor(st, key, "values");
    uint64_t rows = v->dims[0], k = v->dims[1], row_bytes = 0;
    float *got = bl_alloc_array(k, sizeof *got);
    assert_int_equal(bl_dtype_row_bytes(r.dtype, k, &row_bytes, NULL), BL_OK);
    assert_int_equal(row_bytes, 4 * w->dims[1]);
    assert_int_equal(s->dims[1] * r.group, k);
    r.scale_dtype = s->dtype;
    const bl_tensor_view *b = bl_dtype_is_affine(r.dtype) ? tensor(st, key, "biases") : NULL;
    uint64_t scale_bytes = s->dims[1] * bl_dtype_get(s->dtype)->block_bytes;
    for (uint64_t row = 0; row < rows; row++) {
        r.packed = (const uint8_t *)w->data + row * row_bytes;
        r.scales = (const uint8_t *)s->data + row * scale_bytes;
        r.biases = b ? (const uint8_t *)b->data + row * scale_bytes : NULL;
        bl_err err;
        if (bl_mlx_check_layout(&r, k, &err) != BL_OK || bl_mlx_check_finite(&r, k, &err) != BL_OK) {
            fail_msg("%s: %s", key, err.msg);
        }
        bl_mlx_dequant(&r, 0, got, k);
        for (uint64_t i = 0; i < k; i++) {
            float want;
            memcpy(&want, (const uint8_t *)v->data + 4 * (row * k + i), 4);
            if (fabs((double)got[i] - (double)want) > rel * fabs((double)want)) {
                fail_msg("%s: value %llu of row %llu is %a, MLX has %a", key, (unsigned long long)i,
                         (unsigned long long)row, (double)got[i], (double)want);
            }
        }
        float part[64]; /* from the middle of a group on */
        bl_mlx_dequant(&r, 96, part, 64);
        assert_memory_equal(part, got + 96, sizeof part);
    }
    bl_free(got);
}

static void test_dequant_equals_mlx(void **state) {
    (void)state;
    static const char *dts[] = {"bf16", "f16", "f32"};
    static const struct {
        bl_dtype t;
        uint32_t bits;
    } affine[] = {{BL_DTYPE_AFFINE2, 2}, {BL_DTYPE_AFFINE3, 3}, {BL_DTYPE_AFFINE4, 4},
                  {BL_DTYPE_AFFINE5, 5}, {BL_DTYPE_AFFINE6, 6}, {BL_DTYPE_AFFINE8, 8}};
    bl_safetensors *st;
    bl_err err;
    char key[64];
    if (bl_safetensors_open(BL_SOURCE_DIR "/tests/fixtures/mlx_quant.safetensors", false, &st, &err) !=
        BL_OK) {
        fail_msg("%s", err.msg);
    }
    for (size_t d = 0; d < BL_COUNTOF(dts); d++) {
        for (size_t i = 0; i < BL_COUNTOF(affine); i++) {
            for (uint32_t group = 32; group <= 128; group *= 2) {
                snprintf(key, sizeof key, "affine.b%u.g%u.%s", affine[i].bits, group, dts[d]);
                compare(st, key, (bl_mlx_row){.dtype = affine[i].t, .group = group}, 0.0);
            }
        }
        snprintf(key, sizeof key, "mxfp4.%s", dts[d]);
        compare(st, key, (bl_mlx_row){.dtype = BL_DTYPE_MXFP4, .group = 32}, 0.0);
        snprintf(key, sizeof key, "mxfp8.%s", dts[d]);
        compare(st, key, (bl_mlx_row){.dtype = BL_DTYPE_MXFP8, .group = 32}, 0.0);
        snprintf(key, sizeof key, "nvfp4.%s", dts[d]);
        compare(st, key, (bl_mlx_row){.dtype = BL_DTYPE_NVFP4, .group = 16}, 0.0);
    }
    /* MLX divides the global scale by the largest value of codes and scales */
    float top;
    memcpy(&top, tensor(st, "nvfp4.global.f32", "global_scale")->data, 4);
    compare(st, "nvfp4.global.f32",
            (bl_mlx_row){.dtype = BL_DTYPE_NVFP4, .group = 16, .global_scale = top / (448.0f * 6.0f)},
            0x1p-23);
    bl_safetensors_free(st);
}

static void test_layouts(void **state) {
    (void)state;
    static const uint8_t some[4];
    static const struct {
        const char *text; /* NULL: accepted */
        bl_mlx_row r;
        uint64_t k;
    } cases[] = {
        {NULL, {BL_DTYPE_AFFINE4, BL_DTYPE_BF16, 64, 0, some, some, some}, 704},
        {NULL, {BL_DTYPE_AFFINE3, BL_DTYPE_F32, 32, 0, some, some, some}, 32},
        {NULL, {BL_DTYPE_AFFINE8, BL_DTYPE_F16, 128, 0, some, some, some}, 2816},
        {NULL, {BL_DTYPE_MXFP4, BL_DTYPE_U8, 32, 0, some, some, NULL}, 2880},
        {NULL, {BL_DTYPE_MXFP8, BL_DTYPE_F8_E8M0, 32, 0, some, some, NULL}, 32},
        {NULL, {BL_DTYPE_NVFP4, BL_DTYPE_F8_E4M3, 16, 0.5f, some, some, NULL}, 32},
        {"groups of 48, allowed are 32, 64", {BL_DTYPE_AFFINE4, BL_DTYPE_BF16, 48, 0, some, some, some}, 96},
        {"groups of 32, allowed are 16", {BL_DTYPE_NVFP4, BL_DTYPE_U8, 32, 0, some, some, NULL}, 96},
        {"groups of 0, allowed are 32", {BL_DTYPE_MXFP4, BL_DTYPE_U8, 0, 0, some, some, NULL}, 96},
        {"rows of 96, must be a multiple of 64",
         {BL_DTYPE_AFFINE4, BL_DTYPE_BF16, 64, 0, some, some, some},
         96},
        {"rows of 48, must be a multiple of 32", {BL_DTYPE_NVFP4, BL_DTYPE_U8, 16, 0, some, some, NULL}, 48},
        {"rows of 0", {BL_DTYPE_NVFP4, BL_DTYPE_U8, 16, 0, some, some, NULL}, 0},
        {"with scales of U8", {BL_DTYPE_AFFINE4, BL_DTYPE_U8, 64, 0, some, some, some}, 64},
        {"with scales of F8_E4M3", {BL_DTYPE_MXFP4, BL_DTYPE_F8_E4M3, 32, 0, some, some, NULL}, 64},
        {"without biases", {BL_DTYPE_AFFINE4, BL_DTYPE_BF16, 64, 0, some, some, NULL}, 64},
        {"needs scales only", {BL_DTYPE_MXFP8, BL_DTYPE_U8, 32, 0, some, some, some}, 64},
        {"without scales", {BL_DTYPE_MXFP8, BL_DTYPE_U8, 32, 0, some, NULL, NULL}, 64},
        {"allowed is none", {BL_DTYPE_MXFP4, BL_DTYPE_U8, 32, 2.0f, some, some, NULL}, 64},
        {"a finite number", {BL_DTYPE_NVFP4, BL_DTYPE_U8, 16, INFINITY, some, some, NULL}, 64},
        {"is not one of MLX", {BL_DTYPE_Q4_0, BL_DTYPE_BF16, 32, 0, some, some, NULL}, 64},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_err err = {0};
        bl_code c = bl_mlx_check_layout(&cases[i].r, cases[i].k, &err);
        assert_int_equal(c, cases[i].text ? BL_EINVAL : BL_OK);
        if (cases[i].text && !strstr(err.msg, cases[i].text)) {
            fail_msg("'%s' is not in '%s'", cases[i].text, err.msg);
        }
    }
}

static void refused(const bl_mlx_row *r, const char *text) {
    bl_err err = {0};
    assert_int_equal(bl_mlx_check_finite(r, 128, &err), BL_EFORMAT);
    if (!strstr(err.msg, text)) {
        fail_msg("'%s' is not in '%s'", text, err.msg);
    }
    assert_int_equal(bl_mlx_check_finite(r, 64, &err), BL_OK);
}

static void test_check_finite(void **state) {
    (void)state;
    uint8_t packed[128] = {0};
    uint16_t s[2] = {0x3f80, 0x3f80}, b[2] = {0, 0};
    bl_mlx_row r = {BL_DTYPE_AFFINE8, BL_DTYPE_BF16, 64, 0, packed, s, b};
    assert_int_equal(bl_mlx_check_finite(&r, 128, NULL), BL_OK);
    s[1] = 0x7fc0;
    refused(&r, "scale is NaN (AFFINE8, group at element 64)");
    s[1] = 0xff80;
    refused(&r, "scale is infinite");
    s[1] = 0x7f7f; /* finite, but 255 times it is not */
    refused(&r, "scale is too large");
    s[1] = 0xbf80;
    b[1] = 0x7f81;
    refused(&r, "bias is NaN");
    b[1] = 0x7f80;
    refused(&r, "bias is infinite");
    r.scale_dtype = BL_DTYPE_F16;
    s[0] = s[1] = 0x7bff;
    b[0] = 0;
    b[1] = 0x7c00;
    refused(&r, "bias is infinite");

    uint8_t e[4] = {252, 0, 127, 253};
    bl_mlx_row f = {BL_DTYPE_MXFP4, BL_DTYPE_U8, 32, 0, packed, e, NULL};
    refused(&f, "scale is too large (MXFP4, group at element 96)");
    e[3] = 255;
    refused(&f, "scale is NaN (MXFP4, group at element 96)");
    e[0] = 246;
    e[3] = 246;
    f.dtype = BL_DTYPE_MXFP8;
    assert_int_equal(bl_mlx_check_finite(&f, 128, NULL), BL_OK);
    packed[127] = 0xff;
    refused(&f, "element 127 (MXFP8) is NaN");
    packed[127] = 0;
    e[3] = 247;
    refused(&f, "scale is too large");
    uint8_t n[8] = {0x7e, 0xfe, 0, 1, 2, 3, 0xff, 3};
    bl_mlx_row v = {BL_DTYPE_NVFP4, BL_DTYPE_U8, 16, 0, packed, n, NULL};
    refused(&v, "scale is NaN (NVFP4, group at element 96)");
}

/* The ends of the scales' range: denormals are exact. */
static void test_small_scales(void **state) {
    (void)state;
    uint8_t packed[32] = {0x91, 0x7f}, e = 0;
    float y[32];
    bl_mlx_row f = {BL_DTYPE_MXFP4, BL_DTYPE_U8, 32, 0, packed, &e, NULL};
    bl_mlx_dequant(&f, 0, y, 32);
    assert_true(y[0] == 0x1p-128f && y[1] == -0x1p-128f && y[2] == -0x1.8p-125f && y[3] == 0x1.8p-125f);
    f.dtype = BL_DTYPE_MXFP8;
    packed[0] = 0x01;
    bl_mlx_dequant(&f, 0, y, 32);
    assert_true(y[0] == 0x1p-136f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),        cmocka_unit_test(test_dequant_equals_mlx),
        cmocka_unit_test(test_layouts),      cmocka_unit_test(test_check_finite),
        cmocka_unit_test(test_small_scales),
    };
    return cmocka_run_group_tests_name("mlx", tests, NULL, NULL);
}
