"""FlashAttention-2's forward pass in Triton: one program for each tile of queries, a loop over tiles of keys.

Source: Dao 2023, Algorithm 1; reference/flash2.py is the same loop in NumPy.

Unlike reference/flash2.py: batches, heads and grouped queries; masks as functions (masks.py); powers of two instead of
e; a step multiplies the keys of the next tile (attend); tiles that every query sees whole come first, and are not compared
with the mask, then those on both sides of them.

Constants of a compiled kernel: LAYOUT says what the tensors look like (primitives.Layout), MASKS holds the functions of
the masks (joined_masks.py), PREDICATE says that some key of these tiles may be hidden or not be there, so that every score
must be asked. FOLD and LIMITED: forward_kernel says.

Traffic, in elements: q, o and lse once; k and v once for each program, less the tiles it skips. Nothing n_q x n_k is
stored. Does not handle: variable lengths, paged caches, fp8, dropout; with FOLD, scores from 2²⁷ on
(softmax_update), which a mask that changes scores may have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashlab.kernels.autotune import tuned
from flashlab.kernels.joined_masks import hide, key_range, rescore
from flashlab.kernels.launch import Plan, planned
from flashlab.kernels.primitives import FOLDED, INF, LN_2, LOG2_E, load_tile, place, softmax_update, store_tile, tile_edges
from flashlab.kernels.tiles import Tile, forward_tile, heads_at_once, layout, streamed

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)  # a row's maximum before it has seen a key: not -inf, from which -inf may not be taken


@triton.jit
def multiply_keys(q_tile, k, k_strides, batch, kv_head, start, n_k, PREDICATE: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr):
    """scores = q · kᵀ of one tile of keys, not yet scaled: (block_q, block_k)."""
    k_tile = load_tile(k, k_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
    return tl.dot(q_tile, k_tile.T, input_precision="ieee")


@triton.jit
def multiply_values(
    acc, rescale, weights, v, v_strides, batch, kv_head, start, n_k, PREDICATE: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr
):
    """acc · rescale + weights · v of one tile of keys."""
    v_tile = load_tile(v, v_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
    return tl.dot(weights.to(LAYOUT.dot), v_tile, acc * rescale[:, None], input_precision="ieee")


@triton.jit
def mask_scores(
    scores, batch, head, i, start, n_k, scale, mask_params,
    PREDICATE: tl.constexpr, FOLD: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What the masks make of one tile of products: scores, unless FOLD leaves the scale to the exponential, and -inf for a key hidden or not there."""
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
    return scores


