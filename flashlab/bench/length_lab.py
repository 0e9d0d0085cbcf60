"""What lab 1's cells call: time the grid row by row, show what was recorded, put both beside a prediction.

Without a GPU the CPU's own flash and math are timed, at sizes of their own, and what a GPU recorded stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashlab import runtime
from flashlab.bench import peers
from flashlab.bench.lengths import (
    BUDGET_MS, CPU_BUDGET_MS, CPU_HEADS, FLASH, MATH, NAMES, OURS, Run, cpu_problems, decode_problems, on_grid, problems, recorded, sizes, too_large,
)  # fmt: skip
from flashlab.bench.records import Record, stale
from flashlab.bench.report import STALE
from flashlab.bench.sweep import Missing, sweep
from flashlab.bench.timing import WIDE, spread


def measured() -> Run:
    """Time the grid here, printing a row as each problem is done; where the GPU stays taken, what was recorded."""
    on_cpu = runtime.device() == "cpu"
    todo, names = (cpu_problems(), NAMES[:2]) if on_cpu else ([*problems(), *decode_problems()], NAMES)
    if on_cpu:
        print(f"CPU, float32, {CPU_HEADS} heads, smaller sizes; our Triton kernel is not timed here: the interpreter's time says nothing of a GPU.")
    try:
        cells = _followed(sweep(todo, "forward", peers.find(names), budget_ms=CPU_BUDGET_MS if on_cpu else BUDGET_MS), len(names))
    except TimeoutError as busy:
        print(busy)
        instead = recorded()
        if instead:
            print(table(instead))
        return instead or Run("recorded", "no machine yet", ())
    timed = [one for one in cells if isinstance(one, Record)]
    return Run("measured", timed[0].device if timed else "no machine", tuple(cells))


def with_recorded(here: Run) -> list[Run]:
    """`here`, and beside a CPU's run the recorded one of a GPU, whose table is printed; without those in which nothing was timed."""
    beside = recorded() if here.device.startswith("CPU") else None
    if beside:
        print(table(beside))
    return [run for run in (here, beside) if run and any(isinstance(one, Record) for one in run.cells)]


def side_by_side(runs: Iterable[Run], n: int | None, batch: int = 1, **which: object) -> dict[str, float | str]:
    """{"measured on …": speed-up} of each run, for a prediction's reveal(); a word where there is none. `n` None: the single query.

    Raises LookupError for a kernel that is none of lengths.NAMES.
    """
    found: dict[str, float | str] = {}
    for run in runs:
        keys, queries = n or run.decoded() or 0, None if n else 1
        value = run.speedup(keys, batch, queries=queries, **which)
        names = (which.get("kernel", FLASH), which.get("over", MATH))
        fits = not any(too_large(run.cell(name, keys, batch, queries=queries)) for name in names)
        found[f"{run.how} on {run.device}" + ("" if n or not keys else f", {keys:,} keys")] = value or ("not timed" if fits else "does not fit")
    return found


# -- tables ---------------------------------------------------------------------------------------------------------------
HEADINGS = ("batch", "n", "math ms", "flash ms", "flashlab ms", "flash/math", "flashlab/math", "math extra GB", "flash extra MB")
NOISY = f"! noisy: p20 to p80 is more than {WIDE:.0%} of the median; other work on this machine shows so."


def table(run: Run) -> str:
    """Every problem a row: three times, two ratios (above 1: faster than math), and the memory at the peak beyond inputs and result."""
    groups: dict[tuple, list[Record | Missing]] = {}
    for one in run.cells:
        groups.setdefault(sizes(one), []).append(one)
    return "\n".join([run.title, _line(HEADINGS), *map(_row, groups.values()), *_notes(run.cells)])


def report(found: Iterable[Record]) -> str:
    """The tables of all devices that recorded this grid."""
    found = list(found)
    runs = [recorded(found, device) for device in dict.fromkeys(one.device for one in on_grid(found))]
    return "\n\n".join(map(table, runs)) or "lengths: nothing recorded."


def _followed(results: Iterable[Record | Missing], width: int) -> list[Record | Missing]:
    """All of `results`, a row printed after each `width` of them."""
    print(_line(HEADINGS))
    cells: list[Record | Missing] = []
    for number, one in enumerate(results, 1):
        cells.append(one)
        if number % width == 0:
            print(_row(cells[-width:]), flush=True)
    print(*_notes(cells), sep="\n", end="\n" if _notes(cells) else "")
    return cells


def _row(cells: Sequence[Record | Missing]) -> str:
    batch, queries, keys = sizes(cells[0])
    run = Run("", "", tuple(cells))
    by_name = [next((one for one in cells if one.kernel == name), None) for name in NAMES]
    ratios = [run.speedup(keys, batch, kernel=name, queries=queries) for name in (FLASH, OURS)]
    memory = [one.extra_bytes if isinstance(one, Record) else None for one in by_name[:2]]
    times = map(_time, by_name)
    numbers = [("-" if ratio is None else f"{ratio:.{1 if ratio >= 0.95 else 2}f} ×") for ratio in ratios]
    sizes_ = [("-" if size is None else f"{size / unit:,.3f}") for size, unit in zip(memory, (1e9, 1e6))]
    return _line((str(batch), f"{keys:,}" if queries == keys else f"{queries} to {keys:,}", *times, *numbers, *sizes_))


def _time(one: Record | Missing | None) -> str:
    if not isinstance(one, Record):
        return "no room" if too_large(one) else "-"
    return f"{one.time_ms:,.3f}{'*' * stale(one)}{'!' * _noisy(one)}"


def _line(texts: Sequence[str]) -> str:
    return "  ".join(text.rjust(max(len(heading), 11) if i else 5) for i, (text, heading) in enumerate(zip(texts, HEADINGS)))


def _notes(cells: Iterable[Record | Missing]) -> list[str]:
    """Under a table: why cells are missing, and which are stale."""
    cells = list(cells)
    whys: dict[tuple[str, str], list[str]] = {}
    for one in cells:
        if isinstance(one, Missing):
            batch, _, keys = sizes(one)
            whys.setdefault((one.kernel, one.why), []).append(f"batch {batch}, n {keys:,}")
    notes = [f"{kernel}: {'; '.join(places[:3])}{f' and {len(places) - 3} more' if len(places) > 3 else ''}: {why}" for (kernel, why), places in whys.items()]
    timed = [one for one in cells if isinstance(one, Record)]
    return notes + [STALE] * any(map(stale, timed)) + [NOISY] * any(map(_noisy, timed))


def _noisy(one: Record) -> bool:
    return spread(one.time_ms, one.p20_ms, one.p80_ms) > WIDE
