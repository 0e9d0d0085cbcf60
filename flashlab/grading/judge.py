"""Compares an answer with what was expected, and says what differs. Only here, never in the child."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from flashlab.grading.exercise import Answer, Call, Finding, Judge
from flashlab.grading.misconceptions import MEANS
from flashlab.grading.plain import plain
from flashlab.traffic.trace import Trace

MOST_IMITATED = 20_000  # numbers
MOST_BY_HAND = 400  # numbers of input that are shown
MOST_TEXT = 100  # characters of a text that is shown
SHOWN = 6  # rows and columns of an array that are shown


def values(
    expected: Callable[[Call], Mapping[str, np.ndarray]],
    *,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    dtypes: Mapping[str, object] | None = None,
    imitations: Mapping[str, Callable[[Call], Mapping[str, np.ndarray]]] | None = None,
    symptom: Callable[[Call, Mapping[str, np.ndarray]], str | None] | None = None,
) -> Judge:
    """A judge of values: each array of `expected(call)` must come back with its shape and within |error| ≤ atol + rtol · |expected|.

    `imitations` maps a misconception to what it would give for this call: where the first array that differs is that, the
    finding names it. Where none is, `symptom(call, arrays)` may name one (NaN in rows without a key, say).
    `dtypes` says which dtype an array must have; without it any kind of number will do.
    """

    known: dict[int, tuple[Call, Mapping[str, np.ndarray]]] = {}  # by the call's id, which is its own while it is kept here

    def judge(call: Call, answer: Answer) -> Finding | None:
        if id(call) not in known:
            known[id(call)] = call, expected(call)
        wanted = known[id(call)][1]
        for name, needed in wanted.items():
            before = {**call.served, **call.arrays}.get(name) if name in call.stores else None
            what = differs(name, answer.arrays.get(name), np.asarray(needed), atol, rtol, (dtypes or {}).get(name))
            if what:
                unwritten = before is not None and _unwritten(answer.arrays.get(name), np.asarray(needed), before)
                named = recognise(call, answer, name, np.asarray(needed), imitations or {}, atol, rtol)
                named = named or _in_another_order(call, answer, wanted, atol, rtol) or _symptom(symptom, call, answer)
                return Finding(
                    f"{what}; {unwritten}" if unwritten else what, named or ("never written" if unwritten else None), input=input_of(call),
                    **dict(zip(("theirs", "expected"), _side_by_side(name, answer.arrays.get(name), np.asarray(needed), atol, rtol))),
                )  # fmt: skip
        return None

    return judge


def hinted(judge: Judge, hint: str, shape: str = "") -> Judge:
    """The judge, with a hint for findings that name no misconception; `shape` is said instead where a shape is wrong."""

    def with_hint(call: Call, answer: Answer) -> Finding | None:
        finding = judge(call, answer)
        return finding and replace(finding, hint=shape if shape and ("has shape" in finding.what or "came back" in finding.what) else hint)

    return with_hint


def _unwritten(got, needed: np.ndarray, before: np.ndarray) -> str:
    """What is said where a wrong number is the one that the room for answers held before (and not 0, which may be computed), or ""."""
    if got is None or got.shape != before.shape or got.shape != needed.shape:
        return ""
    same = (got == before) & (before != 0) & (got != needed)
    fill = number(before.flat[0]) if before.size else ""
    return f"{same.sum():,} of them were never written: they still hold the {fill} from before" if same.any() else ""


def differs(name: str, got, needed: np.ndarray, atol: float, rtol: float, dtype=None) -> str:
    """A sentence that says how `got` is not `needed`, or ""."""
    if got is None:
        return f"no {name} came back"
    if got.shape != needed.shape:
        return f"{name} has shape {got.shape}; it must be {needed.shape}"
    if dtype is not None and got.dtype != np.dtype(dtype):
        return f"{name} has dtype {got.dtype}; it must be {np.dtype(dtype)}"
    if needed.dtype.kind in "Ub" or got.dtype.kind in "Ub":
        wrong = ~np.asarray(got == needed, bool) if got.dtype.kind == needed.dtype.kind else np.ones(needed.shape, bool)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            exact, theirs = needed.astype(np.float64), got.astype(np.float64)
            wrong = ~((theirs == exact) | (np.isfinite(exact) & (np.abs(theirs - exact) <= atol + rtol * np.abs(exact))))  # inf is near nothing
            wrong &= ~(np.isnan(theirs) & np.isnan(exact))
    if not wrong.any():
        return ""
    at = tuple(int(index[0]) for index in np.nonzero(wrong)) if needed.ndim else ()
    where = f"{name}[{', '.join(map(str, at))}]" if at else name
    count = f"; {wrong.sum():,} of {wrong.size:,} numbers differ" if wrong.size > 1 else ""
    return f"{where} is {number(got[at])}; it must be {number(needed[at])}{count}"


def recognise(call: Call, answer: Answer, array: str, needed: np.ndarray, imitations: Mapping, atol: float, rtol: float) -> str | None:
    """The misconception whose imitation gives the same `array` as the answer, or None; large arrays are not imitated."""
    if needed.size > MOST_IMITATED:
        return None
    for name, imitate in imitations.items():
        with np.errstate(all="ignore"):
            imitated = imitate(call)
        if array not in imitated or not differs(array, np.asarray(imitated[array]), needed, 4 * atol, 4 * rtol):
            continue  # this misconception shows nothing here
        if not differs(array, answer.arrays.get(array), np.asarray(imitated[array]), 4 * atol, 4 * rtol):
            return name.split(",")[0]  # what follows a comma tells two imitations of one misconception apart
    return None


def _in_another_order(call: Call, answer: Answer, wanted: Mapping, atol: float, rtol: float) -> str | None:
    """The misconception's name, if what came back is what was expected with the names dealt out otherwise."""
    for order in itertools.permutations(wanted) if len(call.returns) > 1 else ():
        if not any(differs(name, answer.arrays.get(other), np.asarray(wanted[name]), atol, rtol) for name, other in zip(wanted, order)):
            return "returned in another order"
    return None


