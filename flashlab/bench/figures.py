"""The lessons' figures, drawn from numbers that a formula, a trace or a measurement gave.

Every function returns a matplotlib Figure and shows nothing: `flashlab.show(figure, alt)` does, with words. Axes carry
units; an algorithm has the same colour and marker in each (looks.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from flashlab.bench.records import Record, growing, latest, on_grid, stale
from flashlab.errors import error
from flashlab.hardware import Gpu
from flashlab.looks import ALGORITHMS, KERNELS


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


def tflops_against_n(records: Iterable[Record], pass_: str = "forward", *, head_dim: int = 128, causal: bool = False) -> Figure:
    """TFLOP/s of each kernel against n, with a band from its 20th to its 80th percentile; the newest record of each n.

    `records` of one device (flashlab.bench.records.load()). Raises LookupError where there are none of this kind.
    """
    kind = (pass_, head_dim, causal)
    found = sorted((one for one in on_grid(latest(records)) if (one.pass_, one.head_dim, one.causal) == kind), key=lambda one: one.n_q)
    lines = {kernel: [one for one in found if one.kernel == kernel] for kernel in KERNELS}
    device = device_of(found, f"{pass_} records of the grid with head_dim {head_dim}, {'causal' if causal else 'full'}")
    figure = Figure(figsize=(8.5, 4), layout="constrained")
    axes = figure.subplots()
    for kernel, line in lines.items():
        if not line:
            continue
        look, ns = KERNELS[kernel], [one.n_q for one in line]
        axes.plot(ns, [one.tflops for one in line], color=look.colour, marker=look.marker, label=name_of(kernel, line))
        slow, fast = ([one.tflops * one.time_ms / getattr(one, edge) for one in line] for edge in ("p80_ms", "p20_ms"))
        axes.fill_between(ns, slow, fast, color=look.colour, alpha=0.15, linewidth=0)
    lengths(axes, {one.n_q for one in found})
    axes.set(ylabel="TFLOP/s", ylim=(0, None), title=f"{pass_}, head_dim {head_dim}, {'causal' if causal else 'full'}: {device}")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def growth_against_n(records: Iterable[Record], pass_: str = "forward") -> Figure:
    """Time and extra memory of one growing sequence against n, each beside a dashed line of the slope it should have: n², n.

    Extra is what a call holds at its peak beyond its inputs and results.

    `records` from flashlab.bench.sweep.growth: one device, batch 1. Raises LookupError where there are none.
    """
    lines = growing(records, pass_)
    found = [one for line in lines.values() for one in line]
    device = device_of(found, f"{pass_} records of a growing sequence")
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, name, power in zip(figure.subplots(1, 2), ("time (ms)", "extra memory (bytes)"), (2, 1)):
        for kernel, line in lines.items():
            look, ns = KERNELS[kernel], [one.n_q for one in line]
            values = [one.time_ms if power == 2 else one.extra_bytes for one in line]
            axes.plot(ns, values, color=look.colour, marker=look.marker, label=name_of(kernel, line))
            slope = [values[-1] * (n / ns[-1]) ** power for n in ns]
            axes.plot(ns, slope, color=look.colour, linestyle="--", linewidth=1, alpha=0.6, label="n²" if power == 2 else "n")
        axes.set_yscale("log")
        lengths(axes, {one.n_q for one in found})
        axes.set(ylabel=name)
        axes.legend(frameon=False)
    figure.suptitle(f"{pass_}, head_dim {found[0].head_dim}, {found[0].heads} heads: {device}")
    return figure


def device_of(found: list[Record], what: str) -> str:
    """The one device of these records. Raises LookupError, which says that `what` was needed, where there are none or several."""
    devices = sorted({one.device for one in found})
    if len(devices) != 1:
        raise error("figure_device", needed=what, given=", ".join(devices) or "none")
    return devices[0]


def name_of(kernel: str, line: list[Record]) -> str:
    """The kernel's name for a legend, with a word where one of its records is stale."""
    return KERNELS[kernel].label + (" (stale)" if any(map(stale, line)) else "")


def lengths(axes, ns: set[int]) -> None:
    """Sequence lengths across, in powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ns), [f"{n:,}" for n in sorted(ns)], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("sequence length n")
    axes.grid(alpha=0.3)


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
