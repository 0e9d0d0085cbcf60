"""Where an access touched a tensor: addresses become elements, elements a rectangle of rows and columns.

A tensor's last two dimensions are rows and columns, those before them batch and head. A tensor whose shape is another
argument's without its last dimension, as lse beside q, has one number a row. Does not handle: negative strides, which
torch does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from flashlab.errors import error

MOST_LISTED = 2**22  # elements that are listed one by one where strides do not nest
APART = 44  # each tensor has 2**44 bytes of addresses of its own, so that a stray address is still nearest to its tensor
_ZERO = np.zeros(1, np.int64)  # the index in a dimension that `locate` leaves out
_ENDINGS = ("_pointer", "_descriptor", "_ptr", "_desc", "_base")


class Tile(NamedTuple):
    """Where one access touched a tensor, and how its block lay on it."""

    batch: int = 0
    head: int = 0
    row0: int = 0
    col0: int = 0
    rows: int = 0
    cols: int = 0
    block: tuple[int, int] = (1, 1)  # lanes along the tensor's rows and columns, masked-off ones included
    whole: bool = False  # whether it has every column of its tensor


class Argument:
    """A tensor argument: the addresses the kernel sees for it, and which element each one is."""

    def __init__(self, name: str, tensor: torch.Tensor, slot: int, one_number_a_row: bool) -> None:
        self.name, self.width = name, tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        self.real = tensor.data_ptr()
        self.seen = (slot + 1 << APART) + self.real % 4096  # aligned as the real one is
        ndim = len(self.shape)
        self.row = ndim - 1 if one_number_a_row or ndim == 1 else ndim - 2
        self.has_columns = ndim > 1 and self.row == ndim - 2
        self.rows = self.shape[self.row] if ndim else 1
        self.cols = self.shape[-1] if self.has_columns else 1
        # Largest stride first, an element's indices are the quotients; a dimension of one or of stride 0 has index 0.
        self.order = sorted(((s, n, i) for i, (n, s) in enumerate(zip(self.shape, self.strides)) if n > 1 and s > 0), reverse=True)
        # Not so where a step in one dimension goes no further than all steps in the smaller ones, as in a view of shape (4, 4)
        # and strides (3, 2): 4 is 0 · 3 + 2 · 2, and by quotients it would be 1 · 3 and 1 left over.
        self.nested, reach = True, 0
        for stride, size, _ in reversed(self.order):
            self.nested, reach = self.nested and stride > reach, reach + (size - 1) * stride

    def locate(self, offsets: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """({dimension: index}, is it an element) of byte offsets from the first element; where elements share one, of one of them.

        Raises ValueError for a tensor whose strides do not nest and which has more than MOST_LISTED elements.
        """
        indices, left = {}, offsets // self.width
        if not self.nested:
            listed, which = self._elements
            at = np.minimum(np.searchsorted(listed, left), len(listed) - 1)
            found = np.unravel_index(which[at], [size for _, size, _ in self.order])
            return {dimension: index for (*_, dimension), index in zip(self.order, found)}, (listed[at] == left) & (0 not in self.shape)
        inside = (left >= 0) & (0 not in self.shape)
        for stride, size, dimension in self.order:
            indices[dimension] = np.minimum(left // stride, size - 1)
            left = left - indices[dimension] * stride
        return indices, inside & (left == 0)

    @cached_property
    def _elements(self) -> tuple[np.ndarray, np.ndarray]:
        """(offset of each element, sorted; its number when they are counted in `order`)."""
        sizes = [size for _, size, _ in self.order]
        if prod(sizes) > MOST_LISTED:
            raise error("trace_strides", tensor=self.name, shape=self.shape, strides=self.strides, most=MOST_LISTED, given=prod(sizes))
        offsets = sum(index * stride for index, (stride, *_) in zip(np.indices(sizes, sparse=True), self.order))
        return np.unique(offsets, return_index=True)

    def inside(self, offsets: np.ndarray, width: int) -> np.ndarray:
        """Whether all `width` bytes from each offset are elements of this tensor."""
        inside = self.locate(offsets)[1]
        if width != self.width or (offsets % self.width).any():
            inside = inside & self.locate(offsets + width - 1)[1]
        return inside

    def by_head(self, indices: dict[int, np.ndarray], chosen: np.ndarray) -> list[tuple[dict[int, np.ndarray], np.ndarray]]:
        """(indices, lanes) of each head that the chosen lanes touch, those of a batch in order; what has no heads is one."""
        head = sum((indices[i] * prod(self.shape[i + 1 : self.row]) for i in range(self.row) if i in indices), _ZERO)
        if (head == head[0]).all():
            return [(indices, chosen)]
        parts = []
        for number in np.unique(head):
            own, lanes = head == number, np.zeros(chosen.shape, bool)
            lanes[chosen] = own
            parts.append(({i: index[own] for i, index in indices.items()}, lanes))
        return parts

    def tile(self, indices: dict[int, np.ndarray], chosen: np.ndarray) -> Tile:
        """The rectangle around these elements of one head, which the chosen lanes of a block touched, at least one."""
        row, col = self._rows_and_columns(indices)
        head = int(indices.get(self.row - 1, _ZERO)[0])
        batch = 0
        for dimension in range(self.row - 1):
            batch = batch * self.shape[dimension] + int(indices.get(dimension, _ZERO)[0])
        row0, col0 = int(row.min()), int(col.min())
        block = chosen.shape
        if len(block) < 2:
            lanes = (*block, 1) if self.cols == 1 or len(row) > 1 and row[0] != row[-1] else (1, *block)
        else:
            lanes = (block[-1], block[-2]) if _is_turned(row, chosen) else (block[-2], block[-1])
        rows, cols = int(row.max()) - row0 + 1, int(col.max()) - col0 + 1
        return Tile(batch, head, row0, col0, rows, cols, lanes, cols == self.cols)

    def stored(self, values: np.ndarray, indices: dict[int, np.ndarray], tile: Tile) -> np.ndarray:
        """The tile as the lanes' values fill it: (rows, cols), or (rows,) where the tensor has one number a row.

        Where no lane stored stands NaN, or 0 in a dtype that has none; of lanes that share an element the last counts.
        """
        filled = np.full((tile.rows, tile.cols), np.nan if values.dtype.kind == "f" else 0, values.dtype)
        row, col = (np.broadcast_to(index, values.shape) for index in self._rows_and_columns(indices))
        filled[row - tile.row0, col - tile.col0] = values
        return filled if self.has_columns else filled[:, 0]

    def _rows_and_columns(self, indices: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return indices.get(self.row, _ZERO), indices.get(self.row + 1, _ZERO)


def _is_turned(row: np.ndarray, chosen: np.ndarray) -> bool:
    """Whether a block lies transposed: neighbours along its last axis are in different rows more often than those along the axis before.

    All pairs of neighbours count, since masks leave some tiles a single row or column. Without a pair nothing is known: one half.
    """
    rows = np.zeros(chosen.shape, np.int64)
    rows[chosen] = row

    def changes(a: tuple, b: tuple) -> float:
        both = chosen[a] & chosen[b]
        return (rows[a] != rows[b])[both].mean() if both.any() else 0.5

    start, rest = slice(None, -1), slice(1, None)
    return bool(changes((..., start), (..., rest)) > changes((..., start, slice(None)), (..., rest, slice(None))))


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """{argument: name in the trace}: q_ptr and Q become q, unless that would give two arguments one name."""
    short = {}
    for path in paths:
        name = next((path.removesuffix(ending) for ending in _ENDINGS if path.endswith(ending)), path)
        short[path] = name.lower() if len(name) == 1 else name
    return {path: name if list(short.values()).count(name) == 1 else path for path, name in short.items()}


def distinct(offsets: np.ndarray, chosen: np.ndarray) -> int:
    """How many different offsets the chosen lanes have; a tile that lies in order, or transposed, needs no sorting."""
    for lanes in (offsets[chosen], offsets.T[chosen.T]):
        if (np.diff(lanes) > 0).all():
            return len(lanes)
    return len(np.unique(lanes))


def narrowed(offsets: np.ndarray, chosen: np.ndarray, value: np.ndarray | None, width: int, element: int) -> tuple:
    """(offsets, chosen, value) of lanes `width` bytes wide as those of lanes of one element each; the values' bits as whole numbers."""
    parts = offsets[..., None] + np.arange(0, width, element)
    if value is not None:
        value = np.ascontiguousarray(np.broadcast_to(value, chosen.shape)).view(f"u{element}")
    return parts.reshape(*offsets.shape[:-1], -1), np.repeat(chosen, width // element, axis=-1), value


def cut(value: np.ndarray, tiles: Sequence[Tile]) -> np.ndarray:
    """The value without what lies past the end in a ragged tile: as many rows, and columns, as the tiles of q and k have.

    Where q's and k's blocks are of one size a value's rows are q's, and its columns are head_dim's if that is not split.
    """
    rows = {tile.block[0]: tile.rows for tile in reversed(tiles)}
    cols = {tile.block[0]: tile.rows for tile in tiles} | {tile.block[1]: tile.cols for tile in tiles if tile.whole}
    return value[tuple(slice(sizes.get(n, n)) for n, sizes in zip(value.shape, (rows, cols)))]
