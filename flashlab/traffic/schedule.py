"""What a kernel of the course would load and store at a size too large to interpret: its loops without their arithmetic.

    forward_schedule(problem, block_q=64, block_k=128, heads_at_once=16)     a Trace, as the tracer would give

Each function repeats one Triton kernel's order of programs and of the tiles within a program, and returns the Trace that
traffic/interpreter.py records of it, to the event; a test holds the two equal at small sizes. A program's accesses depend
on its tile alone, so those of one head are written down tile by tile (arrays, no object for an event) and copied for the
others: a million events take about a second.

Unlike a recorded trace: no compute events, no watched values, and bytes_requested are the bytes touched, since masked-off
lanes need the compiler's padding. Only full and causal masks. This module knows no kernel: tiles, `heads_at_once`
(kernels/tiles.py) and overlap are arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flashlab.problem import AttentionProblem, check_size
from flashlab.traffic.trace import COLUMNS, OP_CODE, Trace

FLOAT32 = 4  # bytes
SMALLEST_DOT = 16  # the fused backward pads the rows of its sum to what tl.dot takes


class Tensor(NamedTuple):
    """A tensor of a launch: rows and columns of one head, bytes of an element, heads, and whose heads a program works on.

    A program of head h reaches head (h · times + g) // over, g being its pass over the heads of a group.
    """

    rows: int
    cols: int
    width: int
    heads: int
    times: int = 1
    over: int = 1


class Launch:
    """One launch of a kernel: its tensors, and the accesses of each of its programs."""

    def __init__(self, title: str, **tensors: Tensor) -> None:
        self.title, self.tensors, self.names = title, tensors, tuple(tensors)

    def access(self, op: str, name: str, starts, block: int, *, col0=0, cols: int | None = None, g: int = 0) -> np.ndarray:
        """One event for each of `starts`: the rows from there on, `block` or what is left; `cols` columns from col0 on, or all."""
        tensor, starts = self.tensors[name], np.atleast_1d(starts)
        events = np.zeros(len(starts), COLUMNS)
        events["op"], events["tensor"], events["head"] = OP_CODE[op], self.names.index(name), g
        events["row0"], events["col0"] = starts, col0
        events["rows"] = np.minimum(tensor.rows - starts, block)
        events["cols"] = np.minimum(tensor.cols - np.asarray(col0), tensor.cols if cols is None else cols)
        events["bytes"] = events["rows"].astype(np.int64) * events["cols"] * tensor.width
        return events

    def load(self, name: str, starts, block: int, **where) -> np.ndarray:
        return self.access("load", name, starts, block, **where)

    def store(self, name: str, starts, block: int, **where) -> np.ndarray:
        return self.access("store", name, starts, block, **where)

    def trace(self, tiles: list[np.ndarray], tile: np.ndarray, head: np.ndarray) -> Trace:
        """The Trace of programs 0, 1, ...: program p makes the accesses `tiles[tile[p]]`, for head head[p] of all batches."""
        counts = np.array([len(events) for events in tiles], np.int64)
        lengths, firsts = counts[tile], (np.cumsum(counts) - counts)[tile]
        shift = firsts - (np.cumsum(lengths) - lengths)
        events = np.concatenate([*tiles, np.empty(0, COLUMNS)])[np.arange(lengths.sum()) + np.repeat(shift, lengths)]
        times, over, heads = (np.array([getattr(t, what) for t in self.tensors.values()], np.int64)[events["tensor"]] for what in ("times", "over", "heads"))
        events["program"] = np.repeat(np.arange(len(tile)), lengths)
        events["batch"], events["head"] = np.divmod((np.repeat(head, lengths) * times + events["head"]) // over, heads)
        events["bytes_requested"] = events["bytes"]
        return Trace.of(self.title, {name: (t.rows, t.cols, t.width) for name, t in self.tensors.items()}, self.names, events)


# -- The order of programs, and of tiles within one ----------------------------------------------------------------------
def head_by_head(tiles: int, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """(tile, head) of each program: all tiles of the first head, then all of the second."""
    program = np.arange(tiles * heads)
    return program % tiles, program // tiles


def heads_together(tiles: int, heads: int, at_once: int) -> tuple[np.ndarray, np.ndarray]:
    """(tile, head) of each program, as kernels/primitives.place: at_once heads at a time, of these each one's first tile first."""
    program, several = np.arange(tiles * heads), check_size("heads_at_once", at_once) * tiles
    first = program // several * at_once
    together = np.minimum(heads - first, at_once)
    return program % several // together, first + program % several % together


