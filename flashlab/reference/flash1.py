"""FlashAttention-1: the n_q x n_k scores are never stored; o is, again and again.

Source: Dao, Fu, Ermon, Rudra, Ré 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness",
Algorithm 1; block-causal skipping as in its implementation.

Unlike standard.py: k and v tiles in the outer loop, q tiles in the inner one, and a tile of scores lives only in SRAM.
Because q is inside, each query's unfinished o, row_max and row_sum go back to HBM after every k tile.

Traffic, in elements: k and v once; and for each of the ⌈n_k / block_k⌉ passes q read, o read and written, row_max and
row_sum read and written. o, row_max and row_sum are also written once at the start (Algorithm 1, line 2).
Does not handle: batches, heads, bfloat16, dropout.
"""

from __future__ import annotations

import numpy as np

from flashlab.reference.inputs import checked, tile_is_visible, visible
from flashlab.reference.online_softmax import State, finish, update
from flashlab.traffic.memory import Memory, tiles


def flash1(q, k, v, *, block_q, block_k, causal=False, scale=None, memory=None):
    """(o (n_q, head_dim), lse (n_q,)) of one head: q (n_q, head_dim), k and v (n_k, head_dim).

    o in HBM is always divided by the row_sum so far, as in the paper, so it must be multiplied back on each visit. lse
    (natural log) is computed from row_max and row_sum and not stored. Raises MemoryError over the SRAM budget.

    >>> from flashlab.problem import AttentionProblem
    >>> memory = Memory("FlashAttention-1")
    >>> o, lse = flash1(*AttentionProblem(n_q=64, n_k=64, head_dim=16).arrays(), block_q=32, block_k=32, memory=memory)
    >>> o.shape, memory.trace.bytes_by_tensor()["o", "store"]
    ((64, 16), 6144)
    """
    statistic, scale = checked(q, k, v, scale)
    n_q, n_k = len(q), len(k)
    memory = memory or Memory("FlashAttention-1")
    o = memory.hbm("o", np.empty_like(q))
    row_max, row_sum = memory.hbm("row_max", np.empty(n_q, statistic)), memory.hbm("row_sum", np.empty(n_q, statistic))
    q, k, v = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v)

    for rows in tiles(n_q, block_q, "block_q"):
        o.store(rows, np.zeros_like(o.array[rows]))  # write block_q · head_dim
        row_max.store(rows, np.full(rows.stop - rows.start, -np.inf))  # write block_q
        row_sum.store(rows, np.zeros(rows.stop - rows.start))  # write block_q

    for cols in tiles(n_k, block_k, "block_k"):
        k_tile = k.load(cols).astype(statistic)  # read block_k · head_dim
        v_tile = v.load(cols).astype(statistic)  # read block_k · head_dim
        for rows in tiles(n_q, block_q, "block_q"):
            if causal and not tile_is_visible(rows, cols, n_q, n_k):
                continue
            q_tile = q.load(rows).astype(statistic)  # read block_q · head_dim
            o_tile = o.load(rows).astype(statistic)  # read block_q · head_dim
            before = State(row_max.load(rows), row_sum.load(rows), None)  # read 2 · block_q
            before = before._replace(acc=memory.hold("acc", o_tile * before.row_sum[:, None], rows.start))
            scores = memory.hold("scores", scale * (q_tile @ k_tile.T), rows.start, cols.start)  # (block_q, block_k)
            if causal:
                scores = np.where(visible(rows, cols, n_q, n_k), scores, -np.inf)
            state, rescale = update(before, scores, v_tile)
            memory.compute("acc", rows, cols, rescale=rescale, **state._asdict())
            o.store(rows, finish(state)[0])  # write block_q · head_dim
            row_max.store(rows, state.row_max)  # write block_q
            row_sum.store(rows, state.row_sum)  # write block_q
    memory.release()
    return o.array, finish(State(row_max.array, row_sum.array, o.array))[1]
