"""Standard attention in plain PyTorch: three operators, with the n_q x n_k scores and weights in HBM between them.

Source: Vaswani et al. 2017, equation 1. What every faster kernel is compared with.

Traffic, in elements of each head: scores written and read, weights written and read, 4·n_q·n_k; q, k, v, o once. Causal
adds one read of an n_q x n_k bias that all heads share. Unlike reference/standard.py: batches, heads and grouped
queries, any torch dtype and device, and gradients by PyTorch's autograd. Does not handle: dropout, an lse.
"""

from __future__ import annotations

import math

import torch

from flashlab.errors import error


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """o (batch, heads, n_q, head_dim) from q of that shape and k, v (batch, kv_heads, n_k, head_dim).

    causal is aligned to the bottom right; a query that sees no key gives 0. heads must be a multiple of kv_heads.
    Raises ValueError naming the argument where shapes do not fit.

    >>> q, k, v = (torch.ones(1, 2, n, 8) for n in (3, 5, 5))
    >>> standard(q, k, v).shape
    torch.Size([1, 2, 3, 8])
    """
    batch, heads, n_q, head_dim, kv_heads, n_k = _sizes(q, k, v)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    blind = max(n_q - n_k, 0) if causal else 0  # so many queries see no key; a softmax of nothing would be nan
    if blind:
        seeing = standard(q[:, :, blind:], k, v, causal=True, scale=scale)
        return torch.cat([torch.zeros_like(q[:, :, :blind]), seeing], dim=2)
    # Query heads that share a key head are rows of one matrix product, so k and v are read once for all of them.
    q = q.reshape(batch * kv_heads, heads // kv_heads * n_q, head_dim)
    k, v = k.reshape(batch * kv_heads, n_k, head_dim), v.reshape(batch * kv_heads, n_k, head_dim)

    # Operator 1: scores = scale · q·kᵀ (+ bias). Read q, k; write n_q · n_k.
    if causal:
        bias = _causal_bias(n_q, n_k, q).expand(heads // kv_heads, n_q, n_k).reshape(1, -1, n_k)
        scores = torch.baddbmm(bias.expand(len(q), -1, -1), q, k.mT, alpha=scale)
    else:
        scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=scale)  # beta=0: the first operand is not read
    # Operator 2: weights = softmax(scores). Read and write n_q · n_k.
    weights = torch.softmax(scores, dim=-1)
    # Operator 3: o = weights · v. Read n_q · n_k and v; write o.
    return torch.bmm(weights, v).reshape(batch, heads, n_q, head_dim)


def _causal_bias(n_q: int, n_k: int, like: torch.Tensor) -> torch.Tensor:
    """(n_q, n_k): 0 where query i sees key j, j ≤ i + n_k - n_q, and -inf where it does not."""
    return torch.full((n_q, n_k), -math.inf, dtype=like.dtype, device=like.device).triu(n_k - n_q + 1)


def need_tensors(**given: object) -> None:
    """Raises TypeError for what is no tensor."""
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise error("tensor", argument=name, given=type(x).__name__)


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """(batch, heads, n_q, head_dim, kv_heads, n_k), or the error that says what does not fit."""
    need_tensors(q=q, k=k, v=v)
    shapes = q.shape, k.shape, v.shape  # asked once: each time is a new object
    for name, shape in zip("qkv", shapes):
        if len(shape) != 4:
            raise error("four_dims", argument=name, given=tuple(shape))
        if shape[0] != shapes[0][0]:
            raise error("batch_differs", argument=name, given=shape[0], needed=shapes[0][0])
        if shape[3] != shapes[0][3]:
            raise error("head_dim_differs", argument=name, given=shape[3], needed=shapes[0][3])
    (batch, heads, n_q, head_dim), (_, kv_heads, n_k, _), (_, v_heads, v_n, _) = shapes
    if v_n != n_k:
        raise error("n_k_differs", given=v_n, needed=n_k)
    if heads == 0:
        raise error("size", argument="heads", given=0, least=1)
    if kv_heads == 0 or heads % kv_heads or v_heads != kv_heads:
        allowed = ", ".join(str(h) for h in range(1, heads + 1) if heads % h == 0)
        raise error("kv_heads", given=kv_heads if v_heads == kv_heads else (kv_heads, v_heads), heads=heads, allowed=allowed)
    return batch, heads, n_q, head_dim, kv_heads, n_k
