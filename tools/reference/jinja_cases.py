"""The cases of make_jinja_vectors.py: expressions, statements, templates in the style of each family, conversations."""
CONTEXT = {
    "n": 7, "neg": -3, "zero": 0, "big": 9007199254740993, "f": 2.5, "tiny": 1e-7, "huge": 1e22, "third": 0.1, "whole": 3.0,
    "yes": True, "no": False, "nil": None,
    "s": "Hello World", "empty": "", "sp": "  \t padded text \n ", "u": "Grüße, мир! 你好 🎉 e\u0301", "q": "it's \"quoted\"",
    "html": "<b>&amp; \"x\" 'y'</b>", "nl": "one\ntwo\r\nthree\n\nfive", "csv": "a,b,,c,", "digits": "042", "ctl": "\u0001\u007f\u2028",
    "greek": "ΑΣ ΟΔΥΣΣΕΥΣ", "sharp": "Straße ﬁn ŉ", "dz": "ǆabc",
    "l": [3, 1, 2], "mixed": [1, "a", None, 2.5, True, [1], {"k": "v"}], "el": [], "words": ["b", "A", "c", "a", "B"],
    "nested": [[1, 2], [3, 4], [5]], "pairs": [["x", 1], ["y", 2]],
    "d": {"b": 1, "a": "two", "C": None, "items": "an entry", "_p": 1, "n": {"m": {"k": "deep"}}},
    "ed": {}, "many": {"key%d" % i: i for i in range(12)},
    "users": [{"name": "Zoe", "age": 31, "tags": ["x"], "on": True}, {"name": "adam", "age": 25, "tags": [], "on": False},
              {"name": "Bob", "age": 31, "on": True}],
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": " U "}, {"role": "assistant", "content": ""}],
}

