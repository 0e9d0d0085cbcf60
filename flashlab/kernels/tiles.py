"""Which tiles each kernel runs with on which GPU, why, and what the tensors look like to it.

What was tried, on one H200 with Triton 3.6 (TFLOP/s; bf16, n 4096, batch 4, heads · head_dim 2048; full / causal). Rows
with a star are the GPU's time alone, by CUDA graph; the others include the launch. Beside them SDPA's flash kernel: 303 /
283 at head_dim 64, 355 / 308 at 128, 327 / 284 at 256, and cuDNN: 482 / 432, 675 / 574, 729 / 601; backward, flash: 255 /
220, 275 / 240, 235 / 205.

    forward                                                       head_dim 64   128         256
    tiles through pointers (128 x 128, 8 warps)                                 428 / 372
    tiles through TMA descriptors, best tile                      401 / 333     488 / 394   439 / 321
    no predicate, no third loop, one division a row (*)           442 / 393     534 / 450   530 / 454
    heads in groups that fit the L2, longest tiles first (*)      455 / 422     535 / 490   518 / 505
    each step multiplies the next tile's keys, best tile (*)      463 / 419     564 / 505
    and the product with v runs during the next softmax (*)       441 / 389     443 / 413   618 / 567
    the row maximum in two chains a row, best order (*)           500 / 454     635 / 568   622 / 570

    backward, dk and dv + dq (*)                                  347 / 311     389 / 377   309 / 311
    fused, dq by atomics (*)                                      284 / 285     332 / 296   138 / 156

How the last three rows were found: Nsight Compute's samples of the row above them said that at head_dim 64 the warps spent 21
percent of their time at the top of the loop waiting for the tile of k, 13 for q · kᵀ, and 9 in 31 comparisons that each
wait for the one before; at 128, 18 percent for k. A scheduler had an instruction to issue in 44 percent of the cycles (64)
and 36 (128). Triton issues a loop's loads at the end of its body, so what the body needs first arrives last: hence the keys
of the next tile, multiplied at the end. At 128 that pays with 128 rows in two warpgroups of at most 128 registers, two such
programs a multiprocessor; at 256, where only one program fits, with the product with v left running.

What lost, and why. The two short chains alone, in the old order: 458 / 426 at 64, 539 / 488 at 128, next to nothing.
The row sum in two chains as well: the same within 1 percent. Four chains: the same. 128 x 64 tiles in one warpgroup at 128
with the new order: 461 / 429, spills. 128 x 128 with 8 warps at 64: 458 / 408. Three stages at 64: the third tile takes the
place of the third program, 411 / 409 (64 x 64). 128 x 64 tiles with 3 stages at 128, in the old order: one program a
multiprocessor instead of two, 421 / 298. dk and dv in one kernel at head_dim 256: 592 bytes of spills, 419 / 327 where apart
they give 461 / 472 (as if they were the whole backward pass). Atomics: 5 products instead of 7, yet each waits for dscores
to pass through shared memory and dq adds 4 bytes an element a tile pair to the L2; the two kernels win at every head_dim.

At head_dim 64 short causal rows were left. At n = 1,024 a program sees four or five tiles of 128 keys, of which the last is
half hidden; 64 x 64 tiles with at most 128 registers give 315 there instead of 283, 394 instead of 376 at 2,048, but lose at
4,096 (444 / 454) and without a mask (453 / 472 at 2,048): so n and the masks choose too (FORWARD_SHORT). The care for
rows without a key (softmax_update's BLIND), needless since their maximum is finite (forward.LOWEST), is left out, which gave 0.7
percent at 64 and 1 at 128 where tiles are seen whole, and nothing at 256. Row sums kept as eight columns a row until the end: up to 5
percent slower, for their registers. A quarter of the powers of two by polynomials (powers.py), where tiles are seen whole: 0.94 of the
speed at 64, 0.97 at 128, the same at 256; an eighth: 0.98, 0.99 and the same. Registers and spills did not change. Likely
because a polynomial takes eight of a scheduler's clocks, which the unit of exponentials takes beside it (not counted).

What being right cost, until it was written otherwise: rescale must be exactly 1 where a row's maximum stays (softmax_update).
As exp2((row_max - top) * unit) it takes an operation more a row, and 256 was at 1.71 times flash, 64 at 1.61; with the maximum
kept times unit it takes none, and they are at 1.82 and 1.62 in the same run; 128 at 1.76 either way.

Where that leads, geometric mean over n = 1,024 to 16,384, full and causal (recorded/nvidia-h200.jsonl; the aim was 1.60, 1.60
and 1.40 times SDPA's flash kernel): forward 1.60, 1.73 and 1.81 at head_dim 64, 128 and 256, and 1.02, 0.93 and 0.86 times
cuDNN; backward 1.42, 1.52 and 1.35 (aim 1.25, 1.40, 1.00), and 0.85, 0.80 and 0.84. At head_dim 64 that is 1.596, just short; in
14 other runs, of this loop and of nearly the same on several H200s, it was 1.597 to 1.622, all of them with Triton 3.6's own ptxas.
That one, 12.8, cannot be trusted on Hopper (assembler.py), and 12.9 orders a few instructions of the loop otherwise: against the last of
those runs flash and cuDNN took 0.6 percent less time, on another H200, and the forward kernel 0.9 percent more. What stands in the
way there: a tile of 64 x 128 scores takes a multiprocessor 512 cycles of exponentials (16 a cycle) and 512 of products (4,096 FLOP
a cycle), and a program does one after the other, so only the programs beside it overlap them; n of 1,024 is the weakest at 1.46,
with eight tiles a program between filling and draining.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.kernels.launch import NO_STRIDES
from flashlab.kernels.primitives import Layout

SMALLEST_DOT = 16  # tl.dot takes no side shorter than this
OFFSETS = 2**31  # from here on an offset needs 64 bits
DESCRIPTOR_ALIGNMENT = 16  # bytes: TMA's, for the start and every stride
# Architectures: sm_90 brought TMA. sm_120 has it too, but its products read registers: causal, at head_dim 256, descriptors
# spill 2 to 4 KB (by Triton 3.6 to 10) where pointers spill 0.9 KB at most (1.1); compiled, not timed.
DESCRIPTORS = range(90, 120)


L2_SHARE = 32 * 2**20  # bytes of the L2 that k and v of the heads that run at once may take (A100: 40 MB, H100: 50, H200: 60)
MOST_AT_ONCE = 128  # heads


class Tile(NamedTuple):
    """Rows of a query tile and of a key tile, warps of a program, tiles in flight at once, and a cap on a thread's registers.

    overlap, of the forward kernel: its product with v runs during the next softmax (forward.attend).
    """

    block_q: int
    block_k: int
    warps: int
    stages: int
    registers: int | None = None
    overlap: bool = False

    def options(self) -> dict:
        """What a launch takes besides the kernel's own arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


