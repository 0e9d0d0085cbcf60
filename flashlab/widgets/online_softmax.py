"""One row of scores through the online softmax, tile by tile: row_max, row_sum, the rescale factor, and acc.

The function on the screen is the one you pass, and the picture is its Trace. Stepping costs no kernel round trip; an
edited score goes to the kernel, which runs the function again. At the end its result is compared with the exact softmax,
computed here in three passes over the whole row. Your own function works too, if it takes the same arguments and calls
memory.compute(..., row_max=..., row_sum=..., rescale=...) once a tile.
What it does not do: more than one row. The tile-loop widget shows those.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import anywidget
import numpy as np
import traitlets as t

from flashlab.errors import error
from flashlab.looks import TENSORS
from flashlab.traffic.memory import Memory
from flashlab.traffic.trace import Trace
from flashlab.widgets.picture import png

_STATIC = Path(__file__).parent / "static"
_NEEDED = ("row_max", "row_sum", "rescale")
STILL_PX = 990  # width of the still picture
_ORDINARY = (1.2, 0.3, 2.1, -0.5, 0.8, 3.4, 1.9, -1.1, 2.6, 0.1, 1.4, 2.2)
_HUGE = (9998, -10000, 9999.5, 250, -9000, 10000, 9997, 9999, -3, 10001, 9999, -10000)


def presets(n: int, block_k: int) -> dict[str, list[float]]:
    """Rows of n scores worth feeding; the last one has -inf throughout its first tile of `block_k` and in places after.

    >>> presets(3, 1)["rising"]
    [-1.0, -0.5, 0.0]
    """
    ordinary, places = np.resize(_ORDINARY, n), np.arange(n)
    return {
        "ordinary": ordinary.tolist(),
        "huge, up to ±10,000": np.resize(np.float64(_HUGE), n).tolist(),
        "all equal": [2.0] * n,
        "rising": (places / 2 - 1).tolist(),
        "with -inf (masked)": np.where((places < block_k) | (places % 3 == 2), -np.inf, ordinary).tolist(),
    }


def exact_softmax(scores: np.ndarray) -> np.ndarray:
    """softmax of one row (n,) in float64, in three passes: the maximum, the sum, the division. All -inf gives zeros."""
    scores = np.asarray(scores, np.float64)
    weights = np.exp(scores - (scores.max() if scores.max() > -np.inf else 0))
    return weights / (weights.sum() or 1)


def _to_wire(value):
    """JSON has no infinity and no nan, so they travel as strings, as in Trace.to_dict."""
    if isinstance(value, list):
        return [_to_wire(x) for x in value]
    return value if np.isfinite(value) else str(float(value))


def _plain(value: list, _widget: object = None) -> list:
    return [float(x) for x in value]


class OnlineSoftmax(anywidget.AnyWidget):
    """`OnlineSoftmax(softmax_two_passes)`: play or step through one row of scores, and edit them.

    `function(scores, block_k=..., memory=...)` gets scores of shape (1, n) and returns the weights (1, n); with `values`
    (n, head_dim) it is called as function(scores, values, ...) and returns o (1, head_dim), as softmax_dot_one_pass does.
    `scores` defaults to a row of twelve. Readable while it runs: scores, block_k, step, trace, result, exact, difference.

    Raises ValueError where scores, values or the function's trace cannot be used.
    """

    _esm = _STATIC / "online_softmax.js"
    _css = _STATIC / "online_softmax.css"
    scores = t.List().tag(sync=True, to_json=lambda value, _: _to_wire(value), from_json=_plain)
    block_k = t.Int(4).tag(sync=True)
    step = t.Int(0).tag(sync=True)
    playing = t.Bool(False).tag(sync=True)
    run = t.Dict(help="the last run: its scores, trace, result, exact, difference, or the fault").tag(sync=True)
    presets = t.Dict().tag(sync=True)
    colours = t.Dict({name: TENSORS[name] for name in ("scores", "acc")}).tag(sync=True)

    def __init__(self, function: Callable, scores: object = None, *, values: object = None, block_k: int = 4) -> None:
        given = np.asarray(_ORDINARY if scores is None else scores)
        self._dtype = given.dtype if given.dtype.kind == "f" else np.dtype(np.float64)
        self._function = function
        self._values = None if values is None else np.atleast_2d(np.asarray(values, self._dtype).T).T
        start = self._checked(given)
        named = presets(len(start), block_k if isinstance(block_k, int) else 1)
        choices = named if scores is None else {"as given": start} | named
        self._run(start, block_k)
        wire = {name: _to_wire(row) for name, row in choices.items()}
        super().__init__(scores=start, block_k=block_k, presets=wire, run=self._message(start, block_k))
        self.observe(self._edited, ["scores", "block_k"])

    @t.validate("scores")
    def _valid(self, proposal: dict) -> list[float]:
        return self._checked(proposal["value"])

    @staticmethod
    def _checked(scores: object) -> list[float]:
        row = np.asarray(scores)
        if row.ndim != 1 or not row.size or row.dtype.kind not in "fiu" or np.isnan(row).any() or (row == np.inf).any():
            raise error("softmax_scores", given=scores if row.size < 20 else f"an array of shape {row.shape}")
        return row.astype(float).tolist()

    def _run(self, scores: list[float], block_k: int) -> None:
        """Feed the row to the function; sets trace, result, exact and difference."""
        row = np.array([scores], self._dtype)
        if self._values is not None and len(self._values) != len(scores):
            raise error("softmax_values", given=self._values.shape, needed=len(scores))
        memory = Memory("online softmax", watch=(*_NEEDED, "acc"))
        extra = () if self._values is None else (self._values,)
        result = np.ravel(self._function(row, *extra, block_k=block_k, memory=memory))
        tiles = _tiles(memory.trace)
        missing = [name for name in _NEEDED if not tiles or any(name not in values for *_, values in tiles)]
        if missing:
            raise error("softmax_trace", missing=", ".join(missing))
        exact = exact_softmax(row[0])
        exact = exact if self._values is None else exact @ self._values.astype(np.float64)
        if result.shape != exact.shape:
            raise error("softmax_result", given=result.size, needed=exact.size)
        self.trace, self.result, self.exact = memory.trace, result, exact
        self.difference = float(np.abs(result - exact).max())

    @property
    def is_exact(self) -> bool:
        """Whether the result differs from the exact one by rounding only."""
        rounding = 16 * np.finfo(self.result.dtype).eps * max(1, np.abs(self.exact).max())
        return bool(self.difference <= rounding)  # False for nan

    def _message(self, scores: list[float], block_k: int) -> dict:
        ended = {name: _to_wire(np.asarray(getattr(self, name), float).tolist()) for name in ("result", "exact", "difference")}
        row = {"scores": _to_wire(scores), "block_k": block_k, "trace": self.trace.to_dict(digits=17)}
        return row | ended | {"is_exact": self.is_exact, "has_values": self._values is not None, "fault": "", "count": 0}  # count: so that no answer is lost for equalling the last

    def _edited(self, _change: dict) -> None:
        try:
            self._run(self.scores, self.block_k)
        except Exception as fault:  # the reader's own function may raise anything; the widget shows it, and the row stays
            self.run = self.run | {"fault": f"{type(fault).__name__}: {fault}", "count": self.run["count"] + 1}
        else:
            self.run = self._message(self.scores, self.block_k) | {"count": self.run["count"] + 1}

    def __repr__(self) -> str:
        tiles = _tiles(self.trace)
        last, n = tiles[-1][2], len(self.run["scores"])
        rises = sum(now[2]["row_max"].item() > before[2]["row_max"].item() for before, now in zip(tiles, tiles[1:]))
        return (
            f"Online softmax of {n} score{'s' * (n != 1)} in {len(tiles)} tile{'s' * (len(tiles) != 1)}: row_max ends at"
            f" {last['row_max'].item():.6g} after rising {rises} time{'s' * (rises != 1)}, row_sum at {last['row_sum'].item():.6g};"
            f" the result differs from the exact one by {self.difference:.2g}"
        )

    def figure(self):
        """A still picture of the whole row, for readers without a kernel."""
        return _still(np.array(self.run["scores"], float), _tiles(self.trace))

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        said = f"{self!r}."
        data |= {"text/plain": repr(self), "image/png": base64.b64encode(png(self.figure(), STILL_PX, said)).decode()}
        return data, metadata | {"image/png": {"alt": said}}


def _tiles(trace: Trace) -> list[tuple[int, int, dict[str, np.ndarray]]]:
    """(first column, column after the last, values) of each tile that was worked in."""
    events = [(trace[step], values) for step, values in trace.values.items()]
    return [(e.col0, e.col0 + e.cols, values) for e, values in events if e.op == "compute"]


def _still(scores: np.ndarray, tiles: list[tuple[int, int, dict[str, np.ndarray]]]):
    """A matplotlib Figure: scores and running row_max above; below, each tile's numbers over the final weights."""
    from matplotlib.figure import Figure

    figure = Figure((9, 4.6), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    places = np.arange(len(scores))
    above.bar(places, np.where(np.isneginf(scores), 0, scores), color=TENSORS["scores"], width=0.7)
    weights = exact_softmax(scores)
    below.bar(places, weights, color=TENSORS["weights"], width=0.7, hatch="//", edgecolor="white")
    below.set_ylim(0, weights.max() * 1.75)
    for place in places[np.isneginf(scores)]:
        above.annotate("-inf", (place, 0), ha="center", va="bottom", fontsize=8)
    for number, (start, stop, values) in enumerate(tiles, 1):
        row_max, rescale, row_sum = (values[name].item() for name in ("row_max", "rescale", "row_sum"))
        if row_max > -np.inf:
            above.hlines(row_max, start - 0.5, stop - 0.5, color="black", linewidth=2.5, label="row_max so far" if stop == len(scores) else None)
        for axes in (above, below):
            axes.axvline(stop - 0.5, color="0.6", linewidth=0.8, linestyle="--")
        lines = f"tile {number}: rescale × {rescale:.4g}\nrow_max {row_max:.6g}\nrow_sum {row_sum:.4g}"
        below.text((start + stop - 1) / 2, weights.max() * 1.7, lines, ha="center", va="top", fontsize=8)
    above.axhline(0, color="0.3", linewidth=0.8)
    above.legend(loc="lower right", fontsize=8)
    above.set_ylabel("score")
    below.set_ylabel("weight")
    below.set_xlabel("column of the row (dashed: edges of the tiles)")
    below.set_xticks(places, places + 1)
    return figure
