#!/usr/bin/env python3
"""Writes a Hugging Face folder as GGUF, in the names, orders and conventions of that container (docs/models says which), for
tests: the weights and the metadata of the architecture, no tokenizer. Families: llama, qwen3, gemma3_text, gemma4 (all
kinds), qwen3_5 and qwen3_5_moe (the embedded head becomes the nextn block), gpt_oss. Needs: pip install gguf numpy (0.19.0
and 2.4.6 were used).

  make_gguf.py [--type T] [--experts T] [--fuse-gate-up] [--no-vocab] FOLDER OUT.gguf
      T: f32, f16, bf16, q8_0, q4_0, mxfp4; --experts: another type for the stacks of experts
      --fuse-gate-up: experts' gate and up in one tensor (gemma4 always has them so)
      --no-vocab: declare that there is no tokenizer, which llama.cpp wants to be told
"""
import argparse
import json
import pathlib
import re
import struct

import gguf
import numpy as np

TYPES = {t: gguf.GGMLQuantizationType[t.upper()] for t in ("f32", "f16", "bf16", "q8_0", "q4_0", "mxfp4")}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32, "mxfp4": 38}
SKIPPED = ("visual.", "vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector.")
ROOTS = ("model.language_model.", "language_model.model.", "language_model.", "model.")

TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "embed_tokens_per_layer": "per_layer_token_embd",
       "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}