class BackwardTiles(NamedTuple):
    """The tiles of the backward kernels; of delta's only block_q and warps count. Two tiles for keys: dk and dv apart."""

    delta: Tile
    keys: tuple[Tile, ...]
    queries: Tile
    fused: Tile


INTERPRETED = Tile(16, 16, 4, 1)
DELTA = Tile(64, 0, 4, 1)

# A line is for its architecture and newer ones, if their programs may have this much shared memory, which its lines need
# at most. So sm_86, sm_89 and sm_120, which have 99 KiB, take sm_80's, and compile without the spills of sm_90's there.
KIB = 2**10
SHARED = {80: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB}

# (architecture, head_dim up to): 16-bit forward. sm_90 is measured; sm_80 and sm_100 (which takes sm_90's where it has no
# line) are compiled: they fit, and nobody has timed them. Bytes they spill, causal, at 64, 128 and 256 by Triton 3.9 (3.6): sm_80
# 32, 232, 716 (156, 132, 1,104); sm_100 1,476, 1,448, 176 (0, 300, 0); sm_120, which takes sm_80's, 64, 304, 936 (184, 476, 1,036).
#   64   at most 168 registers, so three programs share a multiprocessor
#   128  two warpgroups of 64 rows and at most 128 registers, so two programs share a multiprocessor; causal spills 8 bytes by Triton 3.6, none by 3.9
#   256  acc needs two warpgroups; k and v fill the shared memory at two stages, so one program must fill its own gaps: overlap; causal spills 204 bytes by Triton 3.9, none by 3.6
FORWARD = {
    (80, 64): Tile(128, 64, 4, 3),
    (80, 128): Tile(128, 64, 8, 2),
    (80, 256): Tile(64, 32, 4, 2),
    (90, 64): Tile(64, 128, 4, 2, 168),
    (90, 128): Tile(128, 64, 8, 2, 128),
    (90, 256): Tile(128, 64, 8, 2, overlap=True),
}
# Instead, where a mask hides keys and n_k is at most SHORT: a program sees few tiles then, and half of the last one is hidden.
#   64   narrower tiles, and at most 128 registers: four programs share a multiprocessor
SHORT = 2048
FORWARD_SHORT = FORWARD | {(90, 64): Tile(64, 64, 4, 2, 128)}
# (architecture, head_dim up to): 16-bit backward: keys (dk and dv, together or apart), queries (dq), fused.
#   64, 128   64 x 64 with one warpgroup: two accumulators of 64 rows just fit, and two or three programs share a multiprocessor
#   256       dk and dv apart, since two accumulators of 256 columns do not fit; sm_100 has less shared memory to spare for dq,
#             and its tensor memory does not hold the fused kernel's accumulators at 64 x 128
BACKWARD = {
    (80, 64): ((Tile(64, 64, 4, 2),), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    (80, 128): ((Tile(32, 64, 4, 2),), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2)),
    (80, 256): ((Tile(32, 32, 4, 1),), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (90, 64): ((Tile(64, 64, 4, 3),), Tile(64, 64, 4, 2, 128), Tile(64, 64, 4, 2)),
    (90, 128): ((Tile(64, 64, 4, 2),), Tile(128, 64, 8, 3), Tile(64, 128, 8, 2)),
    (90, 256): ((Tile(32, 128, 8, 2), Tile(64, 128, 8, 2)), Tile(128, 32, 8, 3), Tile(32, 64, 8, 2)),
    (100, 64): ((Tile(64, 64, 4, 3),), Tile(64, 64, 4, 2, 128), Tile(64, 64, 4, 2)),
    (100, 128): ((Tile(64, 64, 4, 2),), Tile(128, 64, 8, 3), Tile(64, 64, 8, 2)),
    (100, 256): ((Tile(32, 128, 8, 2), Tile(64, 128, 8, 2)), Tile(128, 32, 8, 2), Tile(32, 64, 8, 2)),
}
# float32 runs on the ordinary cores (IEEE, no TF32), where a thread of an unrolled product holds whole rows of head_dim numbers:
# small tiles keep that short enough to compile, and 8 warps keep it in registers. Compiled, causal, by Triton 3.9, and nobody
# has timed them; bytes of spills on sm_80, sm_90, sm_100, and in parentheses those of the same tile with 4 warps:
#   forward  64   none                (1,520  1,604    956)
#            128  none                (1,208  1,184    780)   32 x 32: 1,312  1,456  968; with 4 warps 61,060 on sm_90
#            256  1,116  1,236  724   (37,384  34,904  6,776)
#   queries  64   none                (0  8  0)
#            128  none                (844  924  964)
#            256  788  820  872       (8,716  8,128  8,536)
# keys and fused spill 24 bytes at most with 4 warps. flash1.py and unfused.py take the forward tiles too, and spill nothing.
FORWARD_FLOAT32 = {64: Tile(32, 32, 8, 1), 128: Tile(16, 16, 8, 1), 256: Tile(16, 16, 8, 1)}
BACKWARD_FLOAT32 = ((Tile(16, 16, 4, 1),), Tile(16, 16, 8, 1), Tile(16, 16, 4, 1))  # keys, queries, fused: as in BACKWARD


@cache
def architecture(device: torch.device) -> int:
    """80 for compute capability 8.0 and so on; 0 in the interpreter."""
    if runtime.mode() == "interpreter":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have."""
    return 0 if architecture(device) == 0 else torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def look_up(table: dict, arch: int, head_dim: int, shared: int) -> Tile:
    """The line for the least head_dim that holds, of the newest architecture up to `arch` whose lines need no more than `shared`."""
    fitting = [a for a, _ in table if a <= arch and SHARED[a] <= shared]
    known = max(fitting, default=min(a for a, _ in table))
    return table[known, min(d for a, d in table if a == known and d >= head_dim)]


def forward_tile(q: torch.Tensor, n_k: int, limited: bool) -> Tile:
    """The forward kernel's tile for this q and as many keys; limited: some mask hides keys."""
    short = limited and n_k <= SHORT
    return forward_tile_for(architecture(q.device), q.shape[3], q.dtype == torch.float32, shared_memory(q.device), short)


@cache
def forward_tile_for(arch: int, head_dim: int, float32: bool, shared: int, short: bool = False) -> Tile:
    if arch == 0:
        return INTERPRETED
    if float32:
        return FORWARD_FLOAT32[min(d for d in FORWARD_FLOAT32 if d >= head_dim)]
    return look_up(FORWARD_SHORT if short else FORWARD, arch, head_dim, shared)


def backward_tiles(q: torch.Tensor) -> BackwardTiles:
    """The backward kernels' tiles for this q."""
    return backward_tiles_for(architecture(q.device), q.shape[3], q.dtype == torch.float32, shared_memory(q.device))


@cache
def backward_tiles_for(arch: int, head_dim: int, float32: bool, shared: int) -> BackwardTiles:
    if arch == 0:
        return BackwardTiles(INTERPRETED, (INTERPRETED,), INTERPRETED, INTERPRETED)
    if float32:
        return BackwardTiles(DELTA, *BACKWARD_FLOAT32)
    return BackwardTiles(DELTA, *look_up(BACKWARD, arch, head_dim, shared))


def heads_at_once(x: torch.Tensor, group: int = 1) -> int:
    """How many heads' two streamed tensors like x (k and v, or q and do) fit into the share of the L2 left for them: a power of two."""
    bytes_of_one = max(2 * group * x.shape[2] * x.shape[3] * x.element_size(), 1)
    return 2 ** (min(max(L2_SHARE // bytes_of_one, 1), MOST_AT_ONCE).bit_length() - 1)


def layout(described: tuple, others: tuple, n_q: int, n_k: int, tile: Tile) -> Layout:
    """What a kernel must know of these tensors; the `described` ones may come as descriptors."""
    first = (described or others)[0]
    arch, head_dim = architecture(first.device), first.shape[3]
    padded = max(triton.next_power_of_2(head_dim), SMALLEST_DOT)
    rows = max(tile.block_q, tile.block_k)
    wide = any(rows * x.stride(2) + padded * x.stride(3) >= OFFSETS for x in (*described, *others))
    dot = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[first.dtype]
    if arch == 0 and dot is tl.bfloat16:
        dot = tl.float32  # the interpreter's bfloat16 products are wrong; its conversions are right
    ragged = n_q % tile.block_q > 0 or (tile.block_k > 0 and n_k % tile.block_k > 0)
    descriptors = arch in DESCRIPTORS and len(described) > 0 and all(map(can_be_described, described))
    return Layout(head_dim, padded, tl.int64 if wide else tl.int32, dot, ragged, descriptors)


def can_be_described(x: torch.Tensor) -> bool:
    """Whether TMA can read x: 16-bit elements, rows without gaps, start and strides on 16 bytes, nothing empty or expanded."""
    steps = [stride * x.dtype.itemsize for stride, size in zip(x.stride()[:3], x.shape[:3]) if size > 1]
    aligned = all(step > 0 and step % DESCRIPTOR_ALIGNMENT == 0 for step in steps) and x.data_ptr() % DESCRIPTOR_ALIGNMENT == 0
    return x.dtype.itemsize == 2 and aligned and 0 not in x.shape and x.stride(3) == 1


def streamed(tensors: tuple, blocks: tuple, shape: Layout) -> tuple[tuple, tuple]:
    """(descriptions, strides) of tensors loaded in loops, `blocks` rows at once: a descriptor carries its own strides."""
    if shape.descriptors:
        return tuple(map(description, tensors, blocks)), len(tensors) * (NO_STRIDES,)
    return (), tuple(x.stride() for x in tensors)


def description(x: torch.Tensor, block: int) -> dict:
    """The attributes, but for the tensor, of a descriptor that loads `block` rows of one head of x at once."""
    *sizes, head_dim = x.shape
    whole = -(-head_dim // DESCRIPTOR_ALIGNMENT) * DESCRIPTOR_ALIGNMENT  # any valid stride, where the size is 1
    strides = (*(stride if size > 1 else whole for stride, size in zip(x.stride(), sizes)), 1)
    padded = max(triton.next_power_of_2(head_dim), SMALLEST_DOT)
    return {"shape": (*sizes, head_dim), "strides": strides, "block_shape": [1, 1, block, padded], "padding": "zero"}
