"""Which tiles each kernel runs with on which GPU, why, and what the tensors look like to it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.kernels.primitives import Layout

SMALLEST_DOT = 16  # tl.dot takes no side shorter than this
OFFSETS = 2**31  # from here on an offset needs 64 bits
DESCRIPTOR_ALIGNMENT = 16  # bytes: TMA's, for the start and every stride
DESCRIPTORS_SINCE = 90  # sm_90 brought TMA


class Tile(NamedTuple):
    """Rows of a query tile and of a key tile, warps of a program, and tiles in flight at once."""

    block_q: int
    block_k: int
    warps: int
    stages: int


class BackwardTiles(NamedTuple):
    """The tiles of the backward kernels; of delta's only block_q and warps count."""

    delta: Tile
    keys: Tile
    queries: Tile
    fused: Tile


INTERPRETED = Tile(16, 16, 4, 1)
DELTA = Tile(64, 0, 4, 1)

# (architecture, head_dim up to): 16-bit forward.
FORWARD = {
    (80, 64): Tile(128, 64, 4, 3),
    (80, 128): Tile(128, 64, 8, 2),
    (80, 256): Tile(64, 32, 4, 2),
    (90, 64): Tile(64, 128, 4, 2),
    (90, 128): Tile(128, 64, 4, 2),
    (90, 256): Tile(128, 64, 8, 2),
}
BACKWARD = {
    (80, 64): (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    (80, 128): (Tile(32, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2)),
    (80, 256): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (90, 64): (Tile(64, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    (90, 128): (Tile(64, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    (90, 256): (Tile(32, 64, 8, 2), Tile(64, 32, 8, 2), Tile(32, 64, 8, 2)),
}
BACKWARD_FLOAT32 = Tile(16, 16, 4, 1)
FORWARD_FLOAT32 = {64: Tile(32, 32, 4, 1), 128: Tile(32, 32, 4, 1), 256: Tile(16, 16, 4, 1)}


@cache
def architecture(device: torch.device) -> int:
    """80 for compute capability 8.0 and so on; 0 in the interpreter."""
    if runtime.mode() == "interpreter":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def look_up(table: dict, arch: int, head_dim: int) -> Tile:
    """The line of `table` for the newest architecture that is not newer than `arch`, and the least head_dim that holds."""
    known = max(a for a, _ in table if a <= max(arch, min(a for a, _ in table)))
    return table[known, min(d for a, d in table if a == known and d >= head_dim)]


def forward_tile(q: torch.Tensor) -> Tile:
    """The forward kernel's tile for this q."""
    return forward_tile_for(architecture(q.device), q.shape[3], q.dtype == torch.float32)


def forward_tile_for(arch: int, head_dim: int, float32: bool) -> Tile:
    if arch == 0:
        return INTERPRETED
    if float32:
        return FORWARD_FLOAT32[min(d for d in FORWARD_FLOAT32 if d >= head_dim)]
    return look_up(FORWARD, arch, head_dim)


def backward_tiles(q: torch.Tensor) -> BackwardTiles:
    """The backward kernels' tiles for this q."""
    return backward_tiles_for(architecture(q.device), q.shape[3], q.dtype == torch.float32)


def backward_tiles_for(arch: int, head_dim: int, float32: bool) -> BackwardTiles:
    if arch == 0:
        return BackwardTiles(*4 * (INTERPRETED,))
    return BackwardTiles(DELTA, *(3 * (BACKWARD_FLOAT32,) if float32 else look_up(BACKWARD, arch, head_dim)))


def layout(*tensors: torch.Tensor, block: int, described: int = 0) -> Layout:
    """What a kernel must know of these tensors, all of one head_dim; the first `described` may come as descriptors."""
    first = tensors[0]
    head_dim = first.shape[3]
    padded = max(triton.next_power_of_2(head_dim), SMALLEST_DOT)
    wide = any(block * x.stride(2) + padded * x.stride(3) >= OFFSETS for x in tensors)
    dot = getattr(tl, {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}[first.dtype])
    arch = architecture(first.device)
    if arch == 0 and dot is tl.bfloat16:
        dot = tl.float32  # the interpreter's bfloat16 products are wrong; its conversions are right
    descriptors = described > 0 and arch >= DESCRIPTORS_SINCE and all(map(can_be_described, tensors[:described]))
    return Layout(head_dim, padded, tl.int64 if wide else tl.int32, dot, descriptors)


def can_be_described(x: torch.Tensor) -> bool:
    """Whether TMA can read x: 16-bit elements, rows without gaps, start and strides on 16 bytes, nothing empty or expanded."""
    strides = [stride * x.element_size() for stride, size in zip(x.stride()[:3], x.shape[:3]) if size > 1]
    aligned = all(stride > 0 and stride % DESCRIPTOR_ALIGNMENT == 0 for stride in (*strides, x.data_ptr() or 1))
    return x.element_size() == 2 and aligned and x.numel() > 0 and x.stride(3) == 1


def describe(x: torch.Tensor, block: int):
    """A tensor descriptor of x that loads `block` rows of one head at once."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    padded = max(triton.next_power_of_2(x.shape[3]), SMALLEST_DOT)
    whole = triton.cdiv(x.shape[3], DESCRIPTOR_ALIGNMENT) * DESCRIPTOR_ALIGNMENT  # any valid stride, where the size is 1
    strides = [stride if size > 1 else whole for stride, size in zip(x.stride()[:3], x.shape[:3])]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, block, padded])
