"""Many requests at once against the built program: the same answers, slow readers' memory, metrics, ids, load."""
import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.request

import openai
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from local_server import ANSWER, DARKBLOOM, ROOT, TINY, Server  # noqa: E402

LOOP = "x"  # the tiny model continues this for ever


def client_of(s):
    return openai.OpenAI(base_url=f"{s.url}/v1", api_key=s.key or "none", max_retries=0, timeout=120)


def metrics(s):
    request = urllib.request.Request(f"{s.url}/metrics", headers={"Authorization": f"Bearer {s.key}"} if s.key else {})
    with urllib.request.urlopen(request, timeout=10) as r:
        assert r.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {k: float(v) for k, v in re.findall(r"^darkbloom_(\S+) (\S+)$", r.read().decode(), re.M)}


@pytest.fixture(scope="module")
def server():
    with Server("--max-concurrent", "16") as s:
        yield s


def test_sixteen_streams_say_what_one_says(server):
    c = client_of(server)

    def text(i):
        args = {"model": server.model, "prompt": ["Good", "The sea", LOOP * 30, "a b c"][i % 4], "max_tokens": 40, "seed": i % 8,
                "temperature": 0 if i % 2 else 0.9}
        return args, "".join(x.choices[0].text for x in c.completions.create(**args, stream=True))
    alone = {json.dumps(a, sort_keys=True): t for a, t in map(text, range(16))}
    before = metrics(server)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for args, answer in pool.map(text, [i % 16 for i in range(64)]):
            assert alone[json.dumps(args, sort_keys=True)] == answer
    after = metrics(server)
    key = 'http_requests_total{route="/v1/completions",status="200"}'
    assert after[key] - before[key] == 64
    assert after["time_to_first_token_seconds_count"] - before["time_to_first_token_seconds_count"] == 64
    assert after["requests_running"] == after["requests_waiting"] == after["kv_bytes_in_use"] == 0
    assert after["kv_bytes_capacity"] > 0 and after["output_tokens_total"] > before["output_tokens_total"]


def idle_reader(s, n_tokens):
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect((s.host, s.port))
    body = json.dumps({"model": s.model, "prompt": LOOP, "max_tokens": n_tokens, "temperature": 0, "stream": True}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return c


def test_readers_that_stop_hold_little_and_nobody_up(server):
    """Four thousand tokens are 0.8 MB of events; what waits for a reader is at most half a megabyte and its tokens."""
    n, tokens = 8, 4000
    with concurrent.futures.ThreadPoolExecutor(n) as pool:  # so that keys and values have their memory
        c = client_of(server)
        list(pool.map(lambda _: c.completions.create(model=server.model, prompt=LOOP, max_tokens=tokens, temperature=0), range(n)))
    before = server.memory_kib()
    idle = [idle_reader(server, tokens) for _ in range(n)]
    assert client_of(server).chat.completions.create(model=server.model, temperature=0, messages=[
        {"role": "user", "content": "Tell me about the sea \U0001F30A, please."}]).choices[0].message.content == ANSWER
    time.sleep(0.2)
    server.wait_queue(running=0, waiting=0, within_s=120)  # the model went on without them
    grown = (server.memory_kib() - before) / n
    print(f"{grown:.0f} KiB for each reader")
    assert grown < 512 + 12 * tokens / 1024 + 64, f"{grown:.0f} KiB for each reader"
    for i, c in enumerate(idle):
        if i == 0:  # it reads on, and gets everything
            text, c_file = b"", c.makefile("rb")
            while not text.endswith(b"0\r\n\r\n"):
                text += c_file.read1(65536)
            assert text.count(b'"text":"x"') == tokens and b"[DONE]" in text
        c.close()
    server.wait_queue(running=0, waiting=0, preparing=0)


def test_request_ids_and_embeddings(server):
    c = client_of(server)
    r = c.completions.with_raw_response.create(model=server.model, prompt="Good", max_tokens=2, extra_headers={"X-Request-Id": "my-id.7"})
    assert r.headers["x-request-id"] == "my-id.7"
    with pytest.raises(openai.BadRequestError) as e:
        c.embeddings.create(model=server.model, input="x")
    assert e.value.code == "embeddings_not_configured"
    assert "id=my-id.7 method=POST route=/v1/completions status=200" in server.log_text()


def test_cached_tokens_and_tenants(server):
    c = client_of(server)
    args = {"model": server.model, "prompt": "Zebras: the quick brown fox jumps over the lazy dog. " * 12, "max_tokens": 4, "temperature": 0}

    def cached(**more):
        return c.completions.create(**args, extra_body=more).usage.prompt_tokens_details.cached_tokens
    first, again = cached(), cached()
    assert first == 0 and again >= 64
    assert cached(prompt_cache_key="other") == 0 and cached(prompt_cache_key="other") == again
    r = c.completions.create(**args, stop=[c.completions.create(**args).choices[0].text[:1]])
    assert r.choices[0].finish_reason == "stop" and r.usage.prompt_tokens_details.cached_tokens == again


def test_an_unreachable_deadline(server):
    c = client_of(server)
    for n in range(3):  # speeds are known after a few requests
        c.completions.create(model=server.model, prompt=f"{n} one two three " * 40, max_tokens=4)
    with pytest.raises(openai.RateLimitError) as e:
        c.completions.create(model=server.model, prompt="and now something longer " * 400, max_tokens=4,
                             extra_headers={"X-Darkbloom-First-Content-Ms": "1"})
    assert e.value.code == "deadline_unreachable" and int(e.value.response.headers["retry-after"]) >= 1
    assert c.completions.create(model=server.model, prompt="Good", max_tokens=4, extra_headers={"X-Darkbloom-First-Content-Ms": "60000"})


def test_metrics_ask_for_the_key():
    with Server("--api-key", "sk-x", key="sk-x") as s:
        with pytest.raises(urllib.error.HTTPError) as e:
            urllib.request.urlopen(f"{s.url}/metrics", timeout=10)
        assert e.value.code == 401 and metrics(s)["requests_running"] == 0


def test_a_short_load():
    r = subprocess.run([sys.executable, ROOT / "tests/load/load.py", "--darkbloom", DARKBLOOM, "--model", TINY, "--streams", "16",
                        "--concurrent", "16", "--seconds", "6", "--write-timeout", "1", "--max-rss-growth-mib", "64", "--max-gap-ms", "5000"],
                       capture_output=True, text=True, timeout=120)
    summary = json.loads(r.stdout)
    assert r.returncode == 0 and not summary["failed"], r.stdout
    assert summary["completed"]["streams"] > 20 and summary["intended"] and pathlib.Path(DARKBLOOM).exists()
