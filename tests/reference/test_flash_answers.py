"""The answers of both loop orders, flash1.py and flash2.py: the same attention, exact, whatever the tiles.

What sets the two apart (their loops, their traffic, what they hold) is tested beside each, in test_flash1 and test_flash2.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2


@pytest.fixture(scope="session", params=[flash1, flash2], ids=lambda flash: flash.__name__)
def flash(request):
    """One of the two loop orders."""
    return request.param


def test_exact_in_float64(flash, oracle, sizes, causal):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    oracle.assert_exact(flash(q, k, v, block_q=block_q, block_k=block_k, causal=causal), q, k, v, causal=causal)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_within_twice_the_error_of_plain_torch(flash, oracle, sizes, causal, dtype):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    oracle.assert_within_budget(flash(q, k, v, block_q=block_q, block_k=block_k, causal=causal), q, k, v, causal=causal)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 6), st.integers(1, 24), st.integers(1, 24), st.booleans())
def test_exact_for_any_sizes(flash, oracle, n_q, n_k, head_dim, block_q, block_k, causal):
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    oracle.assert_exact(flash(q, k, v, block_q=block_q, block_k=block_k, causal=causal), q, k, v, causal=causal)


def test_an_empty_side_gives_zeros_and_minus_infinity(flash, oracle, empty_sizes, causal):
    n_q, n_k, head_dim, block_q, block_k = empty_sizes
    o, lse = flash(*oracle.inputs(n_q, n_k, head_dim), block_q=block_q, block_k=block_k, causal=causal)
    assert o.shape == (n_q, head_dim) and lse.shape == (n_q,)
    assert (o == 0).all() and np.isneginf(lse).all()


def test_a_causal_query_without_a_key_gives_zero_and_minus_infinity(flash, oracle):
    q, k, v = oracle.inputs(17, 3, 4)
    o, lse = flash(q, k, v, block_q=5, block_k=2, causal=True)  # row 14 is the first with a key, inside a tile
    assert (o[:14] == 0).all() and np.isneginf(lse[:14]).all()
    assert np.isfinite(lse[14:]).all() and (o[14] == v[0]).all()


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_any_scale(flash, oracle, causal, scale):
    q, k, v = oracle.inputs(17, 23, 8)
    oracle.assert_exact(flash(q, k, v, block_q=4, block_k=8, causal=causal, scale=scale), q, k, v, causal=causal, scale=scale)


@pytest.mark.parametrize("block_k", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scores_of_ten_thousand_neither_overflow_nor_give_nan(flash, oracle, causal, dtype, block_k):
    q = np.array([[-100.0], [100.0], [1.0], [100.0]], dtype)
    k = np.array([[100.0], [-100.0], [0.0], [100.0], [99.0]], dtype)
    v = np.arange(5.0, dtype=dtype)[:, None]
    o, lse = flash(q, k, v, block_q=2, block_k=block_k, causal=causal, scale=1.0)
    expected_o, expected_lse = oracle.attention(q, k, v, causal=causal, scale=1.0)
    assert np.abs(expected_lse).max() >= 1e4
    np.testing.assert_allclose(o.astype(float), expected_o, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(lse.astype(float), expected_lse, rtol=2 * np.finfo(lse.dtype).eps)


def test_no_score_is_too_low_for_minus_infinity(flash, causal):
    low = -(2.0**900)
    q, k, v = np.array([[-(2.0**450)]] * 2), np.array([[2.0**451], [2.0**450]]), np.array([[5.0], [7.0]])  # scores 2 · low and low
    o, lse = flash(q, k, v, block_q=2, block_k=1, causal=causal, scale=1.0)
    assert o.ravel().tolist() == ([5, 7] if causal else [7, 7]) and lse.tolist() == ([2 * low, low] if causal else [low, low])


def test_lse_is_a_natural_log(flash):
    o, lse = flash(np.zeros((1, 4)), np.ones((8, 4)), np.ones((8, 4)), block_q=1, block_k=3)
    assert lse[0] == pytest.approx(np.log(8), abs=1e-15) and np.allclose(o, 1, atol=1e-15)


def test_a_masked_nan_touches_no_row_that_should_not_see_it(flash, oracle):
    q, k, v = oracle.inputs(16, 16, 8)
    clean_o, clean_lse = flash(q, k, v, block_q=4, block_k=4, causal=True)
    broken = k.copy()
    broken[9] = np.nan  # a nan key: its score is masked, so only rows 9 to 15 see it
    o, lse = flash(q, broken, v, block_q=4, block_k=4, causal=True)
    assert (o[:9] == clean_o[:9]).all() and (lse[:9] == clean_lse[:9]).all() and np.isnan(o[9:]).all()
    broken = v.copy()
    broken[9] = np.nan  # a nan value: 0 · nan is nan, as in SDPA, but rows 0 to 7 skip its tile
    o, _ = flash(q, k, broken, block_q=4, block_k=4, causal=True)
    assert (o[:8] == clean_o[:8]).all() and np.isnan(o[8:]).all()
    whole, _ = flash(q, k, broken, block_q=16, block_k=16, causal=True)
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    sdpa = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(x)[None, None] for x in (q, k, broken)), attn_mask=mask)
    assert (np.isnan(whole) == torch.isnan(sdpa[0, 0]).numpy()).all()
