"""Lab 1's grid: SDPA math, SDPA flash and our kernel against the length n, batch 1, 4 and 16, and with a single query.

Sixteen heads of 64, as in GPT-2 medium, bfloat16, no mask: all three do the same FLOPs, so what differs is how they move
and keep numbers. (With a causal mask flash and ours skip half of the work, and math does not.) No problem is one of the
papers' grid or of the growing sequence (records.py), so none of their tables reads these records.

Without a GPU the CPU's own flash and math are timed, in float32 and at smaller sizes, beside what a GPU recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashlab import runtime
from flashlab.bench import peers, records
from flashlab.bench.derived import known_gpu
from flashlab.bench.records import Record, key_of, stale
from flashlab.bench.report import STALE
from flashlab.bench.sweep import LENGTHS, Missing, sweep
from flashlab.bench.timing import WIDE, spread
from flashlab.problem import AttentionProblem

MATH, FLASH, OURS = NAMES = ("sdpa-math", "sdpa-flash", "triton")
BATCHES, HEADS, HEAD_DIM = (1, 4, 16), 16, 64
CACHED_KEYS = 16384  # what a single query meets
CPU_HEADS, CPU_CACHED_KEYS, CPU_MOST_SCORES = 2, 2048, 4096**2  # the last: of one head, all of a batch together
BUDGET_MS, CPU_BUDGET_MS = 30, 100  # a cell; by estimate the whole grid is about a minute of an H200
COMMAND = "flashlab bench lengths"

# What SDPA math held at its peak beyond inputs and result, within 0.02 % in every bfloat16 cell without a mask recorded on an
# H200 (torch 2.11): nine bytes a score, fourteen an element of q; it computes in float32. Flash and ours: one float32 a row, lse.
MATH_BYTES_A_SCORE, MATH_BYTES_AN_ELEMENT, LSE_BYTES = 9, 14, 4


# -- the grid -------------------------------------------------------------------------------------------------------------
def problems(batches: Sequence[int] = BATCHES, ns: Iterable[int] = LENGTHS) -> list[AttentionProblem]:
    """The GPU's problems, batch by batch.

    >>> len(problems()), problems()[-1].batch, problems()[-1].n_q
    (18, 16, 16384)
    """
    return [AttentionProblem(n, n, HEAD_DIM, batch=batch, heads=HEADS, dtype="bfloat16") for batch in batches for n in tuple(ns)]


def decode_problems(batches: Sequence[int] = BATCHES) -> list[AttentionProblem]:
    """One query against a long cache of keys, as in decoding."""
    return [one.with_(n_q=1) for one in problems(batches, (CACHED_KEYS,))]


def cpu_problems() -> list[AttentionProblem]:
    """What a CPU does within seconds: the lengths whose scores are few enough, and one query; float32."""
    few = [one for one in problems() if one.batch * one.n_q * one.n_k <= CPU_MOST_SCORES]
    query = decode_problems((1,))[0].with_(n_k=CPU_CACHED_KEYS)
    return [one.with_(heads=CPU_HEADS, dtype="float32") for one in [*few, query]]


def extra_by_formula(kernel: str, p: AttentionProblem) -> int:
    """Bytes beyond inputs and result on a GPU, by the constants above; the linear part of math for n_q = n_k.

    >>> extra_by_formula("sdpa-flash", problems()[0]), extra_by_formula("sdpa-math", problems()[0])
    (32768, 45088768)
    """
    rows = p.batch * p.heads * p.n_q
    return LSE_BYTES * rows if kernel != MATH else MATH_BYTES_A_SCORE * rows * p.n_k + MATH_BYTES_AN_ELEMENT * rows * p.head_dim


# -- a run ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """The cells of one device, each timed or missing with its reason, and how they came here: "measured" or "recorded"."""

    how: str
    device: str
    cells: tuple[Record | Missing, ...]

    @property
    def title(self) -> str:
        """For a heading: how, where and when."""
        dates = sorted({one.date[:10] for one in self.cells if isinstance(one, Record)})
        return f"{self.how} on {self.device}, {' and '.join(dates) or 'nothing timed'}"

    def cell(self, kernel: str, n: int, batch: int, *, queries: int | None = None) -> Record | Missing | None:
        """One cell; `queries` is n where not given. None where it was not asked for."""
        wanted = (kernel, batch, queries or n, n)
        return next((one for one in self.cells if (one.kernel, *sizes(one)) == wanted), None)

    def speedup(self, n: int, batch: int = 1, *, kernel: str = FLASH, over: str = MATH, queries: int | None = None) -> float | None:
        """How many times as fast `kernel` is as `over`, of one run; None where one of them is missing."""
        one, other = (self.cell(name, n, batch, queries=queries) for name in (kernel, over))
        both = isinstance(one, Record) and isinstance(other, Record) and one.date == other.date
        return other.time_ms / one.time_ms if both else None

    def lengths(self, batch: int) -> list[int]:
        """The lengths asked for with this batch, in order."""
        return sorted({keys for found, queries, keys in map(sizes, self.cells) if found == batch and queries == keys})

    def decoded(self) -> int | None:
        """How many keys a single query met; None where there is none."""
        return next((keys for _, queries, keys in map(sizes, self.cells) if queries == 1), None)


def sizes(one: Record | Missing) -> tuple[int, int, int]:
    """(batch, n_q, n_k) of a cell."""
    asked = one.problem if isinstance(one, Missing) else one
    return asked.batch, asked.n_q, asked.n_k


def too_large(one: Record | Missing | None) -> bool:
    """Whether a cell is missing because memory did not suffice."""
    return isinstance(one, Missing) and "out of memory" in one.why


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
        return recorded() or Run("recorded", "no machine yet", ())
    timed = [one for one in cells if isinstance(one, Record)]
    return Run("measured", timed[0].device if timed else "no machine", tuple(cells))


def recorded(found: Iterable[Record] | None = None, device: str | None = None) -> Run | None:
    """The newest records of the grid, of `device` or of the one recorded last; None, and a line that says so, where there are none."""
    asked = [*problems(), *decode_problems()]
    wanted = {key_of("forward", p) for p in asked}
    mine = [one for one in (records.load() if found is None else found) if one.problem in wanted and one.kernel in NAMES]
    mine = [one for one in mine if device in (None, one.device)]
    if not mine:
        print(f"This grid has not been recorded on a GPU yet: `{COMMAND}` on a CUDA GPU does it.")
        return None
    device = max(mine, key=lambda one: one.date).device
    kept = {(one.kernel, one.problem): one for one in records.latest(mine) if one.device == device}
    cells = (kept.get((kernel, key_of("forward", p))) or _absent(kernel, p, device) for p in asked for kernel in NAMES)
    return Run("recorded", device, tuple(cells))


def with_recorded(here: Run) -> list[Run]:
    """`here`, and beside a CPU's run the recorded one of a GPU, whose table is printed."""
    beside = recorded() if here.device.startswith("CPU") else None
    if beside:
        print(table(beside))
    return [run for run in (here, beside) if run]


