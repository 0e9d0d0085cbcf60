"""The class in one picture: how often each misconception was the first thing that went wrong."""

from __future__ import annotations

from collections import Counter

from flashlab.looks import ALGORITHMS

NO_ANSWER = ("not written", "no solution")  # what grade.py calls a stub and a notebook without a solution cell


def counts(records: list[dict]) -> list[tuple[str, int]]:
    """(misconception, or the test where none was recognised; how many students), most frequent first."""
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
    """The misconception; where none was recognised the test that failed; or that there is no answer."""
    first = record["first_failure"]
    return record["misconception"] or (first if first in NO_ANSWER else f"{first}: not recognised")
