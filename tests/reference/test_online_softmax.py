"""reference/online_softmax.py: exact in one, two and three passes; merge is associative, commutative, and has a neutral."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.problem import AttentionProblem
from flashlab.reference.online_softmax import (
    State,
    empty_state,
    finish,
    merge,
    rescale_factor,
    softmax_dot_one_pass,
    softmax_three_passes,
    softmax_two_passes,
    update,
)
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import softmax_traffic

PASSES = {3: softmax_three_passes, 2: softmax_two_passes}
few = settings(max_examples=40, deadline=None, derandomize=True)

score = st.one_of(st.sampled_from([-np.inf, -1e4, 1e4, 0.0]), st.floats(-50, 50))


@st.composite
def scored_tiles(draw, tiles):
    """`tiles` pairs (scores (rows, cols), values (cols, 2)) over the same rows; a row may be all -inf."""
    rows = draw(st.integers(1, 3))
    drawn = []
    for _ in range(tiles):
        cols = draw(st.integers(1, 4))
        scores = draw(st.lists(st.lists(score, min_size=cols, max_size=cols), min_size=rows, max_size=rows))
        values = draw(st.lists(st.lists(st.floats(-8, 8), min_size=2, max_size=2), min_size=cols, max_size=cols))
        drawn.append((np.array(scores), np.array(values)))
    return drawn


def softmax(scores):
    """float64 softmax of each row by torch; a row of only -inf gives zeros."""
    weights = torch.softmax(torch.from_numpy(np.array(scores, np.float64)), dim=-1)
    return torch.where(torch.isneginf(torch.from_numpy(np.array(scores, np.float64))).all(dim=-1, keepdim=True), 0.0, weights).numpy()


def state_of(scores, values):
    return update(empty_state(*(len(scores), values.shape[1])), scores, values)[0]


def assert_same(left, right, rtol=1e-12):
    assert (left.row_max == right.row_max).all()
    np.testing.assert_allclose(left.row_sum, right.row_sum, rtol=rtol)
    np.testing.assert_allclose(left.acc, right.acc, rtol=rtol, atol=1e-12)


# -- the state ------------------------------------------------------------------------------------------------------------
def test_the_empty_state():
    state = empty_state(3, 2, np.float32)
    assert np.isneginf(state.row_max).all() and (state.row_sum == 0).all() and (state.acc == 0).all()
    assert [x.shape for x in state] == [(3,), (3,), (3, 2)] and {x.dtype for x in state} == {np.dtype("float32")}


def test_rescale_is_e_to_the_old_minus_the_new_and_zero_before_the_first_key():
    old, new = np.array([1.0, 5.0, -np.inf, -np.inf]), np.array([3.0, 5.0, 2.0, -np.inf])
    np.testing.assert_allclose(rescale_factor(old, new), [np.exp(-2), 1, 0, 0], rtol=1e-15)


def test_update_by_hand():
    first, rescale = update(empty_state(1, 1), np.array([[0.0, np.log(3)]]), np.array([[1.0], [5.0]]))
    assert rescale.tolist() == [0.0] and first.row_max.tolist() == [np.log(3)]
    assert first.row_sum[0] == pytest.approx(4 / 3) and first.acc[0, 0] == pytest.approx(1 / 3 + 5)
    second, rescale = update(first, np.array([[np.log(12)]]), np.array([[2.0]]))
    assert rescale[0] == pytest.approx(1 / 4) and second.row_max.tolist() == [np.log(12)]
    o, lse = finish(second)
    assert o[0, 0] == pytest.approx((1 * 1 + 3 * 5 + 12 * 2) / 16) and lse[0] == pytest.approx(np.log(16))


def test_update_leaves_its_arguments_alone():
    state = empty_state(2, 3)
    scores, values = np.ones((2, 4)), np.ones((4, 3))
    for array in (*state, scores, values):
        array.setflags(write=False)
    update(state, scores, values)
    assert np.isneginf(state.row_max).all() and (state.row_sum == 0).all() and (state.acc == 0).all()


def test_a_tile_of_no_keys_changes_nothing():
    state = state_of(np.array([[1.0, 2.0], [-np.inf, -np.inf]]), np.ones((2, 3)))
    after, rescale = update(state, np.empty((2, 0)), np.empty((0, 3)))
    assert all((a == b).all() for a, b in zip(after, state)) and rescale.tolist() == [1, 0]


def test_finish_of_a_row_without_a_key_is_zero_and_minus_infinity():
    o, lse = finish(empty_state(2, 3))
    assert (o == 0).all() and np.isneginf(lse).all()


# -- merge ------------------------------------------------------------------------------------------------------------------
@few
@given(scored_tiles(3))
def test_merge_is_associative(drawn):
    a, b, c = (state_of(*tile) for tile in drawn)
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))


@few
@given(scored_tiles(2))
def test_merge_is_commutative(drawn):
    a, b = (state_of(*tile) for tile in drawn)
    assert all((x == y).all() for x, y in zip(merge(a, b), merge(b, a)))


@few
@given(scored_tiles(1))
def test_the_empty_state_is_neutral(drawn):
    state = state_of(*drawn[0])
    nothing = empty_state(len(state.row_max), 2)
    for merged in (merge(state, nothing), merge(nothing, state)):
        assert all((x == y).all() for x, y in zip(merged, state))


@few
@given(scored_tiles(2))
def test_an_update_is_a_merge_with_the_state_of_the_tile_alone(drawn):
    state = state_of(*drawn[0])
    assert_same(update(state, *drawn[1])[0], merge(state, state_of(*drawn[1])))


@few
@given(scored_tiles(4))
def test_any_tree_of_merges_is_the_softmax_of_the_whole_row(drawn):
    a, b, c, d = (state_of(*tile) for tile in drawn)
    scores = np.concatenate([s for s, _ in drawn], axis=1)
    values = np.concatenate([v for _, v in drawn])
    expected = softmax(scores) @ values
    lse = torch.logsumexp(torch.from_numpy(scores), dim=-1).numpy()
    for state in (merge(merge(a, b), merge(c, d)), merge(d, merge(merge(c, a), b))):
        o, got = finish(state)
        np.testing.assert_allclose(o, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got, lse, rtol=1e-12, atol=1e-12)


# -- one, two and three passes ------------------------------------------------------------------------------------------------
GRID = [(1, 1, 1), (3, 17, 4), (17, 113, 16), (5, 239, 64), (7, 3, 100), (2, 32, 16)]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("n_q, n_k, block_k", GRID)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 3e-7), ("float16", 1e-3)])
def test_weights_are_exact(passes, n_q, n_k, block_k, dtype, tolerance):
    scores = (4 * np.random.default_rng(n_k).standard_normal((n_q, n_k))).astype(dtype)
    scores.setflags(write=False)
    weights = PASSES[passes](scores, block_k=block_k)
    assert weights.dtype == scores.dtype
    np.testing.assert_allclose(weights, softmax(scores), rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_q, n_k, block_k", GRID)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-6), ("float16", 2e-3)])
def test_one_pass_is_exact(n_q, n_k, block_k, dtype, tolerance):
    rng = np.random.default_rng(n_k)
    scores, v = (4 * rng.standard_normal((n_q, n_k))).astype(dtype), rng.standard_normal((n_k, 5)).astype(dtype)
    scores.setflags(write=False)
    v.setflags(write=False)
    o = softmax_dot_one_pass(scores, v, block_k=block_k)
    assert o.dtype == v.dtype
    np.testing.assert_allclose(o, softmax(scores) @ v.astype(float), rtol=0, atol=tolerance)


@pytest.mark.parametrize("scores_dtype, v_dtype", [("float64", "float32"), ("float32", "float64")])
def test_one_pass_computes_in_the_wider_of_two_dtypes(scores_dtype, v_dtype):
    rng = np.random.default_rng(0)
    scores, v = rng.standard_normal((3, 17)).astype(scores_dtype), rng.standard_normal((17, 5)).astype(v_dtype)
    memory = Memory(watch=("row_sum", "acc"))
    o = softmax_dot_one_pass(scores, v, block_k=4, memory=memory)
    last = memory.trace.values[max(memory.trace.values)]
    assert o.dtype == v.dtype and last["acc"].dtype == last["row_sum"].dtype == np.float64
    np.testing.assert_allclose(last["acc"] / last["row_sum"][:, None], softmax(scores) @ v.astype(float), rtol=0, atol=1e-14)


@pytest.mark.parametrize("block_k", [1, 2, 5])
def test_rows_of_minus_infinity_and_scores_of_ten_thousand(block_k):
    scores = np.array([[-np.inf] * 4, [-1e4, 1e4, 1e4, -np.inf], [-np.inf, -1e4, -1e4, -1e4], [1e4, -np.inf, -np.inf, 1e4 - 1]])
    expected = softmax(scores)
    for run in PASSES.values():
        np.testing.assert_allclose(run(scores, block_k=block_k), expected, rtol=1e-12)
    np.testing.assert_allclose(softmax_dot_one_pass(scores, np.eye(4), block_k=block_k), expected, rtol=1e-12)


@pytest.mark.parametrize("n_q, n_k", [(0, 5), (5, 0), (0, 0)])
def test_an_empty_side(n_q, n_k):
    for run in PASSES.values():
        assert run(np.zeros((n_q, n_k)), block_k=2).shape == (n_q, n_k)
    o = softmax_dot_one_pass(np.zeros((n_q, n_k)), np.ones((n_k, 3)), block_k=2)
    assert o.shape == (n_q, 3) and (o == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("n_q, n_k, block_k", GRID)
def test_bytes_are_the_closed_form_and_each_pass_reads_each_tile_once(n_q, n_k, block_k, dtype):
    problem = AttentionProblem(n_q, n_k, 8, dtype=dtype)
    scores, v = np.zeros((n_q, n_k), dtype), np.zeros((n_k, 8), dtype)
    starts = list(range(0, n_k, block_k))
    for passes in (3, 2, 1):
        memory = Memory()
        if passes == 1:
            softmax_dot_one_pass(scores, v, block_k=block_k, memory=memory)
        else:
            PASSES[passes](scores, block_k=block_k, memory=memory)
        trace = memory.trace
        assert trace.bytes_by_tensor() == softmax_traffic(problem, passes=passes).by_tensor
        assert trace.select("load", tensor="scores")["col0"].tolist() == passes * starts
        assert trace.select("store", tensor="weights")["col0"].tolist() == (starts if passes > 1 else [])
        assert trace.select("load", tensor="v")["row0"].tolist() == (starts if passes == 1 else [])
        assert len(trace.select("store", tensor="o")) == (passes == 1)
        assert trace.sram_by_step()[-1] == 0


@pytest.mark.parametrize("passes", PASSES)
def test_integer_scores_are_refused_or_computed_in_floats(passes):
    try:
        weights = PASSES[passes](np.array([[1, 2, 3]]), block_k=2)
    except TypeError as fault:
        assert "int64" in str(fault)
    else:
        np.testing.assert_allclose(weights, softmax([[1, 2, 3]]), rtol=1e-6)


@pytest.mark.parametrize("run", [softmax_two_passes, softmax_dot_one_pass])
def test_the_statistics_are_noted_as_they_grow(run):
    scores = np.array([[1.0, 4.0, 2.0, 6.0, 3.0]])
    memory = Memory(watch=("row_max", "row_sum", "rescale"))
    run(scores, block_k=2, memory=memory) if run is softmax_two_passes else run(scores, np.ones((5, 1)), block_k=2, memory=memory)
    noted = [named for _, named in sorted(memory.trace.values.items())]
    assert [named["row_max"].tolist() for named in noted] == [[4.0], [6.0], [6.0]]
    np.testing.assert_allclose([named["rescale"][0] for named in noted], [0, np.exp(-2), 1], rtol=1e-15)
    sums = [np.exp(scores[0, :stop] - scores[0, :stop].max()).sum() for stop in (2, 4, 5)]
    np.testing.assert_allclose([named["row_sum"][0] for named in noted], sums, rtol=1e-15)
    computed = memory.trace.select("compute")
    assert computed["col0"].tolist() == [0, 2, 4] and computed["cols"].tolist() == [2, 2, 1]


def test_state_names_what_is_kept():
    assert State._fields == ("row_max", "row_sum", "acc")
