"""What you opened and what you passed: `flashlab progress`. Kept in work/.progress.json, on your machine only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flashlab.grading.exercise import Exercise, find, names

FILE = ".progress.json"


def notebook_of(exercise: Exercise) -> Path:
    """Your copy of the exercise in work/ if there is one, else the course's own."""
    from flashlab.copies import find_course, work_folder

    course = find_course()
    place = Path("exercises") / exercise.name / f"{exercise.name}.ipynb"
    mine = work_folder(course) / place
    return mine if mine.is_file() else course / place


def passed(exercise: Exercise) -> None:
    """Remember that every test of the exercise passed; where nothing can be written, nothing is remembered."""
    from flashlab.copies import find_course, work_folder, write_json

    try:
        work = work_folder(find_course())
        work.mkdir(parents=True, exist_ok=True)
        known = read(work)
        if exercise.name not in known:
            write_json(work / FILE, {name: True for name in [*known, exercise.name]})
    except OSError:
        return


def read(work: Path) -> dict:
    """The exercises passed; an unreadable file counts as none."""
    try:
        known = json.loads((work / FILE).read_bytes())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def lines() -> Iterator[str]:
    """A line for each lesson that you have run a cell of, and for each exercise."""
    from flashlab.copies import find_course, work_folder

    course = find_course()
    work = work_folder(course)
    lessons = sorted((course / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    opened = [lesson for lesson in lessons if (work / "notebooks" / lesson.name).is_file() and _ran(work / "notebooks" / lesson.name, lesson)]
    known, every = read(work), names()
    done = [name for name in every if name in known]
    yield f"Lessons opened: {len(opened)} of {len(lessons)}" + (f" ({', '.join(path.name[:2] for path in opened)})" if opened else "")
    yield f"Exercises passed: {len(done)} of {len(every)}"
    for name in every:
        exercise = find(name)
        yield f"  {'✓' if name in known else '·'} {exercise.id}  {exercise.title} ({exercise.points} points, after lesson {exercise.lesson[:2]})"


def _ran(copy: Path, original: Path) -> bool:
    """Whether a cell of the copy was run: its bytes are no longer the original's."""
    return copy.read_bytes() != original.read_bytes()
