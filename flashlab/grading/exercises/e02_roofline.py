"""e02_roofline: a layer of several kernels under one roof, and how many queries must share the keys to reach the ridge.

Unlike flashlab.hardware: `Bound` knows one kernel, here several run one after another, some without a FLOP or a byte; and
no function of the library turns the roofline round to ask for a size.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from flashlab.grading.exercise import Call, Exercise, Test
from flashlab.grading.judge import hinted, values
from flashlab.hardware import GPUS

RETURNS = ("bound", "time_s", "attainable")


def layer_call(case: dict) -> Call:
    """Kernels as two arrays, and the two ceilings of a GPU."""
    arrays = {"flops": np.array(case["flops"], np.float64), "bytes_moved": np.array(case["bytes_moved"], np.float64)}
    return Call(arrays=arrays, options={name: case[name] for name in ("peak_flops_per_s", "bytes_per_s")}, returns=RETURNS)


def layer(*, time=np.maximum, name=None, whole=None, rate=None):
    """The bound of each kernel, the time of all and their rate; with an argument, with one thing done wrong."""

    def roof(call: Call) -> dict[str, np.ndarray]:
        flops, moved = call.arrays["flops"], call.arrays["bytes_moved"]
        peak, bandwidth = call.options["peak_flops_per_s"], call.options["bytes_per_s"]
        computing, moving = flops / peak, moved / bandwidth
        each = time(computing, moving)
        total = each.sum() if whole is None else whole(computing, moving)
        memory = moving > computing if name is None else name(computing, moving)
        attainable = flops.sum() / total if rate is None else rate(flops, each)
        return {"bound": np.where(memory, "memory", "compute"), "time_s": total, "attainable": attainable}

    return roof


LAYER_IMITATIONS = {
    "memory and compute swapped": layer(name=lambda computing, moving: moving < computing),
    "memory-bound at the ridge": layer(name=lambda computing, moving: moving >= computing),
    "times added within a kernel": layer(time=np.add),
    "shorter time taken": layer(time=np.minimum),
    "roof of the sums": layer(whole=lambda computing, moving: max(computing.sum(), moving.sum())),
    "rates averaged": layer(rate=lambda flops, each: np.mean(flops / each)),
}


def layer_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """nan and infinity come from a division by 0; every kernel named the other way round is the two names swapped."""
    flops, bound = call.arrays["flops"], got.get("bound")
    if any(name in got and not np.isfinite(got[name]).all() for name in RETURNS[1:]):
        return "intensity of no bytes"
    if bound is not None and bound.shape == flops.shape and np.all(np.char.lower(bound.astype(str)) != layer()(call)["bound"]):
        return "memory and compute swapped"
    return None


LAYER = values(layer(), atol=0, rtol=1e-9, imitations=LAYER_IMITATIONS, symptom=layer_symptom)
SHAPES = "bound has a text for each kernel; time_s and attainable are one number each, for the whole layer."
BEFORE_TOTALS = "Time first: each kernel needs bytes / bytes_per_s and flops / peak_flops_per_s, and takes the longer. The rate comes last, from all FLOPs and the time of all."


def queries_call(case: dict) -> Call:
    """The sizes and the two ceilings."""
    return Call(options=case, returns=("n_q",))


def reaches(options: dict, n_q: int) -> bool:
    """Whether attention with each byte moved once is at the ridge or above it; whole numbers, so nothing is rounded."""
    n_k, head_dim = options["n_k"], 64  # any: it cancels
    flops = 4 * n_q * n_k * head_dim
    moved = options["element_bytes"] * head_dim * (2 * n_q + 2 * n_k)
    return Fraction(flops, moved) >= Fraction(options["peak_flops_per_s"]) / Fraction(options["bytes_per_s"])


def fewest(call: Call) -> dict[str, np.ndarray]:
    """By halving an interval: n_q = 2⁶⁰ stands for any number at all. Another way than to solve for n_q."""
    low, high = 0, 1 << 60
    if not reaches(call.options, high):
        return {"n_q": np.array(0)}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(call.options, middle) else (middle, high)
    return {"n_q": np.array(high)}


def solved(*, flops=4, e=None, rounding=np.ceil, no_o=False, never=True, square=False):
    """n_q by the formula, with one thing done wrong."""

    def queries(call: Call) -> dict[str, np.ndarray]:
        options = call.options
        ridge, n_k = options["peak_flops_per_s"] / options["bytes_per_s"], options["n_k"]
        needed = ridge * (options["element_bytes"] if e is None else e)
        if square:
            return {"n_q": np.ceil(needed)}
        below = flops * n_k - (1 if no_o else 2) * needed
        if below <= 0 and never:
            return {}  # 0, as many a wrong bound gives it
        return {"n_q": rounding(2 * needed * n_k / below) if below else np.array(np.inf)}

    return queries


QUERIES_IMITATIONS = {
    "rounded down": solved(rounding=np.floor),
    "one too many": solved(rounding=lambda x: np.floor(x) + 1),
    "ridge that is never reached": solved(never=False),
    "elements instead of bytes": solved(e=1),
    "half the FLOPs": solved(flops=2),
    "o not written": solved(no_o=True),
    "square attention assumed": solved(square=True),
}


def queries_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Any number at all where none reaches the ridge, and none where one does."""
    n_q = got.get("n_q")
    if n_q is None or n_q.ndim:
        return None
    return "ridge that is never reached" if fewest(call)["n_q"] == 0 else "ridge that can be reached" if n_q == 0 else None


