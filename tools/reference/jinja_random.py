"""Random templates for make_jinja_vectors.py --random: expressions over the shared context, and statements that nest scopes.

One difference is known and left: jinja2 folds constants while compiling, and a slice of a constant that cannot be sliced
("{{ true[1:] }}") becomes undefined that way, while it is an error on variables. Here it is an error always."""
import random

NAMES = ["n", "neg", "zero", "f", "yes", "no", "nil", "s", "empty", "sp", "u", "q", "html", "l", "mixed", "el", "words", "nested", "pairs",
         "d", "ed", "users", "msgs", "missing", "a", "b", "c", "x", "ns"]
LITERALS = ["0", "1", "2", "-1", "3.5", "1e3", "'a'", "'b c'", "''", "'é🎉'", "'%s-%s'", "'{}|{}'", "true", "false", "none", "[]", "[1, 'a', none]",
            "(1, 2)", "{'k': 1, 'z': [2]}", "{}"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "string", "list", "first", "last", "join", "join(', ')", "sort", "reverse|list",
           "unique|list", "min", "max", "sum", "int", "float", "abs", "round", "round(1)", "default('D')", "default('D', true)", "tojson",
           "tojson(indent=2)", "tojson(sort_keys=true)", "map('string')|list", "map(attribute='name')|list", "select|list", "reject('none')|list",
           "selectattr('on')|list", "rejectattr('on', 'defined')|list", "dictsort", "items|list", "replace('a', 'b')", "replace('l', '', 1)",
           "indent(2)", "wordcount", "e", "safe", "batch(2)|list", "slice(2)|list", "groupby('age')", "format('q')", "center(9)",
           "truncate(5)", "map('upper')|join", "map('length')|list", "select('string')|list", "count", "attr('k')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true", "false",
         "odd", "even", "lower", "upper", "callable", "eq 1", "equalto('a')", "in [1, 2, 'a']", "gt 1", "divisibleby 2"]
METHODS = ["upper()", "lower()", "strip()", "lstrip('a ')", "rstrip()", "split()", "split(' ')", "split('a', 1)", "startswith('a')", "endswith('d')",
           "replace('a', 'xx')", "items()|list", "keys()|list", "values()|list", "get('k')", "get('zz', 5)", "title()", "capitalize()", "find('o')",
           "count('l')", "join(['p', 'q'])", "splitlines()", "isdigit()", "format(1, 'z')", "partition(' ')", "zfill(4)", "index(1)", "rsplit('o', 1)",
           "swapcase()", "append(1)", "pop()", "nope()", "items", "rfind('l')", "center(8, '*')", "removeprefix('H')"]
ATTRS = ["k", "a", "name", "items", "role", "content", "n", "zz", "age", "0"]
OPS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
SLICES = ["[0]", "[-1]", "[1:]", "[:2]", "[::-1]", "[1:3]", "['k']", "['items']", "[-2:]", "[::2]", "[5]", "[0:0]"]


def expr(r, depth=3):
    k = r.random()
    if depth == 0 or k < 0.22:
        return r.choice(NAMES) if r.random() < 0.7 else r.choice(LITERALS)
    if k < 0.40:
        return "%s %s %s" % (expr(r, depth - 1), r.choice(OPS), expr(r, depth - 1))
    if k < 0.58:
        return "%s|%s" % (wrap(r, depth), r.choice(FILTERS))
    if k < 0.66:
        return "%s is %s%s" % (wrap(r, depth), "not " if r.random() < 0.3 else "", r.choice(TESTS))
    if k < 0.76:
        return "%s.%s" % (wrap(r, depth), r.choice(METHODS))
    if k < 0.84:
        return "%s%s" % (wrap(r, depth), r.choice(SLICES))
    if k < 0.90:
        return "%s.%s" % (wrap(r, depth), r.choice(ATTRS))
    if k < 0.94:
        return "%s if %s else %s" % (expr(r, depth - 1), expr(r, depth - 1), expr(r, depth - 1))
    if k < 0.97:
        return "[%s, %s]" % (expr(r, depth - 1), expr(r, depth - 1))
    return "%s(%s)" % (r.choice(["not ", "-", ""]), expr(r, depth - 1))


