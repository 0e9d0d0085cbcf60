"""submissions.py: a flat folder, nbgrader's tree, Canvas's and Moodle's zips; no file is dropped without a word."""

import os
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


def test_nobody_speaks_for_another(tmp_path):
    """What a student may name, a file or a folder in their own, never makes it someone else's."""
    own = "submitted/mallory/e04_flash_forward"
    files(tmp_path, "submitted/alice/e04_flash_forward/e04_flash_forward.ipynb", f"{own}/e04_flash_forward.ipynb")
    deeper = (f"{own}/alice/e04_flash_forward/z.ipynb", "submitted/mallory/e01_bytes/alice/e04_flash_forward/z.ipynb", f"{own}/Alice A_1_assignsubmission_file_/z.ipynb")
    chosen, left_out = collect(files(tmp_path, *deeper) / "submitted", E04)
    assert {one.student: one.number for one in chosen} == {"alice": "", "mallory": ""}
    assert all(one.file.endswith("e04_flash_forward/e04_flash_forward.ipynb") for one in chosen)
    assert {f"submitted/{name}" for name, _ in left_out} == set(deeper)
    files(tmp_path / "moodle", "Mal Lory_2_assignsubmission_file_/doejane_1_9_e04.ipynb", "Al Ice_1_assignsubmission_file_/e04.ipynb")
    assert students(tmp_path / "moodle").keys() == {"Mal Lory_2", "Al Ice_1"}
    files(tmp_path / "folders", "mallory/doejane_1_9_e04.ipynb", "alice/e04.ipynb")
    assert students(tmp_path / "folders").keys() == {"alice", "mallory"}


@pytest.mark.parametrize("names, found", [
    (("all/doejane_12_1_e04.ipynb", "all/roejohn_LATE_13_2_e04.ipynb"), {"doejane_12", "roejohn_13"}),
    (("Course-1/Jane Doe_4711_assignsubmission_file_/e04.ipynb", "Course-1/J R_12_assignsubmission_file/e04.ipynb"), {"Jane Doe_4711", "J R_12"}),
    (("submitted/alice/e04_flash_forward/x.ipynb", "submitted/bob/e04_flash_forward/x.ipynb"), {"alice", "bob"}),
])  # fmt: skip
def test_a_zip_packed_again_may_have_one_folder_around_all(tmp_path, names, found):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in names:
            archive.writestr(f"./{name}", "x")
        archive.writestr("__MACOSX/x/._y.ipynb", "mac")
    chosen, left_out = collect(tmp_path / "all.zip", E04)
    assert {one.student for one in chosen} == found and all(one.content() == b"x" for one in chosen) and not left_out


def test_backslashes_of_windows_are_folders(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("Jane Doe_4711_assignsubmission_file_\\e04.ipynb", "x")
    (one,) = collect(tmp_path / "all.zip", E04)[0]
    assert one.student == "Jane Doe_4711" and one.content() == b"x"


def test_a_link_is_no_submission(tmp_path):
    files(tmp_path, "secret/solution.ipynb", "class/alice.ipynb")
    (tmp_path / "class/mallory.ipynb").symlink_to(tmp_path / "secret/solution.ipynb")
    (tmp_path / "class/folder").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "class/pipe.ipynb")
    chosen, left_out = collect(tmp_path / "class", E04)
    assert [one.student for one in chosen] == ["alice"]
    assert [(name, why[:12]) for name, why in left_out] == [(name, "it is a link") for name in ("folder", "mallory.ipynb", "pipe.ipynb")]


def test_one_notebook_is_a_class_of_one(tmp_path):
    assert students(files(tmp_path, "alice.ipynb") / "alice.ipynb") == {"alice": "alice.ipynb"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_odd_names_stop_nobody(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("doejane_1_2_e04-" + "9" * 5000 + ".ipynb", "x")
        for name in ("/etc/alice.ipynb", "bob.ipynb", "bob.ipynb"):
            archive.writestr(name, "x")
    chosen, left_out = collect(tmp_path / "all.zip", E04)
    assert len(chosen) + len(left_out) == 4 and all(one.slug and one.content() == b"x" for one in chosen)
    (tmp_path / "flat").mkdir()
    with open(os.path.join(os.fsencode(tmp_path / "flat"), b"\xff\xfe.ipynb"), "wb") as file:
        file.write(b"x")
    (one,) = collect(tmp_path / "flat", E04)[0]
    assert one.slug.startswith("student-") and one.content() == b"x"


def test_no_name_can_be_chosen_to_be_anothers_file():
    jane = Submission("Jane Doe", "x", None).slug
    assert Submission(jane, "x", None).slug != jane
