"""Which lines a cache keeps: least recently used, write-back, in one part or two, with room for only so many dirty lines.

    replaced(block, size, op, side, tensors, capacity=..., dirty_capacity=...)     bytes read from DRAM, written there, left dirty

A load that misses reads DRAM. A store makes a block dirty and reads nothing, since it covers whole lines; an atomic addition
is done in the cache, so it reads what it misses. A dirty block is written to DRAM when it is evicted: the oldest block goes
when there is no room, and the oldest dirty one when there are too many of these.

With two sides each access goes to its program's own. What only the other side holds is no miss: a load copies it, so that it
takes room twice, and a store moves it, so that it is dirty in one place.

Why OrderedDicts and not vectorised stack distances: blocks differ in size and evictions need the dirty ones, and their C
loop takes a million accesses in about a second. numba would be a compiler to install for less than that.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from flashlab.traffic.trace import OP_CODE

LOAD, STORE, ATOMIC = (OP_CODE[op] for op in ("load", "store", "atomic"))
DIRTY_BLOCK = 2**12  # bytes of a block of what was dirty before


class Side:
    """What one part of the cache holds: {block: bytes}, the oldest first; those of them that are dirty; and the room left."""

    def __init__(self, capacity: float, dirty_capacity: float) -> None:
        self.held: OrderedDict[int, int] = OrderedDict()
        self.dirty: OrderedDict[int, int] = OrderedDict()
        self.room, self.dirty_room = capacity, dirty_capacity

    def add(self, block: int, size: int, dirty: bool) -> None:
        self.held[block] = size
        self.room -= size
        if dirty:
            self.soil(block, size)

    def soil(self, block: int, size: int) -> None:
        self.dirty[block] = size
        self.dirty_room -= size

    def drop(self, block: int) -> int:
        """Forget a block; its bytes if it was dirty."""
        size = self.held.pop(block)
        self.room += size
        if self.dirty.pop(block, None) is None:
            return 0
        self.dirty_room += size
        return size


def replaced(
    block: np.ndarray, size: np.ndarray, op: np.ndarray, side: np.ndarray, tensors: int, *, capacity: float, dirty_capacity: float,
    dirty_before: int = 0,
) -> tuple[list[int], list[int], list[int]]:  # fmt: skip
    """Bytes of each tensor (read from DRAM, written to DRAM, left dirty) when these accesses pass such a cache, one by one.

    A block's tensor is block % tensors. Capacities are those of one side, in bytes. `dirty_before` bytes are dirty at the
    start, half on either side and older than all else; they are the last of the tensors + 1 entries of each list. A block
    larger than the cache drives out all others and then itself; a dirty one larger than dirty_capacity all dirty ones.
    """
    read, written, left = ([0] * (tensors + 1) for _ in range(3))
    both = Side(capacity, dirty_capacity), Side(capacity, dirty_capacity)
    for number in range(dirty_before // DIRTY_BLOCK):
        both[number % 2].add(-1 - number, DIRTY_BLOCK, True)
    in_use = tuple((one.held, one.held.move_to_end, one.dirty, one.dirty.move_to_end) for one in both)  # a look-up costs time
    for x, n, kind, which in zip(block.tolist(), size.tolist(), op.tolist(), side.tolist()):
        held, renew, dirty, renew_dirty = in_use[which]
        if x in held:
            renew(x)
            if x in dirty:
                renew_dirty(x)
            if kind == LOAD:
                continue
        mine, other = both[which], both[1 - which]
        if x in held:
            if x in other.held:
                other.drop(x)
            if x in dirty:
                continue
            mine.soil(x, n)
        else:
            if x in other.held:
                if kind != LOAD:
                    other.drop(x)
            elif kind != STORE:
                read[x % tensors] += n
            mine.add(x, n, kind != LOAD)
        while mine.dirty_room < 0:
            old = next(iter(mine.dirty))
            written[old % tensors if old >= 0 else tensors] += mine.drop(old)
        while mine.room < 0:
            old = next(iter(mine.held))
            written[old % tensors if old >= 0 else tensors] += mine.drop(old)
    for part in both:
        for x, n in part.dirty.items():
            left[x % tensors if x >= 0 else tensors] += n
    return read, written, left
