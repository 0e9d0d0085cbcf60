"""The class in one picture: how often each misconception was the first thing that went wrong."""

from __future__ import annotations

from collections import Counter

from flashlab.grading.spreadsheet import NO_ANSWER
from flashlab.looks import ALGORITHMS

# Kinds of faults that are ours to name; an exception of Python's has its own name.
KINDS = {
    "ProcessEnded": "the process ended by itself", "TimeLimit": "the time limit", "FileLimit": "too many files", "AnswerTooLarge": "too large an answer",
    "BrokenAnswer": "no readable answer", "Magic": "a magic", "NoFunction": "no such function", "NotAKernel": "not a kernel", "DoesNotCompile": "does not compile",
    "_ArrayMemoryError": "MemoryError",
}  # fmt: skip
LONGEST = 40  # of a name that a student may have chosen


def counts(records: list[dict]) -> list[tuple[str, int]]:
    """(misconception, or what stands for it where none was recognised; how many students), most frequent first."""
    seen = Counter(_label(record) for record in records if record["first_failure"])
    return sorted(seen.items(), key=lambda item: (-item[1], item[0]))


def sentence(records: list[dict]) -> str:
    """What the picture shows, in words."""
    found, right = counts(records), sum(not record["first_failure"] for record in records)
    start = f"{right} of {len(records)} submissions pass every test"
    return f"{start}; the most frequent first failure is “{found[0][0]}”, {'once' if found[0][1] == 1 else f'{found[0][1]} times'}." if found else f"{start}."


def draw(records: list[dict]):
    """A bar for each misconception."""
    from matplotlib.figure import Figure

    found = counts(records)[:20]
    figure = Figure(figsize=(8, 1.2 + 0.32 * max(1, len(found))), layout="constrained")
    axes = figure.subplots()
    axes.barh([name for name, _ in reversed(found)], [number for _, number in reversed(found)], color=ALGORITHMS["flash2"].colour)
    axes.set_xlabel("students whose first failure it is")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _label(record: dict) -> str:
    """The misconception; else the fault's kind, that there is no answer, or the test whose numbers are wrong in a way of their own."""
    first, kind = record["first_failure"], record.get("kind", "")
    if record["misconception"] or first in NO_ANSWER:
        return record["misconception"] or first
    if kind in KINDS:
        return KINDS[kind]
    if kind:
        return kind if kind.isascii() and kind.isidentifier() and len(kind) <= LONGEST else "an exception of their own"
    return f"{first}: not recognised"
