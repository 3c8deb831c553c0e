#!/usr/bin/env python3
"""Writes the seed corpora of the container fuzzers: tests/fuzz/corpus/{safetensors,gguf,json}/seed-*.

Small files, each showing the fuzzer one part of the format (or one way to break it). Deterministic: running it again
changes nothing. Files named crash-* there are findings and are not touched.
    tools/reference/make_format_corpus.py
"""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "tests/fuzz/corpus"


def st(entries: dict, data: bytes, pad: int = 0, length: int | None = None) -> bytes:
    head = json.dumps(entries, separators=(",", ":")).encode() + b" " * pad
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def t(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors() -> dict[str, bytes]:
    out = {
        "empty-object": st({}, b""),
        "metadata": st({"__metadata__": {"format": "pt"}}, b""),
        "scalar": st({"a": t("U8", [], 0, 1)}, b"\1"),
        "zero-size": st({"a": t("F32", [0, 3], 0, 0), "b": t("U8", [2], 0, 2)}, b"\1\2"),
        "eight-dims": st({"a": t("I64", [1] * 8, 0, 8)}, bytes(8), pad=5),
        "two": st({"b.weight": t("BF16", [2, 3], 0, 12), "a.weight": t("F16", [2], 12, 16)}, bytes(range(16))),
        "unordered": st({"z": t("U8", [4], 4, 8), "a": t("U8", [4], 0, 4)}, bytes(8)),
        "nan": st({"a": t("F32", [1], 0, 4)}, b"\0\0\xc0\x7f"),
        "overlap": st({"a": t("U8", [4], 0, 4), "b": t("U8", [4], 2, 6)}, bytes(6)),
        "gap": st({"a": t("U8", [4], 0, 4), "b": t("U8", [4], 5, 9)}, bytes(9)),
        "tail": st({"a": t("U8", [4], 0, 4)}, bytes(5)),
        "overflow": st({"a": t("F32", [2**32, 2**32], 0, 4)}, bytes(4)),
        "big-number": st({"a": t("F32", [2**53 + 1], 0, 4)}, bytes(4)),
        "negative": st({"a": t("F32", [-1], 0, 4)}, bytes(4)),
        "real": st({"a": t("F32", [1.0], 0, 4)}, bytes(4)),
        "sub-byte": st({"a": t("F4", [3], 0, 2)}, bytes(2)),
        "other-dtype": st({"a": t("C64", [1], 0, 8)}, bytes(8)),
        "deep": st({"a": {"shape": [[[[1]]]]}}, b""),
        "escaped": b"\x40\0\0\0\0\0\0\0" + b'{"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}     ' + b"\1",
        "length-huge": st({}, b"", length=2**64 - 1),
        "length-short": st({"a": t("U8", [1], 0, 1)}, b"\1", length=20),
    }
    for i, dtype in enumerate(("F32", "F16", "BF16", "U8", "U32", "I32", "I64", "F8_E4M3", "F8_E8M0")):
        size = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "I64": 8}.get(dtype, 1)
        out[f"dtype-{dtype.lower()}"] = st({"t": t(dtype, [3], 0, 3 * size)}, bytes([17 * i + 1]) * 3 * size)
    return out


U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def s(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, v) -> bytes:
    return s(v) if kind == STR else struct.pack("<" + FMT[kind], v)


def kv(key: str, kind: int, v) -> bytes:
    return s(key) + struct.pack("<I", kind) + scalar(kind, v)


def arr(key: str, kind: int, values: list, count: int | None = None) -> bytes:
    n = len(values) if count is None else count
    return s(key) + struct.pack("<IIQ", ARR, kind, n) + b"".join(scalar(kind, v) for v in values)


def info(name: str, dims: list, kind: int, off: int) -> bytes:
    return s(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, off)


def gguf(kvs: list, infos: list, data: bytes = b"", align: int = 32, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(kvs)) + b"".join(kvs) + b"".join(infos)
    return head + bytes(-len(head) % align) + data if data else head


BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
          13: (256, 176), 14: (256, 210), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8)}


