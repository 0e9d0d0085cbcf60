"""Closed forms: the bytes and FLOPs of every algorithm of the course, from sizes alone. The only place for them.

Each function takes an AttentionProblem and returns what a trace of that algorithm counts, tensor by tensor; the tests
hold the two equal over a grid of sizes, ragged ones included. e is the bytes of one element of q, k, v and o; a those
of one statistic (float32 where e is 2 or 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashlab.errors import error
from flashlab.problem import AttentionProblem, check_size


@dataclass(frozen=True)
class Traffic:
    """Bytes between HBM and chip: {(tensor, "load" | "store"): bytes}, the keys of `Trace.bytes_by_tensor()`."""

    by_tensor: dict[tuple[str, str], int]

    def _sum(self, op: str) -> int:
        return sum(size for (_, moved), size in self.by_tensor.items() if moved == op)

    @property
    def bytes_loaded(self) -> int:
        """Bytes read from HBM."""
        return self._sum("load")

    @property
    def bytes_stored(self) -> int:
        """Bytes written to HBM."""
        return self._sum("store")

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_loaded + self.bytes_stored

    def __repr__(self) -> str:
        return f"{self.bytes_loaded:,} bytes loaded, {self.bytes_stored:,} bytes stored"


def _traffic(by_tensor: dict[tuple[str, str], int]) -> Traffic:
    return Traffic({key: int(size) for key, size in by_tensor.items() if size})


# -- FLOPs ------------------------------------------------------------------------------------------------------------
def visible_scores(problem: AttentionProblem) -> int:
    """How many scores of one head are not masked: n_q·n_k, or with causal the pairs with j ≤ i + n_k - n_q."""
    if not problem.causal:
        return problem.n_q * problem.n_k
    seeing = min(problem.n_q, problem.n_k)  # queries that see a key: the last one sees n_k, the one before it n_k - 1, ...
    return seeing * problem.n_k - seeing * (seeing - 1) // 2


def attention_flops(problem: AttentionProblem) -> int:
    """FLOPs of the forward's two matrix products: 2·head_dim for each visible score in q·kᵀ and again in weights·v.

    Source: Dao 2023 (FlashAttention-2), section 4.1, which halves it for causal; here the visible scores are counted
    exactly. Masked scores that an algorithm computes all the same are not work done, so they are not counted.
    """
    return 4 * problem.batch * problem.heads * visible_scores(problem) * problem.head_dim


# -- Standard attention and the least any algorithm can move ------------------------------------------------------------
def fused_traffic(problem: AttentionProblem) -> Traffic:
    """q, k, v read once and o written once: no exact algorithm that starts and ends in HBM can move less."""
    e, d = problem.element_bytes, problem.head_dim
    queries = problem.batch * problem.heads * problem.n_q * d * e
    keys = problem.batch * problem.kv_heads * problem.n_k * d * e
    return _traffic({("q", "load"): queries, ("k", "load"): keys, ("v", "load"): keys, ("o", "store"): queries})


def standard_traffic(problem: AttentionProblem) -> Traffic:
    """4·n_q·n_k·e for the scores and weights of each head, besides q, k, v and o once; the same with causal.

    Source: Dao et al. 2022 (FlashAttention), Algorithm 0 and Theorem 2: Θ(n·d + n²).
    """
    whole = problem.batch * problem.heads * problem.score_matrix_bytes
    passes = {(tensor, op): whole for tensor in ("scores", "weights") for op in ("store", "load")}
    return _traffic(fused_traffic(problem).by_tensor | passes)


def unfused_traffic(problem: AttentionProblem, *, block_q: int, block_k: int) -> Traffic:
    """Standard attention in tiles of scores (kernels/unfused.py): q for each tile of keys, k and v for each tile of queries.

    In elements of one head, with T_q = ⌈n_q / block_q⌉ and T_k = ⌈n_k / block_k⌉: 4·n_q·n_k + n_q·d·(T_k + 1) +
    2·n_k·d·T_q; the same with causal. Whatever number of keys the product weights · v takes at once, it reads v so often.
    """
    e, d, each = problem.element_bytes, problem.head_dim, problem.batch * problem.heads
    tiles_q, tiles_k = -(-problem.n_q // check_size("block_q", block_q)), -(-problem.n_k // check_size("block_k", block_k))
    again = {("q", "load"): problem.n_q * tiles_k, ("k", "load"): problem.n_k * tiles_q, ("v", "load"): problem.n_k * tiles_q}
    return _traffic(standard_traffic(problem).by_tensor | {key: each * rows * d * e for key, rows in again.items()})


# -- Softmax of a score matrix ------------------------------------------------------------------------------------------
def softmax_traffic(problem: AttentionProblem, *, passes: int) -> Traffic:
    """A softmax of one head's scores, read in `passes` passes: 3 and 2 write the weights; 1 goes on to o instead."""
    e, scores = problem.element_bytes, problem.score_matrix_bytes
    if passes not in (1, 2, 3):
        raise error("passes", given=passes)
    if passes == 1:
        values, o = problem.n_k * problem.head_dim * e, problem.n_q * problem.head_dim * e
        return _traffic({("scores", "load"): scores, ("v", "load"): values, ("o", "store"): o})
    return _traffic({("scores", "load"): passes * scores, ("weights", "store"): scores})


