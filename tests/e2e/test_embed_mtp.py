"""`darkbloom models embed-mtp`, on the fixture with experts taken apart, and on the trained model of ../shared where it is."""
import json
import os
import pathlib
import shutil
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))
SHARED = pathlib.Path(os.environ.get("BL_SHARED", ROOT.parent / "shared"))
DOC = SHARED / "fixtures" / "small" / "qwen3_5-doc"
TINY = ROOT / "tests" / "fixtures" / "tiny" / "qwen3_5-moe-tiny"


def embed(*args, code=0):
    r = subprocess.run([DARKBLOOM, "models", "embed-mtp", *map(str, args), "--quiet"], capture_output=True, text=True, timeout=120)
    assert r.returncode == code, r.stderr
    return r


def read_file(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in header.items()}


def part(src, dst, head):
    """The head of a checkpoint, or all of it but the head."""
    dst.mkdir()
    header, data = {}, b""
    for name, (dtype, shape, body) in read_file(src / "model.safetensors").items():
        if name.startswith("mtp.") == head:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
            data += body
    text = json.dumps(header).encode()
    (dst / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = json.loads((src / "config.json").read_text())
    del config["mtplx_mtp"], config["mtplx_mtp_quantization"]
    (dst / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "generation_config.json"):
        if (src / name).exists():
            shutil.copy(src / name, dst)
    return dst


def test_embeds(tmp_path):
    target, head, out = part(TINY, tmp_path / "target", False), part(TINY, tmp_path / "head", True), tmp_path / "out"
    before = (target / "model.safetensors").read_bytes()
    r = embed(target, "--head", head, out, "--json")
    report = json.loads(r.stdout)
    assert r.stderr == "" and report["draft"] is None and report["head"]["quantised"] == 13 and report["head"]["norm_shift"] == 1
    assert report["files"]["linked"] == 1 and report["files"]["copied"] == 0 and report["model_type"] == "qwen3_5_moe_text"
    assert (out / "model.safetensors").samefile(target / "model.safetensors") and (target / "model.safetensors").read_bytes() == before
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(read_file(out / "model.safetensors")) | set(read_file(out / "mtp-00001.safetensors"))
    old, new = (json.loads((d / "config.json").read_text()) for d in (target, out))
    assert new.pop("mtplx_mtp")["included"] is True and new.pop("mtp_num_hidden_layers") == 1
    assert new.pop("mtplx_mtp_quantization")["bits"] == 4 and new == old
    info = subprocess.run([DARKBLOOM, "models", "info", out, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(info.stdout)["draft_head"] == "embedded" and json.loads(info.stdout)["mtp"]["active"] is True
    text = embed(target, "--head", head, tmp_path / "two", "--bf16", "--copy").stdout
    assert "20 tensors are bf16" in text and "0 files linked" in text and "drafts not measured" in text


def test_refuses(tmp_path):
    target, head, out = part(TINY, tmp_path / "target", False), part(TINY, tmp_path / "head", True), tmp_path / "out"
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "moe_intermediate_size": 32}))
    r = embed(target, "--head", head, out, code=1)
    assert "moe_intermediate_size is 64 in the head's config.json, the target's is 32" in r.stderr
    (target / "config.json").write_text(json.dumps(config))
    for args in ((target, out), (target, "--head", head, out, "--bits", 9), (target, "--head", head, out, "--bf16", "--bits", 4)):
        embed(*args, code=2)
    embed(target, "--head", head, out, "--text", tmp_path / "absent", code=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head", "target"]


@pytest.mark.skipif(not DOC.exists(), reason="../shared is not here")
def test_measures(tmp_path):
    target, head = part(DOC, tmp_path / "target", False), part(DOC, tmp_path / "head", True)
    draft = json.loads(embed(target, "--head", head, tmp_path / "good", "--json").stdout)["draft"]
    assert draft["text"] == "own" and draft["tokens"] == 512 and draft["depths"][0]["rate"] > 0.5 and draft["depths"][1]["rate"] > 0.5
    (tmp_path / "short").write_text("too short")
    assert "at least 16 are needed" in embed(target, "--head", head, tmp_path / "none", "--text", tmp_path / "short", code=1).stderr
    r = embed(target, "--head", head, tmp_path / "bad", "--head-norms", "1+w", code=1)
    assert "the head's drafts are wrong: 0.0" in r.stderr and "effect=drafts_will_be_wrong" in r.stderr
    assert (tmp_path / "bad" / "config.json").exists() and not (tmp_path / "none").exists()