_EXPR = r"""
1|2.0|1.5e3|1_000|0x1f|0b101|0o17|00|.5|1e5|1E-3|"a" "b"|'x\ny'|"\u00e9\x41\101\t|"|'a\qb'|"\
x"|'\'"'
true|false|none|True|False|None|nil|yes|no|[]|()|{}|(1,)|(1, 2)|[1, 2,]|{"a": 1,}|1, 2|{'a': [1, {'b': (2,)}]}
n + 1|n - 10|n * f|n / 2|n // 2|neg // 2|n % 3|neg % 3|neg % -2|n ** 2|2 ** -1|2 ** 0.5|f // 1|-f // 1|f % 1|-f % 1|neg / 2|4 / 2|7.0 // 2|-7 // 2.0
2 ** 62|-(-3)|+n|- n ** 2|-yes|+no|yes + yes|1 / 0|1 // 0|1 % 0|1.0 / 0|0 ** -1
1 + 2 * 3 - 4 / 2|(1 + 2) * 3|2 ** 3 ** 2|-2 ** 2|not 1 == 2|1 < 2 < 3|1 < 3 < 2|1 == 1.0|yes == 1|"1" == 1|1 != 2|n >= 7|n <= 6|3 > 2 > 1
big|big + 0.0|big == 9007199254740992.0|big > 9007199254740992.0|tiny|huge|third|whole|third + 0.2|1e16|1e15|123456789.125|1e-4|1e-5|0.1 + 0.2|100.0|-0.0|1e300 * 1e10|5e-324|1.7976931348623157e308
"a" < "b"|"a" < "B"|"abc" < "abd"|"é" > "z"|"a" < 1|none < 1|[1, 2] < [1, 3]|[1] < [1, 0]|(1, 2) < (2,)|[1] < ["a"]|{} < {}|el == ()|[1, 2] == [1, 2]|(1, 2) == [1, 2]|d == d|{"a": 1} == {"a": 1.0}|{1: 2} == {True: 2}
"a" in "abc"|"" in "abc"|1 in l|"1" in l|"a" in d|"zz" in d|1 not in l|"x" not in s|1 in "abc"|1 in 5|"k" in none|1 in range(3)|1.0 in range(3)|missing in l|"a" in missing|none in mixed|[1] in mixed|[1] in d|"a" in d.keys()|1 in d.values()|("b", 1) in d.items()
yes and no|yes or no|not yes|"" or "x"|0 or none|n and s|el or "e"|1 and 2 and 3|0 or "" or el|not el|not missing|missing or "m"|none and x.y|yes or x.y
1 if yes else 2|1 if no else 2|1 if no|(1 if no) is defined|"a" if 0 else "b" if 1 else "c"|(1 if yes) + 1|1 if missing else 2
missing|missing.x|missing["x"]|missing[0]|missing()|missing + 1|missing - 1|1 + missing|-missing|missing == missing2|missing == none|missing != 1|missing < 1|missing ~ "x"|missing[1:]|missing|length|missing|upper|missing|list|missing|default("d")
d.a|d["a"]|d.zz|d.zz.yy|d["zz"]|d.items|d["items"]|d.n.m.k|d.n["m"].k|d._p|d.C|d.C.x|d.get("a")|d.get("zz")|d.get("zz", 5)|d.get("C", 5)|d.get()|d.keys()|d.values()|d.items()|d.keys()|list|d.nope()|d["n"]["zz"]|d.__class__|d.__class__.x|s.__len__
l[0]|l[-1]|l[5]|l[5].x|l["a"]|l.a|l[yes]|l[1.0]|l[none]|l.append(1)|l.append|l.pop()|d.update({})|d.pop("a")|d.clear|l.sort()|l.0|l.1|nested.0.1|nested[1][0]|s[0]|s[-1]|s[99]|u[7]|u[-1]|u[12]|s["x"]|n["x"]|n.x|none.x|nil["x"]
l[1:]|l[:1]|l[::-1]|l[::2]|l[-2:]|l[:-1]|l[5:]|l[::-2]|l[2:0:-1]|l[none:2]|l["a":]|l[::0]|l[0:99]|l[-99:99]|el[1:]|s[1:4]|s[::-1]|s[::3]|s[-3:]|u[6:9]|u[::-1]|u[3:]|u[:-2]|s[10:2]|s[5:2:-1]|(1, 2, 3)[1:]|range(10)[2:8:3]|range(5)[::-1]|nil[1:]|n[1:]|d[1:]|d.items()[0]|l[1:2, 3]
[1, 2] + [3]|[1] + (2,)|(1,) + (2,)|[1, 2] * 2|2 * [0]|"ab" * 3|0 * "a"|"a" * -1|"a" + "b"|"a" + 1|1 + "a"|"a" - "b"|[1] - [1]|d + d|none + 1|"a" * "b"|"a" * 1.0|el * 5
"a" ~ 1 ~ none ~ 2.5|"x" ~ [1, "a"]|1 ~ 2|yes ~ no ~ missing ~ el|"%s" % "x"|"%d %s" % (1, "b")|"%5.2f|%-5s|%05d|%+d|%x|%X|%o|%e|%g|%c" % (1, 2)|"%5.2f|%-5s|%05d" % (3.14159, "ab", 42)|"%x %X %o %#x" % (255, 255, 8, 255)|"%e %g %G %.3g" % (12345.678, 0.00001, 1e20, 1234.5)|"%(a)s-%(b)d" % d|"%s" % none|"%s %s" % "x"|"%s" % ("x", "y")|"abc" % ()|"abc" % d|"abc" % 1|"%%" % ()|"%s" % [1, "a"]|"%r" % "a'b"|"%.2s|%5s|%-5s|" % ("abc", "é", "x")|"%d" % 3.99|"%d" % "x"|"%i" % yes|"%s" % ((1, 2),)|"% d" % 5|"%+.1f" % -0.25|"%5%" % ()|"%y" % 1|"%" % 1
"{} {}".format(1, "b")|"{0} {1} {0}".format("a", 2)|"{x} {y[0]} {z.a}".format(x=1, y=l, z=d)|"{:5}|{:<5}|{:>5}|{:^5}|{:*^7}".format(1, 2, "a", "b", "c")|"{:05d} {:+d} {:,} {:x} {:#x} {:b} {:o} {:_}".format(42, 5, 1234567, 255, 255, 5, 8, 1234567)|"{:.2f} {:8.3f} {:e} {:g} {:%} {:.1%}".format(3.14159, 2.5, 1234.5, 0.0001, 0.25, 0.5)|"{!r} {!s}".format("a'b", none)|"{{}} {{{}}}".format(1)|"{} {0}".format(1)|"{} {}".format(1)|"{".format()|"}".format()|"{a}".format()|"{:d}".format("x")|"{:s}".format(1)|"{:10.3s}|".format("abcdef")|"{}".format(none)|"{}".format([1, "a"])|"{}".format(2.0)|"{:.3}".format(1234.5678)|"{:.10}".format(2.0)|"{:5}".format(true)|"{:}".format(true)|"{[a]}".format(d)|"{.a}".format(d)|"{:05}|{:<05}".format(-3, 4)|"{:é>4}".format("x")|"{:z}".format(1)|"{:,.2f}".format(1234567.891)
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|"hello wORLD".capitalize()|u.upper()|u.lower()|greek.lower()|greek.title()|sharp.upper()|sharp.title()|sharp.lower()|sharp.casefold()|dz.upper()|dz.title()|dz.capitalize()|"İ".lower()|"they're bill's".title()|"ὈΔΥΣΣΕΎΣ".lower()|"Σ".lower()|"ΑΣ.".lower()|"Α'Σ b".lower()
sp.strip()|sp.lstrip()|sp.rstrip()|s.strip("Hd")|s.lstrip("He")|s.rstrip("dl")|"xxhixx".strip("x")|"...a.".strip(".")|s.strip(none)|s.strip(1)|"\u00a0\u3000a\u2003".strip()|"éaé".strip("é")|sp.trim()|"<think>a</think>".lstrip("<think>")|"abc".strip("")
s.split()|s.split("o")|s.split("o", 1)|s.split(" ")|sp.split()|csv.split(",")|csv.split(",", 2)|csv.split(",", maxsplit=1)|csv.split(sep=",")|"a  b c".split(none, 1)|"a  b c ".split(maxsplit=1)|s.split("")|s.split("zz")|"".split()|"".split(",")|nl.split("\n")|s.rsplit("o", 1)|csv.rsplit(",", 2)|"a b  c".rsplit(none, 1)|s.rsplit()|"</think>x</think>y".split("</think>")[-1]|"aXbXc".split("X", 0)|s.split("o")[-1].lstrip()|s.split(1)|"a b".split(" ", -1)
nl.splitlines()|nl.splitlines(true)|nl.splitlines(keepends=true)|"".splitlines()|"a\x0bb\x0cc\x1cd\x85e\u2028f".splitlines()|s.partition(" ")|s.rpartition("o")|s.partition("zz")|s.rpartition("zz")|s.partition("")
s.startswith("He")|s.startswith("x")|s.startswith(("x", "H"))|s.startswith("World", 6)|s.startswith("")|s.startswith(1)|s.startswith(["H"])|s.endswith("ld")|s.endswith(("a", "d"))|s.endswith("o", 0, 5)|s.startswith("H", 1)|u.startswith("Grüße")|u.startswith("ü", 2)|s.startswith("", 99)|s.startswith(missing)
s.find("o")|s.find("o", 5)|s.find("zz")|s.rfind("o")|s.index("W")|s.index("zz")|s.rindex("l")|u.find("м")|u.find("🎉")|u.rfind("e")|s.count("l")|s.count("")|s.count("l", 4)|s.count("ll")|"aaaa".count("aa")|s.find("")|s.find("", 20)|s.rfind("")|s.find("o", -4)|s.find("o", 0, 4)
s.replace("o", "0")|s.replace("o", "0", 1)|s.replace("", "-")|s.replace("l", "")|s.replace("zz", "y")|s.replace("o", "0", -1)|s.replace("o", 1)|"".replace("", "x")|"ab".replace("", "-", 2)|s.replace("o")|u.replace("🎉", "!")|", ".join(["a", "b"])|", ".join([1, 2])|"".join([])|"-".join("abc")|"-".join(d)|"x".join(words|sort)|"-".join(none)
s.isalpha()|"abc".isalpha()|"".isalpha()|"é你".isalpha()|"12".isdigit()|"²".isdigit()|"²".isdecimal()|"1a".isdigit()|"".isdigit()|"a1".isalnum()|"½".isalnum()|" \t".isspace()|"".isspace()|"AB".isupper()|"Ab".isupper()|"A1".isupper()|"12".isupper()|"ab".islower()|"a1B".islower()|u.isascii()|s.isascii()|s.ljust(15, ".")|s.rjust(15)|"ab".center(7, "*")|"ab".center(6, "*")|"abc".center(6)|"42".zfill(5)|"-42".zfill(5)|"abc".zfill(2)|"foobar".removeprefix("foo")|"foobar".removesuffix("bar")|"foobar".removeprefix("bar")|s.nope()|s.nope|s.upper|2.0.is_integer()|f.is_integer()|l.index(1)|l.index(9)|l.count(1)|(1, 2).index(2)|(1, 1).count(1)|l.copy()|d.copy()
s|upper|s|lower|s|title|"foo-bar (baz) [q] {w} <e>"|title|s|capitalize|s|length|u|length|l|length|d|length|d.items()|length|5|length|none|length|none|upper|none|string|2.0|string|yes|string|l|string|d|string|s|trim|sp|trim|"xax"|trim("x")|none|trim|5|trim|sp|trim(none)|s|trim(1)
l|first|l|last|el|first|el|last|s|first|s|last|u|last|empty|first|empty|last|d|first|d|last|none|first|5|first|range(3)|last|range(3)|first|l|map("string")|first|l|map("string")|last|(el|first).x|(el|first) is defined
l|join|l|join(", ")|words|join("-")|users|join(", ", attribute="name")|users|join(", ", "age")|el|join(",")|s|join("-")|d|join(",")|mixed|join("|")|l|join(1)|none|join|[none, yes, missing]|join(",")|nested|join(";")
l|sort|l|sort(reverse=true)|words|sort|words|sort(case_sensitive=true)|words|sort(true)|users|sort(attribute="age")|map(attribute="name")|list|users|sort(attribute="age,name")|map(attribute="name")|list|mixed|sort|d|sort|nested|sort(attribute=0)|users|sort(attribute="name", reverse=true)|map(attribute="name")|join(",")|"bca"|sort|users|sort(attribute="zz")
d|dictsort|d|dictsort(true)|d|dictsort(false, "value")|{"b": 1, "a": 2}|dictsort(by="value")|{"b": 1, "a": 2}|dictsort(reverse=true)|many|dictsort|l|dictsort|missing|dictsort|{1: 2, "a": 3}|dictsort|ed|dictsort|{"b": 1}|dictsort(by="x")
l|reverse|l|reverse|list|s|reverse|u|reverse|d|reverse|list|5|reverse|l|map("abs")|reverse|range(3)|reverse|list|words|unique|list|words|unique(true)|list|[1, 1.0, yes, "1"]|unique|list|[[1], [1]]|unique|list|users|unique(attribute="age")|map(attribute="name")|list|l|unique
l|min|l|max|el|min|words|min|words|max(case_sensitive=true)|users|max(attribute="age")|mixed|max|(users|min(attribute="name")).name|l|sum|[0.1, 0.2]|sum|users|sum(attribute="age")|users|sum("age", 100)|el|sum|words|sum|nested|sum(start=[])|["a"]|sum(start="")
l|list|s|list|d|list|d.items()|list|none|list|5|list|u[:3]|list|range(3)|list|(1, 2)|list|missing|list|d|items|list|ed|items|list|missing|items|list|d|items|first
users|map(attribute="name")|list|users|map(attribute="zz")|list|users|map(attribute="zz", default="q")|list|users|map(attribute="tags.0")|list|users|map(attribute="tags.0", default="-")|list|words|map("upper")|list|words|map("replace", "a", "z")|list|l|map("string")|join|nested|map("first")|list|nested|map("join", "-")|list|words|map("nope")|list|words|map()|list|el|map("nope")|list|l|map("default", 5)|list|nested|map(attribute=0)|list|l|map("string")
users|selectattr("on")|map(attribute="name")|list|users|rejectattr("on")|map(attribute="name")|list|users|selectattr("age", "equalto", 31)|map(attribute="name")|list|users|selectattr("age", ">", 30)|list|length|users|selectattr("tags", "defined")|list|length|users|rejectattr("tags", "defined")|map(attribute="name")|list|users|selectattr("name", "in", ["Bob"])|map(attribute="name")|list|users|selectattr("tags")|list|length|users|selectattr()|list|users|selectattr("a", "nope")|list|l|select("odd")|list|l|reject("odd")|list|mixed|select|list|length|mixed|select("string")|list|mixed|reject("none")|list|length|l|select("gt", 1)|list|l|select("nope")|list|(users|selectattr("on")|first).name|users|selectattr("zz.yy")|list
s|replace("o", "0")|s|replace("l", "L", 2)|5|replace("5", "6")|s|replace("o", 1)|none|replace("N", "n")|s|replace("", "-")|s|replace("o")|nl|indent|nl|indent(2)|nl|indent(2, true)|nl|indent(2, true, true)|nl|indent("> ")|nl|indent(width=1, first=true)|""|indent|"a\n"|indent(2)|5|indent|"x"|indent(4, blank=true)
missing|default("x")|none|default("x")|none|default("x", true)|""|default("x", boolean=true)|""|default("x")|0|d("z", true)|missing|default|missing|default(none)|d.zz|default("q")|d.zz.y|default("q")|missing|default(default_value="k")
"42"|int|"42.7"|int|"abc"|int|"abc"|int(5)|"ff"|int(0, 16)|"0xff"|int(0, 16)|"0xff"|int|3.99|int|-3.99|int|yes|int|none|int|none|int(7)|digits|int|" 12 "|int|"1_000"|int|"1__0"|int|missing|int|"1e3"|int|l|int|"-5"|int|"+5"|int|""|int|"zz"|int(base=36)|"3.5"|float|"x"|float|"x"|float(1.5)|5|float|none|float|"1e3"|float|"inf"|float|"-nan"|float|" 2.5 "|float|missing|float|"0x1p3"|float|"1_0.5"|float|l|float
-5|abs|neg|abs|f|abs|-f|abs|yes|abs|"a"|abs|missing|abs|2.5|round|3.5|round|2.675|round(2)|2.567|round(1)|5|round|2.1|round(method="ceil")|2.9|round(0, "floor")|2.123|round(2, "ceil")|-2.5|round|"a"|round|1e20|round|2.5|round(method="x")
s|center(20)|s|center|s|truncate(5)|s|truncate(5, true)|s|truncate(8, false, "..", 0)|"a b c d e f g h i j"|truncate(9, leeway=0)|s|truncate(5, true, "", 0)|s|truncate(1)|l|truncate(5)|missing|truncate|ed|truncate(5)|5|truncate|s|wordcount|u|wordcount|""|wordcount|"%s-%s"|format("a", 1)|"%(x)s"|format(x=5)|"%s"|format|"%s %s"|format(1)|"x"|format(1, a=2)
html|e|html|escape|html|safe|html|e|e|(html|safe)|e|html|safe ~ "<"|"<" + ("x"|safe)|("x"|safe) + "<"|("<"|safe) + "<"|("<"|e)|length|("a"|safe) is escaped|"a" is escaped|("a"|safe)|upper|("a<"|safe)|replace("a", "<")|["<"|safe, "<"]|join|("<"|safe)|string + "<"|("a"|safe) == "a"|("b"|safe) in {"b": 1}|{("b"|safe): 1}|["a"|safe]|("x"|safe) * 2 + "<"|("<"|safe)[0] + "<"|html|safe|trim + "<"|5|safe + "<"|("x"|safe)|default("y") ~ "<"|("<a"|safe).upper() + "<"|("a b"|safe).split()[0] + "<"|(["a"]|tojson|safe) + "<"|"<"|safe|tojson
d|tojson|l|tojson|mixed|tojson|u|tojson|u|tojson(ensure_ascii=true)|q|tojson|html|tojson|nl|tojson|ctl|tojson|ctl|tojson(true)|none|tojson|2.0|tojson|1e22|tojson|1e-7|tojson|yes|tojson|d|tojson(indent=2)|d|tojson(indent=0)|d|tojson(indent="--")|nested|tojson(indent=4)|el|tojson(indent=2)|ed|tojson(indent=2)|d|tojson(separators=(",", ":"))|d|tojson(separators=[",", ":"], indent=1)|d|tojson(sort_keys=true)|{1: 2, none: 3, yes: 4, 2.5: 5}|tojson|{(1,): 2}|tojson|{1: 2, "a": 3}|tojson(sort_keys=true)|missing|tojson|(1, 2)|tojson|range(3)|tojson|d.items()|tojson|users|tojson(false, 2)|"inf"|float|tojson|"nan"|float|tojson|d|tojson(indent=none)|d|tojson(indent=true)|d|tojson(x=1)|d|tojson(indent=1.5)|d|tojson(separators="ab")|"\U0001F389\u00e9"|tojson(ensure_ascii=true)|[[[]]]|tojson(indent=1)|d|tojson(indent=-1)
users|groupby("age")|list|length|users|groupby("on")|map(attribute=0)|list|users|groupby("tags", default="none")|list|l|batch(2)|list|l|batch(2, "x")|list||range(7)|slice(3)|list|range(7)|slice(3, "x")|list|el|batch(3)|list|"abc"|batch(2)|list|d|attr("a")|d|attr("items")|d|attr("keys")|list|l|attr("zz")|d|attr(1)
1 is defined|missing is defined|missing is undefined|d.zz is defined|d.a is defined|none is defined|none is none|nil is none|missing is none|1 is none|1 is number|1.5 is number|yes is number|"1" is number|1 is integer|yes is integer|1.5 is integer|1.5 is float|1 is float|yes is boolean|1 is boolean|yes is true|1 is true|no is false|0 is false|"a" is string|1 is string|d is mapping|l is mapping|ed is mapping|l is sequence|s is sequence|d is sequence|5 is sequence|none is sequence|missing is sequence|d.items() is sequence|range(2) is sequence|l is iterable|s is iterable|5 is iterable|none is iterable|missing is iterable|d.items() is iterable|(l|map("string")) is iterable|(l|map("string")) is sequence|(1, 2) is sequence
3 is odd|4 is even|3 is even|"a" is odd|9 is divisibleby(3)|9 is divisibleby 2|9 is divisibleby 0|1 is eq 1|1 is equalto(1)|1 is ne 2|1 is lt 2|2 is gt(1)|2 is ge 2|2 is le 1|2 is greaterthan 1|1 is lessthan 0|1 is in l|1 is in([1])|"a" is in "abc"|1 is not in l|s is lower|"abc" is lower|"ABC" is upper|"12" is upper|5 is upper|none is sameas none|yes is sameas true|l is sameas l|l is sameas [3, 1, 2]|1 is sameas yes|range is callable|s is callable|s.upper is callable|missing is callable|"upper" is filter|"nope" is filter|"urlize" is filter|"odd" is test|"nope" is test|5 is filter|1 is not none|1 is not defined|not missing is defined|x is defined and x.y|1 is eq 1 and 2 is eq 2|1 is none or 1 is defined|1 is number == true|d.a is string and d.a == "two"|1 is defined is string|1 is eq|1 is odd(2)|l[0] is number|d.get("a") is string|"a" is string ~ "b"
range(3)|range(1, 4)|range(5, 0, -2)|range(3)|list|range(0)|list|range(2, 2)|list|range(0, 10, 3)|list|range(1, 2, 0)|range(200000)|range("a")|range()|range(1.5)|range(missing)|range(3) == range(0, 3)|range(3)[1]|range(3)[-1]|range(3)|length|range(3)|string|range(0, 4, 2)|dict(a=1)|dict([("x", 1), ["y", 2]])|dict({"a": 1}, b=2)|dict()|dict(1)|dict([1])|dict([[1, 2, 3]])|namespace(a=1)|namespace(a=1).a|namespace(a=1).b|namespace(a=1)["a"]|namespace({"x": 1}, y=2).x|namespace() is mapping|namespace()|length|namespace(items=[1]).items|namespace(a=1).a.b|namespace(_x=1)._x|"x" in namespace(x=1)
strftime_now("%Y-%m-%d")|strftime_now("%d %b %Y")|strftime_now("%B %d, %Y")|strftime_now("%A %a %H:%M:%S %j %y %m %p %I %%")|strftime_now("%-d/%-m")|strftime_now("é %Y")|strftime_now(1)|strftime_now()|raise_exception("boom")|raise_exception("a" ~ 1)|raise_exception()|yes or raise_exception("x")
u|length ~ "/" ~ u[0] ~ u[2] ~ u[-2:]|d.items()|list|first|first|(d.n.m.k ~ "x")|upper|length|l|map("string")|map("length")|sum|{"a": {"b": [1, 2]}}.a.b[1]|{"a": 1}["a"] + 1|[1, 2][0]|"abc"[1]|(1, 2)[0]|{1: "x"}[1]|{1: "x"}[1.0]|{1: "x"}[yes]|{"a": 1, "a": 2}|{l: 1}|{1.5: 2}|{(1, 2): 3}[(1, 2)]|{(1, 2): 3}[1, 2]|users[0].name[0]|users[0]["name"][::-1]|users.0.name|users[0].tags[0]|users[0].tags[1]
repr|s.x.y|1.x|"a".b|foo(1)|none()|5()|"a"()|d()|l()|s.upper(1)|s.upper(x=1)|s.strip(chars="x")|d.get(key="a")|s.split(" ", 1, 2)|s|upper(1)|s|trim(x=1)|s|trim("H", chars="d")|range(*[1, 3])|list|dict(**{"k": 1})|dict(**1)|range(*5)|"{}{}".format(*["a", "b"])|"{k}".format(**{"k": 1})|dict(a=1, **{"a": 2})|"{}".format(*"ab", **{})
q|mixed|mixed|string|[q]|["\n\t\\"]|[ctl]|[u]|["a'b"]|["a\"b"]|["a'b\"c"]|{"k": q}|(1, "a", none)|[1.0, 1e22]|[missing]|[d.items()]|[range(2)]|["\x00\x7f\xa0\xad"]|["\u200b\U0001F389\ue000"]|[namespace(a="x")]
"""


