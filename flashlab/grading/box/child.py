"""Runs in the sandbox: takes the student's cells, then answers one call at a time. NumPy and this folder, nothing else.

    parent                                        child
    {"cells": [...], "limits": {...}}        →    runs the cells             →  {"ready": true}
    {"call": "flash_forward", ...} + arrays  →    calls the function         →  {"result": ...} + arrays, or {"error": ...}
                                             ←    {"ask": "load", ...}          while it runs, where tiles are served
"""

import ast
import linecache
import math
import os
import traceback

import numpy as np

from . import limits, wire

TEXT = 2000  # characters of a message that are kept


class Line:
    """The two pipes to the parent, taken away from the student's print() and input()."""

    def __init__(self):
        self.read, self.write = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def send(self, header, arrays=()):
        data = memoryview(wire.pack(header, arrays))
        while data:
            data = data[os.write(self.write, data) :]

    def receive(self):
        (size,) = wire.PREFIX.unpack(self._exactly(wire.PREFIX.size))
        return wire.unpack(self._exactly(size))

    def _exactly(self, size):
        parts = []
        while size:
            part = os.read(self.read, min(size, 1 << 20))
            if not part:
                os._exit(0)  # the parent is gone
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Tensor:
    """An array in the parent's HBM: its tiles come and go by `load` and `store`, and the parent counts them."""

    def __init__(self, line, name, shape, dtype):
        self._line, self.name, self.shape, self.dtype = line, name, tuple(shape), np.dtype(dtype)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, place):
        raise TypeError(f"{self.name} lies in HBM and is no array: to read a tile use {self.name}.load(...)")

    def __setitem__(self, place, tile):
        raise TypeError(f"{self.name} lies in HBM and is no array: to write a tile use {self.name}.store(..., tile)")

    def load(self, rows, cols=slice(None)):
        """A copy of those rows (and columns)."""
        return _ask(self._line, {"ask": "load", "tensor": self.name, "rows": _ends(rows), "cols": _ends(cols)})["tile"]

    def store(self, rows, tile, cols=slice(None)):
        """Write a tile back."""
        header = {"ask": "store", "tensor": self.name, "rows": _ends(rows), "cols": _ends(cols)}
        _ask(self._line, header, {"tile": np.asarray(tile)})


class Sram:
    """What you keep on the chip besides the tiles you loaded: the parent adds its size to the budget."""

    def __init__(self, line):
        self._line = line

    def hold(self, name, tile, row0=0, col0=0):
        """Keep `tile` under `name`, in place of what had that name; returns it."""
        _ask(self._line, {"ask": "hold", "name": str(name), "shape": np.shape(tile), "dtype": np.asarray(tile).dtype.str})
        return tile

    def release(self, *names):
        """Free these tiles; with no name, all of them."""
        _ask(self._line, {"ask": "release", "names": [str(name) for name in names]})


def _ends(part):
    if isinstance(part, slice) and part.step in (None, 1):
        return [None if end is None else int(end) for end in (part.start, part.stop)]
    if hasattr(part, "__index__"):
        raise TypeError(f"rows is {part}; pass a slice such as slice(0, 16), as tiles(n, block) gives")
    raise TypeError(f"{part!r} is no slice of whole rows; pass one such as slice(0, 16), as tiles(n, block) gives")


def _ask(line, header, arrays=()):
    line.send(header, arrays)
    reply, tiles = line.receive()
    if "refused" in reply:
        kind = {"IndexError": IndexError, "MemoryError": MemoryError, "TypeError": TypeError}.get(reply["kind"], ValueError)
        raise kind(reply["refused"])
    return tiles


def tiles(n, block):
    """The rows 0 to n in tiles of `block`; the last one is cut to what is left."""
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]


def fault(problem, names):
    """What went wrong in the student's own lines, as plain text."""
    line, source = 0, ""
    for frame in traceback.extract_tb(problem.__traceback__):
        if frame.filename in names:
            line, source = frame.lineno, linecache.getline(frame.filename, frame.lineno).strip()
    if isinstance(problem, SyntaxError) and problem.filename in names:
        line, source = problem.lineno or 0, (problem.text or "").strip()
    try:
        text = str(problem)
    except BaseException:  # noqa: BLE001  an exception whose own text raises
        text = ""
    return {"kind": type(problem).__name__[:100], "text": text[:TEXT], "line": line, "source": source[:200]}


def arrays_of(answer, names):
    """{name: array} of what a function returned: one value, a tuple or list of values, or a dict of them."""
    if isinstance(answer, dict):
        return {str(name): value for name, value in answer.items()}
    if answer is None:
        return {}
    if not isinstance(answer, (tuple, list)) or len(names) == 1:
        answer = (answer,)
    names = [*names, *(f"result {i + 1}" for i in range(len(names), len(answer)))]
    return dict(zip(names, answer))


def main():
    line = Line()
    setup, _ = line.receive()
    scope = {"__name__": "__main__", "__builtins__": __builtins__, "np": np, "numpy": np, "math": math, "tiles": tiles}
    for dtype in (np.float32, np.float64):
        np.ones((512, 512), dtype) @ np.ones((512, 512), dtype)  # BLAS takes its buffers now, before memory is limited
    limits.limit(**setup["limits"])
    fenced = limits.forbid_processes()
    names, broken = set(), {}
    for number, source in enumerate(setup["cells"]):
        name = f"<cell {number + 1}>"
        names.add(name)
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        try:
            exec(compile(ast.parse(source, name), name, "exec"), scope)
        except BaseException as problem:  # noqa: BLE001  sys.exit and KeyboardInterrupt too
            broken = broken or fault(problem, names)
    line.send({"ready": True, "fenced": fenced})
    while True:
        request, arrays = line.receive()
        try:
            function = scope.get(request["call"])
            if function is None and broken:
                line.send({"error": broken})
                continue
            if not callable(function):
                raise NameError(f"no function {request['call']} is defined in your cell")
            served = {name: Tensor(line, name, *about) for name, about in request["served"].items()}
            more = {"memory": Sram(line)} if served else {}
            answer = function(**served, **arrays, **request["options"], **more)
            line.send({"result": True}, arrays_of(answer, request["returns"]))
        except BaseException as problem:  # noqa: BLE001
            line.send({"error": fault(problem, names)})
