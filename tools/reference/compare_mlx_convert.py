#!/usr/bin/env python3
"""Compares `darkbloom quantize` with mlx-lm's converter, tensor by tensor: names, dtypes, shapes, bytes, and the
`quantization` block. Needs: pip install 'mlx[cpu]' mlx-lm (0.32.4 and 0.32.2 were used).

  compare_mlx_convert.py FOLDER...     folders of Hugging Face checkpoints, e.g. ../shared/fixtures/tiny/*
                                       DARKBLOOM=PATH tests another build

mlx-lm reads what it can: keys that newer transformers write in another way are put in its way of writing first, experts of
gpt-oss in the un-quantised layout are transposed here (mlx-lm has no code for them), and Qwen's embedded head, which mlx-lm
drops, is compared with mx.quantize of the source directly. gpt-oss is compared once more with its experts as published
(mxfp4 blocks), made here by mx.quantize.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm import utils

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build/darkbloom"))
FORMATS = [("affine", 4, 64), ("affine", 8, 64), ("affine", 3, 32), ("affine", 5, 128), ("affine", 2, 64), ("affine", 6, 64),
           ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
DTYPES = {"same": None, "bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}
BLOCKS = {"group_size": 32, "bits": 4, "mode": "mxfp4"}


def adapted_config(folder):
    """config.json in the words that this mlx-lm reads."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    if layers := text.get("per_layer_config"):
        full = next(iter(layers.values()))
        text["global_head_dim"] = full["head_dim"]
        text["num_global_key_value_heads"] = full.get("num_key_value_heads")
    if config["model_type"].startswith("gemma4") and "text_config" in config:
        config["vocab_size"] = text["vocab_size"]
    if config["model_type"].startswith("qwen3_5"):
        config["model_type"] = config["model_type"].removesuffix("_text")
    return config


def transpose_experts(weights):
    out = {}
    for k, v in weights.items():
        if k.endswith("experts.gate_up_proj"):
            v = mx.contiguous(v.swapaxes(1, 2))
            out[k.replace("gate_up_proj", "gate_proj.weight")] = mx.contiguous(v[:, 0::2])
            out[k.replace("gate_up_proj", "up_proj.weight")] = mx.contiguous(v[:, 1::2])
        elif k.endswith("experts.gate_up_proj_bias"):
            out[k.replace("gate_up_proj_bias", "gate_proj.bias")] = mx.contiguous(v[:, 0::2])
            out[k.replace("gate_up_proj_bias", "up_proj.bias")] = mx.contiguous(v[:, 1::2])
        elif k.endswith("experts.down_proj"):
            out[k + ".weight"] = mx.contiguous(v.swapaxes(1, 2))
        elif k.endswith("experts.down_proj_bias"):
            out[k.replace("down_proj_bias", "down_proj.bias")] = v
        else:
            out[k] = v
    return out