def in_turn(*events: np.ndarray) -> np.ndarray:
    """The first of each, then the second of each, ..."""
    return np.stack(events, axis=1).ravel()


def edges(lo: int, hi: int, full_lo: int, full_hi: int, n: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(whole, others): first rows of the tiles that need no predicate, and of the others visited; as kernels/primitives.tile_edges."""
    lo = min(max(lo, 0), n) // block * block
    hi = max(-(-min(max(hi, 0), n) // block) * block, lo)
    full_lo = min(max(-(-max(full_lo, 0) // block) * block, lo), hi)
    full_hi = min(max(min(max(full_hi, 0), n) // block * block, full_lo), hi)
    return np.arange(full_lo, full_hi, block), np.concatenate([np.arange(lo, full_lo, block), np.arange(full_hi, hi, block)])


def keys_seen(problem: AttentionProblem, first: int, block_q: int, block_k: int) -> tuple[np.ndarray, np.ndarray]:
    """(whole, others) of the key tiles that the query tile from `first` on visits."""
    past, n_k = problem.n_k - problem.n_q, problem.n_k
    last = min(first + block_q, problem.n_q) - 1
    return edges(0, last + past + 1 if problem.causal else n_k, 0, first + past + 1 if problem.causal else n_k, n_k, block_k)


def queries_seeing(problem: AttentionProblem, first: int, block_q: int, block_k: int) -> tuple[np.ndarray, np.ndarray]:
    """(whole, others) of the query tiles that see the key tile from `first` on."""
    past, n_q, n_k = problem.n_k - problem.n_q, problem.n_q, problem.n_k
    lo, full_lo = (first - past, min(first + block_k, n_k) - 1 - past) if problem.causal else (0, 0)
    passes_end = first + block_k > n_k  # such a tile of keys is never whole
    return edges(lo, n_q, full_lo, full_lo if passes_end else n_q, n_q, block_q)


def _tensors(problem: AttentionProblem, *names: str, of_keys: bool = False) -> dict[str, Tensor]:
    """q, k, v, o, their gradients and statistics as tensors of a launch whose programs belong to query heads, or to key heads."""
    p, group = problem, problem.heads // problem.kv_heads
    found = {}
    for name in names:
        if name in ("k", "v", "dk", "dv"):
            found[name] = Tensor(p.n_k, p.head_dim, p.element_bytes, p.kv_heads, over=1 if of_keys else group)
        elif name in ("lse", "delta", "row_max", "row_sum"):
            found[name] = Tensor(p.n_q, 1, p.statistic_bytes, p.heads, times=group if of_keys else 1)
        elif name in ("scores", "weights"):
            found[name] = Tensor(p.n_q, p.n_k, p.element_bytes, p.heads)
        else:
            found[name] = Tensor(p.n_q, p.head_dim, p.element_bytes, p.heads, times=group if of_keys else 1)
    return found


def _firsts(n: int, block: int, argument: str) -> np.ndarray:
    return np.arange(0, n, check_size(argument, block))


# -- The kernels -----------------------------------------------------------------------------------------------------------
def forward_schedule(problem: AttentionProblem, *, block_q: int, block_k: int, heads_at_once: int, overlap: bool = False) -> Trace:
    """kernels/forward.py: q; k and v of each tile of keys, whole tiles first; o and lse. The last tile of queries comes first.

    >>> forward_schedule(AttentionProblem(n_q=4096, n_k=4096, head_dim=64, heads=8), block_q=64, block_k=128, heads_at_once=8)
    forward_kernel: 34,304 steps in 512 programs, 541,065,216 bytes loaded, 4,325,376 bytes stored
    """
    launch = Launch("forward_kernel", **_tensors(problem, "q", "k", "v", "o", "lse"))
    check_size("block_k", block_k)

    def attend(starts):  # k0 v0 k1 v1 k2 v2; with overlap k0 k1 v0 k2 v1 v2
        k, v = launch.load("k", starts, block_k), launch.load("v", starts, block_k)
        return np.concatenate([k[:1], in_turn(k[1:], v[:-1]), v[-1:]]) if overlap else in_turn(k, v)

    tiles = []
    for first in _firsts(problem.n_q, block_q, "block_q")[::-1]:
        loops = map(attend, keys_seen(problem, first, block_q, block_k))
        stores = launch.store("o", first, block_q), launch.store("lse", first, block_q)
        tiles.append(np.concatenate([launch.load("q", first, block_q), *loops, *stores]))
    return launch.trace(tiles, *heads_together(len(tiles), problem.batch * problem.heads, heads_at_once))


def step_schedule(problem: AttentionProblem, *, block_q: int, block_k: int, heads_at_once: int = 1, longest: bool = False, skip: bool = True) -> Trace:
    """kernels/steps.py, step_kernel: as forward_schedule's, the first tile first unless `longest`; hidden tiles too unless `skip`."""
    launch = Launch("step_kernel", **_tensors(problem, "q", "k", "v", "o", "lse"))
    tiles = []
    for first in _firsts(problem.n_q, block_q, "block_q")[:: -1 if longest else 1]:
        end = min(problem.n_k, first + block_q + problem.n_k - problem.n_q) if problem.causal and skip else problem.n_k
        starts = _firsts(end, block_k, "block_k")
        loop = in_turn(launch.load("k", starts, block_k), launch.load("v", starts, block_k))
        tiles.append(np.concatenate([launch.load("q", first, block_q), loop, launch.store("o", first, block_q), launch.store("lse", first, block_q)]))
    return launch.trace(tiles, *heads_together(len(tiles), problem.batch * problem.heads, heads_at_once))


def delta_schedule(problem: AttentionProblem, *, block_q: int) -> Trace:
    """kernels/backward.py, delta_kernel without dlse: o and do of a tile of queries, then its delta."""
    launch = Launch("delta_kernel", **_tensors(problem, "o", "do", "delta"))
    firsts = _firsts(problem.n_q, block_q, "block_q")
    tiles = [np.concatenate([launch.load("o", i, block_q), launch.load("do", i, block_q), launch.store("delta", i, block_q)]) for i in firsts]
    return launch.trace(tiles, *head_by_head(len(tiles), problem.batch * problem.heads))


def keys_schedule(problem: AttentionProblem, *, block_q: int, block_k: int, heads_at_once: int, fused: bool = False, stores=("dk", "dv")) -> Trace:
    """kernels/backward.py, keys_kernel: k and v; q, lse, delta and do of each tile of queries, whole tiles last; dk and dv.

    `fused` adds to dq after each; `stores` are those of dk and dv that this launch makes (at head_dim 256 there is one for
    each). As in the source: what a compiler leaves out of a launch for dv alone, such as v, is still loaded here.
    """
    tensors = _tensors(problem, "q", "k", "v", "do", "lse", "delta", *(["dq"] if fused else []), "dk", "dv", of_keys=True)
    if fused:
        padded = max(SMALLEST_DOT, 1 << (problem.head_dim - 1).bit_length())
        tensors["dq"] = tensors["dq"]._replace(cols=padded, width=FLOAT32)
    launch = Launch("keys_kernel", **tensors)
    check_size("block_q", block_q)

    def add(starts, g):
        loads = [launch.load(name, starts, block_q, g=g) for name in ("q", "lse", "delta", "do")]
        return in_turn(*loads, *([launch.access("atomic", "dq", starts, block_q, g=g)] if fused else []))

    tiles = []
    for first in _firsts(problem.n_k, block_k, "block_k"):
        whole, others = queries_seeing(problem, first, block_q, block_k)
        loops = [add(starts, g) for g in range(problem.heads // problem.kv_heads) for starts in (others, whole)]
        loads = [launch.load(name, first, block_k) for name in "kv"]
        tiles.append(np.concatenate([*loads, *loops, *(launch.store(name, first, block_k) for name in stores)]))
    return launch.trace(tiles, *heads_together(len(tiles), problem.batch * problem.kv_heads, heads_at_once))


def queries_schedule(problem: AttentionProblem, *, block_q: int, block_k: int, heads_at_once: int) -> Trace:
    """kernels/backward.py, queries_kernel: q, do, lse, delta; k and v of each tile of keys, whole tiles first; dq."""
    launch = Launch("queries_kernel", **_tensors(problem, "q", "k", "v", "do", "lse", "delta", "dq"))
    check_size("block_k", block_k)
    tiles = []
    for first in _firsts(problem.n_q, block_q, "block_q")[::-1]:
        loads = [launch.load(name, first, block_q) for name in ("q", "do", "lse", "delta")]
        loops = [in_turn(launch.load("k", s, block_k), launch.load("v", s, block_k)) for s in keys_seen(problem, first, block_q, block_k)]
        tiles.append(np.concatenate([*loads, *loops, launch.store("dq", first, block_q)]))
    return launch.trace(tiles, *heads_together(len(tiles), problem.batch * problem.heads, heads_at_once))


def scores_schedule(problem: AttentionProblem, *, block_q: int, block_k: int) -> Trace:
    """kernels/unfused.py, scores_kernel: one program for each tile of scores reads q and k and writes it, hidden or not."""
    launch = Launch("scores_kernel", **_tensors(problem, "q", "k", "scores"))
    i, j = map(np.ravel, np.meshgrid(_firsts(problem.n_q, block_q, "block_q"), _firsts(problem.n_k, block_k, "block_k"), indexing="ij"))
    tile = launch.store("scores", i, block_q, col0=j, cols=block_k)
    tiles = list(np.stack([launch.load("q", i, block_q), launch.load("k", j, block_k), tile], axis=1))
    return launch.trace(tiles, *head_by_head(len(tiles), problem.batch * problem.heads))


def softmax_schedule(problem: AttentionProblem) -> Trace:
    """kernels/unfused.py, softmax_kernel: one program a row."""
    launch = Launch("softmax_kernel", **_tensors(problem, "scores", "weights"))
    i = np.arange(problem.n_q)
    tiles = list(np.stack([launch.load("scores", i, 1), launch.store("weights", i, 1)], axis=1))
    return launch.trace(tiles, *head_by_head(len(tiles), problem.batch * problem.heads))


def product_schedule(problem: AttentionProblem, *, block_q: int, block_k: int) -> Trace:
    """kernels/unfused.py, product_kernel: one program for each tile of queries reads its weights and all of v, and writes o."""
    launch = Launch("product_kernel", **_tensors(problem, "weights", "v", "o"))
    j = _firsts(problem.n_k, block_k, "block_k")
    tiles = []
    for i in _firsts(problem.n_q, block_q, "block_q"):
        loop = in_turn(launch.load("weights", np.full_like(j, i), block_q, col0=j, cols=block_k), launch.load("v", j, block_k))
        tiles.append(np.concatenate([loop, launch.store("o", i, block_q)]))
    return launch.trace(tiles, *head_by_head(len(tiles), problem.batch * problem.heads))


def flash1_schedule(problem: AttentionProblem, *, block_q: int, block_k: int) -> Trace:
    """kernels/flash1.py: one program a head; for each tile of keys all tiles of queries, whose o and statistics go out and in again."""
    tensors = _tensors(problem, "q", "k", "v", "o", "row_max", "row_sum")
    launch = Launch("flash1_kernel", **tensors | {"o": tensors["o"]._replace(width=problem.statistic_bytes)})
    i, parts = _firsts(problem.n_q, block_q, "block_q"), ("o", "row_max", "row_sum")
    events = [in_turn(*(launch.store(name, i, block_q) for name in parts))]
    for j in _firsts(problem.n_k, block_k, "block_k"):
        ends = np.minimum(i + block_q, problem.n_q) - 1 + problem.n_k - problem.n_q
        seen = i[ends >= j] if problem.causal else i
        events += [launch.load("k", j, block_k), launch.load("v", j, block_k)]
        events += [in_turn(*(launch.load(name, seen, block_q) for name in ("q", *parts)), *(launch.store(name, seen, block_q) for name in parts))]
    return launch.trace([np.concatenate(events)], *head_by_head(1, problem.batch * problem.heads))
