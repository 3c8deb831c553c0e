#!/usr/bin/env python3
"""Writes tests/fixtures/dequant/<type>.bin: blocks of each stored type and their values by the `gguf` Python package.

File: u32 number of blocks, the blocks, then the f32 values, all little-endian. Blocks: random bits (float fields finite),
then all-ones quants under the largest scale, all zeros, the smallest denormal scale, a negative scale. Seeded: running it
again with the same package changes nothing. Needs: pip install gguf (0.19.0 was used) numpy.
    tools/reference/make_dequant_vectors.py
"""
import pathlib
import struct

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/dequant"
N_RANDOM = 6
# type: offsets of the f16 (bf16, f32) fields in a block
TYPES = {"F32": [0], "F16": [0], "BF16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
         "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [0]}
# largest finite, zero, smallest denormal, a negative number
EDGES = {"F32": [0x7F7FFFFF, 0, 1, 0xC1234567], "BF16": [0x7F7F, 0, 1, 0xC123], "MXFP4": [252, 0, 1, 127]}
EDGES_F16 = [0x7BFF, 0, 1, 0xC123]


def put(block: np.ndarray, off: int, width: int, bits: int) -> None:
    block[off:off + width] = np.frombuffer(struct.pack("<I", bits)[:width], np.uint8)


def blocks_of(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    width = {"F32": 4, "MXFP4": 1}.get(name, 2)
    n_random = N_RANDOM if size > 4 else 64
    out = rng.integers(0, 256, (n_random + 4, size), dtype=np.uint8)
    for i, block in enumerate(out):
        edge = i - n_random
        for off in TYPES[name]:
            if edge >= 0:
                put(block, off, width, EDGES.get(name, EDGES_F16)[edge])
                continue
            if name == "MXFP4":
                block[off] = i * 252 // n_random  # 6 times a larger scale is no f32
                continue
            top = block[off + width - 1]
            if (name in ("F32", "BF16") and top & 0x7F == 0x7F) or (name not in ("F32", "BF16") and top & 0x7C == 0x7C):
                block[off + width - 1] = top & 0xBB  # the exponent is no longer all ones
        if edge in (0, 1) and size > 4:
            fields = [f + k for f in TYPES[name] for k in range(width)]
            rest = [k for k in range(size) if k not in fields]
            block[rest] = 0xFF if edge == 0 else 0
    return out


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(TYPES):
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = blocks_of(name, size, np.random.default_rng(1000 + i))
        with np.errstate(over="raise", invalid="raise"):
            values = gguf.quants.dequantize(blocks.view(np.float32) if name == "F32" else blocks, kind) if name != "F16" else \
                blocks.view(np.float16).astype(np.float32)
        values = np.ascontiguousarray(values, dtype="<f4")
        (OUT / f"{'gguf_' if name == 'MXFP4' else ''}{name.lower()}.bin").write_bytes(struct.pack("<I", len(blocks)) + blocks.tobytes() + values.tobytes())
        print(f"{name}: {len(blocks)} blocks, {values.size} values")


if __name__ == "__main__":
    main()
