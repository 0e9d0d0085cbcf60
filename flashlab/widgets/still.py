"""A still picture of a trace at one step: what GitHub, nbconvert and an untrusted JupyterLab show of the tile loop.

The same data as the widget (traffic/trace.py), drawn by matplotlib on white so that it reads in a dark theme too.
Unlike the widget: one step, one below the other, and no numbers of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashlab import looks
from flashlab.traffic.trace import OPS, Trace
from flashlab.widgets.faults import Fault
from flashlab.widgets.picture import png
from flashlab.widgets.reading import lanes, manages_sram, score_tiles, sizes, standard_bytes

WIDTH, HEIGHT = 900, 300  # pixels for one trace
INK, MUTED, LINE, CARD, WRONG = "#212121", "#5f5f5f", "#bdbdbd", "#f2f2f2", "#c62828"
_FIRST = ("q", "k", "v", "o")


def middle(traces: Sequence[Trace]) -> int:
    """A telling step: the tile worked on halfway through the trace with the most steps, or its middle without tiles."""
    trace = max(traces, key=len)
    tiles = score_tiles(trace)
    return int(tiles[len(tiles) // 2][0]) + 1 if len(tiles) else len(trace) // 2


def still(traces: Sequence[Trace], step: int, faults: Sequence[Fault] = (), *, caption: str = "") -> bytes:
    """A PNG of the traces at `step` (events 0 to step - 1 have happened), one below the other, over a caption.

    `faults`, one a trace (faults.py), mark the wrong rows of o that are stored by then.

    >>> still([Trace("nothing yet", tensors={"q": (4, 4, 2)})], 0)[:4]
    b'\\x89PNG'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 100, HEIGHT * len(traces) / 100))
    for i, trace in enumerate(traces):
        axes = figure.add_axes((0, 1 - (i + 1) / len(traces), 1, 1 / len(traces)))
        axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        axes.axis("off")
        _draw(_Pen(axes), trace, min(step, len(trace)), faults[i] if faults else Fault())
    return png(figure, WIDTH, caption)


class _Pen:
    """Rectangles and texts in pixels, from the top left."""

    def __init__(self, axes) -> None:
        self._axes = axes

    def box(self, x, y, width, height, fill="none", edge="none", alpha=1.0, **style) -> None:
        from matplotlib.patches import Rectangle

        self._axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor="none", alpha=alpha))
        self._axes.add_patch(Rectangle((x, y), width, height, facecolor="none", edgecolor=edge, **{"linewidth": 0.8} | style))

    def boxes(self, boxes: np.ndarray, fills, edges, widths=0.8) -> None:
        """Many rectangles (x, y, width, height) at once: a large score grid has thousands of tiles."""
        from matplotlib.collections import PolyCollection

        x, y, width, height = boxes.T
        corners = np.stack([(x, y), (x + width, y), (x + width, y + height), (x, y + height)]).transpose(2, 0, 1)
        self._axes.add_collection(PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=widths))

    def text(self, x, y, text, size=8, colour=INK, **style) -> None:
        self._axes.text(x, y, text, fontsize=size, color=colour, **{"va": "center"} | style)


def _draw(pen: _Pen, trace: Trace, step: int, fault: Fault) -> None:
    columns, lane = trace.columns[:step], lanes(trace)
    shown = int(lane[step - 1]) if step else 0
    look = {look.label: look.colour for look in looks.ALGORITHMS.values()}.get(trace.title, MUTED)
    pen.box(14, 12, 10, 10, look)
    pen.text(31, 17, trace.title, 10, weight="bold")
    pen.text(WIDTH - 14, 17, f"step {step:,} of {len(trace):,}", colour=MUTED, ha="right")
    _draw_hbm(pen, trace, columns, [row for row, stored in fault.wrong_rows.items() if stored <= step])
    _draw_grid(pen, trace, step, shown)
    _draw_sram(pen, trace, columns)
    loaded = int(columns["bytes"][columns["op"] == OPS.index("load")].sum())
    stored = int(columns["bytes"][np.isin(columns["op"], [OPS.index("store"), OPS.index("atomic")])].sum())
    standard = standard_bytes(trace)
    beside = f"; in all {trace.bytes_moved:,}, standard attention {standard:,}" if standard else f"; in all {trace.bytes_moved:,}"
    pen.text(14, HEIGHT - 14, f"so far {loaded:,} bytes loaded and {stored:,} stored{beside}", 9)


