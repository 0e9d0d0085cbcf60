"""Serves tiles to the child: HBM and SRAM stay on our side of the pipe, so the bytes are counted where no student is."""

from __future__ import annotations

import numpy as np

from flashlab.grading.exercise import Call
from flashlab.traffic.memory import Memory

MOST_EVENTS = 200_000  # of one call: far above any right answer's
MOST_HELD, MOST_ROWS = 100, 1 << 24  # different names of tiles held, and rows or columns of one


class Server:
    """The memory of one call: answers the child's load, store, hold and release."""

    def __init__(self, call: Call) -> None:
        self.memory = Memory("yours", sram_bytes=call.sram_bytes)
        self.call = call
        self.tensors = {name: self.memory.hbm(name, array.copy()) for name, array in call.served.items()}

    def about(self) -> dict[str, tuple]:
        """{name: (shape, dtype)} for the child."""
        return {name: (array.shape, array.dtype.str) for name, array in self.call.served.items()}

    def reply(self, header: dict, arrays: dict[str, np.ndarray]) -> tuple[dict, dict[str, np.ndarray]]:
        """What to send back: a tile, nothing, or why not."""
        if len(self.memory.trace) > MOST_EVENTS:
            return {"kind": "MemoryError", "refused": f"more than {MOST_EVENTS:,} loads and stores in one call"}, {}
        try:
            with np.errstate(all="ignore"):  # a number too large for the array it is stored to
                return {}, self._done(header, arrays)
        except Exception as problem:  # a request from outside may be anything; what is wrong with it is the answer
            text = problem.args[0] if problem.args else problem
            return {"kind": type(problem).__name__, "refused": str(text)[:2000]}, {}

    def _done(self, header: dict, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ask = header["ask"]
        if ask == "hold":
            shape = tuple(int(size) for size in header["shape"])
            if len(self.memory.trace.tensor_names) > MOST_HELD or len(shape) > 2 or not all(0 <= size <= MOST_ROWS for size in shape):
                raise ValueError(f"a tile has one or two dimensions of at most {MOST_ROWS:,}, and at most {MOST_HELD} names are held; this one is {shape}")
            tile = np.broadcast_to(np.zeros((), np.dtype(str(header["dtype"])[:8])), shape)  # the size counts, not the numbers
            self.memory.hold(str(header["name"])[:100], tile)
            return {}
        if ask == "release":
            self.memory.release(*(str(name) for name in header["names"]))
            return {}
        tensor = self.tensors[header["tensor"]]
        rows, cols = slice(*header["rows"]), slice(*header["cols"])
        if ask == "store":
            if tensor.name not in self.call.stores:
                raise ValueError(f"{tensor.name} is an input; store to {', '.join(self.call.stores)}")
            tensor.store(rows, arrays["tile"], cols)
            return {}
        if ask == "load":
            return {"tile": tensor.load(rows, cols)}
        raise ValueError("no such request")

    def stored(self) -> dict[str, np.ndarray]:
        """The answers that were stored tile by tile."""
        return {name: self.tensors[name].array for name in self.call.stores if name in self.tensors}
