"""When accesses happen: programs in waves, in lockstep, or drifting apart; and on which side of the L2."""

from __future__ import annotations

import numpy as np
import pytest

from flashlab.errors import error
from flashlab.traffic.cache import through_l2
from flashlab.traffic.trace import Trace
from flashlab.traffic.waves import order_of_time, sides, start_times


def happened(trace, slots, lockstep="accesses"):
    return [(trace[int(i)].program, trace[int(i)].row0) for i in order_of_time(trace.columns, slots, lockstep)]


def of_lengths(*lengths, size=8):
    trace = Trace("waves", tensors={"x": (99, 1, size)})
    for program, length in enumerate(lengths):
        for row in range(length):
            trace.append("load", "x", row0=row, rows=1, cols=1, bytes=size, program=program)
    return trace


def test_one_slot_runs_one_program_after_the_other():
    assert happened(of_lengths(2, 1, 2), 1) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]


def test_programs_that_run_together_take_turns_in_launch_order():
    assert happened(of_lengths(2, 2, 2), 3) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_the_next_program_takes_the_slot_of_the_one_that_ends():
    assert happened(of_lengths(3, 1, 1, 1), 2) == [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (3, 0)]
    assert start_times(np.array([3, 1, 1, 1]), 2).tolist() == [0, 0, 1, 2]


def test_equal_programs_run_in_waves():
    assert start_times(np.full(7, 5), 3).tolist() == [0, 0, 0, 5, 5, 5, 10]


def test_in_lockstep_by_bytes_a_large_tile_takes_longer():
    trace = Trace("waves", tensors={"x": (99, 1, 1)})
    for program, sizes in enumerate(((4, 4), (1, 1, 1, 1, 1))):
        for row, size in enumerate(sizes):
            trace.append("load", "x", row0=row, rows=1, cols=1, bytes=size, program=program)
    assert happened(trace, 2, "bytes") == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (0, 1), (1, 4)]
    assert happened(trace, 2, "accesses") == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_trace_whose_programs_are_not_in_order_is_put_in_order():
    trace = Trace("waves", tensors={"x": (99, 1, 1)})
    for program in (1, 0, 1, 0):
        trace.append("load", "x", row0=len(trace), rows=1, cols=1, bytes=1, program=program)
    assert happened(trace, 1) == [(0, 1), (0, 3), (1, 0), (1, 2)]


def test_a_lockstep_that_is_not_known_is_refused():
    needed = "lockstep is 'time'; programs that run together keep step by bytes or accesses. Pass lockstep='bytes' or leave it out."
    with pytest.raises(ValueError) as caught:
        through_l2(of_lengths(1), "H200", lockstep="time")
    assert str(caught.value) == needed == str(error("lockstep", given="time", allowed="bytes or accesses"))


def test_a_program_that_drifts_is_faster_or_slower_as_a_whole():
    trace = of_lengths(4, 4, 4, 4)
    programs = [trace[int(i)].program for i in order_of_time(trace.columns, 4, drift=0.5)]
    assert programs.index(0) == 0 and sorted(programs) == sorted(4 * [0, 1, 2, 3]) and programs[:4] == [0, 1, 2, 3]
    last = {program: len(programs) - programs[::-1].index(program) for program in range(4)}
    speed = {program: 1 + 0.5 * (2 * (program * (5**0.5 - 1) / 2 % 1) - 1) for program in range(4)}
    assert sorted(last, key=last.get) == sorted(speed, key=speed.get)


def test_without_drift_programs_keep_step():
    trace = of_lengths(3, 5, 2)
    assert order_of_time(trace.columns, 2, drift=0.0).tolist() == order_of_time(trace.columns, 2).tolist()


def test_programs_lie_on_both_sides_whatever_the_period():
    programs = np.arange(1024)
    assert sides(programs).sum() == 512
    for period in (2, 4, 8, 16, 32):  # such as heads at once: the programs of one head are not all on one side
        assert {int(sides(programs[first::period]).sum()) for first in range(period)} == {512 // period}
