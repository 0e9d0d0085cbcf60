"""A trace: every tile that was loaded, stored or held while attention ran, in program order.

A reference algorithm over recording memory (traffic/memory.py) and any Triton kernel in the interpreter give the same
Trace; the counters, figures and widgets read it and nothing else. It depends only on errors.py's table.

One event is 55 bytes (11 columns of a NumPy structured array), so a million events take tens of megabytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flashlab.errors import error

OPS = ("load", "store", "atomic", "hold", "release", "compute")
OP_CODE = {op: code for code, op in enumerate(OPS)}
COLUMNS = np.dtype(
    [("program", "i4"), ("op", "i1"), ("tensor", "i2"), ("batch", "i4"), ("head", "i4"), ("row0", "i8"), ("col0", "i8")]
    + [("rows", "i4"), ("cols", "i4"), ("bytes", "i8"), ("bytes_requested", "i8")]
)
_CHUNK = 8192  # events gathered in a list before they become one array


class Event(NamedTuple):
    """One step: `op` on the tile of `tensor` at (row0, col0) of shape (rows, cols).

    `bytes` are those really touched (a masked-off lane touches none), `bytes_requested` those asked for. A hold puts a
    tile into SRAM (bytes: its size), a release frees it, a compute moves nothing.
    """

    step: int
    program: int
    op: str
    tensor: str
    batch: int
    head: int
    row0: int
    col0: int
    rows: int
    cols: int
    bytes: int
    bytes_requested: int


@dataclass(eq=False)
class Trace:
    """The events of one run, with the shapes of the tensors and the values noted on the way.

    `title` names the algorithm; `tensors` maps a name to (rows, cols, bytes of one element); `sram_bytes` is the SRAM
    budget, or None where there is none; `values` maps a step to named arrays, such as row_max (rows,) or acc
    (rows, head_dim), as they stood after that step.

    >>> trace = Trace("demo", tensors={"q": (64, 32, 2)})
    >>> trace.append("load", "q", rows=16, cols=32, bytes=1024)
    >>> trace.bytes_loaded
    1024
    """

    title: str = "trace"
    tensors: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    sram_bytes: int | None = None
    values: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names: list[str] = []
        self._codes: dict[str, int] = {}
        self._pending: list[tuple] = []
        self._chunks: list[np.ndarray] = []
        self._flushed = 0

    # -- writing ------------------------------------------------------------------------------------------------------
    def append(self, op, tensor, *, row0=0, col0=0, rows=0, cols=0, bytes=0, bytes_requested=None, program=0, batch=0, head=0) -> None:
        """Add one event; its step is its place in program order.

        Raises ValueError for an op that is not in OPS.
        """
        code = OP_CODE.get(op)
        if code is None:
            raise error("trace_op", given=op, allowed=", ".join(OPS))
        name = self._codes.get(tensor)
        if name is None:
            name = self._codes[tensor] = len(self._names)
            self._names.append(tensor)
        requested = bytes if bytes_requested is None else bytes_requested
        self._pending.append((program, code, name, batch, head, row0, col0, rows, cols, bytes, requested))
        if len(self._pending) == _CHUNK:
            self._flush()

    def note(self, **values: np.ndarray) -> None:
        """Attach named values to the last event; each is copied, so that the algorithm may go on changing it.

        Raises ValueError where there is no event yet.
        """
        if not len(self):
            raise error("trace_note", given=", ".join(values))
        self.values.setdefault(len(self) - 1, {}).update({name: np.array(value) for name, value in values.items()})

    def _flush(self) -> None:
        if self._pending:
            self._chunks.append(np.array(self._pending, dtype=COLUMNS))
            self._flushed += len(self._pending)
            self._pending = []

    # -- reading ------------------------------------------------------------------------------------------------------
    @property
    def columns(self) -> np.ndarray:
        """All events as one structured array; `op` and `tensor` are codes into OPS and `tensor_names`."""
        self._flush()
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks) if self._chunks else np.empty(0, COLUMNS)]
        return self._chunks[0]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Every name that an event carries, in order of first appearance; the tensor column indexes it."""
        return tuple(self._names)

    def __len__(self) -> int:
        return self._flushed + len(self._pending)

    def __getitem__(self, step: int) -> Event:
        if not -len(self) <= step < len(self):
            raise IndexError(f"step {step} of a trace of {len(self)} steps")
        step %= len(self)
        program, op, tensor, *rest = self.columns[step].item()
        return Event(step, program, OPS[op], self._names[tensor], *rest)

    def __iter__(self):
        return (self[step] for step in range(len(self)))

    def select(self, *ops: str, tensor: str | None = None) -> np.ndarray:
        """The columns of the events with one of these ops and, if given, of this tensor."""
        columns = self.columns
        for op in set(ops) - OP_CODE.keys():
            raise error("trace_op", given=op, allowed=", ".join(OPS))
        chosen = np.isin(columns["op"], [OP_CODE[op] for op in ops])
        if tensor is not None:
            chosen &= columns["tensor"] == self._codes.get(tensor, -1)
        return columns[chosen]

    @property
    def bytes_loaded(self) -> int:
        """Bytes read from HBM."""
        return int(self.select("load")["bytes"].sum())

    @property
    def bytes_stored(self) -> int:
        """Bytes written to HBM, atomic additions included."""
        return int(self.select("store", "atomic")["bytes"].sum())

    @property
    def bytes_moved(self) -> int:
        """Bytes loaded and stored: what the roofline divides FLOPs by."""
        return self.bytes_loaded + self.bytes_stored

    def bytes_by_tensor(self) -> dict[tuple[str, str], int]:
        """{(tensor, "load" | "store" | "atomic"): bytes}; the closed forms in traffic/model.py have the same keys."""
        columns, totals = self.columns, {}
        for op in ("load", "store", "atomic"):
            chosen = columns[columns["op"] == OP_CODE[op]]
            sums = np.zeros(len(self._names), np.int64)
            np.add.at(sums, chosen["tensor"], chosen["bytes"])
            totals.update({(self._names[code], op): int(sums[code]) for code in np.flatnonzero(sums)})
        return totals

    def sram_by_step(self) -> np.ndarray:
        """Bytes held in SRAM after each step. A load or hold takes the place of a tile of the same name; loads count
        only in traces whose algorithm manages its SRAM (reference traces), where every load is into a named tile."""
        held: dict[int, int] = {}
        total, after = 0, np.zeros(len(self), np.int64)
        columns = self.columns
        for step, (op, name, size) in enumerate(zip(columns["op"].tolist(), columns["tensor"].tolist(), columns["bytes"].tolist())):
            if op in (OP_CODE["load"], OP_CODE["hold"]):
                total += size - held.get(name, 0)
                held[name] = size
            elif op == OP_CODE["release"]:
                total -= held.pop(name, 0)
            after[step] = total
        return after

    @property
    def peak_sram_bytes(self) -> int:
        """The most SRAM held at once (reference traces only; for Triton, read the compiler's shared memory)."""
        return int(self.sram_by_step().max(initial=0))

    def __repr__(self) -> str:
        programs = len(np.unique(self.columns["program"]))
        return (
            f"{self.title}: {len(self):,} steps in {programs:,} program{'s' * (programs != 1)},"
            f" {self.bytes_loaded:,} bytes loaded, {self.bytes_stored:,} bytes stored"
        )

    @classmethod
    def of(cls, title: str, tensors: dict[str, tuple[int, int, int]], names: tuple[str, ...], columns: np.ndarray) -> Trace:
        """A trace of events that are already in `columns` (dtype COLUMNS); their tensor column indexes `names`."""
        trace = cls(title, tensors)
        trace._names, trace._codes = list(names), {name: code for code, name in enumerate(names)}
        trace._chunks, trace._flushed = [columns], len(columns)
        return trace

    # -- JSON ---------------------------------------------------------------------------------------------------------
    def to_dict(self, digits: int = 6) -> dict:
        """A plain dict for a widget or a file: columns as lists, values rounded to `digits` significant digits.

        JSON has no infinity, so ±inf and nan travel as the strings "inf", "-inf" and "nan".
        """
        columns = self.columns
        return {
            "title": self.title,
            "tensors": {name: list(shape) for name, shape in self.tensors.items()},
            "sram_bytes": self.sram_bytes,
            "ops": list(OPS),
            "names": list(self._names),
            "events": {name: columns[name].tolist() for name in COLUMNS.names},
            "values": {
                str(step): {name: _to_json(value, digits) for name, value in named.items()} for step, named in self.values.items()
            },
        }

    def to_json(self) -> str:
        """The trace as a JSON string; `Trace.from_json` reads it back."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """The trace that `to_json` wrote. Raises ValueError where the text is not one."""
        try:
            data = json.loads(text)
            title, tensors = data["title"], {name: tuple(shape) for name, shape in data["tensors"].items()}
            sram_bytes, events = data["sram_bytes"], data["events"]
            columns = np.empty(len(events["op"]), COLUMNS)
            for name in COLUMNS.names:
                if len(events[name]) != len(columns):
                    raise ValueError(f"{name} has {len(events[name])} entries, op has {len(columns)}")
                columns[name] = events[name]
            trace = cls.of(title, tensors, tuple(data["names"]), columns)
            for name, codes in (("op", OPS), ("tensor", data["names"])):
                if not all(0 <= code < len(codes) for code in events[name]):
                    raise ValueError(f"{name} holds a code outside 0 to {len(codes) - 1}")
            values = {int(step): {name: _from_json(value) for name, value in named.items()} for step, named in data["values"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as fault:
            raise error("trace_json", why=f"{type(fault).__name__}: {fault}") from fault
        trace.values, trace.sram_bytes = values, sram_bytes
        return trace


def _to_json(value: np.ndarray, digits: int):
    flat = [float(f"{x:.{digits}g}") for x in np.asarray(value, float).ravel()]
    shown = [x if np.isfinite(x) else str(x) for x in flat]
    return {"shape": list(np.shape(value)), "data": shown}


def _from_json(value: dict) -> np.ndarray:
    return np.array([float(x) for x in value["data"]]).reshape(value["shape"])
