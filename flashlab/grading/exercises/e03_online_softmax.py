"""e03_online_softmax: the entropy of each row of weights in one pass: a third sum beside row_max and row_sum, and no values.

Unlike flashlab.reference.online_softmax: a state is (row_max, row_sum, score_sum), where score_sum = Σ exp(score - row_max)
· score, so that masked scores ask for care once more (0 · -inf); the result is lse and the entropy of the weights.
"""

from __future__ import annotations

import numpy as np

from flashlab.grading.exercise import Call, Exercise, Test
from flashlab.grading.judge import hinted, traffic, values
from flashlab.traffic.trace import Trace

STATE = ("row_max", "row_sum", "score_sum")
SIDES = ("left", "right")


def scores_of(case: dict, seed: int, n: int) -> np.ndarray:
    """(rows, n) scores of a case: `large` times a standard normal or ±large; `masked` places and `blind` rows are -inf."""
    random = np.random.default_rng(seed)
    scores = np.round(random.standard_normal((case["rows"], n)) * 2, 1)
    if "signs" in case:
        scores = case["signs"] * random.choice([-1.0, 1.0], size=scores.shape)
    scores = scores * case.get("large", 1.0) + case.get("shift", 0.0)
    scores[random.random(scores.shape) < case.get("masked", 0.0)] = -np.inf
    scores[list(case.get("blind", ()))] = -np.inf
    return scores


