"""e04_flash_forward: the tile loop in NumPy, over a key buffer that is not full, with one more output than the library.

Unlike flashlab.reference.flash2: k and v have room for more keys than there are (`n_keys`), as a cache has; rows beyond
hold anything, NaN too. And `peak` is stored, the largest attention weight of each query: exp(row_max - lse).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Test
from flashlab.grading.judge import traffic, values
from flashlab.problem import AttentionProblem
from flashlab.traffic import model
from flashlab.traffic.trace import Trace

# Beyond what the process had: the last case's 384 × 40,000 scores take 29 MiB even in float16, and a stripe of them, 128
# queries with all their keys, takes 39 MiB with its weights.
NO_MATRIX_BYTES = 24 << 20
ROWS = 32
UNTOUCHED = 7.0  # what outputs hold before
NEARLY = 5e-3  # sums in float16 are off by less, with the numbers of these tests
OUTPUTS = ("o", "lse", "peak")


def call(case: dict) -> Call:
    """The inputs of one case: its sizes, and room for `spare` more keys that hold `junk`."""
    n_q, n_k, d = case["n_q"], case["n_k"], case["head_dim"]
    random = np.random.default_rng(case["seed"])
    dtype, sharp = case.get("dtype", "float32"), case.get("sharp", 1.0)
    q, k, v = (random.standard_normal((n, d)) for n in (n_q, n_k, n_k))
    q *= sharp
    if case.get("negative"):  # every score far below zero
        q, k = np.abs(q), -np.abs(k)
    q, k, v = (array.astype(dtype) for array in (q, k, v))
    junk = np.full((case.get("spare", 0), d), case.get("junk", 0.0), dtype)
    served = {"q": q, "k": np.concatenate([k, junk]), "v": np.concatenate([v, junk]), "o": np.full((n_q, d), UNTOUCHED, dtype)}
    served |= {"lse": np.full(n_q, UNTOUCHED, np.float32), "peak": np.full(n_q, UNTOUCHED, np.float32)}
    options = {"n_keys": n_k, "causal": case.get("causal", False), "block_q": case["block_q"], "block_k": case["block_k"]}
    return Call(
        served=served, options=options, stores=OUTPUTS, sram_bytes=case.get("sram_bytes"), memory_bytes=case.get("memory_bytes"),
    )  # fmt: skip


def expected(call: Call) -> dict[str, np.ndarray]:
    """Standard attention in float64: another algorithm than the one asked for, so a judge of it."""
    q, parts = call.served["q"], []
    for start in range(0, max(len(q), 1), ROWS):  # some rows at a time, so that large sizes need little memory
        rows = np.arange(start, min(start + ROWS, len(q)))
        parts.append(imitation()(call, rows))
    return {name: np.concatenate([part[name] for part in parts]) for name in OUTPUTS}


def imitation(*, scale=1.0, offset=0, finite=None, topleft=False, keys=None, lse=None, no_max=False, nan=False, visited=None):
    """What standard attention gives with one thing done wrong; with nothing, the right answer."""

    def attention(call: Call, rows=None) -> dict[str, np.ndarray]:
        q, k, v = (call.served[name].astype(np.float64) for name in ("q", "k", "v"))
        n_keys, block_k, n_q = call.options["n_keys"], call.options["block_k"], len(q)
        rows = np.arange(n_q) if rows is None else rows
        q = q[rows]
        used = {None: n_keys, "whole tiles": n_keys // block_k * block_k, "padded": min(len(k), -(-n_keys // block_k) * block_k)}[keys]
        k, v = k[:used], v[:used]
        scores = scale * (q @ k.T) / np.sqrt(q.shape[1])
        if call.options["causal"]:
            seen = np.arange(used)[None, :] <= rows[:, None] + (0 if topleft else n_keys - n_q) + offset
            if visited:
                seen &= visited(*tile_of_each(call, rows, used))
            scores = np.where(seen, scores, -np.inf if finite is None else finite)
        row_max = scores.max(axis=1, initial=-np.inf)
        shift = np.where(np.isneginf(row_max) & (not nan), 0, row_max)
        if no_max:
            shift = np.zeros(len(q))
        weights = np.exp((scores - shift[:, None]).astype(np.float32 if no_max else np.float64))
        row_sum = weights.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            o = weights @ v / np.where((row_sum == 0) & (not nan), 1, row_sum)[:, None]
            log = np.log(row_sum) + shift
            log = {None: log, "base 2": log / np.log(2), "no max": np.log(row_sum)}[lse]
            peak = np.exp(row_max - shift) / np.where(row_sum == 0, 1, row_sum)
        return {"o": o, "lse": log, "peak": np.where(np.isneginf(row_max) & (not nan), 0, peak)}

    return attention


def tile_of_each(call: Call, rows: np.ndarray, used: int) -> tuple[np.ndarray, ...]:
    """For each query and key: where the key's tile starts and stops, and the last keys that the first and the last query of the query's tile see."""
    n_q, n_keys, block_q, block_k = len(call.served["q"]), call.options["n_keys"], call.options["block_q"], call.options["block_k"]
    first, start = rows // block_q * block_q, np.arange(used) // block_k * block_k
    last = np.minimum(first + block_q, n_q) - 1
    return start[None, :], np.minimum(start + block_k, n_keys)[None, :], first[:, None] + n_keys - n_q, last[:, None] + n_keys - n_q


def loop_with(fault: str):
    """What the tile loop gives with one line wrong."""

    def attention(call: Call) -> dict[str, np.ndarray]:
        q, k, v = (call.served[name].astype(np.float64) for name in ("q", "k", "v"))
        options, n_q, n_keys = call.options, len(q), call.options["n_keys"]
        row_max, row_sum, acc = np.full(n_q, -np.inf), np.zeros(n_q), np.zeros(q.shape)
        for start in range(0, n_keys, options["block_k"]):
            cols = np.arange(start, min(start + options["block_k"], n_keys))
            scores = q @ k[cols].T / np.sqrt(q.shape[1])
            if options["causal"]:
                scores = np.where(cols[None, :] <= np.arange(n_q)[:, None] + n_keys - n_q, scores, -np.inf)
            new = scores.max(axis=1) if fault.endswith("one tile's max") else np.maximum(row_max, scores.max(axis=1))
            shift = np.where(np.isneginf(new) | fault.endswith("no shift at all"), 0, new)
            rescale = np.ones(n_q) if "unscaled" in fault else np.exp(row_max - shift)
            if fault == "rescale by the wrong factor":
                rescale = np.where(np.isneginf(row_max), 0, np.exp(shift - row_max))
            weights = np.exp(scores if "weights" in fault else scores - shift[:, None])
            row_sum = row_sum * (1 if fault == "row_sum not rescaled" else rescale) + weights.sum(axis=1)
            acc = acc * (1 if fault == "acc not rescaled" else rescale[:, None]) + weights @ v[cols]
            if fault == "divided inside the loop":
                acc /= np.where(row_sum == 0, 1, row_sum)[:, None]
            row_max = new
        whole = np.where(row_sum == 0, 1, row_sum)
        o = acc if fault == "divided inside the loop" else acc / whole[:, None]
        return {"o": o, "lse": row_max + np.log(row_sum), "peak": np.where(row_sum == 0, 0, 1 / whole)}

    return attention


IMITATIONS = {
    "no running max": lambda call: {"peak": np.exp(-expected(call)["lse"])},
    "lse in base 2": imitation(lse="base 2"),
    "lse without the max": imitation(lse="no max"),
    "scale forgotten": lambda call: imitation(scale=np.sqrt(call.served["q"].shape[1]))(call),
    "scale applied twice": lambda call: imitation(scale=1 / np.sqrt(call.served["q"].shape[1]))(call),
    "top-left causal alignment": imitation(topleft=True),
    "causal mask missing": imitation(offset=np.inf),
    "causal mask missing, in the tiles visited": imitation(offset=np.inf, visited=lambda start, stop, first, last: start <= last),
    "causal mask off by one": imitation(offset=-1),
    "causal mask off by one, one more": imitation(offset=1),
    "causal mask off by one, one more in the tiles visited": imitation(offset=1, visited=lambda start, stop, first, last: start <= last),
    "visible tile skipped": imitation(visited=lambda start, stop, first, last: start < last),
    "visible tile skipped, by its end": imitation(visited=lambda start, stop, first, last: stop <= last),
    "visible tile skipped, by its whole": imitation(visited=lambda start, stop, first, last: stop <= last + 1),
    "visible tile skipped, by the first query": imitation(visited=lambda start, stop, first, last: start <= first),
    "last ragged tile dropped": imitation(keys="whole tiles"),
    "padded keys not masked": imitation(keys="padded"),
    **{
        f"no running max, {what}": loop_with(what)
        for what in ("unscaled one tile's max", "weights", "unscaled weights", "no shift at all")
    },
    **{name: loop_with(name) for name in ("row_sum not rescaled", "acc not rescaled", "rescale by the wrong factor", "divided inside the loop")},
}


def symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """What NaN, overflow and lost digits usually mean, where no imitation gives exactly these numbers."""
    wanted = expected(call)
    o, no_key = got.get("o"), np.isneginf(wanted["lse"])
    if o is None or o.shape != wanted["o"].shape or o.dtype.kind != "f":
        return None
    broken = ~np.isfinite(o).all(axis=1)
    if broken[no_key].any() and not broken[~no_key].any():
        return "fully masked row gives NaN"
    if no_key.any() and np.any((o[no_key] != 0) & (o[no_key] != UNTOUCHED)) and not broken.any():
        return "mask with a finite number"
    if broken.any() and not np.isfinite(call.served["k"]).all():
        return "padded keys not masked"
    if broken.any() and np.abs(wanted["lse"][~no_key]).max(initial=0) > 80:
        return "no running max"
    if np.isnan(o).all() and not call.options["causal"]:
        return "rescale by the wrong factor"  # exp(new_max - old_max) is infinite at the first tile
    if call.options["causal"] and wanted["lse"].max() < -80:
        return "mask with a finite number" if o.any() else "no running max"  # exp of such scores is 0
    half = call.served["q"].dtype == np.float16
    if all(np.allclose(got[name].astype(float), wanted[name], atol=0.1 if half else NEARLY) for name in (("lse", "peak") if half else OUTPUTS)):
        return "low-precision accumulator"
    return None


HINTS = {  # by the first output that is wrong: those before it are right
    "o": "Work this input through by hand, or print row_max, row_sum and acc after each tile: at the end o = acc / row_sum.",
    "lse": "o is right. lse is row_max + log(row_sum), with row_max the largest score of the whole row, and -inf for a query that sees no key.",
    "peak": "o and lse are right. peak is exp(row_max - lse) = 1 / row_sum, with row_max the largest score of the whole row, not of one tile; and 0 for a query that sees no key.",
}
VALUES = values(expected, atol=2e-5, rtol=2e-5, imitations=IMITATIONS, symptom=symptom)
HALF = (  # o is rounded to float16 where it is stored; the statistics are float32 for every input
    values(lambda call: {"o": expected(call)["o"]}, atol=2e-3, rtol=2e-3, imitations=IMITATIONS, symptom=symptom),
    values(lambda call: {"lse": expected(call)["lse"], "peak": expected(call)["peak"]}, atol=1e-4, rtol=1e-4, imitations=IMITATIONS, symptom=symptom),
)


def closed_form(call: Call) -> dict[tuple[str, str], int]:
    """FlashAttention-2's bytes for the keys that are there, and peak once."""
    q = call.served["q"]
    problem = AttentionProblem(len(q), call.options["n_keys"], q.shape[1], causal=call.options["causal"], dtype=str(q.dtype))
    moved = model.flash2_traffic(problem, block_q=call.options["block_q"], block_k=call.options["block_k"])
    return {**moved.by_tensor, ("peak", "store"): call.served["peak"].nbytes}


