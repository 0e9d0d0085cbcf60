"""gradebook.py: nbgrader's hand-given marks reach grades.csv, the sandbox's reach nbgrader; no student's code runs for it."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from class_of import notebook, solution
from exercise_cells import ROOT

from flashlab import cli
from flashlab.grading import gradebook, marks, sandbox
from flashlab.grading.exercise import find
from flashlab.grading.grade import grade

E04 = find("e04")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course that nbgrader opened: released, two students collected, one answer graded by hand."""
    nbgrader = pytest.importorskip("nbgrader.api", reason="nbgrader comes with the extras test and instructor")
    if shutil.which("alembic", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}") is None:
        pytest.skip("nbgrader needs alembic on PATH to make a gradebook")
    folder = tmp_path_factory.mktemp("course")
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for student, source in (("alice", "print('careful')\n" + solution()), ("bob", "import os\nos._exit(3)\n" + solution())):
        place = folder / "submitted" / student / E04.name
        place.mkdir(parents=True)
        made = notebook(source)
        made["cells"][-1]["source"] = "Half the bytes, if 1 < 2. <img src=x onerror=alert(1)>" if student == "alice" else "[a](JavaScript:alert(1))"
        made["cells"].insert(1, {"cell_type": "raw", "id": "raw", "metadata": {"raw_mimetype": "text/html"}, "source": "<script>alert(1)</script>"})
        made["metadata"]["widgets"] = {"x": "</script><script>alert(1)</script>"}
        (place / f"{E04.name}.ipynb").write_text(json.dumps(made))
    app = "import sys; from nbgrader.apps import NbGraderApp; sys.exit(NbGraderApp.launch_instance())"
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    for command in (["generate_assignment", "--force"], ["autograde"]):  # as instructor.md says
        done = subprocess.run([sys.executable, "-c", app, *command, E04.name], cwd=folder, env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    with nbgrader.Gradebook(f"sqlite:///{folder}/gradebook.db") as book:
        for submission in book.assignment_submissions(E04.name):
            for grade_ in submission.notebooks[0].grades:
                if grade_.cell.cell_type == "markdown" and submission.student.id == "alice":
                    grade_.manual_score, grade_.needs_manual_grade = 1.5, False
        book.db.commit()
    return folder


def test_nbgrader_releases_the_same_bytes_and_no_hidden_case(course):
    released = course / "exercises" / E04.name
    assert [path.name for path in released.iterdir()] == [f"{E04.name}.ipynb"]
    assert (released / f"{E04.name}.ipynb").read_bytes() == (ROOT / "exercises" / E04.name / f"{E04.name}.ipynb").read_bytes()


def test_nbgrader_runs_no_students_code(course):
    assert (course / "autograded/bob" / E04.name / f"{E04.name}.ipynb").is_file(), "os._exit would have ended its kernel"


def test_no_answer_runs_in_the_graders_browser(course):
    """Formgrader shows HTML in Markdown as it is, from the address of the instructor's own Jupyter server."""
    alice, bob = ((course / "autograded" / student / E04.name / f"{E04.name}.ipynb").read_text() for student in ("alice", "bob"))
    assert "Half the bytes, if 1 < 2. &lt;img src=x" in alice and "[a](JavaScript :alert(1))" in bob
    assert "<script" not in alice + bob and "raw_mimetype" not in alice and "widgets" not in alice


def test_instructor_md_gives_the_commands_of_this_test():
    text = (ROOT / "instructor.md").read_text()
    assert "nbgrader generate_assignment --force e04_flash_forward" in text and "nbgrader autograde e04_flash_forward" in text
    command = "flashlab grade submissions.zip --exercise e04 --out grades/ --roster canvas.csv"
    for more in ("", " --submitted submitted/", " --gradebook gradebook.db"):
        assert f"{command}{more}\n" in text.replace(" \n", "\n")
        cli.parser().parse_args(f"{command}{more}".split()[1:])


def test_marks_given_by_hand_come_out(course):
    assert gradebook.by_hand(course / "gradebook.db", E04) == {"alice": 1.5, "bob": None}


def test_one_command_gives_both_marks_and_nbgrader_sees_ours(course, tmp_path):
    from nbgrader.api import Gradebook

    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    grade(course / "submitted", "e04", tmp_path / "out", gradebook=course / "gradebook.db", progress=None)
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "out/grades.csv").open())}
    assert [rows["alice"][name] for name in ("points", "by hand", "total")] == ["10", "1.5", "11.5"]
    assert [rows["bob"][name] for name in ("points", "by hand", "total")] == ["0", "", "0"]
    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        scores = {submission.student.id: submission.score for submission in book.assignment_submissions(E04.name)}
    assert scores == {"alice": 11.5, "bob": 0}


