#!/usr/bin/env python3
"""Referee of src/tensor/mlx_quantize.c: mlx.core.quantize on its CPU backend (pip install 'mlx[cpu]' numpy; 0.32.4 was used).

  make_mlx_encode.py OUT.safetensors       writes the fixture tests/fixtures/mlx_encode.safetensors
  make_mlx_encode.py --compare SEED TIMES  builds the C encoder into a library, and compares it with MLX byte by byte over
                                           random matrices: TIMES x 17 kinds of values x 3 dtypes x 21 formats
"""
import ctypes
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODES = ["affine", "mxfp4", "mxfp8", "nvfp4"]
DTYPES = {"f32": (0, mx.float32, "F32"), "f16": (1, mx.float16, "F16"), "bf16": (2, mx.bfloat16, "BF16")}
FORMATS = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def kinds(rng, rows, k):
    """Matrices of values that an encoder meets or stumbles over, in float64."""
    yield "normal", rng.standard_normal((rows, k)) * 0.02
    yield "uniform", rng.uniform(-1, 1, (rows, k))
    yield "negative", -np.abs(rng.standard_normal((rows, k)))
    yield "positive", np.abs(rng.standard_normal((rows, k)))
    yield "zeros", np.zeros((rows, k))
    yield "constant", np.repeat(rng.standard_normal((rows, 1)), k, 1)
    yield "halves", rng.integers(-15, 16, (rows, k)) / 2  # ties of every step
    yield "eighths", rng.integers(-63, 64, (rows, k)) / 8
    yield "quarters", rng.integers(-31, 32, (rows, k)) / 4 * 2.0 ** rng.integers(-8, 8, (rows, 1))
    yield "small", rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-9, -3, (rows, 1))
    yield "sparse", rng.standard_normal((rows, k)) * (rng.uniform(size=(rows, k)) < 0.05)
    yield "wide", rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-4, 4, (rows, k))
    yield "powers", 2.0 ** rng.integers(-12, 12, (rows, k)) * rng.choice([-1, 1], (rows, k))
    yield "scales", (np.clip(rng.standard_normal((rows, k)), -1, 1) * 2.0 ** rng.integers(-10, 10, (rows, 1))
                     * rng.choice([6, 5.99, 6.01, 448, 447, 449, 1], (rows, 1)))
    # MLX's E8M0 scales wrap around below 2^-127 (amax < 1e-36): not reproduced, so kept out
    tiny = rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-42, -30, (rows, 1))
    yield "tiny", np.where(np.abs(tiny) < 1e-35, np.sign(tiny) * 1e-35, tiny)
    yield "huge", rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(30, 37, (rows, 1))
    yield "large", rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(1, 4, (rows, 1))


def raw(a):
    """The bytes of an array."""
    a = mx.contiguous(a)
    mx.eval(a)
    return np.array(a.view(mx.uint16) if a.dtype in (mx.bfloat16, mx.float16) else a).view(np.uint8).ravel()


def compare(seed, times):
    class Format(ctypes.Structure):
        _fields_ = [("mode", ctypes.c_int), ("bits", ctypes.c_uint32), ("group", ctypes.c_uint32)]

    rng = np.random.default_rng(seed)
    n_compared = n_bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        lib = f"{tmp}/encode.so"
        sources = [ROOT / "src/tensor/mlx_quantize.c", ROOT / "src/tensor/dtype.c", *sorted((ROOT / "src/base").glob("*.c"))]
        subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{ROOT}/include",
                        f"-I{ROOT}/src", *map(str, sources), "-o", lib, "-lm", "-lpthread"], check=True)
        encode = ctypes.CDLL(lib).bl_mlx_quantize
        for _ in range(times):
            for kind, m in kinds(rng, 64, 256):
                for dt, (code, mx_dtype, _name) in DTYPES.items():
                    with np.errstate(over="ignore"):
                        a = mx.array(m.astype(np.float32)).astype(mx_dtype)
                    if not bool(mx.all(mx.isfinite(a)).item()):
                        continue
                    src = raw(a)
                    for mode, bits, group in FORMATS:
                        want = [raw(x) for x in mx.quantize(a, group_size=group, bits=bits, mode=mode)]
                        got = [np.zeros_like(x) for x in want] + [np.zeros(1, np.uint8)]
                        f = Format(MODES.index(mode), bits, group)
                        encode(ctypes.byref(f), code, src.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(m.size),
                               *[x.ctypes.data_as(ctypes.c_void_p) for x in got[:3]])
                        n_compared += 1
                        if any((w != g).any() for w, g in zip(want, got)):
                            n_bad += 1
                            print(f"differs: {kind} {dt} {mode} {bits} bits, group {group}")
    print(f"{n_compared} matrices compared, {n_bad} differ")
    return 1 if n_bad else 0


def make(path):
    rng = np.random.default_rng(20)
    rows = np.concatenate([m[:1] for kind, m in kinds(rng, 2, 128) if kind not in ("huge", "large")])
    tensors = {}
    for dt, (_code, mx_dtype, name) in DTYPES.items():
        a = mx.array(rows.astype(np.float32)).astype(mx_dtype)
        tensors[f"{dt}.source"] = (name, a.shape, raw(a).tobytes())
        for mode, bits, group in FORMATS:
            parts = mx.quantize(a, group_size=group, bits=bits, mode=mode)
            for part, x in zip(("weight", "scales", "biases"), parts):
                st_name = {mx.uint32: "U32", mx.uint8: "U8"}.get(x.dtype, name)
                tensors[f"{dt}.{mode}.{bits}.{group}.{part}"] = (st_name, x.shape, raw(x).tobytes())
    header, end = {"__metadata__": {"mlx": mx.__version__}}, 0
    for key, (name, shape, data) in tensors.items():
        header[key] = {"dtype": name, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))
    return 0


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    if len(sys.argv) == 4 and sys.argv[1] == "--compare":
        sys.exit(compare(int(sys.argv[2]), int(sys.argv[3])))
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(make(sys.argv[1]))
