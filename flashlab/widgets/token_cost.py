"""What attention costs: bytes of scores kept, time and dollars a token, standard attention against a fused kernel.

Every number is a lower bound from the roofline: the bytes and FLOPs of traffic/model.py at hardware.py's data-sheet
peaks, for the attention of one prefill and nothing else. The projections, the MLP, the rest of the server and an idle
GPU come on top; a price is yours to type. What fused attention keeps of the scores is one tile, on the chip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ipywidgets

from flashlab.errors import error
from flashlab.hardware import Bound, Gpu, roofline
from flashlab.looks import ALGORITHMS
from flashlab.problem import AttentionProblem, check_size
from flashlab.traffic.model import fused_traffic, standard_traffic
from flashlab.widgets.panel import Panel, Slider, si, times
from flashlab.widgets.roofline import HEAD_DIMS, SIZES, dtype_control, gpu_control, match_dtypes

NAMES = ["standard\nattention", "fused kernel:\nq, k, v, o once"]
EXAMPLE_DOLLARS = 3.0  # an hour of one GPU: a round number to start from, not anyone's price


@dataclass(frozen=True)
class Cost:
    """The least that the attention of `tokens` tokens through all layers can take."""

    bound: Bound
    tokens: int
    time_s: float
    dollars: float

    @property
    def microseconds_per_token(self) -> float:
        return self.time_s / self.tokens * 1e6

    @property
    def dollars_per_million_tokens(self) -> float:
        return self.dollars / self.tokens * 1e6

    def __repr__(self) -> str:
        return (
            f"at least {si(self.microseconds_per_token * 1e-6, 's')} and {_dollars(self)} a million tokens,"
            f" {self.bound.binds}-bound"
        )


def token_cost(problem: AttentionProblem, gpu: Gpu | str, dollars_per_hour: float, layers: int, bytes_moved: int | None = None) -> Cost:
    """The cost of `layers` attention layers of `problem` (all its batch and heads), one after another, on one GPU.

    `bytes_moved` is what one layer moves; by default q, k, v and o once. A token is one query row: batch · n_q of them.
    Raises ValueError for a price below zero, or a problem without a token.

    >>> token_cost(AttentionProblem(n_q=4096, n_k=4096, head_dim=128, heads=32), "H200", 3.0, layers=32)
    at least 2.17 µs and $0.0018 a million tokens, compute-bound
    """
    if not dollars_per_hour >= 0:
        raise error("dollars", given=dollars_per_hour)
    tokens = check_size("batch * n_q", problem.batch * problem.n_q)
    bound = roofline(problem, gpu, bytes_moved)
    time_s = check_size("layers", layers) * bound.time_s
    return Cost(bound, tokens, time_s, time_s / 3600 * dollars_per_hour)


class TokenCost(Panel):
    """Pick a GPU, its price, a model's sizes and a prompt's length; see what its attention costs at the least."""

    def __init__(
        self,
        gpu: Gpu | str = "H100",
        n: int = 8192,
        head_dim: int = 128,
        heads: int = 32,
        layers: int = 32,
        dtype: str = "float16",
        dollars_per_hour: float = EXAMPLE_DOLLARS,
    ) -> None:
        choose = gpu_control(gpu)
        super().__init__(
            {
                "gpu": choose,
                "dollars_per_hour": ipywidgets.BoundedFloatText(value=dollars_per_hour, min=0, max=1e4, step=0.1, description="$ an hour"),
                "dtype": dtype_control(choose.value, dtype),
                "n": Slider("n", SIZES, n),
                "head_dim": Slider("head_dim", HEAD_DIMS, head_dim),
                "heads": ipywidgets.BoundedIntText(value=heads, min=1, max=1024, description="heads"),
                "layers": ipywidgets.BoundedIntText(value=layers, min=1, max=1024, description="layers"),
            }
        )

    def adjust(self) -> None:
        match_dtypes(self.controls)

    @property
    def problem(self) -> AttentionProblem:
        """One layer of one prompt, as the controls say."""
        values = self.values
        return AttentionProblem(n_q=values["n"], n_k=values["n"], head_dim=values["head_dim"], heads=values["heads"], dtype=values["dtype"])

    def costs(self) -> dict[str, Cost]:
        """{"standard" | "fused": Cost} of what the controls say."""
        values, problem = self.values, self.problem
        moved = {"standard": standard_traffic(problem), "fused": fused_traffic(problem)}
        price = {"dollars_per_hour": values["dollars_per_hour"], "layers": values["layers"]}
        return {key: token_cost(problem, values["gpu"], bytes_moved=traffic.bytes_moved, **price) for key, traffic in moved.items()}

    @property
    def scores_bytes(self) -> int:
        """Bytes of one layer's scores and weights, which standard attention keeps in HBM; fused attention keeps none."""
        return 2 * self.problem.heads * self.problem.score_matrix_bytes

    def draw(self, *, gpu: Gpu, dollars_per_hour: float, dtype: str, n: int, head_dim: int, heads: int, layers: int):
        costs, kept = self.costs(), self.scores_bytes
        figure = token_cost_figure(costs, {"standard": kept, "fused": 0}, gpu, f"prompt of {n:,} tokens, {heads} heads of {head_dim}, {layers} layers")
        standard, fused = costs["standard"], costs["fused"]
        share = 100 * kept / gpu.hbm_bytes
        percent = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
        room = "more than its whole memory" if kept > gpu.hbm_bytes else f"{percent} % of its memory"
        sentence = (
            f"On the {gpu.name}, standard attention keeps {si(kept, 'B')} of scores and weights for one layer ({room}), a fused"
            f" kernel none. By the roofline, attention takes at least {si(standard.microseconds_per_token * 1e-6, 's')} a token"
            f" standard ({standard.bound.binds}-bound) and {si(fused.microseconds_per_token * 1e-6, 's')} fused"
            f" ({fused.bound.binds}-bound), {times(standard.time_s / fused.time_s)} times less; at ${dollars_per_hour:g} an hour"
            f" that is at least {_dollars(standard)} and {_dollars(fused)} a million tokens, for the attention alone."
        )
        return figure, sentence


