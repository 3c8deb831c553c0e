"""provider.toml as an operator meets it: config and beta, exit codes, JSON, precedence, files that are wrong, two at a time."""
import json
import os
import pathlib
import random
import re
import stat
import subprocess
import sys
import threading
import tomllib
import urllib.request

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from local_server import TINY, Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))
VARIABLES = {
    "backend.model": "DARKBLOOM_MODEL",
    "backend.mtp_mode": "DARKBLOOM_CBV2_MTP",
    "backend.engine_v2_kv_backend": "DARKBLOOM_CBV2_PAGED_KV",
    "provider.memory_reserve_gb": "DARKBLOOM_MLX_MEMORY_RESERVE_GB",
    "provider.auto_update": "DARKBLOOM_NO_UPDATE_CHECK",
    "backend.prefill_deadline_mode": "DARKBLOOM_PREFILL_DEADLINE_MODE",
}
READERS = ("status", "status --json", "config show", "config show --json", "config get mtp_mode", "config explain", "beta", "beta list --json", "beta status")
WRITERS = ("config set weighted_r1 true", "beta enable mtp", "beta disable gemma-weighted-r1")


@pytest.fixture
def home(tmp_path):
    return tmp_path


@pytest.fixture
def file(home):
    return home / ".config/darkbloom/provider.toml"


@pytest.fixture
def cli(home):
    drop = ("HF_", "DARKBLOOM_", "XDG_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)} | {"HOME": str(home), "LC_ALL": "C.UTF-8"}

    def run(line, *more, **extra):
        return subprocess.run([DARKBLOOM, *line.split(), *more], capture_output=True, text=True, timeout=60, env=env | extra)

    return run


def put(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def fails(r, code, *texts):
    assert (r.returncode, r.stdout) == (code, ""), r
    lines = r.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("darkbloom: "), r.stderr
    for t in texts:
        assert t in lines[0]


def value(cli, key, **env):
    return json.loads(cli(f"config get {key} --json", **env).stdout)


# ---- a wrong file stops every command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, what", [
    ("[gemma_optimizations]\nweighted_r1 = 0\n", ":2: gemma_optimizations.weighted_r1 is 0, allowed: true or false"),
    ("[gemma_optimizations]\nprefill_layer18 = \"false\"\n", ":2: gemma_optimizations.prefill_layer18 is \"false\", allowed: true or false"),
    ("[backend]\nmtp_mode = \"sometimes\"\n", ":2: backend.mtp_mode is \"sometimes\", allowed: \"auto\", \"on\" or \"off\""),
    ("[backend\n", ":1:9: found the end of the line, allowed: ']'"),
])
def test_a_wrong_file_stops_every_command(cli, file, text, what):
    put(file, text)
    before = file.stat()
    for line in READERS + WRITERS:
        fails(cli(line), 1, str(file) + what)
    after = file.stat()
    assert file.read_text() == text and (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_only_a_missing_file_is_defaults(cli, file, home):
    assert value(cli, "weighted_r1")["source"] == "default"
    assert cli("config show").stdout.startswith(f"{file} (not there: defaults)\n")
    file.parent.mkdir(parents=True)
    file.symlink_to("nowhere")
    fails(cli("config show"), 1, "a symbolic link to nothing")
    file.unlink()
    file.mkdir()
    fails(cli("config show"), 1, "a folder")
    fails(cli("config show", HOME="/dev/null"), 1, "Not a directory")
    if os.geteuid() != 0:
        file.rmdir()
        put(file, "").chmod(0)
        fails(cli("config show"), 1, "Permission denied")


def test_unknown_keys_are_warned_of_and_kept(cli, file):
    text = "# mine\n[backend]\nmtp_mod = 'off' # typing\n"
    put(file, text)
    r = cli("config get mtp_mode")
    assert (r.returncode, r.stdout) == (0, "auto\n")
    assert r.stderr == f"darkbloom: warning: {file}:3: unknown key 'backend.mtp_mod' is ignored, did you mean 'mtp_mode'?\n"
    assert cli("config set mtp_mode off").returncode == 0
    assert file.read_text() == "config_version = 3\n" + text + "mtp_mode = \"off\"\n"


def mutate(rng, text):
    pool = "=[]{}.,\"'#\\\n\t -_0123456789aefnorstu:"
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(text))
        text = rng.choice((text[:at] + text[at + 1:], text[:at] + rng.choice(pool) + text[at:], text[:at] + rng.choice(pool) + text[at + 1:]))
    return text


