#!/usr/bin/env python3
"""Writes tests/fixtures/toml/cases.json: TOML texts and what Python's own reader (tomllib, TOML 1.0) makes of them.

Texts of ours, each rule of the specification with its border, and seeded random changes of them. Left out is where the two
readers mean to differ: integers beyond 64 bits, second 60, year 0, NUL, and keys or values beyond our ceilings.
    tools/reference/make_toml_cases.py
"""
import datetime
import json
import pathlib
import random
import re
import tomllib

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/toml/cases.json"

# ~ stands for a single quote where three of them would end this string.
TEXTS = r'''
a = 1
---
# nothing but a comment
---
a = 1 # behind
b = "x # no comment"
---
a = 1
a = 2
---
"a" = 1
'a' = 2
---
a.b = 1
a.c = 2
a . d = 3
"a" . 'e f' = 4
---
a.b = 1
a.b.c = 2
---
a.b.c = 1
a = 2
---
3.14 = "pi"
---
"" = 1
---
~~ = 1
---
= 1
---
a =
---
a
---
a = 1 b = 2
---
a = 1, b = 2
---
ä = 1
---
"ä" = "ö"
---
a b = 1
---
a. = 1
---
.a = 1
---
a..b = 1
---
[t]
x = 1
[t.u]
y = 2
[v.w]
z = 3
[v]
q = 4
---
[t]
[t]
---
[t]
a = 1
[t.a]
---
[t]
a.b = 1
[t.a]
---
[t]
a.b.c = 1
[t.a.b]
---
[t]
a.b = 1
[t.a.c]
d = 2
---
[a.b.c]
z = 9
[a]
b.c.t = 1
---
[a.b.c]
z = 9
[a]
b.d = 1
---
[a.b.c]
z = 9
[a]
b.d = 1
[a.b]
---
[a.b]
x = 1
[a]
b.y = 2
---
[[a.b]]
x = 1
[a]
b.y = 2
---
[ t . "u v" ]
x = 1
---
[]
---
[t
---
[t]]
---
[t] x = 1
---
[t] # comment
x = 1
---
[[p]]
n = 1
[[p]]
n = 2
[p.q]
r = 3
[[p.s]]
t = 4
[[p.s]]
t = 5
---
[[p]]
[p]
---
[p]
[[p]]
---
p = []
[[p]]
---
p = [{}]
[p.q]
---
[[ p ]]
x = 1
---
[ [p]]
---
[[p] ]
---
[[p.q]]
[[p]]
---
[p.q]
[[p]]
---
a = {}
[a]
---
a = {b = 1}
a.c = 2
---
a = {b = 1}
[a.c]
---
a = { b = 1, c.d = 2, c.e = 3, "f" = [1, {g = 2}] }
---
a = { b = 1, b = 2 }
---
a = { b.c = 1, b = 2 }
---
a = { b = 1, }
---
a = { , }
---
a = { b = 1
}
---
a = { b = [
1, # comment
2 ] }
---
a = { b }
---
a = {b=1}c
---
a = [1, 2.0, "x", [true], {b = 1}]
---
a = [ # one
  1, # two

  2,
]
---
a = [1 2]
---
a = [,]
---
a = [1,,2]
---
a = [1
---
a = [[[[]]]]
---
a = ]
---
a = "b\tc\n\r\f\b\"\\ \u00e9 \U0001F600"
---
a = "\x41"
---
a = "\u12"
---
a = "\ud800"
---
a = "\U00110000"
---
a = "\ "
---
a = "b
c"
---
a = "b
---
a = 'b\n"c"'
---
a = 'b'c'
---
a = """
one
two"""
---
a = """one \
   two \

   three"""
---
a = """one \   two"""
---
a = """ "one" ""two"" """
---
a = """one""""
---
a = """one"""""
---
a = """one""""""
---
a = """one
---
a = """\"""\""""
---
a = ~~~
one\n ~two~ ~~three~~
~~~
---
a = ~~~one~~~~
---
a = ~~~one~~~~~~
---
a = ""
b = ~~
c = """"""
d = ~~~~~~
---
a = "tab	in"
---
a = 0
b = -0
c = +0
d = 1_000
e = -9223372036854775808
f = 9223372036854775807
---
a = 01
---
a = -01
---
a = 1__0
---
a = _1
---
a = 1_
---
a = + 1
---
a = ++1
---
a = 0xDEAD_beef
b = 0o755
c = 0b1010
d = 0x00
---
a = 0x
---
a = 0x_1
---
a = 0x1_
---
a = +0x1
---
a = 0o8
---
a = 0b2
---
a = 0X1
---
a = 1.0
b = -0.5
c = 6.626e-34
d = 1e6
e = 5e+22
f = 224_617.445_991_228
g = 1E02
h = -0.0
i = +1.5
---
a = 1.
---
a = .1
---
a = 1.e5
---
a = 1._5
---
a = 1_.5
---
a = 1.5_
---
a = 1e_5
---
a = 1e
---
a = 01.5
---
a = 1.5.6
---
a = 1e5.5
---
a = inf
b = -inf
c = +inf
d = nan
e = -nan
---
a = Inf
---
a = infinity
---
a = true
b = false
---
a = True
---
a = truely
---
a = tru
---
a = yes
---
a = 1979-05-27T07:32:00Z
b = 1979-05-27T00:32:00.999999-07:00
c = 1979-05-27 07:32:00z
d = 1979-05-27t07:32:00
e = 1979-05-27
f = 07:32:00
g = 00:32:00.5
---
a = 1979-5-27
---
a = 1979-05-32
---
a = 1979-13-01
---
a = 2023-02-29
---
a = 2024-02-29
---
a = 1900-02-29
---
a = 2000-02-29
---
a = 1979-05-27T
---
a = 1979-05-27T07:32
---
a = 1979-05-27T24:00:00
---
a = 07:60:00
---
a = 07:32
---
a = 7:32:00
---
a = 07:32:00.
---
a = 07:32:00Z
---
a = 1979-05-27T07:32:00+25:00
---
a = 1979-05-27T07:32:00+07
---
a = 1979-05-27 # a date
---
a = 1979-05-27  07:32:00
---
a = [1979-05-27, 07:32:00]
---
[[fruits]]
name = "apple"
[fruits.physical]
color = "red"
[[fruits.varieties]]
name = "red delicious"
[[fruits]]
name = "banana"
---
[fruit]
apple.color = "red"
apple.taste.sweet = true
[fruit.apple.texture]
smooth = true
---
# a whole configuration
config_version = 3

[provider]
name = 'machine one' # said by the owner
memory_reserve_gb = 4
auto_update = true

[backend]
port = 8_100
enabled_models = [
  "one", # first
  "two",
]
engine_v2_max_concurrent_by_model = { "org/model-1" = 2, other = 8 }
mtp_mode = "auto"

[backend.engine_v2_kv_backend_by_model]
"org/model-1" = "paged"

[gemma_optimizations]
prefill_layer18 = true
weighted_r1 = false

[schedule]
enabled = true
[[schedule.windows]]
days = ["mon", "tue"]
start = "22:00"
end = "06:00"
'''


