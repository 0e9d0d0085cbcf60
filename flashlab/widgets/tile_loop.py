"""The tile-loop widget: a Trace, step by step, as tiles moving between HBM and SRAM.

It reads traces (traffic/trace.py) and nothing else, so what moves on the screen is a recording of the code being
taught, or of yours. What has to be worked out about right and wrong is worked out here; static/tile_loop*.js only draws.

Steps count what has been done: at step s the events trace[0] to trace[s - 1] have happened, so step 0 is the state
before anything moved. With `against`, a trace of the same problem known to be right, the widget finds the first tile
whose statistics are wrong, stops there once, and says why.

Does not handle: an event's own gather pattern (a tile is a rectangle), more than 4 columns of acc.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from flashlab import looks
from flashlab.errors import error
from flashlab.traffic.trace import OPS, Trace
from flashlab.widgets.faults import WATCH, Fault, compare
from flashlab.widgets.reading import lanes, manages_sram, noted, score_tiles, sizes, standard_bytes

STATIC = Path(__file__).parent / "static"
MODULES = ("tile_loop_trace.js", "tile_loop_draw.js", "tile_loop.js")
SHOWN_COLUMNS = 4  # of acc and o: enough to see them change, few enough to send
_COLUMNS = ("op", "tensor", "program", "lane", "row0", "col0", "rows", "cols")  # as static/tile_loop_trace.js reads them


def _one_module() -> str:
    """The three ES modules as one: anywidget serves a single file, in which the browser finds no neighbour to import."""
    return "\n".join(re.sub(r"^import .*\n", "", (STATIC / name).read_text("utf-8"), flags=re.MULTILINE) for name in MODULES)


class TileLoop(anywidget.AnyWidget):
    """One to three traces side by side on the same step clock, with play, step, back, scrub and speed.

    `against` is a trace of the same problem known to be right; `row` is the query whose statistics are shown. The state
    is in traits: set `w.step = 40` or `w.playing = True` from the kernel, read them back after a click.
    `wrong_rows`, `first_wrong_step` and `fault` describe the first trace that differs from `against`.

    Raises TypeError where something other than a Trace is passed.

    >>> from flashlab.problem import AttentionProblem
    >>> from flashlab.reference.flash2 import flash2
    >>> from flashlab.traffic.memory import Memory
    >>> memory = Memory("FlashAttention-2", sram_bytes=16_384, watch=WATCH)
    >>> _ = flash2(*AttentionProblem(n_q=64, n_k=64, head_dim=16).arrays(), block_q=16, block_k=16, memory=memory)
    >>> TileLoop(memory.trace)
    Tile loop at step 0 of 116: FlashAttention-2 moves 20,736 bytes in all, standard attention 40,960.
    """

    _esm = _one_module()
    _css = STATIC / "tile_loop.css"

    data = traitlets.List().tag(sync=True)
    looks = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(4).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    wrong_rows = traitlets.List(traitlets.Int()).tag(sync=True)
    first_wrong_step = traitlets.Int(None, allow_none=True).tag(sync=True)
    fault = traitlets.Unicode("").tag(sync=True)

    def __init__(self, *traces: Trace, against: Trace | None = None, row: int = 0) -> None:
        super().__init__(looks={"tensors": looks.TENSORS, "other": looks.OTHER_TENSOR, "algorithms": _algorithms()})
        self._against = against
        self.replace(*traces)
        self.row = row

    @property
    def traces(self) -> tuple[Trace, ...]:
        """What is shown. Assign other traces, or call `replace`, to show them instead."""
        return self._traces

    @traces.setter
    def traces(self, traces: tuple[Trace, ...]) -> None:
        self.replace(*traces)

    @property
    def steps(self) -> int:
        """How many steps the longest trace has."""
        return max(map(len, self._traces), default=0)

    def replace(self, *traces: Trace) -> None:
        """Show these traces from now on; step and row stay, as far as the new traces reach."""
        for trace in (*traces, *([] if self._against is None else [self._against])):
            if not isinstance(trace, Trace):
                raise error("not_a_trace", given=type(trace).__name__)
        self._traces = traces
        self._faults = faults = [Fault() if self._against is None else compare(trace, self._against) for trace in traces]
        first = next((fault for fault in faults if fault.sentence), Fault())
        with self.hold_sync():
            self.data = [_packed(trace, fault) for trace, fault in zip(traces, faults)]
            self.wrong_rows, self.first_wrong_step, self.fault = sorted(first.wrong_rows), first.step, first.sentence
            self.step, self.row = self.step, self.row

    @traitlets.validate("step")
    def _step_in_range(self, proposal: dict) -> int:
        return min(max(proposal["value"], 0), self.steps) if hasattr(self, "_traces") else proposal["value"]

    @traitlets.validate("row")
    def _row_in_range(self, proposal: dict) -> int:
        rows = max((sizes(trace)[0] for trace in getattr(self, "_traces", ())), default=1)
        return min(max(proposal["value"], 0), max(rows - 1, 0))

    def _sentence(self, what: str, step: int) -> str:
        totals = ", ".join(f"{trace.title} moves {trace.bytes_moved:,} bytes" for trace in self._traces) or "no trace"
        standard = next(filter(None, map(standard_bytes, self._traces)), None)
        beside = f" in all, standard attention {standard:,}." if standard else " in all."
        return f"{what} at step {step:,} of {self.steps:,}: {totals}{beside} {self.fault}".rstrip()

    def __repr__(self) -> str:
        return self._sentence("Tile loop", self.step)

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict] | None:
        """The widget, and for where no kernel runs a still picture of the same traces over its sentence."""
        from flashlab.widgets.still import middle, still

        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None or not self._traces:
            return bundle
        data, metadata = bundle
        step = self.step or (self.steps if self.fault else middle(self._traces))  # a fault is seen best where all rows are stored
        said = self._sentence("Still picture of the tile loop", step)
        data["image/png"] = base64.b64encode(still(self._traces, step, self._faults, caption=said)).decode()
        return data, metadata | {"image/png": {"alt": said}}


def _algorithms() -> dict[str, dict[str, str]]:
    return {look.label: look._asdict() for look in looks.ALGORITHMS.values()}


def _packed(trace: Trace, fault: Fault) -> dict:
    """The trace as a few binary buffers and names, as static/tile_loop.js reads it."""
    columns, lane = trace.columns, lanes(trace)
    events = np.stack([lane if name == "lane" else columns[name] for name in _COLUMNS]).astype("<i4")
    values = {}
    for name in WATCH:
        entries = list(noted(trace, name))
        if entries:
            width = min(SHOWN_COLUMNS, entries[0][2].shape[1])
            index = np.array([(step, row0, len(value)) for step, row0, value in entries], "<i4")
            numbers = np.concatenate([value[:, :width].ravel() for *_, value in entries]).astype("<f4")
            values[name] = {"width": width, "index": index.T.tobytes(), "numbers": numbers.tobytes()}
    n_q, n_k = sizes(trace)
    return {
        "title": trace.title,
        "ops": list(OPS),
        "names": list(trace.tensor_names),
        "tensors": {name: list(shape) for name, shape in trace.tensors.items()},
        **{"n_q": n_q, "n_k": n_k, "steps": len(trace), "heads": int(columns["head"].max(initial=0)) + 1},
        **{"sram_bytes": trace.sram_bytes, "standard_bytes": standard_bytes(trace), "managed": manages_sram(trace)},
        **{"events": events.tobytes(), "bytes": columns["bytes"].astype("<f8").tobytes()},
        **{"tiles": score_tiles(trace).T.astype("<i4").tobytes(), "values": values},
        "fault": {"step": fault.step, "row": fault.row, "sentence": fault.sentence, "wrong": sorted(fault.wrong_rows.items())},
    }
