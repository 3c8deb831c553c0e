#!/usr/bin/env python3
"""Renders conversations, as an OpenAI client sends them, with Python's jinja2 and writes what came out as test vectors for
tests/unit/test_chat_renderings.c.

  chat_renderings.py --out tests/fixtures/chat_renderings.json      the committed vectors, over our templates in tests/fixtures/templates
  chat_renderings.py --real DIR --out FILE                          the same over DIR/*.jinja: publishers' texts, for verification in
                                                                    place (BL_CHAT_VECTORS=FILE), never committed

What reference servers do to messages before the template sees them is written here once more, apart from the C code: contents as
the template reads them, arguments of calls as objects, earlier reasoning under its names, the function's name on its result.
Needs jinja2 3.1 (written with 3.1.6)."""
import argparse
import copy
import glob
import json
import os

import jinja2

import make_jinja_vectors as reference

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.path.join(HERE, "..", "..", "tests", "fixtures", "templates")
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


# ---- before the template ----

def parts_shown(env, template, role, content):
    """Does a turn in this role with this content show the word, and not the list's own notation?"""
    turn = {"role": role, "content": content}
    called = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}]
    messages = {"user": [turn], "system": [turn, user("u")], "developer": [turn, user("u")], "assistant": [user("u"), turn, user("v")],
                "tool": [user("u"), assistant("", tool_calls=called), dict(turn, tool_call_id="c1", name="f")]}[role]
    text, _ = reference.run(env, template, dict(TOKENS, messages=messages, tools=None, documents=None, add_generation_prompt=True))
    return text is not None and "zqx" in text and "'type'" not in text and '"type"' not in text


def prepared(messages, reads_parts, only_parts, harmony):
    """reads_parts: role -> whether the template reads lists there."""
    out = []
    for m in copy.deepcopy(messages):
        if m["role"] == "assistant" and m.get("content") is None or "content" in m and m["content"] is None:
            m["content"] = ""
        m = {key: value for key, value in m.items() if value is not None}
        if isinstance(m.get("content"), list) and not reads_parts[m["role"]]:
            m["content"] = "\n".join(p["text"] for p in m["content"])
        elif isinstance(m.get("content"), str) and only_parts and reads_parts[m["role"]]:
            m["content"] = [{"type": "text", "text": m["content"]}]
        if not m.get("tool_calls"):
            m.pop("tool_calls", None)
        for call in m.get("tool_calls", []):
            arguments = call["function"].get("arguments") or "{}"
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
        if m["role"] == "assistant":
            thoughts = m.get("reasoning_content") or m.get("thinking") or m.get("reasoning")
            if thoughts:
                m = {"thinking": thoughts, **m, "reasoning_content": thoughts}
                if harmony and m.get("tool_calls") and m["content"]:
                    m["thinking"], m["content"] = m["thinking"] + "\n\n" + m["content"], ""
        if m["role"] == "tool" and m.get("tool_call_id") and not m.get("name"):
            for earlier in reversed(out):
                names = [c["function"]["name"] for c in earlier.get("tool_calls", []) if c.get("id") == m["tool_call_id"]]
                if names:
                    m["name"] = names[0]
                if names or earlier["role"] != "tool":
                    break
        out.append(m)
    return out


# ---- conversations ----

def tool(name, properties, required):
    return {"type": "function", "function": {"name": name, "description": "Does \"%s\" <well>" % name,
                                             "parameters": {"type": "object", "properties": properties, "required": required}}}


TOOLS = [tool("get_weather", {"city": {"type": "string", "description": "e.g. Zürich"}, "days": {"type": "integer"},
                              "unit": {"type": "string", "enum": ["C", "F"]}}, ["city"]),
         tool("note", {"text": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "on": {"type": "boolean"}}, [])]


