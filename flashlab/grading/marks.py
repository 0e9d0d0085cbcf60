"""Marks one submission: every test in its order, its points all or none; `check` stops at the first that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from flashlab.grading import kernel_rules
from flashlab.grading.cells import fault
from flashlab.grading.exercise import Answer, Call, Exercise, Fault, Finding, Judge, Test
from flashlab.grading.judge import input_of, meaning
from flashlab.grading.runner import Limits, Session

# What an exception usually means, where the misconception's name says less: exceptions are a student's most common failure.
HINTS = {
    "NotImplementedError": "This is the stub. Write your code in its place.",
    "NameError": "Only your solution cell runs here, with np, math and tiles. Define what you use inside it.",
    "ModuleNotFoundError": "The grader has NumPy and nothing else. Write the steps yourself, with np.",
    "ImportError": "The grader has NumPy and nothing else. Write the steps yourself, with np.",
    "TimeLimit": "A loop does not end, or each number is visited by itself. Work on whole tiles with NumPy.",
    "MemoryError": "More was held than fits. Take tiles of the block sizes that are passed, and keep nothing that grows with n.",
    "ZeroDivisionError": "What is divided by is 0 for this input. Where a formula has a limit, decide what holds at the limit itself, before you divide.",
    "IndexError": "Cut the last tile to what is left, as tiles(n, block) does.",
}


SRAM_ADVICE = " Use smaller tiles (block_q, block_k) or a larger sram_bytes."  # the library's: in an exercise both are given
PRINTED = "Memory is limited here, and a text to print takes it too. Print less: a few numbers, or a shape."
MISFIT = "Two tiles have shapes that do not fit. tl.max and tl.sum take away the axis that they go along: which axis is left, and does it go down, [:, None], or across, [None, :]?"
USUALLY = "  what this difference usually means"  # how the line begins that matters most


@dataclass(frozen=True)
class Outcome:
    """One test's end: passed, or the finding; `ran` is False where an earlier end of the process left no time for it."""

    test: Test
    finding: Finding | None = None
    ran: bool = True

    @property
    def passed(self) -> bool:
        return self.ran and self.finding is None

    @property
    def points(self) -> int:
        return self.test.points if self.passed else 0


@dataclass
class Result:
    """What one submission got. True in a condition if every test passed."""

    exercise: Exercise
    outcomes: list[Outcome] = field(default_factory=list)
    printed: str = ""
    problem: str = ""  # why nothing could be run at all
    sandboxed: bool = True
    extra: list[Outcome] = field(default_factory=list)  # on the reader's GPU

    @property
    def points(self) -> int:
        return sum(outcome.points for outcome in self.outcomes)

    @property
    def first_failure(self) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if not outcome.passed), None)

    @property
    def unsolved(self) -> bool:
        """Whether nothing has passed, and the first thing that went wrong is that the stub still stands."""
        first = self.first_failure
        return bool(not self.points and first and first.finding and first.finding.what.startswith("NotImplementedError"))

    def __bool__(self) -> bool:
        return not self.problem and len(self.outcomes) == len(self.exercise.tests) and all(outcome.passed for outcome in self.outcomes)


def mark(exercise: Exercise, cells: dict[str, str], *, stop: bool = False, limits: Limits | None = None, sessions: dict | None = None) -> Result:
    """Run the tests on `cells` ({function: source}). With `stop` the first failure is the last test that runs.

    `sessions` keeps the children for the next call with the same cells; who passes it ends them.
    """
    from flashlab.grading import sandbox

    result = Result(exercise, sandboxed=sandbox.works())
    faults = {function: fault(source) for function, source in cells.items()}
    sources = list(dict.fromkeys(source for function, source in cells.items() if not faults[function]))
    shared, sessions = sessions is not None, {} if sessions is None else sessions
    try:
        for test in exercise.tests:
            outcome = _unreadable(test, faults) or _outcome(test, cells, sources, sessions, limits)
            result.outcomes.append(outcome)
            if stop and not outcome.passed:
                break
    finally:
        for session in () if shared else sessions.values():
            result.printed += session.printed.decode("utf-8", "replace")
            session.__exit__()
    return result


