"""Recording memory: an HBM and an SRAM that write down each tile that moves.

The reference algorithms compute with plain NumPy arrays, but can reach their data only tile by tile through this
memory, so the trace is a by-product of the code being taught, never a second copy of its loop.

    q = memory.hbm("q", q)              an array that lives in HBM
    q_tile = q.load(slice(0, 64))       its first 64 rows, now in SRAM as the tile "q"
    acc = memory.hold("acc", zeros)     a tile made on the chip
    o.store(slice(0, 64), acc)          written back to HBM
    memory.release()                    the program is over: its tiles are gone

SRAM tiles have names. Loading "k" again takes the place of the "k" tile held before, as a kernel reuses its buffer.
What it does not model: registers against shared memory, and caches (traffic/cache.py does).
"""

from __future__ import annotations

import numpy as np

from flashlab.errors import error
from flashlab.traffic.trace import Trace


class Hbm:
    """One array in HBM, shape (rows,) or (rows, cols): reachable only by `load` and `store`, each one event."""

    def __init__(self, memory: Memory, name: str, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise error("hbm_array", argument=name, given=f"of type {type(array).__name__}")
        if array.ndim not in (1, 2):
            raise error("hbm_array", argument=name, given=f"of shape {array.shape}")
        self.memory, self.name, self.array = memory, name, array
        memory.trace.tensors[name] = (len(array), array.shape[1] if array.ndim == 2 else 1, array.itemsize)

    def load(self, rows: slice, cols: slice = slice(None)) -> np.ndarray:
        """A copy of those rows (and columns), held in SRAM under this array's name until replaced or released."""
        place = self._place(rows, cols)
        tile = self.array[place].copy()
        self.memory._record("load", self.name, tile, place)
        return tile

    def store(self, rows: slice, tile: np.ndarray, cols: slice = slice(None)) -> None:
        """Write a tile back, rounding it to this array's dtype. It stays in SRAM if it was held there."""
        place = self._place(rows, cols)
        if self.array[place].shape != np.shape(tile):
            raise error("store_shape", given=np.shape(tile), tensor=self.name, needed=self.array[place].shape)
        self.array[place] = tile
        self.memory._record("store", self.name, self.array[place], place)
        self.memory._note({self.name: tile})

    def _place(self, rows: slice, cols: slice) -> tuple[slice, ...]:
        if self.array.ndim == 1 and cols != slice(None):
            raise error("no_columns", tensor=self.name, given=cols)
        place = []
        for axis, part, n in zip(("rows", "columns"), (rows, cols), self.array.shape):
            whole = isinstance(part, slice) and all(edge is None or hasattr(edge, "__index__") for edge in (part.start, part.stop))
            if not whole or part.step not in (None, 1):  # every second row would be another event than the one recorded
                raise error("slice", axis=axis, tensor=self.name, given=part)
            start, stop = part.start or 0, n if part.stop is None else part.stop
            if not 0 <= start <= stop <= n:
                raise error("outside", axis=axis, start=start, stop=stop, tensor=self.name, n=n)
            place.append(slice(start, stop))
        return tuple(place)


class Memory:
    """HBM and SRAM that record into one Trace.

    `sram_bytes` is the budget: holding more raises MemoryError, naming the tiles held. None means no limit. `watch`
    names the values to keep (row_max, row_sum, rescale, acc, o, ...), for the widgets; by default none are kept.
    """

    def __init__(self, title: str = "trace", *, sram_bytes: int | None = None, watch: tuple[str, ...] = ()) -> None:
        self.trace = Trace(title, sram_bytes=sram_bytes)
        self.watch = frozenset((watch,) if isinstance(watch, str) else watch)
        self.program = 0
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}

    def hbm(self, name: str, array: np.ndarray) -> Hbm:
        """Put an array into HBM under `name`. Nothing moves yet, so nothing is recorded.

        Raises TypeError for what is no array of shape (rows,) or (rows, cols).
        """
        return Hbm(self, name, array)

    def hold(self, name: str, tile: np.ndarray, row0: int = 0, col0: int = 0) -> np.ndarray:
        """Keep a tile made on the chip in SRAM under `name`; returns it."""
        self._record("hold", name, tile, (slice(row0, None), slice(col0, None)))
        return tile

    def compute(self, name: str, rows: slice, cols: slice, **values: np.ndarray) -> None:
        """Say that the tile (rows, cols) of the score matrix has been worked into `name`; moves nothing.

        `values` are the statistics as they stand now; those named in `watch` are kept with the event.
        """
        self.trace.append(
            "compute", name, row0=rows.start, col0=cols.start, rows=rows.stop - rows.start, cols=cols.stop - cols.start, program=self.program
        )
        self._note(values)

    def release(self, *names: str) -> None:
        """Free these tiles; with no name, free all of them and begin the next program.

        Raises LookupError for a name that is not held.
        """
        for name in names or tuple(self._held):
            if name not in self._held:
                raise error("not_held", given=name, held=", ".join(self._held) or "nothing")
            size, _ = self._held.pop(name)
            self.trace.append("release", name, bytes=size, program=self.program)
        if not names:
            self.program += 1

    def _record(self, op: str, name: str, tile: np.ndarray, place: tuple[slice, ...]) -> None:
        if op != "store":
            self._claim(name, tile)
        row0, col0 = place[0].start, place[1].start if len(place) == 2 else 0
        rows, cols = (tile.shape + (1,))[:2]
        self.trace.append(op, name, row0=row0, col0=col0, rows=rows, cols=cols, bytes=tile.nbytes, program=self.program)

    def _claim(self, name: str, tile: np.ndarray) -> None:
        budget = self.trace.sram_bytes
        others = sum(size for held, (size, _) in self._held.items() if held != name)
        if budget is not None and others + tile.nbytes > budget:
            held = ", ".join(f"{held} {shape} {size:,} bytes" for held, (size, shape) in self._held.items()) or "nothing"
            raise error("sram_full", tile=f"{name} {tile.shape}", tile_bytes=tile.nbytes, needed=others + tile.nbytes, budget=budget, held=held)
        self._held[name] = (tile.nbytes, tile.shape)

    def _note(self, values: dict[str, np.ndarray]) -> None:
        kept = {name: value for name, value in values.items() if name in self.watch}
        if kept:
            self.trace.note(**kept)


def tiles(n: int, block: int, argument: str = "block") -> list[slice]:
    """The rows 0 to n in tiles of `block`; the last one is cut to what is left. An error names `argument`.

    >>> tiles(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if isinstance(block, bool) or not hasattr(block, "__index__") or int(block) < 1:
        raise error("block", argument=argument, given=block)
    return [slice(start, min(start + block, n)) for start in range(0, n, block)]
