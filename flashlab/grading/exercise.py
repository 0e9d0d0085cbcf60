"""What an exercise is: its tests in order, and for each the calls that it makes and how an answer is judged."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numpy as np

from flashlab.errors import error
from flashlab.traffic.trace import Trace

HIDDEN = "hidden.py"  # beside the solution: more cases, which no student has


@dataclass(frozen=True)
class Call:
    """One call of the student's function, all of it that enters the sandbox.

    `arrays` go in as keyword arguments; `served` stay with us as HBM and are reached tile by tile, so we count;
    `options` are plain keyword arguments (JSON). `returns` names what the function returns, `stores` which of the served
    arrays are answers too. For a Triton kernel `arrays` and `options` are its arguments by name, `grid` is the launch,
    `strides` (in elements) lays an array out otherwise than row by row, and `stores` names the arrays that it writes.
    Masked lanes of a load without other= hold NaN, or 0 if it is to be `filled`. On a GPU `cast` turns its floating-point arrays into "float16" or "bfloat16" (those named in `exact` stay as they are).
    `sram_bytes` is the budget of the tiles held, `memory_bytes` how much more than at its start
    the process may have at all: the kernel keeps that, whatever the code says.
    """

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    served: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    returns: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    sram_bytes: int | None = None
    memory_bytes: int | None = None
    grid: tuple[int, ...] = ()
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cast: str | None = None
    exact: tuple[str, ...] = ()
    filled: bool = False

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The arrays that hold numbers to work on, not room for answers."""
        return {name: array for name, array in {**self.served, **self.arrays}.items() if name not in self.stores}

    def __str__(self) -> str:
        arrays = [f"{name} {array.shape} {array.dtype}" for name, array in {**self.served, **self.arrays}.items()]
        return ", ".join(arrays + [f"{name}={value}" for name, value in self.options.items()])


@dataclass(frozen=True)
class Fault:
    """An exception in the student's lines (or the end of their process): all of it text from outside, to be escaped."""

    kind: str
    text: str
    line: int = 0
    source: str = ""

    def __str__(self) -> str:
        where = f" in line {self.line}: {self.source}" if self.line else ""
        return f"{self.kind}: {self.text}{where}" if self.text else f"{self.kind}{where}"


@dataclass(frozen=True)
class Answer:
    """What came back from one call: plain arrays by name, the trace where we counted, or a fault."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    trace: Trace | None = None
    fault: Fault | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Finding:
    """Why a test failed: what differs, and the misconception (a name of grading.misconceptions) it usually means.

    `kind` is the exception's, where the call ended with one: NameError, TimeLimit; or why there was no call.
    """

    what: str
    misconception: str | None = None
    hint: str = ""
    input: str = ""
    theirs: str = ""
    expected: str = ""
    kind: str = ""


Judge = Callable[[Call, Answer], "Finding | None"]


@dataclass(frozen=True)
class Test:
    """One named test: calls of `function` on each of `cases` (made into a Call by `call`), each judged by `judges` in turn.

    A case is whatever `call` takes, usually a dict of sizes with a seed. With `kernel`, `function` is a Triton kernel: its
    cell alone goes into a child with our launcher and tracer, and `call` gives its arguments, grid and strides; on a GPU
    check() makes the calls of `gpu_cases` too, judged by `gpu_judges`: an extra, never worth a point. `hints` says what an
    exception usually means here ({its kind: hint}), where marks.HINTS says it for every exercise.
    """

    name: str
    points: int
    function: str
    cases: tuple
    call: Callable[..., Call]
    judges: tuple[Judge, ...]
    kernel: bool = False
    gpu_cases: tuple = ()
    gpu_judges: tuple[Judge, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)

    __test__ = False  # pytest: not a test of ours

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The call of each case, made once for a whole class."""
        return tuple(map(self.call, self.cases))


@dataclass(frozen=True)
class Exercise:
    """`name` is the folder's and the notebook's; `tests` run in this order."""

    name: str
    title: str
    lesson: str
    tests: tuple[Test, ...]

    @property
    def id(self) -> str:
        """What a person types: e04."""
        return self.name.split("_")[0]

    @property
    def points(self) -> int:
        """Points of all tests; answers in words have theirs in the notebook."""
        return sum(test.points for test in self.tests)

    @property
    def functions(self) -> tuple[str, ...]:
        """What the student's cells define, in order."""
        return tuple(dict.fromkeys(test.function for test in self.tests))

    def with_hidden(self, solutions: Path) -> Exercise:
        """The exercise with the cases of `solutions`/<name>/hidden.py added; unchanged where there is no such file."""
        path = solutions / self.name / HIDDEN
        if not path.is_file():
            return self
        spec = importlib.util.spec_from_file_location(f"hidden_{self.name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return replace(self, tests=tuple(replace(test, cases=test.cases + tuple(module.CASES.get(test.name, ()))) for test in self.tests))


def names() -> list[str]:
    """Every exercise there is, in order."""
    from flashlab.grading import exercises

    return sorted(module.name for module in pkgutil.iter_modules(exercises.__path__) if module.name[0] == "e" and module.name[1:3].isdigit())


def find(name: str) -> Exercise:
    """The exercise called so: "e04", "04", "4" or its whole name. Raises LookupError that lists them."""
    known = names()
    number = f"e{name:0>2}" if str(name).isdecimal() else name
    chosen = [full for full in known if number in (full, full.split("_")[0])]
    if len(chosen) != 1:
        raise error("exercise", given=name, allowed=", ".join(full.split("_")[0] for full in known))
    return module_of(chosen[0]).EXERCISE


def module_of(name: str) -> ModuleType:
    """The module that defines the exercise of that whole name."""
    return importlib.import_module(f"flashlab.grading.exercises.{name}")
