"""The local server driven by the official openai package, on a checkpoint made for it (and on BL_MODEL when that is set)."""
import asyncio
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import openai
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from local_server import ANSWER, DARKBLOOM, TINY, Server  # noqa: E402

MODELS = [TINY] + [pathlib.Path(p) for p in [os.environ.get("BL_MODEL")] if p]
HELLO = [{"role": "user", "content": "Tell me about the sea \U0001F30A, please."}]
LOOP = "x"  # the tiny model continues this for ever


@pytest.fixture(scope="module", params=MODELS, ids=lambda p: p.name)
def server(request):
    with Server(model=request.param) as s:
        s.is_tiny = request.param == TINY
        yield s


def client_of(s, **more):
    return openai.OpenAI(base_url=f"{s.url}/v1", api_key=s.key or "none", max_retries=0, timeout=120, **more)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def test_models(server, client):
    listed = list(client.models.list())
    assert [m.id for m in listed] == [server.model] and listed[0].object == "model" and listed[0].context_length == server.context
    assert client.models.retrieve(server.model).id == server.model
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("no/such")
    assert e.value.code == "model_not_found" and e.value.type == "invalid_request_error"


def chat(server, client, **more):
    args = {"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 48} | more
    return client.chat.completions.create(**args)


def test_a_chat_answer(server, client):
    r = chat(server, client)
    choice = r.choices[0]
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.model == server.model and r.system_fingerprint
    assert abs(r.created - time.time()) < 60 and choice.message.role == "assistant" and choice.index == 0
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.usage.prompt_tokens > 10
    assert choice.message.content and "\ufffd" not in choice.message.content
    if server.is_tiny:
        assert choice.message.content == ANSWER and choice.finish_reason == "stop" and r.usage.completion_tokens == 22
    again = chat(server, client)
    assert again.choices[0].message.content == choice.message.content and again.id != r.id
    assert again.system_fingerprint == r.system_fingerprint


def test_a_streamed_answer_is_the_same(server, client):
    whole = chat(server, client)
    text, finish, usage, roles, pieces = "", [], None, [], 0
    for chunk in chat(server, client, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk" and chunk.model == server.model
        if chunk.usage:
            usage = chunk.usage
            assert chunk.choices == []
            continue
        delta = chunk.choices[0].delta
        roles += [delta.role] if delta.role else []
        text += delta.content or ""
        pieces += bool(delta.content)
        finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert text == whole.choices[0].message.content and finish == [whole.choices[0].finish_reason] and roles == ["assistant"]
    assert usage == whole.usage and pieces > 5
    assert all(c.usage is None for c in chat(server, client, stream=True))


def test_content_parts_and_roles(server, client):
    parts = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]
    assert chat(server, client, messages=parts).choices[0].message.content == chat(server, client).choices[0].message.content
    assert chat(server, client, messages=[{"role": "developer", "content": "Be brief."}, *HELLO]).choices[0].message.content is not None


def test_completions(server, client):
    args = {"model": server.model, "prompt": "Good", "max_tokens": 10, "temperature": 0}
    r = client.completions.create(**args)
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.usage.completion_tokens <= 10
    streamed = "".join(c.choices[0].text for c in client.completions.create(**args, stream=True))
    assert streamed == r.choices[0].text
    assert client.completions.create(**args | {"prompt": ["Good"]}).choices[0].text == r.choices[0].text
    if server.is_tiny:
        assert ANSWER.startswith("Good" + r.choices[0].text) and r.choices[0].finish_reason == "length"
        ids = client.completions.create(**args | {"prompt": [ord("x")]})  # byte-level: printable bytes are their own letters
        assert ids.usage.prompt_tokens == 1


def test_stop_strings(server, client):
    whole = chat(server, client).choices[0].message.content
    cut = whole[5:9]
    for stop in (cut, ["never in there", cut], [whole[7:11], cut]):
        r = chat(server, client, stop=stop)
        assert r.choices[0].message.content == whole[: whole.index(cut)] and r.choices[0].finish_reason == "stop"
        assert "".join(c.choices[0].delta.content or "" for c in chat(server, client, stop=stop, stream=True)) == r.choices[0].message.content


def test_max_tokens(server, client):
    for name in ("max_tokens", "max_completion_tokens"):
        r = chat(server, client, **{"max_tokens": openai.NOT_GIVEN, name: 3})
        assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 3


def test_seeds(server, client):
    def draw(seed):
        return chat(server, client, temperature=1.5, top_p=1, seed=seed, max_tokens=24).choices[0].message.content
    assert draw(7) == draw(7)
    assert len({draw(s) for s in range(6)}) > 1
    unseeded = {chat(server, client, temperature=1.5, top_p=1, max_tokens=24).choices[0].message.content for _ in range(6)}
    assert len(unseeded) > 1
    greedy = chat(server, client, max_tokens=24).choices[0].message.content
    assert chat(server, client, temperature=1.5, max_tokens=24, seed=3, extra_body={"top_k": 1}).choices[0].message.content == greedy


def test_chat_logprobs(server, client):
    r = chat(server, client, logprobs=True, top_logprobs=5, max_tokens=24)
    content = r.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == r.choices[0].message.content
    for t in content:
        assert len(t.top_logprobs) == 5 and t.logprob == t.top_logprobs[0].logprob and t.bytes == t.top_logprobs[0].bytes  # greedy
        values = [x.logprob for x in t.top_logprobs]
        assert values == sorted(values, reverse=True) and sum(map(math.exp, values)) < 1.001 and t.logprob <= 0
    streamed = [t for c in chat(server, client, logprobs=True, top_logprobs=5, max_tokens=24, stream=True)
                if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert streamed == content
    assert chat(server, client).choices[0].logprobs is None
    assert all(t.top_logprobs == [] for t in chat(server, client, logprobs=True).choices[0].logprobs.content)


def test_completion_logprobs(server, client):
    r = client.completions.create(model=server.model, prompt="Good morning, world! \U0001F600", max_tokens=10, temperature=0, logprobs=3)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) <= 10
    assert lp.text_offset[0] == 0 and lp.text_offset == sorted(lp.text_offset) and lp.text_offset[-1] <= len(r.choices[0].text)
    assert all(1 <= len(top) <= 3 and max(top.values()) == own for top, own in zip(lp.top_logprobs, lp.token_logprobs))


def test_errors_arrive_as_the_packages_exceptions(server, client):
    def refused(kind, code, param=None, **more):
        with pytest.raises(kind) as e:
            chat(server, client, **more)
        assert e.value.code == code and (param is None or e.value.param == param), e.value
        return e.value
    refused(openai.NotFoundError, "model_not_found", "model", model="other")
    refused(openai.BadRequestError, "invalid_value", "temperature", temperature=3)
    refused(openai.BadRequestError, "unsupported_parameter", "n", n=2)
    refused(openai.BadRequestError, "unsupported_parameter", "tools", tools=[{"type": "function", "function": {"name": "f"}}])
    refused(openai.BadRequestError, "unsupported_parameter", "response_format", response_format={"type": "xml"})
    refused(openai.BadRequestError, "unsupported_parameter", "response_format",
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}})
    refused(openai.BadRequestError, "invalid_value", "messages", messages=[])
    e = refused(openai.BadRequestError, "context_length_exceeded", "messages",
                messages=[{"role": "user", "content": "a \n" * server.context}])
    assert str(server.context) in e.message and e.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=server.model, prompt=[10**9])


