"""What every algorithm here does first: check q, k and v, and say which keys a query may see."""

from __future__ import annotations

import math

import numpy as np

from flashlab.errors import error


def checked(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None) -> tuple[np.dtype, float]:
    """(dtype of accumulators and statistics, scale) of one head's q (n_q, head_dim), k and v (n_k, head_dim).

    float16 and float32 accumulate in float32, float64 in float64. Raises ValueError or TypeError from errors.py's table.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        statistic_dtype(name, array)
        if array.ndim != 2:
            raise error("one_head", argument=name, given=array.shape)
        if array.shape[1] != q.shape[1]:
            raise error("head_dim_differs", argument=name, given=array.shape[1], needed=q.shape[1])
    if len(k) != len(v):
        raise error("n_k_differs", given=len(v), needed=len(k))
    return np.result_type(q, k, v, np.float32), 1 / math.sqrt(q.shape[1]) if scale is None else scale


def statistic_dtype(name: str, array: np.ndarray) -> np.dtype:
    """What to accumulate an array of float16, float32 or float64 in. Raises TypeError, naming it, for any other dtype."""
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise error("numpy_dtype", argument=name, given=array.dtype)
    return np.result_type(array.dtype, np.float32)


def visible(rows: slice, cols: slice, n_q: int, n_k: int) -> np.ndarray:
    """Causal, aligned to the bottom right: query i sees key j where j ≤ i + n_k - n_q. Shape (rows, cols), boolean.

    n_q = 2, n_k = 4:  1 1 1 0
                       1 1 1 1
    """
    query = np.arange(rows.start, rows.stop)[:, None] + n_k - n_q
    return np.arange(cols.start, cols.stop)[None, :] <= query


def tile_is_visible(rows: slice, cols: slice, n_q: int, n_k: int) -> bool:
    """Whether the tile's last query sees the tile's first key: if not, no query of the tile sees any key of it."""
    return cols.start <= rows.stop - 1 + n_k - n_q
