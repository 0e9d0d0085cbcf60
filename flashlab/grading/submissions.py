"""Finds the notebooks of a class: a flat folder, nbgrader's submitted/, or a zip as Canvas or Moodle makes it.

    alice.ipynb                                             flat: the student is the file's name
    alice/e04_flash_forward/e04_flash_forward.ipynb         nbgrader
    doejane_LATE_1234_56789_e04_flash_forward-2.ipynb       Canvas: name, late marker, user id, submission id, resubmission
    Jane Doe_4711_assignsubmission_file_/e04.ipynb          Moodle

A zip is read where it is, never unpacked, so a name such as ../../etc/passwd is only a name. Every file ends up among the
submissions or among those left out, with the reason.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flashlab.errors import error
from flashlab.grading.cells import MOST_BYTES
from flashlab.grading.exercise import Exercise

CANVAS = re.compile(r"^(?P<name>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_(?P<submission>\d+)_(?P<file>.+?)(?:-(?P<again>\d+))?\.ipynb$")
MOODLE = re.compile(r"^(?P<name>.+)_(?P<id>\d+)_assignsubmission_file_?$")
SKIPPED = {"__MACOSX", ".ipynb_checkpoints", "__pycache__"}


@dataclass(frozen=True)
class Submission:
    """One student's notebook: `student` is unique in the class, `number` the learning platform's user id if its name has one."""

    student: str
    file: str
    place: Path
    member: str | None = None
    number: str = ""
    late: bool = False
    again: int = 0

    def content(self) -> bytes:
        """The notebook's bytes, at most a little more than may be."""
        if self.member is None:
            with open(self.place, "rb") as file:
                return file.read(MOST_BYTES + 1)
        with zipfile.ZipFile(self.place) as archive, archive.open(self.member) as file:
            return file.read(MOST_BYTES + 1)

    @property
    def slug(self) -> str:
        """The student's name as a file name: letters and digits, and a digest where that lost something."""
        plain = re.sub(r"[^A-Za-z0-9.-]+", "_", self.student).strip("._")[:60]
        return plain if plain and plain == self.student else f"{plain or 'student'}-{hashlib.sha256(self.student.encode()).hexdigest()[:8]}"


def collect(place: Path, exercise: Exercise) -> tuple[list[Submission], list[tuple[str, str]]]:
    """(submissions in order of their students, [(file, why it is not marked)]).

    Raises FileNotFoundError or ValueError where there is nothing to look at.
    """
    names, archive = _names(place)
    left_out: list[tuple[str, str]] = []
    found: dict[str, list[Submission]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if SKIPPED.intersection(path.parts) or path.name.startswith("."):
            continue
        if path.suffix != ".ipynb":
            left_out.append((name, "it is no notebook"))
            continue
        one = _submission(path, exercise, place, archive)
        if one is None:
            left_out.append((name, f"its folder is another assignment's, not {exercise.name}'s"))
            continue
        found.setdefault(one.student, []).append(one)
    chosen = []
    for student in sorted(found):
        *older, last = sorted(found[student], key=lambda one: (one.again, PurePosixPath(one.file).stem == exercise.name, one.file))
        chosen.append(last)
        left_out += [(one.file, f"{student} handed in {PurePosixPath(last.file).name} too, which is marked") for one in older]
    if not chosen:
        raise error("no_submissions", given=place)
    return chosen, left_out


def _names(place: Path) -> tuple[list[str], bool]:
    if place.is_dir():
        return [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()], False
    if not place.is_file():
        raise error("submissions_missing", given=place)
    try:
        with zipfile.ZipFile(place) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()], True
    except zipfile.BadZipFile:
        if place.suffix == ".ipynb":
            return [""], False
        raise error("submissions_kind", given=place) from None


def _submission(path: PurePosixPath, exercise: Exercise, place: Path, archive: bool) -> Submission | None:
    file = str(path)
    where = {"place": place, "member": file} if archive else {"place": place / file}
    canvas, folders = CANVAS.match(path.name), path.parts[:-1]
    if canvas:
        return Submission(
            f"{canvas['name']}_{canvas['id']}", file, number=canvas["id"], late=bool(canvas["late"]), again=int(canvas["again"] or 0), **where,
        )  # fmt: skip
    moodle = next((match for match in map(MOODLE.match, folders) if match), None)
    if moodle:
        return Submission(f"{moodle['name']}_{moodle['id']}", file, number=moodle["id"], **where)
    if len(folders) >= 2:  # nbgrader: .../student/assignment/notebook
        return Submission(folders[-2], file, **where) if folders[-1] == exercise.name else None
    if len(folders) == 1:  # a folder for each student
        return Submission(folders[0], file, **where)
    return Submission(path.stem, file, **where)
