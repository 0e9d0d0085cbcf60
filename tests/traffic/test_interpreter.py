"""The Triton tracer: every access of a kernel, on the right tensor, at the right place, with the right bytes."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from flashlab import runtime  # before triton

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.errors import ERRORS
from flashlab.kernels import unfused
from flashlab.problem import AttentionProblem
from flashlab.reference.flash2 import flash2
from flashlab.traffic.cache import through_l2
from flashlab.traffic.interpreter import trace
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import flash2_traffic
from flashlab.traffic.trace import Trace
from flashlab.widgets.faults import WATCH
from flashlab.widgets.reading import noted, score_tiles
from flashlab.widgets.tile_loop import TileLoop

DEVICE = runtime.device()
INF = float("inf")


def numbers(*shape, dtype=torch.float32):
    """0, 1, 2, ... in this shape."""
    return torch.arange(int(np.prod(shape)), device=DEVICE).reshape(shape).to(dtype)


def places(events, *ops):
    """(op, tensor, row0, col0, rows, cols, bytes) of each event."""
    return [(e.op, e.tensor, e.row0, e.col0, e.rows, e.cols, e.bytes) for e in events if not ops or e.op in ops]


def line_of(kernel, text):
    """The line in this file where `kernel` says `text`."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


# -- pointers and masks ---------------------------------------------------------------------------------------------------
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    total = tl.load(x_ptr + index, mask=mask) + tl.load(y_ptr + index, mask=mask)
    tl.store(out_ptr + index, total, mask=mask)


def test_a_vector_add_event_by_event():
    x, y, out = numbers(10), numbers(10) * 10, torch.zeros(10, device=DEVICE)
    recorded = trace(add_kernel, lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),), x, y, out, 10, BLOCK=4, num_warps=4)
    assert torch.equal(out, x * 11)
    assert recorded.title == "add_kernel" and recorded.tensors == {"x": (10, 1, 4), "y": (10, 1, 4), "out": (10, 1, 4)}
    assert places(recorded) == [
        *(("load", "x", 0, 0, 4, 1, 16), ("load", "y", 0, 0, 4, 1, 16), ("store", "out", 0, 0, 4, 1, 16)),
        *(("load", "x", 4, 0, 4, 1, 16), ("load", "y", 4, 0, 4, 1, 16), ("store", "out", 4, 0, 4, 1, 16)),
        *(("load", "x", 8, 0, 2, 1, 8), ("load", "y", 8, 0, 2, 1, 8), ("store", "out", 8, 0, 2, 1, 8)),
    ]
    assert [e.program for e in recorded] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert {e.bytes_requested for e in recorded} == {16}
    assert repr(recorded) == "add_kernel: 9 steps in 3 programs, 80 bytes loaded, 40 bytes stored"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64])
def test_bytes_follow_the_dtype(dtype):
    x, out = numbers(5, dtype=dtype), torch.zeros(5, dtype=dtype, device=DEVICE)
    recorded = trace(add_kernel, 1, x, x, out, 5, BLOCK=8)
    assert torch.equal(out, x + x) and recorded.bytes_loaded == 10 * dtype.itemsize and recorded.bytes_stored == 5 * dtype.itemsize
    assert recorded[0].bytes_requested == 8 * dtype.itemsize


@triton.jit
def copy_kernel(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    mask = (r < rows) & (c < cols)
    tile = tl.load(x_ptr + r * stride_xr + c * stride_xc, mask=mask)
    tl.store(out_ptr + r * stride_or + c * stride_oc, tile, mask=mask)


@pytest.mark.parametrize("view", ["plain", "transposed", "every second row", "every third column", "middle"])
def test_a_strided_copy_with_ragged_edges(view):
    x = {
        "plain": numbers(5, 7),
        "transposed": numbers(7, 5).T,
        "every second row": numbers(10, 7)[1::2],
        "every third column": numbers(5, 21)[:, 2::3],
        "middle": numbers(9, 12)[2:7, 3:10],
    }[view]
    out = torch.zeros(5, 7, device=DEVICE)
    recorded = trace(copy_kernel, (2, 2), x, out, 5, 7, *x.stride(), *out.stride(), BR=4, BC=4)
    assert torch.equal(out, x)
    tiles = [(0, 0, 4, 4, 64), (4, 0, 1, 4, 16), (0, 4, 4, 3, 48), (4, 4, 1, 3, 12)]  # axis 0 of the grid fastest
    assert places(recorded, "load") == [("load", "x", *tile) for tile in tiles]
    assert places(recorded, "store") == [("store", "out", *tile) for tile in tiles]
    assert recorded.bytes_by_tensor() == {("x", "load"): 140, ("out", "store"): 140}
    assert {e.bytes_requested for e in recorded} == {64}


@triton.jit
def lanes_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes // 2), mask=lanes < n)  # each element of x twice


def test_lanes_that_share_an_address_touch_it_once():
    x, out = numbers(4), torch.zeros(8, device=DEVICE)
    load, store = trace(lanes_kernel, 1, x, out, 8, BLOCK=8)
    assert out.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (load.bytes, load.bytes_requested, load.rows) == (16, 32, 4) and store.bytes == 32


def test_an_access_with_every_lane_masked_off_moves_nothing_but_was_asked_for():
    _, store = trace(lanes_kernel, 1, numbers(4), torch.zeros(8, device=DEVICE), 0, BLOCK=8)
    assert store == (1, 0, "store", "out", 0, 0, 0, 0, 0, 0, 0, 32)


@triton.jit
def reverse_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + BLOCK - 1 - tl.arange(0, BLOCK)))


def test_lanes_in_any_order_are_all_counted():
    x, out = numbers(8), torch.zeros(8, device=DEVICE)
    assert [e.bytes for e in trace(reverse_kernel, 1, x, out, BLOCK=8)] == [32, 32] and torch.equal(out, x.flip(0))


@triton.jit
def scalar_kernel(x_ptr, out_ptr):
    tl.store(out_ptr + 1, tl.load(x_ptr + tl.program_id(0)))


def test_scalars():
    x, out = numbers(3, 4), torch.zeros(2, device=DEVICE)
    recorded = trace(scalar_kernel, (7,), x, out)
    assert places(recorded)[-2:] == [("load", "x", 1, 2, 1, 1, 4), ("store", "out", 1, 0, 1, 1, 4)] and out.tolist() == [0, 6]


@triton.jit
def choose_kernel(a_ptr, b_ptr, out_ptr):
    lanes = tl.arange(0, 8)
    tl.store(out_ptr + lanes, tl.load(tl.where(lanes < 3, a_ptr + lanes, b_ptr + lanes)))


def test_an_access_to_two_tensors_is_two_events():
    a, b, out = numbers(8), numbers(8) + 100, torch.zeros(8, device=DEVICE)
    recorded = trace(choose_kernel, 1, a, b, out)
    assert out.tolist() == [0, 1, 2, 103, 104, 105, 106, 107]
    assert places(recorded, "load") == [("load", "a", 0, 0, 3, 1, 12), ("load", "b", 3, 0, 5, 1, 20)]
    assert [e.bytes_requested for e in recorded] == [12, 20, 32]


@triton.jit
def flat_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + index, tl.load(x_ptr + index, mask=index < n), mask=index < n)


