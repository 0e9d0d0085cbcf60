"""Lesson 06's forward kernel, made faster one change at a time: a ladder whose losing steps are kept.

Source: Dao 2023, sections 3.1 (fewer operations that are no matrix product) and 3.3 (tiles); tiles.py says what was tried on the
library's own kernel. `STEPS` is the ladder: each step changes one thing of the step it names in `after`.

Unlike forward.py: pointers only, head_dim a power of two, a tile of keys multiplied in its own step. Each idea is a constant
of the kernel, so a step's compiled code holds what the step says and nothing else.

Traffic, in elements, as forward.py's: q, o and lse once; k and v once for each program, less the tiles it skips (SKIP).
Does not handle: rows that see no key (causal with n_q > n_k), which it refuses; with FOLD a scale below 2⁻¹²⁶ or
above 2¹²⁶, which it refuses too; masks; offsets from 2³¹ on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab.errors import error
from flashlab.kernels import masks
from flashlab.kernels.flash1 import flash1
from flashlab.kernels.forward import forward
from flashlab.kernels.powers import mixed_powers
from flashlab.kernels.primitives import FOLDED, INF, LOG2_E, place
from flashlab.kernels.tiles import INTERPRETED, Tile, architecture, heads_at_once
from flashlab.kernels.unfused import checked


@triton.jit
def take(
    state, q_tile, k, v, kv_head, rows, start, n_q, n_k, scale,
    MASKED: tl.constexpr, EXP2: tl.constexpr, FOLD: tl.constexpr, DIVIDE: tl.constexpr, MIXED: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of keys into (row_max, row_sum, acc): lesson 06's loop body. MASKED: ask every score whether its key is seen.

    EXP2: tl.exp2, not tl.exp. FOLD: scale and LOG2_E are one factor, so a score takes one multiply-add before its exponential.
    DIVIDE: acc is divided by row_sum in every step and multiplied back in the next, as in FlashAttention-1. MIXED: where no
    score is asked, a quarter of the powers of two by polynomials.
    """
    row_max, row_sum, acc = state
    keys = start + tl.arange(0, BLOCK_K)
    kv_at = (kv_head * n_k + keys[:, None]) * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    if MASKED:
        k_tile = tl.load(k + kv_at, mask=keys[:, None] < n_k, other=0.0)  # read block_k · head_dim
    else:
        k_tile = tl.load(k + kv_at)  # read block_k · head_dim
    scores = tl.dot(q_tile, k_tile.T, input_precision="ieee")
    if not FOLD:
        scores = scores * scale
    if MASKED:
        seen = keys[None, :] < n_k
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows + n_k - n_q)
        scores = tl.where(seen, scores, -INF)

    new_max = tl.maximum(row_max, tl.max(scores, 1))
    if FOLD:
        unit = scale * LOG2_E
        base = new_max * unit
        rescale = tl.exp2((row_max - new_max) * unit)  # 1 where the maximum stays; row_max * unit - base, fused, is only near it
        scores = scores * unit - base[:, None]
        weights = mixed_powers(scores) if MIXED and not MASKED else tl.exp2(scores)
    elif EXP2:
        rescale = tl.exp2((row_max - new_max) * LOG2_E)
        weights = tl.exp2((scores - new_max[:, None]) * LOG2_E)
    else:
        rescale = tl.exp(row_max - new_max)
        weights = tl.exp(scores - new_max[:, None])
    new_sum = row_sum * rescale + tl.sum(weights, 1)
    acc = acc * (row_sum * rescale if DIVIDE else rescale)[:, None]
    if MASKED:
        v_tile = tl.load(v + kv_at, mask=keys[:, None] < n_k, other=0.0)  # read block_k · head_dim
    else:
        v_tile = tl.load(v + kv_at)  # read block_k · head_dim
    acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    if DIVIDE:
        acc = acc / new_sum[:, None]
    return new_max, new_sum, acc


