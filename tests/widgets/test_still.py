"""The still picture of a trace, box by box and word by word: what the pen is told, against a plain replay of the trace."""

from __future__ import annotations

import re

import numpy as np
import pytest

from flashlab import looks
from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.standard import standard
from flashlab.traffic.memory import Memory
from flashlab.traffic.trace import Trace
from flashlab.widgets import still as still_module
from flashlab.widgets.faults import Fault
from flashlab.widgets.still import WRONG, still

GAUGE = (618, 230)  # its upper left corner
GAUGE_WIDTH, BUDGET = 256, 16_384
DONE, NOW, TO_COME = 0.12 + 0.25, 0.8, 0.0  # how dark a tile of the score grid is


class Told:
    """Stands in for still.py's pen: keeps what it is told to draw, and draws nothing."""

    def __init__(self, axes) -> None:
        self.filled, self.grid, self.words = [], [], []

    def box(self, x, y, width, height, fill="none", edge="none", alpha=1.0, **style) -> None:
        self.filled.append(((x, y, width, height), fill, alpha))

    def boxes(self, boxes, fills, edges, widths=0.8) -> None:
        self.grid.append((boxes, fills))

    def text(self, x, y, text, size=8, colour="", **style) -> None:
        self.words.append((x, y, text))

    def said(self) -> list[str]:
        return [text for *_, text in self.words]


@pytest.fixture
def told(monkeypatch):
    """told(trace, step, fault) -> what the pen is told for that step."""
    pens: list[Told] = []

    def pen(axes):
        pens.append(Told(axes))
        return pens[-1]

    monkeypatch.setattr(still_module, "_Pen", pen)

    def draw(trace: Trace, step: int, fault: Fault | None = None) -> Told:
        still([trace], step, [fault] if fault else ())
        return pens[-1]

    return draw


def traced(algorithm, n_q=48, n_k=64, sram_bytes=BUDGET, **options) -> Trace:
    memory = Memory(algorithm.__name__, sram_bytes=sram_bytes)
    algorithm(*AttentionProblem(n_q, n_k, 16, dtype="float32").arrays(), memory=memory, **options)
    return memory.trace


def triton_like() -> Trace:
    """Two programs that release nothing: each starts with an empty SRAM."""
    trace = Trace("my_kernel", tensors={"q": (32, 16, 2), "k": (40, 16, 2), "o": (32, 16, 2)})
    for program, row0 in enumerate((0, 16)):
        trace.append("load", "q", row0=row0, rows=16, cols=16, bytes=512, program=program)
        for col0 in (0, 20):
            trace.append("load", "k", row0=col0, rows=20, cols=16, bytes=640, program=program)
        trace.append("store", "o", row0=row0, rows=16, cols=16, bytes=512, program=program)
    return trace


TRACES = {
    "flash1": lambda: traced(flash1, block_q=16, block_k=16, causal=True),
    "flash2": lambda: traced(flash2, block_q=16, block_k=16, causal=True),
    "standard": lambda: traced(standard, block_q=16, sram_bytes=None),
    "triton": triton_like,
}


@pytest.mark.parametrize("name", TRACES)
def test_sram_shows_the_tiles_held_and_no_others(told, name):
    trace = TRACES[name]()
    managed = any(event.op in ("hold", "release") for event in trace)
    held, shown = {}, 0
    for step, event in enumerate([None, *trace]):
        if event is not None:
            if not managed and event.program != trace[step - 2 if step > 1 else 0].program:
                held = {}
            if event.op in ("load", "hold"):
                held[event.tensor] = event
            elif event.op == "release":
                held.pop(event.tensor, None)
        pen = told(trace, step)
        rows = sorted((y, x, text) for x, y, text in pen.words if x in (644, 712, 874))
        assert sorted(tuple(text for _, _, text in rows[i : i + 3]) for i in range(0, len(rows), 3)) == sorted(
            (tensor, f"{tile.rows} × {tile.cols}", f"{tile.bytes:,} bytes") for tensor, tile in held.items()
        ), f"step {step}"
        swatches = [fill for (x, y, width, _), fill, _ in pen.filled if (x, width) == (618, 16) and y != GAUGE[1]]
        assert sorted(swatches) == sorted(looks.TENSORS.get(tensor, looks.OTHER_TENSOR) for tensor in held)
        shown = max(shown, len(held))
    assert shown >= 2, "a trace that holds nothing shows nothing"


@pytest.mark.parametrize("name", ["flash1", "flash2"])
def test_the_gauge_is_the_share_of_the_budget_that_is_held(told, name):
    trace = TRACES[name]()
    widths = set()
    for step in range(len(trace) + 1):
        used = int(trace.sram_by_step()[step - 1]) if step else 0
        pen = told(trace, step)
        behind, bar = [box for box, *_ in pen.filled if box[:2] == GAUGE]
        assert behind[2] == GAUGE_WIDTH and bar[2] == pytest.approx(GAUGE_WIDTH * used / BUDGET), f"step {step}"
        assert f"{used:,} of 16,384 bytes" in pen.said()
        widths.add(bar[2])
    assert len(widths) > 4 and 0 in widths


def test_without_a_budget_the_gauge_ends_at_the_most_that_was_held(told):
    trace = traced(flash2, block_q=16, block_k=16, sram_bytes=None)
    fullest = int(np.argmax(trace.sram_by_step())) + 1
    pen = told(trace, fullest)
    assert [box[2] for box, *_ in pen.filled if box[:2] == GAUGE] == [GAUGE_WIDTH, GAUGE_WIDTH]
    assert f"{trace.peak_sram_bytes:,} bytes held, {trace.peak_sram_bytes:,} at most" in pen.said()


