"""What holds for every exercise, however many there are: solutions full marks, stubs zero, exercises/ fresh, nothing leaks."""

import json
import re

import pytest
from exercise_cells import ROOT, notebook_of, solution_of, stub_of

from flashlab.grading import marks
from flashlab.grading.exercise import find, names
from flashlab.grading.misconceptions import MEANS

EVERY = names()


def cells_of(name, folder="solutions"):
    return json.loads(notebook_of(name, folder).read_bytes())["cells"]


def nbgrader_of(cell):
    return cell["metadata"].get("nbgrader", {})


@pytest.mark.parametrize("name", EVERY)
def test_the_solution_gets_full_marks_hidden_cases_included(name):
    exercise = find(name)
    hidden = exercise.with_hidden(ROOT / "solutions")
    assert sum(len(test.cases) for test in hidden.tests) > sum(len(test.cases) for test in exercise.tests), "hidden.py adds no case"
    result = marks.mark(hidden, solution_of(name))
    assert result and result.points == exercise.points, "\n".join(marks.lines(result))


@pytest.mark.parametrize("name", EVERY)
def test_the_stub_gets_zero_and_raises_nothing_but_not_implemented(name):
    result = marks.mark(find(name), stub_of(name))
    assert result.points == 0 and result.unsolved
    assert {outcome.finding.what.split(" ")[0] for outcome in result.outcomes} == {"NotImplementedError"}


@pytest.mark.parametrize("name", EVERY)
def test_hidden_cases_belong_to_tests(name):
    exercise, path = find(name), ROOT / "solutions" / find(name).name / "hidden.py"
    scope = {}
    exec(path.read_text(), scope)
    assert set(scope["CASES"]) <= {test.name for test in exercise.tests}


@pytest.mark.parametrize("name", EVERY)
def test_points_of_the_tests_are_those_of_the_notebook(name):
    graded = [nbgrader_of(cell) for cell in cells_of(name) if nbgrader_of(cell).get("grade")]
    assert sum(mark["points"] for mark in graded if not mark["solution"]) == find(name).points
    assert any(mark["solution"] for mark in graded), "an exercise asks a question in words"


@pytest.mark.parametrize("name", EVERY)
def test_the_notebook_has_what_a_student_needs(name):
    text = "\n".join("".join(cell["source"]) for cell in cells_of(name, "exercises"))
    assert "**Goal.**" in text and "**What must hold**" in text
    assert text.count("<details>") >= 3
    assert f'check("{find(name).id}")' in text
    assert re.search(r"[Aa]bout\** \d+ line", text), "say how many lines"


@pytest.mark.parametrize("folder", ["exercises", "solutions"])
@pytest.mark.parametrize("name", EVERY)
def test_run_all_breaks_neither_an_unsolved_exercise_nor_its_solution(name, folder, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.chdir(tmp_path)  # what was passed is remembered there
    book = nbformat.read(notebook_of(name, folder), as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = json.dumps([cell.get("outputs") for cell in book.cells], ensure_ascii=False)
    assert ("is not written yet" in shown) is (folder == "exercises")


def test_exercises_are_fresh_byte_for_byte_and_nothing_leaks():
    pytest.importorskip("nbgrader", reason="nbgrader comes with the extras test and instructor")
    from flashlab.grading.release import LEAKS, release

    made = release(ROOT / "solutions")
    there = {path.relative_to(ROOT / "exercises"): path.read_bytes() for path in (ROOT / "exercises").rglob("*") if path.is_file()}
    assert there == made, "run make exercises, then commit"
    for path, content in made.items():
        assert not any(word.encode() in content for word in LEAKS), path
        assert path.name != "hidden.py" and b"hidden=True" not in content
    for name in EVERY:
        student = made[notebook_of(name, "exercises").relative_to(ROOT / "exercises")].decode()
        for cell in cells_of(name):
            for region in re.findall(r"### BEGIN.*?\n(.*?)\n\s*### END", "".join(cell["source"]), re.S):
                for line in filter(lambda line: len(line.strip()) > 25, region.splitlines()):
                    assert json.dumps(line.strip(), ensure_ascii=False)[1:-1] not in student, line


def test_every_exercise_has_solution_exercise_and_module():
    folders = {path.name for path in (ROOT / "solutions").iterdir() if path.is_dir()}
    assert folders == set(EVERY) == {path.name for path in (ROOT / "exercises").iterdir()}


def test_every_misconception_says_what_to_do_in_whole_sentences():
    for name, text in MEANS.items():
        assert text.endswith(".") and len(text.split()) > 5, name
