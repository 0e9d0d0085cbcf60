"""reference/standard.py: exact, and three operators that pass the score matrix four times."""

import numpy as np
import pytest

from flashlab.reference.standard import standard
from flashlab.traffic.memory import Memory


def traced(q, k, v, watch=(), **options):
    memory = Memory("standard", watch=watch)
    return standard(q, k, v, memory=memory, **options), memory.trace


def test_exact_in_float64(oracle, sizes, causal):
    n_q, n_k, head_dim, block_q, _ = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    oracle.assert_exact(standard(q, k, v, block_q=block_q, causal=causal), q, k, v, causal=causal)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_within_twice_the_error_of_plain_torch(oracle, sizes, causal, dtype):
    n_q, n_k, head_dim, block_q, _ = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    got = standard(q, k, v, block_q=block_q, causal=causal)
    oracle.assert_within_budget(got, q, k, v, causal=causal, scores_stored=True)


def test_an_empty_side_gives_zeros_and_minus_infinity(oracle, empty_sizes, causal):
    n_q, n_k, head_dim, block_q, _ = empty_sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    o, lse = standard(q, k, v, block_q=block_q, causal=causal)
    assert o.shape == (n_q, head_dim) and lse.shape == (n_q,)
    assert (o == 0).all() and np.isneginf(lse).all()


def test_a_causal_query_without_a_key_gives_zero_and_minus_infinity(oracle):
    q, k, v = oracle.inputs(17, 3, 4)
    o, lse = standard(q, k, v, block_q=5, causal=True)
    assert (o[:14] == 0).all() and np.isneginf(lse[:14]).all()
    assert np.isfinite(lse[14:]).all() and (o[14] == v[0]).all()


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_any_scale(oracle, causal, scale):
    q, k, v = oracle.inputs(17, 23, 8)
    oracle.assert_exact(standard(q, k, v, causal=causal, scale=scale), q, k, v, causal=causal, scale=scale)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scores_of_ten_thousand_neither_overflow_nor_give_nan(oracle, causal, dtype):
    q = np.array([[-100.0], [100.0], [1.0], [100.0]], dtype)
    k = np.array([[100.0], [-100.0], [0.0], [100.0], [99.0]], dtype)
    v = np.arange(5.0, dtype=dtype)[:, None]
    o, lse = standard(q, k, v, causal=causal, scale=1.0)
    expected_o, expected_lse = oracle.attention(q, k, v, causal=causal, scale=1.0)
    assert np.abs(expected_lse).max() >= 1e4
    np.testing.assert_allclose(o.astype(float), expected_o, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(lse.astype(float), expected_lse, rtol=2 * np.finfo(lse.dtype).eps)


def test_no_score_is_too_low_for_minus_infinity(causal):
    low = -(2.0**900)
    q, k, v = np.array([[-(2.0**450)]] * 2), np.array([[2.0**451], [2.0**450]]), np.array([[5.0], [7.0]])  # scores 2 · low and low
    o, lse = standard(q, k, v, causal=causal, scale=1.0)
    assert o.ravel().tolist() == ([5, 7] if causal else [7, 7]) and lse.tolist() == ([2 * low, low] if causal else [low, low])


def test_lse_is_a_natural_log():
    o, lse = standard(np.zeros((1, 4)), np.ones((8, 4)), np.ones((8, 4)))
    assert lse[0] == pytest.approx(np.log(8), abs=1e-15) and (o == 1).all()


def test_a_masked_nan_key_touches_no_row_that_does_not_see_it(oracle):
    q, k, v = oracle.inputs(17, 17, 8)
    broken = k.copy()
    broken[9] = np.nan
    o, lse = standard(q, broken, v, causal=True)
    clean_o, clean_lse = standard(q, k, v, causal=True)
    assert (o[:9] == clean_o[:9]).all() and (lse[:9] == clean_lse[:9]).all()
    assert np.isnan(o[9:]).all() and np.isnan(lse[9:]).all()


def test_three_operators_in_order(oracle):
    q, k, v = oracle.inputs(5, 7, 3, "float16")
    _, trace = traced(q, k, v, block_q=2)
    steps = [(event.program, event.op, event.tensor, event.row0, event.rows, event.cols) for event in trace if event.op != "release"]
    assert steps == (
        [(0, "load", "k", 0, 7, 3)]
        + [(0, *rest) for r, n in ((0, 2), (2, 2), (4, 1)) for rest in (("load", "q", r, n, 3), ("compute", "scores", r, n, 7), ("store", "scores", r, n, 7))]
        + [(1, *rest) for r, n in ((0, 2), (2, 2), (4, 1)) for rest in (("load", "scores", r, n, 7), ("compute", "weights", r, n, 7), ("store", "weights", r, n, 7))]
        + [(2, "load", "v", 0, 7, 3)]
        + [(2, *rest) for r, n in ((0, 2), (2, 2), (4, 1)) for rest in (("load", "weights", r, n, 7), ("compute", "o", r, n, 7), ("store", "o", r, n, 3))]
    )  # fmt: skip
    assert trace.sram_by_step()[-1] == 0


def test_block_q_changes_the_picture_and_not_the_bytes(oracle, causal):
    q, k, v = oracle.inputs(17, 23, 8)
    (o_fine, lse_fine), fine = traced(q, k, v, block_q=2, causal=causal)
    (o_whole, lse_whole), whole = traced(q, k, v, block_q=1000, causal=causal)
    assert fine.bytes_by_tensor() == whole.bytes_by_tensor() and len(fine) > len(whole)
    np.testing.assert_allclose(o_fine, o_whole, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse_fine, lse_whole, rtol=0, atol=1e-14)


def test_a_masked_score_is_stored_as_minus_infinity_and_its_weight_as_zero(oracle):
    q, k, v = oracle.inputs(5, 4, 3)
    _, trace = traced(q, k, v, watch=("scores", "weights", "row_max", "row_sum", "acc"), causal=True)
    noted = [named for _, named in sorted(trace.values.items())]
    scores = next(named["scores"] for named in noted if "scores" in named)
    weights = next(named["weights"] for named in noted if "weights" in named)
    row_max = next(named["row_max"] for named in noted if "row_max" in named)
    seen = oracle.causal_mask(5, 4).numpy()
    assert (np.isneginf(scores) == ~seen).all() and ((weights == 0) == ~seen).all()
    assert (row_max == scores.max(axis=1)).all()
    np.testing.assert_allclose(weights.sum(axis=1), [0, 1, 1, 1, 1], atol=1e-15)
    np.testing.assert_allclose(noted[-1]["acc"], oracle.attention(q, k, v, causal=True)[0], atol=1e-15)


def test_float16_scores_and_weights_are_kept_in_float16(oracle):
    q, k, v = oracle.inputs(5, 7, 3, "float16")
    _, trace = traced(q, k, v)
    assert {name: shape for name, shape in trace.tensors.items()} == {
        "o": (5, 3, 2), "scores": (5, 7, 2), "weights": (5, 7, 2), "q": (5, 3, 2), "k": (7, 3, 2), "v": (7, 3, 2),
    }  # fmt: skip


def test_the_title_of_a_private_memory_and_the_argument_given_do_not_change_the_answer(oracle):
    q, k, v = oracle.inputs(5, 7, 3)
    (o, lse), trace = traced(q, k, v)
    alone = standard(q, k, v)
    assert (o == alone[0]).all() and (lse == alone[1]).all() and trace.title == "standard"
