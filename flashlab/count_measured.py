"""`flashlab count --measured`: the bytes that the GPU's counters saw, of a workload by name or of a function of yours.

    flashlab count --measured triton --n 4096 --head-dim 128
    flashlab count --measured mine.py:attention --causal
    flashlab count --measured --record

Without a GPU, ncu or permission it says which, and shows what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from flashlab import runtime
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records, model
from flashlab.traffic.counters import check, count_many
from flashlab.traffic.launches import Counted, Uncounted, name

COLUMNS = {
    "kernel": lambda one: one.kernel if len(one.kernel) <= LONGEST else one.kernel[: LONGEST - 1] + "…",
    "programs": lambda one: f"{one.grid[0] * one.grid[1] * one.grid[2]:,}",
    "threads": lambda one: str(one.threads),
    "registers": lambda one: str(one.registers),
    "SRAM": lambda one: f"{one.sram_bytes:,}",
    "occupancy": lambda one: f"{one.occupancy_percent:.0f} of {one.occupancy_limit_percent:.0f}%",
    "ms": lambda one: f"{one.time_ms:.3f}",
    "DRAM read": lambda one: f"{one.dram_bytes_read:,}",
    "DRAM written": lambda one: f"{one.dram_bytes_written:,}",
    "L2": lambda one: f"{one.l2_bytes:,}",
    "to SMs": lambda one: _number(one.sm_bytes_read),
    "from SMs": lambda one: _number(one.sm_bytes_written),
    "shared": lambda one: _number(one.shared_bytes),
    "tensor": lambda one: "-" if one.tensor_percent is None else f"{one.tensor_percent:.0f}%",
}
LONGEST = 32  # characters of a kernel's name


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def table(counted: Counted) -> str:
    """The sentence, what formulas, trace and L2 model say, and a row for each launch: bytes where no unit is named."""
    rows = [list(COLUMNS), *([make(one) for make in COLUMNS.values()] for one in counted.launches)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    return "\n".join([repr(counted), _formulas(counted), *_traced(counted), *(line.rstrip() for line in lines)])


def _formulas(counted: Counted) -> str:
    """The closed forms beside the counters: the papers count these bytes, the chip pays for DRAM's."""
    if counted.pass_ == "backward":
        return f"by formula: standard attention's backward moves {model.standard_backward_traffic(counted.problem).bytes_moved:,} bytes"
    least, most = (formula(counted.problem).bytes_moved for formula in (model.fused_traffic, model.standard_traffic))
    return f"by formula: q, k, v and o once are {least:,} bytes, standard attention moves {most:,}"


def _traced(counted: Counted) -> list[str]:
    """Of our own kernels also the closed form with their tiles, their trace, and what the L2 model makes of it: one line, or none."""
    from flashlab.bench.three_ways import row_of  # not at the top: it loads torch and Triton

    row = row_of(counted)
    if row.traced is None:
        return []
    dram = row.modelled_dram
    return [
        f"with its tiles: {row.predicted_bytes:,} bytes asked for by formula, {row.traced.moved:,} traced; by the L2 model of the trace"
        f" {dram.read:,} bytes read from DRAM and {dram.written:,} written"
    ]


def _turn() -> AbstractContextManager:
    """Have the GPU to yourself while counting: what others run beside it would be counted by nobody, but would slow it and share its L2."""
    from flashlab.bench.turn import turn  # not at the top: it loads torch

    return turn(runtime.device())


def problems(
    ns: Sequence[int], head_dims: Sequence[int], *, batch: int = 1, heads: int = 16, causal: bool = False, dtype: str = "bfloat16"
) -> list[AttentionProblem]:
    """One for each n and head_dim."""
    return [AttentionProblem(n, n, d, batch=batch, heads=heads, causal=causal, dtype=dtype) for n in ns for d in head_dims]


def report(workload: str, pass_: str, wanted: Sequence[AttentionProblem]) -> int:
    """Count here, or show what is recorded and say why; returns the exit status, 1 if a workload failed."""
    check(workload, pass_)
    try:
        with _turn():
            results = count_many([(workload, pass_, problem) for problem in wanted])
    except (RuntimeError, TimeoutError) as reason:
        return _recorded(workload, pass_, wanted, reason)
    print(*(table(one) if isinstance(one, Counted) else _told(one) for one in results), sep="\n\n")
    return int(any(isinstance(one, Uncounted) and one.failed for one in results))


def _recorded(workload: str, pass_: str, wanted: Sequence[AttentionProblem], reason: Exception) -> int:
    records = counter_records.load()
    found = [counter_records.recall(workload, problem, pass_, records=records) for problem in wanted]
    if not any(found):
        one = name(Uncounted(workload, pass_, wanted[0], ""))
        raise error("count_recorded", given=one, why=reason, allowed=counter_records.held(records)) from None
    print(reason, "Nothing was counted; these results were recorded before.", end="\n\n")
    missing = [_told(Uncounted(workload, pass_, problem, "not recorded")) for problem, one in zip(wanted, found) if one is None]
    print(*(table(one.counted) for one in found if one), *missing, sep="\n\n")
    return 0


def _told(one: Uncounted) -> str:
    return f"{name(one)}: {'failed' if one.failed else 'not counted'}: {one.why}"


def record(out: Path | None = None, budget_s: float | None = None, log: Path | None = None, *, what: str = "", anew: bool = False) -> int:
    """Count the whole grid, or lesson 09's "steps", into a file, for authors; returns the exit status, 1 if a workload failed.

    Raises LookupError for another `what`.
    """
    if what not in ("", "steps"):
        raise error("count_record", given=what)
    options = ({} if budget_s is None else {"budget_s": budget_s}) | ({"anew": True} if anew else {})
    if what:
        options["parts"] = counter_records.ladder()
    with _turn():
        path, added, missing = counter_records.record(out, log=log, told=lambda text: print(text, flush=True), **options)
    for why in dict.fromkeys((one.workload, one.pass_, one.why) for one in missing):
        cells = [one for one in missing if (one.workload, one.pass_, one.why) == why]
        print(f"{_told(cells[0])}" + (f" (and {len(cells) - 1} more)" if len(cells) > 1 else ""))
    print(f"{added} records were added to {path}" + (f"; {len(missing)} are missing: run it again{' without --anew' if anew else ''} to go on" if missing else ""))
    return int(any(one.failed for one in missing))
