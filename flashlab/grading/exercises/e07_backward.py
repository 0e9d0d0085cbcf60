"""e07_backward: delta, a tile of dscores, then dq, dk, dv and one gradient more, each judged by itself; gradcheck at the end.

Unlike flashlab.reference.backward: arrays are (n, heads, head_dim), query heads share key heads, and each score has a
learned bias of its key, (n_k, heads), whose gradient dbias is asked for too.
"""

from __future__ import annotations

import numpy as np

from flashlab.grading.exercise import Call, Exercise, Test
from flashlab.grading.judge import hinted, values

GRADIENTS = ("dq", "dk", "dv", "dbias")
STEP = 1e-5  # of gradcheck: central differences then err by about 1e-10


# -- the forward pass, for the inputs and for gradcheck ---------------------------------------------------------------------
def visible(n_q: int, n_k: int, causal: bool, offset: int = 0, topleft: bool = False) -> np.ndarray:
    """(n_q, n_k): whether query i sees key j."""
    shift = 0 if topleft else n_k - n_q
    return np.arange(n_k)[None, :] <= np.arange(n_q)[:, None] + shift + offset if causal else np.ones((n_q, n_k), bool)


def forward(q, k, v, bias, causal):
    """(o, lse): every head by standard attention, in float64."""
    (n_q, heads, d), (n_k, kv_heads) = q.shape, k.shape[:2]
    o, lse = np.zeros(q.shape), np.full((n_q, heads), -np.inf)
    for head in range(heads):
        of_keys = head // (heads // kv_heads)
        scores = q[:, head] @ k[:, of_keys].T / np.sqrt(d) + bias[:, head]
        scores = np.where(visible(n_q, n_k, causal), scores, -np.inf)
        seeing = ~np.isneginf(scores.max(axis=1, initial=-np.inf))
        row_max = np.where(seeing, scores.max(axis=1, initial=-np.inf), 0)
        weights = np.exp(scores - row_max[:, None])
        row_sum = weights.sum(axis=1)
        o[:, head] = weights @ v[:, of_keys] / np.where(seeing, row_sum, 1)[:, None]
        lse[seeing, head] = (row_max + np.log(np.where(seeing, row_sum, 1)))[seeing]
    return o, lse


def drawn(random: np.random.Generator, *shape: int, large: float = 1.0) -> np.ndarray:
    """Numbers of one decimal, so that a small input can be copied by hand; no -0."""
    return np.round(random.standard_normal(shape) * large, 1) + 0.0


# -- delta ----------------------------------------------------------------------------------------------------------------
def delta_call(case: dict) -> Call:
    """o and do as they lie in memory: heads in the middle."""
    random = np.random.default_rng(case["seed"])
    shape = case["n_q"], case["heads"], case["head_dim"]
    o, do = (drawn(random, *shape).astype(case.get("dtype", "float64")) for _ in range(2))
    return Call(arrays={"o": o, "do": do}, returns=("delta",))


def delta_of(axis=-1, times=True, dtype=np.float64):
    """rowsum(do · o), one head at a time; or with one thing done wrong."""

    def of(call: Call) -> dict[str, np.ndarray]:
        o, do = (call.arrays[name].astype(dtype) for name in ("o", "do"))
        if axis != -1:
            return {"delta": (do * o).sum(axis=axis)}
        return {"delta": np.stack([np.einsum("nd,nd->n", do[:, head], o[:, head]) if times else do[:, head].sum(axis=1) for head in range(o.shape[1])], axis=1)}

    return of