def read_too_often(call: Call, trace: Trace) -> str | None:
    """What too many bytes of k or v usually mean, or too few."""
    needed, every_tile = (closed_form(replace(call, options={**call.options, "causal": causal}))["k", "load"] for causal in (call.options["causal"], False))
    counted = [trace.bytes_by_tensor().get((name, "load"), 0) for name in ("k", "v")]
    if min(counted) < needed:
        return "k and v kept whole"
    if call.options["causal"] and counted[0] == counted[1] and needed < counted[0] <= every_tile:
        return "tiles above the diagonal visited"
    return "K/V read once per row" if max(counted) > needed else None


def by_dtype(call: Call, answer: Answer) -> Finding | None:
    """Values, with the tolerance that the dtype allows."""
    judges = HALF if call.served["q"].dtype == np.float16 else (VALUES,)
    finding = next(filter(None, (judge(call, answer) for judge in judges)), None)
    return finding and replace(finding, hint=HINTS[re.match("no (peak|lse|o)|(peak|lse|o)", finding.what)[0].split()[-1]])


def case(n_q, n_k, head_dim, block_q, block_k, seed, **more) -> dict:
    """One case: sizes by position, since there are many."""
    return dict(n_q=n_q, n_k=n_k, head_dim=head_dim, block_q=block_q, block_k=block_k, seed=seed, **more)


