#!/usr/bin/env python3
"""Writes tests/fixtures/tiny/NAME-gguf: a tiny checkpoint as GGUF (experts MXFP4, other matrices Q8_0) and what the reference
implementation computes with exactly those weights, in the form that build/golden reads.

The weights of a Hugging Face folder are rounded to the two types and written back as f32; transformers evaluates that folder
(eager, everything in float64), make_gguf.py converts it, and the file's values are checked to be the folder's, bit by bit. transformers has no
code for Qwen's embedded head: its two steps are written here over the reference's own modules. --check compares what this
script computes for the folders as they are with their expected.safetensors instead. Needs: pip install gguf numpy torch
transformers safetensors (0.19.0, 2.4.6, 2.15.0, 5.24.0 and 0.8.0 were used).

  make_gguf_fixtures.py [--check] FOLDER...      e.g. ../shared/fixtures/tiny/{qwen3_5-moe,gemma4-moe,gpt_oss}-tiny
"""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from transformers import AutoConfig, AutoModelForCausalLM

import make_gguf

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/tiny"
PLAIN = ("norm.weight", "router.proj.weight", "router.weight", "mlp.gate.weight", "shared_expert_gate.weight", "conv1d.weight",
         "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")
Q = gguf.GGMLQuantizationType


def rounded(name, a):
    """The values that the container's types keep of a tensor."""
    experts = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    if not experts and (a.ndim != 2 or not name.endswith(".weight") or name.endswith(PLAIN)):
        return a
    kind = Q.MXFP4 if experts else Q.Q8_0
    transposed = experts and ".mlp.experts." in name and "gpt_oss" in rounded.model
    a = np.ascontiguousarray(a.swapaxes(1, 2) if transposed else a)
    a = gguf.quants.dequantize(gguf.quants.quantize(a, kind), kind)
    return np.ascontiguousarray(a.swapaxes(1, 2) if transposed else a)


def draft_steps(model, tensors, ids, hidden, out):
    """Both steps of Qwen's embedded head: hidden [T, H] after the final norm."""
    body, config = model.model, model.config
    full = config.layer_types.index("full_attention")
    layer = type(body.layers[full])(config, full).double().eval()
    layer.load_state_dict({n.removeprefix("mtp.layers.0."): t for n, t in tensors.items() if n.startswith("mtp.layers.0.")})

    def norm(x, name):
        n = type(body.norm)(config.hidden_size, eps=config.rms_norm_eps).double()
        n.weight.data = tensors[f"mtp.{name}.weight"]
        return n(x)

    for shift in (1, 2):
        n = len(ids) - shift
        joined = torch.cat([norm(body.embed_tokens(ids[shift:]), "pre_fc_norm_embedding"), norm(hidden[:n], "pre_fc_norm_hidden")], -1)
        x = (joined @ tensors["mtp.fc.weight"].T)[None]
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf"), dtype=torch.float64).triu(1)[None, None]
        x = layer(x, position_embeddings=body.rotary_emb(x, positions[None].expand(3, 1, n)), attention_mask=mask, position_ids=positions)
        hidden = norm(x[0], "norm")
        out[f"mtp_hidden_{shift}"] = hidden.numpy()
        out[f"mtp_logits_{shift}"] = model.lm_head(hidden).numpy()


@contextlib.contextmanager
def doubles():
    """The reference asks for float32 in its norms and softmaxes; here that means float64, so that its own rounding, which random
    hybrids amplify to as much as golden allows, is no part of what is expected."""
    kept = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = kept


@torch.no_grad()
def evaluate(folder, ids, prompt, n_greedy):
    config = AutoConfig.from_pretrained(folder)
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64, attn_implementation="eager").eval()
    tensors = {n: t.double() for n, t in load_torch(folder / "model.safetensors").items()}
    out = {"input_ids": ids, "greedy_prompt": prompt}
    with doubles():
        r = model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True, use_cache=False)
        out |= {"logits": r.logits[0].numpy(), "hidden_states": torch.cat(r.hidden_states).numpy()}
        tokens, margins, row = [], [], prompt.astype(np.int64).tolist()
        for _ in range(n_greedy):
            best = model(torch.tensor([row]), use_cache=False).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            row.append(tokens[-1])
        out |= {"greedy_tokens": np.array(tokens, np.int32), "greedy_margins": np.array(margins, np.float32)}
        if "mtp.fc.weight" in tensors:
            draft_steps(model, tensors, torch.from_numpy(ids.astype(np.int64)), r.hidden_states[-1][0], out)
    return {n: np.ascontiguousarray(a, np.float32 if a.dtype.kind == "f" else a.dtype) for n, a in out.items()}


def check(folder, want, got):
    for name, a in want.items():
        if a.dtype == np.float32 and name != "greedy_margins":
            print(f"{folder.name:20} {name:16} max abs difference {np.abs(a - got[name]).max():.2e}, spread {a.std():.2e}")
        elif a.dtype != np.float32 and not np.array_equal(a, got[name]):
            print(f"{folder.name:20} {name:16} differs in {np.sum(a != got[name])} of {a.size}")


def check_values(path, folder):
    """The file's values are the folder's."""
    want = {n: a for n, a, _ in make_gguf.Converter(folder, False).tensors()}
    for t in gguf.GGUFReader(path).tensors:
        got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(want[t.name].shape)
        if not np.array_equal(got, want[t.name]):
            sys.exit(f"{path}: tensor {t.name} does not hold the folder's values")


def main():
    only_check = sys.argv[1] == "--check"
    for folder in map(pathlib.Path, sys.argv[1 + only_check:]):
        expected = load_file(folder / "expected.safetensors")
        asked = (expected["input_ids"], expected["greedy_prompt"], len(expected["greedy_tokens"]))
        if only_check:
            check(folder, expected, evaluate(folder, *asked))
            continue
        dst = OUT / f"{folder.name}-gguf"
        dst.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as tmp:
            tmp = pathlib.Path(tmp)
            (tmp / "config.json").write_text((folder / "config.json").read_text())
            rounded.model = json.loads((folder / "config.json").read_text())["model_type"]
            save_file({n: rounded(n, np.ascontiguousarray(a)) for n, a in make_gguf.read_folder(folder)}, tmp / "model.safetensors",
                      metadata={"format": "pt"})
            subprocess.run([sys.executable, make_gguf.__file__, "--type", "q8_0", "--experts", "mxfp4", tmp, dst / "model.gguf"], check=True)
            check_values(dst / "model.gguf", tmp)
            save_file(evaluate(tmp, *asked), dst / "expected.safetensors")
        print(f"{dst}: {sum(p.stat().st_size for p in dst.iterdir())} bytes")


if __name__ == "__main__":
    main()
