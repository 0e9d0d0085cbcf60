"""When each access of a kernel happens, and on which side of the L2: programs run in waves, as many at once as there is room for.

    order_of_time(trace.columns, slots=396)      indices into the accesses, the first to happen first

The GPU runs `slots` programs at once, in the order of their numbers; when one ends, the next takes its slot. Programs that
run together advance in lockstep: each moves the same bytes in the same time, so an access happens when its program has moved
all bytes before it. At the same moment the lower number goes first.

Real programs drift apart, since those that share a multiprocessor compete for it. `drift` = 0.2 makes each up to 20 percent
faster or slower than the mean, for its whole life, by its number and the golden ratio: the same in each run, evenly spread.
cache.py says which kernels of the course drift.
"""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from flashlab.errors import error
from flashlab.problem import check_size

LOCKSTEPS = ("bytes", "accesses")
GOLDEN = (5**0.5 - 1) / 2


def order_of_time(accesses: np.ndarray, slots: int, lockstep: str = "bytes", drift: float = 0.0) -> np.ndarray:
    """The order in which these accesses happen when `slots` programs run at once: indices into `accesses`.

    `lockstep` is "bytes", or "accesses": each program then makes one access at a time. Raises ValueError for another,
    and for a drift below 0 or of 1 and more, with which a program would take no time at all.
    """
    check_size("slots", slots)
    if lockstep not in LOCKSTEPS:
        raise error("lockstep", given=lockstep, allowed=" or ".join(LOCKSTEPS))
    if not 0 <= drift < 1:
        raise error("fraction", argument="drift", given=drift, needed="of at least 0 and below 1", example=0.2)
    by_program = np.argsort(accesses["program"], kind="stable")
    programs, firsts = np.unique(accesses["program"][by_program], return_index=True)
    ends = np.append(firsts[1:], len(accesses))
    cost = accesses["bytes"][by_program] if lockstep == "bytes" else np.ones(len(accesses), np.int64)
    if drift:
        cost = cost * np.repeat(1 + drift * (2 * (programs * GOLDEN % 1) - 1), ends - firsts)
    passed = np.concatenate([[0], np.cumsum(cost)])
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
    return np.array(starts, lengths.dtype)


def sides(programs: np.ndarray) -> np.ndarray:
    """0 or 1 for each program: the half of the multiprocessors, and of the L2, that it runs on.

    Nobody documents which. It is whether the number has an odd count of ones in binary (the Thue-Morse sequence): as many on
    either side in each aligned pair, four and eight, and no period in step with that of heads or tiles.

    >>> sides(np.arange(8)).tolist()
    [0, 1, 1, 0, 1, 0, 0, 1]
    """
    folded = programs.astype(np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        folded = folded ^ folded >> shift
    return folded & 1
