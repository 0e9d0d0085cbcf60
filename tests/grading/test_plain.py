"""plain.py: what could move a cursor or turn a line around is shown as its code; every other letter stays."""

import pytest

from flashlab.grading.plain import plain


@pytest.mark.parametrize(
    "text, shown",
    [
        ("Jürgen Müller", "Jürgen Müller"),
        ("כהן، می‌خواهم 👩‍🔬", "כהן، می‌خواهم 👩‍🔬"),
        ("\x1b[2J\x00\x07\x9b", "\\x1b[2J\\x00\\x07\\x9b"),
        ("a\u202eb\u2066c\u200f\ufeff\u00ad", "a\\u202eb\\u2066c\\u200f\\ufeff\\xad"),
        ("\ud800\u2028\U000e0041", "\\ud800\\u2028\\U000e0041"),
        (5, "5"),
    ],
)
def test_what_is_shown(text, shown):
    assert plain(text) == shown


def test_lines_stay_where_they_may():
    assert plain("a\tb\n") == "a\tb\n" and plain("a\tb\n", lines=False) == "a\\x09b\\x0a" and plain("abc", 2) == "ab"
