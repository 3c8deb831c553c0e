"""`darkbloom quantize`, with the standard library as the only reader of what it writes."""
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import tiny_model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4, "U8": 1}


def quantize(*args, ok=True):
    r = subprocess.run([DARKBLOOM, "quantize", *map(str, args), "--quiet"], capture_output=True, text=True, timeout=120)
    if ok:
        assert r.returncode == 0 and r.stderr == "", r.stderr
    return r


def refused(code, dst, *args, **texts):
    """Fails with one line; the new folder is not there (or as empty as before)."""
    r = quantize(*args, ok=False)
    assert r.returncode == code and r.stdout == "", r.stderr
    lines = r.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("darkbloom: "), r.stderr
    assert texts["says"] in lines[0], r.stderr
    if dst is not None:
        assert not dst.exists() or not list(dst.iterdir())


def read_file(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    assert n % 8 == 0
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__") == {"format": "mlx"}
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        out[name] = (t["dtype"], t["shape"], data[8 + n + begin:8 + n + end])
        size = SIZES[t["dtype"]]
        for d in t["shape"]:
            size *= d
        assert size == end - begin
    assert max(t["data_offsets"][1] for t in header.values()) == len(data) - 8 - n
    return out


def read_folder(folder):
    """Tensors by name, found through the index as a reader finds them."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {f: read_file(folder / f) for f in set(index["weight_map"].values())}
    assert set(files) == {p.name for p in folder.glob("*.safetensors")}
    out = {name: files[f][name] for name, f in index["weight_map"].items()}
    assert len(out) == sum(map(len, files.values()))
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in out.values())
    return out


def write_folder(folder, config, tensors):
    folder.mkdir()
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def bf16(values):
    """Values that bf16 holds exactly."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def values(raw):
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]


def matrix(rng, *shape):
    n = 1
    for d in shape:
        n *= d
    return ("BF16", list(shape), bf16(rng.randrange(-128, 129) / 64 for _ in range(n)))


def vector(n, start=0):
    return ("BF16", [n], bf16(start + i / 64 for i in range(n)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("quantize") / "llama")


def source_tensors(folder):
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for k, t in header.items()}


