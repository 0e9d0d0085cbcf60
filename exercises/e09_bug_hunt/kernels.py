"""Eight kernels for exercise e09. Each does one thing wrong, and only one.

All share their arguments. q, o, do, dq are (heads, n_q, HEAD_DIM): a row lies at head · q_head + row · q_row. k, v, dk, dv
are (kv_heads, n_k, HEAD_DIM): a row lies at kv_head · k_head + row · k_row. lse and delta are (heads, n_q), close
together. Neighbouring query heads share a key head. Causal is aligned to the bottom right: query i sees key j where
j <= i + n_k - n_q. A query that sees no key has o = 0 and lse = -inf.

Grids: (tiles of queries, heads), for kernel_7 (tiles of keys, kv_heads). HEAD_DIM, BLOCK_Q and BLOCK_K are 16.
"""

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def kernel_1(
    q, k, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """lse of every query: q and k are read, a tile of k at a time, and no v."""
    first, head = tl.program_id(0) * BLOCK_Q, tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    rows, d = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD_DIM)
    q_tile = tl.load(q + head * q_head + rows[:, None] * q_row + d[None, :], mask=rows[:, None] < n_q, other=0.0)
    row_max = tl.full([BLOCK_Q], -INF, tl.float32)
    row_sum = tl.zeros([BLOCK_Q], tl.float32)
    end = n_k
    if CAUSAL:
        end = tl.minimum(n_k, first + BLOCK_Q + n_k - n_q)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k_tile = tl.load(k + kv_head * k_head + keys[:, None] * k_row + d[None, :], mask=keys[:, None] < n_k, other=0.0)
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        if CAUSAL:
            scores = tl.where(keys[None, :] <= rows[:, None] + n_k - n_q, scores, -INF)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        shift = tl.where(new_max == -INF, 0.0, new_max)
        row_sum = row_sum * tl.exp(row_max - shift) + tl.sum(tl.exp(scores - shift[:, None]), 1)
        row_max = new_max
    row_lse = tl.where(row_sum > 0, row_max + tl.log(tl.where(row_sum > 0, row_sum, 1.0)), -INF)
    tl.store(lse + head * n_q + rows, row_lse, mask=rows < n_q)


