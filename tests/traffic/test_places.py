"""Addresses become elements, elements a rectangle: for any strides, against torch's own indexing."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch

from flashlab.errors import ERRORS
from flashlab.traffic import places
from flashlab.traffic.places import Argument, Tile, cut, distinct, short_names

VIEWS = {
    "plain": torch.zeros(3, 4, 5, 6),
    "permuted": torch.zeros(6, 3, 5, 4).permute(1, 3, 2, 0),
    "rows with gaps": torch.zeros(3, 4, 5, 9)[..., :6],
    "every other": torch.zeros(6, 8, 10, 12)[::2, 1::2, ::2, 1::2],
    "ones": torch.zeros(1, 4, 1, 6),
    "sliding window": torch.zeros(40).as_strided((5, 3), (2, 1)),
    "strides that do not nest": torch.arange(32.0).as_strided((4, 4), (3, 2)),
    "nor these": torch.zeros(99).as_strided((2, 3, 2, 4), (7, 6, 15, 4)),
    "nor these with a dimension in steps of 0": torch.zeros(32).as_strided((4, 5, 4), (3, 0, 2)),
    "strides that interleave": torch.zeros(32).as_strided((3, 2), (2, 5)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_element_is_found_and_nothing_else(view):
    tensor = VIEWS[view]
    argument = Argument("x", tensor, 0, False)
    index = np.indices(tensor.shape).reshape(tensor.dim(), -1)
    offsets = (index * np.array(tensor.stride())[:, None]).sum(axis=0)
    found, inside = argument.locate(offsets * 4)
    assert inside.all()
    back = sum(found[dimension] * tensor.stride(dimension) for dimension in found)
    np.testing.assert_array_equal(back, offsets)
    if len(set(offsets)) == len(offsets):  # else elements share addresses
        for dimension in found:
            np.testing.assert_array_equal(found[dimension], index[dimension])
    others = np.setdiff1d(np.arange(-50, offsets.max() + 50), offsets)
    assert not argument.locate(others * 4)[1].any()


def test_a_list_of_elements_is_not_without_end(monkeypatch):
    monkeypatch.setattr(places, "MOST_LISTED", 16)
    assert Argument("x", torch.zeros(32).as_strided((4, 4), (3, 2)), 0, False).locate(np.array([16]))[1].all()
    long = Argument("x", torch.zeros(32).as_strided((5, 4), (3, 2)), 0, False)  # untouched it is no fault
    with pytest.raises(ERRORS["trace_strides"][0]) as caught:
        long.locate(np.array([16]))
    assert str(caught.value) == (
        "x, of shape (5, 4) and strides (3, 2), has elements that only a list of them all tells from what lies between, and a list of 20"
        " is too long; at most 16 are listed. Pass x.contiguous(), or a smaller part."
    )
    assert Argument("x", torch.zeros(5, 4), 0, False).locate(np.array([16]))[1].all()  # strides that nest need no list


def test_what_is_empty_has_no_element():
    for strides in ((3, 2, 1), (9, 3, 1)):
        assert not Argument("x", torch.zeros(32).as_strided((0, 4, 4), strides), 0, False).locate(np.arange(-4, 99))[1].any()


def test_a_partly_outside_or_unaligned_access_is_outside():
    argument = Argument("x", torch.zeros(4), 0, False)
    assert argument.inside(np.array([0, 4, 12]), 4).all()
    assert argument.inside(np.array([-4, 16, 13, 8]), 4).tolist() == [False, False, False, True]
    assert argument.inside(np.array([8, 12]), 8).tolist() == [True, False]


@pytest.mark.parametrize(
    "shape, per_row, rows, cols, at",
    [
        ((), False, 1, 1, (0, 0, 0, 0)),
        ((7,), False, 7, 1, (0, 0, 2, 0)),
        ((7, 5), False, 7, 5, (0, 0, 3, 2)),
        ((7, 5), True, 5, 1, (0, 3, 2, 0)),
        ((4, 7, 5), False, 7, 5, (0, 1, 3, 2)),
        ((4, 7, 5), True, 5, 1, (1, 3, 2, 0)),
        ((2, 4, 7, 5), False, 7, 5, (1, 1, 3, 2)),
        ((3, 2, 4, 7, 5), False, 7, 5, (2 * 2 + 1, 1, 3, 2)),
    ],
)
def test_which_dimension_is_what(shape, per_row, rows, cols, at):
    tensor = torch.zeros(shape)
    argument = Argument("x", tensor, 0, per_row)
    index = (2, 1, 1, 3, 2)[5 - len(shape) :]
    offset = sum(i * stride for i, stride in zip(index, tensor.stride())) * 4
    tile = argument.tile(argument.locate(np.array([offset]))[0], np.ones(1, bool))
    assert (argument.rows, argument.cols) == (rows, cols) and (tile.batch, tile.head, tile.row0, tile.col0) == at


@pytest.mark.parametrize("view", VIEWS)
def test_lanes_are_told_apart_by_head(view):
    tensor = VIEWS[view]
    argument = Argument("x", tensor, 0, False)
    index = np.indices(tensor.shape)
    offsets, chosen = sum(i * stride for i, stride in zip(index, tensor.stride())) * 4, index.sum(axis=0) % 2 == 0
    parts = argument.by_head(argument.locate(offsets[chosen])[0], chosen)
    assert (sum(lanes.astype(int) for _, lanes in parts) == chosen).all()  # each chosen lane once
    for indices, lanes in parts:
        tile = argument.tile(indices, lanes)
        leading = tile.batch * (tensor.shape[-3] if tensor.dim() > 2 else 1) + tile.head
        for dimension, found in argument.locate(offsets[lanes])[0].items():
            np.testing.assert_array_equal(indices[dimension], found)
        if view in ("plain", "permuted", "rows with gaps", "every other", "ones"):  # else elements share addresses
            assert len(parts) == prod(tensor.shape[:-2]) and leading == next(n for n, heads in enumerate(parts) if heads[1] is lanes)
            assert (np.ravel_multi_index(index[:-2, lanes], tensor.shape[:-2]) == leading).all()


@pytest.mark.parametrize(
    "lanes, block, whole",
    [
        (lambda r, c: r[:, None] * 8 + c[None, :], (4, 2), False),
        (lambda r, c: r[None, :] * 8 + c[:, None], (4, 2), False),
        (lambda r, c: r * 8, (4, 1), False),
        (lambda r, c: np.arange(8), (1, 8), True),
        (lambda r, c: (r[:, None] * 8 + c[None, :])[None], (4, 2), False),
        (lambda r, c: r[:, None] * 8, (4, 1), False),
        (lambda r, c: r[None, :] * 8, (4, 1), False),
        (lambda r, c: c[None, :], (1, 2), False),
        (lambda r, c: c[:, None], (1, 2), False),
        (lambda r, c: np.arange(16).reshape(1, 16), (2, 8), True),
    ],
    ids=[
        *("tile", "transposed", "a column", "a row", "with a dimension of one", "(4, 1) on a column", "(1, 4) on a column", "(1, 2) on a row"),
        *("(2, 1) on a row", "two rows in one"),
    ],
)
def test_how_a_block_lies_on_its_tensor(lanes, block, whole):
    argument = Argument("x", torch.zeros(6, 8), 0, False)
    offsets = lanes(np.arange(4), np.arange(2)) * 4
    tile = argument.tile(argument.locate(offsets.ravel())[0], np.ones(offsets.shape, bool))
    assert (tile.rows, tile.cols, tile.whole) == (*block, whole)
    assert tile.block == (block if offsets.shape != (1, 16) else (1, 16))  # lanes along the rows, along the columns


@pytest.mark.parametrize("kept", ["all", "a row", "a column", "a triangle", "one"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_does_not_change_which_way_a_block_lies(turned, kept):
    row, col = np.indices((4, 8))
    chosen = {"all": row >= 0, "a row": row == 0, "a column": col == 0, "a triangle": col <= row, "one": (row == 0) & (col == 0)}[kept]
    offsets = (row * 8 + col) * 4
    if turned:
        offsets, chosen = offsets.T, chosen.T
    for cols in (8, 1) if kept == "a column" else (8,):  # a head_dim of 1 is a column too
        argument = Argument("x", torch.zeros(4, 8)[:, :cols], 0, False)
        tile = argument.tile(argument.locate(offsets[chosen])[0], chosen)
        assert tile.block == ((8, 4) if turned and kept == "one" else (4, 8))  # a single lane lies either way


def test_addresses_of_tensors_are_far_apart_and_aligned_alike():
    tensor = torch.zeros(10)
    first, second, view = (Argument("x", x, slot, False) for x, slot in ((tensor, 0), (tensor, 1), (tensor[1:], 2)))
    assert second.seen - first.seen == 2**44 and view.seen % 16 == (first.seen + 4) % 16 and first.seen % 16 == tensor.data_ptr() % 16


@pytest.mark.parametrize("lanes, count", [([0, 4, 8], 3), ([8, 4, 0], 3), ([0, 0, 4], 2), ([[0, 8], [4, 12]], 4), ([[0, 4], [0, 4]], 2)])
def test_distinct_addresses(lanes, count):
    lanes = np.array(lanes)
    assert distinct(lanes, np.ones(lanes.shape, bool)) == count
    assert distinct(lanes, lanes == lanes.flat[0]) == 1 and distinct(lanes, lanes < 0) == 0


def test_names():
    assert short_names(["q_ptr", "K", "x_desc", "x_base", "params.slopes", "Out", "o_pointer", "w_descriptor"]) == {
        "q_ptr": "q", "K": "k", "x_desc": "x_desc", "x_base": "x_base", "params.slopes": "params.slopes", "Out": "Out", "o_pointer": "o",
        "w_descriptor": "w",
    }  # fmt: skip


def test_values_lose_what_lies_past_the_end():
    q = Tile(rows=3, cols=5, block=(4, 8), whole=True)
    k = Tile(rows=2, cols=5, block=(16, 8), whole=True)
    shapes = {shape: cut(np.zeros(shape), (q, k)).shape for shape in [(), (4,), (4, 8), (4, 16), (16,), (16, 8), (7, 7)]}
    assert shapes == {(): (), (4,): (3,), (4, 8): (3, 5), (4, 16): (3, 2), (16,): (2,), (16, 8): (2, 5), (7, 7): (7, 7)}
    part = k._replace(block=(8, 8), whole=False)  # k's rows are as many as a chunk of head_dim has columns
    assert cut(np.zeros((4, 8)), (q._replace(whole=False), part)).shape == (3, 2)
    square = (Tile(rows=rows, cols=1, block=(4, 4), whole=True) for rows in (3, 2))  # blocks of one size: q's rows, head_dim's columns
    assert cut(np.zeros((4, 4)), tuple(square)).shape == (3, 1)


@pytest.mark.parametrize(
    "lanes, shape, filled",
    [
        ([[0, 1], [3, 4]], (2, 3), [[0, 1], [2, 3]]),
        ([[0, 3], [1, 4]], (2, 3), [[0, 2], [1, 3]]),
        ([4, 3, 1], (2, 3), [[None, 2], [1, 0]]),
        ([2, 1, 0], (3,), [2, 1, 0]),
        ([0, 2], (3,), [0, None, 1]),
        ([0, 1], (2, 1), [[0], [1]]),
        ([0, 0, 0], (1,), [2]),
        ([0], (), [0]),
    ],
)
def test_a_stored_tile_has_each_value_where_the_tensor_has_it(lanes, shape, filled):
    argument, chosen = Argument("x", torch.zeros(shape), 0, False), np.ones(np.shape(lanes), bool)
    indices = argument.locate(np.ravel(lanes) * 4)[0]
    tile = argument.tile(indices, chosen)
    for dtype, nothing in ((np.float16, np.nan), (np.int32, 0)):
        values = argument.stored(np.arange(chosen.size, dtype=dtype), indices, tile)
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, np.where(np.equal(filled, None), nothing, np.array(filled, float)))
