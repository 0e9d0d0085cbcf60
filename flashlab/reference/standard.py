"""Standard attention: three operators, each reading its input from HBM and writing its result back.

Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; written as FlashAttention's Algorithm 0
(Dao et al. 2022, section 2.2): S = q·kᵀ, P = softmax(S), O = P·v, with S and P in HBM.

Traffic, in elements: scores stored and loaded, weights stored and loaded: 4·n_q·n_k; q, k, v, o once each. Causal or
not makes no difference: a masked score is still stored.

Each operator is ideal: it reads each of its inputs once, as a library matmul nearly does. So k and v sit in SRAM whole,
and there is no budget that this could respect: run it with sram_bytes=None. Does not handle: batches, heads, bfloat16.
"""

from __future__ import annotations

import numpy as np

from flashlab.reference.inputs import checked, visible
from flashlab.traffic.memory import Memory, tiles


def standard(q, k, v, *, block_q=64, causal=False, scale=None, memory=None):
    """(o (n_q, head_dim), lse (n_q,)) of one head: q (n_q, head_dim), k and v (n_k, head_dim).

    `block_q` is how many rows an operator works on at a time; it changes the picture, not the bytes. lse, the natural
    log of each row's Σ exp(score), is for comparison and is not stored. A row that sees no key gives 0 and -inf.

    >>> from flashlab.problem import AttentionProblem
    >>> memory = Memory("standard")
    >>> o, lse = standard(*AttentionProblem(n_q=64, n_k=64, head_dim=16).arrays(), memory=memory)
    >>> memory.trace.bytes_moved == 2 * (4 * 64 * 64 + 4 * 64 * 16)
    True
    """
    statistic, scale = checked(q, k, v, scale)
    n_q, n_k = len(q), len(k)
    memory = memory or Memory("standard attention")
    o = memory.hbm("o", np.zeros_like(q))
    scores = memory.hbm("scores", np.empty((n_q, n_k), q.dtype))
    weights = memory.hbm("weights", np.empty((n_q, n_k), q.dtype))
    q, k, v = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v)
    every_key = slice(0, n_k)
    lse = np.empty(n_q, statistic)

    # Operator 1: scores = scale · q·kᵀ
    k_all = k.load(every_key).astype(statistic)  # read n_k · head_dim
    for rows in tiles(n_q, block_q, "block_q"):
        q_tile = q.load(rows).astype(statistic)  # read block_q · head_dim
        scores_tile = scale * (q_tile @ k_all.T)  # (block_q, n_k)
        if causal:
            scores_tile = np.where(visible(rows, every_key, n_q, n_k), scores_tile, -np.inf)
        memory.compute("scores", rows, every_key)
        scores.store(rows, scores_tile)  # write block_q · n_k
    memory.release()

    # Operator 2: weights = softmax(scores), row by row
    for rows in tiles(n_q, block_q, "block_q"):
        scores_tile = scores.load(rows).astype(statistic)  # read block_q · n_k
        row_max = scores_tile.max(axis=1, initial=-np.inf)
        weights_tile = np.exp(scores_tile - np.where(np.isneginf(row_max), 0, row_max)[:, None])
        row_sum = weights_tile.sum(axis=1)
        with np.errstate(divide="ignore"):  # a row without keys: log(0) = -inf is the answer
            lse[rows] = row_max + np.log(row_sum)
        memory.compute("weights", rows, every_key, row_max=row_max, row_sum=row_sum)
        weights.store(rows, weights_tile / np.where(row_sum == 0, 1, row_sum)[:, None])  # write block_q · n_k
    memory.release()

    # Operator 3: o = weights · v
    v_all = v.load(every_key).astype(statistic)  # read n_k · head_dim
    for rows in tiles(n_q, block_q, "block_q"):
        weights_tile = weights.load(rows).astype(statistic)  # read block_q · n_k
        o_tile = weights_tile @ v_all  # (block_q, head_dim)
        memory.compute("o", rows, every_key, acc=o_tile)
        o.store(rows, o_tile)  # write block_q · head_dim
    memory.release()
    return o.array, lse
