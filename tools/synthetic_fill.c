#include "synthetic_fill.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"

static double uniform(syn_filler *f) { /* -1 to 1 */
    return (double)(int64_t)bl_rng_next(&f->state) * 0x1p-63;
}

static void random_words(syn_filler *f, size_t n) {
    uint64_t state = f->state, *words = f->chunk;
    for (size_t i = 0; i < n; i++) {
        words[i] = bl_rng_next(&state);
    }
    f->state = state;
}

/* ---- plain ---- */

static double plain_value(syn_filler *f, syn_fill fill) {
    double u = uniform(f);
    switch (fill) {
    case SYN_NEAR_ONE:
        return 1 + 0.1 * u;
    case SYN_NEAR_ZERO:
        return 0.1 * u;
    case SYN_CONV:
        return 0.5 * sqrt(3) * u;
    case SYN_A_LOG:
        return log(8.5 + 7.5 * u);
    case SYN_DT_BIAS:
        return log(expm1(exp(log(0.01) + log(10) * u)));
    case SYN_LAYER:
        return 0.975 + 0.025 * u;
    default:
        return u;
    }
}

static bl_code put_small(syn_filler *f, const syn_tensor *t, uint32_t id, uint64_t n, bl_err *err) {
    for (uint64_t i = 0; i < n; i++) {
        float v = (float)plain_value(f, t->fill);
        uint16_t h = bl_f32_to_bf16(v);
        bool wide = t->fill == SYN_A_LOG;
        BL_TRY(bl_safetensors_writer_put(f->w, id, wide ? (const void *)&v : &h, wide ? 4 : 2, err));
    }
    return BL_OK;
}

bl_code syn_put_plain(syn_filler *f, const syn_tensor *t, uint32_t id, uint64_t n, bl_err *err) {
    uint16_t *out = f->chunk;
    bool is_matrix = t->fill == SYN_MATRIX || t->fill == SYN_ROUTER;
    if (!is_matrix && n < 4096) {
        return put_small(f, t, id, n, err);
    }
    /* 65,536 equally likely values, one for each 16 bits */
    double width = sqrt(3.0 / (double)t->fan_in);
    for (uint32_t i = 0; i < 65536; i++) {
        double u = is_matrix ? width * ((i + 0.5) / 32768 - 1) : plain_value(f, t->fill);
        f->table[i] = bl_f32_to_bf16((float)u);
    }
    while (n > 0) {
        size_t part = (size_t)BL_MIN(n, SYN_CHUNK_BYTES / 2);
        for (size_t i = 0; i < part; i += 4) {
            uint64_t r = bl_rng_next(&f->state);
            for (size_t k = 0; k < 4; k++) {
                out[i + k] = f->table[r >> 16 * k & 0xffff];
            }
        }
        BL_TRY(bl_safetensors_writer_put(f->w, id, out, part * 2, err));
        n -= part;
    }
    return BL_OK;
}

/* ---- quantised ---- */

static bl_code put_codes(syn_filler *f, const bl_mlx_quantize_format *q, uint32_t id, uint64_t n_bytes,
                         bl_err *err) {
    uint64_t *all = f->chunk;
    while (n_bytes > 0) {
        size_t part = (size_t)BL_MIN(n_bytes, SYN_CHUNK_BYTES), words = (part + 7) / 8;
        random_words(f, words);
        for (size_t i = 0; q->mode == BL_MLX_QUANTIZE_MXFP8 && i < words; i++) {
            /* E4M3 of 0.25 to 3.75 with either sign: never NaN, rms 1.69 */
            uint64_t r = all[i];
            all[i] = (r & 0x8080808080808080u) | ((r & 0x1f1f1f1f1f1f1f1fu) + 0x2828282828282828u);
        }
        BL_TRY(bl_safetensors_writer_put(f->w, id, f->chunk, part, err));
        n_bytes -= part;
    }
    return BL_OK;
}

