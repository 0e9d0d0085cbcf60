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

import hashlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flashlab.copies import find_course
from flashlab.errors import error
from flashlab.grading import cells, class_figure, marks, sandbox, submitted, words
from flashlab.grading import gradebook as book
from flashlab.grading import roster as canvas
from flashlab.grading.class_files import CANVAS, OF_STUDENTS, delete_old, write, write_canvas, write_class
from flashlab.grading.exercise import HIDDEN, Exercise, find
from flashlab.grading.judge import meaning
from flashlab.grading.plain import plain
from flashlab.grading.submissions import Submission, collect


def grade(submissions: Path, name: str, out: Path, *, roster: Path | None = None, gradebook: Path | None = None, tree: Path | None = None, jobs: int = 2, unsafe: bool = False, limits=None, progress=sys.stderr) -> int:
    """Mark every submission and write all of the above; with `tree` also nbgrader's submitted/.

    Returns the exit status: 1 if a submission matched nobody on the roster, or points given by hand nobody's submission.
    Raises RuntimeError where there is no sandbox and `unsafe` is not given.
    """
    if not sandbox.works() and not unsafe:
        raise error("no_sandbox", why=sandbox.why_not(), fix=sandbox.FIX)
    course = find_course()
    exercise = find(name)
    full = exercise.with_hidden(course / "solutions")
    chosen, left_out = collect(submissions, exercise)
    roster_rows = read_roster(roster) if roster else ([], [], ",")
    if gradebook:
        book.check(gradebook)
    if tree:
        submitted.check(tree, submissions)
    for folder in ("results", *OF_STUDENTS):
        (out / folder).mkdir(parents=True, exist_ok=True)
    records = mark_all(full, chosen, out, jobs, digest_of(full, course), progress, limits)

    asked = words.asked(course, exercise)
    found, nobody = canvas.matched(roster_rows[1], chosen) if roster else ({}, [])
    notes, more = delete_old(out, records, bool(roster))
    left_out += [*more, *canvas.reasons(roster_rows[1], found, nobody), *words.lost(records, asked)]
    strangers = False
    if gradebook:
        strangers = take_words(records, exercise, gradebook, found, roster_rows[1], notes, left_out)
    for record in records:
        record["words"] = sum(asked.values())
    notes.append(words.waiting(records, exercise.points, sum(asked.values()), CANVAS if roster else "grades.csv"))
    if roster:
        possible = exercise.points + sum(asked.values())
        notes.append(canvas.points_differ(*roster_rows[:2], exercise, possible))
        write_canvas(exercise, records, found, roster_rows, possible, out)
    if tree:
        notes.append(write_submitted(tree, exercise, chosen, left_out))
    notes = [note for note in notes if note]
    write_class(exercise, records, left_out, notes, out, course)
    _say(full, exercise, records, left_out, notes, out, progress)
    return 1 if nobody or strangers else 0


def read_roster(path: Path) -> tuple:
    """Read before anything is marked, so that a wrong file is told at once."""
    return *canvas.read(path), canvas.separator(path.read_text("utf-8-sig"))


def take_words(records: list[dict], exercise: Exercise, path: Path, found: dict, rows: list[dict], notes: list[str], left_out: list) -> bool:
    """Take the points given by hand out of nbgrader's gradebook, and put the sandbox's into it; whether some were nobody's."""
    hand = book.by_hand(path, exercise)
    pairs = words.same(list(hand), records, found, rows)
    said, more, strangers = words.join(records, hand, pairs, path.name)
    points = {record["student"]: record["points"] for record in records}
    book.put(path, exercise, {name: points[student] for name, student in pairs.items()})
    notes.append(said)
    left_out += more
    return strangers


def write_submitted(tree: Path, exercise: Exercise, chosen: list[Submission], left_out: list) -> str:
    """Write nbgrader's tree; returns what is said of it."""
    replaced, unreadable = submitted.write_tree(tree, exercise, chosen)
    left_out += unreadable
    said = f"{tree} has {len(chosen) - len(unreadable)} of {len(chosen)} notebooks, for nbgrader autograde {exercise.name}."
    return said + (f" Handed in anew: {', '.join(replaced)}. nbgrader reads these again only with --force --student NAME." if replaced else "")


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
    answers = None
    result = marks.Result(exercise, problem=problem)
    if not problem:
        try:
            notebook = cells.parse(submission.file, content)
            answers = sorted(words.marked(notebook))
            sources = cells.solutions(notebook, exercise.functions)
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
        "kind": first.finding.kind if first and first.finding else "", "answers": answers,
    }  # fmt: skip


def _told(finding) -> dict:
    return {
        "what": finding.what, "misconception": finding.misconception or "", "meaning": meaning(finding),
        "input": finding.input, "theirs": finding.theirs, "expected": finding.expected,
    }  # fmt: skip


def digest_of(exercise: Exercise, course: Path) -> str:
    """What a kept mark depends on besides the notebook: the grader's own files, the exercise and its hidden cases."""
    package = Path(__file__).parent
    files = [*package.glob("*.py"), *package.glob("box/*.py"), package / "exercises" / f"{exercise.name}.py", course / "solutions" / exercise.name / HIDDEN]
    files += [*package.parent.glob("traffic/*.py"), package.parent / "problem.py", package.parent / "hardware.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files) if path.is_file())).hexdigest() + str(sandbox.works())


def _bar(done: int, total: int, stream) -> None:
    """A line that fills up in a terminal; elsewhere a line for each tenth."""
    if stream is None:
        return
    if stream.isatty():
        filled = 30 * done // total
        print(f"\r[{'█' * filled}{'·' * (30 - filled)}] {done} of {total}", end="\n" if done == total else "", file=stream, flush=True)
    elif done == total or done * 10 // total > (done - 1) * 10 // total:
        print(f"{done} of {total} marked", file=stream, flush=True)


def _say(full, exercise, records, left_out, notes, out, stream) -> None:
    print(f"{len(records)} submissions of {exercise.name}: {class_figure.sentence(records)}", file=stream)
    if all(len(test.cases) == len(more.cases) for test, more in zip(exercise.tests, full.tests)):
        print(f"The hidden cases (solutions/{exercise.name}/{HIDDEN}) are not here: only those that students have were used.", file=stream)
    if not sandbox.works():
        print(f"NOT SANDBOXED: {sandbox.why_not()}.", file=stream)
    for note in notes:
        print(plain(note, lines=False), file=stream)
    for name, why in left_out:
        print(f"  {plain(name, 200, lines=False)}: {plain(why, 400, lines=False)}", file=stream)
    print(f"See {out / 'class.html'} and {out / 'grades.csv'}.", file=stream)