@triton.jit
def attend(
    state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, lo, hi, gap_lo, gap_hi, n_k, scale, unit, mask_params,
    PREDICATE: tl.constexpr, FOLD: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The inner loop: take the tiles of keys from lo to hi, less those from gap_lo to gap_hi, into (row_max, row_sum, acc).

    Each step multiplies the keys of the next tile, not of its own. The compiler asks for a step's tiles at the end of the
    step before (tiles.py): so a tile of k has a whole step to arrive, where at the top of its own step all warps would
    wait for it. OVERLAP says in which order a step's two products start.

    i are the queries' places among the keys; unit turns a score into an exponent of two. The gap is what another call
    takes: the tiles that every query sees whole. Steps are counted as if it were not there; jump (below) skips it.
    """
    row_max, row_sum, acc = state
    last = hi - (gap_hi - gap_lo) - BLOCK_K  # the last step
    if lo <= last:
        start = jump(lo, gap_lo, gap_hi, PREDICATE, BLOCK_K)
        scores = multiply_keys(q_tile, k, k_strides, batch, kv_head, start, n_k, PREDICATE, LAYOUT, BLOCK_K)
        for step in tl.range(lo, last, BLOCK_K):
            start = jump(step, gap_lo, gap_hi, PREDICATE, BLOCK_K)
            following = jump(step + BLOCK_K, gap_lo, gap_hi, PREDICATE, BLOCK_K)
            scores = mask_scores(scores, batch, head, i, start, n_k, scale, mask_params, PREDICATE, FOLD, MASKS, LAYOUT, BLOCK_K)
            # No maximum is -inf (LOWEST), so no row is blind.
            row_max, row_sum, weights, rescale = softmax_update(scores, row_max, row_sum, unit, BLIND=False, FUSE=FOLD)
            if OVERLAP:  # q · k starts first, so the product with v may run during the next softmax; its weights stay in registers
                scores = multiply_keys(q_tile, k, k_strides, batch, kv_head, following, n_k, PREDICATE, LAYOUT, BLOCK_K)
                acc = multiply_values(acc, rescale, weights, v, v_strides, batch, kv_head, start, n_k, PREDICATE, LAYOUT, BLOCK_K)
            else:  # fewer registers, so that another program of the multiprocessor can run meanwhile
                acc = multiply_values(acc, rescale, weights, v, v_strides, batch, kv_head, start, n_k, PREDICATE, LAYOUT, BLOCK_K)
                scores = multiply_keys(q_tile, k, k_strides, batch, kv_head, following, n_k, PREDICATE, LAYOUT, BLOCK_K)
        # The last tile: no keys follow that could be multiplied.
        start = jump(last, gap_lo, gap_hi, PREDICATE, BLOCK_K)
        scores = mask_scores(scores, batch, head, i, start, n_k, scale, mask_params, PREDICATE, FOLD, MASKS, LAYOUT, BLOCK_K)
        row_max, row_sum, weights, rescale = softmax_update(scores, row_max, row_sum, unit, BLIND=False, FUSE=FOLD)
        acc = multiply_values(acc, rescale, weights, v, v_strides, batch, kv_head, start, n_k, PREDICATE, LAYOUT, BLOCK_K)
    return row_max, row_sum, acc


@triton.jit
def jump(step, gap_lo, gap_hi, PREDICATE: tl.constexpr, BLOCK_K: tl.constexpr):
    """The first key of a step: from gap_lo on, past the gap. Without a predicate there is no gap."""
    if PREDICATE:
        step = tl.where(step < gap_lo, step, step + (gap_hi - gap_lo))
    step = tl.multiple_of(step, BLOCK_K)  # tells the compiler that BLOCK_K divides it. Assigned first: the interpreter makes a tensor only of what is assigned
    return step


@triton.jit
def forward_kernel(
    q, k, v, o, lse, sink, q_strides, k_strides, v_strides, o_strides, all_heads, at_once, heads, n_q, n_k, scale, mask_params,
    GROUP: tl.constexpr, FOLD: tl.constexpr, LIMITED: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """o (batch, heads, n_q, head_dim) and lse (batch, heads, n_q) of one tile of queries of one head.

    GROUP query heads share a key head. FOLD: scores are only multiplied by a positive scale, so the scale and LOG2_E
    are one factor, unit, applied inside the exponential, and row_max is kept times it; otherwise scores are scaled and
    rescored first. LIMITED: some mask hides keys. OVERLAP: see attend.
    """
    PADDED: tl.constexpr = LAYOUT.padded
    tiles = tl.cdiv(n_q, BLOCK_Q)
    tile, head = place(tl.program_id(0), tiles, all_heads, at_once)  # heads counted through all batches; at_once of them share the L2
    first = (tiles - 1 - tile) * BLOCK_Q  # the last tile first: under causal it is the longest
    batch, head = head // heads, head % heads
    kv_head = head // GROUP
    unit = scale * LOG2_E if FOLD else LOG2_E

    q_tile = load_tile(q, q_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
    row_max = tl.full([BLOCK_Q], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, PADDED], tl.float32)
    state = row_max, row_sum, acc

    first_place = first + n_k - n_q  # queries are counted by their place among the keys: the last one is at n_k - 1
    last_place = tl.minimum(first + BLOCK_Q, n_q) - 1 + n_k - n_q
    i = tl.minimum(first_place + tl.arange(0, BLOCK_Q), n_k - 1)[:, None]  # rows past the end get the last place: a mask may load by it
    lo, hi, full_lo, full_hi = key_range(MASKS, mask_params, batch, head, first_place, last_place, 0, n_k)
    lo, full_lo, full_hi, hi = tile_edges(lo, hi, full_lo, full_hi, n_k, BLOCK_K)
    # Tiles that all queries see whole need no predicate; the others, on both sides of them, do, if there can be any.
    state = attend(state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, full_lo, full_hi, 0, 0, n_k, scale, unit,
                   mask_params, False, FOLD, MASKS, LAYOUT, BLOCK_K, OVERLAP)  # fmt: skip
    if LAYOUT.ragged or LIMITED:
        state = attend(state, q_tile, k, v, k_strides, v_strides, batch, head, kv_head, i, lo, hi, full_lo, full_hi, n_k, scale, unit,
                       mask_params, True, FOLD, MASKS, LAYOUT, BLOCK_K, OVERLAP)  # fmt: skip
    row_max, row_sum, acc = state

    top = row_max * LN_2 if FOLD else row_max  # the score that row_sum and acc are relative to
    if sink is not None:  # one more score in each row's sum, without a value
        sink_score = tl.load(sink + head).to(tl.float32)
        top = tl.where(row_sum == 0, LOWEST, top)  # a row that saw no key: no finite sink is below it
        highest = tl.maximum(top, sink_score)
        rescale = tl.exp2((top - highest) * LOG2_E)
        row_sum, acc, top = row_sum * rescale + tl.exp2((sink_score - highest) * LOG2_E), acc * rescale[:, None], highest
    empty = row_sum == 0  # a row that saw no key, without a sink: 0 and -inf
    row_sum = tl.where(empty, 1.0, row_sum)
    o_tile = acc * (1.0 / row_sum)[:, None]  # the one division of each row
    lse_tile = tl.where(empty, -INF, top + tl.log2(row_sum) * LN_2)
    store_tile(o, o_strides, batch, head, first, n_q, o_tile, BLOCK_Q, LAYOUT)  # write block_q · head_dim
    rows = tl.arange(0, BLOCK_Q)
    lse_row = lse + (batch.to(tl.int64) * heads + head) * n_q + first
    tl.store(lse_row + rows, lse_tile, mask=first + rows < n_q)  # write block_q


def forward(q, k, v, masks, mask_params, scale, sink=None, *, tile: Tile | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch forward_kernel: (o like q, lse (batch, heads, n_q) float32).

    `masks` and `mask_params` come from masks.decode; `sink` (heads,) is contiguous.
    """
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if lse.numel():  # a grid of no programs cannot be launched
        scale = float(scale)  # Triton would compile an int of 1 in as a constant
        fold = FOLDED[0] <= scale <= FOLDED[1] and not any(masks.rescores)
        if tile is None:
            given = (q, k, v, masks, mask_params, scale, sink)
            usual = forward_tile(q, k.shape[2], any(masks.limits))
            tile = tuned(forward_kernel, q, k.shape[2], masks, usual, lambda trial: forward(*given, tile=trial))
        # launch.py remembers what follows from shapes; tuned gives the table's tile unless FLASHLAB_AUTOTUNE is set.
        plan = plan_forward(q, k, v, o, sink, masks, mask_params, fold, tile)
        plan.launch((q, k, v, o, lse, sink), scale, mask_params)
    return o, lse


@planned
def plan_forward(q, k, v, o, sink, masks, mask_params, fold, tile) -> Plan:
    """The launch of forward_kernel for tensors like these."""
    batch, heads, n_q, _ = q.shape
    n_k = k.shape[2]
    shape = layout((q, k, v), (o,), n_q, n_k, tile)
    # described: what makes q, k and v tensor descriptors, which hold their strides; empty where they travel as pointers
    described, strides = streamed((q, k, v), (tile.block_q, tile.block_k, tile.block_k), shape)
    sizes = (batch * heads, heads_at_once(k), heads, n_q, n_k)
    constants = {
        "GROUP": heads // k.shape[1],
        "FOLD": fold,
        "LIMITED": any(masks.limits),
        "MASKS": masks,
        "LAYOUT": shape,
        "BLOCK_Q": tile.block_q,
        "BLOCK_K": tile.block_k,
        "OVERLAP": tile.overlap,
    }
    programs = -(-n_q // tile.block_q) * heads * batch
    return Plan(forward_kernel, programs, (*strides, o.stride(), *sizes), constants, tile.options(), described)
