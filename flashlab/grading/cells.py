"""Takes the student's solution cells out of a notebook, and nothing else of it: no test cell, no output, no metadata.

A solution cell is one that defines a function the exercise asks for. nbgrader's mark finds it; where a front end lost
the mark, or the student wrote in another cell, the last cell that defines the function counts.
"""

from __future__ import annotations

import ast
import json
import threading
from pathlib import Path

from flashlab.errors import error

MOST_BYTES = 20_000_000  # of a notebook
MOST_CELLS = 2_000  # that are looked at
MOST_SOURCE = 100_000  # characters of one solution cell
ONE_AT_A_TIME = threading.Lock()  # Python 3.11 counts the depth of every ast.parse in one place: two at once, and one may raise SystemError


def read(path: Path) -> list[dict]:
    """The cells of a notebook file. Raises ValueError that says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise error("submission", given=path.name, why=problem.strerror or problem) from problem
    return parse(path.name, content)


def parse(name: str, content: bytes) -> list[dict]:
    """The cells of a notebook's bytes."""
    if len(content) > MOST_BYTES:
        raise error("submission", given=name, why=f"it is larger than {MOST_BYTES // 1_000_000} MB")
    try:
        return [cell for cell in json.loads(content)["cells"] if isinstance(cell, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise error("submission", given=name, why="it is no notebook that can be read") from problem


def source_of(cell: dict) -> str:
    """The text of a cell, whether stored as one string or as lines."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def solutions(cells: list[dict], functions: tuple[str, ...]) -> dict[str, str]:
    """{function: source of the cell that defines it}, for those that are there, in the notebook's order.

    A cell that is no Python counts for the functions whose "def" it holds; `fault` says what is wrong with it.
    """
    found: dict[str, tuple[bool, int, str]] = {}
    for place, cell in enumerate(cells[:MOST_CELLS]):
        source, marked = source_of(cell), _is_solution(cell)
        if cell.get("cell_type") != "code" or not any(f"def {function}" in source for function in functions):
            continue
        defined = {function for function in functions if f"def {function}(" in source} if fault(source) else defines(source)
        for function in defined.intersection(functions):
            if marked or not found.get(function, (False,))[0]:
                found[function] = (marked, place, source)
    return {function: source for function, (_, _, source) in sorted(found.items(), key=lambda item: item[1][1])}


def fault(source: str) -> str:
    """Why a cell cannot be run, or ""."""
    try:
        defines(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        return unreadable(source, problem)
    return ""


def defines(source: str) -> set[str]:
    """The functions defined at the top of a cell."""
    if len(source) > MOST_SOURCE:
        raise ValueError(f"it is longer than {MOST_SOURCE:,} characters")
    return {node.name for node in tree_of(source).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def tree_of(source: str) -> ast.Module:
    """The syntax tree of a cell, also where `flashlab grade --jobs` reads several at once."""
    with ONE_AT_A_TIME:
        return ast.parse(source)


def unreadable(source: str, problem: Exception) -> str:
    """Why a cell is no Python: the magic in it by name, or what Python says."""
    for number, line in enumerate(source.splitlines(), 1):
        word = line.strip().split(" ")[0]
        if word.startswith(("%", "!", "?")):
            return f"line {number} is the magic {word[:40]}, and the grader runs plain Python. Delete that line"
    where = f" in line {problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
    what = problem.msg if isinstance(problem, SyntaxError) and problem.msg else problem  # without "(<unknown>, line 7)"
    return f"Python cannot read it{where}: {str(what)[:200]}"


def _is_solution(cell: dict) -> bool:
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return isinstance(mark, dict) and mark.get("solution") is True