FILTERS = set("""abs attr batch capitalize center count d default dictsort e escape first float format groupby indent int items join
last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string sum title
tojson trim truncate unique upper wordcount""".split())


def split_cases(text):
    """Cases are separated by '|' or newline, except a '|' that starts a filter, or is inside a string or brackets."""
    import re
    cases, cur, depth, quote, i = [], "", 0, None, 0
    while i < len(text):
        ch = text[i]
        if quote:
            cur += ch
            if ch == "\\":
                cur += text[i + 1]
                i += 1
            elif ch == quote:
                quote = None
        elif ch in "'\"":
            quote = ch
            cur += ch
        elif ch in "([{":
            depth += 1
            cur += ch
        elif ch in ")]}":
            depth -= 1
            cur += ch
        elif ch == "\n" and depth == 0:
            cases.append(cur)
            cur = ""
        elif ch == "|" and depth == 0:
            m = re.match(r"\|([a-z]+)(?![a-zA-Z0-9_.\[])", text[i:])
            if m and m.group(1) in FILTERS and cur.strip():
                cur += ch
            else:
                cases.append(cur)
                cur = ""
        else:
            cur += ch
        i += 1
    cases.append(cur)
    return [c for c in cases if c.strip()]


EXPRESSIONS = ["{{ " + c.strip() + " }}" for c in split_cases(_EXPR)] + [
    # precedence of filters, tests and operators
    "{{ 1 + 2|string|length }}", "{{ (1 + 2)|string|length }}", "{{ -1|abs }}", "{{ not yes|string }}", "{{ 'a' ~ 'b'|upper }}",
    "{{ s|upper|lower|length + 1 }}", "{{ n is odd and f is float }}", "{{ 2 * 3 is even }}", "{{ 'x' if n is odd else 'y'|upper }}",
    "{{ {'a': 1}.a }}", "{{ {'a': 1}}}", "{{ {} }}{{ {}}}", "{{ [[1], [2]][1][0] }}", "{{ 1if yes else 2 }}", "{{ (1).x }}",
    "{{ a.b.c }}", "{{ d.a.upper() }}", "{{ d['a'].upper()[0] }}", "{{ (s ~ s).split()[1] }}", "{{ s.upper().lower().title() }}",
    "{{ l|map('string')|list|join }}", "{{ (l|list)[0] }}", "{{ d|dictsort|first|last }}", "{{ users|map(attribute='name')|map('upper')|join('/') }}",
    "{{ 'a' in s|lower }}", "{{ not 'a' in s }}", "{{ 'H' in s and 'W' in s }}", "{{ 1 in l == true }}", "{{ 5 not in l and yes }}",
    "{{ s|default('x')|upper }}", "{{ missing|default('x')|upper }}", "{{ missing.y|default('x') }}", "{{ (missing|default(d)).a }}",
    "{{ x if x is defined }}", "{{ x if x is defined else 'none' }}", "{{ (x if x is defined else 'none')|upper }}",
    "{{ 'a' 'b' 'c' }}", "{{ 'a'\n'b' }}", "{{ 1\n+\n2 }}", "{{ s [0] }}", "{{ s . upper ( ) }}", "{{ s | upper }}", "{{s|upper}}",
    "{{- s -}}", "  {{- s -}}  ", "a {{+ s }}", "{{ '}}' }}", "{{ '{{' }}", "{{ '{%' ~ '%}' }}", "{{ \"#}\" }}", "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ 1 }}{{ 2 }}", "{{ }}", "{{ 1 2 }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {1: } }}", "{{ 'a }}", "{{ a b }}", "{{ |upper }}",
    "{{ 1 | }}", "{{ s|nope }}", "{{ s is nope }}", "{{ s. }}", "{{ s[ }}", "{{ s.1a }}", "{{ @ }}", "{{ 1 $ 2 }}", "{{ a = 1 }}", "{{ a; b }}", "{{ f(a=1, 2) }}",
    "{{ f(a=1, a=2) }}", "{{ f(**a, b) }}", "{{ f(*a, *b) }}", "{{ 1 is }}", "{{ is none }}", "{{ not }}", "{{ 1 if }}", "{{ lambda }}", "{{ x := 1 }}", "{{ 0123 }}",
    "{{ 1__0 }}", "{{ 0x }}", "{{ 1.e5 }}", "{{ 1.2.3 }}", "{{ '\\N{DASH}' }}", "{{ \"\\ud800\" }}", "{{ '\\x4' }}", "{{", "{{ 1", "}}", "%}", "#}", "{", "{ {", "a { b }",
    "{{ loop }}", "{{ loop.index }}", "{{ caller() }}", "{{ varargs }}",
    "{{ [1, 2, 3][:2][::-1] }}", "{{ 'é'.upper() ~ 'ß'.upper() }}", "{{ d.items()|map('first')|join(',') }}", "{{ d.items()|map('last')|map('string')|join(',') }}",
    "{{ 3.0 }}|{{ 3.10 }}|{{ 1e3 }}|{{ 1.0e-10 }}|{{ 123456789012345680.0 }}", "{{ 1 == true }}{{ 0 == false }}{{ none == false }}",
    "{{ [1,[2,[3,[4]]]] }}", "{{ ((((1)))) }}", "{{ [[[[]]]] }}", "{{ - - 1 }}", "{{ not not 1 }}", "{{ -(-1) ** 2 }}", "{{ 7 // 2 * 2 + 7 % 2 }}",
    "{{ 'abc' < 'abd' < 'abe' }}", "{{ 1 < 2 == 2 }}", "{{ 1 in [1] in [[1]] }}", "{{ 'a' == 'a' != 'b' }}", "{{ 10 - 5 - 2 }}", "{{ 100 / 10 / 2 }}", "{{ 2 * 3 % 4 }}",
    "{{ 'x' * 3 ~ 'y' }}", "{{ 1 ~ 2 + 3 }}", "{{ 1 + 2 ~ 3 }}", "{{ 'a' ~ 'b' == 'ab' }}", "{{ yes and 'x' or 'y' }}", "{{ no and 'x' or 'y' }}",
]

