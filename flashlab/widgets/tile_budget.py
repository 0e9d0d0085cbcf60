"""How large may a tile be? The SRAM that one program holds, part by part, against the budget, and what the tiles cost.

Larger q tiles mean fewer passes over k and v, so fewer bytes from HBM; but q, k and v tiles, acc and the scores tile
must fit on the chip together. The SRAM here is the course's model, in which everything lies in SRAM: on a GPU the scores
and acc sit in registers (256 KiB a multiprocessor), so real kernels use larger tiles than this budget allows.

Sizes: traffic/model.py. Budget: the shared memory of one block.
"""

from __future__ import annotations

from flashlab.hardware import Gpu
from flashlab.looks import ALGORITHMS, OTHER_TENSOR, TENSORS
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import flash1_sram_parts, flash1_traffic, flash2_sram_parts, flash2_traffic, fused_traffic, standard_traffic
from flashlab.widgets.panel import Choice, Panel, Slider, si, times
from flashlab.widgets.roofline import HEAD_DIMS, SIZES, dtype_control, gpu_control, match_dtypes

BLOCKS = [16, 32, 64, 128, 256, 512]
TRAFFIC = {"flash1": flash1_traffic, "flash2": flash2_traffic}
SRAM_PARTS = {"flash1": flash1_sram_parts, "flash2": flash2_sram_parts}


class TileBudget(Panel):
    """Sliders for the tiles; the SRAM they fill on a GPU, whether they fit, and the bytes moved with them.

    One head of n queries and n keys. `algorithm` is "flash1" or "flash2".

    >>> TileBudget("H100").fits
    True
    """

    def __init__(
        self,
        gpu: Gpu | str = "H100",
        n: int = 4096,
        head_dim: int = 128,
        dtype: str = "float16",
        algorithm: str = "flash2",
        block_q: int = 128,
        block_k: int = 64,
    ) -> None:
        choose = gpu_control(gpu)
        names = {ALGORITHMS[key].label: key for key in TRAFFIC}
        super().__init__(
            {
                "gpu": choose,
                "dtype": dtype_control(choose.value, dtype),
                "algorithm": Choice("algorithm", names, algorithm),
                "n": Slider("n", SIZES, n),
                "head_dim": Slider("head_dim", HEAD_DIMS, head_dim),
                "block_q": Slider("block_q", BLOCKS, block_q),
                "block_k": Slider("block_k", BLOCKS, block_k),
            }
        )

    def adjust(self) -> None:
        match_dtypes(self.controls)

    @property
    def problem(self) -> AttentionProblem:
        """What the controls say, as a problem of one head."""
        values = self.values
        return AttentionProblem(n_q=values["n"], n_k=values["n"], head_dim=values["head_dim"], dtype=values["dtype"])

    @property
    def sram_parts(self) -> dict[str, int]:
        """{tile: bytes} of SRAM that one program needs."""
        values = self.values
        return SRAM_PARTS[values["algorithm"]](self.problem, block_q=values["block_q"], block_k=values["block_k"])

    @property
    def sram_bytes(self) -> int:
        """Bytes of SRAM that one program needs."""
        return sum(self.sram_parts.values())

    @property
    def fits(self) -> bool:
        """Whether that is within one block's shared memory."""
        return self.sram_bytes <= self.values["gpu"].sram_bytes_per_block

    @property
    def bytes_moved(self) -> dict[str, int]:
        """{algorithm: bytes through HBM} for standard attention, the one chosen, and q, k, v, o once."""
        values, problem = self.values, self.problem
        chosen = TRAFFIC[values["algorithm"]](problem, block_q=values["block_q"], block_k=values["block_k"])
        moved = {"standard": standard_traffic(problem), values["algorithm"]: chosen, "fused": fused_traffic(problem)}
        return {key: traffic.bytes_moved for key, traffic in moved.items()}

    def draw(self, *, gpu: Gpu, dtype: str, algorithm: str, n: int, head_dim: int, block_q: int, block_k: int):
        budget, used, moved = gpu.sram_bytes_per_block, self.sram_bytes, self.bytes_moved
        figure = tile_budget_figure(self.sram_parts, budget, moved, gpu.name)
        ratio = moved["standard"] / moved[algorithm]
        compared = f"{times(ratio)} times less than" if ratio > 1 else f"{times(1 / ratio)} times more than"
        compared = "about as much as" if times(max(ratio, 1 / ratio)) == "1.0" else compared
        verdict = "fit" if self.fits else "do not fit"
        sentence = (
            f"{ALGORITHMS[algorithm].label} in tiles of {block_q} queries by {block_k} keys ({dtype}, head_dim {head_dim}) holds"
            f" {_kib(used)} of SRAM; the {gpu.name} leaves one program {_kib(budget)}, so the tiles {verdict}. With them it moves"
            f" {si(moved[algorithm], 'B')} at n = {n:,}, {compared} standard attention's {si(moved['standard'], 'B')}."
        )
        return figure, sentence