def canvas_class(course, folder, *students):
    """The class of `course` as Canvas gives it: a zip, and a roster whose logins are nbgrader's names."""
    rows = {"alice": "Adams,1001,,alice,A", "bob": "Brown,1002,,bob,A"}
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for student in students:
            number = rows[student].split(",")[1]
            archive.write(course / "submitted" / student / E04.name / f"{E04.name}.ipynb", f"{student}x_LATE_{number}_7_{E04.name}.ipynb")
    (folder / "canvas.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section,e04 (5)\nPoints Possible,,,,,10\n" + "".join(f"{row},\n" for row in rows.values()))
    return {"roster": folder / "canvas.csv", "gradebook": course / "gradebook.db"}


def test_points_given_by_hand_reach_canvas_under_other_names(course, tmp_path):
    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    said = io.StringIO()
    assert grade(tmp_path / "all.zip", "e04", tmp_path / "out", **canvas_class(course, tmp_path, "alice", "bob"), tree=tmp_path / "submitted", progress=said) == 0
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "out/grades.csv").open())}
    assert (rows["alicex_1001"]["by hand"], rows["alicex_1001"]["total"], rows["alicex_1001"]["late"]) == ("1.5", "11.5", "late")
    assert "\nAdams,1001,,alice,A,11.5\nBrown,1002,,bob,A,0\n" in (tmp_path / "out/grades_canvas.csv").read_text()
    for words in (
        "1 of the 1 students with points by hand in gradebook.db are among these submissions.",
        "2 of 12 points are for answers in words; 1 of 2 students have none yet: grades_canvas.csv counts them 0.",
        "Canvas has 10 points possible for e04 (5), and here 12 are.",
        f"{tmp_path}/submitted has 2 of 2 notebooks, for nbgrader autograde e04_flash_forward.",
    ):
        assert words in said.getvalue()
        assert words.partition(str(tmp_path))[2] in (tmp_path / "out/class.html").read_text()
    assert {path.name for path in (tmp_path / "submitted").iterdir()} == set(rows)
    assert "<b>1.5 of 2</b> points." in (tmp_path / "out/reports/alicex_1001.html").read_text()


def test_points_given_by_hand_to_nobody_here_are_said_and_make_the_status_1(course, tmp_path):
    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    said = io.StringIO()
    given = canvas_class(course, tmp_path, "bob")
    assert grade(tmp_path / "all.zip", "e04", tmp_path / "out", **given, progress=said) == 1
    assert "0 of the 1 students with points by hand in gradebook.db are among these submissions." in said.getvalue()
    line = "alice: has 1.5 points by hand in gradebook.db, but matches none of these submissions"
    assert f"  {line}\n" in said.getvalue() and line.replace("alice", "<bdi>alice</bdi>") in (tmp_path / "out/class.html").read_text()
    given.pop("roster")
    assert grade(tmp_path / "all.zip", "e04", tmp_path / "out", **given, progress=said) == 1
    assert "bobx_1002: is not in gradebook.db: nbgrader has not read this submission" in said.getvalue()


def test_a_gradebook_is_opened_before_the_class_is_marked(course, tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "mark", lambda *a, **k: pytest.fail("marked"))
    (tmp_path / "gradebook.db").write_text("no database " * 100)
    with pytest.raises(ValueError, match="gradebook.db cannot be used: it is no database of nbgrader \\(file is not a database\\)"):
        grade(course / "submitted", "e04", tmp_path / "out", gradebook=tmp_path / "gradebook.db", unsafe=True, progress=None)
    assert not (tmp_path / "out").exists()


def test_formgrader_misses_no_exchange_aloud(course):
    code = "from nbgrader.apps import NbGraderApp as A; from nbgrader.apps.api import NbGraderAPI as B; a = A.instance(); a.initialize([]); b = B(parent=a); print(b.exchange_missing, len(b.get_submissions('e04_flash_forward')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=course, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "True 2\n" and "Unwritable" not in done.stderr, done.stderr


def test_a_gradebook_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError) as caught:
        gradebook.by_hand(tmp_path / "gradebook.db", E04)
    text = f"nbgrader's gradebook {tmp_path}/gradebook.db cannot be used: there is no such file. Pass the gradebook.db of this course, or leave --gradebook out."
    assert str(caught.value) == text


def test_without_nbgrader_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "gradebook.db").write_text("")
    monkeypatch.setitem(sys.modules, "nbgrader.api", None)
    with pytest.raises(ValueError, match="nbgrader is not installed: pip install -e '.\\[instructor\\]'"):
        gradebook.by_hand(tmp_path / "gradebook.db", E04)
