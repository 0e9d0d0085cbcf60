"""FlashAttention-2's forward pass in Triton: one program for each tile of queries, a loop over tiles of keys.

Source: Dao 2023, Algorithm 1; reference/flash2.py is the same loop in NumPy, line for line.

Unlike reference/flash2.py: batches, heads and grouped queries; masks as functions (masks.py); powers of two instead of
e; tiles that no query sees are skipped, and tiles that every query sees whole are not compared with the mask.

Traffic, in elements: q, o and lse once; k and v once for each program, less the tiles it skips. Nothing n_q x n_k is
stored. Does not handle: variable lengths, paged caches, fp8, dropout.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashlab.kernels.joined_masks import hide, key_range, rescore
from flashlab.kernels.launch import launch
from flashlab.kernels.primitives import INF, LN_2, LOG2_E, load_tile, place, softmax_update, store_tile, tile_edges
from flashlab.kernels.tiles import NO_STRIDES, Tile, describe, forward_tile, heads_at_once, layout


@triton.jit
def attend(
    state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, lo, hi, gap_lo, gap_hi, n_k, scale, unit, mask_params,
    PREDICATE: tl.constexpr, FOLD: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The inner loop: take the tiles of keys from lo to hi, less those from gap_lo to gap_hi, into (row_max, row_sum, acc)."""
    row_max, row_sum, acc = state
    for start in tl.range(lo, hi - (gap_hi - gap_lo), BLOCK_K):
        if PREDICATE:
            start = tl.where(start < gap_lo, start, start + (gap_hi - gap_lo))
        start = tl.multiple_of(start, BLOCK_K)
        k_tile = load_tile(k, k_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
        scores = tl.dot(q_tile, k_tile.T, input_precision="ieee")  # (block_q, block_k)
        j = start + tl.arange(0, BLOCK_K)[None, :]
        inside = j < n_k
        if LAYOUT.ragged:
            j = tl.minimum(j, n_k - 1)  # a mask may index a tensor with it
        if not FOLD:
            scores = rescore(MASKS, mask_params, scores * scale, batch, head, i, j)
        if PREDICATE:
            scores = hide(MASKS, mask_params, scores, batch, head, i, j)
            if LAYOUT.ragged:
                scores = tl.where(inside, scores, -INF)
        row_max, row_sum, weights, rescale = softmax_update(scores, row_max, row_sum, unit)
        acc = acc * rescale[:, None]
        v_tile = load_tile(v, v_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
        acc = tl.dot(weights.to(LAYOUT.dot), v_tile, acc, input_precision="ieee")
    return row_max, row_sum, acc


@triton.jit
def forward_kernel(
    q, k, v, o, lse, sink, q_strides, k_strides, v_strides, o_strides, all_heads, at_once, heads, n_q, n_k, scale, mask_params,
    GROUP: tl.constexpr, FOLD: tl.constexpr, LIMITED: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o (batch, heads, n_q, head_dim) and lse (batch, heads, n_q) of one tile of queries of one head.

    GROUP query heads share a key head. FOLD: scores are only multiplied by a positive scale, so the scale and LOG2_E
    are one factor, applied inside the exponential; otherwise scores are scaled and rescored first. LIMITED: some mask
    hides keys.
    """
    PADDED: tl.constexpr = LAYOUT.padded
    tiles = tl.cdiv(n_q, BLOCK_Q)
    tile, head = place(tl.program_id(0), tiles, all_heads, at_once)
    first = (tiles - 1 - tile) * BLOCK_Q  # the last tile first: under causal it is the longest
    batch, head = head // heads, head % heads
    kv_head = head // GROUP
    unit = scale * LOG2_E if FOLD else LOG2_E

    q_tile = load_tile(q, q_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
    row_max = tl.full([BLOCK_Q], -INF, tl.float32)
    row_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, PADDED], tl.float32)
    state = row_max, row_sum, acc

    begin = first + n_k - n_q  # queries are counted by their place among the keys: the last one is at n_k - 1
    last = tl.minimum(first + BLOCK_Q, n_q) - 1 + n_k - n_q
    i = tl.minimum(begin + tl.arange(0, BLOCK_Q), n_k - 1)[:, None]
    lo, hi, full_lo, full_hi = key_range(MASKS, mask_params, batch, head, begin, last, 0, n_k)
    lo, full_lo, full_hi, hi = tile_edges(lo, hi, full_lo, full_hi, n_k, BLOCK_K)
    # Tiles that all queries see whole need no predicate; the others, on both sides of them, do, if there can be any.
    state = attend(state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, full_lo, full_hi, 0, 0, n_k, scale, unit,
                   mask_params, False, FOLD, MASKS, LAYOUT, BLOCK_K)  # fmt: skip
    if LAYOUT.ragged or LIMITED:
        state = attend(state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, lo, hi, full_lo, full_hi, n_k, scale, unit,
                       mask_params, True, FOLD, MASKS, LAYOUT, BLOCK_K)  # fmt: skip
    row_max, row_sum, acc = state

    base = row_max * unit
    if sink is not None:  # one more score in each row's sum, without a value
        sink_score = tl.load(sink + head).to(tl.float32) * LOG2_E
        top = tl.maximum(base, sink_score)
        top = tl.where(top == -INF, 0.0, top)
        rescale = tl.exp2(base - top)
        row_sum, acc, base = row_sum * rescale + tl.exp2(sink_score - top), acc * rescale[:, None], top
    empty = row_sum == 0  # a row that saw no key: 0 and -inf
    row_sum = tl.where(empty, 1.0, row_sum)
    o_tile = acc * (1.0 / row_sum)[:, None]  # the one division of each row
    lse_tile = tl.where(empty, -INF, (base + tl.log2(row_sum)) * LN_2)
    store_tile(o, o_strides, batch, head, first, n_q, o_tile, BLOCK_Q, LAYOUT)  # write block_q · head_dim
    rows = tl.arange(0, BLOCK_Q)
    lse_row = lse + (batch.to(tl.int64) * heads + head) * n_q + first
    tl.store(lse_row + rows, lse_tile, mask=first + rows < n_q)  # write block_q


def forward(q, k, v, masks, mask_params, scale, sink=None, *, tile: Tile | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch forward_kernel: (o like q, lse (batch, heads, n_q) float32). `masks` and `mask_params` come from masks.decode."""
    batch, heads, n_q, _ = q.shape
    n_k = k.shape[2]
    o = torch.empty_like(q)
    lse = torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device)
    if lse.numel() == 0:
        return o, lse
    tile = tile or forward_tile(q)
    shape = layout((q, k, v), (o,), n_q, n_k, tile)
    tensors, strides = (q, k, v), (q.stride(), k.stride(), v.stride())
    if shape.descriptors:
        tensors, strides = (describe(q, tile.block_q), describe(k, tile.block_k), describe(v, tile.block_k)), 3 * (NO_STRIDES,)
    sizes = (batch * heads, heads_at_once(k), heads, n_q, n_k)
    arguments = (*tensors, o, lse, sink, *strides, o.stride(), *sizes, scale, mask_params)
    constants = {
        "GROUP": heads // k.shape[1],
        "FOLD": scale > 0 and not any(masks.rescores),
        "LIMITED": any(masks.limits),
        "MASKS": masks,
        "LAYOUT": shape,
        "BLOCK_Q": tile.block_q,
        "BLOCK_K": tile.block_k,
    }
    launch(forward_kernel, -(-n_q // tile.block_q) * heads * batch, arguments, constants, tile.options())
    return o, lse