def test_the_verdict_of_another_reader(cli, file):
    """Changed files: what Python's reader refuses is refused; what it reads has the same values, or a type that is refused."""
    good = ("config_version = 3\n[provider]\nname = 'corner' # c\nmemory_reserve_gb = 6\n[backend]\nport = 8_100\nenabled_models = ['a', \"b\"]\n"
            "mtp_mode = \"on\"\nstartup_preload = false\n[gemma_optimizations]\nweighted_r1 = false\nprefill_layer18 = false\n")
    rng = random.Random(3)
    n_read = 0
    for _ in range(250):
        text = mutate(rng, good)
        put(file, text)
        r = cli("config show --json")
        try:
            want = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            fails(r, 1, f"{file}:")
            continue
        if r.returncode != 0:
            fails(r, 1, f"{file}:", "allowed: ")
            continue
        n_read += 1
        for k in json.loads(r.stdout)["keys"]:
            section, _, name = k["key"].rpartition(".")
            there = want.get(section, {}) if section else want
            if k["key"] != "config_version" and name in there:
                assert (k["source"], k["value"]) == ("file", there[name]), text
            elif k["key"] != "config_version":
                assert k["source"] == "default", text
    assert n_read > 50


# ---- what is in force -----------------------------------------------------------------------------------------------------------------


def test_sources(cli, file):
    put(file, "config_version = 3\n[backend]\nmtp_mode = 'on'\nengine_v2_kv_backend = 'paged'\n")
    assert value(cli, "mtp_mode") | {"used_by": 0} == {"key": "backend.mtp_mode", "value": "on", "source": "file", "default": "auto",
                                                       "environment": None, "option": None, "used_by": 0, "line": 3}
    assert value(cli, "mtp_mode", DARKBLOOM_CBV2_MTP=" No ")["value"] == "off"
    assert value(cli, "mtp_mode", DARKBLOOM_CBV2_MTP="1")["value"] == "on"
    assert value(cli, "engine_v2_kv_backend", DARKBLOOM_CBV2_PAGED_KV="0")["environment"] == "DARKBLOOM_CBV2_PAGED_KV"
    assert value(cli, "memory_reserve_gb", DARKBLOOM_MLX_MEMORY_RESERVE_GB="9")["value"] == 9
    assert value(cli, "auto_update", DARKBLOOM_NO_UPDATE_CHECK="0")["value"] is False
    assert value(cli, "prefill_deadline_mode", DARKBLOOM_PREFILL_DEADLINE_MODE="enforce")["value"] == "enforce"
    fails(cli("config show", DARKBLOOM_MLX_MEMORY_RESERVE_GB="lots"), 1, "DARKBLOOM_MLX_MEMORY_RESERVE_GB is 'lots', allowed: an integer")
    shown = cli("config show", DARKBLOOM_CBV2_MTP="off").stdout
    assert 'backend.mtp_mode                            "off"           environment DARKBLOOM_CBV2_MTP\n' in shown
    assert 'backend.engine_v2_kv_backend                "paged"         provider.toml:4\n' in shown
    assert "backend.port                                8100            default\n" in shown


