"""reference/inputs.py: the checks before every algorithm, and who sees whom."""

import numpy as np
import pytest

from flashlab.reference.inputs import checked, tile_is_visible, visible


def whole(n_q, n_k):
    return visible(slice(0, n_q), slice(0, n_k), n_q, n_k)


@pytest.mark.parametrize("dtype, statistic", [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
def test_statistics_are_float32_or_wider(dtype, statistic):
    q = np.zeros((3, 4), dtype)
    assert checked(q, q, q, None) == (np.dtype(statistic), 0.5)


@pytest.mark.parametrize("scale", [0.0, -2.0, 0.125])
def test_a_given_scale_is_kept_even_zero(scale):
    q = np.zeros((3, 4))
    assert checked(q, q, q, scale)[1] == scale


@pytest.mark.parametrize("bad", ["q", "k", "v"])
@pytest.mark.parametrize(
    "change, kind, text",
    [
        (lambda x: x.astype(np.int64), TypeError, "{0} has dtype int64; the NumPy algorithms take float16, float32 or float64"),
        (lambda x: x[None], ValueError, "{0} has shape (1, 5, 4); the NumPy algorithms work on one head"),
        (lambda x: x[0], ValueError, "{0} has shape (4,); the NumPy algorithms work on one head"),
    ],
)
def test_the_message_names_the_argument_at_fault(bad, change, kind, text):
    arrays = {name: np.zeros((5, 4)) for name in "qkv"}
    arrays[bad] = change(arrays[bad])
    with pytest.raises(kind) as caught:
        checked(**arrays, scale=None)
    assert str(caught.value).startswith(text.format(bad))


@pytest.mark.parametrize("bad", ["k", "v"])
def test_head_dim_must_be_q_s(bad):
    arrays = {name: np.zeros((5, 4)) for name in "qkv"} | {bad: np.zeros((5, 3))}
    with pytest.raises(ValueError, match=f"^{bad} has head_dim 3, but q has 4"):
        checked(**arrays, scale=None)


def test_keys_and_values_come_in_pairs():
    with pytest.raises(ValueError, match="^v has 6 rows, but k has 5"):
        checked(np.zeros((7, 4)), np.zeros((5, 4)), np.zeros((6, 4)), None)


def test_the_mask_is_aligned_to_the_bottom_right():
    assert whole(2, 4).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert whole(4, 2).astype(int).tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert whole(3, 3).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (3, 17), (17, 3), (113, 113), (1, 239), (239, 1)])
def test_visible_is_torch_s_triangle(oracle, n_q, n_k):
    assert (whole(n_q, n_k) == oracle.causal_mask(n_q, n_k).numpy()).all()


@pytest.mark.parametrize("n_q, n_k", [(7, 7), (5, 11), (11, 5)])
@pytest.mark.parametrize("block_q, block_k", [(1, 1), (2, 3), (4, 2), (16, 16)])
def test_a_tile_is_the_cut_of_the_mask_and_visible_if_any_of_it_is(n_q, n_k, block_q, block_k):
    mask = whole(n_q, n_k)
    for row in range(0, n_q, block_q):
        for col in range(0, n_k, block_k):
            rows, cols = slice(row, min(row + block_q, n_q)), slice(col, min(col + block_k, n_k))
            assert (visible(rows, cols, n_q, n_k) == mask[rows, cols]).all()
            assert tile_is_visible(rows, cols, n_q, n_k) == mask[rows, cols].any(), (rows, cols)