@pytest.mark.parametrize("shape", [(2048,), (64, 32), (8, 16, 16), (2, 4, 16, 16), (2, 2, 2, 16, 16)])
def test_a_flat_copy_reads_each_byte_from_dram_whatever_the_tensor_s_shape(shape):
    x, out = numbers(*shape), torch.zeros(shape, device=DEVICE)
    recorded = trace(flat_kernel, 2, x, out, 2048, BLOCK=1024)
    assert torch.equal(out, x) and recorded.bytes_by_tensor() == {("x", "load"): 8192, ("out", "store"): 8192}
    assert through_l2(recorded, "H200").dram == {("x", "read"): 8192} and through_l2(recorded, "H200").dirty == {"out": 8192}


def test_an_access_to_several_heads_is_an_event_for_each():
    x, out = numbers(2, 2, 3, 2), torch.zeros(2, 2, 3, 2, device=DEVICE)
    recorded = trace(flat_kernel, 2, x, out, 23, BLOCK=16, watch="out")  # the last element is masked off, as are 8 past the end
    at = [(e.batch, e.head, e.row0, e.rows, e.cols, e.bytes, e.bytes_requested) for e in recorded if e.op == "load"]
    assert at == [(0, 0, 0, 3, 2, 24, 24), (0, 1, 0, 3, 2, 24, 24), (1, 0, 0, 2, 2, 16, 16), (1, 0, 2, 1, 2, 8, 44), (1, 1, 0, 3, 2, 20, 20)]
    stores = {(e.batch, e.head, e.row0): recorded.values[e.step]["out"] for e in recorded if e.op == "store"}
    assert len(stores) == 5 and all(np.array_equal(value, x[b, h, row : row + len(value)].cpu()) for (b, h, row), value in [*stores.items()][:4])
    np.testing.assert_array_equal(stores[1, 1, 0], [[18, 19], [20, 21], [22, np.nan]])


@triton.jit
def packed_kernel(q_ptr, k_ptr, scores_ptr, BQ: tl.constexpr):
    row, inner = tl.arange(0, BQ), tl.arange(0, 16)
    q = tl.load(q_ptr + row[:, None] * 16 + inner[None, :])  # the heads one after another
    k = tl.load(k_ptr + tl.arange(0, 32)[None, :] * 16 + inner[:, None])
    tl.store(scores_ptr + row[:, None] * 32 + tl.arange(0, 32)[None, :], tl.dot(q, k))


def test_a_product_of_several_heads_is_named_by_the_first():
    recorded = trace(packed_kernel, 1, numbers(4, 4, 16), numbers(1, 32, 16), torch.zeros(4, 4, 32, device=DEVICE), BQ=16)
    assert [(e.op, e.tensor, e.head, e.row0, e.rows) for e in recorded] == [
        *(("load", "q", head, 0, 4) for head in range(4)),
        ("load", "k", 0, 0, 32),
        ("compute", "scores", 0, 0, 4),
        *(("store", "scores", head, 0, 4) for head in range(4)),
    ]


