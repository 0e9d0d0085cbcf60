"""An L2 cache between a kernel and DRAM: what of the bytes a kernel asks for the chip really pays.

    through_l2(trace, "H200", programs_per_multiprocessor=3)     requested and DRAM bytes, always as two numbers

The papers count the bytes that leave the multiprocessors; of these only what misses the L2 comes from DRAM. The model takes
a Trace, recorded (traffic/interpreter.py) or scheduled (traffic/schedule.py), and does three things.

1. **Waves.** The GPU runs multiprocessors · programs_per_multiprocessor programs at once, in the order of their numbers;
   when one ends, the next takes its slot. Programs that run together advance in lockstep: each moves the same bytes in the
   same time, so an access happens when its program has moved all bytes before it. At the same moment the lower number goes
   first.
2. **Blocks.** A tensor is cut into the largest blocks that every access covers whole, and these into pieces of at most
   `block_bytes`, which stand for the cache lines in them: a tile's lines are touched together, so they age together.
3. **The cache.** Least recently used, write-back. A load that misses reads DRAM. A store makes a block dirty and reads
   nothing, since it covers whole lines; an atomic addition is done in the L2, so it reads what it misses. A dirty block is
   written to DRAM when it is evicted. What is dirty at the end is reported apart: it will be written in somebody else's
   time, and hardware counters that stop with the kernel do not see it.

**The effective size.** A100, H100 and H200 have their L2 in two partitions, and a multiprocessor reads through its own, so
lines may be held twice. `share`, EFFECTIVE_SHARE by default, is the part of the data sheet's size that holds distinct data;
it is the one number fitted to counters: on an H200 an unfused q·kᵀ kernel stores 268 MB and 239 MB of it reach DRAM, so 29 MB
of 60 MiB, 0.47, stayed.

Every kernel starts with an empty L2, as under Nsight Compute, which flushes it. Not modelled: sectors fetched for part of a
line, a set's limited ways, L1, the hash over slices, compression, evict-first hints, and drift between programs. An access
with gaps counts as the whole rectangle around it. Tensors are taken to be contiguous and apart.

Why an OrderedDict and not vectorised stack distances: blocks differ in size and evictions need the dirty ones, and its C
loop takes a million tile accesses in less than a second (with waves and blocks, two).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapreplace
from math import gcd

import numpy as np

from flashlab.errors import error
from flashlab.hardware import Gpu, gpu as gpu_called
from flashlab.problem import check_size
from flashlab.traffic.trace import OP_CODE, Trace

EFFECTIVE_SHARE = 0.5  # of the L2's size holds distinct data, on two partitions; fitted on an H200, see above
BLOCK_BYTES = 2**15
LOCKSTEPS = ("bytes", "accesses")
LOAD, STORE, ATOMIC = (OP_CODE[op] for op in ("load", "store", "atomic"))


@dataclass(frozen=True)
class DramTraffic:
    """What a kernel asked of the L2, and what of it reached DRAM: {(tensor, "read" | "written"): bytes} each.

    `dirty` maps a tensor to the bytes that were still only in the L2 when the kernel ended. An atomic addition counts as
    written in `requested`; in `dram` it may be read and written.
    """

    title: str
    requested: dict[tuple[str, str], int]
    dram: dict[tuple[str, str], int]
    dirty: dict[str, int]
    l2_bytes: int

    @property
    def requested_bytes_read(self) -> int:
        """Bytes loaded from the L2: what the papers count."""
        return _total(self.requested, "read")

    @property
    def requested_bytes_written(self) -> int:
        """Bytes stored to the L2, or added there."""
        return _total(self.requested, "written")

    @property
    def dram_bytes_read(self) -> int:
        """Bytes read from DRAM: what the chip pays."""
        return _total(self.dram, "read")

    @property
    def dram_bytes_written(self) -> int:
        """Bytes written to DRAM before the kernel ended."""
        return _total(self.dram, "written")

    @property
    def dirty_bytes(self) -> int:
        """Bytes still to be written when the kernel ended."""
        return sum(self.dirty.values())

    def __repr__(self) -> str:
        return (
            f"{self.title}: of {self.requested_bytes_read:,} bytes read and {self.requested_bytes_written:,} written,"
            f" {self.dram_bytes_read:,} are read from DRAM and {self.dram_bytes_written:,} written to it;"
            f" {self.dirty_bytes:,} are left in an L2 of {self.l2_bytes:,}"
        )


def _total(by_tensor: dict[tuple[str, str], int], way: str) -> int:
    return sum(size for (_, moved), size in by_tensor.items() if moved == way)


def through_l2(
    trace: Trace,
    gpu: Gpu | str,
    *,
    programs_per_multiprocessor: int = 1,
    share: float = EFFECTIVE_SHARE,
    lockstep: str = "bytes",
    block_bytes: int = BLOCK_BYTES,
) -> DramTraffic:
    """What the trace's kernel reads from DRAM and writes to it on this GPU, its L2 empty at the start.

    `programs_per_multiprocessor` is what registers and shared memory allow (traffic/counters.py and the compiler know);
    `lockstep` is "bytes", or "accesses": each program then makes one access at a time.

    >>> from flashlab.problem import AttentionProblem
    >>> from flashlab.traffic.schedule import scores_schedule
    >>> problem = AttentionProblem(n_q=4096, n_k=4096, head_dim=64, heads=8)
    >>> round(through_l2(scores_schedule(problem, block_q=128, block_k=128), "H200").dram_bytes_written / 1e6)
    238
    """
    row = gpu_called(gpu)
    slots = row.multiprocessors * check_size("programs_per_multiprocessor", programs_per_multiprocessor)
    return through_cache(trace, int(row.l2_bytes * share), slots=slots, lockstep=lockstep, block_bytes=block_bytes)


def through_cache(trace: Trace, l2_bytes: int, *, slots: int, lockstep: str = "bytes", block_bytes: int = BLOCK_BYTES) -> DramTraffic:
    """The same for a cache that holds l2_bytes and a GPU that runs `slots` programs at once."""
    accesses = trace.columns
    moving = np.isin(accesses["op"], (LOAD, STORE, ATOMIC)) & (accesses["bytes"] > 0)
    if not moving.all():
        accesses = accesses[moving]
    order = order_of_time(accesses, slots, lockstep)
    names = trace.tensor_names
    way_of = accesses["tensor"].astype(np.int64) * 2 + (accesses["op"] != LOAD)
    sums = np.zeros(2 * len(names), np.int64)
    np.add.at(sums, way_of, accesses["bytes"])
    requested = {(names[i // 2], ("read", "written")[i % 2]): int(sums[i]) for i in np.flatnonzero(sums)}
    read, written, dirty = least_recently_used(*blocks(accesses, order, trace, block_bytes), l2_bytes, len(names))
    dram = {(names[t], way): size for way, sizes in (("read", read), ("written", written)) for t, size in enumerate(sizes) if size}
    return DramTraffic(trace.title, requested, dram, {names[t]: size for t, size in enumerate(dirty) if size}, l2_bytes)


# -- 1. Waves ----------------------------------------------------------------------------------------------------------------
def order_of_time(accesses: np.ndarray, slots: int, lockstep: str = "bytes") -> np.ndarray:
    """The order in which these accesses happen when `slots` programs run at once: indices into `accesses`."""
    check_size("slots", slots)
    if lockstep not in LOCKSTEPS:
        raise error("lockstep", given=lockstep, allowed=" or ".join(LOCKSTEPS))
    cost = accesses["bytes"] if lockstep == "bytes" else np.ones(len(accesses), np.int64)
    by_program = np.argsort(accesses["program"], kind="stable")
    programs, firsts = np.unique(accesses["program"][by_program], return_index=True)
    passed = np.concatenate([[0], np.cumsum(cost[by_program])])
    ends = np.append(firsts[1:], len(accesses))
    starts = start_times(passed[ends] - passed[firsts], slots)
    time = passed[:-1] + np.repeat(starts - passed[firsts], ends - firsts)
    return by_program[np.argsort(time, kind="stable")]


def start_times(lengths: np.ndarray, slots: int) -> np.ndarray:
    """When each program starts: the first `slots` at once, each later one when a slot falls free."""
    if len(np.unique(lengths)) <= 1:
        return np.arange(len(lengths)) // slots * lengths
    free, starts = [0] * slots, []
    for length in lengths.tolist():
        starts.append(free[0])
        heapreplace(free, free[0] + length)
    return np.array(starts, np.int64)


# -- 2. Blocks ---------------------------------------------------------------------------------------------------------------
def blocks(accesses: np.ndarray, order: np.ndarray, trace: Trace, block_bytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(block, bytes, op) of each piece of each access, in this order. A block's number is tensor + tensors · its place."""
    tensors = len(trace.tensor_names)
    tensor, batch, head, row0, col0, rows, cols, op = (
        accesses[name].astype(np.int64)[order] for name in ("tensor", "batch", "head", "row0", "col0", "rows", "cols", "op")
    )
    shape = np.ones((5, tensors), np.int64)  # rows and columns of a block, rows and columns of the tensor touched, bytes of an element
    for t, name in enumerate(trace.tensor_names):
        mine = tensor == t
        if mine.any():
            width = trace.tensors[name][2]
            (high, all_rows), (wide, all_cols) = _grain(row0[mine], rows[mine]), _grain(col0[mine], cols[mine])
            high = _divisor(high, block_bytes // (width * wide))
            wide = _divisor(wide, block_bytes // (width * high))
            shape[:, t] = high, wide, all_rows, all_cols, width
    high, wide, all_rows, all_cols, width = shape[:, tensor]
    down, right = -(-(row0 + rows) // high) - row0 // high, -(-(col0 + cols) // wide) - col0 // wide  # pieces of an access
    pieces = down * right
    if (pieces == 1).all():
        row, col = row0 // high, col0 // wide
    else:
        which = np.repeat(np.arange(len(pieces)), pieces)
        row, col = np.divmod(np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces), right[which])
        high, wide, all_rows, all_cols, width, tensor, batch, head, op = (
            column[which] for column in (high, wide, all_rows, all_cols, width, tensor, batch, head, op)
        )
        row, col = row + row0[which] // high, col + col0[which] // wide
    size = np.minimum(high, all_rows - row * high) * np.minimum(wide, all_cols - col * wide) * width
    heads = int(head.max(initial=0)) + 1
    place = (((batch * heads + head) * -(-all_rows // high)) + row) * -(-all_cols // wide) + col
    return tensor + tensors * place, size, op


def _grain(first: np.ndarray, count: np.ndarray) -> tuple[int, int]:
    """(rows of a block, rows in all): the largest block that all accesses are made of; only the last one may be cut."""
    edges = np.unique(np.concatenate([first, first + count])).astype(np.int64)
    all_rows = int(edges[-1])
    return gcd(*edges[:-1].tolist()) or all_rows, all_rows


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`, or 1."""
    return max((d for d in range(1, min(n, most) + 1) if n % d == 0), default=1)


# -- 3. The cache ------------------------------------------------------------------------------------------------------------
def least_recently_used(block: np.ndarray, size: np.ndarray, op: np.ndarray, capacity: int, tensors: int) -> tuple[list, list, list]:
    """Bytes of each tensor (read from DRAM, written to DRAM, left dirty) when these accesses pass a cache of `capacity` bytes.

    A block that does not fit at all passes through.
    """
    read, written, dirty = [0] * tensors, [0] * tensors, [0] * tensors
    held: OrderedDict[int, int] = OrderedDict()  # block: 2 · bytes, plus 1 if dirty; the oldest first
    find, renew, evict = held.get, held.move_to_end, held.popitem
    free = capacity
    for x, n, kind in zip(block.tolist(), size.tolist(), op.tolist()):
        state = find(x)
        if state is not None:
            renew(x)
            if kind != LOAD and not state & 1:
                held[x] = state | 1
            continue
        if kind != STORE:
            read[x % tensors] += n
        held[x] = 2 * n + (kind != LOAD)
        free -= n
        while free < 0:
            old, state = evict(False)
            free += state >> 1
            if state & 1:
                written[old % tensors] += state >> 1
    for x, state in held.items():
        if state & 1:
            dirty[x % tensors] += state >> 1
    return read, written, dirty