def _symptom(symptom: Callable | None, call: Call, answer: Answer) -> str | None:
    """What the symptom says; arrays of a shape or kind that it never thought of are no symptom."""
    try:
        with np.errstate(all="ignore"):
            return symptom(call, answer.arrays) if symptom else None
    except (ValueError, TypeError, IndexError, KeyError):
        return None


def traffic(closed_form: Callable[[Call], Mapping[tuple[str, str], int]], misconception: Callable[[Call, Trace], str | None] | None = None) -> Judge:
    """A judge of bytes: what was counted, tensor by tensor, must equal `closed_form(call)`; fewer is as wrong as more."""

    def judge(call: Call, answer: Answer) -> Finding | None:
        needed = {key: size for key, size in closed_form(call).items() if size}
        counted = answer.trace.bytes_by_tensor() if answer.trace else {}
        if counted == needed:
            return None
        keys = sorted(needed.keys() | counted.keys(), key=str)
        first = next(key for key in keys if counted.get(key, 0) != needed.get(key, 0))
        verb = {"load": "loaded", "store": "stored", "atomic": "added"}[first[1]]
        return Finding(
            f"{counted.get(first, 0):,} bytes of {first[0]} were {verb}; the closed form is {needed.get(first, 0):,}",
            misconception(call, answer.trace) if misconception and answer.trace else None, input=str(call),
            theirs="\n".join(f"{op} {tensor}: {counted.get((tensor, op), 0):,} bytes" for tensor, op in keys),
            expected="\n".join(f"{op} {tensor}: {needed.get((tensor, op), 0):,} bytes" for tensor, op in keys),
        )  # fmt: skip

    return judge


def tiles_at_most(most: Callable[[Call], Mapping[str, int]]) -> Judge:
    """A judge of a kernel's tiles: no single access of these tensors asks for more elements than `most(call)` says."""

    def judge(call: Call, answer: Answer) -> Finding | None:
        for tensor, allowed in most(call).items():
            moved = answer.trace.select("load", "store", "atomic", tensor=tensor)
            largest = int(moved["bytes_requested"].max(initial=0)) // answer.trace.tensors[tensor][2]
            if largest > allowed:
                return Finding(
                    f"one access of {tensor} asks for {largest:,} elements; a tile of the given sizes has {allowed:,}", input=str(call),
                    hint="Take tiles of the sizes that are passed: on a GPU a larger one does not fit.",
                )  # fmt: skip
        return None

    return judge


def meaning(finding: Finding) -> str:
    """What the difference usually means: the misconception's sentence, else the finding's own hint."""
    return MEANS.get(finding.misconception, finding.hint) if finding.misconception else finding.hint


def input_of(call: Call) -> str:
    """The call in one line, and its input arrays where they are small enough to try by hand."""
    return f"{call}\n{shown(call.inputs)}" if sum(array.size for array in call.inputs.values()) < MOST_BY_HAND else str(call)


def _side_by_side(name: str, got, needed: np.ndarray, atol: float, rtol: float) -> tuple[str, str]:
    """The answer and what it must be, as text; of several matrices only the first that differs by more than is allowed."""
    if needed.ndim == 3 and got is not None and got.shape == needed.shape:
        first = next((head for head in range(len(needed)) if differs(name, got[head], needed[head], atol, rtol)), 0)
        name, got, needed = f"{name}[{first}]", got[first], needed[first]
    return shown({name: got}), shown({name: needed})


def number(value) -> str:
    """One number as a person writes it."""
    if isinstance(value, (np.floating, float)):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, (np.integer, int)) and not isinstance(value, (bool, np.bool_)) else plain(value, MOST_TEXT, lines=False)


def shown(arrays: Mapping[str, object]) -> str:
    """Arrays as text, small enough to read: what is larger is cut in its middle."""
    lines = []
    for name, array in arrays.items():
        if array is None:
            lines.append(f"{name}: nothing")
            continue
        array = np.asarray(array)
        if array.dtype.kind == "U" and array.dtype.itemsize > 4 * MOST_TEXT:
            array = array.astype(f"U{MOST_TEXT}")
        text = np.array2string(array, precision=4, suppress_small=True, threshold=SHOWN**2, edgeitems=SHOWN // 2, max_line_width=110)
        lines.append(f"{name} =\n{text}")
    return "\n".join(lines)[:6000]
