#!/usr/bin/env python3
"""Prints the tables of src/formats/jinja_unicode_tables.h: where Python's str.upper/str.title give more than one code
point (Unicode's SpecialCasing), and digits that are no decimals. Run with any Python 3; the Unicode version is printed."""
import sys
import unicodedata


def main():
    print("/* Made by tools/reference/make_jinja_unicode.py from Python's unicodedata %s. Do not edit. */" %
          unicodedata.unidata_version)
    print("#ifndef BL_FORMATS_JINJA_UNICODE_TABLES_H\n#define BL_FORMATS_JINJA_UNICODE_TABLES_H\n")
    print("#include <stdint.h>\n")
    print("/* Code point, its upper case, its title case (0: unused place). */")
    print("static const uint32_t bl_jn_special_case[][7] = {")
    for cp in range(sys.maxunicode + 1):
        if 0xD800 <= cp < 0xE000:
            continue
        up, ti = chr(cp).upper(), chr(cp).title()
        if len(up) > 1 or len(ti) > 1:
            cells = [cp] + [ord(x) for x in up] + [0] * (3 - len(up)) + [ord(x) for x in ti] + [0] * (3 - len(ti))
            print("    {" + ", ".join("0x%X" % c for c in cells) + "},")
    print("};\n")
    print("/* First and last code point of runs where str.isdigit() holds and str.isdecimal() does not. */")
    print("static const uint32_t bl_jn_other_digits[][2] = {")
    runs = []
    for cp in range(sys.maxunicode + 1):
        if chr(cp).isdigit() and not chr(cp).isdecimal():
            if runs and runs[-1][1] == cp - 1:
                runs[-1][1] = cp
            else:
                runs.append([cp, cp])
    for lo, hi in runs:
        print("    {0x%X, 0x%X}," % (lo, hi))
    print("};\n\n#endif")


main()