/* n entries of two tables that go together (biases NULL: one), drawn by a byte each. */
static bl_code put_drawn(syn_filler *f, const uint16_t *scales, const uint16_t *biases, const uint32_t ids[3],
                         uint64_t n, bl_err *err) {
    enum { PART = 32768 };
    uint16_t a[PART], b[PART];
    while (n > 0) {
        size_t part = (size_t)BL_MIN(n, PART);
        random_words(f, (part + 7) / 8);
        const uint8_t *r = f->chunk;
        for (size_t i = 0; i < part; i++) {
            a[i] = scales[r[i]];
            b[i] = biases[r[i]];
        }
        BL_TRY(bl_safetensors_writer_put(f->w, ids[1], a, part * 2, err));
        BL_TRY(bl_safetensors_writer_put(f->w, ids[2], b, part * 2, err));
        n -= part;
    }
    return BL_OK;
}

/* Codes are uniform over 0..2^b-1: scale s and bias -s(2^b-1)/2 give mean 0 and std s*sqrt((4^b-1)/12). Both
 * signs of the scale occur, as in real files. */
static bl_code put_affine_scales(syn_filler *f, const bl_mlx_quantize_format *q, double std,
                                 const uint32_t ids[3], uint64_t n_groups, bl_err *err) {
    uint16_t scales[256], biases[256];
    double n_bins = (double)((1u << q->bits) - 1), per_step = sqrt((pow(4, q->bits) - 1) / 12);
    for (uint32_t i = 0; i < 256; i++) {
        double s = std / per_step * (0.75 + 0.5 * (i / 2) / 127) * (i % 2 ? -1 : 1);
        scales[i] = bl_f32_to_bf16((float)s);
        biases[i] = bl_f32_to_bf16((float)(-bl_bf16_to_f32(scales[i]) * n_bins / 2));
    }
    return put_drawn(f, scales, biases, ids, n_groups, err);
}

static uint8_t e4m3_nearest(double v) {
    uint8_t best = 1;
    for (uint8_t c = 1; c < 0x7f; c++) {
        int e = c >> 3, m = c & 7;
        double x = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        int e_best = best >> 3, m_best = best & 7;
        double y = e_best ? ldexp(8 + m_best, e_best - 10) : ldexp(m_best, -9);
        best = fabs(x - v) < fabs(y - v) ? c : best;
    }
    return best;
}

static bl_code put_fp_scales(syn_filler *f, const bl_mlx_quantize_format *q, double std, uint32_t id,
                             uint64_t n_groups, bl_err *err) {
    /* rms of the codes: E2M1 uniform over all 16, E4M3 as above */
    double unit = std / (q->mode == BL_MLX_QUANTIZE_MXFP8 ? 1.689 : 2.926);
    uint8_t middle =
        q->mode == BL_MLX_QUANTIZE_NVFP4 ? e4m3_nearest(unit) : (uint8_t)(127 + lrint(log2(unit)));
    uint8_t *out = f->chunk;
    while (n_groups > 0) {
        size_t part = (size_t)BL_MIN(n_groups, SYN_CHUNK_BYTES);
        random_words(f, (part + 7) / 8);
        for (size_t i = 0; i < part; i++) { /* one in four a step above or below */
            uint8_t r = out[i] & 7;
            out[i] = (uint8_t)(middle + (r == 0) - (r == 1 && middle > 1));
        }
        BL_TRY(bl_safetensors_writer_put(f->w, id, out, part, err));
        n_groups -= part;
    }
    return BL_OK;
}

bl_code syn_put_quantized(syn_filler *f, const bl_mlx_quantize_format *q, const syn_tensor *t,
                          const uint32_t ids[3], uint64_t n, bl_err *err) {
    double std = 1 / sqrt((double)t->fan_in);
    BL_TRY(put_codes(f, q, ids[0], bl_mlx_quantize_weight_bytes(q, n), err));
    if (q->mode == BL_MLX_QUANTIZE_AFFINE) {
        return put_affine_scales(f, q, std, ids, n / q->group, err);
    }
    return put_fp_scales(f, q, std, ids[1], n / q->group, err);
}