@triton.jit
def step_kernel(
    q, k, v, o, lse, all_heads, at_once, n_q, n_k, scale,
    SKIP: tl.constexpr, WHOLE: tl.constexpr, EXP2: tl.constexpr, FOLD: tl.constexpr, DIVIDE: tl.constexpr, MIXED: tl.constexpr, LONGEST: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse of one tile of queries of one head. SKIP: end the loop with the last key seen. WHOLE: tiles that every query
    sees whole ask no score. LONGEST: a head's last tile, the longest under causal, first. at_once heads take turns (place).
    """
    tiles = tl.cdiv(n_q, BLOCK_Q)
    tile, head = place(tl.program_id(0), tiles, all_heads, at_once)
    if LONGEST:
        tile = tiles - 1 - tile
    rows, cols = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, HEAD_DIM)[None, :]
    q_at = (head * n_q + rows) * HEAD_DIM + cols
    q_tile = tl.load(q + q_at, mask=rows < n_q, other=0.0)  # read block_q · head_dim
    row_max = tl.full([BLOCK_Q], -INF, tl.float32)
    row_sum = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    state = row_max, row_sum, acc

    end = n_k
    if CAUSAL and SKIP:
        end = tl.minimum(n_k, (tile + 1) * BLOCK_Q + n_k - n_q)
    whole = 0
    if WHOLE:
        whole = n_k // BLOCK_K * BLOCK_K
        if CAUSAL:
            whole = tl.minimum(n_k, tile * BLOCK_Q + n_k - n_q + 1) // BLOCK_K * BLOCK_K
        for start in range(0, whole, BLOCK_K):
            state = take(state, q_tile, k, v, head // GROUP, rows, start, n_q, n_k, scale, False, EXP2, FOLD, DIVIDE, MIXED, CAUSAL, HEAD_DIM, BLOCK_K)
    for start in range(whole, end, BLOCK_K):
        state = take(state, q_tile, k, v, head // GROUP, rows, start, n_q, n_k, scale, True, EXP2, FOLD, DIVIDE, MIXED, CAUSAL, HEAD_DIM, BLOCK_K)
    row_max, row_sum, acc = state

    o_tile = acc if DIVIDE else acc / row_sum[:, None]
    tl.store(o + q_at, o_tile.to(o.dtype.element_ty), mask=rows < n_q)  # write block_q · head_dim
    lse_tile = (row_max * scale if FOLD else row_max) + tl.log(row_sum)
    tl.store(lse + head * n_q + rows, lse_tile[:, None], mask=rows < n_q)  # write block_q


class Step(NamedTuple):
    """One step of the ladder: what it changes in the step `after`, what should come of it, and its tiles for head_dim 64 and 128.

    `kept`: the next steps build on it; the others were tried and left. The last fields are step_kernel's constants, and how
    many heads take turns: one, as many as the L2 holds, or all.
    """

    name: str
    after: str | None
    changes: str
    expected: str
    kept: bool
    tiles: dict[int, Tile]
    skip: bool = True
    whole: bool = False
    exp2: bool = True
    fold: bool = False
    divide: bool = False
    mixed: bool = False
    longest: bool = False
    heads: str = "one"
    kernel: str = "step_kernel"

    def tile(self, head_dim: int) -> Tile:
        """For any head_dim up to 128: that of 64, or of 128."""
        return self.tiles[64 if head_dim <= 64 else 128]


def _both(*tile) -> dict[int, Tile]:
    return {64: Tile(*tile), 128: Tile(*tile)}


_TALL, _WARPS = _both(128, 64, 4, 3), _both(128, 64, 8, 3)
_FIT = {64: Tile(64, 128, 4, 2, 168), 128: Tile(128, 64, 8, 2, 128)}  # the library's own
_SMALL = Step("small", None, "lesson 06's kernel as you traced it: 16 × 16", "k and v pass once for each 16 queries, and 16 rows fill no tensor core", True, _both(16, 16, 4, 3))
_TILES = _SMALL._replace(
    name="tiles", after="small", changes="tiles of 128 × 64", expected="an eighth of the bytes, and products large enough for all of a tensor core", tiles=_TALL
)
_8WARPS = _TILES._replace(name="warps", after="tiles", changes="8 warps share a program's tile, not 4", expected="half the registers a thread: no spills at head_dim 128", tiles=_WARPS)
_FITTING = _8WARPS._replace(
    name="fit", after="warps", changes="2 stages and a cap on registers, so that more programs fit",
    expected="while one program's warps do softmax, another's keep the tensor cores busy", tiles=_FIT,
)  # fmt: skip
_FOLD = _FITTING._replace(name="fold", after="fit", changes="scale and log₂e in one factor", expected="one multiply-add a score instead of three operations", fold=True)
_WHOLE = _FOLD._replace(name="whole", after="fold", changes="tiles seen whole are not compared", expected="no comparison and no choice in 15 of 16 tiles or more", whole=True)
_LONGEST = _WHOLE._replace(name="longest", after="whole", changes="a head's longest tile first", expected="little: the last heads' long programs still start late", longest=True)
_L2 = _LONGEST._replace(name="l2", after="longest", changes="as many heads at a time as the L2 holds", expected="their longest programs start first, so none is left alone at the end", heads="l2")
_LIBRARY = _L2._replace(
    name="library", after="l2", changes="the library's loop: TMA, the next tile's keys, two chains a row",
    expected="no warp waits for a tile of k, nor for a long chain of comparisons", kernel="forward_kernel",
)  # fmt: skip

# In the order in which they are tried. What `longest`, `l2` and `library` gain apart is in tiles.py.
STEPS = {
    step.name: step
    for step in (
        Step("flash1", None, "FlashAttention-1's loop order", "one program a head, and o travels on each pass", False, {}, kernel="flash1_kernel"),
        _SMALL,
        _TILES,
        _TILES._replace(name="all-tiles", after="tiles", changes="causal tiles masked, not skipped", expected="twice the tiles, nearly twice the time", kept=False, skip=False),
        _TILES._replace(name="divide", after="tiles", changes="acc divided in every step", expected="more operations that are no product", kept=False, divide=True),
        _TILES._replace(name="e", after="tiles", changes="tl.exp instead of tl.exp2", expected="nothing: the compiler writes the same instructions", kept=False, exp2=False),
        _TILES._replace(name="wide", after="tiles", changes="tiles of 128 × 128, 4 warps", expected="the same bytes, and registers spilled to memory at 128", kept=False, tiles=_both(128, 128, 4, 2)),
        _8WARPS,
        _8WARPS._replace(name="stages", after="warps", changes="4 stages instead of 3", expected="nothing: a tile ahead is enough", kept=False, tiles=_both(128, 64, 8, 4)),
        _FITTING,
        _FOLD,
        _WHOLE,
        _LONGEST,
        _L2,
        _L2._replace(name="all-heads", after="l2", changes="all heads take turns", expected="k and v of all heads do not fit the L2: more DRAM", kept=False, heads="all"),
        _L2._replace(
            name="mixed", after="l2", changes="a quarter of the powers of two by polynomials",
            expected="powers take as long as products at head_dim 64: a quarter less of them", kept=False, mixed=True,
        ),
        _LIBRARY,
        _LIBRARY._replace(
            name="overlap", after="library", changes="weights · v left running in the next softmax", expected="registers for two tiles of scores: fewer programs or spills",
            kept=False, tiles={64: Tile(64, 128, 4, 2, overlap=True), 128: Tile(128, 64, 8, 2, overlap=True)},
        ),
    )
}  # fmt: skip


def step(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None, tile: Tile | None = None):
    """(o like q, lse (batch, heads, n_q) float32) by one step of the ladder; 16-bit tensors on a GPU.

    In the interpreter tiles are 16 × 16, and bfloat16 is computed in float32, since its products are wrong there. Raises
    LookupError for a step that there is not, ValueError or TypeError for what one cannot take.

    >>> from flashlab.runtime import device
    >>> q, k, v = (torch.ones(1, 2, n, 16, device=device()) for n in (3, 5, 5))
    >>> o, lse = step("fold", q, k, v, causal=True)
    >>> o.shape, lse.shape
    (torch.Size([1, 2, 3, 16]), torch.Size([1, 2, 3]))
    """
    if name not in STEPS:
        raise error("step", given=name, allowed=", ".join(STEPS))
    scale = checked(q, k, v, scale)
    one, interpreted = STEPS[name], architecture(q.device) == 0
    tile = tile or (INTERPRETED if interpreted else one.tiles and one.tile(q.shape[3]) or None)
    if one.kernel == "flash1_kernel":
        return flash1(q, k, v, causal=causal, scale=scale, tile=tile)
    if one.kernel == "forward_kernel":
        mask = masks.causal() if causal else masks.Mask()
        with torch.cuda.device_of(q):
            return forward(q, k, v, *masks.decode(*mask.encode()), scale, tile=tile)
    q, k, v = (x.contiguous() for x in (q, k, v))
    _fits(q, k, causal, one.fold, scale)
    if interpreted and q.dtype == torch.bfloat16:
        o, lse = step(name, q.float(), k.float(), v.float(), causal=causal, scale=scale, tile=tile)
        return o.to(q.dtype), lse
    (batch, heads, n_q, head_dim), (kv_heads, n_k) = q.shape, k.shape[1:3]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    at_once = {"one": 1, "l2": heads_at_once(k), "all": batch * heads}[one.heads]
    constants = {"SKIP": one.skip, "WHOLE": one.whole, "EXP2": one.exp2, "FOLD": one.fold, "DIVIDE": one.divide, "MIXED": one.mixed, "LONGEST": one.longest}
    sizes = {"GROUP": heads // kv_heads, "CAUSAL": causal, "HEAD_DIM": head_dim, "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
    with torch.cuda.device_of(q):
        grid = (triton.cdiv(n_q, tile.block_q) * batch * heads,)
        step_kernel[grid](q, k, v, o, lse, batch * heads, at_once, n_q, n_k, scale, **constants, **sizes, **tile.options())
    return o, lse


def _fits(q: torch.Tensor, k: torch.Tensor, causal: bool, fold: bool, scale: float) -> None:
    """Raises ValueError for what lesson 06's kernel leaves out."""
    (heads, n_q, head_dim), (kv_heads, n_k) = q.shape[1:], k.shape[1:3]
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise error("step_inputs", needed="a head_dim that is a power of two from 16 on", argument="q", given=f"head_dim {head_dim}")
    if not n_q:
        raise error("step_inputs", needed="at least one query", argument="q", given="0 rows")
    if fold and not FOLDED[0] <= scale <= FOLDED[1]:
        raise error("step_inputs", needed="a scale from 2⁻¹²⁶ to 2¹²⁶ where it is folded into the exponent", argument="the call", given=f"scale {scale:g}")
    if not n_k or (causal and n_q > n_k):
        raise error("step_inputs", needed="at least one key for each query", argument="q", given=f"{n_q} rows, k {n_k}")
