#!/usr/bin/env python3
"""Writes the seed corpus of tests/fuzz/fuzz_jinja.c from the cases of jinja_cases.py: batches of expressions, each statement
group, our chat templates, and one template with a JSON context behind a NUL."""
import json
import os
import sys

import jinja_cases


def main(out):
    os.makedirs(out, exist_ok=True)
    for old in os.listdir(out):
        if old.startswith("seed_"):
            os.remove(os.path.join(out, old))
    seeds = [e for e in jinja_cases.EXPRESSIONS[::9] + jinja_cases.STATEMENTS[::3] + jinja_cases.REFUSED if len(e) < 2000]
    seeds += jinja_cases.chat_templates().values()
    name, ctx = jinja_cases.chat_cases()[0]
    seeds.append("{% for m in messages %}{{ m.role }}: {{ m.content|trim }}\n{% endfor %}\0" + json.dumps(ctx))
    for i, s in enumerate(seeds):
        with open(os.path.join(out, "seed_%03d" % i), "w", encoding="utf-8", newline="", errors="replace") as f:
            f.write(s)
    print("%d seeds" % len(seeds))


main(sys.argv[1] if len(sys.argv) > 1 else "tests/fuzz/corpus/jinja")
