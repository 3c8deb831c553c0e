#!/usr/bin/env python3
"""Makes src/formats/unicode_data.c: where the reference library's Unicode tables differ from those of the libraries we use.

    pip install tokenizers==0.23.2 unicodedata2==18.0.0     (run with a Python whose unicodedata is 14.0.0, such as 3.11)
    tools/reference/make_unicode_data.py

newer: code points that the reference's regular expressions know and Unicode 14 (PCRE2 10.42) does not, with their category.
frozen: code points that the reference's normalizer leaves alone because its tables are older than they are.
"""
import pathlib
import unicodedata

import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parent.parent.parent / "src/formats/unicode_data.c"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split()
SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def newer() -> list[list]:
    out = []
    for category in CATEGORIES:
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed")
        for c in SCALARS:
            if unicodedata.category(chr(c)) == "Cn" and not split.pre_tokenize_str(chr(c)):
                out.append((c, category))
    return ranges(sorted(out))


def frozen() -> list[list]:
    nfd, nfc = normalizers.NFD(), normalizers.NFC()

    def inert(c: int) -> bool:
        """No decomposition and combining class 0 in the reference's tables."""
        return nfd.normalize_str(chr(c)) == chr(c) and all(nfd.normalize_str(t) == t for t in ("a" + chr(c) + "\u0334", "a\u0301" + chr(c)))

    out = set()
    for c in SCALARS:
        ch = chr(c)
        parts = unicodedata2.decomposition(ch)
        canonical = parts and not parts.startswith("<")
        if (unicodedata2.combining(ch) or canonical) and inert(c):
            out.add(c)
            if canonical and unicodedata2.normalize("NFC", ch) == ch:  # and what would compose it: its first half is as new
                out.add(int(parts.split()[0], 16))
    for c in out:  # nothing that the reference does handle may be among them
        assert inert(c) and nfc.normalize_str(chr(c)) == chr(c), hex(c)
    return ranges(sorted((c, "") for c in out))


def ranges(points: list[tuple]) -> list[list]:
    out = []
    for c, what in points:
        if out and out[-1][1] == c - 1 and out[-1][2] == what:
            out[-1][1] = c
        else:
            out.append([c, c, what])
    return out


def main() -> None:
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    text = '/* Made by tools/reference/make_unicode_data.py. */\n#include "formats/unicode_data.h"\n\n'
    text += "const bl_unicode_range bl_unicode_newer[] = {\n"
    text += "".join('    {0x%X, 0x%X, "%s"},\n' % tuple(r) for r in newer())
    text += "};\nconst size_t bl_unicode_n_newer = sizeof bl_unicode_newer / sizeof bl_unicode_newer[0];\n\n"
    text += "const bl_unicode_range bl_unicode_frozen[] = {\n"
    text += "".join('    {0x%X, 0x%X, ""},\n' % tuple(r[:2]) for r in frozen())
    text += "};\nconst size_t bl_unicode_n_frozen = sizeof bl_unicode_frozen / sizeof bl_unicode_frozen[0];\n"
    OUT.write_text(text)


if __name__ == "__main__":
    main()
