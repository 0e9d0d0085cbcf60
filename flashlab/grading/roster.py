"""Canvas's gradebook: which row a submission belongs to, and the CSV that Canvas imports unchanged."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from flashlab.errors import error
from flashlab.grading.exercise import Exercise
from flashlab.grading.submissions import Submission

NEEDED = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")  # what Canvas needs to import
LEAST = ("Student", "ID")
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
    by_id = {row["ID"].strip(): row for row in rows if row["ID"].strip()}
    by_name: dict[str, dict] = {}
    for row in rows:
        for column in ("SIS Login ID", "SIS User ID"):
            if (row.get(column) or "").strip():
                by_name[row[column].strip().lower()] = row
    found, nobody, taken = {}, [], set()
    for one in sorted(submissions, key=lambda one: not one.number):  # a platform's number is surer than a name
        row = by_id.get(one.number) if one.number else None
        row = row or by_name.get(one.student.lower()) or by_name.get(one.student.lower().split("@")[0])
        if row is None or id(row) in taken:
            nobody.append(one)
        else:
            found[one.student] = row
            taken.add(id(row))
    return found, nobody


def canvas_csv(columns: list[str], rows: list[dict[str, str]], exercise: Exercise, points: dict[int, float], possible: float, separator: str = ",") -> str:
    """The CSV for Canvas: its own first columns, and the exercise's, under the export's name for it where there is one.

    `points` maps the place of a row to its points; rows without a submission stay empty, which Canvas leaves as they are.
    """
    wanted = (exercise.name, exercise.id, exercise.title)
    column = next((name for name in columns if name and re.sub(r" \(\d+\)$", "", name) in wanted), exercise.name)
    kept = [name for name in columns if name in NEEDED]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", delimiter=separator)
    writer.writerow([*kept, column])
    for place, row in enumerate(rows):
        is_points = not row.get("ID", "").strip() and POINTS_ROW in (row.get("Student") or "").lower()
        value = f"{possible:g}" if is_points else f"{points[place]:g}" if place in points else ""
        writer.writerow([*(row.get(name) or "" for name in kept), value])
    return out.getvalue()
