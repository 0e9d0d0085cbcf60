"""All masks of a call as one: what a kernel asks of them, and gets without a branch for any mask.

A key must be visible to each of the joined masks, tiles that one of them leaves out are skipped, and scores pass from one to
the next, left to right. A kernel takes their functions as a constexpr (MaskFunctions) and their parameters as a tuple of
tuples, both from masks.decode; the loops over masks are unrolled when it is compiled. masks.py says what each function is given
and returns.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl

from flashlab.kernels.primitives import INF


@triton.jit
def no_function():
    """Stands where a mask gives no function; never called."""


class MaskFunctions(NamedTuple):
    """The functions of all joined masks, one tuple for each kind: what a kernel takes as a constexpr."""

    limits: tuple = ()  # whether mask m has `visible`
    rescores: tuple = ()  # whether mask m has `score`
    key_ranged: tuple = ()  # whether mask m has `key_range`; without it every tile is visited and compared
    query_ranged: tuple = ()  # whether mask m has `query_range`
    visible: tuple = ()
    key_range: tuple = ()
    query_range: tuple = ()
    score: tuple = ()
    dscore: tuple = ()

    __hash__, __eq__ = object.__hash__, object.__eq__  # there is one of each kind; looking into it at each launch takes long

    def __repr__(self) -> str:
        """Names and digests: Triton keys its cache of compiled kernels by this, so a changed mask must read differently."""
        return _digest(self)


@cache
def _digest(functions: MaskFunctions) -> str:
    names = [f"{f.__name__}-{getattr(f, 'cache_key', id(f))}" for kind in functions[4:] for f in kind]
    return f"MaskFunctions({functions[:4]}, {names})"


@triton.jit
def hide(masks: tl.constexpr, params, scores, batch, head, i, j):
    """The scores with -inf where any of the joined masks hides key j from query i."""
    for m in tl.static_range(len(masks.limits)):
        if masks.limits[m]:
            scores = tl.where(masks.visible[m](batch, head, i, j, *params[m]), scores, -INF)
    return scores


@triton.jit
def key_range(masks: tl.constexpr, params, batch, head, first, last, begin, end):
    """What all joined masks leave of the keys for queries first to last: (lo, hi, full_lo, full_hi)."""
    lo, hi, full_lo, full_hi = begin, end, begin, end
    for m in tl.static_range(len(masks.limits)):
        if masks.key_ranged[m]:
            a, b, c, d = masks.key_range[m](batch, head, first, last, begin, end, *params[m])
            lo, hi, full_lo, full_hi = tl.maximum(lo, a), tl.minimum(hi, b), tl.maximum(full_lo, c), tl.minimum(full_hi, d)
        elif masks.limits[m]:
            full_hi = begin
    return lo, hi, full_lo, full_hi


@triton.jit
def query_range(masks: tl.constexpr, params, batch, head, first, last, begin, end):
    """What all joined masks leave of the queries for keys first to last: (lo, hi, full_lo, full_hi)."""
    lo, hi, full_lo, full_hi = begin, end, begin, end
    for m in tl.static_range(len(masks.limits)):
        if masks.query_ranged[m]:
            a, b, c, d = masks.query_range[m](batch, head, first, last, begin, end, *params[m])
            lo, hi, full_lo, full_hi = tl.maximum(lo, a), tl.minimum(hi, b), tl.maximum(full_lo, c), tl.minimum(full_hi, d)
        elif masks.limits[m]:
            full_hi = begin
    return lo, hi, full_lo, full_hi


@triton.jit
def rescore(masks: tl.constexpr, params, score, batch, head, i, j):
    """The score after all joined masks, left to right."""
    for m in tl.static_range(len(masks.rescores)):
        if masks.rescores[m]:
            score = masks.score[m](score, batch, head, i, j, *params[m])
    return score


@triton.jit
def rescore_slope(masks: tl.constexpr, params, score, batch, head, i, j):
    """The derivative of `rescore` at `score`: the chain rule over the joined masks."""
    slope = tl.full(score.shape, 1.0, tl.float32)
    for m in tl.static_range(len(masks.rescores)):
        if masks.rescores[m]:
            slope = slope * masks.dscore[m](score, batch, head, i, j, *params[m])
            score = masks.score[m](score, batch, head, i, j, *params[m])
    return slope