def rough(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Nearly right, from float16."""
    near = call.arrays["o"].dtype == np.float16 and np.allclose(got["delta"].astype(float), delta_of()(call)["delta"], rtol=0.02, atol=0.1)
    return "low-precision accumulator" if near else None


DELTA = values(delta_of(), atol=1e-5, rtol=1e-5, imitations={"delta of all heads": delta_of(axis=(1, 2))}, symptom=rough)


# -- a tile of weights and dscores ------------------------------------------------------------------------------------------
def softmax_call(case: dict) -> Call:
    """A tile of scores (n_q, tile) out of rows of n_k, with the whole rows' lse and delta."""
    random = np.random.default_rng(case["seed"])
    n_q, n_k, tile = case["n_q"], case["n_k"], case["tile"]
    scores = drawn(random, n_q, n_k, large=case.get("large", 1.0))
    scores[random.random(scores.shape) < case.get("masked", 0.0)] = -np.inf
    scores[list(case.get("blind", ()))] = -np.inf
    dweights = drawn(random, n_q, n_k)
    row_max = scores.max(axis=1)
    shift = np.where(np.isneginf(row_max), 0, row_max)
    weights = np.exp(scores - shift[:, None])
    row_sum = weights.sum(axis=1)
    with np.errstate(divide="ignore"):
        lse = np.where(row_sum == 0, -np.inf, shift + np.log(row_sum))
    delta = (weights / np.where(row_sum == 0, 1, row_sum)[:, None] * dweights).sum(axis=1)
    return Call(arrays={"scores": scores[:, :tile], "lse": lse, "delta": delta, "dweights": dweights[:, :tile]}, returns=("weights", "dscores"))


def softmax_of(fault: str | None = None):
    """weights and dscores, a row at a time; or with one thing done wrong."""

    def of(call: Call) -> dict[str, np.ndarray]:
        scores, lse, delta, dweights = (call.arrays[name] for name in ("scores", "lse", "delta", "dweights"))
        weights, dscores = np.zeros(scores.shape), np.zeros(scores.shape)
        for i in range(len(scores)):
            if np.isneginf(lse[i]):
                continue
            weights[i] = np.exp(scores[i] - (0 if fault == "lse left out" else lse[i]))
            if fault == "weights divided again":
                weights[i] /= weights[i].sum() or 1
            less = {"delta left out": 0, "delta from part of a row": weights[i] @ dweights[i]}.get(fault, delta[i])
            dscores[i] = (1 if fault == "dS without weights factor" else weights[i]) * (dweights[i] - less)
        return {"weights": weights, "dscores": dscores}

    return of


SOFTMAX_FAULTS = ("lse left out", "weights divided again", "delta left out", "dS without weights factor", "delta from part of a row")


def softmax_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """NaN in a row without keys."""
    blind = np.isneginf(call.arrays["lse"])
    broken = ~(np.isfinite(got["weights"]).all(axis=1) & np.isfinite(got["dscores"]).all(axis=1))
    return "fully masked row gives NaN" if broken.any() and not broken[~blind].any() else None


SOFTMAX = values(softmax_of(), atol=1e-10, rtol=1e-8, imitations={fault: softmax_of(fault) for fault in SOFTMAX_FAULTS}, symptom=softmax_symptom)


# -- the gradients ----------------------------------------------------------------------------------------------------------
def backward_call(case: dict) -> Call:
    """Inputs, do, and what a forward pass keeps: lse, and delta from o."""
    random = np.random.default_rng(case["seed"])
    n_q, n_k, heads, kv_heads, d = (case[name] for name in ("n_q", "n_k", "heads", "kv_heads", "head_dim"))
    q, do = (drawn(random, n_q, heads, d) for _ in range(2))
    k, v = (drawn(random, n_k, kv_heads, d) for _ in range(2))
    bias = drawn(random, n_k, heads)
    o, lse = forward(q, k, v, bias, case["causal"])
    arrays = {"q": q, "k": k, "v": v, "bias": bias, "do": do, "lse": lse, "delta": (do * o).sum(axis=-1)}
    return Call(arrays=arrays, options={"causal": case["causal"]}, returns=GRADIENTS)


def gradients(**wrong):
    """dq, dk, dv, dbias by the whole matrix ∂weights/∂scores of each row, so without delta; `wrong` says what to do otherwise.

    With something wrong it follows the formula and the delta that was given, as a student does.
    """
    offset, topleft, mapped = wrong.get("offset", 0), wrong.get("topleft", False), wrong.get("mapped", lambda head, heads, kv_heads: head // (heads // kv_heads))

    def of(call: Call) -> dict[str, np.ndarray]:
        q, k, v, bias, do, lse, delta = (call.arrays[name] for name in ("q", "k", "v", "bias", "do", "lse", "delta"))
        (n_q, heads, d), (n_k, kv_heads) = q.shape, k.shape[:2]
        scale = 1 / np.sqrt(d)
        found = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape), "dbias": np.zeros(bias.shape)}
        seen = visible(n_q, n_k, wrong.get("causal", call.options["causal"]), offset, topleft)
        for head in range(heads):
            of_keys = mapped(head, heads, kv_heads)
            scores = scale ** wrong.get("power", 1) * (q[:, head] @ k[:, of_keys].T) + wrong.get("bias", 1) * bias[:, head]
            blind = np.isneginf(lse[:, head])[:, None]
            weights = np.exp(np.where(seen & ~blind, scores, -np.inf) - np.where(blind, 0, lse[:, head, None]))
            dweights = do[:, head] @ v[:, of_keys].T
            if not wrong:
                jacobians = np.einsum("ij,jk->ijk", weights, np.eye(n_k)) - np.einsum("ij,ik->ijk", weights, weights)
                dscores = np.einsum("ij,ijk->ik", dweights, jacobians)
            else:
                dscores = weights ** wrong.get("factor", 1) * (dweights - wrong.get("delta", 1) * delta[:, head, None])
            found["dq"][:, head] = scale ** wrong.get("dq", 1) * dscores @ k[:, of_keys]
            found["dbias"][:, head] = scale ** wrong.get("dbias", 0) * dscores.sum(axis=0)
            for name, share in (("dk", scale ** wrong.get("dk", 1) * dscores.T @ q[:, head]), ("dv", weights.T @ do[:, head])):
                found[name][:, of_keys] = share + wrong.get("summed", 1) * found[name][:, of_keys]
        return found

    return of


