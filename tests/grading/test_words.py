"""words.py: points given by hand find their student, and whoever they miss is named."""

from flashlab.grading import roster, words
from flashlab.grading.submissions import Submission

ROWS = [
    {"Student": "Adams, Ada", "ID": "1001", "SIS User ID": "s1", "SIS Login ID": "ada"},
    {"Student": "Brown, Bob", "ID": "1002", "SIS User ID": "s2", "SIS Login ID": "bob"},
    {"Student": "Clark, Cy", "ID": "1003", "SIS User ID": "", "SIS Login ID": "cy"},
]
CLASS = [Submission("adamsada_1001", "a", None, number="1001"), Submission("brownbob_1002", "b", None, number="1002"), Submission("Evil [x]", "c", None)]


def records():
    return [{"student": one.student, "slug": one.slug, "file": one.file, "answers": ["words"]} for one in CLASS]


def pairs(names, rows=ROWS):
    found, _ = roster.matched(rows, CLASS)
    return words.same(names, records(), found, rows)


def test_names_of_nbgrader_are_found_through_the_roster():
    assert pairs(["ada", "s2", "cy", "eve"]) == {"ada": "adamsada_1001", "s2": "brownbob_1002"}
    assert pairs(["ada"], rows=[]) == {}


def test_the_very_name_and_a_reports_name_need_no_roster():
    assert pairs(["brownbob_1002", CLASS[2].slug], rows=[]) == {"brownbob_1002": "brownbob_1002", CLASS[2].slug: "Evil [x]"}


def test_nobody_has_two_students_points():
    assert pairs(["ada", "adamsada_1001", "1001"]) == {"adamsada_1001": "adamsada_1001"}


def test_whoever_is_on_one_side_only_is_named():
    hand, made = {"ada": 1.5, "bob": None, "eve": 2.0, "zoe": None}, records()
    said, one_sided, lost = words.join(made, hand, pairs(list(hand)), "gradebook.db")
    assert [record["by_hand"] for record in made] == [1.5, None, None]
    assert said == "1 of the 2 students with points by hand in gradebook.db are among these submissions."
    assert lost and one_sided == [
        ("eve", "has 2 points by hand in gradebook.db, but matches none of these submissions"),
        ("Evil [x]", "is not in gradebook.db: nbgrader has not read this submission"),
    ]


def test_points_of_nobody_are_the_only_ones_that_are_lost():
    hand = {"ada": 1.5, "zoe": None}
    assert words.join(records(), hand, pairs(list(hand)), "gradebook.db")[2] is False


def test_what_is_not_graded_is_said_once_there_is_something_to_grade():
    made = [{"by_hand": 1.0}, {"by_hand": None}, {}]
    assert words.waiting(made, 10, 2, "grades.csv") == "2 of 12 points are for answers in words; 2 of 3 students have none yet: grades.csv counts them 0."
    assert words.waiting(made, 10, 0, "grades.csv") == words.waiting(made[:1], 10, 2, "grades.csv") == ""


def test_a_notebook_without_nbgraders_marks_is_listed():
    made = [{"file": "a", "answers": ["words"]}, {"file": "b", "answers": []}, {"file": "c", "answers": None}]
    assert words.lost(made, {"words": 2}) == [("b", words.LOST)] and words.lost(made, {}) == []


def test_odd_metadata_is_no_mark():
    odd = [{"cell_type": "markdown", "metadata": metadata} for metadata in (None, [], {"nbgrader": 1}, {"nbgrader": {"grade": True}})]
    right = {"cell_type": "markdown", "metadata": {"nbgrader": {"grade": True, "solution": True, "grade_id": "words", "points": 2}}}
    assert words.marked([*odd, {}, right]) == {"words": 2}
