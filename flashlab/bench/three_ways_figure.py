"""The table of three_ways.py as bars: for each workload what is asked for, by formula, trace and counters, and what DRAM pays."""

from __future__ import annotations

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flashlab.bench.three_ways import TRACED, WORKLOADS, Row, three_ways
from flashlab.bench.three_ways_table import ThreeWays
from flashlab.errors import error
from flashlab.looks import ALGORITHMS, GREY, KERNELS, Look
from flashlab.problem import AttentionProblem

LOOKS = {
    **KERNELS,
    "standard": ALGORITHMS["standard"],
    "unfused": ALGORITHMS["standard"]._replace(label="unfused, Triton"),
    "flash1": ALGORITHMS["flash1"],
}
PALE, WRITTEN = 0.38, "////"  # what is asked for is paler than what DRAM pays; what is written is hatched
# (what the bar is, its Bytes or number of a Row, whether DRAM)
BARS = (
    ("asked for, by formula", lambda row: row.predicted_bytes and (row.predicted_bytes, 0), False),
    ("asked for, traced", lambda row: row.traced and (row.traced.moved, 0), False),
    ("asked for, counters", lambda row: row.measured_sm and (row.measured_sm.moved, 0), False),
    ("DRAM, L2 model", lambda row: row.modelled_dram, True),
    ("DRAM, counters", lambda row: row.measured_dram, True),
)
GAP = 1.9  # between workloads, in bars


def draw(table: ThreeWays) -> Figure:
    """Horizontal bars of MB from 0, each with its name and its number; a bar that there is no number for is left out."""
    bars, ticks, y = [], [], 0.0
    for row in table:
        found = [(name, numbers, dram) for name, value, dram in BARS if (numbers := value(row))]
        if found:
            bars.append((y - 0.95, row, None, False))
        for i, (name, numbers, dram) in enumerate(found):
            y += 0.35 * (i > 0 and dram and not found[i - 1][2])
            bars.append((y, row, numbers, dram))
            ticks.append((y, name))
            y += 1
        y += GAP * bool(found)
    figure = Figure(figsize=(8.5, 1.3 + 0.235 * (y + 0.5)), layout="constrained")
    axes = figure.subplots()
    longest = max(sum(value) for _, _, value, _ in bars if value) / 1e6
    for at, row, value, dram in bars:
        if value is None:
            axes.text(0, at, look_of(row).label, ha="left", va="center", fontsize=10, fontweight="bold", color="black")
        else:
            _bar(axes, at, row, value, dram, longest)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, longest * 1.16), ylim=(y - GAP - 0.3, -1.7), xlabel="MB (1 MB = 1,000,000 bytes)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    p, device = table.problem, ", ".join(dict.fromkeys(row.device for row in table))
    axes.set_title(f"{table.pass_}, n {p.n_q:,}, head_dim {p.head_dim}, {'causal' if p.causal else 'full'}, {p.heads} heads: {device}", fontsize=11)
    keys = [Patch(facecolor=pale(GREY), label="asked for by the multiprocessors"), Patch(facecolor=GREY, label="read from DRAM")]
    keys.append(Patch(facecolor="white", edgecolor=GREY, hatch=WRITTEN, label="written to DRAM"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _bar(axes, at: float, row: Row, value: tuple[int, int], dram: bool, longest: float) -> None:
    """Read bytes solid and written ones hatched, or one pale bar; the number stands behind it."""
    colour, (first, second) = look_of(row).colour, (size / 1e6 for size in value)
    axes.barh(at, first, 0.78, color=colour if dram else pale(colour), linewidth=0)
    if second:
        axes.barh(at, second, 0.78, left=first, facecolor="white", edgecolor=colour, hatch=WRITTEN, linewidth=0.8)
    axes.text(first + second + longest * 0.008, at, f"{first + second:,.1f}", ha="left", va="center", fontsize=8.5)


def pale(colour: str) -> tuple[float, ...]:
    """The colour on white paper; not transparent, so that no line behind it shows."""
    return tuple(1 - PALE * (1 - part) for part in to_rgb(colour))


def look_of(row: Row) -> Look:
    return LOOKS.get(row.workload, Look(row.workload, GREY, "o"))


def recorded_bytes(device: str, pass_: str = "forward", *, n: int = 4096, head_dim: int = 128, causal: bool = False) -> Figure:
    """The figure of what was recorded on a device, at 16 heads in bfloat16; nothing is counted.

    Raises LookupError where there is nothing recorded, or it is of another device.
    """
    problem = AttentionProblem(n, n, head_dim, heads=16, causal=causal, dtype="bfloat16")
    table = three_ways(problem, [workload for workload in WORKLOADS if (workload, pass_) in TRACED], pass_, count=False)
    found = [row for row in table if row.measured_dram]
    if not found or {row.device for row in found} != {device}:
        needed = f"{pass_} counter records of {device}, head_dim {head_dim}, {'causal' if causal else 'full'}"
        raise error("figure_device", needed=needed, given=", ".join(dict.fromkeys(row.device for row in found)) or "none")
    return draw(ThreeWays(found, problem, pass_))
