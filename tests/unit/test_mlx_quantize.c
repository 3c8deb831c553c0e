/* tensor/mlx_quantize: the bytes of mlx.core.quantize (fixture), worked examples of the format, limits. */
#include "cmocka_all.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "formats/safetensors.h"
#include "tensor/mlx_quantize.h"

static const char fixture[] = BL_SOURCE_DIR "/tests/fixtures/mlx_encode.safetensors";

static const bl_tensor_view *must_find(const bl_safetensors *st, const char *name) {
    const bl_tensor_view *t = bl_safetensors_find(st, name);
    if (!t) {
        fail_msg("the fixture has no '%s'", name);
    }
    return t;
}

static void check_part(const bl_safetensors *st, const char *base, const char *part, const uint8_t *got,
                       uint64_t got_bytes) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", base, part);
    const bl_tensor_view *want = must_find(st, name);
    assert_int_equal(want->size_bytes, got_bytes);
    for (uint64_t i = 0; i < got_bytes; i++) {
        if (got[i] != want->data[i]) {
            fail_msg("%s: byte %" PRIu64 " is %02x, MLX wrote %02x", name, i, got[i], want->data[i]);
        }
    }
}

static void check_format(const bl_safetensors *st, const char *dtype, const bl_mlx_quantize_format *f) {
    char name[64];
    snprintf(name, sizeof name, "%s.source", dtype);
    const bl_tensor_view *src = must_find(st, name);
    uint64_t n = src->dims[0] * src->dims[1];
    uint64_t n_weight = bl_mlx_quantize_weight_bytes(f, n);
    uint64_t n_scales = n / f->group * bl_mlx_quantize_scale_bytes(f, src->dtype);
    uint8_t *out = bl_alloc((size_t)(n_weight + 2 * n_scales));
    assert_non_null(out);
    bl_mlx_quantize(f, src->dtype, src->data, n, out, out + n_weight, out + n_weight + n_scales);
    snprintf(name, sizeof name, "%s.%s.%" PRIu32 ".%" PRIu32, dtype, bl_mlx_quantize_mode_name(f->mode),
             f->bits, f->group);
    check_part(st, name, "weight", out, n_weight);
    check_part(st, name, "scales", out + n_weight, n_scales);
    if (f->mode == BL_MLX_QUANTIZE_AFFINE) {
        check_part(st, name, "biases", out + n_weight + n_scales, n_scales);
    }
    bl_free(out);
}

static void test_equal_to_mlx(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    bl_safetensors *st = NULL;
    bl_err err;
    assert_int_equal(bl_safetensors_open(fixture, false, &st, &err), BL_OK);
    for (size_t d = 0; d < BL_COUNTOF(dtypes); d++) {
        for (size_t b = 0; b < BL_COUNTOF(bits); b++) {
            for (size_t g = 0; g < BL_COUNTOF(groups); g++) {
                check_format(st, dtypes[d],
                             &(bl_mlx_quantize_format){BL_MLX_QUANTIZE_AFFINE, bits[b], groups[g]});
            }
        }
        check_format(st, dtypes[d], &(bl_mlx_quantize_format){BL_MLX_QUANTIZE_MXFP4, 4, 32});
        check_format(st, dtypes[d], &(bl_mlx_quantize_format){BL_MLX_QUANTIZE_MXFP8, 8, 32});
        check_format(st, dtypes[d], &(bl_mlx_quantize_format){BL_MLX_QUANTIZE_NVFP4, 4, 16});
    }
    bl_safetensors_free(st);
}

/* Spec models.md §16: the element of largest magnitude is exact, and -0.05 is a legal scale. */
static void test_worked_examples(void **state) {
    (void)state;
    const bl_mlx_quantize_format f = {BL_MLX_QUANTIZE_AFFINE, 4, 32};
    float w[32] = {0.5f, -0.25f, 0.1f, 0.3f}, scale, bias;
    uint8_t q[16];
    bl_mlx_quantize(&f, BL_DTYPE_F32, w, 32, q, (uint8_t *)&scale, (uint8_t *)&bias);
    assert_float_equal(scale, -0.05f, 1e-9f);
    assert_float_equal(bias, 0.5f, 0);
    const uint8_t want[] = {0xf0, 0x48, 0xaa};
    assert_memory_equal(q, want, 3);
    w[0] = -0.5f;
    bl_mlx_quantize(&f, BL_DTYPE_F32, w, 32, q, (uint8_t *)&scale, (uint8_t *)&bias);
    assert_float_equal(scale, 0.0555556f, 1e-7f);
    assert_float_equal(bias, -0.5f, 0);
    const uint8_t want_low[] = {0x40, 0xeb, 0x99};
    assert_memory_equal(q, want_low, 3);
}

/* MLX's exponent wraps around here (a scale of 2^107 for 2^-149): ours stops at the smallest scale. */
static void test_tiny_groups_keep_a_tiny_scale(void **state) {
    (void)state;
    const bl_mlx_quantize_format f = {BL_MLX_QUANTIZE_MXFP4, 4, 32};
    float w[32] = {0x1p-140f, -0x1p-141f};
    uint8_t q[16], scale = 77;
    bl_mlx_quantize(&f, BL_DTYPE_F32, w, 32, q, &scale, NULL);
    assert_int_equal(scale, 0);
    assert_int_equal(q[0], 0);
}

static void test_formats_that_exist(void **state) {
    (void)state;
    bl_err err;
    uint32_t n_ok = 0;
    for (uint32_t mode = 0; mode < BL_MLX_QUANTIZE__MAX; mode++) {
        for (uint32_t bits = 0; bits < 70; bits++) {
            for (uint32_t group = 0; group < 300; group++) {
                bl_mlx_quantize_format f = {(bl_mlx_quantize_mode)mode, bits, group};
                n_ok += bl_mlx_quantize_check(&f, &err) == BL_OK;
            }
        }
    }
    assert_int_equal(n_ok, 21);
    bl_mlx_quantize_format bad = {BL_MLX_QUANTIZE_AFFINE, 7, 64};
    assert_int_equal(bl_mlx_quantize_check(&bad, &err), BL_EINVAL);
    assert_string_equal(
        err.msg, "affine with 7 bits in groups of 64, allowed are 2 3 4 5 6 8 bits in groups of 32 64 128");
    bad = (bl_mlx_quantize_format){BL_MLX_QUANTIZE_MXFP8, 8, 64};
    assert_int_equal(bl_mlx_quantize_check(&bad, &err), BL_EINVAL);
    assert_string_equal(err.msg, "mxfp8 with 8 bits in groups of 64, allowed is 8 bits in groups of 32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_mlx),
        cmocka_unit_test(test_worked_examples),
        cmocka_unit_test(test_tiny_groups_keep_a_tiny_scale),
        cmocka_unit_test(test_formats_that_exist),
    };
    return cmocka_run_group_tests_name("mlx_quantize", tests, NULL, NULL);
}
