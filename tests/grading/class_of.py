"""Writes notebooks as students hand them in: the released one with its solution cell replaced."""

import copy
import json
from functools import cache
from pathlib import Path

from exercise_cells import notebook_of, solution_of


@cache
def _released(name):
    return json.loads(notebook_of(name, "exercises").read_bytes())


def notebook(source: str | None, name: str = "e04") -> dict:
    """The exercise as a student got it, with `source` in its solution cell (None: as it was)."""
    made = copy.deepcopy(_released(name))
    for cell in made["cells"]:
        mark = cell["metadata"].get("nbgrader", {})
        if mark.get("solution") and cell["cell_type"] == "code" and source is not None:
            cell["source"] = source
    return made


def solution(name: str = "e04") -> str:
    """The right answer's cell."""
    (source,) = set(solution_of(name).values())
    return source


def hand_in(folder: Path, student: str, content) -> Path:
    """Write a submission: a notebook, bytes, or the source of its solution cell."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{student}.ipynb"
    if isinstance(content, str):
        content = notebook(content)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path
