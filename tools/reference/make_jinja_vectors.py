#!/usr/bin/env python3
"""Renders templates with Python's jinja2, set up as Hugging Face transformers sets it up for chat templates, and writes
what came out as test vectors for tests/unit/test_jinja.c.

  make_jinja_vectors.py --out tests/fixtures/jinja           the committed vectors (expressions, statements, chat styles)
  make_jinja_vectors.py --real DIR [--real DIR] --out FILE   vectors from templates found in DIR/*.jinja: publishers' texts,
                                                             for verification in place (BL_JINJA_VECTORS=FILE), never committed
  make_jinja_vectors.py --random N [--seed S] --out FILE     vectors from N random templates, for verification
Needs jinja2 3.1 (written with 3.1.6)."""
import argparse
import datetime
import functools
import glob
import itertools
import json
import os

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

import jinja_cases

NOW = 1753920000  # 2025-07-31 00:00:00 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: a call block around its body, as transformers has it."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(lineno)

    def _run(self, caller):
        return caller()


def make_env():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(fmt):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(fmt)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


@functools.lru_cache(maxsize=4)
def compiled(env, template):
    return env.from_string(template)


def run(env, template, context):
    """The rendering, or None when jinja2 fails."""
    try:
        # a deep copy through JSON: what the C side gets
        text = compiled(env, template).render(**json.loads(json.dumps(context)))
        text.encode("utf-8")  # a lone surrogate is no text
        return text, None
    except Exception as e:  # whatever jinja2 or Python raise is a failed render
        return None, "%s: %s" % (type(e).__name__, e)


def vector(env, name, template, context, refused=False):
    text, error = run(env, template, context)
    v = {"name": name, "template": template, "context": context}
    if refused:
        v["refused"] = True
    elif error is not None:
        v["error"] = error[:200]
    else:
        v["expected"] = text
    return v


def write(path, vectors, note, **shared):
    doc = {"made_by": "tools/reference/make_jinja_vectors.py, jinja2 " + jinja2.__version__, "note": note, "now_unix_s": NOW,
           "cases": vectors}
    doc.update(shared)  # context or template of all cases, stored once
    with open(path, "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, indent=0)
        f.write("\n")
    failed = sum("error" in v for v in vectors)
    print("%s: %d vectors, %d of them errors" % (path, len(vectors), failed))


def committed(out):
    env = make_env()
    os.makedirs(out, exist_ok=True)
    for name, cases in (("expressions", jinja_cases.EXPRESSIONS), ("statements", jinja_cases.STATEMENTS)):
        vectors = [vector(env, "%s %d" % (name, i), t, jinja_cases.CONTEXT) for i, t in enumerate(cases)]
        vectors = [v for v in vectors if " at 0x" not in v.get("expected", "")]  # an address: nothing to compare
        for v in vectors:  # the shared context is stored once
            del v["context"]
        write(os.path.join(out, name + ".json"), vectors, "each case renders with the shared context",
              context=jinja_cases.CONTEXT)
    vectors = [vector(env, "refused %d" % i, t, {}, refused=True) for i, t in enumerate(jinja_cases.REFUSED)]
    write(os.path.join(out, "refused.json"), vectors, "jinja2 may accept these; we refuse them")
    for style, template in sorted(jinja_cases.chat_templates().items()):
        vectors = [vector(env, "%s: %s" % (style, case), template, context) for case, context in jinja_cases.chat_cases()]
        for v in vectors:
            del v["template"]
        write(os.path.join(out, "chat_%s.json" % style), vectors, "our own template in the style of the family",
              template=template)


def real(dirs, out):
    env = make_env()
    vectors = []
    for path in itertools.chain(*(sorted(glob.glob(os.path.join(d, "*.jinja"))) for d in dirs)):
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        for case, context in jinja_cases.chat_cases():
            vectors.append(vector(env, "%s: %s" % (os.path.basename(path), case), template, context))
    write(out, vectors, "verification only")


def random_vectors(n, seed, out):
    import jinja_random
    env = make_env()
    vectors = [vector(env, "random %d" % i, t, jinja_cases.CONTEXT) for i, t in enumerate(jinja_random.templates(n, seed))]
    vectors = [v for v in vectors if " at 0x" not in v.get("expected", "")]
    for v in vectors:
        del v["context"]
    write(out, vectors, "verification only, seed %d" % seed, context=jinja_cases.CONTEXT)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("--real", action="append")
    p.add_argument("--random", type=int)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if a.random:
        random_vectors(a.random, a.seed, a.out)
    elif a.real:
        real(a.real, a.out)
    else:
        committed(a.out)


if __name__ == "__main__":
    main()