def texts():
    out = [t.replace("~", "'") for t in TEXTS.strip("\n").split("\n---\n")]
    out += [t + "\n" for t in out] + [t.replace("\n", "\r\n") for t in out if "\n" in t]
    out += ["", "\n", "\r\n", "\r", "a = 1\r", "a = 1\rb = 2", "\t a\t=\t1\t", "a = 1\x00", "a = '\x01'", "# \x7f", "a = \"\x1f\"",
            "# \t tab", "a = \"\"\"\r\nb\r\n\"\"\"", "a = 1\n\n\n[b]\n\n", "a = 'é\u2028'", "# é\U0001F600"]
    return out


def change(rng, text):
    pool = "=[]{}.,\"'#\\\n\r\t -+_0123456789aebtxoTZ:"
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text = text[:at] + text[at + 1:]
            case 1:
                text = text[:at] + rng.choice(pool) + text[at:]
            case 2:
                text = text[:at] + rng.choice(pool) + text[at + 1:]
            case 3:
                end = min(len(text), at + rng.randint(1, 12))
                text = text[:end] + text[at:end] + text[end:]
            case 4:
                other = rng.randrange(len(text) + 1)
                text = text[:at] + text[other:other + rng.randint(1, 12)] + text[at:]
    return text


def tagged(v):
    match v:
        case bool():
            return v
        case int():
            if not -2**63 <= v < 2**63:
                raise OverflowError
            return {"i": str(v)}
        case float():
            return {"f": repr(v)}
        case str():
            if "\0" in v:
                raise OverflowError
            return v
        case list():
            return [tagged(x) for x in v]
        case dict():
            if any("\0" in k for k in v):
                raise OverflowError
            return {"t": {k: tagged(x) for k, x in v.items()}}
        case datetime.date() | datetime.time():
            return {"d": 1}
    raise TypeError(type(v))


def case(text):
    """None: left out."""
    if "\0" in text or re.search(r":60|0000-", text):
        return None
    try:
        return {"text": text, "value": tagged(tomllib.loads(text))}
    except tomllib.TOMLDecodeError:
        return {"text": text}
    except (OverflowError, ValueError, RecursionError):
        return None


def main():
    rng = random.Random(6)
    base = texts()
    valid = [t for t in base if "value" in (case(t) or {})]
    changed = [change(rng, rng.choice(base if i % 4 == 0 else valid)) for i in range(2600)]
    all_texts = list(dict.fromkeys(base + changed))
    cases = [c for c in map(case, all_texts) if c is not None]
    OUT.write_text(json.dumps(cases, indent=0, ensure_ascii=True) + "\n")
    print(f"{len(cases)} cases, {sum('value' in c for c in cases)} valid")


main()
