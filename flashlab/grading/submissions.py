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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flashlab.errors import error
from flashlab.grading.cells import MOST_BYTES
from flashlab.grading.exercise import Exercise

CANVAS = re.compile(r"^(?P<name>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_(?P<submission>\d+)_(?P<file>.+?)(?:-(?P<again>\d+))?\.ipynb$")
MOODLE = re.compile(r"^(?P<name>.+)_(?P<id>\d+)_assignsubmission_file_?$")
DIGITS = 12  # of the digest in a file name
DIGEST = re.compile(rf"-[0-9a-f]{{{DIGITS}}}$")  # a name that ends so could be meant to be another's file
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
        if plain and plain == self.student and not DIGEST.search(plain):
            return plain
        return f"{plain or 'student'}-{hashlib.sha256(self.student.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGITS]}"


def collect(place: Path, exercise: Exercise) -> tuple[list[Submission], list[tuple[str, str]]]:
    """(submissions in order of their students, [(file, why it is not marked)]).

    Raises FileNotFoundError or ValueError where there is nothing to look at.
    """
    names, archive, left_out = _names(place)
    left_out += [(name, "the zip has it more than once; its last one is read") for name, times in sorted(Counter(names).items()) if times > 1]
    found: dict[str, list[Submission]] = {}
    paths = {name: PurePosixPath(name.replace("\\", "/") if archive else name) for name in sorted(names)}
    wrapped = _wrapped(list(paths.values()))
    for name, path in paths.items():
        if SKIPPED.intersection(path.parts) or path.name.startswith("."):
            continue
        if path.suffix != ".ipynb":
            left_out.append((name, "it is no notebook"))
            continue
        one = _submission(name, path.name, path.parts[wrapped:-1], exercise, {"place": place, "member": name} if archive else {"place": place / name if place.is_dir() else place})
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


def _names(place: Path) -> tuple[list[str], bool, list[tuple[str, str]]]:
    """(files, whether they are in a zip, what is left out at once): a link is no file, for it could lead to the solutions."""
    if place.is_dir():
        entries = [(path.relative_to(place).as_posix(), path) for path in place.rglob("*")]
        odd = [(name, "it is a link or no file at all; put the file itself here") for name, path in sorted(entries) if path.is_symlink() or not (path.is_file() or path.is_dir())]
        return [name for name, path in entries if path.is_file() and not path.is_symlink()], False, odd
    if not place.is_file():
        raise error("submissions_missing", given=place)
    try:
        with zipfile.ZipFile(place) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()], True, []
    except zipfile.BadZipFile:
        if place.suffix == ".ipynb":
            return [place.name], False, []
        raise error("submissions_kind", given=place) from None


def _wrapped(paths: list[PurePosixPath]) -> int:
    """1 where all lie in one folder, as in a zip that was unpacked and packed again, and that folder is no student's."""
    paths = [path for path in paths if not SKIPPED.intersection(path.parts) and not path.name.startswith(".")]
    if not paths or any(len(path.parts) < 2 for path in paths) or len({path.parts[0] for path in paths}) > 1 or MOODLE.match(paths[0].parts[0]):
        return 0
    students = {path.parts[1] for path in paths if len(path.parts) > 2 and MOODLE.match(path.parts[1])}
    return int(bool(students) or any(len(path.parts) == 2 and CANVAS.match(path.name) for path in paths) or all(len(path.parts) > 3 for path in paths))


def _submission(file: str, name: str, folders: tuple[str, ...], exercise: Exercise, where: dict) -> Submission | None:
    """Whose it is. What a student may name, a file or a folder within their own, never says who they are."""
    canvas = None if folders else CANVAS.match(name)
    if canvas:
        return Submission(
            f"{canvas['name']}_{canvas['id']}", file, number=canvas["id"], late=bool(canvas["late"]), again=int((canvas["again"] or "0")[:9]), **where,
        )  # fmt: skip
    moodle = MOODLE.match(folders[0]) if folders else None
    if moodle:
        return Submission(f"{moodle['name']}_{moodle['id']}", file, number=moodle["id"], **where)
    if len(folders) >= 2:  # nbgrader: student/assignment/notebook; what lies deeper was packed by a student
        return Submission(folders[0], file, **where) if folders[1:] == (exercise.name,) else None
    if len(folders) == 1:  # a folder for each student
        return Submission(folders[0], file, **where)
    return Submission(PurePosixPath(name).stem, file, **where)
