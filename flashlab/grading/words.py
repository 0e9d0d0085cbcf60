"""Answers in words: how many points they have, whose are given, and which student of nbgrader's gradebook is which of ours."""

from __future__ import annotations

from pathlib import Path

from flashlab.grading import cells, roster
from flashlab.grading.exercise import Exercise

LOST = "its answers in words have lost nbgrader's marks, as Colab saves a notebook: formgrader does not show them. Read them in the file, and add their points in Canvas"


def asked(course: Path, exercise: Exercise) -> dict[str, float]:
    """{answer in words: its points}, as the released notebook says."""
    notebook = course / "exercises" / exercise.name / f"{exercise.name}.ipynb"
    return marked(cells.read(notebook)) if notebook.is_file() else {}


def marked(notebook: list[dict]) -> dict[str, float]:
    """{grade_id: points} of the cells that nbgrader's formgrader takes for answers in words."""
    found = {}
    for cell in notebook:
        metadata = cell.get("metadata")
        mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        if cell.get("cell_type") == "markdown" and isinstance(mark, dict) and mark.get("grade") and mark.get("solution"):
            found[str(mark.get("grade_id"))] = mark.get("points", 0)
    return found


def same(names: list[str], records: list[dict], found: dict[str, dict], rows: list[dict]) -> dict[str, str]:
    """{student of the gradebook: ours}: by the very name, else by the row of the roster that is both's (`found` has ours)."""
    row_called, by_row = roster.row_called(rows), {id(row): student for student, row in found.items()}
    by_name = {record["student"]: record["student"] for record in records}
    by_slug = {record["slug"]: record["student"] for record in records}  # what `--submitted` calls a name that is no folder's
    pairs: dict[str, str] = {}
    for whose in (by_name.get, by_slug.get, lambda name: by_row.get(id(row_called(name)))):
        for name in names:
            student = whose(name)
            if student is not None and name not in pairs and student not in pairs.values():
                pairs[name] = student
    return pairs


def join(records: list[dict], hand: dict[str, float | None], pairs: dict[str, str], book: str) -> tuple[str, list[tuple[str, str]], bool]:
    """Give each record its points by hand; returns (a sentence, who is on one side only, whether points found nobody)."""
    ours = {student: name for name, student in pairs.items()}
    for record in records:
        record["by_hand"] = hand.get(ours.get(record["student"]))
    given = {name: points for name, points in hand.items() if points is not None}
    strangers = [(name, f"has {points:g} points by hand in {book}, but matches none of these submissions") for name, points in sorted(given.items()) if name not in pairs]
    missing = [(record["student"], f"is not in {book}: nbgrader has not read this submission") for record in records if record["student"] not in ours]
    said = f"{len(given) - len(strangers)} of the {len(given)} students with points by hand in {book} are among these submissions."
    return said, strangers + missing, bool(strangers)


def waiting(records: list[dict], tests: float, words: float, file: str) -> str:
    """What is said where answers in words are not graded yet, or ""."""
    without = sum(record.get("by_hand") is None for record in records)
    if not words or not without:
        return ""
    return f"{words:g} of {tests + words:g} points are for answers in words; {without} of {len(records)} students have none yet: {file} counts them 0."


def lost(records: list[dict], asked: dict[str, float]) -> list[tuple[str, str]]:
    """(file, why) of the notebooks that formgrader cannot show whole."""
    return [(record["file"], LOST) for record in records if record["answers"] is not None and set(asked) - set(record["answers"])]
