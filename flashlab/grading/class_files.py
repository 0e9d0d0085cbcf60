"""Every file of a class in `--out`, from its records; what an earlier run wrote and this one contradicts goes away."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from flashlab.grading import cells, class_figure, report, roster
from flashlab.grading.alike import most_alike
from flashlab.grading.exercise import Exercise
from flashlab.grading.spreadsheet import grades_csv, total

LIBRARY = ("reference/flash1.py", "reference/flash2.py", "reference/online_softmax.py", "reference/standard.py", "reference/backward.py", "kernels/forward.py", "kernels/backward.py")  # fmt: skip
OF_STUDENTS = {"reports": ".html", "gradescope": ".json"}
CANVAS = "grades_canvas.csv"


def write_class(exercise: Exercise, records: list[dict], left_out: list[tuple[str, str]], notes: list[str], out: Path, course: Path) -> None:
    """The reports, Gradescope's files, grades.csv and class.html."""
    from flashlab.notebook import png_base64

    for record in records:
        write(out / "reports" / f"{record['slug']}.html", report.student_page(record))
        write(out / "gradescope" / f"{record['slug']}.json", report.gradescope(record))
    write(out / "grades.csv", grades_csv(exercise, records))
    stub = course / "exercises" / exercise.name / f"{exercise.name}.ipynb"
    given = "\n".join(cells.solutions(cells.read(stub), exercise.functions).values()) if stub.is_file() else ""
    library = {file: (course / "flashlab" / file).read_text() for file in LIBRARY if (course / "flashlab" / file).is_file()}
    alike = most_alike({record["student"]: record["source"] for record in records}, given, library)
    picture = png_base64(class_figure.draw(records))
    write(out / "class.html", report.class_page(exercise, records, left_out, alike, picture, class_figure.sentence(records), notes))


def write_canvas(exercise: Exercise, records: list[dict], found: dict[str, dict], roster_rows: tuple, possible: float, out: Path) -> None:
    """grades_canvas.csv, of those whose row was found."""
    columns, rows, separator = roster_rows
    points = {rows.index(found[record["student"]]): total(record) for record in records if record["student"] in found}
    write(out / CANVAS, roster.canvas_csv(columns, rows, exercise, points, possible, separator))


def delete_old(out: Path, records: list[dict], with_roster: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Delete what an earlier run wrote and this one does not; returns (what is said of it, files there that are none of ours)."""
    present, gone, others = {record["slug"] for record in records}, set(), []
    for folder, ending in OF_STUDENTS.items():
        for path in sorted((out / folder).iterdir()):
            if path.suffix == ending and path.stem in present:
                continue
            if path.suffix == ending and (out / "results" / f"{path.stem}.json").is_file():  # a run of ours marked that student
                path.unlink()
                gone.add(path.stem)
            else:
                others.append((f"{folder}/{path.name}", "it is of no student in this run, and no run kept a result for it, so it was left there"))
    said = [f"Deleted the reports of {len(gone)} students of an earlier run who are not in this one: {', '.join(sorted(gone))}."] if gone else []
    if not with_roster and (out / CANVAS).is_file():
        (out / CANVAS).unlink()
        said.append(f"Deleted {CANVAS} of an earlier run, whose marks may be others: pass --roster for a new one.")
    return said, others


def write(path: Path, text: str | bytes) -> None:
    """Write in one step, and only what is not there already."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if path.is_file() and path.read_bytes() == content:
        return
    half = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        half.write_bytes(content)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
