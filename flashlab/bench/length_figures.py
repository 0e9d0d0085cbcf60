"""Lab 1's figures: speed-up, time and memory against the length, each batch a line; and a sentence of what each shows.

A kernel keeps its colour and marker (looks.py); a batch is a line style with its name written at the line. A cross ends
a line beyond which memory did not suffice. The sentences are made of the run's own numbers, so they hold on any machine.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from flashlab.bench.derived import known_gpu
from flashlab.bench.figures import device_of, lengths
from flashlab.bench.lengths import FLASH, MATH, NAMES, OURS, Run, extra_by_formula, problems, too_large
from flashlab.bench.records import Record
from flashlab.looks import KERNELS

STYLES = {1: "-", 4: "--", 16: ":"}


def speedup_against_length(run: Run) -> Figure:
    """Times as fast as math against n: a panel for each other kernel, a line for each batch. Raises LookupError where there is none."""
    lines = {kernel: by for kernel in (FLASH, OURS) if (by := _ratios(run, kernel))}
    if not lines:
        device_of([], "math and another kernel of one run against the length")
    top = 1.15 * max(ratio for by in lines.values() for line in by.values() for ratio in line.values())
    figure = Figure(figsize=(4.6 * len(lines) + 0.4, 4), layout="constrained")
    for axes, (kernel, by) in zip(np.atleast_1d(figure.subplots(1, len(lines), sharey=True)), lines.items()):
        look = KERNELS[kernel]
        for batch, line in by.items():
            axes.plot(list(line), list(line.values()), color=look.colour, marker=look.marker, linestyle=STYLES[batch])
        ends = {max(line): line[max(line)] for batch, line in by.items() if too_large(run.cell(MATH, 2 * max(line), batch))}
        axes.plot(list(ends), list(ends.values()), "kx", markersize=11, zorder=3)
        if ends:
            axes.text(0.98, 0.2, "x: beyond it math has no room in memory", transform=axes.transAxes, ha="right", fontsize=8)
        lengths(axes, {n for line in by.values() for n in line})
        axes.axhline(1, color="black", linewidth=1)
        axes.set(ylim=(0, top), title=look.label)
        _name_left(axes, {f"batch {batch}": line[min(line)] for batch, line in by.items()})
    figure.axes[0].set_ylabel(f"times as fast as {KERNELS[MATH].label}")
    figure.suptitle(run.title)
    return figure


def time_against_length(run: Run) -> Figure:
    """Milliseconds against n, both logarithmic, a panel for each batch."""
    lines = {batch: {kernel: _values(run, kernel, batch, "time_ms") for kernel in NAMES} for batch in STYLES}
    if not any(line for by in lines.values() for line in by.values()):
        device_of([], "times against the length")
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (batch, by) in zip(figure.subplots(1, len(lines), sharey=True), lines.items()):
        for kernel, line in by.items():
            if line:
                axes.plot(list(line), list(line.values()), color=KERNELS[kernel].colour, marker=KERNELS[kernel].marker, label=KERNELS[kernel].label)
        axes.set(yscale="log", title=f"batch {batch}")
        lengths(axes, {n for line in by.values() for n in line} or {512})
    figure.axes[0].set_ylabel("time (ms)")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(run.title)
    return figure


def memory_against_length(run: Run | None = None) -> Figure:
    """Bytes beyond inputs and result against n, both logarithmic: lines by formula, marks as measured, a cross where there was no room."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes, names = figure.subplots(), {}
    for batch, style in STYLES.items():
        for kernel in (MATH, FLASH):
            line = {p.n_q: extra_by_formula(kernel, p) for p in problems((batch,))}
            axes.plot(list(line), list(line.values()), color=KERNELS[kernel].colour, linestyle=style, linewidth=1.5)
            names[f"{'math' if kernel == MATH else 'flash, flashlab'}, batch {batch}"] = line[min(line)]
        for kernel in NAMES if run else ():
            look = KERNELS[kernel]
            marks = {n: size for n, size in _values(run, kernel, batch, "extra_bytes").items() if size is not None}
            axes.plot(list(marks), list(marks.values()), look.marker, color=look.colour, markerfacecolor="none" if kernel == OURS else look.colour)
            full = [p for p in problems((batch,)) if too_large(run.cell(kernel, p.n_q, batch))]
            axes.plot([p.n_q for p in full], [extra_by_formula(kernel, p) for p in full], "kx", markersize=10)
    axes.set_yscale("log")
    lengths(axes, {p.n_q for p in problems()})
    row = known_gpu(run.device) if run else None
    if row:
        axes.axhline(row.hbm_bytes, color="black", linewidth=1)
        axes.annotate(f"all memory of the {row.product}", (512, row.hbm_bytes), (0, 4), textcoords="offset points", fontsize=8)
    counted = run is not None and any(isinstance(one, Record) and one.extra_bytes is not None for one in run.cells)
    axes.set(ylabel="extra memory at the peak (bytes)", title=run.title if counted else "by formula; PyTorch counts no memory on a CPU")
    _name_left(axes, names)
    return figure