def test_what_a_command_line_makes_of_it(cli, file):
    put(file, "config_version = 3\n[backend]\nmtp_mode = 'on'\nengine_v2_kv_backend = 'paged'\nengine_v2_max_concurrent = 99\n")
    line = "config show --json -- start --local --model x --max-concurrent 8 --kv-storage contiguous --mtp-drafter-path"
    for env, kv in (({}, ("contiguous", "command line")), ({"DARKBLOOM_CBV2_PAGED_KV": "0"}, ("contiguous", "environment"))):
        r = cli(line, "/a b", **env)
        assert r.returncode == 0 and "is 99, taken as 64" in r.stderr
        keys = {k["key"]: k for k in json.loads(r.stdout)["keys"]}
        assert (keys["backend.engine_v2_max_concurrent"]["value"], keys["backend.engine_v2_max_concurrent"]["option"]) == (8, "max-concurrent")
        assert keys["backend.mtp_drafter_path"]["value"] == "/a b"
        assert (keys["backend.engine_v2_kv_backend"]["value"], keys["backend.engine_v2_kv_backend"]["source"]) == kv
        assert keys["backend.mtp_mode"]["source"] == "file"
    assert re.search(r'engine_v2_max_concurrent +8 +command line --max-concurrent\n', cli("config show -- start --max-concurrent 8").stdout)
    assert re.search(r'engine_v2_max_concurrent +64 +provider.toml:5\n', cli("config show -- start").stdout)
    for bad, what in (("nope", "unknown command 'nope' behind --"), ("start --max-concurrent 0", "--max-concurrent is 0, allowed: 1 to 64")):
        r = cli(f"config show -- {bad}")
        assert (r.returncode, r.stdout) == (2, "") and what in r.stderr


def test_every_variable_is_read_and_explained(cli):
    text = cli("config explain").stdout
    for key, var in VARIABLES.items():
        assert value(cli, key, **{var: "1" if "mode" not in key or "mtp" in key else "off"})["key"] == key
        assert var in text.split(f"\n{key}\n")[1].split("\n\n")[0]
    keys = json.loads(cli("config explain --json").stdout)["keys"]
    assert [k["key"] for k in keys] == [k["key"] for k in json.loads(cli("config show --json").stdout)["keys"]]
    assert all(k["doc"] and k["allowed"] for k in keys)
    docs = (ROOT / "docs/config.md").read_text()
    assert not [k["key"] for k in keys if f"| `{k['key']}` |" not in docs]


def test_where_the_file_is(cli, home, file):
    put(file, "backend.port = 1\n")
    put(home / "xdg/darkbloom/provider.toml", "backend.port = 2\n")
    put(home / "own.toml", "backend.port = 3\n")
    assert value(cli, "port")["value"] == 1
    assert value(cli, "port", XDG_CONFIG_HOME=str(home / "xdg"))["value"] == 2
    assert value(cli, "port", XDG_CONFIG_HOME="xdg")["value"] == 1
    assert cli("config get port -c ~/own.toml").stdout == "3\n"
    fails(cli("config get port", HOME=""), 1, "no folder for provider.toml")


# ---- changing -------------------------------------------------------------------------------------------------------------------------


def test_set_and_get(cli, file):
    r = cli("config set backend.mtp_mode off")
    assert (r.returncode, r.stdout, r.stderr) == (0, f'backend.mtp_mode = "off"  in {file}\n', "")
    assert file.read_text() == 'config_version = 3\n\n[backend]\nmtp_mode = "off"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.stat().st_ino
    assert "already is" in cli("config set backend.mtp_mode off").stdout
    assert file.stat().st_ino == before
    assert json.loads(cli("config set port 1 --json").stdout) == {"key": "port", "value": 1, "written": True, "file": str(file)}
    assert file.stat().st_ino != before
    cli("config set enabled_models a,b/c")
    cli("config set backend.engine_v2_max_concurrent_by_model.b/c.d 2")
    cli("config set name", "a \"quoted\" näme")
    assert tomllib.loads(file.read_text()) == {
        "config_version": 3, "provider": {"name": "a \"quoted\" näme"},
        "backend": {"mtp_mode": "off", "port": 1, "enabled_models": ["a", "b/c"], "engine_v2_max_concurrent_by_model": {"b/c.d": 2}}}
    assert cli("config get engine_v2_max_concurrent_by_model.b/c.d").stdout == "2\n"
    fails(cli("config get engine_v2_max_concurrent_by_model.other"), 1, "is not set")
    fails(cli("config get backend.model"), 1, "backend.model is not set")
    r = cli("config set mtp_mode on", DARKBLOOM_CBV2_MTP="0")
    assert r.returncode == 0 and "DARKBLOOM_CBV2_MTP is set in this environment and goes before the file" in r.stderr


