"""Canvas's gradebook: which row a submission belongs to, and the CSV that Canvas imports unchanged."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from flashlab.errors import error
from flashlab.grading.exercise import Exercise
from flashlab.grading.submissions import Submission

NEEDED = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")  # what Canvas needs to import
LEAST = ("Student", "ID")
NAMES = ("SIS Login ID", "SIS User ID")
POINTS_ROW = "points possible"


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of Canvas's export. Raises FileNotFoundError or ValueError where it is none."""
    if not path.is_file():
        raise error("roster", given=path, why="there is no such file")
    try:
        text = path.read_bytes().decode("utf-8-sig")
        rows = [{name: value or "" for name, value in row.items() if name is not None} for row in csv.DictReader(io.StringIO(text, newline=""), delimiter=separator(text))]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise error("roster", given=path, why=f"it cannot be read ({problem})") from problem
    columns = list(rows[0]) if rows else []
    missing = [name for name in LEAST if name not in columns]
    if missing:
        raise error("roster", given=path, why=f"it has no column {' and '.join(missing)}")
    return columns, rows


def separator(text: str) -> str:
    """What stands between two cells: Canvas writes semicolons for whoever asks for them in their settings, and reads both."""
    head = text.partition("\n")[0]
    return ";" if head.count(";") > head.count(",") else ","


def matched(rows: list[dict[str, str]], submissions: list[Submission]) -> tuple[dict[str, dict], list[Submission]]:
    """({student of a submission: its row}, submissions that match nobody): by Canvas's id, then by login or SIS id.

    A row is one submission's: a second one that would match it is among those that match nobody, for a person to look at.
    """
    row_of, found, nobody, taken = _row_of(rows), {}, [], set()
    for one in sorted(submissions, key=lambda one: not one.number):  # a platform's number is surer than a name
        row = row_of(one)
        if row is None or id(row) in taken:
            nobody.append(one)
        else:
            found[one.student] = row
            taken.add(id(row))
    return found, nobody


def reasons(rows: list[dict[str, str]], found: dict[str, dict], nobody: list[Submission]) -> Iterator[tuple[str, str]]:
    """(file, why it has no row) for those that `matched` found nobody for."""
    row_of, whose = _row_of(rows), {id(row): student for student, row in found.items()}
    for one in nobody:
        row = row_of(one)
        why = "matches nobody on the roster" if row is None else f"its student on the roster, {row['Student'].strip()}, has the submission of {whose[id(row)]} already"
        yield one.file, f"it is marked, but {why}"


def _row_of(rows: list[dict[str, str]]) -> Callable[[Submission], dict | None]:
    by_id = {row["ID"].strip(): row for row in rows if row["ID"].strip()}
    by_name = {row[column].strip().lower(): row for row in rows for column in NAMES if (row.get(column) or "").strip()}

    def row_of(one: Submission) -> dict | None:
        name = one.student.lower()
        return (by_id.get(one.number) if one.number else None) or by_name.get(name) or by_name.get(name.split("@")[0])

    return row_of


def row_called(rows: list[dict[str, str]]) -> Callable[[str], dict | None]:
    """From a student's name in another list, such as nbgrader's, to their row: the ID, login or SIS id, with or without
    what follows an @, or a name with the ID at its end, as adamsada_1001. None where nobody, or more than one, is called so.
    """
    known: dict[str, dict[int, dict]] = {}
    for row in rows:
        for name in (row["ID"], *(row.get(column) or "" for column in NAMES)):
            for key in {name.strip().lower(), name.strip().lower().split("@")[0], f"_{row['ID'].strip()}"} - {"", "_"}:
                known.setdefault(key, {})[id(row)] = row

    def row(name: str) -> dict | None:
        name = name.strip().lower()
        for key in (name, name.split("@")[0], *re.findall(r"_\d+$", name)):
            if len(known.get(key, ())) == 1:
                return next(iter(known[key].values()))
        return None

    return row


def column_of(columns: list[str], exercise: Exercise) -> str | None:
    """The export's own column for the exercise, such as "e04_flash_forward (998)"."""
    return next((name for name in columns if name and re.sub(r" \(\d+\)$", "", name) in (exercise.name, exercise.id, exercise.title)), None)


def points_differ(columns: list[str], rows: list[dict[str, str]], exercise: Exercise, possible: float) -> str:
    """What is said where Canvas has other points possible for the exercise than we, or ""."""
    column = column_of(columns, exercise)
    for row in filter(_is_points, rows if column else ()):
        try:
            theirs = float(row[column])
        except ValueError:  # empty, or "(read only)"
            continue
        if theirs != possible:
            return f"Canvas has {theirs:g} points possible for {column}, and here {possible:g} are. Change Points of that assignment in Canvas to {possible:g}."
    return ""


def _is_points(row: dict[str, str]) -> bool:
    """Whether it is Canvas's row of points possible, which is nobody's."""
    return not row.get("ID", "").strip() and POINTS_ROW in (row.get("Student") or "").lower()


def canvas_csv(columns: list[str], rows: list[dict[str, str]], exercise: Exercise, points: dict[int, float], possible: float, separator: str = ",") -> str:
    """The CSV for Canvas: its own first columns, and the exercise's, under the export's name for it where there is one.

    `points` maps the place of a row to its points; rows without a submission stay empty, which Canvas leaves as they are.
    """
    column = column_of(columns, exercise) or exercise.name
    kept = [name for name in columns if name in NEEDED]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", delimiter=separator)
    writer.writerow([*kept, column])
    for place, row in enumerate(rows):
        value = f"{possible:g}" if _is_points(row) else f"{points[place]:g}" if place in points else ""
        writer.writerow([*(row.get(name) or "" for name in kept), value])
    return out.getvalue()
