"""traffic/memory.py: every move is one event with the right place and bytes, and the SRAM budget is a limit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.traffic.memory import Memory, tiles


def steps(memory):
    return [(event.op, event.tensor, event.row0, event.col0, event.rows, event.cols, event.bytes) for event in memory.trace]


# -- HBM ----------------------------------------------------------------------------------------------------------------------
def test_putting_an_array_into_hbm_moves_nothing_and_names_its_shape():
    memory = Memory("demo", sram_bytes=1)
    memory.hbm("q", np.zeros((8, 4), np.float16))
    memory.hbm("lse", np.zeros(8, np.float32))
    assert len(memory.trace) == 0 and memory.trace.title == "demo" and memory.trace.sram_bytes == 1
    assert memory.trace.tensors == {"q": (8, 4, 2), "lse": (8, 1, 4)}


def test_a_load_is_a_copy_and_one_event():
    memory, array = Memory(), np.arange(32, dtype=np.float16).reshape(8, 4)
    tile = memory.hbm("q", array).load(slice(2, 5))
    assert (tile == array[2:5]).all()
    tile[:] = -1
    assert array.min() == 0
    assert steps(memory) == [("load", "q", 2, 0, 3, 4, 24)]
    assert memory.trace[0].bytes_requested == 24


def test_a_load_of_some_columns():
    memory, array = Memory(), np.arange(32.0).reshape(8, 4)
    tile = memory.hbm("scores", array).load(slice(1, 3), slice(1, 4))
    assert (tile == array[1:3, 1:4]).all()
    assert steps(memory) == [("load", "scores", 1, 1, 2, 3, 48)]


def test_open_ended_rows_are_all_of_them():
    memory = Memory()
    q = memory.hbm("q", np.zeros((8, 4)))
    assert q.load(slice(None)).shape == (8, 4) and q.load(slice(3, None)).shape == (5, 4) and q.load(slice(None, 2)).shape == (2, 4)
    assert [step[2] for step in steps(memory)] == [0, 3, 0]


def test_a_store_rounds_to_the_array_s_dtype_and_counts_its_bytes():
    memory, array = Memory(watch=("o",)), np.zeros((8, 4), np.float16)
    o = memory.hbm("o", array)
    o.store(slice(2, 4), np.full((2, 4), 1 / 3))
    assert (array[2:4] == np.float16(1 / 3)).all() and (array[:2] == 0).all() and (array[4:] == 0).all()
    assert steps(memory) == [("store", "o", 2, 0, 2, 4, 16)]  # 2 bytes an element, though the tile was float64
    assert memory.trace.values[0]["o"].tolist() == np.full((2, 4), 1 / 3).tolist()
    assert memory.trace.peak_sram_bytes == 0  # a store takes no room


def test_a_store_to_some_columns_and_to_a_vector():
    memory = Memory()
    weights, lse = memory.hbm("weights", np.zeros((3, 6))), memory.hbm("lse", np.zeros(3, np.float32))
    weights.store(slice(0, 3), np.ones((3, 2)), slice(4, 6))
    lse.store(slice(1, 3), np.ones(2))
    assert weights.array.sum(axis=0).tolist() == [0, 0, 0, 0, 3, 3] and lse.array.tolist() == [0, 1, 1]
    assert steps(memory) == [("store", "weights", 0, 4, 3, 2, 48), ("store", "lse", 1, 0, 2, 1, 8)]


@pytest.mark.parametrize("rows", [slice(0, 9), slice(8, 9), slice(-1, 8), slice(5, 3), slice(9, None)])
@pytest.mark.parametrize("op", ["load", "store"])
def test_rows_outside_the_array_are_refused_and_not_recorded(rows, op):
    memory = Memory()
    q = memory.hbm("q", np.zeros((8, 4)))
    with pytest.raises(IndexError, match="of q were asked for, but it has 8 rows. Cut the last tile"):
        q.load(rows) if op == "load" else q.store(rows, np.zeros((1, 4)))
    assert len(memory.trace) == 0


@pytest.mark.parametrize("shape", [(3, 4), (2, 3), (2,), (4,), (1, 4), (2, 4, 1)])
def test_a_tile_of_another_shape_is_refused_not_broadcast(shape):
    memory, array = Memory(), np.zeros((8, 4))
    with pytest.raises(ValueError, match="Store exactly the rows you name"):
        memory.hbm("o", array).store(slice(0, 2), np.ones(shape))
    assert len(memory.trace) == 0 and (array == 0).all()


@pytest.mark.parametrize("given", [slice(0, 6, 2), slice(None, None, -1), slice(0, 2.5), 3, [0, 1], None])
def test_rows_are_a_slice_without_a_step(given):
    memory = Memory()
    q = memory.hbm("q", np.zeros((6, 4)))
    for axis, ask in (("rows", lambda: q.load(given)), ("columns", lambda: q.load(slice(0, 2), given)), ("rows", lambda: q.store(given, np.zeros((3, 4))))):
        with pytest.raises(TypeError) as caught:
            ask()
        assert str(caught.value) == (
            f"{axis} of q are given as {given!r}; they must be a slice of whole numbers without a step, such as slice(0, 64), since the {axis} of a"
            " tile lie side by side. Pass one."
        )
    assert len(memory.trace) == 0
    assert q.load(slice(0, 2, 1)).shape == q.load(slice(np.int64(0), np.int64(2))).shape == (2, 4)


def test_a_vector_has_no_columns_to_ask_for():
    memory = Memory()
    lse = memory.hbm("lse", np.zeros(6))
    for ask in (lambda: lse.load(slice(0, 2), slice(0, 1)), lambda: lse.store(slice(0, 2), np.zeros(2), slice(3, 9))):
        with pytest.raises(TypeError, match=r"columns of lse were asked for \(slice\(.*\), but it has one number in each row. Leave cols out."):
            ask()
    assert len(memory.trace) == 0


@pytest.mark.parametrize("array, given", [([1, 2], "of type list"), (np.zeros((2, 3, 4)), "of shape (2, 3, 4)"), (np.float64(1), "of type float64"), (np.array(1), "of shape ()")])
def test_hbm_holds_arrays_of_one_head(array, given):
    memory = Memory()
    with pytest.raises(TypeError) as caught:
        memory.hbm("l", array)
    assert str(caught.value) == (
        f"l is {given}; HBM here holds NumPy arrays of shape (rows,) or (rows, cols). Pass one, e.g. np.asarray(l), or one head of several."
    )
    assert memory.trace.tensors == {}


# -- SRAM ---------------------------------------------------------------------------------------------------------------------
def test_hold_returns_the_tile_and_records_its_place():
    memory, acc = Memory(), np.zeros((4, 3), np.float32)
    assert memory.hold("acc", acc, 8) is acc
    memory.hold("scores", np.zeros((4, 2)), 8, 6)
    memory.hold("row_max", np.zeros(4))
    assert steps(memory) == [("hold", "acc", 8, 0, 4, 3, 48), ("hold", "scores", 8, 6, 4, 2, 64), ("hold", "row_max", 0, 0, 4, 1, 32)]


def test_the_same_name_takes_the_place_of_the_tile_before():
    memory = Memory(sram_bytes=64)
    k = memory.hbm("k", np.zeros((8, 4)))
    for rows in tiles(8, 2):
        k.load(rows)  # 64 bytes each: the budget holds one
    assert memory.trace.sram_by_step().tolist() == [64, 64, 64, 64]


def test_the_budget_is_a_limit_that_can_be_reached_and_not_passed():
    memory = Memory(sram_bytes=100)
    memory.hold("a", np.zeros(60, np.int8))
    memory.hold("b", np.zeros(40, np.int8))
    with pytest.raises(MemoryError) as caught:
        memory.hold("c", np.zeros((1, 1), np.int8))
    assert "holding c (1, 1) (1 bytes) needs 101 bytes of SRAM, but the budget is 100. Held now: a (60,) 60 bytes, b (40,) 40 bytes." in str(caught.value)
    assert len(memory.trace) == 2 and memory.trace.peak_sram_bytes == 100
    memory.release("a")
    memory.hold("c", np.zeros(60, np.int8))
    assert memory.trace.sram_by_step().tolist() == [60, 100, 40, 100]


def test_a_first_tile_too_large_says_that_nothing_is_held():
    memory = Memory(sram_bytes=31)
    with pytest.raises(MemoryError, match="holding q .* needs 32 bytes .* budget is 31. Held now: nothing."):
        memory.hbm("q", np.zeros((8, 4))).load(slice(0, 1))


def test_a_budget_of_zero_is_a_budget():
    with pytest.raises(MemoryError, match="the budget is 0"):
        Memory(sram_bytes=0).hold("a", np.zeros(1))


def test_no_budget_is_no_limit():
    memory = Memory()
    memory.hold("a", np.zeros(10**6))
    assert memory.trace.peak_sram_bytes == 8 * 10**6 and memory.trace.sram_bytes is None


def test_release_of_some_frees_them_and_of_all_begins_the_next_program():
    memory = Memory()
    for name in "abc":
        memory.hold(name, np.zeros(1))
    memory.release("b")
    assert memory.program == 0
    memory.release()
    memory.hold("a", np.zeros(1))
    assert [(event.program, event.op, event.tensor, event.bytes) for event in memory.trace] == [
        (0, "hold", "a", 8), (0, "hold", "b", 8), (0, "hold", "c", 8),
        (0, "release", "b", 8), (0, "release", "a", 8), (0, "release", "c", 8), (1, "hold", "a", 8),
    ]  # fmt: skip
    assert memory.trace.sram_by_step().tolist() == [8, 16, 24, 16, 8, 0, 8]


def test_what_is_not_held_cannot_be_released():
    memory = Memory()
    with pytest.raises(LookupError, match="SRAM holds no 'nope', so it cannot be released. Held now: nothing. Pass names of these."):
        memory.release("nope")
    memory.hold("a", np.zeros(1))
    memory.hold("b", np.zeros(1))
    with pytest.raises(LookupError, match="Held now: a, b"):
        memory.release("nope")
    assert len(memory.trace) == 2


# -- compute and watch --------------------------------------------------------------------------------------------------------
def test_compute_names_a_tile_of_scores_and_moves_nothing():
    memory = Memory()
    memory.compute("acc", slice(4, 7), slice(6, 8), row_max=np.ones(3))
    assert steps(memory) == [("compute", "acc", 4, 6, 3, 2, 0)]
    assert memory.trace.bytes_moved == memory.trace.peak_sram_bytes == 0 and memory.trace.values == {}


def test_only_what_is_watched_is_kept_and_as_it_stood_then():
    memory, row_max = Memory(watch=("row_max",)), np.array([1.0])
    memory.compute("acc", slice(0, 1), slice(0, 1), row_max=row_max, row_sum=np.array([2.0]))
    row_max[:] = 5
    memory.compute("acc", slice(0, 1), slice(1, 2), row_sum=np.array([2.0]))
    memory.compute("acc", slice(0, 1), slice(2, 3), row_max=row_max)
    assert {step: {name: value.tolist() for name, value in named.items()} for step, named in memory.trace.values.items()} == {
        0: {"row_max": [1.0]}, 2: {"row_max": [5.0]},
    }  # fmt: skip


def test_one_name_to_watch_may_be_a_plain_string():
    memory = Memory(watch="acc")
    memory.compute("acc", slice(0, 1), slice(0, 1), acc=np.ones(1), a=np.ones(1))
    assert list(memory.trace.values[0]) == ["acc"]


# -- tiles --------------------------------------------------------------------------------------------------------------------
def test_tiles_by_hand():
    assert tiles(5, 2) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert tiles(4, 2) == [slice(0, 2), slice(2, 4)] and tiles(3, 8) == [slice(0, 3)] and tiles(0, 8) == []


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 300), st.integers(1, 400))
def test_tiles_cover_every_row_once_in_order(n, block):
    cut = tiles(n, block)
    assert [row for rows in cut for row in range(rows.start, rows.stop)] == list(range(n))
    assert all(rows.stop - rows.start == block for rows in cut[:-1]) and len(cut) == -(-n // block)


@pytest.mark.parametrize("block", [0, -1, 2.0, None, True, "8"])
def test_a_block_is_a_whole_number_of_at_least_one(block):
    with pytest.raises(ValueError, match="a tile needs at least 1 row"):
        tiles(5, block)


def test_a_block_may_be_numpy_s_integer():
    assert [(int(rows.start), int(rows.stop)) for rows in tiles(5, np.int64(3))] == [(0, 3), (3, 5)]


@pytest.mark.parametrize("cols", [slice(2, 99), slice(-3, 2), slice(3, 2)])
def test_columns_outside_the_array_are_refused_too(cols):
    array = Memory().hbm("k", np.zeros((8, 4)))
    with pytest.raises(IndexError, match=rf"columns {cols.start} to {cols.stop} of k were asked for, but it has 4 columns"):
        array.load(slice(0, 2), cols)
