#!/usr/bin/env python3
"""make_unicode_ranges.py - writes examples/gpt2/text/unicode_ranges.inc: which code points are letters, and which are numbers.

The general categories L* and N* of the Unicode Character Database, in the version that this Python has.
    tests/support/make_unicode_ranges.py > examples/gpt2/text/unicode_ranges.inc
"""
import unicodedata


def ranges(kind):
    found, first = [], None
    for code in range(0x110001):
        is_in = code < 0x110000 and unicodedata.category(chr(code))[0] == kind
        if is_in and first is None:
            first = code
        elif not is_in and first is not None:
            found.append((first, code - 1))
            first = None
    return found


def table(name, kind):
    rows = ["{0x%x,0x%x}," % r for r in ranges(kind)]
    print("static const uint32_t %s[][2] = {" % name)
    line = "   "
    for row in rows:
        if len(line) + 1 + len(row) > 120:
            print(line)
            line = "   "
        line += " " + row
    print(line)
    print("};")


print("/* unicode_ranges.inc - first and last code point of each run of letters and of numbers, Unicode %s." % unicodedata.unidata_version)
print(" * Written by tests/support/make_unicode_ranges.py; do not edit. */")
print("/* clang-format off */")
table("letters", "L")
table("numbers", "N")
print("/* clang-format on */")