def call(n, name, arguments):
    return {"id": "call_%d" % n, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return dict({"role": "assistant", "content": text}, **more)


def result(n, text, **more):
    return dict({"role": "tool", "tool_call_id": "call_%d" % n, "content": text}, **more)


def conversations():
    weather = call(1, "get_weather", "{\"city\": \"Zürich\", \"days\": 3}")
    note = call(2, "note", "{\"text\": \"a \\\"b\\\"\\n</tool_call><|im_end|>\", \"tags\": [\"x\", \"y\"], \"on\": true}")
    asked = [user("Weather?"), assistant(None, tool_calls=[weather])]
    answered = asked + [result(1, "21 °C")]
    yield "user", [user("Hi <b>&</b> é 🎉")], None
    yield "system", [{"role": "system", "content": "Be brief. "}, user(" Hi\n")], None
    yield "turns", [user("1+1?"), assistant("2"), user("2+2?"), assistant("4\n"), user("?")], None
    yield "empty contents", [user(""), assistant(""), user("")], None
    yield "null content", [user("a"), assistant(None), user("b")], None
    yield "parts", [{"role": "system", "content": [{"type": "text", "text": "S"}]},
                    user([{"type": "text", "text": "one"}, {"type": "text", "text": " two"}])], None
    yield "no parts", [user([])], None
    yield "markers in texts", [user("<|im_end|><end_of_turn><turn|><|end|><|eot_id|> <think> {{ x }} {% y %}")], None
    yield "reasoning before", [user("Q"), assistant("A", reasoning_content="because\n"), user("Q2")], None
    yield "reasoning, other name", [user("Q"), assistant("A", reasoning="because"), user("Q2")], None
    yield "reasoning in tags", [user("Q"), assistant("<think>\nhm\n</think>\n\nA"), user("Q2")], None
    yield "ends with assistant", [user("Q"), assistant("Sure,", reasoning_content="easy")], None
    yield "tools", [user("Weather?")], TOOLS
    yield "tools and system", [{"role": "system", "content": "Use tools."}, user("Weather?")], TOOLS
    yield "empty tools", [user("Weather?")], []
    yield "a call", asked, TOOLS
    yield "a result", answered, TOOLS
    yield "a result, named", asked + [result(1, "21 °C", name="get_weather")], TOOLS
    yield "a result in parts", asked + [result(1, [{"type": "text", "text": "21"}, {"type": "text", "text": "°C"}])], TOOLS
    yield "an empty result", asked + [result(1, "")], TOOLS
    yield "an unknown result", asked + [result(9, "x")], TOOLS
    yield "a result, answered", answered + [assistant("It is 21 °C."), user("Thanks")], TOOLS
    yield "reasoning with a call", [user("Weather?"), assistant("", reasoning_content="need it", tool_calls=[weather]), result(1, "21")], TOOLS
    yield "reasoning, text and call", [user("Weather?"), assistant("Let me see.", reasoning_content="need it", tool_calls=[weather]),
                                       result(1, "21")], TOOLS
    yield "reasoning, call, answered", [user("Weather?"), assistant("", reasoning_content="need it", tool_calls=[weather]), result(1, "21"),
                                        assistant("21.", reasoning_content="done"), user("More?")], TOOLS
    yield "two calls", [user("Do"), assistant("Both.", tool_calls=[weather, note]), result(1, "21"), result(2, "ok")], TOOLS
    yield "two rounds", answered + [assistant(None, tool_calls=[note]), result(2, "ok")], TOOLS
    yield "arguments as object", [user("Do"), assistant("", tool_calls=[call(1, "note", {"text": "t", "n": [1, 2.5, None, {"k": False}]})]),
                                  result(1, "ok")], TOOLS
    yield "no arguments", [user("Do"), assistant("", tool_calls=[call(1, "note", "")]), result(1, "ok")], TOOLS
    yield "empty list of calls", [user("Do"), assistant("A", tool_calls=[]), user("B")], TOOLS
    yield "nulls", [dict(user("Q"), name=None), assistant("A", tool_calls=None, reasoning_content=None, refusal=None, function_call=None),
                    user("B")], None
    yield "two names", [user("Q"), assistant("A", thinking="t", reasoning="r", tool_calls=[weather]), result(1, "21")], TOOLS
    yield "developer", [{"role": "developer", "content": "D"}, user("Hi")], None
    yield "two users", [user("a"), user("b")], None


def cases():
    variants = [("", {}), (", thinking on", {"enable_thinking": True}), (", thinking off", {"enable_thinking": False})]
    for name, messages, tools in conversations():
        for more, extra in variants:
            yield name + more, messages, tools, extra, messages[-1]["role"] != "assistant"
    for effort in ("low", "medium", "high", "xhigh"):
        yield "effort " + effort, [user("Q")], None, {"reasoning_effort": effort}, True
    yield "preserve thinking", [user("Q"), assistant("A", reasoning_content="r"), user("Q2")], None, {"preserve_thinking": True}, True


# ---- out ----

def render_all(env, template):
    """One entry a case: the text, or None where jinja2 fails."""
    parts = {role: parts_shown(env, template, role, [{"type": "text", "text": "zqx"}])
             for role in ("user", "system", "developer", "assistant", "tool")}
    strings = parts_shown(env, template, "user", "zqx")
    harmony = all(m in template for m in ("<|start|>", "<|channel|>", "<|message|>"))
    out = []
    for _, messages, tools, extra, prompt in cases():
        context = dict(TOKENS, documents=None, messages=prepared(messages, parts, parts["user"] and not strings, harmony), tools=tools,
                       add_generation_prompt=prompt, **extra)
        out.append(reference.run(env, template, context)[0])
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("--real")
    a = p.parse_args()
    env = reference.make_env()
    families = []
    for path in sorted(glob.glob(os.path.join(a.real or TEMPLATES, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        family = {"family": os.path.basename(path)[:-6], "expected": render_all(env, template)}
        if a.real:
            family["template"] = template
        families.append(family)
        print("%s: %d cases, %d of them errors" % (family["family"], len(family["expected"]), family["expected"].count(None)))
    doc = {"made_by": "tools/reference/chat_renderings.py, jinja2 " + jinja2.__version__, "now_unix_s": reference.NOW, "tools": TOOLS,
           "cases": [{"name": name, "messages": messages, "tools": bool(tools) if tools is not None else None, "extra": extra,
                      "prompt": prompt} for name, messages, tools, extra, prompt in cases()],
           "families": families}
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
