"""Records as text: TFLOP/s of each kernel against n, and one number for each peer, beside the goal it was given.

The one number is the geometric mean of peer's time over ours, n = 1,024 to 16,384, full and causal: twice as fast on one
cell and half as fast on another is a mean of 1, which no other mean gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flashlab.bench import records as store
from flashlab.bench.ceilings import Ceilings
from flashlab.bench.derived import derive
from flashlab.bench.records import Record
from flashlab.bench.timing import WIDE

# The least geometric mean wanted of our kernel on one H200: {pass: {peer: {head_dim: ratio}}}.
GOALS = {
    "forward": {"sdpa-flash": {64: 1.60, 128: 1.60, 256: 1.40}, "sdpa-cudnn": {64: 1.00, 128: 0.90}},
    "backward": {"sdpa-flash": {64: 1.25, 128: 1.40, 256: 1.00}},
}
MEAN_FROM, MEAN_TO = 1024, 16384
MEAN_CELLS = 10  # five n, full and causal
STALE = "* stale: the kernel's code has changed since; measure again with flashlab bench."


class Mean(NamedTuple):
    """A geometric mean of `cells` ratios (above 1: ours is faster), and whether a record under it is stale."""

    ratio: float
    cells: int
    stale: bool


def geometric_mean(records: Iterable[Record], ours: str, peer: str, head_dim: int) -> Mean | None:
    """How many times faster `ours` is than `peer`; None where no run timed both. `records` are of one pass and device."""
    cells = [
        (one, other)
        for one, other in store.pairs(records, ours, peer)
        if one.head_dim == head_dim and MEAN_FROM <= one.n_q <= MEAN_TO and one.n_q == one.n_k
    ]
    if not cells:
        return None
    logs = [math.log(other.time_ms / one.time_ms) for one, other in cells]
    return Mean(math.exp(sum(logs) / len(logs)), len(cells), any(map(store.stale, sum(cells, ()))))


def report(records: Iterable[Record], pass_: str) -> str:
    """Everything to say about one pass, device by device: the table, then the means beside their goals."""
    records = store.on_grid(one for one in records if one.pass_ == pass_)
    if not records:
        return f"{pass_}: nothing recorded on the grid."
    parts = []
    for device in dict.fromkeys(one.device for one in records):
        here = [one for one in records if one.device == device]
        parts += [table(here), means(here)]
        parts += [STALE] * any(map(store.stale, store.latest(here)))
    return "\n\n".join(filter(None, parts))


def table(records: Iterable[Record]) -> str:
    """TFLOP/s of each kernel, newest record first asked, one line for each head_dim, n and mask. Records of one pass and device."""
    found = store.latest(records)
    kernels = list(dict.fromkeys(one.kernel for one in found))
    cells: dict[tuple, dict[str, Record]] = {}
    for one in found:
        cells.setdefault((one.head_dim, one.causal, one.n_q, one.n_k, one.batch, one.heads), {})[one.kernel] = one
    rows = [("head_dim", "mask", "n", "batch", *kernels)]
    for (head_dim, causal, n_q, _, batch, _), cell in sorted(cells.items()):
        numbers = (f"{cell[name].tflops:,.0f}{'*' if store.stale(cell[name]) else ''}" if name in cell else "-" for name in kernels)
        rows.append((str(head_dim), "causal" if causal else "full", f"{n_q:,}", str(batch), *numbers))
    dates = sorted({one.date[:10] for one in found})
    versions = sorted({f"torch {one.torch}, Triton {one.triton}, driver {one.driver}" for one in found})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{found[0].pass_}, TFLOP/s, {found[0].device}, recorded on {when} ({'; '.join(versions)})\n{columns(rows)}"


def growth_table(records: Iterable[Record], pass_: str) -> str:
    """Time and extra memory of one growing sequence, each beside its factor for twice the n of the line before: 4 is n², 2 is n.

    Where a line's n is not twice that (a part of the grid, a length not timed), the factor is that of each doubling.
    """
    parts = []
    records = list(records)
    for device in dict.fromkeys(one.device for one in records):
        lines = store.growing((one for one in records if one.device == device), pass_)
        rows, uneven = [("kernel", "n", "time (ms)", "factor", "extra memory (bytes)", "factor")], False
        for kernel, line in lines.items():
            for before, one in zip([None, *line], line):
                doublings = math.log2(one.n_q / before.n_q) if before else 0
                time = f"{(one.time_ms / before.time_ms) ** (1 / doublings):.2f}" if doublings else ""
                memory = f"{(one.extra_bytes / before.extra_bytes) ** (1 / doublings):.2f}" if doublings and before.extra_bytes else ""
                uneven |= doublings not in (0, 1)
                name = kernel + "*" * store.stale(one)
                rows.append((name, f"{one.n_q:,}", f"{one.time_ms:,.3f}", time, f"{one.extra_bytes:,}", memory))
        if len(rows) > 1:
            some = next(iter(lines.values()))[0]
            title = f"{pass_}, one sequence of n, {some.heads} heads, head_dim {some.head_dim}, {device}, recorded on {some.date[:10]}"
            parts.append(f"{title}\n{columns(rows, left=1)}" + "\nfactor: of each doubling of n, where n is not twice that of the line before" * uneven)
            parts += [STALE] * any(store.stale(one) for line in lines.values() for one in line)
    return "\n\n".join(parts) or f"{pass_}: no growing sequence recorded."


def shares(records: Iterable[Record], ceilings: dict[str, Ceilings] | None = None) -> str:
    """How near each cell came to what is possible, device by device: the data sheet's roofline, {device: measured ceilings}; noise is marked."""
    records = store.latest(records)
    return "\n\n".join(
        f"{device}, beside what is possible there\n{_shares([one for one in records if one.device == device], (ceilings or {}).get(device))}"
        for device in dict.fromkeys(one.device for one in records)
    )