# -- which tensor, which place --------------------------------------------------------------------------------------------
@triton.jit
def first_kernel(q_ptr, k_pointer, V, x_desc, x, lse, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    for pointer in (q_ptr, k_pointer, V, x_desc, x, lse):
        tl.load(pointer + lanes)


def test_names_are_the_parameters_without_what_says_pointer():
    recorded = trace(first_kernel, 1, *(numbers(4) for _ in range(6)), BLOCK=4)
    assert recorded.tensor_names == ("q", "k", "v", "x_desc", "x", "lse")  # x_desc would be a second x


@triton.jit
def rows_kernel(q_ptr, lse_ptr, kv_ptr, heads, n, d, BLOCK: tl.constexpr):
    batch, head = tl.program_id(1), tl.program_id(0)
    row, col = tl.arange(0, BLOCK), tl.arange(0, 2)
    tl.load(q_ptr + ((batch * heads + head) * n + 1 + row[:, None]) * d + 3 + col[None, :])
    tl.load(lse_ptr + (batch * heads + head) * n + 2 + row)
    tl.load(kv_ptr + head * n * d + (row[None, :] * d) + col[:, None])  # transposed


def test_batch_head_row_and_column():
    q, lse, kv = numbers(2, 3, 6, 8), numbers(2, 3, 6), numbers(3, 6, 8)
    recorded = trace(rows_kernel, (3, 2), q, lse, kv, 3, 6, 8, BLOCK=4)
    assert recorded.tensors == {"q": (6, 8, 4), "lse": (6, 1, 4), "kv": (6, 8, 4)}
    at = [(e.tensor, e.batch, e.head, e.row0, e.col0, e.rows, e.cols) for e in recorded]
    assert at == [
        event
        for batch in range(2)
        for head in range(3)
        for event in (("q", batch, head, 1, 3, 4, 2), ("lse", batch, head, 2, 0, 4, 1), ("kv", 0, head, 0, 0, 4, 2))
    ]
    assert [e.program for e in recorded] == sorted(list(range(6)) * 3)


def test_more_than_two_leading_dimensions_are_counted_as_one_batch():
    x, out = numbers(2, 3, 4, 5, 6), torch.zeros(2, device=DEVICE)
    event = trace(scalar_kernel, (2 * 3 * 4 * 5 * 6,), x, out)[-2]
    assert (event.batch, event.head, event.row0, event.col0) == (1 * 3 + 2, 3, 4, 5)


def test_views_of_one_storage_are_told_apart():
    packed = numbers(4, 3, 2)  # (n, q k v, d)
    q, k, v = (packed[:, i] for i in range(3))
    out = torch.zeros(4, 2, device=DEVICE)
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        recorded = trace(copy_kernel, (1, 1), x, out, 4, 2, *x.stride(), 2, 1, BR=4, BC=2)
        assert torch.equal(out, x) and places(recorded, "load") == [("load", "x", 0, 0, 4, 2, 32)], name
    recorded = trace(first_kernel, 1, q[0], k[0], v[0], k[1], v[1], q[1], BLOCK=2)
    assert places(recorded) == [("load", name, 0, 0, 2, 1, 8) for name in ("q", "k", "v", "x_desc", "x", "lse")]


def test_one_tensor_given_twice_is_read_by_one_name_and_written_by_the_other():
    x = numbers(8)
    recorded = trace(add_kernel, 1, x, x, x, 8, BLOCK=8)
    assert recorded.bytes_by_tensor() == {("x", "load"): 32, ("y", "load"): 32, ("out", "store"): 32}
    assert x.tolist() == [2 * i for i in range(8)]


def test_zero_size_tensors():
    empty = torch.empty(0, device=DEVICE)
    recorded = trace(add_kernel, 1, empty, numbers(4)[4:], empty, 0, BLOCK=4)
    assert recorded.bytes_moved == 0 and [e.bytes_requested for e in recorded] == [16] * 3 and recorded.tensors["x"] == (0, 1, 4)
    with pytest.raises(IndexError, match="would read x at element offset 0 .* of shape \\(0,\\)"):
        trace(add_kernel, 1, empty, numbers(4), numbers(4), 1, BLOCK=4)


def test_an_expanded_tensor_has_each_element_once():
    x, out = numbers(1, 4).expand(3, 4), torch.zeros(3, 4, device=DEVICE)
    load, store = trace(copy_kernel, (1, 1), x, out, 3, 4, 0, 1, 4, 1, BR=4, BC=4)
    assert torch.equal(out, x) and (load.rows, load.cols, load.bytes, store.bytes) == (1, 4, 16, 48)


class Params(NamedTuple):
    slopes: object
    window: object


@triton.jit
def tuple_kernel(params, pair, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(params.slopes + lanes) * params.window + tl.load(pair[1] + lanes))


def test_tensors_in_tuples():
    out = torch.zeros(4, device=DEVICE)
    recorded = trace(tuple_kernel, 1, Params(numbers(4), 3), (1, numbers(4) * 10), out, BLOCK=4)
    assert out.tolist() == [0, 13, 26, 39] and recorded.tensor_names == ("params.slopes", "pair[1]", "out")


def test_a_reinterpreted_tensor():
    x, out = numbers(8, dtype=torch.float16), torch.zeros(8, dtype=torch.int16, device=DEVICE)
    recorded = trace(add_kernel, 1, x, x, triton.reinterpret(out, tl.float16), 8, BLOCK=8)
    assert torch.equal(out.view(torch.float16), x + x) and recorded.bytes_by_tensor()["out", "store"] == 16


# -- block pointers, descriptors, atomics -----------------------------------------------------------------------------------
@triton.jit
def block_kernel(x_ptr, out_ptr, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    source = tl.make_block_ptr(x_ptr, (cols, rows), (1, cols), (0, 0), (BC, BR), (0, 1))  # x, transposed
    target = tl.make_block_ptr(out_ptr, (rows, cols), (cols, 1), (0, 0), (BR, BC), (1, 0))
    for _ in range(0, cols, BC):
        tl.store(target, tl.trans(tl.load(source, boundary_check=(0, 1))), boundary_check=(0, 1))
        source = tl.advance(source, (BC, 0))
        target = tl.advance(target, (0, BC))


@pytest.mark.skipif("removed" in (tl.make_block_ptr.__doc__ or ""), reason="this Triton has no block pointers any more")
def test_block_pointers():
    x, out = numbers(3, 6), torch.zeros(3, 6, device=DEVICE)
    recorded = trace(block_kernel, 1, x, out, 3, 6, BR=4, BC=4, watch="out")
    assert torch.equal(out, x)
    assert places(recorded, "load") == [("load", "x", 0, 0, 3, 4, 48), ("load", "x", 0, 4, 3, 2, 24)]
    assert places(recorded, "store") == [("store", "out", 0, 0, 3, 4, 48), ("store", "out", 0, 4, 3, 2, 24)]
    assert {e.bytes_requested for e in recorded} == {64}
    assert [value["out"].tolist() for value in recorded.values.values()] == [x[:, :4].tolist(), x[:, 4:].tolist()]


@triton.jit
def descriptor_kernel(x_desc, out_ptr, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    target = tl.make_tensor_descriptor(out_ptr, [rows, cols], [cols, 1], [BR, BC])
    for start in tl.range(0, rows, BR):
        target.store([start, 4], x_desc.load([start, 4]))


def test_tensor_descriptors_made_on_the_host_and_in_the_kernel():
    x, out = numbers(5, 8), torch.zeros(5, 8, device=DEVICE)
    recorded = trace(descriptor_kernel, 1, TensorDescriptor.from_tensor(x, [4, 8]), out, 5, 8, BR=4, BC=8)
    assert torch.equal(out[:, 4:], x[:, 4:]) and out[:, :4].eq(0).all()
    assert places(recorded, "load") == [("load", "x", 0, 4, 4, 4, 64), ("load", "x", 4, 4, 1, 4, 16)]
    assert places(recorded, "store") == [("store", "out", 0, 4, 4, 4, 64), ("store", "out", 4, 4, 1, 4, 16)]
    assert {e.bytes_requested for e in recorded} == {128}


@triton.jit
def atomic_kernel(x_ptr, count_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(count_ptr + lanes % 2, tl.load(x_ptr + lanes, mask=lanes < n), mask=lanes < n)
    tl.atomic_cas(lock_ptr, 0, 1)


def test_atomics():
    x, count, lock = numbers(7), torch.zeros(3, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    recorded = trace(atomic_kernel, 2, x, count, lock, 7, BLOCK=4, watch="count")
    assert count.tolist() == [0 + 2 + 4 + 6, 1 + 3 + 5, 0] and lock.tolist() == [1]
    assert places(recorded, "atomic") == [("atomic", "count", 0, 0, 2, 1, 8), ("atomic", "lock", 0, 0, 1, 1, 4)] * 2
    assert [e.bytes_requested for e in recorded] == [16, 16, 4] * 2
    assert recorded.bytes_by_tensor() == {("x", "load"): 28, ("count", "atomic"): 16, ("lock", "atomic"): 8}
    assert recorded.bytes_stored == 24 and recorded.bytes_loaded == 28
    assert recorded.values[1]["count"].tolist() == [0, 1, 2, 3]


# -- out of bounds ----------------------------------------------------------------------------------------------------------
def test_out_of_bounds_is_said_word_for_word_and_nothing_is_touched():
    memory = torch.zeros(16, device=DEVICE)
    with pytest.raises(IndexError) as caught:
        trace(lanes_kernel, 1, numbers(4), memory[4:10], 8, BLOCK=8)
    assert str(caught.value) == (
        f"program 0 of lanes_kernel would write out at element offset 6 (line {line_of(lanes_kernel, 'tl.store')} of lanes_kernel),"
        " but out, of shape (6,) and strides (1,), has no such element; 2 of the 8 lanes that no mask switches off are outside."
        " Mask them off, e.g. mask=index < n."
    )
    assert memory.eq(0).all()


@pytest.mark.parametrize("change", ["load", "atomic"])
def test_every_kind_of_access_is_checked(change):
    x, count, lock = numbers(7), torch.zeros(2, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    wrong = {"load": (x[:6], count, lock), "atomic": (x, count[:1], lock)}[change]
    name, verb, program = {"load": ("x", "read", 1), "atomic": ("count", "change", 0)}[change]
    with pytest.raises(IndexError, match=f"^program {program} of atomic_kernel would {verb} {name} at element offset "):
        trace(atomic_kernel, 2, *wrong, 7, BLOCK=4)


def test_before_the_first_element_and_between_the_rows_are_outside_too():
    x, out = numbers(4, 8)[:, :5], torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(IndexError, match=r"program 0 of copy_kernel would read x at element offset 5 .*strides \(8, 1\), has no such element; 12 of the 32 "):
        trace(copy_kernel, (1, 1), x, out, 4, 8, 8, 1, 8, 1, BR=4, BC=8)
    with pytest.raises(IndexError, match="program 0 of copy_kernel would read x at element offset -8 "):
        trace(copy_kernel, (1, 1), x, out, 4, 5, -8, 1, 8, 1, BR=4, BC=8)


def test_elements_of_strides_that_do_not_nest_are_inside_and_what_lies_between_is_not():
    x, out = torch.arange(32.0, device=DEVICE).as_strided((4, 4), (3, 2)), torch.zeros(4, 4, device=DEVICE)
    recorded = trace(copy_kernel, (1, 1), x, out, 4, 4, 3, 2, 4, 1, BR=4, BC=4)
    assert torch.equal(out, x) and places(recorded, "load") == [("load", "x", 0, 0, 4, 4, 4 * len(x.unique()))]
    with pytest.raises(IndexError, match="would read x at element offset 1 .* has no such element; 2 of the 16 "):  # 1 and 14
        trace(copy_kernel, (1, 1), x, out, 4, 4, 4, 1, 4, 1, BR=4, BC=4)


@triton.jit
def wide_kernel(x_ptr):
    tl.load((x_ptr + 1).to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, 2))


def test_an_access_wider_than_an_element_needs_all_of_its_bytes():
    (event,) = trace(wide_kernel, 1, numbers(5, dtype=torch.int16))
    assert (event.row0, event.rows, event.bytes, event.bytes_requested) == (1, 4, 8, 8)
    with pytest.raises(IndexError, match="would read x at element offset 3 .* 1 of the 2 lanes"):
        trace(wide_kernel, 1, numbers(4, dtype=torch.int16))


@triton.jit
def pairs_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pair = tl.arange(0, BLOCK)
    x, out = x_ptr.to(tl.pointer_type(tl.int64)), out_ptr.to(tl.pointer_type(tl.int64))
    tl.store(out + pair, tl.load(x + pair, mask=pair < n), mask=pair < n)


@pytest.mark.parametrize(
    "shape, tiles",
    [
        ((512,), [(0, 512, 1)]),
        ((4, 128), [(0, 4, 128)]),
        ((2, 16, 16), [(0, 16, 16), (1, 16, 16)]),
        ((2, 3), [(0, 2, 3)]),  # the second lane is in both rows
    ],
)
def test_a_lane_of_two_elements_touches_both(shape, tiles):
    x, out = numbers(*shape), torch.zeros(shape, device=DEVICE)
    recorded = trace(pairs_kernel, 1, x, out, x.numel() // 2, BLOCK=256, watch="out")
    assert torch.equal(out, x)
    for op in ("load", "store"):
        events = [e for e in recorded if e.op == op]
        assert [(e.head, e.rows, e.cols) for e in events] == tiles
        assert sum(e.bytes for e in events) == 4 * x.numel() and sum(e.bytes_requested for e in events) == 2048
    values = np.stack([value["out"].view(np.float32) for value in recorded.values.values()])  # kept bit by bit
    np.testing.assert_array_equal(values.reshape(shape), x.cpu())
    assert through_l2(recorded, "H200").dram_bytes_read == 4 * x.numel()


@triton.jit
def address_kernel(address):
    tl.load(tl.cast(address, tl.pointer_type(tl.float32)))


def test_an_address_of_no_tensor_is_not_followed():
    with pytest.raises(TypeError) as caught:
        trace(address_kernel, 1, 4096 * 1024**3)
    assert str(caught.value) == (
        f"address_kernel would read memory (line {line_of(address_kernel, 'tl.load')} of address_kernel), but none of its"
        " arguments is a tensor. Pass tensors, not addresses."
    )


# -- programs -----------------------------------------------------------------------------------------------------------------
@triton.jit
def order_kernel(out_ptr, clock_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = x + tl.num_programs(0) * (y + tl.num_programs(1) * z)
    tl.store(out_ptr + place, tl.atomic_add(clock_ptr, 1))


def test_a_3d_grid_is_numbered_and_run_with_axis_0_fastest():
    out, clock = torch.zeros(24, dtype=torch.int32, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    recorded = trace(order_kernel, (2, 3, 4), out, clock)
    assert out.tolist() == list(range(24))
    stores = [e for e in recorded if e.op == "store"]
    assert [e.program for e in stores] == [e.row0 for e in stores] == list(range(24))


def test_a_grid_without_programs_is_an_empty_trace():
    recorded = trace(order_kernel, (0,), numbers(1), numbers(1))
    assert len(recorded) == 0 and recorded.tensors["out"] == (1, 1, 4)


# -- softmax, helpers and watched values ----------------------------------------------------------------------------------------
@triton.jit
def shift(row, row_max):
    shifted = row - row_max
    return shifted


@triton.jit
def exponentials(row, row_max):
    return tl.exp(shift(row, row_max))


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < cols
    row = tl.load(x_ptr + offsets, mask=mask, other=-float("inf"))
    row_max = tl.max(row, axis=0)
    weights = exponentials(row, row_max)
    row_sum = tl.sum(weights, axis=0)
    tl.store(out_ptr + offsets, weights / row_sum, mask=mask)


def test_fused_softmax_moves_each_number_once_each_way():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    out = torch.empty_like(x)
    recorded = trace(softmax_kernel, (5,), x, out, 7, BLOCK=8, watch=("row_max", "row_sum", "shifted"))
    torch.testing.assert_close(out, torch.softmax(x, -1))
    assert recorded.bytes_by_tensor() == {("x", "load"): 140, ("out", "store"): 140}
    assert places(recorded)[2:4] == [("load", "x", 1, 0, 1, 7, 28), ("store", "out", 1, 0, 1, 7, 28)]
    assert sorted(recorded.values) == [1, 3, 5, 7, 9]  # at each store, where they are new
    for row in range(5):
        values = recorded.values[2 * row + 1]
        assert values["row_max"].shape == () and values["row_max"] == x[row].max().item()
        np.testing.assert_allclose(values["row_sum"], (x[row] - x[row].max()).exp().sum().item(), rtol=1e-6)
        np.testing.assert_array_equal(values["shifted"][:7], (x[row] - x[row].max()).cpu())  # a helper's helper's local


@triton.jit
def running_sum(x_ptr, total, n):
    for i in range(n):
        total += tl.load(x_ptr + i)
    return total


@triton.jit
def sum_kernel(x_ptr, out_ptr, n):
    total = 100.0
    total = running_sum(x_ptr, total, n)
    tl.store(out_ptr, total)
    tl.store(out_ptr + 1, total)


def test_a_watched_value_is_that_of_the_innermost_function_and_is_kept_where_it_changed():
    out = torch.zeros(2, device=DEVICE)
    recorded = trace(sum_kernel, 1, numbers(4) + 1, out, 4, watch="total")
    assert {step: values["total"].item() for step, values in recorded.values.items()} == {0: 100, 1: 101, 2: 103, 3: 106, 4: 110}
    assert len(recorded) == 6 and out.tolist() == [110, 110]


def test_a_pointer_is_no_value():
    assert trace(add_kernel, 1, numbers(4), numbers(4), numbers(4), 4, BLOCK=4, watch="x_ptr").values == {}


def test_a_missing_watched_name_is_listed():
    x = numbers(2, 4)
    with pytest.raises(LookupError) as caught:
        trace(softmax_kernel, (2,), x, torch.empty_like(x), 4, BLOCK=4, watch=("row_max", "rowmax", "out", "acc"))
    assert str(caught.value) == (
        "watch names rowmax, acc, but softmax_kernel and its helpers have no such local. They have BLOCK, cols, mask, offsets,"
        " out, out_ptr, row, row_max, row_sum, shifted, weights, x, x_ptr."
    )


@triton.jit
def masked_kernel(o_ptr, rows, cols, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    row, col = tl.arange(0, BLOCK)[:, None], tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(o_ptr + row * cols + col, row * 10.0 + col, mask=(row < rows) & (col < cols) & ((col <= row) | (not CAUSAL)))


def test_a_watched_tensor_is_kept_as_it_is_stored_and_what_a_mask_leaves_out_is_no_number():
    o = torch.full((4, 4), float("nan"), device=DEVICE)
    recorded = trace(masked_kernel, 1, o, 4, 4, BLOCK=4, CAUSAL=True, watch="o")
    np.testing.assert_array_equal(recorded.values[0]["o"], o.cpu())  # nan where nothing is stored
    assert recorded.values[0]["o"][1, :2].tolist() == [10, 11]
    o = torch.zeros(3, 5, device=DEVICE)
    first, last = trace(masked_kernel, 2, o, 3, 5, BLOCK=4, CAUSAL=False, watch="o").values.values()
    assert first["o"].tolist() == o[:, :4].tolist() and last["o"].tolist() == o[:, 4:].tolist() == [[4], [14], [24]]


@triton.jit
def spread_kernel(out_ptr, step, BLOCK: tl.constexpr):
    tl.store(out_ptr + (step < 0) * (BLOCK - 1) + step * tl.arange(0, BLOCK), tl.arange(0, BLOCK) + 1.0)


@pytest.mark.parametrize("step, given", [(1, [1, 2, 3, 4]), (-1, [4, 3, 2, 1]), (2, [1, None, 2, None, 3, None, 4])])
def test_a_watched_vector_is_kept_in_its_own_order(step, given):
    out = torch.full((7,), float("nan"), device=DEVICE)
    recorded = trace(spread_kernel, 1, out, step, BLOCK=4, watch="out")
    np.testing.assert_array_equal(recorded.values[0]["out"], np.array(given, float))
    np.testing.assert_array_equal(recorded.values[0]["out"], out[: len(given)].cpu())


@triton.jit
def one_head_kernel(x_ptr, out_ptr, head, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    at = head * D + tl.arange(0, BLOCK)[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(out_ptr + at, tl.load(x_ptr + at))


def test_a_tensor_whose_heads_lie_within_its_rows_is_traced_tile_by_tile_as_its_view():
    x = torch.randn(1, 8, 3, 16, device=DEVICE)  # (batch, n, heads, head_dim)
    out = torch.zeros_like(x)
    recorded = trace(one_head_kernel, 1, x.transpose(1, 2), out.transpose(1, 2), 2, x.stride(1), D=16, BLOCK=8)
    assert [(e.op, e.head, e.row0, e.rows, e.cols) for e in recorded] == [("load", 2, 0, 8, 16), ("store", 2, 0, 8, 16)]
    assert torch.equal(out[:, :, 2], x[:, :, 2]) and not out[:, :, :2].any()
    recorded = trace(one_head_kernel, 1, x, out, 2, x.stride(1), D=16, BLOCK=8)
    assert len(recorded) == 16 and recorded.bytes_loaded == recorded.bytes_stored == 8 * 16 * 4  # the same bytes, an event a row


# -- tiled q·kᵀ -----------------------------------------------------------------------------------------------------------------
@triton.jit
def scores_kernel(q_ptr, k_ptr, scores_ptr, n_q, n_k, d, BQ: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    cols = tl.program_id(1) * BK + tl.arange(0, BK)
    acc = tl.zeros([BQ, BK], tl.float32)
    chunk = 0
    while chunk < d:
        inner = chunk + tl.arange(0, BD)
        q = tl.load(q_ptr + rows[:, None] * d + inner[None, :], mask=(rows < n_q)[:, None] & (inner < d)[None, :], other=0.0)
        k = tl.load(k_ptr + cols[:, None] * d + inner[None, :], mask=(cols < n_k)[:, None] & (inner < d)[None, :], other=0.0)
        acc += tl.dot(q, tl.trans(k), input_precision="ieee")
        chunk += BD
    tl.store(scores_ptr + rows[:, None] * n_k + cols[None, :], acc, mask=(rows < n_q)[:, None] & (cols < n_k)[None, :])


def test_tiled_scores_with_a_loop_over_head_dim():
    n_q, n_k, d = 20, 37, 24
    q, k, scores = torch.randn(n_q, d, device=DEVICE), torch.randn(n_k, d, device=DEVICE), torch.empty(n_q, n_k, device=DEVICE)
    recorded = trace(scores_kernel, (2, 3), q, k, scores, n_q, n_k, d, BQ=16, BK=16, BD=16, watch="acc")
    torch.testing.assert_close(scores, q @ k.T, rtol=1e-5, atol=1e-5)
    assert recorded.bytes_by_tensor() == {("q", "load"): 3 * n_q * d * 4, ("k", "load"): 2 * n_k * d * 4, ("scores", "store"): n_q * n_k * 4}
    assert places(recorded, "compute") == [
        ("compute", "scores", row0, col0, rows, cols, 0)
        for col0, cols in ((0, 16), (16, 16), (32, 5))
        for row0, rows in ((0, 16), (16, 4))
        for _ in range(2)  # chunks of head_dim
    ]
    last = [step for step, event in enumerate(recorded) if event.op == "compute"][-1]
    np.testing.assert_allclose(recorded.values[last]["acc"], scores[16:, 32:].cpu(), rtol=1e-5, atol=1e-5)
    assert places(recorded)[:3] == [("load", "q", 0, 0, 16, 16, 1024), ("load", "k", 0, 0, 16, 16, 1024), ("compute", "scores", 0, 0, 16, 16, 0)]


@pytest.mark.parametrize("d, chunks", [(1, 1), (32, 2), (33, 3), (34, 3)])
@pytest.mark.parametrize("n", [20, 17])  # of which the last tile has one row
def test_a_chunk_of_one_column_is_no_less_a_product(n, d, chunks):
    q, k, scores = torch.randn(n, d, device=DEVICE), torch.randn(n, d, device=DEVICE), torch.empty(n, n, device=DEVICE)
    recorded = trace(scores_kernel, (2, 1), q, k, scores, n, n, d, BQ=16, BK=32, BD=16)
    tiles = [("compute", "scores", row0, 0, rows, n, 0) for row0, rows in ((0, 16), (16, n - 16)) for _ in range(chunks)]
    assert places(recorded, "compute") == tiles


@triton.jit
def swapped_kernel(q_ptr, k_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    q = tl.load(q_ptr + at)
    tl.dot(q, tl.trans(q))  # no k yet
    k = tl.load(k_ptr + tl.arange(0, 8)[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.dot(tl.trans(q), q)  # (32, 32): not of q's and k's rows
    tl.store(out_ptr, 1.0)
    tl.dot(k, tl.trans(q))  # the scores, transposed
    tl.store(out_ptr, 2.0)
    tl.dot(q, tl.trans(k))  # the same tiles again: nothing new
    tl.store(k_ptr + tl.arange(0, 8)[:, None] * 32 + tl.arange(0, 32)[None, :], k)
    tl.dot(q, tl.trans(k))  # a store loads nothing


def test_only_a_product_of_new_rows_of_q_and_k_is_a_compute_event():
    recorded = trace(swapped_kernel, 1, numbers(16, 32), numbers(8, 32), numbers(1))
    assert [e.op for e in recorded] == ["load", "load", "store", "compute", "store", "store"]
    assert places(recorded, "compute") == [("compute", "scores", 0, 0, 16, 8, 0)]


@triton.jit
def other_kernel(q_ptr, k_ptr, w_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    if tl.program_id(0) == 0:
        right = tl.load(k_ptr + at)
    else:
        right = tl.load(w_ptr + at)
    tl.dot(tl.load(q_ptr + at), tl.trans(right))


def test_what_another_program_loaded_does_not_count():
    recorded = trace(other_kernel, 2, *(numbers(16, 16) for _ in range(3)))
    assert [(e.op, e.program) for e in recorded if e.op == "compute"] == [("compute", 0)]


# -- FlashAttention ---------------------------------------------------------------------------------------------------------------
@triton.jit
def update(row_max, row_sum, scores):
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    safe = tl.where(new_max == -float("inf"), 0.0, new_max)
    rescale = tl.exp(row_max - safe)
    weights = tl.exp(scores - safe[:, None])
    for _ in tl.static_range(2):  # a loop after the product, in a helper: no end of a pass over k
        weights = weights * 1.0
    return new_max, row_sum * rescale + tl.sum(weights, 1), rescale, weights


@triton.jit
def flash_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n_q, n_k, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, CAUSAL: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    FORGET: tl.constexpr = False,
):  # fmt: skip
    head = tl.program_id(1)
    kv_head = head // HEADS * (HEADS // GROUP) + head % HEADS // GROUP
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    d = tl.arange(0, BD)
    rows_exist = (rows < n_q)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + (head * n_q + rows[:, None]) * D + d[None, :], mask=rows_exist, other=0.0)
    row_max = tl.full([BQ], -float("inf"), tl.float32)
    row_sum = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, BD], tl.float32)
    visible = n_k
    if CAUSAL:
        visible = tl.maximum(tl.minimum(tl.program_id(0) * BQ + BQ, n_q) + n_k - n_q, 0)
    for start in range(0, visible, BK):
        cols = start + tl.arange(0, BK)
        k = tl.load(k_ptr + (kv_head * n_k + cols[None, :]) * D + d[:, None], mask=(cols < n_k)[None, :] & (d < D)[:, None], other=0.0)
        scores = tl.where((cols < n_k)[None, :], tl.dot(q, k, input_precision="ieee") * scale, -float("inf"))
        if CAUSAL:
            scores = tl.where(cols[None, :] <= rows[:, None] + n_k - n_q, scores, -float("inf"))
        row_max, row_sum, rescale, weights = update(row_max, row_sum, scores)
        v = tl.load(v_ptr + (kv_head * n_k + cols[:, None]) * D + d[None, :], mask=(cols < n_k)[:, None] & (d < D)[None, :], other=0.0)
        if FORGET:
            acc = acc + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        else:
            acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    row_sum = tl.where(row_sum > 0, row_sum, 1.0)
    acc = acc / row_sum[:, None]  # after the loop: no tile's acc
    tl.store(o_ptr + (head * n_q + rows[:, None]) * D + d[None, :], acc.to(q.dtype), mask=rows_exist)
    tl.store(lse_ptr + head * n_q + rows, row_max + tl.log(row_sum), mask=rows < n_q)


def flash(problem, block_q, block_k, *, watch=(), forget=False):
    """(trace, o) of flash_kernel on the problem's tensors."""
    q, k, v = problem.tensors(device=DEVICE)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=DEVICE)
    return trace(
        flash_kernel, (triton.cdiv(problem.n_q, block_q), problem.batch * problem.heads), q, k, v, o, lse, problem.n_q, problem.n_k, problem.scale,
        HEADS=problem.heads, GROUP=problem.heads // problem.kv_heads, D=problem.head_dim, BD=triton.next_power_of_2(problem.head_dim),
        CAUSAL=problem.causal, BQ=block_q, BK=block_k, FORGET=forget, watch=watch,
    ), o  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes, blocks",
    [
        ({"n_q": 32, "n_k": 32, "head_dim": 16}, (16, 16)),
        ({"n_q": 37, "n_k": 53, "head_dim": 20, "dtype": "float32"}, (16, 32)),
        ({"n_q": 53, "n_k": 37, "head_dim": 16}, (32, 16)),
        ({"n_q": 1, "n_k": 17, "head_dim": 8, "batch": 2, "heads": 4, "kv_heads": 2}, (16, 16)),
        ({"n_q": 17, "n_k": 3, "head_dim": 16, "heads": 3}, (16, 16)),
        ({"n_q": 5, "n_k": 0, "head_dim": 16}, (16, 16)),
    ],
    ids=str,
)
def test_a_flash_kernel_moves_what_the_closed_form_says(sizes, blocks, causal):
    problem = AttentionProblem(**sizes, causal=causal)
    recorded, o = flash(problem, *blocks)
    assert recorded.bytes_by_tensor() == flash2_traffic(problem, block_q=blocks[0], block_k=blocks[1]).by_tensor
    q, k, v = (x.double() for x in problem.tensors(device=DEVICE))
    mask = torch.ones(problem.n_q, problem.n_k, device=DEVICE).tril(problem.n_k - problem.n_q).bool() if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).nan_to_num(0.0)
    assert (o - expected).abs().max() < (2e-6 if o.dtype == torch.float32 else 2e-3)


def test_skipped_causal_tiles_are_absent_from_the_trace():
    recorded, _ = flash(AttentionProblem(48, 48, 16, causal=True), 16, 16)
    tiles = [(row0, col0) for row0 in (0, 16, 32) for col0 in (0, 16, 32) if col0 <= row0]
    assert [(e.row0, e.col0) for e in recorded if e.op == "compute"] == tiles
    assert [e.row0 for e in recorded if e.tensor == "k"] == [col0 for _, col0 in tiles]
    assert [e.row0 for e in recorded if e.tensor == "v"] == [col0 for _, col0 in tiles]


@pytest.mark.parametrize("causal, n_q, n_k, head_dim", [(False, 37, 53, 20), (True, 53, 53, 16), (True, 17, 40, 8)])
def test_watched_values_are_those_of_the_reference_tile_by_tile(causal, n_q, n_k, head_dim):
    problem = AttentionProblem(n_q, n_k, head_dim, causal=causal, dtype="float32")
    recorded, _ = flash(problem, 16, 32, watch=WATCH)
    memory = Memory("FlashAttention-2", watch=WATCH)
    flash2(*(x[0, 0].cpu().numpy() for x in problem.tensors(device=DEVICE)), block_q=16, block_k=32, causal=causal, memory=memory)
    for name in WATCH:
        given, right = list(noted(recorded, name)), list(noted(memory.trace, name))
        assert len(given) == len(right) > 1, name
        for (_, row0, value), (_, right_row0, right_value) in zip(given, right):
            assert row0 == right_row0 and value.shape == right_value.shape, name
            np.testing.assert_allclose(value, right_value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_tile_loop_plays_the_trace_and_finds_no_fault_in_it():
    problem = AttentionProblem(37, 53, 16, dtype="float32")
    recorded, _ = flash(problem, 16, 16, watch=WATCH)
    memory = Memory("FlashAttention-2", watch=WATCH)
    flash2(*(x[0, 0].cpu().numpy() for x in problem.tensors(device=DEVICE)), block_q=16, block_k=16, memory=memory)
    widget = TileLoop(recorded, against=memory.trace)
    assert repr(widget) == "Tile loop at step 0 of 45: flash_kernel moves 25,236 bytes in all, standard attention 42,896."
    assert widget.fault == "" and widget.wrong_rows == [] and not widget.data[0]["managed"]
    assert len(score_tiles(recorded)) == 12 and set(widget.data[0]["values"]) == set(WATCH)
    assert [(e.row0, e.col0, e.rows, e.cols) for e in recorded if e.op == "compute"] == [tuple(tile[2:]) for tile in score_tiles(memory.trace).tolist()]


def test_the_tile_loop_plays_a_softmax_by_itself_row_by_row():
    scores = torch.randn(5, 40, device=DEVICE)
    recorded = trace(unfused.softmax_kernel, (5,), scores, torch.empty_like(scores), 40, BLOCK=64)
    assert [tuple(tile[2:]) for tile in score_tiles(recorded).tolist()] == [(row, 0, 1, 40) for row in range(5)]
    assert repr(TileLoop(recorded)) == "Tile loop at step 0 of 10: softmax_kernel moves 1,600 bytes in all."


def test_the_tile_loop_finds_a_forgotten_rescale_in_a_kernel():
    problem = AttentionProblem(32, 64, 16, dtype="float32")
    right, _ = flash(problem, 16, 16, watch=WATCH)
    wrong, _ = flash(problem, 16, 16, watch=WATCH, forget=True)
    widget = TileLoop(wrong, against=right)
    assert "row_max rose from" in widget.fault and "acc was not." in widget.fault and widget.wrong_rows


def test_a_trace_of_several_heads_survives_json():
    recorded, _ = flash(AttentionProblem(17, 17, 16, batch=2, heads=2), 16, 16, watch="row_max")
    heads = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(e.batch, e.head) for e in recorded if e.op == "compute"] == [head for head in heads for _ in range(4)]
    assert [(e.batch, e.head) for e in recorded if e.tensor == "lse"] == [head for head in heads for _ in range(2)]
    assert list(Trace.from_json(recorded.to_json())) == list(recorded)


# -- what is refused ----------------------------------------------------------------------------------------------------------------
@triton.autotune(configs=[triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.load(x_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < n)


def test_a_tuned_kernel_runs_with_what_you_choose():
    assert trace(tuned_kernel, 1, numbers(6), 6, EVEN=False, BLOCK=8).bytes_loaded == 24
    with pytest.raises(TypeError) as caught:
        trace(tuned_kernel, 1, numbers(6), 6)
    assert str(caught.value) == (
        "tuned_kernel was not given EVEN, BLOCK; a tracer does not tune, so choose what @triton.autotune or heuristics would."
        " Pass each by name, e.g. trace(tuned_kernel, grid, ..., BLOCK=64)."
    )


X = numbers(4)
COMPLEX = torch.zeros(4, dtype=torch.complex64, device=DEVICE)
PASS_ONE = "but a kernel takes tensors, numbers and tuples of them. Pass"


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (
            lambda: trace(add_kernel, 1, X, X, X, 4),
            TypeError,
            "add_kernel was not given BLOCK; every parameter needs a value. Pass each by name, e.g. trace(add_kernel, grid, ..., BLOCK=64).",
        ),
        (lambda: trace(scalar_kernel, 1, X, X, 3), TypeError, "scalar_kernel takes no argument number 3. Its parameters are x_ptr, out_ptr."),
        (lambda: trace(scalar_kernel, 1, X, X, BLOCK=3), TypeError, "scalar_kernel takes no argument BLOCK. Its parameters are x_ptr, out_ptr."),
        (lambda: trace(scalar_kernel, 1, X, x_ptr=X), TypeError, "scalar_kernel takes no argument x_ptr twice. Its parameters are x_ptr, out_ptr."),
        (
            lambda: trace(add_kernel.fn, 1, X, X, X, 4, BLOCK=4),
            TypeError,
            "kernel is add_kernel; trace runs a function under @triton.jit (a Gluon kernel has no interpreter). Pass the kernel itself,"
            " without [grid].",
        ),
        *(
            (
                lambda grid=grid: trace(scalar_kernel, grid, X, X),
                ValueError,
                f"grid is {grid}; it must be one to three whole numbers of at least 0, or a function that returns them. Pass e.g. (4,).",
            )
            for grid in ((), (1, 1, 1, 1), (-1,), (1.5,))
        ),
    ],
)
def test_what_does_not_fit_is_said_word_for_word(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: trace(scalar_kernel, 1, np.zeros(4), X),
            f"scalar_kernel was given a value of type ndarray for x_ptr, {PASS_ONE} torch.as_tensor(x_ptr).",
        ),
        (
            lambda: trace(tuple_kernel, 1, Params(X, 3), [1, X], X, BLOCK=4),
            f"tuple_kernel was given a value of type list for pair, {PASS_ONE} tuple(pair), or torch.as_tensor(pair) for a pointer.",
        ),
        (
            lambda: trace(tuple_kernel, 1, Params("x", 3), (1, X), X, BLOCK=4),
            f"tuple_kernel was given a value of type str for params.slopes, {PASS_ONE} one of these, or make params.slopes a tl.constexpr.",
        ),
        (
            lambda: trace(scalar_kernel, 1, X, COMPLEX),
            "scalar_kernel was given a tensor of torch.complex64 for out_ptr, but Triton has no such dtype. Pass torch.view_as_real(out_ptr).",
        ),
        (
            lambda: trace(scalar_kernel, 1, X, X.to(torch.float8_e8m0fnu)),
            "scalar_kernel was given a tensor of torch.float8_e8m0fnu for out_ptr, but Triton has no such dtype. Pass one that it has, e.g."
            " out_ptr.float().",
        ),
        (
            lambda: trace(scalar_kernel, 1, torch.empty(4, device="meta"), X),
            "scalar_kernel was given a tensor on meta for x_ptr, but that holds no numbers. Pass torch.zeros_like(x_ptr, device='cpu').",
        ),
        (
            lambda: trace(scalar_kernel, 1, X.to_sparse(), X),
            "scalar_kernel was given a tensor of layout torch.sparse_coo for x_ptr, but a pointer needs its elements in one storage. Pass"
            " x_ptr.to_dense().",
        ),
        (
            lambda: trace(add_kernel, 1, X, X, X, 4, BLOCK=torch.tensor(4)),
            "add_kernel was given a tensor for BLOCK, but a tl.constexpr is known when the kernel is compiled. Pass BLOCK.item().",
        ),
        (
            lambda: trace(add_kernel, 1, X, X, X, 4, BLOCK=[4]),
            "add_kernel was given a value of type list for BLOCK, but a tl.constexpr is a number or another value that hash() takes. Pass e.g."
            " tuple(BLOCK).",
        ),
        (
            lambda: trace(add_kernel, 1, X, None, X, 4, BLOCK=4),
            "add_kernel was given None for y_ptr, but it computes with it. Pass a tensor or a number.",
        ),
        *(
            (
                lambda watch=watch: trace(scalar_kernel, 1, X, X, watch=watch),
                f"scalar_kernel was given a value of type {kind} for watch, but it takes names of locals. Pass a string or a tuple of strings,"
                " e.g. watch=('acc',).",
            )
            for watch, kind in ((3, "int"), (None, "NoneType"), ([3], "list"))
        ),
    ],
)
def test_a_value_that_triton_does_not_take_is_said_word_for_word(call, text):
    with pytest.raises(ERRORS["trace_value"][0]) as caught:
        call()
    assert str(caught.value) == text


def test_numbers_of_numpy_are_numbers():
    out = torch.zeros(4, device=DEVICE)
    assert trace(add_kernel, np.int64(1), X, X, out, np.int64(3), BLOCK=np.int32(4)).bytes_stored == 12
    trace(tuple_kernel, 1, Params(X, np.float32(2.5)), (np.int8(1), X), out, BLOCK=4)
    assert out.tolist() == [0, 3.5, 7, 10.5]


@triton.jit
def optional_kernel(bias_ptr, out_ptr, other_ptr, USE: tl.constexpr):
    value = 1.0
    if bias_ptr is not None:
        value += tl.load(bias_ptr)
    if USE:
        value += tl.load(other_ptr)
    tl.store(out_ptr, value)


def test_none_is_a_value_for_a_pointer_that_the_kernel_does_not_follow():
    out = torch.zeros(1, device=DEVICE)
    assert trace(optional_kernel, 1, None, out, None, USE=False).tensor_names == ("out",) and out.item() == 1
    trace(optional_kernel, 1, X[3:], out, None, USE=False)
    assert out.item() == 4
    with pytest.raises(TypeError, match="^optional_kernel was given None for bias_ptr or other_ptr, but it computes with it. Pass a tensor"):
        trace(optional_kernel, 1, None, out, None, USE=True)


@triton.jit
def names_kernel(kernel, out_ptr, watch, warmup=0):
    total = tl.load(kernel) + watch + warmup
    tl.store(out_ptr, total)


def test_a_kernel_s_parameters_may_be_called_as_those_of_trace():
    out = torch.zeros(1, device=DEVICE)
    trace(names_kernel, 1, kernel=X[1:], out_ptr=out, watch=10, warmup=100)
    assert out.item() == 111
    assert trace(names_kernel, 1, X, out, 10, watch="total").values[1]["total"] == 10  # given by position: the name is the tracer's


@triton.jit
def narrow_kernel(x_ptr, out_ptr, HOW: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
    if HOW == "dot":
        x = tl.dot(x, x)
    if HOW == "add":
        x = x + x
    if HOW == "negate":
        x = -x
    if HOW == "atomic":
        tl.atomic_add(out_ptr, tl.load(x_ptr))
    if HOW == "cast":
        tl.store(out_ptr, tl.sum(x.to(tl.float32) * 2))


@pytest.mark.parametrize("how", ["dot", "add", "negate"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_arithmetic_in_narrow_dtypes_is_refused(how, dtype):
    line = line_of(narrow_kernel, {"dot": "tl.dot", "add": "x + x", "negate": "-x"}[how])
    with pytest.raises(TypeError) as caught:
        trace(narrow_kernel, 1, torch.ones(16, 16, device=DEVICE).to(dtype), numbers(1), HOW=how)
    assert str(caught.value) == (
        f"narrow_kernel computes in {'bfloat16' if dtype is torch.bfloat16 else 'fp8e5'} (line {line} of narrow_kernel), where Triton's interpreter"
        " gives wrong numbers without saying so. Cast to float32 right after the load, or trace with float16 tensors, which move"
        " the same bytes as bfloat16."
    )


def test_bfloat16_atomics_are_refused():
    with pytest.raises(TypeError, match=r"narrow_kernel computes in bfloat16 \(line"):
        trace(narrow_kernel, 1, torch.ones(16, 16, device=DEVICE).bfloat16(), numbers(1, dtype=torch.bfloat16), HOW="atomic")


def test_bfloat16_that_is_cast_after_the_load_is_traced():
    x, out = torch.randn(16, 16, device=DEVICE).bfloat16(), numbers(1)
    recorded = trace(narrow_kernel, 1, x, out, HOW="cast")
    assert recorded.bytes_loaded == 512 and abs(out.item() - 2 * x.double().sum().item()) < 1e-4


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def add_wide(a, b):
    return (a.to(tl.float32) + b.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def reduce_kernel(x_ptr, out_ptr, HOW: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    if HOW == "sum":
        tl.store(out_ptr, tl.sum(x, 0))
    if HOW == "argmax":
        tl.store(out_ptr, tl.argmax(x, 0))
    if HOW == "cumsum":
        tl.store(out_ptr + tl.arange(0, 8), tl.cumsum(x, 0))
    if HOW == "own":
        tl.store(out_ptr, tl.reduce(x, 0, add))
    if HOW == "fma":
        tl.store(out_ptr + tl.arange(0, 8), tl.fma(x, x, x))
    if HOW == "clamp":
        tl.store(out_ptr + tl.arange(0, 8), tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))
    if HOW == "max":
        tl.store(out_ptr, tl.max(x, 0))
    if HOW == "min":
        tl.store(out_ptr, tl.min(x, 0))
    if HOW == "own, in float32":
        tl.store(out_ptr, tl.reduce(x, 0, add_wide))
    if HOW == "sum in float32":
        tl.store(out_ptr, tl.sum(x, 0, dtype=tl.float32))


def below_zero_and_above():
    return (torch.arange(8.0, device=DEVICE) - 4).bfloat16()


@pytest.mark.parametrize("how", ["sum", "own", "fma"])
def test_reductions_and_the_like_in_bfloat16_are_refused(how):
    with pytest.raises(TypeError, match=r"reduce_kernel computes in bfloat16 \(line \d+ of reduce_kernel\)"):
        trace(reduce_kernel, 1, below_zero_and_above(), numbers(8), HOW=how)


@pytest.mark.parametrize("how, expected", [("max", 3), ("min", -4), ("own, in float32", -4), ("sum in float32", -4)])
def test_reductions_of_bfloat16_that_compute_in_float32_are_right(how, expected):
    trace(reduce_kernel, 1, below_zero_and_above(), out := numbers(1), HOW=how)
    assert out.item() == expected


@pytest.mark.parametrize("how, at, expected", [("argmax", 0, 7), ("cumsum", 7, -4), ("clamp", 0, -1)])
def test_what_triton_may_make_float32_first_is_refused_or_right(how, at, expected):
    out = numbers(8)
    try:
        trace(reduce_kernel, 1, below_zero_and_above(), out, HOW=how)
    except TypeError as fault:
        assert str(fault).startswith("reduce_kernel computes in bfloat16 ")
    else:
        assert out[at] == expected  # Triton 3.6


@triton.jit
def whole_kernel(x_ptr, out_ptr, n):
    lanes = tl.arange(0, 8)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n, other=1))
    tl.store(out_ptr + 8 + lanes, lanes - 3)
    tl.store(out_ptr + 16 + lanes, (lanes - 3).to(tl.float64))
    tl.store(out_ptr + 24 + lanes, lanes < 2)


def test_whole_numbers_become_bfloat16_numbers_and_not_its_bits():
    out = numbers(32, dtype=torch.bfloat16)
    trace(whole_kernel, 1, torch.full((4,), 3.0, device=DEVICE).bfloat16(), out, 4)
    assert out.tolist() == [3] * 4 + [1] * 4 + [*range(-3, 5)] * 2 + [1] * 2 + [0] * 6


@triton.jit
def passed_on_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if WIDE:
        out_ptr = out_ptr.to(tl.pointer_type(tl.bfloat16))
    tl.store(out_ptr + at, x, mask=at < BLOCK - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_watched_values_of_16_and_8_bits_are_numbers_and_not_their_bits(dtype):
    x = torch.tensor([1.5, -0.0, 2.0**-9, float("inf"), float("nan"), 3.0, -4.0, 5.0], device=DEVICE).to(dtype)
    kept = trace(passed_on_kernel, 1, x, torch.zeros_like(x), 8, False, watch=("x", "out")).values[1]
    np.testing.assert_array_equal(kept["x"], x.float().cpu())
    np.testing.assert_array_equal(kept["out"], x.float().cpu()[:7])


def test_a_watched_tensor_of_narrower_elements_than_the_lanes_keeps_their_bits():
    x, out = below_zero_and_above(), torch.zeros(16, dtype=torch.uint8, device=DEVICE)
    store = trace(passed_on_kernel, 1, x, out, 8, True, watch=("out",)).values[1]
    assert store["out"].tolist() == out.tolist()[:14] == x.view(torch.uint8).tolist()[:14]


@gluon.jit
def gluon_kernel(x_ptr):
    pass


def test_a_gluon_kernel_has_no_interpreter():
    with pytest.raises(TypeError, match=r"^kernel is gluon_kernel; trace runs a function under @triton.jit \(a Gluon kernel has no interpreter\)"):
        trace(gluon_kernel, 1, X)


def test_an_error_inside_the_kernel_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        trace(fault_kernel, 1, X)


@triton.jit
def fault_kernel(x_ptr):
    tl.store(x_ptr, 1 // 0)


# -- on a GPU ---------------------------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_cuda_tensors_are_copied_to_the_host_and_back():
    packed = torch.zeros(3, 8, device="cuda")
    packed[0] = torch.arange(8)
    packed[1] = 10
    recorded = trace(add_kernel, 2, packed[0], packed[1], packed[2], 8, BLOCK=4)
    assert packed[2].tolist() == [10 + i for i in range(8)] and packed.is_cuda and recorded.bytes_moved == 96
    add_kernel[(2,)](packed[0], packed[2], packed[1], 8, BLOCK=4)  # compiled, after the trace
    assert packed[1].tolist() == [10 + 2 * i for i in range(8)]
