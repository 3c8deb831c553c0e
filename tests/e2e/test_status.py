"""`darkbloom status` and the state file of `start --local`; what is said of drafting at load."""
import json
import os
import signal
import subprocess
import tempfile

import pytest
from local_server import DARKBLOOM, ROOT, Server

HEAD = ROOT / "tests/fixtures/tiny/qwen3_5-moe-tiny"
LLAMA = ROOT / "tests/fixtures/tiny/llama-tiny"


def run(*args, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DARKBLOOM_")}
    clean["XDG_CONFIG_HOME"] = tempfile.gettempdir() + "/darkbloom-e2e-config"  # not the user's own
    return subprocess.run([DARKBLOOM, *map(str, args)], capture_output=True, text=True, timeout=60, env=clean | (env or {}))


@pytest.fixture
def state(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path)}


def status(env):
    r = run("status", "--json", env=env)
    return r.returncode, json.loads(r.stdout)


def test_from_start_to_stop(state, tmp_path):
    assert status(state) == (1, {"running": False, "stale": False, "state": None,
                                 "beta": {"gemma-prefill-layer18": "on", "gemma-weighted-r1": "on", "mtp": "auto"},
                                 "stateFile": str(tmp_path / "darkbloom/daemon-state.json")})
    assert run("status", env=state).stdout == ("server       not running\n"
                                                   "beta         gemma-prefill-layer18=on gemma-weighted-r1=on mtp=auto (model-aware)\n")
    s = Server(env=state)
    rc, j = status(state)
    assert rc == 0 and j["running"] and not j["stale"]
    assert j["state"]["pid"] == s.process.pid and j["state"]["port"] == s.port
    assert j["state"]["currentModel"] == "tiny-chat"
    slot, = j["state"]["slots"]
    assert slot == {"model": "tiny-chat", "kvBackend": "contiguous", "kvBackendRequested": "auto", "mtpEnabled": False,
                    "mtpActive": False, "mtpInactiveReason": "config_disabled", "mtpDepth": 0}
    text = run("status", env=state).stdout
    assert f"running, pid {s.process.pid}" in text and f"http://127.0.0.1:{s.port}" in text and "| mtp=disabled" in text
    assert s.process.stdout.readline() == "mtp: target-only (config_disabled)\n"
    assert "mtp" not in s.log_text()  # nobody asked, so nothing is logged
    s.stop()
    assert status(state)[0] == 1 and not (tmp_path / "darkbloom/daemon-state.json").exists()


def test_killed(state):
    s = Server(env=state)
    s.stop(signal.SIGKILL)
    rc, j = status(state)
    assert rc == 1 and j["stale"] and not j["running"] and j["state"]["pid"] == s.process.pid
    assert "NOT RUNNING (its state is STALE)" in run("status", env=state).stdout


def test_later_server_keeps_its_state(state):
    first, second = Server(env=state), Server(env=state)
    first.stop()
    rc, j = status(state)
    assert rc == 0 and j["state"]["pid"] == second.process.pid
    second.stop()


def test_state_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    env = {"DARKBLOOM_STATE_FILE": str(tmp_path / "file/x.json")}
    s = Server(env=env)
    assert s.health()["status"] == "ok"
    assert "state_file" in s.log_text()
    s.stop()


def test_malformed_state(tmp_path):
    (tmp_path / "s.json").write_text("{")
    r = run("status", env={"DARKBLOOM_STATE_FILE": str(tmp_path / "s.json")})
    assert r.returncode == 1 and "s.json" in r.stderr and r.stdout == ""


# ---- the line at load ----

RUN = ("--tokens", "1,2,3", "-n", "8", "--temperature", "0")


def mtp_lines(r):
    return [l for l in r.stderr.splitlines() if "mtp" in l]


@pytest.mark.parametrize("model, args, env, want", [
    (HEAD, (), {}, ["mtp: active, embedded, k=2"]),
    (HEAD, ("--mtp-depth", "1"), {}, ["mtp: active, embedded, k=1"]),
    (HEAD, ("--mtp-mode", "on"), {}, ["mtp: active, embedded, k=2"]),
    (HEAD, ("--mtp-mode", "off"), {}, []),
    (HEAD, (), {"DARKBLOOM_CBV2_MTP": " OFF "}, ["mtp: target-only (kill_switch_disabled)"]),
    (HEAD, (), {"DARKBLOOM_CBV2_MTP": "1"}, ["mtp: active, embedded, k=2"]),
    (HEAD, ("--quiet",), {}, []),
    (LLAMA, (), {}, []),
    (LLAMA, ("--mtp-mode", "on"), {}, ["mtp: target-only (target_unsupported)"]),
])
def test_line_at_load(model, args, env, want):
    r = run("run", "-m", model, *RUN, *args, env=env)
    assert r.returncode == 0, r.stderr
    assert mtp_lines(r) == want
    assert "mtp" not in r.stdout


def broken(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((HEAD / "model.safetensors").read_bytes())
    config = json.loads((HEAD / "config.json").read_text())
    config["mtplx_mtp"]["block_size"] = 9
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_loud(tmp_path):
    folder = broken(tmp_path)
    r = run("run", "-m", folder, *RUN, "--json", "--quiet")
    line, = mtp_lines(r)
    assert line.startswith(f"darkbloom: warning: mtp: target-only (inline_artifact_invalid): {folder}: ")
    assert "'block_size' is 9" in line
    want = run("run", "-m", HEAD, *RUN, "--json", "--mtp-mode", "off")
    assert json.loads(r.stdout)["tokens"] == json.loads(want.stdout)["tokens"]


def test_draft_counts():
    on, none, off = (json.loads(run("run", "-m", HEAD, *RUN, "--json", *a).stdout)
                     for a in (("--mtp-fixed",), ("--speculation", "off"), ("--mtp-mode", "off")))
    assert on["draft"]["proposed"] > 0 and 0 <= on["draft"]["accepted"] <= on["draft"]["proposed"]
    assert none["draft"] == off["draft"] == {"proposed": 0, "accepted": 0}
    assert on["tokens"] == none["tokens"] == off["tokens"]


def test_models_info():
    j = json.loads(run("models", "info", HEAD, "--json").stdout)
    assert j["mtp"] == {"enabled": True, "active": True, "depth": 2}
    j = json.loads(run("models", "info", HEAD, "--json", env={"DARKBLOOM_CBV2_MTP": "no"}).stdout)
    assert j["mtp"] == {"enabled": True, "active": False, "inactive_reason": "kill_switch_disabled"}
    assert "mtp          target-only (config_disabled)" in run("models", "info", LLAMA).stdout
