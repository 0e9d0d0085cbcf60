"""report.py and class_figure.py: what came from outside is text, and the figure's finding is said in words."""

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
