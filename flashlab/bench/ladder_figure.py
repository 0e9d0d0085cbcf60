"""Lesson 09's ladder as two figures: TFLOP/s of each step as bars, and every step on the roofline; losers hatched or hollow."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from flashlab.bench.derived import known_gpu
from flashlab.bench.ladder import BESIDE, GPU, Ladder, Rung
from flashlab.hardware import gpu as gpu_called
from flashlab.looks import ALGORITHMS, GREY, KERNELS, Look

APART = 1.13  # the least factor between the heights of two names
ASIDE = (1.35, 1.15, 1.2, 1.1, 1.6, 2.0, 2.5)  # from a mark to its name: the first that lies on no other mark
CLEAR = 6  # pixels around the middle of a mark that no name may touch


def draw(table: Ladder) -> Figure:
    """Horizontal bars from the first step down to the last; a step that was not timed has no bar and says so."""
    rungs = list(table)
    figure = Figure(figsize=(8.5, 1.4 + 0.3 * len(rungs)), layout="constrained")
    axes = figure.subplots()
    rates = [rung.record.tflops if rung.record else 0 for rung in rungs]
    longest = max([*rates, 1])
    for at, (rung, rate) in enumerate(zip(rungs, rates)):
        look = _look(rung)
        face = look.colour if rung.step.kept else "white"
        axes.barh(at, rate, color=face, edgecolor=look.colour, hatch="" if rung.step.kept else "////")
        axes.text(rate + longest / 80, at, f"{rate:,.0f}" if rung.record else "not timed", va="center", fontsize=9)
    sdpa = table.records.get(BESIDE)
    if sdpa:
        look = KERNELS[BESIDE]
        axes.axvline(sdpa.tflops, color=look.colour, linestyle="--", label=f"{look.label}: {sdpa.tflops:,.0f}")
        axes.legend(frameon=False, loc="lower right")
    axes.set_yticks(range(len(rungs)), [rung.step.name for rung in rungs])
    axes.invert_yaxis()
    axes.set(xlim=(0, longest * 1.12), xlabel="TFLOP/s (hatched: tried and left)", title=_title(table))
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.label.set_color(GREY)
    return figure


def place(table: Ladder) -> Figure:
    """Every step that was timed, under the data sheet's roofline: FLOP for each byte of DRAM across, TFLOP/s up.

    Kept steps are filled and named on the right, losers hollow and named on the left. The roof is that of the GPU that timed
    the steps, or an H200's where hardware.py does not know it.
    """
    row, dtype = known_gpu(table.device) or gpu_called(GPU), table.problem.dtype
    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    axes = figure.subplots()
    points = {name: (x, rate / 1e12) for name, x, rate in table.points() if rate}
    ridge, peak = row.ridge(dtype), row.peak_flops_per_s(dtype) / 1e12
    reached = [ridge, *(x for x, _ in points.values())]
    low, high = min(reached) / 3, max(reached) * 4
    across = np.array([low, ridge, high])
    axes.plot(across, [row.attainable_flops_per_s(x, dtype) / 1e12 for x in across], color="#333333", linewidth=2)
    axes.axvspan(low, ridge, color="#0072B2", alpha=0.05, linewidth=0)
    axes.text(ridge / 1.1, peak * 1.5, "◂ memory-bound", ha="right", fontsize=9, color="#555555")
    axes.text(ridge * 1.1, peak * 1.5, "compute-bound ▸", ha="left", fontsize=9, color="#555555")
    left = []  # the names of those that were left
    for kept in (True, False):
        names = [rung.step.name for rung in table if rung.step.kept == kept and rung.step.name in points]
        for name, height in spread_out({name: points[name][1] for name in names}).items():
            (x, y), look = points[name], _look(table[name])
            axes.plot([x], [y], look.marker, color=look.colour, markerfacecolor=look.colour if kept else "white", markersize=7, linestyle="none", zorder=3)
            arrow = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6}
            beside, align = (max(reached) * ASIDE[0], "left") if kept else (x / ASIDE[0], "right")
            said = axes.annotate(f"{name} {y:,.0f}", (x, y), (beside, height), ha=align, va="center", fontsize=9, arrowprops=arrow)
            left += [] if kept else [said]
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(min([peak / 20, *(y for _, y in points.values())]) / 1.5, peak * 2))
    axes.set(xlabel="FLOP for each byte of DRAM (hollow: tried and left)", ylabel="TFLOP/s", title=f"{_title(table)}; roof of the {row.product} by its data sheet")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(color="#e8e8e8", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _clear_marks(figure, left, list(points.values()))
    return figure


def _clear_marks(figure: Figure, names: list[Annotation], marks: list[tuple[float, float]]) -> None:
    """Moves each name sideways until it covers no mark; where every place covers one, it keeps the last."""
    figure.draw_without_rendering()  # sizes in pixels are known from here on
    for name in names:
        at = name.axes.transData.transform(marks)
        for aside in ASIDE:
            name.set_position((name.xy[0] / aside, name.xyann[1]))
            if not Text.get_window_extent(name).padded(CLEAR).count_contains(at):
                break


def spread_out(heights: dict[str, float]) -> dict[str, float]:
    """Heights for names on a logarithmic axis: in the same order, each at least APART above the one below, near their own.

    >>> {name: round(height, 1) for name, height in spread_out({"b": 100.0, "a": 10.0, "c": 100.0}).items()}
    {'a': 10.0, 'b': 94.1, 'c': 106.3}
    """
    names = sorted(heights, key=heights.get)
    groups: list[tuple[list[str], float]] = []  # neighbours that touch, and the middle of their own heights, as a logarithm
    for name in names:
        group, middle = [name], np.log(heights[name])
        while groups and groups[-1][1] + np.log(APART) * (len(groups[-1][0]) + len(group)) / 2 > middle:
            before, _ = groups.pop()
            group = before + group
            middle = np.mean([np.log(heights[one]) for one in group])
        groups.append((group, middle))
    return {name: float(np.exp(middle + np.log(APART) * (at - (len(group) - 1) / 2))) for group, middle in groups for at, name in enumerate(group)}


def _look(rung: Rung) -> Look:
    return ALGORITHMS["flash1"] if rung.step.kernel == "flash1_kernel" else KERNELS["triton"]


def _title(table: Ladder) -> str:
    return f"head_dim {table.problem.head_dim}: {table.device or 'not measured yet'}"