# -- FlashAttention -----------------------------------------------------------------------------------------------------
def _tile_edges(n: int, block: int, argument: str) -> tuple[np.ndarray, np.ndarray]:
    """First row and row after the last of each tile of n rows."""
    starts = np.arange(0, n, check_size(argument, block), dtype=np.int64)
    return starts, np.minimum(starts + block, n)


def _rows_visited(problem: AttentionProblem, block_q: int, block_k: int) -> int:
    """Query rows that the key tiles of one head visit, all together: n_q for each key tile, less what causal skips."""
    first_row, end_row = _tile_edges(problem.n_q, block_q, "block_q")
    first_key, _ = _tile_edges(problem.n_k, block_k, "block_k")
    visits = np.full(len(first_row), len(first_key))
    if problem.causal:  # a q tile is visited by the key tiles whose first key its last row sees
        visits = np.clip((end_row - 1 + problem.n_k - problem.n_q) // block_k + 1, 0, len(first_key))
    return int(((end_row - first_row) * visits).sum())


def flash1_traffic(problem: AttentionProblem, *, block_q: int, block_k: int, float32_o: bool = False) -> Traffic:
    """FlashAttention-1: k and v once; q, o, row_max and row_sum for each pass over a k tile.

    Without causal, in elements of one head: 2·n_k·d + n_q·(3·d + 4)·⌈n_k / block_k⌉ + n_q·(d + 2), the last term being
    the first fill of o, row_max and row_sum. `float32_o`: the unfinished o is kept as precise as the statistics, as a
    GPU's kernels do (kernels/flash1.py). Source: Dao et al. 2022, Algorithm 1 and Theorem 2.
    """
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    rows_visited, each = _rows_visited(problem, block_q, block_k), problem.batch * problem.heads
    by_tensor = {("k", "load"): problem.n_k * d * e, ("v", "load"): problem.n_k * d * e, ("q", "load"): rows_visited * d * e}
    for tensor, size in (("o", d * (a if float32_o else e)), ("row_max", a), ("row_sum", a)):
        by_tensor[tensor, "load"] = rows_visited * size
        by_tensor[tensor, "store"] = (rows_visited + problem.n_q) * size
    return _traffic({key: each * size for key, size in by_tensor.items()})


def flash2_traffic(problem: AttentionProblem, *, block_q: int, block_k: int) -> Traffic:
    """FlashAttention-2: q, o and lse once; k and v for each of the ⌈n_q / block_q⌉ programs of a head.

    Without causal, in elements of one head: 2·n_q·d + 2·n_k·d·⌈n_q / block_q⌉, and n_q statistics. With causal a
    program stops after the tile that holds its last visible key. Source: Dao 2023, Algorithm 1.
    """
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    _, end_row = _tile_edges(problem.n_q, block_q, "block_q")
    check_size("block_k", block_k)
    keys = np.full(len(end_row), problem.n_k, np.int64)
    if problem.causal:
        seen = np.clip(end_row + problem.n_k - problem.n_q, 0, problem.n_k)
        keys = np.minimum(-(-seen // block_k) * block_k, problem.n_k)
    each = problem.batch * problem.heads
    queries, loaded = each * problem.n_q * d * e, each * int(keys.sum()) * d * e
    by_tensor = {("q", "load"): queries, ("k", "load"): loaded, ("v", "load"): loaded, ("o", "store"): queries}
    return _traffic(by_tensor | {("lse", "store"): each * problem.n_q * a})


def flash1_sram_parts(problem: AttentionProblem, *, block_q: int, block_k: int) -> dict[str, int]:
    """{tile: bytes} that FlashAttention-1 holds at most: flash2's tiles, and the tile of o as it was read."""
    parts = flash2_sram_parts(problem, block_q=block_q, block_k=block_k)
    return {name: parts[name] for name in ("q", "k", "v")} | {"o": parts["q"]} | parts  # o has q's shape and dtype


def flash2_sram_parts(problem: AttentionProblem, *, block_q: int, block_k: int) -> dict[str, int]:
    """{tile: bytes} that FlashAttention-2 holds at most: q, k, v, acc and scores, row_max and row_sum.

    Together e·d·(block_q + 2·block_k) + a·block_q·(d + block_k + 2), with tiles no larger than the problem.

    >>> flash2_sram_parts(AttentionProblem(n_q=4096, n_k=4096, head_dim=128), block_q=64, block_k=64)["q"]
    16384
    """
    rows = min(check_size("block_q", block_q), problem.n_q)
    cols = min(check_size("block_k", block_k), problem.n_k)
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    tiles = {"q": rows * d * e, "k": cols * d * e, "v": cols * d * e}
    return tiles | {"acc": rows * d * a, "scores": rows * cols * a, "row_max, row_sum": 2 * rows * a}


def flash1_sram_bytes(problem: AttentionProblem, *, block_q: int, block_k: int) -> int:
    """The most SRAM that FlashAttention-1 holds."""
    return sum(flash1_sram_parts(problem, block_q=block_q, block_k=block_k).values())


def flash2_sram_bytes(problem: AttentionProblem, *, block_q: int, block_k: int) -> int:
    """The most SRAM that FlashAttention-2 holds."""
    return sum(flash2_sram_parts(problem, block_q=block_q, block_k=block_k).values())


def flash_bound(problem: AttentionProblem, sram_bytes: int) -> float:
    """n_q·n_k·d²/M elements, in bytes: how FlashAttention's traffic grows with an SRAM of M elements.

    Source: Dao et al. 2022, Theorem 2 (Θ(n²·d²/M)) and Proposition 3 (no exact algorithm beats it for all M between d
    and n·d). It is a growth rate: with Algorithm 1's block_k = M/(4·d), q and o make 12 of it, as a test shows.
    """
    sram_elements = check_size("sram_bytes", sram_bytes) / problem.element_bytes
    elements = problem.n_q * problem.n_k * problem.head_dim**2 / sram_elements
    return problem.batch * problem.heads * elements * problem.element_bytes


# -- The backward pass --------------------------------------------------------------------------------------------------
def _keys_programs(problem: AttentionProblem, block_q: int, block_k: int) -> dict[tuple[str, str], int]:
    """What the delta programs and the keys programs move; a keys program serves a key head's whole group of query heads."""
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    visited, rows, keys = heads * _rows_visited(problem, block_q, block_k), heads * problem.n_q, kv_heads * problem.n_k * d * e
    return {
        ("o", "load"): rows * d * e, ("do", "load"): (rows + visited) * d * e, ("delta", "store"): rows * a,
        ("q", "load"): visited * d * e, ("lse", "load"): visited * a, ("delta", "load"): visited * a,
        ("k", "load"): keys, ("v", "load"): keys, ("dk", "store"): keys, ("dv", "store"): keys,
    }  # fmt: skip


def backward_traffic(problem: AttentionProblem, *, block_q: int, block_k: int, queries_tile: tuple[int, int] | None = None) -> Traffic:
    """FlashAttention-2's backward in two kernels: delta, then keys outside for dk and dv, then queries outside for dq.

    `queries_tile` is (block_q, block_k) of the second, where its tiles are not those of the first.

    Without causal, in elements of one head, with T_q = ⌈n_q / block_q⌉ and T_k = ⌈n_k / block_k⌉: 5·n_q·d + 4·n_k·d +
    2·n_q·d·T_k + 2·n_k·d·T_q, and n_q·(3 + 2·T_k) statistics. Source: Dao 2023, Algorithm 2, its loop taken twice.
    """
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    by_tensor, rows = _keys_programs(problem, block_q, block_k), problem.batch * problem.heads * problem.n_q
    for tensor, size in (("q", d * e), ("do", d * e), ("lse", a), ("delta", a)):
        by_tensor[tensor, "load"] += rows * size
    block_q, block_k = queries_tile or (block_q, block_k)
    streamed = flash2_traffic(problem, block_q=block_q, block_k=block_k).by_tensor.get(("k", "load"), 0)  # the same loop over keys
    for tensor in "kv":
        by_tensor[tensor, "load"] += streamed
    return _traffic(by_tensor | {("dq", "store"): rows * d * e})


def least_backward_traffic(problem: AttentionProblem) -> Traffic:
    """q, k, v, o, do and lse read once and dq, dk, dv written once: no backward that starts and ends in HBM can move less."""
    queries, keys = (fused_traffic(problem).by_tensor.get((tensor, "load"), 0) for tensor in "qk")
    statistics = problem.batch * problem.heads * problem.n_q * problem.statistic_bytes
    loads = {("q", "load"): queries, ("k", "load"): keys, ("v", "load"): keys, ("o", "load"): queries, ("do", "load"): queries}
    return _traffic(loads | {("lse", "load"): statistics, ("dq", "store"): queries, ("dk", "store"): keys, ("dv", "store"): keys})


def fused_backward_traffic(problem: AttentionProblem, *, block_q: int, block_k: int) -> Traffic:
    """The backward in one kernel, which sums dq in HBM in statistics' precision: zeroed, read and written for each tile.

    An atomic does that reading and writing where the memory is; a Triton trace counts it once, as one addition.
    Without causal, in elements of one head: 3·n_q·d + 4·n_k·d + 2·n_q·d·T_k, n_q·(1 + 2·T_k) statistics, and
    2·n_q·d·(1 + T_k) of the sum. Source: Dao 2023, Algorithm 2.
    """
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    heads = problem.batch * problem.heads
    summed = heads * (problem.n_q + _rows_visited(problem, block_q, block_k)) * d * a
    sums = {("dq_sum", "load"): summed, ("dq_sum", "store"): summed, ("dq", "store"): heads * problem.n_q * d * e}
    return _traffic(_keys_programs(problem, block_q, block_k) | sums)


def standard_backward_traffic(problem: AttentionProblem) -> Traffic:
    """Standard attention's backward: five operators, 7·n_q·n_k·e for each head besides q, k, v, do and the gradients.

    dv = weightsᵀ · do; dweights = do · vᵀ; dscores from weights and dweights (softmax's backward, delta and scale folded
    in); dq = dscores · k; dk = dscoresᵀ · q. The weights are those that the forward stored. Source: Dao et al. 2022,
    Algorithm 3.
    """
    e, d, heads = problem.element_bytes, problem.head_dim, problem.batch * problem.heads
    queries, keys = heads * problem.n_q * d * e, problem.batch * problem.kv_heads * problem.n_k * d * e
    whole = heads * problem.score_matrix_bytes
    return _traffic({
        ("weights", "load"): 2 * whole, ("dweights", "store"): whole, ("dweights", "load"): whole,
        ("dscores", "store"): whole, ("dscores", "load"): 2 * whole,
        ("q", "load"): queries, ("k", "load"): keys, ("v", "load"): keys, ("do", "load"): 2 * queries,
        ("dq", "store"): queries, ("dk", "store"): keys, ("dv", "store"): keys,
    })  # fmt: skip


def backward_flops(problem: AttentionProblem, *, products: int = 5) -> int:
    """FLOPs of the backward's matrix products: 2·head_dim for each visible score in each.

    5 products: scores once more, dv, dweights, dq, dk (Dao 2023, section 4.1: 2.5 times the forward's). In two kernels
    scores and dweights are made twice, so products=7; with the weights stored it would be 4.
    """
    return attention_flops(problem) // 2 * check_size("products", products)


def backward_sram_bytes(problem: AttentionProblem, *, block_q: int, block_k: int, fused: bool = False) -> int:
    """The most SRAM that the backward holds: tiles of q, k, v, do, scores and dweights, lse and delta, and what is summed.

    Together 2·e·d·(block_q + block_k) + a·(2·block_q·block_k + 2·block_q) and, for a keys program, 2·a·d·block_k (dk and
    dv; fused: and a·d·block_q), for a queries program a·d·block_q (dq); with tiles no larger than the problem.
    """
    rows, cols = min(check_size("block_q", block_q), problem.n_q), min(check_size("block_k", block_k), problem.n_k)
    e, a, d = problem.element_bytes, problem.statistic_bytes, problem.head_dim
    sums = 2 * cols * d + rows * d if fused else max(2 * cols * d, rows * d)
    return 2 * e * d * (rows + cols) + a * (2 * rows * cols + 2 * rows + sums)
