"""The solution and the stub of an exercise as cells, and what every file of mutants asserts."""

from pathlib import Path

from flashlab.grading import cells, marks
from flashlab.grading.exercise import find

ROOT = Path(__file__).parents[2]


def notebook_of(name: str, folder: str = "solutions") -> Path:
    """The notebook of an exercise in solutions/ or exercises/."""
    full = find(name).name
    return ROOT / folder / full / f"{full}.ipynb"


def solution_of(name: str) -> dict[str, str]:
    """{function: source} of the solution."""
    return cells.solutions(cells.read(notebook_of(name)), find(name).functions)


def stub_of(name: str) -> dict[str, str]:
    """{function: source} as a student gets them."""
    return cells.solutions(cells.read(notebook_of(name, "exercises")), find(name).functions)


def mutated(name: str, edits: list[tuple[str, str]]) -> dict[str, str]:
    """The solution with text replaced; each text must be there, so that a mutant cannot fade away unseen."""
    sources = solution_of(name)
    for old, new in edits:
        changed = {function: source.replace(old, new) for function, source in sources.items()}
        assert changed != sources, f"no cell of {name} contains {old!r}"
        sources = changed
    return sources


def assert_caught(name: str, misconception: str, test: str, edits: list[tuple[str, str]]) -> None:
    """The mutant fails first at `test`, and the finding names the misconception; what is printed says so."""
    result = marks.mark(find(name), mutated(name, edits), stop=True)
    failure = result.first_failure
    assert failure is not None, f"{misconception}: the mutant passed"
    assert (failure.test.name, failure.finding.misconception) == (test, misconception), failure.finding
    assert f"what this difference usually means: {misconception}. " in "\n".join(marks.lines(result))