STATEMENTS = [
    # white space control
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\n  {% if yes %}\n  b\n  {% endif %}\n  c\n", "a {%- if yes -%} b {%- endif -%} c", "a\n\n{%- if yes %}\n\nb{% endif -%}\n\n c",
    "  {%+ if yes %}x{% endif %}", "{% if yes +%}\nx{% endif %}", "{% if yes %}\n\n\nx{% endif %}\n\n", "x {% if yes %} y {% endif %} z", "\t{% if yes %}\t\n\tz{% endif %}\t",
    "{{ 1 }}\n{{ 2 }}\n", "{{ 1 }}\n\n", "a\n", "a\n\n", "\n", "", "\n\n", "  {{ 1 }}  \n  {{- 2 }}", "{{ 1 -}}  \n  x", "a\r\nb\rc\r\n", "a\r\n{% if yes %}\r\nb\r\n{% endif %}\r\n",
    "{# c #}x", "a {# c #} b", "a\n  {# c #}\nb", "a\n{#- c -#}\nb", "{#+ c +#}\nb", "{# {{ x }} {% y %} #}z", "{# a #}{# b #}", "{# open", "a {#- x #}\n b", "{##}x", "{#-#}  x", "  {# a\n b #}\n  c", "{# - #}x",
    "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n{% if %}\n{% endraw %}\ny", "a {%- raw -%} {{ b }} {%- endraw -%} c", "{% raw %}x", "{%raw%}{#{%endraw%}", "  {% raw %}  \n x {% endraw %}  \n y", "{% raw -%}\n\n  {{ x }}\n  {%- endraw %}", "{% raw %}{% raw %}{% endraw %}", "{% rawx %}",
    "a\u00a0{%- if yes %}b{% endif %}", "\u3000{% if yes %}b{% endif %}", "x\n\u00a0 {% if yes %}b{% endif %}", "{%if yes%}a{%endif%}", "{%-if yes-%} a {%-endif-%}", "{%\nif yes\n%}a{%\nendif\n%}",
    "{% if yes %}a{% endif %}\n{% if yes %}b{% endif %}\n", "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}{{ y }}\n", "  {% set x = 1 %}  \n  {{ x }}", "{{ 1 }} \n {% if yes %} x {% endif %} \n{{ 2 }}",
    # if
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if n == 8 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if n == 1 %}a{% elif n == 2 %}b{% else %}c{% endif %}", "{% if missing %}a{% endif %}b", "{% if not missing %}a{% endif %}",
    "{% if missing.x %}a{% endif %}", "{% if el %}a{% else %}b{% endif %}", "{% if 1, 0 %}a{% endif %}", "{% if yes: %}a{% endif %}", "{% if yes %}a", "{% endif %}", "{% if %}a{% endif %}", "{% if yes %}a{% else %}b{% else %}c{% endif %}", "{% if yes %}{% if no %}a{% else %}b{% endif %}{% endif %}",
    "{% if (yes and\n no) or\n n %}x{% endif %}", "{% elif %}", "{% if no %}{{ 1/0 }}{% endif %}ok", "{% if yes %}{% elif 1/0 %}{% endif %}ok", "{% if '' %}a{% elif 0 %}b{% elif 0.0 %}c{% elif none %}d{% elif ed %}e{% elif ' ' %}f{% endif %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in el %}a{% else %}none{% endfor %}", "{% for x in l %}{{ x }}{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}none{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in pairs %}{{ a }}{{ b }}{% endfor %}", "{% for (a, b) in pairs %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in l %}x{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{% if loop.previtem is defined %}p{% endif %}{% if loop.nextitem is defined %}n{% endif %}{% endfor %}", "{% for m in msgs %}{% if loop.nextitem and loop.nextitem.role == 'user' %}{{ m.role }}{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{% for x in l %}{{ loop['index'] }}{% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% for x in l %}{% for y in nested %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in el + [1] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }} {% endfor %}", "{% for x in l if x > 1 %}{{ loop.length }}{{ loop.revindex }}{% endfor %}", "{% for x in l if x > 5 %}a{% else %}none{% endfor %}", "{% for k, v in d.items() if v %}{{ k }}{% endfor %}", "{% for u in users if u.on %}{{ u.name }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in l if x > n %}a{% endfor %}{{ n }}", "{% for m in msgs if m.role != 'system' %}{{ loop.index0 }}{{ m.role }}{{ loop.previtem.role if loop.previtem }} {% endfor %}", "{% for a, b in pairs if b > 1 %}{{ a }}{{ loop.previtem }}{% endfor %}", "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% continue %}{% else %}e{% endfor %}", "{% for x in l %}{% for y in l %}{% break %}{% endfor %}{{ x }}{% endfor %}", "{% break %}", "{% macro m() %}{% break %}{% endmacro %}", "{% for x in l %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
    "{% for x in l %}{% set y %}a{% if x == 1 %}{% break %}{% endif %}b{% endset %}{{ y }}{% endfor %}", "{% for x in l %}{% filter upper %}a{% if x == 1 %}{% continue %}{% endif %}b{% endfilter %}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in range(3)|reverse %}{{ x }}{% endfor %}", "{% for x in l|sort %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% for x in l|map('string') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for x in l|map('string') %}{{ loop.length }}{{ x }}{% endfor %}", "{% for x in 'ab', 'cd' %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in d|dictsort %}{{ x }}{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}", "{% for k, v in d|items %}{{ k }}{% endfor %}",
    "{% for x in l %}{{ x }}", "{% endfor %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% for x.y in l %}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% for x in l: %}{{ x }}{% endfor %}", "{% for true in l %}{% endfor %}", "{% for x in l %}{% else %}{% else %}{% endfor %}",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n", "{%- for x in l %}\n{{- x }}\n{%- endfor %}",
    # scoping
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}", "{% if yes %}{% set x = 2 %}{% endif %}{{ x }}", "{% if no %}{% set x = 2 %}{% endif %}{{ x }}", "{% if no %}{% set n = 2 %}{% endif %}{{ n }}", "{% set n = 8 %}{{ n }}", "{{ n }}{% set n = 8 %}{{ n }}",
    "{% for i in l %}{{ x }}{% set x = i %}{{ x }};{% endfor %}", "{% set x = 0 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }}", "{% for i in l %}{% if loop.first %}{% set x = i %}{% endif %}{{ x }}{% endfor %}", "{% for i in l %}{% endfor %}{{ i }}", "{% set i = 9 %}{% for i in l %}{{ i }}{% endfor %}{{ i }}",
    "{% for i in l %}{% set n = n + i %}{{ n }} {% endfor %}{{ n }}", "{% for i in l %}{% for j in l %}{% set n = n + 1 %}{% endfor %}{{ n }}{% endfor %}", "{% for n in l %}{{ n }}{% endfor %}{{ n }}", "{% for i in l %}{% set a = i %}{% for j in [1] %}{{ a }}{% set a = 0 %}{{ a }}{% endfor %}{{ a }}{% endfor %}{{ a }}",
    "{% if yes %}{% for i in l %}{% set z = i %}{% endfor %}{{ z }}{% endif %}", "{% set x = 1 %}{% if x == 1 %}{% set x = x + 1 %}{% endif %}{% if x == 2 %}{% set y = x %}{% else %}{% set y = 0 %}{% endif %}{{ y }}", "{% if no %}{% set a = 1 %}{% elif yes %}{% set a = 2 %}{% else %}{% set a = 3 %}{% endif %}{{ a }}",
    "{% set x = x %}{{ x }}", "{% set n = n %}{{ n }}", "{% set s = s|upper %}{{ s }}", "{% for i in l %}{{ s }}{% set s = 'x' %}{% endfor %}{{ s }}", "{% set y = missing %}{{ y is defined }}", "{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set range = 5 %}{{ range }}", "{{ range(2)|list }}{% set range = 5 %}{{ range }}",
    # set
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2] %}{{ a }}{{ b }}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set (a, b) = (1, 2) %}{{ a }}", "{% set a, (b, c) = 1, (2, 3) %}{{ c }}", "{% set a = 1, 2 %}{{ a }}", "{% set a = b = 1 %}", "{% set a %}x{{ n }}y{% endset %}{{ a }}{{ a|length }}", "{% set a | upper %}x{{ s }}{% endset %}{{ a }}", "{% set a | upper | replace('X', 'z') %}xx{% endset %}{{ a }}", "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", "{% set a %}{% endset %}[{{ a }}]",
    "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set a.b = 2 %}", "{% set d.a = 2 %}", "{% set %}", "{% set a %}", "{% set a = %}", "{% set 'a' = 1 %}", "{% set a[0] = 1 %}", "{% set a() = 1 %}", "{% set a = 1 if no %}{{ a }}{{ a is defined }}", "{% set a = (1 if yes else 2) %}{{ a }}", "{% set a = [] %}{{ a }}", "{% set a = {'x': [1, 2]} %}{{ a.x[1] }}", "{% set a = a|default('q') %}{{ a }}",
    "{%- set a = 1 -%}\n {{ a }}", "{% set a = 'x'\n 'y' %}{{ a }}", "{% set a, %}", "{% set a, = [1] %}{{ a }}",
    # namespace
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 5, 6 %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(f=false) %}{% for i in l %}{% if i == 1 %}{% set ns.f = true %}{% endif %}{% if ns.f %}{{ i }}{% endif %}{% endfor %}", "{% set ns.x = 1 %}", "{% set ns = namespace(x=1) %}{% set ns.x %}block{{ n }}{% endset %}{{ ns.x }}",
    "{% set ns = namespace(t='') %}{% for c in s %}{% set ns.t = c ~ ns.t %}{% endfor %}{{ ns.t }}", "{% set ns = namespace(t='') %}{% for i in range(300) %}{% set ns.t = ns.t + s + (i|string) %}{% endfor %}{{ ns.t|length }}{{ ns.t[-20:] }}", "{% set a = namespace(x=1) %}{% set b = a %}{% set b.x = 2 %}{{ a.x }}", "{% set ns = namespace(x=1) %}{% macro m() %}{% set ns.x = ns.x + 1 %}{% endmacro %}{{ m() }}{{ m() }}{{ ns.x }}", "{% set ns = namespace(seen=[]) %}{% for i in [1, 2, 1, 3] if i not in ns.seen %}{% set ns.seen = ns.seen + [i] %}{{ i }}{% endfor %}",
    "{% set ns = namespace(d={}) %}{% for i in l %}{% set ns.d = dict(ns.d, **{i|string: i}) %}{% endfor %}{{ ns.d }}",
    # macros
    "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(1) }}{{ m() }}{{ m(a=2) }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(none) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}", "{% macro m(a) %}{{ kwargs.z }}{% endmacro %}{{ m(1, z=2) }}", "{% macro m(a) %}{{ m.name }}{{ m }}{% endmacro %}{{ m(1) }}", "{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{{ n }}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}", "{% set x = 3 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 4 %}{{ m() }}", "{% macro m() %}{% set x = 9 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 9 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% if yes %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}", "{% if no %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a')|length }}{{ m('a') ~ m('b') }}", "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]", "{% macro m() -%}\n  x\n{%- endmacro %}[{{ m() }}]", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro m(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}", "{% macro m(d) %}{% for k, v in d.items() %}{{ k }}:{% if v is mapping %}{{ m(v) }}{% else %}{{ v }};{% endif %}{% endfor %}{% endmacro %}{{ m({'a': {'b': 1, 'c': {'d': 2}}, 'e': 3}) }}",
    "{% macro m(x='d') %}{{ x }}{% endmacro %}{{ m() }}{{ m(none) }}{{ m(missing) }}{{ m('') }}", "{% macro m(x=[]) %}{{ x + [1] }}{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(x=n) %}{{ x }}{% endmacro %}{% set n = 1 %}{{ m() }}", "{% macro m %}{% endmacro %}", "{% macro m( %}{% endmacro %}", "{% macro 1() %}{% endmacro %}", "{% macro m() %}", "{% macro m() %}{{ loop.index }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}", "{% for i in l %}{% set f = loop.index %}{% macro m(z) %}{{ z }}{{ f }}{{ loop.index }}{% endmacro %}{{ m(i) }} {% endfor %}",
    "{% set m = 5 %}{% macro m() %}x{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% set m = 5 %}{{ m }}", "{% macro m(a) %}{{ caller is defined }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m(t) %}{{ t }}{{ caller() }}{% endmacro %}{% call m('T') %}{% set z = 1 %}{{ z }}{% endcall %}{{ z }}", "{% call 5 %}{% endcall %}", "{% call m() %}x{% endcall %}", "{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}", "{% macro m(caller) %}{{ caller }}{% endmacro %}{{ m() }}",
    # filter, with, print, generation
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter upper|replace('A', 'b') %}a{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter nope %}a{% endfilter %}", "{% filter trim %}\n x \n{% endfilter %}.", "{% filter replace('a', n|string) %}banana{% endfilter %}",
    "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% with n=n+1 %}{{ n }}{% endwith %}{{ n }}", "{% with a=1, b=a %}{{ b }}{% endwith %}", "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% print 1 %}", "{% print 1, 2 %}", "{% print s|upper %}", "{% generation %}a{{ n }}{% endgeneration %}b", "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}", "{% for m in msgs %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "{%- generation -%}\n x \n{%- endgeneration -%}\n y", "{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    # errors while rendering
    "a{{ 1/0 }}", "{{ raise_exception('x') }}", "{% if msgs[0].role != 'user' %}{{ raise_exception('first must be user') }}{% endif %}", "{% nope %}", "{% %}", "{% 1 %}", "{%", "{% if yes", "{% if yes }}a{% endif %}", "{{ s %}", "{% for x in l }}{% endfor %}", "{% if yes %}a{% endfor %}", "{% for x in l %}{% endif %}", "{% do l.append(1) %}",
    # patterns of real templates
    "{% for message in msgs %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}", "{% set loop_messages = msgs %}{% if msgs[0]['role'] == 'system' %}{% set system_message = msgs[0]['content'] %}{% set loop_messages = msgs[1:] %}{% else %}{% set system_message = '' %}{% endif %}{{ system_message }}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ m.content|trim }}{% endfor %}",
    "{%- macro render(content) -%}\n    {%- if content is string -%}\n        {{- content -}}\n    {%- elif content is iterable -%}\n        {%- for item in content -%}\n            {{- item.text if item.text is defined else item -}}\n        {%- endfor -%}\n    {%- endif -%}\n{%- endmacro -%}\n{{ render('a') }}{{ render([{'text': 'b'}, 'c']) }}{{ render(5) }}",
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=msgs|length - 1) %}\n{%- for message in msgs[::-1] %}\n    {%- set index = (msgs|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}\n        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{{ ns.last_query_index }}",
    "{% for i in range(0, msgs|length, 2) %}{{ msgs[i].role }}{% endfor %}", "{{ msgs|map(attribute='role')|join(',') }}{{ (msgs|selectattr('role', 'equalto', 'user')|list)[-1].content|trim }}", "{% for m in msgs %}{% if m.tool_calls is defined and m.tool_calls %}t{% elif m.tool_calls %}u{% else %}{{ m.role }}{% endif %}{% endfor %}", "{% for m in msgs %}{{ m.content or 'empty' }}{% endfor %}", "{% if 'content' in msgs[0] and msgs[0]['content'] is not none %}{{ msgs[0].content }}{% endif %}", "{{ (d.a ~ '</think>x').split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    "{%- for k in ['a', 'b', 'zz'] %}{{ d[k] if k in d else '-' }}{% endfor %}", "{%- if tools is defined and tools %}T{% else %}N{% endif %}", "{{ bos_token }}{{ bos_token is defined }}", "{% set x = d['items'] %}{{ x }}", "{% for key, value in d.items() %}{% if not loop.first %}, {% endif %}{{ key }}: {{ value|tojson if value is not string else value }}{% endfor %}",
]

