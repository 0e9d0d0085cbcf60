"""Your own copies of the lessons, in work/: made, kept up to date, and put back.

Git never sees work/, so `git pull` never meets a notebook you ran. What happens to a copy on `flashlab lab`:

    you never opened it               a newer original replaces it
    you ran it, changed no cell       kept with its outputs, until the original's cells change: then replaced
    you changed, added or cut a cell  never touched; a newer original is named, and `flashlab reset` gets it

A notebook counts as changed when the text of its cells is; outputs, execution counts and empty cells do not count.
work/.flashlab.json remembers what was copied; a copy it does not know that differs from its original counts as changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Iterator

from flashlab.errors import error

FOLDERS = ("notebooks", "exercises")
MANIFEST = ".flashlab.json"
SKIPPED = {"__pycache__", ".ipynb_checkpoints"}


def find_course(start: Path | None = None) -> Path:
    """The folder that holds notebooks/: `start` (default: here) or one above it, else where flashlab was cloned.

    Raises FileNotFoundError if there is none, as after installing a wheel without the clone.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[1]):
        if (folder / "notebooks").is_dir() and (folder / "flashlab" / "copies.py").is_file():
            return folder
    raise error("no_course", given=start)


def work_folder(course: Path, given: Path | None = None) -> Path:
    """Where your copies are: `given`; in `course` its work/; elsewhere the copies that you stand in, or work/ right there.

    So a class that shares one course gets a folder for each student, and a terminal in JupyterLab finds it again.
    """
    here = Path.cwd().resolve()
    if given is not None:
        return given.resolve()
    if here.is_relative_to(course):
        return course / "work"
    return next((folder for folder in (here, *here.parents) if (folder / MANIFEST).is_file()), here / "work")


def originals(course: Path) -> Iterator[Path]:
    """What learners get, relative to `course`, in order: every notebook, and whatever belongs to an exercise."""
    for folder in FOLDERS:
        for path in sorted((course / folder).rglob("*")):
            relative = path.relative_to(course)
            if folder == "notebooks" and path.suffix != ".ipynb":
                continue  # a picture of the README's
            if path.is_file() and not SKIPPED.intersection(relative.parts) and not path.name.startswith("."):
                yield relative


def digest(path: Path) -> str:
    """A hash of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content(path: Path) -> str:
    """A hash of what a person writes in the file: a notebook's cells without outputs, another file's bytes."""
    if path.suffix != ".ipynb":
        return digest(path)
    try:
        cells = json.loads(path.read_bytes())["cells"]
        text = [(cell["cell_type"], "".join(cell["source"]).rstrip()) for cell in cells]
    except (ValueError, KeyError, TypeError):
        return digest(path)  # not a notebook that can be read: any difference counts
    return hashlib.sha256(json.dumps([cell for cell in text if cell[1]]).encode()).hexdigest()


def marks(original: Path) -> dict[str, str]:
    """What the manifest remembers of a file. Raises OSError that names the course's file if it cannot be read."""
    try:
        return {"content": content(original), "digest": digest(original)}
    except OSError as problem:
        raise error("course_file", given=original, why=problem.strerror or problem) from problem


def sync(course: Path, work: Path) -> list[str]:
    """Copy what is not in `work` yet, refresh what its owner has not changed; returns a sentence per thing to say.

    Raises OSError if `work` cannot be written or a file of the course cannot be read.
    """
    course_has = {name: marks(course / name) for name in originals(course)}
    try:
        work.mkdir(parents=True, exist_ok=True)
        known, said = read_manifest(work)
        new, refreshed = 0, 0
        try:
            for name, now in course_has.items():
                original, copy, seen = course / name, work / name, known.get(str(name), {})
                theirs = content(copy) if copy.exists() else None
                if theirs is None:
                    new += 1
                    put(original, copy)
                elif theirs == now["content"]:  # the same cells: a run copy keeps its outputs, an unopened one gets the new
                    if digest(copy) == seen.get("digest") != now["digest"]:
                        refreshed += 1
                        put(original, copy)
                elif theirs == seen.get("content"):
                    refreshed += 1
                    put(original, copy)
                elif seen.get("content") != now["content"]:
                    said.append(newer(name, copy))
                    if seen:
                        continue  # say so again next time
                known[str(name)] = now
        finally:  # interrupted or not, what was put is known to be the course's
            write_json(work / MANIFEST, known)
    except OSError as problem:
        raise error("work_folder", given=work, why=problem.strerror or problem) from problem
    counts = [f"{n} {what}" for n, what in ((new, "new"), (refreshed, "brought up to date")) if n]
    return ([f"{work}: {', '.join(counts)}."] if counts else []) + said


