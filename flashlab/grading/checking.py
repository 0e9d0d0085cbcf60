"""check("e04"): the tests of an exercise on the reader's own cell, in a notebook or from a terminal."""

from __future__ import annotations

import html
from pathlib import Path

from flashlab.errors import error
from flashlab.grading import cells, marks, progress
from flashlab.grading.exercise import Exercise, find


IN_WORDS = "All tests pass. The questions in words are left, at the end of the notebook: a person reads them."


class Checked:
    """What a check found: prints in a terminal, shown in a notebook, true if every test passed."""

    def __init__(self, result: marks.Result, path: Path | None = None) -> None:
        self.result, self.path = result, path  # the notebook's file, where it was not the cells that were run

    def __bool__(self) -> bool:
        return bool(self.result)

    def __repr__(self) -> str:
        if self.result.unsolved:
            next_step = f"Fill in the stub in {self.path}, save it, and check again." if self.path else "Fill in the stub, run its cell, then this one again."
            return f"{self.result.exercise.id} is not written yet: {marks.points(0, self.result.exercise.points)}. {next_step}"
        return "\n".join([*marks.lines(self.result), *([IN_WORDS] if self.result else [])])

    def _repr_html_(self) -> str:
        lines = (f"<b>{line}</b>" if line.startswith(marks.USUALLY) else line for line in html.escape(repr(self)).split("\n"))
        return "<pre style='white-space: pre-wrap'>" + "\n".join(lines) + "</pre>"


def check(name: str, *, hidden: bool = False) -> Checked:
    """Run the tests of exercise `name` ("e04") on the cells that you ran, in a process of its own; stops at the first failure.

    With `hidden`, on the instructor's further cases too, where solutions/ is here. Never raises for a wrong answer.
    """
    exercise = find(name)
    if hidden:
        exercise = _hidden(exercise)
    made = [{"cell_type": "code", "source": source, "metadata": {}} for source in _ran(exercise)]
    result = marks.mark(exercise, cells.solutions(made, exercise.functions), stop=True)
    if result:
        progress.passed(exercise)
        _add_gpu(result, cells.solutions(made, exercise.functions))
    return Checked(result)


def check_file(name: str, path: Path | None = None) -> Checked:
    """The same for a notebook file: `path`, else your copy in work/, else the one in exercises/."""
    exercise = find(name)
    result = mark_notebook(exercise, path or progress.notebook_of(exercise), stop=True)
    if result:
        _add_gpu(result, cells.solutions(cells.read(path or progress.notebook_of(exercise)), exercise.functions))
        if path is None:
            progress.passed(exercise)
    return Checked(result, path or progress.notebook_of(exercise))


def _add_gpu(result: marks.Result, sources: dict[str, str]) -> None:
    """The same tests on this machine's GPU, if there is one and the exercise has kernels."""
    from flashlab import runtime

    if any(test.kernel for test in result.exercise.tests) and runtime.device() == "cuda":
        result.extra = marks.on_gpu(result.exercise, sources)


def mark_notebook(exercise: Exercise, path: Path, *, stop: bool = False) -> marks.Result:
    """Marks of a notebook file; a file that cannot be marked is a result with a problem, not an exception."""
    try:
        sources = cells.solutions(cells.read(path), exercise.functions)
        if not sources:
            raise error("no_solution_cell", given=path.name, needed=" or ".join(exercise.functions))
    except ValueError as problem:
        return marks.Result(exercise, problem=str(problem))
    return marks.mark(exercise, sources, stop=stop)


def _ran(exercise: Exercise) -> list[str]:
    """The sources of the cells run in this notebook that define a function of the exercise."""
    try:
        from IPython import get_ipython
    except ImportError:
        return []
    shell = get_ipython()
    inputs = shell.user_ns.get("In", []) if shell else []
    return [source for source in inputs if any(f"def {function}" in source for function in exercise.functions)]


def _hidden(exercise: Exercise) -> Exercise:
    from flashlab.copies import find_course

    return exercise.with_hidden(find_course() / "solutions")
