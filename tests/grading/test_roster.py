"""roster.py: Canvas's export in, a CSV that Canvas imports out."""

import csv
import io

import pytest

from flashlab.grading import roster
from flashlab.grading.exercise import find
from flashlab.grading.submissions import Submission

E04 = find("e04")
EXPORT = (
    "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,e04_flash_forward (998),Final Score\n"
    "    Points Possible,,,,,12,\n"
    '"Doe, Jane",12,s12,jdoe@uni.edu,A,,50\n'
    '"Roe, John",13,s13,jroe@uni.edu,A,,60\n'
    '"Student, Test",99,,,A,,\n'
)


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "canvas.csv"
    path.write_text(EXPORT, encoding="utf-8")
    return path


def test_students_are_matched_by_id_login_or_sis_id(export):
    _, rows = roster.read(export)
    given = [Submission("doejane_12", "a", None, number="12"), Submission("jroe@uni.edu", "b", None), Submission("s13", "c", None), Submission("nobody", "d", None)]
    found, nobody = roster.matched(rows, given)
    assert {student: row["Student"] for student, row in found.items()} == {"doejane_12": "Doe, Jane", "jroe@uni.edu": "Roe, John"}
    assert [one.student for one in nobody] == ["s13", "nobody"], "a row is one submission's: the second is for a person to look at"


def test_the_csv_has_canvas_columns_and_its_name_for_the_assignment(export):
    columns, rows = roster.read(export)
    text = roster.canvas_csv(columns, rows, E04, {1: 8.5, 2: 10}, 12)
    assert list(csv.reader(io.StringIO(text))) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "e04_flash_forward (998)"],
        ["    Points Possible", "", "", "", "", "12"],
        ["Doe, Jane", "12", "s12", "jdoe@uni.edu", "A", "8.5"],
        ["Roe, John", "13", "s13", "jroe@uni.edu", "A", "10"],
        ["Student, Test", "99", "", "", "A", ""],
    ]


@pytest.mark.parametrize(
    "content, why",
    [
        (None, "there is no such file"),
        (b"name,mark\na,1\n", "it has no column Student and ID"),
        (b"", "it has no column Student and ID"),
        (b"\xff\xfe\x00", "it cannot be read ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
    ],
)
def test_what_is_no_roster_is_said(tmp_path, content, why):
    path = tmp_path / "r.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        roster.read(path)
    assert str(caught.value) == f"{path} is no gradebook of Canvas: {why}. Export it in Canvas under Grades, Export, and pass that file."


def test_semicolons_stay_semicolons(tmp_path):
    path = tmp_path / "canvas.csv"
    path.write_text(EXPORT.replace('"Doe, Jane"', "Doe").replace('"Roe, John"', "Roe").replace('"Student, Test"', "Test").replace(",", ";"), encoding="utf-8")
    columns, rows = roster.read(path)
    assert [row["ID"] for row in rows] == ["", "12", "13", "99"]
    assert roster.canvas_csv(columns, rows, E04, {1: 8}, 12, roster.separator(path.read_text("utf-8-sig"))).splitlines()[2] == "Doe;12;s12;jdoe@uni.edu;A;8"


def test_rows_that_are_too_short_or_too_long_are_rows(tmp_path):
    path = tmp_path / "canvas.csv"
    path.write_text('Student,ID\n,\n    Points Possible\n"Doe\nJane",12,x,y,z\n')
    columns, rows = roster.read(path)
    found, nobody = roster.matched(rows, [Submission("doe_12", "a", None, number="12")])
    assert found["doe_12"]["Student"] == "Doe\nJane" and not nobody
    assert roster.canvas_csv(columns, rows, E04, {2: 3}, 12) == 'Student,ID,e04_flash_forward\n,,\n    Points Possible,,12\n"Doe\nJane",12,3\n'


@pytest.mark.parametrize("name, taken", [("e04_flash_forward (998)", True), ("e04 (998)", True), ("The tile loop in NumPy (1)", True), ("e04", True), ("e04 reading quiz (4)", False), ("e04_flash_forward draft (4)", False)])
def test_another_assignments_column_is_left_alone(name, taken):
    text = roster.canvas_csv(["Student", "ID", name], [], E04, {}, 12)
    assert text == f"Student,ID,{name if taken else 'e04_flash_forward'}\n"


def test_a_file_of_nobody_and_a_second_file_of_somebody_are_told_apart(export):
    _, rows = roster.read(export)
    found, nobody = roster.matched(rows, [Submission("doejane_12", "a.ipynb", None, number="12"), Submission("s12", "b.ipynb", None), Submission("eve", "c.ipynb", None)])
    assert dict(roster.reasons(rows, found, nobody)) == {
        "b.ipynb": "it is marked, but its student on the roster, Doe, Jane, has the submission of doejane_12 already",
        "c.ipynb": "it is marked, but matches nobody on the roster",
    }


@pytest.mark.parametrize("name, student", [
    ("12", "Doe, Jane"), ("S12", "Doe, Jane"), ("jdoe", "Doe, Jane"), ("JDOE@uni.edu", "Doe, Jane"), ("jdoe@elsewhere", "Doe, Jane"), ("doejane_12", "Doe, Jane"),
    ("eve", None), ("", None), ("doejane_1", None), ("_", None),
])  # fmt: skip
def test_a_name_of_another_list_finds_its_row(export, name, student):
    row = roster.row_called(roster.read(export)[1])(name)
    assert (row and row["Student"]) == student


def test_a_name_that_two_rows_have_finds_none():
    rows = [{"Student": "A", "ID": "7", "SIS User ID": "8", "SIS Login ID": "x@a"}, {"Student": "B", "ID": "8", "SIS User ID": "", "SIS Login ID": "x@b"}]
    find = roster.row_called(rows)
    assert find("8") is None and find("x") is None and find("x@b") is rows[1] and find("b_8") is rows[1]


def test_other_points_possible_in_canvas_are_said(export):
    columns, rows = roster.read(export)
    assert roster.points_differ(columns, rows, E04, 12) == ""
    text = "Canvas has 12 points possible for e04_flash_forward (998), and here 10 are. Change Points of that assignment in Canvas to 10."
    assert roster.points_differ(columns, rows, E04, 10) == text
    rows[0]["e04_flash_forward (998)"] = "(read only)"
    assert roster.points_differ(columns, rows, E04, 10) == "" == roster.points_differ(["Student", "ID"], [], E04, 10)
