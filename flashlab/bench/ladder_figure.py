"""Lesson 09's ladder as bars: TFLOP/s of each step, the losers hatched, with SDPA's flash kernel as a line."""

from __future__ import annotations

from matplotlib.figure import Figure

from flashlab.bench.ladder import BESIDE, Ladder
from flashlab.looks import ALGORITHMS, GREY, KERNELS


def draw(table: Ladder) -> Figure:
    """Horizontal bars from the first step down to the last; a step that was not timed has no bar and says so."""
    rungs = list(table)
    figure = Figure(figsize=(8.5, 1.4 + 0.3 * len(rungs)), layout="constrained")
    axes = figure.subplots()
    rates = [rung.record.tflops if rung.record else 0 for rung in rungs]
    longest = max([*rates, 1])
    for at, (rung, rate) in enumerate(zip(rungs, rates)):
        first = rung.step.kernel == "flash1_kernel"
        look = ALGORITHMS["flash1"] if first else KERNELS["triton"]
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
    p = table.problem
    axes.set(xlim=(0, longest * 1.12), xlabel="TFLOP/s (hatched: tried and left)", title=f"head_dim {p.head_dim}: {table.device or 'not measured yet'}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.label.set_color(GREY)
    return figure
