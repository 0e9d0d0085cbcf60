"""grades.csv: a row a student, with nothing in it that a spreadsheet would take for a formula."""

from __future__ import annotations

import csv
import io

from flashlab.grading.exercise import Exercise
from flashlab.grading.plain import plain

FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of one
NO_ANSWER = ("not written", "no solution")  # what grade.py calls a stub and a notebook without a solution cell
MOST_WORDS = 200  # characters of a finding


def grades_csv(exercise: Exercise, records: list[dict]) -> str:
    """A row a student, in order; text that a spreadsheet would take for a formula gets a quote before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [test.name for test in exercise.tests]
    writer.writerow(["student", "file", "points", "possible", "by hand", "total", *names, "first failure", "usually means", "late", "problem"])
    for record in records:
        got, hand = {test["name"]: test["points"] for test in record["tests"]}, record.get("by_hand")
        row = [record["student"], record["file"], record["points"], record["possible"], "" if hand is None else f"{hand:g}", total(record)]
        row += [*(got.get(name, 0) for name in names), record["first_failure"], usually(record), "late" if record["late"] else "", record["problem"]]
        writer.writerow([_cell(plain(cell, lines=False)) if isinstance(cell, str) else cell for cell in row])
    return out.getvalue()


def total(record: dict) -> int | float:
    """Points of the tests and of the answers in words, as far as those are graded."""
    points = record["points"] + (record.get("by_hand") or 0)
    return int(points) if points == int(points) else points


def usually(record: dict) -> str:
    """The misconception; where none is recognised, what was found, in its own words."""
    if record["misconception"] or record["first_failure"] in NO_ANSWER:
        return record["misconception"]
    return next((test["what"][:MOST_WORDS] for test in record["tests"] if not test["passed"]), "")


def _cell(text: str) -> str:
    return f"'{text}" if text.strip()[:1] in FORMULA and text.strip() else text
