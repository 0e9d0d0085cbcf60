"""What the attention kernels share: the online-softmax update, tiles in and out, tile edges, and constants.

Source: Milakov and Gimelshein 2018 for the update; FlashAttention-2 (Dao 2023, section 3.1) for dividing once at the end.

A kernel inlines the `@triton.jit` functions here. Unlike reference/online_softmax.py: exponentials are powers of two,
because a GPU has an instruction for 2ˣ and none for eˣ; so scores are multiplied by LOG2_E once, together with the scale
where no mask changes them. Does not handle: float64.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from flashlab import runtime

runtime.patch_interpreter()

LOG2_E = tl.constexpr(1.4426950408889634)  # log2(e): eˣ = 2^(x · LOG2_E)
LN_2 = tl.constexpr(0.6931471805599453)  # ln(2): back to natural logarithms, for lse
INF = tl.constexpr(float("inf"))
# Scales that go with LOG2_E into one factor. A smaller product may become 0, and 0 times a hidden score's -inf is nan; a larger one inf.
FOLDED = 2.0**-126, 2.0**126
TANH_SERIES_BELOW = tl.constexpr(0.25)  # below this |x| the quotient would cancel; the series is right to float32


class Layout(NamedTuple):
    """What a kernel must know of its tensors when it is compiled."""

    head_dim: int
    padded: int  # head_dim up to the next power of two, at least 16: what tl.dot takes
    index: tl.dtype  # of offsets inside a tile: int64 only where a tile spans 2³¹ elements
    dot: tl.dtype  # dtype of the products' operands: the tensors' own, but float32 for bfloat16 in the interpreter
    ragged: bool  # the last tile of queries or of keys passes the end
    descriptors: bool  # q, k, v (and do) come not as pointers but as descriptors: shape, strides and tile, by which TMA, a unit of its own, loads tiles


@triton.jit
def row_maximum(scores):
    """The maximum of each row of (block_q, block_k), block_k a multiple of 8.

    First over every eighth column, then over the eight results. In a tensor core's result a thread has two columns of
    every eight, so this gives it two short chains a row instead of a long one, each step of which waits for the one before.
    """
    eights = scores.reshape(scores.shape[0], scores.shape[1] // 8, 8)
    return tl.max(tl.max(eights, 1), 1)


@triton.jit
def softmax_update(scores, row_max, row_sum, unit, BLIND: tl.constexpr = True, FUSE: tl.constexpr = False):
    """Take one more tile of scores (score · unit is an exponent of two) into the running row_max and row_sum of each row.

    Returns (row_max, row_sum, weights, rescale). BLIND: a row may not have seen a key yet, so its maximum may be -inf.
    FUSE: row_max is kept times unit, so a score costs one multiply-add, which a GPU rounds once: the rounded maximum is taken
    from a product that is not rounded. Every score of the row is then off by the same, which row_sum cancels; from 2²⁷ on that
    may pass float16's range. rescale takes one rounded maximum from another, so it is exactly 1 where the maximum stays: were
    it a little off 1, by the same fusion, lse would be off by 10⁻⁵ after 64 steps.
    """
    highest = row_maximum(scores)
    if FUSE:
        highest *= unit
    new_max = tl.maximum(row_max, highest)
    top = new_max
    if BLIND:
        top = tl.where(new_max == -INF, 0.0, new_max)  # no -inf - (-inf)
    if FUSE:
        weights = tl.exp2(scores * unit - top[:, None])
        rescale = tl.exp2(row_max - top)
    else:
        weights = tl.exp2((scores - top[:, None]) * unit)
        rescale = tl.exp2((row_max - top) * unit)
    return new_max, row_sum * rescale + tl.sum(weights, 1), weights, rescale


@triton.jit
def place(program, tiles, all_heads, at_once):
    """(tile, head of all batches) of a program: at_once heads at a time, and of these first each one's first tile, then each second.

    Heads that run at the same time share the L2. The kernels number their longest tile first, so that no long program
    of the last heads starts late and runs alone: on 132 multiprocessors that was an eighth of the time.
    """
    several = at_once * tiles
    first = program // several * at_once
    heads = tl.minimum(all_heads - first, at_once)
    return program % several // heads, first + program % several % heads


@triton.jit
def load_tile(x, strides, batch, head, start, n, BLOCK: tl.constexpr, BOUNDED: tl.constexpr, LAYOUT: tl.constexpr):
    """Rows start to start + BLOCK of one head: (BLOCK, padded), zero outside the tensor. BOUNDED: this may be the last tile."""
    PADDED: tl.constexpr = LAYOUT.padded
    if LAYOUT.descriptors:
        tile = x.load([batch, head, start, 0]).reshape(BLOCK, PADDED)
    else:
        rows, cols = tl.arange(0, BLOCK).to(LAYOUT.index), tl.arange(0, PADDED).to(LAYOUT.index)
        first = x + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1] + start.to(tl.int64) * strides[2]
        at = first + (rows[:, None] * strides[2] + cols[None, :] * strides[3])
        if BOUNDED and LAYOUT.ragged and LAYOUT.padded != LAYOUT.head_dim:
            tile = tl.load(at, mask=(start + rows[:, None] < n) & (cols[None, :] < LAYOUT.head_dim), other=0.0)
        elif BOUNDED and LAYOUT.ragged:
            tile = tl.load(at, mask=start + rows[:, None] < n, other=0.0)
        elif LAYOUT.padded != LAYOUT.head_dim:
            tile = tl.load(at, mask=cols[None, :] < LAYOUT.head_dim, other=0.0)
        else:
            tile = tl.load(at)
    return tile.to(LAYOUT.dot)


@triton.jit
def store_tile(x, strides, batch, head, start, n, tile, BLOCK: tl.constexpr, LAYOUT: tl.constexpr):
    """Write the rows of `tile` (BLOCK, padded) that exist to one head of x, in x's dtype."""
    PADDED: tl.constexpr = LAYOUT.padded
    rows, cols = tl.arange(0, BLOCK).to(LAYOUT.index), tl.arange(0, PADDED).to(LAYOUT.index)
    first = x + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1] + start.to(tl.int64) * strides[2]
    inside = (start + rows[:, None] < n) & (cols[None, :] < LAYOUT.head_dim)
    tl.store(first + (rows[:, None] * strides[2] + cols[None, :] * strides[3]), tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def tile_edges(lo, hi, full_lo, full_hi, n, BLOCK: tl.constexpr):
    """(lo, full_lo, full_hi, hi) at edges of tiles: visit lo to hi; full_lo to full_hi needs no predicate: all keys there exist and are seen."""
    lo = tl.minimum(tl.maximum(lo, 0), n) // BLOCK * BLOCK
    hi = tl.maximum((tl.minimum(tl.maximum(hi, 0), n) + BLOCK - 1) // BLOCK * BLOCK, lo)
    full_lo = tl.minimum(tl.maximum((tl.maximum(full_lo, 0) + BLOCK - 1) // BLOCK * BLOCK, lo), hi)
    full_hi = tl.minimum(tl.maximum(tl.minimum(tl.maximum(full_hi, 0), n) // BLOCK * BLOCK, full_lo), hi)
    # A mask may read its range from an int64 tensor; TMA takes 32 bits, and between 0 and n they are enough.
    return lo.to(tl.int32), full_lo.to(tl.int32), full_hi.to(tl.int32), hi.to(tl.int32)


@triton.jit
def tanh(x):
    """tanh right to a few float32 roundings, relative to its result: Triton's own needs a library that the interpreter lacks."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * 62 / 2835))))
    return tl.where(tl.abs(x) < TANH_SERIES_BELOW, series, 1 - 2 / (1 + tl.exp2(x * (2 * LOG2_E))))
