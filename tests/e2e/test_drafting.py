"""Drafting over HTTP, with a model that was trained (../shared/small/qwen3_5-doc): the answer is the one without drafts, and
usage, metrics and status tell of them."""
import json
import os
import pathlib
import re
import subprocess
import urllib.request

import pytest
from local_server import DARKBLOOM, ROOT, Server

SHARED = pathlib.Path(os.environ.get("BL_SHARED", ROOT.parent / "shared"))
MODEL = SHARED / "fixtures/small/qwen3_5-doc"
pytestmark = pytest.mark.skipif(not MODEL.is_dir(), reason=f"{MODEL} is not here (BL_SHARED)")
PROMPT = "The function returns a pointer to"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server("--mtp-fixed", "--prefix-cache", "off", model=MODEL, env={"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))})
    assert s.process.stdout.readline() == "mtp: active, embedded, k=2\n"
    yield s
    s.stop()


def complete(s, **fields):
    body = {"model": s.model, "prompt": PROMPT, "max_tokens": 48, "temperature": 0} | fields
    req = urllib.request.Request(f"{s.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(req, timeout=60) as r:
        return json.load(r)


def seen(reply):
    u = reply["usage"]
    c = reply["choices"][0]
    return c["text"], c["finish_reason"], c["logprobs"], u["prompt_tokens"], u["completion_tokens"]


def metrics(s):
    with urllib.request.urlopen(f"{s.url}/metrics", timeout=10) as r:
        text = r.read().decode()
    return {k: float(v) for k, v in re.findall(r"^darkbloom_(mtp_\S+) (\S+)$", text, re.M)}


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 3}, {"logprobs": 2}, {"max_tokens": 1}, {"max_tokens": 5},
                                    {"frequency_penalty": 1.5}, {"response_format": {"type": "regex", "pattern": "[a-z ]{20,40}"}}])
def test_same_answer(server, fields):
    on, off = complete(server, **fields), complete(server, speculation="off", **fields)
    assert seen(on) == seen(off)
    details = off["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def test_stop_strings_inside_bursts(server):
    text = complete(server)["choices"][0]["text"]
    for at in range(0, len(text) - 3, 5):
        stop = text[at:at + 3]
        on, off = complete(server, stop=stop), complete(server, stop=stop, speculation="off")
        assert seen(on) == seen(off)
        assert seen(on)[0] == text[:text.index(stop)] and seen(on)[1] == "stop"


def test_counts(server):
    before = metrics(server)
    usage = complete(server)["usage"]
    details, after = usage["completion_tokens_details"], metrics(server)
    assert details["accepted_prediction_tokens"] > 0 and details["rejected_prediction_tokens"] > 0
    # each round gives the accepted ones and one more; the first token comes with the prompt
    rounds = after["mtp_rounds_total"] - before["mtp_rounds_total"]
    assert rounds > 0 and details["accepted_prediction_tokens"] + rounds >= usage["completion_tokens"] - 2
    grown = {n: sum(after[f'mtp_tokens_{n}_total{{depth="{d}"}}'] - before[f'mtp_tokens_{n}_total{{depth="{d}"}}'] for d in (1, 2))
             for n in ("proposed", "accepted")}
    assert grown == {"proposed": sum(details.values()), "accepted": details["accepted_prediction_tokens"]}
    assert after["mtp_enabled"] == after["mtp_active"] == 1 and after["mtp_max_depth"] == 2
    assert not any(k.startswith("mtp_inactive_reason") for k in after)


def test_killed():
    s = Server(model=MODEL, env={"DARKBLOOM_CBV2_MTP": "off"})
    assert s.process.stdout.readline() == "mtp: target-only (kill_switch_disabled)\n"
    m = metrics(s)
    assert m["mtp_enabled"] == 1 and m["mtp_active"] == 0
    assert m['mtp_inactive_reason{model="qwen3_5-doc",reason="kill_switch_disabled"}'] == 1
    assert "completion_tokens_details" not in complete(s)["usage"]
    s.stop()


def test_status(server):
    environ = pathlib.Path(f"/proc/{server.process.pid}/environ").read_text().split("\0")
    env = os.environ | dict(e.split("=", 1) for e in environ if e.startswith("XDG_STATE_HOME="))
    r = subprocess.run([DARKBLOOM, "status"], capture_output=True, text=True, env=env)
    assert r.returncode == 0 and "| mtp=enabled, active, k=2" in r.stdout