def side_by_side(runs: Iterable[Run], n: int, batch: int = 1, **which: object) -> dict[str, float | str]:
    """{"measured on …": speed-up} of each run, for a prediction's reveal(); a word where there is none. `n` None: the single query."""
    found: dict[str, float | str] = {}
    for run in runs:
        keys = n or run.decoded()
        value = run.speedup(keys, batch, queries=None if n else 1, **which) if keys else None
        fits = not too_large(run.cell(which.get("over", MATH), keys, batch)) if keys else True
        found[f"{run.how} on {run.device}"] = value or ("not timed" if fits else "does not fit")
    return found


def _absent(kernel: str, p: AttentionProblem, device: str) -> Missing:
    """Why a recorded run lacks a cell: too large for the device by the formula, or not recorded."""
    row = known_gpu(device)
    needed = extra_by_formula(kernel, p) + 4 * p.batch * p.heads * p.n_k * p.head_dim * p.element_bytes
    if row and needed > row.hbm_bytes:
        return Missing(kernel, "forward", p, f"out of memory: it needs about {needed / 1e9:.0f} GB, and there are {row.hbm_bytes / 1e9:.0f}")
    return Missing(kernel, "forward", p, "not recorded")


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


def on_grid(found: Iterable[Record]) -> list[Record]:
    """Those of this lab's grid."""
    wanted = {key_of("forward", p) for p in [*problems(), *decode_problems()]}
    return [one for one in found if one.problem in wanted]


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
    times = ("no room" if too_large(one) else "-" if not isinstance(one, Record) else f"{one.time_ms:,.3f}{'*' * stale(one)}{'!' * _noisy(one)}" for one in by_name)
    numbers = [("-" if ratio is None else f"{ratio:.1f} ×") for ratio in ratios]
    sizes_ = [("-" if size is None else f"{size / unit:,.3f}") for size, unit in zip(memory, (1e9, 1e6))]
    return _line((str(batch), f"{keys:,}" if queries == keys else f"{queries} to {keys:,}", *times, *numbers, *sizes_))


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