def state_of(scores: np.ndarray, row_max: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The state of whole rows at once: no tiles, nothing rescaled."""
    row_max = scores.max(axis=1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max)[:, None])
    return {"row_max": row_max, "row_sum": weights.sum(axis=1), "score_sum": np.where(weights == 0, 0, weights * np.where(weights == 0, 0, scores)).sum(axis=1)}


# -- update -----------------------------------------------------------------------------------------------------------
def before_and_tile(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """The scores that were seen, and those of the next tile."""
    if "seen_scores" in case:
        return np.array(case["seen_scores"], float).reshape(case["rows"], -1), np.array(case["tile_scores"], float)
    seen = scores_of(case, case["seed"], case["seen"])
    seen[list(case.get("unseen", ()))] = -np.inf
    return seen, scores_of(case, case["seed"] + 1000, case["tile"]) + case.get("rise", 0.0)


def update_call(case: dict) -> Call:
    """A state, and a tile of scores."""
    seen, tile = before_and_tile(case)
    return Call(arrays={**state_of(seen), "scores": tile}, returns=STATE)


def updated(fault: str | None = None):
    """The state after the tile: the tile's own state, made at once, and the old one, added; or with one thing done wrong."""

    def update(call: Call) -> dict[str, np.ndarray]:
        old_max, old_sum, old_dot, scores = (call.arrays[name] for name in (*STATE, "scores"))
        tile = state_of(scores)
        row_max = np.maximum(old_max, tile["row_max"])
        if fault == "no running max":
            return {"row_sum": old_sum + np.exp(scores).sum(axis=1)}
        shift = np.where(np.isneginf(row_max), 0, row_max)
        keep, add = np.exp(old_max - shift), np.exp(tile["row_max"] - shift)
        if fault == "rescale by the wrong factor":
            keep = np.where(np.isneginf(old_max), 0, np.exp(shift - old_max))
        if fault == "state before replaced":
            keep = np.zeros_like(keep)
        row_sum = old_sum * (1 if fault == "row_sum not rescaled" else keep) + tile["row_sum"] * add
        score_sum = old_dot * (1 if fault == "score_sum not rescaled" else keep) + tile["score_sum"] * add
        if fault == "divided inside the loop":
            score_sum = score_sum / np.where(row_sum == 0, 1, row_sum)
        return {"row_max": row_max, "row_sum": row_sum, "score_sum": score_sum}

    return update


UPDATE_FAULTS = ("no running max", "row_sum not rescaled", "score_sum not rescaled", "rescale by the wrong factor", "state before replaced", "divided inside the loop")


def update_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Infinity is an exp without the maximum; NaN in rows that see no key comes from their maximum, elsewhere from 0 · -inf."""
    if any(np.isinf(got[name]).any() for name in STATE[1:]):
        return "no running max"
    blind = np.isneginf(updated()(call)["row_max"])
    broken = np.isnan(got["row_sum"])
    if broken.any():
        return "no running max" if broken[~blind].any() else "fully masked row gives NaN"
    return "-inf times 0" if np.isnan(got["score_sum"]).any() else None


UPDATE = values(updated(), atol=1e-12, rtol=1e-9, imitations={fault: updated(fault) for fault in UPDATE_FAULTS}, symptom=update_symptom)


# -- merge ------------------------------------------------------------------------------------------------------------
def merge_call(case: dict) -> Call:
    """Two states of keys that are seen by one side each; `deal` says which side gets which key."""
    if "left_scores" in case:
        sides = [np.array(case[f"{side}_scores"], float).reshape(case["rows"], -1) for side in SIDES]
    else:
        whole = scores_of(case, case["seed"], case["keys"])
        left = np.random.default_rng(case["seed"] + 1).permutation(case["keys"]) < case["left"]
        sides = [whole[:, left], whole[:, ~left]]
        for side, name in zip(sides, SIDES):
            side[list(case.get(f"{name}_blind", ()))] = -np.inf
    states = [state_of(side) for side in sides]
    return Call(arrays={f"{side}_{name.removeprefix('row_')}": state[name] for side, state in zip(SIDES, states) for name in STATE}, returns=STATE)


def merged(fault: str | None = None):
    """The state of both sides together, by adding true sums relative to the larger maximum; or with one thing done wrong."""

    def merge(call: Call) -> dict[str, np.ndarray]:
        a, b = ({name: call.arrays[f"{side}_{name.removeprefix('row_')}"] for name in STATE} for side in SIDES)
        row_max = np.maximum(a["row_max"], b["row_max"])
        parts = []
        for side, other in ((a, b), (b, a)):
            factor = np.where(side["row_sum"] == 0, 0, np.exp(side["row_max"] - np.where(np.isneginf(row_max), 0, row_max)))
            if fault == "merged without a common maximum":
                factor = 1
            if fault == "rescale by the wrong factor":
                factor = np.where(side["row_sum"] == 0, 0, np.exp(row_max - side["row_max"]))
            parts.append({name: side[name] * (1 if fault == f"{name} not rescaled" else factor) for name in STATE[1:]})
        whole = {name: parts[0][name] + parts[1][name] for name in STATE[1:]}
        return {"row_max": a["row_max"] + b["row_max"] if fault == "maxima added" else row_max, **whole}

    return merge


MERGE_FAULTS = ("maxima added", "score_sum not rescaled", "merged without a common maximum", "rescale by the wrong factor")


def merge_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """NaN or infinity where a side has seen no key, or where one side's own maximum was used for both."""
    empty = (call.arrays["left_sum"] == 0) | (call.arrays["right_sum"] == 0)
    broken = ~np.isfinite(got["row_sum"]) | ~np.isfinite(got["score_sum"])
    if not broken.any():
        return None
    return "merged without a common maximum" if broken[~empty].any() else "empty split gives NaN"


MERGE = values(merged(), atol=1e-12, rtol=1e-9, imitations={fault: merged(fault) for fault in MERGE_FAULTS}, symptom=merge_symptom)


# -- the pass over the tiles --------------------------------------------------------------------------------------------
def pass_call(case: dict) -> Call:
    """Scores that are served tile by tile; two numbers a row are stored."""
    served = {"scores": scores_of(case, case["seed"], case["n_k"]), "lse": np.full(case["rows"], 7.0), "entropy": np.full(case["rows"], 7.0)}
    room = case["rows"] * 8 * (3 * case["block_k"] + 12)  # three tiles and twelve numbers a row
    return Call(served=served, options={"block_k": case["block_k"]}, stores=("lse", "entropy"), sram_bytes=room)


def entropies(*, base=1.0, no_max=False, drop=False, undivided=False):
    """lse, and -Σ w·log(w) from whole rows of weights, which is not how a student gets it; or with one thing done wrong."""

    def of(call: Call) -> dict[str, np.ndarray]:
        scores = call.served["scores"]
        if drop:
            scores = scores[:, : scores.shape[1] // call.options["block_k"] * call.options["block_k"]]
        state = state_of(scores)
        blind = state["row_sum"] == 0
        shift, whole = np.where(blind, 0, state["row_max"]), np.where(blind, 1, state["row_sum"])
        weights = np.exp(scores - shift[:, None]) / whole[:, None]
        entropy = -(weights * np.log(np.where(weights == 0, 1, weights))).sum(axis=1)
        lse = np.where(blind, -np.inf, (0 if no_max else shift) + np.log(whole))
        if undivided:
            entropy = lse - state["score_sum"]
        return {"lse": lse / base, "entropy": np.where(blind, 0, entropy)}

    return of


PASS_IMITATIONS = {
    "lse in base 2": entropies(base=np.log(2)),
    "lse without the max": entropies(no_max=True),
    "last ragged tile dropped": entropies(drop=True),
    "score_sum not divided": entropies(undivided=True),
}


def pass_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """NaN or -inf in rows that see no key."""
    blind = np.isneginf(entropies()(call)["lse"])
    broken = np.isnan(got["lse"]) | ~np.isfinite(got["entropy"])
    return "fully masked row gives NaN" if broken.any() and not broken[~blind].any() else None


PASS = values(entropies(), atol=1e-9, rtol=1e-9, imitations=PASS_IMITATIONS, symptom=pass_symptom)


def closed_form(call: Call) -> dict[tuple[str, str], int]:
    """Every score once, and two numbers a row."""
    return {("scores", "load"): call.served["scores"].nbytes, **{(name, "store"): call.served[name].nbytes for name in call.stores}}


def read_again(call: Call, trace: Trace) -> str | None:
    """More than all scores were loaded."""
    return "scores read twice" if trace.bytes_by_tensor().get(("scores", "load"), 0) > call.served["scores"].nbytes else None


RETURNED = "Return row_max, row_sum and score_sum, in this order, each with one number a row."
HINTS = {
    "update": "The new maximum is the larger of the old one and the tile's. Both sums are relative to the old one: rescale them, then add what the tile gives relative to the new one.",
    "merge": "Each side's sums are relative to its own maximum. Bring both to the larger one, then add.",
    "row_entropy": "lse = row_max + log(row_sum), and entropy = lse - score_sum / row_sum.",
}



def tile(rows, seen, tile, seed, **more) -> dict:
    """One case of update."""
    return {"rows": rows, "seen": seen, "tile": tile, "seed": seed, **more}


def by_hand(seen, scores) -> dict:
    """One case of update, one row whose scores are given."""
    return {"rows": 1, "seen_scores": seen, "tile_scores": [scores]}


def sides(rows, keys, left, seed, **more) -> dict:
    """One case of merge: so many keys, of which so many are on the left."""
    return {"rows": rows, "keys": keys, "left": left, "seed": seed, **more}


def two(left, right) -> dict:
    """One case of merge, one row whose scores are given."""
    return {"rows": 1, "left_scores": left, "right_scores": right}


def rows_of(rows, n_k, block_k, seed, **more) -> dict:
    """One case of row_entropy."""
    return {"rows": rows, "n_k": n_k, "block_k": block_k, "seed": seed, **more}


INF = float("inf")
TESTS = {
    "update": ("update", 2, [by_hand([1, 3], [2, 5]), by_hand([], [1, 3]), by_hand([5], [1, 2]), tile(3, 4, 2, 1), tile(5, 16, 8, 2), tile(1, 30, 1, 3)]),
    "large scores": ("update", 1, [by_hand([1e4], [1e4 - 1, -1e4]), tile(4, 6, 4, 4, signs=1e4), tile(3, 5, 3, 5, shift=-1e4), tile(3, 2, 4, 6, large=300.0)]),
    "masked": (
        "update", 2,
        [by_hand([1], [2, -INF]), by_hand([], [-INF, -INF]), by_hand([3], [-INF]), tile(6, 3, 3, 7, masked=0.5),
         tile(5, 4, 4, 8, masked=0.3, blind=(1, 3), unseen=(0,))],
    ),
    "merge": (
        "merge", 3,
        [two([1, 3], [2, 5]), two([4], [1, 2]), two([], [1, 3]), two([2], []), two([], []), two([1e4, -1e4], [-1e4]), sides(6, 20, 7, 9), sides(6, 20, 13, 9),
         sides(5, 12, 6, 10, signs=1e4), sides(6, 8, 3, 11, masked=0.4, left_blind=(0, 2), right_blind=(1, 2))],
    ),
    "one pass": (
        "row_entropy", 2,
        [rows_of(1, 4, 2, 12), rows_of(3, 5, 2, 13), rows_of(7, 29, 8, 14, large=3.0), rows_of(4, 12, 5, 15, signs=1e4),
         rows_of(5, 9, 4, 16, masked=0.5, blind=(0, 3)), rows_of(2, 3, 8, 17, shift=-1e4), rows_of(3, 64, 4, 18)],
    ),
}  # fmt: skip
WHERE_FULL = {  # by the kind of exception
    "MemoryError": "All rows fit with block_k scores of each, not with all n_k. Go over tiles(n_k, block_k), load one tile at a time, and keep of it only the state that update returns."
}
KINDS = {
    "update": (update_call, (hinted(UPDATE, HINTS["update"], RETURNED),)),
    "merge": (merge_call, (hinted(MERGE, HINTS["merge"], RETURNED),)),
    "row_entropy": (pass_call, (hinted(PASS, HINTS["row_entropy"]), traffic(closed_form, read_again))),
}

EXERCISE = Exercise(
    name="e03_online_softmax",
    title="The entropy of a row in one pass",
    lesson="03_online_softmax",
    tests=tuple(Test(name, points, function, tuple(cases), *KINDS[function], hints=WHERE_FULL) for name, (function, points, cases) in TESTS.items()),
)
