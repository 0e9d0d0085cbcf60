"""Text from outside, made plain: nothing in it can move a cursor, turn a line around or stand where it is not."""

from __future__ import annotations

import unicodedata

# Control characters, marks of direction and of no width, halves of surrogate pairs, line separators: unicodedata's names.
SHOWN_AS_CODES = ("Cc", "Cf", "Cs", "Zl", "Zp")
LINES = "\n\t"
JOINERS = "\u200c\u200d"  # of Persian and Indic letters: part of names


def plain(text: object, most: int | None = None, *, lines: bool = True) -> str:
    """The text, cut to `most` characters, with such characters as \\x1b or \\u202e; without `lines` a new line too.

    >>> plain("a\\x1b[31m", lines=False)
    'a\\\\x1b[31m'
    """
    text = str(text)[:most]
    if text.isprintable():
        return text
    keep = JOINERS + (LINES if lines else "")
    return "".join(f"\\{_code(ord(sign))}" if sign not in keep and unicodedata.category(sign) in SHOWN_AS_CODES else sign for sign in text)


def _code(number: int) -> str:
    return f"x{number:02x}" if number < 0x100 else f"u{number:04x}" if number < 0x10000 else f"U{number:08x}"