def on_gpu(exercise: Exercise, cells: dict[str, str]) -> list[Outcome]:
    """The extra on the reader's own machine: the gpu_cases of each kernel test, in a bare child; worth no points."""
    outcomes = []
    for test in exercise.tests:
        source = cells.get(test.function, "")
        if not test.kernel or not test.gpu_cases or kernel_rules.broken_rule(source):
            continue
        with Session([kernel_rules.kernels_of(source)], module="gpu_child") as session:
            finding = next(filter(None, (_on_gpu(test, test.call(case), session) for case in test.gpu_cases)), None)
        outcomes.append(Outcome(test, finding))
    return outcomes


def _on_gpu(test: Test, call: Call, session: Session) -> Finding | None:
    answer = session.call(test.function, call)
    if answer.fault:
        return of_fault(answer.fault, call, test.hints)
    return next(filter(None, (judge(call, answer) for judge in test.gpu_judges or test.judges)), None)


def _unreadable(test: Test, faults: dict[str, str]) -> Outcome | None:
    why = faults.get(test.function)
    return Outcome(test, Finding(f"the cell of {test.function} cannot be run: {why}", kind="Magic" if "is the magic" in why else "SyntaxError")) if why else None


def _outcome(test: Test, cells: dict, sources: list[str], sessions: dict, limits: Limits | None) -> Outcome:
    if test.function not in cells:
        return Outcome(test, Finding(f"no cell defines {test.function}", hint=f"Put def {test.function}(...) back into its cell.", kind="NoFunction"))
    for call in test.calls:
        finding = _finding(test, call, sources, cells, sessions, limits)
        if finding:
            return Outcome(test, finding)
    return Outcome(test)


def _finding(test: Test, call: Call, sources: list[str], cells: dict, sessions: dict, limits: Limits | None) -> Finding | None:
    if test.kernel:
        answer = _run_kernel(test, call, cells[test.function], sessions, limits)
    else:
        session = sessions.setdefault(call.memory_bytes, Session(sources, limits, call.memory_bytes))
        answer = session.call(test.function, call)
    if answer.fault:
        return of_fault(answer.fault, call, test.hints)
    for judge in test.judges:
        finding = judge(call, answer)
        if finding:
            return _if_filled(finding, judge, test, call, cells[test.function], sessions, limits) if test.kernel else finding
    return None


def _if_filled(finding: Finding, judge: Judge, test: Test, call: Call, source: str, sessions: dict, limits: Limits | None) -> Finding:
    """The finding; where a load has a mask and no other=, what is found with 0 in the masked lanes, so that it alone is named where it alone is wrong."""
    if not kernel_rules.loads_without_other(source):
        return finding
    answer = _run_kernel(test, replace(call, filled=True), source, sessions, limits)
    if answer.fault:
        return finding
    still = judge(call, answer)
    if still and (still.misconception != "padded keys not masked" or still.what == finding.what):
        return still
    return replace(finding, misconception="masked load without other")


def _run_kernel(test: Test, call: Call, source: str, sessions: dict, limits: Limits | None) -> Answer:
    """One launch of a kernel, if its cell keeps the rules; its first launch that goes well is followed by compiling it."""
    if kernel_rules.is_stub(source, test.function):
        return Answer(fault=Fault("NotImplementedError", ""))
    rule = kernel_rules.broken_rule(source)
    if rule:
        return Answer(fault=Fault("NotAKernel", f"{rule}. The grader takes kernels only"))
    source = kernel_rules.kernels_of(source)
    key = ("kernel", source)
    answer = sessions.setdefault(key, Session([source], limits, module="kernel_child")).call(test.function, call)
    compiler = sessions.setdefault(("compile", source), Session([source], limits, module="compile_child"))
    compiled = (test.function, test.name)  # each test's first call: its constexprs may reach lines that no other test does
    if answer.fault or compiled in compiler.done:
        return answer
    compiler.done.add(compiled)
    fault = compiler.call(test.function, call).fault
    return Answer(fault=Fault("DoesNotCompile", f"it runs in the interpreter, but Triton cannot compile it for a GPU: {fault}")) if fault else answer


