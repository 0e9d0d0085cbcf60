"""Which tiles our kernels take on a GPU of hardware_table.py, and how many heads they run at once: found without the GPU.

    tile_taken("flash1_kernel", problem, gpu("H200"))          Tile(block_q=128, block_k=128, ...)

A launcher asks its tensors and the GPU that they are on (kernels/tiles.py, unfused.tiles_of, flash1.tile_of). A formula or a
schedule has a problem and a line of the table: the dtype is the problem's, and the shared memory that one program may have is
that GPU's own, since newer does not mean more (99 KiB on an RTX 5090, 227 on an H100). That both choose alike is a test.

Does not handle: tuned tiles (FLASHLAB_AUTOTUNE), and keys_kernel at a head_dim over 128, where dk and dv are two launches.
"""

from __future__ import annotations

import torch

from flashlab.errors import error
from flashlab.hardware import Gpu
from flashlab.kernels import flash1, unfused
from flashlab.kernels.api import DTYPES, LARGEST_HEAD_DIM
from flashlab.kernels.tiles import SHORT, Tile, backward_tiles_for, forward_tile_for, heads_at_once
from flashlab.problem import AttentionProblem
from flashlab.traffic.counter_records import KERNELS


def check_taken(problem: AttentionProblem) -> None:
    """Raises ValueError for a head_dim or dtype that our kernels refuse, as their launchers do where there are tensors."""
    if problem.head_dim > LARGEST_HEAD_DIM:
        raise error("head_dim_large", given=problem.head_dim, most=LARGEST_HEAD_DIM)
    taken = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    if problem.dtype not in taken:
        raise error("dtype", given=problem.dtype, allowed=", ".join(taken))


def tile_taken(kernel: str, problem: AttentionProblem, gpu: Gpu) -> Tile | None:
    """The tile of one launch of `kernel` on this problem; None for a kernel that has none, and for what is not handled.

    Raises ValueError for a head_dim or dtype that our kernels refuse.

    >>> from flashlab.hardware import gpu
    >>> half, single = (AttentionProblem(1024, 1024, 64, dtype=dtype) for dtype in ("float16", "float32"))
    >>> [tile_taken("flash1_kernel", one, gpu("H200"))[:2] for one in (half, single)]
    [(128, 128), (32, 32)]
    """
    if not any(kernel in ours for ours in KERNELS.values()):
        return None
    check_taken(problem)
    (major, minor), head_dim, float32 = gpu.compute_capability, problem.head_dim, problem.dtype == "float32"
    where = 10 * major + minor, head_dim, float32, gpu.sram_bytes_per_block
    backward = backward_tiles_for(*where)
    small = forward_tile_for(*where) if float32 else None  # as unfused.small_tile
    of_scores, of_product = unfused.TILES[min(d for d in unfused.TILES if d >= head_dim)]
    tiles = {
        "forward_kernel": forward_tile_for(*where, problem.causal and problem.n_k <= SHORT),
        "delta_kernel": backward.delta,
        "keys_kernel": backward.keys[0] if len(backward.keys) == 1 else None,
        "queries_kernel": backward.queries,
        "scores_kernel": small or of_scores,
        "product_kernel": small or of_product,
        "flash1_kernel": small or flash1.TILES[min(d for d in flash1.TILES if d >= head_dim)],
    }
    return tiles.get(kernel)


def blocks(tile: Tile) -> dict[str, int]:
    """A tile's rows, as the formulas and the schedules take them."""
    return {"block_q": tile.block_q, "block_k": tile.block_k}


def heads_taken(problem: AttentionProblem, *, of_queries: bool = False) -> int:
    """How many heads run at once while k and v pass through a program's loop, or q and do of each head of a group (keys_kernel)."""
    rows, group = (problem.n_q, problem.heads // problem.kv_heads) if of_queries else (problem.n_k, 1)
    return heads_at_once(torch.empty(1, 1, rows, problem.head_dim, dtype=getattr(torch, problem.dtype), device="meta"), group)
