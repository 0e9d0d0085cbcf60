"""The roofline of a GPU, with standard, tiled and fused attention on it: which ceiling each meets, and how far below.

Intensity is FLOP for each byte moved through HBM. Left of the ridge a kernel waits for memory, right of it for
arithmetic. Source: Williams, Waterman & Patterson 2009. Rates are hardware.py's data-sheet peaks, bytes and FLOPs
traffic/model.py's closed forms, so a point is the most that a kernel moving those bytes could reach, not a measurement.
What it leaves out: caches (the L2 serves most of the k and v tiles that FlashAttention-2 reads again), and exp.
"""

from __future__ import annotations

import math
from itertools import cycle

import ipywidgets

from flashlab.hardware import GPUS, Gpu, gpu as find_gpu, roofline
from flashlab.looks import ALGORITHMS
from flashlab.problem import ELEMENT_BYTES, AttentionProblem
from flashlab.traffic.model import flash2_traffic, fused_traffic, standard_traffic
from flashlab.widgets.panel import Choice, Panel, Slider, si, times

SIZES = [2**power for power in range(7, 18)]  # 128 to 131,072
HEAD_DIMS = [32, 64, 96, 128, 192, 256]
OTHER_LOOKS = [("#333333", "o"), ("#666666", "D"), ("#000000", "v"), ("#999999", "p")]  # of points that looks.py does not know, in turn
INCHES, ROW_INCHES = 4.6, 0.24  # the figure's height, and what a row of the legend under it adds