@pytest.mark.parametrize("line, text", [
    ("config set mtp_mode sometimes", "mtp_mode is 'sometimes', allowed: \"auto\", \"on\" or \"off\""),
    ("config set mtpmode on", "no key 'mtpmode', did you mean 'mtp_mode'?"),
    ("config set backend.port 65536", "allowed: an integer from 0 to 65535"),
    ("config set weighted_r1 0", "allowed: true or false"),
    ("config set schedule.windows x", "edit the file"),
    ("config set config_version 3", "config_version is written by the program alone"),
    ("config set mtp_mode", "is missing"),
    ("config get nothing.here", "no key 'nothing.here'"),
    ("config sat mtp_mode on", "unknown command 'config sat', did you mean 'set'?"),
    ("beta enable kv-quant", "no beta feature 'kv-quant', allowed: gemma-prefill-layer18, gemma-weighted-r1, mtp"),
    ("beta status nope", "no beta feature 'nope'"),
    ("beta enable", "is missing"),
])
def test_wrong_usage_writes_nothing(cli, file, line, text):
    fails(cli(line), 2, text)
    assert not file.parent.exists()


def test_beta(cli, file):
    features = json.loads(cli("beta list --json").stdout)
    assert [(f["id"], f["enabled"], f["state"], f["pinned"]) for f in features] == [
        ("gemma-prefill-layer18", True, "on", False), ("gemma-weighted-r1", True, "on", False), ("mtp", None, "auto", False)]
    assert cli("beta --json").stdout == cli("beta list --json").stdout
    assert "[auto] mtp " in cli("beta").stdout and "AUTOMATIC (model-aware), by default" in cli("beta status mtp").stdout
    assert not file.parent.exists()
    # a default that is asked for is written down; the second time nothing is
    r = cli("beta enable Gemma-Weighted-R1")
    assert r.returncode == 0 and r.stdout.startswith("Enabled ") and str(file) in r.stdout
    first = file.read_bytes()
    assert first == b"config_version = 3\n\n[gemma_optimizations]\nweighted_r1 = true\n"
    assert "is already enabled" in cli("beta enable gemma-weighted-r1").stdout
    assert file.read_bytes() == first
    # auto is neither on nor off, also where the file says so
    for mode, state in (("enable", "on"), ("disable", "off")):
        assert cli("config set mtp_mode auto").returncode == 0
        assert json.loads(cli(f"beta {mode} mtp --json").stdout)["written"] is True
        assert cli("config get mtp_mode").stdout == f"{state}\n"
        assert json.loads(cli(f"beta {mode} mtp --json").stdout)["written"] is False
    status = cli("status")
    assert status.stdout.splitlines()[-1] == "beta         gemma-prefill-layer18=on gemma-weighted-r1=on mtp=off"
    assert json.loads(cli("status --json").stdout)["beta"] == {"gemma-prefill-layer18": "on", "gemma-weighted-r1": "on", "mtp": "off"}
    assert cli("status --config none.toml").stdout.endswith("mtp=auto (model-aware)\n")
    assert "disabled, line " in cli("beta status mtp").stdout and "[off]  mtp " in cli("beta").stdout


def test_an_earlier_file_is_brought_up_to_date_by_who_writes(cli, file):
    text = "config_version = 1\n[backend]\nmtp = false # before\nengine_v2_max_concurrent = 8\ncontinuous_batching = true\n"
    put(file, text)
    r = cli("config get engine_v2_max_concurrent")
    assert r.stdout == "4\n" and "'backend.continuous_batching' has no effect any more" in r.stderr and "set it again" in r.stderr
    assert file.read_text() == text  # reading changes nothing
    assert cli("beta enable gemma-weighted-r1").returncode == 0
    assert file.read_text() == ("config_version = 3\n[backend]\nmtp_mode = \"auto\" # before\nengine_v2_max_concurrent = 4\n"
                                "continuous_batching = true\n\n[gemma_optimizations]\nweighted_r1 = true\n")
    assert cli("config set engine_v2_max_concurrent 8").returncode == 0
    assert cli("config get engine_v2_max_concurrent").stdout == "8\n"


