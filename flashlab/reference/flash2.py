"""FlashAttention-2: the same steps with the loops exchanged, so that o is written once.

Source: Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", Algorithm 1.

Unlike flash1.py: q tiles in the outer loop, k and v tiles in the inner one. A query's row_max, row_sum and acc stay in
SRAM until they are final, acc is divided once at the end, and the outer iterations share nothing, so each is one
program that a GPU can run beside the others.

Traffic, in elements: q, o and lse once; k and v once for each of the ⌈n_q / block_q⌉ programs (less where causal tiles
are skipped). Does not handle: batches, heads, bfloat16, dropout.
"""

from __future__ import annotations

import numpy as np

from flashlab.reference.inputs import checked, tile_is_visible, visible
from flashlab.reference.online_softmax import empty_state, finish, update
from flashlab.traffic.memory import Memory, tiles


def flash2(q, k, v, *, block_q, block_k, causal=False, scale=None, memory=None):
    """(o (n_q, head_dim), lse (n_q,)) of one head: q (n_q, head_dim), k and v (n_k, head_dim).

    lse is the natural log of each row's Σ exp(score), stored for the backward pass. A row that sees no key gives 0 and
    -inf. Raises MemoryError over the SRAM budget.

    >>> from flashlab.problem import AttentionProblem
    >>> memory = Memory("FlashAttention-2")
    >>> o, lse = flash2(*AttentionProblem(n_q=64, n_k=64, head_dim=16).arrays(), block_q=32, block_k=32, memory=memory)
    >>> o.shape, memory.trace.bytes_by_tensor()["o", "store"]
    ((64, 16), 2048)
    """
    statistic, scale = checked(q, k, v, scale)
    n_q, n_k, head_dim = len(q), len(k), q.shape[1]
    memory = memory or Memory("FlashAttention-2")
    o, lse = memory.hbm("o", np.empty_like(q)), memory.hbm("lse", np.empty(n_q, statistic))
    q, k, v = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v)

    for rows in tiles(n_q, block_q, "block_q"):  # one program each
        q_tile = q.load(rows).astype(statistic)  # read block_q · head_dim
        state = empty_state(rows.stop - rows.start, head_dim, statistic)
        for name, value in state._asdict().items():
            memory.hold(name, value, rows.start)
        for cols in tiles(n_k, block_k, "block_k"):
            if causal and not tile_is_visible(rows, cols, n_q, n_k):
                break  # no later tile is visible either
            k_tile = k.load(cols).astype(statistic)  # read block_k · head_dim
            scores = memory.hold("scores", scale * (q_tile @ k_tile.T), rows.start, cols.start)  # (block_q, block_k)
            if causal:
                scores = np.where(visible(rows, cols, n_q, n_k), scores, -np.inf)
            v_tile = v.load(cols).astype(statistic)  # read block_k · head_dim
            state, rescale = update(state, scores, v_tile)
            memory.compute("acc", rows, cols, rescale=rescale, **state._asdict())
        o_tile, lse_tile = finish(state)
        o.store(rows, o_tile)  # write block_q · head_dim
        lse.store(rows, lse_tile)  # write block_q
        memory.release()
    return o.array, lse.array
