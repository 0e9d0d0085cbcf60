"""The lessons' figures, drawn from numbers that a formula, a trace or a measurement gave.

Every function returns a matplotlib Figure and shows nothing: `flashlab.show(figure, alt)` does, with words. Axes carry
units; an algorithm has the same colour and marker in each (looks.py).
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from flashlab.hardware import Gpu
from flashlab.looks import ALGORITHMS


def against_n(
    series: dict[str, dict[float, float]], ylabel: str, *, xlabel: str = "sequence length n", labels: dict[str, str] | None = None
) -> Figure:
    """Lines on two logarithmic axes (base 2 across): {algorithm key of looks.py: {x: y}}, with a marker and a name each.

    `labels` renames an algorithm in this figure. Raises KeyError for a key that looks.py does not have.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, points in series.items():
        look = ALGORITHMS[key]
        name = (labels or {}).get(key, look.label)
        axes.plot(list(points), list(points.values()), color=look.colour, marker=look.marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({x for points in series.values() for x in points})
    axes.set_xticks(ticks, [f"{x:,.0f}" for x in ticks], rotation=30 if len(ticks) > 8 else 0)
    axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def memory_levels(gpu: Gpu) -> Figure:
    """The places where a number can be on a GPU, smallest and fastest on top: registers, SRAM, L2, HBM, with sizes and rates.

    Boxes grow downwards as sizes do, but not to scale. The rate of SRAM is derived (hardware.py says how); no data sheet gives
    one for registers and L2.
    """
    levels = [
        ("registers", f"{gpu.multiprocessors} × {_size(gpu.registers_bytes)}", "at the arithmetic units", "#56B4E9"),
        ("SRAM (shared memory)", f"{gpu.multiprocessors} × {_size(gpu.sram_bytes)}", _rate(gpu.sram_bytes_per_s), "#009E73"),
        ("L2 cache", _size(gpu.l2_bytes), "shared by all multiprocessors", "#E69F00"),
        ("HBM", _size(gpu.hbm_bytes), _rate(gpu.hbm_bytes_per_s), "#D55E00"),
    ]
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for row, (name, sizes, rate, colour) in enumerate(levels):
        half, look = 1.7 + 1.15 * row, {"facecolor": colour, "alpha": 0.35, "edgecolor": colour}
        axes.add_patch(FancyBboxPatch((-half, -row), 2 * half, 0.72, boxstyle="round,pad=0.02,rounding_size=0.08", **look))
        axes.text(0, -row + 0.36, f"{name}\n{sizes}", ha="center", va="center", fontsize=9)
        axes.text(6.3, -row + 0.36, rate, ha="left", va="center", fontsize=9)
    axes.annotate("", (5.9, 0.7), (5.9, -3), arrowprops={"arrowstyle": "->"})
    axes.text(6.3, 0.95, "faster, smaller", fontsize=9, style="italic")
    axes.set(xlim=(-5.4, 10.4), ylim=(-3.2, 1.2), title=f"Where a number can be: {gpu.product}")
    axes.axis("off")
    return figure


def _size(size: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.0f} {name}"
    return f"{size:,.0f} bytes"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:,.1f} TB/s"