def test_two_writers_both_land(cli, file):
    for _ in range(10):
        file.unlink(missing_ok=True)
        threads = [threading.Thread(target=cli, args=(line,)) for line in ("beta enable mtp", "beta disable gemma-weighted-r1", "config set port 5")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert tomllib.loads(file.read_text()) == {"config_version": 3, "backend": {"mtp_mode": "on", "port": 5},
                                                   "gemma_optimizations": {"weighted_r1": False}}


# ---- commands take their defaults from it ---------------------------------------------------------------------------------------------


def test_options_go_before_the_file(cli, file):
    def why_not(*args, **env):
        r = cli("models info", str(TINY), "--json", *args, **env)
        assert r.returncode == 0, r.stderr
        return json.loads(r.stdout)["mtp"]["inactive_reason"]

    assert why_not() == "config_disabled"  # auto, and the checkpoint declares nothing
    put(file, f"config_version = 3\n[backend]\nmodel = '{TINY}'\nmtp_mode = 'on'\n")
    assert why_not() == "target_unsupported"
    assert why_not("--mtp-mode", "off") == "config_disabled"
    assert why_not(DARKBLOOM_CBV2_MTP="off") == "kill_switch_disabled"
    assert cli("run -p x -n 2 -q --temperature 0").returncode == 0  # the model is the file's
    assert cli("run -p x -n 2 -q", DARKBLOOM_MODEL="nothing-like-it").returncode == 1
    put(file, "[backend]\nmodel = '  '\n")
    fails(cli("run -p x"), 2, "no model given")


@pytest.mark.parametrize("line", ["run -p x", "chat", "tokenize", "benchmark", "models info", "start --local"])
def test_a_wrong_file_stops_models_too(cli, file, line):
    put(file, "[gemma_optimizations]\nweighted_r1 = 0\n")
    args = [] if line == "models info" else ["--model"]
    fails(cli(line, *args, str(TINY)), 1, f"{file}:2: gemma_optimizations.weighted_r1 is 0, allowed: true or false")


def serving(file, home, *args, **env):
    """What the server's log says of the engine, and what /metrics says of its storage."""
    s = Server(*args, env={"HOME": str(home), "XDG_CONFIG_HOME": str(file.parents[1]), **env})
    try:
        with urllib.request.urlopen(f"{s.url}/metrics", timeout=10) as r:
            storage = re.search(r'kv_storage\{storage="(\w+)",reason="(\w+)"\}', r.read().decode())
        return int(re.search(r"concurrent=(\d+)", s.log_text())[1]), storage[1], storage[2]
    finally:
        s.stop()


def test_the_server(file, home):
    text = "[backend]\nengine_v2_max_concurrent = 2\nengine_v2_kv_backend = 'Paged'\n"
    put(file, "config_version = 3\n" + text)
    assert serving(file, home) == (2, "paged", "asked_for")
    assert serving(file, home, "--max-concurrent", "3", "--kv-storage", "contiguous") == (3, "contiguous", "asked_for")
    assert serving(file, home, DARKBLOOM_CBV2_PAGED_KV="0") == (2, "contiguous", "kill_switch")
    by_model = f"[backend.engine_v2_max_concurrent_by_model]\n'{TINY}' = 99\nother = 5\n"
    put(file, "config_version = 3\n" + text + by_model)
    assert serving(file, home) == (64, "paged", "asked_for")
    put(file, text + f"[backend.engine_v2_kv_backend_by_model]\n'{TINY}' = 'contiguous'\n")
    assert serving(file, home) == (2, "contiguous", "asked_for")
    assert file.read_text().startswith("config_version = 3\n[backend]\n")  # the server brings it up to date


def test_variables_of_earlier_versions_are_warned_of(cli):
    r = cli("start --local --model nothing-like-it", DARKBLOOM_ENGINE_V2="1", DARKBLOOM_KV_CAPTURE_MAX_INFLIGHT="2")
    lines = r.stderr.splitlines()
    assert r.returncode == 1 and [w for w in lines if "no effect any more" in w] == [
        "darkbloom: warning: DARKBLOOM_ENGINE_V2 has no effect any more",
        "darkbloom: warning: DARKBLOOM_KV_CAPTURE_MAX_INFLIGHT has no effect any more"]
    assert "DARKBLOOM_ENGINE_V2" not in cli("start --help").stdout


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
