"""submitted.py: nbgrader's tree, under the names of grades.csv; nothing outside it, and nothing that stops nbgrader."""

import json
import sys

import pytest
from class_of import notebook

from flashlab.grading import submitted
from flashlab.grading.exercise import find
from flashlab.grading.submissions import Submission

E04 = find("e04")


@pytest.fixture(autouse=True)
def _nbgrader():
    pytest.importorskip("nbgrader.nbgraderformat", reason="nbgrader comes with the extras test and instructor")


def given(folder, student, content):
    path = folder / f"{len(list(folder.iterdir()))}.ipynb"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Submission(student, path.name, path)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path


def test_a_folder_for_each_student_under_the_name_in_grades_csv(folder):
    chosen = [given(folder / "in", name, notebook(None)) for name in ("adamsada_1001", "Jane Doe_4711")]
    assert submitted.write_tree(folder / "submitted", E04, chosen) == ([], [])
    written = sorted(path.relative_to(folder).as_posix() for path in folder.glob("submitted/**/*.ipynb"))
    assert written == [f"submitted/{name}/e04_flash_forward/e04_flash_forward.ipynb" for name in ("Jane Doe_4711", "adamsada_1001")]


@pytest.mark.parametrize("name", ["..", ".", "", "../x", "a/b", "a\\b", "[a]", "a*", " a", ".git", "a\n", "\udcff", "x" * 300, "jane-0123456789ab"])
def test_no_name_leads_out_of_the_tree_or_into_anothers_folder(name):
    one = Submission(name, "x", None)
    assert submitted.folder_of(one) == one.slug != name


def broken(**mark):
    made = notebook(None)
    made["cells"][-1]["metadata"]["nbgrader"] |= mark
    return made


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", broken(schema_version=99), broken(schema_version=1), broken(grade_id=7)])
def test_what_nbgrader_cannot_read_is_left_out_and_named(folder, content):
    chosen = [given(folder / "in", "ada", notebook(None)), given(folder / "in", "bob", content)]
    replaced, left_out = submitted.write_tree(folder / "submitted", E04, chosen)
    assert [path.name for path in (folder / "submitted").iterdir()] == ["ada"] and not replaced
    [(file, why)] = left_out
    assert file == "1.ipynb" and why.startswith(f"it is not in {folder}/submitted: nbgrader cannot read it (")


def test_a_notebook_that_changed_is_named_and_one_that_did_not_is_not(folder):
    ada, bob = (given(folder / "in", name, notebook(None)) for name in ("ada", "bob"))
    submitted.write_tree(folder / "submitted", E04, [ada, bob])
    bob.place.write_text(json.dumps(notebook("def flash_forward(): 1")))
    assert submitted.write_tree(folder / "submitted", E04, [ada, bob]) == (["bob"], [])
    bob.place.write_text("{")
    assert submitted.write_tree(folder / "submitted", E04, [bob])[1][0][1].endswith("; an older one is still there")


def test_the_folder_that_is_marked_is_refused(folder):
    with pytest.raises(ValueError) as caught:
        submitted.check(folder / "in/../in", folder / "in")
    assert str(caught.value) == f"{folder}/in/../in cannot be written for nbgrader: it is the folder that is marked; name another. Or leave --submitted out."


def test_without_nbgrader_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbgrader.nbgraderformat", None)
    with pytest.raises(ValueError, match="nbgrader is not installed: pip install -e '.\\[instructor\\]'"):
        submitted.check(folder / "out", folder / "in")
