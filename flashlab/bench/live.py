"""Measured here where there is a GPU, else recorded: one call for a notebook's cell, which says which of the two it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashlab import runtime
from flashlab.bench import peers, records
from flashlab.bench.records import Record
from flashlab.bench.sweep import sweep
from flashlab.problem import AttentionProblem


def measured_or_recorded(problems: Iterable[AttentionProblem], pass_: str, names: Sequence[str], **options: object) -> list[Record]:
    """A record of each problem and peer: timed now on the GPU; recorded ones without a GPU, or where it stays taken.

    `options` are those of sweep(). Prints one line, "measured on …" or "recorded on …", and one for each cell that is missing.
    """
    problems = list(problems)
    if runtime.device() == "cpu":
        return _recorded(problems, pass_, names, "there is no GPU here")
    try:
        found = list(sweep(problems, pass_, peers.find(names), **options))
    except TimeoutError as busy:
        return _recorded(problems, pass_, names, str(busy).partition(". ")[0])
    for one in found:
        if not isinstance(one, Record):
            print(f"{one.kernel}, n {one.problem.n_q:,}: {one.why}")
    timed = [one for one in found if isinstance(one, Record)]
    print(f"measured on {timed[0].device}, {timed[0].date[:10]}" if timed else "nothing could be measured")
    return timed


def _recorded(problems: list[AttentionProblem], pass_: str, names: Sequence[str], why: str) -> list[Record]:
    wanted = {records.key_of(pass_, problem) for problem in problems}
    found = [one for one in records.latest(records.load()) if one.kernel in names and one.problem in wanted]
    where = ", ".join(f"{device}, {date}" for device, date in sorted({(one.device, one.date[:10]) for one in found}))
    old = sorted({one.kernel for one in found if records.stale(one)})
    print(f"recorded on {where or 'no machine yet'} ({why})" + (f"; stale, its code has changed since: {', '.join(old)}" if old else ""))
    return found
