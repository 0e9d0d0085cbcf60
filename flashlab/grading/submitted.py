"""nbgrader's own tree of a class, from a zip or a folder of any other shape: `flashlab grade ... --submitted submitted/`.

    submitted/STUDENT/e04_flash_forward/e04_flash_forward.ipynb     STUDENT is the name in grades.csv

A notebook that nbgrader cannot read is left out: one of these can end `nbgrader autograde` for the whole class.
"""

from __future__ import annotations

from pathlib import Path

from flashlab.errors import error
from flashlab.grading.class_files import write
from flashlab.grading.exercise import Exercise
from flashlab.grading.submissions import DIGEST, Submission

NO_FOLDER = "/\\*?[]"  # nbgrader looks for folders by a pattern


def check(folder: Path, submissions: Path) -> None:
    """Whether it can be written at all, asked before a class is marked. Raises ValueError."""
    if folder.resolve() == submissions.resolve():
        raise error("submitted", given=folder, why="it is the folder that is marked; name another")
    try:
        import nbgrader.nbgraderformat  # noqa: F401
    except ImportError as problem:
        raise error("submitted", given=folder, why="nbgrader is not installed: pip install -e '.[instructor]'") from problem


def write_tree(folder: Path, exercise: Exercise, chosen: list[Submission]) -> tuple[list[str], list[tuple[str, str]]]:
    """Write the tree; returns (students whose notebook replaced an older one, [(file, why it was left out)])."""
    replaced, left_out = [], []
    for one in chosen:
        path = folder / folder_of(one) / exercise.name / f"{exercise.name}.ipynb"
        try:
            content = one.content()
            _read(content)
        except Exception as problem:  # whatever a student's file makes of a reader
            more = "; an older one is still there" if path.is_file() else ""
            left_out.append((one.file, f"it is not in {folder}: nbgrader cannot read it ({type(problem).__name__}){more}"))
            continue
        if path.is_file() and path.read_bytes() != content:
            replaced.append(folder_of(one))
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    return replaced, left_out


def folder_of(one: Submission) -> str:
    """The student's name as a folder's: itself wherever that is safe, else their report's name."""
    name = one.student
    safe = name.isprintable() and name == name.strip() and name[:1] not in ("", ".") and not set(NO_FOLDER).intersection(name)
    return name if safe and len(name.encode()) < 200 and not DIGEST.search(name) else one.slug


def _read(content: bytes) -> None:
    """As nbgrader reads it. Raises whatever that raises."""
    import nbformat
    from nbgrader import nbgraderformat

    nbgraderformat.reads(content.decode(), as_version=nbformat.current_nbformat)