def _draw_hbm(pen: _Pen, trace: Trace, columns: np.ndarray, wrong_rows: Sequence[int]) -> None:
    pen.box(14, 32, 280, 240, CARD, LINE)
    pen.text(24, 44, "HBM", 9, weight="bold")
    n_q, n_k = sizes(trace)
    square = [name for name, (r, c, _) in trace.tensors.items() if name not in _FIRST and (r, c) == (n_q, n_k) and c > 1]
    order = {name: place for place, name in enumerate(_FIRST)}
    bands = sorted((name for name in trace.tensors if name not in square), key=lambda name: order.get(name, 9))
    longest, x = max((trace.tensors[name][0] for name in bands), default=1) or 1, 28.0
    unit = min(34, 240 / max(len(bands), 1) - 10)
    for name in bands:
        rows, cols, _ = trace.tensors[name]
        width = unit if cols > 1 else unit * 0.45
        height = 110 * rows / longest
        _draw_tensor(pen, trace, columns, name, (x, 72, width, height), cols > 1)
        if name == "o" and wrong_rows:
            for row in wrong_rows:
                pen.box(x, 72 + height * row / rows, width, height / rows, WRONG)
            pen.text(x + width / 2, 80 + height, f"✗ {len(wrong_rows)} wrong", 8, WRONG, ha="center", weight="bold", fontfamily="DejaVu Sans")
        x += width + 10
    side = 62
    if not square and len(score_tiles(trace)):
        pen.box(28, 198, side, side, "none", MUTED, linestyle="--", hatch="////", linewidth=0.5)
        pen.text(100, 221, f"scores, {n_q:,} × {n_k:,}", weight="bold")
        pen.text(100, 236, "never stored")
    for i, name in enumerate(square):
        _draw_tensor(pen, trace, columns, name, (28 + i * (side + 28), 206, side, side - 4), True)


def _draw_tensor(pen: _Pen, trace: Trace, columns: np.ndarray, name: str, box: tuple, named_above: bool) -> None:
    (x, y, width, height), (rows, cols, _) = box, trace.tensors[name]
    colour = looks.TENSORS.get(name, looks.OTHER_TENSOR)
    mine = trace.select("load", "store", "atomic", tensor=name)
    given = not len(mine) or mine["op"][0] != OPS.index("store")  # an input: it is there before anything moves
    pen.box(x, y, width, height, colour if given else "white", "none", 0.3 if given else 1)
    moved = name in trace.tensor_names and rows and cols  # a tensor without rows is loaded too, but has no part to draw
    so_far = columns[columns["tensor"] == trace.tensor_names.index(name)] if moved else columns[:0]
    for part in np.unique(so_far[["op", "row0", "col0", "rows", "cols"]]):
        if part["op"] == OPS.index("store") and not given:
            place = (x + width * part["col0"] / cols, y + height * part["row0"] / rows)
            pen.box(*place, width * part["cols"] / cols, height * part["rows"] / rows, colour, colour, 0.55, linewidth=0.4)
    loads = so_far[so_far["op"] == OPS.index("load")]
    if len(loads):  # the tile read last
        row0, col0, count, across = (int(loads[field][-1]) for field in ("row0", "col0", "rows", "cols"))
        pen.box(x + width * col0 / cols, y + height * row0 / rows, width * across / cols, height * count / rows, colour, colour, 0.5)
    pen.box(x, y, width, height, "none", colour, linestyle="-" if given else "--")
    if named_above:
        pen.text(x + width / 2, y - 9, name, 9, ha="center", weight="bold")
    else:
        pen.text(x + width / 2, y + height / 2, name, 7, ha="center", rotation=90)


