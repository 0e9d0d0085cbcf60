"""Measured here where there is a GPU, else recorded: one call for a notebook's cell, which says which of the two it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashlab import runtime
from flashlab.bench import peers, records
from flashlab.bench.records import Record
from flashlab.bench.sweep import sweep
from flashlab.bench.turn import turn
from flashlab.problem import AttentionProblem
from flashlab.traffic.counter_records import measure_or_recall_many
from flashlab.traffic.launches import Counted


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


def counted_or_recorded(problem: AttentionProblem, workloads: Sequence[str], pass_: str = "forward") -> list[Counted]:
    """What the GPU's counters say of each workload: counted now with ncu, or recorded. Prints which of the two, and why.

    Raises LookupError for what can be had neither way.
    """
    found = measure_or_recall_many([(workload, pass_, problem) for workload in workloads], turn=turn(runtime.device()))
    print(*dict.fromkeys(one.where.partition(". ")[0] for one in found), sep="\n")
    return found
