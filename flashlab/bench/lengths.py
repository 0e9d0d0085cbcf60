"""Lab 1's grid: SDPA math, SDPA flash and our kernel against the length n, batch 1, 4 and 16, and with a single query.

Sixteen heads of 64, as in GPT-2 medium, bfloat16, no mask: all three do the same FLOPs, so what differs is how they move
and keep numbers. (With a causal mask flash and ours skip half of the work, and math does not.) No problem is one of the
papers' grid or of the growing sequence (records.py), so none of their tables reads these records.

A CPU's own flash and math have a grid of their own, in float32 and smaller. What the notebook calls is in length_lab.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashlab.bench import records
from flashlab.bench.derived import known_gpu
from flashlab.bench.records import Record, key_of
from flashlab.bench.sweep import LENGTHS, Missing
from flashlab.errors import error
from flashlab.problem import AttentionProblem

MATH, FLASH, OURS = NAMES = ("sdpa-math", "sdpa-flash", "triton")
BATCHES, HEADS, HEAD_DIM = (1, 4, 16), 16, 64
CACHED_KEYS = 16384  # what a single query meets
CPU_HEADS, CPU_CACHED_KEYS, CPU_MOST_SCORES = 2, 2048, 4096**2  # the last: of one head, all of a batch together
BUDGET_MS, CPU_BUDGET_MS = 30, 100  # a cell; the whole grid is under a minute of an H200
COMMAND = "flashlab bench lengths"

# What SDPA math held at its peak beyond inputs and result, within 0.02 % in every bfloat16 cell without a mask and with n_q = n_k
# recorded on an H200 (torch 2.11): nine bytes a score, fourteen an element of q; it computes in float32. (For a single query it held
# 85 times that, twelve bytes an element of k.) Flash and ours: one float32 a row, lse. (Where flash has few tiles of queries it
# splits the keys, too, and keeps each part's o and lse: there it holds more.)
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
        """One cell; `queries` is n where not given. None where it was not asked for. Raises LookupError for a kernel that is none of NAMES."""
        check_names([kernel])
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


def check_names(names: Iterable[str]) -> None:
    """Raises LookupError for a name that is none of NAMES, other peers' included."""
    for name in names:
        if name not in NAMES:
            raise error("length_peer", given=name, allowed=", ".join(NAMES))


def on_grid(found: Iterable[Record]) -> list[Record]:
    """Those of this lab's grid and kernels."""
    wanted = {key_of("forward", p) for p in [*problems(), *decode_problems()]}
    return [one for one in found if one.problem in wanted and one.kernel in NAMES]


def chosen(found: Iterable[Record]) -> list[Record]:
    """A record of each kernel, problem and device: of the run that timed most kernels there, and of such runs the newest.

    A ratio never spans two runs, so one kernel timed again alone must not take the place of a record with others beside it.
    What that run lacks is from the next best.
    """
    found = on_grid(found)
    runs: dict[tuple, dict[str, Record]] = {}
    for one in found:
        runs.setdefault((one.device, one.problem, one.date), {})[one.kernel] = one
    best: dict[tuple, dict[str, Record]] = {(one.device, one.problem): {} for one in found}  # in the order of the file
    for (device, problem, _), run in sorted(runs.items(), key=lambda item: (len(item[1]), item[0][2])):
        best[device, problem].update(run)
    return [one for cell in best.values() for one in cell.values()]


def recorded(found: Iterable[Record] | None = None, device: str | None = None) -> Run | None:
    """The chosen records of the grid, of `device` or of the one recorded last; None, and a line that says so, where there are none."""
    asked = [*problems(), *decode_problems()]
    all_ = on_grid(records.load() if found is None else found)
    mine = [one for one in all_ if device in (None, one.device)]
    if not mine:
        others = ", ".join(sorted({one.device for one in all_}))
        if others:
            print(f"This grid has not been recorded on {device!r}, only on {others}: pass such a name, or `{COMMAND}` there does it.")
        else:
            print(f"This grid has not been recorded on a GPU yet: `{COMMAND}` on a CUDA GPU does it.")
        return None
    device = max(mine, key=lambda one: one.date).device
    kept = {(one.kernel, one.problem): one for one in chosen(mine) if one.device == device}
    cells = (kept.get((kernel, key_of("forward", p))) or _absent(kernel, p, device) for p in asked for kernel in NAMES)
    return Run("recorded", device, tuple(cells))


def _absent(kernel: str, p: AttentionProblem, device: str) -> Missing:
    """Why a recorded run lacks a cell: too large for the device by the formula, or not recorded."""
    row = known_gpu(device)
    needed = extra_by_formula(kernel, p) + 4 * p.batch * p.heads * p.n_k * p.head_dim * p.element_bytes
    if row and needed > row.hbm_bytes:
        return Missing(kernel, "forward", p, f"out of memory: it needs about {needed / 1e9:.0f} GB, and there are {row.hbm_bytes / 1e9:.0f}")
    return Missing(kernel, "forward", p, "not recorded")
