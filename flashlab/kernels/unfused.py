"""Standard attention as three Triton kernels, each launched on its own: scores, softmax, product.

Source: Dao et al. 2022, Algorithm 0: S = q·kᵀ, P = softmax(S), O = P·v, with S and P in HBM; kernels/standard.py is the
same in three operators of PyTorch, whose kernels nobody can trace. These can be: their bytes are counted, and their
programs run in an order that you can read.

Unlike reference/standard.py: batches, heads and grouped queries; and a product's tiles of q, k and v are read again by
each program that needs them, since no program can hold a whole k. (Most of these reads find their tile in the L2.)

Traffic, in elements of each head: scores written and read, weights written and read, 4·n_q·n_k; o once; q once for each
tile of keys; k and v once for each tile of queries. Causal changes nothing: a hidden score is computed, and stored as
-inf, as PyTorch does. Does not handle: masks, an lse, gradients; rows of more than 32,768 keys spill registers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.errors import error
from flashlab.kernels.api import _check
from flashlab.kernels.primitives import INF, LOG2_E, load_tile, store_tile
from flashlab.kernels.tiles import FORWARD_FLOAT32, INTERPRETED, Tile, architecture, layout


@triton.jit
def matrix_tile(x, head, row0, col0, n_q, n_k, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """(addresses, which exist) of a tile of scores or weights: x is (heads of all batches, n_q, n_k), without gaps."""
    rows, cols = tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, BLOCK_K)[None, :]
    first = x + (head.to(tl.int64) * n_q + row0) * n_k + col0
    return first + (rows * n_k + cols), (row0 + rows < n_q) & (col0 + cols < n_k)


@triton.jit
def scores_kernel(
    q, k, scores, q_strides, k_strides, heads, n_q, n_k, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """scores = scale · q · kᵀ of one tile of queries and one of keys. Programs: heads, in each its q tiles, in each the k tiles."""
    tiles_q, tiles_k = tl.cdiv(n_q, BLOCK_Q), tl.cdiv(n_k, BLOCK_K)
    program = tl.program_id(0)
    head, row0, col0 = program // (tiles_q * tiles_k), program // tiles_k % tiles_q * BLOCK_Q, program % tiles_k * BLOCK_K
    q_tile = load_tile(q, q_strides, head // heads, head % heads, row0, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
    k_tile = load_tile(k, k_strides, head // heads, head % heads // GROUP, col0, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
    scores_tile = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale  # (block_q, block_k)
    if CAUSAL:  # the last query sees every key
        i, j = row0 + tl.arange(0, BLOCK_Q)[:, None] + n_k - n_q, col0 + tl.arange(0, BLOCK_K)[None, :]
        scores_tile = tl.where(j <= i, scores_tile, -INF)
    at, inside = matrix_tile(scores, head, row0, col0, n_q, n_k, BLOCK_Q, BLOCK_K)
    tl.store(at, scores_tile.to(scores.dtype.element_ty), mask=inside)  # write block_q · block_k


@triton.jit
def softmax_kernel(scores, weights, n_k, BLOCK: tl.constexpr):
    """weights = softmax(scores) of one row, which is in registers whole, so it is read once. A row of -inf gives 0."""
    cols = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * n_k
    row = tl.load(scores + first + cols, mask=cols < n_k, other=-INF).to(tl.float32)  # read n_k
    row_max = tl.max(row, 0)
    powers = tl.exp2((row - tl.where(row_max == -INF, 0.0, row_max)) * LOG2_E)
    row_sum = tl.sum(powers, 0)
    row = powers / tl.where(row_sum == 0, 1.0, row_sum)
    tl.store(weights + first + cols, row.to(weights.dtype.element_ty), mask=cols < n_k)  # write n_k


@triton.jit
def product_kernel(
    weights, v, o, v_strides, o_strides, heads, n_q, n_k,
    GROUP: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o = weights · v of one tile of queries, key tile by key tile. Programs: heads, in each its q tiles."""
    PADDED: tl.constexpr = LAYOUT.padded
    tiles_q = tl.cdiv(n_q, BLOCK_Q)
    head, row0 = tl.program_id(0) // tiles_q, tl.program_id(0) % tiles_q * BLOCK_Q
    acc = tl.zeros([BLOCK_Q, PADDED], tl.float32)
    for start in tl.range(0, n_k, BLOCK_K):
        start = tl.multiple_of(start, BLOCK_K)  # the interpreter makes a tensor of what has a name
        at, inside = matrix_tile(weights, head, row0, start, n_q, n_k, BLOCK_Q, BLOCK_K)
        weights_tile = tl.load(at, mask=inside, other=0.0).to(LAYOUT.dot)  # read block_q · block_k
        v_tile = load_tile(v, v_strides, head // heads, head % heads // GROUP, start, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
        acc = tl.dot(weights_tile, v_tile, acc, input_precision="ieee")
    store_tile(o, o_strides, head // heads, head % heads, row0, n_q, acc, BLOCK_Q, LAYOUT)  # write block_q · head_dim


# head_dim up to: (tile of the scores kernel, tile of the product kernel), for 16-bit tensors on any GPU.
#   128  128 x 128 scores: each tile of q and k read serves 128 of the other, and a program needs 64 KiB. The product has
#        64 keys a tile, so that two stages fit the 99 KiB of the smallest GPUs
#   256  half the rows, for twice the columns
TILES = {128: (Tile(128, 128, 8, 1), Tile(128, 64, 8, 2)), 256: (Tile(64, 64, 4, 1), Tile(64, 64, 4, 2))}
ROW_A_WARP = 1024  # numbers of a row that one warp of the softmax kernel holds: 32 registers a thread, read 16 bytes at a time
MOST_WARPS = 16


def small_tile(q: torch.Tensor) -> Tile | None:
    """The tile in the interpreter and, on a GPU, for float32, which ordinary cores multiply; None for 16-bit tensors there."""
    if architecture(q.device) == 0:
        return INTERPRETED
    return FORWARD_FLOAT32[min(d for d in FORWARD_FLOAT32 if d >= q.shape[3])] if q.dtype == torch.float32 else None


def tiles_of(q: torch.Tensor) -> tuple[Tile, Tile]:
    """The tiles of the scores kernel and of the product kernel for this q; they have the same block_q."""
    small = small_tile(q)
    return (small, small) if small else TILES[min(d for d in TILES if d >= q.shape[3])]


def checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> float:
    """The scale, 1/√head_dim by default. Raises ValueError or TypeError where q, k and v cannot be what a kernel takes."""
    _check(q, k, v, None, None, "auto")
    if not q.is_cuda and runtime.mode() == "cuda":
        raise error("kernel_device", given=q.device)
    return 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)  # Triton would compile an int of 1 in as a constant


def unfused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    tiles: tuple[Tile, Tile] | None = None,
) -> torch.Tensor:
    """o (batch, heads, n_q, head_dim) from q of that shape and k, v (batch, kv_heads, n_k, head_dim), by three launches.

    `causal` is aligned to the bottom right; a query that sees no key gives 0. Allocates scores and weights, (batch, heads,
    n_q, n_k) each, in q's dtype. `tiles` are those of the scores and of the product. Raises ValueError or TypeError.

    >>> from flashlab.runtime import device
    >>> q, k, v = (torch.ones(1, 2, n, 8, device=device()) for n in (3, 5, 5))
    >>> unfused(q, k, v).shape
    torch.Size([1, 2, 3, 8])
    """
    scale = checked(q, k, v, scale)
    (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
    group, rows = heads // k.shape[1], batch * heads * n_q
    scores, weights = (torch.empty(batch, heads, n_q, n_k, dtype=q.dtype, device=q.device) for _ in range(2))
    o = torch.empty_like(q)
    of_scores, of_product = tiles or tiles_of(q)

    def blocks(tile):
        return {"GROUP": group, "LAYOUT": layout((), (q, k, v, o), n_q, n_k, tile), "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}

    with torch.cuda.device_of(q):
        if scores.numel():
            programs = batch * heads * triton.cdiv(n_q, of_scores.block_q) * triton.cdiv(n_k, of_scores.block_k)
            scores_kernel[(programs,)](
                q, k, scores, q.stride(), k.stride(), heads, n_q, n_k, scale, CAUSAL=causal, **blocks(of_scores), **of_scores.options()
            )
            row = triton.next_power_of_2(n_k)
            softmax_kernel[(rows,)](scores, weights, n_k, BLOCK=row, num_warps=min(max(row // ROW_A_WARP, 1), MOST_WARPS))
        if o.numel():
            programs = batch * heads * triton.cdiv(n_q, of_product.block_q)
            product_kernel[(programs,)](
                weights, v, o, v.stride(), o.stride(), heads, n_q, n_k, **blocks(of_product), **of_product.options()
            )
    return o
