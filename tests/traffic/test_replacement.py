"""The cache's two sides and its limit on dirty lines: against a slow one that is plainly right. test_cache.py has the rest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from flashlab.traffic.replacement import DIRTY_BLOCK, LOAD, STORE, replaced

TENSORS = 2
accesses = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 1)), max_size=80)


def passed(stream, capacity, dirty_capacity, before=0):
    block, op, side = np.array(stream, np.int64).reshape(-1, 3).T
    size = 3 + block % 3
    return replaced(block, size, op, side, TENSORS, capacity=capacity, dirty_capacity=dirty_capacity, dirty_before=before)


def by_hand(stream, capacity, dirty_capacity):
    """Two lists of [block, dirty] from the oldest to the newest, searched from end to end."""
    read, written, left, parts = [0] * 3, [0] * 3, [0] * 3, ([], [])
    kinds = {LOAD: "load", STORE: "store"}
    for block, op, side in stream:
        kind, mine, other = kinds.get(op, "atomic"), parts[side], parts[1 - side]
        here, there = ([entry for entry in part if entry[0] == block] for part in (mine, other))
        if kind != "store" and not here and not there:
            read[block % TENSORS] += 3 + block % 3
        for entry in here:
            mine.remove(entry)
        if kind != "load":
            for entry in there:
                other.remove(entry)
        mine.append([block, kind != "load" or any(dirty for _, dirty in here)])
        for limit, counts in ((dirty_capacity, lambda e: e[1]), (capacity, lambda e: True)):
            while sum(3 + e[0] % 3 for e in mine if counts(e)) > limit:
                old = next(e for e in mine if counts(e))
                mine.remove(old)
                written[old[0] % TENSORS] += (3 + old[0] % 3) * old[1]
    for part in parts:
        for block, dirty in part:
            left[block % TENSORS] += (3 + block % 3) * dirty
    return read, written, left


@settings(max_examples=300, deadline=None)
@given(accesses, st.integers(0, 30), st.integers(0, 30))
def test_any_stream_passes_as_it_does_by_hand(stream, capacity, dirty_capacity):
    assert passed(stream, capacity, dirty_capacity) == by_hand(stream, capacity, dirty_capacity)


def test_what_both_sides_read_takes_room_twice_and_is_read_from_dram_once():
    shared, own = [(0, LOAD, 0), (0, LOAD, 1)], [(1, LOAD, 0), (1, LOAD, 0)]
    assert passed(shared, 4, 4)[0] == [3, 0, 0] and passed(own, 4, 4)[0] == [0, 4, 0]
    assert passed([*shared, (1, LOAD, 0), (0, LOAD, 0)], 4, 4)[0] == [3, 4, 0]  # gone from one side, found on the other


def test_too_much_that_is_dirty_is_written_though_there_is_room():
    assert passed([(0, STORE, 0), (1, STORE, 0)], 100, 4) == ([0, 0, 0], [3, 0, 0], [0, 4, 0])


def test_what_was_dirty_before_is_the_oldest():
    before = 4 * DIRTY_BLOCK
    assert passed([], 10**6, 10**6, before) == ([0, 0, 0], [0, 0, 0], [0, 0, before])
    read, written, left = passed([(0, LOAD, 0)], 2 * DIRTY_BLOCK, 2 * DIRTY_BLOCK, before)
    assert (read, written, left) == ([3, 0, 0], [0, 0, DIRTY_BLOCK], [0, 0, 3 * DIRTY_BLOCK])
