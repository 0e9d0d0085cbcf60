"""The same bytes counted three ways: predicted by a formula, traced from the kernel's own loops, measured by the GPU's counters.

    three_ways(problem)                a table, a row for each workload
    bytes_three_ways(problem)          the same as a figure

There are two numbers of bytes, and they are never mixed. **Asked for**: what passes between the multiprocessors and the L2,
which is what papers, formulas and traces count. **DRAM**: what of it passes between the L2 and the GPU's memory, which is
what the chip pays for. The L2 model (traffic/cache.py) leads from the trace to DRAM.

Predicted and traced are equal to the byte (a test). Torch's own kernels that fill or convert a tensor beside ours are in
none of these numbers. Does not handle: other people's kernels but for what was measured (their tiles are not known), and
head_dim over 128 in the backward, where dk and dv are two launches of one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flashlab import runtime
from flashlab.bench.derived import known_gpu
from flashlab.bench.dram import modelled, scheduled
from flashlab.bench.three_ways_table import ThreeWays
from flashlab.bench.tiles_taken import blocks, check_taken, tile_taken
from flashlab.bench.turn import turn
from flashlab.hardware import Gpu, this_gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic import model
from flashlab.traffic.counter_records import KERNELS, SIZES, CounterRecord, count_or_recall_many, launches_of, load, recall
from flashlab.traffic.counters import check
from flashlab.traffic.launches import Counted, Uncounted

WORKLOADS = ("unfused", "flash1", "triton")
# The kernels whose loops are traced, by workload and pass.
TRACED = {
    ("unfused", "forward"): KERNELS["unfused"],
    ("flash1", "forward"): KERNELS["flash1"],
    ("triton", "forward"): KERNELS["triton"][:1],
    ("triton", "backward"): KERNELS["triton"][1:],
}
NOT_MEASURED_ON = "H200"  # whose tiles and L2 stand in where nothing was measured


class Bytes(NamedTuple):
    """Bytes read and bytes written."""

    read: int
    written: int

    @property
    def moved(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Row:
    """One workload; None where there is no such number. `where` says where the measured ones are from, or why there are none."""

    workload: str
    predicted_bytes: int | None  # asked for, by the closed form
    traced: Bytes | None  # asked for, by the schedule
    measured_sm: Bytes | None  # asked for, by the counters: to the multiprocessors and from them
    modelled_dram: Bytes | None  # DRAM, by the L2 model of the trace
    measured_dram: Bytes | None  # DRAM, by the counters
    time_ms: float | None  # of the launches counted, each with an empty L2
    device: str  # whose tiles and L2 are those of the traced and the modelled ones
    gpu: Gpu | None  # its line in hardware.py
    where: str
    left_out: int = 0  # launches of torch's own


def three_ways(problem: AttentionProblem, workloads: str | Sequence[str] = WORKLOADS, pass_: str = "forward", *, count: bool = True) -> ThreeWays:
    """A row for each workload, or the one named: counted here with ncu, or as it was recorded (`count=False`: recorded ones only).

    Raises LookupError for a workload or a pass that there is not, ValueError for a problem that one of our kernels does not take.
    """
    requests, records = [(workload, pass_, problem) for workload in ([workloads] if isinstance(workloads, str) else workloads)], load()
    for workload, *_ in requests:
        check(workload, pass_)
        if (workload, pass_) in TRACED:  # before anything is counted
            check_taken(problem)
    results = count_or_recall_many(requests, turn=turn(runtime.device())) if count else [_recorded(*request, records) for request in requests]
    return ThreeWays((row_of(one, records) for one in results), problem, pass_)


def bytes_three_ways(problem: AttentionProblem, workloads: str | Sequence[str] = WORKLOADS, pass_: str = "forward"):
    """three_ways() as a matplotlib Figure. Where you have the table already: table.figure()."""
    return three_ways(problem, workloads, pass_).figure()


def _recorded(workload: str, pass_: str, problem: AttentionProblem, records: list[CounterRecord]) -> Counted | Uncounted:
    found = recall(workload, problem, pass_, records=records)
    return found.counted if found else Uncounted(workload, pass_, problem, "not recorded")


def row_of(one: Counted | Uncounted, records: list[CounterRecord] | None = None) -> Row:
    """What is predicted, traced and modelled of a workload, with the tiles and the L2 of the GPU that counted it.

    `records` are those among which a recorded one is looked for; all of them, by default.
    """
    device, gpu = _gpu_of(one, load() if records is None else records)
    kernels = TRACED.get((one.workload, one.pass_))
    counted = [launch for launch in getattr(one, "launches", ()) if kernels is None or launch.kernel in kernels]
    traces = [scheduled(kernel, one.problem, gpu) for kernel in kernels or ()] if gpu else []
    known = bool(traces) and all(traces) and len(counted) in (0, len(traces))
    flat = launches_of(one, device) if counted else [_not_counted(one, kernel) for kernel in kernels or ()]
    drams = [modelled(launch, gpu=gpu) for launch in flat] if known else []
    formula = predicted(one.workload, one.pass_, one.problem, gpu) if known or one.workload == "standard" else None
    return Row(
        one.workload,
        formula and formula.bytes_moved,
        Bytes(sum(t.bytes_loaded for t in traces), sum(t.bytes_stored for t in traces)) if known else None,
        _sum(counted, "sm_bytes_read", "sm_bytes_written"),
        _sum(drams, "dram_bytes_read", "dram_bytes_written"),
        _sum(counted, "dram_bytes_read", "dram_bytes_written"),
        sum(launch.time_ms for launch in counted) if counted else None,
        device,
        gpu,
        f"measured: {one.where}" if isinstance(one, Counted) else f"not measured: {one.why}",
        len(getattr(one, "launches", counted)) - len(counted),
    )


def _gpu_of(one: Counted | Uncounted, records: list[CounterRecord]) -> tuple[str, Gpu | None]:
    """The device that counted, and its line in hardware.py; the latter is None for a recorded one that is not in the table."""
    record = recall(one.workload, one.problem, one.pass_, records=records)
    if isinstance(one, Counted) and record and record.counted.launches == one.launches:
        return record.device, known_gpu(record.device)
    here = runtime.gpu_found() if runtime.device() == "cuda" else None
    return (here.name, this_gpu()) if here else (NOT_MEASURED_ON, known_gpu(NOT_MEASURED_ON))


def _not_counted(one: Uncounted, kernel: str) -> dict:
    return {"kernel": kernel, "n": one.problem.n_q} | {size: getattr(one.problem, size) for size in SIZES}


def _sum(parts: list, read: str, written: str) -> Bytes | None:
    """None where there are no parts, or one lacks the number."""
    values = [(getattr(part, read), getattr(part, written)) for part in parts]
    return None if not values or None in sum(values, ()) else Bytes(*map(sum, zip(*values)))


def predicted(workload: str, pass_: str, problem: AttentionProblem, gpu: Gpu | None) -> model.Traffic:
    """The closed form of one of our workloads, with the tiles it takes on this GPU; of "standard" without tiles, so without a GPU."""
    if workload == "standard":
        return (model.standard_traffic if pass_ == "forward" else model.standard_backward_traffic)(problem)
    if workload == "unfused":  # its third kernel takes as many queries at once as its first
        return model.unfused_traffic(problem, **blocks(tile_taken("scores_kernel", problem, gpu)))
    if workload == "flash1":
        return model.flash1_traffic(problem, **blocks(tile_taken("flash1_kernel", problem, gpu)), float32_o=True)
    if pass_ == "forward":
        return model.flash2_traffic(problem, **blocks(tile_taken("forward_kernel", problem, gpu)))
    keys, queries = (tile_taken(kernel, problem, gpu) for kernel in ("keys_kernel", "queries_kernel"))
    return model.backward_traffic(problem, **blocks(keys), queries_tile=(queries.block_q, queries.block_k))