@pytest.mark.parametrize("bits,group", [(4, 64), (8, 32), (3, 64)])
def test_affine_values_names_and_config(llama, tmp_path, bits, group):
    dst = tmp_path / "out"
    r = quantize(llama, dst, "--bits", bits, "--group", group)
    assert "29 matrices quantised" in r.stdout
    got, src = read_folder(dst), source_tensors(llama)
    for name, (dtype, shape, raw) in src.items():
        if len(shape) == 1:
            assert got.pop(name) == (dtype, shape, raw)
            continue
        module = name.removesuffix(".weight")
        n_groups = shape[1] // group
        w, s, b = (got.pop(f"{module}.{leaf}") for leaf in ("weight", "scales", "biases"))
        assert w[:2] == ("U32", [shape[0], shape[1] * bits // 32])
        assert s[:2] == b[:2] == ("BF16", [shape[0], n_groups])
        scales, biases, want = values(s[2]), values(b[2]), values(raw)
        stream, mask = int.from_bytes(w[2], "little"), (1 << bits) - 1
        for i in range(0, len(want), 37):
            scale, bias = scales[i // group], biases[i // group]
            value = scale * (stream >> i * bits & mask) + bias
            # half a step, a whole one at the far end, which may be cut; and what bf16 takes from scale and offset
            assert abs(value - want[i]) <= abs(scale) + (abs(scale) * mask + abs(bias)) / 256, (name, i)
    assert got == {}
    config = json.loads((dst / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == {"bits": bits, "group_size": group, "mode": "affine"}
    assert config["hidden_size"] == 128 and "mtplx_mtp" not in config
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (dst / file).read_bytes() == (llama / file).read_bytes()
    assert not [p for p in dst.iterdir() if "tmp" in p.name]


def test_fp_modes_have_no_biases(llama, tmp_path):
    for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
        dst = tmp_path / mode
        quantize(llama, dst, "--mode", mode)
        got = read_folder(dst)
        assert not [k for k in got if k.endswith(".biases")]
        assert got["model.layers.0.mlp.down_proj.scales"][:2] == ("U8", [128, 192 // group])
        assert got["model.layers.0.mlp.down_proj.weight"][:2] == ("U32", [128, 192 * bits // 32])
        assert json.loads((dst / "config.json").read_text())["quantization"] == {"bits": bits, "group_size": group, "mode": mode}


def test_shards_hold_the_same(llama, tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    many.mkdir()  # an empty folder will do
    quantize(llama, one, "--keep", "*=none")
    quantize(llama, many, "--keep", "*=none", "--shard-size", 1000000)
    assert [p.name for p in sorted(one.glob("*.safetensors"))] == ["model.safetensors"]
    assert [p.name for p in sorted(many.glob("*.safetensors"))] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert read_folder(one) == read_folder(many) == source_tensors(llama)


def test_patterns(llama, tmp_path):
    dst = tmp_path / "out"
    quantize(llama, dst, "--keep", "*.0.mlp.*=8", "--keep", "*.mlp.up_proj=none", "--keep", "*.mlp.*=3")
    got = read_folder(dst)
    block = json.loads((dst / "config.json").read_text())["quantization"]
    assert got["model.layers.0.mlp.up_proj.weight"][1] == [192, 32]
    assert got["model.layers.1.mlp.up_proj.weight"][0] == "BF16" and "model.layers.1.mlp.up_proj.scales" not in got
    assert got["model.layers.1.mlp.gate_proj.weight"][1] == [192, 12]
    assert block["model.layers.0.mlp.up_proj"] == {"bits": 8, "group_size": 64, "mode": "affine"}
    assert block["model.layers.1.mlp.gate_proj"] == {"bits": 3, "group_size": 64, "mode": "affine"}
    assert "model.layers.1.mlp.up_proj" not in block and "model.layers.0.self_attn.q_proj" not in block


def test_width_that_the_group_does_not_divide(llama, tmp_path):
    r = quantize(llama, tmp_path / "out", "--group", 128)
    assert "4 matrices left as they are" in r.stdout and "model.layers.0.mlp.down_proj (192)" in r.stdout
    assert read_folder(tmp_path / "out")["model.layers.0.mlp.down_proj.weight"][0] == "BF16"


def test_what_is_refused(llama, tmp_path):
    dst = tmp_path / "out"
    quantize(llama, tmp_path / "done")
    refused(1, None, llama, tmp_path / "done", says="is not empty")
    refused(1, dst, tmp_path / "done", dst, says="quantised already")
    refused(1, dst, llama, dst, "--bits", 7, says="affine with 7 bits")
    refused(1, dst, llama, dst, "--mode", "mxfp4", "--group", 64, says="allowed is 4 bits in groups of 32")
    refused(1, dst, llama, dst, "--keep", "*.mpl.*=8", says="no matrix of the checkpoint matches '*.mpl.*'")
    refused(1, dst, llama, dst, "--keep", "*", says="PATTERN=BITS")
    refused(1, dst, tmp_path / "nowhere", dst, says="nowhere")
    refused(2, dst, llama, dst, "--no-head", "--head-bits", 4, says="one of them")
    refused(2, dst, llama, says="new folder")
    config = json.loads((llama / "config.json").read_text())
    src = source_tensors(llama)
    odd = write_folder(tmp_path / "odd", config | {"model_type": "qwen2_moe"}, src)
    refused(1, dst, odd, dst, says="model_type is 'qwen2_moe', allowed are gemma3_text")
    odd = write_folder(tmp_path / "stray", config, src | {"model.layers.0.self_attn.q_norm.weight": vector(32)})
    refused(1, dst, odd, dst, says="'model.layers.0.self_attn.q_norm.weight' is not one of a llama checkpoint")
    name = "model.layers.2.mlp.up_proj.weight"
    raw = bytearray(src[name][2])
    raw[1000:1002] = b"\xc0\x7f"
    odd = write_folder(tmp_path / "nan", config, src | {name: (*src[name][:2], bytes(raw))})
    refused(1, dst, odd, dst, says="'model.layers.2.mlp.up_proj'")
    odd = write_folder(tmp_path / "flat", config, src | {name: vector(128)})
    refused(1, dst, odd, dst, says="BF16 [128], allowed is")


def test_values_that_the_new_dtype_cannot_hold(llama, tmp_path):
    src = source_tensors(llama)
    name = "model.layers.1.self_attn.o_proj.weight"
    raw = bytearray(src[name][2])
    raw[64:66] = b"\x80\x7e"  # 8.5e37
    big = write_folder(tmp_path / "big", json.loads((llama / "config.json").read_text()), src | {name: (*src[name][:2], bytes(raw))})
    quantize(big, tmp_path / "same")
    refused(1, tmp_path / "out", big, tmp_path / "out", "--dtype", "f16", says="'model.layers.1.self_attn.o_proj' in the new dtype")


def test_what_a_tied_gemma_leaves_out(tmp_path):
    rng = random.Random(8)
    t = {"model.embed_tokens.weight": matrix(rng, 8, 64), "lm_head.weight": matrix(rng, 8, 64), "model.norm.weight": vector(64)}
    for layer in range(3):
        for leaf in ("q_proj", "k_proj", "v_proj"):
            t[f"model.layers.{layer}.self_attn.{leaf}.weight"] = matrix(rng, 32, 64)
        t[f"model.layers.{layer}.self_attn.k_norm.weight"] = vector(32)
        t[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = vector(4)
    src = write_folder(tmp_path / "src", {"model_type": "gemma4_text", "num_hidden_layers": 3, "num_kv_shared_layers": 2}, t)
    r = quantize(src, tmp_path / "out", "--keep", "*=none")
    got = read_folder(tmp_path / "out")
    gone = {k for k in t if k == "lm_head.weight" or k.endswith("inv_freq") or
            (k.startswith(("model.layers.1", "model.layers.2")) and ".k_" in k or ".v_" in k and ".layers.0." not in k)}
    assert len(gone) == 10 and got == {k: v for k, v in t.items() if k not in gone}
    assert "10 of other towers or without use" in r.stdout


def test_interrupted(llama, tmp_path):
    """Ctrl-C while it works: the status of an interrupt, one line, and nothing at the new folder."""
    t = source_tensors(llama)
    big = bytes(256 * 4096 * 128 * 2)
    t["model.embed_tokens.weight"] = ("BF16", [256 * 4096, 128], big)
    src = write_folder(tmp_path / "src", json.loads((llama / "config.json").read_text()), t)
    dst = tmp_path / "out"
    p = subprocess.Popen([DARKBLOOM, "quantize", src, dst, "--bits", "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (dst.exists() and list(dst.glob(".model*.tmp.*"))) and p.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130 and out == "" and err.splitlines()[-1] == "darkbloom: interrupted, nothing was kept", (p.returncode, err)
    assert not dst.exists()


# ---- experts, and an embedded head -------------------------------------------------------------------------------------------------

HIDDEN, EXPERTS, WIDTH = 64, 3, 32


def qwen_layer(rng, prefix, unrolled):
    t = {f"{prefix}.input_layernorm.weight": vector(HIDDEN), f"{prefix}.post_attention_layernorm.weight": vector(HIDDEN),
         f"{prefix}.mlp.gate.weight": matrix(rng, EXPERTS, HIDDEN), f"{prefix}.mlp.shared_expert_gate.weight": matrix(rng, 1, HIDDEN)}
    if unrolled:
        for e in reversed(range(EXPERTS)):
            for leaf, shape in (("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)), ("down_proj", (HIDDEN, WIDTH))):
                t[f"{prefix}.mlp.experts.{e}.{leaf}.weight"] = matrix(rng, *shape)
    else:
        t[f"{prefix}.mlp.experts.gate_up_proj"] = matrix(rng, EXPERTS, 2 * WIDTH, HIDDEN)
        t[f"{prefix}.mlp.experts.down_proj"] = matrix(rng, EXPERTS, HIDDEN, WIDTH)
    return t


@pytest.fixture
def qwen(tmp_path):
    rng = random.Random(5)
    t = {"model.language_model.embed_tokens.weight": matrix(rng, 8, HIDDEN), "model.language_model.norm.weight": vector(HIDDEN),
         "lm_head.weight": matrix(rng, 8, HIDDEN),
         "model.language_model.layers.0.linear_attn.conv1d.weight": matrix(rng, 6, 1, 4),
         "model.language_model.layers.0.linear_attn.A_log": ("F32", [2], struct.pack("<2f", 0.1, 0.2)),
         "model.language_model.layers.0.linear_attn.norm.weight": vector(16),
         "model.visual.patch_embed.proj.weight": matrix(rng, 4, 4),
         "mtp.fc.weight": matrix(rng, HIDDEN, 2 * HIDDEN), "mtp.norm.weight": vector(HIDDEN),
         "mtp.pre_fc_norm_hidden.weight": vector(HIDDEN), "mtp.layers.0.self_attn.q_norm.weight": vector(16)}
    t |= qwen_layer(rng, "model.language_model.layers.0", False) | qwen_layer(rng, "mtp.layers.0", True)
    text = {"model_type": "qwen3_5_moe_text", "num_experts": EXPERTS, "num_hidden_layers": 1, "tie_word_embeddings": False}
    return write_folder(tmp_path / "qwen", {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {"depth": 1}}, t)


def test_qwen_names_norms_and_experts(qwen, tmp_path):
    dst = tmp_path / "out"
    r = quantize(qwen, dst, "--keep", "*=none")
    assert "with its embedded head" in r.stdout and "1 of other towers" in r.stdout
    src, got = source_tensors(qwen), read_folder(dst)
    layer = "language_model.model.layers.0"
    assert got["language_model.lm_head.weight"] == src["lm_head.weight"]
    assert got[f"{layer}.linear_attn.conv1d.weight"] == ("BF16", [6, 4, 1], src["model.language_model.layers.0.linear_attn.conv1d.weight"][2])
    assert got[f"{layer}.linear_attn.A_log"] == src["model.language_model.layers.0.linear_attn.A_log"]
    assert got[f"{layer}.linear_attn.norm.weight"] == vector(16)  # a plain weight everywhere
    for name in ("language_model.model.norm.weight", f"{layer}.input_layernorm.weight", "mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight"):
        assert values(got[name][2]) == [1 + i / 64 for i in range(HIDDEN)], name
    assert values(got["mtp.layers.0.self_attn.q_norm.weight"][2]) == [1 + i / 64 for i in range(16)]
    fused = src["model.language_model.layers.0.mlp.experts.gate_up_proj"][2]
    half = WIDTH * HIDDEN * 2
    gate = b"".join(fused[2 * e * half:(2 * e + 1) * half] for e in range(EXPERTS))
    up = b"".join(fused[(2 * e + 1) * half:(2 * e + 2) * half] for e in range(EXPERTS))
    assert got[f"{layer}.mlp.switch_mlp.gate_proj.weight"] == ("BF16", [EXPERTS, WIDTH, HIDDEN], gate)
    assert got[f"{layer}.mlp.switch_mlp.up_proj.weight"] == ("BF16", [EXPERTS, WIDTH, HIDDEN], up)
    stacked = b"".join(src[f"mtp.layers.0.mlp.experts.{e}.down_proj.weight"][2] for e in range(EXPERTS))
    assert got["mtp.layers.0.mlp.switch_mlp.down_proj.weight"] == ("BF16", [EXPERTS, HIDDEN, WIDTH], stacked)
    assert set(read_file(dst / "mtp-00001.safetensors")) == {k for k in got if k.startswith("mtp.")}
    config = json.loads((dst / "config.json").read_text())
    assert config["mtplx_mtp"] == {"included": True, "prefix": "mtp.", "model_type": "qwen3_5_moe_mtp", "block_size": 3,
                                   "shares_target_embeddings": True, "shares_target_lm_head": True}
    assert config["mtplx_mtp_quantization"] == {} and "vision_config" not in config


def test_qwen_head_forms(qwen, tmp_path):
    router = {"bits": 8, "group_size": 64, "mode": "affine"}
    quantize(qwen, tmp_path / "a", "--head-bits", 8, "--dtype", "f16")
    got, config = read_folder(tmp_path / "a"), json.loads((tmp_path / "a/config.json").read_text())
    assert got["mtp.fc.weight"][:2] == ("U32", [HIDDEN, 2 * HIDDEN // 4])
    assert got["mtp.fc.scales"][0] == got["mtp.norm.weight"][0] == "BF16"  # readers of heads ask for bf16
    assert got["language_model.model.norm.weight"][0] == got["language_model.lm_head.scales"][0] == "F16"
    assert got["language_model.model.layers.0.linear_attn.A_log"][0] == "F32"
    assert config["mtplx_mtp_quantization"]["bits"] == 8 and config["mtplx_mtp_quantization"]["mtp.layers.0.mlp.gate"] == router
    assert config["quantization"]["language_model.model.layers.0.mlp.shared_expert_gate"] == router
    assert not [k for k in config["quantization"] if k.startswith("mtp.")]
    quantize(qwen, tmp_path / "b", "--head", "bf16")
    got, config = read_folder(tmp_path / "b"), json.loads((tmp_path / "b/config.json").read_text())
    assert "mtp.fc.scales" not in got and config["mtplx_mtp_quantization"] == {} and config["mtplx_mtp"]["included"] is True
    assert "language_model.lm_head.scales" in got
    quantize(qwen, tmp_path / "c", "--no-head")
    got, config = read_folder(tmp_path / "c"), json.loads((tmp_path / "c/config.json").read_text())
    assert not [k for k in got if k.startswith("mtp.")] and not [k for k in config if k.startswith("mtplx")]
    assert not list((tmp_path / "c").glob("mtp*"))


def test_qwen_expert_missing(qwen, tmp_path):
    src = source_tensors(qwen)
    del src["mtp.layers.0.mlp.experts.1.up_proj.weight"]
    odd = write_folder(tmp_path / "odd", json.loads((qwen / "config.json").read_text()), src)
    refused(1, tmp_path / "out", odd, tmp_path / "out", says="expert 1 of 3 is missing")


def test_gpt_oss_rows_come_apart(tmp_path):
    rng = random.Random(6)
    e, n, m = 2, 64, 32
    expert = "model.layers.0.mlp.experts"
    t = {f"{expert}.gate_up_proj": matrix(rng, e, n, 2 * m), f"{expert}.gate_up_proj_bias": matrix(rng, e, 2 * m),
         f"{expert}.down_proj": matrix(rng, e, m, n), f"{expert}.down_proj_bias": matrix(rng, e, n), "model.norm.weight": vector(n),
         "model.layers.0.mlp.router.weight": matrix(rng, e, n), "model.layers.0.self_attn.sinks": vector(4)}
    src = write_folder(tmp_path / "src", {"model_type": "gpt_oss", "num_hidden_layers": 1}, t)
    quantize(src, tmp_path / "out", "--keep", "*=none")
    got = read_folder(tmp_path / "out")
    fused, down = values(t[f"{expert}.gate_up_proj"][2]), values(t[f"{expert}.down_proj"][2])
    for first, leaf in enumerate(("gate_proj", "up_proj")):
        want = [fused[(x * n + k) * 2 * m + 2 * r + first] for x in range(e) for r in range(m) for k in range(n)]
        assert got[f"{expert}.{leaf}.weight"][1] == [e, m, n] and values(got[f"{expert}.{leaf}.weight"][2]) == want
        bias = values(t[f"{expert}.gate_up_proj_bias"][2])
        assert values(got[f"{expert}.{leaf}.bias"][2]) == [bias[x * 2 * m + 2 * r + first] for x in range(e) for r in range(m)]
    want = [down[(x * m + k) * n + r] for x in range(e) for r in range(n) for k in range(m)]
    assert got[f"{expert}.down_proj.weight"][1] == [e, n, m] and values(got[f"{expert}.down_proj.weight"][2]) == want
    assert got["model.norm.weight"] == t["model.norm.weight"]


def test_gpt_oss_blocks_are_taken_over(tmp_path):
    rng = random.Random(7)
    e, n, m = 2, 64, 3
    expert = "model.layers.0.mlp.experts"
    blocks = ("U8", [e, 2 * m, n // 32, 16], rng.randbytes(e * 2 * m * n // 2))
    scales = ("U8", [e, 2 * m, n // 32], rng.randbytes(e * 2 * m * n // 32))
    t = {f"{expert}.gate_up_proj_blocks": blocks, f"{expert}.gate_up_proj_scales": scales, "lm_head.weight": matrix(rng, 8, n),
         "model.layers.0.mlp.router.weight": matrix(rng, e, n)}
    config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "quantization_config": {"quant_method": "mxfp4"}}
    src = write_folder(tmp_path / "src", config, t)
    quantize(src, tmp_path / "out", "--bits", 8)
    got = read_folder(tmp_path / "out")
    for first, leaf in enumerate(("gate_proj", "up_proj")):
        for part, (_dtype, _shape, raw), row in (("weight", blocks, n // 2), ("scales", scales, n // 32)):
            want = b"".join(raw[(x * 2 * m + 2 * r + first) * row:][:row] for x in range(e) for r in range(m))
            assert got[f"{expert}.{leaf}.{part}"][2] == want
        assert got[f"{expert}.{leaf}.weight"][:2] == ("U32", [e, m, n // 8])
    block = json.loads((tmp_path / "out/config.json").read_text())["quantization"]
    assert {k: block[k] for k in ("mode", "bits", "group_size")} == {"mode": "mxfp4", "bits": 4, "group_size": 32}
    assert block["lm_head"] == block["model.layers.0.mlp.router"] == {"mode": "affine", "bits": 8, "group_size": 64}


# ---- the function stays --------------------------------------------------------------------------------------------------------------

GOLDEN = pathlib.Path(os.environ.get("GOLDEN", pathlib.Path(DARKBLOOM).parent / "golden"))
SHARED = pathlib.Path(os.environ.get("BL_SHARED", ROOT.parent / "shared"))
TINY = {p.parent.name: p.parent for where in (SHARED, ROOT / "tests") for p in where.glob("fixtures/tiny/*/config.json")}


def in_f32(folder, out):
    """The same values in f32, where 1 + w costs nothing."""
    t = {k: ("F32", shape, b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))
         for k, (_dtype, shape, raw) in source_tensors(folder).items()}
    return write_folder(out, json.loads((folder / "config.json").read_text()), t)


# Heads are stored as bf16, and the norms of 1 + w lose bits there: trunks without one, then.
@pytest.mark.parametrize("name", sorted(n for n, p in TINY.items() if "mtplx_mtp" not in (p / "config.json").read_text()))
def test_new_layout_computes_the_same(name, tmp_path):
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not here")
    src = TINY[name]
    if name.startswith("qwen3_5"):
        src = in_f32(src, tmp_path / "f32")
    dst = tmp_path / "out"
    quantize(src, dst, "--keep", "*=none")
    (dst / "expected.safetensors").write_bytes((TINY[name] / "expected.safetensors").read_bytes())
    r = subprocess.run([GOLDEN, dst], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0 and "logits" in r.stdout, r.stdout + r.stderr
