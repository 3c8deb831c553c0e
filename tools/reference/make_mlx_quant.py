#!/usr/bin/env python3
"""Writes tests/fixtures/mlx_quant.safetensors: small matrices quantised by MLX in every mode, with MLX's own values.

Needs: pip install "mlx[cpu]" (0.32.4 was used). Seeded: running it again with the same package changes nothing.
    tools/reference/make_mlx_quant.py

source.<dt>                              the matrix, [3, 256], dt = bf16, f16 or f32
affine.b<bits>.g<group>.<dt>.weight      mx.quantize of source.<dt>; .scales and .biases are of that type
affine.….values                          mx.dequantize with scales and biases widened to f32: what our definition is compared with
mxfp4.<dt>, mxfp8.<dt>, nvfp4.<dt>       .weight, .scales (U8), .values (mx.dequantize(dtype=f32))
nvfp4.global.f32                         the same with .global_scale [1], which MLX takes as the matrix's largest magnitude
"""
import pathlib

import mlx.core as mx

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/mlx_quant.safetensors"
DTYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}
ROWS, K = 3, 256


def source() -> mx.array:
    """Normal numbers, and in row 2 by halves of 64: zeros, one value only, all negative, a ramp that hits ties."""
    w = mx.random.normal((ROWS, K), key=mx.random.key(7))
    ramp = mx.arange(64).astype(mx.float32) / 8
    w[2, 0:64] = 0.0
    w[2, 64:128] = 0.375
    w[2, 128:192] = -mx.abs(w[2, 128:192]) - 0.5
    w[2, 192:256] = ramp - 3
    w[1, 0:32] *= 1e-3
    w[1, 32:64] *= 64.0
    return w


def main() -> None:
    mx.set_default_device(mx.cpu)
    out = {}
    for name, dtype in DTYPES.items():
        w = source().astype(dtype)
        out[f"source.{name}"] = w
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                key = f"affine.b{bits}.g{group}.{name}"
                q, s, b = mx.quantize(w, group_size=group, bits=bits)
                out |= {f"{key}.weight": q, f"{key}.scales": s, f"{key}.biases": b}
                out[f"{key}.values"] = mx.dequantize(q, s.astype(mx.float32), b.astype(mx.float32), group_size=group, bits=bits)
        for mode in ("mxfp4", "mxfp8", "nvfp4"):
            q, s = mx.quantize(w, mode=mode)
            key = f"{mode}.{name}"
            out |= {f"{key}.weight": q, f"{key}.scales": s}
            out[f"{key}.values"] = mx.dequantize(q, s, mode=mode, dtype=mx.float32)
    w = source()
    top = mx.max(mx.abs(w)).reshape(1)
    q, s = mx.quantize(w, mode="nvfp4", global_scale=top)
    key = "nvfp4.global.f32"
    out |= {f"{key}.weight": q, f"{key}.scales": s, f"{key}.global_scale": top}
    out[f"{key}.values"] = mx.dequantize(q, s, mode="nvfp4", global_scale=top, dtype=mx.float32)
    mx.save_safetensors(str(OUT), out, metadata={"format": "mlx"})
    print(f"{len(out)} tensors, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
