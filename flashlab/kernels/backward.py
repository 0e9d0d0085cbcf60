"""FlashAttention-2's backward pass in Triton: the weights are computed again from q, k and lse, tile by tile.

Source: Dao 2023, Algorithm 2; Dao et al. 2022, appendix B.2 for delta.

Two variants. Deterministic: `keys_kernel` owns a tile of keys and loops over queries, for dk and dv; `queries_kernel`
owns a tile of queries and loops over keys, for dq. Each gradient has one writer, so no atomics, and the same bits every
time; the price is that scores and dweights are computed twice, 7 matrix products instead of 5 (8 where dk and dv have a
launch each: over_queries). Fused: `keys_kernel`
with FUSED=True also adds its share of dq to a float32 buffer by atomics, 5 products; the order of the additions, and
with it the last bits of dq, changes from run to run.

With weights = exp(scores - lse), dweights = do · vᵀ and delta = rowsum(do · o) - dlse:

    dscores = weights · (dweights - delta)    dv = weightsᵀ · do    dk = scale · dscoresᵀ · q    dq = scale · dscores · k

Here do · vᵀ, and each product for dv, dk and dq, is a matrix product, the others are element by element; a mask that changes
scores multiplies dscores by its slope. dlse is lse's own gradient: it enters here because d lse / d score = weights. A sink
needs nothing more, since lse has it in its sum; its own gradient is taken from delta (api.py).

Unlike forward.py, whose header explains the constants: no running maximum, since lse is known, so FOLD takes negative and tiny scales, too.
Does not handle: double backward, gradients of mask tensors; rows whose largest score is far from 0: float32 rounds it and lse, so their
gradients are off by about its size · 2⁻²³, percents from 10⁶ on; with FOLD they pass float32's range near 10⁹.

Traffic, in elements: delta reads o, do and dlse (if given) once and is written once; a keys program (of each launch, where
dk and dv have their own) reads its k and v, writes dk and dv, and reads q, do, lse and delta of the tiles that see it; a
queries program reads its q, do, lse and delta, writes dq, and reads k and v of the tiles it sees. Fused: dq in float32 is zeroed, added to once a tile pair, read once, and written once in q's dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashlab.kernels.autotune import tuned
from flashlab.kernels.joined_masks import hide, key_range, query_range, rescore, rescore_slope
from flashlab.kernels.launch import Plan, planned
from flashlab.kernels.primitives import FOLDED, INF, LOG2_E, load_tile, place, store_tile, tile_edges
from flashlab.kernels.tiles import SMALLEST_DOT, BackwardTiles, backward_tiles, heads_at_once, layout, streamed


@triton.jit
def delta_kernel(o, do, dlse, delta, o_strides, do_strides, dlse_strides, heads, n_q, LAYOUT: tl.constexpr, BLOCK_Q: tl.constexpr):
    """delta (batch, heads, n_q) = rowsum(do · o) - dlse: what each of a row's dweights loses."""
    tiles = tl.cdiv(n_q, BLOCK_Q)
    program = tl.program_id(0)
    first, batch, head = program % tiles * BLOCK_Q, program // tiles // heads, program // tiles % heads
    o_tile = load_tile(o, o_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT).to(tl.float32)
    do_tile = load_tile(do, do_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT).to(tl.float32)
    row_delta = tl.sum(o_tile * do_tile, 1)
    rows = first + tl.arange(0, BLOCK_Q)
    if dlse is not None:
        at = batch.to(tl.int64) * dlse_strides[0] + head.to(tl.int64) * dlse_strides[1] + rows.to(tl.int64) * dlse_strides[2]
        row_delta -= tl.load(dlse + at, mask=rows < n_q, other=0.0).to(tl.float32)
    tl.store(delta + (batch.to(tl.int64) * heads + head) * n_q + rows, row_delta, mask=rows < n_q)


@triton.jit
def load_rows(lse, delta, batch, head, heads, first, n_q, FOLD: tl.constexpr, BLOCK_Q: tl.constexpr, LAYOUT: tl.constexpr):
    """lse (with FOLD lse · LOG2_E) and delta of a tile of queries. Rows past the end and rows whose sum is empty get +inf: weights of 0."""
    rows = first + tl.arange(0, BLOCK_Q)
    start = (batch.to(tl.int64) * heads + head) * n_q
    if LAYOUT.ragged:
        row_lse = tl.load(lse + start + rows, mask=rows < n_q, other=INF)
        row_delta = tl.load(delta + start + rows, mask=rows < n_q, other=0.0)
    else:
        row_lse = tl.load(lse + start + rows)
        row_delta = tl.load(delta + start + rows)
    row_lse = row_lse * LOG2_E if FOLD else row_lse
    return tl.where(row_lse == -INF, INF, row_lse), row_delta  # asked after the product, which a sink near float32's least number makes -inf