def _shares(records: list[Record], ceilings: Ceilings | None) -> str:
    rows = [("kernel", "mask", "head_dim", "n", "ms", "TFLOP/s", "GB/s", "of roofline", "of matmul", "of copy", "peak GiB", "spread")]
    for one in records:
        found = derive(one, ceilings)
        percents = (_percent(found.roofline_share), _percent(found.matmul_share), _percent(found.copy_share))
        peak = "-" if found.peak_bytes is None else f"{found.peak_bytes / 2**30:.2f}"
        rates = (f"{one.time_ms:,.3f}", f"{one.tflops:,.0f}", f"{found.bytes_per_s / 1e9:,.0f}")
        noise = _percent(found.spread) + "!" * (found.spread > WIDE)
        rows.append((one.kernel, "causal" if one.causal else "full", str(one.head_dim), f"{one.n_q:,}", *rates, *percents, peak, noise))
    text = columns(rows)
    return text + f"\n! noisy: p20 to p80 is more than {WIDE:.0%} of the median." if "!" in text else text


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def means(records: Iterable[Record]) -> str:
    """Our geometric means against each peer, head_dim by head_dim, goals beside them; "" where there are none.

    Where there are two variants of ours, the goal stands beside the faster one, which is named. Records of one pass and device.
    """
    records = list(records)
    kernels = list(dict.fromkeys(one.kernel for one in records))
    ours, peers = ([name for name in kernels if store.is_ours(name) == mine] for mine in (True, False))
    rows = [("head_dim", "kernel", *(f"over {peer}" for peer in peers))]
    for head_dim in sorted({one.head_dim for one in records}):
        best = fastest(records, ours, head_dim)
        for name in ours:
            found = [geometric_mean(records, name, peer, head_dim) for peer in peers]
            if any(found):
                goals = [GOALS[records[0].pass_].get(peer, {}).get(head_dim) if name == best else None for peer in peers]
                label = f"{name} (the faster)" if name == best and len(ours) > 1 else name
                rows.append((str(head_dim), label, *map(_against, found, goals)))
    if len(rows) == 1:
        return ""
    return f"times faster than each peer, geometric mean over n = {MEAN_FROM:,} to {MEAN_TO:,}, full and causal\n{columns(rows)}"


def fastest(records: Iterable[Record], ours: list[str], head_dim: int) -> str | None:
    """The variant that beats the first one most; the first one itself where none does, or none was timed with it."""
    records = list(records)
    means = {name: geometric_mean(records, name, ours[0], head_dim) for name in ours}
    return max((name for name in ours if means[name]), key=lambda name: means[name].ratio, default=ours[0] if ours else None)


def _against(mean: Mean | None, goal: float | None) -> str:
    """One cell: the mean, what is unusual about it, and the goal with its outcome."""
    if mean is None:
        return "-"
    digits = 2
    while goal is not None and mean.ratio < goal <= round(mean.ratio, digits):  # so few would hide the miss
        digits += 1
    text = f"{mean.ratio:.{digits}f}" + "*" * mean.stale
    if mean.cells != MEAN_CELLS:
        text += f" [{mean.cells} of {MEAN_CELLS} cells]"
    if goal is not None:
        text += f" (goal {goal:.2f}: {'met' if mean.ratio >= goal else 'missed'})"
    return text


def columns(rows: list[tuple[str, ...]], left: int = 2) -> str:
    """Rows as lines: the first `left` columns begin together, the others, numbers, end together."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(text.ljust(w) if i < left else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths))) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
