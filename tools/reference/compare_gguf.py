#!/usr/bin/env python3
"""Compares two GGUF files: every metadata key (value and type), every tensor (name, shape, type, bytes). Needs: pip install
gguf. Used to hold make_gguf.py's files against llama.cpp's convert_hf_to_gguf.py; general.size_label, tokenizer.* and the
counts differ by purpose and are left out.
    compare_gguf.py OURS THEIRS      prints what differs; exits 1 when anything does
"""
import sys

import gguf
import numpy as np

LEFT_OUT = ("GGUF.", "tokenizer.", "general.size_label", "general.name")


def main():
    ours, theirs = (gguf.GGUFReader(p) for p in sys.argv[1:3])
    found = []
    keys = [{k: ([t.name for t in f.types], f.contents()) for k, f in r.fields.items() if not k.startswith(LEFT_OUT)}
            for r in (ours, theirs)]
    for k in sorted(keys[0].keys() | keys[1].keys()):
        if keys[0].get(k) != keys[1].get(k):
            found.append(f"key {k}: {keys[0].get(k)} and {keys[1].get(k)}")
    tensors = [{t.name: t for t in r.tensors} for r in (ours, theirs)]
    worst = 0.0
    for name in sorted(tensors[0].keys() | tensors[1].keys()):
        a, b = (t.get(name) for t in tensors)
        if a is None or b is None:
            found.append(f"tensor {name}: only in {'the second' if a is None else 'the first'}")
        elif list(a.shape) != list(b.shape) or a.tensor_type != b.tensor_type:
            found.append(f"tensor {name}: " + " and ".join(f"{t.tensor_type.name} {t.shape.tolist()}" for t in (a, b)))
        elif a.data.tobytes() != b.data.tobytes():
            x, y = (gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in (a, b))
            d = float(np.max(np.abs(x - y) / np.maximum(np.abs(y), 1e-30)))
            worst = max(worst, d)
            if d > 2e-7:
                found.append(f"tensor {name}: values differ, relatively up to {d:.1e}")
    print("\n".join(found), end="\n" if found else "")
    print(f"{sys.argv[1]}: {len(keys[0])} keys, {len(tensors[0])} tensors, {len(found)} differ, rounding up to {worst:.1e}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
