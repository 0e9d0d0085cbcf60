"""Online softmax: the exact softmax of a row, without having the whole row at once.

Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", Algorithms 2 (three passes) and 3 (two);
the one-pass form, which carries o along, is the step inside FlashAttention (Dao et al. 2022, section 3.1).

Unlike standard.py: a row is read in tiles of `block_k` columns, and the statistics of what has been seen are corrected
when a larger maximum turns up. Traffic, in elements of the scores: three passes read 3·n_q·n_k, two read 2·n_q·n_k, and
both write n_q·n_k weights; one pass reads n_q·n_k and v, and writes only o.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flashlab.reference.inputs import statistic_dtype
from flashlab.traffic.memory import Memory, tiles


class State(NamedTuple):
    """All that must be kept of the keys seen so far: row_max (rows,), row_sum (rows,), acc (rows, head_dim)."""

    row_max: np.ndarray
    row_sum: np.ndarray
    acc: np.ndarray


def empty_state(rows: int, head_dim: int, dtype=np.float64) -> State:
    """The state before any key: row_max -inf, row_sum 0, acc 0. It is the neutral element of `merge`."""
    return State(np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((rows, head_dim), dtype))


def rescale_factor(old_max: np.ndarray, new_max: np.ndarray) -> np.ndarray:
    """exp(old_max - new_max), (rows,): what turns sums taken relative to the old maximum into sums relative to the new.

    Where nothing has been seen yet (old_max = -inf) it is 0; -inf - (-inf), which is nan, never arises.
    """
    return np.exp(old_max - np.where(np.isneginf(new_max), 0, new_max))


def update(state: State, scores: np.ndarray, v_tile: np.ndarray) -> tuple[State, np.ndarray]:
    """Work one tile of scores (rows, cols) and values (cols, head_dim) into the state; also returns the rescale factor.

    >>> state, rescale = update(empty_state(1, 1), np.array([[3.0, 4.0]]), np.ones((2, 1)))
    >>> state.row_max.tolist(), rescale.tolist()
    ([4.0], [0.0])
    """
    row_max = np.maximum(state.row_max, scores.max(axis=1, initial=-np.inf))
    rescale = rescale_factor(state.row_max, row_max)
    weights = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max)[:, None])  # not yet divided by row_sum
    row_sum = state.row_sum * rescale + weights.sum(axis=1)
    acc = state.acc * rescale[:, None] + weights @ v_tile
    return State(row_max, row_sum, acc), rescale


def merge(left: State, right: State) -> State:
    """The state of two disjoint sets of keys together. Associative and commutative, so any order of tiles will do."""
    row_max = np.maximum(left.row_max, right.row_max)
    from_left, from_right = rescale_factor(left.row_max, row_max), rescale_factor(right.row_max, row_max)
    row_sum = left.row_sum * from_left + right.row_sum * from_right
    return State(row_max, row_sum, left.acc * from_left[:, None] + right.acc * from_right[:, None])


def finish(state: State) -> tuple[np.ndarray, np.ndarray]:
    """(o (rows, head_dim), lse (rows,)) of a state: the one division. A row that has seen no key gives 0 and -inf."""
    o = state.acc / np.where(state.row_sum == 0, 1, state.row_sum)[:, None]
    with np.errstate(divide="ignore"):  # log(0) = -inf is the answer for a row without keys
        return o, state.row_max + np.log(state.row_sum)


def softmax_three_passes(scores: np.ndarray, *, block_k: int, memory: Memory | None = None) -> np.ndarray:
    """softmax of each row of scores (n_q, n_k): one pass for the maximum, one for the sum, one to divide."""
    memory = memory or Memory("softmax, three passes")
    weights, scores = memory.hbm("weights", np.empty_like(scores)), memory.hbm("scores", scores)
    n_q, n_k = scores.array.shape
    rows, statistic = slice(0, n_q), statistic_dtype("scores", scores.array)
    row_max, row_sum = np.full(n_q, -np.inf, statistic), np.zeros(n_q, statistic)
    for cols in tiles(n_k, block_k, "block_k"):
        row_max = np.maximum(row_max, scores.load(rows, cols).max(axis=1))  # read n_q · block_k
    shift = np.where(np.isneginf(row_max), 0, row_max)[:, None]
    for cols in tiles(n_k, block_k, "block_k"):
        row_sum = row_sum + np.exp(scores.load(rows, cols) - shift).sum(axis=1)  # read n_q · block_k
    divisor = np.where(row_sum == 0, 1, row_sum)[:, None]
    for cols in tiles(n_k, block_k, "block_k"):
        weights.store(rows, np.exp(scores.load(rows, cols) - shift) / divisor, cols)  # read and write n_q · block_k
    memory.release()
    return weights.array


def softmax_two_passes(scores: np.ndarray, *, block_k: int, memory: Memory | None = None) -> np.ndarray:
    """softmax of each row of scores (n_q, n_k): maximum and sum together in one pass, then one to divide."""
    memory = memory or Memory("softmax, two passes")
    weights, scores = memory.hbm("weights", np.empty_like(scores)), memory.hbm("scores", scores)
    n_q, n_k = scores.array.shape
    rows, statistic = slice(0, n_q), statistic_dtype("scores", scores.array)
    state = empty_state(n_q, 0, statistic)  # no values: only the maximum and the sum are carried
    for cols in tiles(n_k, block_k, "block_k"):
        tile = scores.load(rows, cols).astype(statistic)  # read n_q · block_k
        state, rescale = update(state, tile, np.empty((tile.shape[1], 0), statistic))
        memory.compute("row_sum", rows, cols, row_max=state.row_max, row_sum=state.row_sum, rescale=rescale)
    shift = np.where(np.isneginf(state.row_max), 0, state.row_max)[:, None]
    divisor = np.where(state.row_sum == 0, 1, state.row_sum)[:, None]
    for cols in tiles(n_k, block_k, "block_k"):
        weights.store(rows, np.exp(scores.load(rows, cols) - shift) / divisor, cols)  # read and write n_q · block_k
    memory.release()
    return weights.array


def softmax_dot_one_pass(scores: np.ndarray, v: np.ndarray, *, block_k: int, memory: Memory | None = None) -> np.ndarray:
    """softmax(scores) · v, (n_q, head_dim), from scores (n_q, n_k) and v (n_k, head_dim), each read once.

    The weights are never whole and never stored: acc is corrected by the same factor as row_sum.
    """
    memory = memory or Memory("softmax · v, one pass")
    n_q, n_k, head_dim = *scores.shape, v.shape[1]
    statistic = np.result_type(statistic_dtype("scores", scores), statistic_dtype("v", v))
    o = memory.hbm("o", np.empty((n_q, head_dim), v.dtype))
    scores, v = memory.hbm("scores", scores), memory.hbm("v", v)
    rows, state = slice(0, n_q), empty_state(n_q, head_dim, statistic)
    for cols in tiles(n_k, block_k, "block_k"):
        scores_tile = scores.load(rows, cols).astype(statistic)  # read n_q · block_k
        state, rescale = update(state, scores_tile, v.load(cols).astype(statistic))  # read block_k · head_dim
        memory.compute("acc", rows, cols, rescale=rescale, **state._asdict())
    o.store(rows, finish(state)[0])  # write n_q · head_dim
    memory.release()
    return o.array