def reference(folder, mode, bits, group, dtype):
    """What mlx-lm makes: tensors by name, and the quantization block."""
    config = adapted_config(folder)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        weights = mx.load(str(folder / "model.safetensors"))
        if config["model_type"] == "gpt_oss" and any(k.endswith("experts.gate_up_proj") for k in weights):
            weights = transpose_experts(weights)
        mx.save_safetensors(str(tmp / "model.safetensors"), weights, metadata={"format": "pt"})
        (tmp / "config.json").write_text(json.dumps(config))
        model, config = utils.load_model(tmp)
    if dtype is not None:  # as mlx_lm.convert does
        cast = getattr(model, "cast_predicate", lambda _: True)
        model.update(tree_map_with_path(
            lambda k, v: v.astype(dtype) if cast(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    model, config = utils.quantize_model(model, config, group, bits, mode=mode)
    return dict(tree_flatten(model.parameters())), config["quantization"]


def head_reference(folder, mode, bits, group):
    """Qwen's embedded head, by the rules of its published form: bf16, norms shifted, affine."""
    weights = mx.load(str(folder / "model.safetensors"))
    group = group if mode == "affine" else 64
    out = {}
    for k, v in weights.items():
        if not k.startswith("mtp."):
            continue
        parts = {k: v}
        if k.endswith("experts.gate_up_proj"):
            gate, up = mx.split(v, 2, axis=-2)
            base = k.replace("experts.gate_up_proj", "switch_mlp.")
            parts = {base + "gate_proj.weight": gate, base + "up_proj.weight": up}
        elif k.endswith("experts.down_proj"):
            parts = {k.replace("experts.down_proj", "switch_mlp.down_proj.weight"): v}
        for name, x in parts.items():
            module = name.removesuffix(".weight")
            router = module.endswith(("mlp.gate", "shared_expert_gate"))
            x = mx.contiguous(x)
            if x.ndim == 1:
                out[name] = (x + 1.0).astype(mx.bfloat16)
            elif x.shape[-1] % group:
                out[name] = x.astype(mx.bfloat16)
            else:
                w, s, b = mx.quantize(x.astype(mx.bfloat16), 64 if router else group, 8 if router else bits)
                out |= {module + ".weight": w, module + ".scales": s, module + ".biases": b}
    return out


def same_bytes(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    kind = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return bool(mx.all(mx.contiguous(a).view(kind) == mx.contiguous(b).view(kind)).item())


def compare(folder, mode, bits, group, dtype):
    """None when equal, otherwise what differs."""
    want, block = reference(folder, mode, bits, group, DTYPES[dtype])
    want |= head_reference(folder, mode, bits, group)
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp) / "out"
        subprocess.run([DARKBLOOM, "quantize", folder, out, "--mode", mode, "--bits", str(bits), "--group", str(group),
                        "--dtype", dtype, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        got = {}
        for file in out.glob("*.safetensors"):
            got |= mx.load(str(file))
        mx.eval(got)
        config = json.loads((out / "config.json").read_text())
    if missing := sorted(want.keys() - got.keys()):
        return f"{len(missing)} missing, {missing[0]}"
    if extra := sorted(got.keys() - want.keys()):
        return f"{len(extra)} too many, {extra[0]}"
    if bad := [k for k in sorted(want) if not same_bytes(want[k], got[k])]:
        return f"{len(bad)} differ, {bad[0]}: {want[bad[0]].dtype} {want[bad[0]].shape}, {got[bad[0]].dtype} {got[bad[0]].shape}"
    # ours says the mode of every entry; mlx-lm leaves out affine
    # and, where experts came quantised, lists also what is as the common words say
    common = {k: v for k, v in block.items() if not isinstance(v, dict)}
    full = {k: {"mode": "affine"} | v for k, v in block.items() if isinstance(v, dict)}
    block = common | {k: v for k, v in full.items() if v != common or k in config["quantization"]}
    if config["quantization"] != block or config["quantization_config"] != block:
        return f"quantization blocks differ: {config['quantization']} {block}"
    return None


def with_blocks(folder, out):
    """A copy of a gpt-oss checkpoint with its experts as they are published."""
    shutil.copytree(folder, out)
    os.chmod(out, 0o755)
    weights = mx.load(str(folder / "model.safetensors"))
    made = {}
    for k, v in weights.items():
        if k.endswith(("experts.gate_up_proj", "experts.down_proj")):
            w, s = mx.quantize(mx.contiguous(v.swapaxes(1, 2)), mode="mxfp4")
            made[k + "_blocks"] = w.view(mx.uint8).reshape(*w.shape[:2], -1, 16)
            made[k + "_scales"] = s
        else:
            made[k] = v
    mx.eval(made)
    for name in ("model.safetensors", "config.json"):
        (out / name).unlink()
    mx.save_safetensors(str(out / "model.safetensors"), made, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (out / "config.json").write_text(json.dumps(config))
    return out


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    mx.set_default_device(mx.cpu)
    n_bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        folders = [pathlib.Path(p) for p in sys.argv[1:]]
        for f in list(folders):
            if json.loads((f / "config.json").read_text())["model_type"] == "gpt_oss":
                folders.append(with_blocks(f, pathlib.Path(tmp) / (f.name + "-mxfp4")))
        for folder in folders:
            for mode, bits, group in FORMATS:
                for dtype in DTYPES:
                    why = compare(folder, mode, bits, group, dtype)
                    n_bad += why is not None
                    print(f"{folder.name:22} {mode:6} {bits} bits, group {group:3}, {dtype:4}: {why or 'equal'}", flush=True)
    print(f"{n_bad} differ" if n_bad else "all equal")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