# What jinja2 accepts and we refuse, when compiling or when rendering.
REFUSED = [
    "{{ 2 ** 63 }}", "{{ 9223372036854775807 + 1 }}", "{{ (-8) ** 0.5 }}", "{{ 10 ** 400 }}", "{{ 1 .real }}", "{{ 's'.encode() }}", "{{ [1]|map }}", "{{ [1]|items }}", "{{ [1]|batch(0)|list }}", "{{ range }}", "{{ {}.items }}", "{{ [1]|map('string') }}", "{{ 'a' is sameas 'a' }}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}", "{% block a %}{% endblock %}", "{% autoescape true %}{% endautoescape %}", "{% for x in [] recursive %}{% endfor %}", "{% trans %}{% endtrans %}", "{% debug %}", "{% do 1 %}",
    "{{ x|urlencode }}", "{{ x|random }}", "{{ x|pprint }}", "{{ x|xmlattr }}", "{{ x|wordwrap }}", "{{ x|striptags }}", "{{ x|filesizeformat }}", "{{ x|urlize }}", "{{ x|from_json }}", "{% if no %}{{ x|nope }}{% endif %}", "{% if no %}{{ x is nope }}{% endif %}", "{{ 123456789012345678901234567890 }}", "{{ '\\N{BULLET}' }}", "{{ x[1:2, 3] }}",
]