# -- in words -------------------------------------------------------------------------------------------------------------
def speedup_in_words(run: Run) -> str:
    """The finding of speedup_against_length in a sentence."""
    ends = {batch: {n: line[n] for n in (min(line), max(line))} for batch, line in _ratios(run, FLASH).items()}
    if not ends:
        return f"On {run.device} there is no speed-up to show."
    said = lambda ratio: f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"  # noqa: E731, 0.04 is not 0.0, and 0.97 no 1.0
    text = "; ".join(" and ".join(f"{said(ratio)} × at n = {n:,}" for n, ratio in pair.items()) + f" with batch {b}" for b, pair in ends.items())
    faster = min(ratio for pair in ends.values() for ratio in pair.values()) >= 1
    return f"On {run.device} SDPA's flash is {f'faster than its math by {text}' if faster else text.replace('×', '× as fast as its math', 1)}."


def time_in_words(run: Run) -> str:
    """The finding of time_against_length in a sentence: how time grows over the last doubling of n, batch 1."""
    parts = []
    for kernel in NAMES:
        line = _values(run, kernel, 1, "time_ms")
        if len(line) > 1:
            before, last = sorted(line)[-2:]
            parts.append(f"{line[last] / line[before]:.1f} for {KERNELS[kernel].label}")
    if not parts:
        return f"On {run.device} too little was timed to compare."
    return f"On {run.device}, from n = {before:,} to n = {last:,} with batch 1, time grows by a factor of {', '.join(parts)}."


def memory_in_words(run: Run | None = None) -> str:
    """The finding of memory_against_length in a sentence."""
    last = problems((1,))[-1]
    grow = f"math's extra memory grows as n², to {extra_by_formula(MATH, last) / 1e9:.0f} GB at n = {last.n_q:,} with batch 1"
    full = [(b, n) for b in STYLES for n in (run.lengths(b) if run else ()) if too_large(run.cell(MATH, n, b))]
    where = f"; it had no room on {run.device} at " + ", ".join(f"n = {n:,} with batch {b}" for b, n in full) if full else ""
    return f"By formula {grow}, and that of flash and flashlab as n, to {extra_by_formula(FLASH, last) / 1e6:.1f} MB{where}."


def _values(run: Run, kernel: str, batch: int, field: str) -> dict[int, float]:
    cells = {n: run.cell(kernel, n, batch) for n in run.lengths(batch)}
    return {n: getattr(one, field) for n, one in cells.items() if isinstance(one, Record)}


def _ratios(run: Run, kernel: str) -> dict[int, dict[int, float]]:
    """{batch: {n: times as fast}}, without the batches that have none."""
    found = {b: {n: run.speedup(n, b, kernel=kernel) for n in run.lengths(b)} for b in STYLES}
    kept = {b: {n: ratio for n, ratio in line.items() if ratio} for b, line in found.items()}
    return {b: line for b, line in kept.items() if line}


def _name_left(axes, names: dict[str, float], apart: float = 0.055) -> None:
    """Write each name left of where its line begins, pushed apart where two would touch."""
    to_axes = axes.transData.transform
    low, high = (axes.transAxes.transform((0, y))[1] for y in (0, 1))
    left, right = axes.get_xlim()
    axes.set_xlim(left / (right / left) ** 0.32, right)
    height = -np.inf
    for name, y in sorted(names.items(), key=lambda item: item[1]):
        height = max((to_axes((left, y))[1] - low) / (high - low), height + apart)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # a line across does not strike the name through
        axes.text(0.015, height, name, transform=axes.transAxes, va="center", ha="left", fontsize=8, bbox=ground)