def newer(name: Path, copy: Path) -> str:
    """What to say about a copy that its owner changed and the course changed too."""
    return (
        f"{copy} has your changes and was left alone; a newer one came with the course."
        f" `flashlab reset {handle(name.name)}` gets it and keeps yours beside it."
    )


def handle(file_name: str) -> str:
    """What a person types for a file or folder: "04" for 04_tiling.ipynb."""
    return file_name.split(".")[0].split("_")[0]


def reset(which: str, course: Path, work: Path, today: date | None = None) -> list[str]:
    """Put the original of lesson `which` ("04", "lab1", "e04" or a file name) back; returns what was done, in words.

    The old copy stays beside it, e.g. 04_tiling.mine-2026-11-29.ipynb. Raises LookupError if no lesson is called so.
    """
    names = list(originals(course))
    wanted = which.zfill(2) if which.isdigit() else which
    chosen = [name for name in names if any(wanted in (handle(part), part, str(name)) for part in name.parts[1:])]
    if not chosen:
        lessons = dict.fromkeys(handle(name.parts[1] if name.parts[0] == "exercises" else name.name) for name in names)
        raise error("lesson_name", given=which, allowed=", ".join(lessons))
    course_has = {name: marks(course / name) for name in chosen}
    work.mkdir(parents=True, exist_ok=True)
    known, done = read_manifest(work)
    try:
        for name, now in course_has.items():
            original, copy = course / name, work / name
            if copy.exists() and digest(copy) == now["digest"]:
                done.append(f"{copy} is the original already.")
            else:
                kept = keep_aside(copy, today or date.today()) if copy.exists() else None
                put(original, copy)
                done.append(f"{copy} is the original again." + (f" Yours is kept as {kept.name}." if kept else ""))
            known[str(name)] = now
    finally:
        write_json(work / MANIFEST, known)
    return done


def keep_aside(copy: Path, today: date) -> Path:
    """Rename `copy` to a dated name that is free, and return it."""
    for number in range(1, 1000):
        suffix = f".mine-{today.isoformat()}" + (f"-{number}" if number > 1 else "")
        kept = copy.with_name(copy.stem + suffix + copy.suffix)
        if not kept.exists():
            return copy.rename(kept)
    raise error("work_folder", given=copy.parent, why="it holds 999 older copies of this file")


def put(original: Path, copy: Path) -> None:
    """Copy a file in one step: whoever reads `copy` meanwhile sees the old one or the new one, never half of it."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    half = copy.with_name(f".{copy.name}.{os.getpid()}.new")  # two runs at once write one each
    try:
        shutil.copyfile(original, half)
        os.replace(half, copy)
    finally:
        half.unlink(missing_ok=True)


def read_manifest(work: Path) -> tuple[dict, list[str]]:
    """What was copied before, and what to say about it: nothing, unless the file is there and cannot be read."""
    path = work / MANIFEST
    if not path.exists():
        return {}, []
    try:
        known = json.loads(path.read_bytes())
        if all(isinstance(entry, dict) for entry in known.values()):
            return known, []
    except (ValueError, AttributeError):
        pass
    return {}, [f"{path} could not be read, so every copy that differs from its original counts as yours."]


def write_json(path: Path, value: dict) -> None:
    """Write `value` in one step, as `put` does."""
    half = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        half.write_text(json.dumps(value, indent=1, sort_keys=True))
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