def _draw_grid(pen: _Pen, trace: Trace, step: int, lane: int) -> None:
    from matplotlib.colors import to_rgba

    n_q, n_k = (max(size, 1) for size in sizes(trace))
    scale = min(250 / n_k, 180 / n_q)
    width, height = max(n_k * scale, 6), max(n_q * scale, 6)
    x, y, colour = 440 - width / 2, 64, looks.TENSORS["scores"]
    pen.text(x + width / 2, 54, "k rows →", ha="center")
    pen.text(x - 10, y + height / 2, "← q rows", ha="center", rotation=90)
    tiles = score_tiles(trace)
    tiles = tiles[tiles[:, 1] == lane]
    if len(tiles):
        pen.box(x, y, width, height, "none", LINE, hatch="////", linewidth=0.5)
        places, which = np.unique(tiles[:, 2:], axis=0, return_inverse=True)
        which = which.ravel()
        total, past = np.bincount(which), np.bincount(which[tiles[:, 0] < step], minlength=len(places))
        now = np.isin(np.arange(len(places)), which[tiles[:, 0] == step - 1])
        boxes = places[:, [1, 0, 3, 2]] * scale + (x, y, 0, 0)
        alpha = np.where(now, 0.8, np.where(past > 0, 0.12 + 0.25 * past / total, 0))
        pen.boxes(boxes, "white", LINE)
        pen.boxes(boxes, [to_rgba(colour, a) for a in alpha], [to_rgba(INK, float(n)) for n in now], 1.6)
        for place, so_far, of, current in zip(boxes, past, total, now) if boxes[:, 2:].min() > 10 else ():
            if so_far and not current:
                text = "✓" if so_far == of else f"{so_far}/{of}"
                pen.text(place[0] + place[2] / 2, place[1] + place[3] / 2, text, ha="center", fontfamily="DejaVu Sans")
    pen.box(x, y, width, height, "none", MUTED)
    pen.text(440, 262, "✓ done · dark: now · white: to come · hatched: skipped", 7, MUTED, ha="center", fontfamily="DejaVu Sans")


def _held(trace: Trace, columns: np.ndarray) -> dict[str, np.void]:
    """The tiles in SRAM after these events: what was loaded or held last under each name, unless released since."""
    if not manages_sram(trace) and len(columns):
        columns = columns[columns["program"] == columns["program"][-1]]
    moves = columns[np.isin(columns["op"], [OPS.index(op) for op in ("load", "hold", "release")])]
    last = {name: moves[moves["tensor"] == code] for code, name in enumerate(trace.tensor_names)}
    return {name: mine[-1] for name, mine in last.items() if len(mine) and mine["op"][-1] != OPS.index("release")}


def _draw_sram(pen: _Pen, trace: Trace, columns: np.ndarray) -> None:
    pen.box(606, 32, 280, 240, CARD, LINE)
    pen.text(616, 44, "SRAM", 9, weight="bold")
    held = _held(trace, columns)
    for i, (name, event) in enumerate(held.items()):
        y = 64 + i * min(24, 150 / len(held))
        pen.box(618, y - 6, 16, 12, looks.TENSORS.get(name, looks.OTHER_TENSOR), INK, 0.8, linewidth=0.5)
        pen.text(644, y, name, weight="bold")
        pen.text(712, y, f"{event['rows']} × {event['cols']}", colour=MUTED)
        pen.text(874, y, f"{event['bytes']:,} bytes", ha="right")
    used, budget = sum(int(event["bytes"]) for event in held.values()), trace.sram_bytes or trace.peak_sram_bytes
    pen.box(618, 230, 256, 10, "white", MUTED)
    pen.box(618, 230, 256 * used / max(budget, used, 1), 10, INK, "none", 0.6)
    pen.text(618, 254, f"{used:,} of {budget:,} bytes" if trace.sram_bytes else f"{used:,} bytes held, {budget:,} at most")
