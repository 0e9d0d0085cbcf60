"""grade.py: a class from its notebooks to its files; resumable, the same marks each time, nobody lost."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from class_of import hand_in, notebook, solution
from exercise_cells import mutated

from flashlab import cli
from flashlab.errors import ERRORS
from flashlab.grading import class_figure, marks, sandbox
from flashlab.grading import grade as module
from flashlab.grading.exercise import find
from flashlab.grading.grade import grade
from flashlab.grading.spreadsheet import grades_csv

ROOT = Path(__file__).parents[2]
needs_bwrap = pytest.mark.skipif(not sandbox.works(), reason=f"needs bubblewrap: {sandbox.why_not()}")
BASE_2 = mutated("e04", [("row_max + np.log(row_sum)", "(row_max + np.log(row_sum)) / np.log(2)")])["flash_forward"]


def rows_of(out):
    return {row["student"]: row for row in csv.DictReader(io.StringIO((out / "grades.csv").read_text()))}


def files_of(out):
    return {path.relative_to(out): (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Four students on Canvas, one of them late and one unknown to the roster."""
    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    folder = tmp_path_factory.mktemp("class")
    for name, source in (("doejane_12_1_e04", solution()), ("roejohn_LATE_13_2_e04-1", BASE_2), ("evil_77_3_e04", solution()), ("idle_14_4_e04", None)):
        hand_in(folder / "in", name, notebook(source))
    with zipfile.ZipFile(folder / "canvas.zip", "w") as archive:
        for path in (folder / "in").iterdir():
            archive.write(path, path.name)
        archive.writestr("roejohn_13_2_notes.txt", "notes")
    (folder / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\nDoe,12,,d,A\nRoe,13,,r,A\nIdle,14,,i,A\nAbsent,15,,a,A\n")
    said = io.StringIO()
    status = grade(folder / "canvas.zip", "e04", folder / "out", roster=folder / "roster.csv", progress=said)
    return folder, said.getvalue(), status


def test_from_a_canvas_zip_and_a_roster_to_a_csv_for_canvas(graded):
    folder, said, status = graded
    text = (folder / "out/grades_canvas.csv").read_text()
    assert text == (
        "Student,ID,SIS User ID,SIS Login ID,Section,e04_flash_forward\nDoe,12,,d,A,10\nRoe,13,,r,A,0\nIdle,14,,i,A,0\nAbsent,15,,a,A,\n"
    )
    assert status == 1 and "evil_77_3_e04.ipynb: it is marked, but matches nobody on the roster" in said
    assert "roejohn_13_2_notes.txt: it is no notebook" in said


def test_words_that_nobody_graded_are_said_to_count_as_0(graded):
    folder, said, _ = graded
    sentence = "2 of 12 points are for answers in words; 4 of 4 students have none yet: grades_canvas.csv counts them 0."
    assert sentence in said and sentence in (folder / "out/class.html").read_text()
    assert "Answers in words: <b>not graded yet</b>; 2 points possible." in (folder / "out/reports/roejohn_13.html").read_text()


def test_grades_csv_says_where_each_failed_and_what_that_usually_means(graded):
    rows = rows_of(graded[0] / "out")
    assert rows["doejane_12"]["points"] == "10" and rows["doejane_12"]["first failure"] == ""
    assert (rows["roejohn_13"]["first failure"], rows["roejohn_13"]["usually means"], rows["roejohn_13"]["late"]) == ("small", "lse in base 2", "late")
    assert rows["idle_14"]["first failure"] == "not written" and set(rows) == {"doejane_12", "roejohn_13", "evil_77", "idle_14"}


def test_a_report_shows_input_theirs_expected_and_what_it_means(graded):
    text = (graded[0] / "out/reports/roejohn_13.html").read_text()
    for words in ("What this difference usually means: <b>lse in base 2.</b>", "<h3>Input</h3>", "<h3>Yours</h3>", "<h3>Expected</h3>", "0 of 2 points"):
        assert words in text


def test_gradescope_gets_its_json(graded):
    result = json.loads((graded[0] / "out/gradescope/roejohn_13.json").read_bytes())
    assert result["score"] == 0 and [test["name"] for test in result["tests"]] == [*(test.name for test in find("e04").tests), "answers in words"]
    assert result["tests"][-1] == {"name": "answers in words", "score": 0, "max_score": 2, "output": "not graded yet", "output_format": "text"}
    assert result["tests"][0] == {
        "name": "small", "score": 0, "max_score": 2, "status": "failed", "output_format": "text",
        "output": result["tests"][0]["output"],
    }  # fmt: skip
    assert "lse is off by the factor log2(e)" in result["tests"][0]["output"]


def test_the_class_page_has_the_figure_with_its_finding_and_who_is_alike(graded):
    text = (graded[0] / "out/class.html").read_text()
    assert "2 of 4 submissions pass every test; the most frequent first failure is " in text
    assert "<td class=number>100%</td><td>doejane_12</td><td>evil_77</td>" in text and "never a verdict" in text


def test_a_second_run_changes_nothing_and_marks_nobody(graded, monkeypatch):
    folder, _, _ = graded
    before = files_of(folder / "out")
    monkeypatch.setattr(marks, "mark", lambda *a, **k: pytest.fail("marked again"))
    grade(folder / "canvas.zip", "e04", folder / "out", roster=folder / "roster.csv", progress=None)
    assert files_of(folder / "out") == before


@needs_bwrap
def test_a_changed_notebook_is_marked_again_and_only_it(graded, monkeypatch, tmp_path):
    folder = tmp_path
    for student in ("a", "b"):
        hand_in(folder / "in", student, notebook(None))
    grade(folder / "in", "e04", folder / "out", progress=None)
    hand_in(folder / "in", "b", BASE_2)
    marked = []
    mark = marks.mark
    monkeypatch.setattr(marks, "mark", lambda *a, **k: marked.append(1) or mark(*a, **k))
    grade(folder / "in", "e04", folder / "out", progress=None)
    assert len(marked) == 1 and rows_of(folder / "out")["b"]["usually means"] == "lse in base 2"


@needs_bwrap
def test_killed_and_run_again_it_gives_the_same_marks(tmp_path):
    for number in range(6):
        hand_in(tmp_path / "in", f"s{number}", solution() if number % 2 else BASE_2)
    command = [sys.executable, "-m", "flashlab.cli", "grade", str(tmp_path / "in"), "--exercise", "e04", "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list((tmp_path / "out").glob("results/s*.json"))) < 2 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(list((tmp_path / "out").glob("results/s*.json")))
    assert 2 <= kept and not (tmp_path / "out/grades.csv").exists()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    grade(tmp_path / "in", "e04", tmp_path / "fresh", progress=None)
    assert (tmp_path / "out/grades.csv").read_bytes() == (tmp_path / "fresh/grades.csv").read_bytes()
    assert [row["points"] for row in rows_of(tmp_path / "out").values()] == ["0", "10"] * 3


@needs_bwrap
def test_what_an_earlier_run_wrote_and_this_one_contradicts_goes(tmp_path):
    for student in ("12", "13"):
        hand_in(tmp_path / "in", student, notebook(None))
    (tmp_path / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\nDoe,1,,12,A\nRoe,2,,13,A\n")
    out = tmp_path / "out"
    grade(tmp_path / "in", "e04", out, roster=tmp_path / "roster.csv", progress=None)
    (out / "reports/mine.html").write_text("mine")
    (tmp_path / "in/13.ipynb").unlink()
    said = io.StringIO()
    assert grade(tmp_path / "in", "e04", out, progress=said) == 0
    assert not (out / "grades_canvas.csv").exists() and "Deleted grades_canvas.csv of an earlier run" in said.getvalue()
    assert [path.name for folder in ("reports", "gradescope") for path in sorted((out / folder).iterdir())] == ["12.html", "mine.html", "12.json"]
    assert "Deleted the reports of 1 students of an earlier run who are not in this one: 13." in said.getvalue()
    assert "reports/mine.html: it is of no student in this run" in said.getvalue()


@needs_bwrap
def test_unlike_failures_are_told_apart(tmp_path):
    made = {"exits": "def flash_forward(**_):\n    import os\n    os._exit(3)", "magic": "%time\ndef flash_forward(**_): pass", "name": "def flash_forward(**_): return attention()"}
    for student, source in made.items():
        hand_in(tmp_path / "in", student, source)
    grade(tmp_path / "in", "e04", tmp_path / "out", progress=None)
    rows = rows_of(tmp_path / "out")
    assert rows["name"]["usually means"].startswith("NameError: name 'attention' is not defined in line 1")
    assert rows["magic"]["usually means"].endswith("line 1 is the magic %time, and the grader runs plain Python. Delete that line")
    assert rows["exits"]["usually means"] == "ProcessEnded: the process ended by itself (status 3)"
    records = [json.loads(path.read_bytes()) for path in (tmp_path / "out/results").iterdir()]
    assert {name for name, _ in class_figure.counts(records)} == {"the process ended by itself", "a magic", "NameError"}


@needs_bwrap
def test_answers_in_words_that_formgrader_cannot_show_are_listed(tmp_path):
    made = notebook(None)
    for cell in made["cells"]:
        cell["metadata"] = {}
    hand_in(tmp_path / "in", "colab", made)
    hand_in(tmp_path / "in", "jupyter", notebook(None))
    said = io.StringIO()
    assert grade(tmp_path / "in", "e04", tmp_path / "out", progress=said) == 0
    assert "colab.ipynb: its answers in words have lost nbgrader's marks" in said.getvalue() and "jupyter.ipynb" not in said.getvalue()


def test_without_bwrap_it_refuses_and_says_how_to_mend_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "why_not", lambda: "bwrap is not installed")
    hand_in(tmp_path / "in", "a", notebook(None))
    assert cli.main(["grade", str(tmp_path / "in"), "--exercise", "e04", "--out", str(tmp_path / "out")]) == 2
    text = ERRORS["no_sandbox"][1].format(why="bwrap is not installed", fix=sandbox.FIX)
    assert capsys.readouterr().err == f"flashlab: {text}\n" and not (tmp_path / "out").exists()


def test_unsafe_marks_without_bwrap_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "why_not", lambda: "bwrap is not installed")
    hand_in(tmp_path / "in", "a", notebook(None))
    said = io.StringIO()
    assert grade(tmp_path / "in", "e04", tmp_path / "out", unsafe=True, progress=said) == 0
    assert "NOT SANDBOXED: bwrap is not installed." in said.getvalue()


@needs_bwrap
def test_a_fault_of_the_grader_costs_one_student_a_look_and_nobody_a_mark(tmp_path, monkeypatch):
    for student in ("a", "b"):
        hand_in(tmp_path / "in", student, notebook(None))
    record_of = module.record_of

    def sometimes(exercise, submission, content, problem="", limits=None):
        if submission.student == "a" and not problem:
            raise KeyError("ours")
        return record_of(exercise, submission, content, problem, limits)

    monkeypatch.setattr(module, "record_of", sometimes)
    grade(tmp_path / "in", "e04", tmp_path / "out", progress=None)
    rows = rows_of(tmp_path / "out")
    assert rows["a"]["problem"] == "the grader itself failed on it (KeyError: 'ours'); mark it by hand" and rows["b"]["first failure"] == "not written"
    assert not (tmp_path / "out/results/a.json").exists(), "tried again next time"


def test_a_name_is_no_formula():
    record = {"student": "=cmd|' /C calc'!A0", "file": "-x", "points": 0, "possible": 10, "tests": [], "first_failure": "", "misconception": "", "late": False, "problem": ""}
    assert grades_csv(find("e04"), [record]).splitlines()[1].startswith("'=cmd|' /C calc'!A0,'-x,0,10,")


@pytest.mark.parametrize("name, cell", [("\r=1+1", "\\x0d=1+1"), (" =1", "' =1"), ("＝1", "'＝1"), ("a\nb", "a\\x0ab"), ("a,\"b", '"a,""b"'), ("\u202egnp", "\\u202egnp"), ("--", "'--"), ("", "")])
def test_a_name_stays_in_its_cell(name, cell):
    record = {"student": name, "file": "x", "points": 0, "possible": 10, "tests": [], "first_failure": "", "misconception": "", "late": False, "problem": ""}
    assert grades_csv(find("e04"), [record]).splitlines()[1].startswith(f"{cell},x,0,10,")


@needs_bwrap
def test_a_file_name_writes_nothing_on_the_terminal(tmp_path):
    hand_in(tmp_path / "in", "a", notebook(None))
    (tmp_path / "in/\x1b[2J\x1b]0;owned\x07\n2 of 2 marked.txt").write_text("x")
    with open(os.path.join(os.fsencode(tmp_path / "in"), b"\xff.ipynb"), "wb") as file:
        file.write(json.dumps(notebook(None)).encode())
    said = io.StringIO()
    grade(tmp_path / "in", "e04", tmp_path / "out", progress=said)
    assert "\\x1b[2J\\x1b]0;owned\\x07\\x0a2 of 2 marked.txt: it is no notebook" in said.getvalue() and "\x1b" not in said.getvalue()
    assert len(rows_of(tmp_path / "out")) == 2


def test_a_damaged_zip_member_is_one_students_problem(tmp_path):
    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.ipynb", json.dumps(notebook(None)))
        archive.writestr("b.ipynb", "x" * 1000)
    content = (tmp_path / "all.zip").read_bytes()
    (tmp_path / "all.zip").write_bytes(content.replace(b"x" * 1000, b"x" * 999 + b"y"))
    grade(tmp_path / "all.zip", "e04", tmp_path / "out", progress=None)
    assert rows_of(tmp_path / "out")["b"]["problem"].startswith("b.ipynb cannot be read: Bad CRC-32")