# ---- conversations ----

def _tool(name, properties, required):
    return {"type": "function", "function": {"name": name, "description": "Does \"%s\" <for> you" % name,
                                             "parameters": {"type": "object", "properties": properties, "required": required}}}


TOOLS = [
    _tool("get_weather", {"location": {"type": "string", "description": "City, e.g. Zürich"},
                          "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["location"]),
    _tool("add", {"a": {"type": "number", "description": "first"}, "b": {"type": ["number", "null"]},
                  "opts": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "integer"}}}}}, ["a", "b"]),
    _tool("noop", {}, []),
]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"location": "Zürich", "days": 3, "deep": {"x": [1, None, True], "y": 1.5}}}}]}
CALL2 = {"role": "assistant", "content": "Let me see.", "tool_calls": [
    {"id": "call00002", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}},
    {"id": "call00003", "type": "function", "function": {"name": "noop", "arguments": {}}}]}


def _msgs(*m):
    return [{"role": r, "content": c} for r, c in m]


def chat_cases():
    """(name, context) of each conversation, over what templates look at."""
    talks = {
        "one user": _msgs(("user", "Hi")),
        "system": _msgs(("system", "Be brief. "), ("user", "  Hi there\n")),
        "turns": _msgs(("user", "Hi"), ("assistant", "Hello! "), ("user", "Bye <b>&</b>")),
        "system turns": _msgs(("system", "S"), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"), ("assistant", "4"), ("user", "?")),
        "reasoning tags": _msgs(("user", "Q"), ("assistant", "<think>\nhm\n</think>\n\nA"), ("user", "Q2"), ("assistant", "<think>\nhm2\n</think>\nA2")),
        "empty content": _msgs(("user", ""), ("assistant", ""), ("user", "")),
        "unicode": _msgs(("system", "Отвечай кратко"), ("user", "你好 🎉 e\u0301 \u200b"), ("assistant", "مرحبا"), ("user", "`code` {{ x }} {% y %} <|im_end|>")),
        "ends with assistant": _msgs(("user", "Hi"), ("assistant", "Sure, here is")),
        "developer": _msgs(("developer", "Dev rules"), ("user", "Hi")),
        "two users": _msgs(("user", "a"), ("user", "b")),
        "unknown role": _msgs(("user", "a"), ("critic", "b")),
    }
    talks["reasoning field"] = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": "because\n", "thinking": "because", "reasoning": "because"}, {"role": "user", "content": "Q2"}]
    talks["parts"] = [{"role": "system", "content": [{"type": "text", "text": "Sys"}]}, {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " two"}]}]
    talks["image part"] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    talks["none content"] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": CALL["tool_calls"]}]
    tool_talks = {
        "tools only": _msgs(("user", "Weather?")),
        "tools system": _msgs(("system", "Use tools."), ("user", "Weather?")),
        "tool chain": [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"t\": 21}"}],
        "tool chain answered": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "21 °C"},
                                {"role": "assistant", "content": "It is 21."}, {"role": "user", "content": "And add?"}],
        "parallel calls": [{"role": "user", "content": "Do"}, dict(CALL2, reasoning_content="need both", thinking="need both"), {"role": "tool", "name": "add", "tool_call_id": "call00002", "content": "3"},
                           {"role": "tool", "name": "noop", "tool_call_id": "call00003", "content": "ok"}],
        "object result": [{"role": "user", "content": "Do"}, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": [{"type": "text", "text": "21"}]}],
        "string arguments": [{"role": "user", "content": "Do"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "call00004", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
                             {"role": "tool", "tool_call_id": "call00004", "content": "1"}],
    }
    base = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    variants = [("", {}), (", thinking on", {"enable_thinking": True, "thinking": True}), (", thinking off", {"enable_thinking": False, "thinking": False})]
    out = []
    for name, msgs in list(talks.items()) + list(tool_talks.items()):
        for vname, extra in variants:
            ctx = dict(base, messages=msgs, add_generation_prompt=msgs[-1]["role"] != "assistant", tools=TOOLS if name in tool_talks else None, **extra)
            out.append((name + vname, ctx))
    for effort in ("low", "medium", "high", "xhigh", "none", "bogus"):
        out.append(("reasoning_effort " + effort, dict(base, messages=talks["system turns"], add_generation_prompt=True, tools=None, reasoning_effort=effort)))
        out.append(("tools, reasoning_effort " + effort, dict(base, messages=tool_talks["tool chain answered"], add_generation_prompt=True, tools=TOOLS, reasoning_effort=effort)))
    out.append(("no generation prompt", dict(base, messages=talks["turns"], add_generation_prompt=False)))
    out.append(("generation prompt after assistant", dict(base, messages=talks["ends with assistant"], add_generation_prompt=True)))
    out.append(("preserve thinking", dict(base, messages=talks["reasoning tags"] + _msgs(("user", "Q3")), add_generation_prompt=True, preserve_thinking=True)))
    out.append(("documents", dict(base, messages=talks["one user"], add_generation_prompt=True, documents=[{"title": "T", "text": "body"}])))
    return out


def chat_templates():
    """Our own templates, each in the style of a family and using what its template uses."""
    import os
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "fixtures", "templates")
    out = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".jinja"):
            with open(os.path.join(folder, f), encoding="utf-8", newline="") as fh:
                out[f[:-6]] = fh.read()
    return out
