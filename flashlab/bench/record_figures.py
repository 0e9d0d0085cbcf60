"""Records drawn: speed-up against n, memory against n, and every kernel placed on its GPU's roofline.

TFLOP/s against n and the growing sequence are in figures.py. Each function takes the records of one device and returns a
matplotlib Figure.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure

from flashlab.bench.ceilings import Ceilings
from flashlab.bench.derived import derive, known_gpu
from flashlab.bench.figures import device_of, lengths, name_of
from flashlab.bench.records import Record, latest, on_grid, pairs
from flashlab.looks import KERNELS


def speedup_against_n(records: Iterable[Record], over: str = "sdpa-math", pass_: str = "forward", *, head_dim: int = 128, causal: bool = False) -> Figure:
    """How many times faster each kernel is than `over`, cell by cell of one run; above the line at 1 it is faster.

    Raises LookupError where no run timed `over` beside another.
    """
    wanted = (pass_, head_dim, causal)
    found = [one for one in on_grid(records) if (one.pass_, one.head_dim, one.causal) == wanted]
    lines = {kernel: sorted(pairs(found, kernel, over), key=lambda pair: pair[0].n_q) for kernel in KERNELS if kernel != over}
    drawn = [one for line in lines.values() for one, _ in line]
    device = device_of(drawn, f"{_title(*wanted)} records of {over} and another kernel of one run")
    figure, axes = _axes()
    for kernel, line in lines.items():
        if line:
            ns, ratios = [one.n_q for one, _ in line], [other.time_ms / one.time_ms for one, other in line]
            axes.plot(ns, ratios, color=KERNELS[kernel].colour, marker=KERNELS[kernel].marker, label=name_of(kernel, [one for one, _ in line]))
    axes.axhline(1, color=KERNELS[over].colour, linestyle="--", linewidth=1, label=KERNELS[over].label)
    lengths(axes, {one.n_q for one in drawn})
    axes.set(ylabel=f"times as fast as {KERNELS[over].label}", ylim=(0, None), title=f"{_title(*wanted)}: {device}")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def memory_against_n(records: Iterable[Record], pass_: str = "forward", *, head_dim: int = 128, causal: bool = False) -> Figure:
    """Peak memory beyond inputs and results against n, of the grid; a kernel that needs none is drawn at one byte."""
    wanted = (pass_, head_dim, causal)
    found = [one for one in on_grid(latest(records)) if (one.pass_, one.head_dim, one.causal) == wanted and one.extra_bytes is not None]
    device = device_of(found, f"{_title(*wanted)} records with memory")
    figure, axes = _axes()
    for kernel, look in KERNELS.items():
        line = sorted((one for one in found if one.kernel == kernel), key=lambda one: one.n_q)
        if line:
            sizes = [max(one.extra_bytes, 1) for one in line]
            axes.plot([one.n_q for one in line], sizes, color=look.colour, marker=look.marker, label=name_of(kernel, line))
    lengths(axes, {one.n_q for one in found})
    axes.set(yscale="log", ylabel="extra memory (bytes)", title=f"{_title(*wanted)}, batch · n = 16,384: {device}")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def roofline_of(records: Iterable[Record], pass_: str = "forward", *, head_dim: int = 128, causal: bool = False, ceilings: Ceilings | None = None) -> Figure:
    """TFLOP/s against FLOP a byte, each cell a mark, under the data sheet's roofline and, dashed, the measured ceilings.

    The bytes are the least that the problem allows, so a mark stands where its task does; longer sequences stand further
    right. Raises LookupError for records of no device, of two, or of one that hardware.py does not know.
    """
    wanted = (pass_, head_dim, causal)
    found = [one for one in on_grid(latest(records)) if (one.pass_, one.head_dim, one.causal) == wanted]
    device = device_of(found, f"{_title(*wanted)} records")
    row, dtype = known_gpu(device), found[0].dtype
    figure, axes = _axes()
    places = {one: derive(one).intensity for one in found}
    across = np.geomspace(min([*places.values(), 50]) / 2, max(places.values()) * 2, 200)
    if row:
        axes.plot(across, [row.attainable_flops_per_s(x, dtype) / 1e12 for x in across], color="black", label=f"{row.product}, data sheet")
    if ceilings and ceilings.device == device:
        measured = np.minimum(across * ceilings.bytes_per_s, ceilings.flops_per_s) / 1e12
        axes.plot(across, measured, color="black", linestyle="--", linewidth=1, label="copy and matmul, measured")
    for kernel, look in KERNELS.items():
        line = [one for one in found if one.kernel == kernel]
        if line:
            marks = {"color": look.colour, "marker": look.marker, "linestyle": "none", "label": name_of(kernel, line)}
            axes.plot([places[one] for one in line], [one.tflops for one in line], **marks)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP for each byte that must move)", ylabel="TFLOP/s", title=f"{_title(*wanted)}: {device}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _axes():
    figure = Figure(figsize=(8.5, 4), layout="constrained")
    return figure, figure.subplots()


def _title(pass_: str, head_dim: int, causal: bool) -> str:
    return f"{pass_}, head_dim {head_dim}, {'causal' if causal else 'full'}"