def gguf_seeds() -> dict[str, bytes]:
    one = info("t", [8], 0, 0)
    out = {
        "empty": gguf([], []),
        "v2": gguf([], [], version=2),
        "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "string": gguf([kv("general.architecture", STR, "llama")], []),
        "strings": gguf([arr("tokenizer.ggml.tokens", STR, ["<s>", "", "\u2581a", b"\xff\0"])], []),
        "array-empty": gguf([arr("a", F32, []), arr("b", STR, [])], []),
        "array-beyond": gguf([arr("a", U32, [1, 2], count=3)], []),
        "array-huge": gguf([arr("a", U64, [1], count=2**61 + 1)], []),
        "strings-huge": gguf([arr("a", STR, ["x"], count=2**60)], []),
        "nested": gguf([s("a") + struct.pack("<IIQ", ARR, ARR, 1) + struct.pack("<IQB", U8, 1, 7)], []),
        "alignment-64": gguf([kv("general.alignment", U32, 64)], [one], bytes(32), align=64),
        "alignment-1": gguf([kv("general.alignment", U16, 1)], [one], bytes(32), align=1),
        "alignment-3": gguf([kv("general.alignment", U32, 3)], [one], bytes(32)),
        "split": gguf([kv("split.count", U16, 2), kv("split.no", U16, 0)], []),
        "duplicate-key": gguf([kv("a", U8, 1), kv("a", U8, 1)], []),
        "four-dims": gguf([], [info("blk.0.attn_q.weight", [2, 2, 2, 1], 0, 0)], bytes(32)),
        "two": gguf([], [info("a", [9], 0, 0), info("b", [32, 2], 2, 64)], bytes(64 + 36)),
        "overlap": gguf([], [info("a", [9], 0, 0), info("b", [8], 0, 32)], bytes(96)),
        "zero-dim": gguf([], [info("a", [8, 0], 0, 0)], bytes(32)),
        "dims-overflow": gguf([], [info("a", [2**32, 2**32], 0, 0)], bytes(32)),
        "type-q2_k": gguf([], [info("a", [256], 10, 0)], bytes(84)),
        "data-cut": gguf([], [one], bytes(31)),
        "nan": gguf([kv("x", F32, float("nan")), arr("y", F32, [float("inf")])], [one], b"\xff" * 32),
    }
    for kind, name in ((U8, "u8"), (I8, "i8"), (U16, "u16"), (I16, "i16"), (U32, "u32"), (I32, "i32"), (F32, "f32"), (BOOL, "bool"),
                       (U64, "u64"), (I64, "i64"), (F64, "f64")):
        out[f"value-{name}"] = gguf([kv("k", kind, 1), arr("a", kind, [0, 1])], [])
    for kind, (elems, size) in BLOCKS.items():
        out[f"type-{kind}"] = gguf([], [info("w", [elems, 2], kind, 0)], bytes((7 * i + kind) % 60 for i in range(2 * size)))
    return out


def json_seeds() -> dict[str, bytes]:
    texts = {
        "object": '{"a":1,"b":[true,false,null],"c":{"d":"e"}}', "numbers": "[0,-1,2.5,1e9,-3.25E-2,9223372036854775807]",
        "escapes": r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"', "utf8": '"h\u00e9llo \u4e16\u754c \U0001f600"', "duplicate": '{"a":1,"\\u0061":2}',
        "deep": "[" * 40 + "]" * 40, "brackets-in-string": '["[[[[\\"[[[["]', "too-big": "[1e999,18446744073709551616]", "tail": "{} x",
        "cut": '{"a":[1,', "nul": "[1\0,2]", "surrogate": r'"\ud800"', "spaces": " \t\r\n[ ] ",
    }
    return {k: b"\x10" + v.encode() for k, v in texts.items()}


def main() -> None:
    for target, seeds in (("safetensors", safetensors()), ("gguf", gguf_seeds()), ("json", json_seeds())):
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for name, data in seeds.items():
            (folder / f"seed-{name}").write_bytes(data)
        print(f"{target}: {len(seeds)} seeds, {sum(map(len, seeds.values()))} bytes")


if __name__ == "__main__":
    main()
