"""FlashAttention-2's backward pass: the weights are made again from lse, tile by tile, and never stored.

Source: Dao 2023, "FlashAttention-2", Algorithm 2; Dao et al. 2022, "FlashAttention", appendix B.2 for delta.

With weights = exp(scores - lse), dweights = do · vᵀ and delta = rowsum(do · o) - dlse:

    dscores = weights · (dweights - delta)    dv = weightsᵀ · do    dk = scale · dscoresᵀ · q    dq = scale · dscores · k

`backward` takes three passes, each a kernel of its own on a GPU: `delta_pass`; `keys_pass`, keys outside, in which a
program owns rows of dk and dv; `queries_pass`, queries outside, in which a program owns rows of dq. No two programs write
the same row, so none needs atomics; the price is that scores and dweights are made twice. `fused_backward` is Algorithm 2
as printed: one pass with keys outside, which adds its share of dq to a sum in HBM for each tile.

Unlike flash2.py: no running maximum and nothing to rescale, since lse is known. Does not handle: batches, heads,
bfloat16, dropout.

Traffic, in elements: delta reads o and do once. Keys: k, v once, dk, dv written once; q, do, lse and delta for each of the
⌈n_k / block_k⌉ programs. Queries: q, do, lse and delta once, dq written once; k and v for each of the ⌈n_q / block_q⌉
programs. Fused: the first two, and the sum of dq zeroed, read and written for each tile, and read once more.
"""

from __future__ import annotations

import numpy as np

from flashlab.errors import error
from flashlab.reference.inputs import checked, statistic_dtype, tile_is_visible, visible
from flashlab.traffic.memory import Memory, tiles


def backward(q, k, v, o, do, lse, *, block_q, block_k, causal=False, scale=None, dlse=None, memory=None):
    """(dq, dk, dv) of one head, in the shapes of q, k, v: from flash2's o and lse, and do (n_q, head_dim), the gradient of o.

    `dlse` (n_q,) is the gradient of lse, where lse was used as well. A row that sees no key gives and gets 0. Raises
    MemoryError over the SRAM budget.

    >>> from flashlab.problem import AttentionProblem
    >>> from flashlab.reference.flash2 import flash2
    >>> memory, blocks = Memory("backward"), {"block_q": 32, "block_k": 32}
    >>> q, k, v = AttentionProblem(n_q=64, n_k=64, head_dim=16).arrays()
    >>> o, lse = flash2(q, k, v, **blocks)
    >>> dq, dk, dv = backward(q, k, v, o, o, lse, memory=memory, **blocks)
    >>> dq.shape, memory.trace.bytes_by_tensor()["dq", "store"]
    ((64, 16), 2048)
    """
    _check(q, o=o, do=do, lse=lse)
    memory = memory or Memory("backward, two kernels")
    delta = delta_pass(o, do, dlse, block_q=block_q, memory=memory)
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "scale": scale, "memory": memory}
    dk, dv = keys_pass(q, k, v, do, lse, delta, **options)
    return queries_pass(q, k, v, do, lse, delta, **options), dk, dv


def fused_backward(q, k, v, o, do, lse, *, block_q, block_k, causal=False, scale=None, dlse=None, memory=None):
    """(dq, dk, dv) as `backward` gives them, with 5 products a tile instead of 7: dq is summed in HBM by the keys pass.

    Here one program runs after the other. On a GPU they run at once, so each read, add and write of the sum must be one
    indivisible step, an atomic; the order of the additions, and so dq's last bits, is then left to chance.
    """
    _check(q, o=o, do=do, lse=lse)
    statistic, _ = checked(q, k, v, scale)
    memory = memory or Memory("backward, fused")
    delta = delta_pass(o, do, dlse, block_q=block_q, memory=memory)
    dq, dq_sum = memory.hbm("dq", np.empty_like(q)), memory.hbm("dq_sum", np.empty(q.shape, statistic))
    for rows in tiles(len(q), block_q, "block_q"):
        dq_sum.store(rows, np.zeros_like(dq_sum.array[rows]))  # write block_q · head_dim
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "scale": scale, "memory": memory}
    dk, dv = keys_pass(q, k, v, do, lse, delta, dq_sum=dq_sum, **options)
    for rows in tiles(len(q), block_q, "block_q"):
        dq.store(rows, dq_sum.load(rows))  # read and write block_q · head_dim
    memory.release()
    return dq.array, dk, dv


def delta_pass(o, do, dlse=None, *, block_q, memory=None):
    """delta (n_q,) = rowsum(do · o) - dlse: what each dscore of a row loses, since the row's weights sum to 1."""
    memory = memory or Memory("delta")
    delta = memory.hbm("delta", np.empty(len(o), statistic_dtype("o", o)))
    o, do = memory.hbm("o", o), memory.hbm("do", do)
    dlse = dlse if dlse is None else memory.hbm("dlse", dlse)

    for rows in tiles(len(o.array), block_q, "block_q"):
        o_tile = o.load(rows).astype(delta.array.dtype)  # read block_q · head_dim
        do_tile = do.load(rows).astype(delta.array.dtype)  # read block_q · head_dim
        delta_tile = (do_tile * o_tile).sum(axis=1)
        if dlse is not None:
            delta_tile -= dlse.load(rows)  # read block_q
        delta.store(rows, delta_tile)  # write block_q
        memory.release()
    return delta.array


