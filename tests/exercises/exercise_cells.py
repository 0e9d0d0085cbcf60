"""The solution and the stub of an exercise as cells, and what every file of mutants asserts."""

from dataclasses import replace
from pathlib import Path

from flashlab.grading import cells, marks
from flashlab.grading.exercise import find
from flashlab.grading.runner import Limits

MANY = Limits(cpu_s=600, wall_s=600, memory_bytes=2 << 30)  # for a child that runs all mutants
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


class KernelMutants:
    """All mutants of an exercise's kernels in one cell, under names of their own, so that one child runs them all.

    Starting Triton takes seconds and a kernel a tenth of one. Each mutant is still marked by itself, by the exercise's own tests.
    """

    def __init__(self, name: str, mutants: dict[str, tuple[str, list[tuple[str, str]]]]) -> None:
        self.exercise, self.mutants, self.sessions = find(name), mutants, {}
        solution = solution_of(name)
        sources, self.names = [*solution.values()], {}
        for number, (misconception, (_, edits)) in enumerate(mutants.items()):
            changed = mutated(name, edits)
            self.names[misconception] = {}
            for function, source in changed.items():
                if source != solution[function]:
                    new = self.names[misconception][function] = f"{function}_{number}"
                    sources.append(source.replace(f"def {function}(", f"def {new}("))
        self.cell = "\n\n".join(sources)

    def mark(self, misconception: str) -> marks.Result:
        """The tests of the kernels that the mutant changes, up to the first that fails."""
        new = self.names[misconception]
        tests = tuple(replace(test, function=new[test.function]) for test in self.exercise.tests if test.function in new)
        exercise = replace(self.exercise, tests=tests)
        return marks.mark(exercise, dict.fromkeys(exercise.functions, self.cell), stop=True, limits=MANY, sessions=self.sessions)

    def assert_caught(self, misconception: str) -> None:
        """As the function assert_caught above; what follows a comma in the name only tells two mutants apart."""
        result, said = self.mark(misconception), misconception.split(",")[0]
        failure = result.first_failure
        assert failure is not None, f"{misconception}: the mutant passed"
        assert (failure.test.name, failure.finding.misconception) == (self.mutants[misconception][0], said), failure.finding
        assert f"what this difference usually means: {said}. " in "\n".join(marks.lines(result))

    def close(self) -> None:
        """End the children."""
        for session in self.sessions.values():
            session.__exit__()
