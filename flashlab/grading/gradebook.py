"""nbgrader's gradebook: marks given by hand come out of it, and the sandbox's marks go into it. Needs the extra `instructor`."""

from __future__ import annotations

from pathlib import Path

from flashlab.errors import error
from flashlab.grading.exercise import Exercise

FILE = "gradebook.db"


def check(path: Path) -> None:
    """Open it and close it again, so that a wrong file is told before a class is marked. Raises ValueError."""
    with _opened(path):
        pass


def by_hand(path: Path, exercise: Exercise) -> dict[str, float | None]:
    """{student: points for answers in words}, None where one of them is not graded yet."""
    with _opened(path) as book:
        found: dict[str, float | None] = {}
        for submission in _submissions(book, exercise):
            grades = [grade for notebook in submission.notebooks for grade in notebook.grades if grade.cell.cell_type == "markdown"]
            waiting = any(grade.needs_manual_grade or grade.manual_score is None for grade in grades)
            found[submission.student.id] = None if waiting or not grades else sum(grade.manual_score + (grade.extra_credit or 0) for grade in grades)
        return found


def put(path: Path, exercise: Exercise, points: dict[str, int]) -> None:
    """Write the sandbox's points where formgrader shows them, as the marks of the test cells; `points` has nbgrader's names."""
    with _opened(path) as book:
        for submission in _submissions(book, exercise):
            if submission.student.id not in points:
                continue
            left = points[submission.student.id]
            for grade in [grade for notebook in submission.notebooks for grade in notebook.grades if grade.cell.cell_type == "code"]:
                grade.auto_score = min(left, grade.cell.max_score)
                grade.needs_manual_grade = False
                left -= grade.auto_score
        book.db.commit()


def _submissions(book, exercise: Exercise) -> list:
    from nbgrader.api import MissingEntry

    try:
        return book.assignment_submissions(exercise.name)
    except MissingEntry:
        return []


def _opened(path: Path):
    if not path.is_file():
        raise error("gradebook", given=path, why="there is no such file")
    try:
        from nbgrader.api import Gradebook
    except ImportError as problem:
        raise error("gradebook", given=path, why="nbgrader is not installed: pip install -e '.[instructor]'") from problem
    from sqlalchemy.exc import DatabaseError  # comes with nbgrader

    try:
        return Gradebook(f"sqlite:///{path}")
    except DatabaseError as problem:
        raise error("gradebook", given=path, why=f"it is no database of nbgrader ({problem.orig})") from problem
