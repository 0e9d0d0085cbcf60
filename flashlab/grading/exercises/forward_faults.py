"""e06's forward pass in NumPy, right and with one thing done wrong: what an answer is compared with, and what names a mistake.

Two ways: `attention` works on all scores at once, `loop_with` tile by tile from the last tile of keys to the first, for
mistakes of which the result depends on the tiles.
"""

from __future__ import annotations

import itertools

import numpy as np

from flashlab.grading.exercise import Call


def inputs(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k and v in float64, without heads of k and v that no query head belongs to."""
    q, k, v = (call.arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    kv_heads = len(q) // call.options["GROUP"]
    return q, k[:kv_heads], v[:kv_heads]


def halves(shift: np.ndarray, row_sum: np.ndarray) -> dict[str, np.ndarray]:
    """lse with one of its terms in base 2."""
    return {
        "max + log2": shift + np.log2(row_sum), "max / log2(e) + log": shift * np.log(2) + np.log(row_sum),
        "max · log2(e) + log": shift / np.log(2) + np.log(row_sum), "max + log / log2(e)": shift + np.log(row_sum) * np.log(2),
        "all / log2(e)": np.log(2) * (shift + np.log(row_sum)),
    }  # fmt: skip


def attention(*, scale=1.0, offset=0, finite=None, topleft=False, keys=None, lse=None, mapped=None, no_max=False, unmasked=False, visited=None):
    """What standard attention in float64 gives with one thing done wrong; with nothing, the right answer."""

    def imitation(call: Call) -> dict[str, np.ndarray]:
        q, k, v = inputs(call)
        n_q, n_k, group, block_q, block_k = (call.options[name] for name in ("n_q", "n_k", "GROUP", "BLOCK_Q", "BLOCK_K"))
        of_head = np.arange(len(q)) // group if mapped is None else mapped(np.arange(len(q)), len(k))
        k, v = k[of_head], v[of_head]
        padding = -n_k % block_k if keys == "padded" else 0
        k, v = (np.concatenate([x, np.zeros((len(x), padding, x.shape[2]))], axis=1) for x in (k, v))
        places = np.arange(n_k // block_k * block_k if keys == "whole tiles" else n_k + padding)
        k, v = k[:, places], v[:, places]
        scores = scale * call.options["scale"] * (q @ k.transpose(0, 2, 1))
        if call.options["CAUSAL"] and not unmasked:
            seen = places <= np.arange(n_q)[:, None] + (0 if topleft else n_k - n_q) + offset
            if visited:  # by where a tile of keys starts and stops, and by the last keys that the first and the last query of a tile see
                first, start = np.arange(n_q)[:, None] // block_q * block_q + n_k - n_q, places // block_k * block_k
                seen = seen & visited(start, np.minimum(start + block_k, n_k), first, first + block_q - 1)
            scores = np.where(seen, scores, -np.inf if finite is None else finite)
        row_max = scores.max(axis=2, initial=-np.inf)
        shift = np.zeros(row_max.shape) if no_max else np.where(np.isneginf(row_max), 0, row_max)
        weights = np.exp((scores - shift[..., None]).astype(np.float32 if no_max else np.float64))
        row_sum = weights.sum(axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            natural = np.log(row_sum) + shift
            o = weights @ v / np.where(row_sum == 0, 1, row_sum)[..., None]
            return {"o": o, "lse": {None: natural, "base 2": natural / np.log(2), "no max": np.log(row_sum), **halves(shift, row_sum)}[lse]}

    return imitation


expected = attention()


def loop_with(fault: str = "", *, rescaled: float = 1.0, weighed: float = 1.0):
    """What the tile loop, from the last tile of keys to the first, gives with one line wrong."""

    def imitation(call: Call) -> dict[str, np.ndarray]:
        q, k, v = inputs(call)
        n_q, n_k, group, block = (call.options[name] for name in ("n_q", "n_k", "GROUP", "BLOCK_K"))
        k, v = k.repeat(group, axis=0), v.repeat(group, axis=0)
        row_max, row_sum, acc = np.full(q.shape[:2], -np.inf), np.zeros(q.shape[:2]), np.zeros(q.shape)
        for start in reversed(range(0, n_k, block)):
            places = np.arange(start, min(start + block, n_k))
            scores = call.options["scale"] * (q @ k[:, places].transpose(0, 2, 1))
            if call.options["CAUSAL"]:
                scores = np.where(places <= np.arange(n_q)[:, None] + n_k - n_q, scores, -np.inf)
            new = scores.max(axis=2) if "one tile's max" in fault else np.maximum(row_max, scores.max(axis=2))
            shift = np.where(np.isneginf(new) | (fault == "no shift at all"), 0, new)
            rescale = np.ones(new.shape) if "unscaled" in fault else np.exp(rescaled * (row_max - shift))
            if fault == "rescale by the wrong factor":
                rescale = np.where(np.isneginf(row_max), 0, np.exp(shift - row_max))
            weights = np.exp(weighed * (scores - (0 if "weights" in fault else shift[..., None])))
            row_sum = row_sum * (1 if fault == "row_sum not rescaled" else rescale) + weights.sum(axis=2)
            acc = acc * (1 if fault == "acc not rescaled" else rescale[..., None]) + weights @ v[:, places]
            if fault == "divided inside the loop":
                acc = acc / np.where(row_sum == 0, 1, row_sum)[..., None]
            row_max = new
        whole = np.where(row_sum == 0, 1, row_sum)[..., None]
        return {"o": acc if fault == "divided inside the loop" else acc / whole, "lse": row_max + np.log(row_sum)}

    return imitation


IMITATIONS = {
    "no running max": attention(no_max=True),
    "lse in base 2": attention(lse="base 2"),
    "lse without the max": attention(lse="no max"),
    "scale forgotten": lambda call: attention(scale=1 / call.options["scale"])(call),
    "scale applied twice": lambda call: attention(scale=call.options["scale"])(call),
    "causal mask missing": attention(unmasked=True),
    "top-left causal alignment": attention(topleft=True),
    "causal mask off by one": attention(offset=-1),
    "causal mask off by one, one more": attention(offset=1),
    "causal mask off by one, one more in the tiles visited": attention(offset=1, visited=lambda start, stop, first, last: start <= last),
    "visible tile skipped": attention(visited=lambda start, stop, first, last: start < first),
    "visible tile skipped, by the first query": attention(visited=lambda start, stop, first, last: start <= first),
    "visible tile skipped, by its end": attention(visited=lambda start, stop, first, last: stop <= last + 1),
    **{f"lse half in base 2, {half}": attention(lse=half) for half in halves(np.zeros(1), np.ones(1))},
    **{
        f"base 2 in one place, {rescaled:.2f} and {weighed:.2f}": loop_with(rescaled=rescaled, weighed=weighed)
        for rescaled, weighed in itertools.product((np.log(2), 1.0, 1 / np.log(2)), repeat=2)
        if (rescaled, weighed) != (1, 1)
    },
    "last ragged tile dropped": attention(keys="whole tiles"),
    "padded keys not masked": attention(keys="padded"),
    "grouped heads mapped by modulo": attention(mapped=lambda head, kv_heads: head % kv_heads),
    "first key head for every head": attention(mapped=lambda head, kv_heads: 0 * head),
    **{f"no running max, {what}": loop_with(what) for what in ("unscaled one tile's max", "weights", "unscaled weights", "no shift at all")},
    **{name: loop_with(name) for name in ("row_sum not rescaled", "acc not rescaled", "rescale by the wrong factor", "divided inside the loop")},
}
