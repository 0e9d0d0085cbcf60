"""release.py: what students get is made from solutions/, refuses to leak, and a class gets the course without the answers."""

import json
import os
import re
import subprocess
import sys

import pytest
from exercise_cells import ROOT

from flashlab.grading import release

pytest.importorskip("nbgrader", reason="nbgrader comes with the extras test and instructor")


def course_with(tmp_path, change=None):
    folder = tmp_path / "solutions/e04_flash_forward"
    folder.mkdir(parents=True)
    made = json.loads((ROOT / "solutions/e04_flash_forward/e04_flash_forward.ipynb").read_bytes())
    if change:
        change(made)
    (folder / "e04_flash_forward.ipynb").write_text(json.dumps(made))
    (folder / "hidden.py").write_text("CASES = {}")
    (folder / "files").mkdir()
    (folder / "files/data.txt").write_text("for students")
    return tmp_path


def test_the_notebook_and_files_are_released_and_nothing_else(tmp_path):
    made = release.release(course_with(tmp_path) / "solutions")
    assert [str(path) for path in made] == ["e04_flash_forward/e04_flash_forward.ipynb", "e04_flash_forward/data.txt"]


def test_write_makes_exercises_exactly_that_and_a_second_time_nothing(tmp_path):
    course = course_with(tmp_path)
    (course / "exercises/e04_flash_forward").mkdir(parents=True)
    (course / "exercises/e04_flash_forward/old.py").write_text("old")
    assert len(release.write(course)) == 3 and not (course / "exercises/e04_flash_forward/old.py").exists()
    assert release.write(course) == []


def test_stored_outputs_and_counts_do_not_matter(tmp_path):
    def ran(made):
        for cell in made["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"execution_count": 7, "outputs": [{"output_type": "stream", "name": "stdout", "text": "secret"}]}

    made = release.release(course_with(tmp_path, ran) / "solutions")
    assert made[next(iter(made))] == (ROOT / "exercises/e04_flash_forward/e04_flash_forward.ipynb").read_bytes()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda made: made["cells"][4].update(source="### BEGIN SOLUTION\nx = 1"), "no end solution statement found"),
        (lambda made: made["cells"][0].update(source="### BEGIN SOLUTION\nx\n### END SOLUTION"), "Solution region detected in a non-solution cell"),
        (lambda made: made["cells"][0].update(source="see BEGIN HIDDEN"), "'BEGIN HIDDEN' is still in it"),
        (lambda made: made["cells"][4]["metadata"]["nbgrader"].update(grade_id="test_flash_forward"), "metadata may be corrupted"),
    ],
)
def test_a_solution_that_would_leak_or_break_is_refused(tmp_path, change, why):
    course = course_with(tmp_path, change)
    with pytest.raises(RuntimeError) as caught:
        release.release(course / "solutions")
    path = course / "solutions/e04_flash_forward/e04_flash_forward.ipynb"
    assert str(caught.value).startswith(f"{path} cannot be released: ") and why in str(caught.value)
    assert str(caught.value).endswith("Mend the solution notebook, then make exercises.")


def test_a_class_gets_the_course_without_solutions_and_hidden_tests(tmp_path):
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a git clone")
    count = release.student(ROOT, tmp_path / "class")
    files = [path.relative_to(tmp_path / "class") for path in (tmp_path / "class").rglob("*") if path.is_file()]
    assert len(files) == count > 100
    assert not [path for path in files if path.parts[0] == "solutions" or path.name == "hidden.py" or path.parts[:2] == ("tests", "exercises")]
    solved = json.loads((ROOT / "solutions/e04_flash_forward/e04_flash_forward.ipynb").read_bytes())["cells"][4]["source"]
    line = "acc = acc * rescale[:, None] + weights @ v_tile\n            row_max = new_max"
    assert line in "".join(solved)
    for path in files:
        if path.suffix in (".py", ".ipynb", ".md"):
            assert line not in (tmp_path / "class" / path).read_text(errors="replace"), path


def test_a_classs_copy_is_whole(tmp_path):
    """Its README speaks of nothing that is not there, and its tests of the commands, texts and lessons pass."""
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a git clone")
    course = tmp_path / "class"
    release.student(ROOT, course)
    readme = (course / "README.md").read_text()
    assert "solutions/" not in readme and "instructor" not in re.sub(r"`[^`]*`", "", readme) and "\n\n\n" not in readme
    assert [link for link in re.findall(r"\]\(([^)#:]+)\)", readme) if not (course / link).exists()] == []
    assert not list((course / "notebooks/labs").glob("*.md"))
    tests = [str(course / "tests" / name) for name in ("test_readme.py", "test_errors.py", "test_makefile.py", "notebooks")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=course, env=os.environ | {"PYTHONPATH": str(course)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_without_solutions_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("flashlab.copies.find_course", lambda: tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        release.main([])
    assert str(caught.value) == f"{tmp_path} has no solutions/, from which exercises are made: it is a class's copy. Use the instructor's course."