def test_many_clients_get_the_same_answer(server, client):
    want = chat(server, client, max_tokens=16).choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda _: chat(server, client, max_tokens=16).choices[0].message.content, range(24)))
    assert got == [want] * 24


def test_the_asynchronous_client(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as c:
            async def one():
                s = await c.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=16, stream=True)
                return "".join([x.choices[0].delta.content or "" async for x in s])
            return await asyncio.gather(*[one() for _ in range(4)])
    assert len(set(asyncio.run(run()))) == 1


def test_raw_events_are_utf8_and_end_with_done(server):
    c = http.client.HTTPConnection(server.host, server.port, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps({"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 40, "stream": True}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream") and r.headers["X-Request-Id"].startswith("req_")
    events = r.read().split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    for e in events[:-2]:
        assert e.startswith(b"data: ") and json.loads(e[6:].decode("utf-8"))["object"] == "chat.completion.chunk"
    c.request("GET", "/health")  # the connection stays
    assert c.getresponse().status == 200
    c.close()


def endless(s, c, **more):
    return c.completions.create(model=s.model, prompt=LOOP, max_tokens=30000, temperature=0, stream=True, **more)


@pytest.fixture(scope="module")
def tiny():
    with Server() as s:
        yield s


def test_a_client_that_leaves_frees_its_place(tiny):
    c = client_of(tiny)
    before = tiny.health()["requests"]
    stream = endless(tiny, c)
    next(iter(stream))
    tiny.wait_queue(running=1)
    stream.close()
    assert tiny.wait_queue(running=0) < 0.5
    # not streaming: nothing was written to it yet
    http_client = http.client.HTTPConnection(tiny.host, tiny.port)
    http_client.request("POST", "/v1/completions", json.dumps({"model": tiny.model, "prompt": LOOP, "max_tokens": 30000, "temperature": 0}),
                        {"Content-Type": "application/json"})
    tiny.wait_queue(running=1)
    http_client.close()
    assert tiny.wait_queue(running=0) < 0.5
    after = tiny.health()["requests"]
    assert after["cancelled"] == before["cancelled"] + 2 and after["finished"] == before["finished"]


def test_a_full_queue_is_429():
    with Server("--max-concurrent", "1", "--max-queue", "1") as s:
        c = client_of(s)
        streams = [endless(s, c) for _ in range(2)]
        s.wait_queue(running=1, waiting=1)
        with pytest.raises(openai.RateLimitError) as e:
            chat(s, c)
        assert e.value.code == "queue_full" and int(e.value.response.headers["retry-after"]) >= 1
        streams[0].close()
        patient = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=10)
        threading.Timer(0.3, streams[1].close).start()
        assert chat(s, patient).choices[0].message.content == ANSWER  # the package tries again by itself
        assert s.health()["queue"]["max_waiting"] == 1


def test_keys():
    secret = "sk-test-0123456789"
    for args, env in ((["--api-key", secret], {}), ([], {"DARKBLOOM_API_KEY": secret})):
        with Server(*args, env=env, key=secret) as s:
            assert "API key needed" in s.line
            assert chat(s, client_of(s)).choices[0].message.content == ANSWER
            for wrong in ("sk-test-012345678", secret + "0", "none"):
                with pytest.raises(openai.AuthenticationError) as e:
                    chat(s, openai.OpenAI(base_url=f"{s.url}/v1", api_key=wrong, max_retries=0))
                assert e.value.code == "invalid_api_key"
            assert s.health()["status"] == "ok"
            log = s.log_text()
        assert secret not in log and "status=401" in log


def test_the_start_line_and_names():
    with Server("--name", "my-model", "--alias", "gpt-4o-mini", "--context", "64") as s:
        assert s.model == "my-model" and s.context == 64 and "no API key needed" in s.line
        c = client_of(s)
        for name in ("my-model", "gpt-4o-mini", "tiny-chat", str(TINY)):
            assert chat(s, c, model=name).model == "my-model"
        # without max_tokens the answer may fill the context
        r = c.completions.create(model=s.model, prompt=LOOP * 4, temperature=0)
        assert r.choices[0].finish_reason == "length" and 58 <= r.usage.completion_tokens <= 61
        with pytest.raises(openai.BadRequestError) as e:
            c.completions.create(model=s.model, prompt="x" * 65)
        assert "65" in e.value.message and "64" in e.value.message


@pytest.mark.parametrize("args, text", [
    (["--model", str(TINY)], "--local"),
    (["--local"], "--model"),
    (["--local", "--model", str(TINY), "--bind", "0.0.0.0"], "--no-auth"),
    (["--local", "--model", str(TINY), "--api-key", "k", "--no-auth"], "exclude"),
    (["--local", "--model", str(TINY), "--port", "65536"], "65535"),
])
def test_wrong_usage(args, text):
    r = subprocess.run([DARKBLOOM, "start", *args], capture_output=True, text=True, timeout=20,
                       env={k: v for k, v in os.environ.items() if not k.startswith("DARKBLOOM_")})
    assert r.returncode == 2 and text in r.stderr and len(r.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("args, text", [
    (["--model", "/nowhere/model.gguf"], "model.gguf"),
    (["--model", str(TINY), "--bind", "example.com", "--no-auth"], "example.com"),
    (["--model", str(TINY), "--cors", "x"], "--cors"),
])
def test_failing_starts(args, text):
    r = subprocess.run([DARKBLOOM, "start", "--local", *args], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and text in r.stderr and len(r.stderr.strip().splitlines()) == 1, r.stderr


def test_a_taken_port(tiny):
    r = subprocess.run([DARKBLOOM, "start", "--local", "--model", str(TINY), "--port", str(tiny.port)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and str(tiny.port) in r.stderr and "in use" in r.stderr


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_running_answers_end_before_the_server_does(sig):
    s = Server()
    stream = client_of(s).completions.create(model=s.model, prompt=LOOP, max_tokens=2000, temperature=0, stream=True)
    first = next(iter(stream)).choices[0].text
    s.process.send_signal(sig)
    text = first + "".join(c.choices[0].text for c in stream)
    assert text == LOOP * 2000
    assert s.stop() == 0


def test_a_second_signal_cuts():
    s = Server()
    stream = endless(s, client_of(s))
    next(iter(stream))
    for _ in range(2):
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    t0 = time.monotonic()
    with pytest.raises((openai.APIError, openai.APIConnectionError)):
        for _ in stream:
            pass
    assert s.process.wait(timeout=10) == 0 and time.monotonic() - t0 < 5
    assert s.stop() == 0


def test_the_log_holds_nothing_that_users_wrote():
    with Server() as s:
        c = client_of(s)
        chat(s, c, messages=[{"role": "user", "content": "my secret wish"}], user="mallory", stop="secret stop")
        for bad in ({"model": "secret-model"}, {"messages": [{"role": "secret-role", "content": "x"}]}):
            with pytest.raises(openai.APIStatusError):
                chat(s, c, **bad)
        with pytest.raises(openai.NotFoundError):
            c.get("/secret-path", cast_to=object)
        log = s.log_text()
    assert "secret" not in log and "mallory" not in log
    assert "method=POST route=/v1/chat/completions status=200" in log and "completion_tokens=22" in log
