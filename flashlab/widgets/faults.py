"""Where a trace goes wrong: the first tile that differs from a trace known to be right, and the cause in numbers.

Tiles are matched by their place in the score grid, so the order of the loops does not matter. It needs the values that
Memory(..., watch=WATCH) keeps. Does not handle: two faults at once (it names the first).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flashlab.traffic.trace import Trace
from flashlab.widgets.reading import noted, score_tiles

WATCH = ("row_max", "row_sum", "rescale", "acc", "o")  # the values shown and compared, where the Memory kept them
TOLERANCE = 64  # rounding errors, relative to the largest right value, below which two numbers are the same


class Fault(NamedTuple):
    """Where a trace goes wrong: wrong_rows {row of o: step at which it is stored}, and the first wrong tile's step."""

    wrong_rows: dict[int, int] = {}
    step: int | None = None
    row: int | None = None
    sentence: str = ""


def compare(trace: Trace, right: Trace) -> Fault:
    """Where `trace` first differs from `right`: tile by tile in row_max, row_sum and acc, row by row in what o stores.

    Tiles are matched by their place in the score grid, so the order of the loops does not matter; steps count from 1.
    """
    step, row, sentence = _first_wrong_tile(trace, right) or (None, None, "")
    wrong, tiles_known = _wrong_rows(trace, right), bool(_tiles_with_values(trace).keys() & _tiles_with_values(right).keys())
    if not sentence and wrong:
        step, row = min((step, row) for row, step in wrong.items())
        cause = "every tile is right, but the o that is stored is not. Look at what comes after the last tile."
        sentence = f"row {row}: {cause if tiles_known else 'the o that is stored is not right.'}"
    elif not sentence and not tiles_known and not any(noted(trace, "o")):
        sentence = f"Nothing to compare: run both with Memory(..., watch={WATCH})."
    return Fault(wrong, step, row, sentence)


def _differs(given: np.ndarray, right: np.ndarray, eps: float) -> np.ndarray:
    """(rows,): which rows differ by more than rounding; -inf equals -inf, nan equals nothing."""
    if given.shape != right.shape:
        return np.ones(len(given), bool)
    largest = np.abs(right[np.isfinite(right)]).max(initial=0)
    with np.errstate(invalid="ignore"):
        same = (given == right) | (np.abs(given - right) <= TOLERANCE * eps * largest)
    return ~same.all(axis=1)


def _eps(*traces: Trace) -> float:
    """The rounding unit of the coarsest floating dtype that was noted."""
    dtypes = {np.asarray(value).dtype for trace in traces for named in trace.values.values() for value in named.values()}
    return max((float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind == "f"), default=0.0)


def _tiles_with_values(trace: Trace) -> dict[tuple, tuple[int, dict[str, np.ndarray]]]:
    """{(lane, row0, col0, rows, cols): (event, {name: value})}, in program order."""
    where = {tile[0]: tuple(tile[1:]) for tile in score_tiles(trace).tolist()}
    tiles: dict[tuple, tuple[int, dict]] = {}
    for name in ("row_max", "row_sum", "acc"):
        for step, _, value in noted(trace, name):
            if step in where:
                tiles.setdefault(where[step], (step, {}))[1][name] = value
    return dict(sorted(tiles.items(), key=lambda item: item[1][0]))


def _first_wrong_tile(trace: Trace, right: Trace) -> tuple[int, int, str] | None:
    truth, eps, last = _tiles_with_values(right), _eps(trace, right), {}
    for tile, (step, given) in _tiles_with_values(trace).items():
        known = truth.get(tile, (0, {}))[1]
        wrong = {name: _differs(given[name], known[name], eps) for name in given if name in known}
        rows = tile[:2]  # the lane and the first row
        if any(bad.any() for bad in wrong.values()):
            return (step + 1, *_sentence(tile[1], last.get(rows, {}), given, known, wrong))
        last[rows] = given
    return None


def _sentence(row0: int, before: dict, given: dict, right: dict, wrong: dict) -> tuple[int, str]:
    """(row, the cause in numbers): the row whose maximum rose most, and what was not multiplied by the rescale."""
    bad = np.flatnonzero(np.logical_or.reduce(list(wrong.values())))
    maxima = right.get("row_max")
    if maxima is not None and "row_max" in before and not wrong.get("row_max", np.zeros(1)).any():
        old, new = before["row_max"][:, 0], maxima[:, 0]
        with np.errstate(invalid="ignore"):
            rise = np.where(np.isfinite(old), new - old, 0.0)
        row = int(bad[rise[bad].argmax()])
        rescale = float(np.exp(-rise[row]))
        forgotten = [
            name
            for name in ("acc", "row_sum")
            if name in wrong and name in before and wrong[name][row]
            and np.allclose(given[name][row] - right[name][row], before[name][row] * (1 - rescale), rtol=1e-3, atol=1e-6)
        ]  # fmt: skip
        if rise[row] > 0 and forgotten:
            return row0 + row, (
                f"row {row0 + row}: row_max rose from {_number(old[row])} to {_number(new[row])}, so what was summed before must be"
                f" multiplied by exp({_number(old[row])} − {_number(new[row], sign=True)}) = {_number(rescale)};"
                f" {' and '.join(forgotten)} {'were' if len(forgotten) > 1 else 'was'} not."
            )
    row = int(bad[0])
    name = next(name for name in wrong if wrong[name][row])
    entry = int(np.argmax(given[name][row] != right[name][row])) if name == "acc" else 0
    place = f"acc[{entry}]" if name == "acc" else name
    return row0 + row, f"row {row0 + row}: {place} is {_number(given[name][row][entry])}, but must be {_number(right[name][row][entry])}."


def _number(x: float, sign: bool = False) -> str:
    text = f"{x:.3g}".replace("-", "−").replace("inf", "∞")
    return f"({text})" if sign and x < 0 else text


def _wrong_rows(trace: Trace, right: Trace) -> dict[int, int]:
    """{row of o: step of its first wrong store}. Stores are matched one by one where both traces store o alike
    (FlashAttention-1 stores it on every pass), else the last value of each row counts."""
    given, known, eps = list(noted(trace, "o")), list(noted(right, "o")), _eps(trace, right)
    if [(row0, value.shape) for _, row0, value in given] == [(row0, value.shape) for _, row0, value in known]:
        pairs = [(step, row0, value, truth) for (step, row0, value), (_, _, truth) in zip(given, known)]
    else:
        last = {row0 + i: value[i] for _, row0, value in known for i in range(len(value))}
        final = {row0 + i: (step, value[i]) for step, row0, value in given for i in range(len(value))}
        pairs = [(step, row, value[None], last[row][None]) for row, (step, value) in final.items() if row in last]
    wrong: dict[int, int] = {}
    for step, row0, value, truth in pairs:
        for i in np.flatnonzero(_differs(value, truth, eps)).tolist():
            wrong.setdefault(row0 + i, step + 1)
    return wrong
