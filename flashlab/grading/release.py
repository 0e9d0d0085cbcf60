"""Makes exercises/ from solutions/: nbgrader's own preprocessors as a library, no database, the same bytes every time.

    python -m flashlab.grading.release            exercises/, anew
    python -m flashlab.grading.release --student build/flashlab-student    the course as a class gets it

Of solutions/<name>/ only <name>.ipynb is released, without its solutions, hidden tests and mark schemes, and what stands
in its folder files/ (data a student needs). hidden.py and rubrics stay.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from flashlab.errors import error

STUB = "raise NotImplementedError  # your code here, in place of this line"
ANSWER = "*Your answer, in two or three sentences, in place of this line.*"
LEAKS = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN", "END HIDDEN", "BEGIN MARK SCHEME", "END MARK SCHEME")
FILES = "files"  # the folder of an exercise that students get as it is
# What a class does not get, and the lines of the README that speak of it.
PRIVATE = ("solutions", ".ci", "tests/exercises", "tests/grading", "tests/bench/test_instructor_page.py", "nbgrader_config.py", "instructor.md", "notebooks/labs/*.md")
FOR_INSTRUCTORS = re.compile(r"<!-- instructor -->.*?<!-- /instructor -->\n*", re.DOTALL)


def released(path: Path) -> str:
    """The text of the notebook that students get for the solution at `path`.

    Raises RuntimeError where nbgrader refuses it (a region that never ends, a cell without its metadata).
    """
    import nbformat
    from nbgrader import preprocessors as nbgrader
    from traitlets.config import Config

    config = Config()
    config.ClearSolutions.code_stub = {"python": STUB}
    config.ClearSolutions.text_stub = ANSWER
    steps = ("LockCells", "ClearSolutions", "ClearOutput", "CheckCellMetadata", "ClearHiddenTests", "ClearMarkScheme", "ComputeChecksums")
    notebook, resources = nbformat.read(path, as_version=4), {}
    try:
        for step in steps:
            notebook, resources = getattr(nbgrader, step)(config=config).preprocess(notebook, resources)
    except Exception as problem:  # nbgrader raises RuntimeError, ValidationError and others
        raise error("release", given=path, why=problem) from problem
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell.cell_type != "code" else cell.update(outputs=[], execution_count=None)
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"}}
    text = nbformat.writes(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    for word in LEAKS:
        if word in text:
            raise error("release", given=path, why=f"{word!r} is still in it")
    return text


def release(solutions: Path) -> dict[Path, bytes]:
    """{path below exercises/: content} of all that students get."""
    found: dict[Path, bytes] = {}
    for folder in sorted(path for path in solutions.iterdir() if path.is_dir() and path.name[0] not in "._"):
        notebook = folder / f"{folder.name}.ipynb"
        found[Path(folder.name) / notebook.name] = released(notebook).encode()
        for file in sorted((folder / FILES).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found[Path(folder.name) / file.relative_to(folder / FILES)] = file.read_bytes()
    return found


def write(course: Path) -> list[Path]:
    """Make exercises/ in `course` exactly what `release` gives; returns the files that changed."""
    target, files = course / "exercises", release(course / "solutions")
    changed = [path for path, content in files.items() if not (target / path).is_file() or (target / path).read_bytes() != content]
    gone = [path.relative_to(target) for path in target.rglob("*") if path.is_file() and path.relative_to(target) not in files]
    for path in gone:
        (target / path).unlink()
    for path in changed:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(files[path])
    return sorted(changed + gone)


def student(course: Path, target: Path) -> int:
    """Copy what a class gets to `target`: the files git knows, without the instructor's; returns how many."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=course, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and (course / name).is_file()]
    names = [name for name in names if not any(fnmatch(name, private) or name.startswith(f"{private}/") for private in PRIVATE)]
    if target.exists():
        shutil.rmtree(target)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(course / name, target / name)
    readme = target / "README.md"
    readme.write_text(FOR_INSTRUCTORS.sub("", readme.read_text()))
    return len(names)


def main(arguments: list[str] | None = None) -> int:
    """The two commands above."""
    from flashlab.copies import find_course

    parser = argparse.ArgumentParser(prog="python -m flashlab.grading.release", description="Make exercises/ from solutions/.")
    parser.add_argument("--student", type=Path, metavar="FOLDER", help="copy the course without solutions/ to FOLDER")
    options, course = parser.parse_args(arguments), find_course()
    if not (course / "solutions").is_dir():
        raise error("no_solutions", given=course)
    changed = write(course)
    print(*(f"exercises/{path}" for path in changed), sep="\n" if changed else "")
    print(f"exercises/: {len(changed)} file(s) changed.")
    if options.student:
        print(f"{options.student}: {student(course, options.student)} files, without {', '.join(PRIVATE)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