def wrap(r, depth):
    e = expr(r, depth - 1)
    return e if e.replace("_", "").isalnum() or e[:1] in "'[{(" and " " not in e else "(" + e + ")"


VARS = ["a", "b", "c", "x", "n", "l", "m"]


def value(r):
    return r.choice(["1", "'v'", "n", "a", "b", "x", "loop.index", "l", "[a, b]", "a ~ b", "x|default('-')", "ns.v", "n + 1", "m", "loop.last", "c|string"])


def body(r, depth, in_loop, in_macro):
    return "".join(stmt(r, depth, in_loop, in_macro) for _ in range(r.randint(1, 4)))


def stmt(r, depth, in_loop=False, in_macro=False):
    k = r.random()
    v = r.choice(VARS)
    if depth == 0 or k < 0.25:
        return "{{ %s }};" % r.choice([v, value(r), v + "|default('?')", v + " is defined"])
    if k < 0.42:
        return "{%% set %s = %s %%}" % (v, value(r))
    if k < 0.47:
        return "{%% set ns.v = %s %%}" % value(r)
    if k < 0.52:
        return "{%% set %s %%}%s{%% endset %%}" % (v, body(r, depth - 1, in_loop, in_macro))
    if k < 0.66:
        parts = "{%% if %s %%}%s" % (r.choice(["yes", "no", v, "x is defined", "n == 7", "loop.first"]), body(r, depth - 1, in_loop, in_macro))
        if r.random() < 0.4:
            parts += "{%% elif %s %%}%s" % (r.choice(["yes", "no", v]), body(r, depth - 1, in_loop, in_macro))
        if r.random() < 0.5:
            parts += "{%% else %%}%s" % body(r, depth - 1, in_loop, in_macro)
        return parts + "{% endif %}"
    if k < 0.82:
        cond = r.choice(["", "", " if %s != 1" % v, " if x is defined", " if loop is defined"])
        other = "{%% else %%}%s" % body(r, depth - 1, in_loop, in_macro) if r.random() < 0.3 else ""
        target, src = (v, r.choice(["l", "[1, 2]", "'ab'", "range(2)", "el", "a", "l|map('string')"])) if r.random() < 0.8 else (v + ", b", "pairs")
        return "{%% for %s in %s%s %%}%s%s{%% endfor %%}" % (target, src, cond, body(r, depth - 1, True, in_macro), other)
    if k < 0.88:
        args = r.choice(["", "a", "a, b=2", "x=n", "a, b=a"])
        return "{%% macro m(%s) %%}%s{%% endmacro %%}{{ m(%s) }}" % (args, body(r, depth - 1, False, True), r.choice(["", "1", "1, 2", "a=3", "b=1", "x=2"]))
    if k < 0.91:
        return "{%% with %s = %s %%}%s{%% endwith %%}" % (v, value(r), body(r, depth - 1, in_loop, in_macro))
    if k < 0.94:
        return "{%% filter upper %%}%s{%% endfilter %%}" % body(r, depth - 1, in_loop, in_macro)
    if k < 0.97 and in_loop:
        return "{%% if %s %%}{%% %s %%}{%% endif %%}" % (r.choice(["loop.first", "loop.last", "yes", v]), r.choice(["break", "continue"]))
    return r.choice(["\n  ", " \n", "text ", "{#- c -#}", "{% raw %}{{ x }}{% endraw %}", "\n{%- if yes %} y {% endif -%}\n", "{{- '' -}}", "  {% if yes %}\n  z\n  {% endif %}\n"])


def templates(n, seed):
    r = random.Random(seed)
    for i in range(n):
        if i % 2:
            yield "{{ %s }}" % expr(r, r.randint(1, 4))
        else:
            yield "{% set ns = namespace(v=0) %}" * (r.random() < 0.8) + body(r, r.randint(1, 4), False, False)