QUERIES = values(fewest, atol=0, rtol=0, imitations=QUERIES_IMITATIONS, symptom=queries_symptom)



def kernels(flops, bytes_moved, peak=8.0, rate=2.0) -> dict:
    """One case of a layer: FLOPs and bytes of each kernel; a toy GPU with a ridge of 4 unless told otherwise."""
    return {"flops": flops, "bytes_moved": bytes_moved, "peak_flops_per_s": peak, "bytes_per_s": rate}


def on(gpu: str, dtype: str, flops, bytes_moved) -> dict:
    """One case of a layer on a GPU of the table."""
    return kernels(flops, bytes_moved, GPUS[gpu].peak_flops_per_s(dtype), GPUS[gpu].hbm_bytes_per_s)


def queries(n_k, element_bytes, peak, rate) -> dict:
    """One case of fewest_queries."""
    return {"n_k": n_k, "element_bytes": element_bytes, "peak_flops_per_s": peak, "bytes_per_s": rate}


def queries_on(gpu: str, dtype: str, n_k, element_bytes) -> dict:
    """One case of fewest_queries on a GPU of the table."""
    return queries(n_k, element_bytes, GPUS[gpu].peak_flops_per_s(dtype), GPUS[gpu].hbm_bytes_per_s)


def standard(n, d, heads, e=2) -> dict:
    """The three operators of standard attention as kernels, softmax with 5 FLOPs a score."""
    scores = heads * n * n
    moved = [(2 * heads * n * d + scores) * e, 2 * scores * e, (scores + 2 * heads * n * d) * e]
    return {"flops": [2 * scores * d, 5 * scores, 2 * scores * d], "bytes_moved": moved}


TESTS = {
    "one kernel": (
        "layer_roofline", 2,
        [kernels([16], [2]), kernels([4], [6]), on("H200", "float16", [8.6e9], [1.4e8]), on("RTX 4090", "float32", [3e12], [6e8])],
    ),
    "several kernels": (
        "layer_roofline", 3,
        [kernels([16, 4], [2, 6]), kernels([8, 8, 24], [4, 1, 1]), on("A100-80GB", "float16", **standard(4096, 128, 16)), on("T4", "float16", **standard(2048, 64, 8))],
    ),
    "corners": (
        "layer_roofline", 1,
        [kernels([8], [2]), kernels([0, 16], [4, 2]), kernels([16, 4], [0, 6]), kernels([0], [10])],
    ),
    "fewest queries": (
        "fewest_queries", 2,
        [queries(20, 4, 8.0, 2.0), queries(16, 2, 64e12, 8e12), queries_on("H200", "float16", 4096, 2), queries_on("L4", "float32", 1000, 4)],
    ),
    "never": (
        "fewest_queries", 2,
        [queries(3, 2, 8.0, 2.0), queries(4, 2, 8.0, 2.0), queries(5, 2, 8.0, 2.0), queries_on("H100", "float16", 200, 2), queries_on("B200", "float16", 310, 2)],
    ),
}  # fmt: skip
CALLS = {
    "layer_roofline": (layer_call, hinted(LAYER, BEFORE_TOTALS, SHAPES)),
    "fewest_queries": (queries_call, hinted(QUERIES, "FLOPs over bytes must be at least the ridge. Write both with n_q and n_k, then solve for n_q; head_dim cancels.")),
}

EXERCISE = Exercise(
    name="e02_roofline",
    title="A layer under its roof, and the queries it takes to reach the ridge",
    lesson="02_roofline",
    tests=tuple(
        Test(name, points, function, tuple(cases), CALLS[function][0], (CALLS[function][1],)) for name, (function, points, cases) in TESTS.items()
    ),
)