def keys_pass(q, k, v, do, lse, delta, *, block_q, block_k, causal=False, scale=None, memory=None, dq_sum=None):
    """(dk, dv): keys outside. Each program owns a tile of keys; `dq_sum`, where given, gets its share of dq as well."""
    statistic, scale = checked(q, k, v, scale)
    n_q, n_k = len(q), len(k)
    memory = memory or Memory("keys")
    dk, dv = memory.hbm("dk", np.empty_like(k)), memory.hbm("dv", np.empty_like(v))
    q, k, v, do = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v), memory.hbm("do", do)
    lse, delta = memory.hbm("lse", lse), memory.hbm("delta", delta)

    for cols in tiles(n_k, block_k, "block_k"):  # one program each
        k_tile = k.load(cols).astype(statistic)  # read block_k · head_dim
        v_tile = v.load(cols).astype(statistic)  # read block_k · head_dim
        dk_tile = memory.hold("dk", np.zeros(k_tile.shape, statistic), cols.start)
        dv_tile = memory.hold("dv", np.zeros(v_tile.shape, statistic), cols.start)
        for rows in tiles(n_q, block_q, "block_q"):
            if causal and not tile_is_visible(rows, cols, n_q, n_k):
                continue  # these queries come before all of these keys
            q_tile = q.load(rows).astype(statistic)  # read block_q · head_dim
            scores = memory.hold("scores", scale * (q_tile @ k_tile.T), rows.start, cols.start)  # (block_q, block_k)
            if causal:
                scores = np.where(visible(rows, cols, n_q, n_k), scores, -np.inf)
            weights = weights_again(scores, lse.load(rows))  # read block_q
            do_tile = do.load(rows).astype(statistic)  # read block_q · head_dim
            dv_tile += weights.T @ do_tile
            dweights = memory.hold("dweights", do_tile @ v_tile.T, rows.start, cols.start)  # (block_q, block_k)
            dweights -= delta.load(rows)[:, None]  # read block_q
            dscores = weights * dweights
            dk_tile += dscores.T @ q_tile
            memory.compute("dk", rows, cols)
            if dq_sum is not None:
                dq_tile = dq_sum.load(rows) + scale * (dscores @ k_tile)  # read block_q · head_dim
                dq_sum.store(rows, dq_tile)  # write block_q · head_dim
        dk_tile *= scale
        dk.store(cols, dk_tile)  # write block_k · head_dim
        dv.store(cols, dv_tile)  # write block_k · head_dim
        memory.release()
    return dk.array, dv.array


def queries_pass(q, k, v, do, lse, delta, *, block_q, block_k, causal=False, scale=None, memory=None):
    """dq: queries outside, as in flash2. Each program owns a tile of queries; scores and dweights are made once more."""
    statistic, scale = checked(q, k, v, scale)
    n_q, n_k = len(q), len(k)
    memory = memory or Memory("queries")
    dq = memory.hbm("dq", np.empty_like(q))
    q, k, v, do = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v), memory.hbm("do", do)
    lse, delta = memory.hbm("lse", lse), memory.hbm("delta", delta)

    for rows in tiles(n_q, block_q, "block_q"):  # one program each
        q_tile = q.load(rows).astype(statistic)  # read block_q · head_dim
        do_tile = do.load(rows).astype(statistic)  # read block_q · head_dim
        lse_tile, delta_tile = lse.load(rows), delta.load(rows)  # read 2 · block_q
        dq_tile = memory.hold("dq", np.zeros(q_tile.shape, statistic), rows.start)
        for cols in tiles(n_k, block_k, "block_k"):
            if causal and not tile_is_visible(rows, cols, n_q, n_k):
                break  # no later tile is visible either
            k_tile = k.load(cols).astype(statistic)  # read block_k · head_dim
            scores = memory.hold("scores", scale * (q_tile @ k_tile.T), rows.start, cols.start)  # (block_q, block_k)
            if causal:
                scores = np.where(visible(rows, cols, n_q, n_k), scores, -np.inf)
            weights = weights_again(scores, lse_tile)
            v_tile = v.load(cols).astype(statistic)  # read block_k · head_dim
            dweights = memory.hold("dweights", do_tile @ v_tile.T, rows.start, cols.start)  # (block_q, block_k)
            dweights -= delta_tile[:, None]
            dscores = weights * dweights
            dq_tile += dscores @ k_tile
            memory.compute("dq", rows, cols)
        dq_tile *= scale
        dq.store(rows, dq_tile)  # write block_q · head_dim
        memory.release()
    return dq.array


def weights_again(scores, lse):
    """exp(scores - lse), (rows, cols): the softmax weights, without a sum. A row that saw no key (lse -inf) gives 0."""
    return np.exp(scores - np.where(np.isneginf(lse), np.inf, lse)[:, None])


def _check(q, **others) -> None:
    """o, do and lse need q's rows, and o and do its shape."""
    for name, array in others.items():
        statistic_dtype(name, array)
        if array.ndim != (1 if name == "lse" else 2):
            raise error("one_head", argument=name, given=array.shape)
        if len(array) != len(q):
            raise error("outside", axis="rows", start=0, stop=len(q), tensor=name, n=len(array))
        if array.ndim == 2 and array.shape[1] != q.shape[1]:
            raise error("head_dim_differs", argument=name, given=array.shape[1], needed=q.shape[1])