NAN = float("nan")
TESTS = {
    "small": [case(4, 4, 2, 2, 2, 1), case(8, 8, 4, 4, 4, 2, dtype="float64"), case(8, 12, 4, 2, 4, 3, sharp=3.0)],
    "ragged": [case(3, 5, 2, 2, 2, 4), case(7, 5, 3, 4, 8, 5, spare=3), case(17, 29, 5, 8, 4, 6, spare=11, junk=NAN), case(1, 1, 1, 4, 4, 7, spare=1, junk=NAN)],
    "masked": [  # in a tile of two keys, a mask with one key too many is no mask at all: the first has three
        case(4, 4, 2, 3, 3, 8, causal=True), case(3, 6, 2, 2, 2, 9, causal=True), case(7, 4, 3, 2, 2, 10, causal=True, spare=2),
        case(6, 3, 2, 4, 2, 11, causal=True), case(9, 9, 4, 4, 3, 12, causal=True, sharp=3e4, negative=True),
    ],
    "large scores": [case(4, 6, 2, 2, 2, 13, sharp=1e4), case(6, 9, 4, 4, 3, 14, sharp=300.0, causal=True), case(4, 400, 4, 4, 8, 15, dtype="float16"), case(4, 12, 32, 2, 4, 21, dtype="float16", sharp=4.0)],
    "bytes": [
        case(8, 8, 4, 4, 4, 16, sram_bytes=2048), case(17, 29, 8, 4, 8, 17, spare=5, sram_bytes=4096), case(24, 24, 8, 4, 4, 18, causal=True, sram_bytes=4096),
        case(20, 9, 8, 8, 4, 19, causal=True, spare=3, dtype="float16", sram_bytes=4096),
        case(384, 40_000, 8, 128, 512, 20, causal=True, memory_bytes=NO_MATRIX_BYTES),
    ],
}  # fmt: skip

EXERCISE = Exercise(
    name="e04_flash_forward",
    title="The tile loop in NumPy",
    lesson="04_tiling",
    tests=tuple(
        Test(name, 2, "flash_forward", tuple(cases), call, (by_dtype, traffic(closed_form, read_too_often)) if name == "bytes" else (by_dtype,))
        for name, cases in TESTS.items()
    ),
)