BLOCK = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
LLAMA = BLOCK | {"post_attention_layernorm": "ffn_norm"}
GEMMA3 = BLOCK | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                  "post_feedforward_layernorm": "post_ffw_norm"}
GEMMA4 = GEMMA3 | {"post_feedforward_layernorm_1": "post_ffw_norm_1", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
                   "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp",
                   "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
                   "layer_scalar": "layer_output_scale.weight", "per_layer_input_gate": "inp_gate",
                   "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
QWEN35 = BLOCK | {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
                  "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
                  "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
                  "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "mlp.gate": "ffn_gate_inp",
                  "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
                  "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
                  "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
                  "norm": "nextn.shared_head_norm"}
GPT_OSS = BLOCK | {"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks.weight",
                   "mlp.router": "ffn_gate_inp"}
# model_type: architecture, names of a block's tensors
FAMILIES = {"llama": ("llama", LLAMA), "qwen3": ("qwen3", LLAMA), "gemma3_text": ("gemma3", GEMMA3), "gemma3": ("gemma3", GEMMA3),
            "gemma4": ("gemma4", GEMMA4), "gemma4_text": ("gemma4", GEMMA4), "qwen3_5": ("qwen35", QWEN35),
            "qwen3_5_text": ("qwen35", QWEN35), "qwen3_5_moe": ("qwen35moe", QWEN35), "qwen3_5_moe_text": ("qwen35moe", QWEN35),
            "gpt_oss": ("gpt-oss", GPT_OSS)}
ALWAYS_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")


def read_safetensors(path):
    """(name, array) of a file; floats as f32, integers as they are."""
    raw = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", raw[:8].tobytes())[0]
    for name, t in json.loads(raw[8:8 + n].tobytes()).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            a = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            a = data.view({"F32": np.float32, "F16": np.float16, "U8": np.uint8}[t["dtype"]])
            a = a.astype(np.float32) if t["dtype"] == "F16" else a
        yield name, a.reshape(t["shape"])


def read_folder(folder):
    for path in sorted(folder.glob("model*.safetensors")):
        yield from read_safetensors(path)


# ---- what the container stores differently -----------------------------------------------------------------

def paired_rows(a, n_heads):
    """llama turns neighbouring rows together; Hugging Face turns row i of a head with row i + half."""
    half = a.shape[0] // n_heads // 2
    return a.reshape(n_heads, 2, half, -1).swapaxes(1, 2).reshape(a.shape)


def tiled(a, axis, c, width):
    """Value heads k·ρ + r (grouped by key head) become r·Hk + k."""
    hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    shape = list(a.shape)
    split = shape[:axis] + [hk, hv // hk, width] + shape[axis + 1:]
    return a.reshape(split).swapaxes(axis, axis + 1).reshape(shape)


def delta_net(leaf, a, c):
    dv, n_qk = c["linear_value_head_dim"], 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    if leaf == "in_proj_qkv":
        return np.concatenate([a[:n_qk], tiled(a[n_qk:], 0, c, dv)])
    if leaf == "conv1d":
        a = a.reshape(a.shape[0], -1)
        return np.concatenate([a[:n_qk], tiled(a[n_qk:], 0, c, dv)])
    if leaf == "in_proj_z":
        return tiled(a, 0, c, dv)
    if leaf in ("in_proj_a", "in_proj_b", "dt_bias"):
        return tiled(a, 0, c, 1)
    if leaf == "A_log":
        return -np.exp(tiled(a, 0, c, 1))
    return tiled(a, 1, c, dv) if leaf == "out_proj" else a


def gguf_blocks(blocks, scales):
    """OpenAI's MXFP4 (neighbours share a byte) as GGUF's (element j with j + 16), each block after its scale."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], -1).reshape(*blocks.shape[:2], -1)


def llama3_divisors(rope, dim):
    """Long waves are slowed by the factor, short ones not, those between by a blend: one divisor per frequency."""
    freq = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] * freq / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - blend) / rope["factor"] + blend)).astype(np.float32)


class Converter:
    def __init__(self, folder, fuse):
        self.config = json.loads((folder / "config.json").read_text())
        self.c = self.config.get("text_config", self.config)
        kind = self.c["model_type"]
        if kind not in FAMILIES:
            raise SystemExit(f"make_gguf: model_type is '{kind}', known are {', '.join(FAMILIES)}")
        self.arch, self.names = FAMILIES[kind]
        self.fuse = fuse or self.arch == "gemma4"
        self.folder = folder
        self.n_layers = self.c["num_hidden_layers"]
        self.head_dim = self.c.get("head_dim") or self.c["hidden_size"] // self.c["num_attention_heads"]
        self.head = any(n.startswith("mtp.") for n, _ in read_folder(folder)) and self.arch.startswith("qwen35")

    # -- tensors

    def tensors(self):
        """(name, array, is already MXFP4)."""
        if self.arch == "gemma4":
            yield "rope_freqs.weight", self.rope_freqs(), False
        rope = self.c.get("rope_parameters") or {}
        if rope.get("rope_type") == "llama3":
            yield "rope_freqs.weight", llama3_divisors(rope, self.head_dim), False
        scales = {n: a for n, a in read_folder(self.folder) if n.endswith("_scales")}
        for name, a in read_folder(self.folder):
            if name.endswith("_scales"):
                continue
            root = next((r for r in ROOTS if name.startswith(r)), "")
            rel = name[len(root):]
            if rel.startswith(SKIPPED):
                continue
            if m := re.match(r"mtp\.(?:layers\.0\.)?(.*)", rel):
                yield from self.block(self.n_layers, m[1], a, None)
            elif m := re.match(r"layers\.(\d+)\.(.*)", rel):
                yield from self.block(int(m[1]), m[2], a, scales.get(name.replace("_blocks", "_scales")))
            else:
                leaf, _, suffix = rel.rpartition(".")
                a = a + 1 if leaf == "norm" and self.arch in ("gemma3", "qwen35", "qwen35moe") else a
                yield f"{TOP[leaf]}.{suffix}", a, False

    def block(self, i, rel, a, scales):
        if ".experts." in "." + rel:
            for name, part, ready in self.experts(rel.rpartition("experts.")[2], a, scales):
                yield f"blk.{i}.{name}", part, ready
            return
        leaf, _, suffix = rel.rpartition(".")
        if rel in self.names:
            name = self.names[rel]
        else:
            name = f"{self.names[leaf]}.{suffix}"
        if self.arch == "llama" and leaf in ("self_attn.q_proj", "self_attn.k_proj"):
            a = paired_rows(a, self.c["num_attention_heads" if leaf[10] == "q" else "num_key_value_heads"])
        if self.arch == "gemma3" and rel.endswith("norm.weight"):
            a = a + 1
        if self.arch.startswith("qwen35"):
            plain = leaf == "linear_attn.norm"
            named = re.search(r"norm(_embedding|_hidden)?$", leaf)
            a = a + 1 if named and not plain else a
            a = delta_net(rel.removesuffix(".weight").rpartition(".")[2], a, self.c) if "linear_attn." in rel else a
        yield f"blk.{i}.{name}", a, False

    def experts(self, leaf, a, scales):
        bias = leaf.endswith("_bias")
        part = leaf.removesuffix("_bias").removesuffix("_blocks")
        ready = leaf.endswith("_blocks")
        if ready:
            a = gguf_blocks(a, scales)
        elif self.arch == "gpt-oss" and not bias:
            a = a.swapaxes(1, 2)
        suffix = "bias" if bias else "weight"
        if part == "down_proj":
            yield f"ffn_down_exps.{suffix}", a, ready
        elif self.arch == "gpt-oss":
            yield f"ffn_gate_exps.{suffix}", a[:, 0::2], ready
            yield f"ffn_up_exps.{suffix}", a[:, 1::2], ready
        elif self.fuse:
            yield "ffn_gate_up_exps.weight", a, False
        else:
            half = a.shape[1] // 2
            yield "ffn_gate_exps.weight", a[:, :half], False
            yield "ffn_up_exps.weight", a[:, half:], False

    # -- metadata

    def full_layer(self, key, newer, default):
        """A value of gemma4's full layers, from either way of writing it."""
        if self.c.get(key) is not None:
            return self.c[key]
        for i, layer in (self.c.get("per_layer_config") or {}).items():
            if self.c["layer_types"][int(i)] == "full_attention" and newer in layer:
                return layer[newer]
        return default

    def rope_freqs(self):
        dim = self.full_layer("global_head_dim", "head_dim", self.c["head_dim"])
        turning = int(self.c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * dim / 2)
        return np.array([1.0] * turning + [1e30] * (dim // 2 - turning), np.float32)

    def keys(self):
        """(key below the architecture, value)."""
        c = self.c
        rope = c.get("rope_parameters") or {}
        full = rope.get("full_attention", rope)
        yield "block_count", self.n_layers + int(self.head)
        yield "context_length", c["max_position_embeddings"]
        yield "embedding_length", c["hidden_size"]
        yield "attention.head_count", c["num_attention_heads"]
        yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
        yield "rope.freq_base", float(full.get("rope_theta", c.get("rope_theta", 10000.0)))
        if "sliding_attention" in rope:
            yield "rope.freq_base_swa", float(rope["sliding_attention"]["rope_theta"])
        if n := c.get("num_local_experts") or c.get("num_experts"):
            yield "expert_count", n
            yield "expert_used_count", c.get("num_experts_per_tok") or c["top_k_experts"]
            yield "expert_feed_forward_length", c.get("moe_intermediate_size") or c["intermediate_size"]
        if self.arch == "gemma4":
            yield from self.keys_gemma4()
            return
        yield "attention.head_count_kv", c["num_key_value_heads"]
        yield "attention.key_length", self.head_dim
        yield "attention.value_length", self.head_dim
        if c.get("intermediate_size"):
            yield "feed_forward_length", c["intermediate_size"]
        if self.arch == "llama":
            yield "vocab_size", c["vocab_size"]
            yield "rope.dimension_count", self.head_dim
        if self.arch in ("gemma3", "gpt-oss"):
            yield "attention.sliding_window", c["sliding_window"]
        if self.arch == "gemma3" and c.get("final_logit_softcapping"):
            yield "final_logit_softcapping", float(c["final_logit_softcapping"])
        if full.get("rope_type") == "yarn":
            yield "rope.scaling.type", "yarn"
            yield "rope.scaling.factor", float(full["factor"])
            yield "rope.scaling.original_context_length", full["original_max_position_embeddings"]
            yield "rope.scaling.yarn_beta_fast", float(full["beta_fast"])
            yield "rope.scaling.yarn_beta_slow", float(full["beta_slow"])
        elif full.get("rope_type", "default") not in ("default", "proportional", "llama3"):
            raise SystemExit(f"make_gguf: rope_type '{full['rope_type']}' is not written by this tool")
        if self.arch.startswith("qwen35"):
            yield from self.keys_qwen35(rope)

    def keys_gemma4(self):
        c = self.c
        slides = [t == "sliding_attention" for t in c["layer_types"]]
        dim, kv = self.full_layer("global_head_dim", "head_dim", c["head_dim"]), c["num_key_value_heads"]
        kv_full = self.full_layer("num_global_key_value_heads", "num_key_value_heads", None)
        shared = c.get("num_kv_shared_layers") or 0
        yield "attention.head_count_kv", kv if kv_full is None else [kv if s else kv_full for s in slides]
        yield "attention.key_length", dim
        yield "attention.value_length", dim
        yield "attention.key_length_swa", c["head_dim"]
        yield "attention.value_length_swa", c["head_dim"]
        yield "attention.sliding_window", c["sliding_window"]
        yield "attention.sliding_window_pattern", slides
        yield "attention.shared_kv_layers", shared
        yield "rope.dimension_count", dim
        yield "rope.dimension_count_swa", c["head_dim"]
        yield "embedding_length_per_layer_input", c.get("hidden_size_per_layer_input") or 0
        if c.get("final_logit_softcapping"):
            yield "final_logit_softcapping", float(c["final_logit_softcapping"])
        wide = [c["intermediate_size"] * (2 if i >= self.n_layers - shared else 1) for i in range(self.n_layers)]
        yield "feed_forward_length", wide if c.get("use_double_wide_mlp") else c["intermediate_size"]

    def keys_qwen35(self, rope):
        c = self.c
        if self.head:
            yield "nextn_predict_layers", 1
        if c.get("shared_expert_intermediate_size"):
            yield "expert_shared_feed_forward_length", c["shared_expert_intermediate_size"]
        yield "ssm.conv_kernel", c["linear_conv_kernel_dim"]
        yield "ssm.state_size", c["linear_key_head_dim"]
        yield "ssm.group_count", c["linear_num_key_heads"]
        yield "ssm.time_step_rank", c["linear_num_value_heads"]
        yield "ssm.inner_size", c["linear_num_value_heads"] * c["linear_value_head_dim"]
        yield "attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]] + [False] * self.head
        yield "full_attention_interval", c.get("full_attention_interval", 4)
        yield "rope.dimension_count", int(self.head_dim * rope.get("partial_rotary_factor", 0.25))
        yield "rope.dimension_sections", (list(rope.get("mrope_section", [11, 11, 10])) + [0])[:4]


def add_key(w, key, value):
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


def type_of(name, a, args):
    if a.ndim <= 1 or not name.endswith(".weight") or name.endswith("_norm.weight") or name.endswith(ALWAYS_F32):
        return TYPES["f32"]
    wanted = TYPES[args.experts if args.experts and name.endswith("_exps.weight") else args.type]
    return wanted if a.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0 else TYPES["f16"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--experts", choices=TYPES)
    parser.add_argument("--fuse-gate-up", action="store_true")
    parser.add_argument("--no-vocab", action="store_true")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    model = Converter(args.folder, args.fuse_gate_up)
    w = gguf.GGUFWriter(args.out, model.arch)
    w.add_string("general.type", "model")
    blocks = any(n.endswith("_blocks") for n, _ in read_folder(args.folder))
    w.add_uint32("general.file_type", FILE_TYPES["mxfp4" if blocks or args.experts == "mxfp4" else args.type])
    w.add_uint32("general.quantization_version", gguf.GGML_QUANT_VERSION)
    for key, value in model.keys():
        add_key(w, f"{model.arch}.{key}", value)
    if args.no_vocab:
        w.add_string("tokenizer.ggml.model", "none")
        if model.arch != "llama":
            w.add_uint32(f"{model.arch}.vocab_size", model.c["vocab_size"])
    for name, a, ready in model.tensors():
        if ready:
            w.add_tensor(name, np.ascontiguousarray(a), raw_dtype=TYPES["mxfp4"])
            continue
        t = type_of(name, a, args)
        w.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(a, np.float32), t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