def token_cost_figure(costs: dict[str, Cost], kept: dict[str, int], gpu: Gpu, title: str):
    """A matplotlib Figure: memory, latency and dollars, each a pair of bars, lower bounds all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4))
    figure.subplots_adjust(left=0.145, right=0.985, top=0.76, bottom=0.06, wspace=0.12)
    figure.suptitle(f"{gpu.product}: {title}", fontsize=11)
    panels = {
        "memory:\nscores and weights, one layer": {key: (size, si(size, "B")) for key, size in kept.items()},
        "latency:\nattention a token, at least": {
            key: (cost.microseconds_per_token, f"{si(cost.microseconds_per_token * 1e-6, 's')}\n{cost.bound.binds}-bound") for key, cost in costs.items()
        },
        "dollars:\na million tokens, at least": {key: (cost.dollars_per_million_tokens, _dollars(cost)) for key, cost in costs.items()},
    }
    for place, (axes, (name, bars)) in enumerate(zip(figure.subplots(1, 3), panels.items())):
        highest = max(value for value, _ in bars.values()) or 1
        for row, (key, (value, text)) in enumerate(bars.items()):
            inside = value > 0.55 * highest
            axes.barh(-row, value, height=0.62, color=ALGORITHMS[key].colour)
            axes.annotate(
                text, (value, -row), xytext=(-6 if inside else 6, 0), textcoords="offset points", ha="right" if inside else "left",
                va="center", fontsize=10, fontweight="bold", color="white" if inside else "black",
            )  # fmt: skip
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xlim(0, highest * 1.05)
        axes.set_ylim(-1.5, 0.5)
        axes.set_xticks([])
        axes.set_yticks([0, -1], NAMES if place == 0 else ["", ""])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def _dollars(cost: Cost) -> str:
    """Cents where there are any, else two digits: $1,204.00, $0.17, $0.000028."""
    amount = cost.dollars_per_million_tokens
    if amount >= 0.1 or amount == 0:
        return f"${amount:,.2f}"
    return f"${amount:.{1 - math.floor(math.log10(amount))}f}"