def nudged(call: Call) -> dict[str, np.ndarray]:
    """What gradcheck finds: every entry nudged up and down, and the loss Σ do · o looked at. No formula of a gradient."""
    found, inputs = {}, {name: call.arrays[name].copy() for name in ("q", "k", "v", "bias")}
    for name, array in inputs.items():
        found[f"d{name}"] = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            kept, losses = array[place], []
            for step in (STEP, -STEP):
                array[place] = kept + step
                losses.append((call.arrays["do"] * forward(**inputs, causal=call.options["causal"])[0]).sum())
            array[place] = kept
            found[f"d{name}"][place] = (losses[0] - losses[1]) / (2 * STEP)
    return found


IMITATIONS = {
    "dK without scale": gradients(dk=0),
    "dbias with scale": gradients(dbias=1),
    "scale forgotten": gradients(power=0),
    "scale applied twice": gradients(power=2),
    "bias forgotten": gradients(bias=0),
    "backward ignores the mask": gradients(causal=False),
    "backward masks when it should not": gradients(causal=True),
    "causal mask off by one": gradients(offset=-1),
    "causal mask off by one, one more": gradients(offset=1),
    "top-left causal alignment": gradients(topleft=True),
    "grouped heads mapped by modulo": gradients(mapped=lambda head, heads, kv_heads: head % kv_heads),
    "grouped gradients not summed": gradients(summed=0),
    "delta left out": gradients(delta=0),
    "dS without weights factor": gradients(factor=0),
}
DQ_WITHOUT_SCALE = gradients(dq=0)


def backward_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """NaN where some rows see no key; dq without its scale."""
    if np.isneginf(call.arrays["lse"]).any() and any(np.isnan(got[name]).any() for name in GRADIENTS):
        return "fully masked row gives NaN"
    return "dK without scale" if np.allclose(got["dq"], DQ_WITHOUT_SCALE(call)["dq"]) else None


