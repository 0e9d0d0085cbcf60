"""The judge of the reference algorithms: attention in float64 with torch on the CPU, sharing no line with flashlab.

It materialises the whole score matrix and takes torch's own softmax and logsumexp. `plain` is the same in the inputs'
dtype: the error budget of a float16 or float32 algorithm is twice what `plain` is off by. conftest.py hands this
module to the tests as the fixture `oracle`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

# (n_q, n_k, head_dim, block_q, block_k): ragged, n_q ≠ n_k both ways, tiles larger than the problem, empty sides
SIZES = [
    (1, 1, 1, 1, 1),
    (3, 3, 5, 2, 2),
    (17, 17, 8, 16, 16),
    (3, 17, 4, 64, 64),
    (17, 3, 4, 5, 2),
    (113, 113, 16, 32, 64),
    (239, 113, 32, 64, 32),
    (113, 239, 16, 64, 32),
    (1, 239, 16, 64, 64),
    (239, 1, 8, 16, 16),
    (64, 64, 16, 16, 32),
]
EMPTY_SIZES = [(0, 17, 4, 8, 8), (17, 0, 4, 8, 8), (0, 0, 4, 8, 8)]


def causal_mask(n_q: int, n_k: int) -> torch.Tensor:
    """(n_q, n_k), True where a query may look: the bottom-right entry always, one more key for each later query."""
    return torch.ones(n_q, n_k, dtype=torch.bool).tril(diagonal=n_k - n_q)


def attention(q, k, v, *, causal=False, scale=None):
    """(o, lse) in float64; a query without a key gives 0 and -inf."""
    q, k, v = (torch.from_numpy(np.array(x, np.float64)) for x in (q, k, v))
    seen = causal_mask(len(q), len(k)) if causal else torch.ones(len(q), len(k), dtype=torch.bool)
    scores = (q @ k.T) * (q.shape[1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(~seen, -math.inf)
    has_key = seen.any(dim=1)
    o, lse = torch.zeros(len(q), v.shape[1], dtype=torch.float64), torch.full((len(q),), -math.inf, dtype=torch.float64)
    o[has_key] = torch.softmax(scores[has_key], dim=-1) @ v
    lse[has_key] = torch.logsumexp(scores[has_key], dim=-1)
    return o.numpy(), lse.numpy()


def plain(q, k, v, *, causal=False, scale=None):
    """o as plain PyTorch gives it in the inputs' own dtype, as float64 numbers; a query without a key gives 0."""
    q, k, v = (torch.from_numpy(np.array(x)) for x in (q, k, v))
    seen = causal_mask(len(q), len(k)) if causal else torch.ones(len(q), len(k), dtype=torch.bool)
    scores = (q @ k.T) * (q.shape[1] ** -0.5 if scale is None else scale)
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1)
    weights = torch.where(seen.any(dim=1, keepdim=True), weights, torch.zeros_like(weights))
    return (weights @ v).double().numpy()


def inputs(n_q: int, n_k: int, head_dim: int, dtype: str = "float64", seed: int = 0):
    """Read-only q, k, v of one head, standard normal: an algorithm that writes to its inputs raises."""
    draw = np.random.default_rng([seed, n_q, n_k, head_dim]).standard_normal
    arrays = tuple(draw((n, head_dim)).astype(dtype) for n in (n_q, n_k, n_k))
    for array in arrays:
        array.setflags(write=False)
    return arrays


def assert_exact(got, q, k, v, *, causal=False, scale=None, tolerance=1e-12):
    """`got` = (o, lse) of float64 inputs equals the float64 answer to 1e-12."""
    o, lse = attention(q, k, v, causal=causal, scale=scale)
    assert got[0].shape == o.shape and got[1].shape == lse.shape, (got[0].shape, got[1].shape)
    assert got[0].dtype == got[1].dtype == np.float64
    np.testing.assert_allclose(got[0], o, rtol=tolerance, atol=tolerance, err_msg="o")
    np.testing.assert_allclose(got[1], lse, rtol=tolerance, atol=tolerance, err_msg="lse")


def assert_within_budget(got, q, k, v, *, causal=False, scale=None, scores_stored=False):
    """o is at most twice as far from float64 as plain PyTorch in q's dtype, or one ulp of the largest |o|.

    lse is float32: at most 4 of its ulps off, relative to the largest |lse| (and to 1); where the scores were stored in
    q's dtype on the way, also by half an ulp of the largest of those.
    """
    assert got[0].dtype == q.dtype and got[1].dtype == np.float32
    o, lse = attention(q, k, v, causal=causal, scale=scale)
    error = np.abs(got[0].astype(np.float64) - o).max()
    budget = 2 * np.abs(plain(q, k, v, causal=causal, scale=scale) - o).max()
    floor = np.finfo(q.dtype).eps * np.abs(o).max()
    assert error <= max(budget, floor), f"o is off by {error:.3g}; plain torch by {budget / 2:.3g}, so {max(budget, floor):.3g} is allowed"
    seen = np.isfinite(lse)
    assert (np.isneginf(got[1]) == ~seen).all(), "lse must be -inf exactly where a query sees no key"
    lse_error = np.abs(got[1][seen].astype(np.float64) - lse[seen]).max(initial=0)
    lse_budget = 4 * np.finfo(np.float32).eps * np.abs(lse[seen]).max(initial=1)
    if scores_stored:
        scores = q.astype(np.float64) @ k.T.astype(np.float64) * (q.shape[1] ** -0.5 if scale is None else scale)
        lse_budget += np.finfo(q.dtype).eps / 2 * np.abs(scores).max()
    assert lse_error <= lse_budget, f"lse is off by {lse_error:.3g}; {lse_budget:.3g} is allowed"