def tile_budget_figure(parts: dict[str, int], budget: int, moved: dict[str, int], gpu_name: str):
    """A matplotlib Figure: above, the parts of SRAM in one bar with the budget as a line; below, the bytes moved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6))
    figure.subplots_adjust(left=0.2, right=0.97, top=0.92, bottom=0.115, hspace=0.62)
    held, traffic = figure.subplots(2, 1, height_ratios=(1.15, 1))
    used = sum(parts.values())
    fits = used <= budget
    start = 0
    for name, size in parts.items():
        colour = TENSORS.get(name, OTHER_TENSOR)
        hatch = "///" if name == "acc" else ""  # acc has o's colour
        held.barh(0, size / 1024, left=start / 1024, height=0.62, color=colour, hatch=hatch, edgecolor="white", label=f"{name}: {_kib(size)}")
        if size > 0.06 * max(used, budget):
            box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5} if hatch else None
            held.text((start + size / 2) / 1024, 0, name, ha="center", va="center", fontsize=9, color=_ink(colour), bbox=box)
        start += size
    held.plot([budget / 1024] * 2, [-0.5, 0.5], color="black", linewidth=2.5, solid_capstyle="butt", zorder=3)
    held.set_xlim(0, 1.12 * max(used, budget) / 1024)
    held.set_ylim(-1.8, 0.6)
    left_half = budget > 0.75 * max(used, budget)
    held.text(budget / 1024, -0.55, f"budget: {_kib(budget)}", ha="right" if left_half else "left", va="top", fontsize=9, fontweight="bold")
    held.set_yticks([0], [f"SRAM: {_kib(used)}\n{'fits' if fits else 'DOES NOT FIT'}"], fontweight="bold")
    held.set_xlabel("KiB held by one program")
    held.set_title(f"one block of the {gpu_name}", fontsize=11)
    held.legend(loc="lower left", ncols=4, fontsize=8, frameon=False, handlelength=1.2, columnspacing=1.2, borderaxespad=0)

    for place, (key, size) in enumerate(moved.items()):
        label, colour, _ = ALGORITHMS[key]
        traffic.barh(-place, size / 1e6, height=0.62, color=colour)
        traffic.text(size / 1e6, -place, f"  {si(size, 'B')}", ha="left", va="center", fontsize=9)
    traffic.set_yticks([-place for place in range(len(moved))], [ALGORITHMS[key].label for key in moved])
    traffic.set_xlim(0, 1.18 * max(moved.values()) / 1e6)
    traffic.set_xlabel("MB moved through HBM, one head")
    for axes in (held, traffic):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour (relative luminance as in WCAG, without its gamma)."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else "white"


def _kib(size: int) -> str:
    return f"{size / 1024:,.1f} KiB" if size < 10 * 1024 else f"{size / 1024:,.0f} KiB"
