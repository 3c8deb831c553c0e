"""Reasoning and tool calls, end to end: a checkpoint that thinks and calls, the server, the official openai package, the terminal."""
import json
import os
import subprocess
import sys

import openai
import pexpect
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import thinking_model  # noqa: E402
from local_server import DARKBLOOM, Server  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
ASK = [{"role": "user", "content": "What is the weather?"}]
THINK = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module", params=["qwen", "gemma"])
def folder(request, tmp_path_factory):
    family = {"qwen": thinking_model.QWEN, "gemma": thinking_model.GEMMA}[request.param]
    return thinking_model.make(tmp_path_factory.mktemp("thinking") / request.param, family)


@pytest.fixture(scope="module")
def server(folder):
    with Server(model=folder) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(server, client, messages=ASK, **more):
    args = {"model": server.model, "messages": messages, "temperature": 0, "max_tokens": 40, "extra_body": THINK} | more
    return client.chat.completions.create(**args)


def check(message, finish):
    assert message["reasoning"] == "hm, the weather" and message["content"] == "Let me see." and finish == "tool_calls"
    (call,) = message["calls"]
    assert call["id"].startswith("call_") and call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Zürich", "days": 3}


def test_a_call_and_its_result(server, client):
    choice = ask(server, client, tools=TOOLS).choices[0]
    m = choice.message
    check({"reasoning": m.reasoning_content, "content": m.content,
           "calls": [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in m.tool_calls]}, choice.finish_reason)
    # what came goes back as the package holds it, and the result with it
    messages = ASK + [m.model_dump(), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "21 °C"}]
    again = ask(server, client, messages, tools=TOOLS)
    assert again.usage.prompt_tokens > 0


def test_a_streamed_call(server, client):
    said = {"reasoning": "", "content": "", "calls": []}
    finish = None
    for chunk in ask(server, client, tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        said["reasoning"] += getattr(delta, "reasoning_content", None) or ""
        said["content"] += delta.content or ""
        for part in delta.tool_calls or []:
            if part.id:
                assert part.index == len(said["calls"]) and part.type == "function"
                said["calls"].append({"id": part.id, "name": part.function.name, "arguments": ""})
            said["calls"][part.index]["arguments"] += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    check(said, finish)


def test_the_packages_own_accumulator(server, client):
    with client.chat.completions.stream(model=server.model, messages=ASK, temperature=0, max_tokens=40, tools=TOOLS, extra_body=THINK) as s:
        s.until_done()
        m = s.get_final_completion().choices[0].message
    assert m.tool_calls[0].function.name == "get_weather" and json.loads(m.tool_calls[0].function.arguments)["days"] == 3


def test_without_tools_a_call_is_text(server, client):
    choice = ask(server, client).choices[0]
    assert choice.message.tool_calls is None and choice.message.reasoning_content == "hm, the weather"
    assert "get_weather" in choice.message.content and choice.finish_reason == "stop"


def test_what_is_refused(server, client):
    def refused(param, **more):
        with pytest.raises(openai.BadRequestError) as e:
            ask(server, client, **more)
        assert e.value.param == param, e.value
    refused("tool_choice", tools=TOOLS, tool_choice="required")
    refused("tools[0].function", tools=[{"type": "function", "function": {"name": "no such name"}}])
    refused("messages[0].content[0]", messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}])


def test_run_keeps_reasoning_apart(folder):
    args = [DARKBLOOM, "run", "-m", str(folder), "-p", "Weather?", "--temperature", "0", "-n", "40", "-q", "--thinking", "on"]
    plain = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert plain.returncode == 0 and plain.stdout.startswith("Let me see.") and "hm, the weather" not in plain.stdout
    j = json.loads(subprocess.run([*args, "--json"], capture_output=True, text=True, timeout=60).stdout)
    assert j["reasoning"] == "hm, the weather" and j["text"].startswith("Let me see.")
    special = subprocess.run([*args, "--show-special"], capture_output=True, text=True, timeout=60).stdout
    assert "hm, the weather" in special and ("<|channel>" in special or "</think>" in special)
    bad = subprocess.run([*args, "--raw"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2 and "--thinking" in bad.stderr
    if folder.name == "gemma":
        bad = subprocess.run([*args, "--effort", "low"], capture_output=True, text=True, timeout=60)
        assert bad.returncode != 0 and "--effort low: the chat template has no such setting" in bad.stderr


def test_chat_dims_reasoning_on_a_terminal_only(folder, tmp_path):
    args = ["chat", "-m", str(folder), "--temperature", "0", "-n", "40", "-q", "--no-history", "--thinking", "on"]
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    piped = subprocess.run([DARKBLOOM, *args], input="Weather?\n", capture_output=True, text=True, timeout=60, env=env)
    assert "Let me see." in piped.stdout and "hm, the weather" not in piped.stdout
    p = pexpect.spawn(DARKBLOOM, args, env=env, encoding="utf-8", timeout=30)
    p.expect("> ")
    p.sendline("Weather?")
    p.expect("\x1b\\[2mhm, the weather\x1b\\[0m\r\n\r\nLet me see.")
    p.sendline("/exit")
    p.expect(pexpect.EOF)
    p.close(force=True)
