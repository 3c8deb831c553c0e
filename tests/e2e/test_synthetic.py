"""tools/make_synthetic: the files are what `darkbloom quantize` would have made of such a model, the numbers are sane, the same seed
gives the same bytes, and the program runs them."""
import json
import math
import os
import pathlib
import random
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from test_quantize import DARKBLOOM, quantize, read_folder, values  # noqa: E402

SYNTHETIC = os.environ.get("MAKE_SYNTHETIC", str(pathlib.Path(DARKBLOOM).parent / "make_synthetic"))
SMALL = ("--shape", "gemma-3-270m", "--layers", "7", "--vocab", "1024")

if not pathlib.Path(SYNTHETIC).exists():
    pytest.skip(f"{SYNTHETIC} is not here", allow_module_level=True)


def make(out, *args, code=0):
    r = subprocess.run([SYNTHETIC, *map(str, args), str(out)], capture_output=True, text=True, timeout=300)
    assert r.returncode == code, r.stderr
    return r


def shapes(folder):
    return {k: v[:2] for k, v in read_folder(folder).items()}


@pytest.mark.parametrize("quant,args", [("mlx4", ()), ("mlx8", ("--bits", 8)), ("mxfp4", ("--mode", "mxfp4"))])
def test_names_and_config_are_those_of_the_quantiser(tmp_path, quant, args):
    make(tmp_path / "full", *SMALL, "--quant", "bf16")
    make(tmp_path / "made", *SMALL, "--quant", quant)
    quantize(tmp_path / "full", tmp_path / "quantised", *args)
    assert shapes(tmp_path / "made") == shapes(tmp_path / "quantised")
    made, quantised = (json.loads((tmp_path / d / "config.json").read_text()) for d in ("made", "quantised"))
    assert made == quantised


def test_numbers_are_sane(tmp_path):
    make(tmp_path / "a", *SMALL, "--quant", "mlx4")
    t = read_folder(tmp_path / "a")
    for module, width in (("model.embed_tokens", 640), ("model.layers.3.mlp.down_proj", 2048)):
        words, scales, biases = (t[f"{module}.{part}"][2] for part in ("weight", "scales", "biases"))
        scales, biases = values(scales), values(biases)
        rng, got = random.Random(1), []
        for i in (rng.randrange(len(words) * 2) for _ in range(20000)):
            got.append(scales[i // 64] * (words[i // 2] >> i % 2 * 4 & 15) + biases[i // 64])
        mean = sum(got) / len(got)
        std = math.sqrt(sum(v * v for v in got) / len(got))
        assert abs(mean) < 0.02 * std * 3 and abs(std * math.sqrt(width) - 1) < 0.05, (module, mean, std)
    norm = values(t["model.layers.0.input_layernorm.weight"][2])
    assert -0.11 < min(norm) < max(norm) < 0.11  # this family stores them around zero


def test_the_seed_is_all_that_counts(tmp_path):
    make(tmp_path / "a", *SMALL, "--quant", "mxfp8", "--seed", 5)
    make(tmp_path / "b", *SMALL, "--quant", "mxfp8", "--seed", 5, "--shard-size", 4000000, "--quiet")
    make(tmp_path / "c", *SMALL, "--quant", "mxfp8", "--seed", 6)
    a, b, c = (read_folder(tmp_path / d) for d in "abc")
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 1
    assert a == b and a.keys() == c.keys() and a != c
    weight = a["model.embed_tokens.weight"][2]
    assert not {0x7F, 0xFF} & set(weight)  # no NaN among the codes


def test_all_shapes_are_listed_with_their_sizes():
    r = subprocess.run([SYNTHETIC, "--list"], capture_output=True, text=True)
    rows = {line.split()[0]: line.split()[1:] for line in r.stdout.splitlines()[1:]}
    # parameters in 1e9 without and in the head, GB in bf16 and in mlx4 with all of it: the published shapes
    for name, params, head, gb in (("gemma-4-26b-a4b", 25.23, 0, 14.19), ("gemma-4-e4b", 7.46, 0, 4.20), ("gemma-4-e2b", 4.63, 0, 2.60),
                                   ("gemma-4-31b", 30.70, 0, 17.27), ("qwen3.5-9b", 8.95, 0.243, 5.18),
                                   ("qwen3.6-35b-a3b", 34.66, 0.845, 19.98), ("qwen3.8-27b", 26.90, 0.425, 15.37),
                                   ("gpt-oss-20b", 20.91, 0, 11.76), ("gemma-3-270m", 0.268, 0, 0.151)):
        row = list(map(float, rows[name]))
        assert abs(row[0] - params) < 0.006 and abs(row[1] - head) < 0.001 and abs(row[3] - gb) < 0.02, (name, row)


def test_mistakes_are_told(tmp_path):
    assert "shape is 'gemma-5'" in make(tmp_path / "x", "--shape", "gemma-5", "--quant", "mlx4", code=1).stderr
    assert "quant is 'q4'" in make(tmp_path / "x", "--shape", "gemma-3-270m", "--quant", "q4", code=1).stderr
    assert "Usage" in make(tmp_path / "x", "--quant", "q4", code=2).stderr


def test_the_program_runs_it(tmp_path):
    make(tmp_path / "m", *SMALL, "--quant", "bf16")
    r = subprocess.run([DARKBLOOM, "run", "--model", tmp_path / "m", "--prompt", "abc", "--max-tokens", "4", "--temperature", "0"],
                       capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr
    r = subprocess.run([DARKBLOOM, "tokenize", "--model", tmp_path / "m"], input=b"abc", capture_output=True, timeout=120)
    assert r.returncode == 0 and b"204" in r.stdout, r.stderr + r.stdout  # 'a' is byte 97, and bytes start at 107