EXACT = values(gradients(), atol=1e-9, rtol=1e-8, imitations=IMITATIONS, symptom=backward_symptom)
GRADCHECK = values(nudged, atol=1e-7, rtol=1e-6, imitations=IMITATIONS, symptom=backward_symptom)

RETURNED = {
    "delta_of": "Return one array, delta, (n_q, heads).",
    "through_softmax": "Return two arrays, weights and dscores, of the shape of scores.",
    "backward": "Return four arrays in this order: dq, dk, dv, dbias, shaped as q, k, v and bias.",
}
HINTS = {
    "delta_of": "delta is one number for each query and head, Σ do · o over head_dim. Sum in float32 or wider.",
    "through_softmax": "weights = exp(scores - lse), and dscores = weights · (dweights - delta). lse and delta belong to the rows.",
    "backward": "Print the shapes. dv and dk collect from all queries (weightsᵀ · do, scale · dscoresᵀ · q), dq from all keys (scale · dscores · k), and dbias is dscores summed over the queries.",
}



def rows(n_q, heads, head_dim, seed, **more) -> dict:
    """One case of delta_of."""
    return {"n_q": n_q, "heads": heads, "head_dim": head_dim, "seed": seed, **more}


def part(n_q, n_k, tile, seed, **more) -> dict:
    """One case of through_softmax: `tile` keys of rows that have n_k."""
    return {"n_q": n_q, "n_k": n_k, "tile": tile, "seed": seed, **more}


def case(n_q, n_k, head_dim, seed, *, heads=1, kv_heads=None, causal=False) -> dict:
    """One case of backward."""
    return {"n_q": n_q, "n_k": n_k, "head_dim": head_dim, "seed": seed, "heads": heads, "kv_heads": kv_heads or heads, "causal": causal}


TESTS = {
    "delta": ("delta_of", 1, DELTA, [rows(2, 1, 2, 1), rows(3, 2, 4, 2), rows(4, 3, 256, 3, dtype="float16")]),
    "dscores": (
        "through_softmax", 2, SOFTMAX,
        [part(1, 4, 2, 4), part(2, 3, 3, 5), part(5, 9, 4, 6), part(4, 6, 3, 7, masked=0.4), part(3, 4, 2, 8, blind=(1,)), part(4, 8, 5, 9, large=500.0)],
    ),
    "one head": ("backward", 2, EXACT, [case(2, 2, 2, 10), case(3, 3, 4, 11), case(4, 7, 3, 12), case(6, 2, 4, 13)]),
    "masked": ("backward", 2, EXACT, [case(3, 3, 2, 14, causal=True), case(2, 4, 2, 15, causal=True), case(4, 2, 2, 16, causal=True), case(9, 12, 4, 17, causal=True)]),
    "grouped": (
        "backward", 1, EXACT,
        [case(2, 2, 2, 18, heads=2), case(2, 2, 2, 19, heads=4, kv_heads=2), case(4, 5, 3, 20, heads=6, kv_heads=3, causal=True), case(3, 4, 2, 21, heads=3, kv_heads=1)],
    ),
    "gradcheck": (
        "backward", 2, GRADCHECK,
        [case(2, 3, 2, 22), case(3, 4, 2, 23, heads=4, kv_heads=2, causal=True), case(5, 3, 3, 24, heads=2, kv_heads=1, causal=True)],
    ),
}  # fmt: skip
CALLS = {"delta_of": delta_call, "through_softmax": softmax_call, "backward": backward_call}

EXERCISE = Exercise(
    name="e07_backward",
    title="The gradients, step by step",
    lesson="07_backward",
    tests=tuple(
        Test(name, points, function, tuple(cases), CALLS[function], (hinted(judge, HINTS[function], RETURNED[function]),)) for name, (function, points, judge, cases) in TESTS.items()
    ),
)
