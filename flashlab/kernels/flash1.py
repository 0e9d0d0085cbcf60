"""FlashAttention-1's loop order in Triton: one program for each head, keys and values outside, queries inside.

Source: Dao et al. 2022, Algorithm 1; reference/flash1.py is the same loop in NumPy, line for line. FlashAttention-2 is
forward.py; what it changed is what is slow here.

Unlike forward.py: a head's unfinished o, row_max and row_sum go back to HBM after each tile of keys, and are read again at
the next one; o is divided by row_sum each time and multiplied back the next; and a program has a whole head, so a GPU
with 132 multiprocessors and 32 heads leaves 100 of them idle. Unlike reference/flash1.py: batches, heads, grouped queries.

Traffic, in elements of each head: k and v once; for each of the ⌈n_k / block_k⌉ passes q read, o read and written,
row_max and row_sum read and written, less the tiles that causal hides whole; o, row_max and row_sum written once before.
o is a float32 buffer, where reference/flash1.py has q's dtype: for 16-bit tensors twice the bytes of o, which is what
FlashAttention-1's own kernel does (its o_tmp). After the kernel PyTorch casts o to q's dtype, which for float32 is
nothing, and computes lse from row_max and row_sum; neither is counted. Does not handle: masks, gradients.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashlab.kernels.primitives import INF, LOG2_E, load_tile, softmax_update, store_tile
from flashlab.kernels.tiles import Tile, layout
from flashlab.kernels.unfused import checked, small_tile


@triton.jit
def flash1_kernel(
    q, k, v, o, row_max, row_sum, q_strides, k_strides, v_strides, o_strides, heads, n_q, n_k, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, LAYOUT: tl.constexpr, O_LAYOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o, row_max and row_sum (all float32) of one head. O_LAYOUT is LAYOUT for o, which stays float32."""
    PADDED: tl.constexpr = LAYOUT.padded
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    kv_head = head // GROUP
    head_rows = tl.program_id(0).to(tl.int64) * n_q
    max_row, sum_row = row_max + head_rows, row_sum + head_rows
    nothing = tl.zeros([BLOCK_Q, PADDED], tl.float32)

    for first in tl.range(0, n_q, BLOCK_Q):
        first = tl.multiple_of(first, BLOCK_Q)  # the interpreter makes a tensor of what has a name
        rows = first + tl.arange(0, BLOCK_Q)
        store_tile(o, o_strides, batch, head, first, n_q, nothing, BLOCK_Q, O_LAYOUT)  # write block_q · head_dim
        tl.store(max_row + rows, tl.full([BLOCK_Q], -INF, tl.float32), mask=rows < n_q)  # write block_q
        tl.store(sum_row + rows, tl.zeros([BLOCK_Q], tl.float32), mask=rows < n_q)  # write block_q

    for start in tl.range(0, n_k, BLOCK_K):
        start = tl.multiple_of(start, BLOCK_K)
        tl.debug_barrier()  # what other threads wrote, at first or in the pass before, is read in this one
        k_tile = load_tile(k, k_strides, batch, kv_head, start, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
        v_tile = load_tile(v, v_strides, batch, kv_head, start, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
        j = start + tl.arange(0, BLOCK_K)[None, :]
        seeing = tl.maximum(start + n_q - n_k, 0) if CAUSAL else 0  # the first query that sees a key of this tile
        for first in tl.range(seeing // BLOCK_Q * BLOCK_Q, n_q, BLOCK_Q):
            first = tl.multiple_of(first, BLOCK_Q)
            rows = first + tl.arange(0, BLOCK_Q)
            q_tile = load_tile(q, q_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
            o_tile = load_tile(o, o_strides, batch, head, first, n_q, BLOCK_Q, True, O_LAYOUT)  # read block_q · head_dim
            old_max = tl.load(max_row + rows, mask=rows < n_q, other=-INF)  # read block_q
            old_sum = tl.load(sum_row + rows, mask=rows < n_q, other=0.0)  # read block_q
            scores = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale  # (block_q, block_k)
            inside = j < n_k
            if CAUSAL:
                inside = inside & (j <= rows[:, None] + (n_k - n_q))
            scores = tl.where(inside, scores, -INF)
            new_max, new_sum, weights, rescale = softmax_update(scores, old_max, old_sum, LOG2_E)
            acc = o_tile * (old_sum * rescale)[:, None]  # multiplied back, and relative to the new maximum
            acc = tl.dot(weights.to(LAYOUT.dot), v_tile, acc, input_precision="ieee")
            o_tile = acc / tl.where(new_sum == 0, 1.0, new_sum)[:, None]  # a division for each row and each pass
            tl.debug_barrier()  # all threads have read what is overwritten now
            store_tile(o, o_strides, batch, head, first, n_q, o_tile, BLOCK_Q, O_LAYOUT)  # write block_q · head_dim
            tl.store(max_row + rows, new_max, mask=rows < n_q)  # write block_q
            tl.store(sum_row + rows, new_sum, mask=rows < n_q)  # write block_q


# head_dim up to: the tile for 16-bit tensors on any GPU. Many keys a tile mean few passes over o. Against that: k, v and q,
# and o in float32 on its way between layouts, share the 99 KiB of the smallest GPUs, and a thread has 255 registers (bytes
# spilled, full / causal, as Triton 3.9 compiles for sm_90; 3.6, by ptxas 12.9, 8 and 128). 8 warps, since a program has its
# multiprocessor to itself where heads are few; one stage, since a prefetched o would need 64 KiB more.
#   64   128 x 128: 64 KiB, 0 / 0
#   128  128 x 64: 96 KiB, 0 / 48; with 128 keys 128 KiB, 104 / 264
#   256  16 x 64: 80 KiB, 528 / 520; more rows spill 676 to 12,700
TILES = {64: Tile(128, 128, 8, 1), 128: Tile(128, 64, 8, 1), 256: Tile(16, 64, 4, 1)}


def tile_of(q: torch.Tensor) -> Tile:
    """The tile for this q."""
    return small_tile(q) or TILES[min(d for d in TILES if d >= q.shape[3])]


def flash1(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o like q, lse (batch, heads, n_q) float32) from q (batch, heads, n_q, head_dim) and k, v (batch, kv_heads, n_k, head_dim).

    `causal` is aligned to the bottom right; a query that sees no key gives 0 and -inf. Raises ValueError or TypeError.

    >>> from flashlab.runtime import device
    >>> q, k, v = (torch.ones(1, 2, n, 8, device=device()) for n in (3, 5, 5))
    >>> o, lse = flash1(q, k, v)
    >>> o.shape, lse.shape
    (torch.Size([1, 2, 3, 8]), torch.Size([1, 2, 3]))
    """
    scale, tile = checked(q, k, v, scale), tile or tile_of(q)
    (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
    o = torch.empty_like(q, dtype=torch.float32)
    row_max, row_sum = (torch.empty(batch, heads, n_q, dtype=torch.float32, device=q.device) for _ in range(2))
    layouts = {"LAYOUT": layout((), (q, k, v, o), n_q, n_k, tile), "O_LAYOUT": layout((), (o, q, k, v), n_q, n_k, tile)}
    if row_max.numel():
        with torch.cuda.device_of(q):
            flash1_kernel[(batch * heads,)](
                q, k, v, o, row_max, row_sum, q.stride(), k.stride(), v.stride(), o.stride(), heads, n_q, n_k, scale,
                GROUP=heads // k.shape[1], CAUSAL=causal, **layouts, BLOCK_Q=tile.block_q, BLOCK_K=tile.block_k, **tile.options(),
            )  # fmt: skip
    return o.to(q.dtype), row_max + torch.log(row_sum)