def of_fault(fault: Fault, call: Call, hints: Mapping[str, str] | None = None) -> Finding:
    """The finding for an exception: too much memory where a call limits it is the n × n array, unless a line that prints asked for it."""
    fault = replace(fault, text=fault.text.replace(SRAM_ADVICE, ""))
    too_large = fault.kind == "MemoryError" or fault.kind.endswith("ArrayMemoryError")
    if too_large and "print(" in fault.source:
        return Finding(str(fault), hint=PRINTED, input=input_of(call), kind=fault.kind)
    name = "full n×n matrix built" if too_large and call.memory_bytes and "SRAM" not in fault.text else None
    if fault.kind == "IndexError" and call.grid and "lanes that no mask switches off" in fault.text:
        name = "stride assumed contiguous" if _between_rows(fault.text, call) else None if _whole_tile(fault.text) else "out-of-bounds load" if "would read" in fault.text else "out-of-bounds store"
        if not name:
            return Finding(str(fault), hint="No mask is missing: all of this tile lies outside. Its start is wrong: which head, which stride, which tile?", input=input_of(call), kind=fault.kind)
    hint = MISFIT if call.grid and "incompatible dimensions" in fault.text else (HINTS | dict(hints or {})).get(fault.kind, "")
    return Finding(str(fault), name, hint, input=input_of(call), kind=fault.kind)


def _between_rows(text: str, call: Call) -> bool:
    """Whether the address that the tracer names lies within the tensor's reach, in a gap that its strides leave."""
    found = re.search(r"would (?:read|write|change) (\S+) at element offset (-?[\d,]+)", text)
    name = found and next((name for name in call.strides if name == found[1] or name.startswith(f"{found[1]}_")), None)
    if not name:
        return False
    reach = sum((size - 1) * stride for size, stride in zip(call.arrays[name].shape, call.strides[name]))
    return 0 <= int(found[2].replace(",", "")) <= reach


def _whole_tile(text: str) -> bool:
    """Whether the tracer says that every lane of a tile is outside: then no mask would help."""
    found = re.search(r"; ([\d,]+) of the ([\d,]+) lanes", text)
    return bool(found) and found[1] == found[2]


def points(got: float, possible: float) -> str:
    """Points as a person says them: 0 of 1 point, 2 of 10 points."""
    return f"{got} of {possible} point{'' if possible == 1 else 's'}"


def lines(result: Result) -> Iterator[str]:
    """The result as `flashlab check` and check() print it."""
    if result.problem:
        yield f"{result.exercise.id}: {result.problem}"
        return
    for outcome in result.outcomes:
        sign, said = ("✓", "passed") if outcome.passed else ("✗", "failed")
        yield f"{sign} {outcome.test.name:14} {said}   {points(outcome.points, outcome.test.points)}"
        if outcome.finding:
            yield from _explained(outcome.finding)
    for outcome in result.extra:
        yield f"{'✓' if outcome.passed else '✗'} {outcome.test.name} on the GPU: an extra, worth no points"
        if outcome.finding:
            yield from _explained(outcome.finding)
    left = len(result.exercise.tests) - len(result.outcomes)
    if left:
        yield f"  {left} more test{'s' * (left > 1)} after that one."
    yield points(result.points, result.exercise.points) + ("" if result.sandboxed else " (not sandboxed: bwrap does not work here)")


def _explained(finding: Finding) -> Iterator[str]:
    yield f"  {finding.what}"
    if meaning(finding):
        yield ""
        yield f"{USUALLY}: {finding.misconception + '. ' if finding.misconception else ''}{meaning(finding)}"
        yield ""
    for title, text in (("yours", finding.theirs), ("expected", finding.expected), ("input", finding.input)):
        if text:
            yield f"  {title}:"
            yield from (f"    {line}" for line in text.splitlines())
