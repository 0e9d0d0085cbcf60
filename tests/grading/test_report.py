"""report.py and class_figure.py: what came from outside is text, and the figure's finding is said in words."""

import json

import pytest

from flashlab.grading import class_figure, report
from flashlab.grading.exercise import find

BAD = "<script>alert(1)</script>\"'&"


def test_everything_from_outside_is_escaped():
    test = {"name": "small", "passed": False, "points": 0, "possible": 2, "what": BAD, "misconception": "", "meaning": BAD, "input": BAD, "theirs": BAD, "expected": BAD}
    record = {"student": BAD, "exercise": "e04", "title": "t", "points": 0, "possible": 10, "tests": [test], "problem": BAD, "printed": BAD}
    record |= {"slug": "x", "first_failure": "small", "misconception": BAD, "late": True}
    pages = report.student_page(record) + report.class_page(find("e04"), [record], [(BAD, BAD)], [(0.5, BAD, BAD)], "", BAD)
    assert "<script" not in pages and "alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in pages


def test_a_page_allows_no_script_even_if_one_came_through():
    assert "default-src 'none'" in report.page("x")


def record(first, misconception=""):
    return {"first_failure": first, "misconception": misconception}


def test_the_figure_counts_first_failures():
    records = [record(""), record("small", "scale forgotten"), record("bytes", "scale forgotten"), record("ragged"), record("not written")]
    assert class_figure.counts(records) == [("scale forgotten", 2), ("not written", 1), ("ragged: not recognised", 1)]
    assert class_figure.sentence(records) == "1 of 5 submissions pass every test; the most frequent first failure is “scale forgotten”, 2 times."
    axes = class_figure.draw(records).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ragged: not recognised", "not written", "scale forgotten"]


def test_a_class_without_a_failure():
    assert class_figure.sentence([record("")]) == "1 of 1 submissions pass every test."
    assert class_figure.draw([record("")])


@pytest.mark.parametrize("kind, said", [
    ("ProcessEnded", "the process ended by itself"), ("Magic", "a magic"), ("NameError", "NameError"), ("TimeLimit", "the time limit"), ("_ArrayMemoryError", "MemoryError"),
    ("$\\frac{$", "an exception of their own"), ("E" * 100, "an exception of their own"), ("", "small: not recognised"),
])  # fmt: skip
def test_a_failure_without_a_misconception_is_called_by_its_kind(kind, said):
    assert class_figure.counts([record("small") | {"kind": kind}]) == [(said, 1)]
    assert class_figure.counts([record("small", "scale forgotten") | {"kind": kind}]) == [("scale forgotten", 1)]


def full_record(**more):
    test = {"name": "small", "passed": False, "points": 0, "possible": 2, "what": "o differs", "misconception": "", "meaning": "", "input": "in", "theirs": "mine", "expected": "yours"}
    base = {"student": "ada", "slug": "ada", "exercise": "e04", "title": "t", "points": 3, "possible": 10, "tests": [test], "problem": "", "printed": ""}
    return base | {"first_failure": "small", "misconception": "", "late": False} | more


def test_the_input_comes_first_then_theirs_and_expected_side_by_side():
    text = report.student_page(full_record())
    assert text.index("<div class='input'>") < text.index("<div class='theirs'>") < text.index("<div class='expected'>")
    assert ".numbers > .input { grid-column: 1 / -1 }" in text and ":first-child { grid-column" not in text


@pytest.mark.parametrize("hand, said, score", [(1.5, "1.5 of 2", 4.5), (0, "0 of 2", 3), (None, "not graded yet", 3)])
def test_points_given_by_hand_reach_the_student(hand, said, score):
    one = full_record(words=2, by_hand=hand)
    assert f"Answers in words: <b>{said}</b>" in report.student_page(one)
    assert f"<td><span class='line'>{said}</span></td>" in report.class_page(find("e04"), [one], [], [], "", "")
    result = json.loads(report.gradescope(one))
    assert result["score"] == score and result["tests"][-1]["name"] == "answers in words"
    assert (result["tests"][-1]["score"], result["tests"][-1]["max_score"], result["tests"][-1]["output"]) == (hand or 0, 2, "" if hand is not None else "not graded yet")


def test_what_is_found_stands_where_no_misconception_is_named():
    assert "<td>o differs</td>" in report.class_page(find("e04"), [full_record()], [], [], "", "")


def test_a_right_answer_shows_no_warning_of_numpys():
    printed = "hello\n<cell 1>:12: RuntimeWarning: invalid value encountered in matmul\n  scores = q @ k.T\nbye\n"
    assert "RuntimeWarning" in report.student_page(full_record(printed=printed))
    right = full_record(printed=printed, tests=[{"name": "small", "passed": True, "points": 2, "possible": 2}], first_failure="")
    text = report.student_page(right)
    assert "<pre>hello\nbye</pre>" in text and "RuntimeWarning" not in text and "q @ k.T" not in text
    only = right | {"printed": printed.removeprefix("hello\n").removesuffix("bye\n")}
    assert "What your code printed" not in report.student_page(only)
