"""submissions.py: a flat folder, nbgrader's tree, Canvas's and Moodle's zips; no file is dropped without a word."""

import zipfile

import pytest

from flashlab.grading.exercise import find
from flashlab.grading.submissions import Submission, collect

E04 = find("e04")


def files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def students(place):
    return {one.student: one.file for one in collect(place, E04)[0]}


def test_a_flat_folder(tmp_path):
    assert students(files(tmp_path, "alice.ipynb", "bob.ipynb")) == {"alice": "alice.ipynb", "bob": "bob.ipynb"}


def test_nbgraders_tree_and_another_assignment_in_it(tmp_path):
    files(tmp_path, "alice/e04_flash_forward/e04_flash_forward.ipynb", "bob/e04_flash_forward/e04_flash_forward.ipynb", "bob/e01_bytes/e01_bytes.ipynb")
    chosen, left_out = collect(tmp_path, E04)
    assert [one.student for one in chosen] == ["alice", "bob"]
    assert left_out == [("bob/e01_bytes/e01_bytes.ipynb", "its folder is another assignment's, not e04_flash_forward's")]


def test_canvas_with_late_and_resubmission(tmp_path):
    names = ["doejane_LATE_12_345_e04_flash_forward-2.ipynb", "doejane_12_340_e04_flash_forward-1.ipynb", "roejohn_13_346_e04_flash_forward.ipynb", "roejohn_13_346_notes.pdf"]
    chosen, left_out = collect(files(tmp_path, *names), E04)
    assert [(one.student, one.number, one.late, one.again) for one in chosen] == [("doejane_12", "12", True, 2), ("roejohn_13", "13", False, 0)]
    assert left_out == [
        ("roejohn_13_346_notes.pdf", "it is no notebook"),
        ("doejane_12_340_e04_flash_forward-1.ipynb", "doejane_12 handed in doejane_LATE_12_345_e04_flash_forward-2.ipynb too, which is marked"),
    ]


def test_two_canvas_students_of_one_name_stay_two(tmp_path):
    assert len(students(files(tmp_path, "lee_1_10_e04.ipynb", "lee_2_11_e04.ipynb"))) == 2


def test_a_moodle_zip_is_read_where_it_is(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("Jane Doe_4711_assignsubmission_file_/e04_flash_forward.ipynb", "jane")
        archive.writestr("../../evil.ipynb", "evil")
        archive.writestr("__MACOSX/._x.ipynb", "mac")
    chosen, left_out = collect(tmp_path / "all.zip", E04)
    assert {one.student: one.content() for one in chosen} == {"Jane Doe_4711": b"jane"} and left_out[0][0] == "../../evil.ipynb"
    assert [path.name for path in tmp_path.iterdir()] == ["all.zip"]


def test_slugs_are_file_names_and_differ():
    names = ["alice", "../../etc/passwd", "Jane Doe", "Jane_Doe", "", "<script>", "é", "ü", "a" * 300]
    slugs = [Submission(name, "x", None).slug for name in names]
    assert len(set(slugs)) == len(names) and slugs[0] == "alice"
    assert all(slug and "/" not in slug and not slug.startswith(".") and len(slug) < 80 for slug in slugs)


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda path: path / "none", FileNotFoundError, "there is no {0}/none. Pass a folder of notebooks, or the zip of Canvas or Moodle."),
        (lambda path: files(path, "a.txt"), FileNotFoundError, "there is no notebook in {0}. Pass a folder of notebooks, nbgrader's submitted/, or the zip of Canvas or Moodle."),
        (lambda path: files(path, "a.txt") / "a.txt", ValueError, "{0}/a.txt is neither a folder nor a zip. Pass a folder of notebooks, or the zip of Canvas or Moodle."),
    ],
)  # fmt: skip
def test_what_cannot_be_collected_is_said(tmp_path, make, kind, text):
    with pytest.raises(kind) as caught:
        collect(make(tmp_path), E04)
    assert str(caught.value) == text.format(tmp_path)