@triton.jit
def weights_again(scores, row_lse, batch, head, i, j, inside, scale, mask_params,
                  PREDICATE: tl.constexpr, FOLD: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr):  # fmt: skip
    """(weights, slope) of a tile of plain products q · k, in either orientation; slope is d rescored / d score.

    row_lse is lse, with FOLD lse · LOG2_E (load_rows); inside says which keys exist. Rows past the end have row_lse +inf: no weights.
    """
    slope = 1.0
    if FOLD:
        scores = scores * (scale * LOG2_E)
    else:
        slope = rescore_slope(MASKS, mask_params, scores * scale, batch, head, i, j)
        scores = rescore(MASKS, mask_params, scores * scale, batch, head, i, j)
    if PREDICATE:
        scores = hide(MASKS, mask_params, scores, batch, head, i, j)
        if LAYOUT.ragged:
            scores = tl.where(inside, scores, -INF)
    return tl.exp2(scores - row_lse if FOLD else (scores - row_lse) * LOG2_E), slope


@triton.jit
def over_queries(
    dk, dv, k_tile, v_tile, q, do, lse, delta, dq, q_strides, do_strides, batch, head, heads, at, lo, hi, gap_lo, gap_hi,
    n_q, n_k, scale, mask_params,
    PREDICATE: tl.constexpr, FOLD: tl.constexpr, FUSED: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, MASKS: tl.constexpr,
    LAYOUT: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Add what the queries from lo to hi, less those from gap_lo to gap_hi, give to dk (not yet scaled) and dv of one key tile.

    at are the tile's keys, standing up (block_k, 1). DK and DV: at head_dim 256 both sums of the tiles of sm_90 and sm_100
    do not fit one program's registers, so there is a launch for each (tiles.py). FUSED implies both.
    """
    PADDED: tl.constexpr = LAYOUT.padded
    j, inside = at, at < n_k
    if LAYOUT.ragged:
        j = tl.minimum(at, n_k - 1)  # a mask may index a tensor with it
    for start in tl.range(lo, hi - (gap_hi - gap_lo), BLOCK_Q):
        if PREDICATE:
            start = tl.where(start < gap_lo, start, start + (gap_hi - gap_lo))
        start = tl.multiple_of(start, BLOCK_Q)
        q_tile = load_tile(q, q_strides, batch, head, start, n_q, BLOCK_Q, PREDICATE, LAYOUT)  # read block_q · head_dim
        row_lse, row_delta = load_rows(lse, delta, batch, head, heads, start, n_q, FOLD, BLOCK_Q, LAYOUT)  # read 2 · block_q
        rows = start + tl.arange(0, BLOCK_Q)
        i = (rows + (n_k - n_q))[None, :]
        if LAYOUT.ragged:
            i = tl.minimum(i, n_k - 1)
        scores = tl.dot(k_tile, q_tile.T, input_precision="ieee")  # (block_k, block_q): transposed, as dk and dv need it
        weights, slope = weights_again(scores, row_lse[None, :], batch, head, i, j, inside, scale, mask_params, PREDICATE, FOLD, MASKS, LAYOUT)
        do_tile = load_tile(do, do_strides, batch, head, start, n_q, BLOCK_Q, PREDICATE, LAYOUT)  # read block_q · head_dim
        if DV:
            dv = tl.dot(weights.to(LAYOUT.dot), do_tile, dv, input_precision="ieee")
        if DK:
            dweights = tl.dot(v_tile, do_tile.T, input_precision="ieee")
            dscores = (weights * (dweights - row_delta[None, :]) * slope).to(LAYOUT.dot)
            dk = tl.dot(dscores, q_tile, dk, input_precision="ieee")
        if FUSED:
            dq_tile = tl.dot(dscores.T, k_tile, input_precision="ieee") * scale  # (block_q, padded)
            cols = tl.arange(0, PADDED)
            dq_rows = dq + ((batch.to(tl.int64) * heads + head) * n_q + start) * PADDED
            offsets = tl.arange(0, BLOCK_Q)[:, None] * PADDED + cols[None, :]
            if PREDICATE and LAYOUT.ragged:  # relaxed: each addition is whole, and nothing else waits for it
                tl.atomic_add(dq_rows + offsets, dq_tile, mask=(rows < n_q)[:, None], sem="relaxed")  # add block_q · padded
            else:
                tl.atomic_add(dq_rows + offsets, dq_tile, sem="relaxed")
    return dk, dv


@triton.jit
def keys_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
    all_heads, at_once, heads, n_q, n_k, scale, mask_params,
    GROUP: tl.constexpr, FOLD: tl.constexpr, LIMITED: tl.constexpr, FUSED: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    MASKS: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dk (if DK) and dv (if DV) of one tile of keys of one key head, summed over its GROUP query heads; FUSED: and a share of dq."""
    PADDED: tl.constexpr = LAYOUT.padded
    kv_heads = heads // GROUP
    tile, kv_head = place(tl.program_id(0), tl.cdiv(n_k, BLOCK_K), all_heads // GROUP, at_once)
    first = tile * BLOCK_K  # the first tile first: under causal it is the longest
    batch, kv_head = kv_head // kv_heads, kv_head % kv_heads
    k_tile = load_tile(k, k_strides, batch, kv_head, first, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
    v_tile = load_tile(v, v_strides, batch, kv_head, first, n_k, BLOCK_K, True, LAYOUT)  # read block_k · head_dim
    dk_tile = tl.zeros([BLOCK_K, PADDED], tl.float32)
    dv_tile = tl.zeros([BLOCK_K, PADDED], tl.float32)
    last = tl.minimum(first + BLOCK_K, n_k) - 1
    at = first + tl.arange(0, BLOCK_K)[:, None]
    past = n_k - n_q  # queries are counted by their place among the keys
    for g in tl.range(0, GROUP):
        head = kv_head * GROUP + g
        lo, hi, full_lo, full_hi = query_range(MASKS, mask_params, batch, head, first, last, past, n_k)
        if LAYOUT.ragged:
            full_hi = tl.where(first + BLOCK_K <= n_k, full_hi, full_lo)  # keys past the end are 0, and exp2(0 - lse) may be inf
        lo, full_lo, full_hi, hi = tile_edges(lo - past, hi - past, full_lo - past, full_hi - past, n_q, BLOCK_Q)  # rows of q
        if LAYOUT.ragged or LIMITED:
            dk_tile, dv_tile = over_queries(
                dk_tile, dv_tile, k_tile, v_tile, q, do, lse, delta, dq, q_strides, do_strides, batch, head, heads, at, lo, hi,
                full_lo, full_hi, n_q, n_k, scale, mask_params, True, FOLD, FUSED, DK, DV, MASKS, LAYOUT, BLOCK_Q)  # fmt: skip
        dk_tile, dv_tile = over_queries(
            dk_tile, dv_tile, k_tile, v_tile, q, do, lse, delta, dq, q_strides, do_strides, batch, head, heads, at, full_lo, full_hi,
            0, 0, n_q, n_k, scale, mask_params, False, FOLD, FUSED, DK, DV, MASKS, LAYOUT, BLOCK_Q)  # fmt: skip
    if DK:
        store_tile(dk, dk_strides, batch, kv_head, first, n_k, dk_tile * scale, BLOCK_K, LAYOUT)  # write block_k · head_dim
    if DV:
        store_tile(dv, dv_strides, batch, kv_head, first, n_k, dv_tile, BLOCK_K, LAYOUT)  # write block_k · head_dim


@triton.jit
def over_keys(
    dq, q_tile, do_tile, row_lse, row_delta, k, v, k_strides, v_strides, batch, head, kv_head, i, lo, hi, gap_lo, gap_hi, n_k, scale,
    mask_params, PREDICATE: tl.constexpr, FOLD: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Add what the keys from lo to hi, less those from gap_lo to gap_hi, give to dq (not yet scaled) of one query tile."""
    for start in tl.range(lo, hi - (gap_hi - gap_lo), BLOCK_K):
        if PREDICATE:
            start = tl.where(start < gap_lo, start, start + (gap_hi - gap_lo))
        start = tl.multiple_of(start, BLOCK_K)
        k_tile = load_tile(k, k_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
        scores = tl.dot(q_tile, k_tile.T, input_precision="ieee")  # (block_q, block_k)
        j = start + tl.arange(0, BLOCK_K)[None, :]
        inside = j < n_k
        if LAYOUT.ragged:
            j = tl.minimum(j, n_k - 1)
        weights, slope = weights_again(scores, row_lse[:, None], batch, head, i, j, inside, scale, mask_params, PREDICATE, FOLD, MASKS, LAYOUT)
        v_tile = load_tile(v, v_strides, batch, kv_head, start, n_k, BLOCK_K, PREDICATE, LAYOUT)  # read block_k · head_dim
        dweights = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        dscores = (weights * (dweights - row_delta[:, None]) * slope).to(LAYOUT.dot)
        dq = tl.dot(dscores, k_tile, dq, input_precision="ieee")
    return dq


@triton.jit
def queries_kernel(
    q, k, v, do, lse, delta, dq, q_strides, k_strides, v_strides, do_strides, dq_strides, all_heads, at_once, heads, n_q, n_k, scale, mask_params,
    GROUP: tl.constexpr, FOLD: tl.constexpr, LIMITED: tl.constexpr, MASKS: tl.constexpr, LAYOUT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head."""
    PADDED: tl.constexpr = LAYOUT.padded
    tiles = tl.cdiv(n_q, BLOCK_Q)
    tile, head = place(tl.program_id(0), tiles, all_heads, at_once)
    first = (tiles - 1 - tile) * BLOCK_Q  # the last tile first: under causal it is the longest
    batch, head = head // heads, head % heads
    kv_head = head // GROUP
    q_tile = load_tile(q, q_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
    do_tile = load_tile(do, do_strides, batch, head, first, n_q, BLOCK_Q, True, LAYOUT)  # read block_q · head_dim
    row_lse, row_delta = load_rows(lse, delta, batch, head, heads, first, n_q, FOLD, BLOCK_Q, LAYOUT)  # read 2 · block_q
    dq_tile = tl.zeros([BLOCK_Q, PADDED], tl.float32)
    first_place = first + n_k - n_q  # from here on as in forward_kernel
    last_place = tl.minimum(first + BLOCK_Q, n_q) - 1 + n_k - n_q
    i = tl.minimum(first_place + tl.arange(0, BLOCK_Q), n_k - 1)[:, None]
    lo, hi, full_lo, full_hi = key_range(MASKS, mask_params, batch, head, first_place, last_place, 0, n_k)
    lo, full_lo, full_hi, hi = tile_edges(lo, hi, full_lo, full_hi, n_k, BLOCK_K)
    dq_tile = over_keys(dq_tile, q_tile, do_tile, row_lse, row_delta, k, v, k_strides, v_strides, batch, head, kv_head, i, full_lo,
                        full_hi, 0, 0, n_k, scale, mask_params, False, FOLD, MASKS, LAYOUT, BLOCK_K)  # fmt: skip
    if LAYOUT.ragged or LIMITED:
        dq_tile = over_keys(dq_tile, q_tile, do_tile, row_lse, row_delta, k, v, k_strides, v_strides, batch, head, kv_head, i, lo,
                            hi, full_lo, full_hi, n_k, scale, mask_params, True, FOLD, MASKS, LAYOUT, BLOCK_K)  # fmt: skip
    store_tile(dq, dq_strides, batch, head, first, n_q, dq_tile * scale, BLOCK_Q, LAYOUT)  # write block_q · head_dim


def backward(q, k, v, o, lse, do, dlse, masks, mask_params, scale, *, fused=False, tiles: BackwardTiles | None = None):
    """(dq, dk, dv, delta) of forward(q, k, v, masks, mask_params, scale) -> (o, lse); dlse may be None. fused: atomics for dq."""
    table = backward_tiles(q) if tiles is None else tiles
    delta = launch_delta(o, do, dlse, table.delta)
    if lse.numel() == 0 or k.shape[2] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), delta
    given = (q, k, v, do, lse, delta, masks, mask_params, float(scale))  # Triton would compile an int of 1 in as a constant
    if fused:
        return *launch_keys(*given, fused=True, tiles=(table.fused,)), delta
    for_keys, for_queries = table.keys, table.queries
    if tiles is None:
        for_keys = tuned(keys_kernel, q, k.shape[2], masks, for_keys, lambda trial: launch_keys(*given, fused=False, tiles=trial))
        for_queries = tuned(queries_kernel, q, k.shape[2], masks, for_queries, lambda trial: launch_queries(*given, tile=trial))
    _, dk, dv = launch_keys(*given, fused=False, tiles=for_keys)
    return launch_queries(*given, tile=for_queries), dk, dv, delta


def launch_delta(o, do, dlse, tile):
    """delta (batch, heads, n_q) float32."""
    delta = torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    if delta.numel():
        plan_delta(o, do, dlse, tile).launch((o, do, dlse, delta))
    return delta


@planned
def plan_delta(o, do, dlse, tile) -> Plan:
    batch, heads, n_q, _ = o.shape
    numbers = (o.stride(), do.stride(), (0, 0, 0) if dlse is None else dlse.stride(), heads, n_q)
    constants = {"LAYOUT": layout((), (o, do), n_q, 0, tile), "BLOCK_Q": tile.block_q}
    return Plan(delta_kernel, -(-n_q // tile.block_q) * heads * batch, numbers, constants, tile.options())


def launch_keys(q, k, v, do, lse, delta, masks, mask_params, scale, *, fused, tiles):
    """(dq, dk, dv); dq is None unless fused. One tile: one launch for dk and dv; two tiles: one launch for dk, then one for dv."""
    dk, dv, added = torch.empty_like(k), torch.empty_like(v), None
    if fused:
        padded = max(triton.next_power_of_2(q.shape[3]), SMALLEST_DOT)
        added = torch.zeros((*q.shape[:3], padded), dtype=torch.float32, device=q.device)
    fold = abs(scale) <= FOLDED[1] and not any(masks.rescores)
    for n, tile in enumerate(tiles):
        plan = plan_keys(q, k, v, do, lse, delta, dk, dv, masks, mask_params, fold, fused, n == 0, n == len(tiles) - 1, tile)
        plan.launch((q, k, v, do, lse, delta, added, dk, dv), scale, mask_params)
    return torch.empty_like(q).copy_(added[..., : q.shape[3]]) if fused else None, dk, dv


@planned
def plan_keys(q, k, v, do, lse, delta, dk, dv, masks, mask_params, fold, fused, with_dk, with_dv, tile) -> Plan:
    batch, heads, n_q, _ = q.shape
    kv_heads, n_k = k.shape[1:3]
    shape = layout((q, k, v, do), (dk, dv), n_q, n_k, tile)
    described, strides = streamed((q, k, v, do), (tile.block_q, tile.block_k, tile.block_k, tile.block_q), shape)
    sizes = (batch * heads, heads_at_once(q, heads // kv_heads), heads, n_q, n_k)
    wanted = {"FUSED": fused, "DK": with_dk, "DV": with_dv}
    constants = {"GROUP": heads // kv_heads, "FOLD": fold, "LIMITED": any(masks.limits), **wanted, **_shapes(shape, masks, tile)}
    programs = -(-n_k // tile.block_k) * kv_heads * batch
    return Plan(keys_kernel, programs, (*strides, dk.stride(), dv.stride(), *sizes), constants, tile.options(), described)


def launch_queries(q, k, v, do, lse, delta, masks, mask_params, scale, *, tile):
    """dq."""
    dq = torch.empty_like(q)
    fold = abs(scale) <= FOLDED[1] and not any(masks.rescores)
    plan = plan_queries(q, k, v, do, lse, delta, dq, masks, mask_params, fold, tile)
    plan.launch((q, k, v, do, lse, delta, dq), scale, mask_params)
    return dq


@planned
def plan_queries(q, k, v, do, lse, delta, dq, masks, mask_params, fold, tile) -> Plan:
    batch, heads, n_q, _ = q.shape
    n_k = k.shape[2]
    shape = layout((q, k, v, do), (dq,), n_q, n_k, tile)
    described, strides = streamed((q, k, v, do), (tile.block_q, tile.block_k, tile.block_k, tile.block_q), shape)
    sizes = (batch * heads, heads_at_once(k), heads, n_q, n_k)
    constants = {"GROUP": heads // k.shape[1], "FOLD": fold, "LIMITED": any(masks.limits), **_shapes(shape, masks, tile)}
    programs = -(-n_q // tile.block_q) * heads * batch
    return Plan(queries_kernel, programs, (*strides, dq.stride(), *sizes), constants, tile.options(), described)


def _shapes(shape, masks, tile) -> dict:
    return {"MASKS": masks, "LAYOUT": shape, "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
