"""Marks a class: `flashlab grade SUBMISSIONS --exercise e04 --out grades/`.

    grades.csv                       a row a student: points, each test, the first failure and what it usually means
    grades_canvas.csv                with --roster: what Canvas imports
    reports/<student>.html           what the student reads
    gradescope/<student>.json        Gradescope's results.json
    class.html                       the class: misconceptions, marks, files not marked, solutions most alike
    results/<student>.json           kept, so that a second run marks only what changed

A result is kept under the digest of the notebook, the exercise, its hidden cases and the grader, so a run that was killed
goes on where it was, with the same marks.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flashlab.copies import find_course
from flashlab.errors import error
from flashlab.grading import cells, class_figure, marks, report, roster, sandbox
from flashlab.grading.alike import most_alike
from flashlab.grading.exercise import HIDDEN, Exercise, find
from flashlab.grading.judge import meaning
from flashlab.grading.plain import plain
from flashlab.grading.submissions import Submission, collect

FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of one
LIBRARY = ("reference/flash1.py", "reference/flash2.py", "reference/online_softmax.py", "reference/standard.py", "reference/backward.py", "kernels/forward.py", "kernels/backward.py")  # fmt: skip


def grade(submissions: Path, name: str, out: Path, *, roster: Path | None = None, gradebook: Path | None = None, jobs: int = 2, unsafe: bool = False, limits=None, progress=sys.stderr) -> int:
    """Mark every submission and write all of the above; returns the exit status: 1 if a file matched no one.

    Raises RuntimeError where there is no sandbox and `unsafe` is not given.
    """
    if not sandbox.works() and not unsafe:
        raise error("no_sandbox", why=sandbox.why_not(), fix=sandbox.FIX)
    course = find_course()
    exercise = find(name)
    full = exercise.with_hidden(course / "solutions")
    chosen, left_out = collect(submissions, exercise)
    roster_rows = read_roster(roster) if roster else None
    for folder in ("results", "reports", "gradescope"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    records = mark_all(full, chosen, out, jobs, digest_of(full, course), progress, limits)
    if gradebook:
        with_hand_marks(records, exercise, gradebook)
    nobody = write_class(full, exercise, chosen, records, left_out, out, course, roster_rows)
    _say(full, exercise, records, left_out, out, progress)
    return 1 if nobody else 0


def read_roster(path: Path) -> tuple:
    """Read before anything is marked, so that a wrong file is told at once."""
    return *roster.read(path), roster.separator(path.read_text("utf-8-sig"))


def with_hand_marks(records: list[dict], exercise: Exercise, path: Path) -> None:
    """Take the marks given by hand out of nbgrader's gradebook, and put the sandbox's into it."""
    from flashlab.grading import gradebook

    hand = gradebook.by_hand(path, exercise)
    for record in records:
        record["by_hand"] = hand.get(record["student"])
    gradebook.put(path, exercise, {record["student"]: record["points"] for record in records})


def mark_all(exercise: Exercise, chosen: list[Submission], out: Path, jobs: int, digest: str, progress, limits=None) -> list[dict]:
    """A record for each submission, `jobs` at once; those kept from an earlier run are not marked again."""
    lock, done = threading.Lock(), 0

    def one(submission: Submission) -> dict:
        nonlocal done
        record = kept_or_marked(exercise, submission, out, digest, limits)
        with lock:
            done += 1
            _bar(done, len(chosen), progress)
        return record

    pool = ThreadPoolExecutor(max(1, jobs))
    try:
        return list(pool.map(one, chosen))
    finally:
        pool.shutdown(cancel_futures=True)


def kept_or_marked(exercise: Exercise, submission: Submission, out: Path, digest: str, limits=None) -> dict:
    """The record of one submission, from results/ if nothing that matters has changed."""
    path = out / "results" / f"{submission.slug}.json"
    try:
        content = submission.content()
    except Exception as problem:  # a damaged, encrypted or odd member of a zip, a file that went away
        content, unreadable = b"", f"{submission.file} cannot be read: {problem}"
    else:
        unreadable = ""
    key = hashlib.sha256(digest.encode() + content + submission.file.encode("utf-8", "surrogatepass")).hexdigest()
    try:
        record = json.loads(path.read_bytes())
        if record["key"] == key:
            return record
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        record = record_of(exercise, submission, content, unreadable, limits) | {"key": key}
    except Exception as problem:  # a fault of ours must not cost the rest of the class its marks; it is tried again next time
        return record_of(exercise, submission, b"", f"the grader itself failed on it ({type(problem).__name__}: {problem}); mark it by hand") | {"key": ""}
    write(path, json.dumps(record, indent=1, sort_keys=True))
    return record


def record_of(exercise: Exercise, submission: Submission, content: bytes, problem: str = "", limits=None) -> dict:
    """Mark one notebook; whatever is wrong with it is its own record's problem and no one else's."""
    sources: dict[str, str] = {}
    result = marks.Result(exercise, problem=problem)
    if not problem:
        try:
            sources = cells.solutions(cells.parse(submission.file, content), exercise.functions)
            if not sources:
                raise error("no_solution_cell", given=submission.file, needed=" or ".join(exercise.functions))
            result = marks.mark(exercise, sources, limits=limits)
        except ValueError as refused:
            result = marks.Result(exercise, problem=str(refused))
    tests = [
        {
            "name": outcome.test.name, "passed": outcome.passed, "points": outcome.points, "possible": outcome.test.points,
            **({} if outcome.passed else _told(outcome.finding)),
        }
        for outcome in result.outcomes
    ]  # fmt: skip
    first = result.first_failure
    return {
        "student": submission.student, "slug": submission.slug, "file": submission.file, "late": submission.late, "number": submission.number,
        "exercise": exercise.name, "title": exercise.title, "points": result.points, "possible": exercise.points, "tests": tests,
        "problem": result.problem, "printed": result.printed[:2000], "sandboxed": result.sandboxed, "source": "\n".join(dict.fromkeys(sources.values())),
        "first_failure": "no solution" if result.problem else "not written" if result.unsolved else first.test.name if first else "",
        "misconception": (first.finding.misconception or "") if first and first.finding else "",
    }  # fmt: skip


def _told(finding) -> dict:
    return {
        "what": finding.what, "misconception": finding.misconception or "", "meaning": meaning(finding),
        "input": finding.input, "theirs": finding.theirs, "expected": finding.expected,
    }  # fmt: skip


def write_class(full, exercise, chosen, records, left_out, out: Path, course: Path, roster_rows) -> list[Submission]:
    """Write every file of the class; returns the submissions that match nobody on the roster."""
    from flashlab.notebook import png_base64

    for record in records:
        write(out / "reports" / f"{record['slug']}.html", report.student_page(record))
        write(out / "gradescope" / f"{record['slug']}.json", report.gradescope(record))
    write(out / "grades.csv", grades_csv(exercise, records))
    stub = course / "exercises" / exercise.name / f"{exercise.name}.ipynb"
    given = "\n".join(cells.solutions(cells.read(stub), exercise.functions).values()) if stub.is_file() else ""
    library = {file: (course / "flashlab" / file).read_text() for file in LIBRARY if (course / "flashlab" / file).is_file()}
    alike = most_alike({record["student"]: record["source"] for record in records}, given, library)
    nobody: list[Submission] = []
    if roster_rows:
        columns, rows, separator = roster_rows
        found, nobody = roster.matched(rows, chosen)
        points = {rows.index(found[record["student"]]): total(record) for record in records if record["student"] in found}
        possible = exercise.points + words_points(course, exercise)
        write(out / "grades_canvas.csv", roster.canvas_csv(columns, rows, exercise, points, possible, separator))
        left_out += ((one.file, "it is marked, but matches nobody on the roster who has no other submission") for one in nobody)
    picture = png_base64(class_figure.draw(records))
    write(out / "class.html", report.class_page(exercise, records, left_out, alike, picture, class_figure.sentence(records)))
    return nobody


def words_points(course: Path, exercise: Exercise) -> float:
    """Points of the answers in words, as the notebook says."""
    notebook = course / "exercises" / exercise.name / f"{exercise.name}.ipynb"
    marks_of = [cell.get("metadata", {}).get("nbgrader", {}) for cell in (cells.read(notebook) if notebook.is_file() else [])]
    return sum(mark["points"] for mark in marks_of if mark.get("grade") and mark.get("solution"))


def grades_csv(exercise: Exercise, records: list[dict]) -> str:
    """A row a student, in order; text that a spreadsheet would take for a formula gets a quote before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [test.name for test in exercise.tests]
    writer.writerow(["student", "file", "points", "possible", "by hand", "total", *names, "first failure", "usually means", "late", "problem"])
    for record in records:
        got = {test["name"]: test["points"] for test in record["tests"]}
        row = [record["student"], record["file"], record["points"], record["possible"], _plain(record.get("by_hand")), total(record), *(got.get(name, 0) for name in names)]
        row += [record["first_failure"], record["misconception"], "late" if record["late"] else "", record["problem"]]
        writer.writerow([_cell(plain(cell, lines=False)) if isinstance(cell, str) else cell for cell in row])
    return out.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.strip()[:1] in FORMULA and text.strip() else text