def roofline_figure(gpu: Gpu | str, points: list[tuple], dtype: str = "float16", ceilings: dict[str, float] | None = None):
    """A matplotlib Figure: FLOP/s against FLOP a byte, both logarithmic, with the two ceilings of a GPU.

    `points` are (key of looks.ALGORITHMS or a label, intensity in FLOP a byte, FLOP/s or None for what the roofline
    allows); "standard: by counters" is standard attention again, with a hollow mark and these words. `ceilings` are measured
    ones, {"hbm_bytes_per_s": 4.26e12, "flops_per_s": 798e12}, drawn dashed. The legend stands below, clear of the points.
    """
    from matplotlib.figure import Figure

    row = find_gpu(gpu)
    ridge, peak = row.ridge(dtype), row.peak_flops_per_s(dtype)
    placed = sorted(((key, x, row.attainable_flops_per_s(x, dtype) if y is None else y, y is None) for key, x, y in points), key=lambda point: point[1])
    low = min([ridge / 100, *(x / 3 for _, x, _, _ in placed)])
    high = max([ridge * 30, *(x * 4 for _, x, _, _ in placed)])
    bottom, top = low * row.hbm_bytes_per_s, peak * 4

    below = ROW_INCHES * len(placed)
    height = INCHES + below
    figure = Figure(figsize=(8, height))
    edges = {"bottom": (0.115 * INCHES + below) / height, "top": 1 - 0.075 * INCHES / height}
    figure.subplots_adjust(left=0.115, right=0.98, **edges)  # fixed, so that angles on the page are known
    axes = figure.add_subplot(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    axes.set_xlabel("intensity: FLOP for each byte moved through HBM")
    axes.set_ylabel("FLOP/s")
    axes.yaxis.set_major_formatter(lambda value, _: si(value, "").replace(".00", "").replace(".0", ""))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title(f"{row.product}, {dtype}: dense peaks by the data sheet", fontsize=11)
    axes.grid(color="#e8e8e8", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvspan(low, ridge, color="#0072B2", alpha=0.05, linewidth=0)
    axes.axvline(ridge, color="#888888", linewidth=0.8, linestyle=":")
    axes.text(ridge / 1.15, top / 1.15, "◂ memory-bound", ha="right", va="top", fontsize=9, color="#555555")
    axes.text(ridge * 1.15, top / 1.15, f"compute-bound ▸\nridge: {_number(ridge)} FLOP/byte", ha="left", va="top", fontsize=9, color="#555555")

    _roof(axes, (low, high), row.hbm_bytes_per_s, peak, "-")
    axes.text(high / 1.1, peak * 1.15, f"arithmetic: {si(peak, 'FLOP/s')}", ha="right", va="bottom", fontsize=9)
    (x0, y0), (x1, y1) = axes.transData.transform([(low, bottom), (ridge, peak)])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    axes.text(
        low * 2, bottom * 2 * 1.3, f"memory: {si(row.hbm_bytes_per_s, 'B/s')}",
        ha="left", va="bottom", fontsize=9, rotation=angle, rotation_mode="anchor",
    )  # fmt: skip
    if ceilings:
        bandwidth, measured = ceilings.get("hbm_bytes_per_s", row.hbm_bytes_per_s), ceilings.get("flops_per_s", peak)
        _roof(axes, (low, high), bandwidth, measured, "--")
        label = f"measured: {si(bandwidth, 'B/s')}, {si(measured, 'FLOP/s')}"
        axes.text(high / 1.1, measured / 1.2, label, ha="right", va="top", fontsize=9, color="#555555")
    others = cycle(OTHER_LOOKS)
    for key, x, y, is_bound in placed:
        base, _, words = key.partition(": ")
        look = ALGORITHMS.get(base if words else key)
        label, colour, marker = look or (key, *next(others))
        again = words and base in ALGORITHMS
        hollow = {"markerfacecolor": "none", "markeredgecolor": colour, "markersize": 15} if again else {"markeredgecolor": "white", "markersize": 10}
        label += f", {words}" if again else ""
        rate = f"{'at most ' if is_bound else ''}{si(y, 'FLOP/s')}"
        axes.plot([x, x], [bottom, y], color=colour, linewidth=1, zorder=1)
        axes.plot(
            [x], [y], marker, color=colour, markeredgewidth=1.2, linestyle="none", zorder=4, **hollow,
            label=f"{label}: {_number(x)} FLOP/byte, {rate}",
        )  # fmt: skip
    if placed:
        figure.legend(*axes.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(0.115, 0), fontsize=9, frameon=False, labelspacing=0.5)
    return figure


def _number(intensity: float) -> str:
    """Three digits: 0.985, 62.1, 2,048."""
    return f"{intensity:,.0f}" if intensity >= 100 else f"{intensity:.3g}"


def _roof(axes, span: tuple[float, float], bytes_per_s: float, flops_per_s: float, style: str) -> None:
    """The two ceilings over `span` FLOP a byte."""
    low, high = span
    corner, width = flops_per_s / bytes_per_s, 2 if style == "-" else 1.2
    axes.plot([low, corner, high], [low * bytes_per_s, flops_per_s, flops_per_s], style, color="#333333", linewidth=width, zorder=2)


def gpu_control(gpu: Gpu | str) -> Choice:
    """A list of the GPUs, by name; one that is not in the table (an estimate) is added to it."""
    row = find_gpu(gpu)
    return Choice("GPU", {row.name: row} | GPUS if row.name not in GPUS else GPUS, row)


def dtype_control(gpu: Gpu, dtype: str) -> Choice:
    """A list of the dtypes that a GPU has a rate for."""
    gpu.peak_flops_per_s(dtype)
    return Choice("dtype", _dtypes(gpu), dtype)


def _dtypes(gpu: Gpu) -> dict[str, str]:
    return {dtype: dtype for dtype in ELEMENT_BYTES if dtype in gpu.flops_per_s}


def match_dtypes(controls: dict) -> None:
    """Offer only the chosen GPU's dtypes; where the one chosen is not among them, take float16."""
    dtypes, control = _dtypes(controls["gpu"].value), controls["dtype"]
    if control.options != list(dtypes):
        control.offer(dtypes, control.value if control.value in dtypes else "float16")


class Roofline(Panel):
    """Pick a GPU, n, head_dim, dtype and causal; see where standard, tiled and fused attention sit on its roofline.

    One head of n queries and n keys, FlashAttention-2 in tiles of `block` by `block`.

    >>> Roofline("H200", n=4096).values["n"]
    4096
    """

    def __init__(self, gpu: Gpu | str = "H200", n: int = 4096, head_dim: int = 128, dtype: str = "float16", causal: bool = False, block: int = 128) -> None:
        self.block = block
        choose = gpu_control(gpu)
        super().__init__(
            {
                "gpu": choose,
                "dtype": dtype_control(choose.value, dtype),
                "causal": ipywidgets.Checkbox(value=causal, description="causal"),
                "n": Slider("n", SIZES, n),
                "head_dim": Slider("head_dim", HEAD_DIMS, head_dim),
            }
        )

    def adjust(self) -> None:
        match_dtypes(self.controls)

    def bounds(self) -> dict[str, object]:
        """{"standard" | "flash2" | "fused": hardware.Bound} of what the controls say."""
        values = self.values
        problem = AttentionProblem(
            n_q=values["n"], n_k=values["n"], head_dim=values["head_dim"], dtype=values["dtype"], causal=values["causal"]
        )
        traffic = {
            "standard": standard_traffic(problem),
            "flash2": flash2_traffic(problem, block_q=self.block, block_k=self.block),
            "fused": fused_traffic(problem),
        }
        return {key: roofline(problem, values["gpu"], moved.bytes_moved) for key, moved in traffic.items()}

    def draw(self, *, gpu: Gpu, dtype: str, causal: bool, n: int, head_dim: int):
        bounds = self.bounds()
        figure = roofline_figure(gpu, [(key, bound.intensity, None) for key, bound in bounds.items()], dtype)
        standard, flash2, fused = bounds.values()
        setting = f"{gpu.name}, {dtype}, n = {n:,}, head_dim {head_dim}{', causal' if causal else ''}"
        sentence = (
            f"{setting}: {_placed('standard attention', standard)}; {_placed(f'FlashAttention-2 in tiles of {self.block} (no cache counted)', flash2)};"
            f" {_placed('moving q, k, v and o once', fused)}. No fused kernel can be more than"
            f" {times(standard.time_s / fused.time_s)} times as fast as standard attention at its roof."
        )
        return figure, sentence


def _placed(what: str, bound) -> str:
    """Where one algorithm sits, in words."""
    ratio = bound.intensity / bound.gpu.ridge(bound.dtype)
    side = f"{times(ratio)} times above" if ratio >= 1 else f"{times(1 / ratio)} times below"
    return f"{what} does {_number(bound.intensity)} FLOP a byte, {side} the ridge, so it is {bound.binds}-bound"
