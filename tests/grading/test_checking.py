"""checking.py and progress.py: check("e04") in a notebook, in a terminal, and what is remembered of it."""

import json
import os
import subprocess
import sys

import nbformat
import pytest
from class_of import hand_in, notebook, solution
from nbclient import NotebookClient

from flashlab import cli
from flashlab.copies import find_course
from flashlab.grading import checking, progress, sandbox
from flashlab.grading.exercise import find


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The folder of a student's copies."""
    monkeypatch.setattr("flashlab.copies.work_folder", lambda course, given=None: tmp_path / "work")
    return tmp_path / "work"


def test_in_a_terminal_it_says_what_a_difference_usually_means(tmp_path, capsys):
    source = solution().replace("scale * (q_tile", "(q_tile")
    assert cli.main(["check", "e04", "--file", str(hand_in(tmp_path, "mine", source))]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "✗ small          failed   0 of 2 points"
    assert said[2] == said[4] == ""
    assert said[3].startswith("  what this difference usually means: scale forgotten. The scores were not multiplied by scale")
    assert said[-2:] == ["  4 more tests after that one.", "0 of 10 points"] or not sandbox.works()
    assert said.index("  yours:") < said.index("  expected:") < said.index("  input:")


def test_a_stub_is_not_written_yet_and_no_failure(tmp_path, capsys):
    stub = hand_in(tmp_path, "mine", notebook(None))
    cli.main(["check", "e04", "--file", str(stub)])
    assert capsys.readouterr().out == f"e04 is not written yet: 0 of 10 points. Fill in the stub in {stub}, save it, and check again.\n"


def test_one_point_is_a_point():
    assert (checking.marks.points(0, 1), checking.marks.points(1, 1), checking.marks.points(1, 2)) == ("0 of 1 point", "1 of 1 point", "1 of 2 points")
    exercise = find("e03")
    said = list(checking.marks.lines(checking.marks.Result(exercise, [checking.marks.Outcome(test) for test in exercise.tests])))
    assert "✓ large scores   passed   1 of 1 point" in said and said[-1].startswith("10 of 10 points")


def test_the_number_alone_is_taken_in_a_terminal_too(tmp_path, capsys):
    assert cli.main(["check", "04", "--file", str(hand_in(tmp_path, "mine", {"cells": []}))]) == 1
    assert capsys.readouterr().out.startswith("e04: mine.ipynb has no cell")


def test_a_notebook_without_the_cell_says_so(tmp_path, capsys):
    cli.main(["check", "e04", "--file", str(hand_in(tmp_path, "mine", {"cells": []}))])
    wanted = "mine.ipynb has no cell that defines flash_forward. Put the cell of the exercise back and fill it in."
    assert capsys.readouterr().out == f"e04: {wanted}\n"


def test_without_a_sandbox_it_still_checks_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "why_not", lambda: "bwrap is not installed")
    assert cli.main(["check", "e04", "--file", str(hand_in(tmp_path, "mine", solution()))]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "10 of 10 points (not sandboxed: bwrap does not work here)"
    assert said[-1] == "All tests pass. The questions in words are left, at the end of the notebook: a person reads them."


def test_who_reads_only_the_beginning_sees_no_complaint(tmp_path):
    command = f"{sys.executable} -m flashlab.cli progress | head -n 1; {sys.executable} -m flashlab.cli progress | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(find_course())})
    assert done.stdout.startswith("Lessons opened") and not done.stderr, done.stderr


def test_passing_is_remembered_in_work(work, capsys):
    place = work / "exercises/e04_flash_forward"
    hand_in(place, "e04_flash_forward", solution())
    assert cli.main(["progress"]) == 0
    assert "Exercises passed: 0 of " in capsys.readouterr().out
    assert cli.main(["check", "e04"]) == 0
    cli.main(["progress"])
    assert "  ✓ e04  The tile loop in NumPy (10 points, after lesson 04)" in capsys.readouterr().out
    assert json.loads((work / progress.FILE).read_text()) == {"e04_flash_forward": True}


def test_lessons_opened_are_those_of_which_a_cell_was_run(work, capsys):
    (work / "notebooks").mkdir(parents=True)
    for name, more in (("00_start_here.ipynb", b""), ("04_tiling.ipynb", b" ")):
        (work / "notebooks" / name).write_bytes((find_course() / "notebooks" / name).read_bytes() + more)
    cli.main(["progress"])
    every = len(list((find_course() / "notebooks").glob("[0-9]*.ipynb")))
    assert capsys.readouterr().out.startswith(f"Lessons opened: 1 of {every} (04)\n")


def test_an_unreadable_file_of_progress_counts_as_none(work):
    work.mkdir()
    (work / progress.FILE).write_text("[1")
    assert progress.read(work) == {}


def test_check_in_a_notebook_shows_text_that_is_escaped():
    result = checking.marks.Result(find("e04"), problem="<script>")
    assert "&lt;script&gt;" in checking.Checked(result)._repr_html_() and "<script>" not in checking.Checked(result)._repr_html_()


def test_in_a_notebook_what_a_difference_usually_means_is_bold():
    finding = checking.marks.Finding("o[0] is 1", "scale forgotten", theirs="<b>")
    result = checking.marks.Result(find("e04"), [checking.marks.Outcome(find("e04").tests[0], finding)])
    shown = checking.Checked(result)._repr_html_()
    assert "<b>  what this difference usually means: scale forgotten. " in shown and "    &lt;b&gt;" in shown


def run(cells):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(book, timeout=120).execute()
    return [cell.outputs for cell in book.cells]


def test_in_a_notebook_the_last_cell_that_was_run_counts_and_run_all_never_breaks():
    stub = "def flash_forward(q, k, v, o, lse, peak, *, n_keys, causal, block_q, block_k, memory):\n    raise NotImplementedError"
    outputs = run(["from flashlab import check", 'check("e04")', stub, 'check("e04")', solution(), 'bool(check("e04"))'])
    assert "no cell defines flash_forward" in outputs[1][0]["data"]["text/plain"]
    assert "e04 is not written yet" in outputs[3][0]["data"]["text/plain"]
    assert outputs[5][0]["data"]["text/plain"] == "True"