def total(record: dict) -> int | float:
    """Points of the tests and of the answers in words, as far as those are graded."""
    points = record["points"] + (record.get("by_hand") or 0)
    return int(points) if points == int(points) else points


def _plain(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def digest_of(exercise: Exercise, course: Path) -> str:
    """What a kept mark depends on besides the notebook: the grader's own files, the exercise and its hidden cases."""
    package = Path(__file__).parent
    files = [*package.glob("*.py"), *package.glob("box/*.py"), package / "exercises" / f"{exercise.name}.py", course / "solutions" / exercise.name / HIDDEN]
    files += [*package.parent.glob("traffic/*.py"), package.parent / "problem.py", package.parent / "hardware.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files) if path.is_file())).hexdigest() + str(sandbox.works())


def write(path: Path, text: str) -> None:
    """Write in one step, and only what is not there already."""
    content = text.encode("utf-8", "replace")
    if path.is_file() and path.read_bytes() == content:
        return
    half = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        half.write_bytes(content)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def _bar(done: int, total: int, stream) -> None:
    """A line that fills up in a terminal; elsewhere a line for each tenth."""
    if stream is None:
        return
    if stream.isatty():
        filled = 30 * done // total
        print(f"\r[{'█' * filled}{'·' * (30 - filled)}] {done} of {total}", end="\n" if done == total else "", file=stream, flush=True)
    elif done == total or done * 10 // total > (done - 1) * 10 // total:
        print(f"{done} of {total} marked", file=stream, flush=True)


def _say(full, exercise, records, left_out, out, stream) -> None:
    print(f"{len(records)} submissions of {exercise.name}: {class_figure.sentence(records)}", file=stream)
    if all(len(test.cases) == len(more.cases) for test, more in zip(exercise.tests, full.tests)):
        print(f"The hidden cases (solutions/{exercise.name}/{HIDDEN}) are not here: only those that students have were used.", file=stream)
    if not sandbox.works():
        print(f"NOT SANDBOXED: {sandbox.why_not()}.", file=stream)
    for name, why in left_out:
        print(f"  {plain(name, 200, lines=False)}: {plain(why, 400, lines=False)}", file=stream)
    print(f"See {out / 'class.html'} and {out / 'grades.csv'}.", file=stream)
