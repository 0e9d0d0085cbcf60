"""What a trace says to a picture: sizes, heads, the tiles of the score grid, and where values were noted.

The tile-loop widget, its still picture and the search for the first wrong tile all read a trace through these.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashlab.problem import ELEMENT_BYTES, AttentionProblem
from flashlab.traffic.model import standard_traffic
from flashlab.traffic.trace import OPS, Trace


def sizes(trace: Trace) -> tuple[int, int]:
    """(n_q, n_k): from the tensors q and k, else from the score matrix, else from what was computed."""
    tensors, done = trace.tensors, trace.select("compute")
    rows, cols, _ = next((tensors[name] for name in ("scores", "weights") if name in tensors), (0, 0, 0))
    n_q = tensors["q"][0] if "q" in tensors else rows or int((done["row0"] + done["rows"]).max(initial=1))
    return n_q, tensors["k"][0] if "k" in tensors else cols or int((done["col0"] + done["cols"]).max(initial=1))


def standard_bytes(trace: Trace) -> int | None:
    """What standard attention moves on the same problem; None where the trace has no q and k to tell the problem from."""
    dtypes = {size: dtype for dtype, size in reversed(ELEMENT_BYTES.items())}
    if "q" not in trace.tensors or "k" not in trace.tensors or trace.tensors["q"][2] not in dtypes:
        return None
    n_q, head_dim, size = trace.tensors["q"]
    batch, heads = (int(trace.columns[name].max(initial=0)) + 1 for name in ("batch", "head"))
    problem = AttentionProblem(n_q, trace.tensors["k"][0], head_dim, batch=batch, heads=heads, dtype=dtypes[size])
    return standard_traffic(problem).bytes_moved


def lanes(trace: Trace) -> np.ndarray:
    """The number of each event's (batch, head): one head's tiles are drawn at a time."""
    columns = trace.columns
    return columns["batch"].astype(np.int64) * (int(columns["head"].max(initial=0)) + 1) + columns["head"]


def manages_sram(trace: Trace) -> bool:
    """Whether the trace holds or releases tiles itself; if not (Triton), each program starts with an empty SRAM."""
    return bool(len(trace.select("hold", "release")))


def score_tiles(trace: Trace) -> np.ndarray:
    """(events, 6): step, lane, row0, col0, rows, cols of each tile of the score grid that is worked on.

    These are the compute events. A trace without any (Triton) shows its tile where k is loaded, for the rows of q that
    the same program loaded last, or, without q and k, where scores are loaded (a softmax by itself).
    """
    columns, lane = trace.columns, lanes(trace)
    computed = np.flatnonzero(columns["op"] == OPS.index("compute"))
    if len(computed):
        return np.column_stack([computed, lane[computed], *(columns[name][computed] for name in ("row0", "col0", "rows", "cols"))])
    if "scores" in trace.tensor_names and not {"q", "k"} & set(trace.tensor_names):
        loaded = np.flatnonzero((columns["op"] == OPS.index("load")) & (columns["tensor"] == trace.tensor_names.index("scores")))
        return np.column_stack([loaded, lane[loaded], *(columns[name][loaded] for name in ("row0", "col0", "rows", "cols"))])
    rows, tiles = {}, []
    for event in trace if {"q", "k"} <= set(trace.tensor_names) else ():
        if event.op == "load" and event.tensor == "q":
            rows[event.program] = (event.row0, event.rows)
        elif event.op == "load" and event.tensor == "k" and event.program in rows:
            (row0, count) = rows[event.program]
            tiles.append((event.step, lane[event.step], row0, event.row0, count, event.rows))
    return np.array(tiles, np.int64).reshape(-1, 6)


def noted(trace: Trace, name: str) -> Iterator[tuple[int, int, np.ndarray]]:
    """(step, first row, value (rows, cols)) wherever `name` was noted: o where it is stored, the others at computes.

    Where no compute has values (Triton notes them at loads and stores), every event that has them counts.
    """
    columns, names = trace.columns, trace.tensor_names
    at_computes = any(columns["op"][step] == OPS.index("compute") for step in trace.values)
    rows = dict(zip(*score_tiles(trace)[:, [0, 2]].T.tolist()))
    program_row = {int(columns["program"][step]): row0 for step, row0 in rows.items()}
    for step in sorted(trace.values):
        op, tensor = OPS[columns["op"][step]], names[columns["tensor"][step]]
        wanted = (op == "store" and tensor == "o") if name == "o" else (op == "compute" or not at_computes)
        if name in trace.values[step] and wanted:
            own = op == "compute" or tensor in ("q", "o")
            row0 = int(columns["row0"][step]) if own else rows.get(step, program_row.get(int(columns["program"][step]), 0))
            value = np.asarray(trace.values[step][name], float)
            yield step, row0, value.reshape(len(value), -1) if value.ndim else value.reshape(1, 1)