@pytest.mark.parametrize("name", ["flash1", "flash2"])
def test_the_grid_shows_each_tile_done_now_or_to_come(told, name):
    """48 queries and 64 keys, causal, in tiles of 16: queries 0 to 15 see keys 0 to 31, and so on; 9 tiles are worked."""
    trace, seen = TRACES[name](), set()
    worked = [(event.row0, event.col0, event.step) for event in trace if event.op == "compute"]
    assert {(row0, col0) for row0, col0, _ in worked} == {(16 * i, 16 * j) for i in range(3) for j in range(i + 2)}
    scale = 180 / 48
    x, y = 440 - 64 * scale / 2, 64
    for step in range(len(trace) + 1):
        pen = told(trace, step)
        (under, _), (boxes, fills) = pen.grid
        assert np.array_equal(under, boxes)
        drawn = {(round((box[1] - y) / scale), round((box[0] - x) / scale)): fill[3] for box, fill in zip(boxes, fills)}
        assert (boxes[:, 2:] == 16 * scale).all()
        expected = {(row0, col0): NOW if at == step - 1 else DONE if at < step else TO_COME for row0, col0, at in worked}
        assert drawn == pytest.approx(expected), f"step {step}"
        signs = {(round((b - y) / scale) - 8, round((a - x) / scale) - 8) for a, b, text in pen.words if text == "✓"}
        assert signs == {tile for tile, alpha in expected.items() if alpha == DONE}, "the colour is not the only sign"
        seen |= set(expected.values())
    assert seen == {DONE, NOW, TO_COME}


def test_a_tile_worked_on_twice_says_how_often_so_far(told):
    trace = Trace("twice", tensors={"q": (16, 4, 2), "k": (16, 4, 2)})
    for _ in range(2):
        trace.append("compute", "acc", rows=16, cols=16)
    trace.append("store", "o", rows=16, cols=4, bytes=128)
    assert "✓" not in told(trace, 0).said() and "1/2" not in told(trace, 0).said()
    assert told(trace, 1).grid[1][1][0][3] == NOW
    assert "✓" in told(trace, 3).said() and told(trace, 3).grid[1][1][0][3] == pytest.approx(DONE)
    trace.append("compute", "acc", rows=16, cols=16)
    assert "2/3" in told(trace, 3).said() and told(trace, 3).grid[1][1][0][3] == pytest.approx(0.12 + 0.25 * 2 / 3)


def stores(pen: Told, colour: str) -> np.ndarray:
    """The rectangles of what is stored so far in a colour: x, y and height, from the top left."""
    return np.array(sorted((box[0], box[1], box[3]) for box, fill, alpha in pen.filled if fill == colour and alpha == 0.55)).reshape(-1, 3)


@pytest.mark.parametrize("name", ["flash2", "standard", "triton"])
def test_o_fills_up_as_it_is_stored_and_the_bytes_are_counted(told, name):
    trace = TRACES[name]()
    rows_of_o, longest = trace.tensors["o"][0], max(rows for rows, cols, _ in trace.tensors.values() if cols < 48)
    height = 110 * rows_of_o / longest
    loaded = stored = 0
    o_rows = []
    for step, event in enumerate([None, *trace]):
        if event is not None:
            loaded += event.bytes * (event.op == "load")
            stored += event.bytes * (event.op == "store")
            if (event.op, event.tensor) == ("store", "o"):
                o_rows.append((72 + height * event.row0 / rows_of_o, height * event.rows / rows_of_o))
        pen = told(trace, step)
        (line,) = [text for text in pen.said() if text.startswith("so far")]
        assert line.startswith(f"so far {loaded:,} bytes loaded and {stored:,} stored; in all {trace.bytes_moved:,}"), f"step {step}"
        assert f"step {step:,} of {len(trace):,}" in pen.said()
        assert stores(pen, looks.TENSORS["o"])[:, 1:] == pytest.approx(np.array(o_rows).reshape(-1, 2)), f"step {step}"
    assert o_rows and loaded + stored == trace.bytes_moved


def test_the_scores_are_drawn_where_they_are_stored_and_called_never_stored_where_not(told):
    flash, whole = TRACES["flash2"](), TRACES["standard"]()
    assert "never stored" in told(flash, len(flash)).said() and "scores, 48 × 64" in told(flash, 0).said()
    assert "never stored" not in told(whole, 0).said()
    assert not len(stores(told(whole, 0), looks.TENSORS["scores"]))
    done = stores(told(whole, len(whole)), looks.TENSORS["scores"])  # the weights have their colour, and stand beside them
    assert done[:, 0].tolist() == [28] * 3 + [118] * 3
    assert done[:, 1].tolist() == pytest.approx([206 + 58 * i / 3 for i in (0, 1, 2)] * 2) and done[:, 2] == pytest.approx(58 / 3)


def test_wrong_rows_are_marked_and_counted_from_their_step_on(told):
    trace = TRACES["flash2"]()
    last = [event.step for event in trace if (event.op, event.tensor) == ("store", "o")]
    fault = Fault({3: last[0] + 1, 5: last[0] + 1, 40: last[2] + 1})
    red = lambda pen: [(box[1], box[3]) for box, fill, _ in pen.filled if fill == WRONG]  # noqa: E731
    height = 110 * 48 / 64
    where = {row: (pytest.approx(72 + height * row / 48), pytest.approx(height / 48)) for row in fault.wrong_rows}
    for step, rows in ((last[0], []), (last[0] + 1, [3, 5]), (last[2], [3, 5]), (last[2] + 1, [3, 5, 40]), (len(trace), [3, 5, 40])):
        pen = told(trace, step, fault)
        assert red(pen) == [where[row] for row in rows], f"step {step}"
        assert [text for text in pen.said() if re.search("wrong", text)] == ([f"✗ {len(rows)} wrong"] if rows else [])
