"""cells.py: the solution cell and nothing else is taken, wherever a front end or the student put it."""

import ast
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flashlab.grading import cells


def code(source, solution=False):
    return {"cell_type": "code", "source": source, "metadata": {"nbgrader": {"solution": True}} if solution else {}}


def test_the_marked_cell_is_taken_whatever_comes_after_it():
    given = [code("def f():\n    return 1", True), code("def f():\n    return 2"), code("f = lambda: 3")]
    assert cells.solutions(given, ("f",)) == {"f": "def f():\n    return 1"}


def test_without_a_mark_the_last_definition_counts():
    given = [code("def f():\n    return 1"), {"cell_type": "markdown", "source": "def f(): 5"}, code(["def f():\n", "    return 2"])]
    assert cells.solutions(given, ("f",)) == {"f": "def f():\n    return 2"}


def test_two_functions_come_in_the_notebooks_order():
    assert list(cells.solutions([code("def g(): 1"), code("def f(): 1")], ("f", "g"))) == ["g", "f"]


def test_a_helper_whose_name_begins_alike_is_no_solution():
    assert cells.solutions([code("def f_helper(): 1")], ("f",)) == {}


@pytest.mark.parametrize(
    "source, why",
    [
        ("x = 1\n%timeit x", "line 2 is the magic %timeit, and the grader runs plain Python. Delete that line"),
        ("!ls", "line 1 is the magic !ls, and the grader runs plain Python. Delete that line"),
        ("def f(:", "Python cannot read it in line 1: invalid syntax"),
        ("x = 1\ny = 2)", "Python cannot read it in line 2: unmatched ')'"),
        ("x = 1", ""),
    ],
)
def test_a_cell_that_cannot_run_is_told_why(source, why):
    assert cells.fault(source) == why


def test_a_long_cell_is_refused():
    assert cells.fault("#" * 100_001) == "Python cannot read it: it is longer than 100,000 characters"


def test_deep_nesting_is_a_fault_and_no_crash():
    assert cells.fault("x = " + "(" * 5000) != ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"cells": 3}', b"[" * 100_000])
def test_what_is_no_notebook_is_said_so(content):
    with pytest.raises(ValueError) as caught:
        cells.parse("a.ipynb", content)
    text = "a.ipynb cannot be marked: it is no notebook that can be read. Hand in the notebook of the exercise, saved by Jupyter."
    assert str(caught.value) == text


def test_a_file_that_is_too_large_or_missing_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "MOST_BYTES", 1_000_000)
    path = tmp_path / "a.ipynb"
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(ValueError, match="^a.ipynb cannot be marked: it is larger than 1 MB"):
        cells.read(path)
    with pytest.raises(ValueError, match="^b.ipynb cannot be marked: No such file or directory"):
        cells.read(tmp_path / "b.ipynb")


def test_odd_cells_are_passed_over(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [None, 3, {"cell_type": "code", "source": "def f(): 1"}]}))
    assert cells.solutions(cells.read(path), ("f",)) == {"f": "def f(): 1"}


def test_no_two_threads_parse_at_once(monkeypatch):
    """Python 3.11 raises SystemError (AST constructor recursion depth mismatch) now and then where they do."""
    busy, parse = threading.Semaphore(1), ast.parse

    def alone(source):
        assert busy.acquire(blocking=False), "another thread parses"
        time.sleep(0.001)
        tree = parse(source)
        busy.release()
        return tree

    monkeypatch.setattr(ast, "parse", alone)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(cells.defines, ["def f(): 1"] * 40)) == [{"f"}] * 40
