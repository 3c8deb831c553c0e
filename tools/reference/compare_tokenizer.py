#!/usr/bin/env python3
"""Compares our tokenizer with the Hugging Face `tokenizers` package on a tokenizer.json: the expected rows of the fixtures,
then random texts, encoded and decoded, with and without special tokens, plain and with control tokens kept as text, and
random ids decoded at once and one by one.

    pip install tokenizers==0.23.2
    tools/reference/compare_tokenizer.py --driver PATH [--rows FILE.expected.json] [-n TEXTS] [--seed S] tokenizer.json...

The driver is tools/reference/tokenize_driver.c:
    cc -O2 -std=c17 -D_GNU_SOURCE -Iinclude -Isrc tools/reference/tokenize_driver.c build/libbl_formats.a build/libbl_tensor.a \\
       build/libbl_base.a -ljansson -lpcre2-8 -lutf8proc -lm -lpthread -o build/tokenize_driver
"""
import argparse
import json
import random
import subprocess
import sys
import unicodedata


class Driver:
    def __init__(self, driver: str, path: str):
        self.p = subprocess.Popen([driver, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.p.stdout.readline().split()
        if line[:1] != [b"R"]:
            raise SystemExit(f"{driver} {path}: did not start")
        self.size = int(line[1])

    def ask(self, head: str, body: bytes = b""):
        self.p.stdin.write(head.encode() + b"\n" + body)
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        kind, _, rest = line.partition(b" ")
        if kind == b"I":
            return [int(x) for x in rest.split()[1:]]
        if kind == b"T":
            return self.p.stdout.read(int(rest))
        return "failed: " + rest.decode().strip()

    def encode(self, text: str, add=False, parse=True):
        data = text.encode()
        return self.ask(f"E {int(add) + 2 * int(parse)} {len(data)}", data)

    def decode(self, ids, skip=False, stream=False):
        return self.ask(f"{'S' if stream else 'D'} {int(skip)} {len(ids)} {' '.join(map(str, ids))}")


WORDS = """the of and to in Hello WORLD don't I'll we've they'RE it's o'clock naïve café résumé Straße İstanbul ΣΊΣΥΦΟΣ русский язык
日本語 テキスト 中文 字符 한국어 अनुच्छेद العربية עברית ไทย 🙂 👩‍👩‍👧‍👦 🇩🇪 ﬁ ǆ e\u0301 a\u0308\u0323 'ſ 'ſt K 3.14159 1234567 ٣٤٥ ⅷ ½ x² camelCaseWord HTTPServer snake_case
foo(bar) {a:[1,2]} https://example.org/a?b=c#d -- ... !!! ??? <b> </b> &amp; \\n C:\\path # $% ^&* @user ~~ `code` '' "quoted" …— « » ※ ▁ ▁▁ <0x41> <0x0A> Ġ Ċ""".split()
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", ""]


def random_char(r: random.Random) -> str:
    while True:
        k = r.random()
        top = 0x80 if k < 0.3 else 0x800 if k < 0.6 else 0x10000 if k < 0.85 else 0x110000
        c = r.randrange(top)
        if 0xD800 <= c < 0xE000:
            continue
        return chr(c)


def random_text(r: random.Random, specials: list[str], assigned_only: bool) -> str:
    out = []
    for _ in range(r.randrange(1, 30)):
        k = r.random()
        if k < 0.45:
            out.append(r.choice(WORDS))
        elif k < 0.7:
            out.append(r.choice(SPACES) * r.choice([1, 1, 1, 2, 5, 17]))
        elif k < 0.74 and specials:
            out.append(r.choice(specials))
        elif k < 0.84:
            c = random_char(r)
            if not assigned_only or unicodedata.category(c) != "Cn":
                out.append(c * r.choice([1, 1, 2, 3, 40]))
        elif k < 0.9:
            out.append("".join(chr(r.choice([0x300, 0x301, 0x316, 0x323, 0x338, 0x345, 0x5B0, 0x93C, 0x1161, 0x11A8, 0x1100])) for _ in range(r.randrange(1, 6))))
        else:
            out.append(r.choice(["a", "A", "1", "ab", "=", "-", "ha", ".", "\u4e00", "\U0001f600", "ло"]) * r.randrange(1, 60))
        if r.random() < 0.5:
            out.append(" ")
    return "".join(out)


def compare(driver: str, path: str, rows: str | None, n: int, seed: int, assigned_only: bool) -> int:
    from tokenizers import Tokenizer
    ref = Tokenizer.from_file(path)
    ref.no_truncation()
    ref.no_padding()
    plain = Tokenizer.from_file(path)
    plain.no_truncation()
    plain.no_padding()
    plain.encode_special_tokens = True
    ours = Driver(driver, path)
    checks = bad = 0

    def same(what, mine, theirs, about):
        nonlocal checks, bad
        checks += 1
        if mine != theirs:
            bad += 1
            if bad <= 10:
                print(f"DIFFER {path} {what}: {about!r}\n  ours   {mine!r}\n  theirs {theirs!r}")

    if rows:
        for row in json.load(open(rows)):
            same("ids", ours.encode(row["text"]), row["ids"], row["text"])
            same("ids_special", ours.encode(row["text"], add=True), row["ids_special"], row["text"])
            same("decoded", ours.decode(row["ids"]), row["decoded"].encode(), row["text"])
            same("decoded_skip", ours.decode(row["ids"], skip=True), row["decoded_skip"].encode(), row["text"])
    r = random.Random(seed)
    added = [t.content for t in ref.get_added_tokens_decoder().values()]
    specials = added if len(added) < 300 else r.sample(added, 300)
    known = [i for i in range(ours.size) if ref.id_to_token(i) is not None]
    for _ in range(n):
        text = random_text(r, specials, assigned_only)
        ids = ref.encode(text, add_special_tokens=False).ids
        same("encode", ours.encode(text), ids, text)
        same("encode+add", ours.encode(text, add=True), ref.encode(text).ids, text)
        same("encode-parse", ours.encode(text, parse=False), plain.encode(text, add_special_tokens=False).ids, text)
        ids = ids if r.random() < 0.6 else [r.choice(known) for _ in range(r.randrange(1, 20))]
        for skip in (False, True):
            text = ref.decode(ids, skip_special_tokens=skip).encode()
            same(f"decode skip={skip}", ours.decode(ids, skip), text, ids)
            stream = ours.decode(ids, skip, stream=True)
            if not isinstance(stream, str) and "\ufffd" not in text.decode():
                same(f"stream skip={skip}", stream, text, ids)
    print(f"{path}: {checks} checks, {bad} differ")
    return bad


def main() -> int:
    a = argparse.ArgumentParser()
    a.add_argument("--driver", required=True)
    a.add_argument("--rows")
    a.add_argument("-n", type=int, default=2000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--assigned-only", action="store_true", help="only characters that Python's Unicode version knows")
    a.add_argument("files", nargs="+")
    o = a.parse_args()
    return 1 if sum(compare(o.driver, f, o.rows, o.n, o.seed, o.assigned_only) for f in o.files) else 0


if __name__ == "__main__":
    sys.exit(main())
