"""What lesson 01 shows of the counters on any machine: counted now where it can be, recorded otherwise, and said which of the two it was."""

from __future__ import annotations

from collections.abc import Sequence

from flashlab import runtime
from flashlab.bench.turn import turn
from flashlab.problem import AttentionProblem
from flashlab.traffic.counter_records import measure_or_recall_many
from flashlab.traffic.launches import Counted


def counted_or_recorded(problem: AttentionProblem, workloads: Sequence[str], pass_: str = "forward") -> list[Counted]:
    """What the GPU's counters say of each workload: counted now with ncu, or recorded. Prints which of the two, and why.

    Raises LookupError for what can be had neither way.
    """
    found = measure_or_recall_many([(workload, pass_, problem) for workload in workloads], turn=turn(runtime.device()))
    print(*dict.fromkeys(one.where.partition(". ")[0] for one in found), sep="\n")
    return found