@triton.jit
def kernel_2(
    q, k, v, o, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse, the loop over numbered tiles of keys."""
    tile, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    rows, d = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, HEAD_DIM)[None, :]
    q_tile = tl.load(q + head * q_head + rows * q_row + d, mask=rows < n_q, other=0.0)
    row_max = tl.full([BLOCK_Q, 1], -INF, tl.float32)
    row_sum = tl.zeros([BLOCK_Q, 1], tl.float32)
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    tiles = tl.cdiv(n_k, BLOCK_K)
    if CAUSAL:
        tiles = tl.minimum(tiles, tl.cdiv((tile + 1) * BLOCK_Q, BLOCK_K))
    for number in range(tiles):
        keys = number * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
        at = kv_head * k_head + keys.T * k_row + d
        k_tile = tl.load(k + at, mask=keys.T < n_k, other=0.0)
        v_tile = tl.load(v + at, mask=keys.T < n_k, other=0.0)
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        seen = keys < n_k
        if CAUSAL:
            seen = seen & (rows >= keys)
        scores = tl.where(seen, scores, -INF)
        new_max = tl.maximum(row_max, tl.max(scores, 1)[:, None])
        shift = tl.where(new_max == -INF, 0.0, new_max)
        weights, rescale = tl.exp(scores - shift), tl.exp(row_max - shift)
        row_sum = row_sum * rescale + tl.sum(weights, 1)[:, None]
        acc = tl.dot(weights, v_tile, acc * rescale, input_precision="ieee")
        row_max = new_max
    whole = tl.where(row_sum > 0, row_sum, 1.0)
    tl.store(o + head * q_head + rows * q_row + d, acc / whole, mask=rows < n_q)
    tl.store(lse + head * n_q + rows, tl.where(row_sum > 0, row_max + tl.log(whole), -INF), mask=rows < n_q)


@triton.jit
def kernel_3(
    q, k, v, o, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse, with scores in units of log2(e), so that exp2 does for exp."""
    head, first = tl.program_id(1), tl.program_id(0) * BLOCK_Q
    kv_head = head // (heads // kv_heads)
    i, d = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD_DIM)
    own, inside = head * q_head + i[:, None] * q_row + d[None, :], i[:, None] < n_q
    q_tile = tl.load(q + own, mask=inside, other=0.0) * (scale * LOG2_E)
    top = tl.full([BLOCK_Q], -INF, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    past = n_k - n_q
    stop = tl.minimum(n_k, first + BLOCK_Q + past) if CAUSAL else n_k
    for start in range(0, stop, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        at, there = kv_head * k_head + j[:, None] * k_row + d[None, :], j[:, None] < n_k
        k_tile = tl.load(k + at, mask=there, other=0.0)
        scores = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        scores = tl.where(j[None, :] < n_k, scores, -INF)
        if CAUSAL:
            scores = tl.where(j[None, :] <= i[:, None] + past, scores, -INF)
        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == -INF, 0.0, higher)
        weights = tl.exp2(scores - safe[:, None])
        total = total * tl.exp2(top - safe) + tl.sum(weights, 1)
        v_tile = tl.load(v + at, mask=there, other=0.0)
        acc = tl.dot(weights, v_tile, acc, input_precision="ieee")
        top = higher
    total = tl.where(top == -INF, 1.0, total)
    tl.store(o + own, acc / total[:, None], mask=inside)
    tl.store(lse + head * n_q + i, (top + tl.log2(total)) / LOG2_E, mask=i < n_q)


@triton.jit
def kernel_4(
    q, k, v, o, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse, on transposed tiles: keys stand up, queries lie down."""
    first, head = tl.program_id(0) * BLOCK_Q, tl.program_id(1)
    kv_head = head % kv_heads
    q_base, k_base = head * q_head, kv_head * k_head
    rows, d = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD_DIM)
    q_tile = tl.load(q + q_base + d[:, None] + rows[None, :] * q_row, mask=rows[None, :] < n_q, other=0.0)
    largest, row_sum = tl.full([BLOCK_Q], -INF, tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([HEAD_DIM, BLOCK_Q], tl.float32)
    end = n_k
    if CAUSAL:
        end = tl.minimum(end, n_k - n_q + first + BLOCK_Q)
    for start in range(0, end, BLOCK_K):
        keys = (start + tl.arange(0, BLOCK_K))[:, None]
        tile = keys * k_row + d[None, :]
        scores = scale * tl.dot(tl.load(k + k_base + tile, mask=keys < n_k, other=0.0), q_tile, input_precision="ieee")
        hidden = keys >= n_k
        if CAUSAL:
            hidden = hidden | (keys > rows[None, :] + (n_k - n_q))
        scores = tl.where(hidden, -INF, scores)
        grown = tl.maximum(largest, tl.max(scores, 0))
        base = tl.where(grown == -INF, 0.0, grown)
        weights = tl.exp(scores - base[None, :])
        fade = tl.exp(largest - base)
        v_tile = tl.load(v + k_base + tile, mask=keys < n_k, other=0.0)
        acc = tl.dot(v_tile.T, weights, acc * fade[None, :], input_precision="ieee")
        row_sum = row_sum * fade + tl.sum(weights, 0)
        largest = grown
    empty = largest == -INF
    row_sum = tl.where(empty, 1.0, row_sum)
    tl.store(o + q_base + d[:, None] + rows[None, :] * q_row, acc / row_sum[None, :], mask=rows[None, :] < n_q)
    tl.store(lse + head * n_q + rows, largest + tl.log(row_sum), mask=rows < n_q)


@triton.jit
def kernel_5(
    q, k, v, o, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse in two loops: the first reads k for lse, the second reads k and v for o and needs no rescaling."""
    first, head = tl.program_id(0) * BLOCK_Q, tl.program_id(1)
    rows, d = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD_DIM)
    own = q_head * head + q_row * rows[:, None] + d[None, :]
    k_start = k_head * (head // (heads // kv_heads))
    q_tile = tl.load(q + own, mask=rows[:, None] < n_q, other=0.0)
    end = n_k
    if CAUSAL:
        end = tl.minimum(n_k, first + BLOCK_Q + n_k - n_q)
    row_max, row_sum = tl.full([BLOCK_Q], -INF, tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k_tile = tl.load(k + k_start + k_row * keys[:, None] + d[None, :], mask=keys[:, None] < n_k, other=0.0)
        limit = rows[:, None] + n_k - n_q if CAUSAL else n_k - 1 + 0 * rows[:, None]
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        scores = tl.where((keys[None, :] < n_k) & (keys[None, :] <= limit), scores, -INF)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        shift = tl.where(new_max == -INF, 0.0, new_max)
        row_sum = row_sum * tl.exp(row_max - shift) + tl.sum(tl.exp(scores - shift[:, None]), 1)
        row_max = new_max
    row_lse = row_max + tl.log(tl.where(row_max == -INF, 1.0, row_sum))
    tl.store(lse + head * n_q + rows, row_lse, mask=rows < n_q)
    row_lse = tl.where(row_lse == -INF, INF, row_lse)
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        at = k_start + k_row * keys[:, None] + d[None, :]
        k_tile = tl.load(k + at)
        limit = rows[:, None] + n_k - n_q if CAUSAL else n_k - 1 + 0 * rows[:, None]
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        scores = tl.where((keys[None, :] < n_k) & (keys[None, :] <= limit), scores, -INF)
        weights = tl.exp(scores - row_lse[:, None])
        acc += tl.dot(weights, tl.load(v + at, mask=keys[:, None] < n_k, other=0.0), input_precision="ieee")
    tl.store(o + own, acc, mask=rows[:, None] < n_q)


@triton.jit
def kernel_6(
    q, k, v, o, lse, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """o and lse, the pointers moved along instead of computed anew."""
    head = tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    begin = tl.program_id(0) * BLOCK_Q
    rows, cols, d = begin + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K), tl.arange(0, HEAD_DIM)
    last = rows + n_k - n_q if CAUSAL else rows * 0 + n_k - 1
    q_tile = tl.load(q + head * q_head + rows[:, None] * q_row + d[None, :], mask=rows[:, None] < n_q, other=0.0)
    k_at = k + kv_head * k_head + cols[:, None] * k_row + d[None, :]
    v_at = v + kv_head * k_head + cols[:, None] * k_row + d[None, :]
    row_max, row_sum = tl.full([BLOCK_Q], -INF, tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    left = n_k
    while left > 0:
        k_tile = tl.load(k_at, mask=cols[:, None] < left, other=0.0)
        v_tile = tl.load(v_at, mask=cols[:, None] < left, other=0.0)
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        keys = n_k - left + cols
        scores = tl.where((keys[None, :] <= last[:, None]) & (keys[None, :] < n_k), scores, -INF)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        shift = tl.where(new_max == -INF, 0.0, new_max)
        rescale = tl.exp(row_max - shift)
        weights = tl.exp(scores - shift[:, None])
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights, v_tile, acc * rescale[:, None], input_precision="ieee")
        row_max = new_max
        k_at += BLOCK_K * k_row
        v_at += BLOCK_K * k_row
        left -= BLOCK_K
    row_sum = tl.where(row_max == -INF, 1.0, row_sum)
    tl.store(o + head * q_head + rows[:, None] * q_row + d[None, :], acc / row_sum[:, None], mask=rows[:, None] < n_q)
    tl.store(lse + head * n_q + rows, row_max + tl.log(row_sum), mask=rows < n_q)


@triton.jit
def kernel_7(
    q, k, v, do, lse, delta, dk, dv, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dk and dv, on transposed tiles, summed over the heads of the group."""
    first, kv_head = tl.program_id(0) * BLOCK_K, tl.program_id(1)
    group = heads // kv_heads
    keys, d = first + tl.arange(0, BLOCK_K), tl.arange(0, HEAD_DIM)
    own, exists = kv_head * k_head + keys[:, None] * k_row + d[None, :], keys[:, None] < n_k
    k_tile = tl.load(k + own, mask=exists, other=0.0) * scale
    v_tile = tl.load(v + own, mask=exists, other=0.0)
    dk_tile, dv_tile = tl.zeros([BLOCK_K, HEAD_DIM], tl.float32), tl.zeros([BLOCK_K, HEAD_DIM], tl.float32)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(first + n_q - n_k, 0) // BLOCK_Q * BLOCK_Q
    for head in range(kv_head * group, (kv_head + 1) * group):
        for start in range(begin, n_q, BLOCK_Q):
            rows = start + tl.arange(0, BLOCK_Q)
            at, inside = head * q_head + rows[:, None] * q_row + d[None, :], rows[:, None] < n_q
            q_tile = tl.load(q + at, mask=inside, other=0.0)
            do_tile = tl.load(do + at, mask=inside, other=0.0)
            row_lse = tl.load(lse + head * n_q + rows, mask=rows < n_q, other=INF)
            row_lse = tl.where(row_lse == -INF, INF, row_lse)
            row_delta = tl.load(delta + head * n_q + rows, mask=rows < n_q, other=0.0)
            weights = tl.exp(tl.dot(k_tile, q_tile.T, input_precision="ieee") - row_lse[None, :])
            if CAUSAL:
                weights = tl.where(keys[:, None] <= rows[None, :] + n_k - n_q, weights, 0.0)
            dscores = weights * (tl.dot(v_tile, do_tile.T, input_precision="ieee") - row_delta[None, :])
            dv_tile = tl.dot(weights, do_tile, dv_tile, input_precision="ieee")
            dk_tile = tl.dot(dscores, q_tile, dk_tile, input_precision="ieee")
    tl.store(dk + own, dk_tile, mask=exists)
    tl.store(dv + own, dv_tile, mask=exists)


@triton.jit
def kernel_8(
    q, k, v, do, lse, delta, dq, n_q, n_k, heads, kv_heads, q_row, q_head, k_row, k_head, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq, the loop backwards: the last tile of keys comes first."""
    first, head = tl.program_id(0) * BLOCK_Q, tl.program_id(1)
    q += head * q_head
    do += head * q_head
    k += head // (heads // kv_heads) * k_head
    v += head // (heads // kv_heads) * k_head
    rows, d = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD_DIM)
    inside = rows < n_q
    q_tile = tl.load(q + rows[:, None] * q_row + d[None, :], mask=inside[:, None], other=0.0)
    do_tile = tl.load(do + rows[:, None] * HEAD_DIM + d[None, :], mask=inside[:, None], other=0.0)
    row_lse = tl.load(lse + head * n_q + rows, mask=inside, other=INF)
    row_lse = tl.where(row_lse == -INF, INF, row_lse)
    row_delta = tl.load(delta + head * n_q + rows, mask=inside, other=0.0)
    total = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)
    tiles = tl.cdiv(n_k, BLOCK_K)
    if CAUSAL:
        tiles = tl.cdiv(tl.maximum(tl.minimum(n_k, first + BLOCK_Q + n_k - n_q), 0), BLOCK_K)
    for back in range(tiles):
        keys = (tiles - 1 - back) * BLOCK_K + tl.arange(0, BLOCK_K)
        there = keys[:, None] < n_k
        k_tile = tl.load(k + keys[:, None] * k_row + d[None, :], mask=there, other=0.0)
        scores = scale * tl.dot(q_tile, k_tile.T, input_precision="ieee")
        seen = keys[None, :] < n_k
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + n_k - n_q)
        weights = tl.exp(tl.where(seen, scores, -INF) - row_lse[:, None])
        v_tile = tl.load(v + keys[:, None] * k_row + d[None, :], mask=there, other=0.0)
        dweights = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        total = tl.dot(weights * (dweights - row_delta[:, None]), k_tile, total, input_precision="ieee")
    tl.store(dq + head * q_head + rows[:, None] * q_row + d[None, :], total * scale, mask=inside[:, None])
