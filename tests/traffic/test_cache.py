"""The L2 model: against a slow one that is plainly right, at its two ends, and on what an H200 counted."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flashlab.hardware import gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic import schedule as schedules
from flashlab.traffic.cache import SHARE, blocks, through_cache, through_l2
from flashlab.traffic.model import fused_traffic
from flashlab.traffic.trace import Trace
from flashlab.traffic.waves import order_of_time

PROBLEM = AttentionProblem(256, 256, 32, heads=4, kv_heads=2, batch=2)
TILES = {"block_q": 64, "block_k": 32}
SCHEDULES = {
    "forward": lambda p: schedules.forward_schedule(p, **TILES, heads_at_once=4),
    "keys": lambda p: schedules.keys_schedule(p, **TILES, heads_at_once=4),
    "fused": lambda p: schedules.keys_schedule(p, **TILES, heads_at_once=4, fused=True),
    "queries": lambda p: schedules.queries_schedule(p, **TILES, heads_at_once=4),
    "delta": lambda p: schedules.delta_schedule(p, block_q=64),
    "scores": lambda p: schedules.scores_schedule(p, **TILES),
    "softmax": lambda p: schedules.softmax_schedule(p),
    "product": lambda p: schedules.product_schedule(p, **TILES),
    "flash1": lambda p: schedules.flash1_schedule(p, **TILES),
}
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


# -- the same cache, in elements ---------------------------------------------------------------------------------------------
def by_hand(trace: Trace, order, capacity: int, block_of) -> tuple[dict, dict, dict]:
    """(read, written, dirty) bytes by tensor: a list from the oldest block to the newest, searched from end to end."""
    read, written, dirty, held = defaultdict(int), defaultdict(int), defaultdict(int), []
    for step in order:
        event = trace[int(step)]
        for block, size in block_of(event):
            found = next((entry for entry in held if entry[0] == block), None)
            if found:
                held.remove(found)
            elif event.op != "store":
                read[event.tensor] += size
            held.append((block, size, event.op != "load" or bool(found and found[2])))
            while sum(entry[1] for entry in held) > capacity:
                (tensor, *_), old, was_dirty = held.pop(0)
                written[tensor] += old * was_dirty
    for (tensor, *_), size, was_dirty in held:
        dirty[tensor] += size * was_dirty
    return *({name: size for name, size in one.items() if size} for one in (read, written, dirty)),


@st.composite
def streams(draw):
    """A trace of random programs over two tensors, in tiles of 4 rows; x has 4 columns and 14 rows, so its last tile is cut."""
    trace = Trace("random", tensors={"x": (14, 4, 2), "y": (16, 2, 4)})
    trace.append("load", "x", rows=4, cols=4, bytes=32)
    trace.append("load", "x", row0=12, rows=2, cols=4, bytes=16)
    trace.append("load", "y", row0=4, rows=4, cols=2, bytes=32)
    steps = st.tuples(st.sampled_from("xy"), st.sampled_from(["load", "store", "atomic"]), st.integers(0, 3), st.integers(0, 4), st.integers(0, 1))
    for tensor, op, tile, program, head in draw(st.lists(steps, max_size=60)):
        rows, cols, width = trace.tensors[tensor]
        high = min(4, rows - 4 * tile)
        trace.append(op, tensor, row0=4 * tile, rows=high, cols=cols, bytes=high * cols * width, program=program, head=head)
    return trace


@settings(max_examples=200, deadline=None)
@given(streams(), st.integers(0, 300), st.integers(1, 6), st.sampled_from(["bytes", "accesses"]))
def test_any_stream_passes_as_it_does_by_hand(trace, capacity, slots, lockstep):
    order = order_of_time(trace.columns, slots, lockstep)
    right = by_hand(trace, order, capacity, lambda e: [((e.tensor, e.head, e.row0), e.bytes)])
    result = through_cache(trace, capacity, slots=slots, lockstep=lockstep)
    for way, expected in zip(("read", "written"), right):
        assert {tensor: size for (tensor, moved), size in result.dram.items() if moved == way} == expected
    assert result.dirty == right[2]


@pytest.mark.parametrize("op", ["load", "store"])
def test_a_block_larger_than_the_cache_drives_out_all_others(op):
    trace = Trace("large", tensors={"x": (4, 4, 1), "y": (8, 4, 1)})
    for tensor, way, rows in (("x", "load", 4), ("y", op, 8), ("x", "load", 4)):
        trace.append(way, tensor, rows=rows, cols=4, bytes=4 * rows)
    result = through_cache(trace, 16, slots=1)
    assert result.dram == {("x", "read"): 32, ("y", "read" if op == "load" else "written"): 32} and not result.dirty
    assert through_cache(trace, 64, slots=1, most_dirty_bytes=16).dram[("x", "read")] == 16  # too large to be dirty: only itself goes


@settings(max_examples=100, deadline=None)
@given(streams(), st.integers(0, 300), st.sampled_from([8, 16, 20]))
def test_a_tile_larger_than_a_block_is_cut_into_rows(trace, capacity, block_bytes):
    """x: 4 rows of 8 bytes; y: 4 rows of 8 bytes. So blocks of 8, 16 and, since 20 does not divide a tile, 16 bytes."""
    rows = max(block_bytes // 16 * 2, 1)
    right = by_hand(
        trace, order_of_time(trace.columns, 2), capacity,
        lambda e: [((e.tensor, e.head, row), 8 * min(rows, e.row0 + e.rows - row)) for row in range(e.row0, e.row0 + e.rows, rows)],
    )  # fmt: skip
    result = through_cache(trace, capacity, slots=2, block_bytes=block_bytes)
    assert result.dirty == right[2]
    assert result.dram == {(t, way): size for way, sizes in zip(("read", "written"), right) for t, size in sizes.items()}


# -- its two ends, and what is conserved ---------------------------------------------------------------------------------------
@each_schedule
def test_a_cache_without_room_passes_everything_on(name):
    trace = SCHEDULES[name](PROBLEM)
    result = through_cache(trace, 0, slots=8)
    moved = trace.bytes_by_tensor()
    right = {(tensor, "read" if op == "load" else "written"): size for (tensor, op), size in moved.items() if op != "atomic"}
    right |= {(tensor, way): size for (tensor, op), size in moved.items() if op == "atomic" for way in ("read", "written")}
    assert result.dram == right and not result.dirty


@each_schedule
def test_a_cache_with_room_for_all_reads_each_tensor_once_and_keeps_what_is_written(name):
    trace = SCHEDULES[name](PROBLEM)
    result = through_cache(trace, 10**9, slots=8)
    whole = {e.tensor: trace.tensors[e.tensor] for e in trace}
    heads = {tensor: PROBLEM.batch * (PROBLEM.kv_heads if tensor in ("k", "v", "dk", "dv") else PROBLEM.heads) for tensor in whole}
    size = {tensor: np.prod(shape) * heads[tensor] for tensor, shape in whole.items()}
    written = {tensor for tensor, op in trace.bytes_by_tensor() if op != "load"}
    first_read = {tensor for tensor, op in trace.bytes_by_tensor() if op != "store"} - (written if name == "flash1" else set())
    assert result.dram == {(tensor, "read"): size[tensor] for tensor in first_read}
    assert result.dirty == {tensor: size[tensor] for tensor in written}


def test_with_room_for_all_the_forward_pays_what_no_algorithm_can_avoid():
    result = through_cache(SCHEDULES["forward"](PROBLEM), 10**9, slots=8)
    paid = {(tensor, "load"): size for (tensor, _), size in result.dram.items()} | {(tensor, "store"): size for tensor, size in result.dirty.items()}
    assert paid.pop(("lse", "store")) == 4 * PROBLEM.batch * PROBLEM.heads * PROBLEM.n_q
    assert paid == fused_traffic(PROBLEM).by_tensor


@each_schedule
@pytest.mark.parametrize("capacity", [0, 1000, 30_000, 200_000, 10**9])
def test_no_byte_is_lost(name, capacity):
    """What is written lies between each written byte once and every store; reads between each read byte once and every load."""
    trace = SCHEDULES[name](PROBLEM)
    result, least = through_cache(trace, capacity, slots=8), through_cache(trace, 10**9, slots=8)
    assert result.requested_bytes_read == trace.bytes_loaded and result.requested_bytes_written == trace.bytes_stored
    assert least.dirty_bytes <= result.dram_bytes_written + result.dirty_bytes <= trace.bytes_stored
    atomics = sum(size for (_, op), size in trace.bytes_by_tensor().items() if op == "atomic")
    assert least.dram_bytes_read <= result.dram_bytes_read <= trace.bytes_loaded + atomics
    assert result.dirty_bytes <= capacity


def test_a_larger_cache_never_pays_more():
    trace = SCHEDULES["forward"](PROBLEM)
    read = [through_cache(trace, capacity, slots=8, block_bytes=2048).dram_bytes_read for capacity in range(0, 400_000, 20_000)]
    assert read == sorted(read, reverse=True) and read[0] > 4 * read[-1]


# -- blocks ----------------------------------------------------------------------------------------------------------------------
def test_tiles_and_rows_of_one_tensor_meet_in_common_blocks():
    """Stored in tiles of 4 x 2, read by rows of 6: blocks of 1 x 2."""
    trace = Trace("blocks", tensors={"x": (4, 6, 1)})
    trace.append("store", "x", col0=2, rows=4, cols=2, bytes=8)
    trace.append("load", "x", row0=3, rows=1, cols=6, bytes=6)
    trace.append("load", "x", row0=2, rows=1, cols=6, bytes=6)
    block, size, op, _ = blocks(trace.columns, np.arange(3), trace, 1000)
    assert size.tolist() == [2] * 10 and op.tolist() == [1] * 4 + [0] * 6
    assert len(set(block[:4].tolist())) == 4 and block[5] == block[3] and block[8] == block[2]
    assert through_cache(trace, 100, slots=1).dram == {("x", "read"): 8}


def test_blocks_of_other_heads_batches_and_tensors_are_others():
    trace = Trace("blocks", tensors={"x": (4, 4, 1), "y": (4, 4, 1)})
    for tensor in "xy":
        for batch in range(2):
            for head in range(3):
                trace.append("load", tensor, rows=4, cols=4, bytes=16, batch=batch, head=head)
    assert len(set(blocks(trace.columns, np.arange(12), trace, 1000)[0].tolist())) == 12


def test_a_wide_row_is_cut_into_columns():
    trace = Trace("blocks", tensors={"x": (1, 12, 2)})
    trace.append("load", "x", rows=1, cols=12, bytes=24)
    assert blocks(trace.columns, np.arange(1), trace, 8)[1].tolist() == [8, 8, 8]


def test_accesses_that_touch_nothing_and_events_that_move_nothing_leave_no_mark():
    trace = Trace("nothing", tensors={"x": (4, 4, 1)})
    trace.append("load", "x", rows=0, cols=0, bytes=0, bytes_requested=16)
    trace.append("compute", "scores", rows=4, cols=4)
    for one in (trace, Trace("empty")):
        result = through_cache(one, 100, slots=4)
        assert (result.requested, result.dram, result.dirty) == ({}, {}, {})


def test_a_tensor_without_a_shape_is_named():
    trace = Trace("by hand", tensors={"y": (4, 4, 1)})
    trace.append("load", "x", rows=4, cols=4, bytes=16)
    with pytest.raises(LookupError) as caught:
        through_cache(trace, 100, slots=1)
    assert str(caught.value) == (
        "x moves bytes, but the trace has no shape of it, which a cache needs. Give it: Trace(tensors={'x': (rows, cols, bytes of an element)})."
    )


@pytest.mark.parametrize(
    "option, given, needed",
    [
        ("share", -1, "a number above 0 and up to 1. Pass e.g. share=0.83."),
        ("share", 0, "a number above 0 and up to 1. Pass e.g. share=0.83."),
        ("share", 1.01, "a number above 0 and up to 1. Pass e.g. share=0.83."),
        ("dirty_share", -0.1, "a number from 0 to 1. Pass e.g. dirty_share=0.47."),
        ("dirty_share", float("nan"), "a number from 0 to 1. Pass e.g. dirty_share=0.47."),
        ("drift", 1, "a number of at least 0 and below 1. Pass e.g. drift=0.2."),
        ("drift", -3, "a number of at least 0 and below 1. Pass e.g. drift=0.2."),
        ("block_bytes", 0, "a whole number of at least 1. Pass block_bytes=1 or more."),
        ("block_bytes", -5, "a whole number of at least 1. Pass block_bytes=1 or more."),
        ("dirty_before", -1, "a whole number of at least 0. Pass dirty_before=0 or more."),
    ],
)
def test_an_option_that_cannot_be_is_refused(option, given, needed):
    with pytest.raises(ValueError) as caught:
        through_l2(SCHEDULES["forward"](PROBLEM), "H200", **{option: given})
    assert str(caught.value) == f"{option} is {given}; it must be {needed}"


@pytest.mark.parametrize("options", [{"l2_bytes": -1000}, {"l2_bytes": 100, "most_dirty_bytes": -1}])
def test_a_cache_of_less_than_nothing_is_refused(options):
    with pytest.raises(ValueError, match=f"{list(options)[-1]} is -1.*; it must be a whole number of at least 0"):
        through_cache(SCHEDULES["forward"](PROBLEM), slots=4, **options)


# -- what an H200 counted ----------------------------------------------------------------------------------------------------------
H200 = AttentionProblem(4096, 4096, 64, heads=8)  # KERNELS.md, section 4


@pytest.mark.parametrize("block_q, block_k", [(64, 64), (128, 128), (64, 128)])
def test_the_unfused_kernels_pay_what_an_h200_counted(block_q, block_k):
    scores = through_l2(schedules.scores_schedule(H200, block_q=block_q, block_k=block_k), "H200", programs_per_multiprocessor=2)
    assert scores.dram_bytes_written == pytest.approx(239e6, rel=0.02)
    assert scores.requested_bytes_written == 268_435_456 == scores.dram_bytes_written + scores.dirty_bytes
    softmax = through_l2(schedules.softmax_schedule(H200), "H200", programs_per_multiprocessor=8)
    assert softmax.dram_bytes_read == pytest.approx(268e6, rel=0.01)


def test_the_fused_kernel_pays_what_an_h200_counted():
    """SDPA's flash kernel has our forward's order: a program takes 128 queries and streams k and v."""
    fused = through_l2(schedules.forward_schedule(H200, block_q=128, block_k=128, heads_at_once=1), "H200")
    assert fused.dram_bytes_read == pytest.approx(12.65e6, rel=0.01)
    assert fused.requested_bytes_read + fused.requested_bytes_written == pytest.approx(290e6, rel=0.06)


def test_the_share_scales_the_device_s_l2():
    trace = SCHEDULES["forward"](PROBLEM)
    for share in (1.0, SHARE):
        assert through_l2(trace, gpu("H200"), share=share).l2_bytes == int(60 * 2**20 * share)


def test_two_numbers_always():
    result = through_l2(SCHEDULES["forward"](PROBLEM), "H200")
    assert repr(result) == (
        "forward_kernel: of 1,179,648 bytes read and 139,264 written, 262,144 are read from DRAM and 0 written to it;"
        " 139,264 are left in an L2 of 52,219,084"
    )
    assert result.requested_bytes_read == 1_179_648 and result.dram_bytes_read == 262_144


def test_a_million_accesses_take_less_than_five_seconds():
    trace = schedules.forward_schedule(AttentionProblem(16384, 16384, 64, heads=16), block_q=64, block_k=128, heads_at_once=8)
    start = time.process_time()
    result = through_l2(trace, "H200", programs_per_multiprocessor=3)
    assert time.process_time() - start < 5
    assert len(trace) > 1_000_000 and result.dram_bytes_read > 0
